"""The equations: plain numbers in, cycles of one SM out.

The first four are the published model of half-precision products on Turing: a CTA's k-tile takes an SM's tensor cores so long,
and its load and store unit so long, and the longer of the two decides. A CPI is the cycles that an instruction of a warp
takes at full throughput: of one partition, of which an SM has four, for tensor instructions, and of the SM for the others.
"""

from __future__ import annotations

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
