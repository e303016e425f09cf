"""Condense result files into summaries that are small enough to commit.

\b
    hgemm bench --suite public --keep build/bench.json
    python -m benchmarks.condense build/bench.json --to benchmarks/data

The input is what `hgemm bench --keep` or `benchmarks/device_verify.py` wrote. A summary keeps the device, the date, the protocol,
and one short row per figure. It drops screening times, cases that passed, and specs.
`hgemm report --bench` still reads a condensed file of `hgemm bench`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

WIDTH = 250
"""Columns of a row. A list of numbers is one row whatever its length: a matrix has one row per line."""


def rows(value: Any, indent: int = 0, lead: int = 0, width: int = WIDTH) -> str:
    """Return `value` as JSON: what fits in `width` columns behind `lead` characters is one line, and short values share lines."""
    flat = json.dumps(value, ensure_ascii=False)
    numbers = isinstance(value, list) and all(type(one) in (int, float) for one in value)
    if not isinstance(value, dict | list) or numbers or indent + lead + len(flat) <= width:
        return flat
    named = isinstance(value, dict)
    table = named and all(isinstance(one, dict) for one in value.values())
    lines: list[str] = []
    room = False
    for name, one in value.items() if named else enumerate(value):
        key = f"{json.dumps(name, ensure_ascii=False)}: " if named else ""
        text = key + rows(one, indent + 1, len(key), width)
        joins = not isinstance(one, dict | list) or (named and not table and len(text) <= width // 2)
        if joins and room and indent + len(lines[-1]) + len(text) + 4 <= width:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
        room = joins
    opening, closing = "{}" if named else "[]"
    inside = (",\n" + " " * (indent + 1)).join(lines)
    return f"{opening}\n{' ' * (indent + 1)}{inside}\n{' ' * indent}{closing}"


def rounded(value: Any, digits: int = 4) -> Any:
    """Return `value` with every float rounded to `digits` significant digits behind the point."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(one, digits) for key, one in value.items()}
    return [rounded(one, digits) for one in value] if isinstance(value, list) else value


def bench(document: Mapping[str, Any]) -> dict[str, Any]:
    """Condense what `hgemm bench --keep` wrote: of each problem our figures, the baseline's first and best, clock and power."""
    head = {key: one for key, one in document.items() if key not in ("kernels", "variants", "results", "hung", "lost")}
    return rounded({**head, "results": [_result(one) for one in document["results"]]})


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("work", "state", "refused", "rejected", "ours", "first", "best", "ratio_first", "ratio_best", "memory")
    telemetry = {key: result.get("telemetry", {}).get(key) for key in ("sm_mhz", "power_w", "limited_by")}
    alone = {
        name: {key: one[key] for key in ("sm_mhz", "power_w")} for name, one in result.get("alone", {}).items() if one
    }
    figures = {
        name: {**figure, **alone.get(name, {})}
        for name, figure in result.get("figures", {}).items()
        if name.startswith("hgemm_") or name in (result.get("first"), result.get("best"))
    }
    found = {key: result[key] for key in kept if result.get(key)}
    if result.get("telemetry"):
        found["telemetry"] = telemetry
    if result.get("turns_us"):
        found["turns_us"] = result["turns_us"]
    return {**found, "figures": figures}


def verification(document: Mapping[str, Any]) -> dict[str, Any]:
    """Condense what `device_verify.py` wrote: a row per kernel, and every case that failed."""
    tools = any("tool" in one for one in document["results"])
    return {
        **{key: one for key, one in document.items() if key != "results"},
        "results": _tools(document["results"]) if tools else [_kernel_row(one) for one in document["results"]],
    }


def _kernel_row(result: Mapping[str, Any]) -> dict[str, Any]:
    checks = result["checks"]
    row = {
        "symbol": result["symbol"],
        "cases": len(checks),
        "passed": sum(one["passed"] for one in checks),
        "worst_error_over_bound": round(max((one["max_bound_ratio"] for one in checks), default=0.0), 4),
        "seconds": round(result["seconds"], 2),
    }
    failed = [one for one in checks if not one["passed"]]
    extra = {"failed": failed, "skipped": result.get("skipped"), "error": result.get("error")}
    return {**row, **{key: one for key, one in extra.items() if one}}


def _tools(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in results:
        row = found.setdefault(one["symbol"], {"symbol": one["symbol"], "clean": []})
        if one["clean"]:
            row["clean"].append(one["tool"])
        else:
            row.setdefault("not_clean", {})[one["tool"]] = one["summary"]
        row["cases"] = max(row.get("cases", 0), len(one.get("checks", ())))
    return list(found.values())


def condense(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a document. Raises ClickException if its kind is unknown."""
    results = document.get("results")
    if not isinstance(results, list) or not results:
        raise click.ClickException(
            "the document has no results: name a file of `hgemm bench --keep` or device_verify.py"
        )
    return bench(document) if "work" in results[0] else verification(document)


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("benchmarks/data"))
def main(files: tuple[Path, ...], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        summary = rows(condense(json.loads(path.read_text(encoding="utf-8")))) + "\n"
        (folder / path.name).write_text(summary, encoding="utf-8")
        click.echo(f"{folder / path.name}: {summary.count(chr(10))} lines")


if __name__ == "__main__":
    main()
