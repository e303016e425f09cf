// Stands in for CUTLASS's <cutlass/numeric_types.h>, of which the atoms used here need nothing. See cute/config.hpp.
#pragma once
