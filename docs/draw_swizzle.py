"""Draws docs/swizzle.svg: where the 16-byte pieces of a 128x32 operand tile lie among the banks, plain and swizzled.

    python docs/draw_swizzle.py [--out docs/swizzle.svg]

`hgemm draw` makes such a picture of a whole kernel, from the same modules.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.layouts import OperandTile
from generator.report.draw import Svg, draw_operand
from generator.spec import Smem

TILE = OperandTile(True, 128, 32, 8, 128, Smem.parse("xor:2,3,3"))


def picture() -> str:
    svg = Svg()
    draw_operand(svg, 16, 16, "A", TILE, str(TILE.smem))
    return svg.document()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("swizzle.svg"))
    parser.parse_args().out.write_text(picture())


if __name__ == "__main__":
    main()
