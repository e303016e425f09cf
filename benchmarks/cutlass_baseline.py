"""CUTLASS 2.x kernels as a baseline of the benchmark: the library that baselines/build_cutlass2x.py builds."""

from __future__ import annotations

import ctypes
import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hgemm.bench.measure import BASELINE
from hgemm.bench.operands import Operands
from hgemm.bench.work import Work
from hgemm.errors import HgemmError


class CutlassError(HgemmError):
    """A status of the library."""


class Cutlass:
    """Its kernels whose names a glob matches; each is tn, f16 in and out."""

    name = "CUTLASS 2.x"

    def __init__(self, path: Path, names: str) -> None:
        self.library = library = ctypes.CDLL(str(path.resolve()))
        pointer, integer, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
        library.cutlass2x_name.argtypes, library.cutlass2x_name.restype = [integer], ctypes.c_char_p
        library.cutlass2x_acc.argtypes = library.cutlass2x_init.argtypes = [integer]
        library.cutlass2x_run.argtypes = [integer] * 4 + [pointer] * 3 + [stride] * 3 + [pointer]
        kernels = (CutlassKernel(library, index) for index in range(library.cutlass2x_count()))
        self.kernels = [kernel for kernel in kernels if fnmatch.fnmatch(kernel.name, names)]

    def propose(self, work: Work, count: int) -> CutlassKernels:
        """Return the kernels that accumulate as the problem asks; none for other layouts and types."""
        served = (work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.batch) == ("tn", "f16", "f16", "f16", 1)
        acc = "f16" if work.acc == "f16" else "f32"
        return CutlassKernels([kernel for kernel in self.kernels if served and kernel.acc == acc])

    def free(self) -> None:
        pass


@dataclass
class CutlassKernels:
    """Those that serve one problem; the first is none that CUTLASS would choose."""

    contenders: list[CutlassKernel]

    def free(self) -> None:
        pass


class CutlassKernel:
    """One kernel of the library."""

    side = BASELINE

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self.library, self.index = library, index
        self.name = library.cutlass2x_name(index).decode()
        self.acc = f"f{library.cutlass2x_acc(index)}"

    def bind(self, operands: Operands, stream: int) -> list[Callable[[], None]]:
        self._ok("init", self.library.cutlass2x_init(self.index))
        return [self._launch(operands, at, stream) for at in range(operands.sets)]

    def _launch(self, operands: Operands, at: int, stream: int) -> Callable[[], None]:
        p = operands.problem(at)
        arguments = (self.index, p.m, p.n, p.k, p.a, p.b, p.d, p.lda, p.ldb, p.ldd, stream)
        return lambda: self._ok("run", self.library.cutlass2x_run(*arguments))

    def _ok(self, what: str, status: int) -> None:
        if status:
            raise CutlassError(f"{self.name}: cutlass2x_{what} returned cudaError {status}")

    def free(self) -> None:
        pass
