"""Products of NumPy arrays on a machine without a GPU: kernels run on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import hgemm
from generator.proof import products
from generator.proof.executor import HostToolchain
from generator.store.library import Library
from hgemm import host, plugin
from hgemm.errors import LibraryError, ProblemError, UnsupportedError, VerificationError


@pytest.fixture
def library(small_library: Library, monkeypatch: pytest.MonkeyPatch) -> hgemm.Library:
    monkeypatch.setattr(host, "has_gpu", lambda: False)
    return hgemm.open(small_library.folder)


@pytest.fixture
def on_cpu(host_toolchain: HostToolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_toolchain", lambda: host_toolchain)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-2, 3, shape).astype(np.float16)


def test_a_product_of_numpy_arrays_is_a_numpy_array(library: hgemm.Library, on_cpu: None) -> None:
    x, w = draw(40, 56), draw(72, 56)
    y = library.matmul(x, w.T, alpha=0.5)
    assert isinstance(y, np.ndarray) and y.dtype == np.float16
    assert np.array_equal(y, (0.5 * x.astype(float) @ w.T.astype(float)).astype(np.float16))


def test_out_may_be_c_and_rows_may_have_gaps(library: hgemm.Library, on_cpu: None) -> None:
    x, w, wide = draw(40, 56), draw(72, 56), draw(40, 80)
    before, out = wide.copy(), wide[:, :72]
    assert library.matmul(x, w.T, out=out, beta=2.0, c=out) is out
    expected = x.astype(float) @ w.T.astype(float) + 2.0 * before[:, :72]
    assert np.array_equal(wide[:, :72], expected.astype(np.float16)) and np.array_equal(wide[:, 72:], before[:, 72:])


def test_batches_are_computed_and_empty_results_run_nothing(library: hgemm.Library, on_cpu: None) -> None:
    x, w = draw(3, 16, 24), draw(3, 32, 24)
    expected = x.astype(float) @ w.swapaxes(1, 2).astype(float)
    assert np.array_equal(library.matmul(x, w.swapaxes(1, 2)), expected.astype(np.float16))
    assert library.matmul(draw(0, 24), draw(32, 24).T).shape == (0, 32)


def test_attention_heads_are_separate_matrices(library: hgemm.Library, on_cpu: None) -> None:
    x, w = draw(16, 24), draw(5, 8, 24)  # 3 heads of q, 1 of k, 1 of v
    q, k, v = np.split(library.matmul(x, w.swapaxes(1, 2)), [3, 4])
    for found, weights in ((q, w[:3]), (k, w[3:4]), (v, w[4:])):
        expected = x.astype(float) @ weights.swapaxes(1, 2).astype(float)
        assert found.flags.c_contiguous and np.array_equal(found, expected.astype(np.float16))


def test_long_products_are_rejected_with_the_expected_time(library: hgemm.Library) -> None:
    x = np.broadcast_to(np.float16(1), (8192, 8192))
    with pytest.raises(ProblemError, match="contiguous"):
        library.matmul(x, x)
    x = np.empty((8192, 64), np.float16)
    with pytest.raises(ProblemError, match=r"8192x8192x64 would take about 12 s on the CPU.*the limit is 1 s"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "MAX_SECONDS", 1.0)
            library.matmul(x, x.T)


def test_arrays_that_cannot_be_multiplied_are_rejected(library: hgemm.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = draw(16, 16), draw(16, 16).T
    with pytest.raises(ProblemError, match=r"A is \(16, 16\) and B \(24, 8\), .* 16 and 24 here$"):
        library.matmul(x, draw(8, 24).T)
    for options in (
        {"alpha": "two"},
        {"beta": [1.0]},
        {"alpha": np.ones(8)},
        {"epilogue": "alpha * acc", "alpha": np.ones(8)},
    ):
        with pytest.raises(ProblemError, match="pass a number"):
            library.matmul(x, w, **options)
    with pytest.raises(UnsupportedError, match="no kernel computes"):
        library.matmul(x, w, activation="gelu")
    with pytest.raises(ProblemError, match="A has a negative stride.*: copy it"):
        library.matmul(x[::-1], w)
    with pytest.raises(ProblemError, match="bias has Python objects"):
        library.matmul(x, w, bias=np.zeros(16, object))
    monkeypatch.setattr(host, "has_gpu", lambda: True)
    with pytest.raises(ProblemError, match=r"A is in the CPU's memory, and kernels read a GPU's: copy it there"):
        library.matmul(x, w)


@pytest.mark.parametrize("operand", ["a", "b", "out", "bias", "c"])
def test_arrays_that_would_be_misread_or_not_written_are_rejected(library: hgemm.Library, operand: str) -> None:
    names = {"a": "A", "b": "B", "out": "D", "bias": "bias", "c": "C"}
    arrays = {"a": draw(16, 16), "b": draw(16, 16), "out": draw(16, 16), "bias": draw(16), "c": draw(16, 16)}
    shape = arrays[operand].shape
    fixed = np.zeros(shape, np.float16)
    fixed.flags.writeable = False
    odd = np.zeros(2 * fixed.size + 1, np.uint8)[1:].view(np.float16).reshape(shape)
    for given, reason in (
        (arrays[operand].astype(">f2"), "is big-endian"),
        (odd, "address that is not a multiple of its 2 B elements: copy it"),
        *([(fixed, "is read-only")] if operand == "out" else []),
    ):
        with pytest.raises(ProblemError, match=f"{names[operand]} .*{reason}"):
            library.matmul(**{**arrays, operand: given}, beta=1.0)
    assert not fixed.any()


def test_inputs_may_be_read_only_and_axes_of_one_element_have_any_stride(library: hgemm.Library, on_cpu: None) -> None:
    x, w = draw(1, 56), draw(72, 56)
    expected = library.matmul(x, w.T)
    x.flags.writeable = w.flags.writeable = False
    assert np.array_equal(library.matmul(x[::-1], w.T), expected)


@pytest.mark.parametrize("repeated", ["a", "b", "both", "one b"])
def test_a_batch_may_share_a_matrix(library: hgemm.Library, on_cpu: None, repeated: str) -> None:
    a = np.broadcast_to(draw(16, 24), (3, 16, 24)) if repeated in ("a", "both") else draw(3, 16, 24)
    w = np.broadcast_to(draw(32, 24), (3, 32, 24)) if repeated in ("b", "both") else draw(3, 32, 24)
    b = (w[:1] if repeated == "one b" else w).swapaxes(1, 2)
    assert np.array_equal(library.matmul(a, b), (a.astype(float) @ b.astype(float)).astype(np.float16))


def test_batches_of_different_sizes_are_rejected_even_if_b_repeats(library: hgemm.Library) -> None:
    b = np.broadcast_to(draw(32, 24).T, (2, 24, 32))
    with pytest.raises(ProblemError, match=r"B is \(2, 24, 32\)"):
        library.matmul(draw(3, 16, 24), b)


def test_cpu_tensors_are_computed_like_arrays(library: hgemm.Library, on_cpu: None) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    x, w = torch.from_numpy(draw(40, 56)), torch.from_numpy(draw(72, 56))
    y = library.matmul(x, w.t())
    assert isinstance(y, torch.Tensor) and torch.equal(y.double(), (x.double() @ w.double().t()).half().double())
    found = library.matmul(x.reshape(4, 10, 56), w.t().expand(4, -1, -1))
    assert torch.equal(found.reshape(40, 72), y)
    layers = library.linear(x.reshape(2, 2, 10, 56), w)
    assert isinstance(layers, torch.Tensor) and torch.equal(layers.reshape(40, 72), y)


def test_cpu_tensors_of_bf16_need_ml_dtypes(
    library: hgemm.Library, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    x, w = torch.from_numpy(draw(40, 56)).bfloat16(), torch.from_numpy(draw(72, 56)).bfloat16()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(ProblemError, match="pip install ml_dtypes"):
            library.matmul(x, w.t())
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes")
    with pytest.raises(UnsupportedError, match="bf16"):  # the library has kernels for f16 only
        library.matmul(x, w.t())


@pytest.mark.parametrize("axes", [(), (5,), (2, 20), (2, 3, 7)])
def test_a_linear_layer_takes_any_leading_axes(library: hgemm.Library, on_cpu: None, axes: tuple[int, ...]) -> None:
    x, w, out = draw(*axes, 56), draw(72, 56), np.zeros((*axes, 72), np.float16)
    expected = (x.astype(float) @ w.T.astype(float)).astype(np.float16)
    y = library.linear(x, w)
    assert isinstance(y, np.ndarray) and np.array_equal(y, expected)
    assert library.linear(x, w, out=out) is out and np.array_equal(out, expected)


def test_linear_names_its_own_operands(library: hgemm.Library) -> None:
    x, w = draw(2, 3, 5, 56), draw(72, 56)
    with pytest.raises(ProblemError, match="x .* is not contiguous: copy it"):
        library.linear(x[..., ::2], w[:, :28])
    with pytest.raises(ProblemError, match="out .* is not contiguous: copy it"):
        library.linear(x, w, out=np.zeros((2, 3, 5, 144), np.float16)[..., ::2])
    with pytest.raises(ProblemError, match="x is float16 and weight float32: convert one"):
        library.linear(x, w.astype("f4"))
    with pytest.raises(ProblemError, match="x is float16 and bias float32: convert one"):
        library.linear(x, w, np.zeros(72, np.float32))
    with pytest.raises(ProblemError, match=r"A is f64: use .*\(A is x, B the transpose of weight, D the result\)$"):
        library.linear(x.astype("f8"), w.astype("f8"))
    with pytest.raises(ProblemError, match="activation 'tanh' is unknown: use [a-z_, ]*$"):
        library.linear(x, w, activation="tanh")


def test_foreign_kernels_are_not_run(library: hgemm.Library, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "foreign", lambda kernel, templates: "its kernel.cu differs")
    products._executable.cache_clear()
    with pytest.raises(VerificationError, match="its kernel.cu differs, so it does not run on the CPU"):
        library.matmul(draw(16, 16), draw(16, 16).T)


def test_missing_generator_gives_an_error(
    library: hgemm.Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plugin, "MODULE", "no_such_package.plugin")
    monkeypatch.setattr(plugin, "NAME", "none")
    with pytest.raises(
        LibraryError, match="a product on the CPU needs the package hgemm-generator.*copy the arrays to a GPU"
    ):
        library.matmul(draw(16, 16), draw(16, 16).T)
