// One matrix product as a kernel takes it: D = activation(alpha * A B + beta * C + bias), `batch` times.
#pragma once

#include <common/atoms.cuh>

namespace hgemm {

// Passed by value: 144 bytes in this order. Pointers and strides of unused operands may be null or zero.
//
// Leading dimensions and batch strides count elements. `bias` is a row (n,) or a column (m,) of D's type.
// Pointers, leading dimensions and batch strides are multiples of the kernel's alignment of A, B and D; C is aligned as D.
// m, n and k are at most 2^31 - 1024. tiles * splits * batch is at most 2^31 - 1; it is the grid of every schedule but
// persistent and stream_k.
// Kernels without TMA accept k = -tile_k as an empty product: one k-tile of zeros, for which nothing is read.
//
// Split-K and stream-K need `workspace`, aligned to 16 bytes. It starts with one 4-byte counter per tile and batch, rounded up
// to 256 bytes in all. Counters must be zero at a launch, and are zero after it. Partial accumulators follow: one tile's per
// split, or with stream-K two tiles' per CTA of the grid. A launch of another shape places them elsewhere, so zero the counters
// before it.
struct Problem {
  void const* a;  // (m, k), k contiguous in layout t*, m contiguous in layout n*
  void const* b;  // (k, n), k contiguous in layout *n, n contiguous in layout *t
  void const* c;  // (m, n), n contiguous, read only if beta is not zero
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
