// One matrix product as a kernel takes it: D = activation(alpha * A B + beta * C + bias), `batch` times.
#pragma once

#include <common/atoms.cuh>

namespace hgemm {

// Passed by value: 160 bytes in this order. Pointers and strides of unused operands may be null or zero.
//
// Leading dimensions and batch strides count elements. `bias` is a row (n,) or a column (m,) of D's type.
// Pointers, leading dimensions and batch strides are multiples of the kernel's alignment of A, B and D; C is aligned as D.
// m, n and k are at most 2^31 - 1024. tiles * splits * batch is at most 2^31 - 1; it is the grid of every schedule but
// persistent and stream_k.
// Kernels without TMA accept k = -tile_k as an empty product: one k-tile of zeros, for which nothing is read.
//
// Split-K and stream-K need `workspace`, aligned to 16 bytes. It starts with `workspace_counters` counters of 4 bytes. They must
// be zero at a launch, and are zero after it. So a workspace is filled with zeros once, and then serves any kernels and problems,
// one after another. Partial accumulators follow: one tile's per tile, batch and split, or with stream-K two tiles' per CTA of
// the grid. A launch splits at most `workspace_counters` tiles of its batch.
//
// With Policy::pointer_arrays, a, b, c and d are arrays of addresses in device memory, one for each matrix of the batch, and their
// batch strides are not used.
//
// The last fields are for kernels that leave the decision to the launch. Other kernels ignore them.
struct Problem {
  void const* a;  // (m, k), k contiguous in layout t*, m contiguous in layout n*
  void const* b;  // (k, n), k contiguous in layout *n, n contiguous in layout *t
  void const* c;  // (m, n), n contiguous, read only if beta is not zero
  void* d;        // (m, n), n contiguous
  void const* bias;
  void* workspace;  // split-K and stream-K only; not read if splits is 1
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
  // In tiles of whole clusters:
  uint32_t splits;       // parts of a tile's k, from 1 to its k-tiles
  uint32_t whole_tiles;  // the first tiles of the batch, which are not split; with serial_parts, a CTA adds their parts itself
  int32_t raster_tiles;  // above 0: groups of so many rows of tiles; below 0: panels of so many columns; may have raster_by_gpc
  uint32_t bias_kind;    // as enum Bias: 0 for none, 1 for a row, 2 for a column
};

static_assert(sizeof(Problem) == 160, "the launchers pack this struct by hand");

// Added to the absolute value of raster_tiles: each GPC of an idle H100 or H200 gets tiles that follow one another. Clusters of two
// CTAs only; others ignore it.
inline constexpr uint32_t raster_by_gpc = 1 << 16;

template <class...>
struct MakeVoid { using Type = void; };
template <class Policy, class = void>
inline constexpr bool has_pointer_arrays = false;
template <class Policy>
inline constexpr bool has_pointer_arrays<Policy, typename MakeVoid<decltype(Policy::pointer_arrays)>::Type> = true;

// The first element of a matrix of the batch. If the operand is not used, its pointer array may be null.
template <class Policy, class T>
HGEMM_DEVICE T* matrix_of(T* operand, int64_t batch, int64_t batch_stride, bool used) {
  if constexpr (has_pointer_arrays<Policy>) {
    return used ? atoms::as_global(atoms::ld_global(reinterpret_cast<T* const*>(operand) + batch)) : nullptr;
  } else {
    return operand + batch * batch_stride;
  }
}

inline constexpr int workspace_counters = 65536;
inline constexpr int workspace_counter_bytes = workspace_counters * 4;

}  // namespace hgemm
