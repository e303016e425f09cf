// Global to shared memory by way of registers, of rows that begin at any element: each piece of 16 bytes is cut out of the two
// aligned ones that it lies in, with neighbours of its elements. Where those reach out of the matrix, elements are copied.
#pragma once

#include <hgemm/staged_copy.cuh>

namespace hgemm {

// Elements to which an operand's rows are aligned in global memory, where that is less than a chunk.
template <class Operand, class = void>
constexpr int row_align_of = Operand::align;
template <class Operand>
constexpr int row_align_of<Operand, decltype(void(Operand::row_align))> = Operand::row_align;

// Does what StagedCopy does.
template <class Policy, class Operand, int EXTENT>
struct ShiftedCopy : OperandCopy<Policy, Operand, EXTENT> {
  using Chunks = OperandCopy<Policy, Operand, EXTENT>;
  using In = typename Policy::In;
  using Chunks::advance, Chunks::chunk, Chunks::column, Chunks::column_passes, Chunks::column_step, Chunks::elements;
  using Chunks::extent_left, Chunks::k_tile_step, Chunks::owns, Chunks::pass_step, Chunks::place, Chunks::row;
  using Chunks::row_passes, Chunks::row_step, Chunks::source;

  static constexpr bool shifts = true;
  static constexpr int pieces = row_passes * column_passes;  // of a thread and k-tile
  static constexpr int row_align_bytes = row_align_of<Operand> * sizeof(In);

  static_assert(chunk * sizeof(In) == 16, "pieces are as wide as the widest load");
  static_assert(Policy::tile_k % chunk == 0, "all k-tiles of a thread must begin equally far from 16 bytes");

  struct Neighbours { Word4 low, high; };  // 32 aligned bytes, in which a piece begins in the first half

  Neighbours staged[row_passes][column_passes];
  uint64_t first, last;  // where a whole k-tile may begin for this thread, so that it is loaded without leaving the matrix
  In const* end;          // of the matrix
  uint32_t bytes_before;  // of this thread's first piece, from an address that 16 divides
  bool by_element;        // whether the k-tile in registers is to be copied by the element

  HGEMM_DEVICE ShiftedCopy(void const* matrix, int64_t leading_dimension, int first_place, int extent, int k_first, int k)
      : Chunks(matrix, leading_dimension, first_place, extent, k_first) {
    int const rows = Operand::k_major ? extent : k, columns = Operand::k_major ? k : extent;
    end = static_cast<In const*>(matrix) + (rows - 1) * leading_dimension + columns;
    first = (reinterpret_cast<uint64_t>(matrix) + 15) / 16 * 16;
    last = last_begin(Operand::k_major ? extent_left : row_passes * row_step, Operand::k_major ? chunk : extent_left);
    bytes_before = reinterpret_cast<uint64_t>(source) % 16;
    by_element = false;
  }

  // Loads the next k-tile, all of which the matrix has; zeros once there is none.
  HGEMM_DEVICE void load() {
    bool const inside = is_inside(source, last);
    HGEMM_UNROLL
    for (int pass_row = 0; pass_row < row_passes; ++pass_row) {
      HGEMM_UNROLL
      for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
        int const along = Operand::k_major ? pass_row * row_step : pass_column * column_step;
        bool const valid = inside && owns(pass_row, pass_column) && along < extent_left;
        staged[pass_row][pass_column] = load_piece(source + pass_column * column_step, valid);
      }
      source += pass_step;
    }
    by_element = !inside && extent_left > 0;
    advance();
  }

  // Stores one piece of what was loaded.
  HGEMM_DEVICE void store(In* stage, int piece) const {
    int const pass_row = piece / column_passes, pass_column = piece % column_passes;
    if (owns(pass_row, pass_column)) {
      atoms::st_shared(word(stage + place(pass_row, pass_column)), cut(staged[pass_row][pass_column], pass_row));
    }
  }
  // Copies what could not be loaded so, once all is stored that was.
  HGEMM_DEVICE void finish(In* stage) const {
    if (by_element) copy_elements(stage, source - k_tile_step, Policy::tile_k);
  }

  // Copies the k-tile `ahead` of the next one, of which the matrix has `k_left` of k.
  HGEMM_DEVICE void copy_last(In* stage, int ahead, int k_left) {
    In const* const tile = source + ahead * k_tile_step;
    int const rows = Operand::k_major ? extent_left : k_left - row();
    int const columns = Operand::k_major ? k_left - column() : extent_left;
    bool const inside = is_inside(tile, last_begin(rows, columns));
    constexpr int batch = row_passes < 4 ? row_passes : 4;  // rows in flight
    In const* from = tile;
    HGEMM_NO_UNROLL
    for (int first_row = 0; first_row < row_passes; first_row += batch) {
      Neighbours piece[batch][column_passes];
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          bool const some = first_row + i < row_passes && elements(first_row + i, pass_column, k_left) > 0;
          piece[i][pass_column] = load_piece(from + i * pass_step + pass_column * column_step, inside && some);
        }
      }
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          if (first_row + i >= row_passes || !owns(first_row + i, pass_column)) continue;
          int const count = Operand::k_major ? elements(first_row + i, pass_column, k_left) : chunk;
          Word4 const whole = cut(piece[i][pass_column], first_row + i);
          atoms::st_shared(word(stage + place(first_row + i, pass_column)), first_elements(whole, count));
        }
      }
      from += batch * pass_step;
    }
    if (!inside && rows > 0 && columns > 0) copy_elements(stage, tile, k_left);
  }

  // The last place where a k-tile of this thread may begin, of so many rows and columns from there on.
  HGEMM_DEVICE uint64_t last_begin(int rows, int columns) const {
    int const last_row = min(row_passes - 1, (rows - 1) / row_step);
    int const last_column = min(column_passes - 1, (columns - 1) / column_step);
    return reinterpret_cast<uint64_t>(end - (last_row * pass_step + last_column * column_step + 2 * chunk - 1));
  }
  HGEMM_DEVICE bool is_inside(In const* tile, uint64_t last_place) const {
    uint64_t const place = reinterpret_cast<uint64_t>(tile);
    return place >= first && place <= last_place;
  }
  HGEMM_DEVICE static int min(int a, int b) { return a < b ? a : b; }

  HGEMM_DEVICE static Neighbours load_piece(In const* piece, bool valid) {
    uint32_t const before = reinterpret_cast<uint64_t>(piece) % 16;
    Word4 const* const aligned = reinterpret_cast<Word4 const*>(reinterpret_cast<unsigned char const*>(piece) - before);
    return {valid ? atoms::ld_global(aligned) : Word4{}, valid && before != 0 ? atoms::ld_global(aligned + 1) : Word4{}};
  }

  // Cuts a piece of a pass out of its neighbours.
  HGEMM_DEVICE Word4 cut(Neighbours const& from, int pass_row) const {
    uint32_t const to_row = row_step % chunk == 0 ? 0 : pass_row * static_cast<uint32_t>(pass_step * sizeof(In));
    uint32_t const bytes = bytes_before + to_row;
    bool const by_pair = bytes & 8, by_word = row_align_bytes < 8 && bytes & 4;
    uint32_t const a = by_pair ? from.low.z : from.low.x, b = by_pair ? from.low.w : from.low.y;
    uint32_t const c = by_pair ? from.high.x : from.low.z, d = by_pair ? from.high.y : from.low.w;
    uint32_t const e = by_pair ? from.high.z : from.high.x, f = by_pair ? from.high.w : from.high.y;
    Word4 const words = {by_word ? b : a, by_word ? c : b, by_word ? d : c, by_word ? e : d};
    if constexpr (row_align_bytes >= 4) return words;
    uint32_t const behind = by_word ? f : e, bits = bytes % 4 * 8;
    return {shifted(words.x, words.y, bits), shifted(words.y, words.z, bits), shifted(words.z, words.w, bits),
            shifted(words.w, behind, bits)};
  }
  HGEMM_DEVICE static uint32_t shifted(uint32_t low, uint32_t high, uint32_t bits) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> bits);
  }

  // The first so many elements of a piece, and zeros after them.
  HGEMM_DEVICE static Word4 first_elements(Word4 piece, int count) {
    int const bits = count * static_cast<int>(8 * sizeof(In));
    return {first_bits(piece.x, bits), first_bits(piece.y, bits - 32), first_bits(piece.z, bits - 64),
            first_bits(piece.w, bits - 96)};
  }
  HGEMM_DEVICE static uint32_t first_bits(uint32_t word, int bits) {
    return bits >= 32 ? word : bits <= 0 ? 0 : word & ((1u << bits) - 1);
  }

  // Copies this thread's part of a k-tile, of which the matrix has `k_left` of k, by the element.
  HGEMM_DEVICE void copy_elements(In* stage, In const* from, int k_left) const {
    HGEMM_NO_UNROLL
    for (int pass_row = 0; pass_row < row_passes; ++pass_row) {
      HGEMM_NO_UNROLL
      for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
        int const count = elements(pass_row, pass_column, k_left);
        In element[chunk];
        HGEMM_UNROLL
        for (int i = 0; i < chunk; ++i) {
          element[i] = i < count ? atoms::ld_global(from + pass_column * column_step + i) : atoms::from_float<In>(0.f);
        }
        HGEMM_UNROLL
        for (int i = 0; i < chunk; ++i) {
          if (owns(pass_row, pass_column)) atoms::st_shared(stage + place(pass_row, pass_column) + i, element[i]);
        }
      }
      from += pass_step;
    }
  }

  HGEMM_DEVICE static Word4* word(In* elements) { return reinterpret_cast<Word4*>(elements); }
};

}  // namespace hgemm
