"""Calls of kernels with an expression from Python: selection, inputs, and checks, on a driver that computes on the CPU."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import simulated
from computing_driver import ComputingDriver, Cuda
from conftest import call
from fake_driver import SUCCESS, installed, problem_at
from records import make_record, resources_of
from test_matmul import numbers, product

import hgemm
import hgemm.device
from generator.spec import symbol_of
from generator.store.library import Library as Store
from generator.sweep import sweep
from hgemm import Library, ProblemError
from hgemm.arrays import new_array
from hgemm.epilogue_language import Column, Matrix, Row, Scalar, column_max, epilogue_of, relu, row_sum_squares, trace
from hgemm.errors import UnsupportedError
from hgemm.products import empty_product
from hgemm.selection_query import SelectionQuery, Target


def fused(acc, bias: Row, scale: Column, residual: Matrix[f32], gain: Scalar, alpha: Scalar):  # noqa: F821
    return relu(alpha * acc + bias) * scale * gain + residual


def several(acc, bias: Row, residual: Matrix):
    y = acc + bias + residual
    return y, relu(y), row_sum_squares(y), column_max(y)


class ExpressionDriver(ComputingDriver):
    """Computes the expression of each launch."""

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        traits = self.traits[function]
        self.symbols.append(function)
        problem = problem_at(ctypes.c_void_p.from_address(parameters).value, traits)
        simulated.expression(traits, problem)
        return (SUCCESS,)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of planned records, with two kernels of the expression and a plain one."""
    store = Store(tmp_path_factory.mktemp("expressions") / "library")
    texts = {"arch": "sm_80", "tile": "64x64x32", "epilogue": f"none,{trace(fused)}", "align": "8,1"}
    for plan in sweep([texts, {**texts, "epilogue": str(trace(several)), "align": "8"}]).plans:
        symbol = symbol_of(plan.spec)
        record, files = make_record(symbol)
        planned = {
            "spec": plan.spec.to_dict(),
            "launch": plan.launch(),
            "traits": plan.traits(),
            "arch": plan.spec.arch,
        }
        store.publish({**record, **planned, "resources": resources_of(plan, 1)}, files)
    return hgemm.open(store.folder)


@pytest.fixture
def driver(opened: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExpressionDriver]:
    fake = ExpressionDriver(opened)
    with installed(fake, monkeypatch):
        yield fake


def given(m: int = 40, n: int = 48, k: int = 64, batch: tuple[int, ...] = ()) -> tuple[dict, dict]:
    """Return the arrays of a call, and its inputs."""
    a, w, out = numbers(*batch, m, k), numbers(*batch, n, k), numbers(*batch, m, n)
    inputs = {
        "bias": numbers(n),
        "scale": numbers(*batch, m),
        "residual": numbers(*batch, m, n, dtype="f4"),
        "gain": 0.5,
    }
    return {"a": a, "b": w.swapaxes(-1, -2), "out": out}, inputs


def on_gpu(arrays: dict) -> dict:
    return {name: Cuda(one) if isinstance(one, np.ndarray) else one for name, one in arrays.items()}


def expected(arrays: dict, inputs: dict, alpha: float = 1.0) -> np.ndarray:
    x = np.maximum(alpha * product(arrays["a"], arrays["b"]) + inputs["bias"].astype(float), 0.0)
    return x * inputs["scale"].astype(float)[..., None] * np.squeeze(inputs["gain"]) + inputs["residual"]


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_call_computes_its_expression(opened: Library, driver: ExpressionDriver, batch: tuple[int, ...]) -> None:
    library = Library(opened.folder)
    arrays, inputs = given(batch=batch)
    for alpha, gain in ((1.0, 0.5), (2.0, 0.25), (2.0, np.full(1, 2.0, "f4"))):
        inputs["gain"] = gain
        library.matmul(**on_gpu(arrays), epilogue=fused, inputs=on_gpu(inputs), alpha=alpha)
        assert (arrays["out"] == expected(arrays, inputs, alpha)).all()


def test_a_batch_may_share_a(opened: Library, driver: ExpressionDriver) -> None:
    arrays, inputs = given(batch=(3,))
    arrays["a"] = arrays["a"][0]
    Library(opened.folder).matmul(**on_gpu(arrays), epilogue=fused, inputs=on_gpu(inputs))
    assert (arrays["out"] == expected(arrays, inputs)).all()


def test_later_calls_may_use_other_addresses(opened: Library, driver: ExpressionDriver) -> None:
    library = Library(opened.folder)
    for seed in range(3):
        arrays, inputs = given()
        inputs["bias"] += seed
        bias = Cuda(inputs.pop("bias"))
        library.matmul(**on_gpu(arrays), bias=bias, epilogue=fused, inputs=on_gpu(inputs))
        assert (arrays["out"] == expected(arrays, {**inputs, "bias": bias.array})).all()
    assert len(library._launch_cache._launchers) == 1


def test_unaligned_matrices_select_an_unaligned_kernel(opened: Library, driver: ExpressionDriver) -> None:
    library = Library(opened.folder)
    arrays, inputs = given()
    wide = numbers(40, 49, dtype="f4")
    inputs["residual"] = wide[:, 1:]  # rows of 49 floats, from the second on
    library.matmul(**on_gpu(arrays), epilogue=fused, inputs=on_gpu(inputs))
    assert (arrays["out"] == expected(arrays, inputs)).all()
    assert driver.traits[driver.symbols[-1]].align_d == 1


def test_a_matrix_of_ds_type_may_be_d(opened: Library, driver: ExpressionDriver) -> None:
    kernel = kernel_of(opened, fused)
    arrays, inputs = given()
    inputs["residual"] = arrays["out"].astype("f4")
    kernel(**on_gpu(arrays), inputs=on_gpu(inputs))
    assert (arrays["out"] == expected(arrays, inputs)).all()
    overlapping = np.zeros((40, 96), "f2")
    inputs["residual"] = overlapping.view("f4")
    with pytest.raises(ProblemError, match="D overlaps input residual"):
        kernel(**on_gpu({**arrays, "out": overlapping[:, :48]}), inputs=on_gpu(inputs))


WRONG = [
    ({"scale": None}, "input scale is missing"),
    ({"more": 1.0}, "the epilogue has no more: its inputs are bias, scale, gain, residual"),
    ({"alpha": 2.0}, "alpha is an argument of the call, not an input: pass alpha=VALUE"),
    ({"bias": 1.0}, "input bias is a number: pass an array"),
    ({"bias": np.zeros(47, "f2")}, r"input bias is \(47,\), not \(48,\)"),
    ({"bias": np.zeros(48, "f4")}, "input bias is f32, not f16"),
    ({"residual": np.zeros((40, 96), "f4")[:, ::2]}, "input residual is not contiguous"),
]


@pytest.mark.parametrize("change, message", WRONG, ids=[message[:24] for _, message in WRONG])
def test_mismatched_inputs_are_rejected(opened: Library, driver: ExpressionDriver, change: dict, message: str) -> None:
    arrays, inputs = given()
    inputs = {name: one for name, one in {**inputs, **change}.items() if one is not None}
    with pytest.raises(ProblemError, match=message):
        Library(opened.folder).matmul(**on_gpu(arrays), epilogue=fused, inputs=on_gpu(inputs))
    assert not driver.symbols


def test_plain_calls_ignore_kernels_with_an_expression(opened: Library, driver: ExpressionDriver) -> None:
    library, (arrays, inputs) = Library(opened.folder), given()
    with pytest.raises(UnsupportedError, match=r"make one with `generate --arch .* --epilogue 'relu\(acc\)'"):
        library.matmul(**on_gpu(arrays), epilogue="relu(acc)")
    with pytest.raises(ProblemError, match="beta is 1.0, but the epilogue has no beta"):
        library.matmul(**on_gpu(arrays), epilogue=fused, inputs=on_gpu(inputs), beta=1.0)
    with pytest.raises(ProblemError, match="inputs are those of an epilogue"):
        library.matmul(**on_gpu(arrays), inputs=on_gpu(inputs))
    plain = library.selector(Target((8, 0), 108, 163 * 1024))
    query = SelectionQuery.dense(hgemm.Kind(), (64, 64, 64, 1))
    assert {opened.kernel(one.symbol).traits.epilogue for one in plain.supporting(query)} == {None}


# ==== Plans ====


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_plan_launches_its_expression(opened: Library, driver: ExpressionDriver, batch: tuple[int, ...]) -> None:
    library, (arrays, inputs) = Library(opened.folder), given(batch=batch)
    problem = hgemm.Problem(40, 48, 64, *batch, alpha=2.0)
    plan = library.plan(problem, epilogue=fused)
    for gain in (0.5, 0.25):
        inputs["gain"] = gain
        plan(**on_gpu(arrays), inputs=on_gpu(inputs))
        assert (arrays["out"] == expected(arrays, inputs, 2.0)).all()
    run = plan.bind(**on_gpu(arrays), inputs=on_gpu({**inputs, "gain": np.float32(2.0)}))
    run()
    assert (arrays["out"] == expected(arrays, {**inputs, "gain": 2.0}, 2.0)).all()
    with pytest.raises(ProblemError, match="has no input more: it has bias, scale, gain, residual"):
        plan(**on_gpu(arrays), inputs={"more": 1.0})
    with pytest.raises(ProblemError, match="input scale is missing"):
        plan(**on_gpu(arrays), inputs={"gain": 1.0, "bias": Cuda(inputs["bias"])})
    with pytest.raises(UnsupportedError, match="no kernel computes"):
        library.plan(problem, epilogue="silu(acc)")


# ==== Several results ====


def kernel_of(library: Library, function) -> hgemm.Kernel:
    return next(one for one in library if one.traits.epilogue == trace(function))


def results_of(arrays: dict, m: int = 40, n: int = 48, batch: tuple[int, ...] = ()) -> tuple[dict, dict, tuple]:
    """Return the arrays of a call of `several`, its inputs, and its results."""
    results = (
        arrays.pop("out"),
        np.zeros((*batch, m, n), "f2"),
        np.zeros((*batch, m), "f4"),
        np.zeros((*batch, n), "f4"),
    )
    return arrays, {"bias": numbers(n), "residual": numbers(*batch, m, n)}, results


def check_results(arrays: dict, inputs: dict, results: tuple) -> None:
    y = product(arrays["a"], arrays["b"]) + inputs["bias"].astype(float) + inputs["residual"]
    assert (results[0] == y).all() and (results[1] == np.maximum(y, 0)).all()
    assert np.allclose(results[2], (y * y).sum(-1), rtol=1e-6) and np.allclose(results[3], y.max(-2))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_several_results_are_a_tuple(opened: Library, driver: ExpressionDriver, batch: tuple[int, ...]) -> None:
    library, problem = Library(opened.folder), hgemm.Problem(40, 48, 64, *batch)
    plan = library.plan(problem, epilogue=several)

    def by_bound(a, b, out, inputs):
        return plan.bind(a, b, out, inputs=inputs)()

    def by_kernel(a, b, out, inputs):
        kernel = kernel_of(opened, several)
        scratch = Cuda(np.zeros(kernel.workspace_bytes(40, 48, *batch) // 4, "f4"))
        return kernel(a, b, out, inputs=inputs, workspace=scratch)

    def by_matmul(a, b, out, inputs):
        return library.matmul(a, b, out, epilogue=several, inputs=inputs)

    for call_one in (
        by_matmul,
        by_matmul,
        plan,
        by_bound,
        by_kernel,
    ):  # the second call finds the launcher of the first
        arrays, inputs, results = results_of(given(batch=batch)[0], batch=batch)
        out = tuple(map(Cuda, results))
        assert call_one(**on_gpu(arrays), out=out, inputs=on_gpu(inputs)) is out
        check_results(arrays, inputs, results)


def test_mismatched_results_are_rejected(opened: Library, driver: ExpressionDriver) -> None:
    library = Library(opened.folder)
    arrays, inputs, results = results_of(given()[0])

    def rejected(out, message: str) -> None:
        out = tuple(map(Cuda, out)) if isinstance(out, tuple) else out
        with pytest.raises(ProblemError, match=message):
            library.matmul(**on_gpu(arrays), out=out, epilogue=several, inputs=on_gpu(inputs))

    rejected(None, "out is missing, and a new Cuda cannot be made: pass out")
    rejected(results[:2], r"out has 2 arrays: pass a tuple of 4 arrays \(d, out1, out2, out3\)")
    rejected((*results[:2], np.zeros(41, "f4"), results[3]), r"output out2 is \(41,\), not \(40,\)")
    rejected((*results[:2], np.zeros(40, "f2"), results[3]), "output out2 is f16, not f32")
    rejected((*results[:3], np.zeros(40, "f4")), r"output out3 is \(40,\), not \(48,\)")
    rejected((results[0], results[0], *results[2:]), "D overlaps output out1")
    rejected((*results[:2], results[1].reshape(-1).view("f4")[:40], results[3]), "output out1 overlaps output out2")
    small = hgemm.open(opened.folder, workspace_bytes=1 << 18)
    needed = kernel_of(opened, several).workspace_bytes(40, 48)
    with pytest.raises(
        UnsupportedError, match=f"more workspace .*; pass a workspace of {needed} B, or open the library with"
    ):
        small.matmul(**on_gpu(arrays), out=tuple(map(Cuda, results)), epilogue=several, inputs=on_gpu(inputs))
    with pytest.raises(ProblemError, match="out has 2 arrays: pass one array"):
        fused_arrays, fused_inputs = given()
        out = (Cuda(fused_arrays.pop("out")), Cuda(results[1]))
        library.matmul(**on_gpu(fused_arrays), out=out, epilogue=fused, inputs=on_gpu(fused_inputs))
    for width in ("wide", [0.5], b"w"):
        with pytest.raises(ProblemError, match="input gain is .*: pass a number"):
            library.matmul(**on_gpu(given()[0]), epilogue=fused, inputs=on_gpu({**fused_inputs, "gain": width}))
    assert not driver.symbols


def test_columns_of_b_are_whole_pairs_before_a_kernel_is_selected(opened: Library, driver: ExpressionDriver) -> None:
    """The library has no kernel of a gated pair. With columns that fit none, the answer proposes none."""
    pair, library = epilogue_of("silu(gate) * up"), Library(opened.folder)
    for n, error in ((24, ProblemError), (32, UnsupportedError)):
        arrays = {**given(n=n)[0], "out": numbers(40, n // 2)}
        with pytest.raises(error) as from_arrays:
            library.matmul(**on_gpu(arrays), epilogue=pair)
        with pytest.raises(error) as from_sizes:
            library.plan(hgemm.Problem(40, n, 64), epilogue=pair)
        for found in (from_arrays, from_sizes):
            assert ("multiple of 16" in str(found.value)) == (n == 24), str(found.value)


# ==== Growth ====


def test_a_growing_library_builds_the_expression_of_a_call(tmp_path: Path) -> None:
    library = hgemm.open(tmp_path, build=True)
    epilogue = epilogue_of("relu(acc) + bias")
    query = SelectionQuery.of(
        hgemm.Kind(epilogue=epilogue.hash), hgemm.Problem(64, 64, 64, lda=64, ldb=64, ldd=64), 0, epilogue
    )
    target = Target((8, 0), 108, 163 * 1024)
    found = library.selector(target).choose(query)
    assert library.kernel(found.symbol).traits.epilogue == epilogue
    assert library.selector(target).choose(query).symbol == found.symbol and len(library.symbols) == 1
    listed = json.loads(call("hgemm", "list", "--library", tmp_path, "--epilogue", epilogue.hash, "--json").stdout)
    assert [record["symbol"] for record in listed] == [found.symbol]
    for formula in ("bias + relu(acc)", "none", "00000000"):
        done = call("hgemm", "list", "--library", tmp_path, "--epilogue", formula, "--columns", "symbol,epilogue")
        assert (found.symbol in done.stdout) == formula.startswith("bias") and done.returncode == 0
    assert epilogue.hash in call("hgemm", "show", found.symbol, "--library", tmp_path).stdout
    for hashed in (epilogue.hash, "00000000"):
        condition = ["--where", f"epilogue_hash='{hashed}'", "--columns", "symbol,epilogue_hash"]
        done = call("hgemm", "list", "--library", tmp_path, *condition)
        assert (f"{found.symbol}  {epilogue.hash}" in done.stdout) == (hashed == epilogue.hash), done.stderr
    with pytest.raises(UnsupportedError):  # only a hash: nothing can be built from it
        library.selector(target).choose(replace(query, kind=hgemm.Kind(epilogue="00000000"), expression="none"))


class StandardArray(np.ndarray):
    """An array of the array API standard, which NumPy's own arrays follow since version 2."""

    device = "cpu"

    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(empty=lambda shape, dtype, device: np.empty(shape, dtype), float32=np.dtype("f4"))


class StandardCuda(Cuda):
    """An array of the array API standard on the GPU."""

    device = 0

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def __array_namespace__(self) -> SimpleNamespace:
        def empty(shape, dtype, device) -> StandardCuda:
            return StandardCuda(np.full(shape, 7, dtype))

        return SimpleNamespace(empty=empty, float32=np.dtype("f4"))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_new_arrays_are_made_for_several_results(
    opened: Library, driver: ExpressionDriver, batch: tuple[int, ...]
) -> None:
    arrays, inputs, _ = results_of(given(batch=batch)[0], batch=batch)
    given_arrays = {name: StandardCuda(array) for name, array in arrays.items()}
    made = Library(opened.folder).matmul(**given_arrays, epilogue=several, inputs=on_gpu(inputs))
    check_results(arrays, inputs, tuple(one.array for one in made))


def test_new_arrays_have_the_types_of_results() -> None:
    a, b = (np.zeros(shape, "f2").view(StandardArray) for shape in ((5, 8), (8, 32)))
    results = empty_product(a, b, epilogue_of("(silu(gate) * up, f32(gate), row_sum(up), column_sum(up))"))
    shapes = [((5, 16), "f2"), ((5, 16), "f4"), ((5,), "f4"), ((16,), "f4")]
    assert [(one.shape, one.dtype.str[1:]) for one in results] == shapes
    with pytest.raises(ProblemError, match="a new StandardArray of bfloat16 cannot be made .*: pass out"):
        empty_product(a, b, epilogue_of("(acc, bf16(acc))"))


def test_new_bf16_array_in_numpy_needs_ml_dtypes() -> None:
    with pytest.raises(
        ProblemError, match="a new ndarray of bfloat16 cannot be made .*: import ml_dtypes, or pass out"
    ):
        new_array(np.zeros((2, 2), np.float16), (2, 2), "bf16")


def test_a_new_array_has_the_columns_of_d() -> None:
    a, b = (np.zeros(shape, "f2").view(StandardArray) for shape in ((5, 8), (3, 8, 32)))
    assert empty_product(a, b).shape == (3, 5, 32)
    assert empty_product(a, b[0], epilogue_of("silu(gate) * up")).shape == (5, 16)
