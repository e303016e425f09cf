/* Half-precision matrix products on NVIDIA GPUs: D = activation(alpha * A B + beta * C + bias), `batch` times.
 *
 * Plain C99. Link with libhgemm.a or libhgemm.so; no CUDA toolkit is needed, and the driver, libcuda.so.1, is opened when
 * the program runs, so that it starts on machines without one. The kernels are inside the library.
 *
 *     hgemm_handle *handle;
 *     hgemm_problem problem;
 *     if (hgemm_create(&handle, 0) != HGEMM_OK) puts(hgemm_last_message());
 *     hgemm_problem_init(&problem);
 *     problem.m = 512, problem.n = 2048, problem.k = 1024;
 *     problem.a = x, problem.lda = 1024, problem.b = w, problem.ldb = 1024, problem.d = y, problem.ldd = 2048;
 *     hgemm_run(handle, &problem, stream);    (y = x w^T, on the stream; this does not wait for it)
 *
 * Shapes: A (m, k), B (k, n), C and D (m, n); C and D are row-major.
 * Units: pointers are device addresses; leading dimensions and batch strides count elements; sizes of memory are bytes.
 * Threads: every function may be called from several threads at once, with one handle too, except that hgemm_destroy must
 *     be the last call with its handle. Launches that may run at the same time need workspaces of their own.
 * Errors: a function that returns a status other than HGEMM_OK has launched and written nothing but what it says;
 *     hgemm_last_message tells the calling thread more.
 */
#ifndef HGEMM_H
#define HGEMM_H

#include <stddef.h>
#include <stdint.h>

#ifndef HGEMM_API
#define HGEMM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hgemm_status {
  HGEMM_OK = 0,
  HGEMM_ERROR_NO_DRIVER = 1,           /* libcuda.so.1 is not there, or too old */
  HGEMM_ERROR_NO_DEVICE = 2,           /* there is no NVIDIA GPU here */
  HGEMM_ERROR_WRONG_DEVICE = 3,        /* there is none of this number, or no context is current */
  HGEMM_ERROR_UNSUPPORTED_DEVICE = 4,  /* no kernel of this library runs on that GPU */
  HGEMM_ERROR_NULL_ARGUMENT = 5,       /* a handle, problem or result is null */
  HGEMM_ERROR_STRUCT_SIZE = 6,         /* the size field is of no version of the struct that this library knows */
  HGEMM_ERROR_UNKNOWN_VALUE = 7,       /* a layout, type, accumulation, bias or activation is none of the enumerations */
  HGEMM_ERROR_SIZE = 8,                /* m, n, k or batch is negative or too large, or a matrix spans too much */
  HGEMM_ERROR_POINTER = 9,             /* an operand that is read or written has no pointer */
  HGEMM_ERROR_ALIGNMENT = 10,          /* a pointer is not a multiple of its element's size */
  HGEMM_ERROR_LEADING_DIMENSION = 11,  /* a leading dimension is less than the contiguous elements */
  HGEMM_ERROR_BATCH_STRIDE = 12,       /* a batch stride is negative */
  HGEMM_ERROR_OVERLAP = 13,            /* D overlaps what is read, itself, or the workspace */
  HGEMM_ERROR_WORKSPACE = 14,          /* the workspace is missing, misaligned or too small for every kernel */
  HGEMM_ERROR_NO_KERNEL = 15,          /* no kernel of this library computes such a problem on that GPU */
  HGEMM_ERROR_IMAGE = 16,              /* a kernel inside the library is damaged */
  HGEMM_ERROR_DRIVER = 17,             /* the driver refused; the message has its words */
  HGEMM_ERROR_MEMORY = 18              /* the host has no memory left */
} hgemm_status;

/* BLAS letters, read column-major, of A then B. A is t where k is contiguous and n where m is; B is n where k is contiguous
 * and t where n is. tn is the x w^T of a linear layer, tt the product of two row-major matrices. */
typedef enum hgemm_layout { HGEMM_TN = 0, HGEMM_NN = 1, HGEMM_NT = 2, HGEMM_TT = 3 } hgemm_layout;

/* HGEMM_TF32 is of A and B only: floats in memory, of whose 24 significant bits 11 are multiplied. */
typedef enum hgemm_type { HGEMM_F16 = 0, HGEMM_BF16 = 1, HGEMM_F32 = 2, HGEMM_TF32 = 3 } hgemm_type;

/* The least exact accumulation that the caller accepts: a kernel that is more exact may be taken. */
typedef enum hgemm_accumulation {
  HGEMM_ACC_F32 = 0,
  HGEMM_ACC_F16_PROMOTED = 1, /* f16 sums, added to f32 ones after each k-tile */
  HGEMM_ACC_F16 = 2
} hgemm_accumulation;

typedef enum hgemm_bias {
  HGEMM_BIAS_NONE = 0,
  HGEMM_BIAS_ROW = 1,   /* (n,), added to every row of D */
  HGEMM_BIAS_COLUMN = 2 /* (m,), added to every column of D */
} hgemm_bias;

typedef enum hgemm_activation {
  HGEMM_ACTIVATION_NONE = 0,
  HGEMM_RELU = 1,
  HGEMM_GELU = 2, /* x (1 + erf(x / sqrt 2)) / 2 */
  HGEMM_SILU = 3
} hgemm_activation;

/* One matrix product, or `batch` of them. Begin with hgemm_problem_init.
 *
 * m, n, k and batch are 0 or more and at most 2^31 - 1024. Where m, n or batch is 0 there is nothing to do; where k is 0, D is
 * activation(beta * C + bias), and A and B are not read. C is read where beta is not 0; it may be D itself, with the same
 * leading dimension and batch stride. Where batch is more than 1 a batch stride of 0 uses one matrix for all. Where a matrix
 * has one row of contiguous elements its leading dimension is not looked at. Pointers need only be aligned to an element,
 * but kernels for pointers, leading dimensions and batch strides that are multiples of 8 elements are far faster. */
typedef struct hgemm_problem {
  uint64_t size; /* sizeof(hgemm_problem): the version of this struct that the caller was compiled with */
  int32_t layout, type_a, type_b, type_d; /* C and bias have D's type */
  int32_t accumulation, bias_kind, activation, reserved;
  int64_t m, n, k, batch;
  void const *a, *b, *c;
  void *d;
  void const *bias;
  void *workspace;          /* aligned to 16 bytes; what it holds does not matter before, and is not defined after */
  uint64_t workspace_bytes; /* 0 is legal: kernels that need none are then taken */
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  float alpha, beta;
} hgemm_problem;

/* A GPU by its numbers. */
typedef struct hgemm_device {
  int32_t capability_major, capability_minor;
  int32_t multiprocessors;
  int32_t smem_bytes_per_cta; /* CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
} hgemm_device;

/* What decided for a kernel, the surest last. */
typedef enum hgemm_rule {
  HGEMM_RULE_ESTIMATED = 0, /* nothing of this kind was measured on such a GPU: the least estimate */
  HGEMM_RULE_NEAR = 1,      /* of the best in its region the least estimate, corrected by what was measured around */
  HGEMM_RULE_MEASURED = 2   /* the best of those compared at this very problem */
} hgemm_rule;

/* What hgemm_select found. */
typedef struct hgemm_choice {
  char const *symbol;       /* the kernel's name; null where there is nothing to launch. Valid for ever. */
  int32_t variant;          /* its place in hgemm_list; -1 where there is nothing to launch */
  int32_t jit;              /* 1 where the driver compiles it from PTX when it is loaded, once a handle */
  uint64_t workspace_bytes; /* what this launch needs of the workspace */
  uint64_t clocks;          /* its estimate, in clocks of an SM */
  int32_t rule;             /* an hgemm_rule */
  int32_t reserved;
} hgemm_choice;

/* A kernel of this library. The strings are valid for ever. */
typedef struct hgemm_variant {
  char const *symbol;
  char const *arch; /* the architecture that it was compiled for, such as "sm_90a" */
  int32_t layout, type_a, type_b, type_d, accumulation, bias_kind, activation;
  int32_t adds_c;                      /* 1 where beta may be other than 0 */
  int32_t tile_m, tile_n, tile_k;      /* elements of a CTA tile */
  int32_t align_a, align_b, align_d;   /* elements that pointers and strides must be multiples of; C as D */
  int32_t splits;                      /* CTAs along k that share a tile; 1 for most */
} hgemm_variant;

/* One GPU and the kernels that were loaded on it. */
typedef struct hgemm_handle hgemm_handle;

/* For hgemm_create: the device of the context that is current on the calling thread, and that context. */
#define HGEMM_CURRENT_CONTEXT (-1)

/* For hgemm_select: a workspace of any size can be had. */
#define HGEMM_ANY_WORKSPACE (UINT64_MAX)

/* Opens a GPU by its ordinal, with its primary context (that of the CUDA runtime and of PyTorch), and writes *handle.
 * Loads no kernel. Errors: NULL_ARGUMENT, NO_DRIVER, NO_DEVICE, WRONG_DEVICE, UNSUPPORTED_DEVICE, DRIVER, MEMORY; *handle is
 * then null. Not to be called while a stream is captured. */
HGEMM_API hgemm_status hgemm_create(hgemm_handle **handle, int device);

/* Unloads the kernels and gives the context back; null is legal. Launches must be done. Not to be called while a stream is
 * captured. */
HGEMM_API void hgemm_destroy(hgemm_handle *handle);

/* Sets every field: f16, tn, f32 accumulation, batch 1, alpha 1, beta 0, no bias and no activation; zeros elsewhere. */
HGEMM_API void hgemm_problem_init_sized(hgemm_problem *problem, size_t size);
#define hgemm_problem_init(problem) hgemm_problem_init_sized((problem), sizeof(hgemm_problem))

/* Writes which kernel hgemm_run would launch and what workspace it needs; touches no device memory and loads nothing.
 * Pointers that are null are taken to be aligned to anything; with workspace_bytes = HGEMM_ANY_WORKSPACE it tells what the
 * best kernel needs. Errors: those of hgemm_run that can be known. */
HGEMM_API hgemm_status hgemm_select(hgemm_handle *handle, hgemm_problem const *problem, hgemm_choice *choice);

/* The same for a GPU that need not be here. Errors besides: WRONG_DEVICE, MEMORY. */
HGEMM_API hgemm_status hgemm_select_for(hgemm_device const *device, hgemm_problem const *problem, hgemm_choice *choice);

/* Loads the kernel that hgemm_run would launch, so that the launch itself loads nothing: call it before a stream is
 * captured into a graph. Errors: those of hgemm_run. */
HGEMM_API hgemm_status hgemm_prepare(hgemm_handle *handle, hgemm_problem const *problem);

/* Launches a problem on a stream (a CUstream or cudaStream_t of the handle's context; null is the legacy default stream) and
 * does not wait. The problem may be changed as soon as this returns. Allocates no device memory.
 * Graphs: may be captured where the kernel was loaded before, by hgemm_prepare or an earlier launch.
 * Results: the same bits for the same problem, kernel and GPU, launch after launch.
 * Errors: NULL_ARGUMENT, STRUCT_SIZE, UNKNOWN_VALUE, SIZE, POINTER, ALIGNMENT, LEADING_DIMENSION, BATCH_STRIDE, OVERLAP,
 * WORKSPACE, NO_KERNEL: nothing was launched. IMAGE, DRIVER: loading or launching failed. Faults of the kernel itself, such as
 * addresses that are no device memory, are told by the driver when the stream is waited for. */
HGEMM_API hgemm_status hgemm_run(hgemm_handle *handle, hgemm_problem const *problem, void *stream);

/* Writes the first `capacity` kernels of this library to `variants`, which may be null where that is 0, and returns how many
 * it has. */
HGEMM_API size_t hgemm_list(hgemm_variant *variants, size_t capacity);

/* Returns the name and meaning of a status in one line, for any number; valid for ever. */
HGEMM_API char const *hgemm_status_string(hgemm_status status);

/* Returns what was wrong with the last call on this thread that failed, with its numbers, in one line; empty where none
 * did. Valid until the thread's next call. */
HGEMM_API char const *hgemm_last_message(void);

/* Returns the version of the generator, and the first digits of a hash over the kernels: "0.1.0 1a2b3c4d". */
HGEMM_API char const *hgemm_version(void);

#ifdef __cplusplus
}
#endif

#endif
