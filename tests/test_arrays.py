"""What arrays and streams of other libraries are read as."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from gpu_arrays import Dlpack, Interface

from hgemm import ProblemError
from hgemm.arrays import stream_handle, view


def test_views_of_dlpack_and_of_the_array_interface_agree() -> None:
    array = np.zeros((3, 10, 24), np.float16)[1:, ::2, 8:]
    for wrapped in (Dlpack(array), Interface(array)):
        found = view(wrapped, "A")
        assert found.pointer == array.ctypes.data and found.shape == (2, 5, 16) and found.dtype == "f16"
        assert found.strides == (240, 48, 1) and found.size_bytes == 2 * 5 * 16 * 2
    assert view(Dlpack(array), "A").device == 0 and view(Interface(array), "A").device is None
    assert view(Dlpack(np.zeros((4, 6), np.float32)), "D").strides == (6, 1)
    assert view(Interface(np.zeros((4, 6), np.float32)), "D").strides == (6, 1)
    assert view(Interface(np.zeros(4, "V2")), "A").dtype == "bf16"
    assert view(Dlpack(np.zeros(4, np.int8)), "A").dtype == "i8"


def test_a_view_gives_the_array_back() -> None:
    import sys

    array = np.zeros((4, 4), np.float16)
    before = sys.getrefcount(array)
    for _ in range(10):
        view(Dlpack(array), "A")
    assert sys.getrefcount(array) == before + 0


def test_bf16_is_read_from_dlpack() -> None:
    from hgemm import arrays

    class Bf16(Dlpack):
        def __dlpack__(self, *, stream: int):
            capsule = super().__dlpack__(stream=stream)
            tensor = arrays._Tensor.from_address(arrays._capsule_pointer(capsule, b"dltensor"))
            tensor.dtype.code = 4
            return capsule

    assert view(Bf16(np.zeros((2, 2), np.float16)), "A").dtype == "bf16"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2)), "A is not in a GPU's memory .DLPack device 1."),
        ([[1.0]], "A is a list: .* DLPack"),
        (Dlpack(np.zeros(2), kind=10), "DLPack device 10"),
    ],
)
def test_what_is_no_array_on_a_gpu_is_refused(array: object, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        view(array, "A")


def test_an_array_that_will_not_be_exported_says_why() -> None:
    class Grad(Dlpack):
        def __dlpack__(self, *, stream: int):
            raise BufferError("Can't export tensors that require gradient,\nuse tensor.detach()")

    with pytest.raises(ProblemError, match="A does not export its memory: Can't export .* use tensor.detach"):
        view(Grad(np.zeros(2)), "A")


def test_streams_of_every_library_are_understood() -> None:
    class Torch:
        cuda_stream = 11

    class Cupy:
        ptr = 12

    class Core:
        def __cuda_stream__(self):
            return 0, 13

    class Numba:
        handle = ctypes.c_void_p(14)

    assert [stream_handle(one) for one in (None, 7, Torch(), Cupy(), Core(), Numba())] == [0, 7, 11, 12, 13, 14]
    with pytest.raises(ProblemError, match="stream is a str"):
        stream_handle("fast")
