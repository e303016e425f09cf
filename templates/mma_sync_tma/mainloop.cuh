// The K loop of mma.sync on stages that one thread fills by TMA. Warps only read fragments and multiply.
#pragma once

#include <common/tma_pipeline.cuh>
#include <common/warp_mma.cuh>

namespace hgemm {

// ---- Shared memory to fragments -----------------------------------------------------------------------------------

// Addresses of one lane's rows for ldmatrix in boxes of the TMA, over a warp tile along m (A, EXTENT_FIRST) or n (B).
//
// The matrices of an x4 follow each other along m, then along k for A; along k, then along n for B. The warp tile of an
// MN-major operand is whole boxes. So the bits of a lane's place in a row and those of a fragment's place do not overlap.
template <class Policy, class Side, int EXTENT, bool EXTENT_FIRST>
struct BoxReader {
  using Boxes = TmaBoxes<Policy, Side, EXTENT, 1>;

  static constexpr int warp_extent = EXTENT_FIRST ? Policy::warp_m : Policy::warp_n;
  static constexpr int element_bytes = Boxes::element_bytes;
  static constexpr int vec_elements = 16 / element_bytes;

  static_assert(Side::k_major || element_bytes == 2, "ldmatrix transposes 2-byte elements only");
  static_assert(Side::k_major || warp_extent % Boxes::columns == 0, "a warp tile must be whole boxes of an MN-major operand");

  int first;  // byte of this lane's row in a stage

  HGEMM_DEVICE BoxReader(int warp_first, int lane) {
    int const low = lane / 8 % 2;
    int const high = lane / 16;
    int const along_extent = (EXTENT_FIRST ? low : high) * 8;
    int const along_k = (EXTENT_FIRST ? high : low) * vec_elements;
    first = Side::k_major
                ? Boxes::swizzled((warp_first + along_extent + lane % 8) * Boxes::row_bytes + along_k * element_bytes)
                : warp_first / Boxes::columns * Boxes::box_bytes +
                      Boxes::swizzled((along_k + lane % 8) * Boxes::row_bytes + along_extent * element_bytes);
  }

  // Reads 16 of the extent by a block of k, at (along_extent, along_k) of the warp tile.
  HGEMM_DEVICE void read_x4(unsigned char const* stage, int along_extent, int along_k, uint32_t& r0, uint32_t& r1,
                            uint32_t& r2, uint32_t& r3) const {
    atoms::ldmatrix_x4_at<!Side::k_major>(stage + first, flip(along_extent, along_k), step(along_extent, along_k), r0, r1, r2,
                                          r3);
  }
  // Reads 8 of the extent there.
  HGEMM_DEVICE void read_x2(unsigned char const* stage, int along_extent, int along_k, uint32_t& r0, uint32_t& r1) const {
    atoms::ldmatrix_x2_at<!Side::k_major>(stage + first, flip(along_extent, along_k), step(along_extent, along_k), r0, r1);
  }

  // A fragment's place within a row flips bits of the swizzled address; its row and box add to the address.
  HGEMM_DEVICE static constexpr int flip(int along_extent, int along_k) {
    return (Side::k_major ? along_k : along_extent) % Boxes::columns * element_bytes;
  }
  HGEMM_DEVICE static constexpr int step(int along_extent, int along_k) {
    int const column = Side::k_major ? along_k : along_extent;
    int const row = Side::k_major ? along_extent : along_k;
    return column / Boxes::columns * Boxes::box_bytes + row * Boxes::row_bytes;
  }
};

template <class Policy>
struct BoxForm : MmaSyncForm {
  template <class Side, int EXTENT, bool IS_A>
  using Reader = BoxReader<Policy, Side, EXTENT, IS_A>;
};

// ---- Mainloop -----------------------------------------------------------------------------------------------------

template <class Policy>
struct Mainloop : TmaPipeline<Policy> {
  using Pipeline = TmaPipeline<Policy>;
  using Shared = typename Pipeline::Shared;
  using Barriers = typename Pipeline::Barriers;
  using Place = typename Pipeline::Place;
  using Warp = WarpMma<Policy, Shared, BoxForm<Policy>>;
  using Fragments = typename Warp::Fragments;
  using Pipeline::shared;
  using Pipeline::state;

  static constexpr int warps = Policy::warps_m * Policy::warps_n;  // consumers
  static constexpr int k_blocks = Warp::k_blocks;
  static constexpr int mma_per_k_tile = Warp::mma_per_k_tile;
  static constexpr bool two_fragment_stages = Warp::two_fragment_stages;

  HGEMM_DEVICE Mainloop(Shared& shared, Barriers& barriers, Place const& place) : Pipeline(shared, barriers, place) {}

  HGEMM_DEVICE static void init(Barriers& barriers) { Pipeline::init(barriers, warps); }

  // Multiplies the next k_tiles stages into `accumulators`, by a warp. `more` says whether another tile's stages follow. If so,
  // fragments of its first stage are read ahead; if not, the last stage's are read once more and not used.
  HGEMM_DEVICE void multiply(WarpAccumulators<Policy>& accumulators, int k_tiles, bool more) {
    if (Policy::splits > 1 && k_tiles == 0) return;  // more splits than k-tiles
    Warp warp(shared);
    Fragments fragments[Policy::fragment_stages];  // (fragment_stages)
    Pipeline::consumer_wait();
    warp.read_first(fragments[0], state.stage);
    HGEMM_NO_UNROLL
    do {
      warp.read_stage = state.stage;
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        if (block == k_blocks - 1) {
          if constexpr (two_fragment_stages) consumer_release(warp.read_stage);  // all of it is in registers
          if (k_tiles > 1 || more) {
            state.advance();
            Pipeline::consumer_wait();
          }
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        HGEMM_UNROLL
        for (int step = 0; step < Warp::steps; ++step) {
          Warp::multiply(accumulators, now, block, step);
          if constexpr (two_fragment_stages) {
            warp.read_ahead(later, block, step, state.stage);
          } else {
            warp.read_behind(now, block, step, k_blocks + 1, state.stage);
          }
        }
      }
      if constexpr (!two_fragment_stages) consumer_release(warp.read_stage);
      accumulators.promote();
      if constexpr (two_fragment_stages && k_blocks % 2 == 1) fragments[0] = fragments[1];
    } while (--k_tiles > 0);
  }

  // Releases a stage that all lanes have read. Without the fence, an ldmatrix that waits in the SM's queue behind other accesses
  // may read the stage after the TMA has overwritten it: the arrival does not wait for it, and the TMA does not use that queue.
  HGEMM_DEVICE void consumer_release(int stage) const {
    atoms::fence_proxy_async();
    atoms::warp_barrier();
    Pipeline::consumer_release(stage, Warp::lane());
  }
};

}  // namespace hgemm
