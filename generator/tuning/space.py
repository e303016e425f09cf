"""The specs among which a problem's best is searched: a table for each family, in the form of `--spec` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from generator.arch import ARCHS
from generator.commands.options import Texts
from generator.naming import symbol_of
from generator.plan import Plan
from generator.sweep import over, read_spec_file, sweep
from hgemm.bench.work import Work
from hgemm.kinds import Kind
from hgemm.plan import with_leading
from hgemm.problem import Problem
from hgemm.select import Wanted
from hgemm.target import Target

FOLDER = Path(__file__).resolve().parent
TMA_ALIGN = 8
"""Elements that TMA wants of f16 operands: 16 bytes. Source: CUDA Driver API 13.x, cuTensorMapEncodeTiled."""


def archs_of(target: Target) -> tuple[str, ...]:
    """Return the architectures whose own code runs on a device, the one with most instructions first."""
    return tuple(sorted((arch.name for arch in ARCHS.values() if arch.number == target.number), reverse=True))


def plans_for(work: Work, archs: Sequence[str], space: Path | None) -> dict[str, Plan]:
    """Return the legal plans by symbol; `space` is a file of the user's in the place of the tables.

    Raises: RequestError where that file is malformed.
    """
    kind = Kind(work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.acc)
    wanted = Wanted.of(kind, with_leading(Problem(*work.extents), kind))
    aligns = (wanted.align_a, wanted.align_b, wanted.align_d)
    return _plans(kind, aligns, tuple(archs), space)


@cache
def _plans(kind: Kind, aligns: tuple[int, int, int], archs: tuple[str, ...], space: Path | None) -> dict[str, Plan]:
    requests: list[Texts] = []
    for arch in archs:
        fast = ARCHS[arch].has_wgmma and min(aligns) >= TMA_ALIGN
        table = space or FOLDER / ("wgmma.toml" if fast else "mma_sync.toml")
        if ARCHS[arch].has_wgmma and not fast and not space:
            continue  # the architecture without a letter has the same kernels, and they run on more
        requests += [over(group, _given(kind, aligns, arch)) for group in read_spec_file(table)]
    return {symbol_of(plan.spec): plan for plan in sweep(requests).plans}


def _given(kind: Kind, aligns: tuple[int, int, int], arch: str) -> Texts:
    """Return what the problem decides."""
    return {
        "arch": arch,
        **{name: getattr(kind, name) for name in ("layout", "dtype_a", "dtype_b", "acc")},
        "out": kind.dtype_d,
        **{f"align_{name}": str(align) for name, align in zip("abd", aligns)},
    }


def planned_record(plan: Plan) -> Mapping[str, Any]:
    """Return what the record of a variant will say of how it is launched; as many CTAs share an SM as are planned."""
    return {
        "symbol": symbol_of(plan.spec),
        "arch": plan.spec.arch,
        "spec": plan.spec.to_dict(),
        "launch": plan.launch(),
        "traits": plan.traits(),
        "resources": {"ctas_per_sm": plan.spec.ctas_per_sm},
    }
