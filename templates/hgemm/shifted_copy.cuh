// Global to shared memory by way of registers, of rows that begin at any element: each piece of 16 bytes is cut out of the two
// aligned ones that it lies in, with neighbours of its elements. Where those reach out of the matrix, elements are copied.
#pragma once

#include <hgemm/operand.cuh>

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
  using Chunks::advance, Chunks::chunk, Chunks::column, Chunks::elements, Chunks::extent_left, Chunks::k_tile_step;
  using Chunks::owns, Chunks::pass_step, Chunks::place, Chunks::row, Chunks::row_passes, Chunks::row_step, Chunks::source;

  static constexpr bool shifts = true;
  static constexpr int pieces = row_passes;  // of a thread and k-tile
  static constexpr int row_align_bytes = row_align_of<Operand> * sizeof(In);

  static_assert(chunk * sizeof(In) == 16, "pieces are as wide as the widest load");
  static_assert(Chunks::column_passes == 1, "a pass has a piece of each thread at most");
  static_assert(Policy::tile_k % chunk == 0, "all k-tiles of a thread must begin equally far from 16 bytes");

  struct Neighbours { Word4 low, high; };  // two aligned pieces, in the first of which a piece begins

  Neighbours staged[row_passes];
  uint64_t first, last;   // addresses where a whole k-tile may begin for this thread, to be loaded without leaving the matrix
  In const* end;          // of the matrix
  uint32_t bytes_before;  // of this thread's first piece, from an address that 16 divides
  bool by_element;        // whether the k-tile in registers is to be copied by the element

  HGEMM_DEVICE ShiftedCopy(void const* matrix, int64_t leading_dimension, int first_place, int extent, int k_first, int k)
      : Chunks(matrix, leading_dimension, first_place, extent, k_first) {
    int const rows = Operand::k_major ? extent : k, columns = Operand::k_major ? k : extent;
    end = static_cast<In const*>(matrix) + (rows - 1) * leading_dimension + columns;
    first = (reinterpret_cast<uint64_t>(matrix) + 15) / 16 * 16;
    last = last_begin(Operand::k_major ? extent_left : row_passes * row_step);
    bytes_before = reinterpret_cast<uint64_t>(source) % 16;
    by_element = false;
  }

  // Loads the next k-tile, all of which the matrix has; zeros once there is none.
  HGEMM_DEVICE void load() {
    bool const inside = is_inside(source, last);
    HGEMM_UNROLL
    for (int pass = 0; pass < row_passes; ++pass) {
      int const along = Operand::k_major ? pass * row_step : 0;
      staged[pass] = load_piece(source, inside && owns(pass, 0) && along < extent_left);
      source += pass_step;
    }
    by_element = !inside && extent_left > 0;  // what is not there is zeros in registers, too
    advance();
  }

  // Stores one piece of what was loaded.
  HGEMM_DEVICE void store(In* stage, int pass) const {
    if (owns(pass, 0)) atoms::st_shared(word(stage + place(pass, 0)), cut(staged[pass], pass));
  }
  // Copies what could not be loaded so, once all is stored that was.
  HGEMM_DEVICE void finish(In* stage) const {
    if (by_element) copy_elements(stage, source - k_tile_step, Policy::tile_k);
  }

  // Copies the k-tile `ahead` of the next one, of which the matrix has `k_left` of k.
  HGEMM_DEVICE void copy_last(In* stage, int ahead, int k_left) const {
    constexpr int batch = row_passes < 4 ? row_passes : 4;  // pieces in flight
    In const* const tile = source + ahead * k_tile_step;
    int const rows = Operand::k_major ? extent_left : k_left - row();
    bool const inside = is_inside(tile, last_begin(rows));
    In const* from = tile;
    HGEMM_NO_UNROLL
    for (int begin = 0; begin < row_passes; begin += batch) {
      Neighbours piece[batch];
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        bool const some = begin + i < row_passes && elements(begin + i, 0, k_left) > 0;
        piece[i] = load_piece(from + i * pass_step, inside && some);
      }
      HGEMM_UNROLL
      for (int i = 0; i < batch; ++i) {
        if (begin + i >= row_passes || !owns(begin + i, 0)) continue;
        int const count = Operand::k_major ? elements(begin + i, 0, k_left) : chunk;
        Word4 const whole = cut(piece[i], begin + i);
        atoms::st_shared(word(stage + place(begin + i, 0)), first_elements(whole, count));
      }
      from += batch * pass_step;
    }
    if (!inside && elements(0, 0, k_left) > 0) copy_elements(stage, tile, k_left);
  }

  // The last address where a k-tile of this thread may begin, of so many rows from its first one on.
  HGEMM_DEVICE uint64_t last_begin(int rows) const {
    int const last_pass = (rows - 1) / row_step < row_passes ? (rows - 1) / row_step : row_passes - 1;
    return reinterpret_cast<uint64_t>(end - (last_pass * pass_step + 2 * chunk - 1));
  }
  HGEMM_DEVICE bool is_inside(In const* tile, uint64_t last_address) const {
    uint64_t const address = reinterpret_cast<uint64_t>(tile);
    return address >= first && address <= last_address;
  }

  HGEMM_DEVICE static Neighbours load_piece(In const* piece, bool valid) {
    uint32_t const before = reinterpret_cast<uint64_t>(piece) % 16;
    Word4 const* const aligned = reinterpret_cast<Word4 const*>(reinterpret_cast<unsigned char const*>(piece) - before);
    return {valid ? atoms::ld_global(aligned) : Word4{}, valid && before != 0 ? atoms::ld_global(aligned + 1) : Word4{}};
  }

  // Cuts a piece of a pass out of its neighbours. Of rows aligned to a pair of words or to a word, less is left to do.
  HGEMM_DEVICE Word4 cut(Neighbours const& from, int pass) const {
    uint32_t const to_row = row_step % chunk == 0 ? 0 : pass * static_cast<uint32_t>(pass_step * sizeof(In));
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

  // The first so many elements of a piece, or all of it, and zeros after them.
  HGEMM_DEVICE static Word4 first_elements(Word4 piece, int count) {
    int const bits = (count < chunk ? count : chunk) * static_cast<int>(8 * sizeof(In));
    return {first_bits(piece.x, bits), first_bits(piece.y, bits - 32), first_bits(piece.z, bits - 64),
            first_bits(piece.w, bits - 96)};
  }
  HGEMM_DEVICE static uint32_t first_bits(uint32_t word, int bits) {
    return bits >= 32 ? word : bits <= 0 ? 0 : word & ((1u << bits) - 1);
  }

  // Copies this thread's part of a k-tile, of which the matrix has `k_left` of k, by the element.
  HGEMM_DEVICE void copy_elements(In* stage, In const* from, int k_left) const {
    HGEMM_NO_UNROLL
    for (int pass = 0; pass < row_passes; ++pass) {
      int const count = elements(pass, 0, k_left);
      In element[chunk];
      HGEMM_UNROLL
      for (int i = 0; i < chunk; ++i) element[i] = i < count ? atoms::ld_global(from + i) : atoms::from_float<In>(0.f);
      HGEMM_UNROLL
      for (int i = 0; i < chunk; ++i) {
        if (owns(pass, 0)) atoms::st_shared(stage + place(pass, 0) + i, element[i]);
      }
      from += pass_step;
    }
  }

  HGEMM_DEVICE static Word4* word(In* elements) { return reinterpret_cast<Word4*>(elements); }
};

}  // namespace hgemm
