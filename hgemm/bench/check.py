"""The check of what is timed: every element written, and a sample compared with the exact product."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hgemm.bench.contenders import OURS, Launch
from hgemm.bench.operands import POISON, Operands
from hgemm.bench.protocol import Tolerance
from hgemm.dtypes import DTYPES, decode

WHOLE_BYTES = 64 << 20
"""A larger D is looked at in some of its rows."""
BASELINE_LENIENCY = 4.0
"""A baseline may round more often than we know of, such as partial sums in f16; it is not left out for that."""
ROWS, COLUMNS = 24, 160
"""The sample: so many rows and columns cross nearly every CTA tile's row or column."""


class Sample:
    """Some rows and columns of the first set's D, of its first and its last matrix, and their exact values."""

    def __init__(self, operands: Operands, seed: int) -> None:
        self.operands = operands
        work, rng = operands.work, np.random.default_rng(seed)
        self.rows = _some(rng, work.m, ROWS)
        self.columns = _some(rng, work.n, COLUMNS)
        self.batches = sorted({0, work.batch - 1})

    @cached_property
    def exact(self) -> np.ndarray:
        """Return the product in float64. Shapes: (batches, rows, columns)."""
        work, along_k = self.operands.work, np.arange(self.operands.work.k)
        found = []
        for batch in self.batches:
            ends = (self.rows, along_k) if work.layout[0] == "t" else (along_k, self.rows)
            a = decode(self.operands.stored("a", batch, *ends), work.dtype_a)
            ends = (self.columns, along_k) if work.layout[1] == "n" else (along_k, self.columns)
            b = decode(self.operands.stored("b", batch, *ends), work.dtype_b)
            found.append((a if work.layout[0] == "t" else a.T) @ (b.T if work.layout[1] == "n" else b))
        return np.stack(found)

    def complaint(self, launch: Launch, side: str = OURS, acc: str = "") -> str:
        """Launch once on the first set, its output poisoned before; say what is wrong, or nothing.

        `acc` is what the launch accumulates in, where that is not the problem's.
        """
        operands, work = self.operands, self.operands.work
        operands.poison()
        launch()
        operands.stream.synchronize()
        rows = [self._rows(batch) for batch in self.batches]
        unwritten = sum(int(np.count_nonzero(_poisoned(part))) for part in rows)
        if unwritten:
            return f"{unwritten} elements of D were not written"
        picked = self.rows if len(rows[0]) == work.m else np.arange(len(self.rows))
        values = np.stack([decode(part[np.ix_(picked, self.columns)], work.dtype_d) for part in rows])
        tolerance = Tolerance.of(work.k, acc or work.acc, work.dtype_d)
        return _compare(values, self.exact, tolerance if side == OURS else tolerance.times(BASELINE_LENIENCY))

    def _rows(self, batch: int) -> np.ndarray:
        """Return one matrix of D as stored, or its sampled rows where it is large. Shapes: (rows, n)."""
        place, device = self.operands.places["d"], self.operands.stream.device
        first = self.operands.blocks["d"] + batch * place.stride * place.item
        whole = place.stride * place.item <= WHOLE_BYTES
        found = np.empty((place.rows if whole else len(self.rows), place.columns), DTYPES[place.dtype].storage)
        if whole:
            device.download(found.ctypes.data, first, found.nbytes)
            return found
        for at, row in enumerate(self.rows):
            source = first + int(row) * place.columns * place.item
            device.download(found[at].ctypes.data, source, found[at].nbytes)
        return found


def _some(rng: np.random.Generator, extent: int, count: int) -> np.ndarray:
    """Return the first, the last and some places between, in order."""
    if extent <= count:
        return np.arange(extent)
    return np.unique([0, extent - 1, *rng.choice(extent, count - 2, replace=False)])


def _poisoned(stored: np.ndarray) -> np.ndarray:
    word = int.from_bytes(bytes([POISON]) * stored.itemsize, "little")
    return stored.view(f"<u{stored.itemsize}") == word


def _compare(values: np.ndarray, exact: np.ndarray, tolerance: Tolerance) -> str:
    error = np.abs(values - exact)
    over = int(np.count_nonzero(~(error <= tolerance.absolute + tolerance.relative * np.abs(exact))))
    norm = float(np.linalg.norm(error) / max(float(np.linalg.norm(exact)), 1e-30))
    # The norm of a few numbers says nothing: a product of one element may be anywhere near zero.
    if over or (exact.size > 1000 and not norm <= tolerance.norm):
        return f"{over} of {exact.size} sampled elements are off, relative norm {norm:.3g}"
    return ""
