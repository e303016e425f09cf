// One operand of mma.sync: its layout in shared memory, its copy from global memory, and its fragments.
//
// An operand is EXTENT x tile_k elements of A (extent along m) or B (extent along n). If it is K-major, its rows run along the
// extent and its columns along k; if it is MN-major, the other way round. Columns are contiguous in global and shared memory.
#pragma once

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
// apart. Chunks past the end of the extent are not read and arrive as zeros.
//
// All k-tiles but the last are whole, so copy() has no branch. It may read the padding of an MN-major row, on which no stored
// element of D depends. copy_last() copies the last k-tile, which may end within a chunk and at the end of memory.
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
  int extent_left;      // of the extent, from its first chunk on; 0 after the last k-tile

  HGEMM_DEVICE OperandCopy(void const* matrix, int64_t leading_dimension, int first, int extent, int k_first) {
    int const row_first = Operand::k_major ? first : k_first;
    int const column_first = Operand::k_major ? k_first : first;
    source = static_cast<In const*>(matrix) + (row_first + row()) * leading_dimension + column_first + column();
    pass_step = row_step * leading_dimension;
    k_tile_step = Operand::k_major ? Policy::tile_k : Policy::tile_k * leading_dimension;
    linear = Layout::linear(row(), column());
    extent_left = extent - first - (Operand::k_major ? row() : column());
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

  // How many elements the matrix has from the beginning of a chunk on; 0 if the chunk is not this thread's.
  HGEMM_DEVICE int elements(int pass_row, int pass_column, int k_left) const {
    int const rows = (Operand::k_major ? extent_left : k_left - row()) - pass_row * row_step;
    int const columns = (Operand::k_major ? k_left - column() : extent_left) - pass_column * column_step;
    return rows > 0 && owns(pass_row, pass_column) ? columns : 0;
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
          int const along = Operand::k_major ? pass_row * row_step : pass_column * column_step;
          if (owns(pass_row, pass_column)) {
            atoms::cp_async<chunk * sizeof(In)>(stage + place(pass_row, pass_column),
                                                source + pass_column * column_step, along < extent_left);
          }
        }
        source += pass_step;
      }
    }
  }

  HGEMM_DEVICE void advance() { source += k_tile_step - row_passes * pass_step; }
  HGEMM_DEVICE void stop() { extent_left = 0; }

  // copy() for operands that are aligned to one element.
  HGEMM_DEVICE void copy_through_registers(In* stage, int begin, int end) {
    constexpr int batch = Operand::copies_in_flight;  // passes
    HGEMM_NO_UNROLL
    for (int first = begin; first < end; first += batch) {
      In element[batch][column_passes];
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          int const along = Operand::k_major ? (first + i) * row_step : pass_column * column_step;
          bool const valid = first + i < end && owns(first + i, pass_column) && along < extent_left;
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

  // Issues the copy of the last k-tile, which follows `k_tiles_before` others. The matrix has `k_left` of its k; zeros follow.
  HGEMM_DEVICE void copy_last(In* stage, int k_tiles_before, int k_left) const {
    In const* from = source + k_tiles_before * k_tile_step;
    HGEMM_NO_UNROLL
    for (int pass_row = 0; pass_row < row_passes; ++pass_row) {
      HGEMM_NO_UNROLL
      for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
        if (!owns(pass_row, pass_column)) continue;
        int const rows = (Operand::k_major ? extent_left : k_left - row()) - pass_row * row_step;
        int const columns = (Operand::k_major ? k_left - column() : extent_left) - pass_column * column_step;
        In* const to = stage + Layout::swizzle(linear + to_row(pass_row) + pass_column * column_step);
        copy_chunk(to, from + pass_column * column_step, rows > 0 ? columns : 0);
      }
      from += pass_step;
    }
  }

  // Copies the first `elements` of a chunk, and zeros after them.
  HGEMM_DEVICE static void copy_chunk(In* to, In const* from, int elements) {
    if constexpr (!through_registers) {
      if (elements <= 0 || elements >= chunk) {
        atoms::cp_async<chunk * sizeof(In)>(to, from, elements > 0);
        return;
      }
    }
    HGEMM_NO_UNROLL
    for (int e = 0; e < chunk; ++e) {
      atoms::st_shared(to + e, e < elements ? atoms::ld_global(from + e) : atoms::from_float<In>(0.f));
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
