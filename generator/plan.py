"""The numbers that follow from a spec, worked out once by its family and asserted by the emitted kernel."""

from __future__ import annotations

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.families.mma_sync.plan import MmaSyncPlan
from generator.families.mma_sync_tma.plan import TmaPlan
from generator.families.plan import Plan
from generator.families.sm90.plan import WgmmaPlan
from generator.spec import Spec

__all__ = ["Plan", "plan_of"]

_PLANS = {MMA_SYNC: MmaSyncPlan, MMA_SYNC_TMA: TmaPlan, WGMMA_SM90: WgmmaPlan}


def plan_of(spec: Spec) -> Plan:
    """Return the plan of a spec, of the kind that its family has."""
    return _PLANS[spec.family](spec)
