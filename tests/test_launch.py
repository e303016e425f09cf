"""Grids, workspaces, images and the call itself, on a driver that has no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import simulated
from fake_driver import FakeDriver, real
from gpu_arrays import Dlpack, Interface
from simulated import record

import hgemm.device
from hgemm import DeviceError, Kernel, Problem, ProblemError
from hgemm.device import Image, choose_code, cubin_runs, open_device, ptx_runs
from hgemm.dtypes import decode, encode
from hgemm.errors import LibraryError, UnsupportedError
from hgemm.launch import counter_bytes, ctas, grid_x, workspace_bytes
from hgemm.launch_traits import LaunchTraits


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    monkeypatch.setattr(hgemm.device, "driver", lambda: fake)
    hgemm.device._open.cache_clear()
    yield fake
    hgemm.device._open.cache_clear()


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
    assert counter_bytes(split, 32, 48 * 64) == 256 and counter_bytes(split, 32, 48 * 64 + 1) == 512
    assert workspace_bytes(split, 33, 49, 2) == 256 + 8 * 5 * 32 * 48 * 4


def test_the_workspace_of_stream_k_has_two_tiles_for_each_cta_that_there_may_be() -> None:
    stream = LaunchTraits.of(record("stream_k"))
    assert counter_bytes(stream, 32, 48 * 65) == 512
    assert workspace_bytes(stream, 1, 1) == 256 + 10 * 2 * 32 * 48 * 4
    assert workspace_bytes(stream, 32, 48 * 65) - workspace_bytes(stream, 1, 1) == 256
    unlimited = record("stream_k")
    del unlimited["launch"]["grid"]["max_ctas"]
    with pytest.raises(LibraryError, match="max_ctas is 0"):
        LaunchTraits.of(unlimited)


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
def test_code_runs_where_it_may(arch: str, runs: str, compiles: str) -> None:
    devices = [divmod(int(number), 10) for number in "75 80 86 87 89 90 100 120 121".split()]
    found = [f"{major}{minor}" for major, minor in devices if cubin_runs(arch, (major, minor))]
    assert found == runs.split()
    found = [f"{major}{minor}" for major, minor in devices if ptx_runs(arch, (major, minor))]
    assert found == compiles.split() + ["121"] * ("121" not in compiles and arch != "sm_90a")


def test_the_cubin_is_taken_where_it_runs() -> None:
    image = Image("sm_86", b"cubin", b"ptx\0\0")
    assert choose_code(image, (8, 9)) == b"cubin" and choose_code(image, (9, 0)) == b"ptx\0"
    assert choose_code(Image("sm_86", b"", b"ptx"), (8, 9)) == b"ptx\0"
    for missing in (Image("sm_90", b"cubin", b"ptx"), Image("sm_80", b"", b"")):
        with pytest.raises(UnsupportedError, match="do not run on sm_89: generate with --arch sm_89"):
            choose_code(missing, (8, 9))


# ---- The device -----------------------------------------------------------------------------------------------------


def test_no_gpu_is_one_line(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_device_tells_of_itself_and_leaves_the_context(driver: FakeDriver) -> None:
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


def test_a_variant_that_needs_more_shared_memory_is_unfit(driver: FakeDriver) -> None:
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


def test_a_persistent_variant_fills_the_device(driver: FakeDriver) -> None:
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
        (shapes(B=((17, 24), "<f2")), r"B is \(17, 24\), not \(16, 24\)"),
        (shapes(A=((3, 8, 16), "<f2")), r"D is \(8, 24\), not \(3, 8, 24\)"),
        (shapes(A=((3, 8, 16), "<f2"), D=((2, 8, 24), "<f2")), r"D is \(2, 8, 24\), not \(3, 8, 24\)"),
        (shapes(A=((16,), "<f2")), "A has 1 axes"),
        (shapes(C=((8, 23), "<f2")), r"C is \(8, 23\), not \(8, 24\)"),
        (shapes(bias=((8,), "<f2")), r"bias is \(8,\), not \(24,\)"),
        (shapes(A=((8, 18), "<f2"), B=((18, 24), "<f2")), "A's leading dimension 18 is not a multiple of 8"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(driver: FakeDriver, arrays: dict, message: str) -> None:
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


def test_a_workspace_is_the_callers(driver: FakeDriver) -> None:
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


def test_a_launch_may_begin_early_where_the_kernel_waits(driver: FakeDriver) -> None:
    early = record()
    early["launch"] = {**early["launch"], "programmatic": True}
    for made, attributes in ((record(), []), (early, ["PROGRAMMATIC_STREAM_SERIALIZATION"])):
        kernel = Kernel(made, b"cubin")
        attach(driver, kernel)
        assert (call(kernel, driver) == 24).all() and driver.attributes == attributes


def test_a_bound_launch_repeats_itself(driver: FakeDriver) -> None:
    kernel = Kernel(record(), b"cubin")
    seen: list[Problem] = []
    driver.kernel = seen.append
    problem = Problem(8, 8, 8, a=0x1000, b=0x2000, d=0x3000, lda=8, ldb=8, ldd=8)
    launch = kernel.bind(problem, stream=5)
    for _ in range(3):
        launch()
    assert seen == [problem] * 3 and {entry[3] for entry in driver.launches} == {5}
