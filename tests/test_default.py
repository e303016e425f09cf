"""hgemm.matmul and hgemm.linear: products with the default library, on a driver that computes on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from computing_driver import ComputingDriver, Cuda
from conftest import ROOT
from test_matmul import column_major, driver, library, numbers, opened, product  # noqa: F401 (fixtures)

import hgemm.default
import hgemm.growth
from hgemm import Library, ProblemError


class Standard(Cuda):
    """An array of a library that follows the array API standard."""

    dtype, device = "f2", "GPU 0"

    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(empty=lambda shape, dtype, device: Standard(np.zeros(shape, dtype)))


@pytest.fixture(autouse=True)
def default(library: Library, driver: ComputingDriver, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("hgemm.default.library", lambda: library)


def test_matmul_uses_the_default_library() -> None:
    a, b = numbers(40, 64), numbers(64, 48)
    assert (hgemm.matmul(Standard(a), Standard(b)).array == product(a, b)).all()
    out = np.zeros((40, 48), "f2")
    hgemm.matmul(Cuda(a), Cuda(column_major(b)), Cuda(out), alpha=2, bias=Cuda(numbers(48)), activation="relu")
    assert (out == np.maximum(2 * product(a, b) + numbers(48), 0)).all()


@pytest.mark.parametrize("axes", [(), (5,), (2, 20), (2, 3, 7)])
def test_a_linear_layer_takes_any_leading_axes_and_does_not_copy_its_weight(
    axes: tuple[int, ...],
    driver: ComputingDriver,  # noqa: F811
) -> None:
    x, w, bias = numbers(*axes, 64), numbers(48, 64), numbers(48)
    expected = np.maximum(product(x, w.T) + bias, 0)
    y = hgemm.linear(Standard(x), Standard(w), Standard(bias), "relu")
    assert y.shape == (*axes, 48) and (y.array == expected).all()
    if x.size > 64:
        assert all("_tn_" in symbol for symbol in driver.symbols)
    out = Cuda(np.zeros((*axes, 48), "f2"))
    assert hgemm.linear(Cuda(x), Cuda(w), Cuda(bias), "relu", out) is out
    assert (out.array == expected).all()


def test_linear_rejects_bad_arguments_in_one_line() -> None:
    x, w = numbers(2, 3, 5, 64), numbers(48, 64)
    with pytest.raises(ProblemError, match=r"weight is \(64,\): pass \(n, k\)"):
        hgemm.linear(Cuda(x), Cuda(w[0]))
    with pytest.raises(ProblemError, match="x .* is not contiguous: copy it"):
        hgemm.linear(Cuda(numbers(2, 3, 5, 128)[..., ::2]), Cuda(w), out=Cuda(numbers(2, 3, 5, 48)))
    with pytest.raises(ProblemError, match=r"x is \(2, 3, 5, 64\) and weight \(48, 32\): .* 64 and 32 here$"):
        hgemm.linear(Cuda(x), Cuda(w[:, :32]))
    with pytest.raises(ProblemError, match="64 and 48 here: pass the transpose of weight"):
        hgemm.linear(Cuda(x), Cuda(w.T))
    with pytest.raises(ProblemError, match=r"bias is \(30,\), not \(48,\)"):
        hgemm.linear(Cuda(x), Cuda(w), Cuda(numbers(30)))
    with pytest.raises(ProblemError, match=r"out is \(30, 48\), not \(2, 3, 5, 48\)"):
        hgemm.linear(Cuda(x), Cuda(w), out=Cuda(numbers(30, 48)))
    with pytest.raises(ProblemError, match="x is a list"):
        hgemm.linear([1.0], [1.0])
    with pytest.raises(ProblemError, match="out is missing, and a new Cuda cannot be made: pass out"):
        hgemm.linear(Cuda(x), Cuda(w))


def test_arrays_of_other_libraries_need_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Standard, "__module__", "jaxlib._jax")
    with pytest.raises(ProblemError, match="a new Standard cannot be made: pass out"):
        hgemm.matmul(Standard(numbers(8, 8)), Standard(numbers(8, 8)))


class OnStreamsOfItsOwn(Cuda):
    """An array such as those of JAX, whose elements may not be computed yet."""

    ready = False

    def block_until_ready(self) -> None:
        self.ready = True

    def __dlpack__(self, *, stream: int | None):
        assert self.ready and stream is None
        return super().__dlpack__(stream=0)


def test_products_wait_for_arrays_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnStreamsOfItsOwn, "__module__", "jaxlib._jax")
    a, b, out = numbers(40, 64), numbers(64, 48), np.zeros((40, 48), "f2")
    for _ in range(2):
        hgemm.matmul(OnStreamsOfItsOwn(a), OnStreamsOfItsOwn(b), Cuda(out))
    assert (out == product(a, b)).all()
    with pytest.raises(ProblemError, match="D is read-only"):
        hgemm.matmul(Cuda(a), Cuda(b), OnStreamsOfItsOwn(out))


def test_functions_shadow_modules_of_the_same_name() -> None:
    """A module named hgemm.matmul would hide the function once it is imported."""
    text = "import hgemm, hgemm.library, hgemm.products; assert callable(hgemm.matmul) and callable(hgemm.linear)"
    subprocess.run([sys.executable, "-c", text], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_default_library_builds_if_the_generator_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hgemm.growth.can_build()
    monkeypatch.setattr("hgemm.growth.MODULE", "no_such_package.plugin")
    assert not hgemm.growth.can_build()


def test_tensors_of_torch_have_gradients(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:  # noqa: F811
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    import hgemm.torch.operator as operator

    monkeypatch.setattr(operator, "_library", None)
    torch.library.impl("hgemm::matmul", "cpu", lambda a, b, bias=None, c=None, **options: a @ b)
    x, w = torch.ones(2, 3, 5), torch.ones(4, 5, requires_grad=True)
    hgemm.linear(x, w).sum().backward()
    assert (w.grad == 6).all() and operator.used_library() is library
    (hgemm.matmul(x[0], w.t()) ** 2).sum().backward()
    assert (w.grad == 36).all()
