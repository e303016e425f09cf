// hgemm_sm90_tt_bf16_f32_bf16_64x64x64_w32x32_k16_s2f2_xor333_xor333_zigzag_shifted0_group8_one_c2_a111_smem_beta
// sm_90 tt, bf16 in, f32 accumulate, bf16 out; CTA tile 64x64x64, warp tile 32x32, 2 stages, 128 threads, 32768 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm75.cuh>

namespace {

struct Policy {
  using In = hgemm::bf16;
  using Out = hgemm::bf16;
  static constexpr auto accumulate = hgemm::Accumulate::f32;

  static constexpr int tile_m = 64, tile_n = 64, tile_k = 64;
  static constexpr int warp_m = 32, warp_n = 32, warps_m = 2, warps_n = 2, threads = 128;
  static constexpr int mma_k = 16, stages = 2, fragment_stages = 2, store_spacing = 0;
  static constexpr bool zigzag = true;

  struct A {  // (64, 64) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 64, swizzle_bits = 3, swizzle_base = 3, swizzle_shift = 3, row_align = 1;
  };
  struct B {  // (64, 64) a stage, n contiguous
    static constexpr bool k_major = false;
    static constexpr int align = 8, pitch = 64, swizzle_bits = 3, swizzle_base = 3, swizzle_shift = 3, row_align = 1;
  };

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr int align_d = 1, epilogue_pitch = 40, epilogue_odd_words = 5;
};

}  // namespace

static_assert(sizeof(hgemm::StagedStorage<Policy>) == 32768);
static_assert(sizeof(hgemm::StagedMainloop<Policy>::Shared) == 32768);
static_assert(hgemm::StagedMainloop<Policy>::mma_per_k_tile == 32);

HGEMM_KERNEL(128, 2) hgemm_sm90_tt_bf16_f32_bf16_64x64x64_w32x32_k16_s2f2_xor333_xor333_zigzag_shifted0_group8_one_c2_a111_smem_beta(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm75<Policy>(problem);
}
