// Stages for wgmma that a warpgroup's threads fill by cp.async, laid out as by the TMA. For operands that the TMA cannot load,
// because they are aligned to less than 16 bytes.
#pragma once

#include <common/tma_pipeline.cuh>

namespace hgemm {

// ---- Copy of one operand ------------------------------------------------------------------------------------------

// Copies one k-tile after another. Each thread copies the same chunk of `align` elements of a row of each box, in rows that are
// row_step apart. Chunks past the end of the extent are not read and arrive as zeros.
//
// All k-tiles but the last are whole, so copy() has no branch. It may read the padding of an MN-major row, on which no stored
// element of D depends. copy_last() copies the last k-tile, which may end within a chunk and at the end of memory.
template <class Policy, class Side, int EXTENT>
struct BoxCopy {
  using In = typename Policy::In;
  using Boxes = TmaBoxes<Policy, Side, EXTENT, 1>;

  static constexpr int threads = 128;
  static constexpr int chunk = Side::align, chunk_bytes = chunk * sizeof(In);
  static constexpr int chunk_columns = Boxes::columns / chunk;  // of a box
  static constexpr int row_step = threads / chunk_columns;
  static constexpr int passes = (Boxes::rows + row_step - 1) / row_step;
  static constexpr int period = 8 * Boxes::row_bytes;  // of the swizzle, in bytes

  static_assert(chunk_bytes >= 4, "cp.async moves 4 bytes at least");

  In const* source;     // this thread's chunk of the next k-tile, in its first row and box
  int64_t pass_step;    // elements to its chunk of the next pass
  int64_t k_tile_step;  // elements from one k-tile to the next
  int first_byte;       // of its first chunk in a stage, before the swizzle
  int extent_left;      // of the extent, from its first chunk on

  HGEMM_DEVICE BoxCopy(void const* matrix, int64_t leading_dimension, int first, int extent, int k_first) {
    int const row_first = Side::k_major ? first : k_first, column_first = Side::k_major ? k_first : first;
    source = static_cast<In const*>(matrix) + (row_first + row()) * leading_dimension + column_first + column();
    pass_step = row_step * leading_dimension;
    k_tile_step = Side::k_major ? Policy::tile_k : Policy::tile_k * leading_dimension;
    first_byte = row() * Boxes::row_bytes + column() * int(sizeof(In));
    extent_left = extent - first - (Side::k_major ? row() : column());
  }

  HGEMM_DEVICE static int row() { return atoms::thread_index() % threads / chunk_columns; }
  HGEMM_DEVICE static int column() { return atoms::thread_index() % chunk_columns * chunk; }

  // Whether this thread has a row in a pass; always true if the threads divide the rows evenly.
  HGEMM_DEVICE static bool owns(int pass) {
    return Boxes::rows % row_step == 0 || row() + pass * row_step < Boxes::rows;
  }

  // Issues the copy of the next k-tile.
  HGEMM_DEVICE void copy(unsigned char* stage) {
    int const inside = atoms::opaque(extent_left);
    HGEMM_UNROLL
    for (int pass = 0; pass < passes; ++pass) {
      int const delta = pass * row_step * Boxes::row_bytes, rest = delta % period;
      unsigned char* const to = stage + Boxes::swizzled(first_byte + rest) + (delta - rest);
      HGEMM_UNROLL
      for (int box = 0; box < Boxes::boxes; ++box) {
        int const along = Side::k_major ? pass * row_step : box * Boxes::columns;
        if (owns(pass)) {
          atoms::cp_async<chunk_bytes>(to + box * Boxes::box_bytes, source + box * Boxes::columns, along < inside);
        }
      }
      source += pass_step;
    }
    source += k_tile_step - passes * pass_step;
  }

  // Issues the copy of a k-tile. The matrix has `k_left` of its k; zeros follow. Returns whether the matrix ends in a chunk. If
  // so, this thread has stored that chunk's elements itself.
  HGEMM_DEVICE bool copy_last(unsigned char* stage, int k_left) const {
    In const* from = source;
    bool stores = false;
    HGEMM_NO_UNROLL
    for (int pass = 0; pass < passes && owns(pass); ++pass) {
      unsigned char* const to = stage + Boxes::swizzled(first_byte + pass * row_step * Boxes::row_bytes);
      int const rows = (Side::k_major ? extent_left : k_left - row()) - pass * row_step;
      HGEMM_NO_UNROLL
      for (int box = 0; box < Boxes::boxes; ++box) {
        int const columns = (Side::k_major ? k_left - column() : extent_left) - box * Boxes::columns;
        bool const ends = rows > 0 && columns > 0 && columns < chunk;
        stores |= ends;
        if (ends) {
          store_end(to + box * Boxes::box_bytes, from + box * Boxes::columns, columns);
        } else {
          atoms::cp_async<chunk_bytes>(to + box * Boxes::box_bytes, from + box * Boxes::columns, rows > 0 && columns > 0);
        }
      }
      from += pass_step;
    }
    return stores;
  }

  // Stores the first `elements` of a chunk, and zeros after them.
  HGEMM_DEVICE static void store_end(unsigned char* chunk_at, In const* from, int elements) {
    In* const to = reinterpret_cast<In*>(chunk_at);
    HGEMM_NO_UNROLL
    for (int e = 0; e < chunk; ++e) {
      atoms::st_shared(to + e, e < elements ? atoms::ld_global(from + e) : atoms::from_float<In>(0.f));
    }
  }
};

// ---- Pipeline -----------------------------------------------------------------------------------------------------

template <class Policy>
struct CpAsyncPipeline : TmaPipeline<Policy> {
  using Base = TmaPipeline<Policy>;
  using Barriers = typename Base::Barriers;
  using In = typename Policy::In;
  using CopyA = BoxCopy<Policy, typename Policy::A, Policy::tile_m>;
  using CopyB = BoxCopy<Policy, typename Policy::B, Policy::tile_n>;
  using Base::Base;
  using Base::state;

  static constexpr bool reads_padding = !(Policy::A::k_major && Policy::B::k_major);

  HGEMM_DEVICE static void init(Barriers& barriers, int consumers) { Base::init(barriers, consumers, CopyA::threads); }

  // ---- Producer: all threads of a warpgroup -----------------------------------------------------------------------

  HGEMM_DEVICE void load(TensorMaps const&, Problem const& problem, int batch, int m_first, int n_first, int k_first,
                         int k_tiles) {
    In const* const a = matrix_of<Policy>(static_cast<In const*>(problem.a), batch, problem.batch_stride_a, problem.k > 0);
    In const* const b = matrix_of<Policy>(static_cast<In const*>(problem.b), batch, problem.batch_stride_b, problem.k > 0);
    int const k = k_first * Policy::tile_k;
    CopyA copy_a(Policy::swap_ab ? b : a, Policy::swap_ab ? problem.ldb : problem.lda, m_first,
                 Policy::swap_ab ? problem.n : problem.m, k);
    CopyB copy_b(Policy::swap_ab ? a : b, Policy::swap_ab ? problem.lda : problem.ldb, n_first,
                 Policy::swap_ab ? problem.m : problem.n, k);
    int k_left = problem.k - k;
    HGEMM_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      unsigned char* const stage_a = Base::shared.a[state.stage];
      unsigned char* const stage_b = Base::shared.b[state.stage];
      bool stores = false;
      uint64_t* const full = Base::producer_acquire();
      if (k_left >= Policy::tile_k + reads_padding) {
        copy_a.copy(stage_a);
        copy_b.copy(stage_b);
      } else {
        stores = copy_a.copy_last(stage_a, k_left);
        stores |= copy_b.copy_last(stage_b, k_left);
      }
      if (stores) {
        atoms::cp_async_wait<0>();
        atoms::mbarrier_arrive(full);
      } else {
        atoms::cp_async_mbarrier_arrive(full);
      }
      k_left -= Policy::tile_k;
      state.advance();
    }
  }

  // ---- Consumers --------------------------------------------------------------------------------------------------

  // cp.async writes through the generic proxy. wgmma sees its data only after a proxy fence.
  HGEMM_DEVICE void consumer_wait() const {
    Base::consumer_wait();
    atoms::fence_proxy_async();
  }
};

}  // namespace hgemm
