/* A libcuda.so.1 without a GPU: memory is the host's, and what is launched is computed by the CPU.
 * The kernel's name says layout and types; the first line of its image says `beta`, bias and activation, or `fused` or
 * `several`: the expressions of tests/test_epilogue_export.py, `scaled`: that of examples/c/fused.c, or `by_tanh`: one of cuBLASLt.
 *
 * FAKE_CAPABILITY (90), FAKE_SMS (132) and FAKE_CTAS of each SM (2) say what the device is; FAKE_LOG names a file that gets a line a
 * call that matters; FAKE_FAIL names an entry that refuses; FAKE_LAZY launches without computing; FAKE_NO_BINARY=1 loads PTX only.
 * fake_capture(stream) begins the capture of a stream, fake_capture(NULL) ends it; fake_after(type) lets its next launch depend on a
 * foreign node, and fake_join() on one more; after fake_new_streams() the handles of streams
 * stand for other streams. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Config {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem;
  void *stream;
  int const *attributes; /* id, padding, value */
  unsigned attribute_count;
} Config;

typedef struct Problem {
  uint64_t a, b, c, d, bias, workspace;
  int64_t lda, ldb, ldc, ldd, stride_a, stride_b, stride_c, stride_d, stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
  uint32_t splits, whole_tiles;
  int32_t raster_tiles;
  uint32_t bias_kind;
} Problem;

typedef struct Aux {
  uint64_t pointer;
  int64_t leading, stride;
  float value;
} Aux;

typedef struct Function {
  char name[256], image[256]; /* the first line of its image */
  int smem;
} Function;

static char context[1];
static __thread void *current, *below[8]; /* the thread's contexts */
static __thread int depth;
static _Atomic long launches, live; /* allocations, modules and contexts that were not given back */

long fake_launches(void) { return launches; }
long fake_live(void) { return live; }

static int number_of(char const *variable, int otherwise) {
  char const *const text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

static int fails(char const *entry) {
  char const *const name = getenv("FAKE_FAIL");
  return name && strcmp(name, entry) == 0 ? 999 : 0;
}

static int lazy, logging, refusing_launches; /* read once: launches are timed on this driver too */

static void say(char const *text) {
  FILE *const file = fopen(getenv("FAKE_LOG"), "a");
  if (file == NULL) return;
  fprintf(file, "%s\n", text);
  fclose(file);
}

int cuInit(unsigned flags) {
  lazy = getenv("FAKE_LAZY") != NULL;
  logging = getenv("FAKE_LOG") != NULL;
  refusing_launches = fails("cuLaunchKernelEx");
  return fails("cuInit") ? 100 : (int)flags;
}
int cuDeviceGetCount(int *count) { *count = number_of("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int const capability = number_of("FAKE_CAPABILITY", 90);
  (void)device;
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 16 ? number_of("FAKE_SMS", 132)
         : attribute == 97 ? number_of("FAKE_SMEM", 232448) : attribute == 36 ? 2619000 : attribute == 37 ? 5120 : -1;
  return *value < 0;
}
int cuDevicePrimaryCtxRetain(void **found, int device) { *found = context; ++live; return device != 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { --live; return device != 0; }
int cuCtxGetCurrent(void **found) { *found = current; return 0; }
int cuCtxGetId(void *of, unsigned long long *id) { *id = 7; return of == NULL; }
int cuCtxGetDevice(int *device) { *device = 0; return current == NULL; }
int cuCtxSetCurrent(void *wanted) { current = wanted; return 0; }
int cuCtxPushCurrent_v2(void *wanted) { below[depth++] = current; current = wanted; return 0; }
int cuCtxPopCurrent_v2(void **popped) { *popped = current; current = below[--depth]; return 0; }
int cuCtxSynchronize(void) { return current == NULL; }
int cuModuleLoadData(void **module, void const *image) {
  if (current == NULL) return 201;
  if (fails("cuModuleLoadData")) return 200;
  if (number_of("FAKE_NO_BINARY", 0) && memcmp(image, "kernel.ptx", 10) != 0) return 209;
  *module = calloc(1, sizeof(Function));
  for (int at = 0; at < 255 && ((char const *)image)[at] > '\n'; ++at) ((Function *)*module)->image[at] = ((char const *)image)[at];
  ++live;
  if (logging) say(memcmp(image, "kernel.ptx", 10) == 0 ? "load ptx" : "load");
  return 0;
}
int cuModuleUnload(void *module) { free(module); --live; return current == NULL; }
int cuModuleGetFunction(void **function, void *module, char const *name) {
  if (((Function *)module)->name[0] != '\0' && strcmp(((Function *)module)->name, name) != 0) { /* one more of this module */
    Function *const further = calloc(1, sizeof(Function));
    *further = *(Function *)module, module = further;
  }
  strncpy(((Function *)module)->name, name, 255);
  *function = module;
  return fails("cuModuleGetFunction");
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  ((Function *)function)->smem = value;
  return attribute != 8;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function, int threads, size_t smem) {
  *count = number_of("FAKE_CTAS", 2);
  return function == NULL || threads < 32 || smem == 0;
}
int cuOccupancyMaxActiveClusters(int *count, void *function, Config const *config) {
  *count = number_of("FAKE_SMS", 132) / 2;
  return function == NULL || config->attribute_count != 0;
}
int cuGetErrorString(int status, char const **text) { *text = status == 999 ? "a fake failure" : "refused"; return 0; }

/* ---- Streams and memory --------------------------------------------------------------------------------------------- */

static _Atomic(void *) captured;
static _Atomic unsigned long long generation;
static __thread int capture_mode; /* 2 is relaxed */

typedef struct Node {
  int type; /* CUgraphNodeType: 0 kernel, 2 memset, 10 allocation, 11 release */
  void *function;
} Node;
static Node node;
static void *nodes[2] = {&node, &node};
static size_t node_count; /* that the next launch of the captured stream depends on */

static void capture(void *stream, int type, void *function) {
  if (stream == NULL || stream != captured) return;
  node = (Node){type, function};
  node_count = 1;
}
void fake_capture(void *stream) {
  captured = stream;
  node_count = 0;
}
void fake_after(int type) { capture(captured, type, &node); }
void fake_join(void) { node_count = 2; }
void fake_new_streams(void) { ++generation; }

int cuStreamGetId(void *stream, unsigned long long *id) {
  if (captured != NULL && (stream == captured || capture_mode != 2)) return 900; /* as a driver on an H100 does */
  *id = generation << 32 | (unsigned long long)(uintptr_t)stream;
  return current == NULL;
}
int cuStreamIsCapturing(void *stream, int *status) { *status = stream != NULL && stream == captured; return current == NULL; }
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void ***found, void const **edges, size_t *count) {
  *status = stream != NULL && stream == captured;
  *id = 1, *graph = &node, *found = nodes, *edges = NULL, *count = node_count;
  return fails("cuStreamGetCaptureInfo_v3");
}
int cuGraphNodeGetType(Node *of, int *type) { *type = of->type; return 0; }
int cuGraphKernelNodeGetParams_v2(Node *of, void **params) { params[0] = of->function; return of->type != 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) {
  int const before = capture_mode;
  capture_mode = *mode, *mode = before;
  return 0;
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(1); ++live; return flags != 1; }
int cuStreamSynchronize(void *stream) { return stream == captured && stream != NULL ? 900 : 0; }
int cuStreamDestroy_v2(void *stream) { free(stream); --live; return 0; }

static int allocate(uint64_t *address, size_t bytes) {
  void *const block = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (block == NULL) return 2;
  if (!lazy) memset(block, 0xEE, bytes < 4096 ? bytes : 4096);
  *address = (uint64_t)(uintptr_t)block;
  ++live;
  return 0;
}
static void say_memory(char const *word, size_t bytes, void *stream) {
  char line[128];
  snprintf(line, sizeof line, "%s %zu %p", word, bytes, stream);
  if (logging) say(line);
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  if (fails("cuMemAlloc_v2")) return 2;
  if (captured != NULL && capture_mode != 2) return 900; /* it would end the capture */
  say_memory("alloc", bytes, NULL);
  return allocate(address, bytes);
}
int cuMemFree_v2(uint64_t address) { free((void *)(uintptr_t)address); --live; say_memory("free", 0, NULL); return 0; }
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) {
  say_memory("alloc-async", bytes, stream);
  capture(stream, 10, NULL);
  return allocate(address, bytes);
}
int cuMemFreeAsync(uint64_t address, void *stream) {
  say_memory("free-async", 0, stream);
  capture(stream, 11, NULL);
  free((void *)(uintptr_t)address);
  --live;
  return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, void const *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
  char line[128];
  snprintf(line, sizeof line, "zero %zu %p", bytes, stream);
  if (logging) say(line);
  capture(stream, 2, NULL);
  if (!lazy) memset((void *)(uintptr_t)to, value, bytes);
  return fails("cuMemsetD8Async");
}
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, uint64_t const *extents, uint64_t const *strides,
                           uint32_t const *box, uint32_t const *steps, int interleave, int swizzle, int l2, int fill) {
  char line[256];
  uint64_t const bytes = type == 6 || type == 9 ? 2 : 4; /* f16 and bf16, else f32 and tf32 */
  if (number_of("FAKE_REJECT_OVERLAP", 0) && extents[0] * bytes > strides[0]) return 1;
  snprintf(line, sizeof line, "map type %d rank %u extents %lu %lu %lu strides %lu %lu box %u %u %u step %u swizzle %d l2 %d", type, rank,
           extents[0], extents[1], extents[2], strides[0], strides[1], box[0], box[1], box[2], steps[1], swizzle, l2);
  if (logging) say(line);
  memset(map, 0, 128);
  memcpy(map, &address, sizeof address);
  return interleave != 0 || fill != 0 || rank != 3 || fails("cuTensorMapEncodeTiled");
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------ */

enum { F16, BF16, F32 };

static int type_of(char const *word) { return word[0] == 'b' ? BF16 : word[0] == 't' || word[1] == '3' ? F32 : F16; }

static double load(uint64_t base, int64_t index, int type) {
  uint16_t half;
  uint32_t bits;
  float value;
  if (type == F32) return ((float const *)(uintptr_t)base)[index];
  half = ((uint16_t const *)(uintptr_t)base)[index];
  if (type == F16) return (double)((_Float16 const *)(uintptr_t)base)[index];
  bits = (uint32_t)half << 16;
  memcpy(&value, &bits, 4);
  return value;
}

static void store(uint64_t base, int64_t index, int type, double value) {
  float const narrow = (float)value;
  uint32_t bits;
  if (type == F32) ((float *)(uintptr_t)base)[index] = narrow;
  if (type == F16) ((_Float16 *)(uintptr_t)base)[index] = (_Float16)value;
  memcpy(&bits, &narrow, 4);
  if (type == BF16) ((uint16_t *)(uintptr_t)base)[index] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double activate(char const *image, double x) {
  if (strstr(image, " relu")) return x < 0 ? 0 : x;
  if (strstr(image, " gelu")) return 0.5 * x * (1 + erf(x * 0.7071067811865476));
  if (strstr(image, " silu")) return x / (1 + exp(-x));
  return x;
}

static double input(Aux const *aux, int64_t batch, int64_t at, int type) {
  return aux->pointer ? load(aux->pointer, batch * aux->stride + at, type) : aux->value;
}

/* Returns relu(alpha * acc + beta * bias) * scale * gain + residual. */
static double fused(double x, Problem const *p, int64_t batch, int64_t row, int64_t column, int type) {
  Aux const *const aux = (Aux const *)(p + 1); /* bias, scale, gain, residual */
  x = x * p->alpha + p->beta * input(&aux[0], batch, column, type);
  x = (x < 0 ? 0 : x) * input(&aux[1], batch, row, F32) * input(&aux[2], batch, 0, F32);
  return x + input(&aux[3], batch, row * aux[3].leading + column, type);
}

/* relu(acc * scale + bias) + residual */
static double scaled(double x, Problem const *p, int64_t batch, int64_t row, int64_t column, int type) {
  Aux const *const aux = (Aux const *)(p + 1); /* scale, bias, residual */
  x = x * input(&aux[0], batch, row, F32) + input(&aux[1], batch, column, type);
  return (x < 0 ? 0 : x) + input(&aux[2], batch, row * aux[2].leading + column, type);
}

/* Returns the gelu by tanh of alpha * acc + bias. */
static double by_tanh(double x, Problem const *p, int64_t batch, int64_t column, int type) {
  x = x * p->alpha + input((Aux const *)(p + 1), batch, column, type);
  return 0.5 * x * (1 + tanh(0.79788456 * (x + 0.044715 * x * x * x)));
}

/* Returns relu(y), and stores y in f32 and its row's sum of squares and maximum, for y = alpha * acc + beta * bias + residual. */
static double several(double x, Problem const *p, int64_t batch, int64_t row, int64_t column, int type) {
  Aux const *const aux = (Aux const *)(p + 1); /* bias, residual, out1, out2, out3 */
  float *const squares = (float *)(uintptr_t)aux[3].pointer + batch * aux[3].stride + row;
  float *const largest = (float *)(uintptr_t)aux[4].pointer + batch * aux[4].stride + row;
  x = x * p->alpha + p->beta * input(&aux[0], batch, column, type);
  x += input(&aux[1], batch, row * aux[1].leading + column, type);
  store(aux[2].pointer, batch * aux[2].stride + row * aux[2].leading + column, F32, x);
  *squares = (float)(x * x + (column > 0 ? *squares : 0));
  *largest = (float)(column > 0 && *largest > x ? *largest : x);
  return x < 0 ? 0 : x;
}

static double *wide(uint64_t base, int64_t first, int64_t rows, int64_t k, int64_t row_step, int64_t k_step, int type) {
  double *const found = malloc((size_t)(rows > 0 ? rows : 0) * (size_t)(k > 0 ? k : 0) * sizeof(double) + 1);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t at = 0; at < k; ++at) found[i * k + at] = load(base, first + i * row_step + at * k_step, type);
  }
  return found;
}

static void compute(char const *name, char const *image, Problem const *p) {
  int const beta = strstr(image, " beta") != NULL;
  int const at_launch = strstr(image, " launch") != NULL;
  int const bias_row = strstr(image, " row") != NULL || (at_launch && p->bias_kind == 1);
  int const bias_column = strstr(image, " column") != NULL || (at_launch && p->bias_kind == 2);
  char arch[16], layout[4], in[16], acc[16], out[16];
  int t_in, t_out, a_rows, b_rows;
  sscanf(name, "hgemm_%15[^_]_%3[^_]_%15[^_]_%15[^_]_%15[^_]_", arch, layout, in, acc, out);
  t_in = type_of(in), t_out = type_of(out);
  a_rows = layout[0] == 't', b_rows = layout[1] == 'n';
  for (int64_t batch = 0; batch < p->batch; ++batch) {
    /* Each number is widened once: (m, k) and (n, k). */
    double *const a = wide(p->a, batch * p->stride_a, p->m, p->k, a_rows ? p->lda : 1, a_rows ? 1 : p->lda, t_in);
    double *const b = wide(p->b, batch * p->stride_b, p->n, p->k, b_rows ? p->ldb : 1, b_rows ? 1 : p->ldb, t_in);
    for (int64_t i = 0; i < p->m; ++i) {
      for (int64_t j = 0; j < p->n; ++j) {
        int64_t const at_c = batch * p->stride_c + i * p->ldc + j;
        double x = 0;
        for (int64_t k = 0; k < p->k; ++k) x += a[i * p->k + k] * b[j * p->k + k];
        if (strstr(image, " fused")) {
          store(p->d, batch * p->stride_d + i * p->ldd + j, t_out, fused(x, p, batch, i, j, t_out));
          continue;
        }
        if (strstr(image, " scaled")) {
          store(p->d, batch * p->stride_d + i * p->ldd + j, t_out, scaled(x, p, batch, i, j, t_out));
          continue;
        }
        if (strstr(image, " by_tanh")) {
          store(p->d, batch * p->stride_d + i * p->ldd + j, t_out, by_tanh(x, p, batch, j, t_out));
          continue;
        }
        if (strstr(image, " several")) {
          store(p->d, batch * p->stride_d + i * p->ldd + j, t_out, several(x, p, batch, i, j, t_out));
          continue;
        }
        x *= p->alpha;
        if (beta && p->beta != 0) x += p->beta * load(p->c, at_c, t_out);
        if (bias_row) x += load(p->bias, batch * p->stride_bias + j, t_out);
        if (bias_column) x += load(p->bias, batch * p->stride_bias + i, t_out);
        store(p->d, batch * p->stride_d + i * p->ldd + j, t_out, activate(image, x));
      }
    }
    free(a);
    free(b);
  }
}

/* Tells whether the operands are arrays of addresses. */
static int has_pointers(Function const *function, Problem const *p) {
  if (strncmp(function->name, "hgemm_simt_", 11) == 0) return p->bias_kind != 0; /* `pointers` of simt.cu */
  return strstr(function->image, " pointers") != NULL;
}

/* Computes each matrix of arrays of addresses. */
static void compute_pointers(char const *name, char const *image, Problem const *p) {
  for (int64_t i = 0; i < p->batch; ++i) {
    Problem one = *p;
    one.batch = 1, one.bias_kind = 0;
    if (p->k > 0) one.a = ((uint64_t const *)(uintptr_t)p->a)[i], one.b = ((uint64_t const *)(uintptr_t)p->b)[i];
    if (p->beta != 0) one.c = ((uint64_t const *)(uintptr_t)p->c)[i];
    one.d = ((uint64_t const *)(uintptr_t)p->d)[i];
    compute(name, image, &one);
  }
}

int cuLaunchKernelEx(Config const *config, void *handle, void **parameters, void **extra) {
  Function const *const function = handle;
  Problem const *const p = parameters[0];
  char line[512];
  if (current == NULL || extra != NULL || (int)config->smem > function->smem) return 1;
  if (config->grid_y != 1 || config->grid_z != 1 || config->block_y != 1 || config->block_z != 1) return 1;
  if (logging) {
    snprintf(line, sizeof line,
             "launch %s grid %u threads %u smem %u stream %p problem %d %d %d %d splits %u %u workspace %#llx programmatic %u",
             function->name, config->grid_x, config->block_x, config->smem, config->stream, p->m, p->n, p->k, p->batch, p->splits,
             p->whole_tiles, (unsigned long long)p->workspace, config->attribute_count);
    say(line);
  }
  if (config->attribute_count > 1) return 1;
  if (config->attribute_count == 1 && (config->attributes[0] != 6 || config->attributes[2] != 1)) return 1;
  if (refusing_launches) return 999;
  if (!lazy && p->splits > 1 && p->workspace && *(uint64_t const *)(uintptr_t)p->workspace != 0) return 998; /* counters */
  ++launches;
  capture(config->stream, 0, handle);
  if (!lazy && has_pointers(function, p)) compute_pointers(function->name, function->image, p);
  else if (!lazy) compute(function->name, function->image, p);
  return 0;
}
