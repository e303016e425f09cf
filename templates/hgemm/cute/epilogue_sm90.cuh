// Accumulators of a TiledMMA on wgmma to D: activation(alpha * sum + beta * C + bias), one EPI_M x EPI_N part after another,
// by way of shared memory and the TMA, or stored by each thread where its elements lie.
#pragma once

#include <hgemm/cute/tensor.cuh>

#include <hgemm/cute/accesses.cuh>
#include <hgemm/cute/operand_sm90.cuh>
#include <hgemm/epilogue.cuh>

namespace hgemm::with_cute {

using namespace cute;

enum class Store { direct, tma };

// A matrix like D (M, N) as the kernel sees it: rows are D's, or its columns where operands are swapped.
template <bool SWAPPED, class T>
CUTE_DEVICE auto make_output(T* first, Problem const& problem, int64_t leading_dimension) {
  if constexpr (SWAPPED) {
    return make_tensor(make_gmem_ptr(first), make_shape(problem.n, problem.m), make_stride(_1{}, leading_dimension));
  } else {
    return make_tensor(make_gmem_ptr(first), make_shape(problem.m, problem.n), make_stride(leading_dimension, _1{}));
  }
}

// What a consumer warpgroup does with its sums.
template <class Kernel>
struct Epilogue {
  using Out = typename Kernel::ElementOut;
  using EpiTile = typename Kernel::EpiTile;          // (EPI_M, EPI_N)
  using SmemLayoutD = typename Kernel::SmemLayoutD;  // (EPI_M, EPI_N, PIPE_D)

  static constexpr bool swapped = Kernel::swapped;
  static constexpr int rows = size<0>(EpiTile{}), columns = size<1>(EpiTile{}), stages = size<2>(SmemLayoutD{});
  static constexpr int values = rows * columns / 128;  // that a thread has of a part
  static constexpr int piece = 128 / sizeof_bits_v<Out>;
  static constexpr bool curved = Kernel::activation == Activation::gelu || Kernel::activation == Activation::silu;
  static constexpr bool paired = !swapped && Kernel::align_d >= 2;  // one access may serve two neighbours of a row

  using ValueLayout = SM90::GMMA::CLayout_64xN<columns>;  // (T, V) -> EPI_M x EPI_N

  Problem const& problem;
  TmaDescriptor const* map;
  Out* staged;  // this warpgroup's (EPI_M, EPI_N, PIPE_D)
  int consumer;
  bool issues;  // whether this thread issues the warpgroup's stores
  int stage = 0;

  CUTE_DEVICE static int thread() { return atoms::thread_index() % 128; }

  // Finishes the sums tCrC (MMA, MMA_M, 1) of a tile whose first element is (m_first, n_first); the warpgroup's blocks of 64
  // rows lie `block_rows` apart. Where all is plain the parts are written out; what is rare or long is there once, in a loop.
  template <class Accumulators>
  CUTE_DEVICE void run(Accumulators const& tCrC, int batch, int m_first, int n_first, int block_rows) {
    constexpr int across = size<1>(typename Kernel::CtaTiler{}) / columns;
    constexpr int parts = decltype(size(tCrC))::value / values;
    static_assert(across * columns == size<1>(typename Kernel::CtaTiler{}), "a tile is whole parts");
    Tensor tPrC = make_tensor(tCrC.data(), make_shape(Int<values>{}, Int<parts>{}));  // (V, PARTS), along n first
    bool const adds_c = Kernel::beta && problem.beta != 0.f;

    if (!curved && !adds_c && (Kernel::store == Store::direct || problem.n % piece == 0)) {
      CUTE_UNROLL
      for (int part = 0; part < parts; ++part) {
        store_part<true>(tPrC(_, part), batch, m_first + part / across * block_rows, n_first + part % across * columns, false);
      }
    } else {
      CUTE_NO_UNROLL
      for (int part = 0; part < parts; ++part) {
        Tensor sums = make_fragment_like(tPrC(_, _0{}));  // (V)
        CUTE_UNROLL
        for (int here = 0; here < parts; ++here) {  // registers have no addresses: each part by a branch of its own
          if (here == part) copy(tPrC(_, here), sums);
        }
        store_part<false>(sums, batch, m_first + part / across * block_rows, n_first + part % across * columns, adds_c);
      }
    }
  }

  // Waits until the TMA has read all that was staged.
  CUTE_DEVICE void finish() const {
    if (Kernel::store == Store::tma && issues) tma_store_wait<0>();
  }

  template <bool PLAIN, class Sums>
  CUTE_DEVICE void store_part(Sums const& sums, int batch, int m_first, int n_first, bool adds_c) {
    Tensor rD = make_tensor<Out>(make_shape(Int<values>{}, _1{}, _1{}));  // (V, 1, 1)
    if (!PLAIN && adds_c) {
      finish_part<true>(sums, rD, batch, m_first, n_first);
    } else {
      finish_part<false>(sums, rD, batch, m_first, n_first);
    }
    if constexpr (Kernel::store == Store::direct) {
      store_values(rD, batch, m_first, n_first);
    } else {
      Tensor sD = make_tensor(make_smem_ptr(staged), SmemLayoutD{});  // (EPI_M, EPI_N, PIPE_D)

      // ---- Registers to shared memory -----------------------------------------------------------------------------
      TiledCopy<Copy_Atom<typename Kernel::SmemStore, Out>, ValueLayout, EpiTile> smem_copy;
      auto thread_copy = smem_copy.get_slice(thread());
      Tensor tXrD = thread_copy.retile_S(rD);     // (CPY, 1, 1)
      Tensor tXsD = thread_copy.partition_D(sD);  // (CPY, 1, 1, PIPE_D)
      if (issues) tma_store_wait<stages - 1>();
      atoms::named_barrier(1 + consumer, 128);  // the TMA has read what was in this stage
      copy(smem_copy, tXrD, tXsD(_, _, _, stage));
      atoms::async_proxy_fence();
      atoms::named_barrier(1 + consumer, 128);

      // ---- Shared to global memory --------------------------------------------------------------------------------
      if (!PLAIN && problem.n % piece != 0) {
        copy_out(sD(_, _, stage), batch, m_first, n_first);
      } else if (issues) {
        Copy_Atom<Copy_Traits<SM90_TMA_STORE_PTR, Int<rows * columns * sizeof_bits_v<Out>>>, Out> const tma{{map}};
        Tensor mD = make_map_tensor<!swapped>(swapped ? problem.n : problem.m, swapped ? problem.m : problem.n, problem.batch,
                                              batch);                                          // (M, N)
        Tensor gD = local_tile(mD, EpiTile{}, make_coord(m_first / rows, n_first / columns));  // (EPI_M, EPI_N)
        auto [tDgD, tDsD] = tma_partition(tma, group_modes<0, 2>(sD), group_modes<0, 2>(gD));  // (TMA), (TMA, PIPE_D)
        copy(tma, tDsD(_, stage), tDgD);
        tma_store_arrive();
      }
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
  }

  // ---- Arithmetic -------------------------------------------------------------------------------------------------

  // The coordinates (V) -> (m, n) of this thread's values of a part.
  CUTE_DEVICE static auto coordinates() { return make_identity_tensor(EpiTile{}).compose(ValueLayout{})(thread(), _); }

  // All loads come first, by predicates and not by branches, so that they are under way at once.
  template <bool ADDS_C, class Sums, class Results>
  CUTE_DEVICE void finish_part(Sums const& sums, Results& rD, int batch, int m_first, int n_first) const {
    Tensor rC = make_tensor<Out>(Int<values>{});  // (V)
    Tensor rB = make_tensor<Out>(Int<values>{});  // (V)
    if constexpr (Kernel::bias != Bias::none) load_bias(rB, batch, m_first, n_first);
    if constexpr (ADDS_C) load_c(rC, batch, m_first, n_first);
    CUTE_UNROLL
    for (int v = 0; v < values; ++v) {
      float x = problem.alpha * float(sums(v));
      if constexpr (ADDS_C) x += problem.beta * float(rC(v));
      if constexpr (Kernel::bias != Bias::none) x += float(rB(v));
      rD(v) = Out(activate<Kernel::activation>(x));
    }
  }

  template <class TensorR>
  CUTE_DEVICE void load_bias(TensorR& rB, int batch, int m_first, int n_first) const {
    constexpr bool along_n = (Kernel::bias == Bias::row) != swapped;
    Tensor tCcD = coordinates();  // (V) -> (m, n)
    Tensor mB = make_tensor(make_gmem_ptr(static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias),
                            Kernel::bias == Bias::row ? problem.n : problem.m);  // (N) or (M) of D
    clear(rB);
    CUTE_UNROLL
    for (int v = 0; v < values; ++v) {
      int const at = along_n ? n_first + get<1>(tCcD(v)) : m_first + get<0>(tCcD(v));
      if (at < size(mB)) rB(v) = atoms::ld_global(&mB(at));
    }
  }

  // Two neighbours of a row are one word, where they may be; an odd last column is loaded apart, where there is one.
  template <class TensorR>
  CUTE_DEVICE void load_c(TensorR& rC, int batch, int m_first, int n_first) const {
    using Word = uint_bit_t<2 * sizeof_bits_v<Out>>;
    using Bits = uint_bit_t<sizeof_bits_v<Out>>;
    Tensor tCcD = coordinates();         // (V) -> (m, n)
    Tensor words = recast<Word>(rC);     // (V / 2)
    Tensor mC = make_output<swapped>(static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c, problem, problem.ldc);
    clear(words);
    CUTE_UNROLL
    for (int v = 0; v < values; v += paired ? 2 : 1) {
      int const m = m_first + get<0>(tCcD(v)), n = n_first + get<1>(tCcD(v));
      if constexpr (paired) {
        if (elem_less(make_coord(m, n + 1), shape(mC))) {
          words(v / 2) = atoms::ld_global(reinterpret_cast<Word const*>(&mC(m, n)));
        }
      } else {
        if (elem_less(make_coord(m, n), shape(mC))) rC(v) = atoms::ld_global(&mC(m, n));
      }
    }
    if (!paired || size<1>(mC) % 2 == 0) return;
    CUTE_UNROLL
    for (int v = 0; v < values; v += 2) {
      int const m = m_first + get<0>(tCcD(v)), n = n_first + get<1>(tCcD(v));
      if (m < size<0>(mC) && n == size<1>(mC) - 1) words(v / 2) = atoms::ld_global(reinterpret_cast<Bits const*>(&mC(m, n)));
    }
  }

  // ---- Stores of threads ------------------------------------------------------------------------------------------

  template <class Results>
  CUTE_DEVICE void store_values(Results const& rD, int batch, int m_first, int n_first) const {
    using Pair = uint_bit_t<2 * sizeof_bits_v<Out>>;
    Tensor tCcD = coordinates();                             // (V) -> (m, n)
    Tensor pairs = logical_divide(rD(_, _0{}, _0{}), _2{});  // (2, V / 2)
    Tensor mD = make_output<swapped>(static_cast<Out*>(problem.d) + batch * problem.batch_stride_d, problem, problem.ldd);
    CUTE_UNROLL
    for (int v = 0; v < values; v += 2) {
      int const m = m_first + get<0>(tCcD(v)), n = n_first + get<1>(tCcD(v));
      if (paired && elem_less(make_coord(m, n + 1), shape(mD))) {
        Tensor gD = make_tensor(make_gmem_ptr(&mD(m, n)), Layout<_2>{});
        copy(Copy_Atom<StoreGlobal<Pair>, Out>{}, pairs(_, v / 2), gD);
      } else {
        CUTE_UNROLL
        for (int e = 0; e < 2; ++e) {
          if (elem_less(make_coord(m, n + e), shape(mD))) atoms::st_global(&mD(m, n + e), rD(v + e));
        }
      }
    }
  }

  // What the TMA does, for rows of D that end within a piece: the TMA would write that piece whole.
  template <class TensorS>
  CUTE_DEVICE void copy_out(TensorS const& sD, int batch, int m_first, int n_first) const {
    constexpr int lines = swapped ? columns : rows, pieces = (swapped ? rows : columns) / piece;
    Out* const d = static_cast<Out*>(problem.d) + batch * problem.batch_stride_d;
    CUTE_NO_UNROLL
    for (int index = thread(); index < lines * pieces; index += 128) {
      int const line = index / pieces, along = index % pieces * piece;
      int const m = (swapped ? n_first : m_first) + line, n = (swapped ? m_first : n_first) + along;
      if (m >= problem.m || n >= problem.n) continue;
      Out const* const from = swapped ? &sD(along, line) : &sD(line, along);
      Tensor sP = make_tensor(make_smem_ptr(from), Layout<Int<piece>>{});                     // (PIECE)
      Tensor gP = make_tensor(make_gmem_ptr(d + m * problem.ldd + n), Layout<Int<piece>>{});  // (PIECE)
      Tensor rP = make_tensor<Out>(Int<piece>{});                                             // (PIECE)
      copy(Copy_Atom<LoadShared<uint128_t>, Out>{}, sP, rP);
      if (n + piece <= problem.n) {
        copy(Copy_Atom<StoreGlobal<uint128_t>, Out>{}, rP, gP);
      } else {
        CUTE_UNROLL
        for (int e = 0; e < piece; ++e) {
          if (n + e < problem.n) atoms::st_global(&gP(e), rP(e));
        }
      }
    }
  }
};

}  // namespace hgemm::with_cute
