// Conversions of half-precision numbers, the same on every host. NaNs keep their bits, so that poison stays recognizable. Also the
// macro of vectorized functions.
#pragma once

#include <stdint.h>
#include <string.h>

// Functions that also exist for processors with AVX2, which take half the time.
#if defined(__x86_64__) && defined(__GLIBC__) && (!defined(__clang__) || __clang_major__ >= 16)
#define HGEMM_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define HGEMM_CLONES
#endif

namespace hgemm::executor {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// IEEE binary16 to binary32, exactly.
inline float half_to_float(uint16_t half) {
  uint32_t const shifted = uint32_t(half & 0x7fff) << 13;
  uint32_t const sign = uint32_t(half & 0x8000) << 16;
  uint32_t bits = bits_of(float_of(shifted) * 0x1p112f);      // the exponent biases differ by 112
  if (shifted >= 0x7c00u << 13) bits = shifted | 0x7f800000;  // infinities and NaNs
  return float_of(bits | sign);
}

// Rounds to nearest, ties to even.
inline uint16_t float_to_half(float value) {
  uint32_t const bits = bits_of(value);
  uint16_t const sign = uint16_t(bits >> 16 & 0x8000);
  uint32_t const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 or more: infinity
  if (magnitude < 0x38800000) {                                  // subnormal: the f32 addition rounds to multiples of 2^-24
    return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000));
  }
  uint32_t const rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | (rounded - (112u << 23)) >> 13);
}

inline float bfloat_to_float(uint16_t bits) { return float_of(uint32_t(bits) << 16); }

inline uint16_t float_to_bfloat(float value) {
  uint32_t const bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Tells whether the bits are those of poison, either read as this type or converted to it.
inline bool is_poison_half(uint16_t bits) { return (bits & 0x7fff) == 0x7fff; }
inline bool is_poison_float(uint32_t bits) { return (bits & 0x7fff0000) == 0x7fff0000; }

}  // namespace hgemm::executor
