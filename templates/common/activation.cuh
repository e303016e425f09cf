// Activations. Each is one struct, applied to a float before D is rounded. To add one, add a line at the end.
#pragma once

#include <common/types.cuh>

namespace hgemm {

// The upper tail of the normal distribution, P(X > |x|), as 2 to a polynomial. Its last coefficient is -1, so that the tail is 1/2 at 0.
// The relative error is at most 2e-5 up to 2 and 5e-5 up to 3, and the absolute error 7e-8 from 3 on. That is the accuracy of
// (1 - erf(|x| / sqrt(2))) / 2 in f32 there. From 9 on, the tail falls to 0.
HGEMM_DEVICE float normal_tail(float x) {
  float const size = atoms::absolute(x);
  float sum = -0.00043650338f;
  sum = sum * size + 0.0068418495f;
  sum = sum * size - 0.051318862f;
  sum = sum * size - 0.46032888f;
  sum = sum * size - 1.1508074f;
  sum = sum * size - 1.f;
  return atoms::exp2_approx(sum);
}

// x P(X < x). Arithmetic chooses between the tail and 1 - tail, without a predicate.
HGEMM_DEVICE float gelu_of(float x) { return x * atoms::absolute(atoms::saturate(x * 1e38f) - normal_tail(x)); }
// The same of 2 h, with one instruction less: h + abs(h) (1 - 2 tail). The polynomial of abs(h) is that of the tail, times 2.
HGEMM_DEVICE float gelu_of_half(float h) {
  float const size = atoms::absolute(h);
  float sum = -0.013968108f;
  sum = sum * size + 0.10946959f;
  sum = sum * size - 0.4105509f;
  sum = sum * size - 1.8413155f;
  sum = sum * size - 2.3016148f;
  return h + size * (1.f - atoms::exp2_approx(sum * size));
}
HGEMM_DEVICE float silu_of(float x) { return x * atoms::rcp_approx(1.f + atoms::exp2_approx(-1.44269504f * x)); }

namespace activation {

struct none { HGEMM_DEVICE static float apply(float x) { return x; } };
struct relu { HGEMM_DEVICE static float apply(float x) { return x < 0.f ? 0.f : x; } };  // NaN stays NaN
struct gelu { HGEMM_DEVICE static float apply(float x) { return gelu_of(x); } };
struct silu { HGEMM_DEVICE static float apply(float x) { return silu_of(x); } };
struct leaky_relu { HGEMM_DEVICE static float apply(float x) { return x < 0.f ? 0.01f * x : x; } };

}  // namespace activation
}  // namespace hgemm
