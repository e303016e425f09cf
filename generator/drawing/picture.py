"""The whole picture of a kernel: both operands before and after the swizzle, and the fragments of its instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from generator.arch import WGMMA_SM90
from generator.drawing.fragments import draw_fragment, fragments_of
from generator.drawing.shared_tile import GROUPS, draw_tile, unswizzled, view_of
from generator.drawing.svg import Svg
from generator.errors import RequestError
from generator.families.sm90.tensor_maps import OperandBoxes
from generator.layouts import PIECE_BYTES, OperandTile
from generator.plan import Plan
from generator.values import Smem

_LEFT, _GAP = 16, 40


def picture_of(plan: Plan, symbol: str) -> str:
    """Return the SVG of a plan's kernel. Raises RequestError where lanes load single elements, which is not drawn."""
    svg = Svg()
    spec, by_lanes = plan.spec, plan.spec.family != WGMMA_SM90
    _refuse_single_elements(plan)
    svg.text(_LEFT, 32, symbol, 16, bold=True)
    elements = f"{PIECE_BYTES // spec.operand_bytes} elements of {spec.dtype_a}"
    square = f"A square is 16 bytes of shared memory, {elements}. Its number and colour are the group of 4 banks"
    reading = (
        "one ldmatrix.x4, a row of a matrix by the address of the lane that is named."
        if by_lanes
        else f"wgmma for {plan.mma_k} of k: four of the matrices of 8 rows that it goes through."
    )
    svg.text(_LEFT, 54, f"{square} (of {GROUPS}) that holds it; the framed ones are read by", 12.5)
    svg.text(_LEFT, 71, f"{reading} Pieces of one matrix in one group of banks wait for one another.", 12.5)
    y = 96.0
    first, second = (plan.b, plan.a) if spec.swapped else (plan.a, plan.b)
    for name, stored, smem in (("A", first, spec.smem_a), ("B", second, spec.smem_b)):
        tile = stored if isinstance(stored, OperandTile) else box_of(stored, smem, plan.threads)
        y += draw_operand(svg, _LEFT, y, name, tile, str(smem), by_lanes) + 26
    return _fragments(svg, y, plan).document()


def _refuse_single_elements(plan: Plan) -> None:
    spec = plan.spec
    if spec.family != WGMMA_SM90 and not (plan.a.by_ldmatrix and plan.b.by_ldmatrix):
        raise RequestError(
            f"{spec.dtype_a} of layout {spec.layout} is read element by element, not by ldmatrix, and is not drawn: draw one of tn"
        )


def box_of(operand: OperandBoxes, smem: Smem, threads: int) -> OperandTile:
    """Return the first box of a stage that TMA fills, all slices of it, as a tile whose rows are those of its swizzle."""
    size = operand.element_bytes
    columns, piece = operand.swizzle_bytes // size, PIECE_BYTES // size
    return OperandTile(operand.k_major, operand.sliced, columns, piece, threads, smem, size)


def draw_operand(
    svg: Svg, x: float, y: float, name: str, tile: OperandTile, stored: str, by_lanes: bool = True
) -> float:
    """Draw a tile in order and as it is stored, side by side; return the height taken."""
    view = view_of(name, tile, by_lanes)
    what = "stage" if by_lanes else "TMA box"
    head = f"One {what} of {name} ({view.rows} {tile.rows}, {view.columns} {tile.columns}), {view.columns} contiguous"
    width, height = draw_tile(svg, x, y, unswizzled(tile), view, f"{head}: rows in order")
    _, stored_height = draw_tile(svg, x + width + _GAP, y, tile, view, f"as it is stored: {stored}")
    return max(height, stored_height)


def _fragments(svg: Svg, y: float, plan: Plan) -> Svg:
    by_lanes, floats, neighbours = plan.spec.family != WGMMA_SM90, plan.spec.acc == "f32", 4 // plan.spec.operand_bytes
    held = "pair of elements" if neighbours == 2 or not by_lanes else "element of A and B and each pair of D"
    words = f"{plan.spec.mma}: the lane that holds each {held}, coloured by its register; lane 5's are framed"
    if by_lanes:
        depth = plan.k_block if plan.wmma else plan.mma_k
        in_registers = [*fragments_of(depth, floats, neighbours, plan.mma_n)]
    else:
        in_registers = [*fragments_of(16, floats)[2:]]
    svg.text(_LEFT, y + 8, words, 15, bold=True)
    if not by_lanes:
        held = "Of the 64 rows warp w of a warpgroup holds 16 w to 16 w + 15, and these again for every 8 columns."
        if plan.spec.swapped:
            held += " It multiplies B and A transposed: its rows are the problem's n."
            in_registers = [replace(fragment, rows="n", columns="m") for fragment in in_registers]
        svg.text(_LEFT, y + 28, held, 12.5)
        y += 16
    x = float(_LEFT)
    for fragment in in_registers:
        x += draw_fragment(svg, x, y + 26, fragment)[0] + _GAP
    return svg


# ---- One by one -----------------------------------------------------------------------------------------------------


class Pictures:
    """The parts of kernels' pictures as documents of their own; those that are alike are drawn once."""

    def __init__(self) -> None:
        self._drawn: dict[Any, str] = {}

    def of(self, plan: Plan) -> list[tuple[str, str]]:
        """Return the pictures of a plan's kernel, each after a line that says what it shows. Raises RequestError as above."""
        _refuse_single_elements(plan)
        spec, by_lanes = plan.spec, plan.spec.family != WGMMA_SM90
        first, second = (plan.b, plan.a) if spec.swapped else (plan.a, plan.b)
        found = []
        for name, stored, smem in (("A", first, spec.smem_a), ("B", second, spec.smem_b)):
            shown = stored if isinstance(stored, OperandTile) else box_of(stored, smem, plan.threads)
            tile = replace(shown, threads=0)  # which no picture shows
            key = name, tile, str(smem), by_lanes
            found.append((f"{name} among the banks of shared memory", self._once(key, partial(_operand, *key))))
        key = spec.mma, spec.dtype_a, spec.acc, spec.swapped
        held = self._once(key, lambda: _fragments(Svg(), 8, plan).document())
        return [*found, (f"The lanes that hold the elements of {spec.mma}", held)]

    def _once(self, key: Any, draw: Callable[[], str]) -> str:
        if key not in self._drawn:
            self._drawn[key] = draw()
        return self._drawn[key]


def _operand(name: str, tile: OperandTile, stored: str, by_lanes: bool) -> str:
    svg = Svg()
    draw_operand(svg, _LEFT, 8, name, tile, stored, by_lanes)
    return svg.document()
