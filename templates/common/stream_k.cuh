// Stream-K: full waves of tiles run whole; the remaining tiles are shared evenly along k by all workers.
//
// The remainder is a part of a wave, or a wave and a part. A worker's share is a range of k-tiles in the order of the tiles:
// the end of one tile, some whole tiles, the beginning of another. No worker waits for another. Those who share a tile store
// their partial accumulators in the workspace. The last to arrive adds them up in the order of k, so the result depends only on
// the number of workers.
#pragma once

#include <common/split_k.cuh>

namespace hgemm {

// ---- Shares of k --------------------------------------------------------------------------------------------------

// Which worker computes which of the shared k-tiles. Shares differ by one k-tile at most.
template <class Policy>
struct Shares {
  uint32_t items = 0;              // shared tiles, the first ones in raster order
  uint32_t count = 0, longer = 0;  // k-tiles of a share; the first `longer` shares have one more

  // Each sharer of a tile has at least so many k-tiles: with fewer, storing its partials costs more than it saves.
  static constexpr uint32_t minimum = Policy::stream_k_min_k_tiles;

  HGEMM_DEVICE Shares(uint32_t all_items, uint32_t k_tiles, uint32_t workers) {
    uint32_t const rest = all_items % workers, few = all_items < workers ? rest : rest + workers;
    if (rest == 0 || k_tiles < 2 * minimum || (uint64_t(few) * k_tiles >> 32) != 0) return;
    uint32_t const sharers = few * k_tiles / minimum < workers ? few * k_tiles / minimum : workers;
    items = few;
    count = few * k_tiles / sharers;
    longer = few * k_tiles % sharers;
  }

  HGEMM_DEVICE uint32_t begin(uint32_t worker) const { return worker * count + (worker < longer ? worker : longer); }
  HGEMM_DEVICE uint32_t sharer(uint32_t k_tile) const {
    uint32_t const of_longer = longer * (count + 1);
    return k_tile < of_longer ? k_tile / (count + 1) : longer + (k_tile - of_longer) / count;
  }
};

// ---- Scheduler ----------------------------------------------------------------------------------------------------

// Hands out a worker's share, then whole tiles. Workers are CTAs or clusters. It recomputes the shares instead of keeping them,
// because registers are short during the reduction.
template <class Policy>
struct StreamScheduler : Scheduler<Policy> {
  using Whole = Scheduler<Policy>;

  uint32_t k_tiles;  // of a tile
  uint32_t left;     // k-tiles left of the share, from k-tile `item` on; if 0, `item` is the next whole tile

  HGEMM_DEVICE StreamScheduler(Problem const& problem, uint32_t worker = atoms::cta_x(),
                               uint32_t workers = atoms::grid_x())
      : Whole(problem, worker, workers) {
    k_tiles = problem.k > 0 ? (uint32_t(problem.k) + Policy::tile_k - 1) / Policy::tile_k : 1;
    Shares<Policy> const all = shares();
    uint32_t const end = all.items * k_tiles, begin = Whole::smaller(all.begin(worker), end);
    left = Whole::smaller(all.begin(worker + 1), end) - begin;
    this->item = left > 0 ? begin : all.items + worker;
  }

  HGEMM_DEVICE Shares<Policy> shares() const { return Shares<Policy>(this->items, k_tiles, this->step); }

  // Fetches this worker's next tile or part of a tile; false if none is left.
  template <bool TESTS_BATCH = false>
  HGEMM_DEVICE bool next(Work& work) {
    if (left == 0) {
      if (!Whole::template next<TESTS_BATCH>(work)) return false;
      work.k_first = 0;
      work.k_count = k_tiles;
      return true;
    }
    uint32_t const item = this->item / k_tiles;
    work.k_first = this->item - item * k_tiles;
    work.k_count = Whole::smaller(left, k_tiles - work.k_first);
    work.split = 0;
    work.tile = item % this->tiles();
    work.batch = item / this->tiles();
    this->locate(work);
    this->item += work.k_count;
    left -= work.k_count;
    if (left == 0) {
      Shares<Policy> const all = shares();
      this->item = all.items + all.sharer(this->item - 1);
    }
    return true;
  }
};

// The scheduler of a Policy's schedule.
template <class Policy, bool STREAM_K = Policy::schedule == Schedule::stream_k>
struct SchedulerOf {
  using Type = Scheduler<Policy>;
};
template <class Policy>
struct SchedulerOf<Policy, true> {
  using Type = StreamScheduler<Policy>;
};

// ---- Reduction ----------------------------------------------------------------------------------------------------

// The CTAs that share a tile, and where a thread finds their partials.
struct Sharers {
  Vec16B* partials;
  uint32_t first, last, rank, ranks;
};

// 64 rows of a warpgroup's accumulators.
template <class Accumulators>
struct OneBlock {
  static constexpr int mma_m = 1;
  static constexpr int mma_n = Accumulators::mma_n;
};

// Workspace: the counters, of which each shared tile takes one; then two places per CTA, each as large as a tile's accumulators. One
// is for the tile within which the CTA's share begins, one for the tile that it begins.
template <class Policy, class Accumulators, class Threads = CtaThreads<Policy>>
struct StreamK {
  using Reduction = SplitK<Policy, Accumulators, Threads>;

  // Vectors of another CTA's partials that a thread loads at once. More would spill.
  static constexpr int in_flight = Policy::partials_in_flight;

  // Returns whether this CTA, `rank` of its worker's `ranks`, finishes the tile. If so, `sums` holds the tile's accumulators.
  template <class Scheduler>
  HGEMM_DEVICE static bool reduce(Accumulators const& accumulators, AccumulatorsF32<Accumulators>& sums,
                                  Problem const& problem, Scheduler const& scheduler, Work const& work, uint32_t worker,
                                  uint32_t& is_last, uint32_t rank = 0, uint32_t ranks = 1) {
    if (work.k_count == scheduler.k_tiles) {
      sums.convert(accumulators);
      return true;
    }
    Sharers sharers;
    if (!store_partials(accumulators, sharers, problem, scheduler, work, worker, is_last, rank, ranks)) return false;
    add_partials(sums, sharers, 0);
    return true;
  }

  // Stores this CTA's partials. Returns whether all sharers have stored theirs; if so, `sharers` says where.
  template <class Scheduler>
  HGEMM_DEVICE static bool store_partials(Accumulators const& accumulators, Sharers& sharers, Problem const& problem,
                                          Scheduler const& scheduler, Work const& work, uint32_t worker, uint32_t& is_last,
                                          uint32_t rank, uint32_t ranks) {
    auto const shares = scheduler.shares();
    uint32_t const item = work.batch * scheduler.tiles() + work.tile, begin = item * scheduler.k_tiles;
    uint32_t const first = shares.sharer(begin), last = shares.sharer(begin + scheduler.k_tiles - 1);
    uint32_t* const counter = static_cast<uint32_t*>(problem.workspace) + (item * ranks + rank);
    Vec16B* const partials = Reduction::partials_of(problem);

    Reduction::store(accumulators, partials + place(worker * ranks + rank, worker == first));
    if (!Reduction::last_to_arrive(counter, last - first + 1, is_last)) return false;
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
    sharers = {partials, first, last, rank, ranks};
    return true;
  }

  // Adds up the sharers' partials, from a thread's vector `first_vec` on.
  template <class Part>
  HGEMM_DEVICE static void add_partials(AccumulatorsF32<Part>& sums, Sharers const& sharers, int first_vec) {
    auto const [of_cta, first, last, rank, ranks] = sharers;
    Vec16B const* const partials = of_cta + first_vec * Threads::count;
    sums.clear();
    HGEMM_UNROLL
    for (int vec = 0; vec < Part::mma_m * Part::mma_n; vec += in_flight) {
      HGEMM_NO_UNROLL
      for (uint32_t sharer = first; sharer <= last; ++sharer) {
        add(sums, partials + place(sharer * ranks + rank, sharer == first), vec);
      }
    }
  }

  template <class Part>
  HGEMM_DEVICE static void add(AccumulatorsF32<Part>& sums, Vec16B const* partial, int first_vec) {
    HGEMM_UNROLL
    for (int vec = first_vec; vec < first_vec + in_flight && vec < Part::mma_m * Part::mma_n; ++vec) {
      float(&sum)[4] = sums.floats[vec / Part::mma_n][vec % Part::mma_n];
      add_vec(sum, atoms::ld_global_l2(partial + vec * Threads::count));
    }
  }
  HGEMM_DEVICE static uint32_t place(uint32_t cta, bool begins) { return (cta * 2 + begins) * Reduction::vecs; }
};

}  // namespace hgemm
