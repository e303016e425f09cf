"""The two forms in which a variant's code travels, and which devices each runs on."""

from __future__ import annotations

import ctypes
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from hgemm.errors import DeviceError, LibraryError, UnsupportedError
from hgemm.launch_traits import LaunchTraits

_TEGRA = 87


@dataclass(frozen=True)
class Image:
    """Code for one architecture: a cubin and the PTX that the driver compiles where the cubin does not run."""

    arch: str
    cubin: bytes = b""
    ptx: bytes = b""


def choose_code(image: Image, capability: tuple[int, int]) -> bytes:
    """Return the cubin where it runs on such a device, else the PTX. Raises UnfitError where neither does."""
    if image.cubin and cubin_runs(image.arch, capability):
        return image.cubin
    if image.ptx and ptx_runs(image.arch, capability):
        return image.ptx.rstrip(b"\0") + b"\0"
    here = "sm_{}{}".format(*capability)
    raise UnsupportedError(f"a kernel for {image.arch} does not run on {here}: generate it with --arch {here}")


def cubin_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Tell whether machine code for `arch` runs on a device of this compute capability.

    Source: CUDA C++ Programming Guide 12.6, "Binary Compatibility" (the same major version, the same minor one or a later
        one, but not from or to Tegra) and "Feature Set Compiler Targets" (code for sm_90a runs on 9.0 only).
    """
    number, suffix = _split(arch)
    here = capability[0] * 10 + capability[1]
    if suffix or _TEGRA in (number, here):
        return number == here
    return number // 10 == capability[0] and number <= here


def ptx_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Tell whether the driver compiles PTX for `arch` on such a device: any later one, but sm_90a's on 9.0 only."""
    number, suffix = _split(arch)
    here = capability[0] * 10 + capability[1]
    return number == here if suffix else number <= here


def _split(arch: str) -> tuple[int, str]:
    match = re.fullmatch(r"sm_([0-9]+)([a-z]?)", arch)
    if not match:
        raise LibraryError(f"arch {arch!a} is no architecture: generate the variant anew")
    return int(match[1]), match[2]


# ==== The CUDA driver, as far as a launch needs it: devices, modules, memory, events ====


Address = int


def driver() -> Any:
    """Return the driver's bindings. Raises DeviceError where their wheel is missing."""
    try:
        from cuda.bindings import driver as bindings  # 0.06 s, and needed only where there is a GPU
    except ImportError:
        raise DeviceError("wheel cuda-bindings is missing: pip install cuda-bindings") from None
    return bindings


def checked(result: tuple, doing: str) -> Any:
    """Return what a driver call gave. Raises DeviceError that says what was being done."""
    status, *values = result
    if int(status):
        text = driver().cuGetErrorString(status)[1]
        raise DeviceError(f"cannot {doing}: {status.name} ({text.decode() if text else 'no more is known'})")
    return values[0] if len(values) == 1 else tuple(values) or None


def open_device(ordinal: int = 0) -> Device:
    """Return a device by its number, always the same one, its primary context held until the process ends.

    Raises: DeviceError where there is no driver, no GPU or none of this number.
    """
    return _open(ordinal)


@cache
def _open(ordinal: int) -> Device:
    bindings = driver()
    try:
        status = bindings.cuInit(0)[0]
    except RuntimeError as error:  # so the bindings say that they found no driver
        raise DeviceError("no NVIDIA GPU here: the driver, libcuda.so.1, is not installed") from error
    if int(status):
        raise DeviceError(f"no NVIDIA GPU here: the driver says {status.name}")
    count = checked(bindings.cuDeviceGetCount(), "count devices")
    if not 0 <= ordinal < count:
        raise DeviceError(
            f"no NVIDIA GPU here of number {ordinal}: there are {count}" if count else "no NVIDIA GPU here"
        )
    handle = checked(bindings.cuDeviceGet(ordinal), f"open device {ordinal}")
    context = checked(bindings.cuDevicePrimaryCtxRetain(handle), f"make a context on device {ordinal}")
    return Device(ordinal, handle, context)


def driver_cuda() -> str:
    """Return the version of CUDA that the driver is for."""
    cuda = checked(driver().cuDriverGetVersion(), "ask for the driver's version")
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def ordinal_of(pointer: Address) -> int:
    """Return the number of the device on which an address lies. Raises DeviceError where it is on none."""
    open_device()
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(checked(driver().cuPointerGetAttribute(attribute, pointer), f"find the device of address {pointer:#x}"))


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded on a device, and how many CTAs of it the whole device holds, in whole clusters."""

    handle: Any
    traits: LaunchTraits
    resident_ctas: int


@dataclass(frozen=True, eq=False)
class Device:
    """One GPU and its primary context, which torch and CuPy use too."""

    ordinal: int
    handle: Any
    context: Any

    @property
    def name(self) -> str:
        return self._ok("cuDeviceGetName", "name the device", 128, self.handle).partition(b"\0")[0].decode()

    @property
    def capability(self) -> tuple[int, int]:
        return self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")

    @property
    def sms(self) -> int:
        return self._attribute("MULTIPROCESSOR_COUNT")

    @property
    def smem_bytes_per_cta(self) -> int:
        return self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    @property
    def bus_id(self) -> str:
        """Return its place on the PCI bus, by which NVML knows it whatever devices are visible."""
        return self._ok("cuDeviceGetPCIBusId", "find the device", 16, self.handle).partition(b"\0")[0].decode()

    @property
    def l2_bytes(self) -> int:
        return self._attribute("L2_CACHE_SIZE")

    def _attribute(self, name: str) -> int:
        attribute = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self._ok("cuDeviceGetAttribute", f"read {name}", attribute, self.handle)

    @staticmethod
    def _ok(call: str, doing: str, *arguments: Any) -> Any:
        return checked(getattr(driver(), call)(*arguments), doing)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this device's context the thread's for a while."""
        self._ok("cuCtxPushCurrent", "enter the context", self.context)
        try:
            yield
        finally:
            self._ok("cuCtxPopCurrent", "leave the context")

    # ---- Kernels ----------------------------------------------------------------------------------------------------

    def load(self, image: Image, traits: LaunchTraits) -> Function:
        """Load a variant and allow it its shared memory. Raises UnfitError where it does not run here."""
        most = self.smem_bytes_per_cta
        if traits.smem_bytes > most:
            raise UnsupportedError(
                f"{traits.symbol} needs {traits.smem_bytes} B of shared memory a CTA, {self.name} gives {most} B"
            )
        code = choose_code(image, self.capability)
        names = driver().CUfunction_attribute
        with self.current():
            module = self._ok("cuModuleLoadData", f"load {traits.symbol}", code)
            handle = self._ok(
                "cuModuleGetFunction", f"find {traits.symbol} in its image", module, traits.symbol.encode()
            )
            smem = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ok("cuFuncSetAttribute", f"give {traits.symbol} its shared memory", handle, smem, traits.smem_bytes)
            return Function(handle, traits, self._resident_ctas(handle, traits))

    def _resident_ctas(self, handle: Any, traits: LaunchTraits) -> int:
        size, fitting = traits.cluster[0], f"fit {traits.symbol} on an SM"
        if size > 1:  # GPCs whose SMs are no multiple of it leave some idle, which only the driver knows
            config = self.config(traits, size * self.sms, 0)
            status, clusters = driver().cuOccupancyMaxActiveClusters(handle, config)
            return size * (clusters if not int(status) and clusters else self.sms // size)
        query = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self.sms * self._ok(query, fitting, handle, traits.threads, traits.smem_bytes)

    @staticmethod
    def config(traits: LaunchTraits, grid_x: int, stream: int) -> Any:
        """Describe a launch. The size of a cluster is not in it: it is compiled into the kernel.

        One that follows the zeroing of its counters is never programmatic: it has nothing to overlap with.
        """
        config = driver().CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid_x, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = traits.threads, 1, 1
        config.sharedMemBytes = traits.smem_bytes
        config.hStream = driver().CUstream(stream)
        if traits.programmatic and not traits.counter_bytes_per_tile:
            attribute = driver().CUlaunchAttribute()
            attribute.id = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def bind(
        self,
        function: Function,
        grid_x: int,
        parameters: Sequence[bytes],
        stream: int,
        counters: tuple[Address, int] = (0, 0),
    ) -> Callable[[], None]:
        """Return what launches on a stream (0 is the legacy default one); it does not wait, and may be captured.

        `parameters` are passed by value, so that a captured launch keeps its own. `counters`, an address and a number of
        bytes, are zeroed before each launch.
        """
        traits = function.traits
        pointers = (ctypes.c_char_p * len(parameters))(*parameters)  # keeps the parameters alive
        config = self.config(traits, grid_x, stream)

        def launch() -> None:
            with self.current():
                address = ctypes.addressof(pointers)
                if counters[1]:
                    self._ok("cuMemsetD8Async", "zero the counters", counters[0], 0, counters[1], config.hStream)
                self._ok("cuLaunchKernelEx", f"launch {traits.symbol}", config, function.handle, address, 0)

        return launch

    # ---- Memory -----------------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> Address:
        with self.current():
            return int(self._ok("cuMemAlloc", f"allocate {size_bytes} B", size_bytes))

    def free(self, pointer: Address) -> None:
        with self.current():
            self._ok("cuMemFree", "free memory", pointer)

    def upload(self, pointer: Address, host: Address, size_bytes: int) -> None:
        """Copy from the host's memory; done when this returns."""
        with self.current():
            self._ok("cuMemcpyHtoD", f"copy {size_bytes} B to the device", pointer, host, size_bytes)

    def download(self, host: Address, pointer: Address, size_bytes: int) -> None:
        """Copy to the host's memory, after everything on the legacy default stream; done when this returns."""
        with self.current():
            self._ok("cuMemcpyDtoH", f"copy {size_bytes} B from the device", host, pointer, size_bytes)

    def synchronize(self) -> None:
        with self.current():
            self._ok("cuCtxSynchronize", "wait for the device")


# ==== How long a launch takes, by the device's own clock ====


WARM_UP_S = 0.5
"""Long enough for an idle card to reach its clock."""
SAMPLE_MS = 1.0
"""A sample is so many launches that it lasts this long: events are exact to about a microsecond."""


def elapsed_ms(device: Device, work: Callable[[], None]) -> float:
    """Return what `work`, launched on the legacy default stream, takes between two events."""
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
    """Return the median time of one launch over `samples` samples, after a warm-up."""

    def several(count: int) -> None:
        for _ in range(count):
            launch()

    until = time.perf_counter() + WARM_UP_S
    once_ms = elapsed_ms(device, launch)
    while time.perf_counter() < until:
        once_ms = elapsed_ms(device, launch)
    count = max(1, min(1000, round(SAMPLE_MS / max(once_ms, 1e-3))))
    return statistics.median(elapsed_ms(device, lambda: several(count)) / count for _ in range(samples)) * 1000
