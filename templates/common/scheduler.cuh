// Assigns tiles to CTAs. The schedule selects the tiles of a CTA; the raster is their order over D.
#pragma once

#include <common/policy.cuh>
#include <common/problem.cuh>

namespace hgemm {

// What a worker (a CTA or a cluster) computes next: a tile of D, over all of its k-tiles or some of them.
struct Work {
  int tile_m, tile_n;    // in tiles of Policy::tile_m x Policy::tile_n: CTA tiles, or cluster tiles on wgmma
  int batch;
  int split;
  uint32_t tile;         // position of the tile in the raster order of its batch's D; all splits of a tile have the same one
  int k_first, k_count;  // in k-tiles; stream-K only
};

// The threads that finish a tile together: all threads of the CTA.
template <class Policy>
struct CtaThreads {
  static constexpr int count = Policy::threads;

  HGEMM_DEVICE static int index() { return atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() { atoms::cta_barrier(); }
};

// The first k-tile of a split. A split ends where the next one begins.
template <class Policy>
HGEMM_DEVICE int first_k_tile(int k_tiles, int split) {
  return int(int64_t(k_tiles) * split / Policy::splits);
}

// Hands out items. An item is a whole tile or, with split-K, one split of a tile.
template <class Policy>
struct Scheduler {
  static constexpr bool persistent = Policy::schedule == Schedule::persistent || Policy::schedule == Schedule::stream_k;

  uint32_t tiles_m, tiles_n;
  uint32_t item, items;  // this worker's next item; the number of all items, batches * tiles * splits
  uint32_t step;         // a persistent worker takes every step-th item

  HGEMM_DEVICE explicit Scheduler(Problem const& problem, uint32_t worker = atoms::cta_x(), uint32_t workers = atoms::grid_x())
      : item(worker), step(workers) {
    tiles_m = (uint32_t(problem.m) + Policy::tile_m - 1) / Policy::tile_m;
    tiles_n = (uint32_t(problem.n) + Policy::tile_n - 1) / Policy::tile_n;
    items = tiles() * Policy::splits * problem.batch;
  }

  HGEMM_DEVICE uint32_t tiles() const { return tiles_m * tiles_n; }

  // Fetches this worker's next item; false if none is left. A worker that is not persistent gets one item.
  HGEMM_DEVICE bool next(Work& work) {
    if (!has_more()) return false;
    work = work_of(item);
    advance();
    return true;
  }

  // The parts of next(), for kernels that call them separately.
  HGEMM_DEVICE bool has_more() const { return item < items; }
  HGEMM_DEVICE void advance() { item = persistent ? item + step : items; }
  HGEMM_DEVICE Work work_of(uint32_t item) const {
    Work work;
    work.split = item % Policy::splits;
    work.tile = item / Policy::splits % tiles();
    work.batch = item / Policy::splits / tiles();
    locate(work);
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
      uint32_t const group = smaller(Policy::raster_tiles, tiles_m);  // so group * tiles_n fits 32 bits
      uint32_t const first = tile / (group * tiles_n) * group;
      uint32_t const rows = smaller(tiles_m - first, group);
      uint32_t const within = tile - first * tiles_n;
      work.tile_m = first + within % rows;
      work.tile_n = within / rows;
    } else {  // panels of raster_tiles columns; row by row in a panel
      uint32_t const panel = smaller(Policy::raster_tiles, tiles_n);
      uint32_t const first = tile / (panel * tiles_m) * panel;
      uint32_t const columns = smaller(tiles_n - first, panel);
      uint32_t const within = tile - first * tiles_m;
      work.tile_m = within / columns;
      work.tile_n = first + within % columns;
    }
  }

  HGEMM_DEVICE static uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }
};

}  // namespace hgemm
