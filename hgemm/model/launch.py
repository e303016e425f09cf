"""A problem on a card: waves of CTAs, what the last one leaves idle, and the least time that the parts allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hgemm.dtypes import DTYPES
from hgemm.model.cards import Card
from hgemm.model.equations import busiest_sm_ctas, waves
from hgemm.model.kernel import DRAM, KTile, element_bytes, extents


@dataclass(frozen=True)
class Size:
    """A problem as the model sees it.

    Fields: `straddling` is how many of A and B, of two, have rows that begin off the sectors of L2: 0, 0.5 or 1.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    straddling: float = 0.0


@dataclass(frozen=True)
class Launch:
    """What a problem comes to on a card.

    `tail_efficiency` is the part of all waves' places that have a CTA. `sm_cycles` are those of the SM with most k-tiles,
    `dram_cycles` those of reading A and B and writing D once. `least_us` is the longer of them at the card's boost clock: no
    prediction, since launch, first loads, epilogue, and clocks that power holds down come on top.
    """

    tiles: int
    ctas: int
    waves: int
    tail_efficiency: float
    k_tiles_per_cta: int
    sm_cycles: float
    dram_cycles: float
    bound: str
    least_us: float


def launch(spec: Mapping[str, Any], part: KTile, card: Card, size: Size, ctas_per_sm: int) -> Launch:
    """Return what a problem comes to for a spec of which `ctas_per_sm` CTAs live on an SM."""
    tile_m, tile_n, tile_k = extents(spec["cta_tile"])
    cluster_m, cluster_n = extents(spec.get("cluster", "1x1"))
    kind, _, splits = str(spec["schedule"]).partition(":")
    splits = int(splits or 1)
    tiles = _up(-(-size.m // tile_m), cluster_m) * _up(-(-size.n // tile_n), cluster_n) * size.batch
    together = splits if kind == "cluster_k" else cluster_m * cluster_n
    sms = max(card.sms // together, 1) * together  # a cluster lies on SMs of its own
    count, efficiency = waves(tiles * splits, sms, max(ctas_per_sm, 1))
    k_tiles = -(-max(1, -(-size.k // tile_k)) // splits)
    sm_cycles = busiest_sm_ctas(tiles * splits, sms, max(ctas_per_sm, 1)) * k_tiles * part.cycles
    dram_cycles = _least_bytes(spec, size) / (card.dram_gbytes_per_s * 1e9) * card["sm_mhz"] * 1e6
    return Launch(
        tiles=tiles,
        ctas=tiles * splits,
        waves=count,
        tail_efficiency=efficiency,
        k_tiles_per_cta=k_tiles,
        sm_cycles=sm_cycles,
        dram_cycles=dram_cycles,
        bound=DRAM if dram_cycles > sm_cycles else part.bound,
        least_us=max(sm_cycles, dram_cycles) / card["sm_mhz"],
    )


def _least_bytes(spec: Mapping[str, Any], size: Size) -> int:
    """Return what must cross DRAM: A and B once, D once, and C once where there is one."""
    d_bytes = DTYPES[spec["dtype_d"]].bytes * (2 if spec["beta"] else 1)
    operands = (size.m + size.n) * size.k * element_bytes(spec)
    return size.batch * (operands + size.m * size.n * d_bytes)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
