/* The functions of cuBLASLt that this library implements, apart from descriptors: products, heuristics, handles and versions.
 *
 * Statuses are those of the sections cublasLtMatmul(), cublasLtMatmulAlgoGetHeuristic() and cublasLtMatmulAlgoCheck() of NVIDIA's
 * documentation: INVALID_VALUE for a pointer that is null and for matrices that do not match, NOT_SUPPORTED for what nobody computes,
 * NOT_INITIALIZED without a handle. */
#include <string.h>

#include "lt.h"

#include "lt_epilogues.h"

/* ---- Epilogues --------------------------------------------------------------------------------------------------------- */

/* An epilogue of gelu by tanh, which is that of cuBLASLt, in the kernels of this library. lt_epilogues.h is generated. */
typedef struct Expression {
  char const *hash; /* null if no kernel has it */
  int bias;         /* its place in hgemm_problem.aux; -1 if there is none */
} Expression;

enum { EXPRESSIONS = 4 }; /* by 2 * (has alpha) + (has a bias) */
static Expression expressions[EXPRESSIONS];
static pthread_once_t expressions_found = PTHREAD_ONCE_INIT;

static void find_expressions(void) {
  static char const *const hashes[EXPRESSIONS] = {HGEMM_LT_GELU, HGEMM_LT_GELU_BIAS, HGEMM_LT_GELU_ALPHA,
                                                   HGEMM_LT_GELU_ALPHA_BIAS};
  for (int i = 0; i < EXPRESSIONS; ++i) {
    hgemm_epilogue const *const epilogue = hgemm_blas_expression(hashes[i]);
    Expression *const found = &expressions[i];
    if (epilogue == NULL) continue;
    *found = (Expression){epilogue->hash, -1};
    for (int input = 0; input < epilogue->input_count; ++input) {
      if (strcmp(epilogue->inputs[input].name, "bias") == 0) found->bias = input;
    }
  }
}

static int add_expression(hgemm_problem *problem, hgemm_blas_epilogue const *epilogue) {
  int const bias = (epilogue->value & LT_EPILOGUE_BIAS) != 0;
  Expression const *found = &expressions[bias];
  pthread_once(&expressions_found, find_expressions);
  if (problem->beta != 0.0f) return 0;
  if (found->hash == NULL || problem->alpha != 1.0f) found = &expressions[2 + bias];
  if (found->hash == NULL) return 0;
  problem->epilogue = found->hash;
  if (found->bias >= 0) {
    problem->aux[found->bias].pointer = epilogue->bias;
    problem->aux[found->bias].batch_stride = epilogue->stride_bias;
  }
  return 1;
}

/* A bias of cuBLASLt has one element for each row of the column-major D, so for each column of ours. */
int hgemm_blas_add_epilogue(hgemm_problem *problem, hgemm_blas_epilogue const *epilogue) {
  int const activation = epilogue->value & ~LT_EPILOGUE_BIAS;
  if (activation == LT_EPILOGUE_GELU) {
    if (add_expression(problem, epilogue)) return 1;
    if (hgemm_lt_real(LT_MATMUL) != NULL) return 0; /* it has gelu by tanh; our activation is gelu by erf */
    problem->activation = HGEMM_ACTIVATION_GELU;
  } else if (activation == LT_EPILOGUE_RELU) {
    problem->activation = HGEMM_ACTIVATION_RELU;
  }
  if (epilogue->value & LT_EPILOGUE_BIAS) {
    problem->bias_kind = HGEMM_BIAS_ROW;
    problem->bias = epilogue->bias, problem->batch_stride_bias = epilogue->stride_bias;
  }
  return 1;
}

static int is_served_epilogue(int value) {
  int const activation = value & ~LT_EPILOGUE_BIAS;
  return value == LT_EPILOGUE_DEFAULT || value == LT_EPILOGUE_BIAS || activation == LT_EPILOGUE_RELU ||
         activation == LT_EPILOGUE_GELU;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------------ */

typedef struct Call { /* copies of the descriptors of a call */
  hgemm_lt_operation operation;
  hgemm_lt_layout a, b, c, d;
} Call;

/* Copies the descriptors. Returns 0 if one is not ours. */
static int read_call(Call *call, void const *operation, void const *a, void const *b, void const *c, void const *d) {
  if (!hgemm_lt_is(operation, LT_OPERATION) || !hgemm_lt_is(a, LT_LAYOUT) || !hgemm_lt_is(b, LT_LAYOUT) ||
      !hgemm_lt_is(c, LT_LAYOUT) || !hgemm_lt_is(d, LT_LAYOUT)) {
    return 0;
  }
  memcpy(&call->operation, operation, sizeof call->operation);
  memcpy(&call->a, a, sizeof call->a);
  memcpy(&call->b, b, sizeof call->b);
  memcpy(&call->c, c, sizeof call->c);
  memcpy(&call->d, d, sizeof call->d);
  return 1;
}

static int is_plain(hgemm_lt_layout const *x) { return x->order == LT_ORDER_COL && x->plane == 0 && x->batch_mode == 0; }

static int has_legal_ld(hgemm_lt_layout const *x) {
  return x->rows <= INT64_MAX && x->columns <= INT64_MAX && x->ld >= 1 && (uint64_t)x->ld >= x->rows;
}

/* Returns a status if the descriptors contradict each other, BLAS_FORWARD if this library does not serve them, else BLAS_SUCCESS. */
static int check(Call const *call) {
  hgemm_lt_operation const *const o = &call->operation;
  hgemm_lt_layout const *const a = &call->a, *const b = &call->b, *const c = &call->c, *const d = &call->d;
  uint64_t const m = o->transa == BLAS_OP_N ? a->rows : a->columns, k = o->transa == BLAS_OP_N ? a->columns : a->rows;
  uint64_t const n = o->transb == BLAS_OP_N ? b->columns : b->rows, depth = o->transb == BLAS_OP_N ? b->rows : b->columns;
  if (!legal_operation(o->transa) || !legal_operation(o->transb)) return hgemm_blas_invalid("transa or transb is unknown");
  if (!is_plain(a) || !is_plain(b) || !is_plain(c) || !is_plain(d)) {
    return hgemm_blas_forward("a matrix is not column-major");
  }
  if (m != d->rows || n != d->columns || k != depth || c->rows != m || c->columns != n) {
    return hgemm_blas_invalid("the rows and columns of the layouts do not fit together");
  }
  if (!has_legal_ld(a) || !has_legal_ld(b) || !has_legal_ld(c) || !has_legal_ld(d)) {
    return hgemm_blas_invalid("a leading dimension is less than the rows");
  }
  if (d->batch < 1 || a->batch != d->batch || b->batch != d->batch || c->batch != d->batch) {
    return hgemm_blas_invalid("the batches of the layouts differ");
  }
  if (!is_served_epilogue(o->epilogue)) return hgemm_blas_forward("this epilogue is not supported");
  if (o->transc != BLAS_OP_N || o->fill != LT_FILL_FULL || o->scale_a || o->scale_b || o->scale_c || o->scale_d || o->amax ||
      o->d_out_scale || o->emulation || o->mode_a || o->mode_b || o->mode_c || o->mode_d || o->mode_d_out ||
      (o->pointer_mode != BLAS_POINTER_HOST && o->pointer_mode != BLAS_POINTER_DEVICE)) {
    return hgemm_blas_forward("an attribute of the operation is not supported");
  }
  if (c->type != d->type) return hgemm_blas_forward("C and D have different types");
  if ((o->epilogue & LT_EPILOGUE_BIAS) && o->bias_type != LT_SAME_TYPE && o->bias_type != d->type) {
    return hgemm_blas_forward("the bias and D have different types");
  }
  return BLAS_SUCCESS;
}

/* Returns the product of a call in the words of cuBLAS. It points to *epilogue. */
static hgemm_blas_product product_of(char const *function, Call const *call, hgemm_blas_epilogue *epilogue) {
  hgemm_lt_operation const *const o = &call->operation;
  hgemm_blas_product p = {0};
  *epilogue = (hgemm_blas_epilogue){NULL, (void const *)(uintptr_t)o->bias, call->c.ld, call->c.stride, o->bias_stride,
                                    o->epilogue};
  p.function = function, p.form = BLAS_STRIDED, p.transa = o->transa, p.transb = o->transb;
  p.m = (int64_t)call->d.rows, p.n = (int64_t)call->d.columns;
  p.k = (int64_t)(o->transa == BLAS_OP_N ? call->a.columns : call->a.rows);
  p.type_a = call->a.type, p.type_b = call->b.type, p.type_c = call->d.type;
  p.lda = call->a.ld, p.ldb = call->b.ld, p.ldc = call->d.ld;
  p.stride_a = call->a.stride, p.stride_b = call->b.stride, p.stride_c = call->d.stride, p.batch = call->d.batch;
  p.compute = o->compute, p.epilogue = epilogue;
  return p;
}

static int types_of(hgemm_blas_product const *product, Call const *call, hgemm_blas_types *types) {
  return hgemm_blas_types_of(product, 0, types) && call->operation.scale == (types->half_scale ? BLAS_R_16F : BLAS_R_32F);
}

/* ---- Products ---------------------------------------------------------------------------------------------------------- */

/* A handle with the stream and the workspace of one call. The kernels and our own workspaces are those of the context. */
static hgemm_blas_handle view_of(hgemm_blas_handle const *handle, Call const *call, void *workspace, size_t bytes, void *stream) {
  hgemm_blas_handle view;
  memset(&view, 0, sizeof view);
  view.device = handle->device, view.stream = stream;
  view.pointer_mode = call->operation.pointer_mode;
  if ((uintptr_t)workspace % 16 == 0 && bytes > 0) view.workspace = workspace, view.workspace_bytes = workspace ? bytes : 0;
  return view;
}

/* Computes a product whose descriptors are ours. Returns a status, or BLAS_FORWARD. */
static int multiply(hgemm_blas_handle *handle, Call const *call, hgemm_blas_product *product, hgemm_blas_epilogue *epilogue,
                    void *workspace, size_t workspace_bytes, void *stream) {
  hgemm_blas_handle view;
  hgemm_blas_types types;
  float alpha, beta;
  int const status = check(call), empty = product->m == 0 || product->n == 0;
  if (status != BLAS_SUCCESS && status != BLAS_FORWARD) return status;
  if (!empty && (product->c == NULL || (product->k > 0 && (product->a == NULL || product->b == NULL)))) {
    return hgemm_blas_invalid("A, B or D is null");
  }
  if (status == BLAS_FORWARD || empty) return status;
  if ((epilogue->value & LT_EPILOGUE_BIAS) && epilogue->bias == NULL) return hgemm_blas_invalid("the bias is null");
  if (handle->device == NULL) return hgemm_blas_forward(HGEMM_BLAS_NO_KERNEL);
  if (!types_of(product, call, &types)) return hgemm_blas_forward(HGEMM_BLAS_TYPES);
  if (call->operation.pointer_mode == BLAS_POINTER_DEVICE && hgemm_lt_real(LT_MATMUL) != NULL) {
    return hgemm_blas_forward(HGEMM_BLAS_DEVICE_SCALARS); /* no wait */
  }
  if (types.fast && hgemm_blas_is_small(product) && hgemm_lt_real(LT_MATMUL) != NULL) return hgemm_blas_forward(HGEMM_BLAS_SMALL);
  view = view_of(handle, call, workspace, workspace_bytes, stream);
  if (!hgemm_blas_scalars(&view, product, types.half_scale, &alpha, &beta)) return hgemm_blas_forward(HGEMM_BLAS_DEVICE_SCALARS);
  if (beta != 0.0f && epilogue->c == NULL) return hgemm_blas_invalid("C is null");
  return hgemm_blas_compute(&view, product, types, alpha, beta);
}

/* Replaces our handle by a real one. Returns a status. */
static int real_handle(void **handle) {
  hgemm_blas_handle *const own = hgemm_blas_find(*handle);
  if (own != NULL) *handle = hgemm_blas_real_handle(own);
  return *handle != NULL ? BLAS_SUCCESS : BLAS_NOT_SUPPORTED;
}

typedef struct Rooms { /* for the descriptors of a real call */
  hgemm_lt_room operation, a, b, c, d;
} Rooms;

/* Replaces our handle and our descriptors by real ones. Returns a status. */
static int real_call(Rooms *rooms, void **handle, void const **operation, void const **a, void const **b, void const **c,
                     void const **d) {
  int status = real_handle(handle);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_operation(operation, &rooms->operation);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(a, &rooms->a);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(b, &rooms->b);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(c, &rooms->c);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(d, &rooms->d);
  return status;
}

typedef int Matmul(void *, void const *, void const *, void const *, void const *, void const *, void const *, void const *,
                   void const *, void const *, void *, void const *, void const *, void *, size_t, void *);

HGEMM_BLAS_API int cublasLtMatmul(void *handle, void const *operation, void const *alpha, void const *a, void const *layout_a,
                                  void const *b, void const *layout_b, void const *beta, void const *c, void const *layout_c,
                                  void *d, void const *layout_d, void const *algorithm, void *workspace, size_t workspace_bytes,
                                  void *stream) {
  hgemm_blas_handle *const own = hgemm_blas_find(handle);
  int const ours_chosen = hgemm_lt_is(algorithm, LT_ALGORITHM);
  Call call;
  hgemm_blas_product product = {0};
  hgemm_blas_epilogue epilogue;
  Rooms rooms;
  Matmul *real;
  int is_ours, status = BLAS_FORWARD;
  if (handle == NULL) return BLAS_NOT_INITIALIZED;
  if (operation == NULL || layout_a == NULL || layout_b == NULL || layout_c == NULL || layout_d == NULL || alpha == NULL ||
      beta == NULL) {
    return BLAS_INVALID_VALUE;
  }
  is_ours = read_call(&call, operation, layout_a, layout_b, layout_c, layout_d);
  if (is_ours) {
    product = product_of("cublasLtMatmul", &call, &epilogue);
    product.alpha = alpha, product.beta = beta, product.a = a, product.b = b, product.c = d, epilogue.c = c;
    hgemm_blas_log_begin();
    if (own != NULL && (algorithm == NULL || ours_chosen)) {
      status = multiply(own, &call, &product, &epilogue, workspace, workspace_bytes, stream);
      if (status != BLAS_SUCCESS && status != BLAS_FORWARD && hgemm_blas_logs()) hgemm_blas_log_failed(&product, status);
    } else if (own != NULL) {
      hgemm_blas_forward("the program chose an algorithm of the real cuBLASLt");
    }
  }
  if (status != BLAS_FORWARD) return status;
  real = (Matmul *)(is_ours ? hgemm_lt_real(LT_MATMUL) : hgemm_lt_loaded(LT_MATMUL));
  status = own != NULL ? BLAS_NOT_SUPPORTED : BLAS_NOT_INITIALIZED;
  if (real != NULL) status = real_call(&rooms, &handle, &operation, &layout_a, &layout_b, &layout_c, &layout_d);
  if (hgemm_blas_logs() && is_ours && legal_operation(product.transa) && legal_operation(product.transb)) {
    hgemm_blas_log(&product, status == BLAS_SUCCESS ? BLAS_BY_CUBLAS : BLAS_BY_NONE, hgemm_last_message());
  }
  if (status != BLAS_SUCCESS) return status;
  return real(handle, operation, alpha, a, layout_a, b, layout_b, beta, c, layout_c, d, layout_d, ours_chosen ? NULL : algorithm,
              workspace, workspace_bytes, stream);
}

typedef int Transform(void *, void const *, void const *, void const *, void const *, void const *, void const *, void const *,
                      void *, void const *, void *);

HGEMM_BLAS_API int cublasLtMatrixTransform(void *handle, void const *transform, void const *alpha, void const *a,
                                           void const *layout_a, void const *beta, void const *b, void const *layout_b, void *c,
                                           void const *layout_c, void *stream) {
  Transform *const real = (Transform *)hgemm_lt_loaded(LT_TRANSFORM);
  hgemm_lt_room rooms[3];
  int status;
  if (handle == NULL) return BLAS_NOT_INITIALIZED;
  if (real == NULL) return hgemm_blas_find(handle) != NULL ? BLAS_NOT_SUPPORTED : BLAS_NOT_INITIALIZED;
  status = real_handle(&handle);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(&layout_a, &rooms[0]);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(&layout_b, &rooms[1]);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_layout(&layout_c, &rooms[2]);
  return status == BLAS_SUCCESS ? real(handle, transform, alpha, a, layout_a, beta, b, layout_b, c, layout_c, stream) : status;
}

/* ---- Heuristics -------------------------------------------------------------------------------------------------------- */

/* Returns an address that no other matrix is near, with an alignment that is a power of two. */
static void *place(uint64_t index, uint32_t alignment) {
  uint32_t const low = alignment & (~alignment + 1);
  return (void *)(uintptr_t)(index << 44 | (low == 0 || low > 256 ? 256 : low));
}

/* Writes the workspace that the kernel for a product would use. Returns a status, or BLAS_FORWARD. */
static int choose(hgemm_blas_handle *handle, Call const *call, hgemm_lt_preference const *preference, uint64_t *workspace) {
  hgemm_blas_epilogue epilogue;
  hgemm_blas_product product = product_of("cublasLtMatmul", call, &epilogue);
  hgemm_blas_types types;
  hgemm_problem problem;
  hgemm_choice choice;
  int status = check(call);
  *workspace = 0;
  if (status != BLAS_SUCCESS) return status;
  if (handle->device == NULL || !types_of(&product, call, &types)) return BLAS_FORWARD;
  if (call->operation.pointer_mode == BLAS_POINTER_DEVICE && hgemm_lt_real(LT_MATMUL) != NULL) return BLAS_FORWARD;
  if (types.fast && hgemm_blas_is_small(&product) && hgemm_lt_real(LT_MATMUL) != NULL) return BLAS_FORWARD;
  if (product.m == 0 || product.n == 0) return BLAS_SUCCESS;
  product.a = place(1, preference->align_a), product.b = place(2, preference->align_b), product.c = place(3, preference->align_d);
  epilogue.c = place(4, preference->align_c);
  if (epilogue.bias == NULL) epilogue.bias = place(5, 256);
  problem = hgemm_blas_problem(&product, types, 1.0f, 0.0f);
  if (!hgemm_blas_add_epilogue(&problem, &epilogue)) return BLAS_FORWARD;
  status = BLAS_FORWARD;
  if (types.dtype != HGEMM_F32 || types.fast) {
    if (types.fast) problem.dtype_a = problem.dtype_b = HGEMM_TF32;
    status = hgemm_blas_status(hgemm_select(handle->device->handle, &problem, &choice));
    if (status == BLAS_SUCCESS && choice.workspace_bytes <= preference->max_workspace) *workspace = choice.workspace_bytes;
  }
  if (status == BLAS_FORWARD && hgemm_blas_simt_serves(&product)) status = BLAS_SUCCESS;
  return status;
}

static void write_result(hgemm_lt_result *result, uint64_t workspace) {
  result->workspace_bytes = workspace, result->state = BLAS_SUCCESS, result->waves = 1.0f;
  memset(result->reserved, 0, sizeof result->reserved);
}

static int allows_ours(hgemm_lt_preference const *preference) {
  return preference->search == LT_SEARCH_BEST_FIT && (preference->reductions & LT_REDUCTION_COMPUTE_TYPE) &&
         (preference->implementations & LT_IMPLEMENTATION_HMMA);
}

typedef int Heuristic(void *, void const *, void const *, void const *, void const *, void const *, void const *, int, void *,
                      int *);

/* Asks the real library. */
static int ask_real(void *handle, void const *operation, void const *a, void const *b, void const *c, void const *d,
                    void const *preference, int wanted, void *results, int *count, int is_ours) {
  Heuristic *const real = (Heuristic *)(is_ours ? hgemm_lt_real(LT_HEURISTIC) : hgemm_lt_loaded(LT_HEURISTIC));
  hgemm_lt_room room;
  Rooms rooms;
  int status;
  if (real == NULL) return hgemm_blas_find(handle) != NULL ? BLAS_NOT_SUPPORTED : BLAS_NOT_INITIALIZED;
  status = real_call(&rooms, &handle, &operation, &a, &b, &c, &d);
  if (status == BLAS_SUCCESS) status = hgemm_lt_real_preference(&preference, &room);
  return status == BLAS_SUCCESS ? real(handle, operation, a, b, c, d, preference, wanted, results, count) : status;
}

/* The first result is ours. A program that asks for more, to measure them, gets those of the real library after it. */
HGEMM_BLAS_API int cublasLtMatmulAlgoGetHeuristic(void *handle, void const *operation, void const *a, void const *b,
                                                  void const *c, void const *d, void const *preference, int wanted,
                                                  hgemm_lt_result *results, int *count) {
  hgemm_blas_handle *const own = hgemm_blas_find(handle);
  hgemm_lt_preference limits;
  uint64_t workspace = 0;
  Call call;
  int is_ours, further = 0, status = BLAS_FORWARD;
  if (handle == NULL) return BLAS_NOT_INITIALIZED;
  if (operation == NULL || a == NULL || b == NULL || c == NULL || d == NULL || preference == NULL || results == NULL ||
      count == NULL || wanted < 1) {
    return BLAS_INVALID_VALUE;
  }
  *count = 0;
  is_ours = read_call(&call, operation, a, b, c, d) && hgemm_lt_is(preference, LT_PREFERENCE);
  if (is_ours && own != NULL) {
    memcpy(&limits, preference, sizeof limits);
    if (allows_ours(&limits)) status = choose(own, &call, &limits, &workspace);
  }
  if (status == BLAS_FORWARD) return ask_real(handle, operation, a, b, c, d, preference, wanted, results, count, is_ours);
  if (status != BLAS_SUCCESS) return status;
  memset(&results[0].algorithm, 0, sizeof results[0].algorithm);
  results[0].algorithm.magic = LT_ALGORITHM;
  write_result(&results[0], workspace);
  if (wanted > 1 &&
      ask_real(handle, operation, a, b, c, d, preference, wanted - 1, results + 1, &further, is_ours) != BLAS_SUCCESS) {
    further = 0;
  }
  *count = 1 + further;
  return BLAS_SUCCESS;
}

typedef int Check(void *, void const *, void const *, void const *, void const *, void const *, void const *, void *);

/* The kernels and the workspace do not depend on the stream. */
HGEMM_BLAS_API int cublasLtMatmulAlgoGetHeuristicForStream(void *handle, void const *operation, void const *a, void const *b,
                                                           void const *c, void const *d, void const *preference, int wanted,
                                                           hgemm_lt_result *results, int *count, void *stream) {
  (void)stream;
  return cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, d, preference, wanted, results, count);
}

HGEMM_BLAS_API int cublasLtMatmulAlgoCheck(void *handle, void const *operation, void const *a, void const *b, void const *c,
                                           void const *d, void const *algorithm, hgemm_lt_result *result) {
  hgemm_blas_handle *const own = hgemm_blas_find(handle);
  hgemm_lt_preference any = {LT_PREFERENCE, UINT64_MAX, UINT64_MAX, LT_SEARCH_BEST_FIT, LT_REDUCTION_MASK, 256, 256, 256, 256, 0};
  uint64_t workspace;
  Rooms rooms;
  Call call;
  Check *real;
  int status;
  if (handle == NULL) return BLAS_NOT_INITIALIZED;
  if (operation == NULL || a == NULL || b == NULL || c == NULL || d == NULL || algorithm == NULL || result == NULL) {
    return BLAS_INVALID_VALUE;
  }
  if (hgemm_lt_is(algorithm, LT_ALGORITHM)) {
    if (own == NULL || !read_call(&call, operation, a, b, c, d)) return BLAS_INVALID_VALUE;
    status = choose(own, &call, &any, &workspace);
    if (status == BLAS_SUCCESS) write_result(result, workspace);
    return status == BLAS_FORWARD ? BLAS_NOT_SUPPORTED : status;
  }
  real = (Check *)hgemm_lt_loaded(LT_CHECK);
  if (real == NULL) return own != NULL ? BLAS_NOT_SUPPORTED : BLAS_NOT_INITIALIZED;
  status = real_call(&rooms, &handle, &operation, &a, &b, &c, &d);
  return status == BLAS_SUCCESS ? real(handle, operation, a, b, c, d, algorithm, result) : status;
}

HGEMM_BLAS_API int cublasLtMatmulAlgoCheckForStream(void *handle, void const *operation, void const *a, void const *b,
                                                    void const *c, void const *d, void const *algorithm,
                                                    hgemm_lt_result *result, void *stream) {
  (void)stream;
  return cublasLtMatmulAlgoCheck(handle, operation, a, b, c, d, algorithm, result);
}

/* ---- Attributes of algorithms ------------------------------------------------------------------------------------------- */

enum { CONFIG_ID = 0, CONFIG_SPLIT_K = 2, CONFIG_INNER_SHAPE = 7, CONFIG_LAST = 8, OUR_ID = 0x6867 };

typedef int GetAttribute(void const *, int, void *, size_t, size_t *);
typedef int SetAttribute(void *, int, void const *, size_t);

/* Our algorithm has an identifier, and stands for undefined tiles, stages and clusters. */
HGEMM_BLAS_API int cublasLtMatmulAlgoConfigGetAttribute(void const *algorithm, int id, void *value, size_t bytes,
                                                        size_t *written) {
  uint32_t const found = id == CONFIG_ID ? OUR_ID : id == CONFIG_SPLIT_K;
  size_t const needed = id >= CONFIG_INNER_SHAPE ? 2 : 4;
  if (algorithm == NULL) return BLAS_INVALID_VALUE;
  if (!hgemm_lt_is(algorithm, LT_ALGORITHM)) {
    GetAttribute *const real = (GetAttribute *)hgemm_lt_loaded(LT_CONFIG_GET);
    return real != NULL ? real(algorithm, id, value, bytes, written) : BLAS_INVALID_VALUE;
  }
  if (id < CONFIG_ID || id > CONFIG_LAST || (bytes == 0 && written == NULL)) return BLAS_INVALID_VALUE;
  if (bytes != 0) {
    if (value == NULL || bytes != needed) return BLAS_INVALID_VALUE;
    memcpy(value, &found, needed); /* little-endian */
  }
  if (written != NULL) *written = needed;
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API int cublasLtMatmulAlgoConfigSetAttribute(void *algorithm, int id, void const *value, size_t bytes) {
  SetAttribute *const real =
      hgemm_lt_is(algorithm, LT_ALGORITHM) ? NULL : (SetAttribute *)hgemm_lt_loaded(LT_CONFIG_SET);
  return algorithm != NULL && real != NULL ? real(algorithm, id, value, bytes) : BLAS_INVALID_VALUE;
}

HGEMM_BLAS_API int cublasLtMatmulAlgoCapGetAttribute(void const *algorithm, int id, void *value, size_t bytes, size_t *written) {
  GetAttribute *const real = hgemm_lt_is(algorithm, LT_ALGORITHM) ? NULL : (GetAttribute *)hgemm_lt_loaded(LT_CAP_GET);
  return algorithm != NULL && real != NULL ? real(algorithm, id, value, bytes, written) : BLAS_INVALID_VALUE;
}

/* ---- Versions and names ------------------------------------------------------------------------------------------------ */

/* The real cuBLAS asks for the version of its cuBLASLt, so a library that the program has loaded answers itself. */
HGEMM_BLAS_API size_t cublasLtGetVersion(void) {
  size_t (*const real)(void) = (size_t(*)(void))hgemm_blas_light("cublasLtGetVersion");
  return real != NULL ? real() : (size_t)hgemm_blas_major() * 10000;
}

HGEMM_BLAS_API size_t cublasLtGetCudartVersion(void) {
  size_t (*const real)(void) = (size_t(*)(void))hgemm_blas_light("cublasLtGetCudartVersion");
  return real != NULL ? real() : cublasGetCudartVersion();
}

HGEMM_BLAS_API int cublasLtGetProperty(int type, int *value) {
  int (*const real)(int, int *) = (int (*)(int, int *))hgemm_blas_light("cublasLtGetProperty");
  return real != NULL ? real(type, value) : cublasGetProperty(type, value);
}

HGEMM_BLAS_API char const *cublasLtGetStatusName(int status) { return cublasGetStatusName(status); }
HGEMM_BLAS_API char const *cublasLtGetStatusString(int status) { return cublasGetStatusString(status); }
