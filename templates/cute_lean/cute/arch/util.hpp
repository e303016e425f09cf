// Replaces CuTe's <cute/arch/util.hpp>: the address of shared memory. See cute/config.hpp.
#pragma once

#include <cute/arch/copy.hpp>
