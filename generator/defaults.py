"""Planning: every field that a request leaves open gets the value that measurements and limits recommend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generator.arch import ARCHS
from generator.errors import RequestError
from generator.layouts import OperandTile, conflict_free
from generator.plan import Plan
from generator.spec import Request, Spec
from generator.values import Raster, Schedule, Smem, Tile, WarpTile

WARP_EXTENTS_M = (16, 32, 48, 64, 80, 96, 112, 128)
WARP_EXTENTS_N = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
MAX_EXTENT = 256
"""The largest extent of a legal CTA tile (generator.rules)."""

TARGET_WARPS = 4
"""Warps a CTA at least, where the tile allows it: one for each of an SM's four schedulers."""


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`; the result may still be illegal, which generator.rules judges.

    Raises: RequestError where no architecture is named.
    """
    if "arch" not in request:
        raise RequestError("arch is missing: name one or more, as in --arch sm_89 or --arch sm_80,sm_90")
    fields = {**_plain(request), **request}
    for name, choose in _CHOICES.items():
        if name not in fields:
            fields[name] = choose(Plan(Spec(**{**_MODEST, **fields})))
    return Spec(**fields)


def _plain(request: Request) -> Request:
    """Defaults that depend on nothing but the types."""
    dtype = request.get("dtype_a", request.get("dtype_b", "f16"))
    return {
        "dtype_a": dtype,
        "dtype_b": request.get("dtype_b", dtype),
        "acc": "f32",
        "dtype_d": dtype,
        "layout": "tn",
        "cta_tile": Tile(128, 128, 32),
        "mma": "m16n8k16",
        "copy": "cp_async",
        "mma_order": "zigzag",
        "raster": Raster("group", 8),
        "schedule": Schedule("one_tile"),
        "beta": True,
        "bias": "none",
        "activation": "none",
        "store": "smem",
        "align_a": 8,
        "align_b": 8,
        "align_d": 8,
    }


def _warp_tile(plan: Plan) -> WarpTile:
    """Return the warp tile with the most work a loaded byte that keeps its accumulators in registers.

    A tile with no legal division gets itself, for the rules to refuse.
    """
    tile = plan.spec.cta_tile
    largest = 64 * 128 if plan.spec.acc == "f16" else 64 * 64
    candidates = [
        WarpTile(m, n)
        for m in WARP_EXTENTS_M
        for n in WARP_EXTENTS_N
        if tile.m % m == 0 and tile.n % n == 0 and m * n <= largest and (tile.m // m) * (tile.n // n) <= 16
    ]

    def merit(warp: WarpTile) -> tuple:
        warps = (tile.m // warp.m) * (tile.n // warp.n)
        return (min(warps, TARGET_WARPS), warp.m * warp.n / (warp.m + warp.n), -abs(warp.m - 64), warp.m)

    return max(candidates, key=merit, default=WarpTile(min(tile.m, 64), min(tile.n, 64)))


def _smem(tile: OperandTile) -> Smem:
    if tile.columns < tile.chunk or max(tile.rows, tile.columns) > MAX_EXTENT:
        return Smem("none")  # of a tile that the rules refuse
    return conflict_free(tile.k_major, tile.rows, tile.columns, tile.chunk, tile.threads)


def _fragment_stages(plan: Plan) -> int:
    """Read fragments ahead where the registers allow it."""
    ahead = plan.having(fragment_stages=2)
    return 2 if plan.spec.stages > 1 and ahead.needed_registers <= ahead.max_registers else 1


def _ctas_per_sm(plan: Plan) -> int:
    """Two CTAs an SM where threads, registers and shared memory allow them, to work while the other waits."""
    pair = plan.having(ctas_per_sm=2)
    limits = ARCHS[plan.spec.arch].limits
    smem_bytes = 2 * (plan.smem_bytes + limits.smem_reserved_bytes_per_cta)
    fits = smem_bytes <= limits.smem_bytes_per_sm and 2 * plan.threads <= limits.warps_per_sm * 32
    return 2 if fits and pair.needed_registers <= pair.max_registers else 1


def _stages(plan: Plan) -> int:
    """As many stages as fit beside the other CTAs of the SM, 2 to 4."""
    limits = ARCHS[plan.spec.arch].limits
    share = limits.smem_bytes_per_sm // plan.spec.ctas_per_sm - limits.smem_reserved_bytes_per_cta
    return max(2, min(4, min(share, limits.smem_bytes_per_cta) // max(1, plan.stage_bytes)))


_MODEST: Request = {
    "warp_tile": WarpTile(64, 64),
    "smem_a": Smem("none"),
    "smem_b": Smem("none"),
    "stages": 2,
    "fragment_stages": 1,
    "ctas_per_sm": 1,
}
"""What stands for a field while the fields before it are chosen."""

_CHOICES: dict[str, Callable[[Plan], Any]] = {
    "warp_tile": _warp_tile,
    "smem_a": lambda plan: _smem(plan.a),
    "smem_b": lambda plan: _smem(plan.b),
    "fragment_stages": _fragment_stages,
    "ctas_per_sm": _ctas_per_sm,
    "stages": _stages,
}
"""How a field is chosen, in this order, each from the fields before it."""
