/* What the sources of this library share: the table of its kernels, a checked problem, and the driver. */
#ifndef HGEMM_INTERNAL_H
#define HGEMM_INTERNAL_H

#include "hgemm.h"
#include "table.h"

/* ---- The table: written by the generator, the same numbers as the library's dispatch table in Python -------------------- */

enum { HGEMM_EXACT, HGEMM_COMPATIBLE, HGEMM_PTX, HGEMM_NOT_HERE }; /* how code runs on a device, the preferred way first */

typedef struct hgemm_code { /* in the image blob */
  uint64_t offset;
  uint32_t bytes, crc32;
} hgemm_code;

typedef struct hgemm_map_rule { /* of a tensor map; box[0] is 0 where the kernel has none */
  uint32_t box[3];              /* elements along the contiguous axis, the other axis and the batch */
  uint32_t swizzle_bytes;
} hgemm_map_rule;

typedef struct hgemm_row {
  char const *symbol;
  uint32_t group;
  uint32_t tile_m, tile_n, tile_k, cluster_m, cluster_n, splits, smem_bytes;
  uint32_t align_a, align_b, align_d, beta, exact_tiles_only, tensor_maps;
  uint32_t counter_bytes_per_tile, partial_bytes_per_tile, partial_bytes_per_cta;
  uint32_t max_ctas; /* of stream-K's grid, and 0 of others */
  uint32_t operand_bytes, result_bytes, overlapping, together, sms_lost;
  uint32_t k_tile_clocks, straddled_clocks, tile_clocks, alone_k_tile_clocks, alone_tile_clocks, launch_clocks;
  uint32_t memory_clocks, mib_clocks, again_clocks, again_mib_clocks;
  uint32_t threads, persistent;
  uint32_t programmatic;  /* a launch may begin before the one before it has ended: the kernel waits itself */
  hgemm_map_rule maps[3]; /* A, B, D */
  hgemm_code cubin, ptx;
} hgemm_row;

typedef struct hgemm_group {
  char const *arch;
  uint32_t number; /* 90 */
  uint32_t own;    /* 1 where code runs on exactly this architecture, as sm_90a's does */
  uint32_t kind, first, count;
} hgemm_group;

typedef struct hgemm_near { /* a row that may be the best in a region, and the factor of its estimate there, of 4096 */
  uint16_t row, factor;
} hgemm_near;

#define HGEMM_HAS_MEASURED (UINT32_C(1) << 31) /* a problem was measured in this region */

typedef struct hgemm_measured { /* a problem, and the rows that were compared there, the best first */
  int64_t m, n, k, batch;
  uint32_t first_order, order_count;
} hgemm_measured;

typedef struct hgemm_survey { /* problems of one kind, in their order, measured on devices of so many SMs */
  uint32_t capability, sms, kind, first, count;
} hgemm_survey;

extern hgemm_group const hgemm_groups[HGEMM_GROUP_COUNT];
extern hgemm_row const hgemm_rows[HGEMM_ROW_COUNT];
extern hgemm_survey const hgemm_surveys[HGEMM_SURVEY_COUNT + 1];
extern hgemm_measured const hgemm_measurements[HGEMM_MEASURED_COUNT + 1];
extern uint32_t const hgemm_orders[HGEMM_ORDER_COUNT + 1];
extern uint32_t const hgemm_regions[HGEMM_SURVEY_COUNT * HGEMM_REGION_COUNT + 1]; /* by survey and region, a place in hgemm_lists, and HGEMM_HAS_MEASURED */
extern uint32_t const hgemm_lists[HGEMM_LIST_COUNT + 2]; /* of each list, its first place in hgemm_nears; the next one's is its end */
extern hgemm_near const hgemm_nears[HGEMM_NEAR_COUNT + 1];
extern unsigned char const hgemm_images[];

/* ---- Problems ---------------------------------------------------------------------------------------------------------- */

/* A problem as selection sees it; alignments are elements, 1 to 8, of a pointer and its strides together. */
typedef struct hgemm_wanted {
  uint32_t kind;
  int64_t m, n, k, batch;
  uint32_t beta, align_a, align_b, align_d;
  uint32_t mappable;   /* 1 where TMA can address its strides */
  uint32_t straddling; /* how many of A and B have rows that begin off the sectors of L2 */
  uint64_t workspace_bytes;
} hgemm_wanted;

typedef struct hgemm_call {
  hgemm_problem problem; /* with what is not looked at made harmless */
  hgemm_wanted wanted;
  int nothing; /* m, n or batch is 0 */
} hgemm_call;

enum hgemm_purpose { HGEMM_TO_PLAN, HGEMM_TO_RUN }; /* null pointers are legal where a launch is only planned */

/* Checks all that can be known of a problem before a kernel is chosen. */
hgemm_status hgemm_check(hgemm_problem const *problem, enum hgemm_purpose purpose, hgemm_call *call);

/* Checks what depends on the kernel: that D keeps clear of the workspace it uses. */
hgemm_status hgemm_check_workspace(hgemm_call const *call, enum hgemm_purpose purpose, uint64_t needed);

enum { HGEMM_MAX_CTAS = 2147483647 };
#define HGEMM_MAX_MAP_STRIDE_BYTES (INT64_C(1) << 40) /* that TMA addresses */

/* ---- Selection --------------------------------------------------------------------------------------------------------- */

typedef struct hgemm_target {
  uint32_t number, sms, smem_bytes; /* 90 for compute capability 9.0 */
  uint32_t count;                   /* groups that run here, the preferred way first */
  uint16_t order[HGEMM_GROUP_COUNT];
  uint8_t ways[HGEMM_GROUP_COUNT];     /* by group */
  uint8_t row_ways[HGEMM_ROW_COUNT];   /* by row; HGEMM_NOT_HERE too where its shared memory does not fit */
  uint32_t needs[HGEMM_ROW_COUNT];     /* what a problem must bring, by row, a bit each */
  uint32_t overlapping[HGEMM_ROW_COUNT]; /* tiles that an SM works on at once, by row */
  uint32_t sms_used[HGEMM_ROW_COUNT];    /* SMs that clusters can use, by row */
  uint32_t survey_count;
  uint16_t surveys[HGEMM_SURVEY_COUNT + 1]; /* for each kind, what was measured on devices most like this one */
} hgemm_target;

/* What rows ask of a problem and problems bring, a bit each: alignments as they are, 1 to 8, of A, B and D, and the others. */
enum {
  NEEDS_B = 4, /* where B's bits begin */
  NEEDS_D = 8,
  NEEDS_NO_BETA = 1 << 12,
  NEEDS_MAPS = 1 << 13,
  NEEDS_WHOLE_TILES = 1 << 14,
  NEEDS_WORKSPACE = 1 << 15
};

typedef struct hgemm_found {
  uint32_t row; /* its place; HGEMM_ROW_COUNT for none */
  uint32_t rule;
  uint64_t tiles, clocks; /* its CTA tiles, batches counted, and its estimate */
} hgemm_found;

void hgemm_target_init(hgemm_target *target, uint32_t number, uint32_t sms, uint32_t smem_bytes);

/* Writes which row is taken, and the hgemm_rule by which, or tells why there is none. */
hgemm_status hgemm_choose(hgemm_target const *target, hgemm_wanted const *wanted, hgemm_found *found);

/* Tells what rows need where none serves a problem, and returns the status that goes with it. */
hgemm_status hgemm_lacking(hgemm_target const *target, hgemm_wanted const *wanted);

/* Whether kernels of one kind compute products of another: of the same, but for accumulation, which may be more exact. */
int hgemm_same_kind(uint32_t offered, uint32_t wanted);
int hgemm_whole_tiles(hgemm_row const *row, hgemm_wanted const *wanted);

/* Writes a row's CTA tiles, batches counted; 0 where a grid cannot have so many. */
int hgemm_grid_tiles(hgemm_row const *row, hgemm_wanted const *wanted, uint64_t *tiles);

/* CTA tiles of one D, those that complete clusters counted; in all else, `tiles` are those of all batches. */
uint64_t hgemm_tiles(hgemm_row const *row, int64_t m, int64_t n);
uint64_t hgemm_counter_bytes(hgemm_row const *row, uint64_t tiles);
uint64_t hgemm_workspace_bytes(hgemm_row const *row, uint64_t tiles);

/* ---- Words ------------------------------------------------------------------------------------------------------------- */

/* Keeps a message for hgemm_last_message and returns the status. */
hgemm_status hgemm_fail(hgemm_status status, char const *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
