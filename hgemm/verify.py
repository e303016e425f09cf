"""The check of a variant on a device: right numbers, every element written, nothing else touched, twice the same."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hgemm.buffers import GUARD_BYTES, Buffer, Operand
from hgemm.cases import Case
from hgemm.checks import WORKSPACE_ALIGN_BYTES
from hgemm.device import Device
from hgemm.dtypes import decode
from hgemm.errors import DeviceError
from hgemm.kernel import Kernel
from hgemm.launch import counter_bytes, workspace_bytes
from hgemm.problem import Problem
from hgemm.reference import Reference, reference
from hgemm.samples import draw, places, stored


@dataclass(frozen=True)
class Options:
    """How a case is checked.

    Fields: `data` are the kinds of operands; `guard_bytes` is 0 under compute-sanitizer; operands begin on multiples of
    `align_bytes`, where 0 is of no more than the variant needs.
    """

    seed: int = 0
    data: tuple[str, ...] = ("integer", "normal")
    guard_bytes: int = GUARD_BYTES
    twice: bool = True
    align_bytes: int = 0


@dataclass(frozen=True)
class Check:
    """The outcome of one case; `max_bound_ratio` is the largest error in units of what the arithmetic allows."""

    case: str
    max_error: float
    max_bound_ratio: float
    passed: bool
    reason: str = ""


def verify(kernel: Kernel, case: Case, device: Device, options: Options = Options()) -> Check:
    """Check one case with each kind of data; what fails first is the reason.

    Raises: ProblemError where the variant does not take such a problem, DeviceError where a launch fails.
    """
    checks = []
    for kind in options.data:
        trial = Trial(kernel, case, device, options, kind)
        try:
            checks.append(trial.check())
        finally:
            trial.free()
    failed = [check for check in checks if not check.passed]
    error, ratio = max(check.max_error for check in checks), max(check.max_bound_ratio for check in checks)
    return Check(str(case), error, ratio, not failed, failed[0].reason if failed else "")


class Trial:
    """One case with one kind of data, on the device."""

    def __init__(self, kernel: Kernel, case: Case, device: Device, options: Options, kind: str) -> None:
        self.kernel, self.case, self.device, self.options, self.kind = kernel, case, device, options, kind
        self.facts, self.shape = kernel.facts, case.shape
        rng = np.random.default_rng([options.seed, *f"{case} {kind}".encode()])
        self.operands = draw(self.facts, case, kind, rng)
        self.buffers: dict[str, Operand] = {}
        self.workspace: Buffer | None = None

    def free(self) -> None:
        for buffer in (*self.buffers.values(), *([self.workspace] if self.workspace else [])):
            with suppress(DeviceError):  # after a fault nothing works any more: what was told first counts
                buffer.free()

    def check(self) -> Check:
        self.prepare()
        problem = self.problem()
        found, complaint = self.launch(problem)
        complaint = complaint or self._others()
        if self.options.twice and not complaint:
            again, complaint = self.launch(problem)
            differing = int(np.count_nonzero(again.view("u1") != found.view("u1")))
            complaint = complaint or (f"a second launch differs in {differing} B of D" if differing else "")
        if complaint:
            return Check(str(self.case), float("inf"), float("inf"), False, f"{self.kind}: {complaint}")
        values = decode(found, self.facts.dtype_d)
        return compare(str(self.case), values, reference(self.facts, self.operands), self.kind)

    def prepare(self) -> None:
        """Put everything on the device. C is null or nothing but canaries where beta is 0, for it must not be read."""
        numbers = stored(self.facts, self.operands)
        if self.case.in_place:
            numbers["d"] = numbers.pop("c")
        poisoned = {"d"} | ({"c"} if self.facts.beta and self.case.loose and not self.case.in_place else set())
        for name, place in places(self.facts, self.case).items():
            if name in numbers or name in poisoned:
                self.buffers[name] = Operand(self.device, place, self.options.guard_bytes, self.options.align_bytes)
                self.buffers[name].fill(numbers.get(name))
        sizes = (self.shape.m, self.shape.n, self.shape.batch)
        if size := workspace_bytes(self.facts, *sizes):
            self.workspace = Buffer(self.device, size, WORKSPACE_ALIGN_BYTES, self.options.guard_bytes)
            self.workspace.upload()  # all canary: a launch zeroes its counters itself
            self._counters(self.workspace.before)[:] = 0

    def _counters(self, memory: np.ndarray) -> np.ndarray:
        size = counter_bytes(self.facts, self.shape.m, self.shape.n, self.shape.batch)
        return self.workspace.elements(memory, "u1")[:size]

    def problem(self) -> Problem:
        shape = self.shape
        fields: dict[str, int] = {"workspace": self.workspace.pointer} if self.workspace else {}
        buffers = {**self.buffers, **({"c": self.buffers["d"]} if self.case.in_place else {})}
        for name, buffer in buffers.items():
            fields[name] = buffer.pointer
            fields[f"batch_stride_{name}"] = buffer.place.batch_stride if buffer.place.batch > 1 else 0
            if name != "bias":
                fields[f"ld{name}"] = buffer.place.leading
        problem = Problem(shape.m, shape.n, shape.k, shape.batch, alpha=self.case.alpha, beta=self.case.beta)
        return replace(problem, **fields)

    def launch(self, problem: Problem) -> tuple[np.ndarray, str]:
        """Poison D, launch, and return D's elements and what is wrong with its memory."""
        d = self.buffers["d"]
        d.upload()
        size = self.workspace.size_bytes if self.workspace else None
        self.kernel.launch(problem, device=self.device.ordinal, workspace_size=size)
        found, complaint = d.written(d.download())
        left = np.argwhere(d.unwritten(found))
        if len(left):
            return found, f"{len(left)} elements of D were not written, the first {_index(left[0])}"
        return found, f"D: {complaint}" if complaint else ""

    def _others(self) -> str:
        """Say which other memory was written that should not have been."""
        for name, buffer in self.buffers.items():
            if name != "d" and (words := buffer.changed(buffer.download())):
                return f"{name}: {words}"
        if not self.workspace:
            return ""
        after = self.workspace.download()
        if self._counters(after).any():
            return "the workspace's counters are not zeros again"
        self.workspace.elements(after, "u1")[:] = self.workspace.elements(self.workspace.before, "u1")
        words = self.workspace.changed(after)
        return f"workspace: {words}" if words else ""


def compare(case: str, values: np.ndarray, expected: Reference, kind: str) -> Check:
    """Judge values by a reference, element by element. Shapes: both (batch, m, n)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(values - expected.values)
        ratio = np.where(error == 0.0, 0.0, error / expected.bound)
    ratio[np.isposinf(expected.bound)] = 0.0
    error[np.isnan(values)] = ratio[np.isnan(values)] = np.inf
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    max_error, max_ratio = float(error.max()), float(ratio[worst])
    if max_ratio <= 1.0:
        return Check(case, max_error, max_ratio, True)
    off, value = int(np.count_nonzero(ratio > 1.0)), values[worst]
    reason = (
        f"{kind}: {off} elements are off, the worst {_index(worst)} is {value:.7g}, expected {expected.values[worst]:.7g}, "
        f"{error[worst]:.3g} off where {expected.bound[worst]:.3g} is possible"
    )
    return Check(case, max_error, max_ratio, False, reason)


def _index(position: np.ndarray | tuple) -> str:
    batch, row, column = (int(i) for i in position)
    return f"(batch {batch}, row {row}, column {column})"
