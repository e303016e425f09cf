"""Layouts of operands in shared memory, and the bank conflicts of a warp's accesses."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

from pycute import Swizzle

from generator.spec import Smem
from hgemm.dtypes import VECTOR_BYTES

BANK_BYTES = 4
BANKS = 32
ASYNC_BYTES = 4
"""Minimum size of a cp.async. Source: PTX ISA, cp.async, cp-size."""
PHASE_BYTES = BANKS * BANK_BYTES
"""Bytes that shared memory reads or writes at once. Wider accesses of a warp take several phases.

Source: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later: 32 banks of 4 bytes.
"""


@dataclass(frozen=True)
class OperandTile:
    """One stage of an operand in shared memory.

    Shapes: (rows, columns) with contiguous columns. That is (tile, k) if the operand is K-major, (k, tile) if it is MN-major.
    Units: elements of `element_bytes`. One copy moves `chunk` elements.
    """

    k_major: bool
    rows: int
    columns: int
    chunk: int
    threads: int
    smem: Smem
    element_bytes: int = 2

    @property
    def vector_elements(self) -> int:
        """Elements of 16 bytes."""
        return VECTOR_BYTES // self.element_bytes

    @property
    def by_ldmatrix(self) -> bool:
        """Whether ldmatrix can read the fragments. It transposes elements of 2 bytes only; lanes load others one by one."""
        return self.k_major or self.element_bytes == 2

    @property
    def pitch(self) -> int:
        """Elements from one row to the next, without the padding after every second row."""
        return self.columns + self.smem.row_pad

    @property
    def period(self) -> int:
        """Elements after which the swizzle repeats. A stage is a multiple of it, and of 128 bytes."""
        bits, base, shift = self.smem.swizzle
        line = PHASE_BYTES // self.element_bytes
        return max(line, 1 << (bits + base + shift)) if bits else line

    @property
    def stage_elements(self) -> int:
        return -(-self.linear(self.rows, 0) // self.period) * self.period

    def linear(self, row: int, column: int) -> int:
        """Return the element offset of (row, column) before the swizzle. Offsets of an even row and of another row add up."""
        return row * self.pitch + row // 2 * self.smem.pair_pad + column

    def offset(self, row: int, column: int) -> int:
        """Return the element offset of (row, column), swizzled."""
        return _swizzle(self.smem)(self.linear(row, column))


@cache
def _swizzle(smem: Smem) -> Swizzle:
    return Swizzle(*smem.swizzle)


def conflicts(byte_offsets: list[int], width_bytes: int) -> int:
    """Return the extra passes that bank conflicts cost a warp's accesses of `width_bytes` at `byte_offsets`.

    Lanes of one phase that access different words of one bank conflict. Words that are always accessed together count as one,
    for example 16 bytes if all offsets and the width are multiples of 16.
    """
    lanes = PHASE_BYTES // max(width_bytes, BANK_BYTES)
    step = math.gcd(PHASE_BYTES, width_bytes, *byte_offsets)
    unit, within = max(BANK_BYTES, step), range(0, width_bytes, step)
    extra = 0
    for first in range(0, len(byte_offsets), lanes):
        touched = {(offset + at) // unit for offset in byte_offsets[first : first + lanes] for at in within}
        banks = [place % (PHASE_BYTES // unit) for place in touched]
        if len({*banks}) < len(banks):
            extra += max(map(banks.count, banks)) - 1
    return extra


@cache
def read_conflicts(tile: OperandTile) -> int:
    """Return the bank conflicts of reading every fragment of `tile` once."""
    rows, columns, lanes, width_bytes = _reads(tile)
    period, across = tile.period, range(0, tile.columns, columns)  # whole periods change no bank
    starts: Counter[int] = Counter()
    for row in range(0, tile.rows - rows + 1, rows):
        first = tile.linear(row, 0)
        starts.update([(first + column) % period for column in across])
    swizzle, size = _swizzle(tile.smem), tile.element_bytes
    return sum(
        count * conflicts([swizzle(start + lane) * size for lane in lanes], width_bytes)
        for start, count in starts.items()
    )


def _reads(tile: OperandTile) -> tuple[int, int, list[int], int]:
    """Return what a warp reads in one phase: rows, columns, the lanes' offsets, and the bytes of each.

    ldmatrix reads 8 rows of 16 bytes. Otherwise each lane reads one element, in 4 rows (of k) by 8 columns.
    """
    if tile.by_ldmatrix:
        return 8, tile.vector_elements, [tile.linear(lane, 0) for lane in range(8)], VECTOR_BYTES
    return 4, 8, [tile.linear(lane % 4, lane // 4) for lane in range(32)], tile.element_bytes


@cache
def write_conflicts(tile: OperandTile) -> int:
    """Return the bank conflicts of the first pass of a copy, one chunk per thread, warp by warp. It is fast."""
    per_row = tile.columns // tile.chunk
    row_step = max(1, tile.threads // per_row)
    rows = [tile.linear(row, 0) for row in range(min(tile.rows, row_step))]
    places = itertools.product(rows, range(0, per_row * tile.chunk, tile.chunk))
    offsets, period = [row + column for row, column in places], tile.period
    warps = Counter(_within_period(offsets[i : i + 32], period) for i in range(0, len(offsets), 32))
    swizzle, size = _swizzle(tile.smem), tile.element_bytes
    return sum(
        count * conflicts([swizzle(offset) * size for offset in warp], tile.chunk * size)
        for warp, count in warps.items()
    )


@cache
def copy_conflicts(tile: OperandTile, threads: int) -> int:
    """Return the bank conflicts of copying a k-tile. In each pass, each thread copies one chunk.

    The passes are those of OperandCopy in templates/mma_sync/operand.cuh.
    """
    per_row = tile.columns // tile.chunk
    row_step = 1 if per_row >= threads else threads // per_row
    width_bytes = tile.chunk * tile.element_bytes
    lanes = PHASE_BYTES // max(width_bytes, BANK_BYTES)
    extra = 0
    for row_first in range(0, tile.rows, row_step):
        for column_first in range(0, tile.columns, threads * tile.chunk):
            for lane in range(0, threads, lanes):
                places = [_chunk(tile, thread, per_row, row_step) for thread in range(lane, lane + lanes)]
                offsets = [
                    tile.offset(row_first + row, column_first + column) * tile.element_bytes
                    for row, column in filter(None, places)
                    if row_first + row < tile.rows and column_first + column < tile.columns
                ]
                extra += conflicts(offsets, width_bytes)
    return extra


def _chunk(tile: OperandTile, thread: int, per_row: int, row_step: int) -> tuple[int, int] | None:
    """Return the (row, column) of a thread's chunk in a pass, or None if it has no chunk."""
    row, column = thread // per_row, thread % per_row * tile.chunk
    return (row, column) if row < row_step else None


def _within_period(offsets: list[int], period: int) -> tuple[int, ...]:
    """Return the offsets minus whole periods, which does not change their banks."""
    before = offsets[0] // period * period
    return tuple(offset - before for offset in offsets)


@cache
def conflict_free(
    k_major: bool, rows: int, columns: int, chunk: int, threads: int, element_bytes: int = 2, one_pitch: bool = False
) -> Smem:
    """Return the smallest placement without bank conflicts: none, else the smallest XOR, else the smallest padding.

    If all have conflicts, it has the fewest; reads count first, because several warps read. `one_pitch` requires rows at one
    distance.
    """
    vector = VECTOR_BYTES // element_bytes
    base = vector.bit_length() - 1
    xors = [Smem("xor", (bits, base, shift)) for bits in (1, 2, 3) for shift in range(bits, 7)]
    pads = [Smem(kind, (vectors * vector,)) for kind in ("pad", "pad_alternate") for vectors in (1, 2, 3)]
    found: list[tuple[int, int, int, int, Smem]] = []
    placements = [Smem("none"), *xors, *pads]
    for order, smem in enumerate(smem for smem in placements if smem.has_one_pitch or not one_pitch):
        tile = OperandTile(k_major, rows, columns, chunk, threads, smem, element_bytes)
        reads = read_conflicts(tile)
        if found and reads > min(found)[0]:
            continue
        writes = write_conflicts(tile)
        found.append((reads, writes, tile.stage_elements, order, smem))
        if reads == writes == 0 and not smem.pad_elements:
            break
    return min(found)[-1]
