"""A CPU stand-in for a device and a kernel of `hgemm`: host memory, and launches on the executor.

`hgemm.verification` checks kernels on it as on a GPU: the same cases, operands, reference and error bound.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle

from generator.proof import executor as abi
from generator.proof.coverage import Coverage
from generator.proof.executor import Adversary, Executable, Launch, Region, Report
from generator.proof.sandbox import arena
from hgemm.cases import KINDS, TILES_PER_CTA, Case, Shape, cases_of, covering_cases, far_case, varied, whole_pairs
from hgemm.dispatch_table import MIN_SHARING_SPLITS
from hgemm.dtypes import DTYPES
from hgemm.errors import DeviceError
from hgemm.launch import (
    COUNTER_BYTES,
    MAP_BYTES,
    OPERAND_NAMES,
    POINTER_BYTES,
    WORKSPACE_COUNTERS,
    Matrix,
    OperandMap,
    check,
    counter_bytes,
    ctas,
    grid_x,
    matrices,
    operand_maps,
    parameter,
    with_launch_options,
    workspace_bytes,
)
from hgemm.launch_traits import OUTPUT, LaunchTraits
from hgemm.problem import BIASES, LaunchOptions, Problem

PERSISTENT_CTAS = 3
"""The most CTAs, or clusters, of a persistent kernel. There are fewer if each would get fewer than TILES_PER_CTA tiles."""
STREAM_K_WORKERS = 9
"""The CTAs, or clusters, of a stream-K kernel for one tile more than that: their shares begin at every k-tile of a tile."""
FAR_LEADING = 2**29
"""The leading dimension of the case of offsets beyond 2^31: from the fifth row on. Strides of a batch stay in TMA's limit."""
RESIDENT_CTAS = 2
"""Clusters that run at the same time. More are not needed, unless CTAs wait for later ones: see `waits`."""
STEP_LIMIT = 50_000_000
"""Limit of warp instructions per launch. The largest case needs a hundredth of it."""
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class HostMemory:
    """Device memory, simulated by host memory that the processes of kernels share."""

    ordinal = 0

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def allocate(self, size_bytes: int) -> int:
        pointer = arena().allocate(size_bytes)
        self._blocks.add(pointer)
        return pointer

    def free(self, pointer: int) -> None:
        self._blocks.remove(pointer)
        arena().free(pointer)

    def __del__(self) -> None:
        for pointer in self._blocks:
            arena().free(pointer)

    def fill(self, pointer: int, byte: int, size_bytes: int) -> None:
        ctypes.memset(pointer, byte, size_bytes)

    def upload(self, pointer: int, host: int, size_bytes: int) -> None:
        ctypes.memmove(pointer, host, size_bytes)

    def download(self, host: int, pointer: int, size_bytes: int) -> None:
        ctypes.memmove(host, pointer, size_bytes)


@dataclass
class EmulatedKernel:
    """A kernel on the executor. Each launch uses the next adversary and appends its report to `reports`.

    `coverage` takes note of each launch. It zeroes the counters of its workspace before a launch unless `zeroes` is off.
    """

    traits: LaunchTraits
    executable: Executable
    adversaries: tuple[Adversary, ...]
    workers: int = PERSISTENT_CTAS
    zeroes: bool = True
    reports: list[tuple[Adversary, Report]] = field(default_factory=list)
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        self._next = cycle(self.adversaries)

    def launch(
        self, problem: Problem, *, device: int = 0, workspace_size: int | None = None, zeroed: bool = False
    ) -> None:
        """Check a problem, set its counters to zero unless they are `zeroed`, and run it. Raises ProblemError or DeviceError."""
        problem = with_launch_options(self.traits, problem, LaunchOptions)
        check(problem, self.traits, workspace_size)
        counters = counter_bytes(self.traits, problem.m, problem.n, problem.batch, problem.options)
        if counters and self.zeroes and not zeroed:
            ctypes.memset(problem.workspace, 0, counters)
        adversary = next(self._next)
        launch = launch_of(self.traits, problem, workers_of(self.traits, problem, self.workers))
        if waits(self.traits, problem) and adversary.order not in _FEW_RUN:
            launch = replace(launch, resident_ctas=launch.grid[0])
        report = self.executable.run(launch, adversary)
        self.reports.append((adversary, report))
        if self.coverage:
            self.coverage.add(problem, launch.grid[0], report)


def waits(traits: LaunchTraits, problem: Problem) -> bool:
    """Return whether CTAs that share a tile wait for each other if each has one item: those of templates/wgmma."""
    shares = traits.arch == "sm_90a" and traits.decides_splits and traits.persistent
    return shares and problem.options.splits >= MIN_SHARING_SPLITS


_FEW_RUN = ("ahead_high",)
"""Orders in which running CTAs wait for CTAs that have not started, and give up."""


def workers_of(traits: LaunchTraits, problem: Problem, most: int = PERSISTENT_CTAS) -> int:
    """Return how many CTAs, or clusters, share the tiles of a problem: so few that each gets TILES_PER_CTA, if possible.

    Those that share the k of a tile must be several. If they wait for each other, each has one item. With less than one k-tile,
    there is one CTA less than tiles: so the first tile of a CTA may be any, as on a large GPU, and one CTA has two.
    """
    items = ctas(traits, problem.m, problem.n, problem.batch, problem.options) // traits.cluster[0]
    if waits(traits, problem):
        return items
    if problem.k < traits.tile_k and (traits.persistent or traits.grid_rule == "stream_k"):
        return max(1, items - 1)
    if traits.grid_rule == "stream_k":
        return STREAM_K_WORKERS if items == STREAM_K_WORKERS + 1 else most
    if not traits.persistent or (traits.decides_splits and problem.options.splits > 1):
        return most
    return max(1, min(most, items // TILES_PER_CTA))


def launch_of(traits: LaunchTraits, problem: Problem, workers: int = PERSISTENT_CTAS) -> Launch:
    """Return the launch of a problem: its grid, its parameters, and the memory that it may access.

    `workers` is the number of resident CTAs or clusters, which determines the grid of persistent and stream-K kernels.
    """
    grid = grid_x(traits, problem.m, problem.n, problem.batch, workers * traits.cluster[0], problem.options)
    parameters = [parameter(traits, problem)]
    if traits.tensor_maps:
        parameters.append(host_maps(traits, problem))
    return Launch(
        grid=(grid, 1, 1),
        cluster=(traits.cluster[0], 1, 1),
        threads=traits.threads,
        smem_bytes=traits.smem_bytes + traits.static_smem_bytes,
        parameters=tuple(parameters),
        regions=tuple(regions(traits, problem, grid)),
        resident_ctas=RESIDENT_CTAS * traits.cluster[0],
        step_limit=STEP_LIMIT,
        programmatic=traits.programmatic,
        arch=int("".join(filter(str.isdigit, traits.arch))),
    )


def regions(traits: LaunchTraits, problem: Problem, grid: int) -> Iterator[Region]:
    """Yield the memory that a launch of `grid` CTAs may access.

    Reads of an operand that is contiguous along m or n may extend into the padding of a row. Unaligned copies (ldg_sts_unaligned)
    read whole 16-byte vectors, and edge maps whole tiles, so they may access neighboring elements.
    """
    readable = abi.READABLE | abi.INITIALISED
    flags = {
        "A": readable | _padding_flags(traits, "a", traits.a_k_major),
        "B": readable | _padding_flags(traits, "b", traits.b_k_major),
        "D": abi.WRITABLE | abi.WRITE_ONCE | (abi.INITIALISED if _reads_d(problem) else 0),
    }
    for name, matrix in matrices(problem, traits).items():
        written = abi.WRITABLE | abi.WRITE_ONCE if name.startswith(OUTPUT) else readable
        if traits.pointer_arrays and name in OPERAND_NAMES:
            size = matrix.batch * POINTER_BYTES
            yield Region(f"the array of {name}", matrix.pointer, 1, size, size, 1, 0, POINTER_BYTES, readable)
            addresses = dict.fromkeys((ctypes.c_uint64 * matrix.batch).from_address(matrix.pointer))
            for address in addresses:  # the whole batch may use one matrix
                yield _region(replace(matrix, pointer=address, batch=1, batch_stride=0), flags.get(name, written))
        else:
            yield _region(matrix, flags.get(name, written))
    yield from _workspace(traits, problem, grid)


def _reads_d(problem: Problem) -> bool:
    """Return whether D lies where an operand of the epilogue does."""
    return bool(problem.c == problem.d and problem.beta) or any(one.pointer == problem.d for one in problem.aux)


def _padding_flags(traits: LaunchTraits, operand: str, k_major: bool) -> int:
    """Return the flags for reads beside an operand's elements."""
    beyond = traits.copies_unaligned(operand) or any(
        rule.edge for rule in traits.tensor_maps if rule.operand == operand
    )
    return (0 if k_major else abi.PADDING_READABLE) | (abi.MATRIX_READABLE if beyond else 0)


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
    sizes = (problem.m, problem.n, problem.batch)
    counters = counter_bytes(traits, *sizes, problem.options)
    used = replace(traits, max_ctas=min(grid, traits.max_ctas))
    after = WORKSPACE_COUNTERS * COUNTER_BYTES
    partials = max(0, workspace_bytes(used, *sizes, problem.options) - after)
    both = abi.READABLE | abi.WRITABLE
    places = (("counters", 0, counters, both | abi.INITIALISED), ("partial results", after, partials, both))
    for name, first, size, flags in places:
        if size:
            yield Region(name, problem.workspace + first, 1, size, size, 1, 0, 4, flags)


# ---- Tensor maps ----------------------------------------------------------------------------------------------------


def host_maps(traits: LaunchTraits, problem: Problem) -> bytes:
    """Return the kernel's second parameter, its tensor maps, in the executor's format."""
    places = matrices(problem, traits)
    return b"".join(
        bytes(_host_map(one, places[name.upper()].pointer)) if one else bytes(MAP_BYTES)
        for name, maps in operand_maps(traits, places).items()
        for one in maps
    )


def _host_map(of: OperandMap, pointer: int) -> abi.EmulatedTensorMap:
    rule = of.rule
    if rule.swizzle_bytes not in _SWIZZLES:
        raise DeviceError(f"a tensor map cannot have a swizzle of {rule.swizzle_bytes} B: use 0, 32, 64 or 128")
    return abi.EmulatedTensorMap(
        base=pointer,
        extent=of.extents,
        stride_bytes=of.strides,
        box=rule.box,
        rank=len(of.extents),
        element_bytes=DTYPES[rule.element].bytes,
        swizzle=_SWIZZLES[rule.swizzle_bytes],
        magic=abi.TENSOR_MAP_MAGIC,
    )


# ==== Cases ====


def default_cases(traits: LaunchTraits, stages: int) -> list[Case]:
    """Return the cases that a kernel must pass. They depend on its tile, schedule and number of stages.

    Whole tiles run with all adversaries. If CTAs repeat, they share the adversaries with the case that fills every stage. Cases of
    splits run two to four times. Cases of edges run once: their faults depend little on timing, and most show with either kind of
    numbers.
    """
    traits = replace(traits, stages=stages)
    m, n, k = traits.tile_m, traits.tile_n, traits.tile_k
    ring = 2 * stages + 1  # k-tiles that fill every stage twice
    splits = 3 if traits.decides_splits else traits.splits
    long_k = ((ring if traits.splits > 1 else stages + 1) * splits + splits - 2) * k + 1  # splits of different lengths
    # m, n and k have each remainder by 8, but for 6 of n. n ends in each 8 columns of 64: copies and epilogues are unrolled so.
    plain = [
        Shape(m * traits.cluster_shape[0], n * traits.cluster_shape[1], ring * k),  # whole tiles
        Shape(m + 1, n, 2 * k),
        Shape(m, n + 11, 2 * k),
        Shape(17, n, long_k),
        Shape(m // 2 + 3, n + 35, k // 2 - 3),
        Shape(1, 1, 1),  # all splits but one are empty
        Shape(m - 1, n - 1, k),  # fewer k-tiles than stages
        Shape(m + 6, n + 21, 3 * k - 1),
        Shape(1, n + 42, 2 * k + 8),
        Shape(m + 2, n + 16, k + 2),  # by TMA, without C
    ]
    cases = cases_of(traits, tuple(plain))
    several = Case(Shape(m - 4, n + 45, k + 4, 2), alpha=2.0, beta=0.25 if traits.takes_beta else 0.0, brief=True)
    cases += [
        replace(several, loose=True),
        replace(several, shape=Shape(17, n + 51, k + 3, 3), broadcast="a"),
        replace(several, shape=Shape(m, 29, 2 * k, 2), broadcast="b,c,bias", loose=True),
    ]
    if traits.overwritten:
        in_place = Case(Shape(m + 5, n // 2 + 4, k + 6, 2), -0.5, float(traits.takes_beta), loose=True, in_place=True)
        cases.append(in_place)
    # Every second case is loose, so pairs of cases alternate.
    kinds = [at // 2 % 2 for at in range(len(cases))]
    cases = [replace(case, brief=True, numbers=KINDS[kind], first_order=kind) for kind, case in zip(kinds, cases)]
    if traits.grid_rule == "stream_k":
        cases += _shared_cases(traits)
        for count in (8, 9):  # k-tiles of a tile: all shares but one have 9 of them, or all have 10
            shared = Shape(9, 8, count * k, STREAM_K_WORKERS + 1)
            cases.append(replace(several, shape=shared, broadcast="a", once=True))
    if traits.decides_splits and traits.beta:  # two launches, in which other CTAs arrive last
        sums = Case(Shape(m, n, 2 * splits * k), 1.0, 1.0, cancels=True)
        cases.append(replace(sums, options=LaunchOptions(splits, 0, 1)))
    if traits.decides_splits:
        shared = [replace(case, options=_TAILS[at % len(_TAILS)]) for at, case in enumerate(_shared_cases(traits))]
        if traits.persistent:  # in the order of the second launch, CTAs of wgmma give up waiting
            shared[0] = replace(shared[0], first_order=1)
        cases += shared
    covering = covering_cases(traits, PERSISTENT_CTAS if traits.grid_rule == "stream_k" else 1)
    cases += [replace(case, brief=not case.once) for case in covering]
    cases.append(far_case(traits, Shape(m + 1, n + 1, k + 8, 2), FAR_LEADING))
    # If another case has more tiles and k-tiles, whole tiles run in the two orders that no other case has, with exact numbers:
    # others have normal ones.
    repeats = traits.persistent or traits.grid_rule == "stream_k"
    cases[0] = replace(cases[0], brief=False, numbers=KINDS[0] if repeats else "", first_order=2 if repeats else 0)
    if splits > 1:  # twice, as the last of several tiles
        cases[3] = replace(cases[3], brief=False, numbers=KINDS[1], first_order=0)
    cases = varied(traits, cases)
    return cases + _bias_cases(traits, cases)


def _bias_cases(traits: LaunchTraits, cases: list[Case]) -> list[Case]:
    """Return problems without C whose rows end within 8 columns, with the biases of launches that no other such case has.

    The compiler makes a copy of the epilogue for such problems.
    """
    if not traits.decides_bias:
        return []
    had = {case.bias for case in cases if not case.beta and case.shape.n % 8 and min(case.shape.m, case.shape.n) > 16}
    options = LaunchOptions(1, 0, 1) if traits.decides_splits or traits.decides_raster else None
    ragged = Case(Shape(17, 17, 1), 2.0, once=True, options=options)
    return whole_pairs(traits, [replace(ragged, bias=bias) for bias in BIASES if bias not in had])


_RAGGED = 7
"""The default case of several tiles with a rest in m, n and k, with C and with gaps between rows."""


def number_cases(traits: LaunchTraits, stages: int) -> list[Case]:
    """Return the cases for a kernel of which a twin of another type has shown everything but the numbers.

    They are default cases: whole and ragged tiles with both kinds of numbers, the sum of parts of k, and each bias. Whole tiles
    have two k-tiles, because the twin has shown that the stages are reused in time.
    """
    cases = default_cases(traits, stages)
    whole, ragged = (replace(cases[at], brief=True, numbers="", first_order=0) for at in (0, _RAGGED))
    found = [replace(whole, shape=replace(whole.shape, k=2 * traits.splits * traits.tile_k)), ragged]
    parts = next((case for case in cases if case.options and case.options.splits > 1), None)
    biases = {case.bias: case for case in reversed(cases) if case.bias not in {one.bias for one in found}}
    return [*found, *([parts] if parts else []), *biases.values()]


_TAILS = (
    LaunchOptions(7, 0, 1),
    LaunchOptions(3, 1, -2),
    LaunchOptions(2, PERSISTENT_CTAS, 3),
    LaunchOptions(4, PERSISTENT_CTAS + 1, -1),
)
"""Options of launches that split the last tiles of several."""


def _shared_cases(traits: LaunchTraits) -> list[Case]:
    """Return problems for stream-K and splits: one tile, fewer tiles than workers, one more, and more than a whole wave."""
    m, n, k = traits.tile_m * traits.cluster_shape[0], traits.tile_n * traits.cluster_shape[1], traits.tile_k
    is_stream_k = traits.grid_rule == "stream_k"
    tiles = (15, 9, 9, 8) if is_stream_k else (9, 6, 5, 5)  # of k
    shapes = (
        Shape(m - 1, n - 1, tiles[0] * k - 3),
        Shape(m, n + 5, tiles[1] * k),
        Shape(m, n // 2 + 1, tiles[2] * k - 7, PERSISTENT_CTAS + 1),
        Shape(m // 2 + 3, n - 3, tiles[3] * k - 1, 2 * PERSISTENT_CTAS + 1 if is_stream_k else PERSISTENT_CTAS + 2),
    )
    # Second launches show whether sums depend on the order of arrival, and find the counters that the first ones left.
    cases = [replace(case, brief=not is_stream_k) for case in cases_of(traits, shapes)]
    last = cases[-1] if is_stream_k else replace(cases[-1], brief=False, numbers=KINDS[1])
    return [*cases[:-1], last]


def measured_case(traits: LaunchTraits, k_tiles: int) -> Case:
    """Return one whole tile with `k_tiles` k-tiles per split. The costs of its launch are counted."""
    return Case(
        Shape(
            traits.tile_m * traits.cluster_shape[0],
            traits.tile_n * traits.cluster_shape[1],
            k_tiles * traits.splits * traits.tile_k,
        )
    )
