"""Launches on a driver without a GPU: the parameters, grids, workspaces, images and tensor maps."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import simulated
from fake_driver import MEMSET, FakeDriver, installed, real, unpack
from gpu_arrays import Dlpack, Interface
from hypothesis import given
from hypothesis import strategies as st
from simulated import record

import hgemm.device
import hgemm.kernel
from hgemm import DeviceError, Kernel, Problem, ProblemError
from hgemm.cases import Case, Shape
from hgemm.device import Image, choose_code, cubin_runs, open_device, ptx_runs
from hgemm.dtypes import decode, encode
from hgemm.errors import LibraryError, UnsupportedError
from hgemm.kernel import Launcher
from hgemm.launch import (
    COUNTER_BYTES,
    LONG_K,
    WORKSPACE_COUNTERS,
    _encode,
    check,
    counter_bytes,
    ctas,
    grid_x,
    matrices,
    operand_maps,
    starts_early,
    with_launch_options,
    workspace_bytes,
)
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import PROBLEM_BYTES, LaunchOptions
from hgemm.verification import verify

COUNTERS = WORKSPACE_COUNTERS * COUNTER_BYTES
"""The first part of every workspace."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    with installed(fake, monkeypatch):
        yield fake


# ---- Numbers of a launch --------------------------------------------------------------------------------------------


def test_grids_follow_the_schedule() -> None:
    one, persistent = LaunchTraits.of(record()), LaunchTraits.of(record("persistent"))
    split = LaunchTraits.of(record("split_k", splits=5))
    assert ctas(one, 33, 48, 3) == grid_x(one, 33, 48, 3, 6) == 6
    assert grid_x(split, 33, 48, 3, 6) == 30
    assert grid_x(persistent, 33, 48, 3, 4) == 4 and grid_x(persistent, 33, 48, 3, 400) == 6
    assert grid_x(persistent, 33, 48, 3, 0) == 1
    stream = LaunchTraits.of(record("stream_k"))
    assert [grid_x(stream, m, 48, 1, 7) for m in (1, 3200)] == [7, 7]  # all share few tiles, and many
    assert grid_x(stream, 33, 48, 3, 400) == 10 and grid_x(stream, 33, 48, 3, 0) == 1


def test_workspaces_are_counters_then_partial_sums() -> None:
    one, split = LaunchTraits.of(record()), LaunchTraits.of(record("split_k", splits=5))
    assert workspace_bytes(one, 1000, 1000, 7) == counter_bytes(one, 1000, 1000, 7) == 0
    assert counter_bytes(split, 32, 48 * 64) == 256 and counter_bytes(split, 32, 48 * 64 + 1) == 260
    assert workspace_bytes(split, 33, 49, 2) == COUNTERS + 8 * 5 * 32 * 48 * 4


def test_stream_k_workspace_has_two_tiles_a_cta() -> None:
    stream = LaunchTraits.of(record("stream_k"))
    assert counter_bytes(stream, 32, 48 * 65) == 2 * 10 * 4  # no more tiles are shared
    assert workspace_bytes(stream, 1, 1) == COUNTERS + 10 * 2 * 32 * 48 * 4 == workspace_bytes(stream, 32, 48 * 65)
    unlimited = record("stream_k")
    del unlimited["launch"]["grid"]["max_ctas"]
    with pytest.raises(LibraryError, match="max_ctas is 0"):
        LaunchTraits.of(unlimited)


def test_a_launch_decides_which_tiles_are_split() -> None:
    traits = LaunchTraits.of(record("launch"))
    assert traits.decides_splits and not traits.persistent
    plain, three, tail = LaunchOptions(1), LaunchOptions(3), LaunchOptions(3, whole_tiles=2)
    assert [grid_x(traits, 33, 48, 2, 7, options) for options in (None, plain, three, tail)] == [4, 4, 12, 2 + 2 * 3]
    assert workspace_bytes(traits, 33, 48, 2) == workspace_bytes(traits, 33, 48, 2, plain) == 0
    assert workspace_bytes(traits, 33, 48, 2, three) == COUNTERS + 3 * 4 * 32 * 48 * 4
    assert workspace_bytes(traits, 33, 48, 2, tail) == COUNTERS + 3 * 2 * 32 * 48 * 4
    assert [counter_bytes(traits, 33, 48, 2, options) for options in (plain, three, tail)] == [0, 4 * 4, 2 * 4]


def test_splits_and_whole_tiles_are_limited() -> None:
    traits = LaunchTraits.of(record("launch"))
    asked = Problem(32, 48, 40, options=LaunchOptions(64, 9, -2))
    assert with_launch_options(traits, asked, LaunchOptions).options == LaunchOptions(3, 1, -2)
    assert with_launch_options(traits, Problem(32, 48, 0), LaunchOptions).options == LaunchOptions(1)
    fixed = LaunchTraits.of(record("split_k", splits=5))
    assert with_launch_options(fixed, asked, LaunchOptions) == asked


def test_options_and_bias_are_the_last_words_of_the_argument() -> None:
    given = Problem(1, 1, 1, bias=16, bias_kind="column", options=LaunchOptions(4, 6, -3))
    assert struct.unpack("<IIiI", given.pack()[-16:]) == (4, 6, -3, 2)
    assert struct.unpack("<IIiI", Problem(1, 1, 1, bias_kind="row").pack()[-16:])[3] == 0  # a null pointer is no bias


@pytest.mark.parametrize(
    ("rule", "options", "m", "expected"),
    [
        ("launch", LaunchOptions(0), 33, "splits is 0: use 1 or more"),
        ("launch", LaunchOptions(2, -1), 33, "whole_tiles is -1: use 0 or more"),
        ("launch", LaunchOptions(raster_tiles=0), 33, "raster_tiles is 0: its absolute value must be from 1 to 65535"),
        ("launch", LaunchOptions(raster_tiles=-(2**16)), 33, "raster_tiles is -65536: .* from 65537 to 131071"),
        ("launch", LaunchOptions(raster_tiles=2**17 + 1), 33, "raster_tiles is 131073"),
        (
            "launch",
            LaunchOptions(2),
            32 * 70000,
            "70000 tiles share k: a workspace has counters for 65536; use 1 split",
        ),
        ("split_k", None, 32 * 70000, "70000 tiles share k"),
    ],
)
def test_options_that_a_launch_cannot_take_are_rejected(
    rule: str, options: LaunchOptions | None, m: int, expected: str
) -> None:
    traits = LaunchTraits.of(record(rule, splits=2 if rule == "split_k" else 1))
    with pytest.raises(ProblemError, match=expected):
        check(Problem(m, 48, 64, options=options), traits)
    check(replace(GOOD, options=LaunchOptions(2, 1), workspace=0x1000000), LaunchTraits.of(record("launch")))


def test_a_record_with_the_former_layout_of_the_workspace_must_be_regenerated() -> None:
    former = record("split_k", splits=2)
    former["traits"]["workspace"] = {"counter_bytes_per_tile": 4, "partial_bytes_per_tile": 2 * 32 * 48 * 4}
    with pytest.raises(LibraryError, match="layout of an older version: regenerate"):
        LaunchTraits.of(former)


@pytest.mark.parametrize(
    ("arch", "runs", "compiles"),
    [
        ("sm_80", "80 86 89", "80 86 87 89 90 100 120"),
        ("sm_86", "86 89", "86 87 89 90 100 120"),
        ("sm_87", "87", "87 89 90 100 120"),
        ("sm_89", "89", "89 90 100 120"),
        ("sm_90", "90", "90 100 120"),
        ("sm_90a", "90", "90"),
        ("sm_120", "120 121", "120 121"),
        ("sm_121", "121", "121"),
    ],
)
def test_code_runs_on_compatible_devices(arch: str, runs: str, compiles: str) -> None:
    devices = [divmod(int(number), 10) for number in "75 80 86 87 89 90 100 120 121".split()]
    found = [f"{major}{minor}" for major, minor in devices if cubin_runs(arch, (major, minor))]
    assert found == runs.split()
    found = [f"{major}{minor}" for major, minor in devices if ptx_runs(arch, (major, minor))]
    assert found == compiles.split() + ["121"] * ("121" not in compiles and arch != "sm_90a")


def test_cubin_is_preferred_if_it_runs() -> None:
    image = Image("sm_86", b"cubin", b"ptx\0\0")
    assert choose_code(image, (8, 9)) == b"cubin" and choose_code(image, (9, 0)) == b"ptx\0"
    assert choose_code(Image("sm_86", b"", b"ptx"), (8, 9)) == b"ptx\0"
    for missing in (Image("sm_90", b"cubin", b"ptx"), Image("sm_80", b"", b"")):
        with pytest.raises(UnsupportedError, match="do not run on sm_89: generate with --arch sm_89"):
            choose_code(missing, (8, 9))


# ---- The device -----------------------------------------------------------------------------------------------------


def test_missing_gpu_gives_a_one_line_error(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.status = real.CUresult.CUDA_ERROR_NO_DEVICE
    with pytest.raises(DeviceError, match="^no NVIDIA GPU here: the driver returned CUDA_ERROR_NO_DEVICE$") as caught:
        open_device()
    assert caught.value.exit_code == 1
    driver.status = real.CUresult.CUDA_SUCCESS
    with pytest.raises(DeviceError, match="no NVIDIA GPU with number 1: there are 1"):
        open_device(1)

    def missing(flags):
        raise RuntimeError("libcuda is not there\nat all")

    monkeypatch.setattr(driver, "cuInit", missing, raising=False)
    with pytest.raises(DeviceError, match="^no NVIDIA GPU here: the driver, libcuda.so.1, is not installed$"):
        open_device()


def test_device_properties_leave_the_context_unchanged(driver: FakeDriver) -> None:
    device = open_device()
    assert (device.name, device.capability, device.sms) == ("Fake GPU", (9, 0), 3) and open_device(0) is device
    pointer = device.allocate(100)
    device.free(pointer)
    assert not driver.memory and not driver.contexts
    driver.kernel = None
    driver.status = real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match="cannot launch hgemm_test: CUDA_ERROR_ILLEGAL_ADDRESS .a fake failure."):
        call(Kernel(record(), b"cubin"), driver)
    assert not driver.contexts


def test_kernel_with_too_much_shared_memory_is_unsupported(driver: FakeDriver) -> None:
    large = record()
    large["launch"] = {**large["launch"], "smem_bytes": 300000}
    with pytest.raises(UnsupportedError, match="needs 300000 B of shared memory per CTA; Fake GPU allows 232448 B"):
        Kernel(large, b"cubin").prepare()


# ---- The call -------------------------------------------------------------------------------------------------------


def call(kernel: Kernel, driver: FakeDriver, m: int = 40, n: int = 56, k: int = 24, **options) -> np.ndarray:
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    d = np.zeros((m, n), np.float16)
    kernel(Dlpack(a), Dlpack(b.T), Dlpack(d), **options)
    return d


def attach(driver: FakeDriver, kernel: Kernel) -> None:
    driver.kernel = lambda problem: simulated.launch(kernel.traits, problem)


def test_a_call_launches_once_on_the_given_stream(driver: FakeDriver) -> None:
    kernel = Kernel(record(), b"cubin", b"ptx")
    attach(driver, kernel)
    assert (call(kernel, driver, stream=77) == 24).all()
    assert driver.launches == [(4, 64, 4096, 77)] and driver.images == [b"cubin"]
    call(kernel, driver)
    assert driver.launches[1][3] == 0 and len(driver.images) == 1


def test_a_persistent_kernel_fills_the_device(driver: FakeDriver) -> None:
    kernel = Kernel(record("persistent"), b"cubin")
    attach(driver, kernel)
    assert (call(kernel, driver, m=400) == 24).all() and driver.launches[0][0] == 3 * 2


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
@pytest.mark.parametrize("wrap", [Dlpack, Interface])
def test_every_layout_batch_and_scalar_computes(driver: FakeDriver, layout: str, wrap: type) -> None:
    kernel = Kernel(record(align=(8, 8, 4), layout=layout, bias="column", dtype_d="f32"), b"cubin")
    attach(driver, kernel)
    rng = np.random.default_rng(1)
    a = encode(rng.integers(-2, 3, (3, 16, 24)), "f16")
    b = encode(rng.integers(-2, 3, (24, 32)), "f16")
    c, bias = (rng.integers(-9, 9, size).astype(np.float32) for size in ((1, 16, 32), (16,)))
    stored_a = a if layout[0] == "t" else np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    stored_b = b if layout[1] == "t" else np.asfortranarray(b)
    d = np.full((3, 16, 40), 7, np.float32)
    out = wrap(d[:, :, :32])
    returned = kernel(wrap(stored_a), wrap(stored_b), out, alpha=0.5, beta=2, c=wrap(c), bias=wrap(bias))
    assert returned is out
    assert (d[:, :, :32] == 0.5 * (a.astype(float) @ b.astype(float)) + 2 * c + bias[:, None]).all() and (
        d[:, :, 32:] == 7
    ).all()


def test_bf16_arrays_compute(driver: FakeDriver) -> None:
    kernel = Kernel(record(dtype_a="bf16", dtype_b="bf16", dtype_d="bf16"), b"cubin")
    attach(driver, kernel)
    a, b = encode(np.full((8, 16), 1.5), "bf16"), encode(np.full((8, 16), -2.0), "bf16")
    d = np.zeros((8, 8), np.uint16)
    kernel(Interface(a, "<V2"), Interface(b.T, "<V2"), Interface(d, "<V2"))
    assert (decode(d, "bf16") == -48).all()


def shapes(**changed) -> dict:
    given = {"A": ((8, 16), "<f2"), "B": ((16, 24), "<f2"), "D": ((8, 24), "<f2"), **changed}
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in given.items()}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (shapes(A=((8, 16), "<f4")), "A is f32, not f16"),
        (shapes(D=((8, 25), "<f2")), r"D is \(8, 25\), not \(8, 24\), for A \(8, 16\) and B \(16, 24\)"),
        (shapes(B=((17, 24), "<f2")), r"A is \(8, 16\) and B \(17, 24\), .* 16 and 17 here"),
        (shapes(A=((3, 8, 16), "<f2")), r"D is \(8, 24\), not \(3, 8, 24\)"),
        (shapes(A=((3, 8, 16), "<f2"), D=((2, 8, 24), "<f2")), r"D is \(2, 8, 24\), not \(3, 8, 24\)"),
        (shapes(A=((16,), "<f2")), "A has 1 axes"),
        (shapes(C=((8, 23), "<f2")), r"C is \(8, 23\), not \(8, 24\)"),
        (shapes(bias=((8,), "<f2")), r"bias is \(8,\), not \(24,\)"),
        (shapes(A=((8, 18), "<f2"), B=((18, 24), "<f2")), "A's leading dimension 18 is not a multiple of 8"),
    ],
)
def test_mismatched_arrays_are_rejected(driver: FakeDriver, arrays: dict, message: str) -> None:
    kernel = Kernel(record(layout="tt", bias="row"), b"cubin")
    extra = {name.lower(): Dlpack(arrays[name]) for name in ("C", "bias") if name in arrays}
    extra.setdefault("bias", Dlpack(np.zeros(24, np.float16)))
    with pytest.raises(ProblemError, match=message):
        kernel(Dlpack(arrays["A"]), Dlpack(arrays["B"]), Dlpack(arrays["D"]), **extra)
    assert not driver.launches


def test_a_wrong_layout_and_a_read_only_output_are_named(driver: FakeDriver) -> None:
    kernel = Kernel(record(layout="tn"), b"cubin")
    a, b, d = (Dlpack(array) for array in shapes().values())
    with pytest.raises(
        ProblemError, match=r"B \(16, 24\) with strides \(24, 1\) is not contiguous along k, as layout tn requires"
    ):
        kernel(a, b, d)
    with pytest.raises(ProblemError, match="D is read-only"):
        kernel(a, b, Interface(np.zeros((8, 24), np.float16), readonly=True))


def test_workspace_of_the_caller_is_used(driver: FakeDriver) -> None:
    kernel = Kernel(record("split_k", splits=3), b"cubin")
    attach(driver, kernel)
    needed = kernel.workspace_bytes(40, 56)
    with pytest.raises(ProblemError, match=f"workspace is missing: {needed} B"):
        call(kernel, driver)
    with pytest.raises(ProblemError, match=f"workspace has {needed - 4} B: {needed} B"):
        call(kernel, driver, workspace=Dlpack(np.zeros(needed // 4 - 1, np.float32)))
    assert (call(kernel, driver, workspace=Dlpack(np.zeros(needed, np.uint8))) == 24).all()
    assert driver.launches == [(4 * 3, 64, 4096, 0)]


def test_single_rows_and_columns_need_no_stride(driver: FakeDriver) -> None:
    kernel = Kernel(record(layout="tn"), b"cubin")
    attach(driver, kernel)
    a, b, d = np.ones((1, 3), np.float16), np.ones((1, 3), np.float16), np.zeros((1, 1), np.float16)
    kernel(Dlpack(a), Dlpack(b.T), Dlpack(d))
    assert d[0, 0] == 3


def test_launches_may_begin_early_if_the_kernel_waits(driver: FakeDriver) -> None:
    early = record()
    early["launch"] = {**early["launch"], "programmatic": True}
    for made, attributes in ((record(), []), (early, ["PROGRAMMATIC_STREAM_SERIALIZATION"])):
        kernel = Kernel(made, b"cubin")
        attach(driver, kernel)
        assert (call(kernel, driver, m=8) == 24).all() and driver.attributes == attributes


@pytest.mark.parametrize(("m", "ctas", "early"), [(32, 2, True), (64, 4, False), (96, 6, True), (400, 26, True)])
def test_a_launch_begins_early_unless_it_would_be_spread_unevenly(
    driver: FakeDriver, m: int, ctas: int, early: bool
) -> None:
    """The device holds 6 CTAs. Two launches of 2 fit at once, and one of 6 leaves no place to the next."""
    made = record()
    made["launch"] = {**made["launch"], "programmatic": True}
    kernel = Kernel(made, b"cubin")
    attach(driver, kernel)
    assert (call(kernel, driver, m=m) == 24).all() and driver.launches[0][0] == ctas
    assert driver.attributes == ["PROGRAMMATIC_STREAM_SERIALIZATION"] * early


@pytest.mark.parametrize(("shape", "early"), [((2, 2), False), ((2, 4), True)])
def test_launches_of_large_clusters_begin_early_with_any_grid(shape: tuple[int, int], early: bool) -> None:
    made = record_of_maps(shape)
    made["launch"] = {**made["launch"], "programmatic": True}
    traits = LaunchTraits.of(made)
    assert grid_x(traits, 256, 384, 1, 120) == 64
    assert starts_early(traits, Problem(256, 384, 64), 120) == early


@pytest.mark.parametrize(
    ("shape", "resident", "m", "n", "k", "batch", "early"),
    [
        ((2, 1), 64, 256, 384, LONG_K, 1, False),
        ((2, 1), 64, 256, 384, LONG_K - 1, 1, True),
        ((2, 1), 62, 256, 384, LONG_K, 1, True),  # two waves
        ((2, 1), 64, 64, 32 * 48, LONG_K, 1, True),  # one row of clusters
        ((2, 1), 64, 64 * 32, 48, LONG_K, 1, True),  # one column of clusters
        ((2, 1), 64, 128, 384, LONG_K, 2, True),
        ((1, 2), 64, 256, 384, LONG_K, 1, False),
        ((2, 2), 64, 256, 384, LONG_K, 1, True),
        ((1, 1), 64, 256, 384, LONG_K, 1, True),
        ((2, 4), 64, 256, 384, LONG_K, 1, True),
    ],
)
def test_pairs_of_ctas_with_a_long_k_wait_in_one_wave(
    shape: tuple[int, int], resident: int, m: int, n: int, k: int, batch: int, early: bool
) -> None:
    made = record_of_maps(shape)
    traits = LaunchTraits.of({**made, "launch": {**made["launch"], "programmatic": True}})
    assert starts_early(traits, Problem(m, n, k, batch), resident) == early
    assert not starts_early(LaunchTraits.of(made), Problem(m, n, k, batch), resident)


def test_pairs_of_large_tiles_begin_early() -> None:
    made = record_of_maps((2, 1))
    traits = replace(LaunchTraits.of({**made, "launch": {**made["launch"], "programmatic": True}}), tile_m=128)
    early = [starts_early(replace(traits, tile_n=n), Problem(512, 1024, LONG_K), 132) for n in (248, 256)]
    assert early == [False, True]


def test_k_counts_for_each_split() -> None:
    made = record_of_maps((2, 1), rule="launch")
    traits = LaunchTraits.of({**made, "launch": {**made["launch"], "programmatic": True}})
    problems = (Problem(128, 192, 2 * LONG_K, options=LaunchOptions(splits)) for splits in (1, 2, 3))
    assert [starts_early(traits, problem, 128) for problem in problems] == [False, False, True]


@pytest.mark.parametrize("repeated", [False, True])
def test_a_captured_launch_begins_early_only_after_a_kernel_of_ours(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    monkeypatch.setattr(hgemm.kernel, "driver", lambda: driver)
    early = record()
    early["launch"] = {**early["launch"], "programmatic": True}
    kernel = Kernel(early, b"cubin")
    problem = Problem(8, 8, 8, a=0x1000, b=0x2000, d=0x3000, lda=8, ldb=8, ldd=8)
    launcher, bound = Launcher(kernel, problem), kernel.bind(problem, stream=7)

    def begins_early() -> bool:
        launcher.launch((0x1000, 0x2000, 0, 0x3000, 0, 0), 7) if repeated else bound()
        return driver.attributes == ["PROGRAMMATIC_STREAM_SERIALIZATION"]

    assert begins_early()
    driver.captured.add(7)
    assert not begins_early(), "the first node of a graph"
    assert begins_early() and begins_early()
    default, programmatic, launch_order = range(3)
    for nodes, ports, expected in (
        (["foreign"], [], False),
        ([MEMSET], [], False),
        (["function", MEMSET], [], False),
        (["function"], [default], True),
        (["function"], [programmatic], True),
        (["function"], [launch_order], False),
    ):
        driver.dependencies, driver.ports = nodes, ports
        assert begins_early() == expected, (nodes, ports)
    launcher.launch((0x1000, 0x2000, 0, 0x3000, 0, 0), 0)
    assert driver.attributes == ["PROGRAMMATIC_STREAM_SERIALIZATION"], "in another stream"
    driver.captured.clear()
    assert begins_early()


def test_a_kernel_that_is_not_programmatic_does_not_start_the_next_one_early(driver: FakeDriver) -> None:
    early = record()
    early["launch"] = {**early["launch"], "programmatic": True}
    driver.captured.add(7)
    for name, made in (("plain", record()), ("early", early)):
        driver.cuModuleGetFunction = lambda module, symbol, name=name: (real.CUresult.CUDA_SUCCESS, name)
        Kernel(made, b"cubin").prepare()
        driver.dependencies = [name]
        assert open_device().overlap_pays(7) == (name == "early")


def test_captured_launches_are_programmatic_if_the_predecessor_is_unknown(driver: FakeDriver) -> None:
    def missing(stream):
        raise RuntimeError("Function cuStreamGetCaptureInfo_v3 not found")

    driver.captured.add(7)
    driver.cuStreamGetCaptureInfo = missing
    assert open_device().overlap_pays(7)
    driver.cuStreamGetCaptureInfo = lambda stream: (real.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, *[None] * 6)
    assert open_device().overlap_pays(7)


def test_a_bound_launch_repeats_itself(driver: FakeDriver) -> None:
    kernel = Kernel(record(), b"cubin")
    seen: list[Problem] = []
    driver.kernel = seen.append
    problem = Problem(8, 8, 8, a=0x1000, b=0x2000, d=0x3000, lda=8, ldb=8, ldd=8)
    launch = kernel.bind(problem, stream=5)
    for _ in range(3):
        launch()
    assert seen == [problem] * 3 and {entry[3] for entry in driver.launches} == {5}


# ==== The problem =====================================================================================================

ROOT = Path(__file__).resolve().parent.parent
PLAIN = LaunchTraits.of(record())
GOOD = Problem(
    *(100, 60, 40, 2),
    a=0x1000,
    lda=40,
    batch_stride_a=4000,
    b=0x8000,
    ldb=48,
    batch_stride_b=2880,
    c=0x20000,
    ldc=64,
    batch_stride_c=6400,
    d=0x40000,
    ldd=64,
    batch_stride_d=6400,
    beta=0.5,
)


def test_a_problem_packs_as_the_header_declares_it() -> None:
    numbers = {field.name: at + 1 for at, field in enumerate(fields(Problem))}
    given = {
        **numbers,
        "alpha": 0.5,
        "beta": -2.0,
        "bias_kind": "column",
        "options": LaunchOptions(4, 2, -6),
        "aux": (),
        "pointer_arrays": False,
    }
    problem = Problem(**given)
    packed = problem.pack()
    assert len(packed) == PROBLEM_BYTES == 160 and unpack(packed) == problem
    words = {**given, "splits": 4, "whole_tiles": 2, "raster_tiles": -6, "bias_kind": 2}
    text = (ROOT / "templates/common/problem.cuh").read_text().partition("struct Problem {")[2].partition("};")[0]
    at = 0
    for line in (line.partition("//")[0].strip() for line in text.splitlines()):
        match = re.match(r"(void const\*|void\*|int64_t|int32_t|uint32_t|float) (.+);", line)
        for name in match[2].split(", ") if match else ():
            code = {"int32_t": "<i", "uint32_t": "<I", "float": "<f"}.get(match[1], "<q")
            assert struct.unpack_from(code, packed, at)[0] == words[name], name
            at += struct.calcsize(code)
    assert at == PROBLEM_BYTES


def test_a_good_problem_passes() -> None:
    check(GOOD, PLAIN)
    check(replace(GOOD, c=GOOD.d), PLAIN)  # in place
    check(replace(GOOD, beta=0.0, c=0), PLAIN)
    check(replace(GOOD, batch_stride_a=0, batch_stride_c=0), PLAIN)
    check(replace(GOOD, m=2**31 - 1024, batch=1, d=1 << 50), PLAIN)
    # One matrix of 256 columns: A in the first 40, D in the last 60 of it.
    check(replace(GOOD, a=0x1000, lda=256, d=0x1000 + 2 * 192, ldd=256, batch=1, b=1 << 40, c=1 << 41), PLAIN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 0}, "m is 0: use 1 to 2147482624"),
        ({"n": -3, "k": 2**31}, "n is -3.*; k is 2147483648"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 2**31 - 1023}, "batch is 2147482625: use 1 to 2147482624"),
        ({"m": 2**30, "n": 2**20, "batch": 1}, "CTA tiles exceed the 2147483647 of a launch"),
        ({"a": 0}, "A has no pointer"),
        ({"a": 0x1008}, "A begins at an address that is not a multiple of 16 B"),
        ({"lda": 39}, "A's leading dimension 39 is less than its 40 contiguous elements"),
        ({"ldb": 41}, "B's leading dimension 41 is not a multiple of 8: use 48"),
        ({"batch_stride_a": 4004}, "A's batch stride 4004 .* not a multiple of 8"),
        ({"batch_stride_a": -4000}, "A's batch stride -4000"),
        ({"lda": 2**61}, "A spans"),
        ({"c": 0}, "C has no pointer"),
        ({"alpha": 1e39}, "alpha 1e[+]39 overflows f32"),
        ({"bias": 0x90000}, "bias is given, but the kernel adds none"),
        ({"batch_stride_d": 0}, "D's batches overlap"),
        ({"batch_stride_d": 3200}, "D's batches overlap"),
        ({"d": 0x1000}, "D overlaps A"),
        ({"d": 0x8000 + 16}, "D overlaps B"),
        ({"c": 0x40000 + 16}, "D overlaps C"),
        ({"a": 0x1000, "lda": 256, "d": 0x1000 + 64, "ldd": 256, "batch": 1, "b": 1 << 40}, "D overlaps A"),
    ],
)
def test_bad_problem_gives_a_one_line_error(changes: dict, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        check(replace(GOOD, **changes), PLAIN)
    assert str(caught.value).startswith("hgemm_test: ") and str(caught.value).isprintable()
    assert caught.value.exit_code == 2 and isinstance(caught.value, ValueError)


def test_side_by_side_batches_do_not_overlap() -> None:
    check(replace(GOOD, ldd=128, batch_stride_d=64), PLAIN)


def test_unmet_requirements_are_named() -> None:
    with pytest.raises(ProblemError, match="does not add C: .*--beta on"):
        check(GOOD, LaunchTraits.of(record(beta=False)))
    biased = LaunchTraits.of(record(bias="row"))
    with pytest.raises(ProblemError, match="bias has no pointer"):
        check(GOOD, biased)
    check(replace(GOOD, bias=0x90002), biased)
    with pytest.raises(ProblemError, match="bias begins"):
        check(replace(GOOD, bias=0x90001), biased)


def test_a_split_kernel_needs_its_workspace() -> None:
    split = LaunchTraits.of(record("split_k", splits=4))
    tiles = 4 * 2 * 2
    needed = COUNTERS + tiles * 4 * 32 * 48 * 4
    for changes, size, message in (
        ({}, None, f"workspace is missing: {needed} B"),
        ({"workspace": 0x1000000}, needed - 1, f"has {needed - 1} B: {needed} B"),
        ({"workspace": 0x1000008}, needed, "not a multiple of 16 B"),
        ({"workspace": 0x3FF00}, needed, "D overlaps the workspace"),
    ):
        with pytest.raises(ProblemError, match=message):
            check(replace(GOOD, **changes), split, size)
    check(replace(GOOD, workspace=0x1000000), split, needed)


def test_alignments_follow_the_kernel() -> None:
    loose = LaunchTraits.of(record(align=(1, 2, 4)))
    check(replace(GOOD, a=0x1002, lda=41, ldb=42, b=0x8004, ldc=68, ldd=68, d=0x40008, batch_stride_d=6800), loose)
    with pytest.raises(ProblemError, match="B's leading dimension 41 is not a multiple of 2"):
        check(replace(GOOD, ldb=41), loose)
    with pytest.raises(ProblemError, match="C's leading dimension 62 is not a multiple of 4"):
        check(replace(GOOD, ldc=62), loose)


def test_layouts_define_the_contiguous_extent() -> None:
    nt = LaunchTraits.of(record(layout="nt"))
    check(replace(GOOD, lda=104, ldb=64), nt)
    with pytest.raises(ProblemError, match="A's leading dimension 40 is less than its 100"):
        check(replace(GOOD, ldb=64), nt)


def test_incomplete_record_is_rejected() -> None:
    bare = record()
    with pytest.raises(LibraryError, match="has no 'traits'"):
        LaunchTraits.of({name: bare[name] for name in bare if name != "traits"})
    with pytest.raises(LibraryError, match="grid rule 'tiles' is unknown"):
        LaunchTraits.of(record("tiles"))


def test_importing_hgemm_loads_nothing_slow() -> None:
    code = "import sys, hgemm; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "cuda", "generator", "click", "torch"} & set(found.split())


# ==== Tensor maps and clusters ========================================================================================

PROBLEM = Problem(100, 200, 72, a=0x10000, b=0x20000, d=0x80000, lda=80, ldb=96, ldd=208)


@pytest.fixture
def driver_of_maps(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    fake.map_count = 3
    with installed(fake, monkeypatch):
        yield fake


def record_of_maps(shape: tuple[int, int] = (2, 1), operands: str = "abd", rule: str = "one_tile", **spec) -> dict:
    """Return the record of a kernel that loads by TMA, CTA tile 32x48x16, clusters of `shape` tiles."""
    made = simulated.record(rule, splits=3 if rule == "split_k" else 1, arch="sm_90a", **spec)
    boxes = {"a": (16, 32, 1), "b": (16, 48, 1), "d": (16, 32, 1)}
    swizzles = {"a": 32, "b": 64, "d": 0}
    maps = [
        {
            "operand": name,
            "box": list(boxes[name]),
            "swizzle_bytes": swizzles[name],
            "element": "f16",
            "contiguous": "k",
        }
        for name in operands
    ]
    size = shape[0] * shape[1]
    changed = {"cluster": [size, 1, 1], "cluster_shape": list(shape), "tensor_maps": maps}
    return {**made, "launch": {**made["launch"], **changed}}


def read(maps: bytes, place: int) -> tuple[list[int], str]:
    """Return what the fake driver was asked to encode in one of the three maps."""
    one = maps[128 * place : 128 * (place + 1)]
    return list(struct.unpack("<10Q", one[:80])), one[80:].decode().strip()


# ---- Clusters -------------------------------------------------------------------------------------------------------


def test_clusters_take_work_together() -> None:
    along_m, along_n = LaunchTraits.of(record_of_maps((4, 1))), LaunchTraits.of(record_of_maps((1, 2)))
    assert ctas(along_m, 32 * 5, 48 * 3, 2) == 2 * 3 * 4 * 2  # 5 tiles of m are two clusters
    assert ctas(along_n, 32 * 5, 48 * 3, 2) == 5 * 2 * 2 * 2
    split = LaunchTraits.of(record_of_maps((2, 1), rule="split_k"))
    assert grid_x(split, 33, 48, 1, 100) == 2 * 3
    assert counter_bytes(split, 32, 48 * 33) == 66 * 4
    assert workspace_bytes(split, 32, 48) == COUNTERS + 2 * 3 * 32 * 48 * 4


def test_a_persistent_grid_is_whole_clusters(driver_of_maps: FakeDriver) -> None:
    persistent = LaunchTraits.of(record_of_maps((2, 1), rule="persistent"))
    assert [grid_x(persistent, 32 * m, 48, 1, 6) for m in (1, 2, 5, 6, 7, 99)] == [2, 2, 6, 6, 6, 6]
    assert grid_x(persistent, 3200, 48, 1, 0) == 2
    driver_of_maps.resident_clusters = 5
    assert Kernel(record_of_maps((2, 1)), b"cubin").prepare().resident_ctas == 10
    driver_of_maps.resident_clusters = 0
    assert Kernel(record_of_maps((2, 1)), b"cubin").prepare().resident_ctas == 2  # 3 SMs hold one
    assert Kernel(record_of_maps((1, 1)), b"cubin").prepare().resident_ctas == 6  # 3 SMs of 2 CTAs


def test_mismatched_cluster_is_rejected() -> None:
    wrong = record_of_maps((2, 1))
    wrong["launch"]["cluster"] = [1, 2, 1]
    with pytest.raises(LibraryError, match=r"cluster \(1, 2, 1\) .* \(2, 1\)"):
        LaunchTraits.of(wrong)


# ---- Maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("tn", [72, 100, 1, 160, 160], [72, 200, 1, 192, 192]),
        ("nn", [100, 72, 1, 208, 208], [72, 200, 1, 192, 192]),
        ("nt", [100, 72, 1, 208, 208], [200, 72, 1, 416, 416]),
        ("tt", [72, 100, 1, 160, 160], [200, 72, 1, 416, 416]),
    ],
)
def test_maps_hold_extents_and_strides_of_each_layout(
    driver_of_maps: FakeDriver, layout: str, a: list, b: list
) -> None:
    problem = replace(PROBLEM, lda=a[3] // 2, ldb=b[3] // 2)
    Kernel(record_of_maps(layout=layout), b"cubin").launch(problem)
    assert read(driver_of_maps.maps[0], 0) == ([0x10000, *a, 16, 32, 1, 1], "FLOAT16")
    assert read(driver_of_maps.maps[0], 1) == ([0x20000, *b, 16, 48, 1, 2], "FLOAT16")
    assert read(driver_of_maps.maps[0], 2) == ([0x80000, 200, 100, 1, 416, 416, 16, 32, 1, 0], "FLOAT16")
    assert driver_of_maps.launches == [(2 * 2 * 5, 64, 4096, 0)]


@pytest.mark.parametrize(
    ("m", "lda", "k", "folded"), [(8, 8, 72, True), (8, 16, 72, False), (8, 8, 76, False), (16, 16, 72, False)]
)
def test_adjacent_rows_of_one_vector_are_loaded_eight_at_a_time(
    driver_of_maps: FakeDriver, m: int, lda: int, k: int, folded: bool
) -> None:
    """Row r of such a map holds rows r to r + 7, and a box holds every eighth."""
    record = record_of_maps(layout="nn")
    for entry in record["launch"]["tensor_maps"]:
        entry.update(box=[8, entry["box"][1], 1], swizzle_bytes=0)
    problem = replace(PROBLEM, m=m, n=8, k=k, lda=lda, ldb=80, ldd=8)
    Kernel(record, b"cubin").launch(problem)
    assert driver_of_maps.steps == [8 if folded else 1, 1, 1]  # a store is never folded
    assert read(driver_of_maps.maps[0], 0)[0][1:9] == [
        64 if folded else m,
        k,
        1,
        2 * lda,
        2 * lda,
        64 if folded else 8,
        32,
        1,
    ]
    assert read(driver_of_maps.maps[0], 2)[0][1:9] == [8, m, 1, 16, 16, 8, 32, 1]


def test_a_batch_is_the_third_axis_and_one_matrix_for_all_has_one_layer(driver_of_maps: FakeDriver) -> None:
    problem = replace(PROBLEM, batch=3, batch_stride_a=0, batch_stride_b=96 * 200 + 8, batch_stride_d=208 * 100)
    Kernel(record_of_maps(), b"cubin").launch(problem)
    assert read(driver_of_maps.maps[0], 0)[0][3:6] == [1, 160, 160]
    assert read(driver_of_maps.maps[0], 1)[0][3:6] == [3, 192, 2 * (96 * 200 + 8)]
    assert read(driver_of_maps.maps[0], 2)[0][3:6] == [3, 416, 2 * 208 * 100]


@pytest.mark.parametrize(
    ("m", "lda", "wide"),
    [(100, 104, 128), (64, 64, 64), (1, 8, 9), (20, 24, 32), (8, 16, 24), (512, 512, 512)],
)
def test_rows_of_edge_maps_extend_to_whole_tiles_but_not_beyond_the_next_row(
    driver_of_maps: FakeDriver, m: int, lda: int, wide: int
) -> None:
    """Tiles of A have 32 rows in boxes of 16 or 24."""
    for width, edge in ((16, 0), (24, 8)):
        record = record_of_maps(layout="nn")
        a = record["launch"]["tensor_maps"][0]
        a.update(box=[width, *a["box"][1:]], edge=True)
        driver_of_maps.map_count = LaunchTraits.of(record).map_count
        kernel = Kernel(record, b"cubin")
        kernel.launch(replace(PROBLEM, m=m, lda=lda, ldb=80))
        maps = driver_of_maps.maps[-1]
        whole, narrow, exact, b, *unused, d = (read(maps, at)[0] for at in range(7))
        assert len(maps) == 7 * 128 and (b[0], d[0]) == (PROBLEM.b, PROBLEM.d) and not any(map(any, unused))
        assert (whole[1], whole[6]) == (wide, width) and (exact[1], exact[6]) == (m, width)
        assert (narrow[1], narrow[6]) == ((wide, edge) if edge else (0, 0))
        for one in (narrow, exact) if edge else (exact,):
            assert (one[0], one[2:6], one[7:]) == (whole[0], whole[2:6], whole[7:])
        driver_of_maps.encoded = 0
        kernel.launch(replace(PROBLEM, m=m, lda=lda, ldb=80))
        assert driver_of_maps.encoded == 0 and driver_of_maps.maps[-1] == maps


@pytest.mark.parametrize(("m", "lda"), [(100, 104), (64, 64), (8, 8)])
def test_drivers_that_reject_overlapping_rows_get_maps_without_them(
    driver_of_maps: FakeDriver, m: int, lda: int
) -> None:
    driver_of_maps.rejects_overlap = True
    record = record_of_maps(layout="nn")
    a = record["launch"]["tensor_maps"][0]
    a.update(box=[8, *a["box"][1:]], swizzle_bytes=0, edge=m > 8)
    driver_of_maps.map_count = LaunchTraits.of(record).map_count
    Kernel(record, b"cubin").launch(replace(PROBLEM, m=m, lda=lda, ldb=80))
    whole = read(driver_of_maps.maps[-1], 0)[0]
    assert m <= whole[1] <= lda and whole[6] == 8 and set(driver_of_maps.steps) == {1}


@given(*(st.integers(1, 300) for _ in range(2)), st.integers(0, 40), st.integers(1, 8), st.sampled_from([16, 32]))
def test_edge_maps_read_no_byte_behind_the_last_element(m: int, k: int, gap: int, tile_k: int, box: int) -> None:
    """Of all k-tiles but the last, which has a map that ends with the matrix."""
    record = record_of_maps(layout="nn")
    a = record["launch"]["tensor_maps"][0]
    a.update(box=[box, *a["box"][1:]], edge=True)
    traits = LaunchTraits.of(record)
    leading = -(-m // 8) * 8 + 8 * gap if k > 1 else -(-m // 8) * 8
    places = matrices(replace(PROBLEM, m=m, k=k, lda=leading), traits)
    whole, _, exact = operand_maps(traits, places)["a"]
    last_k_tile = (k - 1) // tile_k * tile_k
    rows = last_k_tile - 1  # the last one that the first map loads
    assert rows < 0 or 2 * (rows * leading + whole.extents[0]) <= places["A"].end - places["A"].pointer
    assert exact.extents[0] == m <= whole.extents[0]


def test_a_map_that_the_kernel_does_not_use_is_zeros(driver_of_maps: FakeDriver) -> None:
    Kernel(record_of_maps(operands="ab"), b"cubin").launch(PROBLEM)
    assert driver_of_maps.maps[0][256:] == bytes(128) and driver_of_maps.maps[0][128:256] != bytes(128)


def test_maps_are_encoded_once_for_each_address(driver_of_maps: FakeDriver) -> None:
    kernel = Kernel(record_of_maps(), b"cubin")
    for _ in range(3):
        kernel.launch(PROBLEM)
    assert driver_of_maps.encoded == 3 and driver_of_maps.maps[0] == driver_of_maps.maps[2]
    kernel.launch(replace(PROBLEM, a=0x50000))
    assert driver_of_maps.encoded == 4


def test_a_bound_launch_owns_its_maps(driver_of_maps: FakeDriver) -> None:
    launch = Kernel(record_of_maps(), b"cubin").bind(PROBLEM)
    _encode.cache_clear()
    launch()
    launch()
    assert driver_of_maps.maps[0] == driver_of_maps.maps[1] and read(driver_of_maps.maps[0], 0)[0][0] == 0x10000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": 0x10008}, "A begins at an address that is not a multiple of 16 B"),
        ({"lda": 84}, "A's leading dimension is 168 B, not a multiple of 16 B, as TMA requires"),
        (
            {"batch": 2, "batch_stride_b": 96 * 200 + 4, "batch_stride_d": 20800},
            "B's batch stride is 38408 B, not a mult",
        ),
        ({"lda": 82, "d": 0}, "A's leading dimension 82 is not a multiple of 4: use 84.*; D has no pointer"),
        ({"ldd": 2**39}, f"D's leading dimension is {2**40} B: TMA supports less than {2**40} B"),
    ],
)
def test_addresses_that_tma_rejects_give_an_error_with_the_fix(
    driver_of_maps: FakeDriver, changed: dict, message: str
) -> None:
    loose = record_of_maps()
    loose["traits"] = {**loose["traits"], "min_align": {"a": 4, "b": 4, "d": 8}}
    with pytest.raises(ProblemError, match=message) as caught:
        Kernel(loose, b"cubin").launch(replace(PROBLEM, **changed))
    assert str(caught.value).endswith("use a kernel without TMA (arch sm_90 or sm_80)")
    assert not driver_of_maps.encoded and not driver_of_maps.launches


def test_tma_kernels_are_verified(driver_of_maps: FakeDriver) -> None:
    kernel = Kernel(record_of_maps((2, 1)), b"cubin")
    driver_of_maps.kernel = lambda problem: simulated.launch(kernel.traits, problem)
    for case in (Case(Shape(33, 49, 17, 2), loose=True), Case(Shape(40, 17, 24, 3), broadcast="a")):
        assert verify(kernel, case, open_device()).passed
    assert len(driver_of_maps.maps) == 2 * 2 * 2
