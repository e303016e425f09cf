// The kernel without asynchronous copies in CuTe's vocabulary, of sm_75 and, where that is asked for, of later architectures:
// the next k-tile is loaded to registers while one is multiplied, and stored to the other stage before its last k-block.
//
// A Kernel is as hgemm/cute/gemm_sm80.cuh says, with what stores A and B to shared memory besides.
#pragma once

#include <hgemm/cute/gemm_sm80.cuh>
#include <hgemm/cute/operand_sm75.cuh>

namespace hgemm::with_cute {

template <class Kernel>
CUTE_DEVICE void compute_staged_tile(Problem const& problem, Work const& work, SharedStorage<Kernel>& shared) {
  using CtaTiler = typename Kernel::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  static_assert(size<2>(typename Kernel::SmemLayoutA{}) == 2, "a stage is filled while another is read");

  // ---- The matrices, and this CTA's tiles of them -----------------------------------------------------------------
  auto [gA, gB, sA, sB] = operands_of<Kernel>(problem, work, shared);

  // ---- Partitions: global memory to registers to shared memory ----------------------------------------------------
  int const m_left = problem.m - work.tile_m * size<0>(CtaTiler{});
  int const n_left = problem.n - work.tile_n * size<1>(CtaTiler{});
  auto copy_a = make_staged_copy<Kernel::a_k_major, typename Kernel::SmemStoreA>(typename Kernel::GmemCopyA{}, gA, sA, m_left);
  auto copy_b = make_staged_copy<Kernel::b_k_major, typename Kernel::SmemStoreB>(typename Kernel::GmemCopyB{}, gB, sB, n_left);

  // ---- Partitions: products ---------------------------------------------------------------------------------------
  typename Kernel::TiledMma tiled_mma;
  auto thread_mma = tiled_mma.get_slice(atoms::thread_index());
  Tensor tCrA = thread_mma.partition_fragment_A(sA(_, _, 0));             // (MMA, MMA_M, MMA_K)
  Tensor tCrB = thread_mma.partition_fragment_B(sB(_, _, 0));             // (MMA, MMA_N, MMA_K)
  Tensor tCrC = partition_fragment_C(tiled_mma, take<0, 2>(CtaTiler{}));  // (MMA, MMA_M, MMA_N)
  clear(tCrC);

  // ---- Partitions: shared memory to fragments ---------------------------------------------------------------------
  auto read_a = make_fragment_copy(make_tiled_copy_A(typename Kernel::SmemCopyAtomA{}, tiled_mma), sA, tCrA);
  auto read_b = make_fragment_copy(make_tiled_copy_B(typename Kernel::SmemCopyAtomB{}, tiled_mma), sB, tCrB);
  constexpr int k_blocks = size<2>(read_a.fragments);
  constexpr int k_atoms = size<2>(tCrA) / k_blocks;  // instructions along k of what a k-block of fragments holds
  static_assert(k_blocks >= 2, "a k-block is read while another is multiplied");

  // ---- Prologue: the last k-tile, which may be ragged, to shared memory, the first one to registers ---------------
  int const k_tiles = (problem.k + size<2>(CtaTiler{}) - 1) / size<2>(CtaTiler{});
  int k_next = 0;  // the k-tile to load next; zeros are stored once all others are
  auto const load_next = [&] {
    if (k_next >= k_tiles - 1) copy_a.mn_left = copy_b.mn_left = 0;
    copy_a.load(k_next);
    copy_b.load(k_next);
    ++k_next;
  };
  int const k_left = problem.k - (k_tiles - 1) * size<2>(CtaTiler{});
  if (k_tiles == 0) copy_a.mn_left = copy_b.mn_left = 0;
  copy_a.ragged(k_tiles - 1, 0, k_left);
  copy_b.ragged(k_tiles - 1, 0, k_left);
  load_next();

  // ---- Mainloop ---------------------------------------------------------------------------------------------------
  // While a k-block is multiplied, the next one is read. Loads wait for no one from one barrier almost to the next.
  int read_stage = 0;
  atoms::cta_barrier();
  read_a(0, read_stage);
  read_b(0, read_stage);

  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    CUTE_UNROLL
    for (int k_block = 0; k_block < k_blocks; ++k_block) {
      if (k_block == k_blocks - 1) {
        read_stage ^= 1;
        copy_a.store(read_stage);
        copy_b.store(read_stage);
        atoms::cta_barrier();  // the next k-tile is there, and all warps have this one in registers
        load_next();
      }
      int const k_block_next = (k_block + 1) % k_blocks;
      read_a(k_block_next, read_stage);
      read_b(k_block_next, read_stage);
      CUTE_UNROLL
      for (int k = k_block * k_atoms; k < (k_block + 1) * k_atoms; ++k) {
        cute::gemm(tiled_mma, tCrA(_, _, k), tCrB(_, _, k), tCrC);
      }
    }
  }
  atoms::cta_barrier();  // the epilogue overwrites the stages

  // ---- Epilogue ---------------------------------------------------------------------------------------------------
  Tensor sE = make_tensor(make_smem_ptr(shared.epilogue.begin()), typename Kernel::SmemLayoutE{});  // (EPI_M, BLK_N)
  store_tile<Kernel>(problem, work, thread_mma, tCrC, sE);
}

template <class Kernel>
CUTE_DEVICE void gemm_sm75(Problem const& problem) {
  HGEMM_SHARED(SharedStorage<Kernel>, shared);
  Scheduler<Kernel> scheduler(problem);
  Work work;
  while (scheduler.next(work)) compute_staged_tile<Kernel>(problem, work, shared);
}

}  // namespace hgemm::with_cute
