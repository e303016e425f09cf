"""Measurement protocol and statistics. Nothing here needs a device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hgemm.bench.work import Work
from hgemm.dtypes import DTYPES


@dataclass(frozen=True)
class Protocol:
    """The protocol of a measurement.

    Fields:
        `seconds`: time of all paired rounds of a problem; exceeded if `rounds` rounds of one launch take longer.
        `screen_ms`: length of one screening sample. Each contender gets `screen_samples`.
        `finalists`: number of kernels, and of baseline algorithms, that are timed in rounds.
        `turn_blocks`: consecutive blocks of a contender in its turn. Only the second half counts, because
            the clock settles at the power limit during the first.
        `warm_up_s`, `rewarm_s`: load before the first problem, and before each later one.
        `duty`: bytes that the memory-bound kernel of the state `model` moves, as a multiple of the bytes of A and D.
            In a Llama 3 8B-like model of transformers (2048 tokens, CUDA graph), other kernels take half as long as the
            products (benchmarks/data/model_clocks_h200.json). The default is chosen for that; it is not measured yet.
        `burst_load_ms`: load after each pause of `cool_down_s` in the state `burst`.
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
    burst_load_ms: float = 20.0
    duty: float = 6.0
    solo_s: float = 0.5
    l2_multiple: float = 3.0
    sets_min: int = 3
    sets_max: int = 256


@dataclass(frozen=True)
class Tolerance:
    """Allowed difference between a correct kernel and the exact product of operands drawn from normal(0, 1).

    An element of the product has standard deviation sqrt(k). The accumulator is rounded k / 16 times.
    In f32 the tensor core truncates, so errors may all have one sign: (k / 16) ulp.
    In f16 it rounds to nearest, so errors grow with the square root.
    The result is rounded once to D's type. Eight standard deviations cover the largest of 2^28 elements.
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
        """Return a tolerance that is `factor` times as large."""
        return Tolerance(factor * self.absolute, factor * self.relative, factor * self.norm)


def forth_and_back(names: Sequence[str]) -> list[str]:
    """Return the order of one round: forwards, then backwards. This cancels drift."""
    return [*names, *reversed(names)]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated linearly."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def round_times(rounds: Sequence[Sequence[tuple[str, float]]]) -> dict[str, list[float]]:
    """Return one time per round for each contender: the mean of its blocks in that round."""
    times: dict[str, list[float]] = {}
    for blocks in rounds:
        for name in dict.fromkeys(name for name, _ in blocks):
            times.setdefault(name, []).append(statistics.fmean(ms for other, ms in blocks if other == name))
    return times


def block_times_us(turns: Sequence[Sequence[float]]) -> list[float]:
    """Return median microseconds per launch of the first block of a turn, of the second, and so on."""
    return [round(statistics.median(ms) * 1e3, 3) for ms in zip(*turns)]


@dataclass(frozen=True)
class Ratio:
    """Baseline time over our time, round by round.

    More than 1 means that we are faster. `spread` is half of p10 to p90.
    """

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
    """Return time and rate of one contender. The spread is half of p10 to p90."""
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
    """Return the launches per block: whole cycles through the sets, or fewer if one cycle takes too long."""
    share_ms = 1e3 * protocol.seconds / (rounds * 2 * contenders * protocol.turn_blocks)
    launches = min(protocol.block_ms, max(protocol.block_ms_min, share_ms)) / max(launch_ms, 1e-4)
    return max(1, round(launches / sets)) * sets if launches >= sets else max(1, round(launches))


def fastest(times: Mapping[str, Sequence[float]], names: Sequence[str]) -> str | None:
    """Return the measured name with the lowest median time."""
    measured = [name for name in names if name in times]
    return min(measured, key=lambda name: statistics.median(times[name]), default=None)
