// CUTLASS's fused gated kernel for Hopper, with C functions: D (tokens, inner) = silu(X Wgate^T) * (X Wup^T) in f16.
//
// The types are those of CUTLASS's example 113_hopper_gemm_activation_fusion, which has the collective builders. In its terms, A
// are both weights (2 inner, k), B is X (tokens, k), and D is column-major. `zeros` are 2 inner halves, which beta = 0 ignores.

#include <cutlass/cutlass.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler_params.h>
#include <cutlass/util/packed_stride.hpp>

#include <gated_stride.hpp>
#include <gated_builder.hpp>

using namespace cute;
using Half = cutlass::half_t;
template <class T>
using Silu = cutlass::epilogue::thread::SiLu<T>;
using GatedShape = decltype(cutlass::sm90_make_gated_shape<0>(Shape<int, int, int, int>{}));

template <class Tile, class Cluster, bool PINGPONG>
struct Gated {
  using Schedule = conditional_t<PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                 cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using Store = conditional_t<PINGPONG, cutlass::epilogue::TmaWarpSpecialized, cutlass::epilogue::TmaWarpSpecializedCooperative>;
  using Epilogue = typename cutlass::epilogue::collective::Sm90CollectiveBuilderGated<
      cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, float, Half,
      cutlass::layout::ColumnMajor, 8, Half, cutlass::layout::ColumnMajor, 8, Store, Silu, false>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::Sm90CollectiveBuilderGated<
      cutlass::arch::OpClassTensorOp, Half, cutlass::layout::RowMajor, 8, Half, cutlass::layout::ColumnMajor, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<GatedShape, Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static int launch(void const* w, void const* x, void* d, void const* zeros, int tokens, int inner, int k, void* stream) {
    using StrideD = typename Epilogue::FusionCallbacks::Operation::GmemLayoutTagAux;
    static int const sms = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(0);
    int const m = 2 * inner;
    auto stride_c = cutlass::sm90_make_gated_packed_stride(typename Kernel::StrideC{}, {m, 1, 1});
    get<1>(stride_c) = 0;
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        cutlass::sm90_make_gated_shape<0>(make_shape(m, tokens, k, 1)),
        {static_cast<Half const*>(w), cutlass::sm90_make_gated_packed_stride(typename Kernel::StrideA{}, {m, k, 1}),
         static_cast<Half const*>(x), cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {tokens, k, 1})},
        {{}, static_cast<Half const*>(zeros), stride_c, nullptr, {}},
        {0, sms}};
    auto& fused = arguments.epilogue.thread;
    fused.alpha = 1.f, fused.beta = 0.f, fused.scale_ptr = nullptr;
    fused.ptr_D = static_cast<Half*>(d);
    fused.dD = cutlass::sm90_make_gated_packed_stride(StrideD{}, {inner, tokens, 1});
    Gemm gemm;
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return -1;
    auto const status = gemm.initialize(arguments, nullptr, static_cast<cudaStream_t>(stream));
    return int(status != cutlass::Status::kSuccess ? status : gemm.run(static_cast<cudaStream_t>(stream)));
  }
};

#define GATED(name, m, n, cluster_m, cluster_n, pingpong)                                                                     \
  extern "C" int name(void const* w, void const* x, void* d, void const* zeros, int tokens, int inner, int k, void* stream) { \
    using Cluster = Shape<Int<cluster_m>, Int<cluster_n>, _1>;                                                                \
    return Gated<Shape<Int<m>, Int<n>, _64>, Cluster, pingpong>::launch(w, x, d, zeros, tokens, inner, k, stream);            \
  }
GATED(pingpong_128x128_1x2, 128, 128, 1, 2, true)
GATED(pingpong_128x128_2x1, 128, 128, 2, 1, true)
GATED(cooperative_128x256_1x2, 128, 256, 1, 2, false)
GATED(cooperative_128x256_2x1, 128, 256, 2, 1, false)
GATED(cooperative_256x128_1x2, 256, 128, 1, 2, false)
GATED(cooperative_256x128_2x1, 256, 128, 2, 1, false)
