// Replaces CuTe's cp.async on the host. The instructions that our kernels use go to the executor.
#pragma once

#include <common/atoms.cuh>

#define SM80_CP_ASYNC_CACHEALWAYS_ZFILL GENUINE_CP_ASYNC_CACHEALWAYS_ZFILL
#define SM80_CP_ASYNC_CACHEGLOBAL_ZFILL GENUINE_CP_ASYNC_CACHEGLOBAL_ZFILL
#define cp_async_fence genuine_cp_async_fence
#define cp_async_wait genuine_cp_async_wait
#include_next <cute/arch/copy_sm80.hpp>
#undef SM80_CP_ASYNC_CACHEALWAYS_ZFILL
#undef SM80_CP_ASYNC_CACHEGLOBAL_ZFILL
#undef cp_async_fence
#undef cp_async_wait

namespace cute {

template <class Source, class Target = Source>
struct SM80_CP_ASYNC_CACHEALWAYS_ZFILL {
  using SRegisters = Source[1];
  using DRegisters = Target[1];

  static void copy(Source const& source, Target& target, bool valid) {
    hgemm::atoms::cp_async<sizeof(Source)>(&target, &source, valid);
  }
};
template <class Source, class Target = Source>
struct SM80_CP_ASYNC_CACHEGLOBAL_ZFILL : SM80_CP_ASYNC_CACHEALWAYS_ZFILL<Source, Target> {};

inline void cp_async_fence() { hgemm::atoms::cp_async_commit(); }
template <int PENDING>
inline void cp_async_wait() {
  hgemm::atoms::cp_async_wait<PENDING>();
}

}  // namespace cute
