"""Seed faults into the PTX of kernels, and see whether the checks of PTX find them.

    python -m benchmarks.ptx_faults SYMBOL... [--library DIR] [--most 20] [--only drop,flip] [--shapes SHAPES] [-j 2] [--json FILE]

Faults are generated from the table of instructions: each instruction that orders something is dropped or weakened, predicates are
flipped, constants are halved, registers are swapped. `--most` faults of each kernel are run, spread over all of them; 0 runs
all. The table lists what found each fault. A fault that nothing finds is a gap, or leaves the kernel equivalent. No GPU is
needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generator.device_check import CheckOutcome
from generator.proof.jobs import host_toolchain, pack, request_of, workers
from generator.ptx.instructions import row_of
from generator.ptx.parser import Instruction, parse
from generator.store.library import Library
from generator.tables import to_text
from hgemm.record import PTX_NAME

TIMEOUT_S = 60.0
MISSED = "nothing"
_WAITS = re.compile(r"(wait_group(?:\.read)?(?:\.sync\.aligned)?\s+)(\d+);")
_NUMBER = re.compile(r"\b(\d+);")
_PREDICATE = re.compile(r"@(!?)(%?\w+)")
_FIRST_LIST = re.compile(r"\{([^{},]+),([^{},]+)((?:,[^{}]*)?)\}")
_HALVED = re.compile(r"(mov\.u32\s+%\w+,\s+)(\d+);")


@dataclass(frozen=True)
class PtxFault:
    """A fault: what was done to which line of a PTX text, and the text with the fault."""

    way: str
    line: int
    instruction: str
    ptx: str


def faults_of(ptx: str) -> Iterator[PtxFault]:
    """Yield all faults of a kernel, in the order of its lines."""
    lines = ptx.splitlines()
    kernel = parse(ptx).kernel()
    sizes = _expected_sizes(kernel.body)
    for one in kernel.body:
        if isinstance(one, Instruction):
            text = lines[one.line - 1]
            for way, changed in _changes(one, text, sizes):
                if changed != text:
                    whole = [*lines[: one.line - 1], changed, *lines[one.line :]]
                    yield PtxFault(way, one.line, " ".join(text.split())[:70], "\n".join(whole))


def _expected_sizes(body: tuple) -> set[str]:
    """Return the registers that hold the bytes or arrivals of mbarriers."""
    found = set()
    for one in body:
        if isinstance(one, Instruction) and re.match(r"mbarrier\.(init|arrive\.expect_tx)", one.opcode):
            found.add(getattr(one.operands[-1], "name", ""))
    return found


def _changes(one: Instruction, text: str, sizes: set[str]) -> Iterator[tuple[str, str]]:
    row, _ = row_of(one.opcode)
    name = one.opcode
    statement = re.compile(rf"(?:@!?%?\w+\s+)?{re.escape(name)}(?![\w.])[^;]*;")
    if row.ordering and not row.writes and not row.ordering.startswith("none"):
        yield "drop", statement.sub("", text, count=1)
    if _WAITS.search(text):
        yield "weaken", _WAITS.sub(lambda found: f"{found[1]}{int(found[2]) + 1};", text, count=1)
    if name == "membar.gl":
        yield "weaken", text.replace("membar.gl", "membar.cta")
    if one.predicate is not None:
        yield "flip", _PREDICATE.sub(lambda found: f"@{'' if found[1] else '!'}{found[2]}", text, count=1)
    if name == "mov.u32" and one.operands[0].name in sizes:
        yield "halve", _HALVED.sub(lambda found: f"{found[1]}{int(found[2]) // 2};", text)
    if name.startswith(("mma.sync", "ldmatrix", "stmatrix")):
        yield "swap", _FIRST_LIST.sub(r"{\2,\1\3}", text, count=1)


def spread(faults: list[PtxFault], most: int) -> list[PtxFault]:
    """Return at most so many faults, evenly spread over the ways and then over the lines."""
    if not most or len(faults) <= most:
        return faults
    by_way = {way: [one for one in faults if one.way == way] for way in dict.fromkeys(one.way for one in faults)}
    share = -(-most // len(by_way))
    chosen = [one for group in by_way.values() for one in group[:: max(1, -(-len(group) // share))]]
    return chosen[:most]


def found_by(outcome: CheckOutcome) -> str:
    """Return the kinds of findings of an outcome, or MISSED."""
    kinds = dict.fromkeys(finding["kind"] for check in outcome.checks for finding in check["findings"])
    if not all(check["numbers_passed"] for check in outcome.checks):
        kinds["numbers"] = None
    if outcome.error:
        kinds["error"] = None
    if not kinds and not outcome.passed:
        kinds["costs"] = None
    return ", ".join(kinds) or MISSED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("symbols", nargs="+")
    parser.add_argument("--library", type=Path, default=Path("emitted"))
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--only", default="", help="ways, separated by commas: drop, weaken, flip, halve, swap")
    parser.add_argument("--shapes", default="", help="shapes instead of the default cases")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    args = parser.parse_args()
    made, library, rows = host_toolchain(), Library(args.library), []
    made.executor()
    for symbol in args.symbols:
        variant = library.load(symbol)
        ptx = variant.artefacts[PTX_NAME].decode()
        ways = [way for way in args.only.split(",") if way]
        faults = spread([one for one in faults_of(ptx) if not ways or one.way in ways], args.most)
        request = request_of(made, "", variant.record.data, args.shapes)
        requests = [replace(request, ptx=pack(one.ptx.encode())) for one in faults]
        outcomes = workers(args.jobs, TIMEOUT_S).check_all(requests)
        for fault, (outcome, _) in zip(faults, outcomes, strict=True):
            rows.append(
                {
                    "kernel": symbol[-8:],
                    "line": fault.line,
                    "fault": fault.way,
                    "instruction": fault.instruction,
                    "found by": found_by(outcome),
                    "reason": outcome.reason[:160],
                }
            )
            print(f"{fault.way:7}{fault.line:6}  {found_by(outcome):32}  {fault.instruction}", file=sys.stderr)
    print(to_text(rows, ["kernel", "line", "fault", "instruction", "found by"]), end="")
    found = sum(row["found by"] != MISSED for row in rows)
    print(f"{found} of {len(rows)} faults are found")
    if args.json:
        args.json.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")
    return 0 if found == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
