"""The tensor maps by which the TMA unit finds the tiles of A, B and D: 128 bytes an operand, encoded by the driver.

Source: CUDA Driver API 13.x, "Tensor Map Object Management", cuTensorMapEncodeTiled; CUDA Programming Guide 13.x,
    "Using TMA to transfer multi-dimensional arrays".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from hgemm.device import checked, driver, open_device
from hgemm.facts import MAX_MAP_STRIDE_BYTES, Facts, MapRule
from hgemm.matrices import Matrix, matrices
from hgemm.problem import Problem

MAP_BYTES = 128
OPERANDS = ("a", "b", "d")
"""The maps in the order of the kernel's second parameter; one that the variant does not name is zeros."""
CACHED_MAPS = 4096
STRIDE_MULTIPLE_BYTES = 16
MAX_EXTENT = 2**32

_ELEMENTS = {"f16": "FLOAT16", "bf16": "BFLOAT16", "tf32": "TFLOAT32", "f32": "FLOAT32"}
"""Names in the driver; of TFLOAT32 the TMA converts what it loads to the bits that are multiplied."""
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def tensor_maps(facts: Facts, problem: Problem, device: int) -> bytes:
    """Return the kernel's second parameter for a problem that was checked. Raises DeviceError where encoding fails."""
    addresses = (getattr(problem, name) for name in OPERANDS)
    return b"".join(encode(address) for encode, address in zip(encoders(facts, problem, device), addresses))


def encoders(facts: Facts, problem: Problem, device: int) -> tuple[Callable[[int], bytes], ...]:
    """Return for each of OPERANDS what encodes its map at an address, in the geometry of a problem that was checked."""
    rules, places = {rule.operand: rule for rule in facts.tensor_maps}, matrices(problem, facts)

    def encoder(name: str) -> Callable[[int], bytes]:
        if name not in rules:
            return lambda address: bytes(MAP_BYTES)
        extents, strides = geometry(places[name.upper()])
        return lambda address: _encode(device, rules[name], address, extents, strides)

    return tuple(map(encoder, OPERANDS))


def map_complaints(facts: Facts, places: Mapping[str, Matrix]) -> Iterator[str]:
    """Yield what the TMA unit does not address in a problem's operands."""
    for rule in facts.tensor_maps:
        matrix = places[rule.operand.upper()]
        extents, strides = geometry(matrix)
        if matrix.pointer % STRIDE_MULTIPLE_BYTES:
            yield f"{matrix.name} begins at an address that is not a multiple of {STRIDE_MULTIPLE_BYTES} B, which TMA needs"
        for name, stride in zip(("leading dimension", "batch stride"), strides):
            if stride % STRIDE_MULTIPLE_BYTES:
                yield f"{matrix.name}'s {name} is {stride} B, not a multiple of {STRIDE_MULTIPLE_BYTES} B, which TMA needs"
            elif stride >= MAX_MAP_STRIDE_BYTES:
                yield f"{matrix.name}'s {name} is {stride} B: TMA takes less than {MAX_MAP_STRIDE_BYTES} B"
        if max(extents) >= MAX_EXTENT:
            yield f"{matrix.name} is {extents} elements wide: TMA takes less than {MAX_EXTENT}"


def geometry(matrix: Matrix) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return extents (contiguous, other, batch) in elements, and strides of the last two in bytes.

    A matrix that serves the whole batch has one layer, and the kernel reads layer 0 where the batch stride is 0.
    """
    row_bytes = matrix.leading * matrix.element_bytes
    if matrix.batch > 1 and matrix.batch_stride:
        return (matrix.columns, matrix.rows, matrix.batch), (row_bytes, matrix.batch_stride * matrix.element_bytes)
    return (matrix.columns, matrix.rows, 1), (row_bytes, row_bytes)  # the second stride is not used


@lru_cache(maxsize=CACHED_MAPS)
def _encode(device: int, rule: MapRule, pointer: int, extents: tuple[int, int, int], strides: tuple[int, int]) -> bytes:
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
