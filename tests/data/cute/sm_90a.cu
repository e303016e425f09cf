// hgemm_sm90a_tn_f16_f32_f16_128x128x64_wgmma_pp2_cl2x1_s6_cute_group8_persistent_c1_a888_tma_beta
// sm_90a tn, f16 in, f32 accumulate, f16 out; CTA tile 128x128x64, 2 pingpong consumers, cluster 2x1, 6 stages, 384 threads, 230400 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <hgemm/cute/gemm_sm90.cuh>

namespace {

using namespace cute;

struct Kernel {
  using Element = half_t;
  using ElementOut = half_t;
  using CtaTiler = Shape<_128, _128, _64>;  // (BLK_M, BLK_N, BLK_K)
  using ClusterShape = Shape<_2, _1>;  // CTAs along m, along n
  static constexpr bool a_k_major = true, b_k_major = true;
  static constexpr bool swapped = false;

  // Warpgroups: consumers that share a tile or take tiles in turn, then the producer; the registers of a thread of each.
  static constexpr int consumers = 2, threads = 384;
  static constexpr bool pingpong = true;
  static constexpr int producer_registers = 40, consumer_registers = 232;

  // Products: warpgroups of m64n128k16 along m.
  using TiledMma = decltype(make_tiled_mma(SM90_64x128x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{}, Layout<Shape<_1, _1, _1>>{}));

  // Shared memory: stages that the TMA writes and wgmma reads, and what a consumer stages of D.
  using SmemLayoutA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_128, _64, _6>{}));  // (BLK_M, BLK_K, PIPE)
  using SmemLayoutB = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_128, _64, _6>{}));  // (BLK_N, BLK_K, PIPE)
  using EpiTile = Shape<_64, _64>;  // (EPI_M, EPI_N)
  using SmemLayoutD = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<ElementOut>{}, Shape<_64, _64, _2>{}));  // (EPI_M, EPI_N, PIPE_D)

  // Global to shared memory: boxes of so many elements, in slices where CTAs share them.
  using TmaLoadA = hgemm::with_cute::TmaLoad<SM90_TMA_LOAD_OP, Element, 8192>;
  using TmaLoadB = hgemm::with_cute::TmaLoad<SM90_TMA_LOAD_MULTICAST_OP, Element, 8192>;

  // Registers to global memory.
  static constexpr auto store = hgemm::with_cute::Store::tma;
  using SmemStore = SM90_U32x4_STSM_N;

  static constexpr auto schedule = hgemm::Schedule::persistent;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 4;
  static constexpr bool beta = true;
  static constexpr auto bias = hgemm::Bias::none;
  static constexpr auto activation = hgemm::Activation::none;
  static constexpr int align_d = 8;
};

}  // namespace

static_assert(sizeof(hgemm::with_cute::SharedStorage<Kernel>) == 230400);
static_assert(hgemm::with_cute::wgmma_per_k_tile<Kernel> == 8);

HGEMM_KERNEL_SM90(384, 1, 2) hgemm_sm90a_tn_f16_f32_f16_128x128x64_wgmma_pp2_cl2x1_s6_cute_group8_persistent_c1_a888_tma_beta(HGEMM_PARAMETER hgemm::Problem problem, HGEMM_PARAMETER hgemm::with_cute::TensorMaps maps) {
  hgemm::with_cute::gemm_sm90<Kernel>(problem, maps);
}
