"""Fakes for the benchmark without a GPU: streams, graphs, a clock that launches advance, and cuBLASLt."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simulated
from fake_driver import _ATTRIBUTES, SUCCESS, FakeDriver, problem_at, real

from hgemm.dtypes import DTYPES, decode, encode
from hgemm.kernel import Kernel
from hgemm.problem import Problem
from hgemm.reference import ACTIVATION_FORMULAS

_ATTRIBUTES["L2_CACHE_SIZE"] = 4096


class BenchDriver(FakeDriver):
    """A driver whose launches take the time that `cost_us` says by symbol, and whose graphs replay them."""

    CUstreamCaptureMode = real.CUstreamCaptureMode

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, Kernel] = {}
        self.cost_us: dict[str, float] = {}
        self.slower: Callable[[str, Problem], float] = lambda symbol, problem: 1.0  # factor by launch
        self.faults: dict[str, frozenset[str]] = {}
        self.now_us = 0.0
        self.log: list[str] = []  # what ran, in order
        self.capturing: list[tuple[str, float]] | None = None
        self.alive = 0  # streams, graphs and events

    def serve(self, kernel: Kernel, cost_us: float, faults: frozenset[str] = frozenset()) -> Kernel:
        """Set the function and the time of a kernel's launches."""
        symbol = kernel.traits.symbol
        self.kernels[symbol], self.cost_us[symbol], self.faults[symbol] = kernel, cost_us, faults
        return kernel

    def enqueue(self, name: str, cost_us: float, work: Callable[[], None]) -> None:
        """Run something now, or note it for the graph that is being captured, whose replays take time only."""
        if self.capturing is not None:
            self.capturing.append((name, cost_us))
        else:
            self._pass(name, cost_us)
            work()

    def _pass(self, name: str, cost_us: float) -> None:
        self.log.append(name)
        self.now_us += cost_us

    def cuCtxSynchronize(self):
        return (self.status,)

    def cuDriverGetVersion(self):
        return SUCCESS, 13000

    # ---- Kernels ----------------------------------------------------------------------------------------------------

    def cuModuleGetFunction(self, module, name):
        return SUCCESS, name.decode()

    def cuModuleUnload(self, module):
        return (SUCCESS,)

    def cuLaunchKernel(self, function, *arguments):
        """Launch the memory-bound kernel, which moves 48 bytes per vector."""
        (_, _, vectors), _ = arguments[-2]
        self.enqueue(function, vectors * 48e-6, lambda: None)
        return (SUCCESS,)

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        assert self.contexts
        if self.status != SUCCESS:
            return (self.status,)
        address = ctypes.c_void_p.from_address(parameters).value
        traits = self.kernels[function].traits
        problem = problem_at(address, traits)  # by value: a graph keeps what was passed
        launch = lambda: simulated.launch(traits, problem, self.faults[function])  # noqa: E731
        self.enqueue(function, self.cost_us[function] * self.slower(function, problem), launch)
        return (SUCCESS,)

    # ---- Streams, graphs, events ------------------------------------------------------------------------------------

    def cuStreamCreate(self, flags):
        self.alive += 1
        return SUCCESS, real.CUstream(77)

    def cuStreamDestroy(self, stream):
        self.alive -= 1
        return (SUCCESS,)

    def cuStreamSynchronize(self, stream):
        return (self.status,)

    def cuStreamBeginCapture(self, stream, mode):
        assert self.capturing is None
        self.capturing = []
        return (SUCCESS,)

    def cuStreamEndCapture(self, stream):
        steps, self.capturing = self.capturing, None
        self.alive += 1
        return SUCCESS, steps

    def cuGraphInstantiate(self, graph, flags):
        self.alive += 1
        return SUCCESS, list(graph)

    def cuGraphUpload(self, executable, stream):
        return (SUCCESS,)

    def cuGraphDestroy(self, graph):
        self.alive -= 1
        return (SUCCESS,)

    def cuGraphExecDestroy(self, executable):
        self.alive -= 1
        return (SUCCESS,)

    def cuGraphLaunch(self, executable, stream):
        for name, cost_us in executable:
            self._pass(name, cost_us)
        return (SUCCESS,)

    def cuMemFree(self, pointer):
        super().cuMemFree(pointer)
        return (self.status,)

    def cuMemcpyDtoDAsync(self, to, source, size, stream):
        self._inside(to, size)
        self._inside(source, size)
        self.enqueue("copy", size * 1e-3, lambda: ctypes.memmove(to, source, size))
        return (SUCCESS,)

    def cuMemsetD8Async(self, pointer, value, size, stream):
        self.enqueue("fill", 0.0, lambda: ctypes.memset(int(pointer), value, size))
        return (SUCCESS,)

    def cuEventCreate(self, flags):
        self.alive += 1
        return SUCCESS, [0.0]

    def cuEventRecord(self, event, stream):
        event[0] = self.now_us
        return (SUCCESS,)

    def cuEventElapsedTime(self, start, end):
        return SUCCESS, (end[0] - start[0]) * 1e-3

    def cuEventDestroy(self, event):
        self.alive -= 1
        return (SUCCESS,)


# ---- cuBLASLt -------------------------------------------------------------------------------------------------------


class _Layout(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("rows", ctypes.c_uint64), ("columns", ctypes.c_uint64)]
    _fields_ += [("leading", ctypes.c_int64), ("batch", ctypes.c_int32), ("stride", ctypes.c_int64)]


class Product(ctypes.Structure):
    """The description of a product (fake_cublaslt.cpp)."""

    _fields_ = [("compute", ctypes.c_int), ("scale", ctypes.c_int)]
    _fields_ += [(f"transposed_{name}", ctypes.c_int32) for name in "ab"]
    _fields_ += [("epilogue", ctypes.c_uint32), ("bias", ctypes.c_uint64)]
    _fields_ += [(name, _Layout) for name in "abcd"]
    _fields_ += [(f"pointer_{name}", ctypes.c_uint64) for name in "abcd"]
    _fields_ += [(name, ctypes.c_uint64) for name in "workspace workspace_bytes stream algorithm alpha beta".split()]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Product))
_TYPES = {0: "f32", 2: "f16", 14: "bf16"}


def build(folder: Path) -> Path:
    """Compile the library; return its path."""
    made = folder / "libcublasLt.so.13"
    source = Path(__file__).with_name("fake_cublaslt.cpp")
    subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


class FakeCublasLt:
    """Algorithms whose products take `cost_us` each by number; a status other than 0 is one that is refused."""

    def __init__(self, path: Path, driver: BenchDriver, cost_us: list[float]) -> None:
        self.library, self.driver, self.cost_us = ctypes.CDLL(str(path)), driver, cost_us
        self.statuses: dict[int, int] = {}
        self.wrong: set[int] = set()
        self.products: list[Product] = []
        self._callback = _CALLBACK(self._product)  # kept alive
        self.library.fake_set(self._callback, len(cost_us))

    @property
    def alive(self) -> int:
        """Return how many descriptors and handles were not given back."""
        return self.library.fake_alive()

    def _product(self, given) -> int:
        product = Product.from_buffer_copy(given.contents)
        if status := self.statuses.get(product.algorithm, 0):
            return status
        self.products.append(product)
        name = f"cublaslt#{product.algorithm}"
        self.driver.enqueue(name, self.cost_us[product.algorithm], lambda: self._compute(product))
        return 0

    def _compute(self, p: Product) -> None:
        for batch in range(p.d.batch):
            a, b, d = (_matrix(getattr(p, name), getattr(p, f"pointer_{name}"), batch) for name in "abd")
            a, b = (decode(x, _TYPES[getattr(p, name).type]) for x, name in ((a, "a"), (b, "b")))
            values = (a.T if p.transposed_a else a) @ (b.T if p.transposed_b else b)
            if p.epilogue & 4:  # one element per row of a column-major D
                values = values + decode(_vector(p.bias, values.shape[0], _TYPES[p.d.type]), _TYPES[p.d.type])[:, None]
            if p.epilogue & 34:
                values = ACTIVATION_FORMULAS["relu" if p.epilogue & 2 else "gelu"].function(values)
            d[...] = encode(values + (p.algorithm in self.wrong) * 9, _TYPES[p.d.type])


def _vector(pointer: int, elements: int, dtype: str) -> np.ndarray:
    storage = np.dtype(DTYPES[dtype].storage)
    memory = (ctypes.c_uint8 * (elements * storage.itemsize)).from_address(pointer)
    return np.frombuffer(memory, storage)


def _matrix(layout: _Layout, pointer: int, batch: int) -> np.ndarray:
    """Return a view of a column-major matrix of a batch."""
    dtype = np.dtype(DTYPES[_TYPES[layout.type]].storage)
    first = pointer + batch * layout.stride * dtype.itemsize
    memory = (ctypes.c_uint8 * (layout.leading * layout.columns * dtype.itemsize)).from_address(first)
    return np.frombuffer(memory, dtype).reshape(layout.columns, layout.leading)[:, : layout.rows].T
