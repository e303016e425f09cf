"""Selection: the table does not depend on the order of records, the chosen kernel supports the problem, and holes are reported."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import measured
import pytest
from conftest import call
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tables import catalog_records, catalog_table, record_of

import hgemm
from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.export.selection import ROWS_OF_SIZE, SORTS, computes, holes, kinds_of, promised_types
from generator.proof.executor import HostCompiler
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.bench.contenders import options_to_try
from hgemm.bench.work import Work
from hgemm.device import cubin_runs, ptx_runs
from hgemm.dispatch_table import (
    COMPATIBLE,
    EXACT,
    GPCS,
    LIMIT,
    PTX,
    DispatchTable,
    Row,
    code_match,
    default_options,
    default_strips,
    estimate_clocks,
    features_of,
    has_gpcs,
    kind_of,
    orders_of_waves,
    partial_eighths,
    refined_clocks,
    refined_estimate,
    tiles_in_order,
)
from hgemm.dtypes import OUTPUTS
from hgemm.errors import LibraryError, RequestError, UnsupportedError
from hgemm.estimates import Candidates, estimates, features, fits_int64, part_of, stacked, supported
from hgemm.gpus import TYPICAL
from hgemm.growth import size_of_tile
from hgemm.launch import check, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.model.cards import card_named
from hgemm.octave_grid import CORRECTED_LIMIT, FACTOR_ONE
from hgemm.packed import PackedLayer, add_pack
from hgemm.problem import ACTIVATIONS, BIASES, BY_GPC, LAYOUTS, TYPES, Kind, Problem, kind_supports
from hgemm.selection import ESTIMATED, MEASURED, NEAR, SHIPPED, Selector, row_supports
from hgemm.selection_query import SelectionQuery, Target

H200 = Target.typical("sm_90")
ANY_WORKSPACE = 2**62
SQUARE = SelectionQuery(Kind(), 4096, 4096, 4096)
kinds = st.builds(
    Kind,
    layout=st.sampled_from(LAYOUTS),
    dtype_a=st.sampled_from(TYPES),
    dtype_b=st.sampled_from(TYPES),
    dtype_d=st.sampled_from(OUTPUTS),
    acc=st.sampled_from(("f32", "f16_promoted", "f16")),
    bias=st.sampled_from(BIASES),
    activation=st.sampled_from(ACTIVATIONS),
)
extents = st.integers(1, 300) | st.integers(1, 2**31 - 1024)
aligns = st.sampled_from((1, 2, 4, 8))
problems = st.builds(
    SelectionQuery,
    kind=st.builds(Kind, layout=st.sampled_from(LAYOUTS)) | kinds,
    m=extents,
    n=extents,
    k=st.just(0) | extents,
    batch=st.integers(1, 5),
    beta=st.booleans(),
    align_a=aligns,
    align_b=aligns,
    align_d=aligns,
    workspace_bytes=st.sampled_from((0, 2**16, ANY_WORKSPACE)),
    mappable=st.booleans(),
    straddling=st.integers(0, 2),
)
targets = st.sampled_from(sorted(TYPICAL)).map(lambda number: Target.typical(f"sm_{number}"))


def choose(wanted: SelectionQuery, target: Target = H200, table: DispatchTable | None = None):
    return Selector(table or catalog_table(), target).find(wanted)


# ---- Arrays ---------------------------------------------------------------------------------------------------------

few_tiles = st.integers(1, 40).map(lambda eighths: 8 * eighths)
array_problems = problems | st.builds(
    SelectionQuery,
    kind=st.just(Kind()),
    m=few_tiles,
    n=few_tiles,
    k=st.integers(1, 2000).map(lambda eighths: 8 * eighths),
    batch=st.integers(1, 3),
    workspace_bytes=st.sampled_from((0, 2**20, ANY_WORKSPACE)),
)


HUGE = SelectionQuery(Kind(), 300, 2**31 - 1024, 2**31 - 1024, batch=5, workspace_bytes=ANY_WORKSPACE)
"""A problem whose estimates do not fit in int64 before they are limited."""


@settings(max_examples=60, deadline=None)
@given(st.lists(array_problems, min_size=1, max_size=8), targets, st.randoms(use_true_random=False), st.booleans())
@example([HUGE], H200, random.Random(0), False)
def test_arrays_of_estimates_equal_single_ones(
    queries: list[SelectionQuery], target: Target, draw: random.Random, reduces: bool
) -> None:
    queries = [dataclasses.replace(one, kind=queries[0].kind) for one in queries]
    its = stacked(queries)
    for row in draw.sample(catalog_table().rows, 20):
        if reduces:
            row = dataclasses.replace(row, reductions=1, column_reductions=2, segment_columns=128)
        places = supported(row, its, target)
        assert [*places] == [at for at, one in enumerate(queries) if row_supports(row, one, target)]
        clocks = estimates(row, part_of(its, places), target)
        assert [*clocks] == [estimate_clocks(row, queries[at], target) for at in places]
        if len(places):
            found = features(row, part_of(its, places), target, clocks)
            expected = [features_of(row, queries[at], target, one) for at, one in zip(places, clocks.tolist())]
            assert found.tolist() == [[*one] for one in expected]


@settings(max_examples=60, deadline=None)
@given(array_problems, targets, st.randoms(use_true_random=False), st.booleans())
@example(HUGE, H200, random.Random(0), False)
def test_estimates_of_all_kernels_equal_single_ones(
    query: SelectionQuery, target: Target, draw: random.Random, reduces: bool
) -> None:
    table = catalog_table()
    rows = {at: table.rows[at] for at in sorted(draw.sample(range(len(table.rows)), 60))}
    if reduces:
        more = {"reductions": 1, "column_reductions": 2, "segment_columns": 128}
        rows = {at: dataclasses.replace(row, **more) if at % 2 else row for at, row in rows.items()}
    stack = [rows.get(at, row) for at, row in enumerate(table.rows)]
    candidates = Candidates.of(((0, at) for at in rows), stack, fits_int64(query)).supporting(query, target)
    places = candidates.places.tolist()
    assert places == [at for at, row in rows.items() if row_supports(row, query, target)]
    clocks = candidates.estimates(query, target)
    assert clocks.tolist() == [estimate_clocks(rows[at], query, target) for at in places]
    refined = candidates.refined(query, target, clocks).tolist()
    assert refined == [refined_clocks(rows[at], query, target, one) for at, one in zip(places, clocks.tolist())]
    if places:
        factors = {at: draw.randrange(2048, 8192) for at in places[::2]}
        lowest = min(
            (factors.get(at, FACTOR_ONE) * min(one, CORRECTED_LIMIT), at, one) for at, one in zip(places, refined)
        )
        assert candidates.fastest(query, target, clocks, factors) == lowest[1:]


# ---- The table ------------------------------------------------------------------------------------------------------


def row_at_launch(cluster: str, schedule: str = "persistent") -> Row:
    """A row of 128x128 tiles whose launches decide the order."""
    text = {"arch": "sm_90a", "tile": "128x128x64", "cluster": cluster, "schedule": schedule, "raster": "launch"}
    (plan,) = sweep([{**text, "cooperation": "cooperative"}]).plans
    return DispatchTable.of([record_of(emit(plan, templates_folder()))]).rows[0]


def test_table_ignores_the_order_of_records() -> None:
    records = [*catalog_records()]
    for seed in range(3):
        random.Random(seed).shuffle(records)
        assert DispatchTable.of(records) == catalog_table()


def test_ties_go_to_the_kernel_on_atoms() -> None:
    record = next(one for one in catalog_records() if one["arch"] == "sm_80")
    twin = {**record, "symbol": record["symbol"].replace("_xor", "_aaa"), "spec": {**record["spec"], "form": "dsl"}}
    assert [row.symbol for row in DispatchTable.of([twin, record]).rows] == [record["symbol"], twin["symbol"]]


def test_every_record_is_one_row_of_its_group() -> None:
    table = catalog_table()
    assert len(table.rows) == len(catalog_records())
    traits = {record["symbol"]: LaunchTraits.of(record) for record in catalog_records()}
    for place, group in enumerate(table.groups):
        for row in table.rows[group.first : group.first + group.count]:
            assert row.group == place and traits[row.symbol].arch == group.arch
            assert kind_of(traits[row.symbol]).code == group.kind


@pytest.mark.parametrize("change", [{"stages": "4"}, {"mma": 7}, {"mma": None}, {"schedule": None}])
def test_record_without_an_estimate_is_named(change: dict) -> None:
    record = catalog_records()[0]
    spec = {**record["spec"], **change}
    with pytest.raises(LibraryError, match=record["symbol"]):
        DispatchTable.of([{**record, "spec": {name: value for name, value in spec.items() if value is not None}}])


def test_rows_and_launches_agree_on_workspaces() -> None:
    for record, m, batch in itertools.product(catalog_records(), (1, 129, 5000), (1, 7)):
        (row,) = (row for row in catalog_table().rows if row.symbol == record["symbol"])
        assert row.workspace_bytes(m, 300, batch) == workspace_bytes(LaunchTraits.of(record), m, 300, batch)


@given(kinds, kinds)
def test_different_kinds_have_different_codes(one: Kind, other: Kind) -> None:
    assert (one == other) == (one.code == other.code) and one.code < 2**32


@given(kinds, kinds)
def test_only_the_accumulator_may_exceed_the_request(offered: Kind, wanted: Kind) -> None:
    order = ("f32", "f16_promoted", "f16")
    same = dataclasses.replace(offered, acc="f32") == dataclasses.replace(wanted, acc="f32")
    assert kind_supports(offered.code, wanted.code) == (same and order.index(offered.acc) <= order.index(wanted.acc))


def test_unknown_word_error_lists_the_known_ones() -> None:
    with pytest.raises(RequestError, match="layout 'rr' is unknown: use tn, nn, nt, tt"):
        Kind(layout="rr")
    with pytest.raises(RequestError, match="arch 'sm_52' is unknown: use sm_75"):
        Target.typical("sm_52")


# ---- What runs where ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_120", "sm_121"])
@pytest.mark.parametrize("number", sorted(TYPICAL))
def test_best_code_form_is_chosen(arch: str, number: int) -> None:
    capability = divmod(number, 10)
    way = code_match(arch, capability)
    assert (way in (EXACT, COMPATIBLE)) == cubin_runs(arch, capability)
    assert (way is not None) == (cubin_runs(arch, capability) or ptx_runs(arch, capability))
    assert (way == EXACT) == (arch.strip("sm_a") == str(number))


def test_native_code_precedes_compatible_code_and_ptx() -> None:
    wanted = SelectionQuery(Kind(), 512, 512, 512)
    assert choose(wanted, Target.typical("sm_89")).symbol.startswith("hgemm_sm89_")
    without_89 = DispatchTable.of(record for record in catalog_records() if record["arch"] != "sm_89")
    found = choose(wanted, Target.typical("sm_89"), without_89)
    assert (
        found.code_match == COMPATIBLE
        and found.code == "cubin"
        and found.symbol.startswith(("hgemm_sm86_", "hgemm_sm80_"))
    )
    found = choose(wanted, Target.typical("sm_100"))
    assert found.code_match == PTX and found.code == "ptx"


# ---- What is chosen -------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(problems, targets)
def test_choice_supports_the_problem_at_the_lowest_cost(wanted: SelectionQuery, target: Target) -> None:
    table = catalog_table()
    found = Selector(table, target).find(wanted)
    serving = [
        (code_match(group.arch, target.capability), row)
        for group in table.groups
        for row in table.rows[group.first : group.first + group.count]
        if code_match(group.arch, target.capability) is not None
        and kind_supports(group.kind, wanted.kind.code)
        and row_supports(row, wanted, target)
    ]
    if found is None:
        assert not serving
        return
    assert (found.code_match, found.row) in serving
    assert found.code_match == min(way for way, _ in serving)
    assert found.workspace_bytes <= wanted.workspace_bytes
    peers = [row for way, row in serving if way == found.code_match]
    costs = [refined_estimate(row, wanted, target) for row in peers]
    compared = [min(cost, CORRECTED_LIMIT) for cost in costs]
    fastest = compared.index(min(compared))
    assert found.row == peers[fastest] and found.clocks == costs[fastest]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400), st.sampled_from(LAYOUTS), st.data())
def test_chosen_kernel_accepts_its_problem(m: int, n: int, k: int, layout: str, data) -> None:
    """For any pointers and leading dimensions: problems that selection accepts pass the launcher's checks."""
    a_columns = k if layout[0] == "t" else m
    b_columns = k if layout[1] == "n" else n
    more = st.integers(0, 17)
    problem = Problem(
        *(m, n, k),
        a=2**20 + 2 * data.draw(more),
        b=2**30 + 2 * data.draw(more),
        d=2**40 + 2 * data.draw(more),
        lda=a_columns + data.draw(more),
        ldb=b_columns + data.draw(more),
        ldd=n + data.draw(more),
    )
    found = choose(SelectionQuery.of(Kind(layout=layout), problem))
    (record,) = (record for record in catalog_records() if record["symbol"] == found.symbol)
    traits = LaunchTraits.of(record)
    if min(m, n, k) > 1:  # with one row the leading dimension means nothing, and may be of any alignment
        check(problem, traits)


def mma_sync_table() -> DispatchTable:
    """Return the table of the catalog's kernels for sm_90 that do without wgmma."""
    return DispatchTable.of(record for record in catalog_records() if record["arch"] == "sm_90")


def test_shapes_get_suitable_tiles() -> None:
    def tile(m: int, n: int, k: int, **fields) -> str:
        return choose(SelectionQuery(Kind(), m, n, k, **fields), table=mma_sync_table()).symbol.split("_")[6]

    assert tile(8192, 8192, 8192) == "256x128x32"
    assert tile(16, 8192 * 4, 4096) in ("16x128x64", "16x16x1024")
    assert tile(64, 64, 65536, workspace_bytes=ANY_WORKSPACE, align_b=4) == "16x64x64"
    assert tile(1, 1600, 6400) == "8x8x2048"
    assert tile(4096, 4096, 4096, align_b=1) == "256x128x32"


def test_minimum_accumulator_is_met_by_a_better_one() -> None:
    f16, table = Kind(acc="f16"), mma_sync_table()
    assert "_f16_f16_f16_256x256x32_" in choose(SelectionQuery(f16, 8192, 8192, 8192), table=table).symbol
    assert "_f16_f32_f16_" in choose(SelectionQuery(f16, 512, 512, 512), table=table).symbol
    assert "_f16_f32_f16_" in choose(SelectionQuery(Kind(), 8192, 8192, 8192), table=table).symbol


def test_wgmma_is_selected_if_possible() -> None:
    """On sm_90 alone; fed by TMA with operands that it addresses, and some k, else by cp.async from an alignment of 2 on."""
    large = SelectionQuery(Kind(), 4096, 4096, 16384)
    assert "_sm90a_" in choose(large).symbol and choose(large).row.tensor_maps
    for changed in ({"mappable": False}, {"align_a": 4}):
        chosen = choose(dataclasses.replace(large, **changed))
        assert "_sm90a_" in chosen.symbol and not chosen.row.tensor_maps
    assert not choose(dataclasses.replace(large, k=0)).row.tensor_maps
    assert "_sm90_" in choose(dataclasses.replace(large, align_a=1)).symbol
    assert "_sm90_" in choose(large, Target.typical("sm_100")).symbol


def test_single_element_stores_cost_time() -> None:
    """A 128x128 kernel that stores D element by element took 168 us for this problem. The others took 27 us."""
    query = SelectionQuery.dense(Kind(), (5100, 7472, 64, 1), 0)
    assert choose(query).row.align_d == 8
    table = catalog_table()
    times = {
        row.align_d: refined_estimate(row, query, H200)
        for row in table.rows
        if "_tn_f16_f32_f16_128x128x64_" in row.symbol
    }
    assert times[1] > 3 * times[8]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("bias", ["none", "row"])
@pytest.mark.parametrize("n", [30522, 50257])
def test_any_vocabulary_size_selects_wgmma(dtype: str, bias: str, n: int) -> None:
    kind = Kind("tn", dtype, dtype, dtype, bias=bias)
    for m in (128, 4096):
        chosen = choose(SelectionQuery.dense(kind, (m, n, 1024, 1), 0))
        assert "_sm90a_" in chosen.symbol and chosen.row.tensor_maps


def test_missing_kernel_error_names_the_unmet_requirement() -> None:
    selector = Selector(catalog_table(), H200)
    cover = "hgemm cover --arch 90 --dtype f16 --layout tn --activation gelu"
    message = f"no kernel computes tn f16->f16 acc f32 gelu on sm_90: `{cover}"
    with pytest.raises(UnsupportedError, match=f"{message} --add` makes one"):
        selector.choose(SelectionQuery(Kind(activation="gelu"), 1, 1, 1))
    with pytest.raises(
        UnsupportedError, match="--arch 90 --dtype f16 --out f32 --layout nt --bias row --add` makes one"
    ):
        selector.choose(SelectionQuery(Kind("nt", dtype_d="f32", bias="row"), 1, 1, 1))
    with pytest.raises(UnsupportedError, match="the tensor instructions of sm_75 multiply f16 only$"):
        turing = Selector(catalog_table(), Target.typical("sm_75"))
        turing.choose(SelectionQuery(Kind(dtype_a="bf16", dtype_b="bf16", dtype_d="bf16"), 8, 8, 8))
    for types in (("f16", "bf16"), ("f32", "f32")):
        with pytest.raises(UnsupportedError, match="use f16 or bf16 for both A and B"):
            selector.choose(SelectionQuery(Kind("tn", *types), 1, 1, 1))
    with pytest.raises(
        UnsupportedError,
        match=r"supports 64x64x64: (\d+) of \1 need more shared memory .a CTA has 64 B., \d+ of \1 need more work",
    ):
        Selector(catalog_table(), Target((9, 0), 132, 64)).choose(SelectionQuery(Kind(), 64, 64, 64))
    with pytest.raises(
        UnsupportedError, match="1 of 1 need more alignment .A, B and D have 1, 8 and 8 elements.; `hgemm cover"
    ):
        wgmma = [record for record in catalog_records() if "_sm90a_tn_" in record["symbol"]][:1]
        Selector(DispatchTable.of(wgmma), H200).choose(SelectionQuery(Kind(), 64, 64, 64, align_a=1))
    only_80 = Selector(DispatchTable.of(r for r in catalog_records() if r["arch"] == "sm_120"), H200)
    with pytest.raises(
        UnsupportedError, match="no kernel runs on sm_90: the library has sm_120; `generate --catalog --arch 90"
    ):
        only_80.choose(SelectionQuery(Kind(), 1, 1, 1))


def test_too_many_tiles_are_rejected_without_a_suggestion() -> None:
    wanted = SelectionQuery(Kind(), 2**31 - 1024, 2**31 - 1024, 1)
    assert choose(wanted) is None
    with pytest.raises(UnsupportedError, match=r": (\d+) of \1 need fewer CTA tiles .2147483647 at most.[^;]*$"):
        Selector(catalog_table(), H200).choose(wanted)


def test_cluster_split_needs_no_workspace_and_serves_long_k() -> None:
    (plan,) = sweep([{"arch": "sm_90a", "tile": "128x128x64", "schedule": "split_k_cluster:4"}]).plans
    split = record_of(emit(plan, templates_folder()))
    others = [record for record in catalog_records() if record["spec"]["cta_tile"] in ("128x192x64", "128x256x64")]
    table = DispatchTable.of([*others, split])
    found = choose(SelectionQuery(Kind(), 256, 512, 2**16), table=table)
    assert found.symbol == split["symbol"] and found.workspace_bytes == 0
    assert choose(SelectionQuery(Kind(), 8192, 8192, 8192), table=table).symbol != split["symbol"]


def test_parallel_reduction_of_parts_costs_less() -> None:
    """All of them add the parts, if there are four or more and all CTAs of a persistent kernel run at the same time."""
    by_all = dataclasses.replace(row_at_launch("1x1"), decides_splits=1, persistent=1)
    by_one = dataclasses.replace(by_all, persistent=0)
    added = [[partial_eighths(row, splits, 4 * splits, 32) for splits in (2, 3, 4, 8, 9)] for row in (by_all, by_one)]
    assert added[1] == [16, 24, 32, 64, 72]
    assert added[0] == [16, 24, 25, 29, 72]  # 9 parts of 4 tiles are more than 32 CTAs


# ---- Measurements ---------------------------------------------------------------------------------------------------


def measured_table(tmp_path: Path, results: list, **header: object) -> DispatchTable:
    return DispatchTable.of(keyed_records(), [measured.write(tmp_path, results, **header)])


def keyed_records() -> list[dict]:
    return [{**record, "key": measured.KEY} for record in catalog_records()]


@pytest.fixture(scope="module")
def served() -> list[str]:
    """The kernels of the catalog for sm_90 that serve a large problem, the one of least estimate first."""
    return [choice.symbol for choice in Selector(catalog_table(), H200).ranked(SQUARE) if choice.code_match == EXACT]


def test_measurements_are_compared_with_estimates_for_the_dram_of_their_card(tmp_path: Path, served: list[str]) -> None:
    """A few rows read the weights from DRAM, whose speed decides: kernels that reload them take as long as before."""
    slow = dataclasses.replace(H200, dram_gbytes_per_s=2000)
    rows = {row.symbol: row for row in catalog_table().rows}
    query = SelectionQuery.dense(Kind(), (128, 4096, 4096, 1))
    times = {one: refined_estimate(rows[one], query, slow) / 1e3 for one in served[::8]}
    results = [(measured.problem(128, 4096, 4096), times)]
    for dram, same in ((2000, True), (0, False)):
        (survey,) = measured_table(tmp_path, results, dram_gbytes_per_s=dram).surveys
        ratios = [ratio for _, ratio in survey.problems[0].ratios]
        assert (max(ratios) < 1.001 * min(ratios)) == same


def test_measured_ranking_decides_at_its_problem(tmp_path: Path, served: list[str]) -> None:
    """Not the times, which were decided on when they were recorded; what the library no longer has is passed over."""
    order = {"hgemm_gone": 1.0, served[3]: 2.0, served[5]: 1.9}
    table = measured_table(tmp_path, [(measured.problem(4096, 4096, 4096), order)])
    found = choose(SQUARE, table=table)
    assert (found.symbol, found.rule, found.nearest.extents) == (served[3], MEASURED, (4096, 4096, 4096, 1))
    assert found.clocks == next(c.clocks for c in Selector(table, H200).ranked(SQUARE) if c.symbol == served[3])
    other = dataclasses.replace(SQUARE, kind=Kind(acc="f16"))
    assert choose(other, table=table) == choose(other) and choose(other).rule in (ESTIMATED, SHIPPED)
    unaligned = dataclasses.replace(SQUARE, align_a=1)
    assert choose(unaligned, table=table).symbol == choose(unaligned).symbol
    a100 = Target.typical("sm_80")
    assert choose(SQUARE, a100, table) == choose(SQUARE, a100)


def test_measurements_correct_estimates_nearby(tmp_path: Path, served: list[str]) -> None:
    """Half the time of what is estimated is that nearby too."""
    table = measured_table(tmp_path, [(measured.problem(4096, 4096, 4096), fast(served, served[2]))])
    near = SelectionQuery(Kind(), 4095, 4000, 5000)
    found = choose(near, table=table)
    assert (found.symbol, found.rule, found.nearest.extents) == (served[2], NEAR, (4096, 4096, 4096, 1))
    few = Target.typical("sm_90", 114)  # the same there, but for the very problem
    assert (choose(SQUARE, few, table).rule, choose(SQUARE, few, table).symbol) == (NEAR, served[2])
    assert served[0] in {choice.symbol for choice in Selector(table, H200).ranked(near)}
    far = SelectionQuery(Kind(), 1, 1024, 1024)
    assert choose(far, table=table) == choose(far)
    odd = SelectionQuery.dense(Kind(), (4096, 4096, 4104, 1))
    assert odd.straddling and choose(odd, table=table) == choose(odd)


def fast(served: list[str], symbol: str) -> dict[str, float]:
    """Return times of all but the one of least estimate: what is estimated, but half of it for one, the first."""
    estimates = {choice.symbol: choice.clocks for choice in Selector(catalog_table(), H200).ranked(SQUARE)}
    return {symbol: estimates[symbol] / 2, **{one: estimates[one] for one in served[1:] if one != symbol}}


def test_unmeasured_kernels_keep_their_estimate(tmp_path: Path, served: list[str]) -> None:
    table = measured_table(tmp_path, [(measured.problem(4096, 4096, 4096), {served[-1]: 1.0})])
    near = SelectionQuery(Kind(), 4096, 4096, 4160)
    assert choose(near, table=table) == choose(near) and choose(near).symbol != served[-1]


def test_measurements_of_the_device_with_similar_sms_count(tmp_path: Path, served: list[str]) -> None:
    sessions = [
        measured.write(tmp_path, [(measured.problem(4096, 4096, 4096), fast(served, served[at]))], sms=sms)
        for at, sms in ((1, 100), (2, 120))
    ]
    table = DispatchTable.of(keyed_records(), sessions)
    for sms, near, rule in (
        (100, 100, MEASURED),
        (60, 100, NEAR),
        (110, 100, NEAR),
        (111, 120, NEAR),
        (120, 120, MEASURED),
    ):
        selector = Selector(table, Target.typical("sm_90", sms))
        found = selector.find(SQUARE)
        assert (selector.surveys[SQUARE.kind.code].sms, found.rule) == (near, rule), sms
        assert rule == NEAR or found.symbol == served[{100: 1, 120: 2}[sms]]


def test_choice_is_ranked_first(tmp_path: Path, served: list[str]) -> None:
    table = measured_table(tmp_path, [(measured.problem(4096, 4096, 4096), {served[4]: 1.0})])
    ranked = Selector(table, H200).ranked(SQUARE)
    assert [choice.symbol for choice in ranked][:3] == [served[4], served[0], served[1]]
    assert len({choice.symbol for choice in ranked}) == len(ranked)


# ---- Costs ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 3, 8, -1, -2, -5, -16]))
def test_tile_order_visits_each_tile_once(down: int, across: int, raster: int) -> None:
    places = tiles_in_order(raster, down, across)
    strips = [place[0 if raster > 0 else 1] // abs(raster) for place in places]
    assert len(set(places)) == down * across and strips == sorted(strips)


@pytest.mark.parametrize("cluster, shared", [("2x1", 0), ("1x2", 1), ("1x4", 1), ("4x1", 0)])
def test_one_wave_orders_share_reads_within_gpcs(cluster: str, shared: int) -> None:
    """`shared` is 0 if the CTAs of a GPC should have the same rows of A, 1 for columns of B."""
    row = row_at_launch(cluster)
    down, across = (4, 7) if shared == 0 else (7, 4)
    query = SelectionQuery.dense(Kind(), (128 * row.cluster_m * down, 128 * row.cluster_n * across, 4096, 1), 0)
    target = Target.typical("sm_90")
    assert has_gpcs(row, query, target)

    def reads(raster: int) -> int:
        """Different rows or columns, of all GPCs."""
        return len(
            {
                (gpc, place[shared])
                for gpc, place in zip(GPCS[row.cluster_ctas], tiles_in_order(raster, down, across, row.cluster_ctas))
            }
        )

    orders = orders_of_waves(row, query)
    assert default_options(row, query, target).raster_tiles == orders[0]
    assert [reads(one) for one in orders] == sorted(map(reads, orders)) and reads(orders[0]) < reads(orders[-1])


@given(down=st.integers(1, 20), across=st.integers(1, 20), width=st.integers(1, 20), sign=st.sampled_from([1, -1]))
def test_order_by_gpc_gives_each_gpc_tiles_that_follow_one_another(
    down: int, across: int, width: int, sign: int
) -> None:
    """Except the 6 pairs of a wave before and after the rounds over all GPCs."""
    plain = tiles_in_order(sign * width, down, across)
    dealt = tiles_in_order(sign * (BY_GPC + width), down, across, 2)
    wave = len(GPCS[2])
    assert sorted(plain) == sorted(dealt)
    for first in range(0, len(plain), wave):
        gpc_of = dict(zip(dealt[first : first + wave], GPCS[2]))
        assert sorted(gpc_of) == sorted(plain[first : first + wave])
        gpcs = [gpc_of[place] for place in plain[first : first + wave]]
        followed = sum(one == other for one, other in pairwise(gpcs))
        assert followed >= len(gpcs) - len(set(gpcs)) - 6


def test_kernel_and_host_have_the_same_order_by_gpc(host_compiler: HostCompiler, tmp_path: Path) -> None:
    text, wave = (templates_folder() / "common/scheduler.cuh").read_text(), len(GPCS[2])
    begin = text.index("struct PlacesOfPairs")
    places, program, binary = text[begin : text.index("\n};", begin) + 3], tmp_path / "places.cpp", tmp_path / "places"
    program.write_text(
        f"""#include <cstdint>
#include <cstdio>
#define HGEMM_DEVICE
{places}
int main() {{
  std::printf("%u", PlacesOfPairs::wave);
  for (unsigned pairs = 1; pairs <= {wave}; ++pairs)
    for (unsigned pair = 0; pair < pairs; ++pair) std::printf(" %u", PlacesOfPairs::position(pair, pairs));
}}
"""
    )
    subprocess.run([*host_compiler.command, "-o", binary, program], check=True)
    of_kernel = list(map(int, subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()))
    of_host = [column for pairs in range(1, wave + 1) for _, column in tiles_in_order(BY_GPC + 1, 1, pairs, 2)]
    assert of_kernel == [wave, *of_host]


def test_split_launches_are_not_tuned_by_gpc() -> None:
    row, target = row_at_launch("2x1", "launch"), Target.typical("sm_90")
    options = [one for one in options_to_try(row, Work(1024, 1280, 8192), target, 20) if one]
    assert {(one.splits > 1, abs(one.raster_tiles) > BY_GPC) for one in options} == {(False, True), (True, False)}


def test_second_wave_counts_reads_of_all_gpcs() -> None:
    """Rows of 14 tiles in columns would be best for the GPCs. A wave of 66 pairs is squarer."""
    row, target = row_at_launch("2x1"), Target.typical("sm_90")
    query = SelectionQuery.dense(Kind(), (256 * 11, 128 * 12, 4096, 1), 0)
    order = tiles_in_order(default_options(row, query, target).raster_tiles, 11, 12, row.cluster_ctas)
    rows, columns = zip(*order[:66])
    assert len({*rows}) * 256 + len({*columns}) * 128 < 256 * 11 + 128 * 12
    assert not has_gpcs(row, dataclasses.replace(query, n=128 * 13), target)


def test_the_order_of_tiles_hardly_matters_if_multicasts_load_both_operands() -> None:
    row, target = row_at_launch("2x2"), Target.typical("sm_90")
    assert not has_gpcs(row, SelectionQuery.dense(Kind(), (1024, 1024, 4096, 1), 0), target)


@pytest.mark.parametrize("change", [{"batch": 2}, {"m": 8192}, {"sms": 114}])
def test_other_launches_have_groups_of_rows(change: dict) -> None:
    row, query = row_at_launch("2x1"), SelectionQuery.dense(Kind(), (1024, 896, 4096, 1), 0)
    target = dataclasses.replace(Target.typical("sm_90"), sms=change.pop("sms", 132))
    changed = dataclasses.replace(query, **change)
    assert default_options(row, changed, target).raster_tiles == default_strips(row, target, panels=False) > 0


@pytest.mark.parametrize("cluster, sign", [("1x1", 1), ("2x1", 1), ("1x2", -1), ("1x4", -1), ("2x2", 1)])
def test_neighbours_share_the_operand_without_multicast(cluster: str, sign: int) -> None:
    row, target = row_at_launch(cluster), Target.typical("sm_90")
    query = SelectionQuery.dense(Kind(), (8192, 6144, 4096, 1), 0)
    assert default_options(row, query, target).raster_tiles * sign > 0


def test_costs_grow_with_the_problem_up_to_the_limit() -> None:
    """They may fall by 1 %: full waves of small clusters take less than the estimate of parts of a wave (`wave_factors`)."""
    for row in catalog_table().rows:
        for grown in (
            [SelectionQuery(Kind(), 2**i, 2**8, 2**12) for i in range(31)],
            [SelectionQuery(Kind(), 2**8, 2**i, 2**12) for i in range(31)],
            [SelectionQuery(Kind(), 2**9, 2**9, 2**i) for i in range(31)],
            [SelectionQuery(Kind(), 2**9, 2**9, 2**12, 2**i) for i in range(20)],
            [SelectionQuery(Kind(), 2**9, 2**9, 2**12, straddling=i) for i in range(3)],
        ):
            found = [estimate_clocks(row, wanted, H200) for wanted in grown]
            assert all(low <= 1.01 * high for low, high in pairwise(found)) and found[-1] <= LIMIT


# ==== hgemm select ====================================================================================================


def test_select_prints_the_kernel_and_all_lists_the_others(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 64, "--n", 64, "--k", 64]
    done = call("hgemm", *words, "--arch", "80", "--layout", "nt", "--json")
    (symbol,) = (row["symbol"] for row in small_library.rows() if "_nt_" in row["symbol"])
    found = json.loads(done.stdout)
    assert (found["symbol"], found["code"], found["workspace_bytes"]) == (symbol, "cubin", 0) and found["clocks"] > 0
    done = call("hgemm", *words, "--arch", "sm_90", "--all")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["symbol", "code", "rule", "clocks", "workspace_bytes"]
    assert len(lines) == 3 and lines[1].split()[1:3] == ["ptx", "estimated"]
    assert (
        lines[2].startswith("estimated: smallest estimate") and "the selected one was not measured on sm_90" in lines[2]
    )


def test_select_answers_for_each_problem_as_for_it_alone(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--arch", "80", "--json"]
    for flags in ([], ["--all"]):
        several = call("hgemm", *words, *flags, "--m", "1,64:128:64", "--n", 64, "--k", "0,64")
        assert several.returncode == 0
        expected = []
        for m, k in itertools.product((1, 64, 128), (0, 64)):
            alone = json.loads(call("hgemm", *words, *flags, "--m", m, "--n", 64, "--k", k).stdout)
            expected += [{"m": m, "n": 64, "k": k, **row} for row in (alone if flags else [alone])]
        assert json.loads(several.stdout) == expected
    squares = json.loads(call("hgemm", *words, "--m", "64,72").stdout)
    assert [(row["m"], row["n"], row["k"]) for row in squares] == [(64, 64, 64), (72, 72, 72)]


def test_select_answers_for_other_problems_if_one_has_no_kernel(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--arch", "80", "--m", 64, "--n", 64, "--k", "63,64"]
    table, document = call("hgemm", *words), call("hgemm", *words, "--json")
    unsupported, supported = json.loads(document.stdout)
    assert unsupported["symbol"] is None and "need more alignment" in unsupported["why"] and supported["symbol"]
    header, *rows = table.stdout.splitlines()
    assert header.split()[:4] == ["m", "n", "k", "symbol"]
    assert [row.split()[2:4] for row in rows] == [["63"], ["64", supported["symbol"]]]
    for done in (table, document):
        assert done.returncode == 1 and f"1 problem: {unsupported['why']}" in done.stderr


def test_select_prints_the_reason(small_library: Library, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_library.folder, tmp_path / "library"))
    (record,) = (record for record in small_library.records() if "_tn_" in record.symbol)
    result = measured.problem(4096, 4096, 4096), {record.symbol: 250.0}
    measured.write(folder, [result], {record.symbol: record.key}, capability=80, sms=108, device="NVIDIA A100")
    words = ["select", "--library", folder, "--arch", "80", "--n", 4096, "--k", 4096]
    found = json.loads(call("hgemm", *words, "--m", 4096, "--json").stdout)
    assert (found["rule"], found["near"]) == ("measured", [4096, 4096, 4096, 1])
    assert found["why"] == "fastest of 1 kernel measured on this problem on NVIDIA A100"
    last = call("hgemm", *words, "--m", 1024).stdout.splitlines()[-1]
    assert last.startswith("near: smallest estimate") and "corrected by measurements" in last
    assert "4096x4096x4096, 4.0 octaves away" in last and last.endswith("correction 1.00")


def test_select_tells_which_dense_operand_excludes_the_fastest_kernels(paper_library: Library) -> None:
    words = ["select", "--library", paper_library.folder, "--arch", "89", "--m", 64, "--n", 64, "--k", 68]
    loose, padded = call("hgemm", *words), call("hgemm", *words, "--align", "8")
    assert "A is aligned to 8 and B is aligned to 8. If you can pad their rows, add --align 8" in loose.stderr
    assert "hgemm pack --nk 64x68 --rows 64:64 --dtype f16 --layout tn --arch 89 --to " in loose.stderr
    assert "aligned" not in padded.stderr


def test_select_suggests_a_pack_only_if_the_library_has_none_for_the_product(
    paper_library: Library, tmp_path: Path
) -> None:
    library = shutil.copytree(paper_library.folder, tmp_path / "library")
    add_pack(library, [PackedLayer("odd", 64, 68, Kind("tn"), (60, 70))])
    words = ["select", "--library", library, "--arch", "89", "--n", 64, "--k", 68]
    for m, suggested in ((60, False), (70, False), (71, True)):
        assert ("hgemm pack --nk" in call("hgemm", *words, "--m", m).stderr) == suggested
    assert " --arch 89 --invariant --to " in call("hgemm", *words, "--m", 71, "--invariant").stderr


def test_select_takes_the_sms_of_a_card(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 1000, "--json"]
    by_name = call("hgemm", *words, "--arch", "RTX 3090")
    assert by_name.stdout == call("hgemm", *words, "--arch", "86", "--sms", card_named("rtx3090").sms).stdout
    assert "assumes" not in by_name.stderr and "SMs (A40)" in call("hgemm", *words[:-1], "--arch", "86").stderr


def test_select_explains_a_choice_that_overrides_the_estimate(paper_library: Library) -> None:
    words = ["select", "--library", paper_library.folder, "--arch", "89", "--m", 4096, "--n", 4096, "--k", 4096]
    best, *others = json.loads(call("hgemm", *words, "--all", "--json").stdout)
    assert "_sm89_" in best["symbol"] and min(other["clocks"] for other in others) < best["clocks"]
    assert best["why"].startswith("smallest estimate") and "own architecture" in best["why"].split("; ")[-1]


def test_unsupported_and_misspelt_requests_are_reported(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 64, "--n", 64, "--k", 64]
    done = call("hgemm", *words, "--arch", "80", "--align", "1")
    assert done.returncode == 1 and "need more alignment (A, B and D have 1, 1 and 1 elements)" in done.stderr
    done = call("hgemm", *words, "--arch", "80", "--dtype", "f12")
    assert done.returncode == 2 and "--dtype 'f12' is unknown: use f16, bf16, tf32" in done.stderr
    done = call("hgemm", *words, "--arch", "70")
    assert done.returncode == 2 and "arch '70' is sm_70, which is not supported" in done.stderr
    for flag in ("--m", "--batch"):
        done = call("hgemm", *words, "--arch", "80", flag, 2**31 - 1)
        assert done.returncode == 2 and f"'{flag}': 2147483647 is not in the range 1<=x<=2147482624" in done.stderr
    done = call("hgemm", *words, "--sms", "10")
    assert done.returncode == 2 and "--sms needs --arch" in done.stderr
    for verb in (words, ["explain", "--arch", "80"]):
        done = call("hgemm", *verb, "--sms", 10**9)
        assert done.returncode == 2 and "'--sms': 1000000000 is not in the range 1<=x<=1024" in done.stderr
    done = call("hgemm", *words, "--arch", "80")
    assert done.returncode == 0 and "108 SMs (A100): --sms sets another number" in done.stderr


def test_suggested_command_names_the_same_library(small_library: Library) -> None:
    words = ["--library", small_library.folder, "--m", 64, "--n", 64, "--k", 64, "--arch", 80, "--activation", "gelu"]
    assert (
        f"--activation gelu --add --library {small_library.folder}` makes one" in call("hgemm", "select", *words).stderr
    )


def test_operands_are_dense_unless_an_alignment_is_given(small_library: Library) -> None:
    words = ["select", "--library", small_library.folder, "--m", 64, "--n", 64, "--arch", "80"]
    done = call("hgemm", *words, "--k", 63)
    assert done.returncode == 1 and "alignment (A, B and D have 1, 1 and 8 elements)" in done.stderr
    assert call("hgemm", *words, "--k", 63, "--align", "8").returncode == 0
    assert call("hgemm", *words, "--k", 63, "--layout", "nt").returncode == 0  # no row of A or B is k long
    done = call("hgemm", *words, "--k", 64, "--n", 63, "--beta", "--json")
    assert done.returncode == 1 and "alignment (A, B and D have 8, 8 and 1 elements)" in done.stderr
    # A row of A, and of B, alone begins where its pointer says; a second one on an odd element.
    row = [*words, *"--m 1 --n 1 --k 4097".split()]
    assert call("hgemm", *row).returncode == 0
    assert "alignment (A, B and D have 1, 1 and " in call("hgemm", *row, "--batch", 2).stderr


# ==== hgemm cover =====================================================================================================

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
"""Architectures of the catalog. GPUs of sm_90 run code for sm_90a."""
ALIGNS = (8, 4, 2, 1)
PROMISED = kinds_of(("f16", "bf16"), LAYOUTS, ("none",), ("none",))
TF32 = kinds_of(("tf32",), LAYOUTS, ("none",), ("none",))
"""Of which the catalog has code for sm_80 and, in one layout, for sm_90a: other GPUs take that of sm_80, or its PTX."""


def found(table: DispatchTable, archs=ARCHS, kinds=PROMISED, aligns=ALIGNS, beta: bool = True) -> list:
    return list(holes(table, archs, kinds, aligns, beta))


def test_catalog_supports_its_documented_products() -> None:
    assert found(catalog_table()) == []
    assert {record["arch"].rstrip("a") for record in catalog_records()} == {*ARCHS}


def test_catalog_supports_tf32_on_every_architecture() -> None:
    assert promised_types(catalog_table()) == ["f16", "bf16", "tf32"]
    assert {kind.dtype_d for kind in TF32} == {"f32"} and found(catalog_table(), kinds=TF32) == []


def test_cover_ignores_tf32_unless_requested() -> None:
    halves = DispatchTable.of(record for record in catalog_records() if record["spec"]["dtype_a"] != "tf32")
    assert promised_types(halves) == ["f16", "bf16"]
    missing = found(halves, archs=["sm_80"], kinds=TF32, aligns=(8, 4))
    added = [record_of(emit(plan, templates_folder())) for plan in sweep([hole.request() for hole in missing]).plans]
    assert [record["traits"]["min_align"] for record in added] == [{"a": 4, "b": 4, "d": 4}] * len(LAYOUTS)
    assert found(DispatchTable.of(added), archs=["sm_80"], kinds=TF32, aligns=(8, 4)) == []


@pytest.mark.parametrize("arch", ARCHS)
def test_catalog_has_native_code(arch: str) -> None:
    """Nothing that is promised is left to the driver's compiler."""
    own = DispatchTable.of(record for record in catalog_records() if record["arch"].rstrip("a") == arch)
    assert found(own, archs=[arch]) == []


def test_each_kind_of_the_fallback_is_needed() -> None:
    """Without its kernels for any alignment there is a hole: the catalog has no more kinds of them than it takes."""
    fallback = [record for record in catalog_records() if {*record["traits"]["min_align"].values()} == {1}]

    def kind(record: dict) -> tuple:
        return record["arch"], record["spec"]["layout"], record["spec"]["dtype_a"], record["spec"]["dtype_d"]

    kinds = {kind(record): {one["symbol"] for one in fallback if kind(one) == kind(record)} for record in fallback}
    for (arch, layout, *_), left_out in kinds.items():
        rest = DispatchTable.of(r for r in catalog_records() if r["symbol"] not in left_out and r["arch"] == arch)
        (hole,) = found(rest, archs=[arch], kinds=PROMISED + TF32 if arch == "sm_80" else PROMISED)
        assert (hole.arch, hole.kind.layout) == (arch, layout)


def test_hole_names_alignments_and_the_smallest_request() -> None:
    table = DispatchTable.of(record for record in catalog_records() if {*record["traits"]["min_align"].values()} != {1})
    missing = found(table, archs=["sm_90"])
    assert len(missing) == len(PROMISED)
    for hole in missing:
        assert hole.sorts[1] == tuple(SORTS) and {*hole.sorts} in ({1}, {4, 2, 1}, {8, 4, 2, 1})
        assert hole.request()["align"] == "1"
    (hole,) = found(table, ["sm_80"], kinds_of(["f16"], ["nn"], ["none"], ["none"]), aligns=(8, 4))
    assert (hole.sorts, hole.request()["align"]) == ({4: tuple(SORTS)}, "4")


def test_suggested_request_closes_the_hole() -> None:
    kinds = kinds_of(["f16:f32", "bf16"], ["tn", "tt"], ["none", "row"], ["none", "gelu"])
    missing = found(catalog_table(), ["sm_89"], kinds)
    assert len(missing) == 14, "all but plain bf16"
    plans = sweep([hole.request() for hole in missing]).plans
    assert len(plans) == len(missing)
    records = [record_of(emit(plan, templates_folder())) for plan in plans]
    assert found(DispatchTable.of([*catalog_records(), *records]), ["sm_89"], kinds) == []


def test_covered_problems_are_supported() -> None:
    """Not only the sorts that are looked at: shapes beside the edges of tiles, and mixed alignments."""
    extents = (1, 2, 15, 16, 17, 63, 65, 127, 129, 255, 257, 5000)
    for arch in ARCHS:
        selector = Selector(catalog_table(), Target.typical(arch))
        for place, kind in enumerate(kind for kind in PROMISED if computes(arch, kind)):
            for m in extents:
                n, k = extents[(m + place) % len(extents)], extents[(3 * m + place) % len(extents)]
                aligned = {f"align_{name}": ALIGNS[(m + place + i) % 4] for i, name in enumerate("abd")}
                assert selector.find(SelectionQuery(kind, m, n, k, batch=1 + m % 3, beta=bool(m % 2), **aligned))


def test_unknown_words_are_rejected() -> None:
    with pytest.raises(RequestError, match="dtype_a 'f8' is not supported"):
        kinds_of(["f8"], ["tn"], ["none"], ["none"])
    with pytest.raises(RequestError, match="kernels multiply f32 as tf32 only: use tf32:f16"):
        kinds_of(["f32:f16"], ["tn"], ["none"], ["none"])


def test_cover_lists_holes_and_add_closes_them(small_library: Library, tmp_path: Path) -> None:
    library = tmp_path / "library"
    symbol = small_library.rows()[0]["symbol"]
    (library / symbol).mkdir(parents=True)
    for path in (small_library.folder / symbol).iterdir():
        (library / symbol / path.name).write_bytes(path.read_bytes())
    layout = symbol.split("_")[2]
    words = ["cover", "--library", library, "--arch", "80", "--dtype", "f16", "--layout", layout]
    done = call("hgemm", *words)
    row = f"sm_80 {layout} f16->f16 acc f32 yes 4,2,1 all"
    assert (done.returncode, done.stdout.splitlines()[1].split()) == (1, row.split())
    assert done.stderr.startswith("hgemm: ") and "--add" in done.stderr
    done = call("hgemm", *words, "--json")
    (hole,) = json.loads(done.stdout)
    assert hole["sorts"].keys() == {"4", "2", "1"} and hole["request"]["align"] == "1"
    done = call("hgemm", *words, "--add")
    assert done.returncode == 0 and "] built hgemm_sm80_" in done.stderr, done.stderr
    assert done.stdout.startswith("sm_80: 1 kind supported, at alignments 8,4,2,1")
    rows = hgemm.open(library).table.rows
    assert {size_of_tile(row.tile_m, row.tile_n) for row in rows if row.align_a == 8} == {*ROWS_OF_SIZE}
    assert call("hgemm", *words).returncode == 0
    assert call("hgemm", *words, "--align", "3").returncode == 2
    assert call("hgemm", *words, "--arch", "70").returncode == 2


def test_cover_skips_types_that_an_architecture_lacks() -> None:
    beyond = kinds_of(["bf16", "tf32"], LAYOUTS, ("none",), ("none",))
    assert found(DispatchTable.of([]), archs=["sm_75"], kinds=beyond) == []
    assert len(found(DispatchTable.of([]), archs=["sm_80"], kinds=beyond)) == len(beyond)


def test_kernels_with_tma_lack_only_empty_products() -> None:
    """As the kernels of a pack: `hgemm cover --no-empty` does not require these products."""
    table = DispatchTable.of(record for record in catalog_records() if record["launch"].get("tensor_maps"))
    kinds = kinds_of(("f16",), ("tn",), ("none",), ("none",))
    (hole,) = found(table, ["sm_90"], kinds, aligns=(8,))
    assert hole.sorts == {8: ("k of 0",)}
    nonempty = [sort for sort in SORTS if sort != "k of 0"]
    assert list(holes(table, ["sm_90"], kinds, (8,), True, sorts=nonempty)) == []


def test_kinds_are_counted_by_architecture(paper_library: Library) -> None:
    words = ["cover", "--library", paper_library.folder, "--layout", "tn", "--align", "8"]
    done = call("hgemm", *words, "--dtype", "f16,bf16", "--arch", "75,80", "--no-empty")
    assert done.returncode == 0 and done.stdout.startswith(
        "sm_75: 1 kind, sm_80: 2 kinds supported, at alignments 8, for"
    )
    assert "k of 1" in done.stdout and "k of 0" not in done.stdout
    assert done.stderr == "hgemm: sm_75 multiplies f16 only: 1 kind skipped\n"
    done = call("hgemm", *words, "--dtype", "bf16", "--arch", "75")
    assert done.returncode == 2 and "instructions of sm_75 multiply f16 only: use --dtype f16" in done.stderr
