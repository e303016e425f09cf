// Replaces CuTe's ldmatrix on the host. The instructions that our kernels use go to the executor.
#pragma once

#include <common/atoms.cuh>

#define SM75_U32x2_LDSM_N GENUINE_U32x2_LDSM_N
#define SM75_U32x4_LDSM_N GENUINE_U32x4_LDSM_N
#define SM75_U16x4_LDSM_T GENUINE_U16x4_LDSM_T
#define SM75_U16x8_LDSM_T GENUINE_U16x8_LDSM_T
#include_next <cute/arch/copy_sm75.hpp>
#undef SM75_U32x2_LDSM_N
#undef SM75_U32x4_LDSM_N
#undef SM75_U16x4_LDSM_T
#undef SM75_U16x8_LDSM_T

namespace cute {

template <bool TRANSPOSE>
struct HostLdmatrixX2 {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[2];

  static void copy(uint128_t const& row, uint32_t& r0, uint32_t& r1) { hgemm::atoms::ldmatrix_x2<TRANSPOSE>(&row, r0, r1); }
};
template <bool TRANSPOSE>
struct HostLdmatrixX4 {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[4];

  static void copy(uint128_t const& row, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3) {
    hgemm::atoms::ldmatrix_x4<TRANSPOSE>(&row, r0, r1, r2, r3);
  }
};

struct SM75_U32x2_LDSM_N : HostLdmatrixX2<false> {};
struct SM75_U32x4_LDSM_N : HostLdmatrixX4<false> {};
struct SM75_U16x4_LDSM_T : HostLdmatrixX2<true> {};
struct SM75_U16x8_LDSM_T : HostLdmatrixX4<true> {};

}  // namespace cute
