"""A plan to the text of its kernel: one include, one Policy of constants, the assertions, one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from generator.layouts import OperandTile
from generator.naming import alias_of, symbol_of
from generator.plan import Plan

ENTRY_HEADER = "hgemm/gemm_sm80.cuh"


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, byte for byte the same for the same spec, and its names."""

    plan: Plan
    symbol: str
    alias: str
    source: str


def emit(plan: Plan, templates: Path) -> Kernel:
    """Write the kernel of a validated plan, from `kernel.cu.j2` in the folder `templates`."""
    symbol = symbol_of(plan.spec)
    source = _template(templates).render(_values(plan, symbol))
    return Kernel(plan, symbol, alias_of(plan.spec), source)


@cache
def _template(folder: Path) -> Template:
    environment = Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return environment.get_template("kernel.cu.j2")


def _values(plan: Plan, symbol: str) -> dict:
    spec = plan.spec
    return {
        "symbol": symbol,
        "summary": _summary(plan),
        "dtype_in": spec.dtype_a,
        "dtype_d": spec.dtype_d,
        "acc": spec.acc,
        "tile_m": spec.cta_tile.m,
        "tile_n": spec.cta_tile.n,
        "tile_k": spec.cta_tile.k,
        "warp_m": spec.warp_tile.m,
        "warp_n": spec.warp_tile.n,
        "warps_m": plan.warps_m,
        "warps_n": plan.warps_n,
        "threads": plan.threads,
        "mma_k": plan.mma_k,
        "stages": spec.stages,
        "fragment_stages": spec.fragment_stages,
        "zigzag": _bool(spec.mma_order == "zigzag"),
        "a": _operand(plan.a, "m"),
        "b": _operand(plan.b, "n"),
        "schedule": spec.schedule.kind,
        "raster": spec.raster.kind,
        "splits": spec.schedule.splits,
        "raster_tiles": plan.raster_tiles,
        "beta": _bool(spec.beta),
        "store_through_shared": _bool(spec.store == "smem"),
        "bias": spec.bias,
        "activation": spec.activation,
        "align_d": spec.align_d,
        "epilogue_pitch": plan.epilogue_pitch,
        "epilogue_odd_words": plan.epilogue_odd_words,
        "smem_bytes": plan.smem_bytes,
        "mainloop_bytes": spec.stages * plan.stage_bytes,
        "mma_per_k_tile": plan.mma_per_k_tile,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(tile: OperandTile, extent: str) -> dict:
    return {
        "k_major": _bool(tile.k_major),
        "contiguous": "k" if tile.k_major else extent,
        "align": tile.chunk,
        "pitch": tile.pitch,
        "swizzle": tile.smem.swizzle,
    }


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _summary(plan: Plan) -> str:
    spec = plan.spec
    return (
        f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
        f"warp tile {spec.warp_tile}, {spec.stages} stages, {plan.threads} threads, {plan.smem_bytes} B of shared memory."
    )
