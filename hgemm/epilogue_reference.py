"""The reference of an expression in float64: the exact value of each element, and the interval that holds a kernel's value.

Kernels compute in f32. Each operation of an expression takes intervals to an interval that holds every result that the device
code may have: the ends are evaluated in float64, and widened by the rounding of the operation. Contracted multiplications and
additions (fma) round once instead of twice, so they stay inside. A comparison that may have either result takes both branches.

Where a result is not finite, or may be NaN, there is no bound: any number passes there.

`python -m benchmarks.epilogue_fuzz` compares kernels with random expressions with their intervals.

Source: PTX ISA 9.0, maximum errors of ex2, lg2, rcp, rsqrt, sqrt and div; CUDA Programming Guide 13.x, that of erff.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hgemm.dtypes import DTYPES
from hgemm.epilogue import OF_COLUMNS, PAIR_COLUMNS, Epilogue, as_f32

F32_ROUND, _F32_CUT = 2.0**-24, 2.0**-23
_TINY = 2.0**-126
"""Results below the normal numbers of f32 may be flushed to 0."""
_LARGEST = DTYPES["f32"].largest


Elementwise = Callable[..., Any]
"""A function of numpy on arrays, such as np.less."""


@dataclass(frozen=True)
class Interval:
    """Exact values, and the lowest and highest value that a kernel may have. Shapes: as the operands broadcast."""

    exact: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(cls, exact: np.ndarray, error: np.ndarray | float = 0.0) -> Interval:
        """Return the interval of numbers with an error."""
        return cls(exact, exact - error, exact + error)

    @property
    def error(self) -> np.ndarray:
        """The largest distance from the exact value; NaN or infinite without a bound."""
        error: np.ndarray = np.maximum(self.high - self.exact, self.exact - self.low)
        return error

    def widened(self, relative: float, absolute: np.ndarray | float = 0.0) -> Interval:
        """Return the interval after an operation with this error. Beyond the largest float there is no bound."""
        low = self.low - (np.abs(self.low) * relative + absolute)
        high = self.high + (np.abs(self.high) * relative + absolute)
        return Interval(self.exact, np.where(low < -_LARGEST, -np.inf, low), np.where(high > _LARGEST, np.inf, high))

    def rounded(self) -> Interval:
        """Return the interval after rounding to f32."""
        return self.widened(F32_ROUND, _TINY * F32_ROUND)


@dataclass(frozen=True)
class Condition:
    """Exact results of a comparison, and where a kernel may have the other result."""

    exact: np.ndarray
    uncertain: np.ndarray


# ==== Operations ====


def _mul(x: Interval, y: Interval) -> Interval:
    ends = np.stack(np.broadcast_arrays(x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high))
    return Interval(x.exact * y.exact, ends.min(axis=0), ends.max(axis=0)).rounded()


def _div(x: Interval, y: Interval) -> Interval:
    """div.full has an error of 2 units in the last place. Near a zero there is no bound."""
    ends = np.stack(np.broadcast_arrays(x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high))
    found = Interval(x.exact / y.exact, ends.min(axis=0), ends.max(axis=0)).widened(2 * _F32_CUT, _TINY)
    reaches_zero = ~((y.low > _TINY) | (y.high < -_TINY))
    return Interval(found.exact, np.where(reaches_zero, np.nan, found.low), np.where(reaches_zero, np.nan, found.high))


def _abs(x: Interval) -> Interval:
    low, high = np.abs(x.low), np.abs(x.high)
    across = (x.low <= 0) & (x.high >= 0)
    return Interval(np.abs(x.exact), np.where(across, 0.0, np.minimum(low, high)), np.maximum(low, high))


def _compared(x: Interval, y: Interval, holds: Elementwise) -> Condition:
    """Compare by order: `holds` is np.less or np.less_equal. It is certain if both extremes agree."""
    always, never = holds(x.high, y.low), ~holds(x.low, y.high)
    unknown = np.isnan(x.low) | np.isnan(x.high) | np.isnan(y.low) | np.isnan(y.high)
    return Condition(holds(x.exact, y.exact), unknown | ~(always | never))


def _equal(x: Interval, y: Interval, differs: bool = False) -> Condition:
    exact = x.exact == y.exact
    apart = (x.high < y.low) | (y.high < x.low)
    same = exact & (x.error == 0) & (y.error == 0)
    return Condition(exact != differs, ~(apart | same))


def _where(condition: Condition, x: Interval, y: Interval) -> Interval:
    exact, either = condition.exact, condition.uncertain
    low = np.where(exact, x.low, y.low)
    high = np.where(exact, x.high, y.high)
    return Interval(
        np.where(exact, x.exact, y.exact),
        np.where(either, np.minimum(x.low, y.low), low),
        np.where(either, np.maximum(x.high, y.high), high),
    )


def _rising(
    function: Elementwise, relative: float, absolute: Callable[[np.ndarray], np.ndarray | float] = lambda x: 0.0
) -> Callable[[Interval], Interval]:
    """Return an operation that rises with its argument. Its device code has these errors, the second one by the argument."""

    def apply(x: Interval) -> Interval:
        low, high = function(x.low), function(x.high)
        low = low - (np.abs(low) * relative + absolute(x.low))
        high = high + (np.abs(high) * relative + absolute(x.high))
        return Interval(function(x.exact), low, high).widened(0.0)

    return apply


def _smooth(function: Elementwise, steepest: float, error: float) -> Callable[[Interval], Interval]:
    """Return an operation with a largest slope. Its device code has an absolute error of `error` * (1 + |x|)."""

    def apply(x: Interval) -> Interval:
        reach = x.error
        exact = function(x.exact)
        return Interval.around(exact, steepest * reach + error * (1 + np.abs(x.exact) + reach)).widened(0.0)

    return apply


def _exp(x: Interval) -> Interval:
    """ex2.approx of x log2(e): the argument is rounded twice, by 2^-24 of it each, and the result has an error of 2^-22."""

    def end(at: np.ndarray, sign: float) -> np.ndarray:
        value = np.exp(np.minimum(at, 700.0))
        value = value * (1 + sign * (2.0**-22 + F32_ROUND + 2 * np.abs(at) * _F32_CUT)) + sign * _TINY
        return np.asarray(value)

    return Interval(np.exp(x.exact), end(x.low, -1.0), end(x.high, 1.0)).widened(0.0)


def _log(x: Interval) -> Interval:
    """lg2.approx has an error of 2^-22, absolute between 0.5 and 2 and relative elsewhere."""
    positive = np.where(x.low > _TINY, x.low, np.nan)
    low, high = np.log(positive), np.log(x.high)
    return Interval(np.log(x.exact), low - _log_error(low), high + _log_error(high))


def _log_error(y: np.ndarray) -> np.ndarray:
    error: np.ndarray = 2.0**-22 + np.abs(y) * (2.0**-22 + _F32_CUT)
    return error


def _sqrt(x: Interval) -> Interval:
    low = np.where(x.low >= 0, x.low, np.nan)
    return Interval(np.sqrt(x.exact), np.sqrt(low), np.sqrt(x.high)).widened(_F32_CUT, math.sqrt(_TINY))


def _rsqrt(x: Interval) -> Interval:
    low = np.where(x.low > _TINY, x.low, np.nan)
    return Interval(1 / np.sqrt(x.exact), 1 / np.sqrt(x.high), 1 / np.sqrt(low)).widened(2.0**-22, _TINY)


def _sigmoid_of(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _softplus_of(x: np.ndarray) -> np.ndarray:
    value: np.ndarray = np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
    return value


def _by_element(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    made = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(made(x), np.float64)


_erf_of = _by_element(math.erf)
_erfc_of = _by_element(math.erfc)


def _rounded_to(dtype: str) -> Callable[[Interval], Interval]:
    kind = DTYPES[dtype]

    def apply(x: Interval) -> Interval:
        found = x.widened(kind.roundoff, kind.underflow)
        return Interval(
            x.exact,
            np.where(found.low < -kind.largest, -np.inf, found.low),
            np.where(found.high > kind.largest, np.inf, found.high),
        )

    return apply


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: Interval(x.exact + y.exact, x.low + y.low, x.high + y.high).rounded(),
    "sub": lambda x, y: Interval(x.exact - y.exact, x.low - y.high, x.high - y.low).rounded(),
    "mul": _mul,
    "div": _div,
    "minimum": lambda x, y: _ends(np.minimum, x, y),
    "maximum": lambda x, y: _ends(np.maximum, x, y),
    "neg": lambda x: Interval(-x.exact, -x.high, -x.low),
    "abs": _abs,
    "lt": lambda x, y: _compared(x, y, np.less),
    "le": lambda x, y: _compared(x, y, np.less_equal),
    "eq": _equal,
    "ne": lambda x, y: _equal(x, y, differs=True),
    "where": _where,
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "tanh": _rising(np.tanh, 0.0, lambda x: 4 * _F32_CUT),
    "sigmoid": _rising(_sigmoid_of, 0.0, lambda x: 3 * _F32_CUT),
    "erf": _rising(_erf_of, 3 * _F32_CUT),
    "softplus": _rising(_softplus_of, 2 * _F32_CUT, lambda x: 4 * _F32_CUT),
    "relu": lambda x: Interval(np.maximum(x.exact, 0.0), np.maximum(x.low, 0.0), np.maximum(x.high, 0.0)),
    "gelu": _smooth(lambda x: 0.5 * x * _erfc_of(-x * math.sqrt(0.5)), 1.13, 16 * _F32_CUT),
    "silu": _smooth(lambda x: x * _sigmoid_of(x), 1.1, 2 * _F32_CUT),
    "f16": _rounded_to("f16"),
    "bf16": _rounded_to("bf16"),
}
"""By the name of hgemm.epilogue.OPERATIONS. One cut is 2^-23.

tanh is 1 - 2 / (1 + exp(2 x)). With e = exp(2 x), the error of e is relative, at most (2^-22 + 2^-22 |x|) for |x| < 9, and
e / (1 + e)^2 (1 + |x|) < 0.31; so that is less than one cut; a sum, rcp, a product and a difference follow.
sigmoid is rcp(1 + exp(-x)): less than half a cut from exp, as in silu; a sum and rcp follow.
softplus is max(x, 0) + log(1 + exp(-|x|)): the second term is at most 0.7, with half a cut from exp, and 2^-22 from lg2.
gelu and silu: see ACTIVATION_FORMULAS in hgemm/reference.py.
"""


def _ends(function: Elementwise, x: Interval, y: Interval) -> Interval:
    return Interval(function(x.exact, y.exact), function(x.low, y.low), function(x.high, y.high))


# ==== Evaluation ====


def pair_of(product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both factors of a gated pair. Shapes: the product (batch, m, 2 n), each factor (batch, m, n)."""
    blocks = product.reshape(*product.shape[:-1], -1, 2, PAIR_COLUMNS)
    gate, up = (blocks[..., at, :].reshape(*product.shape[:-1], -1) for at in range(2))
    return gate, up


def evaluate(epilogue: Epilogue, accumulator: Interval, inputs: Mapping[str, np.ndarray]) -> Interval:
    """Return D before it is rounded to its type. Shapes as `evaluate_all`."""
    return evaluate_all(epilogue, accumulator, inputs)[0]


def evaluate_all(epilogue: Epilogue, accumulator: Interval, inputs: Mapping[str, np.ndarray]) -> tuple[Interval, ...]:
    """Return D and the further outputs, before they are rounded to their types. Reductions have one column, or one row.

    Shapes: the accumulator (batch, m, n); inputs broadcast to it, or to (batch, m, n / 2) for a gated pair. Their values are
        exact. Where there is no bound, all three fields are NaN.
    """
    found: list[Interval | Condition] = []
    accumulators = {"acc": accumulator}
    if epilogue.gated:
        ends = zip(*(pair_of(one) for one in (accumulator.exact, accumulator.low, accumulator.high)))
        accumulators = {name: Interval(*one) for name, one in zip(("acc", "up"), ends)}
    with np.errstate(all="ignore"):
        for node in epilogue.nodes:
            if node.op in accumulators:
                found.append(accumulators[node.op])
            elif node.op == "input":
                found.append(Interval.around(np.asarray(inputs[epilogue.inputs[node.arguments[0]].name], np.float64)))
            elif node.op == "constant":
                found.append(Interval.around(np.asarray(as_f32(node.value), np.float64)))
            else:
                found.append(OPERATIONS[node.op](*(found[one] for one in node.arguments)))
        shape = accumulators["acc"].exact.shape
        results = [
            _where_bounded(found[at], shape) for at in (epilogue.result, *(one.node for one in epilogue.outputs))
        ]
        reductions = ("", *(one.reduce for one in epilogue.outputs))
        return tuple(_reduced(one, reduce) if reduce else one for one, reduce in zip(results, reductions))


def _where_bounded(found: Any, shape: tuple[int, ...]) -> Interval:
    exact, low, high = (np.broadcast_to(one, shape) for one in (found.exact, found.low, found.high))
    bounded = np.isfinite(exact) & np.isfinite(low) & np.isfinite(high)
    return Interval(*(np.where(bounded, one, np.nan) for one in (exact, low, high)))


def _reduced(found: Interval, reduce: str) -> Interval:
    """Reduce rows or columns. A sum of n numbers in f32, in any order, has an error of at most n half units of their magnitudes."""
    ends, axis = (found.exact, found.low, found.high), -2 if reduce.startswith(OF_COLUMNS) else -1
    if reduce.endswith("max"):
        return Interval(*(one.max(axis=axis, keepdims=True) for one in ends))
    exact, low, high = (one.sum(axis=axis, keepdims=True) for one in ends)
    largest = np.maximum(np.abs(found.low), np.abs(found.high)).sum(axis=axis, keepdims=True)
    error = found.exact.shape[axis] * (F32_ROUND * largest * 1.01 + _TINY * F32_ROUND)
    return Interval(exact, low - error, high + error).widened(0.0)
