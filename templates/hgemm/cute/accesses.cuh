// Plain loads and stores as CuTe's instructions: copies of one thread that go through the atom layer.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/atoms.cuh>

namespace hgemm::with_cute {

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

}  // namespace hgemm::with_cute

namespace cute {

template <class Word>
struct Copy_Traits<hgemm::with_cute::LoadGlobal<Word>> : Copy_Traits<UniversalCopy<Word>> {};
template <class Word>
struct Copy_Traits<hgemm::with_cute::StoreGlobal<Word>> : Copy_Traits<UniversalCopy<Word>> {};
template <class Word>
struct Copy_Traits<hgemm::with_cute::LoadShared<Word>> : Copy_Traits<UniversalCopy<Word>> {};
template <class Word>
struct Copy_Traits<hgemm::with_cute::StoreShared<Word>> : Copy_Traits<UniversalCopy<Word>> {};

}  // namespace cute
