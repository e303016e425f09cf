"""Pictures of kernels as SVG: an operand among the banks of shared memory, and the fragments of a tensor instruction."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from generator.errors import RequestError
from generator.families.base import Plan
from generator.families.mma_sync_direct.plan import DirectPlan
from generator.families.tensor_maps import OperandBoxes
from generator.families.wgmma.plan import WgmmaPlan
from generator.ladders.results import require_matplotlib
from generator.layouts import BANKS, PHASE_BYTES, OperandTile, conflicts, read_conflicts
from generator.spec import Smem
from hgemm.dtypes import VECTOR_BYTES

# ==== SVG ====

_FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass
class Svg:
    """A picture that grows as shapes are added. The same shapes give the same text. Units: pixels from the top left corner."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = "none", line: str = "none", bold: float = 1
    ) -> None:
        """Add a rectangle. Its frame lies inside its edges."""
        at = f"x='{_number(x)}' y='{_number(y)}' width='{_number(width)}' height='{_number(height)}'"
        self.parts.append(f"<rect {at} fill='{fill}' stroke='{line}' stroke-width='{_number(bold)}'/>")
        self._cover(x + width, y + height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 13,
        anchor: str = "start",
        fill: str = "#222",
        bold: bool = False,
    ) -> None:
        """Add a line of text with its baseline at `y`. `anchor` is start, middle or end."""
        weight = " font-weight='bold'" if bold else ""
        at = f"x='{_number(x)}' y='{_number(y)}' font-size='{_number(size)}' text-anchor='{anchor}'"
        self.parts.append(f"<text {at} fill='{fill}'{weight}>{escape(words)}</text>")
        wide = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * 0.56 * size * len(words)
        self._cover(x + wide, y + size / 2)

    def _cover(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def document(self, margin: float = 16) -> str:
        """Return the whole picture on white."""
        width, height = _number(self.width + margin), _number(self.height + margin)
        head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {_FONT}>"
        ground = f"<rect width='{width}' height='{height}' fill='white'/>"
        return "\n".join([head, ground, *self.parts, "</svg>"]) + "\n"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


# ==== Fragments: the lane and register of each element of A, B and D ====

_LANE_WIDTH, _LANE_HEIGHT = 44, 22
_REGISTER_COLOURS = ("#CFE2F3", "#FCE0CC", "#F7F0C8", "#F9D9E4")


@dataclass(frozen=True)
class Fragment:
    """A matrix of a tensor instruction. A register of a lane holds `neighbours` adjacent elements: a pair, or one.

    Fields: `extents` are (rows, columns); `pairs_down`: the elements of a pair are adjacent down the rows, as for B (k, n).
    """

    name: str
    rows: str
    columns: str
    extents: tuple[int, int]
    pairs_down: bool
    registers_a_pair: int
    neighbours: int = 2

    def owner(self, row: int, column: int) -> tuple[int, int]:
        """Return the lane that holds element (row, column), and the index of the pair in that lane."""
        along, at = (column, row) if self.pairs_down else (row, column)
        pair = at // self.neighbours
        lane = along % 8 * 4 + pair % 4
        return lane, along // 8 * 2 + pair // 4 if self.pairs_down else along // 8 + pair // 4 * 2

    def register(self, pair: int) -> str:
        """Return the name of the register, or of the two 32-bit registers, that hold a pair."""
        letter = self.name.lower()
        return f"{letter}{pair}" if self.registers_a_pair == 1 else f"{letter}{2 * pair}, {letter}{2 * pair + 1}"


def fragments_of(mma_k: int, floats: bool, neighbours: int = 2, mma_n: int = 8) -> tuple[Fragment, Fragment, Fragment]:
    """Return A, B and D of mma.m16n8k16, mma.m16n8k8 or a WMMA with 16 columns.

    `floats`: accumulators have 32 bits. `neighbours`: elements of A or B in a register.
    """
    return (
        Fragment("A", "m", "k", (16, mma_k), False, 1, neighbours),
        Fragment("B", "k", "n", (mma_k, mma_n), True, 1, neighbours),
        Fragment("D", "m", "n", (16, mma_n), False, 2 if floats else 1),
    )


def draw_fragment(svg: Svg, x: float, y: float, fragment: Fragment) -> tuple[float, float]:
    """Draw a cell for each pair, with the number of its lane, coloured by register. Return width and height."""
    rows, columns = fragment.extents
    tall, wide = (fragment.neighbours, 1) if fragment.pairs_down else (1, fragment.neighbours)
    svg.text(x + 40, y + 14, f"{fragment.name} ({fragment.rows} {rows}, {fragment.columns} {columns})", 15, bold=True)
    top, left = y + 44, x + 40
    for column in range(0, columns, wide):
        label = f"{column},{column + 1}" if wide == 2 else str(column)
        svg.text(left + (column // wide + 0.5) * _LANE_WIDTH, top - 6, f"{fragment.columns} {label}", 10, "middle")
    used: dict[str, str] = {}
    for row in range(0, rows, tall):
        label = f"{row},{row + 1}" if tall == 2 else str(row)
        svg.text(left - 6, top + (row // tall) * _LANE_HEIGHT + 15, f"{fragment.rows} {label}", 10, "end")
        for column in range(0, columns, wide):
            lane, pair = fragment.owner(row, column)
            used[fragment.register(pair)] = _REGISTER_COLOURS[pair]
            at = left + column // wide * _LANE_WIDTH, top + row // tall * _LANE_HEIGHT
            svg.box(at[0] + 1, at[1] + 1, _LANE_WIDTH - 2, _LANE_HEIGHT - 2, _REGISTER_COLOURS[pair])
            svg.text(at[0] + _LANE_WIDTH / 2, at[1] + 15.5, str(lane), 12, "middle", bold=lane == 5)
            if lane == 5:
                svg.box(at[0] + 2, at[1] + 2, _LANE_WIDTH - 4, _LANE_HEIGHT - 4, line="#111", bold=2)
    below = top + rows // tall * _LANE_HEIGHT + 12
    for place, (register, colour) in enumerate(sorted(used.items())):
        svg.box(left + place * 62, below, 14, 14, colour, "#888")
        svg.text(left + place * 62 + 19, below + 11.5, register, 11.5)
    return 40 + max(columns // wide * _LANE_WIDTH, len(used) * 62), below + 20 - y


# ==== One stage of an operand in shared memory ====

GROUPS = PHASE_BYTES // VECTOR_BYTES
"""Groups of 4 banks. A group is as wide as a 16-byte vector."""
COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#DDDDDD")
SHOWN_ROWS, SHOWN_PIECES = 16, 8
_VECTOR_WIDTH, _VECTOR_HEIGHT, _LABEL = 66, 24, 64
_SLOT = 54


@dataclass(frozen=True)
class TileView:
    """Options of the drawing of a tile.

    Fields: `name` of the operand; `rows` and `columns` name its indices; `down_first`: the 8x8 matrices of an ldmatrix.x4
        follow one another down the rows first; `by_lanes`: lanes address the matrices.
    """

    name: str
    rows: str
    columns: str
    down_first: bool
    by_lanes: bool = True

    def lane_place(self, lane: int) -> tuple[int, int]:
        """Return the (row, vector) that a lane addresses, as LdmatrixReader of templates/mma_sync/operand.cuh does."""
        low, high = lane // 8 % 2, lane // 16
        down, across = (low, high) if self.down_first else (high, low)
        return down * 8 + lane % 8, across


def view_of(name: str, tile: OperandTile, by_lanes: bool = True) -> TileView:
    """Return how operand A or B is drawn. The matrices of A follow one another along m, those of B along k."""
    extent = "m" if name == "A" else "n"
    rows, columns = (extent, "k") if tile.k_major else ("k", extent)
    return TileView(name, rows, columns, (name == "A") == tile.k_major, by_lanes)


def unswizzled(tile: OperandTile) -> OperandTile:
    """Return the tile with its rows in order, without a swizzle."""
    return replace(tile, smem=Smem("none"))


def group_of(tile: OperandTile, row: int, piece: int) -> int:
    """Return the group of 4 banks that holds a 16-byte vector."""
    return tile.offset(row, piece * tile.vector_elements) * tile.element_bytes % PHASE_BYTES // VECTOR_BYTES


def draw_tile(svg: Svg, x: float, y: float, tile: OperandTile, view: TileView, title: str) -> tuple[float, float]:
    """Draw the first rows of a tile, and the bank groups of one ldmatrix. Return width and height."""
    rows, pieces = min(SHOWN_ROWS, tile.rows), min(SHOWN_PIECES, tile.columns // tile.vector_elements)
    svg.text(x + _LABEL, y + 14, title, 15, bold=True)
    top, left = y + 46, x + _LABEL
    for piece in range(pieces):
        label = (
            f"{view.columns} {piece * tile.vector_elements}..{piece * tile.vector_elements + tile.vector_elements - 1}"
        )
        svg.text(left + (piece + 0.5) * _VECTOR_WIDTH, top - 7, label, 10.5, "middle")
    lanes = {view.lane_place(lane): lane for lane in range(32)} if view.by_lanes else {}
    for row in range(rows):
        svg.text(left - 8, top + row * _VECTOR_HEIGHT + 16, f"{view.rows} {row}", 11, "end")
        for piece in range(pieces):
            _cell(
                svg,
                left + piece * _VECTOR_WIDTH,
                top + row * _VECTOR_HEIGHT,
                group_of(tile, row, piece),
                lanes.get((row, piece)),
            )
    for matrix in range(4):
        row, piece = view.lane_place(8 * matrix)
        svg.box(
            left + piece * _VECTOR_WIDTH + 1,
            top + row * _VECTOR_HEIGHT + 1,
            _VECTOR_WIDTH - 2,
            8 * _VECTOR_HEIGHT - 2,
            line="#111",
            bold=2.4,
        )
    bottom = _draw_phases(svg, left, top + rows * _VECTOR_HEIGHT + 26, tile, view)
    total = read_conflicts(tile)
    svg.text(left, bottom, f"Reading all of it once: {total} bank conflicts.", 12.5, bold=True)
    return _LABEL + max(pieces * _VECTOR_WIDTH, GROUPS * _SLOT + 150), bottom - y + 12


def _cell(svg: Svg, x: float, y: float, group: int, lane: int | None) -> None:
    svg.box(x + 1, y + 1, _VECTOR_WIDTH - 2, _VECTOR_HEIGHT - 2, COLOURS[group])
    if lane is None:
        svg.text(x + _VECTOR_WIDTH / 2, y + 17, str(group), 12, "middle", "#555")
    else:
        svg.text(x + 13, y + 17, str(group), 13, "middle", bold=True)
        svg.text(x + _VECTOR_WIDTH - 6, y + 16.5, f"lane {lane}", 9.5, "end")


def _draw_phases(svg: Svg, x: float, y: float, tile: OperandTile, view: TileView) -> float:
    """Draw the lanes that access each bank group, one line for each 8x8 matrix. Return the y of the next line."""
    accessors = "lanes" if view.by_lanes else "rows"
    svg.text(x, y, f"One access reads a framed matrix. The {accessors} in each bank group:", 12)
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
            tile.offset(row, piece * tile.vector_elements) * tile.element_bytes
            for row, piece in map(view.lane_place, range(8 * matrix, 8 * matrix + 8))
        ]
        passes = 1 + conflicts(offsets, VECTOR_BYTES)
        row, piece = view.lane_place(8 * matrix)
        label = (
            f"lanes {8 * matrix}..{8 * matrix + 7}"
            if view.by_lanes
            else f"{view.columns} {piece * tile.vector_elements}, {view.rows} {row}..{row + 7}"
        )
        svg.text(x, y + 15, label, 11)
        for group in range(GROUPS):
            here = met.get(group, [])
            svg.box(x + 88 + group * _SLOT + 1, y + 1, _SLOT - 2, 20, COLOURS[group] if here else "#F6F6F6")
            words = " ".join(map(str, here)) if len(here) < 4 else f"{len(here)} {accessors}"
            svg.text(x + 88 + (group + 0.5) * _SLOT, y + 15, words, 10, "middle", bold=len(here) > 1)
        count = "1 pass" if passes == 1 else f"{passes} passes"
        svg.text(
            x + 96 + GROUPS * _SLOT, y + 15, count, 11.5, bold=passes > 1, fill="#222" if passes == 1 else "#B00000"
        )
        y += 23
    return y + 20


# ==== The picture of a kernel ====

_LEFT, _GAP = 16, 40


def picture_of(plan: Plan, symbol: str) -> str:
    """Return the picture of a plan's kernel as SVG. Raises: RequestError if lanes load single elements, or all operands."""
    svg = Svg()
    spec, by_lanes = plan.spec, not isinstance(plan, WgmmaPlan)
    _reject_what_is_not_drawn(plan)
    svg.text(_LEFT, 32, symbol, 16, bold=True)
    elements = f"{VECTOR_BYTES // spec.operand_bytes} elements of {spec.dtype_a}"
    square = f"A square is 16 bytes of shared memory, {elements}. Its number and colour show its group of 4 banks"
    reading = (
        "One ldmatrix.x4 reads the framed squares. The lane in a square gives the address of that row."
        if by_lanes
        else f"wgmma reads the framed squares for {plan.mma_k} of k: four of its matrices of 8 rows."
    )
    svg.text(_LEFT, 54, f"{square} ({GROUPS} groups).", 12.5)
    svg.text(_LEFT, 71, f"{reading} Squares of one matrix in the same group conflict.", 12.5)
    y = 96.0
    first, second = (plan.b, plan.a) if spec.swap_ab else (plan.a, plan.b)
    for name, stored, smem in (("A", first, spec.smem_a), ("B", second, spec.smem_b)):
        tile = stored if isinstance(stored, OperandTile) else box_of(stored, smem, plan.threads)
        y += draw_operand(svg, _LEFT, y, name, tile, str(smem), by_lanes) + 26
    return _fragments(svg, y, plan).document()


def _reject_what_is_not_drawn(plan: Plan) -> None:
    spec = plan.spec
    if isinstance(plan, DirectPlan):
        raise RequestError(
            f"cannot draw copy {spec.copy}: it places no operands in shared memory. Try a kernel of copy cp_async"
        )
    if not isinstance(plan, WgmmaPlan) and not (plan.a.by_ldmatrix and plan.b.by_ldmatrix):
        raise RequestError(
            f"cannot draw {spec.dtype_a} with layout {spec.layout}: lanes read it without ldmatrix. Try a kernel of layout tn"
        )


def box_of(operand: OperandBoxes, smem: Smem, threads: int) -> OperandTile:
    """Return the first TMA box of a stage as a tile. A row is as wide as the swizzle."""
    size = operand.element_bytes
    columns, piece = operand.row_bytes // size, VECTOR_BYTES // size
    return OperandTile(operand.k_major, operand.sliced, columns, piece, threads, smem, size)


def draw_operand(
    svg: Svg, x: float, y: float, name: str, tile: OperandTile, stored: str, by_lanes: bool = True
) -> float:
    """Draw a tile with its rows in order, and as stored, side by side. Return the height."""
    view = view_of(name, tile, by_lanes)
    what = "stage" if by_lanes else "TMA box"
    head = f"One {what} of {name} ({view.rows} {tile.rows}, {view.columns} {tile.columns}), {view.columns} contiguous"
    width, height = draw_tile(svg, x, y, unswizzled(tile), view, f"{head}: rows in order")
    _, stored_height = draw_tile(svg, x + width + _GAP, y, tile, view, f"as stored: {stored}")
    return max(height, stored_height)


def _fragments(svg: Svg, y: float, plan: Plan) -> Svg:
    by_lanes, floats, neighbours = not isinstance(plan, WgmmaPlan), plan.spec.acc == "f32", 4 // plan.spec.operand_bytes
    held = "pair of elements" if neighbours == 2 or not by_lanes else "element of A and B and each pair of D"
    words = f"{plan.spec.mma}: the lane that holds each {held}, coloured by register; lane 5 is framed"
    if by_lanes:
        depth = plan.k_block if plan.wmma else plan.mma_k
        in_registers = [*fragments_of(depth, floats, neighbours, plan.mma_n)]
    else:
        in_registers = [*fragments_of(16, floats)[2:]]
    svg.text(_LEFT, y + 8, words, 15, bold=True)
    if not by_lanes:
        held = "Warp w of a warpgroup holds rows 16 w to 16 w + 15 of 64. The pattern repeats every 8 columns."
        if plan.spec.swap_ab:
            held += " Operands are swapped: rows are n of the problem."
            in_registers = [replace(fragment, rows="n", columns="m") for fragment in in_registers]
        svg.text(_LEFT, y + 28, held, 12.5)
        y += 16
    x = float(_LEFT)
    for fragment in in_registers:
        x += draw_fragment(svg, x, y + 26, fragment)[0] + _GAP
    return svg


# ==== PNG ====

_PNG_DPI, _SVG_DPI = 144, 96
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def png_of(picture: str) -> bytes:
    """Return a picture of this module as PNG. It consists of rectangles and texts. Raises: HgemmError without matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # 0.5 s, and an extra
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    root = ElementTree.fromstring(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    figure = Figure(figsize=(width / _SVG_DPI, height / _SVG_DPI), dpi=_PNG_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for element in root:
        given = element.attrib
        if element.tag.endswith("rect"):
            place = float(given.get("x", 0)), float(given.get("y", 0))
            size = float(given["width"]), float(given["height"])
            line = float(given.get("stroke-width", 1)) * 72 / _SVG_DPI
            colours = {"facecolor": given.get("fill", "none"), "edgecolor": given.get("stroke", "none")}
            axes.add_patch(Rectangle(place, *size, linewidth=line, **colours))
        else:
            axes.text(
                *(float(given["x"]), float(given["y"]), element.text or ""),
                fontsize=float(given["font-size"]) * 72 / _SVG_DPI,
                fontweight=given.get("font-weight", "normal"),
                color=given.get("fill", "black"),
                horizontalalignment=_ANCHORS[given.get("text-anchor", "start")],
                verticalalignment="baseline",
                family="sans-serif",
                parse_math=False,
            )
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


# ==== The pictures of a report ====


class Pictures:
    """Pictures of single operands and fragments. Equal pictures are drawn once."""

    def __init__(self) -> None:
        self._drawn: dict[Any, str] = {}

    def of(self, plan: Plan) -> list[tuple[str, str]]:
        """Return the pictures of a plan's kernel, each with a caption. Raises: RequestError as `picture_of` does."""
        _reject_what_is_not_drawn(plan)
        spec, by_lanes = plan.spec, not isinstance(plan, WgmmaPlan)
        first, second = (plan.b, plan.a) if spec.swap_ab else (plan.a, plan.b)
        found = []
        for name, stored, smem in (("A", first, spec.smem_a), ("B", second, spec.smem_b)):
            shown = stored if isinstance(stored, OperandTile) else box_of(stored, smem, plan.threads)
            tile = replace(shown, threads=0)  # not visible in a picture
            key = name, tile, str(smem), by_lanes
            found.append((f"{name} among the banks of shared memory", self._once(key, partial(_operand, *key))))
        key = spec.mma, spec.dtype_a, spec.acc, spec.swap_ab
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
