/* Times cublasGemmEx and cublasGemmStridedBatchedEx of several libraries on the host's clock.
 *
 *     blas_overhead LIBRARY...
 *
 * benchmarks/call_overhead.py builds it. Calls of eight small problems go in batches that the driver queues without waiting; the
 * device is waited for between them. Prints nanoseconds a call, a line a round: both functions of each library.
 */
#define _POSIX_C_SOURCE 199309L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 256, ROUNDS = 41, WARM_UP_ROUNDS = 5, MAX_LIBRARIES = 4, F16 = 2, COMPUTE_32F = 68 };

typedef struct Blas {
  void *handle;
  int (*create)(void **);
  int (*plain)(void *, int, int, int, int, int, void const *, void const *, int, int, void const *, int, int, void const *, void *,
               int, int, int, int);
  int (*batched)(void *, int, int, int, int, int, void const *, void const *, int, int, long long, void const *, int, int,
                 long long, void const *, void *, int, int, long long, int, int, int);
} Blas;

static void find(void *library, char const *name, void *entry) {
  void *const found = library != NULL ? dlsym(library, name) : NULL;
  if (found == NULL) fprintf(stderr, "no %s here: %s\n", name, dlerror()), exit(77);
  memcpy(entry, &found, sizeof found);
}

static void need(int status, char const *doing) {
  if (status != 0) fprintf(stderr, "cannot %s: %d\n", doing, status), exit(1);
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double calls(Blas const *blas, int batch, char *memory, int (*synchronize)(void)) {
  static int const m[8] = {64, 128, 256, 64, 8, 256, 128, 64}, n[8] = {64, 8, 256, 128, 256, 16, 128, 256};
  float const one = 1, zero = 0;
  char *const b = memory + (1 << 22), *const c = memory + (2 << 22);
  double const began = now_ns();
  double took;
  for (int i = 0; i < BATCH; ++i) {
    int const rows = m[i % 8], columns = n[i % 8], k = 256;
    need(batch == 1 ? blas->plain(blas->handle, 1, 0, rows, columns, k, &one, memory, F16, k, b, F16, k, &zero, c, F16, rows,
                                  COMPUTE_32F, -1)
                    : blas->batched(blas->handle, 1, 0, rows, columns, k, &one, memory, F16, k, rows * k, b, F16, k, columns * k,
                                    &zero, c, F16, rows, rows * columns, batch, COMPUTE_32F, -1),
         "multiply");
  }
  took = (now_ns() - began) / BATCH;
  need(synchronize(), "run");
  return took;
}

int main(int count, char **words) {
  Blas libraries[MAX_LIBRARIES];
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
  uint64_t memory;
  int device;
  int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set)(void *), (*allocate)(uint64_t *, size_t);
  int (*synchronize)(void);
  if (count < 2 || count > 1 + MAX_LIBRARIES) return fprintf(stderr, "see benchmarks/call_overhead.py\n"), 2;
  find(driver, "cuInit", &init), find(driver, "cuDeviceGet", &get), find(driver, "cuDevicePrimaryCtxRetain", &retain);
  find(driver, "cuCtxSetCurrent", &set), find(driver, "cuMemAlloc_v2", &allocate);
  find(driver, "cuCtxSynchronize", &synchronize);
  need(init(0), "start the driver"), need(get(&device, 0), "find the device");
  need(retain(&context, device), "make a context"), need(set(context), "enter the context");
  need(allocate(&memory, 3 << 22), "allocate");
  for (int i = 0; i < count - 1; ++i) {
    void *const library = dlopen(words[1 + i], RTLD_NOW | RTLD_LOCAL);
    find(library, "cublasCreate_v2", &libraries[i].create), find(library, "cublasGemmEx", &libraries[i].plain);
    find(library, "cublasGemmStridedBatchedEx", &libraries[i].batched);
    need(libraries[i].create(&libraries[i].handle), "open cuBLAS");
  }
  for (int round = -WARM_UP_ROUNDS; round < ROUNDS; ++round) {
    for (int i = 0; i < count - 1; ++i) {
      double const plain = calls(&libraries[i], 1, (char *)(uintptr_t)memory, synchronize);
      double const batched = calls(&libraries[i], 4, (char *)(uintptr_t)memory, synchronize);
      if (round >= 0) printf("%.1f %.1f%s", plain, batched, i + 2 == count ? "\n" : " ");
    }
  }
  return 0;
}
