"""One problem measured: operands, contenders, screening, check, paired rounds, figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hgemm.bench.check import Sample
from hgemm.bench.contenders import BASELINE, OURS, Baseline, Contender, Variant
from hgemm.bench.memory import copy_bytes_per_s
from hgemm.bench.operands import Operands, Pool
from hgemm.bench.protocol import Protocol, by_place, fastest, figures, round_times
from hgemm.bench.race import Race
from hgemm.bench.results import ratios
from hgemm.bench.stream import Stream
from hgemm.bench.telemetry import Telemetry
from hgemm.bench.watch import Watch
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.errors import HgemmError
from hgemm.kernel import Kernel

FEW_ROWS = 16
"""Up to so many rows of A the weights' way from memory is what bounds a product."""


@dataclass
class Stand:
    """What all measurements of a run share. Its device's context must be the thread's."""

    device: Device
    stream: Stream
    protocol: Protocol
    telemetry: Telemetry
    seed: int
    watch: Watch
    baseline: Baseline | None = None
    warm: bool = False
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)

    def operands(self, work: Work) -> Operands:
        wanted = {"a": work.dtype_a, "b": work.dtype_b}
        for at, (name, dtype) in enumerate(wanted.items()):
            if (name, dtype) not in self.pools:
                self.pools[name, dtype] = Pool(self.stream, dtype, self.seed + at)
        pools = {name: self.pools[name, dtype] for name, dtype in wanted.items()}
        protocol = self.protocol
        least_bytes = int(protocol.l2_multiple * self.device.l2_bytes)
        return Operands(self.stream, work, pools, least_bytes, (protocol.sets_min, protocol.sets_max))


def open_stand(device: Device, protocol: Protocol, seed: int, watch: Watch, stack: ExitStack) -> Stand:
    """Return a stand on a device, whose context is current and whose state is sampled until the stack is closed."""
    stack.enter_context(device.current())
    stream = Stream(device)
    stack.callback(quietly, stream.free)
    telemetry = Telemetry(device.bus_id)
    telemetry.start()
    stack.callback(telemetry.stop)
    stand = Stand(device, stream, protocol, telemetry, seed, watch)
    stack.callback(lambda: [quietly(pool.free) for pool in stand.pools.values()])
    return stand


@contextmanager
def open_race(work: Work, stand: Stand) -> Iterator[tuple[Race, Callable[[Any], Any]]]:
    """Yield a race on a problem's operands, and a function that has what it is given freed with them, and returns it."""
    with ExitStack() as stack:

        def own(thing: Any) -> Any:
            stack.callback(quietly, thing.free)
            return thing

        race = own(Race(stand.stream, own(stand.operands(work)), stand.protocol))
        stack.callback(stand.watch.rest)
        yield race, own


def measure(work: Work, kernels: Sequence[Kernel], stand: Stand, state: str) -> dict[str, Any]:
    """Measure one problem in one state (steady, burst or solo) and return its result, ready for JSON.

    Raises: LostDevice where a kernel faults, DeviceError where there is no room; other failures are in `refused`.
    """
    begun = time.perf_counter()
    with open_race(work, stand) as (race, own):
        contenders: list[Contender] = [Variant(kernel, stand.device) for kernel in kernels if work.fits(kernel.facts)]
        if stand.baseline:
            try:
                contenders += own(stand.baseline.propose(work, stand.protocol.algorithms)).contenders
            except HgemmError as error:
                race.refused[stand.baseline.name] = str(error)
        return _measured(race, [own(one) for one in contenders], stand, state, begun)


def quietly(free: Callable[[], None]) -> None:
    """Give something back; after a fault nothing works any more, and what was told first counts."""
    with suppress(HgemmError):
        free()


def _measured(race: Race, contenders: list[Contender], stand: Stand, state: str, begun: float) -> dict[str, Any]:
    work = race.operands.work
    sample = Sample(race.operands, stand.seed)
    result = _screened(race, contenders, stand, state)
    # A block after a rest takes long, and one alone is for its clock and power: both for few.
    finalists = stand.protocol.finalists if state == "steady" else 1
    ours, theirs = (_right(race, sample, side, finalists) for side in (OURS, BASELINE))
    stand.watch.rest()
    if not ours:
        return result
    first = next((one.name for one in contenders if one.side == BASELINE and one.name in race.launches), None)
    names = list(dict.fromkeys([*ours, *([first] if first else []), *theirs]))
    measured_from, times = _timed(race, names, stand, state)
    ended = time.perf_counter()
    best = fastest(times, ours)
    result |= {
        "ours": best,
        "first": first,
        "best": fastest(times, theirs),
        "screening_winner": ours[0],
        "figures": {name: figures(times[name], work) for name in names},
        "telemetry": stand.telemetry.between(measured_from, ended),
    }
    result |= ratios(times, result)
    if work.m <= FEW_ROWS:
        result["memory"] = _memory(work, result, stand)
    if race.spans:  # of those that ran for long enough to have a clock of their own
        result["alone"] = {name: stand.telemetry.within(race.spans[name]) for name in names}
    if race.turns:
        result["turns_us"] = {name: by_place(race.turns[name]) for name in names}
    if wrong := sample.complaint(race.launches[best][0]):  # on a hot card: a race may show only there
        race.refuse(best, f"after timing: {wrong}")
    result["seconds"] = {"setup": round(measured_from - begun, 2), "rounds": round(ended - measured_from, 2)}
    return result


def _screened(race: Race, contenders: list[Contender], stand: Stand, state: str) -> dict[str, Any]:
    """Bind and screen all contenders, and return what the result begins with."""
    for contender in contenders:
        stand.watch.begin(contender.name)
        race.enter(contender)
    screened = {**race.screen(OURS), **race.screen(BASELINE)}
    return {
        "work": race.operands.work.plain(),
        "state": state,
        "sets": race.operands.sets,
        "rotated_bytes": race.operands.total_bytes,
        "screened_us": {name: round(ms * 1e3, 3) for name, ms in screened.items()},
        "refused": race.refused,
    }


def _right(race: Race, sample: Sample, side: str, count: int) -> list[str]:
    """Return a side's fastest contenders whose numbers are right; the wrong ones before them are refused."""
    right: list[str] = []
    for name in race.of(side):
        if len(right) == count:
            break
        wrong = sample.complaint(race.launches[name][0], side)
        if wrong:
            race.refuse(name, wrong)
        else:
            right.append(name)
    return right


def _timed(race: Race, names: list[str], stand: Stand, state: str) -> tuple[float, dict[str, list[float]]]:
    """Time the finalists; return when that began, the way to the state excluded, and each one's times."""
    protocol = stand.protocol
    race.prepare(names, protocol.burst_rounds if state == "burst" else protocol.rounds)
    if state == "steady":
        race.load(names, protocol.rewarm_s if stand.warm else protocol.warm_up_s)
        stand.warm = True
    begun = time.perf_counter()
    if state == "solo":
        return begun, {name: race.alone(name) for name in names}
    return begun, round_times(race.steady(names) if state == "steady" else race.burst(names))


def _memory(work: Work, result: dict[str, Any], stand: Stand) -> dict[str, float]:
    """Return the rate at which the weights are read, once each, beside that of a copy in the same run."""
    copy = copy_bytes_per_s(stand.stream)
    rate = work.weight_bytes / (result["figures"][result["ours"]]["time_us"] * 1e-6)
    return {
        "weights_gb_per_s": round(rate * 1e-9, 1),
        "copy_gb_per_s": round(copy * 1e-9, 1),
        "of_copy": round(rate / copy, 4),
    }
