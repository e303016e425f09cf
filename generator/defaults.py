"""Planning: the family that a request asks for, which fills in every field that is left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generator.arch import ARCHS, MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.errors import RequestError
from generator.families.defaults import problem_fields
from generator.families.mma_sync import defaults as mma_sync
from generator.families.mma_sync_tma import defaults as mma_sync_tma
from generator.families.sm90 import defaults as sm90
from generator.families.sm90.plan import WgmmaPlan
from generator.layouts import ASYNC_BYTES
from generator.spec import DTYPE_BYTES, Request, Spec, family_of_mma

_RESOLVERS = {MMA_SYNC: mma_sync.resolve, MMA_SYNC_TMA: mma_sync_tma.resolve, WGMMA_SM90: sm90.resolve}

_CLAIMS: dict[str, Callable[[Any], str | None]] = {
    "mma": family_of_mma,
    "store": {"smem": MMA_SYNC, "tma": WGMMA_SM90}.get,
    "warp_tile": lambda warp: MMA_SYNC,
    "fragment_stages": lambda stages: MMA_SYNC,
    "store_spacing": lambda spacing: MMA_SYNC,
    "prefetch": {False: MMA_SYNC}.get,
    "smem_alloc": {"static": MMA_SYNC}.get,
    "consumers": lambda consumers: WGMMA_SM90 if consumers else None,
    "cluster": lambda cluster: WGMMA_SM90 if cluster.ctas > 1 else None,
    "cooperation": {"pingpong": WGMMA_SM90}.get,
    "swap_ab": {True: WGMMA_SM90}.get,
    "copy": {"cp_async": MMA_SYNC, "ldg_sts": MMA_SYNC, "ldg_sts_scalar": MMA_SYNC, "ldg_sts_unaligned": MMA_SYNC}.get,
    "form": {"dsl": MMA_SYNC}.get,
}
"""Fields with values that only one family has, the most telling first."""


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`; the result may still be illegal, which generator.rules judges.

    Raises: RequestError where no architecture is named.
    """
    if "arch" not in request:
        raise RequestError("arch is missing: name one or more, as in --arch sm_89 or --arch sm_80,sm_90")
    return _RESOLVERS[family_of(request)](request)


def family_of(request: Request) -> str:
    """Return the family that a request asks for; where it asks for none, the best that its architecture has."""
    field = deciding_field(request)
    served = [family for family in ARCHS[request["arch"]].families if not sole_family(request) or family == MMA_SYNC]
    best = (*served, MMA_SYNC)[0]
    family = (_CLAIMS[field](request[field]) if field else None) or best
    return MMA_SYNC_TMA if family == MMA_SYNC and request.get("copy") == "tma" else family


def sole_family(request: Request) -> str:
    """Say why no family but mma.sync multiplies what a request asks for; nothing where others do, too."""
    problem = {**problem_fields(request), **request}
    if not WgmmaPlan.takes(problem["dtype_a"], problem["layout"]):
        return f"wgmma reads {problem['dtype_a']} in layout tn only: {problem['layout']} is multiplied by mma.sync"
    least = ASYNC_BYTES // DTYPE_BYTES[problem["dtype_a"]]
    short = [f"{name} {problem[name]}" for name in ("align_a", "align_b") if problem[name] < least]
    if not short:
        return ""
    return (
        f"wgmma reads A and B aligned to {ASYNC_BYTES} B only: with {', '.join(short)} they are multiplied by mma.sync"
    )


def deciding_field(request: Request) -> str:
    """Return the field by which a request asks for a family; nothing where it asks for none."""
    return next((name for name, claim in _CLAIMS.items() if name in request and claim(request[name])), "")
