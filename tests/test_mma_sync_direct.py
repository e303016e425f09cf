"""Kernels for few rows, whose fragments come from global memory: plans, rules, and results on the CPU."""

from __future__ import annotations

import pytest
from conftest import subject_of

from generator.arch import ARCHS
from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.families import family_of
from generator.families.base import Plan
from generator.planner import apply, broken_rules, violations
from generator.proof.executor import HostToolchain
from generator.proof.proving import prove
from generator.sweep import sweep
from generator.tuning import planned_record
from hgemm.dispatch_table import clocks_of
from hgemm.model.cards import usual_card
from hgemm.model.predict import fit_of, predict, problem_of

TEMPLATES = templates_folder()
SERVED = [name for name, arch in ARCHS.items() if arch.has_tma]
TO_REGISTERS = {"mma": "m16n8k16", "copy": "ldg"}


def plan_of(**texts: str) -> Plan:
    (candidate,) = sweep([{"arch": "sm_90", **TO_REGISTERS, **texts}]).candidates
    return candidate.plan


def test_warps_share_k_and_each_computes_the_whole_tile() -> None:
    plan = plan_of(tile="8x16x1024", stages="4")
    assert family_of(plan.spec).name == "mma_sync_direct"
    assert (plan.warps, plan.threads, plan.warp_k, str(plan.spec.warp_tile)) == (8, 256, 128, "8x16")
    products = plan.mma_per_k_tile * plan.warps * 16 * 8 * 16
    assert products == 2 * 8 * 16 * 1024, "half of an instruction's 16 rows stay zero"
    assert plan.smem_bytes == 8 * 8 * 17 * 4


@pytest.mark.parametrize("arch", SERVED)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_plans_are_legal_and_estimated_on_every_architecture(arch: str, dtype: str, layout: str) -> None:
    plan = plan_of(arch=arch, dtype=dtype, layout=layout)
    assert not violations(plan) and plan.spec.copy == "ldg"
    assert clocks_of(planned_record(plan)).k_tile > 0


ILLEGAL = (
    ({"tile": "32x16x1024"}, "cta_tile", "m must be 8 or 16"),
    ({"tile": "8x12x1024"}, "cta_tile", "n a multiple of 8"),
    ({"tile": "8x16x1000"}, "warps", "k must be 32 times the stages"),
    ({"align": "4"}, "alignment", "requires 8 elements"),
    ({"acc": "f16"}, "accumulator", "supports f32"),
    ({"schedule": "split_k:2"}, "fixed_fields", "require schedule one_tile"),
    ({"tile": "8x64x1024", "ctas_per_sm": "3"}, "registers", "the limit is 80"),
    ({"arch": "sm_80"}, "family", "no programmatic dependent launch"),
)


@pytest.mark.parametrize(("texts", "rule", "says"), ILLEGAL, ids=[row[1] for row in ILLEGAL])
def test_illegal_specs_get_a_working_fix(texts: dict[str, str], rule: str, says: str) -> None:
    plan = plan_of(**texts)
    found = {one.rule: one for one in violations(plan)}
    assert says in found[rule].message and found[rule].change
    assert rule not in broken_rules(apply(plan, found[rule].change))


def test_narrow_tiles_are_predicted_faster_if_tiles_are_few() -> None:
    card = usual_card(90)

    def time_us(tile: str, ctas: int) -> float:
        spec = plan_of(tile=tile, stages="4", ctas_per_sm=str(ctas)).spec.to_dict()
        return predict(spec, ctas, problem_of(spec, 1, 1600, 6400), card, fit_of(spec).constants).time_us

    assert time_us("8x8x2048", 2) < time_us("8x16x1024", 3)


KINDS = (
    pytest.param({"tile": "8x16x128", "stages": "2"}, marks=pytest.mark.slow),
    {
        "tile": "16x8x64",
        "stages": "1",
        "dtype": "bf16",
        "out": "f32",
        "bias": "launch",
        "activation": "relu",
        "align_d": "1",
    },
    {"tile": "8x32x64", "stages": "1", "layout": "nn", "bias": "column"},
    {"tile": "16x64x64", "stages": "1", "layout": "nt", "dtype": "bf16"},
    {"tile": "16x24x128", "stages": "2", "layout": "tt"},
)


@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: f"{texts['tile']} {texts.get('layout', 'tn')}")
def test_kernels_are_proved_on_the_cpu(texts: dict[str, str], host_toolchain: HostToolchain) -> None:
    kernel = emit(plan_of(**texts), TEMPLATES)
    proved = prove(subject_of(kernel), host_toolchain)
    assert not [check.reason for check in proved.checks if not check.passed]
    assert proved.proof["races"] == proved.proof["barriers_per_k_tile"] == 0
