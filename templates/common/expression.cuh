// Epilogues from expressions: the inputs of an expression, its functions, and loads for neighbours of a row.
//
// A Policy with an expression has a struct `Expression`, which the generator writes: the inputs by name, and `apply`, which
// computes an element of D from its accumulator. Each epilogue passes a template `Of`: how it loads one input.
#pragma once

#include <common/activation.cuh>
#include <common/atoms_math.cuh>
#include <common/problem.cuh>

namespace hgemm {

// ---- Inputs -------------------------------------------------------------------------------------------------------

// Rows are (n,), columns (m,), and matrices (m, n) with contiguous rows.
enum class AuxKind { scalar, row, column, matrix };

// One input. Strides count elements. A matrix has the alignment of D in elements, but needs at most 16 bytes.
struct Aux {
  void const* pointer;   // null for a scalar of the host
  int64_t leading;       // of a matrix
  int64_t batch_stride;  // 0 if the batch shares it
  float value;           // of a scalar of the host
};

// The argument of a kernel whose expression has COUNT inputs.
template <int COUNT>
struct ProblemWith : Problem {
  Aux aux[COUNT];
};

static_assert(sizeof(Aux) == 32 && sizeof(ProblemWith<2>) == sizeof(Problem) + 2 * sizeof(Aux), "launchers pack them by hand");

template <class...>
struct MakeVoid { using Type = void; };
template <class Policy, class = void>
inline constexpr bool has_expression = false;
template <class Policy>
inline constexpr bool has_expression<Policy, typename MakeVoid<typename Policy::Expression>::Type> = true;

// Accumulators of an element of D: 2 for a gated pair, whose columns of B alternate in blocks of 8, else 1. D has as many times
// fewer columns than B.
template <class Policy, class = void>
inline constexpr int accumulators_of = 1;
template <class Policy>
inline constexpr int accumulators_of<Policy, typename MakeVoid<typename Policy::Expression>::Type> =
    Policy::Expression::accumulators;

// The columns of D.
template <class Policy>
HGEMM_DEVICE int columns_of_d(Problem const& problem) {
  return problem.n / accumulators_of<Policy>;
}

// The inputs of a kernel's problem.
template <class Policy>
HGEMM_DEVICE Aux const* aux_of(Problem const& problem) {
  if constexpr (Policy::Expression::operands > 0) {
    return static_cast<ProblemWith<Policy::Expression::operands> const&>(problem).aux;
  } else {
    return nullptr;
  }
}

template <class T>
HGEMM_DEVICE T const* aux_first(Aux const& aux, int batch) {
  return static_cast<T const*>(aux.pointer) + batch * aux.batch_stride;
}
HGEMM_DEVICE float aux_scalar(Aux const& aux, int batch) {
  return aux.pointer ? atoms::ld_global(aux_first<float>(aux, batch)) : aux.value;
}

// ---- Loads for WIDTH neighbours of a row of D ---------------------------------------------------------------------

struct NeighboursAt {
  Aux const* aux;
  int batch, row, column;  // of the first neighbour
};

template <int WIDTH>
struct OfNeighbours {
  template <AuxKind KIND, class T, int INDEX>
  struct Of {
    static constexpr int count = KIND == AuxKind::row || KIND == AuxKind::matrix ? WIDTH : 1;
    T element[count];

    HGEMM_DEVICE void load(NeighboursAt const& at) {
      Aux const& aux = at.aux[INDEX];
      if constexpr (KIND == AuxKind::scalar) {
        element[0] = aux_scalar(aux, at.batch);
      } else if constexpr (KIND == AuxKind::column) {
        element[0] = atoms::ld_global(aux_first<T>(aux, at.batch) + at.row);
      } else if constexpr (KIND == AuxKind::row) {
        T const* const from = aux_first<T>(aux, at.batch) + at.column;
        HGEMM_UNROLL
        for (int e = 0; e < WIDTH; ++e) element[e] = atoms::ld_global(from + e);
      } else {
        constexpr int step = WIDTH * sizeof(T) <= 16 ? WIDTH : 16 / sizeof(T);  // elements of a load
        T const* const from = aux_first<T>(aux, at.batch) + at.row * aux.leading + at.column;
        HGEMM_UNROLL
        for (int first = 0; first < WIDTH; first += step) {
          Vec<T, step> const some = atoms::ld_global(reinterpret_cast<Vec<T, step> const*>(from + first));
          HGEMM_UNROLL
          for (int e = 0; e < step; ++e) element[first + e] = some.element[e];
        }
      }
    }

    HGEMM_DEVICE float number(int e) const { return atoms::to_float(element[count == 1 ? 0 : e]); }
  };
};

template <class Policy, int WIDTH>
using NeighbourInputs = typename Policy::Expression::template Inputs<OfNeighbours<WIDTH>::template Of>;

// ---- Functions ----------------------------------------------------------------------------------------------------

// hgemm/epilogue_reference.py bounds their errors.
namespace expression {

HGEMM_DEVICE float minimum(float x, float y) { return fminf(x, y); }
HGEMM_DEVICE float maximum(float x, float y) { return fmaxf(x, y); }
HGEMM_DEVICE float abs(float x) { return atoms::absolute(x); }
HGEMM_DEVICE float div(float x, float y) { return atoms::div_full(x, y); }
HGEMM_DEVICE float exp(float x) { return atoms::exp2_approx(1.44269504f * x); }
HGEMM_DEVICE float log(float x) { return 0.693147181f * atoms::log2_approx(x); }
HGEMM_DEVICE float sqrt(float x) { return atoms::sqrt_approx(x); }
HGEMM_DEVICE float rsqrt(float x) { return atoms::rsqrt_approx(x); }
HGEMM_DEVICE float sigmoid(float x) { return atoms::rcp_approx(1.f + atoms::exp2_approx(-1.44269504f * x)); }
HGEMM_DEVICE float tanh(float x) { return 1.f - 2.f * atoms::rcp_approx(1.f + atoms::exp2_approx(2.88539008f * x)); }
HGEMM_DEVICE float erf(float x) { return atoms::erf(x); }
HGEMM_DEVICE float softplus(float x) { return fmaxf(x, 0.f) + log(1.f + atoms::exp2_approx(-1.44269504f * abs(x))); }
HGEMM_DEVICE float relu(float x) { return activation::relu::apply(x); }
HGEMM_DEVICE float gelu(float x) { return gelu_of(x); }
HGEMM_DEVICE float silu(float x) { return silu_of(x); }

// A number rounded to another type.
template <class T>
HGEMM_DEVICE float rounded(float x) { return atoms::to_float(atoms::from_float<T>(x)); }

}  // namespace expression
}  // namespace hgemm
