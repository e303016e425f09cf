// The K loop of sm_90a: one thread fills a ring of stages by TMA, consumer warpgroups multiply what has arrived by wgmma.
#pragma once

#include <hgemm/accumulators.cuh>
#include <hgemm/operand_sm90.cuh>
#include <hgemm/problem.cuh>

namespace hgemm {

// The maps of the problem's A and B as the mainloop loads them, and of D as the epilogue stores it, if by TMA.
struct TensorMaps {
  TensorMap a, b, d;
};
static_assert(sizeof(TensorMaps) == 384, "the launchers pack this struct by hand");

// Where a CTA stands in its cluster of cluster_m x cluster_n CTAs, ranks going down the columns.
template <class Policy>
struct ClusterPlace {
  static constexpr int size = Policy::cluster_m * Policy::cluster_n;
  static constexpr int neighbours = Policy::cluster_m + Policy::cluster_n - 1;  // of its row and its column, with itself

  uint32_t rank, row, column;

  HGEMM_DEVICE ClusterPlace() : rank(size > 1 ? atoms::cluster_rank() : 0) {
    row = rank % Policy::cluster_m;
    column = rank / Policy::cluster_m;
  }
  // Those that work on the same rows of A, and on the same columns of B, a bit each.
  HGEMM_DEVICE uint16_t row_ranks() const {
    uint16_t ranks = 0;
    HGEMM_UNROLL
    for (int j = 0; j < Policy::cluster_n; ++j) ranks |= 1 << (row + j * Policy::cluster_m);
    return ranks;
  }
  HGEMM_DEVICE uint16_t column_ranks() const { return ((1 << Policy::cluster_m) - 1) << column * Policy::cluster_m; }
  // The rank of neighbour i, in [0, neighbours): first the column's, then the others of the row.
  HGEMM_DEVICE uint32_t neighbour(int i) const {
    if (i < Policy::cluster_m) return column * Policy::cluster_m + i;
    uint32_t const other = i - Policy::cluster_m;
    return row + (other + (other >= column)) * Policy::cluster_m;
  }
};

// A place in the ring of stages, and the parity of its round.
template <int STAGES>
struct Ring {
  int stage = 0;
  uint32_t round = 0;

  HGEMM_DEVICE void advance() {
    if (++stage == STAGES) {
      stage = 0;
      round ^= 1;
    }
  }
  HGEMM_DEVICE void skip(int count) {
    round ^= (stage + count) / STAGES & 1;
    stage = (stage + count) % STAGES;
  }
};

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
struct MainloopSm90 {
  using A = OperandSm90<Policy, typename Policy::A, Policy::tile_m, Policy::cluster_n>;
  using B = OperandSm90<Policy, typename Policy::B, Policy::tile_n, Policy::cluster_m>;
  using Place = ClusterPlace<Policy>;

  static constexpr int readers = Policy::pingpong ? 1 : Policy::consumers;  // warpgroups that read one stage
  static constexpr int wgmma_k = 32 / sizeof(typename Policy::In);
  static constexpr int wgmma_per_k_tile = Policy::consumer_m / 64 * (Policy::tile_k / wgmma_k);  // a warpgroup

  struct Shared {
    alignas(1024) unsigned char a[Policy::stages][A::bytes];  // (stages, tile_m, tile_k)
    alignas(1024) unsigned char b[Policy::stages][B::bytes];  // (stages, tile_n, tile_k)
  };
  struct Barriers {
    uint64_t full[Policy::stages];   // the TMA has filled the stage
    uint64_t empty[Policy::stages];  // the consumers of all CTAs that it goes to have read it
    uint64_t turn[2];                // the other consumer has multiplied its tile, where they take tiles in turn
  };

  Shared& shared;
  Barriers& barriers;
  Place const& place;
  Ring<Policy::stages> ring;
  uint32_t turns = 0;  // parity of this consumer's turns

  HGEMM_DEVICE MainloopSm90(Shared& shared, Barriers& barriers, Place const& place)
      : shared(shared), barriers(barriers), place(place) {}

  HGEMM_DEVICE static void init(Barriers& barriers) {
    for (int stage = 0; stage < Policy::stages; ++stage) {
      atoms::mbarrier_init(&barriers.full[stage], 1);
      atoms::mbarrier_init(&barriers.empty[stage], readers * Place::neighbours);
    }
    atoms::mbarrier_init(&barriers.turn[0], 1);
    atoms::mbarrier_init(&barriers.turn[1], 1);
  }

  // ---- Producer: one thread ---------------------------------------------------------------------------------------

  HGEMM_DEVICE void load(TensorMaps const& maps, Problem const& problem, int batch, int m_first, int n_first, int k_first,
                         int k_tiles) {
    int64_t const a_stride = Policy::swapped ? problem.batch_stride_b : problem.batch_stride_a;
    int64_t const b_stride = Policy::swapped ? problem.batch_stride_a : problem.batch_stride_b;
    int const a_batch = a_stride == 0 ? 0 : batch, b_batch = b_stride == 0 ? 0 : batch;
    TensorMap const& a_map = Policy::swapped ? maps.b : maps.a;
    TensorMap const& b_map = Policy::swapped ? maps.a : maps.b;
    int const k_end = (k_first + k_tiles) * Policy::tile_k;
    HGEMM_NO_UNROLL
    for (int k = k_first * Policy::tile_k; k < k_end; k += Policy::tile_k) {
      uint64_t* const full = &barriers.full[ring.stage];
      atoms::mbarrier_wait(&barriers.empty[ring.stage], ring.round ^ 1);
      atoms::mbarrier_arrive_and_expect(full, A::bytes + B::bytes);
      A::load(shared.a[ring.stage], a_map, full, m_first, k, a_batch, place.column, place.row_ranks());
      B::load(shared.b[ring.stage], b_map, full, n_first, k, b_batch, place.row, place.column_ranks());
      ring.advance();
    }
  }

  // ---- Consumers: warpgroups --------------------------------------------------------------------------------------

  // Adds up rows [m_offset, m_offset + consumer_m) of the CTA tile over the next k_tiles stages.
  HGEMM_DEVICE void multiply(WarpgroupAccumulators<Policy>& accumulators, int m_offset, int k_tiles) {
    uint64_t const a_first = A::descriptor(shared.a[0]) + A::step(64, 0) * (m_offset / 64);
    uint64_t const b_first = B::descriptor(shared.b[0]);
    int previous = 0;
    HGEMM_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      atoms::mbarrier_wait(&barriers.full[ring.stage], ring.round);
      uint64_t const a = a_first + ring.stage * (A::bytes / 16);
      uint64_t const b = b_first + ring.stage * (B::bytes / 16);
      atoms::wgmma_fence();
      HGEMM_UNROLL
      for (int k = 0; k < Policy::tile_k; k += wgmma_k) {
        HGEMM_UNROLL
        for (int block = 0; block < Policy::consumer_m / 64; ++block) {
          atoms::wgmma<Policy>(accumulators.sums[block], a + A::step(block * 64, k), b + B::step(0, k), k_tile > 0 || k > 0);
        }
      }
      atoms::wgmma_commit();
      atoms::wgmma_wait<1>();  // the stage before has been read
      if (k_tile > 0) release(previous);
      previous = ring.stage;
      ring.advance();
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

  // Tells every CTA that loads into this stage that this warpgroup is done with it.
  HGEMM_DEVICE void release(int stage) const {
    int const thread = atoms::thread_index() % 128;
    if constexpr (Place::size == 1) {
      if (thread == 0) atoms::mbarrier_arrive(&barriers.empty[stage]);
    } else {
      if (thread < Place::neighbours) atoms::mbarrier_arrive_at(&barriers.empty[stage], place.neighbour(thread));
    }
  }
};

}  // namespace hgemm
