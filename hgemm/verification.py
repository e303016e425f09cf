"""The check of a kernel on a device, and one timed run.

A case passes if all elements of D are within the error bound of the reference, every element is written, no other memory is
changed, and a second launch gives the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hgemm.cases import KINDS, Case
from hgemm.device import Device, median_us
from hgemm.dtypes import DTYPES, decode, encode, representable
from hgemm.epilogue import Input, Output
from hgemm.errors import DeviceError
from hgemm.kernel import Kernel
from hgemm.launch import (
    POINTER_BYTES,
    WORKSPACE_ALIGN_BYTES,
    aux_align,
    counter_bytes,
    splits_of,
    with_launch_options,
    workspace_bytes,
)
from hgemm.launch_traits import INPUT, OUTPUT, LaunchTraits
from hgemm.problem import Aux, LaunchOptions, Problem
from hgemm.reference import EXACT, OperandValues, Reference, reference

# ==== Operands: memory layout and random numbers ====

LOOSE_ROWS = {"a": 3, "b": 4, "c": 2, "d": 5, "bias": 3}
LOOSE_MATRICES = {"a": 5, "b": 7, "c": 8, "d": 3, "bias": 5}
LOOSE_INPUT = 6
"""The gaps of a loose case after a row and after a matrix: another for each operand. Units: the alignment of the operand."""
_NONZERO_PRODUCTS = 1500.0
_DENSITY = 0.6
_LARGEST_ADDEND = 8
_DISTINCT_MATRICES = 13
"""The matrices of A and of B that are drawn for a batch. Larger batches repeat them. No power of two is a multiple, and no usual
number of CTAs."""
_UNSCALED_K = 2**14
"""Up to this k, dot products of normal numbers stay below a third of the f16 range."""


@dataclass(frozen=True)
class OperandLayout:
    """The memory layout of a batch of matrices with contiguous rows.

    Units: `leading`, `batch_stride` and `align` count elements.
    """

    rows: int
    columns: int
    leading: int
    batch: int
    batch_stride: int
    dtype: str
    align: int

    @property
    def elements(self) -> int:
        """The number of elements from the first to the last one in use."""
        return (self.batch - 1) * self.batch_stride + (self.rows - 1) * self.leading + self.columns


def operand_layouts(traits: LaunchTraits, case: Case) -> dict[str, OperandLayout]:
    """Return the memory layout of each operand of a case: as dense as the kernel's alignments allow, or with gaps."""
    s, n = case.shape, traits.columns_of_d(case.shape.n)
    extents = {
        "a": ((s.m, s.k) if traits.a_k_major else (s.k, s.m), traits.dtype_a, traits.align_a),
        "b": ((s.n, s.k) if traits.b_k_major else (s.k, s.n), traits.dtype_b, traits.align_b),
        "c": ((s.m, s.n), traits.dtype_d, traits.align_d),
        "d": ((s.m, n), traits.dtype_d, traits.align_d),
        "bias": ((1, s.n if bias_of_case(traits, case) == "row" else s.m), traits.dtype_d, 1),
    }
    shapes = {"scalar": (1, 1), "row": (1, n), "column": (1, s.m), "matrix": (s.m, n)}
    named: dict[str, Input | Output] = {INPUT + one.name: one for one in traits.operands}
    named |= {OUTPUT + one.name: one for one in traits.outputs}
    for name, one in named.items():
        dtype = "f32" if one.kind == "scalar" else one.of(traits.dtype_d)
        extents[name] = (shapes[one.kind], dtype, aux_align(traits, dtype) if one.kind == "matrix" else 1)
    inputs = [name for name in extents if name.startswith((INPUT, OUTPUT))]
    matrices = [INPUT + one.name for one in traits.matrices]
    found = {}
    for name, ((rows, columns), dtype, align) in extents.items():
        loose_rows, loose_matrices = 0, 0
        if case.loose and name in inputs:
            loose_rows, loose_matrices = LOOSE_INPUT + inputs.index(name), LOOSE_INPUT
        elif case.loose:
            loose_rows, loose_matrices = LOOSE_ROWS[name], LOOSE_MATRICES[name]
        spread = -(-case.min_span // max(1, rows - 1))
        least = columns if name == "bias" or (name in inputs and rows == 1) else max(columns, case.min_leading, spread)
        leading = (-(-least // align) + loose_rows) * align
        stride = leading * rows + loose_matrices * align
        found[name] = OperandLayout(rows, columns, leading, _batch(case, name, name in matrices), stride, dtype, align)
    if case.beside:
        d = found["d"]
        found["d"] = found["c"] = replace(d, leading=2 * d.leading, batch_stride=2 * d.leading * (d.rows + 1))
    return found


def bias_of_case(traits: LaunchTraits, case: Case) -> str:
    """Return the kind of the bias that a case adds: the kernel's, or the case's if the launch decides."""
    return case.bias if traits.decides_bias else traits.bias


def _batch(case: Case, name: str, is_matrix: bool = False) -> int:
    """Return the matrices of an operand. Inputs of an expression are shared as C, if they are matrices, or as the bias."""
    if name.startswith(OUTPUT):
        return case.shape.batch
    if name.startswith(INPUT):
        name = "c" if is_matrix else "bias"
    return 1 if name in case.broadcast.split(",") else case.shape.batch


def draw(traits: LaunchTraits, case: Case, kind: str, rng: np.random.Generator) -> OperandValues:
    """Draw random operands that overflow no accumulator.

    Kind `integer` draws integers, so that accumulators are exact and only D is rounded. Kind `normal` draws normal
    numbers with all digits. In loose cases they are rounded to the stored type; otherwise to the precision that tensor
    cores read. These differ for tf32.
    """
    s = case.shape
    make: Callable[..., list[np.ndarray]] = _integers if kind == "integer" else _normals
    if kind == "integer" and traits.acc == "f16_promoted":
        make = _tile_sums
    many = {name: min(_batch(case, name), _DISTINCT_MATRICES) for name in "ab"}
    a, b = make(rng, traits, s.k, (many["a"], s.m, s.k), (many["b"], s.k, s.n))
    bias_kind = bias_of_case(traits, case)
    bias_shape = (1, s.n) if bias_kind == "row" else (s.m, 1)
    c = _addend(kind, rng, (_batch(case, "c"), s.m, s.n)) if case.beta else None
    bias = _addend(kind, rng, (_batch(case, "bias"), *bias_shape)) if bias_kind != "none" else None
    b = a.swapaxes(1, 2) if case.same_ab else b
    known = []
    if case.loose or not (DTYPES[traits.dtype_a].ignored_bits or DTYPES[traits.dtype_b].ignored_bits):
        bits = [encode(one, dtype) for one, dtype in ((a, traits.dtype_a), (b, traits.dtype_b))]
        a, b = (decode(one, dtype) for one, dtype in zip(bits, (traits.dtype_a, traits.dtype_b)))
        known = [*zip((a, b), bits)]
    else:
        a, b = representable(a, traits.dtype_a), representable(b, traits.dtype_b)
    if case.cancels:
        c = -case.alpha / case.beta * (a @ b)
    return OperandValues(
        a,
        b,
        None if c is None else stored_digits(c, traits.dtype_d),
        None if bias is None else stored_digits(bias, traits.dtype_d),
        case.alpha,
        case.beta,
        s.batch,
        _inputs(traits, case, kind, rng),
        tuple(known),
    )


def _inputs(traits: LaunchTraits, case: Case, kind: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw the inputs of an expression by name. Shapes: (batch, 1 or m, 1 or n)."""
    s, found = case.shape, {}
    n = traits.columns_of_d(s.n)
    for one in traits.operands:
        shape = {"scalar": (1, 1), "row": (1, n), "column": (s.m, 1), "matrix": (s.m, n)}[one.kind]
        batch = _batch(case, INPUT + one.name, one.kind == "matrix")
        if one.kind == "scalar":
            batch = batch if case.loose else 1  # a scalar of the host is one number
            found[one.name] = rng.choice(_SCALARS, (batch, *shape))
        else:
            found[one.name] = stored_digits(_addend(kind, rng, (batch, *shape)), one.of(traits.dtype_d))
    return found


_SCALARS = (1.0, -0.5, 2.0, 0.25, -1.0)
"""Scalars of expressions. Powers of two keep integers exact."""


def _integers(rng: np.random.Generator, traits: LaunchTraits, k: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Draw -1, 0 and 1. For f16 accumulators, about 700 of k products are not 0: sums stay below 2048, so they are exact."""
    density = _DENSITY if traits.acc == "f32" else min(_DENSITY, float(np.sqrt(_NONZERO_PRODUCTS / max(1, k))))
    return [(rng.integers(-1, 2, size) * (rng.random(size) < density)).astype(np.float32) for size in shapes]


def _tile_sums(
    rng: np.random.Generator, traits: LaunchTraits, k: int, a_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> list[np.ndarray]:
    """Draw integers whose products of one k-tile add up to almost 2048, and whose signs change from k-tile to k-tile.

    So f16 holds the sum of a k-tile exactly, but no sum of two: a late promotion is wrong.
    """
    largest = int(EXACT["f16"]) // traits.tile_k
    a_most = max(1, math.isqrt(largest))
    b_most = max(1, largest // a_most)
    a, b = (most - rng.integers(0, 2 if most > 1 else 1, size) for most, size in ((a_most, a_shape), (b_most, b_shape)))
    signs = rng.integers(0, 2, (*a_shape[:2], -(-k // traits.tile_k))) * 2 - 1
    a = a * np.repeat(signs, traits.tile_k, axis=2)[..., :k]
    return [a.astype(np.float32), b.astype(np.float32)]


def _normals(rng: np.random.Generator, traits: LaunchTraits, k: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    a, b = (rng.standard_normal(size, np.float32) for size in shapes)
    if traits.acc != "f32" and k > _UNSCALED_K:
        a *= np.float32(2.0 ** -np.ceil(np.log2(k / _UNSCALED_K)))
    return [a, b]


def _addend(kind: str, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    if kind == "integer":
        return rng.integers(-_LARGEST_ADDEND, _LARGEST_ADDEND + 1, size).astype(np.float32)
    return rng.standard_normal(size, np.float32)


def stored_digits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round numbers to a stored type."""
    return decode(encode(values, dtype), dtype)


def stored(traits: LaunchTraits, operands: OperandValues) -> dict[str, np.ndarray]:
    """Return the operands as they are stored.

    Shapes: (batch, rows, columns) of `operand_layouts`. Operands with fewer matrices repeat.
    """
    known = {id(one): bits for one, bits in operands.stored}
    a, b = (
        known[id(one)] if id(one) in known else encode(one, dtype)
        for one, dtype in ((operands.a, traits.dtype_a), (operands.b, traits.dtype_b))
    )
    found = {"a": a if traits.a_k_major else a.swapaxes(1, 2), "b": b.swapaxes(1, 2) if traits.b_k_major else b}
    if operands.c is not None:
        found["c"] = encode(operands.c, traits.dtype_d)
    if operands.bias is not None:
        found["bias"] = encode(operands.bias.reshape(len(operands.bias), 1, -1), traits.dtype_d)
    for one in traits.operands:
        values = operands.inputs[one.name]
        rows = values.shape[1] if one.kind == "matrix" else 1
        dtype = "f32" if one.kind == "scalar" else one.of(traits.dtype_d)
        found[INPUT + one.name] = encode(values.reshape(len(values), rows, -1), dtype)
    return found


# ==== Buffers that detect wrong accesses: guard bands, canaries in gaps and in D ====

CANARY = 0xFFFF
"""A NaN in f16, in bf16 and, twice, in f32. GPUs never produce it: their NaN is 0x7FFF.

The CPU executor tracks it through a kernel's arithmetic: HGEMM_POISON of templates/executor/abi.h.
"""
GUARD_BYTES = 4096
SPARSE_BYTES = 2**30
"""Of larger operands, only the rows are copied and checked."""
SPARSE_GUARD_BYTES = 256
"""The guard band of each row of such an operand."""


class Buffer:
    """Device memory with a guard band on each side, and a host copy of its content before the launch.

    Without guard bands (`guard_bytes` 0) the allocation ends with the last element, as compute-sanitizer needs it. A `blank`
    buffer holds canaries only.
    """

    def __init__(self, device: Device, size_bytes: int, align_bytes: int, guard_bytes: int = GUARD_BYTES) -> None:
        # Allocations are aligned to 256 bytes. The elements get no more than the kernel's alignment.
        self.front_bytes = guard_bytes + align_bytes if guard_bytes else 0
        self.before = np.full((self.front_bytes + size_bytes + guard_bytes + 1) // 2, CANARY, "<u2").view(np.uint8)
        self.blank = True
        self.device = device
        self.size_bytes = size_bytes
        self.block = device.allocate(len(self.before))
        self.pointer = self.block + self.front_bytes

    def elements(self, memory: np.ndarray, dtype: str = "<u2") -> np.ndarray:
        """Return the elements between the guard bands of a host copy."""
        inner = memory[self.front_bytes : self.front_bytes + self.size_bytes]
        return inner[: self.size_bytes // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize].view(dtype)

    def upload(self) -> None:
        if self.blank:
            self.device.fill(self.block, CANARY & 0xFF, len(self.before))
        else:
            self.device.upload(self.block, self.before.ctypes.data, len(self.before))

    def download(self) -> np.ndarray:
        after = np.empty_like(self.before)
        self.device.download(after.ctypes.data, self.block, len(after))
        return after

    def free(self) -> None:
        self.device.free(self.block)

    def changed(self, after: np.ndarray) -> str:
        """Return which bytes of a host copy differ from the uploaded ones, counted from the first element; '' if none."""
        at = np.flatnonzero(after != self.before)
        if not len(at):
            return ""
        first, last = int(at[0]) - self.front_bytes, int(at[-1]) - self.front_bytes
        where = "its guard band" if last < 0 or first >= self.size_bytes else "it"
        return f"{where} was written at byte {first}" + (f" to {last}" if last > first else "")


class Operand(Buffer):
    """A matrix, or a batch of matrices, in a guarded buffer.

    Units: `first` is the elements of each row before the matrix, where another matrix of the same layout may lie.
    """

    def __init__(
        self,
        device: Device,
        layout: OperandLayout,
        guard_bytes: int = GUARD_BYTES,
        align_bytes: int = 0,
        first: int = 0,
    ) -> None:
        self.layout, self.first = layout, first
        item = DTYPES[layout.dtype].bytes
        size_bytes = (first + layout.elements) * item
        super().__init__(device, size_bytes, align_bytes or layout.align * item, guard_bytes)

    @property
    def address(self) -> int:
        """The address of the matrix."""
        return self.pointer + self.first * DTYPES[self.layout.dtype].bytes

    def matrices(self, memory: np.ndarray) -> np.ndarray:
        """Return a view of the stored elements of a host copy. Shapes: (batch, rows, columns)."""
        return self._view(memory, self.first)

    def beside(self, memory: np.ndarray) -> np.ndarray:
        """Return a view of the matrix before the columns of this one. Shapes: (batch, rows, columns)."""
        return self._view(memory, 0)

    def _view(self, memory: np.ndarray, first: int) -> np.ndarray:
        layout, dtype = self.layout, np.dtype(DTYPES[self.layout.dtype].storage)
        strides = (layout.batch_stride * dtype.itemsize, layout.leading * dtype.itemsize, dtype.itemsize)
        elements = self.elements(memory, dtype.str)[first:]
        return np.lib.stride_tricks.as_strided(elements, (layout.batch, layout.rows, layout.columns), strides)

    def fill(self, stored: np.ndarray | None) -> None:
        """Upload elements, or canaries if `stored` is None."""
        if stored is not None:
            self._put(self.matrices(self.before), stored)
        self.upload()

    def fill_beside(self, stored: np.ndarray) -> None:
        """Upload the elements of the matrix before the columns of this one, and canaries."""
        self._put(self.beside(self.before), stored)
        self.upload()

    def _put(self, matrices: np.ndarray, stored: np.ndarray) -> None:
        repeats = 1 < len(stored) < len(matrices)
        matrices[...] = stored[np.arange(len(matrices)) % len(stored)] if repeats else stored
        self.blank = False

    def written(self, after: np.ndarray) -> tuple[np.ndarray, str]:
        """Return the elements of a host copy, and the failure, if memory around them was changed."""
        found = self.matrices(after).copy()
        rest = after.copy()
        self.matrices(rest)[...] = self.matrices(self.before)
        return found, self.changed(rest)

    @staticmethod
    def unwritten(found: np.ndarray) -> np.ndarray:
        """Return for each element whether it still holds the canary."""
        words = found.view(f"<u{found.itemsize}")
        return np.asarray(words == np.iinfo(words.dtype).max)


class SparseOperand(Operand):
    """A matrix whose rows are far apart. Only its rows and a guard band around each are copied and checked."""

    def __init__(
        self, device: Device, layout: OperandLayout, guard_bytes: int = GUARD_BYTES, align_bytes: int = 0
    ) -> None:
        self.layout, self.device, self.first = layout, device, 0
        item = DTYPES[layout.dtype].bytes
        self.guard_bytes = min(guard_bytes, SPARSE_GUARD_BYTES)
        self.front_bytes = self.guard_bytes + (align_bytes or layout.align * item)
        self.size_bytes = layout.elements * item
        self.window_bytes = 2 * self.guard_bytes + layout.columns * item
        self.before = np.full((layout.batch * layout.rows, self.window_bytes), 0xFF, np.uint8)
        self.blank = True
        self.block = device.allocate(self.front_bytes + self.size_bytes + self.guard_bytes)
        self.pointer = self.block + self.front_bytes

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Yield the address of each window, and its position among the windows."""
        layout, item = self.layout, DTYPES[self.layout.dtype].bytes
        for at in range(layout.batch * layout.rows):
            batch, row = divmod(at, layout.rows)
            start = (batch * layout.batch_stride + row * layout.leading) * item
            yield self.pointer + start - self.guard_bytes, at

    def upload(self) -> None:
        for address, at in self._windows():
            self.device.upload(address, self.before[at].ctypes.data, self.window_bytes)

    def download(self) -> np.ndarray:
        after = np.empty_like(self.before)
        for address, at in self._windows():
            self.device.download(after[at].ctypes.data, address, self.window_bytes)
        return after

    def matrices(self, memory: np.ndarray) -> np.ndarray:
        layout = self.layout
        rows = memory.reshape(layout.batch, layout.rows, -1)
        inner = rows[:, :, self.guard_bytes : rows.shape[2] - self.guard_bytes]
        return inner.view(DTYPES[layout.dtype].storage)

    def changed(self, after: np.ndarray) -> str:
        at = np.argwhere(after != self.before)
        return f"memory near row {at[0][0]} was written" if len(at) else ""


class Workspace(Buffer):
    """A workspace in device memory. Of its content only the guard bands and the counters are checked."""

    def __init__(self, device: Device, size_bytes: int, guard_bytes: int = GUARD_BYTES) -> None:
        self.front_bytes = guard_bytes + WORKSPACE_ALIGN_BYTES if guard_bytes else 0
        self.guard_bytes, self.size_bytes, self.device = guard_bytes, size_bytes, device
        whole_bytes = self.front_bytes + size_bytes + guard_bytes
        self.block = device.allocate(whole_bytes)
        self.pointer = self.block + self.front_bytes
        device.fill(self.block, CANARY & 0xFF, whole_bytes)

    def failure(self, counter_bytes: int) -> str:
        """Return what is wrong after a launch that uses so many bytes of counters, or ''."""
        if self._read(self.pointer, counter_bytes).any():
            return "the counters of the workspace are not 0 after the launch"
        for first, count in ((-self.front_bytes, self.front_bytes), (self.size_bytes, self.guard_bytes)):
            written = np.flatnonzero(self._read(self.pointer + first, count) != CANARY & 0xFF)
            if len(written):
                return f"workspace: its guard band was written at byte {first + int(written[0])}"
        return ""

    def _read(self, pointer: int, size_bytes: int) -> np.ndarray:
        found = np.empty(size_bytes, np.uint8)
        if size_bytes:
            self.device.download(found.ctypes.data, pointer, size_bytes)
        return found


def operand_in(device: Device, layout: OperandLayout, guard_bytes: int, align_bytes: int) -> Operand:
    """Return an operand in the memory of a device: sparse if its rows span more than can be copied."""
    item = DTYPES[layout.dtype].bytes
    kind = SparseOperand if layout.elements * item > SPARSE_BYTES else Operand
    return kind(device, layout, guard_bytes, align_bytes)


# ==== The check of one case ====


@dataclass(frozen=True)
class CheckOptions:
    """Options of the check of a case.

    Fields: `data` are the kinds of operands. `guard_bytes` is 0 under compute-sanitizer. Operands are aligned to `align_bytes`;
        0 is the kernel's alignment.
    """

    seed: int = 0
    data: tuple[str, ...] = KINDS
    guard_bytes: int = GUARD_BYTES
    twice: bool = True
    align_bytes: int = 0


UNBOUNDED = "no element has an error bound"


@dataclass(frozen=True)
class CheckResult:
    """The result of one case. `max_bound_ratio` is the largest ratio of an error to its bound; 1 or less passes.

    Fields: `reason` of a case that passed is UNBOUNDED if any number would have passed.
    """

    case: str
    max_error: float
    max_bound_ratio: float
    passed: bool
    reason: str = ""


def verify(
    kernel: Kernel,
    case: Case,
    device: Device,
    options: CheckOptions = CheckOptions(),
    allocating: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> CheckResult:
    """Check one case with each kind of data. The first failure is the reason. Memory is allocated within `allocating`.

    Raises: ProblemError if the kernel does not support the problem, DeviceError if a launch fails.
    """
    checks = []
    if case.once:
        options = replace(options, data=options.data[-1:], twice=False)
    if case.brief:
        options = replace(options, twice=False)
    if case.numbers:
        options = replace(options, data=(case.numbers,))
    if case.cancels:
        options = replace(options, data=options.data[-1:])
    for kind in options.data:
        trial = Trial(kernel, case, device, options, kind)
        try:
            checks.append(trial.check(allocating))
        finally:
            trial.free()
    return _as_one(checks)


def _as_one(checks: Sequence[CheckResult]) -> CheckResult:
    """Return several checks of a case as one. The first failure is the reason."""
    failed = next((check for check in checks if not check.passed), None)
    unbounded = UNBOUNDED if all(check.reason == UNBOUNDED for check in checks) else ""
    error, ratio = (max(getattr(check, name) for check in checks) for name in ("max_error", "max_bound_ratio"))
    return CheckResult(checks[0].case, error, ratio, failed is None, failed.reason if failed else unbounded)


class Trial:
    """One case with one kind of data, on the device."""

    def __init__(self, kernel: Kernel, case: Case, device: Device, options: CheckOptions, kind: str) -> None:
        self.kernel, self.case, self.device, self.options, self.kind = kernel, case, device, options, kind
        self.traits, self.shape = kernel.traits, case.shape
        s = case.shape
        problem = Problem(s.m, s.n, s.k, s.batch, options=case.options)
        self.launch_options = with_launch_options(self.traits, problem, LaunchOptions).options
        rng = np.random.default_rng([options.seed, *f"{case} {kind}".encode()])
        self.operands = draw(self.traits, case, kind, rng)
        self.buffers: dict[str, Operand] = {}
        self.found: dict[str, np.ndarray] = {}  # the results after D of the last launch, as stored
        self.workspace: Workspace | None = None
        self.arrays: dict[str, Buffer] = {}  # of the addresses of a batch's matrices

    @property
    def splits(self) -> int:
        """The parts of k whose sums are added."""
        return splits_of(self.traits, self.launch_options)

    def free(self) -> None:
        """Free all device memory. Further calls do nothing."""
        taken = [*self.buffers.values(), *self.arrays.values(), *([self.workspace] if self.workspace else [])]
        self.buffers, self.arrays, self.workspace = {}, {}, None
        for buffer in taken:
            with suppress(DeviceError):  # after a fault every call fails: only the first error matters
                buffer.free()

    def check(self, allocating: Callable[[], AbstractContextManager[None]] = nullcontext) -> CheckResult:
        with allocating():
            self.prepare()
        problem = self.problem()
        found, failure = self.launch(problem)
        failure = failure or self._other_memory()
        if self.options.twice and not failure:
            outputs = self.found
            again, failure = self.launch(problem, zeroed=True)  # as launches that share a workspace
            pairs = [(again, found), *((self.found.get(name, one), one) for name, one in outputs.items())]
            differing = sum(int(np.count_nonzero(one.view("u1") != other.view("u1"))) for one, other in pairs)
            failure = failure or (f"a second launch differs in {differing} B of D" if differing else "")
        self.free()  # other processes may need the memory while this one computes the reference
        if failure:
            return CheckResult(str(self.case), float("inf"), float("inf"), False, f"{self.kind}: {failure}")
        expected = reference(self.traits, self.operands, splits=self.splits)
        checks = [compare(str(self.case), decode(found, self.traits.dtype_d), expected, self.kind)]
        for output, one in zip(self.traits.outputs, expected.outputs):
            values = decode(self.found[output.name], one.dtype_d)
            values = values.swapaxes(1, 2) if output.kind == "column" else values
            checks.append(compare(str(self.case), values, one, f"{self.kind}, {output.name}"))
        return _as_one(checks)

    def prepare(self) -> None:
        """Upload all operands. If beta is 0, C is null or holds canaries, because it must not be read."""
        numbers = stored(self.traits, self.operands)
        if self.case.in_place:
            numbers["d"] = numbers.pop(self.traits.overwritten)
        for one in self.traits.operands:
            if one.kind == "scalar" and not self.case.loose:  # loose cases pass scalars by pointer
                del numbers[INPUT + one.name]
        beside = numbers.pop("c", None) if self.case.beside else None
        if self.case.same_ab:
            del numbers["b"]
        apart = self.traits.beta and self.case.loose and not (self.case.in_place or self.case.beside)
        poisoned = {"d", *(OUTPUT + one.name for one in self.traits.outputs)} | ({"c"} if apart else set())
        guard_bytes, align_bytes = self.options.guard_bytes, self.options.align_bytes
        for name, layout in operand_layouts(self.traits, self.case).items():
            if name in numbers or name in poisoned:
                if name == "d" and beside is not None:
                    self.buffers[name] = Operand(self.device, layout, guard_bytes, align_bytes, layout.leading // 2)
                    self.buffers[name].fill_beside(beside)
                else:
                    self.buffers[name] = operand_in(self.device, layout, guard_bytes, align_bytes)
                    self.buffers[name].fill(numbers.get(name))
        sizes = (self.shape.m, self.shape.n, self.shape.batch)
        if size := workspace_bytes(self.traits, *sizes, self.launch_options):
            self.workspace = Workspace(self.device, size, self.options.guard_bytes)  # a launch zeroes its counters

    def _aux(self, buffers: dict[str, Operand]) -> tuple[Aux, ...]:
        """Return the inputs of an expression, and its further results."""

        def aux(name: str, kind: str) -> Aux:
            if name not in buffers:
                return Aux(value=float(self.operands.inputs[name.removeprefix(INPUT)].item()))
            layout = buffers[name].layout
            stride = layout.batch_stride if layout.batch > 1 else 0
            return Aux(buffers[name].address, layout.leading if kind == "matrix" else 0, stride)

        inputs = (aux(INPUT + one.name, one.kind) for one in self.traits.operands)
        return (*inputs, *(aux(OUTPUT + one.name, one.kind) for one in self.traits.outputs))

    def problem(self) -> Problem:
        shape = self.shape
        fields: dict[str, Any] = {"workspace": self.workspace.pointer} if self.workspace else {}
        aliases = {self.traits.overwritten: "d"} if self.case.in_place or (self.case.beside and self.case.beta) else {}
        aliases |= {"b": "a"} if self.case.same_ab else {}
        buffers = {**self.buffers, **{name: self.buffers[other] for name, other in aliases.items()}}
        fields["aux"] = self._aux(buffers)
        for name, buffer in buffers.items():
            if name.startswith((INPUT, OUTPUT)):
                continue
            fields[name] = buffer.pointer if name == "c" and self.case.beside else buffer.address
            fields[f"batch_stride_{name}"] = buffer.layout.batch_stride if buffer.layout.batch > 1 else 0
            if name != "bias":
                fields[f"ld{name}"] = buffer.layout.leading
        if self.traits.pointer_arrays:
            places = {name: (fields[name], fields.pop(f"batch_stride_{name}")) for name in "abcd" if name in fields}
            arrays = {place: self._array(name, *place) for name, place in places.items()}
            fields |= {"pointer_arrays": True, **{name: arrays[place] for name, place in places.items()}}
        problem = Problem(shape.m, shape.n, shape.k, shape.batch, alpha=self.case.alpha, beta=self.case.beta)
        return replace(problem, **fields, bias_kind=bias_of_case(self.traits, self.case), options=self.launch_options)

    def _array(self, name: str, first: int, batch_stride: int) -> int:
        """Upload the addresses of an operand's matrices, and return that of their array.

        The last matrix comes first, unless the kernel reads other operands by the number of the matrix.
        """
        dtype = self.traits.dtype_d if name in "cd" else getattr(self.traits, f"dtype_{name}")
        array = Buffer(self.device, self.shape.batch * POINTER_BYTES, POINTER_BYTES, self.options.guard_bytes)
        step = batch_stride * DTYPES[dtype].bytes
        array.blank = False
        addresses = [first + at * step for at in range(self.shape.batch)]
        numbered = self.traits.bias != "none" or self.traits.epilogue
        array.elements(array.before, "<u8")[:] = addresses if numbered else addresses[::-1]
        array.upload()
        self.arrays[name] = array
        return array.pointer

    def launch(
        self, problem: Problem, workspace_size: int | None = None, zeroed: bool = False
    ) -> tuple[np.ndarray, str]:
        """Fill D with canaries, launch, and return D's elements and the failure of its memory, if any.

        `zeroed` tells that an earlier launch has left the counters of the workspace zero.
        """
        d, outputs = self.buffers["d"], {one.name: self.buffers[OUTPUT + one.name] for one in self.traits.outputs}
        for buffer in (d, *outputs.values()):
            buffer.upload()
        size = self.workspace.size_bytes if self.workspace else workspace_size
        self.kernel.launch(problem, device=self.device.ordinal, workspace_size=size, zeroed=zeroed)
        found, failure = d.written(d.download())
        left = np.argwhere(d.unwritten(found))
        if len(left):
            return found, f"{len(left)} elements of D were not written, the first {_index(left[0])}"
        self.found = {}
        for name, buffer in outputs.items():
            self.found[name], wrong = buffer.written(buffer.download())
            if count := np.count_nonzero(buffer.unwritten(self.found[name])):
                return found, f"{count} elements of {name} were not written"
            failure = failure or (f"{name}: {wrong}" if wrong else "")
        return found, f"D: {failure}" if failure else ""

    def _other_memory(self) -> str:
        """Return the failure if memory other than D was changed, else an empty text."""
        for name, buffer in self.buffers.items():
            if name != "d" and not name.startswith(OUTPUT) and (words := buffer.changed(buffer.download())):
                return f"{name}: {words}"
        for name, array in self.arrays.items():
            if words := array.changed(array.download()):
                return f"the array of {name}: {words}"
        if not self.workspace:
            return ""
        sizes = (self.shape.m, self.shape.n, self.shape.batch)
        return self.workspace.failure(counter_bytes(self.traits, *sizes, self.launch_options))


def compare(case: str, values: np.ndarray, expected: Reference, kind: str) -> CheckResult:
    """Compare values with a reference element by element. Shapes: both (batch, m, n)."""
    with np.errstate(invalid="ignore"):
        error, ratio = np.abs(values - expected.values), expected.error_ratio(values)
    error[np.isnan(values)] = np.inf
    error[np.broadcast_to(np.isnan(expected.values), error.shape)] = 0.0  # the bound says that any number passes
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    max_error, max_ratio = float(error.max()), float(ratio[worst])
    if max_ratio <= 1.0:
        return CheckResult(case, max_error, max_ratio, True, UNBOUNDED if np.all(np.isinf(expected.bound)) else "")
    off, value = int(np.count_nonzero(ratio > 1.0)), values[worst]
    reason = (
        f"{kind}: {off} elements are wrong, the worst {_index(worst)} is {value:.7g}, expected {expected.values[worst]:.7g}, "
        f"error {error[worst]:.3g} > bound {expected.limit(values)[worst]:.3g}"
    )
    return CheckResult(case, max_error, max_ratio, False, reason)


def _index(position: Iterable[Any]) -> str:
    batch, row, column = (int(i) for i in position)
    return f"(batch {batch}, row {row}, column {column})"


# ==== One timed run, with a check that is cheap for large problems ====

CHECKED_PRODUCTS = 2**32
"""The most products that NumPy recomputes, in a few seconds. Larger problems are checked on some rows."""


@dataclass(frozen=True)
class Run:
    """The result of one run. `check` is None if none was requested. `digest` is a hash of all of D."""

    time_us: float
    tflops: float
    checked_rows: int
    check: CheckResult | None
    digest: str


def run(kernel: Kernel, case: Case, device: Device, seed: int = 0, samples: int = 20, checked: bool = True) -> Run:
    """Run a kernel on normal random data, time it with CUDA events, and compare rows of D with the reference.

    Raises: ProblemError if the kernel does not support the problem, DeviceError if a launch fails.
    """
    # Aligned as allocations are. An offset of 16 bytes from a sector takes 465 us instead of 324 at 4096^3 on an H200.
    trial = Trial(kernel, case, device, CheckOptions(seed=seed, align_bytes=256), "normal")
    try:
        trial.prepare()
        problem = trial.problem()
        found, failure = trial.launch(problem)
        check, rows = None, _rows(case, seed) if checked else np.zeros(0, int)
        if checked and failure:
            check = CheckResult(str(case), float("inf"), float("inf"), False, failure)
        elif checked:
            expected = reference(kernel.traits, trial.operands, rows, trial.splits)
            check = compare(str(case), decode(found[:, rows], kernel.traits.dtype_d), expected, "normal")
        size = trial.workspace.size_bytes if trial.workspace else None
        time_us = median_us(device, kernel.bind(problem, device=device.ordinal, workspace_size=size), samples)
        digest = hashlib.sha256(found.tobytes()).hexdigest()
        return Run(time_us, problem.flops / time_us * 1e-6, len(rows), check, digest)
    finally:
        trial.free()


def _rows(case: Case, seed: int) -> np.ndarray:
    """Return all rows of D, or the first, the last and random ones of a large D."""
    s = case.shape
    count = max(3, CHECKED_PRODUCTS // (s.n * s.k * s.batch))
    if count >= s.m:
        return np.arange(s.m)
    between = np.random.default_rng(seed).choice(s.m, count - 2, replace=False)
    return np.unique([0, s.m - 1, *between])
