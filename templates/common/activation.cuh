// Activations. Each is one struct, applied to a float before D is rounded. To add one, add a line at the end.
#pragma once

#include <common/types.cuh>

namespace hgemm {

// log2(2 P(X > STEP * size)) for a normal X, as a polynomial of size >= 0: both tails of the normal distribution. STEP is a power of 2.
// The tail P(X > x) has a relative error of at most 2e-5 up to 2 and 5e-5 up to 3, and an absolute error of 7e-8 from 3 on. That is
// the accuracy of (1 - erf(x / sqrt(2))) / 2 in f32 there. From 9 on, the tail falls to 0.
template <int STEP>
HGEMM_DEVICE float log2_of_tails(float size) {
  constexpr float step = STEP;
  float sum = step * step * step * step * step * -0.00043650338f;
  sum = sum * size + step * step * step * step * 0.0068418495f;
  sum = sum * size - step * step * step * 0.051318862f;
  sum = sum * size - step * step * 0.46032888f;
  sum = sum * size - step * 1.1508074f;
  return sum * size;
}

// x P(X < x). Arithmetic chooses between the tail and 1 - tail, without a predicate.
HGEMM_DEVICE float gelu_of(float x) {
  float const is_positive = atoms::saturate(x * 1e38f);  // 1 or 0
  float const tail = atoms::exp2_approx(log2_of_tails<1>(atoms::absolute(x)) - 1.f);
  return x * atoms::absolute(is_positive - tail);
}
// gelu(2 h) as h + |h| (1 - 2 tail): one instruction less than gelu_of.
HGEMM_DEVICE float gelu_of_half(float h) {
  float const size = atoms::absolute(h);
  return h + size * (1.f - atoms::exp2_approx(log2_of_tails<2>(size)));
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
