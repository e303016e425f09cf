"""On a GPU: the C++ operator of torch in eager mode, graphs and compiled models, on streams, devices and threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from test_gpu import close, make_library, right, whole  # noqa: E402

import hgemm.torch as hgemm_torch  # noqa: E402
import hgemm.torch.operator as operator  # noqa: E402

pytestmark = pytest.mark.gpu
SPLIT = (16, 64, 16384)
"""m, n and k of a product for which kernels that split k are chosen."""


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory):
    opened = hgemm_torch.use(make_library(tmp_path_factory))
    assert operator._native is not None, "the operator is not in C++"
    return opened


def operands(m: int, n: int, k: int, dtype: str = "float16"):
    return whole(torch, m, k, dtype=dtype), whole(torch, n, k, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layouts_and_batches_are_right_and_repeatable(dtype: str) -> None:
    for m, n, k in ((64, 128, 96), (1, 64, 64), (200, 512, 256), SPLIT):
        x, w = operands(m, n, k, dtype)
        a_column, b_row = x.t().contiguous().t(), w.t().contiguous()
        for _ in range(2):
            for a, b in ((x, w.t()), (x, b_row), (a_column, w.t()) if m % 8 == 0 else (x, w.t())):
                assert right(torch.ops.hgemm.matmul(a, b), x, w.t())
            assert right(hgemm_torch.linear(x, w), x, w.t())
        assert right(hgemm_torch.linear(x.expand(3, m, k), w)[1], x, w.t())
    a, b = whole(torch, 3, 40, 64), whole(torch, 3, 64, 48)
    assert right(hgemm_torch.matmul(a, b), a, b)


def test_split_products_are_repeatable_and_use_the_workspace_of_the_stream() -> None:
    x, w = (torch.randn(rows, SPLIT[2], device="cuda", dtype=torch.float16) for rows in SPLIT[:2])
    first, found = hgemm_torch.linear(x, w), []
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 4]):
            found.append(hgemm_torch.linear(x, w))
    torch.cuda.synchronize()
    assert all(torch.equal(one, first) for one in found)


@pytest.mark.parametrize("shape", [(512, 256, 512), SPLIT])
def test_batch_invariant_rows_have_the_same_bits_for_every_m(shape: tuple[int, int, int]) -> None:
    _, n, k = shape
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (700, n))
    with torch.no_grad():
        whole_batch = hgemm_torch.linear(x, w, batch_invariant=True)
        for m in (1, 2, 3, 16, 17, 64, 300, 699):
            rows = torch.randperm(len(x), device="cuda")[:m]
            assert torch.equal(hgemm_torch.linear(x[rows], w, batch_invariant=True), whole_batch[rows])
        one, graph = x[5:6].clone(), torch.cuda.CUDAGraph()
        hgemm_torch.linear(one, w, batch_invariant=True)
        with torch.cuda.graph(graph):
            captured = hgemm_torch.linear(one, w, batch_invariant=True)
        graph.replay()
        assert torch.equal(captured[0], whole_batch[5])


def test_launches_use_the_current_stream_of_torch() -> None:
    x, w = operands(2048, 2048, 2048)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.mul_(2)  # ordered before the product only on this stream
        out = hgemm_torch.linear(x, w)
    stream.synchronize()
    assert right(out, x, w.t())


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("shape", [(64, 512, 256), SPLIT, (24, 64, 16384)])
def test_cuda_graphs_replay_products(shape: tuple[int, int, int], warm: bool) -> None:
    """A graph may also capture the first call of a geometry. Eager calls do not disturb its workspace."""
    m, n, k = shape if warm else (shape[0] + 8, *shape[1:])
    x, w = operands(m, n, k)
    if warm:
        hgemm_torch.linear(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = hgemm_torch.linear(x, w)
        again = hgemm_torch.linear(x, w)
    for _ in range(3):
        x.copy_(whole(torch, m, k))
        graph.replay()
        eager = hgemm_torch.linear(x, w)
        torch.cuda.synchronize()
        assert right(out, x, w.t()) and torch.equal(again, out) and torch.equal(eager, out)


def test_compiled_code_calls_the_operator() -> None:
    layer = torch.nn.Linear(256, 512, bias=False, device="cuda", dtype=torch.float16)
    model = torch.nn.Sequential(layer, torch.nn.Tanh())
    x = torch.randn(64, 256, device="cuda", dtype=torch.float16)
    expected = model(x)
    with hgemm_torch.patch(model) as patch, torch.no_grad():
        assert len(patch.replaced) == 1, str(patch)
        assert close(torch.compile(model, fullgraph=True)(x), expected)
        overhead = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            assert close(overhead(x), expected)


def test_a_compiled_model_captures_split_products() -> None:
    layer = torch.nn.Linear(SPLIT[2], SPLIT[1], bias=False, device="cuda", dtype=torch.float16)
    ours = torch.compile(hgemm_torch.Linear.of(layer), mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(SPLIT[0], SPLIT[2], device="cuda", dtype=torch.float16)
            assert close(ours(x), layer(x))


def test_inductor_accepts_external_matmul() -> None:
    import torch._inductor.config as config

    calls = []

    def hgemm_matmul(a, b, out):
        calls.append(a.shape)
        return hgemm_torch.external_matmul(a, b, out)

    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    tuning = {
        "max_autotune_gemm_backends": "ATEN",
        "force_disable_caches": True,
    }  # an earlier choice is not tuned again
    with config.patch(external_matmul=[hgemm_matmul], **tuning):
        found = torch.compile(lambda a, b: a @ b, mode="max-autotune-no-cudagraphs")(a, b)
    assert calls and close(found, a.double() @ b.double())


def test_autocast_and_inference_mode_are_supported() -> None:
    x, w = torch.randn(64, 256, device="cuda"), torch.randn(512, 256, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        found = hgemm_torch.linear(x, w)
    assert found.dtype == torch.bfloat16 and close(found / 8, (x.bfloat16().double() @ w.bfloat16().double().t()) / 8)
    with torch.inference_mode():
        x, w = operands(64, 512, 256)
        assert right(hgemm_torch.linear(x, w), x, w.t())


def test_threads_and_devices_are_supported() -> None:
    wrong = []

    def work(seed: int) -> None:
        device = seed % torch.cuda.device_count()
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream(device)):
            for turn in range(100):
                x = torch.randint(-2, 3, (8 + turn % 5, 128), device=f"cuda:{device}").half()
                w = torch.randint(-2, 3, (64, 128), device=f"cuda:{device}").half()
                if not right(hgemm_torch.linear(x, w), x, w.t()):
                    wrong.append((seed, turn))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not wrong


def test_gradients_of_a_model_match_torch() -> None:
    model = (
        torch.nn.Sequential(torch.nn.Linear(128, 256, bias=False), torch.nn.Linear(256, 64, bias=False)).cuda().half()
    )
    x = torch.randn(32, 128, device="cuda", dtype=torch.float16)
    expected = torch.autograd.grad(model(x).float().square().sum(), [*model.parameters()])
    with hgemm_torch.patch(model):
        found = torch.autograd.grad(model(x).float().square().sum(), [*model.parameters()])
    assert all(map(close, found, expected))


def test_eager_call_costs_no_more_host_time_than_torch() -> None:
    """Both queue a launch. The bound is loose, because other processes share the host."""
    x, w = operands(16, 128, 128)

    def microseconds(call) -> float:
        best = float("inf")
        for _ in range(20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(200):
                call()
            best = min(best, (time.perf_counter() - began) / 200 * 1e6)
        return best

    with torch.no_grad():
        ours, torchs = (
            microseconds(lambda: hgemm_torch.linear(x, w)),
            microseconds(lambda: torch.nn.functional.linear(x, w)),
        )
    assert ours < 1.5 * torchs, f"{ours:.1f} us, torch {torchs:.1f} us"
