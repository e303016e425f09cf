// Assigns tiles to CTAs. The schedule selects the tiles of a CTA; the raster is their order over D.
#pragma once

#include <common/policy.cuh>
#include <common/problem.cuh>

namespace hgemm {

// What a worker (a CTA or a cluster) computes next: a tile of D, over all of its k-tiles or some of them.
struct Work {
  int tile_m, tile_n;    // in tiles of Policy::tile_m x Policy::tile_n: CTA tiles, or cluster tiles on wgmma
  int batch;
  uint32_t split, splits;  // index of this split, and the number of splits of the tile; 0 and 1 if the tile is not split
  uint32_t tile;           // position of the tile in the raster order of D, the same for all splits of the tile
  uint32_t shared;         // split-K: index of the tile among the split tiles of the whole batch
  int k_first, k_count;    // in k-tiles; stream-K only
};

// A part of a tile's k.
struct KRange {
  int first, count;  // in k-tiles
};

// The threads that finish a tile together: all threads of the CTA.
template <class Policy>
struct CtaThreads {
  static constexpr int count = Policy::threads;
  static constexpr bool epilogue_overwrites_flags = true;  // in shared memory

  HGEMM_DEVICE static int index() { return atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() { atoms::cta_barrier(); }
};

// Returns the k-tiles of a split. If k_tiles is not a multiple of the splits, the first splits get one k-tile more than the others.
HGEMM_DEVICE KRange k_range(int k_tiles, Work const& work) {
  if (work.splits == 1) return {0, k_tiles};
  int const each = k_tiles / int(work.splits), longer = k_tiles % int(work.splits), split = int(work.split);
  return {split * each + (split < longer ? split : longer), each + (split < longer)};
}

// Whether a worker takes one item after another until none is left, instead of only one. An item is a tile or a split of a tile.
template <class Policy>
HGEMM_DEVICE constexpr bool persistent() {
  if constexpr (Policy::schedule == Schedule::launch) {
    return Policy::persistent;
  } else {
    return Policy::schedule == Schedule::persistent || Policy::schedule == Schedule::stream_k;
  }
}

// The CTAs of a worker.
template <class Policy, class = void>
inline constexpr int worker_ctas = 1;
template <class Policy>
inline constexpr int worker_ctas<Policy, typename MakeVoid<decltype(Policy::cluster_m)>::Type> = Policy::cluster_m * Policy::cluster_n;

// An idle H100 or H200 places the clusters of two CTAs of a wave on its 8 GPCs in this order: `first` of them somewhere, `rounds` rounds
// of 8 GPCs, as many rounds without GPC 3, and the rest somewhere. See GPCS in hgemm/dispatch_table.py.
struct PlacesOfPairs {
  static constexpr uint32_t first = 4, rounds = 4, end = first + 15 * rounds, wave = end + 2;

  // Returns the position of a pair among `pairs` of a wave, if those of GPC 0 come first, then those of GPC 1, and so on. Without
  // branches: most problems have too few tiles for some.
  HGEMM_DEVICE static uint32_t position(uint32_t pair, uint32_t pairs) {
    uint32_t const dealt = pairs > first ? (pairs < end ? pairs : end) - first : 0;
    uint32_t const eights = dealt < 8 * rounds ? dealt : 8 * rounds;  // dealt to 8 GPCs; the others to 7
    uint32_t const at = pair - first, after = at - 8 * rounds;
    bool const in_eights = at < 8 * rounds;
    uint32_t const gpc = in_eights ? at % 8 : after % 7 + (after % 7 >= 3);
    uint32_t const round = in_eights ? at / 8 : rounds + after / 7;
    uint32_t const position = before(gpc, eights, 8) + before(gpc - (gpc > 3), dealt - eights, 7) + round;
    return pair < first ? dealt + pair : pair < end ? position : pair;
  }

  // If `count` pairs are dealt to `gpcs` GPCs, returns how many the GPCs before `gpc` get.
  HGEMM_DEVICE static uint32_t before(uint32_t gpc, uint32_t count, uint32_t gpcs) {
    return count / gpcs * gpc + (gpc < count % gpcs ? gpc : count % gpcs);
  }
};

// Hands out items. An item is a whole tile or one split of a tile. Whole tiles come first.
template <class Policy>
struct Scheduler {
  static constexpr bool at_launch = Policy::schedule == Schedule::launch;

  Problem const* problem;
  uint32_t tiles_m, tiles_n;
  uint32_t item, items;  // this worker's next item; the number of all items
  uint32_t step;         // a persistent worker takes every step-th item

  HGEMM_DEVICE explicit Scheduler(Problem const& problem, uint32_t worker = atoms::cta_x(), uint32_t workers = atoms::grid_x())
      : problem(&problem), item(worker), step(workers) {
    tiles_m = (uint32_t(problem.m) + Policy::tile_m - 1) / Policy::tile_m;
    tiles_n = (uint32_t(problem.n) + Policy::tile_n - 1) / Policy::tile_n;
    items = whole_tiles() + (tiles() * problem.batch - whole_tiles()) * splits();
  }

  HGEMM_DEVICE uint32_t tiles() const { return tiles_m * tiles_n; }
  HGEMM_DEVICE uint32_t splits() const {
    if constexpr (at_launch) return problem->splits;
    return Policy::splits;
  }
  HGEMM_DEVICE uint32_t whole_tiles() const { return at_launch ? problem->whole_tiles : 0; }

  // Fetches this worker's next item; false if none is left. A worker that is not persistent gets one item.
  template <bool TESTS_BATCH = at_launch>
  HGEMM_DEVICE bool next(Work& work) {
    if (!has_more()) return false;
    work = work_of<TESTS_BATCH>(item);
    advance();
    return true;
  }

  // The parts of next(), for kernels that call them separately.
  HGEMM_DEVICE bool has_more() const { return item < items; }
  HGEMM_DEVICE void advance() { item = persistent<Policy>() ? item + step : items; }
  // With TESTS_BATCH, no division by the batch's tiles if the batch is 1: divisions are slow. By default only schedule launch does
  // so. With the other schedules, this branch makes a few kernels spill where all roles take it.
  template <bool TESTS_BATCH = at_launch>
  HGEMM_DEVICE Work work_of(uint32_t item) const {
    Work work = split_of(item);
    work.batch = 0;
    if (!TESTS_BATCH || problem->batch > 1) {
      work.batch = work.tile / tiles();
      work.tile %= tiles();
    }
    locate(work);
    return work;
  }

  // Returns the tile and the split of an item. Here, work.tile is the index of the tile among the tiles of the whole batch.
  // work_of() then replaces it by the position in one D.
  HGEMM_DEVICE Work split_of(uint32_t item) const {
    Work work;
    work.split = work.shared = 0;
    work.splits = 1;
    work.tile = item;
    if (splits() > 1 && item >= whole_tiles()) {
      work.splits = splits();
      work.split = (item - whole_tiles()) % splits();
      work.shared = (item - whole_tiles()) / splits();
      work.tile = whole_tiles() + work.shared;
    }
    return work;
  }

  // Sets the tile's coordinates from its position in the raster order.
  HGEMM_DEVICE void locate(Work& work) const {
    uint32_t const tile = work.tile;
    if constexpr (Policy::raster == Raster::row) {
      work.tile_m = tile / tiles_n;
      work.tile_n = tile % tiles_n;
    } else if constexpr (Policy::raster == Raster::column) {
      work.tile_m = tile % tiles_m;
      work.tile_n = tile / tiles_m;
    } else if constexpr (Policy::raster == Raster::group) {  // groups of raster_tiles rows; column by column in a group
      in_strips(tile, Policy::raster_tiles, tiles_m, tiles_n, work.tile_m, work.tile_n);
    } else if constexpr (Policy::raster == Raster::panel) {  // panels of raster_tiles columns; row by row in a panel
      in_strips(tile, Policy::raster_tiles, tiles_n, tiles_m, work.tile_n, work.tile_m);
    } else {  // Raster::launch: groups if above 0, panels if below
      int32_t const raster = problem->raster_tiles;
      uint32_t const flags = raster > 0 ? raster : -raster, width = flags % raster_by_gpc;
      uint32_t const position = flags >= raster_by_gpc ? by_gpc(tile) : tile;
      if (raster > 0) {
        in_strips(position, width, tiles_m, tiles_n, work.tile_m, work.tile_n);
      } else {
        in_strips(position, width, tiles_n, tiles_m, work.tile_n, work.tile_m);
      }
    }
  }

  // Returns the position in the order of D of a launch's tile, so that the pairs of a GPC take tiles that follow one another.
  // Workers of other sizes keep their order: they gain nothing.
  HGEMM_DEVICE uint32_t by_gpc(uint32_t tile) const {
    if constexpr (worker_ctas<Policy> != 2) return tile;
    uint32_t const first = tile / PlacesOfPairs::wave * PlacesOfPairs::wave;
    return first + PlacesOfPairs::position(tile - first, smaller(tiles() - first, PlacesOfPairs::wave));
  }

  // Computes the coordinates of a tile in a grid of (across, along) tiles. The grid is cut into strips of (width, along) tiles.
  // The last strip may be narrower. Tiles follow one another strip by strip. Within a strip, at_across changes fastest.
  HGEMM_DEVICE static void in_strips(uint32_t tile, uint32_t width, uint32_t across, uint32_t along, int& at_across,
                                     int& at_along) {
    uint32_t const strip = smaller(width, across);  // so strip * along fits 32 bits
    uint32_t const first = tile / (strip * along) * strip;
    uint32_t const here = smaller(across - first, strip);
    uint32_t const within = tile - first * along;
    at_across = first + within % here;
    at_along = within / here;
  }

  HGEMM_DEVICE static uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }
};

}  // namespace hgemm
