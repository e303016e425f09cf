"""Whether a record is that of its spec: this version plans the spec again, and compares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator import __version__
from generator.errors import LibraryError, RequestError
from hgemm.locations import regenerate_hint
from hgemm.record import Record


def deviation(record: Record) -> str:
    """Return how a record differs from the plan of its spec; "" if it does not.

    A record of another version may have another plan. It is not compared.
    """
    from generator.planner import plan_of  # imports all families, which a list of known kernels does not need
    from generator.spec import Spec

    data = record.data
    spec = data["spec"]
    if data["toolchain"]["generator"] != __version__:
        return ""
    try:
        plan = plan_of(Spec.from_dict(spec))
        planned = {
            "launch": plan.launch(),
            "traits": plan.traits(),
            "accumulation_order": plan.accumulation_order.to_dict(),
        }
    except (RequestError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"its spec cannot be planned ({error})"
    found = {"launch": _with_defaults(data["launch"]), "traits": data["traits"]}
    found["accumulation_order"] = data.get("accumulation_order", planned["accumulation_order"])  # older records lack it
    for section, values in planned.items():
        for name in values.keys() | found[section].keys():
            expected, value = values.get(name), found[section].get(name)
            if _without_zeros(expected) != _without_zeros(value):
                return f"{section}.{name} is {value}, but the plan of its spec has {expected}"
    return ""


def _with_defaults(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch whose grid says whether it is persistent. Older records leave it to the rule."""
    grid = launch["grid"]
    return {**launch, "grid": {"persistent": grid["rule"] == "persistent", **grid}}


def _without_zeros(value: Any) -> Any:
    """Return an object without fields that are 0. Older records have further ones."""
    return {name: item for name, item in value.items() if item != 0} if isinstance(value, Mapping) else value


def require_planned(record: Record, place: Path) -> None:
    """Raise LibraryError if a record, whose folder is `place`, differs from the plan of its spec."""
    if reason := deviation(record):
        raise LibraryError(f"{place}: {reason}: {regenerate_hint(place.parent)}")
