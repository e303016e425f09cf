"""Run aten's matrix products on kernels of a library: mm, addmm, bmm and baddbmm, and with them linear and matmul.

    with hgemm.torch.overridden() as products:
        y = model(x)
    print(products)

Products that no kernel supports run in torch, as before.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from hgemm.errors import DeviceError, LibraryError, ProblemError, UnsupportedError
from hgemm.library import Library
from hgemm.torch import operator

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_REFUSALS = (ProblemError, UnsupportedError, LibraryError)
_MAX_REFUSED = 4096
_MIN_TF32 = 65536
"""Products of fewer multiplications stay in torch, where cuBLAS computes them exactly."""
_OVER_PYTHON = {"allow_override": True} if "allow_override" in signature(torch.library.Library.impl).parameters else {}
"""Lets a kernel in Python replace another one, such as that of another package. Older versions of torch cannot."""
_current: Override | None = None


class Override:
    """Kernels of a library in the place of torch's, until `restore`.

    They are in C++ if the operator of `hgemm.torch.use` is, and in Python otherwise.

    Properties: `served` counts the products of each operator that ran on the library, `passed` those that ran in torch.
    """

    def __init__(self, key: str) -> None:
        self._served: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self._native = operator._native if hasattr(operator._native, "override") else None
        self._registration: torch.library.Library | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns of every kernel that replaces another
            if self._native is not None:
                self._native.override(key, _REFUSALS)
            else:
                self._register(key)

    def _register(self, key: str) -> None:
        """Register the kernels in Python."""
        self._refused: set[tuple[Any, ...]] = set()
        self._registration = torch.library.Library("aten", "IMPL")
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key  # not of the overloads `dtype` on the CPU
        names = [name for name in _OPERATORS if has_kernel(f"aten::{name}", key)]
        originals = {name: torch.library.get_kernel(f"aten::{name}", key) for name in names}
        try:
            for name, original in originals.items():
                call = partial(self._call, name, original)
                self._registration.impl(name, call, key, with_keyset=True, **_OVER_PYTHON)
        except RuntimeError as error:  # an older torch refuses to replace a kernel in Python
            self.restore()
            raise LibraryError(
                f"another package replaces torch's products: undo that first, or update torch. {error}"
            ) from error

    @property
    def served(self) -> Counter[str]:
        self._count()
        return self._served

    @property
    def passed(self) -> Counter[str]:
        self._count()
        return self._passed

    def _count(self) -> None:
        """Take over the counts of the kernels in C++."""
        if self._native is not None:
            counts = self._native.counts()
            self._served = Counter({name: served for name, (served, _) in counts.items() if served})
            self._passed = Counter({name: passed for name, (_, passed) in counts.items() if passed})

    def restore(self) -> None:
        """Give torch's kernels back. A second call does nothing."""
        global _current
        if self._native is not None:
            self._count()
            self._native.restore()
            self._native = None
        if self._registration is not None:
            self._registration._destroy()
            self._registration = None
        if _current is self:
            _current = None

    def __str__(self) -> str:
        served, passed = self.served.total(), self.passed.total()
        details = ", ".join(f"{name} {count}" for name, count in sorted(self.passed.items()))
        return f"{served} of {served + passed} products ran on the library" + (
            f"; torch ran {details}" if details else ""
        )

    def _call(self, name: str, original: Any, keys: Any, *given: Any, **options: Any) -> Tensor:
        tensors = given[: -1 if "dtype" in name else None]  # the overloads `dtype` have the type of the result last
        found = self._try(name, tensors, options) if given[len(tensors) :] in ((), (tensors[-1].dtype,)) else None
        (self._passed if found is None else self._served)[name] += 1
        return original.call_boxed(keys, *given, **options) if found is None else found

    def _try(self, name: str, tensors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor | None:
        """Return the product, or None if torch must compute it. What a library refused once is not tried again."""
        *_, a, b = tensors
        if not _eligible(a, b):
            return None
        key = (name, *((x.shape, x.stride(), x.dtype) for x in tensors), operator._precision(a))
        if key in self._refused:
            return None
        try:
            return _OPERATORS[name](tensors, options)
        except _REFUSALS:
            if len(self._refused) < _MAX_REFUSED:
                self._refused.add(key)
        except DeviceError:  # a captured launch whose kernel is not loaded yet
            if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                raise
        return None


def override(library: Library | str | PathLike[str] | None = None) -> Override:
    """Run aten's products of f16 and bf16 on CUDA on a library, by default that of `use`, until `restore` of the result.

    float32 is multiplied as tf32 if torch.set_float32_matmul_precision allows it. Products of fewer than 65,536 multiplications
    stay exact, in torch. Autograd, autocast, torch.compile and CUDA graphs work as before. Products without a kernel run in torch.

    Raises: LibraryError if there is no library, or this torch is too old.
    """
    return _override(library, "CUDA")


@contextmanager
def overridden(library: Library | str | PathLike[str] | None = None) -> Iterator[Override]:
    """Run aten's products on a library inside a `with` block. Raises: as `override`."""
    made = override(library)
    try:
        yield made
    finally:
        made.restore()


def _override(library: Library | str | PathLike[str] | None, key: str) -> Override:
    global _current
    if not hasattr(torch.library, "get_kernel"):
        raise LibraryError(
            f"torch {torch.__version__} has no torch.library.get_kernel: override needs torch 2.9 or later"
        )
    if library is not None or not operator.has_library():
        operator.use(library)
    if _current is not None:
        _current.restore()
    _current = Override(key)
    return _current


# ==== Operators ====


def _eligible(a: Tensor, b: Tensor) -> bool:
    """Return whether a kernel may support a product. Empty products, k of 0 and small products of float32 are torch's."""
    if a.dtype not in _DTYPES or a.dtype is not b.dtype or not a.numel() or not b.numel():
        return False
    if a.dtype is not torch.float32:
        return True
    return bool(operator._precision(a)) and a.shape[-2] * a.shape[-1] * b.shape[-1] >= _MIN_TF32


def _multiply(
    a: Tensor,
    b: Tensor,
    out: Tensor | None,
    bias: Tensor | None = None,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Tensor:
    """Return alpha a b + beta c + bias in `out`, or in a new tensor. Raises: as Library.matmul."""
    if out is None:
        out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    if out.shape != (*a.shape[:-1], b.shape[-1]) or out.dtype is not a.dtype:
        raise ProblemError("torch resizes or converts this result")
    with torch.no_grad():
        native = operator._native
        if native is not None:
            found = native.matmul(a, b, bias, c, alpha, beta, "none", out, False)
            if found is not NotImplemented:
                return out
        options: dict[str, Any] = {"precision": operator._precision(a), **operator._order_options()}
        readable = operator._readable(a), operator._readable(b)
        operator.used_library().matmul(*readable, out, bias, "none", alpha, beta, c, **options)
    return out


def _product(tensors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    """Compute mm or bmm."""
    a, b = tensors
    return _multiply(a, b, options.get("out"))


def _sum(tensors: tuple[Tensor, ...], options: dict[str, Any], in_place: bool = False) -> Tensor:
    """Compute addmm or baddbmm: beta * added + alpha * a b. A row with a beta of 1 is a bias."""
    added, a, b = tensors
    alpha, beta = float(options.get("alpha", 1)), float(options.get("beta", 1))
    out = added if in_place else options.get("out")
    shape = (*a.shape[:-1], b.shape[-1])
    if beta == 0:
        return _multiply(a, b, out, alpha=alpha)
    if added.dtype is not a.dtype or (in_place and added.shape != shape):
        raise ProblemError("torch converts or broadcasts what it adds")
    if added.shape == shape:
        return _multiply(a, b, out, c=added, alpha=alpha, beta=beta)
    if added.shape == shape[-1:] and beta == 1 and added.stride() == (1,):
        return _multiply(a, b, out, bias=added, alpha=alpha)
    raise ProblemError("no kernel broadcasts this tensor")


_in_place = partial(_sum, in_place=True)
_FORMS = ("", ".out", ".dtype", ".dtype_out")
_OPERATORS: dict[str, Callable[[tuple[Tensor, ...], dict[str, Any]], Tensor]] = {
    **dict.fromkeys((f"{name}{form}" for name in ("mm", "bmm") for form in _FORMS), _product),
    **dict.fromkeys((f"{name}{form}" for name in ("addmm", "baddbmm") for form in _FORMS), _sum),
    **dict.fromkeys(("addmm_", "baddbmm_"), _in_place),
}
