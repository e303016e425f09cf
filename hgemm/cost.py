"""How long a variant is thought to take, in clocks of an SM: whole numbers only, so that C counts the same.

It is the model of hgemm/model/predict.py at the boost clock. What depends on the variant alone is worked out once, from its
record and the table of the card that its architecture is known by. What depends on the problem and the device too is `clocks`,
which templates/capi/src/select.c has line by line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hgemm.model.cards import Card, usual_card
from hgemm.model.fitted import fit_of
from hgemm.model.kernel import by_wgmma
from hgemm.model.predict import Shape, cycles_of

if TYPE_CHECKING:
    from hgemm.table import Row
    from hgemm.target import Target
    from hgemm.wanted import Wanted

LIMIT = 2**62
"""The cost of what would cost more, and the elements of what has more."""
KIB_LIMIT = 2**40
"""So many KiB, or k-tiles, count for more."""
SMEM_RESERVED_BYTES_PER_CTA = 1024
"""What the system takes of each CTA's shared memory. Source: CUDA C++ Programming Guide 12.6, "Compute Capability 8.x"."""
AGAIN_BITS = 12

LIKE = {87: 86, 88: 86, 100: 90, 103: 90, 110: 90, 121: 120}
"""Architectures that no card's table is of, and the one by whose card they are estimated."""
MIB = 2**20


@dataclass(frozen=True)
class Clocks:
    """What a variant takes, whatever the problem: the numbers of predict.Cycles, rounded, and those of memory.

    Units: clocks of an SM. `straddled` is what two operands whose rows begin off L2's sectors add to a k-tile; `memory` is once
        a launch, `mib` for each MiB of DRAM; `again` for 4096 k-tiles that come from L2, and `again_mib` for each MiB of these.
    Fields: `overlapping` tiles hide one another's waiting on an SM; `together` CTAs are a cluster, for which `sms_lost` SMs of
        a card are left over.
    """

    overlapping: int
    together: int
    sms_lost: int
    k_tile: int
    straddled: int
    tile: int
    alone_k_tile: int
    alone_tile: int
    launch: int
    memory: int
    mib: int
    again: int
    again_mib: int


def clocks_of(record: Mapping[str, Any]) -> Clocks:
    """Return the numbers of a variant."""
    spec, card = record["spec"], _card(record["arch"])
    shape, constants, mhz = (
        Shape.of(spec, card, record["resources"]["ctas_per_sm"]),
        fit_of(spec).constants,
        card["sm_mhz"],
    )
    wgmma = by_wgmma(spec)
    its, straddled = (cycles_of(shape, wgmma, part, constants, mhz) for part in (0, 1))
    dram_bytes_per_clock = card.dram_gbytes_per_s * 1e3 * constants.dram_part / mhz
    again_bytes_per_clock = constants.again_bytes_per_cycle * card.sms
    return Clocks(
        overlapping=shape.overlapping,
        together=shape.together,
        sms_lost=card.sms - int(card.get("cluster4_sms") or card.sms) if shape.together >= 4 else 0,
        k_tile=round(its.k_tile),
        straddled=round(straddled.k_tile - its.k_tile),
        tile=round(its.tile),
        alone_k_tile=round(its.alone_k_tile),
        alone_tile=round(its.alone_tile),
        launch=round(its.start),
        memory=round(constants.dram_start_us * mhz),
        mib=round(MIB / dram_bytes_per_clock),
        again=round(shape.loaded_bytes / again_bytes_per_clock * (1 << AGAIN_BITS)),
        again_mib=round(MIB / again_bytes_per_clock),
    )


def _card(arch: str) -> Card:
    number = int("".join(digit for digit in arch if digit.isdigit()))
    card = usual_card(LIKE.get(number, number))
    if card is None:
        raise KeyError(f"no card of {arch} has a table")
    return card


def clocks(row: Row, wanted: Wanted, target: Target) -> int:
    """Estimate a launch of a variant whose CTA tiles, splits and batches counted, are at most 2^31 - 1."""
    work = row.work(wanted.m, wanted.n, wanted.batch)
    k_tiles = _up(_up(max(wanted.k, 1), row.tile_k), row.splits)
    busiest = _up(work, sms_used(row, target))
    rounds = _up(busiest, overlapping(row, target))
    more = row.straddled_clocks * wanted.straddling // 2
    busy = busiest * (k_tiles * (row.k_tile_clocks + more) + row.tile_clocks)
    alone = rounds * (k_tiles * (row.alone_k_tile_clocks + more) + row.alone_tile_clocks)
    sm, memory = min(max(busy, alone), LIMIT), _memory(row, wanted, work, k_tiles)
    return min(row.launch_clocks + _both(max(sm, memory), min(sm, memory)), LIMIT)


def _both(longer: int, shorter: int) -> int:
    """Return nearly the root of the sum of squares, 3 % less at most: what a quarter as long takes does not show."""
    return longer + max(shorter // 2 - longer // 8, 0)


def _up(x: int, y: int) -> int:
    return -(-x // y)


def _memory(row: Row, wanted: Wanted, work: int, k_tiles: int) -> int:
    """Return what DRAM takes to bring A and B once and to take D, and L2 to bring what was read before."""
    operands = min((wanted.m + wanted.n) * wanted.k * wanted.batch, LIMIT)
    results = min(wanted.m * wanted.n * wanted.batch, LIMIT)
    kib = min((operands >> 10) * row.operand_bytes + (results >> 10) * row.result_bytes, KIB_LIMIT)
    loaded = min(work * k_tiles, KIB_LIMIT) * row.again_clocks >> AGAIN_BITS
    again = max(loaded - (kib * row.again_mib_clocks >> 10), 0)
    return row.memory_clocks + (kib * row.mib_clocks >> 10) + again


def sms_used(row: Row, target: Target) -> int:
    """Return the SMs of a device that a variant's clusters can use."""
    sms = target.sms - row.sms_lost if target.sms > row.sms_lost else target.sms
    return max(sms // row.together, 1) * row.together


def overlapping(row: Row, target: Target) -> int:
    """Return the tiles of a variant that an SM of a device works on at once, which hide one another's waiting."""
    if row.tensor_maps:
        return row.overlapping
    reserved = SMEM_RESERVED_BYTES_PER_CTA
    fitting = (target.smem_bytes_per_cta + reserved) // (row.smem_bytes + reserved)
    return max(1, min(row.overlapping, fitting))
