"""Check a kernel's PTX under several schedules, each in its own process, and sum up what they found."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.device_check import CheckOutcome, CheckWorkers
from generator.errors import RequestError
from generator.proof.executor import Adversary, HostToolchain, trim
from generator.ptx.parser import PtxError
from generator.ptx.translate import PTX_FILE, origins
from generator.sanitize.description import Description, read_description, read_module
from generator.sanitize.running import SanitizeRequest
from generator.tables import counted
from hgemm.disk import read_text
from hgemm.junit import JunitSuite, JunitTest

TIMEOUT_S = 600.0
_FIXED = (("late", "ahead_low"), ("any_time", "any_order"), ("late", "ahead_high"), ("early", "round_robin"))
"""The first schedules. Late copies, while one warp runs far ahead of the others, expose most faults. The next ones are random."""
DEFAULT_SCHEDULES = len(_FIXED)
_MODULE = "generator.sanitize.running"
_LONGEST_NAME = 60
KINDS = (
    *(
        "race",
        "proxy",
        "bounds",
        "alignment",
        "uninitialised",
        "poison",
        "write_once",
        "deadlock",
        "divergence",
        "pending",
    ),
    *("mbarrier", "wgmma", "tma", "wmma", "setmaxnreg", "cluster", "launch", "assert"),
)
"""The kinds of findings; see templates/executor/abi.h."""
_MOST_PLACES = 8
"""Places of bank conflicts and of scattered accesses that the text shows. --json has all."""


def schedules(count: int, seed: int) -> list[Adversary]:
    """Return the schedules of a check. Their seeds follow from `seed`."""
    timings = [_FIXED[at] if at < len(_FIXED) else ("any_time", "any_order") for at in range(count)]
    return [Adversary(timing, order, seed * 1000003 + at) for at, (timing, order) in enumerate(timings)]


@dataclass(frozen=True)
class Finding:
    """A violation at one place, over all schedules. `schedules` are those that show it."""

    kind: str
    line: int
    message: str
    count: int
    schedules: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """The cost of one PTX line: passes of shared memory, or sectors of global memory, and the least possible number."""

    line: int
    quote: str
    requests: int
    used: int
    least: int


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Fields: `ignored` are findings of kinds that the user ignores; `errors` are schedules that did not end; `wrong` are results
        outside their tolerance, by schedule; `differing` tells whether schedules have different results, which is legal for
        atomic additions of floats.
    """

    kernel: str
    ptx: str
    has_reference: bool
    schedules: tuple[dict[str, Any], ...]
    findings: tuple[Finding, ...]
    ignored: tuple[Finding, ...]
    wrong: tuple[str, ...]
    errors: tuple[str, ...]
    differing: bool
    bank_conflicts: tuple[Place, ...]
    coalescing: tuple[Place, ...]
    counters: dict[str, int]
    build_seconds: float
    seconds: float

    @property
    def passed(self) -> bool:
        return not (self.findings or self.wrong or self.errors)

    @property
    def max_bound_ratio(self) -> float:
        return max((one["max_bound_ratio"] for one in self.schedules), default=0.0)


def require_function(place: str) -> None:
    """Raise RequestError unless FILE.py:FUNCTION names a function of a file. The file is not run here."""
    path, _, name = place.rpartition(":")
    if not path or not name.isidentifier():
        raise RequestError(f"--reference {place} must be FILE.py:FUNCTION")
    try:
        body = ast.parse(read_text(Path(path))).body
    except OSError as error:
        raise RequestError(f"--reference: {path} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise RequestError(f"--reference: {path} is not Python: {error.msg}, at line {error.lineno}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--reference: {path} is not Python: {error}") from None
    functions = [one.name for one in body if isinstance(one, ast.FunctionDef)]
    if name not in functions:
        raise RequestError(f"--reference: {path} has no function {name}: it has {', '.join(functions) or 'none'}")


@dataclass(frozen=True)
class SanitizerCheck:
    """A check to run: the PTX, the file that describes its launch, and the options of the command line.

    Fields: `reference` is FILE.py:FUNCTION, the user's own code, or empty; findings of the kinds in `ignored` do not fail the
        check.
    """

    ptx: Path
    launch: Path
    toolchain: HostToolchain
    schedules: int = DEFAULT_SCHEDULES
    seed: int = 0
    jobs: int = 1
    timeout_s: float = TIMEOUT_S
    reference: str = ""
    ignored: tuple[str, ...] = ()

    def run(self, show: Callable[[int, CheckOutcome], None] = lambda place, outcome: None) -> Verdict:
        """Build the kernel for the CPU, run every schedule, and call `show` after each.

        Raises: RequestError for files that do not fit and unknown instructions, BuildError of the host compiler.
        """
        began = time.monotonic()
        text, module = read_module(self.ptx)
        description = read_description(self.launch, module)
        if self.reference:
            require_function(self.reference)
        try:
            shared_object = self.toolchain.executable(description.kernel, text)
        except PtxError as error:
            raise RequestError(f"{self.ptx}: {error}") from None
        built_s = time.monotonic() - began
        requests = [self._request(description, shared_object, one) for one in schedules(self.schedules, self.seed)]
        outcomes = []
        workers = CheckWorkers(self.jobs, self.timeout_s, module=_MODULE)
        for place, (outcome, _) in enumerate(workers.check_all(requests)):
            show(place, outcome)
            outcomes.append(outcome)
        trim(self.toolchain.cache)
        return self._verdict(description, text, outcomes, built_s, time.monotonic() - began)

    def _request(self, description: Description, shared_object: Path, adversary: Adversary) -> SanitizeRequest:
        file, colon, function = self.reference.rpartition(":")
        return SanitizeRequest(
            symbol=description.kernel,
            ptx=str(self.ptx.resolve()),
            launch=str(self.launch.resolve()),
            shared_object=str(shared_object.resolve()),
            runner=str(self.toolchain.runner().resolve()),
            timing=adversary.timing,
            order=adversary.order,
            schedule_seed=adversary.seed,
            data_seed=self.seed,
            reference=f"{Path(file).resolve()}{colon}{function}" if colon else self.reference,
        )

    def _verdict(
        self, description: Description, text: str, outcomes: list[CheckOutcome], built_s: float, seconds: float
    ) -> Verdict:
        checks = [check for outcome in outcomes for check in outcome.checks]
        errors = tuple(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error))
        sites = next((outcome.sites for outcome in outcomes if outcome.sites), ())
        found = tuple(_findings(checks, self.ptx.name))
        kept = ("case", "passed", "reason", "max_error", "max_bound_ratio", "run_seconds", "outputs")
        return Verdict(
            kernel=description.kernel,
            ptx=str(self.ptx),
            has_reference=bool(description.reference or self.reference),
            schedules=tuple({name: check[name] for name in kept} for check in checks),
            findings=tuple(one for one in found if one.kind not in self.ignored),
            ignored=tuple(one for one in found if one.kind in self.ignored),
            wrong=tuple(f"{check['reason']} ({check['case']})" for check in checks if check["reason"]),
            errors=errors,
            differing=len({check["outputs"] for check in checks}) > 1,
            bank_conflicts=tuple(_places(text, sites, "wavefronts", "ideal_wavefronts")),
            coalescing=tuple(_places(text, sites, "sectors", "ideal_sectors")),
            counters=checks[0]["counters"] if checks else {},
            build_seconds=built_s,
            seconds=seconds,
        )


def _findings(checks: list[dict[str, Any]], name: str) -> Iterator[Finding]:
    """Yield the findings of all schedules, one for each kind and line, with the first message."""
    found: dict[tuple[str, int], list[tuple[dict, str]]] = {}
    for check in checks:
        for one in check["findings"]:
            found.setdefault((one["kind"], one["line"]), []).append((one, check["case"]))
    for (kind, line), seen in found.items():
        message = re.sub(rf"\b{re.escape(PTX_FILE)}:", f"{name}:", seen[0][0]["message"])
        count = max(one["count"] for one, _ in seen)
        yield Finding(kind, line, message, count, tuple(dict.fromkeys(case for _, case in seen)))


def _places(text: str, sites: tuple[dict, ...], used: str, least: str) -> Iterator[Place]:
    """Yield the lines that take more passes or sectors than they must, the most expensive first."""
    found = [site for site in sites if site[used] > site[least]]
    quotes = origins(text, {site["line"] for site in found})
    for site in sorted(found, key=lambda one: one[least] - one[used]):
        yield Place(site["line"], quotes.get(site["line"], "").strip(), site["requests"], site[used], site[least])


# ==== Text ====


def finding_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the findings, one a line."""
    name = Path(verdict.ptx).name
    for one in (*verdict.findings, *verdict.ignored):
        head = "ignored " * (one in verdict.ignored)
        place = f" at {name}:{one.line}" if one.line else ""
        times = f" ({one.count:,} times)" if one.count > 1 else ""
        seen = f"{len(one.schedules)} of {len(verdict.schedules)} schedules, first {one.schedules[0]}"
        yield f"{head}{one.kind}{place}: {one.message}{times} [{seen}]"
    yield from (f"wrong result: {text}" for text in verdict.wrong[:1])
    yield from (f"error: {text}" for text in verdict.errors)


def junit_suite(verdict: Verdict) -> JunitSuite:
    """Return a verdict as a suite of two tests, findings and results. An error of a schedule is a test of its own."""
    findings = "; ".join(f"{one.kind}: {one.message}" for one in verdict.findings)
    tests = [JunitTest("findings", "failure" if findings else "passed", findings)]
    if verdict.has_reference:
        tests.append(JunitTest("results", "failure" if verdict.wrong else "passed", "; ".join(verdict.wrong)))
    if verdict.errors:
        tests.append(JunitTest("run", "error", "; ".join(verdict.errors)))
    return JunitSuite(verdict.kernel, tuple(tests), verdict.seconds)


def cost_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the places of bank conflicts and of scattered accesses. They are no faults."""
    for title, places, unit in (
        ("bank conflicts", verdict.bank_conflicts, "passes of shared memory"),
        ("coalescing", verdict.coalescing, "sectors of 32 B"),
    ):
        for one in places[:_MOST_PLACES]:
            used = f"{one.used:,} {unit} in {one.requests:,} requests, and the minimum is {one.least:,}"
            yield f"{title}: line {one.line} takes {used} {one.quote}"
        if len(places) > _MOST_PLACES:
            yield f"{title}: {len(places) - _MOST_PLACES} more lines, see --json"


def summary_line(verdict: Verdict) -> str:
    """Return the verdict as one line."""
    count = len(verdict.schedules)
    name = verdict.kernel if len(verdict.kernel) <= _LONGEST_NAME else verdict.kernel[:_LONGEST_NAME] + "..."
    head = f"{'ok  ' if verdict.passed else 'FAIL'}  {name}  {counted(count, 'schedule')}"
    told = [head]
    if verdict.has_reference and count:
        ratio = verdict.max_bound_ratio
        told.append(f"largest error {ratio:.2f} of its tolerance" if math.isfinite(ratio) else "wrong results")
    elif count:
        told.append("results not compared: no reference")
    faults = len(verdict.findings) + bool(verdict.wrong) + len(verdict.errors)
    told.append(counted(faults, "finding") if faults else "no finding")
    if verdict.ignored:
        told.append(f"{len(verdict.ignored)} ignored")
    if verdict.differing:
        told.append("results differ between schedules")
    conflicts = sum(one.used - one.least for one in verdict.bank_conflicts)
    told.append(counted(conflicts, "bank conflict"))
    return "; ".join(told) + f"; {verdict.seconds:.1f} s"
