"""A driver without a GPU: it computes launches of a library on the CPU. And arrays in its memory."""

from __future__ import annotations

import struct

import numpy as np
import simulated
from fake_driver import SUCCESS, FakeDriver

from hgemm.launch_traits import LaunchTraits
from hgemm.library import Library
from hgemm.problem import Problem


class ComputingDriver(FakeDriver):
    """Launches are by symbol; `symbols` are those that were launched."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.traits = {symbol: LaunchTraits.of(record.data) for symbol, record in library.records.items()}
        self.symbols: list[str] = []
        self.zeroed: list[int] = []

    def cuModuleGetFunction(self, module, name):
        return SUCCESS, name.decode()

    def cuMemsetD8Async(self, pointer, value, size, stream):
        self.zeroed.append(size)
        return super().cuMemsetD8Async(pointer, value, size, stream)

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        traits = self.traits[function]
        self.symbols.append(function)
        self.map_count = traits.map_count
        self.kernel = self.kernel_of
        result = super().cuLaunchKernelEx(config, "function", parameters, extra)
        self.capture(int(config.hStream), function)
        return result

    def kernel_of(self, problem: Problem) -> None:
        simulated.launch(self.traits[self.symbols[-1]], problem)

    def mapped(self) -> dict[str, int]:
        """Return the addresses in the tensor maps of the last launch by operand, 0 for one that is not there."""
        addresses = [struct.unpack_from("<Q", self.maps[-1], at)[0] for at in range(0, len(self.maps[-1]), 128)]
        if len(addresses) > 3:
            a, a_edge, a_last, b, b_edge, b_last, d = addresses
            assert (
                a_last in (0, a)
                and b_last in (0, b)
                and (a_last or b_last)
                and a_edge in (0, a_last)
                and b_edge in (0, b_last)
            )
            addresses = [a, b, d]
        return dict(zip("abd", addresses))


class Cuda:
    """A NumPy array that says it lies on GPU 0, with both protocols; `offset` bytes of memory are before it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int):
        return self.array.__dlpack__()

    @property
    def __cuda_array_interface__(self) -> dict:
        dense = self.array.flags.c_contiguous
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.ctypes.data, False),
            "strides": None if dense else self.array.strides,
            "version": 3,
        }


def placed(array: np.ndarray, offset_elements: int = 0, align_bytes: int = 256) -> np.ndarray:
    """Return a copy that begins so many elements after a multiple of `align_bytes`, with the same strides."""
    order = "F" if array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    block = np.zeros(array.nbytes + 2 * align_bytes + offset_elements * array.itemsize, np.uint8)
    start = -block.ctypes.data % align_bytes + offset_elements * array.itemsize
    copy = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape, order=order)
    copy[...] = array
    return copy
