"""The probes of benchmarks/cpi.py, and the text of the wgmma instructions in cpi.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("cpi.cu")
PARTITION, SM = "partition", "sm"
PARTITIONS_PER_SM = 4
MIB = 1 << 20
ONE_SM, ALL_SMS = "one", "all"
SHARERS = 12
"""CTAs of a row or column of tiles, where 132 SMs compute a square of them."""

L1_WINDOW_BYTES = 16 << 10
L2_WINDOW_BYTES = 16 * MIB
"""More than any L1 and less than the L2 of any card that has enough of it; half of it where L2 is small."""
DRAM_WINDOW_BYTES = 4096 * MIB
L2_WAYS = (
    ("l2", dict(window_bytes=L2_WINDOW_BYTES, sms=ONE_SM)),
    ("l2", dict(window_bytes=L2_WINDOW_BYTES, sms=ALL_SMS)),
    ("l2_shared", dict(window_bytes=L2_WINDOW_BYTES, sms=ALL_SMS, sharers=SHARERS)),
)
"""How L2 is read: by one SM alone, by all, each its own, and by all, some the same."""


@dataclass(frozen=True)
class Probe:
    """One instruction, issued by one or more numbers of warps on one SM or all; the fewest cycles count.

    Units: `per_step` counts the instructions of a warp (of a warpgroup for wgmma, of a CTA for `whole_cta`) in a step of
    the loop, `bytes` those that one moves; CPI is cycles for one of them on a `unit` of the machine. `latency` probes issue
    one after the other instead. `sass` is the opcode, other modifiers aside, that the loop must have `per_step` of.
    `cold` ones find nothing in L2; `sharers` SMs read the same at about the same time, as CTAs in a row of tiles do.
    """

    name: str
    kernel: str
    sass: str
    per_step: int
    unit: str = SM
    warps: tuple[int, ...] = (4, 8, 16)
    threads_per_issue: int = 32
    steps: int = 1000
    smem_bytes: int = 32768
    smem_bytes_per_warp: int = 0
    bytes: int = 0
    window_bytes: int = L1_WINDOW_BYTES
    sms: str = ALL_SMS
    latency: bool = False
    cold: bool = False
    sharers: int = 1
    min_arch: int = 75
    max_arch: int = 999


def mma_probes() -> Iterator[Probe]:
    """mma.sync: cycles for an instruction on one of the four partitions of an SM."""
    shapes = {
        **{"m16n8k8_f32": ("HMMA.1688.F32", 75), "m16n8k8_f16": ("HMMA.1688.F16", 75)},
        **{"m16n8k16_f32": ("HMMA.16816.F32", 80), "m16n8k16_f16": ("HMMA.16816.F16", 80)},
        "m16n8k16_bf16": ("HMMA.16816.F32.BF16", 80),
        **{"m16n8k4_tf32": ("HMMA.1684.F32.TF32", 80), "m16n8k8_tf32": ("HMMA.1688.F32.TF32", 80)},
    }
    for name, (sass, arch) in shapes.items():
        yield Probe(f"hmma_{name}", name, sass, 16, unit=PARTITION, min_arch=arch)
        yield Probe(f"hmma_{name}", f"{name}_latency", sass, 1, warps=(1,), latency=True, min_arch=arch)


def shared_probes() -> Iterator[Probe]:
    """Shared memory without bank conflicts: cycles for an instruction of a warp on an SM."""
    for bits in (32, 64, 128):
        suffix = "" if bits == 32 else f".{bits}"
        yield Probe(f"lds{bits}", f"lds{bits}", f"LDS{suffix}", 8, bytes=4 * bits)
        yield Probe(f"sts{bits}", f"sts{bits}", f"STS{suffix}", 8, bytes=4 * bits)
    for count in (1, 2, 4):
        for trans in ("", "_trans"):
            name = f"ldsm_x{count}{trans}"
            yield Probe(name, name, "LDSM", 8, bytes=128 * count)
    yield Probe("stsm_x4", "stsm_x4", "STSM", 8, bytes=512, min_arch=90)
    yield Probe("lds32", "lds32_latency", "LDS", 1, warps=(1,), latency=True)
    yield Probe("ldsm_x4", "ldsm_x4_latency", "LDSM", 1, warps=(1,), latency=True)


def global_probes() -> Iterator[Probe]:
    """Global memory: cycles for an instruction of a warp on an SM, alone or while all do the same."""
    for bits in (32, 64, 128):
        suffix, size = ("" if bits == 32 else f".{bits}"), 4 * bits
        yield Probe(f"ldg{bits}_l1", f"ldg{bits}_ca", f"LDG.E{suffix}", 8, bytes=size, warps=(8, 16))
        for where, way in L2_WAYS:
            l2 = dict(bytes=size, warps=(16, 32), steps=500, **way)
            yield Probe(f"ldg{bits}_{where}", f"ldg{bits}_cg", f"LDG.E{suffix}", 8, **l2)
            if where == "l2":
                yield Probe(f"stg{bits}_l2", f"stg{bits}", f"STG.E{suffix}", 8, **l2)
    for size, mode in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")):
        name, kernel = f"cp_async{size * 8}_{mode}", f"cp_async{size}_{mode}"
        own = dict(smem_bytes=0, smem_bytes_per_warp=512 * size, min_arch=80)
        copy = dict(bytes=32 * size, warps=(4, 8, 16), steps=500, **own)
        for where, way in L2_WAYS:
            yield Probe(f"{name}_{where}", kernel, "LDGSTS", 4, **copy, **way)
        if mode == "ca":
            yield Probe(f"{name}_l1", kernel, "LDGSTS", 4, **copy)
    dram = dict(bytes=512, warps=(32,), window_bytes=DRAM_WINDOW_BYTES, steps=0)
    yield Probe("dram_read", "ldg128_cg", "LDG.E.128", 8, **dram)
    yield Probe("dram_write", "stg128", "STG.E.128", 8, **dram)
    yield Probe("dram_copy", "copy128", "LDG.E.128", 8, **dram)


def latency_probes() -> Iterator[Probe]:
    """One after the other: cycles from an instruction to the next that needs what it gave."""
    for name, kernel, window in (
        ("ldg_l1", "ldg_ca_latency", 8 << 10),
        ("ldg_l2", "ldg_cg_latency", 8 * MIB),
        ("ldg_dram", "ldg_cg_latency", 1024 * MIB),
    ):
        chase = dict(warps=(1,), sms=ONE_SM, window_bytes=window, steps=2000, latency=True, cold=name == "ldg_dram")
        yield Probe(name, kernel, "LDG", 1, **chase)
    one = dict(warps=(1,), sms=ONE_SM, window_bytes=L2_WINDOW_BYTES, latency=True)
    yield Probe("cp_async128_l2", "cp_async16_latency", "LDGSTS", 1, **one, bytes=512, smem_bytes=65536, min_arch=80)
    for warps in (4, 8, 12, 16):
        yield Probe(
            f"barrier_{warps * 32}", "barrier", "BAR", 8, warps=(warps,), threads_per_issue=warps * 32, latency=True
        )


def bulk_probes() -> Iterator[Probe]:
    """TMA's copies without a tensor map: cycles for one of so many bytes into an SM."""
    for kib in (16, 32):
        for where, way in L2_WAYS:
            bulk = dict(bytes=kib << 10, warps=(1,), smem_bytes=1024 + (192 << 10), min_arch=90, **way)
            yield Probe(f"bulk{kib}k_{where}", f"bulk{kib}k", "UBLKCP", 1, **bulk)
    one = dict(warps=(1,), sms=ONE_SM, window_bytes=L2_WINDOW_BYTES, latency=True)
    yield Probe("bulk1k_l2", "bulk_latency", "UBLKCP", 1, **one, bytes=1024, min_arch=90)


# ---- wgmma --------------------------------------------------------------------------------------------------------------

_SUMS = {"f32": ("float", "+f", 2), "f16": ("u32", "+r", 4)}
"""Type of a thread's registers of sums, its letter for asm, and how many columns there are for each register."""
_COLUMNS = {"f32": (8, 16, 32, 64, 96, 128, 192, 256), "f16": (8, 16, 32, 64, 96, 128, 192, 256), "bf16": (256,)}
_WITH_LATENCY = (8, 64, 128, 256)


def _wgmmas() -> Iterator[tuple[str, str, int]]:
    for kind, columns in _COLUMNS.items():
        yield from ((f"m64n{n}k16_{kind}", kind, n) for n in columns)


def wgmma_probes() -> Iterator[Probe]:
    """wgmma: cycles for an instruction of a warpgroup on an SM, both operands in shared memory."""
    only = dict(smem_bytes=65536, min_arch=90, max_arch=90)
    for name, kind, n in _wgmmas():
        sass = f"HGMMA.64x{n}x16." + {"f32": "F32", "f16": "F16", "bf16": "F32.BF16"}[kind]
        yield Probe(f"hgmma_{name}", name, sass, 8, warps=(4, 8), threads_per_issue=128, steps=300, **only)
        if n in _WITH_LATENCY and kind != "bf16":
            one = dict(warps=(4,), threads_per_issue=128, latency=True)
            yield Probe(f"hgmma_{name}", f"{name}_latency", sass, 1, **one, **only)


def wgmma_text() -> str:
    """Write the structs and the kernels of wgmma for cpi.cu."""
    structs = [_wgmma_struct(name, kind, n) for name, kind, n in _wgmmas()]
    kernels = [f"WGMMA_KERNELS({name})" for name, _, _ in _wgmmas()]
    kernels += [f"WGMMA_LATENCY({name})" for name, kind, n in _wgmmas() if n in _WITH_LATENCY and kind != "bf16"]
    return "\n".join([*structs, "#define WGMMA " + " ".join(kernels), ""])


def _wgmma_struct(name: str, kind: str, n: int) -> str:
    sum_type, letter, columns_per_register = _SUMS["f16" if kind == "f16" else "f32"]
    count = n // columns_per_register
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"{letter}"(d[{i}])' for i in range(count))
    element, total = ("bf16", "f32") if kind == "bf16" else ("f16", kind)
    turned = f"%{count}, %{count + 1}, 1, 1, 1, 0, 0"  # D is added to, nothing is negated or transposed
    return (
        f"struct Wgmma_{name} {{ using Sum = {sum_type}; static constexpr int registers = {count};\n"
        f'  static __device__ __forceinline__ void keep({sum_type}& r) {{ asm volatile("" : "{letter}"(r) :: "memory"); }}\n'
        f"  static __device__ __forceinline__ void issue({sum_type} (&d)[{count}], unsigned long long a, unsigned long long b) {{\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.{total}.{element}.{element} {{{sums}}}, {turned};"\n'
        f'      : {operands} : "l"(a), "l"(b)); }} }};'
    )


def smem_bytes(probe: Probe, warps: int) -> int:
    """Return the shared memory of a CTA of so many warps."""
    return probe.smem_bytes + warps * probe.smem_bytes_per_warp


def probes(arch: int) -> list[Probe]:
    """Return the probes that an architecture such as 90 has."""
    every = [*mma_probes(), *shared_probes(), *global_probes(), *latency_probes(), *wgmma_probes(), *bulk_probes()]
    return [probe for probe in every if probe.min_arch <= arch <= probe.max_arch]


def source(arch: int) -> str:
    """Return the text to compile for an architecture."""
    text = SOURCE.read_text(encoding="utf-8")
    return ("using u32 = unsigned;\n" + wgmma_text() if arch == 90 else "") + text
