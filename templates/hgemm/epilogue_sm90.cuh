// A warpgroup's accumulators to D: activation(alpha * sum + beta * C + bias), by way of shared memory and the TMA, or stored by
// each thread where its elements lie.
#pragma once

#include <hgemm/epilogue.cuh>
#include <hgemm/mainloop_sm90.cuh>

namespace hgemm {

enum class Store { direct, tma };

template <class Policy>
struct EpilogueSm90 {
  using Out = typename Policy::Out;
  using Accumulators = WarpgroupAccumulators<Policy>;

  static constexpr bool by_tma = Policy::store == Store::tma;
  static constexpr int columns = Policy::epilogue_columns;  // of D, staged in a turn
  static constexpr int box_columns = Policy::store_columns;
  static constexpr int row_bytes = box_columns * sizeof(Out);  // of a box: 128, 64, 32 or 16
  static constexpr int box_bytes = 64 * row_bytes;
  static constexpr int turns = (Policy::tile_n + columns - 1) / columns;

  // 64 rows and `columns` of D a turn, as boxes of (64, box_columns), for each consumer.
  struct Shared {
    alignas(1024) unsigned char turn[by_tma ? Policy::consumers : 1][by_tma ? Policy::epilogue_stages : 1]
                                    [by_tma ? 64 * columns * sizeof(Out) : 16];
  };

  Problem const& problem;
  TensorMap const& map;
  Shared& shared;
  int consumer, thread;  // warpgroup, and thread in it
  int stage = 0;

  HGEMM_DEVICE EpilogueSm90(Problem const& problem, TensorMap const& map, Shared& shared, int consumer)
      : problem(problem), map(map), shared(shared), consumer(consumer), thread(atoms::thread_index() % 128) {}

  // Finishes (consumer_m, tile_n) sums whose first element is (m_first, n_first) of D.
  template <class Values>
  HGEMM_DEVICE void run(Values const& values, int batch, int m_first, int n_first) {
    HGEMM_UNROLL
    for (int block = 0; block < Accumulators::blocks; ++block) {
      if constexpr (by_tma) {
        HGEMM_UNROLL
        for (int turn = 0; turn < turns; ++turn) store_turn(values, block, turn, batch, m_first + block * 64, n_first);
      } else {
        store_direct(values, block, batch, m_first + block * 64, n_first);
      }
    }
  }

  // Waits until the TMA has read all that was staged.
  HGEMM_DEVICE void finish() const {
    if constexpr (by_tma) {
      if (thread == 0) atoms::tma_store_wait_read<0>();
    }
  }

  // ---- By TMA: `columns` of 64 rows a turn ------------------------------------------------------------------------

  template <class Values>
  HGEMM_DEVICE void store_turn(Values const& values, int block, int turn, int batch, int m_first, int n_first) {
    constexpr int last_columns = Policy::tile_n - (turns - 1) * columns;
    unsigned char* const boxes = shared.turn[consumer][stage];  // (columns / box_columns) of (64, box_columns)
    int const count = turn == turns - 1 ? last_columns : columns;

    if (thread == 0) atoms::tma_store_wait_read<Policy::epilogue_stages - 1>();
    atoms::named_barrier(1 + consumer, 128);  // the boxes may be written
    stage_columns(values, block, turn, count, boxes, batch, m_first, n_first);
    atoms::async_proxy_fence();
    atoms::named_barrier(1 + consumer, 128);  // the boxes are written
    if (thread == 0) {
      HGEMM_UNROLL
      for (int column = 0; column < count; column += box_columns) {
        atoms::tma_store(map, boxes + column / box_columns * box_bytes, n_first + turn * columns + column, m_first, batch);
      }
      atoms::tma_store_commit();
    }
    stage = stage + 1 == Policy::epilogue_stages ? 0 : stage + 1;
  }

  // Byte offset of 16-byte piece `piece` of a row, as the TMA swizzles boxes of this width.
  HGEMM_DEVICE static int offset(int row, int piece) {
    int const bytes = row * row_bytes + piece * 16;
    return bytes ^ (bytes >> 3 & (row_bytes - 16));
  }

  template <class Values>
  HGEMM_DEVICE void stage_columns(Values const& values, int block, int turn, int count, unsigned char* boxes, int batch,
                                  int m_first, int n_first) const {
    int const warp = thread / 32, lane = thread % 32;
    constexpr int groups_a_box = box_columns / 8;
    if constexpr (sizeof(Out) == 2) {
      int const row = warp * 16 + lane % 16;  // whose pieces this lane addresses for stmatrix
      HGEMM_UNROLL
      for (int j = 0; j < count / 8; j += groups_a_box >= 2 ? 2 : 1) {
        unsigned char* const box = boxes + j / groups_a_box * box_bytes;
        int const group = turn * (columns / 8) + j;
        uint32_t const r0 = pair(values, block, group, 0, batch, m_first, n_first);
        uint32_t const r1 = pair(values, block, group, 2, batch, m_first, n_first);
        if constexpr (groups_a_box >= 2) {
          uint32_t const r2 = pair(values, block, group + 1, 0, batch, m_first, n_first);
          uint32_t const r3 = pair(values, block, group + 1, 2, batch, m_first, n_first);
          atoms::stmatrix_x4(box + offset(row, j % groups_a_box + lane / 16), r0, r1, r2, r3);
        } else {
          atoms::stmatrix_x2(box + offset(row, 0), r0, r1);
        }
      }
    } else {
      HGEMM_UNROLL
      for (int j = 0; j < count / 8; ++j) {
        HGEMM_UNROLL
        for (int half = 0; half < 2; ++half) {
          int const row = warp * 16 + lane / 4 + half * 8;
          int const column = j * 8 + lane % 4 * 2;
          Two const sums = finished(values, block, turn * (columns / 8) + j, half * 2, batch, m_first, n_first);
          unsigned char* const box = boxes + column / box_columns * box_bytes;
          unsigned char* const to = box + offset(row, column % box_columns / 4) + column % 4 * 4;
          atoms::st_shared(reinterpret_cast<Word2*>(to), Word2{atoms::float_bits(sums.x), atoms::float_bits(sums.y)});
        }
      }
    }
  }

  // ---- Direct: a lane's pairs of neighbours -----------------------------------------------------------------------

  template <class Values>
  HGEMM_DEVICE void store_direct(Values const& values, int block, int batch, int m_first, int n_first) const {
    Out* const d = static_cast<Out*>(problem.d) + batch * problem.batch_stride_d;
    HGEMM_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = m_first + thread / 32 * 16 + thread % 32 / 4 + half * 8;
      HGEMM_UNROLL
      for (int j = 0; j < Policy::tile_n / 8; ++j) {
        int const column = n_first + j * 8 + thread % 4 * 2;
        if (row >= problem.m || column >= problem.n) continue;
        Two const sums = finished(values, block, j, half * 2, batch, m_first, n_first);
        Out* const to = d + row * problem.ldd + column;
        if (Policy::align_d >= 2 && column + 1 < problem.n) {
          Piece<Out, 2> const both = {{atoms::from_float<Out>(sums.x), atoms::from_float<Out>(sums.y)}};
          atoms::st_global(reinterpret_cast<Piece<Out, 2>*>(to), both);
        } else {
          atoms::st_global(to, atoms::from_float<Out>(sums.x));
          if (column + 1 < problem.n) atoms::st_global(to + 1, atoms::from_float<Out>(sums.y));
        }
      }
    }
  }

  // ---- The arithmetic of two neighbours of a row ------------------------------------------------------------------

  struct Two {
    float x, y;
  };

  // Elements e and e + 1 of the 8 columns j of a block whose first element is (m_first, n_first) of D.
  template <class Values>
  HGEMM_DEVICE Two finished(Values const& values, int block, int j, int e, int batch, int m_first, int n_first) const {
    Two sums = {problem.alpha * values.value(block, j, e), problem.alpha * values.value(block, j, e + 1)};
    if constexpr (Policy::beta || Policy::bias != Bias::none) {
      int const row = m_first + thread / 32 * 16 + thread % 32 / 4 + e / 2 * 8;
      int const column = n_first + j * 8 + thread % 4 * 2;
      bool const inside = row < problem.m && column < problem.n, both = inside && column + 1 < problem.n;
      if (Policy::beta && problem.beta != 0.f) {
        Out const* const c = static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c + row * problem.ldc + column;
        if (Policy::align_d >= 2 && both) {
          Piece<Out, 2> const old = atoms::ld_global(reinterpret_cast<Piece<Out, 2> const*>(c));
          sums.x += problem.beta * atoms::to_float(old.element[0]);
          sums.y += problem.beta * atoms::to_float(old.element[1]);
        } else {
          if (inside) sums.x += problem.beta * atoms::to_float(atoms::ld_global(c));
          if (both) sums.y += problem.beta * atoms::to_float(atoms::ld_global(c + 1));
        }
      }
      if constexpr (Policy::bias != Bias::none) {
        Out const* const bias = static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias;
        constexpr bool along_row = Policy::bias == Bias::row;
        if (inside) sums.x += atoms::to_float(atoms::ld_global(bias + (along_row ? column : row)));
        if (both) sums.y += atoms::to_float(atoms::ld_global(bias + (along_row ? column + 1 : row)));
      }
    }
    return {activate<Policy::activation>(sums.x), activate<Policy::activation>(sums.y)};
  }

  template <class Values>
  HGEMM_DEVICE uint32_t pair(Values const& values, int block, int j, int e, int batch, int m_first, int n_first) const {
    Two const sums = finished(values, block, j, e, batch, m_first, n_first);
    return atoms::pack<Out>(sums.x, sums.y);
  }
};

}  // namespace hgemm
