// hgemm_sm90a_tn_f16_f32_f16_128x256x64_s4_01b0506d
// sm_90a tn, f16 in, f32 accumulate, f16 out; CTA tile 128x256x64, 2 cooperative consumers, cluster 2x1, 4 stages, 384 threads, 230400 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <wgmma/kernel.cuh>

namespace {

struct Policy {
  using In = hgemm::f16;
  using Out = hgemm::f16;
  static constexpr auto accumulate = hgemm::Accumulate::f32;
  HGEMM_WGMMA(64x256x16_F32F16F16_SS);

  static constexpr int tile_m = 128, tile_n = 256, tile_k = 64, stages = 4;
  static constexpr int consumers = 2, consumer_m = 64, threads = 384;
  static constexpr bool pingpong = false, swap_ab = false;
  static constexpr int producer_registers = 40, consumer_registers = 232;
  static constexpr int cluster_m = 2, cluster_n = 1;

  static constexpr auto copy = hgemm::Copy::tma;

  struct A {  // (128, 64) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 128;
  };
  struct B {  // (256, 64) a stage, k contiguous
    static constexpr bool k_major = true;
    static constexpr int swizzle_bytes = 128;
  };

  static constexpr auto schedule = hgemm::Schedule::persistent;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;

  using Activation = hgemm::activation::none;
  static constexpr bool beta = true, unroll_epilogue = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto store = hgemm::Store::tma;
  static constexpr int align_d = 8, store_columns = 64, epilogue_columns = 64, epilogue_stages = 2;
};

}  // namespace

static_assert(sizeof(hgemm::SharedStorage<Policy>) == 230400);
static_assert(sizeof(hgemm::Mainloop<Policy>::Shared) == 196608);
static_assert(hgemm::Mainloop<Policy>::mma_per_k_tile == 4);

HGEMM_CLUSTER_KERNEL(384, 1, 2) hgemm_sm90a_tn_f16_f32_f16_128x256x64_s4_01b0506d(HGEMM_PARAMETER hgemm::Problem problem, HGEMM_PARAMETER hgemm::TensorMaps maps) {
  hgemm::gemm<Policy>(problem, maps);
}
