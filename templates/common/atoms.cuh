// The atom layer: kernels touch memory, other threads and tensor cores through these functions only. They are thin wrappers of
// the instruction atoms of CuTe.
#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm75.hpp>
#include <cute/arch/mma_sm80.hpp>

#include <common/types.cuh>

// Dynamic shared memory of the CTA as one object.
#define HGEMM_SHARED(Type, name)                                     \
  extern __shared__ __align__(1024) unsigned char hgemm_shared_raw[]; \
  Type& name = *reinterpret_cast<Type*>(hgemm_shared_raw)
// Static shared memory of the CTA, whose size is part of the code.
#define HGEMM_STATIC_SHARED(Type, name)                                    \
  __shared__ __align__(128) unsigned char hgemm_static_raw[sizeof(Type)];  \
  Type& name = *reinterpret_cast<Type*>(hgemm_static_raw)

namespace hgemm {
namespace atoms {

// PTX has this instruction from sm_75 on, CuTe only from sm_80 on.
struct Sm75F16Accumulate {
  HGEMM_DEVICE static void fma(uint32_t& d0, uint32_t& d1, uint32_t a0, uint32_t a1, uint32_t b0, uint32_t c0, uint32_t c1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%5, %6};"
                 : "=r"(d0), "=r"(d1)
                 : "r"(a0), "r"(a1), "r"(b0), "r"(c0), "r"(c1));
  }
};

// The instruction mma.sync.m16n8kK of a type.
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

// ---- Indices ------------------------------------------------------------------------------------------------------

HGEMM_DEVICE int thread_index() { return threadIdx.x; }
HGEMM_DEVICE uint32_t cta_x() { return blockIdx.x; }
HGEMM_DEVICE uint32_t grid_x() { return gridDim.x; }

// ---- Barriers and fences ------------------------------------------------------------------------------------------

HGEMM_DEVICE void cta_barrier() { __syncthreads(); }
HGEMM_DEVICE void warp_barrier() { __syncwarp(); }

// Stops the compiler from moving instructions across this place. It is an exit that no thread takes, since grids have one row,
// but that the compiler must consider. Each place has its own number, from 1 on.
HGEMM_DEVICE void scheduling_barrier(uint32_t place) {
  asm volatile("{ .reg .pred taken; setp.eq.u32 taken, %0, %1; @taken exit; }" ::"r"(blockIdx.y), "r"(place) : "memory");
}

// Returns the value, hidden from the compiler: what depends on it is computed where it is used, not kept in registers.
HGEMM_DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Reads the value at this point of the program, not where it is first used.
HGEMM_DEVICE void read_now(int64_t value) { asm volatile("" ::"l"(value)); }

// Makes this thread's earlier global writes visible to threads that see its later ones.
HGEMM_DEVICE void global_fence() { __threadfence(); }
HGEMM_DEVICE uint32_t global_fetch_add(uint32_t* counter, uint32_t value) { return atomicAdd(counter, value); }
// Replaces the value if it is `expected`. Returns what it was.
HGEMM_DEVICE uint32_t global_compare_and_swap(uint32_t* counter, uint32_t expected, uint32_t value) {
  return atomicCAS(counter, expected, value);
}
// Reads a counter that others change meanwhile.
HGEMM_DEVICE uint32_t ld_global_relaxed(uint32_t const* counter) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// ---- Asynchronous copies ------------------------------------------------------------------------------------------

// Copies BYTES (4, 8 or 16) from global to shared memory. If `valid` is false, it reads nothing and writes zeros.
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

// Waits until at most PENDING of this thread's committed groups are in flight.
template <int PENDING>
HGEMM_DEVICE void cp_async_wait() {
  cute::cp_async_wait<PENDING>();
}

// The value of the lane whose index differs in these bits.
HGEMM_DEVICE uint32_t shuffle_xor(uint32_t value, int bits) { return __shfl_xor_sync(0xffffffff, value, bits); }
HGEMM_DEVICE float shuffle_xor(float value, int bits) { return __shfl_xor_sync(0xffffffff, value, bits); }
// The value of another lane.
HGEMM_DEVICE uint32_t shuffle(uint32_t value, int lane) { return __shfl_sync(0xffffffff, value, lane); }
HGEMM_DEVICE uint64_t shuffle(uint64_t value, int lane) {
  return shuffle(uint32_t(value), lane) | uint64_t(shuffle(uint32_t(value >> 32), lane)) << 32;
}

// ---- Plain loads and stores ---------------------------------------------------------------------------------------

template <class T>
HGEMM_DEVICE T ld_global(T const* pointer) {
  __builtin_assume(__isGlobal(pointer));  // in loops the compiler forgets it
  return *pointer;
}
// Tells the compiler that a pointer, which was loaded from memory, is one to global memory.
template <class T>
HGEMM_DEVICE T* as_global(T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}
// Bypasses the L1 cache, for data that another CTA of this launch wrote.
HGEMM_DEVICE Vec16B ld_global_l2(Vec16B const* pointer) {
  uint4 const word = __ldcg(reinterpret_cast<uint4 const*>(pointer));
  return {word.x, word.y, word.z, word.w};
}
HGEMM_DEVICE float ld_global_l2(float const* pointer) { return __ldcg(pointer); }
// The same. If `valid` is false, it reads nothing and returns zeros.
HGEMM_DEVICE Vec16B ld_global_l2(Vec16B const* pointer, bool valid) {
  Vec16B word;
  asm volatile("{ .reg .pred valid; setp.ne.u32 valid, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
               "@valid ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
               : "l"(pointer), "r"(uint32_t(valid)));
  return word;
}
// Leaves no copy in the L1 cache, for data that an SM reads once. If `valid` is false, it reads nothing and returns zeros.
template <int COUNT>
HGEMM_DEVICE Vec<uint32_t, COUNT> ld_global_once(Vec<uint32_t, COUNT> const* pointer, bool valid) {
  Vec<uint32_t, COUNT> words;
  uint32_t(&word)[COUNT] = words.element;
  if constexpr (COUNT == 4) {
    asm volatile("{ .reg .pred valid; setp.ne.u32 valid, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
                 "@valid ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(word[0]), "=&r"(word[1]), "=&r"(word[2]), "=&r"(word[3])
                 : "l"(pointer), "r"(uint32_t(valid)));
  } else if constexpr (COUNT == 2) {
    asm volatile("{ .reg .pred valid; setp.ne.u32 valid, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;\n"
                 "@valid ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2]; }"
                 : "=&r"(word[0]), "=&r"(word[1])
                 : "l"(pointer), "r"(uint32_t(valid)));
  } else {
    static_assert(COUNT == 1, "a vector has 4, 8 or 16 bytes");
    asm volatile("{ .reg .pred valid; setp.ne.u32 valid, %2, 0; mov.u32 %0, 0;\n"
                 "@valid ld.global.L1::no_allocate.L2::128B.u32 %0, [%1]; }"
                 : "=&r"(word[0])
                 : "l"(pointer), "r"(uint32_t(valid)));
  }
  return words;
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

// Loads four 8x8 matrices of 2-byte elements. Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes).
// TRANSPOSE gives each lane the elements of the transposed matrices.
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x4(void const* row, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3) {
  auto const& source = *static_cast<cute::uint128_t const*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM75_U16x8_LDSM_T::copy(source, r0, r1, r2, r3);
  } else {
    cute::SM75_U32x4_LDSM_N::copy(source, r0, r1, r2, r3);
  }
}
// Loads two 8x8 matrices; lanes 0 to 15 give the addresses.
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x2(void const* row, uint32_t& r0, uint32_t& r1) {
  auto const& source = *static_cast<cute::uint128_t const*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM75_U16x4_LDSM_T::copy(source, r0, r1);
  } else {
    cute::SM75_U32x2_LDSM_N::copy(source, r0, r1);
  }
}

// Transposes an 8x8 matrix of 2-byte elements. Lane l has two of them: row l / 4, columns l % 4 * 2 and the next.
HGEMM_DEVICE uint32_t transposed(uint32_t pair) {
  uint32_t result;
  cute::SM75_U32x1_MOVM_T::copy(pair, result);
  return result;
}

// ---- Tensor cores -------------------------------------------------------------------------------------------------

// d (16, 8) += a (16, k) b (k, 8), by one warp. Registers of a lane: a 4, b 2, d 4 floats or 2 pairs of halves. k is 16 for
// halves and 8 for tf32. K is the depth of the instruction: with K = 8, two instructions make the 16 of halves.
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

}  // namespace atoms
}  // namespace hgemm
