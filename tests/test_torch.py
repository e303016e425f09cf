"""The operator of torch: shapes, gradients and opcheck, with torch's product on the CPU instead of a launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from computing_driver import ComputingDriver  # noqa: E402
from test_matmul import driver, library, opened  # noqa: E402, F401 (fixtures)

import hgemm.arrays  # noqa: E402
import hgemm.torch as hgemm_torch  # noqa: E402
import hgemm.torch.operator  # noqa: E402
from hgemm import Library, LibraryError, Problem, ProblemError  # noqa: E402
from hgemm.arrays import ARRAY_ADAPTERS  # noqa: E402
from hgemm.growth import GrowingSelector  # noqa: E402
from hgemm.problem import ACTIVATIONS  # noqa: E402
from hgemm.reference import formula_of  # noqa: E402
from hgemm.selection_query import Target  # noqa: E402
from hgemm.torch.operator import ACTIVATION_FUNCTIONS  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> None:
    """Give the operator an implementation for the CPU, which the library itself has not."""

    def compute(a, b, bias=None, c=None, *, alpha=1.0, beta=0.0, activation="none"):
        return formula(a, b, bias, c, alpha, beta, activation).to(a.dtype).contiguous()

    torch.library.impl("hgemm::matmul", "cpu", compute)


def formula(a, b, bias=None, c=None, alpha=1.0, beta=0.0, activation="none"):
    wide = (lambda x: x) if a.dtype == torch.float64 else (lambda x: x.float())
    x = alpha * (wide(a) @ wide(b))
    x = x + beta * wide(c) if c is not None else x
    if bias is not None:
        x = x + wide(bias) if bias.shape[-1] in (1, b.shape[-1]) else x + wide(bias)[..., None]
    return ACTIVATION_FUNCTIONS[activation](x)


def tensors(*shapes: tuple[int, ...], dtype=torch.float64, requires_grad: bool = True) -> list:
    generator = torch.Generator().manual_seed(7)
    made = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return [x.to(dtype).requires_grad_(requires_grad) for x in made]


CASES = {
    "plain": (((5, 7), (7, 4)), {}),
    "alpha": (((5, 7), (7, 4)), {"alpha": 0.5}),
    "bias": (((5, 7), (7, 4), (4,)), {}),
    "bias of rows": (((5, 7), (7, 4), (5,)), {}),
    "bias with two axes": (((5, 7), (7, 5), (5, 1)), {}),
    "bias of one row": (((5, 7), (7, 4), (1, 4)), {}),
    "batch": (((3, 5, 7), (3, 7, 4), (4,)), {"alpha": 2.0}),
    "batch of one": (((1, 5, 7), (3, 7, 4)), {}),
    "one b for all": (((3, 5, 7), (7, 4), (5,)), {}),
    "one a for all": (((5, 7), (3, 7, 4)), {}),
    "c": (((5, 7), (7, 4), (4,), (5, 4)), {"alpha": 0.5, "beta": -2.0}),
    "one c for all": (((3, 5, 7), (7, 4), (4,), (1, 5, 4)), {"beta": 3.0}),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES)
def test_gradients_match_the_formula(case: str, activation: str) -> None:
    shapes, options = CASES[case]
    given = tensors(*shapes)
    assert torch.autograd.gradcheck(lambda *x: hgemm_torch.matmul(*x, activation=activation, **options), given)
    found, expected = (
        hgemm_torch.matmul(*given, activation=activation, **options),
        formula(*given, activation=activation, **options),
    )
    assert torch.allclose(found, expected)
    gradient = torch.ones(()).double().expand(found.shape)  # without strides, as sum() gives it
    found, expected = (torch.autograd.grad(x, given, gradient) for x in (found, expected))
    assert all(map(torch.allclose, found, expected))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_match_between_torch_and_the_reference(activation: str) -> None:
    x = torch.linspace(-9, 9, 181, dtype=torch.float64)
    expected = formula_of(activation).function(x.numpy())
    assert torch.allclose(ACTIVATION_FUNCTIONS[activation](x), torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_have_gradients(activation: str) -> None:
    given = tensors((3, 4), (4, 2), (2,))
    assert torch.autograd.gradgradcheck(lambda *x: hgemm_torch.matmul(*x, activation=activation), given)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", ["bias", "batch", "one b for all", "c"])
def test_opcheck_passes(case: str, activation: str) -> None:
    shapes, options = CASES[case]
    given = tensors(*shapes, dtype=torch.float32)
    torch.library.opcheck(torch.ops.hgemm.matmul.default, tuple(given), {"activation": activation, **options})


def test_opcheck_passes_for_a_transposed_weight_without_gradients() -> None:
    x, w = tensors((6, 8), (4, 8), dtype=torch.float16, requires_grad=False)
    torch.library.opcheck(torch.ops.hgemm.matmul.default, (x, w.t()))


def test_linear_matches_torch() -> None:
    module = torch.nn.Linear(16, 8, dtype=torch.float64)
    ours = hgemm_torch.Linear.of(module, activation="silu").eval()
    assert ours.weight is module.weight and ours.bias is module.bias and not ours.training
    (x,) = tensors((2, 3, 16))
    expected = torch.nn.functional.silu(module(x))
    assert torch.allclose(ours(x), expected) and "activation=silu" in repr(ours)
    assert {*ours.state_dict()} == {*module.state_dict()}
    without = hgemm_torch.Linear(16, 8, bias=False, dtype=torch.float64)
    assert torch.allclose(without(x[0]), x[0] @ without.weight.t())
    with pytest.raises(ProblemError, match="activation 'tanh' is unknown"):
        hgemm_torch.Linear(16, 8, activation="tanh")


def test_torch_compile_makes_one_graph() -> None:
    """Traced, with gradients, without a break; aot_eager asks for no compiler."""
    x, w, bias = tensors((6, 16), (8, 16), (8,), dtype=torch.float32)

    def block(x):
        return hgemm_torch.linear(x, w, bias, activation="gelu").square().sum()

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    found, expected = (torch.autograd.grad(f(x), (x, w, bias)) for f in (compiled, block))
    assert all(map(torch.allclose, found, expected))


def test_mismatched_shapes_are_rejected_before_allocation() -> None:
    a, b = torch.empty(4, 6, device="meta"), torch.empty(5, 3, device="meta")
    with pytest.raises(RuntimeError, match=r"a is \(4, 6\) and b \(5, 3\)"):
        hgemm_torch.matmul(a, b)
    assert hgemm_torch.matmul(a[None].expand(2, 4, 6), b.new_empty(6, 3)).shape == (2, 4, 3)


def test_use_sets_the_library_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hgemm.torch.operator, "_library", None)
    with pytest.raises(LibraryError, match="no library is set: call hgemm.torch.use.folder."):
        hgemm_torch.used_library()
    with pytest.raises(LibraryError, match="does not exist"):
        hgemm_torch.use(tmp_path / "absent")
    named = hgemm_torch.use(tmp_path)
    assert named.folder == tmp_path and hgemm_torch.used_library() is named
    assert hgemm_torch.use(named) is named


# ---- Launches on tensors, by a driver whose device is the CPU ---------------------------------------------------------


@pytest.fixture
def launching(library: Library, driver: ComputingDriver, monkeypatch: pytest.MonkeyPatch) -> ComputingDriver:  # noqa: F811
    """Let tensors of the CPU pass for the device's: memory of DLPack's kind 1, on no stream."""
    monkeypatch.setitem(hgemm.arrays._DEVICE_KINDS, 1, "CPU")
    monkeypatch.setitem(ARRAY_ADAPTERS, torch.Tensor, replace(ARRAY_ADAPTERS[torch.Tensor], stream=lambda read: 0))
    monkeypatch.setitem(ARRAY_ADAPTERS, torch.nn.Parameter, ARRAY_ADAPTERS[torch.Tensor])
    monkeypatch.setattr(hgemm.torch.operator, "_library", library)
    return driver


def whole(*shape: int, dtype=torch.float16):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operator_launches_match_its_fake_implementation(launching: ComputingDriver, dtype) -> None:
    x, weight = whole(40, 64, dtype=dtype), torch.nn.Parameter(whole(48, 64, dtype=dtype))
    cases = [(x, weight.t()), (x.t().contiguous().t(), weight.t().contiguous()), (x[:, ::2], weight.t()[::2])]
    cases += [(torch.stack([x, x]), weight.t()), (x[:1], weight.t()), (x[:1].expand(3, 64), weight.t())]
    with torch.no_grad():
        for a, b in cases:
            found, promised = hgemm.torch.operator._launch(a, b), hgemm.torch.operator._meta(a.to("meta"), b.to("meta"))
            assert (found.double() == a.double() @ b.double()).all()
            assert (found.shape, found.stride(), found.dtype) == (promised.shape, promised.stride(), promised.dtype)
    assert len(launching.launches) == len(cases)


def test_library_matmul_rejects_tensors_that_require_gradients(
    launching: ComputingDriver,
    library: Library,  # noqa: F811
) -> None:
    x, weight = whole(40, 64), torch.nn.Parameter(whole(48, 64))
    with pytest.raises(ProblemError, match="requires gradients, but this call does not record them"):
        library.matmul(x, weight.t())
    out, plan = torch.empty(40, 48, dtype=torch.float16), library.plan(Problem(40, 48, 64))
    with torch.no_grad():
        assert plan(x, weight.t(), out) is out
    assert (out.double() == x.double() @ weight.detach().t().double()).all()


def test_use_without_an_argument_opens_the_growing_default_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HGEMM_LIBRARY", str(tmp_path / "mine"))
    before = hgemm.torch.operator._library
    try:
        library = hgemm.torch.use(cpp=False)
        assert library.folder == tmp_path / "mine" and hgemm.torch.used_library() is library
        assert isinstance(library.selector(Target.typical("sm_80")), GrowingSelector)
    finally:
        hgemm.torch.operator._library = before
