/* Checks a problem before a kernel is selected, and derives the query of the selection from it. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAX_EXTENT (INT64_C(2147483648) - 1024) /* kernels' 32-bit indices exceed the extent by up to one cluster tile */
#define MAX_SPAN_BYTES 4e18                    /* below 2^62 */
enum { MAX_ALIGN = 8, VECTOR_BYTES = 16, WORKSPACE_ALIGN_BYTES = 16, SECTOR_BYTES = 32 };

/* A batch of matrices as they are stored: `rows` of `columns` contiguous elements. */
typedef struct Matrix {
  char const *name;
  uint64_t pointer;
  int64_t rows, columns, leading, batch, stride;
  uint64_t element_bytes; /* 2 or 4. The code divides by it with shifts, which is ten times as fast. */
  uint64_t bytes;         /* from the first to the last element */
} Matrix;

static uint64_t bytes_of(int32_t dtype) { return dtype >= HGEMM_F32 ? 4 : 2; }

/* ---- The struct -------------------------------------------------------------------------------------------------------- */

void hgemm_problem_init_sized(hgemm_problem *problem, size_t size) {
  hgemm_problem fresh;
  if (problem == NULL) return;
  memset(&fresh, 0, sizeof fresh); /* 0 is f16, TN, f32 accumulation, no bias and no activation */
  fresh.struct_size = size;
  fresh.batch = 1;
  fresh.alpha = 1.0f;
  if (size > sizeof fresh) memset((char *)problem + sizeof fresh, 0, size - sizeof fresh);
  memcpy(problem, &fresh, size < sizeof fresh ? size : sizeof fresh);
}

static hgemm_status copy(hgemm_problem const *from, hgemm_problem *to) {
  size_t const before_epilogues = offsetof(hgemm_problem, epilogue); /* the size in the first version of the header */
  if (from->struct_size == before_epilogues) {
    memset(to, 0, sizeof *to);
    memcpy(to, from, before_epilogues);
    return HGEMM_OK;
  }
  if (from->struct_size != sizeof *to) {
    return hgemm_fail(HGEMM_ERROR_STRUCT_SIZE,
                      "struct_size is %llu, but this library expects %llu: call hgemm_problem_init of this library's header",
                      (unsigned long long)from->struct_size, (unsigned long long)sizeof *to);
  }
  *to = *from;
  return HGEMM_OK;
}

static hgemm_status check_value(char const *name, int32_t value, int32_t count) {
  if (value >= 0 && value < count) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_UNKNOWN_VALUE, "%s is %ld: the allowed values are 0 to %ld", name, (long)value,
                    (long)count - 1);
}

static hgemm_status check_values(hgemm_problem const *p) {
  hgemm_status status;
  if ((status = check_value("layout", p->layout, HGEMM_LAYOUT_COUNT)) != HGEMM_OK) return status;
  if ((status = check_value("dtype_a", p->dtype_a, HGEMM_DTYPE_COUNT)) != HGEMM_OK) return status;
  if ((status = check_value("dtype_b", p->dtype_b, HGEMM_DTYPE_COUNT)) != HGEMM_OK) return status;
  if ((status = check_value("dtype_d", p->dtype_d, HGEMM_OUTPUT_COUNT)) != HGEMM_OK) return status;
  if ((status = check_value("acc", p->acc, HGEMM_ACC_COUNT)) != HGEMM_OK) return status;
  if ((status = check_value("bias_kind", p->bias_kind, HGEMM_BIAS_COUNT)) != HGEMM_OK) return status;
  if ((status = check_value("activation", p->activation, HGEMM_ACTIVATION_COUNT)) != HGEMM_OK) return status;
  return check_value("flags", p->flags, 2 * HGEMM_POINTER_ARRAYS);
}

static hgemm_status check_extent(char const *name, int64_t value) {
  if (value >= 0 && value <= MAX_EXTENT) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_SIZE, "%s is %lld: the allowed range is 0 to %lld", name, (long long)value,
                    (long long)MAX_EXTENT);
}

static hgemm_status check_extents(hgemm_problem const *p) {
  hgemm_status status;
  if ((status = check_extent("m", p->m)) != HGEMM_OK) return status;
  if ((status = check_extent("n", p->n)) != HGEMM_OK) return status;
  if ((status = check_extent("k", p->k)) != HGEMM_OK) return status;
  return check_extent("batch", p->batch);
}

/* ---- Epilogues --------------------------------------------------------------------------------------------------------- */

enum { EPILOGUE_SHIFT = 28, HASH_DIGITS = 8, PAIR_BLOCK = 2 * HGEMM_PAIR_COLUMNS };

hgemm_epilogue const *hgemm_epilogue_of(uint64_t kind) {
  for (uint32_t i = 0; (kind & HGEMM_KIND_HAS_EPILOGUE) != 0 && hgemm_epilogues[i].hash != NULL; ++i) {
    if (strtoul(hgemm_epilogues[i].hash, NULL, 16) == (uint32_t)(kind >> EPILOGUE_SHIFT)) return &hgemm_epilogues[i];
  }
  return NULL;
}

/* Checks that the epilogue uses a number of the problem, unless that is neutral. */
static hgemm_status check_number(char const *name, float value, float neutral, int used, hgemm_epilogue const *epilogue) {
  if (value == neutral || used) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_UNKNOWN_VALUE, "%s is %g, but the epilogue has no %s: %s", name, (double)value, name,
                    epilogue->formula);
}

static hgemm_status check_numbers(hgemm_problem const *p, hgemm_epilogue const *epilogue) {
  hgemm_status status;
  if (epilogue == NULL) return HGEMM_OK;
  if ((status = check_number("alpha", p->alpha, 1.0f, epilogue->uses_alpha, epilogue)) != HGEMM_OK) return status;
  return check_number("beta", p->beta, 0.0f, epilogue->uses_beta, epilogue);
}

/* Finds the epilogue of a problem. */
static hgemm_status find_epilogue(hgemm_problem const *p, hgemm_epilogue const **found) {
  *found = NULL;
  if (p->epilogue == NULL) return HGEMM_OK;
  if (p->bias_kind != HGEMM_BIAS_NONE || p->activation != HGEMM_ACTIVATION_NONE) {
    return hgemm_fail(HGEMM_ERROR_UNKNOWN_VALUE,
                      "bias_kind is %ld and activation %ld: with an epilogue, both must be 0, and a bias is an input",
                      (long)p->bias_kind, (long)p->activation);
  }
  for (uint32_t i = 0; hgemm_epilogues[i].hash != NULL && *found == NULL; ++i) {
    if (strncmp(hgemm_epilogues[i].hash, p->epilogue, HASH_DIGITS + 1) == 0) *found = &hgemm_epilogues[i];
  }
  if (*found != NULL) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_UNKNOWN_VALUE, "no kernel of this library has the epilogue \"%.16s\": see hgemm_list",
                    p->epilogue);
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------------- */

static uint64_t span_bytes(Matrix const *x) {
  return (uint64_t)((x->batch - 1) * x->stride + (x->rows - 1) * x->leading + x->columns) * x->element_bytes;
}

/* Checks one matrix. Replaces an ignored leading dimension or batch stride by a valid one. */
static hgemm_status check_matrix(Matrix *x, enum hgemm_purpose purpose) {
  double span;
  if (x->pointer == 0 && purpose == HGEMM_TO_LAUNCH) {
    return hgemm_fail(HGEMM_ERROR_POINTER, "the pointer of %s is null", x->name);
  }
  if ((x->pointer & (x->element_bytes - 1)) != 0) {
    return hgemm_fail(HGEMM_ERROR_ALIGNMENT, "the address of %s, %#llx, is not a multiple of its element size, %llu bytes",
                      x->name, (unsigned long long)x->pointer, (unsigned long long)x->element_bytes);
  }
  if (x->rows > 1 && x->leading < x->columns) {
    return hgemm_fail(HGEMM_ERROR_LEADING_DIMENSION, "the leading dimension of %s is %lld: it must be at least %lld", x->name,
                      (long long)x->leading, (long long)x->columns);
  }
  if (x->batch > 1 && x->stride < 0) {
    return hgemm_fail(HGEMM_ERROR_BATCH_STRIDE, "the batch stride of %s is %lld: it must be at least 0", x->name,
                      (long long)x->stride);
  }
  if (x->rows == 1) x->leading = (x->columns + MAX_ALIGN - 1) / MAX_ALIGN * MAX_ALIGN;
  if (x->batch == 1) x->stride = 0;
  span = ((double)(x->batch - 1) * (double)x->stride + (double)(x->rows - 1) * (double)x->leading + (double)x->columns) *
         (double)x->element_bytes;
  if (span > MAX_SPAN_BYTES) return hgemm_fail(HGEMM_ERROR_SIZE, "%s spans %.3g bytes, more than any memory", x->name, span);
  x->bytes = span_bytes(x);
  if (x->pointer > UINT64_MAX - x->bytes) return hgemm_fail(HGEMM_ERROR_SIZE, "%s exceeds the address space", x->name);
  return HGEMM_OK;
}

/* Returns the largest power of 2, up to 8, that divides the pointer and the strides in elements. */
static uint32_t align_of(Matrix const *x) {
  uint64_t const combined =
      x->pointer >> x->element_bytes / 2 | (uint64_t)(x->rows > 1 ? x->leading : 0) | (uint64_t)x->stride | MAX_ALIGN;
  return (uint32_t)(combined & (~combined + 1));
}

/* Tells whether some rows do not start at an L2 sector. */
static int straddles(Matrix const *x) {
  return ((x->pointer | (uint64_t)(x->rows > 1 ? x->leading : 0) * x->element_bytes) % SECTOR_BYTES) != 0;
}

/* Tells whether TMA can address the strides. */
static int mappable(Matrix const *x) {
  int64_t const limit = HGEMM_MAX_MAP_STRIDE_BYTES >> x->element_bytes / 2;
  return (x->rows == 1 || x->leading < limit) && x->stride < limit;
}

/* ---- Overlaps with D --------------------------------------------------------------------------------------------------- */

/* Tells whether the matrices of D's batch are disjoint: one after the other, or side by side in wide rows. */
static int batch_disjoint(Matrix const *d) {
  int64_t const matrix = (d->rows - 1) * d->leading + d->columns;
  double const row_of_all = (double)(d->batch - 1) * (double)d->stride + (double)d->columns;
  return d->batch == 1 || d->stride >= matrix || (d->stride >= d->columns && row_of_all <= (double)d->leading);
}

static int ranges_disjoint(uint64_t x, uint64_t x_bytes, uint64_t y, uint64_t y_bytes) {
  return x + x_bytes <= y || y + y_bytes <= x;
}

/* Tells whether the batch stride is a multiple of D's rows. */
static int whole_rows(Matrix const *x, uint64_t pitch) {
  return x->batch == 1 || (uint64_t)x->stride * x->element_bytes % pitch == 0;
}

/* Tells whether two matrices are disjoint: by their address ranges, or as different columns of one wide matrix. */
static int disjoint(Matrix const *d, Matrix const *x) {
  uint64_t const pitch = (uint64_t)d->leading * d->element_bytes;
  uint64_t after;
  if (d->pointer == 0 || x->pointer == 0 || ranges_disjoint(d->pointer, d->bytes, x->pointer, x->bytes)) return 1;
  if ((uint64_t)x->leading * x->element_bytes != pitch || !whole_rows(d, pitch) || !whole_rows(x, pitch)) return 0;
  after = x->pointer >= d->pointer ? (x->pointer - d->pointer) % pitch : (pitch - (d->pointer - x->pointer) % pitch) % pitch;
  return after >= (uint64_t)d->columns * d->element_bytes && pitch - after >= (uint64_t)x->columns * x->element_bytes;
}

static int in_place(Matrix const *d, Matrix const *c) {
  return c->pointer == d->pointer && c->rows == d->rows && c->columns == d->columns && c->leading == d->leading &&
         c->stride == d->stride && c->element_bytes == d->element_bytes;
}

/* ---- The whole problem ------------------------------------------------------------------------------------------------- */

enum { A, B, D, C, BIAS, AUX, MATRICES = AUX + HGEMM_MAX_AUX };

static int has_pointer_arrays(hgemm_problem const *p) { return (p->flags & HGEMM_POINTER_ARRAYS) != 0; }

static int32_t input_dtype(hgemm_problem const *p, hgemm_input const *input) {
  if (input->kind == HGEMM_INPUT_SCALAR) return HGEMM_F32;
  return input->dtype == HGEMM_DTYPE_OF_D ? p->dtype_d : input->dtype;
}

/* Returns the columns of D: half of those of B for a gated pair. */
static int64_t columns_of(hgemm_problem const *p, hgemm_epilogue const *epilogue) {
  return epilogue != NULL ? p->n / epilogue->columns : p->n;
}

static int aux_count(hgemm_epilogue const *epilogue) {
  return epilogue != NULL ? epilogue->input_count + epilogue->output_count : 0;
}

static int is_output(hgemm_epilogue const *epilogue, int i) { return i >= epilogue->input_count; }

/* Returns what aux[i] is: an input, or a result after D. */
static hgemm_input const *aux_of(hgemm_epilogue const *epilogue, int i) {
  return is_output(epilogue, i) ? &epilogue->outputs[i - epilogue->input_count] : &epilogue->inputs[i];
}

/* Returns an input or a result: rows and columns of D are single rows in memory. */
static Matrix lay_out_aux(hgemm_problem const *p, int64_t n, hgemm_input const *input, hgemm_aux const *aux) {
  int64_t const extents[] = {1, n, p->m, n}; /* by hgemm_input_kind */
  int const is_matrix = input->kind == HGEMM_INPUT_MATRIX;
  return (Matrix){input->name, (uintptr_t)aux->pointer, is_matrix ? p->m : 1, extents[input->kind], is_matrix ? aux->ld : 0,
                  p->batch, aux->batch_stride, bytes_of(input_dtype(p, input)), 0};
}

static void lay_out(hgemm_problem const *p, hgemm_epilogue const *epilogue, Matrix matrices[MATRICES]) {
  int const a_k_contiguous = p->layout == HGEMM_TN || p->layout == HGEMM_TT;
  int const b_k_contiguous = p->layout == HGEMM_TN || p->layout == HGEMM_NN;
  uint64_t const bytes_d = bytes_of(p->dtype_d);
  matrices[A] = (Matrix){"A", (uintptr_t)p->a, a_k_contiguous ? p->m : p->k, a_k_contiguous ? p->k : p->m, p->lda,
                         p->batch, p->batch_stride_a, bytes_of(p->dtype_a), 0};
  matrices[B] = (Matrix){"B", (uintptr_t)p->b, b_k_contiguous ? p->n : p->k, b_k_contiguous ? p->k : p->n, p->ldb,
                         p->batch, p->batch_stride_b, bytes_of(p->dtype_b), 0};
  matrices[D] = (Matrix){"D", (uintptr_t)p->d, p->m, columns_of(p, epilogue), p->ldd, p->batch, p->batch_stride_d, bytes_d, 0};
  matrices[C] = (Matrix){"C", (uintptr_t)p->c, p->m, p->n, p->ldc, p->batch, p->batch_stride_c, bytes_d, 0};
  matrices[BIAS] = (Matrix){"bias", (uintptr_t)p->bias, 1, p->bias_kind == HGEMM_BIAS_COLUMN ? p->m : p->n, 0,
                            p->batch, p->batch_stride_bias, bytes_d, 0};
  for (int i = 0; i < aux_count(epilogue); ++i) {
    matrices[AUX + i] = lay_out_aux(p, columns_of(p, epilogue), aux_of(epilogue, i), &p->aux[i]);
  }
  for (int i = A; i <= C && has_pointer_arrays(p); ++i) { /* one matrix, at an unknown address */
    matrices[i].pointer = 0, matrices[i].batch = 1, matrices[i].stride = 0;
  }
}

/* Checks a pointer array. */
static hgemm_status check_array(char const *name, void const *array) {
  if (array == NULL) return hgemm_fail(HGEMM_ERROR_POINTER, "the pointer array of %s is null", name);
  if ((uintptr_t)array % sizeof(void *) == 0) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_ALIGNMENT, "the pointer array of %s, %p, is not a multiple of %d bytes", name, array,
                    (int)sizeof(void *));
}

static hgemm_status check_operand(hgemm_problem const *p, Matrix matrices[MATRICES], int i, enum hgemm_purpose purpose) {
  void const *const arrays[] = {p->a, p->b, p->d, p->c};
  hgemm_status status = HGEMM_OK;
  if (i > C || !has_pointer_arrays(p)) return check_matrix(&matrices[i], purpose);
  if (purpose == HGEMM_TO_LAUNCH) status = check_array(matrices[i].name, arrays[i]);
  return status == HGEMM_OK ? check_matrix(&matrices[i], HGEMM_TO_SELECT) : status;
}

/* Returns one bit for each matrix that a launch reads or writes. */
static unsigned used_by(hgemm_problem const *p, hgemm_epilogue const *epilogue) {
  unsigned used = 1u << D;
  if (p->k > 0) used |= 1u << A | 1u << B;
  if (p->beta != 0.0f && epilogue == NULL) used |= 1u << C;
  if (p->bias_kind != HGEMM_BIAS_NONE) used |= 1u << BIAS;
  for (int i = 0; i < aux_count(epilogue); ++i) {
    if (aux_of(epilogue, i)->kind != HGEMM_INPUT_SCALAR || p->aux[i].pointer != NULL) used |= 1u << (AUX + i);
  }
  return used;
}

/* Writes the checked strides back, and clears the operands that are not used. */
static void normalize(hgemm_problem *p, Matrix const matrices[MATRICES], unsigned used) {
  p->lda = matrices[A].leading, p->batch_stride_a = matrices[A].stride;
  p->ldb = matrices[B].leading, p->batch_stride_b = matrices[B].stride;
  p->ldd = matrices[D].leading, p->batch_stride_d = matrices[D].stride;
  p->ldc = matrices[C].leading, p->batch_stride_c = matrices[C].stride;
  p->batch_stride_bias = matrices[BIAS].stride;
  if (!(used >> A & 1)) p->a = p->b = NULL, p->lda = p->ldb = 0, p->batch_stride_a = p->batch_stride_b = 0;
  if (!(used >> C & 1)) p->c = NULL, p->ldc = 0, p->batch_stride_c = 0;
  if (!(used >> BIAS & 1)) p->bias = NULL, p->batch_stride_bias = 0;
  for (int i = 0; i < HGEMM_MAX_AUX; ++i) {
    if (used >> (AUX + i) & 1) p->aux[i].ld = matrices[AUX + i].leading, p->aux[i].batch_stride = matrices[AUX + i].stride;
    else p->aux[i] = (hgemm_aux){NULL, 0, 0, p->aux[i].value};
  }
}

static void keep_least(hgemm_query *q, uint32_t align, char const *name) {
  if (align < q->align_d) q->align_d = align, q->align_d_of = name;
}

/* Writes the alignment of D's elements. Matrices of an epilogue need at most 16 bytes. */
static void align_results(hgemm_query *q, hgemm_epilogue const *epilogue, Matrix const matrices[MATRICES], unsigned used) {
  q->align_d = align_of(&matrices[D]), q->align_d_of = matrices[D].name;
  if (used >> C & 1) keep_least(q, align_of(&matrices[C]), matrices[C].name);
  for (int i = 0; i < aux_count(epilogue); ++i) {
    Matrix const *const x = &matrices[AUX + i];
    uint32_t const its = aux_of(epilogue, i)->kind == HGEMM_INPUT_MATRIX ? align_of(x) : MAX_ALIGN;
    if (its * x->element_bytes < VECTOR_BYTES) keep_least(q, its, x->name);
  }
}

/* Checks that a result overlaps neither itself nor another matrix. D may be an input of the same shape and type. */
static hgemm_status check_overlaps(Matrix const matrices[MATRICES], int result, unsigned used) {
  Matrix const *const d = &matrices[result];
  if (!batch_disjoint(d)) {
    return hgemm_fail(HGEMM_ERROR_OVERLAP, "the matrices of %s's batch overlap: increase its batch stride", d->name);
  }
  for (int i = 0; i < MATRICES; ++i) {
    if (i == result || !(used >> i & 1) || (result == D && i >= C && in_place(d, &matrices[i]))) continue;
    if (!disjoint(d, &matrices[i])) return hgemm_fail(HGEMM_ERROR_OVERLAP, "%s overlaps %s", d->name, matrices[i].name);
  }
  return HGEMM_OK;
}

static uint64_t kind_of(hgemm_problem const *p) {
  uint64_t const kind = (uint64_t)p->layout | (uint64_t)p->dtype_a << 4 | (uint64_t)p->dtype_b << 8 |
                        (uint64_t)p->dtype_d << 12 | (uint64_t)p->acc << 16 | (uint64_t)p->bias_kind << 20 |
                        (uint64_t)p->activation << 24 | (has_pointer_arrays(p) ? HGEMM_KIND_HAS_POINTER_ARRAYS : 0);
  if (p->epilogue == NULL) return kind;
  return kind | (UINT64_C(1) << 4 * HASH_DIGITS | strtoul(p->epilogue, NULL, 16)) << EPILOGUE_SHIFT;
}

static hgemm_query query_of(hgemm_problem const *p, hgemm_epilogue const *epilogue, Matrix const matrices[MATRICES],
                            unsigned used) {
  hgemm_query q;
  q.kind = kind_of(p);
  q.m = p->m, q.n = p->n, q.k = p->k, q.batch = p->batch;
  q.beta = p->beta != 0.0f;
  q.align_a = used >> A & 1 ? align_of(&matrices[A]) : MAX_ALIGN;
  q.align_b = used >> B & 1 ? align_of(&matrices[B]) : MAX_ALIGN;
  align_results(&q, epilogue, matrices, used);
  q.straddling = (uint32_t)(used >> A & 1 && straddles(&matrices[A])) + (uint32_t)(used >> B & 1 && straddles(&matrices[B]));
  q.mappable = 1;
  for (int i = A; i <= D; ++i) q.mappable &= (uint32_t)(!(used >> i & 1) || mappable(&matrices[i]));
  q.workspace_bytes = p->workspace_bytes;
  q.flags = ((uint32_t)p->flags & ~(uint32_t)HGEMM_POINTER_ARRAYS) | HGEMM_ALWAYS_FLAGS;
  return q;
}

hgemm_status hgemm_check_problem(hgemm_problem const *problem, enum hgemm_purpose purpose, uint64_t handle_bytes,
                                 hgemm_request *request) {
  hgemm_problem *const p = &request->problem;
  Matrix matrices[MATRICES];
  unsigned used;
  hgemm_status status;
  if (problem == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the problem is null");
  if ((status = copy(problem, p)) != HGEMM_OK) return status;
  if ((status = check_values(p)) != HGEMM_OK) return status;
  if ((status = find_epilogue(p, &request->epilogue)) != HGEMM_OK) return status;
  if ((status = check_numbers(p, request->epilogue)) != HGEMM_OK) return status;
  if ((status = check_extents(p)) != HGEMM_OK) return status;
  if (request->epilogue != NULL && request->epilogue->columns == 2 && p->n % PAIR_BLOCK != 0) {
    return hgemm_fail(HGEMM_ERROR_SIZE, "n is %lld: for a gated pair, it must be a multiple of %d", (long long)p->n, PAIR_BLOCK);
  }
  request->empty = p->m == 0 || p->n == 0 || p->batch == 0;
  if (request->empty) return HGEMM_OK;

  used = used_by(p, request->epilogue);
  lay_out(p, request->epilogue, matrices);
  for (int i = 0; i < MATRICES; ++i) {
    if (used >> i & 1 && (status = check_operand(p, matrices, i, purpose)) != HGEMM_OK) return status;
  }
  if ((status = check_overlaps(matrices, D, used)) != HGEMM_OK) return status;
  for (int i = 0; i < aux_count(request->epilogue); ++i) {
    if (!is_output(request->epilogue, i)) continue;
    if ((status = check_overlaps(matrices, AUX + i, used)) != HGEMM_OK) return status;
  }
  request->from_handle = p->workspace == NULL && (purpose == HGEMM_TO_LAUNCH || p->workspace_bytes == 0);
  if (request->from_handle && (p->workspace_bytes == 0 || p->workspace_bytes > handle_bytes)) {
    p->workspace_bytes = handle_bytes;
  }
  if ((uintptr_t)p->workspace % WORKSPACE_ALIGN_BYTES != 0) {
    return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the address of the workspace, %p, is not a multiple of %d bytes", p->workspace,
                      WORKSPACE_ALIGN_BYTES);
  }
  normalize(p, matrices, used);
  request->query = query_of(p, request->epilogue, matrices, used);
  return HGEMM_OK;
}

hgemm_status hgemm_check_workspace(hgemm_request const *request, uint64_t needed) {
  hgemm_problem const *const p = &request->problem;
  uint64_t const begin = (uintptr_t)p->workspace;
  Matrix matrices[MATRICES];
  unsigned used;
  if (begin > UINT64_MAX - needed) return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the workspace exceeds the address space");
  used = used_by(p, request->epilogue);
  lay_out(p, request->epilogue, matrices);
  for (int i = 0; i < MATRICES; ++i) {
    Matrix const *const x = &matrices[i];
    if (!(used >> i & 1) || x->pointer == 0) continue;
    if (!ranges_disjoint(begin, needed, x->pointer, span_bytes(x))) {
      return hgemm_fail(HGEMM_ERROR_OVERLAP, "%s overlaps the workspace", x->name);
    }
  }
  return HGEMM_OK;
}
