"""Probes run on the CPU or on a GPU, and what is kept of what comes out.

`PYTHONPATH=. python tests/atom_runs.py > vectors.json` on that GPU makes the vectors anew, of which the tests read
tests/data/atoms_h200.json; with `--missing` only those of probes that the file lacks, beside what it has.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import cache

import numpy as np
from atom_probes import (
    LOAD,
    NUMBERS,
    OUT_WORDS,
    ROOT,
    SHARED_BYTES,
    SHARED_WORDS,
    SWIZZLES,
    SYMBOL,
    THREADS,
    Probe,
    probes,
)

from generator.build.compile import compile_kernel, ptx_of
from generator.build.emit import EmittedKernel, emit
from generator.build.toolchain import Headers, headers, templates_folder
from generator.proof import executor as abi
from generator.proof.executor import Adversary, EmulatedTensorMap, Executable, Launch, Region
from generator.sweep import sweep
from hgemm.device import checked, driver, open_device
from hgemm.errors import DeviceError

VECTORS = ROOT / "tests" / "data" / "atoms_h200.json"


def parameter(probe: Probe, inputs: int, outputs: int) -> bytes:
    box, wgmma = probe.box, probe.wgmma
    a = wgmma.descriptor(wgmma.a_k_major, 64, wgmma.a_first) if wgmma else 0
    b = wgmma.descriptor(wgmma.b_k_major, wgmma.n, wgmma.b_first) if wgmma else 0
    at = box.at if box else (0, 0, 0)
    return struct.pack("<2Q2I3iI2Q", inputs, outputs, probe.mode, probe.offset, *at, box.bytes if box else 0, a, b)


def map_base(probe: Probe, inputs: int, outputs: int) -> int:
    """Return where the box's tensor lies: among the threads' words."""
    return (inputs if probe.mode == LOAD else outputs) + SHARED_WORDS * 4


def run_on_executor(executable: Executable, probe: Probe, adversary: Adversary) -> tuple[np.ndarray, tuple]:
    """Return the words that come out, those that nothing writes as they were (ones), and the findings."""
    inputs, outputs = (
        _aligned(probe.words()),
        _aligned(np.full(SHARED_WORDS + THREADS * OUT_WORDS, 0xFFFFFFFF, np.uint32)),
    )
    at, to = inputs.ctypes.data, outputs.ctypes.data
    tensor = EmulatedTensorMap()
    if probe.box:
        box = probe.box
        tensor = EmulatedTensorMap(
            base=map_base(probe, at, to),
            extent=box.extents,
            stride_bytes=box.strides,
            box=box.box,
            rank=3,
            element_bytes=box.element_bytes,
            swizzle=SWIZZLES.index(box.swizzle),
            magic=abi.TENSOR_MAP_MAGIC,
        )
    regions = (
        Region("in", at, 1, inputs.nbytes, inputs.nbytes, 1, 0, 4, abi.READABLE | abi.INITIALISED),
        Region("out", to, 1, outputs.nbytes, outputs.nbytes, 1, 0, 4, abi.WRITABLE),
    )
    launch = Launch(
        (1, 1, 1), (1, 1, 1), THREADS, SHARED_BYTES, (parameter(probe, at, to), bytes(tensor)), regions, 0, 1_000_000
    )
    report = executable.run(launch, adversary)
    return outputs.copy(), report.findings


def _aligned(words: np.ndarray) -> np.ndarray:
    block = np.empty(len(words) + 64, np.uint32)
    first = -block.ctypes.data % 256 // 4
    block[first : first + len(words)] = words
    return block[first : first + len(words)]


def run_on_device(probe: Probe, cubin: bytes) -> np.ndarray:
    """Return the same from a GPU. Raises DeviceError where there is none."""
    device, words = open_device(), probe.words()
    result = np.full(SHARED_WORDS + THREADS * OUT_WORDS, 0xFFFFFFFF, np.uint32)
    at, to = device.allocate(words.nbytes), device.allocate(result.nbytes)
    device.upload(at, words.ctypes.data, words.nbytes)
    device.upload(to, result.ctypes.data, result.nbytes)
    d = driver()
    with device.current():
        module = checked(d.cuModuleLoadData(cubin), "load the probes")
        function = checked(d.cuModuleGetFunction(module, SYMBOL.encode()), "find the probes")
        parameters = [parameter(probe, at, to), _device_map(probe, at, to)]
        pointers = (ctypes.c_char_p * 2)(*parameters)
        launched = d.cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, SHARED_BYTES, 0, ctypes.addressof(pointers), 0)
        checked(launched, f"launch {probe.name}")
        checked(d.cuCtxSynchronize(), f"run {probe.name}")
    device.download(result.ctypes.data, to, result.nbytes)
    device.free(at)
    device.free(to)
    return result


def _device_map(probe: Probe, at: int, to: int) -> bytes:
    if not probe.box:
        return bytes(128)
    d, box = driver(), probe.box
    element = "FLOAT16" if box.element_bytes == 2 else "FLOAT32"
    swizzle = f"{box.swizzle}B" if box.swizzle else "NONE"
    encoded = d.cuTensorMapEncodeTiled(
        getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        3,
        map_base(probe, at, to),
        [d.cuuint64_t(extent) for extent in box.extents],
        [d.cuuint64_t(stride) for stride in box.strides],
        [d.cuuint32_t(extent) for extent in box.box],
        [d.cuuint32_t(1)] * 3,
        d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(checked(encoded, f"encode the map of {probe.name}").getPtr(), 128)


def compiled(text: str, symbol: str = SYMBOL) -> bytes:
    """Return the cubin of a kernel of atoms for sm_90a."""
    return compile_kernel(*_kernel_and_headers(text, symbol)).cubin


@cache
def translatable(text: str, symbol: str = SYMBOL) -> str:
    """Return its PTX."""
    return ptx_of(*_kernel_and_headers(text, symbol)).decode()


def _kernel_and_headers(text: str, symbol: str) -> tuple[EmittedKernel, Headers]:
    (plan,) = sweep([{"arch": "sm_90a", "tile": "64x64x64"}]).plans
    kernel = replace(emit(plan, templates_folder()), source=text, symbol=symbol)
    roots = ("common/atoms_sm90.cuh", "mma_sync/wmma.cuh", "common/activation.cuh")
    reached = [headers(root, templates_folder()) for root in roots]
    files = {header.name: header for found in reached for header in found.files}
    return kernel, replace(reached[0], files=tuple(files.values()))


# ---- What is kept ---------------------------------------------------------------------------------------------------


def without_nan_bits(words: np.ndarray, probe: Probe) -> np.ndarray:
    """Return words in which each NaN is the same one: hardware gives its own, the executor keeps the bits of what came in."""
    if probe.mode != NUMBERS:
        return words
    threads = words.copy()[SHARED_WORDS:].reshape(THREADS, OUT_WORDS)
    halves, bfloats, floats = threads[:, :32].copy(), threads[:, 32:64].copy(), threads[:, 64:].copy()
    for part, infinity in ((halves.view(np.uint16), 0x7C00), (bfloats.view(np.uint16), 0x7F80)):
        part[(part & 0x7FFF) > infinity] = 0x7FFF
    floats[(floats & 0x7FFFFFFF) > 0x7F800000] = 0x7FFFFFFF
    return np.concatenate([words[:SHARED_WORDS], np.hstack([halves, bfloats, floats]).ravel()])


def kept(probe: Probe, words: np.ndarray) -> dict:
    """Return what the file keeps of a probe: a hash of all, the first thread's words; of what is not exact, all that is used."""
    words = without_nan_bits(words, probe)
    threads = words[SHARED_WORDS:].reshape(THREADS, OUT_WORDS)
    if not probe.exact:
        return {"words": threads[:, :12].tolist()}
    return {"sha256": hashlib.sha256(words.tobytes()).hexdigest(), "first": threads[0, :16].tolist()}


def record(names: Collection[str]) -> None:
    """Run some probes, a line of JSON each, until the device faults."""
    text, cubin = "", b""
    for probe in probes():
        if probe.name not in names:
            continue
        if probe.text() != text:
            text, cubin = probe.text(), compiled(probe.text())
        try:
            entry = kept(probe, run_on_device(probe, cubin))
        except DeviceError as error:  # after which the context is of no use
            print(json.dumps({probe.name: {"fault": str(error).rpartition(": ")[2]}}), flush=True)
            return
        print(json.dumps({probe.name: entry}), flush=True)


def main() -> None:
    """Record all probes, in a new process after each fault."""
    names = [probe.name for probe in probes()]
    arguments = sys.argv[1:]
    if arguments and arguments != ["--missing"]:
        return record(arguments)
    vectors = json.loads(VECTORS.read_text())["vectors"] if arguments else {}
    while left := [name for name in names if name not in vectors]:
        command = [sys.executable, __file__, *left]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
        for line in lines:
            vectors |= json.loads(line)
        if not lines:
            raise SystemExit(f"the probe '{left[0]}' gave nothing")
        print(len(vectors), "of", len(names), file=sys.stderr)
    print(json.dumps({"device": open_device().name, "vectors": vectors}))


if __name__ == "__main__":
    main()
