"""Results of a benchmark, or of tuning, as a session of a library's measurements."""

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
from hgemm.bench.device import Watch
from hgemm.bench.measure import Baseline, LostDevice, Stand, measure, open_stand, quietly
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
    """Return a problem as sessions have it."""
    return MeasuredProblem(**{name: value for name, value in work.plain().items() if name != "group"})


def as_in_rounds(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the screened times of a result, as they would be in its rounds, where clocks are others than in short samples.

    They are scaled by what the finalists took in rounds over what they took when they were screened, the median of it:
    else those that were not timed in rounds would seem faster, or slower, than those that were.
    """
    screened, figures = result["screened_us"], result["figures"]
    both = [figures[name]["time_us"] / us for name, us in screened.items() if name in figures and us > 0]
    scale = statistics.median(both) if both else 1.0
    return {name: us * scale for name, us in screened.items()}


class Recorder:
    """A session that begins with its first result."""

    def __init__(
        self, library: Path, stand: Stand, program: str, kernels: Iterable[Kernel] = (), **header: Any
    ) -> None:
        self._library, self._stand, self._writer = library, stand, None
        self._kernels = {kernel.traits.symbol: kernel for kernel in kernels}
        self._header = {"program": program, **header}

    def know(self, kernels: Iterable[Kernel]) -> None:
        """Take note of variants that results may name."""
        self._kernels |= {kernel.traits.symbol: kernel for kernel in kernels}

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a result of hgemm.bench.measure: of ours the finalists, the best first, then those that were only screened."""
        if not result.get("ours") or result["ours"] in result["refused"]:
            return
        figures = {name: one for name, one in result["figures"].items() if name in self._kernels}
        finalists = sorted(figures, key=lambda name: (name != result["ours"], figures[name]["time_us"]))
        paired = [
            (name, VariantTime(0, figures[name]["time_us"], figures[name]["spread_us"], figures[name]["rounds"]))
            for name in finalists
            if name not in result["refused"]
        ]
        screened = {name: us for name, us in as_in_rounds(result).items() if name in self._kernels}
        others = [(name, VariantTime(0, us)) for name, us in screened.items() if name not in figures and us > 0]
        telemetry = result.get("telemetry") or {}
        self._session().add(
            problem_of(Work(**result["work"])),
            result["state"],
            [(self._tested(name), time) for name, time in [*paired, *others] if name not in result["refused"]],
            decided=True,
            clocks={name: telemetry[name] for name in _CLOCKS if name in telemetry} or None,
            baseline=_baseline(result),
        )

    @property
    def session(self) -> str:
        """Return the session's name; nothing where no result was added."""
        return self._writer.name if self._writer else ""

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _tested(self, name: str) -> MeasuredVariant:
        record = self._kernels[name].record
        toolchain = {key: value for key, value in record.get("toolchain", {}).items() if key != "options"}
        return MeasuredVariant(name, record["key"], toolchain)

    def _session(self) -> SessionWriter:
        if self._writer is None:
            device, state = self._stand.device, self._stand.telemetry.state()
            header = {
                "device": device.name,
                "capability": device.capability[0] * 10 + device.capability[1],
                "sms": device.sms,
                "driver": state.get("driver") or f"CUDA {driver_cuda()}",
                "clocks": {name: state[name] for name in _STATES if name in state},
                "protocol": asdict(self._stand.protocol),
                "seed": self._stand.seed,
            }
            given = {name: value for name, value in self._header.items() if value is not None}
            self._writer = SessionWriter(self._library, **header, **given)
        return self._writer


def _baseline(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the times of the baseline's first guess and of its best, where they were measured."""
    names: Sequence[str] = [role for role in ("first", "best") if result.get(role)]
    return {role: result["figures"][result[role]]["time_us"] for role in names} or None


# ==== A whole run: problem after problem, each result kept at once, within a budget, resumable ====


SCHEMA = 1
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and until when. Fields: `keep` is the file that results go to, read first to resume;
    a problem that takes `limit_s` from its last contender's first launch on has hung; `record` is a library to whose
    measurements the results are added; `chosen` names the one variant that a problem is to be measured with, where not all are."""

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


def run(plan: Plan, device: Device, tell: Tell) -> dict[str, Any]:
    """Measure all of a plan and return the document: the device's state, the rules, and the results.

    Where a kernel's fault ends it early, `lost` says which. Raises: LibraryError where the kept results are not readable
        or of another device.
    """
    begun = time.perf_counter()
    document = _begin(plan, device)
    wanted = [(work, state) for state in plan.states for work in plan.works]
    left, total = _left_over(wanted, document), len({(work.key, state) for work, state in wanted})
    with ExitStack() as stack:
        stand = stand_of(plan, device, document, stack)
        kernels = [kernel for kernel in plan.kernels if kernel.traits.symbol not in document["hung"]]
        recorder = _recorder(plan, stand, document, stack)
        for at, (work, state) in enumerate(left):
            spent = time.perf_counter() - begun
            if at and spent + spent / at > plan.budget_s:
                document["not_measured"] = [f"{other.key} {its}" for other, its in left[at:]]
                tell(f"budget of {plan.budget_s:g} s: {len(left) - at} of {total} problems are not measured")
                break
            try:
                result = measure(work, _for(work, kernels, plan), stand, state)
            except LostDevice as error:
                document["lost"] = str(error)
                break
            except DeviceError as error:  # such as too little memory for the operands
                result = {"work": work.plain(), "state": state, "refused": {"all": str(error)}}
            document["results"].append(result)
            _keep(plan, document)
            if recorder:
                recorder.add(result)
            ahead = (time.perf_counter() - begun) / (at + 1) * (len(left) - at - 1)
            tell(f"[{total - len(left) + at + 1}/{total}] {line(result)}  {time_left(ahead)} left")
        document["seconds"] = round(time.perf_counter() - begun, 1)
        _in_every_group(wanted, document)
        _keep(plan, document)
    return document


def _for(work: Work, kernels: Sequence[Kernel], plan: Plan) -> Sequence[Kernel]:
    """Return the variants that a problem is measured with. Raises DeviceError where the one that is selected was left out."""
    if plan.chosen is None:
        return kernels
    symbol = plan.chosen(work)
    found = [kernel for kernel in kernels if kernel.traits.symbol == symbol]
    if symbol and not found:
        raise DeviceError(f"the library selects {symbol}, which is left out here: --dispatched wants no filters")
    return found


def stand_of(plan: Plan, device: Device, document: dict[str, Any], stack: ExitStack) -> Stand:
    """Make what all measurements of a plan share, which the stack gives back, and note the device's state."""
    watch = Watch(plan.keep, plan.limit_s)
    stack.callback(watch.stop)
    if plan.resume and watch.unfinished():
        document["hung"] = sorted({*document["hung"], watch.unfinished()})
    stand = open_stand(device, plan.protocol, plan.seed, watch, stack)
    document["state"] = stand.telemetry.state()
    if plan.baseline:
        stand.baseline = plan.baseline(device)
        stack.callback(quietly, stand.baseline.free)
        document["baseline"] = stand.baseline.name
    return stand


def _recorder(plan: Plan, stand: Stand, document: dict[str, Any], stack: ExitStack) -> Recorder | None:
    if plan.record is None:
        return None
    recorder = Recorder(plan.record, stand, "bench", plan.kernels, baseline=document.get("baseline"))
    stack.callback(recorder.close)
    return recorder


def heading(protocol: Protocol, seed: int, device: Device) -> dict[str, Any]:
    """Return what a document begins with: where, when and how it was measured."""
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


def _begin(plan: Plan, device: Device) -> dict[str, Any]:
    """Return a new document, or the kept one where a run is resumed."""
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
                f"{plan.keep} was measured on {kept.get('device')}, this is {device.name}: name another file"
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
        raise LibraryError(f"{path} holds no results of this kind: name another file")
    return kept


def _keep(plan: Plan, document: dict[str, Any]) -> None:
    if not plan.keep:
        return
    write_document(plan.keep, document)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON, whole. Raises LibraryError where the disk refuses."""
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode(), "--keep")


def _left_over(wanted: Sequence[tuple[Work, str]], document: dict[str, Any]) -> list[tuple[Work, str]]:
    """Return what has no result yet, each problem once, whatever groups it stands in."""
    done = {(Work(**result["work"]).key, result["state"]) for result in document["results"]}
    left = {(work.key, state): (work, state) for work, state in reversed(wanted)}
    return [one for key, one in reversed(left.items()) if key not in done]


def _in_every_group(wanted: Sequence[tuple[Work, str]], document: dict[str, Any]) -> None:
    """Give a result to each group that its problem stands in, in the order that was asked for."""
    found = {(Work(**result["work"]).key, result["state"]): result for result in document["results"]}
    asked = [{**found[work.key, state], "work": work.plain()} for work, state in wanted if (work.key, state) in found]
    keys = {(work.key, state) for work, state in wanted}
    others = [one for one in document["results"] if (Work(**one["work"]).key, one["state"]) not in keys]
    document["results"] = others + asked


def time_left(seconds: float) -> str:
    """Write a time as people read it."""
    return f"{seconds / 60:.1f} min" if seconds > 90 else f"{seconds:.0f} s"
