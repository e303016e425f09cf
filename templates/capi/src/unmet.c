/* The error message if no kernel supports a problem: which requirements are unmet, and by how many kernels.
 *
 * unmet_requirements() of the Python package hgemm writes the same message. */
#include <inttypes.h>
#include <stdio.h>

#include "internal.h"

enum { ALIGNMENT, NO_BETA, SHARED_MEMORY, TENSOR_MAPS, WHOLE_TILES, FEWER_TILES, FEWER_SHARED, FEWER_REDUCED, WORKSPACE, REQUIREMENTS };
enum { LIST_BYTES = 512, ITEM_BYTES = 128 };

typedef struct Unmet {
  uint32_t rows;                 /* kernels of the right kind that run on the device */
  uint32_t counts[REQUIREMENTS]; /* of these, how many have this requirement unmet */
  uint64_t workspace_bytes;      /* smallest workspace that makes a kernel usable; UINT64_MAX if none does */
} Unmet;

/* Returns the unmet requirements of a row, one bit each. Writes its CTA tiles, unless they are too many. */
static uint32_t unmet_of(hgemm_target const *target, hgemm_row const *row, hgemm_query const *q, uint64_t *tiles) {
  uint32_t unmet = 0;
  if (row->align_a > q->align_a || row->align_b > q->align_b || row->align_d > q->align_d) unmet |= 1U << ALIGNMENT;
  if (row->beta < q->beta) unmet |= 1U << NO_BETA;
  if (row->smem_bytes > target->smem_bytes) unmet |= 1U << SHARED_MEMORY;
  if (row->tensor_maps && (q->k == 0 || !q->mappable)) unmet |= 1U << TENSOR_MAPS;
  if (row->exact_tiles_only && (q->k == 0 || !hgemm_whole_tiles(row, q))) unmet |= 1U << WHOLE_TILES;
  if (!hgemm_grid_tiles(row, q, tiles)) return unmet | 1U << FEWER_TILES;
  if (row->decides_splits) return unmet;
  if (!hgemm_has_counters(row, q, *tiles)) return unmet | 1U << (hgemm_reduces(row) ? FEWER_REDUCED : FEWER_SHARED);
  return hgemm_workspace_bytes(row, q, *tiles, row->splits) > q->workspace_bytes ? unmet | 1U << WORKSPACE : unmet;
}

/* Counts the rows of the right kind and, if `order` is not null, of this accumulation order. */
static Unmet count(hgemm_target const *target, hgemm_query const *q, hgemm_order const *order) {
  Unmet all = {0, {0}, UINT64_MAX};
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (!hgemm_kind_matches(group->kind, q->kind)) continue;
    for (uint32_t row = group->first; row < group->first + group->count; ++row) {
      uint32_t const splits = order != NULL ? order->splits : hgemm_rows[row].splits;
      uint64_t tiles, needed;
      uint32_t unmet;
      if (order != NULL && !(hgemm_has_divisors(&hgemm_rows[row]) && hgemm_has_order(&hgemm_rows[row], q->k, order))) continue;
      ++all.rows;
      if (!hgemm_has_divisors(&hgemm_rows[row])) continue;
      unmet = unmet_of(target, &hgemm_rows[row], q, &tiles);
      if (order != NULL && unmet == 0) unmet = 1U << WORKSPACE; /* of splits that the launch decides */
      for (uint32_t one = 0; one < REQUIREMENTS; ++one) all.counts[one] += unmet >> one & 1;
      if (unmet != 1U << WORKSPACE) continue;
      needed = hgemm_workspace_bytes(&hgemm_rows[row], q, tiles, splits);
      if (needed < all.workspace_bytes) all.workspace_bytes = needed;
    }
  }
  return all;
}

static void describe(uint32_t requirement, hgemm_target const *target, hgemm_query const *q, char text[ITEM_BYTES]) {
  switch (requirement) {
    case ALIGNMENT:
      snprintf(text, ITEM_BYTES, "more alignment (A, B and %s have %lu, %lu and %lu elements)", q->align_d_of,
               (unsigned long)q->align_a, (unsigned long)q->align_b, (unsigned long)q->align_d);
      return;
    case NO_BETA: snprintf(text, ITEM_BYTES, "beta 0"); return;
    case SHARED_MEMORY:
      snprintf(text, ITEM_BYTES, "more shared memory (a CTA has %lu B)", (unsigned long)target->smem_bytes);
      return;
    case TENSOR_MAPS:
      snprintf(text, ITEM_BYTES, "addresses that TMA supports (k above 0, strides below %lld B)",
               (long long)HGEMM_MAX_MAP_STRIDE_BYTES);
      return;
    case WHOLE_TILES: snprintf(text, ITEM_BYTES, "extents of whole tiles"); return;
    case FEWER_TILES: snprintf(text, ITEM_BYTES, "fewer CTA tiles (%d at most)", HGEMM_MAX_CTAS); return;
    case FEWER_SHARED: snprintf(text, ITEM_BYTES, "fewer tiles that share k (%d at most)", HGEMM_WORKSPACE_COUNTERS); return;
    case FEWER_REDUCED:
      snprintf(text, ITEM_BYTES, "fewer rows and columns of tiles that are reduced (%d at most)", HGEMM_WORKSPACE_COUNTERS);
      return;
    default: snprintf(text, ITEM_BYTES, "more workspace (%llu B are given)", (unsigned long long)q->workspace_bytes);
  }
}

/* Lists the unmet requirements, the most frequent first. Clears all->counts. */
static void list(Unmet *all, hgemm_target const *target, hgemm_query const *q, char text[LIST_BYTES]) {
  int used = 0;
  for (;;) {
    char item[ITEM_BYTES];
    uint32_t most = 0;
    for (uint32_t one = 1; one < REQUIREMENTS; ++one) most = all->counts[one] > all->counts[most] ? one : most;
    if (all->counts[most] == 0) return;
    describe(most, target, q, item);
    used += snprintf(text + used, (size_t)(LIST_BYTES - used), "%s%lu of %lu need %s", used > 0 ? ", " : "",
                     (unsigned long)all->counts[most], (unsigned long)all->rows, item);
    all->counts[most] = 0;
  }
}

/* Describes a kind as Python does, such as "tn f16->f16 acc f32 bias row silu". */
static void describe_kind(uint64_t kind, char text[ITEM_BYTES]) {
  static char const *const layouts[] = {HGEMM_LAYOUT_WORDS};
  static char const *const dtypes[] = {HGEMM_DTYPE_WORDS};
  static char const *const accs[] = {HGEMM_ACC_WORDS};
  static char const *const biases[] = {HGEMM_BIAS_WORDS};
  static char const *const activations[] = {HGEMM_ACTIVATION_WORDS};
  uint32_t const a = kind >> 4 & 15, b = kind >> 8 & 15, bias = kind >> 20 & 15, activation = kind >> 24 & 15;
  char epilogue[32] = "";
  if ((kind & HGEMM_KIND_HAS_EPILOGUE) != 0) snprintf(epilogue, sizeof epilogue, " epilogue %08" PRIx32, (uint32_t)(kind >> 28));
  snprintf(text, ITEM_BYTES, "%s %s%s%s->%s acc %s%s%s%s%s%s%s", layouts[kind & 15], dtypes[a], a != b ? "*" : "",
           a != b ? dtypes[b] : "", dtypes[kind >> 12 & 15], accs[kind >> 16 & 15], bias != 0 ? " bias " : "",
           bias != 0 ? biases[bias] : "", activation != 0 ? " " : "", activation != 0 ? activations[activation] : "", epilogue,
           (kind & HGEMM_KIND_HAS_POINTER_ARRAYS) != 0 ? " pointer arrays" : "");
}

/* Tells how to get a kernel of a kind that the library lacks. */
static char const *fix_of(uint64_t kind) {
  if ((kind & HGEMM_KIND_HAS_POINTER_ARRAYS) != 0) return "generate one with --pointer-arrays on";
  if ((kind & HGEMM_KIND_HAS_EPILOGUE) != 0) return "generate one with --epilogue for this GPU";
  return "hgemm_list lists the kernels; `hgemm cover --add` builds more";
}

hgemm_status hgemm_fail_unmet(hgemm_target const *target, hgemm_query const *q) {
  int const invariant = (q->flags & HGEMM_BATCH_INVARIANT) != 0 && q->k > 0;
  hgemm_order order;
  int const ordered = invariant && hgemm_find_order(target, q, &order);
  Unmet all = count(target, q, ordered ? &order : NULL);
  char text[LIST_BYTES], all_m[ITEM_BYTES] = "";
  if (target->count == 0) {
    return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel of this library runs on sm_%lu", (unsigned long)target->number);
  }
  if (all.rows == 0) {
    char kind[ITEM_BYTES];
    describe_kind(q->kind, kind);
    return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel for sm_%lu computes %s: %s", (unsigned long)target->number, kind,
                      fix_of(q->kind));
  }
  if (invariant && !ordered) {
    return hgemm_fail(HGEMM_ERROR_NO_KERNEL,
                      "no kernel for sm_%lu adds k in one order for every m with n %lld and k %lld: export one with schedule "
                      "one_tile and the alignment of n and k, or clear HGEMM_BATCH_INVARIANT",
                      (unsigned long)target->number, (long long)q->n, (long long)q->k);
  }
  if (all.workspace_bytes != UINT64_MAX && !ordered) {
    return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the workspace has %llu bytes, and %llu are needed",
                      (unsigned long long)q->workspace_bytes, (unsigned long long)all.workspace_bytes);
  }
  list(&all, target, q, text);
  if (ordered) {
    snprintf(all_m, sizeof all_m, ", with the order of all m (order_%08lx, splits %lu)", (unsigned long)order.order,
             (unsigned long)order.splits);
  }
  return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel for sm_%lu supports %lldx%lldx%lld, batch %lld%s: %s",
                    (unsigned long)target->number, (long long)q->m, (long long)q->n, (long long)q->k, (long long)q->batch,
                    all_m, text);
}
