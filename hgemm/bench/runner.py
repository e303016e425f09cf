"""Runs a benchmark: problem after problem, each result saved at once, within a budget, resumable."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hgemm.bench.cublaslt import CublasLt
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import Baseline, BenchContext, LostDevice, measure, open_context, quietly
from hgemm.bench.protocol import Protocol
from hgemm.bench.results import line
from hgemm.bench.work import Work
from hgemm.device import Device, driver_cuda
from hgemm.disk import write_atomically
from hgemm.errors import DeviceError, LibraryError
from hgemm.kernel import Kernel
from hgemm.measured import MeasuredProblem, MeasuredVariant, SessionWriter, VariantTime

_CLOCKS = ("sm_mhz", "power_w", "temperature_c", "limited_by")
_STATES = ("power_limit_w", "sm_mhz_max", "temperature_c")


def problem_of(work: Work) -> MeasuredProblem:
    """Return a problem in the form that sessions store."""
    return MeasuredProblem(**{name: value for name, value in work.plain().items() if name != "group"})


def scaled_to_rounds(result: Mapping[str, Any]) -> dict[str, float]:
    """Return a result's screened times, scaled to the clocks of its rounds.

    Short samples run at other clocks than rounds. The scale is the median ratio of finalists' times in rounds to their
    screened times. Without it, variants that were only screened would seem faster or slower than finalists.
    """
    screened, figures = result["screened_us"], result["figures"]
    both = [figures[name]["time_us"] / us for name, us in screened.items() if name in figures and us > 0]
    scale = statistics.median(both) if both else 1.0
    return {name: us * scale for name, us in screened.items()}


class Recorder:
    """Writes results to a session of the library's measurements. The first result starts the session."""

    def __init__(
        self, library: Path, context: BenchContext, program: str, kernels: Iterable[Kernel] = (), **header: Any
    ) -> None:
        self._library, self._context, self._writer = library, context, None
        self._kernels = {kernel.traits.symbol: kernel for kernel in kernels}
        self._header = {"program": program, **header}

    def register(self, kernels: Iterable[Kernel]) -> None:
        """Register variants that later results may name."""
        self._kernels |= {kernel.traits.symbol: kernel for kernel in kernels}

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a result of `measure`: our finalists, the best first, then the variants that were only screened."""
        if not result.get("ours") or result["ours"] in result["refused"]:
            return
        figures = {name: one for name, one in result["figures"].items() if name in self._kernels}
        finalists = sorted(figures, key=lambda name: (name != result["ours"], figures[name]["time_us"]))
        paired = [
            (name, VariantTime(0, figures[name]["time_us"], figures[name]["spread_us"], figures[name]["rounds"]))
            for name in finalists
            if name not in result["refused"]
        ]
        screened = {name: us for name, us in scaled_to_rounds(result).items() if name in self._kernels}
        others = [(name, VariantTime(0, us)) for name, us in screened.items() if name not in figures and us > 0]
        telemetry = result.get("telemetry") or {}
        self._session().add(
            problem_of(Work(**result["work"])),
            result["state"],
            [
                (self._measured_variant(name), time)
                for name, time in [*paired, *others]
                if name not in result["refused"]
            ],
            decided=True,
            clocks={name: telemetry[name] for name in _CLOCKS if name in telemetry} or None,
            baseline=_baseline(result),
        )

    @property
    def session(self) -> str:
        """Return the session's name. Empty if no result was added."""
        return self._writer.name if self._writer else ""

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _measured_variant(self, name: str) -> MeasuredVariant:
        record = self._kernels[name].record
        toolchain = {key: value for key, value in record.get("toolchain", {}).items() if key != "options"}
        return MeasuredVariant(name, record["key"], toolchain)

    def _session(self) -> SessionWriter:
        if self._writer is None:
            device, state = self._context.device, self._context.telemetry.state()
            header = {
                "device": device.name,
                "capability": device.capability[0] * 10 + device.capability[1],
                "sms": device.sms,
                "driver": state.get("driver") or f"CUDA {driver_cuda()}",
                "clocks": {name: state[name] for name in _STATES if name in state},
                "protocol": asdict(self._context.protocol),
                "seed": self._context.seed,
            }
            given = {name: value for name, value in self._header.items() if value is not None}
            self._writer = SessionWriter(self._library, **header, **given)
        return self._writer


def _baseline(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the times of the baseline's first and best contenders, if they were measured."""
    names: Sequence[str] = [role for role in ("first", "best") if result.get(role)]
    return {role: result["figures"][result[role]]["time_us"] for role in names} or None


# ---- A run -----------------------------------------------------------------------------------------------------------


SCHEMA = 1
Log = Callable[[str], None]


@dataclass(frozen=True)
class BenchPlan:
    """What a benchmark measures, and its limits.

    Fields: `keep` is the results file; a resumed run reads it first. `limit_s` is the time after which a contender has
        hung.
        `record` is a library to which the results are added. `chosen` gives the only variant to measure for a problem.
    """

    works: Sequence[Work]
    kernels: Sequence[Kernel]
    states: Sequence[str] = ("steady",)
    protocol: Protocol = Protocol()
    baseline: Callable[[Device], Baseline] | None = CublasLt
    budget_s: float = float("inf")
    seed: int = 0
    keep: Path | None = None
    resume: bool = False
    limit_s: float = 60.0
    record: Path | None = None
    chosen: Callable[[Work], str | None] | None = None


def run(plan: BenchPlan, device: Device, log: Log) -> dict[str, Any]:
    """Measure a plan and return the document: device state, protocol and results.

    If a kernel fault ends the run, `lost` names the kernel.
    Raises: LibraryError if the kept results are unreadable or from another device.
    """
    began = time.perf_counter()
    document = _new_document(plan, device)
    requested = [(work, state) for state in plan.states for work in plan.works]
    left, total = _remaining(requested, document), len({(work.key, state) for work, state in requested})
    with ExitStack() as stack:
        context = context_of(plan, device, document, stack)
        kernels = [kernel for kernel in plan.kernels if kernel.traits.symbol not in document["hung"]]
        recorder = _recorder(plan, context, document, stack)
        for at, (work, state) in enumerate(left):
            spent = time.perf_counter() - began
            if at and spent + spent / at > plan.budget_s:
                document["not_measured"] = [f"{other.key} {its}" for other, its in left[at:]]
                log(f"budget of {plan.budget_s:g} s: {len(left) - at} of {total} problems are not measured")
                break
            try:
                result = measure(work, _kernels_for(work, kernels, plan), context, state)
            except LostDevice as error:
                document["lost"] = str(error)
                break
            except DeviceError as error:  # for example, too little memory for the operands
                result = {"work": work.plain(), "state": state, "refused": {"all": str(error)}}
            document["results"].append(result)
            _save(plan, document)
            if recorder:
                recorder.add(result)
            ahead = (time.perf_counter() - began) / (at + 1) * (len(left) - at - 1)
            log(f"[{total - len(left) + at + 1}/{total}] {line(result)}  {time_left(ahead)} left")
        document["seconds"] = round(time.perf_counter() - began, 1)
        _in_every_group(requested, document)
        _save(plan, document)
    return document


def _kernels_for(work: Work, kernels: Sequence[Kernel], plan: BenchPlan) -> Sequence[Kernel]:
    """Return the variants to measure for a problem. Raises DeviceError if the selected one is not among them."""
    if plan.chosen is None:
        return kernels
    symbol = plan.chosen(work)
    found = [kernel for kernel in kernels if kernel.traits.symbol == symbol]
    if symbol and not found:
        raise DeviceError(f"the library selects {symbol}, which a filter excludes: use --dispatched without filters")
    return found


def context_of(plan: BenchPlan, device: Device, document: dict[str, Any], stack: ExitStack) -> BenchContext:
    """Open the state that all measurements of a plan share. Add the device's state to the document."""
    watchdog = Watchdog(plan.keep, plan.limit_s)
    stack.callback(watchdog.stop)
    if plan.resume and watchdog.unfinished():
        document["hung"] = sorted({*document["hung"], watchdog.unfinished()})
    context = open_context(device, plan.protocol, plan.seed, watchdog, stack)
    document["state"] = context.telemetry.state()
    if plan.baseline:
        context.baseline = plan.baseline(device)
        stack.callback(quietly, context.baseline.free)
        document["baseline"] = context.baseline.name
    return context


def _recorder(plan: BenchPlan, context: BenchContext, document: dict[str, Any], stack: ExitStack) -> Recorder | None:
    if plan.record is None:
        return None
    recorder = Recorder(plan.record, context, "bench", plan.kernels, baseline=document.get("baseline"))
    stack.callback(recorder.close)
    return recorder


def heading(protocol: Protocol, seed: int, device: Device) -> dict[str, Any]:
    """Return the first fields of a document: where, when and how it was measured."""
    return {
        "schema": SCHEMA,
        "device": device.name,
        "sms": device.sms,
        "l2_bytes": device.l2_bytes,
        "driver_cuda": driver_cuda(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "data": "normal(0, 1)",
        "seed": seed,
        "protocol": asdict(protocol),
    }


def _new_document(plan: BenchPlan, device: Device) -> dict[str, Any]:
    """Return a new document, or the kept one for a resumed run."""
    document: dict[str, Any] = {
        **heading(plan.protocol, plan.seed, device),
        "variants": {},
        "hung": [],
        "lost": "",
        "results": [],
    }
    if plan.resume and plan.keep and plan.keep.exists():
        kept = _read(plan.keep)
        if kept.get("device") != device.name:
            raise LibraryError(
                f"{plan.keep} was measured on {kept.get('device')}; this device is {device.name}. Use another file."
            )
        document = {**document, **kept}
        document.pop("not_measured", None)
        document["lost"] = ""
    for kernel in plan.kernels:
        record = kernel.record
        document["variants"][kernel.traits.symbol] = {
            name: record.get(name) for name in ("key", "arch", "spec", "launch", "resources")
        }
    return document


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LibraryError(f"{path} cannot be read: {error}") from None
    if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
        raise LibraryError(f"{path} is no benchmark results file of schema {SCHEMA}: use another file")
    return kept


def _save(plan: BenchPlan, document: dict[str, Any]) -> None:
    if not plan.keep:
        return
    write_document(plan.keep, document)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON, atomically. Raises LibraryError on a disk error."""
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode(), "--keep")


def _remaining(requested: Sequence[tuple[Work, str]], document: dict[str, Any]) -> list[tuple[Work, str]]:
    """Return the problems without a result, each once."""
    done = {(Work(**result["work"]).key, result["state"]) for result in document["results"]}
    left = {(work.key, state): (work, state) for work, state in reversed(requested)}
    return [one for key, one in reversed(left.items()) if key not in done]


def _in_every_group(requested: Sequence[tuple[Work, str]], document: dict[str, Any]) -> None:
    """Copy each result to all groups that contain its problem, in the requested order."""
    found = {(Work(**result["work"]).key, result["state"]): result for result in document["results"]}
    copies = [
        {**found[work.key, state], "work": work.plain()} for work, state in requested if (work.key, state) in found
    ]
    keys = {(work.key, state) for work, state in requested}
    others = [one for one in document["results"] if (Work(**one["work"]).key, one["state"]) not in keys]
    document["results"] = others + copies


def time_left(seconds: float) -> str:
    """Format a duration for display."""
    return f"{seconds / 60:.1f} min" if seconds > 90 else f"{seconds:.0f} s"
