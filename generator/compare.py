"""Compares one spec in every form: which forms support it, what each is built to, and whether all compute the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from generator.build import dsl as translate
from generator.build.pipeline import Outcome, Settings, make
from generator.errors import RequestError
from generator.families import family_of
from generator.families.base import Plan
from generator.planner import Violation, reject_illegal, violations
from generator.spec import FORMS
from generator.sweep import Candidate
from hgemm.junit import JunitSuite, JunitTest
from hgemm.record import CUBIN_NAME, PTX_NAME, Record, Scalar

_BUILT = "compile_s registers spill_bytes smem_bytes ctas_per_sm cubin_bytes".split()


@dataclass(frozen=True)
class FormPlan:
    """A spec in one form.

    Fields: `violations` are the rules that it violates in this form; `missing` names what this machine lacks to build the form.
    """

    plan: Plan
    violations: tuple[Violation, ...]
    missing: str = ""

    @property
    def form(self) -> str:
        return self.plan.spec.form


@dataclass(frozen=True)
class RunResult:
    """The result of a run: the check against the reference, a hash of D, and the speed if it was measured."""

    device: str
    passed: bool
    max_bound_ratio: float
    digest: str
    speed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltForm:
    """A built form, and its result if it was run."""

    form: str
    record: Record
    result: RunResult | None = None


Request = Callable[["str | None"], Sequence[Candidate]]
"""Returns the user's request in a form; None leaves the form to planning."""


def plan_every_form(request: Request) -> list[FormPlan]:
    """Plan the requested spec in every form.

    Open fields are planned so that as many forms as possible support the spec.
    Raises: RequestError if several specs are requested, or no form supports the spec.
    """
    plans = [_planned_for_most(request).replace(form=form) for form in FORMS]
    forms = [FormPlan(plan, violations(plan), translate.missing() if plan.spec.form == "dsl" else "") for plan in plans]
    if all(form.violations for form in forms):
        reject_illegal(plans[0])
    return forms


def _planned_for_most(request: Request) -> Plan:
    """Return the plan of the most restrictive form that supports the spec in the family that planning chose."""
    plain = _only(request(None)).plan
    for form in reversed(FORMS):
        narrow = _only(request(form))
        if family_of(narrow.plan.spec) is family_of(plain.spec) and not narrow.rules:
            return narrow.plan
    return plain


def _only(candidates: Sequence[Candidate]) -> Candidate:
    if len(candidates) != 1:
        raise RequestError(
            f"{len(candidates)} specs are requested, but compare takes one: give one value for each option"
        )
    return candidates[0]


def buildable(forms: Sequence[FormPlan]) -> list[FormPlan]:
    """Return the forms that are legal and that this machine can build."""
    return [form for form in forms if not form.violations and not form.missing]


def build(
    forms: Sequence[FormPlan], settings: Settings, processes: int, on_outcome: Callable[[Outcome], None]
) -> tuple[list[BuiltForm], list[str]]:
    """Build `forms`, or take them from the library. Return the built forms in order, and the errors of the others."""
    outcomes: dict[int, Outcome] = {}
    with closing(make([form.plan for form in forms], settings, processes)) as made:
        for place, outcome in made:
            outcomes[place] = outcome
            on_outcome(outcome)
    built = [
        BuiltForm(form.form, outcome.record)
        for place, form in enumerate(forms)
        if (outcome := outcomes[place]).record is not None
    ]
    return built, [outcome.error for outcome in outcomes.values() if outcome.error]


# ==== Running ====


def run_on_device(built: BuiltForm, settings: Settings, shape: tuple[int, int, int], samples: int) -> BuiltForm:
    """Run and time a kernel on the GPU. Raises: DeviceError if there is no GPU, or a launch fails."""
    from generator.device_check import open_kernel  # slow to load, and needed only for a run
    from hgemm.cases import Case, Shape
    from hgemm.device import open_device
    from hgemm.verification import run

    device = open_device()
    kernel = open_kernel(settings.library, built.record.symbol)
    found = run(kernel, Case(Shape(*shape), 1.0, _beta(built.record)), device, samples=samples)
    speed = {"time_us": found.time_us, "tflops": found.tflops}
    result = RunResult(device.name, found.check.passed, found.check.max_bound_ratio, found.digest, speed)
    return replace(built, result=result)


def run_on_cpu(built: BuiltForm, settings: Settings, host_toolchain) -> BuiltForm:
    """Run a kernel on the CPU, on a few ragged tiles. Raises: HgemmError if its PTX cannot be translated or run."""
    from generator.proof.executor import Adversary  # NumPy, needed only for a run
    from generator.proof.machine import EmulatedKernel, HostMemory
    from generator.proof.proving import Subject, load
    from hgemm.cases import Case, Shape
    from hgemm.dtypes import decode
    from hgemm.launch_traits import LaunchTraits
    from hgemm.reference import reference
    from hgemm.verification import CheckOptions, Trial, compare

    data = built.record.data
    ptx = settings.library.load(built.record.symbol).artefacts[PTX_NAME].decode()
    traits = LaunchTraits.of(data)
    executable = load(Subject(built.record.symbol, ptx, data, data["proof"]["mma_per_k_tile"]), host_toolchain)
    kernel = EmulatedKernel(traits, executable, (Adversary("late", "any_order", 1),))
    case = Case(Shape(traits.tile_m + 3, traits.tile_n + 5, 3 * traits.tile_k + 7), 1.0, _beta(built.record))
    trial = Trial(kernel, case, HostMemory(), CheckOptions(), "normal")
    try:
        trial.prepare()
        found, failure = trial.launch(trial.problem())
        check = compare(
            str(case), decode(found, traits.dtype_d), reference(traits, trial.operands, splits=trial.splits), "normal"
        )
    finally:
        trial.free()
    races = [finding for _, report in kernel.reports for finding in report.findings]
    digest = hashlib.sha256(found.tobytes()).hexdigest()
    passed = check.passed and not failure and not races
    return replace(built, result=RunResult("CPU", passed, check.max_bound_ratio, digest))


def _beta(record: Record) -> float:
    return 0.5 if record.data["spec"]["beta"] else 0.0


# ==== The table ====


def junit_suite(built: Sequence[BuiltForm], errors: Sequence[str]) -> JunitSuite:
    """Return a suite with a test for each form that was built, and for each error of a build."""
    tests = []
    for one in built:
        if one.result is None:
            tests.append(JunitTest(one.form, message="built, not run"))
        elif one.result.passed:
            tests.append(JunitTest(one.form, message=f"{one.result.max_bound_ratio:.2f} of the error bound"))
        else:
            tests.append(JunitTest(one.form, "failure", "the result exceeds the error bound"))
    tests += [JunitTest("build", "error", error) for error in errors]
    return JunitSuite("forms", tuple(tests))


def columns(built: Sequence[BuiltForm]) -> list[dict[str, Any]]:
    """Return a JSON object for each form: its build, and its result compared with that of the first form."""
    return [_column(one, built[0]) for one in built]


def _column(one: BuiltForm, first: BuiltForm) -> dict[str, Any]:
    data, flat = one.record.data, one.record.flat()
    figures = {**flat, "compile_s": data["seconds"]["compile"], "cubin_bytes": data["files"][CUBIN_NAME]["bytes"]}
    column = {
        "form": one.form,
        "symbol": one.record.symbol,
        **{name: figures[name] for name in _BUILT},
        "sass": data["sass"],
    }
    if not one.result or not first.result:
        return column
    same = one.result.digest == first.result.digest
    return {
        **column,
        "device": one.result.device,
        **one.result.speed,
        "passed": one.result.passed,
        "max_bound_ratio": one.result.max_bound_ratio,
        "result": "same bits" if same else f"bits differ from {first.form}",
    }


def side_by_side(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Scalar]]:
    """Return the rows of a table with a column for each form. Instructions are sorted by their largest count."""
    forms = [column["form"] for column in found]
    counts = {name for column in found for name in column["sass"]}
    most = sorted(counts, key=lambda name: (-max(column["sass"].get(name, 0) for column in found), name))
    plain = [name for name in found[0] if name not in ("form", "sass", "symbol")]
    built, ran = [name for name in plain if name in _BUILT], [name for name in plain if name not in _BUILT]
    figures = [(name, [column.get(name) for column in found]) for name in built]
    figures += [(f"sass {name}", [column["sass"].get(name, 0) for column in found]) for name in most]
    figures += [(name, [column.get(name) for column in found]) for name in ran]
    return [{"": name, **dict(zip(forms, values))} for name, values in figures]
