"""Types of CuTe as C++ spells them: elements, integers, shapes and layouts."""

from __future__ import annotations

ELEMENTS = {"f16": "half_t", "bf16": "bfloat16_t", "tf32": "tfloat32_t", "f32": "float"}
_NAMED_INTEGERS = frozenset(
    [*range(11), 12, 16, 24, *range(32, 257, 8), 384, 512, 768, *(1 << i for i in range(10, 20))]
)
"""What CuTe has as `_N`; others are written Int<N>. Source: cute/numeric/integral_constant.hpp."""


def layout(modes: list[tuple]) -> str:
    """Write a layout of modes (extent, stride), either of which may be several."""
    extents, strides = zip(*modes)
    return f"Layout<{_tuple('Shape', extents)}, {_tuple('Stride', strides)}>"


def integers(*numbers: int) -> str:
    """Write integers as the arguments of a Shape or Stride."""
    return ", ".join(map(_integer, numbers))


def _tuple(name: str, numbers: tuple) -> str:
    return f"{name}<{', '.join(_tuple(name, n) if isinstance(n, tuple) else _integer(n) for n in numbers)}>"


def _integer(number: int) -> str:
    return f"_{number}" if number in _NAMED_INTEGERS else f"Int<{number}>"
