// Stands in for CuTe's <cute/config.hpp> in front of CuTe's atoms: the macros that <cute/arch/*.hpp> uses, and no more.
// The genuine header and what it brings cost 0.6 s of parsing and 120 KB of device symbols in each kernel under NVRTC.
// Leave templates/cute_lean off the include path to compile with the genuine headers: the machine code is the same (tested).
#pragma once

#define CUTE_HOST_DEVICE __forceinline__ __host__ __device__
#define CUTE_DEVICE __forceinline__ __device__
#define CUTE_HOST __forceinline__ __host__

#define CUTE_INVALID_CONTROL_PATH(message) __trap()

#if defined(__CUDACC_RTC__)
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using int8_t = signed char;
using int32_t = int;
using int64_t = long long;
#else
#include <cstdint>
#endif
