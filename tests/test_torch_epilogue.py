"""The operator of torch for expressions: gradients against finite differences, on the CPU instead of a launch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import hgemm  # noqa: E402
import hgemm.torch as hgemm_torch  # noqa: E402
import hgemm.torch.epilogue as fused_operator  # noqa: E402
import hgemm.torch.operator as operator  # noqa: E402
from examples import epilogues  # noqa: E402
from examples.torch import fused_mlp  # noqa: E402
from hgemm import ProblemError, interleave  # noqa: E402
from hgemm.epilogue import Epilogue, parse_epilogue  # noqa: E402
from hgemm.epilogue_gradient import evaluate, values_of  # noqa: E402
from hgemm.epilogue_language import as_epilogue  # noqa: E402
from hgemm.errors import LibraryError  # noqa: E402

M, N, K = 5, 16, 7
FORMULAS = {
    "linear": "residual: Matrix; gelu(alpha * acc + bias) + residual",
    "scaled": "scale: Column; gain: Scalar; silu(acc * scale + bias) * gain",
    "constant slope": "acc * 2 + bias",
    "chain": "exp(0.2 * acc) / (abs(bias) + 1) + tanh(acc) * sigmoid(bias) - log(acc * acc + 1)",
    "choice": "where(acc < bias, erf(acc), softplus(acc)) + maximum(acc, 0.3) * minimum(bias, acc)",
    "pair": "silu(gate) * up + bias",
    "half of a pair": "scale: Row; silu(gate) + up * scale",
    "results": "residual: Matrix; y = gelu(acc + bias) + residual; (y, f32(y * acc), row_sum_squares(y), row_max(y * bias))",
    "results of a pair": "scale: Column; (silu(gate) * up, gate * scale, row_sum(up), row_max(scale))",
    "columns": "residual: Matrix; y = gelu(acc + bias) + residual; (y, column_sum_squares(y), column_max(y * bias), row_sum(y))",
    "columns of a pair": "scale: Row; (silu(gate) * up, column_sum(up * scale), column_max(scale))",
}


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Iterator[None]:
    """Give the operators implementations for the CPU, which the library itself has not."""
    registered = torch._C._dispatch_has_kernel_for_dispatch_key("hgemm::matmul", "CPU")
    mine = torch.library.Library("hgemm", "IMPL")
    if not registered:  # another module of tests may have done it
        mine.impl("matmul", lambda a, b, **options: (a @ b).contiguous(), "CPU")
    mine.impl("fused", compute, "CPU")
    yield
    mine._destroy()


def compute(a, b, arrays, *, epilogue, names, numbers, alpha=1.0, beta=0.0, batch_invariant=False):
    expression = parse_epilogue(epilogue)
    options = {"names": names, "numbers": numbers, "alpha": alpha, "beta": beta, "batch_invariant": False}
    leaves = fused_operator._Leaves(expression, a, b, {}, dict(zip(names, arrays)), options)
    values = values_of(expression)
    results = [values[expression.result], *(values[one.node] for one in expression.outputs)]
    found = [x.expand(leaves.d) for x in evaluate(results, leaves.of(values), fused_operator.FUNCTIONS)]
    for at, one in enumerate(expression.outputs, 1):
        if one.reduce:
            axis = -1 if one.kind == "column" else -2
            found[at] = found[at].sum(axis) if one.reduce.endswith("sum") else found[at].amax(axis)
    promised = fused_operator._meta(a, b, arrays, epilogue=epilogue, names=names, numbers=numbers)
    return [
        x.to(made.dtype).clone(memory_format=torch.contiguous_format) for x, made in zip(found, promised, strict=True)
    ]


def operands(expression: Epilogue, batch: tuple[int, ...] = (), shared: bool = False) -> tuple[list, dict]:
    """Return A and B, and the inputs by name. With `shared`, B and the inputs have no batch."""
    generator = torch.Generator().manual_seed(3)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    own, columns = () if shared else batch, N // (1 + expression.gated)
    shapes = {"scalar": (1,), "row": (*own, columns), "column": (*own, M), "matrix": (*own, M, columns)}
    return [made(*batch, M, K), made(*own, K, N)], {one.name: made(*shapes[one.kind]) for one in expression.operands}


@pytest.mark.parametrize("batch, shared", [((), False), ((2,), False), ((2,), True)])
@pytest.mark.parametrize("formula", FORMULAS)
def test_gradients_match_finite_differences(formula: str, batch: tuple[int, ...], shared: bool) -> None:
    expression = as_epilogue(FORMULAS[formula])
    (a, b), inputs = operands(expression, batch, shared)

    def run(a, b, *arrays):
        return hgemm_torch.fused(a, b, expression, dict(zip(inputs, arrays)), alpha=0.5)

    if expression.gated and not batch and not expression.outputs:
        assert run(a, b, *inputs.values()).shape == (M, N // 2)
    torch.autograd.gradcheck(run, (a, b, *inputs.values()), fast_mode=True)


@pytest.mark.parametrize("batch, shared", [((), False), ((2,), True)])
@pytest.mark.parametrize(
    "formula", [name for name in FORMULAS if name != "constant slope" and not name.startswith(("results", "columns"))]
)
def test_one_launch_computes_the_derivatives(
    formula: str, batch: tuple[int, ...], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expression, asked = as_epilogue(FORMULAS[formula]), []
    (a, b), inputs = operands(expression, batch, shared)
    monkeypatch.setattr(fused_operator, "_saving", lambda text: None)
    monkeypatch.setattr(fused_operator, "_has_kernel", lambda found: asked.append(found) or True)
    computed = fused_operator._computed

    def without_product(values, leaves):
        assert not leaves.given or not fused_operator._uses_product(values.values())
        return computed(values, leaves)

    monkeypatch.setattr(fused_operator, "_computed", without_product)

    def run(a, b, *arrays):
        return hgemm_torch.fused(a, b, expression, dict(zip(inputs, arrays)), alpha=0.5)

    torch.autograd.gradcheck(run, (a, b, *inputs.values()), fast_mode=True)
    assert {*asked} == {hgemm_torch.backward_epilogue(expression, "f32").hash}


@pytest.mark.parametrize("batch, shared", [((), False), ((2,), False), ((2,), True)])
@pytest.mark.parametrize(
    "formula", [name for name in FORMULAS if name != "constant slope" and not name.startswith(("results", "columns"))]
)
def test_the_forward_pass_saves_the_derivatives(
    formula: str, batch: tuple[int, ...], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expression, launched = as_epilogue(FORMULAS[formula]), []
    (a, b), inputs = operands(expression, batch, shared)
    training = hgemm_torch.training_epilogue(expression)
    monkeypatch.setattr(fused_operator, "_has_kernel", lambda found: found == training.hash)
    monkeypatch.setattr(
        fused_operator._Leaves, "_accumulators", recorded(launched, fused_operator._Leaves._accumulators)
    )

    def run(a, b, *arrays):
        return hgemm_torch.fused(a, b, expression, dict(zip(inputs, arrays)), alpha=0.5)

    d = run(a, b, *(x.detach() for x in inputs.values()))
    torch.autograd.grad(d.sum(), (a, b))
    assert len(launched) == 1, "the backward pass does not compute the product"
    torch.autograd.gradcheck(run, (a, b, *inputs.values()), fast_mode=True)
    if not batch:
        torch.autograd.gradgradcheck(run, (a, b, *inputs.values()), fast_mode=True)


@pytest.mark.parametrize("fails", [False, True])
def test_growing_library_builds_kernels_that_save_derivatives(
    fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expression, launched = as_epilogue(FORMULAS["pair"]), []
    (a, b), inputs = operands(expression)
    training = hgemm_torch.training_epilogue(expression)
    monkeypatch.setattr(operator, "_library", SimpleNamespace(table=SimpleNamespace(groups=()), builds=True))
    monkeypatch.setattr(fused_operator, "_not_built", set())
    expected = torch.autograd.grad(hgemm_torch.fused(a, b, expression, inputs).sum(), (a, b), create_graph=True)
    results = fused_operator._results

    def computed(given, *operands):  # the first part of a launch
        launched.append(given)
        if fails and given == training:
            raise LibraryError("there is no compiler")
        return results(given, *operands)

    monkeypatch.setattr(fused_operator, "_results", computed)
    for _ in range(2):
        found = torch.autograd.grad(hgemm_torch.fused(a, b, expression, inputs).sum(), (a, b))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert launched == ([training, expression, expression] if fails else [training, training])
    assert ("there is no compiler" in caplog.text) == fails


def recorded(calls: list, function):
    return lambda *given: calls.append(given) or function(*given)


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_of_other_devices_get_an_error_with_the_alternative(compiled: bool) -> None:
    """In a process of its own, where no test registers the operators for the CPU."""
    calls = ("torch.ops.hgemm.matmul(x, x)", "hgemm.torch.linear(x, x)", "hgemm.torch.fused(x, x, 'relu(acc)')")
    functions = ", ".join(f"lambda x: {call}" for call in calls)
    program = f"""
import torch, hgemm.torch
x = torch.zeros(8, 8, dtype=torch.float16)
for call in ({functions}):
    try:
        (torch.compile(call, backend="aot_eager") if {compiled} else call)(x)
    except hgemm.ProblemError as error:
        print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    message = "a is on cpu: move the tensors to the GPU; without one, hgemm.matmul and hgemm.linear compute on the CPU"
    assert found.stdout.splitlines() == [message] * len(calls), found.stderr


def test_training_epilogue_rejects_expressions_without_derivatives() -> None:
    for formula in ("2 * acc + bias", "(relu(acc), row_max(acc))"):
        with pytest.raises(ProblemError, match="no launch saves derivatives"):
            hgemm_torch.training_epilogue(formula)
    linear = hgemm_torch.training_epilogue(FORMULAS["linear"])
    assert len(linear.outputs) == 1, "by the accumulator"


def test_backward_epilogue_names_inputs_and_rejects_other_expressions() -> None:
    found = hgemm_torch.backward_epilogue(epilogues.swiglu)
    assert [one.name for one in found.inputs] == ["gradient0"] and len(found.outputs) == 1 and found.gated
    named = hgemm_torch.backward_epilogue("gradient0: Matrix; y = gelu(acc) * gradient0; (y, f32(y), row_sum(y))")
    assert {"gradient0", "gradient0_", "gradient1", "gradient2"} == {one.name for one in named.inputs}
    for formula in ("2 * acc + bias", "(relu(acc), row_max(acc))"):
        with pytest.raises(ProblemError, match="one launch does not compute the derivatives"):
            hgemm_torch.backward_epilogue(formula)


def test_gradient_of_b_of_a_gated_pair_matches_separate_products() -> None:
    x, gate, up = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((M, K), (K, 8), (K, 8)))
    found = hgemm_torch.fused(x, interleave(gate, up), epilogues.swiglu)
    expected = torch.nn.functional.silu(x @ gate) * (x @ up)
    torch.testing.assert_close(found, expected)
    d = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, (x, gate, up), d), torch.autograd.grad(expected, (x, gate, up), d)
    ):
        torch.testing.assert_close(one, other)


def test_llama_mlp_in_two_launches_matches_the_gradients_of_torch() -> None:
    shapes = ((M, 12), (24, 12), (24, 12), (12, 24), (M, 12))  # x, gate, up, down, residual
    x, gate, up, down, residual = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    found = fused_mlp.fused_mlp(x, interleave(gate, up, axis=0), down, residual)
    expected = fused_mlp.plain_mlp(x, gate, up, down, residual)
    torch.testing.assert_close(found, expected)
    given, d = (x, gate, up, down, residual), torch.randn_like(expected)
    for one, other in zip(torch.autograd.grad(found, given, d), torch.autograd.grad(expected, given, d), strict=True):
        torch.testing.assert_close(one, other)


def test_types_inputs_and_numbers_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.randn(shape, dtype=torch.float16, requires_grad=True) for shape in ((M, K), (K, N)))
    bias, scale = torch.randn(N, requires_grad=True), torch.randn(M, dtype=torch.float16, requires_grad=True)
    given = {"bias": bias, "scale": scale, "gain": 2}
    formula = "scale: Column['f32']; gain: Scalar; relu(acc + bias) * scale * gain"
    found = hgemm_torch.fused(a, b, formula, given)
    found.float().sum().backward()
    monkeypatch.setattr(
        hgemm_torch.operator, "_library", SimpleNamespace(table=SimpleNamespace(groups=()), builds=False)
    )
    again = hgemm.matmul(a, b, bias=bias, epilogue=formula, inputs={"scale": scale, "gain": 2})
    assert torch.equal(again, found) and again.requires_grad
    assert found.dtype is torch.float16 and (bias.grad.dtype, scale.grad.dtype) == (torch.float32, torch.float16)
    expected = torch.relu((a @ b).float() + bias) * scale[:, None] * 2
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)
    for wrong, words in (({"more": 1.0}, "the epilogue has no more"), ({"scale": scale}, "input bias is missing")):
        with pytest.raises(ProblemError, match=words):
            hgemm_torch.fused(a, b, formula, wrong)


def test_several_results_have_their_types_and_shapes() -> None:
    a, b = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((2, M, K), (K, N)))
    results = hgemm_torch.fused(a, b, "(relu(acc), f32(acc), row_sum_squares(acc), column_max(acc))")
    product = (a @ b).detach()
    shapes = [((2, M, N), torch.bfloat16), *((shape, torch.float32) for shape in ((2, M, N), (2, M), (2, N)))]
    assert [(tuple(one.shape), one.dtype) for one in results] == shapes
    torch.testing.assert_close(results[3], product.float().amax(-2))
    torch.testing.assert_close(results[2], product.float().square().sum(-1))
    assert fused_operator._meta(
        a.to("meta"), b, [], epilogue=as_epilogue("(acc, row_max(acc))").text, names=[], numbers=[]
    )


def test_a_loss_may_depend_on_some_results() -> None:
    (a, b), inputs = operands(as_epilogue(FORMULAS["results"]))
    d, out1, squares, largest = hgemm_torch.fused(a, b, FORMULAS["results"], inputs)
    for one in (d, out1, squares, largest):
        of_a, of_b = torch.autograd.grad(one.sum(), (a, b), retain_graph=True)
        assert of_a.abs().sum() > 0 and of_b.abs().sum() > 0
    (gate, up), scale = operands(as_epilogue(FORMULAS["results of a pair"]))
    _, _, sums, of_scale = hgemm_torch.fused(gate, up, FORMULAS["results of a pair"], scale)
    expected = torch.autograd.grad(operands_of_pair(gate, up)[1].sum(), (gate, up))
    for found, other in zip(torch.autograd.grad(sums.sum(), (gate, up), retain_graph=True), expected, strict=True):
        torch.testing.assert_close(found, other)
    (found,) = torch.autograd.grad(of_scale.sum(), (scale["scale"],))
    torch.testing.assert_close(found, torch.ones(M, dtype=torch.float64))


def operands_of_pair(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two products of a gated pair."""
    blocks = (a @ b).unflatten(-1, (-1, 2, 8))
    return blocks[..., 0, :].flatten(-2), blocks[..., 1, :].flatten(-2)


def test_a_model_of_several_results_compiles() -> None:
    expression = as_epilogue(FORMULAS["results"])
    (a, b), inputs = operands(expression)

    def model(a, b, inputs):
        d, out1, squares, _ = hgemm_torch.fused(a, b, FORMULAS["results"], inputs)
        return d.sin().sum() + out1.sum() + squares.sum()

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(a, b, inputs), (a, b))
    for one, other in zip(found, torch.autograd.grad(model(a, b, inputs), (a, b)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_compiled_model_saves_the_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = as_epilogue(FORMULAS["pair"])
    training = hgemm_torch.training_epilogue(expression).hash
    (a, b), inputs = operands(expression)

    def model(a, b, inputs):
        return hgemm_torch.fused(a, b, FORMULAS["pair"], inputs).sin().sum()

    expected = torch.autograd.grad(model(a, b, inputs), (a, b, *inputs.values()))
    asked: list[str] = []
    monkeypatch.setattr(fused_operator, "_has_kernel", lambda found: asked.append(found) or found == training)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(a, b, inputs), (a, b, *inputs.values()))
    assert {*asked} == {training}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_gradient_of_a_weight_has_its_strides() -> None:
    x, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((M, K), (N, K)))
    for y in (hgemm_torch.fused(x, weight.t(), "relu(acc)"), hgemm_torch.matmul(x, weight.t())):
        (found,) = torch.autograd.grad(y.sum(), (weight,))
        assert found.stride() == weight.stride()


def test_a_compiled_model_has_one_graph() -> None:
    expression = as_epilogue(FORMULAS["linear"])
    (a, b), inputs = operands(expression)

    def model(a, b, inputs):
        return hgemm_torch.fused(a, b, FORMULAS["linear"], inputs).sin()

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b, inputs), model(a, b, inputs))
    (found,) = torch.autograd.grad(compiled(a, b, inputs).sum(), (a,))
    (expected,) = torch.autograd.grad(model(a, b, inputs).sum(), (a,))
    torch.testing.assert_close(found, expected)


def test_the_kernel_in_triton_interleaves_products() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    program = """if True:
        import torch, hgemm
        from hgemm.torch.triton_kernels import scaled_pairs
        for shape in ((3, 40), (2, 5, 2056), (1, 8)):
            for dtype in (torch.float16, torch.float32):  # the interpreter truncates to bf16
                gradient, gate, up = (torch.randn(shape, dtype=dtype) for _ in range(3))
                apart = torch.randn((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., : shape[-1]]
                for given in (gradient, apart, gradient[..., :1].expand(shape)):
                    expected = hgemm.interleave(given * gate, given * up)
                    assert torch.equal(scaled_pairs(given, gate, up), expected), (shape, dtype)
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.gpu
@pytest.mark.parametrize("formula", [FORMULAS["linear"], FORMULAS["pair"]])
def test_gradients_on_a_gpu_match_the_formula(formula: str, tmp_path) -> None:
    hgemm_torch.use(hgemm_library(tmp_path))
    expression = as_epilogue(formula)
    m, n, k = 256, 512, 128
    columns = n // (1 + expression.gated)
    shapes = {"row": (columns,), "matrix": (m, columns)}
    made = {"a": (m, k), "b": (n, k)} | {one.name: shapes[one.kind] for one in expression.operands}
    given = {
        name: torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True) for name, shape in made.items()
    }
    inputs = {name: given[name] for name in made if name not in ("a", "b")}
    found = hgemm_torch.fused(given["a"], given["b"].t(), expression, inputs)
    d = torch.randn_like(found)
    wide = {name: x.detach().cpu().double().requires_grad_() for name, x in given.items()}
    arrays = [wide[name] for name in inputs]
    options = {"epilogue": expression.text, "names": [*inputs], "numbers": []}
    (expected,) = torch.ops.hgemm.fused(wide["a"], wide["b"].t(), arrays, **options)
    gradients = torch.autograd.grad(found, [*given.values()], d)
    for one, other in zip(gradients, torch.autograd.grad(expected, [*wide.values()], d.cpu().double()), strict=True):
        assert (one.cpu().double() - other).norm() < 5e-3 * other.norm()
    assert (found.cpu().double() - expected).norm() < 2e-3 * expected.norm()


def hgemm_library(folder):
    """Return a library that builds the kernels that it lacks."""
    return hgemm.open(folder, build=True)
