"""The constants that were fitted to measurements, as `fitted.json` has them: of each family, from where, and how well they fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from hgemm.errors import LibraryError
from hgemm.model.kernel import by_wgmma
from hgemm.model.predict import Constants
from hgemm.schema import NAME, TEXT, Mismatch, integer, map_of, number, text
from hgemm.schema import fields as document_of

PATH = Path(__file__).with_name("fitted.json")
SCHEMA = 1
FAMILIES = ("mma_sync", "wgmma")


@dataclass(frozen=True)
class Fit:
    """What was fitted for one family of kernels.

    Fields: `card` is the short name of the card of which its watts are; `problems` and `variants` are how many it is fitted to.
    Units: `median_error` and `p90_error` are of the logarithm of time over predicted time, of what is within 1.5 of the best.
    """

    constants: Constants
    card: str
    device: str
    date: str
    problems: int
    variants: int
    median_error: float
    p90_error: float


_FAMILY = document_of(
    {
        "constants": map_of(NAME, number()),
        "card": NAME,
        "device": TEXT,
        "date": text(r"\d{4}-\d\d-\d\d", "a date as 2026-11-21"),
        **dict.fromkeys(("problems", "variants"), integer(1)),
        **dict.fromkeys(("median_error", "p90_error"), number()),
    }
)
_DOCUMENT = document_of({"schema": integer(SCHEMA, SCHEMA), "source": TEXT, "families": map_of(NAME, _FAMILY)})


@cache
def fits() -> Mapping[str, Fit]:
    """Return the fit of each family. Raises LibraryError, naming the field, where the file is not as it should be."""
    try:
        return parse_fits(json.loads(PATH.read_text(encoding="utf-8")))
    except (Mismatch, ValueError) as error:
        raise LibraryError(f"{PATH.name}: {error}: it is part of hgemm, which is to be installed again") from None


def parse_fits(document: Any) -> Mapping[str, Fit]:
    """Return the fits of a document. Raises Mismatch where a field does not fit."""
    _DOCUMENT(document, "")
    found = {}
    for family in FAMILIES:
        if family not in document["families"]:
            raise Mismatch(f"families.{family} is missing")
        its = document["families"][family]
        known = {field.name for field in fields(Constants)}
        if strange := sorted(its["constants"].keys() ^ known):
            raise Mismatch(f"families.{family}.constants.{strange[0]} is missing or unknown")
        found[family] = Fit(**{**its, "constants": Constants(**its["constants"])})
    return found


def fit_of(spec: Mapping[str, Any]) -> Fit:
    """Return the fit for the family of a record's `spec`."""
    return fits()["wgmma" if by_wgmma(spec) else "mma_sync"]
