/* The matrix products of cuBLAS. blas.c includes this file twice: with int, and with int64_t for the functions _64. */

/* ---- Calls of the real cuBLAS ------------------------------------------------------------------------------------------ */

/* Serves a product, or calls the real function with the real handle. A handle of the real cuBLAS stays as it is: it may call its
 * own functions. */
#define SERVE(name, types, ...)                                                                       \
  do {                                                                                                \
    hgemm_blas_handle *const own = hgemm_blas_find(handle);                                           \
    int const status = own != NULL ? hgemm_blas_multiply(own, &product) : BLAS_FORWARD;               \
    int (*real) types;                                                                                \
    void *real_handle;                                                                                \
    if (handle == NULL) return BLAS_NOT_INITIALIZED;                                                  \
    if (status != BLAS_FORWARD) return status;                                                        \
    real = (int(*) types)hgemm_blas_real(name);                                                       \
    real_handle = real == NULL ? NULL : own != NULL ? hgemm_blas_real_handle(own) : handle;           \
    if (own != NULL && hgemm_blas_logs()) {                                                           \
      hgemm_blas_log(&product, real_handle != NULL ? BLAS_BY_CUBLAS : BLAS_BY_NONE, hgemm_last_message()); \
    }                                                                                                 \
    if (real_handle == NULL) return own != NULL ? BLAS_NOT_SUPPORTED : BLAS_NOT_INITIALIZED;          \
    return real(real_handle, __VA_ARGS__);                                                            \
  } while (0)

/* ---- One type ---------------------------------------------------------------------------------------------------------- */

#define PLAIN(name, type, compute)                                                                                       \
  HGEMM_BLAS_API int NAME(name)(void *handle, int transa, int transb, INT m, INT n, INT k, void const *alpha,           \
                                void const *a, INT lda, void const *b, INT ldb, void const *beta, void *c, INT ldc) {   \
    hgemm_blas_product const product = {TEXT(name), BLAS_STRIDED, transa, transb, m, n, k, alpha, a, b, beta, c, type, type, \
                                        type, lda, ldb, ldc, 0, 0, 0, 1, compute, BLAS_DEFAULT_ALGORITHM};              \
    SERVE(TEXT(name), (void *, int, int, INT, INT, INT, void const *, void const *, INT, void const *, INT, void const *, \
                       void *, INT), transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                     \
  }

#define STRIDED(name, type, compute)                                                                                    \
  HGEMM_BLAS_API int NAME(name)(void *handle, int transa, int transb, INT m, INT n, INT k, void const *alpha,           \
                                void const *a, INT lda, long long stride_a, void const *b, INT ldb, long long stride_b, \
                                void const *beta, void *c, INT ldc, long long stride_c, INT count) {                    \
    hgemm_blas_product const product = {TEXT(name), BLAS_STRIDED, transa, transb, m, n, k, alpha, a, b, beta, c, type, type, \
                                        type, lda, ldb, ldc, stride_a, stride_b, stride_c, count, compute,              \
                                        BLAS_DEFAULT_ALGORITHM};                                                        \
    SERVE(TEXT(name), (void *, int, int, INT, INT, INT, void const *, void const *, INT, long long, void const *, INT,  \
                       long long, void const *, void *, INT, long long, INT), transa, transb, m, n, k, alpha, a, lda,   \
          stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, count);                                                   \
  }

#define POINTERS(name, type, compute)                                                                                   \
  HGEMM_BLAS_API int NAME(name)(void *handle, int transa, int transb, INT m, INT n, INT k, void const *alpha,           \
                                void const *const *a, INT lda, void const *const *b, INT ldb, void const *beta,         \
                                void *const *c, INT ldc, INT count) {                                                   \
    hgemm_blas_product const product = {TEXT(name), BLAS_POINTERS, transa, transb, m, n, k, alpha, a, b, beta, (void *)c, \
                                        type, type, type, lda, ldb, ldc, 0, 0, 0, count, compute, BLAS_DEFAULT_ALGORITHM}; \
    SERVE(TEXT(name), (void *, int, int, INT, INT, INT, void const *, void const *const *, INT, void const *const *, INT, \
                       void const *, void *const *, INT, INT), transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, \
          ldc, count);                                                                                                  \
  }

PLAIN(cublasHgemm, BLAS_R_16F, BLAS_COMPUTE_16F)
STRIDED(cublasHgemmStridedBatched, BLAS_R_16F, BLAS_COMPUTE_16F)
POINTERS(cublasHgemmBatched, BLAS_R_16F, BLAS_COMPUTE_16F)
PLAIN(cublasSgemm_v2, BLAS_R_32F, BLAS_COMPUTE_32F)
STRIDED(cublasSgemmStridedBatched, BLAS_R_32F, BLAS_COMPUTE_32F)
POINTERS(cublasSgemmBatched, BLAS_R_32F, BLAS_COMPUTE_32F)

/* ---- Any type ---------------------------------------------------------------------------------------------------------- */

HGEMM_BLAS_API int NAME(cublasGemmEx)(void *handle, int transa, int transb, INT m, INT n, INT k, void const *alpha,
                                      void const *a, int type_a, INT lda, void const *b, int type_b, INT ldb,
                                      void const *beta, void *c, int type_c, INT ldc, int compute, int algorithm) {
  hgemm_blas_product const product = {TEXT(cublasGemmEx), BLAS_STRIDED, transa, transb, m, n, k, alpha, a, b, beta, c, type_a,
                                      type_b, type_c, lda, ldb, ldc, 0, 0, 0, 1, compute, algorithm};
  SERVE(TEXT(cublasGemmEx), (void *, int, int, INT, INT, INT, void const *, void const *, int, INT, void const *, int, INT,
                             void const *, void *, int, INT, int, int),
        transa, transb, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, compute, algorithm);
}

HGEMM_BLAS_API int NAME(cublasGemmStridedBatchedEx)(void *handle, int transa, int transb, INT m, INT n, INT k,
                                                    void const *alpha, void const *a, int type_a, INT lda, long long stride_a,
                                                    void const *b, int type_b, INT ldb, long long stride_b, void const *beta,
                                                    void *c, int type_c, INT ldc, long long stride_c, INT count, int compute,
                                                    int algorithm) {
  hgemm_blas_product const product = {TEXT(cublasGemmStridedBatchedEx), BLAS_STRIDED, transa, transb, m, n, k, alpha, a, b,
                                      beta, c, type_a, type_b, type_c, lda, ldb, ldc, stride_a, stride_b, stride_c, count,
                                      compute, algorithm};
  SERVE(TEXT(cublasGemmStridedBatchedEx), (void *, int, int, INT, INT, INT, void const *, void const *, int, INT, long long,
                                           void const *, int, INT, long long, void const *, void *, int, INT, long long, INT,
                                           int, int),
        transa, transb, m, n, k, alpha, a, type_a, lda, stride_a, b, type_b, ldb, stride_b, beta, c, type_c, ldc, stride_c,
        count, compute, algorithm);
}

HGEMM_BLAS_API int NAME(cublasGemmBatchedEx)(void *handle, int transa, int transb, INT m, INT n, INT k, void const *alpha,
                                             void const *const *a, int type_a, INT lda, void const *const *b, int type_b,
                                             INT ldb, void const *beta, void *const *c, int type_c, INT ldc, INT count,
                                             int compute, int algorithm) {
  hgemm_blas_product const product = {TEXT(cublasGemmBatchedEx), BLAS_POINTERS, transa, transb, m, n, k, alpha, a, b, beta,
                                      (void *)c, type_a, type_b, type_c, lda, ldb, ldc, 0, 0, 0, count, compute, algorithm};
  SERVE(TEXT(cublasGemmBatchedEx), (void *, int, int, INT, INT, INT, void const *, void const *const *, int, INT,
                                    void const *const *, int, INT, void const *, void *const *, int, INT, INT, int, int),
        transa, transb, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, count, compute, algorithm);
}

#undef SERVE
#undef PLAIN
#undef STRIDED
#undef POINTERS
