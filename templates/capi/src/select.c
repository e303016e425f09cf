/* Kernel selection. selection.py, measured_options.py, dispatch_table.py and octave_grid.py of the Python package hgemm do the same
 * steps with the same numbers.
 *
 * 1. hgemm_target_init computes, once for each device, everything that does not depend on the problem.
 * 2. hgemm_find tries the kernels by how their code runs on the device: cubin of this architecture, compatible cubin, PTX.
 *    In the first group that supports the problem it takes the fastest kernel measured on exactly this problem,
 *    else the lowest estimate, after measurements of similar problems have corrected it.
 * A batch-invariant query has only the kernels that keep one accumulation order (invariance.py of the Python package). */
#include <string.h>

#include "internal.h"

/* Limits that keep all products below 2^63. */
#define COST_LIMIT (UINT64_C(1) << 62)
#define KIB_LIMIT (UINT64_C(1) << 40)
#define CORRECTED_LIMIT (UINT64_C(1) << 46)
#define FACTOR_ONE UINT32_C(4096) /* correction factors are fixed-point numbers */

#define ACC_MASK (UINT32_C(15) << 16)
#define BIAS_MASK (UINT32_C(15) << 20)
#define BIAS_AT_LAUNCH ((uint32_t)HGEMM_BIAS_LAUNCH << 20)
enum { OF_KERNEL = 2 }; /* a value of hgemm_row.calibration */
enum { COUNTER_BYTES = 4, PARTIAL_TILES_PER_CTA = 2, SEGMENT_ROWS = 16, AGAIN_BITS = 12 };

/* The options of launches that decide their splits and raster. */
enum { MIN_SPLIT_K_TILES = 4, MAX_SPLIT_WAVES = 2, SPLITS_COUNT = 14, GROUPS_COUNT = 6 };
enum { FIRST_PANEL = 2 }; /* index in GROUPS: by default, a panel has at least 4 columns of tiles */
static uint32_t const SPLITS[SPLITS_COUNT] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64};
static uint32_t const GROUPS[GROUPS_COUNT] = {1, 2, 4, 8, 16, 32};
enum { TEGRA = 87, SMEM_RESERVED_BYTES_PER_CTA = 1024 };

/* Requirements of rows, and what a query provides. The low bits are the alignments of A, B and D as numbers, 1 to 8. */
enum {
  REQUIRE_ALIGN_B_SHIFT = 4,
  REQUIRE_ALIGN_D_SHIFT = 8,
  REQUIRE_BETA_0 = 1 << 12,
  REQUIRE_MAPS = 1 << 13,
  REQUIRE_WHOLE_TILES = 1 << 14,
  REQUIRE_WORKSPACE = 1 << 15
};

static uint64_t min64(uint64_t x, uint64_t y) { return x < y ? x : y; }

/* Returns x * y, at most COST_LIMIT. Neither is 0 or above 2^63. */
static uint64_t product(uint64_t x, uint64_t y) {
  return (x | y) >> 31 != 0 && x > COST_LIMIT / y ? COST_LIMIT : x * y;
}

/* In 32 bits, because 64-bit divisions take several times as long. */
static uint32_t ceil_div(uint32_t x, uint32_t y) { return (x + y - 1) / y; }

/* ---- The device -------------------------------------------------------------------------------------------------------- */

/* A cubin runs on its own major architecture, from its minor version on, but not across Tegra. PTX runs on all later ones. */
static uint8_t mode_of(hgemm_group const *group, uint32_t device) {
  if (group->number == device) return HGEMM_SAME_ARCH_CUBIN;
  if (group->specific || group->number > device) return HGEMM_CANNOT_RUN;
  if (group->number == TEGRA || device == TEGRA || group->number / 10 != device / 10) return HGEMM_PTX_JIT;
  return HGEMM_COMPATIBLE_CUBIN;
}

/* Returns how many tiles one SM processes at the same time. */
static uint32_t tiles_per_sm(hgemm_row const *row, uint32_t smem_bytes) {
  uint32_t const fitting = (smem_bytes + SMEM_RESERVED_BYTES_PER_CTA) / (row->smem_bytes + SMEM_RESERVED_BYTES_PER_CTA);
  uint32_t const count = row->tiles_per_sm < fitting ? row->tiles_per_sm : fitting;
  if (row->tensor_maps) return row->tiles_per_sm;
  return count > 1 ? count : 1;
}

/* Returns how many SMs the clusters of a kernel can use. */
static uint32_t sms_used(hgemm_row const *row, uint32_t sms) {
  uint32_t const usable = sms > row->unusable_sms ? sms - row->unusable_sms : sms, clusters = usable / row->cluster_ctas;
  return (clusters > 1 ? clusters : 1) * row->cluster_ctas;
}

static uint32_t required_by(hgemm_row const *row) {
  return row->align_a | row->align_b << REQUIRE_ALIGN_B_SHIFT | row->align_d << REQUIRE_ALIGN_D_SHIFT |
         (row->beta ? 0 : REQUIRE_BETA_0) | (row->tensor_maps ? REQUIRE_MAPS : 0) |
         (row->exact_tiles_only ? REQUIRE_WHOLE_TILES : 0) |
         ((row->partial_bytes > 0 && !row->decides_splits) || hgemm_reduces(row) ? REQUIRE_WORKSPACE : 0);
}

static uint32_t sms_apart(hgemm_survey const *survey, hgemm_target const *target) {
  return survey->sms > target->sms ? survey->sms - target->sms : target->sms - survey->sms;
}

/* Takes, for each kind, the survey of the same compute capability with the nearest number of SMs; of equals the smaller. */
static void choose_surveys(hgemm_target *target) {
  target->survey_count = 0;
  for (uint32_t i = 0; i < HGEMM_SURVEY_COUNT; ++i) {
    hgemm_survey const *const survey = &hgemm_surveys[i];
    uint32_t slot = 0;
    if (survey->capability != target->number) continue;
    while (slot < target->survey_count && hgemm_surveys[target->surveys[slot]].kind != survey->kind) ++slot;
    if (slot == target->survey_count) ++target->survey_count;
    else if (sms_apart(survey, target) >= sms_apart(&hgemm_surveys[target->surveys[slot]], target)) continue;
    target->surveys[slot] = (uint16_t)i;
  }
}

int hgemm_has_divisors(hgemm_row const *row) {
  return row->tile_m * row->cluster_m != 0 && row->tile_n * row->cluster_n != 0 && row->cluster_m * row->cluster_n != 0 &&
         row->tile_k != 0 && row->cluster_ctas != 0 && row->tiles_per_sm != 0 && row->splits != 0 &&
         row->gated_parts != 0 && (row->reductions == 0 || row->segment_columns != 0);
}

/* wave_class of calibrated.py. */
static uint8_t wave_class(hgemm_row const *row) {
  if (!row->tensor_maps) return HGEMM_WAVE_CLASS_COUNT - 1;
  uint32_t const kind = row->decides_splits ? 1 : row->splits > 1 ? 2 : 0, ctas = row->cluster_ctas;
  return (uint8_t)(4 * kind + (ctas > 1) + (ctas > 2) + (ctas > 4));
}

/* dispatch_table.py says why. */
enum { DRAM_ONE = 1024, CALIBRATED = 90, LEAST_GBYTES_PER_S = 1000, MOST_GBYTES_PER_S = 16000 };

static uint32_t dram_part(uint32_t number, uint32_t gbytes) {
  if (gbytes < LEAST_GBYTES_PER_S || gbytes > MOST_GBYTES_PER_S || number != CALIBRATED) return DRAM_ONE;
  return (uint32_t)DRAM_ONE * HGEMM_DRAM_GBYTES_PER_S / gbytes;
}

void hgemm_target_init(hgemm_target *target, uint32_t number, uint32_t sms, uint32_t smem_bytes, uint32_t dram_gbytes) {
  target->number = number, target->sms = sms, target->smem_bytes = smem_bytes, target->dram_part = dram_part(number, dram_gbytes);
  target->count = 0;
  for (uint32_t group = 0; group < HGEMM_GROUP_COUNT; ++group) {
    target->group_modes[group] = mode_of(&hgemm_groups[group], number);
  }
  for (uint8_t mode = HGEMM_SAME_ARCH_CUBIN; mode <= HGEMM_PTX_JIT; ++mode) {
    for (uint32_t group = 0; group < HGEMM_GROUP_COUNT; ++group) {
      if (target->group_modes[group] == mode) target->order[target->count++] = (uint16_t)group;
    }
  }
  for (uint32_t i = 0; i < HGEMM_ROW_COUNT; ++i) {
    hgemm_row const *const row = &hgemm_rows[i];
    target->row_modes[i] = row->smem_bytes > smem_bytes ? HGEMM_CANNOT_RUN : target->group_modes[row->group];
    if (!hgemm_has_divisors(row)) target->row_modes[i] = HGEMM_CANNOT_RUN;
    if (target->row_modes[i] == HGEMM_CANNOT_RUN) continue;
    target->required[i] = required_by(row);
    target->tiles_per_sm[i] = tiles_per_sm(row, smem_bytes);
    target->sms_used[i] = sms_used(row, sms);
    target->wave_class[i] = wave_class(row);
  }
  choose_surveys(target);
}

/* ---- Tiles and workspace ----------------------------------------------------------------------------------------------- */

uint64_t hgemm_tiles(hgemm_row const *row, int64_t m, int64_t n) {
  uint32_t const clusters_m = ceil_div((uint32_t)m, row->tile_m * row->cluster_m);
  uint32_t const clusters_n = ceil_div((uint32_t)n, row->tile_n * row->cluster_n);
  return (uint64_t)clusters_m * row->cluster_m * ((uint64_t)clusters_n * row->cluster_n);
}

/* A reduction of rows counts the tiles of each row of CTA tiles, and one of columns those of each column. */
static uint64_t reduced_tiles(hgemm_row const *row, hgemm_query const *q) {
  uint64_t const rows = row->reductions > 0 ? ceil_div((uint32_t)q->m, row->tile_m) : 0;
  uint64_t const columns = row->column_reductions > 0 ? ceil_div((uint32_t)q->n, row->tile_n) : 0;
  return (rows + columns) * (uint64_t)q->batch;
}

/* Returns the bytes of partial reductions: floats of (reductions, batch, segments, extent). */
static uint64_t partials_of(uint32_t reductions, uint32_t segments, uint64_t extent, hgemm_query const *q) {
  if (reductions == 0) return 0;
  return product(product(extent * segments, (uint64_t)q->batch), reductions * sizeof(float));
}

/* Those of rows, in segments of columns of B, and those of columns, in segments of rows. */
static uint64_t reduced_bytes(hgemm_row const *row, hgemm_query const *q) {
  uint32_t const segments = row->reductions > 0 ? ceil_div((uint32_t)q->n, row->segment_columns) : 1;
  uint64_t const columns = (uint64_t)q->n / row->gated_parts;
  return partials_of(row->reductions, segments, (uint64_t)q->m, q) +
         partials_of(row->column_reductions, ceil_div((uint32_t)q->m, SEGMENT_ROWS), columns, q);
}

int hgemm_has_counters(hgemm_row const *row, hgemm_query const *q, uint64_t tiles) {
  if (hgemm_reduces(row)) return reduced_tiles(row, q) <= HGEMM_WORKSPACE_COUNTERS;
  return row->partial_bytes == 0 || row->splits == 1 || tiles <= HGEMM_WORKSPACE_COUNTERS;
}

uint64_t hgemm_counter_bytes(hgemm_row const *row, hgemm_query const *q, uint64_t shared, uint32_t splits) {
  if (hgemm_reduces(row)) return COUNTER_BYTES * reduced_tiles(row, q);
  if (row->partial_bytes == 0) return 0;
  if (row->max_ctas > 0) return COUNTER_BYTES * min64(shared, (uint64_t)PARTIAL_TILES_PER_CTA * row->max_ctas);
  return splits > 1 ? COUNTER_BYTES * shared : 0;
}

uint64_t hgemm_workspace_bytes(hgemm_row const *row, hgemm_query const *q, uint64_t shared, uint32_t splits) {
  uint64_t places = (uint64_t)PARTIAL_TILES_PER_CTA * row->max_ctas;
  if (hgemm_reduces(row)) return (uint64_t)HGEMM_WORKSPACE_COUNTERS * COUNTER_BYTES + reduced_bytes(row, q);
  if (splits > 1) places = shared * splits;
  if (row->partial_bytes == 0 || places == 0) return 0;
  return (uint64_t)HGEMM_WORKSPACE_COUNTERS * COUNTER_BYTES + places * row->partial_bytes;
}

int hgemm_whole_tiles(hgemm_row const *row, hgemm_query const *q) {
  return q->m % row->tile_m == 0 && q->n % row->tile_n == 0 && q->k % row->tile_k == 0;
}

int hgemm_grid_tiles(hgemm_row const *row, hgemm_query const *q, uint64_t *tiles) {
  *tiles = hgemm_tiles(row, q->m, q->n);
  if (*tiles > HGEMM_MAX_CTAS) return 0;
  *tiles *= (uint64_t)q->batch;
  return *tiles <= HGEMM_MAX_CTAS && *tiles * row->splits <= HGEMM_MAX_CTAS;
}

/* ---- Supported problems ------------------------------------------------------------------------------------------------ */

int hgemm_kind_matches(uint64_t offered, uint64_t asked) {
  uint64_t const either = ACC_MASK | ((offered & BIAS_MASK) == BIAS_AT_LAUNCH ? BIAS_MASK : 0);
  return ((offered ^ asked) & ~either) == 0 && (offered & ACC_MASK) <= (asked & ACC_MASK);
}

/* Returns the REQUIRE_ bits that a query meets. An alignment meets the smaller ones too. Workspace and whole tiles also depend
 * on the row; supports() checks them. */
static uint32_t provided_by(hgemm_query const *q) {
  return (2 * q->align_a - 1) | (2 * q->align_b - 1) << REQUIRE_ALIGN_B_SHIFT |
         (2 * q->align_d - 1) << REQUIRE_ALIGN_D_SHIFT | (q->beta ? 0 : REQUIRE_BETA_0) |
         (q->k > 0 && q->mappable ? REQUIRE_MAPS : 0) | (q->k > 0 ? REQUIRE_WHOLE_TILES : 0) | REQUIRE_WORKSPACE;
}

/* Tells whether a row of the right kind supports a query. Writes the CTA tiles of the whole batch. */
static int supports(hgemm_target const *target, uint32_t index, hgemm_query const *q, uint32_t provided, uint64_t *tiles) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint32_t const required = target->required[index];
  if ((required & ~provided) != 0 || (required & REQUIRE_WHOLE_TILES && !hgemm_whole_tiles(row, q))) return 0;
  if (!hgemm_grid_tiles(row, q, tiles)) return 0;
  if (!(required & REQUIRE_WORKSPACE)) return 1;
  return hgemm_has_counters(row, q, *tiles) && hgemm_workspace_bytes(row, q, *tiles, row->splits) <= q->workspace_bytes;
}

/* ---- Estimated time ---------------------------------------------------------------------------------------------------- */

typedef struct Size { /* 1024 elements of A and B together, and of D; at most 2^52 */
  uint64_t operands, results;
} Size;

static Size size_of(hgemm_query const *q) {
  uint64_t const rows = (uint64_t)q->m + (uint64_t)q->n, m = (uint64_t)q->m, n = (uint64_t)q->n, batch = (uint64_t)q->batch;
  Size size = {0, product(m * n, batch) >> 10};
  if (q->k > 0) size.operands = product(product(rows, (uint64_t)q->k), batch) >> 10;
  return size;
}

/* Returns the DRAM traffic: A and B are read once, and D is written. */
static uint64_t dram_kib(hgemm_row const *row, Size size) {
  return min64(size.operands * row->operand_bytes + size.results * row->result_bytes, KIB_LIMIT);
}

static uint64_t dram_clocks(hgemm_target const *target, hgemm_row const *row, uint64_t kib) {
  return row->dram_start_clocks + (kib * ((uint64_t)row->dram_mib_clocks * target->dram_part / DRAM_ONE) >> 10);
}

enum { STRADDLING_PART = 8 }; /* dispatch_table.py says why */

/* Returns the time of the loads that hit L2 because another CTA has read the same data. Rows that straddle sectors load more. */
static uint64_t l2_clocks(hgemm_row const *row, uint64_t kib, uint64_t k_tile_loads, uint32_t straddling) {
  uint64_t const all = min64(k_tile_loads, KIB_LIMIT) * row->l2_clocks >> AGAIN_BITS;
  uint64_t const first = kib * row->l2_mib_clocks >> 10;
  return all > first ? (all - first) + (all - first) * straddling / STRADDLING_PART : 0;
}

typedef struct Limit { /* an estimate is of interest if min(estimate, CORRECTED_LIMIT) * factor < best */
  uint64_t best;
  uint32_t factor;
} Limit;

static uint64_t corrected(uint64_t clocks, uint32_t factor) { return min64(clocks, CORRECTED_LIMIT) * factor; }

/* ceil_div, with a fast path for the common y == 1. */
static uint32_t ceil_div_1(uint32_t x, uint32_t y) { return y == 1 ? x : ceil_div(x, y); }

typedef struct Options { /* of a launch; whole_tiles are CTA tiles */
  uint32_t splits, whole_tiles;
} Options;

/* Clocks of the busiest SM if its tiles overlap, and if not; how many k-tiles are loaded; clocks of all epilogues together. */
typedef struct Work {
  uint64_t busy, single, loads, stores;
} Work;

/* Returns the work of `items` CTAs. Each stores or reads partial accumulators for `stored` clocks. */
static Work work_of(hgemm_target const *target, uint32_t index, uint32_t items, uint32_t k_tiles, uint32_t more,
                    uint32_t stored) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint32_t const busiest = ceil_div(items, target->sms_used[index]);
  uint32_t const rounds = ceil_div_1(busiest, target->tiles_per_sm[index]);
  Work work = {0, 0, (uint64_t)items * k_tiles, (uint64_t)items * (row->tile_clocks + stored)};
  if (items == 0) return work;
  work.busy = product((uint64_t)k_tiles * (row->k_tile_clocks + more) + row->tile_clocks + stored, busiest);
  work.single = product((uint64_t)k_tiles * (row->single_k_tile_clocks + more) + row->single_tile_clocks + stored, rounds);
  return work;
}

/* Returns x * numerator / denominator, also if that product exceeds 64 bits. */
static uint64_t fraction(uint64_t x, uint32_t numerator, uint32_t denominator) {
  return x / denominator * numerator + x % denominator * numerator / denominator;
}

enum { FORGIVEN_IN_ONE_WAVE = 7, FORGIVEN = 4, OVERLAP_EIGHTHS = 5 }; /* dispatch_table.py says why */

/* Returns the factor of the waves of CTAs. Without TMA: of the rows of tiles. HGEMM_WAVE_ONE is 1. */
static uint32_t wave_factor(hgemm_target const *target, uint32_t index, hgemm_query const *q, uint64_t ctas) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint64_t const count = row->tensor_maps ? ctas : ceil_div((uint32_t)q->m, row->tile_m);
  uint64_t const of = row->tensor_maps ? target->sms_used[index] : 1;
  uint32_t bin = 0;
  if (row->calibration == 0) return HGEMM_WAVE_ONE;
  while (bin < HGEMM_WAVE_BOUND_COUNT && 100 * count > hgemm_wave_bounds[bin] * of) ++bin;
  return hgemm_wave_factors[target->wave_class[index] * (HGEMM_WAVE_BOUND_COUNT + 1) + bin];
}

/* Returns the time of the SMs for some CTAs. If the row is calibrated, that is less than the busiest one's time. */
static uint64_t sm_clocks(hgemm_target const *target, uint32_t index, uint64_t ctas, uint64_t busiest, uint32_t more,
                          uint64_t loads, uint64_t stores) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint64_t average;
  if (row->calibration == 0) return busiest;
  average = (min64(product(loads, row->k_tile_clocks + more), COST_LIMIT) + stores) / target->sms_used[index];
  if (busiest > average) {
    busiest -= fraction(busiest - average, ctas <= target->sms_used[index] ? FORGIVEN_IN_ONE_WAVE : FORGIVEN, 16);
  }
  return busiest;
}

enum { ROUND_WAITS = 3, MIN_SHARING_SPLITS = 4, SERIAL_PART_CLOCKS = 400 }; /* dispatch_table.py says why */

/* Returns how many parts a launch of so many CTAs stores and adds, in eighths. */
static uint64_t partial_eighths(hgemm_target const *target, uint32_t index, uint32_t splits, uint64_t ctas) {
  int const by_all = hgemm_rows[index].persistent && splits >= MIN_SHARING_SPLITS &&
                     ctas <= (uint64_t)target->sms_used[index] * target->tiles_per_sm[index];
  return by_all ? 7 * (MIN_SHARING_SPLITS - 1) + splits : (uint64_t)8 * splits;
}

enum { LONG_CLOCKS = 100000, ENERGY_OF_EDGES = 8500, ENERGY_OF_LARGE_TILES = 87, MOST_ENERGY = 45 }; /* dispatch_table.py says why */

/* Returns how much longer a launch takes because its tiles are small and need more energy. */
static uint64_t energy_clocks(hgemm_row const *row, uint64_t sm) {
  uint32_t edges;
  if (sm <= LONG_CLOCKS || row->calibration == 0 || !row->tensor_maps) return 0;
  edges = ENERGY_OF_EDGES * (row->tile_m + row->tile_n) / (row->tile_m * row->tile_n);
  if (edges <= ENERGY_OF_LARGE_TILES) return 0;
  edges -= ENERGY_OF_LARGE_TILES;
  return fraction(sm - LONG_CLOCKS, edges < MOST_ENERGY ? edges : MOST_ENERGY, HGEMM_WAVE_ONE);
}

/* Returns the estimate. If it cannot be below the limit, returns any number that is not. */
static uint64_t launch_clocks(hgemm_target const *target, uint32_t index, hgemm_query const *q, Size size, uint64_t tiles,
                              Options options, Limit limit) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint32_t const k_tiles = ceil_div(q->k > 0 ? (uint32_t)q->k : 1, row->tile_k);
  uint32_t const more = row->straddling_clocks * q->straddling / 2;
  int const shared = row->decides_splits && options.splits > 1 && tiles > options.whole_tiles;
  uint32_t const rest = (uint32_t)((tiles - options.whole_tiles) * options.splits);
  uint32_t const added_parts = row->serial_parts ? (options.splits - 1) * SERIAL_PART_CLOCKS : 0;
  Work const whole = work_of(target, index, options.whole_tiles, k_tiles, more, added_parts);
  Work const split = work_of(target, index, rest, ceil_div_1(k_tiles, options.splits), more, shared ? row->partial_clocks : 0);
  uint64_t const busy = whole.busy + split.busy, single = whole.single + split.single;
  uint64_t const ctas = (uint64_t)options.whole_tiles + rest;
  uint32_t const factor = wave_factor(target, index, q, ctas);
  uint64_t const sm = fraction(sm_clocks(target, index, ctas, min64(busy > single ? busy : single, COST_LIMIT), more,
                                         whole.loads + split.loads, whole.stores + split.stores), factor, HGEMM_WAVE_ONE);
  uint64_t const added = row->split_clocks + partial_eighths(target, index, options.splits, ctas) * row->partial_clocks / 8;
  uint64_t const rounds = ceil_div(rest, target->sms_used[index]);
  uint64_t const start = row->launch_clocks + (shared ? added * (1 + ROUND_WAITS * (rounds - 1)) : 0);
  uint64_t kib, memory, longer, shorter, below, all;
  uint32_t eighths;
  if (corrected(start + sm, limit.factor) >= limit.best) return start + sm;
  kib = dram_kib(row, size), memory = dram_clocks(target, row, kib) + l2_clocks(row, kib, whole.loads + split.loads, q->straddling);
  if (!row->tensor_maps) memory = fraction(memory, factor, HGEMM_WAVE_ONE);
  longer = sm > memory ? sm : memory, shorter = min64(sm, memory);
  eighths = row->calibration ? OVERLAP_EIGHTHS : 4;
  all = fraction(shorter, eighths, 8), below = fraction(longer, eighths, 32);
  return min64(start + energy_clocks(row, sm) + longer + (all > below ? all - below : 0), COST_LIMIT);
}

enum { MAX_ALIGNMENT = 512 };
enum { ROUNDING = 16 }; /* of refined estimates, in units of HGEMM_TREE_ONE: less than 1 clock of 1,000 */

/* Returns the largest power of two that divides an extent, at most MAX_ALIGNMENT. */
static int64_t power_of_2(int64_t x) { return (x | MAX_ALIGNMENT) & -(x | MAX_ALIGNMENT); }

/* Returns an estimate that the trees have refined: refined_clocks() of dispatch_table.py. `tiles` are those of one D. */
static uint64_t refined(hgemm_target const *target, uint32_t index, hgemm_query const *q, Size size, uint64_t tiles,
                        uint64_t clocks) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint32_t const k_tiles = ceil_div(q->k > 0 ? (uint32_t)q->k : 1, row->tile_k);
  uint64_t const loads = min64(product(tiles, k_tiles), KIB_LIMIT) * row->l2_clocks >> AGAIN_BITS;
  int64_t sum = 0;
  if (row->calibration == 0 || q->batch > 1 || clocks == 0 || clocks > INT32_MAX) return clocks;
  if (q->m > INT32_MAX || q->n > INT32_MAX || q->k > INT32_MAX) return clocks;
  {
    int64_t const features[] = {/* FEATURES of hgemm/model/trees.py */
        q->m, q->n, q->k, (int64_t)(q->kind & 15), q->straddling, power_of_2(q->m), power_of_2(q->n), power_of_2(q->k),
        row->tile_m, row->tile_n, row->tile_k, row->cluster_m, row->cluster_n, row->splits, row->decides_splits,
        row->smem_bytes, row->tiles_per_sm, row->k_tile_clocks, row->tile_clocks, ceil_div(k_tiles, row->splits),
        (int64_t)(100 * tiles * row->splits / target->sms_used[index]),
        (row->tile_m - q->m % row->tile_m) % row->tile_m, (row->tile_n - q->n % row->tile_n) % row->tile_n,
        (int64_t)(1000 * dram_kib(row, size) / clocks), (int64_t)(1000 * loads / clocks), (int64_t)clocks};
    for (uint32_t i = 0; i < HGEMM_TREE_COUNT; ++i) {
      hgemm_node const *node = &hgemm_nodes[hgemm_roots[i]];
      while (node->feature >= 0)
        if (features[node->feature] <= node->bound) ++node; /* a branch, since CPUs predict most of them */
        else node += node->right;
      sum += node->bound;
    }
  }
  sum = sum > HGEMM_TREE_MAX_CHANGE ? HGEMM_TREE_MAX_CHANGE : sum < -HGEMM_TREE_MAX_CHANGE ? -HGEMM_TREE_MAX_CHANGE : sum;
  return clocks * (uint64_t)(HGEMM_TREE_ONE + sum) / HGEMM_TREE_ONE;
}

/* Returns the lowest estimate of the options that a launch may take, and writes them. The first ones win a tie. */
static uint64_t best_options(hgemm_target const *target, uint32_t index, hgemm_query const *q, Size size, uint64_t tiles,
                             Limit limit, Options *options) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint32_t const k_tiles = ceil_div(q->k > 0 ? (uint32_t)q->k : 1, row->tile_k), sms = target->sms_used[index];
  uint32_t const full_waves = (uint32_t)(tiles / sms * sms);
  uint64_t best;
  *options = (Options){row->splits, 0};
  best = launch_clocks(target, index, q, size, tiles, *options, limit);
  for (int tail = 0; row->decides_splits && tail <= (full_waves > 0); ++tail) {
    uint64_t const rest = tiles - (tail ? full_waves : 0);
    uint64_t const by_waves = rest > 0 ? (uint64_t)MAX_SPLIT_WAVES * sms * target->tiles_per_sm[index] / rest : 0;
    uint64_t const most = min64(k_tiles / MIN_SPLIT_K_TILES, by_waves);
    for (int i = 0; rest <= HGEMM_WORKSPACE_COUNTERS && i < SPLITS_COUNT && SPLITS[i] <= most; ++i) {
      Options const some = {SPLITS[i], tail ? full_waves : 0};
      uint64_t clocks;
      if (hgemm_workspace_bytes(row, q, rest, some.splits) > q->workspace_bytes) continue;
      clocks = launch_clocks(target, index, q, size, tiles, some, limit);
      if (clocks < best) best = clocks, *options = some;
    }
  }
  return best;
}

/* Tells whether a query's workspace suffices for splits that the launch decides. */
static int has_workspace(hgemm_row const *row, hgemm_query const *q, uint64_t tiles, Options options) {
  uint64_t const shared = tiles - options.whole_tiles;
  if (options.splits == 1 || !row->decides_splits) return 1;
  return shared <= HGEMM_WORKSPACE_COUNTERS && hgemm_workspace_bytes(row, q, shared, options.splits) <= q->workspace_bytes;
}

enum { PART_PERCENT = 1, MIN_PERCENT = 5 }; /* invariance.py says why */

/* Returns the lowest estimate of the options that a launch with an order may take, and writes them. The first ones win a tie.
 * If whole tiles add k in the same parts, a launch may split only the tiles after the last full wave, or none. */
static uint64_t order_options(hgemm_target const *target, uint32_t index, hgemm_query const *q, Size size, uint64_t tiles,
                              Limit limit, hgemm_order const *order, Options *options) {
  hgemm_row const *const row = &hgemm_rows[index];
  uint32_t const sms = target->sms_used[index];
  uint32_t const wholes[3] = {0, (uint32_t)(tiles / sms * sms), (uint32_t)tiles};
  int const count = row->serial_parts && order->splits > 1 ? 3 : 1;
  uint64_t best = UINT64_MAX;
  *options = (Options){order->splits, wholes[count - 1]};
  for (int i = 0; i < count; ++i) {
    Options const some = {order->splits, wholes[i]};
    uint64_t clocks;
    if (!has_workspace(row, q, tiles, some)) continue;
    clocks = launch_clocks(target, index, q, size, tiles, some, limit);
    if (clocks < best) best = clocks, *options = some;
  }
  return best;
}

/* Returns the estimate of a launch: with the splits of an order if there is one, else with the best options. */
static uint64_t clocks_of(hgemm_target const *target, uint32_t index, hgemm_query const *q, Size size, uint64_t tiles,
                          Limit limit, hgemm_order const *order) {
  Options options;
  if (order != NULL) return order_options(target, index, q, size, tiles, limit, order, &options);
  return best_options(target, index, q, size, tiles, limit, &options);
}

/* ---- Accumulation orders: order_of() to chosen_order() of invariance.py ------------------------------------------------- */

static Limit const NO_LIMIT = {UINT64_MAX, 1};
enum { MIX_ROWS = 14, SCORE_BITS = 12, MAX_ORDERS = 64, MAX_ALIGN = 8, SECTOR_BYTES = 32 };

/* Writes the order of a row's launches with so many splits. Returns 0 if it has none that is fixed. */
static int order_of(hgemm_row const *row, int64_t k, uint32_t splits, hgemm_order *order) {
  uint32_t const k_tiles = ceil_div(k > 0 ? (uint32_t)k : 1, row->tile_k);
  if (row->order == 0 || splits > k_tiles || !(row->decides_splits || row->splits == splits)) return 0;
  *order = (hgemm_order){row->order, splits, 0, 0, splits == 1 && row->cublas_order};
  if (splits > 1) order->part = k_tiles / splits * row->tile_k, order->longer = k_tiles % splits ? row->tile_k : 0;
  return 1;
}

static int equal_orders(hgemm_order const *x, hgemm_order const *y) {
  return x->order == y->order && x->splits == y->splits && x->part == y->part && x->longer == y->longer;
}

int hgemm_has_order(hgemm_row const *row, int64_t k, hgemm_order const *order) {
  hgemm_order its;
  return order_of(row, k, order->splits, &its) && equal_orders(&its, order);
}

/* Tells whether a row supports a query, and keeps the order if there is one. Writes the CTA tiles of the whole batch. */
static int supports_in(hgemm_target const *target, uint32_t index, hgemm_query const *q, uint32_t provided, uint64_t *tiles,
                       hgemm_order const *order) {
  hgemm_row const *const row = &hgemm_rows[index];
  if (!supports(target, index, q, provided, tiles)) return 0;
  if (order == NULL) return 1;
  if (!hgemm_has_order(row, q->k, order)) return 0;
  return row->serial_parts || has_workspace(row, q, *tiles, (Options){order->splits, 0});
}

static uint32_t alignment(int64_t extent) {
  uint64_t const x = (uint64_t)extent | MAX_ALIGN;
  return (uint32_t)(x & (~x + 1));
}

/* Returns the query with other rows, without gaps between the rows of A, B and D, and with the usual workspace. */
static hgemm_query typical_query(hgemm_query const *q, int64_t m, uint32_t beta) {
  uint32_t const layout = q->kind & 15, dtype_a = q->kind >> 4 & 15, dtype_b = q->kind >> 8 & 15;
  int64_t const row_a = layout == HGEMM_TN || layout == HGEMM_TT ? q->k : 0;
  int64_t const row_b = layout == HGEMM_TN || layout == HGEMM_NN ? q->k : q->n;
  hgemm_query typical = *q;
  typical.m = m, typical.batch = 1, typical.beta = beta;
  typical.align_a = alignment(row_a), typical.align_b = alignment(row_b), typical.align_d = alignment(q->n);
  typical.workspace_bytes = HGEMM_DEFAULT_WORKSPACE_BYTES;
  typical.mappable = 1;
  typical.straddling = (uint32_t)(row_a * (dtype_a >= HGEMM_F32 ? 4 : 2) % SECTOR_BYTES != 0) +
                       (uint32_t)(row_b * (dtype_b >= HGEMM_F32 ? 4 : 2) % SECTOR_BYTES != 0);
  return typical;
}

/* Writes the orders in which some kernel computes any number of rows without a workspace, and returns how many there are. */
static uint32_t possible_orders(hgemm_target const *target, hgemm_query const *q, uint32_t beta, hgemm_order orders[MAX_ORDERS]) {
  hgemm_query least = typical_query(q, 1, beta);
  uint8_t best = HGEMM_CANNOT_RUN;
  uint32_t count = 0, provided;
  if ((q->kind & 15) == HGEMM_NN || (q->kind & 15) == HGEMM_NT) least.align_a = 1; /* its rows are as long as m */
  provided = provided_by(&least);
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (!hgemm_kind_matches(group->kind, q->kind)) continue;
    for (uint32_t index = group->first; index < group->first + group->count; ++index) {
      hgemm_row const *const row = &hgemm_rows[index];
      uint8_t const mode = target->row_modes[index];
      uint32_t known = 0;
      uint64_t tiles;
      hgemm_order order;
      if (mode == HGEMM_CANNOT_RUN || (best != HGEMM_CANNOT_RUN && mode != best) || count == MAX_ORDERS) continue;
      if (!order_of(row, q->k, row->splits, &order) || row->exact_tiles_only) continue;
      if ((row->partial_bytes > 0 && !row->decides_splits) || !supports(target, index, &least, provided, &tiles)) continue;
      best = mode;
      while (known < count && !equal_orders(&orders[known], &order)) ++known;
      if (known == count) orders[count++] = order;
    }
  }
  return count;
}

/* Returns the lowest estimate of the rows that keep an order, among those whose code runs best. */
static uint64_t clocks_in(hgemm_target const *target, hgemm_query const *q, hgemm_order const *order) {
  uint32_t const provided = provided_by(q);
  uint8_t best = HGEMM_CANNOT_RUN;
  uint64_t found = CORRECTED_LIMIT;
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (!hgemm_kind_matches(group->kind, q->kind)) continue;
    for (uint32_t index = group->first; index < group->first + group->count; ++index) {
      uint8_t const mode = target->row_modes[index];
      uint64_t tiles;
      if (mode == HGEMM_CANNOT_RUN || (best != HGEMM_CANNOT_RUN && mode != best)) continue;
      if (!supports_in(target, index, q, provided, &tiles, order)) continue;
      best = mode;
      found = min64(found, clocks_of(target, index, q, size_of(q), tiles, NO_LIMIT, order));
    }
  }
  return found;
}

/* Keeps only the orders of cuBLASLt, if there are any. Returns how many are left. */
static uint32_t keep_cublas(hgemm_order orders[MAX_ORDERS], uint32_t count) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (orders[i].is_cublas) orders[kept++] = orders[i];
  }
  return kept > 0 ? kept : count;
}

/* Writes the order with the least sum of relative times over 1, 2, 4 to 8192 rows. Returns 0 if there is none. */
static int choose_order(hgemm_target const *target, hgemm_query const *q, hgemm_order *chosen) {
  hgemm_order orders[MAX_ORDERS];
  uint64_t times[MAX_ORDERS], totals[MAX_ORDERS] = {0};
  uint32_t beta = 1, count = possible_orders(target, q, beta, orders), best = 0;
  if (count == 0) beta = 0, count = possible_orders(target, q, beta, orders);
  if (count == 0) return 0;
  if (q->flags & HGEMM_ORDER_CUBLAS) count = keep_cublas(orders, count);
  for (uint32_t i = 0; count > 1 && i < MIX_ROWS; ++i) {
    hgemm_query const typical = typical_query(q, INT64_C(1) << i, beta);
    uint64_t fastest = UINT64_MAX;
    for (uint32_t j = 0; j < count; ++j) {
      times[j] = clocks_in(target, &typical, &orders[j]);
      fastest = min64(fastest, times[j]);
    }
    for (uint32_t j = 0; j < count; ++j) totals[j] += (times[j] << SCORE_BITS) / (fastest > 1 ? fastest : 1);
  }
  for (uint32_t j = 0; j < count; ++j) {
    uint32_t const parts = orders[j].splits * PART_PERCENT, percent = parts > MIN_PERCENT ? parts : MIN_PERCENT;
    totals[j] += orders[j].splits > 1 ? totals[j] * percent / 100 : 0;
  }
  for (uint32_t j = 1; j < count; ++j) best = totals[j] < totals[best] ? j : best;
  *chosen = orders[best];
  return 1;
}

int hgemm_find_order(hgemm_target const *target, hgemm_query const *q, hgemm_order *order) {
  enum { ENTRIES = 32 };
  typedef struct Entry {
    uint32_t number, sms, smem_bytes, flags; /* sms is 0 in an empty entry */
    uint64_t kind;
    int64_t n, k;
    int found;
    hgemm_order order;
  } Entry;
  static _Thread_local Entry entries[ENTRIES];
  uint32_t const flags = q->flags & HGEMM_ORDER_CUBLAS;
  uint64_t const hash = ((uint64_t)q->n * 37 + (uint64_t)q->k * 41 + q->kind) * UINT64_C(0x9E3779B97F4A7C15);
  Entry *const entry = &entries[hash >> 59]; /* 5 bits, for 32 entries */
  if (q->flags == 0 || q->k == 0) return 0;
  if (entry->sms != target->sms || entry->number != target->number || entry->smem_bytes != target->smem_bytes ||
      entry->kind != q->kind || entry->flags != flags || entry->n != q->n || entry->k != q->k) {
    hgemm_order chosen = {0, 1, 0, 0, 0};
    int const found = choose_order(target, q, &chosen);
    *entry = (Entry){target->number, target->sms, target->smem_bytes, flags, q->kind, q->n, q->k, found, chosen};
  }
  *order = entry->order;
  return entry->found && (q->flags & HGEMM_BATCH_INVARIANT || entry->order.is_cublas);
}

/* ---- Measurements ------------------------------------------------------------------------------------------------------ */

enum { STEP_BITS = 4, ROWS_WEIGHT = 2 }; /* see octave_grid.py */
enum { BLOCK_ROWS = 64 };

/* Returns the index of the highest bit that is set. x is not 0. */
static int32_t highest_bit(uint64_t x) {
#if defined(__GNUC__)
  return 63 - __builtin_clzll(x);
#else
  int32_t index = 0;
  while (x >>= 1) ++index;
  return index;
#endif
}

/* Returns log2(extent) in sixteenths, interpolated linearly between powers of 2. */
static int32_t octaves(int64_t extent) {
  uint64_t const x = (uint64_t)extent;
  int32_t const power = highest_bit(x);
  return power << STEP_BITS | (int32_t)(x << STEP_BITS >> power & ((1 << STEP_BITS) - 1));
}

static hgemm_survey const *find_survey(hgemm_target const *target, uint64_t kind) {
  for (uint32_t i = 0; i < target->survey_count; ++i) {
    if (hgemm_surveys[target->surveys[i]].kind == kind) return &hgemm_surveys[target->surveys[i]];
  }
  return NULL;
}

static int compare(hgemm_measured const *x, hgemm_query const *q) {
  if (x->m != q->m) return x->m < q->m ? -1 : 1;
  if (x->n != q->n) return x->n < q->n ? -1 : 1;
  if (x->k != q->k) return x->k < q->k ? -1 : 1;
  return x->batch < q->batch ? -1 : x->batch > q->batch;
}

/* Returns the measurement of exactly this problem, or null. */
static hgemm_measured const *find_measured(hgemm_survey const *survey, hgemm_query const *q) {
  uint32_t low = survey->first, high = survey->first + survey->count;
  while (low < high) {
    uint32_t const middle = low + (high - low) / 2;
    int const order = compare(&hgemm_measurements[middle], q);
    if (order == 0) return &hgemm_measurements[middle];
    if (order < 0) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

typedef struct Near { /* a measured problem; `at` is the next one of its ratios */
  hgemm_measured const *problem;
  uint32_t distance, at;
} Near;

typedef struct Nearby { /* the measured problems that correct estimates, and the corrections of BLOCK_ROWS rows from `first` on */
  uint32_t count, first;
  Near problems[HGEMM_NEAREST];
  struct { uint32_t weights, weighted; } rows[BLOCK_ROWS]; /* of the measurements; the weights times the ratios */
} Nearby;

static uint32_t apart(int32_t x, int32_t y) { return (uint32_t)(x > y ? x - y : y - x); }

/* Writes the measured problems that are near enough to correct estimates, the nearest first. On a tie the first ones count. */
static void find_nearby(hgemm_survey const *survey, hgemm_query const *q, Nearby *nearby) {
  int32_t const m = octaves(q->m), n = octaves(q->n), k = octaves(q->k > 0 ? q->k : 1), batch = octaves(q->batch);
  Near *const near = nearby->problems;
  for (uint32_t i = survey->first; i < survey->first + survey->count; ++i) {
    hgemm_measured const *const problem = &hgemm_measurements[i];
    uint32_t const rows = apart(m, problem->point[0]) + apart(batch, problem->point[3]);
    uint32_t const distance = ROWS_WEIGHT * rows + apart(n, problem->point[1]) + apart(k, problem->point[2]);
    uint32_t place;
    if (distance >= HGEMM_WEIGHT_COUNT || problem->straddles != (q->straddling > 0)) continue;
    if (nearby->count < HGEMM_NEAREST) ++nearby->count;
    else if (distance >= near[HGEMM_NEAREST - 1].distance) continue;
    for (place = nearby->count - 1; place > 0 && near[place - 1].distance > distance; --place) near[place] = near[place - 1];
    near[place] = (Near){problem, distance, 0};
  }
}

/* Computes the corrections of BLOCK_ROWS rows. `first` must ascend from call to call; 0 begins again. An array for all rows would
 * need a stack that grows with the library. */
static void set_block(Nearby *nearby, uint32_t first) {
  nearby->first = first;
  memset(nearby->rows, 0, sizeof nearby->rows);
  for (uint32_t i = 0; i < nearby->count; ++i) {
    Near *const near = &nearby->problems[i];
    hgemm_ratio const *const ratios = &hgemm_ratios[near->problem->first_ratio];
    uint32_t const weight = hgemm_weights[near->distance];
    if (first == 0) near->at = 0;
    for (; near->at < near->problem->ratio_count && ratios[near->at].row < first + BLOCK_ROWS; ++near->at) {
      if (ratios[near->at].row < first) continue;
      nearby->rows[ratios[near->at].row - first].weights += weight;
      nearby->rows[ratios[near->at].row - first].weighted += weight * ratios[near->at].ratio;
    }
  }
}

/* Returns the factor that corrects the estimate of a row, the weighted mean of its ratios and of 1, or 0 if it was measured on no
 * problem nearby. Rows must ascend from call to call, after set_block(nearby, 0). */
static uint32_t factor_of(Nearby *nearby, uint32_t row) {
  uint32_t const own = hgemm_estimate_weights[hgemm_rows[row].calibration];
  if (nearby->count == 0) return 0;
  if (row >= nearby->first + BLOCK_ROWS) set_block(nearby, row);
  if (nearby->rows[row - nearby->first].weights == 0) return 0;
  return (own * FACTOR_ONE + nearby->rows[row - nearby->first].weighted) / (own + nearby->rows[row - nearby->first].weights);
}

/* ---- Selection --------------------------------------------------------------------------------------------------------- */

static hgemm_selected const NONE = {HGEMM_ROW_COUNT, HGEMM_RULE_ESTIMATED, 0, 0, 1, 0, 1};

/* Returns the groups of rows of tiles for which all SMs together load the least. If multicasts load A only, returns panels of
 * columns as a negative number: their neighbours share B. Batches and splits of k always have groups. default_strips() of the
 * Python package returns the same. */
static int32_t best_strips(hgemm_target const *target, hgemm_query const *q, hgemm_selected const *found) {
  hgemm_row const *const row = &hgemm_rows[found->row];
  uint32_t const down = row->tile_m * row->cluster_m, across = row->tile_n * row->cluster_n;
  uint32_t const fitting = target->sms_used[found->row] / (row->cluster_m * row->cluster_n);
  uint32_t const clusters = fitting > 1 ? fitting : 1;
  int const single = q->batch == 1 && found->splits == 1, in_panels = single && row->cluster_n > 1 && row->cluster_m == 1;
  uint32_t const inner = in_panels ? across : down, outer = in_panels ? down : across;
  uint32_t best = in_panels ? FIRST_PANEL : 0;
  for (uint32_t i = best + 1; i < GROUPS_COUNT; ++i) {
    uint32_t const loaded = GROUPS[i] * inner + ceil_div(clusters, GROUPS[i]) * outer;
    if (loaded < GROUPS[best] * inner + ceil_div(clusters, GROUPS[best]) * outer) best = i;
  }
  return in_panels ? -(int32_t)GROUPS[best] : (int32_t)GROUPS[best];
}

/* The GPC of each cluster of a launch, as a digit: GPCS of dispatch_table.py. Clusters of one CTA are pairs of the same GPC. */
enum { GPC_COUNT = 8, GPC_SMS = 132, STRIPS_COUNT = 6, STRIPS_BY_GPC = 4, CTAS_BY_GPC = 2, FIRST_OF_ROUNDS = 4, END_OF_ROUNDS = 64, MOST_WAVES = 2, BY_GPC = 1 << 16 };
static char const GPCS_OF_PAIRS[] = "6705" "01234567" "01234567" "01234567" "01234567" "0124567" "0124567" "0124567" "0124567" "24";
static char const GPCS_OF_FOURS[] = "01234567" "01234567" "0124567" "0124567";
static uint32_t const STRIPS[STRIPS_COUNT] = {1, 2, 3, 4, 8, 16};

static uint32_t gpc_of(uint32_t ctas, uint32_t cluster) {
  return (uint32_t)((ctas == 4 ? GPCS_OF_FOURS[cluster] : GPCS_OF_PAIRS[ctas == 1 ? cluster / 2 : cluster]) - '0');
}

/* One side of a grid of clusters: its extent in clusters, the extent of a cluster's part of A or B, and whether no multicast loads it. */
typedef struct {
  uint32_t clusters, of_part, is_private;
} Side;

/* Writes the GPC of each position in the order of D: of launches in strips, and of those by GPC. By GPC, the pairs that are dealt in
 * rounds follow one another, those of GPC 0 first. The others of a wave come last: _positions() of dispatch_table.py. */
static void find_gpcs(uint8_t gpcs[2][MOST_WAVES * GPC_SMS], uint32_t ctas, uint32_t places, uint32_t clusters) {
  uint32_t position = 0;
  for (uint32_t cluster = 0; cluster < clusters; ++cluster) gpcs[0][cluster] = (uint8_t)gpc_of(ctas, cluster % places);
  if (ctas != CTAS_BY_GPC) return;
  for (uint32_t first = 0; first < clusters; first += places) {
    uint32_t const count = clusters - first < places ? clusters - first : places;
    for (uint32_t gpc = 0; gpc <= GPC_COUNT; ++gpc) {
      for (uint32_t pair = 0; pair < count; ++pair) {
        int const in_rounds = FIRST_OF_ROUNDS <= pair && pair < END_OF_ROUNDS;
        if (in_rounds ? gpcs[0][first + pair] == gpc : gpc == GPC_COUNT) gpcs[1][position++] = gpcs[0][first + pair];
      }
    }
  }
}

/* Returns what is read if clusters follow one another in strips of (width, along), with the GPC of each position. Within a strip,
 * `across` changes fastest. A part counts once for each wave of `places` clusters, and a private one also once for each GPC. */
static uint32_t reads_of(uint8_t const *gpcs, uint32_t places, uint32_t width, Side across, Side along) {
  uint8_t seen[2][GPC_COUNT + 1][MOST_WAVES * GPC_SMS]; /* (side, GPC or all of them, part) */
  uint32_t cluster = 0, reads = 0;
  for (uint32_t first = 0; first < across.clusters; first += width) {
    uint32_t const end = width < across.clusters - first ? first + width : across.clusters;
    for (uint32_t j = 0; j < along.clusters; ++j) {
      for (uint32_t i = first; i < end; ++i, ++cluster) {
        uint32_t const gpc = gpcs[cluster];
        if (cluster % places == 0) memset(seen, 0, sizeof seen);
        reads += (!seen[0][GPC_COUNT][i] + (across.is_private && !seen[0][gpc][i])) * across.of_part +
                 (!seen[1][GPC_COUNT][j] + (along.is_private && !seen[1][gpc][j])) * along.of_part;
        seen[0][GPC_COUNT][i] = seen[0][gpc][i] = seen[1][GPC_COUNT][j] = seen[1][gpc][j] = 1;
      }
    }
  }
  return reads;
}

/* Returns the order of a launch's tiles: in one or two waves, the one for which the least is read. default_raster() of the Python
 * package returns the same one. */
static int32_t best_raster(hgemm_target const *target, hgemm_query const *q, hgemm_selected const *found) {
  hgemm_row const *const row = &hgemm_rows[found->row];
  uint32_t const of_a = row->tile_m * row->cluster_m, of_b = row->tile_n * row->cluster_n, ctas = row->cluster_ctas;
  Side const down = {ceil_div((uint32_t)q->m, of_a), of_a, row->cluster_n == 1};
  Side const across = {ceil_div((uint32_t)q->n, of_b), of_b, row->cluster_m == 1};
  uint32_t const places = ctas == 4 ? sizeof GPCS_OF_FOURS - 1 : ctas <= 2 ? (sizeof GPCS_OF_PAIRS - 1) * (3 - ctas) : 0;
  uint32_t const clusters = down.clusters * across.clusters;
  uint8_t gpcs[2][MOST_WAVES * GPC_SMS]; /* (whether the order is by GPC, position) */
  uint32_t least = UINT32_MAX;
  int32_t best = 1;
  if (q->batch > 1 || found->splits > 1 || !row->tensor_maps || target->sms != GPC_SMS ||
      2 * row->smem_bytes <= target->smem_bytes || ctas != row->cluster_m * row->cluster_n ||
      (uint64_t)down.clusters * across.clusters > MOST_WAVES * places || !(down.is_private || across.is_private)) {
    return best_strips(target, q, found);
  }
  find_gpcs(gpcs, ctas, places, clusters);
  for (uint32_t i = 0; i < STRIPS_COUNT + (ctas == CTAS_BY_GPC ? STRIPS_BY_GPC : 0); ++i) {
    int const by_gpc = i >= STRIPS_COUNT;
    uint32_t const width = STRIPS[by_gpc ? i - STRIPS_COUNT : i];
    int32_t const raster = (int32_t)(by_gpc ? BY_GPC + width : width);
    uint32_t const groups = reads_of(gpcs[by_gpc], places, width, down, across);
    uint32_t const panels = reads_of(gpcs[by_gpc], places, width, across, down);
    if (groups < least) least = groups, best = raster;
    if (panels < least) least = panels, best = -raster;
  }
  return best;
}

/* Launches whose numbers before the k-tiles are equal may share options, if their k-tiles differ by at most 3 to 2. */
enum { MAX_K_RATIO = 3, MAX_K_RATIO_TO = 2 };

static int compare_places(uint32_t const *x, uint32_t const *y, int count) {
  for (int i = 0; i < count; ++i) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

static uint32_t k_tiles_apart(hgemm_options const *options, uint32_t const *place) {
  uint32_t const x = options->place[HGEMM_PLACE_K_TILES], y = place[HGEMM_PLACE_K_TILES];
  return x > y ? x - y : y - x;
}

static int is_similar(hgemm_options const *options, uint32_t const *place) {
  uint64_t const x = options->place[HGEMM_PLACE_K_TILES], y = place[HGEMM_PLACE_K_TILES];
  return compare_places(options->place, place, HGEMM_PLACE_K_TILES) == 0 &&
         (x > y ? x : y) * MAX_K_RATIO_TO <= (x > y ? y : x) * MAX_K_RATIO;
}

/* Tells whether a launch can take options, with the workspace of a query. */
static int is_usable(hgemm_options const *options, hgemm_row const *row, hgemm_query const *q, uint64_t tiles, uint32_t k_tiles) {
  uint64_t const whole = (uint64_t)options->whole_tiles * row->cluster_m * row->cluster_n;
  if (!row->decides_splits) return options->splits == row->splits && whole == 0;
  return options->splits <= k_tiles && whole <= tiles &&
         (options->splits == 1 || tiles - whole <= HGEMM_WORKSPACE_COUNTERS) &&
         hgemm_workspace_bytes(row, q, tiles - whole, options->splits) <= q->workspace_bytes;
}

/* Returns the options that were measured for a row on the same tiles, or null. The exact problem comes first, then the one
 * whose k-tiles are the nearest. MeasuredOptions of the Python package finds the same ones. */
static hgemm_options const *find_options(hgemm_target const *target, hgemm_query const *q, hgemm_selected const *selected) {
  hgemm_survey const *const survey = find_survey(target, q->kind);
  hgemm_row const *const row = &hgemm_rows[selected->row];
  uint32_t const place[HGEMM_PLACE_NUMBERS] = {
      selected->row, ceil_div((uint32_t)q->m, row->tile_m * row->cluster_m), ceil_div((uint32_t)q->n, row->tile_n * row->cluster_n),
      (uint32_t)q->batch, ceil_div(q->k > 0 ? (uint32_t)q->k : 1, row->tile_k), (uint32_t)q->m, (uint32_t)q->n, (uint32_t)q->k};
  hgemm_options const *first, *best = NULL;
  uint32_t low = 0, high;
  if (survey == NULL || survey->sms != target->sms) return NULL;
  first = &hgemm_measured_options[survey->first_options], high = survey->options_count;
  while (low < high) { /* finds the first entry after this place */
    uint32_t const middle = low + (high - low) / 2;
    if (compare_places(first[middle].place, place, HGEMM_PLACE_NUMBERS) <= 0) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && is_similar(&first[low - 1], place)) best = &first[low - 1];
  if (low < survey->options_count && is_similar(&first[low], place) &&
      (best == NULL || k_tiles_apart(&first[low], place) < k_tiles_apart(best, place))) {
    best = &first[low];
  }
  return best != NULL && is_usable(best, row, q, selected->tiles, place[HGEMM_PLACE_K_TILES]) ? best : NULL;
}

/* Tells whether a launch with these options splits k as an order does. Whole tiles among split ones may not. */
static int splits_as(hgemm_row const *row, hgemm_options const *options, hgemm_order const *order) {
  return options->splits == order->splits && (options->whole_tiles == 0 || row->serial_parts);
}

/* Writes the options of the selected row's launch: measured ones, or those with the lowest estimate. options_of() of the
 * Python package returns the same ones. */
static void set_options(hgemm_target const *target, hgemm_query const *q, hgemm_order const *order, hgemm_selected *found) {
  hgemm_row const *const row = &hgemm_rows[found->row];
  hgemm_options const *measured = NULL;
  if (row->decides_splits || row->decides_raster) measured = find_options(target, q, found);
  if (row->decides_splits && order != NULL && !(measured != NULL && splits_as(row, measured, order))) {
    Options options;
    order_options(target, found->row, q, size_of(q), found->tiles, NO_LIMIT, order, &options);
    found->splits = options.splits, found->whole_tiles = options.whole_tiles;
    found->raster_tiles = row->decides_raster ? best_raster(target, q, found) : 1;
  } else if (measured != NULL) {
    found->splits = measured->splits, found->whole_tiles = measured->whole_tiles * row->cluster_m * row->cluster_n;
    found->raster_tiles = row->decides_raster ? measured->raster_tiles : 1;
  } else {
    Options options;
    best_options(target, found->row, q, size_of(q), found->tiles, NO_LIMIT, &options);
    found->splits = options.splits, found->whole_tiles = options.whole_tiles;
    found->raster_tiles = row->decides_raster ? best_raster(target, q, found) : 1;
  }
}

/* Tells whether the measured launch of a row had an order. */
static int was_measured(hgemm_target const *target, hgemm_query const *q, hgemm_selected const *row, hgemm_order const *order) {
  hgemm_options const *options;
  if (order == NULL || !hgemm_rows[row->row].decides_splits) return 1;
  options = find_options(target, q, row);
  return options != NULL && splits_as(&hgemm_rows[row->row], options, order);
}

/* Returns the fastest row that was measured on this problem and runs in this mode. */
static hgemm_selected best_measured(hgemm_target const *target, hgemm_query const *q, hgemm_measured const *measured,
                                    uint8_t mode, hgemm_order const *order) {
  for (uint32_t i = 0; i < measured->order_count; ++i) {
    uint32_t const row = hgemm_orders[measured->first_order + i];
    uint64_t tiles;
    if (target->row_modes[row] == mode && supports_in(target, row, q, provided_by(q), &tiles, order)) {
      hgemm_selected found = NONE;
      found.row = row, found.rule = HGEMM_RULE_MEASURED, found.tiles = tiles;
      if (!was_measured(target, q, &found, order)) continue;
      found.clocks = refined(target, row, q, size_of(q), tiles, clocks_of(target, row, q, size_of(q), tiles, NO_LIMIT, order));
      return found;
    }
  }
  return NONE;
}

/* Returns the row with the lowest estimate of all rows that run in this mode. Stops early for rows that cannot win. */
static hgemm_selected best_estimated(hgemm_target const *target, hgemm_query const *q, Nearby *nearby, uint8_t mode,
                                     hgemm_order const *order) {
  hgemm_selected best = NONE;
  Limit limit = NO_LIMIT; /* trees cannot lower an estimate from this limit on below `least` */
  uint64_t least = UINT64_MAX;
  uint32_t const provided = provided_by(q);
  Size const size = size_of(q);
  set_block(nearby, 0);
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (target->group_modes[target->order[i]] != mode || !hgemm_kind_matches(group->kind, q->kind)) continue;
    for (uint32_t index = group->first; index < group->first + group->count; ++index) {
      hgemm_row const *const row = &hgemm_rows[index];
      uint32_t const factor = factor_of(nearby, index);
      uint64_t tiles, clocks;
      limit.factor = factor > 0 ? factor : FACTOR_ONE;
      if (target->row_modes[index] != mode) continue;
      if (corrected(row->launch_clocks + dram_clocks(target, row, dram_kib(row, size)), limit.factor) >= limit.best) continue;
      if (!supports_in(target, index, q, provided, &tiles, order)) continue;
      clocks = clocks_of(target, index, q, size, tiles, limit, order);
      if (corrected(clocks, limit.factor) >= limit.best) continue;
      clocks = refined(target, index, q, size, tiles, clocks);
      if (corrected(clocks, limit.factor) < least) {
        least = corrected(clocks, limit.factor);
        limit.best = least / (HGEMM_TREE_ONE - HGEMM_TREE_MAX_CHANGE - ROUNDING) * HGEMM_TREE_ONE + HGEMM_TREE_ONE;
        best.row = index, best.tiles = tiles, best.clocks = clocks;
        best.rule = factor > 0 ? HGEMM_RULE_NEAR : row->calibration == OF_KERNEL ? HGEMM_RULE_SHIPPED : HGEMM_RULE_ESTIMATED;
      }
    }
  }
  return best;
}

static int search_in(hgemm_target const *target, hgemm_query const *q, hgemm_order const *order, hgemm_selected *found) {
  hgemm_survey const *const survey = find_survey(target, q->kind);
  hgemm_measured const *const measured = survey != NULL && survey->sms == target->sms ? find_measured(survey, q) : NULL;
  Nearby nearby;
  nearby.count = 0;
  if (survey != NULL) find_nearby(survey, q, &nearby);
  for (uint8_t mode = HGEMM_SAME_ARCH_CUBIN; mode <= HGEMM_PTX_JIT; ++mode) {
    *found = measured != NULL ? best_measured(target, q, measured, mode, order) : NONE;
    if (found->row == HGEMM_ROW_COUNT) *found = best_estimated(target, q, &nearby, mode, order);
    if (found->row == HGEMM_ROW_COUNT) continue;
    set_options(target, q, order, found);
    return 1;
  }
  return 0;
}

static int search(hgemm_target const *target, hgemm_query const *q, hgemm_selected *found) {
  int const invariant = (q->flags & HGEMM_BATCH_INVARIANT) != 0 && q->k > 0;
  hgemm_order order;
  if (hgemm_find_order(target, q, &order)) {
    if (search_in(target, q, &order, found)) return 1;
  }
  return invariant ? 0 : search_in(target, q, NULL, found);
}

/* ---- Cache: programs repeat the same few problems, such as those of a layer ---------------------------------------------- */

typedef struct Entry {
  uint32_t number, sms, smem_bytes; /* of the device; sms is 0 in an empty entry */
  hgemm_query query;
  hgemm_selected selected;
} Entry;

enum { SETS_BITS = 4, WAYS = 4 };

typedef struct Set { /* problems with the same hash, of which the oldest one is replaced */
  Entry entries[WAYS];
  uint32_t oldest;
} Set;

static int equal(hgemm_query const *x, hgemm_query const *y) {
  return x->kind == y->kind && x->m == y->m && x->n == y->n && x->k == y->k && x->batch == y->batch && x->beta == y->beta &&
         x->align_a == y->align_a && x->align_b == y->align_b && x->align_d == y->align_d && x->mappable == y->mappable &&
         x->straddling == y->straddling && x->workspace_bytes == y->workspace_bytes && x->flags == y->flags;
}

int hgemm_find(hgemm_target const *target, hgemm_query const *q, hgemm_selected *selected) {
  static _Thread_local Set sets[1 << SETS_BITS];
  uint64_t const sum = (uint64_t)q->m * 31 + (uint64_t)q->n * 37 + (uint64_t)q->k * 41 + q->kind;
  Set *const set = &sets[sum * UINT64_C(0x9E3779B97F4A7C15) >> (64 - SETS_BITS)];
  for (uint32_t i = 0; i < WAYS; ++i) {
    Entry const *const entry = &set->entries[i];
    if (entry->sms == target->sms && entry->number == target->number && entry->smem_bytes == target->smem_bytes &&
        equal(&entry->query, q)) {
      *selected = entry->selected;
      return 1;
    }
  }
  if (!search(target, q, selected)) return 0;
  set->entries[set->oldest++ % WAYS] = (Entry){target->number, target->sms, target->smem_bytes, *q, *selected};
  return 1;
}
