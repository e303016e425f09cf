// hgemm_sm80_nt_tf32_f32_f32_128x128x16_w64x64_k8_s3f2_xor324_xor324_zigzag_group8_one_c2_a444_smem_beta
// sm_80 nt, tf32 in, f32 accumulate, f32 out; CTA tile 128x128x16, warp tile 64x64, 3 stages, 128 threads, 49152 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm80.cuh>

namespace {

struct Policy {
  using In = hgemm::tf32;
  using Out = hgemm::f32;
  static constexpr auto accumulate = hgemm::Accumulate::f32;

  static constexpr int tile_m = 128, tile_n = 128, tile_k = 16;
  static constexpr int warp_m = 64, warp_n = 64, warps_m = 2, warps_n = 2, threads = 128;
  static constexpr int mma_k = 8, stages = 3, fragment_stages = 2;
  static constexpr bool zigzag = true;

  struct A {  // (128, 16) a stage, m contiguous
    static constexpr bool k_major = false;
    static constexpr int align = 4, pitch = 128, swizzle_bits = 3, swizzle_base = 2, swizzle_shift = 4;
  };
  struct B {  // (128, 16) a stage, n contiguous
    static constexpr bool k_major = false;
    static constexpr int align = 4, pitch = 128, swizzle_bits = 3, swizzle_base = 2, swizzle_shift = 4;
  };

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr int align_d = 4, epilogue_pitch = 72, epilogue_odd_words = 0;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 49152);
static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 49152);
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == 64);

HGEMM_KERNEL(128, 2) hgemm_sm80_nt_tf32_f32_f32_128x128x16_w64x64_k8_s3f2_xor324_xor324_zigzag_group8_one_c2_a444_smem_beta(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm80<Policy>(problem);
}
