"""The CUDA driver as far as kernels need it: which code runs where, devices, launches, memory and timing."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from hgemm.errors import DeviceError, DeviceMemoryError, UnsupportedError
from hgemm.gpus import split_arch
from hgemm.launch_traits import LaunchTraits

# ==== Which code runs on which device ====

_TEGRA = 87


@dataclass(frozen=True)
class Image:
    """The code of a kernel: a cubin, and PTX that the driver compiles on devices that cannot run the cubin."""

    arch: str
    cubin: bytes = b""
    ptx: bytes = b""


def choose_code(image: Image, capability: tuple[int, int]) -> bytes:
    """Return the cubin if the device runs it, else the PTX. Raises UnsupportedError if it runs neither."""
    if image.cubin and cubin_runs(image.arch, capability):
        return image.cubin
    if image.ptx and ptx_runs(image.arch, capability):
        return image.ptx.rstrip(b"\0") + b"\0"
    here = "sm_{}{}".format(*capability)
    raise UnsupportedError(f"kernels for {image.arch} do not run on {here}: generate with --arch {here}")


def cubin_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether a cubin for `arch` runs on a device of this compute capability.

    Source: CUDA C++ Programming Guide 12.6, "Binary Compatibility" (same major version, same or later minor version, not
        between Tegra and others) and "Feature Set Compiler Targets" (sm_90a code runs on 9.0 only).
    """
    number, suffix = split_arch(arch)
    here = capability[0] * 10 + capability[1]
    if suffix or _TEGRA in (number, here):
        return number == here
    return number // 10 == capability[0] and number <= here


def ptx_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether the driver compiles PTX for `arch` on such a device: on any later one, but sm_90a on 9.0 only."""
    number, suffix = split_arch(arch)
    here = capability[0] * 10 + capability[1]
    return number == here if suffix else number <= here


# ==== The driver ====

Address = int


def _text(name: bytes) -> str:
    """Return a name of the driver, which ends with a 0."""
    return name.partition(b"\0")[0].decode()


def driver() -> Any:
    """Return the module cuda.bindings.driver. Raises DeviceError if it is not installed."""
    try:
        from cuda.bindings import driver as bindings  # takes 0.06 s, and only GPU commands need it
    except ImportError:
        raise DeviceError("package cuda-bindings is not installed: pip install cuda-bindings") from None
    return bindings


def checked(result: tuple[Any, ...], doing: str, kind: type[DeviceError] = DeviceError) -> Any:
    """Return the values of a driver call without its status. Raises an error of this kind that says what failed."""
    status, *values = result
    if int(status):
        text = driver().cuGetErrorString(status)[1]
        raise kind(f"cannot {doing}: {status.name} ({text.decode() if text else 'unknown error'})")
    return values[0] if len(values) == 1 else tuple(values) or None


def open_device(ordinal: int = 0) -> Device:
    """Return the device with this number. Its primary context stays retained until the process ends.

    Raises: DeviceError if there is no driver, no GPU, or no GPU with this number.
    """
    return _open(ordinal)


@cache
def _open(ordinal: int) -> Device:
    bindings = driver()
    try:
        status = bindings.cuInit(0)[0]
    except RuntimeError as error:  # the bindings found no libcuda.so.1
        raise DeviceError("no NVIDIA GPU here: the driver, libcuda.so.1, is not installed") from error
    if int(status):
        raise DeviceError(f"no NVIDIA GPU here: the driver returned {status.name}")
    count = checked(bindings.cuDeviceGetCount(), "count devices")
    if not 0 <= ordinal < count:
        raise DeviceError(f"no NVIDIA GPU with number {ordinal}: there are {count}" if count else "no NVIDIA GPU here")
    handle = checked(bindings.cuDeviceGet(ordinal), f"open device {ordinal}")
    context = checked(bindings.cuDevicePrimaryCtxRetain(handle), f"make a context on device {ordinal}")
    return Device(ordinal, handle, context)


def driver_cuda() -> str:
    """Return the CUDA version that the driver supports, such as 13.0."""
    cuda = checked(driver().cuDriverGetVersion(), "ask for the driver's version")
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def ordinal_of(pointer: Address) -> int:
    """Return the number of the device that holds an address. Raises DeviceError if none does."""
    open_device()
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(checked(driver().cuPointerGetAttribute(attribute, pointer), f"find the device of address {pointer:#x}"))


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded on a device. `resident_ctas` of it fit on the whole device, in whole clusters."""

    handle: Any
    traits: LaunchTraits
    resident_ctas: int


@dataclass(frozen=True, eq=False)
class Device:
    """One GPU and its primary context, which torch and CuPy share.

    Attributes of the GPU are read once: the driver of an H200 takes 0.6 ms to tell the speed of DRAM.
    """

    ordinal: int
    handle: Any
    context: Any
    programmatic: set[Any] = field(default_factory=set)
    """The handles of the programmatic kernels that are loaded. They let the next kernel start early."""

    @property
    def name(self) -> str:
        return _text(self._call("cuDeviceGetName", "name the device", 128, self.handle))

    @cached_property
    def capability(self) -> tuple[int, int]:
        return self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")

    @cached_property
    def sms(self) -> int:
        return self._attribute("MULTIPROCESSOR_COUNT")

    @cached_property
    def smem_bytes_per_cta(self) -> int:
        return self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    @property
    def bus_id(self) -> str:
        """The PCI bus id. NVML finds the device by it, regardless of CUDA_VISIBLE_DEVICES."""
        return _text(self._call("cuDeviceGetPCIBusId", "find the device", 16, self.handle))

    @cached_property
    def l2_bytes(self) -> int:
        return self._attribute("L2_CACHE_SIZE")

    @cached_property
    def dram_gbytes_per_s(self) -> int:
        """The speed of DRAM by its clock, which is that of two transfers, and its width. 0 if the driver tells neither."""
        return 2 * self._attribute("MEMORY_CLOCK_RATE") * self._attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8_000_000

    def _attribute(self, name: str) -> int:
        attribute = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", f"read {name}", attribute, self.handle))

    @staticmethod
    def _call(name: str, doing: str, *arguments: Any) -> Any:
        return checked(getattr(driver(), name)(*arguments), doing)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this device's context current in this thread."""
        self._call("cuCtxPushCurrent", "enter the context", self.context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent", "leave the context")

    # ---- Kernels ----------------------------------------------------------------------------------------------------

    def load(self, image: Image, traits: LaunchTraits) -> Function:
        """Load a kernel and set its shared memory size. Raises UnsupportedError if the device cannot run it."""
        most = self.smem_bytes_per_cta
        if traits.smem_bytes > most:
            raise UnsupportedError(
                f"{traits.symbol} needs {traits.smem_bytes} B of shared memory per CTA; {self.name} allows {most} B"
            )
        code = choose_code(image, self.capability)
        names = driver().CUfunction_attribute
        with self.current():
            module = self._call("cuModuleLoadData", f"load {traits.symbol}", code)
            handle = self._call(
                "cuModuleGetFunction", f"find {traits.symbol} in its image", module, traits.symbol.encode()
            )
            smem = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call(
                "cuFuncSetAttribute", f"set the shared memory of {traits.symbol}", handle, smem, traits.smem_bytes
            )
            if traits.programmatic:
                self.programmatic.add(handle)
            return Function(handle, traits, self._resident_ctas(handle, traits))

    def _resident_ctas(self, handle: Any, traits: LaunchTraits) -> int:
        size, fitting = traits.cluster[0], f"fit {traits.symbol} on an SM"
        if size > 1:  # clusters stay within a GPC: only the driver knows how many fit
            config = self.config(traits, size * self.sms, 0)
            status, clusters = driver().cuOccupancyMaxActiveClusters(handle, config)
            return size * (clusters if not int(status) and clusters else self.sms // size)
        query = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self.sms * int(self._call(query, fitting, handle, traits.threads, traits.smem_bytes))

    @staticmethod
    def config(traits: LaunchTraits, grid_x: int, stream: int, early: bool = False) -> Any:
        """Return the launch attributes. The cluster size is compiled into the kernel. `early` launches are programmatic."""
        config = driver().CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid_x, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = traits.threads, 1, 1
        config.sharedMemBytes = traits.smem_bytes
        config.hStream = driver().CUstream(stream)
        if early:
            attribute = driver().CUlaunchAttribute()
            attribute.id = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def overlap_pays(self, stream: Any) -> bool:
        """Return whether the next launch on a stream should be programmatic, if its kernel is.

        Outside captures, the previous work is unknown, and the answer is True. In a CUDA graph, the launch must depend on one node
        only, a programmatic kernel of this device's libraries. After other nodes, the launch attribute costs time.
        """
        bindings = driver()
        if not bindings.cuStreamIsCapturing(stream)[1]:
            return True
        try:
            status, _, _, _, nodes, edges, _ = bindings.cuStreamGetCaptureInfo(stream)
        except RuntimeError:  # drivers before CUDA 12.3 do not have this function
            return True
        if int(status):
            return True
        ports = bindings.CU_GRAPH_KERNEL_NODE_PORT_DEFAULT, bindings.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        if len(nodes) != 1 or any(edge.from_port not in ports for edge in edges or ()):
            return False
        status, kind = bindings.cuGraphNodeGetType(nodes[0])
        if int(status) or kind != bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            return False
        status, launched = bindings.cuGraphKernelNodeGetParams(nodes[0])
        return not int(status) and launched.func in self.programmatic

    def bind(
        self,
        function: Function,
        grid_x: int,
        parameters: Sequence[bytes],
        stream: int,
        counters: tuple[Address, int] = (0, 0),
        early: bool = False,
    ) -> Callable[[], None]:
        """Return a function that launches on a stream without waiting. CUDA graphs can capture it.

        Fields: `parameters` are the kernel's arguments, passed by value; `counters` is an address and a number of bytes
            that are zeroed before each launch; stream 0 is the legacy default stream; `early` launches start before the
            previous one has ended (hgemm.launch.starts_early), unless they zero counters.
        """
        traits = function.traits
        pointers = (ctypes.c_char_p * len(parameters))(*parameters)  # keeps the parameters alive
        # A launch that zeroes its counters by a memset must wait for the memset.
        early = early and not counters[1]
        config = self.config(traits, grid_x, stream, early)

        def launch() -> None:
            with self.current():
                address = ctypes.addressof(pointers)
                if early:
                    config.numAttrs = int(self.overlap_pays(config.hStream))
                if counters[1]:
                    self._call("cuMemsetD8Async", "zero the counters", counters[0], 0, counters[1], config.hStream)
                self._call("cuLaunchKernelEx", f"launch {traits.symbol}", config, function.handle, address, 0)

        return launch

    # ---- Memory -----------------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> Address:
        """Return the address of new memory. Raises DeviceMemoryError if there is not enough, or DeviceError."""
        with self.current():
            result = driver().cuMemAlloc(size_bytes)
        lack = result[0] == driver().CUresult.CUDA_ERROR_OUT_OF_MEMORY
        return int(checked(result, f"allocate {size_bytes} B", DeviceMemoryError if lack else DeviceError))

    @property
    def memory_bytes(self) -> int:
        """The size of the device's memory."""
        with self.current():
            return int(self._call("cuMemGetInfo", "read the size of the memory")[1])

    @property
    def free_bytes(self) -> int:
        """The memory that no process has allocated."""
        with self.current():
            return int(self._call("cuMemGetInfo", "read the free memory")[0])

    def free(self, pointer: Address) -> None:
        with self.current():
            self._call("cuMemFree", "free memory", pointer)

    def fill(self, pointer: Address, byte: int, size_bytes: int) -> None:
        """Fill memory with a byte, in the order of the legacy default stream."""
        with self.current():
            stream = driver().CUstream(0)
            self._call("cuMemsetD8Async", f"fill {size_bytes} B", pointer, byte, size_bytes, stream)

    def upload(self, pointer: Address, host: Address, size_bytes: int) -> None:
        """Copy from host memory, and wait for the copy."""
        with self.current():
            self._call("cuMemcpyHtoD", f"copy {size_bytes} B to the device", pointer, host, size_bytes)

    def download(self, host: Address, pointer: Address, size_bytes: int) -> None:
        """Copy to host memory after all work on the legacy default stream, and wait for the copy."""
        with self.current():
            self._call("cuMemcpyDtoH", f"copy {size_bytes} B from the device", host, pointer, size_bytes)

    def synchronize(self) -> None:
        with self.current():
            self._call("cuCtxSynchronize", "wait for the device")


# ==== Timing with CUDA events ====

WARM_UP_S = 0.5
"""An idle GPU reaches its working clock within this time."""
SAMPLE_MS = 1.0
"""The minimum length of one sample. Events are exact to about a microsecond."""


def elapsed_ms(device: Device, work: Callable[[], None]) -> float:
    """Return the time of `work`, which launches on the legacy default stream."""
    bindings = driver()
    with device.current():
        start, end = (checked(bindings.cuEventCreate(0), "make an event") for _ in range(2))
        try:
            checked(bindings.cuEventRecord(start, bindings.CUstream(0)), "record an event")
            work()
            checked(bindings.cuEventRecord(end, bindings.CUstream(0)), "record an event")
            checked(bindings.cuEventSynchronize(end), "wait for the launches")
            return float(checked(bindings.cuEventElapsedTime(start, end), "read the time"))
        finally:
            for event in (start, end):
                checked(bindings.cuEventDestroy(event), "drop an event")


def median_us(device: Device, launch: Callable[[], None], samples: int) -> float:
    """Return the median time of one launch over several samples, after a warm-up."""

    def repeat(count: int) -> None:
        for _ in range(count):
            launch()

    until = time.perf_counter() + WARM_UP_S
    launch_ms = elapsed_ms(device, launch)
    while time.perf_counter() < until:
        launch_ms = elapsed_ms(device, launch)
    count = max(1, min(1000, round(SAMPLE_MS / max(launch_ms, 1e-3))))
    return statistics.median(elapsed_ms(device, lambda: repeat(count)) / count for _ in range(samples)) * 1000
