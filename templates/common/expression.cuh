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
  Aux aux[COUNT];  // (COUNT)
};

static_assert(sizeof(Aux) == 32 && sizeof(ProblemWith<2>) == sizeof(Problem) + 2 * sizeof(Aux), "launchers pack them by hand");

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

// The inputs, and the matrices among them.
template <class Policy, class = void>
inline constexpr int operands_of = 0;
template <class Policy>
inline constexpr int operands_of<Policy, typename MakeVoid<typename Policy::Expression>::Type> = Policy::Expression::operands;
template <class Policy, class = void>
inline constexpr int matrices_of = 0;
template <class Policy>
inline constexpr int matrices_of<Policy, typename MakeVoid<typename Policy::Expression>::Type> = Policy::Expression::matrices;

// The columns of D.
template <class Policy>
HGEMM_DEVICE int columns_of_d(Problem const& problem) {
  return problem.n / accumulators_of<Policy>;
}

// The inputs of a kernel's problem, and then its further results.
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

// ---- Results beside D -----------------------------------------------------------------------------------------------

// A matrix (m, n), or a reduction of the rows (m,) or the columns (n,) of D. Each reduction has a slot: first those of rows.
enum class OutKind { matrix, row_sum, row_max, column_sum, column_max };

HGEMM_DEVICE constexpr bool is_max(OutKind kind) { return kind == OutKind::row_max || kind == OutKind::column_max; }
HGEMM_DEVICE constexpr bool of_columns(OutKind kind) { return kind == OutKind::column_sum || kind == OutKind::column_max; }

// The results beside D of an expression that has none.
struct NoOutputs {
  template <class Place>
  HGEMM_DEVICE void store(Place const&) const {}
  template <class Place, class Partials>
  HGEMM_DEVICE void reduce(Place const&, Partials&) const {}
};

template <class Policy, class = void>
inline constexpr int reductions_of = 0;
template <class Policy>
inline constexpr int reductions_of<Policy, typename MakeVoid<typename Policy::Expression>::Type> =
    Policy::Expression::reductions;

template <class Policy, class = void>
inline constexpr int column_reductions_of = 0;
template <class Policy>
inline constexpr int column_reductions_of<Policy, typename MakeVoid<typename Policy::Expression>::Type> =
    Policy::Expression::column_reductions;
template <class Policy>
inline constexpr bool has_reductions = reductions_of<Policy> + column_reductions_of<Policy> > 0;

// What a lane has reduced so far.
template <class Policy>
struct LanePartials {
  static constexpr int rows = reductions_of<Policy>, columns = column_reductions_of<Policy>;
  float sum[rows > 0 ? rows : 1];              // (slots of rows), of one row
  float column[columns > 0 ? columns : 1][2];  // (slots of columns, 2), of two neighbouring columns
};

HGEMM_DEVICE float reduced(OutKind kind, float x, float y) { return is_max(kind) ? fmaxf(x, y) : x + y; }
HGEMM_DEVICE float reduction_start(OutKind kind) { return is_max(kind) ? atoms::bits_float(0xff800000u) : 0.f; }
template <class Policy>
HGEMM_DEVICE float reduced(int slot, float x, float y) {
  return reduced(Policy::Expression::reduction_kind(slot), x, y);
}
template <class Policy>
HGEMM_DEVICE float reduction_start(int slot) {
  return reduction_start(Policy::Expression::reduction_kind(slot));
}

template <class Policy>
HGEMM_DEVICE void clear(LanePartials<Policy>& partials) {
  HGEMM_UNROLL
  for (int slot = 0; slot < reductions_of<Policy>; ++slot) partials.sum[slot] = reduction_start<Policy>(slot);
}

template <class Policy>
HGEMM_DEVICE void clear_columns(LanePartials<Policy>& partials) {
  HGEMM_UNROLL
  for (int slot = 0; slot < column_reductions_of<Policy>; ++slot) {
    HGEMM_UNROLL
    for (int e = 0; e < 2; ++e) partials.column[slot][e] = reduction_start<Policy>(reductions_of<Policy> + slot);
  }
}

// Reduces over the 4 lanes that share a row of accumulators.
template <class Policy>
HGEMM_DEVICE void reduce_quad(LanePartials<Policy>& partials) {
  HGEMM_UNROLL
  for (int slot = 0; slot < reductions_of<Policy>; ++slot) {
    HGEMM_UNROLL
    for (int bits = 1; bits < 4; bits *= 2) {
      float const other = atoms::shuffle_xor(partials.sum[slot], bits);
      partials.sum[slot] = reduced<Policy>(slot, partials.sum[slot], other);
    }
  }
}

// Reduces over the 8 lanes that share a column of accumulators.
HGEMM_DEVICE float reduce_octet(OutKind kind, float x) {
  HGEMM_UNROLL
  for (int bits = 4; bits < 32; bits *= 2) x = reduced(kind, x, atoms::shuffle_xor(x, bits));
  return x;
}

template <class T>
HGEMM_DEVICE T* aux_result(Aux const& aux, int batch) {
  return static_cast<T*>(const_cast<void*>(aux.pointer)) + batch * aux.batch_stride;
}

// ---- Loads for WIDTH neighbours of a row of D ---------------------------------------------------------------------

struct NeighboursAt {
  static constexpr int first = 0;  // of a lane's pair of columns, that of the first neighbour
  Aux const* aux;
  int batch, row, column;  // of the first neighbour
};
struct SecondOfPairAt : NeighboursAt {
  static constexpr int first = 1;
};

template <int WIDTH>
struct OfNeighbours {
  template <AuxKind KIND, class T, int INDEX>
  struct Of {
    static constexpr int count = KIND == AuxKind::row || KIND == AuxKind::matrix ? WIDTH : 1;
    T element[count];  // (WIDTH), or one for all

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

// A result beside D of WIDTH neighbours.
template <int WIDTH>
struct OutOfNeighbours {
  template <OutKind KIND, class T, int INDEX, int SLOT>
  struct Of {
    float number[WIDTH];

    HGEMM_DEVICE void put(float x, int e) { number[e] = x; }

    HGEMM_DEVICE void store(NeighboursAt const& at) const {
      if constexpr (KIND == OutKind::matrix) {
        constexpr int step = WIDTH * sizeof(T) <= 16 ? WIDTH : 16 / sizeof(T);  // elements of a store
        Aux const& aux = at.aux[INDEX];
        T* const to = aux_result<T>(aux, at.batch) + at.row * aux.leading + at.column;
        HGEMM_UNROLL
        for (int first = 0; first < WIDTH; first += step) {
          Vec<T, step> some;
          HGEMM_UNROLL
          for (int e = 0; e < step; ++e) some.element[e] = atoms::from_float<T>(number[first + e]);
          atoms::st_global(reinterpret_cast<Vec<T, step>*>(to + first), some);
        }
      }
    }

    template <class Place, class Partials>
    HGEMM_DEVICE void reduce(Place const&, Partials& partials) const {
      HGEMM_UNROLL
      for (int e = 0; e < (KIND == OutKind::matrix ? 0 : WIDTH); ++e) {
        float& sum = of_columns(KIND) ? partials.column[SLOT - Partials::rows][Place::first + e] : partials.sum[SLOT];
        sum = reduced(KIND, sum, number[e]);
      }
    }
  };
};

template <class Policy, int WIDTH>
using NeighbourOutputs = typename Policy::Expression::template Outputs<OutOfNeighbours<WIDTH>::template Of>;
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
HGEMM_DEVICE float gelu_of_half(float h) { return hgemm::gelu_of_half(h); }
HGEMM_DEVICE float silu(float x) { return silu_of(x); }

// A number rounded to another type.
template <class T>
HGEMM_DEVICE float rounded(float x) { return atoms::to_float(atoms::from_float<T>(x)); }

}  // namespace expression
}  // namespace hgemm
