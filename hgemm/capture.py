"""CUDA graph capture: whether a stream is captured, and what must not happen meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hgemm.device import checked, driver
from hgemm.errors import DeviceError

_thread = threading.local()


def is_capturing(stream: int) -> bool:
    """Return whether a CUDA graph captures the launches of a stream."""
    status, capturing = driver().cuStreamIsCapturing(driver().CUstream(stream))
    return not int(status) and int(capturing) != 0


@contextmanager
def preparing(stream: int) -> Iterator[None]:
    """Let this thread select and load a kernel for a launch on `stream`, also while a graph captures the stream."""
    if not is_capturing(stream):
        yield
        return
    before = getattr(_thread, "captured", False)
    _thread.captured = True
    try:
        with relaxed_capture():
            yield
    finally:
        _thread.captured = before


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread allocate memory and load code while any thread captures a graph."""
    mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver().cuThreadExchangeStreamCaptureMode(mode), "relax the capture mode")
    try:
        yield
    finally:
        checked(driver().cuThreadExchangeStreamCaptureMode(before), "restore the capture mode")


def forbid_in_capture(doing: str) -> None:
    """Raise DeviceError if the launch that is being prepared is captured. `doing` says what would take too long."""
    if getattr(_thread, "captured", False):
        raise DeviceError(
            f"cannot {doing} while a CUDA graph is captured: call the product once with the same shapes before the capture"
        )
