// The kernel of sm_90a: a producer warpgroup loads by TMA, consumer warpgroups multiply by wgmma and finish the tiles.
//
// A Policy holds the numbers of one variant. D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias).
#pragma once

#include <hgemm/epilogue_sm90.cuh>
#include <hgemm/mainloop_sm90.cuh>
#include <hgemm/scheduler.cuh>

namespace hgemm {

template <class Policy>
struct SharedStorage {
  typename MainloopSm90<Policy>::Shared mainloop;
  typename EpilogueSm90<Policy>::Shared epilogue;
  typename MainloopSm90<Policy>::Barriers barriers;
};

// The tiles of a cluster as one, for the scheduler.
template <class Policy>
struct ClusterTile : Policy {
  static constexpr int tile_m = Policy::tile_m * Policy::cluster_m;
  static constexpr int tile_n = Policy::tile_n * Policy::cluster_n;
};

template <class Policy>
HGEMM_DEVICE void gemm_sm90(Problem const& problem, TensorMaps const& maps) {
  static_assert(Policy::threads == (Policy::consumers + 1) * 128, "a producer warpgroup and the consumers");
  static_assert(Policy::consumer_m * (Policy::pingpong ? 1 : Policy::consumers) == Policy::tile_m,
                "consumers share a tile by rows, or take tiles in turn");
  using Mainloop = MainloopSm90<Policy>;
  using Place = ClusterPlace<Policy>;
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  Place const place;
  int const warpgroup = atoms::warpgroup_index();
  int const k_tiles = (problem.k + Policy::tile_k - 1) / Policy::tile_k;
  Scheduler<ClusterTile<Policy>> scheduler(problem, atoms::cta_x() / Place::size, atoms::grid_x() / Place::size);
  Mainloop mainloop(shared.mainloop, shared.barriers, place);
  Work work;

  // ---- Barriers, before anyone of the cluster uses them --------------------------------------------------------------
  if (atoms::thread_index() == 0) {
    atoms::tma_prefetch(maps.a);
    atoms::tma_prefetch(maps.b);
    Mainloop::init(shared.barriers);
    atoms::mbarrier_init_fence();
  }
  if constexpr (Place::size > 1) {
    atoms::cluster_arrive();
    atoms::cluster_wait();
  } else {
    atoms::cta_barrier();
  }

  if (warpgroup == 0) {
    // ---- Producer ------------------------------------------------------------------------------------------------------
    if constexpr (Policy::producer_registers > 0) atoms::registers_decrease<Policy::producer_registers>();
    if (atoms::thread_index() == 0) {
      while (scheduler.next(work)) {
        int const m_first = (work.tile_m * Policy::cluster_m + place.row) * Policy::tile_m;
        int const n_first = (work.tile_n * Policy::cluster_n + place.column) * Policy::tile_n;
        int const k_first = int(int64_t(k_tiles) * work.split / Policy::splits);
        int const k_last = int(int64_t(k_tiles) * (work.split + 1) / Policy::splits);
        mainloop.load(maps, problem, work.batch, m_first, n_first, k_first, k_last - k_first);
      }
    }
    atoms::warp_barrier();
  } else {
    // ---- Consumers -----------------------------------------------------------------------------------------------------
    if constexpr (Policy::consumer_registers > 0) atoms::registers_increase<Policy::consumer_registers>();
    int const consumer = warpgroup - 1;
    int const m_offset = Policy::pingpong ? 0 : consumer * Policy::consumer_m;
    EpilogueSm90<Policy> epilogue(problem, maps.d, shared.epilogue, consumer);
    for (int turn = 0; scheduler.next(work); turn ^= 1) {
      int const m_first = (work.tile_m * Policy::cluster_m + place.row) * Policy::tile_m + m_offset;
      int const n_first = (work.tile_n * Policy::cluster_n + place.column) * Policy::tile_n;
      int const k_first = int(int64_t(k_tiles) * work.split / Policy::splits);
      int const k_last = int(int64_t(k_tiles) * (work.split + 1) / Policy::splits);
      if (Policy::pingpong && turn != consumer) {
        mainloop.ring.skip(k_last - k_first);  // the other consumer's tile
        continue;
      }
      WarpgroupAccumulators<Policy> accumulators;  // (consumer_m, tile_n)
      mainloop.await_turn(consumer);
      mainloop.multiply(accumulators, m_offset, k_last - k_first);
      mainloop.pass_turn(consumer);
      epilogue.run(accumulators, work.batch, m_first, n_first);
    }
    epilogue.finish();
  }

  // ---- A CTA's shared memory must outlive what its cluster sends there ----------------------------------------------------
  if constexpr (Place::size > 1) {
    atoms::cluster_arrive();
    atoms::cluster_wait();
  }
}

}  // namespace hgemm
