"""The operator of torch on a GPU: what opcheck asks, gradients beside torch's, and torch.compile."""

from __future__ import annotations

import pytest
from test_matmul_gpu import make_library

from hgemm.errors import UnsupportedError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory):
    pytest.importorskip("torch")
    import hgemm.torch

    hgemm.torch.use(make_library(tmp_path_factory))
    return hgemm.torch


def halves(*shapes: tuple[int, ...]) -> list:
    import torch

    return [torch.randn(shape, device="cuda", dtype=torch.float16).requires_grad_() for shape in shapes]


def close(found, expected) -> bool:
    """Tell whether they differ by some roundings to f16, of 2^-11 each, of the largest element."""
    return bool((found.double() - expected.double()).abs().max() < 2.0**-8 * expected.double().abs().max())


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_opcheck_passes(ours, activation: str) -> None:
    import torch

    x, w = halves((64, 128), (96, 128))
    try:
        torch.library.opcheck(torch.ops.hgemm.matmul.default, (x, w.t()), {"activation": activation})
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_torch(ours, activation: str, compiled: bool) -> None:
    import torch
    from torch.nn.functional import gelu, linear, relu, silu

    after = {"none": lambda y: y, "relu": relu, "gelu": gelu, "silu": silu}[activation]
    x, w = halves((4, 32, 128), (96, 128))

    def block(x, w):
        return ours.linear(x, w, activation=activation)

    call = torch.compile(block, fullgraph=True) if compiled else block
    try:
        y = call(x, w)
    except UnsupportedError as error:
        pytest.skip(str(error))
    expected = after(linear(x.double(), w.double()))
    assert close(y, expected)
    gradient = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w), gradient)
    wanted = torch.autograd.grad(expected, (x, w), gradient.double())
    assert all(close(f, e) for f, e in zip(found, wanted))


def test_a_layer_is_compiled_and_captured(ours) -> None:
    """reduce-overhead captures graphs, in which the operator allocates from the graph's pool."""
    import torch

    layer = torch.nn.Linear(128, 256, bias=False, device="cuda", dtype=torch.float16)
    mine = torch.compile(ours.Linear.of(layer), mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(32, 128, device="cuda", dtype=torch.float16)
            assert close(mine(x), layer(x))
