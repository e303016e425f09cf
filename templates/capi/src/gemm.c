/* Products with the arguments of BLAS. */
#include "internal.h"

hgemm_status hgemm_gemm_ex(hgemm_handle *handle, hgemm_operation transa, hgemm_operation transb, int64_t m, int64_t n, int64_t k,
                           float const *alpha, void const *a, hgemm_dtype dtype_a, int64_t lda, void const *b,
                           hgemm_dtype dtype_b, int64_t ldb, float const *beta, void *c, hgemm_dtype dtype_c, int64_t ldc,
                           hgemm_acc acc, void *stream) {
  static int32_t const layouts[2][2] = {{HGEMM_NT, HGEMM_NN}, {HGEMM_TT, HGEMM_TN}}; /* by k contiguous in b, in a */
  hgemm_problem x;
  if (handle == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the handle is null");
  if (alpha == NULL || beta == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "alpha or beta is null");
  if ((int)transa < HGEMM_OP_N || (int)transa > HGEMM_OP_C || (int)transb < HGEMM_OP_N || (int)transb > HGEMM_OP_C) {
    return hgemm_fail(HGEMM_ERROR_UNKNOWN_VALUE, "transa is %d and transb is %d: the allowed values are 0 to 2", (int)transa,
                      (int)transb);
  }
  hgemm_problem_init(&x);
  x.layout = layouts[transb == HGEMM_OP_N][transa != HGEMM_OP_N];
  x.dtype_a = (int32_t)dtype_b, x.dtype_b = (int32_t)dtype_a, x.dtype_d = (int32_t)dtype_c, x.acc = (int32_t)acc;
  x.m = n, x.n = m, x.k = k;
  x.a = b, x.lda = ldb, x.b = a, x.ldb = lda;
  x.c = x.d = c, x.ldc = x.ldd = ldc;
  x.alpha = *alpha, x.beta = *beta;
  return hgemm_run(handle, &x, stream);
}
