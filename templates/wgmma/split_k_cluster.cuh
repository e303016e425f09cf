// Split-K within a cluster: CTAs that share a tile leave their partial accumulators in shared memory. Each CTA then finishes a
// share of the tile: it adds up the partials of all CTAs in the order of the splits. This needs no workspace and no counters.
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

  // Waits for the consumers of all CTAs of the cluster. A cluster barrier, or an arrival with .release.cluster, would include a
  // fence of the whole GPU, 0.6 to 1.3 us long. It is not needed: after the barrier, the partials are in this SM's shared memory.
  HGEMM_DEVICE static void meet(uint64_t* barrier) {
    Threads::barrier();
    if (Threads::index() < Policy::splits) atoms::mbarrier_arrive_cluster(barrier, Threads::index());
    atoms::mbarrier_wait(barrier, 0);
  }

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

  // Adds up the partials of all CTAs of the cluster: `count` groups of 8 columns of block i, from group `first` on.
  template <int COUNT>
  HGEMM_DEVICE static void add_partials(uint32_t (&sums)[COUNT][4], void const* shared, int i, int first, int count) {
    Vec16B const* const partials =
        static_cast<Vec16B const*>(shared) + (i * mma_n + first) * Threads::count + Threads::index();  // (mma_n, threads)
    HGEMM_UNROLL
    for (int j = 0; j < COUNT; ++j) {
      if (mma_n % COUNT != 0 && j >= count) continue;
      float sum[4] = {0.f, 0.f, 0.f, 0.f};
      HGEMM_UNROLL
      for (int split = 0; split < Policy::splits; ++split) {
        add_vec(sum, atoms::ld_shared_cluster(partials + j * Threads::count, split));
      }
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) sums[j][e] = atoms::float_bits(sum[e]);
    }
  }
};

}  // namespace hgemm
