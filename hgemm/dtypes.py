"""Element types: size, precision, and conversion between stored bits and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Dtype:
    """One element type.

    Units: `roundoff` is the relative error of rounding to nearest; `underflow` is half the smallest subnormal number.
    Fields: `storage` is the NumPy type of stored elements; tensor cores ignore the lowest `ignored_bits` of them.
    """

    bytes: int
    storage: str
    roundoff: float
    underflow: float
    largest: float
    ignored_bits: int = 0


DTYPES = {
    "f16": Dtype(bytes=2, storage="<f2", roundoff=2.0**-11, underflow=2.0**-25, largest=65504.0),
    "bf16": Dtype(bytes=2, storage="<u2", roundoff=2.0**-8, underflow=2.0**-134, largest=(2 - 2.0**-7) * 2.0**127),
    "tf32": Dtype(
        bytes=4,
        storage="<f4",
        roundoff=2.0**-11,
        underflow=2.0**-137,
        largest=(2 - 2.0**-10) * 2.0**127,
        ignored_bits=13,
    ),
    "f32": Dtype(bytes=4, storage="<f4", roundoff=2.0**-24, underflow=2.0**-150, largest=(2 - 2.0**-23) * 2.0**127),
}
"""NumPy has no bf16: its bits are stored as u16. tf32 is stored as f32."""


VECTOR_BYTES = 16
"""The widest copy of a thread, and the alignment that the TMA requires. Operands with it need no unaligned copies.

Source: PTX ISA 9.0, "cp.async"; CUDA Driver API 13.x, cuTensorMapEncodeTiled.
"""


OUTPUTS = tuple(name for name, dtype in DTYPES.items() if not dtype.ignored_bits)
"""The types of C, D and bias."""


SPELLINGS = {
    **dict.fromkeys(("fp16", "float16", "half"), "f16"),
    "bfloat16": "bf16",
    **dict.fromkeys(("fp32", "float32", "float", "single"), "f32"),
}
"""Other spellings of the types. Options accept them in any case."""


_FLOAT8 = (
    "no kernel multiplies fp8. Convert to f16, which holds each e4m3 and e5m2 value, or use cuBLASLt on sm_89 and later"
)
_FLOAT4 = "no kernel multiplies fp4. Convert to f16, which holds each value, or use cuBLASLt on sm_100 and later"
_INTEGER = (
    "no kernel multiplies integers. f16 holds each 8-bit integer, and f32 sums of their products are exact up to 2^24"
)
_DOUBLE = "no kernel multiplies f64. Use cuBLAS, or f32 arrays as tf32, which keeps 11 of 53 bits"
UNSUPPORTED = {
    **dict.fromkeys(
        ("fp8", "f8", "float8", "e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2", "fp8_e4m3", "fp8_e5m2"), _FLOAT8
    ),
    **dict.fromkeys(("fp4", "f4", "e2m1", "nvfp4", "mxfp4"), _FLOAT4),
    **dict.fromkeys(("int8", "i8", "s8", "u8", "uint8", "int4", "s4", "u4"), _INTEGER),
    **dict.fromkeys(("f64", "fp64", "float64", "double"), _DOUBLE),
}
"""Types that people ask for: why there is no kernel of them, and what to use instead."""


def type_word(text: str) -> str:
    """Return the type that a spelling stands for, or the text in lower case."""
    word = text.strip().lower()
    return SPELLINGS.get(word, word)


def stored_dtype(dtype: str) -> str:
    """Return the type of arrays in memory: f32 for tf32, and the same type otherwise."""
    return "f32" if dtype == "tf32" else dtype


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return finite numbers as stored elements, rounded to nearest, ties to even."""
    import numpy as np

    if dtype != "bf16":
        return np.asarray(values).astype(DTYPES[dtype].storage)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")


def representable(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round numbers to the precision that tensor cores read. Returns float64."""
    import numpy as np

    spare = DTYPES[dtype].ignored_bits
    if not spare:
        return decode(encode(values, dtype), dtype)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    nearest = bits + np.uint32((1 << spare - 1) - 1) + (bits >> spare & 1)
    return (nearest >> spare << spare).view(np.float32).astype(np.float64)


def truncated(values: np.ndarray, dtype: str) -> np.ndarray:
    """Cut off the bits that tensor cores ignore. Returns float64."""
    import numpy as np

    kept = np.uint32(0xFFFFFFFF << DTYPES[dtype].ignored_bits & 0xFFFFFFFF)
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) & kept).view(np.float32).astype(np.float64)


def truncation_error(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return how far each number may change if its ignored bits are cut off or rounded. It is 0 if they are 0."""
    import numpy as np

    spare = DTYPES[dtype].ignored_bits
    single = np.ascontiguousarray(values, dtype=np.float32)
    some = single.view(np.uint32) & np.uint32((1 << spare) - 1)
    return np.where(some > 0, np.abs(single.astype(np.float64)) * 2.0 ** (spare - 23), 0.0)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements as float64."""
    import numpy as np

    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # NumPy warns when it widens a signaling NaN
        return stored.astype(np.float64)
