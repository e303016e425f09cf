// Functions of one machine instruction, or a few, for expressions.
#pragma once

#include <common/types.cuh>

namespace hgemm::atoms {

// x / y with an error of 2 units in the last place, for all numbers.
HGEMM_DEVICE float div_full(float x, float y) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

// log2(x), with an error of 2^-22: absolute between 0.5 and 2, relative elsewhere. Subnormal numbers count as 0.
HGEMM_DEVICE float log2_approx(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The root of x and its inverse, with relative errors of 2^-23 and 2^-22. Subnormal numbers count as 0.
HGEMM_DEVICE float sqrt_approx(float x) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
HGEMM_DEVICE float rsqrt_approx(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The error function, with an error of 2 units in the last place.
HGEMM_DEVICE float erf(float x) { return erff(x); }

}  // namespace hgemm::atoms
