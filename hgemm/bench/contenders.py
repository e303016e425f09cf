"""What is timed against one another on one problem: our variants, and what a baseline proposes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hgemm.bench.operands import Operands
from hgemm.bench.work import Work
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


class Proposed(Protocol):
    """What a baseline proposes for one problem, its first guess first."""

    contenders: list[Contender]

    def free(self) -> None: ...


class Baseline(Protocol):
    """A library that ours is held against; `name` says its version too."""

    name: str

    def propose(self, work: Work, count: int) -> Proposed: ...

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
