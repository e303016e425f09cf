// The kernel of sm_90a: consumer warpgroups multiply by wgmma and finish the tiles that a producer loads.
//
// A Policy holds the numbers of one variant. D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). Where
// operands are swapped, the kernel's A is the problem's B transposed and its D the problem's transposed: few rows m then fill
// the n of an instruction, whose m is 64 at least.
#pragma once

#include <hgemm/cluster_k.cuh>
#include <hgemm/epilogue_sm90.cuh>
#include <hgemm/mainloop_sm90.cuh>
#include <hgemm/scheduler.cuh>
#include <hgemm/stream_k.cuh>

namespace hgemm {

template <class Policy>
inline constexpr bool streams = Policy::schedule == Schedule::stream_k;

template <class Policy>
struct SharedStorage {
  typename MainloopSm90<Policy>::Shared mainloop;
  typename EpilogueSm90<Policy>::Shared epilogue;
  typename MainloopSm90<Policy>::Barriers barriers;
  uint32_t is_last[streams<Policy> && Policy::pingpong ? Policy::consumers : 1];  // of those that share a tile along k
};

// The tiles of a cluster as one tile of the problem, for the scheduler.
template <class Policy>
struct ClusterTile : Policy {
  static constexpr int down = Policy::tile_m * Policy::cluster_m;
  static constexpr int across = Policy::tile_n * Policy::cluster_n;
  static constexpr int tile_m = Policy::swapped ? across : down;
  static constexpr int tile_n = Policy::swapped ? down : across;
};

// The threads that reduce together: the consumers, or the one that has the tile where they take tiles in turn.
template <class Policy>
struct ConsumerThreads {
  static constexpr int count = (Policy::pingpong ? 1 : Policy::consumers) * 128;

  HGEMM_DEVICE static int index() { return Policy::pingpong ? atoms::thread_index() % count : atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() {
    atoms::named_barrier(1 + (Policy::pingpong ? atoms::warp_index() / 4 : Policy::consumers), count);
  }
};

// A piece of work as a CTA of the cluster takes it.
template <class Policy>
struct CtaWork {
  int m_first, n_first;  // first element of the kernel's D
  int k_first, k_count;  // in k-tiles

  HGEMM_DEVICE CtaWork(Work const& work, ClusterPlace<Policy> const& place, int k_tiles) {
    int const down = Policy::swapped ? work.tile_n : work.tile_m, across = Policy::swapped ? work.tile_m : work.tile_n;
    m_first = (down * Policy::cluster_m + place.row) * Policy::tile_m;
    n_first = (across * Policy::cluster_n + place.column) * Policy::tile_n;
    if constexpr (streams<Policy>) {
      k_first = work.k_first;
      k_count = work.k_count;
    } else {
      k_first = first_k_tile<Policy>(k_tiles, work.split);
      k_count = first_k_tile<Policy>(k_tiles, work.split + 1) - k_first;
    }
  }
};

template <class Policy>
HGEMM_DEVICE void gemm_sm90(Problem const& problem, TensorMaps const& maps) {
  static_assert(Policy::consumer_m * (Policy::pingpong ? 1 : Policy::consumers) == Policy::tile_m,
                "consumers share a tile by rows, or take tiles in turn");
  using Mainloop = MainloopSm90<Policy>;
  static_assert(Policy::threads == Policy::consumers * 128 + (Policy::producer_registers > 0 || !Mainloop::by_tma ? 128 : 32),
                "after the consumers a producer: a warp, or a warpgroup where registers change hands or its threads copy");
  using Accumulators = WarpgroupAccumulators<Policy>;
  using Place = ClusterPlace<Policy>;
  using Reduction = ClusterK<Policy, Accumulators, ConsumerThreads<Policy>>;
  static constexpr bool in_cluster = Policy::schedule == Schedule::cluster_k;
  static_assert(!in_cluster || (Place::size == 1 && sizeof(typename Mainloop::Shared) >= Reduction::bytes),
                "a cluster that splits k shares no operand, and its sums fit the stages");
  // Beside producers that copy consumers have fewer registers, and what both keep from before they part, ptxas spills.
  static constexpr bool each_counts_tiles = streams<Policy> && !Mainloop::by_tma;
  static constexpr int at_once =
      loads_at_once(Accumulators::mma_m * Accumulators::mma_n, !Mainloop::by_tma, sizeof(typename Policy::Out) == 4);
  // Of halves, one block of rows after another is added up as floats: all of them may be more than there are registers.
  static constexpr bool by_blocks = Accumulators::in_pairs && Accumulators::mma_m > 1;
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  Place const place;
  int const warp = atoms::warp_index();
  int const consumer = warp / 4;  // warpgroup; the producer comes after the last of them
  int const k_tiles = Mainloop::by_tma || problem.k > 0 ? (problem.k + Policy::tile_k - 1) / Policy::tile_k : 1;
  uint32_t const worker = atoms::cta_x() / Place::size;
  using Tiles = typename SchedulerOf<ClusterTile<Policy>>::Type;
  Tiles scheduler(problem, worker, atoms::grid_x() / Place::size);
  Mainloop mainloop(shared.mainloop, shared.barriers, place);
  Work work;

  // ---- Barriers, before anyone of the cluster uses them --------------------------------------------------------------
  if (warp == 0 && atoms::elect_one()) {
    if constexpr (Mainloop::by_tma) {
      atoms::tma_prefetch(maps.a);
      atoms::tma_prefetch(maps.b);
    }
    Mainloop::init(shared.barriers);
    atoms::mbarrier_init_fence();
  }
  if constexpr (Place::size > 1) {
    atoms::cluster_arrive();
    atoms::cluster_wait();
  } else {
    atoms::cta_barrier();
  }

  // ---- What came before must have ended; then what follows may begin its own barriers ------------------------------
  atoms::await_previous_launches();
  atoms::next_launch_may_begin();

  if (consumer < Policy::consumers) {
    // ---- Consumers -------------------------------------------------------------------------------------------------
    if constexpr (Policy::consumer_registers > 0) atoms::registers_increase<Policy::consumer_registers>();
    if constexpr (each_counts_tiles) scheduler = Tiles(problem, worker, atoms::grid_x());
    int const m_offset = Policy::pingpong ? 0 : consumer * Policy::consumer_m;
    EpilogueSm90<Policy> epilogue(problem, maps.d, shared.epilogue, consumer, warp % 4 == 0 && atoms::elect_one());
    for (int turn = 0; scheduler.next(work); turn ^= 1) {
      CtaWork<Policy> const mine(work, place, k_tiles);
      if (Policy::pingpong && turn != consumer) {
        mainloop.ring.skip(mine.k_count);  // the other consumer's tile
        continue;
      }
      Accumulators accumulators;  // (consumer_m, tile_n)
      // No product adds these zeros; but registers that one may read before they are written are never free for others.
      if constexpr (streams<Policy>) accumulators.clear();
      mainloop.await_turn(consumer);
      mainloop.multiply(accumulators, m_offset, mine.k_count);
      mainloop.pass_turn(consumer);
      if constexpr (Policy::schedule == Schedule::split_k) {
        if (mine.k_count == 0) accumulators.clear();
        Sums<Accumulators> sums;
        work.tile = work.tile * Place::size + place.rank;
        uint32_t const tiles = scheduler.tiles() * Place::size;
        if (SplitK<Policy, Accumulators, ConsumerThreads<Policy>>::reduce(accumulators, sums, problem, work, tiles,
                                                                          shared.is_last[0])) {
          epilogue.run(sums, work.batch, mine.m_first + m_offset, mine.n_first);
        }
      } else if constexpr (streams<Policy>) {
        using Reduction = StreamK<Policy, Accumulators, ConsumerThreads<Policy>, at_once>;
        uint32_t& is_last = shared.is_last[Policy::pingpong ? consumer : 0];
        if constexpr (!by_blocks) {
          Sums<Accumulators> sums;
          if (Reduction::reduce(accumulators, sums, problem, scheduler, work, worker, is_last, place.rank, Place::size)) {
            epilogue.run(sums, work.batch, mine.m_first + m_offset, mine.n_first);
          }
        } else if (mine.k_count == int(scheduler.k_tiles)) {
          epilogue.run(accumulators, work.batch, mine.m_first + m_offset, mine.n_first);
        } else {
          Sharers sharers;
          bool const adds_up = Reduction::leave(accumulators, sharers, problem, scheduler, work, worker, is_last, place.rank,
                                                Place::size);
          HGEMM_NO_UNROLL
          for (int block = 0; block < (adds_up ? Accumulators::mma_m : 0); ++block) {
            Sums<OneBlock<Accumulators>> sums;  // (64, tile_n)
            Reduction::add_up(sums, sharers, block * Accumulators::mma_n);
            epilogue.run(sums, work.batch, mine.m_first + m_offset + block * 64, mine.n_first);
          }
        }
      } else if constexpr (in_cluster) {
        if (mine.k_count == 0) accumulators.clear();
        Reduction::leave(accumulators, &shared.mainloop);
        atoms::cluster_arrive();
        atoms::cluster_wait();
        if (work.split == 0) {
          Sums<Accumulators> sums;
          Reduction::add_up(sums, &shared.mainloop);
          epilogue.run(sums, work.batch, mine.m_first + m_offset, mine.n_first);
        }
      } else {
        epilogue.run(accumulators, work.batch, mine.m_first + m_offset, mine.n_first);
      }
    }
    epilogue.finish();
  } else {
    // ---- Producer --------------------------------------------------------------------------------------------------
    if constexpr (Policy::producer_registers > 0) atoms::registers_decrease<Policy::producer_registers>();
    if constexpr (each_counts_tiles) scheduler = Tiles(problem, worker, atoms::grid_x());
    if (!Mainloop::by_tma || (warp == Policy::consumers * 4 && atoms::elect_one())) {
      while (scheduler.next(work)) {
        CtaWork<Policy> const mine(work, place, k_tiles);
        mainloop.load(maps, problem, work.batch, mine.m_first, mine.n_first, mine.k_first, mine.k_count);
      }
    }
    if constexpr (!Mainloop::by_tma) atoms::cp_async_wait<0>();
    atoms::warp_barrier();
    if constexpr (in_cluster) {  // where the consumers leave their sums
      atoms::cluster_arrive();
      atoms::cluster_wait();
    }
  }

  // ---- A CTA's shared memory must outlive what its cluster sends there ---------------------------------------------
  if constexpr (Place::size > 1 || in_cluster) {
    atoms::cluster_arrive();
    atoms::cluster_wait();
  }
}

// Of kernels that take no maps: threads copy A and B, and store D.
template <class Policy>
HGEMM_DEVICE void gemm_sm90(Problem const& problem) {
  TensorMaps const none = {};
  gemm_sm90<Policy>(problem, none);
}

}  // namespace hgemm
