// Accumulators of a TiledMMA to D: activation(alpha * accumulator + beta * C + bias). A slab of rows at a time goes through
// shared memory as floats, and is stored as whole 16-byte vectors.
#pragma once

#include <common/cute_tensor.cuh>

#include <common/activation.cuh>
#include <common/expression.cuh>
#include <common/scheduler.cuh>

namespace hgemm::cute_form {

using namespace cute;

// C, D and the bias of one product of the batch.
template <class Policy>
struct Outputs {
  using Out = typename Policy::ElementOut;

  Problem const& problem;
  Out const* c;  // (M, N)
  Out* d;        // (M, N)
  Out const* bias;
  int batch;

  CUTE_DEVICE Outputs(Problem const& problem, int batch)
      : problem(problem),
        c(static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c),
        d(static_cast<Out*>(problem.d) + batch * problem.batch_stride_d),
        bias(static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias),
        batch(batch) {}

  // Computes and stores WIDTH neighbours of a row, from (row, column) on.
  template <int WIDTH, class Values>
  CUTE_DEVICE void store_vec(Values const& values, int row, int column) const {
    using Word = uint_bit_t<WIDTH * sizeof_bits_v<Out>>;
    auto const layout = make_layout(Int<WIDTH>{});
    bool const adds_c = Policy::beta && problem.beta != 0.f;

    Tensor gC = make_tensor(make_gmem_ptr(c + row * problem.ldc + column), layout);  // (WIDTH)
    Tensor gD = make_tensor(make_gmem_ptr(d + row * problem.ldd + column), layout);  // (WIDTH)
    Tensor rC = make_tensor<Out>(layout);                                            // (WIDTH)
    Tensor rD = make_tensor<Out>(layout);                                            // (WIDTH)
    if constexpr (has_expression<Policy>) {
      NeighbourInputs<Policy, WIDTH> inputs;
      NoOutputs none;
      inputs.load(NeighboursAt{aux_of<Policy>(problem), batch, row, column});
      CUTE_UNROLL
      for (int e = 0; e < WIDTH; ++e) rD(e) = Out(Policy::Expression::apply(values(e), 0.f, inputs, none, problem, e));
    } else {
      if (adds_c) copy(Copy_Atom<LoadGlobal<Word>, Out>{}, gC, rC);
      CUTE_UNROLL
      for (int e = 0; e < WIDTH; ++e) {
        float x = problem.alpha * values(e);
        if (adds_c) x += problem.beta * float(rC(e));
        if constexpr (Policy::bias == Bias::row) x += float(atoms::ld_global(bias + column + e));
        if constexpr (Policy::bias == Bias::column) x += float(atoms::ld_global(bias + row));
        rD(e) = Out(Policy::Activation::apply(x));
      }
    }
    copy(Copy_Atom<StoreGlobal<Word>, Out>{}, rD, gD);
  }
};

// Stores a CTA tile through sE (EPI_M, BLK_N), EPI_M rows at a time. All threads of the CTA call it.
template <class Policy, class ThreadMma, class Accumulators, class TensorE>
CUTE_DEVICE void store_tile(Problem const& problem, Work const& work, ThreadMma const& thread_mma, Accumulators const& tCrC,
                            TensorE& sE) {
  constexpr int slab_rows = size<0>(typename Policy::SmemLayoutE{});
  constexpr int columns = size<1>(typename Policy::SmemLayoutE{});
  constexpr int vec_elements = 128 / sizeof_bits_v<typename Policy::ElementOut>;
  constexpr int width = Policy::align_d < vec_elements ? Policy::align_d : vec_elements;

  Outputs<Policy> const outputs(problem, work.batch);
  int const m_first = work.tile_m * size<0>(typename Policy::CtaTiler{});
  int const n_first = work.tile_n * columns;
  Tensor tCsE = thread_mma.partition_C(sE);                  // (MMA, 1, MMA_N)
  Tensor tCrE = make_fragment_like<float>(tCrC(_, 0, _));    // (MMA, MMA_N)

  CUTE_UNROLL
  for (int slab = 0; slab < size<1>(tCrC); ++slab) {  // unrolled: registers have no addresses
    // ---- Registers to shared memory: this thread's accumulators of EPI_M rows, as pairs of floats --------------------
    CUTE_UNROLL
    for (int e = 0; e < size(tCrE); ++e) tCrE(e) = float(tCrC(_, slab, _)(e));
    copy(Copy_Atom<StoreShared<uint64_t>, float>{}, tCrE, tCsE(_, 0, _));
    atoms::cta_barrier();

    // ---- Shared to global memory: one vector of a row per thread -----------------------------------------------------
    CUTE_NO_UNROLL
    for (int index = atoms::thread_index(); index < slab_rows * (columns / vec_elements); index += Policy::threads) {
      int const slab_row = index / (columns / vec_elements), along = index % (columns / vec_elements) * vec_elements;
      int const row = m_first + slab * slab_rows + slab_row;
      int const column = n_first + along;
      int const left = row < problem.m ? problem.n - column : 0;

      Tensor values = make_tensor<float>(Int<vec_elements>{});                             // (VEC)
      Tensor from = local_tile(sE(slab_row, _), Int<vec_elements>{}, along / vec_elements);  // (VEC)
      Tensor words = logical_divide(values, _4{});                                         // (4, words)
      copy(Copy_Atom<LoadShared<uint128_t>, float>{}, logical_divide(from, _4{}), words);
      if (left >= vec_elements) {
        Tensor parts = logical_divide(values, Int<width>{});  // (WIDTH, parts)
        CUTE_UNROLL
        for (int part = 0; part < size<1>(parts); ++part) {
          outputs.template store_vec<width>(parts(_, part), row, column + part * width);
        }
      } else {
        CUTE_UNROLL
        for (int e = 0; e < vec_elements; ++e) {
          if (e < left) outputs.template store_vec<1>(logical_divide(values, _1{})(_, e), row, column + e);
        }
      }
    }
    atoms::cta_barrier();  // the next slab, or the next tile's copies, overwrite these rows
  }
}

}  // namespace hgemm::cute_form
