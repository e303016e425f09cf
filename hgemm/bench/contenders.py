"""What is timed against one another on one problem: our variants, and the proposals of a library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hgemm.bench.cublaslt import Heuristic, Proposals
from hgemm.bench.operands import Operands
from hgemm.device import Device
from hgemm.kernel import Kernel
from hgemm.launch import workspace_bytes

Launch = Callable[[], None]
OURS, BASELINE = "ours", "baseline"


class Contender(Protocol):
    """One way to compute a problem. `bind` returns a launch for each set of operands, and may load, not wait."""

    name: str
    side: str

    def bind(self, operands: Operands, stream: int) -> list[Launch]: ...

    def free(self) -> None: ...


@dataclass
class Variant:
    """One of our kernels, with a workspace where it needs one. Raises ProblemError where it does not take the problem."""

    kernel: Kernel
    device: Device
    side: str = OURS
    workspace: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return self.kernel.facts.symbol

    def bind(self, operands: Operands, stream: int) -> list[Launch]:
        work = operands.work
        size = workspace_bytes(self.kernel.facts, work.m, work.n, work.batch)
        if size and not self.workspace:
            self.workspace = self.device.allocate(size)
        problems = (operands.problem(at, self.workspace) for at in range(operands.sets))
        return [
            self.kernel.bind(problem, stream=stream, device=self.device.ordinal, workspace_size=size or None)
            for problem in problems
        ]

    def free(self) -> None:
        if self.workspace:
            self.device.free(self.workspace)
            self.workspace = 0


@dataclass
class Proposal:
    """One algorithm that cuBLASLt proposes; number 0 is its first guess."""

    proposals: Proposals
    algorithm: Heuristic
    number: int
    side: str = BASELINE

    @property
    def name(self) -> str:
        return f"cublaslt#{self.number}"

    def bind(self, operands: Operands, stream: int) -> list[Launch]:
        sets = range(operands.sets)
        return [self.proposals.bind(self.algorithm, operands.problem(at), stream) for at in sets]

    def free(self) -> None:
        pass
