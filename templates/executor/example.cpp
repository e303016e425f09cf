// Runs a kernel on the CPU from a C++ program: allocate memory, describe it, launch, and print the report.
//
//     c++ -std=c++17 -O1 -DHGEMM_HOST -I templates
//         -DHGEMM_VARIANT_FILE='"examples/gemm_128x128x32.cu"' -DHGEMM_VARIANT=gemm_128x128x32
//         templates/executor/example.cpp templates/executor/executor.cpp -o example && ./example
//
// The kernel must be of family mma_sync, with layout tn and f16 input and output. The exit status is 0 if the report is clean
// and D is correct.
#include HGEMM_VARIANT_FILE

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <vector>

#include <executor/kernel.hpp>

namespace {

constexpr int m = 131, n = 150, k = 75, pitch = 152;  // elements; rows are 16-byte aligned

// A row-major matrix with a leading dimension of `pitch` elements. The padding is poison.
struct Matrix {
  int rows, columns;
  std::vector<hgemm::Vec16B> memory;

  Matrix(int rows, int columns) : rows(rows), columns(columns), memory(size_t(rows) * pitch / 8) {
    memset(memory.data(), HGEMM_POISON, memory.size() * 16);
  }
  hgemm::f16& at(int row, int column) { return reinterpret_cast<hgemm::f16*>(memory.data())[row * pitch + column]; }
  float value(int row, int column) { return hgemm::atoms::to_float(at(row, column)); }

  void fill(uint32_t seed) {  // small integers, so that results are exact
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        seed = seed * 1664525 + 1013904223;
        at(row, column) = hgemm::atoms::from_float<hgemm::f16>(float(int(seed >> 24) % 5 - 2));
      }
    }
  }
  hgemm_region region(char const* name, uint32_t flags) {
    return {name, memory.data(), uint64_t(rows), uint64_t(columns) * 2, pitch * 2, 1, 0, 2, flags};
  }
};

int wrong(Matrix& a, Matrix& b, Matrix& d) {
  int count = 0;
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      float sum = 0.f;
      for (int i = 0; i < k; ++i) sum += a.value(row, i) * b.value(column, i);
      count += !(d.value(row, column) == sum);
    }
  }
  return count;
}

}  // namespace

int main() {
  Matrix a(m, k), b(n, k), d(m, n);
  a.fill(1);
  b.fill(2);
  hgemm::Problem problem = {};
  problem.a = a.memory.data();
  problem.b = b.memory.data();
  problem.d = d.memory.data();
  problem.lda = problem.ldb = problem.ldd = pitch;
  problem.m = m, problem.n = n, problem.k = k, problem.batch = 1;
  problem.alpha = 1.f;

  void const* const parameters[] = {&problem};
  uint64_t const parameter_bytes[] = {sizeof problem};
  hgemm_region const regions[] = {a.region("A", HGEMM_READABLE | HGEMM_INITIALISED),
                                  b.region("B", HGEMM_READABLE | HGEMM_INITIALISED),
                                  d.region("D", HGEMM_WRITABLE | HGEMM_WRITE_ONCE)};
  hgemm_emulation request = {};
  request.version = HGEMM_ABI_VERSION;
  request.grid[0] = uint32_t((m + Policy::tile_m - 1) / Policy::tile_m * ((n + Policy::tile_n - 1) / Policy::tile_n));
  request.grid[1] = request.grid[2] = request.cluster[0] = request.cluster[1] = request.cluster[2] = 1;
  request.threads = Policy::threads;
  request.shared_bytes = sizeof(hgemm::SharedStorage<Policy>);
  request.timing = HGEMM_ANY_TIME;
  request.order = HGEMM_ANY_ORDER;
  request.seed = 7;
  request.parameter_count = 1;
  request.parameters = parameters;
  request.parameter_bytes = parameter_bytes;
  request.region_count = 3;
  request.regions = regions;

  static char report[1 << 16];
  int const status = hgemm::executor::emulate(request, hgemm::executor::kernel_of<HGEMM_VARIANT>(), report, sizeof report);
  int const wrong_elements = wrong(a, b, d);
  printf("%s\n%d of %d elements of D are wrong\n", report, wrong_elements, m * n);
  return status != HGEMM_EMULATED || wrong_elements || !strstr(report, "\"findings\": []");
}
