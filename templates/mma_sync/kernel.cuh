// The kernel on mma.sync: a scheduler, a mainloop and an epilogue, which do not depend on each other.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). A Policy holds the constants of one kernel. The
// generator computes them; templates/examples/ explains each field.
#pragma once

#include <common/stream_k.cuh>
#include <common/warp_epilogue.cuh>
#include <mma_sync/mainloop.cuh>
#include <mma_sync/mainloop_register_copy.cuh>

namespace hgemm {

// ---- Types --------------------------------------------------------------------------------------------------------

template <class Policy, bool BY_CP_ASYNC = Policy::copy == Copy::cp_async>
struct MainloopOf { using Type = CpAsyncMainloop<Policy>; };
template <class Policy>
struct MainloopOf<Policy, false> { using Type = RegisterCopyMainloop<Policy>; };

template <class Policy>
using Mainloop = typename MainloopOf<Policy>::Type;

// The epilogue reuses the stages of the mainloop.
template <class Policy>
union SharedStorage {
  typename Mainloop<Policy>::Shared mainloop;
  typename WarpEpilogue<Policy>::Shared epilogue;
  uint32_t is_last;  // whether this CTA is the last of those that share a tile along k
};

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem, SharedStorage<Policy>& shared) {
  static_assert(Policy::threads == Policy::warps_m * Policy::warps_n * 32, "a warp computes one warp tile");
  static_assert(Policy::tile_m == Policy::warps_m * Policy::warp_m && Policy::tile_n == Policy::warps_n * Policy::warp_n,
                "warp tiles must fill the CTA tile");
  using Accumulators = WarpAccumulators<Policy>;

  static constexpr bool streams = Policy::schedule == Schedule::stream_k;
  static constexpr bool splits = Policy::schedule == Schedule::split_k || Policy::schedule == Schedule::launch;
  typename SchedulerOf<Policy>::Type scheduler(problem);
  int const k_tiles = (problem.k + Policy::tile_k - 1) / Policy::tile_k;

  Work work;
  while (scheduler.next(work)) {
    // ---- This CTA's tile (tile_m, tile_n) of D and its k-tiles -------------------------------------------------------
    int const m_first = work.tile_m * Policy::tile_m;
    int const n_first = work.tile_n * Policy::tile_n;
    KRange const k = streams ? KRange{work.k_first, work.k_count} : k_range(k_tiles, work);

    // ---- Mainloop --------------------------------------------------------------------------------------------------
    Accumulators accumulators;  // (warp_m, warp_n) of each warp
    accumulators.clear();
    Mainloop<Policy> mainloop(shared.mainloop, problem, work.batch, m_first, n_first, k.first, k.count);
    mainloop.run(accumulators);

    // ---- Epilogue --------------------------------------------------------------------------------------------------
    WarpEpilogue<Policy> const epilogue(problem, work.batch, m_first, n_first);
    if constexpr (splits) {
      using Reduction = SplitK<Policy, Accumulators>;
      AccumulatorsF32<Accumulators> sums;  // (warp_m, warp_n) of each warp
      if (work.splits == 1) {
        epilogue.run(accumulators, shared.epilogue);
      } else if (Reduction::reduce(accumulators, sums, problem, work, shared.is_last)) {
        epilogue.run(sums, shared.epilogue);
      }
    } else if constexpr (streams) {
      using Reduction = StreamK<Policy, Accumulators>;
      AccumulatorsF32<Accumulators> sums;  // (warp_m, warp_n) of each warp
      if (Reduction::reduce(accumulators, sums, problem, scheduler, work, atoms::cta_x(), shared.is_last)) {
        epilogue.run(sums, shared.epilogue);
      }
    } else {
      epilogue.run(accumulators, shared.epilogue);
      if constexpr (has_reductions<Policy>) {
        Reduction<Policy, Accumulators, CtaThreads<Policy>, Policy::warp_n>::finish(problem, work.batch, m_first, n_first,
                                                                                      shared.is_last);
      }
    }
    atoms::cta_barrier();  // the next tile overwrites shared memory
  }
}

template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem) {
  if constexpr (Policy::static_smem) {
    HGEMM_STATIC_SHARED(SharedStorage<Policy>, shared);
    gemm<Policy>(problem, shared);
  } else {
    HGEMM_SHARED(SharedStorage<Policy>, shared);
    gemm<Policy>(problem, shared);
  }
}

}  // namespace hgemm
