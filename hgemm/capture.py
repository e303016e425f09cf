"""CUDA graph capture: whether a stream is captured, and what must not happen meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hgemm.device import checked, driver
from hgemm.errors import DeviceError

_thread = threading.local()


class Preparation:
    """The selection of a kernel for one launch. `forbidden` is whether the capture of a graph kept a better one from it."""

    def __init__(self) -> None:
        self.forbidden = False


def is_capturing(stream: int) -> bool:
    """Return whether a CUDA graph captures the launches of a stream."""
    status, capturing = driver().cuStreamIsCapturing(driver().CUstream(stream))
    return not int(status) and int(capturing) != 0


@contextmanager
def preparing(stream: int) -> Iterator[Preparation]:
    """Let this thread select and load a kernel for a launch on `stream`, also while a graph captures the stream."""
    preparation = Preparation()
    if not is_capturing(stream):
        yield preparation
        return
    before = getattr(_thread, "captured", None)
    _thread.captured = preparation
    try:
        with relaxed_capture():
            yield preparation
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
    preparation = getattr(_thread, "captured", None)
    if preparation:
        preparation.forbidden = True
        raise DeviceError(
            f"cannot {doing} while a CUDA graph is captured: call the product once with the same shapes before the capture"
        )
