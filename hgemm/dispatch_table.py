"""The dispatch table of a library: its variants as numbers, in an order that depends on nothing but their records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hgemm.device import cubin_runs, ptx_runs
from hgemm.dtypes import DTYPES
from hgemm.errors import LibraryError, RequestError
from hgemm.launch import COUNTERS_ROUND_BYTES
from hgemm.launch_traits import LaunchTraits
from hgemm.measured import BestKnown, ProblemKey, Session, best_known
from hgemm.model.cards import Card, usual_card
from hgemm.model.kernel import by_wgmma
from hgemm.model.predict import Shape, cycles_of, fit_of
from hgemm.octave_grid import Point, point
from hgemm.problem import Kind, kind_supports
from hgemm.selection_query import TYPICAL, SelectionQuery, Target

FORMAT = 6
EXACT, COMPATIBLE, PTX = range(3)
"""How a variant's code runs on a device, the preferred way first: its own cubin, an older one's, PTX."""


@dataclass(frozen=True)
class Row:
    """One variant, as the selection sees it. The exported C library has the same fields in struct hgemm_row.

    Units: elements for tiles and alignments; bytes of one element for `operand_bytes` (A and B) and `result_bytes` (D).
    Fields: `max_ctas` is the largest grid of a stream-K kernel, 0 for other kernels. See Clocks for `tiles_per_sm` and all
        fields after it.
    """

    symbol: str
    group: int
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    splits: int
    smem_bytes: int
    align_a: int
    align_b: int
    align_d: int
    beta: int
    exact_tiles_only: int
    tensor_maps: int
    counter_bytes_per_tile: int
    partial_bytes_per_tile: int
    partial_bytes_per_cta: int
    max_ctas: int
    operand_bytes: int
    result_bytes: int
    tiles_per_sm: int
    cluster_ctas: int
    unusable_sms: int
    k_tile_clocks: int
    straddling_clocks: int
    tile_clocks: int
    single_k_tile_clocks: int
    single_tile_clocks: int
    launch_clocks: int
    dram_start_clocks: int
    dram_mib_clocks: int
    l2_clocks: int
    l2_mib_clocks: int

    def work(self, m: int, n: int, batch: int) -> int:
        """Return the CTA tiles of a problem, those that complete clusters, splits and batches counted."""
        return self.tiles(m, n) * self.splits * batch

    def tiles(self, m: int, n: int) -> int:
        clusters_m = -(-m // (self.tile_m * self.cluster_m))
        clusters_n = -(-n // (self.tile_n * self.cluster_n))
        return clusters_m * self.cluster_m * clusters_n * self.cluster_n

    def workspace_bytes(self, m: int, n: int, batch: int) -> int:
        """Return what hgemm.launch.workspace_bytes does."""
        count = self.tiles(m, n) * batch
        counters = -(-self.counter_bytes_per_tile * count // COUNTERS_ROUND_BYTES) * COUNTERS_ROUND_BYTES
        return counters + self.partial_bytes_per_tile * count + self.partial_bytes_per_cta * self.max_ctas


@dataclass(frozen=True)
class Group:
    """The variants of one architecture and one kind: rows `first` to `first + count`."""

    arch: str
    kind: int
    first: int
    count: int


Extents = tuple[int, int, int, int]
"""m, n, k and batch."""


@dataclass(frozen=True)
class SurveyPoint:
    """One problem that was measured.

    Fields: `order` has the rows that were compared there, the best first; `ratios` has all that were measured there, each with
        its time in microseconds over its estimate.
    """

    m: int
    n: int
    k: int
    batch: int
    order: tuple[int, ...]
    ratios: tuple[tuple[int, float], ...]

    @property
    def extents(self) -> Extents:
        return self.m, self.n, self.k, self.batch

    @cached_property
    def point(self) -> Point:
        return point(*self.extents)


@dataclass(frozen=True)
class Survey:
    """What was measured of one kind of product on devices of one compute capability with so many SMs, in the order of extents."""

    capability: int
    sms: int
    kind: int
    devices: tuple[str, ...]
    problems: tuple[SurveyPoint, ...]


@dataclass(frozen=True)
class DispatchTable:
    """Groups, newest architecture first; rows in the order of their groups; surveys by capability, SMs and kind."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    surveys: tuple[Survey, ...] = ()

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], sessions: Iterable[Session] = ()) -> DispatchTable:
        """Build it from records, and from what was measured of these variants.

        Raises: LibraryError for a record that lacks what a launch needs.
        """
        found = sorted(((LaunchTraits.of(record), record) for record in records), key=_place)
        groups: list[Group] = []
        rows: list[Row] = []
        for traits, record in found:
            kind = kind_of(traits).code
            if not groups or (groups[-1].arch, groups[-1].kind) != (traits.arch, kind):
                groups.append(Group(traits.arch, kind, len(rows), 0))
            last = groups[-1]
            groups[-1] = Group(last.arch, last.kind, last.first, last.count + 1)
            rows.append(row_of(traits, record, len(groups) - 1))
        keys = {traits.symbol: record.get("key", "") for traits, record in found}
        return cls(tuple(groups), tuple(rows), _surveys(best_known(sessions, keys), groups, rows))

    def runnable_groups(self, target: Target) -> list[tuple[int, int]]:
        """Return the groups that run on a device as (way, group), the preferred way first."""
        ways = ((code_match(group.arch, target.capability), place) for place, group in enumerate(self.groups))
        return sorted((way, place) for way, place in ways if way is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON says it."""
        return {"format": FORMAT, **asdict(self)}


def kind_of(traits: LaunchTraits) -> Kind:
    """Return the kind of product that a variant computes."""
    return Kind(
        traits.layout, traits.dtype_a, traits.dtype_b, traits.dtype_d, traits.acc, traits.bias, traits.activation
    )


def code_match(arch: str, capability: tuple[int, int]) -> int | None:
    """Return how code for `arch` runs on a device of this compute capability; None where it does not."""
    if cubin_runs(arch, capability):
        number = int("".join(re.findall("[0-9]", arch)))
        return EXACT if divmod(number, 10) == capability else COMPATIBLE
    return PTX if ptx_runs(arch, capability) else None


def _place(found: tuple[LaunchTraits, Mapping[str, Any]]) -> tuple:
    traits, record = found
    return row_order(traits, record["spec"].get("form", "atoms"))


def row_order(traits: LaunchTraits, form: str = "atoms") -> tuple:
    """Return what rows are sorted by. Of tiles that are thought equal the taller comes first, then the one on atoms.

    Source: benchmarks/data/mma_sync_h200.json: 256x128 beside 128x256, 2 to 3 % faster from 2048 to 8192.
    """
    number = int("".join(re.findall("[0-9]", traits.arch)))
    return -number, traits.arch, kind_of(traits).code, -traits.tile_m, form != "atoms", traits.symbol


def row_of(traits: LaunchTraits, record: Mapping[str, Any], group: int = 0) -> Row:
    """Return a variant, or one that is only planned, as selection sees it.

    Raises: LibraryError for a record whose spec is none, of which nothing can be estimated.
    """
    try:
        clocks = clocks_of(record)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RequestError) as error:
        raise LibraryError(
            f"{traits.symbol}: its record says too little to choose it ({error!r}): generate it anew"
        ) from error
    return Row(
        symbol=traits.symbol,
        group=group,
        tile_m=traits.tile_m,
        tile_n=traits.tile_n,
        tile_k=traits.tile_k,
        cluster_m=traits.cluster_shape[0],
        cluster_n=traits.cluster_shape[1],
        splits=traits.splits,
        smem_bytes=traits.smem_bytes,
        align_a=traits.align_a,
        align_b=traits.align_b,
        align_d=traits.align_d,
        beta=int(traits.beta),
        exact_tiles_only=int(record["traits"]["exact_tiles_only"]),
        tensor_maps=int(bool(traits.tensor_maps)),
        counter_bytes_per_tile=traits.counter_bytes_per_tile,
        partial_bytes_per_tile=traits.partial_bytes_per_tile,
        partial_bytes_per_cta=traits.partial_bytes_per_cta,
        max_ctas=traits.max_ctas,
        operand_bytes=DTYPES[traits.dtype_a].bytes,
        result_bytes=DTYPES[traits.dtype_d].bytes,
        tiles_per_sm=clocks.tiles_per_sm,
        cluster_ctas=clocks.cluster_ctas,
        unusable_sms=clocks.unusable_sms,
        k_tile_clocks=clocks.k_tile,
        straddling_clocks=clocks.straddling,
        tile_clocks=clocks.tile,
        single_k_tile_clocks=clocks.single_k_tile,
        single_tile_clocks=clocks.single_tile,
        launch_clocks=clocks.launch,
        dram_start_clocks=clocks.dram_start,
        dram_mib_clocks=clocks.dram_mib,
        l2_clocks=clocks.l2,
        l2_mib_clocks=clocks.l2_mib,
    )


# ---- Measurements ---------------------------------------------------------------------------------------------------


def _surveys(
    standing: Mapping[ProblemKey, BestKnown], groups: Sequence[Group], rows: Sequence[Row]
) -> tuple[Survey, ...]:
    parts: dict[tuple[int, int, int], dict[Extents, BestKnown]] = {}
    for (capability, sms, kind, *extents), found in sorted(standing.items(), key=lambda item: item[0]):
        if capability in TYPICAL:
            parts.setdefault((capability, sms, kind), {})[tuple(extents)] = found
    surveys = []
    for (capability, sms, kind), part in parts.items():
        places = {row.symbol: at for at, row in enumerate(rows) if kind_supports(groups[row.group].kind, kind)}
        target = Target.typical(f"sm_{capability}", sms)
        devices = tuple(sorted({found.device for found in part.values()}))
        surveys.append(
            Survey(capability, sms, kind, devices, _problems(Kind.from_code(kind), part, places, rows, target))
        )
    return tuple(surveys)


def _problems(
    kind: Kind, part: Mapping[Extents, BestKnown], places: Mapping[str, int], rows: Sequence[Row], target: Target
) -> tuple[SurveyPoint, ...]:
    ratios = []
    for extents, found in part.items():
        timed = {places[symbol]: time_us for symbol, time_us in found.times_us.items() if symbol in places}
        wanted = SelectionQuery.dense(kind, extents)
        ratios.append({at: time_us / estimate_clocks(rows[at], wanted, target) for at, time_us in timed.items()})
    orders = [tuple(places[symbol] for symbol in found.order if symbol in places) for found in part.values()]
    return tuple(
        SurveyPoint(*extents, order, tuple(sorted(its.items())))
        for extents, order, its in zip(part, orders, ratios, strict=True)
    )


# ==== How long a variant is thought to take, in clocks of an SM: whole numbers only, so that C counts the same ====


LIMIT = 2**62
"""The cost of what would cost more, and the elements of what has more."""
KIB_LIMIT = 2**40
"""So many KiB, or k-tiles, count for more."""
SMEM_RESERVED_BYTES_PER_CTA = 1024
"""What the system takes of each CTA's shared memory. Source: CUDA C++ Programming Guide 12.6, "Compute Capability 8.x"."""
AGAIN_BITS = 12

CARD_ARCH = {87: 86, 88: 86, 100: 90, 103: 90, 110: 90, 121: 120}
"""Architectures that no card's table is of, and the one by whose card they are estimated."""
MIB = 2**20


@dataclass(frozen=True)
class Clocks:
    """The coefficients of a variant's estimated time. They do not depend on the problem.

    Units: SM clocks. `k_tile` and `tile` apply if an SM processes several tiles at the same time; `single_k_tile` and
        `single_tile` are the latencies of one tile. `straddling` is added to a k-tile if the rows of both operands do not start
        at L2 sectors. `launch` and `dram_start` are per launch, `dram_mib` and `l2_mib` per MiB, `l2` per 4096 k-tiles.
    Fields: `tiles_per_sm` is the number of tiles that an SM processes at the same time; `cluster_ctas` the CTAs of a cluster;
        `unusable_sms` the SMs of a GPU that no cluster can use.
    """

    tiles_per_sm: int
    cluster_ctas: int
    unusable_sms: int
    k_tile: int
    straddling: int
    tile: int
    single_k_tile: int
    single_tile: int
    launch: int
    dram_start: int
    dram_mib: int
    l2: int
    l2_mib: int


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
        tiles_per_sm=shape.tiles_per_sm,
        cluster_ctas=shape.cluster_ctas,
        unusable_sms=card.sms - int(card.get("cluster4_sms") or card.sms) if shape.cluster_ctas >= 4 else 0,
        k_tile=round(its.k_tile),
        straddling=round(straddled.k_tile - its.k_tile),
        tile=round(its.tile),
        single_k_tile=round(its.single_k_tile),
        single_tile=round(its.single_tile),
        launch=round(its.start),
        dram_start=round(constants.dram_start_us * mhz),
        dram_mib=round(MIB / dram_bytes_per_clock),
        l2=round(shape.loaded_bytes / again_bytes_per_clock * (1 << AGAIN_BITS)),
        l2_mib=round(MIB / again_bytes_per_clock),
    )


def _card(arch: str) -> Card:
    number = int("".join(digit for digit in arch if digit.isdigit()))
    card = usual_card(CARD_ARCH.get(number, number))
    if card is None:
        raise KeyError(f"no card of {arch} has a table")
    return card


def estimate_clocks(row: Row, wanted: SelectionQuery, target: Target) -> int:
    """Estimate a launch of a variant whose CTA tiles, splits and batches counted, are at most 2^31 - 1."""
    work = row.work(wanted.m, wanted.n, wanted.batch)
    k_tiles = _up(_up(max(wanted.k, 1), row.tile_k), row.splits)
    busiest = _up(work, sms_used(row, target))
    rounds = _up(busiest, tiles_per_sm(row, target))
    more = row.straddling_clocks * wanted.straddling // 2
    busy = busiest * (k_tiles * (row.k_tile_clocks + more) + row.tile_clocks)
    single = rounds * (k_tiles * (row.single_k_tile_clocks + more) + row.single_tile_clocks)
    sm, memory = min(max(busy, single), LIMIT), _memory(row, wanted, work, k_tiles)
    return min(row.launch_clocks + _both(max(sm, memory), min(sm, memory)), LIMIT)


def _both(longer: int, shorter: int) -> int:
    """Return nearly the root of the sum of squares, 3 % less at most: what a quarter as long takes does not show."""
    return longer + max(shorter // 2 - longer // 8, 0)


def _up(x: int, y: int) -> int:
    return -(-x // y)


def _memory(row: Row, wanted: SelectionQuery, work: int, k_tiles: int) -> int:
    """Return what DRAM takes to bring A and B once and to take D, and L2 to bring what was read before."""
    operands = min((wanted.m + wanted.n) * wanted.k * wanted.batch, LIMIT)
    results = min(wanted.m * wanted.n * wanted.batch, LIMIT)
    kib = min((operands >> 10) * row.operand_bytes + (results >> 10) * row.result_bytes, KIB_LIMIT)
    loaded = min(work * k_tiles, KIB_LIMIT) * row.l2_clocks >> AGAIN_BITS
    again = max(loaded - (kib * row.l2_mib_clocks >> 10), 0)
    return row.dram_start_clocks + (kib * row.dram_mib_clocks >> 10) + again


def sms_used(row: Row, target: Target) -> int:
    """Return the SMs of a device that a variant's clusters can use."""
    sms = target.sms - row.unusable_sms if target.sms > row.unusable_sms else target.sms
    return max(sms // row.cluster_ctas, 1) * row.cluster_ctas


def tiles_per_sm(row: Row, target: Target) -> int:
    """Return the tiles of a variant that an SM of a device works on at once, which hide one another's waiting."""
    if row.tensor_maps:
        return row.tiles_per_sm
    reserved = SMEM_RESERVED_BYTES_PER_CTA
    fitting = (target.smem_bytes_per_cta + reserved) // (row.smem_bytes + reserved)
    return max(1, min(row.tiles_per_sm, fitting))
