"""hgemm.open and Library.matmul on a driver that computes on the CPU: arrays, checks, plans and examples."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from computing_driver import ComputingDriver, Cuda, placed
from conftest import ROOT
from fake_driver import SUCCESS, installed, unpack
from gpu_arrays import Dlpack, Interface
from records import make_record
from test_gpu import make_library

import hgemm
import hgemm.device
from generator.store.library import Library as Store
from generator.store.library import Library as StoredLibrary
from hgemm import Kind, Library, Problem, ProblemError
from hgemm.arrays import ARRAY_ADAPTERS, stream_handle, view
from hgemm.errors import DeviceError, LibraryError, RequestError, UnsupportedError
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS, counter_bytes
from hgemm.problem import PROBLEM_BYTES
from hgemm.products import MAX_LAUNCHERS
from hgemm.selection_query import SelectionQuery, Target


@pytest.fixture(scope="module")
def opened(paper_library: Store) -> Library:
    """Planned records of the catalog and more. Each test has its own driver, which has not loaded any of them.

    Without the kernels that read fragments from global memory: they would take the small problems that split k here.
    """
    found = hgemm.open(paper_library.folder)
    found.records = {name: one for name, one in found.records.items() if one.data["spec"]["copy"] != "ldg"}
    return found


@pytest.fixture
def library(opened: Library) -> Library:
    fresh = hgemm.open(opened.folder)
    fresh.records = opened.records
    fresh.table = opened.table
    return fresh


@pytest.fixture
def driver(opened: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputingDriver]:
    fake = ComputingDriver(opened)
    with installed(fake, monkeypatch):
        yield fake


def numbers(*shape: int, dtype: str = "f2") -> np.ndarray:
    """Return small whole numbers, of which sums are exact."""
    return placed(np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype))


def column_major(array: np.ndarray) -> np.ndarray:
    return placed(array.swapaxes(-1, -2).copy()).swapaxes(-1, -2)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


# ---- What is computed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 96), (33, 47, 21), (1, 64, 64), (64, 1, 64), (5, 7, 1)])
def test_the_layout_is_read_from_the_strides(
    library: Library, driver: ComputingDriver, layout: str, m: int, n: int, k: int
) -> None:
    a, b, out = numbers(m, k), numbers(k, n), numbers(m, n)
    a_stored = a if layout[0] == "t" else column_major(a)
    b_stored = b if layout[1] == "t" else column_major(b)
    given = Cuda(out)
    assert library.matmul(Cuda(a_stored), Cuda(b_stored), given) is given
    assert (out == product(a, b)).all()
    if min(m, n, k) > 1:
        assert f"_{layout}_" in driver.symbols[0]


def test_alpha_beta_and_c_are_applied(library: Library, driver: ComputingDriver) -> None:
    a, w, c, out = numbers(40, 64), numbers(48, 64), numbers(40, 48), numbers(40, 48)
    library.matmul(Cuda(a), Cuda(w.T), Cuda(out), alpha=0.5, beta=2, c=Cuda(c))
    expected = 0.5 * product(a, w.T) + 2 * c
    assert (out == expected).all()
    for _ in range(2):  # C is D itself
        library.matmul(Cuda(a), Cuda(w.T), Cuda(out), beta=1, c=Cuda(out))
        expected = expected + product(a, w.T)
        assert (out == expected).all()


@pytest.mark.parametrize(("bias", "activation"), [("row", "gelu"), ("column", "relu")])
def test_bias_and_activation_select_their_kernels(
    library: Library, driver: ComputingDriver, bias: str, activation: str
) -> None:
    a, w, out = numbers(40, 64), numbers(48, 64), numbers(40, 48)
    given = numbers(48 if bias == "row" else 40)
    library.matmul(Cuda(a), Cuda(w.T), Cuda(out), bias=Cuda(given), activation=activation)
    chosen = driver.traits[driver.symbols[0]]
    assert (chosen.bias, chosen.activation) == (bias, activation)
    x = product(a, w.T) + (given if bias == "row" else given[:, None])
    assert activation == "gelu" or (out == np.maximum(x, 0)).all()


@pytest.mark.parametrize("n", [40, 48])
def test_a_bias_of_one_column_has_a_value_for_each_row(library: Library, driver: ComputingDriver, n: int) -> None:
    """As NumPy and torch broadcast it, also to a square D."""
    a, w, out, bias = numbers(40, 64), numbers(n, 64), numbers(40, n), numbers(40, 1)
    library.matmul(Cuda(a), Cuda(w.T), Cuda(out), bias=Cuda(bias), activation="relu")
    assert (out == np.maximum(product(a, w.T) + bias, 0)).all()
    assert driver.traits[driver.symbols[0]].bias == "column"


def test_batches_with_one_b_fold_into_rows(library: Library, driver: ComputingDriver) -> None:
    a, b, w = numbers(3, 40, 64), numbers(3, 64, 48), numbers(48, 64)
    out = numbers(3, 40, 48)
    library.matmul(Cuda(a), Cuda(b), Cuda(out))
    assert (out == product(a, b)).all()
    fresh = Library(library.folder)
    for rows in (a, placed(a.reshape(120, 64))):
        out = placed(np.zeros((*rows.shape[:-1], 48), "f2"))
        fresh.matmul(Cuda(rows), Cuda(w.T), Cuda(out))
        assert (out == product(rows, w.T)).all()
    assert driver.launches[1] == driver.launches[2] != driver.launches[0]
    repeated = np.lib.stride_tricks.as_strided(w.T, (3, 64, 48), (0, *w.T.strides))
    for b in (repeated, w.T[None]):
        out = placed(np.zeros((3, 40, 48), "f2"))
        library.matmul(Cuda(a), Cuda(b), Cuda(out))
        assert (out == product(a, w.T)).all() and driver.launches[-1] == driver.launches[1]


def test_unaligned_addresses_select_an_unaligned_kernel(library: Library, driver: ComputingDriver) -> None:
    wide, w = numbers(40, 72), numbers(48, 64)
    for first in (0, 1, 0, 2):  # the same shapes and strides each time
        a, out = wide[:, first : first + 64], numbers(40, 48)
        library.matmul(Cuda(a), Cuda(w.T), Cuda(out))
        assert (out == product(a, w.T)).all()
    chosen = driver.symbols
    assert chosen[0] == chosen[2] and len({*chosen}) >= 2
    assert [driver.traits[symbol].align_a <= align for symbol, align in zip(chosen, (8, 1, 8, 2))] == [True] * 4


def test_product_with_k_of_0_is_the_epilogue_alone(library: Library, driver: ComputingDriver) -> None:
    c, out = numbers(40, 48), numbers(40, 48)
    empty_a, empty_b, seen = np.zeros((40, 0), "f2"), np.zeros((0, 48), "f2"), []

    def launch(config, function, parameters, extra):
        packed = ctypes.string_at(ctypes.c_void_p.from_address(parameters).value, PROBLEM_BYTES)
        seen.append((unpack(packed), driver.traits[function].tile_k))
        return (SUCCESS,)

    driver.cuLaunchKernelEx = launch
    library.matmul(Cuda(empty_a), Cuda(empty_b), Cuda(out), beta=1, c=Cuda(c))
    ((problem, tile_k),) = seen
    assert problem.k == -tile_k and problem.m == 40 and problem.c == c.ctypes.data


@pytest.mark.parametrize(("m", "n"), [(0, 8), (8, 0)])
def test_empty_products_launch_nothing(library: Library, driver: ComputingDriver, m: int, n: int) -> None:
    out = Cuda(np.zeros((m, n), "f2"))
    assert library.matmul(Cuda(np.zeros((m, 16), "f2")), Cuda(np.zeros((16, n), "f2")), out) is out
    assert not driver.launches


def test_tensor_maps_follow_the_addresses(library: Library, driver: ComputingDriver) -> None:
    """Two alternating buffers: each call has its own buffer's maps, and each map is encoded once."""
    w = numbers(256, 64)
    pairs = [(numbers(256, 64), placed(np.zeros((256, 256), "f2"))) for _ in range(2)]
    plan = library.plan(Problem(256, 256, 64))
    assert plan.kernel.traits.tensor_maps, plan
    for a, out in pairs * 2:
        plan(Cuda(a), Cuda(w.T), Cuda(out))
        assert (out == product(a, w.T)).all()
        mapped = driver.mapped()
        addresses = {"a": a, "b": w, "d": out}
        for rule in plan.kernel.traits.tensor_maps:
            assert mapped[rule.operand] == addresses[rule.operand].ctypes.data
    assert driver.encoded <= 5


# ---- Workspaces and streams -----------------------------------------------------------------------------------------


COUNTERS = WORKSPACE_COUNTERS * COUNTER_BYTES
"""The first part of every workspace."""


def splits_k(driver: ComputingDriver) -> bool:
    """Return whether the last launch took a workspace."""
    return driver.traits[driver.symbols[-1]].partial_bytes > 0


def test_kernels_that_split_k_use_the_workspace_of_the_stream(
    opened: Library, library: Library, driver: ComputingDriver
) -> None:
    a, w, allocations = numbers(16, 8192), numbers(64, 8192), []
    run, workspaces = driver.cuMemAlloc, []
    driver.cuMemAlloc = lambda size: allocations.append(size) or run(size)
    simulate = driver.kernel_of
    driver.kernel_of = lambda problem: workspaces.append(problem.workspace) or simulate(problem)
    for stream in (7, 7, 8):
        found = library.matmul(Cuda(a), Cuda(w.T), Cuda(placed(np.zeros((16, 64), "f2"))), stream=stream)
        assert splits_k(driver) and (found.array == product(a, w.T)).all()
    assert workspaces[0] == workspaces[1] != workspaces[2]
    assert allocations == [library.workspace_bytes] * 2
    assert driver.zeroed == [COUNTERS] * 2, "the counters, once per workspace"
    driver.captured.add(7)  # a graph does not share the workspace of eager launches
    for _ in range(2):
        library.matmul(Cuda(a), Cuda(w.T), Cuda(placed(np.zeros((16, 64), "f2"))), stream=7)
    assert workspaces[3] == workspaces[4] not in workspaces[:3]

    without = hgemm.open(opened.folder, workspace_bytes=0)
    without.records, without.table = opened.records, opened.table
    without.matmul(Cuda(placed(a)), Cuda(w.T), Cuda(placed(np.zeros((16, 64), "f2"))))
    assert not workspaces[-1] and len(allocations) == 3
    with pytest.raises(ProblemError, match="workspace_bytes is -1: use 0 for none"):
        hgemm.open(opened.folder, workspace_bytes=-1)


def test_shared_workspaces_keep_their_counters_at_zero(library: Library, driver: ComputingDriver) -> None:
    blocks = []
    simulate = driver.kernel_of

    def check(problem):
        traits = driver.traits[driver.symbols[-1]]
        counters = counter_bytes(traits, problem.m, problem.n, problem.batch, problem.options)
        assert counters and not any(ctypes.string_at(problem.workspace, counters))
        partials = problem.workspace + COUNTERS
        ctypes.memset(partials, 0xFF, traits.partial_bytes)
        blocks.append(partials)
        simulate(problem)

    driver.kernel_of = check
    for m, n in ((16, 64), (14, 64), (15, 64), (16, 64)):
        a, w = numbers(m, 8192), numbers(n, 8192)
        library.matmul(Cuda(a), Cuda(w.T), Cuda(placed(np.zeros((m, n), "f2"))))
    assert len(blocks) > 1 and len({*blocks}) == 1


def test_out_of_memory_for_a_workspace_gives_an_error(library: Library, driver: ComputingDriver) -> None:
    def refuse(size):
        raise MemoryError("out of memory")

    driver.cuMemAlloc = refuse
    a, w = numbers(16, 8192), numbers(64, 8192)
    with pytest.raises(DeviceError, match="cannot allocate a workspace of [0-9]+ B on device 0: out of memory"):
        library.matmul(Cuda(a), Cuda(w.T), Cuda(placed(np.zeros((16, 64), "f2"))))


def test_a_workspace_of_the_caller_is_zeroed_before_each_launch(library: Library, driver: ComputingDriver) -> None:
    a, w = numbers(16, 8192), numbers(64, 8192)
    workspace = placed(np.zeros(1 << 22, np.uint8))
    found = library.matmul(Cuda(a), Cuda(w.T), Cuda(placed(np.zeros((16, 64), "f2"))), workspace=Cuda(workspace))
    assert splits_k(driver) and driver.zeroed == [4], "the counter of the only tile"
    assert (found.array == product(a, w.T)).all()


def test_launches_use_the_given_stream_and_context(library: Library, driver: ComputingDriver) -> None:
    a, w, out = (Cuda(x) for x in (numbers(32, 32), numbers(32, 32).T, numbers(32, 32)))
    for stream in (7, None, 9, 9):
        library.matmul(a, w, out, stream=stream)
    driver.contexts.append("context of device 0")  # as torch leaves it
    library.matmul(a, w, out)
    assert driver.contexts == ["context of device 0"]
    driver.contexts[:] = ["context of device 1"]
    library.matmul(a, w, out)
    assert driver.contexts == ["context of device 1"]
    assert [launch[3] for launch in driver.launches] == [7, 0, 9, 9, 0, 0]


class Torch(Cuda):
    """A stand-in for a tensor: what a call reads of one."""

    __module__ = "torch"
    requires_grad = False
    reads = 0

    @property
    def dtype(self) -> str:
        return f"torch.{self.array.dtype}"

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def get_device(self) -> int:
        return 0

    def detach(self) -> Torch:
        return self

    def new_empty(self, shape: tuple[int, ...], dtype: None = None) -> Torch:
        return Torch(placed(np.zeros(shape, self.array.dtype)))

    def __dlpack__(self, *, stream: int):
        type(self).reads += 1
        return super().__dlpack__(stream=stream)


class FakeCuda:
    """Stands for torch.cuda."""

    current = 0

    @classmethod
    @contextmanager
    def device(cls, ordinal: int) -> Iterator[None]:
        before, cls.current = cls.current, ordinal
        yield
        cls.current = before

    @staticmethod
    def device_count() -> int:
        return 2


class FakeTorch:
    cuda = FakeCuda
    _C = type("_C", (), {"_cuda_getCurrentRawStream": staticmethod(lambda device: 40 + device)})
    recording = True

    @classmethod
    def is_grad_enabled(cls) -> bool:
        return cls.recording


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeTorch]]:
    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    monkeypatch.setattr(Torch, "reads", 0)
    yield FakeTorch
    ARRAY_ADAPTERS.pop(Torch, None)


def test_tensors_are_read_without_dlpack_after_the_first_call(
    library: Library, driver: ComputingDriver, torch: type[FakeTorch]
) -> None:
    a, w = numbers(32, 64), numbers(48, 64)
    for _ in range(5):
        found = library.matmul(Torch(a), Torch(w.T))
        assert isinstance(found, Torch) and (found.array == product(a, w.T)).all()
    assert Torch.reads == 3
    assert {launch[3] for launch in driver.launches} == {40}  # torch's current stream
    library.matmul(Torch(a), Torch(w.T), found, stream=0)
    assert driver.launches[-1][3] == 0
    batched = library.matmul(Torch(placed(np.stack([a, a]))), Torch(w.T))
    assert batched.shape == (2, 32, 48)
    with pytest.raises(ProblemError, match=r"A is .64,. and B .64, 48.: .* 2 axes, or 3 with a batch"):
        library.matmul(Torch(a[0]), Torch(w.T))


def test_streams_are_the_current_ones_of_the_device_of_the_arrays(
    torch: type[FakeTorch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device has a current stream. That of the current device may be another one."""
    cuda = SimpleNamespace(get_current_stream=lambda device=0: SimpleNamespace(ptr=50 + device))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    cupy = type("Cupy", (), {"__module__": "cupy"})
    of_device_1 = (0, (8, 8), None, "", 1)
    assert [ARRAY_ADAPTERS[kind].stream(of_device_1) for kind in (Torch, cupy)] == [41, 51]


def test_tensors_of_any_gpu_are_exported(torch: type[FakeTorch]) -> None:
    """torch exports tensors of its current GPU only."""

    class OfGpu1(Torch):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, *, stream: int):
            if FakeCuda.current != 1:
                raise BufferError("Can't export tensors on a different CUDA device index")
            return super().__dlpack__(stream=stream)

    assert view(OfGpu1(placed(A)), "A").device == 1 and FakeCuda.current == 0


def test_matmul_rejects_tensors_that_would_lose_gradients(
    library: Library, driver: ComputingDriver, torch: type[FakeTorch], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, w = Torch(numbers(32, 64)), Torch(numbers(48, 64).T)
    w.requires_grad = True
    with pytest.raises(ProblemError, match="requires gradients.* use hgemm.torch"):
        library.matmul(a, w)
    monkeypatch.setattr(FakeTorch, "recording", False)
    library.matmul(a, w)
    assert len(driver.launches) == 1


# ---- Plans and remembering ------------------------------------------------------------------------------------------


def test_plan_selects_and_loads_its_kernel_at_once(library: Library, driver: ComputingDriver) -> None:
    plan = library.plan(Problem(40, 48, 64), Kind("tt"))
    assert len(driver.images) == 1 and "Plan(40x48x64" in repr(plan) and "_tt_" in repr(plan)
    a, b, out = numbers(40, 64), numbers(64, 48), numbers(40, 48)
    given = Cuda(out)
    assert plan(Cuda(a), Cuda(b), given, stream=3) is given and (out == product(a, b)).all()
    library.matmul(Cuda(a), Cuda(b), given)
    assert {*driver.symbols} == {plan.kernel.traits.symbol} and len(driver.images) == 1


def test_bound_plan_repeats_its_arrays(library: Library, driver: ComputingDriver) -> None:
    plan = library.plan(Problem(40, 48, 64), Kind("tt"))
    a, b, out = numbers(40, 64), numbers(64, 48), placed(np.zeros((40, 48), np.float16))
    given = Cuda(out)
    again = plan.bind(Cuda(a), Cuda(b), given)
    assert not driver.launches
    for factor in (1, 2):
        a[...] *= factor
        assert again(stream=3) is given and (out == product(a, b)).all()
    assert len(plan._launchers) == 1
    plan(Cuda(a), Cuda(b), given)
    assert len(plan._launchers) == 1
    with pytest.raises(ProblemError, match="m is 39, not 40"):
        plan.bind(Cuda(a[:39]), Cuda(b), Cuda(out[:39]))


def test_plan_rejects_arrays_of_other_sizes(library: Library, driver: ComputingDriver) -> None:
    plan = library.plan(Problem(40, 48, 64))
    a, w, out = numbers(41, 64), numbers(48, 64), numbers(41, 48)
    with pytest.raises(ProblemError, match="the arrays do not fit MatmulPlan.40x48x64.*: m is 41, not 40"):
        plan(Cuda(a), Cuda(w.T), Cuda(out))
    with pytest.raises(ProblemError, match="as layout tn requires"):
        plan(Cuda(a[:40]), Cuda(numbers(64, 48)), Cuda(out[:40]))
    misplaced = placed(a[:40], offset_elements=1)
    with pytest.raises(ProblemError, match="A begins at an address that is not a multiple of [0-9]+ B"):
        plan(Cuda(misplaced), Cuda(w.T), Cuda(out[:40]))
    assert not driver.launches


def test_plan_may_require_a_workspace(library: Library, driver: ComputingDriver) -> None:
    plan = library.plan(Problem(16, 64, 8192), workspace_bytes=1 << 24)
    assert 0 < plan.workspace_bytes <= 1 << 24
    a, w, out = Cuda(numbers(16, 8192)), Cuda(numbers(64, 8192).T), Cuda(numbers(16, 64))
    automatic = library.plan(Problem(16, 64, 8192))
    assert automatic.workspace_bytes == plan.workspace_bytes
    assert not library.plan(Problem(16, 64, 8192), workspace_bytes=0).workspace_bytes
    with pytest.raises(ProblemError, match=f"workspace is missing: {plan.workspace_bytes} B"):
        plan(a, w, out)
    workspaces = [Cuda(placed(np.zeros(plan.workspace_bytes, np.uint8))) for _ in range(2)]
    for workspace in (*workspaces, workspaces[0]):
        plan(a, w, out, workspace=workspace)
    with pytest.raises(ProblemError, match="workspace has"):
        plan(a, w, out, workspace=Cuda(placed(np.zeros(plan.workspace_bytes - 16, np.uint8))))
    out.array[...] = 0
    automatic.bind(a, w, out)()
    assert splits_k(driver) and (out.array == product(a.array, w.array)).all()


def test_overlapping_arrays_are_rejected_at_every_call(library: Library, driver: ComputingDriver) -> None:
    plan = library.plan(Problem(64, 64, 64))
    block = placed(np.zeros((256, 64), "f2"))
    w = Cuda(numbers(64, 64).T)
    for first in (64, 128, 192):
        plan(Cuda(block[:64]), w, Cuda(block[first : first + 64]))
    for first in (8, 56):
        with pytest.raises(ProblemError, match="D overlaps A"):
            plan(Cuda(block[:64]), w, Cuda(block[first : first + 64]))
    c = Cuda(block[64:128])
    library.matmul(Cuda(block[:64]), w, Cuda(block[128:192]), beta=1, c=c)
    with pytest.raises(ProblemError, match="D overlaps C"):
        library.matmul(Cuda(block[:64]), w, Cuda(block[72:136]), beta=1, c=c)
    assert len(driver.launches) == 4


def test_cache_size_is_limited(library: Library, driver: ComputingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgemm.products.MAX_LAUNCHERS", 8)
    assert MAX_LAUNCHERS > 8
    w = Cuda(numbers(16, 16).T)
    for m in range(1, 30):
        library.matmul(Cuda(numbers(m, 16)), w, Cuda(numbers(m, 16)))
    assert len(library._launch_cache._launchers) <= 8 and len(driver.launches) == 29


def test_threads_share_a_library_and_a_plan(library: Library, driver: ComputingDriver) -> None:
    """Each thread has arrays of its own; the fake context is a list, which all of them find current."""
    driver.contexts.append("context of device 0")
    lock, compute, wrong = threading.Lock(), driver.cuLaunchKernelEx, []

    def launch(config, function, parameters, extra):
        with lock:
            return compute(config, function, parameters, extra)

    driver.cuLaunchKernelEx = launch
    plan = library.plan(Problem(24, 32, 40))

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for turn in range(20):
            a, w = (placed(rng.integers(-2, 3, shape).astype("f2")) for shape in ((24, 40), (32, 40)))
            out = placed(np.zeros((24, 32), "f2"))
            call = plan if turn % 2 else library.matmul
            call(Cuda(a), Cuda(w.T), Cuda(out), stream=seed + 1)
            if not (out == product(a, w.T)).all():
                wrong.append((seed, turn))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not wrong and len(driver.launches) == 120
    assert {launch[3] for launch in driver.launches} == {*range(1, 7)}


# ---- Bad input ------------------------------------------------------------------------------------------------------

A, W, OUT = np.zeros((40, 64), "f2"), np.zeros((48, 64), "f2"), np.zeros((40, 48), "f2")


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((A, W, OUT), {}, r"A is \(40, 64\) and B \(48, 64\), .* 64 and 48 here: pass the transpose of B"),
        ((A, W.T.astype("f4"), OUT), {}, "A is f16 and B f32: convert one"),
        ((A, W.T, OUT[:, :40]), {}, r"D is \(40, 40\), not \(40, 48\), for A \(40, 64\) and B \(64, 48\)"),
        ((A, W.T, OUT), {"activation": "tanh"}, "activation 'tanh' is unknown: use none, relu, "),
        ((A.astype("f8"), W.T, OUT), {}, "A is f64: use f16 or bf16, or f32 with precision='tf32'"),
        ((A[0], W.T, OUT), {}, "A has 1 axes"),
        (
            (A, np.zeros((128, 96), "f2").T[::2, ::2], OUT),
            {},
            "no contiguous axis .*: copy it",
        ),
        ((A, W.T, OUT.T.copy().T), {}, "D .* is not contiguous along n"),
        ((A, W.T, OUT), {"beta": 1.0}, "beta is 1.0, but there is no C: pass c, which may be out itself"),
        ((A, W.T, OUT), {"alpha": 1e39}, "alpha 1e[+]39 overflows f32"),
        ((A, W.T, OUT), {"bias": np.zeros(7, "f2")}, r"bias is \(7,\), not \(48,\)"),
        ((A, W.T, OUT), {"bias": np.zeros((39, 1), "f2")}, r"bias is \(39, 1\), not \(48,\)"),
        ((A, W.T, OUT), {"bias": np.zeros((40, 2), "f2")[:, :1]}, r"bias is not contiguous"),
        ((A, W.T, OUT), {"bias": np.zeros((3, 48), "f2")}, r": bias is \(3, 48\), not \(48,\), for A"),
        ((A.astype("u2"), W.T, OUT), {}, "A is u16: use .* ml_dtypes.bfloat16"),
        ((A, W.T, OUT), {"stream": "fast"}, "stream is a str"),
        ((A, W.T, None), {}, "out is missing.* Cuda .*: pass out"),
    ],
)
def test_mismatched_operands_give_an_error(
    library: Library, driver: ComputingDriver, arrays: tuple, options: dict, message: str
) -> None:
    given = [None if array is None else Cuda(array) for array in arrays]
    options = {name: Cuda(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    with pytest.raises(ProblemError, match=message):
        library.matmul(*given, **options)
    assert not driver.launches


def test_unsupported_products_give_an_error(library: Library, driver: ComputingDriver) -> None:
    with pytest.raises(UnsupportedError, match="no kernel computes tn f16->f16 acc f32 silu on sm_90: `hgemm cover --"):
        library.matmul(Cuda(placed(A)), Cuda(placed(W).T), Cuda(placed(OUT)), activation="silu")


def test_arrays_on_other_devices_give_an_error(library: Library, driver: ComputingDriver) -> None:
    with pytest.raises(ProblemError, match="(an operand|A) is in the CPU's memory"):
        library.matmul(A, Cuda(W.T), Cuda(OUT))
    with pytest.raises(ProblemError, match="is a list: .* DLPack"):
        library.matmul([[1.0]], Cuda(W.T), Cuda(OUT))


# ==== Opening a library ===============================================================================================

NAMES = """
import hgemm
assert not any(name.startswith("hgemm.") and name != "hgemm.errors" for name in __import__("sys").modules)
print(*(type(getattr(hgemm, name)).__name__ for name in (*hgemm.__all__, "problem", "library")))
"""
SLOW_TO_IMPORT = {"numpy", "cuda", "torch", "sqlite3", "subprocess", "asyncio", "click", "generator"}
LOADED = """
import sys
import hgemm
library = hgemm.open(sys.argv[1])
print(*{name.split(".")[0] for name in sys.modules})
"""


@pytest.fixture
def copied(small_library: StoredLibrary, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_library.folder, tmp_path / "library"))


def test_importing_and_opening_load_no_slow_modules(small_library: StoredLibrary) -> None:
    command = [sys.executable, "-c", LOADED, str(small_library.folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    loaded = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert "hgemm" in loaded
    assert not SLOW_TO_IMPORT & {*loaded}


def test_names_and_modules_are_loaded_lazily() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", NAMES], env=env, capture_output=True, text=True)
    kinds = done.stdout.split()
    assert done.returncode == 0 and len(kinds) == len(hgemm.__all__) + 2, done.stderr
    assert {*kinds} == {"type", "function", "module"} and kinds[-2:] == ["module", "module"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hgemm.nothing


def test_old_names_work_and_name_the_new_ones() -> None:
    with pytest.warns(DeprecationWarning, match="hgemm.MatmulPlan"):
        assert hgemm.Plan is hgemm.MatmulPlan
    with pytest.warns(DeprecationWarning, match="UnsupportedError"):
        assert hgemm.errors.UnfitError is hgemm.errors.UnsupportedError


def test_generated_kernels_are_selected_and_loaded(copied: Path) -> None:
    library = hgemm.open(copied)
    assert len(library.symbols) == 4
    target = Target.typical("sm_80")
    choice = library.select(SelectionQuery(Kind(layout="nt"), 100, 100, 100), target)
    kernel = library.kernel(choice.symbol)
    assert kernel.traits.layout == "nt" and kernel.image.cubin and kernel.image.ptx
    assert library.kernel(choice.symbol) is kernel
    assert library.selector(target) is library.selector(Target.typical("sm_80"))
    with pytest.raises(UnsupportedError, match="no kernel computes tn bf16.*: the library has f16; `hgemm cover"):
        library.select(SelectionQuery(Kind("tn", "bf16", "bf16", "bf16"), 1, 1, 1), target)


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.ptx", "kernel.cu"])
def test_altered_file_is_rejected_before_use(copied: Path, name: str) -> None:
    library = hgemm.open(copied)
    symbol = library.symbols[0]
    path = copied / symbol / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LibraryError, match=f"{name} is not the file that its record describes"):
        library.kernel(symbol)


def test_a_record_of_another_schema_is_rejected(copied: Path) -> None:
    path = copied / hgemm.open(copied).symbols[0] / "record.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(LibraryError, match="schema must be a whole number"):
        hgemm.open(copied).symbols  # noqa: B018


def test_unusable_record_gives_an_error(tmp_path: Path) -> None:
    record, files = make_record("one", schedule="tiles_of_tomorrow", toolchain={"generator": "9", "options": []})
    record["launch"]["grid"]["rule"] = "tiles_of_tomorrow"
    StoredLibrary(tmp_path).publish(record, files)
    with pytest.raises(LibraryError, match="grid rule 'tiles_of_tomorrow' is unknown"):
        hgemm.open(tmp_path).table  # noqa: B018


def test_missing_libraries_and_kernels_give_an_error(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="does not exist"):
        hgemm.open(tmp_path / "absent")
    library = hgemm.open(copied)
    with pytest.raises(LibraryError, match="no kernel absent"):
        library.kernel("absent")
    with pytest.raises(RequestError, match="malformed"):
        library.kernel("../absent")


# ==== Arrays of other libraries =======================================================================================


def test_views_of_dlpack_and_of_the_array_interface_agree() -> None:
    array = np.zeros((3, 10, 24), np.float16)[1:, ::2, 8:]
    for wrapped in (Dlpack(array), Interface(array)):
        found = view(wrapped, "A")
        assert found.pointer == array.ctypes.data and found.shape == (2, 5, 16) and found.dtype == "f16"
        assert found.strides == (240, 48, 1) and found.size_bytes == 2 * 5 * 16 * 2
    assert view(Dlpack(array), "A").device == 0 and view(Interface(array), "A").device is None
    assert view(Dlpack(np.zeros((4, 6), np.float32)), "D").strides == (6, 1)
    assert view(Interface(np.zeros((4, 6), np.float32)), "D").strides == (6, 1)
    assert view(Interface(np.zeros(4, "V2")), "A").dtype == "bf16"
    assert view(Dlpack(np.zeros(4, np.int8)), "A").dtype == "i8"
    for wrapped, reason in (
        (Interface(np.zeros(4, ">f2")), "is big-endian"),
        (Interface(array[:, ::-1]), "negative stride"),
        (Dlpack(array[:, ::-1]), "negative stride"),
    ):
        with pytest.raises(ProblemError, match=f"A .*{reason}"):
            view(wrapped, "A")


def test_views_release_their_array() -> None:
    import sys

    array = np.zeros((4, 4), np.float16)
    before = sys.getrefcount(array)
    for _ in range(10):
        view(Dlpack(array), "A")
    assert sys.getrefcount(array) == before + 0


def test_bf16_is_read_from_dlpack() -> None:
    from hgemm import arrays

    class Bf16(Dlpack):
        def __dlpack__(self, *, stream: int):
            capsule = super().__dlpack__(stream=stream)
            tensor = arrays._Tensor.from_address(arrays._capsule_pointer(capsule, b"dltensor"))
            tensor.dtype.code = 4
            return capsule

    assert view(Bf16(np.zeros((2, 2), np.float16)), "A").dtype == "bf16"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2)), "A is in the CPU's memory, and kernels read a GPU's"),
        ([[1.0]], "A is a list: .* DLPack"),
        (Dlpack(np.zeros(2), kind=10), "DLPack device 10"),
    ],
)
def test_objects_that_are_no_gpu_arrays_are_rejected(array: object, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        view(array, "A")


def test_failed_export_of_an_array_names_the_reason() -> None:
    class Grad(Dlpack):
        def __dlpack__(self, *, stream: int):
            raise BufferError("Can't export tensors that require gradient,\nuse tensor.detach()")

    with pytest.raises(ProblemError, match="A does not export its memory: Can't export .* use tensor.detach"):
        view(Grad(np.zeros(2)), "A")


def test_streams_of_all_array_libraries_are_accepted() -> None:
    class Torch:
        cuda_stream = 11

    class Cupy:
        ptr = 12

    class Core:
        def __cuda_stream__(self):
            return 0, 13

    class Numba:
        handle = ctypes.c_void_p(14)

    assert [stream_handle(one) for one in (None, 7, Torch(), Cupy(), Core(), Numba())] == [0, 7, 11, 12, 13, 14]
    with pytest.raises(ProblemError, match="stream is a str"):
        stream_handle("fast")


# ==== Examples ========================================================================================================

WITH_A_LIBRARY = ("python/multiply.py", "torch/llama_mlp.py", "torch/gpt2.py", "graph/replay.py")
BATCH_INVARIANT = "torch/batch_invariant.py"
EXAMPLES = (*WITH_A_LIBRARY, BATCH_INVARIANT)


def started(example: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / example), *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600)


def loaded(example: str):
    spec = importlib.util.spec_from_file_location(Path(example).stem, ROOT / "examples" / example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", EXAMPLES)
def test_missing_gpu_gives_a_one_line_error(example: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    module = loaded(example)

    def no_gpu(ordinal: int = 0) -> None:
        raise DeviceError("no NVIDIA GPU here: the driver, libcuda.so.1, is not installed")

    monkeypatch.setattr(module, "open_device", no_gpu)
    assert module.main([]) == 77, "the exit status by which test runners skip"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no NVIDIA GPU here: the driver, libcuda.so.1, is not installed\n")


@pytest.mark.parametrize("example", EXAMPLES)
def test_missing_torch_gives_a_one_line_error(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
) -> None:
    module = loaded(example)
    monkeypatch.setattr(module, "open_device", lambda: None)
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert module.main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert not said.out and "torch is not installed: " in said.err and "Traceback" not in said.err
    assert len(said.err.splitlines()) == (2 if "multiply" in example else 1)


def test_missing_library_gives_an_error(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    module = loaded(WITH_A_LIBRARY[0])
    monkeypatch.setattr(module, "open_device", lambda: None)
    assert module.main([str(tmp_path / "absent")]) == 1
    assert "absent does not exist" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("example", WITH_A_LIBRARY)
def test_examples_run(example: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("torch")
    done = started(example, make_library(tmp_path_factory))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.gpu
def test_llama_logits_do_not_depend_on_the_batch() -> None:
    for name in ("torch", "transformers"):
        pytest.importorskip(name)
    done = started(BATCH_INVARIANT, "-", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hgemm: logits differ in 0 of 63 batches; 0 of 8 linear layers" in done.stdout
