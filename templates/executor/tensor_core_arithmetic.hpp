// The arithmetic of the tensor cores, bit by bit.
//
// An instruction adds its products to an accumulator in one or more steps. A step multiplies exactly. It aligns the products and
// the accumulator to the largest exponent and keeps `fraction_bits` bits below it; the rest is cut off. It adds these numbers
// exactly. Then it rounds the sum to the accumulator's type: f32 towards zero, f16 to nearest.
// The exponent of a product is the sum of both exponents, also if the product of the significands is 2 or more. A subnormal
// number has its type's least exponent. Zeros have no exponent. Terms are aligned to 2^-133 at least. A sum that rounds to zero
// is +0.
//
// NaNs differ from the hardware's, which are all 0x7fffffff: a NaN is poison if an operand is, and otherwise 0x7fc00000.
//
// Sources: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330
// (2021); Xie et al., "MMA-Sim", arXiv:2511.10909; Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores",
// arXiv:2512.07004.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <executor/numbers.hpp>

namespace hgemm::executor {

#define HGEMM_INLINE inline __attribute__((always_inline))

struct TensorCoreArithmetic {
  int fraction_bits;
  int step_bytes;  // of a row of A; an instruction may have fewer

  static TensorCoreArithmetic of(uint32_t arch) {
    if (arch >= 90) return {25, 32};
    return {24, 16};
  }
};

// What a row of A, or eight columns of B, hold.
struct Contents {
  bool nonzero = false;
  bool unusual = false;  // infinities, NaNs or numbers below 2^-60
};

// The operands of one warp's instruction: 16 rows of A and D, and n columns of B and D. Powers are the powers of two of the
// exponents.
struct TensorCoreOperands {
  static constexpr int rows = 16, depth = 16;  // depth: the maximum

  float const *a, *b;         // (rows, depth), (depth, n)
  float *a_powers, *b_powers;
  float* d;                   // (rows, n)
  uint32_t n;                 // a multiple of 8
  uint32_t b_pitch, d_pitch;  // from row to row
  float least;                // the exponent of subnormal inputs, as a power of two: 2^-14 for f16
  bool to_f16;                // d holds f16 numbers; after a step, it holds what is to be rounded to f16
  Contents* b_contents;       // of each 8 columns
  Contents a_contents[rows] = {};
};

// ---- One sum, for all numbers --------------------------------------------------------------------------------------

inline bool is_poison(float value) { return is_poison_float(bits_of(value)); }

constexpr int no_exponent = -1000;  // less than any
constexpr int min_exponent = -133;  // that terms are aligned to; measured on an H100

// Returns the exponent of a finite number as the hardware compares it. `least` is 2^-14 or 2^-126.
inline int exponent_of(float value, float least) {
  if (value == 0) return no_exponent;
  return ilogbf(fabsf(value) < least ? least : value);
}

// Rounds towards zero. With `sticky`, the last bit of an inexact result is 1, so that it can be rounded once more.
inline float truncate_to_f32(double value, bool sticky) {
  if (fabs(value) >= 0x1p128) return float(value < 0 ? -INFINITY : INFINITY);
  uint32_t bits = bits_of(float(value));
  if (fabs(double(float_of(bits))) > fabs(value)) --bits;
  if (sticky && double(float_of(bits)) != value) bits |= 1;
  return float_of(bits) + 0.f;
}

// Returns c plus the products of a row and a column; with a sticky bit if the sum is still to be rounded to f16.
inline float add_column(float const* a, float const* b, size_t stride, int count, float c, bool to_f16, int fraction_bits,
                        float least) {
  int top = isfinite(c) ? exponent_of(c, to_f16 ? 0x1p-14f : 0x1p-126f) : 0;
  double special = isfinite(c) ? 0 : double(c);
  bool finite = isfinite(c), poison = is_poison(c);
  for (int k = 0; k < count; ++k) {
    float const x = a[k], y = b[size_t(k) * stride];
    if (isfinite(x) && isfinite(y)) {
      int const exponent = exponent_of(x, least) + exponent_of(y, least);
      top = exponent > top ? exponent : top;
    } else {
      special += double(x) * double(y);
      finite = false;
      poison |= is_poison(x) || is_poison(y);
    }
  }
  if (!finite) return special == special ? float(special) : float_of(poison ? ~0u : 0x7fc00000u);
  top = top < min_exponent ? min_exponent : top;
  double const scale = ldexp(1.0, fraction_bits - top);
  int64_t sum = int64_t(double(c) * scale);
  for (int k = 0; k < count; ++k) sum += int64_t(double(a[k]) * double(b[size_t(k) * stride]) * scale);
  return truncate_to_f32(double(sum) * ldexp(1.0, top - fraction_bits), to_f16);
}

// ---- Eight sums at once, for common numbers ------------------------------------------------------------------------

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // all functions with such arguments are inlined
#endif

typedef float Floats8 __attribute__((vector_size(32)));
typedef uint32_t Words8 __attribute__((vector_size(32)));
typedef int32_t Ints8 __attribute__((vector_size(32)));

HGEMM_INLINE Floats8 load8(float const* from) {
  Floats8 eight;
  memcpy(&eight, from, 32);
  return eight;
}
HGEMM_INLINE bool any_of(Words8 const& bits) {
  uint64_t parts[4];
  memcpy(parts, &bits, 32);
  return (parts[0] | parts[1] | parts[2] | parts[3]) != 0;
}
HGEMM_INLINE Floats8 max_of(Floats8 const& a, Floats8 const& b) { return a > b ? a : b; }
HGEMM_INLINE Ints8 truncate_to_int(Floats8 const& value) { return __builtin_convertvector(value, Ints8); }

// Returns the power of two of each exponent; at least `least`, but 0 for a zero. Infinities and NaNs give infinity.
HGEMM_INLINE Floats8 powers_of(Floats8 const& values, float least) {
  Floats8 const power = reinterpret_cast<Floats8>(reinterpret_cast<Words8>(values) & 0x7f800000);
  Floats8 const raised = max_of(power, least - Floats8{});
  return reinterpret_cast<Floats8>(reinterpret_cast<Words8>(raised) & reinterpret_cast<Words8>(values != 0.f));
}

// Adds `count` products to each of 8 neighbours of d, in 32-bit integers whose unit is the last bit that is kept. No number of
// a and b may be unusual.
// Returns false, and changes nothing, if exponents or sums are too large or too small for that.
template <int count>
HGEMM_INLINE bool add_common_numbers(float const* a, float const* a_powers, float const* b, float const* b_powers, size_t pitch,
                                     float* d, bool to_f16, int fraction_bits) {
  Floats8 const c = load8(d);
  Floats8 tops[2] = {powers_of(c, to_f16 ? 0x1p-14f : 0x1p-126f), {}};
#pragma GCC unroll 16
  for (int k = 0; k < count; ++k) tops[k % 2] = max_of(a_powers[k] * load8(b_powers + size_t(k) * pitch), tops[k % 2]);
  Floats8 const exact_top = max_of(tops[0], tops[1]);
  Floats8 const top = max_of(exact_top, 0x1p-100f - Floats8{});  // a column of zeros has any exponent

  uint32_t const both = uint32_t(254 + fraction_bits) << 23;  // the bits of x and of 2^fraction_bits / x, added
  Floats8 const scale = reinterpret_cast<Floats8>(both - reinterpret_cast<Words8>(top));
  Ints8 sums[2] = {truncate_to_int(c * scale), {}};
#pragma GCC unroll 16
  for (int k = 0; k < count; ++k) sums[k % 2] += truncate_to_int(a[k] * load8(b + size_t(k) * pitch) * scale);
  Words8 const large = (reinterpret_cast<Words8>(sums[0]) + 0x20000000) | (reinterpret_cast<Words8>(sums[1]) + 0x20000000);
  Ints8 const outside = ((exact_top != 0.f) & (exact_top < 0x1p-100f)) | (top > 0x1p100f);
  if (any_of((large & 0xc0000000) | reinterpret_cast<Words8>(outside))) return false;

  Ints8 const sum = sums[0] + sums[1];
  Floats8 const nearest = __builtin_convertvector(sum, Floats8);
  Ints8 const more = truncate_to_int(nearest) - sum;
  Ints8 const away = (more != 0) & ((more ^ sum) >= 0);  // -1 where `nearest` is farther from zero than the sum
  Words8 bits = reinterpret_cast<Words8>(nearest) + reinterpret_cast<Words8>(away);
  if (to_f16) bits |= reinterpret_cast<Words8>(more != 0) & 1;
  Floats8 const result = reinterpret_cast<Floats8>(bits) * (top * float_of(uint32_t(127 - fraction_bits) << 23));
  memcpy(d, &result, 32);
  return true;
}

// Writes the powers of two of `count` vectors of 8 numbers, `step` apart. Returns what they hold.
HGEMM_INLINE Contents prepare(float const* values, float* powers, int count, size_t step, float least) {
  Words8 any = {}, unusual = {};
  for (int i = 0; i < count; ++i) {
    Floats8 const eight = powers_of(load8(values + size_t(i) * step), least);
    memcpy(powers + size_t(i) * step, &eight, 32);
    any |= reinterpret_cast<Words8>(eight);
    unusual |= reinterpret_cast<Words8>((eight == __builtin_inff()) | ((eight != 0.f) & (eight < 0x1p-60f)));
  }
  return {any_of(any), any_of(unusual)};
}

// Prepares `depth` columns of A.
HGEMM_CLONES static void prepare_a(TensorCoreOperands& operands, int depth) {
  for (int row = 0; row < operands.rows; ++row) {
    int const at = row * operands.depth;
    operands.a_contents[row] = prepare(operands.a + at, operands.a_powers + at, depth / 8, 8, operands.least);
  }
}

// Prepares `depth` rows of B.
HGEMM_CLONES static void prepare_b(TensorCoreOperands& operands, int depth) {
  for (uint32_t column = 0; column < operands.n; column += 8) {
    operands.b_contents[column / 8] =
        prepare(operands.b + column, operands.b_powers + column, depth, operands.b_pitch, operands.least);
  }
}

// Returns all ones where a number is poison.
HGEMM_INLINE Words8 poison_of(Floats8 const& values) {
  return reinterpret_cast<Words8>((reinterpret_cast<Words8>(values) & 0x7fff0000) == 0x7fff0000);
}

// Adds products to 8 neighbours of d if some numbers are unusual. Poison, which fills whole rows and columns, spreads at once.
template <int count>
HGEMM_INLINE void add_unusual_numbers(float const* a, float const* b, size_t pitch, float* d, bool to_f16, int fraction_bits,
                                      float least) {
  Words8 poison = {};
  for (int k = 0; k < count; ++k) poison |= poison_of(load8(b + size_t(k) * pitch)) | poison_of(a[k] - Floats8{});
  for (int i = 0; i < 8; ++i) {
    d[i] = poison[i] ? float_of(~0u) : add_column(a, b + i, pitch, count, d[i], to_f16, fraction_bits, least);
  }
}

template <int count>
HGEMM_INLINE void add_products_of(TensorCoreOperands const& operands, int begin, int fraction_bits) {
  size_t const pitch = operands.b_pitch;
  for (int row = 0; row < operands.rows; ++row) {
    float const* const a = operands.a + row * operands.depth + begin;
    float const* const a_powers = operands.a_powers + row * operands.depth + begin;
    Contents const of_a = operands.a_contents[row];
    for (uint32_t column = 0; column < operands.n; column += 8) {
      float* const d = operands.d + size_t(row) * operands.d_pitch + column;
      float const* const b = operands.b + size_t(begin) * pitch + column;
      float const* const b_powers = operands.b_powers + size_t(begin) * pitch + column;
      Contents const of_b = operands.b_contents[column / 8];
      bool const unusual = of_a.unusual || of_b.unusual;
      if (!unusual && !(of_a.nonzero && of_b.nonzero)) {
        for (int i = 0; i < 8; ++i) d[i] += 0.f;
      } else if (unusual || !add_common_numbers<count>(a, a_powers, b, b_powers, pitch, d, operands.to_f16, fraction_bits)) {
        add_unusual_numbers<count>(a, b, pitch, d, operands.to_f16, fraction_bits, operands.least);
      }
    }
  }
}

// Adds the products of k in [begin, begin + count) to d, in one step.
HGEMM_CLONES static void add_products(TensorCoreOperands const& operands, int begin, int count, int fraction_bits) {
  if (count == 16) add_products_of<16>(operands, begin, fraction_bits);
  if (count == 8) add_products_of<8>(operands, begin, fraction_bits);
  if (count == 4) add_products_of<4>(operands, begin, fraction_bits);
}

}  // namespace hgemm::executor
