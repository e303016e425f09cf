// Split-K: CTAs that share a tile leave their sums in the caller's workspace; the last of them adds them up in the
// order of the splits, so that the result does not depend on which one was last.
#pragma once

#include <hgemm/accumulators.cuh>
#include <hgemm/cta_threads.cuh>
#include <hgemm/scheduler.cuh>

namespace hgemm {

// A thread's part of D as floats, laid out as its accumulators are.
template <class Accumulators>
struct Sums {
  static constexpr bool in_pairs = false;
  static constexpr int mma_m = Accumulators::mma_m;
  static constexpr int mma_n = Accumulators::mma_n;

  float floats[Accumulators::mma_m][Accumulators::mma_n][4];

  HGEMM_DEVICE float value(int i, int j, int e) const { return floats[i][j][e]; }
  HGEMM_DEVICE uint32_t bits(int i, int j, int r) const { return atoms::float_bits(floats[i][j][r]); }

  HGEMM_DEVICE void take(Accumulators const& accumulators) {
    HGEMM_UNROLL
    for (int i = 0; i < Accumulators::mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < Accumulators::mma_n; ++j) {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) floats[i][j][e] = accumulators.value(i, j, e);
      }
    }
  }
  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int i = 0; i < Accumulators::mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < Accumulators::mma_n; ++j) {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) floats[i][j][e] = 0.f;
      }
    }
  }
};

// A lane's 4 sums of piece (i, j) as they travel, and their addition to others.
template <class Accumulators>
HGEMM_DEVICE Word4 word_of(Accumulators const& accumulators, int i, int j) {
  return {atoms::float_bits(accumulators.value(i, j, 0)), atoms::float_bits(accumulators.value(i, j, 1)),
          atoms::float_bits(accumulators.value(i, j, 2)), atoms::float_bits(accumulators.value(i, j, 3))};
}
HGEMM_DEVICE void add_word(float (&sum)[4], Word4 word) {
  sum[0] += atoms::bits_float(word.x);
  sum[1] += atoms::bits_float(word.y);
  sum[2] += atoms::bits_float(word.z);
  sum[3] += atoms::bits_float(word.w);
}

// Workspace: one counter a tile and batch, rounded up to 256 bytes in all; then the partial sums of each tile, batch and
// split, as (mma_m, mma_n, threads) words of 4 floats. Counters start as zeros and are zeros again at the end.
template <class Policy, class Accumulators, class Threads = CtaThreads<Policy>>
struct SplitK {
  static constexpr int mma_m = Accumulators::mma_m;
  static constexpr int mma_n = Accumulators::mma_n;
  static constexpr int words = mma_m * mma_n * Threads::count;

  // Returns whether this CTA is the last of its tile; then `sums` holds the tile's sums.
  HGEMM_DEVICE static bool reduce(Accumulators const& accumulators, Sums<Accumulators>& sums, Problem const& problem,
                                  Work const& work, uint32_t tiles, uint32_t& is_last) {
    uint64_t const tile = uint64_t(work.batch) * tiles + work.tile;
    uint64_t const counter_bytes = (uint64_t(tiles) * problem.batch * 4 + 255) / 256 * 256;
    uint32_t* const counter = static_cast<uint32_t*>(problem.workspace) + tile;
    Word4* partial = reinterpret_cast<Word4*>(static_cast<char*>(problem.workspace) + counter_bytes) +
                     tile * Policy::splits * words + Threads::index();

    store(accumulators, partial + uint64_t(work.split) * words);
    if (!last_to_arrive(counter, Policy::splits, is_last)) return false;
    sums.clear();
    HGEMM_NO_UNROLL
    for (int split = 0; split < Policy::splits; ++split, partial += words) add(sums, partial);
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
    return true;
  }

  // Counts this CTA, whose sums are stored, among those that share its tile; tells whether the others' are there, too.
  HGEMM_DEVICE static bool last_to_arrive(uint32_t* counter, uint32_t sharers, uint32_t& is_last) {
    atoms::global_fence();
    Threads::barrier();
    if (Threads::index() == 0) {
      uint32_t const before = atoms::global_fetch_add(counter, 1);
      atoms::st_shared(&is_last, uint32_t(before == sharers - 1));
      atoms::global_fence();
    }
    Threads::barrier();
    bool const adds_up = atoms::ld_shared(&is_last);
    Threads::barrier();  // the epilogue writes where the answer was
    return adds_up;
  }

  HGEMM_DEVICE static void store(Accumulators const& accumulators, Word4* partial) {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        atoms::st_global(partial + (i * mma_n + j) * Threads::count, word_of(accumulators, i, j));
      }
    }
  }

  // Adds what one CTA has left: its loads are all on their way before the first is waited for.
  HGEMM_DEVICE static void add(Sums<Accumulators>& sums, Word4 const* partial) {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        add_word(sums.floats[i][j], atoms::ld_global_l2(partial + (i * mma_n + j) * Threads::count));
      }
    }
  }
};

}  // namespace hgemm
