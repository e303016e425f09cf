"""Write a first launch file for a kernel, from what its PTX declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from generator.ptx.parser import (
    Address,
    Instruction,
    Module,
    Number,
    PtxKernel,
    Register,
    Symbol,
    Variable,
    Vector,
    bits_of_type,
)
from generator.sanitize.description import DTYPE_BYTES, INITS, MAP_BYTES, ROLES, has_dynamic_smem, static_smem_bytes

_HEAD = """# How `hgemm sanitize {ptx}` launches the kernel. Sizes come from the PTX; the lines with CHANGE are guesses.
# The reference of all keys: docs/how-to/sanitize-ptx.md
"""
_MAP_ALIGN = 64


def launch_file(path: Path, kernel: PtxKernel, module: Module) -> str:
    """Return the text of a launch file. It is complete, but shapes, values and roles are guesses."""
    return "\n".join([_HEAD.format(ptx=path.name), *_lines(kernel, module)]) + "\n"


def _lines(kernel: PtxKernel, module: Module) -> Iterator[str]:
    others = [one.name for one in module.kernels if one.name != kernel.name]
    yield f'kernel = "{kernel.name}"'
    yield from (f'# kernel = "{name}"' for name in others)
    yield "grid = [1, 1, 1]                # CHANGE: CTAs"
    if all(kernel.required_threads):
        yield f"block = {list(kernel.required_threads)}            # threads, as .reqntid states"
    else:
        most = kernel.most_threads[0] or 128
        yield f"block = [{most}, 1, 1]             # CHANGE: threads{'; .maxntid allows no more' * any(kernel.most_threads)}"
    if all(kernel.cluster):
        yield f"cluster = {list(kernel.cluster)}             # CTAs, as .reqnctapercluster states"
    else:
        yield "# cluster = [1, 1, 1]           # CTAs of a cluster"
    static = static_smem_bytes(kernel, module)
    if has_dynamic_smem(kernel, module):
        yield f"dynamic_smem_bytes = 49152      # CHANGE: dynamic shared memory; {static} B are static"
    else:
        yield f"# dynamic_smem_bytes = 0        # the PTX uses none; {static} B are static"
    yield "# programmatic = true           # launched with programmatic stream serialization"
    yield "# resident_ctas = 64            # CTAs that run at the same time; default: all, up to 64"
    yield ""
    yield "parameters = ["
    buffers, maps = [], []
    types, addresses = _loads(kernel)
    for at, one in enumerate(kernel.parameters):
        fields = {offset: kind for (name, offset), kind in sorted(types.items()) if name == one.name}
        pointers = {offset for name, offset in addresses if name == one.name}
        if one.type.endswith("[]") and fields and not _is_map(one):
            yield f"    {{ struct_bytes = {one.size_bytes}, fields = [  # what the kernel loads; other bytes are 0"
            for offset, kind in fields.items():
                yield f"        {{ at = {offset}, {_simple(f'{at}_{offset}', kind, offset in pointers, buffers)}"
            yield "    ] },"
        else:
            yield f"    {_parameter(at, one, one.pointer or 0 in pointers, buffers, maps)}"
    yield "]"
    for name in (*buffers, *(f"buffer_of_{one}" for one in maps)):
        yield from ("", f"[buffers.{name}]", *_BUFFER)
    for name in maps:
        yield from ("", f"[tensor_maps.{name}]", f'buffer = "buffer_of_{name}"', *_MAP)
    yield from ("", *_REFERENCE)


_BUFFER = (
    f'dtype = "f32"                   # CHANGE: {", ".join(DTYPE_BYTES)}',
    "shape = [128, 128]              # CHANGE",
    "# strides = [128, 1]            # in elements; default: contiguous rows",
    f'role = "inout"                  # CHANGE: {", ".join(ROLES)}',
    f'init = "uniform"                # CHANGE: {", ".join(INITS)}, a number, or "FILE.npy"',
    '# writes = "once"               # the kernel writes each element exactly once; default of role "out"',
)
_MAP = (
    "box = [32, 64]                  # CHANGE: extents, the contiguous dimension first",
    "swizzle = 128                   # CHANGE: 0, 32, 64 or 128 B",
)
_REFERENCE = (
    "# [reference]                   # compare D = alpha A B + beta C",
    '# a = "A[m,k]"                  # a buffer, and its dimensions in the order of its shape',
    '# b = "B[n,k]"',
    '# d = "D[m,n]"',
    "",
    "# [tolerance]                   # default: from the element types",
    "# relative = 1e-3",
)


def _parameter(at: int, one: Variable, pointer: bool, buffers: list[str], maps: list[str]) -> str:
    """Return the entry of a parameter, and note the buffer or tensor map that it needs."""
    if _is_map(one):
        maps.append(f"map{at}")
        return f'{{ tensor_map = "map{at}" }},          # a tensor map, or a struct of {MAP_BYTES} bytes'
    if one.type.endswith("[]"):
        return f'{{ struct_bytes = {one.size_bytes}, fields = [{{ at = 0, type = "s32", value = 0 }}] }},  # CHANGE'
    return "{ " + _simple(str(at), one.type, pointer, buffers)


def _simple(name: str, kind: str, pointer: bool, buffers: list[str]) -> str:
    """Return the rest of the entry of a pointer or a number, and note the buffer that it needs."""
    if pointer:
        buffers.append(f"p{name}")
        return f'buffer = "p{name}" }},'
    kind = kind.replace("b", "u") if kind.startswith("b") else kind
    value = "1.0" if kind.startswith("f") else "128"
    return f'type = "{kind}", value = {value} }},  # CHANGE'


def _is_map(one: Variable) -> bool:
    return one.size_bytes == MAP_BYTES and one.align >= _MAP_ALIGN


Place = tuple[str, int]
"""A parameter, and an offset in it."""


def _loads(kernel: PtxKernel) -> tuple[dict[Place, str], set[Place]]:
    """Return the type of each part of a parameter that the kernel loads, and those that it uses as addresses: directly, or
    after cvta.to."""
    types: dict[Place, str] = {}
    loaded: dict[str, Place] = {}
    pointing: dict[str, Place] = {}  # registers that hold the address of a part of a parameter
    parameters = {one.name for one in kernel.parameters}
    addresses = set()
    for one in kernel.body:
        if not isinstance(one, Instruction):
            continue
        target, source = (*one.operands, None, None)[:2]
        if one.opcode.startswith("ld.param"):
            base = source.base if isinstance(source, Address) else None
            name, first = (
                pointing.get(base.name, ("", 0)) if isinstance(base, Register) else (getattr(base, "name", ""), 0)
            )
            if name in parameters:
                kind = one.opcode.rpartition(".")[2]
                for i, register in enumerate(target.parts if isinstance(target, Vector) else (target,)):
                    place = name, first + source.offset + i * bits_of_type(kind) // 8
                    types[place] = kind
                    if isinstance(register, Register):
                        loaded[register.name] = place
        elif one.opcode.startswith("mov.") and isinstance(source, Symbol) and source.name in parameters:
            pointing[target.name] = source.name, 0
        elif one.opcode.startswith("add.") and isinstance(source, Register) and source.name in pointing:
            name, first = pointing[source.name]
            if isinstance(step := one.operands[2], Number):
                pointing[target.name] = name, first + step.value
        elif one.opcode.startswith("cvta.to.global") and isinstance(source, Register):
            addresses.add(loaded.get(source.name))
        else:
            bases = [each.base for each in one.operands if isinstance(each, Address)]
            addresses.update(loaded.get(base.name) for base in bases if isinstance(base, Register))
    return types, {place for place in addresses if place}
