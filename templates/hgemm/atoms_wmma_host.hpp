// Host implementation of the atoms of WMMA, by the instructions that GPUs have for them from sm_75 on: ldmatrix for four matrices
// of 8 x 8, and two mma.m16n8 side by side.
#pragma once

#include <hgemm/atoms_host.hpp>

namespace hgemm {
namespace atoms {

// Registers beyond the fourth are not used, as on those GPUs.
template <class In>
constexpr int wmma_registers = 4;
template <>
constexpr int wmma_registers<f16> = 8;

// The matrices follow each other along the extent of A, then along k; of B along k, then along the extent.
template <class In, bool OF_A, bool BY_ROWS>
HGEMM_DEVICE void wmma_load(In const* corner, int pitch, uint32_t (&r)[wmma_registers<In>], Site site = here()) {
  constexpr bool transpose = OF_A != BY_ROWS;  // rows in memory that do not run along k
  int const lane = thread_index() % 32;
  bool const down_first = OF_A != transpose;
  int const down = down_first ? lane / 8 % 2 : lane / 16;
  int const across = down_first ? lane / 16 : lane / 8 % 2;
  Operation load = operation(Kind::wmma_load, site);
  load.space = Space::shared;
  load.from = corner + (down * 8 + lane % 8) * pitch + across * 8;
  load.second = corner;
  load.to = r;
  load.bytes = 16;
  load.number = uint32_t(pitch);
  load.flag = transpose;
  perform(load);
}

template <class In, bool A_BY_ROWS, bool B_BY_ROWS, int K, class Accumulator, int REGISTERS>
HGEMM_DEVICE void wmma(Accumulator (&left)[REGISTERS], Accumulator (&right)[REGISTERS],
                       uint32_t const (&a)[wmma_registers<In>], uint32_t const (&b)[wmma_registers<In>],
                       Site site = here()) {
  uint32_t const fragment[4] = {a[0], a[1], a[2], a[3]}, left_b[2] = {b[0], b[1]}, right_b[2] = {b[2], b[3]};
  mma<In, K>(left, fragment, left_b, site);
  mma<In, K>(right, fragment, right_b, site);
}

}  // namespace atoms
}  // namespace hgemm
