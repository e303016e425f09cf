// hgemm_sm90a_tn_f16_f32_f16_128x256x64_s4_32bb0430
// sm_90a tn, f16 in, f32 accumulate, f16 out; CTA tile 128x256x64, 2 cooperative consumers, cluster 2x1, 4 stages, 384 threads, 230400 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <wgmma/cute_kernel.cuh>

namespace {

using namespace cute;

struct Policy {
  using Element = half_t;
  using ElementOut = half_t;
  using CtaTiler = Shape<_128, _256, _64>;  // (BLK_M, BLK_N, BLK_K)
  using ClusterShape = Shape<_2, _1>;  // CTAs along m, along n
  static constexpr bool a_k_major = true, b_k_major = true;
  static constexpr bool swap_ab = false;

  // Warpgroups: consumers, which share a tile or alternate between tiles, and the producer; registers of a thread of each.
  static constexpr int consumers = 2, threads = 384;
  static constexpr bool pingpong = false;
  static constexpr int producer_registers = 40, consumer_registers = 232;

  // Products: warpgroups of m64n256k16 along m.
  using TiledMma = decltype(make_tiled_mma(SM90_64x256x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{}, Layout<Shape<_2, _1, _1>>{}));

  // Shared memory: stages that the TMA writes and wgmma reads, and a consumer's subtiles of D.
  using SmemLayoutA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_128, _64, _4>{}));  // (BLK_M, BLK_K, PIPE)
  using SmemLayoutB = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_256, _64, _4>{}));  // (BLK_N, BLK_K, PIPE)
  using EpiTile = Shape<_64, _64>;  // (EPI_M, EPI_N)
  using SmemLayoutD = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<ElementOut>{}, Shape<_64, _64, _2>{}));  // (EPI_M, EPI_N, PIPE_D)

  // Global to shared memory: elements of a box, or of this CTA's slice of it.
  using TmaLoadA = hgemm::cute_form::TmaLoad<SM90_TMA_LOAD_OP, Element, 8192>;
  using TmaLoadB = hgemm::cute_form::TmaLoad<SM90_TMA_LOAD_MULTICAST_OP, Element, 16384>;

  // Registers to global memory.
  static constexpr auto store = hgemm::Store::tma;
  static constexpr bool unroll_epilogue = true;
  using SmemStore = SM90_U32x4_STSM_N;

  static constexpr auto schedule = hgemm::Schedule::persistent;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;
  static constexpr bool beta = true;
  static constexpr auto bias = hgemm::Bias::none;
  using Activation = hgemm::activation::none;
  static constexpr int align_d = 8;
};

}  // namespace

static_assert(sizeof(hgemm::cute_form::SharedStorage<Policy>) == 230400);
static_assert(hgemm::cute_form::mma_per_k_tile<Policy> == 4);

HGEMM_CLUSTER_KERNEL(384, 1, 2) hgemm_sm90a_tn_f16_f32_f16_128x256x64_s4_32bb0430(HGEMM_PARAMETER hgemm::Problem problem, HGEMM_PARAMETER hgemm::cute_form::TensorMaps maps) {
  hgemm::cute_form::gemm<Policy>(problem, maps);
}
