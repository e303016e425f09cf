// One operand in shared memory: where its elements lie, how they get there and how fragments are read.
//
// An operand is EXTENT x tile_k elements of A (extent along m) or B (along n). K-major, its rows run along the extent and
// its columns along k; MN-major, the other way round. Columns are the contiguous direction in global and shared memory.
#pragma once

#include <hgemm/atoms.cuh>

namespace hgemm {

// ---- Shared-memory layout -----------------------------------------------------------------------------------------

// Elements after every second row, for an operand that names any.
template <class Operand, class = void>
constexpr int pair_pad_of = 0;
template <class Operand>
constexpr int pair_pad_of<Operand, decltype(void(Operand::pair_pad))> = Operand::pair_pad;

template <class Policy, class Operand, int EXTENT>
struct OperandLayout {
  static constexpr int piece = 16 / sizeof(typename Policy::In);  // elements of 16 bytes, which stay together
  static constexpr int line = 8 * piece;                          // elements of all banks
  static constexpr int rows = Operand::k_major ? EXTENT : Policy::tile_k;
  static constexpr int columns = Operand::k_major ? Policy::tile_k : EXTENT;
  static constexpr int pitch = Operand::pitch;
  static constexpr int pair_pad = pair_pad_of<Operand>;
  static constexpr int period = 1 << (Operand::swizzle_bits + Operand::swizzle_base + Operand::swizzle_shift);
  static constexpr int granule = Operand::swizzle_bits == 0 ? line : period > line ? period : line;
  static constexpr int stage_elements = (rows * pitch + rows / 2 * pair_pad + granule - 1) / granule * granule;

  static_assert(pitch >= columns && pitch % piece == 0, "rows must not overlap and must start on 16 bytes");
  static_assert(pair_pad >= 0 && pair_pad % piece == 0 && rows % 2 == 0, "nor must rows with padding after every second one");

  // The offset of an element before the swizzle. Those of an even row and of any other add up.
  HGEMM_DEVICE static constexpr int linear(int row, int column) { return row * pitch + (row >> 1) * pair_pad + column; }

  HGEMM_DEVICE static constexpr int swizzle(int element) {
    constexpr int mask = ((1 << Operand::swizzle_bits) - 1) << Operand::swizzle_base;
    return element ^ ((element >> Operand::swizzle_shift) & mask);
  }

  // Where element `linear` + `delta` lies. Whole periods pass through the swizzle unchanged: where unrolling makes `delta` a
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

// ---- Global to shared ---------------------------------------------------------------------------------------------

// Copies one k-tile after another. Each thread owns the same chunk columns in all of its rows: `align` elements a chunk,
// row_step rows apart. Chunks past the end of the extent are not read and arrive as zeros.
//
// All k-tiles but the last are whole, so that copy() needs no branch: it may read an MN-major row's padding, which no stored
// element of D depends on. The last k-tile, which may end within a chunk and at the end of memory, is copy_last()'s.
template <class Policy, class Operand, int EXTENT>
struct OperandCopy {
  using In = typename Policy::In;
  using Layout = OperandLayout<Policy, Operand, EXTENT>;

  static constexpr int chunk = Operand::align;
  static constexpr bool through_registers = chunk * sizeof(In) < 4;  // asynchronous copies move 4 bytes at least
  static constexpr int chunk_columns = Layout::columns / chunk;
  static constexpr int row_step = chunk_columns >= Policy::threads ? 1 : Policy::threads / chunk_columns;
  static constexpr int row_passes = (Layout::rows + row_step - 1) / row_step;
  static constexpr int column_passes = (chunk_columns + Policy::threads - 1) / Policy::threads;
  static constexpr int column_step = Policy::threads * chunk;

  static_assert(Layout::columns % chunk == 0, "a row must be whole chunks");

  In const* source;      // this thread's chunk of the pass and k-tile to copy next
  int64_t pass_step;     // elements to its chunk of the next pass
  int64_t k_tile_step;   // elements from one k-tile to the next
  int linear;            // its first chunk's element offset in a stage, before the swizzle
  int extent_left;       // of the extent, from its first chunk on; nothing once there is no k-tile to copy

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

  // Whether a pass of this thread lies in the tile at all; always true where the threads divide it evenly.
  HGEMM_DEVICE static bool owns(int pass_row, int pass_column) {
    constexpr bool wide = chunk_columns >= Policy::threads;
    constexpr bool even_rows = Layout::rows % row_step == 0 && (wide || Policy::threads % chunk_columns == 0);
    constexpr bool even_columns = !wide || chunk_columns % Policy::threads == 0;
    bool const in_rows = even_rows || (row() < row_step && row() + pass_row * row_step < Layout::rows);
    return in_rows && (even_columns || column() + pass_column * column_step < Layout::columns);
  }

  // How many elements the matrix has from the beginning of a chunk of this thread on; none of another's.
  HGEMM_DEVICE int elements(int pass_row, int pass_column, int k_left) const {
    int const rows = (Operand::k_major ? extent_left : k_left - row()) - pass_row * row_step;
    int const columns = (Operand::k_major ? k_left - column() : extent_left) - pass_column * column_step;
    return rows > 0 && owns(pass_row, pass_column) ? columns : 0;
  }

  // Elements from this thread's first row to that of a pass: an odd number of rows from an odd one is a pair more.
  HGEMM_DEVICE static int to_row(int pass_row) {
    int const rows = pass_row * row_step;
    int const pairs = row_step % 2 == 0 ? rows >> 1 : (rows + (row() & 1)) >> 1;
    return rows * Layout::pitch + pairs * Layout::pair_pad;
  }

  HGEMM_DEVICE int place(int pass_row, int pass_column) const {
    return Layout::place(linear, to_row(pass_row) + pass_column * column_step);
  }

  // Starts the copy of passes [begin, end) of the next k-tile into `stage`; advance() follows the last pass.
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

  // The same for operands aligned to one element.
  HGEMM_DEVICE void copy_through_registers(In* stage, int begin, int end) {
    constexpr int batch = 8;  // passes in flight
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

  // Starts the copy of the k-tile `ahead` of the next one, of which the matrix has `k_left` of k; zeros after those.
  HGEMM_DEVICE void copy_last(In* stage, int ahead, int k_left) const {
    In const* from = source + ahead * k_tile_step;
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

// ---- Shared to registers ------------------------------------------------------------------------------------------

// Addresses of one lane's rows for ldmatrix over a warp tile of WARP_EXTENT along m (A) or n (B).
// The four matrices of an x4, of 8 rows of 16 bytes each, cover 16 of the extent by a block of k: 32 bytes of K-major rows. For
// A (EXTENT_FIRST) they follow each other along m, then along k, as the registers of the mma's a do; for B along k, then along
// n, as the b of two neighbours do.
//
// ldmatrix transposes halves only: of wider elements in MN-major rows each lane loads its own, at row lane % 4 and column
// lane / 4.
template <class Policy, class Operand, int EXTENT, bool EXTENT_FIRST>
struct FragmentReader {
  using In = typename Policy::In;
  using Layout = OperandLayout<Policy, Operand, EXTENT>;

  static constexpr bool by_ldmatrix = Operand::k_major || sizeof(In) == 2;

  int linear;  // element offset of this lane's row, or element, in a stage, before the swizzle

  HGEMM_DEVICE FragmentReader(int warp_first, int lane) {
    int const low = lane / 8 % 2;
    int const high = lane / 16;
    int const along_extent = (EXTENT_FIRST ? low : high) * 8;
    int const along_k = (EXTENT_FIRST ? high : low) * Layout::piece;
    linear = Operand::k_major ? Layout::linear(warp_first + along_extent + lane % 8, along_k)
             : by_ldmatrix    ? Layout::linear(along_k + lane % 8, warp_first) + along_extent
                              : Layout::linear(lane % 4, warp_first) + lane / 4;
  }

  // Registers of 16 of the extent by a block of k, at (along_extent, along_k) of the warp tile.
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
  // Registers of 8 of the extent there.
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

}  // namespace hgemm
