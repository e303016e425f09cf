"""Verification: the error bound covers the worst arithmetic of tensor cores, and each seeded fault is found."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import simulated
from fake_driver import FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import accumulate, activate, record

import hgemm.device
from benchmarks import bounds
from generator.proof.machine import HostMemory
from hgemm import Kernel
from hgemm.cases import Case, Shape, cases_of, default_cases, far_bytes
from hgemm.device import open_device
from hgemm.dtypes import DTYPES, decode, encode, representable, truncation_error
from hgemm.errors import DeviceError, RequestError
from hgemm.launch import tiles
from hgemm.launch_traits import LaunchTraits
from hgemm.reference import ACTIVATION_FORMULAS, OperandValues, Reference, apply_epilogue, reference
from hgemm.reference import accumulate as follow
from hgemm.verification import (
    CANARY,
    CheckOptions,
    CheckResult,
    Operand,
    OperandLayout,
    SparseOperand,
    Trial,
    compare,
    draw,
    operand_in,
    operand_layouts,
    run,
    stored,
    verify,
)

CASE = Case(Shape(33, 49, 21), loose=True)
KERNELS = {
    "plain": record(),
    "nt f16": record(layout="nt", acc="f16", align=(4, 2, 1)),
    "nn bf16": record(layout="nn", dtype_a="bf16", dtype_b="bf16", dtype_d="bf16", align=(1, 1, 8), beta=False),
    "tt f16_promoted": record(layout="tt", acc="f16_promoted", dtype_d="f32", align=(2, 8, 4)),
    "split_k": record("split_k", splits=3, bias="row"),
    "persistent": record("persistent", bias="column", activation="gelu"),
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    monkeypatch.setattr(hgemm.device, "driver", lambda: fake)
    monkeypatch.setattr("hgemm.device.driver", lambda: fake)
    hgemm.device._open.cache_clear()
    yield fake
    hgemm.device._open.cache_clear()


def kernel_of(driver: FakeDriver, document: dict, *faults: str) -> Kernel:
    kernel = Kernel(document, b"cubin")
    driver.kernel = lambda problem: simulated.launch(kernel.traits, problem, frozenset(faults))
    return kernel


def checked(driver: FakeDriver, document: dict, case: Case, *faults: str, **options) -> CheckResult:
    return verify(kernel_of(driver, document, *faults), case, open_device(), CheckOptions(**options))


@pytest.mark.parametrize("name", KERNELS)
def test_right_kernel_passes_all_default_cases(driver: FakeDriver, name: str) -> None:
    kernel = kernel_of(driver, KERNELS[name])
    cases = default_cases(kernel.traits, resident_ctas=6)
    assert len(cases) >= 12
    for case in cases:
        found = verify(kernel, case, open_device(), CheckOptions(data=("integer",)))
        assert found.passed, found
    assert not driver.memory and not driver.contexts


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes_with_normal_data(driver: FakeDriver, name: str) -> None:
    found = checked(driver, KERNELS[name], CASE, data=("normal",))
    assert found.passed and 0 < found.max_bound_ratio <= 1 and found.max_error < 1, found


FAULTS = [
    ("drops an element of k", "integer: [0-9]+ elements are wrong, the worst .batch 0, row"),
    ("reads past k", "elements are wrong.* is nan"),
    ("leaves an element", r"1 elements of D were not written, the first \(batch 0, row 32, column 48\)"),
    ("writes before D", "D: its guard band was written at byte -1"),
    ("writes after D", "D: its guard band was written at byte"),
    ("writes the padding", "D: it was written at byte 98"),
    ("writes to A", "a: it was written at byte 0"),
    ("writes after B", "b: its guard band was written at byte"),
    ("is not repeatable", "a second launch differs in 1 B of D"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_every_fault_is_named(driver: FakeDriver, fault: str, message: str) -> None:
    found = checked(driver, record(), CASE, fault)
    assert not found.passed
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found.reason)
    assert not driver.memory


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("leaves a counter", "integer: the counters of the workspace are not 0 after the launch"),
        ("writes partial sums", ""),
    ],
)
def test_a_workspace_keeps_its_counters_at_zero(driver: FakeDriver, fault: str, message: str) -> None:
    found = checked(driver, KERNELS["split_k"], CASE, fault)
    assert found.reason == message and found.passed == (not message)


def test_batch_that_reads_only_one_matrix_is_found(driver: FakeDriver) -> None:
    case = Case(Shape(20, 20, 20, 3))
    assert not checked(driver, record(), case, "takes one B").passed
    assert checked(driver, record(), replace(case, broadcast="b"), "takes one B").passed
    large = Case(Shape(9, 8, 16, 40), 2.0, 0.25, loose=True)
    assert checked(driver, record(), large).passed and not checked(driver, record(), large, "takes one B").passed


def test_c_is_not_read_if_beta_is_zero(driver: FakeDriver) -> None:
    kernel = kernel_of(driver, record())
    seen = []
    launch = driver.kernel
    driver.kernel = lambda problem: (seen.append((problem.c, problem.beta)), launch(problem))
    for loose in (False, True):
        assert verify(kernel, replace(CASE, loose=loose), open_device()).passed
    assert [bool(c) for c, _ in seen] == [False] * 4 + [True] * 4 and not any(beta for _, beta in seen)


def test_c_may_be_d(driver: FakeDriver) -> None:
    kernel = kernel_of(driver, record())
    problems = []
    launch = driver.kernel
    driver.kernel = lambda problem: (problems.append(problem), launch(problem))
    found = verify(kernel, Case(Shape(33, 49, 20, 2), -0.5, 1.0, loose=True, in_place=True), open_device())
    assert found.passed, found
    assert all(problem.c == problem.d and problem.ldc == problem.ldd for problem in problems)


def test_operands_may_share_memory(driver: FakeDriver) -> None:
    kernel = kernel_of(driver, record())
    problems = []
    launch = driver.kernel
    driver.kernel = lambda problem: (problems.append(problem), launch(problem))
    case = Case(Shape(33, 33, 20, 2), -0.5, 1.0, loose=True, beside=True, same_ab=True, once=True)
    found = verify(kernel, case, open_device())
    assert found.passed and len(problems) == 1, found
    (problem,) = problems
    assert problem.a == problem.b and problem.lda == problem.ldb
    assert problem.ldc == problem.ldd >= 66 and problem.d - problem.c == problem.ldd  # half a row of 2-byte elements
    assert not checked(driver, record(), case, "writes the padding").passed


def test_distant_rows_are_copied_separately(driver: FakeDriver) -> None:
    device = open_device()
    layout = OperandLayout(3, 5, 2**27 + 8, 1, 0, "f32", 4)
    memory = HostMemory()
    operand = operand_in(memory, layout, 4096, 0)
    operand.fill(np.arange(15, dtype=np.float32).reshape(1, 3, 5))
    found, failure = operand.written(operand.download())
    assert isinstance(operand, SparseOperand) and (found.ravel() == np.arange(15)).all() and not failure
    ctypes.c_uint8.from_address(operand.address + (2**27 + 8) * 4 - 1).value = 7
    assert "memory near row 1 was written" in operand.written(operand.download())[1]
    operand.free()
    assert type(operand_in(device, replace(layout, leading=8), 4096, 0)) is Operand


def test_far_offset_cases_need_memory() -> None:
    traits = LaunchTraits.of(record())
    (far,) = (case for case in default_cases(traits, 6, 80 << 30) if case.min_span)
    layouts = operand_layouts(traits, far)
    spans = [layout.elements for name, layout in layouts.items() if name != "bias"]
    assert all(2**31 <= span < 1.01 * 2**31 for span in spans)
    assert not any(case.min_span for case in default_cases(traits, 6, 1 << 30))


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_far_offset_cases_are_small_for_every_tile(layout: str) -> None:
    traits = replace(LaunchTraits.of(record(layout=layout)), tile_m=8, tile_n=16, tile_k=2048)
    (far,) = (case for case in default_cases(traits, 6, 80 << 30) if case.min_span)
    assert far.shape == Shape(9, 17, 2049)
    operands = [one for name, one in operand_layouts(traits, far).items() if name != "bias"]
    assert all((one.rows - 1) * one.leading >= 2**31 for one in operands)
    assert sum(one.elements * 2 for one in operands) < 1.01 * far_bytes(traits)


def test_device_memory_is_free_when_the_check_of_a_case_returns(driver: FakeDriver) -> None:
    entered = []
    trial = Trial(kernel_of(driver, record()), CASE, open_device(), CheckOptions(), "normal")

    @contextmanager
    def allocating() -> Iterator[None]:
        entered.append(len(driver.memory))
        yield
        entered.append(len(driver.memory))

    assert trial.check(allocating).passed and not driver.memory and entered == [0, 4]
    trial.free()


def test_without_guard_bands_the_allocations_end_with_the_last_element(driver: FakeDriver) -> None:
    sizes = []
    allocate = driver.cuMemAlloc
    driver.cuMemAlloc = lambda size: (sizes.append(size), allocate(size))[1]
    assert checked(driver, record(), Case(Shape(3, 5, 7)), guard_bytes=0, data=("integer",)).passed
    assert sorted(sizes) == sorted([2 * (2 * 8 + 7), 2 * (4 * 8 + 7), 2 * (2 * 8 + 5)])


def test_pointers_have_only_the_required_alignment(driver: FakeDriver) -> None:
    for align, align_bytes in ((8, 16), (1, 2)):
        kernel = kernel_of(driver, record(align=(align,) * 3))
        problems = []
        launch = driver.kernel
        driver.kernel = lambda problem, launch=launch, problems=problems: (problems.append(problem), launch(problem))
        assert verify(kernel, CASE, open_device()).passed
        assert all(pointer % (2 * align_bytes) == align_bytes for p in problems for pointer in (p.a, p.b, p.d))


def test_a_failed_launch_is_raised_and_frees_everything(driver: FakeDriver) -> None:
    kernel = kernel_of(driver, record())
    open_device()
    driver.status = FakeDriver.CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(DeviceError, match="cannot launch hgemm_test: CUDA_ERROR_LAUNCH_FAILED"):
        verify(kernel, CASE, open_device())
    assert not driver.memory


# ---- Cases and operands ---------------------------------------------------------------------------------------------


def test_default_cases_cover_known_failures() -> None:
    traits = LaunchTraits.of(record("persistent"))
    cases = default_cases(traits, resident_ctas=500)
    shapes = [case.shape for case in cases]
    assert Shape(1, 1, 1) in shapes and any(shape.k == 1 and shape.m > 1 for shape in shapes)
    assert any(shape.k < traits.tile_k for shape in shapes) and any(shape.k > 50 * traits.tile_k for shape in shapes)
    whole = [s for s in shapes if s.m % traits.tile_m == s.n % traits.tile_n == s.k % traits.tile_k == 0]
    assert whole and sum(case.loose for case in cases) >= 5 and any(case.in_place for case in cases)
    assert any(-(-s.m // traits.tile_m) * -(-s.n // traits.tile_n) * s.batch > 500 for s in shapes)
    assert {case.broadcast for case in cases} == {"", "a", "b,c,bias"} and any(case.beta for case in cases)
    assert len({str(case) for case in cases}) == len(cases)
    assert not any(case.beta or case.in_place for case in default_cases(LaunchTraits.of(record(beta=False)), 6))


def test_launch_splits_are_checked_on_whole_waves_and_a_tail() -> None:
    traits = LaunchTraits.of(record("launch"))
    resident = 132
    by_wave = [
        (tiles(traits, case.shape.m, case.shape.n) * case.shape.batch, case.options)
        for case in default_cases(traits, resident)
    ]
    assert any(count > options.whole_tiles >= resident and options.splits > 1 for count, options in by_wave)
    assert any(
        options.whole_tiles == 0 and resident < count * options.splits for count, options in by_wave if count > 9
    )


@pytest.mark.parametrize("tile", ["16x16x16", "256x256x64"])
def test_default_cases_are_legal_for_every_tile(tile: str) -> None:
    m, n, k = map(int, tile.split("x"))
    traits = replace(LaunchTraits.of(record()), tile_m=m, tile_n=n, tile_k=k)
    for case in default_cases(traits, 264):
        assert min(case.shape.m, case.shape.n, case.shape.k, case.shape.batch) >= 1
        for place in operand_layouts(traits, case).values():
            assert place.leading % place.align == 0 and place.batch_stride % place.align == 0


def test_shapes_are_read_and_written() -> None:
    assert Shape.parse_list("128x128x64, 33X65x17@3") == (Shape(128, 128, 64), Shape(33, 65, 17, 3))
    assert str(Shape(33, 65, 17, 3)) == "33x65x17@3" and str(Shape(1, 2, 3)) == "1x2x3"
    for bad in ("128", "128x128", "0x1x1", "1x1x1@0", "1x1x1@", "axbxc", "", ",", "1x1x1x1", "-1x1x1"):
        with pytest.raises(RequestError, match="shape"):
            Shape.parse_list(bad)
    cases = cases_of(LaunchTraits.of(record()), Shape.parse_list("1x1x1,2x2x2"))
    assert [case.loose for case in cases] == [False, True] and cases[1].beta == 1.0


@pytest.mark.parametrize("acc", ["f32", "f16", "f16_promoted"])
@pytest.mark.parametrize("k", [1, 100, 4101, 100000])
def test_integer_data_fits_the_accumulator(acc: str, k: int) -> None:
    traits = LaunchTraits.of(record(acc=acc))
    operands = draw(traits, Case(Shape(8, 8, k)), "integer", np.random.default_rng(0))
    products = np.abs(operands.a) @ np.abs(operands.b)
    assert np.max(products) <= (2**11 if acc == "f16" else 2**24) and np.max(products) >= min(k, 300) / 10


@pytest.mark.parametrize("tile_k", [16, 32, 48, 64, 128])
def test_f16_holds_integers_of_one_k_tile_only(tile_k: int) -> None:
    traits = LaunchTraits.of(record(acc="f16_promoted", cta_tile=f"32x48x{tile_k}"))
    given = draw(traits, Case(Shape(8, 8, 8 * tile_k)), "integer", np.random.default_rng(0))
    assert not follow(traits, given.a, given.b)[1].any()
    tiles = [given.a[..., at : at + tile_k] @ given.b[:, at : at + tile_k] for at in range(0, 8 * tile_k, tile_k)]
    assert all(np.max(np.abs(tile)) <= 2048 for tile in tiles)
    pairs = np.array(tiles[::2]) + tiles[1::2]
    assert np.mean(pairs.astype(np.float16) != pairs) > 0.1


def test_normal_data_does_not_overflow_f16() -> None:
    traits = LaunchTraits.of(record(acc="f16"))
    operands = draw(traits, Case(Shape(4, 4, 300000)), "normal", np.random.default_rng(0))
    assert np.max(np.abs(operands.a) @ np.abs(operands.b)) < 65504


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_operands_follow_the_layout(layout: str) -> None:
    traits = LaunchTraits.of(record(layout=layout))
    operands = draw(traits, CASE, "normal", np.random.default_rng(0))
    numbers = stored(traits, operands)
    for name, place in operand_layouts(traits, CASE).items():
        if name in ("a", "b"):
            assert numbers[name].shape == (1, place.rows, place.columns)
    a = decode(numbers["a"], "f16")
    assert np.array_equal(a if layout[0] == "t" else a.swapaxes(1, 2), operands.a)


def test_canary_is_nan_in_every_type(driver: FakeDriver) -> None:
    words = np.full(4, CANARY, "<u2")
    for name, dtype in DTYPES.items():
        assert np.isnan(decode(words.view(dtype.storage), name)).all()
    operand = Operand(open_device(), OperandLayout(3, 5, 8, 2, 40, "f32", 4))
    operand.fill(np.ones((2, 3, 5), np.float32))
    found, failure = operand.written(operand.download())
    assert (found == 1).all() and not failure and not operand.unwritten(found).any()
    assert len(operand.before) % 4 == 0 and operand.front_bytes == 4096 + 16


# ---- One run --------------------------------------------------------------------------------------------------------


def test_a_run_is_timed_and_checked(driver: FakeDriver) -> None:
    found = run(kernel_of(driver, record()), Case(Shape(64, 48, 32), 2.0, 0.5), open_device(), samples=3)
    assert found.time_us == 250.0  # two launches a sample of half a millisecond
    assert found.tflops == pytest.approx(2 * 64 * 48 * 32 / 250e-6 * 1e-12)
    assert found.check.passed and found.checked_rows == 64 and not driver.memory
    assert run(kernel_of(driver, record()), CASE, open_device(), samples=1, checked=False).check is None


def test_large_runs_are_checked_on_some_rows(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgemm.verification.CHECKED_PRODUCTS", 48 * 32 * 10)
    found = run(kernel_of(driver, record()), Case(Shape(64, 48, 32)), open_device(), samples=1)
    assert found.check.passed and 3 <= found.checked_rows <= 10
    for fault in ("drops an element of k", "leaves an element", "writes after D"):
        assert not run(
            kernel_of(driver, record(), fault), Case(Shape(64, 48, 32)), open_device(), samples=1
        ).check.passed


# ==== The bound =======================================================================================================

F32 = LaunchTraits.of(record())
BF16 = LaunchTraits.of(record(dtype_a="bf16", dtype_b="bf16", dtype_d="f32"))
BY_ACC = {acc: LaunchTraits.of(record(acc=acc)) for acc in ("f32", "f16", "f16_promoted")}


def operands(seed: int, m: int, n: int, k: int, dtype: str = "f16", whole: bool = False) -> OperandValues:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-1, 2, size) if whole else rng.standard_normal(size) for size in ((1, m, k), (1, k, n)))
    return OperandValues(*(decode(encode(x, dtype), dtype) for x in (a, b)))


def ratio(traits: LaunchTraits, given: OperandValues, computed: np.ndarray) -> float:
    product, bound = follow(traits, given.a, given.b)
    return compare("", computed[None].astype(np.float64), Reference(product, bound), "").max_bound_ratio


@settings(max_examples=60, deadline=None)
@given(
    acc=st.sampled_from(sorted(BY_ACC)),
    group_bits=st.sampled_from([(8, 24), (8, 25), (16, 25)]),
    splits=st.sampled_from([1, 1, 3, 7]),
    k=st.integers(1, 400),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0, 3, 6]),
    ascending=st.booleans(),
    copy=st.sampled_from(["tma", "cp_async"]),
)
def test_no_arithmetic_of_tensor_cores_exceeds_the_bound(
    acc, group_bits, splits, k, seed, spread, ascending, copy
) -> None:
    traits = replace(BY_ACC[acc], splits=splits, arch="sm_80" if group_bits[1] == 24 else "sm_90", copy=copy)
    drawn = operands(seed, 4, 4, k)
    scale = 2.0 ** np.random.default_rng(seed).integers(-spread, spread + 1, k)  # terms of many sizes, in any order
    a = drawn.a * (np.sort(scale) if ascending else scale)
    b = np.abs(drawn.b) if ascending else drawn.b
    given = OperandValues(decode(encode(a, "f16"), "f16"), b)
    computed = accumulate(traits, given.a[0], given.b[0], *group_bits)
    if np.all(np.abs(computed) < 30000):
        assert ratio(traits, given, computed) <= 1.0


@settings(max_examples=40, deadline=None)
@given(
    group_bits=st.sampled_from([(8, 24), (16, 25)]),
    k=st.integers(1, 600),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0, 4]),
    whole=st.booleans(),
)
def test_short_products_stay_under_the_bound(group_bits, k, seed, spread, whole) -> None:
    """Sums of bf16: also of integers, whose sums are exact, and one number that makes all of them inexact."""
    drawn = operands(seed, 4, 4, k, "bf16", whole)
    a = drawn.a * 2.0 ** np.random.default_rng(seed).integers(-spread, spread + 1, k)
    a[..., 0] = 1 + 2.0**-7
    given = OperandValues(a * 2.0**12 if whole else a, drawn.b)
    traits = replace(BF16, arch="sm_80" if group_bits[1] == 24 else "sm_90")
    assert ratio(traits, given, accumulate(traits, given.a[0], given.b[0], *group_bits)) <= 1.0
    one_by_one = np.zeros((4, 4), np.float32)
    for i in range(k):
        one_by_one = one_by_one + (given.a[0][:, i, None] * given.b[0][i]).astype(np.float32)
    assert ratio(traits, given, one_by_one) <= 1.0


@settings(max_examples=60, deadline=None)
@given(
    acc=st.sampled_from(sorted(BY_ACC)),
    group=st.sampled_from([8, 16]),
    k=st.integers(1, 600),
    seed=st.integers(0, 10**6),
    share=st.integers(1, 9),
    offset=st.floats(-2, 2),
    copy=st.sampled_from(["tma", "cp_async"]),
)
def test_stream_k_shares_stay_under_the_bound(acc, group, k, seed, share, offset, copy) -> None:
    """With any number of workers, shares begin and end at any k-tiles, and their sums are added in the order of k."""
    whole, traits = replace(BY_ACC[acc], copy=copy), LaunchTraits.of(record("stream_k", acc=acc, copy=copy))
    drawn = operands(seed, 4, 4, k)
    rng = np.random.default_rng(seed)
    a = drawn.a + offset * np.sign(rng.standard_normal())  # sums that grow, and then fall where a share may begin
    a[..., k // 2 :] *= rng.choice([1, -1])
    given = OperandValues(decode(encode(a, "f16"), "f16"), drawn.b)
    at = [0, *range(traits.tile_k * int(rng.integers(1, share + 1)), k, traits.tile_k * share), k]
    sums = [accumulate(whole, given.a[0][:, i:j], given.b[0][i:j], group) for i, j in zip(at, at[1:])]
    computed = np.zeros((4, 4), np.float32)
    for part in sums:
        computed = computed + part
    if all(np.all(np.abs(part) < 30000) for part in sums):
        assert ratio(traits, given, computed) <= 1.0


@pytest.mark.parametrize(
    ("case", "tile_k", "row", "column", "found"),
    [
        (Case(Shape(131, 257, 67), 1, -1, loose=True), 64, 106, 9, 8.875),
        (Case(Shape(257, 256, 64), -0.5, 1), 32, 222, 222, 7.8125),
        (Case(Shape(17, 2305, 96), 1, -1), 32, 10, 1712, -7.53125),
    ],
)
def test_the_bound_follows_the_k_tile_that_comes_first(
    case: Case, tile_k: int, row: int, column: int, found: float
) -> None:
    """An H100 computed these numbers with kernels on mma.sync whose last k-tile comes first."""
    copied = replace(BY_ACC["f16"], tile_k=tile_k, last_k_tile_first=True)
    drawn = draw(copied, case, "normal", np.random.default_rng([0, *f"{case} normal".encode()]))
    one = replace(drawn, a=drawn.a[:, [row]], b=drawn.b[..., [column]], c=drawn.c[:, [row]][..., [column]])
    d = np.array([[[found]]])
    assert one.alpha * accumulate(copied, one.a[0], one.b[0], 16) + one.beta * one.c[0] == pytest.approx(
        found, rel=2**-11
    )
    assert reference(replace(copied, mma="m16n8k16"), one).error_ratio(d) <= 1.0
    assert reference(replace(copied, mma="m16n8k16", last_k_tile_first=False), one).error_ratio(d) > 1.0


def test_stream_k_bound_is_close_to_the_bound_of_one_chain() -> None:
    given = operands(0, 16, 16, 2000)
    one, shared = (follow(traits, given.a, given.b)[1] for traits in (F32, LaunchTraits.of(record("stream_k"))))
    assert np.all(shared >= one) and np.mean(shared) < 2 * np.mean(one)  # signs of partial sums are unknown


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 300), dtype=st.sampled_from(["f16", "bf16"]))
def test_plain_f32_sums_in_any_order_stay_under_the_bound(seed: int, k: int, dtype: str) -> None:
    given = operands(seed, 3, 3, k, dtype)
    computed = np.zeros((3, 3), np.float32)
    for at in range(0, k, 16):
        order = at + np.random.default_rng(seed).permutation(min(16, k - at))
        for i in order:
            computed = computed + (given.a[0][:, i, None] * given.b[0][i]).astype(np.float32)
    assert ratio(F32, given, computed) <= 1.0


@pytest.mark.parametrize("acc", sorted(BY_ACC))
@pytest.mark.parametrize("k", [3, 64, 1000])
def test_integers_are_exact_so_that_a_dropped_element_is_seen(acc: str, k: int) -> None:
    traits, given = BY_ACC[acc], operands(k, 6, 6, k, whole=True)
    exact = given.a[0] @ given.b[0]
    assert np.array_equal(accumulate(traits, given.a[0], given.b[0]), exact) and ratio(traits, given, exact) == 0.0
    dropped = given.a[0].copy()
    dropped[:, k // 2] = 0
    assert ratio(traits, given, dropped @ given.b[0]) > 1.0
    values, bound = follow(traits, given.a, given.b)
    finished = apply_epilogue(traits, values, bound, 1.0, 0.0, None, None)
    assert compare("", (dropped @ given.b[0])[None], finished, "").max_bound_ratio > 1.0


@pytest.mark.parametrize("acc", ["f32", "f16", "f16_promoted"])
def test_a_product_without_k_is_exactly_zero(acc: str) -> None:
    traits = replace(LaunchTraits.of(record()), acc=acc)
    product, error = follow(traits, np.empty((3, 0)), np.empty((0, 5)))
    assert product.shape == error.shape == (3, 5) and not product.any() and not error.any()


@pytest.mark.parametrize(("acc", "k"), [("f32", 64), ("f32", 1024), ("f32", 4096), ("f16_promoted", 64), ("f16", 64)])
def test_the_bound_is_not_vacuous_for_normal_data(acc: str, k: int) -> None:
    traits, given = BY_ACC[acc], operands(7, 24, 24, k)
    exact = given.a[0] @ given.b[0]
    dropped = given.a[0].copy()
    dropped[:, k // 3] = 0
    shifted = np.roll(given.a[0].reshape(-1), 8).reshape(given.a[0].shape)  # a wrong leading dimension, or a wrong row
    assert ratio(traits, given, dropped @ given.b[0]) > 1.0
    assert ratio(traits, given, shifted @ given.b[0]) > 10.0
    assert ratio(traits, given, exact) < 1e-3
    used = ratio(traits, given, accumulate(traits, given.a[0], given.b[0]))
    assert 0.005 < used <= 1.0


def test_bound_grows_with_the_summands() -> None:
    given = operands(3, 16, 16, 4096)
    _, bound = follow(F32, given.a, given.b)
    worst = 1.5 * 4096 * 2.0**-23 * np.max(np.abs(given.a) @ np.abs(given.b))
    assert np.max(bound) < worst / 20


@pytest.mark.parametrize(
    ("way", "types"),
    [
        ("executor", ("f16", "f32", "f32")),
        ("Ampere", ("f16", "f32", "f16")),
        ("Hopper", ("bf16", "f32", "bf16")),
        ("executor", ("f16", "f16", "f16")),
        ("Ampere", ("f16", "f16_promoted", "f32")),
    ],
)
def test_the_bound_is_at_most_four_times_the_largest_error_and_rejects_faults(way: str, types: tuple[str, ...]) -> None:
    arithmetic = next(one for one in bounds.ARITHMETIC if one.name == way)
    normal = np.random.default_rng(3).standard_normal((2, 100, 64), np.float32)
    found = bounds.row(arithmetic, *(representable(one, types[0]) for one in normal), *types)
    assert 0.25 <= found["largest"] <= 1.0 and found["lost"] > 0.9
    assert types[1] != "f32" or found["rounded"] > 0.02  # of each element


# ---- tf32 -----------------------------------------------------------------------------------------------------------

TF32 = LaunchTraits.of(record(dtype_a="tf32", dtype_b="tf32", dtype_d="f32"))


def cut(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 300),
    group_bits=st.sampled_from([(4, 24), (8, 25)]),
    a_takes=st.sampled_from([cut, lambda values: representable(values, "tf32")]),
    b_takes=st.sampled_from([cut, lambda values: representable(values, "tf32")]),
    one_sign=st.booleans(),
)
def test_tf32_truncation_and_rounding_stay_under_the_bound(seed, k, group_bits, a_takes, b_takes, one_sign) -> None:
    given = operands(seed, 4, 4, k, "tf32")
    if one_sign:  # nothing cancels
        given = OperandValues(np.abs(given.a), np.abs(given.b))
    computed = accumulate(TF32, a_takes(given.a[0]), b_takes(given.b[0]), *group_bits)
    assert ratio(replace(TF32, arch="sm_80"), given, computed) <= 1.0


def test_tf32_bound_detects_missing_digits() -> None:
    drawn = operands(11, 24, 24, 512, "tf32")
    given = OperandValues(representable(drawn.a, "tf32"), representable(drawn.b, "tf32"))
    f16 = operands(11, 24, 24, 512)
    tight, all_digits, of_f16 = (follow(TF32, one.a, one.b)[1].max() for one in (given, drawn, f16))
    assert tight < 1.05 * of_f16 < all_digits / 50
    rounded_as_bf16 = decode(encode(given.a[0], "bf16"), "bf16") @ given.b[0]
    assert ratio(TF32, given, rounded_as_bf16) > 10.0 and ratio(TF32, given, given.a[0] @ given.b[0]) < 1e-3


def test_tf32_operands_have_11_bits() -> None:
    values = np.concatenate([np.random.default_rng(1).standard_normal(5000), [0.0, 1.0, 1 + 2.0**-10, -(2.0**-120)]])
    taken, lost = representable(values, "tf32"), truncation_error(values, "tf32")
    assert np.array_equal(cut(taken), taken) and not truncation_error(taken, "tf32").any()
    single = values.astype(np.float32).astype(np.float64)
    assert (np.abs(taken - single) <= np.maximum(lost / 2, 0)).all() and (np.abs(cut(values) - single) <= lost).all()
    assert np.array_equal(representable(values, "f32"), single) and not truncation_error(values, "f32").any()


# ---- The epilogue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ACTIVATION_FORMULAS))
@pytest.mark.parametrize("dtype_d", ["f32", "f16", "bf16"])
def test_epilogues_stay_under_the_bound(name: str, dtype_d: str) -> None:
    traits = LaunchTraits.of(record(activation=name, dtype_d=dtype_d, bias="row"))
    rng = np.random.default_rng(5)
    product = np.concatenate([rng.standard_normal(20000) * 4, np.linspace(-120, 120, 20000)]).astype(np.float32)[None]
    c, bias = rng.standard_normal((2, *product.shape)).astype(np.float32)
    alpha, beta = np.float32(1.3), np.float32(-0.7)
    x = alpha * product + beta * c + bias
    computed = decode(encode(activate(name, x), dtype_d), dtype_d)
    expected = apply_epilogue(
        traits, *(v[None].astype(np.float64) for v in (product, 0 * product)), 1.3, -0.7, c[None], bias[None]
    )
    found = compare("", computed[None], expected, "")
    assert 0.05 < found.max_bound_ratio <= 1.0
    wrong = decode(encode(activate(name, x + np.float32(0.05) * np.abs(x)), dtype_d), dtype_d)
    assert not compare("", wrong[None], expected, "").passed


@pytest.mark.parametrize("name", sorted(ACTIVATION_FORMULAS))
def test_activation_slopes_are_bounded(name: str) -> None:
    x = np.linspace(-12, 12, 200001)
    slope = np.abs(np.diff(ACTIVATION_FORMULAS[name].function(x)) / np.diff(x)).max()
    assert slope <= ACTIVATION_FORMULAS[name].steepest + 1e-9 and slope > ACTIVATION_FORMULAS[name].steepest - 0.01


def test_overflow_of_d_is_allowed_but_nan_is_not() -> None:
    wide = np.full((1, 1, 2), 7e4)
    expected = apply_epilogue(F32, wide, 0 * wide, 1.0, 0.0, None, None)
    assert compare("", np.array([[[np.inf, 65504.0]]]), expected, "").passed
    assert not compare("", np.array([[[np.nan, 65504.0]]]), expected, "").passed
    small = apply_epilogue(F32, 0 * wide, 0 * wide, 1.0, 0.0, None, None)
    for bad in (np.nan, np.inf, 1e-3):
        assert not compare("", np.array([[[bad, 0.0]]]), small, "").passed


def test_reference_of_some_rows_equals_the_whole() -> None:
    given = operands(2, 9, 5, 40)
    given = replace(given, c=np.ones((1, 9, 5)), bias=np.arange(9.0).reshape(1, 9, 1), beta=0.5)
    traits, rows = LaunchTraits.of(record(bias="column")), np.array([0, 3, 8])
    whole, some = reference(traits, given), reference(traits, given, rows)
    assert np.allclose(whole.values[:, rows], some.values, rtol=1e-14) and np.allclose(whole.bound[:, rows], some.bound)


def test_conversions_to_bits_round_trip() -> None:
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.5, 0.0, 65280.0])
    assert decode(encode(values, "bf16"), "bf16").tolist() == [1.0, 1.0, 1 + 2.0**-6, -3.5, 0.0, 65280.0]
    every = np.arange(2**16, dtype="<u2")
    finite = np.isfinite(decode(every, "bf16"))
    assert np.array_equal(encode(decode(every[finite], "bf16"), "bf16"), every[finite])
    for name, dtype in DTYPES.items():
        grid = decode(encode(1 + np.linspace(0, 1, 5000), name), name)
        assert (
            np.max(np.abs(grid - 1 - np.linspace(0, 1, 5000)) / (1 + np.linspace(0, 1, 5000)))
            <= dtype.roundoff * 1.0001
        )
        assert decode(encode(np.array([dtype.largest]), name), name)[0] == dtype.largest
