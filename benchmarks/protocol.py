"""The rules of a measurement, and the arithmetic that turns its times into figures. Nothing here needs a device."""

from __future__ import annotations

import fnmatch
import math
import statistics
from dataclasses import dataclass

from contenders import Problem


@dataclass(frozen=True)
class Protocol:
    block_ms: float = 7.0  # work of one graph
    rounds_min: int = 15
    rounds_max: int = 60
    warm_up_s: float = 3.0
    cool_down_s: float = 0.7
    burst_rounds_min: int = 3
    solo_s: float = 0.5
    l2_multiple: float = 3.0
    sets_min: int = 3
    data: str = "normal(0,1) f16"


@dataclass(frozen=True)
class Tolerance:
    """How far a right kernel may be from the exact product of the same f16 operands, drawn from normal(0, 1).

    An element of the product has standard deviation sqrt(k), and the accumulator takes k / 16 roundings (mma.sync
    m16n8k16). In f32 the tensor core truncates, so these errors may all have one sign: (k / 16) ulp. In f16 it rounds
    to nearest, so they grow with the square root. The result is then rounded once to f16. Eight standard deviations
    cover the largest of 2^28 elements.
    """

    absolute: float
    relative: float
    norm: float

    @classmethod
    def of(cls, k: int, acc: str) -> Tolerance:
        output = 2.0**-11
        steps = max(1.0, k / 16)
        accumulated = steps * 2.0**-23 if acc == "f32" else math.sqrt(steps) * 2.0**-11
        return cls(absolute=8 * accumulated * math.sqrt(k) + 1e-3, relative=2 * output, norm=output + 2 * accumulated)


def abba(names: list[str]) -> list[str]:
    return names + names[::-1]


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def round_times(blocks: list[list[tuple[str, float]]]) -> dict[str, list[float]]:
    """Return for each contender one time a round, the mean of its blocks in that round."""
    times: dict[str, list[float]] = {}
    for blocks_of_round in blocks:
        for name in dict.fromkeys(name for name, _ in blocks_of_round):
            times.setdefault(name, []).append(statistics.fmean(t for other, t in blocks_of_round if other == name))
    return times


def summarise(
    times: dict[str, list[float]], accs: dict[str, str], problem: Problem, baseline_pattern: str
) -> list[dict]:
    """Return a row a contender, fastest first, with its paired ratio against its accumulator's baseline.

    The baseline of an accumulator is the fastest that matches the pattern, chosen after the run: in its favour.
    f16_promoted is compared with f32, whose precision it offers, when f32 was measured.
    """
    medians = {name: statistics.median(values) for name, values in times.items()}

    def baseline_of(acc: str) -> str | None:
        group = "f32" if acc == "f16_promoted" else acc
        matching = [name for name in times if accs[name] == group and fnmatch.fnmatch(name, baseline_pattern)]
        return min(matching, key=medians.__getitem__, default=None)

    rows = []
    for name in sorted(times, key=medians.__getitem__):
        rates = [problem.flops / ms * 1e-9 for ms in times[name]]
        row = dict(
            name=name,
            acc=accs[name],
            time_us=round(medians[name] * 1e3, 2),
            tflops=round(statistics.median(rates), 1),
            tflops_min=round(min(rates), 1),
            tflops_max=round(max(rates), 1),
            rounds=len(rates),
        )
        baseline = baseline_of(accs[name])
        if baseline:
            ratios = [base / own for base, own in zip(times[baseline], times[name])]
            low, high = percentile(ratios, 10), percentile(ratios, 90)
            row |= dict(
                baseline=baseline,
                ratio=round(statistics.median(ratios), 4),
                ratio_p10=round(low, 4),
                ratio_p90=round(high, 4),
                wins=low > 1,
            )
        rows.append(row)
    return rows


def finalists(rows: list[dict], count: int, baseline: str) -> list[str]:
    """Return the best `count` names of each accumulator, its two best baselines and every torch contender."""
    chosen = []
    for acc in dict.fromkeys(row["acc"] for row in rows):
        group = [row["name"] for row in rows if row["acc"] == acc]
        matching = [name for name in group if fnmatch.fnmatch(name, baseline)]
        reference = [name for name in group if name.startswith("torch_")]
        chosen += (
            [name for name in group if name not in matching and name not in reference][:count]
            + matching[:2]
            + reference
        )
    return chosen
