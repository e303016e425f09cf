// Activations. Each is one struct, applied to a float before D is rounded. To add one, add a line at the end.
#pragma once

#include <common/types.cuh>

namespace hgemm {

// The upper tail of the normal distribution, P(X > |x|), as 2 to a polynomial. The coefficients were fitted for |x| <= 9. The absolute
// error is at most 3e-7 (1 + |x|) / |x|, the relative error from 2 to 9 at most 1.9e-4. Beyond 9, it falls to 0.
HGEMM_DEVICE float normal_tail(float x) {
  float const size = atoms::absolute(x);
  float sum = -1.2506582e-06f;
  sum = sum * size + 4.8814753e-05f;
  sum = sum * size - 0.00082465605f;
  sum = sum * size + 0.008095453f;
  sum = sum * size - 0.053186417f;
  sum = sum * size - 0.45913273f;
  sum = sum * size - 1.151018f;
  sum = sum * size - 1.000019f;
  return atoms::exp2_approx(sum);
}

// x P(X < x). Arithmetic chooses between the tail and 1 - tail, without a predicate.
HGEMM_DEVICE float gelu_of(float x) { return x * atoms::absolute(atoms::saturate(x * 1e38f) - normal_tail(x)); }
HGEMM_DEVICE float silu_of(float x) { return x * atoms::rcp_approx(1.f + atoms::exp2_approx(-1.44269504f * x)); }

namespace activation {

struct none { HGEMM_DEVICE static float apply(float x) { return x; } };
struct relu { HGEMM_DEVICE static float apply(float x) { return x < 0.f ? 0.f : x; } };  // NaN stays NaN
struct gelu { HGEMM_DEVICE static float apply(float x) { return gelu_of(x); } };
struct silu { HGEMM_DEVICE static float apply(float x) { return silu_of(x); } };
struct leaky_relu { HGEMM_DEVICE static float apply(float x) { return x < 0.f ? 0.01f * x : x; } };

}  // namespace activation
}  // namespace hgemm
