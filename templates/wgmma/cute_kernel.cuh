// The kernel of sm_90a in CuTe's vocabulary: a producer that loads by TMA, a TiledMMA of consumer warpgroups on wgmma.
//
// A Policy holds the types and constants of one kernel; the emitted instance spells them out. Parameters, order of tiles, roles
// of warpgroups and swap_ab are those of wgmma/kernel.cuh.
#pragma once

#include <common/cute_tensor.cuh>
#include <cutlass/arch/barrier.h>
#include <cute/atom/copy_traits_sm90_tma.hpp>

#include <common/scheduler.cuh>
#include <wgmma/cute_epilogue.cuh>

namespace hgemm::cute_form {

using namespace cute;
using cutlass::arch::ClusterBarrier;
using cutlass::arch::ClusterTransactionBarrier;

// ---- Cluster ------------------------------------------------------------------------------------------------------

// Where a CTA is in its cluster, a ClusterShape (CTAs along m, along n) that is launched as a row of CTAs.
template <class ClusterShape>
struct ClusterPlace {
  using Ranks = Layout<ClusterShape>;  // (row, column) -> rank
  static constexpr int size = cute::size(ClusterShape{});
  static constexpr int neighbours = cute::size<0>(ClusterShape{}) + cute::size<1>(ClusterShape{}) - 1;  // with itself

  int row, column;

  CUTE_DEVICE ClusterPlace() {
    int const rank = size > 1 ? int(block_rank_in_cluster()) : 0;
    row = rank % cute::size<0>(ClusterShape{});
    column = rank / cute::size<0>(ClusterShape{});
  }
  // The CTAs of its row, which share A, and of its column, which share B, one bit each.
  CUTE_DEVICE uint16_t row_mask() const {
    uint16_t mask = 0;
    CUTE_UNROLL
    for (int j = 0; j < cute::size<1>(ClusterShape{}); ++j) mask |= uint16_t(1 << Ranks{}(row, j));
    return mask;
  }
  CUTE_DEVICE uint16_t column_mask() const {
    uint16_t mask = 0;
    CUTE_UNROLL
    for (int i = 0; i < cute::size<0>(ClusterShape{}); ++i) mask |= uint16_t(1 << Ranks{}(i, column));
    return mask;
  }
  // The rank of neighbour `index`: the CTAs of the column, then the others of the row.
  CUTE_DEVICE int neighbour(int index) const {
    int const other = index - cute::size<0>(ClusterShape{});
    return other < 0 ? Ranks{}(index, column) : Ranks{}(row, other + (other >= column));
  }
};

template <class Policy>
using PlaceOf = ClusterPlace<typename Policy::ClusterShape>;

// ---- Pipeline -----------------------------------------------------------------------------------------------------

// A stage of the ring, and the parity of its round.
template <int STAGES>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  CUTE_DEVICE void operator++() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
  CUTE_DEVICE void advance(int count) {
    phase ^= (stage + count) / STAGES & 1;
    stage = (stage + count) % STAGES;
  }
};

// The barriers of CUTLASS's PipelineTmaAsync, which requires clusters that are launched with two dimensions.
template <class ClusterShape, int STAGES>
struct TmaPipeline {
  using State = PipelineState<STAGES>;

  ClusterTransactionBarrier full[STAGES];  // the stage has been filled
  ClusterBarrier empty[STAGES];            // the consumers of all CTAs that receive the stage have read it

  // By one thread, before any CTA of the cluster uses them. `readers` are the warpgroups of a CTA that read a stage.
  CUTE_DEVICE void init(int readers) {
    for (int stage = 0; stage < STAGES; ++stage) {
      full[stage].init(1);
      empty[stage].init(readers * ClusterPlace<ClusterShape>::neighbours);
    }
  }

  CUTE_DEVICE void producer_acquire(State const& state, uint32_t bytes) {
    empty[state.stage].wait(state.phase ^ 1);
    full[state.stage].arrive_and_expect_tx(bytes);
  }
  // Waits until the consumers of the cluster have reported every stage as read. A CTA's shared memory must outlive their reports.
  CUTE_DEVICE void producer_finish(State& state) {
    for (int stage = 0; stage < STAGES; ++stage, ++state) empty[state.stage].wait(state.phase ^ 1);
  }
  CUTE_DEVICE void consumer_wait(State const& state) { full[state.stage].wait(state.phase); }

  // By all threads of a warpgroup; some of them report to one CTA each.
  CUTE_DEVICE void consumer_release(int stage, ClusterPlace<ClusterShape> const& place) {
    int const thread = atoms::thread_index() % 128;
    if constexpr (ClusterPlace<ClusterShape>::size == 1) {
      if (thread == 0) empty[stage].arrive();
    } else {
      if (thread < place.neighbours) empty[stage].arrive(place.neighbour(thread));
    }
  }
};

// ---- Global to shared memory by TMA -------------------------------------------------------------------------------

// The copy of a box of BOX elements by a map that the launcher encoded; CuTe encodes maps on the host only. CTAs that share a
// box load one slice of it each.
template <class CopyOp, class Element, int BOX>
struct TmaLoad {
  static constexpr bool multicast = is_same_v<CopyOp, SM90_TMA_LOAD_MULTICAST_OP>;
  using Atom = Copy_Atom<Copy_Traits<CopyOp, Int<BOX * sizeof_bits_v<Element>>>, Element>;

  TmaDescriptor const* map;
  uint16_t receivers;  // CTAs of the cluster, one bit each

  // The copy whose bytes `full` counts.
  CUTE_DEVICE Atom with(ClusterTransactionBarrier& full) const { return with(reinterpret_cast<uint64_t*>(&full)); }
  CUTE_DEVICE Atom with(uint64_t* barrier) const {
    constexpr auto hint = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
    if constexpr (multicast) {
      return Atom{{map, barrier, receivers, hint}};
    } else {
      return Atom{{map, barrier, hint}};
    }
  }

  // Partitions gX (BLK_MN, BLK_K, k) and sX (BLK_MN, BLK_K, PIPE) into ((TMA, BOXES), k) and ((TMA, BOXES), PIPE). Each box
  // contributes slice number `slice` of SLICES.
  template <int SLICES, class TensorG, class TensorS>
  CUTE_DEVICE auto partition(int slice, TensorG const& gX, TensorS const& sX) const {
    return tma_partition(with(nullptr), slice, Layout<Int<SLICES>>{}, group_modes<0, 2>(sX), group_modes<0, 2>(gX));
  }
};

// ---- Types --------------------------------------------------------------------------------------------------------

// The maps of the problem's A and B, and of D if the TMA stores it.
struct TensorMaps {
  TmaDescriptor a, b, d;
};
static_assert(sizeof(TensorMaps) == 384, "the launchers pack this struct by hand");

template <class Policy>
constexpr int stages = size<2>(typename Policy::SmemLayoutA{});

template <class Policy>
struct SharedStorage {
  alignas(1024) ArrayEngine<typename Policy::Element, cosize_v<typename Policy::SmemLayoutA>> a;  // (BLK_M, BLK_K, PIPE)
  alignas(1024) ArrayEngine<typename Policy::Element, cosize_v<typename Policy::SmemLayoutB>> b;  // (BLK_N, BLK_K, PIPE)
  struct alignas(1024) {
    ArrayEngine<typename Policy::ElementOut, cosize_v<typename Policy::SmemLayoutD>> of[Policy::consumers];
  } d;  // (EPI_M, EPI_N, PIPE_D) each
  struct alignas(1024) {
    TmaPipeline<typename Policy::ClusterShape, stages<Policy>> pipeline;
    ClusterBarrier order[2];  // pingpong: the other consumer has multiplied its tile
  } barriers;
};

// Tensor instructions that one warpgroup issues for a k-tile.
template <class Policy>
constexpr int mma_per_k_tile = size(typename Policy::CtaTiler{}) / size(typename Policy::TiledMma::AtomShape_MNK{}) /
                               (size(typename Policy::TiledMma{}) / 128);

// The tiles of a cluster as one tile of the problem, for the scheduler.
template <class Policy>
struct ClusterTile : Policy {
  static constexpr int cluster_m = size<0>(typename Policy::ClusterShape{}), cluster_n = size<1>(typename Policy::ClusterShape{});
  // Extents in the D that the kernel computes.
  static constexpr int kernel_m = size<0>(typename Policy::CtaTiler{}) * cluster_m;
  static constexpr int kernel_n = size<1>(typename Policy::CtaTiler{}) * cluster_n;
  static constexpr int tile_m = Policy::swap_ab ? kernel_n : kernel_m;
  static constexpr int tile_n = Policy::swap_ab ? kernel_m : kernel_n;
};

// Row and column of a CTA's tile in the D that the kernel computes, in CTA tiles.
template <class Policy>
struct CtaTile {
  int m, n;

  CUTE_DEVICE CtaTile(Work const& work, PlaceOf<Policy> const& place) {
    int const cluster_row = Policy::swap_ab ? work.tile_n : work.tile_m;  // of the cluster tile, in the kernel's D
    int const cluster_column = Policy::swap_ab ? work.tile_m : work.tile_n;
    m = cluster_row * size<0>(typename Policy::ClusterShape{}) + place.row;
    n = cluster_column * size<1>(typename Policy::ClusterShape{}) + place.column;
  }
};

// ---- Producer: one thread -----------------------------------------------------------------------------------------

template <class Policy, class State>
CUTE_DEVICE void load_tile(Problem const& problem, TensorMaps const& maps, Work const& work, PlaceOf<Policy> const& place,
                           SharedStorage<Policy>& shared, State& state) {
  using CtaTiler = typename Policy::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  using ClusterShape = typename Policy::ClusterShape;
  using Element = typename Policy::Element;
  constexpr bool swap_ab = Policy::swap_ab;
  constexpr uint32_t stage_bytes = sizeof(Element) * (size<0>(CtaTiler{}) + size<1>(CtaTiler{})) * size<2>(CtaTiler{});

  // ---- The matrices as their maps count them, and this CTA's tiles ------------------------------------------------
  bool const a_repeats = (swap_ab ? problem.batch_stride_b : problem.batch_stride_a) == 0;  // the whole batch uses one matrix
  bool const b_repeats = (swap_ab ? problem.batch_stride_a : problem.batch_stride_b) == 0;
  Tensor mA = make_map_tensor<Policy::a_k_major>(swap_ab ? problem.n : problem.m, problem.k, problem.batch,
                                                 a_repeats ? 0 : work.batch);  // (M, K)
  Tensor mB = make_map_tensor<Policy::b_k_major>(swap_ab ? problem.m : problem.n, problem.k, problem.batch,
                                                 b_repeats ? 0 : work.batch);  // (N, K)
  CtaTile<Policy> const tile(work, place);
  auto const cta_coord = make_coord(tile.m, tile.n, _);                                      // (m, n, k)
  Tensor gA = local_tile(mA, CtaTiler{}, cta_coord, Step<_1, X, _1>{});                      // (BLK_M, BLK_K, k)
  Tensor gB = local_tile(mB, CtaTiler{}, cta_coord, Step<X, _1, _1>{});                      // (BLK_N, BLK_K, k)
  Tensor sA = make_tensor(make_smem_ptr(shared.a.begin()), typename Policy::SmemLayoutA{});  // (BLK_M, BLK_K, PIPE)
  Tensor sB = make_tensor(make_smem_ptr(shared.b.begin()), typename Policy::SmemLayoutB{});  // (BLK_N, BLK_K, PIPE)

  // ---- Partitions: global to shared memory ------------------------------------------------------------------------
  typename Policy::TmaLoadA const tma_a{swap_ab ? &maps.b : &maps.a, place.row_mask()};
  typename Policy::TmaLoadB const tma_b{swap_ab ? &maps.a : &maps.b, place.column_mask()};
  auto [tAgA, tAsA] = tma_a.template partition<size<1>(ClusterShape{})>(place.column, gA, sA);  // ((TMA, BOXES), k), (.., PIPE)
  auto [tBgB, tBsB] = tma_b.template partition<size<0>(ClusterShape{})>(place.row, gB, sB);     // ((TMA, BOXES), k), (.., PIPE)

  auto& pipeline = shared.barriers.pipeline;
  int const k_tiles = ceil_div(problem.k, int(size<2>(CtaTiler{})));
  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
    pipeline.producer_acquire(state, stage_bytes);
    auto& full = pipeline.full[state.stage];
    copy(tma_a.with(full), tAgA(_, k_tile), tAsA(_, state.stage));
    copy(tma_b.with(full), tBgB(_, k_tile), tBsB(_, state.stage));
  }
}

// ---- Consumers: warpgroups ----------------------------------------------------------------------------------------

// Multiplies a tile into tCrC (MMA, MMA_M, 1). `warpgroup` is its number in the TiledMMA.
template <class Policy, class Accumulators, class State>
CUTE_DEVICE void multiply_tile(Accumulators& tCrC, int k_tiles, int warpgroup, PlaceOf<Policy> const& place,
                               SharedStorage<Policy>& shared, State& state) {
  Tensor sA = make_tensor(make_smem_ptr(shared.a.begin()), typename Policy::SmemLayoutA{});  // (BLK_M, BLK_K, PIPE)
  Tensor sB = make_tensor(make_smem_ptr(shared.b.begin()), typename Policy::SmemLayoutB{});  // (BLK_N, BLK_K, PIPE)

  // ---- Partitions: descriptors of shared memory -------------------------------------------------------------------
  typename Policy::TiledMma tiled_mma;
  auto thread_mma = tiled_mma.get_slice(warpgroup * 128);
  Tensor tCrA = thread_mma.make_fragment_A(thread_mma.partition_A(sA));  // (MMA, MMA_M, MMA_K, PIPE)
  Tensor tCrB = thread_mma.make_fragment_B(thread_mma.partition_B(sB));  // (MMA, 1, MMA_K, PIPE)

  auto& pipeline = shared.barriers.pipeline;
  tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
  int previous = 0;
  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++state) {
    pipeline.consumer_wait(state);
    warpgroup_fence_operand(tCrC);
    warpgroup_arrive();
    CUTE_UNROLL
    for (int k_block = 0; k_block < size<2>(tCrA); ++k_block) {
      cute::gemm(tiled_mma, tCrA(_, _, k_block, state.stage), tCrB(_, _, k_block, state.stage), tCrC);
      tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_commit_batch();
    warpgroup_wait<1>();  // the products of the previous stage are complete
    warpgroup_fence_operand(tCrC);
    if (k_tile > 0) pipeline.consumer_release(previous, place);
    previous = state.stage;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(tCrC);
  pipeline.consumer_release(previous, place);  // there is at least one k-tile: maps have no empty matrices
}

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
CUTE_DEVICE void gemm(Problem const& problem, TensorMaps const& maps) {
  using CtaTiler = typename Policy::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  using Place = PlaceOf<Policy>;
  constexpr int sharing = size(typename Policy::TiledMma{}) / 128;  // consumers of one tile
  static_assert(sharing == (Policy::pingpong ? 1 : Policy::consumers), "consumers share a tile, or alternate between tiles");
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  Place const place;
  int const warp = atoms::warp_index();
  int const consumer = warp / 4;  // warpgroup; the producer follows the last consumer
  int const k_tiles = ceil_div(problem.k, int(size<2>(CtaTiler{})));
  Scheduler<ClusterTile<Policy>> scheduler(problem, atoms::cta_x() / Place::size, atoms::grid_x() / Place::size);
  auto& barriers = shared.barriers;
  PipelineState<stages<Policy>> state;
  Work work;

  // ---- Barriers ---------------------------------------------------------------------------------------------------
  if (warp == 0 && elect_one_sync()) {
    prefetch_tma_descriptor(&maps.a);
    prefetch_tma_descriptor(&maps.b);
    barriers.pipeline.init(sharing);
    barriers.order[0].init(1);
    barriers.order[1].init(1);
    cutlass::arch::fence_barrier_init();
  }
  if constexpr (Place::size > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    atoms::cta_barrier();
  }

  // ---- Wait for the previous grid (programmatic dependent launch), then allow the next -----------------------------
  atoms::wait_on_dependent_grids();
  atoms::launch_dependent_grids();

  if (consumer < Policy::consumers) {
    // ---- Consumers ------------------------------------------------------------------------------------------------
    if constexpr (Policy::consumer_registers > 0) atoms::setmaxnreg_inc<Policy::consumer_registers>();
    int const warpgroup = Policy::pingpong ? 0 : consumer;
    Epilogue<Policy> epilogue{problem, &maps.d, shared.d.of[consumer].begin(), consumer, warp % 4 == 0 && elect_one_sync()};
    uint32_t order_phase = consumer == 0;  // the first consumer begins
    for (int owner = 0; scheduler.next(work); owner ^= 1) {
      if (Policy::pingpong && owner != consumer) {
        state.advance(k_tiles);  // the other consumer's tile
        continue;
      }
      Tensor tCrC = partition_fragment_C(typename Policy::TiledMma{}, take<0, 2>(CtaTiler{}));  // (MMA, MMA_M, 1)
      if constexpr (Policy::pingpong) {
        barriers.order[consumer].wait(order_phase);
        order_phase ^= 1;
      }
      multiply_tile<Policy>(tCrC, k_tiles, warpgroup, place, shared, state);
      if (Policy::pingpong && atoms::thread_index() % 128 == 0) barriers.order[1 - consumer].arrive();
      CtaTile<Policy> const tile(work, place);
      epilogue.run(tCrC, work.batch, tile.m * size<0>(CtaTiler{}) + warpgroup * 64, tile.n * size<1>(CtaTiler{}), sharing * 64);
    }
    epilogue.finish();
  } else {
    // ---- Producer -------------------------------------------------------------------------------------------------
    if constexpr (Policy::producer_registers > 0) atoms::setmaxnreg_dec<Policy::producer_registers>();
    if (warp == Policy::consumers * 4 && elect_one_sync()) {
      while (scheduler.next(work)) load_tile<Policy>(problem, maps, work, place, shared, state);
      if constexpr (Place::size > 1) barriers.pipeline.producer_finish(state);
    }
    atoms::warp_barrier();
  }
}

}  // namespace hgemm::cute_form
