/* Times hgemm_run and hgemm_select beside a bare cuLaunchKernelEx of the same kernel, on the host's clock.
 *
 *     launch_overhead CUBIN SYMBOL THREADS SMEM_BYTES CTAS M N K
 *
 * benchmarks/call_overhead.py builds it and says what the arguments are. Launches go in batches that the driver queues
 * without waiting; the device is waited for between them. Prints nanoseconds a call, a line a round: bare, run, select.
 */
#define _POSIX_C_SOURCE 199309L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hgemm.h"

enum { BATCH = 256, ROUNDS = 41, WARM_UP_ROUNDS = 5 };

typedef struct Config { /* CUlaunchConfig */
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
  void *stream, *attributes;
  unsigned attribute_count;
} Config;

typedef struct Problem { /* hgemm::Problem */
  uint64_t a, b, c, d, bias, workspace;
  int64_t lda, ldb, ldc, ldd, strides[5];
  int32_t m, n, k, batch;
  float alpha, beta;
} Problem;

static struct {
  int (*init)(unsigned);
  int (*device)(int *, int);
  int (*retain)(void **, int);
  int (*set)(void *);
  int (*load)(void **, void const *);
  int (*function)(void **, void *, char const *);
  int (*attribute)(void *, int, int);
  int (*allocate)(uint64_t *, size_t);
  int (*synchronize)(void);
  int (*launch)(Config const *, void *, void **, void **);
} cuda;

static void find(char const *name, void *entry) {
  void *const library = dlopen("libcuda.so.1", RTLD_NOW);
  void *const found = library ? dlsym(library, name) : NULL;
  if (found == NULL) fprintf(stderr, "no %s here\n", name), exit(77);
  memcpy(entry, &found, sizeof found);
}

static void need(int status, char const *doing) {
  if (status != 0) fprintf(stderr, "cannot %s: %d %s\n", doing, status, hgemm_last_message()), exit(1);
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static char *contents(char const *path) {
  FILE *const file = fopen(path, "rb");
  char *bytes = calloc(1, 1 << 22);
  if (file == NULL || bytes == NULL || fread(bytes, 1, (1 << 22) - 1, file) == 0) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(2);
  }
  fclose(file);
  return bytes;
}

int main(int count, char **words) {
  int device;
  void *context, *module, *function;
  uint64_t memory;
  hgemm_handle *handle;
  hgemm_problem problem;
  if (count != 9) return fprintf(stderr, "see benchmarks/call_overhead.py\n"), 2;
  find("cuInit", &cuda.init), find("cuDeviceGet", &cuda.device), find("cuDevicePrimaryCtxRetain", &cuda.retain);
  find("cuCtxSetCurrent", &cuda.set), find("cuModuleLoadData", &cuda.load), find("cuModuleGetFunction", &cuda.function);
  find("cuFuncSetAttribute", &cuda.attribute), find("cuMemAlloc_v2", &cuda.allocate);
  find("cuCtxSynchronize", &cuda.synchronize), find("cuLaunchKernelEx", &cuda.launch);

  int64_t const m = atoll(words[6]), n = atoll(words[7]), k = atoll(words[8]), each = 1 << 24;
  need(cuda.init(0), "start the driver");
  need(cuda.device(&device, 0), "find the device");
  need(cuda.retain(&context, device), "make a context");
  need(cuda.set(context), "enter the context");
  need(cuda.load(&module, contents(words[1])), "load the kernel");
  need(cuda.function(&function, module, words[2]), "find the kernel");
  need(cuda.attribute(function, 8, atoi(words[4])), "give it its shared memory");
  need(cuda.allocate(&memory, 3 * (size_t)each), "allocate");

  Config const config = {(unsigned)atoi(words[5]), 1, 1, (unsigned)atoi(words[3]), 1, 1, (unsigned)atoi(words[4]), NULL, NULL, 0};
  Problem bare = {memory, memory + (uint64_t)each, 0, memory + 2 * (uint64_t)each, 0, 0, k, k, 0, n, {0},
                  (int32_t)m, (int32_t)n, (int32_t)k, 1, 1.0f, 0.0f};
  void *parameters[] = {&bare};
  need(hgemm_create(&handle, 0), "open the library");
  hgemm_problem_init(&problem);
  problem.m = m, problem.n = n, problem.k = k;
  problem.a = (void *)(uintptr_t)bare.a, problem.b = (void *)(uintptr_t)bare.b, problem.d = (void *)(uintptr_t)bare.d;
  problem.lda = problem.ldb = k, problem.ldd = n;

  for (int round = -WARM_UP_ROUNDS; round < ROUNDS; ++round) {
    hgemm_choice choice;
    double times[4];
    times[0] = now_ns();
    for (int i = 0; i < BATCH; ++i) need(cuda.launch(&config, function, parameters, NULL), "launch");
    times[1] = now_ns();
    need(cuda.synchronize(), "run");
    double const between = now_ns();
    for (int i = 0; i < BATCH; ++i) need(hgemm_run(handle, &problem, NULL), "launch by hgemm_run");
    times[2] = now_ns();
    need(cuda.synchronize(), "run");
    double const after = now_ns();
    for (int i = 0; i < BATCH; ++i) need(hgemm_select(handle, &problem, &choice), "select");
    times[3] = now_ns();
    if (strcmp(choice.symbol, words[2]) != 0) return fprintf(stderr, "the library takes %s\n", choice.symbol), 1;
    if (round >= 0) {
      printf("%.1f %.1f %.1f\n", (times[1] - times[0]) / BATCH, (times[2] - between) / BATCH, (times[3] - after) / BATCH);
    }
  }
  hgemm_destroy(handle);
  return 0;
}
