// The kernel for few rows: fragments of mma.sync come from global memory, without shared memory in between.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias), with A and B contiguous along k. Reading B is the
// bound. Every warp computes the CTA's tile over its part of k, with as many loads of B in flight as fit into registers. The
// warps add their accumulators in shared memory at the end.
#pragma once

#include <common/atoms_sm90.cuh>
#include <common/warp_epilogue.cuh>

namespace hgemm {

// ---- Types --------------------------------------------------------------------------------------------------------

// Partial accumulators, with one unused float after each row.
template <class Policy>
struct SharedStorage {
  float partials[Policy::warps][Policy::tile_m][Policy::tile_n + 1];  // (warps, tile_m, tile_n)
};

// The constants that WarpEpilogue expects. This kernel uses only its arithmetic of one element.
template <class Policy>
struct ByElement : Policy {
  static constexpr int warp_m = 16, warp_n = 8, warps_m = 1, epilogue_pitch = 0, epilogue_rows = 16, epilogue_odd_words = 0;
  static constexpr bool store_through_shared = false;
};

// ---- One warp's part of A and B -----------------------------------------------------------------------------------

// A block of 8 rows and 32 of k is one 16-byte vector of each lane: lane l has row l / 4 and 8 elements from l % 4 * 8 on. These
// are the fragments of two instructions. The instructions assign other k to these elements, but the same to A as to B, so the
// sums are the same.
template <class Policy>
struct WarpRows {
  using In = typename Policy::In;

  static constexpr int vectors = Policy::vectors;          // of a row, in flight
  static constexpr int blocks_m = Policy::tile_m / 8;      // blocks of 8 rows of A
  static constexpr int blocks_n = Policy::tile_n / 8;      // blocks of 8 columns of B
  static constexpr int block_k = 32, chunk = 8;            // elements of k in a block, and in a vector
  static constexpr int mma_per_k_tile = 2 * vectors * blocks_n;

  static_assert(sizeof(In) == 2, "a vector has 8 elements");
  static_assert(Policy::tile_m == 8 || Policy::tile_m == 16, "an instruction has 16 rows, of which 8 may stay zero");
  static_assert(Policy::tile_k == Policy::warps * vectors * block_k, "warps share a k-tile");

  In const* a[blocks_m];  // this lane's row of A, at the warp's part of the first k-tile
  In const* b[blocks_n];  // this lane's column of B, likewise
  Vec16B a_vecs[vectors][blocks_m], b_vecs[vectors][blocks_n];
  float accumulators[blocks_n][4];  // (16, 8) each: rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next

  // Rows outside the matrix are those of its last row. What they add to is never stored.
  HGEMM_DEVICE WarpRows(Problem const& problem, int batch, int m_first, int n_first) {
    int const lane = atoms::thread_index() % 32, first = lane_k();
    HGEMM_UNROLL
    for (int i = 0; i < blocks_m; ++i) {
      int const row = inside(m_first + i * 8 + lane / 4, problem.m);
      a[i] = static_cast<In const*>(problem.a) + batch * problem.batch_stride_a + row * problem.lda + first;
    }
    HGEMM_UNROLL
    for (int j = 0; j < blocks_n; ++j) {
      int const column = inside(n_first + j * 8 + lane / 4, problem.n);
      b[j] = static_cast<In const*>(problem.b) + batch * problem.batch_stride_b + column * problem.ldb + first;
      accumulators[j][0] = accumulators[j][1] = accumulators[j][2] = accumulators[j][3] = 0.f;
    }
  }

  // The first k of a k-tile that this lane loads.
  HGEMM_DEVICE static int lane_k() {
    return atoms::thread_index() / 32 * vectors * block_k + atoms::thread_index() % 4 * chunk;
  }
  HGEMM_DEVICE static int inside(int index, int extent) { return index < extent ? index : extent - 1; }

  // Loads the k-tile that begins at k. The matrix has `k_left` of it, in whole vectors; zeros follow. B comes first, because it is
  // not in L2.
  HGEMM_DEVICE void load(int k, int k_left) {
    int const left = k_left - lane_k();
    HGEMM_UNROLL
    for (int v = 0; v < vectors; ++v) {
      HGEMM_UNROLL
      for (int j = 0; j < blocks_n; ++j) {
        b_vecs[v][j] = atoms::ld_global_once(vec_at(b[j] + k + v * block_k), v * block_k < left);
      }
    }
    HGEMM_UNROLL
    for (int v = 0; v < vectors; ++v) {
      HGEMM_UNROLL
      for (int i = 0; i < blocks_m; ++i) {
        a_vecs[v][i] = v * block_k < left ? atoms::ld_global(vec_at(a[i] + k + v * block_k)) : Vec16B{};
      }
    }
  }

  HGEMM_DEVICE void multiply() {
    HGEMM_UNROLL
    for (int v = 0; v < vectors; ++v) {
      Vec16B const upper = a_vecs[v][0];
      Vec16B const lower = blocks_m > 1 ? a_vecs[v][blocks_m - 1] : Vec16B{};
      uint32_t const a_first[4] = {upper.x, lower.x, upper.y, lower.y}, a_second[4] = {upper.z, lower.z, upper.w, lower.w};
      HGEMM_UNROLL
      for (int j = 0; j < blocks_n; ++j) {
        uint32_t const b_first[2] = {b_vecs[v][j].x, b_vecs[v][j].y}, b_second[2] = {b_vecs[v][j].z, b_vecs[v][j].w};
        atoms::mma<In, 16>(accumulators[j], a_first, b_first);
        atoms::mma<In, 16>(accumulators[j], a_second, b_second);
      }
    }
  }

  HGEMM_DEVICE static Vec16B const* vec_at(In const* elements) { return reinterpret_cast<Vec16B const*>(elements); }
};

// ---- Sum over the warps -------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void store_partials(WarpRows<Policy> const& rows, SharedStorage<Policy>& shared) {
  int const lane = atoms::thread_index() % 32;
  auto& partials = shared.partials[atoms::thread_index() / 32];
  HGEMM_UNROLL
  for (int i = 0; i < Policy::tile_m / 8; ++i) {
    HGEMM_UNROLL
    for (int j = 0; j < Policy::tile_n / 8; ++j) {
      HGEMM_UNROLL
      for (int e = 0; e < 2; ++e) {
        atoms::st_shared(&partials[i * 8 + lane / 4][j * 8 + lane % 4 * 2 + e], rows.accumulators[j][i * 2 + e]);
      }
    }
  }
}

// The product of a row of A and a column of B from k = `first` on.
template <class Policy>
HGEMM_DEVICE float end_of_product(Problem const& problem, int batch, int row, int column, int first) {
  using In = typename Policy::In;
  In const* const a = static_cast<In const*>(problem.a) + batch * problem.batch_stride_a + row * problem.lda;
  In const* const b = static_cast<In const*>(problem.b) + batch * problem.batch_stride_b + column * problem.ldb;
  float sum = 0.f;
  HGEMM_NO_UNROLL
  for (int k = first; k < problem.k; ++k) {
    sum += atoms::to_float(atoms::ld_global(a + k)) * atoms::to_float(atoms::ld_global(b + k));
  }
  return sum;
}

// Each thread finishes elements of the tile, one at a time: it adds the partials in the order of the warps, and what follows the
// last whole vector of k.
template <Bias BIAS, class Policy>
HGEMM_DEVICE void store_sums(WarpEpilogue<ByElement<Policy>> const& epilogue, SharedStorage<Policy> const& shared, int batch,
                             int m_first, int n_first, int whole_k) {
  static constexpr int gated_parts = accumulators_of<Policy>, columns = Policy::tile_n / gated_parts;  // of D
  HGEMM_NO_UNROLL
  for (int index = atoms::thread_index(); index < Policy::tile_m * columns; index += Policy::threads) {
    int const row = index / columns, column = index % columns;
    if (m_first + row >= epilogue.problem.m || n_first / gated_parts + column >= epilogue.columns()) continue;
    float sums[gated_parts];  // (gated_parts)
    HGEMM_UNROLL
    for (int part = 0; part < gated_parts; ++part) {
      int const from = gated_parts == 1 ? column : column / 8 * 16 + part * 8 + column % 8;  // column of the tile of A B
      float sum = atoms::ld_shared(&shared.partials[0][row][from]);
      HGEMM_UNROLL
      for (int warp = 1; warp < Policy::warps; ++warp) sum += atoms::ld_shared(&shared.partials[warp][row][from]);
      sums[part] = sum + end_of_product<Policy>(epilogue.problem, batch, m_first + row, n_first + from, whole_k);
    }
    epilogue.template store_vec<1, BIAS, 1>(sums, m_first + row, n_first / gated_parts + column);
  }
}

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem) {
  static_assert(Policy::threads == Policy::warps * 32 && Policy::schedule == Schedule::one_tile,
                "warps share k, and a CTA computes one tile");
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  // ---- This CTA's tile of D ----------------------------------------------------------------------------------------
  Scheduler<Policy> scheduler(problem);
  Work work;
  if (!scheduler.next(work)) return;
  int const m_first = work.tile_m * Policy::tile_m, n_first = work.tile_n * Policy::tile_n;
  WarpRows<Policy> rows(problem, work.batch, m_first, n_first);

  // ---- Wait for the previous grid (programmatic dependent launch), then allow the next ------------------------------
  atoms::wait_on_dependent_grids();
  atoms::launch_dependent_grids();

  // ---- Mainloop ----------------------------------------------------------------------------------------------------
  int const whole_k = problem.k / WarpRows<Policy>::chunk * WarpRows<Policy>::chunk;
  HGEMM_NO_UNROLL
  for (int k = 0; k < whole_k; k += Policy::tile_k) {
    rows.load(k, whole_k - k);
    rows.multiply();
  }

  // ---- Epilogue ----------------------------------------------------------------------------------------------------
  store_partials<Policy>(rows, shared);
  atoms::cta_barrier();
  WarpEpilogue<ByElement<Policy>> const epilogue(problem, work.batch, m_first, n_first);
  if (epilogue.has_bias(Bias::row)) {
    store_sums<Bias::row, Policy>(epilogue, shared, work.batch, m_first, n_first, whole_k);
  } else if (epilogue.has_bias(Bias::column)) {
    store_sums<Bias::column, Policy>(epilogue, shared, work.batch, m_first, n_first, whole_k);
  } else {
    store_sums<Bias::none, Policy>(epilogue, shared, work.batch, m_first, n_first, whole_k);
  }
}

}  // namespace hgemm
