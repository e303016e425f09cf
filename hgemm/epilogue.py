"""Epilogues as expressions: the value that specs, records, kernels and checks share, and its text.

An expression computes an element of D from the accumulator and from inputs: scalars, rows (n,), columns (m,) and matrices (m, n).
`hgemm.epilogue_language` makes one from a Python function. Its text is JSON with flat lists, so that reading a text of a record
needs neither recursion nor `eval`. Equal expressions have equal texts.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from hgemm.dtypes import OUTPUTS
from hgemm.errors import RequestError

NONE = "none"
"""The text of a kernel without an expression: it adds beta C and a bias, and applies an activation."""
KINDS = ("scalar", "row", "column", "matrix")
MAX_INPUTS = 8
"""Inputs of an expression, without scalars that are named as in OF_PROBLEM."""
MAX_NODES = 128
MAX_TEXT = 16_384
"""Limit of the text of an expression, in characters."""
OF_PROBLEM = ("alpha", "beta")
"""Names of scalars that a launch takes from its problem. They are host values."""
HASH_DIGITS = 8
IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)")
"""A function of a Python file, on the command line."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_OF_OUTPUT = re.compile(r"out[0-9]+", re.ASCII)
PAIR = ("gate", "up")
"""The accumulators of a gated pair, in formulas and as the first arguments of a function."""
PAIR_COLUMNS = 8
"""Columns of B in a block of a gated pair: a block of the first factor, then one of the second, and so on."""
RESERVED = ("acc", "a", "b", "d", "out", "workspace", "stream", "options")
"""Names that no input may have: they are arguments of a product."""


class EpilogueError(RequestError):
    """An expression is malformed or not supported."""


# ==== Operations ====


@dataclass(frozen=True)
class Operation:
    """An operation on floats. `compares` tells that its result is a condition; the first argument of `where` is one.

    Fields: `symbol` is the operator in Python, for texts that people read. `commutes`: both orders of the arguments are the same.
    """

    arguments: int
    symbol: str = ""
    commutes: bool = False
    compares: bool = False
    steps: int = 1


OPERATIONS = {
    "add": Operation(2, "+", commutes=True),
    "sub": Operation(2, "-"),
    "mul": Operation(2, "*", commutes=True),
    "div": Operation(2, "/", steps=4),
    "minimum": Operation(2, commutes=True),
    "maximum": Operation(2, commutes=True),
    "neg": Operation(1, "-"),
    "abs": Operation(1),
    "lt": Operation(2, "<", compares=True),
    "le": Operation(2, "<=", compares=True),
    "eq": Operation(2, "==", commutes=True, compares=True),
    "ne": Operation(2, "!=", commutes=True, compares=True),
    "where": Operation(3),
    "exp": Operation(1, steps=2),
    "log": Operation(1, steps=2),
    "sqrt": Operation(1, steps=2),
    "rsqrt": Operation(1, steps=2),
    "tanh": Operation(1, steps=6),
    "sigmoid": Operation(1, steps=4),
    "erf": Operation(1, steps=20),
    "softplus": Operation(1, steps=8),
    "relu": Operation(1),
    "gelu": Operation(1, steps=16),
    "silu": Operation(1, steps=5),
    "f16": Operation(1),
    "bf16": Operation(1),
}
"""Operations by their name. `steps` is about the number of their instructions.

A new one also needs: its function in hgemm/epilogue_language.py, its device code in generator/epilogue.py, and its bound in
hgemm/epilogue_reference.py.
"""
_LEAVES = ("acc", "up", "input", "constant")
ACCUMULATORS = ("acc", "up")
"""Operations of the accumulators. In a gated pair, they are those that formulas name as in PAIR."""


@dataclass(frozen=True)
class Input:
    """An input: its name, its kind, and its type; an empty type is that of D. Scalars are f32."""

    name: str
    kind: str
    dtype: str = ""

    def of(self, dtype_d: str) -> str:
        """Return the type in a kernel whose D has this type."""
        return self.dtype or dtype_d

    @property
    def in_problem(self) -> bool:
        """Whether it is a field of the problem: alpha or beta."""
        return self.kind == "scalar" and self.name in OF_PROBLEM

    def __str__(self) -> str:
        return f"{self.name}: {self.kind.capitalize()}" + (
            f"['{self.dtype}']" if self.dtype and self.kind != "scalar" else ""
        )


@dataclass(frozen=True)
class Node:
    """A step: an operation on earlier nodes, an accumulator, an input (by its position), or a constant.

    `acc` is the accumulator, or the first one of a gated pair. `up` is the second one.
    """

    op: str
    arguments: tuple[int, ...] = ()
    value: float = 0.0

    @property
    def is_condition(self) -> bool:
        return self.op in OPERATIONS and OPERATIONS[self.op].compares


@dataclass(frozen=True)
class Output:
    """A result beside D: a node as a matrix of type `dtype`, or a reduction of its rows or columns. An empty type is that of D.

    Shapes: (m, n) for a matrix. A reduction is in f32: (m,) and of kind `column` if it reduces rows, (n,) and of kind `row` if
        it reduces columns.
    """

    node: int
    dtype: str = ""
    reduce: str = ""
    name: str = field(default="", compare=False)

    @property
    def kind(self) -> str:
        if not self.reduce:
            return "matrix"
        return "row" if self.reduce.startswith(OF_COLUMNS) else "column"

    @property
    def function(self) -> str:
        """The name of the reduction in formulas: row_sum, row_max, column_sum or column_max."""
        return self.reduce if self.kind == "row" else f"row_{self.reduce}"

    def of(self, dtype_d: str) -> str:
        """Return the type in a kernel whose D has this type."""
        return "f32" if self.reduce else self.dtype or dtype_d


OF_COLUMNS = "column_"
"""Prefix of the names of reductions of columns."""
REDUCTIONS = ("sum", "max", "column_sum", "column_max")
"""Reductions of each row of D, then of each column."""
MAX_REDUCTIONS = 4


@dataclass(frozen=True)
class Epilogue:
    """A canonical expression. `nodes` come in the order of their use; each is used, and no two are equal.

    Fields: `result` is the node of D. `outputs` are further results, named out1, out2, ...
    """

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    result: int
    outputs: tuple[Output, ...] = ()

    @cached_property
    def text(self) -> str:
        """The JSON text, which `parse_epilogue` reads."""
        inputs = [[one.name, one.kind, *([one.dtype] if one.dtype else [])] for one in self.inputs]
        nodes = [
            [node.op, *node.arguments, *([_short(node.value)] if node.op == "constant" else [])] for node in self.nodes
        ]
        document: dict[str, Any] = {"inputs": inputs, "nodes": nodes}
        if self.outputs:
            document |= {"result": self.result, "outputs": [[one.node, one.dtype, one.reduce] for one in self.outputs]}
        return json.dumps(document, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """The first HASH_DIGITS of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:HASH_DIGITS]

    @property
    def operands(self) -> tuple[Input, ...]:
        """The inputs that a launch passes beside the problem, in this order."""
        return tuple(one for one in self.inputs if not one.in_problem)

    @cached_property
    def gated(self) -> bool:
        """Whether an element of D comes from a pair of columns of A B, which alternate in blocks of PAIR_COLUMNS."""
        return any(node.op == "up" for node in self.nodes)

    @property
    def reductions(self) -> tuple[Output, ...]:
        """The outputs that are reductions: first those of rows, then those of columns."""
        return (*self.row_reductions, *self.column_reductions)

    @property
    def row_reductions(self) -> tuple[Output, ...]:
        """The outputs that reduce rows."""
        return tuple(one for one in self.outputs if one.kind == "column")

    @property
    def column_reductions(self) -> tuple[Output, ...]:
        """The outputs that reduce columns."""
        return tuple(one for one in self.outputs if one.kind == "row")

    @property
    def steps(self) -> int:
        """About the number of instructions for an element."""
        return sum(OPERATIONS[node.op].steps for node in self.nodes if node.op in OPERATIONS)

    def has(self, kind: str) -> bool:
        """Return whether an input is of this kind."""
        return any(one.kind == kind for one in self.inputs)

    def takes(self, name: str) -> bool:
        """Return whether a field of the problem, alpha or beta, is an input."""
        return any(one.in_problem and one.name == name for one in self.inputs)

    @cached_property
    def formula(self) -> str:
        """The expression as people write it: `relu(acc * alpha + bias)`. Results that are used twice have names t0, t1, ..."""
        return "; ".join(self._formulas())

    def __str__(self) -> str:
        """Return types and formula, in a form that `--epilogue` accepts."""
        return "; ".join([*map(str, self.inputs), self.formula])

    def _formulas(self) -> Iterator[str]:
        uses = [0] * len(self.nodes)
        for node in self.nodes:
            if node.op not in _LEAVES:
                for argument in node.arguments:
                    uses[argument] += 1
        for result in (self.result, *(one.node for one in self.outputs)):
            uses[result] += 1
        written: list[tuple[str, bool]] = []  # the text of each node, and whether it needs parentheses as an operand
        names = 0
        for at, node in enumerate(self.nodes):
            text, loose = self._formula(node, written)
            if uses[at] > 1 and node.op not in _LEAVES:
                yield f"t{names} = {text}"
                text, loose, names = f"t{names}", False, names + 1
            written.append((text, loose))
        further = [
            f"{one.function}({written[one.node][0]})"
            if one.reduce
            else f"{one.dtype}({written[one.node][0]})"
            if one.dtype
            else written[one.node][0]
            for one in self.outputs
        ]
        yield f"({', '.join([written[self.result][0], *further])})" if further else written[self.result][0]

    def _formula(self, node: Node, written: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
        if node.op in ACCUMULATORS:
            return (PAIR[ACCUMULATORS.index(node.op)] if self.gated else "acc"), False
        if node.op == "input":
            return self.inputs[node.arguments[0]].name, False
        if node.op == "constant":
            return f"{_short(node.value)!r}", node.value < 0
        plain = [text for text, _ in (written[argument] for argument in node.arguments)]
        if not OPERATIONS[node.op].symbol:
            return f"{node.op}({', '.join(plain)})", False
        tight = [f"({text})" if loose else text for text, loose in (written[one] for one in node.arguments)]
        if node.op == "neg":
            return f"-{tight[0]}", True
        if node.op == "add" and all("= " not in one for one in plain):  # a sum of products needs no parentheses
            left, right = (self._addend(argument, written) for argument in node.arguments)
            return f"{left} + {right}", True
        return f"{tight[0]} {OPERATIONS[node.op].symbol} {tight[1]}", True

    def _addend(self, argument: int, written: Sequence[tuple[str, bool]]) -> str:
        text, loose = written[argument]
        return text if not loose or self.nodes[argument].op in ("mul", "div") else f"({text})"


def _short(value: float) -> float:
    """Return the number with the fewest digits that rounds to the same float."""
    for digits in range(1, 10):
        found = float(f"{value:.{digits}g}")
        if as_f32(found) == as_f32(value):
            return found
    return value


def as_f32(value: float) -> float:
    """Round a number to f32. Raises: EpilogueError if it is not finite there."""
    try:
        found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):
        found = math.inf
    if not math.isfinite(found):
        shown = (
            f"the constant {value!r}" if isinstance(value, float) else "an integer"
        )  # Python writes at most 4,300 digits
        raise EpilogueError(f"{shown} is not a finite float")
    return found


# ==== Canonical form ====


def canonical(inputs: Sequence[Input], nodes: Sequence[Node], result: int, outputs: Sequence[Output] = ()) -> Epilogue:
    """Return the canonical form of an expression: only what the results use, equal nodes once, in the order of use.

    Operations that commute take their arguments in a fixed order: results before leaves.
    Raises: EpilogueError for too many nodes, inputs or outputs, for a result that is a condition, or a D that does not depend on
        the accumulator.
    """
    digests = _digests(inputs, nodes)
    places: dict[str, int] = {}
    kept: list[Node] = []
    used: dict[Input, int] = {}
    pending = [*(one.node for one in reversed(outputs)), result]
    while pending:
        at = pending[-1]
        node = nodes[at]
        if digests[at] in places:
            pending.pop()
            continue
        arguments = _ordered(node, nodes, digests)
        waiting = [one for one in arguments if digests[one] not in places] if node.op not in _LEAVES else []
        if waiting:
            pending.extend(reversed(waiting))
            continue
        pending.pop()
        places[digests[at]] = len(kept)
        if node.op == "input":
            given = inputs[node.arguments[0]]
            kept.append(Node("input", (used.setdefault(given, len(used)),)))
        elif node.op in _LEAVES:
            kept.append(Node(node.op, (), _short(node.value) if node.op == "constant" else 0.0))
        else:
            kept.append(Node(node.op, tuple(places[digests[one]] for one in arguments)))
        if len(kept) > MAX_NODES:
            raise EpilogueError(f"the expression has more than {MAX_NODES} steps")
    further = tuple(
        Output(places[digests[one.node]], one.dtype, one.reduce, f"out{at}") for at, one in enumerate(outputs, 1)
    )
    found = Epilogue(tuple(used), tuple(kept), places[digests[result]], further)
    if any(kept[one].is_condition for one in (found.result, *(output.node for output in further))):
        raise EpilogueError("the result is a condition; write where(condition, x, y)")
    if not _reaches(kept, found.result, "acc"):
        missing = "gate, the first accumulator" if found.gated else "the accumulator, the first argument"
        raise EpilogueError(f"the result does not depend on {missing}")
    if found.gated and any(one.name in PAIR for one in found.inputs):
        raise EpilogueError(f"an input cannot be named {' or '.join(PAIR)} beside the accumulators of these names")
    if len(found.operands) + len(further) > MAX_INPUTS:
        more = f" and {len(further)} further outputs" if further else ""
        raise EpilogueError(f"the expression has {len(found.operands)} inputs{more}; the limit is {MAX_INPUTS}")
    if len(found.reductions) > MAX_REDUCTIONS:
        raise EpilogueError(f"the expression has {len(found.reductions)} reductions; the limit is {MAX_REDUCTIONS}")
    return found


def _reaches(nodes: Sequence[Node], result: int, op: str) -> bool:
    """Return whether a result depends on a node with this operation."""
    needed = {result}
    for at in range(result, -1, -1):
        if at in needed and nodes[at].op not in _LEAVES:
            needed.update(nodes[at].arguments)
    return any(nodes[at].op == op for at in needed)


def _digests(inputs: Sequence[Input], nodes: Sequence[Node]) -> list[str]:
    """Return a hash of each node that does not depend on the numbers of nodes."""
    digests: list[str] = []
    for node in nodes:
        if node.op == "input":
            content = str(inputs[node.arguments[0]])
        elif node.op in _LEAVES:
            content = repr(as_f32(node.value)) if node.op == "constant" else ""
        else:
            content = ",".join(digests[one] for one in _ordered(node, nodes, digests))
        digests.append(hashlib.sha256(f"{node.op} {content}".encode()).hexdigest())
    return digests


def _ordered(node: Node, nodes: Sequence[Node], digests: Sequence[str]) -> tuple[int, ...]:
    if node.op in _LEAVES or not OPERATIONS[node.op].commutes:
        return node.arguments
    return tuple(sorted(node.arguments, key=lambda one: (_rank(nodes[one]), digests[one])))


def _rank(node: Node) -> int:
    return (*OPERATIONS, *_LEAVES).index(node.op) if node.op in _LEAVES else 0


# ==== Reading a text ====


def parse_epilogue(text: str) -> Epilogue | None:
    """Return the expression of a JSON text, None for `none`. Raises EpilogueError as parse_expression."""
    return None if text == NONE else parse_expression(text)


@lru_cache(256)
def parse_expression(text: str) -> Epilogue:
    """Return the expression of a JSON text.

    Raises: EpilogueError if the text is malformed, or not what `Epilogue.text` writes.
    """
    if len(text) > MAX_TEXT:
        raise EpilogueError(f"the text of an expression has {len(text)} characters; the limit is {MAX_TEXT}")
    try:
        document = json.loads(text)
        found = canonical(*_parts(document))
    except (ValueError, RecursionError, TypeError, LookupError) as error:
        raise EpilogueError(f"the text of an expression is malformed ({type(error).__name__}: {error})") from None
    if found.text != text:
        raise EpilogueError("the text of an expression is not in canonical form")
    return found


def inputs_of(text: str, *kinds: str) -> int:
    """Return how many inputs of an expression are of these kinds."""
    found = parse_epilogue(text)
    return sum(one.kind in kinds for one in found.inputs) if found else 0


def accumulators_of(text: str) -> int:
    """Return how many accumulators an element of D takes: 2 for a gated pair, else 1."""
    found = parse_epilogue(text)
    return 2 if found and found.gated else 1


def numbers_of(text: str) -> int:
    """Return how many numbers a lane holds for an element of D, as a power of 2: accumulators and results."""
    found = parse_epilogue(text)
    return accumulators_of(text) * min(4, 1 << len(found.outputs)) if found else 1


def pairs_violation(epilogue: Epilogue | None, n: int) -> str:
    """Return why n columns of B are not whole pairs of blocks, or "" if they are, or the epilogue takes no pairs."""
    if not (epilogue and epilogue.gated and n % (2 * PAIR_COLUMNS)):
        return ""
    return f"n is {n}: the epilogue takes pairs of {PAIR_COLUMNS} columns of B, so n must be a multiple of {2 * PAIR_COLUMNS}"


def columns_of_d(epilogue: Epilogue | None, n: int) -> int:
    """Return the columns of D for n columns of B: half of them for a gated pair."""
    return n // 2 if epilogue and epilogue.gated else n


def _parts(document: Mapping[str, Any]) -> tuple[tuple[Input, ...], tuple[Node, ...], int, tuple[Output, ...]]:
    if not isinstance(document, dict) or document.keys() - {"result", "outputs"} != {"inputs", "nodes"}:
        raise EpilogueError("the text of an expression must have inputs and nodes")
    inputs = tuple(_input(*entry) for entry in document["inputs"])
    if len({one.name for one in inputs}) < len(inputs):
        raise EpilogueError("two inputs have the same name")
    nodes: list[Node] = []
    if not 1 <= len(document["nodes"]) <= MAX_NODES:
        raise EpilogueError(f"the text of an expression must have 1 to {MAX_NODES} nodes")
    for op, *rest in document["nodes"]:
        nodes.append(_node(op, rest, len(inputs), nodes))
    outputs = tuple(_output(*entry, count=len(nodes)) for entry in document.get("outputs", ()))
    result = document.get("result", len(nodes) - 1)
    if type(result) is not int or not 0 <= result < len(nodes):
        raise EpilogueError("the result of an expression is not a node")
    return inputs, tuple(nodes), result, outputs


def _output(node: int, dtype: str, reduce: str, *, count: int) -> Output:
    legal = (*OUTPUTS, "") if not reduce else ("",)
    if type(node) is not int or not 0 <= node < count or dtype not in legal or reduce not in (*REDUCTIONS, ""):
        raise EpilogueError(f"output {node!a:.20} has type {dtype!a:.20} and reduction {reduce!a:.20}")
    return Output(node, dtype, reduce)


def _input(name: str, kind: str, dtype: str = "") -> Input:
    check_name(name)
    if kind not in KINDS or (dtype and dtype not in OUTPUTS) or (kind == "scalar" and dtype):
        raise EpilogueError(f"input {name} has kind {kind!a:.20} and type {dtype!a:.20}")
    return Input(name, kind, dtype)


def check_name(name: str) -> None:
    """Raise EpilogueError if an input cannot have this name."""
    if isinstance(name, str) and _OF_OUTPUT.fullmatch(name):
        raise EpilogueError(f"no input can be named {name}: that is the name of an output")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise EpilogueError(f"input {name!a:.40} is malformed: use a to z, 0 to 9 and _, at most 32")
    if name in RESERVED:
        raise EpilogueError(f"no input can be named {name}: it is an argument of a product")


def _node(op: str, rest: list[Any], inputs: int, before: Sequence[Node]) -> Node:
    if op == "constant":
        (value,) = rest
        if type(value) is not float:
            raise EpilogueError("a constant is not a float")
        return Node(op, (), value)
    count = len(before) if op in OPERATIONS else inputs
    expected = OPERATIONS[op].arguments if op in OPERATIONS else {"acc": 0, "up": 0, "input": 1}[op]
    if len(rest) != expected or not all(type(one) is int and 0 <= one < count for one in rest):
        raise EpilogueError(f"operation {op} has malformed arguments")
    if op in OPERATIONS:
        check_conditions(op, [before[one].is_condition for one in rest])
    return Node(op, tuple(rest))


def check_conditions(op: str, conditions: Sequence[bool]) -> None:
    """Raise EpilogueError if an operation takes a condition as a number, or a number as a condition."""
    expected = [op == "where" and at == 0 for at in range(len(conditions))]
    if expected[:1] == [True] and not conditions[0]:
        raise EpilogueError("the first argument of where must be a comparison, such as x < 0")
    if list(conditions) != expected:
        raise EpilogueError(f"{op} takes numbers, not the result of a comparison: use where(condition, x, y)")
