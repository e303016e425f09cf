"""The supported architectures and their limits, with the source of every number."""

from __future__ import annotations

import re
from dataclasses import dataclass

from generator.errors import RequestError, closest_words
from hgemm.errors import DeviceError

KIB = 1024


@dataclass(frozen=True)
class ArchLimits:
    """Limits of an SM, a CTA and a thread.

    Units: names ending in `_bytes` are bytes, registers are 32-bit.
    Source: CUDA Programming Guide 13.x, section 5.1.3, tables 30 (CTAs, warps), 31 (registers, shared memory) and 32
        (capacities); CUDA C++ Programming Guide 12.6, "Compute Capability 8.x, Shared Memory" (1 KiB a CTA is the
        system's). The units of allocation and the four register partitions are those of `cuda_occupancy.h` 13.0;
        ptxas 13.0 enforces the same CTAs, warps and shared memory; tests/test_arch.py asks it for each architecture.
    """

    registers_per_sm: int
    registers_per_cta: int
    max_registers_per_thread: int
    register_unit: int
    sm_partitions: int
    smem_bytes_per_sm: int
    smem_bytes_per_cta: int
    smem_static_bytes_per_cta: int
    smem_reserved_bytes_per_cta: int
    smem_unit: int
    warps_per_sm: int
    ctas_per_sm: int
    threads_per_cta: int
    warp_threads: int


@dataclass(frozen=True)
class Arch:
    """One compilation target: its name, its limits, and the instructions that it has. Rules and planning read these flags."""

    name: str
    number: int
    suffix: str
    limits: ArchLimits
    has_cp_async: bool
    has_bf16: bool
    has_mma_k16: bool
    has_tma: bool
    has_wgmma: bool
    has_setmaxnreg: bool

    @property
    def compute(self) -> str:
        """Name the virtual architecture of NVRTC: `compute_89`."""
        return f"compute_{self.number}{self.suffix}"

    @property
    def capability(self) -> tuple[int, int]:
        """Split the number into the compute capability: (8, 9)."""
        return divmod(self.number, 10)


def _limits(smem_kib_per_sm: int, warps_per_sm: int, ctas_per_sm: int) -> ArchLimits:
    """Return limits with the values that sm_80 and all later architectures share."""
    return ArchLimits(
        registers_per_sm=64 * KIB,
        registers_per_cta=64 * KIB,
        max_registers_per_thread=255,
        register_unit=256,
        sm_partitions=4,
        smem_bytes_per_sm=smem_kib_per_sm * KIB,
        smem_bytes_per_cta=(smem_kib_per_sm - 1) * KIB,
        smem_static_bytes_per_cta=48 * KIB,
        smem_reserved_bytes_per_cta=1 * KIB,
        smem_unit=128,
        warps_per_sm=warps_per_sm,
        ctas_per_sm=ctas_per_sm,
        threads_per_cta=1024,
        warp_threads=32,
    )


# Turing reserves nothing and allocates in units of 256 B (`cuda_occupancy.h`: cudaOccSMemAllocationGranularity).
_LIMITS_75 = ArchLimits(
    registers_per_sm=64 * KIB,
    registers_per_cta=64 * KIB,
    max_registers_per_thread=255,
    register_unit=256,
    sm_partitions=4,
    smem_bytes_per_sm=64 * KIB,
    smem_bytes_per_cta=64 * KIB,
    smem_static_bytes_per_cta=48 * KIB,
    smem_reserved_bytes_per_cta=0,
    smem_unit=256,
    warps_per_sm=32,
    ctas_per_sm=16,
    threads_per_cta=1024,
    warp_threads=32,
)
_LIMITS_80 = _limits(smem_kib_per_sm=164, warps_per_sm=64, ctas_per_sm=32)
_LIMITS_86 = _limits(smem_kib_per_sm=100, warps_per_sm=48, ctas_per_sm=16)
_LIMITS_87 = _limits(smem_kib_per_sm=164, warps_per_sm=48, ctas_per_sm=16)
# sm_88 is in no table of the guide: shared memory is `cuda_occupancy.h`'s, CTAs and warps are what ptxas 13.0 enforces.
_LIMITS_88 = _limits(smem_kib_per_sm=100, warps_per_sm=48, ctas_per_sm=16)
_LIMITS_89 = _limits(smem_kib_per_sm=100, warps_per_sm=48, ctas_per_sm=24)
_LIMITS_90 = _limits(smem_kib_per_sm=228, warps_per_sm=64, ctas_per_sm=32)
_LIMITS_110 = _limits(smem_kib_per_sm=228, warps_per_sm=48, ctas_per_sm=24)
_LIMITS_120 = _limits(smem_kib_per_sm=100, warps_per_sm=48, ctas_per_sm=24)


def _arch(number: int, limits: ArchLimits, suffix: str = "") -> Arch:
    ampere, tma, wgmma = number >= 80, number >= 90, (number, suffix) == (90, "a")
    return Arch(
        name=f"sm_{number}{suffix}",
        number=number,
        suffix=suffix,
        limits=limits,
        has_cp_async=ampere,
        has_bf16=ampere,
        has_mma_k16=ampere,
        has_tma=tma,
        has_wgmma=wgmma,
        has_setmaxnreg=wgmma,
    )


ARCHS: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        _arch(75, _LIMITS_75),
        _arch(80, _LIMITS_80),
        _arch(86, _LIMITS_86),
        _arch(87, _LIMITS_87),
        _arch(88, _LIMITS_88),
        _arch(89, _LIMITS_89),
        _arch(90, _LIMITS_90),
        _arch(90, _LIMITS_90, suffix="a"),
        _arch(100, _LIMITS_90),
        _arch(103, _LIMITS_90),
        _arch(110, _LIMITS_110),
        _arch(120, _LIMITS_120),
        _arch(121, _LIMITS_120),
    )
}

CARDS: dict[str, str] = {
    **dict.fromkeys(("gtx1650", "gtx1660", "rtx2060", "rtx2070", "rtx2080", "rtx2080ti", "titanrtx", "t4"), "sm_75"),
    **dict.fromkeys(("a100", "a800", "a30"), "sm_80"),
    **dict.fromkeys(("rtx3050", "rtx3060", "rtx3070", "rtx3080", "rtx3080ti", "rtx3090", "rtx3090ti"), "sm_86"),
    **dict.fromkeys(("a2", "a10", "a10g", "a16", "a40", "rtxa4000", "rtxa5000", "rtxa6000"), "sm_86"),
    **dict.fromkeys(("orin", "jetsonorin", "agxorin"), "sm_87"),
    **dict.fromkeys(
        ("rtx4050", "rtx4060", "rtx4070", "rtx4080", "rtx4090", "rtx6000ada", "l4", "l40", "l40s"), "sm_89"
    ),
    **dict.fromkeys(("h100", "h200", "h800", "h20", "gh200"), "sm_90a"),
    **dict.fromkeys(("b100", "b200", "gb200"), "sm_100"),
    **dict.fromkeys(("b300", "gb300"), "sm_103"),
    **dict.fromkeys(("thor", "jetsonthor", "agxthor"), "sm_110"),
    **dict.fromkeys(("rtx5050", "rtx5060", "rtx5070", "rtx5080", "rtx5090", "rtxpro6000"), "sm_120"),
    **dict.fromkeys(("gb10", "dgxspark"), "sm_121"),
}
"""Architectures by names of cards, in lower case and without spaces. Hopper has the one with wgmma.

Source: the table of compute capabilities at developer.nvidia.com/cuda-gpus.
"""
OLD_CARDS = {
    **dict.fromkeys(("volta", "v100", "titanv", "quadrogv100"), "sm_70"),
    **dict.fromkeys(("pascal", "p100"), "sm_60"),
    **dict.fromkeys(("p4", "p40", "gtx1060", "gtx1070", "gtx1080", "gtx1080ti", "titanxp"), "sm_61"),
}
"""Cards older than all of ARCHS, as people write them. Source: as of CARDS."""
OLDEST = min(ARCHS.values(), key=lambda arch: arch.number)
NATIVE = "native"
"""The architecture of GPU 0 of this machine."""
GENERATIONS = {
    "turing": "sm_75",
    "ampere": "sm_80 (A100) or sm_86 (RTX 30, A10)",
    "ada": "sm_89",
    "hopper": "sm_90a",
    "blackwell": "sm_100 (B200) or sm_120 (RTX 50)",
}
"""Hint for the name of a generation: its first architecture, or the one with wgmma. Source: as of CARDS."""
_SPELLING = re.compile(r"(?:sm_?|compute_?)?([0-9]{1,3})(?:\.([0-9]))?([a-z]?)", re.IGNORECASE | re.ASCII)
_BRANDS = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")


def parse_arch(text: str, what: str = "arch") -> str:
    """Turn `sm_90a`, `90a`, `compute_90a`, `9.0a` or `h100` into the canonical name `sm_90a`; errors call it `what`.

    `native` is the architecture of this machine's GPU.
    Raises: RequestError with the nearest and all known names, if the architecture is unknown. DeviceError for `native` without a
        GPU.
    """
    match = _SPELLING.fullmatch(text.strip())
    if match is None:
        plain = _BRANDS.sub("", text.lower())
        if plain == NATIVE:
            return native_arch(what)
        if card := CARDS.get(plain) or CARDS.get(f"rtx{plain}"):
            return card
        if plain in OLD_CARDS:
            raise _too_old(what, text, OLD_CARDS[plain])
        generation = GENERATIONS.get(plain)
        raise _unknown(what, text, [generation] if generation else closest_words(text, ARCHS, cutoff=0.75))
    digits, minor, suffix = match.groups(default="")
    name = f"sm_{int(digits + minor)}{suffix.lower()}"
    if name not in ARCHS:
        if 20 <= int(digits + minor) < OLDEST.number:
            raise _too_old(what, text, name)
        begun = [known for known in ARCHS if known.startswith(name) and not suffix]
        if begun:
            raise _unknown(what, text, begun[:1])
        off = {arch.name: abs(arch.number - int(digits + minor)) for arch in ARCHS.values()}
        closest = min(ARCHS.values(), key=lambda arch: (off[arch.name], bool(arch.suffix) != bool(suffix)))
        raise _unknown(what, text, [closest.name])
    return name


def native_arch(what: str = "arch") -> str:
    """Return the architecture of this machine's GPU 0, the one with wgmma if it has any.

    Raises: DeviceError if there is no GPU, RequestError if its architecture is unknown.
    """
    from hgemm.device import open_device  # most programs need no driver here

    try:
        major, minor = open_device().capability
    except DeviceError as error:
        raise DeviceError(f"{what} native: {error}: name an architecture or a card, such as sm_89 or rtx4090") from None
    name = parse_arch(f"{10 * major + minor}", f"{what} native:")
    return f"{name}a" if f"{name}a" in ARCHS else name


def parse_arch_list(text: str, what: str = "arch") -> tuple[str, ...]:
    """Turn `sm_80,89` into canonical names in the order given, each once; errors call it `what`.

    Raises: RequestError if a name is unknown or the list is empty.
    """
    names = tuple(dict.fromkeys(parse_arch(word, what) for word in text.split(",") if word.strip()))
    if not names:
        raise RequestError(f"{what} {text!r} is empty: use {', '.join(ARCHS)}")
    return names


def _too_old(what: str, text: str, name: str) -> RequestError:
    called = f"{text!a}" if name in text else f"{text!a} is {name}, which"
    return RequestError(
        f"{what} {called} is not supported: the oldest supported architecture is {OLDEST.name} (Turing)"
    )


def _unknown(what: str, text: str, near: list[str]) -> RequestError:
    hint = f"did you mean {near[0]}? " if near else ""
    return RequestError(f"{what} {text!a} is unknown: {hint}use {', '.join(ARCHS)}, a card such as h100, or native")
