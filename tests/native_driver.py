"""The functions of libcuda that the C++ operator calls, as callbacks into a driver that computes on the CPU."""

from __future__ import annotations

import ctypes
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from computing_driver import ComputingDriver
from fake_driver import MEMSET

import hgemm.arrays
from hgemm import Library
from hgemm.arrays import ARRAY_ADAPTERS
from hgemm.launch import MAP_BYTES
from hgemm.problem import PROBLEM_BYTES
from hgemm.torch import native, operator

_POINTER, _INT, _UNSIGNED = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = [
        *((name, _UNSIGNED) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes")),
        ("stream", _POINTER),
        ("attributes", _POINTER),
        ("attribute_count", _UNSIGNED),
    ]


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = [
        ("function", _POINTER),
        *((name, _UNSIGNED) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes")),
        *((name, _POINTER) for name in ("parameters", "extra", "kernel", "context")),
    ]


class Handle(str):
    """A name that is also a number, as handles of the real driver are."""

    numbers: dict[str, int] = {}

    def __int__(self) -> int:
        return self.numbers.setdefault(str(self), 1000 + len(self.numbers))


class NativeDriver:
    """`addresses` are those of the callbacks. `stream` is torch's current stream."""

    def __init__(self, fake: ComputingDriver) -> None:
        self.fake, self.stream, self.status = fake, 0, 0
        self.launches: list[LaunchConfig] = []
        self.attributes: list[bytes] = []
        self.problems: list[bytes] = []
        self.maps: list[list[tuple[int, ...]]] = []  # address, contiguous extent, other extent, columns of a box
        self.contexts: list[int] = []
        load, retain = fake.cuModuleGetFunction, fake.cuDevicePrimaryCtxRetain
        fake.cuModuleGetFunction = lambda *given: (lambda status, name: (status, Handle(name)))(*load(*given))
        fake.cuDevicePrimaryCtxRetain = lambda *given: (lambda status, name: (status, Handle(name)))(*retain(*given))
        self._kept: list[Any] = []
        u32, u64 = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)
        encode = (_POINTER, _INT, ctypes.c_uint32, _POINTER, u64, u64, u32, u32, _INT, _INT, _INT, _INT)
        self.addresses = {
            "cuLaunchKernelEx": self._function(
                self._launch, ctypes.POINTER(LaunchConfig), _POINTER, ctypes.POINTER(_POINTER), _POINTER
            ),
            "cuTensorMapEncodeTiled": self._function(self._encode, *encode),
            "cuMemsetD8Async": self._function(self._zero, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, _POINTER),
            "cuCtxGetCurrent": self._function(self._current, ctypes.POINTER(_POINTER)),
            "cuCtxPushCurrent": self._function(self._push, _POINTER),
            "cuCtxPopCurrent": self._function(self._pop, ctypes.POINTER(_POINTER)),
            "cuStreamIsCapturing": self._function(self._capturing, _POINTER, ctypes.POINTER(_INT)),
            "cuStreamGetCaptureInfo": self._function(
                self._capture_info,
                *(_POINTER, ctypes.POINTER(_INT), u64, _POINTER),
                *(ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER), ctypes.POINTER(ctypes.c_size_t)),
            ),
            "cuGraphNodeGetType": self._function(self._node_type, _POINTER, ctypes.POINTER(_INT)),
            "cuGraphKernelNodeGetParams": self._function(self._kernel_node, _POINTER, ctypes.POINTER(KernelNode)),
            "cuGetErrorString": self._function(self._error, _INT, ctypes.POINTER(ctypes.c_char_p)),
            "stream": self._function(self._stream, ctypes.c_int32, ctypes.POINTER(_POINTER)),
        }

    def _function(self, call: Callable[..., int], *types: Any) -> int:
        kept = ctypes.CFUNCTYPE(_INT, *types)(call)
        self._kept.append(kept)
        return ctypes.cast(kept, _POINTER).value

    def _launch(self, config, function, parameters, extra) -> int:
        copy = LaunchConfig.from_buffer_copy(config.contents)
        self.launches.append(copy)
        self.attributes.append(ctypes.string_at(copy.attributes, 72 * copy.attribute_count))
        symbol = next(name for name, number in Handle.numbers.items() if number == function)
        traits = self.fake.traits[symbol]
        self.fake.symbols.append(symbol)
        self.problems.append(ctypes.string_at(parameters[0], PROBLEM_BYTES))
        if traits.tensor_maps:
            packed = ctypes.string_at(parameters[1], traits.map_count * MAP_BYTES)
            self.maps.append([struct.unpack_from("<4Q", packed, at) for at in range(0, len(packed), MAP_BYTES)])
        if not self.status:
            from fake_driver import unpack

            self.fake.kernel_of(unpack(self.problems[-1]))
            self.fake.capture(copy.stream or 0, symbol)
        return self.status

    def _encode(self, place, element, rank, address, extents, strides, box, *rest) -> int:
        if self.fake.rejects_overlap and 2 * extents[0] > strides[0]:
            return 1
        self.fake.encoded += 1
        ctypes.memmove(place, struct.pack("<4Q", address or 0, extents[0], extents[1], box[0]), 32)
        return 0

    def _zero(self, address, value, size, stream) -> int:
        self.fake.zeroed.append(size)
        ctypes.memset(address, value, size)
        return 0

    def _current(self, context) -> int:
        context[0] = self.contexts[-1] if self.contexts else 0
        return 0

    def _push(self, context) -> int:
        self.contexts.append(context)
        return 0

    def _pop(self, context) -> int:
        context[0] = self.contexts.pop()
        return 0

    def _capturing(self, stream, status) -> int:
        status[0] = int((stream or 0) in self.fake.captured)
        return 0

    def _capture_info(self, stream, status, identity, graph, nodes, edges, count) -> int:
        status[0] = int((stream or 0) in self.fake.captured)
        handles = [int(Handle(node)) for node in self.fake.dependencies]
        self._nodes, self._edges = (_POINTER * len(handles))(*handles), ctypes.create_string_buffer(8 * len(handles))
        for at, port in enumerate(self.fake.ports):
            self._edges[8 * at] = port
        nodes[0], edges[0], count[0] = ctypes.addressof(self._nodes), ctypes.addressof(self._edges), len(handles)
        return 0

    def _node_type(self, node, kind) -> int:
        kind[0] = 2 if node == int(Handle(MEMSET)) else 0
        return 0

    def _kernel_node(self, node, params) -> int:
        params[0].function = node
        return 0

    def _error(self, status, text) -> int:
        text[0] = b"a fake failure"
        return 0

    def _stream(self, device, stream) -> int:
        stream[0] = self.stream
        return 0


def build_operator() -> None:
    """Compile the C++ operator."""
    if not any(map(shutil.which, native.COMPILERS)):
        pytest.skip("there is no C++ compiler here, which the C++ operator needs")
    native.built({})


@contextmanager
def operator_on(driver: NativeDriver) -> Iterator[None]:
    """Run the C++ operator on tensors of the CPU with a driver. On a machine with a GPU, other tests leave it on the real one."""
    operator._stop_native()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel of another test file
        operator._start_native("CPU", driver.addresses)
    assert operator._native is not None
    yield
    operator._stop_native()


@contextmanager
def library_on(driver: NativeDriver, library: Library) -> Iterator[None]:
    """Run the operator's kernels of a library on tensors of the CPU, by the C++ operator."""

    def allocate(device: int, size_bytes: int) -> tuple[int, torch.Tensor]:
        block = torch.full((size_bytes,), 0xEE, dtype=torch.uint8)
        return block.data_ptr(), block

    adapter = replace(ARRAY_ADAPTERS[torch.Tensor], allocate=allocate, stream=lambda read: driver.stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(hgemm.arrays._DEVICE_KINDS, 1, "CPU")
        patch.setitem(ARRAY_ADAPTERS, torch.Tensor, adapter)
        patch.setattr(operator, "_library", library)
        with operator_on(driver):
            yield
