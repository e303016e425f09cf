// Fragments of WMMA from an operand in shared memory: 16 of the extent by 16 of k, loaded by the warp as one.
#pragma once

#include <hgemm/atoms_wmma.cuh>
#include <hgemm/operand.cuh>

namespace hgemm {

// The same over a warp tile as FragmentReader, by wmma.load, which takes the first element and one pitch.
template <class Policy, class Operand, int EXTENT, bool OF_A>
struct WmmaReader {
  using In = typename Policy::In;
  using Layout = OperandLayout<Policy, Operand, EXTENT>;

  static_assert(sizeof(In) == 2 && Layout::pair_pad == 0 && Operand::swizzle_bits == 0, "rows one pitch apart, of 16 bits");

  int linear;  // element offset of the warp's first element in a stage

  HGEMM_DEVICE WmmaReader(int warp_first, int) : linear(Operand::k_major ? Layout::linear(warp_first, 0) : warp_first) {}

  // Registers of the 16 x 16 at (along_extent, along_k) of the warp tile.
  HGEMM_DEVICE void read(In const* stage, int along_extent, int along_k, uint32_t (&r)[atoms::wmma_registers<In>]) const {
    int const delta = Operand::k_major ? Layout::linear(along_extent, along_k) : Layout::linear(along_k, along_extent);
    atoms::wmma_load<In, OF_A, Operand::k_major == OF_A>(stage + linear + delta, Layout::pitch, r);
  }
};

}  // namespace hgemm
