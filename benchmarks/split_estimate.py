"""Compare the estimate of launches that split k with measured times: which options it prefers, and what that loses.

    python -m benchmarks.split_estimate FILE... [--split 0.5] [--partial 1]

FILEs are those of `python -m benchmarks.catalog_choice measure`. They hold the times of several launch options of each kernel that
leaves its splits open. The loss is the time of the options with the lowest estimate over the best of the measured ones, for kernels
within 10 % of the problem's best. `--split` and `--partial` multiply the coefficients, to see whether others lose less.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from generator.planner import plan_of
from generator.spec import Spec
from generator.tuning import planned_record
from hgemm.bench.protocol import geometric_mean
from hgemm.dispatch_table import Row, launch_clocks, row_of
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Kind, LaunchOptions
from hgemm.selection_query import SelectionQuery, Target

COMPETITIVE = 1.1
"""Kernels slower than this multiple of the best one are left out: no choice among their options matters."""
LARGE_LOSS = 1.05


def row_of_spec(spec: Mapping[str, Any]) -> Row:
    record = planned_record(plan_of(Spec.from_dict(dict(spec))))
    return row_of(LaunchTraits.of(record), record)


def launches(problem: Mapping[str, Any]) -> Iterator[tuple[str, dict[LaunchOptions, float]]]:
    """Yield the symbol and the times of each kernel that was measured with several launch options and is competitive."""
    found: dict[str, dict[LaunchOptions, float]] = {}
    for label, time_us in problem["us"].items():
        symbol, at, options = label.partition("@")
        if at:
            splits, whole_tiles = map(int, options.split("/"))
            found.setdefault(symbol, {})[LaunchOptions(splits, whole_tiles)] = time_us
    limit_us = COMPETITIVE * min(problem["us"].values())
    yield from (
        (symbol, times) for symbol, times in found.items() if len(times) > 1 and min(times.values()) <= limit_us
    )


def losses(document: Mapping[str, Any], split: float, partial: float) -> list[float]:
    """Return the loss of each kernel and problem. 1 is none."""
    target, rows, found = Target.typical("sm_90"), {}, []
    for problem in document["problems"]:
        query = SelectionQuery.dense(Kind(), (*problem["extents"], 1))
        for symbol, times in launches(problem):
            if symbol not in rows:
                row = row_of_spec(document["specs"][symbol])
                clocks = {"split_clocks": row.split_clocks * split, "partial_clocks": row.partial_clocks * partial}
                rows[symbol] = replace(row, **{name: round(value) for name, value in clocks.items()})
            chosen = min(times, key=lambda one: launch_clocks(rows[symbol], query, target, one))
            found.append(times[chosen] / min(times.values()))
    return found


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--split", default=1.0, show_default=True, help="Factor of the cost of a launch with splits.")
@click.option("--partial", default=1.0, show_default=True, help="Factor of the cost of partial accumulators.")
def main(files: tuple[Path, ...], split: float, partial: float) -> None:
    for path in files:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = losses(document, split, partial)
        large = sum(loss > LARGE_LOSS for loss in found)
        click.echo(
            f"{document['device']}: {geometric_mean(found) - 1:.2%} lost in the mean, {max(found) - 1:.0%} at most, "
            f"more than {LARGE_LOSS - 1:.0%} for {large} of {len(found)}"
        )


if __name__ == "__main__":
    main()
