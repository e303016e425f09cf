/* Types and functions that the sources of this library share: the table of kernels, checked problems, and selection. */
#ifndef HGEMM_INTERNAL_H
#define HGEMM_INTERNAL_H

#include "hgemm.h"
#include "table.h"

/* ---- The table of kernels. table.c is generated; table.json has the same numbers. ---------------------------------------- */

typedef struct hgemm_image { /* code of one kernel in images.bin */
  uint64_t offset;
  uint32_t bytes, crc32;
} hgemm_image;

typedef struct hgemm_map_rule { /* how to encode a tensor map; box[0] is 0 if the operand has none */
  uint32_t box[3];              /* elements along the contiguous axis, the other axis and the batch */
  uint32_t swizzle_bytes;
  uint32_t edge; /* 1 if the kernel takes three maps of the operand: see encode_all in launch.c */
} hgemm_map_rule;

typedef struct hgemm_row { /* one kernel */
  char const *symbol;
  uint32_t group; /* index in hgemm_groups */
  uint32_t tile_m, tile_n, tile_k, cluster_m, cluster_n, splits, smem_bytes;
  uint32_t align_a, align_b, align_d, beta, exact_tiles_only, tensor_maps;
  uint32_t decides_splits, decides_raster; /* 1 if each launch decides them */
  uint32_t serial_parts;                   /* 1 if tiles that are not split add k in the parts of those that are */
  uint32_t persistent;                     /* 1 if CTAs take tiles until none is left */
  uint32_t partial_bytes;                  /* partial accumulators of a tile in a workspace; 0 if no launch needs one */
  uint32_t max_ctas;                       /* largest grid of stream-K; 0 for kernels that have none */
  uint32_t segment_columns, reductions;    /* a workspace has a float for each reduction, row and segment of these columns of B */
  uint32_t column_reductions;              /* and one for each reduction, column of D and segment of SEGMENT_ROWS rows */
  uint32_t gated_parts;                    /* columns of B for a column of D: 2 for a gated pair */
  /* Coefficients of the cost model; see Clocks in hgemm/dispatch_table.py. */
  uint32_t operand_bytes, result_bytes, tiles_per_sm, cluster_ctas, unusable_sms;
  uint32_t k_tile_clocks, straddling_clocks, tile_clocks, single_k_tile_clocks, single_tile_clocks, launch_clocks;
  uint32_t dram_start_clocks, dram_mib_clocks, l2_clocks, l2_mib_clocks, split_clocks, partial_clocks;
  uint32_t calibration; /* whose measurements corrected the coefficients: 0 none, 1 other kernels, 2 this kernel */
  uint32_t order;        /* accumulation order of launches that do not split k; 0 if it is unknown or depends on the grid */
  uint32_t cublas_order; /* 1 if it is that of cuBLASLt's unsplit kernels */
  /* The launch. */
  uint32_t threads;
  uint32_t programmatic;  /* 1: programmatic dependent launch; the kernel itself waits for the previous grid */
  hgemm_map_rule maps[3]; /* A, B, D */
  hgemm_image cubin, ptx;
} hgemm_row;

/* Tells whether an expression has reductions. */
static inline int hgemm_reduces(hgemm_row const *row) { return row->reductions + row->column_reductions > 0; }

#define HGEMM_KIND_HAS_EPILOGUE (UINT64_C(1) << 60)
#define HGEMM_KIND_HAS_POINTER_ARRAYS (UINT64_C(1) << 61)

typedef struct hgemm_group { /* the kernels of one architecture and one kind: rows first to first + count */
  char const *arch;
  uint32_t number;   /* 90 for sm_90 and sm_90a */
  uint32_t specific; /* 1 if the code runs on exactly this architecture, such as sm_90a */
  uint64_t kind; /* layout, dtypes, acc, bias and activation, 4 bits each from the lowest; an epilogue's hash; HGEMM_KIND_ bits */
  uint32_t first, count;
} hgemm_group;

typedef struct hgemm_ratio { /* of a kernel that was measured on a problem */
  uint16_t row;
  uint16_t ratio; /* measured time / estimated time, relative to the problem's other kernels, in 1/4096 */
} hgemm_ratio;

typedef struct hgemm_measured { /* a measured problem */
  int64_t m, n, k, batch;
  uint32_t first_order, order_count; /* its kernels from the fastest to the slowest, in hgemm_orders */
  uint32_t first_ratio, ratio_count; /* its ratios in the order of rows, in hgemm_ratios */
  uint16_t point[4];                 /* octaves of m, n, k and batch */
  uint16_t straddles;                /* 1 if rows of A or B do not start at L2 sectors */
} hgemm_measured;

enum { HGEMM_PLACE_ROW, HGEMM_PLACE_K_TILES = 4, HGEMM_PLACE_NUMBERS = 8 };

typedef struct hgemm_options { /* launch options that were measured for one kernel on one problem */
  uint32_t place[HGEMM_PLACE_NUMBERS]; /* row, clusters along m and n, batch, k-tiles, m, n, k */
  uint32_t splits, whole_tiles;        /* whole_tiles are tiles of whole clusters */
  int32_t raster_tiles;
} hgemm_options;

/* The measured problems of one kind on one type of GPU, sorted by extents, and the measured options, sorted by place. */
typedef struct hgemm_survey {
  uint32_t capability, sms;
  uint64_t kind;
  uint32_t first, count, first_options, options_count;
} hgemm_survey;

typedef struct hgemm_node { /* of a tree that refines estimates: see hgemm/model/trees.py */
  int32_t bound;   /* the left child is next if the feature is at most this; the value of a leaf */
  int16_t feature; /* -1 for a leaf */
  uint16_t right;  /* the distance to the right child */
} hgemm_node;

extern hgemm_epilogue const hgemm_epilogues[HGEMM_EPILOGUE_COUNT + 1]; /* the last one has no hash */
extern hgemm_group const hgemm_groups[HGEMM_GROUP_COUNT];
extern hgemm_row const hgemm_rows[HGEMM_ROW_COUNT];
extern hgemm_survey const hgemm_surveys[HGEMM_SURVEY_COUNT + 1];
extern hgemm_measured const hgemm_measurements[HGEMM_MEASURED_COUNT + 1];
extern hgemm_options const hgemm_measured_options[HGEMM_OPTIONS_COUNT + 1];
extern uint32_t const hgemm_orders[HGEMM_ORDER_COUNT + 1];
extern hgemm_ratio const hgemm_ratios[HGEMM_RATIO_COUNT + 1];
extern uint16_t const hgemm_weights[HGEMM_WEIGHT_COUNT];                   /* of measurements, by distance */
extern uint16_t const hgemm_estimate_weights[HGEMM_ESTIMATE_WEIGHT_COUNT]; /* of estimates, by hgemm_row.calibration */
extern uint16_t const hgemm_wave_bounds[HGEMM_WAVE_BOUND_COUNT];            /* percent of a wave */
extern uint16_t const hgemm_wave_factors[HGEMM_WAVE_FACTOR_COUNT];         /* HGEMM_WAVE_BOUND_COUNT + 1 of each class */
extern hgemm_node const hgemm_nodes[HGEMM_NODE_COUNT + 1];
extern uint32_t const hgemm_roots[HGEMM_TREE_COUNT + 1]; /* the first node of each tree */
extern unsigned char const hgemm_images[];

/* ---- Checked problems -------------------------------------------------------------------------------------------------- */

/* What the selection depends on. Alignments are elements, 1 to 8, of the pointer and its strides together. */
typedef struct hgemm_query {
  uint64_t kind;
  int64_t m, n, k, batch;
  uint32_t beta; /* 1 if beta is not 0 */
  uint32_t align_a, align_b, align_d;
  char const *align_d_of; /* the operand that determines align_d: D, C, or a matrix of the epilogue */
  uint32_t mappable;   /* 1 if TMA can address the strides */
  uint32_t straddling; /* how many of A and B have rows that do not start at an L2 sector */
  uint64_t workspace_bytes;
  uint32_t flags; /* hgemm_flags; HGEMM_POINTER_ARRAYS is in `kind` */
} hgemm_query;

typedef struct hgemm_request {
  hgemm_problem problem; /* a copy; operands that are not used are null, and ignored strides have harmless values */
  hgemm_query query;
  hgemm_epilogue const *epilogue; /* null if the problem has none */
  int empty;       /* m, n or batch is 0: nothing to launch */
  int from_handle; /* 1 if a launch that needs a workspace takes one of the handle */
} hgemm_request;

enum hgemm_purpose { HGEMM_TO_SELECT, HGEMM_TO_LAUNCH }; /* null pointers are allowed for a selection */

/* Checks everything that does not depend on the selected kernel, and fills *request. `handle_bytes` is the size of the handle's
 * workspaces. */
hgemm_status hgemm_check_problem(hgemm_problem const *problem, enum hgemm_purpose purpose, uint64_t handle_bytes,
                                 hgemm_request *request);

/* Returns the epilogue of a kind, or null. */
hgemm_epilogue const *hgemm_epilogue_of(uint64_t kind);

/* Checks that no operand overlaps the first `needed` bytes of the workspace. */
hgemm_status hgemm_check_workspace(hgemm_request const *request, uint64_t needed);

enum { HGEMM_MAX_CTAS = 2147483647 };
#define HGEMM_MAX_MAP_STRIDE_BYTES (INT64_C(1) << 40) /* limit of TMA */

/* ---- Selection --------------------------------------------------------------------------------------------------------- */

/* How code runs on a device, the preferred way first. */
enum { HGEMM_SAME_ARCH_CUBIN, HGEMM_COMPATIBLE_CUBIN, HGEMM_PTX_JIT, HGEMM_CANNOT_RUN };

typedef struct hgemm_target { /* a device, and everything about the table that depends only on the device */
  uint32_t number;            /* 90 for compute capability 9.0 */
  uint32_t sms, smem_bytes;
  uint32_t dram_part; /* the time of DRAM, in parts of DRAM_ONE of that on the GPUs that calibrated the estimates */
  uint32_t count;                         /* groups that run here */
  uint16_t order[HGEMM_GROUP_COUNT];      /* these groups, the preferred ones first */
  uint8_t group_modes[HGEMM_GROUP_COUNT]; /* how each group runs here */
  uint8_t row_modes[HGEMM_ROW_COUNT];     /* the same by row; also HGEMM_CANNOT_RUN if shared memory is too small */
  uint32_t required[HGEMM_ROW_COUNT];     /* REQUIRE_ bits of each row */
  uint32_t tiles_per_sm[HGEMM_ROW_COUNT]; /* tiles of each row that one SM processes at the same time */
  uint32_t sms_used[HGEMM_ROW_COUNT];     /* SMs that the clusters of each row can use */
  uint8_t wave_class[HGEMM_ROW_COUNT];    /* the part of hgemm_wave_factors that each row has */
  uint32_t survey_count;
  uint16_t surveys[HGEMM_SURVEY_COUNT + 1]; /* for each kind, the survey of the most similar GPU */
} hgemm_target;

typedef struct hgemm_selected {
  uint32_t row; /* HGEMM_ROW_COUNT if there is none */
  uint32_t rule;
  uint64_t tiles;  /* CTA tiles of the whole batch */
  uint64_t clocks; /* estimate */
  uint32_t splits;       /* CTAs that share the k of a tile */
  uint32_t whole_tiles;  /* the first CTA tiles of the batch, which are not split */
  int32_t raster_tiles;  /* groups of so many rows of tiles, if the launch decides the raster */
} hgemm_selected;

enum { HGEMM_WORKSPACE_COUNTERS = 65536 };

/* Tells whether no number by which the selection divides is 0. The exporter checks this too; a table may be damaged later. */
int hgemm_has_divisors(hgemm_row const *row);

/* `dram_gbytes` are those of a second; 0 for the usual speed. */
void hgemm_target_init(hgemm_target *target, uint32_t number, uint32_t sms, uint32_t smem_bytes, uint32_t dram_gbytes);

/* The accumulation order of a launch. KOrder of hgemm/invariance.py has the same fields. */
typedef struct hgemm_order {
  uint32_t order;        /* of an unsplit launch, as in hgemm_row */
  uint32_t splits;       /* parts of k that are summed separately and then added in order */
  uint32_t part, longer; /* elements of a part, 0 if there is one; the k-tile by which the first parts are longer, or 0 */
  uint32_t is_cublas;
} hgemm_order;

/* Writes the accumulation order that a query must or should have, and returns 1. Returns 0 if there is none: any order will do,
 * or, for a batch-invariant query with k above 0, no kernel has a fixed order. */
int hgemm_find_order(hgemm_target const *target, hgemm_query const *query, hgemm_order *order);

/* Tells whether launches of a row can have an order. With splits that the launch decides, it also needs a workspace. */
int hgemm_has_order(hgemm_row const *row, int64_t k, hgemm_order const *order);

/* Writes the selected row. Returns 0 if no row supports the query; hgemm_fail_unmet then tells why. */
int hgemm_find(hgemm_target const *target, hgemm_query const *query, hgemm_selected *selected);

/* Fails with a message that counts the requirements that the query does not meet. */
hgemm_status hgemm_fail_unmet(hgemm_target const *target, hgemm_query const *query);

/* Tells whether kernels of kind `offered` compute problems of kind `asked`: only acc may differ, if it is more precise. */
int hgemm_kind_matches(uint64_t offered, uint64_t asked);
int hgemm_whole_tiles(hgemm_row const *row, hgemm_query const *query);

/* Writes the CTA tiles of the whole batch. Returns 0 if a grid cannot have so many. */
int hgemm_grid_tiles(hgemm_row const *row, hgemm_query const *query, uint64_t *tiles);

/* Returns the CTA tiles of one matrix D, rounded up to whole clusters. */
uint64_t hgemm_tiles(hgemm_row const *row, int64_t m, int64_t n);

/* Tells whether a workspace has enough counters for the fixed splits of a row, or for the rows and columns of tiles that it reduces. */
int hgemm_has_counters(hgemm_row const *row, hgemm_query const *q, uint64_t tiles);

/* The counters that a launch uses, and its whole workspace, if `shared` CTA tiles of the batch are split in `splits`. */
uint64_t hgemm_counter_bytes(hgemm_row const *row, hgemm_query const *q, uint64_t shared, uint32_t splits);
uint64_t hgemm_workspace_bytes(hgemm_row const *row, hgemm_query const *q, uint64_t shared, uint32_t splits);

/* ---- Errors ------------------------------------------------------------------------------------------------------------ */

/* Stores the message for hgemm_last_message and returns the status. */
hgemm_status hgemm_fail(hgemm_status status, char const *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
