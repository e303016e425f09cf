"""Parse a PTX module into a small typed form: kernels, parameters, shared variables, registers, instructions, labels.

The grammar is the subset that NVRTC, nvJitLink, ptxas's own input and inline assembly use: directives, nested scopes with their
own registers and labels, and instructions with predicates. Names of nested scopes get a suffix, so that each name is unique in
its kernel. A module of 4,000 lines takes 0.1 s.

Source: PTX ISA 9.0, "Syntax" and "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from generator.errors import HgemmError


class PtxError(HgemmError):
    """PTX that this package does not read or translate."""


# ==== The parsed form ====


@dataclass(frozen=True)
class Register:
    """A register of a kernel, such as %r5, and its declared type, such as b32. `_` (a result that is dropped) has no type."""

    name: str
    type: str


@dataclass(frozen=True)
class Special:
    """A special register, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Number:
    """An integer constant, or the bits of a floating-point constant (`is_float`)."""

    value: int
    is_float: bool = False


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, a parameter or a label."""

    name: str


@dataclass(frozen=True)
class Address:
    """[base + offset], and for a tensor {coordinates}."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """{a, b, ...}"""

    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """a|b: two results of one instruction."""

    first: Operand
    second: Operand


Operand = Register | Special | Number | Symbol | Address | Vector | Pair


@dataclass(frozen=True)
class Location:
    """A source line, from .loc, and where the function that contains it was inlined."""

    file: str
    line: int
    caller: Location | None = None

    def chain(self) -> Iterator[Location]:
        """Yield this line, and the lines of all callers."""
        yield self
        if self.caller:
            yield from self.caller.chain()


@dataclass(frozen=True)
class Instruction:
    """One instruction: its opcode with modifiers, operands, predicate (@p or @!p), and its line in the PTX text."""

    opcode: str
    operands: tuple[Operand, ...]
    line: int
    predicate: Register | None = None
    negated: bool = False
    location: Location | None = None

    def __str__(self) -> str:
        return f"{self.opcode} at line {self.line}"


@dataclass(frozen=True)
class Label:
    """A place that branches name."""

    name: str
    line: int


@dataclass(frozen=True)
class Variable:
    """A variable of a state space (shared, global, const, local), or a parameter. An extern array has 0 bytes.

    Fields: `type` is that of an element; `pointer` tells whether the PTX says that a parameter is a pointer.
    """

    name: str
    space: str
    align: int
    size_bytes: int
    type: str = ""
    pointer: bool = False


@dataclass(frozen=True)
class PtxKernel:
    """One entry function. `threads` and `cluster` are (0, 0, 0) if the PTX does not state them."""

    name: str
    parameters: tuple[Variable, ...]
    registers: tuple[Register, ...]
    body: tuple[Instruction | Label, ...]
    variables: tuple[Variable, ...] = ()
    required_threads: tuple[int, int, int] = (0, 0, 0)
    most_threads: tuple[int, int, int] = (0, 0, 0)
    cluster: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Module:
    """A PTX text: its version and target, its variables, and its kernels."""

    version: str
    target: str
    variables: tuple[Variable, ...]
    kernels: tuple[PtxKernel, ...]

    def kernel(self, name: str = "") -> PtxKernel:
        """Return the kernel with this name, or the only one. Raises: PtxError if there is none."""
        found = [kernel for kernel in self.kernels if name in ("", kernel.name)]
        if len(found) != 1:
            names = ", ".join(kernel.name for kernel in self.kernels) or "none"
            raise PtxError(
                f"the PTX has {'no' if not found else 'more than one'} kernel {name}: its kernels are {names}"
            )
        return found[0]


# ==== Reading ====

MAX_REGISTERS = 2**20
MAX_DEPTH = 64
MAX_VARIABLE_BYTES = 2**32
"""Limits of a kernel: registers, nested blocks, and bytes of a variable. Kernels have at most some thousands of registers."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_NAME = r"[A-Za-z_$%][\w$%]*"
_TOKEN = re.compile(
    rf"\s*(?:(?P<open>\{{)|(?P<close>\}})|(?P<label>{_NAME})\s*:(?!:)"
    r"|(?P<loc>\.loc\s+(?P<file>\d+)\s+(?P<row>\d+)\s+(?P<column>\d+)[^\n;]*)"
    r"|(?P<directive>\.\w+)\b(?P<words>[^;{}]*);"
    rf"|(?:@(?P<not>!?)(?P<predicate>{_NAME})\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>[^;]*);)"
)
_REG = re.compile(r"\s*\.(\w+)\s+(.*)", re.DOTALL)
_DECLARED = re.compile(rf"({_NAME})\s*(?:<\s*(\d+)\s*>)?")
_VARIABLE = re.compile(
    r"\.(?P<space>shared|global|const|param|local)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    rf"(?P<pointer>\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?(?P<name>{_NAME})"
    r"\s*(?P<array>\[\s*(?P<count>\d*)\s*\])?"
)
_ENTRY = re.compile(rf"\.entry\s+(?P<name>{_NAME})")
_LIMIT = re.compile(r"\.(maxntid|reqntid|reqnctapercluster)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_HEADER = re.compile(r"\.version\s+([\d.]+)\s+\.target\s+(\w+)")
_OPERAND = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|[^,\s|]+(?:\s*\|\s*[^,\s]+)?)\s*(?:,|\Z)")
_CALLS = ("call", "call.uni")
_CALLED = re.compile(rf"\s*(?:\([^)]*\)\s*,)?\s*({_NAME})")
"""The function of a call. Its results and arguments are left out."""
_INTEGER = re.compile(r"(-?)(0[xX][0-9A-Fa-f]+|0[bB][01]+|[0-9]+)U?\Z")
_SPACES = re.compile(r"\s+")
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def bits_of_type(name: str) -> int:
    """Return the bits of a fundamental type, such as 32 for f32 and 1 for pred. Raises: KeyError."""
    return 1 if name == "pred" else _BYTES[name.lstrip("busf")] * 8


def _whole(digits: str, base: int = 10) -> int:
    """Return a whole number. Raises: PtxError if it is none, or longer than any of 64 bits in any base."""
    try:
        return int(digits[:80], base) if len(digits) <= 80 else int("", base)
    except ValueError:
        raise PtxError(f"the PTX has a malformed number, {digits[:20]!a}") from None


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)


@lru_cache(maxsize=4)  # a proof needs it several times
def parse(text: str) -> Module:
    """Parse a PTX text. Raises: PtxError with the line that is not understood."""
    text = _without_comments(text)
    header = _HEADER.search(text)
    if not header:
        raise PtxError("the text is not PTX: it has no .version and .target")
    files = {_whole(number): path for number, path in _FILE.findall(text)}
    ends = [match.end() for match in re.finditer("\n", text)]
    kernels, outside, at = [], [], 0
    while entry := _ENTRY.search(text, at):
        outside.append(text[at : entry.start()])
        at = entry.end()
        if head := _head(text, entry):
            body = _Body(text, head, ends, files)
            kernels.append(body.kernel)
            at = body.end
    outside.append(text[at:])
    variables = tuple(_variable(match) for part in outside for match in _VARIABLE.finditer(part))
    return Module(header[1], header[2], variables, tuple(kernels))


def parse_like(text: str, name: str, known: str, known_name: str) -> Module:
    """Parse a PTX text as `parse`. If it differs from `known` only in opcodes, the modules share everything else.

    Each text has one kernel, with the given name. The result is then much sooner there. Names of parameters are those of `known`.
    """
    module = parse(known)
    lines, known_lines = (
        _without_comments(one).replace(its, "").split("\n") for one, its in ((text, name), (known, known_name))
    )
    changed = {at: pair for at, pair in enumerate(zip(known_lines, lines), 1) if pair[0] != pair[1]}
    if len(module.kernels) != 1 or len(lines) != len(known_lines):
        return parse(text)
    kernel, body, target = module.kernels[0], [], module.target
    for one in kernel.body:
        if one.line in changed and isinstance(one, Instruction):
            before, after = map(_ONE_INSTRUCTION.fullmatch, changed.pop(one.line))
            if not (before and after) or any(before[part].split() != after[part].split() for part in _OTHER_PARTS):
                return parse(text)
            one = replace(one, opcode=after["opcode"])
        body.append(one)
    for _, line in changed.values():
        if not (found := _TARGET.fullmatch(line)):
            return parse(text)
        target = found[1]
    return replace(module, target=target, kernels=(replace(kernel, name=name, body=tuple(body)),))


def parse_head(text: str, name: str) -> PtxKernel:
    """Return the kernel with this name without its body, sooner than `parse`. Raises: PtxError if there is none."""
    text = _without_comments(text)
    for entry in _ENTRY.finditer(text):
        if entry["name"] == name and (head := _head(text, entry)):
            return _kernel(head)
    raise PtxError(f"the PTX has no kernel {name}")


_ONE_INSTRUCTION = re.compile(
    rf"(?P<lead>[\s{{]*(?:@!?{_NAME}\s+)?)(?P<opcode>[a-z][\w.:]*)(?P<rest>[^;]*);(?P<end>\s*}}?\s*)"
)
"""A line with one instruction, which may be in a block of its own."""
_OTHER_PARTS = ("lead", "rest", "end")
_TARGET = re.compile(r"\s*\.target\s+(\w+).*")


@dataclass(frozen=True)
class _Head:
    """The part of an entry function before its body. `end` is the position after its opening brace."""

    name: str
    parameters: str
    limits: str
    end: int


def _head(text: str, entry: re.Match) -> _Head | None:
    """Return the head of an entry function; None if the text only declares it."""
    at, parameters = _SPACE.match(text, entry.end()).end(), ""
    if text.startswith("(", at):
        close = text.find(")", at)
        if close < 0:
            raise _truncated(text, entry["name"])
        parameters, at = text[at + 1 : close], close + 1
    brace = _BODY.search(text, at)
    if not brace:
        raise _truncated(text, entry["name"])
    if brace[0] == ";":
        return None
    return _Head(entry["name"], parameters, text[at : brace.start()], brace.end())


_SPACE, _BODY = re.compile(r"\s*"), re.compile(r"[{;]")


def _truncated(text: str, kernel: str) -> PtxError:
    line = text.rstrip().count("\n") + 1
    return PtxError(f"the text ends at line {line}, inside kernel {kernel}: the file is truncated, so write it again")


def _kernel(head: _Head) -> PtxKernel:
    """Return a kernel without registers and body."""
    limits = {name: _three(words) for name, *words in _LIMIT.findall(head.limits)}
    parameters = tuple(_variable(match) for match in _VARIABLE.finditer(head.parameters))
    unknown = (0, 0, 0)
    threads, most, cluster = (limits.get(name, unknown) for name in ("reqntid", "maxntid", "reqnctapercluster"))
    return PtxKernel(head.name, parameters, (), (), (), threads, most, cluster)


def _variable(match: re.Match | None) -> Variable:
    if match is None:
        raise PtxError("the PTX declares a variable in an unknown way")
    name, kind = match["name"], match["type"]
    try:
        size = bits_of_type(kind) // 8
    except KeyError:
        raise PtxError(f"variable {name} has unknown type .{kind}") from None
    count = 1 if match["array"] is None else _whole(match["count"] or "0")
    align = _whole(match["align"]) if match["align"] else max(size, 1)
    if align not in _ALIGNMENTS:
        raise PtxError(f"variable {name} has alignment {align}: use a power of two up to {_ALIGNMENTS[-1]}")
    if size * count > MAX_VARIABLE_BYTES:
        raise PtxError(f"variable {name} has {size * count} B: the limit is {MAX_VARIABLE_BYTES} B")
    array = kind if match["array"] is None else f"{kind}[]"
    return Variable(name, match["space"], align, size * count, array, bool(match["pointer"]))


_ALIGNMENTS = [2**power for power in range(17)]


def _three(words: tuple[str, ...]) -> tuple[int, int, int]:
    first, second, third = (_whole(word or "1") for word in words)
    return first, second, third


@dataclass
class _Scope:
    """The registers and labels of one { } block. `suffix` makes their names unique."""

    suffix: str
    registers: dict[str, Register] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class _Body:
    """Reads one entry function: from its opening brace to the closing one."""

    def __init__(self, text: str, head: _Head, ends: list[int], files: dict[int, str]) -> None:
        self._name, self._text, self._ends, self._files = head.name, text, ends, files
        self._scopes = [_Scope("")]
        self._blocks = 0
        self._location: Location | None = None
        self._callers: dict[tuple[str, ...], Location] = {}
        self._body: list[Instruction | Label] = []
        self._all: list[Register] = []
        self._known: dict[str, Operand] = {}
        self._variables: list[Variable] = []
        self.end = self._read(head.end)
        self.kernel = replace(
            _kernel(head), registers=tuple(self._all), body=tuple(self._body), variables=tuple(self._variables)
        )

    def _line(self, at: int) -> int:
        return bisect_right(self._ends, at) + 1

    def _read(self, at: int) -> int:
        """Read statements from `at` on. Return the position after the body's closing brace."""
        while True:
            match = _TOKEN.match(self._text, at)
            if not match:
                rest = self._text[at:]
                if ";" not in rest and rest.count("}") <= rest.count("{"):  # no statement and no block ends
                    raise _truncated(self._text, self._name)
                shown = _SPACES.sub(" ", rest[:60]).strip()
                raise PtxError(f"line {self._line(at)} of the PTX is not understood: {shown}")
            at = match.end()
            kind = match.lastgroup
            if match["opcode"]:
                self._instruction(match)
            elif match["label"]:
                name = self._label(match["label"], define=True)
                self._body.append(Label(name, self._line(match.start("label"))))
            elif match["loc"]:
                self._locate(match)
            elif kind == "open":
                self._blocks += 1
                self._scopes.append(_Scope(f"$${self._blocks}"))
                if len(self._scopes) > MAX_DEPTH:
                    raise PtxError(f"line {self._line(at)} of the PTX nests more than {MAX_DEPTH} blocks")
                self._predeclare_labels(at)
                self._known = {}
            elif kind == "close":
                self._scopes.pop()
                self._known = {}
                if not self._scopes:
                    return at
            else:
                self._directive(match)

    def _locate(self, match: re.Match) -> None:
        """Note the source line of what follows."""
        caller = _INLINED.search(match["loc"])
        file = self._files.get(_whole(match["file"]), "")
        self._location = Location(file, _whole(match["row"]), self._callers.get(caller.groups()) if caller else None)
        self._callers[match["file"], match["row"], match["column"]] = self._location

    def _predeclare_labels(self, at: int) -> None:
        """Note the labels of a block, because branches may name them before they occur."""
        depth = 1
        for match in re.finditer(rf"[{{}}]|({_NAME})\s*:(?!:)", self._text[at : at + 20000]):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                return
            if match[1] and depth == 1:
                self._scopes[-1].labels[match[1]] = match[1] + self._scopes[-1].suffix

    def _label(self, name: str, define: bool = False) -> str:
        for scope in reversed(self._scopes):
            if name in scope.labels:
                return scope.labels[name]
        return name

    def _directive(self, match: re.Match) -> None:
        words = match["words"]
        if match["directive"] == ".reg":
            self._declare(words, self._line(match.start("directive")))
        elif match["directive"] in (".shared", ".local", ".param"):  # parameters are those of calls
            self._variables.append(_variable(_VARIABLE.match(match["directive"] + words)))
        elif match["directive"] not in (".pragma", ".loc"):
            line = self._line(match.start("directive"))
            raise PtxError(f"directive {match['directive']} at line {line} of the PTX is not supported")

    def _declare(self, words: str, line: int) -> None:
        declared = _REG.match(words)
        if not declared:
            raise PtxError(f"line {line} of the PTX declares registers in an unknown way: .reg{words}")
        scope = self._scopes[-1]
        for name, count in _DECLARED.findall(declared[2]):
            total = _whole(count) if count else 1
            if len(self._all) + total > MAX_REGISTERS:
                raise PtxError(f"line {line} of the PTX declares more than {MAX_REGISTERS:,} registers")
            names = [f"{name}{i}" for i in range(total)] if count else [name]
            for one in names:
                register = Register(one + scope.suffix, declared[1])
                scope.registers[one] = register
                self._all.append(register)
        self._known = {}

    def _instruction(self, match: re.Match) -> None:
        line = self._line(match.start("opcode"))
        called = _CALLED.match(match["operands"]) if match["opcode"] in _CALLS else None
        operands = (Symbol(called[1]),) if called else tuple(self._operands(match["operands"], line))
        predicate = match["predicate"]
        guard = self._operand(predicate, line) if predicate else None
        if guard is not None and not isinstance(guard, Register):
            raise PtxError(f"line {line} of the PTX has an unknown predicate {predicate}")
        self._body.append(Instruction(match["opcode"], operands, line, guard, match["not"] == "!", self._location))

    def _operands(self, text: str, line: int) -> Iterator[Operand]:
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _OPERAND.match(text, at)
            if not match:
                raise PtxError(f"line {line} of the PTX has unknown operands: {_SPACES.sub(' ', text[:200]).strip()}")
            at = match.end()
            yield self._operand(match[1], line)

    def _operand(self, text: str, line: int) -> Operand:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._read_operand(text.strip(), line)
        return found

    def _read_operand(self, text: str, line: int) -> Operand:
        if not text or text.count("{") > 1 or text.count("|") > 1:
            raise PtxError(f"line {line} of the PTX has an unknown operand: {text[:60]}")
        if text[0] == "{":
            return Vector(tuple(self._operand(part.strip(), line) for part in text[1:-1].split(",")))
        if text[0] == "[":
            return self._address(text[1:-1].strip(), line)
        if "|" in text:
            first, second = (self._operand(part.strip(), line) for part in text.split("|"))
            return Pair(first, second)
        for scope in reversed(self._scopes):
            if text in scope.registers:
                return scope.registers[text]
        if text == "_":
            return Register("_", "")
        if text[:2] in ("0f", "0F"):
            return Number(_whole(text[2:], 16), is_float=True)
        if text[:2] in ("0d", "0D"):
            return Number(_whole(text[2:], 16), is_float=True)
        integer = _INTEGER.match(text)
        if integer:
            value = _whole(integer[2], 0 if integer[2][:2].lower() in ("0x", "0b") else 10)
            return Number(-value if integer[1] else value)
        if text[0] == "%":
            return Special(text)
        if re.fullmatch(_NAME, text):
            return Symbol(self._label(text))
        raise PtxError(f"line {line} of the PTX has an unknown operand: {text[:60]}")

    def _address(self, text: str, line: int) -> Address:
        place, comma, rest = text.partition(",")
        base, plus, offset = place.partition("+")
        coordinates: tuple[Operand, ...] = ()
        if comma:
            vector = self._operand(rest.strip(), line)
            coordinates = vector.parts if isinstance(vector, Vector) else (vector,)
        number = _whole(offset.strip(), 0) if plus else 0
        return Address(self._operand(base.strip(), line), number, coordinates)
