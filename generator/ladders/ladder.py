"""A ladder: the steps of a publication as kernels for one architecture, and what is known of them before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from generator.arch import ARCHS
from generator.build.compile import compile_kernel
from generator.build.emit import EmittedKernel
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import headers, templates_folder
from generator.errors import RequestError
from generator.families.base import Plan
from generator.ladders.recipes import FOLDER, BaselineSource, PublishedLadder, Step
from generator.planner import reject_illegal
from generator.spec import symbol_of
from generator.sweep import sweep
from hgemm import kernel as run_time
from hgemm.bench.work import Work
from hgemm.cases import Shape
from hgemm.model.cards import Card
from hgemm.model.kernel import Size
from hgemm.model.predict import card_for, report
from hgemm.record import Record

ENTRY_HEADER = "common/problem.cuh"
"""The header that its source includes."""


@dataclass(frozen=True)
class BaselineKernel:
    """A hand-written kernel. It computes the problem of `like`, a plan of the same ladder, on the same architecture."""

    hand_written: BaselineSource
    like: Plan

    @property
    def symbol(self) -> str:
        return f"baseline_{self.hand_written.source.partition('.')[0]}"

    @property
    def source(self) -> str:
        return (FOLDER / self.hand_written.source).read_text(encoding="utf-8")

    @property
    def kernel(self) -> EmittedKernel:
        return EmittedKernel(self.like, self.symbol, "", self.source)

    def planned(self) -> dict[str, Any]:
        """Return the sections of a record that a launch and a proof read."""
        spec, tile = self.like.spec, self.hand_written.tile
        return {
            "symbol": self.symbol,
            "alias": "",
            "arch": spec.arch,
            "spec": {
                "layout": spec.layout,
                "dtype_a": "f32",
                "dtype_b": "f32",
                "dtype_d": spec.dtype_d,
                "acc": "f32",
                "beta": False,
                "bias": "none",
                "activation": "none",
                "cta_tile": str(tile),
                "stages": 1,
                "copy": "by_hand",
            },
            "launch": {
                "threads": self.hand_written.threads,
                "smem_bytes": self.hand_written.smem_bytes,
                "cluster": [1, 1, 1],
                "grid": {"rule": "one_tile", "tile_m": tile.m, "tile_n": tile.n, "splits": 1},
            },
            "traits": {"min_align": {"a": 1, "b": 1, "d": 1}, "workspace": {}},
            "proof": {"mma_per_k_tile": 0},
        }

    def compile(self) -> CompiledBaseline:
        """Compile the kernel. Raises: BuildError with the compiler's log."""
        compiled = compile_kernel(self.kernel, headers(ENTRY_HEADER, templates_folder()))
        registers = parse_ptxas_log(compiled.ptxas_log)[self.symbol].registers
        return CompiledBaseline(self, compiled.cubin, compiled.ptx, registers)


@dataclass(frozen=True)
class CompiledBaseline:
    """A compiled baseline kernel. Units: `registers` are of a thread."""

    baseline: BaselineKernel
    cubin: bytes
    ptx: bytes
    registers: int

    def load(self) -> run_time.Kernel:
        """Return the kernel that the run time launches."""
        return run_time.Kernel(self.baseline.planned(), self.cubin, self.ptx)


# ==== Ladders ====


_RESOURCES = ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm")
_PROVED = ("sectors_per_request", "ideal_sectors_per_request")
_UNPREDICTED = {"predicted_tflops": None, "bound": None}


@dataclass(frozen=True)
class Ladder:
    """The steps of a ladder on one architecture: for each a plan of ours, or a baseline kernel."""

    published: PublishedLadder
    arch: str
    kernels: tuple[Plan | BaselineKernel, ...]

    @property
    def plans(self) -> list[Plan]:
        return [kernel for kernel in self.kernels if isinstance(kernel, Plan)]

    @property
    def baseline_kernels(self) -> list[BaselineKernel]:
        return [kernel for kernel in self.kernels if isinstance(kernel, BaselineKernel)]

    @property
    def symbols(self) -> list[str]:
        """The symbol of each step, in order."""
        return [
            kernel.symbol if isinstance(kernel, BaselineKernel) else symbol_of(kernel.spec) for kernel in self.kernels
        ]

    def work(self, shape: Shape) -> Work:
        """Return the problem of a shape, with the layout and types of our first step."""
        spec = self.plans[0].spec
        types = {name: getattr(spec, name) for name in ("layout", "dtype_a", "dtype_b", "acc", "dtype_d")}
        return Work(shape.m, shape.n, shape.k, shape.batch, **types, group=self.published.name)


# ==== Planning ====


def ladder_on(published_ladder: PublishedLadder, arch: str) -> Ladder:
    """Plan a ladder for an architecture. Raises: RequestError with every broken rule, if a step is illegal there."""
    plans = {step.name: _plan(step, arch) for step in published_ladder.steps if step.baseline_kernel is None}
    like = next(iter(plans.values()))
    kernels = (
        BaselineKernel(step.baseline_kernel, like) if step.baseline_kernel else plans[step.name]
        for step in published_ladder.steps
    )
    return Ladder(published_ladder, arch, tuple(kernels))


def _plan(step: Step, arch: str) -> Plan:
    (candidate,) = sweep([step.texts_on(arch)]).candidates
    try:
        reject_illegal(candidate.plan, candidate.request)
    except RequestError as error:
        raise RequestError(f"recipe {step.path}: {error}") from None
    return candidate.plan


def ladder_here(published_ladder: PublishedLadder, capability: tuple[int, int]) -> Ladder:
    """Plan a ladder for a device's architecture. If a step is illegal there, plan for its own architecture, whose PTX may run."""
    name = "sm_{}{}".format(*capability)
    if name in ARCHS:
        try:
            return ladder_on(published_ladder, name)
        except RequestError:
            pass
    return ladder_on(published_ladder, published_ladder.arch)


# ==== What is known before a run ====


def card_of(ladder: Ladder, device: str = "") -> Card | None:
    """Return the card for predictions: the device's, the publication's, or the usual one; None if no table fits."""
    for name in (device or ladder.published.card, ""):
        with suppress(RequestError):
            return card_for(ladder.arch, name)
    return None


def describe(
    ladder: Ladder,
    records: Mapping[str, Record],
    baselines: Mapping[str, CompiledBaseline],
    work: Work,
    card: Card | None,
) -> dict[str, Any]:
    """Return everything known of a ladder on a problem before a run, as JSON. `records` and `baselines` are by symbol."""
    published_ladder, shape = ladder.published, str(work.shape)
    known = [
        _known_of_baseline(baselines[symbol])
        if isinstance(kernel, BaselineKernel)
        else {**_known(kernel, records[symbol]), **_predicted(records[symbol], work, card)}
        for kernel, symbol in zip(ladder.kernels, ladder.symbols)
    ]
    return {
        "system": published_ladder.name,
        **{name: getattr(published_ladder, name) for name in ("title", "source", "machine", "note")},
        "arch": ladder.arch,
        "work": work.plain(),
        "card": card.name if card else None,
        "published_cublas": published_ladder.cublas.get(shape),
        "steps": [
            {
                **{name: getattr(step, name) for name in ("name", "what", "fell")},
                "note": step.note_on(ladder.arch),
                **known_of_step,
                "published": published,
            }
            for step, known_of_step, published in zip(
                published_ladder.steps, known, published_of(published_ladder, shape)
            )
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


def _known_of_baseline(compiled: CompiledBaseline) -> dict[str, Any]:
    return {
        "symbol": compiled.baseline.symbol,
        "registers": compiled.registers,
        "spill_bytes": 0,
        "smem_bytes": compiled.baseline.hand_written.smem_bytes,
        **dict.fromkeys(("ctas_per_sm", "bank_conflicts", *_PROVED)),
        **_UNPREDICTED,
    }


def _predicted(record: Record, work: Work, card: Card | None) -> dict[str, Any]:
    """Return the highest rate that the model allows on a card, and its bound; None if the card's table lacks a number."""
    if card is None:
        return _UNPREDICTED
    size = Size(work.m, work.n, work.k, work.batch)
    try:
        found = report(record.data["spec"], record.data["resources"], card, size)["problem"]
    except RequestError:
        return _UNPREDICTED
    return {"predicted_tflops": work.flops / found["lower_bound_us"] * 1e-6, "bound": found["bound"]}


def published_of(published_ladder: PublishedLadder, shape: str) -> list[dict[str, float | None]]:
    """Return the published numbers of each step: TFLOP/s, speedup over the step before, fraction of cuBLAS."""
    cublas = published_ladder.cublas.get(shape)
    rates: Sequence[float | None] = [step.tflops.get(shape) for step in published_ladder.steps]
    return [
        {
            "tflops": rate,
            "over_before": step.ratio or (rate / before if rate and before else None),
            "of_cublas": rate / cublas if rate and cublas else None,
        }
        for step, before, rate in zip(published_ladder.steps, [None, *rates], rates)
    ]
