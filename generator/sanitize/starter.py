"""Write a first launch file for a kernel, from what its PTX declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from generator.ptx.parser import Address, Instruction, Kernel, Module, Register, Symbol, Variable
from generator.sanitize.description import DTYPE_BYTES, INITS, MAP_BYTES, ROLES, has_dynamic_smem, static_smem_bytes

_HEAD = """# How `hgemm sanitize {ptx}` launches the kernel. Sizes come from the PTX; the lines with CHANGE are guesses.
# The reference of all keys: docs/how-to/sanitize-ptx.md
"""
_MAP_ALIGN = 64


def launch_file(path: Path, kernel: Kernel, module: Module) -> str:
    """Return the text of a launch file. It is complete, but shapes, values and roles are guesses."""
    return "\n".join([_HEAD.format(ptx=path.name), *_lines(kernel, module)]) + "\n"


def _lines(kernel: Kernel, module: Module) -> Iterator[str]:
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
    pointers = _pointers(kernel)
    for at, one in enumerate(kernel.parameters):
        yield f"    {_parameter(at, one, one.pointer or one.name in pointers, buffers, maps)}"
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
    if one.size_bytes == MAP_BYTES and one.align >= _MAP_ALIGN:
        maps.append(f"map{at}")
        return f'{{ tensor_map = "map{at}" }},          # a tensor map, or a struct of {MAP_BYTES} bytes'
    if one.type.endswith("[]"):
        return f'{{ struct_bytes = {one.size_bytes}, fields = [{{ at = 0, type = "s32", value = 0 }}] }},  # CHANGE'
    if pointer:
        buffers.append(f"p{at}")
        return f'{{ buffer = "p{at}" }},'
    kind = one.type.replace("b", "u") if one.type.startswith("b") else one.type
    value = "1.0" if kind.startswith("f") else "128"
    return f'{{ type = "{kind}", value = {value} }},  # CHANGE'


def _pointers(kernel: Kernel) -> set[str]:
    """Return the parameters that the kernel uses as addresses: directly, or after cvta.to."""
    loaded: dict[str, str] = {}
    found = set()
    for one in kernel.body:
        if not isinstance(one, Instruction):
            continue
        target, source = (*one.operands, None, None)[:2]
        if one.opcode.startswith("ld.param") and isinstance(target, Register):
            if isinstance(source, Address) and isinstance(source.base, Symbol):
                loaded[target.name] = source.base.name
        elif one.opcode.startswith("cvta.to.global") and isinstance(source, Register):
            found.add(loaded.get(source.name, ""))
        else:
            bases = [each.base for each in one.operands if isinstance(each, Address)]
            found.update(loaded.get(base.name, "") for base in bases if isinstance(base, Register))
    return found - {""}
