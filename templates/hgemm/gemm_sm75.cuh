// The kernel that copies by way of registers, of sm_75 and, where that is asked for, of later architectures.
#pragma once

#include <hgemm/gemm.cuh>
#include <hgemm/mainloop_sm75.cuh>

namespace hgemm {

template <class Policy>
using StagedStorage = CtaStorage<Policy, StagedMainloop<Policy>>;

template <class Policy, Allocated ALLOCATED = Allocated::dynamically>
HGEMM_DEVICE void gemm_sm75(Problem const& problem) {
  gemm<Policy, StagedMainloop<Policy>, ALLOCATED>(problem);
}

}  // namespace hgemm
