"""The default library of a process, and products with it: `hgemm.matmul(a, b)` and `hgemm.linear(x, weight)`.

The library is opened at the first product and kept. Tensors of torch go through hgemm.torch, so that gradients, autocast and
torch.compile work.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from hgemm.growth import can_build
from hgemm.library import Library, open_library


@cache
def library() -> Library:
    """Return the default library of this process: HGEMM_LIBRARY, or the user's folder.

    It builds missing kernels if the generator is installed.

    Raises: LibraryError if there is no library.
    """
    return open_library(build=can_build())


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    workspace: Any = None,
    stream: Any = None,
    precision: str = "",
    batch_invariant: bool = False,
    cublas_order: bool = False,
    epilogue: Any = None,
    inputs: Mapping[str, Any] | None = None,
) -> Any:
    """Return activation(alpha * a b + beta * c + bias), computed with the default library.

    The arguments are those of Library.matmul. Tensors of torch have gradients, unless an argument is set that hgemm.torch.matmul
    lacks. They use the library of hgemm.torch.use, if it was called.

    Shapes: a (m, k), b (k, n), out and c (m, n), bias (n,) or (m,); if m = n, bias is (n,). Each may have a leading batch.
        A bias (m, 1) of one product has one value per row, also if m = n.
    Raises: as Library.matmul, and LibraryError if there is no library.
    """
    plain = out is None and workspace is None and stream is None and not precision and not cublas_order
    if plain and epilogue is not None and activation is None and _is_torch(a):
        named = {name: x for name, x in (("bias", bias), ("c", c)) if x is not None}
        return _of_torch().fused(a, b, epilogue, {**named, **(inputs or {})}, alpha, beta, batch_invariant)
    if plain and epilogue is None and not inputs and _is_torch(a):
        options = {"alpha": alpha, "beta": beta, "activation": activation or "none"}
        return _of_torch().matmul(a, b, bias, c, **options, batch_invariant=batch_invariant)
    product = (a, b, out, bias, activation, alpha, beta, c, workspace, stream, precision, batch_invariant)
    return library().matmul(*product, cublas_order, epilogue, inputs)


def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    out: Any = None,
    stream: Any = None,
    precision: str = "",
    batch_invariant: bool = False,
) -> Any:
    """Return activation(x weight^T + bias), computed with the default library. `weight` is not copied.

    The arguments are those of Library.linear.

    Shapes: x (..., k), weight (n, k), bias (n,), result and out (..., n).
    Raises: as matmul.
    """
    if out is None and stream is None and not precision and _is_torch(x):
        return _of_torch().linear(x, weight, bias, activation or "none", batch_invariant)
    return library().linear(x, weight, bias, activation, out, stream, precision, batch_invariant)


def _is_torch(array: Any) -> bool:
    """Return whether an array is a tensor that the operator of torch computes with: one on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    return array.device.type != "cpu" or (
        "hgemm.torch.operator" in sys.modules
        and bool(torch._C._dispatch_has_kernel_for_dispatch_key("hgemm::matmul", "CPU"))
    )


def _of_torch() -> Any:
    """Return hgemm.torch with a library: the one in use, or the default one without the operator in C++, which takes long."""
    import hgemm.torch  # programs without torch use this module, too
    from hgemm.torch import operator

    if not operator.has_library():
        operator.use(library(), cpp=False)
    return hgemm.torch
