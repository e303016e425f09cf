"""One problem tuned: its candidates bound, halved, checked, and the last few timed in paired rounds and decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hgemm.bench.check import Sample
from hgemm.bench.contenders import OURS, Variant
from hgemm.bench.measure import Stand, open_race
from hgemm.bench.protocol import figures, round_times
from hgemm.bench.race import Race
from hgemm.bench.work import Work
from hgemm.kernel import Kernel
from hgemm.tune.halving import decide, halve, is_open

MOST_TURNS = 4
"""So often at most are rounds repeated while they leave it open who is faster."""
STATE = "steady"


def tune(work: Work, kernels: Sequence[Kernel], stand: Stand, order: Callable[[str], Any]) -> dict[str, Any]:
    """Find the best of some variants for a problem and return its result, as hgemm.bench.measure.measure does.

    `order` is by what finalists are sorted of which none wins beyond the spread: the least is taken.
    Raises: LostDevice where a kernel faults, DeviceError where there is no room; other failures are in `refused`.
    """
    begun = time.perf_counter()
    with open_race(work, stand) as (race, own):
        for kernel in kernels:
            stand.watch.begin(kernel.facts.symbol)
            race.enter(own(Variant(kernel, stand.device)))
        sample = Sample(race.operands, stand.seed)
        finalists = _halved(race, sample)
        stand.watch.rest()
        result = {
            "work": work.plain(),
            "state": STATE,
            "sets": race.operands.sets,
            "rotated_bytes": race.operands.total_bytes,
            "screened_us": {name: round(race.launch_ms[name] * 1e3, 3) for name in race.of(OURS)},
            "refused": race.refused,
        }
        return result | _decided(race, sample, finalists, stand, order, begun) if finalists else result


def _halved(race: Race, sample: Sample) -> list[str]:
    """Return the finalists whose numbers are right; where one's are not, it is refused and the others are halved again."""
    while names := race.close(OURS):
        finalists, medians_ms = halve(names, race.sample, race.protocol.finalists)
        race.launch_ms |= medians_ms
        wrong = {name: sample.complaint(race.launches[name][0]) for name in finalists}
        for name, complaint in wrong.items():
            if complaint:
                race.refuse(name, complaint)
        if not any(wrong.values()):
            return finalists
    return []


def _decided(
    race: Race, sample: Sample, names: Sequence[str], stand: Stand, order: Callable[[str], Any], begun: float
) -> dict[str, Any]:
    protocol = stand.protocol
    race.prepare(names, protocol.rounds)
    race.load(names, protocol.rewarm_s if stand.warm else protocol.warm_up_s)
    stand.warm = True
    measured_from = time.perf_counter()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(MOST_TURNS):
        for name, more in round_times(race.steady(names)).items():
            times[name] += more
        winner = decide(times, sorted(names, key=order))
        if not is_open(times, winner):
            break
    ended = time.perf_counter()
    if wrong := sample.complaint(race.launches[winner][0]):  # on a hot card: a race may show only there
        race.refuse(winner, f"after timing: {wrong}")
    found: Mapping[str, Any] = {name: figures(times[name], race.operands.work) for name in names}
    return {
        "ours": winner,
        "first": None,
        "best": None,
        "figures": found,
        "telemetry": stand.telemetry.between(measured_from, ended),
        "seconds": {"setup": round(measured_from - begun, 2), "rounds": round(ended - measured_from, 2)},
    }
