"""What is known and measured of ladders as text for people, rows for spreadsheets, and verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generator.commands.table import to_csv, to_text
from hgemm.bench.work import Work
from hgemm.record import Scalar

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

_THEIRS = "published published_x published_pct what"
_STATIC = f"step registers smem_bytes ctas_per_sm conflicts sectors least_sectors predicted bound {_THEIRS}"
_MEASURED = f"step tflops us x_before pct_cublas predicted {_THEIRS}"


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
