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

// The maps of an MN-major operand for kernels with edge maps. A box that ends inside a row of its map takes longer to load. So
// rows of `map` and `edge` extend beyond the matrix, up to whole tiles. What lies there is the next row, or a gap between rows. It
// becomes rows or columns of D that nobody stores. Behind the last row there is no such memory. So `last` ends with the matrix, and
// loads the last k-tile.
struct OperandMaps {
  TensorMap map, edge, last;  // edge: for the last box of a tile, if it is narrower than the others
};
struct TensorMapsWithEdges {
  OperandMaps a, b;
  TensorMap d;
};
static_assert(sizeof(TensorMaps) == 384 && sizeof(TensorMapsWithEdges) == 896, "the launchers pack these structs by hand");

template <class Policy, class = void>
inline constexpr bool has_edge_maps = false;
template <class Policy>
inline constexpr bool has_edge_maps<Policy, typename MakeVoid<decltype(Policy::edge_maps)>::Type> = true;

template <class Policy, bool EDGES = has_edge_maps<Policy>>
struct MapsOf { using Type = TensorMaps; };
template <class Policy>
struct MapsOf<Policy, true> { using Type = TensorMapsWithEdges; };

// The maps of one operand, as OperandMaps, and the matrix of the batch in them.
struct TmaSource {
  TensorMap const &map, &edge, &last;
  int batch;
};

// ---- One operand of a stage ---------------------------------------------------------------------------------------

// A stage of A or B, (EXTENT, tile_k), that SHARERS CTAs of a cluster load for each other: each one loads a slice, or they take
// turns. It is made of boxes. A box has rows of 128, 64, 32 or 16 bytes of the contiguous index, and the TMA swizzles the 16-byte
// vectors of a row. The last box of an MN-major operand may extend beyond EXTENT; nobody reads what it holds there. With edge maps, it is
// loaded up to EXTENT only, except for the last k-tile.
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
  static constexpr bool has_edge = has_edge_maps<Policy> && !Side::k_major && Side::swizzle_bytes > 0;
  static constexpr int edge_columns = has_edge ? EXTENT % columns : 0;
  static constexpr int loaded_bytes = has_edge ? EXTENT * rows * element_bytes : bytes;  // of all k-tiles but the last one

  static_assert(!Side::k_major || Policy::tile_k % columns == 0, "boxes of a K-major operand must fill the stage");

  // The swizzled offset of a byte of a box: the index of its 16-byte vector is XORed with the low bits of the row.
  HGEMM_DEVICE static constexpr int swizzled(int byte) {
    constexpr int vecs = row_bytes / 16;
    return byte ^ (byte >> 3 & (vecs - 1) << 4);
  }

  HGEMM_DEVICE static TensorMap const& map_of(TmaSource const& source, int box, bool is_last) {
    if constexpr (!has_edge) return source.map;
    if (is_last) return source.last;
    return edge_columns > 0 && box == boxes - 1 ? source.edge : source.map;
  }

  // Loads what this CTA, the sharer `place`, loads of the stage whose first element is (first, k). `ranks` are all sharers.
  HGEMM_DEVICE static void load(unsigned char* stage, TmaSource const& source, uint64_t* barrier, int first, int k, bool is_last,
                                int place, uint16_t ranks) {
    if (in_turn && k / Policy::tile_k % SHARERS != place) return;
    int const row = in_turn ? 0 : place * slice_rows;
    HGEMM_UNROLL
    for (int box = 0; box < boxes; ++box) {
      unsigned char* const to = stage + box * box_bytes + row * row_bytes;
      int const x = (Side::k_major ? k : first) + box * columns;
      int const y = (Side::k_major ? first : k) + row;
      if constexpr (SHARERS == 1) {
        atoms::tma_load(to, map_of(source, box, is_last), barrier, x, y, source.batch);
      } else {
        atoms::tma_load_multicast(to, map_of(source, box, is_last), barrier, ranks, x, y, source.batch);
      }
    }
  }

  // Fetches into L2 what load() would load.
  HGEMM_DEVICE static void prefetch(TmaSource const& source, int first, int k, bool is_last, int place) {
    if (in_turn && k / Policy::tile_k % SHARERS != place) return;
    int const row = in_turn ? 0 : place * slice_rows;
    HGEMM_UNROLL
    for (int box = 0; box < boxes; ++box) {
      atoms::tma_prefetch_box(map_of(source, box, is_last), (Side::k_major ? k : first) + box * columns,
                              (Side::k_major ? first : k) + row, source.batch);
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
  using Maps = typename MapsOf<Policy>::Type;

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

  // Fetches the descriptors of the problem's A or B.
  template <bool IS_A>
  HGEMM_DEVICE static void prefetch_maps(Maps const& maps) {
    constexpr bool is_a = IS_A != Policy::swap_ab;  // of the kernel
    TmaSource const found = source<IS_A>(maps, 0);
    atoms::tma_prefetch(found.map);
    if (is_a ? A::edge_columns > 0 : B::edge_columns > 0) atoms::tma_prefetch(found.edge);
    if (is_a ? A::has_edge : B::has_edge) atoms::tma_prefetch(found.last);
  }

  // The source of the problem's A or B.
  template <bool IS_A>
  HGEMM_DEVICE static TmaSource source(Maps const& maps, int batch) {
    auto const& found = IS_A ? maps.a : maps.b;
    if constexpr (has_edge_maps<Policy>) {
      return {found.map, found.edge, found.last, batch};
    } else {
      return {found, found, found, batch};
    }
  }
  template <bool IS_A>
  HGEMM_DEVICE static TmaSource source(Maps const& maps, Problem const& problem, int batch) {
    return source<IS_A>(maps, (IS_A ? problem.batch_stride_a : problem.batch_stride_b) == 0 ? 0 : batch);
  }

  // Whether a k-tile has the last row of k, so that MN-major operands end with it.
  HGEMM_DEVICE static bool is_last(Problem const& problem, int k) {
    return (A::has_edge || B::has_edge) && k + Policy::tile_k >= problem.k;
  }

  // Fetches the boxes of one k-tile into L2, before the stages may be written.
  HGEMM_DEVICE void prefetch(Maps const& maps, Problem const& problem, int batch, int m_first, int n_first, int k_tile) const {
    int const k = k_tile * Policy::tile_k;
    A::prefetch(source<!Policy::swap_ab>(maps, problem, batch), m_first, k, is_last(problem, k), place.column);
    B::prefetch(source<Policy::swap_ab>(maps, problem, batch), n_first, k, is_last(problem, k), place.row);
  }

  HGEMM_DEVICE void load(Maps const& maps, Problem const& problem, int batch, int m_first, int n_first, int k_first, int k_tiles) {
    TmaSource const a = source<!Policy::swap_ab>(maps, problem, batch), b = source<Policy::swap_ab>(maps, problem, batch);
    int const k_end = (k_first + k_tiles) * Policy::tile_k;
    HGEMM_NO_UNROLL
    for (int k = k_first * Policy::tile_k; k < k_end; k += Policy::tile_k) {
      uint64_t* const full = producer_acquire();
      bool const last = is_last(problem, k);
      atoms::mbarrier_arrive_expect_tx(full, last ? A::bytes + B::bytes : A::loaded_bytes + B::loaded_bytes);
      A::load(shared.a[state.stage], a, full, m_first, k, last, place.column, place.row_ranks());
      B::load(shared.b[state.stage], b, full, n_first, k, last, place.row, place.column_ranks());
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
