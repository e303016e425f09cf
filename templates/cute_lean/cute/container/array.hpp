// Replaces CuTe's <cute/container/array.hpp>: what the declarations of the atoms that modify TMA descriptors need. No kernel
// here uses those atoms. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>

namespace cute {

template <class T, int COUNT>
struct array {
  T element[COUNT];
  CUTE_HOST_DEVICE constexpr T const& operator[](int i) const { return element[i]; }
};

}  // namespace cute
