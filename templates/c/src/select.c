/* Which kernel computes a problem on a device: hgemm/select.py and hgemm/cost.py of the generator, step by step. */
#include <string.h>

#include "internal.h"

#define COST_LIMIT (UINT64_C(1) << 62)
enum { TEGRA = 87, MAX_CTAS = 2147483647, SMEM_RESERVED_BYTES_PER_CTA = 1024, COUNTERS_ROUND_BYTES = 256 };
#define ACC_MASK (UINT32_C(15) << 16)

/* ---- Devices ----------------------------------------------------------------------------------------------------------- */

/* A cubin runs on its own major architecture, from its minor version on, but not from or to Tegra; PTX on all later ones. */
static uint8_t way_of(hgemm_group const *group, uint32_t here) {
  if (group->number == here) return HGEMM_EXACT;
  if (group->own || group->number > here) return HGEMM_NOT_HERE;
  if (group->number == TEGRA || here == TEGRA || group->number / 10 != here / 10) return HGEMM_PTX;
  return HGEMM_COMPATIBLE;
}

/* CTAs of a kernel that an SM works on at once. */
static uint32_t resident_ctas(hgemm_row const *row, uint32_t smem_bytes) {
  uint32_t const fitting = (smem_bytes + SMEM_RESERVED_BYTES_PER_CTA) / (row->smem_bytes + SMEM_RESERVED_BYTES_PER_CTA);
  uint32_t const least = row->ctas_per_sm < fitting ? row->ctas_per_sm : fitting;
  return least > 1 ? least : 1;
}

void hgemm_target_init(hgemm_target *target, uint32_t number, uint32_t sms, uint32_t smem_bytes) {
  target->number = number, target->sms = sms, target->smem_bytes = smem_bytes;
  target->count = 0;
  for (uint32_t group = 0; group < HGEMM_GROUP_COUNT; ++group) target->ways[group] = way_of(&hgemm_groups[group], number);
  for (uint8_t way = HGEMM_EXACT; way <= HGEMM_PTX; ++way) {
    for (uint32_t group = 0; group < HGEMM_GROUP_COUNT; ++group) {
      if (target->ways[group] == way) target->order[target->count++] = (uint16_t)group;
    }
  }
  for (uint32_t row = 0; row < HGEMM_ROW_COUNT; ++row) target->resident[row] = resident_ctas(&hgemm_rows[row], smem_bytes);
}

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
  return hgemm_counter_bytes(row, tiles) + row->partial_bytes_per_tile * tiles;
}

uint64_t hgemm_clocks(hgemm_target const *target, uint32_t place, uint64_t tiles, int64_t k) {
  hgemm_row const *const row = &hgemm_rows[place];
  uint32_t const work = (uint32_t)(tiles * row->splits), resident = target->resident[place];
  uint32_t const k_tiles = up(up(k > 0 ? (uint32_t)k : 1, row->tile_k), row->splits);
  uint64_t const tile = (uint64_t)k_tiles * row->k_tile_clocks + row->tile_clocks;
  uint32_t const waves = work / (resident * target->sms);
  uint32_t const rest = work - waves * resident * target->sms;
  uint64_t const halves = 2 * (uint64_t)waves * resident + (rest ? up(rest, target->sms) + resident : 0);
  if ((tile | halves) >> 31 != 0 && tile > COST_LIMIT / halves) return COST_LIMIT;
  return row->launch_clocks + tile * halves / 2;
}

/* ---- Selection --------------------------------------------------------------------------------------------------------- */

static int same_kind(uint32_t offered, uint32_t wanted) { /* but for accumulation, which may be more exact */
  return ((offered ^ wanted) & ~ACC_MASK) == 0 && (offered & ACC_MASK) <= (wanted & ACC_MASK);
}

enum { SERVES, LACKS_WORKSPACE, REFUSES };

/* Whether a row of the right kind takes a problem; `tiles` are then its CTA tiles, batches counted. */
static int takes(hgemm_row const *row, hgemm_wanted const *w, hgemm_target const *target, uint64_t *tiles) {
  if (row->align_a > w->align_a || row->align_b > w->align_b || row->align_d > w->align_d || row->beta < w->beta) return REFUSES;
  if (row->smem_bytes > target->smem_bytes || (row->tensor_maps && (w->k == 0 || !w->mappable))) return REFUSES;
  if (row->exact_tiles_only && (w->m % row->tile_m || w->n % row->tile_n || w->k % row->tile_k || w->k == 0)) return REFUSES;
  *tiles = hgemm_tiles(row, w->m, w->n);
  if (*tiles > MAX_CTAS) return REFUSES;
  *tiles *= (uint64_t)w->batch;
  if (*tiles > MAX_CTAS || *tiles * row->splits > MAX_CTAS) return REFUSES;
  return hgemm_workspace_bytes(row, *tiles) <= w->workspace_bytes ? SERVES : LACKS_WORKSPACE;
}

static int compare(hgemm_measured const *x, hgemm_target const *target, hgemm_wanted const *w) {
  int64_t const found[] = {x->capability, x->kind, x->m, x->n, x->k, x->batch};
  int64_t const sought[] = {target->number, w->kind, w->m, w->n, w->k, w->batch};
  for (int i = 0; i < 6; ++i) {
    if (found[i] != sought[i]) return found[i] < sought[i] ? -1 : 1;
  }
  return 0;
}

static hgemm_measured const *find_measured(hgemm_target const *target, hgemm_wanted const *w) {
  uint32_t low = 0, high = HGEMM_MEASURED_COUNT;
  while (low < high) {
    uint32_t const middle = low + (high - low) / 2;
    int const order = compare(&hgemm_measurements[middle], target, w);
    if (order == 0) return &hgemm_measurements[middle];
    if (order < 0) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

/* The place of a row in the measured order; past its end where it is not there. */
static uint32_t rank(hgemm_measured const *measured, uint32_t row) {
  uint32_t place = 0;
  if (measured == NULL) return 0;
  while (place < measured->count && hgemm_orders[measured->first + place] != row) ++place;
  return place;
}

static hgemm_status none(hgemm_target const *target, hgemm_wanted const *w, int kind_is_there, uint64_t least_workspace) {
  if (least_workspace != UINT64_MAX) {
    return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the workspace has %llu bytes, and %llu are needed",
                      (unsigned long long)w->workspace_bytes, (unsigned long long)least_workspace);
  }
  if (!kind_is_there) {
    return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel for sm_%lu has this layout, types, bias and activation",
                      (unsigned long)target->number);
  }
  return hgemm_fail(HGEMM_ERROR_NO_KERNEL,
                    "no kernel for sm_%lu takes %lldx%lldx%lld, %lld times, with A, B and D aligned to %lu, %lu and %lu elements",
                    (unsigned long)target->number, (long long)w->m, (long long)w->n, (long long)w->k, (long long)w->batch,
                    (unsigned long)w->align_a, (unsigned long)w->align_b, (unsigned long)w->align_d);
}

static hgemm_status rank_all(hgemm_target const *target, hgemm_wanted const *w, uint32_t *chosen) {
  hgemm_measured const *const measured = find_measured(target, w);
  uint64_t best_clocks = UINT64_MAX, least_workspace = UINT64_MAX;
  uint32_t best_rank = UINT32_MAX, best = UINT32_MAX;
  int kind_is_there = 0;
  uint8_t way = HGEMM_NOT_HERE;
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (!same_kind(group->kind, w->kind)) continue;
    if (target->ways[target->order[i]] != way && best != UINT32_MAX) break;
    way = target->ways[target->order[i]];
    kind_is_there = 1;
    for (uint32_t row = group->first; row < group->first + group->count; ++row) {
      uint64_t tiles, clocks;
      uint32_t place;
      int const answer = takes(&hgemm_rows[row], w, target, &tiles);
      if (answer == LACKS_WORKSPACE) {
        uint64_t const needed = hgemm_workspace_bytes(&hgemm_rows[row], tiles);
        if (needed < least_workspace) least_workspace = needed;
      }
      if (answer != SERVES) continue;
      place = rank(measured, row);
      clocks = hgemm_clocks(target, row, tiles, w->k);
      if (place < best_rank || (place == best_rank && clocks < best_clocks)) best_rank = place, best_clocks = clocks, best = row;
    }
  }
  if (best == UINT32_MAX) return none(target, w, kind_is_there, least_workspace);
  *chosen = best;
  return HGEMM_OK;
}

/* ---- What a thread chose before ---------------------------------------------------------------------------------------- */

/* Programs ask for the same few problems again and again, and an answer depends on nothing else. */
typedef struct Recent {
  uint32_t number, sms, smem_bytes; /* of the device; no device has 0 SMs */
  hgemm_wanted wanted;
  uint32_t row;
} Recent;

static int same_wanted(hgemm_wanted const *x, hgemm_wanted const *y) {
  return x->kind == y->kind && x->m == y->m && x->n == y->n && x->k == y->k && x->batch == y->batch && x->beta == y->beta &&
         x->align_a == y->align_a && x->align_b == y->align_b && x->align_d == y->align_d && x->mappable == y->mappable &&
         x->workspace_bytes == y->workspace_bytes;
}

hgemm_status hgemm_choose(hgemm_target const *target, hgemm_wanted const *w, uint32_t *chosen) {
  enum { KEPT = 32 };
  static _Thread_local Recent kept[KEPT];
  uint64_t const mixed = ((uint64_t)w->m * 31 + (uint64_t)w->n * 37 + (uint64_t)w->k * 41 + w->kind) * UINT64_C(0x9E3779B97F4A7C15);
  Recent *const recent = &kept[mixed >> 59]; /* 5 bits, of 32 */
  hgemm_status status = HGEMM_OK;
  if (recent->sms != target->sms || recent->number != target->number || recent->smem_bytes != target->smem_bytes ||
      !same_wanted(&recent->wanted, w)) {
    uint32_t row;
    status = rank_all(target, w, &row);
    if (status != HGEMM_OK) return status;
    recent->number = target->number, recent->sms = target->sms, recent->smem_bytes = target->smem_bytes;
    recent->wanted = *w;
    recent->row = row;
  }
  *chosen = recent->row;
  return status;
}
