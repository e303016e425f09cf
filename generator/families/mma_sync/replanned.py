"""The way out of other families: the same problem on mma.sync with tiles that every thread copies, planned anew."""

from __future__ import annotations

from collections.abc import Iterator

from generator.families.mma_sync.defaults import resolve
from generator.families.plan import Plan
from generator.families.ways_out import Change
from generator.spec import Request, Schedule

_OF_THE_PROBLEM = (
    "arch dtype_a dtype_b acc dtype_d layout beta bias activation align_a align_b align_d schedule".split()
)
_KEPT = (("form", "cta_tile", "raster"), ("form",), ())
"""What is kept of the rest, where that is legal."""


def on_mma_sync(plan: Plan) -> Iterator[Change]:
    """Yield the change to mma.sync, which takes any alignment and size: at first one that keeps form and tile."""
    for names in _KEPT:
        old, new = plan.spec.to_dict(), resolve(_problem(plan, names)).to_dict()
        yield {name: str(value) for name, value in new.items() if value != old[name]}


def _problem(plan: Plan, names: tuple[str, ...]) -> Request:
    spec = plan.spec
    kept = {name: getattr(spec, name) for name in (*_OF_THE_PROBLEM, *names)}
    if spec.schedule.kind == "split_k_cluster":
        kept["schedule"] = Schedule("split_k", spec.schedule.splits)
    return kept
