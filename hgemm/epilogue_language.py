"""The language of epilogues: types of inputs, functions, and the tracer that makes an expression from a Python function.

    from hgemm.epilogue_language import Column, Matrix, Row, Scalar, gelu

    def epilogue(acc, bias: Row, scale: Column["f32"], residual: Matrix, alpha: Scalar):
        return gelu(alpha * acc + bias) * scale + residual

    def gated(gate, up):  # two products of A, whose weights alternate in blocks of columns of B
        return silu(gate) * up

The function is called once, with objects that note each operation. So `if` and `while` on its values do not work, and loops over
Python numbers do. A text, such as "relu(alpha * acc + bias)", is parsed with Python's `ast`, and never run.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, NoReturn

from hgemm.dtypes import OUTPUTS, type_word
from hgemm.epilogue import (
    ACCUMULATORS,
    IN_FILE,
    MAX_NODES,
    MAX_TEXT,
    NONE,
    OF_PROBLEM,
    OPERATIONS,
    PAIR,
    Epilogue,
    EpilogueError,
    Input,
    Node,
    Output,
    as_f32,
    canonical,
    check_conditions,
    check_name,
    parse_epilogue,
)
from hgemm.errors import ProblemError, closest_words

# ==== Types of inputs ====


@dataclass(frozen=True)
class InputType:
    """The type of an input: `Row`, or with the type of its elements, `Row["f32"]`. Without one, it is that of D."""

    kind: str
    dtype: str = ""

    def __getitem__(self, dtype: Any) -> InputType:
        if dtype is float:
            raise EpilogueError(f"{self}[float]: Python's float has 64 bits; write {self}[f32]")
        dtype = getattr(dtype, "__name__", dtype)  # f32, the function of this module
        word = type_word(dtype) if isinstance(dtype, str) else ""
        if self.kind == "scalar":
            raise EpilogueError("Scalar has no type in brackets: scalars are f32")
        if word not in OUTPUTS:
            raise EpilogueError(f"{self}[{dtype!r}]: use one of {', '.join(OUTPUTS)}")
        return InputType(self.kind, word)

    def __str__(self) -> str:
        return self.kind.capitalize() + (f"['{self.dtype}']" if self.dtype else "")


Scalar, Row, Column, Matrix = (InputType(kind) for kind in ("scalar", "row", "column", "matrix"))
TYPES = {"Scalar": Scalar, "Row": Row, "Column": Column, "Matrix": Matrix}
USUAL = {"alpha": Scalar, "beta": Scalar, "bias": Row}
"""Types of inputs that need no annotation."""


def type_of(name: str, annotation: Any) -> InputType:
    """Return the type of an input. Raises: EpilogueError if it has none, or an unknown one."""
    if isinstance(annotation, str):
        annotation = _written_type(ast.parse(annotation.strip(), mode="eval").body) if annotation.strip() else None
    if annotation is None and name in USUAL:
        return USUAL[name]
    if annotation is None:
        raise EpilogueError(
            f"`{name}` has no type; write {name}: Matrix or {name}: Matrix[f16] (or Row, Column, Scalar)"
        )
    if not isinstance(annotation, InputType):
        raise EpilogueError(f"`{name}` has type {annotation!r}; use Row, Column, Matrix or Scalar")
    return annotation


_MAX_SHOWN = 80


def _shown(node: ast.AST) -> str:
    """Return the text of a statement or an expression for a message: one line, cut if it is long."""
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        return "..."
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _written_type(node: ast.expr) -> InputType:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Constant, ast.Name)):
        dtype = node.slice.value if isinstance(node.slice, ast.Constant) else node.slice.id
        is_float = isinstance(node.slice, ast.Name) and dtype == "float"
        return _written_type(node.value)[float if is_float else dtype]
    word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if word not in TYPES:
        raise EpilogueError(f"`{_shown(node)}` is not a type; use {', '.join(TYPES)}")
    return TYPES[word]


# ==== Values ====

_ORDER = count()
_USE_WHERE = "use where(condition, x, y)"
_AND = "where(a, where(b, x, y), y) for `and`"
_LOGIC = f"use {_AND}, where(a, x, where(b, x, y)) for `or`, where(a, y, x) for `not`"


class Value:
    """A value in an expression. Its operators note what they compute."""

    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(
        self, op: str, arguments: tuple[Value, ...] = (), value: float = 0.0, given: Input | None = None
    ) -> None:
        self.op, self.arguments, self.value, self.given, self.order = op, arguments, value, given, next(_ORDER)

    @property
    def is_condition(self) -> bool:
        return self.op in OPERATIONS and OPERATIONS[self.op].compares

    def __add__(self, other: Any) -> Value:
        return _made("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return _made("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return _made("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return _made("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return _made("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return _made("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return _made("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return _made("div", other, self)

    def __neg__(self) -> Value:
        return _made("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return _made("abs", self)

    def __pow__(self, power: Any) -> Value:
        if isinstance(power, Value) or power not in (0.5, 2, 3, 4):
            written = "y" if isinstance(power, Value) else power
            raise EpilogueError(f"x ** {written} is not supported; the powers are 2, 3, 4 and 0.5")
        if power == 0.5:
            return _made("sqrt", self)
        square = self * self
        return square if power == 2 else square * self if power == 3 else square * square

    def __lt__(self, other: Any) -> Value:
        return _made("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return _made("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return _made("lt", other, self)

    def __ge__(self, other: Any) -> Value:
        return _made("le", other, self)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return _made("eq", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return _made("ne", self, other)

    def __bool__(self) -> bool:
        raise EpilogueError(
            f"a value of the epilogue is not known while it is traced: {_USE_WHERE} for `if`, {_AND}, "
            "maximum(x, y) for `max`, minimum(x, y) for `min`"
        )

    def _refuse_bits(self, *other: Any) -> NoReturn:
        raise EpilogueError(f"values of the epilogue have no `&`, `|`, `^` and `~`: {_LOGIC}")

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse_bits

    def __float__(self) -> float:
        raise EpilogueError(
            "a value of the epilogue is not a Python number: use the functions of hgemm.epilogue_language"
        )

    __int__ = __index__ = __float__

    def __iter__(self) -> Iterator[Any]:
        raise EpilogueError("a value of the epilogue is one element: it has no axes and no indices")

    def __getitem__(self, index: Any) -> Any:
        return self.__iter__()


def _value(one: Any) -> Value:
    if isinstance(one, Value):
        return one
    if isinstance(one, Reduced):
        raise EpilogueError(_LATE)
    if isinstance(one, (int, float)) and not isinstance(one, bool):
        return Value("constant", value=as_f32(one))
    shown = f" {_cut(str(one))!a}" if isinstance(one, (str, bytes, bool)) else ""
    raise EpilogueError(
        f"{type(one).__name__}{shown} is not a value of the epilogue: use numbers, arguments, and results of operations"
    )


def _made(op: str, *arguments: Any) -> Value:
    values = tuple(map(_value, arguments))
    check_conditions(op, [value.is_condition for value in values])
    if op == "div" and _constant(values[1]) == 0.0:
        raise EpilogueError("division by the constant 0")
    return Value(op, values)


def _constant(value: Value) -> float | None:
    """Return the number of a constant, None for other values. A text has -1 as the negation of 1."""
    sign = 1.0
    while value.op in ("neg", "f32"):
        sign = -sign if value.op == "neg" else sign
        (value,) = value.arguments
    return sign * value.value if value.op == "constant" else None


def _input(name: str, found: InputType) -> Value:
    if name in OF_PROBLEM and found.kind != "scalar":
        raise EpilogueError(
            f"`{name}` is a number, an argument of the product: use Scalar, or another name than {name}"
        )
    return Value("input", given=Input(name, found.kind, found.dtype))


# ==== Functions ====


def _function(op: str, text: str) -> Callable[..., Value]:
    def function(*arguments: Any) -> Value:
        if len(arguments) != OPERATIONS[op].arguments:
            raise EpilogueError(f"{op} takes {OPERATIONS[op].arguments} arguments, not {len(arguments)}")
        return _made(op, *arguments)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = text
    return function


minimum = _function("minimum", "Return the smaller of two numbers; if one is NaN, the other one.")
maximum = _function("maximum", "Return the larger of two numbers; if one is NaN, the other one.")
where = _function("where", "Return the second argument where the first, a comparison, holds, and the third elsewhere.")
exp = _function("exp", "Return e to the power of x.")
log = _function("log", "Return the natural logarithm of x.")
tanh = _function("tanh", "Return the hyperbolic tangent of x.")
sigmoid = _function("sigmoid", "Return 1 / (1 + exp(-x)).")
sqrt = _function("sqrt", "Return the square root of x.")
rsqrt = _function("rsqrt", "Return 1 / sqrt(x).")
erf = _function("erf", "Return the error function of x.")
softplus = _function("softplus", "Return log(1 + exp(x)).")
relu = _function("relu", "Return x where it is positive, and 0 elsewhere. NaN stays NaN.")
gelu = _function("gelu", "Return x * (1 + erf(x / sqrt(2))) / 2.")
silu = _function("silu", "Return x / (1 + exp(-x)).")
f16 = _function("f16", "Round x to f16.")
bf16 = _function("bf16", "Round x to bf16.")


def absolute(x: Any) -> Value:
    """Return the absolute value of x, as `abs(x)` does."""
    return _made("abs", x)


def f32(x: Any) -> Value:
    """Return x. Values of an epilogue are f32 already. As a further result of an epilogue, it is stored in f32."""
    x = _value(x)
    check_conditions("f32", [x.is_condition])
    return Value("f32", (x,))


@dataclass(frozen=True)
class Reduced:
    """A reduction of the rows or columns of a value. It can only be returned, after D."""

    value: Value
    reduce: str

    def _refuse(self, *others: Any) -> NoReturn:
        raise EpilogueError(_LATE)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


_LATE = "a reduction is known after all tiles: return it as a further result; other values cannot use it"


def row_sum(x: Any) -> Reduced:
    """Return the sum of each row, (m,) in f32."""
    return _reduced(x, "sum")


def row_max(x: Any) -> Reduced:
    """Return the largest number of each row, (m,) in f32."""
    return _reduced(x, "max")


def row_sum_squares(x: Any) -> Reduced:
    """Return the sum of the squares of each row, (m,) in f32."""
    return _reduced(_value(x) * x, "sum")


def column_sum(x: Any) -> Reduced:
    """Return the sum of each column, (n,) in f32."""
    return _reduced(x, "column_sum")


def column_max(x: Any) -> Reduced:
    """Return the largest number of each column, (n,) in f32."""
    return _reduced(x, "column_max")


def column_sum_squares(x: Any) -> Reduced:
    """Return the sum of the squares of each column, (n,) in f32."""
    return _reduced(_value(x) * x, "column_sum")


def _reduced(x: Any, reduce: str) -> Reduced:
    x = _value(x)
    check_conditions(Output(0, reduce=reduce).function, [x.is_condition])
    return Reduced(x, reduce)


def leaky_relu(x: Any, slope: Any = 0.01) -> Value:
    """Return x where it is not negative, and slope * x elsewhere."""
    return where(_value(x) < 0.0, slope * _value(x), x)


def gelu_tanh(x: Any) -> Value:
    """Return the approximation of gelu by tanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    at = _value(x)
    return at * sigmoid(1.5957691216057308 * (at + 0.044715 * (at * at * at)))


def hardswish(x: Any) -> Value:
    """Return x * clamp(x + 3, 0, 6) / 6."""
    return _value(x) * (clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))


def clamp(x: Any, low: Any, high: Any) -> Value:
    """Return x, but at least `low` and at most `high`."""
    low, high = _value(low), _value(high)
    least, most = _constant(low), _constant(high)
    if least is not None and most is not None and least > most:
        raise EpilogueError(f"clamp: low is {least:g}, more than high, {most:g}: exchange them")
    return minimum(maximum(x, low), high)


FUNCTIONS: Mapping[str, Callable[..., Value | Reduced]] = {
    **{one.__name__: one for one in (minimum, maximum, where, exp, log, tanh, sigmoid, sqrt, rsqrt, erf, softplus)},
    **{one.__name__: one for one in (relu, leaky_relu, gelu, gelu_tanh, silu, hardswish, clamp, f16, bf16, f32)},
    **{one.__name__: one for one in (row_sum, row_max, row_sum_squares, column_sum, column_max, column_sum_squares)},
    "abs": absolute,
    "min": minimum,
    "max": maximum,
}
"""The functions of texts, by name. In Python, `abs` is the built-in function, and `min` and `max` are `minimum` and `maximum`."""


@lru_cache(1024)
def as_epilogue(epilogue: Any) -> Epilogue | None:
    """Return the expression of a function, of a text, or of an expression itself. A function is traced once."""
    if isinstance(epilogue, Epilogue):
        return epilogue
    return epilogue_of(epilogue) if isinstance(epilogue, str) else trace(epilogue)


def epilogue_text(epilogue: Any) -> str:
    """Return the JSON text of the expression of `as_epilogue`, or `none`."""
    found = as_epilogue(epilogue)
    return found.text if found else NONE


def as_expression(epilogue: Any) -> Epilogue:
    """Return the expression of `as_epilogue`. Raises ProblemError for the text `none`."""
    found = as_epilogue(epilogue)
    if found is None:
        raise ProblemError("the epilogue is none: leave it out")
    return found


# ==== From a function ====


def trace(function: Callable[..., Any]) -> Epilogue:
    """Return the expression of a Python function of the accumulator and of inputs with types.

    Raises: EpilogueError with the file and the line of the function.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        raise EpilogueError(f"an epilogue is a Python function, not a {type(function).__name__}")
    values: list[Value] = []
    parameters = inspect.signature(function).parameters
    pair = tuple(parameters)[:2] == PAIR and parameters[PAIR[1]].annotation is inspect.Parameter.empty
    for at, parameter in enumerate(parameters.values()):
        try:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise EpilogueError(f"`{parameter}` has no fixed number of inputs: name each one")
            if parameter.kind is parameter.KEYWORD_ONLY:
                raise EpilogueError(f"`{parameter.name}` is a keyword-only argument: remove the `*` before it")
            if pair and at < len(PAIR):
                values.append(Value(ACCUMULATORS[at]))
                continue
            annotation = None if parameter.annotation is parameter.empty else parameter.annotation
            if parameter.name in PAIR and (at == 0 or annotation is None):
                raise EpilogueError(
                    f"`{parameter.name}` is an accumulator of a gated pair: the first two arguments are gate and up, "
                    "without types and without acc"
                )
            if at == 0:
                values.append(Value("acc"))
                continue
            check_name(parameter.name)
            if parameter.default is not parameter.empty:
                raise EpilogueError(f"`{parameter.name}` has a default, which no call uses: remove it")
            values.append(_input(parameter.name, type_of(parameter.name, annotation)))
        except (EpilogueError, SyntaxError) as error:
            raise EpilogueError(f"{code.co_filename}:{_line_of(function, parameter.name)}: {error}") from None
    if not values:
        raise EpilogueError(
            f"{code.co_filename}:{code.co_firstlineno}: the first argument is the accumulator; there is none"
        )
    try:
        traced = expression_of(function(*values))
        if any(value.op == "up" for value in values) and not traced.gated:
            raise EpilogueError("the result does not depend on up, the second accumulator")
    except (Exception, SystemExit) as error:  # whatever the user's function raises, the message names its line
        raise EpilogueError(f"{code.co_filename}:{_raised_at(error, function)}: {_reason(error, function)}") from error
    for name in _unused(values, traced):
        _warn_unused(f"{code.co_filename}:{_line_of(function, name)}", name)
    return traced


def _unused(values: Iterable[Any], found: Epilogue) -> list[str]:
    """Return the names of inputs that an expression does not have."""
    used = {one.name for one in found.inputs}
    return [one.given.name for one in values if isinstance(one, Value) and one.given and one.given.name not in used]


_PACKAGES = ("hgemm", "generator")


def _warn_unused(where: str, name: str) -> None:
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:  # point to the caller
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{where}: the result does not depend on {name}, so calls cannot pass {name}", stacklevel=level)


def _reason(error: BaseException, function: Callable[..., Any]) -> str:
    if isinstance(error, EpilogueError):
        return str(error)
    name = str(getattr(error, "name", ""))  # of a NameError or an AttributeError
    near = closest_words(name, [*inspect.signature(function).parameters, *FUNCTIONS])
    hint = ""
    if name in FUNCTIONS:
        hint = f": import it from hgemm.epilogue_language, and call {name}(x)"
    elif isinstance(error, NameError) and near:
        hint = f": did you mean {near[0]}?"
    elif isinstance(error, (NameError, AttributeError)) or "'Value'" in str(error):
        hint = ": use operators and the functions of hgemm.epilogue_language"
    return f"{type(error).__name__}: {error}{hint}"


def _raised_at(error: BaseException, function: Callable[..., Any]) -> int:
    """Return the line in the function's file that raised an error."""
    line, step = function.__code__.co_firstlineno, error.__traceback__
    while step:
        if step.tb_frame.f_code.co_filename == function.__code__.co_filename:
            line = step.tb_lineno
        step = step.tb_next
    return line


def _line_of(function: Callable[..., Any], parameter: str) -> int:
    """Return the line of a parameter, or of the function if its source is not available."""
    first = function.__code__.co_firstlineno
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return first
    named = re.compile(rf"(^|[(,*\s]){re.escape(parameter)}\s*([:,=)]|$)")
    return next((first + at for at, line in enumerate(lines) if named.search(line)), first)


def expression_of(result: Any) -> Epilogue:
    """Return the canonical expression of a traced result. Raises: EpilogueError if it is none."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    if result is None or not len(results):
        raise EpilogueError("the epilogue returns nothing; end it with `return`")
    if isinstance(result, Mapping):
        raise EpilogueError(f"the epilogue returns a {type(result).__name__}: return D, or a tuple with D first")
    if isinstance(results[0], Reduced):
        raise EpilogueError("the first result is D, a matrix: return the reduction after it")
    first = _value(results[0])
    further = [(one.value, "", one.reduce) if isinstance(one, Reduced) else _output(one) for one in results[1:]]
    roots = [_plain(one) for one in (first, *(value for value, _, _ in further))]
    order, seen = [], {id(one) for one in roots}
    pending = [*{id(one): one for one in roots}.values()]
    while pending:
        value = pending.pop()
        order.append(value)
        for argument in map(_plain, value.arguments):
            if id(argument) not in seen:
                seen.add(id(argument))
                pending.append(argument)
        if len(order) > 4 * MAX_NODES:
            raise EpilogueError(f"the expression has more than {MAX_NODES} steps")
    order.sort(key=lambda value: value.order)  # arguments are made before what uses them
    places = {id(value): at for at, value in enumerate(order)}
    inputs = tuple({value.given: None for value in order if value.given})
    nodes = [
        Node("input", (inputs.index(value.given),))
        if value.given
        else Node(value.op, tuple(places[id(_plain(one))] for one in value.arguments), value.value)
        for value in order
    ]
    d, *others = (places[id(one)] for one in roots)
    outputs = [Output(node, dtype, reduce) for node, (_, dtype, reduce) in zip(others, further)]
    return canonical(inputs, nodes, d, outputs)


def _plain(value: Value) -> Value:
    """Return a value without casts to f32, which change nothing."""
    while value.op == "f32":
        (value,) = value.arguments
    return value


def _output(one: Any) -> tuple[Value, str, str]:
    """Return a further matrix: its value, and its type, that of its last cast; "" without one."""
    value = _value(one)
    return (value.arguments[0], value.op, "") if value.op in OUTPUTS else (value, "", "")


# ==== From a text ====

_OPERATORS = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.Div: "__truediv__",
    ast.Pow: "__pow__",
    ast.USub: "__neg__",
    ast.UAdd: "__pos__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
    ast.Eq: "__eq__",
    ast.NotEq: "__ne__",
}
_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)
_MAX_DEPTH = 100
_MODULES = ("torch", "F", "functional", "np", "numpy", "math", "cp", "cupy")
"""Names of modules in which users know functions such as `exp`."""


def _hint(node: ast.AST) -> str:
    """Return what to write instead of a part of a text that is not supported, or ""."""
    if isinstance(node, (ast.If, ast.IfExp)):
        return f": {_USE_WHERE}"
    logic = isinstance(node, ast.BoolOp) or (isinstance(node, ast.Compare) and len(node.ops) > 1)
    if logic or (isinstance(node, (ast.BinOp, ast.UnaryOp)) and isinstance(node.op, (*_BITS, ast.Not, ast.Invert))):
        return f": {_LOGIC}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return f": write {node.func.id}({', '.join(_parameters(node.func.id))})"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS:
        of_module = _root(node.func.value) in _MODULES
        arguments = node.args if of_module else [node.func.value, *node.args]
        return f": write {node.func.attr}({', '.join(map(_shown, arguments))})"
    if isinstance(node, ast.Subscript):
        return ": a value is one element, without indices"
    return ": use numbers, such as 1 or 0.5, names, operators and functions" if isinstance(node, ast.expr) else ""


def _root(node: ast.AST) -> str:
    """Return the first name of names with dots, such as torch of `torch.nn.functional`, or ""."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _parameters(name: str) -> list[str]:
    operation = OPERATIONS.get(FUNCTIONS[name].__name__)
    if operation:
        return [["x"], ["x", "y"], ["condition", "x", "y"]][operation.arguments - 1]
    return [*inspect.signature(FUNCTIONS[name]).parameters]


def epilogue_of(text: str) -> Epilogue | None:
    """Return the expression of a text: JSON, `none`, or types and a formula as in Python, such as

        relu(alpha * acc + bias)
        scale: Column; residual: Matrix['f16']; y = gelu(acc) * scale; y + residual
        silu(gate) * up

    The text is parsed and never run.
    Raises: EpilogueError with the part that is not supported.
    """
    text = text.strip()
    if text.startswith("{") or text == "none":
        return parse_epilogue(text)
    if IN_FILE.fullmatch(text):
        raise EpilogueError(f"epilogue {_cut(text)!a} names a Python file: import the function and pass it")
    if len(text) > MAX_TEXT:
        raise EpilogueError(f"the text of an expression has {len(text)} characters; the limit is {MAX_TEXT}")
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise EpilogueError(
            f"epilogue {_cut(text)!a} is not an expression: {error.msg} at character {error.offset}"
        ) from None
    except (ValueError, MemoryError, RecursionError):
        raise EpilogueError(f"epilogue {_cut(text)!a} is not an expression") from None
    return _Text().read(statements, text)


class _Text:
    """Reads the statements of a text: types of inputs, names of results, and the result."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"acc": Value("acc")}
        self.accumulators: set[str] = set()
        """Names of accumulators in the text: acc, or gate and up."""

    def read(self, statements: list[ast.stmt], text: str) -> Epilogue:
        result = None
        for statement in statements:
            if result is not None:
                raise EpilogueError(f"epilogue {_cut(text)!a} has a statement after its result")
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and not statement.value:
                self._declare(statement.target.id, _written_type(statement.annotation))
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.names[statement.targets[0].id] = self._value(statement.value)
            elif isinstance(statement, (ast.Expr, ast.Return)) and statement.value:
                result = self._value(statement.value)
            else:
                raise EpilogueError(f"`{_shown(statement)}` is not supported in an epilogue{_hint(statement)}")
        if result is None:
            raise EpilogueError(f"epilogue {_cut(text)!a} has no result: end it with `; ` and a formula")
        found = expression_of(result)
        of_pair = [name for name in PAIR if name in self.accumulators]
        if of_pair and not (found.gated and "acc" not in self.accumulators):
            raise EpilogueError(
                f"`{of_pair[0]}` is an accumulator of a gated pair: use both {PAIR[0]} and {PAIR[1]}, or acc"
            )
        for name in _unused(self.names.values(), found):
            _warn_unused(f"epilogue {_cut(text)!a}", name)
        return found

    def _declare(self, name: str, found: InputType) -> None:
        if name in self.names:
            raise EpilogueError(f"`{name}` has a value or a type already")
        check_name(name)
        self.names[name] = _input(name, found)

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise EpilogueError(f"the expression is nested more than {_MAX_DEPTH} times")
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            return node.value if isinstance(node.value, int) and abs(node.value) < 2**24 else as_f32(node.value)
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Tuple):
            return tuple(self._value(one, depth + 1) for one in node.elts)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = (self._value(one, depth + 1) for one in (node.left, node.right))
            return self._applied(_OPERATORS[type(node.op)], left, right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return self._applied(_OPERATORS[type(node.op)], self._value(node.operand, depth + 1))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
            left, right = (self._value(one, depth + 1) for one in (node.left, node.comparators[0]))
            return self._applied(_OPERATORS[type(node.ops[0])], left, right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._called(node.func.id, [self._value(one, depth + 1) for one in node.args])
        raise EpilogueError(f"`{_shown(node)}` is not supported in an epilogue{_hint(node)}")

    def _applied(self, method: str, first: Any, *others: Any) -> Value:
        """Apply an operator. Only a power of two numbers, such as 2 ** 3, needs none of ours."""
        applied: Value = getattr(_value(first), method)(*others)
        return applied

    def _called(self, name: str, arguments: list[Any]) -> Value:
        if name not in FUNCTIONS:
            near = closest_words(name, FUNCTIONS)
            hint = f"did you mean {near[0]}?" if near else f"the functions are {', '.join(sorted(FUNCTIONS))}"
            raise EpilogueError(f"an epilogue has no function {name}: {hint}")
        function: Callable[..., Any] = FUNCTIONS[name]
        try:
            called: Value = function(*arguments)
            return called
        except TypeError as error:
            raise EpilogueError(f"{name}: {error}") from None

    def _named(self, name: str) -> Any:
        if name == "acc":
            self.accumulators.add(name)
        if name not in self.names:
            if name in PAIR:
                self.names[name] = Value(ACCUMULATORS[PAIR.index(name)])
                self.accumulators.add(name)
                return self.names[name]
            if name in FUNCTIONS:
                raise EpilogueError(
                    f"`{name}` is a function: write {name}(...), such as {name}(acc + bias). Kernels with a fixed bias or "
                    "activation have no epilogue: select them by these two options"
                )
            if name not in USUAL:
                near = closest_words(name, [*USUAL, *self.names], 1)
                hint = f"did you mean {near[0]}? Else " if near else ""
                raise EpilogueError(
                    f"`{name}` has no type; {hint}write '{name}: Matrix; ...' (or Row, Column, Scalar) before the formula"
                )
            self._declare(name, USUAL[name])
        return self.names[name]
