"""The reference of a product in float64, and a bound of the error of each element for a kernel's arithmetic.

D is accepted if an exact result within the bound rounds to it. So the bound holds only errors before D is rounded.

Models. The bound covers two ways to add products to an accumulator, for each step of 16 of k:

- Tensor cores add groups of b products. They align all terms to the largest one, cut each below its 24 or 25 fraction bits, and
  cut the sum to f32. b is the k of the instruction, but 8 before sm_90 (4 for tf32). f16 accumulators round each group to nearest.
- Additions of one product at a time in f32, rounded to nearest.

Roundings. U is a power of two: the largest one up to the root of the largest squared partial sum plus the squared products of the
step. So U follows the actual partial sums. h is 2**-24 U, half a unit in the last place of f32. Rounding to nearest errs by at
most h, with mean 0 and variance h**2 / 3. Cutting a sum errs by h towards 0 in the mean, with the same variance. Cutting a product
errs by half a fraction bit towards 0 in the mean. The means add up with their signs, to the bias; the variances add up, too.
16 roundings to nearest have more variance than the cuts of tensor cores.

    bound = min(abs(bias) + CONFIDENCE * sqrt(variance), worst case)

Confidence. Roundings are taken as independent and uniform. Then their sum is sub-Gaussian with this variance, so an element exceeds
the bound with a probability below 2 exp(-CONFIDENCE**2 / 2) = 5e-11. This holds for inputs of random signs,
which `hgemm.verification` draws. f16 accumulators of inputs of one sign may stagnate: then the roundings are not independent.

Order. The partial sums depend on the order of k. Some kernels on mma.sync multiply the last k-tile of each accumulator first
(`LaunchTraits.last_k_tile_first`). All others add k in order.

`python -m benchmarks.bounds` prints the largest error of each arithmetic as a share of the bound.

Source: Xie, Wang, Yang, Yang, "MMA-Sim: bit-accurate reference model of tensor cores and matrix cores", arXiv:2511.10909 (2025):
    groups, fraction bits and roundings. Higham, Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci.
    Comput. 41 (2019).

tf32 inputs are stored as f32, but their lowest 13 bits are not multiplied. PTX ISA 9.0 ("Alternate floating-point data formats")
does not say whether they are truncated or rounded. So the error is the largest of all four ways to do so for A and B.

Integers have no error in any order of additions if the sum of absolute products fits into the accumulator. Then the bound is 0,
and the check detects a single missing or additional element. For f16_promoted, the products of one k-tile must fit into f16.

Inputs must be small enough that no accumulator overflows. Bounds are infinite for elements of D that may overflow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hgemm.dtypes import DTYPES, Dtype, representable, truncated, truncation_error
from hgemm.epilogue_reference import Interval, evaluate_all
from hgemm.errors import HgemmError
from hgemm.launch_traits import LaunchTraits

STEP = 16
"""Elements of k in one step of the analysis: one mma.m16n8k16, or two m16n8k8."""
CONFIDENCE = 7.0
"""Standard deviations of the sum of all roundings that the bound allows."""
_F32_CUT, _F32_ROUND, _F16_ROUND, _F16_TINY = 2.0**-23, 2.0**-24, 2.0**-11, 2.0**-25
_SECOND_ORDER = 1.01
"""Covers products of errors: roundings of values that the same step has already rounded. (1 + 2**-10)**4 < 1.01."""
EXACT = {"f16": 2.0**11, "f32": 2.0**24}
"""Integers up to this are exact."""
_TINY = 2.0**-120
"""More than the sum of all f32 underflows."""
_EXPONENT = np.int64(0x7FF << 52)
"""The exponent bits of float64."""
_ONE = np.float64(1).view(np.uint64)


@dataclass(frozen=True)
class Reference:
    """Exact results, and a bound of the error of each before it is rounded to `dtype_d`.

    Shapes: (batch, m, n), or the requested rows. Reductions have one column.
    Fields: `outputs` are the results of an expression after D.
    """

    values: np.ndarray
    bound: np.ndarray
    dtype_d: str = "f32"
    outputs: tuple[Reference, ...] = ()

    def limit(self, found: np.ndarray) -> np.ndarray:
        """Return the largest error that is allowed: the bound, and the rounding to D. f32 results are not rounded again."""
        if self.dtype_d == "f32":
            return self.bound
        return np.asarray(self.bound + _half_ulp(found, np.abs(self.values) < np.abs(found), DTYPES[self.dtype_d]))

    def error_ratio(self, found: np.ndarray) -> np.ndarray:
        """Return the ratio of each error to its limit. Up to 1, an exact result within the bound rounds to the one found."""
        error = np.abs(found - self.values)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(error == 0.0, 0.0, error / self.limit(found))
        ratio[np.broadcast_to(np.isposinf(self.bound), ratio.shape)] = 0.0
        ratio[np.isnan(found) & ~np.isnan(self.values)] = np.inf
        return ratio


def _half_ulp(found: np.ndarray, below: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return the distance from numbers of a type to the next tie: towards 0 if `below`, else away from it."""
    magnitude = np.abs(found)
    power = _power_of_two(magnitude)
    inner = np.where(below & (magnitude == power), 0.5, 1.0)  # the numbers below a power of two are twice as dense
    return np.maximum(power * inner * dtype.roundoff, dtype.underflow)


def _power_of_two(x: np.ndarray) -> np.ndarray:
    """Return the largest power of two up to each positive number, and 0 for 0."""
    return (x.view(np.int64) & _EXPONENT).view(np.float64)


def _root_power_of_two(x: np.ndarray) -> np.ndarray:
    """Return the largest power of two up to the root of each positive number, in place of the number. For 0 it is 2**-512."""
    bits = x.view(np.uint64)
    bits += _ONE  # twice the exponent of the root, since both are stored with the bias of 1
    bits >>= np.uint64(1)
    bits &= _EXPONENT.astype(np.uint64)
    return x


@dataclass(frozen=True)
class OperandValues:
    """The operands in float64.

    Shapes: a (batch, m, k), b (batch, k, n), c (batch, m, n), bias (batch, 1, n) or (batch, m, 1); `inputs` of an expression
        by name: scalars (batch, 1, 1), the others as C and bias. A batch of 1 is shared. If a or b has fewer matrices than
        `batch`, they repeat.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    alpha: float = 1.0
    beta: float = 0.0
    batch: int = 1
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    stored: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    """Arrays with their stored elements, where they are known: encoding takes long."""


def reference(
    traits: LaunchTraits, operands: OperandValues, rows: np.ndarray | None = None, splits: int = 1
) -> Reference:
    """Return D, or `rows` of it, and the error bound of each element. `splits` are those of the launch, if it decides them.

    If only some tiles are split, the bound holds for both kinds.
    """
    a, c, bias, inputs = operands.a, operands.c, operands.bias, operands.inputs
    if rows is not None:
        a = a[:, rows]
        c = None if c is None else c[:, rows]
        bias = bias[:, rows] if bias is not None and bias.shape[1] > 1 else bias
        inputs = {name: one[:, rows] if one.shape[1] > 1 else one for name, one in inputs.items()}
    product, error = accumulate(traits, a, operands.b, sorted({1, splits}) if traits.decides_splits else ())
    if 1 < len(product) < operands.batch:
        at = np.arange(operands.batch) % len(product)
        product, error = product[at], error[at]
    if traits.epilogue:
        scalars = {"alpha": np.asarray(operands.alpha, np.float32), "beta": np.asarray(operands.beta, np.float32)}
        return apply_expression(traits, product, error, {**scalars, **inputs})
    return apply_epilogue(traits, product, error, operands.alpha, operands.beta, c, bias)


# ==== A times B ====


def accumulate(
    traits: LaunchTraits, a: np.ndarray, b: np.ndarray, splits: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return A B and a bound of the error of its accumulation in as many parts as each of `splits`, or those of the kernel."""
    lost = _unread_error(traits, a, b)
    if lost is None and _is_exact(traits, a, b):
        product = a @ b
        return product, np.zeros_like(product)
    sums = [_in_parts(traits, a, b, count) for count in splits or (traits.splits,)]
    error = np.asarray(np.maximum.reduce([one.error() for one in sums]))
    return sums[0].total, error if lost is None else error + lost


def _in_parts(traits: LaunchTraits, a: np.ndarray, b: np.ndarray, splits: int) -> _Sum:
    """Return the sum of parts of k. Empty ones add nothing."""
    ranges = [(first, last) for first, last in _splits(traits, a.shape[-1], splits) if last > first] or [(0, 0)]
    parts = (_split(traits, a, b, first, last) for first, last in ranges)
    return next(parts) if splits == 1 else _add_up(parts, shared=False)


def _unread_error(traits: LaunchTraits, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return the error from input bits that tensor cores ignore, or None if there are none."""
    stored = ((a, traits.dtype_a), (b, traits.dtype_b))
    if not any(DTYPES[dtype].ignored_bits and truncation_error(one, dtype).any() for one, dtype in stored):
        return None
    exact = a @ b
    ways = itertools.product((truncated, representable), repeat=2)
    errors = [np.abs(take(a, traits.dtype_a) @ also(b, traits.dtype_b) - exact) for take, also in ways]
    return np.asarray(np.maximum.reduce(errors))


def _is_exact(traits: LaunchTraits, a: np.ndarray, b: np.ndarray) -> bool:
    if not a.shape[-1]:
        return True  # a sum of nothing
    if not all(_is_whole(one) for one in (a, b)):
        return False
    a, b = np.abs(a), np.abs(b)
    if traits.acc != "f16_promoted" and np.max(a) * np.max(b) * a.shape[-1] <= EXACT[traits.acc]:
        return True
    if traits.acc == "f16_promoted":
        depth = traits.tile_k
        tiles = (a[..., at : at + depth] @ b[:, at : at + depth] for at in range(0, a.shape[-1], depth))
        if max(float(np.max(tile)) for tile in tiles) > EXACT["f16"]:
            return False
    return float(np.max(a @ b)) <= EXACT["f16" if traits.acc == "f16" else "f32"]


def _is_whole(values: np.ndarray) -> bool:
    """Return whether all numbers are integers. Most arrays without show it in their first row."""
    return all(np.array_equal(part, np.rint(part)) for part in (values[:1, :1], values))


def _splits(traits: LaunchTraits, k: int, splits: int) -> Iterator[tuple[int, int]]:
    """Yield the range of k of each split, as in templates/common/scheduler.cuh."""
    k_tiles = -(-k // traits.tile_k)
    each, longer = divmod(k_tiles, splits)
    for split in range(splits):
        first, last = ((at * each + min(at, longer)) * traits.tile_k for at in (split, split + 1))
        yield min(first, k), min(last, k)


@dataclass
class _Sum:
    """Exact sums, and what is known of their errors: mean, variance and worst case. Shapes: (batch, m, n)."""

    total: np.ndarray
    bias: np.ndarray
    variance: np.ndarray
    worst: np.ndarray

    def error(self) -> np.ndarray:
        """Return the bound of the error."""
        likely = np.abs(self.bias) + CONFIDENCE * np.sqrt(self.variance)
        return np.asarray(np.minimum(likely, self.worst) * _SECOND_ORDER + _TINY)


def _split(traits: LaunchTraits, a: np.ndarray, b: np.ndarray, first: int, last: int) -> _Sum:
    if traits.acc != "f16_promoted":
        return _chain(traits, a, b, first, last)
    tiles = steps_of(traits, first, last, traits.tile_k) or [(first, first)]
    parts = (_chain(traits, a, b, *tile) for tile in tiles)
    return _add_up(parts, shared=traits.grid_rule == "stream_k")


def group_of(traits: LaunchTraits) -> int:
    """Return how many products a tensor core adds at once."""
    if traits.arch_number < 90:
        return 4 if traits.dtype_a == "tf32" else 8
    return 16 if traits.mma.endswith("k16") else 8


def steps_of(traits: LaunchTraits, first: int, last: int, step: int) -> list[tuple[int, int]]:
    """Return the begin and end of each step of one accumulator over [first, last) of k, in the order of the kernel."""
    split = first
    if traits.last_k_tile_first and last > first:
        split += (last - first - 1) // traits.tile_k * traits.tile_k
    return [
        (at, min(at + step, end)) for begin, end in ((split, last), (first, split)) for at in range(begin, end, step)
    ]


_BLOCK_ELEMENTS = 2**15
"""The sums that are analysed at a time: about ten arrays of so many fit in a cache."""


def _chain(traits: LaunchTraits, a: np.ndarray, b: np.ndarray, first: int, last: int) -> _Sum:
    """Return the sum over [first, last) of k in one accumulator, by blocks of rows."""
    a, b, last, first = a[:, :, first:last], b[:, first:last], last - first, 0  # `first` begins a k-tile
    half_bit = 2.0 ** -(25 if traits.arch_number < 90 else 26)  # half of the lowest bit of an aligned product
    a_all = (a, a * a, np.sign(a) * half_bit, _fineness(a, traits.dtype_a))
    b_all = (b, b * b, np.sign(b), _fineness(b, traits.dtype_b))
    batch, m, n = max(len(a), len(b)), a.shape[1], b.shape[2]
    found = _Sum(*np.zeros((4, batch, m, n)))
    rows = max(1, _BLOCK_ELEMENTS // max(1, batch * n))
    for at in range(0, m, rows):
        block = slice(at, at + rows)
        part = _Sum(*(one[:, block] for one in (found.total, found.bias, found.variance, found.worst)))
        _add_steps(traits, [one if one is None else one[:, block] for one in a_all], b_all, last, part)
    return found


def _add_steps(traits: LaunchTraits, a_all: Sequence[Any], b_all: Sequence[Any], last: int, found: _Sum) -> None:
    """Add [0, last) of k to a sum of zero, step by step. `a_all` has A, its squares, its signs and its fineness.

    Signs of A count half of the lowest bit of an aligned product.

    In stream-K kernels, a new accumulator may start at any k-tile. Then the signs of partial sums are unknown. It may hold any
    later k-tile, if the last one comes first.
    """
    (a, a_squared, a_signs, a_fine), (b, b_squared, b_signs, b_fine) = a_all, b_all
    bias, variance, worst = found.bias, found.variance, found.worst
    shared, group = traits.grid_rule == "stream_k", group_of(traits)
    low: Any = 0.0
    high: Any = 0.0  # smallest and largest sum at which a new accumulator may start
    least = most = np.float64(0)  # smallest and largest sum of a k-tile that comes before others
    if shared and traits.last_k_tile_first and last > traits.tile_k:
        for at, end in steps_of(traits, 0, last, traits.tile_k):
            tile = a[:, :, at:end] @ b[:, at:end]
            least, most = np.minimum(least, tile), np.maximum(most, tile)
    # Results go to arrays that exist, because new ones take as long as a sum.
    total, before, magnitude, earlier, largest, step = np.zeros((6, *found.total.shape))
    needs_before = shared or traits.acc != "f32"
    steps = steps_of(traits, 0, last, STEP)
    for at, end in sorted(steps) if shared else steps:
        count, groups = end - at, -(-(end - at) // group)
        if shared and at % traits.tile_k == 0:
            low, high = np.minimum(low, total), np.maximum(high, total)
            half = _F32_ROUND * _power_of_two(np.abs(total))
            variance += half * half / 3  # the addition to earlier accumulators
            worst += half
        if needs_before:
            before[...] = total
        total += np.matmul(a[:, :, at:end], b[:, at:end], out=step)
        earlier, magnitude = magnitude, earlier
        np.maximum(earlier, np.abs(total, out=magnitude), out=largest)
        if shared:
            largest = np.maximum(np.maximum(before, total) - low + most, high - np.minimum(before, total) - least)
        if traits.acc != "f32":  # f16 sums are rounded after each group, when they may be larger than after the step
            for part in range(at + group, end, group):
                largest = np.maximum(largest, np.abs(before + a[:, :, at:part] @ b[:, at:part]))
        largest *= largest
        largest += np.matmul(a_squared[:, :, at:end], b_squared[:, at:end], out=step)
        unit = _root_power_of_two(largest)
        signs = np.matmul(a_signs[:, :, at:end], b_signs[:, at:end], out=step)
        if shared:
            bias += unit * (groups * _F32_ROUND + np.abs(signs))
        else:
            signs += np.copysign(groups * _F32_ROUND, total)
            signs *= unit
            bias -= signs
        if traits.acc != "f32":
            half = np.maximum(unit * _F16_ROUND, _F16_TINY)
            worst += groups * half
            half *= half
            half *= groups / 3
            variance += half
        unit *= _F32_ROUND
        worst += np.multiply(unit, count + 4 * groups, out=step)
        rounded = count
        if a_fine is not None and b_fine is not None:
            rounded = np.minimum(np.sqrt(2 * unit) * (a_fine[:, :, at:end] @ b_fine[:, at:end]), count)
        unit *= unit
        unit *= rounded / 3
        variance += unit
    found.total[...] = total


def _fineness(values: np.ndarray, dtype: str) -> np.ndarray | None:
    """Return 1 / sqrt(lowest bit) of each number for types whose sums are seldom rounded; None for others.

    With u the lowest bit of a sum and p that of a product, the sum is rounded only if p <= u. So the sum of sqrt(u / p) over the
    products bounds the number of roundings.
    """
    if dtype != "bf16":
        return None
    mantissa, exponent = np.frexp(values)
    digits = np.abs(np.ldexp(mantissa, 24)).astype(np.int64)
    lowest = np.ldexp((digits & -digits).astype(np.float64), exponent - 24)
    return np.where(digits > 0, 1 / np.sqrt(np.where(digits > 0, lowest, 1.0)), 0.0)


def _add_up(parts: Iterator[_Sum], shared: bool) -> _Sum:
    """Return the sum of partial sums in f32 with rounding to nearest. `shared` parts are added in any order."""
    found = next(parts)
    low = high = np.float64(0)
    for part in parts:
        low, high = np.minimum(low, found.total), np.maximum(high, found.total)
        total = found.total + part.total
        largest = np.abs(total) + (np.maximum(total - low, high - total) if shared else 0)
        half = _F32_ROUND * _power_of_two(largest)
        found = _Sum(
            total,
            found.bias + part.bias,
            found.variance + part.variance + half * half / 3,
            found.worst + part.worst + half,
        )
    return found


# ==== Epilogue ====


@dataclass(frozen=True)
class ActivationFormula:
    """An activation in float64.

    Fields: `steepest` is the largest absolute derivative. The f32 code of the kernels has an absolute error of at most
        `error` * (1 + |x|). `exact`: it has the bits of `function` in float32.
    """

    function: Callable[[np.ndarray], np.ndarray]
    steepest: float
    error: float
    exact: bool = False


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * np.asarray(np.frompyfunc(math.erfc, 1, 1)(-x * math.sqrt(0.5)), np.float64)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


ACTIVATION_FORMULAS = {
    "none": ActivationFormula(lambda x: x, 1.0, 0.0, exact=True),
    "relu": ActivationFormula(lambda x: np.where(x < 0, 0.0, x), 1.0, 0.0, exact=True),
    "gelu": ActivationFormula(_gelu, 1.13, 16 * _F32_CUT),
    "silu": ActivationFormula(_silu, 1.1, 2 * _F32_CUT),
    "leaky_relu": ActivationFormula(lambda x: np.where(x < 0, 0.01 * x, x), 1.0, 0.01 * _F32_CUT, exact=True),
}
"""By the word of hgemm.problem.ACTIVATIONS. One cut is 2^-23.

gelu, form atoms: |x| Phi(-|x|) is fitted within 13.4 cuts * (1 + |x|). With |x| Phi(-|x|) <= 0.17, ex2 and the sum of its argument
add less than one cut. A difference and a product follow, less than one cut * |x|.
gelu of a halved sum, in expressions on wgmma: fitted within 13.5 cuts * (1 + |x|). A halved f16 bias below 2^-14 is rounded by at
most 2^-25, half a cut.
gelu, form dsl, by erff: 2 units of erff, two sums and two products, less than 3 cuts.
silu: ex2 has an error of 2^-22, and of 2^-24 |x| for its argument. With s = sigmoid(x), |x| s (1 - s) <= 0.23 and
|x|^2 s (1 - s) <= 0.44, so that is less than half a cut. A sum, rcp and a product follow.
leaky_relu: 0.01 as a float and the product are each rounded, by at most half a cut.
Worst case of ex2 and rcp on 2,000,001 points: gelu 13.6 cuts * (1 + |x|), silu 1.97.

Source: PTX ISA, maximum errors of ex2.approx.ftz.f32 and rcp.approx.ftz.f32; CUDA Programming Guide 13.x, that of erff.
"""


def formula_of(activation: str) -> ActivationFormula:
    """Return the formula of an activation. Raises HgemmError if there is none."""
    found = ACTIVATION_FORMULAS.get(activation)
    if found is None:
        raise HgemmError(
            f"activation {activation} has no float64 reference: add it to ACTIVATION_FORMULAS in hgemm/reference.py"
        )
    return found


def apply_epilogue(
    traits: LaunchTraits,
    product: np.ndarray,
    error: np.ndarray,
    alpha: float,
    beta: float,
    c: np.ndarray | None,
    bias: np.ndarray | None,
) -> Reference:
    """Return activation(alpha * product + beta * C + bias), and the bound before D is rounded."""
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    x = alpha * product
    roundings = int(not _is_power_of_two(alpha))
    largest: Any = abs(alpha) * (np.abs(product) + error) if roundings or c is not None or bias is not None else 0.0
    if c is not None and beta != 0:
        x, largest = x + beta * c, largest + np.abs(beta * c)
        roundings += 1 + (not _is_power_of_two(beta))
    if bias is not None:
        x, largest = x + bias, largest + np.abs(bias)
        roundings += 1
    error = abs(alpha) * error + _TINY
    if roundings:
        error = error + roundings * _F32_ROUND * _SECOND_ORDER * largest
    activation, out = formula_of(traits.activation), DTYPES[traits.dtype_d]
    y = activation.function(x)
    if activation.error:
        error = activation.steepest * error + activation.error * (1 + np.abs(x) + error)
    overflows = np.abs(y) * (1 + out.roundoff) + error + out.underflow > out.largest
    return Reference(y, np.where(overflows, np.inf, error), traits.dtype_d)


def apply_expression(
    traits: LaunchTraits, product: np.ndarray, error: np.ndarray, inputs: Mapping[str, np.ndarray]
) -> Reference:
    """Return the results of a kernel's expression with their bounds. Where there is no bound, the value is NaN, and any passes."""
    assert traits.epilogue is not None
    d, *further = evaluate_all(traits.epilogue, Interval.around(product, error), inputs)
    outputs = (_bounded(one, output.of(traits.dtype_d)) for one, output in zip(further, traits.epilogue.outputs))
    return replace(_bounded(d, traits.dtype_d), outputs=tuple(outputs))


def _bounded(found: Interval, dtype: str) -> Reference:
    largest = np.maximum(np.abs(found.low), np.abs(found.high))
    unknown = ~(largest <= DTYPES[dtype].largest)
    return Reference(np.where(unknown, np.nan, found.exact), np.where(unknown, np.inf, found.error + _TINY), dtype)


def _is_power_of_two(x: float) -> bool:
    return math.frexp(abs(x))[0] in (0.0, 0.5)
