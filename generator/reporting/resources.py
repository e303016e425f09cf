"""Pictures of what variants take: registers and shared memory, how full an SM gets, how long they took to compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from generator.reporting.figure import SERIES, Figure
from hgemm.record import Record

_LARGEST_MARK, _LEAST_MARK = 140.0, 16.0
"""Areas in square points, of a place that many variants share and of one alone."""


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
        Figure("resources", "Registers and shared memory", words, (6.4, 3.9), partial(_draw_resources, records, archs)),
        Figure("occupancy", "Occupancy", filled, (6.4, 3.2), partial(_draw_occupancy, records, archs)),
        Figure("compile_seconds", "Seconds to compile", took, (6.4, 2.8), partial(_draw_seconds, seconds)),
    ]


def in_order(archs: Iterable[str]) -> list[str]:
    """Return architectures by their numbers: sm_90 before sm_90a and sm_100."""
    return sorted(archs, key=lambda arch: (len(arch.rstrip("abcdef")), arch))


def _colour(archs: Sequence[str], arch: str) -> str:
    return SERIES[archs.index(arch) % len(SERIES)]


def _draw_resources(records: Sequence[Record], archs: Sequence[str], canvas: Any) -> None:
    axes = canvas.add_subplot()
    most = 1
    places: dict[str, Counter[tuple[int, int]]] = {arch: Counter() for arch in archs}
    for record in records:
        facts = record.data["resources"]
        places[record.arch][facts["registers"], facts["smem_bytes"]] += 1
        most = max(most, places[record.arch][facts["registers"], facts["smem_bytes"]])
    for arch in archs:
        xs, ys = zip(*places[arch])
        sizes = [_LEAST_MARK + (_LARGEST_MARK - _LEAST_MARK) * (count - 1) / most for count in places[arch].values()]
        axes.scatter(
            xs, [y / 1024 for y in ys], s=sizes, color=_colour(archs, arch), alpha=0.55, linewidths=0, label=arch
        )
    axes.set_xlabel("registers a thread")
    axes.set_ylabel("shared memory a CTA, KiB")
    axes.set_xlim(0, 264)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, 257, 32))
    axes.grid(True)
    legend = axes.legend(title="larger: more variants", loc="upper left", bbox_to_anchor=(1, 1), title_fontsize=8)
    for handle in legend.legend_handles:
        handle.set_sizes([40])


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
