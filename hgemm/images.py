"""The two forms in which a variant's code travels, and which devices each runs on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hgemm.errors import LibraryError, UnfitError

_TEGRA = 87


@dataclass(frozen=True)
class Image:
    """Code for one architecture: a cubin and the PTX that the driver compiles where the cubin does not run."""

    arch: str
    cubin: bytes = b""
    ptx: bytes = b""


def choose_code(image: Image, capability: tuple[int, int]) -> bytes:
    """Return the cubin where it runs on such a device, else the PTX. Raises UnfitError where neither does."""
    if image.cubin and cubin_runs(image.arch, capability):
        return image.cubin
    if image.ptx and ptx_runs(image.arch, capability):
        return image.ptx.rstrip(b"\0") + b"\0"
    here = "sm_{}{}".format(*capability)
    raise UnfitError(f"a kernel for {image.arch} does not run on {here}: generate it with --arch {here}")


def cubin_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Tell whether machine code for `arch` runs on a device of this compute capability.

    Source: CUDA C++ Programming Guide 12.6, "Binary Compatibility" (the same major version, the same minor one or a later
        one, but not from or to Tegra) and "Feature Set Compiler Targets" (code for sm_90a runs on 9.0 only).
    """
    number, suffix = _split(arch)
    here = capability[0] * 10 + capability[1]
    if suffix or _TEGRA in (number, here):
        return number == here
    return number // 10 == capability[0] and number <= here


def ptx_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Tell whether the driver compiles PTX for `arch` on such a device: any later one, but sm_90a's on 9.0 only."""
    number, suffix = _split(arch)
    here = capability[0] * 10 + capability[1]
    return number == here if suffix else number <= here


def _split(arch: str) -> tuple[int, str]:
    match = re.fullmatch(r"sm_([0-9]+)([a-z]?)", arch)
    if not match:
        raise LibraryError(f"arch {arch!a} is no architecture: generate the variant anew")
    return int(match[1]), match[2]
