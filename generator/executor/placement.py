"""What the layouts say of a variant's shared memory before anything runs: the bank conflicts of copies and reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from generator.layouts import BANK_BYTES, PHASE_BYTES, PIECE_BYTES, OperandTile, conflicts, read_conflicts
from generator.spec import DTYPE_BYTES
from generator.values import Smem, Tile, WarpTile

_WARP = 32


@dataclass(frozen=True)
class Placement:
    """Both operands of a variant of the mma.sync family, and the warps that share a CTA tile."""

    a: OperandTile
    b: OperandTile
    warps_m: int
    warps_n: int
    threads: int

    @property
    def read_conflicts(self) -> int:
        """Conflicts of a k-tile's fragments: every row of warps reads all of A's columns, and every column B's."""
        return read_conflicts(self.a) * self.warps_n + read_conflicts(self.b) * self.warps_m

    @property
    def copies_are_even(self) -> bool:
        """Whether whole warps have chunks in every pass of every copy, or none.

        Where a lane has none it goes on to its next chunk at once, and a count by source lines takes lanes of two passes for
        one instruction; the compiler's code has an instruction for each pass.
        """
        return all(_is_even(tile, self.threads) for tile in (self.a, self.b))

    @property
    def copy_conflicts(self) -> int:
        """Conflicts of copying a k-tile in."""
        return sum(copy_conflicts(tile, self.threads) for tile in (self.a, self.b))


def placement_of(spec: Mapping[str, Any]) -> Placement:
    """Read the placement from a record's spec."""
    tile, warp = Tile.parse(spec["cta_tile"]), WarpTile.parse(spec["warp_tile"])
    warps_m, warps_n = tile.m // warp.m, tile.n // warp.n
    threads = warps_m * warps_n * _WARP
    operands = []
    for k_major, extent, name in ((spec["layout"][0] == "t", tile.m, "a"), (spec["layout"][1] == "n", tile.n, "b")):
        rows, columns = (extent, tile.k) if k_major else (tile.k, extent)
        smem, size = Smem.parse(spec[f"smem_{name}"]), DTYPE_BYTES[spec[f"dtype_{name}"]]
        chunk = {"scalar": 1, "shifted": PIECE_BYTES // size}.get(spec["copy"], spec[f"align_{name}"])
        operands.append(OperandTile(k_major, rows, columns, chunk, threads, smem, size))
    return Placement(*operands, warps_m, warps_n, threads)


def copy_conflicts(tile: OperandTile, threads: int) -> int:
    """Return the bank conflicts of copying one stage, pass after pass, warp after warp, a chunk a thread.

    The passes are those of OperandCopy in templates/hgemm/operand.cuh.
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


def _is_even(tile: OperandTile, threads: int) -> bool:
    per_row = tile.columns // tile.chunk
    if per_row >= threads:
        return per_row % _WARP == 0
    row_step = threads // per_row
    return row_step * per_row % _WARP == 0 and tile.rows % row_step * per_row % _WARP == 0


def _chunk(tile: OperandTile, thread: int, per_row: int, row_step: int) -> tuple[int, int] | None:
    """Return the (row, column) of a thread's chunk in a pass, or None where it has none."""
    row, column = thread // per_row, thread % per_row * tile.chunk
    return (row, column) if row < row_step else None
