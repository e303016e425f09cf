// Stands in for CuTe's <cute/container/bit_field.hpp>, of which the atoms used here need nothing. See cute/config.hpp.
#pragma once
