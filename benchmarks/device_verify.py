"""Verify the kernels of a library on this machine's GPU, or run some of them under compute-sanitizer.

    python -m benchmarks.device_verify LIBRARY --jobs 8 --budget 400 --json verify.json
    python -m benchmarks.device_verify LIBRARY --sanitize 8 --budget 400 --json sanitize.json

Needs numpy, cuda-bindings and click. A process checks one kernel after another, up to one that fails. Under compute-sanitizer,
each kernel has a process, and shapes are small and ragged. Buffers have no guard bands then, so that the tool sees every access
outside them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generator.device_check import (
    CODES,
    CheckOutcome,
    CheckRequest,
    CheckWorkers,
    json_of,
    outcome_line,
    outcome_summary,
)
from generator.store.library import Library
from generator.store.query import KernelFilter, select_rows
from hgemm.device import checked, driver, open_device

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
RAGGED = "33x65x17@2,1x1x1,130x70x100,129x257x95"
MANY_TILES = {"persistent": ",17x17x{one_round}@300", "stream_k": ",17x17x1030@140,70x17x2050@50"}
"""Extra shapes by grid rule: more tiles than an H200 holds CTAs, so that a CTA computes a second tile."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)\b.*")


def small_shapes(row: Mapping[str, Any]) -> str:
    """Return shapes of few elements. One of them fills every stage twice; tiles of persistent kernels reuse one."""
    stages, tile_k = int(row["stages"]), int(str(row["cta_tile"]).split("x")[2])
    k = {"two_rounds": (2 * stages + 1) * tile_k + 8, "one_round": (stages + 1) * tile_k}
    return RAGGED + f",40x24x{k['two_rounds']}" + MANY_TILES.get(str(row["grid"]), "").format(**k)


def requests_of(args: argparse.Namespace) -> list[CheckRequest]:
    rows = select_rows(Library(args.library), KernelFilter(kernels=args.kernels, where=args.where))
    if args.sanitize:
        count = min(args.sanitize, len(rows))
        rows = [rows[at * len(rows) // count] for at in range(count)]  # spread over the names, which say the specs
    library = str(args.library.resolve())
    if not args.sanitize:
        return [CheckRequest(library, str(row["symbol"]), args.shapes, args.code, args.seed) for row in rows]
    return [
        CheckRequest(
            library,
            str(row["symbol"]),
            args.shapes or small_shapes(row),
            args.code,
            args.seed,
            data=("integer",),
            guard_bytes=0,
            twice=False,
        )
        for row in rows
    ]


def verify(args: argparse.Namespace, requests: list[CheckRequest]) -> tuple[list[dict], bool]:
    outcomes: list[CheckOutcome] = []
    for outcome, _ in CheckWorkers(args.jobs, args.timeout, budget_s=args.budget).check_all(requests):
        outcomes.append(outcome)
        print(outcome_line(outcome), flush=True)
    print(outcome_summary(outcomes))
    return [json_of(outcome) for outcome in outcomes], not any(outcome.failed for outcome in outcomes)


def sanitize(args: argparse.Namespace, requests: list[CheckRequest]) -> tuple[list[dict], bool]:
    """Run every kernel under every tool. A run is clean if the tool reports nothing and the numbers are right."""
    rows = []
    for tool in args.tools.split(","):
        workers = CheckWorkers(args.jobs, args.timeout, ("compute-sanitizer", "--tool", tool), args.budget)
        for outcome, log in workers.check_all(requests):
            counts = [int(match[1]) for match in _SUMMARY.finditer(log)]
            clean = bool(counts) and sum(counts) == 0 and outcome.passed
            summary = next((match[0] for match in _SUMMARY.finditer(log)), "no summary")
            label = "clean" if clean else "found" if any(counts) else "failed" if log else "not run"
            print(f"{label:7}  {tool:9}  {outcome.symbol}  {summary}  {outcome.reason}", flush=True)
            rows.append({"tool": tool, "clean": clean, "summary": summary, **json_of(outcome)})
            if not clean:
                rows[-1]["log"] = log[-4000:]
                print("\n".join(f"    {line}" for line in log.splitlines() if line.startswith("========="))[:3000])
    print(f"{sum(row['clean'] for row in rows)} of {len(rows)} runs are clean")
    return rows, all(row["clean"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--kernels", default="", help="globs over symbols and aliases: '*_tn_*,*_nn_*'")
    parser.add_argument("--where", default="", help="a condition, as of `hgemm list`")
    parser.add_argument("--shapes", default="", help="instead of the default ones: 128x128x64,33x65x17@3")
    parser.add_argument("--code", choices=CODES, default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=180, help="for one kernel, in seconds")
    parser.add_argument("--budget", type=float, default=420, help="begin no kernel (or tool) after so many seconds")
    parser.add_argument("--sanitize", type=int, default=0, metavar="N", help="run N kernels under compute-sanitizer")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = open_device()
    results, good = (sanitize if args.sanitize else verify)(args, requests_of(args))
    if args.json:
        identity = {
            "device": device.name,
            "driver": checked(driver().cuDriverGetVersion(), "ask for the driver's version"),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        }
        args.json.write_text(json.dumps({**identity, "results": results}, indent=1) + "\n")
    return 0 if good and results else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:
        if not hasattr(error, "exit_code"):  # neither the generator's nor hgemm's
            raise
        sys.exit(f"device_verify: {error}")
