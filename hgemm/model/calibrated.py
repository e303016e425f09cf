"""Calibration of the estimates of selection: what measurements of many kernels on some GPUs say about each kernel.

`calibrated.json` ships with the package, so that a library that nobody tuned selects well. Each kernel has a timing identity: the
fields of a spec that determine its time. Types of 2 bytes, layouts, bias and beta are not among them, so one measured kernel serves
many variants. benchmarks/calibration.py writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hgemm.checks import NAME, TEXT, Mismatch, fields, integer, list_of, text
from hgemm.dtypes import DTYPES
from hgemm.errors import LibraryError
from hgemm.problem import LAUNCH

PATH = Path(__file__).with_name("calibrated.json")
SCHEMA = 2

IDENTITY = ("arch", "form", "copy", "mma", "cta_tile", "consumers", "cooperation", "cluster", "swap_ab", "schedule")
"""Fields of a spec that must agree."""
NEARLY = ("stages", "raster")
"""Fields of a spec that may differ. Of several measured kernels, the one with the nearest number of stages counts."""
FAMILY = IDENTITY[:3]
"""Fields that kernels of one family share. A kernel of the family that was not measured has the factors of its group."""
ELEMENT_BYTES = 2
ACCUMULATION = "f32"

TERMS = ("k_tile", "tile", "launch", "dram", "l2", "straddling", "dram_start", "split", "partial")
"""The terms of an estimate that have a factor. See hgemm.dispatch_table.Clocks."""
ONE = 1000
"""A factor of 1."""

# ==== The file ====

_WORD = text(r"[a-z0-9_:]{1,40}", "a word of a spec")
_FACTORS = list_of(integer(1, 100 * ONE), len(TERMS))
_DEVICE = fields(
    {
        "name": TEXT,
        "capability": integer(10, 999),
        "sms": integer(1, 100_000),
        "driver": TEXT,
        "date": text(r"\d{4}-\d\d-\d\d", "a date as 2026-11-21"),
        "problems": integer(1),
    }
)
_KERNEL = fields({"identity": list_of(_WORD, len(IDENTITY) + len(NEARLY)), "factors": _FACTORS})
_GROUP = fields({"group": _WORD, "factors": _FACTORS})
_DOCUMENT = fields(
    {
        "schema": integer(SCHEMA, SCHEMA),
        "source": TEXT,
        "state": NAME,
        "fitted": text(r"\d{4}-\d\d-\d\d", "the date of the model's constants"),
        "devices": list_of(_DEVICE),
        "fields": list_of(NAME),
        "terms": list_of(NAME),
        "family": list_of(_WORD, len(FAMILY)),
        "others": _FACTORS,
        "groups": list_of(_GROUP),
        "kernels": list_of(_KERNEL),
    }
)

Words = tuple[str, ...]
Factors = tuple[int, ...]
"""A factor for each of TERMS. Units: ONE is 1."""


# ==== In memory ====


@dataclass(frozen=True)
class Calibration:
    """Factors of the terms of estimates.

    Fields: `devices` names the GPUs and `problems` counts the products that were measured in `state`. `fitted` is the date of the
        model's constants that the factors apply to. `kernels` holds the factors by timing identity and the fields of NEARLY.
        Other kernels of the `family` have those of their group in `groups`, or `others` if no kernel of the group was measured.
    """

    devices: tuple[str, ...]
    problems: int
    state: str
    fitted: str
    family: Words
    others: Factors
    groups: Mapping[str, Factors]
    kernels: Mapping[Words, Factors]

    @cached_property
    def _by_identity(self) -> dict[Words, list[Words]]:
        found: dict[Words, list[Words]] = {}
        for words in self.kernels:
            found.setdefault(words[: len(IDENTITY)], []).append(words)
        return found

    def measured(self, spec: Mapping[str, Any]) -> Factors | None:
        """Return the factors of the measured kernel with the timing identity of a record's `spec`, or None if there is none.

        A kernel whose launches decide the splits has those of a persistent one if it was not measured itself.
        """
        words = identity(spec)
        exact = words[: len(IDENTITY)]
        found = self._by_identity.get(exact, [])
        if not found and spec.get("schedule") == LAUNCH:
            found = self._by_identity.get((*exact[:-1], "persistent"), [])
        if not found:
            return None
        stages, raster = words[len(IDENTITY) :]
        return self.kernels[min(found, key=lambda other: (abs(int(other[-2]) - int(stages)), other[-1] != raster))]

    def of_family(self, spec: Mapping[str, Any]) -> Factors | None:
        """Return the factors of a kernel of the family that was not measured, or None if it is of another family."""
        words = identity(spec)
        return self.groups.get(group_of(words), self.others) if words[: len(FAMILY)] == self.family else None


def group_of(words: Words) -> str:
    """Return the group of a timing identity: kernels that spend their time in a similar way."""
    its = dict(zip(IDENTITY, words))
    schedule, cooperation = its["schedule"].partition(":")[0], its["cooperation"]
    if its["copy"] != "tma":
        return its["copy"]
    if schedule == "split_k_cluster" or cooperation == "pingpong":
        return schedule if schedule == "split_k_cluster" else cooperation
    swapped = ":swap_ab" * (its["swap_ab"] == "on")
    return f"{cooperation}:{its['consumers']}{swapped}{':cluster' * (its['cluster'] != '1x1')}"


def identity(spec: Mapping[str, Any]) -> Words:
    """Return the timing identity of a record's `spec`, then the fields of NEARLY.

    It is empty if an element has another size than ELEMENT_BYTES, or sums are not accumulated in f32.
    """
    sizes = {DTYPES[spec[name]].bytes for name in ("dtype_a", "dtype_b", "dtype_d")}
    if sizes != {ELEMENT_BYTES} or spec["acc"] != ACCUMULATION:
        return ()
    return tuple(_word(spec.get(name, _DEFAULTS.get(name, "none"))) for name in (*IDENTITY, *NEARLY))


_DEFAULTS = {"form": "atoms"}
"""Words of fields that older records lack."""


def _word(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


@cache
def calibration() -> Calibration:
    """Return the calibration of the package. Raises LibraryError with the field if the file is malformed."""
    try:
        return parse_calibration(json.loads(PATH.read_text(encoding="utf-8")))
    except (Mismatch, ValueError) as error:
        raise LibraryError(f"{PATH.name}: {error}. The file is part of hgemm: reinstall hgemm.") from None


def parse_calibration(document: Any) -> Calibration:
    """Return the calibration of a document. Raises Mismatch for an invalid field."""
    _DOCUMENT(document, "")
    for name, expected in (("fields", (*IDENTITY, *NEARLY)), ("terms", TERMS)):
        if tuple(document[name]) != expected:
            raise Mismatch(f"{name} must be {', '.join(expected)}")
    kernels = {tuple(kernel["identity"]): tuple(kernel["factors"]) for kernel in document["kernels"]}
    if strange := [words for words in kernels if not words[len(IDENTITY)].isdigit()]:
        raise Mismatch(f"kernels must have a number of stages, not {strange[0][len(IDENTITY)]}")
    return Calibration(
        devices=tuple(device["name"] for device in document["devices"]),
        problems=sum(device["problems"] for device in document["devices"]),
        state=document["state"],
        fitted=document["fitted"],
        family=tuple(document["family"]),
        others=tuple(document["others"]),
        groups={one["group"]: tuple(one["factors"]) for one in document["groups"]},
        kernels=kernels,
    )


def document_of(found: Calibration, devices: Sequence[Mapping[str, Any]], source: str) -> dict[str, Any]:
    """Return a calibration as the document that `parse_calibration` reads."""
    return {
        "schema": SCHEMA,
        "source": source,
        "state": found.state,
        "fitted": found.fitted,
        "devices": list(devices),
        "fields": [*IDENTITY, *NEARLY],
        "terms": list(TERMS),
        "family": list(found.family),
        "others": list(found.others),
        "groups": [{"group": name, "factors": list(factors)} for name, factors in sorted(found.groups.items())],
        "kernels": [
            {"identity": list(words), "factors": list(factors)} for words, factors in sorted(found.kernels.items())
        ],
    }
