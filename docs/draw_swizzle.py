"""Draws docs/swizzle.svg: where the 16-byte pieces of a 128x32 operand tile lie among the banks, plain and swizzled.

    python docs/draw_swizzle.py [--out docs/swizzle.svg]

Needs matplotlib: pip install -e '.[plots]'. Every number comes from generator.layouts, which plans the kernels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.layouts import ELEMENT_BYTES, PHASE_BYTES, OperandTile, conflicts, read_conflicts
from generator.values import Smem

ROWS, COLUMNS, CHUNK, THREADS = 128, 32, 8, 128
SHOWN_ROWS = 8
PIECE_BYTES = CHUNK * ELEMENT_BYTES
GROUPS = PHASE_BYTES // PIECE_BYTES  # 8 groups of 4 banks, each as wide as a piece
COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#DDDDDD")
assert len(COLOURS) == GROUPS


def tile_of(smem: str) -> OperandTile:
    return OperandTile(True, ROWS, COLUMNS, CHUNK, THREADS, Smem.parse(smem))


def group(tile: OperandTile, row: int, piece: int) -> int:
    """Return the group of 4 banks that holds a piece."""
    return tile.offset(row, piece * CHUNK) * ELEMENT_BYTES % PHASE_BYTES // PIECE_BYTES


def draw(axes, smem: str, title: str) -> None:
    """Draw the first rows of a tile, a square a piece, and say what reading its first column of pieces costs."""
    from matplotlib.patches import Rectangle

    tile = tile_of(smem)
    pieces = COLUMNS // CHUNK
    for row in range(SHOWN_ROWS):
        for piece in range(pieces):
            found = group(tile, row, piece)
            axes.add_patch(Rectangle((piece, row), 1, 1, facecolor=COLOURS[found], edgecolor="white", linewidth=2))
            axes.text(piece + 0.5, row + 0.52, str(found), ha="center", va="center", fontsize=13)
    axes.add_patch(Rectangle((0.03, 0.03), 0.94, SHOWN_ROWS - 0.06, fill=False, edgecolor="black", linewidth=2.5))

    one_phase = [tile.offset(row, 0) * ELEMENT_BYTES for row in range(SHOWN_ROWS)]
    passes = 1 + conflicts(one_phase, PIECE_BYTES)
    axes.set_title(title, fontsize=13, pad=34)
    axes.text(
        pieces / 2,
        SHOWN_ROWS + 0.25,
        f"the framed 8 cells: {passes} pass{'es' if passes > 1 else ''}\n"
        f"the whole tile: {read_conflicts(tile)} bank conflicts",
        ha="center",
        va="top",
        fontsize=11.5,
        linespacing=1.5,
    )
    axes.set_xlim(0, pieces)
    axes.set_ylim(SHOWN_ROWS, 0)
    axes.set_aspect(0.62)
    axes.xaxis.tick_top()
    axes.set_xticks([piece + 0.5 for piece in range(pieces)])
    axes.set_xticklabels([f"k {piece * CHUNK}..{piece * CHUNK + CHUNK - 1}" for piece in range(pieces)], fontsize=10)
    axes.set_yticks([row + 0.5 for row in range(SHOWN_ROWS)])
    axes.set_yticklabels([f"row {row}" for row in range(SHOWN_ROWS)], fontsize=10)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("swizzle.svg"))
    out = parser.parse_args().out

    import matplotlib

    matplotlib.use("svg" if out.suffix == ".svg" else "agg")
    matplotlib.rcParams["svg.hashsalt"] = "hgemm"  # the same picture is the same bytes
    from matplotlib import pyplot

    figure, (before, after) = pyplot.subplots(1, 2, figsize=(10, 5.2))
    figure.subplots_adjust(left=0.07, right=0.98, top=0.75, bottom=0.14, wspace=0.22)
    figure.suptitle(
        f"One stage of A, {ROWS}x{COLUMNS} f16, rows 0 to {SHOWN_ROWS - 1} of {ROWS}: a cell is 16 bytes,\n"
        f"its number and colour the group of 4 banks (of {GROUPS}) that holds it. ldmatrix reads the framed cells at once.",
        fontsize=12.5,
        y=0.985,
        linespacing=1.5,
    )
    draw(before, "none", "--smem none")
    draw(after, "xor:2,3,3", "--smem xor:2,3,3 (planned by auto)")
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
