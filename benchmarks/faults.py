"""Seed faults into the templates, and see whether the checks of kernels find them.

    python -m benchmarks.faults [--seed 0] [--only NAME,...] [-j 2] [--json FILE]
    python -m benchmarks.faults --default
    python -m benchmarks.faults --resolve

Compiles a kernel from templates with each fault of benchmarks/fault_table.py in turn, runs its PTX on the CPU, and prints what
found the fault. The exit status is 1 if nothing finds a fault, or if its anchor does not fit one place of the templates.
`--default` runs the cases of a proof instead of the problems in the
table. `--resolve` only checks the anchors, which takes a second. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.anchors import KERNEL, AnchorError, Program
from benchmarks.fault_table import DEFAULT_CASES, FAULTS, NUMBERS, Fault
from generator.build.emit import EmittedKernel, emit
from generator.build.toolchain import templates_folder
from generator.device_check import CheckOutcome
from generator.errors import BuildError
from generator.proof.executor import HostToolchain
from generator.proof.jobs import ProofRequest, ProofSource, host_toolchain, request_of, workers
from generator.sweep import sweep
from generator.tables import to_text
from hgemm.errors import HgemmError

TIMEOUT_S = 60.0
_PATH = re.compile(r"(?<=\s)/\S+: ")
"""A path in a compiler's message."""

# ---- Templates with a fault -------------------------------------------------------------------------------------------


def kernel_of(fault: Fault) -> EmittedKernel:
    """Return the kernel that a fault is seeded into, without the fault."""
    (plan,) = sweep([fault.options]).plans
    return emit(plan, templates_folder())


def seeded_texts(fault: Fault, source: str) -> dict[str, str]:
    """Return the texts that a fault changes: headers by their names in the templates, or KERNEL for the kernel's own.

    Raises: AnchorError if an anchor does not fit one place.
    """
    program = Program.of(source, templates_folder())
    try:
        return program.edited(fault.edits).changes_from(program)
    except AnchorError as error:
        raise AnchorError(f"fault '{fault.name}': {error}") from None


@contextmanager
def templates_with(texts: dict[str, str]) -> Iterator[Path]:
    """Make a copy of the templates with some texts replaced, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        templates = Path(folder) / "templates"
        _link(templates_folder(), templates, {*texts})
        for name, text in texts.items():
            (templates / name).write_text(text)
        yield templates


def _link(source: Path, target: Path, left_out: set[str]) -> None:
    """Make a folder of links to all entries of another, except the files that are left out."""
    target.mkdir()
    for entry in source.iterdir():
        inside = {name.partition("/")[2] for name in left_out if name.partition("/")[0] == entry.name}
        if not inside:
            (target / entry.name).symlink_to(entry)
        elif entry.is_dir():
            _link(entry, target / entry.name, inside)


@contextmanager
def faulty_templates(fault: Fault) -> Iterator[Path]:
    """Make a copy of the templates with a fault in it, for a while.

    Raises: AnchorError if an anchor does not fit one place, or one of a header.
    """
    texts = seeded_texts(fault, kernel_of(fault).source)
    if KERNEL in texts:
        raise AnchorError(f"fault '{fault.name}' changes {KERNEL}, which the templates do not contain")
    with templates_with(texts) as templates:
        yield templates


def unresolved(faults: Sequence[Fault]) -> list[str]:
    """Return why anchors do not fit one place, one message for each such fault."""
    messages = []
    for fault in faults:
        try:
            seeded_texts(fault, kernel_of(fault).source)
        except AnchorError as error:
            messages.append(str(error))
    return messages


def slug(fault: Fault) -> str:
    """Return a fault's name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", fault.name.lower()).strip("-")


# ---- Checks of their kernels ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caught:
    """The findings of a fault by kind, with NUMBERS if D was wrong, and the first one in words."""

    fault: Fault
    by: tuple[str, ...]
    first_finding: str
    seed: int

    @property
    def as_expected(self) -> bool:
        found = bool({*self.by} & {*self.fault.caught_by} if self.fault.caught_by else self.first_finding)
        return found != bool(self.fault.unfound)

    def row(self) -> dict[str, str | int]:
        by = ", ".join(self.by) or ("failed check" if self.first_finding else "not found, as expected")
        by = by if self.as_expected or self.first_finding else "NOT FOUND"
        return {
            "fault": self.fault.name,
            "caught by": by,
            "seed": self.seed,
            "first finding": _PATH.sub("", self.first_finding)[:100] or self.fault.unfound,
        }


def in_a_process(request: ProofRequest) -> CheckOutcome:
    """Check a kernel in a process of its own, which a crash may end."""
    outcome, _ = workers(1, TIMEOUT_S).check(request)
    return outcome


def catch(
    fault: Fault,
    made: HostToolchain,
    seed: int,
    seeded: bool = True,
    check: Callable[[ProofRequest], CheckOutcome] = in_a_process,
) -> Caught:
    """Check the kernel of a fault, with the fault in it or without."""
    kernel = kernel_of(fault)
    texts = seeded_texts(fault, kernel.source) if seeded else {}
    source = texts.pop(KERNEL, kernel.source)
    with templates_with(texts) as templates:
        text = replace(ProofSource.of(kernel), kernel=replace(kernel, source=source))
        try:
            ptx = text.ptx(templates)
        except BuildError as error:
            return Caught(fault, ("error",), str(error).splitlines()[0], seed)
    try:
        outcome = check(request_of(made, ptx, text.record, fault.shapes, seed))
    except HgemmError as error:  # in this process; a process of its own reports it
        outcome = CheckOutcome(kernel.symbol, error=str(error))
    return Caught(fault, *_by(outcome), seed)


def _by(outcome: CheckOutcome) -> tuple[tuple[str, ...], str]:
    kinds = {finding["kind"]: None for check in outcome.checks for finding in check["findings"]}
    if not all(check["numbers_passed"] for check in outcome.checks):
        kinds[NUMBERS] = None
    if outcome.error:
        kinds["error"] = None
    return tuple(kinds), "" if outcome.passed else outcome.reason


def catch_all(faults: Sequence[Fault], seed: int, jobs: int, seeded: bool = True) -> list[Caught]:
    """Check the kernels of faults in several processes."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(partial(catch, made=host_toolchain(), seed=seed, seeded=seeded), faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--default", action="store_true", help="run the cases of a proof for every fault")
    parser.add_argument("--resolve", action="store_true", help="only check that each anchor fits one place")
    args = parser.parse_args()
    words = [word for word in args.only.split(",") if word]
    faults = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    if args.default:
        faults = [replace(fault, shapes=DEFAULT_CASES) for fault in faults]
    messages = unresolved(faults)
    if messages:
        print("\n".join(messages), file=sys.stderr)
        return 1
    if args.resolve:
        print(f"the anchors of {len(faults)} faults resolve")
        return 0
    caught = catch_all(faults, args.seed, args.jobs)
    rows = [one.row() for one in caught]
    print(to_text(rows, ["fault", "caught by", "seed", "first finding"]), end="")
    found = sum(one.as_expected for one in caught)
    print(f"{found} of {len(caught)} faults are caught as expected")
    if args.json:
        texts = [json.dumps(row) for row in rows]
        lines = [", ".join(texts[at : at + 4]) for at in range(0, len(texts), 4)]
        args.json.write_text("[\n " + ",\n ".join(lines) + "\n]\n")
    return 0 if found == len(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
