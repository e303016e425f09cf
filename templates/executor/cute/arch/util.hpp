// Replaces CuTe's shared memory addresses on the host by those of the executor.
#pragma once

#include <common/atoms_sm90.cuh>

#define cast_smem_ptr_to_uint genuine_cast_smem_ptr_to_uint
#include_next <cute/arch/util.hpp>
#undef cast_smem_ptr_to_uint

namespace cute {

inline uint32_t cast_smem_ptr_to_uint(void const* pointer) { return hgemm::atoms::shared_address(pointer); }

}  // namespace cute
