// The K loop without asynchronous copies: the next k-tile is loaded to registers when a k-tile begins, and stored to shared
// memory among its last products; or, with `prefetch: off`, loaded and stored after them. For sm_75, and for what
// `copy: vector`, `scalar` and `shifted` ask of later ones.
#pragma once

#include <hgemm/problem.cuh>
#include <hgemm/shifted_copy.cuh>
#include <hgemm/staged_copy.cuh>
#include <hgemm/warp_products.cuh>

namespace hgemm {

// Whether a k-tile is loaded while the one before it is multiplied, unless a policy says that it is not.
template <class Policy, class = void>
constexpr bool loads_ahead = true;
template <class Policy>
constexpr bool loads_ahead<Policy, decltype(void(Policy::prefetch))> = Policy::prefetch;

// What copies an operand.
template <class Policy, class Operand, int EXTENT, bool SHIFTED = (row_align_of<Operand> < Operand::align)>
struct CopierOf { using Type = StagedCopy<Policy, Operand, EXTENT>; };
template <class Policy, class Operand, int EXTENT>
struct CopierOf<Policy, Operand, EXTENT, true> { using Type = ShiftedCopy<Policy, Operand, EXTENT>; };

template <class Policy>
struct StagedMainloop {
  using In = typename Policy::In;
  using Warp = WarpProducts<Policy>;
  using Shared = typename Warp::Shared;
  using Fragments = typename Warp::Fragments;
  using CopyA = typename CopierOf<Policy, typename Policy::A, Policy::tile_m>::Type;
  using CopyB = typename CopierOf<Policy, typename Policy::B, Policy::tile_n>::Type;

  static constexpr int stages = Policy::stages;
  static constexpr int k_blocks = Warp::k_blocks, products = Warp::products;
  static constexpr int mma_per_k_tile = Warp::mma_per_k_tile;
  static constexpr bool ahead = Warp::ahead;

  // From one barrier to the next, which is the time between loads and stores: k_blocks * products. With fragments read ahead
  // the barrier is before a k-tile's last block, which reads the next k-tile; without, before its first.
  static constexpr int first_block = ahead ? k_blocks - 1 : 0;
  static constexpr int last_turn = k_blocks * products - 1;

  // A store follows every `store_step` products of a block of k, the last one the last product; all follow it where that is 0.
  static constexpr int pieces = CopyA::pieces + CopyB::pieces;
  static constexpr int store_step = (Policy::store_spacing + Warp::mma_per_product - 1) / Warp::mma_per_product;
  static constexpr int first_store = last_turn - (pieces - 1) * store_step;

  // Left to itself, the compiler loads, or waits for what it has loaded and shifts it, before the last products. Among reads of
  // the next block it may: 6 % faster.
  static constexpr bool behind_products = !loads_ahead<Policy> || ((CopyA::shifts || CopyB::shifts) && !ahead);

  static_assert(stages == 1 || stages == 2, "one k-tile is multiplied while the next one is in registers");
  static_assert(stages == 2 || !ahead, "a k-tile read ahead of its time needs a stage of its own");
  static_assert(loads_ahead<Policy> || (stages == 1 && store_step == 0), "what is not loaded ahead is stored at once");
  static_assert(first_store >= (stages == 1 && Warp::last_read > 0 ? Warp::last_read : 0), "too few products between stores");

  Shared& shared;
  CopyA copy_a;
  CopyB copy_b;
  Warp warp;
  int k_left;  // of the matrix, from the first k-tile on
  int k_tiles, k_tiles_to_load;
  int write_stage = 0;

  // For k-tiles [k_tile_first, k_tile_first + k_tiles) of the tile of D at (m_first, n_first).
  HGEMM_DEVICE StagedMainloop(Shared& shared, Problem const& problem, int batch, int m_first, int n_first, int k_tile_first,
                              int k_tiles)
      : shared(shared),
        copy_a(static_cast<In const*>(problem.a) + batch * problem.batch_stride_a, problem.lda, m_first, problem.m,
               k_tile_first * Policy::tile_k, problem.k),
        copy_b(static_cast<In const*>(problem.b) + batch * problem.batch_stride_b, problem.ldb, n_first, problem.n,
               k_tile_first * Policy::tile_k, problem.k),
        warp(shared),
        k_left(problem.k - k_tile_first * Policy::tile_k),
        k_tiles(k_tiles),
        k_tiles_to_load(k_tiles - 1) {}

  // Adds the products of the k-tiles to `accumulators`, of the last k-tile first, since it may be ragged. All threads of the
  // CTA call it; shared memory is free after it.
  HGEMM_DEVICE void run(Accumulators<Policy>& accumulators) {
    if (Policy::splits > 1 && k_tiles == 0) return;  // more splits than k-tiles
    copy_a.copy_last(shared.a[0], k_tiles - 1, k_left - (k_tiles - 1) * Policy::tile_k);
    copy_b.copy_last(shared.b[0], k_tiles - 1, k_left - (k_tiles - 1) * Policy::tile_k);
    Fragments fragments[Policy::fragment_stages];
    if constexpr (ahead) {
      begin();
      warp.read_first(fragments[0]);
      HGEMM_UNROLL
      for (int turn = 0; turn < products; ++turn) store_after(turn);
    }
    HGEMM_NO_UNROLL
    do {
      HGEMM_UNROLL
      for (int block = 0; block < k_blocks; ++block) {
        if (block == first_block) {
          begin();
          if constexpr (!ahead) warp.read_first(fragments[0]);
        }
        Fragments& now = fragments[block % Policy::fragment_stages];
        Fragments& later = fragments[(block + 1) % Policy::fragment_stages];
        HGEMM_UNROLL
        for (int product = 0; product < products; ++product) {
          Warp::multiply(accumulators, now, block, product);
          if constexpr (ahead) {
            warp.read_ahead(later, block, product);
          } else {
            warp.read_behind(now, block, product, k_blocks);
          }
          store_after((block - first_block + k_blocks) % k_blocks * products + product);
        }
      }
      accumulators.promote();
      if constexpr (ahead && k_blocks % 2 == 1) fragments[0] = fragments[1];
      warp.read_stage = Warp::next(warp.read_stage);
    } while (--k_tiles > 0);
    atoms::cta_barrier();
  }

  // The k-tile that was stored is there, and all warps are done with the one before it. The loads of the next one come first:
  // over a barrier the compiler does not delay them to where they are waited for.
  HGEMM_DEVICE void begin() {
    copy_a.finish(shared.a[write_stage]);
    copy_b.finish(shared.b[write_stage]);
    if constexpr (loads_ahead<Policy>) load_next();
    atoms::cta_barrier();
    write_stage = Warp::next(write_stage);
  }

  HGEMM_DEVICE void load_next() {
    if (k_tiles_to_load-- <= 0) {
      copy_a.stop();
      copy_b.stop();
    }
    copy_a.load();
    copy_b.load();
  }

  // Stores the piece whose turn comes after a product, or all. The compiler would put stores side by side.
  HGEMM_DEVICE void store_after(int turn) {
    HGEMM_UNROLL
    for (int piece = 0; piece < pieces; ++piece) {
      if (turn != first_store + piece * store_step) continue;
      if (behind_products && piece == 0) atoms::end_schedule(1);
      if (stages == 1 && piece == 0) atoms::cta_barrier();  // all warps have read the k-tile
      if (!loads_ahead<Policy> && piece == 0) load_next();
      if constexpr (store_step > 0) atoms::end_schedule(1 + 2 * piece);
      if (piece < CopyA::pieces) {
        copy_a.store(shared.a[write_stage], piece);
      } else {
        copy_b.store(shared.b[write_stage], piece - CopyA::pieces);
      }
      if constexpr (store_step > 0) atoms::end_schedule(2 + 2 * piece);
    }
  }
};

}  // namespace hgemm
