// The kernel of sm_80 and later without wgmma: what cp.async copies, mma.sync multiplies.
#pragma once

#include <hgemm/gemm.cuh>
#include <hgemm/mainloop_sm80.cuh>

namespace hgemm {

template <class Policy>
using SharedStorage = CtaStorage<Policy, Mainloop<Policy>>;

template <class Policy, Allocated ALLOCATED = Allocated::dynamically>
HGEMM_DEVICE void gemm_sm80(Problem const& problem) {
  gemm<Policy, Mainloop<Policy>, ALLOCATED>(problem);
}

}  // namespace hgemm
