// The kernel for few rows: fragments of mma.sync come from global memory, without shared memory in between.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). Reading B takes most of the time. Every warp computes the
// CTA's tile over its part of k, with as many loads of B in flight as fit into registers. The warps add their accumulators in shared
// memory at the end.
#pragma once

#include <common/atoms_sm90.cuh>
#include <common/warp_epilogue.cuh>

namespace hgemm {

// ---- Types --------------------------------------------------------------------------------------------------------

// Partial accumulators, with one unused float after each row.
template <class Policy>
struct SharedStorage {
  float partials[Policy::warps][Policy::tile_m][Policy::tile_n + 1];  // (warps, tile_m, tile_n)
};

// The constants that WarpEpilogue expects. This kernel uses only its arithmetic of one element.
template <class Policy>
struct ByElement : Policy {
  static constexpr int warp_m = 16, warp_n = 8, warps_m = 1, epilogue_pitch = 0, epilogue_rows = 16, epilogue_odd_words = 0;
  static constexpr bool store_through_shared = false;
};

// ---- One warp's part of A or B ------------------------------------------------------------------------------------

// A block is 8 rows of A, or 8 columns of B, by 32 of k. It is four words of each lane, the fragments of two instructions: lane l has
// row l / 4, and 8 of k from l % 4 * 8 on, two in a word. The instructions assign other k to these elements, but the same to A as to B,
// so the sums are the same.
//
// Below, the EXTENT rows of an operand are rows of A or columns of B. Rows outside the matrix are copies of others. What they add to is
// never stored.
inline constexpr int block_rows = 8, block_k = 32;

// An operand with k contiguous. A lane loads its part of a block as one vector.
template <class Policy, int EXTENT>
struct KMajorOperand {
  using In = typename Policy::In;
  using Words = Vec<uint32_t, 4>;

  static constexpr int vectors = Policy::vectors, blocks = EXTENT / block_rows;  // of k, in flight; of rows

  In const* rows[blocks];  // this lane's, at its part of the first k-tile
  uint32_t words[vectors][blocks][4];

  HGEMM_DEVICE KMajorOperand(void const* matrix, int batch, int64_t batch_stride, int64_t leading_dimension, int first, int extent, int) {
    int const lane = atoms::thread_index() % 32, k = lane_k();
    HGEMM_UNROLL
    for (int i = 0; i < blocks; ++i) {
      int const row = inside(first + row_of(i, lane / 4), extent);
      rows[i] = static_cast<In const*>(matrix) + batch * batch_stride + row * leading_dimension + k;
    }
  }

  // The row of the tile that is row `index` of a block.
  HGEMM_DEVICE static constexpr int row_of(int block, int index) { return block * block_rows + index; }

  // The first k of a k-tile that this lane loads.
  HGEMM_DEVICE static int lane_k() {
    return atoms::thread_index() / 32 * vectors * block_k + atoms::thread_index() % 4 * 8;
  }
  HGEMM_DEVICE static int inside(int row, int extent) { return row < extent ? row : extent - 1; }

  // Loads the k-tile that begins at k. The matrix has `k_left` of it, in whole vectors; zeros follow. If ONCE, nothing stays in L1.
  template <bool ONCE>
  HGEMM_DEVICE void load(int k, int k_left) {
    int const left = k_left - lane_k();
    HGEMM_UNROLL
    for (int v = 0; v < vectors; ++v) {
      HGEMM_UNROLL
      for (int i = 0; i < blocks; ++i) {
        Words vec;
        if constexpr (ONCE) {
          vec = atoms::ld_global_once(words_at(rows[i] + k + v * block_k), v * block_k < left);
        } else {
          vec = v * block_k < left ? atoms::ld_global(words_at(rows[i] + k + v * block_k)) : Words{};
        }
        HGEMM_UNROLL
        for (int word = 0; word < 4; ++word) words[v][i][word] = vec.element[word];
      }
    }
  }
  HGEMM_DEVICE static Words const* words_at(In const* elements) { return reinterpret_cast<Words const*>(elements); }

  HGEMM_DEVICE void transpose(int) {}
};

// An operand with rows contiguous. A lane loads a vector of rows at one k, two rows of each block. Then word i of all lanes is an 8 x 8
// matrix of a block, (k, rows), which movmatrix transposes. Rows stay where they arrive: row_of() tells their order.
template <class Policy, int EXTENT>
struct MnMajorOperand {
  using In = typename Policy::In;

  static constexpr int vectors = Policy::vectors, blocks = EXTENT / block_rows;
  static constexpr int group = blocks % 4 == 0 ? 4 : blocks % 2 == 0 ? 2 : 1;  // blocks of a vector, one word of each
  static constexpr int groups = blocks / group, group_rows = group * block_rows, chunk = 2 * group;  // rows of a vector

  using Words = Vec<uint32_t, group>;

  In const* columns[groups];  // this lane's vectors, at the first k that it loads
  int64_t step;               // elements from one k to the next
  int rows;                   // in the matrix, from this lane's first one on
  bool ragged;                // whether vectors of the last k exceed the matrix: memory may end there
  uint32_t words[vectors][blocks][4];

  HGEMM_DEVICE MnMajorOperand(void const* matrix, int batch, int64_t batch_stride, int64_t leading_dimension, int first, int extent, int k)
      : step(leading_dimension) {
    int const row = first + atoms::thread_index() % 32 % 4 * chunk;
    rows = extent - row;
    ragged = k % 8 == 0 && extent - first < EXTENT && extent % chunk != 0;
    HGEMM_UNROLL
    for (int i = 0; i < groups; ++i) {
      int const here = row + i * group_rows < extent ? row + i * group_rows : (extent - 1) / chunk * chunk;
      columns[i] = static_cast<In const*>(matrix) + batch * batch_stride + lane_k() * step + here;
    }
  }

  HGEMM_DEVICE static constexpr int row_of(int block, int index) {
    return block / group * group_rows + index / 2 * chunk + block % group * 2 + index % 2;
  }

  // Word i of a block has the k that is 2 * i behind this one.
  HGEMM_DEVICE static int lane_k() {
    int const lane = atoms::thread_index() % 32;
    return atoms::thread_index() / 32 * vectors * block_k + (lane / 8 * 8 + lane / 4 % 2);
  }

  template <bool ONCE>
  HGEMM_DEVICE void load(int k, int k_left) {
    int const left = k_left - lane_k() - ragged;
    In const* at[groups];
    HGEMM_UNROLL
    for (int i = 0; i < groups; ++i) at[i] = columns[i] + k * step;
    HGEMM_UNROLL
    for (int v = 0; v < vectors; ++v) {
      HGEMM_UNROLL
      for (int word = 0; word < 4; ++word) {
        int const here = v * block_k + word * 2;
        HGEMM_UNROLL
        for (int i = 0; i < groups; ++i) {
          if constexpr (ONCE) {
            place(v, i, word, atoms::ld_global_once(words_at(at[i] + here * step), here < left));
          } else {
            place(v, i, word, here < left ? atoms::ld_global(words_at(at[i] + here * step)) : Words{});
          }
        }
      }
    }
    if (ragged && k_left <= Policy::tile_k) load_end(k, left);
  }
  HGEMM_DEVICE static Words const* words_at(In const* elements) { return reinterpret_cast<Words const*>(elements); }

  // Loads the last k of the matrix element by element. It is `end` behind the first k of this lane, which may have another one.
  HGEMM_DEVICE void load_end(int k, int end) {
    HGEMM_UNROLL
    for (int i = 0; i < groups; ++i) {
      Vec<In, chunk> vec;
      HGEMM_UNROLL
      for (int e = 0; e < chunk; ++e) {
        bool const inside = e + i * group_rows < rows;
        vec.element[e] = inside ? atoms::ld_global(columns[i] + (k + end) * step + e) : atoms::from_float<In>(0.f);
      }
      HGEMM_UNROLL
      for (int v = 0; v < vectors; ++v) {
        HGEMM_UNROLL
        for (int word = 0; word < 4; ++word) {
          if (v * block_k + word * 2 == end) place(v, i, word, reinterpret_cast<Words const&>(vec));
        }
      }
    }
  }

  HGEMM_DEVICE void place(int v, int i, int word, Words const& vec) {
    HGEMM_UNROLL
    for (int block = 0; block < group; ++block) words[v][i * group + block][word] = vec.element[block];
  }

  HGEMM_DEVICE void transpose(int v) {
    HGEMM_UNROLL
    for (int word = 0; word < 4; ++word) {
      HGEMM_UNROLL
      for (int i = 0; i < blocks; ++i) words[v][i][word] = atoms::transposed(words[v][i][word]);
    }
  }
};

template <class Policy, bool K_MAJOR, int EXTENT>
struct WarpOperand : KMajorOperand<Policy, EXTENT> {
  using KMajorOperand<Policy, EXTENT>::KMajorOperand;
};
template <class Policy, int EXTENT>
struct WarpOperand<Policy, false, EXTENT> : MnMajorOperand<Policy, EXTENT> {
  using MnMajorOperand<Policy, EXTENT>::MnMajorOperand;
};

// ---- One warp's product -------------------------------------------------------------------------------------------

template <class Policy>
struct WarpProduct {
  using In = typename Policy::In;
  using A = WarpOperand<Policy, Policy::a_k_major, Policy::tile_m>;
  using B = WarpOperand<Policy, Policy::b_k_major, Policy::tile_n>;

  static constexpr int mma_per_k_tile = 2 * Policy::vectors * B::blocks;

  static_assert(sizeof(In) == 2, "a word has two elements");
  static_assert(Policy::tile_m == 8 || Policy::tile_m == 16, "an instruction has 16 rows, of which 8 may stay zero");
  static_assert(Policy::tile_k == Policy::warps * Policy::vectors * block_k, "warps share a k-tile");

  A a;
  B b;
  float accumulators[B::blocks][4];  // (16, 8) each: rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next

  HGEMM_DEVICE WarpProduct(Problem const& problem, int batch, int m_first, int n_first)
      : a(problem.a, batch, problem.batch_stride_a, problem.lda, m_first, problem.m, problem.k),
        b(problem.b, batch, problem.batch_stride_b, problem.ldb, n_first, problem.n, problem.k) {
    HGEMM_UNROLL
    for (int j = 0; j < B::blocks; ++j) accumulators[j][0] = accumulators[j][1] = accumulators[j][2] = accumulators[j][3] = 0.f;
  }

  // Adds the k-tile that begins at k. The matrix has `k_left` of it. B comes first, because it is not in L2.
  HGEMM_DEVICE void add(int k, int k_left) {
    b.template load<true>(k, k_left);
    a.template load<false>(k, k_left);
    HGEMM_UNROLL
    for (int v = 0; v < Policy::vectors; ++v) {
      b.transpose(v);
      a.transpose(v);
      uint32_t const* const upper = a.words[v][0];
      uint32_t const* const lower = a.words[v][A::blocks - 1];
      HGEMM_UNROLL
      for (int j = 0; j < B::blocks; ++j) {
        HGEMM_UNROLL
        for (int i = 0; i < 4; i += 2) {
          bool const both = A::blocks > 1;
          uint32_t const a_words[4] = {upper[i], both ? lower[i] : 0, upper[i + 1], both ? lower[i + 1] : 0};
          uint32_t const b_words[2] = {b.words[v][j][i], b.words[v][j][i + 1]};
          atoms::mma<In, 16>(accumulators[j], a_words, b_words);
        }
      }
    }
  }
};

// ---- Sum over the warps -------------------------------------------------------------------------------------------

template <class Policy>
HGEMM_DEVICE void store_partials(WarpProduct<Policy> const& product, SharedStorage<Policy>& shared) {
  using A = typename WarpProduct<Policy>::A;
  using B = typename WarpProduct<Policy>::B;
  int const lane = atoms::thread_index() % 32;
  auto& partials = shared.partials[atoms::thread_index() / 32];
  HGEMM_UNROLL
  for (int i = 0; i < A::blocks; ++i) {
    HGEMM_UNROLL
    for (int j = 0; j < B::blocks; ++j) {
      HGEMM_UNROLL
      for (int e = 0; e < 2; ++e) {
        int const row = A::row_of(i, lane / 4), column = B::row_of(j, lane % 4 * 2 + e);
        atoms::st_shared(&partials[row][column], product.accumulators[j][i * 2 + e]);
      }
    }
  }
}

// The product of a row of A and a column of B from k = `first` on.
template <class Policy>
HGEMM_DEVICE float end_of_product(Problem const& problem, int batch, int row, int column, int first) {
  using In = typename Policy::In;
  int64_t const a_step = Policy::a_k_major ? 1 : problem.lda, b_step = Policy::b_k_major ? 1 : problem.ldb;
  In const* const a =
      static_cast<In const*>(problem.a) + batch * problem.batch_stride_a + row * (Policy::a_k_major ? problem.lda : 1);
  In const* const b =
      static_cast<In const*>(problem.b) + batch * problem.batch_stride_b + column * (Policy::b_k_major ? problem.ldb : 1);
  float sum = 0.f;
  HGEMM_NO_UNROLL
  for (int k = first; k < problem.k; ++k) {
    sum += atoms::to_float(atoms::ld_global(a + k * a_step)) * atoms::to_float(atoms::ld_global(b + k * b_step));
  }
  return sum;
}

// Each thread finishes elements of the tile, one at a time: it adds the partials in the order of the warps, and what follows the
// last whole vector of k.
template <Bias BIAS, class Policy>
HGEMM_DEVICE void store_sums(WarpEpilogue<ByElement<Policy>> const& epilogue, SharedStorage<Policy> const& shared, int batch,
                             int m_first, int n_first, int whole_k) {
  static constexpr int gated_parts = accumulators_of<Policy>, columns = Policy::tile_n / gated_parts;  // of D
  HGEMM_NO_UNROLL
  for (int index = atoms::thread_index(); index < Policy::tile_m * columns; index += Policy::threads) {
    int const row = index / columns, column = index % columns;
    if (m_first + row >= epilogue.problem.m || n_first / gated_parts + column >= epilogue.columns()) continue;
    float sums[gated_parts];  // (gated_parts)
    HGEMM_UNROLL
    for (int part = 0; part < gated_parts; ++part) {
      int const from = gated_parts == 1 ? column : column / 8 * 16 + part * 8 + column % 8;  // column of the tile of A B
      float sum = atoms::ld_shared(&shared.partials[0][row][from]);
      HGEMM_UNROLL
      for (int warp = 1; warp < Policy::warps; ++warp) sum += atoms::ld_shared(&shared.partials[warp][row][from]);
      sums[part] = sum + end_of_product<Policy>(epilogue.problem, batch, m_first + row, n_first + from, whole_k);
    }
    epilogue.template store_vec<1, BIAS, 1>(sums, m_first + row, n_first / gated_parts + column);
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
  WarpProduct<Policy> product(problem, work.batch, m_first, n_first);

  // ---- Wait for the previous grid (programmatic dependent launch), then allow the next ------------------------------
  atoms::wait_on_dependent_grids();
  atoms::launch_dependent_grids();

  // ---- Mainloop ----------------------------------------------------------------------------------------------------
  int const whole_k = problem.k / 8 * 8;
  HGEMM_NO_UNROLL
  for (int k = 0; k < whole_k; k += Policy::tile_k) product.add(k, whole_k - k);

  // ---- Epilogue ----------------------------------------------------------------------------------------------------
  store_partials<Policy>(product, shared);
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
