"""Ladders of recipes: which kernels they come to on an architecture, and what is known of each before it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generator.arch import ARCHS, MMA_SYNC
from generator.catalog.recipes import Step, System
from generator.errors import RequestError
from generator.naming import symbol_of
from generator.plan import Plan
from generator.rules import refuse_illegal
from generator.sweep import over, sweep
from hgemm.bench.work import Work
from hgemm.cases import Shape
from hgemm.record import Record

_RESOURCES = ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm")
_PROVED = ("sectors_per_request", "least_sectors_per_request")


@dataclass(frozen=True)
class Ladder:
    """A system's steps as plans for one architecture."""

    system: System
    arch: str
    plans: tuple[Plan, ...]

    @property
    def symbols(self) -> list[str]:
        """The variants of the steps, in order."""
        return [symbol_of(plan.spec) for plan in self.plans]

    def work(self, shape: Shape) -> Work:
        """Return the problem of a shape, accumulated as the first step does."""
        spec = self.plans[0].spec
        types = {name: getattr(spec, name) for name in ("layout", "dtype_a", "dtype_b", "acc", "dtype_d")}
        return Work(shape.m, shape.n, shape.k, shape.batch, **types, group=self.system.name)


def ladder_on(system: System, arch: str) -> Ladder:
    """Return a ladder for an architecture. Raises RequestError for a step that is illegal there, with each rule it breaks."""
    return Ladder(system, arch, tuple(_plan(step, arch) for step in system.steps))


def _plan(step: Step, arch: str) -> Plan:
    (candidate,) = sweep([over(step.texts, {"arch": arch})]).candidates
    try:
        refuse_illegal(candidate.plan)
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


def about(ladder: Ladder, records: Mapping[str, Record], work: Work) -> dict[str, Any]:
    """Return what is known of a ladder on a problem before it is run, as JSON values; `records` are by symbol."""
    system, shape = ladder.system, str(work.shape)
    known = [_known(plan, records[symbol]) for plan, symbol in zip(ladder.plans, ladder.symbols)]
    return {
        "system": system.name,
        **{name: getattr(system, name) for name in ("title", "source", "machine", "note")},
        "arch": ladder.arch,
        "work": work.plain(),
        "published_cublas": system.cublas.get(shape),
        "steps": [
            {
                **{name: getattr(step, name) for name in ("name", "what", "note", "fell")},
                **facts,
                "published": published,
            }
            for step, facts, published in zip(system.steps, known, published_of(system, shape))
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
