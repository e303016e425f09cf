/* Which kernel computes a problem on a device: select.py, cost.py and regions.py of the run-time package, step by step. */
#include <string.h>

#include "internal.h"

#define COST_LIMIT (UINT64_C(1) << 62)
#define KIB_LIMIT (UINT64_C(1) << 40)
#define CORRECTED_LIMIT (UINT64_C(1) << 46)
enum { COUNTERS_ROUND_BYTES = 256 };
enum { AGAIN_BITS = 12 };
#define ACC_MASK (UINT32_C(15) << 16)

static uint64_t smaller(uint64_t x, uint64_t y) { return x < y ? x : y; }

/* ---- Launches ---------------------------------------------------------------------------------------------------------- */

/* Of 32 bits where that is enough: divisions of 64 take several times as long. */
static uint32_t up(uint32_t x, uint32_t y) { return (x + y - 1) / y; }

uint64_t hgemm_tiles(hgemm_row const *row, int64_t m, int64_t n) {
  uint32_t const clusters_m = up((uint32_t)m, row->tile_m * row->cluster_m);
  uint32_t const clusters_n = up((uint32_t)n, row->tile_n * row->cluster_n);
  return (uint64_t)clusters_m * row->cluster_m * ((uint64_t)clusters_n * row->cluster_n);
}

uint64_t hgemm_counter_bytes(hgemm_row const *row, uint64_t tiles) {
  return (row->counter_bytes_per_tile * tiles + COUNTERS_ROUND_BYTES - 1) / COUNTERS_ROUND_BYTES * COUNTERS_ROUND_BYTES;
}

uint64_t hgemm_workspace_bytes(hgemm_row const *row, uint64_t tiles) {
  uint64_t const partials = row->partial_bytes_per_tile * tiles + (uint64_t)row->partial_bytes_per_cta * row->max_ctas;
  return hgemm_counter_bytes(row, tiles) + partials;
}

/* The product of two, neither of them 0 and at most 2^63, or the limit. */
static uint64_t product(uint64_t x, uint64_t y) {
  return (x | y) >> 31 != 0 && x > COST_LIMIT / y ? COST_LIMIT : x * y;
}

typedef struct Size { /* the elements of A and B together, and of D, in thousands (of 1024), at most 2^52 */
  uint64_t operands, results;
} Size;

static Size size_of(hgemm_wanted const *w) {
  uint64_t const rows = (uint64_t)w->m + (uint64_t)w->n, m = (uint64_t)w->m, n = (uint64_t)w->n, batch = (uint64_t)w->batch;
  Size size = {0, product(m * n, batch) >> 10};
  if (w->k > 0) size.operands = product(product(rows, (uint64_t)w->k), batch) >> 10;
  return size;
}

/* What DRAM takes to bring A and B once and to take D. */
static uint64_t once_clocks(hgemm_row const *row, uint64_t kib) { return row->memory_clocks + (kib * row->mib_clocks >> 10); }

static uint64_t kib_of(hgemm_row const *row, Size size) {
  return smaller(size.operands * row->operand_bytes + size.results * row->result_bytes, KIB_LIMIT);
}

/* What L2 takes to bring what was read before. */
static uint64_t again_clocks(hgemm_row const *row, uint64_t kib, uint64_t loads) {
  uint64_t const loaded = smaller(loads, KIB_LIMIT) * row->again_clocks >> AGAIN_BITS, once = kib * row->again_mib_clocks >> 10;
  return loaded > once ? loaded - once : 0;
}

/* What each of y takes at most of x things; often one takes all. */
static uint32_t most_of(uint32_t x, uint32_t y) { return y == 1 ? x : up(x, y); }

typedef struct Limit { /* what a corrected estimate must be below */
  uint64_t least;
  uint32_t factor;
} Limit;

static uint64_t corrected(uint64_t clocks, uint32_t factor) { return smaller(clocks, CORRECTED_LIMIT) * factor; }

/* The estimate; where it is not below the limit, any number that is not. */
static uint64_t clocks_of(hgemm_target const *target, uint32_t place, hgemm_wanted const *w, Size size, uint64_t tiles, Limit limit) {
  hgemm_row const *const row = &hgemm_rows[place];
  uint32_t const work = (uint32_t)(tiles * row->splits);
  uint32_t const k_tiles = most_of(up(w->k > 0 ? (uint32_t)w->k : 1, row->tile_k), row->splits);
  uint32_t const busiest = up(work, target->sms_used[place]), rounds = most_of(busiest, target->overlapping[place]);
  uint32_t const more = row->straddled_clocks * w->straddling / 2;
  uint64_t const busy = product((uint64_t)k_tiles * (row->k_tile_clocks + more) + row->tile_clocks, busiest);
  uint64_t const alone = product((uint64_t)k_tiles * (row->alone_k_tile_clocks + more) + row->alone_tile_clocks, rounds);
  uint64_t const sm = busy > alone ? busy : alone;
  uint64_t kib, memory, longer, shorter;
  if (corrected(row->launch_clocks + sm, limit.factor) >= limit.least) return row->launch_clocks + sm;
  kib = kib_of(row, size), memory = once_clocks(row, kib) + again_clocks(row, kib, (uint64_t)work * k_tiles);
  longer = sm > memory ? sm : memory, shorter = smaller(sm, memory);
  return smaller(row->launch_clocks + longer + (shorter / 2 > longer / 8 ? shorter / 2 - longer / 8 : 0), COST_LIMIT);
}

/* ---- What serves ------------------------------------------------------------------------------------------------------- */

int hgemm_same_kind(uint32_t offered, uint32_t wanted) {
  return ((offered ^ wanted) & ~ACC_MASK) == 0 && (offered & ACC_MASK) <= (wanted & ACC_MASK);
}

/* What is not refused: of an alignment the smaller ones too. What depends on the row besides is brought, and looked at later. */
static uint32_t brought(hgemm_wanted const *w) {
  return (2 * w->align_a - 1) | (2 * w->align_b - 1) << NEEDS_B | (2 * w->align_d - 1) << NEEDS_D | (w->beta ? 0 : NEEDS_NO_BETA) |
         (w->k > 0 && w->mappable ? NEEDS_MAPS : 0) | (w->k > 0 ? NEEDS_WHOLE_TILES : 0) | NEEDS_WORKSPACE;
}

int hgemm_whole_tiles(hgemm_row const *row, hgemm_wanted const *w) {
  return w->m % row->tile_m == 0 && w->n % row->tile_n == 0 && w->k % row->tile_k == 0;
}

int hgemm_grid_tiles(hgemm_row const *row, hgemm_wanted const *w, uint64_t *tiles) {
  *tiles = hgemm_tiles(row, w->m, w->n);
  if (*tiles > HGEMM_MAX_CTAS) return 0;
  *tiles *= (uint64_t)w->batch;
  return *tiles <= HGEMM_MAX_CTAS && *tiles * row->splits <= HGEMM_MAX_CTAS;
}

/* Whether a row that runs here takes a problem of its kind, which brings so much; `tiles` are then its CTA tiles, batches counted. */
static int takes(hgemm_target const *target, uint32_t place, hgemm_wanted const *w, uint32_t bits, uint64_t *tiles) {
  hgemm_row const *const row = &hgemm_rows[place];
  uint32_t const needs = target->needs[place];
  if ((needs & ~bits) != 0 || (needs & NEEDS_WHOLE_TILES && !hgemm_whole_tiles(row, w))) return 0;
  if (!hgemm_grid_tiles(row, w, tiles)) return 0;
  return !(needs & NEEDS_WORKSPACE) || hgemm_workspace_bytes(row, *tiles) <= w->workspace_bytes;
}

/* ---- What was measured ------------------------------------------------------------------------------------------------- */

enum { STEP_BITS = 4, REGION_STEP = 8, REGION_LEAST = 16, REGION_ROWS = 28, REGION_COLUMNS = 15, REGION_DEPTHS = 14 };
enum { STRAIGHT_REGIONS = REGION_ROWS * REGION_COLUMNS * REGION_DEPTHS }; /* those of problems that straddle sectors follow */
_Static_assert(2 * STRAIGHT_REGIONS == HGEMM_REGION_COUNT, "regions are those of hgemm/regions.py");

/* The place of the highest bit of a number that is not 0. */
static int32_t last_bit(uint64_t x) {
#if defined(__GNUC__)
  return 63 - __builtin_clzll(x);
#else
  int32_t place = 0;
  while (x >>= 1) ++place;
  return place;
#endif
}

/* Sixteenths of an octave from 1 to an extent, by a straight line between powers of 2. */
static int32_t octaves(int64_t extent) {
  uint64_t const x = (uint64_t)extent;
  int32_t const place = last_bit(x);
  return place << STEP_BITS | (int32_t)(x << STEP_BITS >> place & ((1 << STEP_BITS) - 1));
}

/* Which of so many half octaves an extent lies in, the first of which is `least`; powers of 2 are in their middle. */
static uint32_t half_octave(int32_t extent, int32_t least, int32_t count) {
  int32_t const place = (extent + REGION_STEP / 2) / REGION_STEP - least;
  return (uint32_t)(place < 0 ? 0 : place < count ? place : count - 1);
}

static uint32_t region_of(hgemm_wanted const *w) {
  uint32_t const rows = half_octave(octaves(w->m) + octaves(w->batch), 0, REGION_ROWS);
  uint32_t const columns = half_octave(octaves(w->n), REGION_LEAST, REGION_COLUMNS);
  uint32_t const depth = half_octave(octaves(w->k > 0 ? w->k : 1), REGION_LEAST, REGION_DEPTHS);
  return (rows * REGION_COLUMNS + columns) * REGION_DEPTHS + depth + (w->straddling > 0 ? STRAIGHT_REGIONS : 0);
}

static hgemm_survey const *find_survey(hgemm_target const *target, uint32_t kind) {
  for (uint32_t i = 0; i < target->survey_count; ++i) {
    if (hgemm_surveys[target->surveys[i]].kind == kind) return &hgemm_surveys[target->surveys[i]];
  }
  return NULL;
}

static int compare(hgemm_measured const *x, hgemm_wanted const *w) {
  if (x->m != w->m) return x->m < w->m ? -1 : 1;
  if (x->n != w->n) return x->n < w->n ? -1 : 1;
  if (x->k != w->k) return x->k < w->k ? -1 : 1;
  return x->batch < w->batch ? -1 : x->batch > w->batch;
}

/* The very problem, or null. */
static hgemm_measured const *find_same(hgemm_survey const *survey, hgemm_wanted const *w) {
  uint32_t low = survey->first, high = survey->first + survey->count;
  while (low < high) {
    uint32_t const middle = low + (high - low) / 2;
    int const order = compare(&hgemm_measurements[middle], w);
    if (order == 0) return &hgemm_measurements[middle];
    if (order < 0) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

static Limit const NO_LIMIT = {UINT64_MAX, 1};
static hgemm_found const NONE = {HGEMM_ROW_COUNT, HGEMM_RULE_ESTIMATED, 0, 0};

/* The best row that was compared on the very problem, serves and runs in this way. */
static hgemm_found best_measured(hgemm_target const *target, hgemm_wanted const *w, hgemm_measured const *same, uint8_t way) {
  for (uint32_t i = 0; i < same->order_count; ++i) {
    uint32_t const row = hgemm_orders[same->first_order + i];
    uint64_t tiles;
    if (target->row_ways[row] == way && takes(target, row, w, brought(w), &tiles)) {
      hgemm_found const found = {row, HGEMM_RULE_MEASURED, tiles, clocks_of(target, row, w, size_of(w), tiles, NO_LIMIT)};
      return found;
    }
  }
  return NONE;
}

/* The row of least corrected estimate of those that are listed for a region. What cannot be less is not worked out to its end. */
static hgemm_found best_near(hgemm_target const *target, hgemm_wanted const *w, uint32_t list, uint8_t way) {
  hgemm_found best = NONE;
  Limit limit = NO_LIMIT;
  uint32_t const bits = brought(w);
  Size const size = size_of(w);
  for (uint32_t i = hgemm_lists[list]; i < hgemm_lists[list + 1]; ++i) {
    uint32_t const place = hgemm_nears[i].row;
    hgemm_row const *const row = &hgemm_rows[place];
    uint64_t tiles, clocks;
    limit.factor = hgemm_nears[i].factor;
    if (target->row_ways[place] != way) continue;
    if (corrected(row->launch_clocks + once_clocks(row, kib_of(row, size)), limit.factor) >= limit.least) continue;
    if (!takes(target, place, w, bits, &tiles)) continue;
    clocks = clocks_of(target, place, w, size, tiles, limit);
    if (corrected(clocks, limit.factor) < limit.least) {
      limit.least = corrected(clocks, limit.factor);
      best.row = place, best.rule = HGEMM_RULE_NEAR, best.tiles = tiles, best.clocks = clocks;
    }
  }
  return best;
}

/* ---- Selection --------------------------------------------------------------------------------------------------------- */

/* The row of least estimate of all that run in this way. */
static hgemm_found best_estimated(hgemm_target const *target, hgemm_wanted const *w, uint8_t way) {
  hgemm_found best = NONE;
  uint32_t const bits = brought(w);
  Size const size = size_of(w);
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (target->ways[target->order[i]] != way || !hgemm_same_kind(group->kind, w->kind)) continue;
    for (uint32_t row = group->first; row < group->first + group->count; ++row) {
      hgemm_found found = {row, HGEMM_RULE_ESTIMATED, 0, 0};
      Limit const limit = {best.row < HGEMM_ROW_COUNT ? best.clocks : UINT64_MAX, 1};
      if (target->row_ways[row] != way || !takes(target, row, w, bits, &found.tiles)) continue;
      found.clocks = clocks_of(target, row, w, size, found.tiles, limit);
      if (found.clocks < best.clocks || best.row == HGEMM_ROW_COUNT) best = found;
    }
  }
  return best;
}

static hgemm_status search(hgemm_target const *target, hgemm_wanted const *w, hgemm_found *found) {
  hgemm_survey const *const survey = find_survey(target, w->kind);
  uint32_t const region = survey != NULL ? hgemm_regions[(survey - hgemm_surveys) * HGEMM_REGION_COUNT + region_of(w)] : 0;
  uint32_t const list = region & ~HGEMM_HAS_MEASURED;
  hgemm_measured const *const same = region != list && survey->sms == target->sms ? find_same(survey, w) : NULL;
  for (uint8_t way = HGEMM_EXACT; way <= HGEMM_PTX; ++way) {
    *found = same != NULL ? best_measured(target, w, same, way) : NONE;
    if (found->row == HGEMM_ROW_COUNT && survey != NULL) *found = best_near(target, w, list, way);
    if (found->row == HGEMM_ROW_COUNT) *found = best_estimated(target, w, way);
    if (found->row < HGEMM_ROW_COUNT) return HGEMM_OK;
  }
  return hgemm_lacking(target, w);
}

/* ---- What a thread chose before ---------------------------------------------------------------------------------------- */

/* Programs ask for the same few problems again and again, and an answer depends on nothing else. */
typedef struct Recent {
  uint32_t number, sms, smem_bytes; /* of the device; no device has 0 SMs */
  hgemm_wanted wanted;
  hgemm_found found;
} Recent;

static int same_wanted(hgemm_wanted const *x, hgemm_wanted const *y) {
  return x->kind == y->kind && x->m == y->m && x->n == y->n && x->k == y->k && x->batch == y->batch && x->beta == y->beta &&
         x->align_a == y->align_a && x->align_b == y->align_b && x->align_d == y->align_d && x->mappable == y->mappable && x->straddling == y->straddling &&
         x->workspace_bytes == y->workspace_bytes;
}

hgemm_status hgemm_choose(hgemm_target const *target, hgemm_wanted const *w, hgemm_found *found) {
  enum { KEPT = 32 };
  static _Thread_local Recent kept[KEPT];
  uint64_t const mixed = ((uint64_t)w->m * 31 + (uint64_t)w->n * 37 + (uint64_t)w->k * 41 + w->kind) * UINT64_C(0x9E3779B97F4A7C15);
  Recent *const recent = &kept[mixed >> 59]; /* 5 bits, of 32 */
  hgemm_status status = HGEMM_OK;
  if (recent->sms != target->sms || recent->number != target->number || recent->smem_bytes != target->smem_bytes ||
      !same_wanted(&recent->wanted, w)) {
    status = search(target, w, found);
    if (status != HGEMM_OK) return status;
    recent->number = target->number, recent->sms = target->sms, recent->smem_bytes = target->smem_bytes;
    recent->wanted = *w;
    recent->found = *found;
  }
  *found = recent->found;
  return status;
}
