// Stands in for CuTe's <cute/numeric/numeric_types.hpp>, of which the atoms used here need nothing. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>
