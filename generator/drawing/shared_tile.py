"""One stage of an operand in shared memory: the bank group of each 16-byte piece, and what is read of it at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from generator.drawing.svg import Svg
from generator.layouts import BANKS, PHASE_BYTES, PIECE_BYTES, OperandTile, conflicts, read_conflicts
from generator.values import Smem

GROUPS = PHASE_BYTES // PIECE_BYTES
"""Groups of 4 banks, each as wide as a piece."""
COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#DDDDDD")
SHOWN_ROWS, SHOWN_PIECES = 16, 8
_CELL, _ROW, _LABEL = 66, 24, 64
_SLOT = 54


@dataclass(frozen=True)
class View:
    """How a tile is shown: `name` of the operand, `rows` and `columns` the names of its two indices, whether the 8x8
    matrices of an ldmatrix.x4 follow one another down the rows first, and whether lanes address them at all."""

    name: str
    rows: str
    columns: str
    down_first: bool
    by_lanes: bool = True

    def lane_place(self, lane: int) -> tuple[int, int]:
        """Return the (row, piece) whose address a lane gives, as FragmentReader of templates/hgemm/operand.cuh does."""
        low, high = lane // 8 % 2, lane // 16
        down, across = (low, high) if self.down_first else (high, low)
        return down * 8 + lane % 8, across


def view_of(name: str, tile: OperandTile, by_lanes: bool = True) -> View:
    """Return how operand A or B is shown. For A the matrices follow one another along m, for B along k."""
    extent = "m" if name == "A" else "n"
    rows, columns = (extent, "k") if tile.k_major else ("k", extent)
    return View(name, rows, columns, (name == "A") == tile.k_major, by_lanes)


def unswizzled(tile: OperandTile) -> OperandTile:
    """Return the tile with its rows one after the other."""
    return replace(tile, smem=Smem("none"))


def group_of(tile: OperandTile, row: int, piece: int) -> int:
    """Return the group of 4 banks that holds a piece."""
    return tile.offset(row, piece * tile.piece) * tile.element_bytes % PHASE_BYTES // PIECE_BYTES


def draw_tile(svg: Svg, x: float, y: float, tile: OperandTile, view: View, title: str) -> tuple[float, float]:
    """Draw the first rows of a tile and what one ldmatrix meets there; return the width and height taken."""
    rows, pieces = min(SHOWN_ROWS, tile.rows), min(SHOWN_PIECES, tile.columns // tile.piece)
    svg.text(x + _LABEL, y + 14, title, 15, bold=True)
    top, left = y + 46, x + _LABEL
    for piece in range(pieces):
        label = f"{view.columns} {piece * tile.piece}..{piece * tile.piece + tile.piece - 1}"
        svg.text(left + (piece + 0.5) * _CELL, top - 7, label, 10.5, "middle")
    lanes = {view.lane_place(lane): lane for lane in range(32)} if view.by_lanes else {}
    for row in range(rows):
        svg.text(left - 8, top + row * _ROW + 16, f"{view.rows} {row}", 11, "end")
        for piece in range(pieces):
            _cell(svg, left + piece * _CELL, top + row * _ROW, group_of(tile, row, piece), lanes.get((row, piece)))
    for matrix in range(4):
        row, piece = view.lane_place(8 * matrix)
        svg.box(left + piece * _CELL + 1, top + row * _ROW + 1, _CELL - 2, 8 * _ROW - 2, line="#111", bold=2.4)
    bottom = _draw_phases(svg, left, top + rows * _ROW + 26, tile, view)
    total = read_conflicts(tile)
    svg.text(left, bottom, f"All of it read once: {total} bank conflicts.", 12.5, bold=True)
    return _LABEL + max(pieces * _CELL, GROUPS * _SLOT + 150), bottom - y + 12


def _cell(svg: Svg, x: float, y: float, group: int, lane: int | None) -> None:
    svg.box(x + 1, y + 1, _CELL - 2, _ROW - 2, COLOURS[group])
    if lane is None:
        svg.text(x + _CELL / 2, y + 17, str(group), 12, "middle", "#555")
    else:
        svg.text(x + 13, y + 17, str(group), 13, "middle", bold=True)
        svg.text(x + _CELL - 6, y + 16.5, f"lane {lane}", 9.5, "end")


def _draw_phases(svg: Svg, x: float, y: float, tile: OperandTile, view: View) -> float:
    """Draw which lanes meet in which bank group, an 8x8 matrix a line; return where the next line goes."""
    meeting = "lanes" if view.by_lanes else "rows"
    svg.text(x, y, f"Each framed matrix is read at once. The {meeting} that meet in each bank group:", 12)
    y += 10
    svg.text(x, y + 12, "banks", 10, fill="#555")
    for group in range(GROUPS):
        first = group * BANKS // GROUPS
        svg.text(x + 88 + (group + 0.5) * _SLOT, y + 12, f"{first}..{first + 3}", 10, "middle", "#555")
    y += 18
    for matrix in range(4):
        met: dict[int, list[int]] = defaultdict(list)
        for lane in range(8 * matrix, 8 * matrix + 8):
            place = view.lane_place(lane)
            met[group_of(tile, *place)].append(lane if view.by_lanes else place[0])
        offsets = [
            tile.offset(row, piece * tile.piece) * tile.element_bytes
            for row, piece in map(view.lane_place, range(8 * matrix, 8 * matrix + 8))
        ]
        passes = 1 + conflicts(offsets, PIECE_BYTES)
        row, piece = view.lane_place(8 * matrix)
        told = (
            f"lanes {8 * matrix}..{8 * matrix + 7}"
            if view.by_lanes
            else f"{view.columns} {piece * tile.piece}, {view.rows} {row}..{row + 7}"
        )
        svg.text(x, y + 15, told, 11)
        for group in range(GROUPS):
            here = met.get(group, [])
            svg.box(x + 88 + group * _SLOT + 1, y + 1, _SLOT - 2, 20, COLOURS[group] if here else "#F6F6F6")
            words = " ".join(map(str, here)) if len(here) < 4 else f"{len(here)} {meeting}"
            svg.text(x + 88 + (group + 0.5) * _SLOT, y + 15, words, 10, "middle", bold=len(here) > 1)
        told = "1 pass" if passes == 1 else f"{passes} passes"
        svg.text(
            x + 96 + GROUPS * _SLOT, y + 15, told, 11.5, bold=passes > 1, fill="#222" if passes == 1 else "#B00000"
        )
        y += 23
    return y + 20
