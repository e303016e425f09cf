"""What `hgemm ladder --keep` wrote, read again: checked, and whole where an older version had fields fewer."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generator.errors import LibraryError, RequestError
from hgemm.bench.work import WORK
from hgemm.schema import TEXT, Mismatch, boolean, either, fields, list_of, map_of, number, plain

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
