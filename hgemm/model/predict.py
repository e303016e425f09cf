"""Predicted time of a kernel on a problem, with constants fitted to measurements (`fitted.json`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from hgemm.checks import NAME, TEXT, Mismatch, integer, map_of, number, text
from hgemm.checks import fields as document_of
from hgemm.dtypes import DTYPES
from hgemm.errors import LibraryError, RequestError
from hgemm.model.cards import Card, card_named, usual_card
from hgemm.model.kernel import (
    KTile,
    LaunchEstimate,
    Size,
    by_wgmma,
    element_bytes,
    extents,
    k_tile,
    launch,
    to_registers,
)
from hgemm.problem import LAUNCH

PATH = Path(__file__).with_name("fitted.json")
SCHEMA = 1
FAMILIES = ("mma_sync", "wgmma")


@dataclass(frozen=True)
class Fit:
    """Fitted constants of one kernel family.

    Fields: `card` is the short name of the GPU that the power constants belong to.
        `problems` and `kernels` count the measurements of the fit.
    Units: the errors are of the logarithm of measured over predicted time, for kernels within 1.5 of the best.
    """

    constants: Constants
    card: str
    device: str
    date: str
    problems: int
    kernels: int
    median_error: float
    p90_error: float


_FAMILY = document_of(
    {
        "constants": map_of(NAME, number()),
        "card": NAME,
        "device": TEXT,
        "date": text(r"\d{4}-\d\d-\d\d", "a date as 2026-11-21"),
        **dict.fromkeys(("problems", "kernels"), integer(1)),
        **dict.fromkeys(("median_error", "p90_error"), number()),
    }
)
_DOCUMENT = document_of({"schema": integer(SCHEMA, SCHEMA), "source": TEXT, "families": map_of(NAME, _FAMILY)})


@cache
def fits() -> Mapping[str, Fit]:
    """Return the fit of each family. Raises LibraryError with the field if the file is malformed."""
    try:
        return parse_fits(json.loads(PATH.read_text(encoding="utf-8")))
    except (Mismatch, ValueError) as error:
        raise LibraryError(f"{PATH.name}: {error}. The file is part of hgemm: reinstall hgemm.") from None


def parse_fits(document: Any) -> Mapping[str, Fit]:
    """Return the fits of a document. Raises Mismatch for an invalid field."""
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


TO_REGISTERS = {
    "start_us": 0.33,
    "dram_start_us": 0.8,
    "dram_part": 0.97,
    "latency_cycles": 1500.0,
    "tile_cycles": 600.0,
    "shown_part": 0.3,
    "again_bytes_per_cycle": 200.0,
}
"""Constants of kernels that load fragments from global memory; the others are those of mma.sync.

Source: benchmarks/data/few_rows_h100.json, set by hand.
"""


@cache
def fit_of_registers() -> Fit:
    """Return the fit of kernels that load fragments from global memory."""
    its = fits()["mma_sync"]
    return replace(its, constants=replace(its.constants, **TO_REGISTERS))


def fit_of(spec: Mapping[str, Any]) -> Fit:
    """Return the fit for the family of a record's `spec`."""
    if to_registers(spec):
        return fit_of_registers()
    return fits()["wgmma" if by_wgmma(spec) else "mma_sync"]


# ---- Terms of the prediction -----------------------------------------------------------------------------------------


Maximum = Callable[[Any, Any], Any]
SECTOR_BYTES = 32
"""Size of an L2 sector. Source: CUDA C++ Best Practices Guide 13.x, "Coalesced Access to Global Memory"."""
ACCUMULATOR_BYTES = 4
"""Size of a partial result in split-k."""
TILE_SHARPNESS = 6
"""Exponent of the smooth maximum over the parts of a k-tile: a shorter part adds a little to the longest."""
LAUNCH_SHARPNESS = 2
"""Exponent of the smooth maximum over the SMs' work and DRAM's work, which overlap less.

Source of both: the cross-validation in docs/performance-notes.md.
"""
IDLE_W = 100.0
"""Power of an idle GPU. Source: benchmarks/data/drawn_sm90a_h200.json, its state before the first launch, 121 W."""


@dataclass(frozen=True)
class Constants:
    """Constants of one kernel family, fitted to measurements. Terms that a family does not have cost nothing.

    Fields:
        `dram_part`, `l2_part`: parts of the GPU's figures that are reached.
        `straddled_cost`: relative extra L2 cost of rows that do not start at sectors.
        `again_bytes_per_cycle`: an SM's rate for operands that another SM has already read.
        `latency_cycles`: latency of loading a k-tile. Several loads are in flight.
        `shown_part`: part of a tile's prologue and epilogue that other CTAs of the SM do not hide.
        `watts_*`: power at the boost clock, above `IDLE_W`. It scales with the clock to the power of 1 +
        `watts_exponent`.
    Units: given by the names; cycles are SM cycles.
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
class KernelShape:
    """Properties of a kernel that determine its time.

    Fields:
        `part`: cycles of a k-tile.
        `tiles_per_sm`: tiles in progress on an SM.
        `cluster_ctas`: CTAs of a cluster.
        `in_turn`: 1 for pingpong consumers, else 0, as the other flags.
        `cluster_splits`: the CTAs of a cluster split k.
        `workspace_splits`: CTAs split k through a workspace, in `splits` parts.
        `streams`: stream-K. The model gives it no gain, since no measurement shows one.
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
    def of(cls, spec: Mapping[str, Any], card: Card, ctas_per_sm: int) -> KernelShape:
        """Read the properties from a record's `spec`. Raises RequestError if the GPU lacks a figure.

        `ctas_per_sm` is the occupancy. Without an L2 figure, L2 costs nothing.
        """
        tile_m, tile_n, tile_k = extents(spec["cta_tile"])
        cluster_m, cluster_n = extents(spec.get("cluster", "1x1"))
        kind, _, splits = str(spec["schedule"]).partition(":")
        part = k_tile(spec, card)
        in_turn = spec.get("cooperation") == "pingpong"
        persistent = kind in ("persistent", "stream_k") or (kind == LAUNCH and by_wgmma(spec))
        resident = max(1, min(ctas_per_sm, spec["ctas_per_sm"]) if persistent else ctas_per_sm)
        return cls(
            *(tile_m, tile_n, tile_k),
            part=part if part.l2 is not None else replace(part, l2=0.0),
            stages=2 if to_registers(spec) else spec["stages"],  # a warp waits for all of its loads
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
    """Costs of a kernel on a GPU, independent of the problem. Units: cycles of an SM.

    Fields: a CTA tile costs `k_tile` per k-tile and `tile` once if other CTAs share the SM, else `single_k_tile` and
        `single_tile`. `start` is the cost of a launch.
    """

    k_tile: Any
    tile: Any
    single_k_tile: Any
    single_tile: Any
    start: Any


def cycles_of(v: KernelShape, wgmma: bool, straddling: Any, c: Constants, mhz: float, maximum: Maximum = max) -> Cycles:
    """Return the costs of a wgmma or mma.sync kernel."""
    return (_wgmma if wgmma else _mma_sync)(v, (1 + straddling * c.straddled_cost) / c.l2_part, c, mhz, maximum)


def _wgmma(v: KernelShape, l2: Any, c: Constants, mhz: float, maximum: Maximum) -> Cycles:
    """Return the costs for one CTA per SM. With pingpong, one consumer stores while the other multiplies."""
    part, accumulator_bytes = v.part, v.tile_m * v.tile_n * ACCUMULATOR_BYTES
    memory = maximum(maximum(part.copy, part.l2 * l2), c.latency_cycles / v.stages)
    each = _smooth_max(maximum(part.tensor, part.fragments), memory, TILE_SHARPNESS) + c.k_tile_cycles
    stored = c.tile_cycles + (v.out_bytes + _partial_bytes(v)) / c.store_bytes_per_cycle
    joined = (
        c.split_k_cluster_cycles + accumulator_bytes * (v.splits - 1) / v.splits / c.split_k_cluster_bytes_per_cycle
    )
    cluster_us = (v.cluster_m * v.cluster_n > 1) * c.cluster_us
    return Cycles(
        k_tile=each,
        tile=v.in_turn * c.turn_cycles + (1 - v.in_turn) * stored + v.cluster_splits * joined,
        single_k_tile=each,
        single_tile=stored + v.cluster_splits * joined,
        start=(c.start_us + cluster_us) * mhz + v.in_turn * stored + _reduction_start(v, c, mhz),
    )


def _mma_sync(v: KernelShape, l2: Any, c: Constants, mhz: float, maximum: Maximum) -> Cycles:
    """Return the costs for several CTAs per SM, which hide each other's latency."""
    part = v.part
    each = _smooth_max(maximum(part.tensor, part.l2 * l2), part.memory, TILE_SHARPNESS)
    tile = c.tile_cycles + (v.out_bytes + _partial_bytes(v)) / c.store_bytes_per_cycle
    return Cycles(
        k_tile=each + c.shown_part * c.k_tile_cycles,
        tile=c.shown_part * tile,
        single_k_tile=_smooth_max(each + c.k_tile_cycles, c.latency_cycles / maximum(v.stages - 1, 1), TILE_SHARPNESS),
        single_tile=tile,
        start=c.start_us * mhz + _reduction_start(v, c, mhz),
    )


def _partial_bytes(v: KernelShape) -> Any:
    """Return the workspace bytes that a split writes per tile. The last split reads as many."""
    return v.workspace_splits * 2 * v.tile_m * v.tile_n * ACCUMULATOR_BYTES


def _reduction_start(v: KernelShape, c: Constants, mhz: float) -> Any:
    """Return the launch cost of reductions in a workspace: zeroing counters, and two partial tiles for stream-K."""
    streamed = 2 * 2 * v.tile_m * v.tile_n * ACCUMULATOR_BYTES / c.store_bytes_per_cycle
    return (v.workspace_splits + v.streams) * c.split_us * mhz + v.streams * streamed


def _smooth_max(x: Any, y: Any, sharpness: int) -> Any:
    return (x**sharpness + y**sharpness) ** (1 / sharpness)


# ---- A problem -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """Terms of a launch. Units: `sm` and `start` are cycles of the busiest SM; `dram_us` is at DRAM's own clock."""

    ctas: Any
    busiest: Any
    start: Any
    sm: Any
    dram_us: Any
    clock_mhz: Any
    time_us: Any


def terms(v: KernelShape, its: Cycles, size: Size, sms: Any, c: Constants, card: Card, maximum: Maximum = max) -> Terms:
    """Return the terms of a problem on `sms` SMs, those that its clusters can use.

    The clock is the highest within the GPU's power limit. It is the boost clock if the limit or the constants are
    unknown.
    """
    tiles = _up(size.m, v.tile_m * v.cluster_m) * v.cluster_m * _up(size.n, v.tile_n * v.cluster_n) * v.cluster_n
    ctas = tiles * v.splits * size.batch
    k_tiles = maximum(_up(_up(size.k, v.tile_k), v.splits), 1)
    busiest = _up(ctas, sms)
    rounds = _up(busiest, v.tiles_per_sm)
    busy, single = k_tiles * its.k_tile + its.tile, k_tiles * its.single_k_tile + its.single_tile
    sm = maximum(busiest * busy, rounds * single)
    mhz, dram_bytes = card["sm_mhz"], min_dram_bytes(v, size)
    repeated_bytes = maximum(ctas * k_tiles * v.loaded_bytes - dram_bytes, 0)
    dram_us = c.dram_start_us + dram_bytes / (card.dram_gbytes_per_s * 1e3 * c.dram_part)
    dram_us = dram_us + repeated_bytes / (c.again_bytes_per_cycle * card.sms * mhz)
    cool_us = (its.start + _smooth_max(sm, dram_us * mhz, LAUNCH_SHARPNESS)) / mhz
    tflops = 2e-6 * size.m * size.n * size.k * size.batch / cool_us
    power_w = card.get("power_w") if c.watts_per_tflops else None
    clock_mhz = mhz
    if power_w is not None:
        left_w = maximum(power_w - IDLE_W - c.watts_per_tbytes_s * 1e-6 * dram_bytes / cool_us, IDLE_W)
        over = maximum(c.watts_per_tflops * tflops / left_w, 1.0)
        clock_mhz = mhz / over ** (1 / (1 + c.watts_exponent))
    time_us = its.start / mhz + _smooth_max(sm / clock_mhz, dram_us, LAUNCH_SHARPNESS)
    return Terms(ctas, busiest, its.start, sm, dram_us, clock_mhz, time_us)


def min_dram_bytes(v: KernelShape, size: Size) -> Any:
    """Return the minimum DRAM traffic: A, B and D once."""
    d_bytes = v.out_bytes / (v.tile_m * v.tile_n)
    return size.batch * ((size.m + size.n) * size.k * v.element_bytes + size.m * size.n * d_bytes)


def _up(x: Any, y: Any) -> Any:
    return -(-x // y)


@dataclass(frozen=True)
class Prediction:
    """Predicted time of one kernel on one problem.

    Units: `sm_us` is the time of the busiest SM at `clock_mhz`, the clock within the power limit. `memory_us` is the
        time of DRAM and L2. Both follow `start_us` and partly hide each other.
    """

    time_us: float
    start_us: float
    sm_us: float
    memory_us: float
    clock_mhz: float


def predict(
    spec: Mapping[str, Any], ctas_per_sm: int, size: Size, card: Card, constants: Constants, powered: bool = True
) -> Prediction:
    """Return the predicted time of a kernel on a GPU. `spec` is that of a record; `ctas_per_sm` is its occupancy.

    `powered` states that the power constants belong to this GPU. Otherwise the boost clock is used.
    Raises: RequestError if the GPU's table lacks a required figure.
    """
    shape = KernelShape.of(spec, card, ctas_per_sm)
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
    """Return a problem with dense operands for a spec's layout and types."""
    rows = (k if spec["layout"][0] == "t" else m, k if spec["layout"][1] == "n" else n)
    off = [extent * element_bytes(spec) % SECTOR_BYTES != 0 for extent in rows]
    return Size(m, n, k, batch, sum(off) / 2)


# ---- All results as JSON values --------------------------------------------------------------------------------------


def report(
    spec: Mapping[str, Any], resources: Mapping[str, Any], card: Card, size: Size | None = None
) -> dict[str, Any]:
    """Return the cycles of a k-tile, its bound, the occupancy, and the work and predicted time of a problem.

    Shapes: `spec` and `resources` are those of a record. Of `resources`, `ctas_per_sm`, `warps_per_sm` and `occupancy`
        are read.
    Units: cycles of an SM, truncated to integers. Efficiency and occupancy are fractions of 1.
    Raises: RequestError if the GPU's table lacks a required figure.
    """
    part = k_tile(spec, card)
    found = None if size is None else launch(spec, part, card, size, resources["ctas_per_sm"])
    return {
        "card": card.name,
        "sms": card.sms,
        "figures": card.describe_sources(part.figures),
        **_cycles(part),
        "bound": part.bound,
        "flop_per_byte": round(part.flop_per_byte, 2),
        **{name: resources[name] for name in ("ctas_per_sm", "warps_per_sm", "occupancy")},
        "problem": None
        if found is None or size is None
        else {**_extents(size), **_numbers(found), **_predicted(spec, resources, card, size)},
    }


def prediction(spec: Mapping[str, Any], ctas_per_sm: int, card: Card, size: Size) -> tuple[Prediction, Fit]:
    """Return the predicted time of a kernel on a dense problem, and the fit. Raises RequestError as `report` does."""
    fit = fit_of(spec)
    dense = problem_of(spec, size.m, size.n, size.k, size.batch)
    return predict(spec, ctas_per_sm, dense, card, fit.constants, powered=card.key == fit.card), fit


def _extents(size: Size) -> dict[str, int]:
    return {"m": size.m, "n": size.n, "k": size.k, "batch": size.batch}


def _predicted(spec: Mapping[str, Any], resources: Mapping[str, Any], card: Card, size: Size) -> dict[str, Any]:
    found, fit = prediction(spec, resources["ctas_per_sm"], card, size)
    error = f"median error {100 * fit.median_error:.0f} %"
    where = error if card.key == fit.card else "accuracy on this GPU is unknown"
    if _is_unmeasured_kind(spec):
        where = "accuracy for this kind of kernel is unknown"
    return {
        "predicted_us": round(found.time_us, 2),
        "start_us": round(found.start_us, 2),
        "sm_us": round(found.sm_us, 2),
        "memory_us": round(found.memory_us, 2),
        "clock_mhz": round(found.clock_mhz),
        "fitted": f"to {fit.problems} problems on {fit.device}, {fit.date}: {where}",
    }


def _is_unmeasured_kind(spec: Mapping[str, Any]) -> bool:
    """Return whether the fit includes no kernel of this kind."""
    usual_copy = ("tma",) if by_wgmma(spec) else ("cp_async", "ldg_sts", "ldg_sts_scalar")
    return spec["schedule"] == "stream_k" or spec.get("copy", usual_copy[0]) not in usual_copy


def _cycles(part: KTile) -> dict[str, int | None]:
    return {
        "tensor_cycles": int(part.tensor),
        "copy_cycles": int(part.copy),
        "fragment_cycles": int(part.fragments),
        "memory_cycles": int(part.memory),
        "l2_cycles": None if part.l2 is None else int(part.l2),
        "k_tile_cycles": int(part.cycles),
    }


def _numbers(found: LaunchEstimate) -> dict[str, Any]:
    return {
        **vars(found),
        "tail_efficiency": round(found.tail_efficiency, 4),
        "sm_cycles": int(found.sm_cycles),
        "dram_cycles": int(found.dram_cycles),
        "lower_bound_us": round(found.lower_bound_us, 2),
    }


def card_for(arch: str, device: str = "", sms: int = 0) -> Card | None:
    """Return the named GPU, or the default one of an architecture such as sm_89. `sms` overrides its number of SMs.

    None if no GPU is named and the architecture has no default.
    Raises: RequestError if the GPU is unknown or does not run kernels of the architecture.
    """
    number, exact = int("".join(filter(str.isdigit, arch))), arch[-1:].isalpha()
    card = card_named(device) if device else usual_card(number)
    if card is None and sms:
        raise RequestError(f"--sms {sms} needs a GPU, and no table is for {arch}: name one with --device")
    if card is not None and (card.number != number if exact else card.number < number):
        raise RequestError(f"kernels for {arch} do not run on {card.name} (sm_{card.number}): name another device")
    return card.with_sms(sms) if card is not None and sms else card
