"""Successive halving, and the decision among those that are left. Nothing here needs a device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from hgemm.bench.protocol import Ratio

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
