// hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_62505844
// sm_89 tn, f16 in, f32 accumulate, f16 out; CTA tile 128x128x32, warp tile 64x64, 3 stages, 128 threads, 49152 B of shared memory.
// Emitted by the HGEMM generator from a spec; change the spec, not this text.

#include <mma_sync/cute_kernel.cuh>

namespace {

using namespace cute;

struct Policy {
  using Element = half_t;
  using ElementOut = half_t;
  using CtaTiler = Shape<_128, _128, _32>;  // (BLK_M, BLK_N, BLK_K)
  static constexpr int tile_m = 128, tile_n = 128, threads = 128;
  static constexpr bool a_k_major = true, b_k_major = true;

  // Products: warps of m16n8k16 along m and n.
  using TiledMma = decltype(make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2, _1>>{}, Tile<_32, _32, _16>{}));

  // Shared memory: the stages, and the rows of D that go through it at once.
  using SmemLayoutA = decltype(composition(Swizzle<2, 3, 3>{}, Layout<Shape<_128, _32, _3>, Stride<_32, _1, _4096>>{}));  // (BLK_M, BLK_K, PIPE)
  using SmemLayoutB = decltype(composition(Swizzle<2, 3, 3>{}, Layout<Shape<_128, _32, _3>, Stride<_32, _1, _4096>>{}));  // (BLK_N, BLK_K, PIPE)
  using SmemLayoutE = Layout<Shape<_32, Shape<_4, _2, _16>>, Stride<_136, Stride<_1, Int<68>, _4>>>;  // (EPI_M, BLK_N)
  static constexpr int smem_elements_a = 12288, smem_elements_b = 12288;

  // Global to shared memory: threads, and the elements that each copies at once.
  static constexpr auto copy = hgemm::Copy::cp_async;
  using GmemCopyA = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, Element>{}, Layout<Shape<_32, _4>, Stride<_4, _1>>{}, Layout<Shape<_1, _8>>{}));
  using GmemCopyB = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, Element>{}, Layout<Shape<_32, _4>, Stride<_4, _1>>{}, Layout<Shape<_1, _8>>{}));

  // Shared memory to fragments.
  using SmemCopyAtomA = Copy_Atom<SM75_U32x4_LDSM_N, Element>;
  using SmemCopyAtomB = Copy_Atom<SM75_U32x4_LDSM_N, Element>;

  static constexpr auto schedule = hgemm::Schedule::one_tile;
  static constexpr auto raster = hgemm::Raster::group;
  static constexpr unsigned splits = 1, raster_tiles = 8;
  static constexpr bool beta = true;
  static constexpr auto bias = hgemm::Bias::none;
  using Activation = hgemm::activation::none;
  static constexpr int align_d = 8;
};

}  // namespace

static_assert(sizeof(hgemm::cute_form::SharedStorage<Policy>) == 49152);
static_assert(cosize_v<Policy::SmemLayoutA> <= Policy::smem_elements_a && cosize_v<Policy::SmemLayoutB> <= Policy::smem_elements_b);
static_assert(size(Policy::TiledMma{}) == Policy::threads);
static_assert(hgemm::cute_form::mma_per_k_tile<Policy> == 64);

HGEMM_KERNEL(128, 2) hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_62505844(HGEMM_PARAMETER hgemm::Problem problem) {
  hgemm::cute_form::gemm<Policy>(problem);
}
