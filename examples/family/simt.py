"""Kernels on FFMA, without tensor cores: planned and explained, but not generated yet."""

from __future__ import annotations

from typing import Any

from generator.families.base import IN_ORDER, Expectation, Family, Plan, Rule, problem_fields
from generator.spec import Raster, Request, Schedule, Smem, Spec, Tile, WarpTile

NAME = "simt"
THREADS = 256


# ==== Plan: the numbers that follow from a spec ====


class SimtPlan(Plan):
    """One kernel. Each thread computes 1/256 of the CTA tile."""

    instruction = "fma.rn.f32"
    mma_opcode = "FFMA"
    mma_k, k_order = 1, IN_ORDER
    fixed_fields = {"copy": "cp_async", "store": "direct"}
    threads = THREADS
    max_registers = 255
    bank_conflicts = 0

    @property
    def stage_bytes(self) -> int:
        tile = self.spec.cta_tile
        return (tile.m + tile.n) * tile.k * self.spec.operand_bytes

    @property
    def smem_bytes(self) -> int:
        return self.spec.stages * self.stage_bytes

    @property
    def accumulator_registers(self) -> int:
        return self.spec.cta_tile.m * self.spec.cta_tile.n // THREADS

    @property
    def needed_registers(self) -> int:
        return self.accumulator_registers + 40

    @property
    def mma_per_k_tile(self) -> int:
        return self.accumulator_registers * self.spec.cta_tile.k

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that --explain shows."""
        names = ("threads", "smem_bytes", "accumulator_registers", "needed_registers", "max_registers")
        return {name: getattr(self, name) for name in names}

    def placements(self) -> dict[str, Any]:
        """Return what --explain shows about the operands in shared memory."""
        return {}


# ==== Defaults: a value for each field that the user leaves open ====

DEFAULTS = {
    "mma": "fma",
    "cta_tile": Tile(128, 128, 16),
    "warp_tile": WarpTile(32, 64),
    "stages": 3,
    "fragment_stages": 1,
    "copy": "cp_async",
    "smem_a": Smem("none"),
    "smem_b": Smem("none"),
    "mma_order": "row",
    "raster": Raster("group", 8),
    "schedule": Schedule("one_tile"),
    "ctas_per_sm": 1,
    "store": "direct",
}


def resolve(request: Request) -> Spec:
    """Fill in every open field."""
    return Spec(**{**problem_fields(request), **DEFAULTS, **request})


# ==== Rules: a check returns the violation or None; the changes are tried as fixes, the nearest first ====


def shared_memory(plan: SimtPlan) -> str | None:
    if plan.smem_bytes <= plan.max_smem_bytes:
        return None
    return f"needs {plan.smem_bytes:,} B of shared memory; {plan.spec.arch} allows {plan.max_smem_bytes:,} B"


def registers(plan: SimtPlan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    return f"needs about {plan.needed_registers} registers per thread; the limit is {plan.max_registers}"


RULES = (
    Rule("shared_memory", shared_memory, lambda plan: [{"stages": str(n)} for n in range(plan.spec.stages - 1, 0, -1)]),
    Rule("registers", registers, lambda plan: [{"cta_tile": "128x128x16"}]),
)


# ==== Inspection: what the SASS must contain ====


def expectation(plan: SimtPlan, allow_spills: bool) -> Expectation:
    raise NotImplementedError("the family has no kernel to inspect yet")


FAMILY = Family(
    name=NAME,
    mma=("fma",),
    owns=lambda mma, copy: mma == "fma",
    supports=lambda arch: True,
    plan=SimtPlan,
    resolve=resolve,
    rules=RULES,
    alias=lambda spec: "",
    expectation=expectation,
    claims={"mma": lambda mma: mma == "fma"},
    objection=lambda request: "it is used only with --mma fma",
    missing="it needs a kernel in templates/simt",
)
