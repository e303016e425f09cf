"""Read ptxas's report (`-v`) of each kernel: registers, stack, spills, shared memory and warnings."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(r"ptxas\b.*(?:\(C\d+\)|\bwarning\b)", re.IGNORECASE)


@dataclass(frozen=True)
class PtxasReport:
    """What ptxas says of one kernel and of the functions that it calls; spills are counted once an instruction."""

    symbol: str
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_smem_bytes: int

    @property
    def spill_bytes(self) -> int:
        """Bytes stored and loaded again, together."""
        return self.spill_store_bytes + self.spill_load_bytes


def parse_ptxas_log(log: str) -> dict[str, PtxasReport]:
    """Return the report of each kernel by symbol; none for a log that ptxas wrote without `-v`."""
    starts = list(_ENTRY.finditer(log))
    ends = [start.start() for start in starts[1:]] + [len(log)]
    return {start[1]: _report(start, log[start.end() : end]) for start, end in zip(starts, ends)}


def ptxas_warnings(log: str) -> tuple[str, ...]:
    """Return the lines in which ptxas warns, such as C7510 (wgmma serialised) and C7508 (setmaxnreg ignored)."""
    lines = (" ".join(line.strip("\0").split()) for line in log.splitlines())
    return tuple(dict.fromkeys(line for line in lines if _WARNING.match(line)))


def _report(start: re.Match[str], text: str) -> PtxasReport:
    functions = [tuple(map(int, match.groups())) for match in _STACK.finditer(text)]
    used, smem = _USED.search(text), _SMEM.search(text)
    return PtxasReport(
        symbol=start[1],
        arch=start[2],
        registers=int(used[1]) if used else 0,
        stack_bytes=max((stack for stack, _, _ in functions), default=0),
        spill_store_bytes=sum(stores for _, stores, _ in functions),
        spill_load_bytes=sum(loads for _, _, loads in functions),
        static_smem_bytes=int(smem[1]) if smem else 0,
    )
