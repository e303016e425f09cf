// A warpgroup's accumulators to D: activation(alpha * sum + beta * C + bias), by way of shared memory and the TMA, or stored by
// each thread where its elements lie.
#pragma once

#include <hgemm/epilogue.cuh>
#include <hgemm/mainloop_sm90.cuh>
#include <hgemm/sum_pairs.cuh>

namespace hgemm {

enum class Store { direct, tma };

// Sums come in blocks of 64 rows and tile_n columns; rows are D's m and columns its n, or the other way round where operands
// are swapped.
template <class Policy>
struct EpilogueSm90 {
  using Out = typename Policy::Out;
  using Pairs = SumPairs<Policy>;
  using Two = typename Pairs::Two;

  static constexpr bool by_tma = Policy::store == Store::tma;
  static constexpr int piece = 16 / sizeof(Out);            // elements of 16 bytes
  static constexpr int columns = Policy::epilogue_columns;  // of the sums, staged in a turn
  static constexpr int turns = (Policy::tile_n + columns - 1) / columns;
  static constexpr int last_columns = Policy::tile_n - (turns - 1) * columns;

  // A box that the TMA stores has rows of `box_width` elements along D's n, 128, 64, 32 or 16 bytes.
  static constexpr int box_width = Policy::store_columns;
  static constexpr int box_row_bytes = box_width * sizeof(Out);
  static constexpr int box_bytes = (Policy::swapped ? columns : 64) * box_row_bytes;

  static_assert(!by_tma || !Policy::swapped || (box_width == 64 && sizeof(Out) == 2 && last_columns == columns),
                "swapped, a turn is one box of 64 of n");

  // What a consumer stages in a turn: boxes of (64, box_width), or one of (columns, 64) where operands are swapped.
  struct Shared {
    alignas(1024) unsigned char turn[by_tma ? Policy::consumers : 1][by_tma ? Policy::epilogue_stages : 1]
                                    [by_tma ? 64 * columns * sizeof(Out) : 16];
  };

  Problem const& problem;
  TensorMap const& map;
  Shared& shared;
  int consumer, thread;  // warpgroup, and thread in it
  bool stores;           // whether this is the thread that stores what the warpgroup has staged
  Pairs pairs;
  int stage = 0;

  HGEMM_DEVICE EpilogueSm90(Problem const& problem, TensorMap const& map, Shared& shared, int consumer, bool stores)
      : problem(problem), map(map), shared(shared), consumer(consumer), thread(atoms::thread_index() % 128), stores(stores),
        pairs{problem, thread} {}

  static constexpr int groups = Policy::swapped || !by_tma ? columns / 8 : box_width / 8;  // of 8 columns in a box
  // Groups finished at a time: two, unless a turn may end after the first of them.
  static constexpr int step = groups % 2 == 0 && last_columns % 16 == 0 ? 2 : 1;
  static constexpr bool curved = Policy::activation == Activation::gelu || Policy::activation == Activation::silu;

  // 64 rows and `count` columns of the sums, of which a lane holds 4 elements of each 8 columns. Registers have no addresses:
  // where turns are counted by a loop, each has a branch of its own, of which all lanes take the same.
  template <bool IN_PAIRS>
  struct Turn {
    static constexpr int registers = IN_PAIRS ? 2 : 4;

    int batch, row_first, column_first, count;
    uint32_t bits[columns / 8][registers];  // (columns / 8), 4 floats or 2 pairs of halves

    template <class Values>
    HGEMM_DEVICE void pick(Values const& values, int index) {
      HGEMM_UNROLL
      for (int here = 0; here < Values::mma_m * turns; ++here) {
        if (here != index) continue;
        int const block = here / turns, first = here % turns * (columns / 8);
        HGEMM_UNROLL
        for (int j = 0; j < columns / 8 && first + j < Values::mma_n; ++j) {
          HGEMM_UNROLL
          for (int r = 0; r < registers; ++r) bits[j][r] = values.bits(block, first + j, r);
        }
      }
    }
  };

  // Finishes blocks of (64, tile_n) sums, the first of which is at (row_first, column_first). Where all is plain the turns are
  // written out, which is 2 to 8 % faster; what is rare or long is there once, in a loop.
  template <class Values>
  HGEMM_DEVICE void run(Values const& values, int batch, int row_first, int column_first) {
    bool const adds_c = Policy::beta && problem.beta != 0.f;
    if (by_tma && !curved && !adds_c && problem.n % piece == 0) {
      HGEMM_UNROLL
      for (int index = 0; index < Values::mma_m * turns; ++index) {
        take_turn<true>(values, index, batch, row_first, column_first, false);
      }
    } else {
      HGEMM_NO_UNROLL
      for (int index = 0; index < Values::mma_m * turns; ++index) {
        take_turn<false>(values, index, batch, row_first, column_first, adds_c);
      }
    }
  }

  template <bool PLAIN, class Values>
  HGEMM_DEVICE void take_turn(Values const& values, int index, int batch, int row_first, int column_first, bool adds_c) {
    int const column = index % turns * columns;
    Turn<Values::in_pairs> turn;
    turn.batch = batch;
    turn.row_first = row_first + index / turns * 64;
    turn.column_first = column_first + column;
    turn.count = Policy::tile_n - column < columns ? Policy::tile_n - column : columns;
    turn.pick(values, index);
    float results[columns / 8][4];  // before anyone waits: what is read of C and of the bias is under way at once
    if (!PLAIN && adds_c) {
      add_up<true>(turn, results);
    } else {
      add_up<false>(turn, results);
    }
    activate_all(turn.count, results);
    unsigned char* const boxes = shared.turn[consumer][stage];
    if constexpr (by_tma) {
      if (stores) atoms::tma_store_wait_read<Policy::epilogue_stages - 1>();
      atoms::named_barrier(1 + consumer, 128);  // the boxes may be written
    }
    HGEMM_UNROLL
    for (int j = 0; j < columns / 8; j += step) {
      if (last_columns < columns && j >= turn.count / 8) continue;
      put_groups(turn, results, j, boxes);
    }
    if constexpr (by_tma) {
      atoms::async_proxy_fence();
      atoms::named_barrier(1 + consumer, 128);  // the boxes are written
      if (!PLAIN && problem.n % piece != 0) {
        copy_out(turn, boxes);
      } else if (stores) {
        store_boxes(turn, boxes);
      }
      stage = stage + 1 == Policy::epilogue_stages ? 0 : stage + 1;
    }
  }

  // Waits until the TMA has read all that was staged.
  HGEMM_DEVICE void finish() const {
    if constexpr (by_tma) {
      if (stores) atoms::tma_store_wait_read<0>();
    }
  }

  // alpha * sum + beta * C + bias of a turn, all of whose loads come first.
  template <bool ADDS_C, class Turn>
  HGEMM_DEVICE void add_up(Turn const& turn, float (&results)[columns / 8][4]) const {
    typename Pairs::template TurnC<columns / 8> c;
    typename Pairs::template TurnBias<columns / 8> bias;
    if constexpr (Policy::bias != Bias::none) pairs.load(turn, bias);
    if constexpr (ADDS_C) pairs.load(turn, c);
    HGEMM_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      if (last_columns < columns && j >= turn.count / 8) continue;
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) {
        float x = problem.alpha * Pairs::sum(turn.bits[j], e);
        if constexpr (ADDS_C) x += problem.beta * c.number(j, e);
        if constexpr (Policy::bias != Bias::none) x += bias.number(j, e);
        results[j][e] = x;
      }
    }
  }

  HGEMM_DEVICE static void activate_all(int count, float (&results)[columns / 8][4]) {
    HGEMM_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      if (last_columns < columns && j >= count / 8) continue;
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) results[j][e] = activate<Policy::activation>(results[j][e]);
    }
  }

  // Stages, or stores, the `step` groups of 8 columns from group j on.
  template <class Turn>
  HGEMM_DEVICE void put_groups(Turn const& turn, float const (&results)[columns / 8][4], int j, unsigned char* boxes) const {
    Two two[2 * step];  // (step), rows of the upper and the lower 8
    HGEMM_UNROLL
    for (int i = 0; i < 2 * step; ++i) two[i] = {results[j + i / 2][i % 2 * 2], results[j + i / 2][i % 2 * 2 + 1]};
    if constexpr (!by_tma) {
      HGEMM_UNROLL
      for (int i = 0; i < 2 * step; ++i) pairs.store(two[i], pairs.at(turn, j + i / 2, i % 2), turn.batch);
    } else if constexpr (sizeof(Out) == 2) {
      stage_halves(two, j, boxes);
    } else {
      HGEMM_UNROLL
      for (int i = 0; i < 2 * step; ++i) stage_floats(two[i], j + i / 2, i % 2, boxes);
    }
  }

  // ---- By TMA -----------------------------------------------------------------------------------------------------

  // Byte offset of the 16-byte piece `along` of a box's row, as the TMA swizzles boxes of this width.
  HGEMM_DEVICE static int offset(int row, int along) {
    int const bytes = row * box_row_bytes + along * 16;
    return bytes ^ (bytes >> 3 & (box_row_bytes - 16));
  }

  // Four 8x8 matrices, or two: lane l addresses a row of matrix l / 8.
  HGEMM_DEVICE void stage_halves(Two const (&two)[2 * step], int j, unsigned char* boxes) const {
    int const warp = thread / 32, lane = thread % 32;
    uint32_t r[2 * step];
    HGEMM_UNROLL
    for (int i = 0; i < 2 * step; ++i) r[i] = atoms::pack<Out>(two[i].x, two[i].y);
    unsigned char* const box = boxes + (Policy::swapped ? 0 : j / groups * box_bytes);
    int const in_box = j % groups;
    if constexpr (Policy::swapped) {
      void* const to = box + offset((in_box + lane / 16) * 8 + lane % 8, warp * 2 + lane / 8 % 2);
      if constexpr (step == 2) atoms::stmatrix_x4<true>(to, r[0], r[1], r[2], r[3]);
      if constexpr (step == 1) atoms::stmatrix_x2<true>(to, r[0], r[1]);
    } else {
      void* const to = box + offset(warp * 16 + lane % 16, in_box + (step == 2 ? lane / 16 : 0));
      if constexpr (step == 2) atoms::stmatrix_x4<false>(to, r[0], r[1], r[2], r[3]);
      if constexpr (step == 1) atoms::stmatrix_x2<false>(to, r[0], r[1]);
    }
  }

  HGEMM_DEVICE void stage_floats(Two const& two, int j, int half, unsigned char* boxes) const {
    int const row = thread / 32 * 16 + thread % 32 / 4 + half * 8, column = j * 8 + thread % 4 * 2;
    unsigned char* const box = boxes + column / box_width * box_bytes;
    unsigned char* const to = box + offset(row, column % box_width / 4) + column % 4 * 4;
    atoms::st_shared(reinterpret_cast<Word2*>(to), Word2{atoms::float_bits(two.x), atoms::float_bits(two.y)});
  }

  template <class Turn>
  HGEMM_DEVICE void store_boxes(Turn const& turn, unsigned char const* boxes) const {
    if constexpr (Policy::swapped) {
      atoms::tma_store(map, boxes, turn.row_first, turn.column_first, turn.batch);
    } else {
      HGEMM_UNROLL
      for (int column = 0; column < columns; column += box_width) {
        if (column >= turn.count) continue;
        unsigned char const* const box = boxes + column / box_width * box_bytes;
        atoms::tma_store(map, box, turn.column_first + column, turn.row_first, turn.batch);
      }
    }
    atoms::tma_store_commit();
  }

  // What the TMA does, for rows of D that end within a piece: the TMA would write that piece whole.
  template <class Turn>
  HGEMM_DEVICE void copy_out(Turn const& turn, unsigned char const* boxes) const {
    int const m_first = Policy::swapped ? turn.column_first : turn.row_first;
    int const n_first = Policy::swapped ? turn.row_first : turn.column_first;
    int const rows = Policy::swapped ? turn.count : 64, pieces = (Policy::swapped ? 64 : turn.count) / piece;
    Out* const d = static_cast<Out*>(problem.d) + turn.batch * problem.batch_stride_d;
    HGEMM_NO_UNROLL
    for (int index = thread; index < rows * pieces; index += 128) {
      int const row = index / pieces, along = index % pieces;
      int const m = m_first + row, n = n_first + along * piece;
      if (m >= problem.m || n >= problem.n) continue;
      unsigned char const* const box = boxes + along * piece / box_width * box_bytes;
      auto const from = reinterpret_cast<Piece<Out, piece> const*>(box + offset(row, along % (box_width / piece)));
      Piece<Out, piece> const whole = atoms::ld_shared(from);
      Out* const to = d + m * problem.ldd + n;
      if (n + piece <= problem.n) {
        atoms::st_global(reinterpret_cast<Piece<Out, piece>*>(to), whole);
      } else {
        HGEMM_UNROLL
        for (int e = 0; e < piece; ++e) {
          if (n + e < problem.n) atoms::st_global(to + e, whole.element[e]);
        }
      }
    }
  }
};

}  // namespace hgemm
