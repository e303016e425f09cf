"""Measures what one SM and the memory behind it do in a clock, instruction by instruction, as data for the cost model.

    python -m benchmarks.micro.cpi --json cpi.json                 # needs a GPU and cuda-bindings; about a minute
    python -m benchmarks.micro.cpi --check sm_90a                  # compiles and looks at the machine code; no GPU

Each row of `cpi` is one instruction on so many warps of an SM: `cycles`, in SM clocks, that one of them takes a partition
(a quarter of an SM, which has its own tensor core) or a whole SM at full throughput, or with `latency` until the next may use
what it gave. `bytes_per_clock_per_sm` and `gbytes_per_s` follow. The median of CTAs and of five launches counts. Before
a GPU is asked, the machine code is checked to hold what is to be measured, and no spills. `steady` runs tensor
instructions for seconds on normal(0, 1) data and reads clock and power meanwhile.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.micro.cpi_probes import ALL_SMS, MIB, PARTITION, PARTITIONS_PER_SM, Probe, probes, smem_bytes, source
from generator.build.inspect import Code, Listing, disassemble, find_nvdisasm, read_cubin

SCHEMA = 1
LAUNCHES = 5
DATA_WORDS = 16384
GRAPH_NODES = 1000
STEADY = ("hmma_m16n8k16_f32", "hmma_m16n8k16_f16", "hgmma_m64n256k16_f32", "hgmma_m64n256k16_f16")
FLOPS = {"hmma": 2 * 16 * 8 * 16, "hgmma": 2 * 64 * 256 * 16}
BATCH_MS = 400
LOCAL_MEMORY = ("LDL", "STL")


class Failed(Exception):
    """What went wrong, in a line."""


class Args(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("stamps", "sink", "data", "out")),
        *((name, ctypes.c_uint64) for name in ("window_mask", "warp_stride", "step_stride")),
        *((name, ctypes.c_int) for name in ("steps", "sharers", "zero")),
    ]


# ---- Machine code -------------------------------------------------------------------------------------------------------


def compile_for(arch: str) -> bytes:
    """Return the cubin of all kernels. Raises Failed with the compiler's words, a warning of serialised wgmma among them."""
    from cuda.bindings import nvrtc

    text = source(int("".join(filter(str.isdigit, arch))))
    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), b"cpi.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-Xptxas=-v"]
    status = int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
    log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
    checked(nvrtc.nvrtcGetProgramLog(program, log))
    told = [line for line in log.decode(errors="replace").splitlines() if re.search(r"error|fatal|\(C7\d+\)", line)]
    if status or told:
        raise Failed("\n".join(told[:5]) or log.decode(errors="replace"))
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def check_code(arch: str, cubin: bytes) -> bool:
    """Tell whether the loops were looked at: False without nvdisasm. Raises Failed where one has not what it is to have."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    try:
        program = find_nvdisasm([*folders, Path("/usr/local/cuda/bin")])
    except Exception as error:
        print(f"cpi: machine code is not checked: {error}", file=sys.stderr)
        return False
    wanted = probes(int("".join(filter(str.isdigit, arch))))
    kernels = sorted({probe.kernel for probe in wanted})
    codes = [Code(arch, read_cubin(cubin, kernel).text) for kernel in kernels]
    listings = dict(zip(kernels, disassemble(codes, program)))
    wrong = [told for probe in wanted if (told := judge(probe, listings[probe.kernel]))]
    if wrong:
        raise Failed("; ".join(wrong))
    return True


def judge(probe: Probe, listing: Listing) -> str:
    """Say what is wrong with the code of a probe, or nothing: its loop holds the instructions, each once, and nothing spills."""
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
    """Ask nvidia-smi; dashes where it does not answer."""
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
    """The first device, with all that the kernels read and write."""

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
        """Return the numbers of warps of a probe for which an SM has the shared memory."""
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
    steps = 3000 if probe.name.startswith("hmma") else 800  # few enough for f16 sums to stay finite
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
    """Bring the clocks up."""
    until = time.time() + 1
    while time.time() < until:
        for _ in range(50):
            gpu.launch("m16n8k8_f16", gpu.sms, 256, 0, gpu.args(steps=2000))
        gpu.wait()


def run(arguments: argparse.Namespace) -> dict:
    """Measure everything; what fails is told in `failed`, and the rest kept."""
    began = time.time()
    gpu = Gpu()
    print(f"cpi: {gpu.name}, {gpu.arch}, {gpu.sms} SMs: compiling", file=sys.stderr)
    cubin = compile_for(gpu.arch)
    code_checked = check_code(gpu.arch, cubin)
    gpu.load(cubin)
    warm_up(gpu)
    wanted = [probe for probe in probes(gpu.number) if arguments.only in probe.name]
    work = [(probe.name, partial(measure, gpu, probe, warps)) for probe in wanted for warps in gpu.fitting(probe)]
    found: dict[str, list[dict]] = {"launch": [], "cpi": [], "steady": [], "failed": []}
    held = [probe for probe in wanted if probe.name in STEADY and not probe.latency and arguments.seconds > 0]
    for section, jobs in (
        ("launch", [("launch", partial(launches, gpu))]),
        ("cpi", work),
        ("steady", [(probe.name, partial(steady, gpu, probe, arguments.seconds)) for probe in held]),
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
        **{"date": datetime.date.today().isoformat(), "command": "python -m benchmarks.micro.cpi"},
        **{"code_checked": code_checked, "seconds": round(time.time() - began, 1), **found},
    }


def written(report: dict) -> str:
    """Return JSON, with null for a number that could not be read."""
    return json.dumps(json.loads(json.dumps(report), parse_constant=lambda _: None), indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.cpi", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the probes whose name has this in it")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each steady run; 0 for none (default 3)")
    parser.add_argument("--check", metavar="ARCH", help="compile for it, check the machine code, run nothing")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            looked = check_code(arguments.check, compile_for(arguments.check))
            print(f"{arguments.check}: {'as wanted' if looked else 'compiled'}")
            return 0 if looked else 1
        report = run(arguments)
    except (Failed, RuntimeError) as error:
        print(f"cpi: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(written(report))
    else:
        print(written(report), end="")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
