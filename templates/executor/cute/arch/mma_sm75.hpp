// Replaces CuTe's mma of sm_75 on the host. The instruction that our kernels use goes to the executor.
#pragma once

#include <common/atoms.cuh>

#define SM75_16x8x8_F32F16F16F32_TN GENUINE_16x8x8_F32F16F16F32_TN
#include_next <cute/arch/mma_sm75.hpp>
#undef SM75_16x8x8_F32F16F16F32_TN

namespace cute {

// d (16, 8) = a (16, 8) * b (8, 8) + c (16, 8), by one warp. The executor runs m16n8k16 with zeros in the second half of k.
struct SM75_16x8x8_F32F16F16F32_TN {
  using DRegisters = float[4];
  using ARegisters = uint32_t[2];
  using BRegisters = uint32_t[1];
  using CRegisters = float[4];

  static void fma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t b0, float c0, float c1, float c2,
                  float c3) {
    float accumulators[4] = {c0, c1, c2, c3};
    uint32_t const a[4] = {a0, a1, 0, 0}, b[2] = {b0, 0};
    auto product = hgemm::atoms::operation(hgemm::executor::Kind::mma, hgemm::executor::here());
    product.flag = false;
    product.in = hgemm::executor::Element::f16;
    product.acc = hgemm::executor::Element::f32;
    product.number = 8;
    product.to = accumulators;
    product.from = a;
    product.second = b;
    hgemm::executor::perform(product);
    d0 = accumulators[0], d1 = accumulators[1], d2 = accumulators[2], d3 = accumulators[3];
  }
};

}  // namespace cute
