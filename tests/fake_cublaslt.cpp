// cuBLASLt's functions as the benchmark calls them, without a GPU: descriptors are kept, and a product is handed to a
// callback with everything that was described. Prototypes and numbers as in cublasLt.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch;
  int64_t stride;
};
struct Operation {
  int compute, scale;
  int32_t transposed_a, transposed_b;
  uint32_t epilogue;
  uint64_t bias;
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

struct Product {
  Operation operation;
  Layout a, b, c, d;
  uint64_t pointer_a, pointer_b, pointer_c, pointer_d, workspace, workspace_bytes, stream, algorithm, alpha, beta;
};
using Callback = int (*)(Product const*);

namespace {
Callback callback;
int proposals = 4;
int alive;
uint64_t allowed;
int refused_type = -1;
}  // namespace

extern "C" {
void fake_set(Callback to, int count) { callback = to, proposals = count; }
void fake_refuse(int type) { refused_type = type; }
int fake_alive() { return alive; }
size_t cublasLtGetVersion() { return 130100; }
int cublasLtCreate(void** handle) { return *handle = new int(7), ++alive, 0; }
int cublasLtDestroy(void* handle) { return delete static_cast<int*>(handle), --alive, 0; }

int cublasLtMatmulDescCreate(Operation** made, int compute, int scale) {
  *made = new Operation{compute, scale, 0, 0, 1, 0};
  return ++alive, 0;
}
int cublasLtMatmulDescSetAttribute(Operation* to, int attribute, void const* value, size_t bytes) {
  if (attribute == 7 && bytes == 4) return std::memcpy(&to->epilogue, value, 4), 0;
  if (attribute == 8 && bytes == 8) return std::memcpy(&to->bias, value, 8), 0;
  if (bytes != 4 || (attribute != 3 && attribute != 4)) return 7;
  std::memcpy(attribute == 3 ? &to->transposed_a : &to->transposed_b, value, 4);
  return 0;
}
int cublasLtMatmulDescDestroy(Operation* one) { return delete one, --alive, 0; }

int cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (type == refused_type) return 7;
  *made = new Layout{type, rows, columns, leading, 1, 0};
  return ++alive, 0;
}
int cublasLtMatrixLayoutSetAttribute(Layout* to, int attribute, void const* value, size_t bytes) {
  if (attribute == 5 && bytes == 4) return std::memcpy(&to->batch, value, 4), 0;
  if (attribute == 6 && bytes == 8) return std::memcpy(&to->stride, value, 8), 0;
  return 7;
}
int cublasLtMatrixLayoutDestroy(Layout* one) { return delete one, --alive, 0; }

int cublasLtMatmulPreferenceCreate(void** made) { return *made = new char, ++alive, 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int attribute, void const* value, size_t bytes) {
  if (attribute != 1 || bytes != 8) return 7;
  return std::memcpy(&allowed, value, 8), 0;
}
int cublasLtMatmulPreferenceDestroy(void* one) { return delete static_cast<char*>(one), --alive, 0; }

int cublasLtMatmulAlgoGetHeuristic(void* handle, Operation*, Layout*, Layout*, Layout*, Layout*, void*, int wanted,
                                   Heuristic* found, int* returned) {
  if (*static_cast<int*>(handle) != 7) return 1;
  *returned = proposals < wanted ? proposals : wanted;
  for (int i = 0; i < *returned; ++i) found[i] = {{{uint64_t(i)}}, allowed, 0, 1.0f, {}};
  return *returned ? 0 : 15;
}

int cublasLtMatmul(void* handle, Operation* operation, void const* alpha, void const* a, Layout* layout_a, void const* b,
                   Layout* layout_b, void const* beta, void const* c, Layout* layout_c, void* d, Layout* layout_d,
                   Algorithm const* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
  if (*static_cast<int*>(handle) != 7) return 1;
  uint64_t scalars[2] = {};
  std::memcpy(&scalars[0], alpha, operation->scale == 0 ? 4 : 2);
  std::memcpy(&scalars[1], beta, operation->scale == 0 ? 4 : 2);
  Product product{*operation, *layout_a, *layout_b, *layout_c, *layout_d, uint64_t(a), uint64_t(b), uint64_t(c), uint64_t(d),
                  uint64_t(workspace), workspace_bytes, uint64_t(stream), algorithm->data[0], scalars[0], scalars[1]};
  return callback(&product);
}
}
