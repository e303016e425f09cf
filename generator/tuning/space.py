"""The specs that `hgemm tune` searches: a table per family, in the format of `--spec` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from generator.arch import ARCHS
from generator.families.base import Plan
from generator.layouts import ASYNC_BYTES
from generator.naming import symbol_of
from generator.spec import Texts
from generator.sweep import over, read_spec_file, sweep
from hgemm.bench.work import Work
from hgemm.dtypes import DTYPES
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target

FOLDER = Path(__file__).resolve().parent
TMA_ALIGN_BYTES = 16
"""Alignment that TMA requires. Source: CUDA Driver API 13.x, cuTensorMapEncodeTiled."""
TABLE_BYTES = 2
"""The tables list tiles for elements of 2 bytes. Tiles of larger elements have as many bytes along k, and fewer elements."""


def archs_of(target: Target) -> tuple[str, ...]:
    """Return the architectures whose code runs on a device, the one with the most instructions first."""
    return tuple(sorted((arch.name for arch in ARCHS.values() if arch.number == target.number), reverse=True))


def plans_for(work: Work, archs: Sequence[str], space: Path | None) -> dict[str, Plan]:
    """Return the legal plans by symbol. `space` is a file that replaces the tables.

    Raises: RequestError if that file is malformed.
    """
    kind = Kind(work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.acc)
    query = SelectionQuery.dense(kind, work.extents)
    aligns = (query.align_a, query.align_b, query.align_d)
    return _plans(kind, aligns, tuple(archs), space)


@cache
def _plans(kind: Kind, aligns: tuple[int, int, int], archs: tuple[str, ...], space: Path | None) -> dict[str, Plan]:
    requests: list[Texts] = []
    for arch in archs:
        groups = read_spec_file(space or _table(kind, aligns, arch))
        groups = groups if space else [_scaled_to_bytes(group, DTYPES[kind.dtype_a].bytes) for group in groups]
        requests += [over(group, _problem_fields(kind, aligns, arch)) for group in groups]
    return {symbol_of(plan.spec): plan for plan in sweep(requests).plans}


def _table(kind: Kind, aligns: tuple[int, int, int], arch: str) -> Path:
    """Return the table for operands with these alignments."""
    if ARCHS[arch].has_wgmma:
        return FOLDER / "wgmma.toml"
    narrow = min(aligns[0] * DTYPES[kind.dtype_a].bytes, aligns[1] * DTYPES[kind.dtype_b].bytes) < ASYNC_BYTES
    return FOLDER / ("unaligned.toml" if narrow else "mma_sync.toml")


def _scaled_to_bytes(group: Texts, size: int) -> Texts:
    """Return a group of a table for elements of `size` bytes."""
    tiles = (tile.rsplit("x", 1) for tile in group["tile"].split(","))
    return {**group, "tile": ",".join(f"{tile}x{int(k) * TABLE_BYTES // size}" for tile, k in tiles)}


def _problem_fields(kind: Kind, aligns: tuple[int, int, int], arch: str) -> Texts:
    """Return the options that the problem decides. Alignments of 16 bytes stay open."""
    return {
        "arch": arch,
        **{name: getattr(kind, name) for name in ("layout", "dtype_a", "dtype_b", "acc")},
        "out": kind.dtype_d,
        **_narrow_alignments(kind, aligns),
    }


def _narrow_alignments(kind: Kind, aligns: tuple[int, int, int]) -> Texts:
    """Return the alignments below 16 bytes."""
    sizes = [DTYPES[dtype].bytes for dtype in (kind.dtype_a, kind.dtype_b, kind.dtype_d)]
    found = zip("abd", aligns, sizes)
    return {f"align_{name}": str(align) for name, align, size in found if align * size < TMA_ALIGN_BYTES}


def planned_record(plan: Plan) -> Mapping[str, Any]:
    """Return the part of a variant's record that the cost model reads, with the planned CTAs per SM."""
    return {
        "symbol": symbol_of(plan.spec),
        "arch": plan.spec.arch,
        "spec": plan.spec.to_dict(),
        "launch": plan.launch(),
        "traits": plan.traits(),
        "resources": {"ctas_per_sm": plan.spec.ctas_per_sm},
    }
