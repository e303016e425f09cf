"""Translate a PTX kernel to C++ for the CPU executor: registers are variables, branches are goto.

Each instruction of the kernel becomes the statements of its row in generator.ptx.instructions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from generator.ptx.instructions import statements
from generator.ptx.parser import (
    Address,
    Instruction,
    Label,
    Location,
    Module,
    Pair,
    PtxError,
    PtxKernel,
    Register,
    Vector,
    parse,
)
from generator.ptx.writer import Writer, shared_offsets

_HEAD = """// Translated from PTX by generator.ptx. Line numbers are those of the PTX.
#include <executor/ptx.hpp>

using namespace hgemm::executor;

"""
_STORAGE = {"pred": ("bool", "false")}
_WORDS = {
    8: ("uint8_t", "uint8_t(~0u)"),
    16: ("uint16_t", "uint16_t(~0u)"),
    32: ("uint32_t", "~0u"),
    64: ("uint64_t", "~0ull"),
}
_PER_LINE = 8
_TEXT = re.compile(r"\$str|__unnamed_")
"""Names of the constant texts that NVIDIA's compilers pass to printf and assert."""
_QUOTE = 60
_WGMMA = "wgmma.mma_async"
FUNCTION, TWIN_FUNCTION = "hgemm_emulate", "hgemm_emulate_twin"
"""The C functions that run a kernel and its twin."""
PTX_FILE = "kernel.ptx"
"""The name of the PTX in findings."""


def translate(module: Module, name: str = "", twin: tuple[Module, str] | None = None) -> str:
    """Return the C++ source of a kernel with `hgemm_emulate`; see templates/executor/abi.h.

    A `twin` is another kernel with the same registers, labels and order of instructions. TWIN_FUNCTION runs it: where its
    instructions differ only in f16 and bf16, the type is chosen when they run. If they differ otherwise, the source has both.

    Raises: PtxError for an instruction or operand that is not supported, or if the kernels are no twins.
    """
    kernel, writer, declarations, body = _translated(module, name)
    if twin:
        other_body = _with_other_opcodes(kernel, twin[0].kernel(twin[1]), writer, body)
        if not other_body:
            _, _, others, other_body = _translated(*twin)
            if declarations != others or len(body) != len(other_body):
                raise PtxError("the kernels are no twins: they have other registers, or another number of instructions")
        types = _types_of(one for one, other in zip(body, other_body) if one != other)
        declarations = ["using Half = ptx::Either<ptx::{}, ptx::{}>;".format(*types), *declarations]
        body = [one if one == other else _either(one, other, types) for one, other in zip(body, other_body)]
    statements = [line for one in body for line in one]
    return "".join(
        f"{line}\n"
        for line in (_HEAD.rstrip("\n"), "", *declarations, *statements, "}", "", *_entry(kernel, bool(twin)))
    )


def _translated(module: Module, name: str) -> tuple[PtxKernel, Writer, list[str], list[list[str]]]:
    """Return a kernel, its writer, the lines before its first instruction, and the lines of each instruction or label."""
    kernel = module.kernel(name)
    accumulators = accumulator_registers(kernel)
    texts = [one.name for one in module.variables if one.space == "global" and _TEXT.match(one.name)]
    writer = Writer(kernel, shared_offsets((*module.variables, *kernel.variables)), accumulators, texts)
    return kernel, writer, list(_declarations(kernel, writer, accumulators)), list(_body(kernel, writer))


def _with_other_opcodes(kernel: PtxKernel, twin: PtxKernel, writer: Writer, body: list[list[str]]) -> list[list[str]]:
    """Return the lines of a kernel's twin from its own, if `parse_like` found that they differ only in opcodes. Else return none.

    Both must have the same accumulators: see `accumulator_registers`.
    """
    if twin.registers is not kernel.registers or len(twin.body) != len(kernel.body):
        return []
    found, place_of = [], _places(kernel)
    for one, other, lines in zip(kernel.body, twin.body, body):
        if one is not other:
            opcodes = [each.opcode if isinstance(each, Instruction) else "" for each in (one, other)]
            if not all(opcodes) or any(opcode.startswith("mov.") for opcode in opcodes):
                return []
            if len({opcode.startswith(_WGMMA) for opcode in opcodes}) != 1 or one.operands is not other.operands:
                return []
        found.append(lines if one is other else [*_instruction(other, writer, place_of.get(other.line, 0))])
    return found


def _places(kernel: PtxKernel) -> dict[int, int]:
    """Return the place of the predicate of each line with one, among those that the kernel reports."""
    return {line: place for place, line in enumerate(predicated_lines(kernel))}


_TYPES = ("F16", "BF16")


def _types_of(statements: Iterable[list[str]]) -> tuple[str, str]:
    """Return the type that the first of two kernels has where the second one has the other type, and the other type."""
    has_bf16 = any(_with_type(line, "BF16", "", "") != line for lines in statements for line in lines)
    return (_TYPES[1], _TYPES[0]) if has_bf16 else _TYPES


def _with_type(line: str, word: str, number: str, element: str) -> str:
    return line.replace(f"ptx::{word}", number).replace(f"Element::{word.lower()}", element)


def _either(one: list[str], other: list[str], types: tuple[str, str]) -> list[str]:
    """Return the statements of one of two instructions."""
    element = "(ptx::is_twin ? Element::{1} : Element::{0})".format(*map(str.lower, types))
    alike, also = (
        [_with_type(line, word, "Half", element) for line in lines] for word, lines in zip(types, (one, other))
    )
    if alike == also:
        return alike
    if any(line.startswith(Writer.label("")) for line in (*one, *other)):
        raise PtxError("the kernels are no twins: they have other labels")
    return ["  if (ptx::is_twin) {", *other, "  } else {", *one, "  }"]


def origins(text: str, lines: Collection[int]) -> dict[int, str]:
    """Return, for findings at these lines of a PTX text, a quote of the instruction and the source line that .loc states."""
    bodies = (one for kernel in parse(text).kernels for one in kernel.body)
    found = {one.line: one.location for one in bodies if isinstance(one, Instruction) and one.line in lines}
    texts = text.splitlines()
    return {line: _origin(" ".join(texts[line - 1].split()), location) for line, location in found.items()}


def source_lines(text: str, annotated: str) -> dict[int, Location]:
    """Return the source line of each line of a PTX text, as `annotated` states it.

    `annotated` is the same kernel compiled with line information. The result is empty if it has other instructions.
    """
    plain, located = (
        [one for one in parse(ptx).kernel().body if isinstance(one, Instruction)] for ptx in (text, annotated)
    )
    if [one.opcode for one in plain] != [one.opcode for one in located]:
        return {}
    return {one.line: other.location for one, other in zip(plain, located, strict=True) if other.location}


def _origin(quote: str, location: Location | None) -> str:
    shown = quote if len(quote) <= _QUOTE else quote[:_QUOTE] + "..."
    return f" [{shown}]" + (f" (from {location.file}:{location.line})" if location else "")


def accumulator_registers(kernel: PtxKernel) -> dict[str, int]:
    """Return the registers that wgmma may use, numbered: its accumulators, those of A, and all copies by mov."""
    copies: dict[str, dict[str, None]] = {}  # in order, so that a kernel has one translation
    found: list[str] = []
    for one in kernel.body:
        if not isinstance(one, Instruction):
            continue
        if one.opcode.startswith(_WGMMA) and isinstance(next(iter(one.operands), None), Vector):
            vectors = [operand for operand in one.operands[:2] if isinstance(operand, Vector)]
            found += [part.name for vector in vectors for part in vector.parts if isinstance(part, Register)]
        elif one.opcode.startswith("mov.") and [*map(type, one.operands)] == [Register, Register]:
            left, right = (each.name for each in one.operands)
            copies.setdefault(left, {})[right] = None
            copies.setdefault(right, {})[left] = None
    seen = dict.fromkeys(found)
    queue = list(seen)
    while queue:
        for other in copies.get(queue.pop(), ()):
            if other not in seen:
                seen[other] = None
                queue.append(other)
    return {name: place for place, name in enumerate(_side_by_side(kernel, dict.fromkeys(found), seen))}


def _side_by_side(kernel: PtxKernel, first: dict[str, None], others: Collection[str]) -> dict[str, None]:
    """Return registers in an order in which a sequence of copies has neighbouring targets and neighbouring sources."""
    order = {name: place for place, name in enumerate(first)}
    for are_copies, run in groupby(kernel.body, lambda one: _copied_names(one, others) is not None):
        if not are_copies:
            continue
        pairs = [_copied_names(one, others) for one in run]
        for known, new in ((0, 1), (1, 0)):
            for pair in sorted((pair for pair in pairs if pair[known] in order), key=lambda pair: order[pair[known]]):
                order.setdefault(pair[new], len(order))
    return dict.fromkeys([*order, *others])


def _copied_names(one: Instruction | Label, names: Collection[str]) -> tuple[str, str] | None:
    """Return the target and the source of an instruction that copies one of the registers to another, and does nothing else."""
    if isinstance(one, Label) or one.predicate is not None or not one.opcode.startswith("mov."):
        return None
    found = tuple(each.name for each in one.operands if isinstance(each, Register) and each.name in names)
    return found if len(found) == 2 else None


def _declarations(kernel: PtxKernel, writer: Writer, accumulators: dict[str, int]) -> Iterator[str]:
    if accumulators:
        names = ", ".join(f'"{name}"' for name in accumulators)
        yield f"static constexpr char const* accumulators[] = {{{names}}};"
        yield ""
    yield f"static uint8_t seen[{len(predicated_lines(kernel)) + 1}];"
    yield ""
    yield "static void kernel(void const* const* parameters) {"
    yield from (
        f"  uint64_t const parameter_{i} = reinterpret_cast<uintptr_t>(parameters[{i}]);"
        for i in range(len(kernel.parameters))
    )
    yield "  (void)parameters;"
    for one in kernel.variables:
        if one.space == "local":
            yield f"  alignas({one.align}) unsigned char {writer.local(one.name)}[{max(one.size_bytes, 1)}];"
            yield f"  memset({writer.local(one.name)}, 0xff, sizeof {writer.local(one.name)});"
    yield from _registers(kernel, accumulators)
    if accumulators:
        yield f"  ptx::AccumulatorRegisters<{len(accumulators)}> acc(accumulators);"


def _body(kernel: PtxKernel, writer: Writer) -> Iterator[list[str]]:
    place_of = _places(kernel)
    for together, run in groupby(kernel.body, lambda one: _copied(one, writer) is not None):
        if together:  # one statement, because the compiler takes long for hundreds of them
            first, *others = (_copied(one, writer) for one in run)
            yield ["  " + writer.copies((first, *others))]
            yield from ([] for _ in others)
            continue
        for one in run:
            if isinstance(one, Label):
                yield [f"{writer.label(one.name)}: ;"]
            else:
                yield [*_instruction(one, writer, place_of.get(one.line, 0))]


def _copied(one: Instruction | Label, writer: Writer) -> tuple[int, int] | None:
    """Return the places of the accumulators that an instruction copies, if it does nothing else."""
    if isinstance(one, Label) or one.predicate is not None or not one.opcode.startswith("mov."):
        return None
    if len(one.operands) != 2:
        return None
    return writer.copied(*one.operands)


def _registers(kernel: PtxKernel, accumulators: dict[str, int]) -> Iterator[str]:
    """Yield the declarations of the registers. An unset register is poison."""
    used = {name for one in kernel.body if isinstance(one, Instruction) for name in _names(one)}
    by_type: dict[tuple[str, str], list[str]] = {}
    for register in kernel.registers:
        if register.name in used and register.name not in accumulators:
            by_type.setdefault(_storage(register), []).append(Writer.variable(register))
    for (kind, unset), names in by_type.items():
        for i in range(0, len(names), _PER_LINE):
            yield f"  {kind} " + ", ".join(f"{name} = {unset}" for name in names[i : i + _PER_LINE]) + ";"


def _storage(register: Register) -> tuple[str, str]:
    if register.type in _STORAGE:
        return _STORAGE[register.type]
    try:
        return _WORDS[int(register.type.lstrip("bsuf"))]
    except (KeyError, ValueError):
        raise PtxError(f"registers of type {register.type} are not supported") from None


def _names(one: Instruction) -> Iterator[str]:
    """Yield the names of all registers in an instruction."""
    queue: list[object] = [one.predicate, *one.operands]
    while queue:
        part = queue.pop()
        kind = type(part)
        if kind is Register:
            yield part.name
        elif kind is Vector:
            queue += part.parts
        elif kind is Address:
            queue += (part.base, *part.coordinates)
        elif kind is Pair:
            queue += (part.first, part.second)


def predicated_lines(kernel: PtxKernel) -> list[int]:
    """Return the lines of the instructions with a predicate. The kernel reports which values each predicate has had."""
    return [one.line for one in kernel.body if isinstance(one, Instruction) and one.predicate is not None]


def _instruction(one: Instruction, writer: Writer, place: int) -> Iterator[str]:
    lines = list(statements(one, writer))
    if one.predicate is None:
        yield from (f"  {line}" for line in lines)
        return
    guard = writer.read(one.predicate, "pred", one.line)
    yield f"  if (ptx::noted(seen[{place}], {'!' if one.negated else ''}{guard})) {{ " + " ".join(lines) + " }"


def _entry(kernel: PtxKernel, has_twin: bool) -> Iterator[str]:
    sizes = ", ".join(str(one.size_bytes) for one in kernel.parameters)
    yield f"static constexpr uint64_t parameter_bytes[] = {{{sizes}{', ' if sizes else ''}0}};"
    for function in (FUNCTION, TWIN_FUNCTION) if has_twin else (FUNCTION,):
        yield 'extern "C" __attribute__((visibility("default")))'
        yield f"int {function}(hgemm_emulation const* request, char* report_json, size_t capacity) {{"
        if has_twin:
            yield f"  ptx::is_twin = {'true' if function == TWIN_FUNCTION else 'false'};"
        yield f"  Kernel const entry = {{kernel, {len(kernel.parameters)}, parameter_bytes, seen, sizeof seen - 1}};"
        yield "  return hgemm::executor::emulate(*request, entry, report_json, capacity);"
        yield "}"
