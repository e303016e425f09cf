"""Coverage of the launches of a proof, and the minimum for a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import or_
from typing import Any

from generator.proof.executor import Report
from hgemm.cases import FAR_ELEMENTS, TILES_PER_CTA
from hgemm.epilogue import PAIR_COLUMNS
from hgemm.launch import Matrix, ctas, matrices, splits_of
from hgemm.launch_traits import INPUT, LaunchTraits
from hgemm.problem import LaunchOptions, Problem

COVERAGE_CASE = "coverage of the cases"
"""The name of the check that fails if the cases cover too little."""
ROUNDS = 2.0
"""Rounds in which one tile must fill every stage. The second round waits for the first one, and its parity differs."""
_BOTH_WAYS = 3
"""Value in `Report.predicates` of a predicate that was both false and true."""
_EDGES = ("inside", "whole", "beyond")
"""An extent below one tile, of whole tiles, and of several tiles with a rest."""


@dataclass
class Coverage:
    """Coverage of the launches so far. `mma_per_k_tile` counts the tensor instructions of a CTA; 0 if it uses none."""

    traits: LaunchTraits
    mma_per_k_tile: int
    launches: int = 0
    rounds_per_tile: float = 0.0
    rounds_per_cta: float = 0.0
    tiles_per_cta: int = 0
    groups: int = 0
    splits: set[str] = field(default_factory=set)
    edges: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    far: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    predicates: tuple[int, ...] = ()

    def add(self, problem: Problem, grid: int, report: Report) -> None:
        """Add a launch of `grid` CTAs."""
        traits = self.traits
        self.launches += 1
        self._add_rounds(problem, grid, report)
        before = self.predicates or (0,) * len(report.predicates)
        self.predicates = tuple(map(or_, before, report.predicates))
        self.groups = max(self.groups, raster_groups(traits, problem))
        for name, extent, tile in zip("mnk", (problem.m, problem.n, problem.k), _tile(traits)):
            self.edges.add(f"{name} {_EDGES[0 if extent < tile else 1 if extent % tile == 0 else 2]}")
        places = matrices(problem, traits)
        self.far |= {name for name, place in places.items() if (place.rows - 1) * place.leading >= FAR_ELEMENTS}
        of_matrices = {*"ABCD", *(INPUT + one.name for one in traits.matrices)}
        strides = {name: place.leading for name, place in places.items() if name in of_matrices and _is_loose(place)}
        if len(strides) == len(places.keys() & of_matrices) == len({*strides.values()}):
            self.apart |= {*strides}
        self.shared |= {*_shared(problem, places)}

    def _add_rounds(self, problem: Problem, grid: int, report: Report) -> None:
        traits = self.traits
        splits, k_tiles = splits_of(traits, problem.options), -(-problem.k // traits.tile_k)
        if self.mma_per_k_tile:
            multiplied = sum(count for name, count in report.counters.items() if "mma" in name)
            self.rounds_per_cta = max(self.rounds_per_cta, multiplied / (grid * self.mma_per_k_tile) / traits.stages)
        self.rounds_per_tile = max(self.rounds_per_tile, k_tiles // splits / traits.stages)
        if splits > 1:
            self.splits.add("empty" if splits > k_tiles else "even" if k_tiles % splits == 0 else "uneven")
        items = ctas(traits, problem.m, problem.n, problem.batch, problem.options)
        self.tiles_per_cta = max(self.tiles_per_cta, items // grid)

    def record(self) -> dict[str, Any]:
        """Return what is covered, for the record of a proof."""
        return {
            "launches": self.launches,
            "stages": self.traits.stages,
            "rounds_per_tile": round(self.rounds_per_tile, 2),
            "rounds_per_cta": round(self.rounds_per_cta, 2),
            "tiles_per_cta": self.tiles_per_cta,
            "raster_groups": self.groups,
            "splits": sorted(self.splits),
            "edges": sorted(self.edges),
            "own_leading_dimensions": sorted(self.apart),
            "offsets_beyond_2_31": sorted(self.far),
            "shared_memory": sorted(self.shared),
            "predicates": len(self.predicates),
            "predicates_both_ways": self.predicates.count(_BOTH_WAYS),
        }

    def shortfalls(self) -> Iterator[str]:
        """Yield what the launches lack for a verdict."""
        traits = self.traits
        counted = (("CTA", self.rounds_per_cta),) if self.mma_per_k_tile else ()
        for name, rounds in (("tile", self.rounds_per_tile), *counted):
            if rounds < ROUNDS:
                yield f"a {name} fills the {traits.stages} stages {rounds:.2g} times; at least {ROUNDS:g} are needed"
        if (traits.persistent or traits.max_ctas) and self.tiles_per_cta < TILES_PER_CTA:
            yield f"a CTA computes {self.tiles_per_cta} tiles; at least {TILES_PER_CTA} are needed"
        if _has_groups(traits) and self.groups < 2:
            yield "no problem leaves the first group of the raster and ends within another one"
        missing = {f"{name} {edge}" for name in "mnk" for edge in _EDGES} - self.edges
        if traits.columns_of_d(2 * traits.tile_n) == traits.tile_n == 2 * PAIR_COLUMNS:
            missing -= {f"n {_EDGES[0]}"}  # one pair of blocks: no n is smaller
        if missing:
            yield f"no extent is {', '.join(sorted(missing))} of a tile"
        needed = {"empty", "uneven"} if traits.splits > 1 else {"uneven"} if traits.decides_splits else set()
        if needed - self.splits:
            yield f"no launch has {', '.join(sorted(needed - self.splits))} splits"
        operands = {*"ABCD"} if traits.beta else {*"ABD", *(INPUT + one.name for one in traits.matrices)}
        if operands - self.apart:
            yield f"the leading dimensions of {', '.join(sorted(operands))} never differ from one another and from the rows"
        if never := self.predicates.count(0):
            yield f"{never} of the {len(self.predicates)} instructions with a predicate never run"
        if operands - self.far:
            yield f"no offset in {', '.join(sorted(operands - self.far))} exceeds 2^31 elements"


def raster_groups(traits: LaunchTraits, problem: Problem) -> int:
    """Return the groups, or panels, of a problem if the last one is not full and its tiles are side by side, else 0.

    If the kernel fixes their width to one tile, or to one cluster, each of them is full. Then the last one may be full.
    """
    kind, _, size = traits.raster.partition(":")
    rows, columns = traits.tile_m * traits.cluster_shape[0], traits.tile_n * traits.cluster_shape[1]
    if traits.decides_raster:
        options = problem.options or LaunchOptions(raster_tiles=1)
        kind, step = ("group", rows) if options.raster_tiles > 0 else ("panel", columns)
        width = options.width
    elif kind in ("group", "panel"):
        step = rows if kind == "group" else columns
        width = max(1, int(size) * (traits.tile_m if kind == "group" else 1) // step)
    else:
        return 0
    across, along = (problem.m, problem.n) if kind == "group" else (problem.n, problem.m)
    tiles, beside = -(-across // step), -(-along // (columns if kind == "group" else rows))
    always_full = width == 1 and not traits.decides_raster
    return -(-tiles // width) if (tiles % width or always_full) and beside > 1 else 0


def _has_groups(traits: LaunchTraits) -> bool:
    return traits.decides_raster or traits.raster.partition(":")[0] in ("group", "panel")


def _tile(traits: LaunchTraits) -> tuple[int, int, int]:
    return traits.tile_m, traits.tile_n, traits.tile_k


def _is_loose(place: Matrix) -> bool:
    return place.rows > 1 and place.leading >= place.columns + place.align


def _shared(problem: Problem, places: dict[str, Matrix]) -> Iterator[str]:
    """Yield which operands of a launch share memory."""
    a, b, c, d = (places.get(name) for name in "ABCD")
    if a.pointer == b.pointer:
        yield "A is B"
    if c and c.pointer == d.pointer:
        yield "C is D"
    elif c and c.leading == d.leading and c.pointer < d.pointer < c.pointer + c.leading * c.element_bytes:
        yield "C beside D"
    for name, place in places.items():
        if problem.batch > 1 and place.batch_stride == 0:
            yield f"one {name} for the batch"
