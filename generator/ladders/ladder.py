"""Rivals: kernels written by hand that a ladder runs beside ours, made for an architecture and held by no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from generator.arch import ARCHS, MMA_SYNC
from generator.build.compile import compile_kernel
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import headers, templates_folder
from generator.emit import Kernel
from generator.errors import RequestError
from generator.ladders.recipes import FOLDER, Hand, Step, System
from generator.naming import symbol_of
from generator.plan import Plan
from generator.rules import refuse_illegal
from generator.sweep import sweep
from hgemm import kernel as launched
from hgemm.bench.work import Work
from hgemm.cases import Shape
from hgemm.model.cards import Card
from hgemm.model.kernel import Size
from hgemm.model.report import card_for, report
from hgemm.record import Record

ROOT = "common/problem.cuh"
"""What its text includes."""


@dataclass(frozen=True)
class Rival:
    """A hand-written kernel beside the plan of one of ours, whose problem and architecture it shares."""

    hand: Hand
    beside: Plan

    @property
    def symbol(self) -> str:
        return f"rival_{self.hand.source.partition('.')[0]}"

    @property
    def source(self) -> str:
        return (FOLDER / self.hand.source).read_text(encoding="utf-8")

    def planned(self) -> dict[str, Any]:
        """Return the sections of a record that a launch and a proof read."""
        spec, tile = self.beside.spec, self.hand.tile
        problem = {name: getattr(spec, name) for name in ("layout", "dtype_d")}
        return {
            "symbol": self.symbol,
            "alias": "",
            "arch": spec.arch,
            "spec": {
                **problem,
                "dtype_a": "f32",
                "dtype_b": "f32",
                "acc": "f32",
                "beta": False,
                "bias": "none",
                "activation": "none",
                "cta_tile": str(tile),
                "stages": 1,
                "copy": "by_hand",
            },
            "launch": {
                "threads": self.hand.threads,
                "smem_bytes": self.hand.smem_bytes,
                "cluster": [1, 1, 1],
                "grid": {"rule": "one_tile", "tile_m": tile.m, "tile_n": tile.n, "splits": 1},
            },
            "traits": {"min_align": {"a": 1, "b": 1, "d": 1}, "workspace": {}},
            "proof": {"mma_per_tile": 0},
        }

    def made(self) -> Made:
        """Compile it. Raises BuildError with the compiler's log."""
        compiled = compile_kernel(Kernel(self.beside, self.symbol, "", self.source), headers(ROOT, templates_folder()))
        return Made(self, compiled.cubin, compiled.ptx, parse_ptxas_log(compiled.ptxas_log)[self.symbol].registers)


@dataclass(frozen=True)
class Made:
    """A compiled rival."""

    rival: Rival
    cubin: bytes
    ptx: bytes
    registers: int

    def kernel(self) -> launched.Kernel:
        """Return what launches it."""
        return launched.Kernel(self.rival.planned(), self.cubin, self.ptx)


# ==== Ladders of recipes ====


_RESOURCES = ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm")
_PROVED = ("sectors_per_request", "least_sectors_per_request")


@dataclass(frozen=True)
class Ladder:
    """A system's steps for one architecture: the plans of our kernels, and rivals."""

    system: System
    arch: str
    rungs: tuple[Plan | Rival, ...]

    @property
    def plans(self) -> list[Plan]:
        return [rung for rung in self.rungs if isinstance(rung, Plan)]

    @property
    def rivals(self) -> list[Rival]:
        return [rung for rung in self.rungs if isinstance(rung, Rival)]

    @property
    def symbols(self) -> list[str]:
        """The kernels of the steps, in order."""
        return [rung.symbol if isinstance(rung, Rival) else symbol_of(rung.spec) for rung in self.rungs]

    def work(self, shape: Shape) -> Work:
        """Return the problem of a shape, accumulated as our first step does."""
        spec = self.plans[0].spec
        types = {name: getattr(spec, name) for name in ("layout", "dtype_a", "dtype_b", "acc", "dtype_d")}
        return Work(shape.m, shape.n, shape.k, shape.batch, **types, group=self.system.name)


def ladder_on(system: System, arch: str) -> Ladder:
    """Return a ladder for an architecture. Raises RequestError for a step that is illegal there, with each rule it breaks."""
    plans = {step.name: _plan(step, arch) for step in system.steps if step.rival is None}
    beside = next(iter(plans.values()))
    rungs = (Rival(step.rival, beside) if step.rival else plans[step.name] for step in system.steps)
    return Ladder(system, arch, tuple(rungs))


def _plan(step: Step, arch: str) -> Plan:
    (candidate,) = sweep([step.texts_on(arch)]).candidates
    try:
        refuse_illegal(candidate.plan, candidate.request)
    except RequestError as error:
        raise RequestError(f"recipe {step.path}: {error}") from None
    return candidate.plan


def ladder_here(system: System, capability: tuple[int, int]) -> Ladder:
    """Return a ladder for a device's architecture, or where a step is illegal there for its own, whose PTX may run."""
    name = "sm_{}{}".format(*capability)
    if name in ARCHS and MMA_SYNC in ARCHS[name].families:
        try:
            return ladder_on(system, name)
        except RequestError:
            pass
    return ladder_on(system, system.arch)


def card_of(ladder: Ladder, device: str = "") -> Card | None:
    """Return the card that a ladder is predicted for: the device's, the publication's, or the usual one; None for no table."""
    for name in (device or ladder.system.card, ""):
        with suppress(RequestError):
            return card_for(ladder.arch, name)
    return None


def about(
    ladder: Ladder, records: Mapping[str, Record], rivals: Mapping[str, Made], work: Work, card: Card | None
) -> dict[str, Any]:
    """Return what is known of a ladder on a problem before it is run, as JSON values; records and rivals are by symbol."""
    system, shape = ladder.system, str(work.shape)
    known = [
        _known_rival(rivals[symbol])
        if isinstance(rung, Rival)
        else {**_known(rung, records[symbol]), **_predicted(records[symbol], work, card)}
        for rung, symbol in zip(ladder.rungs, ladder.symbols)
    ]
    return {
        "system": system.name,
        **{name: getattr(system, name) for name in ("title", "source", "machine", "note")},
        "arch": ladder.arch,
        "work": work.plain(),
        "card": card.name if card else None,
        "published_cublas": system.cublas.get(shape),
        "steps": [
            {
                **{name: getattr(step, name) for name in ("name", "what", "fell")},
                "note": step.note_on(ladder.arch),
                **measured,
                "published": published,
            }
            for step, measured, published in zip(system.steps, known, published_of(system, shape))
        ],
    }


def _known(plan: Plan, record: Record) -> dict[str, Any]:
    data = record.data
    return {
        "symbol": record.symbol,
        **{name: data["resources"][name] for name in _RESOURCES},
        "bank_conflicts": plan.bank_conflicts,
        **{name: data["proof"].get(name) for name in _PROVED},
    }


def _predicted(record: Record, work: Work, card: Card | None) -> dict[str, Any]:
    """Return the most that the model allows on a card, and what bounds it there; None where its table lacks a figure."""
    if card is None:
        return _UNPREDICTED
    size = Size(work.m, work.n, work.k, work.batch)
    try:
        found = report(record.data["spec"], record.data["resources"], card, size)["problem"]
    except RequestError:
        return _UNPREDICTED
    return {"predicted_tflops": work.flops / found["least_us"] * 1e-6, "bound": found["bound"]}


_UNPREDICTED = {"predicted_tflops": None, "bound": None}


def _known_rival(made: Made) -> dict[str, Any]:
    unknown = dict.fromkeys(("ctas_per_sm", "bank_conflicts", *_PROVED))
    resources = {"registers": made.registers, "spill_bytes": 0, "smem_bytes": made.rival.hand.smem_bytes}
    return {"symbol": made.rival.symbol, **resources, **unknown, **_UNPREDICTED}


def published_of(system: System, shape: str) -> list[dict[str, float | None]]:
    """Return what was published of each step on a problem: TFLOP/s, the speed over the step before, the part of cuBLAS's."""
    cublas = system.cublas.get(shape)
    rates: Sequence[float | None] = [step.tflops.get(shape) for step in system.steps]
    return [
        {
            "tflops": rate,
            "over_before": step.ratio or (rate / before if rate and before else None),
            "of_cublas": rate / cublas if rate and cublas else None,
        }
        for step, before, rate in zip(system.steps, [None, *rates], rates)
    ]
