// One warp's sums: what mma.sync adds up in, and how a lane sees them.
#pragma once

#include <hgemm/atoms_wmma.cuh>

namespace hgemm {

// What mma.sync adds up in: floats, halves, or halves that are added to floats after each k-tile.
enum class Accumulate { f32, f16, f16_promoted };

// One warp's part of D: (mma_m, mma_n) pieces of 16 x 8, of which a lane holds 4 elements, at rows lane / 4 and
// lane / 4 + 8 and columns lane % 4 * 2 and the next.
template <class Policy>
struct Accumulators {
  static constexpr bool in_halves = Policy::accumulate != Accumulate::f32;
  static constexpr bool in_pairs = Policy::accumulate == Accumulate::f16;  // the sums are halves, two a register
  static constexpr bool promoted = Policy::accumulate == Accumulate::f16_promoted;
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;

  uint32_t halves[in_halves ? mma_m : 1][in_halves ? mma_n : 1][2];                 // (mma_m, mma_n), 2 registers
  float floats[Policy::accumulate == Accumulate::f16 ? 1 : mma_m]
              [Policy::accumulate == Accumulate::f16 ? 1 : mma_n][4];               // (mma_m, mma_n), 4 registers

  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        if constexpr (in_halves) halves[i][j][0] = halves[i][j][1] = 0;
        if constexpr (Policy::accumulate != Accumulate::f16) {
          floats[i][j][0] = floats[i][j][1] = floats[i][j][2] = floats[i][j][3] = 0.f;
        }
      }
    }
  }

  HGEMM_DEVICE void multiply(int i, int j, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
    if constexpr (in_halves) {
      atoms::mma<typename Policy::In, Policy::mma_k>(halves[i][j], a, b);
    } else {
      atoms::mma<typename Policy::In, Policy::mma_k>(floats[i][j], a, b);
    }
  }

  // The same of fragments of WMMA, whose sums are the pieces (i, 2 j) and (i, 2 j + 1).
  template <int REGISTERS>
  HGEMM_DEVICE void multiply(int i, int j, uint32_t const (&a)[REGISTERS], uint32_t const (&b)[REGISTERS]) {
    using In = typename Policy::In;
    constexpr bool a_by_rows = Policy::A::k_major, b_by_rows = !Policy::B::k_major;
    if constexpr (in_halves) {
      atoms::wmma<In, a_by_rows, b_by_rows, Policy::mma_k>(halves[i][2 * j], halves[i][2 * j + 1], a, b);
    } else {
      atoms::wmma<In, a_by_rows, b_by_rows, Policy::mma_k>(floats[i][2 * j], floats[i][2 * j + 1], a, b);
    }
  }

  // Moves what a k-tile added up in halves over to the floats.
  HGEMM_DEVICE void promote() {
    if constexpr (promoted) {
      HGEMM_UNROLL
      for (int i = 0; i < mma_m; ++i) {
        HGEMM_UNROLL
        for (int j = 0; j < mma_n; ++j) {
          HGEMM_UNROLL
          for (int r = 0; r < 2; ++r) {
            floats[i][j][2 * r] += atoms::low_half(halves[i][j][r]);
            floats[i][j][2 * r + 1] += atoms::high_half(halves[i][j][r]);
            halves[i][j][r] = 0;
          }
        }
      }
    }
  }

  // Element e of a lane's 4 of piece (i, j), as a float.
  HGEMM_DEVICE float value(int i, int j, int e) const {
    if constexpr (Policy::accumulate == Accumulate::f16) {
      return e % 2 == 0 ? atoms::low_half(halves[i][j][e / 2]) : atoms::high_half(halves[i][j][e / 2]);
    } else {
      return floats[i][j][e];
    }
  }
};

}  // namespace hgemm
