"""Calibration of the estimates of selection: what measurements of many kernels on some GPUs say about each kernel.

`calibrated.json` ships with the package, so that a library that nobody tuned selects well. Each kernel has a timing identity: the
fields of a spec that determine its time. Types of 2 bytes, bias and beta are not among them, so one measured kernel serves
many kernels. In another layout than tn, a kernel has own factors if it was measured there. Else it has those of tn, corrected for
operands that the TMA copies in short rows. benchmarks/calibration.py writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgemm.checks import NAME, TEXT, Mismatch, fields, integer, list_of, text
from hgemm.dtypes import DTYPES
from hgemm.errors import LibraryError
from hgemm.model.trees import BOUND_LIMIT, FEATURES, Forest, Tree, numbers_of, parse_tree
from hgemm.problem import LAUNCH, LAYOUTS
from hgemm.tensor_maps import LoadBoxes

if TYPE_CHECKING:
    import numpy as np

PATH = Path(__file__).with_name("calibrated.json")
SCHEMA = 6

IDENTITY = ("arch", "form", "copy", "mma", "cta_tile", "consumers", "cooperation", "cluster", "swap_ab", "schedule")
"""Fields of a spec that must agree."""
NEARLY = ("stages", "raster")
"""Fields of a spec that may differ. Of several measured kernels, the one with the nearest number of stages counts."""
FAMILY = IDENTITY[:3]
"""Fields that kernels of one family share. A kernel of the family that was not measured has the factors of its group."""
LAYOUT = "tn"
"""The layout of most measurements."""
SPANS = (128, 64, 32)
"""Bytes of a row that the TMA writes to shared memory, by the contiguous extent of a tile: see `LoadBoxes`."""
ELEMENT_BYTES = 2
ACCUMULATION = "f32"

TERMS = ("k_tile", "tile", "launch", "dram", "l2", "straddling", "dram_start", "split", "partial")
"""The terms of an estimate that have a factor. See hgemm.dispatch_table.Clocks."""
ONE = 1000
"""A factor of 1."""
WAVE_BOUNDS = (35, 50, 60, 70, 80, 90, 96, 100, 110, 125, 140, 160, 180, 200, 220, 250, 300, 400, 600)
"""Waves of CTAs beyond which the next factor of `Calibration.waves` applies. Units: percent."""
WAVE_CLASSES = 13
"""Classes of kernels that have such factors of their own: see `wave_class`."""
DRAM_GBYTES_PER_S = 4060
"""The speed of DRAM that the calibration's factors apply to: the geometric mean of those of the measured GPUs."""

# ==== The file ====

_WORD = text(r"[a-z0-9_:]{1,40}", "a word of a spec")
_LAYOUT = text("|".join(LAYOUTS), "a layout")
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
_KERNEL = fields(
    {"identity": list_of(_WORD, len(IDENTITY) + len(NEARLY)), "factors": _FACTORS}, optional={"layout": _LAYOUT}
)
_GROUP = fields({"group": _WORD, "factors": _FACTORS})
_SPAN = fields({"bytes": integer(min(SPANS), max(SPANS)), "factors": _FACTORS})
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
        "spans": list_of(_SPAN),
        "waves": list_of(list_of(integer(ONE // 2, 2 * ONE), len(WAVE_BOUNDS) + 1), WAVE_CLASSES),
        "kernels": list_of(_KERNEL),
        "features": list_of(NAME),
        "trees": list_of(list_of(integer(-BOUND_LIMIT, BOUND_LIMIT))),
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
        model's constants that the factors apply to. `kernels` holds the factors by timing identity, the fields of NEARLY and the
        layout. Other kernels of the `family` have those of their group in `groups`, or `others` if no kernel of the group was
        measured. Where a kernel was not measured in its layout, `spans` has factors besides, by the bytes of a TMA row. `waves`
        has factors of the time of the SMs by the class of a kernel and the waves of its CTAs, or, without TMA, factors of the SMs
        and memory by the rows of tiles. `trees` refine whole estimates, by problem and kernel: see hgemm.model.trees.
    """

    devices: tuple[str, ...]
    problems: int
    state: str
    fitted: str
    family: Words
    others: Factors
    groups: Mapping[str, Factors]
    spans: Mapping[int, Factors]
    kernels: Mapping[tuple[Words, str], Factors]
    waves: tuple[Factors, ...] = ()
    trees: tuple[Tree, ...] = ()

    @cached_property
    def wave_array(self) -> np.ndarray:
        """The factors `waves`. Shapes: (class, waves)."""
        import numpy as np

        return np.array(self.waves)

    @cached_property
    def forest(self) -> Forest:
        """The trees as arrays."""
        return Forest.of(self.trees)

    @cached_property
    def _by_identity(self) -> dict[Words, list[tuple[Words, str]]]:
        found: dict[Words, list[tuple[Words, str]]] = {}
        for words, layout in self.kernels:
            found.setdefault(words[: len(IDENTITY)], []).append((words, layout))
        return found

    def measured(self, spec: Mapping[str, Any]) -> Factors | None:
        """Return the factors of the measured kernel with the timing identity of a record's `spec`, or None if there is none.

        A kernel whose launches decide the splits has those of a persistent one if it was not measured itself.
        """
        words, layout = identity(spec), spec["layout"]
        exact = words[: len(IDENTITY)]
        tries = [exact]
        if spec.get("schedule") == LAUNCH:
            tries.append((*exact[:-1], "persistent"))
        found = self._first(tries, layout)
        if exact[:1] == ("sm_90a",):  # without wgmma, the code for sm_90 is the same
            same = self._first([("sm_90", *one[1:]) for one in tries], layout)
            if not found or (layout in {one[1] for one in same} and layout not in {one[1] for one in found}):
                found = same
        if not found:
            return None
        stages, raster = words[len(IDENTITY) :]

        def distance(other: tuple[Words, str]) -> tuple[int, bool, bool]:
            return abs(int(other[0][-2]) - int(stages)), other[1] != layout, other[0][-1] != raster

        nearest = min(found, key=distance)
        return self.kernels[nearest] if nearest[1] == layout else self._spanned(self.kernels[nearest], words, layout)

    def _first(self, tries: Sequence[Words], layout: str) -> list[tuple[Words, str]]:
        """Return the measured kernels of the first timing identity that was measured: those in `layout` and in LAYOUT."""
        found = next((self._by_identity[one] for one in tries if one in self._by_identity), [])
        return [one for one in found if one[1] in (layout, LAYOUT)]

    def of_family(self, spec: Mapping[str, Any]) -> Factors | None:
        """Return the factors of a kernel of the family that was not measured, or None if it is of another family."""
        words = identity(spec)
        if words[: len(FAMILY)] != self.family:
            return None
        return self._spanned(self.groups.get(group_of(words), self.others), words, spec["layout"])

    def of_gpu(self, spec: Mapping[str, Any]) -> Factors:
        """Return the factors of a kernel that is not calibrated: DRAM is as fast for it as for others on the measured GPUs."""
        is_measured = bool(self.family) and str(spec["arch"]).rstrip("a") == self.family[0].rstrip("a")
        return tuple(self.others[TERMS.index(term)] if term == "dram" and is_measured else ONE for term in TERMS)

    def _spanned(self, factors: Factors, words: Words, layout: str) -> Factors:
        more = self.spans.get(span_of(words, layout))
        return tuple(max(1, round(x * y / ONE)) for x, y in zip(factors, more, strict=True)) if more else factors


def wave_class(tensor_maps: int, cluster_ctas: int, decides_splits: int, splits: int) -> int:
    """Return the class of a kernel in `Calibration.waves`: by its clusters, and by what splits k, if anything does.

    Kernels that do not copy by the TMA are in the last class, where the rows of tiles count instead of waves.
    Its factors are 1 or more: the C library relies on it where it stops early. The numbers may be arrays.
    """
    of_splits = decides_splits + 2 * (1 - decides_splits) * (splits > 1)
    with_tma = 4 * of_splits + (cluster_ctas > 1) + (cluster_ctas > 2) + (cluster_ctas > 4)
    return tensor_maps * with_tma + (1 - tensor_maps) * (WAVE_CLASSES - 1)


def span_of(words: Words, layout: str) -> int:
    """Return the bytes of the shortest rows that the TMA copies for a kernel. They may be less than 128 if m or n is contiguous.

    Rows of 16 bytes count as 32.
    """
    its = dict(zip(IDENTITY, words))
    if its["copy"] != "tma":
        return SPANS[0]
    m, n, k = map(int, its["cta_tile"].split("x"))
    extents = [m] * (layout[0] == "n") + [n] * (layout[1] == "t")
    rows = (LoadBoxes(False, one, k, 1, ELEMENT_BYTES, padded=True, edges=True).row_bytes for one in extents)
    return max(SPANS[-1], min(rows, default=SPANS[0]))


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
    for name, expected in (("fields", (*IDENTITY, *NEARLY)), ("terms", TERMS), ("features", FEATURES)):
        if tuple(document[name]) != expected:
            raise Mismatch(f"{name} must be {', '.join(expected)}")
    kernels = {
        (tuple(kernel["identity"]), kernel.get("layout", LAYOUT)): tuple(kernel["factors"])
        for kernel in document["kernels"]
    }
    if strange := [words for words, _ in kernels if not words[len(IDENTITY)].isdigit()]:
        raise Mismatch(f"kernels must have a number of stages, not {strange[0][len(IDENTITY)]}")
    return Calibration(
        devices=tuple(device["name"] for device in document["devices"]),
        problems=sum(device["problems"] for device in document["devices"]),
        state=document["state"],
        fitted=document["fitted"],
        family=tuple(document["family"]),
        others=tuple(document["others"]),
        groups={one["group"]: tuple(one["factors"]) for one in document["groups"]},
        spans={one["bytes"]: tuple(one["factors"]) for one in document["spans"]},
        kernels=kernels,
        waves=tuple(tuple(factors) for factors in document["waves"]),
        trees=tuple(map(parse_tree, document["trees"])),
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
        "spans": [{"bytes": span, "factors": list(factors)} for span, factors in sorted(found.spans.items())],
        "waves": [list(factors) for factors in found.waves],
        "kernels": [
            {"identity": list(words), **({} if layout == LAYOUT else {"layout": layout}), "factors": list(factors)}
            for (words, layout), factors in sorted(found.kernels.items())
        ],
        "features": list(FEATURES),
        "trees": [numbers_of(tree) for tree in found.trees],
    }
