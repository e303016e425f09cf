"""The order in which a kernel adds products: plans with the same order give the same bits."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from conftest import executable_of, hgemm
from records import make_record

from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.explain import Question, explain
from generator.families.base import AccumulationOrder
from generator.proof.executor import Adversary, Executable, HostToolchain
from generator.proof.machine import EmulatedKernel, HostMemory
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.cases import Case, Shape
from hgemm.dtypes import decode
from hgemm.errors import LibraryError
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import LaunchOptions
from hgemm.record import Record, dump
from hgemm.verification import CheckOptions, Trial

BASE = {"arch": "sm_90a", "out": "f32", "beta": "off", "schedule": "one_tile"}
WGMMA = {**BASE, "mma": "wgmma", "tile": "64x64x64"}
TMA = {**BASE, "mma": "m16n8k16", "copy": "tma", "tile": "64x64x32"}
CP_ASYNC = {**BASE, "mma": "m16n8k16", "copy": "cp_async", "tile": "64x64x32"}


def order_of(options: dict[str, str]) -> AccumulationOrder:
    (plan,) = sweep([options]).plans
    return plan.accumulation_order


# ---- What changes an order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {**WGMMA, "tile": "128x256x64"},
        {**WGMMA, "tile": "64x64x32", "stages": "3"},
        {**WGMMA, "tile": "16x64x64", "swap_ab": "on"},
        {**WGMMA, "tile": "128x128x64", "schedule": "persistent", "cluster": "2x1", "raster": "row"},
        {**WGMMA, "copy": "cp_async", "tile": "64x64x32"},
        {**WGMMA, "out": "f16", "layout": "nn", "bias": "row"},
        TMA,
        {**TMA, "tile": "128x128x64"},
        CP_ASYNC,
        {**CP_ASYNC, "tile": "128x128x64", "layout": "nt", "align": "4"},
        {**CP_ASYNC, "form": "cute"},  # test_cute_form.py proves that kernels have the order of their plan
        {**WGMMA, "form": "cute", "schedule": "persistent"},
        {**CP_ASYNC, "copy": "ldg_sts"},
        {**CP_ASYNC, "copy": "ldg_sts_unaligned", "align": "1"},
    ],
)
def test_kernels_that_add_k_in_order_share_one_order(options: dict[str, str]):
    assert order_of(options) == order_of(WGMMA)
    assert order_of(options).fixed


@pytest.mark.parametrize(
    "change",
    [
        {"copy": "cp_async", "form": "dsl"},
        {"copy": "cp_async", "form": "dsl", "tile": "64x64x64"},
        {"acc": "f16"},
        {"acc": "f16_promoted"},
        {"dtype": "bf16"},
        {"mma": "m16n8k8"},
        {"schedule": "split_k:2"},
        {"schedule": "split_k:3"},
        {"schedule": "split_k:2", "tile": "64x64x64"},
    ],
)
def test_options_that_change_bits_change_the_order(change: dict[str, str]):
    others = [{}, {"copy": "cp_async"}, {"schedule": "split_k:4"}]
    assert order_of({**TMA, **change}).to_dict()["id"] not in {
        order_of({**TMA, **other}).to_dict()["id"] for other in others
    }


def test_parts_of_k_are_the_same_in_a_workspace_and_in_a_cluster():
    split = {**WGMMA, "tile": "64x64x64"}
    in_cluster, in_workspace = (order_of({**split, "schedule": f"{kind}:2"}) for kind in ("split_k_cluster", "split_k"))
    assert in_cluster == in_workspace and in_cluster.fixed


def test_order_is_unknown_if_m_or_the_launch_decides_the_splits():
    assert not order_of({**WGMMA, "schedule": "stream_k"}).fixed
    at_launch = order_of({**WGMMA, "schedule": "launch"})
    assert at_launch.text == order_of(WGMMA).text and not at_launch.fixed


def test_stream_k_has_its_own_order():
    tiles = ("64x64x64", "128x64x64", "64x128x64")
    assert len({order_of({**WGMMA, "schedule": "stream_k", "tile": tile}).text for tile in tiles}) == len(tiles)


# ---- Where it is shown -----------------------------------------------------------------------------------------------


def test_explain_show_and_list_name_the_order(small_library: Library, capsys: pytest.CaptureFixture[str]):
    symbol = small_library.rows()[0]["symbol"]
    order = small_library.load(symbol).record.data["accumulation_order"]
    (candidate,) = sweep([{"arch": "sm_80", "tile": "32x32x16", "stages": "2"}]).candidates
    assert explain(candidate, Question())["plan"]["accumulation_order"] == order["id"]
    place = ("--library", small_library.folder)
    _, shown, _ = hgemm(capsys, "show", symbol, *place)
    assert order["id"] in shown and order["text"] in shown
    wanted = ("list", *place, "--columns", "symbol,accumulation_order,fixed_order", "--json", "--where")
    _, listed, _ = hgemm(capsys, *wanted, f"accumulation_order={order['id']} and fixed_order")
    assert symbol in {row["symbol"] for row in json.loads(listed)}
    _, listed, _ = hgemm(capsys, *wanted, "accumulation_order=order_00000000")
    assert json.loads(listed) == []


def test_a_record_whose_order_contradicts_its_text_is_rejected():
    order = order_of(CP_ASYNC).to_dict()
    right, _ = make_record("hgemm_x", accumulation_order=order)
    assert Record.parse(dump(right)).flat()["accumulation_order"] == order["id"]
    wrong, _ = make_record("hgemm_x", accumulation_order={**order, "text": order["text"] + " twice"})
    with pytest.raises(LibraryError, match="accumulation_order"):
        Record.parse(dump(wrong))


def test_records_without_an_order_are_read():
    record, _ = make_record("hgemm_x")
    record.pop("accumulation_order", None)
    assert "accumulation_order" not in Record.parse(dump(record)).flat()


# ---- The bits --------------------------------------------------------------------------------------------------------

KERNELS = {
    "wgmma": WGMMA,
    "wgmma, k-tile 32": {**WGMMA, "tile": "64x32x32"},
    "wgmma, swap_ab": {**WGMMA, "tile": "16x64x64", "swap_ab": "on"},
    "wgmma, cp.async": {**WGMMA, "copy": "cp_async"},
    "wgmma, 3 parts": {**WGMMA, "schedule": "split_k:3"},
    "wgmma, cluster of 3": {**WGMMA, "schedule": "split_k_cluster:3"},
    "wgmma, f16": {**WGMMA, "acc": "f16"},
    "tma": TMA,
    "tma, k-tile 64": {**TMA, "tile": "32x64x64"},
    "tma, 3 parts": {**TMA, "tile": "64x64x64", "schedule": "split_k:3"},
    "tma, 3 parts of k-tiles of 32": {**TMA, "schedule": "split_k:3"},
    "tma, f16": {**TMA, "acc": "f16"},
    "tma, promoted": {**TMA, "acc": "f16_promoted"},
    "cp.async": {**CP_ASYNC, "tile": "32x32x32"},
    "cp.async, larger": {**CP_ASYNC, "stages": "4"},
    "cp.async, n and t": {**CP_ASYNC, "tile": "32x64x32", "layout": "nt"},
    "cp.async, 2 elements": {**CP_ASYNC, "tile": "64x32x32", "align": "2"},
    "registers": {**CP_ASYNC, "copy": "ldg_sts", "tile": "32x64x32"},
    "registers, unaligned": {**CP_ASYNC, "copy": "ldg_sts_unaligned", "align": "1", "tile": "32x64x32"},
    "cp.async, k-tile 64": {**CP_ASYNC, "tile": "32x32x64"},
    "m16n8k8": {**TMA, "mma": "m16n8k8"},
    "direct": {**BASE, "copy": "ldg", "tile": "16x32x256"},
    "direct, n and n": {**BASE, "copy": "ldg", "tile": "16x32x256", "layout": "nn"},
    "direct, n and t": {**BASE, "copy": "ldg", "tile": "16x32x256", "layout": "nt"},
    "direct, t and t": {**BASE, "copy": "ldg", "tile": "16x24x256", "layout": "tt"},
}


def product_bytes(traits: LaunchTraits, executable: Executable, shape: Shape, splits: int = 0) -> bytes:
    """Return the bytes of a product of normal data. `splits` are those of the launch, 0 if it has no choice."""
    kernel = EmulatedKernel(traits, executable, (Adversary("late", "ahead_low", 1),))
    trial = Trial(kernel, Case(shape, 1.0, 0.0), HostMemory(), CheckOptions(seed=0), "normal")
    if splits:
        trial.launch_options = LaunchOptions(splits)
    try:
        trial.prepare()
        found, failure = trial.launch(trial.problem())
    finally:
        trial.free()
    assert not failure
    return np.ascontiguousarray(decode(found, traits.dtype_d)).tobytes()


@pytest.mark.slow(seconds=8)
def test_kernels_have_the_same_bits_if_and_only_if_they_have_the_same_order(o0_toolchain: HostToolchain):
    bits, names = defaultdict(set), defaultdict(list)
    for name, options in KERNELS.items():
        (plan,) = sweep([options]).plans
        made, order = emit(plan, templates_folder()), plan.accumulation_order.text
        traits = LaunchTraits.of(planned_sections(made))
        bits[order].add(
            product_bytes(traits, executable_of(made, o0_toolchain), Shape(41, 48, 421))
        )  # a partial k-tile
        names[order].append(name)
    assert {order: len(found) for order, found in bits.items()} == dict.fromkeys(bits, 1), names
    assert len({one for found in bits.values() for one in found}) == len(bits), names
