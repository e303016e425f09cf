"""Draw random legal specs: check them on the CPU, or compile them to test the estimate of registers.

\b
    python -m benchmarks.random_specs prove --seed 1 --count 200 -j 2
    python -m benchmarks.random_specs prove --family wgmma --seed 1 --count 200 --json FILE
    python -m benchmarks.random_specs registers --family wgmma --seconds 300 --processes 2

The same seed draws the same specs. Neither command needs a GPU.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import click

from generator.arch import ARCHS
from generator.build.compile import compile_kernel, versions
from generator.build.emit import emit
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import headers, templates_folder
from generator.device_check import CheckOutcome, outcome_line, outcome_summary
from generator.errors import RequestError
from generator.families.base import Plan
from generator.families.mma_sync.rules import warp_extents
from generator.families.wgmma.rules import TILE_M, consumers_of
from generator.planner import broken_rules, plan_of, resolve, violations
from generator.proof.jobs import ProofSource, host_toolchain, prove_texts
from generator.spec import DTYPE_BYTES, Cluster, Raster, Request, Schedule, Smem, Tile, WarpTile, parse_field
from generator.sweep import sweep
from hgemm.problem import LAUNCH

FOLDER = Path(__file__).resolve().parent / "data"
ASYNCHRONOUS = [name for name, arch in ARCHS.items() if arch.has_cp_async]
REGISTER_COPY = ["sm_75", "sm_75", *ASYNCHRONOUS[::3]]
WITH_TMA = [name for name, arch in ARCHS.items() if arch.has_tma]
SCHEDULES = (
    "one_tile persistent persistent split_k:3 split_k_cluster:2 split_k_cluster:4 split_k_cluster:8 stream_k stream_k launch launch"
).split()
NEAR = range(-40, 60)
"""A spec is near the limit if the limit minus the estimate is in this range. Units: registers."""
SAMPLES = ("near", "even", "near", "even", "near")
TIMEOUT_S = 300.0
FIELDS = (
    "arch",
    "copy",
    "prefetch",
    "layout",
    "acc",
    "dtype_a",
    "dtype_d",
    "stages",
    "cooperation",
    "cluster",
    "schedule",
    "store",
    "bias",
    "activation",
)
"""Fields whose values the summary counts."""
_PLACEMENTS = [
    Smem.parse(text)
    for text in "none pad:8 pad:24 pad_alternate:8 xor:1,3,3 xor:2,3,3 xor:3,3,3 xor:3,3,4 xor:2,4,5".split()
]


# ---- Registers: accepted and rejected specs, compiled ----------------------------------------------------------------


def draw(source: random.Random, register_copy: bool = False, **fields: str) -> Plan:
    """Return the plan of a random spec on mma.sync with the given fields. It breaks no rule, except maybe that of registers."""
    return _draw(lambda: _request(source) | (_register_copy(source) if register_copy else {}) | fields)


def draw_tma(source: random.Random) -> Plan:
    """Return the same for mma.sync with copies by TMA."""
    return _draw(lambda: {**_request(source), **_tma(source)})


def draw_large_wgmma(source: random.Random) -> Plan:
    """Return the same for wgmma, with tiles of every size."""
    return _draw(lambda: _wgmma(source))


def _draw(request: Callable[[], Request]) -> Plan:
    while True:
        plan = plan_of(resolve(request()))
        if broken_rules(plan).keys() <= {"registers"}:
            return plan


def _request(source: random.Random) -> dict:
    one_of = source.choice
    extents = [16 * i for i in range(1, 17)] if source.random() < 0.5 else [64, 96, 128, 192, 256]
    tile = Tile(one_of(extents), one_of(extents), one_of([16, 32, 32, 48, 64, 64]))
    acc = one_of(["f32", "f32", "f16", "f16_promoted"])
    dtype = one_of(["f16", "f16", "bf16"]) if acc == "f32" else "f16"
    dtype_d = one_of([dtype, dtype, "f32"])
    stages = one_of([1, 2, 3, 3, 4, 4, 5])
    return {
        "arch": one_of(ASYNCHRONOUS),
        "dtype_a": dtype,
        "acc": acc,
        "dtype_d": dtype_d,
        "layout": one_of(["tn", "nn", "nt", "tt"]),
        "cta_tile": tile,
        "warp_tile": WarpTile(one_of(warp_extents(tile.m, 16)), one_of(warp_extents(tile.n, 8))),
        "mma": one_of(["m16n8k16", "m16n8k16", "m16n8k16", "m16n8k8"]),
        "stages": stages,
        "fragment_stages": one_of([1, 2]) if stages > 1 else 1,
        "mma_order": one_of(["row", "zigzag"]),
        "raster": one_of(
            [Raster("row"), Raster("column"), Raster("group", 8), Raster("panel", 2 * tile.n), Raster(LAUNCH)]
        ),
        "schedule": one_of(
            [
                *(Schedule(kind) for kind in ("one_tile", "one_tile", "persistent", "stream_k", LAUNCH)),
                Schedule("split_k", 4),
            ]
        ),
        "ctas_per_sm": one_of([1, 1, 2, 3]),
        "beta": one_of([True, False]),
        "bias": one_of(["none", "none", "row", "column", LAUNCH]),
        "activation": one_of(["none", "none", "relu", "gelu", "silu"]),
        "store": one_of(["smem", "smem", "direct"]),
        "align_a": one_of([8, 8, 8, 4, 2, 1]),
        "align_b": one_of([8, 8, 8, 4, 2, 1]),
        "align_d": min(one_of([8, 8, 4, 2, 1]), 4 if dtype_d == "f32" else 8),
    }


def _register_copy(source: random.Random) -> dict:
    arch, stages = source.choice(REGISTER_COPY), source.choice([1, 2, 2, 2])
    plain = {"dtype_a": "f16", "dtype_d": "f16", "mma": "m16n8k8"} if arch == "sm_75" else {}
    ahead = source.choice([1, 2]) if stages == 2 else 1
    copy = source.choice(["ldg_sts", "ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned", "ldg_sts_unaligned"])
    prefetch = stages == 2 or source.choice([True, False])
    return {"arch": arch, "copy": copy, "stages": stages, "fragment_stages": ahead, "prefetch": prefetch, **plain}


def _tma(source: random.Random) -> dict:
    one_of = source.choice
    aligns = {name: 8 for name in ("align_a", "align_b")}
    return {"arch": one_of(WITH_TMA), "copy": "tma", "stages": one_of([2, 2, 3, 4]), **aligns}


def _copied_wgmma(source: random.Random) -> Request:
    aligns = {name: source.choice([2, 4, 8]) for name in ("align_a", "align_b")}
    return {"copy": "cp_async", "cluster": Cluster(1, 1), **aligns}


def _wgmma(source: random.Random) -> Request:
    one_of = source.choice
    m, n, k = (
        one_of(TILE_M),
        one_of([8 * source.randint(1, 32), one_of([64, 128, 160, 192, 256])]),
        one_of([32, 64, 64, 128]),
    )
    cooperation, consumers = one_of(consumers_of(m))
    dtype, acc = one_of([("f16", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
    swap_ab, schedule = source.random() < 0.25, one_of(SCHEDULES)
    dtype_d = one_of([dtype, dtype, "f32"])
    store = one_of(["tma", "tma", "direct"])
    return {
        "arch": "sm_90a",
        "mma": "wgmma",
        "cta_tile": Tile(n, m, k) if swap_ab else Tile(m, n, k),
        "swap_ab": swap_ab,
        "cooperation": cooperation,
        "consumers": consumers,
        "ctas_per_sm": one_of([1, 1, 1, 1, 2]),
        "dtype_a": dtype,
        "acc": acc,
        "dtype_d": dtype_d,
        "layout": one_of(["tn", "nn", "nt", "tt"]),
        "cluster": one_of([Cluster(1, 1), Cluster(1, 1), Cluster(2, 1), Cluster(1, 2), Cluster(2, 2)]),
        "raster": one_of([Raster("row"), Raster("column"), Raster("group", 8), Raster(LAUNCH), Raster(LAUNCH)]),
        "schedule": parse_field("schedule", schedule),
        "beta": one_of([True, False]),
        "bias": one_of(["none", "none", "row", "column", LAUNCH]),
        "activation": one_of(["none", "none", "none", "relu", "gelu", "silu"]),
        "store": store,
        "align_d": one_of([8, 2, 1]) if store == "direct" else 16 // DTYPE_BYTES[dtype_d],
        **(_copied_wgmma(source) if source.random() < 0.15 else {}),
    }


def measure(plan: Plan) -> dict:
    """Compile the kernel of a plan. Return the registers and spills of ptxas, and the estimate."""
    templates = templates_folder()
    kernel = emit(plan, templates)
    report = parse_ptxas_log(compile_kernel(kernel, headers(kernel.entry_header, templates)).ptxas_log)[kernel.symbol]
    return {
        "symbol": kernel.symbol,
        "accumulators": plan.accumulator_registers,
        "estimate": plan.needed_registers,
        "limit": plan.max_registers,
        "used": report.registers,
        "spill_bytes": report.spill_bytes,
    }


REGISTER_DRAWS: dict[str, Callable[[random.Random], Plan]] = {
    "mma.sync": draw,
    "register_copy": partial(draw, register_copy=True),
    "mma.sync_tma": draw_tma,
    "wgmma": draw_large_wgmma,
}
"""How to draw a plan that breaks no rule, except maybe that of registers."""


def near_limit(plan: Plan) -> bool:
    return plan.max_registers - plan.needed_registers in NEAR


def sample(seed: int, seconds: float, family: str) -> list[dict]:
    """Measure random plans until the time is up: some evenly drawn, some near the limit."""
    source, rows, end = random.Random(seed), [], time.monotonic() + seconds
    plans = iter(partial(REGISTER_DRAWS[family], source), None)
    while time.monotonic() < end:
        for name in SAMPLES:
            plan = next(plans if name == "even" else filter(near_limit, plans))
            rows.append({"sample": name, **measure(plan)})
    return rows


def confusion(rows: list[dict]) -> dict:
    """Return how many kernels the estimate accepts and rejects, and how many of each spill."""
    counts = Counter((row["estimate"] <= row["limit"], row["spill_bytes"] > 0) for row in rows)
    accepted, rejected = (sum(counts[side, spills] for spills in (True, False)) for side in (True, False))
    return {
        "accepted": {
            "fine": counts[True, False],
            "spill": counts[True, True],
            "wrong": _share(counts[True, True], accepted),
        },
        "rejected": {
            "spill": counts[False, True],
            "fine": counts[False, False],
            "wrong": _share(counts[False, False], rejected),
        },
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


# ---- Proofs on the CPU -----------------------------------------------------------------------------------------------


def draw_mma_sync(source: random.Random, register_copy: bool = False, **fields: str) -> Plan:
    """Return the plan of a random legal spec. In half of all cases, shared-memory layout, raster and schedule are random too."""
    while True:
        plan = draw(source, register_copy, **fields)
        if source.random() < 0.5:
            tile = plan.spec.cta_tile
            plan = plan.replace(
                smem_a=source.choice([plan.spec.smem_a, *_PLACEMENTS]),
                smem_b=source.choice([plan.spec.smem_b, *_PLACEMENTS]),
                raster=source.choice([plan.spec.raster, Raster("group", 3), Raster("panel", 5 * tile.n)]),
                schedule=source.choice(
                    [plan.spec.schedule, Schedule("split_k", source.choice([2, 3, 7])), Schedule("stream_k")]
                ),
            )
        if {violation.rule for violation in violations(plan)} <= {"registers"}:
            return plan


def draw_wgmma(source: random.Random) -> Plan:
    """Return the plan of a random legal spec on wgmma that is small enough for the CPU."""
    one_of = source.choice
    while True:
        m, n = one_of([8, 16, 40, 64, 64, 128, 128, 192, 256]), 8 * source.randint(1, 24)
        dtype, acc = one_of([("f16", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
        texts = {
            **{"arch": "sm_90a", "tile": f"{m}x{n}x{one_of([32, 64, 64, 128])}", "dtype": dtype, "acc": acc},
            **{"layout": one_of(["tn", "nn", "nt", "tt"]), "out": one_of([dtype, dtype, "f32"])},
            **{
                "cluster": one_of(["1x1", "1x1", "2x1", "1x2", "2x2"]),
                "raster": one_of(["row", "column", "group:3", LAUNCH]),
            },
            "schedule": one_of(
                [
                    "one_tile",
                    "persistent",
                    "persistent",
                    "split_k:3",
                    "split_k_cluster:2",
                    "split_k_cluster:4",
                    "stream_k",
                    "stream_k",
                    LAUNCH,
                    LAUNCH,
                ]
            ),
            **{"beta": one_of(["on", "off"]), "bias": one_of(["none", "none", "row", "column", LAUNCH])},
            "activation": one_of(["none", "none", "relu", "gelu", "silu"]),
            **({"store": "direct", "align_d": one_of(["8", "2", "1"])} if source.random() < 0.4 else {}),
            **({"cooperation": "pingpong"} if source.random() < 0.3 else {}),
            **({"swap_ab": "on"} if source.random() < 0.2 else {}),
        }
        try:
            (plan,) = sweep([texts]).plans or (None,)
        except RequestError:
            continue
        if plan is not None and not violations(plan):
            return plan


DRAWS = {
    "mma.sync": draw_mma_sync,
    "register_copy": partial(draw_mma_sync, register_copy=True),
    "wmma16": partial(draw_mma_sync, mma="wmma16"),
    "wgmma": draw_wgmma,
}


def drawn(seed: int, count: int, family: str = "mma.sync") -> list[Plan]:
    source = random.Random(seed)
    return [DRAWS[family](source) for _ in range(count)]


def prove(plans: list[Plan], seed: int, jobs: int) -> list[CheckOutcome]:
    """Check the kernels of plans on the CPU, and print a line for each."""
    texts = [ProofSource.of(emit(plan, templates_folder())) for plan in plans]
    outcomes = []
    for outcome in prove_texts(texts, host_toolchain(), jobs, seed, TIMEOUT_S):
        outcomes.append(outcome)
        print(f"[{len(outcomes)}/{len(plans)}] {outcome_line(outcome)}", flush=True)
    return outcomes


def summary(plans: list[Plan], outcomes: list[CheckOutcome], seed: int, seconds: float) -> dict:
    """Return the values of each field that were checked, and every failure with its reason."""
    toolchain = host_toolchain()
    return {
        "seed": seed,
        "specs": len(plans),
        "proved": sum(outcome.passed for outcome in outcomes),
        "cases": sum(len(outcome.checks) for outcome in outcomes),
        "seconds": round(seconds, 1),
        "longest_seconds": round(max(outcome.seconds for outcome in outcomes), 1),
        "worst_error_over_bound": max(outcome.worst_ratio for outcome in outcomes),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "executor": toolchain.version(),
        "host_compiler": toolchain.compiler.identity,
        "drawn": {name: Counter(str(getattr(plan.spec, name)) for plan in plans) for name in FIELDS},
        "failures": [{"symbol": one.symbol, "reason": one.reason} for one in outcomes if not one.passed],
    }


# ---- Commands --------------------------------------------------------------------------------------------------------


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("prove")
@click.option("--family", type=click.Choice([*DRAWS]), default="mma.sync", show_default=True, help="Kernels to draw.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--count", type=int, default=200, show_default=True, help="Specs to draw.")
@click.option("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="Processes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write a summary there.")
def prove_command(family: str, seed: int, count: int, jobs: int, json_path: Path | None) -> None:
    """Check random legal specs on the CPU. Exit status 1: a check failed."""
    plans, began = drawn(seed, count, family), time.monotonic()
    outcomes = prove(plans, seed, jobs)
    click.echo(outcome_summary(outcomes))
    if json_path:
        found = summary(plans, outcomes, seed, time.monotonic() - began)
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if all(outcome.passed for outcome in outcomes) else 1)


@main.command("registers")
@click.option("--seconds", type=float, default=300, show_default=True, help="Time for each process.")
@click.option("--processes", type=int, default=2, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--family", type=click.Choice([*REGISTER_DRAWS]), default="mma.sync", show_default=True)
def registers_command(seconds: float, processes: int, seed: int, family: str) -> None:
    """Compile random specs, and compare their registers with the estimate.

    Writes the counts to benchmarks/data/confusion.json; of other families, with their name, as in confusion_wgmma.json.
    """
    with ProcessPoolExecutor(processes) as pool:
        seeds = [seed * 1000 + process for process in range(processes)]
        parts = pool.map(sample, seeds, *([value] * len(seeds) for value in (seconds, family)))
        rows = [row for part in parts for row in part]
    suffix = "" if family == "mma.sync" else f"_{family.replace('.', '_')}"
    table = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "compilers": versions(),
        **{name: confusion([row for row in rows if row["sample"] == name]) for name in ("even", "near")},
    }
    (FOLDER / f"confusion{suffix}.json").write_text(json.dumps(table, indent=2) + "\n")
    click.echo(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
