"""tf32 kernels: built, inspected and proved on the CPU, in every layout, on both families; and what their arrays are called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import ProverHere, made
from simulated import record

from generator.build.pipeline import Settings
from generator.cli.generate import hints
from generator.proof.executor import HostToolchain
from generator.sweep import sweep
from hgemm.arrays import View
from hgemm.errors import ProblemError, RequestError
from hgemm.kernel import problem_of
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Kind, kind_word
from hgemm.products import MatmulOptions, matching_kinds

S4 = {"arch": "sm_80", "tile": "128x64x32", "warp_tile": "32x32", "stages": "1", "smem": "none", "mma": "m16n8k8"}
"""The tile of the tensor-core puzzle: 8 warps, one stage, no padding."""


def test_tile_of_the_published_puzzle_is_legal() -> None:
    (plan,) = sweep([{**S4, "dtype": "tf32"}]).plans
    spec = plan.spec
    assert (plan.threads, plan.warps_m, plan.warps_n, plan.smem_bytes) == (256, 4, 2, 4 * (128 + 64) * 32)
    assert (spec.dtype_d, spec.align_a, spec.align_d, spec.fragment_stages) == ("f32", 4, 4, 1)
    assert plan.bank_conflicts > 0 == sweep([{**S4, "dtype": "tf32", "smem": "auto"}]).plans[0].bank_conflicts


PROVED = {
    "puzzle": S4,
    "all layouts": {"arch": "sm_80", "tile": "32x32x16", "layout": "tn,nn,nt,tt"},
    "conflicts are counted": {"arch": "sm_80", "tile": "32x32x8", "layout": "nt", "smem": "none", "stages": "2"},
    "unaligned, f16 out": {"arch": "sm_89", "tile": "32x64x24", "layout": "tt", "align": "1", "out": "f16"},
    "split": {"arch": "sm_80", "tile": "32x48x16", "layout": "nn", "schedule": "split_k:3", "align_a": "2"},
    "wgmma": {"arch": "sm_90a", "tile": "64x32x32", "out": "f32,bf16"},
    "swap_ab": {"arch": "sm_90a", "tile": "24x64x16", "bias": "column", "activation": "gelu"},
    "cluster": {"arch": "sm_90a", "tile": "128x32x16", "cluster": "2x1", "consumers": "2", "beta": "off"},
}


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROVED)
def test_kernels_are_built_and_proved(name: str, settings: Settings, o0_toolchain: HostToolchain) -> None:
    outcomes = made({**PROVED[name], "dtype": "tf32"}, replace(settings, prover=ProverHere(o0_toolchain)))
    assert outcomes and [outcome.error for outcome in outcomes] == [""] * len(outcomes)
    for outcome in outcomes:
        sass = outcome.record.data["sass"]
        assert any("HMMA" in opcode or "HGMMA" in opcode for opcode in sass)
        assert (outcome.record.data["proof"]["read_conflicts_per_k_tile"] > 0) == (PROVED[name].get("smem") == "none")


def test_note_names_the_tf32_layouts_that_wgmma_lacks() -> None:
    asked = sweep([{"arch": "sm_90a", "dtype": "tf32", "layout": "tn,nn"}])
    assert [plan.instruction for plan in asked.plans] == ["wgmma", "mma.sync"]
    assert [*hints(asked)] == ["wgmma reads tf32 in layout tn only; layout nn uses mma.sync on sm_90a"]


# ---- What arrays are ------------------------------------------------------------------------------------------------


def array(*shape: int, dtype: str = "f32") -> View:
    return View(4096, shape, (shape[1], 1), dtype, 0)


def test_arrays_of_f32_are_multiplied_as_tf32() -> None:
    views = {"A": array(32, 16), "B": array(16, 48), "D": array(32, 48)}
    with pytest.raises(ProblemError, match="A is f32, .* 11 of its 24 significant bits: .*precision='tf32'"):
        next(matching_kinds(views, MatmulOptions()))
    (kind,) = matching_kinds(views, MatmulOptions(precision="tf32"))
    assert kind == Kind("tt", "tf32", "tf32", "f32") and kind_word(kind.code, "dtype_a") == "tf32"
    traits = LaunchTraits.of(record(layout="tt", dtype_a="tf32", dtype_b="tf32", dtype_d="f32"))
    problem = problem_of(traits, views)
    assert (problem.lda, problem.ldb, problem.ldd) == (16, 48, 48)
    with pytest.raises(ProblemError, match="A is f16, not f32"):
        problem_of(traits, {**views, "A": array(32, 16, dtype="f16")})


def test_d_is_never_tf32() -> None:
    with pytest.raises(RequestError, match="dtype_d 'tf32' is unknown: did you mean f32"):
        Kind("tn", "tf32", "tf32", "tf32")
    with pytest.raises(RequestError, match="--out 'tf32' is unknown"):
        sweep([{"arch": "sm_80", "dtype": "tf32", "out": "tf32"}])


def test_suggested_cover_options_are_accepted() -> None:
    assert Kind("nt", "tf32", "tf32", "f32").cover_options == "--dtype tf32 --layout nt"
    assert Kind("nt", "tf32", "tf32", "bf16").cover_options == "--dtype tf32 --out bf16 --layout nt"
