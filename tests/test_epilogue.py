"""Epilogues as expressions: the tracer, the text form, the canonical value, and the bound of the reference."""

from __future__ import annotations

import ast
import json
import math
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, subject_of
from hypothesis import given, settings
from hypothesis import strategies as st

import hgemm
from benchmarks.epilogue_fuzz import check, drawn
from generator import epilogue as emission
from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.errors import RequestError
from generator.families.common import further_results, gated_pair
from generator.proof.executor import HostToolchain
from generator.proof.proving import prove
from generator.spec import parse_field
from generator.sweep import read_spec_file, sweep
from hgemm import interleave
from hgemm.cases import Shape
from hgemm.dispatch_table import kind_of
from hgemm.epilogue import MAX_INPUTS, OPERATIONS, Epilogue, EpilogueError, columns_of_d, parse_epilogue
from hgemm.epilogue_language import (
    FUNCTIONS,
    Column,
    Matrix,
    Row,
    Scalar,
    as_epilogue,
    bf16,
    clamp,
    epilogue_of,
    f32,
    gelu,
    maximum,
    row_max,
    row_sum_squares,
    silu,
    trace,
    where,
)
from hgemm.epilogue_reference import OPERATIONS as BOUNDS
from hgemm.epilogue_reference import Interval, evaluate, evaluate_all, pair_of
from hgemm.errors import ProblemError
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS, used_counters, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Kind, kind_supports


def example(acc, bias: Row, scale: Column[f32], residual: Matrix, alpha: Scalar):
    return gelu(alpha * acc + bias) * scale + residual


# ---- The language ----------------------------------------------------------------------------------------------------


def test_a_function_is_traced_to_its_formula() -> None:
    found = trace(example)
    assert found.formula == "gelu(acc * alpha + bias) * scale + residual"
    assert [str(one) for one in found.inputs] == [
        "alpha: Scalar",
        "bias: Row",
        "scale: Column['f32']",
        "residual: Matrix",
    ]
    assert [one.name for one in found.operands] == ["bias", "scale", "residual"]  # alpha is the problem's


def test_equal_expressions_have_one_text() -> None:
    def other(acc, alpha, bias, residual: Matrix, scale: Column["float32"]):  # noqa: F821, UP037
        return residual + scale * gelu(bias + acc * alpha)

    assert trace(other) == trace(example) == parse_epilogue(trace(example).text)
    assert epilogue_of("acc - 1.0") != epilogue_of("1.0 - acc")


def test_common_parts_are_computed_once() -> None:
    found = epilogue_of("y = acc * 2; z = acc * 2.0; y * exp(z) + y")
    assert found.formula == "t0 = acc * 2.0; exp(t0) * t0 + t0"


ILLEGAL = [
    ("relu(acc", "is not an expression"),
    ("residual: Matrix; y = acc + residual", "has no result"),
    ("acc + scale", "`scale` has no type; write 'scale: Matrix; ...'"),
    ("acc + bais", "`bais` has no type; did you mean bias? Else write"),
    ("bias", "does not depend on the accumulator"),
    ("acc < 1", "the result is a condition"),
    ("where(acc, 1, 2)", "must be a comparison"),
    ("acc + (acc < 1)", "add takes numbers"),
    ("(acc, row_sum(acc) + 1)", "a reduction is known after all tiles"),
    ("(row_sum(acc), acc)", "the first result is D, a matrix"),
    ("(acc, column_sum(acc) * 2)", "a reduction is known after all tiles"),
    ("(acc, column_max(acc < 0))", "column_max takes numbers"),
    ("(bias, acc)", "does not depend on the accumulator"),
    ("(acc, acc < 1)", "the result is a condition"),
    ("(acc" + ", acc" * 9 + ")", "0 inputs and 9 further outputs"),
    ("(acc" + ", row_max(acc)" * 5 + ")", "has 5 reductions; the limit is 4"),
    ("out1: Row; acc + out1", "that is the name of an output"),
    ("__import__('os').system('true')", "is not supported"),
    ("acc.real", "`acc.real` is not supported in an epilogue: use numbers"),
    ("acc + '1'", "`'1'` is not supported in an epilogue: use numbers"),
    ("acc.relu()", "write relu(acc)"),
    ("torch.nn.functional.gelu(acc) + 1", "write gelu(acc)"),
    ("acc + bias[0]", "a value is one element"),
    ("bias+gelu", "Kernels with a fixed bias or activation have no epilogue"),
    ("[x for x in acc]", "is not supported"),
    ("lambda: acc", "is not supported"),
    ("gleu(acc)", "no function gleu: did you mean gelu?"),
    ("acc ** 5", "the powers are 2, 3, 4 and 0.5"),
    ("2 ** acc", "the powers are 2, 3, 4 and 0.5"),
    ("acc ** bias", "the powers are 2, 3, 4 and 0.5"),
    ("acc * 1e40", "is not a finite float"),
    ("acc * 0x" + "f" * 4000, "is not a finite float"),
    ("acc" + ".real" * 900, "is not supported"),
    ("relu(acc) if acc > 0 else 0", "where(condition, x, y)"),
    ("if acc > 0: acc", "where(condition, x, y)"),
    ("where(acc > 0 and acc < 1, 1, 0)", "where(a, where(b, x, y), y) for `and`"),
    ("where(0 < acc < 1, 1, 0)", "where(a, where(b, x, y), y) for `and`"),
    ("where((acc > 0) & (acc < 1), 1, 0)", "where(a, where(b, x, y), y) for `and`"),
    ("where(not acc > 0, 1, 0)", "where(a, y, x) for `not`"),
    ("clamp(acc, low=0, high=1)", "write clamp(x, low, high)"),
    ("relu(x=acc)", "write relu(x)"),
    ("while acc: acc", "`while acc: acc` is not supported"),
    ("acc * 10 ** 10 ** 10", "is not supported"),
    ("max(acc)", "takes 2 arguments"),
    ("x: Row['f8']; acc + x", "use one of f16, bf16, f32"),
    ("a: Row; acc + a", "no input can be named a"),
    ("alpha: Row; acc * alpha", "`alpha` is a number"),
    ("acc / 0", "division by the constant 0"),
    ("acc / f32(-0.0)", "division by the constant 0"),
    ("clamp(acc, 1, -1)", "clamp: low is 1, more than high, -1"),
    ("Bias: Row; acc + Bias", "use a to z"),
    ("(" * 250 + "acc" + ")" * 250, "is not an expression"),
    ("-" * 3000 + "acc", "expression"),  # "is not an expression", or in Python 3.10 that it is nested too deeply
    ("acc" + " + acc" * 300, "nested more than"),
    ("; ".join(f"x{i}: Row" for i in range(9)) + "; acc + " + " + ".join(f"x{i}" for i in range(9)), "has 9 inputs"),
]


@pytest.mark.parametrize("text, message", ILLEGAL, ids=[text[:24] for text, _ in ILLEGAL])
def test_an_illegal_text_is_rejected_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(RequestError, match="^[^\n]*$") as caught:
        parse_field("epilogue", text)
    assert message in str(caught.value)


def by_branch(acc, bias: Row):
    y = acc + bias
    if y > 0:
        return y
    return -y


def without_type(
    acc,
    residual,
):
    return acc + residual


def by_math(acc):
    return math.exp(acc)


def by_numpy(acc):
    return np.exp(acc)


def by_builtin(acc):
    return max(acc, 0.0)


def by_method(acc):
    return acc.relu()


def by_index(acc, bias: Row):
    return acc + bias[0]


def with_typing_error(acc, bias: Row):
    return acc + bais  # noqa: F821


def with_python_type(
    acc,
    scale: float,
):
    return acc * scale


def with_a_typed_factor(gate, up: Row):
    return silu(gate) * up


def with_a_row_of_alpha(
    acc,
    beta: Row,
):
    return acc * beta


def divided_by_zero(acc, bias: Row):
    y = acc + bias
    return y / 0


@pytest.mark.parametrize(
    "function, line, message",
    [
        (by_branch, 2, "where(condition, x, y) for `if`"),
        (without_type, 2, "`residual` has no type; write residual: Matrix"),
        (by_math, 1, "not a Python number"),
        (by_numpy, 1, "TypeError"),
        (by_builtin, 1, "maximum(x, y) for `max`"),
        (by_method, 1, "import it from hgemm.epilogue_language, and call relu(x)"),
        (by_index, 1, "one element: it has no axes and no indices"),
        (with_typing_error, 1, "did you mean bias?"),
        (with_python_type, 2, "`float` is not a type"),
        (lambda: 1, 0, "the first argument is the accumulator"),
        (lambda acc, *rest: acc, 0, "no fixed number of inputs"),
        (lambda acc, bias=None: acc + bias, 0, "`bias` has a default"),
        (lambda up, gate: gate * up, 0, "the first two arguments are gate and up"),
        (lambda gate: silu(gate), 0, "the first two arguments are gate and up"),
        (lambda gate, bias: silu(gate) + bias, 0, "the first two arguments are gate and up"),
        (with_a_typed_factor, 0, "the first two arguments are gate and up"),
        (with_a_row_of_alpha, 2, "`beta` is a number"),
        (lambda acc, *, bias: acc + bias, 0, "`bias` is a keyword-only argument"),
        (divided_by_zero, 2, "division by the constant 0"),
        (lambda acc: clamp(acc, 1.0, -1.0), 0, "clamp: low is 1, more than high"),
        (lambda acc: None, 0, "returns nothing"),
        (lambda acc: acc + "1", 0, "str '1' is not a value of the epilogue: use numbers"),
        (lambda acc: {"d": acc}, 0, "returns a dict: return D, or a tuple"),
        (lambda acc: where((acc > 0) & (acc < 1), 1, 0), 0, "where(a, where(b, x, y), y) for `and`"),
        (lambda acc: where(~(acc > 0), 1, 0), 0, "where(a, y, x) for `not`"),
        (lambda acc: sys.exit(0), 0, "SystemExit: 0"),
    ],
)
def test_an_error_names_the_line_of_the_function(function, line: int, message: str) -> None:
    with pytest.raises(EpilogueError) as caught:
        trace(function)
    where_, _, reason = str(caught.value).partition(": ")
    assert where_ == f"{Path(__file__)}:{function.__code__.co_firstlineno + line}"
    assert message in reason


def with_unused_inputs(
    acc,
    bias: Row,
    scale: Scalar,
):
    return acc + bias


def test_unused_input_is_named() -> None:
    line = with_unused_inputs.__code__.co_firstlineno + 3
    with pytest.warns(UserWarning, match=f"{re.escape(__file__)}:{line}: the result does not depend on scale,"):
        assert trace(with_unused_inputs) == epilogue_of("bias: Row; acc + bias")
    with pytest.warns(UserWarning, match="epilogue 's: Scalar; relu.*: the result does not depend on s,") as warned:
        assert epilogue_of("s: Scalar; relu(acc)") == epilogue_of("relu(acc)")
        assert as_epilogue("s: Scalar; silu(acc)") == epilogue_of("silu(acc)")
    assert [one.filename for one in warned] == [__file__, __file__]  # the caller's file, at any depth of calls
    with pytest.warns(UserWarning, match=r"0\.\.\.': the result"):
        epilogue_of("s: Scalar; acc" + "+0" * 60)


def test_expressions_close_to_illegal_ones_are_accepted() -> None:
    assert epilogue_of("0 / acc").formula == "0.0 / acc"
    assert epilogue_of("clamp(acc, 1, 1)").formula == "minimum(maximum(acc, 1.0), 1.0)"
    assert epilogue_of("clamp(acc, bias, -1)").has("row")
    assert parse_epilogue('{"inputs":[],"nodes":[["acc"],["constant",0.0],["div",0,1]]}')  # libraries may contain it


def test_library_matmul_runs_no_python_file(tmp_path: Path) -> None:
    a = np.ones((8, 8), np.float16)
    with pytest.raises(RequestError, match="names a Python file: import the function and pass it"):
        hgemm.Library(tmp_path).matmul(a, a, epilogue="examples/epilogues.py:scaled")


def test_file_epilogues_name_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my_epilogues.py"
    path.write_text(
        "from hgemm.epilogue_language import Row, relu\n\n\ndef shifted(acc, bias: Row):\n    return relu(acc + bias)\n"
    )
    first, second = emission.texts_of(emission.resolved("my_epilogues.py:shifted,relu(acc)", tmp_path))
    assert parse_epilogue(first) == epilogue_of("relu(acc + bias)") and second == "relu(acc)"
    for text, message in (
        ("no.py:f", "does not exist"),
        ("my_epilogues.py:g", "has no function g; its functions are shifted"),
        ("my_epilogues.py", "write my_epilogues.py:FUNCTION"),
    ):
        with pytest.raises(RequestError, match=message):
            emission.resolved(text, tmp_path)
    path.write_text("def f(acc, x: Vector):\n    return acc + x\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="1 cannot be run: NameError.*; the types of inputs are Scalar") as unknown:
        emission.resolved("my_epilogues.py:f", Path())
    assert f"{path}:1" in str(unknown.value)  # absolute, as in errors of the function itself
    path.write_text("raise SystemExit(0)\n")
    with pytest.raises(RequestError, match="my_epilogues.py:1 cannot be run: SystemExit: 0"):
        emission.resolved("my_epilogues.py:shifted", tmp_path)
    path.write_text(
        "from hgemm.epilogue_language import Matrix\n\n\ndef f(acc, x: Matrix['f64']):\n    return acc + x\n"
    )
    with pytest.raises(RequestError, match=r"my_epilogues.py:4: Matrix\['f64'\]: use one of f16, bf16, f32"):
        emission.resolved("my_epilogues.py:f", tmp_path)
    with pytest.raises(RequestError, match="only --epilogue on the command line"):
        parse_field("epilogue", f"{path}:shifted")  # a record must not run a file
    spec_file = tmp_path / "spec.toml"
    spec_file.write_text('arch = "sm_80"\ntile = "64x64x32"\nepilogue = "my_epilogues.py:shifted"\n')
    with pytest.raises(RequestError, match="only --epilogue on the command line"):
        read_spec_file(spec_file)
    spec_file.write_text('arch = "sm_80"\ntile = "64x64x32"\nepilogue = ["none", "max(acc, bias)"]\n')
    assert len(sweep(read_spec_file(spec_file)).plans) == 2


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        ("y + acc + x", False),
        ("x + acc + y", True),
        ("y + (acc + x)", True),
        ("acc + (x + y)", False),
        ("acc + y + x", False),
    ],
)
def test_only_the_two_sides_of_an_operation_may_be_exchanged(other: str, equal: bool) -> None:
    """`a + b + c` and `a + c + b` round differently, so that their kernels give other bits. Names of inputs count, too."""
    types = "x: Row; y: Row; "
    assert (epilogue_of(f"{types}acc + x + y") == epilogue_of(types + other)) == equal
    assert (epilogue_of(f"{types}acc * x * y") == epilogue_of(types + other.replace("+", "*"))) == equal
    assert epilogue_of("x: Row; acc + x") != epilogue_of("y: Row; acc + y")


def test_lists_are_split_outside_parentheses() -> None:
    assert emission.texts_of("max(acc, 0), clamp(acc, 0, 6) ,none") == ["max(acc, 0)", "clamp(acc, 0, 6)", "none"]
    asked = sweep([{"arch": "sm_80", "tile": "64x64x32", "epilogue": "none,relu(acc + bias),max(acc, 0)"}])
    assert [plan.spec.beta for plan in asked.plans] == [True, False, False]


def test_a_gated_pair_has_two_accumulators() -> None:
    def swiglu(gate, up, bias: Row):
        return silu(gate) * up + bias

    found = trace(swiglu)
    assert found.gated and found.formula == "silu(gate) * up + bias"
    assert found == epilogue_of("silu(gate) * up + bias") == parse_epilogue(found.text)
    assert not epilogue_of("gate: Matrix; silu(gate) * acc").gated
    assert epilogue_of("gate = acc; silu(gate)") == epilogue_of("silu(acc)")  # a name of a result, as any other
    assert columns_of_d(found, 96) == 48 and columns_of_d(trace(example), 96) == 96


@pytest.mark.parametrize(
    "text, message",
    [
        ("silu(gate)", "`gate` is an accumulator of a gated pair: use both gate and up, or acc"),
        ("relu(up)", "does not depend on gate"),
        ("acc * up", "`up` is an accumulator of a gated pair: use both gate and up, or acc"),
        ("silu(gate) * up + acc", "`gate` is an accumulator of a gated pair: use both gate and up, or acc"),
        ("gate: Row; silu(gate) * acc * up", "an input cannot be named gate or up"),
    ],
)
def test_half_of_a_gated_pair_is_rejected(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_field("epilogue", text)


def test_gated_pair_must_depend_on_up() -> None:
    with pytest.raises(EpilogueError, match="does not depend on up, the second accumulator"):
        trace(lambda gate, up: gate * 2.0)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"arch": "sm_80", "tile": "64x64x32", "form": "cute"}, "form cute has one accumulator"),
        ({"arch": "sm_90a", "tile": "128x64x64", "swap_ab": "on"}, "with swapped operands"),
        ({"arch": "sm_90a", "tile": "64x40x64"}, "tile 64x40x64 does not have a multiple of 16 columns"),
    ],
)
def test_kernels_that_cannot_compute_a_gated_pair_name_the_reason(options: dict[str, str], reason: str) -> None:
    (refused,) = sweep([{**options, "epilogue": "silu(gate) * up"}]).illegal
    assert reason in (gated_pair(refused.plan) or "")


def test_interleaved_weights_compute_gate_and_up() -> None:
    gate, up = np.arange(48.0).reshape(3, 16), -np.arange(48.0).reshape(3, 16)
    packed = interleave(gate, up)
    assert packed.shape == (3, 32) and packed[0, 8] == -0.0 and packed[1, 16] == gate[1, 8]
    for found, expected in zip(pair_of(packed[None]), (gate, up)):
        assert np.array_equal(found[0], expected)
    assert np.array_equal(interleave(gate.T, up.T, axis=0), packed.T)
    with pytest.raises(ProblemError, match="n is 3: use a multiple of 8"):
        interleave(gate, up, axis=0)


def test_a_function_returns_several_results() -> None:
    def several(acc, bias: Row):
        y = acc + bias
        return y, f32(acc), bf16(y), row_max(abs(y)), row_sum_squares(y)

    found = trace(several)
    assert found.formula == "t0 = acc + bias; (t0, f32(acc), bf16(t0), row_max(abs(t0)), row_sum(t0 * t0))"
    assert [(one.name, one.kind, one.of("f16"), one.reduce) for one in found.outputs] == [
        ("out1", "matrix", "f32", ""),
        ("out2", "matrix", "bf16", ""),
        ("out3", "column", "f32", "max"),
        ("out4", "column", "f32", "sum"),
    ]
    assert found == parse_epilogue(found.text) == epilogue_of(str(found))
    for changed in (
        {"result": 99},
        {"outputs": [[99, "", ""]]},
        {"outputs": [[0, "f16", "sum"]]},
        {"outputs": [[0, "", "min"]]},
    ):
        with pytest.raises(EpilogueError):
            parse_epilogue(json.dumps({**json.loads(found.text), **changed}, separators=(",", ":")))


@pytest.mark.parametrize("name, axis", [("row", 2), ("column", 1)])
def test_reductions_have_a_bound(name: str, axis: int) -> None:
    found = epilogue_of(f"(acc, {name}_sum(acc), {name}_max(acc), {name}_max(log(acc)))")
    acc = np.random.default_rng(0).standard_normal((1, 30, 50)).astype(np.float32).astype(np.float64)
    _, sums, most, undefined = evaluate_all(found, Interval.around(acc), {})
    in_f32 = acc.astype(np.float32).cumsum(axis=axis, dtype=np.float32).take([-1], axis=axis)
    assert np.all((sums.low < in_f32) & (in_f32 < sums.high)) and sums.error.max() < 1e-3
    assert np.array_equal(most.exact, acc.max(axis=axis, keepdims=True)) and not most.error.any()
    assert np.isnan(undefined.exact).all()


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"arch": "sm_80", "tile": "64x64x32", "form": "cute"}, "form cute stores D only"),
        ({"arch": "sm_90a", "tile": "128x64x64", "swap_ab": "on"}, "with swapped operands"),
        ({"arch": "sm_80", "tile": "64x64x32", "schedule": "split_k:2"}, "schedule split_k:2 uses the workspace"),
        ({"arch": "sm_90", "tile": "16x32x512", "copy": "ldg"}, "one at a time"),
    ],
)
def test_kernels_that_cannot_reduce_rows_name_the_reason(options: dict[str, str], reason: str) -> None:
    (refused,) = sweep([{**options, "epilogue": "(acc, row_sum(acc))"}]).illegal
    assert reason in (further_results(refused.plan) or "")


def test_kernels_that_reduce_columns_store_from_registers() -> None:
    asked = {"arch": "sm_80", "tile": "64x64x32", "epilogue": "(acc, column_sum(acc))"}
    (plan,) = sweep([asked]).plans
    assert plan.spec.store == "direct"
    (refused,) = sweep([{**asked, "store": "smem"}]).illegal
    assert "epilogue reduces columns; with store smem" in (further_results(refused.plan) or "")


def test_a_reduction_needs_a_workspace() -> None:
    (plan,) = sweep([{"arch": "sm_80", "tile": "64x64x32", "epilogue": "(acc, row_sum(acc), row_max(acc))"}]).plans
    traits = LaunchTraits.of(planned_sections(emit(plan, ROOT / "templates")))
    panels = -(-100 // plan.spec.warp_tile.n)
    assert workspace_bytes(traits, 70, 100, 3) == WORKSPACE_COUNTERS * COUNTER_BYTES + 2 * 3 * panels * 70 * 4
    assert used_counters(traits, 70, 100, 3) == 6


@pytest.mark.parametrize(
    "text, columns", [("(acc, column_sum(acc), row_max(acc))", 96), ("(gate * up, column_max(up))", 48)]
)
def test_a_reduction_of_columns_needs_a_workspace(text: str, columns: int) -> None:
    (plan,) = sweep([{"arch": "sm_80", "tile": "64x64x32", "epilogue": text}]).plans
    traits = LaunchTraits.of(planned_sections(emit(plan, ROOT / "templates")))
    rows = "row_max" in text
    floats = 5 * columns + rows * -(-96 // plan.spec.warp_tile.n) * 70
    assert workspace_bytes(traits, 70, 96, 3) == WORKSPACE_COUNTERS * COUNTER_BYTES + 3 * floats * 4
    assert used_counters(traits, 70, 96, 3) == (2 + 2 * rows) * 3


RESULTS = "residual: Matrix; y = acc + bias + residual; (y, f32(acc), bf16(y), row_max(abs(y)), row_sum_squares(y))"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_further_results_are_right(arch: str, o0_toolchain: HostToolchain) -> None:
    (plan,) = sweep([{"arch": arch, "tile": "64x64x32", "epilogue": RESULTS}]).plans
    shapes = (Shape(33, 150, 40), Shape(65, 25, 70, 2))
    checks = prove(subject_of(emit(plan, ROOT / "templates")), o0_toolchain, shapes).checks
    assert not [check.reason for check in checks if not check.passed]


def test_kernels_with_reductions_are_built(tmp_path: Path) -> None:
    """No array of theirs is indexed at run time, and no register spills."""
    specs = [{"arch": "sm_80", "tile": "128x128x32"}, {"arch": "sm_75", "tile": "64x64x32", "align_d": "1"}]
    formula = "y = acc + bias; (y, row_max(y), column_sum(y))"
    assert len(hgemm.generate(specs, epilogue=formula, library=tmp_path / "library", jobs=1)) == len(specs)


COLUMNS = "scale: Column; y = acc * scale + bias; (y, column_max(abs(y)), row_sum(y), column_sum(y), column_sum(y))"


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_reductions_of_columns_are_right(arch: str, o0_toolchain: HostToolchain) -> None:
    (plan,) = sweep([{"arch": arch, "tile": "64x64x32", "epilogue": COLUMNS}]).plans
    shapes = (Shape(133, 150, 40), Shape(65, 25, 70, 2))
    checks = prove(subject_of(emit(plan, ROOT / "templates")), o0_toolchain, shapes).checks
    assert not [check.reason for check in checks if not check.passed]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_gated_pair_is_right(arch: str, o0_toolchain: HostToolchain) -> None:
    texts = {"arch": arch, "tile": "64x64x32", "epilogue": "scale: Column; silu(gate) * up * scale + bias"}
    (plan,) = sweep([texts]).plans
    shapes = (Shape(33, 48, 40), Shape(65, 96, 70, 2))
    checks = prove(subject_of(emit(plan, ROOT / "templates")), o0_toolchain, shapes).checks
    assert not [check.reason for check in checks if not check.passed]


# ---- The value -------------------------------------------------------------------------------------------------------

MUTATIONS = [
    lambda one: one | {"more": 1},
    lambda one: one | {"nodes": []},
    lambda one: one | {"nodes": one["nodes"] * 200},
    lambda one: one | {"nodes": [["acc"], ["add", 0, 1]]},
    lambda one: one | {"nodes": [["acc"], ["add", 0, -1]]},
    lambda one: one | {"nodes": [["acc"], ["add", 0, True]]},
    lambda one: one | {"nodes": [["acc"], ["eval", 0]]},
    lambda one: one | {"nodes": [["acc"], ["constant", "1"]]},
    lambda one: one | {"nodes": [["acc"], ["constant", 1.0]]},
    lambda one: one | {"nodes": ["acc"]},
    lambda one: one | {"inputs": [["x; y", "row"]]},
    lambda one: one | {"inputs": [["bias", "tensor"]]},
    lambda one: one | {"inputs": [["bias", "row", "f64"]]},
    lambda one: one | {"inputs": [["bias", "row"], ["bias", "row"]]},
    lambda one: one | {"inputs": 3},
    lambda one: [one],
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_mutated_text_is_rejected(mutate) -> None:
    document = json.loads(trace(example).text)
    with pytest.raises(EpilogueError):
        parse_epilogue(json.dumps(mutate(document), separators=(",", ":")))


def test_other_texts_of_an_expression_are_rejected() -> None:
    text = trace(example).text
    for other in (text.replace(":", ": "), text.replace('"acc"', '"\\u0061cc"'), "[" * 9000, "{" + " " * 20_000):
        with pytest.raises(EpilogueError):
            parse_epilogue(other)


def test_a_kind_has_the_hash_of_the_expression() -> None:
    expression, plain = Kind(epilogue=trace(example).hash), Kind()
    assert Kind.from_code(expression.code) == expression and Kind.from_code(plain.code) == plain
    assert not kind_supports(expression.code, plain.code) and not kind_supports(plain.code, expression.code)
    assert Kind.from_code(Kind(epilogue="00000000").code).epilogue == "00000000"


def test_every_table_has_every_operation() -> None:
    assert OPERATIONS.keys() == BOUNDS.keys()
    for name, operation in OPERATIONS.items():
        numbers = ["acc", "acc * 3.0", "1.0"][: operation.arguments]
        if name in FUNCTIONS and name != "where":
            assert emission.in_cpp(epilogue_of(f"{name}({', '.join(numbers)})"), "f16")


# ---- The bound -------------------------------------------------------------------------------------------------------

F = np.float32


def _sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


IN_F32 = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "minimum": np.fmin,
    "maximum": np.fmax,
    "neg": lambda x: -x,
    "abs": np.abs,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "where": np.where,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: F(1) / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": lambda x: np.frompyfunc(math.erf, 1, 1)(x).astype(F),
    "softplus": lambda x: np.fmax(x, F(0)) + np.log1p(np.exp(-np.abs(x))),
    "relu": lambda x: np.where(x < 0, F(0), x),
    "gelu": lambda x: (x * F(0.5) * (F(1) + np.frompyfunc(math.erf, 1, 1)(x * F(math.sqrt(0.5))).astype(F))).astype(F),
    "silu": lambda x: x * _sigmoid(x),
    "f16": lambda x: x.astype(np.float16).astype(F),
    "bf16": lambda x: (
        ((x.view(np.uint32) + 0x7FFF + (x.view(np.uint32) >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F)
    ),
}
"""Operations in f32, as a device may compute them."""


def in_f32(epilogue: Epilogue, acc: np.ndarray, inputs: dict[str, np.ndarray]) -> np.ndarray:
    found = []
    with np.errstate(all="ignore"):
        for node in epilogue.nodes:
            if node.op == "acc":
                found.append(acc.astype(F))
            elif node.op == "input":
                found.append(
                    np.broadcast_to(inputs[epilogue.inputs[node.arguments[0]].name].astype(F), acc.shape).copy()
                )
            elif node.op == "constant":
                found.append(np.full(acc.shape, node.value, F))
            else:
                found.append(np.asarray(IN_F32[node.op](*(found[one] for one in node.arguments))))
    return found[epilogue.result]


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """Return a random expression of depth 1 to 8."""
    leaves = ["acc", "acc", "bias", "scale", "residual", "gain", "alpha", "0.5", "-1.25", "3.0"]
    unary = [name for name, one in OPERATIONS.items() if one.arguments == 1]
    binary = ["{} + {}", "{} - {}", "{} * {}", "{} / {}", "maximum({}, {})", "minimum({}, {})"]

    def part(depth: int) -> str:
        kind = draw(st.integers(0, 9)) if depth else 0
        if kind < 2:
            return draw(st.sampled_from(leaves))
        if kind < 5:
            name = draw(st.sampled_from(unary))
            return f"-({part(depth - 1)})" if name == "neg" else f"{name}({part(depth - 1)})"
        if kind < 9:
            return "(" + draw(st.sampled_from(binary)).format(part(depth - 1), part(depth - 1)) + ")"
        sign = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        return f"where({part(depth - 1)} {sign} {part(depth - 1)}, {part(depth - 1)}, {part(depth - 1)})"

    return f"gain: Scalar; scale: Column; residual: Matrix['f32']; acc * 0.25 + {part(draw(st.integers(1, 5)))}"


@settings(max_examples=200, deadline=None)
@given(expressions(), st.integers(0, 2**32 - 1))
def test_results_in_f32_lie_in_the_interval(text: str, seed: int) -> None:
    try:
        found = epilogue_of(text)
    except EpilogueError:  # a constant part, such as log(-1.25) of nothing but numbers, stays an expression
        return
    rng = np.random.default_rng(seed)
    exact = rng.standard_normal((2, 5, 7)) * rng.choice([0.1, 1.0, 20.0])
    acc = exact.astype(F)
    shapes = {"bias": (1, 1, 7), "scale": (2, 5, 1), "residual": (2, 5, 7), "gain": (1, 1, 1), "alpha": (1, 1, 1)}
    inputs = {name: rng.standard_normal(size).astype(F).astype(np.float64) for name, size in shapes.items()}
    interval = evaluate(found, Interval.around(exact, np.abs(exact - acc)), inputs)
    result, bounded = in_f32(found, acc, inputs), ~np.isnan(interval.exact)
    assert np.all((interval.low <= result) & (result <= interval.high) | ~bounded)


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_a_random_expression_reads_back(text: str) -> None:
    found = epilogue_of(text)
    assert parse_epilogue(found.text) == found
    assert epilogue_of(str(found)) == found
    assert len(found.operands) <= MAX_INPUTS and emission.in_cpp(found, "f16")


def test_undefined_results_have_no_bound() -> None:
    acc = np.array([[[-1.0, 0.0, 4.0]]])
    found = evaluate(epilogue_of("log(acc)"), Interval.around(acc), {})
    assert np.array_equal(np.isnan(found.exact), [[[True, True, False]]])
    found = evaluate(epilogue_of("where(acc > 1, sqrt(acc), 0)"), Interval.around(acc), {})
    assert np.array_equal(found.exact, [[[0.0, 0.0, 2.0]]])


def test_an_uncertain_comparison_takes_both_branches() -> None:
    acc = Interval.around(np.array([[[1.0, 1.5]]]), 0.1)
    found = evaluate(trace(lambda acc: where(acc < 1.05, maximum(acc, 5.0), clamp(acc, -1.0, 0.0))), acc, {})
    assert found.error[0, 0, 0] >= 5.0 and found.error[0, 0, 1] < 0.1


def test_expressions_are_part_of_the_kind() -> None:
    plans = sweep([{"arch": "sm_80", "tile": "64x64x32", "epilogue": "none,relu(acc + bias)"}]).plans
    plain, other = (LaunchTraits.of(planned_sections(emit(plan, ROOT / "templates"))) for plan in plans)
    assert kind_of(plain).epilogue == "none" and kind_of(other).epilogue == epilogue_of("relu(acc + bias)").hash


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("at", range(12))
def test_a_kernel_of_each_example_is_proved(at: int, o0_toolchain: HostToolchain) -> None:
    """The kernels are of all families in turn."""
    text = (ROOT / "examples/epilogues.py").read_text()
    names = [one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    assert len(names) == 12
    (plan,) = sweep(
        [FAMILIES[at % 4] | {"epilogue": emission.resolved(f"examples/epilogues.py:{names[at]}", ROOT)}]
    ).plans
    checks = prove(subject_of(emit(plan, ROOT / "templates")), o0_toolchain).checks
    assert not [check.reason for check in checks if not check.passed]


FAMILIES = (
    {"arch": "sm_80", "tile": "64x64x32"},
    {"arch": "sm_90a", "tile": "64x64x64"},
    {"arch": "sm_90a", "tile": "128x64x64", "swap_ab": "on"},
    {"arch": "sm_90", "tile": "64x64x32", "copy": "tma"},
)


@pytest.mark.parametrize("at", [7, 29])  # a further result, and a gated pair with a reduction
def test_a_random_expression_is_right(at: int, o0_toolchain: HostToolchain) -> None:
    assert not check(drawn(random.Random(at), at), o0_toolchain)[0].startswith("failed")


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("at", range(150))
def test_random_expressions_are_right(at: int, o0_toolchain: HostToolchain) -> None:
    """Of all families, with gated pairs, further results and reductions."""
    verdict, *_ = check(drawn(random.Random(1000 + at), at), o0_toolchain)
    assert not verdict.startswith("failed")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tile", "text"),
    [
        ("64x64x64", "silu(gate) * up"),
        ("64x64x64", "residual: Matrix; silu(gate) * up + residual"),
        ("64x72x64", "residual: Matrix; acc + residual"),
        ("64x192x64", "gelu(acc + bias)"),
        ("128x176x64", "gelu(acc + bias)"),
        ("64x64x64", "bias: Row['f32']; gelu(acc + bias)"),
        ("64x64x64", "scale: Column['bf16']; gelu(scale + acc)"),
        ("64x64x64", "y = acc + bias; gelu(y) * y"),
    ],
)
def test_an_expression_on_wgmma_is_proved(tile: str, text: str, o0_toolchain: HostToolchain) -> None:
    """The cases of a proof reach all instructions: none is left for rows that end within a vector, or for a narrower part."""
    (plan,) = sweep([{"arch": "sm_90a", "tile": tile, "cooperation": "pingpong", "epilogue": text}]).plans
    checks = prove(subject_of(emit(plan, ROOT / "templates")), o0_toolchain).checks
    assert not [check.reason for check in checks if not check.passed]


@pytest.mark.slow
def test_a_proof_needs_a_bound(o0_toolchain: HostToolchain) -> None:
    (plan,) = sweep([{**FAMILIES[0], "epilogue": "sqrt(-1.0 - abs(acc))"}]).plans
    checks = prove(subject_of(emit(plan, ROOT / "templates")), o0_toolchain).checks
    assert "no element has an error bound in any case" in checks[-1].reason


def test_function_names_and_python_types_are_rejected_as_inputs() -> None:
    with pytest.raises(EpilogueError, match=r"`gelu` is a function: write gelu\(\.\.\.\)"):
        epilogue_of("bias + gelu")  # `generate` reads bias+gelu as fixed options, before it reads formulas
    for make in (lambda: Matrix[float], lambda: epilogue_of("x: Matrix[float]; acc + x")):
        with pytest.raises(EpilogueError, match=r"write Matrix\[f32\]"):
            make()
    assert epilogue_of("gelu: Row; acc + gelu").inputs[0].name == "gelu"
