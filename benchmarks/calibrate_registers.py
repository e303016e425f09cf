"""Measure how well the estimate of registers tells kernels that spill from kernels that do not.

Draws random specs that break no rule but, maybe, that of registers; compiles each; holds what ptxas took against the estimate.
Two of five are drawn evenly, the others only near the limit, where the estimate is least certain. Writes
`registers.json`, a row for each kernel, and `confusion.json`, the table; with --staged, of kernels whose copies go by way of
registers, `registers_staged.json` and `confusion_staged.json`.

    python -m benchmarks.calibrate_registers --seconds 300 --processes 2 [--staged]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from generator.arch import ARCHS
from generator.build.compile import compile_kernel, versions
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import headers, templates_folder
from generator.defaults import resolve
from generator.emit import emit
from generator.families.mma_sync.rules import RULES
from generator.families.mma_sync.ways_out import warp_extents
from generator.plan import Plan, plan_of
from generator.spec import Raster, Schedule, Tile, WarpTile

FOLDER = Path(__file__).resolve().parent
ASYNCHRONOUS = [name for name, arch in ARCHS.items() if arch.has_cp_async]
STAGED = ["sm_75", "sm_75", *ASYNCHRONOUS[::3]]
NEAR = range(-40, 60)
"""Registers of the limit beyond the estimate that count as near."""
TURNS = ("near", "even", "near", "even", "near")


def draw(source: random.Random, staged: bool = False, **fields: str) -> Plan:
    """Return the plan of a random spec, but for the fields that are given, that breaks no rule, unless that of registers."""
    while True:
        plan = plan_of(resolve(_request(source) | (_staged(source) if staged else {}) | fields))
        broken = {rule.name for rule in RULES if rule.broken(plan)}
        if broken <= {"registers"}:
            return plan


def draw_near(source: random.Random, staged: bool) -> Plan:
    """The same near the limit of registers."""
    while True:
        plan = draw(source, staged)
        if plan.max_registers - plan.needed_registers in NEAR:
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
        "raster": one_of([Raster("row"), Raster("column"), Raster("group", 8), Raster("panel", 2 * tile.n)]),
        "schedule": one_of(
            [
                *(Schedule(kind) for kind in ("one_tile", "one_tile", "persistent", "stream_k")),
                Schedule("split_k", 4),
            ]
        ),
        "ctas_per_sm": one_of([1, 1, 2, 3]),
        "beta": one_of([True, False]),
        "bias": one_of(["none", "none", "row", "column"]),
        "activation": one_of(["none", "none", "relu", "gelu", "silu"]),
        "store": one_of(["smem", "smem", "direct"]),
        "align_a": one_of([8, 8, 8, 4, 2, 1]),
        "align_b": one_of([8, 8, 8, 4, 2, 1]),
        "align_d": min(one_of([8, 8, 4, 2, 1]), 4 if dtype_d == "f32" else 8),
    }


def _staged(source: random.Random) -> dict:
    arch, stages = source.choice(STAGED), source.choice([1, 2, 2, 2])
    plain = {"dtype_a": "f16", "dtype_d": "f16", "mma": "m16n8k8"} if arch == "sm_75" else {}
    ahead = source.choice([1, 2]) if stages == 2 else 1
    copy = source.choice(["vector", "vector", "scalar", "shifted", "shifted"])
    prefetch = stages == 2 or source.choice([True, False])
    return {"arch": arch, "copy": copy, "stages": stages, "fragment_stages": ahead, "prefetch": prefetch, **plain}


def measure(plan: Plan) -> dict:
    """Compile a plan's kernel and return what ptxas says beside what was estimated."""
    templates = templates_folder()
    kernel = emit(plan, templates)
    report = parse_ptxas_log(compile_kernel(kernel, headers(kernel.entry_header, templates)).ptxas_log)[kernel.symbol]
    return {
        "symbol": kernel.symbol,
        "accumulators": plan.accumulator_registers,
        "fragments": plan.fragment_registers,
        "estimate": plan.needed_registers,
        "limit": plan.max_registers,
        "used": report.registers,
        "spill_bytes": report.spill_bytes,
    }


def sample(seed: int, seconds: float, staged: bool) -> list[dict]:
    """Measure random plans, evenly drawn and near the limit by turns, until the time is up."""
    source, rows, end = random.Random(seed), [], time.monotonic() + seconds
    while time.monotonic() < end:
        for name in TURNS:
            plan = (draw if name == "even" else draw_near)(source, staged)
            rows.append({"sample": name, **measure(plan)})
    return rows


def confusion(rows: list[dict]) -> dict:
    """Return the table: accepted or rejected by the estimate, against spilling or not."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--staged", action="store_true", help="kernels whose copies go by way of registers")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.processes) as pool:
        seeds = [asked.seed * 1000 + process for process in range(asked.processes)]
        parts = pool.map(sample, seeds, *([value] * len(seeds) for value in (asked.seconds, asked.staged)))
        rows = [row for part in parts for row in part]
    suffix = "_staged" if asked.staged else ""
    lines = ",\n".join(json.dumps(row) for row in rows)
    (FOLDER / f"registers{suffix}.json").write_text(f"[\n{lines}\n]\n")
    table = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "compilers": versions(),
        "even": confusion([row for row in rows if row["sample"] == "even"]),
        "near": confusion([row for row in rows if row["sample"] == "near"]),
    }
    (FOLDER / f"confusion{suffix}.json").write_text(json.dumps(table, indent=2) + "\n")
    print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
