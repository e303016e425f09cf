// Two neighbours of a row of a warpgroup's sums, which one lane holds: where they are in D, the loads of their C and bias, and
// their store from registers.
#pragma once

#include <hgemm/epilogue.cuh>

namespace hgemm {

// Numbers of so many bytes, alone and two in a word.
template <int BYTES>
struct BitsOf {
  using One = uint16_t;
  using Two = uint32_t;
};
template <>
struct BitsOf<4> {
  using One = uint32_t;
  using Two = uint64_t;
};

template <class Policy>
struct SumPairs {
  using Out = typename Policy::Out;
  using Bits = typename BitsOf<sizeof(Out)>::One;
  using Word = typename BitsOf<sizeof(Out)>::Two;

  struct Two {
    float x, y;
  };
  // Where they are in D: the first at (m, n), the second one further along n, or along m where operands are swapped.
  struct Pair {
    int m, n;
    bool first_inside, second_inside;
  };

  static constexpr bool paired = !Policy::swapped && Policy::align_d >= 2;  // one access may serve both
  // Whether the bias goes along the sums' columns: then each of a lane's columns has its own, else each of its rows.
  static constexpr bool bias_along_columns = (Policy::bias == Bias::row) != Policy::swapped;

  Problem const& problem;
  int thread;  // in the warpgroup

  // One of a lane's 4 sums of 8 columns.
  template <int REGISTERS>
  HGEMM_DEVICE static float sum(uint32_t const (&bits)[REGISTERS], int e) {
    if constexpr (REGISTERS == 2) {
      return e % 2 == 0 ? atoms::low_half(bits[e / 2]) : atoms::high_half(bits[e / 2]);
    } else {
      return atoms::bits_float(bits[e]);
    }
  }

  // Where the sums of row `half` of column group j of a turn are, among D's rows and columns or, swapped, its columns and rows.
  template <class Turn>
  HGEMM_DEVICE int row(Turn const& turn, int half) const {
    return turn.row_first + thread / 32 * 16 + thread % 32 / 4 + half * 8;
  }
  template <class Turn>
  HGEMM_DEVICE int column(Turn const& turn, int j) const {
    return turn.column_first + j * 8 + thread % 4 * 2;
  }
  HGEMM_DEVICE int rows() const { return Policy::swapped ? problem.n : problem.m; }
  HGEMM_DEVICE int columns() const { return Policy::swapped ? problem.m : problem.n; }

  // The pair there.
  template <class Turn>
  HGEMM_DEVICE Pair at(Turn const& turn, int j, int half) const {
    int const row = this->row(turn, half), column = this->column(turn, j);
    return {Policy::swapped ? column : row, Policy::swapped ? row : column, row < rows() && column < columns(),
            row < rows() && column + 1 < columns()};
  }

  HGEMM_DEVICE Out const* c_at(Pair const& at, int batch) const {
    return static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c + at.m * problem.ldc + at.n;
  }
  HGEMM_DEVICE int64_t c_step() const { return Policy::swapped ? problem.ldc : 1; }

  // ---- Loads of C and of the bias: bits, and no branches, so that those of a turn are under way at once ------------

  // C of a turn of COUNT groups of 8 columns, (COUNT), of the upper and the lower row.
  template <int COUNT>
  struct TurnC {
    Word words[COUNT][2][paired ? 1 : 2];

    HGEMM_DEVICE float number(int j, int e) const {
      if constexpr (paired) {  // the lower half of a word is the left one
        return SumPairs::number(static_cast<Bits>(words[j][e / 2][0] >> 8 * sizeof(Out) * (e % 2)));
      } else {
        return SumPairs::number(static_cast<Bits>(words[j][e / 2][e % 2]));
      }
    }
  };

  // The bias of a turn: of a lane's two columns of each group, or of its upper and lower row.
  template <int COUNT>
  struct TurnBias {
    Bits bits[bias_along_columns ? COUNT : 1][2];

    HGEMM_DEVICE float number(int j, int e) const {
      return SumPairs::number(bias_along_columns ? bits[j][e % 2] : bits[0][e / 2]);
    }
  };

  template <int COUNT, class Turn>
  HGEMM_DEVICE void load(Turn const& turn, TurnC<COUNT>& c) const {
    HGEMM_UNROLL
    for (int j = 0; j < COUNT; ++j) {
      if (!has<COUNT>(turn, j)) continue;
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) load_c(c.words[j][half], at(turn, j, half), turn.batch);
    }
    if (!paired || columns() % 2 == 0) return;
    HGEMM_UNROLL
    for (int j = 0; j < COUNT; ++j) {  // apart: a load waits for one into the same register, even if predicated off
      if (!has<COUNT>(turn, j)) continue;
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) load_last(c.words[j][half][0], at(turn, j, half), turn.batch);
    }
  }

  template <int COUNT, class Turn>
  HGEMM_DEVICE void load(Turn const& turn, TurnBias<COUNT>& bias) const {
    Out const* const first = static_cast<Out const*>(problem.bias) + turn.batch * problem.batch_stride_bias;
    HGEMM_UNROLL
    for (int j = 0; j < (bias_along_columns ? COUNT : 1); ++j) {
      if (bias_along_columns && !has<COUNT>(turn, j)) continue;
      HGEMM_UNROLL
      for (int e = 0; e < 2; ++e) {
        int const index = bias_along_columns ? column(turn, j) + e : row(turn, e);
        bias.bits[j][e] = 0;
        if (index < (bias_along_columns ? columns() : rows())) bias.bits[j][e] = load_bits(first + index);
      }
    }
  }

  // Whether a turn has a group of columns: the last one of a tile may have fewer.
  template <int COUNT, class Turn>
  HGEMM_DEVICE static bool has(Turn const& turn, int j) {
    return Policy::tile_n % (COUNT * 8) == 0 || j < turn.count / 8;
  }

  template <int WORDS>
  HGEMM_DEVICE void load_c(Word (&words)[WORDS], Pair const& at, int batch) const {
    Out const* const c = c_at(at, batch);
    HGEMM_UNROLL
    for (Word& word : words) word = 0;
    if constexpr (WORDS == 1) {
      if (at.second_inside) words[0] = atoms::ld_global(reinterpret_cast<Word const*>(c));
    } else {
      if (at.first_inside) words[0] = load_bits(c);
      if (at.second_inside) words[1] = load_bits(c + c_step());
    }
  }
  HGEMM_DEVICE void load_last(Word& word, Pair const& at, int batch) const {
    if (at.first_inside && !at.second_inside) word = load_bits(c_at(at, batch));
  }
  HGEMM_DEVICE static Bits load_bits(Out const* from) { return atoms::ld_global(reinterpret_cast<Bits const*>(from)); }
  HGEMM_DEVICE static float number(Bits bits) { return atoms::to_float(atoms::from_bits<Out>(bits)); }

  // ---- Stores -----------------------------------------------------------------------------------------------------

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
