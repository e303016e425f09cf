"""Faults seeded into the templates, to see whether what checks kernels finds them: each is one change of one text.

    python -m benchmarks.faults [--seed 0] [--only NAME,...] [-j 2] [--json FILE]

Builds a kernel from templates with each fault in turn, proves it on the CPU, and prints what caught the fault. A fault that
nothing catches, or whose text the templates do not have exactly once, makes the exit status 1. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fault_table_copied import FAULTS_COPIED
from benchmarks.fault_table_sm75 import FAULTS_SM75
from benchmarks.fault_table_sm80 import FAULTS_SM80, NUMBERS, Fault
from benchmarks.fault_table_sm90 import FAULTS_SM90
from benchmarks.fault_table_tma import FAULTS_TMA
from generator.commands.device_check import Outcome
from generator.commands.emulate import workshop
from generator.commands.emulated_check import Request, request_of, workers
from generator.commands.table import to_text
from generator.emit import emit
from generator.executor.build import Workshop
from generator.register import planned
from generator.sweep import sweep
from generator.toolchain import templates_folder

TIMEOUT_S = 60.0
FAULTS = (*FAULTS_SM80, *FAULTS_SM75, *FAULTS_SM90, *FAULTS_TMA, *FAULTS_COPIED)
# ---- Templates with a fault -------------------------------------------------------------------------------------------


@contextmanager
def faulty_templates(fault: Fault | None) -> Iterator[Path]:
    """Make a copy of the templates with a fault in it for a while. Raises: LookupError where its text is not there once."""
    with tempfile.TemporaryDirectory() as folder:
        templates = Path(folder) / "templates"
        shutil.copytree(templates_folder(), templates)
        if fault:
            seed_fault(fault, templates)
        yield templates


def seed_fault(fault: Fault, templates: Path) -> None:
    """Change the one text. Raises: LookupError where it does not stand there exactly once."""
    place = templates / fault.file
    text = place.read_text()
    if text.count(fault.before) != 1:
        raise LookupError(
            f"fault '{fault.name}': its text stands {text.count(fault.before)} times in {fault.file}, not once"
        )
    place.write_text(text.replace(fault.before, fault.after))


def slug(fault: Fault) -> str:
    """Return a fault's name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", fault.name.lower()).strip("-")


@dataclass(frozen=True)
class Caught:
    """What became of a fault: the findings by kind, NUMBERS where D was wrong, and the first one in words."""

    fault: Fault
    by: tuple[str, ...]
    told: str
    seed: int

    @property
    def as_expected(self) -> bool:
        return bool({*self.by} & {*self.fault.caught_by})

    def row(self) -> dict[str, str | int]:
        by = ", ".join(self.by) or "NOT FOUND"
        return {"fault": self.fault.name, "caught by": by, "seed": self.seed, "first finding": self.told[:100]}


def in_a_process(request: Request) -> Outcome:
    """Prove a kernel where its crash harms nothing."""
    outcome, _ = workers(1, TIMEOUT_S).check(request)
    return outcome


def catch(
    fault: Fault,
    made: Workshop,
    seed: int,
    seeded: bool = True,
    check: Callable[[Request], Outcome] = in_a_process,
) -> Caught:
    """Prove the kernel of a fault, with the fault in it or, as it should be, without."""
    with faulty_templates(fault if seeded else None) as templates:
        (plan,) = sweep([fault.options]).plans
        kernel = emit(plan, templates)
        record = {**planned(kernel), "proof": {"mma_per_tile": plan.mma_per_k_tile}}
        request = request_of(replace(made, templates=templates), kernel.source, record, fault.shapes, seed)
        outcome = check(request)
    return Caught(fault, *_by(outcome), seed)


def _by(outcome: Outcome) -> tuple[tuple[str, ...], str]:
    kinds = {finding["kind"]: None for check in outcome.checks for finding in check["findings"]}
    if not all(check["numbers_passed"] for check in outcome.checks):
        kinds[NUMBERS] = None
    if outcome.error:
        kinds["error"] = None
    return tuple(kinds), "" if outcome.passed else outcome.reason


def catch_all(faults: Sequence[Fault], seed: int, jobs: int, seeded: bool = True) -> list[Caught]:
    """Prove the kernels of faults in several processes."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(partial(catch, made=workshop(), seed=seed, seeded=seeded), faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="parts of names, that commas part")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    words = [word for word in args.only.split(",") if word]
    faults = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    try:
        caught = catch_all(faults, args.seed, args.jobs)
    except LookupError as error:
        sys.exit(f"faults: {error}")
    rows = [one.row() for one in caught]
    print(to_text(rows, ["fault", "caught by", "seed", "first finding"]), end="")
    found = sum(one.as_expected for one in caught)
    print(f"{found} of {len(caught)} faults are caught as expected")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if found == len(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
