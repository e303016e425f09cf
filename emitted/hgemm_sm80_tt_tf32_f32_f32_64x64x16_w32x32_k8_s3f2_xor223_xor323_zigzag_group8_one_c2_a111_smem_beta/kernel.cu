// hgemm_sm80_tt_tf32_f32_f32_64x64x16_w32x32_k8_s3f2_xor223_xor323_zigzag_group8_one_c2_a111_smem_beta
// sm_80 tt, tf32 in, f32 accumulate, f32 out; CTA tile 64x64x16, warp tile 32x32, 3 stages, 128 threads, 24576 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm80.cuh>

namespace {

struct Policy {
  using In = hgemm::tf32;
  using Out = hgemm::f32;
  static constexpr auto accumulate = hgemm::Accumulate::f32;

  static constexpr int tile_m = 64, tile_n = 64, tile_k = 16;
  static constexpr int warp_m = 32, warp_n = 32, warps_m = 2, warps_n = 2, threads = 128;
  static constexpr int mma_k = 8, stages = 3, fragment_stages = 2;
  static constexpr bool zigzag = true;

  struct A {  // (64, 16) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int align = 1, pitch = 16, swizzle_bits = 2, swizzle_base = 2, swizzle_shift = 3;
  };
  struct B {  // (64, 16) a stage, n contiguous
    static constexpr bool k_major = false;
    static constexpr int align = 1, pitch = 64, swizzle_bits = 3, swizzle_base = 2, swizzle_shift = 3;
  };

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr int align_d = 1, epilogue_pitch = 40, epilogue_odd_words = 0;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 24576);
static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 24576);
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == 16);

HGEMM_KERNEL(128, 2) hgemm_sm80_tt_tf32_f32_f32_64x64x16_w32x32_k8_s3f2_xor223_xor323_zigzag_group8_one_c2_a111_smem_beta(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm80<Policy>(problem);
}
