// The kernel on mma.sync in CuTe's vocabulary: a TiledCopy, swizzled stages, ldmatrix, a TiledMMA.
//
// D (m, n) = activation(alpha * A (m, k) B (k, n) + beta * C (m, n) + bias). A Policy holds the types and constants of one
// kernel; the emitted instance spells them out. Parameters, edges and the order of tiles are those of mma_sync/kernel.cuh.
#pragma once

#include <common/cute_tensor.cuh>

#include <common/scheduler.cuh>
#include <mma_sync/cute_epilogue.cuh>

namespace hgemm::cute_form {

using namespace cute;

// ---- Types --------------------------------------------------------------------------------------------------------

// The epilogue reuses the stages of the mainloop.
template <class Policy>
union SharedStorage {
  struct {
    alignas(128) ArrayEngine<typename Policy::Element, Policy::smem_elements_a> a;
    alignas(128) ArrayEngine<typename Policy::Element, Policy::smem_elements_b> b;
  } mainloop;
  alignas(128) ArrayEngine<float, cosize_v<typename Policy::SmemLayoutE>> epilogue;
};

// Tensor instructions that one warp issues for a k-tile.
template <class Policy>
constexpr int mma_per_k_tile = size(typename Policy::CtaTiler{}) / size(typename Policy::TiledMma::AtomShape_MNK{}) /
                               (Policy::threads / size(typename Policy::TiledMma::AtomThrID{}));

// ---- The matrices, and a CTA's tiles of them ----------------------------------------------------------------------

// The tensor (MN, K) of A or B; MN is m for A and n for B. Either k or mn is contiguous.
template <bool K_MAJOR, class Element>
CUTE_DEVICE auto make_operand(void const* matrix, int64_t batch_offset, int mn, int k, int64_t leading_dimension) {
  auto const pointer = make_gmem_ptr(static_cast<Element const*>(matrix) + batch_offset);
  if constexpr (K_MAJOR) {
    return make_tensor(pointer, make_shape(mn, k), make_stride(leading_dimension, _1{}));
  } else {
    return make_tensor(pointer, make_shape(mn, k), make_stride(_1{}, leading_dimension));
  }
}

// A CTA's tiles of A and B, and their stages: (BLK_M, BLK_K, k), (BLK_N, BLK_K, k), and the same with PIPE for k.
template <class Policy>
CUTE_DEVICE auto operands_of(Problem const& problem, Work const& work, SharedStorage<Policy>& shared) {
  using Element = typename Policy::Element;
  using CtaTiler = typename Policy::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  Tensor mA = make_operand<Policy::a_k_major, Element>(problem.a, work.batch * problem.batch_stride_a, problem.m, problem.k,
                                                       problem.lda);  // (M, K)
  Tensor mB = make_operand<Policy::b_k_major, Element>(problem.b, work.batch * problem.batch_stride_b, problem.n, problem.k,
                                                       problem.ldb);  // (N, K)
  auto const cta_coord = make_coord(work.tile_m, work.tile_n, _);        // (m, n, k)
  Tensor gA = local_tile(mA, CtaTiler{}, cta_coord, Step<_1, X, _1>{});  // (BLK_M, BLK_K, k)
  Tensor gB = local_tile(mB, CtaTiler{}, cta_coord, Step<X, _1, _1>{});  // (BLK_N, BLK_K, k)
  auto& stages_ab = shared.mainloop;
  Tensor sA = make_tensor(make_smem_ptr(stages_ab.a.begin()), typename Policy::SmemLayoutA{});  // (BLK_M, BLK_K, PIPE)
  Tensor sB = make_tensor(make_smem_ptr(stages_ab.b.begin()), typename Policy::SmemLayoutB{});  // (BLK_N, BLK_K, PIPE)
  return cute::make_tuple(gA, gB, sA, sB);
}

// ---- Global to shared memory by cp.async --------------------------------------------------------------------------

// Whether memory may end within a chunk of a tile's last k-tile: of every row if it is K-major, of the last one if it is MN-major.
// Copies leave these chunks out, and copy_ends() copies them by element.
template <bool K_MAJOR>
CUTE_DEVICE bool has_ends(int mn_left, int mn_tile, int k, int chunk) {
  if (chunk == 1 || k == 0) return false;
  return K_MAJOR ? k % chunk != 0 : mn_left < mn_tile && mn_left % chunk != 0;
}

// The end of the k that copies of whole chunks may read.
template <bool K_MAJOR>
CUTE_DEVICE int whole_k(int mn_left, int mn_tile, int k, int chunk) {
  return K_MAJOR ? k / chunk * chunk : k - has_ends<K_MAJOR>(mn_left, mn_tile, k, chunk);
}

// Copies the elements of this thread's chunks of the last k-tile that are left out. The matrix has `k_left` of its k.
template <bool K_MAJOR, class Source, class Target, class Coordinates>
CUTE_DEVICE void copy_ends(Source const& source, Target&& target, Coordinates const& coordinates, int mn_left, int k_left) {
  CUTE_NO_UNROLL
  for (int i = 0; i < size<1>(source); ++i) {
    CUTE_NO_UNROLL
    for (int j = 0; j < size<2>(source); ++j) {
      int const mn_here = mn_left - get<0>(coordinates(0, i, j)), k_here = k_left - get<1>(coordinates(0, i, j));
      bool const ends = K_MAJOR ? k_here < size<0>(source) : k_here == 1;
      CUTE_NO_UNROLL
      for (int e = 0; ends && mn_here > 0 && e < size<0>(source) && e < (K_MAJOR ? k_here : mn_here); ++e) {
        atoms::st_shared(&target(e, i, j), atoms::ld_global(&source(e, i, j)));
      }
    }
  }
}

// What a thread copies of each k-tile. Elements past the end of the matrix are not read and arrive as zeros.
template <bool K_MAJOR, class GmemCopy, class TensorG, class TensorS, class TensorC>
struct CpAsyncCopy {
  GmemCopy gmem_copy;
  TensorG tXgX;  // (CPY, CPY_MN, CPY_K, k)
  TensorS tXsX;  // (CPY, CPY_MN, CPY_K, PIPE)
  TensorC tXcX;  // (CPY, CPY_MN, CPY_K) -> (mn, k) in the CTA tile
  int mn_left;   // of the matrix, from the CTA tile on
  int mn_tile;   // of the CTA tile

  static constexpr int chunk = size<0>(TensorG{});

  CUTE_DEVICE bool has_ends(int k) const { return cute_form::has_ends<K_MAJOR>(mn_left, mn_tile, k, chunk); }

  // Issues the copy of a k-tile, of which the matrix has `k_left` of k, `k` in all. It may read the padding of an MN-major row, on
  // which no stored element of D depends.
  CUTE_DEVICE void operator()(int k_tile, int stage, int k_left, int k) const {
    int const left = k_left - (k - whole_k<K_MAJOR>(mn_left, mn_tile, k, chunk));
    CUTE_UNROLL
    for (int i = 0; i < size<1>(tXgX); ++i) {
      CUTE_UNROLL
      for (int j = 0; j < size<2>(tXgX); ++j) {
        bool const valid = get<0>(tXcX(0, i, j)) < mn_left && get<1>(tXcX(0, i, j)) < left;
        copy(gmem_copy.with(valid), tXgX(_, i, j, k_tile), tXsX(_, i, j, stage));
      }
    }
  }
  CUTE_DEVICE void ends(int k_tile, int stage, int k_left, int k) const {
    if (has_ends(k)) copy_ends<K_MAJOR>(tXgX(_, _, _, k_tile), tXsX(_, _, _, stage), tXcX, mn_left, k_left);
  }
};

template <bool K_MAJOR, class GmemCopy, class TensorG, class TensorS>
CUTE_DEVICE auto make_cp_async_copy(GmemCopy const& gmem_copy, TensorG const& gX, TensorS const& sX, int mn_left) {
  auto const thread_copy = gmem_copy.get_slice(atoms::thread_index());
  Tensor cX = make_identity_tensor(make_shape(size<0>(gX), size<1>(gX)));  // (BLK_MN, BLK_K) -> (mn, k)
  Tensor tXgX = thread_copy.partition_S(gX);                               // (CPY, CPY_MN, CPY_K, k)
  Tensor tXsX = thread_copy.partition_D(sX);                               // (CPY, CPY_MN, CPY_K, PIPE)
  Tensor tXcX = thread_copy.partition_S(cX);                               // (CPY, CPY_MN, CPY_K)
  using Copy = CpAsyncCopy<K_MAJOR, GmemCopy, decltype(tXgX), decltype(tXsX), decltype(tXcX)>;
  return Copy{gmem_copy, tXgX, tXsX, tXcX, mn_left, size<0>(gX)};
}

// ---- Global to shared memory through registers --------------------------------------------------------------------

// What a thread copies of each k-tile. Elements past the end of the matrix are not read and are stored as zeros.
template <bool K_MAJOR, class GmemCopy, class SmemStore, class TensorG, class TensorS, class TensorC, class TensorR>
struct RegisterCopy {
  GmemCopy gmem_copy;
  SmemStore smem_store;
  TensorG tXgX;  // (CPY, CPY_MN, CPY_K, k)
  TensorS tXsX;  // (CPY, CPY_MN, CPY_K, PIPE)
  TensorC tXcX;  // (CPY, CPY_MN, CPY_K) -> (mn, k) in the CTA tile
  TensorR tXrX;  // (CPY, CPY_MN, CPY_K)
  int mn_left;   // of the matrix, from the CTA tile on
  int mn_tile;   // of the CTA tile

  static constexpr int chunk = size<0>(TensorG{});

  CUTE_DEVICE bool has_ends(int k) const { return cute_form::has_ends<K_MAJOR>(mn_left, mn_tile, k, chunk); }

  // Loads a k-tile, of which the matrix has `k_left` of k, `k` in all. It may read the padding of an MN-major row, on which no
  // stored element of D depends.
  CUTE_DEVICE void load(int k_tile, int k_left, int k) {
    int const left = k_left - (k - whole_k<K_MAJOR>(mn_left, mn_tile, k, chunk));
    CUTE_UNROLL
    for (int i = 0; i < size<1>(tXgX); ++i) {
      CUTE_UNROLL
      for (int j = 0; j < size<2>(tXgX); ++j) {
        if (get<0>(tXcX(0, i, j)) < mn_left && get<1>(tXcX(0, i, j)) < left) {
          copy(gmem_copy, tXgX(_, i, j, k_tile), tXrX(_, i, j));
        } else {
          clear(tXrX(_, i, j));
        }
      }
    }
  }
  // Stores what was loaded.
  CUTE_DEVICE void store(int stage) const { copy(smem_store, tXrX, tXsX(_, _, _, stage)); }

  CUTE_DEVICE void ends(int k_tile, int stage, int k_left, int k) const {
    if (has_ends(k)) copy_ends<K_MAJOR>(tXgX(_, _, _, k_tile), tXsX(_, _, _, stage), tXcX, mn_left, k_left);
  }
};

template <bool K_MAJOR, class SmemStore, class GmemCopy, class TensorG, class TensorS>
CUTE_DEVICE auto make_register_copy(GmemCopy const& gmem_copy, TensorG const& gX, TensorS const& sX, int mn_left) {
  auto const thread_copy = gmem_copy.get_slice(atoms::thread_index());
  Tensor cX = make_identity_tensor(make_shape(size<0>(gX), size<1>(gX)));  // (BLK_MN, BLK_K) -> (mn, k)
  Tensor tXgX = thread_copy.partition_S(gX);                               // (CPY, CPY_MN, CPY_K, k)
  Tensor tXsX = thread_copy.partition_D(sX);                               // (CPY, CPY_MN, CPY_K, PIPE)
  Tensor tXcX = thread_copy.partition_S(cX);                               // (CPY, CPY_MN, CPY_K)
  Tensor tXrX = make_fragment_like(tXsX(_, _, _, 0));                      // (CPY, CPY_MN, CPY_K)
  using Copy = RegisterCopy<K_MAJOR, GmemCopy, SmemStore, decltype(tXgX), decltype(tXsX), decltype(tXcX), decltype(tXrX)>;
  return Copy{gmem_copy, SmemStore{}, tXgX, tXsX, tXcX, tXrX, mn_left, size<0>(gX)};
}

// ---- Shared memory to fragments -----------------------------------------------------------------------------------

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

// From stages (BLK_MN, BLK_K, PIPE) to fragments (MMA, MMA_MN, MMA_K).
template <class SmemCopy, class Stages, class Fragments>
CUTE_DEVICE auto make_fragment_copy(SmemCopy const& smem_copy, Stages const& stages, Fragments& fragments) {
  auto thread_copy = smem_copy.get_slice(atoms::thread_index());
  auto tXs = thread_copy.partition_S(stages);      // (CPY, CPY_MN, CPY_K, PIPE)
  auto tXr = thread_copy.retile_D(fragments);      // (CPY, CPY_MN, CPY_K)
  return FragmentCopy<SmemCopy, decltype(tXs), decltype(tXr)>{smem_copy, tXs, tXr};
}

// ---- One CTA tile, by cp.async ------------------------------------------------------------------------------------

template <class Policy>
CUTE_DEVICE void compute_tile_cp_async(Problem const& problem, Work const& work, SharedStorage<Policy>& shared) {
  using CtaTiler = typename Policy::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  constexpr int stages = size<2>(typename Policy::SmemLayoutA{});
  static_assert(stages >= 2, "a stage is filled while another is read");

  // ---- The matrices, and this CTA's tiles of them -------------------------------------------------------------------
  auto [gA, gB, sA, sB] = operands_of<Policy>(problem, work, shared);  // (BLK_MN, BLK_K, k), (BLK_MN, BLK_K, PIPE)

  // ---- Partitions: global to shared memory --------------------------------------------------------------------------
  int const m_left = problem.m - work.tile_m * size<0>(CtaTiler{});
  int const n_left = problem.n - work.tile_n * size<1>(CtaTiler{});
  auto copy_a = make_cp_async_copy<Policy::a_k_major>(typename Policy::GmemCopyA{}, gA, sA, m_left);
  auto copy_b = make_cp_async_copy<Policy::b_k_major>(typename Policy::GmemCopyB{}, gB, sB, n_left);

  // ---- Partitions: products -----------------------------------------------------------------------------------------
  typename Policy::TiledMma tiled_mma;
  auto thread_mma = tiled_mma.get_slice(atoms::thread_index());
  Tensor tCrA = thread_mma.partition_fragment_A(sA(_, _, 0));             // (MMA, MMA_M, MMA_K)
  Tensor tCrB = thread_mma.partition_fragment_B(sB(_, _, 0));             // (MMA, MMA_N, MMA_K)
  Tensor tCrC = partition_fragment_C(tiled_mma, take<0, 2>(CtaTiler{}));  // (MMA, MMA_M, MMA_N)
  clear(tCrC);

  // ---- Partitions: shared memory to fragments -----------------------------------------------------------------------
  auto read_a = make_fragment_copy(make_tiled_copy_A(typename Policy::SmemCopyAtomA{}, tiled_mma), sA, tCrA);
  auto read_b = make_fragment_copy(make_tiled_copy_B(typename Policy::SmemCopyAtomB{}, tiled_mma), sB, tCrB);

  // ---- Prologue: the k-tiles that fill all stages but one -------------------------------------------------------------
  constexpr int tile_k = size<2>(CtaTiler{});
  int const k_tiles = (problem.k + tile_k - 1) / tile_k;
  int k_next = 0;  // the k-tile to copy next; after the last one, zeros are copied
  auto const copy_next = [&](int stage) {
    copy_a(k_next, stage, problem.k - k_next * tile_k, problem.k);
    copy_b(k_next, stage, problem.k - k_next * tile_k, problem.k);
    ++k_next;
    cp_async_fence();
  };
  CUTE_NO_UNROLL
  for (int stage = 0; stage < stages - 1; ++stage) copy_next(stage);

  // ---- Mainloop: while a k-block is multiplied, the next one is read; a k-tile's first k-block fills the free stage ----
  constexpr int k_blocks = size<2>(tCrA);
  static_assert(k_blocks >= 2, "a k-block is read while another is multiplied");
  int read_stage = 0, write_stage = stages - 1;

  cp_async_wait<stages - 2>();
  atoms::cta_barrier();
  read_a(0, read_stage);
  read_b(0, read_stage);

  // If copies leave out elements of the last k-tile, the loop ends before it and begins again.
  int k_tile = 0, until = k_tiles - (copy_a.has_ends(problem.k) || copy_b.has_ends(problem.k));
  CUTE_NO_UNROLL
  for (;;) {
    CUTE_NO_UNROLL
    for (; k_tile < until; ++k_tile) {
      CUTE_UNROLL
      for (int k_block = 0; k_block < k_blocks; ++k_block) {
        if (k_block == k_blocks - 1) {
          read_stage = read_stage + 1 == stages ? 0 : read_stage + 1;
          cp_async_wait<stages - 2>();
          atoms::cta_barrier();  // the next k-tile is in shared memory, and all warps have this one in registers
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
    if (k_tile == k_tiles) break;
    atoms::cta_barrier();  // all warps have read the first block without the ends
    copy_a.ends(k_tile, read_stage, problem.k - k_tile * tile_k, problem.k);
    copy_b.ends(k_tile, read_stage, problem.k - k_tile * tile_k, problem.k);
    atoms::cta_barrier();
    read_a(0, read_stage);
    read_b(0, read_stage);
    until = k_tiles;
  }
  cp_async_wait<0>();
  atoms::cta_barrier();  // the epilogue overwrites the stages

  // ---- Epilogue ------------------------------------------------------------------------------------------------------
  Tensor sE = make_tensor(make_smem_ptr(shared.epilogue.begin()), typename Policy::SmemLayoutE{});  // (EPI_M, BLK_N)
  store_tile<Policy>(problem, work, thread_mma, tCrC, sE);
}

// ---- One CTA tile, through registers ------------------------------------------------------------------------------

// The next k-tile is loaded to registers while one is multiplied, and stored to the other stage before its last k-block.
template <class Policy>
CUTE_DEVICE void compute_tile_register_copy(Problem const& problem, Work const& work, SharedStorage<Policy>& shared) {
  using CtaTiler = typename Policy::CtaTiler;  // (BLK_M, BLK_N, BLK_K)
  static_assert(size<2>(typename Policy::SmemLayoutA{}) == 2, "a stage is filled while another is read");

  // ---- The matrices, and this CTA's tiles of them -----------------------------------------------------------------
  auto [gA, gB, sA, sB] = operands_of<Policy>(problem, work, shared);  // (BLK_MN, BLK_K, k), (BLK_MN, BLK_K, PIPE)

  // ---- Partitions: global memory to registers to shared memory ----------------------------------------------------
  int const m_left = problem.m - work.tile_m * size<0>(CtaTiler{});
  int const n_left = problem.n - work.tile_n * size<1>(CtaTiler{});
  using SmemStoreA = typename Policy::SmemStoreA;
  using SmemStoreB = typename Policy::SmemStoreB;
  auto copy_a = make_register_copy<Policy::a_k_major, SmemStoreA>(typename Policy::GmemCopyA{}, gA, sA, m_left);
  auto copy_b = make_register_copy<Policy::b_k_major, SmemStoreB>(typename Policy::GmemCopyB{}, gB, sB, n_left);

  // ---- Partitions: products ---------------------------------------------------------------------------------------
  typename Policy::TiledMma tiled_mma;
  auto thread_mma = tiled_mma.get_slice(atoms::thread_index());
  Tensor tCrA = thread_mma.partition_fragment_A(sA(_, _, 0));             // (MMA, MMA_M, MMA_K)
  Tensor tCrB = thread_mma.partition_fragment_B(sB(_, _, 0));             // (MMA, MMA_N, MMA_K)
  Tensor tCrC = partition_fragment_C(tiled_mma, take<0, 2>(CtaTiler{}));  // (MMA, MMA_M, MMA_N)
  clear(tCrC);

  // ---- Partitions: shared memory to fragments ---------------------------------------------------------------------
  auto read_a = make_fragment_copy(make_tiled_copy_A(typename Policy::SmemCopyAtomA{}, tiled_mma), sA, tCrA);
  auto read_b = make_fragment_copy(make_tiled_copy_B(typename Policy::SmemCopyAtomB{}, tiled_mma), sB, tCrB);
  constexpr int k_blocks = size<2>(read_a.fragments);
  constexpr int k_atoms = size<2>(tCrA) / k_blocks;  // instructions along k in a k-block of fragments
  static_assert(k_blocks >= 2, "a k-block is read while another is multiplied");

  // ---- Prologue: the first k-tile to shared memory, the next one to registers ---------------------------------------
  constexpr int tile_k = size<2>(CtaTiler{});
  int const k_tiles = (problem.k + tile_k - 1) / tile_k;
  int k_next = 0;  // the k-tile to load next; after the last one, zeros are stored
  auto const load_next = [&] {
    copy_a.load(k_next, problem.k - k_next * tile_k, problem.k);
    copy_b.load(k_next, problem.k - k_next * tile_k, problem.k);
    ++k_next;
  };
  load_next();
  copy_a.store(0);
  copy_b.store(0);
  load_next();

  // ---- Mainloop: while a k-block is multiplied, the next one is read ------------------------------------------------
  int read_stage = 0;
  atoms::cta_barrier();
  read_a(0, read_stage);
  read_b(0, read_stage);

  // If loads leave out elements of the last k-tile, the loop ends before it and begins again.
  int k_tile = 0, until = k_tiles - (copy_a.has_ends(problem.k) || copy_b.has_ends(problem.k));
  CUTE_NO_UNROLL
  for (;;) {
    CUTE_NO_UNROLL
    for (; k_tile < until; ++k_tile) {
      CUTE_UNROLL
      for (int k_block = 0; k_block < k_blocks; ++k_block) {
        if (k_block == k_blocks - 1) {
          read_stage ^= 1;
          copy_a.store(read_stage);
          copy_b.store(read_stage);
          atoms::cta_barrier();  // the next k-tile is in shared memory, and all warps have this one in registers
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
    if (k_tile == k_tiles) break;
    atoms::cta_barrier();  // all warps have read the first block without the ends
    copy_a.ends(k_tile, read_stage, problem.k - k_tile * tile_k, problem.k);
    copy_b.ends(k_tile, read_stage, problem.k - k_tile * tile_k, problem.k);
    atoms::cta_barrier();
    read_a(0, read_stage);
    read_b(0, read_stage);
    until = k_tiles;
  }
  atoms::cta_barrier();  // the epilogue overwrites the stages

  // ---- Epilogue ---------------------------------------------------------------------------------------------------
  Tensor sE = make_tensor(make_smem_ptr(shared.epilogue.begin()), typename Policy::SmemLayoutE{});  // (EPI_M, BLK_N)
  store_tile<Policy>(problem, work, thread_mma, tCrC, sE);
}

// ---- Kernel -------------------------------------------------------------------------------------------------------

template <class Policy>
CUTE_DEVICE void gemm(Problem const& problem) {
  HGEMM_SHARED(SharedStorage<Policy>, shared);
  Scheduler<Policy> scheduler(problem);
  Work work;
  while (scheduler.next(work)) {
    if constexpr (Policy::copy == hgemm::Copy::cp_async) {
      compute_tile_cp_async<Policy>(problem, work, shared);
    } else {
      compute_tile_register_copy<Policy>(problem, work, shared);
    }
  }
}

}  // namespace hgemm::cute_form
