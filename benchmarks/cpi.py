"""Measure the cycles of instructions and the bandwidth of memories, as data for the cost model.

\b
    python -m benchmarks.cpi measure --json cpi.json    # needs a GPU and cuda-bindings; about a minute
    python -m benchmarks.cpi check sm_90a               # compiles and checks the machine code; no GPU
    python -m benchmarks.cpi table benchmarks/data/cpi_h200.json --card h200
    python -m benchmarks.cpi table benchmarks/data/cpi_h200.json --card h100 --sm-only    # the same chip

Each row of `cpi` is one instruction at a number of warps per SM. `cycles` are SM clocks per instruction at full throughput, on a
partition (a quarter of an SM, with its own tensor core) or on a whole SM. With `latency`, they are the clocks until the result
can be used. The median of CTAs and of five launches counts. `steady` runs tensor instructions for seconds on normal(0, 1) data,
and reads clock and power.
`table` writes the figures into a card's table of the cost model.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import json
import math
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from generator.build.inspect import Listing, MachineCode, disassemble, find_nvdisasm, read_cubin
from hgemm.model.cards import FOLDER, parse_card

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


SCHEMA = 1
LAUNCHES = 5
DATA_WORDS = 16384
GRAPH_NODES = 1000
STEADY = ("hmma_m16n8k16_f32", "hmma_m16n8k16_f16", "hgmma_m64n256k16_f32", "hgmma_m64n256k16_f16")
FLOPS = {"hmma": 2 * 16 * 8 * 16, "hgmma": 2 * 64 * 256 * 16}
BATCH_MS = 400
LOCAL_MEMORY = ("LDL", "STL")


class Failed(Exception):
    """A compilation, a check or a CUDA call failed; the text says which."""


class Args(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("stamps", "sink", "data", "out")),
        *((name, ctypes.c_uint64) for name in ("window_mask", "warp_stride", "step_stride")),
        *((name, ctypes.c_int) for name in ("steps", "sharers", "zero")),
    ]


# ---- Machine code -------------------------------------------------------------------------------------------------------


def compile_for(arch: str) -> bytes:
    """Return the cubin of all kernels. Raises: Failed on an error or a warning, such as serialised wgmma."""
    from cuda.bindings import nvrtc

    text = source(int("".join(filter(str.isdigit, arch))))
    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), b"cpi.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-Xptxas=-v"]
    status = int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
    log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
    checked(nvrtc.nvrtcGetProgramLog(program, log))
    problems = [line for line in log.decode(errors="replace").splitlines() if re.search(r"error|fatal|\(C7\d+\)", line)]
    if status or problems:
        raise Failed("\n".join(problems[:5]) or log.decode(errors="replace"))
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def check_code(arch: str, cubin: bytes) -> bool:
    """Check the loops of all kernels. Return False without nvdisasm. Raises: Failed if a loop is not as planned."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    try:
        program = find_nvdisasm([*folders, Path("/usr/local/cuda/bin")])
    except Exception as error:
        print(f"cpi: machine code is not checked: {error}", file=sys.stderr)
        return False
    wanted = probes(int("".join(filter(str.isdigit, arch))))
    kernels = sorted({probe.kernel for probe in wanted})
    codes = [MachineCode(arch, read_cubin(cubin, kernel).text) for kernel in kernels]
    listings = dict(zip(kernels, disassemble(codes, program)))
    wrong = [found for probe in wanted if (found := judge(probe, listings[probe.kernel]))]
    if wrong:
        raise Failed("; ".join(wrong))
    return True


def judge(probe: Probe, listing: Listing) -> str:
    """Return what is wrong with the code of a probe, or "": its loop must hold the instructions, and nothing may spill."""
    loop = main_loop(listing)
    wanted = probe.sass.split(".")
    found = sum(opcode.split(".")[0] == wanted[0] and {*wanted} <= {*opcode.split(".")} for opcode in loop)
    spills = [name for name in LOCAL_MEMORY if listing.counts().get(name)]
    if found != probe.per_step:
        return f"{probe.kernel} has {found} {probe.sass} in its loop, not {probe.per_step}"
    return f"{probe.kernel} spills registers" if spills else ""


def main_loop(listing: Listing) -> list[str]:
    """Return the opcodes of the loop between the two readings of the clock: from a backward jump's target to the jump."""
    clocks = [i.address_bytes for i in listing.instructions if i.mnemonic == "CS2R" and "CLOCK" in i.operands]
    longest: list[str] = []
    for jump in listing.instructions:
        if jump.mnemonic == "BRA" and "0x" in jump.operands:
            target = int(jump.operands.rpartition("0x")[2], 16)
            if clocks and clocks[0] < target <= jump.address_bytes < clocks[-1]:
                body = [i.opcode for i in listing.instructions if target <= i.address_bytes <= jump.address_bytes]
                longest = max(longest, body, key=len)
    return longest


# ---- Device ---------------------------------------------------------------------------------------------------------------


def checked(result):
    if int(result[0]):
        raise Failed(f"CUDA: {result[0]}")
    return result[1] if len(result) == 2 else result[1:] or None


def query(words: str) -> list[str]:
    """Ask nvidia-smi. Return "-" for each word if it fails."""
    command = ["nvidia-smi", f"--query-gpu={words}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return [word.strip() for word in done.stdout.splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ["-"] * (words.count(",") + 1)


def to_number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Timed:
    """One launch. Units: SM clocks, the median of CTAs; MHz; milliseconds by events."""

    clocks: float
    sm_mhz: float
    milliseconds: float


class Gpu:
    """The first device, with the buffers of the kernels."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        checked(driver.cuInit(0))
        self.handle = checked(driver.cuDeviceGet(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(self.handle))))
        self.name = checked(driver.cuDeviceGetName(128, self.handle)).partition(b"\0")[0].decode()
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{word}") for word in ("MAJOR", "MINOR"))
        self.number = major * 10 + minor
        self.arch = f"sm_{self.number}" + ("a" if self.number == 90 else "")
        self.sms, self.l2_bytes = self.attribute("MULTIPROCESSOR_COUNT"), self.attribute("L2_CACHE_SIZE")
        free = checked(driver.cuMemGetInfo())[0]
        self.smem_bytes = self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.window_bytes = min(4096 * MIB, 1 << (int(free * 0.4).bit_length() - 1))  # data and out, each so large
        self.data, self.out = (checked(driver.cuMemAlloc(self.window_bytes)) for _ in range(2))
        self.sink, self.stamps = (checked(driver.cuMemAlloc(size)) for size in (4, self.sms * 32 * 32))
        self.begin, self.end = (checked(driver.cuEventCreate(0)) for _ in range(2))
        self.stream = checked(driver.cuStreamCreate(1))
        self.module = None

    def attribute(self, name: str) -> int:
        attribute = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return checked(self.driver.cuDeviceGetAttribute(attribute, self.handle))

    def load(self, cubin: bytes) -> None:
        """Load the kernels and fill `data` with normal halves."""
        self.module = checked(self.driver.cuModuleLoadData(cubin))
        draw = random.Random(1)
        halves = struct.pack(f"<{2 * DATA_WORDS}e", *(draw.gauss(0.0, 1.0) for _ in range(2 * DATA_WORDS)))
        buffer = ctypes.create_string_buffer(halves, len(halves))
        checked(self.driver.cuMemcpyHtoD(self.data, ctypes.addressof(buffer), len(halves)))
        checked(self.driver.cuMemsetD8(self.out, 0, self.window_bytes))
        checked(self.driver.cuCtxSynchronize())
        self.fill()

    def fill(self) -> None:
        """Repeat the beginning of `data` over all of it, which leaves nothing else in L2."""
        self.launch("repeat", self.sms * 4, 256, 0, self.args(window_bytes=self.window_bytes))
        self.wait()

    def args(
        self, window_bytes: int = MIB, warp_stride: int = 0, step_stride: int = 0, steps: int = 0, sharers: int = 1
    ):
        addresses = [int(pointer) for pointer in (self.stamps, self.sink, self.data, self.out)]
        return Args(*addresses, window_bytes - 1, warp_stride, step_stride, steps, sharers, 0)

    def fitting(self, probe: Probe) -> list[int]:
        """Return the numbers of warps of a probe that fit into the shared memory of an SM."""
        return [warps for warps in probe.warps if smem_bytes(probe, warps) <= self.smem_bytes]

    def function(self, name: str, dynamic_bytes: int):
        function = checked(self.driver.cuModuleGetFunction(self.module, name.encode()))
        most = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if dynamic_bytes > 48 << 10:
            checked(self.driver.cuFuncSetAttribute(function, most, dynamic_bytes))
        return function

    def launch(self, name: str, ctas: int, threads: int, dynamic_bytes: int, args: Args) -> None:
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        function = self.function(name, dynamic_bytes)
        dims = (ctas, 1, 1, threads, 1, 1)
        checked(self.driver.cuLaunchKernel(function, *dims, dynamic_bytes, self.stream, ctypes.addressof(pointer), 0))

    def wait(self) -> None:
        checked(self.driver.cuStreamSynchronize(self.stream))

    def timed(self, name: str, ctas: int, threads: int, dynamic_bytes: int, args: Args) -> Timed:
        """Launch once and read the clocks: of each CTA from the first warp's beginning to the last one's end."""
        checked(self.driver.cuEventRecord(self.begin, self.stream))
        self.launch(name, ctas, threads, dynamic_bytes, args)
        checked(self.driver.cuEventRecord(self.end, self.stream))
        self.wait()
        milliseconds = checked(self.driver.cuEventElapsedTime(self.begin, self.end))
        warps = threads // 32
        stamps = array.array("Q", bytes(ctas * warps * 32))
        checked(self.driver.cuMemcpyDtoH(stamps.buffer_info()[0], self.stamps, len(stamps) * 8))
        clocks, rates = [], []
        for cta in range(ctas):
            rows = [stamps[at : at + 4] for at in range(cta * warps * 4, (cta + 1) * warps * 4, 4)]
            clocks.append(max(row[1] for row in rows) - min(row[0] for row in rows))
            rates += [(row[1] - row[0]) / (row[3] - row[2]) * 1e3 for row in rows if row[3] > row[2]]
        return Timed(statistics.median(clocks), statistics.median(rates) if rates else math.nan, milliseconds)


# ---- Measurements -----------------------------------------------------------------------------------------------------------


def measure(gpu: Gpu, probe: Probe, warps: int) -> dict:
    """Return a row: the median of some launches, after one that warms the caches."""
    ctas = gpu.sms if probe.sms == ALL_SMS else 1
    window_bytes = min(probe.window_bytes, gpu.window_bytes)
    if MIB < window_bytes <= 64 * MIB:  # to be found in L2
        while window_bytes * 2 > gpu.l2_bytes:
            window_bytes //= 2
    walkers = -(-ctas // probe.sharers) * (1 if probe.name.startswith("bulk") else warps)
    stride = probe.per_step * probe.bytes
    args = gpu.args(window_bytes, stride, stride * walkers, probe.steps, probe.sharers)
    if probe.steps == 0:  # through the window once
        args.steps = window_bytes // args.step_stride
    if "ldg" in probe.kernel and probe.latency:
        ring(gpu, args, window_bytes)
    runs = []
    for _ in range(LAUNCHES + 1):
        if probe.cold:
            gpu.fill()
        runs.append(gpu.timed(probe.kernel, ctas, warps * 32, smem_bytes(probe, warps), args))
    runs = runs[1:]
    clocks = statistics.median(run.clocks for run in runs)
    issued = args.steps * probe.per_step * warps * 32 / max(probe.threads_per_issue, 32)
    parallel = PARTITIONS_PER_SM if probe.unit == PARTITION and not probe.latency else 1
    row = {
        **{"name": probe.name, "kernel": probe.kernel, "instruction": probe.sass, "latency": probe.latency},
        **{"unit": probe.unit, "warps": warps, "sms": ctas, "cycles": round(clocks / issued * parallel, 4)},
        **{"sm_mhz": round(statistics.median(run.sm_mhz for run in runs), 1)},
        "spread": round((max(run.clocks for run in runs) - min(run.clocks for run in runs)) / clocks, 4),
    }
    if probe.bytes and not probe.latency:
        moved = issued * probe.bytes * (2 if probe.kernel == "copy128" else 1)
        seconds = statistics.median(run.milliseconds for run in runs) / 1e3
        row |= {
            "bytes_per_clock_per_sm": round(moved / clocks, 3),
            "gbytes_per_s": round(moved * ctas / seconds / 1e9, 1),
        }
        row |= {"window_bytes": window_bytes}
    return row


def ring(gpu: Gpu, args: Args, window_bytes: int) -> None:
    """Write a chain of addresses into `out`, one to each line or page."""
    args.step_stride = 128 if window_bytes <= MIB else 4096 + 128 if window_bytes <= 64 * MIB else 65536 + 128
    chain = gpu.args(step_stride=args.step_stride, steps=window_bytes // args.step_stride)
    gpu.launch("ring", gpu.sms, 256, 0, chain)
    gpu.wait()


def launches(gpu: Gpu) -> dict:
    """Measure empty kernels: microseconds from one to the next in a stream and in a graph, and until one was waited for."""
    driver, args, many = gpu.driver, gpu.args(), 2000

    def span_us(issue) -> float:
        checked(driver.cuEventRecord(gpu.begin, gpu.stream))
        issue()
        checked(driver.cuEventRecord(gpu.end, gpu.stream))
        gpu.wait()
        return checked(driver.cuEventElapsedTime(gpu.begin, gpu.end)) * 1e3

    def stream() -> None:
        for _ in range(many):
            checked(driver.cuLaunchKernel(function, gpu.sms, 1, 1, 128, 1, 1, 0, gpu.stream, pointer, 0))

    def round_trip_us() -> float:
        begin = time.perf_counter()
        gpu.launch("empty", gpu.sms, 128, 0, args)
        gpu.wait()
        return (time.perf_counter() - begin) * 1e6

    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(args))
    function, pointer = gpu.function("empty", 0), ctypes.addressof(parameters)
    checked(driver.cuStreamBeginCapture(gpu.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for _ in range(GRAPH_NODES):
        gpu.launch("empty", gpu.sms, 128, 0, args)
    graph = checked(driver.cuGraphInstantiate(checked(driver.cuStreamEndCapture(gpu.stream)), 0))
    in_graph = [
        span_us(lambda: checked(driver.cuGraphLaunch(graph, gpu.stream))) / GRAPH_NODES for _ in range(LAUNCHES)
    ]
    return {
        "stream_us": round(statistics.median(span_us(stream) / many for _ in range(3)), 3),
        "graph_us": round(statistics.median(in_graph), 3),
        "round_trip_us": round(statistics.median(round_trip_us() for _ in range(200)), 3),
    }


def steady(gpu: Gpu, probe: Probe, seconds: float) -> dict:
    """Run a tensor instruction for some seconds; TFLOP/s, clock and power of the second half."""
    warps = 8
    steps = 3000 if probe.name.startswith("hmma") else 800  # few enough for f16 accumulators to stay finite
    flops = (
        gpu.sms * steps * probe.per_step * warps * 32 / probe.threads_per_issue * FLOPS[probe.name.partition("_")[0]]
    )
    args, seen, count, until = gpu.args(steps=steps), [], 50, time.time() + seconds
    while time.time() < until:
        checked(gpu.driver.cuEventRecord(gpu.begin, gpu.stream))
        for _ in range(count):
            gpu.launch(probe.kernel, gpu.sms, warps * 32, probe.smem_bytes, args)
        checked(gpu.driver.cuEventRecord(gpu.end, gpu.stream))
        clock, power = map(to_number, query("clocks.sm,power.draw.instant"))
        gpu.wait()
        milliseconds = checked(gpu.driver.cuEventElapsedTime(gpu.begin, gpu.end))
        seen.append((flops * count / milliseconds / 1e9, clock, power))
        count = min(max(50, int(count * BATCH_MS / milliseconds)), 5000)  # longer than nvidia-smi takes
    settled = seen[len(seen) // 2 :]
    tflops, clock, power = (statistics.median(values) for values in zip(*settled))
    return {"name": probe.name, "tflops": round(tflops, 1), "sm_mhz": clock, "power_w": power, "samples": len(settled)}


def warm_up(gpu: Gpu) -> None:
    """Run products for a second, so that the clock rises."""
    until = time.time() + 1
    while time.time() < until:
        for _ in range(50):
            gpu.launch("m16n8k8_f16", gpu.sms, 256, 0, gpu.args(steps=2000))
        gpu.wait()


def run(only: str, seconds: float) -> dict:
    """Measure everything. Failures go to `failed`; the other figures are kept."""
    began = time.time()
    gpu = Gpu()
    print(f"cpi: {gpu.name}, {gpu.arch}, {gpu.sms} SMs: compiling", file=sys.stderr)
    cubin = compile_for(gpu.arch)
    code_checked = check_code(gpu.arch, cubin)
    gpu.load(cubin)
    warm_up(gpu)
    wanted = [probe for probe in probes(gpu.number) if only in probe.name]
    work = [(probe.name, partial(measure, gpu, probe, warps)) for probe in wanted for warps in gpu.fitting(probe)]
    found: dict[str, list[dict]] = {"launch": [], "cpi": [], "steady": [], "failed": []}
    held = [probe for probe in wanted if probe.name in STEADY and not probe.latency and seconds > 0]
    for section, jobs in (
        ("launch", [("launch", partial(launches, gpu))]),
        ("cpi", work),
        ("steady", [(probe.name, partial(steady, gpu, probe, seconds)) for probe in held]),
    ):
        for name, job in jobs:
            try:
                found[section].append(job())
                print(f"cpi: {time.time() - began:5.1f} s {json.dumps(found[section][-1])}", file=sys.stderr)
            except Failed as error:
                found["failed"].append({"name": name, "error": str(error)})
                print(f"cpi: {name} failed: {error}", file=sys.stderr)
    driver_version, max_mhz, limit_w = query("driver_version,clocks.max.sm,power.limit")
    return {
        **{"schema": SCHEMA, "device": gpu.name, "arch": gpu.arch, "sms": gpu.sms, "l2_bytes": gpu.l2_bytes},
        **{"driver": driver_version, "max_sm_mhz": to_number(max_mhz), "power_limit_w": to_number(limit_w)},
        **{"date": datetime.date.today().isoformat(), "command": "python -m benchmarks.cpi measure"},
        **{"code_checked": code_checked, "seconds": round(time.time() - began, 1), **found},
    }


def written(report: dict) -> str:
    """Return JSON, with null for a number that could not be read."""
    return json.dumps(json.loads(json.dumps(report), parse_constant=lambda _: None), indent=1) + "\n"


# ---- Tables of the cost model -------------------------------------------------------------------------------------------

MEASURED = "measured"
_AS_IT_IS = r"hmma_\w+|hgmma_\w+|lds\d+|sts\d+|ldsm_\w+|stsm_\w+|ldg\d+_l1|cp_async\d+_ca_l1"
_FROM_L2 = r"(ldg\d+|cp_async128_cg|cp_async32_ca|cp_async64_ca)_l2"
_RATES = (
    ("smem", r"ldsm_x4", 1),
    ("l2", r"ldg128_l2_shared", 2),
    ("l2_disjoint", r"ldg128_l2", 2),
    ("tma", r"bulk\d+k_l2_shared", 2),
)
"""Name of a rate, pattern of its rows, and the minimum number of SMs."""
_OF_THE_SM = ("cpi.", "latency.", "tma_", "smem_")


def figures(report: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each figure in a report."""
    rows = report["cpi"]
    for name, cycles in _fewest(row for row in rows if not row["latency"] and re.fullmatch(_AS_IT_IS, row["name"])):
        yield f"cpi.{name.replace('_ca_l1', '_l1')}", cycles
    for name, cycles in _fewest(row for row in rows if re.fullmatch(_FROM_L2 + "_shared", row["name"])):
        yield f"cpi.{name.partition('_l2')[0].removesuffix('_cg').removesuffix('_ca')}", cycles
    alone = (row for row in rows if re.fullmatch(_FROM_L2, row["name"]) and row["sms"] == 1 and not row["latency"])
    for name, cycles in _fewest(alone):
        yield f"cpi.{name.partition('_l2')[0].removesuffix('_cg').removesuffix('_ca')}_alone", cycles
    for name, cycles in _fewest(row for row in rows if re.fullmatch(r"stg\d+_l2", row["name"]) and row["sms"] > 1):
        yield f"cpi.{name.removesuffix('_l2')}", cycles
    for name, cycles in _fewest(row for row in rows if row["latency"]):
        yield f"latency.{name}", cycles
    for name, pattern, sms in _RATES:
        moving = [
            row for row in rows if re.fullmatch(pattern, row["name"]) and not row["latency"] and row["sms"] >= sms
        ]
        if moving:
            yield f"{name}_bytes_per_clock_per_sm", round(max(row["bytes_per_clock_per_sm"] for row in moving), 1)
    for way in ("read", "write", "copy"):
        yield f"dram_{way}_gbytes_per_s", max(row["gbytes_per_s"] for row in rows if row["name"] == f"dram_{way}")
    yield from ((f"launch_{way}_us", entry[f"{way}_us"]) for entry in report["launch"] for way in ("stream", "graph"))
    for row in report["steady"]:
        yield from (
            (f"steady_{what}_{row['name']}", row[key]) for what, key in (("tflops", "tflops"), ("mhz", "sm_mhz"))
        )
    yield from (("sms", report["sms"]), ("sm_mhz", report["max_sm_mhz"]), ("l2_bytes", report["l2_bytes"]))


def _fewest(rows: Iterator[dict]) -> Iterator[tuple[str, float]]:
    found: dict[str, float] = {}
    for row in rows:
        found[row["name"]] = min(row["cycles"], found.get(row["name"], row["cycles"]))
    for name, cycles in found.items():
        yield name, round(cycles, 2)


def merged(table: dict[str, Any], report: dict[str, Any], sm_only: bool) -> dict[str, Any]:
    """Return a table with the figures of a report. Sources that are no longer used are dropped."""
    source = {"text": report["command"], "date": report["date"], "device": report["device"]}
    measured = {
        name: [value, MEASURED]
        for name, value in figures(report)
        if not sm_only or (name.startswith(_OF_THE_SM) and "dram" not in name)
    }
    every = {**table["figures"], **measured}
    used = {name for _, name in every.values()}
    sources = {name: entry for name, entry in {**table["sources"], MEASURED: source}.items() if name in used}
    return {**table, "sources": sources, "figures": dict(sorted(every.items()))}


def table_text(table: dict[str, Any]) -> str:
    """Return the text of a table's file: one source or figure per line."""
    head = "".join(f' "{name}": {json.dumps(table[name])},\n' for name in ("schema", "name", "arch"))
    parts = {
        part: ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in table[part].items())
        for part in ("sources", "figures")
    }
    return f'{{\n{head} "sources": {{\n{parts["sources"]}\n }},\n "figures": {{\n{parts["figures"]}\n }}\n}}\n'


# ---- Commands -------------------------------------------------------------------------------------------------------------


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("measure")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the rows there.")
@click.option("--only", default="", metavar="TEXT", help="Run only probes whose name contains TEXT.")
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Of each steady run; 0 for none.")
def measure_command(json_path: Path | None, only: str, seconds: float) -> None:
    """Measure on this machine's GPU, and print or write JSON. Exit status 1: a probe failed."""
    report = run(only, seconds)
    if json_path:
        json_path.write_text(written(report))
    else:
        click.echo(written(report), nl=False)
    sys.exit(1 if report["failed"] else 0)


@main.command("check")
@click.argument("arch")
def check_command(arch: str) -> None:
    """Compile all probes for ARCH and check their machine code. Runs nothing. Exit status 1: no nvdisasm."""
    checked_code = check_code(arch, compile_for(arch))
    click.echo(f"{arch}: {'as planned' if checked_code else 'compiled'}")
    sys.exit(0 if checked_code else 1)


@main.command("table")
@click.argument("report", type=click.Path(path_type=Path, exists=True))
@click.option("--card", required=True, help="The card's table in hgemm/model/tables: h200.")
@click.option("--sm-only", is_flag=True, help="Take only figures of an SM, for another card of the same chip.")
def table_command(report: Path, card: str, sm_only: bool) -> None:
    """Write the figures of REPORT, the output of `measure`, into the table of a card.

    Of several numbers of warps, the fewest cycles count. Figures from L2 are those of all SMs while twelve read the same, as CTAs
    in a row of tiles do; `_alone` is one SM, and `_disjoint` is all SMs, each reading its own data.
    """
    path = FOLDER / f"{card}.json"
    table = merged(json.loads(path.read_text()), json.loads(report.read_text()), sm_only)
    parse_card(card, table)
    path.write_text(table_text(table))
    click.echo(f"{path}: {sum(source == MEASURED for _, source in table['figures'].values())} figures measured")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except (Failed, RuntimeError, click.ClickException) as error:
        sys.exit(f"cpi: {error.format_message() if isinstance(error, click.ClickException) else error}")
