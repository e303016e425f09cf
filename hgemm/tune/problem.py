"""Successive halving, and the decision among those that are left. Nothing here needs a device."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hgemm.bench.measure import OURS, Race, Sample, Stand, Variant, open_race
from hgemm.bench.protocol import Ratio, figures, round_times
from hgemm.bench.work import Work
from hgemm.dispatch_table import Extents, Row, estimate_clocks
from hgemm.kernel import Kernel
from hgemm.measured import MeasuredProblem
from hgemm.octave_grid import FACTOR_ONE, Corrections, point
from hgemm.problem import Kind
from hgemm.selection import row_supports
from hgemm.selection_query import SelectionQuery, Target

Sampler = Callable[[Sequence[str], int], Mapping[str, Sequence[float]]]
"""Measures each name so many times, in turns, and returns the times."""

FIRST_SAMPLES = 2
DOUBTFUL = 0.005
"""A difference of this part is worth more rounds, where the spread leaves it open; less is none."""


def halve(names: Sequence[str], sample: Sampler, finalists: int) -> tuple[list[str], dict[str, float]]:
    """Return the finalists, the fastest first, and the median time of every name over all samples that it got.

    Each round samples those that are left twice as often as the one before and drops the slower half, but none whose
    fastest sample is below the median of the slowest that stays, as long as a quarter goes.
    """
    times: dict[str, list[float]] = {name: [] for name in names}
    left, count = list(names), FIRST_SAMPLES
    while True:
        for name, more in sample(left, count).items():
            times[name] += more
        left.sort(key=lambda name: statistics.median(times[name]))
        if len(left) <= finalists:
            break
        half, most = max(finalists, math.ceil(len(left) / 2)), max(finalists, 3 * len(left) // 4)
        limit = statistics.median(times[left[half - 1]])
        left = left[:half] + [name for name in left[half:most] if min(times[name]) < limit]
        count *= 2
        if len(left) <= finalists:
            break
    return left, {name: statistics.median(of_name) for name, of_name in times.items()}


def decide(times: Mapping[str, Sequence[float]], order: Sequence[str]) -> str:
    """Return the winner of paired rounds: each in `order` takes the place of the one before where it wins beyond the spread.

    So two of which neither wins are decided by the order, however often they are measured.
    """
    winner = order[0]
    for name in order[1:]:
        if Ratio.of(times[winner], times[name]).wins:
            winner = name
    return winner


def is_open(times: Mapping[str, Sequence[float]], winner: str) -> bool:
    """Tell whether another's median is so much less than the winner's that more rounds should say whether it is faster."""
    least = min(statistics.median(of_name) for of_name in times.values())
    return statistics.median(times[winner]) > (1 + DOUBTFUL) * least


# ==== Which variants are worth measuring on a problem ====


AGAIN = 2
"""So many of the best of earlier sessions are measured again."""


class Ranking:
    """Variants of any kinds on one device, by symbol, and what is learnt of them problem by problem."""

    def __init__(self, rows: Mapping[str, tuple[Kind, Row]], target: Target) -> None:
        self.rows, self.target = rows, target
        self._learnt: dict[Kind, dict[Extents, Mapping[str, float]]] = {}
        self._best: dict[tuple[Kind, Extents], Sequence[str]] = {}

    def learn(self, problem: MeasuredProblem, times_us: Mapping[str, float], order: Sequence[str] = ()) -> None:
        """Take note of times on one problem, and of an order there, the best first."""
        wanted = SelectionQuery.dense(problem.kind, problem.extents)
        rows = {symbol: self.rows[symbol][1] for symbol in times_us if symbol in self.rows}
        if rows and not wanted.straddling:  # those say little of others
            self._learnt.setdefault(problem.kind, {})[problem.extents] = {
                symbol: times_us[symbol] / estimate_clocks(row, wanted, self.target) for symbol, row in rows.items()
            }
        self._best[problem.kind, problem.extents] = [symbol for symbol in order if symbol in rows]

    def stands(self, work: Work) -> str | None:
        """Return the variant that is the best on a problem, as far as is known."""
        return next(iter(self._best.get((_kind(work), work.extents), ())), None)

    def best(self, work: Work, count: int, among: Container[str] | None = None) -> list[str]:
        """Return the variants to measure on a problem, at most so many, the most promising first; some only, where given.

        First come those that were the best there before, then in turns those of least estimate corrected by what was
        measured around the problem, and those of least estimate: near problems may have misled.
        """
        kind = _kind(work)
        wanted = SelectionQuery.dense(kind, work.extents)
        estimates = {
            symbol: estimate_clocks(row, wanted, self.target)
            for symbol, (its_kind, row) in self.rows.items()
            if its_kind == kind and row_supports(row, wanted, self.target) and (among is None or symbol in among)
        }
        corrected = self._corrected(kind, work, estimates)
        first = self._best.get((kind, work.extents), ())[:AGAIN]
        by_estimate = sorted(estimates, key=estimates.__getitem__)
        by_both = sorted(corrected, key=corrected.__getitem__)
        mixed = [symbol for pair in zip_longest(by_both, by_estimate) for symbol in pair if symbol]
        return list(dict.fromkeys([*(symbol for symbol in first if symbol in estimates), *mixed]))[:count]

    def _corrected(self, kind: Kind, work: Work, estimates: Mapping[str, int]) -> dict[str, float]:
        learnt = self._learnt.get(kind)
        if not learnt:
            return {}
        here = point(*work.extents)
        found = Corrections([point(*extents) for extents in learnt], [*learnt.values()]).factors(here)
        return {symbol: estimate * found.get(symbol, FACTOR_ONE) / FACTOR_ONE for symbol, estimate in estimates.items()}


def _kind(work: Work) -> Kind:
    return Kind(work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.acc)


# ==== One problem tuned ====


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
            stand.watch.begin(kernel.traits.symbol)
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
