// Replaces CuTe's TMA copies on the host. Those of three dimensions go to the executor.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>

#define SM90_TMA_LOAD GENUINE_TMA_LOAD
#define SM90_TMA_LOAD_MULTICAST GENUINE_TMA_LOAD_MULTICAST
#define SM90_TMA_STORE GENUINE_TMA_STORE
#define tma_store_arrive genuine_tma_store_arrive
#define tma_store_wait genuine_tma_store_wait
#include_next <cute/arch/copy_sm90_tma.hpp>
#undef SM90_TMA_LOAD
#undef SM90_TMA_LOAD_MULTICAST
#undef SM90_TMA_STORE
#undef tma_store_arrive
#undef tma_store_wait

namespace cute {

struct SM90_TMA_LOAD {
  using PREFETCH = GENUINE_TMA_LOAD::PREFETCH;

  static void copy(void const* map, uint64_t* barrier, uint64_t, void* shared, int32_t x, int32_t y, int32_t z) {
    hgemm::atoms::tma_load(shared, host_map(map), barrier, x, y, z);
  }
};
struct SM90_TMA_LOAD_MULTICAST {
  using PREFETCH = GENUINE_TMA_LOAD::PREFETCH;

  static void copy(void const* map, uint64_t* barrier, uint16_t ranks, uint64_t, void* shared, int32_t x, int32_t y, int32_t z) {
    hgemm::atoms::tma_load_multicast(shared, host_map(map), barrier, ranks, x, y, z);
  }
};
struct SM90_TMA_STORE {
  static void copy(void const* map, void const* shared, int32_t x, int32_t y, int32_t z) {
    hgemm::atoms::tma_store(host_map(map), shared, x, y, z);
  }
};

inline void tma_store_arrive() { hgemm::atoms::tma_store_commit(); }
template <int PENDING>
inline void tma_store_wait() {
  hgemm::atoms::tma_store_wait_read<PENDING>();
}

}  // namespace cute
