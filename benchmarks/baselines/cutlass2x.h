// What one compiled CUTLASS 2.x kernel offers to the table of cutlass2x_abi.cpp.
#pragma once

#include <cstdint>

namespace baseline {

/// D (m, n) = A (m, k) * B (k, n): A and D row-major, B column-major, all f16; leading dimensions in elements.
struct Operands {
  int m, n, k;
  const void* a;
  const void* b;
  void* d;
  std::int64_t lda, ldb, ldd;
};

struct Kernel {
  const char* name;
  int accumulator_bits;
  int (*init)();                                                 // opts in to the shared memory; once, outside any capture
  int (*run)(const Operands&, int raster_log, void* stream);     // launches only: no allocation, no synchronisation
};

/// Called by the static initialiser of each compiled kernel.
void enlist(const Kernel&);

}  // namespace baseline
