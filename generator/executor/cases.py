"""The problems that a variant is proved on: a few CTA tiles each, ragged in every way, and one launch that is measured."""

from __future__ import annotations

from dataclasses import replace

from generator.executor.machine import PERSISTENT_CTAS
from hgemm.cases import Case, Shape, cases_of
from hgemm.facts import Facts

_MOST_TILE_PRODUCTS, _MOST_SPLITS = 2**20, 4
"""Products of a CTA tile and one k-tile, and splits, up to which the raster is checked beyond its first group."""


def default_cases(facts: Facts, stages: int) -> list[Case]:
    """Return the cases that every variant must pass, made from its own tile and the depth of its pipeline."""
    m, n, k = facts.tile_m, facts.tile_n, facts.tile_k
    ring = stages + 2  # k-tiles after which every stage was used again
    most = ring * min(facts.splits, 2) + facts.splits - 1  # k-tiles that the splits share unevenly
    plain = [
        Shape(m, 2 * n, ring * k),  # whole tiles
        Shape(m + 1, n, 2 * k),
        Shape(m, n + 3, 2 * k),
        Shape(m, n, (most - 1) * k + 7),
        Shape(1, 1, 1),
        Shape(m - 1, n - 1, k),  # one k-tile, less than the pipeline holds
        Shape(m // 2 + 1, n // 2 - 3, k // 2 - 3),
        Shape(m + 5, n + 9, 3 * k - 1),
        Shape(17, 1, k + 2),
        Shape(1, n + 8, 2 * k + 8),
    ]
    cases = cases_of(facts, tuple(plain))
    several = Case(Shape(m - 3, n + 5, k + 1, 2), alpha=2.0, beta=0.25 if facts.beta else 0.0)
    cases += [
        replace(several, loose=True),
        replace(several, shape=Shape(17, n - 1, k, 3), broadcast="a"),
        replace(several, shape=Shape(m, 19, 2 * k, 2), broadcast="b,c,bias", loose=True),
    ]
    if facts.beta:
        cases.append(Case(Shape(m + 1, n // 2, k + 1, 2), -0.5, 1.0, loose=True, in_place=True))
    if facts.grid_rule == "persistent":
        cases.append(replace(several, shape=Shape(m + 1, n + 1, k + 3, PERSISTENT_CTAS // 2 + 1)))
    if facts.grid_rule == "stream_k":
        cases += _shared_cases(facts)
    return cases + _raster_cases(facts)


def _shared_cases(facts: Facts) -> list[Case]:
    """Return problems whose tiles stream-K shares: one, fewer than workers, more by one, and a whole wave before."""
    m, n, k = facts.tile_m * facts.cluster_shape[0], facts.tile_n * facts.cluster_shape[1], facts.tile_k
    shapes = (
        Shape(m - 1, n - 1, 15 * k - 3),
        Shape(m, n + 5, 9 * k),
        Shape(m, n // 2 + 1, 8 * k + 1, PERSISTENT_CTAS + 1),
        Shape(m // 2 + 3, n - 3, 8 * k - 1, 2 * PERSISTENT_CTAS + 1),
    )
    return cases_of(facts, shapes if m * n * k <= _MOST_TILE_PRODUCTS else shapes[1:3])


def _raster_cases(facts: Facts) -> list[Case]:
    """Return problems of many tiles, so that the raster comes to its second group or panel."""
    m, n, k = facts.tile_m, facts.tile_n, facts.tile_k
    if m * n * k > _MOST_TILE_PRODUCTS or facts.splits > _MOST_SPLITS:
        return []
    return [Case(Shape(8 * m + 1, n + 1, 1)), Case(Shape(m + 1, 8 * n + 1, 1))]


def measured_case(facts: Facts, k_tiles: int) -> Case:
    """Return one whole tile of so many k-tiles a split, whose launch is counted."""
    return Case(
        Shape(
            facts.tile_m * facts.cluster_shape[0],
            facts.tile_n * facts.cluster_shape[1],
            k_tiles * facts.splits * facts.tile_k,
        )
    )
