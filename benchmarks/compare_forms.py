"""Time kernels that differ only in their form (atoms, CuTe, CuTe DSL), and compare their results bit by bit.

The forms of a spec run in alternating turns. `hgemm compare` builds and times one spec; this script needs a GPU and a library with
the kernels:

    generate --spec benchmarks/forms.toml --library forms       # anywhere
    python -m benchmarks.compare_forms forms --m 4096 --json forms_h200.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from generator.compare import BuiltForm, RunResult, columns
from generator.device_check import open_kernel
from generator.store.library import Library
from hgemm.cases import Case, Shape
from hgemm.device import Device, elapsed_ms, open_device
from hgemm.dtypes import decode
from hgemm.reference import reference
from hgemm.verification import CheckOptions, Trial, compare

_SHOWN = ("form", "time_us", "tflops", "registers", "cubin_bytes", "compile_s", "passed", "max_bound_ratio", "result")
CHECKED_ROWS = 64
TURN_MS = 20.0


def groups(library: Library) -> list[list[BuiltForm]]:
    """Return the kernels of each spec with several forms, atoms first."""
    found: dict[str, list[BuiltForm]] = defaultdict(list)
    for record in library.records():
        spec = {name: value for name, value in record.data["spec"].items() if name != "form"}
        found[json.dumps(spec, sort_keys=True)].append(BuiltForm(record.data["spec"].get("form", "atoms"), record))
    return [sorted(built, key=lambda one: one.form) for built in found.values() if len(built) > 1]


def race(built: list[BuiltForm], library: Library, device: Device, m: int, turns: int) -> list[BuiltForm]:
    """Run the forms of one spec on the same operands, check each D, and time them in turns of TURN_MS."""
    kernels = [open_kernel(library, one.record.symbol) for one in built]
    beta = 0.5 if built[0].record.data["spec"]["beta"] else 0.0
    case = Case(Shape(m, m, m), 1.0, beta)
    trial = Trial(kernels[0], case, device, CheckOptions(align_bytes=256), "normal")
    try:
        trial.prepare()
        problem, rows = trial.problem(), np.linspace(0, m - 1, CHECKED_ROWS).astype(int)
        expected = reference(trial.traits, trial.operands, rows, trial.splits)
        seen = []
        for kernel in kernels:
            trial.kernel = kernel
            found, failure = trial.launch(problem)
            check = compare(str(case), decode(found[:, rows], trial.traits.dtype_d), expected, "normal")
            seen.append(
                (check.passed and not failure, check.max_bound_ratio, hashlib.sha256(found.tobytes()).hexdigest())
            )
        launches = [kernel.bind(problem, device=device.ordinal) for kernel in kernels]
        count = max(1, round(TURN_MS / min(elapsed_ms(device, launches[0]) for _ in range(3))))

        def turn_us(launch) -> float:
            return elapsed_ms(device, lambda: [launch() for _ in range(count)]) / count * 1000

        times = [[turn_us(launch) for launch in launches] for _ in range(turns)]
        medians = [statistics.median(of_one) for of_one in zip(*times)]
    finally:
        trial.free()
    speeds = [{"time_us": time_us, "tflops": problem.flops / time_us * 1e-6} for time_us in medians]
    return [
        BuiltForm(one.form, one.record, RunResult(device.name, *checked, speed))
        for one, checked, speed in zip(built, seen, speeds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--m", type=int, default=4096, help="n and k are the same")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    library, device = Library(asked.library), open_device()
    written: list[list[dict[str, Any]]] = []
    for built in groups(library):
        written.append(columns(race(built, library, device, asked.m, asked.turns)))
        print(written[-1][0]["symbol"], flush=True)
        for column in written[-1]:
            print("  ", ", ".join(f"{name} {column[name]}" for name in _SHOWN), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps({"m": asked.m, "device": device.name, "specs": written}, indent=1))


if __name__ == "__main__":
    main()
