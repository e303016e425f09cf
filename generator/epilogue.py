"""Epilogues on the side of the generator: the functions that a request names, and the C++ of an expression."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

from generator.errors import RequestError
from hgemm.epilogue import IN_FILE, NONE, Epilogue, EpilogueError, Node, parse_epilogue
from hgemm.problem import AUX_BYTES

# ==== From a request ====


def parse_field(text: str, what: str) -> str:
    """Return the canonical text of a spec's epilogue: that of an expression, or `none`. It runs no file.

    Raises: RequestError, which names the text as `what`.
    """
    if text == NONE:
        return text
    from hgemm.epilogue_language import epilogue_of  # imports `ast` and `inspect`

    if IN_FILE.fullmatch(text.strip()):
        raise RequestError(f"{what} {text!a} names a Python file: only --epilogue on the command line runs one")
    try:
        found = epilogue_of(text)
    except EpilogueError as error:
        raise RequestError(f"{what}: {error}") from None
    return found.text if found else NONE


def texts_of(text: str) -> list[str]:
    """Split a list of epilogues at its commas, but not inside parentheses."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [one.strip() for one in found if one.strip()]


def resolved(text: str, folder: Path) -> str:
    """Return a list of epilogues with each FILE.py:FUNCTION replaced by the text of its expression. This runs the file.

    Fields: a path is relative to `folder`.
    Raises: RequestError with the file and the line.
    """
    return ",".join(_resolved(one, folder) for one in texts_of(text))


def _resolved(text: str, folder: Path) -> str:
    named = IN_FILE.fullmatch(text)
    if not named and re.fullmatch(r"[\w./-]+\.py:?", text):
        raise RequestError(f"epilogue {text} names no function: write {text.rstrip(':')}:FUNCTION")
    if not named:
        return text
    from hgemm.epilogue_language import trace

    return trace(_function((folder / named["file"]).absolute(), named["function"])).text


def _function(path: Path, name: str) -> Any:
    """Run a Python file of the user and return a function of it. The path is absolute, as in messages of `trace`."""
    if not path.is_file():
        raise RequestError(f"epilogue {path}:{name}: the file does not exist")
    from hgemm.epilogue_language import TYPES

    unique = f"_epilogue_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if Path(step.filename) == path]
        place = f"{path}:{lines[-1]}" if lines else f"{path}"
        what = "" if isinstance(error, EpilogueError) else f" cannot be run: {type(error).__name__}"
        is_name = isinstance(error, NameError)
        hint = f"; the types of inputs are {', '.join(TYPES)}, from hgemm.epilogue_language" if is_name else ""
        raise RequestError(f"epilogue {place}{what}: {error}{hint}") from error
    finally:
        sys.dont_write_bytecode = writes
    if not callable(getattr(module, name, None)):
        raise RequestError(f"epilogue {path}:{name}: the file has no function {name}{_offered(module)}")
    return getattr(module, name)


def _offered(module: Any) -> str:
    """Return a hint with the functions that a module defines itself."""
    own = [name for name, one in vars(module).items() if inspect.isfunction(one) and one.__module__ == module.__name__]
    return f"; its functions are {', '.join(own[:8])}{', ...' * (len(own) > 8)}" if own else ""


# ==== For people ====

_HASH = "epilogue_hash"


def shown(text: str) -> dict[str, str]:
    """Return the expression of a spec as people write it, and its hash; {} without an expression."""
    found = expression_of(text)
    return {"epilogue": str(found), _HASH: found.hash} if found else {}


def required_columns(differing: Collection[str]) -> list[str]:
    """Return the columns that a table of kernels needs if these fields differ. A formula may not fit a line, but its hash does."""
    return [_HASH] if "epilogue" in differing else []


# ==== To C++ ====

_INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_LONG_STEPS = 8
"""Steps from which an expression is long: its subtiles share one loop, as with a long activation."""


def expression_of(text: str) -> Epilogue | None:
    """Return the expression of a spec's field `epilogue`, None without one."""
    return parse_epilogue(text)


def operands_bytes(text: str) -> int:
    """Return the bytes that inputs and further outputs add to the problem, a kernel's first argument."""
    found = expression_of(text)
    return AUX_BYTES * (len(found.operands) + len(found.outputs)) if found else 0


def is_long(text: str) -> bool:
    """Return whether an expression has many instructions."""
    found = expression_of(text)
    return bool(found) and found.steps > _LONG_STEPS


def reduces(text: str) -> bool:
    """Return whether an expression has reductions."""
    found = expression_of(text)
    return bool(found and found.reductions)


def count_of(text: str, *kinds: str) -> int:
    """Return how many inputs and further results of an expression are of these kinds."""
    found = expression_of(text)
    return sum(one.kind in kinds for one in (*found.operands, *found.outputs)) if found else 0


def template_values(text: str, dtype_d: str) -> dict[str, Any]:
    """Return the template values of an epilogue: the type of the kernel's problem, and the expression, "" without one."""
    found = expression_of(text)
    count = len(found.operands) + len(found.outputs) if found else 0
    return {
        "problem": f"ProblemWith<{count}>" if count else "Problem",
        "expression": in_cpp(found, dtype_d) if found else "",
    }


def in_cpp(epilogue: Epilogue, dtype_d: str) -> str:
    """Return the struct `Expression` of a Policy."""
    operands = epilogue.operands
    members = [
        f"      Of<hgemm::AuxKind::{one.kind}, hgemm::{'f32' if one.kind == 'scalar' else one.of(dtype_d)}, {at}> {one.name}_;"
        for at, one in enumerate(operands)
    ]
    loads = "".join(f" {one.name}_.load(at);" for one in operands)
    matrices = sum(one.kind == "matrix" for one in operands)
    accumulators = "float acc, float up" if epilogue.gated else "float acc, float"
    addend, halved = _addend(epilogue), _halved(epilogue)
    exchanges = "".join(
        f" {one.name}_.{'template exchange<ADDED>' if one.name == halved else 'exchange'}(loaded.{one.name}_, at);"
        for one in operands
    )
    lines = [f"      {_step(epilogue, at)}" for at in range(len(epilogue.nodes)) if epilogue.nodes[at].op not in _PLAIN]
    if addend:
        sum_of = f"float const x{addend[0]} = "
        lines = [line.replace(sum_of, f"{sum_of}ADDED ? acc : ") for line in lines]
    if addend and halved:
        whole = f"hgemm::expression::gelu(x{addend[0]})"
        lines = [
            line.replace(whole, f"ADDED ? hgemm::expression::gelu_of_half(x{addend[0]}) : {whole}") for line in lines
        ]
    return "\n".join(
        [
            *(f"  // {line}" for line in _wrapped(epilogue.formula)),
            "  struct Expression {",
            f"    static constexpr int operands = {len(operands) + len(epilogue.outputs)}, matrices = {matrices};",
            f"    static constexpr bool is_long = {'true' if epilogue.steps > _LONG_STEPS else 'false'};",
            f"    static constexpr int accumulators = {2 if epilogue.gated else 1}, reductions = {len(epilogue.row_reductions)};",
            f"    static constexpr int column_reductions = {len(epilogue.column_reductions)};",
            f"    static constexpr bool adds_first = {'true' if addend else 'false'}, halves = {'true' if halved else 'false'};",
            "",
            "    template <template <hgemm::AuxKind, class, int> class Of>",
            "    struct Inputs {",
            *members,
            "      template <class Place>",
            f"      HGEMM_DEVICE void load(Place const& at) {{{loads} }}",
            "      template <bool ADDED = false, class Loaded, class Place>",
            f"      HGEMM_DEVICE void exchange(Loaded const& loaded, Place const& at) {{{exchanges} }}",
            "    };",
            "",
            *_outputs(epilogue, dtype_d),
            *(
                (
                    "    template <class Given, class... At>",
                    "    HGEMM_DEVICE static float addend(Given const& given, At... at) {",
                    f"      return {_formula(epilogue, epilogue.nodes[addend[1]])};",
                    "    }",
                )
                if addend
                else ()
            ),
            "    template <bool ADDED = false, class Given, class Out, class... At>",
            f"    HGEMM_DEVICE static float apply({accumulators}, Given const& given, Out& outputs, "
            "hgemm::Problem const& problem, At... at) {",
            *lines,
            *(f"      outputs.{one.name}_.put({_name(epilogue, one.node)}, at...);" for one in epilogue.outputs),
            f"      return {_name(epilogue, epilogue.result)};",
            "    }",
            "  };",
        ]
    )


def _outputs(epilogue: Epilogue, dtype_d: str) -> list[str]:
    """Return the lines that declare the results after D."""
    if not epilogue.outputs:
        return [
            "    template <template <hgemm::OutKind, class, int, int> class Of>",
            "    using Outputs = hgemm::NoOutputs;",
            "",
        ]
    members, slots = [], [("", 0)] * len(epilogue.reductions)
    slot_of = {one.name: slot for slot, one in enumerate(epilogue.reductions)}
    for at, one in enumerate(epilogue.outputs, len(epilogue.operands)):
        kind = f"hgemm::OutKind::{one.function if one.reduce else 'matrix'}"
        members.append(f"      Of<{kind}, hgemm::{one.of(dtype_d)}, {at}, {slot_of.get(one.name, -1)}> {one.name}_;")
        if one.reduce:
            slots[slot_of[one.name]] = (kind, at)
    names = [f"{one.name}_" for one in epilogue.outputs]
    chosen = [
        f"    HGEMM_DEVICE static constexpr {kind} {name}(int slot) {{ return {_by_slot([slot[at] for slot in slots])}; }}"
        for at, (kind, name) in enumerate((("hgemm::OutKind", "reduction_kind"), ("int", "reduction_index")))
        if slots
    ]
    return [
        "    template <template <hgemm::OutKind, class, int, int> class Of>",
        "    struct Outputs {",
        *members,
        "      template <class Place>",
        f"      HGEMM_DEVICE void store(Place const& at) const {{ {' '.join(f'{name}.store(at);' for name in names)} }}",
        "      template <class Place, class Partials>",
        "      HGEMM_DEVICE void reduce(Place const& at, Partials& partials) const {",
        *(f"        {name}.reduce(at, partials);" for name in names),
        "      }",
        "    };",
        *chosen,
        "",
    ]


def _addend(epilogue: Epilogue) -> tuple[int, int] | None:
    """Return the nodes of a sum and of the row or column that it adds to the accumulator.

    None if the first step is another one, or if something else reads the accumulator, too.
    """
    nodes, inputs = epilogue.nodes, epilogue.inputs
    accumulator = [at for at, node in enumerate(nodes) if node.op == "acc"]
    readers = [at for at, node in enumerate(nodes) if node.op != "input" and {*accumulator} & {*node.arguments}]
    if (
        epilogue.gated
        or len(readers) != 1
        or {*accumulator} & {epilogue.result, *(one.node for one in epilogue.outputs)}
    ):
        return None
    (reader,) = readers
    for at in nodes[reader].arguments if nodes[reader].op == "add" else ():
        if nodes[at].op == "input" and inputs[nodes[at].arguments[0]].kind in ("row", "column"):
            return reader, at
    return None


def _halved(epilogue: Epilogue) -> str:
    """Return the name of the row or column that is added first, if the sum is only the argument of gelu; "" otherwise.

    The kernel halves both terms of such a sum: gelu takes one instruction less then.
    """
    addend = _addend(epilogue)
    if not addend:
        return ""
    total, term = addend
    nodes, results = epilogue.nodes, {epilogue.result, *(one.node for one in epilogue.outputs)}
    readers = {at: [node.op for node in nodes if node.op != "input" and at in node.arguments] for at in addend}
    if readers[total] != ["gelu"] or readers[term] != ["add"] or results & {*addend}:
        return ""
    return epilogue.inputs[nodes[term].arguments[0]].name


def _by_slot(values: list[Any]) -> str:
    *others, last = values
    return "".join(f"slot == {at} ? {value} : " for at, value in enumerate(others)) + f"{last}"


_PLAIN = ("acc", "up", "constant")
"""Nodes that need no variable."""
_MAX_COLUMNS = 116


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) > _MAX_COLUMNS:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _name(epilogue: Epilogue, at: int) -> str:
    node = epilogue.nodes[at]
    if node.op == "constant":
        text = f"{node.value!r}"
        return f"{text}f" if "." in text or "e" in text else f"{text}.f"
    return node.op if node.op in ("acc", "up") else f"x{at}"


def _step(epilogue: Epilogue, at: int) -> str:
    """Return the declaration of the result of a node."""
    node = epilogue.nodes[at]
    kind = "bool" if node.is_condition else "float"
    return f"{kind} const x{at} = {_formula(epilogue, node)};"


def _formula(epilogue: Epilogue, node: Node) -> str:
    if node.op == "input":
        given = epilogue.inputs[node.arguments[0]]
        return f"problem.{given.name}" if given.in_problem else f"given.{given.name}_.number(at...)"
    names = [_name(epilogue, one) for one in node.arguments]
    if node.op in _INFIX:
        return f"{names[0]} {_INFIX[node.op]} {names[1]}"
    if node.op == "neg":
        return f"-({names[0]})"
    if node.op == "where":
        return f"{names[0]} ? {names[1]} : {names[2]}"
    if node.op in ("f16", "bf16"):
        return f"hgemm::expression::rounded<hgemm::{node.op}>({names[0]})"
    return f"hgemm::expression::{node.op}({', '.join(names)})"
