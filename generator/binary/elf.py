"""Read what a cubin says of a kernel: registers, stack, shared memory, parameters and the machine code itself.

A cubin is a 64-bit little-endian ELF file. Only its headers, symbols and NVIDIA attributes are read, each with its
bounds checked, so that a truncated or altered file is an error of one line and never a fault.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from generator.errors import HgemmError

_MACHINE_CUDA = 190
_ABI_OF_CUDA_13 = 8
_NOBITS = 8
_SYMTAB = 2
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RESERVED_SMEM_SECTION = ".nv.shared.reserved.0"
_RESERVED_SMEM_SYMBOL = b".nv.reservedSmem."  # what is left of that section where nvJitLink made the cubin
_RESERVED_SMEM_BYTES = 1024

# Attributes of .nv.info sections, as `cuobjdump -elf` 13.x names them: EIFMT_* (format) and EIATTR_* (kind).
_EIFMT_SVAL = 0x04
_EIATTR_MAX_THREADS = 0x05
_EIATTR_FRAME_SIZE = 0x11
_EIATTR_MIN_STACK_SIZE = 0x12
_EIATTR_CBANK_PARAM_SIZE = 0x19
_EIATTR_REGCOUNT = 0x2F


@dataclass(frozen=True)
class CubinFacts:
    """What one kernel takes, as its cubin states it.

    Units: `registers` a thread, `max_threads` a CTA (0 where no bound was compiled in), all else bytes.
    `static_smem_bytes` leaves out the 1 KiB a CTA that is the system's, which cubins from sm_90 on count in.
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


def read_cubin(cubin: bytes, symbol: str) -> CubinFacts:
    """Read the facts of the kernel `symbol` from a cubin.

    Raises: HgemmError where the bytes are no whole cubin or hold no such kernel.
    Source: `cuobjdump -elf` 13.5 names the attributes; tests/test_elf.py holds their values against ptxas's own report.
    """
    try:
        return _read(cubin, symbol)
    except (struct.error, UnicodeDecodeError) as error:
        raise HgemmError(f"cubin of {symbol} is damaged ({error}): build it again") from error


def _read(cubin: bytes, symbol: str) -> CubinFacts:
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
        raise _damaged(symbol, f"{smem_bytes} B of shared memory, of which {reserved_bytes} B are the system's")
    module = _module_attributes(by_name, names.index(symbol), symbol)
    kernel = dict(_attributes(by_name.get(f".nv.info.{symbol}", _ABSENT).data, symbol))
    return CubinFacts(
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
    """Take the SM number from e_flags: bits 8 to 15 since ABI version 8 (CUDA 13), bits 0 to 7 before.

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
    """Name each symbol of .symtab, in order, with an empty name for what is not a function."""
    index = next((i for i, section in enumerate(sections) if section.kind == _SYMTAB), None)
    if index is None:
        raise _damaged(symbol, "no symbol table")
    link = _SECTION.unpack_from(cubin, header[6] + index * _SECTION.size)[6]
    if link >= len(sections) or len(sections[index].data) % _SYMBOL.size:
        raise _damaged(symbol, f"symbol table of {len(sections[index].data)} B, names in section {link}")
    rows = _SYMBOL.iter_unpack(sections[index].data)
    return [_string(sections[link].data, name) if info & 0xF == 2 else "" for name, info, *_ in rows]


def _module_attributes(by_name: dict[str, _Section], index: int, symbol: str) -> dict[int, int]:
    """Read what .nv.info says of each function, (symbol index, number) pairs, for one of them."""
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
    """Walk a .nv.info section: u8 format, u8 kind, then u16 value, or u16 size and that many bytes."""
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
