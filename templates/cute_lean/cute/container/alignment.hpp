// Replaces CuTe's <cute/container/alignment.hpp>; the atoms used here need nothing from it. See cute/config.hpp.
#pragma once
