// Sums of products in a given order, with the bits of the tensor cores: what a kernel computes if it adds k in that order.
//
// It shares only the arithmetic of one instruction with the executor, no code that assigns elements to threads or k to steps.
#include <algorithm>
#include <vector>

#include <executor/tensor_core_arithmetic.hpp>

using namespace hgemm::executor;

namespace {

constexpr uint32_t most_columns = 256;

struct Block {
  alignas(32) float a[16][16], a_powers[16][16];  // (m, k)
  alignas(32) float b[16][most_columns], b_powers[16][most_columns];  // (k, n)
  alignas(32) float d[16][most_columns];                              // (m, n)
};

}  // namespace

// d (m, n) = a (m, k) b (k, n). Step i adds the `step` products from k = i * step on. k is a multiple of `step`: 4, 8 or 16.
// `least` is the power of two of the exponent of subnormal inputs. With `to_f16`, each step rounds to f16.
extern "C" __attribute__((visibility("default"))) void hgemm_ordered_sum(float const* a, float const* b, float* d, int64_t m,
                                                                         int64_t n, int64_t k, int32_t step,
                                                                         int32_t fraction_bits, float least, int32_t to_f16) {
  std::vector<Block> place(1);
  Block& block = place[0];
  for (int64_t row = 0; row < m; row += 16) {
    int64_t const rows = std::min<int64_t>(16, m - row);
    for (int64_t column = 0; column < n; column += most_columns) {
      int64_t const columns = std::min<int64_t>(most_columns, n - column);
      memset(&block, 0, sizeof block);
      Contents of_b[most_columns / 8];
      TensorCoreOperands const empty = {block.a[0], block.b[0],   block.a_powers[0], block.b_powers[0], block.d[0],
                                        uint32_t(columns + 7) / 8 * 8, most_columns, most_columns, least, to_f16 != 0, of_b};
      for (int64_t first = 0; first < k; first += step) {
        for (int64_t i = 0; i < rows; ++i) memcpy(block.a[i], a + (row + i) * k + first, size_t(step) * 4);
        for (int64_t i = 0; i < step; ++i) memcpy(block.b[i], b + (first + i) * n + column, size_t(columns) * 4);
        TensorCoreOperands operands = empty;
        prepare_a(operands, 8 * ((step + 7) / 8));
        prepare_b(operands, step);
        add_products(operands, 0, step, fraction_bits);
        if (!to_f16) continue;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            uint16_t const half = float_to_half(block.d[i][j]);
            block.d[i][j] = half == 0x8000 ? 0.f : half_to_float(half);
          }
        }
      }
      for (int64_t i = 0; i < rows; ++i) memcpy(d + (row + i) * n + column, block.d[i], size_t(columns) * 4);
    }
  }
}
