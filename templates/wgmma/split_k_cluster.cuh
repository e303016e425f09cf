// Split-K within a cluster: CTAs that share a tile leave their partial accumulators in shared memory. The first CTA adds up all
// of them in the order of the splits. It needs no workspace and no counters, and suits few tiles with a long k.
#pragma once

#include <common/atoms_sm90.cuh>
#include <common/split_k.cuh>

namespace hgemm {

// A tile's accumulators in shared memory: (mma_m, mma_n, threads) vectors of 4 floats.
template <class Policy, class Accumulators, class Threads>
struct SplitKCluster {
  static constexpr int mma_m = Accumulators::mma_m;
  static constexpr int mma_n = Accumulators::mma_n;
  static constexpr int bytes = mma_m * mma_n * Threads::count * 16;

  // Stores this CTA's partials over the stages, after all warps have read those.
  HGEMM_DEVICE static void store_partials(Accumulators const& accumulators, void* shared) {
    Vec16B* const partials = static_cast<Vec16B*>(shared) + Threads::index();  // (mma_m, mma_n, threads)
    Threads::barrier();
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        atoms::st_shared(partials + (i * mma_n + j) * Threads::count, vec_of(accumulators, i, j));
      }
    }
  }

  // Adds up the partials of all CTAs of the cluster.
  HGEMM_DEVICE static void add_partials(AccumulatorsF32<Accumulators>& sums, void const* shared) {
    Vec16B const* const partials = static_cast<Vec16B const*>(shared) + Threads::index();  // (mma_m, mma_n, threads)
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        float(&sum)[4] = sums.floats[i][j];
        sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
        HGEMM_UNROLL
        for (int split = 0; split < Policy::splits; ++split) {
          add_vec(sum, atoms::ld_shared_cluster(partials + (i * mma_n + j) * Threads::count, split));
        }
      }
    }
  }
};

}  // namespace hgemm
