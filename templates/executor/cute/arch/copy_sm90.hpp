// Replaces CuTe's stmatrix on the host. The instructions that our kernels use go to the executor.
#pragma once

#include <common/atoms_sm90.cuh>

#define SM90_U32x2_STSM_N GENUINE_U32x2_STSM_N
#define SM90_U32x4_STSM_N GENUINE_U32x4_STSM_N
#define SM90_U16x4_STSM_T GENUINE_U16x4_STSM_T
#define SM90_U16x8_STSM_T GENUINE_U16x8_STSM_T
#include_next <cute/arch/copy_sm90.hpp>
#undef SM90_U32x2_STSM_N
#undef SM90_U32x4_STSM_N
#undef SM90_U16x4_STSM_T
#undef SM90_U16x8_STSM_T

namespace cute {

template <bool TRANSPOSE>
struct HostStmatrixX2 {
  using SRegisters = uint32_t[2];
  using DRegisters = uint128_t[1];

  static void copy(uint32_t const& r0, uint32_t const& r1, uint128_t& row) { hgemm::atoms::stmatrix_x2<TRANSPOSE>(&row, r0, r1); }
};
template <bool TRANSPOSE>
struct HostStmatrixX4 {
  using SRegisters = uint32_t[4];
  using DRegisters = uint128_t[1];

  static void copy(uint32_t const& r0, uint32_t const& r1, uint32_t const& r2, uint32_t const& r3, uint128_t& row) {
    hgemm::atoms::stmatrix_x4<TRANSPOSE>(&row, r0, r1, r2, r3);
  }
};

struct SM90_U32x2_STSM_N : HostStmatrixX2<false> {};
struct SM90_U32x4_STSM_N : HostStmatrixX4<false> {};
struct SM90_U16x4_STSM_T : HostStmatrixX2<true> {};
struct SM90_U16x8_STSM_T : HostStmatrixX4<true> {};

}  // namespace cute
