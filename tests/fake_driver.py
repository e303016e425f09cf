"""A driver without a GPU: its device's memory is the host's, and its kernels are NumPy functions.

It takes the calls of cuda.bindings.driver with the same arguments and the real enumerations, refuses copies outside its
allocations, and knows what was not given back.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver as real

import hgemm.device
import hgemm.launch
from hgemm import problem as hgemm_problem
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import AUX_BYTES, BIASES, PROBLEM_BYTES, Aux, LaunchOptions, Problem

SUCCESS = real.CUresult.CUDA_SUCCESS
MEMSET = "memset"
_ATTRIBUTES = {
    "MEMORY_CLOCK_RATE": 2619000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 3,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}


@contextmanager
def installed(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all modules of hgemm use a fake driver. They keep nothing of it afterwards."""
    for module in ("device", "kernel", "launch", "workspace", "capture", "bench.device", "bench.memory_kernel"):
        monkeypatch.setattr(f"hgemm.{module}.driver", lambda: fake)
    monkeypatch.setattr("hgemm.workspace._made", {})
    caches = (hgemm.device._open, hgemm.launch._encode)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


class FakeDriver:
    """Stands for the module cuda.bindings.driver."""

    CUresult, CUstream = real.CUresult, real.CUstream
    CUlaunchConfig, CUlaunchAttribute = real.CUlaunchConfig, real.CUlaunchAttribute
    CUlaunchAttributeID = real.CUlaunchAttributeID
    CUtensorMapDataType, CUtensorMapInterleave = real.CUtensorMapDataType, real.CUtensorMapInterleave
    CUtensorMapSwizzle, CUtensorMapL2promotion = real.CUtensorMapSwizzle, real.CUtensorMapL2promotion
    CUtensorMapFloatOOBfill = real.CUtensorMapFloatOOBfill
    cuuint32_t, cuuint64_t = real.cuuint32_t, real.cuuint64_t
    CUdevice_attribute, CUfunction_attribute = real.CUdevice_attribute, real.CUfunction_attribute
    CUpointer_attribute, CUstreamCaptureMode = real.CUpointer_attribute, real.CUstreamCaptureMode
    CUgraphNodeType = real.CUgraphNodeType
    CU_GRAPH_KERNEL_NODE_PORT_DEFAULT = real.CU_GRAPH_KERNEL_NODE_PORT_DEFAULT
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = real.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC

    def __init__(self) -> None:
        self.kernel: Callable[[Problem], None] = lambda problem: None
        self.memory: dict[int, np.ndarray] = {}
        self.contexts: list[str] = []
        self.images: list[bytes] = []
        self.launches: list[tuple[int, int, int, int]] = []  # grid.x, threads, shared bytes, stream
        self.maps: list[bytes] = []  # the second parameter of each launch, where there is one
        self.map_count = 0  # of the next launches
        self.packed = b""  # the problem of the last launch
        self.attributes: list[str] = []  # of the last launch
        self.encoded = 0
        self.rejects_overlap = False  # of rows of tensor maps
        self.steps: list[int] = []
        self.resident_clusters = 2
        self.status = real.CUresult.CUDA_SUCCESS
        self.memory_bytes = 0
        self.captured: set[int] = set()  # streams whose launches a graph captures
        self.dependencies: list[str] = []  # the nodes that the next launch depends on: functions of kernels, or MEMSET
        self.ports: list[int] = []  # of the edges from them

    def cuInit(self, flags):
        return (self.status,)

    def cuDeviceGetCount(self):
        return SUCCESS, 1

    def cuDeviceGet(self, ordinal):
        return SUCCESS, f"device {ordinal}"

    def cuDevicePrimaryCtxRetain(self, device):
        return SUCCESS, f"context of {device}"

    def cuDeviceGetName(self, length, device):
        return SUCCESS, b"Fake GPU".ljust(length, b"\0")

    def cuDeviceGetPCIBusId(self, length, device):
        return SUCCESS, b"0000:00:00.0".ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute, device):
        return SUCCESS, _ATTRIBUTES[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuMemGetInfo(self):
        return SUCCESS, self.memory_bytes, self.memory_bytes

    def cuPointerGetAttribute(self, attribute, pointer):
        return SUCCESS, 0

    def cuGetErrorString(self, status):
        return SUCCESS, b"a fake failure"

    def cuCtxPushCurrent(self, context):
        self.contexts.append(context)
        return (SUCCESS,)

    def cuCtxPopCurrent(self):
        return SUCCESS, self.contexts.pop()

    def cuCtxGetCurrent(self):
        return SUCCESS, self.contexts[-1] if self.contexts else None

    def cuStreamIsCapturing(self, stream):
        return SUCCESS, int(stream) in self.captured

    def cuStreamGetCaptureInfo(self, stream):
        edges = [SimpleNamespace(from_port=port) for port in self.ports]
        nodes = list(self.dependencies)
        return SUCCESS, int(stream) in self.captured, 1, "graph", nodes, edges, len(nodes)

    def cuGraphNodeGetType(self, node):
        types = real.CUgraphNodeType
        return SUCCESS, types.CU_GRAPH_NODE_TYPE_MEMSET if node == MEMSET else types.CU_GRAPH_NODE_TYPE_KERNEL

    def cuGraphKernelNodeGetParams(self, node):
        assert node != MEMSET
        return SUCCESS, SimpleNamespace(func=node)

    def capture(self, stream: int, node: str) -> None:
        if stream in self.captured:
            self.dependencies = [node]

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return SUCCESS, mode

    def cuStreamSynchronize(self, stream):
        return (SUCCESS,)

    # ---- Kernels ----------------------------------------------------------------------------------------------------

    def cuModuleLoadData(self, image):
        assert self.contexts
        self.images.append(image)
        return SUCCESS, "module"

    def cuModuleGetFunction(self, module, name):
        assert isinstance(name, bytes)
        return SUCCESS, "function"

    def cuFuncSetAttribute(self, function, attribute, value):
        assert attribute is real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        return (SUCCESS,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, smem_bytes):
        return SUCCESS, 2

    def cuOccupancyMaxActiveClusters(self, function, config):
        refused = (real.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE, None)
        return (SUCCESS, self.resident_clusters) if self.resident_clusters else refused

    def cuTensorMapEncodeTiled(
        self, element, rank, pointer, extents, strides, box, steps, interleave, swizzle, promotion, fill
    ):
        """Write what was asked for in the map's place: 12 words and an element's name."""
        assert self.contexts and rank == 3 and [int(steps[0]), int(steps[2])] == [1, 1]
        promoted = 3 if all(int(stride) % 256 == 0 for stride in strides) else 2  # to 256 or 128 bytes
        assert (int(interleave), int(promotion), int(fill)) == (0, promoted, 0)
        row_bytes = int(extents[0]) * (4 if "FLOAT32" in element.name else 2)
        if self.rejects_overlap and row_bytes > int(strides[0]):
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, None
        self.encoded += 1
        self.steps.append(int(steps[1]))
        words = [pointer, *map(int, extents), *map(int, strides), *map(int, box), int(swizzle)]
        return SUCCESS, FakeMap(struct.pack("<10Q", *words) + element.name.rpartition("_")[2].encode().ljust(48))

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        assert self.contexts and function == "function" and extra == 0
        assert (config.gridDimY, config.gridDimZ, config.blockDimY, config.blockDimZ) == (1, 1, 1, 1)
        self.attributes = [one.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for one in config.attrs[: config.numAttrs]]
        self.launches.append((config.gridDimX, config.blockDimX, config.sharedMemBytes, int(config.hStream)))
        addresses = (ctypes.c_void_p * (2 if self.map_count else 1)).from_address(parameters)
        self.packed = packed = ctypes.string_at(addresses[0], PROBLEM_BYTES)
        if self.map_count:
            self.maps.append(ctypes.string_at(addresses[1], 128 * self.map_count))
        if self.status != SUCCESS:
            return (self.status,)
        self.kernel(unpack(packed))
        self.capture(int(config.hStream), function)
        return (SUCCESS,)

    # ---- Memory and time --------------------------------------------------------------------------------------------

    def cuMemAlloc(self, size):
        block = np.full(size + 512, 0xEE, np.uint8)
        pointer = -(-block.ctypes.data // 256) * 256
        self.memory[pointer] = block[pointer - block.ctypes.data :][:size]
        return SUCCESS, pointer

    def cuMemsetD8Async(self, pointer, value, size, stream):
        ctypes.memset(int(pointer), value, size)
        self.capture(int(stream), MEMSET)
        return (SUCCESS,)

    def cuMemFree(self, pointer):
        del self.memory[pointer]
        return (SUCCESS,)

    def cuMemcpyHtoD(self, to, host, size):
        self._inside(to, size)
        ctypes.memmove(to, host, size)
        return (SUCCESS,)

    def cuMemcpyDtoH(self, host, source, size):
        self._inside(source, size)
        ctypes.memmove(host, source, size)
        return (SUCCESS,)

    def _inside(self, pointer: int, size: int) -> None:
        assert any(base <= pointer and pointer + size <= base + len(block) for base, block in self.memory.items())

    def cuEventCreate(self, flags):
        return SUCCESS, object()

    def cuEventRecord(self, event, stream):
        return (SUCCESS,)

    def cuEventSynchronize(self, event):
        return (SUCCESS,)

    def cuEventElapsedTime(self, start, end):
        return SUCCESS, 0.5

    def cuEventDestroy(self, event):
        return (SUCCESS,)


class FakeMap:
    """A CUtensorMap."""

    def __init__(self, content: bytes) -> None:
        self.block = ctypes.create_string_buffer(content, 128)

    def getPtr(self) -> int:
        return ctypes.addressof(self.block)


def problem_at(address: int, traits: LaunchTraits) -> Problem:
    """Read the kernel's parameter at an address, with the inputs and results of its expression."""
    problem = unpack(ctypes.string_at(address, PROBLEM_BYTES))
    count = len((*traits.epilogue.operands, *traits.outputs)) if traits.epilogue else 0
    packed = ctypes.string_at(address + PROBLEM_BYTES, count * AUX_BYTES)
    return replace(problem, aux=tuple(Aux(*one) for one in struct.iter_unpack("<Qqqf4x", packed)))


def unpack(packed: bytes) -> Problem:
    """Read the kernel's parameter back."""
    v = hgemm_problem._LAYOUT.unpack(packed)
    names = "a b c d bias workspace lda ldb ldc ldd".split()
    names += [f"batch_stride_{name}" for name in ("a", "b", "c", "d", "bias")] + "m n k batch alpha beta".split()
    *others, splits, whole_tiles, raster_tiles, bias_kind = v
    options = LaunchOptions(splits, whole_tiles, raster_tiles)
    decided = None if options == LaunchOptions() else options
    return Problem(**dict(zip(names, others, strict=True)), bias_kind=BIASES[bias_kind], options=decided)
