// Split-K: CTAs that share a tile leave their sums in the caller's workspace; the last of them adds them up in the
// order of the splits, so that the result does not depend on which one was last.
#pragma once

#include <hgemm/accumulators.cuh>
#include <hgemm/scheduler.cuh>

namespace hgemm {

// A warp's part of D as floats, laid out as Accumulators are.
template <class Policy>
struct Sums {
  float floats[Policy::warp_m / 16][Policy::warp_n / 8][4];

  HGEMM_DEVICE float value(int i, int j, int e) const { return floats[i][j][e]; }
};

// Workspace: one counter a tile and batch, rounded up to 256 bytes in all; then the partial sums of each tile, batch and
// split, as (mma_m, mma_n, threads) words of 4 floats. Counters start as zeros and are zeros again at the end.
template <class Policy>
struct SplitK {
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;
  static constexpr int words = mma_m * mma_n * Policy::threads;

  // Returns whether this CTA is the last of its tile; then `sums` holds the tile's sums.
  HGEMM_DEVICE static bool reduce(Accumulators<Policy> const& accumulators, Sums<Policy>& sums,
                                  Problem const& problem, Work const& work, uint32_t tiles, uint32_t& is_last) {
    uint64_t const tile = uint64_t(work.batch) * tiles + work.tile;
    uint64_t const counter_bytes = (uint64_t(tiles) * problem.batch * 4 + 255) / 256 * 256;
    uint32_t* const counter = static_cast<uint32_t*>(problem.workspace) + tile;
    Word4* const partial = reinterpret_cast<Word4*>(static_cast<char*>(problem.workspace) + counter_bytes) +
                           tile * Policy::splits * words + atoms::thread_index();

    store(accumulators, partial + uint64_t(work.split) * words);
    atoms::global_fence();
    atoms::cta_barrier();
    if (atoms::thread_index() == 0) {
      uint32_t const before = atoms::global_fetch_add(counter, 1);
      atoms::st_shared(&is_last, uint32_t(before == Policy::splits - 1));
      atoms::global_fence();
    }
    atoms::cta_barrier();
    bool const adds_up = atoms::ld_shared(&is_last);
    atoms::cta_barrier();  // the epilogue writes where the answer was
    if (!adds_up) return false;

    add_up(sums, partial);
    if (atoms::thread_index() == 0) atoms::st_global(counter, 0u);
    return true;
  }

  HGEMM_DEVICE static void store(Accumulators<Policy> const& accumulators, Word4* partial) {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        Word4 const word = {atoms::float_bits(accumulators.value(i, j, 0)), atoms::float_bits(accumulators.value(i, j, 1)),
                            atoms::float_bits(accumulators.value(i, j, 2)), atoms::float_bits(accumulators.value(i, j, 3))};
        atoms::st_global(partial + (i * mma_n + j) * Policy::threads, word);
      }
    }
  }

  HGEMM_DEVICE static void add_up(Sums<Policy>& sums, Word4 const* partial) {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        float* const sum = sums.floats[i][j];
        sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
        HGEMM_NO_UNROLL
        for (int split = 0; split < Policy::splits; ++split) {
          Word4 const word =
              atoms::ld_global_l2(partial + uint64_t(split) * words + (i * mma_n + j) * Policy::threads);
          sum[0] += atoms::bits_float(word.x);
          sum[1] += atoms::bits_float(word.y);
          sum[2] += atoms::bits_float(word.z);
          sum[3] += atoms::bits_float(word.w);
        }
      }
    }
  }
};

}  // namespace hgemm
