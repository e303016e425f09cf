/* Calls hgemm_gemm_ex as a program of cuBLAS would, on small integers, for all operations. Prints statuses of bad arguments. */
#include <stdio.h>

#include "hgemm.h"

enum { M = 5, N = 7, K = 9 };

int main(void) {
  static float a[M * K], b[K * N], c[M * N]; /* read as tf32: small integers are exact */
  float const alpha = 2.0f, beta = 0.5f;
  hgemm_handle *handle;
  if (HGEMM_VERSION != HGEMM_VERSION_MAJOR * 10000 + HGEMM_VERSION_MINOR * 100 + HGEMM_VERSION_PATCH) return 1;
  if (hgemm_create(&handle, 0) != HGEMM_OK) return puts(hgemm_last_message()), 1;
  for (int i = 0; i < M * K; ++i) a[i] = (float)(i % 5 - 2);
  for (int i = 0; i < K * N; ++i) b[i] = (float)(i % 7 - 3);
  for (int operations = 0; operations < 9; ++operations) {
    hgemm_operation const ta = (hgemm_operation)(operations / 3), tb = (hgemm_operation)(operations % 3);
    int wrong = 0;
    for (int i = 0; i < M * N; ++i) c[i] = 4.0f;
    if (hgemm_gemm_ex(handle, ta, tb, M, N, K, &alpha, a, HGEMM_TF32, ta == HGEMM_OP_N ? M : K, b, HGEMM_TF32,
                      tb == HGEMM_OP_N ? K : N, &beta, c, HGEMM_F32, M, HGEMM_ACC_F32, NULL) != HGEMM_OK) {
      return puts(hgemm_last_message()), 1;
    }
    for (int i = 0; i < M; ++i) {
      for (int j = 0; j < N; ++j) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) sum += (ta == HGEMM_OP_N ? a[k * M + i] : a[i * K + k]) * (tb == HGEMM_OP_N ? b[j * K + k] : b[k * N + j]);
        wrong += c[j * M + i] != 2.0f * sum + 2.0f;
      }
    }
    printf("%d ", wrong);
  }
  printf("%d ", hgemm_gemm_ex(NULL, HGEMM_OP_N, HGEMM_OP_N, M, N, K, &alpha, a, HGEMM_TF32, M, b, HGEMM_TF32, K, &beta, c,
                              HGEMM_F32, M, HGEMM_ACC_F32, NULL));
  printf("%d ", hgemm_gemm_ex(handle, HGEMM_OP_N, HGEMM_OP_N, M, N, K, NULL, a, HGEMM_TF32, M, b, HGEMM_TF32, K, &beta, c,
                              HGEMM_F32, M, HGEMM_ACC_F32, NULL));
  printf("%d ", hgemm_gemm_ex(handle, (hgemm_operation)3, HGEMM_OP_N, M, N, K, &alpha, a, HGEMM_TF32, M, b, HGEMM_TF32, K, &beta,
                              c, HGEMM_F32, M, HGEMM_ACC_F32, NULL));
  printf("%d\n", hgemm_gemm_ex(handle, HGEMM_OP_N, HGEMM_OP_N, M, N, K, &alpha, a, HGEMM_TF32, M - 1, b, HGEMM_TF32, K, &beta, c,
                               HGEMM_F32, M, HGEMM_ACC_F32, NULL));
  hgemm_destroy(handle);
  return 0;
}
