"""A plan to what inspection must find in the binary."""

from __future__ import annotations

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.build.inspect import Expectation
from generator.families.mma_sync import expectation as mma_sync
from generator.families.mma_sync_tma import expectation as mma_sync_tma
from generator.families.sm90 import expectation as sm90
from generator.plan import Plan

_EXPECTATIONS = {
    MMA_SYNC: mma_sync.expectation_of,
    MMA_SYNC_TMA: mma_sync_tma.expectation_of,
    WGMMA_SM90: sm90.expectation_of,
}


def expectation_of(plan: Plan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    return _EXPECTATIONS[plan.spec.family](plan, allow_spills)
