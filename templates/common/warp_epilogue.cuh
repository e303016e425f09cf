// A warp's accumulators to D: activation(alpha * accumulator + beta * C + bias). Either each lane stores its own elements, or
// rows go through shared memory and are stored as whole 16-byte vectors.
#pragma once

#include <common/activation.cuh>
#include <common/reduction.cuh>
#include <common/scheduler.cuh>

namespace hgemm {

// `Threads` are those that hold accumulators.
template <class Policy, class Threads = CtaThreads<Policy>>
struct WarpEpilogue {
  using Out = typename Policy::Out;

  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;
  static constexpr bool reduces = has_reductions<Policy>;
  static constexpr int gated_parts = accumulators_of<Policy>;  // 2 if D is of gated pairs: neighbouring 16 x 8 blocks
  static constexpr int vec_elements = 16 / sizeof(Out);  // of a 16-byte vector
  static constexpr int pitch = Policy::epilogue_pitch;
  static constexpr int rows_at_once = Policy::epilogue_rows;  // of the warp tile in shared memory: 16 or 8

  struct Shared {
    alignas(16) float rows[Threads::count / 32][Policy::store_through_shared ? rows_at_once * pitch : 4];  // (warps, ...)
  };

  Problem const& problem;
  Out const* c;  // (m, n)
  Out* d;        // (m, n)
  Out const* bias;
  int row_first, column_first;  // of the warp tile, in D
  int lane, batch;

  HGEMM_DEVICE WarpEpilogue(Problem const& problem, int batch, int m_first, int n_first)
      : problem(problem),
        c(matrix_of<Policy>(static_cast<Out const*>(problem.c), batch, problem.batch_stride_c, Policy::beta && problem.beta != 0.f)),
        d(matrix_of<Policy>(static_cast<Out*>(problem.d), batch, problem.batch_stride_d, true)),
        bias(static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias),
        batch(batch) {
    int const warp = atoms::thread_index() / 32;
    lane = atoms::thread_index() % 32;
    row_first = m_first + warp % Policy::warps_m * Policy::warp_m;
    column_first = (n_first + warp / Policy::warps_m * Policy::warp_n) / gated_parts;
  }

  template <class Accumulators>
  HGEMM_DEVICE void run(Accumulators const& accumulators, Shared& shared) const {
    if constexpr (Policy::store_through_shared) {
      store_through_shared(accumulators, shared.rows[atoms::thread_index() / 32]);
    } else if constexpr (reduces) {
      store_direct_reduced(accumulators);
    } else {
      store_direct(accumulators);
    }
  }

  HGEMM_DEVICE int columns() const { return columns_of_d<Policy>(problem); }

  // The bias of one launch. A loop over elements of D has a copy for each kind, because a test in it is as slow as an addition.
  HGEMM_DEVICE bool has_bias(Bias kind) const {
    return Policy::bias == Bias::launch ? problem.bias_kind == uint32_t(kind) : Policy::bias == kind;
  }

  // ---- Direct: a lane stores its pairs of neighbours --------------------------------------------------------------

  // One 16 x 8 block after the other. A loop keeps one copy of the code below, however many blocks there are.
  template <class Accumulators>
  HGEMM_DEVICE void store_direct(Accumulators const& accumulators) const {
    HGEMM_NO_UNROLL
    for (int index = 0; index < mma_m * mma_n / gated_parts; ++index) {
      float block[gated_parts * 4];  // (gated_parts, 4)
      HGEMM_UNROLL
      for (int part = 0; part < gated_parts; ++part) pick(accumulators, index * gated_parts + part, block + part * 4);
      if (has_bias(Bias::row)) {
        store_block<Bias::row>(block, index);
      } else if (has_bias(Bias::column)) {
        store_block<Bias::column>(block, index);
      } else {
        store_block<Bias::none>(block, index);
      }
    }
  }

  template <Bias BIAS>
  HGEMM_DEVICE void store_block(float const (&block)[gated_parts * 4], int index) const {
    constexpr int width = Policy::align_d < 2 ? 1 : 2;
    int const column = column_first + index % (mma_n / gated_parts) * 8 + lane % 4 * 2;
    HGEMM_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = row_first + index / (mma_n / gated_parts) * 16 + half * 8 + lane / 4;
      if (row < problem.m && column + 2 <= columns()) {
        store_vec<width, BIAS>(block + half * 2, row, column);
        if constexpr (width == 1) store_vec<1, BIAS>(block + half * 2 + 1, row, column + 1);
      } else if (row < problem.m && column < columns()) {
        store_vec<1, BIAS>(block + half * 2, row, column);
      }
    }
  }

  // ---- Reductions -------------------------------------------------------------------------------------------------

  // As store_direct. Each lane reduces its columns of two rows of 16 rows of blocks, and the rows of two columns of a block.
  template <class Accumulators>
  HGEMM_DEVICE void store_direct_reduced(Accumulators const& accumulators) const {
    constexpr int width = Policy::align_d < 2 ? 1 : 2, blocks = mma_n / gated_parts;
    LanePartials<Policy> partials[2];  // of the upper and the lower row
    HGEMM_NO_UNROLL
    for (int index = 0; index < mma_m * blocks; ++index) {
      float block[gated_parts * 4];  // (gated_parts, 4)
      HGEMM_UNROLL
      for (int part = 0; part < gated_parts; ++part) pick(accumulators, index * gated_parts + part, block + part * 4);
      int const column = column_first + index % blocks * 8 + lane % 4 * 2;
      HGEMM_UNROLL
      for (int half = 0; half < 2; ++half) {
        int const row = row_first + index / blocks * 16 + half * 8 + lane / 4;
        if (index % blocks == 0) clear(partials[half]);
        if constexpr (column_reductions_of<Policy> > 0) clear_columns(partials[half]);
        if (row < problem.m && column + 2 <= columns()) {
          store_expression<width, 4>(block + half * 2, row, column, partials[half]);
          if constexpr (width == 1) store_expression<1, 4, SecondOfPairAt>(block + half * 2 + 1, row, column + 1, partials[half]);
        } else if (row < problem.m && column < columns()) {
          store_expression<1, 4>(block + half * 2, row, column, partials[half]);
        }
        if (index % blocks == blocks - 1 && reductions_of<Policy> > 0) {
          reduce_quad(partials[half]);
          if (lane % 4 == 0 && row < problem.m) store_partials(partials[half], row);
        }
      }
      if constexpr (column_reductions_of<Policy> > 0) store_columns(partials, row_first + index / blocks * 16, column);
    }
  }

  // Stores what the warp has reduced of 16 rows of the columns of a block. This lane has two of them.
  HGEMM_DEVICE void store_columns(LanePartials<Policy> const (&partials)[2], int row, int column) const {
    static_assert(!Policy::store_through_shared, "a lane needs whole blocks");
    HGEMM_UNROLL
    for (int slot = 0; slot < column_reductions_of<Policy>; ++slot) {
      int const behind_rows = reductions_of<Policy> + slot;
      OutKind const kind = Policy::Expression::reduction_kind(behind_rows);
      HGEMM_UNROLL
      for (int e = 0; e < 2; ++e) {
        float const sum = reduce_octet(kind, reduced(kind, partials[0].column[slot][e], partials[1].column[slot][e]));
        if (lane >= 4 || row >= problem.m || column + e >= columns()) continue;
        using Numbers = ReductionPartials<Policy, Policy::warp_n>;
        atoms::st_global(Numbers::of_column(problem, behind_rows, batch, row / Numbers::segment_rows, column + e), sum);
      }
    }
  }

  // Reduces the rows in shared memory, whose vectors now start with the partial results of each slot.
  HGEMM_DEVICE void reduce_rows(float const* rows, int first) const {
    constexpr int vecs_per_row = Policy::warp_n / gated_parts / vec_elements;
    if (lane >= rows_at_once || first + lane >= problem.m) return;
    LanePartials<Policy> partials;
    clear(partials);
    HGEMM_NO_UNROLL
    for (int vec = 0; vec < vecs_per_row; ++vec) {
      float const* const from = rows + lane * pitch + (gated_parts == 1 ? vec * 4 : first_float(vec));
      HGEMM_UNROLL
      for (int slot = 0; slot < reductions_of<Policy>; ++slot) {
        partials.sum[slot] = reduced<Policy>(slot, partials.sum[slot], atoms::ld_shared(from + slot));
      }
    }
    store_partials(partials, first + lane);
  }

  // Stores what the warp has reduced of a row.
  HGEMM_DEVICE void store_partials(LanePartials<Policy> const& partials, int row) const {
    int const segment = column_first * gated_parts / Policy::warp_n;
    if (column_first >= columns()) return;
    HGEMM_UNROLL
    for (int slot = 0; slot < reductions_of<Policy>; ++slot) {
      atoms::st_global(ReductionPartials<Policy, Policy::warp_n>::of_row(problem, slot, batch, segment, row), partials.sum[slot]);
    }
  }

  // ---- Through shared memory: rows_at_once rows of the warp tile at a time ----------------------------------------

  // Rows are words of 4 floats. If a 16-byte vector of D is two words, the odd words follow all even ones. Then neither the
  // pairs written nor the words read have a bank conflict.
  static constexpr int odd_words_at = vec_elements == 8 ? Policy::epilogue_odd_words * 4 : 4;  // floats
  static constexpr int block_step = vec_elements == 8 ? 4 : 8;  // floats from 8 columns to the next 8

  // The barriers are of all threads. A warp barrier would become a call if warps may have diverged, and a call needs registers.
  template <class Accumulators>
  HGEMM_DEVICE void store_through_shared(Accumulators const& accumulators, float* rows) const {
    float* const to = rows + lane / 4 * pitch + lane % 4 / 2 * odd_words_at + lane % 2 * 2;
    HGEMM_NO_UNROLL
    for (int pass = 0; pass < mma_m * (16 / rows_at_once); ++pass) {
      if constexpr (rows_at_once == 16) {
        write_16_rows(accumulators, pass, to);
      } else {
        write_8_rows(accumulators, pass, to);
      }
      Threads::barrier();
      int const first = row_first + pass * rows_at_once;
      if (has_bias(Bias::row)) {
        store_rows<Bias::row>(rows, first);
      } else if (has_bias(Bias::column)) {
        store_rows<Bias::column>(rows, first);
      } else {
        store_rows<Bias::none>(rows, first);
      }
      if constexpr (reduces) {
        Threads::barrier();
        reduce_rows(rows, first);
      }
      Threads::barrier();
    }
  }

  // Stores the rows in shared memory to D. Each lane takes one 16-byte vector of a row at a time.
  template <Bias BIAS>
  HGEMM_DEVICE void store_rows(float* rows, int first) const {
    constexpr int vecs_per_row = Policy::warp_n / gated_parts / vec_elements;
    constexpr int vecs = rows_at_once * vecs_per_row;
    constexpr int width = Policy::align_d < vec_elements ? Policy::align_d : vec_elements;
    HGEMM_NO_UNROLL
    for (int begin = 0; begin < vecs; begin += 32) {  // the same trip count for all lanes
      int const index = begin + lane;
      if (vecs % 32 != 0 && index >= vecs) continue;
      int const in_order = index / vecs_per_row;
      // If half a row fills a shared-memory phase, rows 0 and 2 share one, then 1 and 3. Rows 0 and 1 would share banks.
      int const row = vecs_per_row % 8 == 4 ? (in_order & 12) | (in_order & 1) << 1 | (in_order >> 1 & 1) : in_order;
      int const along = index % vecs_per_row * vec_elements;  // column in the warp tile
      int const left = first + row < problem.m ? columns() - column_first - along : 0;
      LanePartials<Policy> partials;
      if constexpr (reduces) clear(partials);
      float const* const from =
          rows + row * pitch + (gated_parts == 1 ? index % vecs_per_row * 4 : first_float(index % vecs_per_row));
      if (left >= vec_elements) {
        float values[gated_parts * vec_elements];  // (gated_parts, vec_elements)
        HGEMM_UNROLL
        for (int e = 0; e < gated_parts * vec_elements; e += 4) {
          int const at = e / vec_elements * block_step + e % vec_elements / 4 * odd_words_at;
          Vec16B const word = atoms::ld_shared(reinterpret_cast<Vec16B const*>(from + at));
          values[e] = atoms::bits_float(word.x);
          values[e + 1] = atoms::bits_float(word.y);
          values[e + 2] = atoms::bits_float(word.z);
          values[e + 3] = atoms::bits_float(word.w);
        }
        HGEMM_UNROLL
        for (int e = 0; e < vec_elements; e += width) {
          if constexpr (reduces) {
            store_expression<width, vec_elements>(values + e, first + row, column_first + along + e, partials);
          } else {
            store_vec<width, BIAS>(values + e, first + row, column_first + along + e);
          }
        }
      } else if constexpr (gated_parts == 1) {  // the columns of a gated pair are a multiple of 8
        HGEMM_NO_UNROLL
        for (int e = 0; e < left; ++e) {
          float const value = atoms::ld_shared(from + e / 4 * odd_words_at + e % 4);
          if constexpr (reduces) {
            store_expression<1, 0>(&value, first + row, column_first + along + e, partials);
          } else {
            store_vec<1, BIAS>(&value, first + row, column_first + along + e);
          }
        }
      }
      if constexpr (reduces) {  // no other lane reads this vector
        HGEMM_UNROLL
        for (int slot = 0; slot < reductions_of<Policy>; ++slot) {
          atoms::st_shared(const_cast<float*>(from) + slot, partials.sum[slot]);
        }
      }
    }
  }

  // Where the first part of vector `index` of a gated pair starts in a staged row. The second part is 8 columns behind it.
  HGEMM_DEVICE static int first_float(int index) {
    return vec_elements == 8 ? index * 8 : index / 2 * 16 + index % 2 * 4;
  }

  // ---- Accumulators by a run-time index ---------------------------------------------------------------------------

  // Registers have no addresses, so each index has a branch of its own, which all lanes take together. Halves become floats
  // after the branches: before them the compiler would hoist the conversion of all registers out of the loop.

  // Writes this lane's part of rows i * 16 to i * 16 + 15 to shared memory.
  template <class Accumulators>
  HGEMM_DEVICE static void write_16_rows(Accumulators const& accumulators, int i, float* to) {
    uint32_t row[mma_n][2];  // (mma_n, 2 registers)
    HGEMM_UNROLL
    for (int here = 0; here < mma_m; ++here) {
      if (here != i) continue;
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        if constexpr (Accumulators::in_pairs) {
          row[j][0] = accumulators.halves[here][j][0];
          row[j][1] = accumulators.halves[here][j][1];
        } else {
          float const(&block)[4] = accumulators.floats[here][j];
          write_block(block[0], block[1], block[2], block[3], to + j * block_step);
        }
      }
    }
    if constexpr (Accumulators::in_pairs) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        write_block(atoms::low_half(row[j][0]), atoms::high_half(row[j][0]), atoms::low_half(row[j][1]),
                    atoms::high_half(row[j][1]), to + j * block_step);
      }
    }
  }

  // Writes rows pass * 8 to pass * 8 + 7: the upper 8 of 16 rows, then the lower 8.
  template <class Accumulators>
  HGEMM_DEVICE static void write_8_rows(Accumulators const& accumulators, int pass, float* to) {
    uint32_t row[mma_n];
    HGEMM_UNROLL
    for (int here = 0; here < mma_m * 2; ++here) {
      if (here != pass) continue;
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        if constexpr (Accumulators::in_pairs) {
          row[j] = accumulators.halves[here / 2][j][here % 2];
        } else {
          float const* const pair = &accumulators.floats[here / 2][j][here % 2 * 2];
          write_pair(pair[0], pair[1], to + j * block_step);
        }
      }
    }
    if constexpr (Accumulators::in_pairs) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) write_pair(atoms::low_half(row[j]), atoms::high_half(row[j]), to + j * block_step);
    }
  }

  HGEMM_DEVICE static void write_pair(float x, float y, float* to) {
    Vec8B const pair = {atoms::float_bits(x), atoms::float_bits(y)};
    atoms::st_shared(reinterpret_cast<Vec8B*>(to), pair);
  }

  HGEMM_DEVICE static void write_block(float x, float y, float x_below, float y_below, float* to) {
    Vec8B const upper = {atoms::float_bits(x), atoms::float_bits(y)};
    Vec8B const lower = {atoms::float_bits(x_below), atoms::float_bits(y_below)};
    atoms::st_shared(reinterpret_cast<Vec8B*>(to), upper);
    atoms::st_shared(reinterpret_cast<Vec8B*>(to + 8 * pitch), lower);
  }

  // Copies this lane's part of the 16 x 8 block (index / mma_n, index % mma_n).
  template <class Accumulators>
  HGEMM_DEVICE static void pick(Accumulators const& accumulators, int index, float* block) {
    uint32_t pair[2];
    HGEMM_UNROLL
    for (int here = 0; here < mma_m * mma_n; ++here) {
      if (here != index) continue;
      if constexpr (Accumulators::in_pairs) {
        pair[0] = accumulators.halves[here / mma_n][here % mma_n][0];
        pair[1] = accumulators.halves[here / mma_n][here % mma_n][1];
      } else {
        HGEMM_UNROLL
        for (int e = 0; e < 4; ++e) block[e] = accumulators.floats[here / mma_n][here % mma_n][e];
      }
    }
    if constexpr (Accumulators::in_pairs) {
      HGEMM_UNROLL
      for (int e = 0; e < 4; ++e) block[e] = e % 2 == 0 ? atoms::low_half(pair[e / 2]) : atoms::high_half(pair[e / 2]);
    }
  }

  // ---- Arithmetic and store of WIDTH neighbours of a row ----------------------------------------------------------

  // For a gated pair, the second numbers follow SECOND floats behind the first ones.
  template <int WIDTH, Bias BIAS, int SECOND = Policy::store_through_shared ? vec_elements : 4>
  HGEMM_DEVICE void store_vec(float const* values, int row, int column) const {
    if constexpr (has_expression<Policy>) {
      LanePartials<Policy> none;
      store_expression<WIDTH, SECOND>(values, row, column, none);
    } else {
      bool const adds_c = Policy::beta && problem.beta != 0.f;
      Vec<Out, WIDTH> c_vec;
      if (adds_c) c_vec = atoms::ld_global(reinterpret_cast<Vec<Out, WIDTH> const*>(c + row * problem.ldc + column));
      Vec<Out, WIDTH> d_vec;
      HGEMM_UNROLL
      for (int e = 0; e < WIDTH; ++e) {
        float x = problem.alpha * values[e];
        if (adds_c) x += problem.beta * atoms::to_float(c_vec.element[e]);
        if constexpr (BIAS == Bias::row) x += atoms::to_float(atoms::ld_global(bias + column + e));
        if constexpr (BIAS == Bias::column) x += atoms::to_float(atoms::ld_global(bias + row));
        d_vec.element[e] = atoms::from_float<Out>(Policy::Activation::apply(x));
      }
      atoms::st_global(reinterpret_cast<Vec<Out, WIDTH>*>(d + row * problem.ldd + column), d_vec);
    }
  }

  template <int WIDTH, int SECOND, class Place = NeighboursAt>
  HGEMM_DEVICE void store_expression(float const* values, int row, int column, LanePartials<Policy>& partials) const {
    Place at;
    at.aux = aux_of<Policy>(problem), at.batch = batch, at.row = row, at.column = column;
    NeighbourInputs<Policy, WIDTH> inputs;
    NeighbourOutputs<Policy, WIDTH> outputs;
    inputs.load(at);
    Vec<Out, WIDTH> d_vec;
    HGEMM_UNROLL
    for (int e = 0; e < WIDTH; ++e) {
      d_vec.element[e] = atoms::from_float<Out>(
          Policy::Expression::apply(values[e], gated_parts == 2 ? values[SECOND + e] : 0.f, inputs, outputs, problem, e));
    }
    atoms::st_global(reinterpret_cast<Vec<Out, WIDTH>*>(d + row * problem.ldd + column), d_vec);
    outputs.store(at);
    if constexpr (reduces) outputs.reduce(at, partials);
  }
};

}  // namespace hgemm
