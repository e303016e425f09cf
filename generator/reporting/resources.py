"""Pictures of what variants take: registers and shared memory, how full an SM gets, how long they took to compile."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from generator.reporting.figure import SERIES, Figure
from hgemm.record import Record

_MARKS = ((1, 4, 4.0), (4, 16, 6.5), (16, math.inf, 10.0))
"""From how many variants in one place, below how many, and the width of their mark in points."""
_MARKS_SAY = "larger: 4 and\n16 variants or more"


def resources(records: Sequence[Record]) -> list[Figure]:
    """Return the pictures of some variants; none of none."""
    if not records:
        return []
    archs = in_order({record.arch for record in records})
    facts = [record.data["resources"] for record in records]
    ranges = " and ".join(
        f"{min(one[name] for one in facts):,} to {max(one[name] for one in facts):,} {unit}"
        for name, unit in (("registers", "registers a thread"), ("smem_bytes", "bytes of shared memory a CTA"))
    )
    words = f"{len(records):,} variants, of {ranges}."
    fullest = max(one["occupancy"] for one in facts)
    filled = f"Variants by the part of an SM's warps that they fill: at most {100 * fullest:.1f} %."
    seconds = [record.data["seconds"]["compile"] for record in records]
    took = f"Variants by the seconds that compiling took: {sum(seconds):.0f} in all, at most {max(seconds):.2f}."
    return [
        Figure("resources", "Registers and shared memory", words, (5.6, 3.6), partial(_draw_resources, records, archs)),
        Figure("occupancy", "Occupancy", filled, (5.6, 3.0), partial(_draw_occupancy, records, archs)),
        Figure("compile_seconds", "Seconds to compile", took, (5.6, 2.8), partial(_draw_seconds, seconds)),
    ]


def in_order(archs: Iterable[str]) -> list[str]:
    """Return architectures by their numbers: sm_90 before sm_90a and sm_100."""
    return sorted(archs, key=lambda arch: (len(arch.rstrip("abcdef")), arch))


def _colour(archs: Sequence[str], arch: str) -> str:
    return SERIES[archs.index(arch) % len(SERIES)]


def _draw_resources(records: Sequence[Record], archs: Sequence[str], canvas: Any) -> None:
    axes = canvas.add_subplot()
    for arch in archs:
        facts = (record.data["resources"] for record in records if record.arch == arch)
        places = Counter((one["registers"], one["smem_bytes"] / 1024) for one in facts)
        for least, most, points in _MARKS:
            of_size = [place for place, count in places.items() if least <= count < most]
            style = {"color": _colour(archs, arch), "alpha": 0.6, "markersize": points, "markeredgewidth": 0}
            if of_size:
                axes.plot(*zip(*of_size), "o", **style)
        axes.plot([], [], "o", color=_colour(archs, arch), label=arch)
    axes.set_xlabel("registers a thread")
    axes.set_ylabel("shared memory a CTA, KiB")
    axes.set_xlim(0, 264)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, 257, 32))
    axes.grid(True)
    axes.legend(title=_MARKS_SAY, loc="upper left", bbox_to_anchor=(1, 1), title_fontsize=8)


def _draw_occupancy(records: Sequence[Record], archs: Sequence[str], canvas: Any) -> None:
    axes = canvas.add_subplot()
    levels = sorted({record.data["resources"]["occupancy"] for record in records})
    below = [0] * len(levels)
    for arch in archs:
        counts = Counter(record.data["resources"]["occupancy"] for record in records if record.arch == arch)
        heights = [counts[level] for level in levels]
        axes.bar(range(len(levels)), heights, bottom=below, color=_colour(archs, arch), label=arch, width=0.7)
        below = [low + height for low, height in zip(below, heights)]
    axes.set_xticks(range(len(levels)), [f"{100 * level:.3g} %" for level in levels])
    axes.set_xlabel("warps of an SM that are filled")
    axes.set_ylabel("variants")
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _draw_seconds(seconds: Sequence[float], canvas: Any) -> None:
    axes = canvas.add_subplot()
    axes.hist(seconds, bins=min(30, max(5, len(seconds) // 4)), color=SERIES[0])
    axes.set_xlabel("seconds")
    axes.set_ylabel("variants")
    axes.set_xlim(left=0)
    axes.grid(axis="y")
