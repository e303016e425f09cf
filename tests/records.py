"""Valid records with made-up artefacts, for tests that need a library and no compiler."""

from __future__ import annotations

import hashlib
from typing import Any

from generator.errors import RequestError
from generator.families.base import Plan
from generator.planner import plan_of
from generator.spec import Spec, parse_field
from hgemm.record import ARTEFACTS, SCHEMA

SPEC = {
    "arch": "sm_89",
    "dtype_a": "f16",
    "dtype_b": "f16",
    "acc": "f32",
    "dtype_d": "f16",
    "layout": "tn",
    "cta_tile": "128x128x32",
    "warp_tile": "64x64",
    "mma": "m16n8k16",
    "stages": 3,
    "fragment_stages": 2,
    "copy": "cp_async",
    "smem_a": "xor:2,3,3",
    "smem_b": "xor:2,3,3",
    "mma_order": "zigzag",
    "raster": "group:8",
    "schedule": "one_tile",
    "ctas_per_sm": 2,
    "beta": False,
    "bias": "none",
    "activation": "none",
    "store": "smem",
    "align_a": 8,
    "align_b": 8,
    "align_d": 8,
}
RESOURCES = {
    "registers": 128,
    "spill_bytes": 0,
    "stack_bytes": 0,
    "smem_bytes": 49152,
    "ctas_per_sm": 2,
    "warps_per_sm": 8,
    "occupancy": 0.25,
}


def make_artefacts(symbol: str) -> dict[str, bytes]:
    """Return the artefacts of a made-up kernel: a few bytes each that name it."""
    return {name: f"{name} of {symbol}\n".encode() for name in ARTEFACTS}


def resources_of(plan: Plan, ctas_per_sm: int) -> dict[str, Any]:
    """Return made-up resources that agree with the launch of a plan."""
    warps_per_sm = ctas_per_sm * plan.threads // 32
    return {**RESOURCES, "smem_bytes": plan.smem_bytes, "ctas_per_sm": ctas_per_sm, "warps_per_sm": warps_per_sm}


def _is_known(name: str, value: Any) -> bool:
    try:
        parse_field(name, str(value))
    except RequestError:
        return False
    return True


def make_record(
    symbol: str, artefacts: dict[str, bytes] | None = None, **overrides: Any
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return a valid record and the artefacts that it describes. Its launch and traits are those that its spec plans.

    An override named as a field of the spec or the resources replaces that one; any other replaces a top field.
    """
    files = make_artefacts(symbol) if artefacts is None else artefacts
    fields = (*SPEC, "epilogue")
    spec = {**SPEC, **{name: value for name, value in overrides.items() if name in fields}}
    tile_m, tile_n, _ = map(int, spec["cta_tile"].split("x"))
    spec["warp_tile"] = f"{min(tile_m, 64)}x{min(tile_n, 64)}"
    plan = plan_of(
        Spec.from_dict({name: value if _is_known(name, value) else SPEC[name] for name, value in spec.items()})
    )
    resources = resources_of(plan, overrides.get("ctas_per_sm", RESOURCES["ctas_per_sm"]))
    resources |= {name: value for name, value in overrides.items() if name in RESOURCES}
    record = {
        "schema": SCHEMA,
        "symbol": symbol,
        "alias": "cutlass_tensorop_s16816gemm_f16_128x128_32x3_tn_align8",
        "key": hashlib.sha256(symbol.encode()).hexdigest(),
        "arch": spec["arch"],
        "spec": spec,
        "toolchain": {"nvrtc": "13.0", "cutlass": "4.2.0", "generator": "0.1.0", "options": ["-arch=sm_89"]},
        "inputs": {"mma_sync/kernel.cuh": hashlib.sha256(b"template").hexdigest()},
        "files": {name: _described(content) for name, content in files.items()},
        "launch": plan.launch(),
        "resources": resources,
        "sass": {"HMMA": 128, "LDSM": 32, "LDGSTS": 16},
        "proof": {},
        "traits": plan.traits(),
        "seconds": {"emit": 0.001, "compile": 0.95, "inspect": 0.12},
        "spilled": False,
    }
    named = {name: value for name, value in overrides.items() if name not in fields and name not in RESOURCES}
    return {**record, **named}, files


def _described(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
