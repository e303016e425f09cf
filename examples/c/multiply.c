/* Multiplies matrices of several shapes and layouts with an exported library, and checks the results.
 *
 *     hgemm export --to build/hgemm
 *     make -C examples/c HGEMM=$PWD/build/hgemm && examples/c/multiply
 *
 * Exit status: 0 all results are correct, 1 something failed, 77 this machine has no NVIDIA GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "hgemm.h"
#include "numbers.h"

enum { NO_GPU = 77 };

/* ---- Data -------------------------------------------------------------------------------------------------------------- */

/* A matrix in host memory: `rows` rows of `columns` elements, `leading` elements apart. */
typedef struct Matrix {
  int64_t rows, columns, leading;
  uint16_t *elements;
} Matrix;

static Matrix new_matrix(int64_t rows, int64_t columns, int64_t leading, int64_t seed) {
  Matrix x = {rows, columns, leading, malloc((size_t)(rows * leading + 1) * sizeof(uint16_t))};
  if (x.elements == NULL) exit(1);
  memset(x.elements, 0xFF, (size_t)(rows * leading + 1) * sizeof(uint16_t)); /* the padding is NaN */
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) x.elements[i * leading + j] = half_of(number(i + seed, j));
  return x;
}

static size_t bytes_of(Matrix x) { return (size_t)(x.rows * x.leading + 1) * sizeof(uint16_t); }

/* ---- One multiplication -------------------------------------------------------------------------------------------------- */

typedef struct Case {
  hgemm_layout layout;
  int64_t m, n, k, padding; /* padding: unused elements after each row */
  float beta;
} Case;

static int64_t wrong_elements(Case const *c, Matrix a, Matrix b, Matrix before, Matrix d) {
  int const a_k_contiguous = c->layout == HGEMM_TN || c->layout == HGEMM_TT;
  int const b_k_contiguous = c->layout == HGEMM_TN || c->layout == HGEMM_NN;
  int64_t wrong = 0;
  for (int64_t i = 0; i < c->m; ++i) {
    for (int64_t j = 0; j < c->n; ++j) {
      float expected = c->beta != 0.0f ? c->beta * float_of(before.elements[i * before.leading + j]) : 0.0f;
      for (int64_t k = 0; k < c->k; ++k) {
        expected += float_of(a.elements[a_k_contiguous ? i * a.leading + k : k * a.leading + i]) *
                    float_of(b.elements[b_k_contiguous ? j * b.leading + k : k * b.leading + j]);
      }
      wrong += !is_close(float_of(d.elements[i * d.leading + j]), expected);
    }
  }
  return wrong;
}

static int run(hgemm_handle *handle, Case const *c) {
  int const a_k_contiguous = c->layout == HGEMM_TN || c->layout == HGEMM_TT;
  int const b_k_contiguous = c->layout == HGEMM_TN || c->layout == HGEMM_NN;
  int64_t const a_columns = a_k_contiguous ? c->k : c->m, b_columns = b_k_contiguous ? c->k : c->n;
  Matrix const a = new_matrix(a_k_contiguous ? c->m : c->k, a_columns, a_columns + c->padding, 0);
  Matrix const b = new_matrix(b_k_contiguous ? c->n : c->k, b_columns, b_columns + c->padding, 1000);
  Matrix const before = new_matrix(c->m, c->n, c->n + c->padding, 2000), d = new_matrix(c->m, c->n, c->n + c->padding, 2000);
  void *const on_device[3] = {upload(a.elements, bytes_of(a)), upload(b.elements, bytes_of(b)),
                              upload(d.elements, bytes_of(d))};
  hgemm_problem problem;
  hgemm_choice choice;
  hgemm_status status;
  int64_t wrong;

  hgemm_problem_init(&problem);
  problem.layout = c->layout;
  problem.m = c->m, problem.n = c->n, problem.k = c->k;
  problem.a = on_device[0], problem.lda = a.leading;
  problem.b = on_device[1], problem.ldb = b.leading;
  problem.c = problem.d = on_device[2], problem.ldc = problem.ldd = d.leading; /* C may be D */
  problem.beta = c->beta;
  status = hgemm_select(handle, &problem, &choice); /* only to print the kernel */
  if (status == HGEMM_OK) status = hgemm_run(handle, &problem, NULL);
  if (status != HGEMM_OK) {
    fprintf(stderr, "%s: %s\n", hgemm_status_string(status), hgemm_last_message());
    exit(1);
  }
  download(d.elements, on_device[2], bytes_of(d));
  wrong = wrong_elements(c, a, b, before, d);
  printf("%lldx%lldx%lld %s: %lld of %lld elements wrong\n", (long long)c->m, (long long)c->n, (long long)c->k, choice.symbol,
         (long long)wrong, (long long)(c->m * c->n));
  for (int i = 0; i < 3; ++i) release(on_device[i]);
  free(a.elements), free(b.elements), free(before.elements), free(d.elements);
  return wrong != 0;
}

int main(void) {
  static Case const cases[] = {
      {HGEMM_TN, 200, 136, 96, 0, 0.0f}, {HGEMM_NN, 128, 256, 64, 8, 1.0f}, {HGEMM_NT, 72, 40, 33, 0, -0.5f},
      {HGEMM_TT, 65, 131, 67, 0, 0.0f},  {HGEMM_TN, 16, 512, 512, 0, 0.0f}, {HGEMM_TN, 24, 16, 32768, 0, 1.0f},
      {HGEMM_TN, 100, 50, 0, 3, 2.0f},   {HGEMM_TT, 1, 1, 1, 0, 0.0f},
  };
  int failures = 0;
  hgemm_handle *handle;
  hgemm_status const status = hgemm_create(&handle, 0);
  if (status == HGEMM_ERROR_NO_DRIVER || status == HGEMM_ERROR_NO_DEVICE) {
    printf("%s\nThe example is built correctly. Run it on a machine with a GPU.\n", hgemm_last_message());
    return NO_GPU;
  }
  if (status != HGEMM_OK) {
    fprintf(stderr, "%s: %s\n", hgemm_status_string(status), hgemm_last_message());
    return 1;
  }
  enter_device(0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) failures += run(handle, &cases[i]);
  hgemm_destroy(handle);
  return failures != 0;
}
