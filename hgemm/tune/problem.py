"""Tunes one problem: ranking of variants, successive halving, and the choice of the winner."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hgemm.bench.measure import OURS, BenchContext, OutputSample, Race, Variant, open_race
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
"""Function that times each name `count` times, in turns, and returns the times."""

FIRST_SAMPLES = 2
DOUBTFUL = 0.005
"""Relative difference that justifies more rounds if the spread leaves the order open. Smaller ones are ignored."""


def halve(names: Sequence[str], sample: Sampler, finalists: int) -> tuple[list[str], dict[str, float]]:
    """Return the finalists, fastest first, and the median time of every name over all its samples.

    Each round takes twice as many samples as the one before and drops the slower half. A name of that half stays if its
    fastest sample is below the median of the slowest one kept. At least a quarter is dropped.
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
    """Return the winner of paired rounds. Each name in `order` replaces the previous winner if it wins beyond the spread.

    So the order decides between two names if neither wins, however often they are measured.
    """
    winner = order[0]
    for name in order[1:]:
        if Ratio.of(times[winner], times[name]).wins:
            winner = name
    return winner


def is_undecided(times: Mapping[str, Sequence[float]], winner: str) -> bool:
    """Return whether another median is so far below the winner's that more rounds are needed."""
    lowest = min(statistics.median(of_name) for of_name in times.values())
    return statistics.median(times[winner]) > (1 + DOUBTFUL) * lowest


# ---- Ranking: which variants to measure ------------------------------------------------------------------------------


REMEASURED = 2
"""Number of best variants of earlier sessions that are measured again."""


class Ranking:
    """Estimates variants of any kind on one device, and learns from each tuned problem."""

    def __init__(self, rows: Mapping[str, tuple[Kind, Row]], target: Target) -> None:
        self.rows, self.target = rows, target
        self._learnt: dict[Kind, dict[Extents, Mapping[str, float]]] = {}
        self._best: dict[tuple[Kind, Extents], Sequence[str]] = {}

    def learn(self, problem: MeasuredProblem, times_us: Mapping[str, float], order: Sequence[str] = ()) -> None:
        """Record times on one problem, and the order of the best variants."""
        query = SelectionQuery.dense(problem.kind, problem.extents)
        rows = {symbol: self.rows[symbol][1] for symbol in times_us if symbol in self.rows}
        if rows and not query.straddling:  # rows off the L2 sectors say little about other problems
            self._learnt.setdefault(problem.kind, {})[problem.extents] = {
                symbol: times_us[symbol] / estimate_clocks(row, query, self.target) for symbol, row in rows.items()
            }
        self._best[problem.kind, problem.extents] = [symbol for symbol in order if symbol in rows]

    def best_known(self, work: Work) -> str | None:
        """Return the best known variant for a problem, or None."""
        return next(iter(self._best.get((_kind(work), work.extents), ())), None)

    def best(self, work: Work, count: int, among: Container[str] | None = None) -> list[str]:
        """Return at most `count` variants to measure for a problem, most promising first. `among` limits the choice.

        First come the earlier best variants. Then the lowest corrected and the lowest uncorrected estimates alternate.
        Corrections come from problems nearby, which may mislead.
        """
        kind = _kind(work)
        query = SelectionQuery.dense(kind, work.extents)
        estimates = {
            symbol: estimate_clocks(row, query, self.target)
            for symbol, (its_kind, row) in self.rows.items()
            if its_kind == kind and row_supports(row, query, self.target) and (among is None or symbol in among)
        }
        corrected = self._corrected(kind, work, estimates)
        first = self._best.get((kind, work.extents), ())[:REMEASURED]
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


# ---- Tuning of one problem -------------------------------------------------------------------------------------------


MAX_REPEATS = 4
"""Maximum repetitions of the rounds while the order is undecided."""
STATE = "steady"


def tune(work: Work, kernels: Sequence[Kernel], context: BenchContext, order: Callable[[str], Any]) -> dict[str, Any]:
    """Find the best variant for a problem. Return a result like hgemm.bench.measure.measure.

    `order` is a sort key for finalists: if none wins beyond the spread, the lowest key wins.
    Raises: LostDevice if a kernel faults; DeviceError if memory is too small. Other failures are listed in `refused`.
    """
    began = time.perf_counter()
    with open_race(work, context) as (race, own):
        for kernel in kernels:
            context.watchdog.begin(kernel.traits.symbol)
            race.add(own(Variant(kernel, context.device)))
        sample = OutputSample(race.operands, context.seed)
        finalists = _halved(race, sample)
        context.watchdog.rest()
        result = {
            "work": work.plain(),
            "state": STATE,
            "sets": race.operands.sets,
            "rotated_bytes": race.operands.total_bytes,
            "screened_us": {name: round(race.launch_ms[name] * 1e3, 3) for name in race.ranked(OURS)},
            "refused": race.rejected,
        }
        return result | _decided(race, sample, finalists, context, order, began) if finalists else result


def _halved(race: Race, sample: OutputSample) -> list[str]:
    """Return the finalists with correct output. Reject incorrect ones and halve the rest again."""
    while names := race.competitive(OURS):
        finalists, medians_ms = halve(names, race.sample, race.protocol.finalists)
        race.launch_ms |= medians_ms
        wrong = {name: sample.complaint(race.launches[name][0]) for name in finalists}
        for name, complaint in wrong.items():
            if complaint:
                race.reject(name, complaint)
        if not any(wrong.values()):
            return finalists
    return []


def _decided(
    race: Race,
    sample: OutputSample,
    names: Sequence[str],
    context: BenchContext,
    order: Callable[[str], Any],
    began: float,
) -> dict[str, Any]:
    protocol = context.protocol
    race.prepare(names, protocol.rounds)
    race.load(names, protocol.rewarm_s if context.warm else protocol.warm_up_s)
    context.warm = True
    measured_from = time.perf_counter()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(MAX_REPEATS):
        for name, more in round_times(race.steady(names)).items():
            times[name] += more
        winner = decide(times, sorted(names, key=order))
        if not is_undecided(times, winner):
            break
    ended = time.perf_counter()
    if wrong := sample.complaint(race.launches[winner][0]):  # on a hot card, where a data race may show first
        race.reject(winner, f"after timing: {wrong}")
    found: Mapping[str, Any] = {name: figures(times[name], race.operands.work) for name in names}
    return {
        "ours": winner,
        "first": None,
        "best": None,
        "figures": found,
        "telemetry": context.telemetry.between(measured_from, ended),
        "seconds": {"setup": round(measured_from - began, 2), "rounds": round(ended - measured_from, 2)},
    }
