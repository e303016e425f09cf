// A kernel written by hand, with every field of its Policy explained. The generator emits the same kernel without comments.
//
//   D (m, n) = alpha * A (m, k) B (k, n) + beta * C (m, n)
//
// f16 in and out, f32 accumulation, layout tn: A is (m, k) with k contiguous, B is (k, n) with k contiguous, C and D are
// (m, n) with n contiguous. For sm_80 and later:
//
//   nvcc -std=c++17 -arch=sm_80 -cubin -I templates -I <cutlass>/include templates/examples/gemm_128x128x32.cu
//
// Launch it on ceil(m / 128) * ceil(n / 128) * batch CTAs of 128 threads with 49,152 bytes of dynamic shared memory.

#include <mma_sync/kernel.cuh>

namespace {

struct Policy {
  // ---- Types ------------------------------------------------------------------------------------------------------

  using In = hgemm::f16;                                           // of A and B: f16, bf16 or tf32
  using Out = hgemm::f16;                                          // of C, D and bias: f16, bf16 or f32
  static constexpr auto accumulate = hgemm::Accumulate::f32;       // type that mma.sync accumulates in

  // ---- Tiles ------------------------------------------------------------------------------------------------------

  static constexpr int tile_m = 128, tile_n = 128, tile_k = 32;    // of a CTA; k is a multiple of 16
  static constexpr int warp_m = 64, warp_n = 64;                   // of a warp; multiples of 16 and 8
  static constexpr int warps_m = 2, warps_n = 2;                   // tile_m / warp_m, tile_n / warp_n; warps run along m first
  static constexpr int threads = 128;                              // 32 * warps_m * warps_n
  static constexpr int mma_k = 16;                                 // depth of mma.sync.m16n8: 16, or 8 twice

  // ---- Pipeline ---------------------------------------------------------------------------------------------------

  static constexpr int stages = 3;                                 // k-tiles of A and B in shared memory, 1 to 16
  static constexpr int fragment_stages = 2;                        // 2: the next 16 of k are read while these are multiplied
  static constexpr int fragment_rows = 4;                          // rows of A's fragments in registers: all of warp_m / 16
  static constexpr bool zigzag = true;                             // every other row of atoms runs backwards and reuses B
  static constexpr bool wmma = false;                              // true: fragments of 16 x 16 by WMMA
  static constexpr bool static_smem = false;                       // true: shared memory is static, at most 48 KiB

  // ---- Copies -----------------------------------------------------------------------------------------------------

  // Copies through registers (ldg_sts, ldg_sts_scalar, ldg_sts_unaligned) have other fields instead: store_spacing, prefetch,
  // stores_behind_mma; in A and B row_align and copies_in_flight.
  static constexpr auto copy = hgemm::Copy::cp_async;              // asynchronous, without registers
  static constexpr auto copy_placement = hgemm::CopyPlacement::in_last_block;  // the part of a k-tile that issues copies
  static constexpr bool reads_first = false;                       // true: the next block's fragments are read before a block's products

  // ---- Operands in shared memory ----------------------------------------------------------------------------------

  // A stage is rows of `pitch` elements: (tile_m, tile_k) if k is contiguous, else (tile_k, tile_m). The swizzle XORs
  // `swizzle_bits` bits of an element's offset, from bit `swizzle_base` on, with those `swizzle_shift` above them:
  //
  //   offset    ... 8 7 6 | 5 | 4 3 | 2 1 0      8 elements are the 16 bytes of one ldmatrix row; they stay together
  //                   7 6 ------> 4 3            rows of 32 elements: 8 rows use 8 different groups of 4 banks
  struct A {
    static constexpr bool k_major = true;                          // layout t*: k is contiguous
    static constexpr int align = 8;                                // elements that a copy moves; a and lda are multiples of it
    static constexpr int pitch = 32;                               // tile_k, plus padding if there is any
    static constexpr int pair_pad = 0;                             // elements of padding after every second row
    static constexpr int swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;  // Swizzle<2, 3, 3>; 0 bits: none
  };
  struct B {
    static constexpr bool k_major = true;                          // layout *n: k is contiguous
    static constexpr int align = 8, pitch = 32, pair_pad = 0;      // as in A
    static constexpr int swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;
  };

  // ---- Order of the work ------------------------------------------------------------------------------------------

  static constexpr auto schedule = hgemm::Schedule::one_tile;      // one tile per CTA; or persistent, split_k, stream_k
  static constexpr unsigned splits = 1;                            // CTAs that share a tile along k; above 1 for split_k only
  static constexpr auto raster = hgemm::Raster::group;             // CTAs that run together share rows of A and columns of B
  static constexpr unsigned raster_tiles = 8;                      // rows of tiles of a group, columns of tiles of a panel

  // ---- Epilogue ---------------------------------------------------------------------------------------------------

  using Activation = hgemm::activation::none;                      // one of common/activation.cuh; applied last
  static constexpr bool beta = true;                               // whether C is read
  static constexpr auto bias = hgemm::Bias::none;                  // or row (n,), or column (m,)
  static constexpr bool store_through_shared = true;               // 16-byte vectors of rows instead of a lane's pairs
  static constexpr int align_d = 8;                                // elements that a store moves; c, d, ldc, ldd are multiples
  static constexpr int epilogue_rows = 16;                         // rows of a warp tile in shared memory at once: 16 or 8
  // Rows in shared memory are floats: first the even words of 4, then the odd ones from word `epilogue_odd_words` on, so that
  // 8 lanes use 8 groups of banks. The pitch is at least 2 * 9 words of 4, and 8 or 24 modulo the 32 banks.
  static constexpr int epilogue_odd_words = 9;                     // warp_n / 8, made odd; unused if D is f32
  static constexpr int epilogue_pitch = 72;                        // floats
};

// ---- What the launcher relies on ----------------------------------------------------------------------------------

static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 3 * (128 + 128) * 32 * 2);  // stages * (A + B) * 2 bytes
static_assert(sizeof(hgemm::WarpEpilogue<Policy>::Shared) == 4 * 16 * 72 * 4);       // warps * 16 rows of floats
static_assert(sizeof(hgemm::SharedStorage<Policy>) == 49152);                        // the larger of the two
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == (64 / 16) * (64 / 8) * (32 / 16));

}  // namespace

// 128 threads and at least two CTAs per SM, which leaves each thread 255 registers.
HGEMM_KERNEL(128, 2) gemm_128x128x32(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm<Policy>(problem);
}
