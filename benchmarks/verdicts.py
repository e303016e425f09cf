"""Compare the verdicts of the CPU check with a GPU, for sound and for faulty kernels.

    python -m benchmarks.verdicts prepare build/verdicts        # anywhere: builds the kernels and runs them on the CPU
    python -m benchmarks.verdicts compare build/verdicts [--json FILE]      # where the GPU is

Both check the same shapes with the same operands, reference and bound. A case agrees if both pass it or both fail it. A case is
latent if the CPU check reports a finding, such as a race, and the numbers on the GPU are right. Everything else is a
disagreement, and the exit status is 1. Kernels that hang on the CPU are not run on the GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generator.device_check import CheckOutcome, CheckRequest, CheckWorkers

SHAPES = "256x256x256,129x257x95,33x65x17@3,1x1x1,64x64x1000,127x61x509,200x8x72,17x300x33@2"
VERDICTS = "verdicts.json"
TIMEOUT_S = 60.0
SOUND = "sound"
"""The folder of the kernels without a fault. Each fault has a folder with its name."""
_BASES = (
    {"arch": "sm_90", "tile": "128x128x32"},
    {"arch": "sm_80", "tile": "64x64x32"},
    {"arch": "sm_89", "tile": "96x48x48", "stages": "2"},
    {"arch": "sm_90", "tile": "32x64x64", "store": "direct"},
)
_CHANGES = (
    {},
    {"layout": "nn"},
    {"layout": "nt"},
    {"layout": "tt", "align": "4"},
    {"dtype": "bf16", "out": "f32", "align_d": "4"},
    {"acc": "f16", "bias": "row", "activation": "relu"},
    {"acc": "f16_promoted", "bias": "column", "activation": "gelu"},
    {"schedule": "split_k:3", "align": "1"},
    {"schedule": "persistent", "raster": "column", "smem": "none"},
)
"""Each change applied to each base is a kernel."""
_WGMMA = (
    {},
    {"layout": "nn", "tile": "128x128x64", "cluster": "1x1"},
    {"layout": "nt", "tile": "128x192x64", "cluster": "1x2"},
    {"acc": "f16", "tile": "256x128x64"},
    {"tile": "64x256x64", "cooperation": "pingpong"},
    {"tile": "128x64x64", "swap_ab": "on"},
    {"tile": "128x128x64", "schedule": "split_k:3", "bias": "row"},
)
"""Kernels for sm_90a."""


@dataclass(frozen=True)
class Case:
    """The result of one case of one kernel on the CPU."""

    library: str
    symbol: str
    case: str
    passed: bool
    numbers_passed: bool
    kinds: tuple[str, ...]

    def against(self, passed: bool) -> str:
        """Return how the GPU's verdict compares with the CPU's: agrees, latent or disagrees."""
        if passed == self.passed:
            return "agrees"
        return "latent" if self.kinds and passed else "disagrees"


# ---- Where there is a compiler --------------------------------------------------------------------------------------


def prepare(folder: Path, jobs: int) -> int:
    """Build all kernels into libraries under `folder`, run them on the CPU, and write the verdicts."""
    from benchmarks.faults import FAULTS, faulty_templates, slug
    from generator.build.pipeline import Settings, make
    from generator.build.toolchain import templates_folder
    from generator.proof.jobs import Emulation, host_toolchain
    from generator.store.library import Library
    from generator.sweep import sweep

    made = host_toolchain()
    cases: list[Case] = []

    def build(name: str, requests: list[dict[str, str]], templates: Path, shapes: str) -> None:
        library = Library(folder / name)
        outcomes = [outcome for _, outcome in make(sweep(requests).plans, Settings(library, templates), jobs)]
        failed = [outcome.error for outcome in outcomes if outcome.error]
        if failed and name == SOUND:
            raise SystemExit(f"verdicts: {failed[0]}")
        if failed:  # inspection rejects it: for example, the compiler adds a missing wait
            print(f"{name}: left out, {failed[0]}", flush=True)
            return
        emulation = Emulation(library, replace(made, templates=templates), shapes, jobs=jobs, force=True)
        found = list(emulation.outcomes([outcome.symbol for outcome in outcomes]))
        cases.extend(case for outcome in found for case in _cases(name, outcome))
        print(f"{name}: {len(found)} kernels, {sum(one.passed for one in found)} without a finding", flush=True)

    wanted = [{**base, **change} for base in _BASES for change in _CHANGES]
    wanted += [{"arch": "sm_90a", **change} for change in _WGMMA]
    build(SOUND, wanted, templates_folder(), SHAPES)
    for fault in FAULTS:
        with faulty_templates(fault) as templates:
            build(slug(fault), [fault.options], templates, f"{fault.shapes},{SHAPES}")
    document = {
        "executor": made.version(),
        "host_compiler": made.compiler.identity,
        "cases": [vars(one) for one in cases],
    }
    (folder / VERDICTS).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(cases)} verdicts in {folder / VERDICTS}")
    return 0


def _cases(library: str, outcome: CheckOutcome) -> Iterator[Case]:
    if outcome.error:
        raise SystemExit(f"verdicts: {outcome.symbol}: {outcome.error}")
    for check in outcome.checks:
        kinds = tuple(dict.fromkeys(finding["kind"] for finding in check["findings"]))
        yield Case(library, outcome.symbol, check["case"], check["passed"], check["numbers_passed"], kinds)


# ---- Where there is a GPU -------------------------------------------------------------------------------------------


def compare(folder: Path, jobs: int, json_path: Path | None) -> int:
    """Run every kernel on the GPU, print how each compares with the CPU, and return the exit status."""
    from hgemm.device import checked, driver, open_device

    device = open_device()
    document = json.loads((folder / VERDICTS).read_text())
    expected: dict[tuple[str, str], list[Case]] = {}
    for row in document["cases"]:
        case = Case(**{**row, "kinds": tuple(row["kinds"])})
        expected.setdefault((case.library, case.symbol), []).append(case)
    hanging = [name for name, cases in expected.items() if any("deadlock" in case.kinds for case in cases)]
    for name in hanging:
        print(f"{name[0]:58}  left out: it would hang", flush=True)
        del expected[name]
    requests = [
        CheckRequest(str((folder / library).resolve()), symbol, _shapes(cases))
        for (library, symbol), cases in expected.items()
    ]
    rows: list[dict] = []
    for cases, (outcome, _) in zip(expected.values(), CheckWorkers(jobs, TIMEOUT_S).check_all(requests)):
        here = list(_compared(cases, outcome))
        rows += here
        counts = Counter(row["stands"] for row in here)
        text = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        print(f"{cases[0].library:58}  {text}  {outcome.error or outcome.skipped}", flush=True)
    return _summed_up(rows, document, device.name, checked(driver().cuDriverGetVersion(), "ask the driver"), json_path)


def _shapes(cases: list[Case]) -> str:
    """Return the shapes of the cases in order, from which `cases_of` makes the same cases."""
    return ",".join(case.case.split()[0] for case in cases)


def _compared(cases: list[Case], outcome: CheckOutcome) -> Iterator[dict]:
    """Yield a row per case that ran on the GPU. The case at which the device failed counts as failed."""
    checks = {check["case"]: check for check in outcome.checks}
    for case in cases:
        check = checks.get(case.case)
        if check is None and not outcome.error.startswith(f"{case.case}: "):
            continue
        passed = bool(check and check["passed"])
        reason = check["reason"] if check else outcome.error
        yield {**vars(case), "gpu_passed": passed, "gpu_reason": reason, "stands": case.against(passed)}


def _summed_up(rows: list[dict], document: dict, device: str, driver_version: int, json_path: Path | None) -> int:
    counts = {
        name: Counter(row["stands"] for row in rows if (row["library"] == SOUND) == sound)
        for name, sound in (("sound", True), ("faulty", False))
    }
    kernels = len({(row["library"], row["symbol"]) for row in rows})
    for name, count in counts.items():
        print(f"{name} kernels: " + ", ".join(f"{n} cases {word}" for word, n in sorted(count.items())))
    for row in rows:
        if row["stands"] == "disagrees":
            print(
                f"DISAGREES  {row['library']}  {row['case']}: executor {row['passed']} {row['kinds']}, GPU {row['gpu_reason']}"
            )
    if json_path:
        found = {
            "device": device,
            "driver": driver_version,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "executor": document["executor"],
            "kernels": kernels,
            "counts": counts,
            "latent": [row for row in rows if row["stands"] == "latent"],
            "disagreements": [row for row in rows if row["stands"] == "disagrees"],
            "cases": [
                {name: row[name] for name in ("library", "symbol", "case", "passed", "gpu_passed")} for row in rows
            ],
        }
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(count["disagrees"] for count in counts.values()) or not rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prepare", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    return prepare(args.folder, args.jobs) if args.what == "prepare" else compare(args.folder, args.jobs, args.json)


if __name__ == "__main__":
    sys.exit(main())
