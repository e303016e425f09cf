// One matrix product as a kernel takes it: D = activation(alpha * A B + beta * C + bias), `batch` times.
#pragma once

#include <hgemm/atoms.cuh>

namespace hgemm {

// Passed by value, 144 bytes, in this order; pointers and strides of unused operands may be null or zero.
// Leading dimensions and batch strides count elements. `bias` is a row (n,) or a column (m,), of D's type.
// Pointers, leading dimensions and batch strides are multiples of the variant's alignment of A, B and D (C as D). m, n and k
// are at most 2^31 - 1024, and tiles * splits * batch at most 2^31 - 1, which is also the grid unless it is persistent or
// stream-K's.
// Kernels without TMA take a k of -tile_k as none at all: one k-tile, of zeros, for which nothing is read.
// Split-K and stream-K work in `workspace`, aligned to 16 bytes: 4 bytes a tile and batch, rounded up to 256 in all, which are
// zeros at each launch and are left as zeros; then the partial sums, of each tile and split or, of stream-K, two tiles a CTA of
// the grid. A launch of another shape puts them elsewhere: zero the counters first.
struct Problem {
  void const* a;  // (m, k), k contiguous in layout t*, m contiguous in layout n*
  void const* b;  // (k, n), k contiguous in layout *n, n contiguous in layout *t
  void const* c;  // (m, n), n contiguous, read only where beta is not zero
  void* d;        // (m, n), n contiguous
  void const* bias;
  void* workspace;  // split-K and stream-K only
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
};

static_assert(sizeof(Problem) == 144, "the launchers pack this struct by hand");

}  // namespace hgemm
