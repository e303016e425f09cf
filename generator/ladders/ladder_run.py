"""A run of ladders: makes the kernels, measures them on a GPU or describes them without one, and returns a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.build.pipeline import Outcome, Prover, Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import open_kernel
from generator.errors import LibraryError
from generator.families.base import Plan
from generator.ladders.baseline_kernel import CompiledBaseline
from generator.ladders.ladder import Ladder, card_of, describe, ladder_here, ladder_on
from generator.ladders.recipes import System
from generator.ladders.results import KIND, SCHEMA
from generator.store.library import Library
from hgemm.bench.protocol import Protocol
from hgemm.bench.runner import write_document
from hgemm.bench.work import Work
from hgemm.cases import Shape
from hgemm.device import Device, cubin_runs
from hgemm.kernel import Kernel
from hgemm.record import Record


@dataclass(frozen=True)
class RunOptions:
    """How ladders are run.

    Fields: `arch` replaces the device's architecture; `shapes` replace the published problems; `keep` is the file that
        receives the document after each ladder.
    """

    arch: str = ""
    shapes: Sequence[Shape] = ()
    protocol: Protocol = field(default_factory=Protocol)
    seed: int = 0
    keep: Path | None = None


def plan_ladders(systems: Sequence[System], arch: str, device: Device | None) -> list[Ladder]:
    """Plan each system for `arch`, else for the device, else for the architecture of the publication."""
    if arch:
        return [ladder_on(system, arch) for system in systems]
    if device:
        return [ladder_here(system, device.capability) for system in systems]
    return [ladder_on(system, system.arch) for system in systems]


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
        for shape in options.shapes or map(Shape.parse, ladder.system.shapes)
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
    from hgemm.bench.ladder import LadderProblem, plan_of, run  # NumPy and the driver, needed only on a device

    ladder_problems = []
    for (ladder, work), description in zip(problems, descriptions):
        code = "cubin" if cubin_runs(ladder.arch, device.capability) else "ptx"
        steps = [kernels[symbol] for symbol in ladder.symbols]
        ladder_problems.append(LadderProblem(work, steps, {**description, "code": code}))
    heading_fields = {"kind": KIND, "arch": "sm_{}{}".format(*device.capability)}
    plan = plan_of(options.seed, options.keep, options.protocol)
    return run(ladder_problems, plan, device, heading_fields, on_line)
