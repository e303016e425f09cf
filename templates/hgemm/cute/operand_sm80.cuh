// One operand of a CTA tile on its way from global to shared memory, a TiledCopy of asynchronous copies.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/atoms.cuh>

namespace hgemm::with_cute {

using namespace cute;

// The tensor (MN, K) of a matrix, MN being m for A and n for B, of which k is contiguous, or mn.
template <bool K_MAJOR, class Element>
CUTE_DEVICE auto make_operand(void const* matrix, int64_t batch_offset, int mn, int k, int64_t leading_dimension) {
  auto const pointer = make_gmem_ptr(static_cast<Element const*>(matrix) + batch_offset);
  if constexpr (K_MAJOR) {
    return make_tensor(pointer, make_shape(mn, k), make_stride(leading_dimension, _1{}));
  } else {
    return make_tensor(pointer, make_shape(mn, k), make_stride(_1{}, leading_dimension));
  }
}

// What a thread copies of each k-tile. Elements past the end of the matrix are not read, and arrive as zeros.
template <bool K_MAJOR, class GmemCopy, class TensorG, class TensorS, class TensorC>
struct OperandCopy {
  GmemCopy gmem_copy;
  TensorG tXgX;  // (CPY, CPY_MN, CPY_K, k)
  TensorS tXsX;  // (CPY, CPY_MN, CPY_K, PIPE)
  TensorC tXcX;  // (CPY, CPY_MN, CPY_K) -> (mn, k) in the CTA tile
  int mn_left;   // of the matrix, from the CTA tile on; nothing once there is no k-tile to copy

  // Starts the copy of a whole k-tile. It may read the padding of an MN-major row, which no stored element of D depends on.
  CUTE_DEVICE void whole(int k_tile, int stage) const {
    CUTE_UNROLL
    for (int i = 0; i < size<1>(tXgX); ++i) {
      bool const valid = get<0>(tXcX(0, i, 0)) < mn_left;
      copy(gmem_copy.with(valid), tXgX(_, i, _, k_tile), tXsX(_, i, _, stage));
    }
  }

  // Starts the copy of the last k-tile, of which the matrix has `k_left` of k: there a piece, and memory, may end anywhere.
  CUTE_DEVICE void ragged(int k_tile, int stage, int k_left) const {
    using Element = typename TensorS::value_type;
    CUTE_NO_UNROLL
    for (int i = 0; i < size<1>(tXgX); ++i) {
      CUTE_NO_UNROLL
      for (int j = 0; j < size<2>(tXgX); ++j) {
        Tensor source = tXgX(_, i, j, k_tile);  // (CPY)
        Tensor target = tXsX(_, i, j, stage);   // (CPY)
        int const mn_here = mn_left - get<0>(tXcX(0, i, j)), k_here = k_left - get<1>(tXcX(0, i, j));
        int const elements = mn_here <= 0 || k_here <= 0 ? 0 : K_MAJOR ? k_here : mn_here;
        if (elements == 0 || elements >= size(source)) {
          copy(gmem_copy.with(elements > 0), source, target);
          continue;
        }
        CUTE_NO_UNROLL
        for (int e = 0; e < size(source); ++e) {
          atoms::st_shared(&target(e), e < elements ? Element(atoms::ld_global(&source(e))) : Element(0.f));
        }
      }
    }
  }
};

template <bool K_MAJOR, class GmemCopy, class TensorG, class TensorS>
CUTE_DEVICE auto make_operand_copy(GmemCopy const& gmem_copy, TensorG const& gX, TensorS const& sX, int mn_left) {
  auto const thread_copy = gmem_copy.get_slice(atoms::thread_index());
  Tensor cX = make_identity_tensor(make_shape(size<0>(gX), size<1>(gX)));  // (BLK_MN, BLK_K) -> (mn, k)
  Tensor tXgX = thread_copy.partition_S(gX);                               // (CPY, CPY_MN, CPY_K, k)
  Tensor tXsX = thread_copy.partition_D(sX);                               // (CPY, CPY_MN, CPY_K, PIPE)
  Tensor tXcX = thread_copy.partition_S(cX);                               // (CPY, CPY_MN, CPY_K)
  return OperandCopy<K_MAJOR, GmemCopy, decltype(tXgX), decltype(tXsX), decltype(tXcX)>{gmem_copy, tXgX, tXsX, tXcX, mn_left};
}

}  // namespace hgemm::with_cute
