// Replaces CuTe's cluster instructions on the host. Those that our kernels use go to the executor.
#pragma once

#include <common/atoms_sm90.cuh>

#define cluster_arrive genuine_cluster_arrive
#define cluster_wait genuine_cluster_wait
#define block_rank_in_cluster genuine_block_rank_in_cluster
#define elect_one_sync genuine_elect_one_sync
#include_next <cute/arch/cluster_sm90.hpp>
#undef cluster_arrive
#undef cluster_wait
#undef block_rank_in_cluster
#undef elect_one_sync

namespace cute {

inline void cluster_arrive() { hgemm::atoms::cluster_arrive(); }
inline void cluster_wait() { hgemm::atoms::cluster_wait(); }
inline uint32_t block_rank_in_cluster() { return hgemm::atoms::cluster_rank(); }
inline uint32_t elect_one_sync() { return hgemm::atoms::elect_one(); }

}  // namespace cute
