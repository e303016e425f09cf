// One operand of sm_90a in shared memory: how its boxes lie there, whoever brings them, and the descriptors for wgmma.
#pragma once

#include <hgemm/atoms_sm90.cuh>

namespace hgemm {

// A stage of A or B, (EXTENT, tile_k), loaded by SLICES CTAs of a cluster, each for all of them. A box has rows of 128, 64 or
// 32 bytes of the contiguous index; the TMA swizzles their 16-byte pieces and wgmma swizzles back.
template <class Policy, class Side, int EXTENT, int SLICES>
struct OperandSm90 {
  static constexpr int row_bytes = Side::swizzle_bytes;
  static constexpr int element_bytes = sizeof(typename Policy::In);
  static constexpr int columns = row_bytes / element_bytes;  // elements of the contiguous index in a box
  static constexpr int rows = Side::k_major ? EXTENT : Policy::tile_k;
  static constexpr int boxes = (Side::k_major ? Policy::tile_k : EXTENT) / columns;
  static constexpr int box_bytes = rows * row_bytes;
  static constexpr int slice_rows = rows / SLICES;
  static constexpr int bytes = boxes * box_bytes;

  static_assert(bytes == EXTENT * Policy::tile_k * element_bytes, "boxes must fill the stage");
  static_assert(slice_rows * SLICES == rows && slice_rows % 8 == 0, "a slice is made of groups of 8 rows");

  // Where the byte of a box lies: the 16-byte pieces of its rows are swapped by the bits that count rows.
  HGEMM_DEVICE static constexpr int swizzled(int byte) {
    constexpr int pieces = row_bytes / 16;
    return byte ^ (byte >> 3 & (pieces - 1) << 4);
  }

  // ---- Loading ----------------------------------------------------------------------------------------------------

  // Loads this CTA's slice of the stage whose first element is (first, k) of `batch`; `ranks` are those who share it.
  HGEMM_DEVICE static void load(unsigned char* stage, TensorMap const& map, uint64_t* barrier, int first, int k, int batch,
                                int slice, uint16_t ranks) {
    int const row = slice * slice_rows;
    HGEMM_UNROLL
    for (int box = 0; box < boxes; ++box) {
      unsigned char* const to = stage + box * box_bytes + row * row_bytes;
      int const x = (Side::k_major ? k : first) + box * columns;
      int const y = (Side::k_major ? first : k) + row;
      if constexpr (SLICES == 1) {
        atoms::tma_load(to, map, barrier, x, y, batch);
      } else {
        atoms::tma_load_multicast(to, map, barrier, ranks, x, y, batch);
      }
    }
  }

  // ---- Reading ----------------------------------------------------------------------------------------------------

  // The lower half of the descriptor of the stage's first element: where it is, in 16-byte units, and the bytes from a box to
  // the next where the instruction spans boxes. What changes is in it: added up in 32 bits, it is there before the product.
  HGEMM_DEVICE static uint32_t place(unsigned char const* stage) {
    constexpr uint32_t box = Side::k_major ? 1 : box_bytes / 16;
    return (atoms::shared_address(stage) >> 4 & 0x3fff) | box << 16;
  }

  // The descriptor with its upper half: the bytes from 8 rows to the next 8, and the swizzle.
  HGEMM_DEVICE static uint64_t descriptor(uint32_t place) {
    constexpr uint64_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    constexpr uint64_t row_group = 8 * row_bytes / 16;
    return swizzle << 62 | row_group << 32 | place;
  }

  // What to add to the place for element (extent, k); extent is a multiple of 64 or 0, k of 32 bytes.
  HGEMM_DEVICE static constexpr uint32_t step(int extent, int k) {
    int const column = Side::k_major ? k : extent;
    int const row = Side::k_major ? extent : k;
    return (column / columns * box_bytes + row * row_bytes + column % columns * element_bytes) / 16;
  }
};

}  // namespace hgemm
