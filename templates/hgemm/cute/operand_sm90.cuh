// One operand of a CTA tile on its way from global to shared memory, boxes of the TMA.
#pragma once

#include <hgemm/cute/tensor.cuh>
#include <cute/atom/copy_traits_sm90_tma.hpp>

#include <hgemm/cute/pipeline_sm90.cuh>

namespace hgemm::with_cute {

using namespace cute;

// The coordinates (MN, K) in the map of a matrix, MN being m for A and n for B; the map counts the contiguous index first.
template <bool K_MAJOR>
CUTE_DEVICE auto make_map_tensor(int mn, int k, int batches, int batch) {
  auto const shape = make_shape(mn, k, batches);
  if constexpr (K_MAJOR) {
    return make_coord_tensor(make_layout(shape, make_stride(E<1>{}, E<0>{}, E<2>{})))(_, _, batch);
  } else {
    return make_coord_tensor(make_layout(shape, make_stride(E<0>{}, E<1>{}, E<2>{})))(_, _, batch);
  }
}

// The copy of a box of BOX elements by a map that the launcher encoded: CuTe encodes maps on the host only. CTAs that share a
// box bring a slice of it each.
template <class CopyOp, class Element, int BOX>
struct TmaLoad {
  static constexpr bool multicast = is_same_v<CopyOp, SM90_TMA_LOAD_MULTICAST_OP>;
  using Atom = Copy_Atom<Copy_Traits<CopyOp, Int<BOX * sizeof_bits_v<Element>>>, Element>;

  TmaDescriptor const* map;
  uint16_t receivers;  // CTAs of the cluster, a bit each

  // Counts what arrives at `full`.
  CUTE_DEVICE Atom with(ClusterTransactionBarrier& full) const { return with(reinterpret_cast<uint64_t*>(&full)); }
  CUTE_DEVICE Atom with(uint64_t* barrier) const {
    constexpr auto hint = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
    if constexpr (multicast) {
      return Atom{{map, barrier, receivers, hint}};
    } else {
      return Atom{{map, barrier, hint}};
    }
  }

  // Partitions gX (BLK_MN, BLK_K, k) and sX (BLK_MN, BLK_K, PIPE) into ((TMA, BOXES), k) and ((TMA, BOXES), PIPE): of each box
  // the slice of the CTA that is number `slice` of SLICES.
  template <int SLICES, class TensorG, class TensorS>
  CUTE_DEVICE auto partition(int slice, TensorG const& gX, TensorS const& sX) const {
    return tma_partition(with(nullptr), slice, Layout<Int<SLICES>>{}, group_modes<0, 2>(sX), group_modes<0, 2>(gX));
  }
};

}  // namespace hgemm::with_cute
