"""Equations of the cost model. They return cycles of one SM.

The first four are a published model of half-precision products on Turing. A k-tile of a CTA occupies the SM's tensor
cores and its load and store unit; the slower one decides. A CPI is the number of cycles that a warp instruction takes
at full throughput. Tensor instructions run on one of the four partitions of an SM; other instructions use the whole SM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hgemm.dtypes import DTYPES
from hgemm.errors import RequestError
from hgemm.model.cards import Card

PARTITIONS_PER_SM = 4
LANES = 32
BLOCK_ROW_BYTES = 16
"""Bytes of a row of a fragment block. A block has 8 rows: one register per lane."""
WARPGROUP_ROWS = 64
"""Rows of a wgmma instruction. Source: PTX ISA 8.8, "wgmma.mma_async", shapes."""


def tensor_cycles(
    products: int, products_per_instruction: int, cpi: float, partitions: int = PARTITIONS_PER_SM
) -> float:
    """Return the cycles of `products` multiply-adds, spread over `partitions` of an SM."""
    return products / (products_per_instruction * partitions) * cpi


def copy_cycles(size_bytes: int, bytes_per_lane: int, cpi: float) -> float:
    """Return the cycles of copying `size_bytes`, with `bytes_per_lane` per lane and instruction.

    Units: `cpi` covers all instructions of a copy: LDG plus STS if it goes through registers.
    """
    return size_bytes / (LANES * bytes_per_lane) * cpi


def fragment_cycles(warps: int, warp_m: int, warp_n: int, row_bytes: int, cpi_block: float) -> float:
    """Return the cycles in which warps read the fragments of a k-tile from shared memory.

    Units: `row_bytes` is the extent of the k-tile. `cpi_block` is the cycles of a block of 8 rows of 16 bytes: those of
        LDS.32, or a quarter of LDSM.x4.
    """
    return warps * (warp_m + warp_n) / 8 * (row_bytes / BLOCK_ROW_BYTES) * cpi_block


def intensity(tile_m: int, tile_n: int, element_bytes: int = 2) -> float:
    """Return the FLOP that a tile computes per byte loaded from global memory."""
    return 2 * tile_m * tile_n / ((tile_m + tile_n) * element_bytes)


def warpgroup_read_bytes(rows: int, columns: int, row_bytes: int) -> int:
    """Return the bytes that wgmma reads from shared memory per k-tile: A once, and B once per 64 rows of A."""
    return (rows + columns * -(-rows // WARPGROUP_ROWS)) * row_bytes


def waves(ctas: int, sms: int, ctas_per_sm: int) -> tuple[int, float]:
    """Return the number of waves, and the used part of their CTA slots.

    An incomplete last wave makes it less than 1.
    """
    slots = sms * ctas_per_sm
    count = -(-ctas // slots)
    return count, ctas / (count * slots)


def busiest_sm_ctas(ctas: int, sms: int, ctas_per_sm: int) -> int:
    """Return the number of CTAs on the SM with the most CTAs."""
    full, rest = divmod(ctas, sms * ctas_per_sm)
    return full * ctas_per_sm + -(-rest // sms)


# ---- One k-tile of one CTA -------------------------------------------------------------------------------------------


TENSOR, SHARED_MEMORY, COPIES, L2, DRAM = "tensor cores", "shared memory", "copies", "L2", "DRAM"
_MMA_SHAPES = {"wmma16": ("m16n8k16", "m16n8k8")}
"""SASS shapes of an instruction. The first one with a figure is used. Other instructions map to themselves."""
_MIN_COPY_BYTES = 4
_MAX_COPY_BYTES = 16


@dataclass(frozen=True)
class KTile:
    """Cycles of one k-tile of one CTA on one SM.

    Fields:
        `copy`, `fragments`: filling shared memory, and reading it.
        `memory`: both together. The sum if warp instructions do both, the maximum if TMA copies.
        `l2`: the CTA's share of L2 while all SMs load. None if the GPU has no such figure.
        `figures`: names of the table entries that were used.
    """

    tensor: float
    copy: float
    fragments: float
    memory: float
    l2: float | None
    flop_per_byte: float
    figures: tuple[str, ...]

    @property
    def cycles(self) -> float:
        """The longest part, a lower bound for a k-tile."""
        return max(self.tensor, self.memory, self.l2 or 0)

    @property
    def bound(self) -> str:
        """The resource that limits the k-tile."""
        if self.tensor >= self.cycles:
            return TENSOR
        if self.memory < self.cycles:
            return L2
        return COPIES if self.copy > self.fragments else SHARED_MEMORY


class _FigureReader:
    """Reads figures of a GPU and records their names."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.names: list[str] = []

    def __call__(self, name: str) -> float:
        value = self.card[name]
        self.names.append(name)
        return value


def k_tile(spec: Mapping[str, Any], card: Card) -> KTile:
    """Return the cycles of a k-tile of a spec, given as the `spec` field of a record.

    Raises: RequestError if the GPU's table lacks a required figure, for example that of an instruction it does not
        support.
    """
    return (_wgmma if by_wgmma(spec) else _mma_sync)(spec, card)


def by_wgmma(spec: Mapping[str, Any]) -> bool:
    """Return whether a record's `spec` uses wgmma."""
    return str(spec["mma"]).startswith("m64n")


def to_registers(spec: Mapping[str, Any]) -> bool:
    """Return whether the fragments of a record's `spec` come from global memory, without shared memory in between."""
    return spec.get("copy") == "ldg"


def extents(text: str) -> tuple[int, ...]:
    """Parse `128x64` or `128x128x32`."""
    return tuple(int(word) for word in str(text).split("x"))


def element_bytes(spec: Mapping[str, Any]) -> int:
    """Return the bytes of an element of A and B."""
    return DTYPES[spec["dtype_a"]].bytes


# ---- mma.sync --------------------------------------------------------------------------------------------------------


def _mma_sync(spec: Mapping[str, Any], card: Card) -> KTile:
    """Return the cycles for mma.sync kernels. Warps copy and read through one unit of the SM, or TMA copies."""
    figure = _FigureReader(card)
    m, n, k = extents(spec["cta_tile"])
    warp_m, warp_n = extents(spec["warp_tile"])
    size = element_bytes(spec)
    name, products = _mma_figure(spec, card)
    by_tma = spec["copy"] == "tma"
    if by_tma:
        copy = (m + n) * k * size / figure("tma_bytes_per_clock_per_sm")
    elif to_registers(spec):
        lane_bytes = _MAX_COPY_BYTES if spec["layout"][1] == "n" else _largest_power(n // 4 * size, _MAX_COPY_BYTES)
        copy = copy_cycles(n * k * size, lane_bytes, figure(f"cpi.ldg{8 * lane_bytes}"))  # A is in L1
    else:
        copy = _copy(spec, figure, m * k, spec["align_a"]) + _copy(spec, figure, n * k, spec["align_b"])
    warps = (m // warp_m) * (n // warp_n)
    fragments = (
        0.0 if to_registers(spec) else fragment_cycles(warps, warp_m, warp_n, k * size, figure("cpi.ldsm_x4") / 4)
    )
    return KTile(
        tensor=tensor_cycles(m * n * k, products, figure(name)),
        copy=copy,
        fragments=fragments,
        memory=max(copy, fragments) if by_tma else copy + fragments,
        l2=_l2(figure, (m + n) * k * size),
        flop_per_byte=intensity(m, n, size),
        figures=tuple(figure.names),
    )


def _largest_power(value: int, most: int) -> int:
    """Return the largest power of two up to `most` that divides a value."""
    return min(value & -value, most)


def _kinds(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the type names of an instruction in figure names, most specific first. bf16 usually uses the f32 figure."""
    own = {"bf16": ("bf16", "f32"), "f32": ("tf32",), "tf32": ("tf32",)}
    return own.get(spec["dtype_a"], ("f32",) if spec["acc"] == "f32" else ("f16",))


def _mma_figure(spec: Mapping[str, Any], card: Card) -> tuple[str, int]:
    """Return the name of the spec's tensor instruction figure, and its multiply-adds."""
    shapes = _MMA_SHAPES.get(spec["mma"], (spec["mma"],))
    names = {f"cpi.hmma_{shape}_{kind}": shape for shape in shapes for kind in _kinds(spec)}
    found = next((name for name in names if card.get(name) is not None), None)
    if found is None:
        raise RequestError(f"{card.name} has no {spec['mma']} of {spec['dtype_a']}: its table lacks {', '.join(names)}")
    m, n, k = map(int, re.findall(r"\d+", names[found]))
    return found, m * n * k


def _copy(spec: Mapping[str, Any], figure: _FigureReader, elements: int, align: int) -> float:
    """Return the cycles of copying one operand's tile. The width is the alignment; a scalar copy moves single elements.

    An unaligned 16-byte vector takes two loads, and each of its rows straddles two L1 lines.
    """
    size = element_bytes(spec)
    if spec["copy"] == "ldg_sts_unaligned" and align * size < _MAX_COPY_BYTES:
        bits = 8 * _MAX_COPY_BYTES
        return copy_cycles(elements * size, _MAX_COPY_BYTES, 4 * figure(f"cpi.ldg{bits}") + figure(f"cpi.sts{bits}"))
    lane_bytes = size if spec["copy"] == "ldg_sts_scalar" else min(align * size, _MAX_COPY_BYTES)
    bits = 8 * max(lane_bytes, _MIN_COPY_BYTES)
    if spec["copy"] == "cp_async" and lane_bytes >= _MIN_COPY_BYTES:
        cpi = figure(f"cpi.cp_async{bits}")
    else:
        cpi = figure(f"cpi.ldg{bits}") + figure(f"cpi.sts{bits}")
    return copy_cycles(elements * size, lane_bytes, cpi)


# ---- wgmma -----------------------------------------------------------------------------------------------------------


def _wgmma(spec: Mapping[str, Any], card: Card) -> KTile:
    """Return the cycles for wgmma kernels. TMA copies, or warps copy and compete with wgmma for shared memory."""
    figure = _FigureReader(card)
    m, n, k = extents(spec["cta_tile"])
    cluster_m, cluster_n = extents(spec["cluster"])
    size = element_bytes(spec)
    rows, columns = (n, m) if spec.get("swap_ab") else (m, n)
    width, depth = map(int, re.findall(r"\d+", spec["mma"])[1:])  # m64n256k16
    shared_bytes = m * k * size / cluster_n + n * k * size / cluster_m  # multicast within a cluster
    fragments = warpgroup_read_bytes(rows, columns, k * size) / figure("smem_bytes_per_clock_per_sm")
    if spec["copy"] == "cp_async":
        copy = _copy(spec, figure, m * k, spec["align_a"]) + _copy(spec, figure, n * k, spec["align_b"]) + fragments
    else:
        copy = (m + n) * k * size / figure("tma_bytes_per_clock_per_sm")
    cpi = _hgmma_cpi(spec, figure, width, depth)
    return KTile(
        tensor=tensor_cycles(m * n * k, WARPGROUP_ROWS * width * depth, cpi, partitions=1),  # the CPI covers all four
        copy=copy,
        fragments=fragments,
        memory=max(copy, fragments),
        l2=_l2(figure, shared_bytes),
        flop_per_byte=intensity(m, n, size),
        figures=tuple(figure.names),
    )


def _hgmma_cpi(spec: Mapping[str, Any], figure: _FigureReader, width: int, depth: int) -> float:
    """Return the cycles of a wgmma: its figure, or an interpolation between the nearest widths."""
    card = figure.card
    for kind in _kinds(spec):
        known = _hgmma_figures(frozenset(card.figures), depth, kind)
        low = max((n for n in known if n <= width), default=None)
        high = min((n for n in known if n >= width), default=None)
        if low is not None and high is not None:
            part = (width - low) / (high - low) if high > low else 0.0
            return figure(known[low]) * (1 - part) + figure(known[high]) * part
    raise RequestError(
        f"{card.name} has no {spec['mma']} of {spec['dtype_a']}: its table lacks cpi.hgmma_{spec['mma']}_*"
    )


@lru_cache(maxsize=256)
def _hgmma_figures(names: frozenset[str], depth: int, kind: str) -> dict[int, str]:
    """Return the names of a card's cycles of a wgmma of this depth and kind, by its width."""
    found = (re.fullmatch(rf"cpi\.hgmma_m64n(\d+)k{depth}_{kind}", name) for name in names)
    return {int(match[1]): match[0] for match in found if match}


def _l2(figure: _FigureReader, size_bytes: float) -> float | None:
    if figure.card.get("l2_bytes_per_clock_per_sm") is None:
        return None
    return size_bytes / figure("l2_bytes_per_clock_per_sm")


# ---- A problem on a GPU ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A problem as the model sees it.

    Fields: `straddling` is the part of A and B with rows that do not start at L2 sectors: 0, 0.5 or 1.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    straddling: float = 0.0


@dataclass(frozen=True)
class LaunchEstimate:
    """The work of a launch on a GPU.

    Fields:
        `tail_efficiency`: used part of the CTA slots of all waves.
        `sm_cycles`: cycles of the SM with the most k-tiles.
        `dram_cycles`: cycles of reading A and B and writing D once.
        `lower_bound_us`: the longer of both at the boost clock, without launch, first loads, epilogue and power limit.
    """

    tiles: int
    ctas: int
    waves: int
    tail_efficiency: float
    k_tiles_per_cta: int
    sm_cycles: float
    dram_cycles: float
    bound: str
    lower_bound_us: float


def launch(spec: Mapping[str, Any], part: KTile, card: Card, size: Size, ctas_per_sm: int) -> LaunchEstimate:
    """Return the work of a problem for a spec with `ctas_per_sm` CTAs per SM."""
    tile_m, tile_n, tile_k = extents(spec["cta_tile"])
    cluster_m, cluster_n = extents(spec.get("cluster", "1x1"))
    kind, _, value = str(spec["schedule"]).partition(":")
    splits = int(value or 1)
    tiles = _up(-(-size.m // tile_m), cluster_m) * _up(-(-size.n // tile_n), cluster_n) * size.batch
    together = splits if kind == "split_k_cluster" else cluster_m * cluster_n
    sms = max(card.sms // together, 1) * together  # CTAs of a cluster occupy different SMs
    count, efficiency = waves(tiles * splits, sms, max(ctas_per_sm, 1))
    k_tiles = -(-max(1, -(-size.k // tile_k)) // splits)
    sm_cycles = busiest_sm_ctas(tiles * splits, sms, max(ctas_per_sm, 1)) * k_tiles * part.cycles
    dram_cycles = _min_dram_bytes(spec, size) / (card.dram_gbytes_per_s * 1e9) * card["sm_mhz"] * 1e6
    return LaunchEstimate(
        tiles=tiles,
        ctas=tiles * splits,
        waves=count,
        tail_efficiency=efficiency,
        k_tiles_per_cta=k_tiles,
        sm_cycles=sm_cycles,
        dram_cycles=dram_cycles,
        bound=DRAM if dram_cycles > sm_cycles else part.bound,
        lower_bound_us=max(sm_cycles, dram_cycles) / card["sm_mhz"],
    )


def _min_dram_bytes(spec: Mapping[str, Any], size: Size) -> int:
    """Return the minimum DRAM traffic: A, B and D once, and C once if beta is used."""
    d_bytes = DTYPES[spec["dtype_d"]].bytes * (2 if spec["beta"] else 1)
    operands = (size.m + size.n) * size.k * element_bytes(spec)
    return size.batch * (operands + size.m * size.n * d_bytes)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
