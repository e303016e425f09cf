"""Valid records with made-up artefacts, for tests that need a library and no compiler."""

from __future__ import annotations

import hashlib
from typing import Any

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
    """Return the artefacts of a made-up variant: a few bytes each that name it."""
    return {name: f"{name} of {symbol}\n".encode() for name in ARTEFACTS}


def make_record(
    symbol: str, artefacts: dict[str, bytes] | None = None, **overrides: Any
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return a valid record and the artefacts that it describes.

    An override named as a field of the spec or the resources replaces that one; any other replaces a top field.
    """
    files = make_artefacts(symbol) if artefacts is None else artefacts
    spec = {**SPEC, **{name: value for name, value in overrides.items() if name in SPEC}}
    resources = {**RESOURCES, **{name: value for name, value in overrides.items() if name in RESOURCES}}
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
        "launch": {
            "threads": 128,
            "smem_bytes": 49152,
            "cluster": [1, 1, 1],
            "grid": {"rule": "tiles", "tile_m": 128, "tile_n": 128, "splits": 1},
        },
        "resources": resources,
        "sass": {"HMMA": 128, "LDSM": 32, "LDGSTS": 16},
        "proof": {},
        "traits": {
            "deterministic": True,
            "workspace": {"bytes_per_tile": 0},
            "graph_safe": True,
            "min_align": {"a": 8, "b": 8, "d": 8},
            "exact_tiles_only": False,
        },
        "seconds": {"emit": 0.001, "compile": 0.95, "inspect": 0.12},
        "spilled": False,
    }
    named = {name: value for name, value in overrides.items() if name not in SPEC and name not in RESOURCES}
    return {**record, **named}, files


def _described(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
