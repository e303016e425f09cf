"""Which rows of a table serve a problem on a device, and what the others need."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hgemm.dispatch_table import AGAIN_BITS, PTX, Measured, Row, Survey, Table, clocks, overlapping, sms_used, way_of
from hgemm.errors import DEFAULT_LIBRARY, UnfitError, on
from hgemm.launch import MAX_CTAS
from hgemm.launch_traits import MAX_MAP_STRIDE_BYTES
from hgemm.measured import DOUBT, LEAST, MOST, ONE, ROWS_WEIGHT, STEP_BITS, WIDTH, Point, centred, distance, point
from hgemm.problem import Kind, serves
from hgemm.selection_query import Target, Wanted

FEWER_TILES = f"fewer CTA tiles ({MAX_CTAS} at most)"


def row_serves(row: Row, wanted: Wanted, target: Target) -> bool:
    """Tell whether a variant of the right kind takes a problem on a device that its code runs on."""
    return next(needs(row, wanted, target), None) is None


def needs(row: Row, wanted: Wanted, target: Target) -> Iterator[str]:
    """Yield what a variant would need to take a problem, and what there is of it; nothing where it serves."""
    w = wanted
    if row.align_a > w.align_a or row.align_b > w.align_b or row.align_d > w.align_d:
        yield f"more alignment (A, B and D have {w.align_a}, {w.align_b} and {w.align_d} elements)"
    if row.beta < w.beta:
        yield "beta 0"
    if row.smem_bytes > target.smem_bytes_per_cta:
        yield f"more shared memory (a CTA has {target.smem_bytes_per_cta} B)"
    if row.tensor_maps and (w.k == 0 or not w.mappable):
        yield f"addresses that TMA supports (k above 0, strides below {MAX_MAP_STRIDE_BYTES} B)"
    if row.exact_tiles_only and (w.m % row.tile_m or w.n % row.tile_n or w.k % row.tile_k or w.k == 0):
        yield "extents of whole tiles"
    if row.work(w.m, w.n, w.batch) > MAX_CTAS:
        yield FEWER_TILES
    elif row.workspace_bytes(w.m, w.n, w.batch) > w.workspace_bytes:
        yield f"more workspace ({w.workspace_bytes} B are given)"


# ==== Regions of problems ====


STEP = 1 << STEP_BITS - 1
"""Half an octave, in sixteenths of one."""
REGIONS_LEAST, COUNTS = (0, 16, 16), (28, 15, 14)
"""Of rows, n and k, the first half octave and how many follow: from 1 to 2^13.5, and from 2^8 to 2^15 and 2^14.5."""
STRAIGHT = math.prod(COUNTS)
"""Regions of problems whose rows begin on sectors; as many of the others follow."""
REGIONS = 2 * STRAIGHT
EXTENT_UNIT = 64
"""Columns and k of those are multiples of this, so that everything that is aligned serves."""
CORRECTED_LIMIT = 2**46
"""Clocks beyond which estimates count as equal where they are multiplied by a factor: the products stay below 2^63."""

Listed = tuple[tuple[int, int], ...]
"""Rows of a table, each with the factor, of nearness.ONE, by which its estimate is multiplied."""


def region_of(at: Point, straddling: int) -> int:
    """Return the number of the region that a problem lies in, of whose operands so many straddle sectors."""
    rows, columns, depth = (
        min(max((octaves + STEP // 2) // STEP - least, 0), count - 1)
        for octaves, least, count in zip((at[0] + at[3], at[1], at[2]), REGIONS_LEAST, COUNTS)
    )
    return (rows * COUNTS[1] + columns) * COUNTS[2] + depth + (STRAIGHT if straddling else 0)


def extents_in(region: int, apart: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return a problem of a region, so many sixteenths of an octave from its middle, as if its rows did not straddle."""
    rest, depth = divmod(region % STRAIGHT, COUNTS[2])
    places = (*divmod(rest, COUNTS[1]), depth)
    m, n, k = (
        _extent(max((place + least) * STEP + off, 0))
        for place, least, off in zip(places, REGIONS_LEAST, apart, strict=True)
    )
    return m, _up(n), _up(k), 1


def _extent(octaves: int) -> int:
    place, rest = octaves >> STEP_BITS, octaves & (1 << STEP_BITS) - 1
    return (1 << place) + (rest << place >> STEP_BITS)


def _up(extent: int) -> int:
    return -(-extent // EXTENT_UNIT) * EXTENT_UNIT


# ==== The short lists of a survey's regions: which few variants are worth estimating in each ====


LISTED = 8
"""Variants of a list that need no workspace."""
LISTED_WITH_WORKSPACE = 2
PLACES = (
    (0, 0, 0),
    (0, -1, -2),
    (-2, 1, -1),
    (2, -3, 1),
    (-3, 0, 2),
    (1, 2, -4),
    (-1, -2, -2),
    (3, 0, 0),
    (-4, 3, 1),
    (0, -4, 3),
    (-2, -1, -3),
    (2, 2, -2),
)
"""Where a region is looked at, in sixteenths of an octave from its middle along rows, n and k: spread evenly (Halton's points)."""
FAR = 4.0
"""A variant that takes so many times the best is no worse than one that does not serve."""


class Lists:
    """The lists of a survey's regions, each worked out when it is first asked for.

    It takes 11,760 regions times a hundred variants to export a library: numpy's arrays of floats stand in for hgemm.dispatch_table, whose
    numbers, of problems of this size, they agree with. Problems whose rows straddle L2's sectors correct no estimate: they say
    little of others. Source: benchmarks/LOG.md.
    """

    def __init__(self, table: Table, survey: Survey) -> None:
        self.target = Target.typical(f"sm_{survey.capability}", survey.sms)
        self._found: dict[int, Listed] = {}
        kind = Kind.of_code(survey.kind)
        straight = [one for one in survey.problems if not Wanted.dense(kind, one.extents).straddling]
        self._points = np.array([problem.point for problem in straight]).reshape(-1, 4)
        ways = {
            place: way_of(table.groups[row.group].arch, self.target.capability)
            for place, row in enumerate(table.rows)
            if serves(table.groups[row.group].kind, survey.kind)
        }
        best = min((way for way in ways.values() if way is not None), default=None)
        self.places = [place for place, way in ways.items() if way_serves(table.rows[place], way, best, self.target)]
        rows = [table.rows[place] for place in self.places]
        self._rows = {field.name: np.array([getattr(row, field.name) for row in rows]) for field in fields(Row)[1:]}
        self._sms = np.array([sms_used(row, self.target) for row in rows])
        self._overlapping = np.array([overlapping(row, self.target) for row in rows])
        self._with_workspace = np.array([row.workspace_bytes(1, 1, 1) > 0 for row in rows])
        logs = [centred(dict(problem.ratios)) for problem in straight]
        measured = np.array([[of.get(row, math.nan) for row in self.places] for of in logs]).reshape(
            len(logs), len(rows)
        )
        self._logs, self._measured = np.nan_to_num(measured), ~np.isnan(measured)

    def at(self, region: int) -> Listed:
        """Return the list of a region, first what does best in most of it: of the others it then suffices to know a part."""
        if region not in self._found:
            first = region - region % COUNTS[2]
            self._found |= self._listed(range(first, first + COUNTS[2]))
        return self._found[region]

    def _listed(self, regions: range) -> dict[int, Listed]:
        """Work out lists of regions that all straddle or all do not, together: that is several times as fast."""
        if not self.places:
            return dict.fromkeys(regions, ())
        samples = _samples(range(regions[0] % STRAIGHT, regions[0] % STRAIGHT + len(regions)))
        factors = np.array([self._factors(point(*map(int, middle))) for middle in samples[:: len(PLACES)]])
        costs = (
            self.estimates(samples, 2 * (regions[0] >= STRAIGHT)).reshape(len(regions), len(PLACES), -1)
            * factors[:, None]
        )
        least = costs.min(axis=2, keepdims=True)
        scores = np.minimum(costs / np.where(np.isfinite(least), least, 1), FAR)
        plain = _covering(np.where(self._with_workspace, FAR, scores), LISTED)
        others = _covering(np.where(self._with_workspace, scores, FAR), LISTED_WITH_WORKSPACE)
        return {
            region: tuple((self.places[at], int(its_factors[at])) for at in first + then)
            for region, first, then, its_factors in zip(regions, plain, others, factors, strict=True)
        }

    def _factors(self, at: Point) -> np.ndarray:
        """Return what hgemm.measured.Nearby.factors does, as an array: ONE where a variant was never measured."""
        weights = np.exp(-(np.abs(self._points - at) @ (ROWS_WEIGHT, 1, 1, ROWS_WEIGHT)) / WIDTH)
        exponents = weights @ self._logs / (weights @ self._measured + DOUBT)
        return np.clip(np.rint(ONE * np.exp(exponents)), LEAST, MOST)

    def estimates(self, problems: np.ndarray, straddling: int = 0) -> np.ndarray:
        """Return hgemm.dispatch_table.clocks of dense problems (m, n, k, batch), one a row, for each of `places`; inf where none serves."""
        r, more = self._rows, self._rows["straddled_clocks"] * straddling // 2
        m, n, k, batch = (problems[:, at : at + 1].astype(float) for at in range(4))
        clusters = np.ceil(m / (r["tile_m"] * r["cluster_m"])) * np.ceil(n / (r["tile_n"] * r["cluster_n"]))
        work = clusters * r["cluster_m"] * r["cluster_n"] * r["splits"] * batch
        k_tiles = np.ceil(np.ceil(k / r["tile_k"]) / r["splits"])
        busiest = np.ceil(work / self._sms)
        busy = busiest * (k_tiles * (r["k_tile_clocks"] + more) + r["tile_clocks"])
        alone = np.ceil(busiest / self._overlapping) * (
            k_tiles * (r["alone_k_tile_clocks"] + more) + r["alone_tile_clocks"]
        )
        kib = ((m + n) * k * batch // 1024) * r["operand_bytes"] + (m * n * batch // 1024) * r["result_bytes"]
        loaded = work * k_tiles * r["again_clocks"] // (1 << AGAIN_BITS)
        again = np.maximum(loaded - kib * r["again_mib_clocks"] // 1024, 0)
        sm, memory = np.maximum(busy, alone), r["memory_clocks"] + kib * r["mib_clocks"] // 1024 + again
        longer, shorter = np.maximum(sm, memory), np.minimum(sm, memory)
        found = r["launch_clocks"] + longer + np.maximum(shorter // 2 - longer // 8, 0)
        whole = (m % r["tile_m"] == 0) & (n % r["tile_n"] == 0) & (k % r["tile_k"] == 0)
        return np.where((r["exact_tiles_only"] == 0) | whole, found, np.inf)


def way_serves(row: Row, way: int | None, best: int | None, target: Target) -> bool:
    """Tell whether a variant's code runs in the best way that there is, and its shared memory fits."""
    return way is not None and way == best and row.smem_bytes <= target.smem_bytes_per_cta


@lru_cache(STRAIGHT // COUNTS[2])
def _samples(regions: range) -> np.ndarray:
    """Return the problems at which regions are looked at, which are those of every survey."""
    return np.array([extents_in(region, apart) for region in regions for apart in PLACES])


def _covering(scores: np.ndarray, count: int) -> list[list[int]]:
    """Return so many variants of each region, one after the other that which leaves the least over the best at all places together.

    Shapes: scores (region, place, variant).
    """
    regions = np.arange(len(scores))
    chosen: list[list[int]] = [[] for _ in regions]
    least = np.full((*scores.shape[:2], 1), FAR)
    useful, taken = scores.min(axis=1) < FAR, np.zeros((len(scores), scores.shape[2]), bool)
    goes_on = np.ones(len(scores), bool)
    for _ in range(count):
        best = np.where(taken, math.inf, np.minimum(scores, least).sum(1)).argmin(1)
        goes_on &= useful[regions, best] & ~taken[regions, best]
        for region in np.flatnonzero(goes_on):
            chosen[region].append(int(best[region]))
        taken[regions, best] = True
        least = np.minimum(least, scores[regions, :, best][:, :, None])
    return chosen


# ==== Which variant of a table computes a problem on a device ====


ESTIMATED, NEAR, MEASURED = range(3)
"""What decided, as hgemm_rule says it."""


@dataclass(frozen=True)
class Choice:
    """What was chosen: the table's row, how its code runs, what that launch needs, and the rule that decided.

    Units: `clocks` of an SM, as estimated. Fields: `near` is the problem that was measured there, or the nearest one, where
        measurements decided, and `factor`, of nearness.ONE, what they corrected the estimate by.
    """

    row: Row
    way: int
    clocks: int
    workspace_bytes: int
    rule: int = ESTIMATED
    near: Measured | None = None
    factor: int = ONE

    @property
    def symbol(self) -> str:
        return self.row.symbol

    @property
    def code(self) -> str:
        return "ptx" if self.way == PTX else "cubin"


class Selector:
    """A table on one device; `library` is the folder that it is of."""

    def __init__(self, table: Table, target: Target, library: Path = DEFAULT_LIBRARY) -> None:
        self.table, self.target, self.library = table, target, library
        self.ways = table.ways(target)
        self._lists: dict[int, Any] = {}

    @cached_property
    def surveys(self) -> dict[int, Survey]:
        """Return by kind what was measured on devices of this capability whose SMs are nearest in number, the fewer first."""
        found: dict[int, Survey] = {}
        for survey in self.table.surveys:
            if survey.capability == self.target.number:
                other = found.get(survey.kind)
                if other is None or self._far(survey) < self._far(other):
                    found[survey.kind] = survey
        return found

    def _far(self, survey: Survey) -> int:
        return abs(survey.sms - self.target.sms)

    def find(self, wanted: Wanted) -> Choice | None:
        """Return the variant for a problem whose extents are all 1 or more, k also 0; None where there is none."""
        by_way: dict[int, list[int]] = {}
        for way, place in self._serving(wanted):
            by_way.setdefault(way, []).append(place)
        for way, places in sorted(by_way.items()):
            return self._best(places, way, wanted)
        return None

    def _best(self, places: Sequence[int], way: int, wanted: Wanted) -> Choice:
        survey = self.surveys.get(wanted.kind.code)
        if survey:
            if survey.sms == self.target.sms:
                extents = (wanted.m, wanted.n, wanted.k, wanted.batch)
                measured = next((one for one in survey.problems if one.extents == extents), None)
                best = next((row for row in measured.order if row in places), None) if measured else None
                if best is not None:
                    return self._choice(best, way, wanted, MEASURED, measured)
            listed = self.listed(wanted)
            scores = {row: factor * self._limited(row, wanted) for row, factor in listed.items() if row in places}
            if scores:
                best = min(scores, key=scores.__getitem__)
                near = min(survey.problems, key=lambda problem: distance(problem.point, wanted.point))
                return self._choice(best, way, wanted, NEAR, near, listed[best])
        return self._choice(min(places, key=lambda place: self._clocks(place, wanted)), way, wanted)

    def listed(self, wanted: Wanted) -> dict[int, int]:
        """Return the rows that are estimated in a problem's region, with their factors; none where nothing was measured."""
        survey = self.surveys.get(wanted.kind.code)
        if survey is None:
            return {}
        if survey.kind not in self._lists:
            pass  # merged  # numpy, which nothing else here needs

            self._lists[survey.kind] = Lists(self.table, survey)
        return dict(self._lists[survey.kind].at(region_of(wanted.point, wanted.straddling)))

    def _limited(self, row: int, wanted: Wanted) -> int:
        return min(self._clocks(row, wanted), CORRECTED_LIMIT)

    def choose(self, wanted: Wanted) -> Choice:
        """Return the variant for a problem. Raises UnfitError, saying what is missing, where there is none."""
        found = self.find(wanted)
        if found is None:
            raise UnfitError(self._reason(wanted))
        return found

    def ranked(self, wanted: Wanted) -> list[Choice]:
        """Return all variants that serve a problem, the chosen one first, the others by their estimates."""
        best = self.find(wanted)
        found = [self._choice(place, way, wanted) for way, place in self._serving(wanted)]
        others = sorted(found, key=lambda choice: (choice.way, choice.clocks))
        return [best, *(choice for choice in others if choice.row is not best.row)] if best else []

    def _serving(self, wanted: Wanted) -> Iterator[tuple[int, int]]:
        for way, place in self.ways:
            group = self.table.groups[place]
            if serves(group.kind, wanted.kind.code):
                for row in range(group.first, group.first + group.count):
                    if row_serves(self.table.rows[row], wanted, self.target):
                        yield way, row

    def _clocks(self, place: int, wanted: Wanted) -> int:
        return clocks(self.table.rows[place], wanted, self.target)

    def _choice(
        self,
        place: int,
        way: int,
        wanted: Wanted,
        rule: int = ESTIMATED,
        near: Measured | None = None,
        factor: int = ONE,
    ) -> Choice:
        row = self.table.rows[place]
        needed = row.workspace_bytes(wanted.m, wanted.n, wanted.batch)
        return Choice(row, way, self._clocks(place, wanted), needed, rule, near, factor)

    def _reason(self, wanted: Wanted) -> str:
        kinds = {self.table.groups[place].kind for _, place in self.ways}
        if not kinds:
            there = sorted({group.arch for group in self.table.groups})
            return f"no variant runs on {self.target.name}: the library has {', '.join(there) or 'none'}"
        if wanted.kind.dtype_a != wanted.kind.dtype_b or wanted.kind.dtype_a == "f32":
            return f"no kernel computes {wanted.kind}: A and B are both f16, both bf16, or f32 multiplied as tf32"
        cover = f"hgemm cover --arch {self.target.number} {wanted.kind.cover_options} --add{on(self.library)}"
        way_out = f"`{cover}` makes one"
        if not any(serves(kind, wanted.kind.code) for kind in kinds):
            return f"no variant computes {wanted.kind} on {self.target.name}: {way_out}"
        rows = [
            row
            for _, place in self.ways
            if serves((group := self.table.groups[place]).kind, wanted.kind.code)
            for row in self.table.rows[group.first : group.first + group.count]
        ]
        counts = Counter(need for row in rows for need in needs(row, wanted, self.target))
        told = ", ".join(f"{count} of {len(rows)} need {need}" for need, count in counts.most_common())
        extents = f"{wanted.m}x{wanted.n}x{wanted.k}"
        hint = "" if counts[FEWER_TILES] == len(rows) else f"; {way_out}"
        return f"no variant for {wanted.kind} on {self.target.name} takes {extents}: {told}{hint}"
