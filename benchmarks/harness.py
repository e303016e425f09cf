"""Times HGEMM kernels against one another without fooling itself, and prints and stores the figures.

    python benchmarks/harness.py --cutlass .carry/cutlass2x.so --library .carry/library --sweep 4096 --finalists 3 \\
        --shapes 2048,4096,8192 --seconds 120 --states steady,burst,solo --json out.json

What is done, and why:
- operands are random normal f16; several sets, together at least three times the L2 cache, are used in turn;
- each contender is first checked against a float64 product, its output poisoned with NaN before;
- a contender's block of launches is one CUDA graph, so that the host is not measured;
- a round times every contender forwards and then backwards (A B C C B A), so that a drift of the clock cancels;
  ratios are taken round by round against the baseline of the same accumulator, and only their median and spread are
  believed;
- steady: after three seconds of the same load, without a pause. burst: each block after an idle pause. solo: each
  contender alone for half a second, with its own clock and power, since at large sizes power sets the clock.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from bench import measure
from contenders import Contender, Problem, TorchContender, cutlass_contenders
from cubin_contender import library_contenders
from protocol import Protocol, finalists
from telemetry import Telemetry


def identity(telemetry: Telemetry) -> dict:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return dict(
        device=properties.name,
        sms=properties.multi_processor_count,
        driver=telemetry.driver(),
        cuda=torch.version.cuda,
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def table(result: dict, limit: int | None = None) -> str:
    problem = Problem(**result["problem"])
    seen = result.get("telemetry") or {}
    lines = [
        f"{problem} {result['state']}: SM {seen.get('sm_mhz', '?')} MHz ({seen.get('sm_mhz_min', '?')} to "
        f"{seen.get('sm_mhz_max', '?')}), {seen.get('power_w', '?')} W, {seen.get('temperature_c', '?')} C, limited by "
        f"{', '.join(seen.get('limited_by', [])) or 'nothing'}"
    ]
    width = max([len(row["name"]) for row in result["rows"][:limit]] + [10])
    lines.append(
        f"{'contender':{width}} {'acc':>5} {'us':>9} {'TFLOP/s':>8} {'min':>6} {'max':>6} {'ratio':>6} "
        f"{'p10':>6} {'p90':>6} {'n':>3}  solo TFLOP/s, MHz, W"
    )
    for row in result["rows"][:limit]:
        ratio = [f"{row[key]:6.3f}" if key in row else "     -" for key in ("ratio", "ratio_p10", "ratio_p90")]
        solo = row.get("solo")
        alone = f"  {solo['tflops']:6.1f} {solo['sm_mhz'] or 0:5.0f} {solo['power_w'] or 0:4.0f}" if solo else ""
        star = " *" if row.get("baseline") == row["name"] else ""  # marks a baseline
        lines.append(
            f"{row['name']:{width}} {row['acc']:>5.5} {row['time_us']:9.2f} {row['tflops']:8.1f} "
            f"{row['tflops_min']:6.1f} {row['tflops_max']:6.1f} {' '.join(ratio)} {row['rounds']:3}{alone}{star}"
        )
    lines += [f"refused: {name}: {why}" for name, why in result["refused"].items()]
    return "\n".join(lines)


def gather(args: argparse.Namespace, capability: tuple[int, int]) -> list[Contender]:
    contenders: list[Contender] = []
    for library in args.library:
        contenders += library_contenders(library, args.artifact, capability)
    if args.cutlass:
        contenders += [
            one for one in cutlass_contenders(args.cutlass) if fnmatch.fnmatch(one.name, args.cutlass_filter)
        ]
    if args.torch:
        contenders += [TorchContender("f32"), TorchContender("f16")]
    chosen = [one for one in contenders if one.acc in args.acc.split(",") and fnmatch.fnmatch(one.name, args.filter)]
    names = [one.name for one in chosen]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SystemExit(f"these names come twice: {', '.join(repeated)}")
    return chosen


def shapes(text: str) -> list[Problem]:
    return [Problem.parse(part) for part in text.split(",")]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cutlass", type=Path, help="library of baselines/build_cutlass2x.py")
    parser.add_argument("--cutlass-filter", default="*_sw8", help="its entries, as a glob; _swN is the raster width")
    parser.add_argument(
        "--library", type=Path, action="append", default=[], help="folder of variants; may be given again"
    )
    parser.add_argument(
        "--artifact",
        default="auto",
        choices=["auto", "cubin", "ptx", "both"],
        help="what of a variant is loaded; auto: its cubin where this device runs it, else its PTX",
    )
    parser.add_argument("--filter", default="*", help="glob over all names")
    parser.add_argument("--acc", default="f32,f16,f16_promoted")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument(
        "--baseline", default="cutlass2x_*", help="glob; the fastest match of each accumulator is the baseline"
    )
    parser.add_argument("--sweep", type=Problem.parse, help="shape of a first, quick pass over all contenders")
    parser.add_argument("--sweep-seconds", type=float, default=60)
    parser.add_argument("--finalists", type=int, default=3, help="of each accumulator, kept after the sweep")
    parser.add_argument("--shapes", type=shapes, default=[], help="such as 2048,4096,4096x7168x16384")
    parser.add_argument("--seconds", type=float, default=120, help="for all shapes together")
    parser.add_argument("--states", default="steady", help="of steady, burst and solo")
    parser.add_argument("--rounds-min", type=int, default=Protocol.rounds_min)
    parser.add_argument("--block-ms", type=float, default=Protocol.block_ms)
    parser.add_argument("--seed", type=int, default=None, help="of the operands; taken from the clock unless given")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    args.states = args.states.split(",")
    if not args.sweep and not args.shapes:
        parser.error("name --sweep, --shapes or both")
    unknown = sorted(set(args.states) - {"steady", "burst", "solo"})
    if unknown:
        parser.error(f"unknown states: {', '.join(unknown)}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    import torch

    contenders = gather(args, torch.cuda.get_device_capability())
    if not contenders:
        print("nothing to time: name --cutlass or --library, or leave --no-torch", file=sys.stderr)
        return 2
    telemetry = Telemetry()
    telemetry.start()
    protocol = Protocol(rounds_min=args.rounds_min, block_ms=args.block_ms)
    seed = args.seed if args.seed is not None else time.time_ns() % 2**31
    report = identity(telemetry) | dict(
        protocol=asdict(protocol),
        seed=seed,
        results=[],
        facts={one.name: one.facts for one in contenders if getattr(one, "facts", None)},
    )

    def add(results: list[dict], kind: str) -> None:
        for result in results:
            report["results"].append({"pass": kind} | result)
            print(table(result), end="\n\n", flush=True)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n")

    if args.sweep:
        quick = replace(protocol, rounds_min=3, rounds_max=15, block_ms=min(5.0, args.block_ms))
        results = measure(args.sweep, contenders, args.baseline, ["steady"], args.sweep_seconds, quick, telemetry, seed)
        add(results, "sweep")
        kept = finalists(results[0]["rows"], args.finalists, args.baseline)
        contenders = [one for one in contenders if one.name in kept]
    for number, problem in enumerate(args.shapes):
        add(
            measure(
                problem,
                contenders,
                args.baseline,
                args.states,
                args.seconds / len(args.shapes),
                protocol,
                telemetry,
                seed + 1 + number,
            ),
            "final",
        )
    telemetry.stop()
    return 0 if all(not result["refused"] for result in report["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
