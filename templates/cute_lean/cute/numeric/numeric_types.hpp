// Replaces CuTe's <cute/numeric/numeric_types.hpp>; the atoms used here need nothing from it. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>
