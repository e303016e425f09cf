// Split-K within a cluster: CTAs that share a tile leave their sums in shared memory, and the first adds up those of all in the
// order of the splits. No workspace, no counters: for few tiles and a long k.
#pragma once

#include <hgemm/atoms_sm90.cuh>
#include <hgemm/split_k.cuh>

namespace hgemm {

// Sums of a tile in shared memory: (mma_m, mma_n, threads) words of 4 floats.
template <class Policy, class Accumulators, class Threads>
struct ClusterK {
  static constexpr int mma_m = Accumulators::mma_m;
  static constexpr int mma_n = Accumulators::mma_n;
  static constexpr int bytes = mma_m * mma_n * Threads::count * 16;

  // Leaves this CTA's sums where the others of the cluster find them, once no warp needs the stages that lie there.
  HGEMM_DEVICE static void leave(Accumulators const& accumulators, void* shared) {
    Word4* const sums = static_cast<Word4*>(shared) + Threads::index();
    Threads::barrier();
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        atoms::st_shared(sums + (i * mma_n + j) * Threads::count, word_of(accumulators, i, j));
      }
    }
  }

  // Adds up what all CTAs of the cluster have left.
  HGEMM_DEVICE static void add_up(Sums<Accumulators>& sums, void const* shared) {
    Word4 const* const left = static_cast<Word4 const*>(shared) + Threads::index();
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        float(&sum)[4] = sums.floats[i][j];
        sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
        HGEMM_UNROLL
        for (int split = 0; split < Policy::splits; ++split) {
          add_word(sum, atoms::ld_shared_at(left + (i * mma_n + j) * Threads::count, split));
        }
      }
    }
  }
};

}  // namespace hgemm
