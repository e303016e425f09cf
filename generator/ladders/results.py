"""Results of ladders: reads the documents of `hgemm ladder --keep`, and writes them as text, CSV and curves."""

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
from hgemm.checks import TEXT, Mismatch, boolean, either, fields, list_of, map_of, null, number, plain
from hgemm.disk import read_text
from hgemm.junit import JunitSuite, JunitTest
from hgemm.record import RENAMED_PROOF, Scalar

SCHEMA = 1
KIND = "ladders"

# ==== Reading documents ====

_NUMBER, _TEXT = either(null, number()), either(null, TEXT)
_RATIOS = list_of(either(null, fields({"median": number()}, others=plain)))
_STEP = fields(
    {
        **dict.fromkeys(("name", "what", "symbol"), TEXT),
        **dict.fromkeys(("registers", "spill_bytes", "smem_bytes"), number()),
        **dict.fromkeys(("ctas_per_sm", "bank_conflicts", "sectors_per_request"), _NUMBER),
        "published": fields(dict.fromkeys(("tflops", "over_before", "of_cublas"), _NUMBER)),
    },
    others=plain,
    optional={
        **dict.fromkeys(("predicted_tflops", "ideal_sectors_per_request", *RENAMED_PROOF), _NUMBER),
        "bound": _TEXT,
        "note": TEXT,
        "fell": boolean,
    },
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
_STEP_DEFAULTS = {"ideal_sectors_per_request": None, "predicted_tflops": None, "bound": None, "note": "", "fell": False}
_LADDER_DEFAULTS = {"baseline": None, "card": None, "code": None}
_DOCUMENT_DEFAULTS = {"baseline": "", "device": "", "date": "", "arch": None}
"""Fields that documents of older versions lack."""


def read(path: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Read a document of `hgemm ladder --keep`, with the ladders that `names` match, or all.

    Raises: LibraryError if the file is not such a document; RequestError if a name matches no ladder.
    """
    try:
        document = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise LibraryError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(document, dict) or (document.get("kind"), document.get("schema")) != (KIND, SCHEMA):
        raise LibraryError(f"{path} holds no ladders: name a file that `hgemm ladder --keep` wrote")
    try:
        _DOCUMENT(document, "")
    except Mismatch as error:
        raise LibraryError(f"{path} holds no ladders: {error}: name a file that `hgemm ladder --keep` wrote") from None
    systems = names_matching([ladder["system"] for ladder in document["ladders"]], names or ["*"])
    ladders = [_whole(ladder) for ladder in document["ladders"] if ladder["system"] in systems]
    return {**_DOCUMENT_DEFAULTS, **document, "ladders": ladders}


def _whole(ladder: Mapping[str, Any]) -> dict[str, Any]:
    steps = [{RENAMED_PROOF.get(name, name): value for name, value in step.items()} for step in ladder["steps"]]
    return {**_LADDER_DEFAULTS, **ladder, "steps": [{**_STEP_DEFAULTS, **step} for step in steps]}


def names_matching(known: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that globs match. Raises: RequestError if a glob matches none."""
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise RequestError(f"no ladder is named '{pattern}': choose from {', '.join(dict.fromkeys(known))}")
    return [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


# ==== Rows ====

Found = Mapping[str, Any]
Row = dict[str, Scalar | None]
_LEGEND = (
    (("conflicts",), "extra passes of shared memory for each k-tile"),
    (("sectors", "ideal_sectors"), "32-byte sectors moved for each warp access, and the minimum"),
    (("x_before", "published_x"), "speedup over the step before"),
    (("pct_cublas", "published_pct"), "percent of cuBLAS"),
)
"""Explanations of columns."""
SLOWER_BELOW = 0.97
"""A step is slower than the step before if its speedup is below this. Smaller differences are noise."""

_PUBLISHED_COLUMNS = "published published_x published_pct what"
_STATIC_COLUMNS = (
    f"step registers smem_bytes ctas_per_sm conflicts sectors ideal_sectors predicted bound {_PUBLISHED_COLUMNS}"
)
_MEASURED_COLUMNS = f"step tflops us x_before pct_cublas predicted {_PUBLISHED_COLUMNS}"


def rows(ladder: Found) -> list[Row]:
    """Return one row for each step, with everything known of it."""
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
        "ideal_sectors": step["ideal_sectors_per_request"],
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


def junit_suite(ladder: Found) -> JunitSuite:
    """Return a suite with a test for each step. A step that was refused fails; without a GPU, steps count as skipped."""
    refused, figures = ladder.get("refused", {}), ladder.get("figures") or {}
    tests = []
    for step in ladder["steps"]:
        why = refused.get(step["symbol"]) or refused.get("all")
        if why:
            tests.append(JunitTest(step["name"], "failure", why))
        elif step["symbol"] in figures:
            tests.append(JunitTest(step["name"], message=f"{figures[step['symbol']]['tflops']:g} TFLOP/s"))
        else:
            tests.append(JunitTest(step["name"], "skipped", "not run: no GPU was used"))
    return JunitSuite(ladder["system"], tuple(tests))


# ==== Text ====


def text(document: Found) -> str:
    """Write every ladder of a document: its source, a row for each step, and the total speedup."""
    return "\n".join(_ladder_text(document, ladder) for ladder in document["ladders"])


def _ladder_text(document: Found, ladder: Found) -> str:
    found, measured = rows(ladder), bool(ladder.get("figures"))
    names = (_MEASURED_COLUMNS if measured else _STATIC_COLUMNS).split()
    columns = [name for name in names if any(row[name] is not None for row in found)]
    lines = [f"{ladder['system']}: {ladder['title']} ({ladder['source']})", *_conditions(document, ladder)]
    lines += _legend(columns)
    table = to_text([{name: row[name] for name in columns} for row in found], columns)
    notes = [f"  {step['name']}: {step['note']}" for step in ladder["steps"] if step["note"]]
    return "\n".join([*lines, table.rstrip("\n"), *_verdict(ladder, found), *notes]) + "\n"


def _conditions(document: Found, ladder: Found) -> Iterator[str]:
    work, cublas = Work(**ladder["work"]), ladder["published_cublas"]
    yield f"  {work.shape} {work.layout}, {work.dtype_a} in, {work.acc} accumulate, {work.dtype_d} out"
    published = f"  published on {ladder['machine']}" + (f": cuBLAS {cublas:g} TFLOP/s" if cublas else "")
    if ladder.get("figures"):
        baseline = ladder["figures"].get(ladder["baseline"])
        beside = f": {document['baseline']} {baseline['tflops']:g} TFLOP/s" if baseline else ""
        yield f"  measured on {document['device']}, {document['date']}, {_code(document, ladder)}{beside}"
    else:
        yield f"  kernels for {ladder['arch']}"
    if ladder["card"]:
        yield f"  predicted: limit in TFLOP/s by the model of {ladder['card']}, without bank conflicts"
    yield published


def _legend(columns: Sequence[str]) -> list[str]:
    """Return the line that explains columns, if any needs it."""
    shown = [(", ".join(name for name in names if name in columns), words) for names, words in _LEGEND]
    legend = "; ".join(f"{names}: {words}" for names, words in shown if names)
    return [f"  {legend}"] if legend else []


def _code(document: Found, ladder: Found) -> str:
    by_driver = f" (PTX, compiled by the driver for {document['arch']})"
    return f"kernels for {ladder['arch']}" + (by_driver if ladder["code"] == "ptx" else "")


def _verdict(ladder: Found, found: Sequence[Row]) -> Iterator[str]:
    """Yield the speedup of the last step over the first, and the steps that were slower or not measured."""
    for name, why in ladder.get("refused", {}).items():
        steps = [step["name"] for step in ladder["steps"] if step["symbol"] == name]
        yield f"  not measured: {', '.join(steps) or name}: {why}"
    times = [row["us"] for row in found if row["us"]]
    if len(times) > 1:
        rates = [row["published"] for row in found if row["published"]]
        published = f", published {rates[-1] / rates[0]:.2f}x" if len(rates) > 1 else ""
        yield f"  last over first {times[0] / times[-1]:.2f}x{published}" + _slower(ladder, found)


def _slower(ladder: Found, found: Sequence[Row]) -> str:
    """Name the steps that are slower than the step before, although the published ones are not."""
    slower = [
        str(row["step"])
        for row, step in zip(found, ladder["steps"])
        if (row["x_before"] or 1.0) < SLOWER_BELOW and not is_slower_step(step)
    ]
    return f"; slower than the step before, unlike published: {', '.join(slower)}" if slower else ""


def is_slower_step(step: Found) -> bool:
    """Return whether the published step was slower than the step before it."""
    return step["fell"] or (step["published"]["over_before"] or 1.0) < 1.0


# ==== Curves ====

FORMS = ("svg", "png")
_INCHES = (7.0, 4.2)
"""Width and height of one ladder. Several are drawn below one another."""
_OUR_COLOUR, _PUBLISHED_COLOUR = "#1f6feb", "#8c959f"
_STYLE = {"svg.hashsalt": "hgemm", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

_Curve = tuple[str, list[tuple[int, Any]], str, str]
"""Label, points, colour and line style."""


def form_of(path: Path) -> str:
    """Return the format that a file's name requests. Raises: RequestError if it is neither svg nor png."""
    form = path.suffix.lstrip(".").lower()
    if form not in FORMS:
        raise RequestError(
            f"cannot draw a ladder as '{path.name}': use a name that ends in {' or '.join(f'.{form}' for form in FORMS)}"
        )
    return form


def require_matplotlib() -> None:
    """Raise HgemmError if matplotlib is not installed. Called before any work."""
    try:
        import matplotlib  # noqa: F401  0.2 s, and an extra
    except ImportError:
        raise HgemmError(
            "matplotlib is not installed, but drawing needs it: pip install 'hgemm-generator[plots]'"
        ) from None


def curve(document: Mapping[str, Any], form: str) -> bytes:
    """Draw the ladders of a document. The same document gives the same bytes.

    Raises: LibraryError if no step has a published, measured or predicted rate.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ladders = [ladder for ladder in document["ladders"] if has_curve(document, ladder)]
    if not ladders:
        raise LibraryError("nothing to draw: no step has a published, measured or predicted rate")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(ladders)), layout="constrained")
        FigureCanvasAgg(figure)
        for ladder, axes in zip(ladders, figure.subplots(len(ladders), squeeze=False)[:, 0]):
            draw_ladder(axes, document, ladder)
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=144, metadata={"Date": None} if form == "svg" else {"Software": None})
    return out.getvalue()


def has_curve(document: Mapping[str, Any], ladder: Mapping[str, Any]) -> bool:
    """Return whether a ladder has any rate to draw."""
    return any(_curves(document, ladder, rows(ladder)))


def draw_ladder(axes: Any, document: Mapping[str, Any], ladder: Mapping[str, Any]) -> None:
    """Draw one ladder of a document on axes of matplotlib. `has_curve` must be true."""
    found = rows(ladder)
    for label, points, colour, style in _curves(document, ladder, found):
        axes.plot(*zip(*points), style, color=colour, label=label)
    flat = [("cuBLAS, published", ladder["published_cublas"], _PUBLISHED_COLOUR)]
    if ladder.get("figures"):
        baseline = ladder["figures"].get(ladder["baseline"]) or {}
        flat.append(("cuBLASLt, measured", baseline.get("tflops"), _OUR_COLOUR))
    for label, value, colour in flat:
        if value:
            axes.axhline(value, color=colour, linestyle=":", linewidth=1, label=label)
    axes.set_xticks(range(len(found)), [str(row["step"]) for row in found])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{ladder['system']}: {ladder['title']}, {Work(**ladder['work']).shape}", loc="left")
    axes.legend(edgecolor="none", framealpha=1)


def _curves(document: Mapping[str, Any], ladder: Mapping[str, Any], found: Sequence[Row]) -> Iterator[_Curve]:
    """Yield the published curve, and the measured or else the predicted one. Steps without a rate are skipped."""
    if ladder.get("figures"):
        ours = (f"ours, {document['device']}", "tflops", _OUR_COLOUR, "o-")
    else:
        ours = (f"ours, limit by the model of {ladder['card']}", "predicted", _OUR_COLOUR, "o--")
    for label, name, colour, style in (
        (f"published, {ladder['machine']}", "published", _PUBLISHED_COLOUR, "s--"),
        ours,
    ):
        points = [(place, row[name]) for place, row in enumerate(found) if row[name] is not None]
        if points:
            yield label, points, colour, style
