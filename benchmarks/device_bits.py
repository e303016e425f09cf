"""Compare the bits of a library's kernels on this machine's GPU with the CPU executor, and with the order of their records.

    python -m benchmarks.device_bits --library DIR [--json FILE] [-j 8] [--seed 0]

The executor runs each kernel's PTX with the arithmetic of the GPU, in several processes. A kernel passes if all bytes of D are as
the executor computes them, and as its order of accumulation predicts them. cuBLASLt's results are compared, too.
`hgemm verify --device --bits` does the same without the executor. Needs a C++ compiler and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generator.device_bits import (
    KINDS,
    BitsCheck,
    ProductTrial,
    bits_line,
    classes_of,
    compare,
    digest_of,
    fitted,
    products,
)
from generator.proof.bits import adder
from generator.proof.executor import Adversary
from generator.proof.jobs import host_toolchain
from generator.proof.machine import EmulatedKernel, HostMemory
from generator.proof.sandbox import SandboxedExecutable
from generator.store.library import Library
from hgemm.device import open_device
from hgemm.errors import HgemmError
from hgemm.launch_traits import LaunchTraits
from hgemm.record import PTX_NAME


def executed(symbol: str, library: Path, arch: int, seed: int, count: int) -> dict[str, str]:
    """Return the digests of a kernel's results on the CPU executor, by product, or the error."""
    made, stored = host_toolchain(), Library(library).load(symbol)
    traits = replace(LaunchTraits.of(stored.record.data), arch=f"sm_{arch}")
    ptx = stored.artefacts[PTX_NAME].decode()
    try:
        executable = SandboxedExecutable(made.executable(symbol, ptx), made.runner(), ptx)
        kernel = EmulatedKernel(traits, executable, (Adversary("late", "ahead_low", 1),))
        found = {}
        for product in (fitted(traits, one) for one in products(count, seed)):
            trial = ProductTrial(kernel, product, HostMemory(), seed)
            try:
                found[str(product)] = digest_of(trial.bits())
            finally:
                trial.free()
        return found
    except HgemmError as error:
        return {"error": str(error)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=len(KINDS), help="products for each kernel")
    parser.add_argument("-j", "--jobs", type=int, default=8)
    options = parser.parse_args()
    began = time.monotonic()
    made, library = host_toolchain(), Library(options.library)
    made.executor(), made.runner()  # once, before several processes need them
    symbols = [row["symbol"] for row in library.rows()]
    device = open_device()
    major, minor = device.capability
    task = partial(executed, library=options.library, arch=major * 10 + minor, seed=options.seed, count=options.count)
    check = BitsCheck(library, device, adder(made.ordered_sum()), options.count, options.seed)
    found, summary = compare(check, symbols)
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = pool.map(task, symbols)
        outcomes = list(found)
        on_cpu = dict(zip(symbols, runs))
    equal, differing = 0, []
    for outcome in outcomes:
        print(bits_line(outcome))
        for check_ in outcome.checks:
            if not check_["passed"]:
                print(f"    {check_['case']}: {check_['reason']}")
        for name, digest in (outcome.digests or {}).items():
            if on_cpu[outcome.symbol].get(name) == digest:
                equal += 1
            else:
                differing.append(f"{outcome.symbol} {name} {on_cpu[outcome.symbol].get('error', '')}".strip())
    print(summary(outcomes))
    print(f"{equal} products have the executor's bytes, {len(differing)} differ; {time.monotonic() - began:.0f} s")
    print(*differing, sep="\n")
    if options.json:
        document = {
            "device": device.name,
            "date": time.strftime("%Y-%m-%d"),
            "seed": options.seed,
            "kernels": sum(bool(outcome.digests) for outcome in outcomes),
            "products": sum(len(outcome.checks) for outcome in outcomes),
            "as_predicted": sum(outcome.passed_cases for outcome in outcomes),
            "as_executed": equal,
            "elements": sum(outcome.elements for outcome in outcomes),
            "failed": {outcome.symbol: outcome.reason for outcome in outcomes if outcome.failed},
            "not_as_executed": differing,
            "skipped": {outcome.symbol: outcome.skipped for outcome in outcomes if outcome.skipped},
            "classes": {" | ".join(key): dict(results) for key, results in classes_of(outcomes).items()},
            "cublaslt": summary.keywords["cublaslt"],
            "symbols": [outcome.symbol for outcome in outcomes if outcome.digests],
        }
        options.json.write_text(json.dumps(document) + "\n")
    return int(bool(differing) or any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
