// What one warp does with a stage of shared memory: it reads fragments and multiplies them by mma.sync, in an order that reads
// each fragment long before its first use. How stages are filled is the mainloop's matter.
#pragma once

#include <common/policy.cuh>
#include <common/atoms.cuh>

namespace hgemm {

// ---- Accumulators -------------------------------------------------------------------------------------------------

// One warp's part of D as (mma_m, mma_n) blocks of 16 x 8. A lane holds 4 elements of a block: rows lane / 4 and lane / 4 + 8,
// columns lane % 4 * 2 and the next.
template <class Policy>
struct WarpAccumulators {
  static constexpr bool in_halves = Policy::accumulate != Accumulate::f32;
  static constexpr bool in_pairs = Policy::accumulate == Accumulate::f16;  // two halves a register
  static constexpr bool promoted = Policy::accumulate == Accumulate::f16_promoted;
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / 8;

  uint32_t halves[in_halves ? mma_m : 1][in_halves ? mma_n : 1][2];                 // (mma_m, mma_n, 2 registers)
  float floats[Policy::accumulate == Accumulate::f16 ? 1 : mma_m]
              [Policy::accumulate == Accumulate::f16 ? 1 : mma_n][4];               // (mma_m, mma_n, 4 registers)

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

  // Adds what a k-tile accumulated in halves to the floats.
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

  // Element e of a lane's 4 of block (i, j), as a float.
  HGEMM_DEVICE float value(int i, int j, int e) const {
    if constexpr (Policy::accumulate == Accumulate::f16) {
      return e % 2 == 0 ? atoms::low_half(halves[i][j][e / 2]) : atoms::high_half(halves[i][j][e / 2]);
    } else {
      return floats[i][j][e];
    }
  }
};

// ---- Fragments and products ---------------------------------------------------------------------------------------

// The form of fragments of mma.sync.m16n8. A family adds a Reader, which loads them from its layout of shared memory.
struct MmaSyncForm {
  static constexpr int columns = 8;                     // of D that one step computes
  static constexpr int a_registers = 4, b_registers = 2;

  template <class Accumulators>
  HGEMM_DEVICE static void multiply(Accumulators& accumulators, int i, int j, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
    accumulators.multiply(i, j, a, b);
  }
};

// `Stages` holds A and B of each stage. `Form` says how fragments are read and multiplied.
//
// A k-tile is k_blocks blocks of k. A block is mma_m * mma_n steps; a step multiplies a fragment of A by one of B.
template <class Policy, class Stages, class Form>
struct WarpMma {
  using In = typename Policy::In;
  using A = typename Policy::A;
  using B = typename Policy::B;
  using Shared = Stages;

  static constexpr int stages = Policy::stages;
  static constexpr int k_block = 32 / sizeof(In);  // of k, whose fragments are read at once: 16 halves
  static constexpr int k_blocks = Policy::tile_k / k_block;
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / Form::columns;
  static constexpr int b_step = 16 / Form::columns;  // fragments of B that are read at once
  static constexpr int steps = mma_m * mma_n;        // of a block
  static constexpr int mma_per_step = Form::columns / 8 * (k_block / Policy::mma_k);
  static constexpr int mma_per_k_tile = steps * mma_per_step * k_blocks;  // of one warp

  // With two fragment stages, all fragments of a block are in registers before it begins. With one, each fragment is replaced
  // after its last use, and A's rows are read fragment_rows ahead of their use.
  static constexpr bool two_fragment_stages = Policy::fragment_stages == 2;
  static constexpr int a_rows = Policy::fragment_rows;  // rows of A's fragments in registers
  static_assert(a_rows <= mma_m && (two_fragment_stages ? a_rows == mma_m : mma_m * k_blocks % a_rows == 0),
                "rows of A must rotate through the registers");

  // The step of a k-tile after which it is not read any more, if nothing is read of the next one. From then on a single stage
  // may be overwritten.
  static constexpr int last_read = (k_blocks - 1) * steps + (mma_m - a_rows) * mma_n - 1;

  struct Fragments {
    uint32_t a[a_rows][Form::a_registers];  // (a_rows), 16 x k_block of A
    uint32_t b[mma_n][Form::b_registers];   // (mma_n), k_block x columns of B
  };

  Shared& shared;
  typename Form::template Reader<A, Policy::tile_m, true> read_a_;
  typename Form::template Reader<B, Policy::tile_n, false> read_b_;
  int read_stage = 0;

  HGEMM_DEVICE explicit WarpMma(Shared& shared)
      : shared(shared),
        read_a_(warp() % Policy::warps_m * Policy::warp_m, lane()),
        read_b_(warp() / Policy::warps_m * Policy::warp_n, lane()) {}

  // The largest share of `count` items spread over `places`. Loops over one place's items end there: with that bound known
  // before it unrolls the places, the optimiser takes half the time.
  HGEMM_DEVICE static constexpr int most_of(int count, int places) { return (count + places - 1) / places; }

  HGEMM_DEVICE static int warp() { return atoms::thread_index() / 32; }
  HGEMM_DEVICE static int lane() { return atoms::thread_index() % 32; }
  HGEMM_DEVICE static constexpr int next(int stage) { return stage + 1 == stages ? 0 : stage + 1; }

  // ---- One fragment -----------------------------------------------------------------------------------------------

  HGEMM_DEVICE void read_a(Fragments& fragments, int stage, int block, int i) const {
    auto& a = fragments.a[a_row(block, i)];
    auto const* const tile = shared.a[stage];  // (tile_m, tile_k)
    if constexpr (Form::columns == 16) {
      read_a_.read(tile, i * 16, block * k_block, a);
    } else {
      read_a_.read_x4(tile, i * 16, block * k_block, a[0], a[1], a[2], a[3]);
    }
  }

  // Reads b_step fragments from j on: 16 columns of D, or the last 8 of an odd number.
  HGEMM_DEVICE void read_b(Fragments& fragments, int stage, int block, int j) const {
    auto& b0 = fragments.b[j];
    auto const* const tile = shared.b[stage];  // (tile_n, tile_k)
    if constexpr (Form::columns == 16) {
      read_b_.read(tile, j * 16, block * k_block, b0);
    } else if (j + 1 < mma_n) {
      auto& b1 = fragments.b[j + 1 < mma_n ? j + 1 : j];
      read_b_.read_x4(tile, j * 8, block * k_block, b0[0], b0[1], b1[0], b1[1]);
    } else {
      read_b_.read_x2(tile, j * 8, block * k_block, b0[0], b0[1]);
    }
  }

  HGEMM_DEVICE static constexpr int a_row(int block, int i) { return (block * mma_m + i) % a_rows; }

  // ---- Order of reads ---------------------------------------------------------------------------------------------

  // Reads what the first steps of k-tile `stage` need.
  HGEMM_DEVICE void read_first(Fragments& fragments, int stage) const {
    HGEMM_UNROLL
    for (int j = 0; j < mma_n; j += b_step) read_b(fragments, stage, 0, j);
    HGEMM_UNROLL
    for (int i = 0; i < a_rows; ++i) read_a(fragments, stage, 0, i);
  }

  // Two fragment stages: reads the next block during the first half of this one, in the order of use. `following` is the stage
  // of the next k-tile.
  HGEMM_DEVICE void read_ahead(Fragments& fragments, int block, int step, int following) const {
    constexpr int reads = mma_m + (mma_n + b_step - 1) / b_step;
    constexpr int at_once = most_of(2 * reads, steps);
    int const next_block = (block + 1) % k_blocks;
    int const stage = next_block == 0 ? following : read_stage;
    int const first = 2 * reads * step / steps, end = 2 * reads * (step + 1) / steps;
    HGEMM_UNROLL
    for (int at = 0; at < at_once; ++at) {
      int const read = first + at;
      if (read >= end) continue;
      if (read == 0) {
        read_a(fragments, stage, next_block, 0);
      } else if (read <= reads - mma_m) {
        read_b(fragments, stage, next_block, (read - 1) * b_step);
      } else if (read < reads) {
        read_a(fragments, stage, next_block, read - (reads - mma_m));
      }
    }
  }

  // One fragment stage: after a row's last step, replaces a row of A; after the last use of 16 columns, replaces their B by the
  // next block's. Nothing is read of block `end` or later ones. `following` is the stage of the next k-tile.
  HGEMM_DEVICE void read_behind(Fragments& fragments, int block, int step, int end, int following) const {
    int const i = step / mma_n;
    int const along = step % mma_n;
    int const next_block = (block + 1) % k_blocks;
    int const next_stage = next_block == 0 ? following : read_stage;
    if (i == mma_m - 1 && block + 1 < end) {
      int const j = backwards(i, block) ? mma_n - 1 - along : along;
      bool const last = backwards(i, block) ? j % b_step == 0 : j % b_step == b_step - 1 || j == mma_n - 1;
      if (last) read_b(fragments, next_stage, next_block, j / b_step * b_step);
    }
    if (along == mma_n - 1) {
      if (i + a_rows < mma_m) {
        read_a(fragments, read_stage, block, i + a_rows);
      } else if (block + 1 < end) {
        read_a(fragments, next_stage, next_block, i + a_rows - mma_m);
      }
    }
  }

  // ---- Order of products ------------------------------------------------------------------------------------------

  // Zig-zag turns at the end of each row. A block's first row runs in the direction of the last row before it.
  HGEMM_DEVICE static constexpr bool backwards(int i, int block) {
    return Policy::zigzag && (i + block * (mma_m - 1)) % 2 == 1;
  }

  HGEMM_DEVICE static void multiply(WarpAccumulators<Policy>& accumulators, Fragments const& fragments, int block, int step) {
    int const i = step / mma_n;
    int const j = backwards(i, block) ? mma_n - 1 - step % mma_n : step % mma_n;
    Form::multiply(accumulators, i, j, fragments.a[a_row(block, i)], fragments.b[j]);
  }
};

}  // namespace hgemm
