// The threads of a CTA that finish a tile together.
#pragma once

#include <hgemm/atoms.cuh>

namespace hgemm {

// All of the CTA, as where all multiply.
template <class Policy>
struct CtaThreads {
  static constexpr int count = Policy::threads;

  HGEMM_DEVICE static int index() { return atoms::thread_index(); }
  HGEMM_DEVICE static void barrier() { atoms::cta_barrier(); }
};

}  // namespace hgemm
