// Replaces CuTe's <cute/config.hpp> in front of CuTe's atoms: only the macros that <cute/arch/*.hpp> uses.
// The original and the headers that it includes cost 0.6 s of parsing and 120 KB of device symbols per kernel under NVRTC.
// Leave templates/cute_lean off the include path to compile with the originals: the machine code is the same (tested).
#pragma once

#define CUTE_HOST_DEVICE __forceinline__ __host__ __device__
#define CUTE_DEVICE __forceinline__ __device__
#define CUTE_HOST __forceinline__ __host__

// nvcc also compiles functions of host and device for the host, where __trap does not exist.
#if defined(__CUDA_ARCH__)
#define CUTE_INVALID_CONTROL_PATH(message) __trap()
#else
#define CUTE_INVALID_CONTROL_PATH(message) ((void)0)
#endif

#if defined(__CUDACC_RTC__)
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using int8_t = signed char;
using int32_t = int;
using int64_t = long long;
#else
#include <cassert>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

// <cute/arch/copy_sm90_desc.hpp> names these types in functions for the host. nvcc parses them; no kernel uses them.
namespace cute {
using std::is_same_v;
struct half_t;
struct bfloat16_t;
struct tfloat32_t;
struct float_e2m1_t;
struct float_e2m3_t;
struct float_e3m2_t;
struct float_e4m3_t;
struct float_e5m2_t;
struct float_ue8m0_t;
struct type_erased_dynamic_float4_t;
struct type_erased_dynamic_float6_t;
struct type_erased_dynamic_float8_t;
namespace detail {
struct float_e2m1_unpacksmem_t;
struct float_e2m3_unpacksmem_t;
struct float_e3m2_unpacksmem_t;
struct type_erased_dynamic_float4_unpacksmem_t;
struct type_erased_dynamic_float6_unpacksmem_t;
}  // namespace detail
}  // namespace cute
#endif
