// A kernel written by hand, with every field of a Policy explained. The generator writes the same without the words.
//
//   D (m, n) = alpha * A (m, k) B (k, n) + beta * C (m, n)
//
// f16 in and out, f32 accumulation, layout tn: A is (m, k) with k contiguous, B is (k, n) with k contiguous, C and D are
// (m, n) with n contiguous. For sm_80 and later:
//
//   nvcc -std=c++17 -arch=sm_80 -cubin -I templates -I <cutlass>/include templates/examples/gemm_128x128x32.cu
//
// Launch it on ceil(m / 128) * ceil(n / 128) * batch CTAs of 128 threads with 49,152 bytes of dynamic shared memory.

#include <hgemm/gemm_sm80.cuh>

namespace {

struct Policy {
  // ---- Types ------------------------------------------------------------------------------------------------------

  using In = hgemm::f16;                                           // of A and B: f16 or bf16
  using Out = hgemm::f16;                                          // of C, D and bias: f16, bf16 or f32
  static constexpr auto accumulate = hgemm::Accumulate::f32;       // what mma.sync adds up in; bf16 takes f32 only

  // ---- Tiles ------------------------------------------------------------------------------------------------------

  static constexpr int tile_m = 128, tile_n = 128, tile_k = 32;    // of a CTA; k in steps of 16
  static constexpr int warp_m = 64, warp_n = 64;                   // of a warp; in steps of 16 and 8
  static constexpr int warps_m = 2, warps_n = 2;                   // tile_m / warp_m, tile_n / warp_n; warps run along m first
  static constexpr int threads = 128;                              // 32 * warps_m * warps_n
  static constexpr int mma_k = 16;                                 // depth of mma.sync.m16n8: 16, or 8 twice
  // static constexpr bool wmma = true: fragments of 16 x 16 by WMMA, of operands without a swizzle

  // ---- Pipeline ---------------------------------------------------------------------------------------------------

  static constexpr int stages = 3;                                 // k-tiles of A and B in shared memory, 1 to 16
  static constexpr int fragment_stages = 2;                        // 2: read the next 16 of k while these are multiplied
  static constexpr bool zigzag = true;                             // every other row of atoms from right to left: B is reused
  // static constexpr int store_spacing = 5: of copies by way of registers, the tensor instructions between two stores
  // static constexpr bool prefetch = false: of the same, nothing is loaded ahead, of one stage

  // ---- Operands in shared memory ----------------------------------------------------------------------------------

  // A stage is rows of `pitch` elements: (tile_m, tile_k) where k is contiguous, (tile_k, tile_m) where it is not. The
  // swizzle XORs `swizzle_bits` bits of an element's offset, from bit `swizzle_base` on, with those `swizzle_shift` above:
  //
  //   offset    ... 8 7 6 | 5 | 4 3 | 2 1 0      8 elements are the 16 bytes of one ldmatrix row: they stay together
  //                   7 6 ------> 4 3            rows of 32 elements, 8 of them in 8 different groups of 4 banks
  //
  // static constexpr int pair_pad = 8 in an operand: as many elements after every second row, then without a swizzle
  struct A {
    static constexpr bool k_major = true;                          // layout t*: k is contiguous
    static constexpr int align = 8;                                // elements a copy moves; a and lda are multiples of it
    static constexpr int pitch = 32;                               // tile_k, and the padding where there is some
    static constexpr int swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;  // Swizzle<2, 3, 3>; 0 bits: none
  };
  struct B {
    static constexpr bool k_major = true;                          // layout *n: k is contiguous
    static constexpr int align = 8;
    static constexpr int pitch = 32;
    static constexpr int swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;
  };

  // ---- Order of the work ------------------------------------------------------------------------------------------

  static constexpr auto schedule = hgemm::Schedule::one_tile;      // a tile a CTA; or persistent, split_k, stream_k
  static constexpr unsigned splits = 1;                            // CTAs that share a tile along k; above 1 with split_k only
  static constexpr auto raster = hgemm::Raster::group;             // neighbours in time share rows of A and columns of B
  static constexpr unsigned raster_tiles = 8;                      // rows of tiles of a group, columns of tiles of a panel

  // ---- Epilogue ---------------------------------------------------------------------------------------------------

  static constexpr bool beta = true;                               // whether C is read at all
  static constexpr auto bias = hgemm::Bias::none;                  // or a row (n,), or a column (m,)
  static constexpr auto activation = hgemm::Activation::none;      // or relu, gelu, silu; after everything else
  static constexpr bool store_through_shared = true;               // whole 16-byte pieces of rows instead of a lane's pairs
  static constexpr int align_d = 8;                                // elements a store moves; c, d, ldc and ldd are multiples
  // Staged rows, as floats: the words of 4 at even places, then those at odd ones from word `epilogue_odd_words` on, so that
  // 8 lanes meet 8 groups of banks. The pitch is past 2 * 9 words of 4, and 8 or 24 modulo the 32 banks.
  static constexpr int epilogue_odd_words = 9;                     // warp_n / 8, made odd; unused where D is f32
  static constexpr int epilogue_pitch = 72;
};

// ---- What a launcher counts on ------------------------------------------------------------------------------------

static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 3 * (128 + 128) * 32 * 2);  // stages * (A + B) * 2 bytes
static_assert(sizeof(hgemm::Epilogue<Policy>::Shared) == 4 * 16 * 72 * 4);           // warps * 16 rows of floats
static_assert(sizeof(hgemm::SharedStorage<Policy>) == 49152);                        // the larger one: they share a place
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == (64 / 16) * (64 / 8) * (32 / 16));

}  // namespace

// 128 threads, and two CTAs an SM at least, which leaves each thread 255 registers.
HGEMM_KERNEL(128, 2) gemm_128x128x32(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm80<Policy>(problem);
}
