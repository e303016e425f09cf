// One operand of a CTA tile on its way from global to shared memory by registers, a TiledCopy of plain loads and stores.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/cute/accesses.cuh>

namespace hgemm::with_cute {

using namespace cute;

// What a thread copies of each k-tile. Elements past the end of the matrix are not read, and are stored as zeros.
template <bool K_MAJOR, class GmemCopy, class SmemStore, class TensorG, class TensorS, class TensorC, class TensorR>
struct StagedCopy {
  GmemCopy gmem_copy;
  SmemStore smem_store;
  TensorG tXgX;  // (CPY, CPY_MN, CPY_K, k)
  TensorS tXsX;  // (CPY, CPY_MN, CPY_K, PIPE)
  TensorC tXcX;  // (CPY, CPY_MN, CPY_K) -> (mn, k) in the CTA tile
  TensorR tXrX;  // (CPY, CPY_MN, CPY_K)
  int mn_left;   // of the matrix, from the CTA tile on; nothing once there is no k-tile to copy

  // Loads a whole k-tile. It may read the padding of an MN-major row, which no stored element of D depends on.
  CUTE_DEVICE void load(int k_tile) {
    CUTE_UNROLL
    for (int i = 0; i < size<1>(tXgX); ++i) {
      if (get<0>(tXcX(0, i, 0)) < mn_left) {
        copy(gmem_copy, tXgX(_, i, _, k_tile), tXrX(_, i, _));
      } else {
        clear(tXrX(_, i, _));
      }
    }
  }
  // Stores what was loaded.
  CUTE_DEVICE void store(int stage) const { copy(smem_store, tXrX, tXsX(_, _, _, stage)); }

  // Copies the last k-tile, of which the matrix has `k_left` of k: there a piece, and memory, may end anywhere.
  CUTE_DEVICE void ragged(int k_tile, int stage, int k_left) const {
    using Element = typename TensorS::value_type;
    CUTE_NO_UNROLL
    for (int i = 0; i < size<1>(tXgX); ++i) {
      CUTE_NO_UNROLL
      for (int j = 0; j < size<2>(tXgX); ++j) {
        Tensor source = tXgX(_, i, j, k_tile);     // (CPY)
        Tensor target = tXsX(_, i, j, stage);      // (CPY)
        Tensor piece = make_fragment_like(target);  // (CPY)
        int const mn_here = mn_left - get<0>(tXcX(0, i, j)), k_here = k_left - get<1>(tXcX(0, i, j));
        int const elements = mn_here <= 0 || k_here <= 0 ? 0 : K_MAJOR ? k_here : mn_here;
        if (elements >= size(source)) {
          copy(gmem_copy, source, piece);
        } else {
          CUTE_UNROLL
          for (int e = 0; e < size(source); ++e) piece(e) = e < elements ? Element(atoms::ld_global(&source(e))) : Element(0.f);
        }
        copy(smem_store, piece, target);
      }
    }
  }
};

template <bool K_MAJOR, class SmemStore, class GmemCopy, class TensorG, class TensorS>
CUTE_DEVICE auto make_staged_copy(GmemCopy const& gmem_copy, TensorG const& gX, TensorS const& sX, int mn_left) {
  auto const thread_copy = gmem_copy.get_slice(atoms::thread_index());
  Tensor cX = make_identity_tensor(make_shape(size<0>(gX), size<1>(gX)));  // (BLK_MN, BLK_K) -> (mn, k)
  Tensor tXgX = thread_copy.partition_S(gX);                               // (CPY, CPY_MN, CPY_K, k)
  Tensor tXsX = thread_copy.partition_D(sX);                               // (CPY, CPY_MN, CPY_K, PIPE)
  Tensor tXcX = thread_copy.partition_S(cX);                               // (CPY, CPY_MN, CPY_K)
  Tensor tXrX = make_fragment_like(tXsX(_, _, _, 0));                      // (CPY, CPY_MN, CPY_K)
  using Copy = StagedCopy<K_MAJOR, GmemCopy, SmemStore, decltype(tXgX), decltype(tXsX), decltype(tXcX), decltype(tXrX)>;
  return Copy{gmem_copy, SmemStore{}, tXgX, tXsX, tXcX, tXrX, mn_left};
}

}  // namespace hgemm::with_cute
