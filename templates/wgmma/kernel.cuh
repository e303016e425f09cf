// The wgmma kernel of sm_90a. A producer loads tiles of A and B. Consumer warpgroups multiply them and store D.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). A Policy holds the constants of one kernel.
//
// With swap_ab, the kernel computes D transposed, as B transposed times A transposed. The problem's m is then the n of wgmma.
// The m of wgmma is 64, but its n can be as small as 8. So swap_ab suits problems with few rows m.
#pragma once

#include <common/stream_k.cuh>
#include <wgmma/epilogue.cuh>
#include <wgmma/mainloop.cuh>
#include <wgmma/split_k_cluster.cuh>
#include <wgmma/split_k_shares.cuh>

namespace hgemm {

// ---- Types --------------------------------------------------------------------------------------------------------

template <class Policy>
inline constexpr bool is_stream_k = Policy::schedule == Schedule::stream_k;
template <class Policy>
inline constexpr bool is_at_launch = Policy::schedule == Schedule::launch;

// Whether whole tiles add k in the same parts as tiles that several CTAs share, so that all tiles of a launch have one order.
template <class Policy>
HGEMM_DEVICE constexpr bool adds_parts() {
  if constexpr (is_at_launch<Policy>) return Policy::serial_parts;
  return false;
}

template <class Policy>
inline constexpr int flags_of =
    (is_stream_k<Policy> || is_at_launch<Policy> || has_reductions<Policy>) && Policy::pingpong ? Policy::consumers : 1;

template <class Policy>
struct SharedStorage {
  typename Mainloop<Policy>::Shared mainloop;
  typename Epilogue<Policy>::Shared epilogue;
  typename Mainloop<Policy>::Barriers barriers;
  // Whether this CTA is the last to store its partials of a tile, or of a row of tiles. With pingpong, each consumer has a flag.
  // Or this CTA's share of a tile: see SplitKShares.
  uint32_t is_last[flags_of<Policy>];
};

// The scheduler hands out cluster tiles. A cluster tile holds the tiles of all CTAs of a cluster. tile_m and tile_n are its
// extents along the problem's m and n, even with swap_ab.
template <class Policy>
struct ClusterTile : Policy {
  static constexpr int kernel_m = Policy::tile_m * Policy::cluster_m;  // extents in the D that the kernel computes
  static constexpr int kernel_n = Policy::tile_n * Policy::cluster_n;
  static constexpr int tile_m = Policy::swap_ab ? kernel_n : kernel_m;
  static constexpr int tile_n = Policy::swap_ab ? kernel_m : kernel_n;
};

// The threads that reduce a tile together: all consumers. With pingpong, only the consumer that owns the tile.
template <class Policy>
struct ConsumerThreads {
  static constexpr int count = (Policy::pingpong ? 1 : Policy::consumers) * 128;
  static constexpr bool epilogue_overwrites_flags = false;

  HGEMM_DEVICE static int index() { return Policy::pingpong ? atoms::thread_index() % count : atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() {
    atoms::named_barrier(1 + (Policy::pingpong ? atoms::warp_index() / 4 : Policy::consumers), count);
  }
};

// The inputs of an expression for the first subtile of a tile. Kernels whose CTAs compute whole tiles load them before the k loop
// ends. With more than 96 bytes, ptxas may serialise wgmma (warning C7514).
template <class Policy, bool LOADS = Epilogue<Policy>::template loads_ahead<Policy, 96>() &&
                                     (Policy::schedule == Schedule::one_tile || Policy::schedule == Schedule::persistent)>
struct FirstInputs {
  static constexpr bool loads = false;
  struct Type {};
};
template <class Policy>
struct FirstInputs<Policy, true> {
  static constexpr bool loads = true;
  using Type = typename Epilogue<Policy>::template LoadedInputs<Policy>;
};

// The tile and the k-tiles of one CTA. Its cluster's work determines them.
template <class Policy>
struct CtaWork {
  int m_first, n_first;  // first element in the D that the kernel computes: with swap_ab, D transposed
  KRange k;

  HGEMM_DEVICE CtaWork(Work const& work, ClusterPlace<Policy> const& place, int k_tiles) {
    // In the D that the kernel computes: the index of the cluster tile along the rows and along the columns.
    int const cluster_row = Policy::swap_ab ? work.tile_n : work.tile_m;
    int const cluster_column = Policy::swap_ab ? work.tile_m : work.tile_n;
    m_first = (cluster_row * Policy::cluster_m + place.row) * Policy::tile_m;
    n_first = (cluster_column * Policy::cluster_n + place.column) * Policy::tile_n;
    if constexpr (is_stream_k<Policy>) {
      k = {work.k_first, work.k_count};
    } else {
      k = k_range(k_tiles, work);
    }
  }
};

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem, typename MapsOf<Policy>::Type const& maps) {
  using Accumulators = WarpgroupAccumulators<Policy>;
  using Threads = ConsumerThreads<Policy>;
  using Place = ClusterPlace<Policy>;
  using InCluster = SplitKCluster<Policy, Accumulators, Threads, Epilogue<Policy>>;
  using Tiles = typename SchedulerOf<ClusterTile<Policy>>::Type;

  static constexpr bool by_tma = Policy::copy == Copy::tma;
  static constexpr bool in_cluster = Policy::schedule == Schedule::split_k_cluster;

  static_assert(Policy::consumer_m * (Policy::pingpong ? 1 : Policy::consumers) == Policy::tile_m,
                "consumers share a tile by rows, or alternate between tiles");
  static_assert(Policy::threads == Policy::consumers * 128 + (Policy::producer_registers > 0 || !by_tma ? 128 : 32),
                "the producer has 32 threads, or 128 if it uses setmaxnreg or cp.async");
  static_assert(!in_cluster || (Place::size == 1 && sizeof(typename Mainloop<Policy>::Shared) >= InCluster::bytes),
                "split_k_cluster requires cluster_m = cluster_n = 1, and stages that can hold the partials of a share");

  HGEMM_SHARED(SharedStorage<Policy>, shared);

  Place const place;
  int const warp = atoms::warp_index();
  int const consumer = warp / 4;  // warpgroup; the producer follows the last consumer
  // For an empty product (k = 0), the host passes k = -tile_k to kernels without TMA. They multiply one k-tile of zeros.
  int const k_tiles = by_tma || problem.k > 0 ? (problem.k + Policy::tile_k - 1) / Policy::tile_k : 1;
  uint32_t const worker = atoms::cta_x() / Place::size;
  Tiles scheduler(problem, worker, atoms::grid_x() / Place::size);
  Mainloop<Policy> mainloop(shared.mainloop, shared.barriers, place);
  Work work;
  bool const loads_by_tma = by_tma && warp == Policy::consumers * 4;

  // ---- Barriers ----------------------------------------------------------------------------------------------------
  if (warp == 0 && atoms::elect_one()) {
    if constexpr (by_tma) {
      Mainloop<Policy>::template prefetch_maps<true>(maps);
      Mainloop<Policy>::template prefetch_maps<false>(maps);
    }
    Mainloop<Policy>::init(shared.barriers);
    atoms::mbarrier_init_fence();
  }
  if constexpr (Place::size > 1 || in_cluster) {
    atoms::cluster_arrive_relaxed();
  }
  // The producer finds its first tile while the barriers are set up. This takes several divisions. It reads the batch strides,
  // which its first loads need.
  bool has_work = loads_by_tma && scheduler.template next<true>(work);
  if constexpr (by_tma) {
    atoms::read_now(problem.batch_stride_a);
    atoms::read_now(problem.batch_stride_b);
  }
  // It fetches the first k-tile into L2 meanwhile. Kernels with one consumer or pingpong gain nothing from this.
  if constexpr (by_tma && Policy::consumers > 1 && !Policy::pingpong) {
    if (has_work && atoms::elect_one()) {
      CtaWork<Policy> const mine(work, place, k_tiles);
      if (mine.k.count > 0) mainloop.prefetch(maps, problem, work.batch, mine.m_first, mine.n_first, mine.k.first);
    }
  }
  if constexpr (Place::size > 1 || in_cluster) {
    atoms::cluster_wait();
  } else {
    atoms::cta_barrier();
  }

  // ---- Wait for the previous grid (programmatic dependent launch) ----------------------------------------------------
  atoms::wait_on_dependent_grids();

  if (consumer < Policy::consumers) {
    // ---- Consumers -------------------------------------------------------------------------------------------------
    if constexpr (Policy::consumer_registers > 0) atoms::setmaxnreg_inc<Policy::consumer_registers>();
    // The generator sets scheduler_per_role if the producer uses cp.async. Such a producer needs more registers than one that
    // uses TMA, so the consumers have fewer. A scheduler that lives across the producer/consumer split would then spill. So
    // each role makes its own scheduler. Kernels with cp.async have clusters of 1x1, so there are grid_x() workers.
    if constexpr (is_stream_k<Policy> || is_at_launch<Policy>) {
      if constexpr (Policy::scheduler_per_role) scheduler = Tiles(problem, worker, atoms::grid_x());
    }
    int const m_offset = Policy::pingpong ? 0 : consumer * Policy::consumer_m;
    Epilogue<Policy> epilogue(problem, maps.d, shared.epilogue, consumer,
                              Epilogue<Policy>::stores_boxes(warp % 4) && atoms::elect_one());
    for (int owner = 0; scheduler.next(work); owner ^= 1) {
      CtaWork<Policy> const mine(work, place, k_tiles);
      if (Policy::pingpong && owner != consumer) {
        mainloop.state.advance(mine.k.count);  // skip the stages of the other consumer's tile
        continue;
      }
      [[maybe_unused]] int parts = 1;  // in which this CTA adds k
      Accumulators accumulators;       // (consumer_m, tile_n)
      // wgmma does not read these zeros, but ptxas does not know that. Without them, ptxas assumes that wgmma may read the
      // accumulators of the previous tile, and keeps their registers reserved between the mainloops of two tiles.
      if constexpr (is_stream_k<Policy> || is_at_launch<Policy>) accumulators.clear();
      // The inputs of the first subtile, if the loads of an expression run ahead. Ping-pong loads them while the other consumer
      // multiplies.
      [[maybe_unused]] typename FirstInputs<Policy>::Type first;
      [[maybe_unused]] auto const load_first = [&] {
        if constexpr (FirstInputs<Policy>::loads) epilogue.load(first, 0, work.batch, mine.m_first + m_offset, mine.n_first);
      };
      if constexpr (Policy::pingpong) load_first();
      mainloop.order_wait(consumer);
      [[maybe_unused]] AccumulatorsF32<Accumulators> sums;  // (consumer_m, tile_n), of all parts of k
      if constexpr (adds_parts<Policy>()) {
        // All parts use one copy of the mainloop. If there is only one, its accumulators are converted below: sums has lost
        // the sign of -0.
        parts = work.splits == 1 ? int(scheduler.splits()) : 1;
        sums.clear();
        HGEMM_NO_UNROLL
        for (int part = 0; part < parts; ++part) {
          Work split = work;
          split.split = uint32_t(part), split.splits = uint32_t(parts);
          accumulators.clear();
          mainloop.multiply(accumulators, m_offset, k_range(mine.k.count, split).count);
          sums.add(accumulators);
        }
      } else if constexpr (Policy::pingpong) {
        mainloop.multiply(accumulators, m_offset, mine.k.count, [&] { mainloop.order_arrive(consumer); });
      } else if constexpr (FirstInputs<Policy>::loads) {
        mainloop.multiply(accumulators, m_offset, mine.k.count, load_first);
      } else {
        mainloop.multiply(accumulators, m_offset, mine.k.count);
      }
      if constexpr (adds_parts<Policy>()) mainloop.order_arrive(consumer);

      // ---- Epilogue. If several CTAs share a tile along k, reduce their partials first ----------------------------
      if constexpr (Policy::schedule == Schedule::split_k) {
        // The last splits are empty if there are fewer k-tiles than splits.
        if (mine.k.count == 0) accumulators.clear();
        using Reduction = SplitK<Policy, Accumulators, Threads>;
        if (Reduction::reduce(accumulators, sums, problem, work, shared.is_last[0], place.rank, Place::size)) {
          epilogue.run(sums, work.batch, mine.m_first + m_offset, mine.n_first);
        }
      } else if constexpr (is_at_launch<Policy>) {
        // No split is empty: the host passes at most as many splits as k-tiles.
        using Reduction = SplitK<Policy, Accumulators, Threads>;
        uint32_t& is_last = shared.is_last[Policy::pingpong ? consumer : 0];
        bool finishes = true;  // whether this CTA finishes the whole tile
        if (work.splits == 1) {
          if (parts == 1) sums.convert(accumulators);
        } else if (!Policy::persistent || work.splits < Policy::min_sharing_splits || scheduler.items > scheduler.step) {
          finishes = Reduction::reduce(accumulators, sums, problem, work, is_last, place.rank, Place::size);
        } else {  // no CTA has a second item, so all of them run at the same time
          using Shares = SplitKShares<Policy, Accumulators, Threads>;
          Shares const shares(problem, work, place.rank, Place::size);
          uint32_t const share = shares.exchange(accumulators, is_last);
          typename Shares::Finish finish(problem, maps.d, shares.no_boxes(shared.epilogue), 0, false);
          finish.run_share(shares, shares.first(share), shares.step(share), work.batch, mine.m_first + m_offset, mine.n_first);
          finishes = false;
        }
        if (finishes) epilogue.run(sums, work.batch, mine.m_first + m_offset, mine.n_first);
      } else if constexpr (is_stream_k<Policy>) {
        using Reduction = StreamK<Policy, Accumulators, Threads>;
        uint32_t& is_last = shared.is_last[Policy::pingpong ? consumer : 0];
        if constexpr (!Policy::reduce_by_blocks) {
          if (Reduction::reduce(accumulators, sums, problem, scheduler, work, worker, is_last, place.rank, Place::size)) {
            epilogue.run(sums, work.batch, mine.m_first + m_offset, mine.n_first);
          }
        } else if (mine.k.count == int(scheduler.k_tiles)) {
          epilogue.run(accumulators, work.batch, mine.m_first + m_offset, mine.n_first);
        } else {
          // Reduce 64 rows at a time: the f32 accumulators of all rows may not fit into the registers.
          Sharers sharers;
          bool const last = Reduction::store_partials(accumulators, sharers, problem, scheduler, work, worker, is_last,
                                                      place.rank, Place::size);
          HGEMM_NO_UNROLL
          for (int block = 0; block < (last ? Accumulators::mma_m : 0); ++block) {
            AccumulatorsF32<OneBlock<Accumulators>> sums;  // (64, tile_n)
            Reduction::add_partials(sums, sharers, block * Accumulators::mma_n);
            epilogue.run(sums, work.batch, mine.m_first + m_offset + block * 64, mine.n_first);
          }
        }
      } else if constexpr (in_cluster) {
        if (mine.k.count == 0) accumulators.clear();
        InCluster::exchange(accumulators, &shared.mainloop, shared.barriers.order, work.split);
        InCluster const partials{&shared.mainloop};
        epilogue.run_share(partials, work.split, Policy::splits, work.batch, mine.m_first + m_offset, mine.n_first);
      } else {
        if constexpr (FirstInputs<Policy>::loads) {
          epilogue.run(accumulators, work.batch, mine.m_first + m_offset, mine.n_first, first);
        } else {
          epilogue.run(accumulators, work.batch, mine.m_first + m_offset, mine.n_first);
        }
        if constexpr (has_reductions<Policy>) {
          Reduction<Policy, Accumulators, Threads, Policy::tile_n>::finish(
              problem, work.batch, mine.m_first, mine.n_first, shared.is_last[Policy::pingpong ? consumer : 0]);
        }
      }
    }
    epilogue.finish();
  } else {
    // ---- Producer --------------------------------------------------------------------------------------------------
    if constexpr (Policy::producer_registers > 0) atoms::setmaxnreg_dec<Policy::producer_registers>();
    if constexpr (is_stream_k<Policy> || is_at_launch<Policy>) {
      if constexpr (Policy::scheduler_per_role) scheduler = Tiles(problem, worker, atoms::grid_x());
    }
    if constexpr (!by_tma) has_work = scheduler.next(work);
    if (!by_tma || (loads_by_tma && atoms::elect_one())) {
      for (; has_work; has_work = scheduler.next(work)) {
        CtaWork<Policy> const mine(work, place, k_tiles);
        mainloop.load(maps, problem, work.batch, mine.m_first, mine.n_first, mine.k.first, mine.k.count);
      }
      atoms::launch_dependent_grids();  // programmatic dependent launch: the next grid takes the SMs that this one leaves
      if constexpr (Place::size > 1) mainloop.producer_finish();
    }
    if constexpr (!by_tma) atoms::cp_async_wait<0>();
    atoms::warp_barrier();
  }
}

// For kernels without tensor maps: threads copy A and B, and store D.
template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem) {
  TensorMaps const none = {};
  gemm<Policy>(problem, none);
}

}  // namespace hgemm
