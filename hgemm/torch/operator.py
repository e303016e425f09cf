"""The operator torch.ops.hgemm.matmul: its schema, shapes and gradients, and the functions that call it.

The kernels of the dispatcher are in C++ (hgemm/torch/operator.cpp) where a compiler is found, and in Python otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hgemm.errors import DeviceError, HgemmError, LibraryError, ProblemError, unknown_word
from hgemm.library import Library, open_library
from hgemm.problem import ACTIVATIONS
from hgemm.products import check_linear, explain_operands
from hgemm.torch import native

SCHEMA = (
    "(Tensor a, Tensor b, Tensor? bias=None, Tensor? c=None, *, "
    'float alpha=1.0, float beta=0.0, str activation="none", bool batch_invariant=False) -> Tensor'
)
_library: Library | None = None
_orders = (False, False)
"""Whether all products are batch-invariant, and whether they prefer the order of cuBLASLt."""


def use(
    library: Library | str | PathLike[str] | None = None,
    *,
    cpp: bool = True,
    batch_invariant: bool = False,
    cublas_order: bool = False,
) -> Library:
    """Set the library of this process: an open one or a folder. By default, the default library, which builds missing kernels.

    The first use on a machine with a GPU builds the operator in C++, which takes about 20 s, and keeps it in the cache. Without
    a compiler, or with `cpp=False`, the operator runs in Python, at about 10 us more a call. With `batch_invariant`, the bits of a
    row of each product do not depend on the number of rows. `cublas_order` prefers the order of k of cuBLASLt's unsplit kernels.

    Raises: LibraryError if there is no library.
    """
    global _library, _orders
    _orders = (batch_invariant, cublas_order)
    _library = library if isinstance(library, Library) else open_library(library, build=library is None)
    if cpp and torch.cuda.is_available():
        _start_native()
    else:
        _stop_native()
    return _library


def always_invariant() -> bool:
    """Return whether all products are batch-invariant."""
    return _orders[0]


def has_library() -> bool:
    """Return whether a library is set."""
    return _library is not None


def used_library() -> Library:
    """Return the library in use. Raises LibraryError if none was set."""
    if _library is None:
        raise LibraryError("no library is set: call hgemm.torch.use(folder)")
    return _library


# ==== Functions ====


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
    batch_invariant: bool = False,
) -> Tensor:
    """Return activation(alpha * a b + beta * c + bias) as a new tensor, with gradients for all four tensors.

    float32 is multiplied as tf32 if torch.set_float32_matmul_precision allows it, and is rejected otherwise. With
    `batch_invariant`, the bits of a row do not depend on the number of rows.

    Shapes: as Library.matmul. The gradient of a broadcast batch is summed.
    Raises: as Library.matmul.
    """
    if not torch.compiler.is_compiling():
        if _native is not None:
            found = _native.matmul(a, b, bias, c, alpha, beta, activation, None, batch_invariant)
            if found is not NotImplemented:
                return found
        check_activation(activation)
    options = {"alpha": alpha, "beta": beta, "activation": activation, "batch_invariant": batch_invariant}
    return torch.ops.hgemm.matmul(a, b, bias, c, **options)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    batch_invariant: bool = False,
) -> Tensor:
    """Return activation(x weight^T + bias). Shapes: x (..., k), weight (n, k), bias (n,), result (..., n)."""
    if torch.compiler.is_compiling():
        return _linear(x, weight, bias, activation, batch_invariant)
    try:
        if _native is not None:
            found = _native.linear(x, weight, bias, activation, batch_invariant)
            if found is not NotImplemented:
                return found
        check_linear(x, weight, bias)
        return _linear(x, weight, bias, activation, batch_invariant)
    except HgemmError as error:
        explain_operands(error)
        raise


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, batch_invariant: bool) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    d = matmul(rows, weight.t(), bias, activation=activation, batch_invariant=batch_invariant)
    return d.reshape(*x.shape[:-1], weight.shape[0])


def external_matmul(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Write a b to `out`. torch._inductor.config.external_matmul takes this function as a candidate of max-autotune.

    Shapes: a (m, k), b (k, n), out (m, n).
    Raises: as Library.matmul.
    """
    with torch.no_grad():
        if _native is not None:
            found = _native.matmul(a, b, None, None, 1.0, 0.0, "none", out, False)
            if found is not NotImplemented:
                return out
        return used_library().matmul(_readable(a), _readable(b), out, precision=_precision(a), **_order_options())


def check_activation(activation: str) -> str:
    """Return the activation. Raises ProblemError if it is unknown."""
    if activation not in ACTIVATIONS:
        raise ProblemError(str(unknown_word("activation", activation, ACTIVATIONS)))
    return activation


ACTIVATION_FUNCTIONS = {
    "none": lambda x: x,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "leaky_relu": nn.functional.leaky_relu,
}
"""The activations as functions of torch, which gives gradients of them."""


# ==== The kernels in Python ====


def _launch(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
    batch_invariant: bool = False,
) -> Tensor:
    options: dict[str, Any] = {"precision": _precision(a), **_order_options(batch_invariant)}
    return used_library().matmul(_readable(a), _readable(b), None, bias, activation, alpha, beta, c, **options)


def _order_options(batch_invariant: bool = False) -> dict[str, Any]:
    always, cublas_order = _orders
    return {"batch_invariant": batch_invariant or always, "cublas_order": cublas_order}


def _precision(a: Tensor) -> str:
    return "tf32" if a.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest" else ""


def _readable(x: Tensor) -> Tensor:
    """Return a tensor with one contiguous axis among the last two, and rows or columns that do not overlap.

    It is a copy if `x` has no such axis, or is expanded along the other one.
    """
    if x.dim() < 2:
        return x
    (rows, columns), (row_stride, column_stride) = x.shape[-2:], x.stride()[-2:]
    by_rows = column_stride == 1 and (rows <= 1 or row_stride >= columns)
    by_columns = row_stride == 1 and (columns <= 1 or column_stride >= rows)
    return x if by_rows or by_columns else x.contiguous()


def check_shapes(a: Tensor, b: Tensor) -> None:
    """Check the shapes of fake tensors. Raises RuntimeError if they do not form a product."""
    torch._check(a.dim() in (2, 3) and b.dim() in (2, 3), lambda: "a and b have 2 axes, or 3 with a batch")
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"a is {tuple(a.shape)} and b {tuple(b.shape)}: k differs")


def _meta(a: Tensor, b: Tensor, bias: Tensor | None = None, c: Tensor | None = None, **options: Any) -> Tensor:
    """Return a tensor with the shape, type and strides of the product, without data."""
    check_shapes(a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


def _differentiable(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
    batch_invariant: bool = False,
) -> Tensor:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, bias, c)):
        return _Product.apply(a, b, bias, c, alpha, beta, activation, batch_invariant)
    options = {"alpha": alpha, "beta": beta, "activation": activation, "batch_invariant": batch_invariant}
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.hgemm.matmul(a, b, bias, c, **options)


def _cast(device_type: str) -> Callable[..., Tensor]:
    """Return the kernel that casts to the type of autocast, as torch.nn.functional.linear does."""
    key = f"Autocast{device_type.upper()}"
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast(a: Tensor, b: Tensor, bias: Tensor | None = None, c: Tensor | None = None, **options: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device_type)
        given = (x if x is None or not x.is_floating_point() else x.to(dtype) for x in (a, b, bias, c))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.hgemm.matmul(*given, **options)

    return cast


# ==== Gradients ====


class _Product(torch.autograd.Function):
    """The operator with gradients. They are products of the same library."""

    @staticmethod
    def forward(
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        c: Tensor | None,
        alpha: float,
        beta: float,
        activation: str,
        batch_invariant: bool,
    ) -> Tensor:
        options = {"alpha": alpha, "beta": beta, "activation": activation, "batch_invariant": batch_invariant}
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.hgemm.matmul(a, b, bias, c, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, bias, c, *ctx.options = inputs
        result = output if ctx.options[2] == "relu" else None  # its sign is all that the gradient needs
        ctx.save_for_backward(a, b, bias, c, result)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        a, b, bias, c, result = ctx.saved_tensors
        alpha, beta, _, invariant = ctx.options
        d = _before_activation(ctx.options, d, a, b, bias, c, result)
        needed = ctx.needs_input_grad
        return (
            _sum_to(torch.ops.hgemm.matmul(d, b.mT, alpha=alpha, batch_invariant=invariant), a.shape)
            if needed[0]
            else None,
            _gradient_b(a, d, b, alpha, invariant) if needed[1] else None,
            d.sum_to_size(_broadcast(bias, d)).reshape(bias.shape) if bias is not None and needed[2] else None,
            _sum_to(beta * d, c.shape) if c is not None and needed[3] else None,
            *(None, None, None, None),
        )


def _gradient_b(a: Tensor, d: Tensor, b: Tensor, alpha: float, invariant: bool) -> Tensor:
    if b.dim() == 2:  # the gradient sums over the batch, as over rows
        a, d = a.reshape(-1, a.shape[-1]), d.reshape(-1, d.shape[-1])
    options = {"alpha": alpha, "batch_invariant": invariant}
    if b.stride(-1) != 1 and b.stride(-2) == 1:  # as a weight (n, k) has it, else autograd copies it
        return _sum_to(torch.ops.hgemm.matmul(d.mT, a, **options).mT, b.shape)
    return _sum_to(torch.ops.hgemm.matmul(a.mT, d, **options), b.shape)


def _before_activation(
    options: Sequence[Any],
    d: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    c: Tensor | None,
    result: Tensor | None,
) -> Tensor:
    """Return the gradient of the activation's argument, which is recomputed if the activation needs it."""
    alpha, beta, activation, invariant = options
    if activation == "none":
        return d
    if activation == "relu":
        assert result is not None
        return torch.where(result > 0, d, 0)
    x = torch.ops.hgemm.matmul(a, b, None, c, alpha=alpha, beta=beta, batch_invariant=invariant)
    x = x if bias is None else x + bias.reshape(_broadcast(bias, x))
    pullback: Callable[..., Any] = torch.func.vjp(ACTIVATION_FUNCTIONS[activation], x)[1]
    return pullback(d)[0]


def _broadcast(bias: Tensor, d: Tensor) -> tuple[int, ...]:
    """Return the shape that broadcasts a bias over the rows or the columns of the product."""
    if bias.dim() == d.dim() == 2:
        return tuple(bias.shape)
    batch = (bias.shape[0],) if bias.dim() == 2 else ()
    extent = bias.shape[-1]
    return (*batch, 1, extent) if extent == d.shape[-1] else (*batch, extent, 1)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Return a gradient summed over the batch if the operand has one matrix for all."""
    return x if x.shape == shape else x.sum_to_size(shape)


# ==== Registration ====


def _launch_nowhere(a: Tensor, *others: Any, **options: Any) -> Any:
    """Stand in for an operator on devices for which neither the package nor the program registers it."""
    fix = "move the tensors to the GPU; without one, hgemm.matmul and hgemm.linear compute on the CPU"
    raise ProblemError(f"a is on {a.device}: {fix}")


def reject_other_devices(operator: str) -> torch.library.Library:
    """Let an operator explain that it needs a GPU, also in compiled programs. Kernels of single devices take precedence."""
    registration = torch.library.Library("hgemm", "IMPL")
    registration.impl(operator, _launch_nowhere, "CompositeExplicitAutograd")
    return registration


_native: Any = None
"""The module of the C++ operator while its kernels are registered, else None."""
_python: Any = None
"""The registration of the kernels in Python."""


def _register_python() -> None:
    global _python
    _python = torch.library.Library("hgemm", "IMPL")
    _python.impl("matmul", _launch, "CUDA")
    _python.impl("matmul", _differentiable, "Autograd")
    for device_type in ("cuda", "cpu"):
        _python.impl("matmul", _cast(device_type), f"Autocast{device_type.upper()}")


def _start_native(backend: str = "CUDA", driver: dict[str, int] | None = None) -> None:
    """Register the kernels in C++ in the place of those in Python, if they can be built."""
    global _native, _python
    if _native is not None:
        _native.forget()  # the launches of the library before
        return
    try:
        addresses = driver or native.driver_addresses()
    except native.BuildError as error:
        native.warn_unavailable(error)
        return
    module = native.load()
    if module is None:
        return
    _python._destroy()
    _python = None
    answers = native.OperatorCallbacks(used_library, lambda: _orders)
    codes = {word: code for code, word in enumerate(ACTIVATIONS)}
    callbacks = (answers.describe, answers.describe_expression, answers.allocate, _Product.apply)
    module.configure(addresses, *callbacks, codes, ProblemError, DeviceError, backend)
    _native = module


def _stop_native() -> None:
    """Register the kernels in Python again."""
    global _native
    if _native is not None:
        _native.release()
        _native = None
        _register_python()


torch.library.define("hgemm::matmul", SCHEMA, tags=torch.Tag.pt2_compliant_tag)
torch.library.register_fake("hgemm::matmul", _meta)
_elsewhere = reject_other_devices("matmul")
_register_python()
