// One kernel of CUTLASS 2.x as a baseline: f16 in, f16 out, tn, mma.sync m16n8k16, 16-byte accesses.
// The build script compiles this file once for each row of its table, with
//   KERNEL_NAME, ACC_BITS (32 or 16), TILE_M, TILE_N, TILE_K, WARP_M, WARP_N, STAGES
// because a kernel costs tens of seconds and separate objects build in parallel and are cached apart.

#include <cuda_runtime.h>

#include <cutlass/device_kernel.h>
#include <cutlass/gemm/device/gemm_universal.h>

#include "cutlass2x.h"

namespace {

using Half = cutlass::half_t;
#if ACC_BITS == 32
using Accumulator = float;
#else
using Accumulator = cutlass::half_t;
#endif

constexpr int kAlign = 8;  // elements: 16 bytes
using Tile = cutlass::gemm::GemmShape<TILE_M, TILE_N, TILE_K>;
using Warp = cutlass::gemm::GemmShape<WARP_M, WARP_N, TILE_K>;
using Instruction = cutlass::gemm::GemmShape<16, 8, 16>;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Half, kAlign, Accumulator, Accumulator>;
using Raster = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;

using Gemm = cutlass::gemm::device::GemmUniversal<
    Half, cutlass::layout::RowMajor, Half, cutlass::layout::ColumnMajor, Half, cutlass::layout::RowMajor, Accumulator,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, Tile, Warp, Instruction, Epilogue, Raster, STAGES,
    kAlign, kAlign>;
using Kernel = Gemm::GemmKernel;
constexpr int kSharedBytes = int(sizeof(Kernel::SharedStorage));

int init() {
  return int(cudaFuncSetAttribute(cutlass::Kernel2<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
}

int run(const baseline::Operands& p, int raster_log, void* stream) {
  // The arguments and Params are CUTLASS's own; the launch is here so that the raster width is a run-time choice, as
  // it is in its profiler, and so that nothing but the launch happens under capture.
  const Kernel::Arguments arguments(
      cutlass::gemm::GemmUniversalMode::kGemm, {p.m, p.n, p.k}, /*batch_count=*/1, {Accumulator(1.0f), Accumulator(0.0f)},
      p.a, p.b, p.d, p.d, 0, 0, 0, 0, p.lda, p.ldb, p.ldd, p.ldd);
  if (Kernel::can_implement(arguments) != cutlass::Status::kSuccess) return int(cudaErrorInvalidValue);

  Kernel::Params params(arguments, /*device_sms=*/0, /*sm_occupancy=*/0);  // both are for stream-K only
  const int tiles_n = params.grid_tiled_shape.n();
  while (raster_log > 0 && (1 << raster_log) > tiles_n) --raster_log;
  params.swizzle_log_tile = raster_log;

  const int width = 1 << raster_log;
  const dim3 grid(params.grid_tiled_shape.m() * width, (tiles_n + width - 1) / width, 1);
  cutlass::Kernel2<Kernel><<<grid, Kernel::kThreadCount, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(params);
  return int(cudaGetLastError());
}

const bool kEnlisted = [] {
  baseline::enlist({KERNEL_NAME, ACC_BITS, init, run});
  return true;
}();

}  // namespace
