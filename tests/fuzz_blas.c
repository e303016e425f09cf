/* Calls the functions of cuBLAS with random arguments, and compares statuses with a second statement of the rules.
 * `fuzz_blas CALLS [SEED]` */
#include <dlfcn.h>
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
int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
int cublasLtMatrixLayoutInit_internal(void *, size_t, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutSetAttribute(void *, int, void const *, size_t);
int cublasLtMatrixLayoutGetAttribute(void const *, int, void *, size_t, size_t *);
int cublasLtMatmulDescInit_internal(void *, size_t, int, int);
int cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescDestroy(void *);
int cublasLtMatmulDescSetAttribute(void *, int, void const *, size_t);
int cublasLtMatmulDescGetAttribute(void const *, int, void *, size_t, size_t *);
int cublasLtMatmulPreferenceInit_internal(void *, size_t);
int cublasLtMatmulPreferenceSetAttribute(void *, int, void const *, size_t);
int cublasLtMatmulAlgoGetHeuristic(void *, void const *, void const *, void const *, void const *, void const *, void const *, int,
                                   void *, int *);
int cublasLtMatmulAlgoCheck(void *, void const *, void const *, void const *, void const *, void const *, void const *, void *);
int cublasLtMatmulAlgoConfigGetAttribute(void const *, int, void *, size_t, size_t *);
int cublasLtMatmul(void *, void const *, void const *, void const *, void const *, void const *, void const *, void const *,
                   void const *, void const *, void *, void const *, void const *, void *, size_t, void *);

static uint64_t state;
static uint64_t draw(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (state >> 11) % below;
}
#define PICK(values) values[draw(sizeof values / sizeof *values)]

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------------- */

typedef struct Lt { /* the descriptors and matrices of a product, and what this program knows of them */
  uint64_t operation[32], layouts[4][8], preference[8], results[3][12];
  char *matrices[4];
  int transa, transb, contradicts; /* 1 if an attribute was drawn that makes the product illegal */
} Lt;

static int failed(char const *what, long call, int status) {
  printf("call %ld: %s has status %d\n", call, what, status);
  return 1;
}

/* Makes descriptors that match, and then perhaps spoils some. */
static void draw_descriptors(Lt *lt, char *memory) {
  static int const types[] = {0, 2, 14}, computes[] = {64, 68, 68, 68, 77, 70}, epilogues[] = {1, 2, 4, 6, 32, 36, 130, 512};
  static uint64_t const extents[] = {1, 2, 3, 8, 16, 33, 64};
  static int const operations[] = {0, 1, 2};
  uint64_t const m = PICK(extents), n = PICK(extents), k = PICK(extents);
  int const type = PICK(types), type_d = draw(4) ? type : PICK(types), compute = PICK(computes);
  int32_t const epilogue = PICK(epilogues), batch = (int32_t)draw(3) + 1;
  char const *const bias = memory + 800000;
  int const spoiled = (int)draw(32), recounted = (int)draw(32); /* of one matrix at most: two changes could match */
  uint64_t shapes[4][2] = {{m, k}, {k, n}, {m, n}, {m, n}};
  lt->transa = PICK(operations), lt->transb = PICK(operations), lt->contradicts = 0;
  if (lt->transa) shapes[0][0] = k, shapes[0][1] = m;
  if (lt->transb) shapes[1][0] = n, shapes[1][1] = k;
  cublasLtMatmulDescInit_internal(lt->operation, draw(2) ? 184 : 256, compute, draw(6) ? (compute == 64 ? 2 : 0) : PICK(types));
  cublasLtMatmulDescSetAttribute(lt->operation, 3, &lt->transa, 4);
  cublasLtMatmulDescSetAttribute(lt->operation, 4, &lt->transb, 4);
  cublasLtMatmulDescSetAttribute(lt->operation, 7, &epilogue, 4);
  cublasLtMatmulDescSetAttribute(lt->operation, 8, &bias, 8);
  for (int i = 0; i < 4; ++i) {
    uint64_t const rows = shapes[i][0] + (spoiled == i), columns = shapes[i][1];
    int64_t const ld = (int64_t)(rows + draw(3)) - (draw(24) == 0), stride = ld * (int64_t)columns;
    int32_t const count = recounted != i ? batch : (int32_t)draw(4) - 1;
    cublasLtMatrixLayoutInit_internal(lt->layouts[i], 64, i < 2 ? type : type_d, rows, columns, ld);
    if (count != 1) cublasLtMatrixLayoutSetAttribute(lt->layouts[i], 5, &count, 4);
    cublasLtMatrixLayoutSetAttribute(lt->layouts[i], 6, &stride, 8);
    lt->contradicts |= rows != shapes[i][0] || ld < (int64_t)rows || ld < 1 || count != batch;
    lt->matrices[i] = memory + 200000 * i + 4 * draw(8);
  }
  cublasLtMatmulPreferenceInit_internal(lt->preference, 64);
  if (draw(2)) cublasLtMatmulPreferenceSetAttribute(lt->preference, 1, &(uint64_t){draw(1 << 24)}, 8);
  if (draw(4) == 0) cublasLtMatmulPreferenceSetAttribute(lt->preference, 5 + (int)draw(4), &(uint32_t){1u << draw(10)}, 4);
}

/* Sets and gets one attribute, with a size that may be wrong. */
static int attribute(Lt *lt, long call) {
  static size_t const sizes[] = {0, 1, 2, 4, 4, 8, 8, 16};
  int const id = (int)draw(42) - 1;
  size_t const bytes = PICK(sizes);
  uint64_t value[2] = {draw(2) ? draw(200) : (uint64_t)0 - draw(5), 0}, found[2] = {0, 0};
  size_t written = 99;
  uint64_t layout[8], operation[32];
  int const of_layout = draw(2) != 0;
  int status, again;
  cublasLtMatrixLayoutInit_internal(layout, 64, 2, 4, 4, 4);
  cublasLtMatmulDescInit_internal(operation, 256, 68, 0);
  status = of_layout ? cublasLtMatrixLayoutSetAttribute(layout, id, value, bytes)
                     : cublasLtMatmulDescSetAttribute(operation, id, value, bytes);
  again = of_layout ? cublasLtMatrixLayoutGetAttribute(layout, id, found, bytes, &written)
                    : cublasLtMatmulDescGetAttribute(operation, id, found, bytes, &written);
  if (status != 0 && status != 7) return failed("an attribute", call, status);
  if (status == 0 && (again != 0 || written != bytes)) return failed("a stored attribute", call, again);
  for (size_t i = 0; status == 0 && i < bytes; ++i) {
    if (((char *)found)[i] != ((char *)value)[i]) return failed("another value", call, (int)i);
  }
  if (draw(4) == 0) { /* any attribute, in a product: only the status must be one of cuBLAS */
    cublasLtMatmulDescSetAttribute(lt->operation, id, value, bytes);
    lt->contradicts = -1;
  }
  return 0;
}

static int light(Lt *lt, void *handle, void *given, char *memory, long call) {
  float const scalars[2] = {draw(4) ? 1.0f : 0.0f, draw(2) ? 0.0f : 2.0f};
  int const absent = draw(40) == 0 ? (int)draw(10) : -1, asked = (int)draw(3) + 1;
  void const *arguments[10];
  int count = -1, status, first;
  draw_descriptors(lt, memory);
  if (draw(3) == 0 && attribute(lt, call)) return -1;
  arguments[0] = lt->operation, arguments[1] = scalars, arguments[2] = lt->matrices[0], arguments[3] = lt->layouts[0];
  arguments[4] = lt->matrices[1], arguments[5] = lt->layouts[1], arguments[6] = scalars + 1, arguments[7] = lt->layouts[2];
  arguments[8] = lt->matrices[3], arguments[9] = lt->layouts[3];
  if (absent >= 0) arguments[absent] = NULL;
  status = cublasLtMatmulAlgoGetHeuristic(given, lt->operation, lt->layouts[0], lt->layouts[1], lt->layouts[2], lt->layouts[3],
                                          lt->preference, asked, lt->results, &count);
  if (status == 0 && (count != 1 || (int)lt->results[0][9] != 0)) return failed("a heuristic", call, count), -1;
  if (status == 0 && cublasLtMatmulAlgoCheck(handle, lt->operation, lt->layouts[0], lt->layouts[1], lt->layouts[2],
                                             lt->layouts[3], lt->results, lt->results[1]) != 0) {
    return failed("a check", call, status), -1;
  }
  first = status;
  status = cublasLtMatmul(given, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5], arguments[6],
                          lt->matrices[2], arguments[7], (void *)(uintptr_t)arguments[8], arguments[9],
                          first == 0 && draw(2) ? lt->results : NULL, draw(2) ? memory + 900000 : NULL, draw(4096),
                          (void *)(uintptr_t)(draw(3) * 16));
  if (lt->contradicts < 0) return status;
  if (given != handle ? status != 1 && !(given != NULL && absent >= 0 && status == 7) : absent >= 0 ? status != 7 : lt->contradicts ? status != 7 : status == 1) {
    return failed(absent >= 0 || lt->contradicts ? "an illegal product" : "a legal product", call, status), -1;
  }
  if (given == handle && absent < 0 && !lt->contradicts && first == 0 && status != 0) {
    return failed("a product with a heuristic", call, status), -1;
  }
  return status;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------------- */

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
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  void (*const capture)(void *) = (void (*)(void *))dlsym(driver, "fake_capture");
  static Lt lt;
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
    int const act = (int)draw(17);
    int status = 0, plain = 0, legal;
    if (act > 11) status = light(&lt, handle, given, memory, call);
    else if (act == 0) status = cublasSetMathMode(given, PICK(modes));
    else if (act == 1) status = cublasSetPointerMode_v2(given, PICK(modes));
    else if (act == 2) status = cublasSetStream_v2(given, (void *)(uintptr_t)(draw(3) * 16));
    else if (act == 3) status = cublasSetWorkspace_v2(given, memory + draw(3) * 128, draw(1 << 20));
    else if (act == 4) status = cublasDgemm_v2(given, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else if (act == 5) {
      void *other = NULL;
      int const is_light = draw(2) != 0;
      status = is_light ? cublasLtCreate(draw(8) ? &other : NULL) : cublasCreate_v2(draw(8) ? &other : NULL);
      if (status == 0 && !is_light && draw(2)) status = cublasDestroy_v2(handle), handle = other;
      else if (other != NULL) status = is_light ? cublasLtDestroy(other) : cublasDestroy_v2(other);
    } else if (act == 6) {
      plain = 1, status = cublasHgemm(given, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    } else if (act == 7) {
      plain = 1, status = cublasSgemm_v2_64(given, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    } else if (act == 8) {
      void *const stream = (void *)(uintptr_t)(draw(4) * 16); /* perhaps that of the handle: then a graph is captured */
      if (stream != NULL) capture(stream);
      status = cublasGemmBatchedEx_64(given, ta, tb, m, n, k, alpha, (void const *const *)arrays[0], ty, lda,
                                      (void const *const *)arrays[1], type_b, ldb, beta, arrays[2], type_c, ldc, batch, compute,
                                      algorithm);
      if (stream != NULL) capture(NULL);
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
