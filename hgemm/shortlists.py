"""Shortlists: for each region of the octave grid, the few variants worth estimating, corrected by measurements nearby."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from hgemm.dispatch_table import (
    L2_BITS,
    MAX_SPLIT_WAVES,
    MIN_SPLIT_K_TILES,
    SPLITS,
    DispatchTable,
    Row,
    Survey,
    code_match,
    sms_used,
    tiles_per_sm,
)
from hgemm.launch import WORKSPACE_COUNTERS
from hgemm.octave_grid import (
    ALIGNED_REGIONS,
    DECAY_DISTANCE,
    ESTIMATE_WEIGHT,
    FACTOR_ONE,
    MAX_FACTOR,
    MIN_FACTOR,
    REGION_COUNTS,
    REGIONS,
    ROWS_WEIGHT,
    Point,
    Shortlist,
    centered_logs,
    point,
    sample_extents,
)
from hgemm.problem import Kind, kind_supports
from hgemm.selection_query import SelectionQuery, Target

SHORTLIST_LENGTH = 8
"""Variants of a shortlist that need no workspace."""
SHORTLIST_WITH_WORKSPACE = 2
"""Variants of a shortlist that need one."""
SAMPLE_OFFSETS = (
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
"""Sample points of a region as offsets from its middle along rows, n and k (Halton points). Units: sixteenths of an octave."""
BATCH = 5 * REGION_COUNTS[2]
"""Regions that an export computes at a time. Fewer and more take longer."""
MAX_RATIO = 4.0
"""Times are capped at this multiple of the best one. Variants that do not support a problem count as this slow."""


class RegionShortlists:
    """The shortlists of a survey's regions, each computed on first use.

    An export needs all 11,760 regions times a hundred variants, so estimates are NumPy arrays here. They agree with
    hgemm.dispatch_table.estimate_clocks for problems of these sizes. Problems whose rows straddle L2 sectors correct no
    estimate. Source: docs/performance-notes.md.
    """

    def __init__(self, table: DispatchTable, survey: Survey) -> None:
        self.target = Target.typical(f"sm_{survey.capability}", survey.sms)
        self._found: dict[int, Shortlist] = {}
        kind = Kind.from_code(survey.kind)
        aligned = [one for one in survey.problems if not SelectionQuery.dense(kind, one.extents).straddling]
        self._points = np.array([problem.point for problem in aligned]).reshape(-1, 4)
        matches = {
            place: code_match(table.groups[row.group].arch, self.target.capability)
            for place, row in enumerate(table.rows)
            if kind_supports(table.groups[row.group].kind, survey.kind)
        }
        best = min((match for match in matches.values() if match is not None), default=None)
        self.places = [at for at, match in matches.items() if _usable(table.rows[at], match, best, self.target)]
        rows = [table.rows[place] for place in self.places]
        columns = {field.name: np.array([getattr(row, field.name) for row in rows]) for field in fields(Row)[1:]}
        columns["sms"] = np.array([sms_used(row, self.target) for row in rows])
        columns["resident"] = np.array([tiles_per_sm(row, self.target) for row in rows])
        self._rows: Columns = columns
        self._deciding = np.flatnonzero(columns["decides_splits"]) if rows else np.array([], int)
        self._with_workspace = np.array([row.workspace_bytes(1, 1, 1) > 0 for row in rows])
        logs = [centered_logs(dict(problem.ratios)) for problem in aligned]
        measured = np.array([[of.get(row, math.nan) for row in self.places] for of in logs]).reshape(
            len(logs), len(rows)
        )
        self._logs, self._measured = np.nan_to_num(measured), ~np.isnan(measured)

    def at(self, region: int) -> Shortlist:
        """Return the shortlist of a region. The variants that are the best in most of it come first."""
        if region not in self._found:
            first = region - region % REGION_COUNTS[2]
            self._found |= self._compute(range(first, first + REGION_COUNTS[2]))
        return self._found[region]

    def every(self) -> list[Shortlist]:
        """Return the shortlists of all regions, in order."""
        for first in range(0, REGIONS, BATCH):
            self._found |= self._compute(range(first, first + BATCH))
        return [self._found[region] for region in range(REGIONS)]

    def _compute(self, regions: range) -> dict[int, Shortlist]:
        """Return the shortlists of regions that all straddle sectors or all do not. A batch of them is several times as fast."""
        if not self.places:
            return dict.fromkeys(regions, ())
        samples = _samples(range(regions[0] % ALIGNED_REGIONS, regions[0] % ALIGNED_REGIONS + len(regions)))
        factors = np.array([self._factors(point(*map(int, middle))) for middle in samples[:: len(SAMPLE_OFFSETS)]])
        costs = (
            self.estimates(samples, 2 * (regions[0] >= ALIGNED_REGIONS)).reshape(len(regions), len(SAMPLE_OFFSETS), -1)
            * factors[:, None]
        )
        fastest = costs.min(axis=2, keepdims=True)
        scores = np.minimum(costs / np.where(np.isfinite(fastest), fastest, 1), MAX_RATIO)
        plain = _greedy_cover(np.where(self._with_workspace, MAX_RATIO, scores), SHORTLIST_LENGTH)
        others = _greedy_cover(np.where(self._with_workspace, scores, MAX_RATIO), SHORTLIST_WITH_WORKSPACE)
        return {
            region: tuple((self.places[at], int(of_region[at])) for at in first + then)
            for region, first, then, of_region in zip(regions, plain, others, factors, strict=True)
        }

    def _factors(self, at: Point) -> np.ndarray:
        """Return hgemm.octave_grid.Corrections.factors as an array, with FACTOR_ONE for unmeasured variants."""
        weights = np.exp(-(np.abs(self._points - at) @ (ROWS_WEIGHT, 1, 1, ROWS_WEIGHT)) / DECAY_DISTANCE)
        exponents = weights @ self._logs / (weights @ self._measured + ESTIMATE_WEIGHT)
        factors: np.ndarray = np.clip(np.rint(FACTOR_ONE * np.exp(exponents)), MIN_FACTOR, MAX_FACTOR)
        return factors

    def estimates(self, problems: np.ndarray, straddling: int = 0) -> np.ndarray:
        """Return the estimated times, inf for unsupported problems.

        Shapes: problems (problem, 4) are m, n, k and batch of dense operands; the result is (problem, place).
        Units: SM clocks.
        """
        r = self._rows
        extents = m, n, k, _ = problems.T[:, :, None].astype(float)
        found = _clocks(r, extents, straddling, r["splits"], 0)
        if self._deciding.size:
            found[:, self._deciding] = np.minimum(found[:, self._deciding], self._split_clocks(extents, straddling))
        whole = (m % r["tile_m"] == 0) & (n % r["tile_n"] == 0) & (k % r["tile_k"] == 0)
        return np.where((r["exact_tiles_only"] == 0) | whole, found, np.inf)

    def _split_clocks(self, extents: np.ndarray, straddling: int) -> np.ndarray:
        """Return the lowest estimate of the splits that launches may take, as hgemm.dispatch_table.candidate_options.

        Shapes: (problem, row), of the rows whose launches decide the splits.
        """
        r = _part(self._rows, self._deciding)
        tiles, k_tiles = _tiles(r, extents), np.ceil(extents[2] / r["tile_k"])
        found = np.full(tiles.shape, np.inf)
        whole_waves = tiles // r["sms"] * r["sms"]
        for whole, useful in ((np.zeros_like(tiles), True), (whole_waves, whole_waves > 0)):
            rest = tiles - whole
            most = MAX_SPLIT_WAVES * r["sms"] * r["resident"] // np.maximum(rest, 1)
            most = np.minimum(k_tiles // MIN_SPLIT_K_TILES, most)
            most = np.where((0 < rest) & (rest <= WORKSPACE_COUNTERS) & useful, most, 0)
            for splits in SPLITS:
                problem, row = at = np.nonzero(splits <= most)
                if row.size:
                    clocks = _clocks(_part(r, row), extents[:, problem, 0], straddling, splits, whole[at])
                    found[at] = np.minimum(found[at], clocks)
        return found


Columns = dict[str, np.ndarray]
"""Fields of rows by name, with `sms` and `resident`: the SMs that each row uses, and its tiles per SM. Shapes: (row)."""


def _part(r: Columns, at: np.ndarray) -> Columns:
    """Return some of the rows."""
    return {name: column[at] for name, column in r.items()}


def _tiles(r: Columns, extents: np.ndarray) -> np.ndarray:
    m, n, _, batch = extents
    clusters = np.ceil(m / (r["tile_m"] * r["cluster_m"])) * np.ceil(n / (r["tile_n"] * r["cluster_n"]))
    tiles: np.ndarray = clusters * r["cluster_m"] * r["cluster_n"] * batch
    return tiles


def _clocks(r: Columns, extents: np.ndarray, straddling: int, splits: Any, whole: Any) -> np.ndarray:
    """Return hgemm.dispatch_table.launch_clocks of rows. The first `whole` tiles are not split.

    Shapes: extents (4, problem, 1) and r (row) give (problem, row); extents (4, pair) and r (pair) give (pair).
    """
    extra = r["straddling_clocks"] * straddling // 2
    m, n, k, batch = extents
    tiles, all_k_tiles = _tiles(r, extents), np.ceil(k / r["tile_k"])
    shared = (r["decides_splits"] > 0) & (splits > 1) & (tiles > whole)
    busy = single = loads = work = 0
    for items, k_tiles, stored in (
        (whole, all_k_tiles, 0),
        ((tiles - whole) * splits, np.ceil(all_k_tiles / splits), r["partial_clocks"] * shared),
    ):
        busiest = np.ceil(items / r["sms"])
        rounds = np.ceil(busiest / r["resident"])
        busy = busy + busiest * (k_tiles * (r["k_tile_clocks"] + extra) + r["tile_clocks"] + stored)
        single = single + rounds * (k_tiles * (r["single_k_tile_clocks"] + extra) + r["single_tile_clocks"] + stored)
        loads = loads + items * k_tiles
        work = work + items * (r["tile_clocks"] + stored)
    kib = ((m + n) * k * batch // 1024) * r["operand_bytes"] + (m * n * batch // 1024) * r["result_bytes"]
    loaded = loads * r["l2_clocks"] // (1 << L2_BITS)
    l2 = np.maximum(loaded - kib * r["l2_mib_clocks"] // 1024, 0)
    sm = np.maximum(busy, single)
    average = (loads * (r["k_tile_clocks"] + extra) + work) // r["sms"]
    sm = sm - np.maximum(sm - average, 0) // 2 * (r["calibration"] > 0)
    memory = r["dram_start_clocks"] + kib * r["dram_mib_clocks"] // 1024 + l2
    longer, shorter = np.maximum(sm, memory), np.minimum(sm, memory)
    added = (r["split_clocks"] + splits * r["partial_clocks"]) * shared
    clocks: np.ndarray = r["launch_clocks"] + added + longer + np.maximum(shorter // 2 - longer // 8, 0)
    return clocks


def _usable(row: Row, match: int | None, best: int | None, target: Target) -> bool:
    """Return whether a variant's code has the best code match of all, and its shared memory fits."""
    return match is not None and match == best and row.smem_bytes <= target.smem_bytes_per_cta


@lru_cache(ALIGNED_REGIONS // REGION_COUNTS[2])
def _samples(regions: range) -> np.ndarray:
    """Return the sample problems of regions. All surveys share them. Shapes: (region * sample, 4)."""
    return np.array([sample_extents(region, offset) for region in regions for offset in SAMPLE_OFFSETS])


def _greedy_cover(scores: np.ndarray, count: int) -> list[list[int]]:
    """Return `count` variants of each region, chosen greedily: each one reduces the sum of the best scores the most.

    Shapes: scores (region, sample, variant).
    """
    regions = np.arange(len(scores))
    chosen: list[list[int]] = [[] for _ in regions]
    covered = np.full((*scores.shape[:2], 1), MAX_RATIO)
    useful, taken = scores.min(axis=1) < MAX_RATIO, np.zeros((len(scores), scores.shape[2]), bool)
    unfinished = np.ones(len(scores), bool)
    for _ in range(count):
        best = np.where(taken, math.inf, np.minimum(scores, covered).sum(1)).argmin(1)
        unfinished &= useful[regions, best] & ~taken[regions, best]
        for region in np.flatnonzero(unfinished):
            chosen[region].append(int(best[region]))
        taken[regions, best] = True
        covered = np.minimum(covered, scores[regions, :, best][:, :, None])
    return chosen
