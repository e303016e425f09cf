"""Recipes: each is legal and complete, and differs from the previous step only in the fields that it names."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from conftest import ROOT

from generator.arch import ARCHS
from generator.build.emit import emit
from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.cli import prove_catalog as prove
from generator.errors import RequestError
from generator.ladders.ladder import ladder_here, ladder_on, published_of
from generator.ladders.recipes import Step, complete, find, ladder_names, load_ladder, load_recipes, read_ladder, steps
from generator.proof.executor import HostToolchain
from generator.proof.jobs import check_here, request_of
from generator.proof.machine import EmulatedKernel
from generator.proof.proving import Subject, count, disagreements, load
from generator.spec import Spec, option_of
from generator.sweep import Candidate, sweep
from hgemm.launch_traits import LaunchTraits

COMPILED = 3
"""Recipes that a run of the tests compiles; which ones changes with the commit."""

every_ladder = pytest.mark.parametrize("published", [*map(load_ladder, ladder_names())], ids=lambda one: one.name)
OURS = [step for step in steps() if step.baseline_kernel is None]
every_step = pytest.mark.parametrize("step", OURS, ids=lambda step: step.path)


def candidate_of(step: Step) -> Candidate:
    (candidate,) = sweep([step.texts]).candidates
    return candidate


def by_commit(count: int) -> list[Step]:
    """Return some recipes that change from commit to commit."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return sorted(OURS, key=lambda step: hashlib.sha256(f"{done.stdout}{step.path}".encode()).digest())[:count]


# ---- The data -------------------------------------------------------------------------------------------------------


@every_step
def test_recipes_are_legal_and_complete(step: Step) -> None:
    candidate = candidate_of(step)
    assert not candidate.broken
    wanted = {field.name for field in fields(Spec) if field.default is MISSING}
    assert wanted <= candidate.request.keys() | {*candidate.plan.fixed_fields}


@every_ladder
def test_steps_change_exactly_the_named_options(published) -> None:
    ours = [step for step in published.steps if step.baseline_kernel is None]
    for before, step in zip(ours, ours[1:]):
        old, new = (candidate_of(one).plan.spec.to_dict() for one in (before, step))
        differing = {name for name in new if new[name] != old[name]}
        named = {field for option in step.changed for field in option_of(option).fields}
        assert differing <= named, step.path
        assert all(differing & {*option_of(option).fields} for option in step.changed), step.path
        assert differing, f"{step.path} is the kernel of {before.path}"


@every_ladder
def test_the_steps_of_a_ladder_compute_the_same_problem(published) -> None:
    specs = [candidate_of(step).plan.spec for step in published.steps if step.baseline_kernel is None]
    assert len({(spec.layout, spec.dtype_a, spec.dtype_b, spec.dtype_d) for spec in specs}) == 1
    assert published.shapes and all(shape.count("x") == 2 for shape in published.shapes)


@every_ladder
def test_a_ladder_is_legal_on_its_own_architecture_and_on_hopper(published) -> None:
    assert ladder_on(published, published.arch).arch == published.arch
    assert ladder_here(published, (9, 0)).arch == "sm_90"


def test_illegal_steps_use_the_published_architecture() -> None:
    assert not ARCHS["sm_75"].has_cp_async
    assert ladder_here(load_ladder("s1"), (7, 5)).arch == ladder_here(load_ladder("s1"), (3, 5)).arch == "sm_89"
    with pytest.raises(RequestError, match="^recipe s1/1.0: .*sm_75"):
        ladder_on(load_ladder("s1"), "sm_75")


PARTS = {
    "s1": {"1.0": 19.1, "1.1": 37.3, "2.0": 82.9, "2.1": 86.8, "3.0": 89.5, "3.1": 100.0},
    "s3": dict(zip("01 02 03 04 05 06 07 08".split(), (15.7, 27.3, 30.4, 56.8, 69.5, 69.8, 68.7, 71.9))),
}
"""Of cuBLAS, in percent. As published: 19.1, 37.3, 82.9, 86.9, 89.5, 100 and 16, 27, 30, 57, 69, 70, 69, 72."""


@pytest.mark.parametrize("name", PARTS)
def test_published_fractions_match_published_rates(name: str) -> None:
    published = load_ladder(name)
    published_steps = zip((step.name for step in published.steps), published_of(published, published.shapes[0]))
    assert {step: round(100 * one["of_cublas"], 1) for step, one in published_steps if one["of_cublas"]} == PARTS[name]


def test_published_rates_belong_to_one_problem() -> None:
    last = published_of(load_ladder("s3"), "8192x8192x8192")[-1]
    assert last["tflops"] == 201 and round(100 * last["of_cublas"]) == 71
    assert published_of(load_ladder("s3"), "8192x8192x4096")[-1] == dict.fromkeys(last)


def test_steps_of_a_ladder_are_distinct_kernels() -> None:
    templates = templates_folder()
    kernels = [emit(candidate_of(step).plan, templates) for step in OURS]
    assert len({kernel.symbol for kernel in kernels}) == len(kernels)


# ---- Names ----------------------------------------------------------------------------------------------------------


def test_globs_choose_recipes_in_the_order_of_the_ladders() -> None:
    assert [step.path for step in find("s1/3.1,s1/3.0")] == ["s1/3.0", "s1/3.1"]
    assert find("s3") == find("s3/*") == list(load_ladder("s3").steps)
    assert find("*") == list(steps()) and load_recipes("s1/3.1") == [find("s1/3.1")[0].texts]


def test_tuned_options_belong_to_one_architecture_and_step(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        f'{GOOD}tuned = {{ sm_90 = {{ stages = 4 }} }}\n[[step]]\nname = "3"\nwhat = "x"\ntile = "64x64x32"'
    )
    _, tuned, after = read_ladder(tmp_path / "x.toml").steps
    assert [step.texts_on(arch)["stages"] for step in (tuned, after) for arch in ("sm_80", "sm_90")] == [
        "2",
        "4",
        "2",
        "2",
    ]
    assert [tuned.note_on("sm_80"), tuned.note_on("sm_90")] == ["", "Tuned for sm_90: stages 4."]
    ladder = ladder_on(read_ladder(tmp_path / "x.toml"), "sm_90")
    assert [plan.spec.stages for plan in ladder.plans[1:]] == [4, 2]


def test_generate_builds_the_kernels_of_the_ladder() -> None:
    asked = sweep(load_recipes("s1/*,s3/*", "sm_80,90"))
    made = [plan.spec for plan in asked.plans]
    from_ladders = [
        plan.spec
        for name in ("s1", "s3")
        for arch in ("sm_80", "sm_90")
        for plan in ladder_on(load_ladder(name), arch).plans
    ]
    assert {*made} == {*from_ladders} and len(made) == len(from_ladders)


def test_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(RequestError, match="no recipe is named 's3/3.1': did you mean 's1/3.1'"):
        find("s3/3.1")
    with pytest.raises(RequestError, match="no recipe is named '': `hgemm ladder` lists them"):
        find(" ,")
    with pytest.raises(RequestError, match="no ladder is named 's0': choose from s1, s"):
        load_ladder("s0")


def test_shells_complete_names_and_whole_ladders() -> None:
    assert [*complete("s1/3.")] == ["s1/3.0", "s1/3.1", "s1/3.2", "s1/3.3", "s1/3.4"] and "s1/*" in complete("s")
    assert complete("nothing") == []


# ---- Files ----------------------------------------------------------------------------------------------------------

GOOD = """
title = "A"
source = "B"
machine = "C"
shapes = ["64", "64x32x16"]
cublas = { 64 = 10 }
[spec]
arch = "sm_80"
[[step]]
name = "1"
what = "first"
tflops = { 64 = 5 }
[[step]]
name = "2"
what = "second"
stages = 2
ratio = 1.5
"""


def test_steps_inherit_earlier_options(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(GOOD)
    published = read_ladder(tmp_path / "x.toml")
    assert published.shapes == ("64x64x64", "64x32x16") and published.steps[1].path == "x/2"
    assert published.steps[1].texts == {"arch": "sm_80", "stages": "2"} and published.steps[1].changed == ("stages",)
    first, second = published_of(published, "64x64x64")
    assert first == {"tflops": 5.0, "over_before": None, "of_cublas": 0.5}
    assert second == {"tflops": None, "over_before": 1.5, "of_cublas": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title", "titel"), "missing: title; unknown: titel"),
        (("tflops = { 64 = 5 }", "tflops = 5"), "step '1': wrong type: tflops"),
        (('what = "second"', ""), "step '2': missing: what"),
        (("ratio = 1.5", "tuned = { sm_90 = 4 }"), "step '2': tuned has the wrong type"),
        (("ratio = 1.5", "tuned = { sm_1 = { stages = 4 } }"), "sm_1"),
        (("stages = 2", "stagse = 2"), "a spec has no 'stagse': did you mean 'stages'"),
        (('"64x32x16"', '"64x32"'), "shape '64x32' is malformed"),
        (("[spec]", "[spec"), "is not TOML"),
    ],
)
def test_malformed_ladder_names_the_file_and_the_fault(tmp_path: Path, change, message: str) -> None:
    (tmp_path / "x.toml").write_text(GOOD.replace(*change))
    with pytest.raises(RequestError) as error:
        read_ladder(tmp_path / "x.toml")
    assert message in str(error.value)


def test_only_a_ladder_runs_a_baseline_kernel(host_toolchain: HostToolchain) -> None:
    (kernel,) = ladder_on(load_ladder("s4"), "sm_80").baseline_kernels
    assert kernel.symbol in kernel.source and kernel.planned()["spec"]["layout"] == "tt"
    made = kernel.compile()
    proved = check_here(request_of(host_toolchain, made.ptx, kernel.planned(), shapes="33x35x40"))
    assert proved.passed, proved.reason
    traits, spec = LaunchTraits.of(kernel.planned()), kernel.planned()["spec"]
    executable = load(Subject(kernel.symbol, made.ptx.decode(), kernel.planned(), 0), host_toolchain)
    costs, _ = count(EmulatedKernel(traits, executable, ()), spec)
    assert costs.bytes_per_k_tile == 2 * 32 * 32 * 4 and not [*disagreements(costs, traits, spec, 0)]
    assert 0 < made.registers <= 64 and made.load().traits.threads == 1024 and b".entry baseline_tiled_f32" in made.ptx
    assert len(load_recipes("s4/*")) == len(load_ladder("s4").steps) - 1
    with pytest.raises(RequestError, match="s4/tiled is a hand-written baseline kernel"):
        load_recipes("s4/tiled")


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*_choices.toml")), ids=lambda path: path.stem)
def test_choice_files_are_legal_without_duplicates(path: Path) -> None:
    ladder = ladder_on(read_ladder(path), "sm_90")
    assert len({*ladder.symbols}) == len(ladder.symbols) > 1


# ---- Kernels --------------------------------------------------------------------------------------------------------


def test_sampled_recipes_pass_inspection(settings: Settings) -> None:
    plans = [candidate_of(step).plan for step in by_commit(COMPILED)]
    assert [outcome.error for _, outcome in make(plans, settings, processes=2)] == [""] * COMPILED


def test_one_recipe_is_proved(
    host_toolchain: HostToolchain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(prove, "host_toolchain", lambda: host_toolchain)
    monkeypatch.setattr("sys.argv", ["prove", "--recipes", "--sample", "1", "--seed", by_commit(1)[0].path])
    assert prove.main() == 0
    assert "1 kernel passed, 0 failed, 0 skipped" in capsys.readouterr().out
