"""Where the operands of a problem lie, and whether any is in another's way."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hgemm.device import checked, driver, open_device
from hgemm.dtypes import DTYPES
from hgemm.errors import ProblemError
from hgemm.launch_traits import MAX_MAP_STRIDE_BYTES, LaunchTraits, TensorMapRule
from hgemm.problem import MAX_EXTENT, Problem

MAX_BYTES = 2**62


@dataclass(frozen=True)
class Matrix:
    """Where one operand lies: `rows` of `columns` contiguous elements, a leading dimension apart."""

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
        """The address after the last element."""
        last = (self.batch - 1) * self.batch_stride + (self.rows - 1) * self.leading + self.columns
        return self.pointer + last * self.element_bytes

    def complaints(self) -> Iterator[str]:
        name, align_bytes = self.name, self.align * self.element_bytes
        if not self.pointer:
            yield f"{name} has no pointer"
        elif self.pointer % align_bytes:
            yield f"{name} begins at an address that is not a multiple of {align_bytes} B, which the variant needs"
        if self.leading < self.columns:
            yield f"{name}'s leading dimension {self.leading} is less than its {self.columns} contiguous elements"
        elif self.leading % self.align:
            near = -(-self.leading // self.align) * self.align
            yield (
                f"{name}'s leading dimension {self.leading} is not a multiple of {self.align}: "
                f"use {near}, or a variant of less alignment"
            )
        if self.batch > 1 and (self.batch_stride < 0 or self.batch_stride % self.align):
            yield f"{name}'s batch stride {self.batch_stride} is not a multiple of {self.align} from 0 on"
        if self.end - self.pointer > MAX_BYTES:
            yield f"{name} spans {self.end - self.pointer} B, more than there are addresses"


def matrices(problem: Problem, traits: LaunchTraits) -> dict[str, Matrix]:
    """Return A, B, D, and C and bias where they are read, as the variant's layout stores them."""
    p = problem
    a_shape = (p.m, p.k) if traits.a_k_major else (p.k, p.m)
    b_shape = (p.n, p.k) if traits.b_k_major else (p.k, p.n)
    bytes_a, bytes_b, bytes_d = (DTYPES[name].bytes for name in (traits.dtype_a, traits.dtype_b, traits.dtype_d))

    def matrix(
        name: str, pointer: int, shape: tuple[int, int], leading: int, stride: int, item: int, align: int
    ) -> Matrix:
        if shape[0] == 1:  # there is no next row: nothing reads the leading dimension
            leading = -(-shape[1] // align) * align
        return Matrix(name, pointer, *shape, leading, p.batch, stride, item, align)

    found = [
        matrix("A", p.a, a_shape, p.lda, p.batch_stride_a, bytes_a, traits.align_a),
        matrix("B", p.b, b_shape, p.ldb, p.batch_stride_b, bytes_b, traits.align_b),
        matrix("D", p.d, (p.m, p.n), p.ldd, p.batch_stride_d, bytes_d, traits.align_d),
    ]
    if traits.beta and p.beta != 0:
        found.append(matrix("C", p.c, (p.m, p.n), p.ldc, p.batch_stride_c, bytes_d, traits.align_d))
    if traits.bias != "none":
        extent = p.n if traits.bias == "row" else p.m
        found.append(Matrix("bias", p.bias, 1, extent, extent, p.batch, p.batch_stride_bias, bytes_d, 1))
    return {matrix.name: matrix for matrix in found}


def overlaps(places: dict[str, Matrix]) -> Iterator[str]:
    """Yield what D would overwrite while it is read. C may be D itself: an element is read before it is written."""
    d = places["D"]
    if not _batches_apart(d):
        yield "D's batches overlap: use a batch stride of whole matrices"
    same = ("pointer", "leading", "batch_stride")
    for name, other in places.items():
        in_place = name == "C" and all(getattr(other, field) == getattr(d, field) for field in same)
        if name != "D" and not in_place and not _apart(d, other):
            yield f"D overlaps {name}"


def _batches_apart(d: Matrix) -> bool:
    one_by_one = d.batch_stride >= (d.rows - 1) * d.leading + d.columns
    side_by_side = d.batch_stride >= d.columns and (d.batch - 1) * d.batch_stride + d.columns <= d.leading
    return d.batch == 1 or one_by_one or side_by_side


def _apart(d: Matrix, other: Matrix) -> bool:
    """Tell whether two matrices share no byte: by their ranges, or as columns of one wide matrix."""
    if d.end <= other.pointer or other.end <= d.pointer:
        return True
    pitch = d.leading * d.element_bytes
    whole = all(m.batch == 1 or m.batch_stride * m.element_bytes % pitch == 0 for m in (d, other))
    if other.leading * other.element_bytes != pitch or not whole:
        return False
    after = (other.pointer - d.pointer) % pitch
    return after >= d.columns * d.element_bytes and pitch - after >= other.columns * other.element_bytes


# ==== Everything that may be wrong with a problem, before it is launched ====


MAX_CTAS = 2**31 - 1
"""Largest grid.x. Source: CUDA Programming Guide 13.x, section 5.1.3, table 30."""
WORKSPACE_ALIGN_BYTES = 16


def check(problem: Problem, traits: LaunchTraits, workspace_size: int | None = None) -> None:
    """Refuse a problem that the variant does not compute; `workspace_size` is what the workspace holds, if known.

    Raises: ProblemError with everything that is wrong, in one line.
    """
    wrong = list(_size_complaints(problem, traits))
    if not wrong:
        places = {name: place for name, place in matrices(problem, traits).items() if problem.k or name not in "AB"}
        wrong = [told for matrix in places.values() for told in matrix.complaints()]
        misplaced = list(tensor_map_violations(traits, places))
        wrong = wrong or misplaced
        wrong += ["variants of the mma.sync family (arch sm_90, sm_80) take any operands"] if misplaced else []
        wrong += _scalar_complaints(problem, traits)
        wrong += _workspace_complaints(problem, traits, workspace_size, places)
        wrong += [] if wrong else overlaps(places)
    if wrong:
        raise ProblemError(f"{traits.symbol}: {'; '.join(wrong)}")


def _size_complaints(problem: Problem, traits: LaunchTraits) -> Iterator[str]:
    for name in ("m", "n", "k", "batch"):
        value = getattr(problem, name)
        least = 0 if name == "k" and not traits.tensor_maps else 1
        if not least <= value <= MAX_EXTENT:
            yield f"{name} is {value}: it may be {least} to {MAX_EXTENT}"
    count = ctas(traits, problem.m, problem.n, problem.batch)
    if count > MAX_CTAS:
        yield f"{count} CTA tiles are more than a launch's {MAX_CTAS}: use a larger tile, or fewer batches a launch"


def _scalar_complaints(problem: Problem, traits: LaunchTraits) -> Iterator[str]:
    for name in ("alpha", "beta"):
        if DTYPES["f32"].largest < abs(getattr(problem, name)) < float("inf"):
            yield f"{name} {getattr(problem, name)} is beyond f32"
    if problem.beta != 0 and not traits.beta:
        yield f"beta is {problem.beta}, and the variant does not add C: use one generated with beta on"
    if problem.bias and traits.bias == "none":
        yield "bias is given, and the variant adds none: use one generated with bias row or column"


def _workspace_complaints(
    problem: Problem, traits: LaunchTraits, size: int | None, places: Mapping[str, Matrix]
) -> Iterator[str]:
    needed = workspace_bytes(traits, problem.m, problem.n, problem.batch)
    if needed and not problem.workspace:
        yield f"a workspace of {needed} B is missing: bring one"
    elif needed and size is not None and size < needed:
        yield f"the workspace has {size} B of {needed} B"
    elif needed and problem.workspace % WORKSPACE_ALIGN_BYTES:
        yield f"the workspace begins at an address that is not a multiple of {WORKSPACE_ALIGN_BYTES} B"
    elif needed:
        for name, place in places.items():
            if problem.workspace < place.end and place.pointer < problem.workspace + needed:
                yield f"{name} overlaps the workspace"


# ==== The numbers of a launch that follow from a variant and a problem: grid and workspace ====


COUNTERS_ROUND_BYTES = 256
"""The counters at the front of a workspace end on a multiple of this (templates/common/split_k.cuh)."""


def tiles(traits: LaunchTraits, m: int, n: int) -> int:
    """Return how many CTA tiles one D (m, n) has, those included that complete a cluster beyond its edges."""
    rows, columns = (extent * tile for extent, tile in zip(traits.cluster_shape, (traits.tile_m, traits.tile_n)))
    return -(-m // rows) * -(-n // columns) * traits.cluster_ctas


def ctas(traits: LaunchTraits, m: int, n: int, batch: int) -> int:
    """Return how many pieces of work a problem has: a tile, of a batch, and its splits along k.

    Clusters take work together, so this is a multiple of their size.
    """
    return tiles(traits, m, n) * traits.splits * batch


def grid_x(traits: LaunchTraits, m: int, n: int, batch: int, resident_ctas: int) -> int:
    """Return grid.x; y and z are 1. `resident_ctas` is how many CTAs the device holds at once, in whole clusters."""
    resident = max(traits.cluster_ctas, resident_ctas)
    if traits.grid_rule == "stream_k":  # all work, however few the tiles are
        return min(resident, traits.max_ctas)
    work = ctas(traits, m, n, batch)
    return min(work, resident) if traits.grid_rule == "persistent" else work


def workspace_bytes(traits: LaunchTraits, m: int, n: int, batch: int = 1) -> int:
    """Return the bytes that a launch works in, 0 for most variants; used by one launch at a time.

    Shapes: a counter a tile and batch, rounded up to 256 bytes in all, then the partial sums of each or, of stream-K, of each CTA
        that there may be.
    """
    partials = (
        traits.partial_bytes_per_tile * tiles(traits, m, n) * batch + traits.partial_bytes_per_cta * traits.max_ctas
    )
    return counter_bytes(traits, m, n, batch) + partials


def counter_bytes(traits: LaunchTraits, m: int, n: int, batch: int = 1) -> int:
    """Return the bytes of the counters, which must be zeros before a launch and are zeros after it."""
    needed = traits.counter_bytes_per_tile * tiles(traits, m, n) * batch
    return -(-needed // COUNTERS_ROUND_BYTES) * COUNTERS_ROUND_BYTES


# ==== The tensor maps by which the TMA unit finds the tiles of A ====


MAP_BYTES = 128
OPERANDS = ("a", "b", "d")
"""The maps in the order of the kernel's second parameter; one that the variant does not name is zeros."""
CACHED_MAPS = 4096
STRIDE_MULTIPLE_BYTES = 16
MAX_MAP_EXTENT = 2**32

_ELEMENTS = {"f16": "FLOAT16", "bf16": "BFLOAT16", "tf32": "TFLOAT32", "f32": "FLOAT32"}
"""Names in the driver; of TFLOAT32 the TMA converts what it loads to the bits that are multiplied."""
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def tensor_maps(traits: LaunchTraits, problem: Problem, device: int) -> bytes:
    """Return the kernel's second parameter for a problem that was checked. Raises DeviceError where encoding fails."""
    addresses = (getattr(problem, name) for name in OPERANDS)
    return b"".join(encode(address) for encode, address in zip(encoders(traits, problem, device), addresses))


def encoders(traits: LaunchTraits, problem: Problem, device: int) -> tuple[Callable[[int], bytes], ...]:
    """Return for each of OPERANDS what encodes its map at an address, in the geometry of a problem that was checked."""
    rules, places = {rule.operand: rule for rule in traits.tensor_maps}, matrices(problem, traits)

    def encoder(name: str) -> Callable[[int], bytes]:
        if name not in rules:
            return lambda address: bytes(MAP_BYTES)
        extents, strides = geometry(places[name.upper()])
        return lambda address: _encode(device, rules[name], address, extents, strides)

    return tuple(map(encoder, OPERANDS))


def tensor_map_violations(traits: LaunchTraits, places: Mapping[str, Matrix]) -> Iterator[str]:
    """Yield what the TMA unit does not address in a problem's operands."""
    for rule in traits.tensor_maps:
        matrix = places[rule.operand.upper()]
        extents, strides = geometry(matrix)
        if matrix.pointer % STRIDE_MULTIPLE_BYTES:
            yield f"{matrix.name} begins at an address that is not a multiple of {STRIDE_MULTIPLE_BYTES} B, which TMA needs"
        for name, stride in zip(("leading dimension", "batch stride"), strides):
            if stride % STRIDE_MULTIPLE_BYTES:
                yield f"{matrix.name}'s {name} is {stride} B, not a multiple of {STRIDE_MULTIPLE_BYTES} B, which TMA needs"
            elif stride >= MAX_MAP_STRIDE_BYTES:
                yield f"{matrix.name}'s {name} is {stride} B: TMA takes less than {MAX_MAP_STRIDE_BYTES} B"
        if max(extents) >= MAX_MAP_EXTENT:
            yield f"{matrix.name} is {extents} elements wide: TMA takes less than {MAX_MAP_EXTENT}"


def geometry(matrix: Matrix) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return extents (contiguous, other, batch) in elements, and strides of the last two in bytes.

    A matrix that serves the whole batch has one layer, and the kernel reads layer 0 where the batch stride is 0.
    """
    row_bytes = matrix.leading * matrix.element_bytes
    if matrix.batch > 1 and matrix.batch_stride:
        return (matrix.columns, matrix.rows, matrix.batch), (row_bytes, matrix.batch_stride * matrix.element_bytes)
    return (matrix.columns, matrix.rows, 1), (row_bytes, row_bytes)  # the second stride is not used


@lru_cache(maxsize=CACHED_MAPS)
def _encode(
    device: int, rule: TensorMapRule, pointer: int, extents: tuple[int, int, int], strides: tuple[int, int]
) -> bytes:
    """Encode one map. Elements beyond the extents are read as zeros and not written."""
    d = driver()
    words, counts = d.cuuint64_t, d.cuuint32_t
    arguments = (
        getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[rule.element]}"),
        len(extents),
        pointer,
        [words(extent) for extent in extents],
        [words(stride) for stride in strides],
        [counts(extent) for extent in rule.box],
        [counts(1)] * len(extents),
        d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[rule.swizzle_bytes]}"),
        d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    with open_device(device).current():
        encoded = checked(d.cuTensorMapEncodeTiled(*arguments), f"encode the tensor map of {rule}")
    return ctypes.string_at(encoded.getPtr(), MAP_BYTES)
