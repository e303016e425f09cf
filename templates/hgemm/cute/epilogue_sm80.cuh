// Accumulators of a TiledMMA to D: activation(alpha * sum + beta * C + bias), staged as floats a slab of rows at a time, and
// stored as whole 16-byte pieces of rows.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/cute/accesses.cuh>
#include <hgemm/epilogue.cuh>
#include <hgemm/scheduler.cuh>

namespace hgemm::with_cute {

using namespace cute;

// C, D and the bias of one product of the batch.
template <class Kernel>
struct Outputs {
  using Out = typename Kernel::ElementOut;

  Problem const& problem;
  Out const* c;  // (M, N)
  Out* d;        // (M, N)
  Out const* bias;

  CUTE_DEVICE Outputs(Problem const& problem, int batch)
      : problem(problem),
        c(static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c),
        d(static_cast<Out*>(problem.d) + batch * problem.batch_stride_d),
        bias(static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias) {}

  // Finishes the sums of WIDTH neighbours of a row, from (row, column) on.
  template <int WIDTH, class Sums>
  CUTE_DEVICE void finish(Sums const& sums, int row, int column) const {
    using Word = uint_bit_t<WIDTH * sizeof_bits_v<Out>>;
    auto const piece = make_layout(Int<WIDTH>{});
    bool const adds_c = Kernel::beta && problem.beta != 0.f;

    Tensor gC = make_tensor(make_gmem_ptr(c + row * problem.ldc + column), piece);  // (WIDTH)
    Tensor gD = make_tensor(make_gmem_ptr(d + row * problem.ldd + column), piece);  // (WIDTH)
    Tensor rC = make_tensor<Out>(piece);                                            // (WIDTH)
    Tensor rD = make_tensor<Out>(piece);                                            // (WIDTH)
    if (adds_c) copy(Copy_Atom<LoadGlobal<Word>, Out>{}, gC, rC);
    CUTE_UNROLL
    for (int e = 0; e < WIDTH; ++e) {
      float x = problem.alpha * sums(e);
      if (adds_c) x += problem.beta * float(rC(e));
      if constexpr (Kernel::bias == Bias::row) x += float(atoms::ld_global(bias + column + e));
      if constexpr (Kernel::bias == Bias::column) x += float(atoms::ld_global(bias + row));
      rD(e) = Out(activate<Kernel::activation>(x));
    }
    copy(Copy_Atom<StoreGlobal<Word>, Out>{}, rD, gD);
  }
};

// Stores a CTA tile by way of sE (EPI_M, BLK_N), EPI_M rows at a time. All threads of the CTA call it.
template <class Kernel, class ThreadMma, class Accumulators, class TensorE>
CUTE_DEVICE void store_tile(Problem const& problem, Work const& work, ThreadMma const& thread_mma, Accumulators const& tCrC,
                            TensorE& sE) {
  constexpr int slab_rows = size<0>(typename Kernel::SmemLayoutE{});
  constexpr int columns = size<1>(typename Kernel::SmemLayoutE{});
  constexpr int piece = 128 / sizeof_bits_v<typename Kernel::ElementOut>;
  constexpr int width = Kernel::align_d < piece ? Kernel::align_d : piece;

  Outputs<Kernel> const outputs(problem, work.batch);
  int const m_first = work.tile_m * size<0>(typename Kernel::CtaTiler{});
  int const n_first = work.tile_n * columns;
  Tensor tCsE = thread_mma.partition_C(sE);                  // (MMA, 1, MMA_N)
  Tensor tCrE = make_fragment_like<float>(tCrC(_, 0, _));    // (MMA, MMA_N)

  CUTE_UNROLL
  for (int slab = 0; slab < size<1>(tCrC); ++slab) {  // registers have no addresses: sums by a constant
    // ---- Registers to shared memory: this thread's sums of EPI_M rows, as pairs of floats ----------------------------
    CUTE_UNROLL
    for (int e = 0; e < size(tCrE); ++e) tCrE(e) = float(tCrC(_, slab, _)(e));
    copy(Copy_Atom<StoreShared<uint64_t>, float>{}, tCrE, tCsE(_, 0, _));
    atoms::cta_barrier();

    // ---- Shared to global memory: a piece of a row a thread ----------------------------------------------------------
    CUTE_NO_UNROLL
    for (int index = atoms::thread_index(); index < slab_rows * (columns / piece); index += Kernel::threads) {
      int const staged = index / (columns / piece), along = index % (columns / piece) * piece;
      int const row = m_first + slab * slab_rows + staged;
      int const column = n_first + along;
      int const left = row < problem.m ? problem.n - column : 0;

      Tensor sums = make_tensor<float>(Int<piece>{});                        // (PIECE)
      Tensor from = local_tile(sE(staged, _), Int<piece>{}, along / piece);  // (PIECE)
      Tensor words = logical_divide(sums, _4{});                             // (4, words)
      copy(Copy_Atom<LoadShared<uint128_t>, float>{}, logical_divide(from, _4{}), words);
      if (left >= piece) {
        Tensor parts = logical_divide(sums, Int<width>{});  // (WIDTH, parts)
        CUTE_UNROLL
        for (int part = 0; part < size<1>(parts); ++part) {
          outputs.template finish<width>(parts(_, part), row, column + part * width);
        }
      } else {
        CUTE_UNROLL
        for (int e = 0; e < piece; ++e) {
          if (e < left) outputs.template finish<1>(logical_divide(sums, _1{})(_, e), row, column + e);
        }
      }
    }
    atoms::cta_barrier();  // the next slab, or the next tile's copies, overwrite these rows
  }
}

}  // namespace hgemm::with_cute
