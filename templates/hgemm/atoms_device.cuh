// Device implementation of the atom layer: thin wrappers of CuTe's instruction atoms.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm75.hpp>
#include <cute/arch/mma_sm80.hpp>

#define HGEMM_DEVICE __device__ __forceinline__
#define HGEMM_UNROLL _Pragma("unroll")
#define HGEMM_NO_UNROLL _Pragma("unroll 1")
#define HGEMM_KERNEL(threads, ctas_per_sm) extern "C" __global__ void __launch_bounds__(threads, ctas_per_sm)
#define HGEMM_PARAMETER __grid_constant__ const

// Dynamic shared memory of the CTA as one object. A macro, because another implementation has one a CTA.
#define HGEMM_SHARED(Type, name)                                     \
  extern __shared__ __align__(1024) unsigned char hgemm_shared_raw[]; \
  Type& name = *reinterpret_cast<Type*>(hgemm_shared_raw)
// The same with a size that the code says.
#define HGEMM_STATIC_SHARED(Type, name)                                    \
  __shared__ __align__(128) unsigned char hgemm_static_raw[sizeof(Type)];  \
  Type& name = *reinterpret_cast<Type*>(hgemm_static_raw)

namespace hgemm {

using f16 = __half;
using bf16 = __nv_bfloat16;
using f32 = float;
struct tf32 { uint32_t bits; };  // a float of whose 32 bits the tensor cores take the upper 19

struct alignas(4) Word1 { uint32_t x; };
struct alignas(8) Word2 { uint32_t x, y; };
struct alignas(16) Word4 { uint32_t x, y, z, w; };

namespace atoms {

// CuTe has this one from sm_80 on, PTX from sm_75 on.
struct Sm75F16Accumulate {
  HGEMM_DEVICE static void fma(uint32_t& d0, uint32_t& d1, uint32_t a0, uint32_t a1, uint32_t b0, uint32_t c0, uint32_t c1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%5, %6};"
                 : "=r"(d0), "=r"(d1)
                 : "r"(a0), "r"(a1), "r"(b0), "r"(c0), "r"(c1));
  }
};

template <class In, class Accumulator, int K>
struct MmaAtom;
template <>
struct MmaAtom<f16, float, 16> { using Type = cute::SM80_16x8x16_F32F16F16F32_TN; };
template <>
struct MmaAtom<f16, float, 8> { using Type = cute::SM75_16x8x8_F32F16F16F32_TN; };
template <>
struct MmaAtom<bf16, float, 16> { using Type = cute::SM80_16x8x16_F32BF16BF16F32_TN; };
template <>
struct MmaAtom<bf16, float, 8> { using Type = cute::SM80_16x8x8_F32BF16BF16F32_TN; };
template <>
struct MmaAtom<f16, uint32_t, 16> { using Type = cute::SM80_16x8x16_F16F16F16F16_TN; };
template <>
struct MmaAtom<f16, uint32_t, 8> { using Type = Sm75F16Accumulate; };
template <>
struct MmaAtom<tf32, float, 8> { using Type = cute::SM80_16x8x8_F32TF32TF32F32_TN; };

// ---- Where a thread is --------------------------------------------------------------------------------------------

HGEMM_DEVICE int thread_index() { return threadIdx.x; }
HGEMM_DEVICE uint32_t cta_x() { return blockIdx.x; }
HGEMM_DEVICE uint32_t grid_x() { return gridDim.x; }

// ---- Waiting ------------------------------------------------------------------------------------------------------

HGEMM_DEVICE void cta_barrier() { __syncthreads(); }
HGEMM_DEVICE void warp_barrier() { __syncwarp(); }

// Ends a piece of code within which the compiler may reorder instructions, by a way out that no thread takes, since grids have
// one row, and the compiler must reckon with. Each place has a number of its own, from 1 on.
HGEMM_DEVICE void end_schedule(uint32_t place) {
  asm volatile("{ .reg .pred taken; setp.eq.u32 taken, %0, %1; @taken exit; }" ::"r"(blockIdx.y), "r"(place) : "memory");
}

// The same value, of which the compiler does not know that: what follows from it is worked out where it is used, not kept.
HGEMM_DEVICE int anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Makes this thread's earlier global writes visible to threads that see its later ones.
HGEMM_DEVICE void global_fence() { __threadfence(); }
HGEMM_DEVICE uint32_t global_fetch_add(uint32_t* counter, uint32_t value) { return atomicAdd(counter, value); }

// ---- Asynchronous copies ------------------------------------------------------------------------------------------

// BYTES (4, 8 or 16) from global to shared memory; where `valid` is false, reads nothing and writes zeros.
template <int BYTES>
HGEMM_DEVICE void cp_async(void* shared, void const* global, bool valid) {
  if constexpr (BYTES == 16) {
    cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
        *static_cast<cute::uint128_t const*>(global), *static_cast<cute::uint128_t*>(shared), valid);
  } else if constexpr (BYTES == 8) {
    cute::SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint64_t>::copy(
        *static_cast<uint64_t const*>(global), *static_cast<uint64_t*>(shared), valid);
  } else {
    cute::SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint32_t>::copy(
        *static_cast<uint32_t const*>(global), *static_cast<uint32_t*>(shared), valid);
  }
}

HGEMM_DEVICE void cp_async_commit() { cute::cp_async_fence(); }

// Blocks until at most PENDING of this thread's committed groups are still in flight.
template <int PENDING>
HGEMM_DEVICE void cp_async_wait() {
  cute::cp_async_wait<PENDING>();
}

// ---- Plain loads and stores ---------------------------------------------------------------------------------------

template <class T>
HGEMM_DEVICE T ld_global(T const* pointer) {
  __builtin_assume(__isGlobal(pointer));  // of which the compiler loses sight in loops
  return *pointer;
}
// Around the L1 cache, for data that another CTA of this launch wrote.
HGEMM_DEVICE Word4 ld_global_l2(Word4 const* pointer) {
  uint4 const word = __ldcg(reinterpret_cast<uint4 const*>(pointer));
  return {word.x, word.y, word.z, word.w};
}
template <class T>
HGEMM_DEVICE void st_global(T* pointer, T value) {
  *pointer = value;
}
template <class T>
HGEMM_DEVICE T ld_shared(T const* pointer) {
  return *pointer;
}
template <class T>
HGEMM_DEVICE void st_shared(T* pointer, T value) {
  *pointer = value;
}

// ---- Fragments ----------------------------------------------------------------------------------------------------

// Four 8x8 matrices of half elements; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes).
// TRANSPOSE hands each lane the elements of the transposed matrices.
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x4(void const* row, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3) {
  auto const& source = *static_cast<cute::uint128_t const*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM75_U16x8_LDSM_T::copy(source, r0, r1, r2, r3);
  } else {
    cute::SM75_U32x4_LDSM_N::copy(source, r0, r1, r2, r3);
  }
}
// Two 8x8 matrices; lanes 0 to 15 give the addresses.
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x2(void const* row, uint32_t& r0, uint32_t& r1) {
  auto const& source = *static_cast<cute::uint128_t const*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM75_U16x4_LDSM_T::copy(source, r0, r1);
  } else {
    cute::SM75_U32x2_LDSM_N::copy(source, r0, r1);
  }
}

// ---- Tensor cores -------------------------------------------------------------------------------------------------

// d (16, 8) += a (16, k) b (k, 8), by one warp. a: 4 registers, b: 2, d: 4 floats or 2 pairs of halves; k is what the registers
// hold, 16 halves or 8 tf32. K is the depth of the instruction: at 8 of halves, two of them make the 16.
template <class In, int K, class Accumulator, int REGISTERS>
HGEMM_DEVICE void mma(Accumulator (&d)[REGISTERS], uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  using Atom = typename MmaAtom<In, Accumulator, K>::Type;
  constexpr bool whole = K * sizeof(In) == 32;
  if constexpr (whole && REGISTERS == 4) {
    Atom::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1], d[0], d[1], d[2], d[3]);
  } else if constexpr (whole) {
    Atom::fma(d[0], d[1], a[0], a[1], a[2], a[3], b[0], b[1], d[0], d[1]);
  } else if constexpr (REGISTERS == 4) {
    Atom::fma(d[0], d[1], d[2], d[3], a[0], a[1], b[0], d[0], d[1], d[2], d[3]);
    Atom::fma(d[0], d[1], d[2], d[3], a[2], a[3], b[1], d[0], d[1], d[2], d[3]);
  } else {
    Atom::fma(d[0], d[1], a[0], a[1], b[0], d[0], d[1]);
    Atom::fma(d[0], d[1], a[2], a[3], b[1], d[0], d[1]);
  }
}

// ---- Numbers ------------------------------------------------------------------------------------------------------

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

// The two halves of a register, the lower one first.
HGEMM_DEVICE float low_half(uint32_t pair) { return __half2float(__ushort_as_half(static_cast<uint16_t>(pair))); }
HGEMM_DEVICE float high_half(uint32_t pair) { return __half2float(__ushort_as_half(static_cast<uint16_t>(pair >> 16))); }

HGEMM_DEVICE uint32_t float_bits(float value) { return __float_as_uint(value); }
HGEMM_DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }

HGEMM_DEVICE float magnitude(float value) { return fabsf(value); }
// 2^value and 1 / value, each one instruction: within 2^-22 and 2^-23 of it, results below 2^-126 are 0.
HGEMM_DEVICE float power_of_two(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
HGEMM_DEVICE float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace atoms
}  // namespace hgemm
