// Replaces CUTLASS's <cutlass/numeric_types.h>; the atoms used here need nothing from it. See cute/config.hpp.
#pragma once
