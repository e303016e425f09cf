"""A product whose variant is chosen once, for many calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hgemm.arrays import View
from hgemm.calls import Calls
from hgemm.device import open_device
from hgemm.errors import ProblemError
from hgemm.kernel import Kernel, problem_of
from hgemm.kinds import Kind
from hgemm.launcher import Launcher
from hgemm.problem import Problem
from hgemm.target import Target
from hgemm.wanted import Wanted, with_leading


class Plan(Calls):
    """A variant for products of one size, loaded, so that the first call may be captured in a graph.

    `plan(a, b, out, bias=None, c=None, workspace=None, stream=None)` launches as Library.matmul does, with the plan's variant,
    alpha and beta, and returns `out` without waiting. `plan.bind(a, b, out, ...)` returns a function that does so again and
    again on the same arrays, at the least cost. Threads may share both. Raises: ProblemError where the arrays are not of the
    plan's sizes, or the variant does not take them.
    """

    def __init__(self, kernel: Kernel, problem: Problem, device: int) -> None:
        super().__init__(self._launcher)
        self.kernel, self.problem, self.device = kernel, problem, device
        kernel.prepare(device)

    __call__ = Calls.run

    def __repr__(self) -> str:
        p = self.problem
        return f"Plan({p.m}x{p.n}x{p.k}, batch {p.batch}: {self.kernel.facts.symbol})"

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that a call needs, 0 for most variants; used by one call at a time."""
        return self.kernel.workspace_bytes(self.problem.m, self.problem.n, self.problem.batch)

    def _launcher(self, views: Mapping[str, View], device: int, options: None) -> Launcher:
        if device != self.device:
            raise ProblemError(f"the arrays lie on device {device}, and the plan is for device {self.device}")
        given = problem_of(self.kernel.facts, views, self.problem.alpha, self.problem.beta)
        wrong = [
            f"{name} is {getattr(given, name)}, not {getattr(self.problem, name)}"
            for name in ("m", "n", "k", "batch")
            if getattr(given, name) != getattr(self.problem, name)
        ]
        if wrong:
            raise ProblemError(f"the arrays are not those of {self}: {', '.join(wrong)}")
        size = views["workspace"].size_bytes if "workspace" in views else None
        return Launcher(self.kernel, given, device, size)


def make_plan(library: Any, problem: Problem, kind: Kind, device: int, workspace_bytes: int) -> Plan:
    """Choose the variant of a library for a problem on a device. Raises UnfitError where none serves it."""
    problem = with_leading(problem, kind)
    target = Target.of(open_device(device))
    choice = library.select(Wanted.of(kind, problem, workspace_bytes), target)
    return Plan(library.kernel(choice.symbol), problem, device)
