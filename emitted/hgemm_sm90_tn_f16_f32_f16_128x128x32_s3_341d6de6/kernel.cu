// hgemm_sm90_tn_f16_f32_f16_128x128x32_s3_341d6de6
// sm_90 tn, f16 in, f32 accumulate, f16 out; CTA tile 128x128x32, warp tile 64x64, 3 stages, 160 threads, 68608 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <mma_sync_tma/kernel.cuh>

namespace {

struct Policy {
  using In = hgemm::f16;
  using Out = hgemm::f16;
  static constexpr auto accumulate = hgemm::Accumulate::f32;

  static constexpr int tile_m = 128, tile_n = 128, tile_k = 32;
  static constexpr int warp_m = 64, warp_n = 64, warps_m = 2, warps_n = 2, threads = 160;
  static constexpr int mma_k = 16, stages = 3, fragment_stages = 2, fragment_rows = 4;
  static constexpr bool zigzag = true, swap_ab = false;
  static constexpr int producer_registers = 0, consumer_registers = 0;
  static constexpr int cluster_m = 1, cluster_n = 1;

  struct A {  // (128, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 64;
  };
  struct B {  // (128, 32) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 64;
  };

  static constexpr auto schedule = hgemm::Schedule::persistent;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  using Activation = hgemm::activation::none;
  static constexpr bool beta = true, store_through_shared = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr int align_d = 8, epilogue_rows = 16, epilogue_pitch = 72, epilogue_odd_words = 9;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 68608);
static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 49152);
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == 64);

HGEMM_CLUSTER_KERNEL(160, 1, 1) hgemm_sm90_tn_f16_f32_f16_128x128x32_s3_341d6de6(HGEMM_PARAMETER hgemm::Problem problem, HGEMM_PARAMETER hgemm::TensorMaps maps) {
  hgemm::gemm<Policy>(problem, maps);
}
