"""How fast the device copies its own memory: the measure of kernels that only read weights."""

from __future__ import annotations

import statistics

from hgemm.bench.stream import Stream

COPIED_BYTES = 256 << 20
_COPIES, _SAMPLES = 4, 5


def copy_bytes_per_s(stream: Stream) -> float:
    """Return the bytes read and written a second by copies between two blocks far larger than the L2 cache."""
    device = stream.device
    blocks = [device.allocate(COPIED_BYTES) for _ in range(2)]
    try:
        for block in blocks:
            stream.fill(block, 1, COPIED_BYTES)
        graph = stream.capture([lambda: stream.copy(*blocks, COPIED_BYTES)] * _COPIES)
        times_ms = [stream.timed(lambda: stream.replay(graph))() for _ in range(_SAMPLES)]
        graph.free()
        return 2 * COPIED_BYTES * _COPIES / statistics.median(times_ms) * 1e3
    finally:
        for block in blocks:
            device.free(block)
