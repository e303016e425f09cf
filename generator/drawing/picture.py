"""The whole picture of a kernel: both operands before and after the swizzle, and the fragments of its instruction."""

from __future__ import annotations

from generator.drawing.fragments import draw_fragment, fragments_of
from generator.drawing.shared_tile import GROUPS, draw_tile, unswizzled, view_of
from generator.drawing.svg import Svg
from generator.layouts import OperandTile
from generator.plan import Plan

_LEFT, _GAP = 16, 40


def picture_of(plan: Plan, symbol: str) -> str:
    """Return the SVG of a plan's kernel."""
    svg = Svg()
    spec = plan.spec
    svg.text(_LEFT, 32, symbol, 16, bold=True)
    svg.text(
        _LEFT,
        54,
        f"A square is 16 bytes of shared memory, 8 elements of {spec.dtype_a}. Its number and colour are the group of 4 banks "
        f"(of {GROUPS}) that holds it; the marked ones are read by",
        12.5,
    )
    svg.text(
        _LEFT,
        71,
        "one ldmatrix.x4, a row of a matrix by the address of the lane that is named. Pieces of one matrix in one group of "
        "banks wait for one another.",
        12.5,
    )
    y = 96.0
    for name, tile, stored in (("A", plan.a, spec.smem_a), ("B", plan.b, spec.smem_b)):
        y += draw_operand(svg, _LEFT, y, name, tile, str(stored)) + 26
    return _fragments(svg, y, plan).document()


def draw_operand(svg: Svg, x: float, y: float, name: str, tile: OperandTile, stored: str) -> float:
    """Draw a tile in order and as it is stored, side by side; return the height taken."""
    view = view_of(name, tile)
    head = f"One stage of {name} ({view.rows} {tile.rows}, {view.columns} {tile.columns}), {view.columns} contiguous"
    width, height = draw_tile(svg, x, y, unswizzled(tile), view, f"{head}: rows in order")
    _, stored_height = draw_tile(svg, x + width + _GAP, y, tile, view, f"as it is stored: {stored}")
    return max(height, stored_height)


def _fragments(svg: Svg, y: float, plan: Plan) -> Svg:
    words = f"{plan.spec.mma}: the lane that holds each pair of elements, coloured by its register; lane 5's are framed"
    svg.text(_LEFT, y + 8, words, 15, bold=True)
    x = float(_LEFT)
    for fragment in fragments_of(plan.mma_k, plan.spec.acc == "f32"):
        x += draw_fragment(svg, x, y + 26, fragment)[0] + _GAP
    return svg
