"""Proves random legal specs on the CPU, and keeps what came of it.

    python -m benchmarks.emulate_random --seed 1 --count 200 [-j 2] [--json benchmarks/data/emulate_random.json]
    python -m benchmarks.emulate_random --family staged --seed 1 --count 60 [--json benchmarks/data/emulate_random_staged.json]
    python -m benchmarks.emulate_random --family wmma16 --seed 1 --count 50
    python -m benchmarks.emulate_random --family wgmma --seed 1 --count 60 [--json benchmarks/data/emulate_random_sm90a.json]

Specs of the mma.sync family, with asynchronous or staged copies or on WMMA, or of that on wgmma, are drawn over tiles, warp tiles,
stages, layouts, types, alignments, swizzles and pads, clusters, rasters, schedules and epilogues; those that break a rule,
registers of mma.sync left aside, are drawn again. The same seed draws the same specs. Nothing is compiled for a GPU. Exit
status 1 says that one was not proved.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.calibrate_registers import draw as draw_request
from generator.build.pipeline import planned
from generator.build.toolchain import templates_folder
from generator.cli.device import line_of, summary_of
from generator.device_check import Outcome
from generator.emit import emit
from generator.errors import RequestError
from generator.plan import Plan
from generator.proof.executor import trim
from generator.proof.jobs import host_toolchain, request_of, workers
from generator.rules import violations
from generator.spec import Raster, Schedule, Smem
from generator.sweep import sweep

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
"""What the summary counts."""
_PLACEMENTS = [
    Smem.parse(text)
    for text in "none pad:8 pad:24 pad_alternate:8 xor:1,3,3 xor:2,3,3 xor:3,3,3 xor:3,3,4 xor:2,4,5".split()
]


def draw(source: random.Random, staged: bool = False, **fields: str) -> Plan:
    """Return the plan of a random legal spec, its placements and its schedule random too in half of all cases."""
    while True:
        plan = draw_request(source, staged, **fields)
        if source.random() < 0.5:
            tile = plan.spec.cta_tile
            plan = plan.replace(
                smem_a=source.choice([plan.spec.smem_a, *_PLACEMENTS]),
                smem_b=source.choice([plan.spec.smem_b, *_PLACEMENTS]),
                raster=source.choice([plan.spec.raster, Raster("group", 3), Raster("panel", 5 * tile.n)]),
                schedule=source.choice([plan.spec.schedule, Schedule("split_k", source.choice([2, 3, 7])), Schedule("stream_k")]),
            )
        if {violation.rule for violation in violations(plan)} <= {"registers"}:
            return plan


def draw_wgmma(source: random.Random) -> Plan:
    """Return the plan of a random legal spec on wgmma, small enough to be run on the CPU."""
    one_of = source.choice
    while True:
        m, n = one_of([8, 16, 40, 64, 64, 128, 128, 192, 256]), 8 * source.randint(1, 24)
        dtype, acc = one_of([("f16", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
        texts = {
            **{"arch": "sm_90a", "tile": f"{m}x{n}x{one_of([32, 64, 64, 128])}", "dtype": dtype, "acc": acc},
            **{"layout": one_of(["tn", "nn", "nt", "tt"]), "out": one_of([dtype, dtype, "f32"])},
            **{"cluster": one_of(["1x1", "1x1", "2x1", "1x2", "2x2"]), "raster": one_of(["row", "column", "group:3"])},
            "schedule": one_of(
                ["one_tile", "persistent", "persistent", "split_k:3", "cluster_k:2", "cluster_k:4", "stream_k", "stream_k"]
            ),
            **{"beta": one_of(["on", "off"]), "bias": one_of(["none", "none", "row", "column"])},
            "activation": one_of(["none", "none", "relu", "gelu", "silu"]),
            **({"store": "direct", "align_d": one_of(["8", "2", "1"])} if source.random() < 0.4 else {}),
            **({"cooperation": "pingpong"} if source.random() < 0.3 else {}),
            **({"swapped": "on"} if source.random() < 0.2 else {}),
        }
        try:
            (plan,) = sweep([texts]).plans or (None,)
        except RequestError:
            continue
        if plan is not None and not violations(plan):
            return plan


DRAWS = {
    "mma.sync": draw,
    "staged": partial(draw, staged=True),
    "wmma16": partial(draw, mma="wmma16"),
    "wgmma": draw_wgmma,
}


def drawn(seed: int, count: int, family: str = "mma.sync") -> list[Plan]:
    source = random.Random(seed)
    return [DRAWS[family](source) for _ in range(count)]


def prove(plans: list[Plan], seed: int, jobs: int) -> list[Outcome]:
    """Prove the kernels of plans, and print a line for each."""
    made, templates, requests = host_toolchain(), templates_folder(), []
    for plan in plans:
        kernel = emit(plan, templates)
        record = {**planned(kernel), "proof": {"mma_per_tile": plan.mma_per_k_tile}}
        requests.append(request_of(made, kernel.source, record, seed=seed))
    outcomes = []
    for outcome, _ in workers(jobs, TIMEOUT_S).check_all(requests):
        outcomes.append(outcome)
        print(f"[{len(outcomes)}/{len(plans)}] {line_of(outcome)}", flush=True)
    trim(made.cache)
    return outcomes


def summary(plans: list[Plan], outcomes: list[Outcome], seed: int, seconds: float) -> dict:
    """Return what is kept: how many of each field's values were proved, and every failure with its reason."""
    made = host_toolchain()
    return {
        "seed": seed,
        "specs": len(plans),
        "proved": sum(outcome.passed for outcome in outcomes),
        "cases": sum(len(outcome.checks) for outcome in outcomes),
        "seconds": round(seconds, 1),
        "longest_seconds": round(max(outcome.seconds for outcome in outcomes), 1),
        "worst_error_over_bound": max(outcome.worst_ratio for outcome in outcomes),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "executor": made.version(),
        "host_compiler": made.compiler.identity,
        "drawn": {name: Counter(str(getattr(plan.spec, name)) for plan in plans) for name in FIELDS},
        "failures": [{"symbol": one.symbol, "reason": one.reason} for one in outcomes if not one.passed],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=DRAWS, default="mma.sync")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    plans, began = drawn(args.seed, args.count, args.family), time.monotonic()
    outcomes = prove(plans, args.seed, args.jobs)
    print(summary_of(outcomes))
    if args.json:
        found = summary(plans, outcomes, args.seed, time.monotonic() - began)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
