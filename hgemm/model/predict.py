"""The constants that were fitted to measurements, as `fitted.json` has them: of each family, from where, and how well they fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from hgemm.dtypes import DTYPES
from hgemm.errors import LibraryError
from hgemm.model.cards import Card
from hgemm.model.kernel import KTile, Size, by_wgmma, element_bytes, extents, k_tile
from hgemm.record import NAME, TEXT, Mismatch, integer, map_of, number, text
from hgemm.record import fields as document_of

PATH = Path(__file__).with_name("fitted.json")
SCHEMA = 1
FAMILIES = ("mma_sync", "wgmma")


@dataclass(frozen=True)
class Fit:
    """What was fitted for one family of kernels.

    Fields: `card` is the short name of the card of which its watts are; `problems` and `variants` are how many it is fitted to.
    Units: `median_error` and `p90_error` are of the logarithm of time over predicted time, of what is within 1.5 of the best.
    """

    constants: Constants
    card: str
    device: str
    date: str
    problems: int
    variants: int
    median_error: float
    p90_error: float


_FAMILY = document_of(
    {
        "constants": map_of(NAME, number()),
        "card": NAME,
        "device": TEXT,
        "date": text(r"\d{4}-\d\d-\d\d", "a date as 2026-11-21"),
        **dict.fromkeys(("problems", "variants"), integer(1)),
        **dict.fromkeys(("median_error", "p90_error"), number()),
    }
)
_DOCUMENT = document_of({"schema": integer(SCHEMA, SCHEMA), "source": TEXT, "families": map_of(NAME, _FAMILY)})


@cache
def fits() -> Mapping[str, Fit]:
    """Return the fit of each family. Raises LibraryError, naming the field, where the file is not as it should be."""
    try:
        return parse_fits(json.loads(PATH.read_text(encoding="utf-8")))
    except (Mismatch, ValueError) as error:
        raise LibraryError(f"{PATH.name}: {error}: it is part of hgemm, which is to be installed again") from None


def parse_fits(document: Any) -> Mapping[str, Fit]:
    """Return the fits of a document. Raises Mismatch where a field does not fit."""
    _DOCUMENT(document, "")
    found = {}
    for family in FAMILIES:
        if family not in document["families"]:
            raise Mismatch(f"families.{family} is missing")
        its = document["families"][family]
        known = {field.name for field in fields(Constants)}
        if strange := sorted(its["constants"].keys() ^ known):
            raise Mismatch(f"families.{family}.constants.{strange[0]} is missing or unknown")
        found[family] = Fit(**{**its, "constants": Constants(**its["constants"])})
    return found


def fit_of(spec: Mapping[str, Any]) -> Fit:
    """Return the fit for the family of a record's `spec`."""
    return fits()["wgmma" if by_wgmma(spec) else "mma_sync"]


# ==== How long a variant takes on a problem and a card, in microseconds, term by term ====


Most = Callable[[Any, Any], Any]
SECTOR_BYTES = 32
"""What L2 is read in. Source: CUDA C++ Best Practices Guide 13.x, "Coalesced Access to Global Memory"."""
SUM_BYTES = 4
"""Of a partial sum where k is split."""
TILE_SHARPNESS = 6
"""The longer of the parts of a k-tile decides, and what comes near it adds to it: the sum of so high powers."""
LAUNCH_SHARPNESS = 2
"""The same of the SMs' work and of DRAM's, which hide less of one another.

Source of both: the cross-validation in docs/performance-notes.md.
"""
IDLE_W = 100.0
"""What a card takes that does nothing. Source: benchmarks/data/drawn_sm90a_h200.json, its state before the first launch, 121 W."""


@dataclass(frozen=True)
class Constants:
    """What was fitted to measurements, of one family of kernels.

    Units: as the names say; cycles are an SM's. `l2_part` and `dram_part` are parts of the card's figures, `straddled_cost` is
        what L2 takes more, as a part, for rows that begin off its sectors, and `again_bytes_per_cycle` what an SM gets of operands
        that another has read already. `latency_cycles` is how long a k-tile is on its way, as several are at once. `shown_part`
        is how much of a tile's beginning and end other CTAs of the SM do not hide. Watts are those at the boost clock, beyond
        `IDLE_W`: they fall with the clock to the power of 1 + `watts_exponent`. What a family does not have costs nothing.
    """

    start_us: float
    dram_start_us: float
    dram_part: float
    l2_part: float
    straddled_cost: float
    latency_cycles: float
    k_tile_cycles: float
    tile_cycles: float
    store_bytes_per_cycle: float
    again_bytes_per_cycle: float
    watts_per_tflops: float
    watts_per_tbytes_s: float
    watts_exponent: float
    shown_part: float = 1.0
    turn_cycles: float = 0.0
    cluster_us: float = 0.0
    split_k_cluster_cycles: float = 0.0
    split_k_cluster_bytes_per_cycle: float = 1.0
    split_us: float = 0.0


@dataclass(frozen=True)
class Shape:
    """What of a variant decides its time.

    Fields: `part` is a k-tile's cycles; `tiles_per_sm` the tiles that an SM works on at once, of CTAs or of consumers in turn;
        `cluster_ctas` the CTAs of a cluster. Flags are 0 or 1: `in_turn` where two consumers take tiles by turns, `cluster_splits`
        where the CTAs of a cluster split k, and `workspace_splits` where CTAs do by way of a workspace, in `splits` parts. Where
        `streams` is 1 CTAs share what whole waves leave over. What that gains is left out: no measurement says that it gains.
    """

    tile_m: Any
    tile_n: Any
    tile_k: Any
    part: KTile | Any
    stages: Any
    cluster_m: Any
    cluster_n: Any
    splits: Any
    cluster_ctas: Any
    tiles_per_sm: Any
    loaded_bytes: Any
    out_bytes: Any
    element_bytes: Any
    in_turn: Any
    cluster_splits: Any
    workspace_splits: Any
    streams: Any

    @classmethod
    def of(cls, spec: Mapping[str, Any], card: Card, ctas_per_sm: int) -> Shape:
        """Read it from a record's `spec`; `ctas_per_sm` are those that fit. Raises RequestError for what the card has not.

        Where the card's L2 is not known, nothing waits for it.
        """
        tile_m, tile_n, tile_k = extents(spec["cta_tile"])
        cluster_m, cluster_n = extents(spec.get("cluster", "1x1"))
        kind, _, splits = str(spec["schedule"]).partition(":")
        part = k_tile(spec, card)
        in_turn = spec.get("cooperation") == "pingpong"
        resident = max(1, min(ctas_per_sm, spec["ctas_per_sm"]) if kind in ("persistent", "stream_k") else ctas_per_sm)
        return cls(
            *(tile_m, tile_n, tile_k),
            part=part if part.l2 is not None else replace(part, l2=0.0),
            stages=spec["stages"],
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            splits=int(splits or 1),
            cluster_ctas=int(splits) if kind == "split_k_cluster" else cluster_m * cluster_n,
            tiles_per_sm=2 if in_turn else resident,
            loaded_bytes=(tile_m / cluster_n + tile_n / cluster_m) * tile_k * element_bytes(spec),
            out_bytes=tile_m * tile_n * DTYPES[spec["dtype_d"]].bytes,
            element_bytes=element_bytes(spec),
            in_turn=int(in_turn),
            cluster_splits=int(kind == "split_k_cluster"),
            workspace_splits=int(kind == "split_k"),
            streams=int(kind == "stream_k"),
        )


@dataclass(frozen=True)
class Cycles:
    """What a variant takes on a card, whatever the problem. Units: cycles of an SM.

    A CTA tile takes `k_tile` for each k-tile and `tile` once where the SM is busy with others too, `single_k_tile` and
    `single_tile` where it waits for itself; `start` is once a launch.
    """

    k_tile: Any
    tile: Any
    single_k_tile: Any
    single_tile: Any
    start: Any


def cycles_of(v: Shape, wgmma: bool, straddling: Any, c: Constants, mhz: float, most: Most = max) -> Cycles:
    """Return the numbers of a variant that multiplies by wgmma, or by mma.sync."""
    return (_wgmma if wgmma else _mma_sync)(v, (1 + straddling * c.straddled_cost) / c.l2_part, c, mhz, most)


def _wgmma(v: Shape, l2: Any, c: Constants, mhz: float, most: Most) -> Cycles:
    """A CTA an SM; of two consumers in turn, one stores its tile while the other multiplies."""
    part, sums_bytes = v.part, v.tile_m * v.tile_n * SUM_BYTES
    memory = most(most(part.copy, part.l2 * l2), c.latency_cycles / v.stages)
    each = _both(most(part.tensor, part.fragments), memory, TILE_SHARPNESS) + c.k_tile_cycles
    stored = c.tile_cycles + (v.out_bytes + _partial_bytes(v)) / c.store_bytes_per_cycle
    joined = c.split_k_cluster_cycles + sums_bytes * (v.splits - 1) / v.splits / c.split_k_cluster_bytes_per_cycle
    cluster_us = (v.cluster_m * v.cluster_n > 1) * c.cluster_us
    return Cycles(
        k_tile=each,
        tile=v.in_turn * c.turn_cycles + (1 - v.in_turn) * stored + v.cluster_splits * joined,
        single_k_tile=each,
        single_tile=stored + v.cluster_splits * joined,
        start=(c.start_us + cluster_us) * mhz + v.in_turn * stored + _meeting(v, c, mhz),
    )


def _mma_sync(v: Shape, l2: Any, c: Constants, mhz: float, most: Most) -> Cycles:
    """What CTAs of an SM hide of one another's waiting they hide."""
    part = v.part
    each = _both(most(part.tensor, part.l2 * l2), part.memory, TILE_SHARPNESS)
    tile = c.tile_cycles + (v.out_bytes + _partial_bytes(v)) / c.store_bytes_per_cycle
    return Cycles(
        k_tile=each + c.shown_part * c.k_tile_cycles,
        tile=c.shown_part * tile,
        single_k_tile=_both(each + c.k_tile_cycles, c.latency_cycles / most(v.stages - 1, 1), TILE_SHARPNESS),
        single_tile=tile,
        start=c.start_us * mhz + _meeting(v, c, mhz),
    )


def _partial_bytes(v: Shape) -> Any:
    """Return what each of the splits writes of a tile to the workspace, and the last of them reads."""
    return v.workspace_splits * 2 * v.tile_m * v.tile_n * SUM_BYTES


def _meeting(v: Shape, c: Constants, mhz: float) -> Any:
    """Return what sums that meet in a workspace cost: counters to zero, and two tiles of a share of stream-K in part."""
    streamed = 2 * 2 * v.tile_m * v.tile_n * SUM_BYTES / c.store_bytes_per_cycle
    return (v.workspace_splits + v.streams) * c.split_us * mhz + v.streams * streamed


def _both(x: Any, y: Any, sharpness: int) -> Any:
    return (x**sharpness + y**sharpness) ** (1 / sharpness)


# ---- A problem --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """What a launch takes. Units: `sm` and `start` are cycles of the busiest SM, `dram_us` is at DRAM's own clock."""

    ctas: Any
    busiest: Any
    start: Any
    sm: Any
    dram_us: Any
    clock_mhz: Any
    time_us: Any


def terms(v: Shape, its: Cycles, size: Size, sms: Any, c: Constants, card: Card, most: Most = max) -> Terms:
    """Lay a problem out on so many `sms`, those that its clusters can use.

    Units: the clock is that at which the card takes no more than its power, where it is known and the constants are that card's.
    """
    tiles = _up(size.m, v.tile_m * v.cluster_m) * v.cluster_m * _up(size.n, v.tile_n * v.cluster_n) * v.cluster_n
    ctas = tiles * v.splits * size.batch
    k_tiles = most(_up(_up(size.k, v.tile_k), v.splits), 1)
    busiest = _up(ctas, sms)
    rounds = _up(busiest, v.tiles_per_sm)
    busy, single = k_tiles * its.k_tile + its.tile, k_tiles * its.single_k_tile + its.single_tile
    sm = most(busiest * busy, rounds * single)
    mhz, dram_bytes = card["sm_mhz"], least_bytes(v, size)
    again_bytes = most(ctas * k_tiles * v.loaded_bytes - dram_bytes, 0)
    dram_us = c.dram_start_us + dram_bytes / (card.dram_gbytes_per_s * 1e3 * c.dram_part)
    dram_us = dram_us + again_bytes / (c.again_bytes_per_cycle * card.sms * mhz)
    cool_us = (its.start + _both(sm, dram_us * mhz, LAUNCH_SHARPNESS)) / mhz
    tflops = 2e-6 * size.m * size.n * size.k * size.batch / cool_us
    power_w = card.get("power_w") if c.watts_per_tflops else None
    clock_mhz = mhz
    if power_w is not None:
        left_w = most(power_w - IDLE_W - c.watts_per_tbytes_s * 1e-6 * dram_bytes / cool_us, IDLE_W)
        over = most(c.watts_per_tflops * tflops / left_w, 1.0)
        clock_mhz = mhz / over ** (1 / (1 + c.watts_exponent))
    time_us = its.start / mhz + _both(sm / clock_mhz, dram_us, LAUNCH_SHARPNESS)
    return Terms(ctas, busiest, its.start, sm, dram_us, clock_mhz, time_us)


def least_bytes(v: Shape, size: Size) -> Any:
    """Return what must cross DRAM: A and B once, and D."""
    d_bytes = v.out_bytes / (v.tile_m * v.tile_n)
    return size.batch * ((size.m + size.n) * size.k * v.element_bytes + size.m * size.n * d_bytes)


def _up(x: Any, y: Any) -> Any:
    return -(-x // y)


@dataclass(frozen=True)
class Prediction:
    """What one variant is thought to take on one problem.

    Units: `sm_us` is that of the SM with most to do, at `clock_mhz`, the clock that the card's power leaves; `memory_us` that of
        DRAM and of L2. After `start_us`, each of these hides the other in part.
    """

    time_us: float
    start_us: float
    sm_us: float
    memory_us: float
    clock_mhz: float


def predict(
    spec: Mapping[str, Any], ctas_per_sm: int, size: Size, card: Card, constants: Constants, powered: bool = True
) -> Prediction:
    """Return what a variant, a record's `spec` of which `ctas_per_sm` CTAs fit an SM, takes on a card.

    `powered` says that the constants' watts are those of the card: else its clock is the boost clock.

    Raises: RequestError where the card's table lacks a figure that the spec needs.
    """
    shape = Shape.of(spec, card, ctas_per_sm)
    its = cycles_of(shape, by_wgmma(spec), size.straddling, constants, card["sm_mhz"])
    if not powered:
        constants = replace(constants, watts_per_tflops=0.0)
    found = terms(shape, its, size, card.sms_in_clusters(shape.cluster_ctas), constants, card)
    return Prediction(
        time_us=found.time_us,
        start_us=found.start / card["sm_mhz"],
        sm_us=found.sm / found.clock_mhz,
        memory_us=found.dram_us,
        clock_mhz=found.clock_mhz,
    )


def problem_of(spec: Mapping[str, Any], m: int, n: int, k: int, batch: int = 1) -> Size:
    """Return a problem whose operands lie dense, for a spec's layout and types."""
    rows = (k if spec["layout"][0] == "t" else m, k if spec["layout"][1] == "n" else n)
    off = [extent * element_bytes(spec) % SECTOR_BYTES != 0 for extent in rows]
    return Size(m, n, k, batch, sum(off) / 2)
