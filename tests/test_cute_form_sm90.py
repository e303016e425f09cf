"""Kernels on TMA and wgmma in CuTe's whole vocabulary: their layouts are what TMA writes and wgmma reads, and they are right."""

from __future__ import annotations

import itertools
import re

import pytest

from generator.build.compile import every_atom
from generator.build.emit import emit
from generator.build.pipeline import BuildOptions, build
from generator.build.toolchain import headers, templates_folder
from generator.families import family_of
from generator.families.base import Plan
from generator.families.tensor_maps import OperandBoxes
from generator.planner import violations
from generator.proof.executor import HostToolchain
from generator.proof.proving import Subject, prove
from generator.spec import DTYPE_BYTES
from generator.sweep import sweep

TEMPLATES = templates_folder()
SPECS = [
    {},
    {"layout": "nt", "tile": "128x96x64", "cluster": "2x2"},
    {"layout": "nn", "tile": "64x72x128", "out": "f32"},
    {"layout": "tt", "tile": "64x256x64", "cluster": "1x2"},
    {"layout": "tn", "tile": "128x128x32", "dtype": "tf32", "out": "f32"},
    {"layout": "nt", "tile": "48x128x64", "swap_ab": "on"},
]


def plan_in_cute(**texts: str) -> Plan:
    (candidate,) = sweep([{"arch": "sm_90a", "form": "cute", **texts}]).candidates
    assert not candidate.broken
    return candidate.plan


def test_wgmma_is_what_it_is_planned_on_as_without_a_form() -> None:
    plan = plan_in_cute()
    (plain,) = sweep([{"arch": "sm_90a"}]).plans
    assert family_of(plan.spec).name == "wgmma" and plan.replace(form="atoms") == plain
    assert emit(plan, TEMPLATES).symbol != emit(plain, TEMPLATES).symbol


@pytest.mark.parametrize(
    "texts", [{"schedule": "split_k:2"}, {"schedule": "split_k_cluster:4"}, {"schedule": "one_tile"}], ids=str
)
def test_a_schedule_that_it_cannot_express_is_a_violation_that_a_change_mends(texts: dict) -> None:
    (candidate,) = sweep([{"arch": "sm_90a", "form": "cute", "cluster": "1x1", **texts}]).candidates
    (broken,) = candidate.broken
    assert broken.rule == "cute_schedule" and broken.change
    assert not violations(candidate.plan.replace(form="atoms"))


# ---- What it says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", SPECS, ids=str)
def test_its_stages_lie_as_boxes_of_the_tensor_maps_come(texts: dict) -> None:
    """Element (mn, k) of CuTe's layout is where the TMA puts it: boxes one after the other, row after row."""
    plan = plan_in_cute(**texts)
    source = emit(plan, TEMPLATES).source
    for name, boxes in (("A", plan.a), ("B", plan.b)):
        offset = layout_of(source, name, boxes)
        box = int(re.search(rf"TmaLoad{name} = .*, (\d+)>;", source)[1])
        width = boxes.box[0]
        for mn, k in itertools.product(range(0, boxes.extent, 3), range(0, boxes.k, 5)):
            row, column = (mn, k) if boxes.k_major else (k, mn)
            assert offset(mn, k) == column // width * box + row * width + column % width
        assert box * boxes.element_bytes * -(-boxes.extent * boxes.k // box) == boxes.stage_bytes


def layout_of(source: str, name: str, boxes: OperandBoxes):
    """Read an operand's tile_to_shape: 8 rows of an atom's width are repeated along one extent, then along the other."""
    text = re.search(rf"using SmemLayout{name} = (.*);", source)[1]
    major, bits = re.search(r"GMMA::Layout_(K|MN)_SW(\d+)_Atom<Element>", text).groups()
    width = int(bits) // boxes.element_bytes
    assert (major == "K") == boxes.k_major and ("Step<_2, _1, _3>" in text) == (not boxes.k_major)
    rows = boxes.extent if boxes.k_major else boxes.k

    def offset(mn: int, k: int) -> int:
        row, column = (mn, k) if boxes.k_major else (k, mn)
        atom = row // 8 + rows // 8 * (column // width)
        return atom * 8 * width + row % 8 * width + column % width

    return offset


@pytest.mark.parametrize("texts", SPECS, ids=str)
def test_what_it_stages_of_d_fills_the_room_that_is_planned_with_boxes_of_the_map(texts: dict) -> None:
    plan = plan_in_cute(**texts)
    source = emit(plan, TEMPLATES).source
    shape = re.search(r"SmemLayoutD = .*Shape<(.*?)>\{\}", source)[1]
    rows, columns, stages = (int(number) for number in re.findall(r"\d+", shape))
    (box,) = [one.box for one in plan.tensor_maps if one.operand == "d"]
    assert {rows, columns} == {*box[:2]} and plan.tile.n % columns == 0
    assert rows * columns * stages * DTYPE_BYTES[plan.spec.dtype_d] * plan.spec.consumers == plan.epilogue_bytes


def test_shapes_that_cute_declares_apart_are_asked_for_and_found() -> None:
    switch = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"
    assert switch in emit(plan_in_cute(tile="64x72x64"), TEMPLATES).source
    assert switch not in emit(plan_in_cute(tile="64x96x64"), TEMPLATES).source
    names = {header.name for header in every_atom(headers("wgmma/cute_kernel.cuh", TEMPLATES).files)}
    assert {"mma_sm90_gmma_ext.hpp", "mma_traits_sm90_gmma_ext.hpp"} <= names


# ---- Made and run (half a minute here, most of it CuTe's) --------------------------------------------------------------


def test_it_compiles_to_what_is_planned() -> None:
    plan = plan_in_cute(tile="128x128x64", cluster="2x1", bias="row", activation="relu")
    (product,) = build([plan], BuildOptions(TEMPLATES))
    assert (product.status, product.error) == ("built", "")
    assert product.record["sass"]["HGMMA"] == plan.mma_per_k_tile and product.record["resources"]["spill_bytes"] == 0


def test_it_is_proved_on_the_cpu(host_toolchain: HostToolchain) -> None:
    plan = plan_in_cute(tile="64x32x64", layout="nt", cluster="2x1", bias="column", stages="3")
    kernel = emit(plan, TEMPLATES)
    record = {"symbol": kernel.symbol, "arch": plan.spec.arch, "spec": plan.spec.to_dict()}
    record |= {"launch": plan.launch(), "traits": plan.traits()}
    subject = Subject(kernel.symbol, kernel.source, record, plan.mma_per_k_tile)
    proved = prove(subject, host_toolchain)
    assert [check.reason for check in proved.checks if not check.passed] == []
    assert (proved.proof["races"], proved.proof["epilogue_conflicts"]) == (0, 0)
