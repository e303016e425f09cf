"""Orders of accumulation: the hash of an order, and the order of a kernel's unsplit launches as selection compares it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_PARTS = re.compile(r"; \d+ parts of [^;]*$")
_STREAMED = "; parts of "
_CUBLAS = re.compile(r"(?:b?f16 mma k16|tf32 mma k8)\b[^;]*\bf32 sum; k in order")
"""The text of the order of cuBLASLt's unsplit kernels. Source: 24 kernels compared on an H100, docs/how-to/batch-invariance.md."""


def order_id(text: str) -> str:
    """Return the short hash of the text of an accumulation order."""
    return "order_" + hashlib.sha256(text.encode()).hexdigest()[:8]


def unsplit_order(record: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the order of a kernel's launches if k is not split, as a number, and whether cuBLASLt's unsplit kernels have it.

    The number is 0 if the order depends on the size of the grid, as that of stream-K does, or if the record does not tell it.
    """
    text = record.get("accumulation_order", {}).get("text", "")
    if not text or _STREAMED in text:
        return 0, False
    text = _PARTS.sub("", text)
    return int(order_id(text).removeprefix("order_"), 16), bool(_CUBLAS.fullmatch(text))
