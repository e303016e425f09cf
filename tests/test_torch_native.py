"""The C++ operator of torch on tensors of the CPU, with a driver that computes there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from computing_driver import ComputingDriver  # noqa: E402
from fake_driver import MEMSET, unpack  # noqa: E402
from native_driver import NativeDriver, build_operator, library_on, operator_on  # noqa: E402
from test_matmul import driver, library, opened  # noqa: E402, F401 (fixtures)
from test_torch import CASES, tensors, whole  # noqa: E402

import hgemm.torch as hgemm_torch  # noqa: E402
import hgemm.torch.operator as operator  # noqa: E402
from hgemm import Library, ProblemError  # noqa: E402
from hgemm.errors import DeviceError, UnsupportedError  # noqa: E402
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS, matrices, operand_maps, starts_early  # noqa: E402
from hgemm.torch import native  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    build_operator()


@pytest.fixture
def launching(library: Library, driver: ComputingDriver) -> Iterator[NativeDriver]:  # noqa: F811
    """Register the C++ kernels for the CPU."""
    fake = NativeDriver(driver)
    with library_on(fake, library):
        yield fake


def exact(a, b):
    return a.double() @ b.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_are_cached_by_geometry(launching: NativeDriver, dtype) -> None:
    x, weight = whole(40, 64, dtype=dtype), torch.nn.Parameter(whole(48, 64, dtype=dtype))
    cases = [(x, weight.t()), (x.t().contiguous().t(), weight.t().contiguous()), (x[:, ::2], weight.t()[::2])]
    cases += [(torch.stack([x, x]), weight.t()), (x[:1], weight.t()), (x[:0], weight.t())]
    with torch.no_grad():
        for a, b in cases:
            promised = operator._meta(a.to("meta"), b.to("meta"))
            for call in (hgemm_torch.matmul, torch.ops.hgemm.matmul):
                found = call(a, b)
                assert (found.double() == exact(a, b)).all()
                assert (found.shape, found.stride(), found.dtype) == (promised.shape, promised.stride(), promised.dtype)
    assert len(launching.launches) == 2 * (len(cases) - 1), "an empty product launches nothing"


def test_linear_is_exact_for_any_number_of_axes(launching: NativeDriver) -> None:
    weight = whole(48, 64)
    for x in (
        whole(64),
        whole(5, 64),
        whole(2, 3, 64),
        whole(2, 2, 3, 64),
        whole(40, 128)[:, :64],
        whole(64).expand(5, 64),
        whole(4, 6, 64)[:, ::2],
    ):
        found = hgemm_torch.linear(x, weight)
        assert found.shape == (*x.shape[:-1], 48) and (found.double() == exact(x, weight.t())).all()
    layer = hgemm_torch.Linear.of(torch.nn.Linear(64, 48, bias=False, dtype=torch.float16))
    with torch.inference_mode():
        y = layer(whole(3, 64))
    assert torch.allclose(y.float(), whole(3, 64).float() @ layer.weight.float().t(), atol=0.1)


def test_a_batch_may_repeat_one_weight(launching: NativeDriver) -> None:
    x, weight = whole(3, 40, 64), whole(48, 64)
    expected = exact(x, weight.t())
    for b in (weight.t().expand(3, -1, -1), weight.t()[None]):
        for call in (hgemm_torch.matmul, torch.ops.hgemm.matmul):
            assert (call(x, b).double() == expected).all()
    with pytest.raises(ProblemError, match=r"B is \(2, 64, 48\), not \(3, 64, 48\)"):
        hgemm_torch.matmul(x, weight.t().expand(2, -1, -1))


def test_second_call_of_a_geometry_does_not_enter_python(launching: NativeDriver, monkeypatch) -> None:
    x, weight = whole(40, 64), whole(48, 64)
    hgemm_torch.linear(x, weight)

    def asked(*given):
        raise AssertionError("asked")

    monkeypatch.setattr(native, "launcher_of", asked)
    assert operator._native.linear(x, weight, None, "none", False) is not NotImplemented
    assert operator._native.matmul(x, weight.t(), None, None, 1.0, 0.0, "none", None, False) is not NotImplemented
    other = whole(40, 64) + 1
    assert (hgemm_torch.linear(other, weight).double() == exact(other, weight.t())).all()
    with pytest.raises(AssertionError, match="asked"):
        hgemm_torch.linear(x[1:], weight)
    with pytest.raises(AssertionError, match="asked"):
        torch.ops.hgemm.matmul(x[1:], weight.t())


def test_batch_invariant_products_have_their_own_launches(launching: NativeDriver, monkeypatch) -> None:
    x, weight, asked = whole(24, 64), whole(48, 64), []
    choose = native.launcher_of
    monkeypatch.setattr(native, "launcher_of", lambda *given: asked.append(given[3].batch_invariant) or choose(*given))
    for batch_invariant in (False, True, True, False):
        y = hgemm_torch.linear(x, weight, batch_invariant=batch_invariant)
        assert (torch.ops.hgemm.matmul(x, weight.t(), batch_invariant=batch_invariant) == y).all()
        assert (y.double() == exact(x, weight.t())).all()
    assert asked == [False, True]
    monkeypatch.setattr(operator, "_orders", (True, False))
    hgemm_torch.linear(x[:7], weight)
    assert asked == [False, True, True]


def test_gradients_of_batch_invariant_products_are_batch_invariant(launching: NativeDriver, monkeypatch) -> None:
    x, weight, asked = whole(24, 64).requires_grad_(), whole(48, 64).requires_grad_(), []
    choose = native.launcher_of
    monkeypatch.setattr(native, "launcher_of", lambda *given: asked.append(given[3].batch_invariant) or choose(*given))
    hgemm_torch.linear(x, weight, batch_invariant=True).sum().backward()
    assert asked == [True] * 3


def test_errors_of_selection_keep_their_type(launching: NativeDriver) -> None:
    x = whole(40, 64)
    for call in (hgemm_torch.matmul, torch.ops.hgemm.matmul):
        with pytest.raises(ProblemError, match=r"A is \(40, 64\) and B \(65, 48\), .* 64 and 65 here"):
            call(x, whole(48, 65).t())
        with pytest.raises(ProblemError, match="A is Int: use f16"):
            call(x.int(), x.int().t())
        with pytest.raises(ProblemError, match="A is f32, and tensor cores multiply only 11"):
            call(x.float(), x.float().t())
    with pytest.raises(UnsupportedError, match="hgemm cover"):
        hgemm_torch.linear(x, whole(48, 64), whole(48), "silu")
    with pytest.raises(ProblemError, match=r"A is f32, and .*\(A is x, B the transpose of weight, D the result\)$"):
        hgemm_torch.linear(x.float(), whole(48, 64).float())
    with pytest.raises(ProblemError, match="activation 'tanh' is unknown"):
        hgemm_torch.matmul(x, x.t(), activation="tanh")
    launching.status = 1
    with pytest.raises(ProblemError, match="activation 'tanh' is unknown"):
        torch.ops.hgemm.matmul(x, x.t(), activation="tanh")
    with pytest.raises(ProblemError, match="A has 4 axes and B 2: pass 2, or 3 with a batch"):
        torch.ops.hgemm.matmul(x[None, None], x.t())
    with pytest.raises(DeviceError, match="cannot launch hgemm_.*: a fake failure"):
        hgemm_torch.linear(x, whole(48, 64))


def test_gradients_use_the_operator(launching: NativeDriver) -> None:
    x, weight = whole(8, 16).requires_grad_(), whole(24, 16).requires_grad_()
    found = hgemm_torch.linear(x, weight)
    assert found.requires_grad and "Product" in found.grad_fn.name()
    launches = len(launching.launches)
    gradient = whole(8, 24)
    dx, dw = torch.autograd.grad(found, (x, weight), gradient)
    assert (dx.double() == exact(gradient, weight)).all() and (dw.double() == exact(gradient.t(), x)).all()
    assert len(launching.launches) == launches + 2
    with torch.no_grad():
        assert not hgemm_torch.linear(x, weight).requires_grad


def formula(a, b, bias=None, c=None, alpha=1.0, beta=0.0, activation="none"):
    y = alpha * (a @ b)
    y = y + beta * c if c is not None else y
    y = y if bias is None else y + (bias if bias.shape[-1] in (1, b.shape[-1]) else bias[..., None])
    return y if activation == "none" else getattr(torch.nn.functional, activation)(y)


@pytest.fixture
def recording() -> Iterator[None]:
    """Register the C++ kernels, and one of torch that computes in float64 instead of launches."""
    fake = NativeDriver(ComputingDriver.__new__(ComputingDriver))
    compute = torch.library.Library("hgemm", "IMPL")
    with operator_on(fake):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the kernel that it replaces
            compute.impl(
                "matmul", lambda *x, **options: formula(*x, **options).contiguous(), "CPU", allow_override=True
            )
        yield
        compute._destroy()


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu", "leaky_relu"])
@pytest.mark.parametrize(
    "case", ["plain", "bias", "bias of rows", "bias with two axes", "bias of one row", "c", "batch", "one b for all"]
)
def test_gradients_match_the_formula(recording: None, activation: str, case: str) -> None:
    shapes, options = CASES[case]
    given = tensors(*shapes)
    options = {"activation": activation, **options}

    def call(*x):
        return torch.ops.hgemm.matmul(*x, **options)

    assert "Product" in call(*given).grad_fn.name()
    assert torch.autograd.gradcheck(call, given)
    if activation != "leaky_relu":  # its gradient is not smooth
        assert torch.autograd.gradgradcheck(call, given)
    found, expected = (torch.autograd.grad(f(*given).sum(), given) for f in (call, lambda *x: formula(*x, **options)))
    assert all(map(torch.allclose, found, expected))


def test_autocast_decides_the_type(launching: NativeDriver) -> None:
    x, weight = whole(8, 16, dtype=torch.float32), whole(24, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = hgemm_torch.linear(x, weight)
    assert found.dtype == torch.bfloat16 and (found.double() == exact(x, weight.t())).all()


def test_dispatch_modes_and_compilation_see_the_operator(launching: NativeDriver) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    x, weight = whole(8, 16), whole(24, 16)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(str(function))
            return function(*arguments, **(keywords or {}))

    with Watch():
        hgemm_torch.linear(x, weight)
    assert "hgemm.matmul.default" in seen
    with FakeTensorMode() as mode:
        fake = hgemm_torch.linear(mode.from_tensor(x), mode.from_tensor(weight))
    assert fake.shape == (8, 24)
    launches = len(launching.launches)
    compiled = torch.compile(lambda x: hgemm_torch.linear(x, weight) + 1, backend="aot_eager", fullgraph=True)
    assert (compiled(x).double() == exact(x, weight.t()) + 1).all() and len(launching.launches) == launches + 1
    trained = weight.clone().requires_grad_()
    compiled = torch.compile(lambda x: hgemm_torch.linear(x, trained).sum(), backend="aot_eager", fullgraph=True)
    assert (torch.autograd.grad(compiled(x), trained)[0].double() == exact(torch.ones(24, 8), x)).all()


def test_opcheck_passes(launching: NativeDriver) -> None:
    x, w = whole(6, 8), whole(4, 8)
    torch.library.opcheck(torch.ops.hgemm.matmul.default, (x, w.t()))
    torch.library.opcheck(torch.ops.hgemm.matmul.default, (x.requires_grad_(), w.t().requires_grad_()))


def test_workspaces_belong_to_a_stream_or_a_capture(launching: NativeDriver, library: Library) -> None:  # noqa: F811
    x, weight, used = whole(16, 65536), whole(64, 65536), []
    simulate = launching.fake.kernel_of
    launching.fake.kernel_of = lambda problem: used.append(problem.workspace) or simulate(problem)
    for stream, captured in ((0, False), (0, False), (5, False), (5, True), (5, True), (0, False)):
        launching.stream = stream
        launching.fake.captured = {stream} if captured else set()
        assert (hgemm_torch.linear(x, weight).double() == exact(x, weight.t())).all()
    assert all(used) and used[0] == used[1] == used[5] and used[3] == used[4] and len({*used}) == 3
    assert launching.fake.zeroed == [WORKSPACE_COUNTERS * COUNTER_BYTES] * 3
    assert [launch.stream or 0 for launch in launching.launches] == [0, 0, 5, 5, 5, 0]
    library.workspace_bytes = 0
    operator._native.forget()
    hgemm_torch.linear(x, weight)
    assert used[-1] == 0


def test_native_launches_equal_python_launches(launching: NativeDriver, library: Library) -> None:  # noqa: F811
    """The same problem, maps, grid and attributes reach the driver."""
    with torch.no_grad():
        products = [
            (whole(m, k), whole(n, k).t()) for m, n, k in ((256, 512, 128), (64, 64, 4096), (1, 512, 512), (33, 40, 72))
        ]
        products.append((whole(128, 200).t(), whole(128, 304)))  # by edge maps
        for a, b in products:
            hgemm_torch.matmul(a, b)
            native_launch = launching.launches[-1]
            plan = library.kernel(launching.fake.symbols[-1])
            assert native_launch.block_x == plan.traits.threads
            assert native_launch.smem_bytes == plan.traits.smem_bytes
            if plan.traits.tensor_maps:
                problem = unpack(launching.problems[-1])
                maps = operand_maps(plan.traits, matrices(problem, plan.traits))
                addresses = {"a": problem.a, "b": problem.b, "d": problem.d}
                assert launching.maps[-1] == [
                    (addresses[name], *one.extents[:2], one.rule.box[0]) if one else (0, 0, 0, 0)
                    for name, of in maps.items()
                    for one in of
                ]
            early = starts_early(plan.traits, unpack(launching.problems[-1]), plan.prepare().resident_ctas)
            assert (launching.attributes[-1][:1] == b"\x06") == early
    assert len(launching.maps[-1]) == 7
    assert not launching.contexts, "each context that was entered was left"


def test_maps_are_encoded_once_for_each_address(launching: NativeDriver) -> None:
    a, b, other = whole(128, 200).t(), whole(128, 304), whole(128, 304)
    with torch.no_grad():
        results, encoded = [hgemm_torch.matmul(a, b)], [launching.fake.encoded]
        for second in (b, other):
            results.append(hgemm_torch.matmul(a, second))
            encoded.append(launching.fake.encoded)
    first, same, changed = launching.maps[-3:]
    assert first[:6] == same[:6] and encoded[1] - encoded[0] == 1, "D has another address"
    assert first[:3] == changed[:3] and first[3:6] != changed[3:6]
    assert encoded[2] - encoded[1] == 1 + sum(any(one) for one in changed[3:6])


def test_a_captured_launch_begins_early_only_after_a_kernel_of_ours(launching: NativeDriver) -> None:
    x, weight = whole(256, 128), whole(512, 128)

    def begins_early() -> bool:
        hgemm_torch.linear(x, weight)
        return launching.attributes[-1][:1] == b"\x06"

    with torch.no_grad():
        assert begins_early()
        launching.stream, launching.fake.captured = 7, {7}
        assert [begins_early() for _ in range(3)] == [False, True, True]
        own = launching.fake.dependencies
        for nodes, ports, expected in (
            (["foreign"], [], False),
            ([MEMSET], [], False),
            ([*own, MEMSET], [], False),
            (own, [1], True),
            (own, [2], False),
        ):
            launching.fake.dependencies, launching.fake.ports = nodes, ports
            assert begins_early() == expected, (nodes, ports)
        launching.fake.captured = set()
        assert begins_early()


def test_external_matmul_writes_out(launching: NativeDriver) -> None:
    a, b = whole(24, 32), whole(32, 40)
    out = torch.zeros(24, 40, dtype=torch.float16)
    hgemm_torch.external_matmul(a, b, out=out)
    assert (out.double() == exact(a, b)).all()
    square = whole(64, 64)
    with pytest.raises(ProblemError, match="D overlaps A"):
        hgemm_torch.external_matmul(square, square.clone(), out=square)


def test_changing_the_library_selects_again(launching: NativeDriver, library: Library, tmp_path: Path) -> None:  # noqa: F811
    x, weight = whole(8, 16), whole(24, 16)
    hgemm_torch.linear(x, weight)
    operator._library = Library(tmp_path)
    operator._start_native("CPU")
    with pytest.raises(UnsupportedError, match="no kernel runs on sm_90"):
        hgemm_torch.linear(x, weight)


def test_threads_share_the_cache(launching: NativeDriver) -> None:
    weight, wrong = whole(24, 16), []

    def work(seed: int) -> None:
        for rows in range(1, 6):
            x = whole(rows, 16) + seed % 2
            if not (hgemm_torch.linear(x, weight).double() == exact(x, weight.t())).all():
                wrong.append((seed, rows))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_capture_rejects_slow_first_calls(launching: NativeDriver, library: Library) -> None:  # noqa: F811
    from hgemm.capture import forbid_in_capture

    find = library.selector

    def build(target):
        forbid_in_capture("build a kernel")
        return find(target)

    library.selector = build
    x, weight = whole(8, 16), whole(24, 16)
    launching.fake.captured = {0}
    with pytest.raises(
        DeviceError, match="cannot build a kernel while a CUDA graph is captured: call the product once"
    ):
        hgemm_torch.linear(x, weight)
    launching.fake.captured = set()
    hgemm_torch.linear(x, weight)
    launching.fake.captured = {0}
    hgemm_torch.linear(x, weight)


def test_slower_launch_of_a_capture_is_not_cached(launching: NativeDriver, library: Library) -> None:  # noqa: F811
    from hgemm.capture import forbid_in_capture

    find, built = library.selector, []

    def build(target):
        try:
            forbid_in_capture("build a kernel")
            built.append(target)
        except DeviceError:
            pass  # a slower kernel serves the call
        return find(target)

    library.selector = build
    x, weight, out = whole(8, 16), whole(24, 16), torch.empty(8, 24, dtype=torch.float16)
    for call in (lambda: hgemm_torch.linear(x, weight), lambda: library.matmul(x, weight.t(), out)):
        for captured, builds in (({0}, 0), ({0}, 0), (set(), 1), ({0}, 1), (set(), 1)):
            launching.fake.captured = captured
            call()
            assert len(built) == builds
        built.clear()


# ---- The build --------------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_operator_stays_in_python(tmp_path: Path) -> None:
    environment = {"HGEMM_CACHE_DIR": str(tmp_path), "CXX": "no-such-compiler"}
    with pytest.warns(UserWarning, match="there is no C.. compiler: install c.. or g.. or clang.., or set CXX"):
        assert native.load(environment) is None
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'fatal error: Python.h: no such file' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.warns(UserWarning, match="fatal error: Python.h: no such file"):
        assert native.load({**environment, "CXX": str(failing)}) is None
    with pytest.warns(UserWarning, match="env fails: fatal error: Python.h: no such file"):
        assert native.load({**environment, "CXX": f"env {failing}"}) is None
    assert not list((tmp_path / "torch").glob("*.so"))
