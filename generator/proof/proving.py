"""Prove a kernel on the CPU: run its cases against several adversaries, check results, races and costs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from generator.errors import BuildError, ProofError
from generator.proof.costs import Costs, count, disagreements
from generator.proof.executor import COSTS_CASE, Adversary, Executable, Finding, HostToolchain
from generator.proof.machine import EmulatedKernel, HostMemory, default_cases
from hgemm.cases import Case, Shape, cases_of
from hgemm.launch_traits import LaunchTraits
from hgemm.verify import Check, CheckOptions, verify

LAUNCHES = (
    ("late", "ahead_low"),
    ("any_time", "any_order"),
    ("late", "ahead_high"),
    ("early", "round_robin"),
)
"""Timing and order of the launches of a case: two with small integers, whose results are exact, two with normal numbers.

Late copies, while one warp runs far ahead of the others, expose most faults. So this combination is first.
"""


def adversaries_of(case: str, seed: int) -> tuple[Adversary, ...]:
    """Return the adversaries of a case. Their seeds derive from its name and `seed`."""
    return tuple(Adversary(timing, order, _seed(case, seed, at)) for at, (timing, order) in enumerate(LAUNCHES))


def _seed(case: str, seed: int, at: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {at} {case}".encode()).digest()[:4], "little")


_MAX_FAILED_CASES = 3
"""The proof stops after this many failed cases."""


@dataclass(frozen=True)
class Subject:
    """The kernel to prove: its source, its record, and the planned number of tensor instructions per k-tile and warp."""

    symbol: str
    source: str
    record: Mapping[str, Any]
    mma_per_k_tile: int

    @property
    def stages(self) -> int:
        return int(self.record["spec"]["stages"])


@dataclass(frozen=True)
class EmulatedCheck(Check):
    """A check with the findings of the executor. `numbers_passed` tells whether the results alone are correct."""

    numbers_passed: bool = True
    findings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class ProofResult:
    """The checks, and the `proof` section of the record. It is empty unless all default cases passed."""

    checks: tuple[EmulatedCheck, ...]
    proof: dict[str, Any]
    sites: tuple[dict[str, Any], ...] = ()


def prove(
    subject: Subject, host_toolchain: HostToolchain, shapes: tuple[Shape, ...] = (), seed: int = 0
) -> ProofResult:
    """Build and check a kernel, on its default cases or on `shapes`.

    Raises: BuildError if the compiler rejects its source, DeviceError if the executor rejects a launch.
    """
    began = time.monotonic()
    traits = LaunchTraits.of(subject.record)
    kernel = EmulatedKernel(traits, load(subject, host_toolchain), ())
    cases = cases_of(traits, shapes) if shapes else default_cases(traits, subject.stages)
    checks = list(_checks_of(kernel, cases, seed))
    if shapes or not all(check.passed for check in checks):
        return ProofResult(tuple(checks), {})
    costs, sites = count(kernel, subject.record["spec"])
    wrong = "; ".join(disagreements(costs, traits, subject.record["spec"], subject.mma_per_k_tile))
    checks.append(EmulatedCheck(COSTS_CASE, 0.0, 0.0, not wrong, wrong))
    proof = {} if wrong else proof_of(subject, host_toolchain, checks[:-1], costs, seed, time.monotonic() - began)
    return ProofResult(tuple(checks), proof, tuple(sites))


def load(subject: Subject, host_toolchain: HostToolchain) -> Executable:
    """Build and load a kernel. If this fails because the cache is damaged, build everything once more.

    Raises: BuildError if the compiler rejects the source, ProofError if the result cannot be loaded.
    """
    try:
        return Executable(host_toolchain.executable(subject.symbol, subject.source))
    except BuildError:
        if not host_toolchain.compiles(subject.symbol, subject.source):
            raise
    except (OSError, AttributeError):
        pass
    path = host_toolchain.executable(subject.symbol, subject.source, rebuild=True)
    try:
        return Executable(path)
    except (OSError, AttributeError) as error:
        raise ProofError(
            f"the output of {host_toolchain.compiler} cannot be loaded ({error}): set CXX to another compiler"
        ) from error


def _checks_of(kernel: EmulatedKernel, cases: list[Case], seed: int) -> Iterator[EmulatedCheck]:
    failed = 0
    for case in cases:
        check = check_case(kernel, case, seed)
        yield check
        failed += not check.passed
        if failed == _MAX_FAILED_CASES:
            return


def check_case(kernel: EmulatedKernel, case: Case, seed: int) -> EmulatedCheck:
    """Check one case: its results as on a device, and the findings of the executor."""
    alone = replace(kernel, adversaries=adversaries_of(str(case), seed), reports=[])
    check = verify(alone, case, HostMemory(), CheckOptions(seed=seed))
    found = [(adversary, finding) for adversary, report in alone.reports for finding in report.findings]
    if not found:
        return EmulatedCheck(**asdict(check), numbers_passed=check.passed)
    reason = "; ".join(_lines_of(found)) + ("" if check.passed else f"; {check.reason}")
    findings = tuple({**asdict(finding), "adversary": str(adversary)} for adversary, finding in found)
    numbers = {name: value for name, value in asdict(check).items() if name not in ("passed", "reason")}
    return EmulatedCheck(**numbers, passed=False, reason=reason, numbers_passed=check.passed, findings=findings)


def _lines_of(found: list[tuple[Adversary, Finding]]) -> Iterator[str]:
    """Yield a line for each kind and place of findings, with the first adversary that exposed it."""
    seen = set()
    for adversary, finding in found:
        place = (finding.kind, finding.file, finding.line)
        if place not in seen:
            seen.add(place)
            yield f"{finding} ({adversary})"


def proof_of(
    subject: Subject,
    host_toolchain: HostToolchain,
    checks: list[EmulatedCheck],
    costs: Costs,
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the `proof` section of the record, without the fields that come from the plan."""
    counted = {name: int(value) if value == int(value) else value for name, value in asdict(costs).items()}
    return {
        **counted,
        "mma_per_k_tile": subject.mma_per_k_tile,
        "races": 0,
        "max_error": max(check.max_error for check in checks),
        "max_bound_ratio": max(check.max_bound_ratio for check in checks),
        "shapes": [check.case for check in checks],
        "timings": [f"{timing}, {order}" for timing, order in LAUNCHES],
        "seed": seed,
        "executor": host_toolchain.version(),
        "host_compiler": host_toolchain.compiler.identity,
        "emulate_seconds": round(seconds, 2),
    }
