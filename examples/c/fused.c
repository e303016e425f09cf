/* Multiplies with an epilogue of one scale for each row, a bias and a residual, and checks the result. Use your GPU's architecture:
 *
 *     generate --arch sm_80 --tile 64x64x64,128x128x64 --library build/fused \
 *         --epilogue "scale: Column[f32]; bias: Row; residual: Matrix; relu(acc * scale + bias) + residual"
 *     hgemm export --library build/fused --to build/fused-c
 *     make -C examples/c HGEMM=$PWD/build/fused-c fused && examples/c/fused
 *
 * The program finds the epilogue by its formula, and its inputs by their names. So it depends neither on the hash nor on the order
 * of the inputs. Exit status: 0 the result is correct, 1 something failed, 77 this machine has no NVIDIA GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "hgemm.h"
#include "numbers.h"

enum { M = 200, N = 136, K = 96, NO_GPU = 77 };

static char const FORMULA[] = "relu(acc * scale + bias) + residual"; /* as `hgemm show` prints it, without the types */

static void fail(char const *what, char const *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

/* ---- The epilogue and its inputs ------------------------------------------------------------------------------------------ */

/* Returns the epilogue of the library with this formula. */
static hgemm_epilogue const *find_epilogue(char const *formula) {
  size_t const count = hgemm_list(NULL, 0);
  hgemm_kernel *const kernels = malloc(count * sizeof *kernels);
  hgemm_epilogue const *found = NULL;
  if (kernels == NULL) fail("memory", "exhausted");
  hgemm_list(kernels, count);
  for (size_t i = 0; i < count && found == NULL; ++i) {
    if (kernels[i].epilogue != NULL && strcmp(kernels[i].epilogue->formula, formula) == 0) found = kernels[i].epilogue;
  }
  free(kernels); /* epilogues are static */
  if (found == NULL) fail("no exported kernel has the epilogue", formula);
  return found;
}

/* Returns the place of an input in problem->aux. */
static hgemm_aux *aux_named(hgemm_problem *problem, hgemm_epilogue const *epilogue, char const *name) {
  int i = 0;
  while (i < epilogue->input_count && strcmp(epilogue->inputs[i].name, name) != 0) ++i;
  if (i == epilogue->input_count) fail("the epilogue has no input", name);
  return &problem->aux[i];
}

/* ---- The product ---------------------------------------------------------------------------------------------------------- */

static uint16_t a[M][K], b[N][K], bias[N], residual[M][N], d[M][N];
static float scale[M];

static void fill(void) {
  for (int i = 0; i < M; ++i) {
    scale[i] = 0.5f * (float)(1 + i % 3);
    for (int k = 0; k < K; ++k) a[i][k] = half_of(number(i, k));
    for (int j = 0; j < N; ++j) residual[i][j] = half_of(number(i + 2000, j));
  }
  for (int j = 0; j < N; ++j) {
    bias[j] = half_of(number(j, 3000));
    for (int k = 0; k < K; ++k) b[j][k] = half_of(number(j + 1000, k));
  }
}

static float expected_element(int i, int j) {
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += float_of(a[i][k]) * float_of(b[j][k]);
  sum = sum * scale[i] + float_of(bias[j]);
  return (sum > 0.0f ? sum : 0.0f) + float_of(residual[i][j]);
}

int main(void) {
  int wrong = 0;
  hgemm_handle *handle;
  hgemm_problem problem;
  hgemm_epilogue const *epilogue;
  void *on_device[5], *result;
  hgemm_status status = hgemm_create(&handle, 0);
  if (status == HGEMM_ERROR_NO_DRIVER || status == HGEMM_ERROR_NO_DEVICE) {
    printf("%s\nThe example is built correctly. Run it on a machine with a GPU.\n", hgemm_last_message());
    return NO_GPU;
  }
  if (status != HGEMM_OK) fail(hgemm_status_string(status), hgemm_last_message());
  enter_device(0);
  fill();
  on_device[0] = upload(a, sizeof a), on_device[1] = upload(b, sizeof b), on_device[2] = upload(scale, sizeof scale);
  on_device[3] = upload(bias, sizeof bias), on_device[4] = upload(residual, sizeof residual);
  result = upload(d, sizeof d);

  epilogue = find_epilogue(FORMULA);
  hgemm_problem_init(&problem);
  problem.epilogue = epilogue->hash;
  aux_named(&problem, epilogue, "scale")->pointer = on_device[2];
  aux_named(&problem, epilogue, "bias")->pointer = on_device[3];
  aux_named(&problem, epilogue, "residual")->pointer = on_device[4];
  aux_named(&problem, epilogue, "residual")->ld = N;
  problem.m = M, problem.n = N, problem.k = K;
  problem.a = on_device[0], problem.lda = K;
  problem.b = on_device[1], problem.ldb = K;
  problem.d = result, problem.ldd = N;
  status = hgemm_run(handle, &problem, NULL);
  if (status != HGEMM_OK) fail(hgemm_status_string(status), hgemm_last_message());

  download(d, result, sizeof d);
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) wrong += !is_close(float_of(d[i][j]), expected_element(i, j));
  printf("%s: %d of %d elements wrong\n", FORMULA, wrong, M * N);
  for (int i = 0; i < 5; ++i) release(on_device[i]);
  release(result);
  hgemm_destroy(handle);
  return wrong != 0;
}
