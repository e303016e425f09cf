// All of CuTe, a faster tuple_element for it, and plain loads and stores of the atom layer as CuTe's copy instructions.
#pragma once

#include <cute/container/tuple.hpp>

// The first element types of CuTe's tuples, spelled out. NVRTC has no builtin for them, so CuTe derives a class per element,
// anew for each tuple. That takes a third of the compile time.
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

#include <cute/tensor.hpp>  // after the specialisations above

#include <common/atoms.cuh>

// ---- Copies of one thread that go through the atom layer ----------------------------------------------------------

namespace hgemm::cute_form {

template <class Word>
struct LoadGlobal {
  using SRegisters = Word[1];
  using DRegisters = Word[1];
  CUTE_DEVICE static void copy(Word const& from, Word& to) { to = atoms::ld_global(&from); }
};
template <class Word>
struct StoreGlobal {
  using SRegisters = Word[1];
  using DRegisters = Word[1];
  CUTE_DEVICE static void copy(Word const& from, Word& to) { atoms::st_global(&to, from); }
};
template <class Word>
struct LoadShared {
  using SRegisters = Word[1];
  using DRegisters = Word[1];
  CUTE_DEVICE static void copy(Word const& from, Word& to) { to = atoms::ld_shared(&from); }
};
template <class Word>
struct StoreShared {
  using SRegisters = Word[1];
  using DRegisters = Word[1];
  CUTE_DEVICE static void copy(Word const& from, Word& to) { atoms::st_shared(&to, from); }
};

}  // namespace hgemm::cute_form

namespace cute {

template <class Word>
struct Copy_Traits<hgemm::cute_form::LoadGlobal<Word>> : Copy_Traits<UniversalCopy<Word>> {};
template <class Word>
struct Copy_Traits<hgemm::cute_form::StoreGlobal<Word>> : Copy_Traits<UniversalCopy<Word>> {};
template <class Word>
struct Copy_Traits<hgemm::cute_form::LoadShared<Word>> : Copy_Traits<UniversalCopy<Word>> {};
template <class Word>
struct Copy_Traits<hgemm::cute_form::StoreShared<Word>> : Copy_Traits<UniversalCopy<Word>> {};

}  // namespace cute
