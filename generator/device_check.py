"""Variants checked on the GPU, each in a process of its own: a kernel that hangs or faults harms no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from generator.proof.executor import COSTS_CASE
from generator.store.library import Library
from hgemm.cases import Shape, cases_of, default_cases
from hgemm.device import open_device
from hgemm.disk import write_atomically
from hgemm.errors import DeviceError, UnsupportedError
from hgemm.kernel import Kernel
from hgemm.record import CUBIN_NAME, PTX_NAME

TIMEOUT_S = 300.0
CODES = ("auto", "cubin", "ptx")
_ROOT = Path(__file__).resolve().parents[1]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Request:
    """What to check of one variant. Fields: `shapes` as text, its own default cases where empty; `code` as in CODES;
    `data`, `guard_bytes`, `twice` and `seed` as in hgemm.verify.CheckOptions."""

    library: str
    symbol: str
    shapes: str = ""
    code: str = "auto"
    seed: int = 0
    data: tuple[str, ...] = ("integer", "normal")
    guard_bytes: int = 4096
    twice: bool = True


@dataclass(frozen=True)
class Outcome:
    """What was found: checks (see hgemm.verify.Check), or why the variant was left out or could not be checked.

    Fields: `proof` is what running it on the CPU adds to the variant's record, and `sites` what its source lines cost.
    """

    symbol: str
    checks: tuple[dict, ...] = ()
    skipped: str = ""
    error: str = ""
    seconds: float = 0.0
    proof: dict = field(default_factory=dict)
    sites: tuple[dict, ...] = ()

    @property
    def passed_cases(self) -> int:
        return sum(check["passed"] for check in self.checks)

    @property
    def shapes(self) -> tuple[dict, ...]:
        """Return the checks of shapes, without that of the costs."""
        return tuple(check for check in self.checks if check["case"] != COSTS_CASE)

    @property
    def passed_shapes(self) -> int:
        return sum(check["passed"] for check in self.shapes)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and not self.error and self.passed_cases == len(self.checks)

    @property
    def failed(self) -> bool:
        return not self.passed and not self.skipped

    @property
    def worst_ratio(self) -> float:
        return max((check["max_bound_ratio"] for check in self.checks), default=0.0)

    @property
    def reason(self) -> str:
        """Return why this is no pass: the first case that failed, else the error or what it was left out for."""
        told = [f"{check['case']}: {check['reason']}" for check in self.checks if not check["passed"]]
        return (told or [self.error or self.skipped])[0]


def open_kernel(library: Library, symbol: str, code: str = "auto") -> Kernel:
    """Read a variant, its hashes checked, to be launched from its cubin, its PTX, or whichever runs.

    Raises: LibraryError where it cannot be read or trusted.
    """
    variant = library.load(symbol)
    cubin = variant.artefacts[CUBIN_NAME] if code != "ptx" else b""
    return Kernel(variant.record.data, cubin, variant.artefacts[PTX_NAME] if code != "cubin" else b"")


def check_here(request: Request) -> Outcome:
    """Check one variant in this process, up to the first launch that fails. Raises HgemmError where it is unreadable."""
    from hgemm.verify import CheckOptions, verify

    started = time.monotonic()
    kernel, device = open_kernel(Library(Path(request.library)), request.symbol, request.code), open_device()
    try:
        resident_ctas = kernel.prepare(device.ordinal).resident_ctas
    except UnsupportedError as error:
        return Outcome(request.symbol, skipped=str(error))
    options = CheckOptions(
        seed=request.seed, data=tuple(request.data), guard_bytes=request.guard_bytes, twice=request.twice
    )
    if request.shapes:
        cases = cases_of(kernel.traits, Shape.parse_list(request.shapes))
    else:
        cases = default_cases(kernel.traits, resident_ctas)
    checks: list[dict] = []
    error = ""
    for case in cases:
        try:
            checks.append(asdict(verify(kernel, case, device, options)))
        except DeviceError as fault:  # the context is lost with it
            error = f"{case}: {fault}"
            break
    return Outcome(request.symbol, tuple(checks), error=error, seconds=time.monotonic() - started)


# ---- Each in a process of its own -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workers:
    """How processes are started. Fields: `wrapper` is a command before the interpreter, such as compute-sanitizer;
    after `budget_s` no further variant is begun; `module` is what a process runs, with a request as its argument."""

    jobs: int = 1
    timeout_s: float = TIMEOUT_S
    wrapper: tuple[str, ...] = ()
    budget_s: float = float("inf")
    module: str = "generator.device_check"
    began: float = field(default_factory=time.monotonic)
    _running: set[subprocess.Popen] = field(default_factory=set)

    def check_all(self, requests: Iterable[Request]) -> Iterator[tuple[Outcome, str]]:
        """Yield the outcomes in the order of the requests, as they come, and what their processes printed."""
        pool = ThreadPoolExecutor(self.jobs)
        try:
            yield from pool.map(self.check, requests)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(self._running):
                _kill(process)

    def check(self, request: Request) -> tuple[Outcome, str]:
        """Check one variant in a process of its own, and return the outcome and what it printed."""
        started = time.monotonic()
        if started - self.began > self.budget_s:
            return Outcome(request.symbol, error=f"not begun within {self.budget_s:g} s"), ""
        command = [*self.wrapper, sys.executable, "-m", self.module, json.dumps(asdict(request))]
        status, printed, told = self._run(command)
        took = time.monotonic() - started
        if status is None:
            hung = f"no answer within {self.timeout_s:g} s: the kernel may hang"
            return Outcome(request.symbol, error=hung, seconds=took), printed + told
        answers = [line for line in printed.splitlines() if line.startswith('{"symbol": ')]
        if answers:
            answer = json.loads(answers[-1])
            return Outcome(**{**answer, "checks": tuple(answer["checks"])}), printed + told
        last = (told.strip() or printed.strip() or "it said nothing").splitlines()[-1]
        return Outcome(
            request.symbol, error=f"its process ended with status {status}: {last}", seconds=took
        ), printed + told

    def _run(self, command: list[str]) -> tuple[int | None, str, str]:
        """Run a command in a session of its own; its status is None where it took too long and was killed."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=self._environment(),
            start_new_session=True,
        )
        self._running.add(process)
        try:
            printed, told = process.communicate(timeout=self.timeout_s)
            return process.returncode, printed, told
        except subprocess.TimeoutExpired:
            _kill(process)
            return (None, *process.communicate())
        finally:
            self._running.discard(process)

    def _environment(self) -> dict[str, str]:
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, threads), "PYTHONPATH": path}


def _kill(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def answer(request: Any, check: Callable[[Any], Outcome]) -> None:
    """Check what a request names, and print the outcome as one line of JSON."""
    try:
        outcome = check(request)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # neither the generator's nor hgemm's
            raise
        outcome = Outcome(request.symbol, error=str(error))
    print(json.dumps(asdict(outcome)), flush=True)


def write_junit(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a suite a variant and a test a case. Raises LibraryError where the file cannot be written."""
    root = ElementTree.Element("testsuites", name="hgemm verify")
    for outcome in outcomes:
        root.append(_suite(outcome))
    ElementTree.indent(root)
    write_atomically(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True), "--junit")


def _suite(outcome: Outcome) -> ElementTree.Element:
    failures = len(outcome.checks) - outcome.passed_cases
    counts = {
        "tests": len(outcome.checks) or 1,
        "failures": failures,
        "errors": int(bool(outcome.error)),
        "skipped": int(bool(outcome.skipped)),
    }
    written = {name: str(count) for name, count in counts.items()}
    suite = ElementTree.Element("testsuite", name=outcome.symbol, time=f"{outcome.seconds:.3f}", **written)
    for check in outcome.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=outcome.symbol, name=check["case"])
        if not check["passed"]:
            ElementTree.SubElement(case, "failure", message=check["reason"])
    for tag, reason in (("error", outcome.error), ("skipped", outcome.skipped)):
        if reason:
            case = ElementTree.SubElement(suite, "testcase", classname=outcome.symbol, name="load")
            ElementTree.SubElement(case, tag, message=reason)
    return suite


if __name__ == "__main__":
    answer(Request(**json.loads(sys.argv[1])), check_here)
