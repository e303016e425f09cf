"""Planning: what is left open is planned well, what is set is kept, and a plan is legal wherever one exists."""

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
from generator.families.mma_sync.rules import warp_extents
from generator.layouts import read_conflicts, write_conflicts
from generator.planner import broken_rules, plan_of, resolve, rules_of, violations
from generator.spec import Spec, Tile, WarpTile, parse_field


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
def test_what_was_measured_to_be_best_is_planned(
    text: str, tile: str, warp: str, stages: int, ahead: int, ctas: int
) -> None:
    spec = plan(text).spec
    assert (str(spec.cta_tile), str(spec.warp_tile)) == (tile, warp)
    assert (spec.stages, spec.fragment_stages, spec.ctas_per_sm) == (stages, ahead, ctas)
    assert violations(plan_of(spec)) == ()


def test_an_architecture_must_be_named() -> None:
    with pytest.raises(RequestError, match="arch is missing"):
        resolve({})


@settings(max_examples=200, deadline=None)
@given(specs.requests)
def test_what_is_set_is_kept_and_what_is_planned_stays(request_: dict) -> None:
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
"""What people ask for of mma.sync: a tile and what the problem needs."""


@settings(max_examples=300, deadline=None)
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
def test_a_plan_is_good(request_: dict) -> None:
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
