/* What kernels need where none serves a problem: needs() of the run-time package's serving.py, counted over kernels. */
#include <stdio.h>

#include "internal.h"

enum { ALIGNMENT, ADDED_C, SHARED_MEMORY, TENSOR_MAPS, WHOLE_TILES, FEWER_TILES, WORKSPACE, LACKS };
enum { LIST_BYTES = 512, LACK_BYTES = 96 };

typedef struct Lacks {
  uint32_t rows; /* of this kind, for this device */
  uint32_t counts[LACKS];
  uint64_t least_workspace; /* of rows that lack nothing else; UINT64_MAX where there is none */
} Lacks;

/* What a row lacks for a problem of its kind, a bit each; `tiles` are its CTA tiles, unless they are too many. */
static uint32_t lacks_of(hgemm_target const *target, hgemm_row const *row, hgemm_wanted const *w, uint64_t *tiles) {
  uint32_t found = 0;
  if (row->align_a > w->align_a || row->align_b > w->align_b || row->align_d > w->align_d) found |= 1U << ALIGNMENT;
  if (row->beta < w->beta) found |= 1U << ADDED_C;
  if (row->smem_bytes > target->smem_bytes) found |= 1U << SHARED_MEMORY;
  if (row->tensor_maps && (w->k == 0 || !w->mappable)) found |= 1U << TENSOR_MAPS;
  if (row->exact_tiles_only && (w->k == 0 || !hgemm_whole_tiles(row, w))) found |= 1U << WHOLE_TILES;
  if (!hgemm_grid_tiles(row, w, tiles)) return found | 1U << FEWER_TILES;
  return hgemm_workspace_bytes(row, *tiles) > w->workspace_bytes ? found | 1U << WORKSPACE : found;
}

static Lacks count(hgemm_target const *target, hgemm_wanted const *w) {
  Lacks all = {0, {0}, UINT64_MAX};
  for (uint32_t i = 0; i < target->count; ++i) {
    hgemm_group const *const group = &hgemm_groups[target->order[i]];
    if (!hgemm_same_kind(group->kind, w->kind)) continue;
    for (uint32_t row = group->first; row < group->first + group->count; ++row, ++all.rows) {
      uint64_t tiles, needed;
      uint32_t const found = lacks_of(target, &hgemm_rows[row], w, &tiles);
      for (uint32_t lack = 0; lack < LACKS; ++lack) all.counts[lack] += found >> lack & 1;
      if (found != 1U << WORKSPACE) continue;
      needed = hgemm_workspace_bytes(&hgemm_rows[row], tiles);
      if (needed < all.least_workspace) all.least_workspace = needed;
    }
  }
  return all;
}

/* Puts into words what is needed where a row lacks something, with what there is. */
static void name(uint32_t lack, hgemm_target const *target, hgemm_wanted const *w, char words[LACK_BYTES]) {
  switch (lack) {
    case ALIGNMENT:
      snprintf(words, LACK_BYTES, "more alignment (A, B and D have %lu, %lu and %lu elements)", (unsigned long)w->align_a,
               (unsigned long)w->align_b, (unsigned long)w->align_d);
      return;
    case ADDED_C: snprintf(words, LACK_BYTES, "beta 0"); return;
    case SHARED_MEMORY:
      snprintf(words, LACK_BYTES, "more shared memory (a CTA has %lu B)", (unsigned long)target->smem_bytes);
      return;
    case TENSOR_MAPS:
      snprintf(words, LACK_BYTES, "what TMA addresses (k above 0, strides below %lld B)", (long long)HGEMM_MAX_MAP_STRIDE_BYTES);
      return;
    case WHOLE_TILES: snprintf(words, LACK_BYTES, "extents of whole tiles"); return;
    case FEWER_TILES: snprintf(words, LACK_BYTES, "fewer CTA tiles (%d at most)", HGEMM_MAX_CTAS); return;
    default: snprintf(words, LACK_BYTES, "more workspace (%llu B are given)", (unsigned long long)w->workspace_bytes);
  }
}

/* Lists what rows need, what most of them do first. */
static void list(Lacks *all, hgemm_target const *target, hgemm_wanted const *w, char text[LIST_BYTES]) {
  int used = 0;
  for (;;) {
    char words[LACK_BYTES];
    uint32_t most = 0;
    for (uint32_t lack = 1; lack < LACKS; ++lack) most = all->counts[lack] > all->counts[most] ? lack : most;
    if (all->counts[most] == 0) return;
    name(most, target, w, words);
    used += snprintf(text + used, (size_t)(LIST_BYTES - used), "%s%lu of %lu need %s", used > 0 ? ", " : "",
                     (unsigned long)all->counts[most], (unsigned long)all->rows, words);
    all->counts[most] = 0;
  }
}

hgemm_status hgemm_lacking(hgemm_target const *target, hgemm_wanted const *w) {
  Lacks all = count(target, w);
  char text[LIST_BYTES];
  if (target->count == 0) {
    return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel of this library runs on sm_%lu", (unsigned long)target->number);
  }
  if (all.rows == 0) {
    return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel for sm_%lu has this layout, types, bias and activation",
                      (unsigned long)target->number);
  }
  if (all.least_workspace != UINT64_MAX) {
    return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the workspace has %llu bytes, and %llu are needed",
                      (unsigned long long)w->workspace_bytes, (unsigned long long)all.least_workspace);
  }
  list(&all, target, w, text);
  return hgemm_fail(HGEMM_ERROR_NO_KERNEL, "no kernel for sm_%lu takes %lldx%lldx%lld, %lld times: %s",
                    (unsigned long)target->number, (long long)w->m, (long long)w->n, (long long)w->k, (long long)w->batch, text);
}
