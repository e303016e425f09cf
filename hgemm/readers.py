"""Arrays read in a fraction of a microsecond: the address, and a signature by which what follows from the rest is remembered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from hgemm.arrays import View, view
from hgemm.device import ordinal_of
from hgemm.errors import ProblemError

Shape = tuple[int, ...]
Read = tuple[Hashable, ...]
"""An address, and values that are equal for two arrays where all but their addresses is; of torch the last is the device."""


@dataclass(frozen=True)
class Reader:
    """How arrays of one type are read.

    `read` is quick, `view` returns everything, slowly. `stream` returns from what was read the handle of the stream on which
    the array's library works now, 0 where it has none. `empty` makes an array of the same type and device, or is None where
    only the caller can.
    """

    read: Callable[[Any], Read]
    view: Callable[[Any, str], View] = view
    stream: Callable[[Read], int] = lambda read: 0
    empty: Callable[[Any, Shape], Any] | None = None


class _Readers(dict[type, Reader]):
    """How arrays of each type that was met are read."""

    def __missing__(self, kind: type) -> Reader:
        packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
        makers = (_MAKERS[package] for package in packages if package in _MAKERS)
        found = self[kind] = next(makers, _any)()
        return found


READERS = _Readers()


# ---- torch ----------------------------------------------------------------------------------------------------------


def _torch() -> Reader:
    torch = sys.modules["torch"]
    records_gradients = torch.is_grad_enabled
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the time of the public way

    def read(tensor: Any) -> Read:
        if tensor.requires_grad and records_gradients():
            raise ProblemError(
                "a tensor asks for gradients, which this call does not record: use hgemm.torch, torch.no_grad() or detach()"
            )
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()

    def stream(read: Read) -> int:
        device = read[-1]
        return raw_stream(device) if raw_stream else torch.cuda.current_stream(device).cuda_stream

    return Reader(
        read, lambda tensor, name: view(tensor.detach(), name), stream, lambda tensor, shape: tensor.new_empty(shape)
    )


# ---- CuPy -----------------------------------------------------------------------------------------------------------


def _cupy() -> Reader:
    cupy = sys.modules["cupy"]

    def read(array: Any) -> Read:
        memory = array.data
        return memory.ptr, array.shape, array.strides, array.dtype.char, memory.device_id

    def empty(array: Any, shape: Shape) -> Any:
        with array.device:
            return cupy.empty(shape, array.dtype)

    return Reader(read, view, lambda read: cupy.cuda.get_current_stream().ptr, empty)


# ---- Numba and others -----------------------------------------------------------------------------------------------


def _numba() -> Reader:
    from numba import cuda

    return Reader(_read_any, empty=lambda array, shape: cuda.device_array(shape, array.dtype))


def _any() -> Reader:
    return Reader(_read_any)


def _read_any(array: Any) -> Read:
    try:
        interface = array.__cuda_array_interface__
    except AttributeError:
        found = view(array, "an operand")
        return found.pointer, found.shape, found.strides, found.dtype, found.device
    pointer, readonly = interface["data"]
    device = ordinal_of(pointer) if pointer else 0
    return pointer, tuple(interface["shape"]), interface.get("strides"), interface["typestr"], readonly, device


_MAKERS = {"torch": _torch, "cupy": _cupy, "numba": _numba}
"""By the package of a type or of one that it is derived from."""
