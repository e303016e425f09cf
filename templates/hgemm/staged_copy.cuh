// Global to shared memory by way of registers: all of a thread's pieces of a k-tile are loaded first, so that the loads
// overlap, and stored one by one when the mainloop says.
#pragma once

#include <hgemm/operand.cuh>

namespace hgemm {

// What moves BYTES at once.
template <int BYTES>
struct WordOf;
template <>
struct WordOf<16> { using Type = Word4; };
template <>
struct WordOf<8> { using Type = Word2; };
template <>
struct WordOf<4> { using Type = Word1; };
template <>
struct WordOf<2> { using Type = uint16_t; };

// Copies the chunks that OperandCopy would, to where it would. Past the end of the extent, and of k, there are zeros.
template <class Policy, class Operand, int EXTENT>
struct StagedCopy : OperandCopy<Policy, Operand, EXTENT> {
  using Chunks = OperandCopy<Policy, Operand, EXTENT>;
  using In = typename Policy::In;
  using Word = typename WordOf<Chunks::chunk * sizeof(In)>::Type;
  using Chunks::advance, Chunks::chunk, Chunks::column, Chunks::column_passes, Chunks::column_step, Chunks::elements;
  using Chunks::extent_left, Chunks::owns, Chunks::place, Chunks::row, Chunks::row_passes, Chunks::row_step, Chunks::source;

  static constexpr bool shifts = false;
  static constexpr int pieces = row_passes * column_passes;  // of a thread and k-tile

  Word staged[row_passes][column_passes];

  HGEMM_DEVICE StagedCopy(void const* matrix, int64_t leading_dimension, int first, int extent, int k_first, int)
      : Chunks(matrix, leading_dimension, first, extent, k_first) {}

  // Loads the next k-tile, all of which the matrix has; zeros once there is none.
  HGEMM_DEVICE void load() {
    HGEMM_UNROLL
    for (int pass_row = 0; pass_row < row_passes; ++pass_row) {
      HGEMM_UNROLL
      for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
        int const along = Operand::k_major ? pass_row * row_step : pass_column * column_step;
        bool const valid = owns(pass_row, pass_column) && along < extent_left;
        staged[pass_row][pass_column] = valid ? atoms::ld_global(words(source + pass_column * column_step)) : Word{};
      }
      source += Chunks::pass_step;
    }
    advance();
  }

  // Stores one piece of what was loaded.
  HGEMM_DEVICE void store(In* stage, int piece) const {
    int const pass_row = piece / column_passes, pass_column = piece % column_passes;
    if (owns(pass_row, pass_column)) {
      atoms::st_shared(words(stage + place(pass_row, pass_column)), staged[pass_row][pass_column]);
    }
  }

  HGEMM_DEVICE void finish(In*) const {}

  // Copies the k-tile `ahead` of the next one, of which the matrix has `k_left` of k.
  HGEMM_DEVICE void copy_last(In* stage, int ahead, int k_left) const {
    constexpr int batch = row_passes < 8 ? row_passes : 8;  // rows in flight
    In const* from = source + ahead * Chunks::k_tile_step;
    HGEMM_NO_UNROLL
    for (int first = 0; first < row_passes; first += batch) {
      Word word[batch][column_passes];
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          bool const whole = first + i < row_passes && elements(first + i, pass_column, k_left) >= chunk;
          In const* const piece = from + i * Chunks::pass_step + pass_column * column_step;
          word[i][pass_column] = whole ? atoms::ld_global(words(piece)) : Word{};
        }
      }
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        HGEMM_UNROLL
        for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
          if (first + i < row_passes && owns(first + i, pass_column)) {
            atoms::st_shared(words(stage + place(first + i, pass_column)), word[i][pass_column]);
          }
        }
      }
      from += batch * Chunks::pass_step;
    }
    if constexpr (chunk > 1) copy_ends(stage, source + ahead * Chunks::k_tile_step, k_left);
  }

  // Copies what there is of chunks that the matrix ends in.
  HGEMM_DEVICE void copy_ends(In* stage, In const* from, int k_left) const {
    HGEMM_NO_UNROLL
    for (int pass_row = 0; pass_row < row_passes; ++pass_row) {
      HGEMM_NO_UNROLL
      for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
        int const count = elements(pass_row, pass_column, k_left);
        HGEMM_NO_UNROLL
        for (int e = 0; e < count && count < chunk; ++e) {
          In* const to = stage + place(pass_row, pass_column) + e;
          atoms::st_shared(to, atoms::ld_global(from + pass_column * column_step + e));
        }
      }
      from += Chunks::pass_step;
    }
  }

  HGEMM_DEVICE static Word* words(In* elements) { return reinterpret_cast<Word*>(elements); }
  HGEMM_DEVICE static Word const* words(In const* elements) { return reinterpret_cast<Word const*>(elements); }
};

}  // namespace hgemm
