"""Library.matmul, plans and the operator of torch on a GPU: real arrays, streams, graphs and threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import hgemm
from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.store.library import Library as Store
from generator.sweep import sweep
from hgemm import Kind, Problem, ProblemError
from hgemm.device import open_device
from hgemm.errors import UnsupportedError

pytestmark = pytest.mark.gpu
TEXTS = (
    {"tile": "64x64x32,128x128x32", "layout": "tn,nn,nt,tt", "dtype": "f16,bf16"},
    {"tile": "64x64x32", "layout": "tn,nn,nt,tt", "align": "1"},
    {"tile": "64x64x32", "layout": "tn", "activation": "relu,gelu,silu"},
    {"tile": "64x64x32", "layout": "tn", "bias": "row,column"},
    {"tile": "64x64x32", "layout": "tn", "schedule": "split_k:8"},
)
_made: list[Path] = []


def make_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that HGEMM_LIBRARY names, or one of small kernels for this GPU, made once."""
    if "HGEMM_LIBRARY" in os.environ:
        return Path(os.environ["HGEMM_LIBRARY"])
    if not _made:
        arch = "sm_{}{}".format(*open_device().capability)
        store = Store(tmp_path_factory.mktemp("device") / "library")
        plans = sweep([{"arch": arch, **texts} for texts in TEXTS]).plans
        outcomes = [outcome for _, outcome in make(plans, Settings(store, templates_folder()), processes=8)]
        assert outcomes and not [outcome.error for outcome in outcomes if outcome.error]
        _made.append(store.folder)
    return _made[0]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> hgemm.Library:
    return hgemm.open(make_library(tmp_path_factory))


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def whole(torch, *shape: int, dtype: str = "float16"):
    """Return small whole numbers, of which sums are exact."""
    return torch.randint(-2, 3, shape, device="cuda").to(getattr(torch, dtype))


def right(found, a, b) -> bool:
    return bool((found.double() == a.double() @ b.double()).all())


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 96), (33, 47, 21), (1, 64, 64), (200, 1, 64), (5, 7, 1)])
def test_tensors_of_any_layout_and_size(library, torch, layout: str, dtype: str, m: int, n: int, k: int) -> None:
    if dtype == "bfloat16" and (n % 8 or k % 8):
        pytest.skip("the library of this test has no unaligned bf16")
    if dtype == "bfloat16" and layout[0] == "n" and m % 8:
        pytest.skip("the library of this test has no unaligned bf16")
    a, b = whole(torch, m, k, dtype=dtype), whole(torch, k, n, dtype=dtype)
    a_stored = a if layout[0] == "t" else a.t().contiguous().t()
    b_stored = b if layout[1] == "t" else b.t().contiguous().t()
    assert right(library.matmul(a_stored, b_stored), a, b)


def test_cupy_and_torch_share_a_product(library, torch) -> None:
    cupy = pytest.importorskip("cupy")
    a, b = cupy.random.randint(-2, 3, (64, 128)).astype("f2"), whole(torch, 96, 128)
    expected = torch.as_tensor(a).double() @ b.t().double()
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = library.matmul(a, b.t())  # a new array of CuPy's, on CuPy's current stream
        stream.synchronize()
    assert isinstance(out, cupy.ndarray) and (torch.as_tensor(out).double() == expected).all()


def test_numba_arrays_multiply(library, torch) -> None:
    cuda = pytest.importorskip("numba.cuda")
    a, b = whole(torch, 64, 64), whole(torch, 64, 64)
    out = library.matmul(cuda.as_cuda_array(a), cuda.as_cuda_array(b))
    torch.cuda.synchronize()
    assert right(torch.as_tensor(out, device="cuda"), a, b)


def test_batches_bias_c_and_activations(library, torch) -> None:
    a, w, bias = whole(torch, 3, 40, 64), whole(torch, 48, 64), whole(torch, 48)
    c = whole(torch, 3, 40, 48)
    x = a.double() @ w.t().double()
    assert right(library.matmul(a, w.t()), a, w.t())
    found = library.matmul(a, w.t(), alpha=0.5, beta=2, c=c)
    assert (found.double() == 0.5 * x + 2 * c.double()).all()
    try:
        assert (library.matmul(a, w.t(), bias=bias).double() == x + bias.double()).all()
        assert (library.matmul(a, w.t(), activation="relu").double() == x.clamp(min=0)).all()
    except UnsupportedError as error:
        pytest.skip(str(error))


def test_streams_are_those_of_torch(library, torch) -> None:
    a, w = whole(torch, 2048, 2048), whole(torch, 2048, 2048)
    stream, out = torch.cuda.Stream(), torch.zeros(2048, 2048, device="cuda", dtype=torch.float16)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a.mul_(2)  # ordered before the product only on this stream
        library.matmul(a, w.t(), out)
    stream.synchronize()
    assert right(out, a, w.t())


def test_a_workspace_lets_k_be_split(library, torch) -> None:
    a, w = whole(torch, 16, 16384), whole(torch, 64, 16384)
    workspace = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
    for _ in range(3):
        assert right(library.matmul(a, w.t(), workspace=workspace), a, w.t())
    plan = library.plan(Problem(16, 64, 16384), workspace_bytes=64 << 20)
    out = torch.empty(16, 64, device="cuda", dtype=torch.float16)
    assert right(plan(a, w.t(), out, workspace=workspace), a, w.t())


def test_a_plan_is_captured_at_its_first_call(library, torch) -> None:
    plan = library.plan(Problem(64, 64, 64))
    a, w = whole(torch, 64, 64), whole(torch, 64, 64)
    out = torch.zeros(64, 64, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(a, w.t(), out)
    a.copy_(whole(torch, 64, 64))
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, a, w.t())


def test_threads_share_a_library_and_a_plan(library, torch) -> None:
    """Also threads that never had a context: one is made current for the launch."""
    plan, wrong = library.plan(Problem(64, 96, 128)), []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(100):
                a, w = whole(torch, 64, 128), whole(torch, 96, 128)
                out = torch.empty(64, 96, device="cuda", dtype=torch.float16)
                (plan if turn % 2 else library.matmul)(a, w.t(), out)
                if not right(out, a, w.t()):
                    wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    a, w, out = whole(torch, 64, 128), whole(torch, 96, 128), torch.empty(64, 96, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    bare = threading.Thread(target=lambda: plan(a, w.t(), out, stream=0))
    bare.start()
    bare.join()
    torch.cuda.synchronize()
    assert not wrong and right(out, a, w.t())


def test_bad_input_is_told(library, torch) -> None:
    a, w = whole(torch, 64, 64), whole(torch, 64, 64)
    with pytest.raises(ProblemError, match="not in a GPU's memory"):
        library.matmul(a.cpu(), w.t())
    with pytest.raises(ProblemError, match="asks for gradients"):
        library.matmul(a, w.t().requires_grad_())
    with pytest.raises(ProblemError, match="D overlaps A"):
        library.matmul(a, w.t(), a)
    with pytest.raises(UnsupportedError, match="no kernel computes tn f32->f32"):
        library.plan(Problem(64, 64, 64), Kind(dtype_a="f32", dtype_b="f32", dtype_d="f32"))
