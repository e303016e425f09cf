"""A spec on a card: the cycles of one k-tile of one CTA, part by part, and which part is the longest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hgemm.dtypes import DTYPES
from hgemm.errors import RequestError
from hgemm.model.cards import Card
from hgemm.model.equations import (
    WARPGROUP_ROWS,
    copy_cycles,
    fragment_cycles,
    intensity,
    tensor_cycles,
    warpgroup_read_bytes,
)

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
    if spec["copy"] == "shifted" and align * size < _MOST_COPY_BYTES:
        bits = 8 * _MOST_COPY_BYTES
        return copy_cycles(elements * size, _MOST_COPY_BYTES, 4 * figure(f"cpi.ldg{bits}") + figure(f"cpi.sts{bits}"))
    lane_bytes = size if spec["copy"] == "scalar" else min(align * size, _MOST_COPY_BYTES)
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
    rows, columns = (n, m) if spec.get("swapped") else (m, n)
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
