"""Random epilogues on the CPU executor: each is compiled, run and compared with its float64 reference.

    python -m benchmarks.epilogue_fuzz [--count 300] [--seed 0] [--json FILE]
    python -m benchmarks.epilogue_fuzz --build [--count 96]
    python -m benchmarks.epilogue_fuzz --library DIR [--count 60]

The kernels are of all families in turn, in form atoms. Every third expression is of a gated pair, and every second one has further
results, where the family has them. The exit status is 1 if a kernel does not compile, or has a wrong result. No GPU is needed.

`--build` compiles expressions of depth 4 to 12 to machine code instead, in tiles of usual sizes. It prints why expressions are
refused and how many kernels spill, and compares the time with that of the plain kernel. `generate` refuses a kernel that
spills, or builds it with another schedule.

`--library` builds random kernels into a library. `hgemm verify --device` runs them on a GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hgemm
from generator.build.compile import compile_kernel
from generator.build.emit import emit
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import headers, templates_folder
from generator.errors import HgemmError, RequestError
from generator.families.base import Plan
from generator.proof.executor import HostToolchain
from generator.proof.jobs import ProofSource, host_toolchain
from generator.proof.proving import Subject, prove
from generator.sweep import sweep
from hgemm.cases import Shape
from hgemm.epilogue import OPERATIONS
from hgemm.errors import GenerationError
from hgemm.verification import UNBOUNDED

BUILT = (
    {"arch": "sm_80", "tile": "128x128x32"},
    {"arch": "sm_75", "tile": "128x128x32"},
    {"arch": "sm_90", "tile": "128x128x32", "copy": "tma"},
    {"arch": "sm_90", "tile": "16x32x512", "copy": "ldg"},
    {"arch": "sm_90a", "tile": "128x256x64"},
    {"arch": "sm_90a", "tile": "128x128x64", "cooperation": "pingpong"},
    {"arch": "sm_90a", "tile": "128x64x64", "swap_ab": "on"},
    {"arch": "sm_90a", "tile": "128x128x64", "store": "direct"},
)
"""Kernels of --build."""
FAMILIES = (
    {"arch": "sm_80", "tile": "64x64x32"},
    {"arch": "sm_75", "tile": "64x64x32", "align_d": "1"},
    {"arch": "sm_80", "tile": "64x64x32", "dtype": "bf16", "out": "f32", "store": "direct"},
    {"arch": "sm_90", "tile": "64x64x32", "copy": "tma"},
    {"arch": "sm_90", "tile": "16x32x512", "copy": "ldg"},
    {"arch": "sm_90a", "tile": "64x64x64"},
    {"arch": "sm_90a", "tile": "128x64x64", "swap_ab": "on"},
    {"arch": "sm_90a", "tile": "64x40x64", "store": "direct", "align_d": "1"},
)
SHAPES = (Shape(33, 41, 40), Shape(65, 25, 70, 2), Shape(17, 160, 96))
"""Every second one has gaps after rows, and scalars by pointer."""
REDUCED = ("sum", "max", "sum_squares")
_LEAVES = ("acc", "acc", "bias", "scale", "residual", "gain", "alpha", "0.5", "-1.25", "3.0")
_TYPES = "gain: Scalar; scale: Column['f32']; residual: Matrix['{}']; "
_BINARY = ("{} + {}", "{} - {}", "{} * {}", "{} / {}", "maximum({}, {})", "minimum({}, {})")
_UNARY = tuple(name for name, one in OPERATIONS.items() if one.arguments == 1 and name != "neg")


def expression(rng: random.Random, depth: int) -> str:
    """Return a random formula of at most this depth."""
    kind = rng.random() if depth else 0.0
    if kind < 0.15:
        return rng.choice(_LEAVES)
    if kind < 0.45:
        return f"{rng.choice(_UNARY)}({expression(rng, depth - 1)})"
    if kind < 0.9:
        return "(" + rng.choice(_BINARY).format(expression(rng, depth - 1), expression(rng, depth - 1)) + ")"
    parts = [expression(rng, depth - 1) for _ in range(4)]
    return f"where({parts[0]} {rng.choice(('<', '<=', '==', '!='))} {parts[1]}, {parts[2]}, {parts[3]})"


def formula(rng: random.Random, depths: tuple[int, int] = (2, 6)) -> str:
    """Return a random epilogue with one result. The accumulator always matters."""
    return _TYPES.format(rng.choice(("f16", "bf16", "f32"))) + f"0.25 * acc + {expression(rng, rng.randint(*depths))}"


def with_results(rng: random.Random, text: str, family: dict[str, str], at: int) -> str:
    """Make every third epilogue one of a gated pair, and give every second one further results, where the family has them."""
    types, _, d = text.rpartition("; ")
    if at % 3 == 2 and "swap_ab" not in family and int(family["tile"].split("x")[1]) % 16 == 0:
        d = d.replace("acc", "gate", 1).replace("acc", "up") + (" * up" if "acc" not in d[d.index("acc") + 3 :] else "")
    if at % 2:
        results = ["y", *rng.sample(("f32(y)", "bf16(y)", "y * 0.5"), 1)]
        if "swap_ab" not in family and family.get("copy") != "ldg":
            results += rng.sample(
                [f"{axis}_{what}(y)" for axis in ("row", "column") for what in REDUCED], rng.randint(1, 2)
            )
        d = f"y = {d}; ({', '.join(results)})"
    return f"{types}; {d}"


def drawn(rng: random.Random, at: int) -> dict[str, str]:
    """Return the options of random kernel `at`."""
    family = FAMILIES[at // 6 % len(FAMILIES)]
    text = with_results(rng, formula(rng), family, at)
    if family["arch"] == "sm_75":  # rounds to bf16 by integer instructions, whose NaN the executor takes for poison
        text = text.replace("bf16(", "f16(")
    return {**family, "epilogue": text}


def planned(options: dict[str, str]) -> Plan | str:
    """Return the plan of a kernel, or why the generator refuses it."""
    try:
        (candidate,) = sweep([options]).candidates
    except RequestError as error:
        return "refused: " + re.sub(r"^--epilogue: |\d+ characters; ", "", str(error))
    return candidate.plan if not candidate.rules else f"refused: {', '.join(candidate.rules)}"


def check(options: dict[str, str], toolchain: HostToolchain | None = None) -> tuple[str, float]:
    """Return the verdict on a kernel, and its largest error as a share of the bound."""
    plan = planned(options)
    if isinstance(plan, str):
        return plan, 0.0
    kernel = emit(plan, templates_folder())
    text = ProofSource.of(kernel)
    subject = Subject(kernel.symbol, text.ptx(templates_folder()).decode(), text.record, kernel.plan.mma_per_k_tile)
    checks = prove(subject, toolchain or host_toolchain(), SHAPES).checks
    failed = [one for one in checks if not one.passed]
    if failed:
        return f"failed: {failed[0].case}: {failed[0].reason}", failed[0].max_bound_ratio
    ratio = max(one.max_bound_ratio for one in checks)
    return ("no bound" if all(one.reason == UNBOUNDED for one in checks) else "passed"), ratio


def build(options: dict[str, str]) -> tuple[str, float]:
    """Compile a kernel to machine code. Return the verdict, and the seconds."""
    plan = planned(options)
    if isinstance(plan, str):
        return plan, 0.0
    kernel = emit(plan, templates_folder())
    found, began = headers(kernel.entry_header, templates_folder()), time.perf_counter()
    compiled = compile_kernel(kernel, found)
    took = time.perf_counter() - began
    report = parse_ptxas_log(compiled.ptxas_log)[kernel.symbol]
    return "spills registers" if report.spill_bytes else "built", took


def build_all(args: argparse.Namespace) -> int:
    """Build kernels with random expressions, and print for each family how many were built, and their time beside the plain one."""
    rng, rows = random.Random(args.seed), []
    for family in BUILT:
        build(family)  # loads the headers
        verdicts, differences = Counter(), []
        for at in range(args.count // len(BUILT)):
            options = {**family, "epilogue": with_results(rng, formula(rng, (4, 12)), family, at)}
            _, plain = build(family)
            verdict, took = build(options)
            verdicts[verdict] += 1
            differences += [took - plain] * (took > 0)
        rows.append({**family, **verdicts, "median_more_s": round(statistics.median(differences or [0.0]), 3)})
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def build_library(args: argparse.Namespace) -> int:
    """Build random kernels into a library, and print how many."""
    rng = random.Random(args.seed)
    legal = [options for at in range(args.count) if not isinstance(planned(options := drawn(rng, at)), str)]
    failed: dict[str, str] = {}
    try:
        built = hgemm.generate(legal, library=args.library)
    except GenerationError as error:
        built, failed = error.kernels, error.failed
    print(
        json.dumps(
            {"expressions": args.count, "refused": args.count - len(legal), "built": len(built), "failed": failed}
        )
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument(
        "--build", action="store_true", help="compile to machine code, and compare the time with plain kernels"
    )
    parser.add_argument("--library", metavar="DIR", help="build the kernels into this library instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    if args.build:
        return build_all(args)
    if args.library:
        return build_library(args)
    rng, verdicts, largest, wrong, began = random.Random(args.seed), Counter(), 0.0, [], time.monotonic()
    for at in range(args.count):
        options = drawn(rng, at)
        try:
            verdict, ratio = check(options)
        except HgemmError as error:
            verdict, ratio = f"failed: {error}", 0.0
        largest = max(largest, ratio)
        verdicts[verdict.partition(":")[0]] += 1
        if verdict.startswith("failed"):
            wrong.append({"options": options, "reason": verdict})
            print(json.dumps(wrong[-1]), flush=True)
    found = {
        "expressions": args.count,
        "seed": args.seed,
        **verdicts,
        "max_bound_ratio": largest,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps({**found, "wrong": wrong}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
