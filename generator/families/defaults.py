"""What requests of all families leave open: the fields that state the problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from generator.spec import DTYPE_BYTES, Request

OUTPUTS = {"tf32": "f32"}
"""Types of D that are planned for inputs which have another one."""


def problem_fields(request: Request) -> Request:
    """Return the problem that is meant where a request says nothing: f16, `tn`, alpha and beta, whole 16-byte pieces."""
    dtype = request.get("dtype_a", request.get("dtype_b", "f16"))
    dtype_d = request.get("dtype_d", OUTPUTS.get(dtype, dtype))
    return {
        "dtype_a": dtype,
        "dtype_b": request.get("dtype_b", dtype),
        "acc": "f32",
        "dtype_d": dtype_d,
        "layout": "tn",
        "beta": True,
        "bias": "none",
        "activation": "none",
        "align_a": 16 // DTYPE_BYTES[dtype],
        "align_b": 16 // DTYPE_BYTES[dtype],
        "align_d": 16 // DTYPE_BYTES[dtype_d],
    }


def distinct(choices: Iterable[Request]) -> Iterator[Request]:
    """Yield choices of the same fields once each: where a request says a field, the ways to leave it open are one."""
    seen = set()
    for choice in choices:
        values = tuple(choice.values())
        if values not in seen:
            seen.add(values)
            yield choice
