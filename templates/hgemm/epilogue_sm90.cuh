// A warpgroup's accumulators to D: activation(alpha * sum + beta * C + bias), by way of shared memory and the TMA, or stored by
// each thread where its elements lie.
#pragma once

#include <hgemm/epilogue.cuh>
#include <hgemm/mainloop_sm90.cuh>

namespace hgemm {

enum class Store { direct, tma };

// Sums come in blocks of 64 rows and tile_n columns; rows are D's m and columns its n, or the other way round where operands
// are swapped.
template <class Policy>
struct EpilogueSm90 {
  using Out = typename Policy::Out;
  using Accumulators = WarpgroupAccumulators<Policy>;

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
  int stage = 0;

  HGEMM_DEVICE EpilogueSm90(Problem const& problem, TensorMap const& map, Shared& shared, int consumer, bool stores)
      : problem(problem), map(map), shared(shared), consumer(consumer), thread(atoms::thread_index() % 128), stores(stores) {}

  // Finishes (consumer_m, tile_n) sums, the first of which is at (row_first, column_first).
  template <class Values>
  HGEMM_DEVICE void run(Values const& values, int batch, int row_first, int column_first) {
    if (Policy::beta && problem.beta != 0.f) {
      finish_all<true>(values, batch, row_first, column_first);
    } else {
      finish_all<false>(values, batch, row_first, column_first);
    }
  }

  // Without C a tile takes half the time: the choice is made once, not for each element.
  template <bool ADDS_C, class Values>
  HGEMM_DEVICE void finish_all(Values const& values, int batch, int row_first, int column_first) {
    HGEMM_UNROLL
    for (int block = 0; block < Accumulators::mma_m; ++block) {
      int const row = row_first + block * 64;
      if constexpr (by_tma) {
        HGEMM_UNROLL
        for (int turn = 0; turn < turns; ++turn) store_turn<ADDS_C>(values, block, turn, batch, row, column_first);
      } else {
        store_direct<ADDS_C>(values, block, batch, row, column_first);
      }
    }
  }

  // Waits until the TMA has read all that was staged.
  HGEMM_DEVICE void finish() const {
    if constexpr (by_tma) {
      if (stores) atoms::tma_store_wait_read<0>();
    }
  }

  // ---- By TMA: `columns` of a block a turn ------------------------------------------------------------------------

  template <bool ADDS_C, class Values>
  HGEMM_DEVICE void store_turn(Values const& values, int block, int turn, int batch, int row_first, int column_first) {
    unsigned char* const boxes = shared.turn[consumer][stage];
    int const count = turn == turns - 1 ? last_columns : columns;

    if (stores) atoms::tma_store_wait_read<Policy::epilogue_stages - 1>();
    atoms::named_barrier(1 + consumer, 128);  // the boxes may be written
    if constexpr (sizeof(Out) == 2) {
      stage_halves<ADDS_C>(values, block, turn, count, boxes, batch, row_first, column_first);
    } else {
      stage_floats<ADDS_C>(values, block, turn, count, boxes, batch, row_first, column_first);
    }
    atoms::async_proxy_fence();
    atoms::named_barrier(1 + consumer, 128);  // the boxes are written
    if (problem.n % piece != 0) {
      copy_out(boxes, turn, count, batch, row_first, column_first);
    } else if (stores) {
      if constexpr (Policy::swapped) {
        atoms::tma_store(map, boxes, row_first, column_first + turn * columns, batch);
      } else {
        HGEMM_UNROLL
        for (int column = 0; column < count; column += box_width) {
          unsigned char const* const box = boxes + column / box_width * box_bytes;
          atoms::tma_store(map, box, column_first + turn * columns + column, row_first, batch);
        }
      }
      atoms::tma_store_commit();
    }
    stage = stage + 1 == Policy::epilogue_stages ? 0 : stage + 1;
  }

  // Byte offset of the 16-byte piece `along` of a box's row, as the TMA swizzles boxes of this width.
  HGEMM_DEVICE static int offset(int row, int along) {
    int const bytes = row * box_row_bytes + along * 16;
    return bytes ^ (bytes >> 3 & (box_row_bytes - 16));
  }

  // What the TMA does, for rows of D that end within a piece: the TMA would write that piece whole.
  HGEMM_DEVICE void copy_out(unsigned char const* boxes, int turn, int count, int batch, int row_first, int column_first) const {
    int const m_first = Policy::swapped ? column_first + turn * columns : row_first;
    int const n_first = Policy::swapped ? row_first : column_first + turn * columns;
    int const rows = Policy::swapped ? count : 64, pieces = (Policy::swapped ? 64 : count) / piece;  // of a turn, and of a row
    Out* const d = static_cast<Out*>(problem.d) + batch * problem.batch_stride_d;
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

  // Two groups of 8 columns at a time, as four 8x8 matrices: lane l addresses a row of matrix l / 8.
  template <bool ADDS_C, class Values>
  HGEMM_DEVICE void stage_halves(Values const& values, int block, int turn, int count, unsigned char* boxes, int batch,
                                 int row_first, int column_first) const {
    constexpr int groups = Policy::swapped ? columns / 8 : box_width / 8;  // of 8 columns in a box
    constexpr int step = groups % 2 == 0 ? 2 : 1;
    int const warp = thread / 32, lane = thread % 32;
    HGEMM_UNROLL
    for (int j = 0; j < count / 8; j += step) {
      uint32_t r[2 * step];  // (step), rows of the upper and the lower 8
      HGEMM_UNROLL
      for (int i = 0; i < 2 * step; ++i) {
        Two const two = finished<ADDS_C>(values, block, turn * (columns / 8) + j + i / 2, i % 2 * 2, batch, row_first, column_first);
        r[i] = atoms::pack<Out>(two.x, two.y);
      }
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
  }

  template <bool ADDS_C, class Values>
  HGEMM_DEVICE void stage_floats(Values const& values, int block, int turn, int count, unsigned char* boxes, int batch,
                                 int row_first, int column_first) const {
    int const column_in_8 = thread % 4 * 2;
    HGEMM_UNROLL
    for (int j = 0; j < count / 8; ++j) {
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) {
        int const row = thread / 32 * 16 + thread % 32 / 4 + half * 8, column = j * 8 + column_in_8;
        Two const two = finished<ADDS_C>(values, block, turn * (columns / 8) + j, half * 2, batch, row_first, column_first);
        unsigned char* const box = boxes + column / box_width * box_bytes;
        unsigned char* const to = box + offset(row, column % box_width / 4) + column % 4 * 4;
        atoms::st_shared(reinterpret_cast<Word2*>(to), Word2{atoms::float_bits(two.x), atoms::float_bits(two.y)});
      }
    }
  }

  // ---- Direct: a lane's pairs of neighbours -----------------------------------------------------------------------

  template <bool ADDS_C, class Values>
  HGEMM_DEVICE void store_direct(Values const& values, int block, int batch, int row_first, int column_first) const {
    Out* const d = static_cast<Out*>(problem.d) + batch * problem.batch_stride_d;
    HGEMM_UNROLL
    for (int half = 0; half < 2; ++half) {
      HGEMM_UNROLL
      for (int j = 0; j < Policy::tile_n / 8; ++j) {
        Pair const at = pair_at(j, half * 2, row_first, column_first);
        if (!at.first_inside) continue;
        Two const two = finished<ADDS_C>(values, block, j, half * 2, batch, row_first, column_first);
        Out* const to = d + at.m * problem.ldd + at.n;
        if (paired && at.second_inside) {
          Piece<Out, 2> const both = {{atoms::from_float<Out>(two.x), atoms::from_float<Out>(two.y)}};
          atoms::st_global(reinterpret_cast<Piece<Out, 2>*>(to), both);
        } else {
          atoms::st_global(to, atoms::from_float<Out>(two.x));
          if (at.second_inside) atoms::st_global(to + (Policy::swapped ? problem.ldd : 1), atoms::from_float<Out>(two.y));
        }
      }
    }
  }

  // ---- The arithmetic of two neighbours of a row of sums ----------------------------------------------------------

  struct Two {
    float x, y;
  };
  // Where they are in D: the first at (m, n), the second one further along n, or along m where operands are swapped.
  struct Pair {
    int m, n;
    bool first_inside, second_inside;
  };
  static constexpr bool paired = !Policy::swapped && Policy::align_d >= 2;  // one access may serve both

  HGEMM_DEVICE Pair pair_at(int j, int e, int row_first, int column_first) const {
    int const row = row_first + thread / 32 * 16 + thread % 32 / 4 + e / 2 * 8;
    int const column = column_first + j * 8 + thread % 4 * 2;
    int const rows = Policy::swapped ? problem.n : problem.m, columns = Policy::swapped ? problem.m : problem.n;
    return {Policy::swapped ? column : row, Policy::swapped ? row : column, row < rows && column < columns,
            row < rows && column + 1 < columns};
  }

  // Elements e and e + 1 of the 8 columns j of a block whose first sum is at (row_first, column_first).
  template <bool ADDS_C, class Values>
  HGEMM_DEVICE Two finished(Values const& values, int block, int j, int e, int batch, int row_first, int column_first) const {
    Two two = {problem.alpha * values.value(block, j, e), problem.alpha * values.value(block, j, e + 1)};
    Pair const at = pair_at(j, e, row_first, column_first);
    if constexpr (ADDS_C) {
      Out const* const c = static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c + at.m * problem.ldc + at.n;
      if (paired && at.second_inside) {
        Piece<Out, 2> const old = atoms::ld_global(reinterpret_cast<Piece<Out, 2> const*>(c));
        two.x += problem.beta * atoms::to_float(old.element[0]);
        two.y += problem.beta * atoms::to_float(old.element[1]);
      } else {
        if (at.first_inside) two.x += problem.beta * atoms::to_float(atoms::ld_global(c));
        if (at.second_inside) {
          two.y += problem.beta * atoms::to_float(atoms::ld_global(c + (Policy::swapped ? problem.ldc : 1)));
        }
      }
    }
    if constexpr (Policy::bias != Bias::none) {
      constexpr bool along_n = Policy::bias == Bias::row;
      Out const* const bias = static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias;
      Out const* const first = bias + (along_n ? at.n : at.m);
      if (at.first_inside) two.x += atoms::to_float(atoms::ld_global(first));
      if (at.second_inside) two.y += atoms::to_float(atoms::ld_global(first + (along_n != Policy::swapped ? 1 : 0)));
    }
    return {activate<Policy::activation>(two.x), activate<Policy::activation>(two.y)};
  }
};

}  // namespace hgemm
