"""Measure what a value costs that each launch decides: kernels with schedule, raster or bias `launch` beside constant ones.

    python -m benchmarks.launch_cost --json launch_cost_h100.json

It builds the kernels, checks each D against float64, and times them in alternating rounds. A ratio is the time of the constant
kernel over that of the other: 1.01 means that the other is 1 % faster.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import open_kernel
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import KernelContender, OutputSample, open_context, open_race
from hgemm.bench.operands import Operands
from hgemm.bench.protocol import Protocol, Ratio, round_times
from hgemm.bench.work import Work
from hgemm.device import open_device
from hgemm.problem import LaunchOptions, Problem

WGMMA, MMA_SYNC = {"arch": "sm_90a"}, {"arch": "sm_90", "mma": "m16n8k16", "copy": "cp_async"}
TILES = {
    "128x256x64 cooperative": {**WGMMA, "tile": "128x256x64", "cluster": "2x1"},
    "128x128x64 pingpong": {**WGMMA, "tile": "128x128x64", "cooperation": "pingpong", "cluster": "2x1"},
    "64x256x64 pingpong": {**WGMMA, "tile": "64x256x64", "cooperation": "pingpong"},
    "16x128x64 swap_ab": {**WGMMA, "tile": "16x128x64", "swap_ab": "on"},
    "64x128x64 swap_ab": {**WGMMA, "tile": "64x128x64", "swap_ab": "on"},
    "mma.sync 128x128x32": {**MMA_SYNC, "tile": "128x128x32"},
    "mma.sync 64x64x64": {**MMA_SYNC, "tile": "64x64x64"},
}
LAUNCH = {"schedule": "launch"}
TAIL = 132
"""CTA tiles of a full wave on an H100 or H200. Contest `tail` splits those that follow."""
ALL = {"schedule": "launch", "raster": "launch", "bias": "launch"}
WHOLE = LaunchOptions(1)
"""The raster is that of the constant kernel: see `_raster`."""


@dataclass(frozen=True)
class Contest:
    """Kernels on the same problems: fields of each one's spec, its launch options, and whether there is a bias."""

    name: str
    kernels: dict[str, tuple[dict[str, str], LaunchOptions | None]]
    bias: bool = False


CONTESTS = (
    Contest(
        "no bias",
        {
            "constant": ({}, None),
            "schedule": (LAUNCH, WHOLE),
            "raster": ({"raster": "launch"}, WHOLE),
            "bias": ({"bias": "launch"}, None),
            "all": (ALL, WHOLE),
        },
    ),
    Contest(
        "bias",
        {"constant": ({"bias": "row"}, None), "bias": ({"bias": "launch"}, None), "all": (ALL, WHOLE)},
        bias=True,
    ),
    Contest("2 splits", {"constant": ({"schedule": "split_k:2"}, None), "all": (ALL, LaunchOptions(2))}),
    Contest(
        "tail",
        {
            "constant": ({}, None),
            "stream_k": ({"schedule": "stream_k"}, None),
            **{f"{splits} splits": (ALL, LaunchOptions(splits, whole_tiles=TAIL)) for splits in (2, 3, 4, 6)},
        },
    ),
)


def problems(tile: str, contest: str) -> Iterator[tuple[str, Work]]:
    """Yield problems of whole waves and with a tail, with small and large k."""
    m, n, _ = map(int, TILES[tile]["tile"].split("x"))
    few = TILES[tile].get("swap_ab") == "on"
    per_sm = 4 if "64x64x64" in tile else 2 if "sync" in tile else 1
    whole = (m, 132 * n) if few else (12 * per_sm * m, 11 * n)
    tail = (m, 169 * n) if few else (13 * per_sm * m, 13 * n)
    if contest == "2 splits":
        whole = (m, 66 * n) if few else (6 * per_sm * m, 11 * n)
        yield "half a wave, k 4096", Work(*whole, 4096)
        return
    if contest == "tail":
        for waves, (down, across) in {"1.06": (14, 10), "1.28": (13, 13), "1.5": (18, 11), "2.1": (23, 12)}.items():
            if "sync" not in tile:
                yield f"{waves} waves, k 4096", Work(*((m, down * across * n) if few else (down * m, across * n)), 4096)
        return
    for k in (512, 4096):
        yield f"whole waves, k {k}", Work(*whole, k)
        yield f"1.28 waves, k {k}", Work(*tail, k)


@dataclass
class Pinned(KernelContender):
    """A kernel with the options of its launch, a bias if wanted, and a name of its own."""

    label: str = ""
    bias: int = 0

    @property
    def name(self) -> str:
        return self.label

    def problem(self, operands: Operands, at: int) -> Problem:
        problem = super().problem(operands, at)
        return replace(problem, bias=self.bias, bias_kind="row") if self.bias else problem


def build(library: Library) -> dict[tuple[str, str, str], str]:
    """Build all kernels. Return their symbols by tile, contest and label."""
    wanted, plans = {}, {}
    for tile, base in TILES.items():
        for contest in CONTESTS:
            for label, (fields, _) in contest.kernels.items():
                for plan in sweep([{**base, **fields}]).plans:  # none if the combination is illegal
                    wanted[tile, contest.name, label] = plan
                    plans[plan.spec] = plan
    settings = Settings(library, templates_folder())
    distinct = [*plans.values()]
    symbols = {}
    for at, outcome in make(distinct, settings, processes=16):
        symbols[distinct[at].spec] = outcome.symbol
        if outcome.error:
            click.echo(f"{distinct[at].spec.cta_tile} {distinct[at].spec.schedule}: {outcome.error}", err=True)
    return {key: symbols[plan.spec] for key, plan in wanted.items()}


def _raster(kernel: Any, constant: Any) -> int:
    """Return the raster of the constant kernel in the units of LaunchOptions."""
    kind, _, size = str(constant.record["spec"]["raster"]).partition(":")
    return max(1, int(size) // kernel.traits.cluster_shape[0]) if kind == "group" else 1


@click.command(help=__doc__)
@click.option("--library", type=click.Path(path_type=Path), default=None, help="Keep the kernels here.")
@click.option("--tiles", default="", help="Only tiles with this word in the name.")
@click.option("--seconds", default=0.6, help="Seconds of each contest on each problem.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None)
def main(library: Path | None, tiles: str, seconds: float, json_path: Path | None) -> None:
    began = time.perf_counter()
    store = Library(library or Path(tempfile.mkdtemp()))
    symbols = build(store)
    click.echo(f"built {len(set(symbols.values()))} kernels in {time.perf_counter() - began:.0f} s", err=True)
    device = open_device()
    protocol = Protocol(seconds=seconds, rounds=9, burst_rounds=3, cool_down_s=0.25, rewarm_s=0.2, warm_up_s=2.0)
    results = []
    with ExitStack() as stack:
        context = open_context(device, protocol, 1, Watchdog(None, 120.0), stack)
        bias = device.allocate(1 << 20)
        context.stream.fill(bias, 0, 1 << 20)
        for tile, contest in ((tile, contest) for tile in TILES if tiles in tile for contest in CONTESTS):
            here = {label: symbols.get((tile, contest.name, label), "") for label in contest.kernels}
            if not all(here.values()):
                continue
            kernels = {label: open_kernel(store, symbol) for label, symbol in here.items()}
            tile_m, tile_n, _ = map(int, TILES[tile]["tile"].split("x"))
            for title, work in problems(tile, contest.name):
                states = ("steady", "burst") if title == "1.28 waves, k 4096" else ("steady",)
                with open_race(work, context) as (race, own):
                    sample = OutputSample(race.operands, 1)
                    for label, (_, options) in contest.kernels.items():
                        if options:
                            raster = _raster(kernels[label], kernels["constant"])
                            whole = work.m * work.n // (tile_m * tile_n) // 132 * 132 if options.whole_tiles else 0
                            cluster = kernels[label].traits.cluster_ctas
                            options = replace(options, raster_tiles=raster, whole_tiles=whole // cluster)
                        pinned = Pinned(
                            kernels[label], device, label=label, options=options, bias=contest.bias and bias
                        )
                        race.add(own(pinned))
                        if label in race.launches and (wrong := sample.failure(race.launches[label][0])):
                            race.reject(label, wrong)
                    names = [*race.launches]
                    for state in states if "constant" in names else ():
                        race.prepare(names, protocol.burst_rounds if state == "burst" else protocol.rounds)
                        if state == "steady":
                            race.load(names, protocol.rewarm_s if context.warm else protocol.warm_up_s)
                            context.warm = True
                        times = round_times(race.steady(names) if state == "steady" else race.burst(names))
                        own_us = sorted(times["constant"])[len(times["constant"]) // 2] * 1e3
                        found = {name: Ratio.of(times["constant"], times[name]) for name in names if name != "constant"}
                        results.append(
                            {
                                **{"tile": tile, "contest": contest.name, "problem": title, "state": state},
                                **{"extents": work.extents, "constant_us": round(own_us, 2)},
                                "ratios": {name: [one.median, one.p10, one.p90] for name, one in found.items()},
                            }
                        )
                        shown = ", ".join(
                            f"{name} {one.median:.3f} (+-{one.spread:.3f})" for name, one in found.items()
                        )
                        click.echo(f"{tile}, {contest.name}, {title}, {state}: {own_us:.1f} us; {shown}")
                    for name, why in race.rejected.items():
                        click.echo(f"{tile}, {contest.name}, {title}: {name} is left out: {why}", err=True)
    click.echo(f"{time.perf_counter() - began:.0f} s", err=True)
    if json_path:
        json_path.write_text(json.dumps({"device": device.name, "results": results}, indent=1))


if __name__ == "__main__":
    main()
