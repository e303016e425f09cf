"""Tunes one problem: ranking of variants, successive halving, and the choice of the winner."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hgemm.bench.contenders import one_per_variant, options_to_try, rasters_to_try, symbol_of
from hgemm.bench.measure import (
    CONTINUOUS,
    OURS,
    BenchContext,
    OutputSample,
    Race,
    Variant,
    open_race,
    rounds_of,
    warm_up,
    with_options,
)
from hgemm.bench.protocol import Ratio, figures
from hgemm.bench.work import Work
from hgemm.dispatch_table import Extents, Row, estimate_clocks, row_of
from hgemm.errors import RequestError, unknown_word
from hgemm.kernel import Kernel
from hgemm.measured import MeasuredProblem
from hgemm.octave_grid import ESTIMATE_WEIGHTS, FACTOR_ONE, Point, Ratios, correction, nearest, relative_ratios
from hgemm.problem import Kind, LaunchOptions, kind_supports
from hgemm.requirements import row_supports
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
ALIKE = 3
"""The most variants with the same tile, and with the same grid of tiles, that come before the others."""


class Ranking:
    """Estimates variants of any kind on one device, and learns from each tuned problem."""

    def __init__(self, rows: Mapping[str, tuple[Kind, Row]], target: Target) -> None:
        self.rows, self.target = rows, target
        self._learnt: dict[tuple[Kind, bool], dict[Point, Ratios[str]]] = {}
        self._best: dict[tuple[Kind, Extents], Sequence[str]] = {}
        self._options: dict[tuple[Kind, Extents], Mapping[str, LaunchOptions]] = {}

    def learn(
        self,
        problem: MeasuredProblem,
        times_us: Mapping[str, float],
        order: Sequence[str] = (),
        options: Mapping[str, LaunchOptions] | None = None,
    ) -> None:
        """Record times on one problem, the order of the best variants, and the launch options of those that leave any open."""
        query = SelectionQuery.dense(problem.kind, problem.extents)
        rows = {symbol: self.rows[symbol][1] for symbol in times_us if symbol in self.rows}
        if rows:
            self._learnt.setdefault((problem.kind, query.straddling > 0), {})[query.point] = relative_ratios(
                {symbol: times_us[symbol] / estimate_clocks(row, query, self.target) for symbol, row in rows.items()}
            )
        self._best[problem.kind, problem.extents] = [symbol for symbol in order if symbol in rows]
        self._options[problem.kind, problem.extents] = options or {}

    def best_known(self, work: Work) -> str | None:
        """Return the best known variant for a problem, or None."""
        return next(iter(self._best.get((work.kind, work.extents), ())), None)

    def options(self, work: Work, count: int, kernel: Kernel) -> list[LaunchOptions | None]:
        """Return at most `count` launch options to measure of a variant, the best known ones first."""
        symbol = kernel.traits.symbol
        known = self._options.get((work.kind, work.extents), {}).get(symbol)
        return options_to_try(self.rows[symbol][1], work, self.target, count, known)

    def best(self, work: Work, count: int, among: Container[str] | None = None) -> list[str]:
        """Return at most `count` variants to measure for a problem, most promising first. `among` limits the choice.

        First come the earlier best variants. Then the lowest corrected and the lowest uncorrected estimates alternate.
        Corrections come from problems nearby, which may mislead. Variants with the same tile or the same grid of tiles have
        similar estimates and similar errors, so only ALIKE of them come early.
        """
        kind = work.kind
        query = SelectionQuery.dense(kind, work.extents)
        estimates = {
            symbol: estimate_clocks(row, query, self.target)
            for symbol, (its_kind, row) in self.rows.items()
            if its_kind.acc == kind.acc
            and kind_supports(its_kind.code, kind.code)
            and row_supports(row, query, self.target)
            and (among is None or symbol in among)
        }
        corrected = self._corrected(query, estimates)
        first = self._best.get((kind, work.extents), ())[:REMEASURED]
        by_estimate = sorted(estimates, key=estimates.__getitem__)
        by_both = sorted(corrected, key=corrected.__getitem__)
        mixed = [symbol for pair in zip_longest(by_both, by_estimate) for symbol in pair if symbol]
        known = [symbol for symbol in first if symbol in estimates]
        return list(dict.fromkeys([*known, *self._varied(query, dict.fromkeys(mixed))]))[:count]

    def _varied(self, query: SelectionQuery, symbols: Iterable[str]) -> list[str]:
        """Return the symbols in order. Repeats of a tile and cluster with equal clocks, and of a sort after ALIKE, come last."""
        seen: set[tuple[int, ...]] = set()
        alike: Counter[tuple[int, ...]] = Counter()
        varied: list[str] = []
        others: list[str] = []
        for symbol in symbols:
            row = self.rows[symbol][1]
            tile = row.tile_m, row.tile_n, row.tile_k
            grid = -(-query.m // row.tile_m), -(-query.n // row.tile_n)
            shape = *tile, row.cluster_m, row.cluster_n, row.splits, row.k_tile_clocks, row.tile_clocks
            is_new = shape not in seen and max(alike[tile], alike[grid]) < ALIKE
            seen.add(shape)
            alike.update([tile, grid] if is_new else [])
            (varied if is_new else others).append(symbol)
        return varied + others

    def _corrected(self, query: SelectionQuery, estimates: Mapping[str, int]) -> dict[str, float]:
        near = nearest(query.point, self._learnt.get((query.kind, query.straddling > 0), {}).items())
        if not near:
            return {}

        def corrected(symbol: str) -> float:
            factor = correction(near, symbol, ESTIMATE_WEIGHTS[self.rows[symbol][1].calibration])
            return estimates[symbol] * (FACTOR_ONE if factor is None else factor)

        return {symbol: corrected(symbol) for symbol in estimates}


# ---- Tuning of one problem -------------------------------------------------------------------------------------------


MAX_REPEATS = 4
"""Maximum repetitions of the rounds while the order is undecided."""
MAX_LOSS = 0.03
"""The most that a choice may lose to the best finalist in a state. Otherwise the finalist with the least loss is chosen."""
TUNED_STATES = ("model", "steady", "burst")
Mix = Mapping[str, float]
"""The weight of each state in the choice."""
DEFAULT_MIX: Mix = {"model": 1.0}

StateTimes = dict[str, dict[str, list[float]]]
"""One time per round, by state and name."""


def parse_mix(text: str) -> Mix:
    """Parse weights of states, such as `model=2,steady=1`. Raises RequestError if malformed."""
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        state, _, weight = part.strip().partition("=")
        if state not in TUNED_STATES:
            raise unknown_word("state", state, TUNED_STATES)
        try:
            found[state] = float(weight or 1)
        except ValueError:
            found[state] = math.nan
        if not 0 < found[state] < math.inf:
            raise RequestError(f"--mix {text!a}: the weight of {state} must be a positive number, such as {state}=2")
    if not found:
        raise RequestError(f"--mix is empty: use weights of {', '.join(TUNED_STATES)}, such as model=2,steady=1")
    return found


def tune(
    work: Work,
    kernels: Sequence[Kernel],
    context: BenchContext,
    order: Callable[[str], Any],
    mix: Mix = DEFAULT_MIX,
    options_of: Callable[[Kernel], Sequence[LaunchOptions | None]] = lambda kernel: [None],
) -> list[dict[str, Any]]:
    """Find the best variant for a problem. Return a result like hgemm.bench.measure.measure for each state.

    The first result is of the state with the largest weight. All results name the same choice, as `ours`.
    `order` is a sort key for finalists: if none wins beyond the spread, the lowest key wins. `options_of` gives the launch options
    to measure of a variant. Screening decides which of them and which order of tiles a variant has in the rounds.

    Raises: LostDevice if a kernel faults; DeviceError if memory is too small. Other failures are listed in `refused`.
    """
    began = time.perf_counter()
    states = sorted(TUNED_STATES, key=lambda state: -mix.get(state, 0.0))
    with open_race(work, context) as (race, own):
        variants = [Variant(kernel, context.device, options) for kernel in kernels for options in options_of(kernel)]
        for variant in variants:
            context.watchdog.begin(symbol_of(variant.name))
            race.add(own(variant))
        sample = OutputSample(race.operands, context.seed)
        memory = own(context.memory_kernel(work))
        race.alternate(memory if states[0] == "model" else None)
        finalists = _halved(race, sample)
        others = [own(one) for one in _other_rasters(finalists, variants, work)]
        finalists = _with_best_rasters(race, sample, finalists, others)
        variants += others
        context.watchdog.rest()
        screened = {
            "work": work.plain(),
            "state": states[0],
            "sets": race.operands.sets,
            "rotated_bytes": race.operands.total_bytes,
            "screened_us": {name: round(race.launch_ms[name] * 1e3, 3) for name in race.ranked(OURS)},
            **with_options(variants),
            "refused": race.rejected,
        }
        if not finalists:
            return [screened]
        times: StateTimes = {}
        spans = {}
        for state in states:
            race.alternate(memory if state == "model" else None)
            spans[state], times[state] = _timed(race, finalists, context, state, sorted(finalists, key=order))
        winner = choose(times, sorted(finalists, key=order), mix)
        if wrong := sample.complaint(race.launches[winner][0]):  # on a hot card, where a data race may show first
            race.reject(winner, f"after timing: {wrong}")
        return [
            {
                **screened,
                "state": state,
                "screened_us": screened["screened_us"] if state == states[0] else {},
                "ours": winner,
                "first": None,
                "best": None,
                "figures": {name: figures(times[state][name], work) for name in finalists},
                "telemetry": context.telemetry.between(*spans[state]),
                "seconds": {"setup": round(spans[states[0]][0] - began, 2), "rounds": round(_length(spans[state]), 2)},
            }
            for state in states
        ]


def _length(span: tuple[float, float]) -> float:
    return span[1] - span[0]


def _halved(race: Race, sample: OutputSample) -> list[str]:
    """Return the finalists with correct output, each variant once. Reject incorrect ones and halve the rest again."""
    count = race.protocol.finalists
    while names := race.competitive(OURS):
        finalists, medians_ms = halve(names, race.sample, count)
        race.launch_ms |= medians_ms
        others = sorted((name for name in names if name not in finalists), key=medians_ms.__getitem__)
        finalists = one_per_variant([*finalists, *others])[:count]
        wrong = {name: sample.complaint(race.launches[name][0]) for name in finalists}
        for name, complaint in wrong.items():
            if complaint:
                race.reject(name, complaint)
        if not any(wrong.values()):
            return finalists
    return []


def _other_rasters(finalists: Sequence[str], variants: Sequence[Variant], work: Work) -> Iterator[Variant]:
    """Yield the finalists with other orders of tiles."""
    for one in variants:
        if one.name in finalists and one.options:
            row = row_of(one.kernel.traits, one.kernel.record)
            for options in rasters_to_try(row, work, Target.of(one.device), one.options):
                yield Variant(one.kernel, one.device, options)


def _with_best_rasters(
    race: Race, sample: OutputSample, finalists: Sequence[str], others: Sequence[Variant]
) -> list[str]:
    """Return the finalists, each with another order of tiles if that wins beyond the spread and its output is correct."""
    for other in others:
        race.add(other)
    found = []
    for name in finalists:
        names = [
            name,
            *(one.name for one in others if symbol_of(one.name) == symbol_of(name) and one.name in race.launches),
        ]
        times = race.sample(names, RASTER_SAMPLES) if len(names) > 1 else {name: [0.0]}
        best = decide(times, names)
        if best != name and (wrong := sample.complaint(race.launches[best][0])):
            race.reject(best, wrong)
            best = name
        race.launch_ms |= {one: statistics.median(ms) for one, ms in times.items() if len(names) > 1}
        found.append(best)
    return found


RASTER_SAMPLES = 6


def _timed(
    race: Race, names: Sequence[str], context: BenchContext, state: str, order: Sequence[str]
) -> tuple[tuple[float, float], dict[str, list[float]]]:
    """Run rounds in a state until the order is decided. Return when they began and ended, and one time per round and name."""
    began = warm_up(race, names, context, state)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(MAX_REPEATS if state in CONTINUOUS else 1):
        for name, more in rounds_of(race, names, state).items():
            times[name] += more
        if not is_undecided(times, decide(times, order)):
            break
    return (began, time.perf_counter()), times


def choose(times: StateTimes, order: Sequence[str], mix: Mix) -> str:
    """Return the winner in a mix of states, among the names that lose at most MAX_LOSS in every state.

    If all lose more somewhere, only the one with the least largest loss is left.
    """
    medians = {
        state: {name: statistics.median(ms) for name, ms in of_state.items()} for state, of_state in times.items()
    }
    losses = {name: max(of_state[name] / min(of_state.values()) - 1 for of_state in medians.values()) for name in order}
    kept = [name for name in order if losses[name] <= MAX_LOSS] or [min(order, key=losses.__getitem__)]
    return decide({name: _mixed(times, name, mix) for name in kept}, kept)


def _mixed(times: StateTimes, name: str, mix: Mix) -> list[float]:
    """Return the weighted geometric mean over the states, round by round."""
    rounds = zip(*(times[state][name] for state in mix))
    weights = list(mix.values())
    return [math.exp(sum(weight * math.log(ms) for weight, ms in zip(weights, one)) / sum(weights)) for one in rounds]
