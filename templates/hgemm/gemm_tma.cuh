// The kernel on mma.sync whose tiles come by TMA: warps multiply and finish the tiles that one thread of a producer loads.
//
// A Policy holds the numbers of one variant. D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias).
#pragma once

#include <hgemm/epilogue.cuh>
#include <hgemm/mainloop_tma.cuh>
#include <hgemm/scheduler.cuh>
#include <hgemm/split_k.cuh>

namespace hgemm {

// The threads that multiply: those before the producer's.
template <class Policy>
struct MultiplyingThreads {
  static constexpr int count = Policy::warps_m * Policy::warps_n * 32;

  HGEMM_DEVICE static int index() { return atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() { atoms::named_barrier(1, count); }
};

// The stages have the next tile while D of this one is staged.
template <class Policy>
struct SharedStorage {
  typename MainloopTma<Policy>::Shared mainloop;
  typename Epilogue<Policy, MultiplyingThreads<Policy>>::Shared epilogue;
  typename MainloopTma<Policy>::Barriers barriers;
  uint32_t is_last_split;
};

// The k-tiles [first, last) of a split.
template <class Policy>
struct KTiles {
  int first, last;

  HGEMM_DEVICE KTiles(Problem const& problem, int split) {
    int const k_tiles = (problem.k + Policy::tile_k - 1) / Policy::tile_k;
    first = first_k_tile<Policy>(k_tiles, split);
    last = first_k_tile<Policy>(k_tiles, split + 1);
  }
};

// What the producer's thread does.
template <class Policy>
HGEMM_DEVICE void load_tiles(Problem const& problem, TensorMaps const& maps, MainloopTma<Policy>& mainloop) {
  Scheduler<Policy> scheduler(problem);
  Work work;
  while (scheduler.next(work)) {
    KTiles<Policy> const k(problem, work.split);
    mainloop.load(maps, problem, work.batch, work.tile_m * Policy::tile_m, work.tile_n * Policy::tile_n, k.first,
                  k.last - k.first);
  }
}

// What the other warps do. Where a tile lies is worked out after its products, which leave no registers for it.
template <class Policy>
HGEMM_DEVICE void finish_tiles(Problem const& problem, MainloopTma<Policy>& mainloop, SharedStorage<Policy>& shared) {
  using Threads = MultiplyingThreads<Policy>;
  Scheduler<Policy> scheduler(problem);
  while (scheduler.has_more()) {
    uint32_t const item = scheduler.item;
    KTiles<Policy> const k(problem, item % Policy::splits);
    scheduler.advance();
    Accumulators<Policy> accumulators;  // (warp_m, warp_n) of each warp
    accumulators.clear();
    mainloop.multiply(accumulators, k.last - k.first, scheduler.has_more());
    Work const work = scheduler.work_of(item);
    Epilogue<Policy, Threads> const epilogue(problem, work.batch, work.tile_m * Policy::tile_m,
                                             work.tile_n * Policy::tile_n);
    if constexpr (Policy::schedule == Schedule::split_k) {
      using Reduction = SplitK<Policy, Accumulators<Policy>, Threads>;
      Sums<Accumulators<Policy>> sums;
      if (Reduction::reduce(accumulators, sums, problem, work, scheduler.tiles(), shared.is_last_split)) {
        epilogue.run(sums, shared.epilogue);
      }
    } else {
      epilogue.run(accumulators, shared.epilogue);
    }
  }
}

template <class Policy>
HGEMM_DEVICE void gemm_tma(Problem const& problem, TensorMaps const& maps) {
  using Mainloop = MainloopTma<Policy>;
  using Threads = MultiplyingThreads<Policy>;
  static_assert(Policy::threads == Threads::count + (Policy::producer_registers > 0 ? 128 : 32),
                "after those that multiply a producer: a warp, or a warpgroup where registers change hands");
  static_assert(Policy::tile_m == Policy::warps_m * Policy::warp_m && Policy::tile_n == Policy::warps_n * Policy::warp_n,
                "warp tiles must fill the CTA tile");
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  ClusterPlace<Policy> const alone;
  int const warp = atoms::warp_index();
  Mainloop mainloop(shared.mainloop, shared.barriers, alone);

  // ---- Barriers, before anyone uses them ----------------------------------------------------------------------------
  if (warp == 0 && atoms::elect_one()) {
    atoms::tma_prefetch(maps.a);
    atoms::tma_prefetch(maps.b);
    Mainloop::init(shared.barriers);
    atoms::mbarrier_init_fence();
  }
  atoms::cta_barrier();

  // ---- What came before must have ended; then what follows may begin its own barriers -------------------------------
  atoms::await_previous_launches();
  atoms::next_launch_may_begin();

  // ---- Warps that multiply, and a producer --------------------------------------------------------------------------
  if (warp < Mainloop::warps) {
    if constexpr (Policy::consumer_registers > 0) atoms::registers_increase<Policy::consumer_registers>();
    finish_tiles<Policy>(problem, mainloop, shared);
  } else {
    if constexpr (Policy::producer_registers > 0) atoms::registers_decrease<Policy::producer_registers>();
    if (warp == Mainloop::warps && atoms::elect_one()) load_tiles<Policy>(problem, maps, mainloop);
    atoms::warp_barrier();
  }
}

}  // namespace hgemm
