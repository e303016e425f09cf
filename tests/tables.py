"""Dispatch tables without a compiler: planned records of the shipped catalog, and of kernels of each kind."""

from __future__ import annotations

from functools import cache
from typing import Any

from generator.build.emit import EmittedKernel
from generator.build.pipeline import planned_sections
from generator.catalog import catalog_kernels
from hgemm.dispatch_table import DispatchTable


def record_of(kernel: EmittedKernel) -> dict[str, Any]:
    """Return what selection reads of a kernel's record."""
    return {**planned_sections(kernel), "resources": {"ctas_per_sm": kernel.plan.spec.ctas_per_sm}}


@cache
def shipped_kernels() -> list[EmittedKernel]:
    """Return every kernel of the catalog, planned once a process; not to be changed."""
    return catalog_kernels()


@cache
def catalog_records() -> tuple[dict[str, Any], ...]:
    return tuple(record_of(kernel) for kernel in shipped_kernels())


@cache
def catalog_table() -> DispatchTable:
    """Return the table of the whole catalog."""
    return DispatchTable.of(catalog_records())
