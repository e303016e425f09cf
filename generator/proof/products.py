"""Products of NumPy arrays on the CPU executor, for machines without a GPU: slow, and bit by bit what tensor cores compute."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from generator.build.fresh import foreign, foreign_ptx
from generator.proof.executor import Executable, HostToolchain
from generator.proof.jobs import host_toolchain
from generator.proof.machine import EmulatedKernel, HostMemory
from generator.proof.proving import Subject, adversaries_of, load
from generator.store.library import Library
from hgemm.arrays import View, dtype_of, element_strides, without_negative_strides
from hgemm.errors import ProblemError, VerificationError
from hgemm.launch import tiles
from hgemm.launch_traits import OUTPUT, LaunchTraits
from hgemm.plugin import MultiplyRequest
from hgemm.problem import Problem
from hgemm.record import PTX_NAME

MAX_SECONDS = 20.0
"""Longer products are refused. They could also exceed the executor's limit of instructions."""
MULTIPLICATIONS_PER_S = 3.5e8
"""The slowest of 9 kernels on one core, 512x512x512, tiles counted whole; default kernels take a half to an eighth. 2026-11-24."""
_BASE_ALIGN_BYTES = 256


class _Placed:
    """A copy of an array, with its strides, where the process of a kernel sees it."""

    def __init__(self, memory: HostMemory, array: np.ndarray, name: str) -> None:
        item = array.itemsize
        strides = element_strides(array.strides, item, name)
        dtype = dtype_of(array.dtype.str, item, name)
        if array.dtype.hasobject:
            raise ProblemError(f"{name} has Python objects as elements: convert it to f16 or bf16")
        without_negative_strides(View(0, array.shape, strides, dtype, 0), name)
        last = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides)) if array.size else 0
        offset = array.ctypes.data % _BASE_ALIGN_BYTES
        pointer = memory.allocate(offset + last + item) + offset
        self.view = View(pointer, array.shape, strides, dtype, 0, not array.flags.writeable)
        block = np.frombuffer((ctypes.c_uint8 * (last + item)).from_address(pointer), array.dtype)
        self.copy = np.lib.stride_tricks.as_strided(block, array.shape, array.strides)
        if array.size:
            self.copy[...] = array


def multiply(request: MultiplyRequest) -> None:
    """Compute a product with a kernel of a library, and write D and its further results.

    Raises: ProblemError if the product would take too long; VerificationError if the kernel is not what this version writes, or has
        a fault; NoCompiler if there is no C++ compiler.
    """
    memory = HostMemory()
    shared: dict[tuple[object, ...], _Placed] = {}
    placed: dict[str, _Placed] = {}
    for name, array in request.arrays.items():
        key = (array.ctypes.data, array.shape, array.strides, array.dtype, array.flags.writeable)
        if key not in shared:  # C may be D
            shared[key] = _Placed(memory, array, name)
        placed[name] = shared[key]
    kernel, problem = request.choose({name: one.view for name, one in placed.items()})
    traits = kernel.traits
    _reject_long(traits, problem)
    size = kernel.workspace_bytes(problem.m, problem.n, problem.batch, problem.options)
    if size and not problem.workspace:
        problem = replace(problem, workspace=memory.allocate(size))
    executable = _executable(request.folder, kernel.symbol, str(kernel.record["key"]), _toolchain())
    machine = EmulatedKernel(traits, executable, adversaries_of(kernel.symbol, 0)[:1])
    machine.launch(problem)
    if found := [str(finding) for _, report in machine.reports for finding in report.findings]:
        raise VerificationError({kernel.symbol: "; ".join(found)})
    for name, array in request.arrays.items():
        if name == "D" or name.startswith(OUTPUT):
            array[...] = placed[name].copy


def _reject_long(traits: LaunchTraits, problem: Problem) -> None:
    """Raise ProblemError if a product would take longer than MAX_SECONDS."""
    k = -(-problem.k // traits.tile_k) * traits.tile_k
    work = tiles(traits, problem.m, problem.n) * problem.batch * traits.tile_m * traits.tile_n * k
    seconds = work / MULTIPLICATIONS_PER_S
    if seconds > MAX_SECONDS:
        raise ProblemError(
            f"{problem.m}x{problem.n}x{problem.k} would take about {seconds:,.0f} s on the CPU, which simulates each thread; the "
            f"limit is {MAX_SECONDS:g} s: pass smaller arrays, or copy them to a GPU"
        )


_toolchain = cache(host_toolchain)


@cache
def _executable(folder: Path, symbol: str, key: str, toolchain: HostToolchain) -> Executable:
    """Return a kernel of a library for the CPU. `key` is that of its record."""
    stored = Library(folder).load(symbol)
    if reason := foreign(stored, toolchain.templates) or foreign_ptx(stored, toolchain.templates):
        raise VerificationError({symbol: f"{reason}, so it does not run on the CPU: generate it again"})
    ptx = stored.artefacts[PTX_NAME].decode()
    return load(Subject(symbol, ptx, stored.record.data, 0), toolchain)
