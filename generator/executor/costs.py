"""What a k-tile costs, counted on the addresses of a real launch, and held against the layouts and the plan.

Two launches of one CTA tile are counted, one of them a k-tile longer: the difference is a k-tile in the middle, and what
is the same in both is the way in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from generator.executor.abi import Adversary, Report, Site
from generator.executor.cases import measured_case
from generator.executor.machine import EmulatedKernel, HostMemory
from generator.executor.placement import placement_of
from generator.values import Tile, WarpTile
from hgemm.dtypes import DTYPES
from hgemm.facts import Facts
from hgemm.verify import Options, Trial

_ADVERSARY = Adversary("late", "round_robin", 1)
_BARRIER, _MMA = "cta_barrier", "mma"
_WARP = 32
_UNPLACED = ("tma", "by_hand")
"""Copies of which the layouts do not say where each thread's go: TMA's, and those of kernels that are written by hand."""


@dataclass(frozen=True)
class Costs:
    """What one CTA does for a k-tile, and around its mainloop.

    Units: `mma_per_tile` counts the tensor instructions of a warp, or of a warpgroup for wgmma; sectors are 32 bytes of
        global memory; conflicts are passes of shared memory beyond the fewest that the accesses could take.
    """

    mma_per_tile: float
    barriers_per_k_tile: float
    bytes_per_k_tile: float
    read_conflicts_per_k_tile: float
    copy_conflicts_per_k_tile: float
    epilogue_conflicts: float
    sectors_per_request: float
    least_sectors_per_request: float


def count(kernel: EmulatedKernel, spec: Mapping[str, Any]) -> tuple[Costs, list[dict[str, Any]]]:
    """Run and count both launches; return the costs, and what each source line of the longer one did."""
    shorter, longer = (_counted(kernel, int(spec["stages"]) + extra) for extra in (1, 2))
    ctas = kernel.facts.splits * kernel.facts.cluster_ctas
    before = {_key(site): site for site in shorter.sites}
    steps = [(site, _less(site, before.get(_key(site)))) for site in longer.sites]
    beside = [site for site, step in steps if not step.requests]
    counters = {name: total - shorter.counters.get(name, 0) for name, total in longer.counters.items()}
    touching = [site for site in longer.sites if site.sectors]
    requests = sum(site.requests for site in touching) or 1
    costs = Costs(
        mma_per_tile=sum(n for name, n in counters.items() if _MMA in name) / (ctas * _issuers(kernel.facts, spec)),
        barriers_per_k_tile=counters.get(_BARRIER, 0) / ctas,
        bytes_per_k_tile=sum(step.bytes for _, step in steps if step.sectors) / ctas,
        read_conflicts_per_k_tile=sum(_conflicts(step) for _, step in steps if _reads(step)) / ctas,
        copy_conflicts_per_k_tile=sum(_conflicts(step) for _, step in steps if not _reads(step)) / ctas,
        epilogue_conflicts=sum(map(_conflicts, beside)) / ctas,
        sectors_per_request=sum(site.sectors for site in touching) / requests,
        least_sectors_per_request=sum(site.ideal_sectors for site in touching) / requests,
    )
    return costs, [asdict(site) for site in longer.sites]


def _issuers(facts: Facts, spec: Mapping[str, Any]) -> int:
    """Return how many warps, or warpgroups for wgmma, share the products of one tile."""
    consumers = int(spec.get("consumers", 0))
    if not consumers and "warp_tile" not in spec:  # written by hand
        return facts.threads // _WARP
    if not consumers:
        tile, warp = Tile.parse(spec["cta_tile"]), WarpTile.parse(spec["warp_tile"])
        return tile.m // warp.m * (tile.n // warp.n)
    return consumers if spec["cooperation"] == "cooperative" else 1


def _counted(kernel: EmulatedKernel, k_tiles: int) -> Report:
    case = measured_case(kernel.facts, k_tiles)
    alone = replace(kernel, adversaries=(_ADVERSARY,), workers=1, reports=[])
    trial = Trial(alone, case, HostMemory(), Options(data=("integer",), twice=False), "integer")
    try:
        trial.check()
    finally:
        trial.free()
    ((_, report),) = alone.reports
    return report


def _key(site: Site) -> tuple[str, int, str]:
    return site.file, site.line, site.kind


_COUNTS = ("requests", "wavefronts", "ideal_wavefronts", "sectors", "ideal_sectors", "bytes")


def _less(site: Site, before: Site | None) -> Site:
    if before is None:
        return site
    return replace(site, **{name: getattr(site, name) - getattr(before, name) for name in _COUNTS})


def _reads(site: Site) -> bool:
    """Tell whether a line of the mainloop reads fragments."""
    return site.kind in ("ldmatrix", "wmma_load") or (site.kind, site.space) == ("load", "shared")


def _conflicts(site: Site) -> int:
    return site.wavefronts - site.ideal_wavefronts


def _loads(facts: Facts, operand: str) -> int:
    """Return how often each byte of a k-tile is asked for where rows begin off 16 bytes: shifted pieces come out of two."""
    return 2 if facts.shifts(operand) else 1


def disagreements(costs: Costs, facts: Facts, spec: Mapping[str, Any], mma_per_tile: int) -> Iterator[str]:
    """Yield where the counts are not what the plan and the layouts say."""
    expected: dict[str, float] = {
        "mma_per_tile": mma_per_tile,
        "bytes_per_k_tile": facts.tile_k
        * (
            facts.tile_m * DTYPES[facts.dtype_a].bytes * _loads(facts, "a")
            + facts.tile_n * DTYPES[facts.dtype_b].bytes * _loads(facts, "b")
        ),
    }
    if int(spec.get("consumers", 0)):
        expected["copy_conflicts_per_k_tile"] = 0  # boxes, whoever fills them
    elif spec["copy"] not in _UNPLACED:
        placement = placement_of(spec)
        expected["read_conflicts_per_k_tile"] = placement.read_conflicts
        if placement.copies_are_even:
            expected["copy_conflicts_per_k_tile"] = placement.copy_conflicts
    for name, value in expected.items():
        found = getattr(costs, name)
        if found != value:
            yield f"{name.replace('_', ' ')}: {found:g} were counted, {value:g} follow from the plan"
