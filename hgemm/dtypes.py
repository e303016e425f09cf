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
    Fields: `unread_bits` are the lower bits of a stored element that tensor cores leave out.
    """

    bytes: int
    storage: str
    roundoff: float
    underflow: float
    largest: float
    unread_bits: int = 0


DTYPES = {
    "f16": Dtype(bytes=2, storage="<f2", roundoff=2.0**-11, underflow=2.0**-25, largest=65504.0),
    "bf16": Dtype(bytes=2, storage="<u2", roundoff=2.0**-8, underflow=2.0**-134, largest=(2 - 2.0**-7) * 2.0**127),
    "tf32": Dtype(
        bytes=4,
        storage="<f4",
        roundoff=2.0**-11,
        underflow=2.0**-137,
        largest=(2 - 2.0**-10) * 2.0**127,
        unread_bits=13,
    ),
    "f32": Dtype(bytes=4, storage="<f4", roundoff=2.0**-24, underflow=2.0**-150, largest=(2 - 2.0**-23) * 2.0**127),
}
"""By the names of specs; bf16 has no NumPy type and is stored as its bits, tf32 is stored as f32."""


OUTPUTS = tuple(name for name, dtype in DTYPES.items() if not dtype.unread_bits)
"""Types that D may have."""


SPELLINGS = {
    **dict.fromkeys(("fp16", "float16", "half"), "f16"),
    "bfloat16": "bf16",
    **dict.fromkeys(("fp32", "float32", "float", "single"), "f32"),
}
"""Other spellings of the types. Options accept them in any case."""


def type_word(text: str) -> str:
    """Return the type that a spelling stands for, or the text in lower case."""
    word = text.strip().lower()
    return SPELLINGS.get(word, word)


def stored_dtype(dtype: str) -> str:
    """Return the type of arrays that hold elements: f32 for tf32, which names how they are multiplied."""
    return "f32" if dtype == "tf32" else dtype


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round finite numbers to nearest, ties to even, and return them as they are stored."""
    import numpy as np

    if dtype != "bf16":
        return np.asarray(values).astype(DTYPES[dtype].storage)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")


def representable(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round to what the tensor cores take of a type, and return float64."""
    import numpy as np

    spare = DTYPES[dtype].unread_bits
    if not spare:
        return decode(encode(values, dtype), dtype)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    nearest = bits + np.uint32((1 << spare - 1) - 1) + (bits >> spare & 1)
    return (nearest >> spare << spare).view(np.float32).astype(np.float64)


def truncation_error(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the most that leaving out the unread bits, or rounding them away, changes each number; 0 where they are 0."""
    import numpy as np

    spare = DTYPES[dtype].unread_bits
    single = np.ascontiguousarray(values, dtype=np.float32)
    some = single.view(np.uint32) & np.uint32((1 << spare) - 1)
    return np.where(some > 0, np.abs(single.astype(np.float64)) * 2.0 ** (spare - 23), 0.0)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements as float64."""
    import numpy as np

    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # some NaN are told of when they are widened
        return stored.astype(np.float64)
