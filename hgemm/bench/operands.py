"""Benchmark operands: several sets of random numbers, in total larger than the L2 cache."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hgemm.bench.device import Stream
from hgemm.bench.work import Work
from hgemm.dtypes import DTYPES, encode, representable
from hgemm.epilogue import Input, Output
from hgemm.errors import DeviceError
from hgemm.launch_traits import INPUT, OUTPUT
from hgemm.problem import Aux, Problem

POOL_ELEMENTS = 8 * 2097143
"""Eight times a prime. Rows of a matrix start at different places of the pool, and all copies are aligned."""
ALIGN_BYTES = 256
"""Alignment of each set. Allocations have it, and cuBLASLt's heuristic assumes it by default."""
POISON = 0xFF
"""Fill byte. It gives a NaN in every element type, with bits that hardware never computes."""


class Pool:
    """Normal random numbers of one type, on the host and on the device. Operands are filled from it."""

    def __init__(self, stream: Stream, dtype: str, seed: int) -> None:
        self.stream, self.item = stream, DTYPES[dtype].bytes
        drawn = np.random.default_rng(seed).standard_normal(POOL_ELEMENTS, np.float32)
        self.stored = encode(representable(drawn, dtype), dtype)
        self.pointer = stream.device.allocate(POOL_ELEMENTS * self.item)
        stream.device.upload(self.pointer, self.stored.ctypes.data, POOL_ELEMENTS * self.item)
        stream.device.synchronize()  # the copy may end after the call, and the stream does not wait for it

    def fill(self, pointer: int, elements: int) -> None:
        """Fill memory with repetitions of the pool."""
        for first in range(0, elements, POOL_ELEMENTS):
            count = min(POOL_ELEMENTS, elements - first)
            self.stream.copy(pointer + first * self.item, self.pointer, count * self.item)

    def at(self, index: np.ndarray) -> np.ndarray:
        """Return the stored elements at some indices of memory that `fill` filled."""
        return np.asarray(self.stored[index % POOL_ELEMENTS])

    def free(self) -> None:
        self.stream.device.free(self.pointer)


@dataclass(frozen=True)
class Dense:
    """Storage of one operand: sets of `batch` matrices of `rows` by `columns`, without gaps. Units: elements."""

    rows: int
    columns: int
    batch: int
    dtype: str

    @property
    def item(self) -> int:
        return DTYPES[self.dtype].bytes

    @property
    def stride(self) -> int:
        """Return the distance between matrices of a batch."""
        return self.rows * self.columns

    @property
    def pitch(self) -> int:
        """Return the distance between sets."""
        align = ALIGN_BYTES // self.item
        return -(-self.stride * self.batch // align) * align


def dense(work: Work) -> dict[str, Dense]:
    """Return how A, B and D of a problem are stored."""
    a = (work.m, work.k) if work.layout[0] == "t" else (work.k, work.m)
    b = (work.n, work.k) if work.layout[1] == "n" else (work.k, work.n)
    return {
        "a": Dense(*a, work.batch, work.dtype_a),
        "b": Dense(*b, work.batch, work.dtype_b),
        "d": Dense(work.m, work.columns_of_d, work.batch, work.dtype_d),
    }


def expression_operands(work: Work) -> dict[str, Dense]:
    """Return how the inputs of an expression that are no scalars, and its further results, are stored."""
    if not work.parsed:
        return {}
    given: dict[str, Input | Output] = {INPUT + one.name: one for one in work.parsed.operands if one.kind != "scalar"}
    given |= {OUTPUT + one.name: one for one in work.parsed.outputs}
    shapes = {
        "row": (1, work.columns_of_d),
        "column": (1, work.m),
        "matrix": (work.m, work.columns_of_d),
    }
    return {name: Dense(*shapes[one.kind], work.batch, one.of(work.dtype_d)) for name, one in given.items()}


SCALAR = 0.5
"""The value of all scalars of an expression, except alpha and beta, which are 1."""


class Operands:
    """Several sets of a problem's operands, used in turn. Together they exceed the L2 cache several times.

    A and B come from different pools. If a row of A equals a column of B, one element of D is as large as k.
    f16 accumulators round such an element far more than the others. A bias lies at the beginning of the pool `bias`. Inputs of an
    expression have a pool of each type.
    """

    def __init__(
        self, stream: Stream, work: Work, pools: Mapping[str, Pool], min_bytes: int, sets: tuple[int, int]
    ) -> None:
        self.stream, self.work, self.pools = stream, work, pools
        self.places = dense(work) | expression_operands(work)
        if self.bias_elements > POOL_ELEMENTS:
            raise DeviceError(f"{work.key}: a bias of {self.bias_elements:,} exceeds {POOL_ELEMENTS:,} elements")
        set_bytes = sum(place.pitch * place.item for place in self.places.values())
        self.sets = min(sets[1], max(sets[0], math.ceil(min_bytes / set_bytes)))
        self.total_bytes = self.sets * set_bytes
        self.memory = stream.device.allocate(self.total_bytes)
        self.blocks: dict[str, int] = {}
        end = self.memory
        for name, place in self.places.items():
            self.blocks[name], end = end, end + self.sets * place.pitch * place.item
            if name != "d" and not name.startswith(OUTPUT):
                self.pool(name).fill(self.blocks[name], self.sets * place.pitch)
        self.poison()
        stream.synchronize()

    @property
    def bias_elements(self) -> int:
        """Elements of the bias, which all sets share."""
        return {"row": self.work.n, "column": self.work.m}.get(self.work.bias, 0)

    def bias(self) -> np.ndarray:
        """Return the elements of the bias, as stored."""
        return self.pools["bias"].stored[: self.bias_elements]

    def pool(self, name: str) -> Pool:
        """Return the pool of an operand: of A, of B, or of the type of an input."""
        return self.pools[INPUT + self.places[name].dtype if name.startswith(INPUT) else name]

    def poison(self) -> None:
        """Fill D of the first set with bits that no kernel writes."""
        place = self.places["d"]
        self.stream.fill(self.blocks["d"], POISON, place.pitch * place.item)

    def problem(self, at: int, workspace: int = 0) -> Problem:
        """Return the problem of one set."""
        fields: dict[str, Any] = {"workspace": workspace}
        if self.bias_elements:
            fields["bias"] = self.pools["bias"].pointer
        for name, place in self.places.items():
            if name in ("a", "b", "d"):
                fields[name] = self._address(name, at)
                fields[f"ld{name}"] = place.columns
                fields[f"batch_stride_{name}"] = place.stride if place.batch > 1 else 0
        if expression := self.work.parsed:
            fields["beta"] = float(expression.takes("beta"))
            fields["aux"] = tuple(
                Aux(value=SCALAR) if one.kind == "scalar" else self._aux(prefix + one.name, one.kind, at)
                for prefix, group in ((INPUT, expression.operands), (OUTPUT, expression.outputs))
                for one in group
            )
        return Problem(*self.work.extents, **fields, bias_kind=self.work.bias)

    def _address(self, name: str, at: int) -> int:
        place = self.places[name]
        return self.blocks[name] + at * place.pitch * place.item

    def _aux(self, name: str, kind: str, at: int) -> Aux:
        place = self.places[name]
        leading = place.columns if kind == "matrix" else 0
        return Aux(self._address(name, at), leading, place.stride if place.batch > 1 else 0)

    def stored(self, name: str, batch: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return elements of A, B or an input of the first set, as stored. Shapes: (rows, columns)."""
        place = self.places[name]
        index = batch * place.stride + rows[:, None].astype(np.int64) * place.columns + columns[None, :]
        return self.pool(name).at(index)

    def free(self) -> None:
        self.stream.device.free(self.memory)


# ---- Copy bandwidth: the reference for kernels that mostly read weights ----------------------------------------------


COPIED_BYTES = 256 << 20
_COPIES, _SAMPLES = 4, 5


def copy_bytes_per_s(stream: Stream) -> float:
    """Return the bytes read and written per second by copies between two blocks larger than the L2 cache."""
    device = stream.device
    blocks = to, source = device.allocate(COPIED_BYTES), device.allocate(COPIED_BYTES)
    try:
        for block in blocks:
            stream.fill(block, 1, COPIED_BYTES)
        graph = stream.capture([lambda: stream.copy(to, source, COPIED_BYTES)] * _COPIES)
        times_ms = [stream.timed(lambda: stream.replay(graph))() for _ in range(_SAMPLES)]
        graph.free()
        return 2 * COPIED_BYTES * _COPIES / statistics.median(times_ms) * 1e3
    finally:
        for block in blocks:
            device.free(block)
