"""Workspaces of products that split k: one per device and stream, allocated once by the library of the arrays.

A workspace begins with counters, which are zero between launches, because each launch leaves them zero. Launches in one stream
may therefore share it. A graph captured on a stream uses another workspace than the eager launches there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hgemm.capture import is_capturing, relaxed_capture
from hgemm.device import Address, checked, driver, open_device
from hgemm.errors import DeviceError, ProblemError
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS

DEFAULT_WORKSPACE_BYTES = 34 << 20
"""The size of an automatic workspace. It suffices for two waves of splits of 128x256 tiles on 132 SMs, and for stream-K."""
Allocate = Callable[[int, int], tuple[Address, Any]]
"""Takes a device and a number of bytes. Returns the address, and the object that owns the memory."""

_lock = threading.Lock()
_made: dict[tuple[int, int, bool, int], tuple[Address, Any]] = {}
"""Workspaces by device, stream, whether a graph is captured, and size. They are never freed, because graphs hold the addresses."""


def check_workspace_bytes(size_bytes: Any) -> int:
    """Return a valid size. Raises ProblemError for a negative one."""
    if not isinstance(size_bytes, int) or size_bytes < 0:
        raise ProblemError(f"workspace_bytes is {size_bytes!a}: use 0 for none, or a number of bytes")
    return size_bytes


def workspace_address(
    device: int, stream: int, size_bytes: int, allocate: Allocate, capturing: bool | None = None
) -> Address:
    """Return the address of the workspace of a stream. Its counters are zero.

    The first call allocates `size_bytes`. Later calls return the same address.

    Raises: DeviceError if the memory cannot be allocated.
    """
    key = (device, stream, is_capturing(stream) if capturing is None else capturing, size_bytes)
    with _lock:
        if key not in _made:
            _made[key] = _in_own_thread(lambda: _zeroed(device, size_bytes, allocate))
        return _made[key][0]


def _in_own_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a thread where allocation is legal while this thread captures a graph.

    Allocators such as torch's also route allocations of the capturing thread to the graph's pool, which ends with the graph.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hgemm-workspace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _zeroed(device: int, size_bytes: int, allocate: Allocate) -> tuple[Address, Any]:
    """Allocate memory for the legacy default stream, zero its counters there, and wait."""
    bindings = driver()
    with open_device(device).current(), relaxed_capture():
        try:
            address, owner = allocate(device, size_bytes)
        except DeviceError:
            raise
        except Exception as error:  # the exception of another library for a lack of memory
            why = " ".join(str(error).split())
            raise DeviceError(f"cannot allocate a workspace of {size_bytes} B on device {device}: {why}") from error
        stream = bindings.CUstream(0)
        counters = min(size_bytes, WORKSPACE_COUNTERS * COUNTER_BYTES)
        checked(bindings.cuMemsetD8Async(address, 0, counters, stream), "zero a workspace")
        checked(bindings.cuStreamSynchronize(stream), "wait for a workspace")
    return address, owner


def allocate_on(device: int, size_bytes: int) -> tuple[Address, None]:
    """Allocate with the driver, for arrays of libraries that have no allocator to use."""
    return open_device(device).allocate(size_bytes), None
