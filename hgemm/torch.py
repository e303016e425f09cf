"""The operator torch.ops.hgemm.matmul: products of a library with gradients, for eager and compiled models. Needs torch.

import hgemm.torch
hgemm.torch.use("emitted")
y = hgemm.torch.linear(x, weight, activation="relu")
"""

from __future__ import annotations

from os import PathLike

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("hgemm.torch needs torch: pip install torch", name="torch") from None
from torch import Tensor, nn

import hgemm
from hgemm.errors import LibraryError, ProblemError, unknown_word
from hgemm.library import Library
from hgemm.problem import ACTIVATIONS

SCHEMA = (
    "(Tensor a, Tensor b, Tensor? bias=None, Tensor? c=None, *, "
    'float alpha=1.0, float beta=0.0, str activation="none") -> Tensor'
)
_library: Library | None = None


def use(library: Library | str | PathLike[str]) -> Library:
    """Set the library of this process: an open one or a folder. Raises LibraryError if there is none."""
    global _library
    _library = library if isinstance(library, Library) else hgemm.open(library)
    return _library


def used_library() -> Library:
    """Return the library in use. Raises LibraryError if none was set."""
    if _library is None:
        raise LibraryError("no library is set: call hgemm.torch.use(folder)")
    return _library


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
) -> Tensor:
    """Return activation(alpha * a b + beta * c + bias) as a new tensor, with gradients for all four tensors.

    float32 is multiplied as tf32 if torch.set_float32_matmul_precision allows it, and is rejected otherwise.

    Shapes: as Library.matmul. The gradient of a broadcast batch is summed.
    Raises: as Library.matmul.
    """
    return torch.ops.hgemm.matmul(a, b, bias, c, alpha=alpha, beta=beta, activation=activation)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """Return activation(x weight^T + bias). Shapes: x (..., k), weight (n, k), bias (n,), result (..., n)."""
    rows = x.reshape(-1, x.shape[-1])
    return matmul(rows, weight.t(), bias, activation=activation).reshape(*x.shape[:-1], weight.shape[0])


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters, computed by the library in use and followed by an activation.

    The library needs a variant with this bias and activation: `hgemm cover --add` generates one.
    """

    def __init__(self, *arguments, activation: str = "none", **options) -> None:
        if activation not in ACTIVATIONS:
            raise ProblemError(str(unknown_word("activation", activation, ACTIVATIONS)))
        super().__init__(*arguments, **options)
        self.activation = activation

    @classmethod
    def of(cls, module: nn.Linear, activation: str = "none") -> Linear:
        """Return a replacement of a torch.nn.Linear that shares its parameters."""
        made = cls(
            module.in_features, module.out_features, module.bias is not None, device="meta", activation=activation
        )
        made.weight, made.bias = module.weight, module.bias
        return made.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return super().extra_repr() + f", activation={self.activation}" * (self.activation != "none")


# ==== The operator ====


def _launch(a, b, bias=None, c=None, *, alpha=1.0, beta=0.0, activation="none"):
    precision = "tf32" if a.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest" else ""
    return used_library().matmul(
        _readable(a), _readable(b), None, bias, activation, alpha, beta, c, precision=precision
    )


def _readable(x: Tensor) -> Tensor:
    """Return a tensor with one contiguous axis among the last two. It is a copy if `x` has none."""
    rows, columns = x.stride()[-2:] if x.dim() > 1 else (0, 1)
    return x if rows == 1 or columns == 1 else x.contiguous()


def _meta(a, b, bias=None, c=None, *, alpha=1.0, beta=0.0, activation="none"):
    """Return a tensor with the shape, type and strides of the product, without data."""
    torch._check(a.dim() in (2, 3) and b.dim() in (2, 3), lambda: "a and b have 2 axes, or 3 with a batch")
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"a is {tuple(a.shape)} and b {tuple(b.shape)}: k differs")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


def _save(ctx, inputs, keyword_only_inputs, output) -> None:
    a, b, bias, c = inputs
    ctx.options = keyword_only_inputs
    result = output if keyword_only_inputs["activation"] == "relu" else None  # its sign is all that the gradient needs
    ctx.save_for_backward(a, b, bias, c, result)


def _gradients(ctx, d: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of a, b, bias and c. They are products of the same library."""
    a, b, bias, c, result = ctx.saved_tensors
    alpha, beta = ctx.options["alpha"], ctx.options["beta"]
    d = _before_activation(ctx.options, d, a, b, bias, c, result)
    needed = ctx.needs_input_grad
    return (
        _sum_to(torch.ops.hgemm.matmul(d, b.mT, alpha=alpha), a.shape) if needed[0] else None,
        _gradient_b(a, d, b, alpha) if needed[1] else None,
        d.sum_to_size(_broadcast(bias, d)).reshape(bias.shape) if bias is not None and needed[2] else None,
        _sum_to(beta * d, c.shape) if c is not None and needed[3] else None,
    )


def _gradient_b(a: Tensor, d: Tensor, b: Tensor, alpha: float) -> Tensor:
    if b.dim() == 2:  # the gradient sums over the batch, as over rows
        a, d = a.reshape(-1, a.shape[-1]), d.reshape(-1, d.shape[-1])
    return _sum_to(torch.ops.hgemm.matmul(a.mT, d, alpha=alpha), b.shape)


def _before_activation(options, d, a, b, bias, c, result) -> Tensor:
    """Return the gradient of the activation's argument, which is recomputed if the activation needs it."""
    activation = options["activation"]
    if activation == "none":
        return d
    if activation == "relu":
        return torch.where(result > 0, d, 0)
    x = torch.ops.hgemm.matmul(a, b, None, c, alpha=options["alpha"], beta=options["beta"])
    x = x if bias is None else x + bias.reshape(_broadcast(bias, x))
    _, pullback = torch.func.vjp(getattr(nn.functional, activation), x)
    return pullback(d)[0]


def _broadcast(bias: Tensor, d: Tensor) -> tuple[int, ...]:
    """Return the shape that broadcasts a bias over the rows or the columns of the product."""
    batch = (bias.shape[0],) if bias.dim() == 2 else ()
    extent = bias.shape[-1]
    return (*batch, 1, extent) if extent == d.shape[-1] else (*batch, extent, 1)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Return a gradient summed over the batch if the operand has one matrix for all."""
    return x if x.shape == shape else x.sum_to_size(shape)


torch.library.define("hgemm::matmul", SCHEMA, tags=torch.Tag.pt2_compliant_tag)
torch.library.impl("hgemm::matmul", "cuda", _launch)
torch.library.register_fake("hgemm::matmul", _meta)
torch.library.register_autograd("hgemm::matmul", _gradients, setup_context=_save)
