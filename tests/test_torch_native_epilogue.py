"""Expressions by the C++ operator of torch on tensors of the CPU, with a driver that computes there."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import simulated  # noqa: E402
from fake_driver import problem_at  # noqa: E402
from native_driver import Handle, LaunchConfig, NativeDriver, build_operator, library_on  # noqa: E402
from test_epilogue_launch import ExpressionDriver, driver, fused, opened, several  # noqa: E402, F401 (fixtures)
from test_torch import whole  # noqa: E402

import hgemm.torch as hgemm_torch  # noqa: E402
import hgemm.torch.epilogue as fused_operator  # noqa: E402
import hgemm.torch.operator as operator  # noqa: E402
from hgemm import Library, ProblemError  # noqa: E402
from hgemm.epilogue_language import as_epilogue  # noqa: E402
from hgemm.errors import UnsupportedError  # noqa: E402
from hgemm.torch import native  # noqa: E402

M, N, K = 40, 48, 64


class NativeExpressions(NativeDriver):
    def _launch(self, config, function, parameters, extra) -> int:
        self.launches.append(LaunchConfig.from_buffer_copy(config.contents))
        symbol = next(name for name, number in Handle.numbers.items() if number == function)
        traits = self.fake.traits[symbol]
        simulated.expression(traits, problem_at(ctypes.cast(parameters[0], ctypes.c_void_p).value, traits))
        return 0


@pytest.fixture
def launching(opened: Library, driver: ExpressionDriver) -> Iterator[NativeExpressions]:  # noqa: F811
    """Register the C++ kernels for the CPU. Nothing computes the operator in Python."""
    build_operator()
    fake = NativeExpressions(driver)
    with library_on(fake, opened):
        yield fake


def inputs(*batch: int) -> dict:
    residual = whole(*batch, M, N, dtype=torch.float32)
    return {"bias": whole(N), "scale": whole(*batch, M), "residual": residual, "gain": 0.5}


def expected(a, b, given: dict, alpha: float = 2.0):
    scale = given["scale"].double()[..., None] * given["gain"]
    return torch.relu(alpha * a.double() @ b.double() + given["bias"].double()) * scale + given["residual"].double()


def test_expressions_are_launched_without_python(launching: NativeExpressions, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = whole(M, K), whole(N, K).t()
    for number in (0.5, 0.25):
        given = {**inputs(), "gain": number}
        assert torch.equal(hgemm_torch.fused(a, b, fused, given, alpha=2.0).double(), expected(a, b, given))
    asked = []
    monkeypatch.setattr(native, "launcher_of", lambda *given: asked.append(1))
    again = hgemm_torch.fused(a.clone(), b, fused, given, alpha=2.0)
    assert torch.equal(again.double(), expected(a, b, given)) and not asked
    assert len(launching.launches) == 3


def test_programs_of_old_calls_are_freed(launching: NativeExpressions) -> None:
    a, b, given = whole(M, K), whole(N, K).t(), inputs()
    programs = []
    for number in range(4):
        hgemm_torch.fused(a, b, fused, {**given, "gain": number})
        (program,) = (
            one for one in gc.get_objects() if type(one) is native.Program and ("gain", number) in one.scalars
        )
        programs.append(weakref.ref(program))
    fused_operator._program.cache_clear()
    del program
    assert [one() for one in programs] == [None] * 4
    hgemm_torch.fused(a, b, fused, given)  # another number, so no launch of an old one


def test_batches_and_strides(launching: NativeExpressions) -> None:
    a, b = torch.stack([whole(M, K)] * 2), whole(N, K).t()
    given = inputs(2)
    assert torch.equal(hgemm_torch.fused(a, b, fused, given, alpha=2.0).double(), expected(a, b, given))
    apart = {**given, "residual": torch.stack([given["residual"]] * 2, -1)[..., 0]}  # copied to contiguous rows
    assert torch.equal(hgemm_torch.fused(a, b, fused, apart, alpha=2.0).double(), expected(a, b, given))
    assert hgemm_torch.fused(whole(0, K), b, fused, {**inputs(), "scale": whole(0), "residual": whole(0, N)}).shape == (
        0,
        N,
    )


def test_further_results(launching: NativeExpressions) -> None:
    a, b, bias, residual = whole(M, K), whole(N, K).t(), whole(N), whole(M, N)
    y, positive, squares, largest = hgemm_torch.fused(a, b, several, {"bias": bias, "residual": residual})
    exact = a.double() @ b.double() + bias + residual
    assert torch.equal(y.double(), exact) and torch.equal(positive, torch.relu(y))
    torch.testing.assert_close(squares.double(), exact.square().sum(1))
    torch.testing.assert_close(largest.double(), exact.amax(0))


def test_native_errors_equal_python_errors(launching: NativeExpressions) -> None:
    a, b = whole(M, K), whole(N, K).t()
    with pytest.raises(ProblemError, match="bias"):
        hgemm_torch.fused(a, b, fused, {**inputs(), "bias": whole(N + 8)})
    with pytest.raises(UnsupportedError):
        hgemm_torch.fused(a, b, "relu(acc)")
    program = fused_operator._program(as_epilogue("relu(acc)").text, ())
    with pytest.raises(ProblemError, match="5 axes"):
        operator._native.fused(a, b, whole(M, N), (whole(1, 1, 1, 1, 1),), program, program.number, 1.0, 0.0, False)


def test_changing_the_library_clears_cached_launches(
    launching: NativeExpressions, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, given = whole(M, K), whole(N, K).t(), inputs()
    hgemm_torch.fused(a, b, fused, given)
    operator._native.forget()
    asked, questions = [], native.launcher_of
    monkeypatch.setattr(native, "launcher_of", lambda *given: asked.append(1) or questions(*given))
    hgemm_torch.fused(a, b, fused, given)
    hgemm_torch.fused(a, b, fused, given)
    assert len(asked) == 1
