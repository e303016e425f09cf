"""One variant as a card for reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from generator.commands.table import cell
from generator.store.index import Measurement
from hgemm.advice import on
from hgemm.variants import Variant

_INDENT = 2
_NAME_WIDTH = 18
_MAX_MEASUREMENTS = 12
_PLANNED = ("bank_conflicts", "mma_per_tile", "mma_between_stores")
"""What a record's `proof` has before the kernel was run: as planned, and held against the machine code where that tells."""


def card(variant: Variant, measurements: list[Measurement]) -> str:
    """Write what a record says of a variant, section by section, and its fastest measurement of each problem."""
    data = variant.record.data
    launch, traits = data["launch"], data["traits"]
    heads = {"alias": data["alias"], "arch": data["arch"], "key": data["key"], "folder": str(variant.folder)}
    shown_launch = {**launch, "cluster": "x".join(map(str, launch["cluster"])), **_prefixed("grid", launch["grid"])}
    shown_traits = {
        **{name: value for name, value in traits.items() if name not in ("workspace", "min_align")},
        **_prefixed("min_align", traits["min_align"]),
        **_prefixed("workspace", traits["workspace"]),
    }
    seconds = {name: f"{value:.3f} s" for name, value in data["seconds"].items()}
    files = {name: f"{file['bytes']} B, sha256 {file['sha256'][:16]}..." for name, file in data["files"].items()}
    planned = {name: data["proof"][name] for name in _PLANNED if name in data["proof"]}
    proof = {name: value for name, value in data["proof"].items() if name not in planned}
    sections: list[tuple[str, Mapping[str, Any]]] = [
        (variant.symbol + ("  SPILLED" if data["spilled"] else ""), heads),
        ("spec", data["spec"]),
        ("launch", {name: value for name, value in shown_launch.items() if name != "grid"}),
        ("resources", data["resources"]),
        ("sass", dict(sorted(data["sass"].items(), key=lambda item: (-item[1], item[0])))),
        ("traits", shown_traits),
        ("plan", planned),
        ("proof", proof or {"none yet": f"hgemm verify --emulate{on(variant.folder.parent)}"}),
        ("toolchain", {**data["toolchain"], "options": " ".join(data["toolchain"]["options"])}),
        ("seconds", seconds),
        ("files", files),
        ("measured", _fastest(measurements)),
    ]
    return "\n".join(_section(title, values) for title, values in sections if values)


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in values.items()}


def _section(title: str, values: Mapping[str, Any]) -> str:
    width = max(_NAME_WIDTH, *map(len, values))
    lines = [f"{' ' * _INDENT}{name.ljust(width)}  {_value(value)}".rstrip() for name, value in values.items()]
    return "\n".join([title, *lines]) + "\n"


def _value(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) or value is None else cell(value)


def _fastest(measurements: list[Measurement]) -> dict[str, str]:
    """Return the fastest time of each problem, as many as fit a card, the latest problems last."""
    best: dict[str, Measurement] = {}
    for measurement in measurements:
        if measurement.problem not in best or measurement.time_us < best[measurement.problem].time_us:
            best[measurement.problem] = measurement
    shown = list(best.items())[-_MAX_MEASUREMENTS:]
    return {cell(problem): f"{one.time_us:.4g} us  {cell(one.device)}  {cell(one.date)}" for problem, one in shown}
