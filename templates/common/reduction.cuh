// Reductions of the rows and columns of D, as further results of an expression. Each warp reduces its columns of a row, and 16 rows
// of a column, and stores the results in the workspace. A CTA reduces its own numbers of a column. The last CTA of a row or column of
// tiles reduces the rest in the order of the columns or rows, so the result does not depend on which CTA is last.
#pragma once

#include <common/expression.cuh>
#include <common/split_k.cuh>

namespace hgemm {

// Workspace: the counters, of which each row of CTA tiles takes one, then each column; then a float for each reduction of rows,
// batch, segment and row of D, as (reductions, batch, segments of a row, m); then one for each reduction of columns, as
// (reductions, batch, segments of a column, columns of D). A segment of a row is SEGMENT_COLUMNS columns of B. A segment of a
// column is 16 rows.
template <class Policy, int SEGMENT_COLUMNS>
struct ReductionPartials {
  static constexpr int segment_rows = 16;

  HGEMM_DEVICE static int segments_of_row(Problem const& problem) { return (problem.n + SEGMENT_COLUMNS - 1) / SEGMENT_COLUMNS; }
  HGEMM_DEVICE static int segments_of_column(Problem const& problem) { return (problem.m + segment_rows - 1) / segment_rows; }
  HGEMM_DEVICE static float* first(Problem const& problem) {
    return reinterpret_cast<float*>(static_cast<char*>(problem.workspace) + workspace_counter_bytes);
  }

  // The number of one reduction of rows, segment and row.
  HGEMM_DEVICE static float* of_row(Problem const& problem, int slot, int batch, int segment, int row) {
    return first(problem) + ((int64_t(slot) * problem.batch + batch) * segments_of_row(problem) + segment) * problem.m + row;
  }

  // The number of one reduction of columns, segment and column. The slots of rows come first.
  HGEMM_DEVICE static float* of_column(Problem const& problem, int slot, int batch, int segment, int column) {
    int64_t const of_rows = int64_t(reductions_of<Policy>) * problem.batch * segments_of_row(problem) * problem.m;
    int64_t const matrix = int64_t(slot - reductions_of<Policy>) * problem.batch + batch;
    return first(problem) + of_rows + (matrix * segments_of_column(problem) + segment) * columns_of_d<Policy>(problem) + column;
  }
};

// Finishes the reductions of a tile, after all of its partial results are stored. `Threads` finish the tile together.
template <class Policy, class Accumulators, class Threads, int SEGMENT_COLUMNS>
struct Reduction {
  using Expression = typename Policy::Expression;
  using Partials = ReductionPartials<Policy, SEGMENT_COLUMNS>;
  using Counter = SplitK<Policy, Accumulators, Threads>;

  static constexpr int rows = reductions_of<Policy>, columns = column_reductions_of<Policy>;

  HGEMM_DEVICE static void finish(Problem const& problem, int batch, int m_first, int n_first, uint32_t& is_last) {
    if (m_first >= problem.m || n_first >= problem.n) return;  // beyond D, in a cluster
    uint32_t const tiles_m = (problem.m + Policy::tile_m - 1) / Policy::tile_m;
    uint32_t const tiles_n = (problem.n + Policy::tile_n - 1) / Policy::tile_n;
    uint32_t* const counters = static_cast<uint32_t*>(problem.workspace);
    if constexpr (rows > 0) {
      finish_rows(problem, batch, m_first, counters + batch * tiles_m + m_first / Policy::tile_m, tiles_n, is_last);
    }
    if constexpr (columns > 0) {
      uint32_t* const of_columns = counters + (rows > 0 ? problem.batch * tiles_m : 0);
      finish_columns(problem, batch, m_first, n_first, of_columns + batch * tiles_n + n_first / Policy::tile_n, tiles_m, is_last);
    }
  }

  HGEMM_DEVICE static void finish_rows(Problem const& problem, int batch, int m_first, uint32_t* counter, uint32_t tiles,
                                       uint32_t& is_last) {
    if (!Counter::last_to_arrive(counter, tiles, is_last)) return;
    HGEMM_UNROLL
    for (int slot = 0; slot < rows; ++slot) {
      HGEMM_NO_UNROLL
      for (int row = m_first + Threads::index(); row < m_first + Policy::tile_m && row < problem.m; row += Threads::count) {
        float const* const from = Partials::of_row(problem, slot, batch, 0, row);
        store(problem, batch, slot, row, reduce_along(slot, from, problem.m, Partials::segments_of_row(problem)));
      }
    }
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
  }

  HGEMM_DEVICE static void finish_columns(Problem const& problem, int batch, int m_first, int n_first, uint32_t* counter,
                                          uint32_t tiles, uint32_t& is_last) {
    constexpr int segments = Policy::tile_m / Partials::segment_rows;  // of a tile's column
    constexpr int gated_parts = accumulators_of<Policy>;
    int const first = n_first / gated_parts + Threads::index(), all = Partials::segments_of_column(problem);
    int const stride = columns_of_d<Policy>(problem);
    int const end = min(n_first / gated_parts + Policy::tile_n / gated_parts, stride);
    int const segment = m_first / Partials::segment_rows;
    Threads::barrier();  // all warps have stored their numbers
    HGEMM_UNROLL
    for (int slot = rows; slot < rows + columns; ++slot) {
      HGEMM_NO_UNROLL
      for (int column = first; column < end; column += Threads::count) {
        float* const of_tile = Partials::of_column(problem, slot, batch, segment, column);
        atoms::st_global(of_tile, reduce_along(slot, of_tile, stride, min(segments, all - segment)));
      }
    }
    if (!Counter::last_to_arrive(counter, tiles, is_last)) return;
    HGEMM_UNROLL
    for (int slot = rows; slot < rows + columns; ++slot) {
      HGEMM_NO_UNROLL
      for (int column = first; column < end; column += Threads::count) {
        float const* const from = Partials::of_column(problem, slot, batch, 0, column);
        store(problem, batch, slot, column, reduce_along(slot, from, int64_t(stride) * segments, int(tiles)));
      }
    }
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
  }

  // Reduces `count` numbers that are `step` apart, in their order. Several loads are in flight at a time.
  HGEMM_DEVICE static float reduce_along(int slot, float const* from, int64_t step, int count) {
    constexpr int in_flight = 8;
    float const start = reduction_start<Policy>(slot);
    float sum = start;
    HGEMM_NO_UNROLL
    for (int at = 0; at < count; at += in_flight, from += in_flight * step) {
      float some[in_flight];
      HGEMM_UNROLL
      for (int i = 0; i < in_flight; ++i) {
        some[i] = start;
        if (at + i < count) some[i] = atoms::ld_global_l2(from + i * step);
      }
      HGEMM_UNROLL
      for (int i = 0; i < in_flight; ++i) sum = reduced<Policy>(slot, sum, some[i]);
    }
    return sum;
  }

  HGEMM_DEVICE static void store(Problem const& problem, int batch, int slot, int at, float number) {
    Aux const& aux = aux_of<Policy>(problem)[Expression::reduction_index(slot)];
    atoms::st_global(aux_result<float>(aux, batch) + at, number);
  }
};

}  // namespace hgemm
