"""What `hgemm ladder --keep` wrote, read again: checked, and whole where an older version had fields fewer."""

from __future__ import annotations

import fnmatch
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generator.errors import HgemmError, LibraryError, RequestError
from generator.tables import to_csv, to_text
from hgemm.bench.work import WORK, Work
from hgemm.record import TEXT, Mismatch, Scalar, boolean, either, fields, list_of, map_of, number, plain

SCHEMA = 1
KIND = "ladders"


def _none(value: Any, field: str) -> None:
    if value is not None:
        raise Mismatch(f"{field} is neither null nor what it may be besides")


_NUMBER, _TEXT = either(_none, number()), either(_none, TEXT)
_RATIOS = list_of(either(_none, fields({"median": number()}, others=plain)))
_STEP = fields(
    {
        **dict.fromkeys(("name", "what", "symbol"), TEXT),
        **dict.fromkeys(("registers", "spill_bytes", "smem_bytes"), number()),
        **dict.fromkeys(("ctas_per_sm", "bank_conflicts", "sectors_per_request", "least_sectors_per_request"), _NUMBER),
        "published": fields(dict.fromkeys(("tflops", "over_before", "of_cublas"), _NUMBER)),
    },
    others=plain,
    optional={"predicted_tflops": _NUMBER, "bound": _TEXT, "note": TEXT, "fell": boolean},
)
_LADDER = fields(
    {
        **dict.fromkeys(("system", "title", "source", "machine", "arch"), TEXT),
        "work": WORK,
        "published_cublas": _NUMBER,
        "steps": list_of(_STEP),
    },
    others=plain,
    optional={
        **dict.fromkeys(("baseline", "card", "code"), _TEXT),
        "figures": map_of(TEXT, fields({"time_us": number(), "tflops": number()}, others=plain)),
        "over_before": _RATIOS,
        "of_baseline": _RATIOS,
        "refused": map_of(TEXT, TEXT),
    },
)
_DOCUMENT = fields(
    {"ladders": list_of(_LADDER)},
    others=plain,
    optional=dict.fromkeys(("device", "date", "arch", "baseline", "lost"), _TEXT),
)
_UNSAID_OF_A_STEP = {"predicted_tflops": None, "bound": None, "note": "", "fell": False}
_UNSAID_OF_A_LADDER = {"baseline": None, "card": None, "code": None}
_UNSAID = {"baseline": "", "device": "", "date": "", "arch": None}


def read(path: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a document that was kept, with the ladders of the systems that are named, or all.

    Raises: LibraryError where the file holds no such document, RequestError where a name matches none of its ladders.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LibraryError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(document, dict) or (document.get("kind"), document.get("schema")) != (KIND, SCHEMA):
        raise LibraryError(f"{path} holds no ladders: name a file that `hgemm ladder --keep` wrote")
    try:
        _DOCUMENT(document, "")
    except Mismatch as error:
        raise LibraryError(f"{path} holds no ladders: {error}: name a file that `hgemm ladder --keep` wrote") from None
    wanted = chosen([ladder["system"] for ladder in document["ladders"]], names or ["*"])
    ladders = [_whole(ladder) for ladder in document["ladders"] if ladder["system"] in wanted]
    return {**_UNSAID, **document, "ladders": ladders}


def _whole(ladder: Mapping[str, Any]) -> dict[str, Any]:
    return {**_UNSAID_OF_A_LADDER, **ladder, "steps": [{**_UNSAID_OF_A_STEP, **step} for step in ladder["steps"]]}


def chosen(known: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that globs match. Raises RequestError where one matches none."""
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise RequestError(f"no ladder is named '{pattern}': there are {', '.join(dict.fromkeys(known))}")
    return [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


# ==== What is known and measured of ladders as text for people, rows for spreadsheets, and verdicts ====


Found = Mapping[str, Any]
Row = dict[str, Scalar | None]
_LEGEND = (
    (("conflicts",), "passes of shared memory beyond the fewest, a k-tile"),
    (("sectors", "least_sectors"), "of 32 B, that a warp's access moved, and that its bytes fill"),
    (("x_before", "published_x"), "speed over the step before"),
    (("pct_cublas", "published_pct"), "percent of cuBLAS"),
)
"""What columns hold whose names do not say it."""
HOLD = 0.97
"""A step of less than so much of the speed before it has fallen; less is the noise of a measurement."""

_LADDER_TABLE_THEIRS = "published published_x published_pct what"
_STATIC = (
    f"step registers smem_bytes ctas_per_sm conflicts sectors least_sectors predicted bound {_LADDER_TABLE_THEIRS}"
)
_MEASURED = f"step tflops us x_before pct_cublas predicted {_LADDER_TABLE_THEIRS}"


def rows(ladder: Found) -> list[Row]:
    """Return a row a step, of all that is known of it."""
    return [_row(ladder, at) for at in range(len(ladder["steps"]))]


def _row(ladder: Found, at: int) -> Row:
    step = ladder["steps"][at]
    published, measured = step["published"], ladder.get("figures", {}).get(step["symbol"], {})
    ratios = {name: _at(ladder.get(name), at) for name in ("over_before", "of_baseline")}
    return {
        "system": ladder["system"],
        "problem": str(Work(**ladder["work"]).shape),
        "step": step["name"],
        "what": step["what"],
        "symbol": step["symbol"],
        **{name: step[name] for name in ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm")},
        "conflicts": step["bank_conflicts"],
        "sectors": step["sectors_per_request"],
        "least_sectors": step["least_sectors_per_request"],
        "predicted": step["predicted_tflops"],
        "bound": step["bound"],
        "tflops": measured.get("tflops"),
        "us": measured.get("time_us"),
        "x_before": ratios["over_before"].get("median"),
        "pct_cublas": _percent(ratios["of_baseline"].get("median")),
        "published": published["tflops"],
        "published_x": published["over_before"],
        "published_pct": _percent(published["of_cublas"]),
    }


def _at(ratios: Sequence[Found | None] | None, at: int) -> Found:
    return (ratios[at] if ratios else None) or {}


def _percent(part: float | None) -> float | None:
    return None if part is None else 100 * part


def csv_text(ladders: Sequence[Found]) -> str:
    """Return all rows of all ladders as CSV."""
    found = [row for ladder in ladders for row in rows(ladder)]
    return to_csv(found, list(found[0]))


# ---- For people -----------------------------------------------------------------------------------------------------


def text(document: Found) -> str:
    """Write every ladder of a document: where it is from, a line a step, and how far it rises."""
    return "\n".join(_ladder_text(document, ladder) for ladder in document["ladders"])


def _ladder_text(document: Found, ladder: Found) -> str:
    found, measured = rows(ladder), bool(ladder.get("figures"))
    wanted = (_MEASURED if measured else _STATIC).split()
    columns = [name for name in wanted if any(row[name] is not None for row in found)]
    lines = [f"{ladder['system']}: {ladder['title']} ({ladder['source']})", *_circumstances(document, ladder)]
    lines += _legend(columns)
    table = to_text([{name: row[name] for name in columns} for row in found], columns)
    notes = [f"  {step['name']}: {step['note']}" for step in ladder["steps"] if step["note"]]
    return "\n".join([*lines, table.rstrip("\n"), *_verdict(ladder, found), *notes]) + "\n"


def _circumstances(document: Found, ladder: Found) -> Iterator[str]:
    work, cublas = Work(**ladder["work"]), ladder["published_cublas"]
    yield f"  {work.shape} {work.layout}, {work.dtype_a} in, {work.acc} accumulate, {work.dtype_d} out"
    theirs = f"  published on {ladder['machine']}" + (f": cuBLAS {cublas:g} TFLOP/s" if cublas else "")
    if ladder.get("figures"):
        baseline = ladder["figures"].get(ladder["baseline"])
        beside = f": {document['baseline']} {baseline['tflops']:g} TFLOP/s" if baseline else ""
        yield f"  measured on {document['device']}, {document['date']}, {_code(document, ladder)}{beside}"
    else:
        yield f"  kernels for {ladder['arch']}"
    if ladder["card"]:
        yield f"  predicted: at most, TFLOP/s by the model of {ladder['card']}, bank conflicts not counted"
    yield theirs


def _legend(columns: Sequence[str]) -> list[str]:
    """Return the line that explains columns, if any is to be explained."""
    said = [(", ".join(name for name in names if name in columns), words) for names, words in _LEGEND]
    told = "; ".join(f"{names}: {words}" for names, words in said if names)
    return [f"  {told}"] if told else []


def _code(document: Found, ladder: Found) -> str:
    by_driver = f", whose PTX the driver compiled for {document['arch']}"
    return f"kernels for {ladder['arch']}" + (by_driver if ladder["code"] == "ptx" else "")


def _verdict(ladder: Found, found: Sequence[Row]) -> Iterator[str]:
    """Say how much faster the last step is than the first, and which steps have fallen or were not measured."""
    for name, why in ladder.get("refused", {}).items():
        steps = [step["name"] for step in ladder["steps"] if step["symbol"] == name]
        yield f"  not measured: {', '.join(steps) or name}: {why}"
    times = [row["us"] for row in found if row["us"]]
    if len(times) > 1:
        theirs = [row["published"] for row in found if row["published"]]
        beside = f", published {theirs[-1] / theirs[0]:.2f}x" if len(theirs) > 1 else ""
        yield f"  last over first {times[0] / times[-1]:.2f}x{beside}" + _fallen(ladder, found)


def _fallen(ladder: Found, found: Sequence[Row]) -> str:
    fallen = [row for row, step in zip(found, ladder["steps"]) if (row["x_before"] or 1.0) < HOLD and not falls(step)]
    return f"; fell against the publication: {', '.join(str(row['step']) for row in fallen)}" if fallen else ""


def falls(step: Found) -> bool:
    """Tell whether the publication's step was slower than the one before it."""
    return step["fell"] or (step["published"]["over_before"] or 1.0) < 1.0


# ==== A ladder as a curve: TFLOP/s step by step, beside cuBLAS and the published figures; drawn by matplotlib ====


FORMS = ("svg", "png")
_INCHES = (7.0, 4.2)
"""Of one ladder; several stand below one another."""
_OURS, _CURVE_THEIRS = "#1f6feb", "#8c959f"
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
    flat = [("cuBLAS there", ladder["published_cublas"], _CURVE_THEIRS)]
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
    for label, name, colour, style in ((f"published, {ladder['machine']}", "published", _CURVE_THEIRS, "s--"), ours):
        points = [(place, row[name]) for place, row in enumerate(found) if row[name] is not None]
        if points:
            yield label, points, colour, style
