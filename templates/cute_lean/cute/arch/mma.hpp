// Replaces CuTe's <cute/arch/mma.hpp>; kernels here do not use its UniversalFMA. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>
