"""Which lane and register of a warp holds which element of A, B and D of one tensor instruction.

Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k8" and "for mma.m16n8k16" with 16-bit A and B, and
    "for mma.m16n8k8" with .tf32. Those of WMMA, which PTX leaves open, are as templates/hgemm/atoms_wmma_device.cuh has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from generator.drawing.svg import Svg

_CELL, _ROW = 44, 22
_COLOURS = ("#CFE2F3", "#FCE0CC", "#F7F0C8", "#F9D9E4")


@dataclass(frozen=True)
class Fragment:
    """A matrix of (rows, columns) elements, of which a lane holds `neighbours` along one index together: pairs, or single ones.

    Fields: `pairs_down` says that they follow one another down the rows, as of B (k, n).
    """

    name: str
    rows: str
    columns: str
    extents: tuple[int, int]
    pairs_down: bool
    registers_a_pair: int
    neighbours: int = 2

    def owner(self, row: int, column: int) -> tuple[int, int]:
        """Return the lane that holds element (row, column), and which of its pairs."""
        along, at = (column, row) if self.pairs_down else (row, column)
        pair = at // self.neighbours
        lane = along % 8 * 4 + pair % 4
        return lane, along // 8 * 2 + pair // 4 if self.pairs_down else along // 8 + pair // 4 * 2

    def register(self, pair: int) -> str:
        """Name the register, or the two of 32 bits, that hold a pair."""
        letter = self.name.lower()
        return f"{letter}{pair}" if self.registers_a_pair == 1 else f"{letter}{2 * pair}, {letter}{2 * pair + 1}"


def fragments_of(mma_k: int, floats: bool, neighbours: int = 2, mma_n: int = 8) -> tuple[Fragment, Fragment, Fragment]:
    """Return A, B and D of mma.m16n8k16 or mma.m16n8k8, or of WMMA's 16 columns.

    `floats` are accumulators of 32 bits, `neighbours` the elements of A or B that a register holds.
    """
    return (
        Fragment("A", "m", "k", (16, mma_k), False, 1, neighbours),
        Fragment("B", "k", "n", (mma_k, mma_n), True, 1, neighbours),
        Fragment("D", "m", "n", (16, mma_n), False, 2 if floats else 1),
    )


def draw_fragment(svg: Svg, x: float, y: float, fragment: Fragment) -> tuple[float, float]:
    """Draw a cell a pair, with the number of the lane that holds it, coloured by register; return the size taken."""
    rows, columns = fragment.extents
    tall, wide = (fragment.neighbours, 1) if fragment.pairs_down else (1, fragment.neighbours)
    svg.text(x + 40, y + 14, f"{fragment.name} ({fragment.rows} {rows}, {fragment.columns} {columns})", 15, bold=True)
    top, left = y + 44, x + 40
    for column in range(0, columns, wide):
        label = f"{column},{column + 1}" if wide == 2 else str(column)
        svg.text(left + (column // wide + 0.5) * _CELL, top - 6, f"{fragment.columns} {label}", 10, "middle")
    used: dict[str, str] = {}
    for row in range(0, rows, tall):
        label = f"{row},{row + 1}" if tall == 2 else str(row)
        svg.text(left - 6, top + (row // tall) * _ROW + 15, f"{fragment.rows} {label}", 10, "end")
        for column in range(0, columns, wide):
            lane, pair = fragment.owner(row, column)
            used[fragment.register(pair)] = _COLOURS[pair]
            at = left + column // wide * _CELL, top + row // tall * _ROW
            svg.box(at[0] + 1, at[1] + 1, _CELL - 2, _ROW - 2, _COLOURS[pair])
            svg.text(at[0] + _CELL / 2, at[1] + 15.5, str(lane), 12, "middle", bold=lane == 5)
            if lane == 5:
                svg.box(at[0] + 2, at[1] + 2, _CELL - 4, _ROW - 4, line="#111", bold=2)
    below = top + rows // tall * _ROW + 12
    for place, (register, colour) in enumerate(sorted(used.items())):
        svg.box(left + place * 62, below, 14, 14, colour, "#888")
        svg.text(left + place * 62 + 19, below + 11.5, register, 11.5)
    return 40 + max(columns // wide * _CELL, len(used) * 62), below + 20 - y
