// What one warp does with a stage: reads fragments by ldmatrix and multiplies them by mma.sync, or both by WMMA, in an order
// that reads a fragment long before its first product. How stages are filled is the mainloops' matter.
#pragma once

#include <hgemm/accumulators.cuh>
#include <hgemm/wmma_reader.cuh>

namespace hgemm {

// Whether fragments are WMMA's, which a policy says that has them.
template <class Policy, class = void>
constexpr bool by_wmma = false;
template <class Policy>
constexpr bool by_wmma<Policy, decltype(void(Policy::wmma))> = Policy::wmma;

// What reads fragments of A (OF_A) or of B and how they come: an instruction multiplies 16 x `columns`, and `b_registers` hold
// its columns of B.
template <class Policy, bool WMMA = by_wmma<Policy>>
struct WarpFragments {
  template <class Operand, int EXTENT, bool OF_A>
  using Reader = FragmentReader<Policy, Operand, EXTENT, OF_A>;
  static constexpr int columns = 8, a_registers = 4, b_registers = 2, wide_columns = 256;
};
template <class Policy>
struct WarpFragments<Policy, true> {
  template <class Operand, int EXTENT, bool OF_A>
  using Reader = WmmaReader<Policy, Operand, EXTENT, OF_A>;
  static constexpr int columns = 16, a_registers = atoms::wmma_registers<typename Policy::In>, b_registers = a_registers;
  static constexpr int wide_columns = 256;
};

// Stages as threads copy them.
template <class Policy>
struct CopiedStages {
  using In = typename Policy::In;

  alignas(128) In a[Policy::stages][OperandLayout<Policy, typename Policy::A, Policy::tile_m>::stage_elements];
  alignas(128) In b[Policy::stages][OperandLayout<Policy, typename Policy::B, Policy::tile_n>::stage_elements];
};

// Stages are CopiedStages, or what else has A and B of each; Form says how fragments of them are read.
template <class Policy, class Stages = CopiedStages<Policy>, class Fragmentation = WarpFragments<Policy>>
struct WarpProducts {
  using In = typename Policy::In;
  using A = typename Policy::A;
  using B = typename Policy::B;
  using Form = Fragmentation;
  using Shared = Stages;

  static constexpr int stages = Policy::stages;
  static constexpr int k_block = 32 / sizeof(In);  // of k, whose fragments are read at once: 16 halves
  static constexpr int k_blocks = Policy::tile_k / k_block;
  static constexpr int mma_m = Policy::warp_m / 16;
  static constexpr int mma_n = Policy::warp_n / Form::columns;
  static constexpr int b_step = 16 / Form::columns;  // fragments of B that are read at once
  static constexpr int products = mma_m * mma_n;     // of a block
  static constexpr int mma_per_product = Form::columns / 8 * (k_block / Policy::mma_k);

  // With two fragment stages a block's fragments are all in registers before it begins. With one, each is replaced after its
  // last use, three or four rows of A before the next, and a stage is read for longer.
  static constexpr bool ahead = Policy::fragment_stages == 2;
  static constexpr int rows_of_a = mma_m * k_blocks;  // in a k-tile
  static constexpr int a_rows = ahead                                ? mma_m
                                : Policy::warp_n > Form::wide_columns && rows_of_a % 2 == 0 ? 2
                                : mma_m > 3 && rows_of_a % 3 == 0 ? 3
                                : mma_m > 4 && rows_of_a % 4 == 0 ? 4
                                                                    : mma_m;

  // The product after which a k-tile is not read any more, where nothing is read of the next one: from then on a single stage
  // may be overwritten.
  static constexpr int last_read = (k_blocks - 1) * products + (mma_m - a_rows) * mma_n - 1;

  static constexpr int mma_per_k_tile = products * mma_per_product * k_blocks;  // of one warp

  struct Fragments {
    uint32_t a[a_rows][Form::a_registers];  // (a_rows), 16 x k_block of A
    uint32_t b[mma_n][Form::b_registers];   // (mma_n), k_block x columns of B
  };

  Shared& shared;
  typename Form::template Reader<A, Policy::tile_m, true> read_a_;
  typename Form::template Reader<B, Policy::tile_n, false> read_b_;
  int read_stage = 0;

  HGEMM_DEVICE explicit WarpProducts(Shared& shared)
      : shared(shared),
        read_a_(warp() % Policy::warps_m * Policy::warp_m, lane()),
        read_b_(warp() / Policy::warps_m * Policy::warp_n, lane()) {}

  // How many of `count` things that are spread over `places` fall to one at most. Loops over those of a place end there, which
  // the optimiser knows before it unrolls the places: else it unrolls such a loop by guess, and takes twice as long for all.
  HGEMM_DEVICE static constexpr int most_of(int count, int places) { return (count + places - 1) / places; }

  HGEMM_DEVICE static int warp() { return atoms::thread_index() / 32; }
  HGEMM_DEVICE static int lane() { return atoms::thread_index() % 32; }
  HGEMM_DEVICE static constexpr int next(int stage) { return stage + 1 == stages ? 0 : stage + 1; }

  // ---- Fragments --------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void read_a(Fragments& fragments, int stage, int block, int i) const {
    auto& a = fragments.a[a_row(block, i)];
    auto const* const tile = shared.a[stage];  // (tile_m, tile_k)
    if constexpr (by_wmma<Policy>) {
      read_a_.read(tile, i * 16, block * k_block, a);
    } else {
      read_a_.read_x4(tile, i * 16, block * k_block, a[0], a[1], a[2], a[3]);
    }
  }

  // Reads b_step fragments from j on, 16 columns of D, or the 8 that are left at the end of an odd number.
  HGEMM_DEVICE void read_b(Fragments& fragments, int stage, int block, int j) const {
    auto& b0 = fragments.b[j];
    auto const* const tile = shared.b[stage];  // (tile_n, tile_k)
    if constexpr (by_wmma<Policy>) {
      read_b_.read(tile, j * 16, block * k_block, b0);
    } else if (j + 1 < mma_n) {
      auto& b1 = fragments.b[j + 1 < mma_n ? j + 1 : j];
      read_b_.read_x4(tile, j * 8, block * k_block, b0[0], b0[1], b1[0], b1[1]);
    } else {
      read_b_.read_x2(tile, j * 8, block * k_block, b0[0], b0[1]);
    }
  }

  // Reads what a k-tile's first products need.
  HGEMM_DEVICE void read_first(Fragments& fragments) const {
    HGEMM_UNROLL
    for (int j = 0; j < mma_n; j += b_step) read_b(fragments, read_stage, 0, j);
    HGEMM_UNROLL
    for (int i = 0; i < a_rows; ++i) read_a(fragments, read_stage, 0, i);
  }

  HGEMM_DEVICE static constexpr int a_row(int block, int i) { return (block * mma_m + i) % a_rows; }

  // Two fragment stages: reads the next block over the first half of this one, in the order of use.
  HGEMM_DEVICE void read_ahead(Fragments& fragments, int block, int product) const {
    read_ahead(fragments, block, product, next(read_stage));
  }
  // The same, of the k-tile that follows in another stage.
  HGEMM_DEVICE void read_ahead(Fragments& fragments, int block, int product, int following) const {
    constexpr int pieces = mma_m + (mma_n + b_step - 1) / b_step;
    constexpr int at_once = most_of(2 * pieces, products);
    int const next_block = (block + 1) % k_blocks;
    int const stage = next_block == 0 ? following : read_stage;
    int const first = 2 * pieces * product / products, end = 2 * pieces * (product + 1) / products;
    HGEMM_UNROLL
    for (int at = 0; at < at_once; ++at) {
      int const piece = first + at;
      if (piece >= end) continue;
      if (piece == 0) {
        read_a(fragments, stage, next_block, 0);
      } else if (piece <= pieces - mma_m) {
        read_b(fragments, stage, next_block, (piece - 1) * b_step);
      } else if (piece < pieces) {
        read_a(fragments, stage, next_block, piece - (pieces - mma_m));
      }
    }
  }

  // One fragment stage: after a row's last product reads a row of A in its place, after the last products of 16 columns
  // the next block's B in theirs. Nothing is read of block `end`, nor after it.
  HGEMM_DEVICE void read_behind(Fragments& fragments, int block, int product, int end = k_blocks + 1) const {
    read_behind(fragments, block, product, end, next(read_stage));
  }
  HGEMM_DEVICE void read_behind(Fragments& fragments, int block, int product, int end, int following) const {
    int const i = product / mma_n;
    int const step = product % mma_n;
    int const next_block = (block + 1) % k_blocks;
    int const next_stage = next_block == 0 ? following : read_stage;
    if (i == mma_m - 1 && block + 1 < end) {
      int const j = backwards(i, block) ? mma_n - 1 - step : step;
      bool const last = backwards(i, block) ? j % b_step == 0 : j % b_step == b_step - 1 || j == mma_n - 1;
      if (last) read_b(fragments, next_stage, next_block, j / b_step * b_step);
    }
    if (step == mma_n - 1) {
      if (i + a_rows < mma_m) {
        read_a(fragments, read_stage, block, i + a_rows);
      } else if (block + 1 < end) {
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
