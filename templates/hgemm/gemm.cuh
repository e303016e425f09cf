// The kernel on mma.sync: scheduler, mainloop and epilogue, which know nothing of one another.
//
// A Policy holds the numbers of one variant; generator/plan.py works them out and templates/examples/ shows one written by
// hand. D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias).
#pragma once

#include <hgemm/epilogue.cuh>
#include <hgemm/scheduler.cuh>
#include <hgemm/stream_k.cuh>

namespace hgemm {

// The stages of the mainloop and, in the same place once those are done with, what follows it.
template <class Policy, class Mainloop>
union CtaStorage {
  typename Mainloop::Shared mainloop;
  typename Epilogue<Policy>::Shared epilogue;
  uint32_t is_last;  // of those that share a tile along k
};

template <class Policy, class Mainloop>
HGEMM_DEVICE void gemm(Problem const& problem, CtaStorage<Policy, Mainloop>& shared) {
  static_assert(Policy::threads == Policy::warps_m * Policy::warps_n * 32, "a warp computes one warp tile");
  static_assert(Policy::tile_m == Policy::warps_m * Policy::warp_m && Policy::tile_n == Policy::warps_n * Policy::warp_n,
                "warp tiles must fill the CTA tile");

  static constexpr bool streams = Policy::schedule == Schedule::stream_k;
  typename SchedulerOf<Policy>::Type scheduler(problem);
  int const k_tiles = (problem.k + Policy::tile_k - 1) / Policy::tile_k;

  Work work;
  while (scheduler.next(work)) {
    // ---- This CTA's place: tile (tile_m, tile_n) of D, k-tiles [k_first, k_last) -----------------------------------
    int const m_first = work.tile_m * Policy::tile_m;
    int const n_first = work.tile_n * Policy::tile_n;
    int const k_first = streams ? work.k_first : first_k_tile<Policy>(k_tiles, work.split);
    int const k_last = streams ? k_first + work.k_count : first_k_tile<Policy>(k_tiles, work.split + 1);

    // ---- Mainloop --------------------------------------------------------------------------------------------------
    Accumulators<Policy> accumulators;  // (warp_m, warp_n) of each warp
    accumulators.clear();
    Mainloop mainloop(shared.mainloop, problem, work.batch, m_first, n_first, k_first, k_last - k_first);
    mainloop.run(accumulators);

    // ---- Epilogue --------------------------------------------------------------------------------------------------
    Epilogue<Policy> const epilogue(problem, work.batch, m_first, n_first);
    if constexpr (Policy::schedule == Schedule::split_k) {
      using Reduction = SplitK<Policy, Accumulators<Policy>>;
      Sums<Accumulators<Policy>> sums;
      if (Reduction::reduce(accumulators, sums, problem, work, scheduler.tiles(), shared.is_last)) {
        epilogue.run(sums, shared.epilogue);
      }
    } else if constexpr (streams) {
      using Reduction = StreamK<Policy, Accumulators<Policy>>;
      Sums<Accumulators<Policy>> sums;
      if (Reduction::reduce(accumulators, sums, problem, scheduler, work, atoms::cta_x(), shared.is_last)) {
        epilogue.run(sums, shared.epilogue);
      }
    } else {
      epilogue.run(accumulators, shared.epilogue);
    }
    atoms::cta_barrier();  // the next piece of work overwrites shared memory
  }
}

// Where the shared memory of a CTA comes from: its size is said at the launch, or is in the code (48 KiB at most).
enum class Allocated { dynamically, statically };

template <class Policy, class Mainloop, Allocated ALLOCATED>
HGEMM_DEVICE void gemm(Problem const& problem) {
  using Storage = CtaStorage<Policy, Mainloop>;
  if constexpr (ALLOCATED == Allocated::statically) {
    HGEMM_STATIC_SHARED(Storage, shared);
    gemm<Policy, Mainloop>(problem, shared);
  } else {
    HGEMM_SHARED(Storage, shared);
    gemm<Policy, Mainloop>(problem, shared);
  }
}

}  // namespace hgemm
