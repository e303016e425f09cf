// Split-K within a cluster: CTAs that share a tile exchange partial accumulators through shared memory. Each CTA finishes a share
// of the tile: it adds up the partials of all CTAs in the order of the splits. This needs no workspace and no counters.
#pragma once

#include <common/atoms_sm90.cuh>
#include <common/split_k.cuh>

namespace hgemm {

// The partials that a CTA receives: (splits, shares, groups, threads) vectors of 4 floats, over the stages. CTA `rank` gets
// subtiles rank, rank + splits, ... of the Epilogue.
template <class Policy, class Accumulators, class Threads, class Epilogue>
struct SplitKCluster {
  static constexpr int splits = Policy::splits;
  static constexpr int mma_n = Accumulators::mma_n;
  static constexpr int groups = Epilogue::gated_parts * Epilogue::columns / 8;  // of 8 columns of a subtile's accumulators
  static constexpr int subtiles = Accumulators::mma_m * Epilogue::subtiles;
  static constexpr int shares = (subtiles + splits - 1) / splits;  // most subtiles of a CTA
  static constexpr int vecs = shares * groups * Threads::count;    // from one CTA
  static constexpr int bytes = splits * vecs * 16;

  void const* shared;

  // Sends each CTA of the cluster, this one too, the partials of its share. Waits for those of this CTA's share.
  //
  // The partials overwrite stages, so all CTAs first report that they have read theirs. This only orders reads before writes: the
  // arrivals have no .release.cluster, which would include a fence of the whole GPU, 0.6 to 1.3 us long. st.async itself orders
  // the partials: the second barrier ends its phase when all their bytes have arrived.
  HGEMM_DEVICE static void exchange(Accumulators const& accumulators, void* shared, uint64_t (&barriers)[2], int split) {
    Threads::barrier();
    if (Threads::index() == 0) atoms::mbarrier_arrive_expect_tx(&barriers[1], received_bytes(split));
    if (Threads::index() < splits) atoms::mbarrier_arrive_cluster(&barriers[0], Threads::index());
    atoms::mbarrier_wait(&barriers[0], 0);
    Vec16B* const partials = static_cast<Vec16B*>(shared) + split * vecs + Threads::index();  // (shares, groups, threads)
    HGEMM_UNROLL
    for (int subtile = 0; subtile < subtiles; ++subtile) {
      int const first = subtile % Epilogue::subtiles * groups;
      HGEMM_UNROLL
      for (int j = 0; j < groups && first + j < mma_n; ++j) {
        atoms::st_async(partials + (subtile / splits * groups + j) * Threads::count,
                        vec_of(accumulators, subtile / Epilogue::subtiles, first + j), &barriers[1], subtile % splits);
      }
    }
    atoms::mbarrier_wait_cluster(&barriers[1], 0);
  }

  HGEMM_DEVICE static int received_bytes(int split) {
    int received = 0;  // groups from one CTA
    HGEMM_UNROLL
    for (int subtile = 0; subtile < subtiles; ++subtile) {
      int const rest = mma_n - subtile % Epilogue::subtiles * groups;
      if (subtile % splits == split) received += rest < groups ? rest : groups;
    }
    return received * splits * Threads::count * 16;
  }

  // Adds up the partials of all CTAs: `count` groups of 8 columns of this CTA's subtile `index`.
  HGEMM_DEVICE void add(uint32_t (&sums)[groups][4], int index, int count) const {
    Vec16B const* const partials = static_cast<Vec16B const*>(shared) + index / splits * groups * Threads::count +
                                   Threads::index();  // (splits, groups, threads)
    HGEMM_UNROLL
    for (int j = 0; j < groups; ++j) {
      if (mma_n % groups != 0 && j >= count) continue;
      float sum[4] = {0.f, 0.f, 0.f, 0.f};
      HGEMM_UNROLL
      for (int split = 0; split < splits; ++split) {
        add_vec(sum, atoms::ld_shared(partials + split * vecs + j * Threads::count));
      }
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) sums[j][e] = atoms::float_bits(sum[e]);
    }
  }
};

}  // namespace hgemm
