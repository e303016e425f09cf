"""Planning: open fields get good defaults, set fields are kept, and every rule reports its violation and a fix that works."""

from __future__ import annotations

import itertools

import pytest
import specs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from generator.arch import ARCHS
from generator.errors import RequestError
from generator.families import family_of
from generator.families.base import Plan
from generator.families.mma_sync import FAMILY
from generator.families.mma_sync.rules import warp_extents
from generator.layouts import read_conflicts, write_conflicts
from generator.planner import (
    SPILL_HEADROOM,
    advice_on_spills,
    apply,
    broken_rules,
    options_of,
    plan_of,
    reject_illegal,
    resolve,
    rules_of,
    spill_fallbacks,
    violations,
)
from generator.spec import BY_FIELD, Spec, Tile, WarpTile, parse_field
from generator.sweep import sweep


def plan(text: str) -> Plan:
    return plan_of(
        resolve({name: parse_field(name, value) for name, value in (word.split("=") for word in text.split())})
    )


PLANNED = [
    # request, CTA tile, warp tile, stages, fragment stages, CTAs an SM
    ("arch=89", "128x128x32", "64x64", 3, 2, 2),
    ("arch=120", "128x128x32", "64x64", 3, 2, 2),
    ("arch=80", "128x128x32", "64x64", 4, 2, 2),
    ("arch=90", "256x128x32", "64x64", 4, 2, 1),
    ("arch=90a mma=m16n8k16", "256x128x32", "64x64", 4, 2, 1),
    ("arch=100", "256x128x32", "64x64", 4, 2, 1),
    ("arch=90 acc=f16", "256x128x32", "64x64", 4, 2, 1),
    ("arch=90 acc=f16 cta_tile=256x256x32 fragment_stages=2", "256x256x32", "64x128", 4, 2, 1),
    ("arch=90 acc=f16_promoted", "128x64x64", "64x32", 4, 2, 2),
    ("arch=90 cta_tile=256x128x32", "256x128x32", "64x64", 4, 2, 1),
    ("arch=90 cta_tile=128x128x32", "128x128x32", "64x64", 4, 2, 2),
    ("arch=90 cta_tile=128x128x64", "128x128x64", "64x64", 3, 2, 2),
    ("arch=90 cta_tile=256x128x32 acc=f16", "256x128x32", "64x64", 4, 2, 1),
    ("arch=90 cta_tile=128x128x32 acc=f16_promoted", "128x128x32", "64x32", 4, 2, 1),
    ("arch=89 cta_tile=256x128x32", "256x128x32", "64x64", 4, 2, 1),
    ("arch=89 warp_tile=96x32", "96x128x32", "96x32", 3, 2, 2),
]


@pytest.mark.parametrize(("text", "tile", "warp", "stages", "ahead", "ctas"), PLANNED, ids=[row[0] for row in PLANNED])
def test_defaults_are_the_fastest_measured(text: str, tile: str, warp: str, stages: int, ahead: int, ctas: int) -> None:
    spec = plan(text).spec
    assert (str(spec.cta_tile), str(spec.warp_tile)) == (tile, warp)
    assert (spec.stages, spec.fragment_stages, spec.ctas_per_sm) == (stages, ahead, ctas)
    assert violations(plan_of(spec)) == ()


def test_an_architecture_must_be_named() -> None:
    with pytest.raises(RequestError, match="arch is missing"):
        resolve({})


@settings(max_examples=200, deadline=None)
@given(specs.requests)
@example({"arch": "sm_75", "cta_tile": Tile(0, 0, 24), "copy": "tma", "smem_a": parse_field("smem_a", "xor:2,3,3")})
def test_set_fields_are_kept_and_planning_is_stable(request_: dict) -> None:
    spec = resolve(request_)
    assert all(getattr(spec, name) == value for name, value in specs.kept(request_).items())
    assert resolve(vars(spec)) == spec == resolve(Spec.from_dict(spec.to_dict()).__dict__) == resolve(request_)


natural = st.fixed_dictionaries(
    {"arch": st.sampled_from(specs.SERVED), "cta_tile": specs.tiles, "mma": st.sampled_from(specs.MMA_SYNC)},
    optional={
        "acc": specs.words["acc"],
        "dtype_d": specs.words["dtype_d"],
        "layout": specs.words["layout"],
        "schedule": st.sampled_from([parse_field("schedule", text) for text in ("persistent", "split_k:4")]),
        **{f"align_{name}": specs.aligns for name in "ab"},
    },
) | st.builds(
    lambda asked: {**asked, "dtype_a": "tf32", "dtype_b": "tf32", "mma": "m16n8k8", "dtype_d": "f32"},
    st.fixed_dictionaries(
        {"arch": st.sampled_from(specs.SERVED), "cta_tile": specs.tiles}, optional={"layout": specs.words["layout"]}
    ),
)
"""Typical requests for mma.sync: a tile and the fields of a problem."""


@settings(max_examples=200, deadline=None)
@given(natural)
def test_a_plan_is_legal_wherever_one_exists(request_: dict) -> None:
    planned = plan_of(resolve(request_))
    broken = violations(planned)
    assert not broken or not any(map(is_legal, every_warp_tile(request_)))


def is_legal(plan: Plan) -> bool:
    return not any(rule.check(plan) for rule in rules_of(plan))


def every_warp_tile(request_: dict) -> list[Plan]:
    """Return the most modest plan of the CTA tile with each warp tile that divides it."""
    modest = {**request_, "stages": 1, "fragment_stages": 1, "ctas_per_sm": 1, "store": "direct"}
    tile = request_["cta_tile"]
    divisors = itertools.product(warp_extents(tile.m, 16), warp_extents(tile.n, 8))
    area = AREA[request_.get("acc", "f32")]
    return [plan_of(resolve({**modest, "warp_tile": WarpTile(m, n)})) for m, n in divisors if m * n <= area]


AREA = {"f32": 64 * 64, "f16": 64 * 128, "f16_promoted": 64 * 32}
"""Larger warp tiles leave no registers for fragments: the planner takes them where they are asked for, and only there."""


@settings(max_examples=100, deadline=None)
@given(natural)
@example({"arch": "sm_75", "cta_tile": Tile(m=176, n=96, k=16)})
def test_plans_fit_the_architecture(request_: dict) -> None:
    """No bank conflicts, pieces of 16 bytes, a pipeline, warps for all schedulers where the tile has so many.

    D goes through shared memory, but where it does not fit, as that of eleven warps below one another.

    The rows of one pitch that WMMA takes may leave conflicts in copies.
    """
    planned = plan_of(resolve(request_))
    spec = planned.spec
    if violations(planned) or family_of(spec).name == "wgmma":
        return
    assert read_conflicts(planned.a) == read_conflicts(planned.b) == 0
    for tile in (planned.a, planned.b):
        assert tile.chunk < tile.vector_elements or planned.wmma or write_conflicts(tile) == 0
    assert spec.align_d * {"f16": 2, "bf16": 2, "f32": 4}[spec.dtype_d] == 16
    assert spec.store == "smem" or "shared_memory" in broken_rules(planned.replace(store="smem"))
    assert (
        spec.stages >= (2 if planned.register_copy else 3)
        or planned.stage_bytes * 3 > ARCHS[spec.arch].limits.smem_bytes_per_cta
    )
    atoms = spec.cta_tile.m // 16 * (spec.cta_tile.n // 8)
    assert planned.threads >= 32 * min(4, atoms) or spec.cta_tile.m % 64 and spec.cta_tile.n % 64


# ==== Rules ===========================================================================================================

BROKEN = [
    # request, the only rule that it breaks, a part of the message, the change that is advised
    ("arch=75 copy=cp_async stages=2", "copy", "sm_75 copies through registers only", {"copy": "ldg_sts"}),
    ("arch=80 epilogue=relu(acc) bias=row", "expression", "and bias row as well", {"bias": "none"}),
    ("arch=80 epilogue=(acc,acc) form=cute", "further_results", "form cute stores D only", {"form": "atoms"}),
    ("arch=80 epilogue=silu(gate)*up form=cute", "gated_pair", "form cute has one accumulator", {"form": "atoms"}),
    ("arch=75 mma=m16n8k16", "mma", "sm_75 supports m16n8k8", {"mma": "m16n8k8"}),
    ("arch=75 dtype_a=bf16", "inputs", "sm_75 multiplies f16 only", {"dtype_a": "f16", "dtype_b": "f16"}),
    ("arch=75 stages=3 cta_tile=64x64x32", "stages", "copy ldg_sts supports 1 to 2", {"stages": "2"}),
    ("arch=80 copy=ldg_sts stages=4 cta_tile=64x64x32", "stages", "copy ldg_sts supports 1 to 2", {"stages": "2"}),
    (
        "arch=80 copy=ldg_sts_scalar fragment_stages=2 stages=1",
        "fragment_stages",
        "reading ahead requires 2 stages",
        {"fragment_stages": "1"},
    ),
    (
        "arch=75 cta_tile=64x64x32 stages=1 store_spacing=9",
        "store_spacing",
        "4 stores per thread among 16 tensor instructions allow 4",
        {"store_spacing": "4"},
    ),
    (
        "arch=80 store_spacing=2",
        "fixed_fields",
        "kernels with mma m16n8k16 and copy cp_async require store_spacing 0",
        {"store_spacing": "0"},
    ),
    (
        "arch=80 prefetch=off cta_tile=128x128x32",
        "fixed_fields",
        "kernels with mma m16n8k16 and copy cp_async require prefetch on",
        {"copy": "ldg_sts", "stages": "1", "fragment_stages": "1"},
    ),
    (
        "arch=75 cta_tile=64x64x32 prefetch=off stages=2",
        "prefetch",
        "it requires stages 1 and store_spacing 0",
        {"stages": "1"},
    ),
    (
        "arch=75 cta_tile=64x64x32 prefetch=off store_spacing=2",
        "prefetch",
        "it requires stages 1 and store_spacing 0",
        {"store_spacing": "0"},
    ),
    (
        "arch=80 cta_tile=128x128x32 stages=4 smem_alloc=static",
        "static_memory",
        "a CTA allows 49,152 B",
        {"smem_alloc": "dynamic"},
    ),
    ("arch=80 dtype_a=f16 dtype_b=bf16", "same_inputs", "A is f16 and B is bf16", {"dtype_b": "f16"}),
    ("arch=80 dtype_a=bf16 acc=f16", "accumulator", "accumulate in f32 only", {"acc": "f32"}),
    ("arch=80 dtype_a=tf32 dtype_b=bf16", "same_inputs", "A is tf32 and B is bf16", {"dtype_b": "tf32"}),
    ("arch=90 dtype_a=tf32 acc=f16_promoted", "accumulator", "tf32 inputs accumulate in f32 only", {"acc": "f32"}),
    ("arch=80 dtype_a=tf32 mma=m16n8k16", "mma_depth", "tf32 inputs require m16n8k8", {"mma": "m16n8k8"}),
    (
        "arch=80 dtype_a=tf32 align_b=8",
        "alignment_of_operands",
        "tf32 inputs allow 4 elements (16 B)",
        {"align_b": "4"},
    ),
    ("arch=80 dtype_a=tf32 cta_tile=64x96x20", "cta_tile", "tile is 64x96x20", {"cta_tile": "64x96x24"}),
    ("arch=80 dtype_a=tf32 smem_a=xor:2,1,3", "swizzle", "smem_a is xor:2,1,3", {"smem_a": "xor:2,2,3"}),
    (
        "arch=80 dtype_a=tf32 smem_b=pad:6",
        "padding",
        "ldmatrix requires a multiple of 4 (16 B) up to 32",
        {"smem_b": "pad:8"},
    ),
    ("arch=80 dtype_d=f32 align_d=8", "alignment_of_d", "4 elements (16 B)", {"align_d": "4"}),
    ("arch=80 cta_tile=64x96x24", "cta_tile", "multiples of 16", {"cta_tile": "64x96x32"}),
    ("arch=80 cta_tile=64x64x128", "cta_tile", "tile is 64x64x128", {"cta_tile": "64x64x64"}),
    (
        "arch=80 cta_tile=64x64x32 warp_tile=48x32",
        "warp_tile",
        "it must divide tile 64x64x32, in multiples of 16x8 up to 128x128",
        {"warp_tile": "64x32"},
    ),
    ("arch=80 cta_tile=256x256x16 warp_tile=16x16 stages=2 store=direct", "threads", "a CTA allows 1024", None),
    ("arch=80 stages=17 cta_tile=64x64x16", "stages", "copy cp_async supports 1 to 16", {"stages": "16"}),
    (
        "arch=80 mma=m16n8k16 cluster=2x1",
        "fixed_fields",
        "kernels with mma m16n8k16 and copy cp_async require cluster 1x1",
        {"cluster": "1x1"},
    ),
    (
        "arch=80 mma=m16n8k16 consumers=2",
        "fixed_fields",
        "kernels with mma m16n8k16 and copy cp_async require consumers 0",
        {"consumers": "0"},
    ),
    ("arch=80 mma=m16n8k16 store=tma", "store", "kernels on mma.sync support smem and direct", {"store": "smem"}),
    ("arch=80 fragment_stages=3", "fragment_stages", "1 and 2 are supported", {"fragment_stages": "2"}),
    (
        "arch=80 fragment_stages=2 stages=1",
        "fragment_stages",
        "reading ahead requires 2 stages",
        {"fragment_stages": "1"},
    ),
    ("arch=80 smem_a=xor:4,3,4", "swizzle", "smem_a is xor:4,3,4", {"smem_a": "xor:3,3,4"}),
    ("arch=80 smem_b=xor:2,2,3", "swizzle", "smem_b is xor:2,2,3", {"smem_b": "xor:2,3,3"}),
    (
        "arch=80 smem_a=xor:3,3,2 smem_b=xor:3,3,9",
        "swizzle",
        "xor:3,3,2",
        {"smem_a": "xor:3,3,3", "smem_b": "xor:3,3,7"},
    ),
    ("arch=80 smem_b=pad:12", "padding", "by 12 elements", {"smem_b": "pad:16"}),
    (
        "arch=80 mma=wmma16 smem_b=xor:2,3,3",
        "one_pitch",
        "mma wmma16 requires rows at one distance",
        {"smem_b": "pad:8"},
    ),
    (
        "arch=80 mma=wmma16 smem_a=pad_alternate:8 smem_b=xor:2,3,3",
        "one_pitch",
        "mma wmma16 requires rows at one distance",
        {"smem_a": "pad:8", "smem_b": "pad:8"},
    ),
    ("arch=80 mma=wmma16 dtype_a=tf32 dtype_b=tf32", "mma_depth", "tf32 inputs require m16n8k8", {"mma": "m16n8k8"}),
    ("arch=80 mma=wmma16 smem_a=pad:4", "padding", "by 4 elements", {"smem_a": "pad:8"}),
    (
        "arch=80 mma=wmma16 warp_tile=64x8 cta_tile=128x64x32",
        "warp_tile",
        "it must divide tile 128x64x32, in multiples of 16x16 up to 128x128",
        {"warp_tile": "64x16"},
    ),
    ("arch=80 smem_b=pad_alternate:12", "padding", "by 12 elements", {"smem_b": "pad_alternate:16"}),
    ("arch=80 smem_a=pad:80", "padding", "ldmatrix requires a multiple of 8 (16 B) up to 64", {"smem_a": "pad:64"}),
    ("arch=90 stages=8 cta_tile=256x128x64", "shared_memory", "sm_90 allows 232,448 B", {"stages": "4"}),
    (
        "arch=89 cta_tile=128x128x32 stages=4 ctas_per_sm=2",
        "shared_memory",
        "sm_89 allows 50,176 B with 2 CTAs per SM",
        {"stages": "3"},
    ),
    (
        "arch=89 cta_tile=16x16x16 ctas_per_sm=32",
        "residency",
        "sm_89 holds 24 CTAs of 64 threads",
        {"ctas_per_sm": "24"},
    ),
    (
        "arch=90 warp_tile=64x64 cta_tile=128x256x32 ctas_per_sm=2",
        "registers",
        "the limit is 128 with 2 CTAs of 256 threads per SM",
        {"ctas_per_sm": "1"},
    ),
    ("arch=90 cta_tile=256x256x32", "registers", "128 of them accumulators", {"cta_tile": "256x128x32"}),
    (
        "arch=80 raster=panel:300",
        "raster",
        "raster panel:300 is not a multiple of the tile's 128 columns",
        {"raster": "panel:256"},
    ),
    ("arch=80 raster=group:2000", "raster", "the limit is 1,024", {"raster": "group:1024"}),
    (
        "arch=80 schedule=split_k_cluster:4",
        "schedule",
        "it requires a cluster, and mma.sync kernels have none",
        {"schedule": "split_k:4"},
    ),
    ("arch=80 schedule=split_k:65", "splits", "split_k supports 2 to 64 parts", {"schedule": "split_k:64"}),
    (
        "arch=80 form=cute mma_order=row",
        "cute_fields",
        "form cute does not support mma_order row: cute::gemm visits a warp's atoms in a zigzag",
        {"mma_order": "zigzag"},
    ),
    (
        "arch=80 form=cute schedule=split_k:2",
        "cute_schedule",
        "form cute does not support schedule split_k:2: one CTA computes a whole tile",
        {"schedule": "one_tile"},
    ),
    (
        "arch=80 form=cute raster=launch",
        "cute_at_launch",
        "form cute does not support raster launch",
        {"raster": "group:8"},
    ),
    ("arch=80 form=cute cta_tile=64x64x16", "cute_k_blocks", "form cute requires 2 or more", {"cta_tile": "64x64x32"}),
    (
        "arch=80 form=cute align_a=1",
        "cute_alignment",
        "form cute copies by cp.async, 2 elements (4 B) or more",
        {"align_a": "8"},
    ),
    (
        "arch=80 form=cute layout=tt cta_tile=64x48x32 smem_b=none",
        "cute_copies",
        "a TiledCopy requires it",
        {"form": "atoms"},
    ),
    (
        "arch=80 form=cute cta_tile=96x64x48 warp_tile=32x64 smem_a=xor:1,3,3 smem_b=none",
        "cute_swizzles",
        "CuTe swizzles rows of a power of two",
        {"smem_a": "pad:8", "smem_b": "pad:8"},
    ),
    (
        "arch=80 form=cute cta_tile=64x64x32 smem_b=pad_alternate:8",
        "cute_padding",
        "form cute requires rows at one distance",
        {"smem_a": "pad:8", "smem_b": "pad:8"},
    ),
    (
        "arch=80 form=cute mma=m16n8k8",
        "cute_depth",
        "mma is m16n8k8 with f16 inputs, acc f32 and copy cp_async",
        {"mma": "m16n8k16"},
    ),
    (
        "arch=75 form=cute store_spacing=5",
        "cute_spacing",
        "form cute requires 0, because it stores a k-tile at once",
        {"store_spacing": "0"},
    ),
    ("arch=110 form=dsl", "dsl_arch", "arch is sm_110", {"form": "atoms"}),
    (
        "arch=80 form=dsl mma_order=row",
        "dsl_fields",
        "form dsl does not support mma_order row: cute.gemm has its own order of a warp's atoms",
        {"mma_order": "zigzag"},
    ),
    (
        "arch=80 form=dsl schedule=split_k:2",
        "dsl_schedule",
        "form dsl does not support schedule split_k:2: one CTA computes a whole tile",
        {"schedule": "one_tile"},
    ),
    (
        "arch=80 form=dsl raster=launch",
        "dsl_at_launch",
        "form dsl does not support raster launch",
        {"raster": "group:8"},
    ),
    ("arch=80 form=dsl cta_tile=64x64x16", "dsl_k_blocks", "form dsl requires 2 or more", {"cta_tile": "64x64x32"}),
    (
        "arch=80 form=dsl align_a=1",
        "dsl_alignment",
        "form dsl copies by cp.async, 2 elements (4 B) or more",
        {"align_a": "8"},
    ),
    (
        "arch=80 form=dsl layout=tt cta_tile=64x48x32 smem_b=none",
        "dsl_copies",
        "a TiledCopy requires it",
        {"form": "atoms"},
    ),
    (
        "arch=80 form=dsl cta_tile=64x64x32 smem_b=pad_alternate:8",
        "dsl_padding",
        "form dsl requires rows at one distance",
        {"smem_a": "pad:8", "smem_b": "pad:8"},
    ),
    (
        "arch=80 form=dsl layout=nn cta_tile=96x96x32 warp_tile=48x32 smem_a=xor:2,3,3",
        "dsl_swizzles",
        "CuTe swizzles rows of a power of two",
        None,
    ),
    ("arch=80 schedule=split_k:1", "splits", "split_k supports 2 to 64 parts", {"schedule": "split_k:2"}),
]


@pytest.mark.parametrize(("text", "rule", "message", "change"), BROKEN, ids=[row[0] for row in BROKEN])
def test_broken_rule_states_the_problem_and_the_fix(text: str, rule: str, message: str, change: dict | None) -> None:
    found = {violation.rule: violation for violation in violations(plan(text))}
    assert message in found[rule].message and {*found} <= {rule, "registers", "shared_memory"}
    assert found[rule].change and (change is None or found[rule].change == change)
    assert all(value in found[rule].fix for value in found[rule].change.values())


def test_every_rule_has_an_example() -> None:
    without = {"dsl_activation"}  # no activation lacks an expression today; test_dsl_form.py takes one away
    assert {rule.name for rule in FAMILY.rules} - without == {row[1] for row in BROKEN}


def test_all_broken_rules_are_named_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        reject_illegal(plan("arch=89 cta_tile=256x256x64 stages=4"))
    text = str(caught.value)
    assert caught.value.exit_code == 2 and "sm_89 256x256x64 is illegal, it violates 2 rules" in text
    assert "needs 262,144 B of shared memory; sm_89 allows 101,376 B. Try --tile " in text
    assert "the limit is 128 with 1 CTA of 512 threads per SM. Try --tile " in text


@pytest.mark.parametrize("text", ["arch=89", "arch=90", "arch=80 cta_tile=16x16x16", "arch=120 stages=1"])
def test_legal_specs_violate_no_rule(text: str) -> None:
    reject_illegal(plan(text))
    assert violations(plan(text)) == ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"stages": "4"}, "--stages 4"),
        ({"stages": "1", "fragment_stages": "1"}, "--stages 1 --fragment-stages 1"),
        (
            {"cta_tile": "64x64x32", "warp_tile": "32x32", "stages": "2"},
            "--tile 64x64x32 --warp-tile 32x32 --stages 2",
        ),
    ],
)
def test_a_change_is_written_as_options(change: dict[str, str], text: str) -> None:
    assert options_of(change) == text


# ---- Fixes ----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(specs.requests)
@example({"arch": "sm_90a", "cta_tile": Tile(0, 128, 64), "swap_ab": True})
def test_fixes_lead_to_a_legal_spec(request_: dict) -> None:
    """Of the spec with all fields as they were planned, as `generate --json --explain` prints it."""
    now, steps = plan_of(resolve(request_)), 0
    while found := violations(now):
        broken = {violation.rule for violation in found}
        for violation in found:
            assert violation.fix and "\n" not in str(violation)
            if violation.change:
                left = {*broken_rules(apply(now, violation.change))}
                assert left < broken and violation.rule not in left
        changes = [violation.change for violation in found if violation.change]
        assert changes, [*map(str, found)]
        now, steps = apply(now, changes[0]), steps + 1
        assert steps <= len(rules_of(now))


ILLEGAL_WITH_EXPRESSION = [
    # request, and the fields that the fix changes
    ("sm_80 tile=64x64x32 copy=ldg epilogue=(acc,row_sum(acc))", {"copy"}),
    ("sm_80 tile=8x64x1024 copy=ldg epilogue=(acc,row_sum(acc))", {"copy", "cta_tile"}),
    ("sm_90a tile=128x128x64 copy=ldg epilogue=(acc,row_sum(acc))", {"copy"}),
    ("sm_90a tile=16x64x512 copy=ldg epilogue=(acc,column_max(acc))", {"copy", "cta_tile"}),
    ("sm_90a tile=128x128x64 align=1 mma=wgmma epilogue=silu(gate)*up", {"mma"}),
    ("sm_80 mma=wgmma epilogue=relu(acc)", {"arch"}),
    ("sm_80 copy=tma mma=m16n8k16 epilogue=relu(acc)", {"copy"}),
    ("sm_80 form=dsl epilogue=relu(acc)", {"form"}),
    ("sm_80 form=dsl bias=row epilogue=relu(acc)", {"form", "bias"}),
]


@pytest.mark.parametrize(("text", "fields"), ILLEGAL_WITH_EXPRESSION, ids=[row[0] for row in ILLEGAL_WITH_EXPRESSION])
def test_a_fix_keeps_the_formula_and_changes_one_field_if_that_suffices(text: str, fields: set[str]) -> None:
    arch, *others = text.split()
    asked = {"arch": arch, **dict(word.split("=") for word in others)}
    (candidate,) = sweep([asked]).candidates
    changes = [violation.change for violation in candidate.broken]
    assert changes and all(change.keys() == fields for change in changes)
    fixed = {name: parse_field(name, value) for name, value in changes[0].items()}
    assert violations(plan_of(resolve({**candidate.request, **fixed}))) == ()


def test_empty_tile_has_a_fix() -> None:
    """Of 8 stages of 32 KiB in static shared memory the next tile has too much by either rule, and one of 0 bytes by none."""
    text = (
        "arch=86 mma=m16n8k8 acc=f16_promoted cta_tile=255x600x0 warp_tile=0x0 stages=8 fragment_stages=2 store=direct "
    )
    text += "smem_a=xor:3,7,3 smem_b=xor:3,7,3 smem_alloc=static align_a=2 align_b=2 align_d=1"
    assert [bool(violation.change) for violation in violations(plan(text))] == [True] * 4


def test_a_kernel_without_registers_for_split_k_is_fixed_by_a_schedule_without_splits() -> None:
    text = "arch=75 mma=wmma16 acc=f16 cta_tile=256x256x16 warp_tile=128x64 stages=2 fragment_stages=1 store=direct "
    text += "copy=ldg_sts_scalar store_spacing=1 smem_a=none smem_b=none schedule=split_k_cluster:1 ctas_per_sm=1"
    (violation,) = violations(plan(text))
    assert violation.change == {"schedule": "one_tile"}


@pytest.mark.parametrize("text", ["arch=90a cta_tile=192x192x64", "arch=80 cta_tile=128x128x32 warp_tile=64x64"])
def test_advice_on_spills_is_legal_and_frees_registers(text: str) -> None:
    spilling = plan(text)
    words = advice_on_spills(spilling).removeprefix("Try ").removesuffix(".").split()
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    after = apply(spilling, {"cta_tile" if name == "tile" else name: text for name, text in zip(names, words[1::2])})
    assert violations(after) == ()
    before, now = (each.max_registers - each.needed_registers for each in (spilling, after))
    assert now - before >= SPILL_HEADROOM


# ---- Kernels that spilled -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_texts",
    [
        {"arch": "sm_90a", "tile": "192x112x128", "acc": "f16", "bias": "row"},
        {"arch": "sm_90a", "tile": "192x112x128", "raster": "group:4"},
        {"arch": "sm_80", "tile": "192x128x32"},
        {"arch": "sm_80", "warp_tile": "64x64"},
    ],
    ids=str,
)
def test_fallbacks_are_legal_and_keep_set_fields(request_texts: dict[str, str]) -> None:
    (candidate,) = sweep([request_texts]).candidates
    found = list(itertools.islice(spill_fallbacks(candidate.plan, candidate.request), 4))
    assert found and len({plan for plan, _ in found} | {candidate.plan}) == len(found) + 1
    for plan, change in found:
        assert not violations(plan) and change.startswith("--")
        assert all(getattr(plan.spec, name) == value for name, value in candidate.request.items())
        assert plan.max_registers - plan.needed_registers >= (
            candidate.plan.max_registers - candidate.plan.needed_registers
        )


def test_fallbacks_never_change_set_fields() -> None:
    (candidate,) = sweep([{"arch": "sm_80", "tile": "192x128x32"}]).candidates
    whole = {name: getattr(candidate.plan.spec, name) for name in BY_FIELD}
    assert not list(spill_fallbacks(candidate.plan, whole))
