"""Checks kernels on the GPU, in other processes, so that a kernel that hangs or faults harms no other kernel.

A process checks one kernel after another, because a new process needs longer to begin than many kernels take. After a kernel
that fails, a new process checks the next one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import IO, Any

from generator import isolated
from generator.proof.executor import COSTS_CASE
from generator.store.library import Library
from generator.tables import counted
from hgemm.cases import Shape, cases_of, default_cases, far_bytes
from hgemm.device import Device, open_device
from hgemm.errors import DeviceError, DeviceMemoryError, UnsupportedError
from hgemm.junit import JunitSuite, JunitTest
from hgemm.kernel import Kernel
from hgemm.record import CUBIN_NAME, PTX_NAME

TIMEOUT_S = 300.0
TURN_WAIT_S = 30.0
"""Maximum wait of a case that needs much memory for other processes that allocate for such a case."""
MEMORY_WAIT_S = 3.0
"""Maximum wait for memory of other processes after that. Their cases of this kind take less."""
SPARE_BYTES = 2**31
"""The memory that such a case leaves to the other cases of all processes."""
CODES = ("auto", "cubin", "ptx")
_MODULE = "generator.device_check"
_SERVE = "--serve"
_NAMED_CASES = 3
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class CheckRequest:
    """A check of one kernel. Fields: `shapes` as text, or empty for the default cases; `code` as in CODES;
    `data`, `guard_bytes`, `twice` and `seed` as in hgemm.verification.CheckOptions."""

    library: str
    symbol: str
    shapes: str = ""
    code: str = "auto"
    seed: int = 0
    data: tuple[str, ...] = ("integer", "normal")
    guard_bytes: int = 4096
    twice: bool = True


@dataclass(frozen=True)
class CheckOutcome:
    """The result of checking a kernel: its checks (see hgemm.verification.CheckResult), or why it was skipped or failed.

    Fields: `skipped_cases` are the cases without a check, each with its `case` and a `reason`. `proof` is added to the kernel's
        record after a run on the CPU; `sites` are the costs of its source lines.
    """

    symbol: str
    checks: tuple[dict, ...] = ()
    skipped: str = ""
    error: str = ""
    seconds: float = 0.0
    proof: dict = field(default_factory=dict)
    sites: tuple[dict, ...] = ()
    skipped_cases: tuple[dict, ...] = ()
    reused: bool = False
    """Whether the checks are those of a proof in the kernel's record."""
    twin: str = ""
    """The kernel whose proof shows everything but the numbers: see generator.proof.twins."""
    twins: tuple[Mapping[str, Any], ...] = ()
    """The outcomes of the twins that were checked with this kernel."""

    @property
    def passed_cases(self) -> int:
        return sum(check["passed"] for check in self.checks)

    @property
    def shapes(self) -> tuple[dict, ...]:
        """Return the checks of shapes, without the check of the costs."""
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
        """Return why the kernel did not pass: the first failed case, else the error, else why it was skipped."""
        failures = [f"{check['case']}: {check['reason']}" for check in self.checks if not check["passed"]]
        return (failures or [self.error or self.skipped])[0]


def open_kernel(library: Library, symbol: str, code: str = "auto") -> Kernel:
    """Load a kernel to launch its cubin, its PTX, or the one that runs. Its hashes are checked.

    Raises: LibraryError if it cannot be read, or fails the checks.
    """
    stored = library.load(symbol)
    cubin = stored.artefacts[CUBIN_NAME] if code != "ptx" else b""
    return Kernel(stored.record.data, cubin, stored.artefacts[PTX_NAME] if code != "cubin" else b"")


def check_here(request: CheckRequest) -> CheckOutcome:
    """Check one kernel in this process, up to the first failed launch. Raises: HgemmError if it cannot be read."""
    from hgemm.verification import CheckOptions, verify

    started = time.monotonic()
    kernel, device = open_kernel(Library(Path(request.library)), request.symbol, request.code), open_device()
    try:
        resident_ctas = kernel.prepare(device.ordinal).resident_ctas
    except UnsupportedError as error:
        return CheckOutcome(request.symbol, skipped=str(error))
    options = CheckOptions(
        seed=request.seed, data=tuple(request.data), guard_bytes=request.guard_bytes, twice=request.twice
    )
    if request.shapes:
        cases = cases_of(kernel.traits, Shape.parse_list(request.shapes))
    else:
        cases = default_cases(kernel.traits, resident_ctas, device.memory_bytes)
    checks: list[dict] = []
    skipped: list[dict] = []
    error = ""
    for case in cases:
        try:
            allocating = partial(free_memory, device, far_bytes(kernel.traits)) if case.min_span else nullcontext
            checks.append(asdict(verify(kernel, case, device, options, allocating)))
        except DeviceMemoryError as lack:
            skipped.append({"case": str(case), "reason": str(lack)})
        except DeviceError as fault:  # the fault destroys the context
            error = f"{case}: {fault}"
            break
    if not checks and skipped:
        error = error or skipped[0]["reason"]
    took = time.monotonic() - started
    return CheckOutcome(request.symbol, tuple(checks), error=error, seconds=took, skipped_cases=tuple(skipped))


@contextmanager
def free_memory(device: Device, size_bytes: int) -> Iterator[None]:
    """Wait until so much device memory is free, or too long. One process of this checkout at a time waits or allocates.

    So no two processes take the same free memory, and as many of them run such cases as the memory holds.
    """
    with open(__file__, "rb") as lock:
        _wait(TURN_WAIT_S, lambda: _has_locked(lock))
        _wait(MEMORY_WAIT_S, lambda: device.free_bytes >= size_bytes + SPARE_BYTES)
        yield


def _wait(most_s: float, is_ready: Callable[[], bool]) -> None:
    until = time.monotonic() + most_s
    while not is_ready() and time.monotonic() < until:
        time.sleep(0.005)


def _has_locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


# ==== Outcomes as text and files ====


def outcome_line(outcome: CheckOutcome) -> str:
    """Return the outcome of one kernel as a line."""
    if outcome.skipped:
        return f"skip  {outcome.symbol}  {outcome.skipped}"
    cases = f"{outcome.passed_shapes}/{counted(len(outcome.shapes), 'shape')}"
    if not outcome.passed:
        return f"FAIL  {outcome.symbol}  {cases}  {outcome.reason}"
    found = [cases, *["instruction and byte counts as planned"] * (outcome.shapes != outcome.checks)]
    found += [f"skipped {skipped['case']}: {skipped['reason']}" for skipped in outcome.skipped_cases]
    found.append(f"largest error {outcome.worst_ratio:.2f} of its bound")
    if outcome.reused:
        return f"ok    {outcome.symbol}  {'; '.join(found)}; proved before"
    if outcome.twin:
        found.append(f"otherwise as {outcome.twin}")
    if proof := outcome.proof:
        conflicts = proof["read_conflicts_per_k_tile"] + proof["copy_conflicts_per_k_tile"]
        found += ["no race", f"{conflicts:g} bank conflict{'s' * (conflicts != 1)}"]
    return f"ok    {outcome.symbol}  {'; '.join(found)}; {outcome.seconds:.1f} s"


def outcome_summary(outcomes: list[CheckOutcome]) -> str:
    """Return how many kernels and shapes passed, and which shapes were skipped."""
    passed, failed = sum(outcome.passed for outcome in outcomes), sum(outcome.failed for outcome in outcomes)
    cases = sum(outcome.passed_shapes for outcome in outcomes)
    skipped = len(outcomes) - passed - failed
    found = f"{counted(passed, 'kernel')} passed, {failed} failed, {skipped} skipped"
    found += f"; {counted(cases, 'shape')} passed"
    if reused := sum(outcome.reused for outcome in outcomes):
        found += f"; {counted(reused, 'earlier proof')} reused, --force repeats them"
    if twins := sum(bool(outcome.twin) for outcome in outcomes):
        found += f"; {counted(twins, 'kernel')} checked for numbers only, beside a twin"
    lacking = [f"{case['case']} of {outcome.symbol}" for outcome in outcomes for case in outcome.skipped_cases]
    if not lacking:
        return found
    named = ", ".join(lacking[:_NAMED_CASES]) + (", ..." if len(lacking) > _NAMED_CASES else "")
    return f"{found}, {len(lacking)} skipped for lack of memory: {named}"


def json_of(outcome: Any) -> Any:
    """Return an outcome, or another dataclass, as JSON. Infinities and NaN become null."""
    return _finite(asdict(outcome))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def junit_suite(outcome: CheckOutcome) -> JunitSuite:
    """Return an outcome as a suite: a test for each case, and one for what kept the kernel from being checked."""
    tests = [JunitTest(one["case"], "passed" if one["passed"] else "failure", one["reason"]) for one in outcome.checks]
    tests += [JunitTest(one["case"], "skipped", one["reason"]) for one in outcome.skipped_cases]
    tests += [JunitTest("load", "error", outcome.error)] if outcome.error else []
    tests += [JunitTest("load", "skipped", outcome.skipped)] if outcome.skipped else []
    return JunitSuite(outcome.symbol, tuple(tests), outcome.seconds)


# ==== Processes ====


class _CheckServer:
    """A process that checks kernels of this module, one after another: a line of JSON is a request, and one is its outcome."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._errors_read = 0
        self.process = subprocess.Popen(
            isolated.command(_MODULE, _SERVE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=isolated.NEUTRAL_FOLDER,
            start_new_session=True,
        )
        self._seen = b""

    def ask(self, request: str, timeout_s: float) -> tuple[int | None, str, str]:
        """Return the status, None if there was no answer in time and 0 if there was one, and all output since the last one."""
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.write(request.encode() + b"\n")
            self.process.stdin.flush()
        until, status = time.monotonic() + timeout_s, 0
        while not any(map(_is_answer, self._seen.decode(errors="replace").splitlines(keepends=True))):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                kill_session(self.process)
                status = None
                break
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                status = self.process.wait()
                break
            self._seen += more
        out, self._seen = self._seen.decode(errors="replace"), b""
        size = os.fstat(self._errors.fileno()).st_size
        err = os.pread(self._errors.fileno(), size - self._errors_read, self._errors_read)
        self._errors_read = size
        return status, out, err.decode(errors="replace")

    def close(self) -> None:
        kill_session(self.process)
        self.process.communicate()
        self._errors.close()


def _is_answer(line: str) -> bool:
    return line.startswith('{"symbol": ') and line.endswith("\n")


def _outcome_in(out: str) -> CheckOutcome | None:
    """Return the last outcome in the output of a process, if there is one."""
    answers = [line for line in out.splitlines(keepends=True) if _is_answer(line)]
    if not answers:
        return None
    try:
        answer = json.loads(answers[-1])
    except ValueError:  # a reference of the user may print anything
        return None
    if not {"symbol", "checks", "skipped_cases"} <= answer.keys() <= {one.name for one in fields(CheckOutcome)}:
        return None
    return CheckOutcome(**{**answer, **{name: tuple(answer[name]) for name in ("checks", "skipped_cases")}})


@dataclass(frozen=True)
class CheckWorkers:
    """Processes that check kernels, `jobs` at a time.

    Fields: `wrapper` is a command before the interpreter, such as compute-sanitizer; after `budget_s` no further kernel is
        started; `module` is what a process runs, with a request as its argument. With a wrapper or another module, each process
        checks one kernel.
    """

    jobs: int = 1
    timeout_s: float = TIMEOUT_S
    wrapper: tuple[str, ...] = ()
    budget_s: float = float("inf")
    module: str = _MODULE
    began: float = field(default_factory=time.monotonic)
    _running: set[subprocess.Popen] = field(default_factory=set)
    _idle: list[_CheckServer] = field(default_factory=list)
    _many: threading.Event = field(default_factory=threading.Event)

    def check_all(self, requests: Iterable[CheckRequest]) -> Iterator[tuple[CheckOutcome, str]]:
        """Yield the outcomes in the order of the requests, each with the output of its process."""
        yield from self.each(self.check, requests)

    def each(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield what `do`, which calls `check`, returns for each item, in order. `jobs` threads call it."""
        pool = ThreadPoolExecutor(self.jobs)
        if self.module == _MODULE and not self.wrapper:
            self._many.set()
        try:
            yield from pool.map(do, items)
        finally:
            self._many.clear()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(self._running):
                kill_session(process)
            while self._idle:
                self._idle.pop().close()

    def check(self, request: CheckRequest) -> tuple[CheckOutcome, str]:
        """Check one kernel in another process. Return the outcome and the output."""
        started = time.monotonic()
        if started - self.began > self.budget_s:
            return CheckOutcome(request.symbol, error=f"not started within {self.budget_s:g} s"), ""
        status, out, err = self._run(json.dumps(asdict(request)))
        took = time.monotonic() - started
        if status is None:
            hung = f"no answer within {self.timeout_s:g} s: the kernel may hang"
            return CheckOutcome(request.symbol, error=hung, seconds=took), out + err
        if outcome := _outcome_in(out):
            return outcome, out + err
        last = (err.strip() or out.strip() or "no output").splitlines()[-1]
        return CheckOutcome(
            request.symbol, error=f"its process ended with status {status}: {last}", seconds=took
        ), out + err

    def _run(self, request: str) -> tuple[int | None, str, str]:
        """Check in another session. Return its status, stdout and stderr; no status if it was killed at the time limit."""
        return self._run_in_turn(request) if self._many.is_set() else self._run_alone(request)

    def _run_in_turn(self, request: str) -> tuple[int | None, str, str]:
        try:
            server = self._idle.pop()
        except IndexError:
            server = _CheckServer(self._environment())
        self._running.add(server.process)
        status, out, err = server.ask(request, self.timeout_s)
        self._running.discard(server.process)
        outcome = _outcome_in(out)
        if outcome and not outcome.failed and self._many.is_set():
            self._idle.append(server)
        else:
            server.close()
        return status, out, err

    def _run_alone(self, request: str) -> tuple[int | None, str, str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*self.wrapper, *isolated.command(self.module, request)],
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=self._environment(),
            cwd=isolated.NEUTRAL_FOLDER,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            out, err = process.communicate(timeout=self.timeout_s)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            kill_session(process)
            return (None, *process.communicate())
        finally:
            self._running.discard(process)

    def _environment(self) -> dict[str, str]:
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, threads)}


def kill_session(process: subprocess.Popen) -> None:
    """Kill a process that began a session, and all its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def answer(request: Any, check: Callable[[Any], CheckOutcome]) -> None:
    """Check a request, and print the outcome as one line of JSON."""
    try:
        outcome = check(request)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # an internal error
            raise
        outcome = CheckOutcome(request.symbol, error=str(error))
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    for line in sys.stdin if sys.argv[1] == _SERVE else sys.argv[1:]:
        answer(CheckRequest(**json.loads(line)), check_here)
