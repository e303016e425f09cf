// The operands of tensor-core instructions: where each lane's registers lie in the matrices.
#pragma once

#include <stdint.h>
#include <string.h>

#include <algorithm>

#include <executor/numbers.hpp>
#include <executor/operation.hpp>
#include <executor/tensor_core_arithmetic.hpp>

namespace hgemm::executor {

typedef float Floats __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));

// Converts four 16-bit numbers, each in the low half of a word, to floats.
inline Floats widen_to_f32(Words halves, Element element) {
  if (element == Element::bf16) return reinterpret_cast<Floats>(halves << 16);
  Words const shifted = (halves & 0x7fff) << 13;
  Words const special = reinterpret_cast<Words>(shifted >= 0x7c00u << 13);  // all ones for infinities and NaNs
  Words const scaled = reinterpret_cast<Words>(reinterpret_cast<Floats>(shifted) * 0x1p112f);
  return reinterpret_cast<Floats>((special & (shifted | 0x7f800000)) | (~special & scaled) | (halves & 0x8000) << 16);
}

// The lower 13 bits of tf32 inputs are cut off. PTX leaves this open.
inline Floats truncate_to_tf32(Words bits) { return reinterpret_cast<Floats>(bits & 0xffffe000); }

inline float least_of(Element element) { return element == Element::f16 ? 0x1p-14f : 0x1p-126f; }

// Rounds a sum of products, which was truncated with a sticky bit.
inline uint16_t round_to_half(float sum) {
  uint16_t const half = float_to_half(sum);
  return half == 0x8000 ? 0 : half;
}

// The matrices of m16n8k16. Within a group of 8, k has the order of the lanes' registers, low halves first: 0, 2, 4, 6, 1, 3,
// 5, 7.
struct Fragment16x8x16 {
  alignas(32) float a[16][16], a_powers[16][16];  // (m, k)
  alignas(32) float b[16][8], b_powers[16][8];    // (k, n)
  alignas(32) float d[16][8];                     // (m, n)
  Contents b_contents;

  // Lane l holds rows l / 4 and l / 4 + 8 of a, columns l % 4 * 2, the next one, and both + 8; and column l / 4 of b. d is laid
  // out like the first half of a.
  void read(uint32_t const* const* a_registers, uint32_t const* const* b_registers, Element element) {
    for (int g = 0; g < 8; ++g) {
      uint32_t const* const* const lanes = a_registers + g * 4;
      for (int i = 0; i < 4; ++i) {
        Words const pairs = {lanes[0][i], lanes[1][i], lanes[2][i], lanes[3][i]};
        float* const row = a[g + i % 2 * 8] + i / 2 * 8;
        Floats const low = widen_to_f32(pairs & 0xffff, element), high = widen_to_f32(pairs >> 16, element);
        memcpy(row, &low, 16);
        memcpy(row + 4, &high, 16);
      }
      uint32_t const* const* const columns = b_registers + g * 4;
      for (int i = 0; i < 2; ++i) {
        Words const pairs = {columns[0][i], columns[1][i], columns[2][i], columns[3][i]};
        Floats const low = widen_to_f32(pairs & 0xffff, element), high = widen_to_f32(pairs >> 16, element);
        for (int k = 0; k < 4; ++k) {
          b[i * 8 + k][g] = low[k];
          b[i * 8 + 4 + k][g] = high[k];
        }
      }
    }
  }

  // For tf32, lane l holds columns l % 4 and l % 4 + 4 of a, and rows l % 4 and l % 4 + 4 of b.
  void read_tf32(uint32_t const* const* a_registers, uint32_t const* const* b_registers) {
    for (int g = 0; g < 8; ++g) {
      uint32_t const* const* const lanes = a_registers + g * 4;
      for (int i = 0; i < 4; ++i) {
        Floats const four = truncate_to_tf32(Words{lanes[0][i], lanes[1][i], lanes[2][i], lanes[3][i]});
        memcpy(a[g + i % 2 * 8] + i / 2 * 4, &four, 16);
      }
      uint32_t const* const* const columns = b_registers + g * 4;
      for (int i = 0; i < 2; ++i) {
        Floats const four = truncate_to_tf32(Words{columns[0][i], columns[1][i], columns[2][i], columns[3][i]});
        for (int k = 0; k < 4; ++k) b[i * 4 + k][g] = four[k];
      }
    }
  }

  TensorCoreOperands operands(int depth, Element in, Element acc) {
    TensorCoreOperands all = {a[0], b[0], a_powers[0], b_powers[0], d[0], 8, 8, 8, least_of(in), acc == Element::f16, &b_contents};
    prepare_a(all, depth);
    prepare_b(all, depth);
    return all;
  }

  // Calls move(lane, half, pair) for each pair of accumulators.
  template <class Move>
  void each_pair(Move move) {
    for (int l = 0; l < 32; ++l) {
      for (int half = 0; half < 2; ++half) move(l, half, d[l / 4 + half * 8] + l % 4 * 2);
    }
  }
};

// d (16, 8) += a (16, 16) * b (16, 8), with each lane's registers. Depth 8 means two instructions in sequence.
inline void multiply_16x8x16(uint32_t const* const* a, uint32_t const* const* b, void* const* d, Element in, Element acc,
                             int depth, TensorCoreArithmetic arithmetic) {
  Fragment16x8x16 fragment;
  fragment.read(a, b, in);
  int const step = std::min(depth, arithmetic.step_bytes / 2);
  TensorCoreOperands const operands = fragment.operands(16, in, acc);
  if (acc == Element::f32) {
    fragment.each_pair([&](int l, int half, float* pair) { memcpy(pair, static_cast<float const*>(d[l]) + half * 2, 8); });
    for (int k = 0; k < 16; k += step) add_products(operands, k, step, arithmetic.fraction_bits);
    fragment.each_pair([&](int l, int half, float* pair) { memcpy(static_cast<float*>(d[l]) + half * 2, pair, 8); });
    return;
  }
  fragment.each_pair([&](int l, int half, float* pair) {
    uint32_t const halves = static_cast<uint32_t const*>(d[l])[half];
    pair[0] = half_to_float(uint16_t(halves));
    pair[1] = half_to_float(uint16_t(halves >> 16));
  });
  for (int k = 0; k < 16; k += step) {
    add_products(operands, k, step, arithmetic.fraction_bits);
    fragment.each_pair([&](int l, int half, float* pair) {
      uint16_t const low = round_to_half(pair[0]), high = round_to_half(pair[1]);
      static_cast<uint32_t*>(d[l])[half] = low | uint32_t(high) << 16;
      pair[0] = half_to_float(low);
      pair[1] = half_to_float(high);
    });
  }
}

// d (16, 8) += a (16, 8) * b (8, 8), tf32.
inline void multiply_16x8x8(uint32_t const* const* a, uint32_t const* const* b, void* const* d,
                            TensorCoreArithmetic arithmetic) {
  Fragment16x8x16 fragment;
  fragment.read_tf32(a, b);
  int const step = std::min(8, arithmetic.step_bytes / 4);
  TensorCoreOperands const operands = fragment.operands(8, Element::tf32, Element::f32);
  fragment.each_pair([&](int l, int half, float* pair) { memcpy(pair, static_cast<float const*>(d[l]) + half * 2, 8); });
  for (int k = 0; k < 8; k += step) add_products(operands, k, step, arithmetic.fraction_bits);
  fragment.each_pair([&](int l, int half, float* pair) { memcpy(static_cast<float*>(d[l]) + half * 2, pair, 8); });
}

// ---- wgmma ---------------------------------------------------------------------------------------------------------

// Numbers of two vectors in turn, of their first halves or of their second ones.
inline Halves low_halves_of(Halves a, Halves b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline Halves high_halves_of(Halves a, Halves b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

// Converts eight 16-bit numbers to floats.
inline void widen(Halves halves, float* to, Element element) {
  Floats const low = widen_to_f32(reinterpret_cast<Words>(low_halves_of(halves, Halves{})), element);
  Floats const high = widen_to_f32(reinterpret_cast<Words>(high_halves_of(halves, Halves{})), element);
  memcpy(to, &low, 16);
  memcpy(to + 4, &high, 16);
}

// Converts a 16-byte vector to floats: 8 elements, or 4 of tf32.
inline void widen_16_bytes(unsigned char const* from, float* to, Element element) {
  if (element == Element::tf32) {
    Words bits;
    memcpy(&bits, from, 16);
    Floats const four = truncate_to_tf32(bits);
    memcpy(to, &four, 16);
    return;
  }
  Halves halves;
  memcpy(&halves, from, 16);
  widen(halves, to, element);
}

// Converts 8 rows of 8 numbers of 16 bits to floats in `to`, transposed: the first numbers of all rows come first.
inline void widen_transposed(Halves (&rows)[8], float* to, size_t pitch, Element element) {
  for (int step = 0; step < 3; ++step) {  // each one rotates the six bits of a number's place
    Halves next[8];
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = low_halves_of(rows[i], rows[i + 4]);
      next[2 * i + 1] = high_halves_of(rows[i], rows[i + 4]);
    }
    memcpy(rows, next, sizeof next);
  }
  for (int i = 0; i < 8; ++i) widen(rows[i], to + size_t(i) * pitch, element);
}

// One warp's part of m64nNk16, or of m64nNk8 for tf32: 16 rows. Lane l holds rows l / 4 and l / 4 + 8, and columns l % 4 * 2
// and the next one of each group of 8.
struct WgmmaTile {
  alignas(32) float a[16][16], a_powers[16][16];    // (m, k)
  alignas(32) float b[16][256], b_powers[16][256];  // (k, n)
  Contents b_contents[32];

  // Reads a from registers, four of each lane, which are laid out like those of m16n8k16, or of m16n8k8 for tf32.
  void read_a(uint32_t const* registers, Element element) {
    for (int l = 0; l < 32; ++l) {
      for (int i = 0; i < 4; ++i) {
        uint32_t const word = registers[l * 4 + i];
        float* const row = a[l / 4 + i % 2 * 8];
        if (element == Element::tf32) {
          row[l % 4 + i / 2 * 4] = float_of(word & 0xffffe000);
          continue;
        }
        bool const bf16 = element == Element::bf16;
        uint16_t const low = uint16_t(word), high = uint16_t(word >> 16);
        row[l % 4 * 2 + i / 2 * 8] = bf16 ? bfloat_to_float(low) : half_to_float(low);
        row[l % 4 * 2 + i / 2 * 8 + 1] = bf16 ? bfloat_to_float(high) : half_to_float(high);
      }
    }
  }

  // Moves a lane's registers to d (16, n).
  static void move_in(uint32_t lane, uint32_t n, uint32_t const* registers, Element acc, float* d) {
    for (uint32_t i = 0; i < n / 4; ++i) {  // pairs
      float* const pair = d + (lane / 4 + i % 2 * 8) * n + i / 2 * 8 + lane % 4 * 2;
      if (acc == Element::f32) {
        memcpy(pair, registers + i * 2, 8);
      } else {
        pair[0] = half_to_float(uint16_t(registers[i]));
        pair[1] = half_to_float(uint16_t(registers[i] >> 16));
      }
    }
  }
  // The inverse.
  static void move_out(uint32_t lane, uint32_t n, uint32_t* registers, Element acc, float const* d) {
    for (uint32_t i = 0; i < n / 4; ++i) {
      float const* const pair = d + (lane / 4 + i % 2 * 8) * n + i / 2 * 8 + lane % 4 * 2;
      if (acc == Element::f32) {
        memcpy(registers + i * 2, pair, 8);
      } else {
        registers[i] = float_to_half(pair[0]) | uint32_t(float_to_half(pair[1])) << 16;
      }
    }
  }
  // d (16, n) += a b. Every instruction of a warpgroup takes one step. `has_b`: B is that of the previous product.
  void multiply(float* d, uint32_t n, int depth, Element in, Element acc, int fraction_bits, bool has_b) {
    TensorCoreOperands all = {a[0], b[0], a_powers[0], b_powers[0], d, n, 256, n, least_of(in), acc == Element::f16, b_contents};
    if (!has_b) prepare_b(all, depth);
    prepare_a(all, depth);
    add_products(all, 0, depth, fraction_bits);
    if (acc != Element::f16) return;
    for (uint32_t i = 0; i < 16 * n; ++i) d[i] = half_to_float(round_to_half(d[i]));
  }
};

}  // namespace hgemm::executor
