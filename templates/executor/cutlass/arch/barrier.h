// Replaces CUTLASS's mbarriers on the host by those of the executor. It has only what our kernels use.
#pragma once

#include <common/atoms_sm90.cuh>

namespace cutlass::arch {

struct ClusterBarrier {
 protected:
  uint64_t barrier_;

 public:
  ClusterBarrier() = delete;

  void init(uint32_t arrivals) { hgemm::atoms::mbarrier_init(&barrier_, int(arrivals)); }
  void wait(uint32_t phase) { hgemm::atoms::mbarrier_wait(&barrier_, phase); }
  void arrive() { hgemm::atoms::mbarrier_arrive(&barrier_); }
  void arrive(uint32_t rank) { hgemm::atoms::mbarrier_arrive_cluster(&barrier_, rank); }
};

struct ClusterTransactionBarrier : ClusterBarrier {
  void arrive_and_expect_tx(uint32_t bytes) { hgemm::atoms::mbarrier_arrive_expect_tx(&barrier_, bytes); }
};

inline void fence_barrier_init() { hgemm::atoms::mbarrier_init_fence(); }

}  // namespace cutlass::arch
