"""The generator as a plug-in of the run-time package: found by its entry point, and loaded when a call needs it, never before."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from hgemm.arrays import View
from hgemm.errors import LibraryError
from hgemm.kernel import Kernel
from hgemm.problem import Problem

GROUP, NAME = "hgemm.plugins", "generator"
"""The entry point that the package hgemm-generator registers."""
MODULE = "generator.plugin"
"""The module to try if no entry point is registered, as in a checkout on PYTHONPATH."""


@dataclass(frozen=True)
class Progress:
    """One finished kernel of a call of `hgemm.generate`.

    Units: `seconds` of this build.
    Fields: `done` of `total` kernels are finished. `place` is that of this one in the request, from 0. `status` is built, proved,
        cached, spilled or failed. `error` is empty unless it failed.
    """

    done: int
    total: int
    place: int
    symbol: str
    status: str
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class GenerateRequest:
    """A request of `hgemm.generate` to the generator. The fields are those of `hgemm.generate`.

    Fields: each of `specs` is the path of a TOML file, or has options by name. `fields` override all of them.
    """

    specs: Sequence[Path | Mapping[str, Any]]
    fields: Mapping[str, Any]
    folder: Path
    verify: bool
    jobs: int | None
    force: bool
    allow_spills: bool


@dataclass(frozen=True)
class VerifyRequest:
    """A request of `hgemm.verify` to the generator. The fields are those of `hgemm.verify`; `symbols` may be empty."""

    folder: Path
    symbols: Sequence[str]
    device: str
    shapes: str
    seed: int
    jobs: int | None
    force: bool


@dataclass(frozen=True)
class Verified:
    """The check of one kernel by `hgemm.verify`.

    Units: `seconds` of this check; `worst_ratio` is the largest error over its bound.
    Fields: `cases` are the problems that ran. `reason` says why the kernel failed or was skipped. `reused` is True if the proof was
        in the kernel's record.
    """

    symbol: str
    passed: bool
    skipped: bool
    cases: tuple[str, ...]
    worst_ratio: float
    seconds: float
    reason: str = ""
    reused: bool = False


@dataclass(frozen=True)
class MultiplyRequest:
    """A product of NumPy arrays for the CPU.

    Fields: `arrays` are the operands by name, of which D and further results are written. `choose` returns the kernel for views of
        them, and the problem.
    """

    folder: Path
    arrays: Mapping[str, Any]
    choose: Callable[[Mapping[str, View]], tuple[Kernel, Problem]]


class Generator(Protocol):
    """The functions of the plug-in."""

    def generate(self, request: GenerateRequest) -> Iterator[Progress]:
        """Build kernels into the library in `request.folder`, and yield each as it is finished."""

    def verify(self, request: VerifyRequest) -> Iterator[Verified]:
        """Check kernels of a library, and yield each as it is finished."""

    def multiply(self, request: MultiplyRequest) -> None:
        """Compute a product on the CPU, and write its results."""

    def build_kernel(self, folder: Path, missing: Any) -> str | None:
        """Build the kernel that a call lacks. See hgemm.growth."""


def load(purpose: str, instead: str = "add the kernel on another machine with `hgemm cover --add`") -> Generator:
    """Return the plug-in, which `purpose` needs. Raises: LibraryError if it is not installed, which says what to do `instead`."""
    try:
        for entry in importlib.metadata.entry_points(group=GROUP, name=NAME):
            return cast(Generator, entry.load())
        return cast(Generator, importlib.import_module(MODULE))
    except ModuleNotFoundError as error:
        raise LibraryError(
            f"{purpose} needs the package hgemm-generator, and its module {error.name} is not installed: install it with "
            f"'pip install .' in its folder, or {instead}"
        ) from None
