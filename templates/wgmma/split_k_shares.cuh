// Split-K through the workspace, if all CTAs run at the same time: each waits until the others have stored their partial accumulators,
// and finishes a share of the tile. If one gives up waiting, the last to arrive finishes the whole tile. Either way, the partials are
// added in the order of the splits, so the result does not depend on which CTA adds them.
#pragma once

#include <common/split_k.cuh>
#include <wgmma/epilogue.cuh>

namespace hgemm {

// How a share of a tile is finished: in narrow subtiles, so that many CTAs get one, and without shared memory.
template <class Policy>
struct SharePolicy : Policy {
  static constexpr int epilogue_columns = Policy::share_columns;
  static constexpr auto store = Store::direct;
};

template <class Policy, class Accumulators, class Threads>
struct SplitKShares {
  using Partials = SplitK<Policy, Accumulators, Threads>;
  using Finish = Epilogue<SharePolicy<Policy>>;
  static constexpr int mma_n = Accumulators::mma_n;
  static constexpr int groups = Finish::gated_parts * Finish::columns / 8;  // of 8 columns of a subtile's accumulators
  static constexpr int subtiles = Accumulators::mma_m * Finish::subtiles, shares = subtiles;
  // Splits whose partials of a subtile are loaded at once.
  static constexpr int ahead = Policy::partials_in_flight > groups ? Policy::partials_in_flight / groups : 1;

  // ---- Which CTA adds up what --------------------------------------------------------------------------------------

  // A tile's counter: the CTAs that have arrived, those that have left, and whether one has left before all had arrived.
  static constexpr uint32_t arrived = 1, left = 1 << 15, alone = 1u << 31, counted = left - 1;
  static constexpr int polls = 64;  // about 30 us

  // A share: the first subtile, and whether it is the whole tile.
  static constexpr uint32_t whole = 1u << 31, nothing = whole - 1;

  HGEMM_DEVICE static int first(uint32_t share) { return int(share & nothing); }
  HGEMM_DEVICE int step(uint32_t share) const { return share & whole ? 1 : int(splits); }

  uint32_t* counter;
  Vec16B* partials;  // this thread's first vector of the first split
  uint32_t split, splits;

  HGEMM_DEVICE SplitKShares(Problem const& problem, Work const& work, uint32_t rank, uint32_t ranks)
      : split(work.split), splits(work.splits) {
    uint32_t const tile = work.shared * ranks + rank;
    counter = static_cast<uint32_t*>(problem.workspace) + tile;
    partials = Partials::partials_of(problem) + uint64_t(tile) * splits * Partials::vecs;
  }

  // Stores this CTA's partials. Returns its share of the tile. Then the partials of the share are there.
  HGEMM_DEVICE uint32_t exchange(Accumulators const& accumulators, uint32_t& share) const {
    Partials::store(accumulators, partials + uint64_t(split) * Partials::vecs);
    Threads::barrier();
    if (Threads::index() == 0) {
      atoms::global_fence();  // for all threads: this one knows of their stores by the barrier
      atoms::st_shared(&share, wait_for_share());
      atoms::global_fence();
    }
    Threads::barrier();
    return atoms::ld_shared(&share);
  }

  // No CTA waits long, so progress never depends on CTAs that have no place on the GPU.
  HGEMM_DEVICE uint32_t wait_for_share() const {
    uint32_t now = atoms::global_fetch_add(counter, arrived) + arrived;
    bool const is_last = (now & counted) == splits;
    HGEMM_NO_UNROLL
    for (int poll = 0; (now & counted) != splits && !(now & alone); ++poll) {
      if (poll < polls) {
        now = atoms::ld_global_relaxed(counter);
      } else {
        uint32_t const before = atoms::global_compare_and_swap(counter, now, now | alone);
        now = before == now ? now | alone : before;
      }
    }
    uint32_t const last = atoms::global_fetch_add(counter, left) + left;
    if ((last / left & counted) == splits) atoms::global_fetch_add(counter, 0 - last);  // all have left: zero again
    if (!(now & alone)) return split;
    return is_last ? whole : nothing;
  }

  // Shares do not use the shared memory of the epilogue.
  template <class Boxes>
  HGEMM_DEVICE static typename Finish::Shared& no_boxes(Boxes& boxes) {
    return reinterpret_cast<typename Finish::Shared&>(boxes);
  }

  // ---- Addition ----------------------------------------------------------------------------------------------------

  // Adds up the partials of all splits: `count` groups of 8 columns of subtile `index`.
  HGEMM_DEVICE void add(uint32_t (&sums)[groups][4], int index, int count) const {
    int const vec = index / Finish::subtiles * mma_n + index % Finish::subtiles * groups;
    Vec16B const* const from = partials + vec * Threads::count;  // (splits, mma_m, mma_n, threads)
    float floats[groups][4] = {};  // (groups, 4)
    HGEMM_NO_UNROLL
    for (uint32_t first = 0; first < splits; first += ahead) {
      Vec16B loaded[ahead][groups];  // (splits, groups)
      HGEMM_UNROLL
      for (uint32_t i = 0; i < ahead; ++i) {
        Vec16B const* const partial = from + uint64_t(first + i) * Partials::vecs;
        HGEMM_UNROLL
        for (int j = 0; j < groups; ++j) {
          bool const valid = first + i < splits && (mma_n % groups == 0 || j < count);
          loaded[i][j] = atoms::ld_global_l2(partial + j * Threads::count, valid);
        }
      }
      HGEMM_UNROLL
      for (int i = 0; i < ahead; ++i) {
        HGEMM_UNROLL
        for (int j = 0; j < groups; ++j) add_vec(floats[j], loaded[i][j]);
      }
    }
    HGEMM_UNROLL
    for (int j = 0; j < groups; ++j) {
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) sums[j][e] = atoms::float_bits(floats[j][e]);
    }
  }
};

}  // namespace hgemm
