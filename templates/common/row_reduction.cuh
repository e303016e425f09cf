// Reductions along the rows of D, as further results of an expression. Each warp reduces its columns of a row and stores the result in
// the workspace. The last CTA of a row of tiles reduces these numbers in the order of the columns, so the result does not depend on
// which CTA is last.
#pragma once

#include <common/expression.cuh>
#include <common/split_k.cuh>

namespace hgemm {

// Workspace: the counters, of which each row of CTA tiles takes one; then a float for each reduction, batch, panel and row of D, as
// (reductions, batch, panels, m). A panel is PANEL columns of B.
template <int PANEL>
struct RowPartials {
  HGEMM_DEVICE static int panels(Problem const& problem) { return (problem.n + PANEL - 1) / PANEL; }

  // The number of one reduction, panel and row.
  HGEMM_DEVICE static float* at(Problem const& problem, int slot, int batch, int panel, int row) {
    float* const first = reinterpret_cast<float*>(static_cast<char*>(problem.workspace) + workspace_counter_bytes);
    return first + ((int64_t(slot) * problem.batch + batch) * panels(problem) + panel) * problem.m + row;
  }
};

// Finishes the rows of a tile, after all of its partial results are stored. `Threads` finish the tile together.
template <class Policy, class Accumulators, class Threads, int PANEL>
struct RowReduction {
  using Expression = typename Policy::Expression;
  using Partials = RowPartials<PANEL>;

  HGEMM_DEVICE static void finish(Problem const& problem, int batch, int m_first, int n_first, uint32_t& is_last) {
    if (m_first >= problem.m || n_first >= problem.n) return;  // beyond D, in a cluster
    int const tiles_m = (problem.m + Policy::tile_m - 1) / Policy::tile_m;
    uint32_t const tiles_n = (problem.n + Policy::tile_n - 1) / Policy::tile_n;
    uint32_t* const counter = static_cast<uint32_t*>(problem.workspace) + batch * tiles_m + m_first / Policy::tile_m;
    if (!SplitK<Policy, Accumulators, Threads>::last_to_arrive(counter, tiles_n, is_last)) return;
    HGEMM_UNROLL
    for (int slot = 0; slot < Expression::reductions; ++slot) {
      HGEMM_NO_UNROLL
      for (int row = m_first + Threads::index(); row < m_first + Policy::tile_m && row < problem.m; row += Threads::count) {
        float sum = reduction_start<Policy>(slot);
        HGEMM_NO_UNROLL
        for (int panel = 0; panel < Partials::panels(problem); ++panel) {
          sum = reduced<Policy>(slot, sum, atoms::ld_global_l2(Partials::at(problem, slot, batch, panel, row)));
        }
        Aux const& aux = aux_of<Policy>(problem)[Expression::reduction_index(slot)];
        atoms::st_global(aux_result<float>(aux, batch) + row, sum);
      }
    }
    if (Threads::index() == 0) atoms::st_global(counter, 0u);
  }
};

}  // namespace hgemm
