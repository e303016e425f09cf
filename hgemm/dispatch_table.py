"""The dispatch table: the kernels of a library as numbers, the measurements of them, and the estimate of their time.

The table depends on the records and the measurements only. Estimates are integers, so that the exported C library computes
the same ones (templates/capi/src/select.c).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from hgemm.accumulation import unsplit_order
from hgemm.device import cubin_runs, ptx_runs
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE
from hgemm.errors import LibraryError, RequestError
from hgemm.gpus import TYPICAL, split_arch
from hgemm.launch import COUNTER_BYTES, PARTIAL_TILES_PER_CTA, SEGMENT_ROWS, WORKSPACE_COUNTERS
from hgemm.launch_traits import LaunchTraits
from hgemm.measured import BestKnown, ProblemKey, Session, best_known
from hgemm.model.calibrated import (
    DRAM_GBYTES_PER_S,
    ONE,
    TERMS,
    WAVE_BOUNDS,
    Calibration,
    Factors,
    calibration,
    wave_class,
)
from hgemm.model.cards import Card, usual_card
from hgemm.model.kernel import by_wgmma
from hgemm.model.predict import ACCUMULATOR_BYTES, KernelShape, cycles_of, fit_of
from hgemm.model.trees import BOUND_LIMIT, refinement
from hgemm.model.trees import ONE as TREE_ONE
from hgemm.octave_grid import Point, point
from hgemm.problem import BY_GPC, LAYOUTS, Kind, LaunchOptions, kind_supports
from hgemm.selection_query import SelectionQuery, Target

FORMAT = 14
EXACT, COMPATIBLE, PTX = range(3)
"""How code runs on a device, the best first: a cubin for this device, a compatible cubin, or PTX."""


@dataclass(frozen=True)
class Row:
    """One kernel, as the selection sees it. The exported C library has the same fields in struct hgemm_row.

    Units: elements for tiles and alignments; bytes of one element for `operand_bytes` (A and B) and `result_bytes` (D).
    Fields: `decides_splits` and `decides_raster` are 1 if each launch decides them. `serial_parts` is 1 if tiles that are not
        split add k in the parts of those that are. `persistent` CTAs take tiles until none is left. `max_ctas` is the largest
        grid of stream-K, 0 for kernels that have none. `partial_bytes` are those of a tile's partial accumulators in a
        workspace. An expression with `reductions` of rows stores in the workspace a float for each row and each
        `segment_columns` of B, and one with `column_reductions` a float for each column of D and each SEGMENT_ROWS.
        `gated_parts` is 2 for a gated pair, else 1. See Clocks for `tiles_per_sm` to `calibration`. `order` is the accumulation
        order of launches that do not split k, as a number, 0 if it is unknown or depends on the grid. `cublas_order` is 1 if it
        is that of cuBLASLt's unsplit kernels.
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
    decides_splits: int
    decides_raster: int
    serial_parts: int
    persistent: int
    partial_bytes: int
    max_ctas: int
    segment_columns: int
    reductions: int
    column_reductions: int
    gated_parts: int
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
    split_clocks: int
    partial_clocks: int
    calibration: int
    order: int
    cublas_order: int

    @property
    def reduces(self) -> bool:
        """Whether the expression has reductions."""
        return self.reductions + self.column_reductions > 0

    def work(self, m: int, n: int, batch: int) -> int:
        """Return the CTA tiles of a problem: tiles times splits times batch. Splits that a launch decides do not count."""
        return self.tiles(m, n) * self.splits * batch

    def tiles(self, m: int, n: int) -> int:
        """Return the CTA tiles of one D (m, n), including those that complete clusters."""
        clusters_m = -(-m // (self.tile_m * self.cluster_m))
        clusters_n = -(-n // (self.tile_n * self.cluster_n))
        return clusters_m * self.cluster_m * clusters_n * self.cluster_n

    def workspace_bytes(self, m: int, n: int, batch: int, options: LaunchOptions | None = None) -> int:
        """Return the workspace of a launch, as hgemm.launch.workspace_bytes."""
        splits, whole = self.splits, 0
        if options:
            splits = splits + self.decides_splits * (options.splits - splits)
            whole = self.decides_splits * options.whole_tiles * self.cluster_m * self.cluster_n
        size = PARTIAL_TILES_PER_CTA * self.max_ctas * self.partial_bytes
        size = size + (self.tiles(m, n) * batch - whole) * splits * (splits > 1) * self.partial_bytes
        floats = self.reductions * -(-n // maximum(self.segment_columns, 1)) * m
        floats = floats + self.column_reductions * -(-m // SEGMENT_ROWS) * (n // self.gated_parts)
        size = size + floats * batch * ACCUMULATOR_BYTES
        return WORKSPACE_COUNTERS * COUNTER_BYTES * (size > 0) + size

    def has_counters(self, m: int, n: int, batch: int) -> bool:
        """Return whether a workspace has enough counters for the kernel's own splits, or for the tiles that it reduces."""
        rows = (self.reductions > 0) * -(-m // self.tile_m)
        columns = (self.column_reductions > 0) * -(-n // self.tile_n)
        shared = (self.splits > 1) * (self.partial_bytes > 0) * self.tiles(m, n)
        counted = rows + columns + (1 - self.reduces) * shared
        return counted * batch <= WORKSPACE_COUNTERS


@dataclass(frozen=True)
class Group:
    """The kernels of one architecture and one kind: rows `first` to `first + count`."""

    arch: str
    kind: int
    first: int
    count: int


Extents = tuple[int, int, int, int]
"""m, n, k and batch."""


@dataclass(frozen=True)
class SurveyPoint:
    """One measured problem.

    Units: ratios are microseconds per estimated clock.
    Fields: `order` holds the rows that were compared, the best first. `ratios` holds each measured row with its measured time
        divided by its estimate. `options` holds the rows that leave launch options open, with the measured ones.
    """

    m: int
    n: int
    k: int
    batch: int
    order: tuple[int, ...]
    ratios: tuple[tuple[int, float], ...]
    options: tuple[tuple[int, LaunchOptions], ...] = ()

    @property
    def extents(self) -> Extents:
        return self.m, self.n, self.k, self.batch

    @cached_property
    def point(self) -> Point:
        return point(*self.extents)

    def straddles(self, kind: Kind) -> bool:
        """Return whether rows of dense operands do not start at L2 sectors."""
        return SelectionQuery.dense(kind, self.extents).straddling > 0


@dataclass(frozen=True)
class Survey:
    """The measurements of one kind on devices of one compute capability and number of SMs, in the order of extents."""

    capability: int
    sms: int
    kind: int
    devices: tuple[str, ...]
    problems: tuple[SurveyPoint, ...]


@dataclass(frozen=True)
class DispatchTable:
    """All kernels and measurements. Groups are ordered by architecture, the newest first; rows follow their groups."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    surveys: tuple[Survey, ...] = ()

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], sessions: Iterable[Session] = ()) -> DispatchTable:
        """Build the table from records, and from the measurements of these kernels.

        Raises: LibraryError for a record without a field that a launch or an estimate needs.
        """
        found = [(LaunchTraits.of(record), record) for record in records]
        found.sort(key=lambda one: row_order(one[0], one[1]["spec"].get("form", "atoms")))
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
        """Return (code match, index) of each group that runs on a device, the best match first."""
        matches = ((code_match(group.arch, target.capability), at) for at, group in enumerate(self.groups))
        return sorted((match, at) for match, at in matches if match is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as a JSON document."""
        return {"format": FORMAT, **asdict(self)}


def kind_of(traits: LaunchTraits) -> Kind:
    """Return the kind that a kernel computes."""
    epilogue = traits.epilogue.hash if traits.epilogue else NONE
    types = (traits.dtype_a, traits.dtype_b, traits.dtype_d, traits.acc)
    return Kind(traits.layout, *types, traits.bias, traits.activation, epilogue, traits.pointer_arrays)


def code_match(arch: str, capability: tuple[int, int]) -> int | None:
    """Return how code for `arch` runs on a device of this compute capability, or None if it does not."""
    if cubin_runs(arch, capability):
        return EXACT if divmod(split_arch(arch)[0], 10) == capability else COMPATIBLE
    return PTX if ptx_runs(arch, capability) else None


def row_order(traits: LaunchTraits, form: str = "atoms") -> tuple[Any, ...]:
    """Return the sort key of rows. If estimates are equal, the taller tile comes first, then form atoms.

    Source: benchmarks/data/mma_sync_h200.json: 256x128 is 2 to 3 % faster than 128x256 from 2048 to 8192.
    """
    return (
        -traits.arch_number,
        traits.arch,
        kind_of(traits).code,
        -traits.tile_m,
        form != "atoms",
        traits.symbol,
    )


def row_of(
    traits: LaunchTraits, record: Mapping[str, Any], group: int = 0, calibrated: Calibration | None = None
) -> Row:
    """Return the row of a kernel, which may be planned and not yet built. `calibrated` replaces the package's calibration.

    Raises: LibraryError if the record lacks a field that the estimate needs.
    """
    try:
        clocks = clocks_of(record, calibrated)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RequestError) as error:
        raise LibraryError(
            f"{traits.symbol}: its record lacks a field of the cost estimate ({error!r}): regenerate the kernel"
        ) from error
    order, cublas_order = unsplit_order(record)
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
        beta=int(traits.takes_beta),
        exact_tiles_only=int(record["traits"]["exact_tiles_only"]),
        tensor_maps=int(bool(traits.tensor_maps)),
        decides_splits=int(traits.decides_splits),
        decides_raster=int(traits.decides_raster),
        serial_parts=int(traits.serial_parts),
        persistent=int(traits.persistent),
        partial_bytes=traits.partial_bytes,
        max_ctas=traits.max_ctas,
        segment_columns=traits.segment_columns,
        reductions=len(traits.epilogue.row_reductions) if traits.epilogue else 0,
        column_reductions=len(traits.epilogue.column_reductions) if traits.epilogue else 0,
        gated_parts=2 if traits.epilogue and traits.epilogue.gated else 1,
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
        split_clocks=clocks.split,
        partial_clocks=clocks.partial,
        calibration=clocks.calibration,
        order=order,
        cublas_order=int(cublas_order),
    )


# ==== Measurements ====


def _surveys(
    measured: Mapping[ProblemKey, BestKnown], groups: Sequence[Group], rows: Sequence[Row]
) -> tuple[Survey, ...]:
    parts: dict[tuple[int, int, int], dict[Extents, BestKnown]] = {}
    for (capability, sms, kind, m, n, k, batch), found in sorted(measured.items(), key=lambda item: item[0]):
        if capability in TYPICAL:
            parts.setdefault((capability, sms, kind), {})[m, n, k, batch] = found
    surveys = []
    for (capability, sms, kind), part in parts.items():
        indices = {row.symbol: at for at, row in enumerate(rows) if kind_supports(groups[row.group].kind, kind)}
        target = Target.typical(f"sm_{capability}", sms)
        points = tuple(
            _survey_point(SelectionQuery.dense(Kind.from_code(kind), extents), found, indices, rows, target)
            for extents, found in part.items()
        )
        devices = tuple(sorted({found.device for found in part.values()}))
        surveys.append(Survey(capability, sms, kind, devices, points))
    return tuple(surveys)


def _survey_point(
    query: SelectionQuery, found: BestKnown, indices: Mapping[str, int], rows: Sequence[Row], target: Target
) -> SurveyPoint:
    here = replace(target, dram_gbytes_per_s=found.dram_gbytes_per_s)
    timed = sorted((indices[symbol], time_us) for symbol, time_us in found.times_us.items() if symbol in indices)
    options = sorted((indices[symbol], its) for symbol, its in found.options.items() if symbol in indices)
    return SurveyPoint(
        *(query.m, query.n, query.k, query.batch),
        order=tuple(indices[symbol] for symbol in found.order if symbol in indices),
        ratios=tuple((at, time_us / refined_estimate(rows[at], query, here)) for at, time_us in timed),
        options=tuple(options),
    )


# ==== The estimate of a kernel's time, in integers ====

LIMIT = 2**62
"""Estimates and numbers of elements are capped here."""
KIB_LIMIT = 2**40
"""KiB of memory traffic and numbers of k-tiles are capped here."""
SMEM_RESERVED_BYTES_PER_CTA = 1024
"""Shared memory that the system reserves per CTA. Source: CUDA C++ Programming Guide 12.6, "Compute Capability 8.x"."""
STRADDLING_PART = 8
"""Each operand whose rows do not start at sectors of L2 adds 1 / STRADDLING_PART to the time of L2: 128 bytes of a row touch five
sectors instead of four, a quarter more, and an operand is about half of the traffic."""
L2_BITS = 12
"""`Clocks.l2` is the time of 2^L2_BITS k-tiles, so that it is precise as an integer."""

CARD_ARCH = {87: 86, 88: 86, 100: 90, 103: 90, 110: 90, 121: 120}
"""Architectures without a table of a card, and the architecture whose card stands in for it."""
MIB = 2**20


@dataclass(frozen=True)
class Clocks:
    """The coefficients of a kernel's estimated time. They do not depend on the problem.

    Units: SM clocks. `k_tile` and `tile` apply if an SM processes several tiles at the same time; `single_k_tile` and
        `single_tile` are the latencies of one tile. If a launch decides the splits, a split one adds `split` once, and
        `partial` each time that partial accumulators of a tile are stored or read. `straddling` is added to a k-tile if the
        rows of both operands do not start at L2 sectors. `launch` and `dram_start` are per launch, `dram_mib` and `l2_mib` per
        MiB, `l2` per 4096 k-tiles.
    Fields: `tiles_per_sm` is the number of tiles that an SM processes at the same time; `cluster_ctas` the CTAs of a cluster;
        `unusable_sms` the SMs of a GPU that no cluster can use. `calibration` tells which measurements have corrected the
        coefficients: UNCALIBRATED, OF_FAMILY or OF_KERNEL.
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
    split: int
    partial: int
    calibration: int = 0


UNCALIBRATED, OF_FAMILY, OF_KERNEL = range(3)
"""Whose measurements corrected a row's coefficients: none, those of other kernels, or those of a kernel with the same time."""
_TERMS = {
    "k_tile": ("k_tile", "single_k_tile"),
    "tile": ("tile", "single_tile"),
    "dram": ("dram_mib",),
    "l2": ("l2", "l2_mib"),
    **{name: (name,) for name in ("launch", "straddling", "dram_start", "split", "partial")},
}
"""The coefficients that a term of hgemm.model.calibrated corrects."""


def clocks_of(record: Mapping[str, Any], calibrated: Calibration | None = None) -> Clocks:
    """Return the coefficients of a kernel from its record, corrected by a calibration: by default, that of the package."""
    found, spec = calibrated or calibration(), record["spec"]
    factors, level = found.measured(spec), OF_KERNEL
    if factors is None:
        factors, level = found.of_family(spec), OF_FAMILY
    ctas_per_sm = record["resources"]["ctas_per_sm"]
    if factors is None:
        factors, level = found.of_gpu(spec), UNCALIBRATED
    else:  # the calibration was fitted with the planned occupancy; the built one may be higher
        ctas_per_sm = min(ctas_per_sm, spec["ctas_per_sm"])
    clocks, more = corrected_clocks(model_clocks_of(record, ctas_per_sm), factors, level), element_store_clocks(spec)
    single, several = activation_clocks(spec)
    several = several if clocks.tiles_per_sm > 1 else 0
    return replace(clocks, tile=clocks.tile + more + several, single_tile=clocks.single_tile + more + single)


ELEMENT_STORE_CLOCKS, PAIR_STORE_CLOCKS, SWAPPED_STORE_CLOCKS = 0.8, 0.4, 0.2
"""SM clocks that a wgmma tile takes longer for each element of D, if D is not aligned to 16 bytes: aligned to one element, to more,
and with A and B swapped. The other terms are those of kernels that store 16 bytes at a time.

Source: H100, launches of 5 kernels with k of 64 to 1,000.
"""


def element_store_clocks(spec: Mapping[str, Any]) -> int:
    """Return what a tile of a wgmma kernel takes longer if D is not aligned to 16 bytes. Units: SM clocks."""
    if not by_wgmma(spec) or spec["align_d"] * DTYPES[spec["dtype_d"]].bytes >= VECTOR_BYTES:
        return 0
    m, n, _ = map(int, spec["cta_tile"].split("x"))
    aligned = PAIR_STORE_CLOCKS if spec["align_d"] > 1 else ELEMENT_STORE_CLOCKS
    return round(m * n * (SWAPPED_STORE_CLOCKS if spec.get("swap_ab") else aligned))


ACTIVATION_CLOCKS = {"relu": (0.02, 0.0), "gelu": (0.17, 0.085), "silu": (0.2, 0.1), "leaky_relu": (0.02, 0.0)}
"""SM clocks that an activation adds for each element of a wgmma tile: to the latency of a tile, and to the time of a tile if an SM
has several at a time. Others, and expressions, add nothing.

With one tile at a time, the time of a tile does not grow: it is a feature of the trees, which know no activation.
Source: benchmarks/data/activation_cost_h200.json. docs/performance-notes.md, "Activations in estimates".
"""


def activation_clocks(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Return what an activation adds to the latency of a tile, and to the time of a tile beside others. Units: SM clocks."""
    if not by_wgmma(spec):
        return 0, 0
    m, n, _ = map(int, spec["cta_tile"].split("x"))
    single, several = ACTIVATION_CLOCKS.get(spec["activation"], (0.0, 0.0))
    return round(m * n * single), round(m * n * several)


def corrected_clocks(clocks: Clocks, factors: Factors, level: int = OF_KERNEL) -> Clocks:
    """Return coefficients with the factors of their terms applied."""
    values = {
        name: round(getattr(clocks, name) * factor / ONE)
        for term, factor in zip(TERMS, factors, strict=True)
        for name in _TERMS[term]
    }
    return replace(clocks, **values, calibration=level)


def model_clocks_of(record: Mapping[str, Any], ctas_per_sm: int) -> Clocks:
    """Return the coefficients of a kernel with this occupancy, by the cost model alone."""
    spec, card = record["spec"], _card(record["arch"])
    shape, constants, mhz = KernelShape.of(spec, card, ctas_per_sm), fit_of(spec).constants, card["sm_mhz"]
    aligned, straddled = (cycles_of(shape, by_wgmma(spec), part, constants, mhz) for part in (0, 1))
    dram_bytes_per_clock = card.dram_gbytes_per_s * 1e3 * constants.dram_part / mhz
    l2_bytes_per_clock = constants.again_bytes_per_cycle * card.sms
    return Clocks(
        tiles_per_sm=shape.tiles_per_sm,
        cluster_ctas=shape.cluster_ctas,
        unusable_sms=max(card.sms - card.sms_in_clusters(shape.cluster_ctas), 0),
        k_tile=round(aligned.k_tile),
        straddling=round(straddled.k_tile - aligned.k_tile),
        tile=round(aligned.tile),
        single_k_tile=round(aligned.single_k_tile),
        single_tile=round(aligned.single_tile),
        launch=round(aligned.start),
        dram_start=round(constants.dram_start_us * mhz),
        dram_mib=round(MIB / dram_bytes_per_clock),
        l2=round(shape.loaded_bytes / l2_bytes_per_clock * (1 << L2_BITS)),
        l2_mib=round(MIB / l2_bytes_per_clock),
        split=round(constants.split_us * mhz),
        partial=round(shape.tile_m * shape.tile_n * ACCUMULATOR_BYTES / constants.store_bytes_per_cycle),
    )


def _card(arch: str) -> Card:
    number, _ = split_arch(arch)
    card = usual_card(CARD_ARCH.get(number, number))
    if card is None:
        raise KeyError(f"no card table for {arch}")
    return card


ROUND_WAITS = 3
"""A launch adds the cost of its splits once, and this often for each further round of split items: an SM's next item waits until
the partial sums of its tile are added. Source: 846 launches of 2 to 6 rounds in benchmarks/data/space_splits_h100.json."""


MIN_SHARING_SPLITS = 4
"""Splits from which on all CTAs of a tile finish it together, if all CTAs of the launch run at the same time. Each further one then
costs an eighth. With 2, sharing takes 3 % longer. Source: split_shares_h100.json and split_orders_h100.json in benchmarks/data."""


def partial_eighths(row: Row, splits: int, ctas: int, places: int) -> int:
    """Return how many parts a launch stores and adds, in eighths. `places` CTAs run at the same time."""
    sharing = row.persistent * (splits >= MIN_SHARING_SPLITS) * (ctas <= places)
    return 8 * splits - sharing * 7 * (splits - MIN_SHARING_SPLITS + 1)


SERIAL_PART_CLOCKS = 400
"""The time of each further part of k that a CTA adds itself. Without it, huge products would add parts for the sake of their last
tiles. Source: medians of 15 kernels on drawn problems, H100 and H200: 40 to 1,260."""


def estimate_clocks(row: Row, query: SelectionQuery, target: Target) -> int:
    """Return the estimated time of a launch with its default options. Units: SM clocks."""
    return min(launch_clocks(row, query, target, options) for options in candidate_options(row, query, target))


FORGIVEN_IN_ONE_WAVE, FORGIVEN = 7, 4
"""Sixteenths of what the busiest SM has more than the average that do not count: with at most one CTA per SM, and with more."""
OVERLAP_EIGHTHS = 5
"""Eighths of the shorter of the times of SMs and memory that a calibrated row adds to the longer; other rows add 4."""


MAX_ALIGNMENT = 512
"""Trees do not tell larger alignments apart."""


def features_of(row: Row, query: SelectionQuery, target: Target, clocks: int) -> tuple[int, ...]:
    """Return what the trees of a calibration compare, in the order of hgemm.model.trees.FEATURES.

    `clocks` is the estimate with the best options. Units: an alignment is the largest power of two that divides an extent, at most
        MAX_ALIGNMENT; percent of a wave; KiB of DRAM traffic and clocks of L2 for each 1000 clocks of the estimate.
    """
    m, n, k = query.m, query.n, query.k
    tiles, k_tiles = row.tiles(m, n), _ceil_div(maximum(k, 1), row.tile_k)
    loads = minimum(tiles * k_tiles, KIB_LIMIT) * row.l2_clocks >> L2_BITS
    alignments = [(one | MAX_ALIGNMENT) & -(one | MAX_ALIGNMENT) for one in (m, n, k)]
    return (
        *(m, n, k, LAYOUTS.index(query.kind.layout), query.straddling, *alignments),
        *(row.tile_m, row.tile_n, row.tile_k, row.cluster_m, row.cluster_n, row.splits, row.decides_splits),
        *(row.smem_bytes, row.tiles_per_sm, row.k_tile_clocks, row.tile_clocks, _ceil_div(k_tiles, row.splits)),
        *(100 * tiles * row.splits // sms_used(row, target), -m % row.tile_m, -n % row.tile_n),
        *(1000 * _dram_kib(row, query) // clocks, 1000 * loads // clocks, clocks),
    )


def has_trees(row: Row, query: SelectionQuery, clocks: int) -> bool:
    """Return whether the calibration's trees refine an estimate. They do so for single products of calibrated kernels."""
    is_single = query.batch == 1 and max(query.m, query.n, query.k) <= BOUND_LIMIT
    return is_single & (row.calibration > 0) & (0 < clocks) & (clocks <= BOUND_LIMIT)


def refined_clocks(row: Row, query: SelectionQuery, target: Target, clocks: int) -> int:
    """Return an estimate that the calibration's trees have refined."""
    if not has_trees(row, query, clocks):
        return clocks
    return clocks * refinement(calibration().trees, features_of(row, query, target, clocks)) // TREE_ONE


def refined_estimate(row: Row, query: SelectionQuery, target: Target) -> int:
    """Return the refined estimate of a launch with its default options. Units: SM clocks."""
    return refined_clocks(row, query, target, estimate_clocks(row, query, target))


LONG_CLOCKS = 100_000
"""Time on the SMs from which on a launch may run at the power limit."""
ENERGY_OF_EDGES, ENERGY_OF_LARGE_TILES, MOST_ENERGY = 8500, 87, 45
"""For 1/m + 1/n of a tile; the part of tiles of 256x160, which is not counted; the most. Units: 1/1000 of the time."""


def energy(row: Row) -> int:
    """Return how much longer the part of a launch beyond LONG_CLOCKS takes, because small tiles need more energy. Units: 1/1000.

    Small tiles read more operands for each result. At the power limit, the clock is then lower. Calibration data do not show
    this: in short blocks, all kernels run at the clock of their mixture. Half of the effect counts, because benchmarks compare
    kernels in short blocks, but a model runs one library alone. Source: H200, 24 tiles of two products, each alone for 0.4 s.
    Compared with short blocks, 128x128 loses 8 % to 256x160.
    """
    edges = ENERGY_OF_EDGES * (row.tile_m + row.tile_n) // (row.tile_m * row.tile_n)
    return row.tensor_maps * minimum(maximum(edges - ENERGY_OF_LARGE_TILES, 0), MOST_ENERGY)


def launch_clocks(row: Row, query: SelectionQuery, target: Target, options: LaunchOptions) -> int:
    """Return the estimated time of a launch, which has at most 2^31 - 1 CTA tiles. Units: SM clocks.

    Numbers may be arrays of one shape (hgemm.estimates), so conditions are factors here.

    If a row is calibrated, the SMs take less than the busiest one's time. A likely reason is power: SMs that wait leave more of it
    to the others. Source: benchmarks/calibration.py, cross-validation.
    """
    tiles, sms, resident = row.tiles(query.m, query.n) * query.batch, sms_used(row, target), tiles_per_sm(row, target)
    whole = options.whole_tiles * row.cluster_m * row.cluster_n
    extra = row.straddling_clocks * query.straddling // 2
    all_k_tiles = _ceil_div(maximum(query.k, 1), row.tile_k)
    shared = row.decides_splits * (options.splits > 1) * (tiles > whole)
    busy = single = loads = work = ctas = 0
    for items, k_tiles, stored in (
        (whole, all_k_tiles, row.serial_parts * (options.splits - 1) * SERIAL_PART_CLOCKS),
        ((tiles - whole) * options.splits, _ceil_div(all_k_tiles, options.splits), row.partial_clocks * shared),
    ):
        busiest = _ceil_div(items, sms)
        rounds = _ceil_div(busiest, resident)
        busy += busiest * (k_tiles * (row.k_tile_clocks + extra) + row.tile_clocks + stored)
        single += rounds * (k_tiles * (row.single_k_tile_clocks + extra) + row.single_tile_clocks + stored)
        loads += items * k_tiles
        work += items * (row.tile_clocks + stored)
        ctas += items
    sm, memory = minimum(maximum(busy, single), LIMIT), _memory(row, query, target, loads)
    calibrated, uses_tma = row.calibration > 0, row.tensor_maps
    average = (minimum(loads * (row.k_tile_clocks + extra), LIMIT) + work) // sms
    forgiven = calibrated * (FORGIVEN + (FORGIVEN_IN_ONE_WAVE - FORGIVEN) * (ctas <= sms))
    sm = sm - maximum(sm - average, 0) * forgiven // 16
    waves = uses_tma * -(-100 * ctas // sms) + (1 - uses_tma) * 100 * _ceil_div(query.m, row.tile_m)
    change = calibrated * (_wave_factor(row, waves) - ONE)
    sm = sm * (ONE + change) // ONE
    memory = memory * (ONE + (1 - uses_tma) * change) // ONE
    waits = 1 + ROUND_WAITS * (busiest - 1)  # `busiest` counts the split items
    partial = partial_eighths(row, options.splits, ctas, sms * resident) * row.partial_clocks // 8
    added = (row.split_clocks + partial) * shared * waits
    added = added + calibrated * maximum(sm - LONG_CLOCKS, 0) * energy(row) // ONE
    return minimum(row.launch_clocks + added + _overlapped(row, maximum(sm, memory), minimum(sm, memory)), LIMIT)


# ---- The options of a launch, if its kernel leaves them open ----

SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
MIN_SPLIT_K_TILES = 4
"""K-tiles of a split, at least. Fewer do not pay for storing its accumulators."""
MAX_SPLIT_WAVES = 2
"""Waves of CTAs beyond which more splits gain nothing."""
GROUPS = (1, 2, 4, 8, 16, 32)
MIN_PANEL = 4
"""Columns of tiles of a panel, at least, by default. Narrower panels were not measured."""


def candidate_options(row: Row, query: SelectionQuery, target: Target) -> list[LaunchOptions]:
    """Return the options that a launch may take, without its raster: those that can gain and whose workspace fits.

    The first one splits nothing. Others split all tiles, or those that follow the last full wave.
    """
    if not row.decides_splits:
        return [LaunchOptions(row.splits)]
    sizes, cluster = (query.m, query.n, query.batch), row.cluster_m * row.cluster_n
    tiles, sms = row.tiles(query.m, query.n) * query.batch, sms_used(row, target)
    most_by_k = _ceil_div(max(query.k, 1), row.tile_k) // MIN_SPLIT_K_TILES
    found = [LaunchOptions(1)]
    for whole in dict.fromkeys((0, tiles // sms * sms)):
        rest = tiles - whole
        most = min(most_by_k, MAX_SPLIT_WAVES * sms * tiles_per_sm(row, target) // max(1, rest))
        if 0 < rest <= WORKSPACE_COUNTERS:
            found += [LaunchOptions(splits, whole // cluster) for splits in SPLITS if splits <= most]
    return [one for one in found if row.workspace_bytes(*sizes, one) <= query.workspace_bytes]


def default_options(row: Row, query: SelectionQuery, target: Target) -> LaunchOptions:
    """Return the options that a launch takes if none are given or measured: the splits with the lowest estimate, and the default
    order of tiles.

    The exported C library takes the same ones (templates/capi/src/select.c).
    """
    options = min(candidate_options(row, query, target), key=lambda one: launch_clocks(row, query, target, one))
    return with_default_raster(row, query, target, options)


# ---- The order of tiles, if a launch decides it ----

_GPCS_OF_PAIRS = "6705" + "01234567" * 4 + "0124567" * 4 + "24"
GPCS = {1: "".join(2 * gpc for gpc in _GPCS_OF_PAIRS), 2: _GPCS_OF_PAIRS, 4: "01234567" * 2 + "0124567" * 2}
"""The GPC of each cluster of a launch on an idle GPU, one digit each, by the CTAs of a cluster. CTAs take a whole SM.

Source: the registers %smid of CTAs on an H100 and an H200. Six of their GPCs have 18 SMs, one has 16, one 8.
"""
ROUNDS_OF_PAIRS = range(4, 64)
"""The pairs that are dealt in rounds over the GPCs."""
GPC_SMS = len(GPCS[1])
STRIPS = (1, 2, 3, 4, 8, 16)
STRIPS_BY_GPC = (1, 2, 3, 4)
CTAS_BY_GPC = 2
"""Only clusters of two CTAs gain by an order by GPC. Source: docs/performance-notes.md."""
MOST_WAVES = 2
"""With more waves, the order gains little over the default one. Source: docs/performance-notes.md."""


def with_default_raster(row: Row, query: SelectionQuery, target: Target, options: LaunchOptions) -> LaunchOptions:
    """Return options with the default order of tiles for their splits."""
    return replace(options, raster_tiles=default_raster(row, query, target, options) if row.decides_raster else 1)


def default_raster(row: Row, query: SelectionQuery, target: Target, options: LaunchOptions) -> int:
    """Return the order of tiles of a launch: the best one in one or two waves, else groups or panels."""
    if options.splits > 1 or not has_gpcs(row, query, target):
        return default_strips(row, target, panels=options.splits == 1 and query.batch == 1)
    return orders_of_waves(row, query)[0]


def orders_of_waves(row: Row, query: SelectionQuery) -> tuple[int, ...]:
    """Return different orders of tiles, the best first, if `has_gpcs`."""
    extents = row.tile_m * row.cluster_m, row.tile_n * row.cluster_n
    return _orders_by_reads(*_grid(row, query), *extents, *_private(row), row.cluster_ctas)


def has_gpcs(row: Row, query: SelectionQuery, target: Target) -> bool:
    """Return whether the tiles run in one or two waves, on known GPCs, and their order decides what the GPCs read."""
    down, across = _grid(row, query)
    return (
        row.tensor_maps > 0
        and query.batch == 1
        and target.sms == GPC_SMS
        and 2 * row.smem_bytes > target.smem_bytes_per_cta
        and row.cluster_ctas == row.cluster_m * row.cluster_n
        and down * across <= MOST_WAVES * len(GPCS.get(row.cluster_ctas, ""))
        and any(_private(row))
    )


def _grid(row: Row, query: SelectionQuery) -> tuple[int, int]:
    """Return the rows and columns of clusters of one D."""
    return _ceil_div(query.m, row.tile_m * row.cluster_m), _ceil_div(query.n, row.tile_n * row.cluster_n)


def _private(row: Row) -> tuple[bool, bool]:
    """Return whether no multicast loads A, and B."""
    return row.cluster_n == 1, row.cluster_m == 1


@lru_cache(maxsize=1024)
def _orders_by_reads(
    down: int, across: int, of_a: int, of_b: int, private_a: bool, private_b: bool, ctas: int
) -> tuple[int, ...]:
    """Return the orders of a grid of (down, across) clusters by what is read, the least first.

    `of_a` and `of_b` are the extents of a cluster's part of A and B. A part counts once for each wave. If it is private, which
    means that no multicast loads it, it also counts once for each GPC.
    """
    gpcs = GPCS[ctas]
    widths = [*STRIPS, *(BY_GPC + width for width in STRIPS_BY_GPC if ctas == CTAS_BY_GPC)]
    rasters = [sign * width for width in widths for sign in (1, -1)]
    orders = {raster: tiles_in_order(raster, down, across, ctas) for raster in rasters}

    def reads(raster: int) -> int:
        total = 0
        for first in range(0, down * across, len(gpcs)):
            rows, columns = zip(*orders[raster][first : first + len(gpcs)])
            total += (len({*zip(gpcs, rows)}) if private_a else 0) * of_a + len({*rows}) * of_a
            total += (len({*zip(gpcs, columns)}) if private_b else 0) * of_b + len({*columns}) * of_b
        return total

    found: list[int] = []
    for raster in sorted(rasters, key=reads):
        if all(orders[raster] != orders[other] for other in found):
            found.append(raster)
    return tuple(found)


def tiles_in_order(raster: int, down: int, across: int, ctas: int = 1) -> list[tuple[int, int]]:
    """Return the row and column of each cluster of `ctas` CTAs. Scheduler::locate in templates/common/scheduler.cuh has the same
    order.
    """
    if raster < 0:
        return [(i, j) for j, i in tiles_in_order(-raster, across, down, ctas)]
    width = raster % BY_GPC
    strips = [range(first, min(first + width, down)) for first in range(0, down, width)]
    tiles = [(i, j) for strip in strips for j in range(across) for i in strip]
    if raster < BY_GPC or ctas != CTAS_BY_GPC:
        return tiles
    wave, found = len(GPCS[ctas]), []
    for first in range(0, len(tiles), wave):
        pairs = min(len(tiles) - first, wave)
        found += [tiles[first + position] for position in _positions(pairs)]
    return found


@lru_cache(maxsize=len(GPCS[CTAS_BY_GPC]))
def _positions(pairs: int) -> tuple[int, ...]:
    """Return the position of each pair of CTAs of a wave if those of a GPC follow one another, and those outside the rounds last.

    PlacesOfPairs in templates/common/scheduler.cuh has the same.
    """
    dealt = sorted((pair for pair in range(pairs) if pair in ROUNDS_OF_PAIRS), key=GPCS[2].__getitem__)
    in_order = [*dealt, *(pair for pair in range(pairs) if pair not in ROUNDS_OF_PAIRS)]
    return tuple(sorted(range(pairs), key=in_order.__getitem__))


def default_strips(row: Row, target: Target, panels: bool) -> int:
    """Return the groups of rows of tiles for which all SMs together load the least.

    With `panels`, if multicasts load A only, return panels of columns as a negative number: their neighbours share B.
    Source: docs/performance-notes.md, "The order of tiles of several waves".
    """
    down, across = row.tile_m * row.cluster_m, row.tile_n * row.cluster_n
    clusters = max(1, sms_used(row, target) // (row.cluster_m * row.cluster_n))
    in_panels = panels and _private(row) == (False, True)
    inner, outer = (across, down) if in_panels else (down, across)
    widths = [width for width in GROUPS if width >= MIN_PANEL or not in_panels]
    width = min(widths, key=lambda width: width * inner + _ceil_div(clusters, width) * outer)
    return -width if in_panels else width


def _overlapped(row: Row, longer: int, shorter: int) -> int:
    """Return about sqrt(longer^2 + shorter^2). A part below a quarter of the other adds nothing. Calibrated rows overlap less."""
    eighths = 4 + (OVERLAP_EIGHTHS - 4) * (row.calibration > 0)
    more = shorter * eighths // 8 - longer * eighths // 32
    return longer + maximum(more, 0)


def _wave_factor(row: Row, waves: int) -> int:
    """Return the factor of a row for these waves. Units: ONE is 1."""
    its_class = wave_class(row.tensor_maps, row.cluster_ctas, row.decides_splits, row.splits)
    if isinstance(waves, int):
        return calibration().waves[its_class][bisect_left(WAVE_BOUNDS, waves)]
    import numpy as np

    return calibration().wave_array[np.asarray(its_class, np.intp), np.searchsorted(WAVE_BOUNDS, waves)]


def minimum(x: int, y: int) -> int:
    """Return the lower number, or an array of them if one of them is an array."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    import numpy as np

    return np.minimum(x, y)


def maximum(x: int, y: int) -> int:
    """Return the higher number, or an array of them if one of them is an array."""
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    import numpy as np

    return np.maximum(x, y)


def _ceil_div(x: int, y: int) -> int:
    return -(-x // y)


DRAM_ONE = 1024
"""A factor of 1."""
CALIBRATED = 90
"""The architecture, as a number, that was measured."""
LEAST_GBYTES_PER_S, MOST_GBYTES_PER_S = 1000, 16000
"""Other speeds of DRAM are ignored."""


def dram_part(target: Target) -> int:
    """Return the factor of the time of DRAM. It is above DRAM_ONE if the GPU's DRAM is slower than DRAM_GBYTES_PER_S."""
    known = LEAST_GBYTES_PER_S <= target.dram_gbytes_per_s <= MOST_GBYTES_PER_S
    return (
        DRAM_ONE * DRAM_GBYTES_PER_S // target.dram_gbytes_per_s if known and target.number == CALIBRATED else DRAM_ONE
    )


def _memory(row: Row, query: SelectionQuery, target: Target, loads: int) -> int:
    """Return the time of DRAM to read A and B once and write D, plus that of L2 to read the rest."""
    kib = _dram_kib(row, query)
    loaded = minimum(loads, KIB_LIMIT) * row.l2_clocks >> L2_BITS
    l2 = maximum(loaded - (kib * row.l2_mib_clocks >> 10), 0)
    l2 = l2 + l2 * query.straddling // STRADDLING_PART
    return row.dram_start_clocks + (kib * (row.dram_mib_clocks * dram_part(target) // DRAM_ONE) >> 10) + l2


def _dram_kib(row: Row, query: SelectionQuery) -> int:
    """Return the DRAM traffic of reading A and B once, and of writing D."""
    operands = minimum((query.m + query.n) * query.k * query.batch, LIMIT)
    results = minimum(query.m * query.n * query.batch, LIMIT)
    return minimum((operands >> 10) * row.operand_bytes + (results >> 10) * row.result_bytes, KIB_LIMIT)


def sms_used(row: Row, target: Target) -> int:
    """Return the SMs of a device that the clusters of a kernel can use."""
    sms = target.sms - row.unusable_sms * (row.unusable_sms < target.sms)
    return maximum(sms // row.cluster_ctas, 1) * row.cluster_ctas


def tiles_per_sm(row: Row, target: Target) -> int:
    """Return the tiles that an SM processes at the same time, as far as its shared memory allows."""
    reserved = SMEM_RESERVED_BYTES_PER_CTA
    fitting = maximum((target.smem_bytes_per_cta + reserved) // (row.smem_bytes + reserved), 1)
    return minimum(row.tiles_per_sm, maximum(fitting, row.tensor_maps * row.tiles_per_sm))
