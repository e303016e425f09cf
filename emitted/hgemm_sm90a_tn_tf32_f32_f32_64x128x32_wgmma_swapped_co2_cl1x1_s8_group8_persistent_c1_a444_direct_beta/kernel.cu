// hgemm_sm90a_tn_tf32_f32_f32_64x128x32_wgmma_swapped_co2_cl1x1_s8_group8_persistent_c1_a444_direct_beta
// sm_90a tn, tf32 in, f32 accumulate, f32 out; CTA tile 64x128x32, operands swapped, 2 cooperative consumers, cluster 1x1, 8 stages, 384 threads, 198656 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/gemm_sm90.cuh>

namespace {

struct Policy {
  using In = hgemm::tf32;
  using Out = hgemm::f32;
  static constexpr auto accumulate = hgemm::Accumulate::f32;
  HGEMM_WGMMA_TN(64x64x8_F32TF32TF32_SS_TN);

  static constexpr int tile_m = 128, tile_n = 64, tile_k = 32, stages = 8;
  static constexpr int consumers = 2, consumer_m = 64, threads = 384;
  static constexpr bool pingpong = false, swapped = true;
  static constexpr int producer_registers = 40, consumer_registers = 232;
  static constexpr int cluster_m = 1, cluster_n = 1;

  struct A {  // (128, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 128;
  };
  struct B {  // (64, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 128;
  };

  static constexpr auto schedule = hgemm::Schedule::persistent;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  static constexpr bool beta = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr auto store = hgemm::Store::direct;
  static constexpr int align_d = 4, store_columns = 64, epilogue_columns = 32, epilogue_stages = 2;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 198656);
static_assert(sizeof(hgemm::MainloopSm90<Policy>::Shared) == 196608);
static_assert(hgemm::MainloopSm90<Policy>::wgmma_per_k_tile == 4);

HGEMM_KERNEL_SM90(384, 1, 1) hgemm_sm90a_tn_tf32_f32_f32_64x128x32_wgmma_swapped_co2_cl1x1_s8_group8_persistent_c1_a444_direct_beta(HGEMM_PARAMETER hgemm::Problem problem, HGEMM_PARAMETER hgemm::TensorMaps maps) {
  hgemm::gemm_sm90<Policy>(problem, maps);
}
