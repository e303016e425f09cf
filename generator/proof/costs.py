"""Costs of a k-tile: bank conflicts predicted from the layouts, and costs counted in a run, which must agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from generator.layouts import BANK_BYTES, PHASE_BYTES, VECTOR_BYTES, OperandTile, conflicts, read_conflicts
from generator.proof.executor import Adversary, Report, Site
from generator.proof.machine import EmulatedKernel, HostMemory, measured_case
from generator.spec import DTYPE_BYTES, Smem, Tile, WarpTile
from hgemm.dtypes import DTYPES
from hgemm.launch_traits import LaunchTraits
from hgemm.verify import CheckOptions, Trial

_PLACEMENT_WARP = 32


@dataclass(frozen=True)
class Placement:
    """The shared-memory layouts of both operands of an mma.sync kernel, and the warps that share a CTA tile."""

    a: OperandTile
    b: OperandTile
    warps_m: int
    warps_n: int
    threads: int

    @property
    def read_conflicts(self) -> int:
        """Return the bank conflicts of reading the fragments of a k-tile, over all warps."""
        return read_conflicts(self.a) * self.warps_n + read_conflicts(self.b) * self.warps_m

    @property
    def copies_are_even(self) -> bool:
        """Tell whether, in every pass of every copy, either all lanes of a warp copy a chunk or none do.

        Otherwise the counts cannot be compared: lanes without a chunk run ahead to the next pass, and the executor counts lanes of
        two passes at the same source line as one instruction. Compiled code has an instruction for each pass.
        """
        return all(_is_even(tile, self.threads) for tile in (self.a, self.b))

    @property
    def copy_conflicts(self) -> int:
        """Return the bank conflicts of copying a k-tile to shared memory."""
        return sum(copy_conflicts(tile, self.threads) for tile in (self.a, self.b))


def placement_of(spec: Mapping[str, Any]) -> Placement:
    """Read the placement from a record's spec."""
    tile, warp = Tile.parse(spec["cta_tile"]), WarpTile.parse(spec["warp_tile"])
    warps_m, warps_n = tile.m // warp.m, tile.n // warp.n
    threads = warps_m * warps_n * _PLACEMENT_WARP
    operands = []
    for k_major, extent, name in ((spec["layout"][0] == "t", tile.m, "a"), (spec["layout"][1] == "n", tile.n, "b")):
        rows, columns = (extent, tile.k) if k_major else (tile.k, extent)
        smem, size = Smem.parse(spec[f"smem_{name}"]), DTYPE_BYTES[spec[f"dtype_{name}"]]
        chunk = {"ldg_sts_scalar": 1, "ldg_sts_unaligned": VECTOR_BYTES // size}.get(
            spec["copy"], spec[f"align_{name}"]
        )
        operands.append(OperandTile(k_major, rows, columns, chunk, threads, smem, size))
    return Placement(*operands, warps_m, warps_n, threads)


def copy_conflicts(tile: OperandTile, threads: int) -> int:
    """Return the bank conflicts of copying one stage. In each pass, each thread copies one chunk.

    The passes are those of OperandCopy in templates/mma_sync/operand.cuh.
    """
    per_row = tile.columns // tile.chunk
    row_step = 1 if per_row >= threads else threads // per_row
    width_bytes = tile.chunk * tile.element_bytes
    lanes = PHASE_BYTES // max(width_bytes, BANK_BYTES)
    extra = 0
    for row_first in range(0, tile.rows, row_step):
        for column_first in range(0, tile.columns, threads * tile.chunk):
            for lane in range(0, threads, lanes):
                places = [_chunk(tile, thread, per_row, row_step) for thread in range(lane, lane + lanes)]
                offsets = [
                    tile.offset(row_first + row, column_first + column) * tile.element_bytes
                    for row, column in filter(None, places)
                    if row_first + row < tile.rows and column_first + column < tile.columns
                ]
                extra += conflicts(offsets, width_bytes)
    return extra


def _is_even(tile: OperandTile, threads: int) -> bool:
    per_row = tile.columns // tile.chunk
    if per_row >= threads:
        return per_row % _PLACEMENT_WARP == 0
    row_step = threads // per_row
    return row_step * per_row % _PLACEMENT_WARP == 0 and tile.rows % row_step * per_row % _PLACEMENT_WARP == 0


def _chunk(tile: OperandTile, thread: int, per_row: int, row_step: int) -> tuple[int, int] | None:
    """Return the (row, column) of a thread's chunk in a pass, or None if it has no chunk."""
    row, column = thread // per_row, thread % per_row * tile.chunk
    return (row, column) if row < row_step else None


# ==== Costs, counted on the addresses of a launch ====


_ADVERSARY = Adversary("late", "round_robin", 1)
_BARRIER, _MMA = "cta_barrier", "mma"
_COSTS_WARP = 32
_UNPLACED = ("tma", "by_hand")
"""Copies whose bank conflicts are not predicted: those of the TMA, and of handwritten kernels."""


@dataclass(frozen=True)
class Costs:
    """The costs of one CTA: per k-tile, and outside the mainloop.

    Units: `mma_per_k_tile` counts tensor instructions per warp, or per warpgroup for wgmma; sectors are 32 bytes of global
        memory; conflicts are passes of shared memory beyond the minimum.
    """

    mma_per_k_tile: float
    barriers_per_k_tile: float
    bytes_per_k_tile: float
    read_conflicts_per_k_tile: float
    copy_conflicts_per_k_tile: float
    epilogue_conflicts: float
    sectors_per_request: float
    least_sectors_per_request: float


def count(kernel: EmulatedKernel, spec: Mapping[str, Any]) -> tuple[Costs, list[dict[str, Any]]]:
    """Count two launches with k-tiles that differ by one. Return the costs, and the sites of the longer launch."""
    shorter, longer = (_counted(kernel, int(spec["stages"]) + extra) for extra in (1, 2))
    ctas = kernel.traits.splits * kernel.traits.cluster_ctas
    before = {_key(site): site for site in shorter.sites}
    steps = [(site, _less(site, before.get(_key(site)))) for site in longer.sites]
    beside = [site for site, step in steps if not step.requests]
    counters = {name: total - shorter.counters.get(name, 0) for name, total in longer.counters.items()}
    touching = [site for site in longer.sites if site.sectors]
    requests = sum(site.requests for site in touching) or 1
    costs = Costs(
        mma_per_k_tile=sum(n for name, n in counters.items() if _MMA in name) / (ctas * _issuers(kernel.traits, spec)),
        barriers_per_k_tile=counters.get(_BARRIER, 0) / ctas,
        bytes_per_k_tile=sum(step.bytes for _, step in steps if step.sectors) / ctas,
        read_conflicts_per_k_tile=sum(_conflicts(step) for _, step in steps if _reads(step)) / ctas,
        copy_conflicts_per_k_tile=sum(_conflicts(step) for _, step in steps if not _reads(step)) / ctas,
        epilogue_conflicts=sum(map(_conflicts, beside)) / ctas,
        sectors_per_request=sum(site.sectors for site in touching) / requests,
        least_sectors_per_request=sum(site.ideal_sectors for site in touching) / requests,
    )
    return costs, [asdict(site) for site in longer.sites]


def _issuers(traits: LaunchTraits, spec: Mapping[str, Any]) -> int:
    """Return the number of warps, or warpgroups for wgmma, that compute a tile together."""
    consumers = int(spec.get("consumers", 0))
    if not consumers and "warp_tile" not in spec:  # handwritten
        return traits.threads // _COSTS_WARP
    if not consumers:
        tile, warp = Tile.parse(spec["cta_tile"]), WarpTile.parse(spec["warp_tile"])
        return tile.m // warp.m * (tile.n // warp.n)
    return consumers if spec["cooperation"] == "cooperative" else 1


def _counted(kernel: EmulatedKernel, k_tiles: int) -> Report:
    case = measured_case(kernel.traits, k_tiles)
    alone = replace(kernel, adversaries=(_ADVERSARY,), workers=1, reports=[])
    trial = Trial(alone, case, HostMemory(), CheckOptions(data=("integer",), twice=False), "integer")
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
    """Tell whether a source line of the mainloop reads fragments."""
    return site.kind in ("ldmatrix", "wmma_load") or (site.kind, site.space) == ("load", "shared")


def _conflicts(site: Site) -> int:
    return site.wavefronts - site.ideal_wavefronts


def _loads(traits: LaunchTraits, operand: str) -> int:
    """Return how often each byte of a k-tile is loaded. Unaligned copies combine two vectors."""
    return 2 if traits.copies_unaligned(operand) else 1


def disagreements(costs: Costs, traits: LaunchTraits, spec: Mapping[str, Any], mma_per_k_tile: int) -> Iterator[str]:
    """Yield the counts that differ from the plan and the layouts."""
    expected: dict[str, float] = {
        "mma_per_k_tile": mma_per_k_tile,
        "bytes_per_k_tile": traits.tile_k
        * (
            traits.tile_m * DTYPES[traits.dtype_a].bytes * _loads(traits, "a")
            + traits.tile_n * DTYPES[traits.dtype_b].bytes * _loads(traits, "b")
        ),
    }
    if int(spec.get("consumers", 0)):
        expected["copy_conflicts_per_k_tile"] = 0  # boxes in shared memory
    elif spec["copy"] not in _UNPLACED:
        placement = placement_of(spec)
        expected["read_conflicts_per_k_tile"] = placement.read_conflicts
        if placement.copies_are_even:
            expected["copy_conflicts_per_k_tile"] = placement.copy_conflicts
    for name, value in expected.items():
        found = getattr(costs, name)
        if found != value:
            yield f"{name.replace('_', ' ')}: counted {found:g}, planned {value:g}"
