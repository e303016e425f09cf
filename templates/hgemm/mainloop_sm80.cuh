// The K loop of sm_80 and later without wgmma: a ring of shared-memory stages filled by cp.async, ldmatrix, mma.sync.
#pragma once

#include <hgemm/operand.cuh>
#include <hgemm/problem.cuh>

namespace hgemm {

// What mma.sync adds up in: floats, halves, or halves that are added to floats after each k-tile.
enum class Accumulate { f32, f16, f16_promoted };

// ---- Accumulators -------------------------------------------------------------------------------------------------

// One warp's part of D: (mma_m, mma_n) pieces of 16 x 8, of which a lane holds 4 elements, at rows lane / 4 and
// lane / 4 + 8 and columns lane % 4 * 2 and the next.
template <class Policy>
struct Accumulators {
  static constexpr bool in_halves = Policy::accumulate != Accumulate::f32;
  static constexpr bool promoted = Policy::accumulate == Accumulate::f16_promoted;
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;

  uint32_t halves[in_halves ? mma_m : 1][in_halves ? mma_n : 1][2];                 // (mma_m, mma_n), 2 registers
  float floats[Policy::accumulate == Accumulate::f16 ? 1 : mma_m]
              [Policy::accumulate == Accumulate::f16 ? 1 : mma_n][4];               // (mma_m, mma_n), 4 registers

  HGEMM_DEVICE void clear() {
    HGEMM_UNROLL
    for (int i = 0; i < mma_m; ++i) {
      HGEMM_UNROLL
      for (int j = 0; j < mma_n; ++j) {
        if constexpr (in_halves) halves[i][j][0] = halves[i][j][1] = 0;
        if constexpr (Policy::accumulate != Accumulate::f16) {
          floats[i][j][0] = floats[i][j][1] = floats[i][j][2] = floats[i][j][3] = 0.f;
        }
      }
    }
  }

  HGEMM_DEVICE void multiply(int i, int j, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
    if constexpr (in_halves) {
      atoms::mma<typename Policy::In, Policy::mma_k>(halves[i][j], a, b);
    } else {
      atoms::mma<typename Policy::In, Policy::mma_k>(floats[i][j], a, b);
    }
  }

  // Moves what a k-tile added up in halves over to the floats.
  HGEMM_DEVICE void promote() {
    if constexpr (promoted) {
      HGEMM_UNROLL
      for (int i = 0; i < mma_m; ++i) {
        HGEMM_UNROLL
        for (int j = 0; j < mma_n; ++j) {
          HGEMM_UNROLL
          for (int r = 0; r < 2; ++r) {
            floats[i][j][2 * r] += atoms::low_half(halves[i][j][r]);
            floats[i][j][2 * r + 1] += atoms::high_half(halves[i][j][r]);
            halves[i][j][r] = 0;
          }
        }
      }
    }
  }

  // Element e of a lane's 4 of piece (i, j), as a float.
  HGEMM_DEVICE float value(int i, int j, int e) const {
    if constexpr (Policy::accumulate == Accumulate::f16) {
      return e % 2 == 0 ? atoms::low_half(halves[i][j][e / 2]) : atoms::high_half(halves[i][j][e / 2]);
    } else {
      return floats[i][j][e];
    }
  }
};

// ---- Mainloop -----------------------------------------------------------------------------------------------------

template <class Policy>
struct Mainloop {
  using In = typename Policy::In;
  using A = typename Policy::A;
  using B = typename Policy::B;
  using LayoutA = OperandLayout<Policy, A, Policy::tile_m>;
  using LayoutB = OperandLayout<Policy, B, Policy::tile_n>;

  using CopyA = OperandCopy<Policy, A, Policy::tile_m>;
  using CopyB = OperandCopy<Policy, B, Policy::tile_n>;

  static constexpr int stages = Policy::stages;
  static constexpr int stages_ahead = stages > 1 ? stages - 1 : 1;  // k-tiles copied before the first is waited for
  static constexpr int k_blocks = Policy::tile_k / 16;  // fragments along k in a k-tile
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;

  static constexpr int mma_per_k_tile = mma_m * mma_n * (Policy::tile_k / Policy::mma_k);  // of one warp

  struct Shared {
    alignas(128) In a[stages][LayoutA::stage_elements];
    alignas(128) In b[stages][LayoutB::stage_elements];
  };

  struct Fragments {
    uint32_t a[mma_m][4];  // (mma_m), 16 x 16 of A
    uint32_t b[mma_n][2];  // (mma_n), 16 x 8 of B
  };

  Shared& shared;
  CopyA copy_a;
  CopyB copy_b;
  FragmentReader<Policy, A, Policy::tile_m, true> read_a;
  FragmentReader<Policy, B, Policy::tile_n, false> read_b;
  int k_left;  // of the matrix, from the first k-tile on
  int k_tiles, k_tiles_to_copy;
  int read_stage = 0, write_stage = 0;

  // For k-tiles [k_tile_first, k_tile_first + k_tiles) of the tile of D at (m_first, n_first).
  HGEMM_DEVICE Mainloop(Shared& shared, Problem const& problem, int batch, int m_first, int n_first, int k_tile_first,
                        int k_tiles)
      : shared(shared),
        copy_a(static_cast<In const*>(problem.a) + batch * problem.batch_stride_a, problem.lda, m_first, problem.m,
               k_tile_first * Policy::tile_k),
        copy_b(static_cast<In const*>(problem.b) + batch * problem.batch_stride_b, problem.ldb, n_first, problem.n,
               k_tile_first * Policy::tile_k),
        read_a(warp() % Policy::warps_m * Policy::warp_m, lane()),
        read_b(warp() / Policy::warps_m * Policy::warp_n, lane()),
        k_left(problem.k - k_tile_first * Policy::tile_k),
        k_tiles(k_tiles),
        k_tiles_to_copy(k_tiles) {}

  HGEMM_DEVICE static int warp() { return atoms::thread_index() / 32; }
  HGEMM_DEVICE static int lane() { return atoms::thread_index() % 32; }

  // Adds the products of the k-tiles to `accumulators`, of the last k-tile first, since it may be ragged. All threads of the
  // CTA call it; shared memory is free after it.
  HGEMM_DEVICE void run(Accumulators<Policy>& accumulators) {
    if (Policy::splits > 1 && k_tiles == 0) return;  // more splits than k-tiles
    copy_last();
    HGEMM_NO_UNROLL
    for (int stage = 1; stage < stages_ahead; ++stage) copy_next();
    if constexpr (stages == 1) {
      run_in_turn(accumulators);
    } else {
      run_pipelined(accumulators);
    }
    atoms::cp_async_wait<0>();
    atoms::cta_barrier();
  }

  // One stage: copy, wait, read and multiply take turns.
  HGEMM_DEVICE void run_in_turn(Accumulators<Policy>& accumulators) {
    HGEMM_NO_UNROLL
    do {
      atoms::cp_async_wait<0>();
      atoms::cta_barrier();
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        Fragments fragments;
        read(fragments, block);
        HGEMM_UNROLL
        for (int product = 0; product < products; ++product) multiply(accumulators, fragments, block, product);
      }
      accumulators.promote();
      atoms::cta_barrier();
      copy_next();
    } while (--k_tiles > 0);
  }

  // More stages: while a block of 16 of k is multiplied, the fragments of the next one are read and part of a k-tile further
  // on is copied, spread evenly between the products. The barrier before the last block of a k-tile says two things: the next
  // k-tile is there, and all warps have read this one, whose stage may be filled again.
  HGEMM_DEVICE void run_pipelined(Accumulators<Policy>& accumulators) {
    Fragments fragments[Policy::fragment_stages];
    atoms::cp_async_wait<stages_ahead - 1>();
    atoms::cta_barrier();  // the last k-tile, which copy_last() may have stored, is there
    read(fragments[0], 0);
    HGEMM_UNROLL
    for (int action = 0; action < copies(0); ++action) copy_part(0, action);
    HGEMM_NO_UNROLL
    do {
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        int const part = (block + 1) % k_blocks;
        if (part == 0) await_next_k_tile();
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& ahead = fragments[(block + 1) % Policy::fragment_stages];
        HGEMM_UNROLL
        for (int product = 0; product < products; ++product) {
          multiply(accumulators, now, block, product);
          HGEMM_UNROLL
          for (int piece = 0; piece < pieces; ++piece) {
            if (due(piece, block) == product) read_piece(ahead, part, piece);
          }
          HGEMM_UNROLL
          for (int action = product * copies(part) / products; action < (product + 1) * copies(part) / products; ++action) {
            copy_part(part, action);
          }
        }
      }
      accumulators.promote();
      if constexpr (Policy::fragment_stages == 2 && k_blocks % 2 == 1) fragments[0] = fragments[1];
    } while (--k_tiles > 0);
  }

  HGEMM_DEVICE void await_next_k_tile() {
    copy_a.advance();
    copy_b.advance();
    finish_copy();
    atoms::cp_async_wait<stages - 2>();
    atoms::cta_barrier();
    read_stage = next(read_stage);
  }

  HGEMM_DEVICE static constexpr int next(int stage) { return stage + 1 == stages ? 0 : stage + 1; }

  // ---- Copies -----------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void copy_last() {
    int const ahead = k_tiles - 1;
    copy_a.copy_last(shared.a[write_stage], ahead, k_left - ahead * Policy::tile_k);
    copy_b.copy_last(shared.b[write_stage], ahead, k_left - ahead * Policy::tile_k);
    finish_copy();
  }

  // Starts the copy of the next k-tile into the next free stage; zeros go there once all are copied.
  HGEMM_DEVICE void copy_next() {
    copy_a.copy(shared.a[write_stage], 0, CopyA::row_passes);
    copy_b.copy(shared.b[write_stage], 0, CopyB::row_passes);
    copy_a.advance();
    copy_b.advance();
    finish_copy();
  }

  // All of a k-tile's copies are started: on to the next one and to the next stage.
  HGEMM_DEVICE void finish_copy() {
    atoms::cp_async_commit();
    write_stage = next(write_stage);
    if (--k_tiles_to_copy <= 0) {
      copy_a.stop();
      copy_b.stop();
    }
  }

  // A k-tile is copied in k_blocks parts, each of `copies` actions: passes of A, then passes of B. Passes through registers
  // stay together, so that their loads overlap.
  template <class Copy>
  HGEMM_DEVICE static constexpr int first_pass(int part) { return Copy::row_passes * part / k_blocks; }
  template <class Copy>
  HGEMM_DEVICE static constexpr int actions(int part) {
    int const passes = first_pass<Copy>(part + 1) - first_pass<Copy>(part);
    return Copy::through_registers && passes > 1 ? 1 : passes;
  }
  HGEMM_DEVICE static constexpr int copies(int part) { return actions<CopyA>(part) + actions<CopyB>(part); }

  HGEMM_DEVICE void copy_part(int part, int action) {
    if (action < actions<CopyA>(part)) {
      copy_action(copy_a, shared.a[write_stage], part, action);
    } else {
      copy_action(copy_b, shared.b[write_stage], part, action - actions<CopyA>(part));
    }
  }

  template <class Copy>
  HGEMM_DEVICE static void copy_action(Copy& copy, In* stage, int part, int action) {
    int const first = first_pass<Copy>(part);
    if constexpr (Copy::through_registers) {
      copy.copy(stage, first, first_pass<Copy>(part + 1));
    } else {
      copy.copy(stage, first + action, first + action + 1);
    }
  }

  // ---- Fragments --------------------------------------------------------------------------------------------------

  // Fragments are read in pieces of one ldmatrix: one for each 16 of m, then one for each 16 of n.
  static constexpr int pieces = mma_m + (mma_n + 1) / 2;
  static constexpr int products = mma_m * mma_n;

  HGEMM_DEVICE void read(Fragments& fragments, int block) const {
    HGEMM_UNROLL
    for (int piece = 0; piece < pieces; ++piece) read_piece(fragments, block, piece);
  }

  HGEMM_DEVICE void read_piece(Fragments& fragments, int block, int piece) const {
    if (piece < mma_m) {
      In const* const stage = shared.a[read_stage];  // (tile_m, tile_k)
      uint32_t(&a)[4] = fragments.a[piece];
      read_a.read_x4(stage, piece * 16, block * 16, a[0], a[1], a[2], a[3]);
    } else {
      In const* const stage = shared.b[read_stage];  // (tile_n, tile_k)
      int const j = (piece - mma_m) * 2;
      uint32_t(&b0)[2] = fragments.b[j];
      if (j + 1 < mma_n) {
        uint32_t(&b1)[2] = fragments.b[j + 1 < mma_n ? j + 1 : j];
        read_b.read_x4(stage, j * 8, block * 16, b0[0], b0[1], b1[0], b1[1]);
      } else {
        read_b.read_x2(stage, j * 8, block * 16, b0[0], b0[1]);
      }
    }
  }

  // The product after which a piece for the next block is read. With two fragment stages: over the first half, in the order of
  // use. With one: as soon as this block has used what the piece replaces.
  HGEMM_DEVICE static constexpr int due(int piece, int block) {
    if (Policy::fragment_stages == 2) {
      int const order = piece == 0 ? 0 : piece < mma_m ? piece + pieces - mma_m : piece - mma_m + 1;
      return order * products / (2 * pieces);
    }
    if (piece < mma_m) return (piece + 1) * mma_n - 1;
    int const j = (piece - mma_m) * 2;
    int const last = j + 1 < mma_n ? j + 1 : j;
    return (mma_m - 1) * mma_n + (backwards(mma_m - 1, block) ? mma_n - 1 - j : last);
  }

  // Zig-zag turns at the end of each row, and keeps the direction of a block's last row for the next block's first.
  HGEMM_DEVICE static constexpr bool backwards(int i, int block) {
    return Policy::zigzag && (i + block * (mma_m - 1)) % 2 == 1;
  }

  HGEMM_DEVICE static void multiply(Accumulators<Policy>& accumulators, Fragments const& fragments, int block, int product) {
    int const i = product / mma_n;
    int const j = backwards(i, block) ? mma_n - 1 - product % mma_n : product % mma_n;
    accumulators.multiply(i, j, fragments.a[i], fragments.b[j]);
  }
};

}  // namespace hgemm
