"""GPU figures: reads `tables/`, one file per GPU, with a source for each figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hgemm.checks import NAME, TEXT, Mismatch, check, fields, integer, map_of, number, text
from hgemm.errors import LibraryError, RequestError

FOLDER = Path(__file__).with_name("tables")
SCHEMA = 1

USUAL = {75: "rtx2070", 80: "a100", 86: "a10", 89: "l40s", 90: "h200", 120: "rtx5090"}
"""The GPU to use when only an architecture is given, by its number."""

REQUIRED = ("sms", "sm_mhz", "dram_gbytes_per_s", "l2_bytes", "smem_bytes_per_clock_per_sm")
_FIGURE_NAME = (
    r"sms|clusters_of_[2-8]|sm_mhz|power_w|l2_bytes|dram_(read_|write_|copy_)?gbytes_per_s|(smem|l2|l2_disjoint|tma)_bytes_per_clock_per_sm"
    r"|launch_(stream|graph)_us|steady_(tflops|mhz)_[a-z0-9_]+|(cpi|latency)\.[a-z0-9_]+"
)


_MEMORY_NAME = re.compile(r"\d+gb|hbm\d[a-z]?")
"""Memory sizes and types that drivers append to a GPU's name."""


@dataclass(frozen=True)
class Source:
    """Origin of figures: a document, a derivation, or a measurement with date and device."""

    text: str
    date: str = ""
    device: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.date)


@dataclass(frozen=True)
class Figure:
    """One number of a GPU."""

    value: float
    source: Source


@dataclass(frozen=True)
class Card:
    """A GPU. `key` is its short name, `number` its compute capability as an integer such as 90.

    Units: given by the suffix of a figure's name. `cpi.*` and `latency.*` are SM clocks of one warp instruction, or of
        one warpgroup instruction for hgmma. They are per partition for hmma and per SM otherwise.
    """

    key: str
    name: str
    number: int
    figures: Mapping[str, Figure] = field(repr=False)

    def get(self, name: str) -> float | None:
        """Return a figure, or None if the table lacks it."""
        figure = self.figures.get(name)
        return figure.value if figure else None

    def __getitem__(self, name: str) -> float:
        """Return a figure. Raises RequestError if the table lacks it."""
        if name not in self.figures:
            raise RequestError(f"the table of {self.name} has no {name}: add it to hgemm/model/tables/{self.key}.json")
        return self.figures[name].value

    @property
    def sms(self) -> int:
        return int(self["sms"])

    def sms_in_clusters(self, ctas: int) -> int:
        """Return the SMs that clusters of `ctas` CTAs can use at once, with one CTA per SM."""
        return ctas * int(self.get(f"clusters_of_{ctas}") or max(self.sms // ctas, 1))

    @property
    def dram_gbytes_per_s(self) -> float:
        """Return the measured DRAM read bandwidth, or the documented one without a measurement."""
        return self.get("dram_read_gbytes_per_s") or self["dram_gbytes_per_s"]

    def with_sms(self, sms: int) -> Card:
        """Return this GPU with another number of SMs."""
        others = {name: figure for name, figure in self.figures.items() if not name.startswith("clusters_of_")}
        return replace(self, figures={**others, "sms": Figure(sms, Source("as asked for"))})

    def describe_sources(self, names: Iterable[str]) -> str:
        """Describe whether figures were measured, with device and date."""
        sources = {self.figures[name].source for name in names if name in self.figures}
        measured = [source for source in sources if source.measured]
        if not measured:
            return "unmeasured"
        here = {f"{source.device}, {source.date}" for source in measured if source.device == self.name}
        elsewhere = {f"{source.device}, {source.date}" for source in measured if source.device != self.name}
        parts = [f"measured: {'; '.join(sorted(here))}"] if here else []
        parts += [f"measured on another card: {'; '.join(sorted(elsewhere))}"] if elsewhere else []
        return "; ".join(parts if len(measured) == len(sources) else [*parts, "in part unmeasured"])


# ---- Names -----------------------------------------------------------------------------------------------------------


def card_keys() -> tuple[str, ...]:
    """Return the short names of all GPUs that have a table."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def card_named(name: str) -> Card:
    """Return a GPU by name, as people or drivers write it: `H200`, `RTX 4090`, `A100-SXM4-40GB`, `NVIDIA H100 80GB HBM3`.

    Raises: RequestError, with all names, if no table matches. It proposes only a name with the same letters: B200 is no H200.
    """
    parts = [part for part in re.split(r"[^a-z0-9]+", name.lower()) if not _MEMORY_NAME.fullmatch(part)]
    words = re.sub(r"nvidia|geforce|tesla", "", "".join(parts))
    found = [key for key in card_keys() if words == key or words.startswith((f"{key}sxm", f"{key}pcie"))]
    if not found:
        near = [key for key in card_keys() if sorted(key) == sorted(words)]
        hint = f"did you mean {near[0]}? " if near else ""
        raise RequestError(f"device {name!a} has no table of figures: {hint}known are {', '.join(card_keys())}")
    return card(found[0])


def usual_card(number: int) -> Card | None:
    """Return the default GPU of an architecture such as 90, or None if none has a table."""
    return card(USUAL[number]) if number in USUAL else None


# ---- Files -----------------------------------------------------------------------------------------------------------

_SOURCE = fields(
    {"text": TEXT}, optional={"date": text(r"\d{4}(-\d\d-\d\d)?", "a date as 2026-11-21, or a year"), "device": TEXT}
)


@check({"type": "array", "minItems": 2, "maxItems": 2})
def _figure(value: Any, name: str) -> None:
    """Validate a figure: a number and the name of its source."""
    if not isinstance(value, list) or len(value) != 2:
        raise Mismatch(f"{name} must be [number, source], not {value!a}")
    number().test(value[0], name)
    TEXT.test(value[1], name)


_DOCUMENT = fields(
    {
        "schema": integer(SCHEMA, SCHEMA),
        "name": TEXT,
        "arch": text(r"sm_\d{2,3}", "an architecture such as sm_90"),
        "sources": map_of(NAME, _SOURCE),
        "figures": map_of(text(_FIGURE_NAME, "the name of a figure"), _figure),
    }
)


@cache
def card(key: str) -> Card:
    """Read the table of a GPU. Raises LibraryError with the file and field if it is malformed."""
    path = FOLDER / f"{key}.json"
    try:
        return parse_card(key, json.loads(path.read_text(encoding="utf-8")))
    except (Mismatch, ValueError) as error:
        raise LibraryError(f"{path}: {error}. Correct it, or reinstall hgemm if you did not change it.") from None


def parse_card(key: str, document: Any) -> Card:
    """Return the GPU of a document. Raises Mismatch for an invalid field."""
    _DOCUMENT(document, "")
    missing = [name for name in REQUIRED if name not in document["figures"]]
    if missing:
        raise Mismatch(f"figures.{missing[0]} is missing")
    sources = {name: Source(**entry) for name, entry in document["sources"].items()}
    unknown = [name for name, (_, source) in document["figures"].items() if source not in sources]
    if unknown:
        raise Mismatch(f"figures.{unknown[0]} names an unknown source")
    figures = {name: Figure(value, sources[source]) for name, (value, source) in document["figures"].items()}
    return Card(key, document["name"], int(document["arch"][3:]), figures)
