// The K loop of sm_80 and later without wgmma: a ring of shared-memory stages filled by cp.async, ldmatrix, mma.sync.
#pragma once

#include <hgemm/accumulators.cuh>
#include <hgemm/operand.cuh>
#include <hgemm/problem.cuh>

namespace hgemm {

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
  static constexpr int k_blocks = Policy::tile_k / 16;  // steps of 16 of k in a k-tile
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;

  // With two fragment stages a block's fragments are all in registers before it begins. With one, each is replaced after its
  // last use, three or four rows of A before the next, and a stage is read for longer.
  static constexpr bool ahead = Policy::fragment_stages == 2;
  static constexpr int rows_of_a = mma_m * k_blocks;  // in a k-tile
  static constexpr int a_rows = ahead                                ? mma_m
                                : mma_m > 3 && rows_of_a % 3 == 0 ? 3
                                : mma_m > 4 && rows_of_a % 4 == 0 ? 4
                                                                    : mma_m;
  static constexpr int stages_in_use = stages == 1 || ahead ? 1 : 2;  // that no copy may overwrite, after a barrier
  static constexpr bool pipelined = stages > stages_in_use;
  static constexpr int stages_ahead = pipelined ? stages - stages_in_use : 1;  // k-tiles copied before the first is read

  static constexpr int mma_per_k_tile = mma_m * mma_n * (Policy::tile_k / Policy::mma_k);  // of one warp

  struct Shared {
    alignas(128) In a[stages][LayoutA::stage_elements];
    alignas(128) In b[stages][LayoutB::stage_elements];
  };

  struct Fragments {
    uint32_t a[a_rows][4];  // (a_rows), 16 x 16 of A
    uint32_t b[mma_n][2];   // (mma_n), 16 x 8 of B
  };

  Shared& shared;
  CopyA copy_a;
  CopyB copy_b;
  FragmentReader<Policy, A, Policy::tile_m, true> read_a_;
  FragmentReader<Policy, B, Policy::tile_n, false> read_b_;
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
        read_a_(warp() % Policy::warps_m * Policy::warp_m, lane()),
        read_b_(warp() / Policy::warps_m * Policy::warp_n, lane()),
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
    if constexpr (pipelined) {
      run_pipelined(accumulators);
    } else {
      run_in_turn(accumulators);
    }
    atoms::cp_async_wait<0>();
    atoms::cta_barrier();
  }

  // Copy, wait, read and multiply take turns; a second stage is filled meanwhile, where there is one.
  HGEMM_DEVICE void run_in_turn(Accumulators<Policy>& accumulators) {
    HGEMM_NO_UNROLL
    do {
      atoms::cp_async_wait<0>();
      atoms::cta_barrier();
      if constexpr (stages > 1) copy_next();
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        Fragments fragments;
        HGEMM_UNROLL
        for (int j = 0; j < mma_n; j += 2) read_b(fragments, read_stage, block, j);
        HGEMM_UNROLL
        for (int i = 0; i < mma_m; ++i) {
          read_a(fragments, read_stage, block, i);
          HGEMM_UNROLL
          for (int step = 0; step < mma_n; ++step) multiply(accumulators, fragments, block, i * mma_n + step);
        }
      }
      accumulators.promote();
      if constexpr (stages == 1) {
        atoms::cta_barrier();
        copy_next();
      }
      read_stage = next(read_stage);
    } while (--k_tiles > 0);
  }

  // While a block of 16 of k is multiplied, fragments are read and a part of a k-tile further on is copied between the
  // products. The barrier before the last block of a k-tile says two things: the next k-tile is there, and all warps are
  // done with the stage before this one (with one fragment stage) or have this one in registers (with two).
  HGEMM_DEVICE void run_pipelined(Accumulators<Policy>& accumulators) {
    Fragments fragments[Policy::fragment_stages];
    atoms::cp_async_wait<stages_ahead - 1>();
    atoms::cta_barrier();  // the last k-tile, which copy_last() may have stored, is there
    HGEMM_UNROLL
    for (int j = 0; j < mma_n; j += 2) read_b(fragments[0], 0, 0, j);
    HGEMM_UNROLL
    for (int i = 0; i < a_rows; ++i) read_a(fragments[0], 0, 0, i);
    HGEMM_UNROLL
    for (int action = 0; action < copies(0); ++action) copy_part(0, action);
    HGEMM_NO_UNROLL
    do {
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        int const part = (block + 1) % k_blocks;  // the next block, and the part of a k-tile to copy
        if (part == 0) {
          copy_a.advance();
          copy_b.advance();
          finish_copy();
          atoms::cp_async_wait<stages_ahead - 1>();
          atoms::cta_barrier();
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        HGEMM_UNROLL
        for (int product = 0; product < products; ++product) {
          multiply(accumulators, now, block, product);
          if constexpr (ahead) {
            read_ahead(later, block, product);
          } else {
            read_behind(now, block, product);
          }
          HGEMM_UNROLL
          for (int action = product * copies(part) / products; action < (product + 1) * copies(part) / products; ++action) {
            copy_part(part, action);
          }
        }
      }
      accumulators.promote();
      if constexpr (ahead && k_blocks % 2 == 1) fragments[0] = fragments[1];
      read_stage = next(read_stage);
    } while (--k_tiles > 0);
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

  static constexpr int products = mma_m * mma_n;

  HGEMM_DEVICE void read_a(Fragments& fragments, int stage, int block, int i) const {
    uint32_t(&a)[4] = fragments.a[a_row(block, i)];
    In const* const tile = shared.a[stage];  // (tile_m, tile_k)
    read_a_.read_x4(tile, i * 16, block * 16, a[0], a[1], a[2], a[3]);
  }

  // Reads the columns of D from j * 8 on: 16 of them, or 8 at the end of an odd number.
  HGEMM_DEVICE void read_b(Fragments& fragments, int stage, int block, int j) const {
    uint32_t(&b0)[2] = fragments.b[j];
    In const* const tile = shared.b[stage];  // (tile_n, tile_k)
    if (j + 1 < mma_n) {
      uint32_t(&b1)[2] = fragments.b[j + 1 < mma_n ? j + 1 : j];
      read_b_.read_x4(tile, j * 8, block * 16, b0[0], b0[1], b1[0], b1[1]);
    } else {
      read_b_.read_x2(tile, j * 8, block * 16, b0[0], b0[1]);
    }
  }

  HGEMM_DEVICE static constexpr int a_row(int block, int i) { return (block * mma_m + i) % a_rows; }

  // Two fragment stages: reads the next block over the first half of this one, in the order of use.
  HGEMM_DEVICE void read_ahead(Fragments& fragments, int block, int product) const {
    constexpr int pieces = mma_m + (mma_n + 1) / 2;
    int const next_block = (block + 1) % k_blocks;
    int const stage = next_block == 0 ? next(read_stage) : read_stage;
    HGEMM_UNROLL
    for (int piece = 2 * pieces * product / products; piece < 2 * pieces * (product + 1) / products; ++piece) {
      if (piece == 0) {
        read_a(fragments, stage, next_block, 0);
      } else if (piece <= pieces - mma_m) {
        read_b(fragments, stage, next_block, (piece - 1) * 2);
      } else if (piece < pieces) {
        read_a(fragments, stage, next_block, piece - (pieces - mma_m));
      }
    }
  }

  // One fragment stage: after a row's last product reads a row of A in its place, after the last products of two columns
  // the next block's B in theirs.
  HGEMM_DEVICE void read_behind(Fragments& fragments, int block, int product) const {
    int const i = product / mma_n;
    int const step = product % mma_n;
    int const next_block = (block + 1) % k_blocks;
    int const next_stage = next_block == 0 ? next(read_stage) : read_stage;
    if (i == mma_m - 1) {
      int const j = backwards(i, block) ? mma_n - 1 - step : step;
      bool const pair_done = backwards(i, block) ? j % 2 == 0 : j % 2 == 1 || j == mma_n - 1;
      if (pair_done) read_b(fragments, next_stage, next_block, j / 2 * 2);
    }
    if (step == mma_n - 1) {
      if (i + a_rows < mma_m) {
        read_a(fragments, read_stage, block, i + a_rows);
      } else {
        read_a(fragments, next_stage, next_block, i + a_rows - mma_m);
      }
    }
  }

  // Zig-zag turns at the end of each row, and keeps the direction of a block's last row for the next block's first.
  HGEMM_DEVICE static constexpr bool backwards(int i, int block) {
    return Policy::zigzag && (i + block * (mma_m - 1)) % 2 == 1;
  }

  HGEMM_DEVICE static void multiply(Accumulators<Policy>& accumulators, Fragments const& fragments, int block, int product) {
    int const i = product / mma_n;
    int const j = backwards(i, block) ? mma_n - 1 - product % mma_n : product % mma_n;
    accumulators.multiply(i, j, fragments.a[a_row(block, i)], fragments.b[j]);
  }
};

}  // namespace hgemm
