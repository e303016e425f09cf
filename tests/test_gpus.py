"""On several GPUs of one machine: products on a GPU that is not the current one, by all interfaces, and tuning on two."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import call_apart, made
from exports import CProblem, loaded, need_compiler

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from test_gpu import make_library  # noqa: E402

import hgemm  # noqa: E402
import hgemm.torch as hgemm_torch  # noqa: E402
from generator.build.pipeline import Settings  # noqa: E402
from generator.build.toolchain import templates_folder  # noqa: E402
from generator.device_check import open_kernel  # noqa: E402
from generator.export.c_library import ExportOptions, export  # noqa: E402
from generator.store.library import Library  # noqa: E402
from hgemm import Problem, ProblemError  # noqa: E402
from hgemm.bench.contenders import query_of  # noqa: E402
from hgemm.bench.work import Work  # noqa: E402
from hgemm.device import open_device  # noqa: E402
from hgemm.library import open_library  # noqa: E402
from hgemm.problem import Kind  # noqa: E402
from hgemm.selection import MEASURED  # noqa: E402
from hgemm.selection_query import Target  # noqa: E402
from hgemm.workspace import _made as workspaces  # noqa: E402

pytestmark = pytest.mark.gpu
SHAPES = ((64, 128, 96), (200, 512, 256), (16, 64, 16384))
"""m, n and k. The last product splits k, and needs a workspace."""
CURRENT_CONTEXT = -1
"""HGEMM_CURRENT_CONTEXT of hgemm.h."""


@pytest.fixture(scope="module", autouse=True)
def two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"this needs two GPUs, and there is {torch.cuda.device_count()}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, two_gpus: None) -> hgemm.Library:
    return hgemm.open(make_library(tmp_path_factory))


@pytest.fixture(scope="module", params=["cpp", "python"])
def operator(request: pytest.FixtureRequest, library: hgemm.Library) -> Iterator[None]:
    hgemm_torch.use(library, cpp=request.param == "cpp")
    yield
    hgemm_torch.use(library)


def whole(*shape: int, device: int):
    """Return small whole numbers on a GPU, of which sums are exact."""
    return torch.randint(-2, 3, shape, device=f"cuda:{device}").half()


def right(found, a, b) -> bool:
    """Return whether the product lies on the GPU of its operands, and each element is exact, rounded once."""
    return found.device == a.device and torch.equal(found, (a.double() @ b.double()).half())


@pytest.mark.parametrize("current", [0, 1])
def test_arrays_may_lie_on_any_gpu(library: hgemm.Library, current: int) -> None:
    """The GPU of the arrays computes, on its current stream, whichever GPU is the current one. Sizes repeat on both GPUs."""
    streams = {device: torch.cuda.Stream(device) for device in (1 - current, current)}
    with ExitStack() as stack:
        for stream in streams.values():  # the last one's GPU becomes the current one
            stack.enter_context(torch.cuda.stream(stream))
        for (m, n, k), device in [(shape, device) for shape in SHAPES for device in (1, 0, 1, 0)]:
            with torch.cuda.device(device):
                torch.cuda._sleep(2_000_000)
            a, w = (
                whole(m, k, device=device),
                whole(n, k, device=device),
            )  # ordered before the product only on this stream
            assert torch.cuda.current_device() == current
            assert right(library.matmul(a, w.t()), a, w.t())
    used = {(device, stream) for device, stream, *_ in workspaces}
    assert {(device, stream.cuda_stream) for device, stream in streams.items()} <= used, "each has its own workspace"


def test_plans_belong_to_one_gpu(library: hgemm.Library) -> None:
    for device in (0, 1):
        plan = library.plan(Problem(64, 128, 96), device=device)
        a, w = whole(64, 96, device=device), whole(128, 96, device=device)
        out = torch.empty(64, 128, device=a.device, dtype=a.dtype)
        repeat = plan.bind(a, w.t(), out)
        with torch.cuda.device(1 - device):
            assert right(plan(a, w.t(), out), a, w.t())
            out.zero_()
            assert right(repeat(), a, w.t())
        other = [one.to(f"cuda:{1 - device}") for one in (a, w.t(), out)]
        with pytest.raises(ProblemError, match=f"lie on device {1 - device}: the plan is for device {device}"):
            plan(*other)


def test_arrays_on_different_gpus_are_rejected(library: hgemm.Library, operator: None) -> None:
    a, w = whole(64, 96, device=0), whole(128, 96, device=1)
    for product in (lambda: library.matmul(a, w.t()), lambda: hgemm_torch.linear(a, w)):
        with pytest.raises(ProblemError, match="on different devices"):
            product()


def test_cupy_arrays_use_the_stream_of_their_gpu(library: hgemm.Library) -> None:
    cupy = pytest.importorskip("cupy")
    for device in (1, 0):
        a, w = whole(64, 96, device=device), whole(128, 96, device=device)
        with cupy.cuda.Device(device):
            x, y = cupy.from_dlpack(a), cupy.from_dlpack(w)
            stream = cupy.cuda.Stream(non_blocking=True)
            stream.use()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device)):
            torch.cuda._sleep(20_000_000)
            a.mul_(2)  # ordered before the product only on this stream
        with cupy.cuda.Device(1 - device):
            out = library.matmul(x, y.T)
        stream.synchronize()
        assert right(torch.as_tensor(out, device=a.device), a, w.t())
        with cupy.cuda.Device(device):
            cupy.cuda.Stream.null.use()


def test_tensor_maps_are_right_on_each_gpu(settings: Settings) -> None:
    if open_device().capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    symbol = made({"arch": "sm_90a", "tile": "128x128x64", "cluster": "2x1"}, settings)[0].record.symbol
    kernel = open_kernel(settings.library, symbol)
    for device in (0, 1, 0, 1):
        a, w = whole(500, 256, device=device), whole(384, 256, device=device)
        out = torch.empty(500, 384, device=a.device, dtype=a.dtype)
        kernel(a, w.t(), out, stream=torch.cuda.current_stream(device))
        assert right(out, a, w.t())


def test_threads_switch_between_gpus(library: hgemm.Library, operator: None) -> None:
    wrong = []

    def work(seed: int) -> None:
        for turn in range(60):
            device, (m, n, k) = (seed + turn) % 2, SHAPES[turn % 3]
            with torch.cuda.device((seed + turn // 2) % 2), torch.no_grad():
                x, w = whole(m, k, device=device), whole(n, k, device=device)
                found = hgemm_torch.linear(x, w) if turn % 4 else library.matmul(x, w.t())
                if not right(found, x, w.t()):
                    wrong.append((seed, turn))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not wrong


# ==== A model on two GPUs =============================================================================================


class Halves(torch.nn.Module):
    """A model whose second half lies on another GPU."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(256, 512), (512, 256)]
        self.halves = torch.nn.ModuleList(
            torch.nn.Sequential(*(torch.nn.Linear(*one, bias=False) for one in widths)).half().to(f"cuda:{device}")
            for device in (0, 1)
        )

    def forward(self, x):
        for half in self.halves:
            x = half(x.to(half[0].weight.device))
        return x


def test_a_patched_model_spans_two_gpus(operator: None) -> None:
    model = Halves()
    with torch.no_grad():
        inputs = [torch.randn(rows, 256, device="cuda:0", dtype=torch.float16) for rows in (1, 64, 64, 200)]
        expected = [model(x) for x in inputs]
        with hgemm_torch.patch(model) as patch:
            assert len(patch.replaced) == 4, str(patch)
            for x, y in zip(inputs, expected, strict=True):
                found = model(x)
                assert found.device == y.device and torch.allclose(found, y, rtol=1e-2, atol=2e-3)


def test_each_gpu_captures_its_half_of_a_patched_model(operator: None) -> None:
    model, graphs = Halves(), []
    x = torch.randn(64, 256, device="cuda:0", dtype=torch.float16)
    with torch.no_grad(), hgemm_torch.patch(model):
        between = torch.empty_like(x, device="cuda:1")
        for half, given in zip(model.halves, (x, between), strict=True):
            with torch.cuda.device(given.device):
                half(given)
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # the default stream is that of one GPU
                    graphs.append((graph, half(given)))
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            for (graph, _), device in zip(graphs, (0, 1), strict=True):
                with torch.cuda.device(device):
                    graph.replay()
                    torch.cuda.synchronize()
                between.copy_(graphs[0][1])
                torch.cuda.synchronize(1)
            assert torch.equal(graphs[1][1], model(x))


# ==== The exported library ============================================================================================


def test_handles_of_an_export_serve_their_gpus_from_threads(library: hgemm.Library, tmp_path: Path) -> None:
    """Handles by ordinal and by the current context. Each thread calls all of them, whichever context is current."""
    need_compiler()
    export(library, tmp_path / "hgemm", ExportOptions(library.symbols, compressed=False))
    c, handles = loaded(tmp_path / "hgemm"), []
    for device in (0, 1):
        for given in (device, CURRENT_CONTEXT):
            handles.append((device, ctypes.c_void_p()))
            with open_device(device).current():
                assert c.hgemm_create(ctypes.byref(handles[-1][1]), given) == 0, c.hgemm_last_message()
    wrong = []

    def work(seed: int) -> None:
        for turn in range(40):
            device, handle = handles[(seed + turn) % len(handles)]
            m, n, k = SHAPES[turn % 3]
            with torch.cuda.device((seed + turn // 2) % 2):
                x, w = whole(m, k, device=device), whole(n, k, device=device)
                y = torch.zeros(m, n, device=x.device, dtype=x.dtype)
                problem = Problem(m, n, k, a=x.data_ptr(), b=w.data_ptr(), d=y.data_ptr(), lda=k, ldb=k, ldd=n)
                stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
                if c.hgemm_run(handle, ctypes.byref(CProblem.of(Kind(), problem, 0)), stream):
                    wrong.append(c.hgemm_last_message())
                elif not right(y, x, w.t()):
                    wrong.append((seed, turn))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for device, handle in handles:
        torch.cuda.synchronize(device)
        c.hgemm_destroy(handle)
    assert not wrong, wrong[:3]


# ==== Tuning ==========================================================================================================


def test_two_gpus_tune_one_library(tmp_path: Path) -> None:
    settings = Settings(Library(tmp_path / "library"), templates_folder())
    arch = "sm_{}{}".format(*open_device().capability)
    outcomes = made({"arch": arch, "tile": "64x64x32,128x64x32,128x128x32"}, settings, processes=3)
    assert not any(outcome.error for outcome in outcomes)
    options = "--seconds 0.05 --warm-up 0.1 --no-generate --seed 1 --gpus 2 --json".split()
    sizes = [(64, 256, 512), (256, 256, 512), (512, 512, 256), (1024, 512, 128)]
    shapes = ",".join("x".join(map(str, size)) for size in sizes)
    done = call_apart("hgemm", "tune", "--library", settings.library.folder, "--shapes", shapes, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(done.stdout)
    tuned = [{tuple(one["work"][name] for name in "mnk") for one in part["results"]} for part in parts]
    assert [len(part) for part in tuned] == [2, 2] and tuned[0] | tuned[1] == {*sizes}
    assert all(one["ours"] and not one["refused"] for part in parts for one in part["results"])
    assert "gpu 0: " in done.stderr and "gpu 1: " in done.stderr
    assert len({part["session"] for part in parts}) == 2
    opened, target = open_library(settings.library.folder), Target.of(open_device())
    assert {opened.select(query_of(Work(*size)), target).rule for size in sizes} == {MEASURED}
