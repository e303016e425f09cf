/* What the sources for cuBLASLt share: values, descriptors, and the real cuBLASLt.
 *
 * Descriptors are semi-opaque: a program may keep them in memory of its own, copy them, and never destroy them. So ours hold all
 * attributes and no pointer to an object of the real library. If the real cuBLASLt must compute a product, hgemm_lt_real_* replay
 * the attributes into descriptors of its own on the stack.
 *
 * Source of all values: NVIDIA's documentation of cuBLAS 13, "cuBLASLt Datatypes Reference". */
#ifndef HGEMM_BLAS_LT_H
#define HGEMM_BLAS_LT_H

#include "blas.h"

/* ---- Values of cuBLASLt ------------------------------------------------------------------------------------------------ */

enum { LT_EPILOGUE_DEFAULT = 1, LT_EPILOGUE_RELU = 2, LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_GELU = 32 }; /* cublasLtEpilogue_t */
enum { LT_ORDER_COL = 0 };                                                                          /* cublasLtOrder_t */
enum { LT_FILL_FULL = 2 };                                                                          /* cublasFillMode_t */
enum { LT_SEARCH_BEST_FIT = 0 };                                                                    /* cublasLtMatmulSearch_t */
enum { LT_REDUCTION_COMPUTE_TYPE = 2, LT_REDUCTION_MASK = 7 };                                      /* cublasLtReductionScheme_t */
enum { LT_IMPLEMENTATION_HMMA = 2 };                                                                /* cublasLtNumericalImplFlags_t */
enum { LT_SAME_TYPE = -1 };                                                                         /* of a bias or aux: that of D */

/* ---- Descriptors ------------------------------------------------------------------------------------------------------- */

/* The first word of ours. In the real library's it is a type or a flag, which is small. */
#define LT_LAYOUT UINT64_C(0x6867656D6D6C6179)
#define LT_OPERATION UINT64_C(0x6867656D6D6F7065)
#define LT_PREFERENCE UINT64_C(0x6867656D6D707265)
#define LT_ALGORITHM UINT64_C(0x6867656D6D616C67)

typedef struct hgemm_lt_layout { /* cublasLtMatrixLayoutOpaque_t */
  uint64_t magic, rows, columns;
  int64_t ld, stride, plane;
  int32_t batch;
  int16_t type, order, batch_mode;
} hgemm_lt_layout;

typedef struct hgemm_lt_operation { /* cublasLtMatmulDescOpaque_t. Enumerations take two bytes, so that programs built for cuBLAS 12 have room */
  uint64_t magic;
  uint64_t bias, aux, scale_a, scale_b, scale_c, scale_d, amax, aux_scale, aux_amax, d_out_scale, emulation;
  int64_t bias_stride, aux_ld, aux_stride, alpha_stride;
  int32_t sm_count;
  int16_t compute, scale, pointer_mode, transa, transb, transc, fill, epilogue, aux_type, bias_type;
  int16_t mode_a, mode_b, mode_c, mode_d, mode_aux, mode_d_out, reserved;
  int8_t fast;
} hgemm_lt_operation;

typedef struct hgemm_lt_preference { /* cublasLtMatmulPreferenceOpaque_t */
  uint64_t magic, max_workspace, implementations;
  uint32_t search, reductions, align_a, align_b, align_c, align_d;
  float waves;
} hgemm_lt_preference;

typedef struct hgemm_lt_algorithm { /* cublasLtMatmulAlgo_t: any kernel of this library */
  uint64_t magic, reserved[7];
} hgemm_lt_algorithm;

typedef struct hgemm_lt_result { /* cublasLtMatmulHeuristicResult_t */
  hgemm_lt_algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
} hgemm_lt_result;

/* The room that programs have for a descriptor, in the headers of cuBLAS 12.0 and later. */
typedef char a_layout_has_room[sizeof(hgemm_lt_layout) <= 8 * 8 ? 1 : -1];
typedef char an_operation_has_room[sizeof(hgemm_lt_operation) <= 23 * 8 ? 1 : -1];
typedef char a_preference_has_room[sizeof(hgemm_lt_preference) <= 8 * 8 ? 1 : -1];
typedef char a_result_is_as_in_cublaslt[sizeof(hgemm_lt_result) == 96 ? 1 : -1];

/* Tells whether a descriptor was made by this library. Null is not. */
int hgemm_lt_is(void const *descriptor, uint64_t magic);

/* ---- The real cuBLASLt ------------------------------------------------------------------------------------------------- */

#define LT_FUNCTIONS(X)                                                                                                  \
  X(LAYOUT_INIT, "cublasLtMatrixLayoutInit_internal")                                                                    \
  X(LAYOUT_SET, "cublasLtMatrixLayoutSetAttribute")                                                                      \
  X(LAYOUT_GET, "cublasLtMatrixLayoutGetAttribute")                                                                      \
  X(LAYOUT_DESTROY, "cublasLtMatrixLayoutDestroy")                                                                       \
  X(OPERATION_INIT, "cublasLtMatmulDescInit_internal")                                                                   \
  X(OPERATION_SET, "cublasLtMatmulDescSetAttribute")                                                                     \
  X(OPERATION_GET, "cublasLtMatmulDescGetAttribute")                                                                     \
  X(OPERATION_DESTROY, "cublasLtMatmulDescDestroy")                                                                      \
  X(PREFERENCE_INIT, "cublasLtMatmulPreferenceInit_internal")                                                            \
  X(PREFERENCE_SET, "cublasLtMatmulPreferenceSetAttribute")                                                              \
  X(PREFERENCE_GET, "cublasLtMatmulPreferenceGetAttribute")                                                              \
  X(PREFERENCE_DESTROY, "cublasLtMatmulPreferenceDestroy")                                                               \
  X(MATMUL, "cublasLtMatmul")                                                                                            \
  X(TRANSFORM, "cublasLtMatrixTransform")                                                                                \
  X(HEURISTIC, "cublasLtMatmulAlgoGetHeuristic")                                                                         \
  X(CHECK, "cublasLtMatmulAlgoCheck")                                                                                    \
  X(CONFIG_GET, "cublasLtMatmulAlgoConfigGetAttribute")                                                                  \
  X(CONFIG_SET, "cublasLtMatmulAlgoConfigSetAttribute")                                                                  \
  X(CAP_GET, "cublasLtMatmulAlgoCapGetAttribute")                                                                        \
  X(VERSION, "cublasLtGetVersion")                                                                                       \
  X(PROPERTY, "cublasLtGetProperty")                                                                                     \
  X(CUDART_VERSION, "cublasLtGetCudartVersion")

#define LT_ENUMERATOR(name, text) LT_##name,
enum { LT_FUNCTIONS(LT_ENUMERATOR) LT_COUNT };

/* Returns a function of the real cuBLASLt, or null if there is none. */
void *hgemm_lt_real(int function);

/* Returns a function of the cuBLASLt that the program has loaded, for objects that are not ours, or null. */
void *hgemm_lt_loaded(int function);

typedef struct hgemm_lt_room {
  uint64_t words[64];
} hgemm_lt_room;

/* Write a descriptor of the real library to *room, and let *descriptor point to it. A foreign descriptor stays as it is.
 * Return a status. */
int hgemm_lt_real_layout(void const **descriptor, hgemm_lt_room *room);
int hgemm_lt_real_operation(void const **descriptor, hgemm_lt_room *room);
int hgemm_lt_real_preference(void const **descriptor, hgemm_lt_room *room);

#endif
