"""The description of a launch: the TOML file that `hgemm sanitize` reads, checked against the PTX.

Every key is known, every size agrees with the PTX, and a mistake is one line that names the file, the key, the value and the limit.
"""

from __future__ import annotations

import math
import os
import re
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.errors import RequestError, closest_words
from generator.ptx.parser import Module, PtxError, PtxKernel, parse
from generator.ptx.writer import shared_offsets
from generator.sweep import read_toml
from hgemm.disk import open_input

MAP_BYTES = 128
"""Size of a CUtensorMap."""
MAX_SMEM_BYTES = 232448
"""Most shared memory of a CTA. Source: CUDA C++ Programming Guide, technical specifications of compute capability 9.0."""
MAX_THREADS = 1024
MAX_PTX_BYTES = 64 << 20
MAX_BUFFER_BYTES = 4 << 30
"""Most memory of all buffers: each is filled, and a reference needs several copies of it."""
MAX_CTAS = 2**24
"""Most CTAs of a launch that the executor runs. More take days."""

DTYPE_BYTES = {
    **{"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "f64": 8},
    **{f"{sign}{bits}": bits // 8 for sign in "su" for bits in (8, 16, 32, 64)},
}
"""Element types of buffers. tf32 is stored as f32."""
FLOATS = ("f16", "bf16", "tf32", "f32", "f64")
SCALARS = {
    **{"f32": "<f", "f64": "<d", "f16": "<e"},
    **{f"s{bits}": f"<{letter}" for bits, letter in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))},
    **{f"u{bits}": f"<{letter}" for bits, letter in ((8, "B"), (16, "H"), (32, "I"), (64, "Q"))},
}
"""Types of scalar parameters, and their formats in `struct`."""
INITS = ("uniform", "integers", "zeros", "uninitialised")
ROLES = ("in", "out", "inout")
WRITES = ("once", "any")
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class BufferDescription:
    """A buffer of global memory.

    Units: `strides` count elements.
    Fields: `init` is a word of INITS, a number, or the path of a .npy file; `writes` is "once" if the kernel must write each
        element exactly once.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    init: str | float
    role: str
    writes: str

    @property
    def elements(self) -> int:
        """Return the number of elements from the first to the last, with the gaps between rows."""
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def filled_bytes(self) -> int:
        """Return the memory of its values. It exceeds `bytes` if a stride is 0."""
        return max(self.elements, math.prod(self.shape)) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class MapDescription:
    """A TMA tensor map of a whole buffer. Dimension 0 is contiguous, so `box` has the reverse order of the buffer's shape."""

    name: str
    buffer: str
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class Scalar:
    """A number in the parameters."""

    type: str
    value: float

    def pack(self) -> bytes:
        return struct.pack(SCALARS[self.type], self.value)


@dataclass(frozen=True)
class Pointer:
    """The address of an element of a buffer. An empty name is a null pointer."""

    buffer: str
    offset: int = 0


@dataclass(frozen=True)
class MapParameter:
    """A tensor map by value."""

    tensor_map: str


@dataclass(frozen=True)
class Struct:
    """A parameter of several fields, each with its offset. Other bytes are zero."""

    size_bytes: int
    fields: tuple[tuple[int, Scalar | Pointer | MapParameter], ...] = ()


Parameter = Scalar | Pointer | MapParameter | Struct


@dataclass(frozen=True)
class Gemm:
    """The reference D = alpha A B + beta C. Each operand is a buffer and the letters of its dimensions: ("A", "mk")."""

    a: tuple[str, str]
    b: tuple[str, str]
    d: tuple[str, str]
    c: tuple[str, str] | None = None
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True)
class Tolerance:
    """Limits of errors. None: they follow from the element types."""

    relative: float | None = None
    absolute: float | None = None


@dataclass(frozen=True)
class Description:
    """One launch of one kernel."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem_bytes: int
    programmatic: bool
    resident_ctas: int
    buffers: Mapping[str, BufferDescription]
    tensor_maps: Mapping[str, MapDescription]
    parameters: tuple[Parameter, ...]
    reference: Gemm | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def threads(self) -> int:
        return math.prod(self.block)


# ==== Reading ====


class _Table:
    """A table of the TOML file. `take` removes a key; `finish` rejects those that are left."""

    def __init__(self, values: object, place: str) -> None:
        if not isinstance(values, dict):
            raise RequestError(f"{place} is {_shown(values)}, but must be a table")
        self._values, self.place, self._known = dict(values), place, []

    def _where(self, key: str) -> str:
        return f"{self.place}: {key}"

    def take(self, key: str, read: Callable[[object, str], Any], *default: Any) -> Any:
        """Return a value as `read` understands it. Without a default, the key is required."""
        self._known.append(key)
        if key in self._values:
            return read(self._values.pop(key), self._where(key))
        if default:
            return default[0]
        raise RequestError(f"{self._where(key)} is missing")

    def has(self, key: str) -> bool:
        self._known.append(key)
        return key in self._values

    def finish(self) -> None:
        for key in self._values:
            near = closest_words(key, self._known)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(dict.fromkeys(self._known))}"
            raise RequestError(f"{self.place}: unknown key {key}: {hint}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _integer(least: int = 0, most: int = 2**63 - 1) -> Callable[[object, str], int]:
    def read(value: object, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise RequestError(f"{where} is {_shown(value)}, but must be an integer from {least} to {most}")
        return value

    return read


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise RequestError(f"{where} is {_shown(value)}, but must be a number")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{where} is {_shown(value)}, but must be true or false")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where} is {_shown(value)}, but must be a text")
    return value


def _word(*words: Any) -> Callable[[object, str], Any]:
    def read(value: object, where: str) -> Any:
        if value not in words or isinstance(value, bool):
            raise RequestError(f"{where} is {_shown(value)}, but must be one of {', '.join(map(str, words))}")
        return value

    return read


def _integers(least: int, counts: range, most: int = 2**31 - 1) -> Callable[[object, str], tuple[int, ...]]:
    def read(value: object, where: str) -> tuple[int, ...]:
        listed = [value] if isinstance(value, int) else value
        if not isinstance(listed, list) or len(listed) not in counts:
            few, many = counts[0], counts[-1]
            raise RequestError(f"{where} is {_shown(value)}, but must be a list of {few} to {many} integers")
        return tuple(_integer(least, most)(one, where) for one in listed)

    return read


def _triple(value: object, where: str) -> tuple[int, int, int]:
    x, y, z = (*_integers(1, range(1, 4))(value, where), 1, 1)[:3]
    return x, y, z


def read_module(path: Path) -> tuple[str, Module]:
    """Return the text of a PTX file and its parsed form. Raises: RequestError if it is not PTX, with the fix."""
    try:
        with open_input(path) as file:
            content = file.read(MAX_PTX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_PTX_BYTES:
        raise RequestError(f"{path} has more than {MAX_PTX_BYTES:,} B")
    if content[:4] in (b"\x7fELF", b"\x50\xed\x55\xba") or path.suffix in (".cubin", ".fatbin"):
        raise RequestError(
            f"{path} is machine code, and sanitize reads PTX: compile with `nvcc -ptx`, or extract PTX with `cuobjdump -ptx`"
        )
    if path.suffix in (".cu", ".cpp", ".cuh"):
        raise RequestError(
            f"{path} is CUDA C++, and sanitize reads PTX: compile with `nvcc -ptx -lineinfo {path}`, or with NVRTC"
        )
    try:
        text = content.decode()
        return text, parse(text)
    except (UnicodeDecodeError, PtxError) as error:
        raise RequestError(f"cannot read {path} as PTX: {error}") from None


def kernel_of(module: Module, name: str, place: str) -> PtxKernel:
    """Return a kernel of a module. Raises: RequestError with the names that it has."""
    names = [kernel.name for kernel in module.kernels]
    if not names:
        raise RequestError(f"{place}: the PTX has no kernel (no .entry)")
    if name in names or (not name and len(names) == 1):
        return module.kernel(name)
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    problem = f"the PTX has no kernel {name}" if name else f"the PTX has {len(names)} kernels, so name one"
    raise RequestError(f"{place}: {problem}: its kernels are {listed}")


def read_description(path: Path, module: Module) -> Description:
    """Read the description of a launch, and check it against the PTX. Raises: RequestError."""
    if not path.exists():
        raise RequestError(f"launch file {path} does not exist: write one with `hgemm sanitize FILE.ptx --init`")
    values = read_toml(path, "launch file")
    return description_of(values, module, str(path))


def description_of(values: Mapping[str, Any], module: Module, place: str) -> Description:
    """Return the description in the values of a TOML file. Raises: RequestError."""
    table = _Table(values, place)
    kernel = kernel_of(module, table.take("kernel", _text, ""), place)
    cluster = table.take("cluster", _triple, kernel.cluster if all(kernel.cluster) else (1, 1, 1))
    grid, block = table.take("grid", _triple), table.take("block", _triple, kernel.required_threads)
    smem = table.take("dynamic_smem_bytes", _integer(0, MAX_SMEM_BYTES), 0)
    programmatic = table.take("programmatic", _flag, False)
    resident = table.take("resident_ctas", _integer(0, 4096), 0)
    buffers = {
        name: _buffer(name, one, f"{place}: buffers.{name}", Path(place).parent)
        for name, one in _tables(table, "buffers", place)
    }
    if (total := sum(one.filled_bytes for one in buffers.values())) > MAX_BUFFER_BYTES:
        raise RequestError(f"{place}: the buffers take {total:,} B: use smaller ones, of {MAX_BUFFER_BYTES:,} B in all")
    maps = {
        name: _tensor_map(name, one, f"{place}: tensor_maps.{name}", buffers)
        for name, one in _tables(table, "tensor_maps", place)
    }
    parameters = tuple(
        _parameter(one, f"{place}: parameters[{at}]", buffers, maps)
        for at, one in enumerate(table.take("parameters", _list, []))
    )
    reference = _gemm(table, place, buffers) if table.has("reference") else None
    tolerance = Tolerance()
    if table.has("tolerance"):
        given = _Table(table.take("tolerance", lambda value, where: value), f"{place}: tolerance")
        tolerance = Tolerance(given.take("relative", _positive, None), given.take("absolute", _positive, None))
        given.finish()
    table.finish()
    found = Description(
        kernel.name, grid, block, cluster, smem, programmatic, resident, buffers, maps, parameters, reference, tolerance
    )
    _check_launch(found, kernel, module, place)
    _check_parameters(found, kernel, place)
    return found


def _list(value: object, where: str) -> list:
    if not isinstance(value, list):
        raise RequestError(f"{where} is {_shown(value)}, but must be a list")
    return value


def _positive(value: object, where: str) -> float:
    number = _number(value, where)
    if number < 0:
        raise RequestError(f"{where} is {number}, but must not be negative")
    return float(number)


def _tables(table: _Table, key: str, place: str) -> list[tuple[str, object]]:
    values = table.take(key, lambda value, where: value, {})
    if not isinstance(values, dict):
        raise RequestError(f"{place}: {key} must be tables: [{key}.NAME]")
    return list(values.items())


def _buffer(name: str, values: object, place: str, folder: Path) -> BufferDescription:
    table = _Table(values, place)
    dtype, shape = table.take("dtype", _word(*DTYPE_BYTES)), table.take("shape", _integers(1, range(1, 9)))
    strides = table.take("strides", _integers(0, range(1, 9), 2**40), _row_major(shape))
    role = table.take("role", _word(*ROLES))
    init = table.take("init", _init(dtype, folder), "uninitialised" if role == "out" else None)
    writes = table.take("writes", _word(*WRITES), "once" if role == "out" else "any")
    table.finish()
    if len(strides) != len(shape):
        raise RequestError(f"{place}: strides has {len(strides)} numbers, and shape {len(shape)}")
    if init is None:
        raise RequestError(f"{place}: init is missing: {_init_words(dtype)}")
    if role == "in" and init == "uninitialised":
        raise RequestError(f"{place}: a buffer that is only read needs values: {_init_words(dtype)}")
    if writes == "once" and role == "in":
        raise RequestError(f'{place}: writes = "once" is for buffers with role "out" or "inout"')
    found = BufferDescription(name, dtype, shape, strides, init, role, writes)
    return found


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


def _init_words(dtype: str) -> str:
    return f"one of {', '.join(INITS if dtype in FLOATS else INITS[1:])}, a number, or the path of a .npy file"


def _init(dtype: str, folder: Path) -> Callable[[object, str], str | float]:
    def read(value: object, where: str) -> str | float:
        if isinstance(value, str) and value.endswith(".npy"):
            found = Path(os.path.realpath(folder / value))
            if not found.is_file():
                raise RequestError(f"{where}: {found} does not exist")
            return str(found)
        if isinstance(value, str) and value in (INITS if dtype in FLOATS else INITS[1:]):
            return value
        if isinstance(value, str):
            raise RequestError(f"{where} is {_shown(value)}, but must be {_init_words(dtype)}")
        return _number(value, where)

    return read


def _tensor_map(name: str, values: object, place: str, buffers: Mapping[str, BufferDescription]) -> MapDescription:
    table = _Table(values, place)
    buffer = buffers[table.take("buffer", _named("buffer", buffers))]
    box = table.take("box", _integers(1, range(1, 6), 256))
    swizzle = table.take("swizzle", _word(*SWIZZLES), 0)
    dtype = table.take("dtype", _word(*DTYPE_BYTES), buffer.dtype)
    table.take("interleave", _word("none"), "none")
    table.finish()
    size = DTYPE_BYTES[buffer.dtype]
    if DTYPE_BYTES[dtype] != size:
        raise RequestError(f"{place}: dtype {dtype} has another size than that of the buffer, {buffer.dtype}")
    if len(box) != len(buffer.shape):
        raise RequestError(f"{place}: box has {len(box)} dimensions, and buffer {buffer.name} {len(buffer.shape)}")
    if buffer.strides[-1] != 1 and buffer.shape[-1] > 1:
        raise RequestError(f"{place}: the last dimension of buffer {buffer.name} must be contiguous")
    for stride in buffer.strides[:-1]:
        if stride * size % 16:
            raise RequestError(
                f"{place}: strides must be multiples of 16 B; buffer {buffer.name} has one of {stride * size}"
            )
    row = box[0] * size
    if row % 16 or (swizzle and row != swizzle):
        limit = f"as long as the swizzle, {swizzle} B" if swizzle else "a multiple of 16 B"
        raise RequestError(f"{place}: the first extent of box, {box[0]}, is {row} B; it must be {limit}")
    return MapDescription(name, buffer.name, box, swizzle)


def _named(what: str, known: Mapping[str, Any]) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise RequestError(
                f"{where}: there is no {what} {_shown(value)}: the file has {', '.join(known) or 'none'}"
            )
        return value

    return read


def _parameter(
    values: object, place: str, buffers: Mapping[str, BufferDescription], maps: Mapping[str, MapDescription]
) -> Parameter:
    table = _Table(values, place)
    found: Parameter
    if table.has("struct_bytes"):
        size = table.take("struct_bytes", _integer(0, 32764))
        fields = tuple(
            _field(one, f"{place}.fields[{at}]", buffers, maps)
            for at, one in enumerate(table.take("fields", _list, []))
        )
        found = Struct(size, fields)
        for at, one in fields:
            if at + size_bytes(one) > size:
                raise RequestError(f"{place}: a field at byte {at} of {size_bytes(one)} B exceeds struct_bytes, {size}")
    else:
        found = _simple(table, buffers, maps)
    table.finish()
    return found


def _field(
    values: object, place: str, buffers: Mapping[str, BufferDescription], maps: Mapping[str, MapDescription]
) -> tuple[int, Scalar | Pointer | MapParameter]:
    table = _Table(values, place)
    at = table.take("at", _integer(0, 32764))
    found = _simple(table, buffers, maps)
    table.finish()
    return at, found


def _simple(
    table: _Table, buffers: Mapping[str, BufferDescription], maps: Mapping[str, MapDescription]
) -> Scalar | Pointer | MapParameter:
    if table.has("buffer"):
        name = table.take("buffer", _named("buffer", buffers))
        return Pointer(name, table.take("offset", _integer(0, buffers[name].elements - 1), 0))
    if table.has("tensor_map"):
        return MapParameter(table.take("tensor_map", _named("tensor map", maps)))
    if table.has("null"):
        if not table.take("null", _flag):
            raise RequestError(f"{table.place}: null is false: leave it out")
        return Pointer("")
    if not table.has("type"):
        raise RequestError(
            f"{table.place}: say what it is: buffer, tensor_map, type and value, struct_bytes, or null = true"
        )
    kind = table.take("type", _word(*SCALARS))
    found = Scalar(kind, table.take("value", _number if kind[0] == "f" else _integer(-(2**63), 2**64 - 1)))
    try:
        found.pack()
    except (struct.error, OverflowError):
        raise RequestError(f"{table.place}: value {found.value} does not fit {kind}") from None
    return found


def size_bytes(parameter: Parameter) -> int:
    """Return the size of a parameter."""
    if isinstance(parameter, Scalar):
        return struct.calcsize(SCALARS[parameter.type])
    if isinstance(parameter, Struct):
        return parameter.size_bytes
    return 8 if isinstance(parameter, Pointer) else MAP_BYTES


_OPERAND = re.compile(r"\s*([^\[\]]+?)\s*\[\s*([a-z](?:\s*,\s*[a-z])*)\s*\]\s*\Z")


def _gemm(table: _Table, place: str, buffers: Mapping[str, BufferDescription]) -> Gemm:
    given = _Table(table.take("reference", lambda value, where: value), f"{place}: reference")

    def operand(letters: str) -> Callable[[object, str], tuple[str, str]]:
        def read(value: object, where: str) -> tuple[str, str]:
            match = _OPERAND.match(value) if isinstance(value, str) else None
            example = f'"D[{",".join(letters)}]"'
            if not match:
                raise RequestError(
                    f"{where} is {_shown(value)}, but must be a buffer with its dimensions, such as {example}"
                )
            name, dims = match[1], re.sub(r"[\s,]", "", match[2])
            _named("buffer", buffers)(name, where)
            if set(dims) - {"b"} != set(letters) or len(set(dims)) != len(dims):
                raise RequestError(
                    f"{where} has the dimensions {','.join(dims)}, but must have {letters[0]} and {letters[1]}, and b for a batch"
                )
            if len(dims) != len(buffers[name].shape):
                raise RequestError(f"{where} has {len(dims)} dimensions, and buffer {name} {len(buffers[name].shape)}")
            return name, dims

        return read

    found = Gemm(
        given.take("a", operand("mk")),
        given.take("b", operand("kn")),
        given.take("d", operand("mn")),
        given.take("c", operand("mn"), None),
        given.take("alpha", _number, 1.0),
        given.take("beta", _number, 0.0),
    )
    given.finish()
    if found.beta and not found.c:
        raise RequestError(f"{place}: reference: beta is {found.beta}, so c is needed")
    extents: dict[str, tuple[int, str]] = {}
    for name, dims in filter(None, (found.a, found.b, found.c, found.d)):
        for letter, extent in zip(dims, buffers[name].shape, strict=True):
            known, other = extents.setdefault(letter, (extent, name))
            if known != extent:
                raise RequestError(f"{place}: reference: {letter} is {extent} in {name} and {known} in {other}")
    return found


# ==== Checks against the PTX ====


def _check_launch(found: Description, kernel: PtxKernel, module: Module, place: str) -> None:
    if not all(found.block):
        raise RequestError(f"{place}: block is missing, and the PTX has no .reqntid")
    limits = ((kernel.required_threads, "requires", ".reqntid"), (kernel.cluster, "requires", ".reqnctapercluster"))
    for (required, verb, name), given in zip(limits, (found.block, found.cluster), strict=True):
        if all(required) and required != given:
            word = "block" if name == ".reqntid" else "cluster"
            raise RequestError(f"{place}: {word} is {_times(given)}, and the PTX {verb} {_times(required)} ({name})")
    most = math.prod(kernel.most_threads)
    if most and found.threads > most:
        raise RequestError(f"{place}: block has {found.threads} threads, and the PTX allows {most} (.maxntid)")
    if found.threads > MAX_THREADS or found.threads % 32:
        raise RequestError(
            f"{place}: block has {found.threads} threads: use whole warps of 32, up to {MAX_THREADS} threads"
        )
    if math.prod(found.grid) > MAX_CTAS:
        raise RequestError(
            f"{place}: grid {_times(found.grid)} has too many CTAs: use a smaller one, of at most {MAX_CTAS:,}"
        )
    for grid, cluster in zip(found.grid, found.cluster, strict=True):
        if grid % cluster:
            raise RequestError(
                f"{place}: grid {_times(found.grid)} is not a multiple of cluster {_times(found.cluster)}"
            )
    if math.prod(found.cluster) > 16:
        raise RequestError(f"{place}: cluster has {math.prod(found.cluster)} CTAs; the limit is 16")
    smem = static_smem_bytes(kernel, module) + found.dynamic_smem_bytes
    if smem > MAX_SMEM_BYTES:
        raise RequestError(f"{place}: a CTA has {smem} B of shared memory; the limit is {MAX_SMEM_BYTES} B")


def _times(triple: tuple[int, ...]) -> str:
    return "x".join(map(str, triple))


def static_smem_bytes(kernel: PtxKernel, module: Module) -> int:
    """Return the shared memory that the PTX declares, up to the beginning of the dynamic part."""
    variables = [one for one in (*module.variables, *kernel.variables) if one.space == "shared"]
    offsets = shared_offsets(variables)
    return max((offsets[one.name] + one.size_bytes for one in variables), default=0)


def has_dynamic_smem(kernel: PtxKernel, module: Module) -> bool:
    """Return whether the PTX declares an array of shared memory without a size."""
    return any(one.space == "shared" and not one.size_bytes for one in (*module.variables, *kernel.variables))


def _check_parameters(found: Description, kernel: PtxKernel, place: str) -> None:
    needed, given = kernel.parameters, found.parameters
    if len(needed) != len(given):
        listed = ", ".join(map(_declared, needed)) or "none"
        raise RequestError(f"{place}: parameters has {len(given)} entries, and the PTX {len(needed)}: {listed}")
    for at, (one, other) in enumerate(zip(needed, given, strict=True)):
        if one.size_bytes != size_bytes(other):
            raise RequestError(
                f"{place}: parameters[{at}] has {size_bytes(other)} B, and the PTX {one.size_bytes} B ({_declared(one)})"
            )
        if isinstance(other, Scalar) and _is_float(one.type) not in (None, other.type.startswith("f")):
            raise RequestError(f"{place}: parameters[{at}] has type {other.type}, and the PTX has {_declared(one)}")


def _is_float(ptx_type: str) -> bool | None:
    """Return whether a type of the PTX holds floats. None: its bits may be of any type."""
    return {"f": True, "s": False, "u": False}.get(ptx_type[0])


def _declared(parameter: Any) -> str:
    kind = parameter.type
    return f".param .align {parameter.align} .b8 [{parameter.size_bytes}]" if kind.endswith("[]") else f".param .{kind}"
