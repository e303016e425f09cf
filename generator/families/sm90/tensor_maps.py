"""What TMA moves at once: the boxes of A, B and D, their swizzles, and the maps that a launcher encodes from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from generator.layouts import PIECE_BYTES
from generator.spec import Smem

ROWS_PER_WARPGROUP = 64
"""Rows of D that one wgmma computes, and that a consumer stages at a time."""

SWIZZLES_BYTES = (128, 64, 32)
"""Widths of a box's rows that TMA swizzles and wgmma reads, the widest first.

Source: PTX ISA 8.8, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", swizzling modes.
"""

PART_BYTES = 1024
"""After so many bytes the widest swizzle repeats: all of A begins there, all of B, and the end is rounded up to it."""


@dataclass(frozen=True)
class TensorMap:
    """What a launcher encodes of an operand: a 3-D map of (contiguous, other, batch).

    Units: elements for `box`, along the same dimensions; a swizzle of 0 bytes is none.
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
    """One stage of A or B as TMA brings it, in slices where `shared_by` CTAs of a cluster load one each for all.

    Shapes: (extent, k); the slices of a K-major operand are along its extent, those of an MN-major one along k.
    """

    k_major: bool
    extent: int
    k: int
    shared_by: int
    element_bytes: int = 2

    @cached_property
    def swizzle_bytes(self) -> int:
        """Bytes of a box's rows: the widest swizzle that the contiguous extent is whole boxes of."""
        along = (self.k if self.k_major else self.extent) * self.element_bytes
        return next((size for size in SWIZZLES_BYTES if along % size == 0), SWIZZLES_BYTES[-1])

    @property
    def sliced(self) -> int:
        """The extent that slices divide."""
        return self.extent if self.k_major else self.k

    @property
    def box(self) -> tuple[int, int, int]:
        return (self.swizzle_bytes // self.element_bytes, self.sliced // self.shared_by, 1)

    @property
    def stage_bytes(self) -> int:
        return self.extent * self.k * self.element_bytes

    @property
    def smem(self) -> Smem:
        """The swizzle, in elements: 128 bytes are eight pieces of 16, whose 3 bits are XORed."""
        piece = PIECE_BYTES // self.element_bytes
        return Smem("xor", ((self.swizzle_bytes // PIECE_BYTES).bit_length() - 1, piece.bit_length() - 1, 3))

    def tensor_map(self, operand: str, extent: str, element: str) -> TensorMap:
        return TensorMap(operand, self.box, self.swizzle_bytes, element, "k" if self.k_major else extent)


def stages_bytes(stages: int, a: OperandBoxes, b: OperandBoxes) -> int:
    """Return the bytes of all stages of A, then all of B."""
    return whole_parts(stages * a.stage_bytes) + whole_parts(stages * b.stage_bytes)


def whole_parts(size_bytes: int) -> int:
    """Round a size up to where another part may begin."""
    return -(-size_bytes // PART_BYTES) * PART_BYTES


@dataclass(frozen=True)
class StoreBoxes:
    """D as consumers stage it: some columns of 64 rows of sums a turn.

    Shapes: (64, turn_columns) a turn, as boxes of (64, width); (turn_columns, 64) as one box where operands are swapped.
    """

    n: int
    element_bytes: int
    swap_ab: bool

    @cached_property
    def width(self) -> int:
        """Elements of D's n in a box: the widest swizzle of whose boxes the tile is made, else 16 bytes; 64 swapped."""
        if self.swap_ab:
            return ROWS_PER_WARPGROUP
        sizes = [size // self.element_bytes for size in (*SWIZZLES_BYTES, 16)]
        return next((size for size in sizes if self.n % size == 0), sizes[-1])

    @cached_property
    def turn_columns(self) -> int:
        """Columns of sums staged a turn, 128 bytes at most; swapped, all turns are alike."""
        most = min(self.n, SWIZZLES_BYTES[0] // self.element_bytes)
        return next((size for size in range(most, 8, -8) if not self.swap_ab or self.n % size == 0), 8)

    @property
    def turn_bytes(self) -> int:
        """Bytes that a consumer stages a turn."""
        return ROWS_PER_WARPGROUP * self.turn_columns * self.element_bytes

    @property
    def swizzle_bytes(self) -> int:
        size = self.width * self.element_bytes
        return size if size in SWIZZLES_BYTES else 0

    def tensor_map(self, element: str) -> TensorMap:
        box = (self.width, self.turn_columns if self.swap_ab else ROWS_PER_WARPGROUP, 1)
        return TensorMap("d", box, self.swizzle_bytes, element, "n")
