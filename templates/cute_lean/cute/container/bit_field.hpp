// Replaces CuTe's <cute/container/bit_field.hpp>; the atoms used here need nothing from it. See cute/config.hpp.
#pragma once
