"""The choice of the catalog: the drawn problems and the kept kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.catalog_choice import (
    CHOSEN,
    DRAWS,
    MAX_BATCHED_BYTES,
    MAX_BYTES,
    MAX_FLOPS,
    choose_kernels,
    losses,
    main,
    problems,
    suite_shapes,
    tables_of,
    work_of,
)
from generator.catalog import load_catalog
from generator.sweep import overridden, read_spec_file, sweep

TIMES = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1.0, 1e4), min_size=1), min_size=1, max_size=12)

OUT_OF_BOX = Path(__file__).resolve().parent.parent / "benchmarks" / "data" / "out_of_box.json"


@given(TIMES, st.floats(0.0, 0.2), st.floats(0.0, 0.5))
def test_chosen_kernels_meet_the_limits_and_are_all_needed(times: list[dict], mean: float, worst: float) -> None:
    kept = choose_kernels(times, mean, worst)

    def within(names: list[str]) -> bool:
        found = losses(times, names)
        return sum(found) / len(found) <= mean and max(found) <= worst

    assert within(kept)
    assert not any(within([other for other in kept if other != name]) for name in kept)


def test_one_near_best_kernel_is_enough() -> None:
    times = [{"even": 1.01, "first": 1.0, "second": 9.0}, {"even": 1.01, "first": 9.0, "second": 1.0}]
    assert choose_kernels(times, 0.02, 0.08) == ["even"]
    assert sorted(choose_kernels(times, 0.0, 0.08)) == ["first", "second"]


@given(st.integers(0, 2**32))
def test_drawn_problems_are_distinct_and_fit(seed: int) -> None:
    drawn = list(problems(12, seed))
    assert len({work.extents for work in drawn}) == 12
    for work in drawn:
        assert work.flops < MAX_FLOPS and 2 * (work.m * work.k + work.n * work.k + work.m * work.n) < MAX_BYTES
        assert work.n % 8 == 0 and work.k % 8 == 0 and work.m >= 1
    assert [work.extents for work in problems(12, seed)] == [work.extents for work in drawn]


@pytest.mark.parametrize("seed", [12780577, 10581779, 1795903823, 1795903548])
def test_published_problems_are_drawn_from_their_seed(seed: int) -> None:
    published = json.loads(OUT_OF_BOX.read_text(encoding="utf-8"))["devices"]
    (shapes,) = ([row[:3] for row in one["problems"]] for one in published if one["seed"] == seed)
    assert suite_shapes(len(shapes), seed) == sorted(shapes)


@pytest.mark.parametrize("align", [1, 2, 4])
def test_problems_have_the_requested_alignment(align: int) -> None:
    drawn = list(problems(40, 1, align))
    assert all(min(extent & -extent for extent in (work.n, work.k)) == align for work in drawn)
    assert any(work.n % 8 == 0 for work in drawn) and any(work.k % 8 == 0 for work in drawn)


@given(st.integers(0, 2**32))
def test_drawn_problems_of_attention_are_batched_and_need_no_unaligned_kernel(seed: int) -> None:
    drawn = list(DRAWS["attention"](12, seed))
    assert len(set(drawn)) == 12 and drawn == list(DRAWS["attention"](12, seed))
    for work in drawn:
        row_of_a = work.k if work.layout[0] == "t" else work.m
        assert work.batch >= 16 and not (row_of_a % 8 or work.n % 8 or work.k % 8)
        assert 2 * work.batch * (work.m * work.k + work.n * work.k + work.m * work.n) < MAX_BATCHED_BYTES


def test_other_layouts_are_drawn_on_the_problems_of_tn() -> None:
    drawn = list(DRAWS["layouts"](60, 3))
    assert {work.layout for work in drawn} == {"tt", "nn", "nt"} and {work.dtype_a for work in drawn} == {"f16", "bf16"}
    assert [(work.n, work.k) for work in drawn] == [(work.n, work.k) for work in problems(60, 3)]
    assert all(work.m % 8 == 0 for work in drawn if work.layout[0] == "n")


@pytest.mark.parametrize("draw", [*DRAWS])
def test_a_drawn_problem_can_be_measured_again_from_its_entry(draw: str) -> None:
    for work in DRAWS[draw](20, 5):
        assert work_of({"extents": work.extents, "layout": work.layout, "dtype": work.dtype_a}) == work


def test_report_uses_held_out_problems(tmp_path: Path) -> None:
    def problem(us: dict) -> dict:
        return {"extents": [1, 8, 8], "selected": "a", "us": us, "baseline_us": {"cublaslt#0": 2.0}, "wrong": ""}

    spec = dict.fromkeys(
        ("cta_tile", "cluster", "cooperation", "schedule", "stages", "consumers", "raster", "swap_ab"), 1
    )
    document = {
        "specs": {"a": spec, "b": spec},
        "problems": [problem({"a": 1.0, "b@1/0": 2.0, "b@4/0": 1.8}), problem({"a": 1.5, "b@1/0": 1.0, "b@4/0": 1.2})],
    }
    path = tmp_path / "times.json"
    path.write_text(json.dumps(document))
    result = CliRunner().invoke(main, ["choose", str(path)])
    assert result.exit_code == 0, result.output
    assert "chosen on: 1 problems, loss 0.0 % mean" in result.output
    assert "held out: 1 problems, loss 50.0 % mean" in result.output


def test_chosen_kernels_are_written_as_those_of_a_spec_file(tmp_path: Path) -> None:
    specs = [plan.spec.to_dict() for plan in sweep(load_catalog(["hopper"])).plans]
    path = tmp_path / "chosen.toml"
    path.write_text(tables_of(specs))
    found = sweep([overridden(texts, {"arch": "sm_90a"}) for texts in read_spec_file(path)]).candidates
    chosen = {tuple(candidate.plan.spec.to_dict()[name] for name in CHOSEN) for candidate in found}
    assert chosen == {tuple(spec[name] for name in CHOSEN) for spec in specs}


def test_missing_measurements_give_an_error(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"specs": {}, "problems": []}))
    result = CliRunner().invoke(main, ["choose", str(path)])
    assert result.exit_code == 2 and "no problem" in result.output
