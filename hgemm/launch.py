"""Everything about a launch that follows from a kernel and a problem: checks, grid, workspace and tensor maps.

The order is that of a launch. First the matrices in memory, then what may be wrong with them, then the numbers of the launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hgemm.device import checked, driver, open_device
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import Input, Output, pairs_violation
from hgemm.errors import ProblemError
from hgemm.launch_traits import INPUT, MAX_MAP_STRIDE_BYTES, OUTPUT, LaunchTraits, TensorMapRule
from hgemm.problem import BY_GPC, MAX_EXTENT, Aux, LaunchOptions, Problem, legal_raster

# ==== The matrices of a problem in memory ====

OPERAND_NAMES = ("A", "B", "C", "D")
"""The matrices that pointer arrays can give."""
POINTER_BYTES = 8
MAX_BYTES = 2**62
"""The largest span of one operand, so that addresses do not overflow."""


@dataclass(frozen=True)
class Matrix:
    """One operand in memory: `rows` of `columns` contiguous elements, `leading` elements apart."""

    name: str
    pointer: int
    rows: int
    columns: int
    leading: int
    batch: int
    batch_stride: int
    element_bytes: int
    align: int

    @property
    def end(self) -> int:
        """The address behind the last element."""
        last = (self.batch - 1) * self.batch_stride + (self.rows - 1) * self.leading + self.columns
        return self.pointer + last * self.element_bytes

    def violations(self) -> Iterator[str]:
        """Yield what is wrong with this operand alone."""
        name, align_bytes = self.name, self.align * self.element_bytes
        if not self.pointer:
            yield f"{name} has no pointer"
        elif self.pointer % align_bytes:
            yield f"{name} begins at an address that is not a multiple of {align_bytes} B, the kernel's alignment"
        if self.leading < self.columns:
            overlap = f"{name}'s leading dimension {self.leading} is less than its {self.columns} contiguous elements"
            yield f"{overlap}: its rows overlap, copy it"
        elif self.leading % self.align:
            nearest = -(-self.leading // self.align) * self.align
            yield (
                f"{name}'s leading dimension {self.leading} is not a multiple of {self.align}: "
                f"use {nearest}, or a kernel with a smaller alignment"
            )
        if self.batch > 1 and (self.batch_stride < 0 or self.batch_stride % self.align):
            yield f"{name}'s batch stride {self.batch_stride} is negative or not a multiple of {self.align}"
        if self.end - self.pointer > MAX_BYTES:
            yield f"{name} spans {self.end - self.pointer} B: at most {MAX_BYTES} B are supported"


def matrices(problem: Problem, traits: LaunchTraits) -> dict[str, Matrix]:
    """Return A, B and D as the kernel's layout stores them, and C and bias if the launch reads them."""
    p = problem
    a_shape = (p.m, p.k) if traits.a_k_major else (p.k, p.m)
    b_shape = (p.n, p.k) if traits.b_k_major else (p.k, p.n)
    bytes_a, bytes_b, bytes_d = (DTYPES[name].bytes for name in (traits.dtype_a, traits.dtype_b, traits.dtype_d))

    def matrix(
        name: str, pointer: int, shape: tuple[int, int], leading: int, stride: int, item: int, align: int
    ) -> Matrix:
        if shape[0] == 1:  # a single row: the leading dimension is not used
            leading = -(-shape[1] // align) * align
        return Matrix(name, pointer, *shape, leading, p.batch, stride, item, align)

    found = [
        matrix("A", p.a, a_shape, p.lda, p.batch_stride_a, bytes_a, traits.align_a),
        matrix("B", p.b, b_shape, p.ldb, p.batch_stride_b, bytes_b, traits.align_b),
        matrix("D", p.d, (p.m, traits.columns_of_d(p.n)), p.ldd, p.batch_stride_d, bytes_d, traits.align_d),
    ]
    if traits.beta and p.beta != 0:
        found.append(matrix("C", p.c, (p.m, p.n), p.ldc, p.batch_stride_c, bytes_d, traits.align_d))
    bias = bias_of(traits, p)
    if bias != "none":
        extent = p.n if bias == "row" else p.m
        found.append(Matrix("bias", p.bias, 1, extent, extent, p.batch, p.batch_stride_bias, bytes_d, 1))
    given = ((one, aux) for one, aux in zip(traits.operands, p.aux) if one.kind != "scalar" or aux.pointer)
    found += [_aux_matrix(traits, p, one, aux) for one, aux in given]
    results = zip(traits.outputs, p.aux[len(traits.operands) :])
    found += [_output_matrix(traits, p, one, aux) for one, aux in results]
    return {matrix.name: matrix for matrix in found}


def _output_matrix(traits: LaunchTraits, problem: Problem, output: Output, aux: Aux) -> Matrix:
    if output.reduce:
        name, size = OUTPUT + output.name, DTYPES["f32"].bytes
        count = problem.m if output.kind == "column" else traits.columns_of_d(problem.n)
        return Matrix(name, aux.pointer, 1, count, count, problem.batch, aux.batch_stride, size, 1)
    given = Input(output.name, "matrix", output.of(traits.dtype_d))
    return replace(_aux_matrix(traits, problem, given, aux), name=OUTPUT + output.name)


def _aux_matrix(traits: LaunchTraits, problem: Problem, given: Input, aux: Aux) -> Matrix:
    dtype = "f32" if given.kind == "scalar" else given.of(traits.dtype_d)
    size, rows, align = DTYPES[dtype].bytes, 1, 1
    across = traits.columns_of_d(problem.n)
    columns = {"scalar": 1, "row": across, "column": problem.m, "matrix": across}[given.kind]
    leading = columns
    if given.kind == "matrix":
        rows, align = problem.m, aux_align(traits, dtype)
        leading = aux.leading if rows > 1 else -(-columns // align) * align
    return Matrix(INPUT + given.name, aux.pointer, rows, columns, leading, problem.batch, aux.batch_stride, size, align)


def aux_align(traits: LaunchTraits, dtype: str) -> int:
    """Return the alignment of a matrix of an expression: that of D in elements, but at most 16 bytes."""
    return min(traits.align_d, VECTOR_BYTES // DTYPES[dtype].bytes)


def bias_of(traits: LaunchTraits, problem: Problem) -> str:
    """Return the kind of the bias that a launch adds: the kernel's, or the problem's if the launch decides."""
    if not traits.decides_bias:
        return traits.bias
    return problem.bias_kind if problem.bias else "none"


def overlaps(places: dict[str, Matrix]) -> Iterator[str]:
    """Yield the operands that a result would overwrite while they are read. C may be D itself: elements are read before written."""
    same = ("pointer", "rows", "columns", "leading", "batch_stride", "element_bytes")
    seen: set[str] = set()
    for written in (name for name in places if name == "D" or name.startswith(OUTPUT)):
        d = places[written]
        seen.add(written)
        if not _batches_apart(d):
            yield f"{written}'s batches overlap: use a batch stride of at least one matrix"
        for name, other in places.items():
            may_be_d = written == "D" and (name == "C" or name.startswith(INPUT))
            in_place = may_be_d and all(getattr(other, field) == getattr(d, field) for field in same)
            if name not in seen and not in_place and not _apart(d, other):
                yield f"{written} overlaps {name}"


def _batches_apart(d: Matrix) -> bool:
    one_by_one = d.batch_stride >= (d.rows - 1) * d.leading + d.columns
    side_by_side = d.batch_stride >= d.columns and (d.batch - 1) * d.batch_stride + d.columns <= d.leading
    return d.batch == 1 or one_by_one or side_by_side


def _apart(d: Matrix, other: Matrix) -> bool:
    """Return whether two matrices share no byte: disjoint ranges, or columns of one wider matrix."""
    if d.end <= other.pointer or other.end <= d.pointer:
        return True
    pitch = d.leading * d.element_bytes
    whole = all(m.batch == 1 or m.batch_stride * m.element_bytes % pitch == 0 for m in (d, other))
    if other.leading * other.element_bytes != pitch or not whole:
        return False
    after = (other.pointer - d.pointer) % pitch
    return after >= d.columns * d.element_bytes and pitch - after >= other.columns * other.element_bytes


# ==== Checks before a launch ====

MAX_CTAS = 2**31 - 1
"""Largest grid.x. Source: CUDA Programming Guide 13.x, section 5.1.3, table 30."""
WORKSPACE_ALIGN_BYTES = 16


def check(problem: Problem, traits: LaunchTraits, workspace_size: int | None = None) -> None:
    """Check that a kernel supports a problem. `workspace_size` is the size of the workspace, if known.

    Units: `workspace_size` is bytes.
    Raises: ProblemError with all violations in one line.
    """
    wrong = [*_size_violations(problem, traits), *_array_violations(problem, traits)]
    if not wrong:
        places = {name: place for name, place in matrices(problem, traits).items() if problem.k or name not in "AB"}
        if traits.pointer_arrays:  # the matrices lie where the arrays tell
            places = {name: place for name, place in places.items() if name not in OPERAND_NAMES}
        wrong = [violation for matrix in places.values() for violation in matrix.violations()]
        misplaced = list(tensor_map_violations(traits, places))
        wrong = wrong or misplaced
        wrong += ["use a kernel without TMA (arch sm_90 or sm_80)"] if misplaced else []
        wrong += _scalar_violations(problem, traits)
        wrong += _workspace_violations(problem, traits, workspace_size, places)
        wrong += [] if wrong else overlaps(places)
    if wrong:
        raise ProblemError(f"{traits.symbol}: {'; '.join(wrong)}")


def _size_violations(problem: Problem, traits: LaunchTraits) -> Iterator[str]:
    for name in ("m", "n", "k", "batch"):
        value = getattr(problem, name)
        smallest = 0 if name == "k" and not traits.tensor_maps else 1
        if not smallest <= value <= MAX_EXTENT:
            yield f"{name} is {value}: use {smallest} to {MAX_EXTENT}"
    if violation := pairs_violation(traits.epilogue, problem.n):
        yield violation
    if wrong := [*_option_violations(problem.options)]:
        yield from wrong
        return
    count = ctas(traits, problem.m, problem.n, problem.batch, problem.options)
    if count > MAX_CTAS:
        yield f"{count} CTA tiles exceed the {MAX_CTAS} of a launch: use a larger tile, or a smaller batch"
    counters = used_counters(traits, problem.m, problem.n, problem.batch, problem.options)
    if counters > WORKSPACE_COUNTERS:
        what, fix = (
            ("rows and columns of tiles are reduced", "")
            if traits.segment_columns
            else ("tiles share k", "1 split, or ")
        )
        yield f"{counters} {what}: a workspace has counters for {WORKSPACE_COUNTERS}; use {fix}a larger tile"


def _option_violations(options: LaunchOptions | None) -> Iterator[str]:
    if options is None:
        return
    if options.splits < 1:
        yield f"splits is {options.splits}: use 1 or more"
    if options.whole_tiles < 0:
        yield f"whole_tiles is {options.whole_tiles}: use 0 or more"
    if not legal_raster(options.raster_tiles):
        yield (
            f"raster_tiles is {options.raster_tiles}: its absolute value must be from 1 to {BY_GPC - 1}, "
            f"or, for an order by GPC, from {BY_GPC + 1} to {2 * BY_GPC - 1}"
        )


def _array_violations(problem: Problem, traits: LaunchTraits) -> Iterator[str]:
    if traits.pointer_arrays and not problem.pointer_arrays:
        yield "the kernel takes pointer arrays: launch it from C with HGEMM_POINTER_ARRAYS, or with Problem(pointer_arrays=True)"
    elif problem.pointer_arrays and not traits.pointer_arrays:
        yield "the kernel takes matrices with a batch stride: generate one with --pointer-arrays on"
    elif traits.pointer_arrays:
        for place in matrices(problem, traits).values():
            if place.name not in OPERAND_NAMES or (place.name in "AB" and not problem.k):
                continue
            if not place.pointer:
                yield f"the pointer array of {place.name} is null"
            elif place.pointer % POINTER_BYTES:
                yield f"the pointer array of {place.name}, {place.pointer:#x}, is not a multiple of {POINTER_BYTES} B"
            one = replace(place, pointer=place.align * place.element_bytes, batch=1, batch_stride=0)
            yield from one.violations()


def _scalar_violations(problem: Problem, traits: LaunchTraits) -> Iterator[str]:
    for name in ("alpha", "beta"):
        if DTYPES["f32"].largest < abs(getattr(problem, name)) < float("inf"):
            yield f"{name} {getattr(problem, name)} overflows f32"
    if problem.beta != 0 and not traits.takes_beta:
        yield f"beta is {problem.beta}, but the kernel does not add C: generate one with --beta on"
    if problem.bias and traits.bias == "none":
        yield "bias is given, but the kernel adds none: generate one with --bias row or column"
    if len(problem.aux) != len(traits.operands) + len(traits.outputs):
        names = ", ".join([*(one.name for one in traits.operands), *(one.name for one in traits.outputs)])
        yield f"the problem has {len(problem.aux)} inputs and outputs of an expression: the kernel takes {names or 'none'}"
    for one, aux in zip(traits.operands, problem.aux):
        if one.kind == "scalar" and DTYPES["f32"].largest < abs(aux.value) < float("inf"):
            yield f"{one.name} {aux.value} overflows f32"


def _workspace_violations(
    problem: Problem, traits: LaunchTraits, size: int | None, places: Mapping[str, Matrix]
) -> Iterator[str]:
    needed = workspace_bytes(traits, problem.m, problem.n, problem.batch, problem.options)
    if needed and not problem.workspace:
        yield f"workspace is missing: {needed} B are required"
    elif needed and size is not None and size < needed:
        yield f"workspace has {size} B: {needed} B are required"
    elif needed and problem.workspace % WORKSPACE_ALIGN_BYTES:
        yield f"workspace begins at an address that is not a multiple of {WORKSPACE_ALIGN_BYTES} B"
    elif needed:
        for name, place in places.items():
            if problem.workspace < place.end and place.pointer < problem.workspace + needed:
                yield f"{name} overlaps the workspace"


# ==== Grid and workspace ====

WORKSPACE_COUNTERS = 65536
COUNTER_BYTES = 4
"""The counters at the start of a workspace, in templates/common/problem.cuh. Partial accumulators follow them."""
PARTIAL_TILES_PER_CTA = 2
"""Tiles that a CTA computes in part under stream-K, at most: the first and the last of its share."""


def with_launch_options(traits: LaunchTraits, problem: Problem, default: Callable[[], LaunchOptions]) -> Problem:
    """Return the problem with the options of its launch: its own ones or `default`.

    Splits are limited to the number of k-tiles, and whole tiles to the number of tiles.
    """
    if not (traits.decides_splits or traits.decides_raster):
        return problem
    options = problem.options or default()
    splits = min(options.splits, max(1, -(-problem.k // traits.tile_k)))
    whole = min(options.whole_tiles, tiles(traits, problem.m, problem.n) // traits.cluster_ctas * problem.batch)
    return replace(problem, options=replace(options, splits=splits, whole_tiles=whole))


def parameter(traits: LaunchTraits, problem: Problem) -> bytes:
    """Return the packed problem. An empty product (k = 0) is passed as k = -tile_k, with alpha 0 unless that is an input."""
    if problem.k:
        return problem.pack()
    return replace(problem, k=-traits.tile_k, alpha=problem.alpha if traits.epilogue else 0.0).pack()


def splits_of(traits: LaunchTraits, options: LaunchOptions | None) -> int:
    """Return the parts of a tile's k. A launch without options has 1."""
    if traits.decides_splits:
        return options.splits if options else 1
    return traits.splits


def tiles(traits: LaunchTraits, m: int, n: int) -> int:
    """Return the CTA tiles of one D (m, n), including those that complete clusters beyond its edges."""
    rows, columns = (extent * tile for extent, tile in zip(traits.cluster_shape, (traits.tile_m, traits.tile_n)))
    return -(-m // rows) * -(-n // columns) * traits.cluster_ctas


def shared_tiles(traits: LaunchTraits, m: int, n: int, batch: int, options: LaunchOptions | None = None) -> int:
    """Return how many CTA tiles are split along k through a workspace."""
    if not traits.partial_bytes or splits_of(traits, options) == 1:
        return 0
    whole = options.whole_tiles * traits.cluster_ctas if options and traits.decides_splits else 0
    return tiles(traits, m, n) * batch - whole


def ctas(traits: LaunchTraits, m: int, n: int, batch: int, options: LaunchOptions | None = None) -> int:
    """Return the work items of a problem: CTA tiles, or their splits. It is a multiple of the cluster size."""
    count, splits = tiles(traits, m, n) * batch, splits_of(traits, options)
    if not traits.partial_bytes:
        return count * splits  # the splits of a cluster
    return count + shared_tiles(traits, m, n, batch, options) * (splits - 1)


def grid_x(
    traits: LaunchTraits, m: int, n: int, batch: int, resident_ctas: int, options: LaunchOptions | None = None
) -> int:
    """Return grid.x. grid.y and grid.z are 1. `resident_ctas` is how many CTAs fit on the device, in whole clusters."""
    resident = max(traits.cluster_ctas, resident_ctas)
    if traits.grid_rule == "stream_k":  # all CTAs get work, even if there are fewer tiles
        return min(resident, traits.max_ctas)
    work = ctas(traits, m, n, batch, options)
    return min(work, resident) if traits.persistent else work


LARGE_CLUSTER = 8
"""CTAs of a cluster that takes half a GPC."""
LONG_K, LARGE_TILE = 4096, 128 * 256
"""Clusters of 2 CTAs in one wave lose by an early start if a split has at least LONG_K of k, and the tile is below LARGE_TILE.

Units: elements. Source: 11 launches on an H100 and an H200, benchmarks/data/early_starts_h100.json and early_starts_h200.json.
"""


def starts_early(traits: LaunchTraits, problem: Problem, resident_ctas: int) -> bool:
    """Return whether a launch should start before the previous one has ended (programmatic dependent launch).

    CTAs of such a launch take SMs in the order in which the previous launch leaves them. So they share the bandwidth of the
    GPCs in another way than on an idle GPU. Two kinds of launches lose more by that than they gain:

    - The grid takes more than half of the places, but not most of them. Its CTAs are spread unevenly over the GPCs. Large
      clusters never spread evenly.
    - The order of tiles suits the GPCs of an idle GPU (hgemm.dispatch_table.GPCS), and reads from L2 take most of the time.

    The exported C library has the same rule (templates/capi/src/launch.c). Source: docs/performance-notes.md, "Programmatic
    overlap".
    """
    launched, options = (problem.m, problem.n, problem.batch), problem.options
    grid = grid_x(traits, *launched, resident_ctas, options)
    uneven = resident_ctas < 2 * grid and 5 * grid < 4 * resident_ctas and traits.cluster[0] < LARGE_CLUSTER
    one_wave = ctas(traits, *launched, options) <= resident_ctas
    return traits.programmatic and not (uneven or (one_wave and _reads_by_gpc(traits, problem)))


def _reads_by_gpc(traits: LaunchTraits, problem: Problem) -> bool:
    """Return whether the launch is long and has pairs of small tiles, in several rows and columns of pairs."""
    rows, columns = traits.cluster_shape
    return (
        rows * columns == traits.cluster[0] == 2
        and problem.batch == 1
        and problem.m > rows * traits.tile_m
        and problem.n > columns * traits.tile_n
        and problem.k >= LONG_K * splits_of(traits, options=problem.options)
        and traits.tile_m * traits.tile_n < LARGE_TILE
    )


def workspace_bytes(traits: LaunchTraits, m: int, n: int, batch: int = 1, options: LaunchOptions | None = None) -> int:
    """Return the workspace of a launch, 0 for most kernels. Only one launch at a time may use a workspace.

    Shapes: WORKSPACE_COUNTERS counters; then the partial accumulators of each split of each tile that is split or, with
        stream-K, of PARTIAL_TILES_PER_CTA tiles of each CTA.
    """
    places = shared_tiles(traits, m, n, batch, options) * splits_of(traits, options)
    if traits.grid_rule == "stream_k":
        places = PARTIAL_TILES_PER_CTA * traits.max_ctas
    size = places * traits.partial_bytes + reduced_bytes(traits, m, n, batch)
    return WORKSPACE_COUNTERS * COUNTER_BYTES + size if size else 0


SEGMENT_ROWS = 16
"""Rows of D of a partial reduction of a column."""


def reduced_bytes(traits: LaunchTraits, m: int, n: int, batch: int = 1) -> int:
    """Return the bytes of the partial reductions of an expression.

    Shapes: (reductions of rows, batch, segments of `segment_columns`, m) in f32, then (reductions of columns, batch, segments of
        SEGMENT_ROWS, columns of D).
    """
    if not traits.segment_columns or not traits.epilogue:
        return 0
    of_rows = len(traits.epilogue.row_reductions) * -(-n // traits.segment_columns) * m
    of_columns = len(traits.epilogue.column_reductions) * -(-m // SEGMENT_ROWS) * traits.columns_of_d(n)
    return (of_rows + of_columns) * batch * DTYPES["f32"].bytes


def used_counters(traits: LaunchTraits, m: int, n: int, batch: int = 1, options: LaunchOptions | None = None) -> int:
    """Return how many counters a launch uses, the first ones of the workspace: one per tile that CTAs share."""
    if traits.grid_rule == "stream_k":
        return min(tiles(traits, m, n) * batch, PARTIAL_TILES_PER_CTA * traits.max_ctas)
    if traits.segment_columns and traits.epilogue:  # a reduction: one per row, and one per column of CTA tiles
        rows = -(-m // traits.tile_m) if traits.epilogue.row_reductions else 0
        return (rows + (-(-n // traits.tile_n) if traits.epilogue.column_reductions else 0)) * batch
    return shared_tiles(traits, m, n, batch, options)


def counter_bytes(traits: LaunchTraits, m: int, n: int, batch: int = 1, options: LaunchOptions | None = None) -> int:
    """Return the size of the counters that a launch uses. They must be 0 before it, and it leaves them 0."""
    return used_counters(traits, m, n, batch, options) * COUNTER_BYTES


# ==== Tensor maps: how the TMA unit finds the tiles of A, B and D ====

MAP_BYTES = 128
OPERANDS = ("a", "b", "d")
"""The order of the operands in the kernel's maps, its second argument. With edge maps, A and B have three each: see operand_maps.

Maps that the kernel does not use are zeros.
"""
CACHED_MAPS = 4096
STRIDE_MULTIPLE_BYTES = 16
MAX_MAP_EXTENT = 2**32
"""Limits of a tensor map. Source: CUDA Driver API 13.x, cuTensorMapEncodeTiled."""

FOLDED_ROWS = 8
"""Adjacent rows of 16 bytes that a map can describe as one row of 128 bytes. Boxes hold whole groups of them."""

_ELEMENTS = {"f16": "FLOAT16", "bf16": "BFLOAT16", "tf32": "TFLOAT32", "f32": "FLOAT32"}
"""Names in the driver API. With TFLOAT32, TMA rounds f32 to tf32 while it loads."""
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def tensor_maps(traits: LaunchTraits, problem: Problem, device: int) -> bytes:
    """Return the kernel's second argument for a checked problem. Raises DeviceError if the driver rejects a map."""
    addresses = (getattr(problem, name) for name in OPERANDS)
    return b"".join(encode(address) for encode, address in zip(encoders(traits, problem, device), addresses))


def encoders(traits: LaunchTraits, problem: Problem, device: int) -> tuple[Callable[[int], bytes], ...]:
    """Return one function per operand of OPERANDS: it encodes the maps of a checked problem at an address."""
    maps = operand_maps(traits, matrices(problem, traits))

    def encoder(name: str) -> Callable[[int], bytes]:
        def encode(address: int) -> bytes:
            encoded = (one and _encode(device, one.rule, address, one.extents, one.strides) for one in maps[name])
            return b"".join(one or bytes(MAP_BYTES) for one in encoded)

        return encode

    return tuple(map(encoder, OPERANDS))


@dataclass(frozen=True)
class OperandMap:
    """One tensor map of an operand, apart from its address.

    Shapes: `extents` and `strides` as `geometry` returns them.
    """

    rule: TensorMapRule
    extents: tuple[int, int, int]
    strides: tuple[int, int]


def operand_maps(traits: LaunchTraits, places: Mapping[str, Matrix]) -> dict[str, tuple[OperandMap | None, ...]]:
    """Return the maps of each operand, in the kernel's order. None stands for a map that the kernel does not use.

    The TMA is slow where a box ends inside a row of its map. So an operand with edge maps has three, for the kernel to choose from:

    - for whole boxes, whose rows extend beyond the matrix, up to whole tiles;
    - the same with narrower boxes, for the last box of a tile;
    - for the last k-tile, whose rows end with the matrix.

    Behind the end of a row lie the gap and the next row. Rows extend into the next row at most, and the last row of all is in the
    last k-tile. So no load reads behind the last element of the matrix.
    """
    rules, tiles = {rule.operand: rule for rule in traits.tensor_maps}, {"a": traits.tile_m, "b": traits.tile_n}

    def maps(name: str) -> tuple[OperandMap | None, ...]:
        matrix, rule = places[name.upper()], rules.get(name)
        extents, strides = geometry(matrix)
        exact = OperandMap(replace(rule, edge=False), extents, strides) if rule else None
        if name == "d" or not traits.has_edge_maps:
            return (exact,)
        if not exact or not rule or not rule.edge:
            return exact, None, None
        columns, rows, layers = rule.box
        wide = min(-(-extents[0] // tiles[name]) * tiles[name], extents[0] + matrix.leading)
        whole = replace(exact, extents=(wide, *extents[1:]))
        width = tiles[name] % columns
        narrow = replace(whole, rule=replace(exact.rule, box=(width, rows, layers))) if width else None
        return whole, narrow, exact

    return {name: maps(name) for name in OPERANDS}


def tensor_map_violations(traits: LaunchTraits, places: Mapping[str, Matrix]) -> Iterator[str]:
    """Yield the addresses, strides and extents that TMA does not support."""
    for rule in traits.tensor_maps:
        matrix = places[rule.operand.upper()]
        extents, strides = geometry(matrix)
        if matrix.pointer % STRIDE_MULTIPLE_BYTES:
            yield f"{matrix.name} begins at an address that is not a multiple of {STRIDE_MULTIPLE_BYTES} B, as TMA requires"
        for name, stride in zip(("leading dimension", "batch stride"), strides):
            if stride % STRIDE_MULTIPLE_BYTES:
                yield f"{matrix.name}'s {name} is {stride} B, not a multiple of {STRIDE_MULTIPLE_BYTES} B, as TMA requires"
            elif stride >= MAX_MAP_STRIDE_BYTES:
                yield f"{matrix.name}'s {name} is {stride} B: TMA supports less than {MAX_MAP_STRIDE_BYTES} B"
        if max(extents) >= MAX_MAP_EXTENT:
            yield f"{matrix.name} has extents {extents}: TMA supports less than {MAX_MAP_EXTENT} elements"


def geometry(matrix: Matrix) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return the extents and strides of a tensor map.

    Shapes: extents are (contiguous axis, other axis, batch), strides (other axis, batch). A matrix that the whole batch
        shares has batch 1.
    Units: extents are elements, strides bytes.
    """
    row_bytes = matrix.leading * matrix.element_bytes
    if matrix.batch > 1 and matrix.batch_stride:
        return (matrix.columns, matrix.rows, matrix.batch), (row_bytes, matrix.batch_stride * matrix.element_bytes)
    return (matrix.columns, matrix.rows, 1), (row_bytes, row_bytes)  # the second stride is not used


@dataclass(frozen=True)
class MapDescription:
    """The arguments of cuTensorMapEncodeTiled for one operand, apart from its address.

    Shapes: `extents` and `box` are (contiguous axis, other axis, batch), `strides` (other axis, batch).
    Units: `extents` and `box` are elements, `strides` bytes.
    Fields: `element` and `modes` are enumerations; `modes` are interleave, swizzle, L2 promotion and fill. A box holds every
        `step`-th row.
    """

    element: Any
    extents: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]
    step: int
    modes: tuple[Any, Any, Any, Any]

    @classmethod
    def of(
        cls, rule: TensorMapRule, extents: tuple[int, int, int], strides: tuple[int, int], overlaps: bool = True
    ) -> MapDescription:
        """Return a map for which loads beyond the extents return zeros, and stores there do nothing.

        Without `overlaps`, no row extends into the next one. Such maps are right, too, but the TMA may load them more slowly.

        Where rows do not start at multiples of 256 bytes, L2 would load up to twice the bytes with a promotion to 256 bytes.
        The TMA loads adjacent rows of 16 bytes faster as rows of 128 bytes. Source: docs/performance-notes.md.
        """
        d, box, step, size = driver(), rule.box, 1, DTYPES[rule.element].bytes
        vector = VECTOR_BYTES // size
        if not overlaps and extents[1] > 1:
            extents = (min(extents[0], strides[0] // size), *extents[1:])
        loads_vectors = (
            overlaps and rule.operand != "d" and box[0] == extents[0] == vector and strides[0] == VECTOR_BYTES
        )
        if loads_vectors and extents[1] % FOLDED_ROWS == 0:
            step, extents, box = FOLDED_ROWS, (vector * FOLDED_ROWS, *extents[1:]), (vector * FOLDED_ROWS, *box[1:])
        promotion = 256 if all(stride % 256 == 0 for stride in strides) else 128
        modes = (
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[rule.swizzle_bytes]}"),
            getattr(d.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{promotion}B"),
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        element = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[rule.element]}")
        return cls(element, extents, strides, box, step, modes)


def map_descriptions(traits: LaunchTraits, problem: Problem) -> tuple[tuple[str, MapDescription | None], ...]:
    """Return the operand and the description of each map that the kernel takes, None for a map that it does not use."""
    return tuple(
        (name, MapDescription.of(one.rule, one.extents, one.strides) if one else None)
        for name, maps in operand_maps(traits, matrices(problem, traits)).items()
        for one in maps
    )


@lru_cache(maxsize=CACHED_MAPS)
def _encode(
    device: int, rule: TensorMapRule, pointer: int, extents: tuple[int, int, int], strides: tuple[int, int]
) -> bytes:
    d = driver()
    words, counts = d.cuuint64_t, d.cuuint32_t
    result: tuple[Any, ...] = ()
    with open_device(device).current():
        for overlaps in (True, False):  # NVIDIA documents no map whose rows overlap, so a driver may reject it
            given = MapDescription.of(rule, extents, strides, overlaps)
            result = d.cuTensorMapEncodeTiled(
                given.element,
                len(extents),
                pointer,
                [words(extent) for extent in given.extents],
                [words(stride) for stride in given.strides],
                [counts(extent) for extent in given.box],
                [counts(1), counts(given.step), counts(1)],
                *given.modes,
            )
            if not int(result[0]):
                break
        return ctypes.string_at(checked(result, f"encode the tensor map of {rule}").getPtr(), MAP_BYTES)
