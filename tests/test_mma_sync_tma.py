"""Kernels on mma.sync with TMA loads: plans, rejections, machine code, and results on the CPU."""

from __future__ import annotations

import pytest
from conftest import made, subject_of

from generator.arch import ARCHS
from generator.build.emit import emit
from generator.build.pipeline import Settings
from generator.build.toolchain import templates_folder
from generator.families import family_of
from generator.families.base import Plan
from generator.families.mma_sync_tma.rules import RULES
from generator.planner import requested_family, violations
from generator.proof.executor import HostToolchain
from generator.proof.proving import prove
from generator.spec import parse_field
from generator.sweep import sweep
from generator.tuning import planned_record
from hgemm.dispatch_table import clocks_of
from hgemm.launch_traits import LaunchTraits

TEMPLATES = templates_folder()
SERVED = [name for name, arch in ARCHS.items() if arch.has_tma]
BY_TMA = {"mma": "m16n8k16", "copy": "tma"}
SMALL = {**BY_TMA, "arch": "sm_90", "tile": "32x64x32", "warp_tile": "16x32"}


def plan_of(**texts: str) -> Plan:
    (candidate,) = sweep([{"arch": "sm_90a", **BY_TMA, **texts}]).candidates
    return candidate.plan


# ---- What is planned ------------------------------------------------------------------------------------------------


def test_default_tile_is_the_fastest_measured() -> None:
    spec = plan_of().spec
    fields = (str(spec.cta_tile), str(spec.warp_tile), spec.stages, spec.fragment_stages, str(spec.schedule))
    assert fields == ("256x128x64", "64x64", 3, 2, "persistent") and family_of(spec).name == "mma_sync_tma"
    halves = plan_of(acc="f16")
    assert str(halves.spec.cta_tile) == "256x256x64" and halves.accumulator_registers == 128


@pytest.mark.parametrize("arch", SERVED)
@pytest.mark.parametrize("acc", ["f32", "f16", "f16_promoted"])
@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_plans_are_legal_on_every_architecture_with_tma(arch: str, acc: str, layout: str) -> None:
    plan = plan_of(arch=arch, acc=acc, layout=layout)
    assert not violations(plan) and plan.spec.copy == "tma"


@pytest.mark.parametrize("arch", SERVED)
def test_every_architecture_has_an_estimate(arch: str) -> None:
    record = planned_record(plan_of(arch=arch))
    assert clocks_of(record).k_tile > 0


@pytest.mark.parametrize(
    ("texts", "family"),
    [
        ({"arch": "sm_90a", "copy": "tma"}, "wgmma"),
        ({"arch": "sm_90", "copy": "tma"}, "mma_sync_tma"),
        ({"arch": "sm_90a", "copy": "tma", "mma": "m16n8k16"}, "mma_sync_tma"),
        ({"arch": "sm_90a", "copy": "tma", "warp_tile": "64x64"}, "mma_sync_tma"),
        ({"arch": "sm_90a", "mma": "m16n8k16"}, "mma_sync"),
        ({"arch": "sm_120", "mma": "m16n8k16"}, "mma_sync"),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_instruction_and_copy_decide_the_family(texts: dict[str, str], family: str) -> None:
    assert requested_family({name: parse_field(name, text) for name, text in texts.items()}).name == family


def test_producer_donates_registers_if_consumers_need_them() -> None:
    plan = plan_of(tile="256x128x64")
    producer, consumer = plan.rebalanced
    assert plan.threads == 384 and plan.launch_registers == 168 and plan.rebalances_registers
    assert producer + 2 * consumer == 3 * plan.launch_registers and consumer >= plan.needed_registers
    small = plan_of(tile="128x128x64", warp_tile="64x64")
    assert small.threads == 160 and not small.rebalances_registers and small.max_registers == 255


def test_d_is_staged_in_fewer_rows_if_stages_leave_no_room() -> None:
    three, four = (plan_of(tile="256x128x64", stages=stages) for stages in ("3", "4"))
    assert (three.epilogue_rows, four.epilogue_rows) == (16, 8) and four.smem_bytes <= four.max_smem_bytes
    assert "epilogue_rows = 8" in emit(four, TEMPLATES).source and "epilogue_rows = 16" in emit(three, TEMPLATES).source


def test_boxes_of_mn_major_operands_fit_the_warp_tile() -> None:
    plan = plan_of(layout="nt", tile="96x64x32", warp_tile="48x32")
    assert (plan.a.swizzle_bytes, plan.b.swizzle_bytes) == (32, 64)  # 48 columns are three boxes of 16
    assert [entry["box"] for entry in plan.launch()["tensor_maps"]] == [[16, 32, 1], [32, 32, 1]]


# ---- What is refused ------------------------------------------------------------------------------------------------

BROKEN = [
    ({"epilogue": "relu(acc)", "bias": "row"}, "expression", "and bias row as well", {"bias": "none"}),
    (
        {"epilogue": "(acc,row_max(acc))", "schedule": "split_k:2"},
        "further_results",
        "schedule split_k:2",
        {"schedule": "one_tile"},
    ),
    ({"epilogue": "silu(gate)*up", "tile": "64x48x32", "warp_tile": "32x24"}, "gated_pair", "warp tile 32x24", None),
    ({"arch": "sm_80"}, "family", "sm_80 has no TMA", {"copy": "cp_async"}),
    ({"dtype_a": "f16", "dtype_b": "bf16"}, "same_inputs", "A is f16 and B is bf16", {"dtype_b": "f16"}),
    (
        {"dtype": "bf16", "acc": "f16", "tile": "64x64x32"},
        "accumulator",
        "bf16 inputs accumulate in f32 only",
        {"acc": "f32"},
    ),
    ({"mma": "wmma16"}, "mma", "it requires rows at one distance, and TMA swizzles them", {"mma": "m16n8k16"}),
    (
        {"dtype": "tf32", "layout": "nn", "mma": "m16n8k8"},
        "layout",
        "with copy tma, tf32 inputs require layout tn for ldmatrix",
        {"copy": "cp_async"},
    ),
    ({"align_a": "4"}, "alignment", "TMA requires 8 elements (16 B)", {"copy": "cp_async"}),
    ({"dtype": "tf32", "mma": "m16n8k8", "align_a": "8"}, "alignment_of_operands", "4 elements", {"align_a": "4"}),
    ({"dtype_d": "f32", "align_d": "8"}, "alignment_of_d", "4 elements", {"align_d": "4"}),
    (
        {"smem_a": "pad:8"},
        "fixed_fields",
        "kernels with mma m16n8k16 and copy tma require smem_a xor:3,3,3",
        {"smem_a": "xor:3,3,3"},
    ),
    ({"store": "tma"}, "store", "kernels on mma.sync support smem and direct", {"store": "smem"}),
    ({"tile": "24x64x32", "warp_tile": "16x32"}, "cta_tile", "multiples of 16", None),
    (
        {"tile": "64x64x32", "warp_tile": "48x32"},
        "warp_tile",
        "it must divide tile 64x64x32, in multiples of 16x8 up to 128x128",
        None,
    ),
    ({"tile": "256x256x32", "warp_tile": "16x16"}, "threads", "a CTA allows 1024", None),
    ({"tile": "64x64x32", "stages": "1"}, "stages", "copy tma supports 2 to 16", {"stages": "2"}),
    (
        {"tile": "64x48x32", "warp_tile": "32x24", "layout": "tt"},
        "boxes",
        "in layout tt, TMA requires multiples of 16",
        None,
    ),
    ({"fragment_stages": "3"}, "fragment_stages", "1 and 2 are supported", {"fragment_stages": "2"}),
    ({"tile": "256x256x64", "stages": "4"}, "shared_memory", "sm_90a allows 232,448 B", None),
    ({"tile": "64x64x32", "ctas_per_sm": "32"}, "residency", "sm_90a holds 12 CTAs of 160 threads", None),
    (
        {"arch": "sm_90", "tile": "256x128x64", "warp_tile": "64x64"},
        "registers",
        "warp tile 64x64 needs about 195 registers per thread (128 of them accumulators)",
        None,
    ),
    ({"raster": "group:2000"}, "raster", "2,000 tiles", {"raster": "group:1024"}),
    ({"schedule": "split_k:65"}, "splits", "2 to 64", {"schedule": "split_k:64"}),
    ({"schedule": "split_k_cluster:2"}, "schedule", "it requires a cluster, and mma.sync kernels have none", None),
]


@pytest.mark.parametrize(("texts", "rule", "message", "change"), BROKEN, ids=[row[1] for row in BROKEN])
def test_broken_rule_states_the_problem_and_the_fix(
    texts: dict[str, str], rule: str, message: str, change: dict | None
) -> None:
    found = {violation.rule: violation for violation in violations(plan_of(**texts))}
    assert message in found[rule].message and found[rule].change
    assert change is None or change.items() <= found[rule].change.items()
    assert "copy" not in found[rule].change or "copy cp_async" in found[rule].fix


def test_stream_k_is_rejected_with_a_fix() -> None:
    (violation,) = violations(plan_of(schedule="stream_k"))
    assert violation.rule == "schedule" and violation.change == {"schedule": "persistent"}


def test_every_rule_has_an_example() -> None:
    assert {rule.name for rule in RULES} == {row[1] for row in BROKEN}


# ---- The machine code and the record --------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_120"])
def test_machine_code_loads_tiles_by_tma_only(arch: str, settings: Settings) -> None:
    (outcome,) = made({**SMALL, "arch": arch}, settings)
    data = outcome.record.data
    assert outcome.error == "" and data["sass"]["UTMALDG"] >= 2 and "LDGSTS" not in data["sass"]
    assert data["launch"]["programmatic"] and [entry["operand"] for entry in data["launch"]["tensor_maps"]] == [
        "a",
        "b",
    ]
    assert LaunchTraits.of(data).threads == (2 * 2 + 1) * 32


LARGE = (
    {"tile": "256x128x64"},
    {"tile": "192x256x64", "warp_tile": "96x64", "fragment_stages": "1", "schedule": "one_tile"},
)
"""The second leaves 3 registers."""


@pytest.mark.parametrize("texts", LARGE, ids=lambda texts: texts["tile"])
def test_machine_code_of_large_tiles_reallocates_registers(texts: dict, settings: Settings) -> None:
    (outcome,) = made({**BY_TMA, "arch": "sm_90a", **texts}, settings)
    data = outcome.record.data
    assert outcome.error == "" and data["sass"]["USETMAXREG"] == 2 and data["resources"]["registers"] == 168
    assert data["resources"]["ctas_per_sm"] == 1 and data["resources"]["spill_bytes"] == 0


# ---- On the CPU -----------------------------------------------------------------------------------------------------

KINDS = (
    {},
    pytest.param({"layout": "nn", "fragment_stages": "1", "schedule": "one_tile"}, marks=pytest.mark.slow),
    {"layout": "nt", "tile": "96x32x16", "warp_tile": "48x16", "bias": "row", "activation": "relu"},
    {"layout": "tt", "tile": "32x64x64", "warp_tile": "16x64", "store": "direct", "align_d": "1"},
    {"schedule": "split_k:2", "fragment_stages": "1"},
    pytest.param(
        {"tile": "64x176x64", "warp_tile": "32x88", "fragment_stages": "1", "stages": "2"}, marks=pytest.mark.slow
    ),
    {"dtype": "tf32", "mma": "m16n8k8", "tile": "32x32x16", "warp_tile": "16x16"},
    {"dtype": "bf16", "mma": "m16n8k8", "arch": "sm_120", "tile": "48x32x48", "warp_tile": "48x16"},
    pytest.param({"acc": "f16_promoted", "arch": "sm_100"}, marks=pytest.mark.slow),
    pytest.param({"arch": "sm_90a", "acc": "f16", "tile": "256x256x64", "warp_tile": "64x128"}, marks=pytest.mark.slow),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: "-".join(texts.values()) or "planned")
def test_kernels_are_proved_on_the_cpu(texts: dict[str, str], host_toolchain: HostToolchain) -> None:
    kernel = emit(plan_of(**{**SMALL, **texts}), TEMPLATES)
    assert not violations(kernel.plan)
    proved = prove(subject_of(kernel), host_toolchain)
    assert not [check.reason for check in proved.checks if not check.passed]
    assert proved.proof["races"] == proved.proof["read_conflicts_per_k_tile"] == 0
    assert proved.proof["barriers_per_k_tile"] == 0
