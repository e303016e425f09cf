// Replaces CuTe's tensor maps on the host: they are the hgemm_tensor_map of executor/abi.h. Their prefetch goes to the executor.
#pragma once

#include <common/atoms_sm90.cuh>

#define prefetch_tma_descriptor genuine_prefetch_tma_descriptor
#include_next <cute/arch/copy_sm90_desc.hpp>
#undef prefetch_tma_descriptor

namespace cute {

inline hgemm::TensorMap const& host_map(void const* map) { return *static_cast<hgemm::TensorMap const*>(map); }

inline void prefetch_tma_descriptor(TmaDescriptor const* map) { hgemm::atoms::tma_prefetch(host_map(map)); }

}  // namespace cute
