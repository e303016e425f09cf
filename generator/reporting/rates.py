"""Pictures of what was measured beside a baseline: the rate against the size, and the ratio over rows and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from generator.reporting.figure import INK, OURS, QUIET, THEIRS, Figure
from generator.reporting.points import Kind, Point
from hgemm.bench.protocol import geometric_mean

_SERIES = (("first", QUIET, "s", "cuBLASLt, its first choice"), ("best", THEIRS, "^", "cuBLASLt, its fastest"))
_WORDS_UP_TO = 24
"""Rows or columns of a heat map in whose cells there is room for a number."""
_CELL_INCHES, _MARGIN_INCHES = (0.5, 0.3), (2.1, 1.3)
_FEWEST = 6
_HEADROOM, _BESIDE = 1.08, 1.15
_SLOWER, _EVEN, _FASTER = "#e8a56b", "#f4f4f2", "#85b8f0"
_REACH = 0.15
"""How far from 1 the colours go."""
_DARK = "#1c1c1c"
"""Of numbers in cells, whose colours are light on every page."""


# ---- Rates ----------------------------------------------------------------------------------------------------------


def rates(name: str, kind: Kind, points: Sequence[Point]) -> Figure:
    """Return TFLOP/s against the size of the problem, squares joined by lines; all `points` are of this kind."""
    best = max(points, key=lambda point: point.tflops(point.times_us[point.ours]))
    beside = "; beside it cuBLASLt's first choice and its fastest" if any(point.baseline_us for point in points) else ""
    words = (
        f"TFLOP/s of {len(points)} problems against their size: at most {best.tflops(best.times_us[best.ours]):.0f} "
        f"at {best.work.shape}{beside}."
    )
    return Figure(name, str(kind), words, (5.6, 3.4), partial(_draw_rates, points))


def _draw_rates(points: Sequence[Point], canvas: Any) -> None:
    axes = canvas.add_subplot()
    for role, colour, marker, label in _SERIES:
        known = [
            (side_of(point), point.tflops(point.baseline_us[role]), point)
            for point in points
            if role in point.baseline_us
        ]
        _series(axes, known, colour, marker, label)
    ours = [(side_of(point), point.tflops(point.times_us[point.ours]), point) for point in points]
    _series(axes, ours, OURS, "o", "ours, the fastest variant")
    _sizes(axes, [side for side, _, _ in ours])
    axes.set_ylim(0, _HEADROOM * axes.dataLim.y1)
    axes.set_ylabel("TFLOP/s")
    axes.set_xlabel("size: the cube root of m n k; squares are joined")
    axes.grid(axis="y")
    axes.legend(loc="lower right")


def side_of(point: Point) -> float:
    """Return the side of the square product with as many operations."""
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
    """Let an axis be logarithmic, with the powers of two that are near."""
    low, high = math.floor(math.log2(min(sides)) - 0.01), math.ceil(math.log2(max(sides)) + 0.01)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2.0**power for power in range(low, high + 1)], [f"{2**power:,}" for power in range(low, high + 1)])
    wide = high - low > 2
    axes.set_xlim(*((min(sides) / _BESIDE, max(sides) * _BESIDE) if wide else (2.0**low, 2.0**high)))
    axes.minorticks_off()


# ---- Ratios ---------------------------------------------------------------------------------------------------------


def ratios(name: str, kind: Kind, points: Sequence[Point]) -> Figure | None:
    """Return the speed over the baseline's fastest, rows by columns; None where no point has a ratio."""
    cells = _cells(points)
    if not cells:
        return None
    rows, columns = (sorted({place[at] for place in cells}) for at in (0, 1))
    mean, least = geometric_mean([*cells.values()]), min(cells, key=lambda place: cells[place])
    words = (
        f"Speed over cuBLASLt's fastest at {len(cells)} pairs of m and n, the geometric mean over k: {mean:.3f} over all, the "
        f"least {cells[least]:.3f} at m {least[0]}, n {least[1]}."
    )
    inches = tuple(
        margin + cell * max(len(labels), _FEWEST)
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
    if max(len(rows), len(columns)) <= _WORDS_UP_TO:
        for (row, column), value in cells.items():
            place = columns.index(column) + 0.5, rows.index(row) + 0.5
            axes.text(*place, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=_DARK)
    bar = canvas.colorbar(mesh, ax=axes, extend="both", ticks=[0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15], shrink=0.9)
    bar.outline.set_edgecolor(INK)
    bar.set_label("speed over cuBLASLt's fastest")
