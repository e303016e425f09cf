"""The short lists of a survey's regions: which few variants are worth estimating in each."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache

import numpy as np

from hgemm.dispatch_table import AGAIN_BITS, DispatchTable, Row, Survey, code_match, sms_used, tiles_per_sm
from hgemm.octave_grid import (
    ALIGNED_REGIONS,
    DECAY_DISTANCE,
    ESTIMATE_WEIGHT,
    FACTOR_ONE,
    MAX_FACTOR,
    MIN_FACTOR,
    REGION_COUNTS,
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
"""Variants of a list that need no workspace."""
SHORTLIST_WITH_WORKSPACE = 2
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
"""Where a region is looked at, in sixteenths of an octave from its middle along rows, n and k: spread evenly (Halton's points)."""
MAX_RATIO = 4.0
"""A variant that takes so many times the best is no worse than one that does not serve."""


class RegionShortlists:
    """The lists of a survey's regions, each worked out when it is first asked for.

    It takes 11,760 regions times a hundred variants to export a library: numpy's arrays of floats stand in for hgemm.dispatch_table, whose
    numbers, of problems of this size, they agree with. Problems whose rows straddle L2's sectors correct no estimate: they say
    little of others. Source: docs/performance-notes.md.
    """

    def __init__(self, table: DispatchTable, survey: Survey) -> None:
        self.target = Target.typical(f"sm_{survey.capability}", survey.sms)
        self._found: dict[int, Shortlist] = {}
        kind = Kind.from_code(survey.kind)
        straight = [one for one in survey.problems if not SelectionQuery.dense(kind, one.extents).straddling]
        self._points = np.array([problem.point for problem in straight]).reshape(-1, 4)
        ways = {
            place: code_match(table.groups[row.group].arch, self.target.capability)
            for place, row in enumerate(table.rows)
            if kind_supports(table.groups[row.group].kind, survey.kind)
        }
        best = min((way for way in ways.values() if way is not None), default=None)
        self.places = [place for place, way in ways.items() if way_serves(table.rows[place], way, best, self.target)]
        rows = [table.rows[place] for place in self.places]
        self._rows = {field.name: np.array([getattr(row, field.name) for row in rows]) for field in fields(Row)[1:]}
        self._sms = np.array([sms_used(row, self.target) for row in rows])
        self._tiles_per_sm = np.array([tiles_per_sm(row, self.target) for row in rows])
        self._with_workspace = np.array([row.workspace_bytes(1, 1, 1) > 0 for row in rows])
        logs = [centered_logs(dict(problem.ratios)) for problem in straight]
        measured = np.array([[of.get(row, math.nan) for row in self.places] for of in logs]).reshape(
            len(logs), len(rows)
        )
        self._logs, self._measured = np.nan_to_num(measured), ~np.isnan(measured)

    def at(self, region: int) -> Shortlist:
        """Return the list of a region, first what does best in most of it: of the others it then suffices to know a part."""
        if region not in self._found:
            first = region - region % REGION_COUNTS[2]
            self._found |= self._listed(range(first, first + REGION_COUNTS[2]))
        return self._found[region]

    def _listed(self, regions: range) -> dict[int, Shortlist]:
        """Work out lists of regions that all straddle or all do not, together: that is several times as fast."""
        if not self.places:
            return dict.fromkeys(regions, ())
        samples = _samples(range(regions[0] % ALIGNED_REGIONS, regions[0] % ALIGNED_REGIONS + len(regions)))
        factors = np.array([self._factors(point(*map(int, middle))) for middle in samples[:: len(SAMPLE_OFFSETS)]])
        costs = (
            self.estimates(samples, 2 * (regions[0] >= ALIGNED_REGIONS)).reshape(len(regions), len(SAMPLE_OFFSETS), -1)
            * factors[:, None]
        )
        least = costs.min(axis=2, keepdims=True)
        scores = np.minimum(costs / np.where(np.isfinite(least), least, 1), MAX_RATIO)
        plain = _covering(np.where(self._with_workspace, MAX_RATIO, scores), SHORTLIST_LENGTH)
        others = _covering(np.where(self._with_workspace, scores, MAX_RATIO), SHORTLIST_WITH_WORKSPACE)
        return {
            region: tuple((self.places[at], int(its_factors[at])) for at in first + then)
            for region, first, then, its_factors in zip(regions, plain, others, factors, strict=True)
        }

    def _factors(self, at: Point) -> np.ndarray:
        """Return what hgemm.octave_grid.Corrections.factors does, as an array: ONE where a variant was never measured."""
        weights = np.exp(-(np.abs(self._points - at) @ (ROWS_WEIGHT, 1, 1, ROWS_WEIGHT)) / DECAY_DISTANCE)
        exponents = weights @ self._logs / (weights @ self._measured + ESTIMATE_WEIGHT)
        return np.clip(np.rint(FACTOR_ONE * np.exp(exponents)), MIN_FACTOR, MAX_FACTOR)

    def estimates(self, problems: np.ndarray, straddling: int = 0) -> np.ndarray:
        """Return hgemm.dispatch_table.estimate_clocks of dense problems (m, n, k, batch), one a row, for each of `places`; inf where none serves."""
        r, more = self._rows, self._rows["straddling_clocks"] * straddling // 2
        m, n, k, batch = (problems[:, at : at + 1].astype(float) for at in range(4))
        clusters = np.ceil(m / (r["tile_m"] * r["cluster_m"])) * np.ceil(n / (r["tile_n"] * r["cluster_n"]))
        work = clusters * r["cluster_m"] * r["cluster_n"] * r["splits"] * batch
        k_tiles = np.ceil(np.ceil(k / r["tile_k"]) / r["splits"])
        busiest = np.ceil(work / self._sms)
        busy = busiest * (k_tiles * (r["k_tile_clocks"] + more) + r["tile_clocks"])
        single = np.ceil(busiest / self._tiles_per_sm) * (
            k_tiles * (r["single_k_tile_clocks"] + more) + r["single_tile_clocks"]
        )
        kib = ((m + n) * k * batch // 1024) * r["operand_bytes"] + (m * n * batch // 1024) * r["result_bytes"]
        loaded = work * k_tiles * r["l2_clocks"] // (1 << AGAIN_BITS)
        again = np.maximum(loaded - kib * r["l2_mib_clocks"] // 1024, 0)
        sm, memory = np.maximum(busy, single), r["dram_start_clocks"] + kib * r["dram_mib_clocks"] // 1024 + again
        longer, shorter = np.maximum(sm, memory), np.minimum(sm, memory)
        found = r["launch_clocks"] + longer + np.maximum(shorter // 2 - longer // 8, 0)
        whole = (m % r["tile_m"] == 0) & (n % r["tile_n"] == 0) & (k % r["tile_k"] == 0)
        return np.where((r["exact_tiles_only"] == 0) | whole, found, np.inf)


def way_serves(row: Row, way: int | None, best: int | None, target: Target) -> bool:
    """Tell whether a variant's code runs in the best way that there is, and its shared memory fits."""
    return way is not None and way == best and row.smem_bytes <= target.smem_bytes_per_cta


@lru_cache(ALIGNED_REGIONS // REGION_COUNTS[2])
def _samples(regions: range) -> np.ndarray:
    """Return the problems at which regions are looked at, which are those of every survey."""
    return np.array([sample_extents(region, apart) for region in regions for apart in SAMPLE_OFFSETS])


def _covering(scores: np.ndarray, count: int) -> list[list[int]]:
    """Return so many variants of each region, one after the other that which leaves the least over the best at all places together.

    Shapes: scores (region, place, variant).
    """
    regions = np.arange(len(scores))
    chosen: list[list[int]] = [[] for _ in regions]
    least = np.full((*scores.shape[:2], 1), MAX_RATIO)
    useful, taken = scores.min(axis=1) < MAX_RATIO, np.zeros((len(scores), scores.shape[2]), bool)
    goes_on = np.ones(len(scores), bool)
    for _ in range(count):
        best = np.where(taken, math.inf, np.minimum(scores, least).sum(1)).argmin(1)
        goes_on &= useful[regions, best] & ~taken[regions, best]
        for region in np.flatnonzero(goes_on):
            chosen[region].append(int(best[region]))
        taken[regions, best] = True
        least = np.minimum(least, scores[regions, :, best][:, :, None])
    return chosen
