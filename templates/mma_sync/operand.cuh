// One operand of mma.sync: its layout in shared memory, its copy from global memory, and its fragments.
//
// An operand is EXTENT x tile_k elements of A (extent along m) or B (extent along n). If it is K-major, its rows run along the
// extent and its columns along k; if it is MN-major, the other way round. Columns are contiguous in global and shared memory.
#pragma once

#include <common/problem.cuh>
#include <common/warp_mma.cuh>
#include <mma_sync/wmma.cuh>

namespace hgemm {

// ---- Shared-memory layout -----------------------------------------------------------------------------------------

template <class Policy, class Operand, int EXTENT>
struct SmemLayout {
  static constexpr int vec_elements = 16 / sizeof(typename Policy::In);  // of a 16-byte vector, which no swizzle splits
  static constexpr int line = 8 * vec_elements;                          // elements of all banks
  static constexpr int rows = Operand::k_major ? EXTENT : Policy::tile_k;
  static constexpr int columns = Operand::k_major ? Policy::tile_k : EXTENT;
  static constexpr int pitch = Operand::pitch;
  static constexpr int pair_pad = Operand::pair_pad;  // elements after every second row
  static constexpr int period = 1 << (Operand::swizzle_bits + Operand::swizzle_base + Operand::swizzle_shift);
  static constexpr int granule = Operand::swizzle_bits == 0 ? line : period > line ? period : line;
  static constexpr int stage_elements = (rows * pitch + rows / 2 * pair_pad + granule - 1) / granule * granule;

  static_assert(pitch >= columns && pitch % vec_elements == 0, "rows must not overlap and must start on 16 bytes");
  static_assert(pair_pad >= 0 && pair_pad % vec_elements == 0 && rows % 2 == 0, "padding must keep rows on 16 bytes");

  // The offset of an element before the swizzle. The offsets of an even row and of any other row add up.
  HGEMM_DEVICE static constexpr int linear(int row, int column) { return row * pitch + (row >> 1) * pair_pad + column; }

  HGEMM_DEVICE static constexpr int swizzle(int element) {
    constexpr int mask = ((1 << Operand::swizzle_bits) - 1) << Operand::swizzle_base;
    return element ^ ((element >> Operand::swizzle_shift) & mask);
  }

  // The swizzled offset of `linear` + `delta`. Whole periods pass through the swizzle unchanged. If unrolling makes `delta` a
  // constant, they become immediate offsets from few addresses.
  HGEMM_DEVICE static constexpr int place(int linear, int delta) {
    int const rest = delta % period;
    return swizzle(linear + rest) + (delta - rest);
  }
  template <class Element>
  HGEMM_DEVICE static constexpr Element* at(Element* stage, int linear, int delta) {
    if constexpr (Operand::swizzle_bits == 0) {
      return stage + linear + delta;
    } else {
      return stage + place(linear, delta);
    }
  }
};

// The stages of A and B as threads copy them.
template <class Policy>
struct SmemStages {
  using In = typename Policy::In;

  alignas(128) In a[Policy::stages][SmemLayout<Policy, typename Policy::A, Policy::tile_m>::stage_elements];  // (stages, A)
  alignas(128) In b[Policy::stages][SmemLayout<Policy, typename Policy::B, Policy::tile_n>::stage_elements];  // (stages, B)
};

// ---- Global to shared memory --------------------------------------------------------------------------------------

// Copies one k-tile after another. Each thread copies the same columns, `align` elements a chunk, in rows that are row_step
// apart. Other elements arrive as zeros: those past the end of the extent or of k, and those that copy_ends() copies.
//
// copy() has no branch. It copies whole chunks, also if they reach into the padding of an MN-major row, on which no stored
// element of D depends. Memory may end in these places, which copy_ends() copies element by element:
//   K-major     the last chunk of every row, if k is not whole chunks
//   MN-major    the last row, if the extent ends within a chunk of the tile
template <class Policy, class Operand, int EXTENT>
struct OperandCopy {
  using In = typename Policy::In;
  using Layout = SmemLayout<Policy, Operand, EXTENT>;

  static constexpr int chunk = Operand::align;                           // elements
  static constexpr bool through_registers = chunk * sizeof(In) < 4;      // cp.async moves 4 bytes at least
  static constexpr int chunk_columns = Layout::columns / chunk;
  static constexpr int row_step = chunk_columns >= Policy::threads ? 1 : Policy::threads / chunk_columns;
  static constexpr int row_passes = (Layout::rows + row_step - 1) / row_step;
  static constexpr int column_passes = (chunk_columns + Policy::threads - 1) / Policy::threads;
  static constexpr int column_step = Policy::threads * chunk;

  static_assert(Layout::columns % chunk == 0, "a row must be whole chunks");

  In const* source;     // this thread's chunk of the next pass and k-tile
  int64_t pass_step;    // elements to its chunk of the next pass
  int64_t k_tile_step;  // elements from one k-tile to the next
  int linear;           // offset of its first chunk in a stage, before the swizzle
  int rows_left;        // rows to copy, from its first one on; at most 0 if it has no column to copy
  int columns_left;     // columns to copy, from its first one on

  // For k in [k_first, k_end), without what copy_ends() copies.
  HGEMM_DEVICE OperandCopy(void const* matrix, int64_t leading_dimension, int first, int extent, int k_first, int k_end, int) {
    int const row_first = Operand::k_major ? first : k_first;
    int const column_first = Operand::k_major ? k_first : first;
    source = static_cast<In const*>(matrix) + (row_first + row()) * leading_dimension + column_first + column();
    pass_step = row_step * leading_dimension;
    k_tile_step = Operand::k_major ? Policy::tile_k : Policy::tile_k * leading_dimension;
    linear = Layout::linear(row(), column());
    rows_left = (Operand::k_major ? extent : k_end) - row_first - row();
    columns_left = (Operand::k_major ? k_end / chunk * chunk : extent) - column_first - column();
    if (column_passes == 1 && columns_left <= 0) rows_left = 0;
  }

  // This thread's first chunk in the tile.
  HGEMM_DEVICE static int row() { return atoms::thread_index() / chunk_columns; }
  HGEMM_DEVICE static int column() { return atoms::thread_index() % chunk_columns * chunk; }

  // Whether a pass of this thread is in the tile; always true if the threads divide it evenly.
  HGEMM_DEVICE static bool owns(int pass_row, int pass_column) {
    constexpr bool wide = chunk_columns >= Policy::threads;
    constexpr bool even_rows = Layout::rows % row_step == 0 && (wide || Policy::threads % chunk_columns == 0);
    constexpr bool even_columns = !wide || chunk_columns % Policy::threads == 0;
    bool const in_rows = even_rows || (row() < row_step && row() + pass_row * row_step < Layout::rows);
    return in_rows && (even_columns || column() + pass_column * column_step < Layout::columns);
  }

  // Whether a chunk of the next k-tile is to be copied. With one pass along the columns, rows_left tells it alone.
  HGEMM_DEVICE bool inside(int pass_row, int pass_column) const {
    return pass_row * row_step < rows_left && (column_passes == 1 || pass_column * column_step < columns_left);
  }

  // Elements from this thread's first row to that of a pass. An odd number of rows from an odd row passes one more pair.
  HGEMM_DEVICE static int to_row(int pass_row) {
    int const rows = pass_row * row_step;
    int const pairs = row_step % 2 == 0 ? rows >> 1 : (rows + (row() & 1)) >> 1;
    return rows * Layout::pitch + pairs * Layout::pair_pad;
  }

  HGEMM_DEVICE int place(int pass_row, int pass_column) const {
    return Layout::place(linear, to_row(pass_row) + pass_column * column_step);
  }

  // Issues the copies of passes [begin, end) of the next k-tile to `stage`. advance() follows the last pass.
  HGEMM_DEVICE void copy(In* stage, int begin, int end) {
    if constexpr (through_registers) {
      copy_through_registers(stage, begin, end);
    } else {
      HGEMM_UNROLL
      for (int pass_row = begin; pass_row < end; ++pass_row) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          if (owns(pass_row, pass_column)) {
            atoms::cp_async<chunk * sizeof(In)>(stage + place(pass_row, pass_column),
                                                source + pass_column * column_step, inside(pass_row, pass_column));
          }
        }
        source += pass_step;
      }
    }
  }

  // Moves on to the next k-tile.
  HGEMM_DEVICE void advance() {
    source += k_tile_step - row_passes * pass_step;
    if constexpr (!Operand::k_major) {
      rows_left -= Policy::tile_k;
    } else {
      columns_left -= Policy::tile_k;
      if (column_passes == 1 && columns_left <= 0) rows_left = 0;
    }
  }

  // copy() for operands that are aligned to one element.
  HGEMM_DEVICE void copy_through_registers(In* stage, int begin, int end) {
    constexpr int batch = Operand::copies_in_flight;  // passes
    HGEMM_NO_UNROLL
    for (int first = begin; first < end; first += batch) {
      In element[batch][column_passes];  // (passes, column_passes)
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          bool const valid = first + i < end && owns(first + i, pass_column) && inside(first + i, pass_column);
          element[i][pass_column] =
              valid ? atoms::ld_global(source + pass_column * column_step) : atoms::from_float<In>(0.f);
        }
        if (first + i < end) source += pass_step;
      }
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          if (first + i < end && owns(first + i, pass_column)) {
            atoms::st_shared(stage + place(first + i, pass_column), element[i][pass_column]);
          }
        }
      }
    }
  }

  // ---- The ends of rows, or the last row --------------------------------------------------------------------------

  // Whether copy_ends() has to copy elements of the last k-tile. The tile begins at `first` of the extent.
  HGEMM_DEVICE static bool has_ends(int first, int extent, int k) {
    if constexpr (chunk == 1) return false;
    return Operand::k_major ? k % chunk != 0 : extent - first < EXTENT && (extent - first) % chunk != 0;
  }

  // Copies the elements of the last k-tile that copy() leaves out. One load of a thread at a time takes few registers.
  HGEMM_DEVICE static void copy_ends(In* stage, void const* matrix, int64_t leading_dimension, int first, int extent, int k) {
    int const k_first = Operand::k_major ? k / chunk * chunk : k - 1;
    int const in_tile = k_first % Policy::tile_k;
    HGEMM_NO_UNROLL
    for (int index = atoms::thread_index(); index < (k - k_first) * EXTENT; index += Policy::threads) {
      int const along = index % EXTENT, k_along = index / EXTENT;
      if (first + along >= extent) continue;
      int const row = Operand::k_major ? first + along : k_first, column = Operand::k_major ? k_first + k_along : first + along;
      int const to = Operand::k_major ? Layout::linear(along, in_tile + k_along) : Layout::linear(in_tile, along);
      In const* const from = static_cast<In const*>(matrix) + row * leading_dimension + column;
      atoms::st_shared(stage + Layout::swizzle(to), atoms::ld_global(from));
    }
  }
};

// The copies of A and B for the tile of D at (m_first, n_first), of k in [k_first, k_end).
template <class Policy, class CopyA, class CopyB>
struct TileOperands {
  using In = typename Policy::In;

  Problem const& problem;
  int batch, m_first, n_first, k_first, k_end;

  // For k-tiles [k_tile_first, k_tile_first + k_tiles).
  HGEMM_DEVICE TileOperands(Problem const& problem, int batch, int m_first, int n_first, int k_tile_first, int k_tiles)
      : problem(problem), batch(batch), m_first(m_first), n_first(n_first), k_first(k_tile_first * Policy::tile_k) {
    int const end = (k_tile_first + k_tiles) * Policy::tile_k;
    k_end = end < problem.k ? end : problem.k;
  }

  // Written out, because a call would change the order of instructions for matrices with a stride.
  HGEMM_DEVICE In const* a() const {
    if constexpr (has_pointer_arrays<Policy>) {
      return matrix_of<Policy>(static_cast<In const*>(problem.a), batch, 0, problem.k > 0);
    } else {
      return static_cast<In const*>(problem.a) + batch * problem.batch_stride_a;
    }
  }
  HGEMM_DEVICE In const* b() const {
    if constexpr (has_pointer_arrays<Policy>) {
      return matrix_of<Policy>(static_cast<In const*>(problem.b), batch, 0, problem.k > 0);
    } else {
      return static_cast<In const*>(problem.b) + batch * problem.batch_stride_b;
    }
  }

  HGEMM_DEVICE CopyA copy_a() const {
    int const end = k_end - (!Policy::A::k_major && a_has_ends());
    return CopyA(a(), problem.lda, m_first, problem.m, k_first, end, problem.k);
  }
  HGEMM_DEVICE CopyB copy_b() const {
    int const end = k_end - (!Policy::B::k_major && b_has_ends());
    return CopyB(b(), problem.ldb, n_first, problem.n, k_first, end, problem.k);
  }

  // Whether the last of these k-tiles is that of the matrix.
  HGEMM_DEVICE bool to_last() const { return k_first < k_end && k_end == problem.k; }
  HGEMM_DEVICE bool a_has_ends() const { return to_last() && CopyA::has_ends(m_first, problem.m, problem.k); }
  HGEMM_DEVICE bool b_has_ends() const { return to_last() && CopyB::has_ends(n_first, problem.n, problem.k); }
  HGEMM_DEVICE bool has_ends() const { return a_has_ends() || b_has_ends(); }

  // Copies what the copies leave out of the last k-tile, to its stage. The compiler must not keep addresses for it in registers.
  template <class Shared>
  HGEMM_DEVICE void copy_ends(Shared& shared, int stage) const {
    int const m = atoms::opaque(m_first), n = atoms::opaque(n_first);
    int64_t const matrix = atoms::opaque(batch);
    if (CopyA::has_ends(m, problem.m, problem.k)) {
      In const* const a = matrix_of<Policy>(static_cast<In const*>(problem.a), matrix, problem.batch_stride_a, true);
      CopyA::copy_ends(shared.a[stage], a, problem.lda, m, problem.m, problem.k);
    }
    if (CopyB::has_ends(n, problem.n, problem.k)) {
      In const* const b = matrix_of<Policy>(static_cast<In const*>(problem.b), matrix, problem.batch_stride_b, true);
      CopyB::copy_ends(shared.b[stage], b, problem.ldb, n, problem.n, problem.k);
    }
  }
};

// ---- Shared memory to fragments, for mma.sync ---------------------------------------------------------------------

// Addresses of one lane's rows for ldmatrix over a warp tile along m (A, EXTENT_FIRST) or n (B).
//
// The four matrices of an x4 are 8 rows of 16 bytes each. They cover 16 of the extent by a block of k. For A they follow each
// other along m, then along k, as the registers of an mma's a. For B they follow along k, then along n, as the b of two
// neighbours.
//
// ldmatrix transposes 2-byte elements only. Of wider elements in MN-major rows each lane loads its own, at row lane % 4 and
// column lane / 4.
template <class Policy, class Operand, int EXTENT, bool EXTENT_FIRST>
struct LdmatrixReader {
  using In = typename Policy::In;
  using Layout = SmemLayout<Policy, Operand, EXTENT>;

  static constexpr bool by_ldmatrix = Operand::k_major || sizeof(In) == 2;

  int linear;  // offset of this lane's row, or element, in a stage, before the swizzle

  HGEMM_DEVICE LdmatrixReader(int warp_first, int lane) {
    int const low = lane / 8 % 2;
    int const high = lane / 16;
    int const along_extent = (EXTENT_FIRST ? low : high) * 8;
    int const along_k = (EXTENT_FIRST ? high : low) * Layout::vec_elements;
    linear = Operand::k_major ? Layout::linear(warp_first + along_extent + lane % 8, along_k)
             : by_ldmatrix    ? Layout::linear(along_k + lane % 8, warp_first) + along_extent
                              : Layout::linear(lane % 4, warp_first) + lane / 4;
  }

  // Reads 16 of the extent by a block of k, at (along_extent, along_k) of the warp tile.
  HGEMM_DEVICE void read_x4(In const* stage, int along_extent, int along_k, uint32_t& r0, uint32_t& r1, uint32_t& r2,
                            uint32_t& r3) const {
    if constexpr (by_ldmatrix) {
      atoms::ldmatrix_x4<!Operand::k_major>(at(stage, along_extent, along_k), r0, r1, r2, r3);
    } else {
      r0 = load(stage, along_extent, along_k);
      r1 = load(stage, along_extent + (EXTENT_FIRST ? 8 : 0), along_k + (EXTENT_FIRST ? 0 : 4));
      r2 = load(stage, along_extent + (EXTENT_FIRST ? 0 : 8), along_k + (EXTENT_FIRST ? 4 : 0));
      r3 = load(stage, along_extent + 8, along_k + 4);
    }
  }
  // Reads 8 of the extent there.
  HGEMM_DEVICE void read_x2(In const* stage, int along_extent, int along_k, uint32_t& r0, uint32_t& r1) const {
    if constexpr (by_ldmatrix) {
      atoms::ldmatrix_x2<!Operand::k_major>(at(stage, along_extent, along_k), r0, r1);
    } else {
      r0 = load(stage, along_extent, along_k);
      r1 = load(stage, along_extent, along_k + 4);
    }
  }

  HGEMM_DEVICE In const* at(In const* stage, int along_extent, int along_k) const {
    int const delta = Operand::k_major ? Layout::linear(along_extent, along_k) : Layout::linear(along_k, along_extent);
    return Layout::at(stage, linear, delta);
  }
  HGEMM_DEVICE uint32_t load(In const* stage, int along_extent, int along_k) const {
    return atoms::ld_shared(at(stage, along_extent, along_k)).bits;
  }
};

template <class Policy>
struct LdmatrixForm : MmaSyncForm {
  template <class Operand, int EXTENT, bool IS_A>
  using Reader = LdmatrixReader<Policy, Operand, EXTENT, IS_A>;
};

// ---- Shared memory to fragments, for WMMA -------------------------------------------------------------------------

// Fragments of 16 of the extent by 16 of k, which the warp loads from their first element and one pitch.
template <class Policy, class Operand, int EXTENT, bool IS_A>
struct WmmaReader {
  using In = typename Policy::In;
  using Layout = SmemLayout<Policy, Operand, EXTENT>;

  static_assert(sizeof(In) == 2 && Layout::pair_pad == 0 && Operand::swizzle_bits == 0,
                "WMMA needs 2-byte elements in rows one pitch apart, without a swizzle");

  int linear;  // offset of the warp's first element in a stage

  HGEMM_DEVICE WmmaReader(int warp_first, int) : linear(Operand::k_major ? Layout::linear(warp_first, 0) : warp_first) {}

  // Reads the 16 x 16 at (along_extent, along_k) of the warp tile.
  HGEMM_DEVICE void read(In const* stage, int along_extent, int along_k, uint32_t (&r)[atoms::wmma_registers<In>]) const {
    int const delta = Operand::k_major ? Layout::linear(along_extent, along_k) : Layout::linear(along_k, along_extent);
    atoms::wmma_load<In, IS_A, Operand::k_major == IS_A>(stage + linear + delta, Layout::pitch, r);
  }
};

template <class Policy>
struct WmmaForm {
  using In = typename Policy::In;

  static constexpr int columns = 16;
  static constexpr int a_registers = atoms::wmma_registers<In>, b_registers = a_registers;

  template <class Operand, int EXTENT, bool IS_A>
  using Reader = WmmaReader<Policy, Operand, EXTENT, IS_A>;

  // The accumulators of step (i, j) are blocks (i, 2 j) and (i, 2 j + 1).
  template <class Accumulators, int REGISTERS>
  HGEMM_DEVICE static void multiply(Accumulators& accumulators, int i, int j, uint32_t const (&a)[REGISTERS],
                                    uint32_t const (&b)[REGISTERS]) {
    constexpr bool a_by_rows = Policy::A::k_major, b_by_rows = !Policy::B::k_major;
    if constexpr (Accumulators::in_halves) {
      auto& halves = accumulators.halves;
      atoms::wmma<In, a_by_rows, b_by_rows, Policy::mma_k>(halves[i][2 * j], halves[i][2 * j + 1], a, b);
    } else {
      auto& floats = accumulators.floats;
      atoms::wmma<In, a_by_rows, b_by_rows, Policy::mma_k>(floats[i][2 * j], floats[i][2 * j + 1], a, b);
    }
  }
};

// The warp of a Policy: its products on stages that threads copy.
template <class Policy, bool WMMA = Policy::wmma>
struct WarpOf {
  using Type = WarpMma<Policy, SmemStages<Policy>, LdmatrixForm<Policy>>;
};
template <class Policy>
struct WarpOf<Policy, true> {
  using Type = WarpMma<Policy, SmemStages<Policy>, WmmaForm<Policy>>;
};

}  // namespace hgemm
