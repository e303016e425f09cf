// Replaces CUTLASS's <cutlass/arch/synclog.hpp>: the calls that CuTe's atoms for sm_90 make, with the log off, as by default.
// See cute/config.hpp.
#pragma once

#include <cute/config.hpp>

namespace cutlass::arch {

template <class... T> CUTE_HOST_DEVICE void synclog_emit_fence_view_async_shared(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_tma_load(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_tma_store(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_tma_store_arrive(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_tma_store_wait(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_warpgroup_arrive(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_warpgroup_wait(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_warpgroup_commit_batch(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_wgmma_smem_smem(T...) {}
template <class... T> CUTE_HOST_DEVICE void synclog_emit_wgmma_reg_smem(T...) {}

}  // namespace cutlass::arch
