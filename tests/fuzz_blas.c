/* Calls the functions of cuBLAS with random arguments, and compares statuses with a second statement of the rules.
 * `fuzz_blas CALLS [SEED]` */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
int cublasSetStream_v2(void *handle, void *stream);
int cublasSetMathMode(void *handle, int mode);
int cublasSetPointerMode_v2(void *handle, int mode);
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes);
int cublasGemmEx(void *, int, int, int, int, int, void const *, void const *, int, int, void const *, int, int, void const *,
                 void *, int, int, int, int);
int cublasGemmStridedBatchedEx(void *, int, int, int, int, int, void const *, void const *, int, int, long long, void const *,
                               int, int, long long, void const *, void *, int, int, long long, int, int, int);
int cublasGemmBatchedEx_64(void *, int, int, int64_t, int64_t, int64_t, void const *, void const *const *, int, int64_t,
                           void const *const *, int, int64_t, void const *, void *const *, int, int64_t, int64_t, int, int);
int cublasHgemm(void *, int, int, int, int, int, void const *, void const *, int, void const *, int, void const *, void *, int);
int cublasSgemm_v2_64(void *, int, int, int64_t, int64_t, int64_t, void const *, void const *, int64_t, void const *, int64_t,
                      void const *, void *, int64_t);
int cublasDgemm_v2(void *, ...);

static uint64_t state;
static uint64_t draw(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (state >> 11) % below;
}
#define PICK(values) values[draw(sizeof values / sizeof *values)]

int main(int count, char **words) {
  static int const operations[] = {0, 0, 0, 1, 1, 1, 2, 3, -1, 1 << 30};
  static int const extents[] = {0, 1, 2, 7, 8, 64, 100, 4096, -1, INT32_MIN, INT32_MAX};
  static int const types[] = {0, 2, 2, 2, 14, 14, 0, 1, 3, 4, 33, 34, -1, INT32_MAX};
  static int const computes[] = {64, 65, 68, 68, 68, 69, 70, 74, 75, 77, 79, 80, 0, -1};
  static int const algorithms[] = {-1, -1, 0, 23, 24, 99, 115, 116, 999, -2};
  static int const modes[] = {0, 1, 2, 3, 16, 19, 99, -1};
  static long long const strides[] = {0, 64, 4096, -64, INT64_MAX, INT64_MIN, 1LL << 40};
  long const calls = count > 1 ? atol(words[1]) : 1000;
  long statuses[16] = {0};
  char *const memory = aligned_alloc(4096, 1 << 20);
  void *arrays[3][8], *handle;
  state = count > 2 ? strtoull(words[2], NULL, 10) | 1 : 88172645463325252u;
  if (memory == NULL || cublasCreate_v2(&handle) != 0) return 2;
  for (int i = 0; i < 24; ++i) arrays[i / 8][i % 8] = memory + 4096 * i;
  for (long call = 0; call < calls; ++call) {
    void *const given = draw(50) == 0 ? NULL : draw(50) == 0 ? (void *)(uintptr_t)draw(1 << 20) : handle;
    int const ta = PICK(operations), tb = PICK(operations), m = PICK(extents), n = PICK(extents), k = PICK(extents);
    int const rows_a = ta == 0 ? m : k, rows_b = tb == 0 ? k : n;
    int const lda = draw(4) ? (rows_a > 1 ? rows_a : 1) : PICK(extents), ldb = draw(4) ? (rows_b > 1 ? rows_b : 1) : PICK(extents);
    int const ldc = draw(4) ? (m > 1 ? m : 1) : PICK(extents);
    int const ty = PICK(types), type_b = draw(4) ? ty : PICK(types), type_c = draw(4) ? ty : PICK(types);
    int const compute = PICK(computes), algorithm = PICK(algorithms), batch = draw(8) ? (int)draw(4) : -1;
    char *const a = memory + draw(8) * draw(3), *const b = memory + 65536 + draw(4) * 2, *const c = memory + 131072 + draw(4) * 4;
    void const *const alpha = draw(20) ? memory + 4 * draw(8) : NULL, *const beta = draw(20) ? memory + 4 * draw(8) : NULL;
    int const act = (int)draw(12);
    int status = 0, plain = 0, legal;
    if (act == 0) status = cublasSetMathMode(given, PICK(modes));
    else if (act == 1) status = cublasSetPointerMode_v2(given, PICK(modes));
    else if (act == 2) status = cublasSetStream_v2(given, (void *)(uintptr_t)(draw(3) * 16));
    else if (act == 3) status = cublasSetWorkspace_v2(given, memory + draw(3) * 128, draw(1 << 20));
    else if (act == 4) status = cublasDgemm_v2(given, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else if (act == 5) {
      void *other = NULL;
      status = cublasCreate_v2(draw(8) ? &other : NULL);
      if (status == 0 && draw(2)) status = cublasDestroy_v2(handle), handle = other;
      else if (other != NULL) status = cublasDestroy_v2(other);
    } else if (act == 6) {
      plain = 1, status = cublasHgemm(given, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    } else if (act == 7) {
      plain = 1, status = cublasSgemm_v2_64(given, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    } else if (act == 8) {
      status = cublasGemmBatchedEx_64(given, ta, tb, m, n, k, alpha, (void const *const *)arrays[0], ty, lda,
                                      (void const *const *)arrays[1], type_b, ldb, beta, arrays[2], type_c, ldc, batch, compute,
                                      algorithm);
    } else if (act == 9) {
      status = cublasGemmStridedBatchedEx(given, ta, tb, m, n, k, alpha, a, ty, lda, PICK(strides), b, type_b, ldb, PICK(strides),
                                          beta, c, type_c, ldc, PICK(strides), batch, compute, algorithm);
    } else {
      plain = 1, status = cublasGemmEx(given, ta, tb, m, n, k, alpha, a, ty, lda, b, type_b, ldb, beta, c, type_c, ldc, compute,
                                       algorithm);
      if (compute < 64 || compute > 79 || ty < 0 || ty > 33 || type_b < 0 || type_b > 33 || type_c < 0 || type_c > 33 ||
          !(algorithm == 999 || (algorithm >= -1 && algorithm < 24) || (algorithm > 98 && algorithm < 116))) {
        plain = 2;
      }
    }
    if (status < 0 || status > 15) return printf("call %ld has status %d\n", call, status), 1;
    ++statuses[status];
    if (plain == 0) continue;
    legal = plain == 1 && ta >= 0 && ta < 3 && tb >= 0 && tb < 3 && m >= 0 && n >= 0 && k >= 0 && lda >= 1 && lda >= rows_a &&
            ldb >= 1 && ldb >= rows_b && ldc >= 1 && ldc >= m && alpha != NULL && beta != NULL;
    if (given != handle ? status != 1 : !legal ? status != 7 : status == 1) {
      return printf("call %ld: status %d for %s arguments\n", call, status, legal ? "legal" : "illegal"), 1;
    }
  }
  printf("%ld calls:", calls);
  for (int i = 0; i < 16; ++i) printf(" %ld", statuses[i]);
  printf("\n");
  return cublasDestroy_v2(handle);
}
