/* Loads kernels at their first use, and launches them. */
#include <stdio.h>
#include <string.h>

#include "handle.h"

#define LARGE_CLUSTER 8 /* CTAs of a cluster that takes half a GPC */
#define LONG_K 4096
#define LARGE_TILE (128 * 256)

/* ---- Kernel parameters ------------------------------------------------------------------------------------------------- */

typedef struct Problem { /* the kernels' first parameter, hgemm::Problem */
  uint64_t a, b, c, d, bias, workspace;
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
  uint32_t splits, whole_tiles;
  int32_t raster_tiles;
  uint32_t bias_kind;
} Problem;

typedef char problem_has_160_bytes[sizeof(Problem) == 160 ? 1 : -1];

typedef struct Aux { /* hgemm::Aux */
  uint64_t pointer;
  int64_t leading, batch_stride;
  float value;
} Aux;

typedef struct Parameter { /* hgemm::ProblemWith; the driver copies as many inputs and outputs as the kernel has */
  Problem problem;
  Aux aux[HGEMM_MAX_AUX];
} Parameter;

typedef char aux_has_32_bytes[sizeof(Aux) == 32 && sizeof(Parameter) == 160 + 32 * HGEMM_MAX_AUX ? 1 : -1];

typedef struct Maps { /* the second parameter of TMA kernels: CUtensorMap of A, B and D, or three of A, three of B, and D */
  _Alignas(64) unsigned char bytes[7][128];
} Maps;

static Problem pack(hgemm_problem const *p, hgemm_row const *row, hgemm_selected const *selected) {
  Problem const packed = {
      (uintptr_t)p->a, (uintptr_t)p->b, (uintptr_t)p->c, (uintptr_t)p->d, (uintptr_t)p->bias, (uintptr_t)p->workspace,
      p->lda, p->ldb, p->ldc, p->ldd,
      p->batch_stride_a, p->batch_stride_b, p->batch_stride_c, p->batch_stride_d, p->batch_stride_bias,
      (int32_t)p->m, (int32_t)p->n,
      /* Kernels process at least one k-tile, also for k = 0. With this k, all of that tile is out of bounds. */
      p->k > 0 ? (int32_t)p->k : -(int32_t)row->tile_k,
      (int32_t)p->batch,
      p->k > 0 || p->epilogue != NULL ? p->alpha : 0.0f, p->beta,
      selected->splits, selected->whole_tiles / (row->cluster_m * row->cluster_n), selected->raster_tiles,
      p->bias != NULL ? (uint32_t)p->bias_kind : 0,
  };
  return packed;
}

static void pack_aux(hgemm_problem const *p, hgemm_epilogue const *epilogue, Aux aux[HGEMM_MAX_AUX]) {
  for (int i = 0; epilogue != NULL && i < epilogue->input_count + epilogue->output_count; ++i) {
    aux[i] = (Aux){(uintptr_t)p->aux[i].pointer, p->aux[i].ld, p->aux[i].batch_stride, p->aux[i].value};
  }
}

/* ---- Tensor maps ------------------------------------------------------------------------------------------------------- */

typedef struct Operand {
  void const *pointer;
  int32_t dtype;
  int64_t contiguous, other, leading, stride;
} Operand;

static hgemm_status encode(hgemm_driver const *cuda, hgemm_map_rule const *rule, Operand const *x, int64_t batch, int loads,
                           unsigned char map[128]) {
  static int const types[] = {HGEMM_CU_MAP_FLOAT16, HGEMM_CU_MAP_BFLOAT16, HGEMM_CU_MAP_FLOAT32, HGEMM_CU_MAP_TFLOAT32};
  enum { VECTOR = 16, ROWS = 8 };
  int64_t const bytes = x->dtype >= HGEMM_F32 ? 4 : 2;
  int const layers = batch > 1 && x->stride > 0; /* otherwise the whole batch uses one matrix */
  uint64_t extents[3] = {(uint64_t)x->contiguous, (uint64_t)x->other, layers ? (uint64_t)batch : 1};
  uint64_t const strides[2] = {(uint64_t)(x->leading * bytes), (uint64_t)((layers ? x->stride : x->leading) * bytes)};
  /* If rows do not start at multiples of 256 bytes, L2 would load up to twice the bytes with a promotion to 256 bytes. */
  int const promotion = strides[0] % 256 == 0 && strides[1] % 256 == 0 ? HGEMM_CU_MAP_L2_256B : HGEMM_CU_MAP_L2_128B;
  int const swizzle = rule->swizzle_bytes == 128 ? 3 : (int)(rule->swizzle_bytes / 32); /* CUtensorMapSwizzle */
  uint32_t box[3] = {rule->box[0], rule->box[1], rule->box[2]}, steps[3] = {1, 1, 1};
  void *const pointer = (void *)(uintptr_t)x->pointer;
  int status;
  /* The TMA loads adjacent rows of 16 bytes faster as rows of 128 bytes. */
  if (loads && box[0] * bytes == VECTOR && x->contiguous * bytes == VECTOR && strides[0] == VECTOR && x->other % ROWS == 0) {
    extents[0] *= ROWS, box[0] *= ROWS, steps[1] = ROWS;
  }
  status = cuda->encode_map(map, types[x->dtype], 3, pointer, extents, strides, box, steps, 0, swizzle, promotion, 0);
  if (status != 0) {
    /* NVIDIA documents no map whose rows overlap, so a driver may reject it. This one is right, too, but may be slower to load. */
    extents[0] = (uint64_t)(x->contiguous > x->leading && x->other > 1 ? x->leading : x->contiguous);
    box[0] = rule->box[0], steps[1] = 1;
    status = cuda->encode_map(map, types[x->dtype], 3, pointer, extents, strides, box, steps, 0, swizzle, promotion, 0);
  }
  return status == 0 ? HGEMM_OK : hgemm_fail_driver(cuda, status, "encode a tensor map");
}

static hgemm_status encode_all(hgemm_driver const *cuda, hgemm_row const *row, hgemm_problem const *p, Maps *maps) {
  hgemm_epilogue const *const epilogue = hgemm_epilogue_of(hgemm_groups[row->group].kind);
  int const a_by_rows = p->layout == HGEMM_TN || p->layout == HGEMM_TT;
  int const b_by_rows = p->layout == HGEMM_TN || p->layout == HGEMM_NN;
  Operand const operands[3] = {
      {p->a, p->dtype_a, a_by_rows ? p->k : p->m, a_by_rows ? p->m : p->k, p->lda, p->batch_stride_a},
      {p->b, p->dtype_b, b_by_rows ? p->k : p->n, b_by_rows ? p->n : p->k, p->ldb, p->batch_stride_b},
      {p->d, p->dtype_d, epilogue != NULL ? p->n / epilogue->columns : p->n, p->m, p->ldd, p->batch_stride_d},
  };
  int64_t const tiles[3] = {row->tile_m, row->tile_n, 0};
  unsigned char(*map)[128] = maps->bytes;
  hgemm_status status = HGEMM_OK;
  memset(maps, 0, sizeof *maps);
  if (cuda->encode_map == NULL) return hgemm_fail(HGEMM_ERROR_DRIVER, "the driver has no cuTensorMapEncodeTiled");
  for (int i = 0; i < 3 && status == HGEMM_OK; ++i) {
    hgemm_map_rule const *const rule = &row->maps[i];
    Operand wide = operands[i];
    hgemm_map_rule narrow = *rule;
    if (!rule->edge) {
      if (rule->box[0]) status = encode(cuda, rule, &operands[i], p->batch, i < 2, map[0]);
    } else {
      /* The TMA is slow where a box ends inside a row. So rows extend beyond the matrix up to whole tiles, into the gap and the next
       * row at most. The last row of all is in the last k-tile, which the kernel loads by the third map: it ends with the matrix. */
      wide.contiguous = (wide.contiguous + tiles[i] - 1) / tiles[i] * tiles[i];
      if (wide.contiguous > operands[i].contiguous + wide.leading) wide.contiguous = operands[i].contiguous + wide.leading;
      narrow.box[0] = (uint32_t)(tiles[i] % rule->box[0]);
      status = encode(cuda, rule, &wide, p->batch, 1, map[0]);
      if (status == HGEMM_OK && narrow.box[0]) status = encode(cuda, &narrow, &wide, p->batch, 1, map[1]);
      if (status == HGEMM_OK) status = encode(cuda, rule, &operands[i], p->batch, 1, map[2]);
    }
    map += i < 2 && (row->maps[0].edge || row->maps[1].edge) ? 3 : 1;
  }
  return status;
}

/* Encoding is the slowest part of a launch, so each thread caches a few maps by kernel and problem. */
static hgemm_status cached_maps(hgemm_driver const *cuda, hgemm_row const *row, hgemm_problem const *p, Maps *maps) {
  enum { ENTRIES = 8 };
  typedef struct Key {
    hgemm_row const *row;
    void const *a, *b, *d;
    int64_t numbers[10];
  } Key;
  static _Thread_local struct {
    Key key;
    Maps maps;
  } entries[ENTRIES];
  Key key;
  int64_t const numbers[10] = {p->m, p->n, p->k, p->batch, p->lda, p->ldb, p->ldd,
                               p->batch_stride_a, p->batch_stride_b, p->batch_stride_d};
  size_t slot;
  hgemm_status status = HGEMM_OK;
  memset(&key, 0, sizeof key);
  key.row = row, key.a = p->a, key.b = p->b, key.d = p->d;
  memcpy(key.numbers, numbers, sizeof numbers);
  slot = ((uintptr_t)p->a / 256 ^ (uintptr_t)p->b / 256 * 3 ^ (uintptr_t)p->d / 256 * 5 ^ (uintptr_t)row / 16) % ENTRIES;
  if (memcmp(&entries[slot].key, &key, sizeof key) != 0) {
    entries[slot].key.row = NULL;
    status = encode_all(cuda, row, p, &entries[slot].maps);
    if (status == HGEMM_OK) entries[slot].key = key;
  }
  *maps = entries[slot].maps;
  return status;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------------- */

static uint32_t crc32_of(unsigned char const *bytes, uint32_t count) { /* as zlib.crc32 */
  static uint32_t const nibbles[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
                                       0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                       0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
  uint32_t crc = 0xFFFFFFFF;
  for (uint32_t i = 0; i < count; ++i) {
    crc ^= bytes[i];
    crc = crc >> 4 ^ nibbles[crc & 15];
    crc = crc >> 4 ^ nibbles[crc & 15];
  }
  return ~crc;
}

static int count_resident_ctas(hgemm_handle *handle, hgemm_row const *row, void *function, int *ctas) {
  int const cluster = (int)row->cluster_ctas;
  int status;
  if (cluster > 1 && handle->cuda->resident_clusters != NULL) { /* GPCs differ in size: only the driver knows what fits */
    hgemm_launch_config const config = {(unsigned)cluster * handle->target.sms, 1, 1, row->threads, 1, 1,
                                        row->smem_bytes, NULL, NULL, 0};
    status = handle->cuda->resident_clusters(ctas, function, &config);
    if (status != 0 || *ctas == 0) *ctas = (int)handle->target.sms / cluster;
    *ctas *= cluster;
    status = 0;
  } else {
    status = handle->cuda->resident_ctas(ctas, function, (int)row->threads, row->smem_bytes);
    *ctas *= (int)handle->target.sms;
  }
  return status;
}

static hgemm_status load_locked(hgemm_handle *handle, uint32_t index) {
  hgemm_driver const *const cuda = handle->cuda;
  hgemm_row const *const row = &hgemm_rows[index];
  hgemm_image const *const code = handle->target.group_modes[row->group] == HGEMM_PTX_JIT ? &row->ptx : &row->cubin;
  hgemm_loaded_kernel *const kernel = &handle->kernels[index];
  void *function = NULL;
  int ctas = 0, status;
  if (crc32_of(hgemm_images + code->offset, code->bytes) != code->crc32) {
    return hgemm_fail(HGEMM_ERROR_IMAGE, "the image of %s is corrupt (its CRC-32 differs): link the library again",
                      row->symbol);
  }
  if (kernel->module == NULL) {
    status = cuda->load(&kernel->module, hgemm_images + code->offset);
    if (status != 0) {
      kernel->module = NULL;
      return hgemm_fail_driver(cuda, status, "load a kernel");
    }
  }
  status = cuda->function(&function, kernel->module, row->symbol);
  if (status != 0) return hgemm_fail_driver(cuda, status, "find the kernel in its image");
  status = cuda->set_attribute(function, HGEMM_CU_FUNCTION_MAX_DYNAMIC_SMEM, (int)row->smem_bytes);
  if (status != 0) return hgemm_fail_driver(cuda, status, "reserve the shared memory of the kernel");
  status = count_resident_ctas(handle, row, function, &ctas);
  if (status != 0) return hgemm_fail_driver(cuda, status, "compute the occupancy of the kernel");
  kernel->resident_ctas = (uint32_t)ctas;
  atomic_store_explicit(&kernel->function, function, memory_order_release);
  return HGEMM_OK;
}

hgemm_status hgemm_load(hgemm_handle *handle, uint32_t row) {
  hgemm_status status = HGEMM_OK;
  pthread_mutex_lock(&handle->loading);
  if (atomic_load_explicit(&handle->kernels[row].function, memory_order_acquire) == NULL) status = load_locked(handle, row);
  pthread_mutex_unlock(&handle->loading);
  return status;
}

/* ---- Launching --------------------------------------------------------------------------------------------------------- */

/* Returns how many CTA tiles are split. */
static uint64_t shared_tiles(hgemm_selected const *selected) { return selected->tiles - selected->whole_tiles; }

static uint64_t workspace_of(hgemm_request const *request, hgemm_selected const *selected) {
  return hgemm_workspace_bytes(&hgemm_rows[selected->row], &request->query, shared_tiles(selected), selected->splits);
}

/* Selects the kernel, and loads it unless it is loaded already. The handle's context must be current. */
static hgemm_status select_and_load(hgemm_handle *handle, hgemm_request const *request, hgemm_selected *selected) {
  if (!hgemm_find(&handle->target, &request->query, selected)) return hgemm_fail_unmet(&handle->target, &request->query);
  if (atomic_load_explicit(&handle->kernels[selected->row].function, memory_order_acquire) != NULL) return HGEMM_OK;
  return hgemm_load(handle, selected->row);
}

/* Returns how many CTAs have work. */
static uint32_t ctas(hgemm_selected const *selected) {
  return selected->whole_tiles + (uint32_t)(shared_tiles(selected) * selected->splits);
}

/* Returns the grid. Stream-K distributes any number of tiles. */
static uint32_t grid_of(hgemm_row const *row, hgemm_selected const *selected, uint32_t resident_ctas) {
  uint32_t const work = ctas(selected);
  uint32_t const resident = resident_ctas > row->cluster_ctas ? resident_ctas : row->cluster_ctas;
  if (row->max_ctas > 0) return resident < row->max_ctas ? resident : row->max_ctas;
  return row->persistent && work > resident ? resident : work;
}

/* Returns whether the launch is long and has pairs of small tiles, in several rows and columns of pairs. */
static int reads_by_gpc(hgemm_row const *row, hgemm_problem const *problem, uint32_t splits) {
  uint32_t const rows = row->cluster_m, columns = row->cluster_n;
  return rows * columns == 2 && row->cluster_ctas == 2 && problem->batch == 1 && problem->m > (int64_t)rows * row->tile_m &&
         problem->n > (int64_t)columns * row->tile_n && problem->k >= (int64_t)LONG_K * splits &&
         row->tile_m * row->tile_n < LARGE_TILE;
}

/* Returns whether a launch should start before the previous one has ended, if its kernel is programmatic. starts_early in
 * hgemm/launch.py says why. */
static int starts_early(hgemm_row const *row, hgemm_problem const *problem, hgemm_selected const *selected, uint64_t grid,
                        uint64_t resident_ctas) {
  int const uneven = resident_ctas < grid * 2 && grid * 5 < resident_ctas * 4 && row->cluster_ctas < LARGE_CLUSTER;
  return !uneven && !(ctas(selected) <= resident_ctas && reads_by_gpc(row, problem, selected->splits));
}

/* Returns whether the next launch on a stream should be programmatic, if its kernel is. Outside captures, the previous work is
 * unknown, and the answer is yes. In a CUDA graph, the launch must depend on one node only, a programmatic kernel of the handle.
 * After other nodes, the launch attribute costs time. */
static int overlap_pays(hgemm_handle *handle, void *stream) {
  hgemm_driver const *const cuda = handle->cuda;
  int captured = 0, type = 0;
  uint64_t id;
  void *graph, *const *nodes;
  hgemm_edge_data const *edges = NULL;
  size_t count = 0;
  hgemm_kernel_node node;
  if (stream == NULL) return 1; /* no graph captures the legacy default stream */
  if (cuda->capture_info == NULL || cuda->node_type == NULL || cuda->kernel_node == NULL) return 1;
  if (cuda->capture_info(stream, &captured, &id, &graph, &nodes, &edges, &count) != 0 || !captured) return 1;
  if (count != 1 || (edges != NULL && edges[0].from_port > HGEMM_CU_PORT_PROGRAMMATIC)) return 0;
  if (cuda->node_type(nodes[0], &type) != 0 || type != HGEMM_CU_NODE_KERNEL) return 0;
  if (cuda->kernel_node(nodes[0], &node) != 0 || node.function == NULL) return 0;
  for (uint32_t i = 0; i < HGEMM_ROW_COUNT; ++i) {
    if (atomic_load_explicit(&handle->kernels[i].function, memory_order_acquire) == node.function) {
      return hgemm_rows[i].programmatic != 0;
    }
  }
  return 0;
}

/* Launches the kernel. If `zeroed`, the counters of the workspace are zero. */
static hgemm_status launch(hgemm_handle *handle, hgemm_request const *request, hgemm_selected const *selected, int zeroed,
                           void *stream) {
  hgemm_driver const *const cuda = handle->cuda;
  hgemm_row const *const row = &hgemm_rows[selected->row];
  hgemm_loaded_kernel *const kernel = &handle->kernels[selected->row];
  uint64_t const counters = hgemm_counter_bytes(row, &request->query, shared_tiles(selected), selected->splits);
  size_t const counter_bytes = zeroed ? 0 : (size_t)counters;
  static hgemm_launch_attribute const programmatic = {HGEMM_CU_LAUNCH_PROGRAMMATIC, 0, {1}};
  uint32_t const grid = grid_of(row, selected, kernel->resident_ctas);
  int const early = row->programmatic && counter_bytes == 0 &&
                    starts_early(row, &request->problem, selected, grid, kernel->resident_ctas);
  hgemm_launch_config const config = {
      grid, 1, 1, row->threads, 1, 1, row->smem_bytes, stream, &programmatic, early && overlap_pays(handle, stream)};
  Parameter parameter;
  Maps maps;
  void *parameters[2] = {&parameter, &maps};
  int status = 0;
  parameter.problem = pack(&request->problem, row, selected);
  pack_aux(&request->problem, request->epilogue, parameter.aux);
  if (row->tensor_maps) {
    hgemm_status const encoded = cached_maps(cuda, row, &request->problem, &maps);
    if (encoded != HGEMM_OK) return encoded;
  }
  if (counter_bytes > 0) {
    status = cuda->zero(parameter.problem.workspace, 0, counter_bytes, stream);
    if (status != 0) return hgemm_fail_driver(cuda, status, "zero the counters");
  }
  status = cuda->launch(&config, atomic_load_explicit(&kernel->function, memory_order_acquire), parameters, NULL);
  return status == 0 ? HGEMM_OK : hgemm_fail_driver(cuda, status, "launch the kernel");
}

/* Finds the workspace that a launch needs, and launches. */
static hgemm_status provide_and_launch(hgemm_handle *handle, hgemm_request *request, hgemm_selected const *selected,
                                       void *stream) {
  uint64_t const needed = workspace_of(request, selected);
  hgemm_scratch scratch = {(uintptr_t)request->problem.workspace, 0, 0};
  hgemm_status status = HGEMM_OK;
  if (needed > 0) {
    if (request->from_handle) status = hgemm_take_workspace(handle, stream, needed, &scratch);
    request->problem.workspace = (void *)(uintptr_t)scratch.address;
    if (status == HGEMM_OK) status = hgemm_check_workspace(request, needed);
  }
  if (status == HGEMM_OK) status = launch(handle, request, selected, scratch.zeroed, stream);
  if (scratch.temporary) {
    int const released = handle->cuda->release_async(scratch.address, stream);
    if (released != 0 && status == HGEMM_OK) status = hgemm_fail_driver(handle->cuda, released, "free a workspace");
  }
  return status;
}

static hgemm_status prepare_or_run(hgemm_handle *handle, hgemm_problem const *problem, enum hgemm_purpose purpose,
                                   void *stream) {
  hgemm_request request;
  hgemm_selected selected;
  hgemm_status status;
  int pushed;
  if (handle == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the handle is null");
  status = hgemm_check_problem(problem, purpose, handle->workspace_bytes, &request);
  if (status != HGEMM_OK || request.empty) return status;
  if ((status = hgemm_enter(handle, &pushed)) != HGEMM_OK) return status;
  status = select_and_load(handle, &request, &selected);
  if (status == HGEMM_OK && purpose == HGEMM_TO_LAUNCH) {
    status = provide_and_launch(handle, &request, &selected, stream);
  } else if (status == HGEMM_OK && request.problem.workspace == NULL && workspace_of(&request, &selected) > 0) {
    status = hgemm_refill_reserve(handle);
  }
  hgemm_leave(handle, pushed);
  return status;
}

hgemm_status hgemm_prepare(hgemm_handle *handle, hgemm_problem const *problem) {
  return prepare_or_run(handle, problem, HGEMM_TO_SELECT, NULL);
}

hgemm_status hgemm_run(hgemm_handle *handle, hgemm_problem const *problem, void *stream) {
  return prepare_or_run(handle, problem, HGEMM_TO_LAUNCH, stream);
}
