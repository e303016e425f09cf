// Stages of A and B in shared memory that one thread fills by TMA, and that others multiply: by wgmma, or by mma.sync.
#pragma once

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

template <class Policy>
struct TmaStages {
  using A = OperandSm90<Policy, typename Policy::A, Policy::tile_m, Policy::cluster_n>;
  using B = OperandSm90<Policy, typename Policy::B, Policy::tile_n, Policy::cluster_m>;
  using Place = ClusterPlace<Policy>;

  static constexpr bool by_tma = true;

  struct Shared {
    alignas(1024) unsigned char a[Policy::stages][A::bytes];  // (stages, tile_m, tile_k)
    alignas(1024) unsigned char b[Policy::stages][B::bytes];  // (stages, tile_n, tile_k)
  };
  struct Barriers {
    uint64_t full[Policy::stages];   // the stage has been filled
    uint64_t empty[Policy::stages];  // the consumers of all CTAs that it goes to have read it
  };

  Shared& shared;
  Barriers& barriers;
  Place const& place;
  Ring<Policy::stages> ring;

  HGEMM_DEVICE TmaStages(Shared& shared, Barriers& barriers, Place const& place)
      : shared(shared), barriers(barriers), place(place) {}

  // For so many warps or warpgroups of a CTA that read each stage, and so many threads that tell that it is full.
  HGEMM_DEVICE static void init(Barriers& barriers, int readers, int producers = 1) {
    for (int stage = 0; stage < Policy::stages; ++stage) {
      atoms::mbarrier_init(&barriers.full[stage], producers);
      atoms::mbarrier_init(&barriers.empty[stage], readers * Place::neighbours);
    }
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

  // ---- Consumers --------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void await_full() const { atoms::mbarrier_wait(&barriers.full[ring.stage], ring.round); }

  // Tells every CTA that loads into this stage that this reader is done with it; `thread` counts within the reader.
  HGEMM_DEVICE void release(int stage, int thread) const {
    if constexpr (Place::size == 1) {
      if (thread == 0) atoms::mbarrier_arrive(&barriers.empty[stage]);
    } else {
      if (thread < Place::neighbours) atoms::mbarrier_arrive_at(&barriers.empty[stage], place.neighbour(thread));
    }
  }
};

}  // namespace hgemm
