"""The numbers of a launch that follow from a variant and a problem: grid and workspace."""

from __future__ import annotations

from hgemm.facts import Facts

COUNTERS_ROUND_BYTES = 256
"""The counters at the front of a workspace end on a multiple of this (templates/hgemm/split_k.cuh)."""


def tiles(facts: Facts, m: int, n: int) -> int:
    """Return how many CTA tiles one D (m, n) has, those included that complete a cluster beyond its edges."""
    rows, columns = (extent * tile for extent, tile in zip(facts.cluster_shape, (facts.tile_m, facts.tile_n)))
    return -(-m // rows) * -(-n // columns) * facts.cluster_ctas


def ctas(facts: Facts, m: int, n: int, batch: int) -> int:
    """Return how many pieces of work a problem has: a tile, of a batch, and its splits along k.

    Clusters take work together, so this is a multiple of their size.
    """
    return tiles(facts, m, n) * facts.splits * batch


def grid_x(facts: Facts, m: int, n: int, batch: int, resident_ctas: int) -> int:
    """Return grid.x; y and z are 1. `resident_ctas` is how many CTAs the device holds at once, in whole clusters."""
    resident = max(facts.cluster_ctas, resident_ctas)
    if facts.grid_rule == "stream_k":  # all work, however few the tiles are
        return min(resident, facts.max_ctas)
    work = ctas(facts, m, n, batch)
    return min(work, resident) if facts.grid_rule == "persistent" else work


def workspace_bytes(facts: Facts, m: int, n: int, batch: int = 1) -> int:
    """Return the bytes that a launch works in, 0 for most variants; used by one launch at a time.

    Shapes: a counter a tile and batch, rounded up to 256 bytes in all, then the partial sums of each or, of stream-K, of each CTA
        that there may be.
    """
    partials = facts.partial_bytes_per_tile * tiles(facts, m, n) * batch + facts.partial_bytes_per_cta * facts.max_ctas
    return counter_bytes(facts, m, n, batch) + partials


def counter_bytes(facts: Facts, m: int, n: int, batch: int = 1) -> int:
    """Return the bytes of the counters, which must be zeros before a launch and are zeros after it."""
    needed = facts.counter_bytes_per_tile * tiles(facts, m, n) * batch
    return -(-needed // COUNTERS_ROUND_BYTES) * COUNTERS_ROUND_BYTES
