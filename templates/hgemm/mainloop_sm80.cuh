// The K loop of sm_80 and later without wgmma: a ring of shared-memory stages filled by cp.async, ldmatrix, mma.sync.
#pragma once

#include <hgemm/problem.cuh>
#include <hgemm/warp_products.cuh>

namespace hgemm {

// ---- Mainloop -----------------------------------------------------------------------------------------------------

template <class Policy>
struct Mainloop {
  using In = typename Policy::In;
  using Warp = WarpProducts<Policy>;
  using Shared = typename Warp::Shared;
  using Fragments = typename Warp::Fragments;
  using CopyA = OperandCopy<Policy, typename Policy::A, Policy::tile_m>;
  using CopyB = OperandCopy<Policy, typename Policy::B, Policy::tile_n>;

  static constexpr int stages = Policy::stages;
  static constexpr int k_blocks = Warp::k_blocks, products = Warp::products;
  static constexpr int mma_per_k_tile = Warp::mma_per_k_tile;
  static constexpr bool ahead = Warp::ahead;
  static constexpr int stages_in_use = stages == 1 || ahead ? 1 : 2;  // that no copy may overwrite, after a barrier
  static constexpr bool pipelined = stages > stages_in_use;
  static constexpr int stages_ahead = pipelined ? stages - stages_in_use : 1;  // k-tiles copied before the first is read

  // ptxas puts three instructions more between an ldmatrix and a copy behind it. So a k-tile is copied in one block, and there
  // behind the reads. Those come first in small blocks; of many products they hide behind the first half.
  static constexpr bool reads_first = products < 32 || k_blocks > 2;
  // A k-tile that is waited for before another one is copied has the less time the later it is copied: all of it is, before the
  // products.
  static constexpr bool at_once = stages_ahead == 1 && !CopyA::through_registers && !CopyB::through_registers;
  // With one fragment stage and many products a k-tile, the copies go into the block that begins it: 4 to 9 % faster than in
  // the block before.
  static constexpr bool copies_first = !ahead && mma_per_k_tile >= 128 && k_blocks > 1 && !at_once;

  Shared& shared;
  CopyA copy_a;
  CopyB copy_b;
  Warp warp;
  int k_left;  // of the matrix, from the first k-tile on
  int k_tiles, k_tiles_to_copy;
  int write_stage = 0;

  // For k-tiles [k_tile_first, k_tile_first + k_tiles) of the tile of D at (m_first, n_first).
  HGEMM_DEVICE Mainloop(Shared& shared, Problem const& problem, int batch, int m_first, int n_first, int k_tile_first,
                        int k_tiles)
      : shared(shared),
        copy_a(static_cast<In const*>(problem.a) + batch * problem.batch_stride_a, problem.lda, m_first, problem.m,
               k_tile_first * Policy::tile_k),
        copy_b(static_cast<In const*>(problem.b) + batch * problem.batch_stride_b, problem.ldb, n_first, problem.n,
               k_tile_first * Policy::tile_k),
        warp(shared),
        k_left(problem.k - k_tile_first * Policy::tile_k),
        k_tiles(k_tiles),
        k_tiles_to_copy(k_tiles) {}

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

  // Copy, wait, read and multiply take turns; a second stage is filled meanwhile, where there is one, and a single one while
  // the products go on whose fragments are in registers.
  HGEMM_DEVICE void run_in_turn(Accumulators<Policy>& accumulators) {
    HGEMM_NO_UNROLL
    do {
      atoms::cp_async_wait<0>();
      atoms::cta_barrier();
      if constexpr (stages > 1) copy_next();
      Fragments fragments;
      warp.read_first(fragments);
      if constexpr (stages == 1 && Warp::last_read < 0) refill();
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        HGEMM_UNROLL
        for (int product = 0; product < products; ++product) {
          Warp::multiply(accumulators, fragments, block, product);
          warp.read_behind(fragments, block, product, k_blocks);
          if (stages == 1 && block * products + product == Warp::last_read) refill();
        }
      }
      accumulators.promote();
      warp.read_stage = Warp::next(warp.read_stage);
    } while (--k_tiles > 0);
  }

  // While a block of k is multiplied, the next block's fragments are read, and during the last one, or the first one after it,
  // another k-tile is copied. The barrier before the last block says two things: the next k-tile is there, and all warps are
  // done with the stage before this one (with one fragment stage) or have this one in registers (with two).
  HGEMM_DEVICE void run_pipelined(Accumulators<Policy>& accumulators) {
    Fragments fragments[Policy::fragment_stages];
    atoms::cp_async_wait<stages_ahead - 1>();
    atoms::cta_barrier();  // the last k-tile, which copy_last() may have stored, is there
    warp.read_first(fragments[0]);
    if constexpr (!copies_first) copy_whole();
    HGEMM_NO_UNROLL
    do {
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        bool const last = block == k_blocks - 1;
        if (last) {
          advance();
          atoms::cp_async_wait<stages_ahead - 1>();
          atoms::cta_barrier();
          if constexpr (at_once) copy_whole();
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        if constexpr (ahead && reads_first) {
          HGEMM_UNROLL
          for (int product = 0; product < products; ++product) warp.read_ahead(later, block, product);
        }
        HGEMM_UNROLL
        for (int product = 0; product < products; ++product) {
          Warp::multiply(accumulators, now, block, product);
          if constexpr (!ahead) {
            warp.read_behind(now, block, product);
          } else if constexpr (!reads_first) {
            warp.read_ahead(later, block, product);
          }
          if (block == (copies_first ? 0 : k_blocks - 1) && !at_once) copy_behind(product);
        }
      }
      accumulators.promote();
      if constexpr (ahead && k_blocks % 2 == 1) fragments[0] = fragments[1];
      warp.read_stage = Warp::next(warp.read_stage);
    } while (--k_tiles > 0);
  }

  // ---- Copies -----------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void copy_last() {
    int const ahead = k_tiles - 1;
    copy_a.copy_last(shared.a[write_stage], ahead, k_left - ahead * Policy::tile_k);
    copy_b.copy_last(shared.b[write_stage], ahead, k_left - ahead * Policy::tile_k);
    finish_copy();
  }

  // Starts the copy of the next k-tile into the next free stage; zeros go there once all are copied.
  HGEMM_DEVICE void copy_next() {
    copy_whole();
    advance();
  }
  HGEMM_DEVICE void copy_whole() {
    copy_a.copy(shared.a[write_stage], 0, CopyA::row_passes);
    copy_b.copy(shared.b[write_stage], 0, CopyB::row_passes);
  }

  // Starts the copy of the next k-tile over this one, once all warps have read it. The compiler would put off parts of it until
  // just before they are waited for.
  HGEMM_DEVICE void refill() {
    atoms::cta_barrier();
    copy_next();
    atoms::end_schedule(1);
  }

  // All of a k-tile's copies are started: on to the next one and to the next stage.
  HGEMM_DEVICE void advance() {
    copy_a.advance();
    copy_b.advance();
    finish_copy();
  }
  HGEMM_DEVICE void finish_copy() {
    atoms::cp_async_commit();
    write_stage = Warp::next(write_stage);
    if (--k_tiles_to_copy <= 0) {
      copy_a.stop();
      copy_b.stop();
    }
  }

  // Among products a k-tile is copied in actions: passes of A, then passes of B. Passes through registers stay together, so
  // that their loads overlap.
  template <class Copy>
  static constexpr int actions = Copy::through_registers ? 1 : Copy::row_passes;

  // Copies what follows a product of the block that copies: evenly over it, or over its second half, or at one place among
  // reads that go on to its end.
  HGEMM_DEVICE void copy_behind(int product) {
    constexpr int first = reads_first ? 0 : products / 2, copying = ahead || reads_first ? products - first : 1;
    constexpr int copies = actions<CopyA> + actions<CopyB>;
    int const begin = (product - first) * copies / copying, end = (product - first + 1) * copies / copying;
    HGEMM_UNROLL
    for (int at = 0; at < Warp::most_of(copies, copying); ++at) {
      int const action = begin + at;
      if (product < first || product >= first + copying || action >= end) continue;
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
