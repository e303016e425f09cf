/* What of selection depends on the device alone, worked out once: select.py and cost.py of the run-time package, step by step. */
#include "internal.h"

enum { TEGRA = 87, SMEM_RESERVED_BYTES_PER_CTA = 1024 };

/* A cubin runs on its own major architecture, from its minor version on, but not from or to Tegra; PTX on all later ones. */
static uint8_t way_of(hgemm_group const *group, uint32_t here) {
  if (group->number == here) return HGEMM_EXACT;
  if (group->own || group->number > here) return HGEMM_NOT_HERE;
  if (group->number == TEGRA || here == TEGRA || group->number / 10 != here / 10) return HGEMM_PTX;
  return HGEMM_COMPATIBLE;
}

static uint32_t sms_apart(hgemm_survey const *survey, hgemm_target const *target) {
  return survey->sms > target->sms ? survey->sms - target->sms : target->sms - survey->sms;
}

/* Tiles of a kernel that an SM works on at once, which hide one another's waiting. */
static uint32_t overlapping(hgemm_row const *row, uint32_t smem_bytes) {
  uint32_t const fitting = (smem_bytes + SMEM_RESERVED_BYTES_PER_CTA) / (row->smem_bytes + SMEM_RESERVED_BYTES_PER_CTA);
  uint32_t const least = row->overlapping < fitting ? row->overlapping : fitting;
  if (row->tensor_maps) return row->overlapping;
  return least > 1 ? least : 1;
}

/* SMs that a kernel's clusters can use. */
static uint32_t sms_used(hgemm_row const *row, uint32_t sms) {
  uint32_t const left = sms > row->sms_lost ? sms - row->sms_lost : sms, clusters = left / row->together;
  return (clusters > 1 ? clusters : 1) * row->together;
}

/* Of each kind, what was measured on devices of this capability whose SMs are nearest in number, the fewer first. */
static void choose_surveys(hgemm_target *target) {
  target->survey_count = 0;
  for (uint32_t i = 0; i < HGEMM_SURVEY_COUNT; ++i) {
    hgemm_survey const *const survey = &hgemm_surveys[i];
    uint32_t place = 0;
    if (survey->capability != target->number) continue;
    while (place < target->survey_count && hgemm_surveys[target->surveys[place]].kind != survey->kind) ++place;
    if (place == target->survey_count) ++target->survey_count;
    else if (sms_apart(survey, target) >= sms_apart(&hgemm_surveys[target->surveys[place]], target)) continue;
    target->surveys[place] = (uint16_t)i;
  }
}

/* What a row asks of a problem. */
static uint32_t needs_of(hgemm_row const *row) {
  return row->align_a | row->align_b << NEEDS_B | row->align_d << NEEDS_D | (row->tensor_maps ? NEEDS_MAPS : 0) |
         (row->exact_tiles_only ? NEEDS_WHOLE_TILES : 0) |
         (row->counter_bytes_per_tile + row->partial_bytes_per_tile + row->partial_bytes_per_cta > 0 ? NEEDS_WORKSPACE : 0) |
         (row->beta ? 0 : NEEDS_NO_BETA);
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
  for (uint32_t place = 0; place < HGEMM_ROW_COUNT; ++place) {
    hgemm_row const *const row = &hgemm_rows[place];
    target->row_ways[place] = row->smem_bytes > smem_bytes ? HGEMM_NOT_HERE : target->ways[row->group];
    target->needs[place] = needs_of(row);
    target->overlapping[place] = overlapping(row, smem_bytes);
    target->sms_used[place] = sms_used(row, sms);
  }
  choose_surveys(target);
}
