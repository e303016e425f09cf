"""Changes of a spec on mma.sync and TMA that may mend it, nearest first."""

from __future__ import annotations

from collections.abc import Iterator

from generator.families.mma_sync.ways_out import smaller_cta_tiles
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.families.ways_out import Change

STAGES = range(2, 17)
"""One that is read while another is filled, and what keeps loads in flight."""


def fewer_stages(plan: Plan) -> Iterator[Change]:
    """As many stages as there may be, and fewer."""
    most = min(max(plan.spec.stages, STAGES[0]), STAGES[-1])
    return ({"stages": str(stages)} for stages in range(most, STAGES[0] - 1, -1))


def less_shared_memory(plan: Plan) -> Iterator[Change]:
    """Fewer stages, fewer CTAs an SM, no staging of D; then a smaller tile."""
    yield from fewer_stages(plan)
    fewer = [{"ctas_per_sm": str(ctas)} for ctas in range(plan.spec.ctas_per_sm - 1, 0, -1)]
    yield from fewer
    yield from ({**change, "store": "direct"} for change in [{}, *fewer_stages(plan)])
    yield from ({**change, "stages": str(STAGES[0])} for change in fewer)
    yield from ({**tile, "stages": str(STAGES[0]), "ctas_per_sm": "1"} for tile in smaller_cta_tiles(plan))
