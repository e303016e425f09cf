// Stands in for CuTe's <cute/container/array.hpp>: enough of an array for the declarations of the atoms that change TMA
// descriptors, which no kernel here uses. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>

namespace cute {

template <class T, int COUNT>
struct array {
  T element[COUNT];
  CUTE_HOST_DEVICE constexpr T const& operator[](int i) const { return element[i]; }
};

}  // namespace cute
