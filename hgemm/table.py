"""The dispatch table of a library: its variants as numbers, in an order that depends on nothing but their records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from hgemm.cost import clocks_of
from hgemm.facts import Facts
from hgemm.images import cubin_runs, ptx_runs
from hgemm.kinds import Kind
from hgemm.launch import COUNTERS_ROUND_BYTES
from hgemm.target import Target

FORMAT = 1
EXACT, COMPATIBLE, PTX = range(3)
"""How a variant's code runs on a device, the preferred way first: its own cubin, an older one's, PTX."""


@dataclass(frozen=True)
class Row:
    """One variant as selection sees it.

    Units: elements for tiles and alignments, clocks of an SM where the name says so. `ctas_per_sm` are those that an SM
        needs to be busy: as many as were planned, unless fewer fit.
    """

    symbol: str
    group: int
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    splits: int
    ctas_per_sm: int
    smem_bytes: int
    align_a: int
    align_b: int
    align_d: int
    beta: int
    exact_tiles_only: int
    tensor_maps: int
    counter_bytes_per_tile: int
    partial_bytes_per_tile: int
    k_tile_clocks: int
    tile_clocks: int
    launch_clocks: int

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
        return counters + self.partial_bytes_per_tile * count


@dataclass(frozen=True)
class Group:
    """The variants of one architecture and one kind: rows `first` to `first + count`."""

    arch: str
    kind: int
    first: int
    count: int


@dataclass(frozen=True, order=True)
class Measured:
    """The rows that were measured to be fastest for one problem on one kind of device, the best first."""

    capability: int
    kind: int
    m: int
    n: int
    k: int
    batch: int
    rows: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        return astuple(self)[:-1]


@dataclass(frozen=True)
class Table:
    """Groups, newest architecture first; rows in the order of their groups; measurements in the order of their keys."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    measured: tuple[Measured, ...] = ()

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], measured: Iterable[tuple[Any, Sequence[str]]] = ()) -> Table:
        """Build it from records, and from pairs of a problem's key (see Measured) and symbols, the fastest first.

        Raises: LibraryError for a record that lacks what a launch needs.
        """
        found = sorted(((Facts.of(record), record) for record in records), key=lambda pair: _place(pair[0]))
        groups: list[Group] = []
        rows: list[Row] = []
        for facts, record in found:
            kind = kind_of(facts).code
            if not groups or (groups[-1].arch, groups[-1].kind) != (facts.arch, kind):
                groups.append(Group(facts.arch, kind, len(rows), 0))
            last = groups[-1]
            groups[-1] = Group(last.arch, last.kind, last.first, last.count + 1)
            rows.append(_row(facts, record, len(groups) - 1))
        return cls(tuple(groups), tuple(rows), _measured(measured, rows))

    def ways(self, target: Target) -> list[tuple[int, int]]:
        """Return the groups that run on a device as (way, group), the preferred way first."""
        ways = ((way_of(group.arch, target.capability), place) for place, group in enumerate(self.groups))
        return sorted((way, place) for way, place in ways if way is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON says it."""
        return {"format": FORMAT, **asdict(self)}


def kind_of(facts: Facts) -> Kind:
    """Return the kind of product that a variant computes."""
    return Kind(facts.layout, facts.dtype_a, facts.dtype_b, facts.dtype_d, facts.acc, facts.bias, facts.activation)


def way_of(arch: str, capability: tuple[int, int]) -> int | None:
    """Return how code for `arch` runs on a device of this compute capability; None where it does not."""
    if cubin_runs(arch, capability):
        number = int("".join(re.findall("[0-9]", arch)))
        return EXACT if divmod(number, 10) == capability else COMPATIBLE
    return PTX if ptx_runs(arch, capability) else None


def _place(facts: Facts) -> tuple:
    """Return what rows are sorted by. Of tiles that are thought equal the taller comes first.

    Source: benchmarks/data/mma_sync_h200.json: 256x128 beside 128x256, 2 to 3 % faster from 2048 to 8192.
    """
    number = int("".join(re.findall("[0-9]", facts.arch)))
    return -number, facts.arch, kind_of(facts).code, -facts.tile_m, facts.symbol


def _row(facts: Facts, record: Mapping[str, Any], group: int) -> Row:
    clocks = clocks_of(facts, record)
    return Row(
        symbol=facts.symbol,
        group=group,
        tile_m=facts.tile_m,
        tile_n=facts.tile_n,
        tile_k=facts.tile_k,
        cluster_m=facts.cluster_shape[0],
        cluster_n=facts.cluster_shape[1],
        splits=facts.splits,
        ctas_per_sm=max(1, min(record["resources"]["ctas_per_sm"], record["spec"]["ctas_per_sm"])),
        smem_bytes=facts.smem_bytes,
        align_a=facts.align_a,
        align_b=facts.align_b,
        align_d=facts.align_d,
        beta=int(facts.beta),
        exact_tiles_only=int(record["traits"]["exact_tiles_only"]),
        tensor_maps=int(bool(facts.tensor_maps)),
        counter_bytes_per_tile=facts.counter_bytes_per_tile,
        partial_bytes_per_tile=facts.partial_bytes_per_tile,
        k_tile_clocks=clocks.k_tile,
        tile_clocks=clocks.tile,
        launch_clocks=clocks.launch,
    )


def _measured(entries: Iterable[tuple[Any, Sequence[str]]], rows: Sequence[Row]) -> tuple[Measured, ...]:
    """Return the measurements by place; a symbol that the library no longer has is left out."""
    places = {row.symbol: place for place, row in enumerate(rows)}
    found = {tuple(key): tuple(places[symbol] for symbol in symbols if symbol in places) for key, symbols in entries}
    return tuple(sorted(Measured(*key, rows=order) for key, order in found.items() if order))
