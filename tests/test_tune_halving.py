"""Laws of tuning's choice, on times that were measured, with noise put on them: it finds what is best, and finds it again."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import measured
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.selection import agreement, left_out, read_data
from hgemm.bench.protocol import geometric_mean
from hgemm.bench.work import Work
from hgemm.dispatch_table import kind_of, row_of
from hgemm.launch_traits import LaunchTraits
from hgemm.measured import MeasuredProblem
from hgemm.selection_query import Target
from hgemm.tune.problem import FIRST_SAMPLES, Ranking, decide, halve, is_open
from hgemm.tune.runner import plainness

MEASURED = read_data()
FACTS = {record["symbol"]: LaunchTraits.of(record) for record in MEASURED.records}
ROUNDS = 9


class Replayed:
    """A device on which each launch takes what was measured, but for noise: a part of each sample, and a drift of all."""

    def __init__(self, times_us: Mapping[str, float], noise: float, seed: int) -> None:
        self.times_us, self.noise, self.rng, self.samples = times_us, noise, random.Random(seed), 0

    def sample(self, names: Sequence[str], count: int) -> dict[str, list[float]]:
        drift = [1 + self.noise * self.rng.gauss(0, 1) for _ in range(count)]
        self.samples += len(names) * count
        return {name: [self._once(name) * common for common in drift] for name in names}

    def _once(self, name: str) -> float:
        return self.times_us[name] * (1 + self.noise * abs(self.rng.gauss(0, 1)))


def tuned(problem: MeasuredProblem, noise: float, seed: int, candidates: Sequence[str] | None = None) -> str:
    """Tune one problem as hgemm.tune.problem does, on a replayed device."""
    times_us = MEASURED.times_us[problem]
    device = Replayed(times_us, noise, seed)
    finalists, _ = halve(list(candidates or times_us), device.sample, 4)
    order = sorted(finalists, key=lambda name: plainness(FACTS[name]))
    times: dict[str, list[float]] = {name: [] for name in finalists}
    for _ in range(4):
        for name, more in device.sample(order, ROUNDS).items():
            times[name] += more
        winner = decide(times, order)
        if not is_open(times, winner):
            break
    return winner


# ---- Halving --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=60, unique=True), st.integers(1, 6))
def test_without_noise_the_fastest_are_left_in_their_order(values: list[float], finalists: int) -> None:
    times = {str(value): value for value in values}
    left, medians = halve([*times], lambda names, count: {name: [times[name]] * count for name in names}, finalists)
    assert [times[name] for name in left] == sorted(values)[:finalists] and medians == times


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2**32))
def test_halving_ends_whatever_is_measured_and_samples_all_at_first(count: int, finalists: int, seed: int) -> None:
    seen: list[int] = []
    rng = random.Random(seed)

    def sample(names: Sequence[str], times: int) -> dict[str, list[float]]:
        seen.append(len(names))
        return {name: [rng.uniform(0.5, 2) for _ in range(times)] for name in names}

    left, medians = halve([str(at) for at in range(count)], sample, finalists)
    assert len(left) == min(count, finalists) and len(medians) == seen[0] == count
    assert all(later <= max(finalists, 3 * earlier // 4) for earlier, later in zip(seen, seen[1:]))


def test_one_that_may_be_faster_than_the_last_of_the_half_stays() -> None:
    fixed = {"a": [1.0, 1.0], "b": [2.0, 2.0], "c": [1.9, 2.2], "d": [3.0, 3.0]}
    rounds: list[Sequence[str]] = []

    def sample(names: Sequence[str], count: int) -> dict[str, list[float]]:
        rounds.append(list(names))
        return {name: (fixed[name] * count)[:count] for name in names}

    halve("abcd", sample, 2)
    assert rounds == [list("abcd"), list("abc")] and FIRST_SAMPLES == 2


# ---- The decision ---------------------------------------------------------------------------------------------------


def test_only_who_wins_beyond_the_spread_takes_a_place() -> None:
    steady = {"first": [1.00, 1.01, 1.00, 1.01], "faster": [0.98, 0.99, 0.98, 0.99], "open": [0.90, 1.02, 0.90, 1.02]}
    assert decide(steady, ["first", "faster"]) == "faster"
    assert decide(steady, ["first", "open"]) == "first" and is_open(steady, "first")
    assert decide(steady, ["faster", "first"]) == "faster" == decide(steady, ["open", "first", "faster"][1:])
    assert not is_open({"a": [1.0], "b": [0.996]}, "a")


# ---- Tuning again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_two_tunings_agree_within_2_percent(noise: float) -> None:
    """In performance, for 98 % of problems and more; and the winner is as good as the best that was measured."""
    first, second = ({p: tuned(p, noise, seed) for p in MEASURED.times_us} for seed in (1, 2))
    apart, of_best = [], []
    for problem, times_us in MEASURED.times_us.items():
        one, other = times_us[first[problem]], times_us[second[problem]]
        apart.append(max(one, other) / min(one, other) - 1)
        of_best.append(min(times_us.values()) / one)
    assert sum(value <= 0.02 for value in apart) >= 0.98 * len(apart)
    assert geometric_mean(of_best) > 0.995


def test_every_round_of_halving_costs_about_the_same() -> None:
    """Twice the samples of half the names; all alike sampled as often as the last would cost the names' number more."""
    times_us = next(iter(MEASURED.times_us.values()))
    device, costs = Replayed(times_us, 0.003, 0), []

    def sample(names: Sequence[str], count: int) -> dict[str, list[float]]:
        costs.append(len(names) * count)
        return device.sample(names, count)

    halve([*times_us], sample, 4)
    assert 4 <= len(costs) <= 6 and max(costs) <= 1.5 * costs[0] == 1.5 * FIRST_SAMPLES * len(times_us)


# ---- Candidates -----------------------------------------------------------------------------------------------------


def ranking() -> Ranking:
    rows = {
        record["symbol"]: (kind_of(FACTS[record["symbol"]]), row_of(FACTS[record["symbol"]], record))
        for record in MEASURED.records
    }
    return Ranking(rows, Target.typical("sm_90"))


def work_of(problem: MeasuredProblem) -> Work:
    return Work(*problem.extents)


def test_of_few_candidates_the_best_are_among_those_that_near_problems_speak_for() -> None:
    """Problem after problem, as a tuning learns: 16 of 82 have the best, but for 1 %."""
    ranked, found = ranking(), []
    for problem, times_us in MEASURED.times_us.items():
        chosen = ranked.best(work_of(problem), 16)
        assert len(chosen) == len(set(chosen)) == 16
        found.append(min(times_us.values()) / min(times_us[symbol] for symbol in chosen))
        known = {symbol: times_us[symbol] for symbol in chosen}
        ranked.learn(problem, known, sorted(known, key=known.__getitem__))
    assert geometric_mean(found) > 0.99


def test_what_was_best_before_is_measured_again_and_what_is_not_there_is_not() -> None:
    ranked, problem = ranking(), next(iter(MEASURED.times_us))
    worst = ranked.best(work_of(problem), 1000)[-1]
    ranked.learn(problem, {worst: 1.0}, [worst])
    assert ranked.best(work_of(problem), 4)[0] == worst == ranked.stands(work_of(problem))
    some = set(ranked.best(work_of(problem), 1000)[10:20])
    assert set(ranked.best(work_of(problem), 1000, among=some)) == some


def test_problems_of_another_kind_have_no_candidates() -> None:
    assert ranking().best(Work(4096, 4096, 4096, layout="nt"), 8) == []
    assert ranking().best(Work(4096, 4096, 4095), 8) == []  # rows of 4095 elements are aligned to 1


# ---- What follows for problems that were not measured ---------------------------------------------------------------


def test_dispatch_is_nearly_the_best_where_a_fifth_was_left_out() -> None:
    found = [value for seed in range(8) for value in left_out(MEASURED, 0.2, seed).values()]
    assert geometric_mean(found) >= 0.97 and statistics.median(found) > 0.98


# ---- The script that says whether two tunings agree -----------------------------------------------------------------


def test_agreement_is_of_winners_in_the_same_rounds(tmp_path: Path) -> None:
    results = [
        ({"a": 1.00, "b": 1.01}, {"b": 1.10, "a": 1.12}),  # both have both: the first counts
        ({"a": 1.00, "b": 1.05}, {"b": 1.00, "c": 1.05}),  # only the first has both: 5 %
        ({"a": 1.00}, {"b": 1.50}),  # none has both
        ({"a": 1.00}, {"a": 1.50}),
        ({"a": 1.00, "c": 1.20}, {"b": 1.98, "c": 2.40}),  # on a device of half the speed: 1 %
    ]
    problems = [measured.problem(8 * at, 8, 8) for at in range(1, 6)]
    sessions = [[measured.write(tmp_path, [(p, pair[at]) for p, pair in zip(problems, results)])] for at in range(2)]
    found = agreement(*sessions)
    assert (found["problems"], found["same_winner"], found["within_2_percent"]) == (5, 1, 0.6)
    assert [row[0] for row in found["worst"]] == [0.5, 0.05, 0.0101, 0.01, 0.0]
