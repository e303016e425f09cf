/* Gives hgemm_run random problems, most of them nearly right, and asks of each answer what a second reading of hgemm.h says.
 *
 *     fuzz PROBLEMS SEED, with a libcuda.so.1 that launches without computing and touches no memory.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hgemm.h"
#include "table.h" /* how many values each enumeration has */

typedef __int128 Wide;

static uint64_t state;

static uint64_t next(void) { /* xorshift64* */
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return state * UINT64_C(2685821657736338717);
}

static uint64_t below(uint64_t count) { return next() % count; }
static int rarely(unsigned in) { return below(in) == 0; }

/* ---- Problems ----------------------------------------------------------------------------------------------------- */

static int64_t edge(void) { /* a number that code gets wrong */
  static int64_t const edges[] = {
      0, 1, -1, 7, 8, 9, 255, 256, 257, INT32_MAX, -(int64_t)INT32_MAX, INT64_MAX, INT64_MIN,
      (int64_t)INT32_MAX - 1023, (int64_t)INT32_MAX - 1024, (int64_t)1 << 32, (int64_t)1 << 40, (int64_t)1 << 61,
  };
  return rarely(3) ? (int64_t)next() : edges[below(sizeof edges / sizeof *edges)];
}

static int64_t extent(void) { return rarely(30) ? edge() : (int64_t)(next() & ((UINT64_C(1) << below(14)) - 1)); }

static void *place(int slot) {
  uint64_t const offset = rarely(2) ? 0 : 2 * below(16);
  if (rarely(40)) return (void *)(uintptr_t)edge();
  return (void *)(uintptr_t)(((uint64_t)slot + 1) * (UINT64_C(1) << (rarely(20) ? 12 : 44)) + offset);
}

static int64_t leading(int64_t columns) {
  return rarely(40) ? edge() : (int64_t)((uint64_t)columns + (rarely(3) ? below(20) : 0));
}

static hgemm_problem draw(void) {
  hgemm_problem p;
  int a_by_rows, b_by_rows;
  hgemm_problem_init(&p);
  if (rarely(200)) p.struct_size = (uint64_t)edge();
  p.layout = rarely(100) ? (int32_t)edge() : (int32_t)below(4);
  p.dtype_a = p.dtype_b = (int32_t)below(2);
  p.dtype_d = rarely(4) ? (int32_t)below(3) : p.dtype_a;
  if (rarely(100)) p.dtype_b = (int32_t)edge();
  p.acc = rarely(100) ? (int32_t)edge() : (int32_t)below(3);
  p.bias_kind = rarely(4) ? (int32_t)below(4) : 0;
  p.activation = rarely(4) ? (int32_t)below(5) : 0;
  p.flags = rarely(200) ? 8 : rarely(4) ? (int32_t)below(8) : 0;
  p.m = extent(), p.n = extent(), p.k = extent();
  p.batch = rarely(4) ? extent() : 1;
  p.a = place(0), p.b = place(1), p.c = place(2), p.d = place(3), p.bias = place(4), p.workspace = place(5);
  if (rarely(6)) p.c = p.d;
  p.workspace_bytes = rarely(2) ? UINT64_C(1) << below(45) : (uint64_t)edge();
  if (rarely(3)) p.workspace = NULL;
  a_by_rows = p.layout == HGEMM_TN || p.layout == HGEMM_TT;
  b_by_rows = p.layout == HGEMM_TN || p.layout == HGEMM_NN;
  p.lda = leading(a_by_rows ? p.k : p.m), p.ldb = leading(b_by_rows ? p.k : p.n);
  p.ldd = leading(p.n), p.ldc = rarely(2) ? p.ldd : leading(p.n);
  p.batch_stride_a = (int64_t)((uint64_t)extent() * 64), p.batch_stride_b = rarely(2) ? 0 : edge();
  p.batch_stride_d = rarely(8) ? edge() : (int64_t)1 << 26, p.batch_stride_c = rarely(2) ? p.batch_stride_d : edge();
  p.batch_stride_bias = extent();
  p.alpha = 1.0f, p.beta = rarely(2) ? 1.0f : 0.0f;
  return p;
}

/* ---- What a problem that was launched must be ------------------------------------------------------------------------ */

static Wide span(int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t stride) {
  return (batch > 1 ? (Wide)(batch - 1) * stride : 0) + (rows > 1 ? (Wide)(rows - 1) * ld : 0) + columns;
}

static char const *fault(void const *pointer, int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t stride, int bytes) {
  uintptr_t const at = (uintptr_t)pointer;
  if (pointer == NULL || at % (unsigned)bytes) return "pointer";
  if (rows > 1 && ld < columns) return "leading dimension";
  if (batch > 1 && stride < 0) return "batch stride";
  if ((Wide)at + span(rows, columns, ld, batch, stride) * bytes > ((Wide)1 << 64)) return "end";
  return NULL;
}

static int meet(void const *x, Wide x_bytes, void const *y, Wide y_bytes) {
  return (Wide)(uintptr_t)x < (uintptr_t)y + y_bytes && (Wide)(uintptr_t)y < (uintptr_t)x + x_bytes;
}

static int no_array(void const *array) { return array == NULL || (uintptr_t)array % sizeof(void *) != 0; }

static char const *judge(hgemm_problem const *p, hgemm_choice const *choice, uint64_t of_handle) {
  int const a_by_rows = p->layout == HGEMM_TN || p->layout == HGEMM_TT, b_by_rows = p->layout == HGEMM_TN || p->layout == HGEMM_NN;
  int64_t const a_rows = a_by_rows ? p->m : p->k, a_columns = a_by_rows ? p->k : p->m;
  int64_t const b_rows = b_by_rows ? p->n : p->k, b_columns = b_by_rows ? p->k : p->n;
  int const bytes = p->dtype_d == HGEMM_F32 ? 4 : 2;
  int const arrays = (p->flags & HGEMM_POINTER_ARRAYS) != 0;
  int64_t const batch = arrays ? 1 : p->batch;
  void const *const place = (void const *)4096; /* of a matrix whose address is in an array */
  void const *const a = arrays ? place : p->a, *const b = arrays ? place : p->b, *const c = arrays ? place : p->c;
  void const *const d = arrays ? place : p->d;
  Wide const d_bytes = span(p->m, p->n, p->ldd, p->batch, p->batch_stride_d) * bytes;
  char const *what;
  if (p->struct_size != sizeof *p || p->layout < 0 || p->layout >= HGEMM_LAYOUT_COUNT || p->flags < 0 || p->flags > 7 || p->bias_kind >= HGEMM_BIAS_COUNT ||
      p->activation >= HGEMM_ACTIVATION_COUNT) return "word";
  if (p->m < 1 || p->n < 1 || p->k < 0 || p->batch < 1) return "extent";
  if (arrays && ((p->k > 0 && (no_array(p->a) || no_array(p->b))) || no_array(p->d) || (p->beta != 0 && no_array(p->c)))) {
    return "array";
  }
  if (p->k > 0 && (what = fault(a, a_rows, a_columns, p->lda, batch, p->batch_stride_a, 2))) return what;
  if (p->k > 0 && (what = fault(b, b_rows, b_columns, p->ldb, batch, p->batch_stride_b, 2))) return what;
  if ((what = fault(d, p->m, p->n, p->ldd, batch, p->batch_stride_d, bytes))) return what;
  if (p->beta != 0 && (what = fault(c, p->m, p->n, p->ldc, batch, p->batch_stride_c, bytes))) return what;
  if (batch > 1 && p->batch_stride_d < p->n) return "batches of D";
  if (!arrays && p->k > 0 && p->m > 1 && a_rows > 1 && (Wide)p->ldd * bytes != (Wide)p->lda * 2 && /* else columns of one matrix */
      meet(p->d, d_bytes, p->a, span(a_rows, a_columns, p->lda, p->batch, p->batch_stride_a) * 2)) {
    return "D over A";
  }
  if (choice->workspace_bytes > 0) {
    if ((uintptr_t)p->workspace % 16) return "workspace";
    if (choice->workspace_bytes > (p->workspace == NULL ? of_handle : p->workspace_bytes)) return "workspace";
    if (!arrays && p->workspace != NULL && meet(p->d, d_bytes, p->workspace, choice->workspace_bytes)) return "workspace over D";
  }
  return NULL;
}

int main(int count, char **arguments) {
  long const problems = count == 3 ? atol(arguments[1]) : 0;
  long (*launches)(void);
  long answers[32] = {0}, before = 0;
  uint64_t size = HGEMM_DEFAULT_WORKSPACE_BYTES; /* of the handle's workspaces */
  hgemm_handle *handle;
  state = count == 3 ? strtoull(arguments[2], NULL, 10) * 2 + 1 : 1;
  if (hgemm_create(&handle, 0) != HGEMM_OK) return puts(hgemm_last_message()), 1;
  *(void **)&launches = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_launches");
  for (long i = 0; i < problems; ++i) {
    hgemm_problem p = draw(), const_copy = p;
    hgemm_problem const *const given = rarely(1000) ? NULL : &p;
    hgemm_choice choice;
    hgemm_status status;
    char const *what = NULL;
    long launched;
    hgemm_problem planned = p;
    if (rarely(2000)) hgemm_set_workspace_size(handle, size = rarely(3) ? 0 : below(64) << 20);
    if (planned.workspace == NULL && planned.workspace_bytes > size) planned.workspace_bytes = 0; /* the handle's */
    hgemm_select(handle, &planned, &choice);
    status = hgemm_run(handle, given, rarely(8) ? (void *)(uintptr_t)below(64) : NULL);
    launched = launches() - before, before = launches();
    ++answers[status < 32 ? status : 31];
    if (memcmp(&p, &const_copy, sizeof p) != 0) what = "the problem was written";
    if (status != HGEMM_OK && (launched || hgemm_last_message()[0] == '\0')) what = "launched, or no words";
    if (status == HGEMM_OK && launched > 1) what = "launched twice";
    if (status == HGEMM_OK && !launched && p.m != 0 && p.n != 0 && p.batch != 0) what = "did not launch";
    if (status == HGEMM_OK && launched) what = judge(&p, &choice, size);
    if (what != NULL) return printf("problem %ld: %s, status %d\n", i, what, status), 1;
  }
  hgemm_destroy(handle);
  for (int i = 0; i < 20; ++i) printf("%d %ld %.40s\n", i, answers[i], hgemm_status_string((hgemm_status)i));
  return 0;
}
