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

from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, Launch, Region, Report
from hgemm.cases import Case, Shape, cases_of
from hgemm.dtypes import DTYPES
from hgemm.errors import DeviceError
from hgemm.launch import MAP_BYTES, OPERANDS, Matrix, check, counter_bytes, geometry, grid_x, matrices, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Problem

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

    traits: LaunchTraits
    executable: Executable
    adversaries: tuple[Adversary, ...]
    workers: int = PERSISTENT_CTAS
    reports: list[tuple[Adversary, Report]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = cycle(self.adversaries)

    def launch(self, problem: Problem, *, device: int = 0, workspace_size: int | None = None) -> None:
        """Check a problem, zero its counters and run it to the end. Raises ProblemError or DeviceError."""
        check(problem, self.traits, workspace_size)
        counters = counter_bytes(self.traits, problem.m, problem.n, problem.batch)
        if counters:
            ctypes.memset(problem.workspace, 0, counters)
        adversary = next(self._next)
        self.reports.append((adversary, self.executable.run(launch_of(self.traits, problem, self.workers), adversary)))


def launch_of(traits: LaunchTraits, problem: Problem, workers: int = PERSISTENT_CTAS) -> Launch:
    """Return the launch of a problem: its grid, its parameters, and the memory that it may touch.

    `workers` is how many CTAs, or clusters, the machine holds of a variant whose grid depends on that.
    """
    grid = grid_x(traits, problem.m, problem.n, problem.batch, workers * traits.cluster[0])
    parameters = [problem.pack()]
    if traits.tensor_maps:
        parameters.append(host_maps(traits, problem))
    return Launch(
        grid_x=grid,
        cluster_ctas=traits.cluster[0],
        threads=traits.threads,
        smem_bytes=traits.smem_bytes + traits.static_smem_bytes,
        parameters=tuple(parameters),
        regions=tuple(regions(traits, problem, grid)),
        resident_ctas=RESIDENT_CTAS * traits.cluster[0],
        step_limit=STEP_LIMIT,
    )


def regions(traits: LaunchTraits, problem: Problem, grid: int) -> Iterator[Region]:
    """Yield what a launch of `grid` CTAs may touch, and how.

    An operand whose rows run along m or n may be read to the end of a chunk, and of one that is shifted on its way also the
    neighbours of what is wanted.
    """
    readable = abi.READABLE | abi.INITIALISED
    flags = {
        "A": readable | _beside(traits, "a", traits.a_k_major),
        "B": readable | _beside(traits, "b", traits.b_k_major),
        "D": abi.WRITABLE | abi.WRITE_ONCE | (abi.INITIALISED if problem.c == problem.d and problem.beta else 0),
    }
    for name, matrix in matrices(problem, traits).items():
        yield _region(matrix, flags.get(name, readable))
    yield from _workspace(traits, problem, grid)


def _beside(traits: LaunchTraits, operand: str, k_major: bool) -> int:
    """Return what may be read beside an operand's elements."""
    return (0 if k_major else abi.PADDING_READABLE) | (abi.MATRIX_READABLE if traits.copies_unaligned(operand) else 0)


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


def _workspace(traits: LaunchTraits, problem: Problem, grid: int) -> Iterator[Region]:
    counters = counter_bytes(traits, problem.m, problem.n, problem.batch)
    used = replace(traits, max_ctas=min(grid, traits.max_ctas))
    partials = workspace_bytes(used, problem.m, problem.n, problem.batch) - counters
    both = abi.READABLE | abi.WRITABLE
    places = (("counters", 0, counters, both | abi.INITIALISED), ("partial sums", counters, partials, both))
    for name, first, size, flags in places:
        if size:
            yield Region(name, problem.workspace + first, 1, size, size, 1, 0, 4, flags)


# ---- Tensor maps ----------------------------------------------------------------------------------------------------


def host_maps(traits: LaunchTraits, problem: Problem) -> bytes:
    """Return the kernel's second parameter, as `hgemm.launch` encodes it for a device."""
    rules = {rule.operand: rule for rule in traits.tensor_maps}
    places = matrices(problem, traits)
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


# ==== The problems that a variant is proved on ====


_MOST_TILE_PRODUCTS, _MOST_SPLITS = 2**20, 4
"""Products of a CTA tile and one k-tile, and splits, up to which the raster is checked beyond its first group."""


def default_cases(traits: LaunchTraits, stages: int) -> list[Case]:
    """Return the cases that every variant must pass, made from its own tile and the depth of its pipeline."""
    m, n, k = traits.tile_m, traits.tile_n, traits.tile_k
    ring = stages + 2  # k-tiles after which every stage was used again
    most = ring * min(traits.splits, 2) + traits.splits - 1  # k-tiles that the splits share unevenly
    plain = [
        Shape(m, 2 * n, ring * k),  # whole tiles
        Shape(m + 1, n, 2 * k),
        Shape(m, n + 3, 2 * k),
        Shape(m, n, (most - 1) * k + 7),
        Shape(1, 1, 1),
        Shape(m - 1, n - 1, k),  # one k-tile, less than the pipeline holds
        Shape(m // 2 + 1, n // 2 - 3, k // 2 - 3),
        Shape(m + 5, n + 9, 3 * k - 1),
        Shape(17, 1, k + 2),
        Shape(1, n + 8, 2 * k + 8),
    ]
    cases = cases_of(traits, tuple(plain))
    several = Case(Shape(m - 3, n + 5, k + 1, 2), alpha=2.0, beta=0.25 if traits.beta else 0.0)
    cases += [
        replace(several, loose=True),
        replace(several, shape=Shape(17, n - 1, k, 3), broadcast="a"),
        replace(several, shape=Shape(m, 19, 2 * k, 2), broadcast="b,c,bias", loose=True),
    ]
    if traits.beta:
        cases.append(Case(Shape(m + 1, n // 2, k + 1, 2), -0.5, 1.0, loose=True, in_place=True))
    if traits.grid_rule == "persistent":
        cases.append(replace(several, shape=Shape(m + 1, n + 1, k + 3, PERSISTENT_CTAS // 2 + 1)))
    if traits.grid_rule == "stream_k":
        cases += _shared_cases(traits)
    return cases + _raster_cases(traits)


def _shared_cases(traits: LaunchTraits) -> list[Case]:
    """Return problems whose tiles stream-K shares: one, fewer than workers, more by one, and a whole wave before."""
    m, n, k = traits.tile_m * traits.cluster_shape[0], traits.tile_n * traits.cluster_shape[1], traits.tile_k
    shapes = (
        Shape(m - 1, n - 1, 15 * k - 3),
        Shape(m, n + 5, 9 * k),
        Shape(m, n // 2 + 1, 8 * k + 1, PERSISTENT_CTAS + 1),
        Shape(m // 2 + 3, n - 3, 8 * k - 1, 2 * PERSISTENT_CTAS + 1),
    )
    return cases_of(traits, shapes if m * n * k <= _MOST_TILE_PRODUCTS else shapes[1:3])


def _raster_cases(traits: LaunchTraits) -> list[Case]:
    """Return problems of many tiles, so that the raster comes to its second group or panel."""
    m, n, k = traits.tile_m, traits.tile_n, traits.tile_k
    if m * n * k > _MOST_TILE_PRODUCTS or traits.splits > _MOST_SPLITS:
        return []
    return [Case(Shape(8 * m + 1, n + 1, 1)), Case(Shape(m + 1, 8 * n + 1, 1))]


def measured_case(traits: LaunchTraits, k_tiles: int) -> Case:
    """Return one whole tile of so many k-tiles a split, whose launch is counted."""
    return Case(
        Shape(
            traits.tile_m * traits.cluster_shape[0],
            traits.tile_n * traits.cluster_shape[1],
            k_tiles * traits.splits * traits.tile_k,
        )
    )
