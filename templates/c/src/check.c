/* Everything that may be wrong with a problem, before a kernel is chosen for it. */
#include <string.h>

#include "internal.h"

#define MAX_EXTENT (INT64_C(2147483648) - 1024) /* kernels' 32-bit indices run past the edge by a cluster's tiles */
#define MAX_SPAN_BYTES 4e18                    /* below 2^62 */
enum { MAX_ALIGN = 8, WORKSPACE_ALIGN_BYTES = 16, SECTOR_BYTES = 32 };

/* `rows` of `columns` contiguous elements, a leading dimension apart; `batch` of them, a batch stride apart. */
typedef struct Matrix {
  char const *name;
  uint64_t pointer;
  int64_t rows, columns, leading, batch, stride;
  uint64_t element_bytes; /* 2 or 4: divided by as shifts, which take a tenth of the time */
  uint64_t bytes;         /* from the first to the last element */
} Matrix;

static uint64_t bytes_of(int32_t type) { return type >= HGEMM_F32 ? 4 : 2; }

/* ---- The struct itself ------------------------------------------------------------------------------------------------- */

void hgemm_problem_init_sized(hgemm_problem *problem, size_t size) {
  hgemm_problem fresh;
  if (problem == NULL) return;
  memset(&fresh, 0, sizeof fresh); /* f16, tn, f32 accumulation */
  fresh.size = size;
  fresh.batch = 1;
  fresh.alpha = 1.0f;
  if (size > sizeof fresh) memset((char *)problem + sizeof fresh, 0, size - sizeof fresh);
  memcpy(problem, &fresh, size < sizeof fresh ? size : sizeof fresh);
}

/* Copies a struct of this version; there is no other yet. */
static hgemm_status copy(hgemm_problem const *from, hgemm_problem *to) {
  if (from->size != sizeof *to) {
    return hgemm_fail(HGEMM_ERROR_STRUCT_SIZE, "size is %llu, not %llu: begin with hgemm_problem_init, of this library's header",
                      (unsigned long long)from->size, (unsigned long long)sizeof *to);
  }
  *to = *from;
  return HGEMM_OK;
}

static hgemm_status check_word(char const *name, int32_t value, int32_t count) {
  if (value >= 0 && value < count) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_UNKNOWN_VALUE, "%s is %ld: it may be 0 to %ld", name, (long)value, (long)count - 1);
}

static hgemm_status check_words(hgemm_problem const *p) {
  hgemm_status status;
  if ((status = check_word("layout", p->layout, 4)) != HGEMM_OK) return status;
  if ((status = check_word("type_a", p->type_a, 4)) != HGEMM_OK) return status;
  if ((status = check_word("type_b", p->type_b, 4)) != HGEMM_OK) return status;
  if ((status = check_word("type_d", p->type_d, 3)) != HGEMM_OK) return status;
  if ((status = check_word("accumulation", p->accumulation, 3)) != HGEMM_OK) return status;
  if ((status = check_word("bias_kind", p->bias_kind, 3)) != HGEMM_OK) return status;
  if ((status = check_word("activation", p->activation, 4)) != HGEMM_OK) return status;
  return check_word("reserved", p->reserved, 1);
}

static hgemm_status check_extent(char const *name, int64_t value) {
  if (value >= 0 && value <= MAX_EXTENT) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_SIZE, "%s is %lld: it may be 0 to %lld", name, (long long)value, (long long)MAX_EXTENT);
}

static hgemm_status check_extents(hgemm_problem const *p) {
  hgemm_status status;
  if ((status = check_extent("m", p->m)) != HGEMM_OK) return status;
  if ((status = check_extent("n", p->n)) != HGEMM_OK) return status;
  if ((status = check_extent("k", p->k)) != HGEMM_OK) return status;
  return check_extent("batch", p->batch);
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------------- */

static hgemm_status check_matrix(Matrix *x, enum hgemm_purpose purpose) {
  double span;
  if (x->pointer == 0 && purpose == HGEMM_TO_RUN) return hgemm_fail(HGEMM_ERROR_POINTER, "%s has no pointer", x->name);
  if ((x->pointer & (x->element_bytes - 1)) != 0) {
    return hgemm_fail(HGEMM_ERROR_ALIGNMENT, "%s begins at %#llx, no multiple of its %llu-byte elements", x->name,
                      (unsigned long long)x->pointer, (unsigned long long)x->element_bytes);
  }
  if (x->rows > 1 && x->leading < x->columns) {
    return hgemm_fail(HGEMM_ERROR_LEADING_DIMENSION, "%s's leading dimension %lld is less than its %lld contiguous elements",
                      x->name, (long long)x->leading, (long long)x->columns);
  }
  if (x->batch > 1 && x->stride < 0) {
    return hgemm_fail(HGEMM_ERROR_BATCH_STRIDE, "%s's batch stride is %lld: it may be 0 or more", x->name,
                      (long long)x->stride);
  }
  if (x->rows == 1) x->leading = (x->columns + MAX_ALIGN - 1) / MAX_ALIGN * MAX_ALIGN;
  if (x->batch == 1) x->stride = 0;
  span = ((double)(x->batch - 1) * (double)x->stride + (double)(x->rows - 1) * (double)x->leading + (double)x->columns) *
         (double)x->element_bytes;
  if (span > MAX_SPAN_BYTES) return hgemm_fail(HGEMM_ERROR_SIZE, "%s spans %.3g bytes: no memory has so many", x->name, span);
  x->bytes = (uint64_t)((x->batch - 1) * x->stride + (x->rows - 1) * x->leading + x->columns) * x->element_bytes;
  if (x->pointer > UINT64_MAX - x->bytes) return hgemm_fail(HGEMM_ERROR_SIZE, "%s ends beyond all addresses", x->name);
  return HGEMM_OK;
}

/* The largest power of 2, up to 8, of elements that a pointer and its strides are multiples of. */
static uint32_t align_of(Matrix const *x) {
  uint64_t const together =
      x->pointer >> x->element_bytes / 2 | (uint64_t)(x->rows > 1 ? x->leading : 0) | (uint64_t)x->stride | MAX_ALIGN;
  return (uint32_t)(together & (~together + 1));
}

/* Whether rows begin off the sectors of L2. */
static int straddles(Matrix const *x) {
  return ((x->pointer | (uint64_t)(x->rows > 1 ? x->leading : 0) * x->element_bytes) % SECTOR_BYTES) != 0;
}

static uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }

static int mappable(Matrix const *x) {
  int64_t const most = HGEMM_MAX_MAP_STRIDE_BYTES >> x->element_bytes / 2;
  return (x->rows == 1 || x->leading < most) && x->stride < most;
}

/* ---- What D would overwrite -------------------------------------------------------------------------------------------- */

static int batches_apart(Matrix const *d) {
  int64_t const matrix = (d->rows - 1) * d->leading + d->columns;
  double const row_of_all = (double)(d->batch - 1) * (double)d->stride + (double)d->columns;
  return d->batch == 1 || d->stride >= matrix || (d->stride >= d->columns && row_of_all <= (double)d->leading);
}

static int ranges_apart(uint64_t x, uint64_t x_bytes, uint64_t y, uint64_t y_bytes) {
  return x + x_bytes <= y || y + y_bytes <= x;
}

static int whole_rows(Matrix const *x, uint64_t pitch) { /* a batch stride of whole rows of D */
  return x->batch == 1 || (uint64_t)x->stride * x->element_bytes % pitch == 0;
}

/* Whether two matrices share no byte: by their ranges, or as columns of one wide matrix. */
static int apart(Matrix const *d, Matrix const *x) {
  uint64_t const pitch = (uint64_t)d->leading * d->element_bytes;
  uint64_t after;
  if (d->pointer == 0 || x->pointer == 0 || ranges_apart(d->pointer, d->bytes, x->pointer, x->bytes)) return 1;
  if ((uint64_t)x->leading * x->element_bytes != pitch || !whole_rows(d, pitch) || !whole_rows(x, pitch)) return 0;
  after = x->pointer >= d->pointer ? (x->pointer - d->pointer) % pitch : (pitch - (d->pointer - x->pointer) % pitch) % pitch;
  return after >= (uint64_t)d->columns * d->element_bytes && pitch - after >= (uint64_t)x->columns * x->element_bytes;
}

static int in_place(Matrix const *d, Matrix const *c) {
  return c->pointer == d->pointer && c->leading == d->leading && c->stride == d->stride;
}

/* ---- All of it --------------------------------------------------------------------------------------------------------- */

enum { A, B, D, C, BIAS, MATRICES };

static void lay_out(hgemm_problem const *p, Matrix places[MATRICES]) {
  int const a_by_rows = p->layout == HGEMM_TN || p->layout == HGEMM_TT; /* of k */
  int const b_by_rows = p->layout == HGEMM_TN || p->layout == HGEMM_NN; /* of k */
  uint64_t const bytes_d = bytes_of(p->type_d);
  places[A] = (Matrix){"A", (uintptr_t)p->a, a_by_rows ? p->m : p->k, a_by_rows ? p->k : p->m, p->lda,
                       p->batch, p->batch_stride_a, bytes_of(p->type_a), 0};
  places[B] = (Matrix){"B", (uintptr_t)p->b, b_by_rows ? p->n : p->k, b_by_rows ? p->k : p->n, p->ldb,
                       p->batch, p->batch_stride_b, bytes_of(p->type_b), 0};
  places[D] = (Matrix){"D", (uintptr_t)p->d, p->m, p->n, p->ldd, p->batch, p->batch_stride_d, bytes_d, 0};
  places[C] = (Matrix){"C", (uintptr_t)p->c, p->m, p->n, p->ldc, p->batch, p->batch_stride_c, bytes_d, 0};
  places[BIAS] = (Matrix){"bias", (uintptr_t)p->bias, 1, p->bias_kind == HGEMM_BIAS_COLUMN ? p->m : p->n, 0,
                          p->batch, p->batch_stride_bias, bytes_d, 0};
}

/* Writes the harmless values of what was not looked at back. */
static void clean(hgemm_problem *p, Matrix const places[MATRICES], unsigned in_use) {
  p->lda = places[A].leading, p->batch_stride_a = places[A].stride;
  p->ldb = places[B].leading, p->batch_stride_b = places[B].stride;
  p->ldd = places[D].leading, p->batch_stride_d = places[D].stride;
  p->ldc = places[C].leading, p->batch_stride_c = places[C].stride;
  p->batch_stride_bias = places[BIAS].stride;
  if (!(in_use >> A & 1)) p->a = p->b = NULL, p->lda = p->ldb = 0, p->batch_stride_a = p->batch_stride_b = 0;
  if (!(in_use >> C & 1)) p->c = NULL, p->ldc = 0, p->batch_stride_c = 0;
  if (!(in_use >> BIAS & 1)) p->bias = NULL, p->batch_stride_bias = 0;
}

static void see(hgemm_problem const *p, Matrix const places[MATRICES], unsigned in_use, hgemm_wanted *wanted) {
  int const reads_c = in_use >> C & 1;
  wanted->kind = (uint32_t)p->layout | (uint32_t)p->type_a << 4 | (uint32_t)p->type_b << 8 | (uint32_t)p->type_d << 12 |
                 (uint32_t)p->accumulation << 16 | (uint32_t)p->bias_kind << 20 | (uint32_t)p->activation << 24;
  wanted->m = p->m, wanted->n = p->n, wanted->k = p->k, wanted->batch = p->batch;
  wanted->beta = (uint32_t)reads_c;
  wanted->align_a = in_use >> A & 1 ? align_of(&places[A]) : MAX_ALIGN;
  wanted->align_b = in_use >> B & 1 ? align_of(&places[B]) : MAX_ALIGN;
  wanted->align_d = smaller(align_of(&places[D]), reads_c ? align_of(&places[C]) : MAX_ALIGN);
  wanted->straddling = (uint32_t)(in_use >> A & 1 && straddles(&places[A])) + (uint32_t)(in_use >> B & 1 && straddles(&places[B]));
  wanted->mappable = 1;
  for (int i = A; i <= D; ++i) wanted->mappable &= (uint32_t)(!(in_use >> i & 1) || mappable(&places[i]));
  wanted->workspace_bytes = p->workspace_bytes;
}

hgemm_status hgemm_check(hgemm_problem const *problem, enum hgemm_purpose purpose, hgemm_call *call) {
  hgemm_problem *const p = &call->problem;
  Matrix places[MATRICES];
  unsigned in_use = 1u << D;
  hgemm_status status;
  if (problem == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the problem is null");
  if ((status = copy(problem, p)) != HGEMM_OK) return status;
  if ((status = check_words(p)) != HGEMM_OK) return status;
  if ((status = check_extents(p)) != HGEMM_OK) return status;
  call->nothing = p->m == 0 || p->n == 0 || p->batch == 0;
  if (call->nothing) return HGEMM_OK;

  if (p->k > 0) in_use |= 1u << A | 1u << B;
  if (p->beta != 0.0f) in_use |= 1u << C;
  if (p->bias_kind != HGEMM_BIAS_NONE) in_use |= 1u << BIAS;
  lay_out(p, places);
  for (int i = 0; i < MATRICES; ++i) {
    if (in_use >> i & 1 && (status = check_matrix(&places[i], purpose)) != HGEMM_OK) return status;
  }
  if (!batches_apart(&places[D])) {
    return hgemm_fail(HGEMM_ERROR_OVERLAP, "D's batches overlap: use a batch stride of whole matrices");
  }
  for (int i = 0; i < MATRICES; ++i) {
    if (i == D || !(in_use >> i & 1) || (i == C && in_place(&places[D], &places[C]))) continue;
    if (!apart(&places[D], &places[i])) return hgemm_fail(HGEMM_ERROR_OVERLAP, "D overlaps %s", places[i].name);
  }
  if (purpose == HGEMM_TO_RUN && p->workspace == NULL) p->workspace_bytes = 0;
  if ((uintptr_t)p->workspace % WORKSPACE_ALIGN_BYTES != 0) {
    return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the workspace begins at %p, no multiple of %d bytes", p->workspace,
                      WORKSPACE_ALIGN_BYTES);
  }
  clean(p, places, in_use);
  see(p, places, in_use, &call->wanted);
  return HGEMM_OK;
}

hgemm_status hgemm_check_workspace(hgemm_call const *call, enum hgemm_purpose purpose, uint64_t needed) {
  hgemm_problem const *const p = &call->problem;
  uint64_t const begin = (uintptr_t)p->workspace;
  Matrix places[MATRICES];
  if (needed == 0 || purpose == HGEMM_TO_PLAN) return HGEMM_OK;
  if (begin > UINT64_MAX - needed) return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the workspace ends beyond all addresses");
  lay_out(p, places);
  for (int i = 0; i < MATRICES; ++i) {
    Matrix *const x = &places[i];
    if (x->pointer == 0) continue; /* not in use */
    x->bytes = (uint64_t)((x->batch - 1) * x->stride + (x->rows - 1) * x->leading + x->columns) * x->element_bytes;
    if (!ranges_apart(begin, needed, x->pointer, x->bytes)) {
      return hgemm_fail(HGEMM_ERROR_OVERLAP, "%s overlaps the workspace", x->name);
    }
  }
  return HGEMM_OK;
}
