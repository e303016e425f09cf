// The K loop on cp.async: a ring of shared-memory stages, ldmatrix, mma.sync.
#pragma once

#include <common/problem.cuh>
#include <mma_sync/operand.cuh>

namespace hgemm {

template <class Policy>
struct CpAsyncMainloop {
  using In = typename Policy::In;
  using Warp = typename WarpOf<Policy>::Type;
  using Shared = typename Warp::Shared;
  using Fragments = typename Warp::Fragments;
  using CopyA = OperandCopy<Policy, typename Policy::A, Policy::tile_m>;
  using CopyB = OperandCopy<Policy, typename Policy::B, Policy::tile_n>;

  // ---- Sizes ------------------------------------------------------------------------------------------------------

  static constexpr int stages = Policy::stages;
  static constexpr int k_blocks = Warp::k_blocks, steps = Warp::steps;
  static constexpr int mma_per_k_tile = Warp::mma_per_k_tile;
  static constexpr bool two_fragment_stages = Warp::two_fragment_stages;
  // In each k-tile, run_pipelined() has one barrier, before the last block of k. Between the barriers of k-tiles i and i + 1,
  // warps may read these stages, so copies must not overwrite them:
  //   with one fragment stage     the stages of k-tiles i and i + 1
  //   with two fragment stages    the stage of k-tile i + 1
  static constexpr int stages_in_use = stages == 1 || two_fragment_stages ? 1 : 2;
  static constexpr bool pipelined = stages > stages_in_use;
  static constexpr int stages_ahead = pipelined ? stages - stages_in_use : 1;  // k-tiles copied before the first is read

  // When a warp reads the fragments of the next block of k, with two fragment stages:
  //   if reads_first    all of them before the products of this block
  //   otherwise         during the first half of these products
  // With one fragment stage, reads_first selects only where copies go, see copy_behind().
  static constexpr bool reads_first = Policy::reads_first;

  // Each time a copy follows an ldmatrix, ptxas puts three extra instructions between them. To have few such places, a single
  // block of k issues all copies of a k-tile. Where this block issues them:
  //   if copies_whole                   all together, before the block's reads and products
  //   otherwise, one fragment stage     between the block's products, see copy_behind()
  //   otherwise, two fragment stages    the same, but only after the block's last read
  static constexpr bool copies_whole = Policy::copy_placement == CopyPlacement::before_last_block;
  static constexpr int copy_block = Policy::copy_placement == CopyPlacement::in_first_block ? 0 : k_blocks - 1;

  static_assert(!copies_whole || (!CopyA::through_registers && !CopyB::through_registers),
                "copies through registers must be spread over the products");
  static_assert(copy_block == k_blocks - 1 || !two_fragment_stages, "two fragment stages require copies in the last block");

  // ---- State ------------------------------------------------------------------------------------------------------

  Shared& shared;
  TileOperands<Policy, CopyA, CopyB> operands;
  CopyA copy_a;
  CopyB copy_b;
  Warp warp;
  int k_tiles;  // to multiply before the loop is left
  int write_stage = 0;

  // Prepares the tile of D at (m_first, n_first) and its k-tiles [k_tile_first, k_tile_first + k_tiles).
  HGEMM_DEVICE CpAsyncMainloop(Shared& shared, Problem const& problem, int batch, int m_first, int n_first, int k_tile_first,
                               int k_tiles)
      : shared(shared),
        operands(problem, batch, m_first, n_first, k_tile_first, k_tiles),
        copy_a(operands.copy_a()),
        copy_b(operands.copy_b()),
        warp(shared),
        k_tiles(k_tiles) {}

  // ---- Loop -------------------------------------------------------------------------------------------------------

  // Multiplies the k-tiles in order and adds the products to `accumulators`. The loop has no branch. If its copies leave out
  // elements of the last k-tile, it ends before this k-tile, copy_ends() copies them, and it begins again. All threads of the CTA
  // must call run(). Shared memory is free when it returns.
  HGEMM_DEVICE void run(WarpAccumulators<Policy>& accumulators) {
    if (Policy::splits > 1 && k_tiles == 0) return;  // more splits than k-tiles
    HGEMM_NO_UNROLL
    for (int stage = 0; stage < stages_ahead; ++stage) copy_next();
    bool ends = operands.has_ends();
    k_tiles -= ends;
    if constexpr (pipelined) {
      run_pipelined(accumulators, ends);
    } else {
      run_in_turn(accumulators, ends);
    }
    atoms::cp_async_wait<0>();
    atoms::cta_barrier();
  }

  // Processes one k-tile after another: waits for its copies, reads its fragments, multiplies them. Products of two k-tiles do
  // not overlap. With two stages, the next copy overlaps the products. With one stage, the next copy starts when the last
  // fragments of this k-tile are in registers.
  HGEMM_DEVICE void run_in_turn(WarpAccumulators<Policy>& accumulators, bool ends) {
    HGEMM_NO_UNROLL
    for (;;) {
      if (k_tiles > 0) multiply_in_turn(accumulators);
      if (!ends) return;
      atoms::cp_async_wait<0>();
      atoms::cta_barrier();
      operands.copy_ends(shared, warp.read_stage);
      ends = false;
      k_tiles = 1;
    }
  }
  HGEMM_DEVICE void multiply_in_turn(WarpAccumulators<Policy>& accumulators) {
    HGEMM_NO_UNROLL
    do {
      atoms::cp_async_wait<0>();
      atoms::cta_barrier();
      if constexpr (stages > 1) copy_next();
      Fragments fragments;
      warp.read_first(fragments, warp.read_stage);
      if constexpr (stages == 1 && Warp::last_read < 0) refill();
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        HGEMM_UNROLL
        for (int step = 0; step < steps; ++step) {
          Warp::multiply(accumulators, fragments, block, step);
          warp.read_behind(fragments, block, step, k_blocks, Warp::next(warp.read_stage));
          if (stages == 1 && block * steps + step == Warp::last_read) refill();
        }
      }
      accumulators.promote();
      warp.read_stage = Warp::next(warp.read_stage);
    } while (--k_tiles > 0);
  }

  // Overlaps products, reads and copies. While a block of k is multiplied, the fragments of the next block are read. The block
  // `copy_block` also issues the copies of a later k-tile.
  //
  // A barrier precedes the last block of a k-tile. After this barrier, the next k-tile is in shared memory, and one stage is
  // free:
  //   with one fragment stage     the stage of the previous k-tile
  //   with two fragment stages    the stage of this k-tile: the fragments of its last block are already in registers
  HGEMM_DEVICE void run_pipelined(WarpAccumulators<Policy>& accumulators, bool ends) {
    Fragments fragments[Policy::fragment_stages];  // (fragment_stages)
    atoms::cp_async_wait<stages_ahead - 1>();
    atoms::cta_barrier();
    warp.read_first(fragments[0], warp.read_stage);
    if constexpr (copy_block == k_blocks - 1) copy_whole();
    HGEMM_NO_UNROLL
    for (;;) {
      if (k_tiles > 0) multiply_pipelined(accumulators, fragments);
      if (!ends) return;
      atoms::cta_barrier();  // all warps have read the first block without the ends
      operands.copy_ends(shared, warp.read_stage);
      atoms::cta_barrier();
      warp.read_first(fragments[0], warp.read_stage);
      ends = false;
      k_tiles = 1;
    }
  }
  HGEMM_DEVICE void multiply_pipelined(WarpAccumulators<Policy>& accumulators, Fragments (&fragments)[Policy::fragment_stages]) {
    HGEMM_NO_UNROLL
    do {
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        bool const last = block == k_blocks - 1;
        if (last) {
          advance();
          atoms::cp_async_wait<stages_ahead - 1>();
          atoms::cta_barrier();
          if constexpr (copies_whole) copy_whole();
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        if constexpr (two_fragment_stages && reads_first) {
          HGEMM_UNROLL
          for (int step = 0; step < steps; ++step) warp.read_ahead(later, block, step, Warp::next(warp.read_stage));
        }
        HGEMM_UNROLL
        for (int step = 0; step < steps; ++step) {
          Warp::multiply(accumulators, now, block, step);
          if constexpr (!two_fragment_stages) {
            warp.read_behind(now, block, step, k_blocks + 1, Warp::next(warp.read_stage));
          } else if constexpr (!reads_first) {
            warp.read_ahead(later, block, step, Warp::next(warp.read_stage));
          }
          if (block == copy_block && !copies_whole) copy_behind(step);
        }
      }
      accumulators.promote();
      if constexpr (two_fragment_stages && k_blocks % 2 == 1) fragments[0] = fragments[1];
      warp.read_stage = Warp::next(warp.read_stage);
    } while (--k_tiles > 0);
  }

  // ---- Copies -----------------------------------------------------------------------------------------------------

  // Issues the copy of the next k-tile to the next free stage. After the last k-tile, it fills the stage with zeros.
  HGEMM_DEVICE void copy_next() {
    copy_whole();
    advance();
  }
  HGEMM_DEVICE void copy_whole() {
    copy_a.copy(shared.a[write_stage], 0, CopyA::row_passes);
    copy_b.copy(shared.b[write_stage], 0, CopyB::row_passes);
  }

  // For kernels with one stage: waits until all warps have read it, then issues the copy of the next k-tile to it. Without the
  // scheduling barrier, the compiler delays parts of the copy until just before the next wait.
  HGEMM_DEVICE void refill() {
    atoms::cta_barrier();
    copy_next();
    atoms::scheduling_barrier(1);
  }

  // Commits a k-tile's copies and moves on to the next k-tile and stage.
  HGEMM_DEVICE void advance() {
    copy_a.advance();
    copy_b.advance();
    atoms::cp_async_commit();
    write_stage = Warp::next(write_stage);
  }

  // The copy block divides the copies of a k-tile into actions. It issues them between its products, A's before B's.
  // The actions of an operand:
  //   if copied by cp.async          one for each pass; in a pass, all threads together copy row_step rows
  //   if copied through registers    one for the whole operand, so that several of its loads are in flight at once
  template <class Copy>
  static constexpr int actions = Copy::through_registers ? 1 : Copy::row_passes;

  // Issues the copy actions that follow `step` of the copy block. Where the block issues its actions:
  //   if reads_first                    evenly over all steps
  //   otherwise, two fragment stages    evenly over the second half of the steps, because the reads are in the first half
  //   otherwise, one fragment stage     all together after the middle step
  // In the last case, the block has reads up to its end. Copies that were spread over them would often follow an ldmatrix.
  HGEMM_DEVICE void copy_behind(int step) {
    constexpr int first = reads_first ? 0 : steps / 2;
    constexpr int copying = two_fragment_stages || reads_first ? steps - first : 1;
    constexpr int copies = actions<CopyA> + actions<CopyB>;
    int const begin = (step - first) * copies / copying, end = (step - first + 1) * copies / copying;
    HGEMM_UNROLL
    for (int at = 0; at < Warp::most_of(copies, copying); ++at) {
      int const action = begin + at;
      if (step < first || step >= first + copying || action >= end) continue;
      if (action < actions<CopyA>) {
        copy_action(copy_a, shared.a[write_stage], action);
      } else {
        copy_action(copy_b, shared.b[write_stage], action - actions<CopyA>);
      }
    }
  }

  template <class Copy>
  HGEMM_DEVICE static void copy_action(Copy& copy, In* stage, int action) {
    if constexpr (Copy::through_registers) {
      copy.copy(stage, 0, Copy::row_passes);
    } else {
      copy.copy(stage, action, action + 1);
    }
  }
};

}  // namespace hgemm
