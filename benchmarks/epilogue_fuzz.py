"""Random epilogues on the CPU executor: each is compiled, run and compared with its float64 reference.

    python -m benchmarks.epilogue_fuzz [--count 300] [--seed 0] [--json FILE]

The kernels are of all families in turn, in form atoms. The exit status is 1 if a kernel does not compile, spills registers without
being refused, or has a wrong result. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.errors import HgemmError
from generator.proof.jobs import Text, host_toolchain
from generator.proof.proving import Subject, prove
from generator.sweep import sweep
from hgemm.cases import Shape
from hgemm.epilogue import OPERATIONS
from hgemm.verify import UNBOUNDED

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
SHAPES = (Shape(33, 41, 40), Shape(65, 25, 70, 2), Shape(17, 64, 96))
"""Every second one has gaps after rows, and scalars by pointer."""
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


def formula(rng: random.Random) -> str:
    """Return a random epilogue of depth 2 to 6. The accumulator always matters."""
    return _TYPES.format(rng.choice(("f16", "bf16", "f32"))) + f"0.25 * acc + {expression(rng, rng.randint(2, 6))}"


def check(options: dict[str, str]) -> tuple[str, float]:
    """Return the verdict on a kernel, and its largest error as a share of the bound."""
    asked = sweep([options])
    if not asked.plans:
        return "refused", 0.0
    kernel = emit(asked.plans[0], templates_folder())
    text = Text.of(kernel)
    subject = Subject(kernel.symbol, text.ptx(templates_folder()).decode(), text.record, kernel.plan.mma_per_k_tile)
    checks = prove(subject, host_toolchain(), SHAPES).checks
    failed = [one for one in checks if not one.passed]
    if failed:
        return f"failed: {failed[0].case}: {failed[0].reason}", failed[0].max_bound_ratio
    ratio = max(one.max_bound_ratio for one in checks)
    return ("no bound" if all(one.reason == UNBOUNDED for one in checks) else "passed"), ratio


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    rng, verdicts, largest, wrong, began = random.Random(args.seed), Counter(), 0.0, [], time.monotonic()
    for at in range(args.count):
        options = {**FAMILIES[at % len(FAMILIES)], "epilogue": formula(rng)}
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
