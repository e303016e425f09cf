// The K loop on copies through registers, for sm_75 and for the copies ldg_sts, ldg_sts_scalar and ldg_sts_unaligned.
//
// A k-tile is loaded to registers when the k-tile before it begins. It is stored to shared memory among that one's last
// products. With `prefetch` off, it is loaded and stored after them.
#pragma once

#include <common/problem.cuh>
#include <mma_sync/operand.cuh>

namespace hgemm {

// ---- Copy of aligned chunks ---------------------------------------------------------------------------------------

// What moves BYTES at once.
template <int BYTES>
struct VecOf;
template <>
struct VecOf<16> { using Type = Vec16B; };
template <>
struct VecOf<8> { using Type = Vec8B; };
template <>
struct VecOf<4> { using Type = Vec4B; };
template <>
struct VecOf<2> { using Type = uint16_t; };

// Copies the chunks of OperandCopy by way of registers. All of a thread's vectors of a k-tile are loaded first, so that the
// loads overlap. The mainloop says when each is stored.
template <class Policy, class Operand, int EXTENT>
struct RegisterCopy : OperandCopy<Policy, Operand, EXTENT> {
  using Chunks = OperandCopy<Policy, Operand, EXTENT>;
  using In = typename Policy::In;
  using Vector = typename VecOf<Chunks::chunk * sizeof(In)>::Type;
  using Chunks::advance, Chunks::column_passes, Chunks::column_step, Chunks::inside, Chunks::owns, Chunks::place;
  using Chunks::row_passes, Chunks::source;

  static constexpr int vecs = row_passes * column_passes;  // of a thread and k-tile

  Vector loaded[row_passes][column_passes];  // (row_passes, column_passes), of one k-tile

  using Chunks::Chunks;

  // Loads the next k-tile, or zeros after the last one.
  HGEMM_DEVICE void load() {
    HGEMM_UNROLL
    for (int pass_row = 0; pass_row < row_passes; ++pass_row) {
      HGEMM_UNROLL
      for (int pass_column = 0; pass_column < column_passes; ++pass_column) {
        bool const valid = owns(pass_row, pass_column) && inside(pass_row, pass_column);
        loaded[pass_row][pass_column] = valid ? atoms::ld_global(vec_at(source + pass_column * column_step)) : Vector{};
      }
      source += Chunks::pass_step;
    }
    advance();
  }

  // Stores one vector of what was loaded.
  HGEMM_DEVICE void store(In* stage, int vec) const {
    int const pass_row = vec / column_passes, pass_column = vec % column_passes;
    if (owns(pass_row, pass_column)) {
      atoms::st_shared(vec_at(stage + place(pass_row, pass_column)), loaded[pass_row][pass_column]);
    }
  }

  HGEMM_DEVICE void finish(In*) const {}

  // Replaces what was loaded by zeros.
  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int vec = 0; vec < vecs; ++vec) loaded[vec / column_passes][vec % column_passes] = Vector{};
  }

  HGEMM_DEVICE static Vector* vec_at(In* elements) { return reinterpret_cast<Vector*>(elements); }
  HGEMM_DEVICE static Vector const* vec_at(In const* elements) { return reinterpret_cast<Vector const*>(elements); }
};

// ---- Copy of unaligned rows ---------------------------------------------------------------------------------------

// Copies rows that begin at any element. Each 16-byte vector is cut out of the two aligned ones around it. Where those reach
// outside the matrix, single elements are copied.
template <class Policy, class Operand, int EXTENT>
struct UnalignedCopy : OperandCopy<Policy, Operand, EXTENT> {
  using Chunks = OperandCopy<Policy, Operand, EXTENT>;
  using In = typename Policy::In;
  using Chunks::chunk, Chunks::columns_left, Chunks::k_tile_step, Chunks::owns, Chunks::pass_step, Chunks::place;
  using Chunks::row_passes, Chunks::row_step, Chunks::rows_left, Chunks::source;

  static constexpr int vecs = row_passes;  // of a thread and k-tile
  static constexpr int row_align_bytes = Operand::row_align * sizeof(In);

  static_assert(chunk * sizeof(In) == 16, "chunks are as wide as the widest load");
  static_assert(Chunks::column_passes == 1, "a pass has at most one vector per thread");
  static_assert(Policy::tile_k % chunk == 0, "all k-tiles of a thread must have the same offset from 16 bytes");

  struct Neighbours { Vec16B low, high; };  // two aligned vectors; the wanted one begins in the first

  Neighbours loaded[row_passes];  // (row_passes), of one k-tile
  uint64_t first, last;   // first and last address at which a k-tile of this thread can be loaded inside the matrix
  In const* end;          // of the matrix
  uint32_t bytes_before;  // offset of this thread's first vector from a multiple of 16 bytes
  int rows_by_element;    // rows of the k-tile in registers that must be copied by single elements

  HGEMM_DEVICE UnalignedCopy(void const* matrix, int64_t leading_dimension, int first_place, int extent, int k_first, int k_end,
                             int k)
      : Chunks(matrix, leading_dimension, first_place, extent, k_first, k_end, k) {
    int const rows = Operand::k_major ? extent : k, columns = Operand::k_major ? k : extent;
    end = static_cast<In const*>(matrix) + (rows - 1) * leading_dimension + columns;
    first = (reinterpret_cast<uint64_t>(matrix) + 15) / 16 * 16;
    last = last_begin();
    bytes_before = reinterpret_cast<uint64_t>(source) % 16;
    rows_by_element = 0;
  }

  // Only the ends of rows: vectors of the last row that reach past the end of the matrix are copied by element anyway.
  HGEMM_DEVICE static bool has_ends(int first_place, int extent, int k) {
    return Operand::k_major && Chunks::has_ends(first_place, extent, k);
  }

  // Loads the next k-tile, or zeros after the last one.
  HGEMM_DEVICE void load() {
    uint64_t const address = reinterpret_cast<uint64_t>(source);
    bool const by_vector = address >= first && address <= last;
    HGEMM_UNROLL
    for (int pass = 0; pass < row_passes; ++pass) {
      loaded[pass] = load_neighbours(source, by_vector && owns(pass, 0) && Chunks::inside(pass, 0));
      source += pass_step;
    }
    rows_by_element = by_vector ? 0 : rows_left;
    Chunks::advance();
    if (!Operand::k_major && rows_left < row_passes * row_step) last = last_begin();
  }

  // Stores one vector of what was loaded.
  HGEMM_DEVICE void store(In* stage, int pass) const {
    if (owns(pass, 0)) atoms::st_shared(vec_at(stage + place(pass, 0)), cut(loaded[pass], pass));
  }
  // Copies single elements, after all stores, if vectors could not be loaded.
  HGEMM_DEVICE void finish(In* stage) const {
    if (rows_by_element > 0) copy_elements(stage, source - k_tile_step);
  }

  // Replaces what was loaded by zeros.
  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int pass = 0; pass < row_passes; ++pass) loaded[pass] = Neighbours{};
  }

  // The last address at which the next k-tile of this thread may begin.
  HGEMM_DEVICE uint64_t last_begin() const {
    int const last_pass = (rows_left - 1) / row_step < row_passes ? (rows_left - 1) / row_step : row_passes - 1;
    return reinterpret_cast<uint64_t>(end - (last_pass * pass_step + 2 * chunk - 1));
  }

  HGEMM_DEVICE static Neighbours load_neighbours(In const* vec, bool valid) {
    uint32_t const before = reinterpret_cast<uint64_t>(vec) % 16;
    Vec16B const* const aligned = reinterpret_cast<Vec16B const*>(reinterpret_cast<unsigned char const*>(vec) - before);
    return {valid ? atoms::ld_global(aligned) : Vec16B{}, valid && before != 0 ? atoms::ld_global(aligned + 1) : Vec16B{}};
  }

  // Cuts the vector of a pass out of its neighbours. Rows aligned to 8 or 4 bytes need fewer steps.
  HGEMM_DEVICE Vec16B cut(Neighbours const& from, int pass) const {
    uint32_t const to_row = row_step % chunk == 0 ? 0 : pass * static_cast<uint32_t>(pass_step * sizeof(In));
    uint32_t const bytes = bytes_before + to_row;
    bool const by_pair = bytes & 8, by_word = row_align_bytes < 8 && bytes & 4;
    uint32_t const a = by_pair ? from.low.z : from.low.x, b = by_pair ? from.low.w : from.low.y;
    uint32_t const c = by_pair ? from.high.x : from.low.z, d = by_pair ? from.high.y : from.low.w;
    uint32_t const e = by_pair ? from.high.z : from.high.x, f = by_pair ? from.high.w : from.high.y;
    Vec16B const words = {by_word ? b : a, by_word ? c : b, by_word ? d : c, by_word ? e : d};
    if constexpr (row_align_bytes >= 4) return words;
    uint32_t const behind = by_word ? f : e, bits = bytes % 4 * 8;
    return {shifted(words.x, words.y, bits), shifted(words.y, words.z, bits), shifted(words.z, words.w, bits),
            shifted(words.w, behind, bits)};
  }
  HGEMM_DEVICE static uint32_t shifted(uint32_t low, uint32_t high, uint32_t bits) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> bits);
  }

  // Copies this thread's part of a k-tile by single elements.
  HGEMM_DEVICE void copy_elements(In* stage, In const* from) const {
    int const count = Operand::k_major || columns_left > chunk ? chunk : columns_left;
    HGEMM_NO_UNROLL
    for (int pass = 0; pass < row_passes && pass * row_step < rows_by_element; ++pass) {
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

  HGEMM_DEVICE static Vec16B* vec_at(In* elements) { return reinterpret_cast<Vec16B*>(elements); }
};

// The copy of an operand. With ldg_sts_unaligned, an operand whose rows are aligned to whole chunks needs no shifts.
template <class Policy, class Operand, int EXTENT, bool UNALIGNED = (Operand::row_align < Operand::align)>
struct CopyOf { using Type = RegisterCopy<Policy, Operand, EXTENT>; };
template <class Policy, class Operand, int EXTENT>
struct CopyOf<Policy, Operand, EXTENT, true> { using Type = UnalignedCopy<Policy, Operand, EXTENT>; };

// ---- Mainloop -----------------------------------------------------------------------------------------------------

template <class Policy>
struct RegisterCopyMainloop {
  using In = typename Policy::In;
  using Warp = typename WarpOf<Policy>::Type;
  using Shared = typename Warp::Shared;
  using Fragments = typename Warp::Fragments;
  using CopyA = typename CopyOf<Policy, typename Policy::A, Policy::tile_m>::Type;
  using CopyB = typename CopyOf<Policy, typename Policy::B, Policy::tile_n>::Type;

  // ---- Sizes ------------------------------------------------------------------------------------------------------

  static constexpr int stages = Policy::stages;
  static constexpr int k_blocks = Warp::k_blocks, steps = Warp::steps;
  static constexpr int mma_per_k_tile = Warp::mma_per_k_tile;
  static constexpr bool two_fragment_stages = Warp::two_fragment_stages;

  // From one barrier to the next, k_blocks * steps steps pass. A k-tile is loaded at their begin and stored at their end. With
  // two fragment stages, the barrier is before a k-tile's last block, which reads the next k-tile. With one, it is before the
  // first block.
  static constexpr int first_block = two_fragment_stages ? k_blocks - 1 : 0;
  static constexpr int last_step = k_blocks * steps - 1;

  // A store follows every `store_step` steps, the last store the last step. If it is 0, all stores follow the last step.
  static constexpr int vecs = CopyA::vecs + CopyB::vecs;
  static constexpr int store_step = (Policy::store_spacing + Warp::mma_per_step - 1) / Warp::mma_per_step;
  static constexpr int first_store = last_step - (vecs - 1) * store_step;

  static_assert(stages == 1 || stages == 2, "one k-tile is multiplied while the next one is in registers");
  static_assert(stages == 2 || !two_fragment_stages, "two fragment stages require two stages");
  static_assert(Policy::prefetch || (stages == 1 && store_step == 0), "without prefetch a k-tile is stored when it is loaded");
  static_assert(first_store >= (stages == 1 && Warp::last_read > 0 ? Warp::last_read : 0), "too few products between stores");

  // ---- State ------------------------------------------------------------------------------------------------------

  Shared& shared;
  TileOperands<Policy, CopyA, CopyB> operands;
  CopyA copy_a;
  CopyB copy_b;
  Warp warp;
  int k_tiles;  // to multiply before the loop is left
  int write_stage = 0;

  // For k-tiles [k_tile_first, k_tile_first + k_tiles) of the tile of D at (m_first, n_first).
  HGEMM_DEVICE RegisterCopyMainloop(Shared& shared, Problem const& problem, int batch, int m_first, int n_first,
                                    int k_tile_first, int k_tiles)
      : shared(shared),
        operands(problem, batch, m_first, n_first, k_tile_first, k_tiles),
        copy_a(operands.copy_a()),
        copy_b(operands.copy_b()),
        warp(shared),
        k_tiles(k_tiles) {}

  // ---- Loop -------------------------------------------------------------------------------------------------------

  // Multiplies the k-tiles in order and adds the products to `accumulators`. If load() leaves out elements of the last k-tile, the
  // loop ends before it, copy_ends() copies them, and the loop begins again. All threads of the CTA must call run(). Shared
  // memory is free when it returns.
  HGEMM_DEVICE void run(WarpAccumulators<Policy>& accumulators) {
    if (Policy::splits > 1 && k_tiles == 0) return;  // more splits than k-tiles
    bool ends = operands.has_ends();
    k_tiles -= ends;
    load_next();
    store_all();
    Fragments fragments[Policy::fragment_stages];  // (fragment_stages)
    if constexpr (two_fragment_stages) {
      begin_k_tile();
      warp.read_first(fragments[0], warp.read_stage);
      HGEMM_UNROLL
      for (int step = 0; step < steps; ++step) store_after(step);
    }
    HGEMM_NO_UNROLL
    for (;;) {
      if (k_tiles > 0) multiply(accumulators, fragments);
      if (!ends) break;
      atoms::cta_barrier();  // the k-tile is in shared memory, and all warps have read the first block without the ends
      operands.copy_ends(shared, warp.read_stage);
      if constexpr (two_fragment_stages) {
        atoms::cta_barrier();
        warp.read_first(fragments[0], warp.read_stage);
        copy_a.clear();  // nothing follows the last k-tile; copy_ends() needs the registers
        copy_b.clear();
      }
      ends = false;
      k_tiles = 1;
    }
    atoms::cta_barrier();
  }

  HGEMM_DEVICE void multiply(WarpAccumulators<Policy>& accumulators, Fragments (&fragments)[Policy::fragment_stages]) {
    HGEMM_NO_UNROLL
    do {
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        if (block == first_block) {
          begin_k_tile();
          if constexpr (!two_fragment_stages) warp.read_first(fragments[0], warp.read_stage);
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        HGEMM_UNROLL
        for (int step = 0; step < steps; ++step) {
          Warp::multiply(accumulators, now, block, step);
          if constexpr (two_fragment_stages) {
            warp.read_ahead(later, block, step, Warp::next(warp.read_stage));
          } else {
            warp.read_behind(now, block, step, k_blocks, Warp::next(warp.read_stage));
          }
          store_after((block - first_block + k_blocks) % k_blocks * steps + step);
        }
      }
      accumulators.promote();
      if constexpr (two_fragment_stages && k_blocks % 2 == 1) fragments[0] = fragments[1];
      warp.read_stage = Warp::next(warp.read_stage);
    } while (--k_tiles > 0);
  }

  // ---- Copies -----------------------------------------------------------------------------------------------------

  // After the barrier, all warps see the stored k-tile, and no warp reads the previous one. The next loads are issued before
  // the barrier, because the compiler does not move them across it. After it, they could be delayed until their first use.
  HGEMM_DEVICE void begin_k_tile() {
    copy_a.finish(shared.a[write_stage]);
    copy_b.finish(shared.b[write_stage]);
    if constexpr (Policy::prefetch) load_next();
    atoms::cta_barrier();
    write_stage = Warp::next(write_stage);
  }

  HGEMM_DEVICE void load_next() {
    copy_a.load();
    copy_b.load();
  }
  HGEMM_DEVICE void store_all() {
    HGEMM_UNROLL
    for (int vec = 0; vec < vecs; ++vec) store_vec(vec);
  }
  HGEMM_DEVICE void store_vec(int vec) {
    if (vec < CopyA::vecs) {
      copy_a.store(shared.a[write_stage], vec);
    } else {
      copy_b.store(shared.b[write_stage], vec - CopyA::vecs);
    }
  }

  // Stores the vector that follows a step, or all of them. Scheduling barriers keep the compiler from grouping stores. Without
  // the one in front, it may load, or wait for loads and shift, before the last products.
  HGEMM_DEVICE void store_after(int step) {
    HGEMM_UNROLL
    for (int vec = 0; vec < vecs; ++vec) {
      if (step != first_store + vec * store_step) continue;
      if (Policy::stores_behind_mma && vec == 0) atoms::scheduling_barrier(1);
      if (stages == 1 && vec == 0) atoms::cta_barrier();  // all warps have read the k-tile
      if (!Policy::prefetch && vec == 0) load_next();
      if constexpr (store_step > 0) atoms::scheduling_barrier(1 + 2 * vec);
      store_vec(vec);
      if constexpr (store_step > 0) atoms::scheduling_barrier(2 + 2 * vec);
    }
  }
};

}  // namespace hgemm
