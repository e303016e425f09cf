// The kernel of sm_90a in CuTe's vocabulary: a producer that loads by TMA, a TiledMMA of consumer warpgroups on wgmma.
//
// A Kernel holds the types and numbers of one variant, which the emitted text spells out. The parameters, the order of tiles,
// the roles of warpgroups and what is swapped are those of hgemm/gemm_sm90.cuh.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/cute/epilogue_sm90.cuh>
#include <hgemm/cute/operand_sm90.cuh>
#include <hgemm/cute/pipeline_sm90.cuh>
#include <hgemm/scheduler.cuh>

namespace hgemm::with_cute {

using namespace cute;

// The maps of the problem's A and B, and of D if the TMA stores it.
struct TensorMaps {
  TmaDescriptor a, b, d;
};
static_assert(sizeof(TensorMaps) == 384, "the launchers pack this struct by hand");

template <class Kernel>
constexpr int stages = size<2>(typename Kernel::SmemLayoutA{});

template <class Kernel>
struct SharedStorage {
  alignas(1024) ArrayEngine<typename Kernel::Element, cosize_v<typename Kernel::SmemLayoutA>> a;  // (BLK_M, BLK_K, PIPE)
  alignas(1024) ArrayEngine<typename Kernel::Element, cosize_v<typename Kernel::SmemLayoutB>> b;  // (BLK_N, BLK_K, PIPE)
  struct alignas(1024) {
    ArrayEngine<typename Kernel::ElementOut, cosize_v<typename Kernel::SmemLayoutD>> of[Kernel::consumers];
  } d;  // (EPI_M, EPI_N, PIPE_D) each
  struct alignas(1024) {
    TmaPipeline<typename Kernel::ClusterShape, stages<Kernel>> pipeline;
    ClusterBarrier turn[2];  // the other consumer has multiplied its tile, where they take tiles in turn
  } barriers;
};

// Tensor instructions that one warpgroup issues for a k-tile.
template <class Kernel>
constexpr int wgmma_per_k_tile = size(typename Kernel::CtaTiler{}) / size(typename Kernel::TiledMma::AtomShape_MNK{}) /
                                 (size(typename Kernel::TiledMma{}) / 128);

// The tiles of a cluster as one tile of the problem, for the scheduler.
template <class Kernel>
struct ClusterTile : Kernel {
  static constexpr int down = size<0>(typename Kernel::CtaTiler{}) * size<0>(typename Kernel::ClusterShape{});
  static constexpr int across = size<1>(typename Kernel::CtaTiler{}) * size<1>(typename Kernel::ClusterShape{});
  static constexpr int tile_m = Kernel::swapped ? across : down;
  static constexpr int tile_n = Kernel::swapped ? down : across;
};

// The tile of a CTA in a cluster's piece of work, in CTA tiles of D as the kernel sees it.
template <class Kernel>
struct CtaTile {
  int m, n;

  CUTE_DEVICE CtaTile(Work const& work, PlaceOf<Kernel> const& place) {
    int const down = Kernel::swapped ? work.tile_n : work.tile_m, across = Kernel::swapped ? work.tile_m : work.tile_n;
    m = down * size<0>(typename Kernel::ClusterShape{}) + place.row;
    n = across * size<1>(typename Kernel::ClusterShape{}) + place.column;
  }
};

// ---- Producer: one thread -----------------------------------------------------------------------------------------

template <class Kernel, class State>
CUTE_DEVICE void load_tile(Problem const& problem, TensorMaps const& maps, Work const& work, PlaceOf<Kernel> const& place,
                           SharedStorage<Kernel>& shared, State& state) {
  using CtaTiler = typename Kernel::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  using ClusterShape = typename Kernel::ClusterShape;
  using Element = typename Kernel::Element;
  constexpr bool swapped = Kernel::swapped;
  constexpr uint32_t stage_bytes = sizeof(Element) * (size<0>(CtaTiler{}) + size<1>(CtaTiler{})) * size<2>(CtaTiler{});

  // ---- The matrices as their maps count them, and this CTA's tiles ------------------------------------------------
  bool const a_repeats = (swapped ? problem.batch_stride_b : problem.batch_stride_a) == 0;  // one matrix serves the batch
  bool const b_repeats = (swapped ? problem.batch_stride_a : problem.batch_stride_b) == 0;
  Tensor mA = make_map_tensor<Kernel::a_k_major>(swapped ? problem.n : problem.m, problem.k, problem.batch,
                                                 a_repeats ? 0 : work.batch);  // (M, K)
  Tensor mB = make_map_tensor<Kernel::b_k_major>(swapped ? problem.m : problem.n, problem.k, problem.batch,
                                                 b_repeats ? 0 : work.batch);  // (N, K)
  CtaTile<Kernel> const tile(work, place);
  auto const cta_coord = make_coord(tile.m, tile.n, _);                                      // (m, n, k)
  Tensor gA = local_tile(mA, CtaTiler{}, cta_coord, Step<_1, X, _1>{});                      // (BLK_M, BLK_K, k)
  Tensor gB = local_tile(mB, CtaTiler{}, cta_coord, Step<X, _1, _1>{});                      // (BLK_N, BLK_K, k)
  Tensor sA = make_tensor(make_smem_ptr(shared.a.begin()), typename Kernel::SmemLayoutA{});  // (BLK_M, BLK_K, PIPE)
  Tensor sB = make_tensor(make_smem_ptr(shared.b.begin()), typename Kernel::SmemLayoutB{});  // (BLK_N, BLK_K, PIPE)

  // ---- Partitions: global to shared memory ------------------------------------------------------------------------
  typename Kernel::TmaLoadA const tma_a{swapped ? &maps.b : &maps.a, place.row_mask()};
  typename Kernel::TmaLoadB const tma_b{swapped ? &maps.a : &maps.b, place.column_mask()};
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

// Adds up a tile in tCrC (MMA, MMA_M, 1). `warpgroup` is its number in the TiledMMA.
template <class Kernel, class Accumulators, class State>
CUTE_DEVICE void multiply_tile(Accumulators& tCrC, int k_tiles, int warpgroup, PlaceOf<Kernel> const& place,
                               SharedStorage<Kernel>& shared, State& state) {
  Tensor sA = make_tensor(make_smem_ptr(shared.a.begin()), typename Kernel::SmemLayoutA{});  // (BLK_M, BLK_K, PIPE)
  Tensor sB = make_tensor(make_smem_ptr(shared.b.begin()), typename Kernel::SmemLayoutB{});  // (BLK_N, BLK_K, PIPE)

  // ---- Partitions: descriptors of shared memory -------------------------------------------------------------------
  typename Kernel::TiledMma tiled_mma;
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
    warpgroup_wait<1>();  // the stage before has been read
    warpgroup_fence_operand(tCrC);
    if (k_tile > 0) pipeline.consumer_release(previous, place);
    previous = state.stage;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(tCrC);
  pipeline.consumer_release(previous, place);  // there is a k-tile: maps have no empty matrices
}

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Kernel>
CUTE_DEVICE void gemm_sm90(Problem const& problem, TensorMaps const& maps) {
  using CtaTiler = typename Kernel::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  using Place = PlaceOf<Kernel>;
  constexpr int sharing = size(typename Kernel::TiledMma{}) / 128;  // consumers of one tile
  static_assert(sharing == (Kernel::pingpong ? 1 : Kernel::consumers), "consumers share a tile, or take tiles in turn");
  HGEMM_SHARED(SharedStorage<Kernel>, shared);

  Place const place;
  int const warp = atoms::warp_index();
  int const consumer = warp / 4;  // warpgroup; the producer comes after the last of them
  int const k_tiles = ceil_div(problem.k, int(size<2>(CtaTiler{})));
  Scheduler<ClusterTile<Kernel>> scheduler(problem, atoms::cta_x() / Place::size, atoms::grid_x() / Place::size);
  auto& barriers = shared.barriers;
  PipelineState<stages<Kernel>> state;
  Work work;

  // ---- Barriers, before anyone of the cluster uses them -----------------------------------------------------------
  if (warp == 0 && elect_one_sync()) {
    prefetch_tma_descriptor(&maps.a);
    prefetch_tma_descriptor(&maps.b);
    barriers.pipeline.init(sharing);
    barriers.turn[0].init(1);
    barriers.turn[1].init(1);
    cutlass::arch::fence_barrier_init();
  }
  if constexpr (Place::size > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    atoms::cta_barrier();
  }
  atoms::await_previous_launches();
  atoms::next_launch_may_begin();

  if (consumer < Kernel::consumers) {
    // ---- Consumers ------------------------------------------------------------------------------------------------
    if constexpr (Kernel::consumer_registers > 0) atoms::registers_increase<Kernel::consumer_registers>();
    int const warpgroup = Kernel::pingpong ? 0 : consumer;
    Epilogue<Kernel> epilogue{problem, &maps.d, shared.d.of[consumer].begin(), consumer, warp % 4 == 0 && elect_one_sync()};
    uint32_t turn_phase = consumer == 0;  // the first turn is the first consumer's
    for (int turn = 0; scheduler.next(work); turn ^= 1) {
      if (Kernel::pingpong && turn != consumer) {
        state.advance(k_tiles);  // the other consumer's tile
        continue;
      }
      Tensor tCrC = partition_fragment_C(typename Kernel::TiledMma{}, take<0, 2>(CtaTiler{}));  // (MMA, MMA_M, 1)
      if constexpr (Kernel::pingpong) {
        barriers.turn[consumer].wait(turn_phase);
        turn_phase ^= 1;
      }
      multiply_tile<Kernel>(tCrC, k_tiles, warpgroup, place, shared, state);
      if (Kernel::pingpong && atoms::thread_index() % 128 == 0) barriers.turn[1 - consumer].arrive();
      CtaTile<Kernel> const tile(work, place);
      epilogue.run(tCrC, work.batch, tile.m * size<0>(CtaTiler{}) + warpgroup * 64, tile.n * size<1>(CtaTiler{}), sharing * 64);
    }
    epilogue.finish();
  } else {
    // ---- Producer -------------------------------------------------------------------------------------------------
    if constexpr (Kernel::producer_registers > 0) atoms::registers_decrease<Kernel::producer_registers>();
    if (warp == Kernel::consumers * 4 && elect_one_sync()) {
      while (scheduler.next(work)) load_tile<Kernel>(problem, maps, work, place, shared, state);
    }
    atoms::warp_barrier();
  }

  // ---- A CTA's shared memory must outlive what its cluster sends there --------------------------------------------
  if constexpr (Place::size > 1) {
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace hgemm::with_cute
