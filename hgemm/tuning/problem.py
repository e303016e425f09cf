"""Tunes one problem: ranking of kernels, successive halving, and the choice of the winner."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from hgemm.bench.contenders import one_per_kernel, options_to_try, rasters_to_try, symbol_of
from hgemm.bench.measure import (
    CONTINUOUS,
    MIN_MS,
    OURS,
    BenchContext,
    KernelContender,
    OutputSample,
    Race,
    open_race,
    rounds_of,
    warm_up,
    with_options,
)
from hgemm.bench.protocol import Ratio, figures
from hgemm.bench.work import Work
from hgemm.dispatch_table import Extents, Row, refined_estimate, row_of
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
LONG_SAMPLES = 0.5
"""If a launch takes more than this part of the usual time of a sample, halving begins with one sample. This saves seconds."""
DOUBTFUL = 0.005
"""Relative difference that justifies more rounds while the order is open. Smaller ones are ignored."""
ERRORS = 2.0
"""A lead counts if it exceeds this many standard errors."""


def halve(
    names: Sequence[str], sample: Sampler, finalists: int, first: int = FIRST_SAMPLES
) -> tuple[list[str], dict[str, float]]:
    """Return the finalists, fastest first, and the median time of every name over all its samples.

    The first round takes `first` samples of each name. Each later one takes twice as many as the one before and drops the slower
    half. A name of that half stays if its fastest sample is below the median of the slowest one kept. At least a quarter leaves.
    """
    times: dict[str, list[float]] = {name: [] for name in names}
    left, count = list(names), first
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


def advantage(other: Sequence[float], own: Sequence[float]) -> tuple[float, float]:
    """Return by how much `own` is faster than `other` in paired rounds, and the uncertainty of this: two standard errors.

    Both are relative. The standard error of a median of n values is about half of p10 to p90 over sqrt(n).
    """
    ratio = Ratio.of(other, own)
    return ratio.median - 1, ERRORS * ratio.spread / math.sqrt(min(len(other), len(own)))


def decide(times: Mapping[str, Sequence[float]], order: Sequence[str]) -> str:
    """Return the winner of paired rounds. Each name in `order` replaces the previous winner if its lead is certain.

    So the order decides between two names that are equally fast.
    """
    winner = order[0]
    for name in order[1:]:
        ahead, error = advantage(times[winner], times[name])
        if ahead > error:
            winner = name
    return winner


def is_undecided(times: Mapping[str, Sequence[float]], winner: str, name: str) -> bool:
    """Return whether a name may be so far ahead of the winner that more rounds are needed."""
    return sum(advantage(times[winner], times[name])) > DOUBTFUL


# ---- Ranking: which kernels to measure ------------------------------------------------------------------------------


REMEASURED = 2
"""Number of best kernels of earlier sessions that are measured again."""
ALIKE = 3
"""The most kernels with the same tile, and with the same grid of tiles, that come before the others."""
SHARE_OF_TILE = 0.5
"""The part that the lowest estimate of a tile has in those of its kernels. With this and one kernel for each tile and cluster,
the best of 24 candidates loses 0.2 % to the best of all, else 2.4 %. Source: the 8 problems, of 75 candidates each, that it was
chosen by; H200, 2026-11-26."""


class Ranking:
    """Estimates kernels of any kind on one device, and learns from each tuned problem."""

    def __init__(self, rows: Mapping[str, tuple[Kind, Row]], target: Target) -> None:
        self.rows, self.target = rows, target
        self._learnt: dict[tuple[Kind, bool], dict[Point, Ratios[str]]] = {}
        self._best: dict[tuple[Kind, Extents], Sequence[str]] = {}
        self._options: dict[tuple[Kind, Extents], Mapping[str, LaunchOptions]] = {}
        self._selected: dict[tuple[Kind, Extents], str] = {}
        self._estimates: dict[tuple[Kind, Extents], dict[str, int]] = {}

    def require(self, work: Work, symbol: str) -> None:
        """Make a kernel a candidate for a problem: the one that the library selects so far."""
        self._selected[work.kind, work.extents] = symbol

    def learn(
        self,
        problem: MeasuredProblem,
        times_us: Mapping[str, float],
        order: Sequence[str] = (),
        options: Mapping[str, LaunchOptions] | None = None,
    ) -> None:
        """Record times on one problem, the order of the best kernels, and the launch options of those that leave any open."""
        query = SelectionQuery.dense(problem.kind, problem.extents)
        rows = {symbol: self.rows[symbol][1] for symbol in times_us if symbol in self.rows}
        if rows:
            self._learnt.setdefault((problem.kind, query.straddling > 0), {})[query.point] = relative_ratios(
                {symbol: times_us[symbol] / refined_estimate(row, query, self.target) for symbol, row in rows.items()}
            )
        self._best[problem.kind, problem.extents] = [symbol for symbol in order if symbol in rows]
        self._options[problem.kind, problem.extents] = options or {}

    def options(self, work: Work, count: int, kernel: Kernel) -> list[LaunchOptions | None]:
        """Return at most `count` launch options to measure of a kernel, the best known ones first."""
        symbol = kernel.traits.symbol
        known = self._options.get((work.kind, work.extents), {}).get(symbol)
        return options_to_try(self.rows[symbol][1], work, self.target, count, known)

    def best(self, work: Work, count: int, among: Container[str] | None = None) -> list[str]:
        """Return at most `count` kernels to measure for a problem, most promising first. `among` limits the choice.

        First come the selected kernel and the earlier best ones. Then the lowest corrected and the lowest uncorrected
        estimates alternate. Corrections come from problems nearby, which may mislead. Kernels with the same tile or the same
        grid of tiles have similar estimates and similar errors, so only ALIKE of them come early. Some kernels of a good tile
        have a wrong estimate, so all of them take a share of the tile's lowest one.
        """
        kind = work.kind
        query = SelectionQuery.dense(kind, work.extents)
        estimates = {symbol: clocks for symbol, clocks in self._all(work).items() if among is None or symbol in among}
        corrected = self._corrected(query, estimates)
        first = [self._selected.get((kind, work.extents), ""), *self._best.get((kind, work.extents), ())[:REMEASURED]]
        by_estimate, by_both = self._in_order(estimates), self._in_order(corrected)
        mixed = [symbol for pair in zip_longest(by_both, by_estimate) for symbol in pair if symbol]
        known = [symbol for symbol in first if symbol in estimates]
        return list(dict.fromkeys([*known, *self._varied(query, dict.fromkeys(mixed))]))[:count]

    def _all(self, work: Work) -> dict[str, int]:
        """Return the estimates of all kernels for a problem. They take 0.1 s for thousands of kernels, so they are kept."""
        kind, place = work.kind, (work.kind, work.extents)
        if place not in self._estimates:
            query = SelectionQuery.dense(*place)
            self._estimates[place] = {
                symbol: refined_estimate(row, query, self.target)
                for symbol, (its_kind, row) in self.rows.items()
                if its_kind.acc == kind.acc
                and kind_supports(its_kind.code, kind.code)
                and row_supports(row, query, self.target)
            }
        return self._estimates[place]

    def _in_order(self, estimates: Mapping[str, float]) -> list[str]:
        """Return the kernels in order of their estimates, each with a share of the lowest one of its tile."""
        lowest: dict[tuple[int, ...], float] = {}
        for symbol, clocks in estimates.items():
            tile = _tile_of(self.rows[symbol][1])
            lowest[tile] = min(lowest.get(tile, clocks), clocks)

        def shared(symbol: str) -> float:
            own, least = estimates[symbol], lowest[_tile_of(self.rows[symbol][1])]
            return math.pow(own, 1 - SHARE_OF_TILE) * math.pow(least, SHARE_OF_TILE)

        return sorted(estimates, key=shared)

    def _varied(self, query: SelectionQuery, symbols: Iterable[str]) -> list[str]:
        """Return the symbols in order. Repeats of a tile and cluster, and of a tile or grid after ALIKE, come last."""
        seen: set[tuple[int, ...]] = set()
        alike: Counter[tuple[int, ...]] = Counter()
        varied: list[str] = []
        others: list[str] = []
        for symbol in symbols:
            row = self.rows[symbol][1]
            tile = *_tile_of(row), row.splits
            grid = -(-query.m // row.tile_m), -(-query.n // row.tile_n), row.splits
            shape = *tile, row.cluster_m, row.cluster_n
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


def _tile_of(row: Row) -> tuple[int, int, int]:
    return row.tile_m, row.tile_n, row.tile_k


# ---- Tuning of one problem -------------------------------------------------------------------------------------------


MAX_REPEATS = 4
"""Maximum repetitions of the rounds while the order is undecided."""
CHECK_S, CHECK_ROUNDS = 0.05, 4
"""Time and number of the rounds in states that do not decide. There, only a loss of more than MAX_LOSS matters."""
MAX_LOSS = 0.03
"""The most that a choice may lose to the best finalist in a state. Otherwise the finalist with the least loss is chosen."""
POWER_LIMIT = "sw_power_cap"
CLOSE, MAX_CLOSE = 0.04, 5
"""At the power limit, the clock follows the mean power of all kernels. In rounds of many, those that need more power look up to 5 %
faster. So those within CLOSE of the winner run alone. Source: H100, 8192x8192x8192, 2026-11-28, docs/performance-notes.md."""
ALONE_S = 0.3
"""Time that a finalist runs alone. The second half counts, because the clock settles within 0.1 s."""
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
    selected: str = "",
) -> list[dict[str, Any]]:
    """Find the best kernel for a problem. Return a result like hgemm.bench.measure.measure for each state.

    The first result is of the state with the largest weight. All results name the same choice, as `ours`.
    `order` is a sort key for finalists: of equally fast ones, the lowest key wins. `options_of` gives the launch options
    to measure of a kernel. Screening decides which of them and which order of tiles a kernel has in the rounds.
    `selected` is the symbol of the kernel that the library selects so far. It is a finalist. It stays the choice unless another
    one is faster in the rounds and again in a second look, or it loses more than MAX_LOSS in another state. At the power limit,
    finalists that are close to the fastest run alone, and these times decide.

    Raises: LostDevice if a kernel faults; DeviceError if memory is too small. Other failures are listed in `refused`.
    """
    began = time.perf_counter()
    states = sorted(TUNED_STATES, key=lambda state: -mix.get(state, 0.0))
    with open_race(work, context) as (race, own):
        contenders = [
            KernelContender(kernel, context.device, options) for kernel in kernels for options in options_of(kernel)
        ]
        for one in contenders:
            context.watchdog.begin(symbol_of(one.name))
            race.add(own(one))
        sample = OutputSample(race.operands, context.seed)
        memory = own(context.memory_kernel(work))
        race.alternate(memory if states[0] == "model" else None)
        finalists = _halved(race, sample, selected)
        others = [own(one) for one in _other_rasters(finalists, contenders, work)]
        finalists = _with_best_rasters(race, sample, finalists, others)
        contenders += others
        context.watchdog.rest()
        screened = {
            "work": work.plain(),
            "state": states[0],
            "sets": race.operands.sets,
            "rotated_bytes": race.operands.total_bytes,
            "screened_us": {name: round(race.launch_ms[name] * 1e3, 3) for name in race.ranked(OURS)},
            **with_options(contenders),
            "refused": race.rejected,
        }
        if not finalists:
            return [screened]
        ranked = sorted(finalists, key=lambda name: (symbol_of(name) != selected, order(name)))
        times: StateTimes = {}
        spans = {}
        for state in states:
            race.alternate(memory if state == "model" else None)
            spans[state], times[state] = _timed(race, ranked, context, state, decides=state in mix)
        winner, reference = choose(times, ranked, mix), ranked[0]
        seen = context.telemetry.between(*spans[states[0]])
        limited = seen is not None and POWER_LIMIT in seen["limited_by"]
        close = _close_finalists(times, ranked, winner, states[0], limited)
        look = {}
        if close and (limited or symbol_of(reference) == selected):
            race.alternate(memory if states[0] == "model" else None)
            if limited:
                looks = _measure_alone(race, reference, close, context)
            else:
                looks = {name: _measure_again(race, reference, name, context, states[0]) for name in close}
            winner = max(looks, key=lambda name: looks[name]["ahead"])
            look = looks[winner]
            elsewhere = {state: of_state for state, of_state in times.items() if state != states[0]}
            if look["ahead"] <= look["error"] and largest_loss(elsewhere, reference) <= MAX_LOSS:
                winner = reference
        if wrong := sample.failure(race.launches[winner][0]):  # on a hot card, where a data race may show first
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
                "second_look": look,
                "seconds": {"setup": round(spans[states[0]][0] - began, 2), "rounds": round(_length(spans[state]), 2)},
            }
            for state in states
        ]


def _length(span: tuple[float, float]) -> float:
    return span[1] - span[0]


def _halved(race: Race, sample: OutputSample, selected: str) -> list[str]:
    """Return the finalists with correct output, each kernel once, and `selected`. Reject incorrect ones and repeat."""
    count = race.protocol.finalists
    while names := race.competitive(OURS):
        long = race.launch_ms[names[0]] >= LONG_SAMPLES * race.protocol.screen_ms
        finalists, medians_ms = halve(names, race.sample, count, first=1 if long else FIRST_SAMPLES)
        race.launch_ms |= medians_ms
        others = sorted((name for name in race.ranked(OURS) if name not in finalists), key=race.launch_ms.__getitem__)
        each = one_per_kernel([*finalists, *others])
        finalists = each[:count] + [name for name in each[count:] if symbol_of(name) == selected]
        wrong = {name: sample.failure(race.launches[name][0]) for name in finalists}
        for name, failure in wrong.items():
            if failure:
                race.reject(name, failure)
        if not any(wrong.values()):
            return finalists
    return []


def _other_rasters(
    finalists: Sequence[str], contenders: Sequence[KernelContender], work: Work
) -> Iterator[KernelContender]:
    """Yield the finalists with other orders of tiles."""
    for one in contenders:
        if one.name in finalists and one.options:
            row = row_of(one.kernel.traits, one.kernel.record)
            for options in rasters_to_try(row, work, Target.of(one.device), one.options):
                yield KernelContender(one.kernel, one.device, options)


def _with_best_rasters(
    race: Race, sample: OutputSample, finalists: Sequence[str], others: Sequence[KernelContender]
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
        if best != name and (wrong := sample.failure(race.launches[best][0])):
            race.reject(best, wrong)
            best = name
        race.launch_ms |= {one: statistics.median(ms) for one, ms in times.items() if len(names) > 1}
        found.append(best)
    return found


RASTER_SAMPLES = 6


def _timed(
    race: Race, order: Sequence[str], context: BenchContext, state: str, decides: bool
) -> tuple[tuple[float, float], dict[str, list[float]]]:
    """Run rounds in a state. Return when they began and ended, and one time per round and name.

    A state that decides has rounds until the order is certain. Names that are certainly slower leave.
    """
    protocol = context.protocol
    race.protocol = protocol if decides else replace(protocol, seconds=CHECK_S, rounds=CHECK_ROUNDS)
    began = warm_up(race, order, context, state)
    times: dict[str, list[float]] = {name: [] for name in order}
    left = [*order]
    for _ in range(MAX_REPEATS if decides and state in CONTINUOUS else 1):
        for name, more in rounds_of(race, left, state).items():
            times[name] += more
        winner = decide(times, left)
        left = [name for name in left if name == winner or is_undecided(times, winner, name)]
        if len(left) == 1:
            break
    return (began, time.perf_counter()), times


def _close_finalists(times: StateTimes, ranked: Sequence[str], winner: str, state: str, limited: bool) -> list[str]:
    """Return the names to measure again beside the first of `ranked`: the winner and, at the power limit, those close to it."""
    medians = {name: statistics.median(ms) for name, ms in times[state].items()}
    most = (1 + CLOSE) * medians[winner] if limited else 0.0
    close = [name for name in ranked if medians[name] <= most and largest_loss(times, name) <= MAX_LOSS]
    names = dict.fromkeys([winner, *sorted(close, key=medians.__getitem__)])
    return [name for name in names if name != ranked[0]][:MAX_CLOSE]


def _measure_again(race: Race, selected: str, winner: str, context: BenchContext, state: str) -> dict[str, float]:
    """Measure two names again, in turns. Return by how much the winner is ahead, and the error of this."""
    race.protocol = context.protocol
    names = [selected, winner]
    warm_up(race, names, context, state)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(MAX_REPEATS):
        for name, more in rounds_of(race, names, state).items():
            times[name] += more
        ahead, error = advantage(times[selected], times[winner])
        if abs(ahead) > error or error < DOUBTFUL:
            break
    return {"ahead": round(ahead, 4), "error": round(error, 4)}


def _measure_alone(
    race: Race, selected: str, close: Sequence[str], context: BenchContext
) -> dict[str, dict[str, float]]:
    """Run each kernel alone for ALONE_S, in both orders.

    Return by how much each of `close` is faster than `selected`, and the error of this.
    """
    race.protocol = replace(context.protocol, solo_s=ALONE_S)
    names = [selected, *close]
    race.prepare(names, race.protocol.rounds)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in (*names, *reversed(names)):
        times[name].append(max(statistics.fmean(race.solo(name)) - race.memory_ms, MIN_MS))
    looks = {}
    for name in close:
        first, second = (its / other - 1 for its, other in zip(times[selected], times[name]))
        looks[name] = {"ahead": round((first + second) / 2, 4), "error": round(abs(first - second) / 2, 4)}
    return looks


def choose(times: StateTimes, order: Sequence[str], mix: Mix) -> str:
    """Return the winner in a mix of states, among the names that lose at most MAX_LOSS in every state.

    If all lose more somewhere, only the one with the least largest loss is left.
    """
    losses = {name: largest_loss(times, name) for name in order}
    kept = [name for name in order if losses[name] <= MAX_LOSS] or [min(order, key=losses.__getitem__)]
    return decide({name: _mixed(times, name, mix) for name in kept}, kept)


def largest_loss(times: StateTimes, name: str) -> float:
    """Return the largest loss of a name to the best one of a state."""
    medians = [{one: statistics.median(ms) for one, ms in of_state.items()} for of_state in times.values()]
    return max(of_state[name] / min(of_state.values()) - 1 for of_state in medians)


def _mixed(times: StateTimes, name: str, mix: Mix) -> list[float]:
    """Return the weighted geometric mean over the states, round by round."""
    rounds = zip(*(times[state][name] for state in mix))
    weights = list(mix.values())
    return [math.exp(sum(weight * math.log(ms) for weight, ms in zip(weights, one)) / sum(weights)) for one in rounds]
