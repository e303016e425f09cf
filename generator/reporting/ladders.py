"""Published ladders of kernels, as `hgemm ladder --keep` wrote them: the curve of each, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator.commands.climb import read
from generator.commands.ladder_table import rows
from generator.drawing.curve import draw_ladder
from generator.errors import LibraryError
from generator.reporting.figure import Figure
from generator.reporting.points import WORK
from hgemm.bench.work import Work
from hgemm.schema import TEXT, Check, Mismatch, fields, list_of, map_of, number, plain

_COLUMNS = (
    "step what symbol registers smem_bytes conflicts tflops x_before pct_cublas predicted bound published published_x published_pct"
).split()


def _or_none(check: Check) -> Check:
    return lambda value, field: None if value is None else check(value, field)


_KNOWN = ("ctas_per_sm", "bank_conflicts", "sectors_per_request", "least_sectors_per_request")
_STEP = fields(
    {
        **dict.fromkeys(("name", "what", "symbol"), TEXT),
        **dict.fromkeys(("registers", "spill_bytes", "smem_bytes"), number()),
        **dict.fromkeys(_KNOWN, _or_none(number())),
        "published": fields(dict.fromkeys(("tflops", "over_before", "of_cublas"), _or_none(number()))),
    },
    others=plain,
    optional={"predicted_tflops": _or_none(number()), "bound": _or_none(TEXT)},
)
_UNKNOWN = {"predicted_tflops": None, "bound": None}
"""What ladders that were kept before have nothing of."""
_RATIOS = list_of(_or_none(fields({"median": number()}, others=plain)))
_LADDER = fields(
    {
        **dict.fromkeys(("system", "title", "source", "machine"), TEXT),
        "work": WORK,
        "published_cublas": _or_none(number()),
        "steps": list_of(_STEP),
    },
    others=plain,
    optional={
        "figures": map_of(TEXT, fields({"time_us": number(), "tflops": number()}, others=plain)),
        "over_before": _RATIOS,
        "of_baseline": _RATIOS,
    },
)


def read_ladders(path: Path) -> dict[str, Any]:
    """Return a document that was kept, its ladders checked. Raises LibraryError where the file holds none."""
    document = read(path, ())
    try:
        list_of(_LADDER)(document["ladders"], "ladders")
        plain(document.get("device"), "device")
    except (KeyError, Mismatch) as error:
        raise LibraryError(f"{path}: {error}: name a file that `hgemm ladder --keep` wrote") from None
    measured = {"baseline": None, "device": "", **document}
    return {**measured, "ladders": [_whole(ladder) for ladder in document["ladders"]]}


def _whole(ladder: Mapping[str, Any]) -> dict[str, Any]:
    return {"baseline": None, **ladder, "steps": [{**_UNKNOWN, **step} for step in ladder["steps"]]}


def figure_of(name: str, document: Mapping[str, Any], ladder: Mapping[str, Any]) -> Figure:
    """Return the curve of a ladder, as `hgemm ladder --to` draws it."""
    found = rows(ladder)
    rates = [row["tflops"] for row in found if row["tflops"] is not None]
    own = f"ours {rates[0]:.0f} to {rates[-1]:.0f} TFLOP/s on {document['device']}" if rates else "not measured"
    words = f"{len(found)} steps, {own}, beside the published figures of {ladder['machine']}."
    title = f"{ladder['system']}: {ladder['title']}, {Work(**ladder['work']).shape}"

    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        draw_ladder(axes, document, ladder)
        axes.set_title("")

    return Figure(name, title, words, (7.0, 3.8), draw)


def table_of(ladder: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the heads and the rows of a ladder's table, without the columns of which nothing is known."""
    found = rows(ladder)
    names = [name for name in _COLUMNS if any(row[name] is not None for row in found)]
    return names, [[row[name] for name in names] for row in found]
