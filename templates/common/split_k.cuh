// Split-K: CTAs that share a tile store their partial accumulators in the workspace. The last of them to arrive adds all of
// them up in the order of the splits, so the result does not depend on which CTA is last.
#pragma once

#include <common/scheduler.cuh>

namespace hgemm {

// ---- Accumulators in f32, however the mainloop accumulated --------------------------------------------------------

// A thread's part of D as floats, laid out as its accumulators of type `Like` are.
template <class Like>
struct AccumulatorsF32 {
  static constexpr bool in_pairs = false;
  static constexpr int mma_m = Like::mma_m;
  static constexpr int mma_n = Like::mma_n;

  float floats[Like::mma_m][Like::mma_n][4];  // (mma_m, mma_n, 4)

  HGEMM_DEVICE uint32_t bits(int i, int j, int r) const { return atoms::float_bits(floats[i][j][r]); }

  HGEMM_DEVICE void convert(Like const& accumulators) {
    HGEMM_UNROLL
    for (int i = 0; i < Like::mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < Like::mma_n; ++j) {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) floats[i][j][e] = accumulators.value(i, j, e);
      }
    }
  }
  HGEMM_DEVICE void add(Like const& accumulators) {
    HGEMM_UNROLL
    for (int i = 0; i < Like::mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < Like::mma_n; ++j) {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) floats[i][j][e] += accumulators.value(i, j, e);
      }
    }
  }
  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int i = 0; i < Like::mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < Like::mma_n; ++j) {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) floats[i][j][e] = 0.f;
      }
    }
  }
};

// A lane's 4 accumulators of block (i, j) as one vector, and the addition of such a vector.
template <class Accumulators>
HGEMM_DEVICE Vec16B vec_of(Accumulators const& accumulators, int i, int j) {
  return {atoms::float_bits(accumulators.value(i, j, 0)), atoms::float_bits(accumulators.value(i, j, 1)),
          atoms::float_bits(accumulators.value(i, j, 2)), atoms::float_bits(accumulators.value(i, j, 3))};
}
HGEMM_DEVICE void add_vec(float (&sum)[4], Vec16B vec) {
  sum[0] += atoms::bits_float(vec.x);
  sum[1] += atoms::bits_float(vec.y);
  sum[2] += atoms::bits_float(vec.z);
  sum[3] += atoms::bits_float(vec.w);
}

// ---- Reduction over the splits of a tile --------------------------------------------------------------------------

// Workspace: the counters, of which each tile that is split takes one; then the partial accumulators of each of these tiles and
// splits, as (mma_m, mma_n, threads) vectors of 4 floats. With clusters, tiles count by CTAs.
template <class Policy, class Accumulators, class Threads = CtaThreads<Policy>>
struct SplitK {
  static constexpr int mma_m = Accumulators::mma_m;
  static constexpr int mma_n = Accumulators::mma_n;
  static constexpr int vecs = mma_m * mma_n * Threads::count;  // of one tile

  // Vectors of another CTA's partials that a thread loads at once. If a kernel also stores whole tiles, all of them would spill.
  HGEMM_DEVICE static constexpr int in_flight() {
    if constexpr (Policy::schedule == Schedule::launch) return Policy::partials_in_flight;
    return mma_m * mma_n;
  }

  // Returns whether this CTA, `rank` of its worker's `ranks`, is the last of its tile. If so, `sums` holds the tile's
  // accumulators.
  HGEMM_DEVICE static bool reduce(Accumulators const& accumulators, AccumulatorsF32<Accumulators>& sums,
                                  Problem const& problem, Work const& work, uint32_t& is_last, uint32_t rank = 0,
                                  uint32_t ranks = 1) {
    uint32_t const tile = work.shared * ranks + rank;
    uint32_t* const counter = static_cast<uint32_t*>(problem.workspace) + tile;
    Vec16B* const partials = partials_of(problem) + uint64_t(tile) * work.splits * vecs;

    store(accumulators, partials + uint64_t(work.split) * vecs);
    if (!last_to_arrive(counter, work.splits, is_last)) return false;
    sums.clear();
    HGEMM_UNROLL
    for (int first = 0; first < mma_m * mma_n; first += in_flight()) {
      HGEMM_NO_UNROLL
      for (uint32_t split = 0; split < work.splits; ++split) add(sums, partials + uint64_t(split) * vecs, first);
    }
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
    return true;
  }

  // This thread's first vector of partials in the workspace.
  HGEMM_DEVICE static Vec16B* partials_of(Problem const& problem) {
    char* const partials = static_cast<char*>(problem.workspace) + workspace_counter_bytes;
    return reinterpret_cast<Vec16B*>(partials) + Threads::index();
  }

  // Counts this CTA among the `sharers` of its tile after its partials are stored. Returns whether it is the last.
  HGEMM_DEVICE static bool last_to_arrive(uint32_t* counter, uint32_t sharers, uint32_t& is_last) {
    atoms::global_fence();
    Threads::barrier();
    if (Threads::index() == 0) {
      uint32_t const before = atoms::global_fetch_add(counter, 1);
      atoms::st_shared(&is_last, uint32_t(before == sharers - 1));
      atoms::global_fence();
    }
    Threads::barrier();
    bool const last = atoms::ld_shared(&is_last);
    if constexpr (Threads::epilogue_overwrites_flags) Threads::barrier();
    return last;
  }

  HGEMM_DEVICE static void store(Accumulators const& accumulators, Vec16B* partial) {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        atoms::st_global(partial + (i * mma_n + j) * Threads::count, vec_of(accumulators, i, j));
      }
    }
  }

  // Adds one CTA's partials, from vector `first` on. All loads are issued before the first is waited for.
  HGEMM_DEVICE static void add(AccumulatorsF32<Accumulators>& sums, Vec16B const* partial, int first) {
    HGEMM_UNROLL
    for (int vec = first; vec < first + in_flight() && vec < mma_m * mma_n; ++vec) {
      add_vec(sums.floats[vec / mma_n][vec % mma_n], atoms::ld_global_l2(partial + vec * Threads::count));
    }
  }
};

}  // namespace hgemm
