/* What the sources of libhgemm_blas.so share: the values of cuBLAS's binary interface, handles, and the real cuBLAS.
 *
 * Source of all values: NVIDIA's public documentation of cuBLAS 12 and 13. */
#ifndef HGEMM_BLAS_H
#define HGEMM_BLAS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "handle.h"

#define HGEMM_BLAS_API __attribute__((visibility("default")))

/* ---- Values of cuBLAS -------------------------------------------------------------------------------------------------- */

enum { /* cublasStatus_t */
  BLAS_SUCCESS = 0,
  BLAS_NOT_INITIALIZED = 1,
  BLAS_ALLOC_FAILED = 3,
  BLAS_INVALID_VALUE = 7,
  BLAS_ARCH_MISMATCH = 8,
  BLAS_MAPPING_ERROR = 11,
  BLAS_EXECUTION_FAILED = 13,
  BLAS_INTERNAL_ERROR = 14,
  BLAS_NOT_SUPPORTED = 15,
  BLAS_LICENSE_ERROR = 16
};

enum { BLAS_OP_N = 0, BLAS_OP_T = 1, BLAS_OP_C = 2 };    /* cublasOperation_t */
enum { BLAS_POINTER_HOST = 0, BLAS_POINTER_DEVICE = 1 }; /* cublasPointerMode_t */

enum { /* cublasMath_t */
  BLAS_MATH_TF32 = 3,
  BLAS_MATH_LAST = 12,      /* later versions of cuBLAS add emulations up to this number */
  BLAS_MATH_NO_REDUCED = 16 /* a flag */
};

enum { /* cudaDataType_t */
  BLAS_R_32F = 0,
  BLAS_R_16F = 2,
  BLAS_R_16BF = 14,
  BLAS_TYPE_LAST = 33
};

enum { /* cublasComputeType_t */
  BLAS_COMPUTE_16F = 64,
  BLAS_COMPUTE_16F_PEDANTIC = 65,
  BLAS_COMPUTE_32F = 68,
  BLAS_COMPUTE_32F_PEDANTIC = 69,
  BLAS_COMPUTE_32F_FAST_16F = 74,
  BLAS_COMPUTE_32F_FAST_16BF = 75,
  BLAS_COMPUTE_32F_FAST_TF32 = 77,
  BLAS_COMPUTE_LAST = 79
};

static inline int legal_operation(int operation) { return operation >= BLAS_OP_N && operation <= BLAS_OP_C; }

/* ---- Handles ----------------------------------------------------------------------------------------------------------- */

enum { SIMT_KERNELS = 20 };

/* A CUDA context. All cuBLAS handles of a context share its kernels and workspaces, which are never unloaded. */
typedef struct hgemm_blas_device {
  void *context;
  unsigned long long id; /* a later context may have the same address */
  hgemm_handle *handle;
  pthread_mutex_t loading;
  _Atomic(void *) simt[SIMT_KERNELS]; /* null until the module is loaded */
  struct hgemm_blas_device *next;
} hgemm_blas_device;

/* What a cublasHandle_t points to. */
typedef struct hgemm_blas_handle {
  hgemm_blas_device *device; /* null if no kernel runs on the GPU */
  void *stream;
  void *workspace; /* of the caller */
  size_t workspace_bytes;
  int pointer_mode, math_mode, atomics_mode, sm_count;
  int light; /* 1 for a cublasLtHandle_t: its real handle is one of cuBLASLt */
  _Atomic(void *) real; /* the handle of the real cuBLAS; null until it is needed */
  pthread_mutex_t creating;
} hgemm_blas_handle;

/* Returns the handle, or null if it is none of this library. Any value is allowed: it is not dereferenced. */
hgemm_blas_handle *hgemm_blas_find(void const *handle);

/* ---- The real cuBLAS: forward.c ---------------------------------------------------------------------------------------- */

/* Returns a function of the real cuBLAS, or null if there is none. The first call looks for the library. */
void *hgemm_blas_real(char const *name);

/* Returns a function of the cuBLASLt that the program has loaded, or null. */
void *hgemm_blas_light(char const *name);

/* Returns 1 if HGEMM_BLAS_FALLBACK forbids the real libraries. */
int hgemm_blas_alone(void);

/* Returns the real handle, with the same stream and modes, or null. */
void *hgemm_blas_real_handle(hgemm_blas_handle *handle);

/* Calls a setter of the real cuBLAS if the real handle exists already. */
int hgemm_blas_forward_int(hgemm_blas_handle *handle, char const *name, int value);

/* Returns 13 if this library was loaded as libcublas.so.13, otherwise 12. */
int hgemm_blas_major(void);

/* ---- Products ---------------------------------------------------------------------------------------------------------- */

enum { BLAS_STRIDED, BLAS_POINTERS };

/* What cublasLtMatmul adds: column-major D = activation(alpha * op(A) op(B) + beta * C + bias). */
typedef struct hgemm_blas_epilogue {
  void const *c, *bias;
  int64_t ldc, stride_c, stride_bias;
  int value; /* cublasLtEpilogue_t */
} hgemm_blas_epilogue;

/* A call, in cuBLAS's words: column-major C = alpha * op(A) op(B) + beta * C. */
typedef struct hgemm_blas_product {
  char const *function;
  int form; /* BLAS_STRIDED, or BLAS_POINTERS: a, b and c are arrays of pointers in device memory */
  int transa, transb;
  int64_t m, n, k;
  void const *alpha, *a, *b, *beta;
  void *c;
  int type_a, type_b, type_c;
  int64_t lda, ldb, ldc, stride_a, stride_b, stride_c, batch;
  int compute, algorithm;
  hgemm_blas_epilogue const *epilogue; /* null in calls of cuBLAS. Otherwise c, ldc and stride_c are those of D */
} hgemm_blas_product;

#define BLAS_FORWARD (-1) /* instead of a status: the real cuBLAS must compute it */

/* Checks and computes a product. Returns a status, or BLAS_FORWARD. */
int hgemm_blas_multiply(hgemm_blas_handle *handle, hgemm_blas_product const *product);

typedef struct hgemm_blas_types {
  int dtype, dtype_d;
  int half_scale; /* 1 if alpha and beta are f16 */
  int fast;       /* 1 if f32 may be rounded to tf32 */
} hgemm_blas_types;

/* Writes our types. Returns 0 for a combination that this library does not compute. */
int hgemm_blas_types_of(hgemm_blas_product const *product, int math_mode, hgemm_blas_types *types);

/* Tells whether a product of f32 is so small that tf32 saves no time. The real cuBLAS computes it exactly, even if tf32 is allowed. */
int hgemm_blas_is_small(hgemm_blas_product const *product);

/* Writes alpha and beta. Returns 0 if they are in device memory and cannot be read. */
int hgemm_blas_scalars(hgemm_blas_handle *handle, hgemm_blas_product const *product, int half, float *alpha, float *beta);

/* Returns our problem, without an epilogue. */
hgemm_problem hgemm_blas_problem(hgemm_blas_product const *product, hgemm_blas_types types, float alpha, float beta);

/* Adds the epilogue of a product. Returns 0 if no kernel of this library has it. */
int hgemm_blas_add_epilogue(hgemm_problem *problem, hgemm_blas_epilogue const *epilogue);

/* Returns the status of cuBLAS, or BLAS_FORWARD if the problem is legal in cuBLAS, but not here. */
int hgemm_blas_status(hgemm_status status);

/* Notes why the arguments of a call are invalid, for the log. Returns BLAS_INVALID_VALUE. */
int hgemm_blas_invalid(char const *why);

/* Returns BLAS_FORWARD, and notes for the log why no kernel on tensor cores can compute the product. */
int hgemm_blas_forward(char const *why);
#define HGEMM_BLAS_NO_KERNEL "no kernel runs on this GPU"
#define HGEMM_BLAS_TYPES "these types and this compute type are not supported"
#define HGEMM_BLAS_DEVICE_SCALARS "alpha and beta are in device memory"
#define HGEMM_BLAS_EXACT "the program does not allow tf32"
#define HGEMM_BLAS_SMALL "f32 products of this size are not rounded to tf32"

/* Tells whether the kernels without tensor instructions compute a problem. */
int hgemm_blas_simt_serves(hgemm_blas_product const *product);

/* Computes one strided batch. Returns a status, or BLAS_FORWARD. Of the handle, it uses the device, the stream and the workspace. */
int hgemm_blas_compute(hgemm_blas_handle *handle, hgemm_blas_product const *product, hgemm_blas_types types, float alpha,
                       float beta);

/* Launches the kernel without tensor instructions. Returns a status, or BLAS_FORWARD if there is no such kernel. With the form
 * BLAS_POINTERS, a, b, c and d of the problem are arrays of pointers in device memory. */
int hgemm_blas_simt(hgemm_blas_handle *handle, hgemm_problem const *problem, int form);

/* Returns the expression with this hash that kernels of this library have, or null. */
hgemm_epilogue const *hgemm_blas_expression(char const *hash);

HGEMM_BLAS_API size_t cublasGetCudartVersion(void);
HGEMM_BLAS_API int cublasGetProperty(int type, int *value);
HGEMM_BLAS_API char const *cublasGetStatusName(int status);
HGEMM_BLAS_API char const *cublasGetStatusString(int status);

/* ---- The log: log.c ---------------------------------------------------------------------------------------------------- */

enum { BLAS_BY_HGEMM, BLAS_BY_SIMT, BLAS_BY_CUBLAS, BLAS_BY_NONE };

int hgemm_blas_logs(void);

/* Counts a product, and prints it if it is new. `server` is one of BLAS_BY_. `detail` is the name of the kernel, or says why no kernel
 * on tensor cores computed it; null if there is nothing to say. */
void hgemm_blas_log(hgemm_blas_product const *product, int server, char const *detail);

/* Clears the message of hgemm_last_message(), so that the log does not print that of an earlier call. */
void hgemm_blas_log_begin(void);

/* Counts a call that failed, and prints it once, with the reason that hgemm_last_message() gives. */
void hgemm_blas_log_failed(hgemm_blas_product const *product, int status);

/* Prints once that a function without an own implementation was called. */
void hgemm_blas_log_forwarded(char const *function, uint32_t index, int found);

#endif
