"""What can be timed: each contender computes D = A B of one problem, launched on a given stream with given buffers.

A (m, k) and D (m, n) are row-major, B (k, n) is column-major, so it is stored as an (n, k) array with k contiguous:
layout tn. A contender has `name`, `acc` (what it accumulates in: "f32", "f16" or "f16_promoted"), `prepare(problem)`
for everything that may allocate or synchronise, and `launch(stream, buffers)`, which only launches and can be
captured in a graph."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Problem:
    """One matrix product, dense tn: lda = ldb = k, ldd = n."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> int:
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)

    @classmethod
    def parse(cls, text: str) -> Problem:
        """Read `4096` or `4096x7168x16384`.

        Raises: ValueError for anything else.
        """
        numbers = [int(part) for part in text.lower().split("x")]
        if len(numbers) not in (1, 3) or min(numbers) < 1:
            raise ValueError(f"shape '{text}': write N or MxNxK")
        return cls(*(numbers * 3 if len(numbers) == 1 else numbers))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Buffers:
    """One set of operands on the device: a (m, k), b (n, k), d (m, n), row-major arrays of f16."""

    problem: Problem
    a: Any
    b: Any
    d: Any


class Contender(Protocol):
    name: str
    acc: str

    def prepare(self, problem: Problem) -> None: ...

    def launch(self, stream: int, buffers: Buffers) -> None: ...


class LaunchError(RuntimeError):
    """A contender's library or the driver returned an error code."""


class CutlassContender:
    """A CUTLASS 2.x kernel of the library that baselines/build_cutlass2x.py builds."""

    def __init__(self, library_path: str | Path, index: int) -> None:
        self.library = open_cutlass(library_path)
        self.index = index
        self.name = self.library.cutlass2x_name(index).decode()
        self.acc = f"f{self.library.cutlass2x_acc(index)}"

    def prepare(self, problem: Problem) -> None:
        self._check("init", self.library.cutlass2x_init(self.index))

    def launch(self, stream: int, buffers: Buffers) -> None:
        p = buffers.problem
        self._check(
            "run",
            self.library.cutlass2x_run(
                self.index,
                p.m,
                p.n,
                p.k,
                buffers.a.data_ptr(),
                buffers.b.data_ptr(),
                buffers.d.data_ptr(),
                p.k,
                p.k,
                p.n,
                stream,
            ),
        )

    def _check(self, what: str, status: int) -> None:
        if status:
            raise LaunchError(f"{self.name}: cutlass2x_{what} returned cudaError {status}")


def open_cutlass(library_path: str | Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(library_path).resolve()))
    pointer, integer, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    library.cutlass2x_name.argtypes, library.cutlass2x_name.restype = [integer], ctypes.c_char_p
    library.cutlass2x_acc.argtypes = library.cutlass2x_init.argtypes = [integer]
    library.cutlass2x_run.argtypes = [integer] * 4 + [pointer] * 3 + [stride] * 3 + [pointer]
    return library


def cutlass_contenders(library_path: str | Path) -> list[CutlassContender]:
    return [CutlassContender(library_path, index) for index in range(open_cutlass(library_path).cutlass2x_count())]


class TorchContender:
    """torch.mm, that is cuBLASLt's first heuristic: a check of the harness's sanity, and the machine's own figure."""

    def __init__(self, acc: str = "f32") -> None:
        self.acc = acc
        self.name = f"torch_mm_{acc}"

    def prepare(self, problem: Problem) -> None:
        pass

    def launch(self, stream: int, buffers: Buffers) -> None:
        import torch

        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_fp16_accumulation = self.acc == "f16"
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.mm(buffers.a, buffers.b.T, out=buffers.d)
