"""The report: everything joined to one HTML document, which asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from generator import __version__
from generator.commands.table import cell
from generator.drawing.curve import has_curve
from generator.reporting.figure import Figure
from generator.reporting.ladders import figure_of, table_of, title_of
from generator.reporting.points import Point, kinds_of
from generator.reporting.rates import rates, ratios
from generator.reporting.resources import in_order, resources
from generator.reporting.roofline import rooflines
from generator.reporting.variants import Entry, variants

_FOLDER = Path(__file__).with_name("page")
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
    `ladders` are documents of `generator.commands.kept_ladders`.
    """

    title: str
    entries: Sequence[Entry]
    points: Sequence[Point] = ()
    ladders: Sequence[Mapping[str, Any]] = ()
    told: Sequence[str] = field(default=())

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
            told=self.told,
            sections=[_shown(section, known) for section in self.sections],
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


def _shown(section: Section, known: set[str]) -> dict[str, Any]:
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
