"""A machine without a GPU that `hgemm.verify` checks variants on: the host's memory, and launches on the executor.

It stands in for a device and a kernel of `hgemm`, so that both check the same cases with the same operands, by the same
reference and the same bound.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np

from generator.executor import abi
from generator.executor.abi import Adversary, Executable, Launch, Region, Report
from hgemm.checks import check
from hgemm.dtypes import DTYPES
from hgemm.errors import DeviceError
from hgemm.facts import Facts
from hgemm.launch import counter_bytes, grid_x, workspace_bytes
from hgemm.matrices import Matrix, matrices
from hgemm.problem import Problem
from hgemm.tensor_maps import MAP_BYTES, OPERANDS, geometry

_ALIGN_BYTES = 256
"""What allocations begin on, as those of a device do."""
PERSISTENT_CTAS = 3
"""CTAs that a persistent variant gets, few, so that each takes several tiles."""
RESIDENT_CTAS = 4
"""CTAs that run side by side, in clusters; no more are needed, since no CTA waits for a later one."""
STEP_LIMIT = 50_000_000
"""Warp instructions of one launch; the largest case takes a hundredth."""
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class HostMemory:
    """The memory of a device that is the host's."""

    ordinal = 0

    def __init__(self) -> None:
        self._blocks: dict[int, np.ndarray] = {}

    def allocate(self, size_bytes: int) -> int:
        block = np.empty(size_bytes + _ALIGN_BYTES, np.uint8)
        pointer = -(-block.ctypes.data // _ALIGN_BYTES) * _ALIGN_BYTES
        self._blocks[pointer] = block
        return pointer

    def free(self, pointer: int) -> None:
        del self._blocks[pointer]

    def upload(self, pointer: int, host: int, size_bytes: int) -> None:
        ctypes.memmove(pointer, host, size_bytes)

    def download(self, host: int, pointer: int, size_bytes: int) -> None:
        ctypes.memmove(host, pointer, size_bytes)


@dataclass
class EmulatedKernel:
    """A variant that is launched on the executor: each launch meets the next adversary, and its report is kept."""

    facts: Facts
    executable: Executable
    adversaries: tuple[Adversary, ...]
    workers: int = PERSISTENT_CTAS
    reports: list[tuple[Adversary, Report]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = cycle(self.adversaries)

    def launch(self, problem: Problem, *, device: int = 0, workspace_size: int | None = None) -> None:
        """Check a problem, zero its counters and run it to the end. Raises ProblemError or DeviceError."""
        check(problem, self.facts, workspace_size)
        counters = counter_bytes(self.facts, problem.m, problem.n, problem.batch)
        if counters:
            ctypes.memset(problem.workspace, 0, counters)
        adversary = next(self._next)
        self.reports.append((adversary, self.executable.run(launch_of(self.facts, problem, self.workers), adversary)))


def launch_of(facts: Facts, problem: Problem, workers: int = PERSISTENT_CTAS) -> Launch:
    """Return the launch of a problem: its grid, its parameters, and the memory that it may touch.

    `workers` is how many CTAs, or clusters, the machine holds of a variant whose grid depends on that.
    """
    grid = grid_x(facts, problem.m, problem.n, problem.batch, workers * facts.cluster[0])
    parameters = [problem.pack()]
    if facts.tensor_maps:
        parameters.append(host_maps(facts, problem))
    return Launch(
        grid_x=grid,
        cluster_ctas=facts.cluster[0],
        threads=facts.threads,
        smem_bytes=facts.smem_bytes + facts.static_smem_bytes,
        parameters=tuple(parameters),
        regions=tuple(regions(facts, problem, grid)),
        resident_ctas=RESIDENT_CTAS * facts.cluster[0],
        step_limit=STEP_LIMIT,
    )


def regions(facts: Facts, problem: Problem, grid: int) -> Iterator[Region]:
    """Yield what a launch of `grid` CTAs may touch, and how.

    An operand whose rows run along m or n may be read to the end of a chunk, and of one that is shifted on its way also the
    neighbours of what is wanted.
    """
    readable = abi.READABLE | abi.INITIALISED
    flags = {
        "A": readable | _beside(facts, "a", facts.a_k_major),
        "B": readable | _beside(facts, "b", facts.b_k_major),
        "D": abi.WRITABLE | abi.WRITE_ONCE | (abi.INITIALISED if problem.c == problem.d and problem.beta else 0),
    }
    for name, matrix in matrices(problem, facts).items():
        yield _region(matrix, flags.get(name, readable))
    yield from _workspace(facts, problem, grid)


def _beside(facts: Facts, operand: str, k_major: bool) -> int:
    """Return what may be read beside an operand's elements."""
    return (0 if k_major else abi.PADDING_READABLE) | (abi.MATRIX_READABLE if facts.shifts(operand) else 0)


def _region(matrix: Matrix, flags: int) -> Region:
    size = matrix.element_bytes
    return Region(
        name=matrix.name,
        base=matrix.pointer,
        rows=matrix.rows,
        row_bytes=matrix.columns * size,
        pitch_bytes=matrix.leading * size,
        batches=matrix.batch,
        batch_stride_bytes=matrix.batch_stride * size,
        element_bytes=size,
        flags=flags,
    )


def _workspace(facts: Facts, problem: Problem, grid: int) -> Iterator[Region]:
    counters = counter_bytes(facts, problem.m, problem.n, problem.batch)
    used = replace(facts, max_ctas=min(grid, facts.max_ctas))
    partials = workspace_bytes(used, problem.m, problem.n, problem.batch) - counters
    both = abi.READABLE | abi.WRITABLE
    places = (("counters", 0, counters, both | abi.INITIALISED), ("partial sums", counters, partials, both))
    for name, first, size, flags in places:
        if size:
            yield Region(name, problem.workspace + first, 1, size, size, 1, 0, 4, flags)


# ---- Tensor maps ----------------------------------------------------------------------------------------------------


def host_maps(facts: Facts, problem: Problem) -> bytes:
    """Return the kernel's second parameter, as `hgemm.tensor_maps` encodes it for a device."""
    rules = {rule.operand: rule for rule in facts.tensor_maps}
    places = matrices(problem, facts)
    return b"".join(
        bytes(_host_map(rules[name], places[name.upper()])) if name in rules else bytes(MAP_BYTES) for name in OPERANDS
    )


def _host_map(rule, matrix: Matrix) -> abi.TensorMap:
    extents, strides = geometry(matrix)
    if rule.swizzle_bytes not in _SWIZZLES:
        raise DeviceError(f"a tensor map has no swizzle of {rule.swizzle_bytes} B")
    return abi.TensorMap(
        base=matrix.pointer,
        extent=extents,
        stride_bytes=strides,
        box=rule.box,
        rank=len(extents),
        element_bytes=DTYPES[rule.element].bytes,
        swizzle=_SWIZZLES[rule.swizzle_bytes],
        magic=abi.TENSOR_MAP_MAGIC,
    )
