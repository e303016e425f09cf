// All of CuTe, with the types of its tuples' first elements spelled out. Where a compiler has no builtin that tells them, as
// NVRTC has none, CuTe has a class inherit from one for each element, anew for each tuple: a third of the time to compile.
#pragma once

#include <cute/container/tuple.hpp>

namespace CUTE_STL_NAMESPACE {

template <class T0, class... Rest>
struct tuple_element<0, cute::tuple<T0, Rest...>> {
  using type = T0;
};
template <class T0, class T1, class... Rest>
struct tuple_element<1, cute::tuple<T0, T1, Rest...>> {
  using type = T1;
};
template <class T0, class T1, class T2, class... Rest>
struct tuple_element<2, cute::tuple<T0, T1, T2, Rest...>> {
  using type = T2;
};
template <class T0, class T1, class T2, class T3, class... Rest>
struct tuple_element<3, cute::tuple<T0, T1, T2, T3, Rest...>> {
  using type = T3;
};

}  // namespace CUTE_STL_NAMESPACE

#include <cute/tensor.hpp>  // which must see them
