"""Inspect compiled kernels: read the cubin, the report of ptxas and the machine code, and compare them with the plan.

A cubin is a 64-bit little-endian ELF file. Only its headers, symbols and NVIDIA attributes are read, each with its
bounds checked, so that a truncated or altered file is an error of one line and never a fault.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from generator.arch import ARCHS, Arch, ArchLimits
from generator.errors import HgemmError
from generator.families.base import Expectation

_MACHINE_CUDA = 190
_ABI_OF_CUDA_13 = 8
_NOBITS = 8
_SYMTAB = 2
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RESERVED_SMEM_SECTION = ".nv.shared.reserved.0"
_RESERVED_SMEM_SYMBOL = b".nv.reservedSmem."  # replaces that section in cubins of nvJitLink
_RESERVED_SMEM_BYTES = 1024

# Attributes of .nv.info sections, as `cuobjdump -elf` 13.x names them: EIFMT_* (format) and EIATTR_* (kind).
_EIFMT_SVAL = 0x04
_EIATTR_MAX_THREADS = 0x05
_EIATTR_FRAME_SIZE = 0x11
_EIATTR_MIN_STACK_SIZE = 0x12
_EIATTR_CBANK_PARAM_SIZE = 0x19
_EIATTR_REGCOUNT = 0x2F


@dataclass(frozen=True)
class CubinInfo:
    """The resources of one kernel, as its cubin states them.

    Units: `registers` a thread, `max_threads` a CTA (0: no bound was compiled in). All other numbers are bytes.
    `static_smem_bytes` excludes the 1 KiB per CTA that the system reserves; cubins for sm_90 and later include it.
    `constant_bytes` counts the constant banks of the module without the kernels' parameters, `global_bytes` its device
    variables. `symbols` are the kernels and functions that have code of their own.
    """

    symbol: str
    arch_number: int
    registers: int
    stack_bytes: int
    static_smem_bytes: int
    param_bytes: int
    max_threads: int
    global_bytes: int
    constant_bytes: int
    text: bytes
    symbols: tuple[str, ...]

    @property
    def code_bytes(self) -> int:
        """Size of the kernel's machine code."""
        return len(self.text)


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size_bytes: int
    data: bytes


_ABSENT = _Section(name="", kind=0, size_bytes=0, data=b"")


def read_cubin(cubin: bytes, symbol: str) -> CubinInfo:
    """Read the resources of the kernel `symbol` from a cubin.

    Raises: HgemmError if the cubin is damaged or has no such kernel.
    Source: `cuobjdump -elf` 13.5 names the attributes; tests/test_inspect.py compares their values with the report of ptxas.
    """
    try:
        return _read(cubin, symbol)
    except (struct.error, UnicodeDecodeError) as error:
        raise HgemmError(f"cubin of {symbol} is damaged ({error}): build it again") from error


def _read(cubin: bytes, symbol: str) -> CubinInfo:
    header = _FILE_HEADER.unpack_from(cubin)
    if header[0][:6] != b"\x7fELF\x02\x01" or header[2] != _MACHINE_CUDA:
        raise HgemmError(f"cubin of {symbol} is not an ELF file for CUDA: build it again")
    sections = _sections(cubin, header, symbol)
    by_name = {section.name: section for section in sections}
    text = by_name.get(f".text.{symbol}")
    names = _symbol_names(cubin, sections, header, symbol)
    if text is None or symbol not in names:
        raise HgemmError(f"cubin has no kernel {symbol}: it defines {', '.join(sorted(filter(None, names))) or 'none'}")
    smem_bytes = by_name.get(f".nv.shared.{symbol}", _ABSENT).size_bytes
    reserves = _RESERVED_SMEM_SECTION in by_name or _RESERVED_SMEM_SYMBOL in by_name.get(".strtab", _ABSENT).data
    reserved_bytes = _RESERVED_SMEM_BYTES if smem_bytes and reserves else 0
    if smem_bytes < reserved_bytes:
        raise _damaged(symbol, f"{smem_bytes} B of shared memory, {reserved_bytes} B of them reserved")
    module = _module_attributes(by_name, names.index(symbol), symbol)
    kernel = dict(_attributes(by_name.get(f".nv.info.{symbol}", _ABSENT).data, symbol))
    return CubinInfo(
        symbol=symbol,
        arch_number=_arch_number(header),
        registers=module[_EIATTR_REGCOUNT],
        stack_bytes=max(module[_EIATTR_FRAME_SIZE], module[_EIATTR_MIN_STACK_SIZE]),
        static_smem_bytes=smem_bytes - reserved_bytes,
        param_bytes=sum(struct.unpack("<H", kernel.get(_EIATTR_CBANK_PARAM_SIZE, bytes(2)))),
        max_threads=math.prod(struct.unpack("<III", kernel.get(_EIATTR_MAX_THREADS, bytes(12)))),
        global_bytes=sum(s.size_bytes for s in sections if s.name in (".nv.global", ".nv.global.init")),
        constant_bytes=sum(s.size_bytes for s in sections if _is_module_constant(s.name)),
        text=text.data,
        symbols=tuple(sorted(name.removeprefix(".text.") for name in by_name if name.startswith(".text."))),
    )


def _arch_number(header: tuple) -> int:
    """Read the SM number from e_flags: bits 8 to 15 since ABI version 8 (CUDA 13), bits 0 to 7 before.

    sm_90 and sm_90a have the same flags. Source: LLVM, `BinaryFormat/ELF.h`, EF_CUDA_SM and EF_CUDA_SM_MASK.
    """
    ident, flags = header[0], header[7]
    return (flags >> 8 if ident[8] >= _ABI_OF_CUDA_13 else flags) & 0xFF


def _sections(cubin: bytes, header: tuple, symbol: str) -> list[_Section]:
    offset, entry_bytes, count, names_index = header[6], header[11], header[12], header[13]
    end = offset + count * entry_bytes
    if entry_bytes != _SECTION.size or names_index >= count or end > len(cubin):
        raise _damaged(symbol, f"{count} sections of {entry_bytes} B end at {end} of {len(cubin)} B")
    rows = [_SECTION.unpack_from(cubin, offset + index * entry_bytes) for index in range(count)]
    names = _slice(cubin, rows[names_index], symbol)
    return [_Section(_string(names, row[0]), row[1], row[5], _slice(cubin, row, symbol)) for row in rows]


def _slice(cubin: bytes, row: tuple, symbol: str) -> bytes:
    kind, offset, size_bytes = row[1], row[4], row[5]
    if kind == _NOBITS:
        return b""
    if offset + size_bytes > len(cubin):
        raise _damaged(symbol, f"a section ends at {offset + size_bytes} of {len(cubin)} B")
    return cubin[offset : offset + size_bytes]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else len(table)].decode("ascii")


def _symbol_names(cubin: bytes, sections: list[_Section], header: tuple, symbol: str) -> list[str]:
    """Return the name of each symbol of .symtab, in order. Symbols that are no functions get an empty name."""
    index = next((i for i, section in enumerate(sections) if section.kind == _SYMTAB), None)
    if index is None:
        raise _damaged(symbol, "no symbol table")
    link = _SECTION.unpack_from(cubin, header[6] + index * _SECTION.size)[6]
    if link >= len(sections) or len(sections[index].data) % _SYMBOL.size:
        raise _damaged(symbol, f"symbol table of {len(sections[index].data)} B, names in section {link}")
    rows = _SYMBOL.iter_unpack(sections[index].data)
    return [_string(sections[link].data, name) if info & 0xF == 2 else "" for name, info, *_ in rows]


def _module_attributes(by_name: dict[str, _Section], index: int, symbol: str) -> dict[int, int]:
    """Read the attributes of one function from .nv.info, which holds (symbol index, number) pairs."""
    wanted = {_EIATTR_REGCOUNT: "registers", _EIATTR_FRAME_SIZE: "frame", _EIATTR_MIN_STACK_SIZE: "stack"}
    found = {}
    for kind, value in _attributes(by_name.get(".nv.info", _ABSENT).data, symbol):
        if kind in wanted:
            function, number = struct.unpack("<II", value)
            if function == index:
                found[kind] = number
    missing = [name for kind, name in wanted.items() if kind not in found]
    if missing:
        raise _damaged(symbol, f"no attribute for {', '.join(missing)}")
    return found


def _attributes(info: bytes, symbol: str) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a .nv.info section: u8 format, u8 kind, then a u16 value, or a u16 size and that many bytes."""
    at = 0
    while at < len(info):
        form, kind, number = struct.unpack_from("<BBH", info, at)
        at += 4
        size_bytes = number if form == _EIFMT_SVAL else 0
        if at + size_bytes > len(info):
            raise _damaged(symbol, f"attribute {kind:#x} ends at {at + size_bytes} of {len(info)} B")
        yield kind, info[at : at + size_bytes] if size_bytes else struct.pack("<H", number)
        at += size_bytes


def _is_module_constant(name: str) -> bool:
    return name.startswith(".nv.constant") and not name.startswith(".nv.constant0.")


def _damaged(symbol: str, what: str) -> HgemmError:
    return HgemmError(f"cubin of {symbol} is damaged ({what}): build it again")


# ---- The report of ptxas (`-v`): registers, stack, spills, shared memory, warnings ------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(r"ptxas\b.*(?:\(C\d+\)|\bwarning\b)", re.IGNORECASE)


@dataclass(frozen=True)
class PtxasReport:
    """The report of ptxas on one kernel and the functions that it calls. Each spill instruction counts once."""

    symbol: str
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_smem_bytes: int

    @property
    def spill_bytes(self) -> int:
        """Bytes of spill stores and spill loads."""
        return self.spill_store_bytes + self.spill_load_bytes


def parse_ptxas_log(log: str) -> dict[str, PtxasReport]:
    """Return the report of each kernel by symbol. A log without `-v` has none."""
    starts = list(_ENTRY.finditer(log))
    ends = [start.start() for start in starts[1:]] + [len(log)]
    return {start[1]: _report(start, log[start.end() : end]) for start, end in zip(starts, ends)}


def ptxas_warnings(log: str) -> tuple[str, ...]:
    """Return the warnings of ptxas, such as C7510 (wgmma serialised) and C7508 (setmaxnreg ignored)."""
    lines = (" ".join(line.strip("\0").split()) for line in log.splitlines())
    return tuple(dict.fromkeys(line for line in lines if _WARNING.match(line)))


def _report(start: re.Match[str], text: str) -> PtxasReport:
    functions = [tuple(map(int, match.groups())) for match in _STACK.finditer(text)]
    used, smem = _USED.search(text), _SMEM.search(text)
    return PtxasReport(
        symbol=start[1],
        arch=start[2],
        registers=int(used[1]) if used else 0,
        stack_bytes=max((stack for stack, _, _ in functions), default=0),
        spill_store_bytes=sum(stores for _, stores, _ in functions),
        spill_load_bytes=sum(loads for _, _, loads in functions),
        static_smem_bytes=int(smem[1]) if smem else 0,
    )


# ---- Disassembly with nvdisasm, several kernels in one call ---------------------------------------------------------

INSTRUCTION_BYTES = 16
_TIME_LIMIT_S = 120
_LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;\n]*?)\s*;", re.MULTILINE)
_BAD_ADDRESS = re.compile(r"at address (0x[0-9a-f]+)")
_JUMPS = frozenset(("BRA", "BSSY", "CALL", "RET"))
_TARGET = re.compile(r"(?<![\w\[-])0x[0-9a-f]+$")
_WIDTH = re.compile(r"(?<=\.)(?:[US]?8|[US]?16|64|128)(?=\.|$)")
_BYTES_OF_WIDTH = {"8": 1, "U8": 1, "S8": 1, "16": 2, "U16": 2, "S16": 2, "64": 8, "128": 16}


@dataclass(frozen=True)
class MachineCode:
    """The machine code of one kernel, and its architecture, such as `sm_89`."""

    arch: str
    text: bytes


class Instruction(NamedTuple):
    """One instruction: `@!P0 LDSM.16.M88.4 R4, [R2]` has predicate `!P0` and mnemonic `LDSM`."""

    address_bytes: int
    opcode: str
    predicate: str
    operands: str

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def is_branch(self) -> bool:
        return self.mnemonic == "BRA"


@dataclass(frozen=True)
class Listing:
    """The instructions of one kernel, sorted by address."""

    instructions: tuple[Instruction, ...]

    def counts(self) -> dict[str, int]:
        """Return the count of each mnemonic, sorted by name: {'HMMA': 64, ...}."""
        return dict(sorted(Counter(instruction.mnemonic for instruction in self.instructions).items()))

    def opcode_counts(self) -> dict[str, int]:
        """Return the count of each full opcode, sorted by name: {'HMMA.16816.F32': 64, ...}."""
        return dict(sorted(Counter(instruction.opcode for instruction in self.instructions).items()))

    def bytes_moved(self, mnemonic: str) -> int:
        """Return the bytes that a mnemonic moves for a thread, each instruction counted once. STL.64 moves 8."""
        found = (instruction for instruction in self.instructions if instruction.mnemonic == mnemonic)
        return sum(_BYTES_OF_WIDTH[width[0]] if (width := _WIDTH.search(i.opcode)) else 4 for i in found)

    def loop_of(self, mnemonic: str) -> tuple[Instruction, ...]:
        """Return the shortest loop with such an instruction: from the target of a backward branch to the branch."""
        at = {instruction.address_bytes: place for place, instruction in enumerate(self.instructions)}
        ends = (
            (place, _TARGET.search(each.operands)) for place, each in enumerate(self.instructions) if each.is_branch
        )
        stretches = (self.instructions[at[int(target[0], 16)] : place + 1] for place, target in ends if target)
        loops = (found for found in stretches if any(each.mnemonic == mnemonic for each in found))
        return min(loops, key=len, default=())

    def text(self) -> str:
        """Return the listing as text, one instruction per line."""
        return "".join(_line(instruction) for instruction in self.instructions)


def find_nvdisasm(folders: Sequence[Path] = ()) -> Path:
    """Find nvdisasm in the installed wheel, else in `folders`.

    Raises: HgemmError that says what to install.
    """
    package = importlib.util.find_spec("nvidia")
    roots = package.submodule_search_locations if package and package.submodule_search_locations else ()
    wheels = [path for root in roots for path in sorted(Path(root).glob("*/bin/nvdisasm*"), reverse=True)]
    others = [folder / name for folder in folders for name in ("nvdisasm", "nvdisasm.exe")]
    for path in (*wheels, *others):
        if path.stem == "nvdisasm" and path.is_file():
            return path
    raise HgemmError("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")


def disassemble(codes: Sequence[MachineCode], nvdisasm: Path | None = None) -> list[Listing]:
    """Disassemble kernels. One process runs per architecture, all in parallel. The order is kept.

    Raises: HgemmError if nvdisasm is missing or fails, or finds an invalid instruction (kernel and address are named).
    """
    listings: dict[int, Listing] = {}
    batches: dict[str, list[int]] = {}
    for index, code in enumerate(codes):
        if len(code.text) % INSTRUCTION_BYTES:
            raise HgemmError(
                f"code {index} of {code.arch} has {len(code.text)} B, which is no multiple of the 16 B of an instruction"
            )
        batches.setdefault(code.arch, []).append(index)
    images = {arch: b"".join(codes[index].text for index in indices) for arch, indices in batches.items()}
    outputs = _run({arch: image for arch, image in images.items() if image}, nvdisasm)
    for arch, indices in batches.items():
        sizes = {index: len(codes[index].text) for index in indices}
        listings.update(_split(arch, sizes, *outputs.get(arch, ("", ""))))
    return [listings[index] for index in range(len(codes))]


def _run(images: dict[str, bytes], nvdisasm: Path | None) -> dict[str, tuple[str, str]]:
    """Return the output and the errors of nvdisasm for each architecture."""
    if not images:
        return {}
    program = nvdisasm or find_nvdisasm()
    try:
        with ExitStack() as files:
            outs = {arch: files.enter_context(_file_in_memory()) for arch in images}
            running = {}
            try:
                for arch, image in images.items():
                    running[arch] = _start(program, arch, files.enter_context(_file_in_memory(image)), outs[arch])
                errors = {arch: process.communicate(timeout=_TIME_LIMIT_S)[1] for arch, process in running.items()}
            finally:
                for process in running.values():
                    process.kill()
                    process.wait()
            return {arch: (_content(outs[arch]), errors[arch].decode(errors="replace")) for arch in images}
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HgemmError(f"nvdisasm cannot be run ({error}): try {program} --version") from error


def _file_in_memory(content: bytes = b"") -> BinaryIO:
    """Return a file without a name: a process that is killed leaves none behind."""
    file = os.fdopen(os.memfd_create("hgemm-sass"), "w+b", buffering=0)
    file.write(content)
    return file


def _content(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def _start(program: Path, arch: str, image: BinaryIO, out: BinaryIO) -> subprocess.Popen[bytes]:
    source = image.fileno()
    command = [str(program), "--binary", arch.replace("sm_", "SM"), f"/proc/self/fd/{source}"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, pass_fds=[source])


def _split(arch: str, sizes: dict[int, int], out: str, err: str) -> dict[int, Listing]:
    """Split the listing of an architecture into kernels. Addresses start at 0."""
    _refuse_bad_code(arch, sizes, err)
    found = _instructions(out)
    base_bytes, listings = 0, {}
    for index, size_bytes in sizes.items():
        length = size_bytes // INSTRUCTION_BYTES
        part = tuple(_moved(instruction, base_bytes) for instruction in itertools.islice(found, length))
        if len(part) != length:
            message = (err.strip().splitlines() or ["no message"])[0]
            raise HgemmError(f"nvdisasm listed {len(part)} of {length} instructions of code {index}: {message}")
        listings[index] = Listing(part)
        base_bytes += size_bytes
    return listings


def _refuse_bad_code(arch: str, sizes: dict[int, int], err: str) -> None:
    """Raise an error that names the kernel with an unknown instruction."""
    bad = _BAD_ADDRESS.search(err)
    offset = int(bad[1], 16) if bad else 0
    for index, size_bytes in sizes.items() if bad else ():
        if offset < size_bytes:
            raise HgemmError(f"code {index} of {arch} has no instruction at {offset:#x}: is it built for {arch}?")
        offset -= size_bytes


def _instructions(out: str) -> Iterator[Instruction]:
    for match in _LINE.finditer(out):
        yield Instruction(int(match[1], 16), match[3], match[2] or "", match[4])


def _moved(instruction: Instruction, base_bytes: int) -> Instruction:
    """Subtract the kernel's offset from the address of an instruction and from its jump target."""
    if not base_bytes:
        return instruction
    operands = instruction.operands
    if instruction.mnemonic in _JUMPS and ".ABS" not in instruction.opcode:
        operands = _TARGET.sub(lambda match: f"{int(match[0], 16) - base_bytes:#x}", operands)
    return instruction._replace(address_bytes=instruction.address_bytes - base_bytes, operands=operands)


def _line(instruction: Instruction) -> str:
    guard = f"@{instruction.predicate} " if instruction.predicate else ""
    text = f"/*{instruction.address_bytes:04x}*/ {guard:>6}{instruction.opcode} {instruction.operands}"
    return f"{text.rstrip()} ;\n"


# ---- Occupancy ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Occupancy:
    """CTAs and warps resident on one SM. `fraction` is their part of the maximum; `limiter` prevents another CTA.

    A kernel that cannot be launched has 0 CTAs.
    """

    ctas_per_sm: int
    warps_per_sm: int
    fraction: float
    limiter: str


def occupancy(limits: ArchLimits, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel.

    Units: `threads` per CTA, `registers` per thread. `smem_bytes` is static and dynamic shared memory, without the reserved part.
    Source: `cuda_occupancy.h` 13.0, cudaOccMaxActiveBlocksPerMultiprocessor, which tests/test_arch.py compares with.
    """
    warps = -(-threads // limits.warp_threads)
    ctas_by = {
        "warps": limits.warps_per_sm // warps if threads <= limits.threads_per_cta else 0,
        "registers": _ctas_by_registers(limits, warps, registers),
        "smem": _ctas_by_smem(limits, smem_bytes),
        "ctas": limits.ctas_per_sm,
    }
    limiter = min(ctas_by, key=ctas_by.__getitem__)
    ctas = ctas_by[limiter]
    return Occupancy(ctas, ctas * warps, ctas * warps / limits.warps_per_sm, limiter)


def _ctas_by_registers(limits: ArchLimits, warps: int, registers: int) -> int:
    """Return the CTAs that the registers allow. Each warp gets whole allocation units of one partition of the SM."""
    registers_per_warp = _round_up(max(registers, 1) * limits.warp_threads, limits.register_unit)
    checked_at_launch = registers_per_warp * _round_up(warps, limits.sm_partitions)
    if registers > limits.max_registers_per_thread or checked_at_launch > limits.registers_per_cta:
        return 0
    warps_per_partition = limits.registers_per_sm // limits.sm_partitions // registers_per_warp
    return warps_per_partition * limits.sm_partitions // warps


def _ctas_by_smem(limits: ArchLimits, smem_bytes: int) -> int:
    if smem_bytes > limits.smem_bytes_per_cta:
        return 0
    taken_bytes = _round_up(smem_bytes + limits.smem_reserved_bytes_per_cta, limits.smem_unit)
    return limits.smem_bytes_per_sm // taken_bytes if taken_bytes else limits.ctas_per_sm


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# ---- Inspection: the compiled kernel against the plan ---------------------------------------------------------------

_LOCAL = ("LDL", "STL")


@dataclass(frozen=True)
class Binary:
    """A compiled kernel, what the plan expects of it, and the log of ptxas."""

    cubin: bytes
    symbol: str
    expectation: Expectation
    ptxas_log: str = ""


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel: registers and stack bytes per thread, shared memory per CTA, CTAs per SM."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    smem_bytes: int
    ctas_per_sm: int
    warps_per_sm: int
    occupancy: float


@dataclass(frozen=True)
class Inspection:
    """The outcome: numbers for the record, and one line for each violation of the plan."""

    resources: Resources
    sass: dict[str, int]
    code_bytes: int
    store_spacing: int | None
    violations: tuple[str, ...]


def inspect(binary: Binary, nvdisasm: Path | None = None) -> Inspection:
    """Inspect one kernel; see `inspect_all`."""
    return inspect_all((binary,), nvdisasm)[0]


def inspect_all(binaries: Sequence[Binary], nvdisasm: Path | None = None) -> list[Inspection]:
    """Inspect kernels with one disassembly per architecture. The order is kept.

    Raises: HgemmError if a cubin cannot be read or nvdisasm cannot be run.
    """
    cubins = [read_cubin(binary.cubin, binary.symbol) for binary in binaries]
    codes = [MachineCode(binary.expectation.arch, cubin.text) for binary, cubin in zip(binaries, cubins)]
    listings = disassemble(codes, nvdisasm)
    return [_judge(*pair) for pair in zip(binaries, cubins, listings)]


def _judge(binary: Binary, cubin: CubinInfo, listing: Listing) -> Inspection:
    expected, arch = binary.expectation, ARCHS[binary.expectation.arch]
    report = parse_ptxas_log(binary.ptxas_log).get(binary.symbol)
    counts = listing.counts()
    resources = _resources(expected, arch, cubin, report, listing)
    spacing = _store_spacing(listing, expected.mma_opcode) if expected.store_spacing else None
    violations = (
        *_contract(expected, arch, cubin),
        *_launch(expected, arch, resources),
        *_local_memory(expected, resources, counts),
        *_same_build(report, resources, listing),
        *_tensor_instructions(expected, counts, listing.opcode_counts()),
        *_stores_apart(expected, spacing),
        *(f"{name} is missing: the plan requires it" for name in expected.required if not counts.get(name)),
        *(f"{name} {counts[name]}, the plan allows 0" for name in _forbidden(expected) if counts.get(name)),
        *(f"ptxas warns: {line}" for line in ptxas_warnings(binary.ptxas_log)),
    )
    return Inspection(resources, counts, cubin.code_bytes, spacing, violations)


def _forbidden(expected: Expectation) -> list[str]:
    """The forbidden mnemonics besides those of local memory, which `_local_memory` checks."""
    return [name for name in expected.forbidden if name not in _LOCAL]


def _resources(
    expected: Expectation, arch: Arch, cubin: CubinInfo, report: PtxasReport | None, listing: Listing
) -> Resources:
    smem_bytes = cubin.static_smem_bytes + expected.smem_bytes
    residency = occupancy(arch.limits, expected.threads, cubin.registers, smem_bytes)
    return Resources(
        registers=cubin.registers,
        spill_bytes=report.spill_bytes if report else sum(map(listing.bytes_moved, _LOCAL)),
        stack_bytes=cubin.stack_bytes,
        smem_bytes=smem_bytes,
        ctas_per_sm=residency.ctas_per_sm,
        warps_per_sm=residency.warps_per_sm,
        occupancy=residency.fraction,
    )


def _contract(expected: Expectation, arch: Arch, cubin: CubinInfo) -> list[str]:
    """Compare the numbers that the host and the kernel must agree on."""
    pairs = {
        "arch number": (cubin.arch_number, arch.number),
        "threads a CTA": (cubin.max_threads, expected.threads),
        "static smem bytes": (cubin.static_smem_bytes, expected.static_smem_bytes),
        "parameter bytes": (cubin.param_bytes, expected.param_bytes),
    }
    lines = [f"{what} {found}, the plan says {said}" for what, (found, said) in pairs.items() if found != said]
    if cubin.global_bytes > expected.global_bytes:
        lines.append(f"device variables {cubin.global_bytes} B, the plan allows {expected.global_bytes} B")
    return lines


def _launch(expected: Expectation, arch: Arch, resources: Resources) -> list[str]:
    lines = []
    if resources.registers > expected.max_registers:
        lines.append(f"registers {resources.registers}, the plan allows {expected.max_registers}")
    if resources.smem_bytes > arch.limits.smem_bytes_per_cta:
        lines.append(f"smem {resources.smem_bytes} B > {arch.limits.smem_bytes_per_cta} B of {arch.name}")
    if not resources.ctas_per_sm:
        taken = f"{expected.threads} threads of {resources.registers} registers, {resources.smem_bytes} B of smem"
        lines.append(f"no CTA fits on an SM of {arch.name}: {taken}")
    return lines


def _local_memory(expected: Expectation, resources: Resources, counts: dict[str, int]) -> list[str]:
    """Report spills, and arrays that are not in registers."""
    loads, stores = (counts.get(name, 0) for name in _LOCAL)
    if expected.allow_spills or not (loads or stores or resources.spill_bytes or resources.stack_bytes):
        return []
    cause = "registers spill" if resources.spill_bytes else "an array is indexed at run time"
    figures = f"LDL {loads}, STL {stores}, {resources.spill_bytes} B spilled, {resources.stack_bytes} B of stack"
    return [f"{figures}, the plan allows 0 of each: {cause}"]


def _same_build(report: PtxasReport | None, resources: Resources, listing: Listing) -> list[str]:
    """Compare the report of ptxas with the code. Arrays in local memory can add to the spilled bytes."""
    if report is None:
        return []
    lines = []
    if report.registers != resources.registers:
        lines.append(
            f"ptxas reports {report.registers} registers, the cubin {resources.registers}: they are of different builds"
        )
    for name, message in (("LDL", report.spill_load_bytes), ("STL", report.spill_store_bytes)):
        found = listing.bytes_moved(name)
        if found < message:
            lines.append(
                f"ptxas reports {message} B of spilling {name}, the code has {found} B: they are of different builds"
            )
    return lines


def _tensor_instructions(expected: Expectation, counts: dict[str, int], opcodes: dict[str, int]) -> list[str]:
    mnemonic = expected.mma_opcode.partition(".")[0]
    found, wanted, copies = counts.get(mnemonic, 0), expected.mma_per_k_tile, expected.max_k_tiles_in_code
    lines = []
    if found not in {wanted * copy for copy in range(1, copies + 1)}:
        unrolled = wanted and found > wanted and found % wanted == 0
        cause = "the k loop was unrolled" if unrolled else "atoms are missing or repeated"
        times = f", at most {copies} of them in the code" if copies > 1 else ""
        lines.append(
            f"{mnemonic} {found}, the plan expects {wanted} per k-tile ({expected.mma_theory}){times}: {cause}"
        )
    others = [name for name in opcodes if name.partition(".")[0] == mnemonic and name != expected.mma_opcode]
    if others:
        lines.append(f"{', '.join(others)} found, the plan says {expected.mma_opcode} only")
    return lines


def _store_spacing(listing: Listing, mma_opcode: str) -> int | None:
    """Return the minimum number of tensor instructions between two stores to shared memory in the k loop, or None.

    It counts within one iteration, not across iterations.
    """
    tensor = mma_opcode.partition(".")[0]
    message = "".join({tensor: "T", "STS": "S"}.get(each.mnemonic, "") for each in listing.loop_of(tensor))
    return min(map(len, message.split("S")[1:-1]), default=None)


def _stores_apart(expected: Expectation, found: int | None) -> list[str]:
    if not expected.store_spacing or (found is not None and found >= expected.store_spacing):
        return []
    tensor = expected.mma_opcode.partition(".")[0]
    message = "the k loop has no two stores" if found is None else f"{found} {tensor} between two STS in the k loop"
    return [f"{message}, the plan says {expected.store_spacing}: ptxas moved them"]
