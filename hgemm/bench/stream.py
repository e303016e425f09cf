"""A stream of its own, events on it, and graphs of launches, through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from hgemm.device import Device, checked, driver
from hgemm.errors import DeviceError

Launch = Callable[[], None]
_NON_BLOCKING = 1


class Graph:
    """Launches that the device runs one after the other without the host."""

    def __init__(self, executable: Any, launches: int) -> None:
        self.executable, self.launches = executable, launches

    def free(self) -> None:
        checked(driver().cuGraphExecDestroy(self.executable), "drop a graph")


class Stream:
    """A stream of a device. Its context must be the thread's."""

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
        """Make a graph of launches on this stream. Raises what a launch raises."""
        mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver().cuStreamBeginCapture(self.stream, mode), "begin a graph")
        count = 0
        try:
            for launch in launches:
                launch()
                count += 1
        except BaseException:
            with suppress(DeviceError):  # the capture is void: what was told first counts
                checked(driver().cuStreamEndCapture(self.stream), "end a graph")
            raise
        graph = checked(driver().cuStreamEndCapture(self.stream), "end a graph")
        try:
            executable = checked(driver().cuGraphInstantiate(graph, 0), "make a graph")
            checked(driver().cuGraphUpload(executable, self.stream), "upload a graph")  # else its first launch does
            return Graph(executable, count)
        finally:
            checked(driver().cuGraphDestroy(graph), "drop a graph")

    def replay(self, graph: Graph) -> None:
        checked(driver().cuGraphLaunch(graph.executable, self.stream), "launch a graph")

    def timed(self, work: Launch) -> Callable[[], float]:
        """Enqueue work between two events; return what waits for it and gives its milliseconds."""
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
