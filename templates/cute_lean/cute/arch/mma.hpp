// Stands in for CuTe's <cute/arch/mma.hpp>, whose UniversalFMA is not used here. See cute/config.hpp beside it.
#pragma once

#include <cute/config.hpp>
