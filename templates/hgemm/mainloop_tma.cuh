// The K loop of mma.sync on stages that one thread fills by TMA: warps only read fragments and multiply.
#pragma once

#include <hgemm/box_reader.cuh>
#include <hgemm/tma_stages.cuh>
#include <hgemm/warp_products.cuh>

namespace hgemm {

template <class Policy>
struct BoxFragments : WarpFragments<Policy, false> {
  static constexpr int wide_columns = 64;
  template <class Side, int EXTENT, bool OF_A>
  using Reader = BoxReader<Policy, Side, EXTENT, OF_A>;
};

template <class Policy>
struct MainloopTma : TmaStages<Policy> {
  using Stages = TmaStages<Policy>;
  using Shared = typename Stages::Shared;
  using Barriers = typename Stages::Barriers;
  using Place = typename Stages::Place;
  using Warp = WarpProducts<Policy, Shared, BoxFragments<Policy>>;
  using Fragments = typename Warp::Fragments;
  using Stages::ring;
  using Stages::shared;

  static constexpr int warps = Policy::warps_m * Policy::warps_n;  // that multiply
  static constexpr int k_blocks = Warp::k_blocks;
  static constexpr int mma_per_k_tile = Warp::mma_per_k_tile;
  static constexpr bool ahead = Warp::ahead;

  HGEMM_DEVICE MainloopTma(Shared& shared, Barriers& barriers, Place const& place) : Stages(shared, barriers, place) {}

  HGEMM_DEVICE static void init(Barriers& barriers) { Stages::init(barriers, warps); }

  // Adds the products of the next k_tiles stages to `accumulators`, by a warp. Whether another tile's follow is `more`:
  // fragments of what follows are read ahead, or, after the last stage of all, those of that one once more, and not used.
  HGEMM_DEVICE void multiply(Accumulators<Policy>& accumulators, int k_tiles, bool more) {
    if (Policy::splits > 1 && k_tiles == 0) return;  // more splits than k-tiles
    Warp warp(shared);
    Fragments fragments[Policy::fragment_stages];
    Stages::await_full();
    HGEMM_UNROLL
    for (int j = 0; j < Warp::mma_n; j += Warp::b_step) warp.read_b(fragments[0], ring.stage, 0, j);
    HGEMM_UNROLL
    for (int i = 0; i < Warp::a_rows; ++i) warp.read_a(fragments[0], ring.stage, 0, i);
    HGEMM_NO_UNROLL
    do {
      warp.read_stage = ring.stage;
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        if (block == k_blocks - 1) {
          if constexpr (ahead) release(warp.read_stage);  // all of it is in registers
          if (k_tiles > 1 || more) {
            ring.advance();
            Stages::await_full();
          }
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        HGEMM_UNROLL
        for (int product = 0; product < Warp::products; ++product) {
          Warp::multiply(accumulators, now, block, product);
          if constexpr (ahead) {
            warp.read_ahead(later, block, product, ring.stage);
          } else {
            warp.read_behind(now, block, product, k_blocks + 1, ring.stage);
          }
        }
      }
      if constexpr (!ahead) release(warp.read_stage);
      accumulators.promote();
      if constexpr (ahead && k_blocks % 2 == 1) fragments[0] = fragments[1];
    } while (--k_tiles > 0);
  }

  // All lanes have read what they will of the stage.
  HGEMM_DEVICE void release(int stage) const {
    atoms::warp_barrier();
    Stages::release(stage, Warp::lane());
  }
};

}  // namespace hgemm
