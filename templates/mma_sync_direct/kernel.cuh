// The kernel for few rows: fragments of mma.sync come from global memory. Only operands that are not K-major pass shared memory,
// within a warp.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). Reading B is the bound. Every warp computes the CTA's tile over its part of k, with as many loads of B in flight as fit into registers. The
// warps add their accumulators in shared memory at the end.
#pragma once

#include <common/atoms_sm90.cuh>
#include <common/warp_epilogue.cuh>

namespace hgemm {

// ---- Types --------------------------------------------------------------------------------------------------------

// One operand's blocks of (32 of k, 8 rows) of a warp, if it is MN-major. The gap between blocks avoids bank conflicts.
template <class Policy, class Side, int EXTENT>
struct StagedBlocks {
  static constexpr int blocks = EXTENT / 8, pitch = 32 + 8 / blocks;
  Vec16B vecs[Policy::vectors][blocks][pitch];
};
template <class Side>
struct NothingStaged {};
template <class Policy, class Side, int EXTENT, bool K_MAJOR = Side::k_major>
struct StagedOf { using Type = StagedBlocks<Policy, Side, EXTENT>; };
template <class Policy, class Side, int EXTENT>
struct StagedOf<Policy, Side, EXTENT, true> { using Type = NothingStaged<Side>; };
template <class Policy>
struct StagedOperands : StagedOf<Policy, typename Policy::A, Policy::tile_m>::Type,
                        StagedOf<Policy, typename Policy::B, Policy::tile_n>::Type {};

// Of one warp: the operands that it transposes, then its partial accumulators.
template <class Policy>
union WarpStorage {
  StagedOperands<Policy> staged;
  float partials[Policy::tile_m][Policy::tile_n + 1];  // one unused float after each row
};
template <class Policy>
struct SharedStorage {
  alignas(16) WarpStorage<Policy> warps[Policy::warps];
};

// The constants that WarpEpilogue expects. This kernel uses only its arithmetic of one element.
template <class Policy>
struct ByElement : Policy {
  static constexpr int warp_m = 16, warp_n = 8, warps_m = 1, epilogue_pitch = 0, epilogue_rows = 16, epilogue_odd_words = 0;
  static constexpr bool store_through_shared = false;
};

// ---- One warp's part of A and B -----------------------------------------------------------------------------------

// A warp's part of A or B: EXTENT rows of A, or columns of B, and `vectors` blocks of 32 of k. Lane l multiplies 8 elements of k of
// each block, from l % 4 * 8 on. They are the fragments of two instructions. The instructions assign other k to these elements, but
// the same to A as to B, so the sums are the same.
//
// If the operand is K-major, a lane loads its own elements. If not, it loads 8 rows of one k, and ldmatrix transposes: the k of lane l
// are in the order in which it puts them into the fragments.
template <class Policy, class Side, int EXTENT>
struct WarpOperand {
  using In = typename Policy::In;
  using Staged = typename StagedOf<Policy, Side, EXTENT>::Type;

  static constexpr bool k_major = Side::k_major;
  static constexpr int vectors = Policy::vectors;  // blocks of k in flight
  static constexpr int blocks = EXTENT / 8;        // of 8 rows
  static constexpr int block_k = 32, chunk = 8;    // elements of k in a block, and of a lane in it

  static_assert(sizeof(In) == 2, "a vector has 8 elements");
  static_assert(k_major || 32 % blocks == 0, "a load of a warp has whole lines of k");

  In const* first;  // the matrix, from the warp's part of the first k-tile on
  int64_t leading;  // dimension
  int tile_first, extent;
  Vec16B loaded[vectors][blocks];

  HGEMM_DEVICE WarpOperand(void const* matrix, int64_t leading, int tile_first, int extent)
      : leading(leading), tile_first(tile_first), extent(extent) {
    first = static_cast<In const*>(matrix) + warp_k() * (k_major ? 1 : leading);
  }

  HGEMM_DEVICE static int lane() { return atoms::thread_index() % 32; }
  // The first k of a k-tile that this warp loads.
  HGEMM_DEVICE static int warp_k() { return atoms::thread_index() / 32 * vectors * block_k; }
  // Rows outside the matrix are those of its last row. What they add to is never stored.
  HGEMM_DEVICE int inside(int row) const { return row < extent ? row : extent - 1; }

  // Of an MN-major block of k: which 8 rows vector i of this lane has, its place in the stage, and its k.
  HGEMM_DEVICE static int vec_block() { return lane() % blocks; }
  HGEMM_DEVICE static int vec_place(int i) { return lane() / blocks + i * (32 / blocks); }
  HGEMM_DEVICE static int vec_k(int i) {
    int const place = vec_place(i);
    return place % 8 / 2 * 8 + place / 8 * 2 + place % 2;
  }

  // Loads the k-tile that begins at k. The matrix has `k_left` of it, in whole chunks; zeros follow. ONCE leaves no copy in the L1
  // cache. Without WHOLE, an MN-major matrix may end within a vector, whose elements are then loaded one by one.
  template <bool ONCE, bool WHOLE>
  HGEMM_DEVICE void load(int k, int k_left) {
    int const left = k_left - warp_k();
    HGEMM_UNROLL
    for (int v = 0; v < vectors; ++v) {
      HGEMM_UNROLL
      for (int i = 0; i < blocks; ++i) {
        int const at = v * block_k + (k_major ? lane() % 4 * chunk : vec_k(i));
        if constexpr (k_major) {
          int const row = inside(tile_first + i * 8 + lane() / 4);
          loaded[v][i] = load_at<ONCE>(first + row * leading + k + at, at < left);
        } else {
          In const* const line = first + (k + at) * leading;
          int const row = tile_first + vec_block() * 8;
          if constexpr (WHOLE) {
            loaded[v][i] = load_at<ONCE>(line + (row < extent ? row : extent - 8), at < left);
          } else {
            loaded[v][i] = one_by_one(line, row, at < left);
          }
        }
      }
    }
  }

  template <bool ONCE>
  HGEMM_DEVICE static Vec16B load_at(In const* elements, bool valid) {
    auto const* const vec = reinterpret_cast<Vec16B const*>(elements);
    if constexpr (ONCE) {
      return atoms::ld_global_once(vec, valid);
    } else {
      return valid ? atoms::ld_global(vec) : Vec16B{};
    }
  }

  HGEMM_DEVICE Vec16B one_by_one(In const* line, int row, bool valid) const {
    Vec<uint16_t, 8> elements{};
    HGEMM_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (valid) elements.element[i] = atoms::ld_global(reinterpret_cast<uint16_t const*>(line + inside(row + i)));
    }
    return *reinterpret_cast<Vec16B const*>(&elements);
  }

  // Passes the elements to the lanes that multiply them. The warp meets before and after all of these.
  HGEMM_DEVICE void stage(Staged& staged) const {
    if constexpr (!k_major) {
      HGEMM_UNROLL
      for (int v = 0; v < vectors; ++v) {
        HGEMM_UNROLL
        for (int i = 0; i < blocks; ++i) atoms::st_shared(&staged.vecs[v][vec_block()][vec_place(i)], loaded[v][i]);
      }
    }
  }
  // This lane's 8 elements of row lane / 4 of block i.
  HGEMM_DEVICE Vec16B fragments(Staged const& staged, int v, int i) const {
    if constexpr (k_major) {
      return loaded[v][i];
    } else {
      Vec16B result;
      atoms::ldmatrix_x4<true>(&staged.vecs[v][i][lane()], result.x, result.y, result.z, result.w);
      return result;
    }
  }
};

template <class Policy>
struct WarpTile {
  using In = typename Policy::In;
  using A = WarpOperand<Policy, typename Policy::A, Policy::tile_m>;
  using B = WarpOperand<Policy, typename Policy::B, Policy::tile_n>;

  static constexpr int vectors = Policy::vectors;
  static constexpr bool stages = !A::k_major || !B::k_major;
  static constexpr int mma_per_k_tile = 2 * vectors * B::blocks;

  static_assert(Policy::tile_m == 8 || Policy::tile_m == 16, "an instruction has 16 rows, of which 8 may stay zero");
  static_assert(Policy::tile_k == Policy::warps * vectors * A::block_k, "warps share a k-tile");

  A a;
  B b;
  WarpStorage<Policy>& storage;
  float accumulators[B::blocks][4];  // (16, 8) each: rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next

  HGEMM_DEVICE WarpTile(Problem const& problem, WarpStorage<Policy>& storage, int batch, int m_first, int n_first)
      : a(static_cast<In const*>(problem.a) + batch * problem.batch_stride_a, problem.lda, m_first, problem.m),
        b(static_cast<In const*>(problem.b) + batch * problem.batch_stride_b, problem.ldb, n_first, problem.n),
        storage(storage) {
    HGEMM_UNROLL
    for (int j = 0; j < B::blocks; ++j) {
      accumulators[j][0] = accumulators[j][1] = accumulators[j][2] = accumulators[j][3] = 0.f;
    }
  }

  // Multiplies k-tiles. B is loaded first, because it is not in L2.
  template <bool WHOLE>
  HGEMM_DEVICE void multiply(int whole_k) {
    HGEMM_NO_UNROLL
    for (int k = 0; k < whole_k; k += Policy::tile_k) {
      b.template load<true, WHOLE>(k, whole_k - k);
      a.template load<false, WHOLE>(k, whole_k - k);
      if constexpr (stages) {
        atoms::warp_barrier();  // the fragments of the previous k-tile have been read
        b.stage(storage.staged);
        a.stage(storage.staged);
        atoms::warp_barrier();
      }
      HGEMM_UNROLL
      for (int v = 0; v < vectors; ++v) {
        Vec16B const upper = a.fragments(storage.staged, v, 0);
        Vec16B const lower = A::blocks > 1 ? a.fragments(storage.staged, v, A::blocks - 1) : Vec16B{};
        uint32_t const a_first[4] = {upper.x, lower.x, upper.y, lower.y}, a_second[4] = {upper.z, lower.z, upper.w, lower.w};
        HGEMM_UNROLL
        for (int j = 0; j < B::blocks; ++j) {
          Vec16B const column = b.fragments(storage.staged, v, j);
          uint32_t const b_first[2] = {column.x, column.y}, b_second[2] = {column.z, column.w};
          atoms::mma<In, 16>(accumulators[j], a_first, b_first);
          atoms::mma<In, 16>(accumulators[j], a_second, b_second);
        }
      }
    }
    if constexpr (stages) atoms::warp_barrier();
  }
};

// ---- Sum over the warps -------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void store_partials(WarpTile<Policy> const& tile) {
  int const lane = atoms::thread_index() % 32;
  HGEMM_UNROLL
  for (int i = 0; i < Policy::tile_m / 8; ++i) {
    HGEMM_UNROLL
    for (int j = 0; j < Policy::tile_n / 8; ++j) {
      HGEMM_UNROLL
      for (int e = 0; e < 2; ++e) {
        atoms::st_shared(&tile.storage.partials[i * 8 + lane / 4][j * 8 + lane % 4 * 2 + e], tile.accumulators[j][i * 2 + e]);
      }
    }
  }
}

// The product of a row of A and a column of B from k = `first` on.
template <class Policy>
HGEMM_DEVICE float end_of_product(Problem const& problem, int batch, int row, int column, int first) {
  using In = typename Policy::In;
  In const* const a = static_cast<In const*>(problem.a) + batch * problem.batch_stride_a;
  In const* const b = static_cast<In const*>(problem.b) + batch * problem.batch_stride_b;
  float sum = 0.f;
  HGEMM_NO_UNROLL
  for (int k = first; k < problem.k; ++k) {
    In const* const a_k = a + (Policy::A::k_major ? row * problem.lda + k : k * problem.lda + row);
    In const* const b_k = b + (Policy::B::k_major ? column * problem.ldb + k : k * problem.ldb + column);
    sum += atoms::to_float(atoms::ld_global(a_k)) * atoms::to_float(atoms::ld_global(b_k));
  }
  return sum;
}

// Each thread finishes elements of the tile, one at a time: it adds the partials in the order of the warps, and what follows the
// last whole vector of k.
template <Bias BIAS, class Policy>
HGEMM_DEVICE void store_sums(WarpEpilogue<ByElement<Policy>> const& epilogue, SharedStorage<Policy> const& shared, int batch,
                             int m_first, int n_first, int whole_k) {
  static constexpr int parts = accumulators_of<Policy>, columns = Policy::tile_n / parts;  // of D
  HGEMM_NO_UNROLL
  for (int index = atoms::thread_index(); index < Policy::tile_m * columns; index += Policy::threads) {
    int const row = index / columns, column = index % columns;
    if (m_first + row >= epilogue.problem.m || n_first / parts + column >= epilogue.columns()) continue;
    float sums[parts];
    HGEMM_UNROLL
    for (int part = 0; part < parts; ++part) {
      int const from = parts == 1 ? column : column / 8 * 16 + part * 8 + column % 8;  // column of the tile of A B
      float sum = atoms::ld_shared(&shared.warps[0].partials[row][from]);
      HGEMM_UNROLL
      for (int warp = 1; warp < Policy::warps; ++warp) sum += atoms::ld_shared(&shared.warps[warp].partials[row][from]);
      sums[part] = sum + end_of_product<Policy>(epilogue.problem, batch, m_first + row, n_first + from, whole_k);
    }
    epilogue.template store_vec<1, BIAS, 1>(sums, m_first + row, n_first / parts + column);
  }
}

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void gemm(Problem const& problem) {
  static_assert(Policy::threads == Policy::warps * 32 && Policy::schedule == Schedule::one_tile,
                "warps share k, and a CTA computes one tile");
  HGEMM_SHARED(SharedStorage<Policy>, shared);

  // ---- This CTA's tile of D ----------------------------------------------------------------------------------------
  Scheduler<Policy> scheduler(problem);
  Work work;
  if (!scheduler.next(work)) return;
  int const m_first = work.tile_m * Policy::tile_m, n_first = work.tile_n * Policy::tile_n;
  WarpTile<Policy> tile(problem, shared.warps[atoms::thread_index() / 32], work.batch, m_first, n_first);

  // ---- Wait for the previous grid (programmatic dependent launch), then allow the next ------------------------------
  atoms::wait_on_dependent_grids();
  atoms::launch_dependent_grids();

  // ---- Mainloop ----------------------------------------------------------------------------------------------------
  using A = typename WarpTile<Policy>::A;
  using B = typename WarpTile<Policy>::B;
  int const whole_k = problem.k / A::chunk * A::chunk;
  if ((A::k_major || problem.m % 8 == 0) && (B::k_major || problem.n % 8 == 0)) {
    tile.template multiply<true>(whole_k);
  } else {
    tile.template multiply<false>(whole_k);
  }

  // ---- Epilogue ----------------------------------------------------------------------------------------------------
  store_partials<Policy>(tile);
  atoms::cta_barrier();
  WarpEpilogue<ByElement<Policy>> const epilogue(problem, work.batch, m_first, n_first);
  if (epilogue.has_bias(Bias::row)) {
    store_sums<Bias::row, Policy>(epilogue, shared, work.batch, m_first, n_first, whole_k);
  } else if (epilogue.has_bias(Bias::column)) {
    store_sums<Bias::column, Policy>(epilogue, shared, work.batch, m_first, n_first, whole_k);
  } else {
    store_sums<Bias::none, Policy>(epilogue, shared, work.batch, m_first, n_first, whole_k);
  }
}

}  // namespace hgemm
