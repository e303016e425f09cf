"""Batch-invariant selection: all rows of the products with one n and k have one accumulation order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import executable_of
from conftest import hgemm as run_hgemm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tables import catalog_records, catalog_table, record_of
from test_accumulation_order import product_bytes

from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.pack.growth import best_plan
from generator.pack.kernels import PackChooser
from generator.pack.models import Layer
from generator.proof.executor import HostToolchain
from generator.store.library import Library
from generator.sweep import sweep
from generator.tuning import planned_record
from hgemm.accumulation import unsplit_order
from hgemm.arrays import View
from hgemm.cases import Shape
from hgemm.dispatch_table import DispatchTable, row_of, sms_used
from hgemm.errors import UnsupportedError
from hgemm.growth import GrowingSelector, Growth
from hgemm.invariance import order_of
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import LAYOUTS, Kind, LaunchOptions
from hgemm.products import MatmulOptions, _independent_of_rows, _query, matching_kinds
from hgemm.selection import Choice, Selector
from hgemm.selection_query import SelectionQuery, Target

H100 = Target.typical("sm_90")
WORKSPACE_BYTES = 34 << 20


@cache
def records_by_symbol() -> dict[str, dict[str, Any]]:
    return {record["symbol"]: record for record in catalog_records()}


@cache
def selector_of(arch: str) -> Selector:
    """Return a selector of the whole catalog."""
    return Selector(catalog_table(), Target.typical(arch))


def invariant(m: int, n: int, k: int, kind: Kind = Kind(), batch: int = 1, **fields: Any) -> SelectionQuery:  # noqa: B008
    query = SelectionQuery.dense(kind, (m, n, k, batch), WORKSPACE_BYTES)
    return replace(query, batch_invariant=True, **fields)


def order_of_launch(choice: Choice, k: int) -> tuple[str, tuple[int, ...]]:
    """Return the order of an unsplit launch, and where the parts of k end.

    Source: the kernel's record, and k_range of templates/common/scheduler.cuh.
    """
    record, row = records_by_symbol()[choice.symbol], choice.row
    splits = choice.options.splits if row.decides_splits else row.splits
    assert splits == 1 or row.serial_parts or not (choice.options and choice.options.whole_tiles)
    each, longer = divmod(-(-k // row.tile_k), splits)
    ends = [each + (part < longer) for part in range(splits)]
    text = re.sub(r"; \d+ parts.*", "", record["accumulation_order"]["text"])
    return text, tuple(int(end) * row.tile_k for end in np.cumsum(ends)[:-1])


# ---- The law ---------------------------------------------------------------------------------------------------------

extents = st.integers(1, 64).map(lambda x: 8 * x) | st.integers(1, 300).map(lambda x: 64 * x) | st.integers(1, 2**16)
kinds = st.builds(
    Kind,
    layout=st.sampled_from(LAYOUTS),
    dtype_a=st.just("f16"),
    dtype_b=st.just("f16"),
    bias=st.sampled_from(("none", "none", "row")),
    acc=st.sampled_from(("f32", "f32", "f16")),
)


FEW_COLUMNS = {"n": 320, "k": 16384 + 64, "kind": Kind(), "beta": False, "name": "sm_90", "cublas_order": False}


@settings(max_examples=60, deadline=None)
@example(**FEW_COLUMNS, rows=[(m, 1) for m in (3, 17, 64, 500, 8192)], workspace_bytes=WORKSPACE_BYTES)
@example(**FEW_COLUMNS, rows=[(m, 2) for m in (2, 130, 4096)], workspace_bytes=0)
@example(**{**FEW_COLUMNS, "n": 512}, rows=[(m, 1) for m in (16, 1000, 4096, 6144)], workspace_bytes=WORKSPACE_BYTES)
@given(
    n=extents,
    k=extents,
    kind=kinds,
    rows=st.lists(st.tuples(st.integers(1, 20000), st.integers(1, 5)), min_size=3, max_size=8),
    beta=st.booleans(),
    workspace_bytes=st.sampled_from((0, WORKSPACE_BYTES)),
    name=st.sampled_from(("sm_90", "sm_90", "sm_80", "sm_120", "sm_75")),
    cublas_order=st.booleans(),
)
def test_all_rows_and_batches_have_one_order(
    n: int,
    k: int,
    kind: Kind,
    rows: list[tuple[int, int]],
    beta: bool,
    workspace_bytes: int,
    name: str,
    cublas_order: bool,
) -> None:
    more = {"workspace_bytes": workspace_bytes, "cublas_order": cublas_order, "beta": beta}
    found = [selector_of(name).find(invariant(m, n, k, kind, batch, **more)) for m, batch in [(1, 1), *rows]]
    if None in found:
        assert found == [None] * len(found)
        return
    assert len({order_of_launch(choice, k) for choice in found}) == 1
    (order,) = {choice.order for choice in found}
    for choice in found:
        assert order_of(choice.row, k, order.splits) == order
        assert choice.workspace_bytes <= workspace_bytes


def test_epilogues_do_not_change_the_order() -> None:
    for n, k in ((4096, 4096), (512, 16384)):
        plain, added = (selector_of("sm_90").find(invariant(64, n, k, beta=beta)) for beta in (False, True))
        assert plain.order == added.order


def test_the_workspace_does_not_change_the_order() -> None:
    for n, k in ((4096, 4096), (512, 16384), (1024, 8192)):
        found = {
            selector_of("sm_90").find(invariant(8, n, k, workspace_bytes=size)).order for size in (0, 2**20, 2**40)
        }
        assert len(found) == 1


def test_a_long_k_with_few_columns_is_split_for_every_m() -> None:
    splits = {
        (n, k): {selector_of("sm_90").find(invariant(m, n, k)).order.splits for m in (1, 3, 100, 8192)}
        for n, k in ((4096, 4096), (28672, 4096), (256, 16384))
    }
    assert splits[4096, 4096] == splits[28672, 4096] == {1}
    assert len(splits[256, 16384]) == 1 and splits[256, 16384] != {1}


def test_with_many_rows_one_cta_adds_all_parts_of_a_tile() -> None:
    few, *many = (selector_of("sm_90").find(invariant(m, 512, 16384, workspace_bytes=0)) for m in (8, 4096, 8192))
    assert few.order.splits > 1
    for choice, m in zip(many, (4096, 8192), strict=True):
        row, options = choice.row, choice.options
        assert (choice.order, choice.workspace_bytes, options.splits) == (few.order, 0, few.order.splits)
        assert options.whole_tiles * row.cluster_m * row.cluster_n == row.tiles(m, 512)


@pytest.mark.parametrize(("n", "k"), [(256, 16384), (384, 24576), (512, 16384), (1024, 8192)])
def test_order_costs_little_for_any_number_of_rows(n: int, k: int) -> None:
    """Estimated, against selection that may take any order. At 2048x512x16384, splitting all tiles would need two waves.

    Trees lower the estimate of some free launches, so the limit is 1.25. Measured nearby, 952x1024x7168 loses 5 %.
    """
    selector = selector_of("sm_90")
    for m in (1, 16, 100, 300, 1000, 2048, 3000, 8192):
        free, kept = (selector.find(replace(invariant(m, n, k), batch_invariant=flag)) for flag in (False, True))
        assert kept.clocks <= 1.25 * free.clocks


def test_many_rows_with_few_columns_are_split_in_one_round() -> None:
    """Split items would wait for partial sums in each round, so whole tiles add k in the same parts."""
    wholes = []
    for m in (2048, 4096, 8192):
        choice = selector_of("sm_90").find(invariant(m, 512, 16384))
        row, options = choice.row, choice.options
        split = row.tiles(m, 512) - options.whole_tiles * row.cluster_m * row.cluster_n
        assert split * options.splits <= sms_used(row, H100)
        wholes.append(options.whole_tiles)
    assert max(wholes) > 0


def test_without_kernels_that_split_k_nothing_is_split() -> None:
    records = [record for record in records_by_symbol().values() if "split" not in record["spec"]["schedule"]]
    selector = Selector(DispatchTable.of(records), H100)
    for m in (1, 64, 4096):
        choice = selector.find(invariant(m, 256, 16384))
        assert choice.order.splits == 1 and (choice.options is None or choice.options.splits == 1)


def test_k_of_0_has_no_order() -> None:
    assert selector_of("sm_90").find(invariant(16, 16, 0)).order is None


def test_the_order_of_cublas_is_preferred() -> None:
    wanted = replace(invariant(8, 256, 16384), cublas_order=True)
    for query in (wanted, replace(wanted, batch_invariant=False)):
        assert selector_of("sm_90").find(query).order.is_cublas
    turing = replace(invariant(8, 256, 16384), cublas_order=True, batch_invariant=False)
    assert selector_of("sm_75").find(turing) == selector_of("sm_75").find(replace(turing, cublas_order=False))


def test_an_order_is_chosen_once_for_each_n_and_k(monkeypatch: pytest.MonkeyPatch) -> None:
    import hgemm.selection

    asked = []
    choose = hgemm.selection.chosen_order
    monkeypatch.setattr(hgemm.selection, "chosen_order", lambda *given: asked.append(1) or choose(*given))
    selector = Selector(catalog_table(), H100)
    for m in (1, 2, 300):
        selector.find(invariant(m, 1024, 1024))
        selector.find(invariant(m, 1024, 1024, batch=2))
    assert len(asked) == 1


@pytest.mark.parametrize("flags", [{"batch_invariant": True}, {"cublas_order": True}])
def test_old_records_have_no_order(flags: dict[str, bool]) -> None:
    records = [
        {name: value for name, value in record.items() if name != "accumulation_order"}
        for record in records_by_symbol().values()
    ]
    selector = Selector(DispatchTable.of(records), H100)
    query = replace(invariant(8, 64, 64), **{"batch_invariant": False, **flags})
    if "cublas_order" in flags:
        assert selector.find(query).order is None
        return
    with pytest.raises(UnsupportedError, match="one order for every m.*generate --arch 90a .*--schedule one_tile"):
        selector.choose(query)


@pytest.mark.parametrize("m", [1, 64])
def test_a_request_without_an_order_names_the_alignment_that_every_m_needs(m: int) -> None:
    """A single row of D needs no alignment, but rows of 4095 elements do."""
    aligned = [record for record in records_by_symbol().values() if record["spec"]["align_d"] > 1]
    selector = Selector(DispatchTable.of(aligned), H100)
    command = "generate --arch 90a --dtype f16 --layout tn --align-d 1 --schedule one_tile"
    with pytest.raises(UnsupportedError, match=f"more alignment .A, B and D have 8, 8 and 1 elements.*{command}"):
        selector.choose(invariant(m, 4095, 4096))


# ---- Texts of orders -------------------------------------------------------------------------------------------------


def test_order_texts_are_parsed() -> None:
    """Splits do not change the order of an unsplit launch; the order of stream-K depends on the grid."""
    base = {"arch": "sm_90a", "tile": "64x64x64", "out": "f32", "beta": "off", "mma": "wgmma"}
    schedules = ("persistent", "launch", "split_k:3", "split_k_cluster:3", "stream_k")
    orders = {}
    for schedule in schedules:
        (plan,) = sweep([{**base, "schedule": schedule}]).plans
        orders[schedule] = unsplit_order(planned_record(plan))
    assert orders.pop("stream_k") == (0, False)
    assert len(set(orders.values())) == 1 and orders["launch"][1]
    (f16_sums,) = sweep([{**base, "acc": "f16", "schedule": "persistent"}]).plans
    assert unsplit_order(planned_record(f16_sums))[0] not in (0, orders["launch"][0])
    assert not unsplit_order(planned_record(f16_sums))[1]


# ---- Arrays ----------------------------------------------------------------------------------------------------------


def test_one_row_has_the_layout_of_many_rows() -> None:
    """One row fits both layouts of A, and their kernels may have different orders."""

    def query(m: int) -> SelectionQuery:
        views = {
            "A": View(2**20, (m, 64), (64, 1), "f16", 0),
            "B": View(2**30, (64, 96), (1, 64), "f16", 0),
            "D": View(2**31, (m, 96), (96, 1), "f16", 0),
        }
        options = MatmulOptions(batch_invariant=True)
        return _independent_of_rows([_query(kind, views, options, 0) for kind in matching_kinds(views, options)])

    assert {query(m).kind.layout for m in (1, 2, 100)} == {"tn"}
    assert all(query(m).batch_invariant for m in (1, 2))


# ---- Errors ----------------------------------------------------------------------------------------------------------


def test_products_without_a_kernel_of_the_order_are_named() -> None:
    query = replace(invariant(64, 256, 16384), align_a=1, workspace_bytes=0)
    choice = selector_of("sm_90").find(replace(query, align_a=8))
    assert choice.order.splits > 1
    with pytest.raises(UnsupportedError) as caught:
        selector_of("sm_90").choose(query)
    assert f"split_k_cluster:{choice.order.splits}" in str(caught.value) and "more alignment" in str(caught.value)
    assert str(choice.order) in str(caught.value)


# ---- Verbs -----------------------------------------------------------------------------------------------------------


def test_select_shows_the_order(paper_library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    place = (
        "select",
        "--library",
        paper_library.folder,
        "--arch",
        "90",
        "--n",
        "4096",
        "--k",
        "4096",
        "--invariant",
        "--json",
    )
    orders = []
    for m in ("1", "4096"):
        status, out, _ = run_hgemm(capsys, *place, "--m", m)
        found = json.loads(out)
        assert status == 0 and "the accumulation order of all m with n 4096 and k 4096: order_" in found["why"]
        orders.append(found["order"])
    assert orders[0] == orders[1]


def test_packs_have_kernels_of_one_order() -> None:
    chooser = PackChooser([Layer("a", 512, 8192), Layer("b", 1001, 512)], "f16", "sm_90a", (1, 512), invariant=True)
    plans = chooser.choose().plans
    table = DispatchTable.of([planned_record(plan) for plan in plans])
    selector = Selector(table, H100)
    for n, k in ((512, 8192), (1001, 512)):
        found = [selector.find(invariant(m, n, k)) for m in (1, 8, 100, 512)]
        assert all(found) and len({choice.order for choice in found}) == 1
        assert found[0].order.splits == 1


# ---- Libraries that grow ---------------------------------------------------------------------------------------------


class PaperLibrary:
    """A library whose kernels are planned and not compiled."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, []
        self.growth = Growth(self, lambda: self.build)
        self.built: list[str] = []
        self.refresh()

    @property
    def table(self) -> DispatchTable:
        return DispatchTable.of(self.records)

    def selector(self, target: Target) -> GrowingSelector:
        return self._selectors.setdefault(target, GrowingSelector(self, target, None, self.growth))

    def refresh(self) -> None:
        self._selectors: dict[Target, GrowingSelector] = {}

    def build(self, folder: Path, missing: Any) -> str:
        plan = best_plan(missing.query, missing.target, missing.size)
        self.records.append(planned_record(plan))
        self.built.append(missing.size)
        return self.records[-1]["symbol"]


def test_added_kernels_do_not_change_the_order(tmp_path: Path) -> None:
    library = PaperLibrary(tmp_path)
    templates = templates_folder()
    (plan,) = sweep([{"arch": "sm_90", "tile": "64x64x32", "schedule": "one_tile", "mma": "m16n8k8"}]).plans
    library.records.append(record_of(emit(plan, templates)))
    orders = {library.selector(H100).choose(invariant(m, 512, 4096)).order for m in (1, 64, 4096, 1)}
    assert len(orders) == 1 and {order.is_cublas for order in orders} == {True}
    assert library.built == ["few_rows", "small", "medium"]


# ---- Launch options --------------------------------------------------------------------------------------------------


def launches() -> Iterator[Choice]:
    for m in (1, 40, 700, 5000):
        yield selector_of("sm_90").find(invariant(m, 4096, 14336, Kind(bias="row")))


def test_launches_that_decide_splits_keep_the_order() -> None:
    decided = [choice for choice in launches() if choice.row.decides_splits]
    assert decided and {choice.options.splits for choice in decided} == {1}
    free = selector_of("sm_90").find(replace(invariant(40, 512, 16384), batch_invariant=False))
    assert free.row.splits > 1 or free.options != LaunchOptions(1)


# ---- The bits --------------------------------------------------------------------------------------------------------

WGMMA = {"arch": "sm_90a", "out": "f32", "mma": "wgmma"}
LAUNCHED = {
    "whole": ({**WGMMA, "tile": "64x64x64", "schedule": "persistent"}, 1),
    "decided": ({**WGMMA, "tile": "128x64x64", "schedule": "launch"}, 1),
    "cluster of 2": ({**WGMMA, "tile": "64x64x64", "schedule": "split_k_cluster:2"}, 2),
    "decided, 2": ({**WGMMA, "tile": "128x64x64", "schedule": "launch"}, 2),
    "swapped, k-tile 128": ({**WGMMA, "tile": "16x64x128", "swap_ab": "on", "schedule": "split_k_cluster:2"}, 2),
    "decided, 3": ({**WGMMA, "tile": "64x64x64", "schedule": "launch"}, 3),
    "cluster of 3": ({**WGMMA, "tile": "64x128x64", "schedule": "split_k_cluster:3"}, 3),
}
"""Kernels with the splits that they are launched with."""
LONG_K = 512


@pytest.mark.slow
def test_launches_have_the_same_bits_if_and_only_if_they_have_the_same_order(o0_toolchain: HostToolchain) -> None:
    """Rows of the products with 3 and 41 rows, on the CPU."""
    bits: dict[Any, set[bytes]] = {}
    for texts, splits in LAUNCHED.values():
        (plan,) = sweep([texts]).plans
        made = emit(plan, templates_folder())
        record = planned_sections(made)
        traits, executable = LaunchTraits.of(record), executable_of(made, o0_toolchain)
        row = row_of(traits, {**record, "resources": {"ctas_per_sm": 1}})
        order, decided = order_of(row, LONG_K, splits), splits * row.decides_splits
        for m in (3, 41):
            bits.setdefault((order, m), set()).add(product_bytes(traits, executable, Shape(m, 64, LONG_K), decided))
    assert {len(found) for found in bits.values()} == {1}
    assert (
        len({one for (_, m), found in bits.items() if m == 3 for one in found})
        == len({order for order, _ in bits})
        == 3
    )
