"""NumPy arrays that claim to be in GPU memory."""

from __future__ import annotations

import numpy as np


class Dlpack:
    """A NumPy array that says it lies on GPU 0, with DLPack."""

    def __init__(self, array: np.ndarray, kind: int = 2) -> None:
        self.array, self.kind = array, kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, *, stream: int):
        assert stream == -1
        return self.array.__dlpack__()


class Interface:
    """A NumPy array that says it lies on a GPU, with __cuda_array_interface__."""

    def __init__(self, array: np.ndarray, typestr: str | None = None, readonly: bool = False) -> None:
        self.array = array
        data = (array.ctypes.data, readonly)
        dense = array.flags.c_contiguous
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": typestr or array.dtype.str,
            "data": data,
            "strides": None if dense else array.strides,
            "version": 3,
        }
