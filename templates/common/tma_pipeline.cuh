// The ring of stages that one thread fills by TMA and warps or warpgroups multiply. A stage is made of TMA boxes.
#pragma once

#include <common/atoms_sm90.cuh>
#include <common/policy.cuh>
#include <common/problem.cuh>

namespace hgemm {

// The maps of the problem's A and B, and of D if the TMA stores it.
struct TensorMaps {
  TensorMap a, b, d;
};
static_assert(sizeof(TensorMaps) == 384, "the launchers pack this struct by hand");

// ---- One operand of a stage ---------------------------------------------------------------------------------------

// A stage of A or B, (EXTENT, tile_k), that SHARERS CTAs of a cluster load for each other: each one loads a slice, or they take
// turns. It is made of boxes. A box has rows of 128, 64, 32 or 16 bytes of the contiguous index, and the TMA swizzles the 16-byte
// vectors of a row. The last box of an MN-major operand may extend beyond EXTENT; nobody reads what it holds there.
template <class Policy, class Side, int EXTENT, int SHARERS>
struct TmaBoxes {
  static constexpr bool k_major = Side::k_major;
  static constexpr int row_bytes = Side::swizzle_bytes ? Side::swizzle_bytes : 16;
  static constexpr int element_bytes = sizeof(typename Policy::In);
  static constexpr int columns = row_bytes / element_bytes;  // elements of the contiguous index in a box
  static constexpr int rows = Side::k_major ? EXTENT : Policy::tile_k;
  static constexpr int boxes = ((Side::k_major ? Policy::tile_k : EXTENT) + columns - 1) / columns;
  static constexpr int box_bytes = rows * row_bytes;
  static constexpr bool in_turn = rows % (SHARERS * 8) != 0;  // slices would not be whole groups of 8 rows
  static constexpr int slice_rows = in_turn ? rows : rows / SHARERS;
  static constexpr int bytes = boxes * box_bytes;

  static_assert(!Side::k_major || Policy::tile_k % columns == 0, "boxes of a K-major operand must fill the stage");

  // The swizzled offset of a byte of a box: the index of its 16-byte vector is XORed with the low bits of the row.
  HGEMM_DEVICE static constexpr int swizzled(int byte) {
    constexpr int vecs = row_bytes / 16;
    return byte ^ (byte >> 3 & (vecs - 1) << 4);
  }

  // Loads what this CTA, the sharer `place`, loads of the stage whose first element is (first, k) of `batch`. `ranks` are all
  // sharers.
  HGEMM_DEVICE static void load(unsigned char* stage, TensorMap const& map, uint64_t* barrier, int first, int k, int batch,
                                int place, uint16_t ranks) {
    if (in_turn && k / Policy::tile_k % SHARERS != place) return;
    int const row = in_turn ? 0 : place * slice_rows;
    HGEMM_UNROLL
    for (int box = 0; box < boxes; ++box) {
      unsigned char* const to = stage + box * box_bytes + row * row_bytes;
      int const x = (Side::k_major ? k : first) + box * columns;
      int const y = (Side::k_major ? first : k) + row;
      if constexpr (SHARERS == 1) {
        atoms::tma_load(to, map, barrier, x, y, batch);
      } else {
        atoms::tma_load_multicast(to, map, barrier, ranks, x, y, batch);
      }
    }
  }

  // Fetches into L2 what load() would load.
  HGEMM_DEVICE static void prefetch(TensorMap const& map, int first, int k, int batch, int place) {
    if (in_turn && k / Policy::tile_k % SHARERS != place) return;
    int const row = in_turn ? 0 : place * slice_rows;
    HGEMM_UNROLL
    for (int box = 0; box < boxes; ++box) {
      atoms::tma_prefetch_box(map, (Side::k_major ? k : first) + box * columns, (Side::k_major ? first : k) + row, batch);
    }
  }
};

// ---- Cluster ------------------------------------------------------------------------------------------------------

// Where a CTA is in its cluster of cluster_m x cluster_n CTAs. Ranks run down the columns.
template <class Policy>
struct ClusterPlace {
  static constexpr int size = Policy::cluster_m * Policy::cluster_n;
  static constexpr int neighbours = Policy::cluster_m + Policy::cluster_n - 1;  // in its row and column, with itself

  uint32_t rank, row, column;

  HGEMM_DEVICE ClusterPlace() : rank(size > 1 ? atoms::cluster_rank() : 0) {
    row = rank % Policy::cluster_m;
    column = rank / Policy::cluster_m;
  }
  // The CTAs that share A's rows, and those that share B's columns, one bit each.
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

// ---- Pipeline -----------------------------------------------------------------------------------------------------

// A stage of the ring, and the parity of its round.
template <int STAGES>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  HGEMM_DEVICE void advance() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
  HGEMM_DEVICE void advance(int count) {
    phase ^= (stage + count) / STAGES & 1;
    stage = (stage + count) % STAGES;
  }
};

template <class Policy>
struct TmaPipeline {
  using A = TmaBoxes<Policy, typename Policy::A, Policy::tile_m, Policy::cluster_n>;
  using B = TmaBoxes<Policy, typename Policy::B, Policy::tile_n, Policy::cluster_m>;
  using Place = ClusterPlace<Policy>;

  struct Shared {
    alignas(1024) unsigned char a[Policy::stages][A::bytes];  // (stages, tile_m, tile_k)
    alignas(1024) unsigned char b[Policy::stages][B::bytes];  // (stages, tile_n, tile_k)
  };
  struct Barriers {
    uint64_t full[Policy::stages];   // the stage has been filled
    uint64_t empty[Policy::stages];  // the consumers of all CTAs that receive the stage have read it
  };

  Shared& shared;
  Barriers& barriers;
  Place const& place;
  PipelineState<Policy::stages> state;

  HGEMM_DEVICE TmaPipeline(Shared& shared, Barriers& barriers, Place const& place)
      : shared(shared), barriers(barriers), place(place) {}

  // `consumers` are the warps or warpgroups of a CTA that read each stage, `producers` the threads that report it full.
  HGEMM_DEVICE static void init(Barriers& barriers, int consumers, int producers = 1) {
    for (int stage = 0; stage < Policy::stages; ++stage) {
      atoms::mbarrier_init(&barriers.full[stage], producers);
      atoms::mbarrier_init(&barriers.empty[stage], consumers * Place::neighbours);
    }
  }

  // ---- Producer: one thread ---------------------------------------------------------------------------------------

  // The maps of the kernel's A and B, and the matrices of `batch` in them.
  struct Sources {
    TensorMap const &a, &b;
    int a_batch, b_batch;
  };
  HGEMM_DEVICE static Sources sources(TensorMaps const& maps, Problem const& problem, int batch) {
    int64_t const a_stride = Policy::swap_ab ? problem.batch_stride_b : problem.batch_stride_a;
    int64_t const b_stride = Policy::swap_ab ? problem.batch_stride_a : problem.batch_stride_b;
    return {Policy::swap_ab ? maps.b : maps.a, Policy::swap_ab ? maps.a : maps.b, a_stride == 0 ? 0 : batch, b_stride == 0 ? 0 : batch};
  }

  // Fetches the boxes of one k-tile into L2, before the stages may be written.
  HGEMM_DEVICE void prefetch(TensorMaps const& maps, Problem const& problem, int batch, int m_first, int n_first, int k_tile) const {
    auto const [a_map, b_map, a_batch, b_batch] = sources(maps, problem, batch);
    A::prefetch(a_map, m_first, k_tile * Policy::tile_k, a_batch, place.column);
    B::prefetch(b_map, n_first, k_tile * Policy::tile_k, b_batch, place.row);
  }

  HGEMM_DEVICE void load(TensorMaps const& maps, Problem const& problem, int batch, int m_first, int n_first, int k_first,
                         int k_tiles) {
    auto const [a_map, b_map, a_batch, b_batch] = sources(maps, problem, batch);
    int const k_end = (k_first + k_tiles) * Policy::tile_k;
    HGEMM_NO_UNROLL
    for (int k = k_first * Policy::tile_k; k < k_end; k += Policy::tile_k) {
      uint64_t* const full = producer_acquire();
      atoms::mbarrier_arrive_expect_tx(full, A::bytes + B::bytes);
      A::load(shared.a[state.stage], a_map, full, m_first, k, a_batch, place.column, place.row_ranks());
      B::load(shared.b[state.stage], b_map, full, n_first, k, b_batch, place.row, place.column_ranks());
      state.advance();
    }
  }

  // Waits until the stage is empty. Returns the barrier to arrive at once it is full.
  HGEMM_DEVICE uint64_t* producer_acquire() const {
    uint64_t* const full = &barriers.full[state.stage];
    atoms::mbarrier_wait(&barriers.empty[state.stage], state.phase ^ 1);
    return full;
  }

  // Waits until the consumers of the cluster have reported every stage as read. A CTA that ends before a report arrives would
  // lose the shared memory that the report is for.
  HGEMM_DEVICE void producer_finish() {
    HGEMM_NO_UNROLL
    for (int stage = 0; stage < Policy::stages; ++stage) {
      producer_acquire();
      state.advance();
    }
  }

  // ---- Consumers --------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void consumer_wait() const { atoms::mbarrier_wait(&barriers.full[state.stage], state.phase); }

  // Reports to every CTA that loads into the stage that this consumer has read it; `thread` counts within the consumer.
  HGEMM_DEVICE void consumer_release(int stage, int thread) const {
    if constexpr (Place::size == 1) {
      if (thread == 0) atoms::mbarrier_arrive(&barriers.empty[stage]);
    } else {
      if (thread < Place::neighbours) atoms::mbarrier_arrive_cluster(&barriers.empty[stage], place.neighbour(thread));
    }
  }
};

}  // namespace hgemm
