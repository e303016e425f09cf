"""Traced derivatives of expressions against central differences in float64."""

from __future__ import annotations

from math import erf, exp, log1p, tanh

import numpy as np
import pytest

from examples import epilogues
from hgemm.epilogue import OPERATIONS
from hgemm.epilogue_gradient import PULLBACKS, evaluate, gradient_of, gradients, values_of
from hgemm.epilogue_language import epilogue_of, trace

FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "where": np.where,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.vectorize(tanh),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(erf),
    "softplus": np.vectorize(lambda x: max(x, 0.0) + log1p(exp(-abs(x)))),
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": np.vectorize(lambda x: x * (1 + erf(x / 2**0.5)) / 2),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "f16": lambda x: x,
    "bf16": lambda x: x,
}
EXAMPLES = [
    name for name in dir(epilogues) if getattr(getattr(epilogues, name), "__module__", "") == epilogues.__name__
]
FORMULAS = [
    "exp(0.3 * acc) / (abs(bias) + 0.5)",
    "log(acc * acc + 1) * sqrt(abs(acc) + 0.1) - rsqrt(abs(acc) + 0.5)",
    "minimum(acc, bias) - maximum(acc * acc, 0.5) * -abs(acc)",
    "where(acc < bias, erf(acc), softplus(acc)) + sigmoid(acc) * tanh(bias) + where(acc >= 0.3, acc, bias)",
    "gelu(acc) * silu(acc) + relu(acc + bias) + f16(acc) * bf16(bias)",
    "silu(gate * up) * up + gate / (up * up + 1) + bias",
]


def test_every_operation_has_a_derivative() -> None:
    assert PULLBACKS.keys() == OPERATIONS.keys() == FUNCTIONS.keys()


@pytest.mark.parametrize("case", [*EXAMPLES, *FORMULAS])
def test_derivatives_match_central_differences(case: str) -> None:
    epilogue = trace(getattr(epilogues, case)) if case in EXAMPLES else epilogue_of(case)
    generator, step = np.random.default_rng(5), 1e-5
    names = ["acc", *["up"] * epilogue.gated, *(one.name for one in epilogue.inputs)]
    numbers = {name: generator.uniform(0.2, 2.0, 200) * generator.choice([-1, 1], 200) for name in names}
    numbers |= {name: abs(numbers[name]) for name in ("mean_square", "epsilon") if name in numbers}
    numbers[gradient_of(0).name] = generator.uniform(-1.0, 1.0, 200)

    def at(values: list, changed: dict) -> list:
        def leaf(value):
            return (
                value.value
                if value.op == "constant"
                else {**numbers, **changed}[value.given.name if value.given else value.op]
            )

        return evaluate(values, leaf, FUNCTIONS)

    result = values_of(epilogue)[epilogue.result]
    found = gradients(epilogue)
    for name in names:
        exact = at([found[name]], {})[0] if name in found else 0.0
        ends = [at([result], {name: numbers[name] + side * step})[0] for side in (1, -1)]
        slope = numbers[gradient_of(0).name] * (ends[0] - ends[1]) / (2 * step)
        # a step across a kink, or where rounding of the constants of an expression shows, is left out
        near = np.isclose(exact, slope, rtol=1e-5, atol=1e-7)
        assert near.mean() >= 0.99, (name, np.flatnonzero(~near)[:5])


def test_inputs_without_influence_have_no_derivative() -> None:
    assert gradients(epilogue_of("mask: Row; where(mask != 0, -1, acc)")).keys() == {"acc"}
