"""The problems that a kernel is checked on: shapes, scalars, and the memory layout of operands. Needs no NumPy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hgemm.dtypes import DTYPES
from hgemm.epilogue import PAIR_COLUMNS
from hgemm.errors import RequestError
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import BIASES, BY_GPC, MAX_EXTENT, LaunchOptions

_SHAPE = re.compile(r"([0-9]{1,40})x([0-9]{1,40})x([0-9]{1,40})(?:@([0-9]{1,40}))?")
_SCALARS = ((1.0, 0.0), (-0.5, 1.0), (2.0, 0.25), (1.0, -1.0), (0.5, 0.0))
"""alpha and beta of successive cases. Powers of two keep integers exact."""
KINDS = ("integer", "normal")
"""The kinds of numbers that operands have, in the order of their launches."""
_TALL_TILES = 9
"""More tiles along one side than the default raster group, which is 8."""
TILES_PER_CTA = 6
"""The tiles that every CTA of a persistent kernel computes in at least one case."""
_RING_BATCH = TILES_PER_CTA + 1
"""Tiles per CTA in the case that fills every stage several times: an odd number, so that ping-pong consumers differ."""
_SPLIT_RING_BATCH = 5
"""The same for parts of tiles: each tile has several."""
_REDUCED_TILES = 8
"""The tiles whose partial results a kernel adds at a time."""
FAR_ELEMENTS = 2**31
"""Offsets beyond this do not fit a signed 32-bit integer."""
_USED_SHARE = 0.8
"""The share of the memory that one case may take."""
MAX_SEED = 2**63 - 1
"""Records and JSON documents hold seeds in 64 bits."""


@dataclass(frozen=True)
class Shape:
    """Extents of a problem. They are written 33x65x17, or 33x65x17@3 with a batch."""

    m: int
    n: int
    k: int
    batch: int = 1

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Parse a shape. Raises RequestError if it is malformed, or an extent is 0 or too large."""
        match = _SHAPE.fullmatch(text.strip().lower())
        if not match:
            raise RequestError(f"shape {text!a} is malformed: write it as MxNxK or MxNxK@BATCH, such as 33x65x17@3")
        shape = cls(*(int(group or 1) for group in match.groups()))
        for name, extent in vars(shape).items():
            if not 1 <= extent <= MAX_EXTENT:
                raise RequestError(f"shape {text!a} is out of range: {name} is {extent}, use 1 to {MAX_EXTENT}")
        return shape

    @classmethod
    def parse_list(cls, text: str) -> tuple[Shape, ...]:
        """Parse comma-separated shapes. Raises RequestError if one is malformed, or there is none."""
        found = tuple(cls.parse(word) for word in text.split(",") if word.strip())
        if not found:
            raise RequestError("no shape is given: write shapes as 128x128x64,33x65x17@3")
        return found

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + (f"@{self.batch}" if self.batch > 1 else "")


@dataclass(frozen=True)
class Case:
    """One check: a shape, scalars, and the memory layout of the operands.

    Units: `min_leading` and `min_span` are elements.
    Fields: `loose` leaves gaps after each row and each matrix of a batch; they differ from operand to operand. `broadcast` lists
        the operands (of a, b, c, bias) that have one matrix for the whole batch. `in_place` puts C, which needs beta, and D in
        the same memory. `beside` makes C and D columns of one wider matrix. `same_ab` takes A's memory for B. `min_leading` is
        the least leading dimension of A, B, C and D. `min_span` is the least distance of the last row of each from its first.
        `cancels` takes a C that cancels the product but for its rounding, so that D shows the last bits of the sums.
        `once` runs the case once, with normal numbers: its faults do not depend on timing. `brief` runs it once with each kind of
        numbers, not twice. `numbers` names the only kind that it has. On the CPU, `first_order` is the order of execution of its
        first launch. `bias` and `options` are for kernels that leave them to the launch.
    """

    shape: Shape
    alpha: float = 1.0
    beta: float = 0.0
    loose: bool = False
    broadcast: str = ""
    in_place: bool = False
    bias: str = "none"
    options: LaunchOptions | None = None
    beside: bool = False
    same_ab: bool = False
    min_leading: int = 0
    min_span: int = 0
    cancels: bool = False
    once: bool = False
    brief: bool = False
    numbers: str = ""
    first_order: int = 0

    def __str__(self) -> str:
        words = [str(self.shape), f"alpha={self.alpha:g}"] + ([f"beta={self.beta:g}"] if self.beta else [])
        words += ["loose"] * self.loose + [f"broadcast={self.broadcast}"] * bool(self.broadcast)
        words += ["in-place"] * self.in_place + [f"bias={self.bias}"] * (self.bias != "none")
        words += ["C-cancels"] * self.cancels + ["C-beside-D"] * self.beside + ["A-is-B"] * self.same_ab
        words += [f"ld>={self.min_leading}"] * bool(self.min_leading)
        words += [f"span>={self.min_span}"] * bool(self.min_span)
        return " ".join(words + ([str(self.options)] if self.options else []))


def default_cases(traits: LaunchTraits, resident_ctas: int, memory_bytes: int = 0) -> list[Case]:
    """Return the cases that every kernel must pass on a device. They depend on its tile, stages and schedule.

    `resident_ctas` CTAs fit on the device. A persistent kernel gets problems with more tiles than that. A stream-K kernel
    gets problems with fewer and with more tiles. A kernel whose launches decide the splits gets whole waves and a split tail.
    Offsets beyond 2^31 need memory: there is a case of them if the device's `memory_bytes` suffice.
    """
    m, n, k = traits.tile_m, traits.tile_n, traits.tile_k
    plain = [
        (2 * m, 2 * n, max(4, 2 * traits.stages + 1) * k, False),  # multiples of the tile
        (m + 1, n, 2 * k, False),
        (m, n + 3, 2 * k, True),
        (m, n, 2 * k + 7, False),
        (1, 1, 1, False),
        (m // 2 + 3, n - 1, k // 2 - 3, True),  # k below one k-tile
        (m + 5, n + 9, 1, False),
        (131, 257, 67, True),
        (127, 61, 509, False),
        (2 * m - 1, 3 * n - 1, 5 * k - 1, True),
        (m // 2 + 1, n // 2 + 1, 64 * k + 5, False),  # long k
        (17, _TALL_TILES * n + 1, 3 * k, False),
        (_TALL_TILES * m + 1, 17, 3 * k + 1, True),
        (1, 3 * n + 1, 4 * k, False),
        (3 * m + 2, 1, 4 * k + 2, True),
    ]
    cases = [Case(Shape(*extents), *_scalars(traits, at), loose) for at, (*extents, loose) in enumerate(plain)]
    batched = Shape(m - 3, n + 5, 2 * k + 1, 3)
    cases += [
        Case(batched, *_scalars(traits, 1), loose=True),
        Case(batched, *_scalars(traits, 2), broadcast="a"),
        Case(batched, *_scalars(traits, 3), loose=True, broadcast="b,c,bias"),
    ]
    if traits.overwritten:
        cases.append(Case(Shape(m + 1, n + 1, k + 1, 2), -0.5, float(traits.takes_beta), loose=True, in_place=True))
    if traits.persistent:
        cases.append(
            Case(Shape(m + 1, 17, k + 3, resident_ctas // 2 + 2), *_scalars(traits, 2))
        )  # two tiles per matrix
    if traits.max_ctas:
        few, many = resident_ctas // 8 + 1, resident_ctas // 2 + 2  # batches of two tiles
        cases += [
            Case(Shape(m + 1, 17, 12 * k + 3, few), *_scalars(traits, 1), loose=True),
            Case(Shape(m + 1, 17, 9 * k + 1, many), *_scalars(traits, 2)),
        ]
    if traits.decides_splits:
        cases += _waves(traits, resident_ctas // traits.cluster_ctas)
    cases += covering_cases(traits, resident_ctas // traits.cluster[0])
    far = far_case(traits, Shape(m + 1, n + 1, k + 1), min_span=FAR_ELEMENTS)
    if far_bytes(traits) <= _USED_SHARE * memory_bytes:
        cases.append(far)
    return varied(traits, cases)


def covering_cases(traits: LaunchTraits, workers: int) -> list[Case]:
    """Return the cases that fill every stage several times, leave a raster group, and share memory between operands.

    `workers` CTAs, or clusters, are resident. They stand in the cases of devices and of the CPU.
    """
    cases = []
    repeats = traits.persistent or traits.max_ctas > 0
    for splits in (1, 2) if traits.decides_splits else (1,):
        options = LaunchOptions(splits, 0, 2)
        if repeats:  # D is small, so that many tiles of many k-tiles cost little
            long_k = (traits.stages + 1) * traits.tile_k  # each tile reuses a stage, another one than the tile before
            turns = Shape(9, 8, long_k, (_RING_BATCH if splits == 1 else _SPLIT_RING_BATCH) * workers)
            cases.append(Case(turns, *_scalars(traits, 2), broadcast="a", options=options))
        if traits.beta and (repeats or traits.decides_bias):
            # Without C there is another epilogue, for each kind of bias. It reuses its shared memory, too.
            few = Shape(9, traits.tile_n + 8, splits * traits.tile_k, (_RING_BATCH // 2 + 1) * workers)
            biases = len(BIASES) if traits.decides_bias else 1  # `varied` gives each case another one
            cases += [Case(few, 2.0, broadcast="a", once=True, options=options)] * biases
    cases += raster_cases(traits)
    if any(output.reduce for output in traits.outputs):  # a loop over partial results runs twice
        wide, tall = Shape(9, _REDUCED_TILES * traits.tile_n + 8, 1), Shape(_REDUCED_TILES * traits.tile_m + 1, 8, 1)
        cases += [Case(shape, *_scalars(traits, 0), once=True) for shape in (wide, tall)]
    side = 17 + 2 * traits.align_d
    aliased = Case(Shape(side, side, traits.tile_k + 1, 2), *_scalars(traits, 1), loose=True, once=True)
    same_ab = (traits.a_k_major, traits.dtype_a, traits.align_a) == (traits.b_k_major, traits.dtype_b, traits.align_b)
    if same_ab or traits.beta:
        cases.append(replace(aliased, beside=traits.beta, same_ab=same_ab))
    return cases


def raster_cases(traits: LaunchTraits) -> list[Case]:
    """Return problems whose tiles leave the first group or panel of the raster, or wave by GPC, and do not fill the last one."""
    rows, columns = (tile * count for tile, count in zip((traits.tile_m, traits.tile_n), traits.cluster_shape))
    kind, _, size = traits.raster.partition(":")
    if traits.decides_raster:
        return [
            Case(Shape(4 * rows + 1, columns + 1, 1), once=True, options=LaunchOptions(1, 0, 2)),
            Case(Shape(rows + 1, 4 * columns + 1, 1), once=True, options=LaunchOptions(1, 0, -2)),
            Case(Shape(1, 69 * columns + 1, 1), once=True, options=LaunchOptions(1, 0, -(BY_GPC + 2))),
        ]
    group = max(int(size), traits.cluster_shape[0]) * traits.tile_m if kind == "group" else 8 * rows
    panel = max(int(size), columns) if kind == "panel" else 8 * columns
    tall = Case(Shape(group + 1, columns + 1, 1), once=True)
    wide = Case(Shape(rows + 1, panel + 1, 1), once=True)
    if kind in ("row", "column"):
        return [replace(tall, shape=Shape(2 * rows + 1, columns + 1, 1))]
    return {"group": [tall], "panel": [wide]}.get(kind, [tall, wide])


def far_case(traits: LaunchTraits, shape: Shape, min_leading: int = 0, min_span: int = 0) -> Case:
    """Return a problem whose last rows begin more than 2^31 elements behind the first."""
    return Case(shape, *_scalars(traits, 1), loose=True, min_leading=min_leading, min_span=min_span, once=True)


def far_bytes(traits: LaunchTraits) -> int:
    """Return about how much memory A, B, C and D take in the default case of offsets beyond 2^31."""
    dtypes = (traits.dtype_a, traits.dtype_b, *[traits.dtype_d] * (1 + traits.beta))
    dtypes += tuple(one.of(traits.dtype_d) for one in traits.matrices)
    return sum(FAR_ELEMENTS * DTYPES[dtype].bytes for dtype in dtypes)


def _waves(traits: LaunchTraits, clusters: int) -> list[Case]:
    """Return problems of one cluster of tiles per matrix: whole waves and a split tail, and splits of all tiles in two waves.

    `clusters` of them run at the same time.
    """
    m, k = traits.tile_m * traits.cluster_shape[0], traits.tile_k
    tail, every = clusters + 3, clusters // 2 + 2
    return [
        Case(Shape(m, 17, 8 * k + 1, tail), *_scalars(traits, 1), options=LaunchOptions(3, clusters, 2)),
        Case(Shape(m, 17, 9 * k, tail), *_scalars(traits, 2), loose=True, options=LaunchOptions(4, 1, -1)),
        Case(Shape(m, 17, 7 * k - 1, every), *_scalars(traits, 0), options=LaunchOptions(4, 0, 1)),
    ]


def cases_of(traits: LaunchTraits, shapes: tuple[Shape, ...]) -> list[Case]:
    """Return one case per shape. Scalars and memory layout change from one to the next."""
    cases = [Case(shape, *_scalars(traits, at), loose=at % 2 == 1) for at, shape in enumerate(shapes)]
    return varied(traits, cases)


_OPTIONS = (
    LaunchOptions(1, 0, 8),
    LaunchOptions(2, 0, 1),
    LaunchOptions(3, 1, -1),
    LaunchOptions(3, 0, 3),
    LaunchOptions(64, 0, -2),
    LaunchOptions(5, 2, 1),
    LaunchOptions(4, 3, 2),
)
"""Options of successive cases: whole tiles; even and odd splits, of all tiles or the last; more than k-tiles; groups, panels."""


def varied(traits: LaunchTraits, cases: list[Case]) -> list[Case]:
    """Return the cases with options and biases that change from one to the next, if the launch decides them."""
    found = []
    for at, case in enumerate(whole_pairs(traits, cases)):
        options = case.options or _OPTIONS[at % len(_OPTIONS)]
        bias = BIASES[at % len(BIASES)] if traits.decides_bias else "none"
        open_fields = traits.decides_splits or traits.decides_raster
        found.append(replace(case, bias=bias, options=options if open_fields else None))
    return found


def whole_pairs(traits: LaunchTraits, cases: list[Case]) -> list[Case]:
    """Return the cases. For a gated pair, n is rounded up to whole pairs of blocks, and m to the same number if A is B."""
    if not traits.epilogue or not traits.epilogue.gated:
        return cases
    found = []
    for case in cases:
        n = -(-case.shape.n // (2 * PAIR_COLUMNS)) * 2 * PAIR_COLUMNS
        found.append(replace(case, shape=replace(case.shape, n=n, m=n if case.same_ab else case.shape.m)))
    return found


def _scalars(traits: LaunchTraits, at: int) -> tuple[float, float]:
    alpha, beta = _SCALARS[at % len(_SCALARS)]
    return alpha, beta if traits.takes_beta else 0.0
