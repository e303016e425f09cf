"""The element types: size, precision, and the way between their bits and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Dtype:
    """One element type.

    Units: `roundoff` is relative, of rounding to nearest; `underflow` is half the spacing of the smallest numbers.
    """

    bytes: int
    storage: str
    roundoff: float
    underflow: float
    largest: float


DTYPES = {
    "f16": Dtype(bytes=2, storage="<f2", roundoff=2.0**-11, underflow=2.0**-25, largest=65504.0),
    "bf16": Dtype(bytes=2, storage="<u2", roundoff=2.0**-8, underflow=2.0**-134, largest=(2 - 2.0**-7) * 2.0**127),
    "f32": Dtype(bytes=4, storage="<f4", roundoff=2.0**-24, underflow=2.0**-150, largest=(2 - 2.0**-23) * 2.0**127),
}
"""By the names of specs; bf16 has no NumPy type and is stored as its bits."""


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round finite numbers to nearest, ties to even, and return them as they are stored."""
    import numpy as np

    if dtype != "bf16":
        return np.asarray(values).astype(DTYPES[dtype].storage)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements as float64."""
    import numpy as np

    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # some NaN are told of when they are widened
        return stored.astype(np.float64)
