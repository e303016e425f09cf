/* Loads one kernel with the CUDA driver, without the C library of `hgemm export`, multiplies two matrices and checks the result.
 *
 *     generate --arch sm_80 --tile 128x128x32
 *     hgemm show 'hgemm_sm80_*128x128x32*' --header > kernel.h
 *     cc -I. -Iexamples/c examples/by_hand/multiply.c -o multiply -ldl
 *     ./multiply emitted/hgemm_sm80_*128x128x32*
 *
 * The argument is the folder of the kernel. Types: A, B and D in f16.
 * Exit status: 0 the result is correct, 1 something failed, 77 this machine has no NVIDIA GPU.
 */
#include "device.h"
#include "kernel.h" /* the struct HgemmProblem, and the constant `kernel` */

enum {
  M = 304, N = 200, K = 136, /* multiples of 8 elements, so that every kernel's alignment is met */
  MULTIPROCESSOR_COUNT = 16, /* CUdevice_attribute */
  MAX_DYNAMIC_SHARED = 8,    /* CUfunction_attribute */
  L2_PROMOTION_128B = 2,     /* CUtensorMapL2promotion */
  L2_PROMOTION_256B = 3,
  COUNTERS = 65536,          /* of a workspace */
  NO_BINARY_FOR_GPU = 209,   /* CUresult */
  NO_GPU = 77
};

typedef struct Config { /* CUlaunchConfig of cuda.h */
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
  void *stream;
  void *attributes;
  unsigned attribute_count;
} Config;

/* ---- Grid and workspace -------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t tiles(int64_t m, int64_t n) { /* CTA tiles of D, in whole clusters */
  return ceil_div(m, kernel.tile_m * kernel.cluster_m) * ceil_div(n, kernel.tile_n * kernel.cluster_n) * kernel.cluster_m *
         kernel.cluster_n;
}

static int64_t resident_ctas(void *function) { /* CTAs that the device holds at a time, in whole clusters */
  int (*occupancy)(int *, void *, int, size_t), (*clusters)(int *, void *, Config const *), (*attribute)(int *, int, int);
  int sms, per_sm, count;
  driver_entry("cuDeviceGetAttribute", &attribute);
  check_driver(attribute(&sms, MULTIPROCESSOR_COUNT, 0), "count the SMs");
  if (kernel.cluster_ctas > 1) {
    Config const config = {(unsigned)(kernel.cluster_ctas * sms), 1, 1, kernel.threads, 1, 1, kernel.smem_bytes, NULL, NULL, 0};
    driver_entry("cuOccupancyMaxActiveClusters", &clusters);
    check_driver(clusters(&count, function, &config), "count the clusters that fit");
    return (int64_t)count * kernel.cluster_ctas;
  }
  driver_entry("cuOccupancyMaxActiveBlocksPerMultiprocessor", &occupancy);
  check_driver(occupancy(&per_sm, function, (int)kernel.threads, kernel.smem_bytes), "count the CTAs that fit");
  return (int64_t)per_sm * sms;
}

static int64_t grid_x(HgemmProblem const *p, int64_t resident) { /* grid.y and grid.z are 1 */
  int64_t const work = tiles(p->m, p->n) * p->batch * kernel.splits;
  if (kernel.stream_k_ctas) return resident < kernel.stream_k_ctas ? resident : kernel.stream_k_ctas;
  return kernel.persistent && resident < work ? resident : work;
}

static int64_t workspace_bytes(HgemmProblem const *p) {
  int64_t const partials = kernel.stream_k_ctas ? 2 * kernel.stream_k_ctas : tiles(p->m, p->n) * p->batch * kernel.splits;
  return kernel.partial_bytes ? COUNTERS * 4 + partials * kernel.partial_bytes : 0;
}

/* ---- TMA descriptors: the second parameter of kernels with TMA ------------------------------------------------------------ */

typedef struct Maps { /* of A, B and D, or three of A, three of B, and D; CUtensorMap is 128 bytes, aligned to 64 */
  _Alignas(64) unsigned char map[7][128];
} Maps; /* maps that the kernel does not use are zeros */

/* `rows` rows of `columns` contiguous elements, `leading` elements apart, `batch_stride` elements from the next matrix. `tile` is that
 * of the kernel along m or n, `size` the bytes of an element. */
typedef struct Matrix {
  uint64_t address;
  int64_t rows, columns, leading, batch_stride;
  int32_t tile, size;
} Matrix;

/* Encodes a map with rows of `columns` elements and boxes of `width` columns. A width of 0 leaves the map as it is. */
static void encode(unsigned char map[128], HgemmMap const *rule, uint32_t width, Matrix const *x, int64_t columns, int64_t batch) {
  int (*tiled)(void *, int, uint32_t, void *, uint64_t const *, uint64_t const *, uint32_t const *, uint32_t const *, int, int,
               int, int);
  int const batched = batch > 1 && x->batch_stride != 0;
  uint64_t const extents[3] = {(uint64_t)columns, (uint64_t)x->rows, batched ? (uint64_t)batch : 1};
  uint64_t const strides[2] = {(uint64_t)(x->leading * x->size), (uint64_t)((batched ? x->batch_stride : x->leading) * x->size)};
  uint32_t const box[3] = {width, rule->box[1], rule->box[2]}, steps[3] = {1, 1, 1};
  /* 256 is slower where rows start within 256 bytes */
  int const promotion = strides[0] % 256 == 0 && strides[1] % 256 == 0 ? L2_PROMOTION_256B : L2_PROMOTION_128B;
  if (width == 0) return;
  driver_entry("cuTensorMapEncodeTiled", &tiled);
  check_driver(tiled(map, rule->type, 3, (void *)(uintptr_t)x->address, extents, strides, box, steps, 0, rule->swizzle, promotion, 0),
               "encode a tensor map");
}

static void encode_all(Maps *maps, HgemmProblem const *p) {
  int const a_by_rows = kernel.layout[0] == 't', b_by_columns = kernel.layout[1] == 'n';
  Matrix const of[3] = {
      {p->a, a_by_rows ? p->m : p->k, a_by_rows ? p->k : p->m, p->lda, p->batch_stride_a, kernel.tile_m, kernel.size_a},
      {p->b, b_by_columns ? p->n : p->k, b_by_columns ? p->k : p->n, p->ldb, p->batch_stride_b, kernel.tile_n, kernel.size_b},
      {p->d, p->m, p->n, p->ldd, p->batch_stride_d, 1, kernel.size_d},
  };
  unsigned char(*map)[128] = maps->map;
  memset(maps, 0, sizeof *maps);
  for (int i = 0; i < 3; ++i) {
    HgemmMap const *const rule = &kernel.maps[i];
    if (rule->edge) { /* rows of two maps extend up to whole tiles, but at most to the end of the next row */
      int64_t const whole = (of[i].columns + of[i].tile - 1) / of[i].tile * of[i].tile, most = of[i].columns + of[i].leading;
      encode(map[0], rule, rule->box[0], &of[i], whole < most ? whole : most, p->batch);
      encode(map[1], rule, (uint32_t)of[i].tile % rule->box[0], &of[i], whole < most ? whole : most, p->batch);
      encode(map[2], rule, rule->box[0], &of[i], of[i].columns, p->batch);
    } else {
      encode(map[0], rule, rule->box[0], &of[i], of[i].columns, p->batch);
    }
    map += i < 2 && kernel.map_count == 7 ? 3 : 1;
  }
}

/* ---- Launch ---------------------------------------------------------------------------------------------------------------- */

static char *read_file(char const *folder, char const *name) {
  char path[4096];
  char *bytes;
  long size;
  FILE *file;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0) exit(check_driver(-1, path));
  rewind(file);
  bytes = calloc((size_t)size + 1, 1);
  if (bytes == NULL || fread(bytes, 1, (size_t)size, file) != (size_t)size) exit(check_driver(-1, path));
  fclose(file);
  return bytes;
}

static void *load(char const *folder) { /* kernel.cubin, or kernel.ptx on a GPU of a later architecture */
  int (*load_data)(void **, void const *), (*get)(void **, void *, char const *), (*set)(void *, int, int);
  char *image = read_file(folder, "kernel.cubin");
  void *module, *function;
  int status;
  driver_entry("cuModuleLoadData", &load_data);
  driver_entry("cuModuleGetFunction", &get);
  driver_entry("cuFuncSetAttribute", &set);
  status = load_data(&module, image);
  if (status == NO_BINARY_FOR_GPU) { /* let the driver compile the PTX */
    free(image);
    status = load_data(&module, image = read_file(folder, "kernel.ptx"));
  }
  check_driver(status, "load the kernel");
  check_driver(get(&function, module, kernel.symbol), "find the kernel");
  check_driver(set(function, MAX_DYNAMIC_SHARED, (int)kernel.smem_bytes), "set its shared memory");
  free(image);
  return function;
}

static void launch(void *function, HgemmProblem *p) {
  int (*zero)(uint64_t, unsigned char, size_t, void *), (*launch_kernel)(Config const *, void *, void **, void **);
  Config config = {(unsigned)grid_x(p, resident_ctas(function)), 1, 1, kernel.threads, 1, 1, kernel.smem_bytes, NULL, NULL, 0};
  Maps maps;
  void *parameters[2] = {p, &maps};
  if (p->workspace) { /* the counters are zero before the first launch; each launch leaves them zero */
    driver_entry("cuMemsetD8Async", &zero);
    check_driver(zero(p->workspace, 0, COUNTERS * 4, NULL), "zero the counters");
  }
  if (kernel.map_count) encode_all(&maps, p);
  driver_entry("cuLaunchKernelEx", &launch_kernel);
  check_driver(launch_kernel(&config, function, parameters, NULL), "launch the kernel");
}

/* ---- One product ----------------------------------------------------------------------------------------------------------- */

static uint16_t half_of(int value) { /* from -2 to 2 */
  static uint16_t const halves[5] = {0xC000, 0xBC00, 0x0000, 0x3C00, 0x4000};
  return halves[value + 2];
}
static int number_a(int i, int k) { return (i * 7 + k * 3) % 5 - 2; }
static int number_b(int k, int j) { return (k + j * 2) % 5 - 2; }

static float float_of(uint16_t half) { /* whole numbers below 2048 */
  int const exponent = (half >> 10 & 31) - 25;
  float value = (float)(1024 + (half & 1023));
  if ((half & 0x7FFF) == 0) return 0.0f;
  for (int i = 0; i < -exponent; ++i) value *= 0.5f;
  return half & 0x8000 ? -value : value;
}

int main(int count, char **arguments) {
  static uint16_t a[M * K], b[K * N], d[M * N];
  int const a_by_rows = kernel.layout[0] == 't', b_by_columns = kernel.layout[1] == 'n';
  HgemmProblem p;
  int wrong = 0;
  if (count != 2) return fprintf(stderr, "usage: multiply FOLDER, the one of %s; got %d arguments\n", kernel.symbol, count - 1), 1;
  if (strcmp(kernel.dtype_a, "f16") || strcmp(kernel.dtype_d, "f16")) return fprintf(stderr, "A, B and D must be f16\n"), 1;
  if (dlopen("libcuda.so.1", RTLD_NOW) == NULL) return puts("no NVIDIA GPU: no libcuda.so.1"), NO_GPU;
  enter_device(0);
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) a[a_by_rows ? i * K + k : k * M + i] = half_of(number_a(i, k));
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < N; ++j) b[b_by_columns ? j * K + k : k * N + j] = half_of(number_b(k, j));

  memset(&p, 0, sizeof p);
  p.m = M, p.n = N, p.k = K, p.batch = 1;
  p.alpha = 1.0f;
  p.splits = 1, p.raster_tiles = 8;
  p.a = (uintptr_t)upload(a, sizeof a), p.lda = a_by_rows ? K : M;
  p.b = (uintptr_t)upload(b, sizeof b), p.ldb = b_by_columns ? K : N;
  p.d = (uintptr_t)upload(d, sizeof d), p.ldd = N;
  if (workspace_bytes(&p)) {
    void *const zeros = calloc(1, (size_t)workspace_bytes(&p));
    p.workspace = (uintptr_t)upload(zeros, (size_t)workspace_bytes(&p));
    free(zeros);
  }
  launch(load(arguments[1]), &p);
  download(d, (void const *)(uintptr_t)p.d, sizeof d);
  release((void const *)(uintptr_t)p.a), release((void const *)(uintptr_t)p.b), release((void const *)(uintptr_t)p.d);

  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      int expected = 0;
      for (int k = 0; k < K; ++k) expected += number_a(i, k) * number_b(k, j);
      wrong += float_of(d[i * N + j]) != (float)expected;
    }
  }
  printf("%dx%dx%d %s: %d of %d elements wrong\n", M, N, K, kernel.symbol, wrong, M * N);
  return wrong != 0;
}
