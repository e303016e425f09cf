"""The bits of a product: what the order of accumulation in a record predicts, and data on which another order gives other bits.

A prediction takes operands and the text of an order. It knows no tile, no m, no batch and no schedule. So if a kernel's D equals it
byte for byte, each element's sum has the order of the record, wherever the element lies.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from generator.errors import ProofError
from hgemm.cases import Case, Shape, whole_pairs
from hgemm.dispatch_table import MIN_SHARING_SPLITS
from hgemm.dtypes import DTYPES, encode, representable
from hgemm.epilogue_reference import Interval, evaluate
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import LaunchOptions
from hgemm.reference import OperandValues, formula_of
from hgemm.verification import CheckOptions, Trial

# ==== The order that a record states ====

_DIRECT = (
    r"(?P<warps>\d+) sums, of (?P<warp_k>\d+) k in turn; of 32 k, those with k mod 8 below 4 first; these sums in order, then an "
    r"f32 sum of the last k mod 8 products, one by one"
)
_TEXT = re.compile(
    r"(?P<dtype>f16|bf16|tf32) mma k(?P<mma_k>\d+), "
    r"(?:(?P<sum>f16|f32) sum|f16 sum of each k-tile of (?P<promoted_k>\d+), added in f32); "
    rf"(?:k in order|last k-tile of (?P<last_first_k>\d+) first, then k in order|{_DIRECT})"
    r"(?:; (?P<parts>\d+) parts of whole k-tiles of (?P<part_k>\d+), added in f32 in order of k)?"
)
_VECTOR, _BLOCK = 8, 32
"""Elements of k in a vector of kernels that load fragments from global memory, and in the block of a warp's vectors."""
_PADDING = -1


@dataclass(frozen=True)
class SumOrder:
    """An order of accumulation.

    Fields: `step` is how many products are added at once, with `fraction_bits` bits below the largest. Sums are f16 numbers with
        `to_f16`. With `promoted_k`, each k-tile has an f16 sum. `part_k` is the k-tile of `parts` and of `last_first_k`.
    """

    dtype: str
    step: int
    fraction_bits: int
    to_f16: bool
    promoted_k: int
    last_first_k: int
    warps: int
    warp_k: int
    parts: int
    part_k: int

    @classmethod
    def parse(cls, text: str, arch: int) -> SumOrder | None:
        """Return the order that a record's text states on an architecture, or None if the grid decides it, as in stream-K."""
        found = _TEXT.fullmatch(text)
        if not found:
            return None
        number = {name: int(value or 0) for name, value in found.groupdict().items() if name not in ("dtype", "sum")}
        size = DTYPES[found["dtype"]].bytes
        step_bytes, fraction_bits = (32, 25) if arch >= 90 else (16, 24)
        return cls(
            dtype=found["dtype"],
            step=min(number["mma_k"], step_bytes // size),
            fraction_bits=fraction_bits,
            to_f16=found["sum"] != "f32",
            promoted_k=number["promoted_k"],
            last_first_k=number["last_first_k"],
            warps=number["warps"],
            warp_k=number["warp_k"],
            parts=number["parts"] or 1,
            part_k=number["part_k"],
        )

    def chains(self, k: int) -> Iterator[list[np.ndarray]]:
        """Yield the sums of each part of k: for each, the k that it adds in order, in whole steps. -1 stands for no product."""
        if self.warps:
            yield [self._of_warp(warp, k) for warp in range(self.warps)]
            return
        for first, last in self._parts(k):
            tiles = [np.arange(first, last)]
            if tile := self.last_first_k or self.promoted_k:
                tiles = [np.arange(at, min(at + tile, last)) for at in range(first, last, tile)]
            if self.last_first_k:
                tiles = tiles[-1:] + tiles[:-1]
            joined = (
                tiles if self.promoted_k else [np.concatenate([self._padded(one) for one in tiles])] if tiles else []
            )
            yield [self._padded(one) for one in joined]

    def _parts(self, k: int) -> Iterator[tuple[int, int]]:
        tile = self.part_k or max(1, k)
        each, longer = divmod(-(-k // tile), self.parts)
        for part in range(self.parts):
            first, last = ((at * each + min(at, longer)) * tile for at in (part, part + 1))
            yield min(first, k), min(last, k)

    def _of_warp(self, warp: int, k: int) -> np.ndarray:
        whole = k // _VECTOR * _VECTOR
        first = np.arange(warp * self.warp_k, whole, self.warps * self.warp_k)
        every = (first[:, None] + np.arange(self.warp_k)).reshape(-1, _BLOCK)
        in_block = np.arange(_BLOCK)
        every = every[:, np.lexsort((in_block, in_block % _VECTOR // 2))]  # a register has two elements
        return np.where(every < whole, every, _PADDING).reshape(-1)

    def _padded(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([indices, np.full(-len(indices) % 16, _PADDING)])


def require_order(record: Mapping[str, Any], arch: int) -> SumOrder | None:
    """Return the order of a record on an architecture, None if it has none or the grid decides it. Raises ProofError if unknown."""
    text = record.get("accumulation_order", {}).get("text", "")
    found = SumOrder.parse(text, arch)
    if text and not found and "; parts of " not in text:
        raise ProofError(f"the order of accumulation {text!r} is unknown to this version: generate the kernel again")
    return found


# ==== Prediction ====

Adder = Callable[[SumOrder, np.ndarray, np.ndarray], np.ndarray]
"""Adds the products of a (m, k) and b (k, n) in order of k, in one accumulator."""


@cache
def adder(library: Path) -> Adder:
    """Return the function of `executor/ordered_sum.cpp`, built at this path."""
    function = ctypes.CDLL(str(library)).hgemm_ordered_sum
    function.argtypes = [
        *[ctypes.c_void_p] * 3,
        *[ctypes.c_int64] * 3,
        *[ctypes.c_int32] * 2,
        ctypes.c_float,
        ctypes.c_int32,
    ]
    function.restype = None

    def add(order: SumOrder, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        d = np.zeros((len(a), b.shape[1]), np.float32)
        least = 2.0**-14 if order.dtype == "f16" else 2.0**-126
        sizes = (len(a), b.shape[1], b.shape[0], order.step, order.fraction_bits)
        function(a.ctypes.data, b.ctypes.data, d.ctypes.data, *sizes, least, order.to_f16)
        return d

    return add


def sums_of(order: SumOrder, a: np.ndarray, b: np.ndarray, add: Adder) -> np.ndarray:
    """Return the sums that alpha multiplies, in f32. Shapes: a (m, k), b (k, n), f32 numbers of the operands' types."""
    k = a.shape[1]
    a_padded = np.concatenate([a, np.zeros((len(a), 1), np.float32)], axis=1)
    b_padded = np.concatenate([b, np.zeros((1, b.shape[1]), np.float32)])
    total = np.zeros((len(a), b.shape[1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in order.chains(k):
            found = np.zeros_like(total)
            for indices in part:
                found = found + add(
                    order, np.ascontiguousarray(a_padded[:, indices]), np.ascontiguousarray(b_padded[indices])
                )
            total = total + found
        if order.warps and k % _VECTOR:
            end = np.zeros_like(total)
            for at in range(k // _VECTOR * _VECTOR, k):
                end = end + a[:, at, None] * b[at]
            total = total + end
    return total


_SATURATED = np.float32(128.0)
"""From here on, gelu and silu return their argument, also in the f32 code of the kernels."""
_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
"""The NaN that a GPU computes."""


@dataclass(frozen=True)
class Prediction:
    """The bits of D, and which elements are predicted. Shapes: (batch, m, n)."""

    bits: np.ndarray
    known: np.ndarray

    def differing(self, found: np.ndarray) -> np.ndarray:
        """Return which elements of D differ. NaNs are equal."""
        return self.known & (bits_of(found) != self.bits)


def bits_of(values: np.ndarray) -> np.ndarray:
    """Return the bits of stored elements, with one NaN."""
    words = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    is_f32 = values.itemsize == 4
    exponent, nan = (0x7F800000, 0x7FFFFFFF) if is_f32 else (0x7C00 if values.dtype.kind == "f" else 0x7F80, 0x7FFF)
    return np.where((words & nan) > exponent, np.array(nan, words.dtype), words)


def predicted(
    order: SumOrder, traits: LaunchTraits, operands: OperandValues, add: Adder, splits: int = 1
) -> Prediction:
    """Return the bits of D. alpha and beta must be powers of two, so that the epilogue rounds once for each addend."""
    if traits.decides_splits and splits > 1:
        order = replace(order, parts=splits, part_k=traits.tile_k)
    a, b = operands.a.astype(np.float32), operands.b.astype(np.float32)
    products: dict[tuple[int, int], np.ndarray] = {}
    batches = []
    for at in range(operands.batch):
        key = (at % len(a), at % len(b))
        if key not in products:
            products[key] = sums_of(order, a[key[0]], b[key[1]], add)
        batches.append(products[key])
    if traits.epilogue:
        return _of_expression(traits, operands, np.stack(batches))
    with np.errstate(invalid="ignore", over="ignore"):
        x = np.float32(operands.alpha) * np.stack(batches)
        if operands.c is not None and operands.beta:
            x = x + np.float32(operands.beta) * operands.c.astype(np.float32)
        if operands.bias is not None:
            x = x + operands.bias.astype(np.float32)
        formula = formula_of(traits.activation)
        y = formula.function(x).astype(np.float32)
        known = np.ones(x.shape, bool) if formula.exact else (x > _SATURATED) & (y == x)
        return Prediction(bits_of(_stored(y, traits.dtype_d)), known)


def _of_expression(traits: LaunchTraits, operands: OperandValues, sums: np.ndarray) -> Prediction:
    """Return the bits of D where all results that the device's code may have round to the same number."""
    scalars = {"alpha": np.float32(operands.alpha), "beta": np.float32(operands.beta)}
    found = evaluate(traits.epilogue, Interval.around(sums.astype(np.float64)), {**scalars, **operands.inputs})
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = (bits_of(_stored(end, traits.dtype_d)) for end in (found.low, found.high))
    return Prediction(low, np.isfinite(found.exact) & (low == high))


def _stored(x: np.ndarray, dtype: str) -> np.ndarray:
    bits = encode(x, dtype)
    if dtype == "bf16":  # rounding would carry a NaN into the sign
        bits = np.where(np.isnan(x), np.uint16(_NAN["bf16"]), bits)
    return bits


# ==== Data that reveal the order ====

_PAIRS = 6
"""One in so many k is the first of a pair whose products cancel."""


def revealing(traits: LaunchTraits, case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw A and B so that another order of k almost surely changes the first digits of each element.

    Most products are small. Pairs of large ones, of any k and of many magnitudes, cancel exactly. While a pair is open, the last
    digits of smaller products are lost. So the sum of the small ones depends on which of them come between a pair.
    Shapes: a (batch, m, k), b (batch, k, n).
    """
    shape, k = case.shape, case.shape.k
    small, most = (-2, 6) if traits.acc in ("f16", "f16_promoted") else (-3, 14)
    a = np.ldexp(rng.standard_normal((shape.batch, shape.m, k), np.float32), small)
    b = np.ldexp(rng.standard_normal((shape.batch, k, shape.n), np.float32), small)
    pairs = rng.permutation(k)[: k // _PAIRS * 2].reshape(2, -1)
    for first, second in pairs.T:
        exponent = int(rng.integers(0, most + 1))
        a[:, :, first] = np.ldexp(rng.standard_normal((shape.batch, shape.m), np.float32), exponent // 2)
        a[:, :, second] = -a[:, :, first]
        b[:, first] = np.ldexp(rng.standard_normal((shape.batch, shape.n), np.float32), exponent - exponent // 2)
        b[:, second] = b[:, first]
    return tuple(representable(one, dtype) for one, dtype in ((a, traits.dtype_a), (b, traits.dtype_b)))


_ZERO_ROW, _NAN_ROW = 2, 3


class OrderTrial(Trial):
    """A product whose D is compared with its prediction. With more rows than a tile, some rows of D are zeros, and some NaN."""

    def __init__(self, kernel: Any, case: Case, device: Any, options: CheckOptions) -> None:
        super().__init__(kernel, case, device, options, "normal")
        a, b = revealing(self.traits, case, np.random.default_rng([options.seed, *str(case).encode()]))
        if case.shape.m > self.traits.tile_m:  # rows of whole and of other tiles
            a[:, [_ZERO_ROW, -1]] = 0
            a[:, [_NAN_ROW, -2], 0] = np.nan
        self.operands = replace(self.operands, a=a, b=b)

    def failure(self, order: SumOrder, add: Adder) -> tuple[str, int]:
        """Launch once. Return what is wrong, or "", and how many elements equal their prediction."""
        self.prepare()
        found, failure = self.launch(self.problem())
        if failure:
            return failure, 0
        expected = predicted(order, self.traits, self.operands, add, self.splits)
        wrong = np.argwhere(expected.differing(found))
        if not len(wrong):
            return "", int(expected.known.sum())
        batch, row, column = wrong[0]
        rows, columns = np.unique(wrong[:, 1]), np.unique(wrong[:, 2])
        return (
            f"{len(wrong)} of {found.size} elements do not have the order of the record, in {len(rows)} rows and {len(columns)} "
            f"columns, the first (batch {batch}, row {row}, column {column})"
        ), 0


def order_cases(traits: LaunchTraits) -> list[Case]:
    """Return the problems that show the order: several k-tiles in every part of k, the last one ragged; few rows and many."""
    m, n = traits.tile_m, traits.tile_n
    k = (2 * traits.splits + 1) * traits.tile_k + traits.tile_k // 2 + 11
    alpha = 1.0 if formula_of(traits.activation).exact else 2.0**10
    options = LaunchOptions(1, 0, 1) if traits.decides_splits or traits.decides_raster else None
    shapes = (Shape(m + 5, n + 9, k), Shape(17, n, k, 2), Shape(1, n // 2 + 1, k))
    bias = traits.bias if traits.bias != "launch" else "none"
    cases = [Case(shape, alpha, bias=bias, options=options) for shape in shapes]
    cases[0] = replace(cases[0], alpha=-alpha)  # zeros become -0
    if traits.serial_parts:  # whole tiles first; several CTAs share each of the others, and finish it together or not
        parts = Shape(m + 5, n + 9, 7 * traits.tile_k + traits.tile_k // 2 + 11)
        options = (LaunchOptions(MIN_SHARING_SPLITS, 1, 1), LaunchOptions(3, 4, 1))
        cases += [Case(parts, alpha, bias=bias, options=some) for some in options]
    return whole_pairs(traits, cases)
