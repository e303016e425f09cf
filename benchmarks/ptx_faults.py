"""Seed faults into the PTX of kernels, and see whether the checks of PTX find them.

    python -m benchmarks.ptx_faults [--only drop,flip] [--most 16] [-j 2] [--json FILE]
    python -m benchmarks.ptx_faults SYMBOL... --library DIR

Without symbols, it builds the kernels of KERNELS. Faults are generated from the table of instructions. Each instruction that orders
something is dropped, weakened, or moved behind the next access of memory. Predicates are flipped, constants are halved, registers
are swapped. `--most` faults of each kernel are run, spread over all of them; 0 runs all. The table lists what found each fault, or
the rule of benchmarks/ptx_equivalence.py by which it changes nothing. The exit status is 1 if there is neither. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ptx_equivalence import equivalence
from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import CheckOutcome
from generator.errors import BuildError
from generator.proof.jobs import host_toolchain, request_of, workers
from generator.ptx.instructions import row_of
from generator.ptx.parser import Instruction, Label, PtxKernel, parse
from generator.store.library import Library
from generator.sweep import sweep
from generator.tables import to_text
from hgemm.record import PTX_NAME

_SM_80 = {"arch": "sm_80", "tile": "64x64x32", "stages": "3"}
_WGMMA = {"arch": "sm_90a", "tile": "64x64x64", "stages": "3", "schedule": "persistent"}
_AT_LAUNCH = {"schedule": "launch", "raster": "launch", "bias": "launch"}
KERNELS = {
    "mma_sync": _SM_80,
    "register copy": {"arch": "sm_75", "tile": "64x64x32", "stages": "2"},
    "mma_sync_tma": {"arch": "sm_90", "tile": "64x64x64", "copy": "tma", "stages": "3"},
    "cooperative": {**_WGMMA, "tile": "128x64x64", "cooperation": "cooperative"},
    "ping-pong": {**_WGMMA, "cooperation": "pingpong"},
    "wgmma cp_async": {"arch": "sm_90a", "tile": "64x64x64", "stages": "3", "copy": "cp_async", "mma": "m64n64k16"},
    "stream_k": {**_SM_80, "schedule": "stream_k"},
    "mma_sync_direct": {"arch": "sm_90", "tile": "16x64x128", "copy": "ldg"},
    "split_k_cluster": {**_WGMMA, "tile": "128x128x64", "schedule": "split_k_cluster:2"},
    "split_k_cluster, few subtiles": {**_WGMMA, "tile": "128x64x64", "schedule": "split_k_cluster:3"},
    "cluster of 2x2": {**_WGMMA, "tile": "128x64x64", "cooperation": "cooperative", "cluster": "2x2"},
    "stream_k, ping-pong": {**_WGMMA, "schedule": "stream_k", "cooperation": "pingpong", "cluster": "2x1"},
    "splits at launch": {**_WGMMA, **_AT_LAUNCH, "tile": "128x64x64", "serial_parts": "on", "cluster": "1x2"},
}
"""The options of the kernels that faults are seeded into: each family, copy and schedule that waits in another way."""
TIMEOUT_S = 60.0
MISSED, EQUIVALENT = "nothing", "equivalent"
_PATH = re.compile(r"(?<=\s)/\S+: ")
_WAITS = re.compile(r"(wait_group(?:\.read)?(?:\.sync\.aligned)?\s+)(\d+);")
_NUMBER = re.compile(r"\b(\d+);")
_PREDICATE = re.compile(r"@(!?)(%?\w+)")
_FIRST_LIST = re.compile(r"\{([^{},]+),([^{},]+)((?:,[^{}]*)?)\}")
_HALVED = re.compile(r"(mov\.u32\s+%\w+,\s+)(\d+);")


@dataclass(frozen=True)
class PtxFault:
    """A fault: what was done to which line of a PTX text, the text with the fault, and why it changes nothing, if so."""

    way: str
    line: int
    instruction: str
    ptx: str
    equivalent: str = ""


def faults_of(ptx: str) -> Iterator[PtxFault]:
    """Yield all faults of a kernel, in the order of its lines."""
    lines = ptx.splitlines()
    kernel = parse(ptx).kernel()
    sizes = _expected_sizes(kernel.body)
    for place, one in enumerate(kernel.body):
        if isinstance(one, Instruction):
            text = lines[one.line - 1]
            shown = " ".join(text.split())[:70]
            for way, changed in _changes(one, text, sizes):
                if changed != text:
                    whole = [*lines[: one.line - 1], changed, *lines[one.line :]]
                    reason = equivalence(kernel, place, way)
                    yield PtxFault(way, one.line, shown, "\n".join(whole), reason)
            after = _next_access(kernel, place)
            if after and _orders(one) and not row_of(one.opcode)[0].memory and text.strip().endswith(";"):
                end = next(at for at in range(after.line - 1, len(lines)) if ";" in lines[at]) + 1
                whole = [*lines[: one.line - 1], "", *lines[one.line : end], text, *lines[end:]]
                yield PtxFault("move", one.line, shown, "\n".join(whole), equivalence(kernel, place, "move", after))


def _orders(one: Instruction) -> bool:
    """Return whether an instruction has no result, and orders something."""
    row, _ = row_of(one.opcode)
    return bool(row.ordering) and not row.writes and not row.ordering.startswith("none")


def _next_access(kernel: PtxKernel, place: int) -> Instruction | None:
    """Return the next instruction that accesses memory, if nothing else that orders or branches is before it."""
    for one in kernel.body[place + 1 :]:
        if isinstance(one, Label) or one.opcode.startswith(("bra", "ret", "exit")):
            return None
        row, _ = row_of(one.opcode)
        if row.memory and "param" not in row.memory:
            return one
        if row.ordering and not row.ordering.startswith("none"):
            return None
    return None


def _expected_sizes(body: tuple) -> set[str]:
    """Return the registers that hold the bytes or arrivals of mbarriers."""
    found = set()
    for one in body:
        if isinstance(one, Instruction) and re.match(r"mbarrier\.(init|arrive\.expect_tx)", one.opcode):
            found.add(getattr(one.operands[-1], "name", ""))
    return found


def _changes(one: Instruction, text: str, sizes: set[str]) -> Iterator[tuple[str, str]]:
    name = one.opcode
    statement = re.compile(rf"(?:@!?%?\w+\s+)?{re.escape(name)}(?![\w.])[^;]*;")
    if _orders(one):
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


def built(options: dict[str, str], library: Library) -> str:
    """Build a kernel and return its symbol. Raises: BuildError if it cannot be built."""
    (plan,) = sweep([options]).plans
    ((_, outcome),) = make([plan], Settings(library, templates_folder()), 0)
    if not outcome.record:
        raise BuildError(outcome.symbol, outcome.error)
    return outcome.symbol


def rows_of(name: str, symbol: str, library: Library, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield a row for each fault of a kernel that is run."""
    made, stored = host_toolchain(), library.load(symbol)
    ways = [way for way in args.only.split(",") if way]
    faults = [one for one in faults_of(stored.artefacts[PTX_NAME].decode()) if not ways or one.way in ways]
    faults = spread(faults, args.most)
    requests = [request_of(made, one.ptx.encode(), stored.record.data, args.shapes) for one in faults]
    for fault, (outcome, _) in zip(faults, workers(args.jobs, TIMEOUT_S).check_all(requests), strict=True):
        found = found_by(outcome)
        print(f"{name:30}{fault.way:7}{fault.line:6}  {found:32}  {fault.instruction}", file=sys.stderr)
        yield {
            "kernel": name,
            "line": fault.line,
            "fault": fault.way,
            "instruction": fault.instruction,
            "found by": EQUIVALENT if found == MISSED and fault.equivalent else found,
            "reason": fault.equivalent if found == MISSED else _PATH.sub("", outcome.reason)[:100],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("symbols", nargs="*", help="kernels of --library; default: those of KERNELS")
    parser.add_argument("--library", type=Path, default=Path("emitted"))
    parser.add_argument("--most", type=int, default=16)
    parser.add_argument("--only", default="", help="ways, separated by commas: drop, weaken, move, flip, halve, swap")
    parser.add_argument("--shapes", default="", help="shapes instead of the default cases")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    args = parser.parse_args()
    host_toolchain().executor()
    with tempfile.TemporaryDirectory() as folder:
        library = Library(args.library if args.symbols else Path(folder))
        symbols = {symbol[-8:]: symbol for symbol in args.symbols}
        symbols = symbols or {name: built(options, library) for name, options in KERNELS.items()}
        rows = [row for name, symbol in symbols.items() for row in rows_of(name, symbol, library, args)]
    print(to_text(rows, ["kernel", "line", "fault", "instruction", "found by"]), end="")
    found = sum(row["found by"] not in (MISSED, EQUIVALENT) for row in rows)
    equivalent = sum(row["found by"] == EQUIVALENT for row in rows)
    print(f"{found} of {len(rows)} faults are found, {equivalent} change nothing")
    if args.json:
        texts = [json.dumps(row) for row in rows]
        lines = [", ".join(texts[at : at + 10]) for at in range(0, len(texts), 10)]
        args.json.write_text("[\n " + ",\n ".join(lines) + "\n]\n")
    return 0 if found + equivalent == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
