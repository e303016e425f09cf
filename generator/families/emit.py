"""The values that the templates of all families take."""

from __future__ import annotations

from typing import Any

from generator.families.plan import Plan


def common_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return them by name: types, tile, order of the work, epilogue, and the numbers that every kernel asserts."""
    spec = plan.spec
    return {
        "symbol": symbol,
        "dtype_in": spec.dtype_a,
        "dtype_d": spec.dtype_d,
        "acc": spec.acc,
        "tile_m": spec.cta_tile.m,
        "tile_n": spec.cta_tile.n,
        "tile_k": spec.cta_tile.k,
        "threads": plan.threads,
        "stages": spec.stages,
        "schedule": spec.schedule.kind,
        "raster": spec.raster.kind,
        "splits": spec.schedule.splits,
        "raster_tiles": plan.raster_tiles,
        "beta": boolean(spec.beta),
        "bias": spec.bias,
        "activation": spec.activation,
        "align_d": spec.align_d,
        "smem_bytes": plan.smem_bytes,
        "mma_per_k_tile": plan.mma_per_k_tile,
    }


def boolean(value: bool) -> str:
    """Write a truth value as C++ does."""
    return "true" if value else "false"
