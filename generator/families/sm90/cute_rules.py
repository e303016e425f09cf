"""What of a spec on TMA and wgmma its kernel in CuTe cannot say, and why not."""

from __future__ import annotations

from generator.families.rules import Rule, adder
from generator.families.sm90.plan import WgmmaPlan as Plan

_ATOMS = {"form": "atoms"}
"""The other form, in which every field is served."""

RULES: list[Rule] = []
rule = adder(RULES)


@rule(lambda plan: [_ATOMS, {"copy": "tma"}])
def cute_copy(plan: Plan) -> str | None:
    return f"form cute has no copy {plan.spec.copy} on wgmma" if plan.spec.form == "cute" and plan.copied else None


@rule(lambda plan: [{"schedule": "persistent"}, _ATOMS])
def cute_schedule(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or plan.spec.schedule.kind == "persistent":
        return None
    if plan.spec.schedule.kind == "one_tile":
        return "form cute with one_tile: ptxas serialises wgmma (C7515), as sums are set before the first product"
    return f"form cute has no {plan.spec.schedule}: its accumulators stay in one CTA"
