"""Products of NumPy arrays on a machine without a GPU: the generator runs a kernel of the library on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hgemm import plugin
from hgemm.arrays import View
from hgemm.device import open_device
from hgemm.errors import DeviceError, HostArrayError, ProblemError, UnsupportedError
from hgemm.kernel import Kernel
from hgemm.plugin import MultiplyRequest
from hgemm.problem import Problem
from hgemm.products import KernelSource, MatmulOptions, choose_kernel, fold_batch
from hgemm.record import Record
from hgemm.selection_query import Target

_FIRST_ARCH = "sm_80"
"""The architecture that a library without kernels builds for."""


class HostLibrary(KernelSource, Protocol):
    """The part of a Library that products on the CPU use."""

    folder: Path

    @property
    def records(self) -> Mapping[str, Record]: ...


def multiply(library: HostLibrary, arrays: Mapping[str, Any], options: MatmulOptions) -> None:
    """Compute a product of NumPy arrays, or of torch tensors on the CPU, on the CPU. D and further results are written.

    The kernel is one for the newest architecture whose kernels support the product. The results are those of its tensor cores.

    Raises: ProblemError if there is a GPU, an array is elsewhere, or the product would take too long; UnsupportedError if no
        kernel supports it; LibraryError if the generator is not installed; NoCompiler without a C++ compiler.
    """
    import numpy  # programs with a GPU may lack it

    given = {name: _as_numpy(array) for name, array in arrays.items() if array is not None}
    host = [name for name, array in given.items() if isinstance(array, numpy.ndarray)]
    if not host or has_gpu():
        raise HostArrayError((host or [*given])[0])
    if others := [name for name in given if name not in host]:
        raise ProblemError(
            f"{host[0]} is a NumPy array and {others[0]} a {type(given[others[0]]).__name__}: "
            "pass arrays of NumPy only, or copy all to a GPU"
        )
    if given["D"].size:
        choose = partial(_choose, library, options)
        plugin.load("a product on the CPU", "copy the arrays to a GPU").multiply(
            MultiplyRequest(library.folder, given, choose)
        )


def _as_numpy(array: Any) -> Any:
    """Return the array of NumPy that shares the memory of a torch tensor on the CPU; other arrays as they are."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor) or array.device.type != "cpu":
        return array
    if array.dtype is torch.bfloat16:
        try:
            import ml_dtypes  # it adds bf16 to NumPy
        except ModuleNotFoundError:
            raise ProblemError(
                "a product of bf16 tensors on the CPU needs ml_dtypes: run `pip install ml_dtypes`, or pass f16"
            ) from None
        return array.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return array.detach().numpy()


def has_gpu() -> bool:
    """Return whether this machine has a GPU that kernels can run on."""
    try:
        open_device()
    except DeviceError:
        return False
    return True


def _choose(library: HostLibrary, options: MatmulOptions, views: Mapping[str, View]) -> tuple[Kernel, Problem]:
    archs = {record.arch: Target.typical(record.arch) for record in library.records.values()}
    targets = {target.number: target for target in archs.values()} or {0: Target.typical(_FIRST_ARCH)}
    reasons = []
    for _, target in sorted(targets.items(), reverse=True):
        try:
            return choose_kernel(library, fold_batch(views), options, target)
        except UnsupportedError as error:
            reasons.append(error)
    raise reasons[0]
