// Two neighbours of a row of a warpgroup's sums, which one lane holds: where they are in D, alpha * sum + beta * C + bias of
// both, and their store from registers.
#pragma once

#include <hgemm/epilogue.cuh>

namespace hgemm {

template <class Policy>
struct SumPairs {
  using Out = typename Policy::Out;

  struct Two {
    float x, y;
  };
  // Where they are in D: the first at (m, n), the second one further along n, or along m where operands are swapped.
  struct Pair {
    int m, n;
    bool first_inside, second_inside;
  };

  static constexpr bool paired = !Policy::swapped && Policy::align_d >= 2;  // one access may serve both
  // Whether C of a turn is loaded before any of it is taken: of floats a fifth faster, of halves, whose neighbours share a
  // sector of 32 bytes, 4 % slower.
  static constexpr bool c_first = sizeof(Out) == 4;

  Problem const& problem;
  int thread;  // in the warpgroup

  // The sums of the upper or the lower row of a lane's 4.
  template <int REGISTERS>
  HGEMM_DEVICE static Two of(uint32_t const (&bits)[REGISTERS], int half) {
    if constexpr (REGISTERS == 2) {
      return {atoms::low_half(bits[half]), atoms::high_half(bits[half])};
    } else {
      return {atoms::bits_float(bits[2 * half]), atoms::bits_float(bits[2 * half + 1])};
    }
  }

  // The pair of row `half` of column group j of a turn: sums at (row_first, column_first) and on.
  template <class Turn>
  HGEMM_DEVICE Pair at(Turn const& turn, int j, int half) const {
    int const row = turn.row_first + thread / 32 * 16 + thread % 32 / 4 + half * 8;
    int const column = turn.column_first + j * 8 + thread % 4 * 2;
    int const rows = Policy::swapped ? problem.n : problem.m, columns = Policy::swapped ? problem.m : problem.n;
    return {Policy::swapped ? column : row, Policy::swapped ? row : column, row < rows && column < columns,
            row < rows && column + 1 < columns};
  }

  HGEMM_DEVICE Out const* c_at(Pair const& at, int batch) const {
    return static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c + at.m * problem.ldc + at.n;
  }
  HGEMM_DEVICE int64_t c_step() const { return Policy::swapped ? problem.ldc : 1; }

  // Loads what of C is inside.
  HGEMM_DEVICE void load_c(Piece<Out, 2>& old, Pair const& at, int batch) const {
    Out const* const c = c_at(at, batch);
    if (paired && at.second_inside) {
      old = atoms::ld_global(reinterpret_cast<Piece<Out, 2> const*>(c));
    } else {
      if (at.first_inside) old.element[0] = atoms::ld_global(c);
      if (at.second_inside) old.element[1] = atoms::ld_global(c + c_step());
    }
  }

  // alpha * sum + beta * C + bias of both; of C what was loaded, where that was done first.
  template <bool ADDS_C>
  HGEMM_DEVICE Two finish(Two const& sums, Piece<Out, 2> const& old, Pair const& at, int batch) const {
    Two two = {problem.alpha * sums.x, problem.alpha * sums.y};
    if constexpr (ADDS_C && c_first) {
      if (at.first_inside) two.x += problem.beta * atoms::to_float(old.element[0]);
      if (at.second_inside) two.y += problem.beta * atoms::to_float(old.element[1]);
    } else if constexpr (ADDS_C) {
      Out const* const c = c_at(at, batch);
      if (paired && at.second_inside) {
        Piece<Out, 2> const both = atoms::ld_global(reinterpret_cast<Piece<Out, 2> const*>(c));
        two.x += problem.beta * atoms::to_float(both.element[0]);
        two.y += problem.beta * atoms::to_float(both.element[1]);
      } else {
        if (at.first_inside) two.x += problem.beta * atoms::to_float(atoms::ld_global(c));
        if (at.second_inside) two.y += problem.beta * atoms::to_float(atoms::ld_global(c + c_step()));
      }
    }
    if constexpr (Policy::bias != Bias::none) {
      constexpr bool along_n = Policy::bias == Bias::row;
      Out const* const bias = static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias;
      Out const* const first = bias + (along_n ? at.n : at.m);
      if (at.first_inside) two.x += atoms::to_float(atoms::ld_global(first));
      if (at.second_inside) two.y += atoms::to_float(atoms::ld_global(first + (along_n != Policy::swapped ? 1 : 0)));
    }
    return two;
  }

  HGEMM_DEVICE void store(Two const& two, Pair const& at, int batch) const {
    if (!at.first_inside) return;
    Out* const to = static_cast<Out*>(problem.d) + batch * problem.batch_stride_d + at.m * problem.ldd + at.n;
    if (paired && at.second_inside) {
      Piece<Out, 2> const both = {{atoms::from_float<Out>(two.x), atoms::from_float<Out>(two.y)}};
      atoms::st_global(reinterpret_cast<Piece<Out, 2>*>(to), both);
    } else {
      atoms::st_global(to, atoms::from_float<Out>(two.x));
      if (at.second_inside) atoms::st_global(to + (Policy::swapped ? problem.ldd : 1), atoms::from_float<Out>(two.y));
    }
  }
};

}  // namespace hgemm
