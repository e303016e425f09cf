"""A ladder as a curve: TFLOP/s step by step, beside cuBLAS and the published figures; drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generator.commands.ladder_table import rows
from generator.errors import HgemmError, RequestError
from hgemm.bench.work import Work

FORMS = ("svg", "png")
_INCHES = (7.0, 4.2)
"""Of one ladder; several stand below one another."""
_OURS, _THEIRS = "#1f6feb", "#8c959f"
_STYLE = {"svg.hashsalt": "hgemm", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


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
    """Draw every ladder of a document; the same bytes for the same document."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ladders = document["ladders"]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(ladders)), layout="constrained")
        FigureCanvasAgg(figure)
        for ladder, axes in zip(ladders, figure.subplots(len(ladders), squeeze=False)[:, 0]):
            draw_ladder(axes, document, ladder)
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=144, metadata={"Date": None} if form == "svg" else {"Software": None})
    return out.getvalue()


def draw_ladder(axes: Any, document: Mapping[str, Any], ladder: Mapping[str, Any]) -> None:
    """Draw one ladder of a document on axes of matplotlib's."""
    found = rows(ladder)
    places = range(len(found))
    lines: list[tuple[str, Sequence[Any], str, str]] = [
        (f"published, {ladder['machine']}", [row["published"] for row in found], _THEIRS, "s--")
    ]
    flat = [("cuBLAS there", ladder["published_cublas"], _THEIRS)]
    if ladder.get("figures"):
        baseline = ladder["figures"].get(ladder["baseline"]) or {}
        lines.append((f"ours, {document['device']}", [row["tflops"] for row in found], _OURS, "o-"))
        flat.append(("cuBLASLt here", baseline.get("tflops"), _OURS))
    for label, values, colour, style in lines:
        known = [(place, value) for place, value in zip(places, values) if value is not None]
        if known:
            axes.plot(*zip(*known), style, color=colour, label=label)
    for label, value, colour in flat:
        if value:
            axes.axhline(value, color=colour, linestyle=":", linewidth=1, label=label)
    axes.set_xticks([*places], [str(row["step"]) for row in found])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{ladder['system']}: {ladder['title']}, {Work(**ladder['work']).shape}", loc="left")
    axes.legend(edgecolor="none", framealpha=1)
