// Accumulators of a TiledMMA on wgmma to D: activation(alpha * accumulator + beta * C + bias), one EPI_M x EPI_N subtile after
// another. D goes through shared memory and the TMA, or each thread stores its own elements.
#pragma once

#include <common/cute_tensor.cuh>
#include <cute/atom/copy_traits_sm90_tma.hpp>

#include <common/activation.cuh>
#include <common/atoms_sm90.cuh>
#include <common/expression.cuh>
#include <common/policy.cuh>
#include <common/problem.cuh>

namespace hgemm::cute_form {

using namespace cute;

// The coordinates (MN, K) in the map of a matrix; MN is m for A and n for B. The map counts the contiguous index first.
template <bool K_MAJOR>
CUTE_DEVICE auto make_map_tensor(int mn, int k, int batches, int batch) {
  auto const shape = make_shape(mn, k, batches);
  if constexpr (K_MAJOR) {
    return make_coord_tensor(make_layout(shape, make_stride(E<1>{}, E<0>{}, E<2>{})))(_, _, batch);
  } else {
    return make_coord_tensor(make_layout(shape, make_stride(E<0>{}, E<1>{}, E<2>{})))(_, _, batch);
  }
}

// A matrix like D (M, N) as the kernel sees it: its rows are D's rows, or with swap_ab D's columns.
template <bool SWAP_AB, class T>
CUTE_DEVICE auto make_output(T* first, Problem const& problem, int64_t leading_dimension) {
  if constexpr (SWAP_AB) {
    return make_tensor(make_gmem_ptr(first), make_shape(problem.n, problem.m), make_stride(_1{}, leading_dimension));
  } else {
    return make_tensor(make_gmem_ptr(first), make_shape(problem.m, problem.n), make_stride(leading_dimension, _1{}));
  }
}

// A consumer warpgroup's epilogue.
template <class Policy>
struct Epilogue {
  using Out = typename Policy::ElementOut;
  using EpiTile = typename Policy::EpiTile;          // (EPI_M, EPI_N)
  using SmemLayoutD = typename Policy::SmemLayoutD;  // (EPI_M, EPI_N, PIPE_D)

  static constexpr bool swap_ab = Policy::swap_ab;
  static constexpr int rows = size<0>(EpiTile{}), columns = size<1>(EpiTile{}), stages = size<2>(SmemLayoutD{});
  static constexpr int values = rows * columns / 128;  // that a thread has of a subtile
  static constexpr int vec_elements = 128 / sizeof_bits_v<Out>;
  static constexpr bool paired = !swap_ab && Policy::align_d >= 2;  // one access may move two neighbours of a row

  using ValueLayout = SM90::GMMA::CLayout_64xN<columns>;  // (T, V) -> EPI_M x EPI_N

  Problem const& problem;
  TmaDescriptor const* map;
  Out* smem;  // this warpgroup's (EPI_M, EPI_N, PIPE_D)
  int consumer;
  bool issues;  // whether this thread issues the warpgroup's stores
  int stage = 0;

  CUTE_DEVICE static int thread() { return atoms::thread_index() % 128; }

  // Finishes the accumulators tCrC (MMA, MMA_M, 1) of a tile whose first element is (m_first, n_first). The warpgroup's blocks
  // of 64 rows are `block_rows` apart. The common case is unrolled; the other cases share one loop.
  template <class Accumulators>
  CUTE_DEVICE void run(Accumulators const& tCrC, int batch, int m_first, int n_first, int block_rows) {
    constexpr int subtiles_n = size<1>(typename Policy::CtaTiler{}) / columns;
    constexpr int subtiles = decltype(size(tCrC))::value / values;
    static_assert(subtiles_n * columns == size<1>(typename Policy::CtaTiler{}), "a tile must be whole subtiles");
    Tensor tPrC = make_tensor(tCrC.data(), make_shape(Int<values>{}, Int<subtiles>{}));  // (V, SUBTILES), along n first
    bool const adds_c = Policy::beta && problem.beta != 0.f;

    if (Policy::unroll_epilogue && !adds_c && (Policy::store == Store::direct || problem.n % vec_elements == 0)) {
      CUTE_UNROLL
      for (int subtile = 0; subtile < subtiles; ++subtile) {
        store_subtile<true>(tPrC(_, subtile), batch, m_first + subtile / subtiles_n * block_rows,
                            n_first + subtile % subtiles_n * columns, false);
      }
    } else {
      CUTE_NO_UNROLL
      for (int subtile = 0; subtile < subtiles; ++subtile) {
        Tensor values_here = make_fragment_like(tPrC(_, _0{}));  // (V)
        CUTE_UNROLL
        for (int here = 0; here < subtiles; ++here) {  // registers have no addresses: a branch for each subtile
          if (here == subtile) copy(tPrC(_, here), values_here);
        }
        store_subtile<false>(values_here, batch, m_first + subtile / subtiles_n * block_rows,
                             n_first + subtile % subtiles_n * columns, adds_c);
      }
    }
  }

  // Waits until the TMA has read all of this thread's stores from shared memory.
  CUTE_DEVICE void finish() const {
    if (Policy::store == Store::tma && issues) tma_store_wait<0>();
  }

  template <bool PLAIN, class Accumulators>
  CUTE_DEVICE void store_subtile(Accumulators const& tCrC, int batch, int m_first, int n_first, bool adds_c) {
    Tensor rD = make_tensor<Out>(make_shape(Int<values>{}, _1{}, _1{}));  // (V, 1, 1)
    if (!PLAIN && adds_c) {
      combine<true>(tCrC, rD, batch, m_first, n_first);
    } else {
      combine<false>(tCrC, rD, batch, m_first, n_first);
    }
    if constexpr (Policy::store == Store::direct) {
      store_values(rD, batch, m_first, n_first);
    } else {
      Tensor sD = make_tensor(make_smem_ptr(smem), SmemLayoutD{});  // (EPI_M, EPI_N, PIPE_D)

      // ---- Registers to shared memory -----------------------------------------------------------------------------
      TiledCopy<Copy_Atom<typename Policy::SmemStore, Out>, ValueLayout, EpiTile> smem_copy;
      auto thread_copy = smem_copy.get_slice(thread());
      Tensor tXrD = thread_copy.retile_S(rD);     // (CPY, 1, 1)
      Tensor tXsD = thread_copy.partition_D(sD);  // (CPY, 1, 1, PIPE_D)
      if (issues) tma_store_wait<stages - 1>();
      atoms::named_barrier(1 + consumer, 128);  // the TMA has read the last contents of this stage
      copy(smem_copy, tXrD, tXsD(_, _, _, stage));
      atoms::fence_proxy_async();
      atoms::named_barrier(1 + consumer, 128);

      // ---- Shared to global memory --------------------------------------------------------------------------------
      if (!PLAIN && problem.n % vec_elements != 0) {
        copy_out(sD(_, _, stage), batch, m_first, n_first);
      } else if (issues) {
        Copy_Atom<Copy_Traits<SM90_TMA_STORE_PTR, Int<rows * columns * sizeof_bits_v<Out>>>, Out> const tma{{map}};
        Tensor mD = make_map_tensor<!swap_ab>(swap_ab ? problem.n : problem.m, swap_ab ? problem.m : problem.n, problem.batch,
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

  // The coordinates (V) -> (m, n) of this thread's values of a subtile.
  CUTE_DEVICE static auto coordinates() { return make_identity_tensor(EpiTile{}).compose(ValueLayout{})(thread(), _); }

  // alpha * accumulator + beta * C + bias, and the activation. All loads come first, predicated, so that they overlap.
  template <bool ADDS_C, class Accumulators, class Results>
  CUTE_DEVICE void combine(Accumulators const& tCrC, Results& rD, int batch, int m_first, int n_first) const {
    if constexpr (has_expression<Policy>) {
      typename Policy::Expression::template Inputs<OfValues> inputs;
      NoOutputs none;
      inputs.load(SubtileAt{problem, batch, m_first, n_first});
      CUTE_UNROLL
      for (int v = 0; v < values; ++v) rD(v) = Out(Policy::Expression::apply(float(tCrC(v)), 0.f, inputs, none, problem, v));
    } else {
      Tensor rC = make_tensor<Out>(Int<values>{});  // (V)
      Tensor rB = make_tensor<Out>(Int<values>{});  // (V)
      if constexpr (Policy::bias != Bias::none) load_bias(rB, batch, m_first, n_first);
      if constexpr (ADDS_C) load_c(rC, batch, m_first, n_first);
      CUTE_UNROLL
      for (int v = 0; v < values; ++v) {
        float x = problem.alpha * float(tCrC(v));
        if constexpr (ADDS_C) x += problem.beta * float(rC(v));
        if constexpr (Policy::bias != Bias::none) x += float(rB(v));
        rD(v) = Out(Policy::Activation::apply(x));
      }
    }
  }

  // ---- Loads of the inputs of an expression -----------------------------------------------------------------------

  struct SubtileAt {
    Problem const& problem;
    int batch, m_first, n_first;
  };

  // One input for this thread's values of a subtile. Values outside of D are 0.
  template <AuxKind KIND, class T, int INDEX>
  struct OfValues {
    T element[KIND == AuxKind::scalar ? 1 : values];  // (V)

    CUTE_DEVICE void load(SubtileAt const& at) {
      Aux const& aux = aux_of<Policy>(at.problem)[INDEX];
      if constexpr (KIND == AuxKind::scalar) {
        element[0] = aux_scalar(aux, at.batch);
      } else {
        T const* const first = aux_first<T>(aux, at.batch);
        Tensor tCcD = coordinates();  // (V) -> (m, n), with swap_ab (n, m) of D
        CUTE_UNROLL
        for (int v = 0; v < values; ++v) {
          int const row = at.m_first + get<0>(tCcD(v)), column = at.n_first + get<1>(tCcD(v));
          int const m = swap_ab ? column : row, n = swap_ab ? row : column;
          element[v] = atoms::from_float<T>(0.f);
          if (m < at.problem.m && n < at.problem.n) {
            int64_t const offset = KIND == AuxKind::row ? n : KIND == AuxKind::column ? m : m * aux.leading + n;
            element[v] = atoms::ld_global(first + offset);
          }
        }
      }
    }

    CUTE_DEVICE float number(int v) const { return atoms::to_float(element[KIND == AuxKind::scalar ? 0 : v]); }
  };

  template <class TensorR>
  CUTE_DEVICE void load_bias(TensorR& rB, int batch, int m_first, int n_first) const {
    constexpr bool along_n = (Policy::bias == Bias::row) != swap_ab;
    Tensor tCcD = coordinates();  // (V) -> (m, n)
    Tensor mB = make_tensor(make_gmem_ptr(static_cast<Out const*>(problem.bias) + batch * problem.batch_stride_bias),
                            Policy::bias == Bias::row ? problem.n : problem.m);  // (N) or (M) of D
    clear(rB);
    CUTE_UNROLL
    for (int v = 0; v < values; ++v) {
      int const at = along_n ? n_first + get<1>(tCcD(v)) : m_first + get<0>(tCcD(v));
      if (at < size(mB)) rB(v) = atoms::ld_global(&mB(at));
    }
  }

  // Two neighbours of a row are loaded as one word if D's alignment allows. An odd last column is loaded on its own.
  template <class TensorR>
  CUTE_DEVICE void load_c(TensorR& rC, int batch, int m_first, int n_first) const {
    using Word = uint_bit_t<2 * sizeof_bits_v<Out>>;
    using Bits = uint_bit_t<sizeof_bits_v<Out>>;
    Tensor tCcD = coordinates();         // (V) -> (m, n)
    Tensor words = recast<Word>(rC);     // (V / 2)
    Tensor mC = make_output<swap_ab>(static_cast<Out const*>(problem.c) + batch * problem.batch_stride_c, problem, problem.ldc);
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

  // ---- Stores by threads ------------------------------------------------------------------------------------------

  template <class Results>
  CUTE_DEVICE void store_values(Results const& rD, int batch, int m_first, int n_first) const {
    using Pair = uint_bit_t<2 * sizeof_bits_v<Out>>;
    Tensor tCcD = coordinates();                             // (V) -> (m, n)
    Tensor pairs = logical_divide(rD(_, _0{}, _0{}), _2{});  // (2, V / 2)
    Tensor mD = make_output<swap_ab>(static_cast<Out*>(problem.d) + batch * problem.batch_stride_d, problem, problem.ldd);
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

  // Stores a subtile by threads if D's rows end within a 16-byte vector, which the TMA would write whole.
  template <class TensorS>
  CUTE_DEVICE void copy_out(TensorS const& sD, int batch, int m_first, int n_first) const {
    constexpr int lines = swap_ab ? columns : rows, vecs = (swap_ab ? rows : columns) / vec_elements;
    Out* const d = static_cast<Out*>(problem.d) + batch * problem.batch_stride_d;
    CUTE_NO_UNROLL
    for (int index = thread(); index < lines * vecs; index += 128) {
      int const line = index / vecs, along = index % vecs * vec_elements;
      int const m = (swap_ab ? n_first : m_first) + line, n = (swap_ab ? m_first : n_first) + along;
      if (m >= problem.m || n >= problem.n) continue;
      Out const* const from = swap_ab ? &sD(along, line) : &sD(line, along);
      Tensor sP = make_tensor(make_smem_ptr(from), Layout<Int<vec_elements>>{});                     // (VEC)
      Tensor gP = make_tensor(make_gmem_ptr(d + m * problem.ldd + n), Layout<Int<vec_elements>>{});  // (VEC)
      Tensor rP = make_tensor<Out>(Int<vec_elements>{});                                             // (VEC)
      copy(Copy_Atom<LoadShared<uint128_t>, Out>{}, sP, rP);
      if (n + vec_elements <= problem.n) {
        copy(Copy_Atom<StoreGlobal<uint128_t>, Out>{}, rP, gP);
      } else {
        CUTE_UNROLL
        for (int e = 0; e < vec_elements; ++e) {
          if (n + e < problem.n) atoms::st_global(&gP(e), rP(e));
        }
      }
    }
  }
};

}  // namespace hgemm::cute_form
