"""Regions and their short lists: where a problem lies, and that a list's estimates and factors are those of selection."""

from __future__ import annotations

import random

import measured
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import catalog_records

from hgemm.dispatch_table import EXACT, DispatchTable, code_match, estimate_clocks
from hgemm.octave_grid import (
    ALIGNED_REGIONS,
    FACTOR_ONE,
    REGION_COUNTS,
    REGIONS,
    Corrections,
    point,
    region_of,
    sample_extents,
)
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target
from hgemm.shortlists import SAMPLE_OFFSETS, SHORTLIST_LENGTH, SHORTLIST_WITH_WORKSPACE, RegionShortlists

H200 = Target.typical("sm_90")
PROBLEMS = [(64, 4096, 4096), (512, 4096, 4096), (4096, 4096, 4096), (4096, 8192, 1024), (16, 8192, 8192)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DispatchTable:
    """The catalog, with made-up times of its kernels for sm_90 and sm_90a, not all of them everywhere."""
    rng = random.Random(0)
    symbols = [
        record["symbol"] for record in catalog_records() if "_sm90" in record["symbol"] and "_tn_" in record["symbol"]
    ]
    results = [
        (measured.problem(*extents), {symbol: rng.uniform(10, 40) for symbol in rng.sample(symbols, len(symbols) - 3)})
        for extents in PROBLEMS
    ]
    session = measured.write(tmp_path_factory.mktemp("regions"), results)
    return DispatchTable.of([{**record, "key": measured.KEY} for record in catalog_records()], [session])


@pytest.fixture(scope="module")
def lists(table: DispatchTable) -> RegionShortlists:
    (survey,) = table.surveys
    return RegionShortlists(table, survey)


# ---- Where ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, ALIGNED_REGIONS - 1), st.sampled_from(SAMPLE_OFFSETS))
def test_what_is_looked_at_of_a_region_lies_in_it(region: int, apart: tuple[int, int, int]) -> None:
    """But where extents are so few that a unit of them is more than the region."""
    m, n, k, batch = sample_extents(region, apart)
    found = region_of(point(m, n, k, batch), 0)
    assert sample_extents(region + ALIGNED_REGIONS, apart) == (m, n, k, batch)
    assert abs(
        found // (REGION_COUNTS[1] * REGION_COUNTS[2]) - region // (REGION_COUNTS[1] * REGION_COUNTS[2])
    ) <= 2 * (m < 16)
    assert found % REGION_COUNTS[2] == region % REGION_COUNTS[2] or k <= 1024


def test_powers_of_two_lie_in_the_middle_and_everything_lies_somewhere() -> None:
    for exponent in range(8, 14):
        size = 2**exponent
        near = {
            region_of(point(*extents, 1), 0)
            for extents in ((size, size, size), (size - size // 8, size, size + size // 8))
        }
        assert near == {region_of(point(size, size, size, 1), 0)}
    assert (
        region_of(point(1, 1, 0, 1), 0) == 0
        and region_of(point(2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1), 1) == REGIONS - 1
    )


# ---- What is listed ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 2**14), st.integers(1, 2**15), st.integers(1, 2**15), st.integers(1, 3))
def test_the_arrays_estimate_what_selection_does(
    lists: RegionShortlists, table: DispatchTable, m: int, n: int, k: int, batch: int
) -> None:
    n, k = -(-n // 8) * 8, -(-k // 8) * 8
    wanted = SelectionQuery.dense(Kind(), (m, n, k, batch))
    found = lists.estimates(np.array([(m, n, k, batch)]), wanted.straddling)[0]
    for place, estimate in zip(lists.places, found):
        if not table.rows[place].exact_tiles_only:
            assert int(estimate) == estimate_clocks(table.rows[place], wanted, H200)


def test_the_factors_of_a_list_are_those_of_what_was_measured_around(
    lists: RegionShortlists, table: DispatchTable
) -> None:
    problems = table.surveys[0].problems
    nearby = Corrections([problem.point for problem in problems], [dict(problem.ratios) for problem in problems])
    for extents in PROBLEMS:
        region = region_of(point(*extents, 1), 0)
        expected = nearby.factors(point(*sample_extents(region, SAMPLE_OFFSETS[0])))
        listed = lists.at(region)
        assert listed and all(abs(factor - expected.get(row, FACTOR_ONE)) <= 1 for row, factor in listed)


def test_what_straddles_corrects_nothing_and_is_listed_by_its_own_estimates(tmp_path) -> None:
    """One variant is measured to be fastest where k straddles sectors: nowhere else anything follows from that."""
    records = [{**record, "key": measured.KEY} for record in catalog_records()]
    symbols = [record["symbol"] for record in records if "sm90a_tn" in record["symbol"]]
    odd = {symbol: 1.0 if symbol == symbols[0] else 9.0 for symbol in symbols}
    table = DispatchTable.of(records, [measured.write(tmp_path, [(measured.problem(4096, 4096, 4104), odd)])])
    lists = RegionShortlists(table, table.surveys[0])
    regions = [region_of(point(4096, 4096, 4096, 1), straddling) for straddling in (0, 1, 2)]
    straight, *straddling = map(lists.at, regions)
    assert straddling[0] == straddling[1] and {factor for _, factor in (*straight, *straddling[0])} == {FACTOR_ONE}


def test_lists_are_short_of_what_runs_best_and_have_the_best_of_the_middle(
    lists: RegionShortlists, table: DispatchTable
) -> None:
    rng = random.Random(1)
    for region in rng.sample(range(REGIONS), 50):
        listed = dict(lists.at(region))
        assert 0 < len(listed) <= SHORTLIST_LENGTH + SHORTLIST_WITH_WORKSPACE
        assert {code_match(table.groups[table.rows[row].group].arch, (9, 0)) for row in listed} == {EXACT}
        samples = np.array([sample_extents(region, apart) for apart in SAMPLE_OFFSETS])
        sums = lists.estimates(samples, 2 * (region >= ALIGNED_REGIONS)) * lists._factors(point(*map(int, samples[0])))
        worst = sums[:, [lists.places.index(row) for row in listed]].min(1) / sums.min(1)
        assert worst.mean() < 1.05, region
    assert lists.at(7) == lists.at(7)
