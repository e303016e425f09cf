"""Operands on the device that show who touched what: guard bands, poisoned padding, poisoned output.

Every byte that is not an element holds the canary, which is a NaN in every element type. So a kernel that uses what
lies beside a matrix computes NaN, one that writes there changes the canary, and what it never wrote still holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgemm.device import Device
from hgemm.dtypes import DTYPES

CANARY = 0xFFFF
"""Two bytes that are NaN as f16 and as bf16, twice NaN as f32, and no NaN that hardware makes (those are 0x7FFF).

The executor on the CPU follows it through a kernel's arithmetic: HGEMM_POISON of templates/executor/abi.h."""
GUARD_BYTES = 4096


@dataclass(frozen=True)
class Place:
    """How a matrix of `rows` by `columns` contiguous elements lies in its buffer. Units: elements."""

    rows: int
    columns: int
    leading: int
    batch: int
    batch_stride: int
    dtype: str
    align: int

    @property
    def elements(self) -> int:
        """Elements from the first to the last one that is used."""
        return (self.batch - 1) * self.batch_stride + (self.rows - 1) * self.leading + self.columns


class Buffer:
    """Memory on the device, a copy of it as it was before the launch, and a guard band on each side.

    Without guard bands (`guard_bytes` 0) the allocation ends with the last element, for compute-sanitizer to watch.
    """

    def __init__(self, device: Device, size_bytes: int, align_bytes: int, guard_bytes: int = GUARD_BYTES) -> None:
        # No more aligned than the variant may assume: allocations themselves begin on 256 bytes.
        self.front_bytes = guard_bytes + align_bytes if guard_bytes else 0
        self.before = np.full((self.front_bytes + size_bytes + guard_bytes + 1) // 2, CANARY, "<u2").view(np.uint8)
        self.device = device
        self.size_bytes = size_bytes
        self.block = device.allocate(len(self.before))
        self.pointer = self.block + self.front_bytes

    def elements(self, memory: np.ndarray, dtype: str = "<u2") -> np.ndarray:
        """Return the bytes between the guard bands of a copy of this buffer as stored elements."""
        inner = memory[self.front_bytes : self.front_bytes + self.size_bytes]
        return inner[: self.size_bytes // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize].view(dtype)

    def upload(self) -> None:
        self.device.upload(self.block, self.before.ctypes.data, len(self.before))

    def download(self) -> np.ndarray:
        after = np.empty_like(self.before)
        self.device.download(after.ctypes.data, self.block, len(after))
        return after

    def free(self) -> None:
        self.device.free(self.block)

    def changed(self, after: np.ndarray) -> str:
        """Say where a copy differs from what was uploaded, counted from the first element; nothing if nowhere."""
        at = np.flatnonzero(after != self.before)
        if not len(at):
            return ""
        first, last = int(at[0]) - self.front_bytes, int(at[-1]) - self.front_bytes
        where = "its guard band" if last < 0 or first >= self.size_bytes else "it"
        return f"{where} was written at byte {first}" + (f" to {last}" if last > first else "")


class Operand(Buffer):
    """A matrix, or a batch of them, in such a buffer."""

    def __init__(self, device: Device, place: Place, guard_bytes: int = GUARD_BYTES, align_bytes: int = 0) -> None:
        self.place = place
        item = DTYPES[place.dtype].bytes
        super().__init__(device, place.elements * item, align_bytes or place.align * item, guard_bytes)

    def matrices(self, memory: np.ndarray) -> np.ndarray:
        """Return a copy's elements as stored. Shapes: (batch, rows, columns), a view."""
        place, dtype = self.place, np.dtype(DTYPES[self.place.dtype].storage)
        strides = (place.batch_stride * dtype.itemsize, place.leading * dtype.itemsize, dtype.itemsize)
        elements = self.elements(memory, dtype.str)
        return np.lib.stride_tricks.as_strided(elements, (place.batch, place.rows, place.columns), strides)

    def fill(self, stored: np.ndarray | None) -> None:
        """Put elements where they belong, or leave canaries there, and copy all to the device."""
        if stored is not None:
            self.matrices(self.before)[...] = stored
        self.upload()

    def written(self, after: np.ndarray) -> tuple[np.ndarray, str]:
        """Return the elements of a copy, and what else was written there."""
        found = self.matrices(after).copy()
        rest = after.copy()
        self.matrices(rest)[...] = self.matrices(self.before)
        return found, self.changed(rest)

    @staticmethod
    def unwritten(found: np.ndarray) -> np.ndarray:
        """Tell for each element whether it still holds the canary."""
        return np.all(found.view("<u2").reshape(*found.shape, -1) == CANARY, axis=-1)
