// hgemm_sm75_tn_f16_f32_f16_128x128x32_s2_2179249c
// sm_75 tn, f16 in, f32 accumulate, f16 out; CTA tile 128x128x32, warp tile 64x64, 2 stages, 128 threads, 32768 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <mma_sync/kernel.cuh>

namespace {

struct Policy {
  using In = hgemm::f16;
  using Out = hgemm::f16;
  static constexpr auto accumulate = hgemm::Accumulate::f32;

  static constexpr int tile_m = 128, tile_n = 128, tile_k = 32;
  static constexpr int warp_m = 64, warp_n = 64, warps_m = 2, warps_n = 2, threads = 128;
  static constexpr int mma_k = 8, stages = 2, fragment_stages = 2, fragment_rows = 4;
  static constexpr bool zigzag = true, wmma = false, static_smem = false;

  static constexpr auto copy = hgemm::Copy::ldg_sts;
  static constexpr int store_spacing = 5;
  static constexpr bool prefetch = true, stores_behind_mma = false;

  struct A {  // (128, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 32, pair_pad = 0;
    static constexpr int swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;
    static constexpr int row_align = 8;
  };
  struct B {  // (128, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 32, pair_pad = 0;
    static constexpr int swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;
    static constexpr int row_align = 8;
  };

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  using Activation = hgemm::activation::none;
  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr int align_d = 8, epilogue_rows = 16, epilogue_pitch = 72, epilogue_odd_words = 9;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 32768);
static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 32768);
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == 128);

HGEMM_KERNEL(128, 2) hgemm_sm75_tn_f16_f32_f16_128x128x32_s2_2179249c(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm<Policy>(problem);
}
