"""Run one schedule of a described launch on the CPU: fill the buffers, launch, and compare the results with the reference."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from generator.device_check import CheckOutcome, answer
from generator.errors import RequestError
from generator.proof import executor as abi
from generator.proof.executor import Adversary, Launch, Region
from generator.proof.sandbox import SandboxedExecutable, arena
from generator.ptx.parser import Module
from generator.sanitize.description import (
    DTYPE_BYTES,
    FLOATS,
    MAP_BYTES,
    BufferDescription,
    Description,
    Gemm,
    MapDescription,
    MapParameter,
    Parameter,
    Pointer,
    Scalar,
    Struct,
    read_description,
    read_module,
    static_smem_bytes,
)
from hgemm.dtypes import DTYPES, decode, encode, representable

_POISON = 0xFF
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_F64_ROUNDOFF = 2.0**-53
_F32_STEP = 2.0**-23
"""The most that one addition of a tensor core or of an FMA loses, of its largest term."""
_FUNCTION_RELATIVE = 2.0**-16
"""The default tolerance of a NumPy function: approximate functions of GPUs, such as ex2.approx, have errors up to 2**-22."""


@dataclass(frozen=True)
class SanitizeRequest:
    """One schedule of a launch: the files, the shared object of the kernel, and the adversary.

    Fields: `runner` is the program that loads the shared object; `reference` is FILE.py:FUNCTION, or empty.
    """

    symbol: str
    ptx: str
    launch: str
    shared_object: str
    runner: str
    timing: str
    order: str
    schedule_seed: int
    data_seed: int = 0
    reference: str = ""


# ==== Buffers ====


def stored_type(dtype: str) -> str:
    """Return the NumPy type of stored elements."""
    if dtype in DTYPES:
        return DTYPES[dtype].storage
    return {"f": "<f", "s": "<i", "u": "<u"}[dtype[0]] + str(DTYPE_BYTES[dtype])


class Memory:
    """The buffers of a launch in host memory."""

    def __init__(self, description: Description, seed: int) -> None:
        self._description = description
        self._blocks: dict[str, np.ndarray] = {}
        for buffer in description.buffers.values():
            self._blocks[buffer.name] = _block(buffer.bytes)
            self._fill(buffer, seed)

    def address(self, name: str) -> int:
        return self._blocks[name].ctypes.data if name else 0

    def elements(self, name: str) -> np.ndarray:
        """Return the stored elements of a buffer, in its shape."""
        buffer = self._description.buffers[name]
        flat = self._blocks[name].view(stored_type(buffer.dtype))
        size = DTYPE_BYTES[buffer.dtype]
        return np.lib.stride_tricks.as_strided(flat, buffer.shape, [stride * size for stride in buffer.strides])

    def values(self, name: str) -> np.ndarray:
        """Return a buffer's elements as float64, or as integers."""
        stored, dtype = self.elements(name), self._description.buffers[name].dtype
        if dtype in DTYPES:
            return decode(np.ascontiguousarray(stored), dtype)
        return stored.copy()

    def _fill(self, buffer: BufferDescription, seed: int) -> None:
        if buffer.init == "uninitialised":
            return
        target = self.elements(buffer.name)
        target[...] = initial(buffer, seed)


def _block(size_bytes: int) -> np.ndarray:
    """Return memory that the kernel's process shares. It holds poison, so that a value that was never written shows."""
    content = (ctypes.c_uint8 * size_bytes).from_address(arena().allocate(size_bytes))
    block = np.frombuffer(content, np.uint8)
    block[...] = _POISON
    return block


def initial(buffer: BufferDescription, seed: int) -> np.ndarray:
    """Return the stored elements of a buffer before the launch. Raises: RequestError if its file does not fit."""
    digest = hashlib.sha256(f"{seed} {buffer.name}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    if isinstance(buffer.init, str) and buffer.init.endswith(".npy"):
        return _loaded(buffer)
    if buffer.init == "uniform":
        values = generator.uniform(-1.0, 1.0, buffer.shape)
        if buffer.dtype in DTYPES:
            values = representable(values, buffer.dtype)
    elif buffer.init == "integers":
        values = generator.integers(0 if buffer.dtype[0] == "u" else -4, 5, buffer.shape)
    else:
        values = np.full(buffer.shape, 0 if buffer.init == "zeros" else buffer.init)
    if buffer.dtype in DTYPES:
        return encode(values, buffer.dtype)
    return values.astype(stored_type(buffer.dtype))


def _loaded(buffer: BufferDescription) -> np.ndarray:
    try:
        values = np.lib.format.open_memmap(str(buffer.init), mode="r")  # reads nothing yet, and no pickles
    except (OSError, ValueError) as error:
        raise RequestError(
            f"buffers.{buffer.name}: cannot read {buffer.init}: {' '.join(str(error).split())}"
        ) from None
    if values.shape != buffer.shape:
        raise RequestError(
            f"buffers.{buffer.name}: {buffer.init} has shape {values.shape}, and the buffer {buffer.shape}"
        )
    if buffer.dtype in DTYPES and values.dtype.kind == "f":
        return encode(values, buffer.dtype)
    if values.dtype.itemsize != DTYPE_BYTES[buffer.dtype] or values.dtype.kind == "O":
        raise RequestError(f"buffers.{buffer.name}: {buffer.init} holds {values.dtype}, and the buffer {buffer.dtype}")
    return values.view(stored_type(buffer.dtype))


# ==== Launch ====


def launch_of(description: Description, memory: Memory, module: Module) -> Launch:
    """Return the launch as the executor takes it. It needs no limit of steps, because its process has a time limit."""
    static_bytes = static_smem_bytes(module.kernel(description.kernel), module)
    return Launch(
        grid=description.grid,
        cluster=description.cluster,
        block=description.block,
        threads=description.threads,
        smem_bytes=static_bytes + description.dynamic_smem_bytes,
        parameters=tuple(_packed(one, description, memory) for one in description.parameters),
        regions=tuple(region(buffer, memory.address(buffer.name)) for buffer in description.buffers.values()),
        resident_ctas=_resident(description),
        step_limit=2**62,
        programmatic=description.programmatic,
        arch=int("".join(filter(str.isdigit, module.target))),
    )


_MOST_RESIDENT = 64


def _resident(description: Description) -> int:
    """Return how many CTAs run at the same time, in whole clusters."""
    ctas = math.prod(description.cluster)
    wanted = description.resident_ctas or min(_MOST_RESIDENT, math.prod(description.grid))
    return -(-wanted // ctas) * ctas


def _packed(parameter: Parameter, description: Description, memory: Memory) -> bytes:
    if isinstance(parameter, Scalar):
        return parameter.pack()
    if isinstance(parameter, Pointer):
        buffer = description.buffers.get(parameter.buffer)
        offset = parameter.offset * DTYPE_BYTES[buffer.dtype] if buffer else 0
        return (memory.address(parameter.buffer) + offset).to_bytes(8, "little")
    if isinstance(parameter, MapParameter):
        return host_map(description.tensor_maps[parameter.tensor_map], description, memory)
    return _packed_struct(parameter, description, memory)


def _packed_struct(parameter: Struct, description: Description, memory: Memory) -> bytes:
    content = bytearray(parameter.size_bytes)
    for at, one in parameter.fields:
        packed = _packed(one, description, memory)
        content[at : at + len(packed)] = packed
    return bytes(content)


def host_map(rule: MapDescription, description: Description, memory: Memory) -> bytes:
    """Return a tensor map in the executor's format. Dimension 0 is the last one of the buffer."""
    buffer = description.buffers[rule.buffer]
    size = DTYPE_BYTES[buffer.dtype]
    made = abi.EmulatedTensorMap(
        base=memory.address(buffer.name),
        extent=tuple(reversed(buffer.shape)),
        stride_bytes=tuple(stride * size for stride in reversed(buffer.strides[:-1])),
        box=rule.box,
        rank=len(buffer.shape),
        element_bytes=size,
        swizzle=_SWIZZLES[rule.swizzle],
        magic=abi.TENSOR_MAP_MAGIC,
    )
    return bytes(made).ljust(MAP_BYTES, b"\0")


_FLAGS = {
    "in": abi.READABLE | abi.INITIALISED,
    "out": abi.READABLE | abi.WRITABLE,
    "inout": abi.READABLE | abi.WRITABLE,
}


def region(buffer: BufferDescription, address: int) -> Region:
    """Return the memory of a buffer that the kernel may access: rows of contiguous elements, without the gaps between them.

    Dimensions that are contiguous with one another are one. If more than three are left, the gaps count as part of the buffer.
    """
    size = DTYPE_BYTES[buffer.dtype]
    merged = _merged(buffer)
    if len(merged) > 3 or (merged and merged[-1][1] != 1):
        merged = [(buffer.elements, 1)]
    batch, row, inner = [(1, 0)] * (3 - len(merged)) + merged
    flags = _FLAGS[buffer.role]
    flags |= abi.INITIALISED if buffer.init != "uninitialised" else 0
    flags |= abi.WRITE_ONCE if buffer.writes == "once" else 0
    row_bytes = inner[0] * size
    return Region(
        name=buffer.name,
        base=address,
        rows=row[0],
        row_bytes=row_bytes,
        pitch_bytes=row[1] * size or row_bytes,
        batches=batch[0],
        batch_stride_bytes=batch[1] * size,
        element_bytes=size,
        flags=flags,
    )


def _merged(buffer: BufferDescription) -> list[tuple[int, int]]:
    """Return the extents and strides of a buffer, the longest stride first, without those that continue another."""
    dims = sorted(
        (
            (extent, stride)
            for extent, stride in zip(buffer.shape, buffer.strides, strict=True)
            if extent > 1 and stride
        ),
        key=lambda one: -one[1],
    )
    found: list[tuple[int, int]] = []
    for extent, stride in dims:
        if found and found[-1][1] == extent * stride:
            found[-1] = (found[-1][0] * extent, stride)
        else:
            found.append((extent, stride))
    return found or [(1, 1)]


# ==== Reference ====


@dataclass(frozen=True)
class Expected:
    """Values that a buffer must have after the launch, and the largest error of each."""

    buffer: str
    values: np.ndarray
    bound: np.ndarray


def expected_results(
    description: Description, memory: Memory, function: Callable[[dict[str, np.ndarray]], Any] | None
) -> list[Expected]:
    """Return what the launch must compute, from the values of the buffers before it. Empty without a reference."""
    found = []
    if description.reference:
        found.append(_product(description.reference, description, memory))
    if function:
        inputs = {name: memory.values(name) for name, one in description.buffers.items() if one.init != "uninitialised"}
        found += _of_function(function, inputs, description)
    return found


def _product(gemm: Gemm, description: Description, memory: Memory) -> Expected:
    (a, a_dims), (b, b_dims), (d, d_dims) = gemm.a, gemm.b, gemm.d
    left, right = (memory.values(name).astype(np.float64) for name in (a, b))
    subscripts = f"{a_dims},{b_dims}->{d_dims}"
    values = gemm.alpha * np.einsum(subscripts, left, right, optimize=True)
    largest = abs(gemm.alpha) * np.einsum(subscripts, np.abs(left), np.abs(right), optimize=True)
    if gemm.c:
        name, dims = gemm.c
        addend = gemm.beta * np.einsum(f"{dims}->{d_dims}", memory.values(name).astype(np.float64))
        values, largest = values + addend, largest + np.abs(addend)
    k = dict(zip(a_dims, left.shape, strict=True))["k"]
    relative = description.tolerance.relative
    relative = (k + 16) * _F32_STEP if relative is None else relative
    return Expected(d, values, relative * largest + _rounding(description, d, values))


def _rounding(description: Description, name: str, values: np.ndarray) -> np.ndarray:
    """Return the error of storing values in a buffer, and the absolute tolerance."""
    dtype = DTYPES.get(description.buffers[name].dtype)
    roundoff, underflow = (dtype.roundoff, dtype.underflow) if dtype else (_F64_ROUNDOFF, 0.0)
    return np.abs(values) * roundoff + underflow + (description.tolerance.absolute or 0.0)


def _of_function(function: Callable, inputs: dict[str, np.ndarray], description: Description) -> Iterator[Expected]:
    results = function(inputs)
    if not isinstance(results, Mapping):
        raise RequestError(
            f"the reference returns {type(results).__name__}, but must return a dictionary of arrays by buffer"
        )
    relative = description.tolerance.relative
    relative = _FUNCTION_RELATIVE if relative is None else relative
    for name, result in results.items():
        buffer = description.buffers.get(name)
        if buffer is None or buffer.role == "in":
            raise RequestError(f"the reference returns {name!r}, which is not a buffer that the kernel writes")
        values = np.asarray(result)
        if values.shape != buffer.shape:
            raise RequestError(
                f"the reference returns {name} of shape {values.shape}, and the buffer has {buffer.shape}"
            )
        if buffer.dtype not in FLOATS:
            yield Expected(name, values, np.full(values.shape, description.tolerance.absolute or 0.0))
            continue
        values = values.astype(np.float64)
        yield Expected(name, values, relative * np.abs(values) + _rounding(description, name, values))


def load_function(place: str) -> Callable[[dict[str, np.ndarray]], Any]:
    """Import the function of FILE.py:FUNCTION. It is the user's own code, named on the command line. Raises: RequestError."""
    path, _, name = place.rpartition(":")
    file = Path(path)
    spec = importlib.util.spec_from_file_location("sanitize_reference", file)
    if not spec or not spec.loader:
        raise RequestError(f"--reference: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RequestError(f"--reference: {file} fails: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise RequestError(f"--reference: {file} has no function {name}")
    return function


@dataclass(frozen=True)
class Comparison:
    """The largest error, its largest ratio to its bound, and what is wrong, or an empty text."""

    max_error: float = 0.0
    max_bound_ratio: float = 0.0
    wrong: str = ""


def compare(expected: list[Expected], memory: Memory) -> Comparison:
    """Compare the buffers after a launch with what they must hold."""
    error, ratio, wrong = 0.0, 0.0, []
    for one in expected:
        found = memory.values(one.buffer).astype(np.float64)
        difference = np.abs(found - one.values.astype(np.float64))
        difference[np.isnan(found) != np.isnan(one.values)] = np.inf
        difference[(found == one.values) | (np.isnan(found) & np.isnan(one.values))] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(difference > 0, difference / one.bound, 0.0)
        error, ratio = max(error, float(difference.max())), max(ratio, float(ratios.max()))
        bad = int(np.count_nonzero(~(ratios <= 1.0)))
        if bad:
            at = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
            place = "".join(f"[{int(index)}]" for index in at)
            wrong.append(
                f"{one.buffer}{place} is {found[at]:.6g} and must be {one.values[at]:.6g} within {one.bound[at]:.2g}; "
                f"{bad} of {found.size} elements are wrong"
            )
    return Comparison(error, ratio, "; ".join(wrong))


# ==== One schedule ====


def run_schedule(request: SanitizeRequest) -> CheckOutcome:
    """Run one schedule in this process. Its check holds the findings and the comparison."""
    began = time.monotonic()
    text, module = read_module(Path(request.ptx))
    description = read_description(Path(request.launch), module)
    memory = Memory(description, request.data_seed)
    function = load_function(request.reference) if request.reference else None
    expected = expected_results(description, memory, function)
    executable = SandboxedExecutable(Path(request.shared_object), Path(request.runner), text)
    adversary = Adversary(request.timing, request.order, request.schedule_seed)
    started = time.monotonic()
    report = executable.run(launch_of(description, memory, module), adversary)
    ran_s = time.monotonic() - started
    compared = compare(expected, memory)
    outputs = hashlib.sha256()
    for name, buffer in description.buffers.items():
        if buffer.role != "in":
            outputs.update(np.ascontiguousarray(memory.elements(name)).tobytes())
    check = {
        "case": str(adversary),
        "max_error": compared.max_error,
        "max_bound_ratio": compared.max_bound_ratio,
        "passed": not report.findings and not compared.wrong,
        "reason": compared.wrong,
        "findings": [asdict(finding) for finding in report.findings],
        "counters": report.counters,
        "outputs": outputs.hexdigest(),
        "run_seconds": ran_s,
    }
    sites = tuple(asdict(site) for site in report.sites)
    return CheckOutcome(request.symbol, (check,), seconds=time.monotonic() - began, sites=sites)


if __name__ == "__main__":
    answer(SanitizeRequest(**json.loads(sys.argv[1])), run_schedule)
