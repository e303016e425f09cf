// Replaces CuTe's mma of sm_80 on the host. The instructions that our kernels use go to the executor.
#pragma once

#include <common/atoms.cuh>

#define SM80_16x8x16_F32F16F16F32_TN GENUINE_16x8x16_F32F16F16F32_TN
#define SM80_16x8x16_F16F16F16F16_TN GENUINE_16x8x16_F16F16F16F16_TN
#define SM80_16x8x16_F32BF16BF16F32_TN GENUINE_16x8x16_F32BF16BF16F32_TN
#include_next <cute/arch/mma_sm80.hpp>
#undef SM80_16x8x16_F32F16F16F32_TN
#undef SM80_16x8x16_F16F16F16F16_TN
#undef SM80_16x8x16_F32BF16BF16F32_TN

namespace cute {

// d (16, 8) = a (16, 16) * b (16, 8) + c (16, 8), by one warp.
template <class In>
struct HostMma16816 {
  using DRegisters = float[4];
  using ARegisters = uint32_t[4];
  using BRegisters = uint32_t[2];
  using CRegisters = float[4];

  static void fma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                  uint32_t b1, float c0, float c1, float c2, float c3) {
    float accumulators[4] = {c0, c1, c2, c3};
    uint32_t const a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    hgemm::atoms::mma<In, 16>(accumulators, a, b);
    d0 = accumulators[0], d1 = accumulators[1], d2 = accumulators[2], d3 = accumulators[3];
  }
};

struct SM80_16x8x16_F32F16F16F32_TN : HostMma16816<hgemm::f16> {};
struct SM80_16x8x16_F32BF16BF16F32_TN : HostMma16816<hgemm::bf16> {};

struct SM80_16x8x16_F16F16F16F16_TN {
  using DRegisters = uint32_t[2];
  using ARegisters = uint32_t[4];
  using BRegisters = uint32_t[2];
  using CRegisters = uint32_t[2];

  static void fma(uint32_t& d0, uint32_t& d1, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                  uint32_t c0, uint32_t c1) {
    uint32_t accumulators[2] = {c0, c1};
    uint32_t const a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    hgemm::atoms::mma<hgemm::f16, 16>(accumulators, a, b);
    d0 = accumulators[0], d1 = accumulators[1];
  }
};

}  // namespace cute
