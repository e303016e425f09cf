"""Who decides what a program leaves open: the adversaries that every case meets, worst ones first."""

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
"""Timing and order of a case's launches: two with operands of small integers, whose sums are exact, two of normal ones.

Copies that land as late as the program allows, while one warp runs as far ahead as it can, show most of what may go wrong.
"""


def adversaries_of(case: str, seed: int) -> tuple[Adversary, ...]:
    """Return the adversaries of a case, with seeds that follow from its name and `seed`."""
    return tuple(Adversary(timing, order, _seed(case, seed, at)) for at, (timing, order) in enumerate(LAUNCHES))


def _seed(case: str, seed: int, at: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {at} {case}".encode()).digest()[:4], "little")


# ==== A variant proved on the CPU ====


_STOPPED = 3
"""Failed cases after which a variant is given up: the first ones tell."""


@dataclass(frozen=True)
class Subject:
    """What is proved: a variant's text, the sections of its record, and the tensor instructions planned for a k-tile."""

    symbol: str
    source: str
    record: Mapping[str, Any]
    mma_per_tile: int

    @property
    def stages(self) -> int:
        return int(self.record["spec"]["stages"])


@dataclass(frozen=True)
class Judged(Check):
    """A check, with what was found beside the numbers: `numbers_passed` is the verdict that a device would give."""

    numbers_passed: bool = True
    findings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Proved:
    """What came of it: a check a case, and the proof for the record, empty unless all passed on the default cases."""

    checks: tuple[Judged, ...]
    proof: dict[str, Any]
    sites: tuple[dict[str, Any], ...] = ()


def prove(subject: Subject, host_toolchain: HostToolchain, shapes: tuple[Shape, ...] = (), seed: int = 0) -> Proved:
    """Build and check a variant, on its default cases or on `shapes`.

    Raises: BuildError where its text is no C++ for this compiler, DeviceError where the executor refuses a launch.
    """
    began = time.monotonic()
    traits = LaunchTraits.of(subject.record)
    kernel = EmulatedKernel(traits, load(subject, host_toolchain), ())
    cases = cases_of(traits, shapes) if shapes else default_cases(traits, subject.stages)
    checks = list(_judged(kernel, cases, seed))
    if shapes or not all(check.passed for check in checks):
        return Proved(tuple(checks), {})
    costs, sites = count(kernel, subject.record["spec"])
    wrong = "; ".join(disagreements(costs, traits, subject.record["spec"], subject.mma_per_tile))
    checks.append(Judged(COSTS_CASE, 0.0, 0.0, not wrong, wrong))
    proof = {} if wrong else proof_of(subject, host_toolchain, checks[:-1], costs, seed, time.monotonic() - began)
    return Proved(tuple(checks), proof, tuple(sites))


def load(subject: Subject, host_toolchain: HostToolchain) -> Executable:
    """Build a variant and load it; where the cache is damaged, which shows in either, all of it is built again, once.

    Raises: BuildError as `prove` does, ProofError where what the compiler makes cannot be loaded.
    """
    try:
        return Executable(host_toolchain.executable(subject.symbol, subject.source))
    except BuildError:
        if not host_toolchain.compiles(subject.symbol, subject.source):
            raise
    except (OSError, AttributeError):
        pass
    path = host_toolchain.executable(subject.symbol, subject.source, anew=True)
    try:
        return Executable(path)
    except (OSError, AttributeError) as error:
        raise ProofError(
            f"what {host_toolchain.compiler} makes cannot be loaded ({error}): name another in CXX"
        ) from error


def _judged(kernel: EmulatedKernel, cases: list[Case], seed: int) -> Iterator[Judged]:
    failed = 0
    for case in cases:
        judged = judge(kernel, case, seed)
        yield judged
        failed += not judged.passed
        if failed == _STOPPED:
            return


def judge(kernel: EmulatedKernel, case: Case, seed: int) -> Judged:
    """Check one case: its numbers as on a device, and what the executor found while it ran."""
    alone = replace(kernel, adversaries=adversaries_of(str(case), seed), reports=[])
    check = verify(alone, case, HostMemory(), CheckOptions(seed=seed))
    found = [(adversary, finding) for adversary, report in alone.reports for finding in report.findings]
    if not found:
        return Judged(**asdict(check), numbers_passed=check.passed)
    reason = "; ".join(_told(found)) + ("" if check.passed else f"; {check.reason}")
    findings = tuple({**asdict(finding), "adversary": str(adversary)} for adversary, finding in found)
    numbers = {name: value for name, value in asdict(check).items() if name not in ("passed", "reason")}
    return Judged(**numbers, passed=False, reason=reason, numbers_passed=check.passed, findings=findings)


def _told(found: list[tuple[Adversary, Finding]]) -> Iterator[str]:
    """Say each finding once, a kind and a place, with the first adversary that showed it."""
    seen = set()
    for adversary, finding in found:
        place = (finding.kind, finding.file, finding.line)
        if place not in seen:
            seen.add(place)
            yield f"{finding} ({adversary})"


def proof_of(
    subject: Subject, host_toolchain: HostToolchain, checks: list[Judged], costs: Costs, seed: int, seconds: float
) -> dict[str, Any]:
    """Return the record's `proof`, beside what the plan already says there."""
    return {
        **{name: int(value) if value == int(value) else value for name, value in asdict(costs).items()},
        "mma_per_tile": subject.mma_per_tile,
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
