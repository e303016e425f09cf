"""Arrays of torch, CuPy, Numba, JAX and others: where their elements lie, and quick access to it for repeated calls.

A View describes an array completely. It comes from DLPack or `__cuda_array_interface__`. DLPack is read with ctypes, because
cuda.core's StridedMemoryView takes 0.34 s to import and rejects bf16 without ml_dtypes.

An ArrayAdapter reads the signature of an array in a fraction of a microsecond. Equal signatures have equal views.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from hgemm.device import ordinal_of
from hgemm.errors import HostArrayError, ProblemError
from hgemm.workspace import Allocate, allocate_on

Shape = tuple[int, ...]

# ==== Views ====


@dataclass(frozen=True)
class View:
    """An array in the memory of a device. `device` is None if the array does not report it.

    Units: `strides` count elements.
    """

    pointer: int
    shape: Shape
    strides: Shape
    dtype: str
    device: int | None
    readonly: bool = False

    @property
    def contiguous(self) -> bool:
        """Whether the array is C-contiguous."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent > 1 and stride != expected:
                return False
            expected *= extent
        return True

    @property
    def item_bytes(self) -> int:
        """The size of an element."""
        return int("".join(digit for digit in self.dtype if digit.isdigit())) // 8

    @property
    def size_bytes(self) -> int:
        """The size of the elements, without gaps."""
        size = self.item_bytes
        for extent in self.shape:
            size *= extent
        return size


def view(array: Any, name: str) -> View:
    """Return the view of an array of any library with DLPack or `__cuda_array_interface__`. The caller keeps it alive.

    Raises: ProblemError with the operand's name if it is not an array on a GPU.
    """
    try:
        if hasattr(array, "__dlpack__"):
            return without_negative_strides(_from_dlpack(array, name), name)
        if hasattr(array, "__cuda_array_interface__"):
            return without_negative_strides(_from_interface(array.__cuda_array_interface__, name), name)
    except (BufferError, TypeError, RuntimeError, AttributeError) as error:
        raise ProblemError(f"{name} does not export its memory: {' '.join(str(error).split())}") from error
    raise ProblemError(f"{name} is a {type(array).__name__}: pass an array with DLPack or __cuda_array_interface__")


def without_negative_strides(found: View, name: str) -> View:
    """Return the view of an array. Raises ProblemError if elements of an axis lie backwards."""
    if any(stride < 0 and extent > 1 for stride, extent in zip(found.strides, found.shape)):
        raise ProblemError(f"{name} has a negative stride, {found.strides} elements: copy it")
    return found


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: a number, an object of torch, CuPy, cuda.core or Numba, or None for the default stream.

    Raises: ProblemError for anything else.
    """
    if stream is None:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, attribute):
            handle = getattr(stream, attribute)
            return int(getattr(handle, "value", handle) or 0)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise ProblemError(
            f"stream is a {type(stream).__name__}: pass a number, or a stream of torch, CuPy or cuda.core"
        ) from None


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


# ---- DLPack ----

_CPU_KIND = 1
_DEVICE_KINDS = {2: "CUDA", 13: "CUDA managed"}
"""Memory that kernels can read. Source: DLDeviceType of dlpack.h 1.0."""
_NO_SYNCHRONISATION = -1
"""The stream argument of `__dlpack__`. The caller orders the streams, so that graphs can capture a launch."""


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class _Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of the DLManagedTensor in a capsule named "dltensor"."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DTYPE_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "bool"}
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _from_dlpack(array: Any, name: str) -> View:
    kind, ordinal = array.__dlpack_device__()
    if int(kind) not in _DEVICE_KINDS:
        if int(kind) == _CPU_KIND:
            raise HostArrayError(name)
        raise ProblemError(f"{name} is in memory of DLPack device {int(kind)}, and kernels read a GPU's: copy it there")
    is_jax = _waits(array)
    with _exporting(array, int(ordinal)):  # the capsule keeps its name, so its own destructor frees the tensor
        capsule = array.__dlpack__(stream=None if is_jax else _NO_SYNCHRONISATION)
    tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else dense_strides(shape)
    if tensor.dtype.lanes != 1:
        raise ProblemError(f"{name} has elements of {tensor.dtype.lanes} lanes: only 1 is supported")
    dtype = f"{_DTYPE_CODES.get(tensor.dtype.code, 'type')}{tensor.dtype.bits}"
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, int(ordinal), readonly=is_jax)


def _waits(array: Any) -> bool:
    """Wait for an array of JAX, and return whether it is one. JAX computes on its own streams, which no caller can name."""
    if not _JAX & {*_packages(type(array))}:
        return False
    array.block_until_ready()
    return True


def _exporting(array: Any, ordinal: int) -> AbstractContextManager[Any]:
    """Return a context that makes a GPU torch's current one if the array is torch's: it exports no tensor of another GPU."""
    torch = sys.modules.get("torch")
    if not torch or "torch" not in _packages(type(array)) or torch.cuda.device_count() < 2:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.device(ordinal)
    return context


# ---- __cuda_array_interface__ ----


def _from_interface(interface: dict[str, Any], name: str) -> View:
    pointer, readonly = interface["data"]
    shape = tuple(interface["shape"])
    size = int(interface["typestr"][2:])
    dtype = dtype_of(interface["typestr"], size, name)
    byte_strides = interface.get("strides")
    strides = element_strides(byte_strides, size, name) if byte_strides else dense_strides(shape)
    return View(int(pointer or 0), shape, strides, dtype, None, bool(readonly))


def dtype_of(typestr: str, size_bytes: int, name: str) -> str:
    """Return the type that an array interface names, such as `<f2`. Raises ProblemError if it is big-endian."""
    order, kind = typestr[0], typestr[1]
    if order == ">":
        raise ProblemError(
            f"{name} is big-endian ({typestr}): convert it with array.astype(array.dtype.newbyteorder('='))"
        )
    if (kind, size_bytes) == ("V", 2):  # bf16 of ml_dtypes, which CuPy uses: NumPy has none
        return "bf16"
    return f"{'bool' if kind == 'b' else kind}{8 * size_bytes}"


def element_strides(byte_strides: Sequence[int], size_bytes: int, name: str) -> Shape:
    """Return strides in elements. Raises ProblemError if one is not a whole number of elements."""
    if any(stride % size_bytes for stride in byte_strides):
        raise ProblemError(
            f"{name} has strides {tuple(byte_strides)} B, not multiples of its {size_bytes} B elements: copy it"
        )
    return tuple(stride // size_bytes for stride in byte_strides)


# ==== Adapters: quick access for repeated calls ====

Signature = tuple[Hashable, ...]
"""The address of an array, then values that determine the rest of its view. For torch and CuPy, the last one is the device."""


@dataclass(frozen=True)
class ArrayAdapter:
    """The functions for arrays of one type.

    Fields: `read` returns the signature quickly, `view` the complete view. `stream` returns the handle of the current stream of
        the array's library, 0 for the default stream. `empty` makes an array on the same device, of the same type or of the type
        with this name; it is None if only the caller can make one. `allocate` takes memory for a workspace from the array's
        library. `transpose` returns a matrix with its axes swapped, `reshape` a contiguous array with another shape.
        Neither copies. `is_contiguous` tells whether an array is C-contiguous; the text is its name in errors.
    """

    read: Callable[[Any], Signature]
    view: Callable[[Any, str], View] = view
    stream: Callable[[Signature], int] = lambda signature: 0
    empty: Callable[[Any, Shape, str], Any] | None = None
    allocate: Allocate = allocate_on
    transpose: Callable[[Any], Any] = lambda array: ArrayView.transposed(array)
    reshape: Callable[[Any, Shape], Any] = lambda array, shape: ArrayView.reshaped(array, shape)
    is_contiguous: Callable[[Any, str], bool] = lambda array, name: view(array, name).contiguous


@dataclass(frozen=True)
class ArrayView:
    """The memory of an array of any library, which it keeps alive, in another shape."""

    array: Any
    view: View

    @property
    def shape(self) -> Shape:
        return self.view.shape

    @classmethod
    def transposed(cls, matrix: Any) -> ArrayView:
        """Return a matrix with its two axes swapped."""
        found = view(matrix, "a matrix")
        return cls(matrix, replace(found, shape=found.shape[::-1], strides=found.strides[::-1]))

    @classmethod
    def reshaped(cls, array: Any, shape: Shape) -> ArrayView:
        """Return a C-contiguous array with another shape."""
        return cls(array, replace(view(array, "an array"), shape=shape, strides=dense_strides(shape)))


class _ArrayAdapters(dict[type, ArrayAdapter]):
    """The adapters of the array types that were used, made on first use."""

    def __missing__(self, kind: type) -> ArrayAdapter:
        makers = (_MAKERS[package] for package in _packages(kind) if package in _MAKERS)
        adapter = self[kind] = next(makers, _any)()
        return adapter


ARRAY_ADAPTERS = _ArrayAdapters()
ARRAY_ADAPTERS[ArrayView] = ArrayAdapter(
    lambda array: (array.view.pointer, array.view.shape, array.view.strides, array.view.dtype, array.view.device),
    lambda array, name: array.view,
)


def _packages(kind: type) -> Iterator[str]:
    return (base.__module__.partition(".")[0] for base in kind.__mro__)


def shape_of(array: Any, name: str) -> Shape:
    """Return the shape of an array. Raises ProblemError with the operand's name if it is none."""
    return tuple(array.shape) if hasattr(array, "shape") else ARRAY_ADAPTERS[type(array)].view(array, name).shape


def joined_rows(array: Any, name: str) -> Any:
    """Return an array with 2 axes, or 3, which products take. Further axes are joined, without a copy.

    Raises: ProblemError if they cannot be joined.
    """
    shape = shape_of(array, name)
    if len(shape) in (2, 3):
        return array
    adapter = ARRAY_ADAPTERS[type(array)]
    if not shape or not adapter.is_contiguous(array, name):
        raise ProblemError(f"{name} {shape} is not contiguous: copy it")
    return adapter.reshape(array, (prod(shape[:-1]), shape[-1]))


_DTYPES = {"": "", "f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def new_array(like: Any, shape: Shape, dtype: str = "") -> Any:
    """Return a new array on the device of another, and of its type or of `dtype`.

    Raises: ProblemError if only the caller can make one.
    """
    make, name = ARRAY_ADAPTERS[type(like)].empty, _DTYPES[dtype]
    try:
        if make is not None:
            return make(like, shape, name)
        if hasattr(like, "__array_namespace__") and not _JAX & {*_packages(type(like))}:  # the array API standard
            library = like.__array_namespace__()
            return library.empty(shape, dtype=getattr(library, name) if name else like.dtype, device=like.device)
    except (AttributeError, TypeError) as error:  # a type that the library lacks
        if not name:
            raise
        fix = "import ml_dtypes, or pass out" if name == "bfloat16" and type(like).__module__ == "numpy" else "pass out"
        raise ProblemError(f"a new {type(like).__name__} of {name} cannot be made ({error}): {fix}") from None
    raise ProblemError(f"out is missing, and a new {type(like).__name__} cannot be made: pass out")


_NO_DEVICE = -1
"""The device of a tensor on the CPU. Source: torch.Tensor.get_device."""


def _torch() -> ArrayAdapter:
    torch = sys.modules["torch"]
    records_gradients = torch.is_grad_enabled
    raw_stream = getattr(
        torch._C, "_cuda_getCurrentRawStream", None
    )  # takes a tenth of the time of torch.cuda.current_stream

    def read(tensor: Any) -> Signature:
        if tensor.requires_grad and records_gradients():
            raise ProblemError(
                "a tensor requires gradients, but this call does not record them: use hgemm.torch, torch.no_grad() or detach()"
            )
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()

    def stream(signature: Signature) -> int:
        device = signature[-1]
        try:
            found: int = raw_stream(device) if raw_stream else torch.cuda.current_stream(device).cuda_stream
        except (RuntimeError, AssertionError):
            if device == _NO_DEVICE:
                raise HostArrayError("an operand") from None
            raise
        return found

    def allocate(device: int, size_bytes: int) -> tuple[int, Any]:
        block = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")
        return block.data_ptr(), block

    return ArrayAdapter(
        read,
        lambda tensor, name: view(tensor.detach(), name),
        stream,
        lambda tensor, shape, dtype: tensor.new_empty(shape, dtype=getattr(torch, dtype) if dtype else None),
        allocate,
        lambda tensor: tensor.t(),
        lambda tensor, shape: tensor.view(shape),
        lambda tensor, name: tensor.is_contiguous(),
    )


def _cupy() -> ArrayAdapter:
    cupy = sys.modules["cupy"]

    def read(array: Any) -> Signature:
        memory = array.data
        return memory.ptr, array.shape, array.strides, array.dtype.char, memory.device_id

    def empty(array: Any, shape: Shape, dtype: str) -> Any:
        with array.device:
            return cupy.empty(shape, dtype or array.dtype)

    def allocate(device: int, size_bytes: int) -> tuple[int, Any]:
        with cupy.cuda.Device(device):
            block = cupy.empty(size_bytes, "u1")
        return block.data.ptr, block

    return ArrayAdapter(
        read,
        view,
        lambda signature: cupy.cuda.get_current_stream(signature[-1]).ptr,
        empty,
        allocate,
        lambda array: array.T,
        lambda array, shape: array.reshape(shape),
    )


def _numba() -> ArrayAdapter:
    from numba import cuda

    return ArrayAdapter(_read_any, empty=lambda array, shape, dtype: cuda.device_array(shape, dtype or array.dtype))


def _numpy() -> ArrayAdapter:
    numpy = sys.modules["numpy"]

    def read(array: Any) -> Signature:
        raise HostArrayError("an operand")

    def view(array: Any, name: str) -> View:
        raise HostArrayError(name)

    return ArrayAdapter(
        read,
        view,
        empty=lambda array, shape, dtype: numpy.empty(shape, dtype or array.dtype),
        transpose=lambda array: array.T,
        reshape=lambda array, shape: array.reshape(shape),
        is_contiguous=lambda array, name: array.flags.c_contiguous,
    )


def _any() -> ArrayAdapter:
    return ArrayAdapter(_read_any)


def _read_any(array: Any) -> Signature:
    try:
        interface = array.__cuda_array_interface__
    except AttributeError:
        return _read_whole(array)
    pointer, readonly = interface["data"]
    device = ordinal_of(pointer) if pointer else 0
    return pointer, tuple(interface["shape"]), interface.get("strides"), interface["typestr"], readonly, device


def _read_whole(array: Any) -> Signature:
    found = view(array, "an operand")
    return found.pointer, found.shape, found.strides, found.dtype, found.device


def _jax() -> ArrayAdapter:
    return ArrayAdapter(_read_whole)


_JAX = {"jax", "jaxlib"}
"""The packages of JAX, whose arrays are immutable."""
_MAKERS = {"torch": _torch, "cupy": _cupy, "numba": _numba, "numpy": _numpy, **dict.fromkeys(_JAX, _jax)}
"""By the package of an array type or of one of its base classes."""
