"""Streams, events and graphs of launches; telemetry of the device; a watchdog for kernels that hang."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgemm.device import Device, checked, driver
from hgemm.errors import DeviceError

Launch = Callable[[], None]
_NON_BLOCKING = 1


class Graph:
    """A CUDA graph of launches. The device runs them one after another without the host."""

    def __init__(self, executable: Any, launches: int) -> None:
        self.executable, self.launches = executable, launches

    def free(self) -> None:
        checked(driver().cuGraphExecDestroy(self.executable), "drop a graph")


class Stream:
    """A stream of a device. The device's context must be current."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = checked(driver().cuStreamCreate(_NON_BLOCKING), "make a stream")

    @property
    def handle(self) -> int:
        return int(self.stream)

    def free(self) -> None:
        checked(driver().cuStreamDestroy(self.stream), "drop a stream")

    def synchronize(self) -> None:
        checked(driver().cuStreamSynchronize(self.stream), "wait for the launches")

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        checked(driver().cuMemcpyDtoDAsync(to, source, size_bytes, self.stream), f"copy {size_bytes} B")

    def fill(self, pointer: int, byte: int, size_bytes: int) -> None:
        checked(driver().cuMemsetD8Async(pointer, byte, size_bytes, self.stream), f"fill {size_bytes} B")

    def capture(self, launches: Iterable[Launch]) -> Graph:
        """Make a graph of launches on this stream. Raises any error of a launch."""
        mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver().cuStreamBeginCapture(self.stream, mode), "begin a graph")
        count = 0
        try:
            for launch in launches:
                launch()
                count += 1
        except BaseException:
            with suppress(DeviceError):  # the capture is invalid; report the first error
                checked(driver().cuStreamEndCapture(self.stream), "end a graph")
            raise
        graph = checked(driver().cuStreamEndCapture(self.stream), "end a graph")
        try:
            executable = checked(driver().cuGraphInstantiate(graph, 0), "make a graph")
            checked(
                driver().cuGraphUpload(executable, self.stream), "upload a graph"
            )  # otherwise the first launch uploads it
            return Graph(executable, count)
        finally:
            checked(driver().cuGraphDestroy(graph), "drop a graph")

    def replay(self, graph: Graph) -> None:
        checked(driver().cuGraphLaunch(graph.executable, self.stream), "launch a graph")

    def timed(self, work: Launch) -> Callable[[], float]:
        """Enqueue work between two events. Return a function that waits and returns the milliseconds."""
        begin, end = (checked(driver().cuEventCreate(0), "make an event") for _ in range(2))
        checked(driver().cuEventRecord(begin, self.stream), "record an event")
        work()
        checked(driver().cuEventRecord(end, self.stream), "record an event")

        def wait() -> float:
            checked(driver().cuEventSynchronize(end), "wait for the launches")
            elapsed = float(checked(driver().cuEventElapsedTime(begin, end), "read the time"))
            for event in (begin, end):
                checked(driver().cuEventDestroy(event), "drop an event")
            return elapsed

        return wait


# ---- Telemetry -------------------------------------------------------------------------------------------------------


POWER_INSTANT_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT, in mW; nvmlDeviceGetPowerUsage averages 1 s on Hopper

# Reasons for reduced clocks: nvmlClocksEventReasons in nvml.h. The idle reason is left out.
CLOCK_LIMITS = {0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}


@dataclass(frozen=True)
class TelemetrySample:
    time_s: float  # time.perf_counter
    sm_mhz: float
    power_w: float
    temperature_c: float
    limits: int  # bits of CLOCK_LIMITS


class _Nvml:
    def __init__(self, bus_id: str) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        # Newer packages renamed this function.
        self.reasons = (
            getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        self.sample()

    def driver(self) -> str:
        version = self.nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else version

    def limits(self) -> tuple[float, float]:
        milliwatts = self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle)
        return milliwatts / 1000, self.nvml.nvmlDeviceGetMaxClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)

    def sample(self) -> TelemetrySample:
        nvml, handle = self.nvml, self.handle
        field = nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT_FIELD])[0]
        milliwatts = field.value.uiVal if field.nvmlReturn == 0 else nvml.nvmlDeviceGetPowerUsage(handle)
        return TelemetrySample(
            time.perf_counter(),
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            milliwatts / 1000,
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            self.reasons(handle),
        )


class _NvidiaSmi:
    QUERY = "clocks.sm,power.draw.instant,temperature.gpu,clocks_event_reasons.active"

    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id
        self.sample()

    def _ask(self, query: str) -> str:
        command = ["nvidia-smi", f"--id={self.bus_id}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    def driver(self) -> str:
        return self._ask("driver_version")

    def limits(self) -> tuple[float, float]:
        power, clock = self._ask("enforced.power.limit,clocks.max.sm").split(",")
        return float(power), float(clock)

    def sample(self) -> TelemetrySample:
        return parse_smi(self._ask(self.QUERY), time.perf_counter())


def parse_smi(line: str, time_s: float) -> TelemetrySample:
    """Parse one line of `nvidia-smi --query-gpu`, with the fields of _NvidiaSmi.QUERY."""
    clock, power, temperature, reasons = (part.strip() for part in line.split(","))
    return TelemetrySample(time_s, float(clock), float(power), float(temperature), int(reasons, 16))


class Telemetry:
    """Samples clocks, power and temperature in the background, from `start` to `stop`."""

    def __init__(self, bus_id: str, period_s: float = 0.05) -> None:
        self.source = self._open(bus_id)
        self.period_s = period_s
        self.samples: list[TelemetrySample] = []
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def _open(bus_id: str) -> _Nvml | _NvidiaSmi | None:
        kinds: tuple[type[_Nvml] | type[_NvidiaSmi], ...] = (_Nvml, _NvidiaSmi)
        for kind in kinds:
            try:
                return kind(bus_id)
            except Exception:  # try the next source; without one there is no telemetry
                continue
        return None

    def state(self) -> dict[str, Any]:
        """Return driver version, clock and power limits, and current state. Empty without a telemetry source."""
        if not self.source:
            return {}
        try:
            power_limit_w, sm_mhz_max = self.source.limits()
            now = self.source.sample()
        except Exception:  # old drivers lack some of these queries
            return {"driver": self.source.driver()}
        return {
            "driver": self.source.driver(),
            "power_limit_w": power_limit_w,
            "sm_mhz_max": sm_mhz_max,
            "temperature_c": now.temperature_c,
            "power_w": round(now.power_w, 1),
        }

    def start(self) -> None:
        if self.source and self._thread is None:
            self._thread = threading.Thread(target=self._loop, args=(self.source,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread:
            self._halt.set()
            self._thread.join(timeout=5)

    def _loop(self, source: _Nvml | _NvidiaSmi) -> None:
        while not self._halt.wait(self.period_s):
            try:
                self.samples.append(source.sample())
            except Exception:  # a failed sample must not end a measurement
                continue

    def between(self, begin_s: float, end_s: float) -> dict[str, Any] | None:
        return self.within([(begin_s, end_s)])

    def within(self, spans: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
        """Summarize the samples of several intervals together."""
        return summarise([one for one in self.samples if any(begin <= one.time_s <= end for begin, end in spans)])


def summarise(samples: list[TelemetrySample]) -> dict[str, Any] | None:
    """Return medians and extremes of samples, or None without samples."""
    if not samples:
        return None
    clocks = [sample.sm_mhz for sample in samples]
    limits = 0
    for sample in samples:
        limits |= sample.limits
    return dict(
        samples=len(samples),
        sm_mhz=statistics.median(clocks),
        sm_mhz_min=min(clocks),
        sm_mhz_max=max(clocks),
        power_w=round(statistics.median(sample.power_w for sample in samples), 1),
        power_w_max=round(max(sample.power_w for sample in samples), 1),
        temperature_c=statistics.median(sample.temperature_c for sample in samples),
        limited_by=[name for bit, name in CLOCK_LIMITS.items() if limits & bit],
    )


# ---- Watchdog --------------------------------------------------------------------------------------------------------


_LOOK_S = 0.2


class Watchdog:
    """Ends the process if a contender does not finish within a time limit.

    While a contender runs, its name is in a file next to the results. A resumed run skips that contender.
    """

    def __init__(self, keep: Path | None, limit_s: float) -> None:
        self.path = keep.with_name(f"{keep.name}.running") if keep else None
        self.limit_s, self._deadline, self._running = limit_s, float("inf"), ""
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def unfinished(self) -> str:
        """Return the contender that an earlier run did not finish. Empty if there is none."""
        if self.path:
            with suppress(OSError):
                return self.path.read_text(encoding="utf-8").strip()
        return ""

    def begin(self, name: str) -> None:
        """Record the name of the next contender and start its time limit."""
        if self.path:
            self.path.write_text(name, encoding="utf-8")
        self._running, self._deadline = name, time.monotonic() + self.limit_s

    def rest(self) -> None:
        """Record that all launches have finished."""
        self._deadline = float("inf")
        if self.path:
            self.path.unlink(missing_ok=True)

    def stop(self) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            if time.monotonic() > self._deadline:
                again = ": run again with --resume to skip it" if self.path else ""
                print(
                    f"bench: {self._running} has not returned for {self.limit_s:g} s{again}",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)  # a thread that waits for the device cannot be interrupted
