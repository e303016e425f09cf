"""A compiled and inspected kernel to the document that describes it in a library."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from generator import __version__
from generator.binary.inspect import Inspection
from generator.compile import Compiled, versions_of
from generator.emit import Kernel
from generator.plan import Plan
from generator.toolchain import Headers
from hgemm.record import CUBIN_NAME, PTX_NAME, SCHEMA

_LOCAL_MEMORY = ("LDL", "STL")
_NOT_PROVABLE = "the executor runs no module of CuTe DSL: compare it on a device"


def planned(kernel: Kernel) -> dict[str, Any]:
    """Return the sections of a record that a plan alone decides."""
    plan = kernel.plan
    return {
        "schema": SCHEMA,
        "symbol": kernel.symbol,
        "alias": kernel.alias,
        "arch": plan.spec.arch,
        "spec": plan.spec.to_dict(),
        "launch": plan.launch(),
        "traits": plan.traits(),
    }


def artefacts_of(kernel: Kernel, compiled: Compiled) -> dict[str, bytes]:
    """Return the files of a variant beside its record."""
    return {kernel.source_name: kernel.source.encode(), CUBIN_NAME: compiled.cubin, PTX_NAME: compiled.ptx}


def document(
    kernel: Kernel,
    headers: Headers,
    key: str,
    compiled: Compiled,
    inspection: Inspection,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Return the record of a variant: what was planned, what it was made from, and what was found in it."""
    return {
        **planned(kernel),
        "key": key,
        "toolchain": {**versions_of(kernel), "options": [*compiled.options], "generator": __version__},
        "inputs": headers.hashes(),
        "files": {name: _described(content) for name, content in artefacts_of(kernel, compiled).items()},
        "resources": asdict(inspection.resources),
        "sass": inspection.sass,
        "proof": _proof(kernel.plan, inspection),
        "seconds": seconds,
        "spilled": spills(inspection),
    }


def spills(inspection: Inspection) -> bool:
    """Tell whether a kernel uses local memory, for spilled registers or for arrays."""
    resources = inspection.resources
    return bool(resources.spill_bytes or resources.stack_bytes or any(map(inspection.sass.get, _LOCAL_MEMORY)))


def _proof(plan: Plan, inspection: Inspection) -> dict[str, Any]:
    """Return what is proved of a kernel before it runs; bank conflicts are those of one stage."""
    apart = {} if inspection.store_spacing is None else {"mma_between_stores": inspection.store_spacing}
    unproved = {"unproved": _NOT_PROVABLE} if plan.spec.form == "dsl" else {}
    return {"mma_per_tile": plan.mma_per_k_tile, "bank_conflicts": plan.bank_conflicts, **apart, **unproved}


def _described(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
