"""The variants of a library as data of a page: a row of the table each, and packs of what their own pages show."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from generator import __version__
from generator.errors import HgemmError
from generator.ladders.results import has_curve
from generator.plan import plan_of
from generator.report.charts import Figure, figure_of, in_order, rates, ratios, resources, rooflines, table_of, title_of
from generator.report.draw import Pictures
from generator.report.points import Point, kinds_of
from generator.spec import Spec
from generator.tables import cell
from hgemm.model.cards import usual_card
from hgemm.model.report import report
from hgemm.record import Record

COLUMNS = (
    ("symbol", "variant", "its symbol"),
    ("arch", "arch", "architecture"),
    ("layout", "layout", "BLAS letters of A and B"),
    ("dtype_a", "in", "type of A and B"),
    ("acc", "acc", "accumulator"),
    ("dtype_d", "out", "type of D"),
    ("cta_tile", "CTA tile", "m x n x k of a CTA"),
    ("mma", "mma", "tensor instruction"),
    ("stages", "stages", "k-tiles in shared memory"),
    ("schedule", "schedule", "which tiles a CTA computes"),
    ("registers", "registers", "a thread"),
    ("smem_bytes", "smem B", "bytes of shared memory a CTA"),
    ("ctas_per_sm", "CTAs/SM", "that live on an SM"),
    ("occupancy", "occupancy", "part of an SM's warps"),
    ("spill_bytes", "spills B", "bytes of registers in memory"),
    ("proof_bank_conflicts", "conflicts", "bank conflicts of a k-tile's reads"),
    ("proved", "proved", "shapes that it was run on on the CPU; 0: it has no such proof"),
    ("tflops", "TFLOP/s", "the most that was measured"),
    ("wins", "wins", "measured problems on which it was the fastest of ours"),
)
"""Name of the field, head of the column, and what it says."""
CHOSEN = ("arch", "layout", "dtype_a", "acc", "dtype_d", "cta_tile", "schedule")
"""Columns with a list of their values to choose from."""
PACK = 32
"""Variants that are compressed together: few enough to unpack at once, and enough to have much in common."""
_LEVEL = 9
_UNSHOWN = ("schema", "symbol", "inputs")


@dataclass(frozen=True)
class Entry:
    """A variant as it was read: its checked record, and its source."""

    record: Record
    source: str


def variants(entries: Sequence[Entry], points: Sequence[Point]) -> dict[str, Any]:
    """Return the data of the page's table and of the variants' own pages, as JSON values.

    Fields: `columns` and `rows` are the table's; `packs` and `pictures` are JSON texts, compressed (zlib) and in base64: the
        place of a variant is its row's, and what its page shows names pictures by theirs.
    """
    known = {entry.record.symbol: entry.record.key for entry in entries}
    measured = _measured(points, known)
    pictures = _Drawn()
    shown = [_variants_shown(entry, measured.get(entry.record.symbol, []), pictures) for entry in entries]
    packs = (shown[at : at + PACK] for at in range(0, len(shown), PACK))
    return {
        "columns": [
            {"name": name, "head": head, "says": says, "choose": name in CHOSEN} for name, head, says in COLUMNS
        ],
        "rows": [_row(entry.record, measured.get(entry.record.symbol, [])) for entry in entries],
        "pack": PACK,
        "packs": [_packed(pack) for pack in packs],
        "pictures": [_packed(picture) for picture in pictures.places],
    }


@dataclass(frozen=True)
class _Time:
    """A variant on a problem: `ratio` is its speed over the baseline's fastest, and `won` that no other of ours was faster."""

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
    """Return the times of each known variant; those of another kernel of its name, by the content key, are left out."""
    found: dict[str, list[_Time]] = {}
    for point in points:
        for symbol, time_us in point.times_us.items():
            if symbol in known and point.keys.get(symbol, known[symbol]) == known[symbol]:
                found.setdefault(symbol, []).append(_Time(point, time_us, symbol == point.ours))
    return found


def _row(record: Record, times: Sequence[_Time]) -> list[Any]:
    flat = {
        **record.flat(),
        "proved": len(record.data["proof"].get("shapes", ())),
        "tflops": round(max(time.tflops for time in times), 1) if times else None,
        "wins": sum(time.won for time in times) if times else None,
    }
    return [flat.get(name) for name, _, _ in COLUMNS]


# ---- A variant's own page -------------------------------------------------------------------------------------------


class _Drawn:
    """Pictures by their places in the page's list, each there once."""

    def __init__(self) -> None:
        self._pictures = Pictures()
        self.places: dict[str, int] = {}

    def of(self, record: Record) -> list[list[Any]]:
        """Return what each picture of a variant shows and its place; none where this version cannot plan its spec."""
        try:
            drawn = self._pictures.of(plan_of(Spec.from_dict(record.data["spec"])))
        except (HgemmError, ValueError, KeyError, TypeError):
            return []
        return [[says, self.places.setdefault(picture, len(self.places))] for says, picture in drawn]


def _variants_shown(entry: Entry, times: Sequence[_Time], pictures: _Drawn) -> dict[str, Any]:
    data = entry.record.data
    return {
        "record": {name: value for name, value in data.items() if name not in _UNSHOWN},
        "source": entry.source,
        "pictures": pictures.of(entry.record),
        "model": _model(entry.record),
        "measured": [time.plain() for time in sorted(times, key=lambda time: (-time.tflops, time.point.date))],
    }


def _model(record: Record) -> dict[str, Any] | None:
    """Return what bounds a variant on its architecture's usual card, None where no table says."""
    card = usual_card(int("".join(filter(str.isdigit, record.arch))))
    try:
        told = report(record.data["spec"], record.data["resources"], card) if card else {}
    except (HgemmError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {
        name: value for name, value in told.items() if value is not None and name not in record.data["resources"]
    } or None


def _packed(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def read_entries(library: Any, symbols: Iterable[str]) -> Iterator[Entry | HgemmError]:
    """Yield each variant, its hashes checked, or the error that says why it cannot be trusted."""
    for symbol in symbols:
        try:
            variant = library.get(symbol)
            if variant is not None:
                yield Entry(variant.record, variant.source.decode("utf-8", "replace"))
        except HgemmError as error:
            yield error


# ==== The report: everything joined to one HTML document, which asks nothing of any network ====


_FOLDER = Path(__file__).with_name("page_assets")
_MOST_KINDS = 8
_TO_MEASURE = (
    "Nothing was measured: `hgemm bench --record` measures on a GPU and files it in the library, and --bench reads what "
    "`hgemm bench --keep` wrote."
)


@dataclass(frozen=True)
class Section:
    """A part of the page: sentences, pictures (`side` by side), tables."""

    name: str
    title: str
    told: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Mapping[str, Any]] = ()
    side: bool = False


@dataclass(frozen=True)
class Report:
    """What a report is made of: variants that were read and checked, what was measured, ladders.

    Fields: `title` stands above; `told` are sentences about what was left out;
    `ladders` are documents of `generator.ladders.results`.
    """

    title: str
    entries: Sequence[Entry]
    points: Sequence[Point] = ()
    ladders: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default=())

    @cached_property
    def sections(self) -> list[Section]:
        """The parts after the table, those too of which there is nothing to show, which say so."""
        return [*self._measured(), self._roofline(), self._resources(), self._ladders()]

    @property
    def figures(self) -> list[Figure]:
        """All pictures, in the order of the page."""
        return [figure for section in self.sections for figure in section.figures]

    def html(self) -> str:
        """Return the document; the same bytes for the same data."""
        script, style = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        known = {entry.record.symbol for entry in self.entries}
        environment = Environment(
            loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        environment.filters.update(
            told=lambda value: "" if value is None else cell(value), coded=_coded, breakable=_breakable
        )
        return environment.get_template("page.html.j2").render(
            title=self.title,
            version=__version__,
            summary=self._summary(),
            notes=self.notes,
            sections=[_page_shown(section, known) for section in self.sections],
            style=Markup(style),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            data=Markup(_embedded(variants(self.entries, self.points))),
        )

    def _summary(self) -> str:
        archs = in_order({entry.record.arch for entry in self.entries})
        devices = sorted({point.device for point in self.points})
        dates = sorted(point.date for point in self.points)
        parts = [f"{len(self.entries):,} variants" + (f" for {', '.join(archs)}" if archs else "")]
        if devices:
            parts.append(f"{len(self.points):,} measured problems on {', '.join(devices)}, the last {dates[-1][:10]}")
        return "; ".join(parts) + "."

    # ---- Sections ---------------------------------------------------------------------------------------------------

    def _measured(self) -> list[Section]:
        kinds = kinds_of(self.points)
        shown = [*kinds.items()][:_MOST_KINDS]
        told = [] if kinds else [_TO_MEASURE]
        if len(kinds) > len(shown):
            left = sum(map(len, kinds.values())) - sum(len(points) for _, points in shown)
            told = [
                f"The {len(shown)} kinds with most problems of {len(kinds)}; {left} problems of the others are not drawn."
            ]
        rising = [rates(f"rates_{at}", kind, points) for at, (kind, points) in enumerate(shown)]
        found = [ratios(f"ratios_{at}", kind, points) for at, (kind, points) in enumerate(shown)]
        maps = [figure for figure in found if figure is not None]
        alone = ["Nothing was measured beside cuBLASLt, so there are no ratios."] if kinds and not maps else told
        return [
            Section("rates", "TFLOP/s against size", told, rising, side=True),
            Section("ratios", "Speed over cuBLASLt's fastest", alone, maps, side=True),
        ]

    def _roofline(self) -> Section:
        figures, left_out = rooflines([entry.record for entry in self.entries], self.points)
        told = [
            "Each mark is a variant, or several in one place, and leads to its page. Hollow ones stand where the equations of "
            "`hgemm explain` put them, on the card that their architecture is known by; full ones where they were measured. Roofs "
            "are at the card's boost clock, which power may hold down."
        ]
        if left_out:
            told.append(f"{left_out} variants are not drawn: no card's table has their instructions.")
        return Section(
            "roofline", "Roofline", told if figures else ["There is no variant to draw."], figures, side=True
        )

    def _resources(self) -> Section:
        figures = resources([entry.record for entry in self.entries])
        told = [] if figures else ["There is no variant to draw."]
        return Section("resources", "Resources and occupancy", told, figures, side=True)

    def _ladders(self) -> Section:
        found = [(document, ladder) for document in self.ladders for ladder in document["ladders"]]
        told = [] if found else ["No ladder was given: --ladder reads what `hgemm ladder --keep` wrote."]
        figures = [figure_of(f"ladder_{at}", *one) for at, one in enumerate(found) if has_curve(*one)]
        tables = [{"title": title_of(ladder), **dict(zip(("heads", "rows"), table_of(ladder)))} for _, ladder in found]
        return Section("ladders", "Ladders", told, figures, tables)


def _page_shown(section: Section, known: set[str]) -> dict[str, Any]:
    """Return a section as the template takes it, its pictures drawn."""
    return {
        **vars(section),
        "figures": [
            {"name": one.name, "title": one.title, "words": one.words, "width": one.width, "svg": Markup(one.inline())}
            for one in section.figures
        ],
        "tables": [{**table, "links": known} for table in section.tables],
    }


def _coded(text: str) -> Markup:
    """Write what stands between backquotes as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _breakable(symbol: str) -> Markup:
    """Let a line end after any underscore."""
    return Markup("_<wbr>").join(symbol.split("_"))


def _embedded(value: Any) -> str:
    """Write a value as JSON that no HTML can end."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
