"""Measure what activations cost: kernels of several tiles with each activation beside the same kernel without one.

    python -m benchmarks.activation_cost measure --json activation_cost_h200.json
    python -m benchmarks.activation_cost judge activation_cost_h200.json

`measure` builds the kernels, checks each D, and times them in alternating rounds in the state `model`. Problems have whole waves
of tiles, and most of them few k-tiles, so that the epilogue matters. `judge` compares the times with those that selection estimates
for ACTIVATION_CLOCKS in hgemm/dispatch_table.py and for other values: --clocks silu 0.25 0.1.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import hgemm.dispatch_table as dispatch_table
from benchmarks.split_estimate import row_of_spec
from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import open_kernel
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import (
    BenchContext,
    KernelContender,
    OutputSample,
    lowest_estimates,
    open_context,
    open_race,
    rounds_of,
    warm_up,
)
from hgemm.bench.protocol import Protocol, Ratio, geometric_mean
from hgemm.bench.runner import heading
from hgemm.bench.work import Work
from hgemm.device import open_device
from hgemm.dispatch_table import refined_estimate
from hgemm.kernel import Kernel
from hgemm.problem import ACTIVATIONS, Kind
from hgemm.selection_query import SelectionQuery, Target

COMMON = {"arch": "sm_90a", "layout": "tn", "dtype": "f16", "schedule": "persistent", "raster": "launch"}
TILES = (
    {"tile": "64x64x64", "cooperation": "cooperative", "consumers": "1", "cluster": "2x1"},
    {"tile": "64x128x64", "cooperation": "cooperative", "consumers": "1", "cluster": "2x1"},
    {"tile": "64x128x64", "swap_ab": "on", "cluster": "2x1"},
    {"tile": "64x128x64", "cooperation": "pingpong", "cluster": "2x1"},
    {"tile": "64x256x64", "cooperation": "pingpong", "cluster": "2x1"},
    {"tile": "128x128x64", "cooperation": "pingpong", "cluster": "2x1"},
    {"tile": "128x160x64", "cooperation": "pingpong", "cluster": "2x1"},
    {"tile": "128x128x64", "cooperation": "cooperative", "cluster": "2x1"},
    {"tile": "128x192x64", "cooperation": "cooperative", "cluster": "2x1"},
    {"tile": "128x256x64", "cooperation": "cooperative", "cluster": "2x1"},
    {"tile": "256x128x64", "cooperation": "cooperative", "cluster": "2x1"},
)
WAVES_AND_K = ((1, 128), (2, 1024), (4, 4096), (4, 128), (1, 1024), (4, 1024))
SMS, GRID = 132, (12, 11)
"""Of a GPU, and the tiles of one wave."""
SEED = 1
PROTOCOL = Protocol(seconds=0.18, rounds=15, block_ms=1.0, screen_ms=1.0, warm_up_s=2.0, rewarm_s=0.08)


def build(library: Library) -> dict[str, dict[str, Kernel]]:
    """Build the kernels. Return them by the words of the tile, and by activation."""
    asked = [({**COMMON, **tile}, activation) for tile in TILES for activation in ACTIVATIONS]
    plans = [plan for tile, activation in asked for plan in sweep([{**tile, "activation": activation}]).plans]
    assert len(plans) == len(asked)
    outcomes = dict(make(plans, Settings(library, templates_folder()), processes=16))
    found: dict[str, dict[str, Kernel]] = {}
    for at, (tile, activation) in enumerate(asked):
        if outcomes[at].error:
            click.echo(f"{tile['tile']} {activation}: {outcomes[at].error}", err=True)
        else:
            name = " ".join((tile["tile"], tile.get("cooperation", "swap_ab"), tile.get("consumers", "")))
            found.setdefault(name.strip(), {})[activation] = open_kernel(library, outcomes[at].symbol)
    return {name: kernels for name, kernels in found.items() if "none" in kernels}


def timed(kernels: Mapping[str, Kernel], waves: int, k: int, context: BenchContext) -> dict[str, Any]:
    """Check and time the kernels of a tile on one problem."""
    m, n, _ = map(int, kernels["none"].record["spec"]["cta_tile"].split("x"))
    work, found = Work(GRID[0] * m, GRID[1] * waves * n, k), {}
    with open_race(work, context) as (race, own):
        race.alternate(own(context.memory_kernel(work)))
        for activation, kernel in kernels.items():
            [options] = lowest_estimates(context.device, 1, kernel, work)
            one = own(KernelContender(kernel, context.device, options))
            race.add(one)
            if one.name in race.launches and (wrong := is_wrong(race.operands, activation, race.launches[one.name][0])):
                race.reject(one.name, wrong)
            if one.name in race.launches:
                found[one.name] = activation
        from_s = warm_up(race, [*found], context, "model")
        times = {found[name]: ms for name, ms in rounds_of(race, [*found], "model").items()}
        clocks = context.telemetry.between(from_s, time.perf_counter()) or {}
        over = {name: Ratio.of(ms, times["none"]) for name, ms in times.items() if name != "none"}
        return {
            "extents": work.extents,
            "us": {name: round(statistics.median(ms) * 1e3, 3) for name, ms in times.items()},
            "over_none": {name: [one.median, one.p10, one.p90] for name, one in over.items()},
            "sm_mhz": clocks.get("sm_mhz"),
            "refused": race.rejected,
        }


def is_wrong(operands: Any, activation: str, launch: Any) -> str:
    """Return what is wrong with D of a launch, or an empty string."""
    here = copy.copy(operands)
    here.work = replace(operands.work, activation=activation)
    return OutputSample(here, SEED).failure(launch)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--library", type=click.Path(path_type=Path), default=None, help="Keep the kernels here.")
@click.option("--seconds", default=600.0, help="Leave out problems after so many seconds.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), required=True)
def measure(library: Path | None, seconds: float, json_path: Path) -> None:
    """Build the kernels and time them."""
    began = time.perf_counter()
    tiles = build(Library(library or Path(tempfile.mkdtemp())))
    click.echo(f"built the kernels in {time.perf_counter() - began:.0f} s", err=True)
    device = open_device()
    problems: list[dict[str, Any]] = []
    document = {
        **heading(PROTOCOL, SEED, device),
        "specs": {tile: kernels["none"].record["spec"] for tile, kernels in tiles.items()},
        "problems": problems,
    }
    with ExitStack() as stack:
        context = open_context(device, PROTOCOL, SEED, Watchdog(None, 60.0), stack)
        for (waves, k), (tile, kernels) in itertools.product(WAVES_AND_K, tiles.items()):
            if time.perf_counter() - began < seconds:
                problems.append({"tile": tile, "waves": waves, **timed(kernels, waves, k, context)})
                click.echo(f"{tile}, {waves} waves, k {k}: {problems[-1]['us']}, over none {problems[-1]['over_none']}")
    json_path.write_text(json.dumps(document, indent=1))
    click.echo(f"{time.perf_counter() - began:.0f} s", err=True)


# ---- Judge ----


def ratios(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float, float]]:
    """Yield tile, problem and activation, and the time over that without one: as measured, and as estimated."""
    target = Target.typical("sm_90", SMS)
    for problem in document["problems"]:
        query, spec = SelectionQuery.dense(Kind(), tuple(problem["extents"])), document["specs"][problem["tile"]]
        clocks = {
            name: refined_estimate(row_of_spec({**spec, "activation": name}), query, target) for name in problem["us"]
        }
        title = f"{problem['waves']} waves, k {problem['extents'][2]}"
        for name in problem["over_none"]:
            measured = problem["us"][name] / problem["us"]["none"]
            yield problem["tile"], title, name, measured, clocks[name] / clocks["none"]


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--clocks",
    multiple=True,
    type=(click.Choice(ACTIVATIONS[1:]), float, float),
    metavar="ACTIVATION X Y",
    help="Estimate with these values of ACTIVATION_CLOCKS.",
)
@click.option("--least-k", default=0, metavar="N", help="Only problems with at least this k.")
def judge(file: Path, clocks: tuple[tuple[str, float, float], ...], least_k: int) -> None:
    """Compare measured times with estimates."""
    dispatch_table.ACTIVATION_CLOCKS |= {name: (single, several) for name, single, several in clocks}
    document = json.loads(file.read_text(encoding="utf-8"))
    document["problems"] = [one for one in document["problems"] if one["extents"][2] >= least_k]
    errors: dict[str, list[float]] = {}
    for tile, title, name, measured, estimated in ratios(document):
        errors.setdefault(name, []).append(measured / estimated)
        click.echo(f"{tile}, {title}, {name}: {measured:.3f} measured, {estimated:.3f} estimated")
    for name, found in errors.items():
        distance = math.sqrt(statistics.fmean(math.log(one) ** 2 for one in found))
        click.echo(
            f"{name}: measured over estimated {geometric_mean(found):.4f} in the mean, {min(found):.3f} to {max(found):.3f}, "
            f"root mean square of the logarithm {distance:.4f}"
        )


if __name__ == "__main__":
    main()
