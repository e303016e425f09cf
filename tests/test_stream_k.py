"""Stream-K, and splits that a launch decides, on the CPU.

Whatever the number of workers, D is right and nothing races; and what is shared is shared indeed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import executable_of

from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.proof.executor import Adversary, HostToolchain
from generator.proof.machine import EmulatedKernel, HostMemory
from generator.proof.proving import LAUNCHES, adversaries_of, check_case
from generator.sweep import sweep
from hgemm.cases import Case, Shape
from hgemm.dtypes import decode
from hgemm.launch import COUNTER_BYTES, WORKSPACE_ALIGN_BYTES, WORKSPACE_COUNTERS
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import LaunchOptions
from hgemm.reference import reference
from hgemm.verification import Buffer, CheckOptions, Trial, compare

WGMMA = {"arch": "sm_90a", "tile": "64x64x64", "stages": "3", "schedule": "stream_k", "cluster": "1x1"}
KERNELS = {
    "alone": WGMMA,
    "clusters": {**WGMMA, "cluster": "2x1", "out": "f32"},
    "in turn": {**WGMMA, "cooperation": "pingpong", "consumers": "2", "bias": "row", "activation": "silu"},
    "two consumers": {**WGMMA, "tile": "128x40x64", "consumers": "2", "raster": "column"},
    "swap_ab": {**WGMMA, "tile": "16x64x64", "swap_ab": "on", "layout": "nn", "cluster": "1x2"},
    "copied by threads": {**WGMMA, "mma": "wgmma", "align": "2", "layout": "nt", "tile": "64x32x64"},
    "halves": {**WGMMA, "acc": "f16", "layout": "tt"},
    "halves by blocks": {
        **WGMMA,
        "acc": "f16",
        "tile": "128x40x64",
        "consumers": "1",
        "bias": "column",
        "cluster": "1x2",
    },
    "mma.sync": {"arch": "sm_80", "tile": "32x64x32", "warp_tile": "32x32", "stages": "3", "schedule": "stream_k"},
    "promoted": {"arch": "sm_80", "tile": "32x32x16", "acc": "f16_promoted", "schedule": "stream_k", "align": "1"},
    "turing": {"arch": "sm_75", "tile": "32x32x32", "schedule": "stream_k", "layout": "nt"},
}
FAST = ("clusters", "in turn", "mma.sync")
WORKERS = (1, 2, 3, 5, 8)


def kernel_of(options: dict[str, str], host_toolchain: HostToolchain) -> EmulatedKernel:
    (plan,) = sweep([options]).plans
    made = emit(plan, templates_folder())
    return EmulatedKernel(LaunchTraits.of(planned_sections(made)), executable_of(made, host_toolchain), ())


def shape_of(traits: LaunchTraits, tiles: int, k: int) -> Shape:
    """Return a ragged problem of so many tiles of clusters, all but one in a row, or as many batches."""
    m, n = traits.tile_m * traits.cluster_shape[0], traits.tile_n * traits.cluster_shape[1]
    return Shape(m - 3, tiles * n - 5, k) if tiles % 2 else Shape(m - 1, n + 1, k, tiles // 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in KERNELS]
)
def test_any_number_of_workers_computes_d(name: str, host_toolchain: HostToolchain) -> None:
    kernel = kernel_of(KERNELS[name], host_toolchain)
    k = kernel.traits.tile_k
    for at, (workers, tiles, extent) in enumerate(
        [
            *((workers, 1, 15 * k - 3) for workers in WORKERS),  # fewer tiles than workers, shared by up to 3
            *((workers, 4, 8 * k + 1) for workers in WORKERS[1::2]),  # the same, or a wave and a part
            (3, 7, 9 * k - 7),  # a whole wave, then one and a part
            (2, 4, 9 * k),  # whole waves only: nothing is shared
            (3, 4, 7 * k),  # too short a k to be shared
            (5, 1, 5),  # less than a k-tile
        ]
    ):
        case = Case(shape_of(kernel.traits, tiles, extent), alpha=2.0, beta=(0.0, 0.25)[at % 2], loose=at % 3 == 0)
        judged = check_case(replace(kernel, workers=workers), case, seed=at)
        assert judged.passed, (workers, judged.reason)


def d_of(kernel: EmulatedKernel, case: Case, workers: int, adversary: Adversary) -> bytes:
    alone = replace(kernel, workers=workers, adversaries=(adversary,), reports=[])
    trial = Trial(alone, case, HostMemory(), CheckOptions(data=("normal",), twice=False), "normal")
    try:
        trial.prepare()
        found, failure = trial.launch(trial.problem())
        assert not failure
        return np.ascontiguousarray(found).tobytes()
    finally:
        trial.free()


def test_d_depends_only_on_the_number_of_workers(host_toolchain: HostToolchain) -> None:
    """With one worker there is one chain of sums; two and three cut k elsewhere, so that f32 is rounded elsewhere."""
    kernel = kernel_of({**WGMMA, "out": "f32"}, host_toolchain)
    case = Case(Shape(64, 64, 15 * 64))
    found = [
        {d_of(kernel, case, workers, adversary) for seed in range(2) for adversary in adversaries_of("d", seed)}
        for workers in (1, 2, 3)
    ]
    assert len(LAUNCHES) > 1 and [len(same) for same in found] == [1, 1, 1]
    assert len(set.union(*found)) == 3


def test_the_workspace_of_a_cluster_is_for_whole_clusters_of_the_card() -> None:
    (plan,) = sweep([{**WGMMA, "tile": "128x128x64", "cluster": "2x2"}]).plans
    assert plan.launch()["grid"]["max_ctas"] == 132
    assert plan.traits()["workspace"]["partial_bytes"] == 128 * 128 * 4
    (plan,) = sweep([{"arch": "sm_80", "schedule": "stream_k", "ctas_per_sm": "2", "tile": "64x64x32"}]).plans
    assert plan.launch()["grid"]["max_ctas"] == 216


# ---- Splits, raster and bias that a launch decides -------------------------------------------------------------------

DECIDED = {"schedule": "launch", "raster": "launch", "bias": "launch"}
AT_LAUNCH = {
    name: {**{field: value for field, value in options.items() if field != "bias"}, **DECIDED}
    for name, options in KERNELS.items()
    if name != "halves by blocks"
} | {"mma.sync with TMA": {"arch": "sm_90", "mma": "m16n8k16", "copy": "tma", "tile": "32x32x32", **DECIDED}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in (*FAST, "mma.sync with TMA") else pytest.mark.slow) for name in AT_LAUNCH],
)
def test_a_launch_decides_splits_raster_and_bias(name: str, host_toolchain: HostToolchain) -> None:
    kernel = kernel_of(AT_LAUNCH[name], host_toolchain)
    k = kernel.traits.tile_k
    for at, (workers, tiles, extent, options) in enumerate(
        [
            (2, 4, 9 * k, LaunchOptions(1, 0, 2)),
            (3, 1, 15 * k - 3, LaunchOptions(7, 0, 1)),
            (3, 4, 8 * k + 1, LaunchOptions(3, 3, -1)),  # the tile after a full wave
            (2, 7, 9 * k - 7, LaunchOptions(2, 6, 1)),
            (3, 4, 5, LaunchOptions(64, 1, -3)),  # one k-tile, so nothing is split
            (8, 6, 7 * k, LaunchOptions(5, 9, 3)),  # more whole tiles than tiles
        ]
    ):
        case = Case(shape_of(kernel.traits, tiles, extent), alpha=2.0, beta=(0.0, 0.25)[at % 2], loose=at % 3 == 0)
        case = replace(case, options=options, bias=("none", "row", "column")[at % 3])
        judged = check_case(replace(kernel, workers=workers), case, seed=at)
        assert judged.passed, (workers, judged.reason)


@pytest.mark.parametrize(
    ("constant", "options"),
    [
        ({"schedule": "persistent"}, LaunchOptions(1, 0, 3)),
        ({"schedule": "split_k:3"}, LaunchOptions(3, 0, -2)),
    ],
)
def test_launch_options_give_the_bits_of_constant_kernels(
    constant: dict[str, str], options: LaunchOptions, host_toolchain: HostToolchain
) -> None:
    fixed = kernel_of({**WGMMA, "out": "f32", **constant}, host_toolchain)
    decided = kernel_of({**WGMMA, "out": "f32", "schedule": "launch", "raster": "launch"}, host_toolchain)
    case = Case(Shape(130, 70, 10 * 64 + 8), options=options)
    for adversary in adversaries_of("d", 1):
        assert d_of(decided, case, 3, adversary) == d_of(fixed, case, 2, adversary)


def test_one_workspace_zeroed_once_serves_all_kernels_and_shapes(host_toolchain: HostToolchain) -> None:
    kernels = [
        kernel_of(options, host_toolchain)
        for options in (
            {**AT_LAUNCH["clusters"], "bias": "none"},
            {"arch": "sm_80", "tile": "32x32x16", "schedule": "split_k:3"},
            {**WGMMA, "out": "f32"},
            {**AT_LAUNCH["mma.sync"], "bias": "none"},
        )
    ]
    memory = HostMemory()
    shared = Buffer(memory, 8 << 20, WORKSPACE_ALIGN_BYTES)
    shared.upload()
    memory.fill(shared.pointer, 0, WORKSPACE_COUNTERS * COUNTER_BYTES)
    for at in range(3):
        for kernel in kernels:
            alone = replace(kernel, adversaries=adversaries_of("w", at), zeroes=False, reports=[])
            traits = kernel.traits
            shape = shape_of(traits, 2 + at, (9 + at) * traits.tile_k + 3)
            options = LaunchOptions(3 - at % 2, at % 2, 2) if traits.decides_splits else None
            trial = Trial(alone, Case(shape, options=options), memory, CheckOptions(data=("integer",)), "integer")
            trial.prepare()
            assert trial.workspace is not None
            trial.workspace.free()
            trial.workspace = None
            problem = replace(trial.problem(), workspace=shared.pointer)
            found, failure = trial.launch(problem, shared.size_bytes)
            assert not failure and not [report.findings for _, report in alone.reports if report.findings]
            expected = reference(traits, trial.operands, splits=trial.splits)
            assert compare("", decode(found, traits.dtype_d), expected, "integer").passed
            assert not shared.elements(shared.download(), "u1")[: WORKSPACE_COUNTERS * COUNTER_BYTES].any()
            trial.free()
