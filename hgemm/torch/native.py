"""The operator in C++: its build, and the answers to its questions about new geometries and workspaces."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hgemm.arrays import ARRAY_ADAPTERS, View
from hgemm.capture import preparing
from hgemm.errors import LibraryError
from hgemm.library import Library
from hgemm.object_cache import cache_base, get_or_build, seal
from hgemm.problem import ACTIVATIONS
from hgemm.products import MatmulOptions, launcher_of
from hgemm.workspace import workspace_address

MODULE = "hgemm_torch_operator"
SOURCE = Path(__file__).with_name("operator.cpp")
COMPILERS = ("c++", "g++", "clang++")
STANDARDS = ("c++17", "c++20")
"""The headers of torch need the first or, in later versions, the second."""
OVERRIDES = ("-DHGEMM_OVERRIDES",) if hasattr(torch.library, "get_kernel") else ()
"""Builds the kernels that replace aten's, which torch 2.9 and later support."""
COMPILE_TIMEOUT_S = 600.0
_log = logging.getLogger("hgemm")


class BuildError(Exception):
    """The operator cannot be built here."""


# ==== Build ====


def load(environment: Mapping[str, str] | None = None) -> Any:
    """Return the module of the C++ operator, built if the cache does not have it. Return None, with a warning, if that fails."""
    try:
        path = built(os.environ if environment is None else environment)
        loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
        module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(MODULE, loader, origin=str(path)))
        loader.exec_module(module)
        return module
    except (BuildError, LibraryError, OSError, ImportError) as error:
        warn_unavailable(error)
        return None


def warn_unavailable(reason: Exception) -> None:
    """Warn that the operator runs in Python."""
    warnings.warn(
        f"hgemm.torch: the C++ operator is not available, so each call costs about 10 us more: {reason}", stacklevel=5
    )


def built(environment: Mapping[str, str]) -> Path:
    """Return the path of the built operator. Processes wait for one another, and one of them builds it.

    Raises: BuildError if there is no compiler, or it fails; OSError if the cache cannot be written.
    """
    source = SOURCE.read_bytes()
    versions = (torch.__version__, platform.python_version(), sysconfig.get_config_var("SOABI"), platform.machine())
    key = hashlib.sha256(source + repr((versions, _flags(), STANDARDS)).encode()).hexdigest()[:16]
    place = cache_base(environment) / "torch" / f"{MODULE}-{key}.so"

    def build() -> None:
        _log.warning("hgemm.torch: building the C++ operator for torch %s, once; about 20 s", torch.__version__)
        _compile(place, _compiler(environment))

    return get_or_build(place, build, timeout_s=len(STANDARDS) * COMPILE_TIMEOUT_S)


def _compiler(environment: Mapping[str, str]) -> list[str]:
    """Return the words of the compiler's command, such as `ccache g++`. Raises: BuildError if it is not installed."""
    named = environment.get("CXX")
    with suppress(ValueError):  # CXX is not a command
        for words in [shlex.split(named)] if named else [[compiler] for compiler in COMPILERS]:
            if words and shutil.which(words[0]):
                return words
    raise BuildError(f"there is no C++ compiler: install {' or '.join(COMPILERS)}, or set CXX (CXX is {named!a})")


def _flags() -> tuple[str, ...]:
    root = Path(torch.__file__).parent
    return (
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w", *OVERRIDES),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{folder}" for folder in (root / "include", sysconfig.get_paths()["include"])),
        f"-L{root / 'lib'}",
    )


def _compile(place: Path, compiler: Sequence[str]) -> None:
    libraries = ("-ltorch_python", "-ltorch_cpu", "-lc10")  # loaded already, so no run path is needed
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".tmp-") as scratch:
        made, reasons = Path(scratch) / place.name, []
        for standard in STANDARDS:
            command = [*compiler, f"-std={standard}", str(SOURCE), *_flags(), *libraries, "-o", str(made)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                raise BuildError(f"{compiler[0]} ran for more than {COMPILE_TIMEOUT_S:.0f} s") from None
            if done.returncode == 0 and made.is_file():
                seal(made)
                made.chmod(0o700)
                made.replace(place)
                return
            lines = done.stderr.splitlines()
            reasons.append(next((line for line in lines if "error" in line), f"status {done.returncode}"))
    raise BuildError(f"{compiler[0]} fails: {reasons[0]}")


# ==== Addresses of the driver ====

_DRIVER = {
    "cuLaunchKernelEx": "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled": "cuTensorMapEncodeTiled",
    "cuMemsetD8Async": "cuMemsetD8Async",
    "cuCtxGetCurrent": "cuCtxGetCurrent",
    "cuCtxPushCurrent": "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent": "cuCtxPopCurrent_v2",
    "cuStreamIsCapturing": "cuStreamIsCapturing",
    "cuGetErrorString": "cuGetErrorString",
}
"""The functions that the operator calls, with their names in libcuda.so.1 of CUDA 12 and 13."""
_OPTIONAL = {
    "cuStreamGetCaptureInfo": "cuStreamGetCaptureInfo_v3",
    "cuGraphNodeGetType": "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams": "cuGraphKernelNodeGetParams_v2",
}
"""Functions that drivers before CUDA 12.3 may lack. Their address is then 0."""


def driver_addresses() -> dict[str, int]:
    """Return the address of each function that the operator calls. Raises BuildError if one is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        streams = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        found = {name: address_of(getattr(driver, symbol)) for name, symbol in _DRIVER.items()}
        optional = {name: address_of(getattr(driver, symbol, None)) for name, symbol in _OPTIONAL.items()}
        return {**found, **optional, "stream": address_of(streams.aoti_torch_get_current_cuda_stream)}
    except (OSError, AttributeError) as error:
        raise BuildError(" ".join(str(error).split())) from error


def address_of(function: Any) -> int:
    """Return the address of a function of ctypes."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# ==== Answers ====

_DTYPES = {"Half": "f16", "BFloat16": "bf16", "Float": "f32", "Double": "f64"}
"""The types of c10::toString(ScalarType)."""
_OPERANDS = ("A", "B", "C", "D", "bias")


@dataclass(frozen=True)
class Program:
    """An expression of a call: its text, its operands with INPUT and OUTPUT before their names, and its scalars that are numbers.

    Fields: `number` is unique in this process. It identifies the program in the cache of launches.
    """

    text: str
    operands: tuple[str, ...]
    scalars: tuple[tuple[str, float], ...]
    number: int


def _view(given: tuple[Any, ...], device: int) -> View:
    address, shape, strides, dtype = given
    return View(address, tuple(shape), tuple(strides), _DTYPES.get(dtype, dtype), device)


class OperatorCallbacks:
    """The Python functions that the C++ operator calls.

    Fields: `library` returns the library in use; `orders` whether all products are batch-invariant, and whether they prefer the
        order of cuBLASLt.
    """

    def __init__(self, library: Callable[[], Library], orders: Callable[[], tuple[bool, bool]]) -> None:
        self._library, self._orders = library, orders
        self._allocate = ARRAY_ADAPTERS[torch.Tensor].allocate

    def describe(
        self,
        operands: tuple[tuple[Any, ...], ...],
        device: int,
        alpha: float,
        beta: float,
        activation: int,
        tf32: bool,
        batch_invariant: bool,
        stream: int,
    ) -> dict[str, Any]:
        """Choose and load a kernel, and return its launch as Launcher.describe, and whether to keep it for later calls.

        Raises: as Library.matmul.
        """
        options = MatmulOptions(alpha, beta, ACTIVATIONS[activation], "tf32" if tf32 else "", batch_invariant)
        return self._describe(zip(_OPERANDS, operands), device, options, stream)

    def describe_expression(
        self,
        a: tuple[Any, ...],
        b: tuple[Any, ...],
        d: tuple[Any, ...],
        more: list[tuple[Any, ...]],
        program: Program,
        device: int,
        alpha: float,
        beta: float,
        tf32: bool,
        batch_invariant: bool,
        stream: int,
    ) -> dict[str, Any]:
        """Return the launch of an expression, as `describe`."""
        options = MatmulOptions(alpha, beta, "none", "tf32" if tf32 else "", batch_invariant)
        options = replace(options, epilogue=program.text, scalars=program.scalars)
        return self._describe(zip(("A", "B", "D", *program.operands), (a, b, d, *more)), device, options, stream)

    def _describe(
        self, operands: Iterable[tuple[str, tuple[Any, ...]]], device: int, options: MatmulOptions, stream: int
    ) -> dict[str, Any]:
        views = {name: _view(given, device) for name, given in operands if given}
        if 0 in views["D"].shape:
            return {"empty": True, "keep": True}
        always, cublas_order = self._orders()
        options = replace(options, batch_invariant=options.batch_invariant or always, cublas_order=cublas_order)
        with preparing(stream) as preparation:
            found = launcher_of(self._library(), views, device, options, self._allocate).describe()
        return {**found, "keep": not preparation.forbidden}

    def allocate(self, device: int, stream: int, capturing: bool) -> int:
        """Return the address of the workspace of a stream."""
        return workspace_address(device, stream, self._library().workspace_bytes, self._allocate, capturing)
