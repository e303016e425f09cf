"""Weights of gated pairs, such as SwiGLU: the columns of both factors alternate in blocks."""

from __future__ import annotations

import sys
from typing import Any

from hgemm.epilogue import PAIR_COLUMNS
from hgemm.errors import ProblemError


def interleave(gate: Any, up: Any, axis: int = -1) -> Any:
    """Return the weights of a gated pair in one new array: PAIR_COLUMNS of `gate`, as many of `up`, and so on.

    The arrays are of NumPy, torch, CuPy or another library with `stack` and `reshape`.

    Shapes: `gate` and `up` have n along `axis`, the result 2 n. For B (k, n), `axis` is -1; for weights (n, k) of a linear
        layer, it is 0.
    Raises: ProblemError if the shapes differ, or n is not a multiple of PAIR_COLUMNS.
    """
    shape = tuple(gate.shape)
    if tuple(up.shape) != shape:
        raise ProblemError(f"gate is {shape} and up {tuple(up.shape)}: pass weights of one shape")
    axis %= len(shape)
    if shape[axis] % PAIR_COLUMNS:
        raise ProblemError(
            f"n is {shape[axis]}: use a multiple of {PAIR_COLUMNS}, or add columns of zeros to both weights"
        )
    blocks = (*shape[:axis], shape[axis] // PAIR_COLUMNS, PAIR_COLUMNS, *shape[axis + 1 :])
    library = sys.modules[type(gate).__module__.partition(".")[0]]
    both = library.stack([gate.reshape(blocks), up.reshape(blocks)], axis + 1)
    return both.reshape((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
