/* Multiplies two matrices with one emitted kernel: plain C99, no CUDA toolkit, the driver opened when the program runs.
 *
 *     cc -std=c99 multiply.c -o multiply -ldl
 *     ./multiply kernel.cubin          (or kernel.ptx, which the driver compiles for newer GPUs)
 *
 * Exit status: 0 the product is right, 1 something failed, 2 misused, 77 there is no NVIDIA GPU here.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The variant: these numbers stand in its record.json, under symbol and launch -------------------------------- */

#define SYMBOL \
  "hgemm_sm80_tn_f16_f32_f16_128x128x32_w64x64_k16_s3f2_xor233_xor233_zigzag_group8_one_c2_a888_smem_beta"
enum { TILE_M = 128, TILE_N = 128, THREADS = 128, SMEM_BYTES = 49152 };

/* ---- The problem: templates/hgemm/problem.cuh, field by field ---------------------------------------------------- */

typedef struct {
  uint64_t a, b, c, d, bias, workspace; /* device addresses, 0 for none */
  int64_t lda, ldb, ldc, ldd;           /* elements */
  int64_t batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
} Problem;

typedef char problem_has_144_bytes[sizeof(Problem) == 144 ? 1 : -1];

/* ---- The driver: the few entries that a launch takes ------------------------------------------------------------- */

enum { CUDA_SUCCESS = 0, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, NO_GPU = 77 };

static struct {
  int (*init)(unsigned flags);
  int (*device_count)(int *count);
  int (*device)(int *device, int ordinal);
  int (*retain_context)(void **context, int device);
  int (*set_context)(void *context);
  int (*load)(void **module, void const *image);
  int (*function)(void **function, void *module, char const *name);
  int (*set_attribute)(void *function, int attribute, int value);
  int (*allocate)(uint64_t *address, size_t bytes);
  int (*upload)(uint64_t to, void const *from, size_t bytes);
  int (*download)(void *to, uint64_t from, size_t bytes);
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned smem_bytes, void *stream, void **parameters, void **extra);
  int (*synchronize)(void);
  int (*error_text)(int status, char const **text);
} cuda;

static int missing; /* entries that the driver does not have */

static void find(void *library, char const *name, void *entry) {
  void *found = dlsym(library, name);
  missing += found == NULL;
  memcpy(entry, &found, sizeof found); /* ISO C has no cast from an object pointer to a function pointer */
}

static int open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return 0;
  find(library, "cuInit", &cuda.init);
  find(library, "cuDeviceGetCount", &cuda.device_count);
  find(library, "cuDeviceGet", &cuda.device);
  find(library, "cuDevicePrimaryCtxRetain", &cuda.retain_context);
  find(library, "cuCtxSetCurrent", &cuda.set_context);
  find(library, "cuModuleLoadData", &cuda.load);
  find(library, "cuModuleGetFunction", &cuda.function);
  find(library, "cuFuncSetAttribute", &cuda.set_attribute);
  find(library, "cuMemAlloc_v2", &cuda.allocate);
  find(library, "cuMemcpyHtoD_v2", &cuda.upload);
  find(library, "cuMemcpyDtoH_v2", &cuda.download);
  find(library, "cuLaunchKernel", &cuda.launch);
  find(library, "cuCtxSynchronize", &cuda.synchronize);
  find(library, "cuGetErrorString", &cuda.error_text);
  return missing == 0;
}

static void need(int status, char const *doing) {
  char const *text = NULL;
  if (status == CUDA_SUCCESS) return;
  cuda.error_text(status, &text);
  fprintf(stderr, "multiply: cannot %s: %s (%d)\n", doing, text ? text : "the driver does not say why", status);
  exit(1);
}

/* ---- Data: whole numbers from -2 to 2, whose products f16 and f32 hold exactly ----------------------------------- */

static int number(unsigned i, unsigned j) { return (int)((i * 7 + j * 3 + i * j % 11) % 5) - 2; }

static uint16_t half_of(int value) {
  static uint16_t const halves[5] = {0xC000, 0xBC00, 0x0000, 0x3C00, 0x4000};
  return halves[value + 2];
}

static float float_of(uint16_t half) { /* finite normal numbers and zero */
  int const exponent = half >> 10 & 31;
  float value = (float)(exponent ? 1024 + (half & 1023) : half & 1023);
  int shift = (exponent ? exponent : 1) - 25;
  for (; shift > 0; --shift) value *= 2.0f;
  for (; shift < 0; ++shift) value *= 0.5f;
  return half & 0x8000 ? -value : value;
}

static char *read_image(char const *path) { /* PTX must end in a zero byte, a cubin may */
  FILE *file = fopen(path, "rb");
  long size = -1;
  char *image = NULL;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) size = ftell(file);
  if (size > 0) image = malloc((size_t)size + 1);
  if (image != NULL) {
    rewind(file);
    image[fread(image, 1, (size_t)size, file)] = '\0';
  }
  if (file != NULL) fclose(file);
  return image;
}

/* ---- The product ------------------------------------------------------------------------------------------------- */

enum { M = 200, N = 136, K = 96 }; /* ragged in m and n; leading dimensions are multiples of 8, as align 8 asks */

static int wrong_elements(uint16_t const *d) {
  int wrong = 0;
  for (unsigned i = 0; i < M; ++i) {
    for (unsigned j = 0; j < N; ++j) {
      int expected = 0;
      for (unsigned k = 0; k < K; ++k) expected += number(i, k) * number(j + 1000, k);
      wrong += float_of(d[i * N + j]) != (float)expected;
    }
  }
  return wrong;
}

int main(int count, char **arguments) {
  int gpus = 0, device = 0, wrong;
  void *context, *module, *function;
  uint64_t a, b, d;
  Problem problem;
  void *parameters[1];
  unsigned const ctas = (unsigned)((M + TILE_M - 1) / TILE_M * ((N + TILE_N - 1) / TILE_N)); /* grid rule one_tile */
  static uint16_t host_a[M * K], host_b[N * K], host_d[M * N];
  char *image = count == 2 ? read_image(arguments[1]) : NULL;

  if (image == NULL) {
    fprintf(stderr, "usage: multiply FILE, the kernel.cubin or kernel.ptx of\n  %s\n", SYMBOL);
    return 2;
  }
  if (!open_driver() || cuda.init(0) != CUDA_SUCCESS || cuda.device_count(&gpus) != CUDA_SUCCESS || gpus == 0) {
    printf("no NVIDIA GPU here: this was built, and has nothing to run on\n");
    free(image);
    return NO_GPU;
  }

  for (unsigned i = 0; i < M; ++i) /* A (m, k), k contiguous */
    for (unsigned k = 0; k < K; ++k) host_a[i * K + k] = half_of(number(i, k));
  for (unsigned j = 0; j < N; ++j) /* B (k, n), k contiguous */
    for (unsigned k = 0; k < K; ++k) host_b[j * K + k] = half_of(number(j + 1000, k));
  memset(host_d, 0xFF, sizeof host_d); /* NaN, so that what is not written shows */

  need(cuda.device(&device, 0), "open the device");
  need(cuda.retain_context(&context, device), "make a context");
  need(cuda.set_context(context), "enter the context");
  need(cuda.load(&module, image), "load the image, is it for this GPU");
  free(image);
  need(cuda.function(&function, module, SYMBOL), "find the kernel in the image");
  need(cuda.set_attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, SMEM_BYTES), "give the kernel its shared memory");
  need(cuda.allocate(&a, sizeof host_a), "allocate A");
  need(cuda.allocate(&b, sizeof host_b), "allocate B");
  need(cuda.allocate(&d, sizeof host_d), "allocate D");
  need(cuda.upload(a, host_a, sizeof host_a), "copy A");
  need(cuda.upload(b, host_b, sizeof host_b), "copy B");
  need(cuda.upload(d, host_d, sizeof host_d), "poison D");

  memset(&problem, 0, sizeof problem); /* no C, no bias, no workspace, no strides */
  problem.a = a, problem.b = b, problem.d = d;
  problem.lda = K, problem.ldb = K, problem.ldd = N;
  problem.m = M, problem.n = N, problem.k = K, problem.batch = 1;
  problem.alpha = 1.0f, problem.beta = 0.0f;
  parameters[0] = &problem;
  need(cuda.launch(function, ctas, 1, 1, THREADS, 1, 1, SMEM_BYTES, NULL, parameters, NULL), "launch the kernel");
  need(cuda.synchronize(), "run the kernel");
  need(cuda.download(host_d, d, sizeof host_d), "copy D back");

  wrong = wrong_elements(host_d);
  printf("%dx%dx%d: %d of %d elements wrong\n", M, N, K, wrong, M * N);
  return wrong != 0; /* the driver frees the rest with the process */
}
