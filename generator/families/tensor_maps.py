"""Tensor maps of TMA: the boxes of A, B and D, their swizzles, and the maps that a launcher encodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.layouts import VECTOR_BYTES
from generator.spec import Smem
from hgemm.launch import MAP_BYTES
from hgemm.problem import PROBLEM_BYTES

ROWS_PER_WARPGROUP = 64
"""Rows of D that one wgmma computes. A consumer stages as many at a time."""

SWIZZLES_BYTES = (128, 64, 32)
"""Row widths of a box that TMA swizzles and wgmma reads, the widest first.

Source: PTX ISA 8.8, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", swizzling modes.
"""

CORE_ROWS = 8
"""Rows of a core matrix, which swizzles consist of. A slice of a stage must be whole ones."""

PART_BYTES = 1024
"""Period of the widest swizzle. Each part of shared memory starts at a multiple of it."""

MAPS = 3
MAP_ALIGN_BYTES = 64
"""Source: CUDA driver API, CUtensorMap."""

PARAM_BASE_BYTES = {90: 0x210}
LATER_PARAM_BASE_BYTES = 0x380
"""Offset of the parameters in a kernel's constant bank; alignment counts from the bank's start (found in its SASS)."""


def param_bytes(arch: str) -> int:
    """Return the bytes of a kernel's parameters: the problem, then the maps of A, B and D."""
    base = PARAM_BASE_BYTES.get(ARCHS[arch].number, LATER_PARAM_BASE_BYTES)
    end = base + PROBLEM_BYTES
    maps_at = -(-end // MAP_ALIGN_BYTES) * MAP_ALIGN_BYTES - base
    return maps_at + MAPS * MAP_BYTES


@dataclass(frozen=True)
class TensorMap:
    """The map of an operand that a launcher encodes: 3-D, (contiguous, other, batch).

    Units: `box` in elements, along the same dimensions. A swizzle of 0 bytes means none.
    """

    operand: str
    box: tuple[int, int, int]
    swizzle_bytes: int
    element: str
    contiguous: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "box": [*self.box]}


@dataclass(frozen=True)
class OperandBoxes:
    """One stage of A or B as TMA loads it. If `shared_by` CTAs of a cluster share it, each loads one slice for all, or they take
    turns.

    Shapes: (extent, k). Slices of a K-major operand are along its extent, slices of an MN-major one along k.
    """

    k_major: bool
    extent: int
    k: int
    shared_by: int
    element_bytes: int = 2

    @cached_property
    def swizzle_bytes(self) -> int:
        """Bytes of a box's rows: the widest swizzle that divides the contiguous extent."""
        along = (self.k if self.k_major else self.extent) * self.element_bytes
        return next((size for size in SWIZZLES_BYTES if along % size == 0), SWIZZLES_BYTES[-1])

    @property
    def sliced(self) -> int:
        """Extent that the slices divide."""
        return self.extent if self.k_major else self.k

    @property
    def slices(self) -> int:
        """Parts of a stage that different CTAs load: 1 if slices would not be whole groups of 8 rows, so that CTAs take turns."""
        return 1 if self.sliced % (self.shared_by * CORE_ROWS) else self.shared_by

    @property
    def box(self) -> tuple[int, int, int]:
        return (self.swizzle_bytes // self.element_bytes, self.sliced // self.slices, 1)

    @property
    def stage_bytes(self) -> int:
        return self.extent * self.k * self.element_bytes

    @property
    def smem(self) -> Smem:
        """The swizzle in elements. 128 bytes are eight 16-byte vectors, so 3 bits are XORed."""
        vector = VECTOR_BYTES // self.element_bytes
        return Smem("xor", ((self.swizzle_bytes // VECTOR_BYTES).bit_length() - 1, vector.bit_length() - 1, 3))

    def tensor_map(self, operand: str, extent: str, element: str) -> TensorMap:
        return TensorMap(operand, self.box, self.swizzle_bytes, element, "k" if self.k_major else extent)


def stages_bytes(stages: int, a: OperandBoxes, b: OperandBoxes) -> int:
    """Return the bytes of all stages of A, then of all stages of B."""
    return whole_parts(stages * a.stage_bytes) + whole_parts(stages * b.stage_bytes)


def whole_parts(size_bytes: int) -> int:
    """Round a size up to where the next part may start."""
    return -(-size_bytes // PART_BYTES) * PART_BYTES


@dataclass(frozen=True)
class StoreBoxes:
    """D as consumers stage it, one subtile of 64 rows after another.

    Shapes: a subtile is (64, subtile_columns), in boxes of (64, width). With swapped operands it is one box (subtile_columns, 64).
    Units: `max_subtile_bytes` is the longest row of a subtile. A shorter one needs fewer registers.
    """

    n: int
    element_bytes: int
    swap_ab: bool
    max_subtile_bytes: int = SWIZZLES_BYTES[0]

    @cached_property
    def width(self) -> int:
        """Elements of D's n in a box: the widest swizzle that divides the tile, else 16 bytes. 64 with swapped operands."""
        if self.swap_ab:
            return ROWS_PER_WARPGROUP
        swizzles = [size for size in SWIZZLES_BYTES if size <= self.max_subtile_bytes]
        sizes = [size // self.element_bytes for size in (*swizzles, 16)]
        return next((size for size in sizes if self.n % size == 0), sizes[-1])

    @cached_property
    def subtile_columns(self) -> int:
        """Columns of a subtile, `max_subtile_bytes` at most. With swapped operands they divide the tile."""
        most = min(self.n, self.max_subtile_bytes // self.element_bytes)
        return next((size for size in range(most, 8, -8) if not self.swap_ab or self.n % size == 0), 8)

    @property
    def subtile_bytes(self) -> int:
        """Bytes of a subtile."""
        return ROWS_PER_WARPGROUP * self.subtile_columns * self.element_bytes

    @property
    def swizzle_bytes(self) -> int:
        size = self.width * self.element_bytes
        return size if size in SWIZZLES_BYTES else 0

    def tensor_map(self, element: str) -> TensorMap:
        box = (self.width, self.subtile_columns if self.swap_ab else ROWS_PER_WARPGROUP, 1)
        return TensorMap("d", box, self.swizzle_bytes, element, "n")
