// Stream-K: what whole waves leave over is shared along k, evenly, by all workers: a part of a wave, or a wave and a part. A
// worker's share is k-tiles in the order of the tiles: the end of one tile, whole ones, the beginning of another. Nobody waits:
// those who share a tile leave their sums in the caller's workspace, and the last of them adds up those of all in the order of
// k, so that the result depends on the number of workers only.
#pragma once

#include <hgemm/split_k.cuh>

namespace hgemm {

// Which worker has which of the k-tiles that are shared: as many as any other, or one more.
struct Shares {
  uint32_t items = 0;              // tiles that are shared, the first in launch order
  uint32_t count = 0, longer = 0;  // k-tiles of a share, one more of the first `longer` shares

  static constexpr uint32_t least = 4;  // k-tiles: for fewer it does not pay to leave their sums

  HGEMM_DEVICE Shares(uint32_t all_items, uint32_t k_tiles, uint32_t workers) {
    uint32_t const rest = all_items % workers, few = all_items < workers ? rest : rest + workers;
    if (rest == 0 || k_tiles < 2 * least || (uint64_t(few) * k_tiles >> 32) != 0) return;
    uint32_t const sharers = few * k_tiles / least < workers ? few * k_tiles / least : workers;
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

// Hands out a worker's share, then whole tiles. Workers are CTAs or clusters. It keeps little, and works out the rest again:
// registers are short while sums are added up.
template <class Policy>
struct StreamScheduler : Scheduler<Policy> {
  using Whole = Scheduler<Policy>;

  uint32_t k_tiles;  // of a tile
  uint32_t left;     // k-tiles of the share, from k-tile `item` on; none where `item` is the next whole tile

  HGEMM_DEVICE StreamScheduler(Problem const& problem, uint32_t worker = atoms::cta_x(),
                               uint32_t workers = atoms::grid_x())
      : Whole(problem, worker, workers) {
    k_tiles = problem.k > 0 ? (uint32_t(problem.k) + Policy::tile_k - 1) / Policy::tile_k : 1;
    Shares const all = shares();
    uint32_t const end = all.items * k_tiles, begin = Whole::smaller(all.begin(worker), end);
    left = Whole::smaller(all.begin(worker + 1), end) - begin;
    this->item = left > 0 ? begin : all.items + worker;
  }

  HGEMM_DEVICE Shares shares() const { return Shares(this->items, k_tiles, this->step); }

  // Fetches this worker's next piece of work; false when none is left.
  HGEMM_DEVICE bool next(Work& work) {
    if (left == 0) {
      if (!Whole::next(work)) return false;
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
      Shares const all = shares();
      this->item = all.items + all.sharer(this->item - 1);
    }
    return true;
  }
};

// The scheduler of a schedule.
template <class Policy, bool STREAMS = Policy::schedule == Schedule::stream_k>
struct SchedulerOf {
  using Type = Scheduler<Policy>;
};
template <class Policy>
struct SchedulerOf<Policy, true> {
  using Type = StreamScheduler<Policy>;
};

// The CTAs that share a tile, and where a thread finds their sums.
struct Sharers {
  Word4* partials;
  uint32_t first, last, rank, ranks;
};

// 64 rows of a warpgroup's accumulators.
template <class Accumulators>
struct OneBlock {
  static constexpr int mma_m = 1;
  static constexpr int mma_n = Accumulators::mma_n;
};

// Words of another's sums, 4 each, that a thread of so many of its own loads at once without a spill; fewer where D is of
// floats, or beside threads that copy, which leave fewer registers. Source: benchmarks/LOG.md, "Loads of partial sums".
HGEMM_DEVICE constexpr int loads_at_once(int words, bool beside_copies = false, bool to_floats = false) {
  return words <= (beside_copies || to_floats ? 25 : 32) ? 16 : to_floats ? 4 : 8;
}

// Workspace: counters as those of split-K; then two places a CTA, each as large as a tile's sums: for the tile within which its
// share begins, and for the one that it begins.
template <class Policy, class Accumulators, class Threads = CtaThreads<Policy>,
          int AT_ONCE = loads_at_once(Accumulators::mma_m * Accumulators::mma_n)>
struct StreamK {
  using Reduction = SplitK<Policy, Accumulators, Threads>;

  // Returns whether this CTA, `rank` of a worker's `ranks`, finishes its tile; then `sums` holds the tile's sums.
  template <class Scheduler>
  HGEMM_DEVICE static bool reduce(Accumulators const& accumulators, Sums<Accumulators>& sums, Problem const& problem,
                                  Scheduler const& scheduler, Work const& work, uint32_t worker, uint32_t& is_last,
                                  uint32_t rank = 0, uint32_t ranks = 1) {
    if (work.k_count == scheduler.k_tiles) {
      sums.take(accumulators);
      return true;
    }
    Sharers sharers;
    if (!leave(accumulators, sharers, problem, scheduler, work, worker, is_last, rank, ranks)) return false;
    add_up(sums, sharers, 0);
    return true;
  }

  // Leaves this CTA's sums of a part of a tile; tells whether those of all sharers are there, and where.
  template <class Scheduler>
  HGEMM_DEVICE static bool leave(Accumulators const& accumulators, Sharers& sharers, Problem const& problem,
                                 Scheduler const& scheduler, Work const& work, uint32_t worker, uint32_t& is_last,
                                 uint32_t rank, uint32_t ranks) {
    Shares const shares = scheduler.shares();
    uint32_t const item = work.batch * scheduler.tiles() + work.tile, begin = item * scheduler.k_tiles;
    uint32_t const first = shares.sharer(begin), last = shares.sharer(begin + scheduler.k_tiles - 1);
    uint64_t const counter_bytes = (uint64_t(scheduler.tiles()) * ranks * problem.batch * 4 + 255) / 256 * 256;
    uint32_t* const counter = static_cast<uint32_t*>(problem.workspace) + (item * ranks + rank);
    Word4* const partials = reinterpret_cast<Word4*>(static_cast<char*>(problem.workspace) + counter_bytes) + Threads::index();

    Reduction::store(accumulators, partials + place(worker * ranks + rank, worker == first));
    if (!Reduction::last_to_arrive(counter, last - first + 1, is_last)) return false;
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
    sharers = {partials, first, last, rank, ranks};
    return true;
  }

  // Adds up what the sharers have left, from a thread's word `first_word` on.
  template <class Part>
  HGEMM_DEVICE static void add_up(Sums<Part>& sums, Sharers const& sharers, int first_word) {
    auto const [of_cta, first, last, rank, ranks] = sharers;
    Word4 const* const partials = of_cta + first_word * Threads::count;
    sums.clear();
    HGEMM_UNROLL
    for (int word = 0; word < Part::mma_m * Part::mma_n; word += AT_ONCE) {
      HGEMM_NO_UNROLL
      for (uint32_t sharer = first; sharer <= last; ++sharer) {
        add(sums, partials + place(sharer * ranks + rank, sharer == first), word);
      }
    }
  }

  template <class Part>
  HGEMM_DEVICE static void add(Sums<Part>& sums, Word4 const* partial, int first_word) {
    HGEMM_UNROLL
    for (int word = first_word; word < first_word + AT_ONCE && word < Part::mma_m * Part::mma_n; ++word) {
      float(&sum)[4] = sums.floats[word / Part::mma_n][word % Part::mma_n];
      add_word(sum, atoms::ld_global_l2(partial + word * Threads::count));
    }
  }
  HGEMM_DEVICE static uint32_t place(uint32_t cta, bool begins) { return (cta * 2 + begins) * Reduction::words; }
};

}  // namespace hgemm
