"""One spec in every form: which can say it, what each is built to, and whether they compute the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from generator.build import dsl as translate
from generator.build.pipeline import Outcome, Settings, make
from generator.errors import RequestError
from generator.plan import Plan
from generator.rules import Violation, refuse_illegal, violations
from generator.spec import FORMS
from generator.sweep import Candidate
from hgemm.record import CUBIN_NAME, SOURCE_NAME, Record, Scalar

_BUILT = "compile_s registers spill_bytes smem_bytes ctas_per_sm cubin_bytes".split()


@dataclass(frozen=True)
class Said:
    """A spec in one form; `broken` are the rules by which the form cannot say it, `lacking` what this machine has not for it."""

    plan: Plan
    broken: tuple[Violation, ...]
    lacking: str = ""

    @property
    def form(self) -> str:
        return self.plan.spec.form


@dataclass(frozen=True)
class Ran:
    """What a variant computed: by a check against the reference, and by a hash of D; its speed where it was measured."""

    device: str
    passed: bool
    max_bound_ratio: float
    digest: str
    speed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A form that was built, and what it computed where it was run."""

    form: str
    record: Record
    ran: Ran | None = None


Request = Callable[["str | None"], Sequence[Candidate]]
"""Returns what the user asked for in a form; None leaves the form to planning."""


def in_every_form(request: Request) -> list[Said]:
    """Return the one spec that a user asked for, in every form.

    Open fields are planned so that as many forms as possible support the spec.
    Raises: RequestError where several specs are asked for, or no form supports the spec.
    """
    plans = [_planned_for_most(request).replace(form=form) for form in FORMS]
    said = [Said(plan, violations(plan), translate.lacking() if plan.spec.form == "dsl" else "") for plan in plans]
    if all(one.broken for one in said):
        refuse_illegal(plans[0])
    return said


def _planned_for_most(request: Request) -> Plan:
    """Return the plan of the most restrictive form that supports the spec in the family that planning chose."""
    plain = _only(request(None)).plan
    for form in reversed(FORMS):
        narrow = _only(request(form))
        if narrow.plan.spec.family == plain.spec.family and not narrow.rules:
            return narrow.plan
    return plain


def _only(candidates: Sequence[Candidate]) -> Candidate:
    if len(candidates) != 1:
        raise RequestError(f"{len(candidates)} specs are named, one is compared: name one value of each option")
    return candidates[0]


def buildable(said: Sequence[Said]) -> list[Said]:
    """Return the forms that are legal and that this machine can build."""
    return [one for one in said if not one.broken and not one.lacking]


def build(
    forms: Sequence[Said], settings: Settings, processes: int, tell: Callable[[Outcome], None]
) -> tuple[list[Built], list[str]]:
    """Build the variants of `forms`, or take them from the library. Return them in order, and the errors of the others.

    `tell` is called with each outcome as it comes.
    """
    outcomes: dict[int, Outcome] = {}
    with closing(make([one.plan for one in forms], settings, processes)) as made:
        for place, outcome in made:
            outcomes[place] = outcome
            tell(outcome)
    built = [
        Built(one.form, outcome.record)
        for place, one in enumerate(forms)
        if (outcome := outcomes[place]).record is not None
    ]
    return built, [outcome.error for outcome in outcomes.values() if outcome.error]


# ---- Results --------------------------------------------------------------------------------------------------------


def run_on_device(built: Built, settings: Settings, shape: tuple[int, int, int], samples: int) -> Built:
    """Run and time a variant on the GPU. Raises: DeviceError where there is none, or a launch fails."""
    from generator.device_check import open_kernel  # what only a run needs
    from hgemm.cases import Case, Shape
    from hgemm.device import open_device
    from hgemm.verify import run

    device = open_device()
    kernel = open_kernel(settings.library, built.record.symbol)
    found = run(kernel, Case(Shape(*shape), 1.0, _beta(built.record)), device, samples=samples)
    speed = {"time_us": found.time_us, "tflops": found.tflops}
    return Built(
        built.form, built.record, Ran(device.name, found.check.passed, found.check.max_bound_ratio, found.digest, speed)
    )


def run_on_cpu(built: Built, settings: Settings, host_toolchain) -> Built:
    """Run a variant on the CPU, on a few ragged tiles; one that is not in C++ is returned as it is.

    Raises: BuildError where its text is no C++ for the compiler here.
    """
    from generator.proof.executor import Adversary  # NumPy, and what only a run needs
    from generator.proof.machine import EmulatedKernel, HostMemory
    from generator.proof.proving import Subject, load
    from hgemm.cases import Case, Shape
    from hgemm.dtypes import decode
    from hgemm.launch_traits import LaunchTraits
    from hgemm.reference import reference
    from hgemm.verify import CheckOptions, Trial, compare

    if built.record.source_name != SOURCE_NAME:
        return built
    data = built.record.data
    source = settings.library.load(built.record.symbol).source.decode()
    traits = LaunchTraits.of(data)
    executable = load(Subject(built.record.symbol, source, data, data["proof"]["mma_per_tile"]), host_toolchain)
    kernel = EmulatedKernel(traits, executable, (Adversary("late", "any_order", 1),))
    case = Case(Shape(traits.tile_m + 3, traits.tile_n + 5, 3 * traits.tile_k + 7), 1.0, _beta(built.record))
    trial = Trial(kernel, case, HostMemory(), CheckOptions(), "normal")
    try:
        trial.prepare()
        found, complaint = trial.launch(trial.problem())
        check = compare(str(case), decode(found, traits.dtype_d), reference(traits, trial.operands), "normal")
    finally:
        trial.free()
    races = [finding for _, report in kernel.reports for finding in report.findings]
    digest = hashlib.sha256(found.tobytes()).hexdigest()
    passed = check.passed and not complaint and not races
    return Built(built.form, built.record, Ran("CPU", passed, check.max_bound_ratio, digest))


def _beta(record: Record) -> float:
    return 0.5 if record.data["spec"]["beta"] else 0.0


# ---- Answer ---------------------------------------------------------------------------------------------------------


def columns(built: Sequence[Built]) -> list[dict[str, Any]]:
    """Return a JSON object for each form: what it was built to, and what it computed beside the first one."""
    return [_column(one, built[0]) for one in built]


def _column(one: Built, first: Built) -> dict[str, Any]:
    data, flat = one.record.data, one.record.flat()
    figures = {**flat, "compile_s": data["seconds"]["compile"], "cubin_bytes": data["files"][CUBIN_NAME]["bytes"]}
    column = {
        "form": one.form,
        "symbol": one.record.symbol,
        **{name: figures[name] for name in _BUILT},
        "sass": data["sass"],
    }
    if not one.ran or not first.ran:
        return column
    same = one.ran.digest == first.ran.digest
    return {
        **column,
        "device": one.ran.device,
        **one.ran.speed,
        "passed": one.ran.passed,
        "max_bound_ratio": one.ran.max_bound_ratio,
        "result": "the same bits" if same else f"other bits than {first.form}",
    }


def side_by_side(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Scalar]]:
    """Return the rows of a table with a column for each form, instructions by how many any of them has."""
    forms = [column["form"] for column in found]
    counts = {name for column in found for name in column["sass"]}
    most = sorted(counts, key=lambda name: (-max(column["sass"].get(name, 0) for column in found), name))
    plain = [name for name in found[0] if name not in ("form", "sass", "symbol")]
    built, ran = [name for name in plain if name in _BUILT], [name for name in plain if name not in _BUILT]
    figures = [(name, [column.get(name) for column in found]) for name in built]
    figures += [(f"sass {name}", [column["sass"].get(name, 0) for column in found]) for name in most]
    figures += [(name, [column.get(name) for column in found]) for name in ran]
    return [{"": name, **dict(zip(forms, values))} for name, values in figures]
