"""How long a launch takes, by the device's own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from hgemm.device import Device, checked, driver

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
