"""Tuned constants of the Policy of a kernel on wgmma. The headers read them and decide nothing themselves."""

from __future__ import annotations

from typing import Any

from generator.families.common import STREAM_K_MIN_K_TILES, partials_in_flight
from generator.families.tensor_maps import ROWS_PER_WARPGROUP
from generator.families.wgmma.plan import WgmmaPlan
from generator.spec import DTYPE_BYTES

LONG_ACTIVATIONS = frozenset({"gelu", "silu"})
"""Activations whose code is long, so that the subtiles of an epilogue share one loop."""


def unroll_epilogue(plan: WgmmaPlan) -> bool:
    """Tell whether the epilogue's subtiles are unrolled in the common case: 2 to 8 % faster."""
    short = plan.spec.activation not in LONG_ACTIVATIONS
    return short and (plan.spec.store == "tma" or plan.spec.form == "cute")


def stream_k(plan: WgmmaPlan) -> dict[str, Any]:
    """Return the constants of stream-K by name.

    `scheduler_per_role`: beside producers that copy, consumers have fewer registers, and values that live across the
    producer/consumer split would spill. `reduce_by_blocks`: halves become floats 64 rows at a time, because all rows may need
    more registers than there are.
    """
    blocks = plan.consumer_rows // ROWS_PER_WARPGROUP
    to_floats = DTYPE_BYTES[plan.spec.dtype_d] == 4
    return {
        "stream_k_min_k_tiles": STREAM_K_MIN_K_TILES,
        "partials_in_flight": partials_in_flight(blocks * (plan.tile.n // 8), plan.copied, to_floats),
        "scheduler_per_role": plan.copied,
        "reduce_by_blocks": plan.spec.acc == "f16" and blocks > 1,
    }
