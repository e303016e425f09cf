// The K loop of sm_90a: a producer fills a ring of stages by TMA or cp.async; consumer warpgroups multiply them by wgmma.
#pragma once

#include <common/expression.cuh>
#include <wgmma/cp_async_pipeline.cuh>

namespace hgemm {

// ---- Accumulators -------------------------------------------------------------------------------------------------

// A consumer warpgroup's accumulators: blocks of (64, tile_n). Lane l of warp w holds rows 16 w + l / 4 and 16 w + l / 4 + 8,
// columns 8 j + l % 4 * 2 and the next.
template <class Policy>
struct WarpgroupAccumulators {
  static constexpr bool in_pairs = Policy::accumulate == Accumulate::f16;  // two halves a register
  static constexpr int mma_m = Policy::consumer_m / 64;
  static constexpr int mma_n = Policy::tile_n / 8;
  static constexpr int registers = in_pairs ? mma_n * 2 : mma_n * 4;
  template <bool IN_PAIRS, class>
  struct RegisterOf { using Type = float; };
  template <class T>
  struct RegisterOf<true, T> { using Type = uint32_t; };
  using Register = typename RegisterOf<in_pairs, void>::Type;

  Register sums[mma_m][registers];  // (mma_m, mma_n of 4 floats or 2 pairs of halves)

  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int r = 0; r < registers; ++r) sums[i][r] = 0;
    }
  }
  // Element e of a lane's 4 of block i and columns 8 j to 8 j + 7, as a float.
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

// ---- Shared-memory descriptors ------------------------------------------------------------------------------------

// What wgmma needs to find an operand that lies in boxes.
template <class Boxes>
struct WgmmaOperand : Boxes {
  // The lower half of the descriptor of a stage's first element: its address in 16-byte units, and the bytes from one box to
  // the next if the instruction spans boxes, or from 8 rows to the next 8 if there is no swizzle. Only this half changes in the
  // loop, so it is added up in 32 bits.
  HGEMM_DEVICE static uint32_t place(unsigned char const* stage) {
    constexpr uint32_t box = Boxes::k_major ? 1 : (Boxes::row_bytes == 16 ? 8 * Boxes::row_bytes : Boxes::box_bytes) / 16;
    return (atoms::shared_address(stage) >> 4 & 0x3fff) | box << 16;
  }

  // The whole descriptor. The upper half holds the bytes from 8 rows to the next 8, and the swizzle.
  HGEMM_DEVICE static uint64_t descriptor(uint32_t place) {
    constexpr uint64_t swizzle = Boxes::row_bytes == 128 ? 1 : Boxes::row_bytes == 64 ? 2 : Boxes::row_bytes == 32 ? 3 : 0;
    constexpr uint64_t row_group = 8 * Boxes::row_bytes / 16;
    return swizzle << 62 | row_group << 32 | place;
  }

  // What to add to the place for element (extent, k). extent is a multiple of 64 or 0, k a multiple of 32 bytes.
  HGEMM_DEVICE static constexpr uint32_t step(int extent, int k) {
    int const column = Boxes::k_major ? k : extent;
    int const row = Boxes::k_major ? extent : k;
    return (column / Boxes::columns * Boxes::box_bytes + row * Boxes::row_bytes +
            column % Boxes::columns * Boxes::element_bytes) / 16;
  }
};

// ---- Mainloop -----------------------------------------------------------------------------------------------------

// The pipeline of a Policy's copy.
template <class Policy, bool BY_TMA = Policy::copy == Copy::tma>
struct PipelineOf { using Type = TmaPipeline<Policy>; };
template <class Policy>
struct PipelineOf<Policy, false> { using Type = CpAsyncPipeline<Policy>; };

template <class Policy>
struct Mainloop : PipelineOf<Policy>::Type {
  using Pipeline = typename PipelineOf<Policy>::Type;
  using A = WgmmaOperand<typename Pipeline::A>;
  using B = WgmmaOperand<typename Pipeline::B>;
  using Shared = typename Pipeline::Shared;
  using Place = typename Pipeline::Place;
  using Pipeline::shared;
  using Pipeline::state;

  static constexpr int readers = Policy::pingpong ? 1 : Policy::consumers;  // warpgroups that read one stage
  static constexpr int wgmma_k = 32 / sizeof(typename Policy::In);
  static constexpr int mma_per_k_tile = Policy::consumer_m / 64 * (Policy::tile_k / wgmma_k);  // of a warpgroup

  struct Barriers : Pipeline::Barriers {
    // Pingpong: the warps of the other consumer have issued the last products of its tile. split_k_cluster: all CTAs have read their
    // stages; this CTA has received its partials.
    uint64_t order[2];
  };

  Barriers& barriers;
  uint32_t order_phase = 0;  // parity of this consumer's tiles

  HGEMM_DEVICE Mainloop(Shared& shared, Barriers& barriers, Place const& place)
      : Pipeline(shared, barriers, place), barriers(barriers) {}

  HGEMM_DEVICE static void init(Barriers& barriers) {
    constexpr int warps = Policy::pingpong ? 4 : 1;
    constexpr int arrivals = Policy::schedule == Schedule::split_k_cluster ? Policy::splits : warps;
    Pipeline::init(barriers, readers);
    atoms::mbarrier_init(&barriers.order[0], arrivals);
    atoms::mbarrier_init(&barriers.order[1], warps);
  }

  // ---- Consumers: warpgroups --------------------------------------------------------------------------------------

  // Multiplies rows [m_offset, m_offset + consumer_m) of the CTA tile over the next k_tiles stages. Each of `during` runs while the
  // last products are in flight.
  template <class... During>
  HGEMM_DEVICE void multiply(WarpgroupAccumulators<Policy>& accumulators, int m_offset, int k_tiles, During const&... during) {
    uint32_t const a_first = A::place(shared.a[0]) + A::step(64, 0) * (m_offset / 64);
    uint32_t const b_first = B::place(shared.b[0]);
    uint32_t a = a_first + state.stage * (A::bytes / 16), b = b_first + state.stage * (B::bytes / 16);
    int previous = 0;
    HGEMM_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      Pipeline::consumer_wait();
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
      atoms::wgmma_wait<1>();  // the products of the previous stage are complete
      if (k_tile > 0) consumer_release(previous);
      previous = state.stage;
      state.advance();
      a = state.stage == 0 ? a_first : a + A::bytes / 16;
      b = state.stage == 0 ? b_first : b + B::bytes / 16;
    }
    (during(), ...);
    atoms::wgmma_wait<0>();
    if (k_tiles > 0) consumer_release(previous);
  }

  HGEMM_DEVICE void consumer_release(int stage) const { Pipeline::consumer_release(stage, atoms::thread_index() % 128); }

  // Pingpong: consumers multiply one after the other, because a barrier's parity distinguishes only two rounds.
  HGEMM_DEVICE void order_wait(int consumer) {
    if constexpr (Policy::pingpong) {
      atoms::mbarrier_wait(&barriers.order[consumer], order_phase ^ (consumer == 0));
      order_phase ^= 1;
    }
  }
  // Each warp reports: the warps of a consumer do not meet before its last products are complete.
  HGEMM_DEVICE void order_arrive(int consumer) const {
    if (Policy::pingpong && atoms::thread_index() % 32 == 0) atoms::mbarrier_arrive(&barriers.order[1 - consumer]);
  }
};

}  // namespace hgemm
