"""Published ladders of kernels, as `hgemm ladder --keep` wrote them: the curve of each, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generator.commands.ladder_table import rows
from generator.drawing.curve import draw_ladder
from generator.reporting.figure import Figure
from hgemm.bench.work import Work

_COLUMNS = (
    "step what symbol registers smem_bytes conflicts tflops x_before pct_cublas predicted bound published published_x published_pct"
).split()


def figure_of(name: str, document: Mapping[str, Any], ladder: Mapping[str, Any]) -> Figure:
    """Return the curve of a ladder that has one, as `hgemm ladder --to` draws it."""
    found = rows(ladder)
    rates = [row["tflops"] for row in found if row["tflops"] is not None]
    own = f"ours {rates[0]:.0f} to {rates[-1]:.0f} TFLOP/s on {document['device']}" if rates else "ours not measured"
    words = f"{len(found)} steps, {own}, beside the published figures of {ladder['machine']}."

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        draw_ladder(axes, document, ladder)
        axes.set_title("")

    return Figure(name, title_of(ladder), words, (7.0, 3.8), draw)


def title_of(ladder: Mapping[str, Any]) -> str:
    """Return a ladder's name, title and problem."""
    return f"{ladder['system']}: {ladder['title']}, {Work(**ladder['work']).shape}"


def table_of(ladder: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and the rows of a ladder's table, without the columns of which nothing is known."""
    found = rows(ladder)
    names = [name for name in _COLUMNS if any(row[name] is not None for row in found)]
    return names, [[row[name] for name in names] for row in found]
