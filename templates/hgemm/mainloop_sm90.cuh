// The K loop of sm_90a: a producer fills a ring of stages, by TMA or cp.async, consumer warpgroups multiply what has arrived by
// wgmma.
#pragma once

#include <hgemm/accumulators.cuh>
#include <hgemm/copied_stages.cuh>

namespace hgemm {

// A consumer warpgroup's sums: blocks of (64, tile_n), in which lane l of warp w holds rows 16 w + l / 4 and the eighth after,
// and columns 8 j + l % 4 * 2 and the next.
template <class Policy>
struct WarpgroupAccumulators {
  static constexpr bool in_pairs = Policy::accumulate == Accumulate::f16;  // the sums are halves, two a register
  static constexpr int mma_m = Policy::consumer_m / 64;
  static constexpr int mma_n = Policy::tile_n / 8;
  static constexpr int registers = in_pairs ? mma_n * 2 : mma_n * 4;
  template <bool IN_PAIRS, class>
  struct RegisterOf { using Type = float; };
  template <class T>
  struct RegisterOf<true, T> { using Type = uint32_t; };
  using Register = typename RegisterOf<in_pairs, void>::Type;

  Register sums[mma_m][registers];  // (mma_m), (mma_n) of 4 floats or 2 pairs of halves

  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int r = 0; r < registers; ++r) sums[i][r] = 0;
    }
  }
  // Element e of a lane's 4 of block i and the 8 columns j, as a float.
  HGEMM_DEVICE float value(int i, int j, int e) const {
    if constexpr (in_pairs) {
      uint32_t const pair = sums[i][2 * j + e / 2];
      return e % 2 == 0 ? atoms::low_half(pair) : atoms::high_half(pair);
    } else {
      return sums[i][4 * j + e];
    }
  }
  // Register r of the 4, or of the 2 pairs, as bits.
  HGEMM_DEVICE uint32_t bits(int i, int j, int r) const {
    if constexpr (in_pairs) {
      return sums[i][2 * j + r];
    } else {
      return atoms::float_bits(sums[i][4 * j + r]);
    }
  }
};

template <class Policy>
struct MainloopSm90 : StagesOf<Policy>::Type {
  using Stages = typename StagesOf<Policy>::Type;
  using A = typename Stages::A;
  using B = typename Stages::B;
  using Shared = typename Stages::Shared;
  using Place = typename Stages::Place;
  using Stages::ring;
  using Stages::shared;

  static constexpr int readers = Policy::pingpong ? 1 : Policy::consumers;  // warpgroups that read one stage
  static constexpr int wgmma_k = 32 / sizeof(typename Policy::In);
  static constexpr int wgmma_per_k_tile = Policy::consumer_m / 64 * (Policy::tile_k / wgmma_k);  // a warpgroup

  struct Barriers : Stages::Barriers {
    uint64_t turn[2];  // the other consumer has multiplied its tile, where they take tiles in turn
  };

  Barriers& barriers;
  uint32_t turns = 0;  // parity of this consumer's turns

  HGEMM_DEVICE MainloopSm90(Shared& shared, Barriers& barriers, Place const& place)
      : Stages(shared, barriers, place), barriers(barriers) {}

  HGEMM_DEVICE static void init(Barriers& barriers) {
    Stages::init(barriers, readers);
    atoms::mbarrier_init(&barriers.turn[0], 1);
    atoms::mbarrier_init(&barriers.turn[1], 1);
  }

  // ---- Consumers: warpgroups --------------------------------------------------------------------------------------

  // Adds up rows [m_offset, m_offset + consumer_m) of the CTA tile over the next k_tiles stages.
  HGEMM_DEVICE void multiply(WarpgroupAccumulators<Policy>& accumulators, int m_offset, int k_tiles) {
    uint32_t const a_first = A::place(shared.a[0]) + A::step(64, 0) * (m_offset / 64);
    uint32_t const b_first = B::place(shared.b[0]);
    uint32_t a = a_first + ring.stage * (A::bytes / 16), b = b_first + ring.stage * (B::bytes / 16);
    int previous = 0;
    HGEMM_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      Stages::await_full();
      atoms::wgmma_fence();
      HGEMM_UNROLL
      for (int k = 0; k < Policy::tile_k; k += wgmma_k) {
        HGEMM_UNROLL
        for (int block = 0; block < Policy::consumer_m / 64; ++block) {
          atoms::wgmma<Policy>(accumulators.sums[block], A::descriptor(a + A::step(block * 64, k)),
                               B::descriptor(b + B::step(0, k)), k_tile > 0 || k > 0);
        }
      }
      atoms::wgmma_commit();
      atoms::wgmma_wait<1>();  // the stage before has been read
      if (k_tile > 0) release(previous);
      previous = ring.stage;
      ring.advance();
      a = ring.stage == 0 ? a_first : a + A::bytes / 16;
      b = ring.stage == 0 ? b_first : b + B::bytes / 16;
    }
    atoms::wgmma_wait<0>();
    if (k_tiles > 0) release(previous);
  }

  // Consumers that take tiles in turn multiply one after the other: a barrier's parity tells a round from the next only.
  HGEMM_DEVICE void await_turn(int consumer) {
    if constexpr (Policy::pingpong) {
      atoms::mbarrier_wait(&barriers.turn[consumer], turns ^ (consumer == 0));
      turns ^= 1;
    }
  }
  HGEMM_DEVICE void pass_turn(int consumer) const {
    if (Policy::pingpong && atoms::thread_index() % 128 == 0) atoms::mbarrier_arrive(&barriers.turn[1 - consumer]);
  }

  HGEMM_DEVICE void release(int stage) const { Stages::release(stage, atoms::thread_index() % 128); }
};

}  // namespace hgemm
