// Accumulators to D: activation(alpha * sum + beta * C + bias), stored by each thread where its elements lie, or by way of
// shared memory as whole 16-byte pieces of rows.
#pragma once

#include <hgemm/atoms.cuh>
#include <hgemm/cta_threads.cuh>
#include <hgemm/problem.cuh>

namespace hgemm {

enum class Bias { none, row, column };
enum class Activation { none, relu, gelu, silu };

// The share of a normal distribution beyond |x|: t P(t) exp(-x^2 / 2) with t = 1 / (1 + 0.29 |x|), a form of Hastings'. The
// coefficients are fitted to err by 4.4e-8 / |x| at most, and by 1.4e-4 of it. Half as many instructions as erff takes.
HGEMM_DEVICE float normal_tail(float x) {
  float const t = atoms::reciprocal(1.f + 0.29f * atoms::magnitude(x));
  float const root = 0.8493218f * x;  // of x^2 / 2 as a power of two
  float sum = -0.0902636424f;
  sum = sum * t + 0.290165365f;
  sum = sum * t - 0.10063342f;
  sum = sum * t + 0.184518576f;
  sum = sum * t + 0.0991741493f;
  sum = sum * t + 0.117039025f;
  return sum * (t * atoms::power_of_two(-root * root));
}

template <Activation ACTIVATION>
HGEMM_DEVICE float activate(float x) {
  if constexpr (ACTIVATION == Activation::relu) return x < 0.f ? 0.f : x;  // NaN stays NaN
  if constexpr (ACTIVATION == Activation::gelu) return x * (x > 0.f ? 1.f - normal_tail(x) : normal_tail(x));
  if constexpr (ACTIVATION == Activation::silu) return x * atoms::reciprocal(1.f + atoms::power_of_two(-1.44269504f * x));
  return x;
}

// COUNT neighbouring elements of a row as one access.
template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Piece {
  T element[COUNT];
};

// Rows of a warp's part that are staged at once: 16, or the 8 that a policy says which has less shared memory left.
template <class Policy, class = void>
constexpr int staged_rows_of = 16;
template <class Policy>
constexpr int staged_rows_of<Policy, decltype(void(Policy::staged_rows))> = Policy::staged_rows;

// Threads are those that have sums.
template <class Policy, class Threads = CtaThreads<Policy>>
struct Epilogue {
  using Out = typename Policy::Out;

  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;
  static constexpr int piece = 16 / sizeof(Out);  // elements of 16 bytes
  static constexpr int pitch = Policy::epilogue_pitch;
  static constexpr int staged_rows = staged_rows_of<Policy>;

  // Some rows of each warp's part of D as floats.
  struct Shared {
    alignas(16) float rows[Threads::count / 32][Policy::store_through_shared ? staged_rows * pitch : 4];
  };

  Problem const& problem;
  Out const* c;  // (m, n)
  Out* d;        // (m, n)
  Out const* bias;
  int row_first, column_first;  // of this warp's part
  int lane;

  HGEMM_DEVICE Epilogue(Problem const& problem, int batch, int m_first, int n_first)
      : problem(problem),
        c(static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c),
        d(static_cast<Out*>(problem.d) + batch * problem.batch_stride_d),
        bias(static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias) {
    int const warp = atoms::thread_index() / 32;
    lane = atoms::thread_index() % 32;
    row_first = m_first + warp % Policy::warps_m * Policy::warp_m;
    column_first = n_first + warp / Policy::warps_m * Policy::warp_n;
  }

  template <class Values>
  HGEMM_DEVICE void run(Values const& values, Shared& shared) const {
    if constexpr (Policy::store_through_shared) {
      store_through_shared(values, shared.rows[atoms::thread_index() / 32]);
    } else {
      store_direct(values);
    }
  }

  // ---- Direct: a lane's pairs of neighbours -----------------------------------------------------------------------

  // One 16 x 8 after the other, in a loop: the code below is there once, however many there are.
  template <class Values>
  HGEMM_DEVICE void store_direct(Values const& values) const {
    constexpr int width = Policy::align_d < 2 ? 1 : 2;
    HGEMM_NO_UNROLL
    for (int index = 0; index < mma_m * mma_n; ++index) {
      float tile[4];
      pick(values, index, tile);
      int const column = column_first + index % mma_n * 8 + lane % 4 * 2;
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) {
        int const row = row_first + index / mma_n * 16 + half * 8 + lane / 4;
        if (row < problem.m && column + 2 <= problem.n) {
          finish<width>(tile + half * 2, row, column);
          if constexpr (width == 1) finish<1>(tile + half * 2 + 1, row, column + 1);
        } else if (row < problem.m && column < problem.n) {
          finish<1>(tile + half * 2, row, column);
        }
      }
    }
  }

  // ---- Through shared memory: 16 or 8 rows of the warp's part at a time -------------------------------------------

  // Rows lie in words of 4 floats; where a piece is two words, the odd ones follow the even ones, so that neither the
  // pairs written nor the words read meet a bank twice.
  static constexpr int odd_words_at = piece == 8 ? Policy::epilogue_odd_words * 4 : 4;  // floats
  static constexpr int piece_step = piece == 8 ? 4 : 8;                                 // floats from 8 columns to the next

  // The barriers are of all threads: where warps may have diverged, a warp's own is a call, for which registers must be free.
  template <class Values>
  HGEMM_DEVICE void store_through_shared(Values const& values, float* rows) const {
    float* const to = rows + lane / 4 * pitch + lane % 4 / 2 * odd_words_at + lane % 2 * 2;
    HGEMM_NO_UNROLL
    for (int turn = 0; turn < mma_m * (16 / staged_rows); ++turn) {
      if constexpr (staged_rows == 16) {
        stage(values, turn, to);
      } else {
        stage_half(values, turn, to);
      }
      Threads::barrier();
      store_rows(rows, row_first + turn * staged_rows);
      Threads::barrier();
    }
  }

  // Finishes the staged rows of sums, a piece of a row a lane at a time.
  HGEMM_DEVICE void store_rows(float const* rows, int first) const {
    constexpr int pieces_per_row = Policy::warp_n / piece;
    constexpr int pieces = staged_rows * pieces_per_row;
    constexpr int width = Policy::align_d < piece ? Policy::align_d : piece;
    HGEMM_NO_UNROLL
    for (int turn = 0; turn < pieces; turn += 32) {  // the same turns for all lanes
      int const index = turn + lane;
      if (pieces % 32 != 0 && index >= pieces) continue;
      int const in_order = index / pieces_per_row;
      // Where half a row fills a phase of shared memory, rows 0 and 2, then 1 and 3 share one: 1 and 0 would share banks.
      int const row = pieces_per_row % 8 == 4 ? (in_order & 12) | (in_order & 1) << 1 | (in_order >> 1 & 1) : in_order;
      int const along = index % pieces_per_row * piece;  // column in the warp's part
      int const left = first + row < problem.m ? problem.n - column_first - along : 0;
      float const* const from = rows + row * pitch + index % pieces_per_row * 4;
      if (left >= piece) {
        float sums[piece];
        HGEMM_UNROLL
        for (int e = 0; e < piece; e += 4) {
          Word4 const word = atoms::ld_shared(reinterpret_cast<Word4 const*>(from + e / 4 * odd_words_at));
          sums[e] = atoms::bits_float(word.x);
          sums[e + 1] = atoms::bits_float(word.y);
          sums[e + 2] = atoms::bits_float(word.z);
          sums[e + 3] = atoms::bits_float(word.w);
        }
        HGEMM_UNROLL
        for (int e = 0; e < piece; e += width) finish<width>(sums + e, first + row, column_first + along + e);
      } else {
        HGEMM_NO_UNROLL
        for (int e = 0; e < left; ++e) {
          float const sum = atoms::ld_shared(from + e / 4 * odd_words_at + e % 4);
          finish<1>(&sum, first + row, column_first + along + e);
        }
      }
    }
  }

  // ---- Sums by a number that is not a constant --------------------------------------------------------------------

  // Registers have no addresses: each has a branch of its own here, of which all lanes take the same. Halves become floats
  // behind the branches, since what is the same in every turn of a loop would be computed before it, for all registers.

  // Writes this lane's part of rows i * 16 to i * 16 + 15 where they are staged.
  template <class Values>
  HGEMM_DEVICE static void stage(Values const& values, int i, float* to) {
    uint32_t row[mma_n][2];
    HGEMM_UNROLL
    for (int here = 0; here < mma_m; ++here) {
      if (here != i) continue;
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        if constexpr (Values::in_pairs) {
          row[j][0] = values.halves[here][j][0];
          row[j][1] = values.halves[here][j][1];
        } else {
          float const(&tile)[4] = values.floats[here][j];
          stage_tile(tile[0], tile[1], tile[2], tile[3], to + j * piece_step);
        }
      }
    }
    if constexpr (Values::in_pairs) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        stage_tile(atoms::low_half(row[j][0]), atoms::high_half(row[j][0]), atoms::low_half(row[j][1]),
                   atoms::high_half(row[j][1]), to + j * piece_step);
      }
    }
  }

  // The same of rows turn * 8 to turn * 8 + 7: of 16 rows the upper ones, then the lower ones.
  template <class Values>
  HGEMM_DEVICE static void stage_half(Values const& values, int turn, float* to) {
    uint32_t row[mma_n];
    HGEMM_UNROLL
    for (int here = 0; here < mma_m * 2; ++here) {
      if (here != turn) continue;
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        if constexpr (Values::in_pairs) {
          row[j] = values.halves[here / 2][j][here % 2];
        } else {
          float const* const pair = &values.floats[here / 2][j][here % 2 * 2];
          stage_pair(pair[0], pair[1], to + j * piece_step);
        }
      }
    }
    if constexpr (Values::in_pairs) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) stage_pair(atoms::low_half(row[j]), atoms::high_half(row[j]), to + j * piece_step);
    }
  }

  HGEMM_DEVICE static void stage_pair(float x, float y, float* to) {
    Word2 const pair = {atoms::float_bits(x), atoms::float_bits(y)};
    atoms::st_shared(reinterpret_cast<Word2*>(to), pair);
  }

  HGEMM_DEVICE static void stage_tile(float x, float y, float x_below, float y_below, float* to) {
    Word2 const upper = {atoms::float_bits(x), atoms::float_bits(y)};
    Word2 const lower = {atoms::float_bits(x_below), atoms::float_bits(y_below)};
    atoms::st_shared(reinterpret_cast<Word2*>(to), upper);
    atoms::st_shared(reinterpret_cast<Word2*>(to + 8 * pitch), lower);
  }

  // Copies this lane's part of the 16 x 8 at (index / mma_n, index % mma_n).
  template <class Values>
  HGEMM_DEVICE static void pick(Values const& values, int index, float (&tile)[4]) {
    uint32_t pair[2];
    HGEMM_UNROLL
    for (int here = 0; here < mma_m * mma_n; ++here) {
      if (here != index) continue;
      if constexpr (Values::in_pairs) {
        pair[0] = values.halves[here / mma_n][here % mma_n][0];
        pair[1] = values.halves[here / mma_n][here % mma_n][1];
      } else {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) tile[e] = values.floats[here / mma_n][here % mma_n][e];
      }
    }
    if constexpr (Values::in_pairs) {
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) tile[e] = e % 2 == 0 ? atoms::low_half(pair[e / 2]) : atoms::high_half(pair[e / 2]);
    }
  }

  // ---- The arithmetic and the store of WIDTH neighbours of a row --------------------------------------------------

  template <int WIDTH>
  HGEMM_DEVICE void finish(float const* sums, int row, int column) const {
    bool const adds_c = Policy::beta && problem.beta != 0.f;
    Piece<Out, WIDTH> c_piece;
    if (adds_c) c_piece = atoms::ld_global(reinterpret_cast<Piece<Out, WIDTH> const*>(c + row * problem.ldc + column));
    Piece<Out, WIDTH> d_piece;
    HGEMM_UNROLL
    for (int e = 0; e < WIDTH; ++e) {
      float x = problem.alpha * sums[e];
      if (adds_c) x += problem.beta * atoms::to_float(c_piece.element[e]);
      if constexpr (Policy::bias == Bias::row) x += atoms::to_float(atoms::ld_global(bias + column + e));
      if constexpr (Policy::bias == Bias::column) x += atoms::to_float(atoms::ld_global(bias + row));
      d_piece.element[e] = atoms::from_float<Out>(activate<Policy::activation>(x));
    }
    atoms::st_global(reinterpret_cast<Piece<Out, WIDTH>*>(d + row * problem.ldd + column), d_piece);
  }
};

}  // namespace hgemm
