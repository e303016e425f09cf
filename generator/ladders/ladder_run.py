"""A run of ladders: makes the kernels, measures them on a GPU or describes them without one, and returns a document."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from generator.build.pipeline import Outcome, Prover, Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import open_kernel
from generator.errors import LibraryError
from generator.families.base import Plan
from generator.ladders.ladder import CompiledBaseline, Ladder, card_of, describe, ladder_here, ladder_on
from generator.ladders.recipes import PublishedLadder
from generator.ladders.results import KIND, SCHEMA
from generator.store.library import Library
from hgemm.bench.measure import BASELINE, BenchContext, KernelContender, LostDevice, OutputSample, Race, open_race
from hgemm.bench.protocol import Protocol, Ratio, figures, round_times
from hgemm.bench.runner import BenchPlan, context_of, heading, write_document
from hgemm.bench.work import Work
from hgemm.cases import Shape
from hgemm.device import Device, cubin_runs
from hgemm.errors import DeviceError, HgemmError
from hgemm.kernel import Kernel
from hgemm.record import Record


@dataclass(frozen=True)
class RunOptions:
    """Options of a run of ladders.

    Fields: `arch` replaces the device's architecture; `shapes` replace the published problems; `keep` is the file that
        receives the document after each ladder.
    """

    arch: str = ""
    shapes: Sequence[Shape] = ()
    protocol: Protocol = field(default_factory=Protocol)
    seed: int = 0
    keep: Path | None = None


def plan_ladders(published_ladders: Sequence[PublishedLadder], arch: str, device: Device | None) -> list[Ladder]:
    """Plan each ladder for `arch`, else for the device, else for the architecture of the publication."""
    if arch:
        return [ladder_on(published_ladder, arch) for published_ladder in published_ladders]
    if device:
        return [ladder_here(published_ladder, device.capability) for published_ladder in published_ladders]
    return [ladder_on(published_ladder, published_ladder.arch) for published_ladder in published_ladders]


def plans_of(ladders: Sequence[Ladder]) -> list[Plan]:
    """Return the plans of all steps, each once."""
    return list(dict.fromkeys(plan for ladder in ladders for plan in ladder.plans))


def make_kernels(
    ladders: Sequence[Ladder], library: Library, jobs: int, prover: Prover | None, on_outcome: Callable[[Outcome], None]
) -> dict[str, Record]:
    """Make the kernels of all steps and return their records by symbol. Raises: LibraryError if any cannot be made."""
    outcomes: dict[str, Outcome] = {}
    settings = Settings(library, templates_folder(), prover=prover)
    with closing(make(plans_of(ladders), settings, jobs)) as made:
        for _, outcome in made:
            outcomes[outcome.symbol] = outcome
            on_outcome(outcome)
    errors = [outcome.error for outcome in outcomes.values() if outcome.error]
    if errors:
        raise LibraryError("; ".join(errors))
    return {symbol: outcome.record for symbol, outcome in outcomes.items() if outcome.record}


def run_ladders(
    ladders: Sequence[Ladder],
    records: Mapping[str, Record],
    library: Library,
    device: Device | None,
    options: RunOptions,
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Run the ladders whose kernels are made, and return the document. Without a device, only describe them.

    `on_line` is called with a line of text after each ladder.
    """
    baselines = {kernel.symbol: kernel.compile() for ladder in ladders for kernel in ladder.baseline_kernels}
    problems = [
        (ladder, ladder.work(shape))
        for ladder in ladders
        for shape in options.shapes or map(Shape.parse, ladder.published.shapes)
    ]
    device_name = device.name if device else ""
    descriptions = [
        describe(ladder, records, baselines, work, card_of(ladder, device_name)) for ladder, work in problems
    ]
    if device:
        kernels = _load(library, records, baselines)
        return _measured(problems, descriptions, kernels, device, options, on_line)
    document = {"kind": KIND, "schema": SCHEMA, "device": None, "arch": None, "ladders": descriptions}
    if options.keep:
        write_document(options.keep, document)
    return document


def _load(
    library: Library, records: Mapping[str, Record], baselines: Mapping[str, CompiledBaseline]
) -> dict[str, Kernel]:
    """Return all kernels by symbol, ready to launch."""
    loaded = {symbol: baseline.load() for symbol, baseline in baselines.items()}
    return loaded | {symbol: open_kernel(library, symbol) for symbol in records}


def _measured(
    problems: Sequence[tuple[Ladder, Work]],
    descriptions: Sequence[dict[str, Any]],
    kernels: Mapping[str, Kernel],
    device: Device,
    options: RunOptions,
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    ladder_problems = []
    for (ladder, work), description in zip(problems, descriptions):
        code = "cubin" if cubin_runs(ladder.arch, device.capability) else "ptx"
        steps = [kernels[symbol] for symbol in ladder.symbols]
        ladder_problems.append(LadderProblem(work, steps, {**description, "code": code}))
    heading_fields = {"kind": KIND, "arch": "sm_{}{}".format(*device.capability)}
    plan = plan_of(options.seed, options.keep, options.protocol)
    return run(ladder_problems, plan, device, heading_fields, on_line)


# ---- Measurement -----------------------------------------------------------------------------------------------------


Log = Callable[[str], None]


@dataclass(frozen=True)
class LadderProblem:
    """One ladder on one problem: the kernel of each step, in order. Steps may share a kernel.

    Fields: `description` is known before the run. The result starts with it.
    """

    work: Work
    kernels: Sequence[Kernel]
    description: dict[str, Any]


def run(
    ladders: Sequence[LadderProblem], plan: BenchPlan, device: Device, heading_fields: dict[str, Any], log: Log
) -> dict[str, Any]:
    """Measure each ladder and return the document. `ladders` holds the results.

    The document starts with the heading and `heading_fields`. With `plan.keep` it is written after each ladder. If a
    kernel's fault ends the run, `lost` names the kernel.
    """
    document: dict[str, Any] = {
        **heading(plan.protocol, plan.seed, device),
        **heading_fields,
        "lost": "",
        "ladders": [],
    }
    with ExitStack() as stack:
        context = context_of(plan, device, document, stack)
        for ladder in ladders:
            began = time.perf_counter()
            try:
                found = measure(ladder, context)
            except LostDevice as error:
                document["lost"] = str(error)
                break
            except DeviceError as error:  # for example, too little memory for the operands
                found = {"refused": {"all": str(error)}, "figures": {}}
            seconds = round(time.perf_counter() - began, 2)
            document["ladders"].append({**ladder.description, **found, "seconds": seconds})
            log(_line(ladder, found))
            if plan.keep:
                write_document(plan.keep, document)
    return document


def _line(ladder: LadderProblem, found: dict[str, Any]) -> str:
    rates = " ".join(f"{one['tflops']:.0f}" for one in found["figures"].values())
    return (
        f"{ladder.work.group} {ladder.work.shape}: {rates or 'nothing measured'} TFLOP/s, step by step and the baseline"
    )


def measure(ladder: LadderProblem, context: BenchContext) -> dict[str, Any]:
    """Time all steps of a ladder and cuBLASLt in the same rounds, after checking each step's output.

    Raises: LostDevice if a kernel faults; DeviceError if memory is too small. Other failures are listed in `refused`.
    """
    kernels = {kernel.traits.symbol: kernel for kernel in ladder.kernels}
    with open_race(ladder.work, context) as (race, own):
        contenders = [own(KernelContender(kernel, context.device)) for kernel in kernels.values()]
        if context.baseline:
            try:
                contenders += map(own, own(context.baseline.propose(ladder.work, 1)).contenders[:1])
            except HgemmError as error:
                race.rejected[context.baseline.name] = str(error)
        for contender in contenders:
            context.watchdog.begin(contender.name)
            race.add(contender)
        sample = OutputSample(race.operands, context.seed)
        for name in [*race.launches]:
            acc = kernels[name].traits.acc if name in kernels else ladder.work.acc
            if wrong := sample.failure(race.launches[name][0], race.sides[name], acc):
                race.reject(name, wrong)
        context.watchdog.rest()
        return _timed(race, ladder, context)


def _timed(race: Race, ladder: LadderProblem, context: BenchContext) -> dict[str, Any]:
    names, work, protocol = [*race.launches], ladder.work, context.protocol
    found: dict[str, Any] = {"sets": race.operands.sets, "refused": race.rejected, "figures": {}, "baseline": None}
    if not names:
        return found
    race.prepare(names, protocol.rounds)
    race.load(names, protocol.rewarm_s if context.warm else protocol.warm_up_s)
    context.warm = True
    began = time.perf_counter()
    times = round_times(race.steady(names))
    baseline = next((name for name in names if race.sides[name] == BASELINE), None)
    steps = [kernel.traits.symbol for kernel in ladder.kernels]
    return {
        **found,
        "figures": {name: figures(times[name], work) for name in names},
        "baseline": baseline,
        "over_before": [_ratio(times, *pair) for pair in zip([None, *steps], steps)],
        "of_baseline": [_ratio(times, baseline, step) for step in steps],
        "telemetry": context.telemetry.between(began, time.perf_counter()),
    }


def _ratio(times: dict[str, list[float]], base: str | None, own: str) -> dict[str, float] | None:
    """Return the speedup of `own` over `base`, round by round. None if one was not measured."""
    return asdict(Ratio.of(times[base], times[own])) if base in times and own in times else None


def plan_of(seed: int, keep: Path | None, protocol: Protocol) -> BenchPlan:
    """Return the plan of a ladder run: steady state, with cuBLASLt as baseline."""
    return BenchPlan(works=(), kernels=(), protocol=protocol, seed=seed, keep=keep)
