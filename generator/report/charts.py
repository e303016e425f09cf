"""The charts of a report, drawn by matplotlib: rates, ratios, resources, rooflines, ladders; as SVG and PNG."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from generator.errors import LibraryError, RequestError
from generator.ladders.results import draw_ladder, rows
from generator.report.points import Point, PointKind
from generator.tables import counted
from hgemm.bench.protocol import geometric_mean
from hgemm.bench.work import Work
from hgemm.dtypes import DTYPES
from hgemm.model.cards import Card, card_named, usual_card
from hgemm.model.kernel import extents, k_tile
from hgemm.record import Record

# ==== Style ====

INK, FAINT, GROUND = "#1b1f24", "#d5d9de", "#fefefe"
"""Colours of text and axes, of grid lines, and of the background. A page replaces them by its CSS variables."""
OURS, CUBLASLT, QUIET = "#2f7de1", "#e08a2e", "#8a939d"
SERIES = ("#2f7de1", "#e08a2e", "#2a9d78", "#b3589a", "#8a939d", "#c44e52", "#7a68c9", "#9a8c3c")
"""Colours that colour-blind readers can tell apart, on white and on black."""

_STYLE = {
    "svg.fonttype": "none",
    "axes.facecolor": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "legend.labelcolor"), INK
    ),
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_FONT = re.compile(r"'DejaVu Sans'(, sans-serif)?")
_ID = re.compile(r'(\bid="|\bxlink:href="#(?!kernel=)|url\(#)')
_REM_PER_INCH, _MIN_REM_PER_INCH, _MIN_REM = 6.4, 4.4, 28
"""A chart shrinks with the window down to the minimum width, and scrolls below it."""
_SIZE = re.compile(r'\s(?:width|height)="[^"]*"')


@dataclass(frozen=True)
class Figure:
    """A chart that is drawn on demand.

    Fields: `name` is its file name; `title` is its heading; `words` describes it for readers who cannot see it; `draw` fills
        an empty figure of matplotlib. Units: `inches` are width and height.
    """

    name: str
    title: str
    words: str
    inches: tuple[float, float]
    draw: Callable[[Any], None]

    @property
    def width(self) -> str:
        """The full width in a page, as a CSS length."""
        return f"{self.inches[0] * _REM_PER_INCH:.3g}rem"

    def png(self) -> bytes:
        """Return the chart as PNG, on white."""
        return self._saved("png", dpi=144, facecolor="white", metadata={"Software": None})

    def svg(self) -> str:
        """Return the chart as an SVG document, on white. The same data give the same text."""
        return self._svg(facecolor="white")

    def inline(self) -> str:
        """Return the chart as an SVG element for a page: it uses the page's colours, and its ids are unique."""
        text = self._svg(facecolor="none")
        text = text[text.index("<svg") :]
        for colour, variable in ((INK, "ink"), (FAINT, "faint"), (GROUND, "ground")):
            text = text.replace(colour, f"var(--{variable})")
        text = _ID.sub(lambda match: f"{match[1]}{self.name}-", text)
        head, end, rest = text.partition(">")
        fits = f"min-width:{min(_MIN_REM_PER_INCH * self.inches[0], _MIN_REM):.3g}rem"
        head = _SIZE.sub("", head).replace(
            "<svg", f'<svg role="img" aria-labelledby="{self.name}-words" style="{fits}"'
        )
        return head + end + rest

    def _svg(self, facecolor: str) -> str:
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        text = self._saved("svg", facecolor=facecolor, metadata=metadata).decode()
        return _FONT.sub("Helvetica, Arial, sans-serif", text)

    def _saved(self, form: str, **options: Any) -> bytes:
        import matplotlib  # 0.5 s, and an extra
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas

        with matplotlib.rc_context({**_STYLE, "svg.hashsalt": self.name}):
            canvas = Canvas(figsize=self.inches, layout="constrained")
            FigureCanvasAgg(canvas)
            self.draw(canvas)
            out = io.BytesIO()
            canvas.savefig(out, format=form, **options)
        return out.getvalue()


# ==== Rates ====

_BASELINES = (("first", QUIET, "s", "cuBLASLt, its first choice"), ("best", CUBLASLT, "^", "cuBLASLt, its fastest"))
_HEADROOM, _MARGIN = 1.08, 1.15
"""Factors of the largest rate, and of the smallest and largest size."""


def rates(name: str, kind: PointKind, points: Sequence[Point]) -> Figure:
    """Return the chart of TFLOP/s against problem size. All `points` are of this kind; lines join the square problems."""
    best = max(points, key=lambda point: point.tflops(point.times_us[point.ours]))
    beside = "; also cuBLASLt's first choice and its fastest" if any(point.baseline_us for point in points) else ""
    words = (
        f"TFLOP/s of {len(points)} problems against size; maximum {best.tflops(best.times_us[best.ours]):.0f} "
        f"at {best.work.shape}{beside}."
    )
    return Figure(name, str(kind), words, (5.6, 3.4), partial(_draw_rates, points))


def _draw_rates(points: Sequence[Point], canvas: Any) -> None:
    axes = canvas.add_subplot()
    for role, colour, marker, label in _BASELINES:
        known = [
            (side_of(point), point.tflops(point.baseline_us[role]), point)
            for point in points
            if role in point.baseline_us
        ]
        _series(axes, known, colour, marker, label)
    ours = [(side_of(point), point.tflops(point.times_us[point.ours]), point) for point in points]
    _series(axes, ours, OURS, "o", "ours, the fastest kernel")
    _sizes(axes, [side for side, _, _ in ours])
    axes.set_ylim(0, _HEADROOM * axes.dataLim.y1)
    axes.set_ylabel("TFLOP/s")
    axes.set_xlabel("size: cube root of m * n * k; lines join square problems")
    axes.grid(axis="y")
    axes.legend(loc="lower right")


def side_of(point: Point) -> float:
    """Return the size of the square problem with the same number of operations."""
    work = point.work
    return (work.m * work.n * work.k * work.batch) ** (1 / 3)


def _series(axes: Any, known: Sequence[tuple[float, float, Point]], colour: str, marker: str, label: str) -> None:
    squares = sorted((side, rate) for side, rate, point in known if _is_square(point))
    others = [(side, rate) for side, rate, point in known if not _is_square(point)]
    if squares:
        axes.plot(*zip(*squares), color=colour, marker=marker, markersize=4.5, linewidth=1.5, label=label)
    if others:
        named = {} if squares else {"label": label}
        axes.plot(*zip(*others), marker, color=colour, markersize=4, alpha=0.45, markeredgewidth=0, **named)


def _is_square(point: Point) -> bool:
    work = point.work
    return work.m == work.n == work.k and work.batch == 1


def _sizes(axes: Any, sides: Sequence[float]) -> None:
    """Make the x axis logarithmic, with ticks at powers of two."""
    low, high = math.floor(math.log2(min(sides)) - 0.01), math.ceil(math.log2(max(sides)) + 0.01)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2.0**power for power in range(low, high + 1)], [f"{2**power:,}" for power in range(low, high + 1)])
    wide = high - low > 2
    axes.set_xlim(*((min(sides) / _MARGIN, max(sides) * _MARGIN) if wide else (2.0**low, 2.0**high)))
    axes.minorticks_off()


# ==== Ratios ====

_MAX_NUMBERED = 24
"""Cells of a heat map show numbers up to this many rows and columns."""
_CELL_INCHES, _MARGIN_INCHES = (0.5, 0.3), (2.1, 1.3)
_MIN_CELLS = 6
"""A heat map is at least as wide and high as this many cells."""
_SLOWER, _EVEN, _FASTER = "#e8a56b", "#f4f4f2", "#85b8f0"
_REACH = 0.15
"""The colour scale ends at 1 minus and 1 plus this."""
_DARK = "#1c1c1c"
"""Colour of numbers in cells. Cells are light in every theme."""


def ratios(name: str, kind: PointKind, points: Sequence[Point]) -> Figure | None:
    """Return a heat map of the speedup over cuBLASLt's fastest, m by n; None if no point has a ratio."""
    cells = _cells(points)
    if not cells:
        return None
    rows, columns = (sorted({place[at] for place in cells}) for at in (0, 1))
    mean, least = geometric_mean([*cells.values()]), min(cells, key=lambda place: cells[place])
    words = (
        f"Speedup over cuBLASLt's fastest at {len(cells)} pairs of m and n, geometric mean over k: {mean:.3f} over all, "
        f"minimum {cells[least]:.3f} at m {least[0]}, n {least[1]}."
    )
    inches = tuple(
        margin + cell * max(len(labels), _MIN_CELLS)
        for margin, cell, labels in zip(_MARGIN_INCHES, _CELL_INCHES, (columns, rows))
    )
    return Figure(name, str(kind), words, inches, partial(_draw_ratios, cells, rows, columns))


def _cells(points: Sequence[Point]) -> dict[tuple[int, int], float]:
    """Return the geometric mean of the ratios at each (m, n)."""
    found: dict[tuple[int, int], list[float]] = {}
    for point in points:
        if point.ratio is not None:
            found.setdefault((point.work.m, point.work.n), []).append(point.ratio)
    return {place: geometric_mean(values) for place, values in found.items()}


def _draw_ratios(
    cells: Mapping[tuple[int, int], float], rows: Sequence[int], columns: Sequence[int], canvas: Any
) -> None:
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

    axes = canvas.add_subplot()
    colours = LinearSegmentedColormap.from_list("ratio", [_SLOWER, _EVEN, _FASTER])
    grid = [[cells.get((row, column), math.nan) for column in columns] for row in rows]
    mesh = axes.pcolormesh(grid, cmap=colours, norm=TwoSlopeNorm(1.0, 1 - _REACH, 1 + _REACH), edgecolors="none")
    axes.set_xticks(
        [at + 0.5 for at in range(len(columns))], [f"{value:,}" for value in columns], rotation=45, ha="right"
    )
    axes.set_yticks([at + 0.5 for at in range(len(rows))], [f"{value:,}" for value in rows])
    axes.tick_params(length=0)
    axes.set_xlabel("n")
    axes.set_ylabel("m")
    if max(len(rows), len(columns)) <= _MAX_NUMBERED:
        for (row, column), value in cells.items():
            place = columns.index(column) + 0.5, rows.index(row) + 0.5
            axes.text(*place, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=_DARK)
    bar = canvas.colorbar(mesh, ax=axes, extend="both", ticks=[0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15], shrink=0.9)
    bar.outline.set_edgecolor(INK)
    bar.set_label("speedup over cuBLASLt's fastest")


# ==== Resources ====


_MARKS = ((1, 4, 4.0), (4, 16, 6.5), (16, math.inf, 10.0))
"""For a number of kernels at one place, from the first to below the second: the width of the mark in points."""
_MARKS_LEGEND = "larger: 4 or more, 16 or more kernels"


def resources(records: Sequence[Record]) -> list[Figure]:
    """Return the charts of registers, shared memory, occupancy and compile time; no chart without kernels."""
    if not records:
        return []
    archs = in_order({record.arch for record in records})
    traits = [record.data["resources"] for record in records]
    ranges = " and ".join(
        f"{min(one[name] for one in traits):,} to {max(one[name] for one in traits):,} {unit}"
        for name, unit in (("registers", "registers per thread"), ("smem_bytes", "bytes of shared memory per CTA"))
    )
    words = f"{counted(len(records), 'kernel')} with {ranges}."
    fullest = max(one["occupancy"] for one in traits)
    filled = f"Kernels by occupancy, the fraction of an SM's warps that they use; maximum {100 * fullest:.1f} %."
    seconds = [record.data["seconds"]["compile"] for record in records]
    took = f"Kernels by compile time in seconds: {sum(seconds):.0f} in total, maximum {max(seconds):.2f}."
    return [
        Figure("resources", "Registers and shared memory", words, (4.6, 3.5), partial(_draw_resources, records, archs)),
        Figure("occupancy", "Occupancy", filled, (4.6, 3.1), partial(_draw_occupancy, records, archs)),
        Figure("compile_seconds", "Compile time", took, (4.6, 3.1), partial(_draw_seconds, seconds)),
    ]


def in_order(archs: Iterable[str]) -> list[str]:
    """Sort architectures by number: sm_90, sm_90a, sm_100."""
    return sorted(archs, key=lambda arch: (len(arch.rstrip("abcdef")), arch))


def _colour(archs: Sequence[str], arch: str) -> str:
    return SERIES[archs.index(arch) % len(SERIES)]


def _draw_resources(records: Sequence[Record], archs: Sequence[str], canvas: Any) -> None:
    axes = canvas.add_subplot()
    for arch in archs:
        traits = (record.data["resources"] for record in records if record.arch == arch)
        places = Counter((one["registers"], one["smem_bytes"] / 1024) for one in traits)
        for least, most, points in _MARKS:
            of_size = [place for place, count in places.items() if least <= count < most]
            style = {"color": _colour(archs, arch), "alpha": 0.6, "markersize": points, "markeredgewidth": 0}
            if of_size:
                axes.plot(*zip(*of_size), "o", **style)
        axes.plot([], [], "o", color=_colour(archs, arch), label=arch)
    axes.set_xlabel("registers per thread")
    axes.set_ylabel("shared memory per CTA, KiB")
    axes.set_xlim(0, 264)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, 257, 32))
    axes.grid(True)
    canvas.legend(title=_MARKS_LEGEND, loc="outside lower center", ncols=4, title_fontsize=8)


def _draw_occupancy(records: Sequence[Record], archs: Sequence[str], canvas: Any) -> None:
    axes = canvas.add_subplot()
    levels = sorted({record.data["resources"]["occupancy"] for record in records})
    below = [0] * len(levels)
    for arch in archs:
        counts = Counter(record.data["resources"]["occupancy"] for record in records if record.arch == arch)
        heights = [counts[level] for level in levels]
        axes.bar(range(len(levels)), heights, bottom=below, color=_colour(archs, arch), label=arch, width=0.7)
        below = [low + height for low, height in zip(below, heights)]
    axes.set_xticks(range(len(levels)), [f"{100 * level:.3g} %" for level in levels])
    axes.set_xlabel("occupancy: used warps of an SM")
    axes.set_ylabel("kernels")
    axes.grid(axis="y")
    axes.tick_params(axis="x", rotation=45 if len(levels) > 6 else 0)
    canvas.legend(loc="outside lower center", ncols=4)


def _draw_seconds(seconds: Sequence[float], canvas: Any) -> None:
    axes = canvas.add_subplot()
    axes.hist(seconds, bins=min(30, max(5, len(seconds) // 4)), color=SERIES[0])
    axes.set_xlabel("seconds")
    axes.set_ylabel("kernels")
    axes.set_xlim(left=0)
    axes.grid(axis="y")


# ==== Rooflines ====


@dataclass(frozen=True)
class Spot:
    """Kernels at one place of a roofline. The mark links to the first one. Units: `x` FLOP/byte; rates are TFLOP/s."""

    x: float
    limit: float
    measured: float | None
    tensor: float
    symbols: tuple[str, ...]


def rooflines(records: Iterable[Record], points: Sequence[Point]) -> tuple[list[Figure], int, list[str]]:
    """Return a roofline for each card, the number of kernels that no card's table supports, and cards without a slope.

    A card has no slope if its table has no rate of L2, and nothing was measured on it.
    """
    by_card: dict[str, list[Record]] = {}
    left_out = 0
    for record in records:
        card = usual_card(int("".join(filter(str.isdigit, record.arch))))
        if card is None or _spot(record, card, None) is None:
            left_out += 1
        else:
            by_card.setdefault(card.key, []).append(record)
    measured: dict[str, list[Point]] = {}
    for point in points:
        card = _card_of(point.device)
        if card is not None:
            measured.setdefault(card.key, []).append(point)
            by_card.setdefault(card.key, [])
    cards = {key: card_named(key) for key in sorted(by_card)}
    flat = [key for key, card in cards.items() if key not in measured and not card.get("l2_bytes_per_clock_per_sm")]
    figures = [_figure(cards[key], by_card[key], measured.get(key, [])) for key in cards if key not in flat]
    return figures, left_out, [cards[key].name for key in flat]


def _card_of(device: str) -> Card | None:
    try:
        return card_named(device)
    except RequestError:
        return None


def _spot(record: Record, card: Card, measured: float | None) -> Spot | None:
    """Return the place of a kernel on a card's roofline; None if the card's table lacks a number."""
    spec = record.data["spec"]
    try:
        part = k_tile(spec, card)
        m, n, k = extents(spec["cta_tile"])
    except (RequestError, LibraryError, KeyError, ValueError, AttributeError):
        return None
    flop, l2 = 2.0 * m * n * k, card.get("l2_bytes_per_clock_per_sm")
    x = flop / (part.l2 * l2) if part.l2 and l2 else part.flop_per_byte
    rate = flop * _clock(card) * 1e-12
    return Spot(x, rate / part.cycles, measured, rate / part.tensor, (record.symbol,))


def _clock(card: Card) -> float:
    """Return the cycles per second of all SMs together."""
    return card.sms * card["sm_mhz"] * 1e6


def _figure(card: Card, records: Sequence[Record], points: Sequence[Point]) -> Figure:
    best: dict[str, float] = {}
    for point in points:
        for symbol, time_us in point.times_us.items():
            best[symbol] = max(best.get(symbol, 0.0), point.tflops(time_us))
    spots = _together(spot for record in records if (spot := _spot(record, card, best.get(record.symbol))))
    panels = bool(spots) + bool(points)
    contents = [f"{counted(len(records), 'kernel')} by the bytes that their tiles read from L2"] * bool(records)
    contents += [f"{counted(len(points), 'measured problem')} by their bytes in DRAM"] * bool(points)
    sources = card.describe_sources(["sm_mhz", "dram_gbytes_per_s"])
    words = f"Rooflines of {card.name}: {'; '.join(contents)}. The roofs are {sources}."
    inches = (3.9 * panels + 0.4 if panels > 1 else 4.6, 3.6)
    return Figure(f"roofline_{card.key}", card.name, words, inches, partial(_draw, card, spots, points))


_FEW_OCTAVES = 12.0
"""An axis whose ends have a smaller ratio also has ticks between powers of two."""
_PLACES = 12
"""Marks closer than an octave over this become one."""


def _together(spots: Iterable[Spot]) -> list[Spot]:
    """Merge the spots whose marks would lie on top of each other."""
    found: dict[tuple[Any, ...], Spot] = {}
    for spot in spots:
        place = tuple(number and round(_PLACES * math.log2(number)) for number in (spot.x, spot.limit, spot.measured))
        symbols = (*(found[place].symbols if place in found else ()), *spot.symbols)
        found[place] = Spot(spot.x, spot.limit, spot.measured, spot.tensor, symbols)
    return [*found.values()]


def _draw(card: Card, spots: Sequence[Spot], points: Sequence[Point], canvas: Any) -> None:
    panels = [partial(_tiles, card, spots)] * bool(spots) + [partial(_problems, card, spots, points)] * bool(points)
    for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels):
        panel(axes)
        axes.set_ylabel("TFLOP/s")
        axes.grid(True)
        axes.legend(loc="lower right", handletextpad=0.3)


def _tiles(card: Card, spots: Sequence[Spot], axes: Any) -> None:
    _marks(axes, [(spot.x, spot.limit, spot) for spot in spots], "kernel, limit by the model", QUIET, filled=False)
    known = [(spot.x, spot.measured, spot) for spot in spots if spot.measured is not None]
    if known:
        _marks(axes, known, "kernel, fastest measurement", OURS, filled=True)
    bytes_per_clock = card.get("l2_bytes_per_clock_per_sm")
    slopes = {"L2": bytes_per_clock * _clock(card) * 1e-12} if bytes_per_clock else {}
    _roofs(axes, [spot.x for spot in spots], slopes, max(spot.tensor for spot in spots))
    axes.set_xlabel("FLOP per byte from L2")
    axes.set_title("tiles")


def _marks(axes: Any, known: Sequence[tuple[float, float, Spot]], label: str, colour: str, filled: bool) -> None:
    faces = {"facecolors": colour, "edgecolors": "none"} if filled else {"facecolors": "none", "edgecolors": colour}
    sizes = [20 * (1 + math.log2(len(spot.symbols))) for _, _, spot in known]
    marks = axes.scatter(*zip(*[(x, y) for x, y, _ in known]), s=sizes, label=label, linewidths=1, zorder=3, **faces)
    marks.set_urls([f"#kernel={spot.symbols[0]}" for _, _, spot in known])


def _problems(card: Card, spots: Sequence[Spot], points: Sequence[Point], axes: Any) -> None:
    ours = [(_intensity(point), point.tflops(time_us)) for point in points for time_us in point.times_us.values()]
    cublaslt = [
        (_intensity(point), point.tflops(min(point.baseline_us.values()))) for point in points if point.baseline_us
    ]
    axes.plot(*zip(*ours), "o", color=OURS, markersize=3.5, markeredgewidth=0, alpha=0.6, label="kernel on a problem")
    if cublaslt:
        axes.plot(
            *zip(*cublaslt), "_", color=CUBLASLT, markersize=7, markeredgewidth=1.4, label="cuBLASLt, its fastest"
        )
    peak = max((spot.tensor for spot in spots), default=None)
    _roofs(axes, [x for x, _ in ours], {"DRAM": card.dram_gbytes_per_s * 1e-3}, peak)
    axes.set_xlabel("FLOP per byte of A, B and D")
    axes.set_title("problems")


def _intensity(point: Point) -> float:
    """Return FLOP per byte, if A, B and D are each moved once."""
    work = point.work
    sizes: Mapping[str, int] = {name: DTYPES[getattr(work, f"dtype_{name}")].bytes for name in "abd"}
    moved = work.m * work.k * sizes["a"] + work.n * work.k * sizes["b"] + work.m * work.n * sizes["d"]
    return work.flops / (work.batch * moved)


def _roofs(axes: Any, xs: Sequence[float], slopes: Mapping[str, float], peak: float | None) -> None:
    """Draw the slopes of bandwidths up to the flat roof `peak`, if any, on logarithmic axes. Units: TB/s, TFLOP/s."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    low, high = min(xs) / 1.6, max(xs) * 1.6
    for name, slope in slopes.items():
        end = min(high, peak / slope) if peak else high
        low = min(low, end / 2)
        axes.plot([low, end], [low * slope, end * slope], color=INK, linewidth=1.2)
        middle = (low * end) ** 0.5
        label = f"{name}, {slope:.1f} TB/s"
        axes.annotate(
            label, (middle, middle * slope), xytext=(6, -10), textcoords="offset points", ha="left", fontsize=8
        )
    if peak:
        begin = min([peak / slope for slope in slopes.values()], default=low)
        high = max(high, begin * 1.6)
        axes.plot([begin, high], [peak, peak], color=INK, linewidth=1.2)
        axes.annotate(
            f"tensor cores, {peak:.0f}", (high, peak), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8
        )
    axes.set_xlim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        least, most = axis.get_view_interval()
        axis.set_major_locator(LogLocator(base=2, subs=(1, 1.5) if most < _FEW_OCTAVES * least else (1,)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())


# ==== Ladders ====


_LADDER_COLUMNS = (
    "step what symbol registers smem_bytes conflicts tflops x_before pct_cublas predicted bound published published_x published_pct"
).split()


def ladder_figure(name: str, document: Mapping[str, Any], ladder: Mapping[str, Any]) -> Figure:
    """Return the curve of a ladder, as `hgemm ladder --to` draws it. `has_curve` must be true."""
    found = rows(ladder)
    rates = [row["tflops"] for row in found if row["tflops"] is not None]
    own = f"ours {rates[0]:.0f} to {rates[-1]:.0f} TFLOP/s on {document['device']}" if rates else "ours not measured"
    words = f"{len(found)} steps, {own}, beside the published numbers of {ladder['machine']}."

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        draw_ladder(axes, document, ladder)
        axes.set_title("")

    return Figure(name, ladder_title(ladder), words, (7.0, 3.8), draw)


def ladder_title(ladder: Mapping[str, Any]) -> str:
    """Return a ladder's name, title and problem."""
    return f"{ladder['system']}: {ladder['title']}, {Work(**ladder['work']).shape}"


def ladder_table(ladder: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of a ladder's table. Empty columns are left out."""
    found = rows(ladder)
    names = [name for name in _LADDER_COLUMNS if any(row[name] is not None for row in found)]
    return names, [[row[name] for name in names] for row in found]
