// Activations. Each is one struct, applied to a float before D is rounded. To add one, add a line at the end.
#pragma once

#include <common/types.cuh>

namespace hgemm {

// The upper tail of the normal distribution, P(X > |x|) = t P(t) exp(-x^2 / 2) with t = 1 / (1 + 0.29 |x|), after Hastings.
// The coefficients were fitted: the absolute error is at most 4.4e-8 / |x|, the relative error at most 1.4e-4. It takes half
// as many instructions as erff.
HGEMM_DEVICE float normal_tail(float x) {
  float const t = atoms::rcp_approx(1.f + 0.29f * atoms::absolute(x));
  float const root = 0.8493218f * x;  // root^2 = x^2 / 2 * log2(e)
  float sum = -0.0902636424f;
  sum = sum * t + 0.290165365f;
  sum = sum * t - 0.10063342f;
  sum = sum * t + 0.184518576f;
  sum = sum * t + 0.0991741493f;
  sum = sum * t + 0.117039025f;
  return sum * (t * atoms::exp2_approx(-root * root));
}

HGEMM_DEVICE float gelu_of(float x) { return x * (x > 0.f ? 1.f - normal_tail(x) : normal_tail(x)); }
HGEMM_DEVICE float silu_of(float x) { return x * atoms::rcp_approx(1.f + atoms::exp2_approx(-1.44269504f * x)); }

namespace activation {

struct none { HGEMM_DEVICE static float apply(float x) { return x; } };
struct relu { HGEMM_DEVICE static float apply(float x) { return x < 0.f ? 0.f : x; } };  // NaN stays NaN
struct gelu { HGEMM_DEVICE static float apply(float x) { return gelu_of(x); } };
struct silu { HGEMM_DEVICE static float apply(float x) { return silu_of(x); } };
struct leaky_relu { HGEMM_DEVICE static float apply(float x) { return x < 0.f ? 0.01f * x : x; } };

}  // namespace activation
}  // namespace hgemm
