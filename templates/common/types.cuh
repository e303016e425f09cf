// Number types, vector types and compiler keywords.
//
// A number type needs: an alias, to_float, from_float; for wgmma also pack and from_bits. Its tensor instructions are named in
// atoms.cuh (MmaAtom).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cute/arch/copy.hpp>

#define HGEMM_DEVICE __device__ __forceinline__
#define HGEMM_UNROLL _Pragma("unroll")
#define HGEMM_NO_UNROLL _Pragma("unroll 1")
#define HGEMM_KERNEL(threads, ctas_per_sm) extern "C" __global__ void __launch_bounds__(threads, ctas_per_sm)
#define HGEMM_CLUSTER_KERNEL(threads, ctas_per_sm, cluster_size) \
  extern "C" __global__ void __launch_bounds__(threads, ctas_per_sm) __cluster_dims__(cluster_size, 1, 1)
#define HGEMM_PARAMETER __grid_constant__ const

namespace hgemm {

// ---- Vectors: what one load or store moves ------------------------------------------------------------------------

struct alignas(4) Vec4B { uint32_t x; };
struct alignas(8) Vec8B { uint32_t x, y; };
struct alignas(16) Vec16B { uint32_t x, y, z, w; };

// COUNT neighbouring elements of a row as one access.
template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Vec {
  T element[COUNT];
};

// ---- Number types -------------------------------------------------------------------------------------------------

using f32 = float;
struct tf32 { uint32_t bits; };  // a float; the tensor cores read its upper 19 bits

using f16 = __half;
using bf16 = __nv_bfloat16;

namespace atoms {

HGEMM_DEVICE float to_float(f16 value) { return __half2float(value); }
HGEMM_DEVICE float to_float(bf16 value) { return __bfloat162float(value); }
HGEMM_DEVICE float to_float(float value) { return value; }

template <class Out>
HGEMM_DEVICE Out from_float(float value);
template <>
HGEMM_DEVICE f16 from_float<f16>(float value) { return __float2half_rn(value); }
template <>
HGEMM_DEVICE bf16 from_float<bf16>(float value) { return __float2bfloat16_rn(value); }
template <>
HGEMM_DEVICE float from_float<float>(float value) { return value; }
template <>
HGEMM_DEVICE tf32 from_float<tf32>(float value) { return {__float_as_uint(value)}; }

// Two numbers as the halves of a register, the lower one first.
template <class Out>
HGEMM_DEVICE uint32_t pack(float low, float high);
template <>
HGEMM_DEVICE uint32_t pack<f16>(float low, float high) {
  __half2 const pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t const*>(&pair);
}
template <>
HGEMM_DEVICE uint32_t pack<bf16>(float low, float high) {
  __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t const*>(&pair);
}

HGEMM_DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }
HGEMM_DEVICE uint32_t float_bits(float value) { return __float_as_uint(value); }

// A number from its bits.
template <class Out>
HGEMM_DEVICE Out from_bits(uint16_t bits);
template <>
HGEMM_DEVICE f16 from_bits<f16>(uint16_t bits) { return __ushort_as_half(bits); }
template <>
HGEMM_DEVICE bf16 from_bits<bf16>(uint16_t bits) { return __ushort_as_bfloat16(bits); }

// The two halves of a register as floats.
HGEMM_DEVICE float low_half(uint32_t pair) { return __half2float(__ushort_as_half(static_cast<uint16_t>(pair))); }
HGEMM_DEVICE float high_half(uint32_t pair) { return __half2float(__ushort_as_half(static_cast<uint16_t>(pair >> 16))); }

// |x|, 2^x and 1 / x. The last two are one instruction each, with a relative error of 2^-22 and 2^-23. Results below 2^-126
// are 0.
HGEMM_DEVICE float absolute(float value) { return fabsf(value); }
// The value cut to 0 and 1; 0 for NaN.
HGEMM_DEVICE float saturate(float value) { return __saturatef(value); }
HGEMM_DEVICE float exp2_approx(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
HGEMM_DEVICE float rcp_approx(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

template <class Out>
HGEMM_DEVICE float from_bits(uint32_t bits) { return bits_float(bits); }

}  // namespace atoms
}  // namespace hgemm
