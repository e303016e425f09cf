"""Kernel launches a kernel on arrays. Launcher repeats a launch with other addresses at the lowest cost.

The steps of a call: arrays -> views -> `problem_of` -> Problem -> check -> launch. A Launcher does all steps but the last one
once, for one geometry: sizes, types and strides.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from hgemm.arrays import View, stream_handle, view
from hgemm.device import Function, Image, checked, driver, open_device, ordinal_of
from hgemm.dispatch_table import default_options, kind_of, row_of
from hgemm.dtypes import stored_dtype
from hgemm.epilogue import Epilogue, Input, columns_of_d
from hgemm.errors import ProblemError
from hgemm.launch import (
    MAP_BYTES,
    OPERANDS,
    aux_align,
    check,
    counter_bytes,
    encoders,
    grid_x,
    map_descriptions,
    matrices,
    parameter,
    starts_early,
    tensor_maps,
    with_launch_options,
    workspace_bytes,
)
from hgemm.launch_traits import INPUT, OUTPUT, LaunchTraits
from hgemm.problem import AUX_BYTES, LAUNCH, PROBLEM_BYTES, Aux, LaunchOptions, Problem
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target

# ==== One launch ====


class Kernel:
    """One kernel of a library. A call launches it once, and neither allocates memory nor waits.

    The first launch on a device loads the cubin, or the PTX if the device cannot run the cubin. Call `prepare` before a CUDA
    graph is captured.

    Raises: LibraryError if the record lacks a field that a launch needs.
    """

    def __init__(self, record: Mapping[str, Any], cubin: bytes = b"", ptx: bytes = b"") -> None:
        self.record, self.traits = record, LaunchTraits.of(record)
        self.image = Image(self.traits.arch, cubin, ptx)
        self._functions: dict[int, Function] = {}

    def __repr__(self) -> str:
        return f"Kernel({self.traits.symbol})"

    @property
    def symbol(self) -> str:
        """The name of the kernel, which is also that of its folder."""
        return self.traits.symbol

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Any = None,
        bias: Any = None,
        workspace: Any = None,
        stream: Any = None,
        options: LaunchOptions | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Launch out = activation(alpha * a b + beta * c + bias) on `stream`, and return `out` without waiting.

        A kernel with an expression takes its `inputs` by name instead of beta, c and bias: arrays, and numbers for scalars.
        If the expression has several results, `out` is a tuple of their arrays, D first.

        Shapes: a (m, k), b (k, n), out and c (m, n), bias (n,), (m,) or (m, 1), each optionally with a leading batch. An operand
            without a batch, or with batch 1, is shared. The kernel's layout determines the contiguous axes of a and b.
        Fields: `options` are for kernels that leave the schedule or the raster to the launch; the default suits the sizes.
        Raises: ProblemError if the kernel does not support the arrays, DeviceError if the driver fails.
        """
        d, further = split_results(self.traits.epilogue, out)
        given = {"A": a, "B": b, "D": d, "C": c, "bias": bias, "workspace": workspace}
        arrays, scalars = split_inputs(inputs)
        given |= {INPUT + name: array for name, array in arrays.items()} | further
        views = {name: view(array, name) for name, array in given.items() if array is not None}
        problem = replace(problem_of(self.traits, views, alpha, beta, scalars), options=options)
        workspace_size = views["workspace"].size_bytes if "workspace" in views else None
        self.launch(problem, stream=stream, device=device_of(views), workspace_size=workspace_size)
        return out

    def launch(
        self,
        problem: Problem,
        *,
        stream: Any = None,
        device: int = 0,
        workspace_size: int | None = None,
        zeroed: bool = False,
    ) -> None:
        """Launch a problem that is given by addresses. Fields as `bind`. Raises ProblemError or DeviceError."""
        self.bind(problem, stream=stream, device=device, workspace_size=workspace_size, zeroed=zeroed)()

    def bind(
        self,
        problem: Problem,
        *,
        stream: Any = None,
        device: int = 0,
        workspace_size: int | None = None,
        zeroed: bool = False,
    ) -> Callable[[], None]:
        """Check a problem, and return a function that launches it. Raises ProblemError or DeviceError.

        With `zeroed`, the launch assumes that the counters of the workspace are zero, as each launch leaves them. Otherwise it
        zeroes them first.
        """
        problem = self.with_launch_options(problem, device, workspace_size)
        check(problem, self.traits, workspace_size)
        function = self.prepare(device)
        launched = (problem.m, problem.n, problem.batch)
        grid = grid_x(self.traits, *launched, function.resident_ctas, problem.options)
        counted = 0 if zeroed else counter_bytes(self.traits, *launched, problem.options)
        parameters = [parameter(self.traits, problem)]
        if self.traits.tensor_maps:
            parameters.append(tensor_maps(self.traits, problem, device))
        counters, early = (problem.workspace, counted), starts_early(self.traits, problem, function.resident_ctas)
        return open_device(device).bind(function, grid, parameters, stream_handle(stream), counters, early)

    def with_launch_options(self, problem: Problem, device: int = 0, workspace_size: int | None = None) -> Problem:
        """Return the problem with the options that a launch on this device takes, if the kernel leaves any open."""

        def default() -> LaunchOptions:
            size = 0 if not problem.workspace else ANY_WORKSPACE if workspace_size is None else workspace_size
            query = SelectionQuery.of(kind_of(self.traits), problem, size)
            return default_options(row_of(self.traits, self.record), query, Target.of(open_device(device)))

        return with_launch_options(self.traits, problem, default)

    def prepare(self, device: int = 0) -> Function:
        """Load the code on a device if it is not loaded. Raises UnsupportedError if the device cannot run it."""
        if device not in self._functions:
            self._functions[device] = open_device(device).load(self.image, self.traits)
        return self._functions[device]

    def workspace_bytes(self, m: int, n: int, batch: int = 1, options: LaunchOptions | None = None) -> int:
        """Return the size of the workspace that a launch needs, 0 for most kernels. Its content does not matter.

        A kernel that leaves the splits to the launch needs none unless the launch's options split k.
        """
        return workspace_bytes(self.traits, m, n, batch, options)


# ==== From arrays to a problem ====


def split_inputs(inputs: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the arrays and the numbers among the inputs of an expression.

    Raises: ProblemError for texts and lists, which are neither.
    """
    for name, one in (inputs or {}).items():
        if isinstance(one, (str, bytes, list, tuple, dict)):
            raise ProblemError(f"input {name} is {one!a:.40}: pass a number for a Scalar, else an array")
    numbers = {name: float(one) for name, one in (inputs or {}).items() if isinstance(one, Real)}
    return {name: one for name, one in (inputs or {}).items() if name not in numbers}, numbers


def split_results(epilogue: Epilogue | None, out: Any) -> tuple[Any, dict[str, Any]]:
    """Return D, and the arrays of the further results of an expression by their names as operands.

    Raises: ProblemError unless `out` has as many arrays as the expression has results.
    """
    outputs = epilogue.outputs if epilogue else ()
    given = (*out,) if isinstance(out, (tuple, list)) else (out,)
    if len(given) != 1 + len(outputs) or (not outputs and given[0] is not out):
        names = ", ".join(["d", *(one.name for one in outputs)])
        wanted = f"a tuple of {1 + len(outputs)} arrays ({names})" if outputs else "one array"
        raise ProblemError(f"out has {len(given)} arrays: pass {wanted}, because the epilogue has as many results")
    return given[0], {OUTPUT + one.name: array for one, array in zip(outputs, given[1:])}


def problem_of(
    traits: LaunchTraits,
    views: Mapping[str, View],
    alpha: float = 1.0,
    beta: float = 0.0,
    scalars: Mapping[str, float] | None = None,
) -> Problem:
    """Return the problem of arrays A, B, D and, if given, C, bias, workspace and the inputs of an expression.

    Fields: the name of an input has INPUT before it, that of a further result OUTPUT; `scalars` are inputs that are numbers.

    Raises: ProblemError if the kernel does not support their shapes, types or contiguous axes.
    """
    _check_types(traits, views)
    m, n, k, batch = _sizes(traits, views)
    a = _fields_of(traits, views, "A", contiguous=-1 if traits.a_k_major else -2, align=traits.align_a)
    b = _fields_of(traits, views, "B", contiguous=-2 if traits.b_k_major else -1, align=traits.align_b)
    d = _fields_of(traits, views, "D", contiguous=-1, align=traits.align_d)
    c = _fields_of(traits, views, "C", contiguous=-1, align=traits.align_d) if "C" in views else {}
    problem = Problem(
        m,
        n,
        k,
        batch,
        **(a | b | c | d),
        alpha=number_of("alpha", alpha),
        beta=number_of("beta", beta),
        workspace=views["workspace"].pointer if "workspace" in views else 0,
    )
    if "bias" in views:
        bias = _one_axis(views["bias"]) if _is_column_matrix(views) else views["bias"]
        if bias.shape[-1] > 1 and bias.strides[-1] != 1:
            raise ProblemError(f"{traits.symbol}: bias is not contiguous (stride {bias.strides[-1]})")
        kind = bias_kind_of(views) if traits.bias in ("none", LAUNCH) else traits.bias
        problem = replace(problem, bias=bias.pointer, batch_stride_bias=_batch_stride(bias, 1), bias_kind=kind)
    return replace(problem, aux=_aux_of(traits, views, scalars or {}, (m, n, batch)))


def number_of(name: str, value: Any) -> float:
    """Return alpha or beta as a float. Raises: ProblemError if it is no number, such as an array with several elements."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError
        raise ProblemError(f"{name} has type {type(value).__name__}: pass a number") from error


def _aux_of(
    traits: LaunchTraits, views: Mapping[str, View], scalars: Mapping[str, float], sizes: tuple[int, int, int]
) -> tuple[Aux, ...]:
    """Return the inputs of an expression in its order, then its further results.

    Raises: ProblemError for missing, unknown or unfit ones.
    """
    operands = traits.epilogue.operands if traits.epilogue else ()
    given = {*scalars, *(name.removeprefix(INPUT) for name in views if name.startswith(INPUT))}
    names = {one.name: one for one in operands}
    outputs = traits.epilogue.outputs if traits.epilogue else ()
    wrong = [f"input {name} is missing" for name in names if name not in given]
    wrong += [
        f"{OUTPUT}{one.name} is missing: pass out as a tuple" for one in outputs if OUTPUT + one.name not in views
    ]
    known = ", ".join(names) or "none"
    wrong += [f"there is no input {name}: the inputs are {known}" for name in sorted(given - names.keys())]
    wrong += [
        f"input {name} is a number: pass an array" for name in scalars if name in names and names[name].kind != "scalar"
    ]
    if wrong:
        raise ProblemError(f"{traits.symbol}: {'; '.join(wrong)}")
    inputs = tuple(
        Aux(value=scalars[one.name])
        if one.name in scalars
        else _aux_array(traits, views[INPUT + one.name], one, INPUT, *sizes)
        for one in operands
    )
    results = (Input(one.name, one.kind, one.of(traits.dtype_d)) for one in outputs)
    return (*inputs, *(_aux_array(traits, views[OUTPUT + one.name], one, OUTPUT, *sizes) for one in results))


def _aux_array(traits: LaunchTraits, array: View, given: Input, sort: str, m: int, n: int, batch: int) -> Aux:
    n = columns_of_d(traits.epilogue, n)
    shape = {"scalar": (), "row": (n,), "column": (m,), "matrix": (m, n)}[given.kind]
    dtype = "f32" if given.kind == "scalar" else given.of(traits.dtype_d)
    legal = [(batch, *shape)] + ([(m, 1)] if given.kind == "column" else [])
    legal += [shape, (1, *shape)] if batch == 1 or sort == INPUT else []  # the batch shares an input
    wrong = []
    if array.shape not in legal:
        wrong.append(f"is {array.shape}, not {(batch, *shape) if batch > 1 else shape}")
    if array.dtype != dtype:
        wrong.append(f"is {array.dtype}, not {dtype}")
    if sort == OUTPUT and array.readonly:
        wrong.append("is read-only")
    if wrong:
        raise ProblemError(f"{traits.symbol}: {sort}{given.name} {' and '.join(wrong)}")
    if given.kind == "column" and array.shape == (m, 1):  # its rows are the elements
        array = _one_axis(array)
    if shape and array.shape[-1] > 1 and array.strides[-1] != 1:
        raise ProblemError(
            f"{traits.symbol}: {sort}{given.name} is not contiguous (stride {array.strides[-1]})"
            + (": copy it" if sort == INPUT else "")
        )
    leading = 0
    if given.kind == "matrix":
        align = aux_align(traits, dtype)
        leading = array.strides[-2] if m > 1 else -(-n // align) * align
    return Aux(array.pointer, leading, _batch_stride(array, len(shape)))


def bias_kind_of(views: Mapping[str, View]) -> str:
    """Return the kind of a given bias. If both fit, or none does, it is a row: one value per column, as in a linear layer."""
    count = views["bias"].shape[-1:]
    fits_rows_only = count == views["A"].shape[-2:-1] and count != views["B"].shape[-1:]
    return "column" if fits_rows_only or _is_column_matrix(views) else "row"


def _is_column_matrix(views: Mapping[str, View]) -> bool:
    """Return whether the bias of one product is (m, 1), which broadcasts to one value per row, also if m = n."""
    return len(views["D"].shape) == 2 and views["bias"].shape == (views["A"].shape[-2], 1)


def _one_axis(column: View) -> View:
    return replace(column, shape=column.shape[:1], strides=column.strides[:1])


def _check_types(traits: LaunchTraits, views: Mapping[str, View]) -> None:
    expected = {
        "A": traits.dtype_a,
        "B": traits.dtype_b,
        "D": traits.dtype_d,
        "C": traits.dtype_d,
        "bias": traits.dtype_d,
    }
    wrong = [
        f"{name} is {views[name].dtype}, not {stored_dtype(dtype)}"
        for name, dtype in expected.items()
        if name in views and views[name].dtype != stored_dtype(dtype)
    ]
    wrong += [
        f"{name} begins at an address that is not a multiple of its {found.item_bytes} B elements: copy it"
        for name, found in views.items()
        if name in expected and found.dtype == stored_dtype(expected[name]) and found.pointer % found.item_bytes
    ]
    wrong += [f"{name} is read-only" for name in ("D", "workspace") if name in views and views[name].readonly]
    if "workspace" in views and not views["workspace"].contiguous:
        wrong.append("workspace is not contiguous")
    if wrong:
        raise ProblemError(f"{traits.symbol}: {'; '.join(wrong)}")


def _sizes(traits: LaunchTraits, views: Mapping[str, View]) -> tuple[int, int, int, int]:
    for name in ("A", "B", "D"):
        if len(views[name].shape) not in (2, 3):
            raise ProblemError(f"{traits.symbol}: {name} has {len(views[name].shape)} axes: pass 2, or 3 with a batch")
    (m, k), n = views["A"].shape[-2:], views["B"].shape[-1]
    if views["B"].shape[-2] != k:
        transposed = ": pass the transpose of B" if n == k else ""
        raise ProblemError(
            f"{traits.symbol}: A is {views['A'].shape} and B {views['B'].shape}, but A must have as many columns as B has "
            f"rows, {k} and {views['B'].shape[-2]} here{transposed}"
        )
    column = traits.bias == "column" or (traits.bias == LAUNCH and "bias" in views and bias_kind_of(views) == "column")
    expected = {
        "A": (m, k),
        "B": (k, n),
        "D": (m, columns_of_d(traits.epilogue, n)),
        "C": (m, n),
        "bias": (m,) if column else (n,),
    }
    batch = max(views[name].shape[0] if len(views[name].shape) == 3 else 1 for name in "ABD")
    wrong = []
    for name, shape in expected.items():
        legal = [shape, (batch, *shape)] + ([(1, *shape)] if name != "D" else [])
        if name == "bias" and column and batch == 1:
            legal.append((m, 1))
        if name in views and (
            views[name].shape not in legal or (name == "D" and batch > 1 and views[name].shape == shape)
        ):
            wrong.append(f"{name} is {views[name].shape}, not {(batch, *shape) if batch > 1 else shape}")
    if wrong:
        raise ProblemError(f"{traits.symbol}: {'; '.join(wrong)}, for A {views['A'].shape} and B {views['B'].shape}")
    return m, n, k, batch


def _fields_of(
    traits: LaunchTraits, views: Mapping[str, View], name: str, contiguous: int, align: int
) -> dict[str, Any]:
    """Return the fields of a Problem for a matrix. Its axis `contiguous` (-1 or -2) must be contiguous."""
    matrix, other, letter = views[name], -3 - contiguous, name.lower()
    if matrix.shape[contiguous] > 1 and matrix.strides[contiguous] != 1:
        axes = {"A": "mk", "B": "kn"}.get(name, "mn")
        raise ProblemError(
            f"{traits.symbol}: {name} {matrix.shape} with strides {matrix.strides} is not contiguous along "
            f"{axes[contiguous]}, as layout {traits.layout} requires: copy it, or use a kernel of another layout"
        )
    single = matrix.shape[other] <= 1  # its stride is not used
    leading = -(-matrix.shape[contiguous] // align) * align if single else matrix.strides[other]
    return {letter: matrix.pointer, f"ld{letter}": leading, f"batch_stride_{letter}": _batch_stride(matrix, 2)}


def _batch_stride(matrix: View, axes: int) -> int:
    return matrix.strides[0] if len(matrix.shape) > axes and matrix.shape[0] > 1 else 0


def device_of(views: Mapping[str, View]) -> int:
    """Return the number of the device that holds all arrays. Raises ProblemError if they lie on several."""
    ordinals = {name: ordinal_of(v.pointer) if v.device is None else v.device for name, v in views.items()}
    if len(set(ordinals.values())) > 1:
        places = ", ".join(f"{name} on {ordinal}" for name, ordinal in ordinals.items())
        raise ProblemError(f"the arrays lie on different devices: {places}")
    return ordinals["D"]


# ==== Repeated launches ====

Addresses = tuple[int, ...]
"""The addresses of a, b, c, d, bias and workspace, then of an expression's inputs, 0 for numbers, and of its further results."""
_NAMES = ("a", "b", "c", "d", "bias", "workspace")
_ADDRESSES = struct.Struct("<6Q")
"""The first fields of a packed Problem, in the order of _NAMES."""
_ADDRESS = struct.Struct("<Q")
_ATTRIBUTE_BYTES = 72
"""The size of CUlaunchAttribute. Source: cuda.h of CUDA 12 and 13."""
_SOMEWHERE = 1 << 63
"""Stands for the address of an automatic workspace: no array lies there."""
MAX_ENCODED = 1024
"""Tensor maps that a launcher caches per operand."""


class Launcher:
    """Launches a kernel on one device for problems that differ in their addresses only. Threads may share it.

    Addresses must have the alignment of the given problem's addresses. With `workspace_of`, a function of device and stream, the
    launcher takes its workspace there (see hgemm/workspace.py) if the problem has none.

    Raises: ProblemError or DeviceError, as Kernel.bind.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        device: int = 0,
        workspace_size: int | None = None,
        workspace_of: Callable[[int, int], int] | None = None,
    ) -> None:
        self.kernel, self.problem, self.ordinal, self.workspace_size = kernel, problem, device, workspace_size
        traits = kernel.traits
        self.problem = problem = kernel.with_launch_options(problem, device, workspace_size)
        launched, options = (problem.m, problem.n, problem.batch), problem.options
        needed = workspace_bytes(traits, *launched, options)
        self._workspace_of = workspace_of if needed and not problem.workspace else None
        check(replace(problem, workspace=_SOMEWHERE) if self._workspace_of else problem, traits, workspace_size)
        self._function = kernel.prepare(device)
        self._device = open_device(device)
        self._grid = grid_x(traits, *launched, self._function.resident_ctas, options)
        self._counter_bytes = counter_bytes(traits, *launched, options)
        self._packed = parameter(traits, problem)
        self._encoders = encoders(traits, problem, device) if traits.tensor_maps else ()
        self._encoded: tuple[dict[int, bytes], ...] = tuple({} for _ in OPERANDS)
        spans = {name: place.end - place.pointer for name, place in matrices(problem, traits).items()}
        self._a_bytes, self._b_bytes, self._c_bytes, self._d_bytes, self._bias_bytes = (
            spans.get(name, 0) for name in ("A", "B", "C", "D", "bias")
        )
        self._input_bytes = tuple(spans.get(INPUT + one.name, 0) for one in traits.operands)
        self._output_bytes = tuple(spans[OUTPUT + one.name] for one in traits.outputs)
        self._c_may_be_d = (problem.ldc, problem.batch_stride_c) == (problem.ldd, problem.batch_stride_d)
        self.workspace_bytes = needed
        self._shared_workspace = needed > 0 and not self._workspace_of  # with arrays of the caller, which may overlap
        self._zeroed_bytes = 0 if self._workspace_of else self._counter_bytes
        self._free: list[_Slot] = []
        bindings = driver()
        self._handle, self._context = self._function.handle, self._device.context
        self._current_context, self._launch_kernel = bindings.cuCtxGetCurrent, bindings.cuLaunchKernelEx
        # A launch that zeroes its counters by a memset must wait for the memset.
        self._early = starts_early(traits, problem, self._function.resident_ctas) and not self._zeroed_bytes
        self._capture_status = bindings.cuStreamIsCapturing

    def launch(self, addresses: Addresses, stream: int) -> None:
        """Launch on a stream without waiting. Raises ProblemError if D overlaps an operand, or DeviceError."""
        if self._workspace_of:
            addresses = (*addresses[:5], self._workspace_of(self.ordinal, stream), *addresses[6:])
        try:
            slot = self._free.pop()  # no other thread uses it until it is put back
        except IndexError:
            config = self._device.config(self.kernel.traits, self._grid, stream, self._early)
            slot = _Slot(self._packed, config, stream, self.kernel.traits.map_count)
        if slot.addresses != addresses:
            self._write(slot, addresses)
        if slot.stream != stream:
            slot.config.hStream = slot.handle = driver().CUstream(stream)
            slot.stream = stream
        if self._early:  # no graph captures stream 0, the legacy default stream
            captured = stream and self._capture_status(slot.handle)[1]
            overlap = not captured or self._device.overlap_pays(slot.handle)
            if slot.overlap != overlap:
                slot.config.numAttrs, slot.overlap = int(overlap), overlap
        if self._zeroed_bytes or self._current_context()[1] != self._context:
            status = self._launch_elsewhere(slot)
        else:
            (status,) = self._launch_kernel(slot.config, self._handle, slot.address, 0)
        self._free.append(slot)
        if status:
            checked((status,), f"launch {self.kernel.traits.symbol}")

    def describe(self) -> dict[str, Any]:
        """Return the launch as plain values, for a program that repeats it without Python (hgemm/torch/operator.cpp).

        Fields: `problem` is the packed problem, with addresses at `offsets`; `attributes` are CUlaunchAttributes, for launches
            whose overlap pays (Device.overlap_pays); `programmatic` is whether the kernel lets the next one start early.
            Operands are in the order a, b, c, d, bias, workspace, and each map names its operand. If `zero_counters` is set, the
            first `counter_bytes` of the workspace must be zeroed before each launch.
        """
        config = self._device.config(self.kernel.traits, self._grid, 0, self._early)
        maps = map_descriptions(self.kernel.traits, self.problem) if self._encoders else ()
        return {
            "empty": False,
            "symbol": self.kernel.traits.symbol,
            "function": int(self._handle),
            "context": int(self._context),
            "grid": self._grid,
            "threads": config.blockDimX,
            "smem_bytes": config.sharedMemBytes,
            "attributes": b"".join(ctypes.string_at(one.getPtr(), _ATTRIBUTE_BYTES) for one in config.attrs),
            "attribute_count": config.numAttrs,
            "programmatic": self.kernel.traits.programmatic,
            "problem": self._packed,
            "offsets": tuple(8 * place for place in range(len(_NAMES))),
            "more_offsets": [PROBLEM_BYTES + at * AUX_BYTES for at in range(len(self.problem.aux))],
            "span_bytes": (self._a_bytes, self._b_bytes, self._c_bytes, self._d_bytes, self._bias_bytes, 0),
            "c_may_be_d": self._c_may_be_d,
            "workspace_bytes": self.workspace_bytes,
            "counter_bytes": self._counter_bytes,
            "zero_counters": self._zeroed_bytes > 0,
            "maps": tuple(
                (
                    _NAMES.index(name),
                    m and (int(m.element), m.extents, m.strides, m.box, m.step, tuple(map(int, m.modes))),
                )
                for name, m in maps
            ),
        }

    def _write(self, slot: _Slot, addresses: Addresses) -> None:
        """Check that D overlaps no operand, and write the addresses into a launch's arguments and tensor maps."""
        a, b, c, d, bias, _, *inputs = addresses
        end = d + self._d_bytes
        if (
            (a < end and d < a + self._a_bytes)
            or (b < end and d < b + self._b_bytes)
            or (c < end and d < c + self._c_bytes and not (c == d and self._c_may_be_d))
            or (bias < end and d < bias + self._bias_bytes)
            or any(one < end and d < one + size for one, size in zip(inputs, self._input_bytes))
            or self._shared_workspace
            or (self._output_bytes and self._outputs_touch(addresses))
        ):  # the ranges overlap, but D may lie between the rows of another matrix: check exactly
            aux = tuple(replace(one, pointer=at) for one, at in zip(self.problem.aux, inputs))
            fields: dict[str, Any] = dict(zip(_NAMES, addresses))
            given = replace(self.problem, **fields, aux=aux)
            check(given, self.kernel.traits, self.workspace_size)
        _ADDRESSES.pack_into(slot.problem, 0, *addresses[:6])
        for at, address in enumerate(inputs):
            _ADDRESS.pack_into(slot.problem, PROBLEM_BYTES + at * AUX_BYTES, address)
        if self._encoders:
            known_a, known_b, known_d = self._encoded
            try:
                slot.maps.raw = known_a[a] + known_b[b] + known_d[d]
            except KeyError:
                slot.maps.raw = b"".join(map(self._map, self._encoded, self._encoders, (a, b, d)))
        slot.addresses = addresses

    def _outputs_touch(self, addresses: Addresses) -> bool:
        """Return whether the range of bytes of a further result meets that of another operand."""
        a, b, c, d, bias, _, *more = addresses
        sizes = (self._a_bytes, self._b_bytes, self._c_bytes, self._d_bytes, self._bias_bytes)
        others = [*zip((a, b, c, d, bias), sizes), *zip(more, self._input_bytes)]
        for at, size in zip(more[len(self._input_bytes) :], self._output_bytes):
            if any(one < at + size and at < one + bytes for one, bytes in others):
                return True
            others.append((at, size))
        return False

    def _launch_elsewhere(self, slot: _Slot) -> object:
        """Launch with the device's context made current, and its counters zeroed."""
        with self._device.current():
            if self._zeroed_bytes:
                done = driver().cuMemsetD8Async(slot.addresses[5], 0, self._zeroed_bytes, slot.config.hStream)
                checked(done, "zero the counters")
            return self._launch_kernel(slot.config, self._handle, slot.address, 0)[0]

    @staticmethod
    def _map(known: dict[int, bytes], encode: Callable[[int], bytes], address: int) -> bytes:
        found = known.get(address)
        if found is None:
            if len(known) >= MAX_ENCODED:
                known.clear()
            found = known[address] = encode(address)
        return found


class _Slot:
    """The arguments and attributes of one launch. One thread uses it at a time."""

    def __init__(self, packed: bytes, config: Any, stream: int, maps: int) -> None:
        self.config, self.stream, self.handle, self.overlap = config, stream, config.hStream, True
        self.problem = (ctypes.c_char * len(packed)).from_buffer_copy(packed)
        self.maps = ctypes.create_string_buffer(MAP_BYTES * maps)
        self.addresses: Addresses = ()
        parameters = [ctypes.addressof(self.problem), *([ctypes.addressof(self.maps)] if maps else [])]
        self._parameters = (ctypes.c_void_p * len(parameters))(*parameters)
        self.address = ctypes.addressof(self._parameters)
