"""The reference of a product in float64, and a bound of the error of each element for a variant's arithmetic.

The bound is a running error analysis (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3). Each rounding adds
at most a roundoff times the largest possible value at that point, and errors add up. So it is a strict bound, but it grows with
the actual partial sums, not with the worst possible ones.

Tensor cores. Products of two inputs are exact. An instruction adds them to the accumulator in groups of 4, 8 or 16 along k. Within
a group, all terms are aligned to the largest one and truncated below its 24 bits, and the sum is truncated once more. So a group
of b terms has b + 2 truncations of 2**-23 of the largest term. Groups of 4 are the worst case: 4 x 6 = 24 truncations for 16 of k.
With f16 accumulators, the sum of each group is also rounded to f16, with an error of 2**-10 if it is truncated.
Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330
    (2021); Blanchard, Higham, Lopez, Mary, Pranesh, "Mixed precision block fused multiply-add", SIAM J. Sci. Comput.
    42 (2020).

tf32 inputs are stored as f32, but their lowest 13 bits are not multiplied. PTX ISA 9.0 ("Alternate floating-point data formats")
does not say whether they are truncated or rounded. So each input with such bits has an error below 2**-10.

Integers have no error in any order of additions if the sum of absolute products fits into the accumulator. Then the bound is 0,
and the check detects a single missing or additional element.

Inputs must be small enough that no accumulator overflows. Bounds are infinite for elements of D that may overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hgemm.dtypes import DTYPES, truncation_error
from hgemm.errors import HgemmError
from hgemm.launch_traits import LaunchTraits

STEP = 16
"""Elements of k in one step of the analysis: one mma.m16n8k16, or two m16n8k8, which have as many groups."""
_GROUPS, _CUTS = 4, 24
_F32_CUT, _F32_ROUND, _F16_CUT = 2.0**-23, 2.0**-24, 2.0**-10
_SECOND_ORDER = 1.01
"""Covers products of errors: roundings of values that the same step has already rounded. (1 + 2**-10)**4 < 1.01."""
_TINY = 2.0**-120
"""More than the sum of all f32 underflows."""
_F64_STEP = 2.0**-48
"""More than the error of float64 in a step of 16."""


@dataclass(frozen=True)
class Reference:
    """Exact results and a bound of the error of each. Shapes: (batch, m, n), or the requested rows."""

    values: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True)
class Operands:
    """The operands in float64.

    Shapes: a (batch, m, k), b (batch, k, n), c (batch, m, n), bias (batch, 1, n) or (batch, m, 1). A batch of 1 is shared.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    alpha: float = 1.0
    beta: float = 0.0


def reference(traits: LaunchTraits, operands: Operands, rows: np.ndarray | None = None, splits: int = 1) -> Reference:
    """Return D, or `rows` of it, and the error bound of each element. `splits` are those of the launch, if it decides them.

    If only some tiles are split, the bound holds for both kinds.
    """
    if traits.decides_splits and splits > 1:
        whole, split = (
            reference(replace(traits, grid_rule="split_k", splits=count), operands, rows) for count in (1, splits)
        )
        return Reference(split.values, np.maximum(whole.bound, split.bound))
    a, c, bias = operands.a, operands.c, operands.bias
    if rows is not None:
        a = a[:, rows]
        c = None if c is None else c[:, rows]
        bias = bias[:, rows] if bias is not None and bias.shape[1] > 1 else bias
    product, error = accumulate(traits, a, operands.b)
    return apply_epilogue(traits, product, error, operands.alpha, operands.beta, c, bias)


# ==== A times B ====


def accumulate(traits: LaunchTraits, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A B and a bound of the error of its accumulation, including the sum of split-K parts."""
    lost = _unread_error(traits, a, b)
    if lost is None and _is_exact(traits, a, b):
        product = a @ b
        return product, np.zeros_like(product)
    parts = (_split(traits, a, b, first, last) for first, last in _splits(traits, a.shape[-1]))
    product, error = next(parts) if traits.splits == 1 else _add_up(parts, shared=False)
    return product, error if lost is None else error + lost * _SECOND_ORDER


def _unread_error(traits: LaunchTraits, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return the error from input bits that tensor cores ignore, or None if there are none."""
    a_lost, b_lost = truncation_error(a, traits.dtype_a), truncation_error(b, traits.dtype_b)
    if not (a_lost.any() or b_lost.any()):
        return None
    return a_lost @ (np.abs(b) + b_lost) + np.abs(a) @ b_lost


def _is_exact(traits: LaunchTraits, a: np.ndarray, b: np.ndarray) -> bool:
    whole = bool(np.all(a == np.rint(a)) and np.all(b == np.rint(b)))
    holds = 2.0**24 if traits.acc == "f32" else 2.0**11
    return whole and float(np.max(np.abs(a) @ np.abs(b))) <= holds


def _splits(traits: LaunchTraits, k: int) -> Iterator[tuple[int, int]]:
    """Yield the range of k of each split, as in templates/common/scheduler.cuh."""
    k_tiles = -(-k // traits.tile_k)
    for split in range(traits.splits):
        each, longer = divmod(k_tiles, traits.splits)
        first, last = ((at * each + min(at, longer)) * traits.tile_k for at in (split, split + 1))
        yield min(first, k), min(last, k)


def _split(traits: LaunchTraits, a: np.ndarray, b: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    if traits.acc != "f16_promoted":
        return _chain(traits, a, b, first, last)
    tiles = range(first, max(last, first + 1), traits.tile_k)
    parts = (_chain(traits, a, b, at, min(at + traits.tile_k, last)) for at in tiles)
    return _add_up(parts, shared=traits.grid_rule == "stream_k")


def _chain(traits: LaunchTraits, a: np.ndarray, b: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum over [first, last) of k in one accumulator, and its error.

    In stream-K kernels, a new accumulator may start at any k-tile.
    """
    shared = traits.grid_rule == "stream_k"
    low = high = np.float64(0)  # smallest and largest sum at which a new accumulator may start
    total = np.zeros((max(len(a), len(b)), a.shape[1], b.shape[2]))
    error = np.zeros_like(total)
    relative, absolute = _CUTS * _F32_CUT + _F64_STEP, _TINY
    if traits.acc != "f32":
        relative, absolute = relative + _GROUPS * _F16_CUT, absolute + _GROUPS * 2.0**-24
    for at in range(first, last, STEP):
        a_step, b_step = a[:, :, at : min(at + STEP, last)], b[:, at : min(at + STEP, last)]
        largest = np.abs(a_step) @ np.abs(b_step)
        if shared and at % traits.tile_k == 0:
            low, high = np.minimum(low, total), np.maximum(high, total)
            error += _F32_ROUND * _SECOND_ORDER * (np.abs(total) + error)  # the addition to earlier accumulators
        largest += np.maximum(total - low, high - total) if shared else np.abs(total)
        largest += error
        largest *= _SECOND_ORDER * relative
        error += largest
        error += absolute
        total += a_step @ b_step
    return total, error


def _add_up(parts: Iterator[tuple[np.ndarray, np.ndarray]], shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of partial sums in f32 with rounding to nearest, and its error. `shared` parts are added in any order."""
    total, error = next(parts)
    low = high = np.float64(0)
    for part, part_error in parts:
        low, high = np.minimum(low, total), np.maximum(high, total)
        total, error = total + part, error + part_error
        largest = np.abs(total) + (np.maximum(total - low, high - total) if shared else 0)
        error = error + _F32_ROUND * _SECOND_ORDER * (largest + error)
    return total, error


# ==== Epilogue ====


@dataclass(frozen=True)
class ActivationFormula:
    """An activation in float64.

    Fields: `steepest` is the largest absolute derivative. The f32 code of the kernels has an absolute error of at most
        `error` * (1 + |x|).
    """

    function: Callable[[np.ndarray], np.ndarray]
    steepest: float
    error: float


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * np.frompyfunc(math.erfc, 1, 1)(-x * math.sqrt(0.5)).astype(np.float64)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


ACTIVATION_FORMULAS = {
    "none": ActivationFormula(lambda x: x, 1.0, 0.0),
    "relu": ActivationFormula(lambda x: np.maximum(x, 0.0), 1.0, 0.0),
    "gelu": ActivationFormula(_gelu, 1.13, 4 * _F32_CUT),
    "silu": ActivationFormula(_silu, 1.1, 2 * _F32_CUT),
    "leaky_relu": ActivationFormula(lambda x: np.where(x < 0, 0.01 * x, x), 1.0, 0.01 * _F32_CUT),
}
"""By the word of hgemm.problem.ACTIVATIONS. One cut is 2^-23.

gelu, form atoms: Phi(-|x|) is fitted within 4.4e-8 / |x|. Its error is 2^-22 for ex2, 2^-23 for rcp, and at most five cuts for
its sum and products. With |x| Phi(-|x|) <= 0.17 that is less than 2 cuts. A difference and a product follow.
gelu, form dsl, by erff: 2 units of erff, two sums and two products, less than 3 cuts.
silu: ex2 has an error of 2^-22, and of 2^-24 |x| for its argument. With s = sigmoid(x), |x| s (1 - s) <= 0.23 and
|x|^2 s (1 - s) <= 0.44, so that is less than half a cut. A sum, rcp and a product follow.
leaky_relu: 0.01 as a float and the product are each rounded, by at most half a cut.
Worst case of ex2 and rcp on 2,000,001 points: gelu 1.07 cuts * (1 + |x|), silu 1.97.

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
    """Return activation(alpha * product + beta * C + bias), and the bound after D is rounded."""
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    x, largest = alpha * product, abs(alpha) * (np.abs(product) + error)
    for term in (beta * c if c is not None and beta != 0 else None, bias):
        if term is not None:
            x, largest = x + term, largest + np.abs(term)
    error = abs(alpha) * error + 4 * _F32_ROUND * _SECOND_ORDER * largest + _TINY  # two products and two sums
    activation, out = formula_of(traits.activation), DTYPES[traits.dtype_d]
    y = activation.function(x)
    error = activation.steepest * error + activation.error * (1 + np.abs(x) + error)
    rounding = 0.0 if traits.dtype_d == "f32" else out.roundoff
    bound = error + rounding * (np.abs(y) + error) + out.underflow
    return Reference(y, np.where(np.abs(y) + bound > out.largest, np.inf, bound))
