/* A libcublas without a GPU: it counts its calls, and tells what it was given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Handle {
  void *stream;
  int pointer_mode, math_mode;
} Handle;

static int live, calls;
static double last;

int fake_live(void) { return live; }
int fake_calls(void) { return calls; }
double fake_last(void) { return last; }

int cublasCreate_v2(Handle **handle) { *handle = calloc(1, sizeof **handle); ++live; return 0; }
int cublasDestroy_v2(Handle *handle) { free(handle); --live; return 0; }
int cublasSetStream_v2(Handle *handle, void *stream) { handle->stream = stream; return 0; }
int cublasSetPointerMode_v2(Handle *handle, int mode) { handle->pointer_mode = mode; return 0; }
int cublasSetMathMode(Handle *handle, int mode) { handle->math_mode = mode; return 0; }

/* Tells the stream, and sums arguments of all sorts: in registers, on the stack and in vector registers. */
int cublasDgemm_v2(Handle *handle, int transa, int transb, int m, int n, int k, double const *alpha, double const *a, int lda,
                   double const *b, int ldb, double const *beta, double *c, int ldc) {
  ++calls;
  last = (double)(size_t)handle->stream + transa + transb + m + n + k + *alpha + *beta + lda + ldb + ldc + (a != NULL) +
         (b != NULL) + (c != NULL) + 1000 * handle->pointer_mode + 10000 * handle->math_mode;
  return 13;
}

/* ---- cuBLASLt: a descriptor has its kind in the first word, and attribute i in word 1 + i ----------------------------------- */

enum { LAYOUT = 901, OPERATION, PREFERENCE, ALGORITHM, WORDS = 48 };
static long seen[6][WORDS]; /* the descriptors of the last call: operation, A, B, C, D, preference */
static int lights, had_algorithm, results_wanted;

long fake_seen(int descriptor, int word) { return seen[descriptor][word]; }
int fake_lights(void) { return lights; }
int fake_had_algorithm(void) { return had_algorithm; }
int fake_results_wanted(void) { return results_wanted; }

static int begin(long *words, size_t bytes, long kind) {
  if (bytes < WORDS * sizeof *words) return 3;
  memset(words, 0, WORDS * sizeof *words);
  words[0] = kind;
  return 0;
}
static int change(long *words, long kind, int id, void const *value, size_t bytes) {
  if (words[0] != kind || id < 0 || id >= WORDS - 1) return 7;
  words[1 + id] = 0;
  memcpy(&words[1 + id], value, bytes);
  return 0;
}
static int look(int at, long const *words, long kind) {
  if (words[0] != kind) return 7;
  memcpy(seen[at], words, sizeof seen[at]);
  return 0;
}

int cublasLtCreate(Handle **handle) { *handle = calloc(1, sizeof **handle); ++lights; return 0; }
int cublasLtDestroy(Handle *handle) { free(handle); --lights; return 0; }
size_t cublasLtGetVersion(void) { return 130456; }
int cublasLtMatrixLayoutInit_internal(long *words, size_t bytes, int type, long rows, long columns, long ld) {
  int const status = begin(words, bytes, LAYOUT);
  if (status == 0) words[1] = type, words[3] = rows, words[4] = columns, words[5] = ld;
  return status;
}
int cublasLtMatmulDescInit_internal(long *words, size_t bytes, int compute, int scale) {
  int const status = begin(words, bytes, OPERATION);
  if (status == 0) words[1] = compute, words[2] = scale;
  return status;
}
int cublasLtMatmulPreferenceInit_internal(long *words, size_t bytes) { return begin(words, bytes, PREFERENCE); }
int cublasLtMatrixLayoutSetAttribute(long *x, int id, void const *value, size_t bytes) { return change(x, LAYOUT, id, value, bytes); }
int cublasLtMatmulDescSetAttribute(long *x, int id, void const *value, size_t bytes) { return change(x, OPERATION, id, value, bytes); }
int cublasLtMatmulPreferenceSetAttribute(long *x, int id, void const *value, size_t bytes) {
  return change(x, PREFERENCE, id, value, bytes);
}

/* Tells a status that nobody else returns, so that a test sees who answered. */
int cublasLtMatmul(Handle *handle, long *operation, void const *alpha, void const *a, long *layout_a, void const *b,
                   long *layout_b, void const *beta, void const *c, long *layout_c, void *d, long *layout_d,
                   long const *algorithm, void *workspace, size_t bytes, void *stream) {
  int const wrong = look(0, operation, OPERATION) | look(1, layout_a, LAYOUT) | look(2, layout_b, LAYOUT) |
                    look(3, layout_c, LAYOUT) | look(4, layout_d, LAYOUT);
  ++calls;
  had_algorithm = algorithm != NULL;
  last = (double)((size_t)stream + bytes + (workspace != NULL) + (alpha && a && b && beta && c && d) +
                  10000 * (size_t)handle->math_mode);
  return wrong ? wrong : algorithm != NULL && algorithm[0] != ALGORITHM ? 7 : 14;
}
int cublasLtMatmulAlgoGetHeuristic(Handle *handle, long *operation, long *a, long *b, long *c, long *d, long *preference,
                                   int wanted, long (*results)[12], int *count) {
  int const wrong = look(0, operation, OPERATION) | look(1, a, LAYOUT) | look(2, b, LAYOUT) | look(3, c, LAYOUT) |
                    look(4, d, LAYOUT) | look(5, preference, PREFERENCE);
  ++calls;
  results_wanted = wanted;
  if (wrong) return wrong;
  memset(results[0], 0, sizeof results[0]);
  results[0][0] = ALGORITHM, results[0][8] = 4242;
  *count = handle != NULL;
  return 0;
}
int cublasLtMatmulAlgoCheck(Handle *handle, long *operation, long *a, long *b, long *c, long *d, long const *algorithm,
                            long *result) {
  int const wrong = look(0, operation, OPERATION) | look(1, a, LAYOUT) | look(2, b, LAYOUT) | look(3, c, LAYOUT) |
                    look(4, d, LAYOUT);
  ++calls;
  result[8] = 4343;
  return wrong ? wrong : handle == NULL || algorithm[0] != ALGORITHM ? 7 : 0;
}
int cublasLtMatrixTransform(Handle *handle, void *transform, void const *alpha, void const *a, long *layout_a, void const *beta,
                            void const *b, long *layout_b, void *c, long *layout_c, void *stream) {
  ++calls;
  last = (double)((size_t)stream + (handle && transform && alpha && a && beta && b && c));
  return look(1, layout_a, LAYOUT) | look(2, layout_b, LAYOUT) | look(3, layout_c, LAYOUT);
}
int cublasLtMatmulAlgoConfigGetAttribute(long const *algorithm, int id, int *value, size_t bytes, size_t *written) {
  if (algorithm[0] != ALGORITHM || bytes != 4) return 7;
  *value = 700 + id;
  if (written != NULL) *written = 4;
  return 0;
}

/* The old interface: no handle, values in vector registers, no status. */
void cublasDscal(int n, double alpha, double *x, int step) { ++calls; last = n + alpha + step + (x != NULL); }

int cublasGemmEx(Handle *handle, int transa, int transb, int m, int n, int k, void const *alpha, void const *a, int type_a,
                 int lda, void const *b, int type_b, int ldb, void const *beta, void *c, int type_c, int ldc, int compute,
                 int algorithm) {
  ++calls;
  last = (double)(size_t)handle->stream + transa + transb + m + n + k + lda + ldb + ldc + type_a + type_b + type_c + compute +
         algorithm + (alpha && a && b && beta && c);
  return 0;
}

int cublasSgemm_v2(Handle *handle, int transa, int transb, int m, int n, int k, float const *alpha, float const *a, int lda,
                   float const *b, int ldb, float const *beta, float *c, int ldc) {
  ++calls;
  last = transa + transb + m + n + k + *alpha + lda + ldb + *beta + ldc + (handle && a && b && c);
  return 0;
}
