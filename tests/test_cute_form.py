"""Kernels written in CuTe: what the form cannot express is rejected, and the rest matches the plan."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import replace

import pycute
import pytest

from benchmarks.fault_table import AUDIT_CUTE
from generator.arch import ARCHS
from generator.build.compile import compile_kernel, every_atom
from generator.build.emit import emit
from generator.build.pipeline import BuildOptions, build, planned_sections, prepare
from generator.build.toolchain import headers, templates_folder
from generator.families import family_of
from generator.families.base import Plan
from generator.families.tensor_maps import OperandBoxes
from generator.layouts import OperandTile
from generator.planner import plan_of, resolve, violations
from generator.proof.executor import HostToolchain
from generator.proof.proving import Subject, prove
from generator.spec import DTYPE_BYTES, Spec, parse_field
from generator.sweep import sweep

TEMPLATES = templates_folder()
SPECS = [
    {},
    {"layout": "tt", "tile": "64x64x32", "out": "f32"},
    {"layout": "nn", "tile": "64x128x64", "align_a": "4", "align_b": "2", "stages": "2"},
    {"layout": "nt", "tile": "128x64x32", "smem": "pad:8", "acc": "f16"},
    {"layout": "tn", "tile": "64x64x64", "warp_tile": "32x24", "smem": "none"},
    {"layout": "tn", "tile": "64x64x32", "smem_a": "pad_alternate:8", "dtype": "bf16", "schedule": "persistent"},
    {"arch": "sm_75"},
    {"arch": "sm_75", "layout": "nt", "tile": "64x64x32", "align_a": "1", "align_b": "4"},
    {"arch": "sm_90", "copy": "ldg_sts", "layout": "tt", "dtype": "bf16"},
]


def plan_in_cute(**texts: str) -> Plan:
    (candidate,) = sweep([{"arch": "sm_80", "form": "cute", **texts}]).candidates
    return candidate.plan


# ---- What it cannot say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"mma": "m16n8k8"}, "form cute supports it with f16 inputs, acc f32"),
        ({"arch": "sm_75", "acc": "f16"}, "form cute supports it with f16 inputs, acc f32"),
        ({"arch": "sm_75", "store_spacing": "5"}, "form cute requires 0"),
        ({"arch": "sm_75", "copy": "ldg_sts_scalar"}, "whole vectors"),
        ({"arch": "sm_75", "prefetch": "off", "stages": "1"}, "prefetch off: "),
        ({"mma": "wmma16"}, "mma.sync"),
        ({"smem": "pad_alternate:8"}, "at one distance"),
        ({"acc": "f16_promoted"}, "one type"),
        ({"mma_order": "row"}, "mma_order row: "),
        ({"fragment_stages": "1"}, "fragment_stages 1: "),
        ({"store": "direct"}, "writes to shared memory"),
        ({"schedule": "split_k:2"}, "split_k:2"),
        ({"align": "1"}, "cp.async"),
        ({"tile": "64x64x16"}, "1 k-block; form cute requires 2"),
        ({"tile": "64x48x32", "layout": "tt"}, "do not tile"),
    ],
)
def test_fields_that_cute_lacks_are_violations_with_a_fix(texts: dict, reason: str) -> None:
    plan = plan_in_cute(**texts)
    broken = [violation for violation in violations(plan) if violation.rule.startswith("cute_")]
    assert [violation for violation in broken if reason in violation.message]
    for violation in broken:
        assert violation.change, "there is always the other form"
    in_atoms = plan.replace(form="atoms")
    assert not [violation for violation in violations(in_atoms) if violation.rule.startswith("cute_")]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_open_fields_are_planned_within_the_form(arch: str, layout: str) -> None:
    request = {"arch": arch, "form": "cute", "layout": layout}
    assert not violations(plan_of(resolve(request)))


def test_symbol_has_the_form_and_old_records_are_atoms() -> None:
    plan = plan_in_cute()
    assert emit(plan, TEMPLATES).symbol != emit(plan.replace(form="atoms"), TEMPLATES).symbol
    old = {name: text for name, text in plan.spec.to_dict().items() if name != "form"}
    assert Spec.from_dict(old).form == "atoms" == parse_field("form", "atoms")


# ---- What it says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", SPECS, ids=str)
def test_layouts_match_the_plan(texts: dict) -> None:
    """Read back by pycute, every element of every stage lies where the plan and the executor take it to lie."""
    plan = plan_in_cute(**texts)
    source = emit(plan, TEMPLATES).source
    for name, tile in (("A", plan.a), ("B", plan.b)):
        swizzle, layout = layout_of(source, f"SmemLayout{name}")
        for row in range(tile.rows):
            for column in range(tile.columns):
                mn, k = (row, column) if tile.k_major else (column, row)
                assert swizzle(layout(mn, k, 1)) - tile.stage_elements == tile.offset(row, column)


@pytest.mark.parametrize("texts", SPECS, ids=str)
def test_threads_copy_every_piece_of_a_tile_once(texts: dict) -> None:
    plan = plan_in_cute(**texts)
    source = emit(plan, TEMPLATES).source
    for name, tile in (("A", plan.a), ("B", plan.b)):
        places = [place(source, name, tile, thread) for thread in range(plan.threads)]
        rows, columns = (1 + max(axis) for axis in zip(*places))
        assert len({*places}) == plan.threads == rows * columns
        assert tile.rows % rows == 0 and tile.columns // tile.chunk % columns == 0


def place(source: str, name: str, tile: OperandTile, thread: int) -> tuple[int, int]:
    """Return the row and the piece of a row that a thread copies first."""
    text = re.search(rf"GmemCopy{name} = .*?\{{}}, (Layout<.*>)\{{}}, Layout", source)[1]
    layout = parsed(text)
    crd = {layout(i, j): (i, j) for i in range(layout.shape[0]) for j in range(layout.shape[1])}[thread]
    return crd if tile.k_major else crd[::-1]


def layout_of(source: str, name: str) -> tuple[pycute.Swizzle, pycute.Layout]:
    text = re.search(rf"using {name} = (.*);", source)[1]
    swizzle = re.search(r"Swizzle<(\d), (\d), (\d)>", text)
    numbers = [int(number) for number in swizzle.groups()] if swizzle else [0, 3, 3]
    return pycute.Swizzle(*numbers), parsed(text)


def parsed(text: str) -> pycute.Layout:
    """Read a CuTe layout type."""
    shape, stride = re.search(r"Layout<(Shape<.*>), (Stride<.*?>)>(?:\{|$)", text).groups()
    return pycute.Layout(numbers(shape), numbers(stride))


def numbers(text: str) -> tuple:
    """Read Shape<_128, Shape<_4, Int<3>>> as (128, (4, 3))."""
    plain = re.sub(r"Int<(\d+)>|_(\d+)", lambda match: match[1] or match[2], text)
    stack: list[list] = [[]]
    for word in re.findall(r"\w+<|\d+|>", plain):
        if word.endswith("<"):
            stack.append([])
        elif word == ">":
            inner = tuple(stack.pop())
            stack[-1].append(inner)
        else:
            stack[-1].append(int(word))
    return stack[0][0]


def test_only_cute_kernels_read_all_of_cute() -> None:
    whole, lean = (headers(root, TEMPLATES) for root in ("mma_sync/cute_kernel.cuh", "mma_sync/kernel.cuh"))
    stand_in = (TEMPLATES / "cute_lean" / "cute" / "config.hpp").read_bytes()
    assert {h.name: h.text for h in lean.files}["cute/config.hpp"] == stand_in
    assert {h.name: h.text for h in whole.files}["cute/config.hpp"] != stand_in
    assert "cute/tensor.hpp" not in lean.hashes() and "cccl/cuda/std/type_traits" in whole.hashes()


def test_key_covers_every_compiled_header() -> None:
    files = headers("wgmma/cute_kernel.cuh", TEMPLATES).files
    assert {header.sha256 for header in every_atom(files)} == {header.sha256 for header in files}
    assert all(header.sha256 == hashlib.sha256(header.text).hexdigest() for header in files)


def test_header_with_whole_tuples_includes_all_of_cute() -> None:
    """Types that were asked for before would be CuTe's own; the others are the same types, of any element of any tuple."""
    assert [path.name for path in TEMPLATES.rglob("*.cuh") if "<cute/tensor.hpp>" in path.read_text()] == [
        "cute_tensor.cuh"
    ]
    types = ["char", "short", "int", "long", "float", "double"]
    asked = [f"cute::is_same_v<cute::tuple_element_t<{at}, All>, {name}>" for at, name in enumerate(types)]
    source = f"""#include <common/cute_tensor.cuh>
using All = cute::tuple<{", ".join(types)}>;
static_assert({" && ".join(asked)});
extern "C" __global__ void alone(float* d, unsigned const* a) {{
  cute::SM75_16x8x8_F32F16F16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], d[0], d[1], d[2], d[3]);
}}
"""
    kernel = replace(emit(plan_in_cute(arch="sm_75"), TEMPLATES), source=source, symbol="alone")
    compiled = compile_kernel(kernel, headers("common/cute_tensor.cuh", TEMPLATES))
    assert b"mma.sync.aligned.m16n8k8" in compiled.ptx, "kernels of sm_80 do not use this instruction"


# ==== On wgmma ========================================================================================================

SPECS_ON_WGMMA = [
    {},
    {"layout": "nt", "tile": "128x96x64", "cluster": "2x2"},
    {"layout": "nn", "tile": "64x72x128", "out": "f32"},
    {"layout": "tt", "tile": "64x256x64", "cluster": "1x2"},
    {"layout": "tn", "tile": "128x128x32", "dtype": "tf32", "out": "f32"},
    {"layout": "nt", "tile": "48x128x64", "swap_ab": "on"},
]


def plan_on_wgmma(**texts: str) -> Plan:
    (candidate,) = sweep([{"arch": "sm_90a", "form": "cute", **texts}]).candidates
    assert not candidate.broken
    return candidate.plan


def test_wgmma_is_the_default_in_form_cute() -> None:
    plan = plan_on_wgmma()
    (plain,) = sweep([{"arch": "sm_90a"}]).plans
    assert family_of(plan.spec).name == "wgmma" and plan.replace(form="atoms") == plain
    assert emit(plan, TEMPLATES).symbol != emit(plain, TEMPLATES).symbol


@pytest.mark.parametrize(
    "texts", [{"schedule": "split_k:2"}, {"schedule": "split_k_cluster:4"}, {"schedule": "one_tile"}], ids=str
)
def test_unsupported_schedules_are_violations_with_a_fix(texts: dict) -> None:
    (candidate,) = sweep([{"arch": "sm_90a", "form": "cute", "cluster": "1x1", **texts}]).candidates
    (broken,) = candidate.broken
    assert broken.rule == "cute_schedule" and broken.change
    assert not violations(candidate.plan.replace(form="atoms"))


# ---- What it says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", SPECS_ON_WGMMA, ids=str)
def test_stages_match_the_boxes_of_tensor_maps(texts: dict) -> None:
    """Element (mn, k) of CuTe's layout is where the TMA puts it: boxes one after the other, row after row."""
    plan = plan_on_wgmma(**texts)
    source = emit(plan, TEMPLATES).source
    for name, boxes in (("A", plan.a), ("B", plan.b)):
        offset = stage_layout_of(source, name, boxes)
        box = int(re.search(rf"TmaLoad{name} = .*, (\d+)>;", source)[1])
        width = boxes.box[0]
        for mn, k in itertools.product(range(0, boxes.extent, 3), range(0, boxes.k, 5)):
            row, column = (mn, k) if boxes.k_major else (k, mn)
            assert offset(mn, k) == column // width * box + row * width + column % width
        assert box * boxes.element_bytes * -(-boxes.extent * boxes.k // box) == boxes.stage_bytes


def stage_layout_of(source: str, name: str, boxes: OperandBoxes):
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


@pytest.mark.parametrize("texts", SPECS_ON_WGMMA, ids=str)
def test_staged_d_fills_the_planned_boxes(texts: dict) -> None:
    plan = plan_on_wgmma(**texts)
    source = emit(plan, TEMPLATES).source
    shape = re.search(r"SmemLayoutD = .*Shape<(.*?)>\{\}", source)[1]
    rows, columns, stages = (int(number) for number in re.findall(r"\d+", shape))
    (box,) = [one.box for one in plan.tensor_maps if one.operand == "d"]
    assert {rows, columns} == {*box[:2]} and plan.tile.n % columns == 0
    assert rows * columns * stages * DTYPE_BYTES[plan.spec.dtype_d] * plan.spec.consumers == plan.epilogue_bytes


def test_shapes_in_separate_cute_headers_are_found() -> None:
    switch = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"
    assert switch in emit(plan_on_wgmma(tile="64x72x64"), TEMPLATES).source
    assert switch not in emit(plan_on_wgmma(tile="64x96x64"), TEMPLATES).source
    names = {header.name for header in every_atom(headers("wgmma/cute_kernel.cuh", TEMPLATES).files)}
    assert {"mma_sm90_gmma_ext.hpp", "mma_traits_sm90_gmma_ext.hpp"} <= names


# ==== Made and run (20 s each, most of it CuTe's) ======================================================================

IN_MMA_SYNC = {"tile": "32x32x32", "layout": "nn", "stages": "3", "align_b": "4", "smem": "pad:8", "bias": "row"}
ON_TURING = {"arch": "sm_75", "tile": "32x32x32", "layout": "nt", "align_a": "2", "align_b": "1", "bias": "column"}


@pytest.mark.slow(seconds=20)
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("texts", "instruction", "conflicts"),
    [
        ({**IN_MMA_SYNC, "activation": "relu"}, "HMMA", "read_conflicts_per_k_tile"),
        ({**ON_TURING, "schedule": "persistent"}, "HMMA", "read_conflicts_per_k_tile"),
        (AUDIT_CUTE, "HGMMA", "epilogue_conflicts"),
    ],
)
def test_cute_kernels_are_built_as_planned_and_proved_on_the_cpu(
    texts: dict[str, str], instruction: str, conflicts: str, host_toolchain: HostToolchain
) -> None:
    plan = plan_in_cute(**texts)
    prepared = prepare(plan, TEMPLATES)
    (built,) = build([prepared], BuildOptions(TEMPLATES))
    assert (built.status, built.error) == ("built", "")
    assert built.record["sass"][instruction] == plan.mma_per_k_tile
    assert built.record["resources"]["spill_bytes"] == 0
    sections, ptx = planned_sections(prepared.kernel), built.files["kernel.ptx"].decode()
    proved = prove(Subject(built.symbol, ptx, sections, plan.mma_per_k_tile), host_toolchain)
    assert [check.reason for check in proved.checks if not check.passed] == []
    assert proved.proof["races"] == 0 and proved.proof["order_elements"] > 0
    assert proved.proof[conflicts] == 0
