"""The operands of a checked problem: random numbers, and where they lie."""

from __future__ import annotations

import numpy as np

from hgemm.buffers import Place
from hgemm.cases import Case
from hgemm.dtypes import decode, encode, representable
from hgemm.facts import Facts
from hgemm.reference import Operands

LOOSE_ROWS, LOOSE_MATRICES = 3, 5
"""What a loose case leaves unused after a row and after a matrix, in units of the alignment."""
_NONZERO_PRODUCTS = 1500.0
_DENSITY = 0.6
_LARGEST_ADDEND = 8
_UNSCALED_K = 2**14
"""Up to here sums of products of two normal numbers stay below a third of what f16 holds."""


def places(facts: Facts, case: Case) -> dict[str, Place]:
    """Return where each operand of a case lies, as tight as the variant's alignments allow, or loosely."""
    s = case.shape
    extents = {
        "a": ((s.m, s.k) if facts.a_k_major else (s.k, s.m), facts.dtype_a, facts.align_a),
        "b": ((s.n, s.k) if facts.b_k_major else (s.k, s.n), facts.dtype_b, facts.align_b),
        "c": ((s.m, s.n), facts.dtype_d, facts.align_d),
        "d": ((s.m, s.n), facts.dtype_d, facts.align_d),
        "bias": ((1, s.n if facts.bias == "row" else s.m), facts.dtype_d, 1),
    }
    loose_rows, loose_matrices = (LOOSE_ROWS, LOOSE_MATRICES) if case.loose else (0, 0)
    found = {}
    for name, ((rows, columns), dtype, align) in extents.items():
        leading = (-(-columns // align) + loose_rows) * align
        stride = leading * rows + loose_matrices * align
        found[name] = Place(rows, columns, leading, _batch(case, name), stride, dtype, align)
    return found


def _batch(case: Case, name: str) -> int:
    return 1 if name in case.broadcast.split(",") else case.shape.batch


def draw(facts: Facts, case: Case, kind: str, rng: np.random.Generator) -> Operands:
    """Draw operands, rounded to their types, whose sums no accumulator overflows on.

    Those of loose cases are rounded to what is stored only, others to what tensor cores take of it: tf32 are floats there.

    Kind `integer` keeps the sums of absolute products within what the accumulator holds exactly, so that nothing but
    the rounding of D is allowed for; `normal` has all the digits.
    """
    make = _integers if kind == "integer" else _normals
    s = case.shape
    a, b = make(rng, facts, s.k, (_batch(case, "a"), s.m, s.k), (_batch(case, "b"), s.k, s.n))
    bias_shape = (1, s.n) if facts.bias == "row" else (s.m, 1)
    c = _addend(kind, rng, (_batch(case, "c"), s.m, s.n)) if case.beta else None
    bias = _addend(kind, rng, (_batch(case, "bias"), *bias_shape)) if facts.bias != "none" else None
    taken = stored_digits if case.loose else representable
    return Operands(
        taken(a, facts.dtype_a),
        taken(b, facts.dtype_b),
        None if c is None else stored_digits(c, facts.dtype_d),
        None if bias is None else stored_digits(bias, facts.dtype_d),
        case.alpha,
        case.beta,
    )


def _integers(rng: np.random.Generator, facts: Facts, k: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Draw -1, 0 and 1, so thinly for f16 accumulators that some 700 of k products are not 0: fewer than 2048."""
    density = _DENSITY if facts.acc == "f32" else min(_DENSITY, float(np.sqrt(_NONZERO_PRODUCTS / max(1, k))))
    return [(rng.integers(-1, 2, size) * (rng.random(size) < density)).astype(np.float32) for size in shapes]


def _normals(rng: np.random.Generator, facts: Facts, k: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    a, b = (rng.standard_normal(size, np.float32) for size in shapes)
    if facts.acc != "f32" and k > _UNSCALED_K:
        a *= np.float32(2.0 ** -np.ceil(np.log2(k / _UNSCALED_K)))
    return [a, b]


def _addend(kind: str, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    if kind == "integer":
        return rng.integers(-_LARGEST_ADDEND, _LARGEST_ADDEND + 1, size).astype(np.float32)
    return rng.standard_normal(size, np.float32)


def stored_digits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round numbers to what memory holds of them."""
    return decode(encode(values, dtype), dtype)


def stored(facts: Facts, operands: Operands) -> dict[str, np.ndarray]:
    """Return the operands as they are stored. Shapes: (batch, rows, columns) of `places`."""
    a = operands.a if facts.a_k_major else operands.a.swapaxes(1, 2)
    b = operands.b.swapaxes(1, 2) if facts.b_k_major else operands.b
    found = {"a": encode(a, facts.dtype_a), "b": encode(b, facts.dtype_b)}
    if operands.c is not None:
        found["c"] = encode(operands.c, facts.dtype_d)
    if operands.bias is not None:
        found["bias"] = encode(operands.bias.reshape(len(operands.bias), 1, -1), facts.dtype_d)
    return found
