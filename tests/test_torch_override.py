"""aten's products on a library: on tensors of the CPU with a driver that computes there, and on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from native_driver import NativeDriver  # noqa: E402
from test_matmul import driver, library, opened  # noqa: E402, F401 (fixtures)
from test_torch_native import compiler, launching, whole  # noqa: E402, F401 (fixtures)

import hgemm.torch as hgemm_torch  # noqa: E402
from hgemm.errors import DeviceError, LibraryError, UnsupportedError  # noqa: E402
from hgemm.torch import aten as module  # noqa: E402
from hgemm.torch import native, operator  # noqa: E402

if not hasattr(torch.library, "get_kernel"):
    pytest.skip("this torch has no torch.library.get_kernel", allow_module_level=True)


def exact(a, b):
    """Return the product in float64, without an operator that is overridden."""
    return (a.double()[:, :, None] * b.double()).sum(1)


@pytest.fixture(params=["C++", "Python"])
def products(launching: NativeDriver, request: pytest.FixtureRequest) -> Iterator[module.Override]:  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setattr(operator, "_native", SimpleNamespace(matmul=operator._native.matmul))
        made = module._override(None, "CPU")
        yield made
        made.restore()


OVERLOADS = [f"{name}.{form}" for name in ("mm", "bmm", "addmm", "baddbmm") for form in ("dtype", "dtype_out")]


@pytest.fixture
def typed() -> Iterator[list[str]]:
    """Kernels of the CPU for the overloads with a type of the result, which only CUDA has. Yield the calls that they get."""
    calls: list[str] = []
    stand_ins = torch.library.Library("aten", "IMPL")
    for name in OVERLOADS:

        def kernel(*given, name=name, out=None, **options):
            *tensors, dtype = given
            calls.append(name)
            made = getattr(torch, name.split(".")[0])(*(x.double() for x in tensors), **options).to(dtype)
            return made if out is None else out.copy_(made)

        stand_ins.impl(name, kernel, "CPU")
    yield calls
    stand_ins._destroy()


def test_overloads_with_a_result_type_need_the_type_of_the_operands(
    typed: list[str], products: module.Override
) -> None:
    a, b, c = whole(40, 64), whole(64, 48), whole(40, 48)
    pairs, sums = torch.stack([a, a]), torch.stack([c, c])
    twice = torch.stack([b, b])
    wanted, added = exact(a, b), c.double() + exact(a, b)
    calls = {
        "mm": (lambda **to: torch.mm(a, b, **to), wanted),
        "bmm": (lambda **to: torch.bmm(pairs, twice, **to), torch.stack([wanted] * 2)),
        "addmm": (lambda **to: torch.addmm(c, a, b, **to), added),
        "baddbmm": (lambda **to: torch.baddbmm(sums, pairs, twice, **to), torch.stack([added] * 2)),
    }
    with torch.no_grad():
        for name, (call, expected) in calls.items():
            for to in ({}, {"out": torch.empty(expected.shape, dtype=a.dtype)}):
                assert (call(out_dtype=a.dtype, **to).double() == expected).all(), name
    assert products.served == dict.fromkeys(OVERLOADS, 1) and not typed
    with torch.no_grad():
        assert (torch.mm(a, b, out_dtype=torch.float32) == wanted).all()
    assert (typed, products.passed["mm.dtype"]) == (["mm.dtype"], 1)


def test_every_operator_runs_on_the_library(products: module.Override, launching: NativeDriver) -> None:  # noqa: F811
    a, b, c = whole(40, 64), whole(64, 48), whole(40, 48)
    batched = torch.stack([a, a]), torch.stack([b, b]), torch.stack([c, c])
    with torch.no_grad():
        out, in_place, in_place_3 = torch.empty_like(c), c.clone(), batched[2].clone()
        found = [
            (torch.mm(a, b), exact(a, b)),
            (torch.mm(a, b, out=out), exact(a, b)),
            (torch.addmm(c, a, b, beta=2, alpha=0.5), 2 * c.double() + 0.5 * exact(a, b)),
            (torch.addmm(c, a, b, out=torch.empty_like(c)), c.double() + exact(a, b)),
            (torch.addmm(c, a, b, beta=0), exact(a, b)),
            (in_place.addmm_(a, b), c.double() + exact(a, b)),
            (torch.bmm(batched[0], batched[1]), torch.stack([exact(a, b)] * 2)),
            (torch.baddbmm(batched[2], batched[0], batched[1]), torch.stack([c.double() + exact(a, b)] * 2)),
            (in_place_3.baddbmm_(batched[0], batched[1]), torch.stack([c.double() + exact(a, b)] * 2)),
            (torch.nn.functional.linear(a, b.t()), exact(a, b)),
            (torch.matmul(batched[0], b), torch.stack([exact(a, b)] * 2)),
        ]
    assert all((y.double() == wanted).all() for y, wanted in found)
    assert products.served.total() == len(found) == len(launching.launches)
    assert str(products).startswith(f"{len(found)} of ")


def test_gradients_are_products_of_the_library_too(products: module.Override) -> None:
    x, layer = whole(40, 64).requires_grad_(), torch.nn.Linear(64, 48, bias=False, dtype=torch.float16)
    with torch.no_grad():
        layer.weight.copy_(whole(48, 64))
    layer(x).sum().backward()
    assert products.served["mm"] == 3 and not products.passed["mm"]
    assert (x.grad.double() == layer.weight.double().sum(0)).all()


def test_unsupported_products_run_in_torch(products: module.Override, monkeypatch) -> None:
    a, b = whole(40, 64), whole(64, 48)
    with torch.no_grad():
        for x, y in ((a.double(), b.double()), (a.float(), b.float()), (a[:, :0], b[:0]), (a[:0], b)):
            assert torch.equal(torch.mm(x, y), x @ y)
        assert not products.served and products.passed["mm"] == 8
        asked = []

        def refuse(*given):
            asked.append(given)
            raise UnsupportedError("no kernel")

        monkeypatch.setattr(native, "launcher_of", refuse)
        for _ in range(2):
            assert torch.allclose(torch.mm(a, b).double(), exact(a, b), rtol=2e-3)
        assert len(asked) == 1, "a refused problem is not tried again"
        assert products.passed["mm"] == 10
        for added in (whole(1, 48), whole(48)[None].expand(40, 48).double().half()[:, :1], whole(48)):
            assert torch.allclose(torch.addmm(added, a, b).double(), added.double() + exact(a, b), rtol=2e-3)
        assert products.passed["addmm"] == 3 and not products.served


def test_resized_or_overlapping_results_run_in_torch(products: module.Override, launching: NativeDriver) -> None:  # noqa: F811
    a, b = whole(40, 64), whole(64, 48)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a result that it resizes
        for out in (torch.empty(0, dtype=torch.float16), torch.empty(3, 3, dtype=torch.float16)):
            assert (torch.mm(a, b, out=out).double() == exact(a, b)).all() and out.shape == (40, 48)
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(a, b, out=torch.empty(40, 48))
        square, wanted = whole(64, 64), exact(whole(64, 64), whole(64, 64))
        aliased = square.clone()
        torch.mm(aliased, aliased, out=aliased)
        for wrong in ((a, a), (torch.stack([a, a]), torch.stack([b, b, b]))):
            with pytest.raises(RuntimeError):
                (torch.mm if wrong[0].dim() == 2 else torch.bmm)(*wrong)
        assert not launching.launches and not products.served
        assert (torch.mm(square, square).double() == wanted).all() and products.served["mm"] == 1


def test_a_failed_launch_is_an_error_unless_a_graph_captures_it(
    products: module.Override,
    launching: NativeDriver,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = whole(40, 64), whole(64, 48)
    launching.status = 1
    with torch.no_grad():
        with pytest.raises(DeviceError, match="cannot launch"):
            torch.mm(a, b)
        launching.fake.captured = {launching.stream}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert (torch.mm(a, b).double() == exact(a, b)).all()
    assert (products.served["mm"], products.passed["mm"]) == (0, 1)


def test_the_kernels_in_cpp_do_not_enter_python(launching: NativeDriver, monkeypatch) -> None:  # noqa: F811
    a, b, c = whole(40, 64), whole(64, 48), whole(40, 48)
    made = module._override(None, "CPU")
    with torch.no_grad():
        torch.addmm(c, a, b)

        def entered(*given):
            raise AssertionError("entered")

        monkeypatch.setattr(native, "launcher_of", entered)
        monkeypatch.setattr(module.Override, "_call", entered)
        for _ in range(2):
            assert (torch.addmm(c, a, b).double() == c.double() + exact(a, b)).all()
        torch.mm(a.double(), b.double())
    made.restore()
    assert str(made) == "3 of 4 products ran on the library; torch ran mm 1"
    assert str(made) == "3 of 4 products ran on the library; torch ran mm 1", "the counts remain"


def test_override_is_undone(launching: NativeDriver) -> None:  # noqa: F811
    a, b = whole(40, 64), whole(64, 48)
    with torch.no_grad():
        first = module._override(None, "CPU")
        second = module._override(None, "CPU")
        torch.mm(a, b)
        assert (first.served.total(), second.served.total()) == (0, 1)
        second.restore()
        second.restore()
        torch.mm(a, b)
        assert second.served.total() == 1 == len(launching.launches)


def test_old_torch_gives_an_error(monkeypatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(LibraryError, match=r"override needs torch 2\.9"):
        hgemm_torch.override()


@pytest.mark.gpu
def test_models_run_on_the_library_eagerly_compiled_and_captured(tmp_path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024, bias=False), torch.nn.ReLU(), torch.nn.Linear(1024, 256, bias=False)
    )
    model = model.half().cuda()
    x = torch.randn(64, 512, device="cuda", dtype=torch.float16)
    wanted = model(x)
    with hgemm_torch.overridden() as products, torch.no_grad():
        eager = model(x)
        served = products.served.total()
        compiled = torch.compile(model)(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        graph.replay()
        torch.cuda.synchronize()
    assert served == 2
    for found in (eager, compiled, captured):
        assert torch.allclose(found, wanted, atol=1e-2, rtol=1e-2)
