"""Real launches: the default checks of a few small variants, and arrays, streams and graphs of torch and CuPy."""

from __future__ import annotations

import pytest

from generator.device_check import CODES, open_kernel
from generator.store.library import Library
from hgemm import Kernel, ProblemError
from hgemm.cases import default_cases
from hgemm.device import choose_code, open_device
from hgemm.errors import UnsupportedError

pytestmark = pytest.mark.gpu
LAYOUTS = ("tn", "nn", "nt", "tt")


def kernel_of(library: Library, layout: str, code: str = "auto") -> Kernel:
    symbols = [record.symbol for record in library.records() if record.data["spec"]["layout"] == layout]
    return open_kernel(library, symbols[0], code)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_default_case_passes(small_library: Library, layout: str) -> None:
    from hgemm.verify import verify

    kernel, device = kernel_of(small_library, layout), open_device()
    for case in default_cases(kernel.traits, kernel.prepare().resident_ctas):
        found = verify(kernel, case, device)
        assert found.passed, found


@pytest.mark.parametrize("code", CODES)
def test_each_code_loads_where_it_may(small_library: Library, code: str) -> None:
    kernel = kernel_of(small_library, "tn", code)
    try:
        choose_code(kernel.image, open_device().capability)
    except UnsupportedError as unfit:
        with pytest.raises(UnsupportedError, match=str(unfit)):
            kernel.prepare()
    else:
        assert kernel.prepare().resident_ctas >= open_device().sms


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_tensors_multiply(small_library: Library, layout: str) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(small_library, layout)
    a = torch.randn(3, 100, 72, device="cuda", dtype=torch.float16)
    b = torch.randn(72, 40, device="cuda", dtype=torch.float16)
    out = torch.full((3, 100, 48), 7, device="cuda", dtype=torch.float16)
    a_stored = a if layout[0] == "t" else _padded(a.transpose(1, 2), torch).transpose(1, 2)
    b_stored = b if layout[1] == "t" else b.t().contiguous().t()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    assert kernel(a_stored, b_stored, out[:, :, :40], alpha=0.5, stream=stream) is not None
    stream.synchronize()
    expected = 0.5 * (a.double() @ b.double())
    assert (out[:, :, :40].double() - expected).abs().max() < 0.02 and (out[:, :, 40:] == 7).all()


def _padded(matrices, torch):
    """Return a copy whose rows are a multiple of 8 elements apart."""
    wide = torch.empty(*matrices.shape[:-1], -(-matrices.shape[-1] // 8) * 8, device="cuda", dtype=matrices.dtype)
    wide[..., : matrices.shape[-1]] = matrices
    return wide[..., : matrices.shape[-1]]


def test_a_launch_can_be_captured_in_a_graph(small_library: Library) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(small_library, "tn")
    a, w = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.zeros(64, 64, device="cuda", dtype=torch.float16)
    kernel.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, w.t(), out, stream=torch.cuda.current_stream())
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert (out.double() - a.double() @ w.double().t()).abs().max() < 0.03


@pytest.mark.parametrize(("m", "n", "k"), [(70016, 64, 32768), (70016, 32768, 32)])
def test_offsets_beyond_32_bits_are_right(small_library: Library, m: int, n: int, k: int) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("this needs 16 GiB of GPU memory")
    kernel = kernel_of(small_library, "tn")
    a, w = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    assert max(a.numel(), out.numel()) > 2**31
    torch.cuda.synchronize()
    kernel(a, w.t(), out)
    torch.cuda.synchronize()
    for rows in (slice(0, 40), slice(m // 2, m // 2 + 40), slice(m - 40, m)):
        expected = a[rows].double() @ w.double().t()
        assert ((out[rows].double() - expected).abs() < 2e-3 * expected.abs() + 2e-6 * k + 1e-3).all()
    assert torch.isfinite(out).all()


def test_cupy_arrays_multiply(small_library: Library) -> None:
    cupy = pytest.importorskip("cupy")
    kernel = kernel_of(small_library, "tt")
    a, b = cupy.random.randn(33, 64).astype("f2"), cupy.random.randn(64, 24).astype("f2")
    out = cupy.zeros((33, 24), "f2")
    stream = cupy.cuda.Stream()
    cupy.cuda.runtime.deviceSynchronize()
    kernel(a, b, out, stream=stream)
    stream.synchronize()
    assert float(cupy.abs(out.astype("f8") - a.astype("f8") @ b.astype("f8")).max()) < 0.03


def test_what_does_not_fit_is_refused(small_library: Library) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(small_library, "tn")
    a = torch.zeros(8, 8, device="cuda", dtype=torch.float16)
    with pytest.raises(ProblemError, match="not in a GPU's memory"):
        kernel(a.cpu(), a, a)
    with pytest.raises(ProblemError, match="B .* is not contiguous along k"):
        kernel(a, torch.zeros(8, 16, device="cuda", dtype=torch.float16), torch.zeros_like(a).repeat(1, 2))
    with pytest.raises(ProblemError, match="D overlaps A"):
        kernel(a, a.clone().t(), a)
    with pytest.raises(ProblemError, match="A does not give its memory away"):
        kernel(a.clone().requires_grad_(), a.t(), torch.zeros_like(a))
