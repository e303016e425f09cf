// Replaces CuTe's <cute/arch/copy.hpp>: the 16-byte word, the integral constant and the shared-memory address that the copy
// atoms use. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>

namespace cute {

struct alignas(16) uint128_t {
  uint64_t low, high;
};

template <int N>
struct Int {
  static constexpr int value = N;
};

CUTE_DEVICE uint32_t cast_smem_ptr_to_uint(void const* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace cute
