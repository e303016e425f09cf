// The kernel on mma.sync and TMA: one thread of a producer loads tiles; the other warps multiply and store them.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). A Policy holds the constants of one kernel.
#pragma once

#include <common/split_k.cuh>
#include <common/warp_epilogue.cuh>
#include <mma_sync_tma/mainloop.cuh>

namespace hgemm {

// ---- Types --------------------------------------------------------------------------------------------------------

// The threads that multiply. They come before the producer's.
template <class Policy>
struct ConsumerThreads {
  static constexpr int count = Policy::warps_m * Policy::warps_n * 32;
  static constexpr bool epilogue_overwrites_flags = false;

  HGEMM_DEVICE static int index() { return atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() { atoms::named_barrier(1, count); }
};

// The epilogue has memory of its own: the stages receive the next tile while D of this one is stored.
template <class Policy>
struct SharedStorage {
  typename Mainloop<Policy>::Shared mainloop;
  typename WarpEpilogue<Policy, ConsumerThreads<Policy>>::Shared epilogue;
  typename Mainloop<Policy>::Barriers barriers;
  uint32_t is_last;  // whether this CTA is the last of those that share a tile along k
};

template <class Policy>
HGEMM_DEVICE int k_tiles_of(Problem const& problem) {
  return (problem.k + Policy::tile_k - 1) / Policy::tile_k;
}

// ---- Producer: one thread -----------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void produce(Problem const& problem, TensorMaps const& maps, Mainloop<Policy>& mainloop) {
  Scheduler<Policy> scheduler(problem);
  Work work;
  while (scheduler.next(work)) {
    KRange const k = k_range(k_tiles_of<Policy>(problem), work);
    mainloop.load(maps, problem, work.batch, work.tile_m * Policy::tile_m, work.tile_n * Policy::tile_n, k.first,
                  k.count);
  }
}

// ---- Consumers: the other warps -----------------------------------------------------------------------------------

// A tile's place is computed after its products, which leave no registers for it.
template <class Policy>
HGEMM_DEVICE void consume(Problem const& problem, Mainloop<Policy>& mainloop, SharedStorage<Policy>& shared) {
  using Threads = ConsumerThreads<Policy>;
  using Accumulators = WarpAccumulators<Policy>;
  Scheduler<Policy> scheduler(problem);
  while (scheduler.has_more()) {
    uint32_t const item = scheduler.item;
    KRange const k = k_range(k_tiles_of<Policy>(problem), scheduler.split_of(item));
    scheduler.advance();
    Accumulators accumulators;  // (warp_m, warp_n) of each warp
    accumulators.clear();
    mainloop.multiply(accumulators, k.count, scheduler.has_more());
    Work const work = scheduler.work_of(item);
    WarpEpilogue<Policy, Threads> const epilogue(problem, work.batch, work.tile_m * Policy::tile_m,
                                                 work.tile_n * Policy::tile_n);
    if constexpr (Policy::schedule == Schedule::split_k || Policy::schedule == Schedule::launch) {
      using Reduction = SplitK<Policy, Accumulators, Threads>;
      AccumulatorsF32<Accumulators> sums;  // (warp_m, warp_n) of each warp
      if (work.splits == 1) {
        epilogue.run(accumulators, shared.epilogue);
      } else if (Reduction::reduce(accumulators, sums, problem, work, shared.is_last)) {
        epilogue.run(sums, shared.epilogue);
      }
    } else {
      epilogue.run(accumulators, shared.epilogue);
      if constexpr (has_reductions<Policy>) {
        Reduction<Policy, Accumulators, Threads, Policy::warp_n>::finish(
            problem, work.batch, work.tile_m * Policy::tile_m, work.tile_n * Policy::tile_n, shared.is_last);
      }
    }
  }
}

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem, TensorMaps const& maps) {
  using Threads = ConsumerThreads<Policy>;
  static_assert(Policy::threads == Threads::count + (Policy::producer_registers > 0 ? 128 : 32),
                "the producer has 32 threads, or 128 if it uses setmaxnreg");
  static_assert(Policy::tile_m == Policy::warps_m * Policy::warp_m && Policy::tile_n == Policy::warps_n * Policy::warp_n,
                "warp tiles must fill the CTA tile");
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  ClusterPlace<Policy> const alone;
  int const warp = atoms::warp_index();
  Mainloop<Policy> mainloop(shared.mainloop, shared.barriers, alone);

  // ---- Barriers ----------------------------------------------------------------------------------------------------
  if (warp == 0 && atoms::elect_one()) {
    atoms::tma_prefetch(maps.a);
    atoms::tma_prefetch(maps.b);
    Mainloop<Policy>::init(shared.barriers);
    atoms::mbarrier_init_fence();
  }
  atoms::cta_barrier();

  // ---- Wait for the previous grid (programmatic dependent launch), then allow the next ------------------------------
  atoms::wait_on_dependent_grids();
  atoms::launch_dependent_grids();

  // ---- Consumers and producer --------------------------------------------------------------------------------------
  if (warp < Mainloop<Policy>::warps) {
    if constexpr (Policy::consumer_registers > 0) atoms::setmaxnreg_inc<Policy::consumer_registers>();
    consume<Policy>(problem, mainloop, shared);
  } else {
    if constexpr (Policy::producer_registers > 0) atoms::setmaxnreg_dec<Policy::producer_registers>();
    if (warp == Mainloop<Policy>::warps && atoms::elect_one()) produce<Policy>(problem, maps, mainloop);
    atoms::warp_barrier();
  }
}

}  // namespace hgemm
