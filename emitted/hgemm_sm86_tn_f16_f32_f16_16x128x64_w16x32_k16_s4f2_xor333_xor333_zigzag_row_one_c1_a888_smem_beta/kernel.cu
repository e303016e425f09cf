// hgemm_sm86_tn_f16_f32_f16_16x128x64_w16x32_k16_s4f2_xor333_xor333_zigzag_row_one_c1_a888_smem_beta
// sm_86 tn, f16 in, f32 accumulate, f16 out; CTA tile 16x128x64, warp tile 16x32, 4 stages, 128 threads, 73728 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm80.cuh>

namespace {

struct Policy {
  using In = hgemm::f16;
  using Out = hgemm::f16;
  static constexpr auto accumulate = hgemm::Accumulate::f32;

  static constexpr int tile_m = 16, tile_n = 128, tile_k = 64;
  static constexpr int warp_m = 16, warp_n = 32, warps_m = 1, warps_n = 4, threads = 128;
  static constexpr int mma_k = 16, stages = 4, fragment_stages = 2;
  static constexpr bool zigzag = true;

  struct A {  // (16, 64) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 64, swizzle_bits = 3, swizzle_base = 3, swizzle_shift = 3;
  };
  struct B {  // (128, 64) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 64, swizzle_bits = 3, swizzle_base = 3, swizzle_shift = 3;
  };

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::row;
  static constexpr unsigned splits = 1, raster_tiles = 1;

  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr int align_d = 8, epilogue_pitch = 40, epilogue_odd_words = 5;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 73728);
static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 73728);
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == 16);

HGEMM_KERNEL(128, 1) hgemm_sm86_tn_f16_f32_f16_16x128x64_w16x32_k16_s4f2_xor333_xor333_zigzag_row_one_c1_a888_smem_beta(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm80<Policy>(problem);
}
