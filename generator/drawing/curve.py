"""A ladder as a curve: TFLOP/s step by step, beside cuBLAS and the published figures; drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generator.commands.ladder_table import Row, rows
from generator.errors import HgemmError, LibraryError, RequestError
from hgemm.bench.work import Work

FORMS = ("svg", "png")
_INCHES = (7.0, 4.2)
"""Of one ladder; several stand below one another."""
_OURS, _THEIRS = "#1f6feb", "#8c959f"
_STYLE = {"svg.hashsalt": "hgemm", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

_Curve = tuple[str, list[tuple[int, Any]], str, str]
"""Label, points, colour and style."""


def form_of(path: Path) -> str:
    """Return what a file's name asks for. Raises RequestError where that is neither svg nor png."""
    form = path.suffix.lstrip(".").lower()
    if form not in FORMS:
        raise RequestError(
            f"a ladder is drawn as {' or '.join(FORMS)}, not as '{path.name}': name a file.svg or file.png"
        )
    return form


def require_matplotlib() -> None:
    """Raise HgemmError where matplotlib is not installed, before work is done in vain."""
    try:
        import matplotlib  # noqa: F401  0.2 s, and an extra
    except ImportError:
        raise HgemmError(
            "matplotlib is not installed, which draws the pictures: pip install 'hgemm-generator[plots]'"
        ) from None


def curve(document: Mapping[str, Any], form: str) -> bytes:
    """Draw the ladders of a document that have figures; the same bytes for the same document.

    Raises: LibraryError where none has: neither published, nor measured, nor predicted.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ladders = [ladder for ladder in document["ladders"] if has_curve(document, ladder)]
    if not ladders:
        raise LibraryError("nothing is drawn: no step was published, measured or predicted")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(ladders)), layout="constrained")
        FigureCanvasAgg(figure)
        for ladder, axes in zip(ladders, figure.subplots(len(ladders), squeeze=False)[:, 0]):
            draw_ladder(axes, document, ladder)
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=144, metadata={"Date": None} if form == "svg" else {"Software": None})
    return out.getvalue()


def has_curve(document: Mapping[str, Any], ladder: Mapping[str, Any]) -> bool:
    """Tell whether a ladder has anything to draw."""
    return any(_curves(document, ladder, rows(ladder)))


def draw_ladder(axes: Any, document: Mapping[str, Any], ladder: Mapping[str, Any]) -> None:
    """Draw one ladder of a document, which `has_curve`, on axes of matplotlib's."""
    found = rows(ladder)
    for label, points, colour, style in _curves(document, ladder, found):
        axes.plot(*zip(*points), style, color=colour, label=label)
    flat = [("cuBLAS there", ladder["published_cublas"], _THEIRS)]
    if ladder.get("figures"):
        baseline = ladder["figures"].get(ladder["baseline"]) or {}
        flat.append(("cuBLASLt here", baseline.get("tflops"), _OURS))
    for label, value, colour in flat:
        if value:
            axes.axhline(value, color=colour, linestyle=":", linewidth=1, label=label)
    axes.set_xticks(range(len(found)), [str(row["step"]) for row in found])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{ladder['system']}: {ladder['title']}, {Work(**ladder['work']).shape}", loc="left")
    axes.legend(edgecolor="none", framealpha=1)


def _curves(document: Mapping[str, Any], ladder: Mapping[str, Any], found: Sequence[Row]) -> Iterator[_Curve]:
    """Yield what was published, and what was measured or else predicted, of the steps of which it is known."""
    if ladder.get("figures"):
        ours = (f"ours, {document['device']}", "tflops", _OURS, "o-")
    else:
        ours = (f"ours at most, by the model of {ladder['card']}", "predicted", _OURS, "o--")
    for label, name, colour, style in ((f"published, {ladder['machine']}", "published", _THEIRS, "s--"), ours):
        points = [(place, row[name]) for place, row in enumerate(found) if row[name] is not None]
        if points:
            yield label, points, colour, style
