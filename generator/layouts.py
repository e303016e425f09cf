"""Where an operand's elements lie in shared memory, and what a warp's accesses to them cost."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

from pycute import Swizzle

from generator.spec import Smem

BANK_BYTES = 4
BANKS = 32
PIECE_BYTES = 16
"""A row of an 8x8 matrix of ldmatrix; so many bytes stay together in every placement."""
ASYNC_BYTES = 4
"""The least that cp.async copies. Source: PTX ISA, cp.async, cp-size."""
PHASE_BYTES = BANKS * BANK_BYTES
"""Bytes that shared memory serves at once; wider accesses of a warp are served in phases of so many bytes.

Source: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later: 32 banks of 4 bytes.
"""


@dataclass(frozen=True)
class OperandTile:
    """One stage of an operand in shared memory.

    Shapes: (rows, columns), columns contiguous: (tile, k) for a K-major operand, (k, tile) for an MN-major one.
    Units: elements of `element_bytes`; `chunk` is what one copy moves.
    """

    k_major: bool
    rows: int
    columns: int
    chunk: int
    threads: int
    smem: Smem
    element_bytes: int = 2

    @property
    def piece(self) -> int:
        """Elements of 16 bytes."""
        return PIECE_BYTES // self.element_bytes

    @property
    def by_ldmatrix(self) -> bool:
        """Whether ldmatrix reads fragments; it transposes elements of 2 bytes only, others each lane loads itself."""
        return self.k_major or self.element_bytes == 2

    @property
    def pitch(self) -> int:
        """Elements from one row to the next, beside the padding after every second row."""
        return self.columns + self.smem.row_pad

    @property
    def period(self) -> int:
        """Elements after which the swizzle repeats: a stage is whole periods, and whole multiples of 128 bytes."""
        bits, base, shift = self.smem.swizzle
        line = PHASE_BYTES // self.element_bytes
        return max(line, 1 << (bits + base + shift)) if bits else line

    @property
    def stage_elements(self) -> int:
        return -(-self.linear(self.rows, 0) // self.period) * self.period

    def linear(self, row: int, column: int) -> int:
        """Return the element offset of (row, column) before the swizzle. Those of an even row and of any other add up."""
        return row * self.pitch + row // 2 * self.smem.pair_pad + column

    def offset(self, row: int, column: int) -> int:
        """Return the element offset of (row, column), swizzled."""
        return _swizzle(self.smem)(self.linear(row, column))


@cache
def _swizzle(smem: Smem) -> Swizzle:
    return Swizzle(*smem.swizzle)


def conflicts(byte_offsets: list[int], width_bytes: int) -> int:
    """Return the extra passes that a warp's accesses of `width_bytes` at `byte_offsets` take for bank conflicts.

    Lanes of one phase that touch different words of one bank wait for one another. Words that are only touched together are
    counted as one: those of 16 bytes, where all offsets and the width are multiples of 16.
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
    """Return what shared memory serves at once: its rows and columns, the lanes' places in it, and the bytes of each.

    That are 8 rows of 16 bytes by ldmatrix, or an element for each lane in 4 rows, which are 4 of k, of 8.
    """
    if tile.by_ldmatrix:
        return 8, tile.piece, [tile.linear(lane, 0) for lane in range(8)], PIECE_BYTES
    return 4, 8, [tile.linear(lane % 4, lane // 4) for lane in range(32)], tile.element_bytes


@cache
def write_conflicts(tile: OperandTile) -> int:
    """Return the bank conflicts of copying one stage of `tile` in, a chunk a thread, warp after warp."""
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


def _within_period(offsets: list[int], period: int) -> tuple[int, ...]:
    """Return offsets whole periods before, which are in the same banks."""
    before = offsets[0] // period * period
    return tuple(offset - before for offset in offsets)


@cache
def conflict_free(
    k_major: bool, rows: int, columns: int, chunk: int, threads: int, element_bytes: int = 2, one_pitch: bool = False
) -> Smem:
    """Return the smallest placement without bank conflicts: plain, else the least XOR, else the least padding.

    Where none has no conflicts, the one with the fewest, first of reads, which several warps do. `one_pitch` asks for rows that
    all are as far apart.
    """
    piece = PIECE_BYTES // element_bytes
    base = piece.bit_length() - 1
    xors = [Smem("xor", (bits, base, shift)) for bits in (1, 2, 3) for shift in range(bits, 7)]
    pads = [Smem(kind, (pieces * piece,)) for kind in ("pad", "pad_alternate") for pieces in (1, 2, 3)]
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
