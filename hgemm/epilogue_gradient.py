"""Derivatives of expressions: the gradients of a loss by the accumulators and the inputs, as expressions of their own.

They are traced backwards, from D to the leaves. The gradient by an input has the shape of D; its user sums it over the axes along
which the input is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import pi, sqrt
from typing import Any, TypeVar

from hgemm.epilogue import Epilogue, Input
from hgemm.epilogue_language import Value, erf, exp, sigmoid, where


def gradient_of(result: int) -> Input:
    """Return the gradient of the loss by a result, an input of the derivatives: 0 is D. No input of an expression has its name."""
    return Input(f"gradient of {f'out{result}' if result else 'd'}", "matrix")


class _GradientOfD(Value):
    """The gradient of D by itself. A product with it is the other factor."""

    def __init__(self) -> None:
        super().__init__("constant", value=1.0)

    def __mul__(self, other: Any) -> Value:
        return other if isinstance(other, Value) else super().__mul__(other)


ONE: Value = _GradientOfD()

Pullback = Callable[..., "tuple[Value | None, ...]"]


def _gelu(g: Value, y: Value, x: Value) -> tuple[Value, ...]:
    return (g * (0.5 * (1.0 + erf(x * sqrt(0.5))) + x * exp(-0.5 * (x * x)) * (1.0 / sqrt(2.0 * pi))),)


def _silu(g: Value, y: Value, x: Value) -> tuple[Value, ...]:
    s = sigmoid(x)
    return (g * (s + x * (s * (1.0 - s))),)


PULLBACKS: Mapping[str, Pullback] = {
    "add": lambda g, y, x, z: (g, g),
    "sub": lambda g, y, x, z: (g, -g),
    "mul": lambda g, y, x, z: (g * z, g * x),
    "div": lambda g, y, x, z: (g / z, -(g * y) / z),
    "minimum": lambda g, y, x, z: (where(x <= z, g, 0.0), where(x <= z, 0.0, g)),
    "maximum": lambda g, y, x, z: (where(z <= x, g, 0.0), where(z <= x, 0.0, g)),
    "neg": lambda g, y, x: (-g,),
    "abs": lambda g, y, x: (where(x < 0.0, -g, where(x == 0.0, 0.0, g)),),
    **dict.fromkeys(("lt", "le", "eq", "ne"), lambda g, y, x, z: (None, None)),
    "where": lambda g, y, c, x, z: (None, where(c, g, 0.0), where(c, 0.0, g)),
    "exp": lambda g, y, x: (g * y,),
    "log": lambda g, y, x: (g / x,),
    "sqrt": lambda g, y, x: (0.5 * g / y,),
    "rsqrt": lambda g, y, x: (-0.5 * g * (y * y * y),),
    "tanh": lambda g, y, x: (g * (1.0 - y * y),),
    "sigmoid": lambda g, y, x: (g * (y * (1.0 - y)),),
    "erf": lambda g, y, x: (g * (2.0 / sqrt(pi)) * exp(-(x * x)),),
    "softplus": lambda g, y, x: (g * sigmoid(x),),
    "relu": lambda g, y, x: (where(x <= 0.0, 0.0, g),),
    "gelu": _gelu,
    "silu": _silu,
    "f16": lambda g, y, x: (g,),
    "bf16": lambda g, y, x: (g,),
}
"""By operation: the gradients by its arguments from the gradient by its result `y`, `y` and the arguments. None is no gradient.

Ties of `minimum` and `maximum` go to the first argument. Rounding counts as the identity.
"""


def values_of(epilogue: Epilogue) -> list[Value]:
    """Return the nodes of an expression as traced values. That of D is at `epilogue.result`."""
    found: list[Value] = []
    for node in epilogue.nodes:
        if node.op == "input":
            found.append(Value("input", given=epilogue.inputs[node.arguments[0]]))
        else:
            found.append(Value(node.op, tuple(found[one] for one in node.arguments), node.value))
    return found


def gradients(epilogue: Epilogue, given_by: Mapping[int, Input | Value] | None = None) -> dict[str, Value]:
    """Return the gradients of a loss by the accumulators, `acc` and `up`, and by the inputs by name, where there is one.

    `given_by` has the results that the loss depends on, 0 for D, 1 for out1, and so on, and the input or the value that is the
    gradient by each: by default, D and its `gradient_of`. The values take these and the leaves of the expression. They may have
    the operations `row_sum` and `row_max`, which reduce the rows of D, and `column_sum` and `column_max`.

    Shapes: the gradient of a reduction is (m, 1) or (1, n), like its value.
    """
    nodes = values_of(epilogue)
    given: dict[Value, Value] = {}
    for result, its_gradient in ({0: gradient_of(0)} if given_by is None else given_by).items():
        output = epilogue.outputs[result - 1] if result else None
        node = nodes[output.node if output else epilogue.result]
        part = its_gradient if isinstance(its_gradient, Value) else Value("input", given=its_gradient)
        if output and output.reduce.endswith("max"):  # equal maxima share it, as with torch.amax
            largest = where(node == Value(output.function, (node,)), 1.0, 0.0)
            part = part * largest / Value(output.function.replace("max", "sum"), (largest,))
        given[node] = given[node] + part if node in given else part
    found: dict[str, Value] = {}
    for node in reversed(nodes):
        gradient = given.get(node)
        if gradient is None or node.op == "constant":
            continue
        if node.op in PULLBACKS:
            parts = PULLBACKS[node.op](gradient, node, *node.arguments)
            for argument, pulled in zip(node.arguments, parts, strict=True):
                if pulled is not None:
                    given[argument] = given[argument] + pulled if argument in given else pulled
        else:
            name = node.given.name if node.given else node.op
            found[name] = found[name] + gradient if name in found else gradient
    return found


Number = TypeVar("Number")


def evaluate(
    values: Sequence[Value], leaf: Callable[[Value], Number], functions: Mapping[str, Callable[..., Number]]
) -> list[Number]:
    """Return the numbers of values. `leaf` returns those of accumulators, inputs and constants, `functions` has the operations."""
    numbers: dict[Value, Any] = {}
    for value in sorted(needed(values), key=lambda one: one.order):  # arguments are older than what uses them
        arguments = [numbers[one] for one in value.arguments]
        numbers[value] = functions[value.op](*arguments) if value.op in functions else leaf(value)
    return [numbers[value] for value in values]


def needed(values: Iterable[Value]) -> set[Value]:
    """Return the values with all that they are made of."""
    found, pending = set(), [*values]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending.extend(value.arguments)
    return found
