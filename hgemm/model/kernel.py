"""The equations: plain numbers in, cycles of one SM out.

The first four are the published model of half-precision products on Turing: a CTA's k-tile takes an SM's tensor cores so long,
and its load and store unit so long, and the longer of the two decides. A CPI is the cycles that an instruction of a warp
takes at full throughput: of one partition, of which an SM has four, for tensor instructions, and of the SM for the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hgemm.dtypes import DTYPES
from hgemm.errors import RequestError
from hgemm.model.cards import Card

PARTITIONS_PER_SM = 4
LANES = 32
BLOCK_ROW_BYTES = 16
"""Of a block of 8 rows, which one register a lane of a fragment holds."""
WARPGROUP_ROWS = 64
"""Rows of a wgmma. Source: PTX ISA 8.8, "wgmma.mma_async", shapes."""


def tensor_cycles(
    products: int, products_per_instruction: int, cpi: float, partitions: int = PARTITIONS_PER_SM
) -> float:
    """Return the cycles of so many multiply-adds on the tensor cores, spread over so many partitions at once."""
    return products / (products_per_instruction * partitions) * cpi


def copy_cycles(size_bytes: int, bytes_per_lane: int, cpi: float) -> float:
    """Return the cycles of copying so many bytes, so many a lane at once.

    Units: `cpi` is of all instructions that a piece takes, LDG and STS where it goes by way of registers.
    """
    return size_bytes / (LANES * bytes_per_lane) * cpi


def fragment_cycles(warps: int, warp_m: int, warp_n: int, row_bytes: int, cpi_block: float) -> float:
    """Return the cycles in which warps read their fragments of a k-tile from shared memory.

    Units: `row_bytes` is the k-tile's extent; `cpi_block` the cycles for a block of 8 rows of 16 bytes: LDS.32's, or a
        quarter of LDSM.x4's.
    """
    return warps * (warp_m + warp_n) / 8 * (row_bytes / BLOCK_ROW_BYTES) * cpi_block


def intensity(tile_m: int, tile_n: int, element_bytes: int = 2) -> float:
    """Return the FLOP that a tile computes for a byte that it loads from global memory."""
    return 2 * tile_m * tile_n / ((tile_m + tile_n) * element_bytes)


def warpgroup_read_bytes(rows: int, columns: int, row_bytes: int) -> int:
    """Return what wgmma reads from shared memory in a k-tile: each 64 rows of A once, and all of B for each of them."""
    return (rows + columns * -(-rows // WARPGROUP_ROWS)) * row_bytes


def waves(ctas: int, sms: int, ctas_per_sm: int) -> tuple[int, float]:
    """Return how many times the card is filled, and which part of those places is in use: less than 1 by the last, ragged one."""
    places = sms * ctas_per_sm
    count = -(-ctas // places)
    return count, ctas / (count * places)


def busiest_sm_ctas(ctas: int, sms: int, ctas_per_sm: int) -> int:
    """Return the CTAs that the SM computes which has most of them."""
    full, rest = divmod(ctas, sms * ctas_per_sm)
    return full * ctas_per_sm + -(-rest // sms)


# ==== A spec on a card: the cycles of one k-tile of one CTA, part by part, and which part is the longest ====


TENSOR, SHARED_MEMORY, COPIES, L2, DRAM = "tensor cores", "shared memory", "copies", "L2", "DRAM"
_MMA_SHAPES = {"wmma16": ("m16n8k16", "m16n8k8")}
"""What an instruction becomes in machine code, by the first of which there is a figure; the others are themselves."""
_LEAST_COPY_BYTES = 4
_MOST_COPY_BYTES = 16


@dataclass(frozen=True)
class KTile:
    """What one k-tile of one CTA takes, in cycles of one SM.

    `copy` and `fragments` are those of filling and of reading shared memory, `memory` what they come to together: the sum
    where one load and store unit does both, as warps' instructions, and the longer where TMA fills it. `l2` is
    the CTA's share of L2 while all SMs load, None where the card's is not known. `figures` names what of the table was used.
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
        """The longest part: what a k-tile takes at least."""
        return max(self.tensor, self.memory, self.l2 or 0)

    @property
    def bound(self) -> str:
        """What the longest part waits for."""
        if self.tensor >= self.cycles:
            return TENSOR
        if self.memory < self.cycles:
            return L2
        return COPIES if self.copy > self.fragments else SHARED_MEMORY


class _Reader:
    """A card's figures, and which of them were asked for."""

    def __init__(self, card: Card) -> None:
        self.card, self.names = card, []

    def __call__(self, name: str) -> float:
        value = self.card[name]
        self.names.append(name)
        return value


def k_tile(spec: Mapping[str, Any], card: Card) -> KTile:
    """Return the cycles of a k-tile of a spec, whose fields are those of a record's `spec`.

    Raises: RequestError where the card's table lacks a figure that the spec needs, as those of instructions that it has not.
    """
    return (_wgmma if by_wgmma(spec) else _mma_sync)(spec, card)


def by_wgmma(spec: Mapping[str, Any]) -> bool:
    """Say whether the tensor instructions of a record's `spec` are warpgroups'."""
    return str(spec["mma"]).startswith("m64n")


def extents(text: str) -> tuple[int, ...]:
    """Read `128x64` or `128x128x32`."""
    return tuple(int(word) for word in str(text).split("x"))


def element_bytes(spec: Mapping[str, Any]) -> int:
    """Return the bytes of an element of A and of B."""
    return DTYPES[spec["dtype_a"]].bytes


# ---- mma.sync -----------------------------------------------------------------------------------------------------------


def _mma_sync(spec: Mapping[str, Any], card: Card) -> KTile:
    """Registers or cp.async copy, and ldmatrix reads: instructions of warps, one unit of the SM for all of them; or TMA copies."""
    figure = _Reader(card)
    m, n, k = extents(spec["cta_tile"])
    warp_m, warp_n = extents(spec["warp_tile"])
    size = element_bytes(spec)
    name, products = _mma_figure(spec, card)
    by_tma = spec["copy"] == "tma"
    if by_tma:
        copy = (m + n) * k * size / figure("tma_bytes_per_clock_per_sm")
    else:
        copy = _copy(spec, figure, m * k, spec["align_a"]) + _copy(spec, figure, n * k, spec["align_b"])
    warps = (m // warp_m) * (n // warp_n)
    fragments = fragment_cycles(warps, warp_m, warp_n, k * size, figure("cpi.ldsm_x4") / 4)
    return KTile(
        tensor=tensor_cycles(m * n * k, products, figure(name)),
        copy=copy,
        fragments=fragments,
        memory=max(copy, fragments) if by_tma else copy + fragments,
        l2=_l2(figure, (m + n) * k * size),
        flop_per_byte=intensity(m, n, size),
        figures=tuple(figure.names),
    )


def _kinds(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the types of an instruction, the one with a figure of its own first: bf16's is usually f32's."""
    own = {"bf16": ("bf16", "f32"), "f32": ("tf32",), "tf32": ("tf32",)}
    return own.get(spec["dtype_a"], ("f32",) if spec["acc"] == "f32" else ("f16",))


def _mma_figure(spec: Mapping[str, Any], card: Card) -> tuple[str, int]:
    """Return the figure of the spec's tensor instruction, and its multiply-adds."""
    shapes = _MMA_SHAPES.get(spec["mma"], (spec["mma"],))
    names = {f"cpi.hmma_{shape}_{kind}": shape for shape in shapes for kind in _kinds(spec)}
    found = next((name for name in names if card.get(name) is not None), None)
    if found is None:
        raise RequestError(f"{card.name} has no {spec['mma']} of {spec['dtype_a']}: its table lacks {', '.join(names)}")
    m, n, k = map(int, re.findall(r"\d+", names[found]))
    return found, m * n * k


def _copy(spec: Mapping[str, Any], figure: _Reader, elements: int, align: int) -> float:
    """Return the cycles of copying one operand's tile: as wide as it is aligned, a scalar copy element by element.

    A shifted piece takes two loads, each of rows that straddle two lines of L1.
    """
    size = element_bytes(spec)
    if spec["copy"] == "ldg_sts_unaligned" and align * size < _MOST_COPY_BYTES:
        bits = 8 * _MOST_COPY_BYTES
        return copy_cycles(elements * size, _MOST_COPY_BYTES, 4 * figure(f"cpi.ldg{bits}") + figure(f"cpi.sts{bits}"))
    lane_bytes = size if spec["copy"] == "ldg_sts_scalar" else min(align * size, _MOST_COPY_BYTES)
    bits = 8 * max(lane_bytes, _LEAST_COPY_BYTES)
    if spec["copy"] == "cp_async" and lane_bytes >= _LEAST_COPY_BYTES:
        cpi = figure(f"cpi.cp_async{bits}")
    else:
        cpi = figure(f"cpi.ldg{bits}") + figure(f"cpi.sts{bits}")
    return copy_cycles(elements * size, lane_bytes, cpi)


# ---- wgmma --------------------------------------------------------------------------------------------------------------


def _wgmma(spec: Mapping[str, Any], card: Card) -> KTile:
    """TMA fills shared memory and wgmma reads it; or warps copy, at whose accesses those of wgmma are in turn."""
    figure = _Reader(card)
    m, n, k = extents(spec["cta_tile"])
    cluster_m, cluster_n = extents(spec["cluster"])
    size = element_bytes(spec)
    rows, columns = (n, m) if spec.get("swap_ab") else (m, n)
    width, depth = map(int, re.fullmatch(r"m64n(\d+)k(\d+)", spec["mma"]).groups())
    shared_bytes = m * k * size / cluster_n + n * k * size / cluster_m  # CTAs of a cluster load for one another
    fragments = warpgroup_read_bytes(rows, columns, k * size) / figure("smem_bytes_per_clock_per_sm")
    if spec["copy"] == "cp_async":
        copy = _copy(spec, figure, m * k, spec["align_a"]) + _copy(spec, figure, n * k, spec["align_b"]) + fragments
    else:
        copy = (m + n) * k * size / figure("tma_bytes_per_clock_per_sm")
    cpi = _hgmma_cpi(spec, figure, width, depth)
    return KTile(
        tensor=tensor_cycles(m * n * k, WARPGROUP_ROWS * width * depth, cpi, partitions=1),  # its CPI is of all four
        copy=copy,
        fragments=fragments,
        memory=max(copy, fragments),
        l2=_l2(figure, shared_bytes),
        flop_per_byte=intensity(m, n, size),
        figures=tuple(figure.names),
    )


def _hgmma_cpi(spec: Mapping[str, Any], figure: _Reader, width: int, depth: int) -> float:
    """Return the cycles of a wgmma: its figure, or between those of the next narrower and wider instruction."""
    card = figure.card
    for kind in _kinds(spec):
        known = {}
        for name in card.figures:
            match = re.fullmatch(rf"cpi\.hgmma_m64n(\d+)k{depth}_{kind}", name)
            if match:
                known[int(match[1])] = name
        low = max((n for n in known if n <= width), default=None)
        high = min((n for n in known if n >= width), default=None)
        if low is not None and high is not None:
            part = (width - low) / (high - low) if high > low else 0.0
            return figure(known[low]) * (1 - part) + figure(known[high]) * part
    raise RequestError(
        f"{card.name} has no {spec['mma']} of {spec['dtype_a']}: its table lacks cpi.hgmma_{spec['mma']}_*"
    )


def _l2(figure: _Reader, size_bytes: float) -> float | None:
    if figure.card.get("l2_bytes_per_clock_per_sm") is None:
        return None
    return size_bytes / figure("l2_bytes_per_clock_per_sm")


# ==== A problem on a card ====


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
    together = splits if kind == "split_k_cluster" else cluster_m * cluster_n
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
