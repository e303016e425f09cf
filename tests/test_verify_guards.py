"""The check finds what it is there to find: every seeded fault, and nothing in a kernel that is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import simulated
from fake_driver import FakeDriver
from simulated import record

import hgemm.device
from hgemm import Kernel
from hgemm.cases import Case, Shape, cases_of, default_cases
from hgemm.device import open_device
from hgemm.dtypes import DTYPES, decode
from hgemm.errors import DeviceError, RequestError
from hgemm.launch_traits import LaunchTraits
from hgemm.verify import CANARY, Check, CheckOptions, Operand, OperandLayout, draw, operand_layouts, run, stored, verify

CASE = Case(Shape(33, 49, 21), loose=True)
VARIANTS = {
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


def checked(driver: FakeDriver, document: dict, case: Case, *faults: str, **options) -> Check:
    return verify(kernel_of(driver, document, *faults), case, open_device(), CheckOptions(**options))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_kernel_passes_every_default_case(driver: FakeDriver, name: str) -> None:
    kernel = kernel_of(driver, VARIANTS[name])
    cases = default_cases(kernel.traits, resident_ctas=6)
    assert len(cases) >= 12
    for case in cases:
        found = verify(kernel, case, open_device(), CheckOptions(data=("integer",)))
        assert found.passed, found
    assert not driver.memory and not driver.contexts


@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_kernel_passes_with_normal_data(driver: FakeDriver, name: str) -> None:
    found = checked(driver, VARIANTS[name], CASE, data=("normal",))
    assert found.passed and 0 < found.max_bound_ratio <= 1 and found.max_error < 1, found


FAULTS = [
    ("drops an element of k", "integer: [0-9]+ elements are off, the worst .batch 0, row"),
    ("reads past k", "elements are off.* is nan"),
    ("leaves an element", r"1 elements of D were not written, the first \(batch 0, row 32, column 48\)"),
    ("writes before D", "D: its guard band was written at byte -1"),
    ("writes after D", "D: its guard band was written at byte"),
    ("writes the padding", "D: it was written at byte 98"),
    ("writes to A", "a: it was written at byte 0"),
    ("writes after B", "b: its guard band was written at byte"),
    ("is not repeatable", "a second launch differs in 1 B of D"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_every_fault_is_found_and_named(driver: FakeDriver, fault: str, message: str) -> None:
    found = checked(driver, record(), CASE, fault)
    assert not found.passed
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found.reason)
    assert not driver.memory


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("leaves a counter", "integer: the workspace's counters are not zeros again"),
        ("writes partial sums", ""),
    ],
)
def test_a_workspace_keeps_its_counters_at_zero(driver: FakeDriver, fault: str, message: str) -> None:
    found = checked(driver, VARIANTS["split_k"], CASE, fault)
    assert found.reason == message and found.passed == (not message)


def test_a_batch_that_takes_one_matrix_is_found(driver: FakeDriver) -> None:
    case = Case(Shape(20, 20, 20, 3))
    assert not checked(driver, record(), case, "takes one B").passed
    assert checked(driver, record(), replace(case, broadcast="b"), "takes one B").passed


def test_c_is_not_read_where_beta_is_zero(driver: FakeDriver) -> None:
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


def test_without_guard_bands_the_allocations_end_with_the_last_element(driver: FakeDriver) -> None:
    sizes = []
    allocate = driver.cuMemAlloc
    driver.cuMemAlloc = lambda size: (sizes.append(size), allocate(size))[1]
    assert checked(driver, record(), Case(Shape(3, 5, 7)), guard_bytes=0, data=("integer",)).passed
    assert sorted(sizes) == sorted([2 * (2 * 8 + 7), 2 * (4 * 8 + 7), 2 * (2 * 8 + 5)])


def test_pointers_are_no_more_aligned_than_the_variant_needs(driver: FakeDriver) -> None:
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


def test_default_cases_cover_what_may_go_wrong() -> None:
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
def test_integers_never_leave_what_the_accumulator_holds(acc: str, k: int) -> None:
    traits = LaunchTraits.of(record(acc=acc))
    operands = draw(traits, Case(Shape(8, 8, k)), "integer", np.random.default_rng(0))
    products = np.abs(operands.a) @ np.abs(operands.b)
    assert np.max(products) <= (2**24 if acc == "f32" else 2**11) and np.max(products) >= min(k, 300) / 10


def test_normal_data_does_not_overflow_f16() -> None:
    traits = LaunchTraits.of(record(acc="f16"))
    operands = draw(traits, Case(Shape(4, 4, 300000)), "normal", np.random.default_rng(0))
    assert np.max(np.abs(operands.a) @ np.abs(operands.b)) < 65504


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_operands_are_stored_as_the_layout_says(layout: str) -> None:
    traits = LaunchTraits.of(record(layout=layout))
    operands = draw(traits, CASE, "normal", np.random.default_rng(0))
    numbers = stored(traits, operands)
    for name, place in operand_layouts(traits, CASE).items():
        if name in ("a", "b"):
            assert numbers[name].shape == (1, place.rows, place.columns)
    a = decode(numbers["a"], "f16")
    assert np.array_equal(a if layout[0] == "t" else a.swapaxes(1, 2), operands.a)


def test_the_canary_is_no_number_in_any_type(driver: FakeDriver) -> None:
    words = np.full(4, CANARY, "<u2")
    for name, dtype in DTYPES.items():
        assert np.isnan(decode(words.view(dtype.storage), name)).all()
    operand = Operand(open_device(), OperandLayout(3, 5, 8, 2, 40, "f32", 4))
    operand.fill(np.ones((2, 3, 5), np.float32))
    found, complaint = operand.written(operand.download())
    assert (found == 1).all() and not complaint and not operand.unwritten(found).any()
    assert len(operand.before) % 4 == 0 and operand.front_bytes == 4096 + 16


# ---- One run --------------------------------------------------------------------------------------------------------


def test_a_run_is_timed_and_checked(driver: FakeDriver) -> None:
    found = run(kernel_of(driver, record()), Case(Shape(64, 48, 32), 2.0, 0.5), open_device(), samples=3)
    assert found.time_us == 250.0  # two launches a sample of half a millisecond
    assert found.tflops == pytest.approx(2 * 64 * 48 * 32 / 250e-6 * 1e-12)
    assert found.check.passed and found.checked_rows == 64 and not driver.memory
    assert run(kernel_of(driver, record()), CASE, open_device(), samples=1, checked=False).check is None


def test_a_large_run_is_checked_on_some_rows(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgemm.verify.CHECKED_PRODUCTS", 48 * 32 * 10)
    found = run(kernel_of(driver, record()), Case(Shape(64, 48, 32)), open_device(), samples=1)
    assert found.check.passed and 3 <= found.checked_rows <= 10
    for fault in ("drops an element of k", "leaves an element", "writes after D"):
        assert not run(
            kernel_of(driver, record(), fault), Case(Shape(64, 48, 32)), open_device(), samples=1
        ).check.passed
