"""The code of all variants as one file, images.bin: a compressed fat binary each, of its cubin and its PTX."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from generator.errors import HgemmError
from generator.toolchain import INSTALL
from hgemm.library import Library

ALIGN_BYTES = 64
_COMPRESS = ("-compress-all", "-compress-mode=size")


@dataclass(frozen=True)
class Code:
    """Where code lies in images.bin, and its CRC-32."""

    offset: int
    size: int
    crc32: int


@dataclass(frozen=True)
class Images:
    """The file, and by symbol where the code lies that a cubin's devices load, and that others load."""

    blob: bytes
    cubins: dict[str, Code]
    ptx: dict[str, Code]


def pack(library: Library, symbols: Iterable[str], compressed: bool = True) -> Images:
    """Read the code of variants, hashes checked, and pack it in the order given.

    Raises: LibraryError where a variant cannot be trusted, HgemmError where nvFatbin is missing.
    """
    blob = bytearray()
    cubins: dict[str, Code] = {}
    ptx: dict[str, Code] = {}
    for symbol in symbols:
        image = library.kernel(symbol).image
        text = image.ptx.rstrip(b"\0") + b"\0"
        if compressed:
            cubins[symbol] = ptx[symbol] = _append(blob, fat_binary(symbol, image.arch, image.cubin, text))
        else:
            cubins[symbol], ptx[symbol] = _append(blob, image.cubin), _append(blob, text)
    return Images(bytes(blob), cubins, ptx)


def _append(blob: bytearray, code: bytes) -> Code:
    blob.extend(bytes(-len(blob) % ALIGN_BYTES))
    blob.extend(code)
    return Code(len(blob) - len(code), len(code), zlib.crc32(code))


def fat_binary(symbol: str, arch: str, cubin: bytes, ptx: bytes) -> bytes:
    """Return a fat binary, from which the driver takes the cubin where it runs and the PTX elsewhere.

    Source: nvFatbin 13.0, "Supported Options".
    """
    try:
        from cuda.bindings import nvfatbin  # 0.05 s, and needed only where something is exported

        handle = nvfatbin.create(list(_COMPRESS), len(_COMPRESS))
    except (ImportError, RuntimeError) as missing:
        raise HgemmError(
            f"wheel nvidia-nvfatbin is missing ({missing}): {INSTALL}, or export with --uncompressed"
        ) from missing
    try:
        number = arch.removeprefix("sm_")
        nvfatbin.add_cubin(handle, cubin, len(cubin), number, symbol)
        nvfatbin.add_ptx(handle, ptx, len(ptx), number, symbol, "")
        code = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, code)
        return bytes(code)
    except nvfatbin.nvFatbinError as error:
        raise HgemmError(
            f"{symbol}: nvFatbin cannot read its machine code or PTX ({error}): generate it again with --force"
        ) from error
    finally:
        nvfatbin.destroy(handle)
