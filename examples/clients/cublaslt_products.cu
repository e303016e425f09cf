/* Products of cuBLASLt, compared with float64: types, transposes, batches, epilogues, and a D other than C.
 *
 *     nvcc -O2 -o products examples/clients/cublaslt_products.cu -lcublasLt
 *     ./products
 *     LD_PRELOAD=build/hgemm/lib/libhgemm_blas.so HGEMM_BLAS_LOG=1 ./products
 *
 * The program knows nothing of HGEMM. For each product it prints the identifier of the algorithm, which is 26727 for HGEMM, and the
 * error over its bound. `products time` also measures the host time of a call and the GPU time of some products.
 * Exit status: 0 all products are within their bounds, 1 some are not. Products that the library does not support do not count. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                \
  do {                                                                             \
    int const status_ = (int)(call);                                               \
    if (status_ != 0) return printf("%s: status %d\n", #call, status_), exit(2), 0; \
  } while (0)

struct Case {
  char const *name;
  cudaDataType_t type, out;
  cublasComputeType_t compute;
  int m, n, k, transa, transb, batch;
  cublasLtEpilogue_t epilogue;
  float alpha, beta;
  int in_place, on_device; /* D is C; alpha and beta are in device memory */
};

static uint32_t state = 12345;
static float draw() { return (float)((state = state * 1664525u + 1013904223u) >> 9) / 4194304.0f - 1.0f; } /* -1 to 1 */

static size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

/* Rounds to the type, writes it, and returns the rounded value. */
static double put(void *at, size_t i, cudaDataType_t type, float value) {
  if (type == CUDA_R_32F) return ((float *)at)[i] = value;
  if (type == CUDA_R_16F) return __half2float(((__half *)at)[i] = __float2half(value));
  return __bfloat162float(((__nv_bfloat16 *)at)[i] = __float2bfloat16(value));
}
static double get(void const *at, size_t i, cudaDataType_t type) {
  if (type == CUDA_R_32F) return ((float const *)at)[i];
  return type == CUDA_R_16F ? __half2float(((__half const *)at)[i]) : __bfloat162float(((__nv_bfloat16 const *)at)[i]);
}

struct Matrix { /* in columns, a batch of them */
  cudaDataType_t type;
  int rows, columns, batch;
  std::vector<char> host;
  std::vector<double> values;
  void *device = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;

  Matrix(cudaDataType_t type, int rows, int columns, int batch) : type(type), rows(rows), columns(columns), batch(batch) {
    size_t const count = (size_t)rows * columns * batch;
    long long const stride = (long long)rows * columns;
    host.resize(count * bytes_of(type)), values.resize(count);
    for (size_t i = 0; i < count; ++i) values[i] = put(host.data(), i, type, draw());
    cudaMalloc(&device, host.size());
    cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice);
    cublasLtMatrixLayoutCreate(&layout, type, rows, columns, rows);
    if (batch == 1) return;
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
  }
  Matrix(Matrix const &) = delete;
  ~Matrix() { cublasLtMatrixLayoutDestroy(layout), cudaFree(device); }
  double at(int b, int i, int j) const { return values[((size_t)b * columns + j) * rows + i]; }
};

static int has(Case const &x, int flag) { return ((int)x.epilogue & flag) != 0; }

static double activated(Case const &x, double value) {
  if (has(x, CUBLASLT_EPILOGUE_RELU)) return value > 0 ? value : 0;
  if (!has(x, CUBLASLT_EPILOGUE_GELU)) return value;
  return 0.5 * value * (1 + std::tanh(std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value)));
}

/* Returns the largest error over its bound, of up to 4096 elements. */
static double error_of(Case const &x, Matrix const &a, Matrix const &b, Matrix const &c, Matrix const &d, Matrix const &bias) {
  double const u = x.compute == CUBLAS_COMPUTE_16F ? std::ldexp(1, -11) : std::ldexp(1, -23);
  double const input = x.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? std::ldexp(1, -9) : 0;
  double const output = x.out == CUDA_R_16F ? std::ldexp(1, -10) : x.out == CUDA_R_16BF ? std::ldexp(1, -7) : std::ldexp(1, -22);
  size_t const count = (size_t)x.m * x.n * x.batch, step = count / 4096 + 1;
  double worst = 0;
  for (size_t at = 0; at < count; at += step) {
    int const i = (int)(at % x.m), j = (int)(at / x.m % x.n), batch = (int)(at / ((size_t)x.m * x.n));
    double sum = 0, absolute = 0;
    for (int k = 0; k < x.k; ++k) {
      double const product = (x.transa ? a.at(batch, k, i) : a.at(batch, i, k)) * (x.transb ? b.at(batch, j, k) : b.at(batch, k, j));
      sum += product, absolute += std::fabs(product);
    }
    double value = x.alpha * sum + x.beta * c.at(batch, i, j);
    if (has(x, CUBLASLT_EPILOGUE_BIAS)) value += bias.values[i];
    double const wanted = activated(x, value), found = get(d.host.data(), at, x.out);
    double const bound = 1.2 * (x.k * u + input) * absolute * std::fabs(x.alpha) + output * (std::fabs(value) + 0.01);
    double const ratio = std::fabs(found - wanted) / bound;
    worst = ratio > worst || std::isnan(ratio) ? ratio : worst;
  }
  return worst;
}

/* Returns 1 if the product is within its bound, 0 if not, and -1 if the library does not support it. */
static int run(cublasLtHandle_t handle, Case const &x, void *workspace, size_t workspace_bytes, int timed) {
  cudaDataType_t const scale = x.compute == CUBLAS_COMPUTE_16F ? CUDA_R_16F : CUDA_R_32F;
  Matrix a(x.type, x.transa ? x.k : x.m, x.transa ? x.m : x.k, x.batch), b(x.type, x.transb ? x.n : x.k, x.transb ? x.k : x.n, x.batch);
  Matrix c(x.out, x.m, x.n, x.batch), other(x.out, x.m, x.n, x.batch), bias(x.out, x.m, 1, 1);
  Matrix &d = x.in_place ? c : other;
  cublasLtMatmulDesc_t operation;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t result = {};
  cublasOperation_t const transa = x.transa ? CUBLAS_OP_T : CUBLAS_OP_N, transb = x.transb ? CUBLAS_OP_T : CUBLAS_OP_N;
  int found = 0, id = -1, mode = x.on_device;
  char scalars[16];
  void const *alpha = scalars, *beta = scalars + 8;
  void *on_device = nullptr;
  put(scalars, 0, scale, x.alpha), put(scalars + 8, 0, scale, x.beta);
  CHECK(cublasLtMatmulDescCreate(&operation, x.compute, scale));
  CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa));
  CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb));
  CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &x.epilogue, sizeof x.epilogue));
  if (has(x, CUBLASLT_EPILOGUE_BIAS)) {
    CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.device, sizeof bias.device));
  }
  if (x.on_device) {
    CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
    CHECK(cudaMalloc(&on_device, 16));
    CHECK(cudaMemcpy(on_device, scalars, 16, cudaMemcpyHostToDevice));
    alpha = on_device, beta = (char *)on_device + 8;
  }
  CHECK(cublasLtMatmulPreferenceCreate(&preference));
  CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                             sizeof workspace_bytes));
  int status = (int)cublasLtMatmulAlgoGetHeuristic(handle, operation, a.layout, b.layout, c.layout, d.layout, preference, 1, &result,
                                                   &found);
  double ratio = 0, host_us = 0, gpu_us = 0;
  auto const multiply = [&] {
    return (int)cublasLtMatmul(handle, operation, alpha, a.device, a.layout, b.device, b.layout, beta, c.device, c.layout, d.device,
                               d.layout, &result.algo, workspace, workspace_bytes, 0);
  };
  if (status == 0 && found == 1) {
    cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, nullptr);
    status = multiply();
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(d.host.data(), d.device, d.host.size(), cudaMemcpyDeviceToHost));
    ratio = error_of(x, a, b, c, d, bias);
  } else if (status == 0) {
    status = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (timed && status == 0 && !x.in_place) {
    int const repeats = 200;
    cudaEvent_t from, to;
    float milliseconds;
    cudaEventCreate(&from), cudaEventCreate(&to);
    for (int i = 0; i < 20; ++i) multiply();
    CHECK(cudaDeviceSynchronize());
    cudaEventRecord(from);
    auto const start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) multiply();
    host_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / repeats;
    cudaEventRecord(to);
    CHECK(cudaDeviceSynchronize());
    cudaEventElapsedTime(&milliseconds, from, to);
    gpu_us = 1000.0 * milliseconds / repeats;
  }
  printf("%-34s %5d %5d %5d %c%c x%d: ", x.name, x.m, x.n, x.k, "NT"[x.transa], "NT"[x.transb], x.batch);
  if (status != 0) printf("status %d\n", status);
  else if (timed) printf("algorithm %5d, error %.3f of the bound, host %.2f us, GPU %.2f us\n", id, ratio, host_us, gpu_us);
  else printf("algorithm %5d, error %.3f of the bound\n", id, ratio);
  cublasLtMatmulPreferenceDestroy(preference), cublasLtMatmulDescDestroy(operation), cudaFree(on_device);
  return status != 0 ? -1 : ratio <= 1;
}

int main(int count, char **words) {
  auto const f16 = CUDA_R_16F, bf16 = CUDA_R_16BF, f32 = CUDA_R_32F;
  auto const c16 = CUBLAS_COMPUTE_16F, c32 = CUBLAS_COMPUTE_32F, tf32 = CUBLAS_COMPUTE_32F_FAST_TF32;
  auto const none = CUBLASLT_EPILOGUE_DEFAULT, bias = CUBLASLT_EPILOGUE_BIAS, relu = CUBLASLT_EPILOGUE_RELU;
  auto const relu_bias = CUBLASLT_EPILOGUE_RELU_BIAS, gelu = CUBLASLT_EPILOGUE_GELU, gelu_bias = CUBLASLT_EPILOGUE_GELU_BIAS;
  Case const cases[] = {
      {"f16", f16, f16, c32, 512, 256, 512, 1, 0, 1, none, 1, 0, 0, 0},
      {"f16 NN", f16, f16, c32, 512, 256, 512, 0, 0, 1, none, 1, 0, 0, 0},
      {"f16 TT", f16, f16, c32, 512, 256, 512, 1, 1, 1, none, 1, 0, 0, 0},
      {"f16 NT", f16, f16, c32, 512, 256, 512, 0, 1, 1, none, 1, 0, 0, 0},
      {"f16, f32 result", f16, f32, c32, 512, 256, 512, 1, 0, 1, none, 1, 0, 0, 0},
      {"f16, f16 accumulation", f16, f16, c16, 512, 256, 64, 1, 0, 1, none, 1, 0, 0, 0},
      {"bf16", bf16, bf16, c32, 512, 256, 512, 1, 0, 1, none, 1, 0, 0, 0},
      {"bf16, odd sizes", bf16, bf16, c32, 333, 77, 129, 0, 0, 1, none, 1, 0, 0, 0},
      {"tf32", f32, f32, tf32, 512, 256, 512, 1, 0, 1, none, 1, 0, 0, 0},
      {"f32", f32, f32, c32, 512, 256, 512, 1, 0, 1, none, 1, 0, 0, 0},
      {"f16, alpha, beta, D is not C", f16, f16, c32, 512, 256, 512, 1, 0, 1, none, 0.5f, 2, 0, 0},
      {"bf16, alpha, beta, in place", bf16, bf16, c32, 512, 256, 512, 1, 0, 1, none, 0.5f, 2, 1, 0},
      {"f16, batch", f16, f16, c32, 256, 128, 64, 1, 0, 12, none, 1, 0, 0, 0},
      {"f16, scalars on the device", f16, f16, c32, 512, 256, 512, 1, 0, 1, none, 0.5f, 2, 0, 1},
      {"f16, bias", f16, f16, c32, 1024, 256, 512, 1, 0, 1, bias, 1, 0, 0, 0},
      {"bf16, bias, beta", bf16, bf16, c32, 1024, 256, 512, 1, 0, 1, bias, 1, 1, 0, 0},
      {"f16, relu", f16, f16, c32, 1024, 256, 512, 1, 0, 1, relu, 1, 0, 0, 0},
      {"bf16, relu, bias", bf16, bf16, c32, 1024, 256, 512, 1, 0, 1, relu_bias, 1, 0, 0, 0},
      {"f16, gelu", f16, f16, c32, 1024, 256, 64, 1, 0, 1, gelu, 1, 0, 0, 0},
      {"f16, gelu, bias", f16, f16, c32, 1024, 256, 64, 1, 0, 1, gelu_bias, 1, 0, 0, 0},
      {"bf16, gelu, bias", bf16, bf16, c32, 1024, 256, 64, 1, 0, 1, gelu_bias, 0.5f, 0, 0, 0},
      {"f16, relu, NN", f16, f16, c32, 1024, 256, 512, 0, 0, 1, relu, 1, 0, 0, 0},
      {"f16, few columns", f16, f16, c32, 4096, 8, 4096, 1, 0, 1, none, 1, 0, 0, 0},
      {"bf16, bias, few columns", bf16, bf16, c32, 4096, 1, 4096, 1, 0, 1, bias, 1, 0, 0, 0},
  };
  int const timed = count > 1 && strcmp(words[1], "time") == 0;
  size_t const workspace_bytes = 32 << 20;
  cublasLtHandle_t handle;
  void *workspace;
  int verdicts[3] = {0, 0, 0};
  CHECK(cudaMalloc(&workspace, workspace_bytes));
  CHECK(cublasLtCreate(&handle));
  printf("cuBLASLt %zu\n", cublasLtGetVersion());
  for (Case const &x : cases) ++verdicts[1 + run(handle, x, workspace, workspace_bytes, timed)];
  CHECK(cublasLtDestroy(handle));
  printf("%d products are right, %d are wrong, %d are not supported\n", verdicts[2], verdicts[1], verdicts[0]);
  return verdicts[1] != 0;
}
