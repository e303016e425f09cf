// Replaces CuTe's wgmma fence, commit and wait on the host. wgmma itself is in cute/atom/mma_traits_sm90_gmma.hpp.
#pragma once

#include <common/atoms_sm90.cuh>

#define warpgroup_arrive genuine_warpgroup_arrive
#define warpgroup_wait genuine_warpgroup_wait
#define warpgroup_commit_batch genuine_warpgroup_commit_batch
#include_next <cute/arch/mma_sm90_gmma.hpp>
#undef warpgroup_arrive
#undef warpgroup_wait
#undef warpgroup_commit_batch

namespace cute {

inline void warpgroup_arrive() { hgemm::atoms::wgmma_fence(); }
inline void warpgroup_commit_batch() { hgemm::atoms::wgmma_commit(); }
template <int PENDING>
inline void warpgroup_wait() {
  hgemm::atoms::wgmma_wait<PENDING>();
}

}  // namespace cute
