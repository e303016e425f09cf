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

/* cuBLASLt accepts handles of cuBLAS. Only one of its own has a stream of 0 or 64 here. */
int cublasLtMatmul(Handle *handle, void *description, double const *alpha, void const *a) {
  ++calls;
  last = (double)(size_t)handle->stream + *alpha + (description != NULL) + (a != NULL);
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
