"""The page of a report: the data of all kernels, the sections with charts, and the HTML document. It needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from generator import __version__
from generator.errors import HgemmError
from generator.ladders.results import has_curve, require_matplotlib
from generator.ladders.results import read as read_ladders
from generator.planner import plan_of
from generator.report.charts import (
    Figure,
    in_order,
    ladder_figure,
    ladder_table,
    ladder_title,
    rates,
    ratios,
    resources,
    rooflines,
)
from generator.report.draw import Pictures
from generator.report.points import Point, kinds_of, of_sessions, read_bench
from generator.report.predictions import (
    USUAL_SIDE,
    Predicted,
    fastest_table,
    predicted,
    prediction_figures,
    proof_table,
    short_name,
)
from generator.spec import Spec
from generator.store.files import disk_errors
from generator.store.library import Library
from generator.store.query import KernelFilter, nothing_matches, select_rows
from generator.tables import cell, counted
from hgemm.disk import require_writable, write_atomically
from hgemm.measured import read_sessions
from hgemm.model.cards import usual_card
from hgemm.model.predict import report
from hgemm.record import Record

COLUMNS = (
    ("symbol", "kernel", "symbol"),
    ("arch", "arch", "architecture"),
    ("layout", "layout", "layouts of A and B, BLAS letters"),
    ("dtype_a", "in", "type of A and B"),
    ("acc", "acc", "accumulator"),
    ("dtype_d", "out", "type of D"),
    ("cta_tile", "CTA tile", "m x n x k of a CTA tile"),
    ("mma", "mma", "tensor instruction"),
    ("stages", "stages", "k-tiles in shared memory"),
    ("schedule", "schedule", "which tiles a CTA computes"),
    ("registers", "registers", "registers per thread"),
    ("smem_bytes", "smem B", "bytes of shared memory per CTA"),
    ("ctas_per_sm", "CTAs/SM", "resident CTAs on an SM"),
    ("occupancy", "occupancy", "used fraction of an SM's warps"),
    ("spill_bytes", "spills B", "bytes of spilled registers"),
    ("proof_bank_conflicts", "conflicts", "bank conflicts of a k-tile, copies and reads of all warps"),
    ("proved", "proved", "shapes proved on the CPU; 0: no proof"),
    ("bound", "bound", "what limits a k-tile on the usual card of the architecture, by the cost model"),
    ("predicted", "predicted", f"TFLOP/s at m = n = k = {USUAL_SIDE} on this card, by the cost model"),
    ("tflops", "TFLOP/s", "highest measured rate"),
    ("wins", "wins", "measured problems on which this kernel was our fastest"),
)
"""For each column: the field, the heading, and the tooltip."""
CHOSEN = ("arch", "layout", "dtype_a", "acc", "dtype_d", "cta_tile", "schedule")
"""Columns that can be filtered by a list of values."""
PACK = 32
"""Kernels compressed together: few enough to unpack quickly, and enough to share content."""
_ZLIB_LEVEL = 9
_HIDDEN_FIELDS = ("schema", "symbol", "inputs")


@dataclass(frozen=True)
class Entry:
    """A kernel of the library: its checked record, and its source."""

    record: Record
    source: str


def kernels_data(
    entries: Sequence[Entry], points: Sequence[Point], predictions: Mapping[str, Predicted] | None = None
) -> dict[str, Any]:
    """Return the data of the table and of the kernels' pages, as JSON.

    Fields: `columns` and `rows` form the table. `packs` and `pictures` are compressed JSON (zlib, base64). Kernel i is entry
        i % PACK of pack i // PACK. A kernel's page refers to pictures by their index.
    """
    known = {entry.record.symbol: entry.record.key for entry in entries}
    measured = _measured(points, known)
    pictures = _PictureList()
    rates = predicted(entry.record for entry in entries) if predictions is None else predictions
    shown = [_page_data(entry, measured.get(entry.record.symbol, []), pictures) for entry in entries]
    packs = (shown[at : at + PACK] for at in range(0, len(shown), PACK))
    return {
        "columns": [
            {"name": name, "head": head, "says": says, "choose": name in CHOSEN} for name, head, says in COLUMNS
        ],
        "rows": [
            _row(entry.record, measured.get(entry.record.symbol, []), rates.get(entry.record.symbol))
            for entry in entries
        ],
        "pack": PACK,
        "packs": [_packed(pack) for pack in packs],
        "pictures": [_packed(picture) for picture in pictures.places],
    }


@dataclass(frozen=True)
class _Time:
    """A kernel on a problem. `won`: no other kernel of ours was faster."""

    point: Point
    time_us: float
    won: bool

    @property
    def tflops(self) -> float:
        return self.point.tflops(self.time_us)

    def plain(self) -> dict[str, Any]:
        point, best_us = self.point, min(self.point.baseline_us.values(), default=None)
        kind = point.kind
        return {
            "problem": f"{point.work.shape}",
            "types": f"{kind.dtype_a} {kind.acc} {kind.dtype_d}",
            "us": round(self.time_us, 3),
            "tflops": round(self.tflops, 1),
            "of_cublaslt": None if best_us is None else round(best_us / self.time_us, 3),
            "fastest": "yes" if self.won else "",
            "state": point.state,
            "device": point.device,
            "date": point.date,
        }


def _measured(points: Iterable[Point], known: dict[str, str]) -> dict[str, list[_Time]]:
    """Return the times of each known kernel. Times of a kernel with the same symbol and another content key are skipped."""
    found: dict[str, list[_Time]] = {}
    for point in points:
        for symbol, time_us in point.times_us.items():
            if symbol in known and point.keys.get(symbol, known[symbol]) == known[symbol]:
                found.setdefault(symbol, []).append(_Time(point, time_us, symbol == point.ours))
    return found


def _row(record: Record, times: Sequence[_Time], rate: Predicted | None) -> list[Any]:
    flat = {
        **record.flat(),
        "proved": len(record.data["proof"].get("shapes", ())),
        "bound": rate.bound if rate else None,
        "predicted": round(rate.usual, 1) if rate else None,
        "tflops": round(max(time.tflops for time in times), 1) if times else None,
        "wins": sum(time.won for time in times) if times else None,
    }
    return [flat.get(name) for name, _, _ in COLUMNS]


class _PictureList:
    """The pictures of all kernels, each stored once."""

    def __init__(self) -> None:
        self._pictures = Pictures()
        self.places: dict[str, int] = {}

    def of(self, record: Record) -> list[list[Any]]:
        """Return the caption and the index of each picture of a kernel; none if its spec cannot be planned."""
        try:
            drawn = self._pictures.of(plan_of(Spec.from_dict(record.data["spec"])))
        except (HgemmError, ValueError, KeyError, TypeError):
            return []
        return [[says, self.places.setdefault(picture, len(self.places))] for says, picture in drawn]


def _page_data(entry: Entry, times: Sequence[_Time], pictures: _PictureList) -> dict[str, Any]:
    data = entry.record.data
    return {
        "record": {name: value for name, value in data.items() if name not in _HIDDEN_FIELDS},
        "source": entry.source,
        "pictures": pictures.of(entry.record),
        "model": _model(entry.record),
        "measured": [time.plain() for time in sorted(times, key=lambda time: (-time.tflops, time.point.date))],
    }


def _model(record: Record) -> dict[str, Any] | None:
    """Return the predictions of the cost model on the architecture's usual card; None if there is no table."""
    card = usual_card(int("".join(filter(str.isdigit, record.arch))))
    try:
        found = report(record.data["spec"], record.data["resources"], card) if card else {}
    except (HgemmError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {
        name: value for name, value in found.items() if value is not None and name not in record.data["resources"]
    } or None


def _packed(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _ZLIB_LEVEL)).decode()


def read_entries(library: Any, symbols: Iterable[str]) -> Iterator[Entry | HgemmError]:
    """Yield each kernel with checked hashes, or the error if the check fails."""
    for symbol in symbols:
        try:
            stored = library.get(symbol)
            if stored is not None:
                yield Entry(stored.record, stored.source.decode("utf-8", "replace"))
        except HgemmError as error:
            yield error


# ==== The document ====


_FOLDER = Path(__file__).with_name("page_assets")
_MAX_KINDS = 8
_NARROW_INCHES = 6.0
"""Charts up to this width stand side by side."""
_NO_MEASUREMENTS = (
    "Nothing is measured yet, so all rates are predictions. To measure on a GPU and store the results in the library, run "
    "`hgemm bench --record`. To read a file of `hgemm bench --keep`, use --bench."
)


@dataclass(frozen=True)
class Section:
    """A section of the page: notes, charts (`side` by side) and tables."""

    name: str
    title: str
    notes: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Mapping[str, Any]] = ()
    side: bool = False


@dataclass(frozen=True)
class Report:
    """A report: checked kernels, measured points and ladders.

    Fields: `notes` are sentences about skipped kernels; `ladders` are documents of `generator.ladders.results`.
    """

    title: str
    entries: Sequence[Entry]
    points: Sequence[Point] = ()
    ladders: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default=())

    @cached_property
    def sections(self) -> list[Section]:
        """The sections after the table. Those without content are left out."""
        sections = [*self._measured(), self._predictions(), self._roofline(), self._resources(), self._proofs()]
        return [*filter(_has_content, sections), *filter(_has_content, [self._ladders()])]

    @cached_property
    def predictions(self) -> dict[str, Predicted]:
        """The predictions of the kernels that have any, by symbol."""
        return predicted(entry.record for entry in self.entries)

    @property
    def figures(self) -> list[Figure]:
        """All charts, in the order of the page."""
        return [figure for section in self.sections for figure in section.figures]

    def html(self) -> str:
        """Return the document. The same data give the same bytes."""
        script, style = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        known = {entry.record.symbol for entry in self.entries}
        environment = Environment(
            loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        environment.filters.update(
            shown=lambda value: "" if value is None else cell(value),
            coded=_coded,
            breakable=_breakable,
            short=short_name,
        )
        return environment.get_template("page.html.j2").render(
            title=self.title,
            version=__version__,
            summary=self._summary(),
            notes=[*self.notes, *([] if self.points else [_NO_MEASUREMENTS])],
            sections=[_section_data(section, known) for section in self.sections],
            style=Markup(style),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            data=Markup(_embedded(kernels_data(self.entries, self.points, self.predictions))),
        )

    def _summary(self) -> str:
        archs = in_order({entry.record.arch for entry in self.entries})
        devices = sorted({point.device for point in self.points})
        dates = sorted(point.date for point in self.points)
        parts = [counted(len(self.entries), "kernel") + (f" for {', '.join(archs)}" if archs else "")]
        if devices:
            parts.append(
                f"{counted(len(self.points), 'measured problem')} on {', '.join(devices)}, the last {dates[-1][:10]}"
            )
        return "; ".join(parts) + "."

    def _measured(self) -> list[Section]:
        kinds = kinds_of(self.points)
        shown = [*kinds.items()][:_MAX_KINDS]
        notes = []
        if len(kinds) > len(shown):
            left = sum(map(len, kinds.values())) - sum(len(points) for _, points in shown)
            notes = [
                f"Shown are the {len(shown)} of {len(kinds)} kinds with the most problems, without {left} problems of other kinds."
            ]
        rising = [rates(f"rates_{at}", kind, points) for at, (kind, points) in enumerate(shown)]
        found = [ratios(f"ratios_{at}", kind, points) for at, (kind, points) in enumerate(shown)]
        maps = [figure for figure in found if figure is not None]
        return [
            Section("rates", "TFLOP/s against size", notes, rising, side=True),
            Section("ratios", "Speedup over cuBLASLt's fastest", notes, maps, side=True),
        ]

    def _predictions(self) -> Section:
        found = [*self.predictions.values()]
        notes = [
            "Rates by the cost model of `hgemm explain`, on the usual card of each architecture. The bound is what "
            "takes longest for a k-tile. The table says how exact the model is."
        ]
        tables = [fastest_table(found)] if found else []
        return Section("predictions", "Predictions and bounds", notes, prediction_figures(found), tables, side=True)

    def _proofs(self) -> Section:
        records = [entry.record for entry in self.entries]
        notes = ["A proof runs the PTX of a kernel on the CPU: `hgemm verify --emulate`. Its page lists the shapes."]
        return Section("proofs", "Proofs", notes, tables=[proof_table(records)] if records else [])

    def _roofline(self) -> Section:
        figures, left_out, flat = rooflines([entry.record for entry in self.entries], self.points)
        notes = [
            "Each mark is one or more kernels, and links to the page of the first. Hollow marks are limits by the cost model of "
            "`hgemm explain`, on the usual card of the architecture. Full marks are measurements. Roofs assume the card's boost "
            "clock; the power limit may lower it."
        ]
        if left_out:
            notes.append(f"Not drawn: {counted(left_out, 'kernel')}. No card's table has their instructions.")
        if flat:
            notes.append(f"Not drawn: {', '.join(flat)}. The tables of these cards have no rate of L2.")
        return Section("roofline", "Roofline", notes, figures, side=True)

    def _resources(self) -> Section:
        figures = resources([entry.record for entry in self.entries])
        return Section("resources", "Resources and occupancy", (), figures, side=True)

    def _ladders(self) -> Section:
        found = [(document, ladder) for document in self.ladders for ladder in document["ladders"]]
        figures = [ladder_figure(f"ladder_{at}", *one) for at, one in enumerate(found) if has_curve(*one)]
        tables = [
            {"title": ladder_title(ladder), **dict(zip(("heads", "rows"), ladder_table(ladder)))} for _, ladder in found
        ]
        return Section("ladders", "Ladders", (), figures, tables)


def _has_content(section: Section) -> bool:
    return bool(section.figures or section.tables)


def _section_data(section: Section, known: set[str]) -> dict[str, Any]:
    """Return a section as the template reads it, with its charts drawn."""
    return {
        **vars(section),
        "figures": [
            {
                "name": one.name,
                "title": one.title,
                "words": one.words,
                "width": one.width,
                "wide": one.inches[0] > _NARROW_INCHES,
                "svg": Markup(one.inline()),
            }
            for one in section.figures
        ],
        "tables": [{"short": False, **table, "links": known} for table in section.tables],
    }


def _coded(text: str) -> Markup:
    """Write text between backquotes as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _breakable(symbol: str) -> Markup:
    """Allow a line break after each underscore."""
    return Markup("_<wbr>").join(symbol.split("_"))


def _embedded(value: Any) -> str:
    """Write a value as JSON that cannot close the script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ==== Writing ====


def write_report(
    library: Library,
    kernel_filter: KernelFilter,
    to: Path,
    bench: Sequence[Path],
    ladders: Sequence[Path],
    png: Path | None,
    warn: Callable[[str], None],
) -> Iterator[Path]:
    """Write the report to `to`, and its pictures to the folder `png` if given. Yield each written path.

    Kernels that fail their checks are skipped. `warn` is called with a line for each, and the report says so.
    """
    require_matplotlib()
    require_writable(to, "--to")
    points = [point for path in bench for point in read_bench(path)]
    documents = [read_ladders(path) for path in ladders]
    symbols = [str(row["symbol"]) for row in select_rows(library, kernel_filter)]
    if not symbols and kernel_filter != KernelFilter():
        raise nothing_matches(library)
    entries: list[Entry] = []
    rejected: list[str] = []
    for entry in read_entries(library, symbols):
        if isinstance(entry, HgemmError):
            rejected.append(str(entry))
            warn(f"hgemm: {entry}")
        else:
            entries.append(entry)
    skipped = f"Skipped {counted(len(rejected), 'kernel')}, because the files fail the checks. The first: "
    report = Report(
        title=f"HGEMM library {library.folder.name}",
        entries=entries,
        points=[*of_sessions(read_sessions(library.folder)), *points],
        ladders=documents,
        notes=[skipped + rejected[0]] if rejected else [],
    )
    write_atomically(to, report.html().encode(), "--to")
    yield to
    if png is not None:
        yield from _pictures(report, png)


def _pictures(report: Report, folder: Path) -> Iterator[Path]:
    with disk_errors("write", folder, "--png"):
        folder.mkdir(parents=True, exist_ok=True)
    for figure in report.figures:
        path = folder / f"{figure.name}.png"
        write_atomically(path, figure.png(), "--png")
        yield path
