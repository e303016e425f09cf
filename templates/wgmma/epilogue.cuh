// A warpgroup's accumulators to D: activation(alpha * accumulator + beta * C + bias). D goes through shared memory and the TMA,
// or each thread stores its own elements.
#pragma once

#include <common/activation.cuh>
#include <common/reduction.cuh>
#include <common/scheduler.cuh>
#include <common/tma_pipeline.cuh>

namespace hgemm {

// ---- Pairs: two neighbours of a row of accumulators, which one lane holds -----------------------------------------

// The bits of a number of so many bytes, and of a pair of them. The lower half of a pair's bits is the left number.
template <int BYTES>
struct BitsOf {
  using Bits = uint16_t;
  using PairBits = uint32_t;
};
template <>
struct BitsOf<4> {
  using Bits = uint32_t;
  using PairBits = uint64_t;
};

// Halves the number of type T in a word, or both numbers of a pair.
template <class T, class Word>
HGEMM_DEVICE Word halved(Word word) {
  using Bits = typename BitsOf<sizeof(T)>::Bits;
  constexpr int shift = sizeof(Word) > sizeof(Bits) ? 8 * sizeof(T) : 0;  // of the second number
  float const first = 0.5f * atoms::to_float(atoms::from_bits<T>(static_cast<Bits>(word)));
  float const second = 0.5f * atoms::to_float(atoms::from_bits<T>(static_cast<Bits>(word >> shift)));
  if constexpr (sizeof(T) == 2) {
    return static_cast<Word>(atoms::pack<T>(first, second));
  } else {
    return atoms::float_bits(first) | (shift ? Word(atoms::float_bits(second)) << shift : 0);
  }
}

// ---- Subtiles of D in shared memory -------------------------------------------------------------------------------

HGEMM_DEVICE constexpr int common_divisor(int x, int y) { return y == 0 ? x : common_divisor(y, x % y); }

// A subtile is (64, columns) of D. The TMA stores it in boxes (64, box_width); with swap_ab in boxes (box_columns, 64), one after
// another: one box, unless a tile's last subtile is narrower.
template <class Policy>
struct StagedSubtile {
  using Out = typename Policy::Out;

  static constexpr bool by_tma = Policy::store == Store::tma;
  static constexpr int columns = Policy::epilogue_columns;
  static constexpr int tile_columns = Policy::tile_n / accumulators_of<Policy>;
  static constexpr int last_columns = tile_columns - (tile_columns - 1) / columns * columns;  // of a tile's last subtile

  static constexpr int box_columns = common_divisor(columns, last_columns);
  // A box has rows of `box_width` elements along D's n: 128, 64, 32 or 16 bytes.
  static constexpr int box_width = Policy::store_columns;
  static constexpr int box_row_bytes = box_width * sizeof(Out);
  static constexpr int box_bytes = (Policy::swap_ab ? columns : 64) * box_row_bytes;

  static constexpr int groups = Policy::swap_ab || !by_tma ? columns / 8 : box_width / 8;  // of 8 columns in a box
  // Groups finished at a time: two, unless a subtile may end after the first of them.
  static constexpr int step = groups % 2 == 0 && last_columns % 16 == 0 ? 2 : 1;

  // Byte offset of the 16-byte vector `along` of a box's row, as the TMA swizzles boxes of this width.
  HGEMM_DEVICE static int offset(int row, int along) {
    int const bytes = row * box_row_bytes + along * 16;
    return bytes ^ (bytes >> 3 & (box_row_bytes - 16));
  }
  // Byte offset of a row of 8 columns: those of group j.
  HGEMM_DEVICE static int of_group(int row, int j) { return j / groups * box_bytes + offset(row, j % groups); }
};

// ---- Inputs of the epilogue -----------------------------------------------------------------------------------------

// Where pairs are in D, the loads of their C and bias, and their store from registers.
template <class Policy>
struct AccumulatorPairs {
  using Out = typename Policy::Out;
  using Bits = typename BitsOf<sizeof(Out)>::Bits;
  using PairBits = typename BitsOf<sizeof(Out)>::PairBits;

  struct FloatPair {
    float x, y;
  };
  // A pair's place in D: the first element at (m, n), the second next to it along n, or along m with swap_ab.
  struct Pair {
    int m, n;
    bool first_inside, second_inside;
  };

  static constexpr bool paired = !Policy::swap_ab && Policy::align_d >= 2;  // one access may move both

  Problem const& problem;
  int thread;  // in the warpgroup

  // One of a lane's 4 accumulators of 8 columns, from 4 floats or 2 pairs of halves.
  template <int REGISTERS>
  HGEMM_DEVICE static float accumulator(uint32_t const (&bits)[REGISTERS], int e) {
    if constexpr (REGISTERS == 2) {
      return e % 2 == 0 ? atoms::low_half(bits[e / 2]) : atoms::high_half(bits[e / 2]);
    } else {
      return atoms::bits_float(bits[e]);
    }
  }

  // The row `half` and the column group j of a subtile, in D's rows and columns; with swap_ab in D's columns and rows.
  template <class Subtile>
  HGEMM_DEVICE int row(Subtile const& subtile, int half) const {
    return subtile.row_first + thread / 32 * 16 + thread % 32 / 4 + half * 8;
  }
  template <class Subtile>
  HGEMM_DEVICE int column(Subtile const& subtile, int j) const {
    return subtile.column_first + j * 8 + thread % 4 * 2;
  }
  HGEMM_DEVICE int rows() const { return Policy::swap_ab ? problem.n : problem.m; }
  HGEMM_DEVICE int columns() const { return Policy::swap_ab ? problem.m : columns_of_d<Policy>(problem); }

  // The pair there.
  template <class Subtile>
  HGEMM_DEVICE Pair at(Subtile const& subtile, int j, int half) const {
    int const row = this->row(subtile, half), column = this->column(subtile, j);
    return {Policy::swap_ab ? column : row, Policy::swap_ab ? row : column, row < rows() && column < columns(),
            row < rows() && column + 1 < columns()};
  }

  // Whether a bias is of this kind. `launch` stands for any, so the problem decides.
  template <Bias BIAS>
  HGEMM_DEVICE bool is(Bias kind) const {
    return BIAS == Bias::launch ? problem.bias_kind == uint32_t(kind) : BIAS == kind;
  }

  // Elements of C and D. Written out, because a call would change the order of instructions for matrices with a stride.
  HGEMM_DEVICE Out const* c_at(Pair const& at, int batch) const {
    if constexpr (has_pointer_arrays<Policy>) {
      bool const used = problem.beta != 0.f;
      return matrix_of<Policy>(static_cast<Out const*>(problem.c), batch, 0, used) + at.m * problem.ldc + at.n;
    } else {
      return static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c + at.m * problem.ldc + at.n;
    }
  }
  HGEMM_DEVICE Out* d_at(Pair const& at, int batch) const {
    if constexpr (has_pointer_arrays<Policy>) {
      return matrix_of<Policy>(static_cast<Out*>(problem.d), batch, 0, true) + at.m * problem.ldd + at.n;
    } else {
      return static_cast<Out*>(problem.d) + batch * problem.batch_stride_d + at.m * problem.ldd + at.n;
    }
  }
  HGEMM_DEVICE int64_t c_step() const { return Policy::swap_ab ? problem.ldc : 1; }

  // ---- Loads of C and bias: as bits, by predicates instead of branches, so that a subtile's loads overlap ----------

  // C of a subtile of COUNT groups of 8 columns.
  template <int COUNT>
  struct SubtileC {
    PairBits words[COUNT][2][paired ? 1 : 2];  // (COUNT, upper and lower row)

    HGEMM_DEVICE float number(int j, int e) const {
      if constexpr (paired) {  // the lower half of a word is the left element
        return AccumulatorPairs::number(static_cast<Bits>(words[j][e / 2][0] >> 8 * sizeof(Out) * (e % 2)));
      } else {
        return AccumulatorPairs::number(static_cast<Bits>(words[j][e / 2][e % 2]));
      }
    }
  };

  // The bias of a subtile: of a lane's two columns of each group, or of its upper and lower row.
  template <int COUNT>
  struct SubtileBias {
    bool along_columns;
    Bits of_columns[COUNT][2], of_rows[2];

    HGEMM_DEVICE float number(int j, int e) const {
      return AccumulatorPairs::number(along_columns ? of_columns[j][e % 2] : of_rows[e / 2]);
    }
  };

  template <int COUNT, class Subtile>
  HGEMM_DEVICE void load(Subtile const& subtile, SubtileC<COUNT>& c) const {
    HGEMM_UNROLL
    for (int j = 0; j < COUNT; ++j) {
      if (!has<COUNT>(subtile, j)) continue;
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) load_c(c.words[j][half], at(subtile, j, half), subtile.batch);
    }
    if (!paired || columns() % 2 == 0) return;
    HGEMM_UNROLL
    for (int j = 0; j < COUNT; ++j) {  // a second loop: a load waits for one to the same register, even a predicated-off one
      if (!has<COUNT>(subtile, j)) continue;
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) load_last(c.words[j][half][0], at(subtile, j, half), subtile.batch);
    }
  }

  template <Bias BIAS, int COUNT, class Subtile>
  HGEMM_DEVICE void load(Subtile const& subtile, SubtileBias<COUNT>& bias) const {
    Out const* const first = static_cast<Out const*>(problem.bias) + subtile.batch * problem.batch_stride_bias;
    bias.along_columns = is<BIAS>(Policy::swap_ab ? Bias::column : Bias::row);
    bool const along_rows = is<BIAS>(Policy::swap_ab ? Bias::row : Bias::column);
    HGEMM_UNROLL
    for (int e = 0; e < 2; ++e) {
      int const index = row(subtile, e);
      bias.of_rows[e] = minus_zero;
      if (along_rows && index < rows()) bias.of_rows[e] = load_bits(first + index);
    }
    HGEMM_UNROLL
    for (int j = 0; j < COUNT; ++j) {
      if (!has<COUNT>(subtile, j)) continue;
      HGEMM_UNROLL
      for (int e = 0; e < 2; ++e) {
        int const index = column(subtile, j) + e;
        bias.of_columns[j][e] = minus_zero;
        if (bias.along_columns && index < columns()) bias.of_columns[j][e] = load_bits(first + index);
      }
    }
  }

  static constexpr Bits minus_zero = Bits(1) << (8 * sizeof(Out) - 1);  // adding it changes no number

  // Whether a subtile has column group j: a tile's last subtile may have fewer.
  template <int COUNT, class Subtile>
  HGEMM_DEVICE static bool has(Subtile const& subtile, int j) {
    return Policy::tile_n / accumulators_of<Policy> % (COUNT * 8) == 0 || j < subtile.count / 8;
  }

  template <int WORDS>
  HGEMM_DEVICE void load_c(PairBits (&words)[WORDS], Pair const& at, int batch) const {
    Out const* const c = c_at(at, batch);
    HGEMM_UNROLL
    for (PairBits& word : words) word = 0;
    if constexpr (WORDS == 1) {
      if (at.second_inside) words[0] = atoms::ld_global(reinterpret_cast<PairBits const*>(c));
    } else {
      if (at.first_inside) words[0] = load_bits(c);
      if (at.second_inside) words[1] = load_bits(c + c_step());
    }
  }
  HGEMM_DEVICE void load_last(PairBits& word, Pair const& at, int batch) const {
    if (at.first_inside && !at.second_inside) word = load_bits(c_at(at, batch));
  }
  HGEMM_DEVICE static Bits load_bits(Out const* from) { return atoms::ld_global(reinterpret_cast<Bits const*>(from)); }
  HGEMM_DEVICE static float number(Bits bits) { return atoms::to_float(atoms::from_bits<Out>(bits)); }

  // ---- Loads of the inputs of an expression -----------------------------------------------------------------------

  template <class Subtile>
  struct SubtileAt {
    AccumulatorPairs const& pairs;
    Subtile const& subtile;
  };

  // A subtile of D, and its boxes. A warp may write its own 16 rows of them.
  template <class Subtile>
  struct ExchangeAt : SubtileAt<Subtile> {
    unsigned char* boxes;
  };

  // Whether a matrix of T is loaded in vectors. The boxes of D then turn them into a lane's pairs.
  template <class T>
  static constexpr bool in_vecs = StagedSubtile<Policy>::by_tma && !Policy::swap_ab && sizeof(Out) == 2 && sizeof(T) == 2 &&
                                  Policy::align_d >= 8 && StagedSubtile<Policy>::step == 2 &&
                                  256 % Policy::epilogue_columns == 0;

  // The inputs of a subtile in the layout of their loads: a lane may hold elements of other lanes.
  template <int COUNT>
  struct LoadedOfSubtile {
    // A scalar, or a row or a column along the rows of accumulators.
    template <AuxKind KIND, class T, int INDEX>
    struct Of {
      using Bits = typename BitsOf<sizeof(T)>::Bits;
      static constexpr bool is_scalar = KIND == AuxKind::scalar;

      Bits bits[is_scalar ? 1 : 2];  // (1) of a scalar, else (upper and lower row)

      template <class Subtile>
      HGEMM_DEVICE void load(SubtileAt<Subtile> const& at) {
        Aux const& aux = aux_of<Policy>(at.pairs.problem)[INDEX];
        if constexpr (is_scalar) {
          bits[0] = atoms::float_bits(aux_scalar(aux, at.subtile.batch));
        } else {
          Bits const* const first = reinterpret_cast<Bits const*>(aux_first<T>(aux, at.subtile.batch));
          HGEMM_UNROLL
          for (int half = 0; half < 2; ++half) {
            int const index = at.pairs.row(at.subtile, half);
            bits[half] = 0;
            if (index < at.pairs.rows()) bits[half] = atoms::ld_global(first + index);
          }
        }
      }
    };

    // A row or a column along the columns of accumulators. Lane l loads pair l of each 64 columns, with one load if the address
    // allows it.
    template <class T, int INDEX>
    struct Of<Policy::swap_ab ? AuxKind::column : AuxKind::row, T, INDEX> {
      using Bits = typename BitsOf<sizeof(T)>::Bits;
      using PairBits = typename BitsOf<sizeof(T)>::PairBits;

      PairBits words[(COUNT + 7) / 8];  // (COUNT / 8), rounded up

      template <class Subtile>
      HGEMM_DEVICE void load(SubtileAt<Subtile> const& at) {
        Bits const* const first = reinterpret_cast<Bits const*>(aux_first<T>(aux_of<Policy>(at.pairs.problem)[INDEX], at.subtile.batch));
        int const columns = at.pairs.columns();
        bool const in_pairs = reinterpret_cast<uint64_t>(first) % sizeof(PairBits) == 0;
        HGEMM_UNROLL
        for (int i = 0; i < (COUNT + 7) / 8; ++i) {
          int const column = at.subtile.column_first + i * 64 + at.pairs.thread % 32 * 2;
          Bits left = 0, right = 0;
          words[i] = 0;
          if (in_pairs && column + 1 < columns) {
            words[i] = atoms::ld_global(reinterpret_cast<PairBits const*>(first + column));
          } else {
            if (column < columns) left = atoms::ld_global(first + column);
            if (column + 1 < columns) right = atoms::ld_global(first + column + 1);
            words[i] = left | PairBits(right) << 8 * sizeof(T);
          }
        }
      }
    };

    // A matrix: a lane's pairs, as those of C.
    template <class T, int INDEX, bool IN_VECS = in_vecs<T>>
    struct OfMatrix {
      using Bits = typename BitsOf<sizeof(T)>::Bits;
      using PairBits = typename BitsOf<sizeof(T)>::PairBits;

      PairBits words[COUNT][2][paired ? 1 : 2];  // (COUNT, upper and lower row)

      HGEMM_DEVICE static Bits const* place(Aux const& aux, Pair const& at, int batch) {
        return reinterpret_cast<Bits const*>(aux_first<T>(aux, batch) + at.m * aux.leading + at.n);
      }

      template <class Subtile>
      HGEMM_DEVICE void load(SubtileAt<Subtile> const& at) {
        Aux const& aux = aux_of<Policy>(at.pairs.problem)[INDEX];
        HGEMM_UNROLL
        for (int i = 0; i < 2 * COUNT; ++i) {
          if (!has<COUNT>(at.subtile, i / 2)) continue;
          Pair const pair = at.pairs.at(at.subtile, i / 2, i % 2);
          Bits const* const from = place(aux, pair, at.subtile.batch);
          PairBits(&here)[paired ? 1 : 2] = words[i / 2][i % 2];
          here[0] = 0;
          if constexpr (paired) {
            if (pair.second_inside) here[0] = atoms::ld_global(reinterpret_cast<PairBits const*>(from));
          } else {
            here[1] = 0;
            if (pair.first_inside) here[0] = atoms::ld_global(from);
            if (pair.second_inside) here[1] = atoms::ld_global(from + (Policy::swap_ab ? aux.leading : 1));
          }
        }
        // The columns of a gated pair are a multiple of 8.
        if (!paired || accumulators_of<Policy> > 1 || at.pairs.columns() % 2 == 0) return;
        int const last = at.pairs.columns() - 1;
        HGEMM_UNROLL
        for (int half = 0; half < 2; ++half) {
          int const row = at.pairs.row(at.subtile, half);
          if (row >= at.pairs.rows() || at.subtile.column_first > last) continue;
          PairBits const alone = atoms::ld_global(place(aux, {row, last, true, false}, at.subtile.batch));
          HGEMM_UNROLL
          for (int j = 0; j < COUNT; ++j) {
            if (at.pairs.column(at.subtile, j) == last) words[j][half][0] = alone;
          }
        }
      }
    };

    // The same, loaded as vectors of 8 columns: the vectors of a warp's 16 rows, row by row. Vectors past the end of D's rows are
    // zeros.
    template <class T, int INDEX>
    struct OfMatrix<T, INDEX, true> {
      Vec16B vecs[COUNT / 2];  // (16 rows / rows)

      static constexpr int rows = 32 / COUNT;  // that a warp loads at a time

      // A lane's first row of the subtile, and its group of 8 columns.
      HGEMM_DEVICE static int row(int thread) { return thread / 32 * 16 + thread % 32 / COUNT; }
      HGEMM_DEVICE static int group(int thread) { return thread % COUNT; }

      template <class Subtile>
      HGEMM_DEVICE void load(SubtileAt<Subtile> const& at) {
        Aux const& aux = aux_of<Policy>(at.pairs.problem)[INDEX];
        int const m = at.subtile.row_first + row(at.pairs.thread), j = group(at.pairs.thread);
        int const n = at.subtile.column_first + j * 8, columns = at.pairs.columns();
        T const* from = aux_first<T>(aux, at.subtile.batch) + m * aux.leading + n;
        bool const whole = has<COUNT>(at.subtile, j) && n + 8 <= columns;
        HGEMM_UNROLL
        for (int i = 0; i < COUNT / 2; ++i) {
          vecs[i] = {0, 0, 0, 0};
          if (whole && m + i * rows < at.pairs.rows()) vecs[i] = atoms::ld_global(reinterpret_cast<Vec16B const*>(from));
          from += rows * aux.leading;
        }
      }

      // Writes this lane's vectors to the boxes of D. Elements at the end of D's rows are copied one by one.
      template <class At>
      HGEMM_DEVICE void write(At const& at) const {
        using Boxes = StagedSubtile<Policy>;
        int const first = row(at.pairs.thread), j = group(at.pairs.thread);
        HGEMM_UNROLL
        for (int i = 0; i < COUNT / 2; ++i) {
          atoms::st_shared(reinterpret_cast<Vec16B*>(at.boxes + Boxes::of_group(first + i * rows, j)), vecs[i]);
        }
        int const n = at.subtile.column_first + j * 8, inside = at.pairs.columns() - n;
        // The columns of a gated pair are a multiple of 8.
        if (accumulators_of<Policy> > 1 || !has<COUNT>(at.subtile, j) || inside <= 0 || inside >= 8) return;
        Aux const& aux = aux_of<Policy>(at.pairs.problem)[INDEX];
        HGEMM_NO_UNROLL
        for (int i = 0; i < COUNT / 2 * 8; ++i) {
          int const r = first + i / 8 * rows, e = i % 8, m = at.subtile.row_first + r;
          if (e >= inside || m >= at.pairs.rows()) continue;
          auto const from = reinterpret_cast<uint16_t const*>(aux_first<T>(aux, at.subtile.batch) + m * aux.leading + n + e);
          atoms::st_shared(reinterpret_cast<uint16_t*>(at.boxes + Boxes::of_group(r, j) + e * 2), atoms::ld_global(from));
        }
      }
    };
    template <class T, int INDEX>
    struct Of<AuxKind::matrix, T, INDEX> : OfMatrix<T, INDEX> {};
  };

  // The same in the layout of accumulators. `exchange` moves them: rows by shuffles, matrices through the boxes of D.
  template <int COUNT>
  struct OfSubtile {
    using Loaded = LoadedOfSubtile<COUNT>;

    template <AuxKind KIND, class T, int INDEX>
    struct Of : Loaded::template Of<KIND, T, INDEX> {
      using From = typename Loaded::template Of<KIND, T, INDEX>;
      using Bits = typename From::Bits;

      template <bool HALVED = false, class At>
      HGEMM_DEVICE void exchange(From const& loaded, At const&) {
        static_cast<From&>(*this) = loaded;
        if constexpr (HALVED) {
          for (Bits& one : From::bits) one = halved<T>(one);
        }
      }

      HGEMM_DEVICE float number(int, int e) const {
        return atoms::to_float(atoms::from_bits<T>(From::bits[From::is_scalar ? 0 : e / 2]));
      }
    };

    template <class T, int INDEX>
    struct Of<Policy::swap_ab ? AuxKind::column : AuxKind::row, T, INDEX> {
      static constexpr AuxKind kind = Policy::swap_ab ? AuxKind::column : AuxKind::row;
      using From = typename Loaded::template Of<kind, T, INDEX>;
      using Bits = typename From::Bits;
      using PairBits = typename From::PairBits;

      PairBits words[COUNT];  // a lane's pair of each group

      template <bool HALVED = false, class At>
      HGEMM_DEVICE void exchange(From const& loaded, At const& at) {
        int const pair = at.pairs.thread % 4;
        HGEMM_UNROLL
        for (int j = 0; j < COUNT; ++j) {
          PairBits const word = HALVED ? halved<T>(loaded.words[j / 8]) : loaded.words[j / 8];
          words[j] = atoms::shuffle(word, j % 8 * 4 + pair);
        }
      }

      HGEMM_DEVICE float number(int j, int e) const {
        return atoms::to_float(atoms::from_bits<T>(static_cast<Bits>(words[j] >> 8 * sizeof(T) * (e % 2))));
      }
    };

    template <class T, int INDEX>
    struct Of<AuxKind::matrix, T, INDEX> {
      using From = typename Loaded::template Of<AuxKind::matrix, T, INDEX>;
      using Bits = typename BitsOf<sizeof(T)>::Bits;
      using PairBits = typename BitsOf<sizeof(T)>::PairBits;

      PairBits words[COUNT][2][paired ? 1 : 2];  // a lane's pairs: (COUNT, upper and lower row)

      template <class At>
      HGEMM_DEVICE void exchange(From const& loaded, At const& at) {
        if constexpr (in_vecs<T>) {
          using Boxes = StagedSubtile<Policy>;
          if constexpr (matrices_of<Policy> > 1) atoms::warp_barrier();  // the pairs of another matrix have been read
          loaded.write(at);
          atoms::warp_barrier();
          int const lane = at.pairs.thread % 32, row = at.pairs.thread / 32 * 16 + lane % 16;
          HGEMM_UNROLL
          for (int j = 0; j < COUNT; j += 2) {
            unsigned char const* const from = at.boxes + j / Boxes::groups * Boxes::box_bytes;
            atoms::ldmatrix_x4<false>(from + Boxes::offset(row, j % Boxes::groups + lane / 16), words[j][0][0], words[j][1][0],
                                      words[j + 1][0][0], words[j + 1][1][0]);
          }
        } else {
          HGEMM_UNROLL
          for (int i = 0; i < 2 * COUNT; ++i) {
            HGEMM_UNROLL
            for (int e = 0; e < (paired ? 1 : 2); ++e) words[i / 2][i % 2][e] = loaded.words[i / 2][i % 2][e];
          }
        }
      }

      HGEMM_DEVICE float number(int j, int e) const {
        PairBits const word = words[j][e / 2][paired ? 0 : e % 2];
        return atoms::to_float(atoms::from_bits<T>(static_cast<Bits>(paired ? word >> 8 * sizeof(T) * (e % 2) : word)));
      }
    };
  };

  // ---- Results of an expression beside D ----------------------------------------------------------------------------

  // Transposes a matrix of 4 x 4 words, of which each of 4 neighbouring lanes has a row.
  HGEMM_DEVICE static void transpose_quad(uint32_t (&words)[4], int lane) {
    HGEMM_UNROLL
    for (int bit = 2; bit > 0; bit /= 2) {
      bool const upper = lane & bit;
      HGEMM_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        uint32_t const received = atoms::shuffle_xor(upper ? words[i] : words[i + bit], bit);
        words[i] = upper ? received : words[i];
        words[i + bit] = upper ? words[i + bit] : received;
      }
    }
  }

  template <int COUNT>
  struct OutOfSubtile {
    template <OutKind KIND, class T, int INDEX, int SLOT>
    struct Of {
      float numbers[COUNT][4];  // (COUNT, a lane's 4 of 8 columns)

      HGEMM_DEVICE void put(float x, int j, int e) { numbers[j][e] = x; }

      template <class Subtile>
      HGEMM_DEVICE void store(SubtileAt<Subtile> const& at) const {
        if constexpr (KIND == OutKind::matrix) {
          Aux const& aux = aux_of<Policy>(at.pairs.problem)[INDEX];
          T* const first = aux_result<T>(aux, at.subtile.batch);
          if constexpr (!Policy::swap_ab && sizeof(T) == 2 && Policy::align_d >= 8 && COUNT % 2 == 0) {
            store_groups(at, first, aux.leading);
          } else {
            HGEMM_UNROLL
            for (int i = 0; i < 2 * COUNT; ++i) {
              if (!has<COUNT>(at.subtile, i / 2)) continue;
              Pair const pair = at.pairs.at(at.subtile, i / 2, i % 2);
              FloatPair const values = {numbers[i / 2][i % 2 * 2], numbers[i / 2][i % 2 * 2 + 1]};
              store_pair(values, pair, first + pair.m * aux.leading + pair.n, aux.leading);
            }
          }
        }
      }

      // Stores whole groups of 8 columns, 16 bytes a lane: the 4 lanes of a row exchange 2 groups of the upper and lower row.
      template <class Subtile>
      HGEMM_DEVICE void store_groups(SubtileAt<Subtile> const& at, T* to, int64_t leading) const {
        int const lane = at.pairs.thread % 4;
        HGEMM_UNROLL
        for (int first = 0; first < COUNT; first += 2) {
          uint32_t words[4];  // (2 groups, upper and lower row)
          HGEMM_UNROLL
          for (int i = 0; i < 4; ++i) {
            float const(&number)[4] = numbers[first + i / 2];
            words[i] = atoms::pack<T>(number[i % 2 * 2], number[i % 2 * 2 + 1]);
          }
          transpose_quad(words, lane);
          int const j = first + lane / 2, row = at.pairs.row(at.subtile, lane % 2);
          int const column = at.subtile.column_first + j * 8, inside = at.pairs.columns() - column;
          if (!has<COUNT>(at.subtile, j) || row >= at.pairs.rows()) continue;
          T* const place = to + row * leading + column;
          if (inside >= 8) {
            atoms::st_global(reinterpret_cast<Vec16B*>(place), Vec16B{words[0], words[1], words[2], words[3]});
          } else if constexpr (accumulators_of<Policy> == 1) {  // a gated pair has multiples of 8 columns
            HGEMM_UNROLL
            for (int e = 0; e < 8; ++e) {
              uint16_t const bits = static_cast<uint16_t>(words[e / 2] >> 16 * (e % 2));
              if (e < inside) atoms::st_global(reinterpret_cast<uint16_t*>(place + e), bits);
            }
          }
        }
      }

      // Reduces a lane's columns of its upper and its lower row, or the rows of the warp for each column.
      template <class Subtile, int ROWS>
      HGEMM_DEVICE void reduce(SubtileAt<Subtile> const& at, LanePartials<Policy> (&partials)[ROWS]) const {
        if constexpr (of_columns(KIND)) {
          int const row_first = at.subtile.row_first + at.pairs.thread / 32 * 16;  // of the warp
          HGEMM_UNROLL
          for (int j = 0; j < COUNT; ++j) {
            if (!has<COUNT>(at.subtile, j)) continue;
            HGEMM_UNROLL
            for (int e = 0; e < 2; ++e) {
              float sum = reduction_start(KIND);
              HGEMM_UNROLL
              for (int half = 0; half < 2; ++half) {
                if (at.pairs.row(at.subtile, half) < at.pairs.rows()) sum = reduced(KIND, sum, numbers[j][half * 2 + e]);
              }
              sum = reduce_octet(KIND, sum);
              int const column = at.pairs.column(at.subtile, j) + e;
              // The lanes with a copy of the sum take turns.
              bool const stores = at.pairs.thread % 32 / 4 == j % 8;
              if (!stores || row_first >= at.pairs.rows() || column >= at.pairs.columns()) continue;
              using Numbers = ReductionPartials<Policy, Policy::tile_n>;
              int const segment = row_first / Numbers::segment_rows;
              atoms::st_global(Numbers::of_column(at.pairs.problem, SLOT, at.subtile.batch, segment, column), sum);
            }
          }
        } else if constexpr (KIND != OutKind::matrix) {
          HGEMM_UNROLL
          for (int j = 0; j < COUNT; ++j) {
            if (!has<COUNT>(at.subtile, j)) continue;
            HGEMM_UNROLL
            for (int e = 0; e < 4; ++e) {
              float& sum = partials[e / 2].sum[SLOT];
              if (at.pairs.column(at.subtile, j) + e % 2 < at.pairs.columns()) sum = reduced(KIND, sum, numbers[j][e]);
            }
          }
        }
      }
    };
  };

  // ---- Store ------------------------------------------------------------------------------------------------------

  // Stores a pair to a matrix of any type.
  template <class T>
  HGEMM_DEVICE static void store_pair(FloatPair const& values, Pair const& at, T* to, int64_t leading) {
    if (!at.first_inside) return;
    if (paired && at.second_inside) {
      Vec<T, 2> const both = {{atoms::from_float<T>(values.x), atoms::from_float<T>(values.y)}};
      atoms::st_global(reinterpret_cast<Vec<T, 2>*>(to), both);
    } else {
      atoms::st_global(to, atoms::from_float<T>(values.x));
      if (at.second_inside) atoms::st_global(to + (Policy::swap_ab ? leading : 1), atoms::from_float<T>(values.y));
    }
  }

  HGEMM_DEVICE void store(FloatPair const& values, Pair const& at, int batch) const {
    if (!at.first_inside) return;
    Out* const to = d_at(at, batch);
    if (paired && at.second_inside) {
      Vec<Out, 2> const both = {{atoms::from_float<Out>(values.x), atoms::from_float<Out>(values.y)}};
      atoms::st_global(reinterpret_cast<Vec<Out, 2>*>(to), both);
    } else {
      atoms::st_global(to, atoms::from_float<Out>(values.x));
      if (at.second_inside) atoms::st_global(to + (Policy::swap_ab ? problem.ldd : 1), atoms::from_float<Out>(values.y));
    }
  }
};

// ---- Epilogue -----------------------------------------------------------------------------------------------------

// Accumulators are blocks of (64, tile_n). Their rows are D's m and their columns D's n; with swap_ab the other way round. A
// block is finished as subtiles of (64, columns). For a gated pair, those come from twice as many columns of accumulators.
template <class Policy>
struct Epilogue {
  using Out = typename Policy::Out;
  using Pairs = AccumulatorPairs<Policy>;
  using FloatPair = typename Pairs::FloatPair;

  // ---- Sizes ------------------------------------------------------------------------------------------------------

  using Boxes = StagedSubtile<Policy>;
  static constexpr bool by_tma = Boxes::by_tma;
  static constexpr int vec_elements = 16 / sizeof(Out);  // of a 16-byte vector
  static constexpr int columns = Boxes::columns;         // of a subtile
  static constexpr int gated_parts = accumulators_of<Policy>;  // 2 if D is of gated pairs: neighbouring groups of 8 columns
  static constexpr int tile_columns = Boxes::tile_columns, last_columns = Boxes::last_columns;
  static constexpr int subtiles = (tile_columns + columns - 1) / columns;
  static constexpr int box_width = Boxes::box_width, box_bytes = Boxes::box_bytes, groups = Boxes::groups, step = Boxes::step;

  static_assert(!by_tma || !Policy::swap_ab || (box_width == 64 && sizeof(Out) == 2), "with swap_ab a box has 64 of n");

  // A consumer's subtiles in shared memory: boxes of (64, box_width), or with swap_ab of (box_columns, 64).
  struct Shared {
    alignas(1024) unsigned char subtile[by_tma ? Policy::consumers : 1][by_tma ? Policy::epilogue_stages : 1]
                                       [by_tma ? 64 * columns * sizeof(Out) : 16];  // (consumers, stages, boxes)
  };

  // ---- State ------------------------------------------------------------------------------------------------------

  Problem const& problem;
  TensorMap const& map;
  Shared& shared;
  int consumer, thread;  // warpgroup, and thread in it
  bool stores;           // whether this thread issues TMA stores
  Pairs pairs;
  int stage = 0;
  LanePartials<Policy> partials[reductions_of<Policy> > 0 ? 2 : 1];  // of this lane's upper and lower row

  HGEMM_DEVICE Epilogue(Problem const& problem, TensorMap const& map, Shared& shared, int consumer, bool stores)
      : problem(problem), map(map), shared(shared), consumer(consumer), thread(atoms::thread_index() % 128), stores(stores),
        pairs{problem, thread} {}

  // 64 rows and `count` columns of D. A lane holds 4 accumulators of each 8 columns.
  template <bool IN_PAIRS>
  struct EpilogueSubtile {
    static constexpr int registers = IN_PAIRS ? 2 : 4;

    int batch, row_first, column_first, count;
    uint32_t bits[gated_parts * columns / 8][registers];  // (columns / 8, gated_parts), 4 floats or 2 pairs of halves

    // Sets the place in D of subtile `index` of blocks whose first element is at (row_first, column_first).
    HGEMM_DEVICE void place(int index, int batch_of_d, int first_row, int first_column) {
      int const column = index % subtiles * columns;
      batch = batch_of_d;
      row_first = first_row + index / subtiles * 64;
      column_first = first_column / gated_parts + column;
      count = tile_columns - column < columns ? tile_columns - column : columns;
    }

    // Sets the accumulators of the column groups that a tile's last subtile lacks.
    HGEMM_DEVICE void clear_from(int first) {
      HGEMM_UNROLL
      for (int j = 0; j < gated_parts * columns / 8; ++j) {
        HGEMM_UNROLL
        for (int r = 0; r < registers && j >= first; ++r) bits[j][r] = 0;
      }
    }

    // Registers have no addresses: a run-time index has a branch for each subtile, which all lanes take together.
    template <class Accumulators>
    HGEMM_DEVICE void pick(Accumulators const& accumulators, int index) {
      HGEMM_UNROLL
      for (int here = 0; here < Accumulators::mma_m * subtiles; ++here) {
        if (here != index) continue;
        int const block = here / subtiles, first = here % subtiles * (gated_parts * columns / 8);
        HGEMM_UNROLL
        for (int j = 0; j < gated_parts * columns / 8 && first + j < Accumulators::mma_n; ++j) {
          HGEMM_UNROLL
          for (int r = 0; r < registers; ++r) bits[j][r] = accumulators.bits(block, first + j, r);
        }
        if constexpr (!skips_columns()) clear_from(Accumulators::mma_n - first);
      }
    }

    // The same by a tree of branches: one instruction for each register, in place of a select for each subtile and register.
    // `copied` copies the bits of an accumulator, (column group, element).
    template <int FIRST, int COUNT, class Accumulators, class Copied>
    HGEMM_DEVICE void pick_by_branches(Accumulators const& accumulators, int index, Copied const& copied) {
      if constexpr (COUNT > 1) {
        if (index < FIRST + COUNT / 2) {
          pick_by_branches<FIRST, COUNT / 2>(accumulators, index, copied);
        } else {
          pick_by_branches<FIRST + COUNT / 2, COUNT - COUNT / 2>(accumulators, index, copied);
        }
      } else {
        constexpr int block = FIRST / subtiles, first = FIRST % subtiles * (gated_parts * columns / 8);
        HGEMM_UNROLL
        for (int j = 0; j < gated_parts * columns / 8 && first + j < Accumulators::mma_n; ++j) {
          HGEMM_UNROLL
          for (int r = 0; r < registers; ++r) bits[j][r] = copied(accumulators.bits(block, first + j, r), j, r);
        }
        if constexpr (!skips_columns()) clear_from(Accumulators::mma_n - first);
      }
    }
  };

  // ---- Loop over subtiles -----------------------------------------------------------------------------------------

  // Finishes blocks of (64, tile_n), the first of which is at (row_first, column_first). The common cases are unrolled, which is
  // 2 to 8 % faster. The other cases share one loop. `first` are the inputs of the first subtile, if they have been loaded before.
  template <class Accumulators, class... First>
  HGEMM_DEVICE void run(Accumulators const& accumulators, int batch, int row_first, int column_first, First const&... first) {
    bool const adds_c = Policy::beta && problem.beta != 0.f;
    if (!Policy::unroll_epilogue || adds_c || ends_within_vec()) {
      run_loop(accumulators, batch, row_first, column_first, first...);
    } else if constexpr (Policy::bias != Bias::launch) {
      run_unrolled<Policy::bias>(accumulators, batch, row_first, column_first);
    } else if (problem.bias_kind == uint32_t(Bias::none)) {
      run_unrolled<Bias::none>(accumulators, batch, row_first, column_first);
    } else if (problem.bias_kind == uint32_t(Bias::row)) {
      run_unrolled<Bias::row>(accumulators, batch, row_first, column_first);
    } else {
      run_unrolled<Bias::column>(accumulators, batch, row_first, column_first);
    }
  }

  // Finishes subtiles first, first + step, ... of a tile whose k is split. `partials` adds up the accumulators of all parts.
  template <class Partials>
  HGEMM_DEVICE void run_share(Partials const& partials, int first, int step, int batch, int row_first, int column_first) {
    bool const adds_c = Policy::beta && problem.beta != 0.f;
    HGEMM_NO_UNROLL
    for (int index = first; index < Partials::subtiles; index += step) {
      EpilogueSubtile<false> subtile;
      subtile.place(index, batch, row_first, column_first);
      partials.add(subtile.bits, index, gated_parts * subtile.count / 8);
      finish_subtile<false, Policy::bias, reuses_stages(Partials::shares)>(subtile, adds_c, Picked{});
    }
  }

  // Whether the inputs of the next subtile are loaded before a subtile is finished: if there are any, and the registers suffice.
  template <class P, int MOST_BYTES = 112>
  HGEMM_DEVICE static constexpr bool loads_ahead() {
    if constexpr (operands_of<P> > 0) return sizeof(SubtileInputs<P>) <= MOST_BYTES;
    return false;
  }

  // The inputs of the expression of a Policy for one subtile, as they are loaded and as they are used.
  template <class P>
  using LoadedInputs = typename P::Expression::template Inputs<Pairs::template LoadedOfSubtile<columns / 8>::template Of>;
  template <class P>
  using SubtileInputs = typename P::Expression::template Inputs<Pairs::template OfSubtile<columns / 8>::template Of>;

  // Loads the inputs of subtile `index` of the blocks of `run`.
  template <class Inputs>
  HGEMM_DEVICE void load(Inputs& inputs, int index, int batch, int row_first, int column_first) const {
    EpilogueSubtile<false> subtile;
    subtile.place(index, batch, row_first, column_first);
    inputs.load(typename Pairs::template SubtileAt<EpilogueSubtile<false>>{pairs, subtile});
  }

  template <class Accumulators, class... First>
  HGEMM_DEVICE void run_loop(Accumulators const& accumulators, int batch, int row_first, int column_first, First const&... first) {
    bool const adds_c = Policy::beta && problem.beta != 0.f;
    constexpr int count = Accumulators::mma_m * subtiles;
    if constexpr (loads_ahead<Policy>()) {  // the loads of a subtile overlap the arithmetic and the stores of the one before it
      LoadedInputs<Policy> next{first...};
      if constexpr (sizeof...(first) == 0) load(next, 0, batch, row_first, column_first);
      HGEMM_NO_UNROLL
      for (int index = 0; index < count; ++index) {
        auto const inputs = next;
        // A constant index where there is only one: the loads of a narrower last subtile have no predicates then.
        if (index + 1 < count) load(next, count == 2 ? 1 : index + 1, batch, row_first, column_first);
        store_subtile<false, Policy::bias>(accumulators, index, batch, row_first, column_first, adds_c, inputs);
      }
    } else if constexpr (unrolls_pairs()) {
      HGEMM_UNROLL
      for (int index = 0; index < count; ++index) {
        store_subtile<false, Policy::bias>(accumulators, index, batch, row_first, column_first, adds_c);
      }
    } else {
      HGEMM_NO_UNROLL
      for (int index = 0; index < count; ++index) {
        store_subtile<false, Policy::bias>(accumulators, index, batch, row_first, column_first, adds_c);
      }
    }
  }

  template <Bias BIAS, class Accumulators>
  HGEMM_DEVICE void run_unrolled(Accumulators const& accumulators, int batch, int row_first, int column_first) {
    constexpr int count = Accumulators::mma_m * subtiles;
    if constexpr (by_tma && count > 1 && count <= Policy::epilogue_stages) {
      run_at_once<BIAS, count>(accumulators, batch, row_first, column_first);
    } else {
      HGEMM_UNROLL
      for (int index = 0; index < count; ++index) {
        store_subtile<true, BIAS>(accumulators, index, batch, row_first, column_first, false);
      }
    }
  }

  // Fills all subtiles, each in a stage of its own, and then stores them: with one wait and one barrier for all.
  template <Bias BIAS, int COUNT, class Accumulators>
  HGEMM_DEVICE void run_at_once(Accumulators const& accumulators, int batch, int row_first, int column_first) {
    wait_for_boxes<persistent<Policy>(), 0>();
    EpilogueSubtile<Accumulators::in_pairs> subtile;
    HGEMM_UNROLL
    for (int index = 0; index < COUNT; ++index) {
      subtile.place(index, batch, row_first, column_first);
      subtile.pick(accumulators, index);
      float results[columns / 8][4];  // (columns / 8, a lane's 4)
      combine<false, BIAS>(subtile, results, Picked{});
      activate_all(subtile.count, results);
      put_subtile(subtile, results, shared.subtile[consumer][index]);
    }
    boxes_are_written();
    if (!stores) return;
    HGEMM_UNROLL
    for (int index = 0; index < COUNT; ++index) {
      subtile.place(index, batch, row_first, column_first);
      store_boxes(subtile, shared.subtile[consumer][index]);
    }
  }

  // Whether the subtiles of a gated pair are unrolled: without inputs and in a short expression, as silu(gate) * up.
  HGEMM_DEVICE static constexpr bool unrolls_pairs() {
    if constexpr (gated_parts == 2) return operands_of<Policy> == 0 && !Policy::Expression::is_long;
    return false;
  }

  // Whether warp s stores the boxes of stage s: for an expression whose subtiles have at most 32 columns. Otherwise warp 0 stores
  // all boxes, and each subtile has a second barrier.
  static constexpr bool takes_turns = by_tma && has_expression<Policy> && gated_parts == 1 && columns <= 32 &&
                                      Policy::epilogue_stages > 1 && Policy::epilogue_stages <= 4;
  HGEMM_DEVICE static bool stores_boxes(int warp) { return takes_turns ? warp < Policy::epilogue_stages : warp == 0; }

  // Whether a narrower last subtile skips the columns that it lacks. In the loop of an expression, branches for this separate the
  // instructions of its column groups. So the loop computes all groups if at most a tenth of a tile's columns is wasted. The TMA does
  // not store the boxes of those.
  HGEMM_DEVICE static constexpr bool skips_columns() {
    constexpr int lacking = columns - last_columns;
    return lacking > 0 && !(by_tma && has_expression<Policy> && !unrolls_pairs() && lacking * 10 <= tile_columns);
  }

  // Whether branches pick the accumulators of one of `count` subtiles. They copy all registers of the subtile at once. Where these are
  // tight, ptxas would spill or take up to a second more: beside reductions, and with a matrix in long expressions or with an odd end.
  HGEMM_DEVICE static constexpr bool picks_by_branches(int count) {
    if constexpr (!has_expression<Policy> || has_reductions<Policy> || unrolls_pairs()) {
      return false;
    } else if constexpr (matrices_of<Policy> > 0) {
      return !Policy::Expression::is_long && (count > 4 || last_columns == columns);
    } else {
      return true;
    }
  }

  // Whether these branches also add the row or column that an expression adds to the accumulator before anything else.
  template <class Accumulators>
  HGEMM_DEVICE static constexpr bool adds_in_branches() {
    if constexpr (picks_by_branches(Accumulators::mma_m * subtiles)) return Policy::Expression::adds_first && !Accumulators::in_pairs;
    return false;
  }

  // How a subtile gets its accumulators once its inputs are there: it has them already, or the branches that pick them add a vector.
  struct Picked {
    static constexpr bool adds = false;
    template <class Subtile, class Inputs>
    HGEMM_DEVICE void operator()(Subtile const&, Inputs const&) const {}
  };
  template <class Accumulators>
  struct PickWithSum {
    static constexpr bool adds = true;
    Accumulators const& accumulators;
    int index;

    template <class Subtile, class Inputs>
    HGEMM_DEVICE void operator()(Subtile& subtile, Inputs const& inputs) const {
      subtile.template pick_by_branches<0, Accumulators::mma_m * subtiles>(accumulators, index, [&](uint32_t bits, int j, int e) {
        float const addend = Policy::Expression::addend(inputs, j, e);
        return Policy::Expression::halves ? atoms::half_sum_in_branch(bits, addend) : atoms::sum_in_branch(bits, addend);
      });
    }
  };

  // `loaded` are the inputs of an expression, if they have been loaded before.
  template <bool PLAIN, Bias BIAS, class Accumulators, class... Loaded>
  HGEMM_DEVICE void store_subtile(Accumulators const& accumulators, int index, int batch, int row_first, int column_first,
                                  bool adds_c, Loaded const&... loaded) {
    EpilogueSubtile<Accumulators::in_pairs> subtile;
    subtile.place(index, batch, row_first, column_first);
    constexpr int count = Accumulators::mma_m * subtiles;
    if constexpr (adds_in_branches<Accumulators>()) {
      finish_subtile<PLAIN, BIAS, reuses_stages(count)>(subtile, adds_c, PickWithSum<Accumulators>{accumulators, index}, loaded...);
    } else {
      if constexpr (picks_by_branches(count)) {
        subtile.template pick_by_branches<0, count>(accumulators, index, [](uint32_t bits, int, int) { return atoms::moved(bits); });
      } else {
        subtile.pick(accumulators, index);
      }
      if constexpr (reductions_of<Policy> > 0) {
        if (index % subtiles == 0) clear(partials[0]), clear(partials[1]);
      }
      finish_subtile<PLAIN, BIAS, reuses_stages(count)>(subtile, adds_c, Picked{}, loaded...);
      if constexpr (reductions_of<Policy> > 0) {
        if (index % subtiles == subtiles - 1) store_partials(subtile, column_first);
      }
    }
  }

  // Whether D's rows end within a 16-byte vector. Those of a gated pair have a multiple of 8 columns.
  HGEMM_DEVICE bool ends_within_vec() const { return gated_parts == 1 && columns_of_d<Policy>(problem) % vec_elements != 0; }

  // Whether a warpgroup fills a stage again, if it finishes so many subtiles of an item.
  HGEMM_DEVICE static constexpr bool reuses_stages(int of_item) {
    return persistent<Policy>() || of_item > Policy::epilogue_stages;
  }

  template <bool PLAIN, Bias BIAS, bool REUSES_STAGES, class Subtile, class Pick, class... Loaded>
  HGEMM_DEVICE void finish_subtile(Subtile& subtile, bool adds_c, Pick const& pick, Loaded const&... loaded) {
    constexpr bool through_boxes = matrices_of<Policy> > 0 && Pairs::template in_vecs<Out>;
    constexpr bool waits = REUSES_STAGES && !takes_turns;
    if constexpr (through_boxes) wait_for_boxes<waits>();
    float results[columns / 8][4];  // (columns / 8, a lane's 4)
    if (!PLAIN && adds_c) {
      combine<true, BIAS>(subtile, results, pick, loaded...);
    } else {
      combine<false, BIAS>(subtile, results, pick, loaded...);
    }
    activate_all(subtile.count, results);
    unsigned char* const boxes = shared.subtile[consumer][stage];
    if constexpr (!through_boxes) wait_for_boxes<waits>();  // so late that the loads of C and bias overlap it
    put_subtile(subtile, results, boxes);
    if constexpr (by_tma) {
      if constexpr (takes_turns && REUSES_STAGES) wait_for_boxes_of(next_stage());
      boxes_are_written();
      if (!PLAIN && ends_within_vec()) {
        copy_out(subtile, boxes);
      } else if (stores && (!takes_turns || thread / 32 == stage)) {
        store_boxes(subtile, boxes);
      }
      stage = next_stage();
    }
  }

  // Waits until the boxes of the stage may be written, or those of all stages if no stores may be PENDING.
  template <bool REUSES_STAGES, int PENDING = Policy::epilogue_stages - 1>
  HGEMM_DEVICE void wait_for_boxes() const {
    if constexpr (by_tma && REUSES_STAGES) {
      if (stores) atoms::tma_store_wait_read<PENDING>();
      atoms::named_barrier(1 + consumer, 128);
    }
  }

  HGEMM_DEVICE int next_stage() const { return stage + 1 == Policy::epilogue_stages ? 0 : stage + 1; }

  // Before the barrier of a subtile, the thread that stores the next stage waits until the TMA has read it. So this barrier also
  // allows all threads to write that stage.
  HGEMM_DEVICE void wait_for_boxes_of(int stage) const {
    if (stores && thread / 32 == stage) atoms::tma_store_wait_read<0>();
  }

  // Waits until the warpgroup has written its boxes, for the TMA to read.
  HGEMM_DEVICE void boxes_are_written() const {
    atoms::fence_proxy_async();
    atoms::named_barrier(1 + consumer, 128);
  }

  // Waits until the TMA has read all of this thread's stores from shared memory.
  HGEMM_DEVICE void finish() const {
    if constexpr (by_tma) {
      if (stores) atoms::tma_store_wait_read<0>();
    }
  }

  // ---- Arithmetic -------------------------------------------------------------------------------------------------

  // alpha * accumulator + beta * C + bias of a subtile. All its loads come first.
  template <bool ADDS_C, Bias BIAS, class Subtile, class Pick, class... Loaded>
  HGEMM_DEVICE void combine(Subtile& subtile, float (&results)[columns / 8][4], Pick const& pick, Loaded const&... loaded) {
    if constexpr (sizeof...(loaded) > 0) {
      evaluate(subtile, results, pick, loaded...);
    } else if constexpr (has_expression<Policy>) {
      LoadedInputs<Policy> loaded;
      loaded.load(typename Pairs::template SubtileAt<Subtile>{pairs, subtile});
      evaluate(subtile, results, pick, loaded);
    } else {
      typename Pairs::template SubtileC<columns / 8> c;
      typename Pairs::template SubtileBias<columns / 8> bias;
      if constexpr (BIAS != Bias::none) pairs.template load<BIAS>(subtile, bias);
      if constexpr (ADDS_C) pairs.load(subtile, c);
      HGEMM_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        if (last_columns < columns && j >= subtile.count / 8) continue;
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) {
          float x = problem.alpha * Pairs::accumulator(subtile.bits[j], e);
          if constexpr (ADDS_C) x += problem.beta * c.number(j, e);
          if constexpr (BIAS != Bias::none) x += bias.number(j, e);
          results[j][e] = x;
        }
      }
    }
  }

  // The expression of a subtile, from its loaded inputs.
  template <class Subtile, class Pick, class Loaded>
  HGEMM_DEVICE void evaluate(Subtile& subtile, float (&results)[columns / 8][4], Pick const& pick, Loaded const& loaded) {
    typename Pairs::template SubtileAt<Subtile> const at{pairs, subtile};
    SubtileInputs<Policy> inputs;
    inputs.template exchange<Pick::adds>(loaded, typename Pairs::template ExchangeAt<Subtile>{at, shared.subtile[consumer][stage]});
    pick(subtile, inputs);
    typename Policy::Expression::template Outputs<Pairs::template OutOfSubtile<columns / 8>::template Of> outputs;
    HGEMM_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      if (skips_columns() && j >= subtile.count / 8) continue;
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) {
        float const first = Pairs::accumulator(subtile.bits[gated_parts * j], e);
        float const second = gated_parts == 2 ? Pairs::accumulator(subtile.bits[gated_parts * j + gated_parts - 1], e) : 0.f;
        results[j][e] = Policy::Expression::template apply<Pick::adds>(first, second, inputs, outputs, problem, j, e);
      }
    }
    outputs.store(at);
    if constexpr (has_reductions<Policy>) outputs.reduce(at, partials);
  }

  // Stores what a warp has reduced of its rows over all columns of a tile, whose first column of B is `column_first`.
  template <class Subtile>
  HGEMM_DEVICE void store_partials(Subtile const& subtile, int column_first) {
    HGEMM_UNROLL
    for (int half = 0; half < 2; ++half) {
      reduce_quad(partials[half]);
      int const row = pairs.row(subtile, half);
      if (thread % 4 != 0 || row >= problem.m || column_first >= problem.n) continue;
      HGEMM_UNROLL
      for (int slot = 0; slot < reductions_of<Policy>; ++slot) {
        int const segment = column_first / Policy::tile_n;
        float* const to = ReductionPartials<Policy, Policy::tile_n>::of_row(problem, slot, subtile.batch, segment, row);
        atoms::st_global(to, partials[half].sum[slot]);
      }
    }
  }

  HGEMM_DEVICE static void activate_all(int count, float (&results)[columns / 8][4]) {
    HGEMM_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      if (last_columns < columns && j >= count / 8) continue;
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) results[j][e] = Policy::Activation::apply(results[j][e]);
    }
  }

  // Writes a subtile to shared memory or to D.
  template <class Subtile>
  HGEMM_DEVICE void put_subtile(Subtile const& subtile, float const (&results)[columns / 8][4], unsigned char* boxes) const {
    HGEMM_UNROLL
    for (int j = 0; j < columns / 8; j += step) {
      if (skips_columns() && j >= subtile.count / 8) continue;
      put_groups(subtile, results, j, boxes);
    }
  }

  // Writes `step` groups of 8 columns from group j on, to shared memory or to D.
  template <class Subtile>
  HGEMM_DEVICE void put_groups(Subtile const& subtile, float const (&results)[columns / 8][4], int j,
                               unsigned char* boxes) const {
    FloatPair values[2 * step];  // (step, upper and lower row)
    HGEMM_UNROLL
    for (int i = 0; i < 2 * step; ++i) values[i] = {results[j + i / 2][i % 2 * 2], results[j + i / 2][i % 2 * 2 + 1]};
    if constexpr (!by_tma) {
      HGEMM_UNROLL
      for (int i = 0; i < 2 * step; ++i) pairs.store(values[i], pairs.at(subtile, j + i / 2, i % 2), subtile.batch);
    } else if constexpr (sizeof(Out) == 2) {
      write_halves(values, j, boxes);
    } else {
      HGEMM_UNROLL
      for (int i = 0; i < 2 * step; ++i) write_floats(values[i], j + i / 2, i % 2, boxes);
    }
  }

  // ---- By TMA -----------------------------------------------------------------------------------------------------

  // Four 8x8 matrices, or two: lane l addresses a row of matrix l / 8.
  HGEMM_DEVICE void write_halves(FloatPair const (&values)[2 * step], int j, unsigned char* boxes) const {
    int const warp = thread / 32, lane = thread % 32;
    uint32_t r[2 * step];  // (step, upper and lower row)
    HGEMM_UNROLL
    for (int i = 0; i < 2 * step; ++i) r[i] = atoms::pack<Out>(values[i].x, values[i].y);
    unsigned char* const box = boxes + (Policy::swap_ab ? 0 : j / groups * box_bytes);
    int const in_box = j % groups;
    if constexpr (Policy::swap_ab) {
      void* const to = box + Boxes::offset((in_box + lane / 16) * 8 + lane % 8, warp * 2 + lane / 8 % 2);
      if constexpr (step == 2) atoms::stmatrix_x4<true>(to, r[0], r[1], r[2], r[3]);
      if constexpr (step == 1) atoms::stmatrix_x2<true>(to, r[0], r[1]);
    } else {
      void* const to = box + Boxes::offset(warp * 16 + lane % 16, in_box + (step == 2 ? lane / 16 : 0));
      if constexpr (step == 2) atoms::stmatrix_x4<false>(to, r[0], r[1], r[2], r[3]);
      if constexpr (step == 1) atoms::stmatrix_x2<false>(to, r[0], r[1]);
    }
  }

  HGEMM_DEVICE void write_floats(FloatPair const& values, int j, int half, unsigned char* boxes) const {
    int const row = thread / 32 * 16 + thread % 32 / 4 + half * 8, column = j * 8 + thread % 4 * 2;
    unsigned char* const box = boxes + column / box_width * box_bytes;
    unsigned char* const to = box + Boxes::offset(row, column % box_width / 4) + column % 4 * 4;
    atoms::st_shared(reinterpret_cast<Vec8B*>(to), Vec8B{atoms::float_bits(values.x), atoms::float_bits(values.y)});
  }

  template <class Subtile>
  HGEMM_DEVICE void store_boxes(Subtile const& subtile, unsigned char const* boxes) const {
    if constexpr (Policy::swap_ab) {
      constexpr int box_columns = Boxes::box_columns;
      HGEMM_UNROLL
      for (int column = 0; column < columns; column += box_columns) {
        if (last_columns < columns && column >= subtile.count) continue;
        unsigned char const* const box = boxes + column * Boxes::box_row_bytes;
        atoms::tma_store(map, box, subtile.row_first, subtile.column_first + column, subtile.batch);
      }
    } else {
      HGEMM_UNROLL
      for (int column = 0; column < columns; column += box_width) {
        if (column >= subtile.count) continue;
        unsigned char const* const box = boxes + column / box_width * box_bytes;
        atoms::tma_store(map, box, subtile.column_first + column, subtile.row_first, subtile.batch);
      }
    }
    atoms::tma_store_commit();
  }

  // Stores boxes by threads if D's rows end within a 16-byte vector, which the TMA would write whole.
  template <class Subtile>
  HGEMM_DEVICE void copy_out(Subtile const& subtile, unsigned char const* boxes) const {
    int const m_first = Policy::swap_ab ? subtile.column_first : subtile.row_first;
    int const n_first = Policy::swap_ab ? subtile.row_first : subtile.column_first;
    int const rows = Policy::swap_ab ? subtile.count : 64, vecs = (Policy::swap_ab ? 64 : subtile.count) / vec_elements;
    Out* const d = static_cast<Out*>(problem.d) + subtile.batch * problem.batch_stride_d;
    HGEMM_NO_UNROLL
    for (int index = thread; index < rows * vecs; index += 128) {
      int const row = index / vecs, along = index % vecs;
      int const m = m_first + row, n = n_first + along * vec_elements;
      if (m >= problem.m || n >= columns_of_d<Policy>(problem)) continue;
      unsigned char const* const box = boxes + along * vec_elements / box_width * box_bytes;
      auto const from =
          reinterpret_cast<Vec<Out, vec_elements> const*>(box + Boxes::offset(row, along % (box_width / vec_elements)));
      Vec<Out, vec_elements> const whole = atoms::ld_shared(from);
      Out* const to = d + m * problem.ldd + n;
      if (n + vec_elements <= columns_of_d<Policy>(problem)) {
        atoms::st_global(reinterpret_cast<Vec<Out, vec_elements>*>(to), whole);
      } else {
        HGEMM_UNROLL
        for (int e = 0; e < vec_elements; ++e) {
          if (n + e < columns_of_d<Policy>(problem)) atoms::st_global(to + e, whole.element[e]);
        }
      }
    }
  }
};

}  // namespace hgemm
