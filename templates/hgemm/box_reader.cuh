// How a warp reads fragments of mma.sync from the boxes that the TMA lays down and swizzles.
#pragma once

#include <hgemm/operand_sm90.cuh>

namespace hgemm {

// Addresses of one lane's rows for ldmatrix, in the order of FragmentReader, over a warp tile along m (A, which is
// EXTENT_FIRST) or n (B). A box has rows of 128, 64 or 32 bytes of the contiguous index, whose 16-byte pieces the TMA swaps by
// the bits that count rows. A warp tile is whole boxes of an MN-major operand, so that a lane's place in a row and that of a
// fragment have no bit in common.
template <class Policy, class Side, int EXTENT, bool EXTENT_FIRST>
struct BoxReader {
  using Boxes = OperandSm90<Policy, Side, EXTENT, 1>;

  static constexpr int warp_extent = EXTENT_FIRST ? Policy::warp_m : Policy::warp_n;
  static constexpr int element_bytes = Boxes::element_bytes;
  static constexpr int piece = 16 / element_bytes;  // elements

  static_assert(Side::k_major || element_bytes == 2, "ldmatrix transposes halves only");
  static_assert(Side::k_major || warp_extent % Boxes::columns == 0, "a warp tile is whole boxes of an MN-major operand");

  int first;  // byte of this lane's row in a stage

  HGEMM_DEVICE BoxReader(int warp_first, int lane) {
    int const low = lane / 8 % 2;
    int const high = lane / 16;
    int const along_extent = (EXTENT_FIRST ? low : high) * 8;
    int const along_k = (EXTENT_FIRST ? high : low) * piece;
    first = Side::k_major
                ? Boxes::swizzled((warp_first + along_extent + lane % 8) * Boxes::row_bytes + along_k * element_bytes)
                : warp_first / Boxes::columns * Boxes::box_bytes +
                      Boxes::swizzled((along_k + lane % 8) * Boxes::row_bytes + along_extent * element_bytes);
  }

  // Registers of 16 of the extent by a block of k, at (along_extent, along_k) of the warp tile.
  HGEMM_DEVICE void read_x4(unsigned char const* stage, int along_extent, int along_k, uint32_t& r0, uint32_t& r1,
                            uint32_t& r2, uint32_t& r3) const {
    atoms::ldmatrix_x4_at<!Side::k_major>(stage + first, flip(along_extent, along_k), step(along_extent, along_k), r0, r1, r2,
                                          r3);
  }
  // Registers of 8 of the extent there.
  HGEMM_DEVICE void read_x2(unsigned char const* stage, int along_extent, int along_k, uint32_t& r0, uint32_t& r1) const {
    atoms::ldmatrix_x2_at<!Side::k_major>(stage + first, flip(along_extent, along_k), step(along_extent, along_k), r0, r1);
  }

  // What a fragment's place within a row changes of the swizzled address, and what its row and box add to it.
  HGEMM_DEVICE static constexpr int flip(int along_extent, int along_k) {
    return (Side::k_major ? along_k : along_extent) % Boxes::columns * element_bytes;
  }
  HGEMM_DEVICE static constexpr int step(int along_extent, int along_k) {
    int const column = Side::k_major ? along_k : along_extent;
    int const row = Side::k_major ? along_extent : along_k;
    return column / Boxes::columns * Boxes::box_bytes + row * Boxes::row_bytes;
  }
};

}  // namespace hgemm
