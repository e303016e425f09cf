// hgemm_sm90a_tt_f16_f32_f16_128x256x64_wgmma_cpasync_co2_cl1x1_s3_group16_persistent_c1_a222_direct_beta
// sm_90a tt, f16 in, f32 accumulate, f16 out; CTA tile 128x256x64, copies by threads, 2 cooperative consumers, cluster 1x1, 3 stages, 384 threads, 149504 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm90.cuh>

namespace {

struct Policy {
  using In = hgemm::f16;
  using Out = hgemm::f16;
  static constexpr auto accumulate = hgemm::Accumulate::f32;
  HGEMM_WGMMA(64x256x16_F32F16F16_SS);

  static constexpr int tile_m = 128, tile_n = 256, tile_k = 64, stages = 3;
  static constexpr int consumers = 2, consumer_m = 64, threads = 384;
  static constexpr bool pingpong = false, swapped = false;
  static constexpr int producer_registers = 56, consumer_registers = 224;
  static constexpr int cluster_m = 1, cluster_n = 1;

  struct A {  // (128, 64) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 128, align = 2;
  };
  struct B {  // (256, 64) a stage, n contiguous
    static constexpr bool k_major = false;
    static constexpr int swizzle_bytes = 128, align = 2;
  };

  static constexpr auto schedule = hgemm::Schedule::persistent;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 16;

  static constexpr bool beta = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr auto store = hgemm::Store::direct;
  static constexpr int align_d = 2, store_columns = 64, epilogue_columns = 64, epilogue_stages = 2;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 149504);
static_assert(sizeof(hgemm::MainloopSm90<Policy>::Shared) == 147456);
static_assert(hgemm::MainloopSm90<Policy>::wgmma_per_k_tile == 4);

HGEMM_KERNEL_SM90(384, 1, 1) hgemm_sm90a_tt_f16_f32_f16_128x256x64_wgmma_cpasync_co2_cl1x1_s3_group16_persistent_c1_a222_direct_beta(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::gemm_sm90<Policy>(problem);
}
