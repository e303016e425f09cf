"""Semantics of PTX instructions: one table of syntax, types, effects on memory, ordering, and C++.

A row names its instructions by a pattern over opcode and modifiers. The first operands are results (`writes`), the others are
read. `cpp` is an expression of the operands a, b, c in the type of the instruction, or a function that returns statements.
Instructions that no row names are refused: nothing is skipped in silence.

Source: PTX ISA 9.0, chapter "Instruction Set"; `isa` names the section of each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from generator.ptx.parser import (
    Address,
    Instruction,
    Number,
    Operand,
    Pair,
    PtxError,
    Register,
    Symbol,
    Vector,
    bits_of_type,
)
from generator.ptx.writer import C_TYPES, Writer

Statements = Iterable[str]
Emit = Callable[[re.Match, Instruction, Writer], Statements]


@dataclass(frozen=True)
class InstructionRow:
    """The semantics of a group of instructions.

    Fields: `memory` says which state spaces are read or written; `ordering` says what the instruction orders, as the executor
        checks it; both are empty for arithmetic.
    """

    pattern: str
    cpp: str | Emit
    isa: str
    writes: int = 1
    result: str = ""
    memory: str = ""
    ordering: str = ""


@cache
def row_of(opcode: str) -> tuple[InstructionRow, re.Match]:
    """Return the row of an opcode. Raises: PtxError if there is none."""
    name = opcode.partition(".")[0]
    for row, pattern in _compiled().get(name, ()):
        match = pattern.fullmatch(opcode)
        if match:
            return row, match
    raise PtxError(f"PTX instruction {opcode} is not supported")


@cache
def _compiled() -> dict[str, list[tuple[InstructionRow, re.Pattern]]]:
    found: dict[str, list[tuple[InstructionRow, re.Pattern]]] = {}
    for row in TABLE:
        for name in re.match(r"\(\?(?::|P<name>)([\w|]+)\)|(\w+)", row.pattern).expand(r"\1\2").split("|"):
            found.setdefault(name, []).append((row, re.compile(row.pattern)))
    return found


def statements(instruction: Instruction, writer: Writer) -> Statements:
    """Return the C++ of one instruction, without its predicate. Raises: PtxError with its line."""
    try:
        row, match = row_of(instruction.opcode)
        if not isinstance(row.cpp, str):
            return [*row.cpp(match, instruction, writer)]
        return [*_expression(row, match, instruction, writer)]
    except PtxError as error:
        raise PtxError(f"{error}, at line {instruction.line} of the PTX") from None
    except (IndexError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise PtxError(f"{instruction.opcode} has unknown operands, at line {instruction.line} of the PTX") from error


_DIRECTIONS = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
_PLACE = re.compile(r"\{([abcde])(?::(\w+))?\}")


def _expression(row: InstructionRow, match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    groups = match.groupdict()
    kind = groups["t"]
    line, operands = instruction.line, instruction.operands
    target, *sources = operands

    def read(place: re.Match) -> str:
        return writer.read(sources["abcde".index(place[1])], place[2] or kind, line)

    value = _PLACE.sub(read, row.cpp.replace("{T}", C_TYPES[kind]))
    result = row.result or kind
    if groups.get("rounding") not in (None, "rn"):
        value = f"ptx::directed<{_DIRECTIONS[groups['rounding']]}>([&] {{ return {value}; }})"
    if groups.get("sat"):
        value = f"ptx::saturated({value})"
    if groups.get("ftz") and result == "f32":
        value = f"ptx::flush({value})"
    return [writer.write(target, result, value, line)]


# ==== Functions of rows ====

_HALVES = {"f16": "ptx::F16", "bf16": "ptx::BF16"}


def _halves(value: str) -> Emit:
    """Return a function of a row: an expression of x, y and z, as doubles, for each half of the operands."""

    def emit(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
        kind, line = "b32" if match["pair"] else "b16", instruction.line
        target, *sources = instruction.operands
        operands = ", ".join(writer.read(one, kind, line) for one in sources)
        names = ", ".join(f"double {name}" for name in "xyz"[: len(sources)])
        result = f"ptx::relu({value})" if match.groupdict().get("relu") else value
        result = f"ptx::saturated({result})" if match.groupdict().get("sat") else result
        each = f"ptx::halves<{_HALVES[match['t']]}>([]({names}) -> double {{ return {result}; }}, {operands})"
        return [writer.write(target, kind, each, line)]

    return emit


def _shift(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, way, line = match["t"], instruction.opcode[2], instruction.line
    target, value, by = instruction.operands
    shifted = writer.read(value, kind, line)
    if isinstance(by, Number) and 0 <= by.value < bits_of_type(kind):  # the compiler takes longer for a function
        return [writer.write(target, kind, f"{shifted} {'<<' if way == 'l' else '>>'} {by.value}", line)]
    function = f"ptx::sh{way}<{C_TYPES[kind]}>({shifted}, {writer.read(by, 'u32', line)})"
    return [writer.write(target, kind, function, line)]


def _wide(operator: str) -> Emit:
    def emit(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
        kind, line = match["t"], instruction.line
        wide = {"16": "32", "32": "64"}[kind[1:]]
        target, *sources = instruction.operands
        a, b = (f"{C_TYPES[kind[0] + wide]}({writer.read(one, kind, line)})" for one in sources[:2])
        more = f" + {writer.read(sources[2], kind[0] + wide, line)}" if operator == "mad" else ""
        return [writer.write(target, kind[0] + wide, f"{a} * {b}{more}", line)]

    return emit


_COMPARED = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_JOINED = {"and": "&", "or": "|", "xor": "^"}


def _compare(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, how, line = match["t"], match["how"], instruction.line
    target, left, right, *further = instruction.operands
    a, b = writer.read(left, kind, line), writer.read(right, kind, line)
    if kind in _HALVES:
        a, b, kind = f"{_HALVES[kind]}::widen({a})", f"{_HALVES[kind]}::widen({b})", "f32"
    if how in ("num", "nan"):
        found = f"({a} == {a} && {b} == {b})"
        found = found if how == "num" else f"!{found}"
    elif kind.startswith("f") and how == "ne":
        found = f"({a} < {b} || {a} > {b})"
    elif kind.startswith("f") and how == "neu":
        found = f"!({a} == {b})"
    elif kind.startswith("f") and how.endswith("u"):
        found = f"!({a} {_COMPARED[{'lt': 'ge', 'le': 'gt', 'gt': 'le', 'ge': 'lt'}.get(how[:2], 'ne')]} {b})"
        found = f"({a} == {b} || {a} != {a} || {b} != {b})" if how == "equ" else found
    else:
        found = f"({a} {_COMPARED[how]} {b})"
    joined = f" {_JOINED[match['join']]} {writer.read(further[0], 'pred', line)}" if match["join"] else ""
    if isinstance(target, Pair):
        yield writer.write(target.second, "pred", f"!{found}{joined}", line)
        target = target.first
    yield writer.write(target, "pred", f"{found}{joined}", line)


def _move(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, line = match["t"], instruction.line
    target, source = instruction.operands
    if isinstance(source, Vector):
        parts, width = source.parts, int(kind[1:]) // len(source.parts)
        value = " | ".join(
            f"{C_TYPES[kind]}({writer.read(one, f'b{width}', line)}) << {width * i}" for i, one in enumerate(parts)
        )
        return [writer.write(target, kind, value, line)]
    if isinstance(target, Vector):
        width = int(kind[1:]) // len(target.parts)
        whole = writer.read(source, kind, line)
        parts = [writer.write(one, f"b{width}", f"whole >> {width * i}", line) for i, one in enumerate(target.parts)]
        return ["{", f"  {C_TYPES[kind]} const whole = {whole};", *parts, "}"]
    return [writer.move(target, source, kind, line)]


_TO_INTEGERS = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _convert(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    to, source, line = match["to"], match["t"], instruction.line
    target, *sources = instruction.operands
    rounding = match["rounding"] or ""
    narrow = to.removesuffix("x2")
    if narrow in _HALVES and rounding not in _TO_INTEGERS:
        values = [writer.read(one, source, line) for one in sources]
        if source in _HALVES:
            values = [f"{_HALVES[source]}::widen({value})" for value in values]
        halves = [_rounded(value, narrow, match) for value in values]
        if to != narrow:
            return [writer.write(target, "b32", f"ptx::pair_of({halves[1]}, {halves[0]})", line)]
        return [writer.write(target, "b16", halves[0], line)]
    value = writer.read(sources[0], source, line)
    if to == "tf32":
        function = {"rna": "rounded_tf32", "rn": "rounded_tf32_even", "rz": "cut_tf32"}[rounding]
        return [writer.write(target, "b32", f"ptx::{function}({value})", line)]
    if source in _HALVES:
        value, source = f"{_HALVES[source]}::widen({value})", "f32"
    if to[0] in "su" and source[0] == "f":
        value = f"ptx::integer_of<{C_TYPES[to]}>(__builtin_{_TO_INTEGERS[rounding]}({value}))"
    elif rounding in _TO_INTEGERS:
        value = f"__builtin_{_TO_INTEGERS[rounding]}({value})"
        if to in _HALVES:
            return [writer.write(target, "b16", f"ptx::narrow<{_HALVES[to]}>({value})", line)]
    elif match["sat"] and to[0] in "su":
        value = f"ptx::clamped<{C_TYPES[to]}>({value})"
    else:
        value = f"{C_TYPES[to]}({value})"
        if rounding in _DIRECTIONS:
            value = f"ptx::directed<{_DIRECTIONS[rounding]}>([&] {{ return {value}; }})"
    if match["sat"] and to[0] == "f":
        value = f"ptx::saturated({value})"
    if match["ftz"] and to == "f32":
        value = f"ptx::flush({value})"
    return [writer.write(target, to, value, line)]


def _rounded(value: str, kind: str, match: re.Match) -> str:
    """Return the conversion of a number to 16 bits. Widening types need no rounding."""
    direction = {"": "nearest", "rn": "nearest", "rz": "to_zero", "rm": "down", "rp": "up"}[match["rounding"] or ""]
    if match["relu"]:
        value = f"ptx::relu({value})"
    if match["sat"]:
        value = f"ptx::saturated({value})"
    if match["satfinite"]:
        return f"ptx::finite<{_HALVES[kind]}>(ptx::narrow<{_HALVES[kind]}>({value}, ptx::Direction::{direction}))"
    return f"ptx::narrow<{_HALVES[kind]}>({value}, ptx::Direction::{direction})"


def _to_generic(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    target, source = instruction.operands
    value = writer.read(source, "u64" if match["t"] == "u64" else "u32", instruction.line)
    if match["space"] == "shared":
        value = f"ptx::{'shared_of_generic' if match['to'] else 'generic_of_shared'}({value})"
    return [writer.write(target, "u64", value, instruction.line)]


# ---- Memory ----

_SPACES = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared_cluster",
    "": "generic",
}


def _load(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, line = match["t"], instruction.line
    target, source = instruction.operands[:2]
    parts = target.parts if isinstance(target, Vector) else (target,)
    if int(match["count"] or 1) != len(parts):
        raise PtxError(f"{instruction.opcode} has {len(parts)} registers")
    size = writer.bytes_of(kind)
    whole = size * len(parts)
    yield "{"
    yield f"  {C_TYPES[_unsigned(kind)]} word[{len(parts)}];"
    space = match["space"] or ""
    if space == "param" and writer.is_argument(source):
        yield "  memset(word, 0, sizeof word);"  # the result of printf
    elif space in ("param", "local"):
        yield f"  memcpy(word, reinterpret_cast<void const*>({writer.address(source, line)}), {whole});"
    else:
        yield f"  ptx::load({line}, ptx::At::{_SPACES[space]}, word, {writer.address(source, line)}, {whole});"
    for i, part in enumerate(parts):
        value = f"{C_TYPES[kind]}(word[{i}])" if kind[0] == "s" else f"word[{i}]"
        yield "  " + writer.write(part, kind if kind[0] == "s" else _unsigned(kind), value, line)
    yield "}"


def _unsigned(kind: str) -> str:
    return "u" + kind.lstrip("bsuf")


def _store(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, line = match["t"], instruction.line
    target, source = instruction.operands[:2]
    parts = source.parts if isinstance(source, Vector) else (source,)
    if int(match["count"] or 1) != len(parts):
        raise PtxError(f"{instruction.opcode} has {len(parts)} registers")
    values = ", ".join(f"{C_TYPES[_unsigned(kind)]}({writer.read(one, _unsigned(kind), line)})" for one in parts)
    whole = writer.bytes_of(kind) * len(parts)
    yield f"{{ {C_TYPES[_unsigned(kind)]} const word[] = {{{values}}};"
    yield f"  ptx::store({line}, ptx::At::{_SPACES[match['space'] or '']}, {writer.address(target, line)}, word, {whole}); }}"


def _store_async(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, line = _unsigned(match["t"]), instruction.line
    target, source, barrier = instruction.operands
    parts = source.parts if isinstance(source, Vector) else (source,)
    if int(match["count"] or 1) != len(parts):
        raise PtxError(f"{instruction.opcode} has {len(parts)} registers")
    if (whole := writer.bytes_of(kind) * len(parts)) > 16:
        raise PtxError(f"{instruction.opcode} stores {whole} bytes; the limit is 16")
    values = ", ".join(f"{C_TYPES[kind]}({writer.read(one, kind, line)})" for one in parts)
    yield f"{{ {C_TYPES[kind]} const word[] = {{{values}}};"
    yield f"  ptx::store_async({line}, {writer.address(target, line)}, word, {whole}, {writer.address(barrier, line)}); }}"


def _store_local(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    kind, line = match["t"], instruction.line
    target, source = instruction.operands[:2]
    parts = source.parts if isinstance(source, Vector) else (source,)
    values = ", ".join(f"{C_TYPES[_unsigned(kind)]}({writer.read(one, _unsigned(kind), line)})" for one in parts)
    yield f"{{ {C_TYPES[_unsigned(kind)]} const word[] = {{{values}}};"
    yield f"  memcpy(reinterpret_cast<void*>({writer.address(target, line)}), word, sizeof word); }}"


_UPDATES = {
    "add": "old + a",
    "min": "old < a ? old : a",
    "max": "old > a ? old : a",
    "and": "old & a",
    "or": "old | a",
    "xor": "old ^ a",
    "exch": "a",
    "cas": "old == a ? b : old",
    "inc": "old >= a ? T(0) : T(old + 1)",
    "dec": "old == 0 || old > a ? a : T(old - 1)",
    "ld": "old",
    "st": "a",
}
"""The new number in memory, from the old one and the operands a and b."""
_FLOAT_UPDATES = {
    "f32": "ptx::bits32(ptx::f32(old) + ptx::f32(a))",
    "f64": "ptx::bits64(ptx::f64(old) + ptx::f64(a))",
    **{
        kind: f"ptx::halves<{half}>([](double x, double y) {{ return x + y; }}, old, a)"
        for kind, half in _HALVES.items()
    },
}


def _ordered(words: str) -> tuple[str, bool, bool]:
    """Return the space of an atomic operation, whether it releases before, and whether it acquires after.

    An order in the scope of a CTA or cluster orders nothing in global memory: see the rows of fences.
    """
    named = words.split(".")[1:]
    space = next((one for one in named if one in _SPACES), "")
    wide = space.startswith("shared") or not {"cta", "cluster"} & set(named)
    orders = {one for one in named if one in ("acquire", "release", "acq_rel")} if wide else set()
    return space, bool(orders & {"release", "acq_rel"}), bool(orders & {"acquire", "acq_rel"})


def _atomic(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line, kind, how = instruction.line, match["t"], match["op"] or match["name"]
    space, releases, acquires = _ordered(match["words"])
    operands = list(instruction.operands)
    target = operands.pop(0) if match["name"] in ("atom", "ld") else None
    place, *values = operands
    element = kind.removesuffix("x2")
    word = f"b{2 * bits_of_type(element) if kind.endswith('x2') else bits_of_type(element)}"
    word = kind if kind[0] in "su" else word
    update = _FLOAT_UPDATES[element] if how == "add" and element[0] in "fb" else _UPDATES[how]
    if isinstance(place, Vector) or isinstance(target, Vector) or (values and isinstance(values[0], Vector)):
        raise PtxError(f"{instruction.opcode} of vectors is not supported")
    fence = f"ptx::perform({line}, Kind::global_fence);"
    if releases:
        yield fence
    count = {"cas": 2, "ld": 0}.get(how, 1)
    given = "".join(f", {C_TYPES[word]}({writer.read(one, word, line)})" for one in values[:count])
    reads, writes = str(how != "st").lower(), str(how != "ld").lower()
    call = (
        f"ptx::atomic<{C_TYPES[word]}>({line}, ptx::At::{_SPACES[space]}, {writer.address(place, line)}, {reads}, {writes}, "
        f"[](auto old, auto a, auto b) {{ using T = decltype(old); (void)a; (void)b; return T({update}); }}{given})"
    )
    yield writer.write(target, word, call, line) if target else f"{call};"
    if acquires:
        yield fence


def _copy_async(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    target, source, size, *further = instruction.operands
    if not isinstance(size, Number):
        raise PtxError("cp.async needs a constant size")
    copied = str(size.value)
    if further and isinstance(further[0], Register) and further[0].type == "pred":
        copied = f"({writer.read(further[0], 'pred', line)} ? 0u : {size.value}u)"
    elif further and not match["hint"]:
        copied = writer.read(further[0], "u32", line)
    return [
        f"ptx::cp_async({line}, {writer.address(target, line)}, {writer.address(source, line)}, {size.value}, {copied});"
    ]


def _call(function: str, *kinds: str, writes: str = "") -> Emit:
    """Return a function of a row: a call with the line and the operands. Kind "address" is [base + offset]."""

    def emit(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
        line = instruction.line
        operands = list(instruction.operands)
        target = operands.pop(0) if writes else None
        arguments = [
            writer.address(one, line) if kind == "address" else writer.read(one, kind, line)
            for one, kind in zip(operands, kinds, strict=False)
        ]
        call = f"ptx::{function}({', '.join([str(line), *arguments])})"
        return [writer.write(target, writes, call, line) if target is not None else f"{call};"]

    return emit


def _perform(kind: str, flag: str = "true") -> Emit:
    """Return a function of a row: an operation of the executor whose only operand, if any, is a number."""

    def emit(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
        number = writer.read(instruction.operands[0], "u32", instruction.line) if instruction.operands else "0"
        return [f"ptx::perform({instruction.line}, Kind::{kind}, {number}, {flag});"]

    return emit


def _nothing(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    return [";"]


def _barrier(kind: str) -> Emit:
    def emit(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
        line = instruction.line
        numbers = [writer.read(one, "u32", line) for one in instruction.operands]
        number, threads = numbers[0] if numbers else "0", numbers[1] if len(numbers) > 1 else "0"
        return [f"ptx::perform({line}, Kind::{kind}, {number}, true, {threads});"]

    return emit


# ---- Warps ----


def _elect(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    target, members = instruction.operands
    lane, elected = (target.first, target.second) if isinstance(target, Pair) else (Register("_", ""), target)
    line = instruction.line
    call = f"ptx::elect({line}, {writer.read(members, 'u32', line)}, lane)"
    yield f"{{ uint32_t lane = 0; bool const elected = {call};"
    yield f"  {writer.write(lane, 'u32', 'lane', line)} {writer.write(elected, 'pred', 'elected', line)} }}"


_MODES = {"up": "up", "down": "down", "bfly": "butterfly", "idx": "index"}


def _shuffle(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    target, *sources = instruction.operands
    line = instruction.line
    value, in_range = (target.first, target.second) if isinstance(target, Pair) else (target, Register("_", ""))
    operands = ", ".join(writer.read(one, "u32", line) for one in sources)
    yield f"{{ bool in_range; uint32_t const word = ptx::shuffle({line}, Shuffle::{_MODES[match['mode']]}, {operands}, in_range);"
    yield f"  {writer.write(value, 'b32', 'word', line)} {writer.write(in_range, 'pred', 'in_range', line)} }}"


def _vote(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    target, predicate, members = instruction.operands
    line = instruction.line
    call = f"ptx::vote({line}, {writer.read(predicate, 'pred', line)}, {writer.read(members, 'u32', line)}, voters)"
    found = {"any": "lanes != 0", "all": "lanes == voters", "uni": "lanes == 0 || lanes == voters", "ballot": "lanes"}
    written = writer.write(target, "u32" if match["mode"] == "ballot" else "pred", found[match["mode"]], line)
    return [f"{{ uint32_t voters = 0; uint32_t const lanes = {call}; (void)lanes; {written} }}"]


_REDUCED = {
    "add": "a + b",
    "min": "a < b ? a : b",
    "max": "a > b ? a : b",
    "and": "a & b",
    "or": "a | b",
    "xor": "a ^ b",
}


def _reduce(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    target, value, members = instruction.operands
    kind, line = C_TYPES[match["t"]], instruction.line
    of_two = f"{kind} const a = {kind}(x), b = {kind}(y); return uint32_t({_REDUCED[match['op']]});"
    combine = f"[](uint32_t x, uint32_t y) {{ {of_two} }}"
    call = f"ptx::reduce({line}, {combine}, {writer.read(value, 'b32', line)}, {writer.read(members, 'u32', line)})"
    return [writer.write(target, "b32", call, line)]


# ---- Barriers in shared memory, TMA ----


def _in_cluster(match: re.Match) -> str:
    return str(match["scope"] == "cluster").lower()


def _mbarrier_arrive(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    operands = list(instruction.operands)
    target = None if isinstance(operands[0], Address) else operands.pop(0)
    more = writer.read(operands[1], "u32", line) if len(operands) > 1 else ""
    counts = f"{more or 0}, 1" if match["expects"] else f"0, {more or 1}"
    counts += f", {_in_cluster(match)}"
    call = f"ptx::mbarrier_arrive({line}, ptx::At::{_SPACES[match['space'] or '']}, {writer.address(operands[0], line)}, {counts})"
    return [writer.write(target, "b64", call, line) if target is not None else f"{call};"]


def _mbarrier_expect(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line, (place, size) = instruction.line, instruction.operands
    space = f"ptx::At::{_SPACES[match['space'] or '']}"
    return [f"ptx::mbarrier_expect({line}, {space}, {writer.address(place, line)}, {writer.read(size, 'u32', line)});"]


def _mbarrier_test(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    """The parity of a phase is its state, so both forms of the instruction are the same."""
    target, place, parity = instruction.operands[:3]
    line = instruction.line
    phase = f"uint32_t({writer.read(parity, 'u64', line)})"
    call = f"ptx::mbarrier_test({line}, {writer.address(place, line)}, {phase}, {_in_cluster(match)})"
    return [writer.write(target, "pred", call, line)]


def _mbarrier_wait(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    """The executor blocks the thread until the phase ends, so that a loop around this instruction runs once."""
    target, address, parity = instruction.operands[:3]
    line = instruction.line
    phase = f"uint32_t({writer.read(parity, 'u64', line)})"
    yield f"ptx::mbarrier_wait({line}, {writer.address(address, line)}, {phase}, {_in_cluster(match)});"
    yield writer.write(target, "pred", "true", line)


def _coordinates(address: Operand, writer: Writer, line: int) -> str:
    if not isinstance(address, Address) or not 1 <= len(address.coordinates) <= 5:
        raise PtxError("tensor copies need one to five coordinates")
    coordinates = ", ".join(writer.read(one, "s32", line) for one in address.coordinates)
    return f"{writer.address(address, line)}, ptx::box_at({coordinates})"


def _tma_load(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    target, source, barrier, *further = instruction.operands
    ranks = writer.read(further[0], "u16", line) if match["multicast"] else "0"
    box = _coordinates(source, writer, line)
    return [f"ptx::tma_load({line}, {writer.address(target, line)}, {box}, {writer.address(barrier, line)}, {ranks});"]


def _tma_store(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    target, source = instruction.operands[:2]
    return [f"ptx::tma_store({line}, {_coordinates(target, writer, line)}, {writer.address(source, line)});"]


# ---- Matrices ----


def _ldmatrix(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    target, source = instruction.operands
    transpose = "true" if ".trans" in instruction.opcode else "false"
    parts = target.parts if isinstance(target, Vector) else (target,)
    yield f"{{ uint32_t word[4]; ptx::ldmatrix({line}, word, {writer.address(source, line)}, {int(match['count'])}, {transpose});"
    yield "  " + " ".join(writer.write(one, "b32", f"word[{i}]", line) for i, one in enumerate(parts)) + " }"


def _stmatrix(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    target, source = instruction.operands
    transpose = "true" if ".trans" in instruction.opcode else "false"
    parts = source.parts if isinstance(source, Vector) else (source,)
    values = ", ".join(writer.read(one, "b32", line) for one in parts)
    yield f"{{ uint32_t const word[] = {{{values}}};"
    yield f"  ptx::stmatrix({line}, {writer.address(target, line)}, word, {int(match['count'])}, {transpose}); }}"


_ELEMENTS = {"f16": "f16", "bf16": "bf16", "tf32": "tf32", "f32": "f32"}


def _words(operands: Iterable[Operand], writer: Writer, line: int, count: int) -> str:
    values = [writer.read(one, "b32", line) for one in operands]
    return ", ".join(values + ["0"] * (count - len(values)))


def _mma(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    """Shapes with fewer registers than m16n8k16 get zeros, which add nothing."""
    line = instruction.line
    d, a, b, c = (one.parts for one in instruction.operands)
    kind, acc, depth = match["t"], match["acc"], int(match["k"])
    if match["from"] != acc or match["tb"] != kind or (kind, depth) not in _MMA_DEPTHS:
        raise PtxError(f"{instruction.opcode} is not supported")
    yield f"{{ uint32_t d[] = {{{_words(c, writer, line, len(d))}}};"
    yield f"  uint32_t const a[] = {{{_words(a, writer, line, 4)}}}, b[] = {{{_words(b, writer, line, 2)}}};"
    yield f"  ptx::mma({line}, Element::{_ELEMENTS[kind]}, Element::{_ELEMENTS[acc]}, {depth}, d, a, b);"
    yield "  " + " ".join(writer.write(one, "b32", f"d[{i}]", line) for i, one in enumerate(d)) + " }"


_MMA_DEPTHS = {("f16", 16), ("f16", 8), ("bf16", 16), ("bf16", 8), ("tf32", 8)}


def _wmma_load(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    target, source, pitch = instruction.operands
    of_a, by_rows = (str(match[name] == value).lower() for name, value in (("matrix", "a"), ("rows", "row")))
    call = f"{line}, word, {writer.address(source, line)}, {writer.read(pitch, 'u32', line)}, {of_a}, {by_rows}"
    yield f"{{ uint32_t word[4]; ptx::wmma_load({call});"
    values = [f"word[{i}]" if i < 4 else "~0u" for i in range(len(target.parts))]
    yield (
        "  "
        + " ".join(writer.write(one, "b32", value, line) for one, value in zip(target.parts, values, strict=True))
        + " }"
    )


def _wmma(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    """On GPUs, it is two mma.m16n8 side by side: the halves of the registers of d are those of the two."""
    line = instruction.line
    d, a, b, c = (one.parts for one in instruction.operands)
    kind = match["t"] or "f16"
    acc, half = "f32" if match["acc"] == "f32" else "f16", len(d) // 2
    for i in range(2):
        mine = slice(i * half, (i + 1) * half)
        columns = _words(b[2 * i : 2 * i + 2], writer, line, 2)
        yield f"{{ uint32_t d[] = {{{_words(c[mine], writer, line, half)}}};"
        yield f"  uint32_t const a[] = {{{_words(a[:4], writer, line, 4)}}}, b[] = {{{columns}}};"
        yield f"  ptx::mma({line}, Element::{_ELEMENTS[kind]}, Element::{acc}, 16, d, a, b);"
        written = (writer.write(one, "b32", f"d[{j}]", line) for j, one in enumerate(d[mine]))
        yield "  " + " ".join(written) + " }"


def _wgmma(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    line = instruction.line
    d, a, b, scale, *flags = instruction.operands
    signs, transposed = flags[:2], flags[2:]
    if isinstance(a, Vector):
        transposed = [Number(0), *(transposed or [Number(0)])]
    if match["tb"] != match["t"] or any(not isinstance(one, Number) or one.value != 1 for one in signs):
        raise PtxError("wgmma with mixed types or negated operands is not supported")
    n, acc = int(match["n"]), match["acc"]
    if len(d.parts) != n // (2 if acc == "f32" else 4):
        raise PtxError(f"wgmma with n {n} has {len(d.parts)} accumulators")
    majors = [str(bool(one.value)).lower() for one in transposed] or ["false", "false"]
    accumulate = f"bool({scale.value})" if isinstance(scale, Number) else writer.read(scale, "pred", line)
    places = ", ".join(map(str, writer.accumulators(d.parts)))
    yield f"{{ static constexpr uint16_t list[] = {{{places}}};"
    a_list, described = "nullptr", "0"
    if isinstance(a, Vector):
        a_list = "a_list"
        yield f"  static constexpr uint16_t a_list[] = {{{', '.join(map(str, writer.accumulators(a.parts)))}}};"
    else:
        described = writer.read(a, "b64", line)
    yield f"  ptx::wgmma({line}, Element::{_ELEMENTS[match['t']]}, Element::{_ELEMENTS[acc]}, {n}, acc.file, list, {a_list},"
    yield f"    {described}, {writer.read(b, 'b64', line)}, {accumulate}, {majors[0]}, {majors[1]}); }}"


def _wgmma_order(kind: str) -> Emit:
    def emit(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
        number = writer.read(instruction.operands[0], "u32", instruction.line) if instruction.operands else "0"
        if not writer.has_accumulators:
            return [f"ptx::perform({instruction.line}, Kind::{kind}, {number});"]
        return [f"ptx::wgmma_order({instruction.line}, Kind::{kind}, acc.file, {number});"]

    return emit


# ---- Control flow ----


def _branch(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    (target,) = instruction.operands
    if not isinstance(target, Symbol):
        raise PtxError("bra needs a label")
    return [f"goto {writer.label(target.name)};"]


_CALLED = {"vprintf": ";", "__assertfail": "ptx::assertion_failed({line}); return;"}
"""Functions of the CUDA runtime that kernels call: printf prints nothing here, and a failed assert ends its thread."""


def _call_function(match: re.Match, instruction: Instruction, writer: Writer) -> Statements:
    (function,) = instruction.operands
    if not isinstance(function, Symbol) or function.name not in _CALLED:
        raise PtxError(f"a call of {getattr(function, 'name', 'a register')} is not supported: inline the function")
    return [_CALLED[function.name].format(line=instruction.line)]


# ==== The table ====

_INTEGERS = r"(?P<t>[su](?:16|32|64))"
_WORDS = r"(?P<t>[bsu](?:16|32|64)|f32|f64|f16|bf16)"
_ROUNDED = r"(?:\.(?P<rounding>rn|rz|rm|rp))?(?P<ftz>\.ftz)?(?P<sat>\.sat)?"
_HALF = r"\.(?P<t>f16|bf16)(?P<pair>x2)?"
_SPACE = r"(?:\.(?P<space>global|shared::cta|shared::cluster|shared))?"
_ORDER = r"(?P<words>(?:\.(?:relaxed|acquire|release|acq_rel|cta|cluster|gpu|sys|global|shared::cta|shared::cluster|shared))*)"
_NUMBER = r"(?P<t>[bsu](?:16|32|64)|f32|f64|f16x2|bf16x2|f16|bf16)"
_HINTS = r"(?:\.(?:ca|cg|cs|lu|cv|wb|wt|nc|L1::\w+|L2::\w+))*"
_VECTOR = r"(?:\.v(?P<count>[248]))?"
_WIDTH = r"\.(?P<t>[bsuf](?:8|16|32|64))"

_ARITHMETIC = "Integer Arithmetic Instructions"
_FLOATS = "Floating Point Instructions"
_LOGIC = "Logic and Shift Instructions"
_COMPARISON = "Comparison and Selection Instructions"
_DATA = "Data Movement and Conversion Instructions"
_ASYNC = "Data Movement and Conversion Instructions: Asynchronous copy"
_FLOW = "Control Flow Instructions"
_SYNC = "Parallel Synchronization and Communication Instructions"
_MATRIX = "Warp Level Matrix Multiply-Accumulate Instructions"
_WGMMA = "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"
_MISC = "Miscellaneous Instructions"

TABLE: tuple[InstructionRow, ...] = (
    # ---- Integers ----
    InstructionRow(rf"add\.{_INTEGERS}", "{a} + {b}", _ARITHMETIC),
    InstructionRow(rf"sub\.{_INTEGERS}", "{a} - {b}", _ARITHMETIC),
    InstructionRow(rf"mul\.lo\.{_INTEGERS}", "{a} * {b}", _ARITHMETIC),
    InstructionRow(r"mul\.hi\.(?P<t>s32)", "ptx::mul_hi<int64_t>({a}, {b})", _ARITHMETIC),
    InstructionRow(r"mul\.hi\.(?P<t>u32)", "ptx::mul_hi<uint64_t>({a}, {b})", _ARITHMETIC),
    InstructionRow(r"mul\.hi\.(?P<t>s64)", "ptx::mul_hi<__int128>({a}, {b})", _ARITHMETIC),
    InstructionRow(r"mul\.hi\.(?P<t>u64)", "ptx::mul_hi<unsigned __int128>({a}, {b})", _ARITHMETIC),
    InstructionRow(r"mul\.wide\.(?P<t>[su](?:16|32))", _wide("mul"), _ARITHMETIC),
    InstructionRow(rf"mad\.lo\.{_INTEGERS}", "{a} * {b} + {c}", _ARITHMETIC),
    InstructionRow(r"mad\.wide\.(?P<t>[su](?:16|32))", _wide("mad"), _ARITHMETIC),
    InstructionRow(rf"div\.{_INTEGERS}", "ptx::div<{T}>({a}, {b})", _ARITHMETIC),
    InstructionRow(rf"rem\.{_INTEGERS}", "ptx::rem<{T}>({a}, {b})", _ARITHMETIC),
    InstructionRow(rf"min\.{_INTEGERS}", "{a} < {b} ? {a} : {b}", _ARITHMETIC),
    InstructionRow(rf"max\.{_INTEGERS}", "{a} > {b} ? {a} : {b}", _ARITHMETIC),
    InstructionRow(r"neg\.(?P<t>s(?:16|32|64))", "-{a}", _ARITHMETIC),
    InstructionRow(r"abs\.(?P<t>s(?:16|32|64))", "{a} < 0 ? -{a} : {a}", _ARITHMETIC),
    InstructionRow(r"bfi\.(?P<t>b32|b64)", "ptx::bfi({a}, {b}, {c:u32}, {d:u32})", _ARITHMETIC),
    InstructionRow(r"bfe\.(?P<t>[su](?:32|64))", "ptx::bfe<{T}>({a}, {b:u32}, {c:u32})", _ARITHMETIC),
    InstructionRow(r"bfind\.(?P<t>[su](?:32|64))", "ptx::bfind<{T}>({a})", _ARITHMETIC, result="u32"),
    InstructionRow(r"bfind\.shiftamt\.(?P<t>[su](?:32|64))", "ptx::bfind<{T}>({a}, true)", _ARITHMETIC, result="u32"),
    InstructionRow(r"brev\.(?P<t>b32|b64)", "ptx::reversed<{T}>({a})", _ARITHMETIC),
    InstructionRow(r"mad\.hi\.(?P<t>s32)", "ptx::mul_hi<int64_t>({a}, {b}) + {c}", _ARITHMETIC),
    InstructionRow(r"mad\.hi\.(?P<t>u32)", "ptx::mul_hi<uint64_t>({a}, {b}) + {c}", _ARITHMETIC),
    InstructionRow(r"sad\.(?P<t>[su](?:16|32|64))", "({a} < {b} ? {b} - {a} : {a} - {b}) + {c}", _ARITHMETIC),
    InstructionRow(r"popc\.(?P<t>b32)", "__builtin_popcount({a})", _ARITHMETIC),
    InstructionRow(r"popc\.(?P<t>b64)", "__builtin_popcountll({a})", _ARITHMETIC, result="u32"),
    InstructionRow(r"clz\.(?P<t>b32)", "({a} ? __builtin_clz({a}) : 32)", _ARITHMETIC),
    InstructionRow(r"clz\.(?P<t>b64)", "({a} ? __builtin_clzll({a}) : 64)", _ARITHMETIC, result="u32"),
    # ---- Floating point ----
    InstructionRow(rf"add{_ROUNDED}\.(?P<t>f32|f64)", "{a} + {b}", _FLOATS),
    InstructionRow(rf"sub{_ROUNDED}\.(?P<t>f32|f64)", "{a} - {b}", _FLOATS),
    InstructionRow(rf"mul{_ROUNDED}\.(?P<t>f32|f64)", "{a} * {b}", _FLOATS),
    InstructionRow(rf"fma{_ROUNDED}\.(?P<t>f32)", "__builtin_fmaf({a}, {b}, {c})", _FLOATS),
    InstructionRow(rf"fma{_ROUNDED}\.(?P<t>f64)", "__builtin_fma({a}, {b}, {c})", _FLOATS),
    InstructionRow(r"div(?:\.(?:rn|full|approx))(?P<ftz>\.ftz)?\.(?P<t>f32|f64)", "{a} / {b}", _FLOATS),
    InstructionRow(r"neg(?P<ftz>\.ftz)?\.(?P<t>f32|f64)", "-{a}", _FLOATS),
    InstructionRow(r"abs(?P<ftz>\.ftz)?\.(?P<t>f32|f64)", "__builtin_fabs({a})", _FLOATS),
    InstructionRow(r"min(?P<ftz>\.ftz)?\.(?P<t>f32|f64)", "ptx::min_of({a}, {b})", _FLOATS),
    InstructionRow(r"max(?P<ftz>\.ftz)?\.(?P<t>f32|f64)", "ptx::max_of({a}, {b})", _FLOATS),
    InstructionRow(
        r"min(?P<ftz>\.ftz)?\.NaN\.(?P<t>f32)", "{a} != {a} || {b} != {b} ? {a} + {b} : ptx::min_of({a}, {b})", _FLOATS
    ),
    InstructionRow(
        r"max(?P<ftz>\.ftz)?\.NaN\.(?P<t>f32)", "{a} != {a} || {b} != {b} ? {a} + {b} : ptx::max_of({a}, {b})", _FLOATS
    ),
    InstructionRow(r"rcp\.(?:rn|approx)(?P<ftz>\.ftz)?\.(?P<t>f32)", "1.0f / {a}", _FLOATS),
    InstructionRow(r"sqrt\.(?:rn|approx)(?P<ftz>\.ftz)?\.(?P<t>f32)", "__builtin_sqrtf({a})", _FLOATS),
    InstructionRow(r"sqrt\.rn\.(?P<t>f64)", "__builtin_sqrt({a})", _FLOATS),
    InstructionRow(r"rcp\.rn\.(?P<t>f64)", "1.0 / {a}", _FLOATS),
    InstructionRow(r"sin\.approx(?P<ftz>\.ftz)?\.(?P<t>f32)", "__builtin_sinf({a})", _FLOATS),
    InstructionRow(r"cos\.approx(?P<ftz>\.ftz)?\.(?P<t>f32)", "__builtin_cosf({a})", _FLOATS),
    InstructionRow(r"rsqrt\.approx(?P<ftz>\.ftz)?\.(?P<t>f32)", "1.0f / __builtin_sqrtf({a})", _FLOATS),
    InstructionRow(r"ex2\.approx(?P<ftz>\.ftz)?\.(?P<t>f32)", "__builtin_exp2f({a})", _FLOATS),
    InstructionRow(r"lg2\.approx(?P<ftz>\.ftz)?\.(?P<t>f32)", "__builtin_log2f({a})", _FLOATS),
    InstructionRow(r"copysign\.(?P<t>f32)", "__builtin_copysignf({b}, {a})", _FLOATS),
    InstructionRow(r"tanh\.approx\.(?P<t>f32)", "__builtin_tanhf({a})", _FLOATS),
    # ---- Floating point, 16 bits ----
    InstructionRow(rf"add(?:\.rn)?(?P<sat>\.sat)?{_HALF}", _halves("x + y"), _FLOATS),
    InstructionRow(rf"sub(?:\.rn)?(?P<sat>\.sat)?{_HALF}", _halves("x - y"), _FLOATS),
    InstructionRow(rf"mul(?:\.rn)?(?P<sat>\.sat)?{_HALF}", _halves("x * y"), _FLOATS),
    InstructionRow(rf"fma\.rn(?P<sat>\.sat)?(?P<relu>\.relu)?{_HALF}", _halves("__builtin_fma(x, y, z)"), _FLOATS),
    InstructionRow(rf"neg{_HALF}", _halves("-x"), _FLOATS),
    InstructionRow(rf"abs{_HALF}", _halves("__builtin_fabs(x)"), _FLOATS),
    InstructionRow(rf"min{_HALF}", _halves("ptx::min_of(x, y)"), _FLOATS),
    InstructionRow(rf"max{_HALF}", _halves("ptx::max_of(x, y)"), _FLOATS),
    InstructionRow(rf"min\.NaN{_HALF}", _halves("x != x || y != y ? x + y : ptx::min_of(x, y)"), _FLOATS),
    InstructionRow(rf"max\.NaN{_HALF}", _halves("x != x || y != y ? x + y : ptx::max_of(x, y)"), _FLOATS),
    InstructionRow(rf"ex2\.approx{_HALF}", _halves("__builtin_exp2(x)"), _FLOATS),
    InstructionRow(rf"tanh\.approx{_HALF}", _halves("__builtin_tanh(x)"), _FLOATS),
    # ---- Logic ----
    InstructionRow(r"and\.(?P<t>b16|b32|b64|pred)", "{a} & {b}", _LOGIC),
    InstructionRow(r"or\.(?P<t>b16|b32|b64|pred)", "{a} | {b}", _LOGIC),
    InstructionRow(r"xor\.(?P<t>b16|b32|b64|pred)", "{a} ^ {b}", _LOGIC),
    InstructionRow(r"cnot\.(?P<t>b16|b32|b64)", "{a} == 0", _LOGIC),
    InstructionRow(r"not\.(?P<t>pred)", "!{a}", _LOGIC),
    InstructionRow(r"not\.(?P<t>b16|b32|b64)", "~{a}", _LOGIC),
    InstructionRow(r"shl\.(?P<t>b16|b32|b64)", _shift, _LOGIC),
    InstructionRow(r"shr\.(?P<t>[bsu](?:16|32|64))", _shift, _LOGIC),
    InstructionRow(r"shf\.l\.wrap\.(?P<t>b32)", "ptx::funnel({a}, {b}, {c}, true, true)", _LOGIC),
    InstructionRow(r"shf\.r\.wrap\.(?P<t>b32)", "ptx::funnel({a}, {b}, {c}, false, true)", _LOGIC),
    InstructionRow(r"shf\.l\.clamp\.(?P<t>b32)", "ptx::funnel({a}, {b}, {c}, true, false)", _LOGIC),
    InstructionRow(r"shf\.r\.clamp\.(?P<t>b32)", "ptx::funnel({a}, {b}, {c}, false, false)", _LOGIC),
    InstructionRow(r"lop3\.(?P<t>b32)", "ptx::lop3({a}, {b}, {c}, {d})", _LOGIC),
    # ---- Comparison ----
    InstructionRow(
        rf"setp\.(?P<how>[a-z]+)(?:\.(?P<join>and|or|xor))?(?:\.ftz)?\.{_WORDS}",
        _compare,
        _COMPARISON,
    ),
    InstructionRow(rf"selp\.{_WORDS}", "{c:pred} ? {a} : {b}", _COMPARISON),
    # ---- Data movement ----
    InstructionRow(r"mov\.(?P<t>[bsuf](?:16|32|64)|pred)", _move, _DATA),
    InstructionRow(r"prmt\.(?P<t>b32)", "ptx::prmt({a}, {b}, {c})", _DATA),
    InstructionRow(
        r"cvt(?:\.(?P<rounding>rn|rna|rz|rm|rp|rni|rzi|rmi|rpi))?(?P<relu>\.relu)?(?P<satfinite>\.satfinite)?(?P<ftz>\.ftz)?(?P<sat>\.sat)?"
        r"\.(?P<to>[su](?:8|16|32|64)|f16x2|bf16x2|f16|bf16|tf32|f32|f64)\.(?P<t>[su](?:8|16|32|64)|f16|bf16|f32|f64)",
        _convert,
        _DATA,
    ),
    InstructionRow(
        r"cvta(?P<to>\.to)?\.(?P<space>global|shared|param|const|local)\.(?P<t>u64|u32)", _to_generic, _DATA
    ),
    InstructionRow(r"mapa\.shared::cluster\.(?P<t>u32)", "ptx::map_to_rank({a}, {b})", _DATA),
    InstructionRow(rf"ld\.(?P<space>param)(?:::entry|::func)?{_VECTOR}{_WIDTH}", _load, _DATA, memory="reads param"),
    InstructionRow(
        rf"st\.param(?:::func)?{_VECTOR}{_WIDTH}", _nothing, _DATA, writes=0, memory="writes an argument of a call"
    ),
    InstructionRow(rf"ld\.(?P<space>local){_VECTOR}{_WIDTH}", _load, _DATA, memory="reads local"),
    InstructionRow(rf"st\.local{_VECTOR}{_WIDTH}", _store_local, _DATA, writes=0, memory="writes local"),
    InstructionRow(
        rf"(?P<name>ld)(?=[\w.:]*\.(?:relaxed|acquire)){_ORDER}(?P<op>){_HINTS}\.{_NUMBER}",
        _atomic,
        _DATA,
        memory="reads global, shared, at once",
        ordering="acquire: with the fence that it contains",
    ),
    InstructionRow(
        rf"(?P<name>st)(?=[\w.:]*\.(?:relaxed|release)){_ORDER}(?P<op>){_HINTS}\.{_NUMBER}",
        _atomic,
        _DATA,
        writes=0,
        memory="writes global, shared, at once",
        ordering="release: with the fence that it contains",
    ),
    InstructionRow(
        rf"ld(?:\.(?:weak|volatile))?{_SPACE}{_HINTS}{_VECTOR}{_WIDTH}", _load, _DATA, memory="reads global, shared"
    ),
    InstructionRow(
        rf"st(?:\.(?:weak|volatile))?{_SPACE}{_HINTS}{_VECTOR}{_WIDTH}",
        _store,
        _DATA,
        writes=0,
        memory="writes global, shared",
    ),
    InstructionRow(
        r"st\.async(?:\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v(?P<count>[24]))?\.(?P<t>[bsuf](?:32|64))",
        _store_async,
        _ASYNC,
        writes=0,
        memory="writes shared of a CTA of the cluster, later",
        ordering="threads that wait for the phase of the mbarrier in the scope of the cluster know that the store is complete",
    ),
    InstructionRow(r"prefetch\.tensormap", _call("tma_prefetch", "address"), _DATA, writes=0),
    InstructionRow(r"prefetch(?:\.global)?\.L[12]", _nothing, _DATA, writes=0),
    InstructionRow(r"cp\.async\.bulk\.prefetch\.tensor\.3d\.L2\.global\.tile", _nothing, _DATA, writes=0),
    # ---- Asynchronous copies ----
    InstructionRow(
        r"cp\.async\.(?:ca|cg)\.shared(?:::cta)?\.global(?P<hint>\.L2::cache_hint)?(?:\.L2::\d+B)?",
        _copy_async,
        _ASYNC,
        writes=0,
        memory="reads global, writes shared, later",
        ordering="its thread may use the data after cp.async.wait",
    ),
    InstructionRow(
        r"cp\.async\.commit_group", _perform("cp_async_commit"), _ASYNC, writes=0, ordering="ends a group of copies"
    ),
    InstructionRow(
        r"cp\.async\.wait_group",
        _perform("cp_async_wait", "false"),
        _ASYNC,
        writes=0,
        ordering="the thread's groups but the last ones are complete",
    ),
    InstructionRow(
        r"cp\.async\.wait_all",
        _perform("cp_async_wait"),
        _ASYNC,
        writes=0,
        ordering="the thread's copies are complete",
    ),
    InstructionRow(
        r"cp\.async\.mbarrier\.arrive\.noinc(?:\.shared(?:::cta)?)?\.b64",
        _call("mbarrier_arrive_after_copies", "address"),
        _ASYNC,
        writes=0,
        ordering="threads that wait for the phase know that the copies are complete",
    ),
    InstructionRow(
        r"cp\.async\.bulk\.tensor\.[1-5]d\.shared::(?:cta|cluster)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
        r"(?P<multicast>\.multicast::cluster)?(?P<hint>\.L2::cache_hint)?",
        _tma_load,
        _ASYNC,
        writes=0,
        memory="reads global, writes shared of each CTA, later",
        ordering="threads that wait for the phase of the mbarrier know that the copy is complete",
    ),
    InstructionRow(
        r"cp\.async\.bulk\.tensor\.[1-5]d\.global\.shared::cta(?:\.tile)?\.bulk_group(?P<hint>\.L2::cache_hint)?",
        _tma_store,
        _ASYNC,
        writes=0,
        memory="reads shared, writes global, later",
        ordering="reads what a proxy fence made visible",
    ),
    InstructionRow(
        r"cp\.async\.bulk\.commit_group",
        _perform("tma_store_commit"),
        _ASYNC,
        writes=0,
        ordering="ends a group of stores",
    ),
    InstructionRow(
        r"cp\.async\.bulk\.wait_group(?:\.read)?",
        _perform("tma_store_wait_read"),
        _ASYNC,
        writes=0,
        ordering="the thread's groups of stores but the last ones have read shared memory",
    ),
    # ---- Control flow ----
    InstructionRow(r"bra(?:\.uni)?", _branch, _FLOW, writes=0),
    InstructionRow(r"call(?:\.uni)?", _call_function, _FLOW, writes=0),
    InstructionRow(
        r"trap", lambda match, instruction, writer: [f"ptx::trapped({instruction.line}); return;"], _FLOW, writes=0
    ),
    InstructionRow(r"(?:ret|exit)(?:\.uni)?", lambda match, instruction, writer: ["return;"], _FLOW, writes=0),
    # ---- Synchronization ----
    InstructionRow(
        r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?",
        _barrier("barrier_sync"),
        _SYNC,
        writes=0,
        ordering="waiting threads know what all arriving threads knew",
    ),
    InstructionRow(
        r"(?:bar|barrier)(?:\.cta)?\.arrive(?:\.aligned)?",
        _barrier("barrier_arrive"),
        _SYNC,
        writes=0,
        ordering="waiting threads know what this thread knew",
    ),
    InstructionRow(
        r"bar\.warp\.sync", _call("warp_barrier", "u32"), _SYNC, writes=0, ordering="lanes know what all lanes knew"
    ),
    InstructionRow(
        r"barrier\.cluster\.arrive(?:\.release)?(?:\.aligned)?",
        _perform("cluster_arrive"),
        _SYNC,
        writes=0,
        ordering="waiting threads of the cluster know what this thread knew",
    ),
    InstructionRow(
        r"barrier\.cluster\.arrive\.relaxed(?:\.aligned)?",
        _perform("cluster_arrive", "false"),
        _SYNC,
        writes=0,
        ordering="waiting threads know the mbarriers that this thread initialized and fenced, nothing else",
    ),
    InstructionRow(
        r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?",
        _perform("cluster_wait"),
        _SYNC,
        writes=0,
        ordering="the thread knows what arriving threads released",
    ),
    InstructionRow(
        r"membar\.(?:gl|sys)",
        _perform("global_fence"),
        _SYNC,
        writes=0,
        ordering="orders accesses of global memory around later and earlier atomics",
    ),
    InstructionRow(
        r"fence(?:\.acq_rel|\.sc)?\.(?:gpu|sys)",
        _perform("global_fence"),
        _SYNC,
        writes=0,
        ordering="orders accesses of global memory around later and earlier atomics",
    ),
    InstructionRow(r"membar\.cta", _nothing, _SYNC, writes=0, ordering="none between CTAs"),
    InstructionRow(
        r"fence(?:\.acq_rel|\.sc)?\.(?:cta|cluster)", _nothing, _SYNC, writes=0, ordering="none between grids of CTAs"
    ),
    InstructionRow(
        r"fence\.proxy\.async(?:\.shared::(?:cta|cluster))?",
        _perform("async_proxy_fence"),
        _SYNC,
        writes=0,
        ordering="orders accesses of the thread before those of the TMA and wgmma",
    ),
    InstructionRow(
        r"fence\.mbarrier_init\.release\.cluster",
        _perform("mbarrier_init_fence"),
        _SYNC,
        writes=0,
        ordering="initialized mbarriers are visible to the cluster and the TMA",
    ),
    InstructionRow(
        rf"(?P<name>atom){_ORDER}\.(?P<op>add|min|max|and|or|xor|exch|cas|inc|dec)(?:\.noftz)?(?:\.L2::cache_hint)?\.{_NUMBER}",
        _atomic,
        _SYNC,
        memory="reads and writes global, shared, at once",
        ordering="with a fence before and after: releases and acquires",
    ),
    InstructionRow(
        rf"(?P<name>red){_ORDER}\.(?P<op>add|min|max|and|or|xor|inc|dec)(?:\.noftz)?(?:\.L2::cache_hint)?\.{_NUMBER}",
        _atomic,
        _SYNC,
        writes=0,
        memory="reads and writes global, shared, at once",
        ordering="with a fence before: releases",
    ),
    InstructionRow(r"redux\.sync\.(?P<op>add|min|max)\.(?P<t>u32|s32)", _reduce, _SYNC, ordering="none"),
    InstructionRow(r"redux\.sync\.(?P<op>and|or|xor)\.(?P<t>b32)", _reduce, _SYNC, ordering="none"),
    InstructionRow(r"elect\.sync", _elect, _SYNC, ordering="none"),
    InstructionRow(r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32", _shuffle, _SYNC, ordering="none"),
    InstructionRow(r"vote\.sync\.(?P<mode>any|all|uni)\.pred", _vote, _SYNC, ordering="none"),
    InstructionRow(r"vote\.sync\.(?P<mode>ballot)\.b32", _vote, _SYNC, ordering="none"),
    InstructionRow(
        r"mbarrier\.init(?:\.shared(?:::cta)?)?\.b64",
        _call("mbarrier_init", "address", "u32"),
        _SYNC,
        writes=0,
        memory="writes shared",
    ),
    InstructionRow(
        r"mbarrier\.arrive(?P<expects>\.expect_tx)?(?:\.release\.(?P<scope>cta|cluster))?(?:\.(?P<space>shared::cta|shared::cluster|shared))?\.b64",
        _mbarrier_arrive,
        _SYNC,
        ordering="threads that wait for the phase know what this thread knew; without .cluster, only their writes follow what"
        " threads of other CTAs knew",
    ),
    InstructionRow(
        r"mbarrier\.inval(?:\.shared(?:::cta)?)?\.b64",
        _call("mbarrier_invalidate", "address"),
        _SYNC,
        writes=0,
        memory="writes shared",
    ),
    InstructionRow(
        r"mbarrier\.expect_tx(?:\.relaxed\.(?:cta|cluster))?(?:\.(?P<space>shared::cta|shared::cluster|shared))?\.b64",
        _mbarrier_expect,
        _SYNC,
        writes=0,
        ordering="the phase also waits for these bytes",
    ),
    InstructionRow(
        r"mbarrier\.test_wait(?:\.parity)?(?:\.(?:acquire|relaxed)\.(?P<scope>cta|cluster))?(?:\.shared(?:::cta)?)?\.b64",
        _mbarrier_test,
        _SYNC,
        ordering="if the phase has ended: as mbarrier.try_wait",
    ),
    InstructionRow(
        r"mbarrier\.try_wait(?:\.parity)?(?:\.acquire\.(?P<scope>cta|cluster))?(?:\.shared(?:::cta)?)?\.b64",
        _mbarrier_wait,
        _SYNC,
        ordering="the thread knows what arriving threads knew, and that the phase's TMA loads are complete",
    ),
    InstructionRow(
        r"griddepcontrol\.launch_dependents",
        _perform("next_launch_may_begin"),
        _SYNC,
        writes=0,
        ordering="the next launch may begin",
    ),
    InstructionRow(
        r"griddepcontrol\.wait",
        _perform("await_previous_launches"),
        _SYNC,
        writes=0,
        ordering="the previous launches have ended",
    ),
    # ---- Matrices ----
    InstructionRow(
        r"ldmatrix\.sync\.aligned(?:\.m8n8)?\.x(?P<count>[124])(?:\.trans)?(?:\.m8n8)?(?:\.trans)?\.shared(?:::cta)?\.b16",
        _ldmatrix,
        _MATRIX,
        memory="reads shared",
    ),
    InstructionRow(
        r"stmatrix\.sync\.aligned(?:\.m8n8)?\.x(?P<count>[124])(?:\.trans)?(?:\.m8n8)?(?:\.trans)?\.shared(?:::cta)?\.b16",
        _stmatrix,
        _MATRIX,
        writes=0,
        memory="writes shared",
    ),
    InstructionRow(r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16", _call("transpose", "b32", writes="b32"), _MATRIX),
    InstructionRow(
        r"mma\.sync\.aligned\.m16n8k(?P<k>8|16)\.row\.col\.(?P<acc>f32|f16)\.(?P<t>f16|bf16|tf32)\.(?P<tb>f16|bf16|tf32)"
        r"\.(?P<from>f32|f16)",
        _mma,
        _MATRIX,
    ),
    InstructionRow(
        r"wmma\.load\.(?P<matrix>a|b)\.sync\.aligned\.(?P<rows>row|col)\.m16n16k16\.shared(?:::cta)?\.(?:f16|bf16)",
        _wmma_load,
        _MATRIX,
        memory="reads shared",
    ),
    InstructionRow(
        r"wmma\.mma\.sync\.aligned\.(?:row|col)\.(?:row|col)\.m16n16k16\.(?P<acc>f32|f16)(?:\.(?P<t>bf16)\.bf16)?\.(?:f32|f16)",
        _wmma,
        _MATRIX,
    ),
    InstructionRow(
        r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k(?:8|16)\.(?P<acc>f32|f16)\.(?P<t>f16|bf16|tf32)\.(?P<tb>f16|bf16|tf32)",
        _wgmma,
        _WGMMA,
        memory="reads shared, later",
        ordering="registers and shared memory are in use until wgmma.wait_group",
    ),
    InstructionRow(
        r"wgmma\.fence\.sync\.aligned",
        _wgmma_order("wgmma_fence"),
        _WGMMA,
        writes=0,
        ordering="orders accesses of accumulators before later wgmmas",
    ),
    InstructionRow(
        r"wgmma\.commit_group\.sync\.aligned", _wgmma_order("wgmma_commit"), _WGMMA, writes=0, ordering="ends a group"
    ),
    InstructionRow(
        r"wgmma\.wait_group\.sync\.aligned",
        _wgmma_order("wgmma_wait"),
        _WGMMA,
        writes=0,
        ordering="all groups but the last ones are complete",
    ),
    # ---- Miscellaneous ----
    InstructionRow(
        r"setmaxnreg\.inc\.sync\.aligned\.u32", _perform("setmaxnreg"), _MISC, writes=0, ordering="waits for registers"
    ),
    InstructionRow(
        r"setmaxnreg\.dec\.sync\.aligned\.u32",
        _perform("setmaxnreg", "false"),
        _MISC,
        writes=0,
        ordering="frees registers",
    ),
    InstructionRow(r"nanosleep\.u32", _nothing, _MISC, writes=0),
    InstructionRow(r"pmevent", _nothing, _MISC, writes=0),
)
