"""Times all steps of a ladder and cuBLASLt's first choice in the same rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hgemm.bench.measure import BASELINE, BenchContext, LostDevice, OutputSample, Race, Variant, open_race
from hgemm.bench.protocol import Protocol, Ratio, figures, round_times
from hgemm.bench.runner import BenchPlan, context_of, heading, write_document
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.errors import DeviceError, HgemmError
from hgemm.kernel import Kernel

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
        contenders = [own(Variant(kernel, context.device)) for kernel in kernels.values()]
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
            if wrong := sample.complaint(race.launches[name][0], race.sides[name], acc):
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
