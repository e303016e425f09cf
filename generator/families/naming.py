"""How values are written in names."""

from __future__ import annotations


def short(value: object) -> str:
    """Write a value without the signs that a symbol cannot have: `xor:2,3,3` as xor233."""
    return str(value).replace(":", "").replace(",", "").replace("_", "")
