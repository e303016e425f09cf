// hgemm_sm75_tn_f16_f16_f16_256x256x32_w128x64_k8_s2f1_xor233_xor233_zigzag_vector5_group8_one_c1_a888_smem_beta
// sm_75 tn, f16 in, f16 accumulate, f16 out; CTA tile 256x256x32, warp tile 128x64, 2 stages, 256 threads, 65536 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm75.cuh>

namespace {

struct Policy {
  using In = hgemm::f16;
  using Out = hgemm::f16;
  static constexpr auto accumulate = hgemm::Accumulate::f16;

  static constexpr int tile_m = 256, tile_n = 256, tile_k = 32;
  static constexpr int warp_m = 128, warp_n = 64, warps_m = 2, warps_n = 4, threads = 256;
  static constexpr int mma_k = 8, stages = 2, fragment_stages = 1, store_spacing = 5;
  static constexpr bool zigzag = true;

  struct A {  // (256, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 32, swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;
  };
  struct B {  // (256, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 8, pitch = 32, swizzle_bits = 2, swizzle_base = 3, swizzle_shift = 3;
  };

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr int align_d = 8, epilogue_pitch = 72, epilogue_odd_words = 9;
};

}  // namespace

static_assert(sizeof(hgemm::StagedStorage<Policy>) == 65536);
static_assert(sizeof(hgemm::StagedMainloop<Policy>::Shared) == 65536);
static_assert(hgemm::StagedMainloop<Policy>::mma_per_k_tile == 256);

HGEMM_KERNEL(256, 1) hgemm_sm75_tn_f16_f16_f16_256x256x32_w128x64_k8_s2f1_xor233_xor233_zigzag_vector5_group8_one_c1_a888_smem_beta(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm75<Policy>(problem);
}
