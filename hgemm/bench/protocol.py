"""The rules of a measurement, and the arithmetic that turns its times into figures. Nothing here needs a device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hgemm.bench.work import Work
from hgemm.dtypes import DTYPES


@dataclass(frozen=True)
class Protocol:
    """How a problem is measured.

    Fields: `seconds` is the time of the paired rounds of one problem, kept to unless that many `rounds` of one launch
        each take longer; `screen_ms` is one sample of the screening, of which a contender gets `screen_samples`;
        `finalists` of ours and of the baseline go on to the rounds, in which each has `turn_blocks` blocks one after another.
        Of those the second half counts: in the first the card's clock settles, which follows its power limit slowly. The
        first problem comes after `warm_up_s` of load, the others, whose preparation is a pause, after `rewarm_s`.
    """

    seconds: float = 1.2
    rounds: int = 15
    rounds_max: int = 60
    block_ms: float = 7.0
    block_ms_min: float = 1.0
    turn_blocks: int = 1
    screen_ms: float = 2.0
    screen_samples: int = 3
    finalists: int = 3
    algorithms: int = 32
    warm_up_s: float = 3.0
    rewarm_s: float = 0.3
    cool_down_s: float = 0.7
    burst_rounds: int = 5
    solo_s: float = 0.5
    l2_multiple: float = 3.0
    sets_min: int = 3
    sets_max: int = 256


@dataclass(frozen=True)
class Tolerance:
    """How far a right kernel may be from the exact product of the same operands, drawn from normal(0, 1).

    An element of the product has standard deviation sqrt(k), and the accumulator takes k / 16 roundings. In f32 the
    tensor core truncates, so these errors may all have one sign: (k / 16) ulp. In f16 it rounds to nearest, so they
    grow with the square root. The result is then rounded once to D's type. Eight standard deviations cover the largest
    of 2^28 elements.
    """

    absolute: float
    relative: float
    norm: float

    @classmethod
    def of(cls, k: int, acc: str, dtype_d: str = "f16") -> Tolerance:
        output = DTYPES[dtype_d].roundoff
        steps = max(1.0, k / 16)
        accumulated = steps * 2.0**-23 if acc == "f32" else math.sqrt(steps) * 2.0**-11
        return cls(absolute=8 * accumulated * math.sqrt(k) + 1e-3, relative=2 * output, norm=output + 2 * accumulated)

    def times(self, factor: float) -> Tolerance:
        """Return one that allows so many times as much."""
        return Tolerance(factor * self.absolute, factor * self.relative, factor * self.norm)


def abba(names: Sequence[str]) -> list[str]:
    """Return the order of one round: forwards, then backwards, so that a drift cancels."""
    return [*names, *reversed(names)]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, between neighbours by a straight line."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def round_times(rounds: Sequence[Sequence[tuple[str, float]]]) -> dict[str, list[float]]:
    """Return for each contender one time a round, the mean of its blocks in that round."""
    times: dict[str, list[float]] = {}
    for blocks in rounds:
        for name in dict.fromkeys(name for name, _ in blocks):
            times.setdefault(name, []).append(statistics.fmean(ms for other, ms in blocks if other == name))
    return times


def by_place(turns: Sequence[Sequence[float]]) -> list[float]:
    """Return the median microseconds of a launch in the first block of turns, in the second and so on."""
    return [round(statistics.median(ms) * 1e3, 3) for ms in zip(*turns)]


@dataclass(frozen=True)
class Ratio:
    """A baseline's time over ours, round by round: more than 1 is faster. `spread` is half of p10 to p90."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, base: Sequence[float], own: Sequence[float]) -> Ratio:
        ratios = [theirs / ours for theirs, ours in zip(base, own)]
        return cls(*(round(value, 4) for value in (statistics.median(ratios), *_ends(ratios))))

    @property
    def spread(self) -> float:
        return (self.p90 - self.p10) / 2

    @property
    def wins(self) -> bool:
        return self.p10 > 1


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return percentile(values, 10), percentile(values, 90)


def figures(times_ms: Sequence[float], work: Work) -> dict[str, float]:
    """Return time and rate of one contender. Units: as the names say; the spread is half of p10 to p90."""
    low, high = _ends(times_ms)
    median = statistics.median(times_ms)
    return {
        "time_us": round(median * 1e3, 3),
        "spread_us": round((high - low) / 2 * 1e3, 3),
        "tflops": round(work.flops / median * 1e-9, 2),
        "rounds": len(times_ms),
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def block_launches(launch_ms: float, protocol: Protocol, contenders: int, sets: int, rounds: int) -> int:
    """Return how many launches one block has: whole turns of the sets, or fewer where a turn takes too long."""
    share_ms = 1e3 * protocol.seconds / (rounds * 2 * contenders * protocol.turn_blocks)
    wanted = min(protocol.block_ms, max(protocol.block_ms_min, share_ms)) / max(launch_ms, 1e-4)
    return max(1, round(wanted / sets)) * sets if wanted >= sets else max(1, round(wanted))


def fastest(times: Mapping[str, Sequence[float]], names: Sequence[str]) -> str | None:
    """Return the name of the least median time among those that were measured."""
    measured = [name for name in names if name in times]
    return min(measured, key=lambda name: statistics.median(times[name]), default=None)
