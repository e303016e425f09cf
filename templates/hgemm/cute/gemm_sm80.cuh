// The kernel of sm_80 and later in CuTe's vocabulary: a TiledCopy of cp.async, swizzled stages, ldmatrix, a TiledMMA.
//
// A Kernel holds the types and numbers of one variant, which the emitted text spells out. D (m, n) = activation(alpha *
// A (m, k) B (k, n) + beta * C (m, n) + bias), with the parameters, the edges and the order of tiles of hgemm/gemm_sm80.cuh.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/cute/epilogue_sm80.cuh>
#include <hgemm/cute/operand_sm80.cuh>
#include <hgemm/scheduler.cuh>

namespace hgemm::with_cute {

using namespace cute;

// The stages of the mainloop and, in the same place once those are done with, the rows that the epilogue stages.
template <class Kernel>
union SharedStorage {
  struct {
    alignas(128) ArrayEngine<typename Kernel::Element, Kernel::smem_elements_a> a;
    alignas(128) ArrayEngine<typename Kernel::Element, Kernel::smem_elements_b> b;
  } mainloop;
  alignas(128) ArrayEngine<float, cosize_v<typename Kernel::SmemLayoutE>> epilogue;
};

// Tensor instructions that one warp issues for a k-tile.
template <class Kernel>
constexpr int mma_per_k_tile = size(typename Kernel::CtaTiler{}) / size(typename Kernel::TiledMma::AtomShape_MNK{}) /
                               (Kernel::threads / size(typename Kernel::TiledMma::AtomThrID{}));

// A CTA's tiles of A and B, and their stages in shared memory: (BLK_M, BLK_K, k), (BLK_N, BLK_K, k), and with PIPE for k.
template <class Kernel>
CUTE_DEVICE auto operands_of(Problem const& problem, Work const& work, SharedStorage<Kernel>& shared) {
  using Element = typename Kernel::Element;
  using CtaTiler = typename Kernel::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  Tensor mA = make_operand<Kernel::a_k_major, Element>(problem.a, work.batch * problem.batch_stride_a, problem.m, problem.k,
                                                       problem.lda);  // (M, K)
  Tensor mB = make_operand<Kernel::b_k_major, Element>(problem.b, work.batch * problem.batch_stride_b, problem.n, problem.k,
                                                       problem.ldb);  // (N, K)
  auto const cta_coord = make_coord(work.tile_m, work.tile_n, _);        // (m, n, k)
  Tensor gA = local_tile(mA, CtaTiler{}, cta_coord, Step<_1, X, _1>{});  // (BLK_M, BLK_K, k)
  Tensor gB = local_tile(mB, CtaTiler{}, cta_coord, Step<X, _1, _1>{});  // (BLK_N, BLK_K, k)
  auto& stages_ab = shared.mainloop;
  Tensor sA = make_tensor(make_smem_ptr(stages_ab.a.begin()), typename Kernel::SmemLayoutA{});  // (BLK_M, BLK_K, PIPE)
  Tensor sB = make_tensor(make_smem_ptr(stages_ab.b.begin()), typename Kernel::SmemLayoutB{});  // (BLK_N, BLK_K, PIPE)
  return cute::make_tuple(gA, gB, sA, sB);
}

// Reads an operand's k-blocks to a thread's fragments.
template <class SmemCopy, class Stages, class Fragments>
struct FragmentCopy {
  SmemCopy smem_copy;
  Stages stages;        // (CPY, CPY_MN, CPY_K, PIPE)
  Fragments fragments;  // (CPY, CPY_MN, CPY_K)

  CUTE_DEVICE void operator()(int k_block, int stage) {
    copy(smem_copy, stages(_, _, k_block, stage), fragments(_, _, k_block));
  }
};

// That of stages (BLK_MN, BLK_K, PIPE) to fragments (MMA, MMA_MN, MMA_K).
template <class SmemCopy, class Stages, class Fragments>
CUTE_DEVICE auto make_fragment_copy(SmemCopy const& smem_copy, Stages const& stages, Fragments& fragments) {
  auto thread_copy = smem_copy.get_slice(atoms::thread_index());
  auto tXs = thread_copy.partition_S(stages);
  auto tXr = thread_copy.retile_D(fragments);
  return FragmentCopy<SmemCopy, decltype(tXs), decltype(tXr)>{smem_copy, tXs, tXr};
}

template <class Kernel>
CUTE_DEVICE void compute_tile(Problem const& problem, Work const& work, SharedStorage<Kernel>& shared) {
  using CtaTiler = typename Kernel::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  constexpr int stages = size<2>(typename Kernel::SmemLayoutA{});
  static_assert(stages >= 2, "a stage is filled while another is read");

  // ---- The matrices, and this CTA's tiles of them -------------------------------------------------------------------
  auto [gA, gB, sA, sB] = operands_of<Kernel>(problem, work, shared);

  // ---- Partitions: global to shared memory --------------------------------------------------------------------------
  int const m_left = problem.m - work.tile_m * size<0>(CtaTiler{});
  int const n_left = problem.n - work.tile_n * size<1>(CtaTiler{});
  auto copy_a = make_operand_copy<Kernel::a_k_major>(typename Kernel::GmemCopyA{}, gA, sA, m_left);
  auto copy_b = make_operand_copy<Kernel::b_k_major>(typename Kernel::GmemCopyB{}, gB, sB, n_left);

  // ---- Partitions: products -----------------------------------------------------------------------------------------
  typename Kernel::TiledMma tiled_mma;
  auto thread_mma = tiled_mma.get_slice(atoms::thread_index());
  Tensor tCrA = thread_mma.partition_fragment_A(sA(_, _, 0));             // (MMA, MMA_M, MMA_K)
  Tensor tCrB = thread_mma.partition_fragment_B(sB(_, _, 0));             // (MMA, MMA_N, MMA_K)
  Tensor tCrC = partition_fragment_C(tiled_mma, take<0, 2>(CtaTiler{}));  // (MMA, MMA_M, MMA_N)
  clear(tCrC);

  // ---- Partitions: shared memory to fragments -----------------------------------------------------------------------
  auto read_a = make_fragment_copy(make_tiled_copy_A(typename Kernel::SmemCopyAtomA{}, tiled_mma), sA, tCrA);
  auto read_b = make_fragment_copy(make_tiled_copy_B(typename Kernel::SmemCopyAtomB{}, tiled_mma), sB, tCrB);

  // ---- Prologue: the last k-tile, which may be ragged, then those that fill the other stages but one -----------------
  int const k_tiles = (problem.k + size<2>(CtaTiler{}) - 1) / size<2>(CtaTiler{});
  int k_next = 0;  // the k-tile to copy next; zeros are copied once all others are
  auto const copy_next = [&](int stage) {
    if (k_next == k_tiles - 1) copy_a.mn_left = copy_b.mn_left = 0;
    copy_a.whole(k_next, stage);
    copy_b.whole(k_next, stage);
    ++k_next;
    cp_async_fence();
  };
  if (k_tiles > 0) {
    int const k_left = problem.k - (k_tiles - 1) * size<2>(CtaTiler{});
    copy_a.ragged(k_tiles - 1, 0, k_left);
    copy_b.ragged(k_tiles - 1, 0, k_left);
  } else {
    copy_a.mn_left = copy_b.mn_left = 0;
    copy_a.whole(0, 0);
    copy_b.whole(0, 0);
  }
  cp_async_fence();
  CUTE_NO_UNROLL
  for (int stage = 1; stage < stages - 1; ++stage) copy_next(stage);

  // ---- Mainloop ------------------------------------------------------------------------------------------------------
  // While a k-block is multiplied, the next one is read; in the first of a k-tile, the free stage begins to be filled.
  constexpr int k_blocks = size<2>(tCrA);
  static_assert(k_blocks >= 2, "a k-block is read while another is multiplied");
  int read_stage = 0, write_stage = stages - 1;

  cp_async_wait<stages - 2>();
  atoms::cta_barrier();
  read_a(0, read_stage);
  read_b(0, read_stage);

  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    CUTE_UNROLL
    for (int k_block = 0; k_block < k_blocks; ++k_block) {
      if (k_block == k_blocks - 1) {
        read_stage = read_stage + 1 == stages ? 0 : read_stage + 1;
        cp_async_wait<stages - 2>();
        atoms::cta_barrier();  // the next k-tile is there, and all warps have this one in registers
      }
      int const k_block_next = (k_block + 1) % k_blocks;
      read_a(k_block_next, read_stage);
      read_b(k_block_next, read_stage);
      if (k_block == 0) {
        copy_next(write_stage);
        write_stage = write_stage + 1 == stages ? 0 : write_stage + 1;
      }
      cute::gemm(tiled_mma, tCrA(_, _, k_block), tCrB(_, _, k_block), tCrC);
    }
  }
  cp_async_wait<0>();
  atoms::cta_barrier();  // the epilogue overwrites the stages

  // ---- Epilogue ------------------------------------------------------------------------------------------------------
  Tensor sE = make_tensor(make_smem_ptr(shared.epilogue.begin()), typename Kernel::SmemLayoutE{});  // (EPI_M, BLK_N)
  store_tile<Kernel>(problem, work, thread_mma, tCrC, sE);
}

template <class Kernel>
CUTE_DEVICE void gemm_sm80(Problem const& problem) {
  HGEMM_SHARED(SharedStorage<Kernel>, shared);
  Scheduler<Kernel> scheduler(problem);
  Work work;
  while (scheduler.next(work)) compute_tile<Kernel>(problem, work, shared);
}

}  // namespace hgemm::with_cute
