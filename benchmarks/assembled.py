"""Race kernels of a library against themselves: assembled from the same PTX with other options of ptxas, or as another
library has them.

    python -m benchmarks.assembled --library DIR --shape 4096x4096x4096 --json benchmarks/data/assembled_h200.json \
        --options="-O2" --options="-O2 -regUsageLevel=10" [--other DIR]

Each kernel and its others take turns, forwards and backwards, in one process, on operands that are rotated over three times
the L2: a figure is the median of the rounds' ratios to the kernel as it is filed, and their spread. Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from datetime import datetime, timezone
from pathlib import Path

from generator.store.library import Library
from hgemm import Kernel
from hgemm.arrays import view
from hgemm.kernel import problem_of
from hgemm.verify import Shape

FILED = "filed"
ROUNDS, WARM_UP_ROUNDS, BLOCK_MS = 31, 20, 8.0
L2_MULTIPLE = 3


def assembled(ptx: bytes, arch: str, options: str) -> tuple[bytes, int]:
    """Assemble PTX for an architecture; return the cubin and its registers."""
    from cuda.bindings import nvjitlink

    words = [f"-arch={arch}", "-Xptxas=-v", *(f"-Xptxas={option}" for option in options.split())]
    handle = nvjitlink.create(len(words), words)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, ptx, len(ptx), "kernel")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), int(re.search(rb"Used (\d+) registers", log)[1])


def contenders(library: Path, symbol: str, args: argparse.Namespace) -> dict[str, Kernel]:
    """Return a kernel as it is filed, first, and its others by what is different."""
    variant = Library(library).load(symbol)
    record, ptx = variant.record.data, variant.artefacts["kernel.ptx"]
    found = {FILED: Kernel(record, variant.artefacts["kernel.cubin"])}
    for options in args.options:
        cubin, registers = assembled(ptx, record["arch"], options)
        found[f"{options} ({registers} registers)"] = Kernel(record, cubin)
    for other in args.other:
        theirs = Library(other).load(symbol)
        found[str(other)] = Kernel(theirs.record.data, theirs.artefacts["kernel.cubin"])
    return found


def race(kernels: dict[str, Kernel], shape: Shape) -> dict[str, dict]:
    """Time kernels of one spec in turns; return for each its TFLOP/s and its time as a multiple of the first one's."""
    import torch

    traits = next(iter(kernels.values())).traits
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    m, n, k = shape.m, shape.n, shape.k

    def matrix(rows: int, columns: int, dtype: str, transposed: bool):
        return (
            torch.randn(columns, rows, device="cuda").to(types[dtype]).T
            if transposed
            else (torch.randn(rows, columns, device="cuda").to(types[dtype]))
        )

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = 1 + L2_MULTIPLE * l2_bytes // (2 * (m * k + n * k + m * n))
    sets = [
        (
            matrix(m, k, traits.dtype_a, traits.layout[0] == "n"),
            matrix(k, n, traits.dtype_b, traits.layout[1] == "n"),
            matrix(m, n, traits.dtype_d, False),
        )
        for _ in range(count)
    ]
    problems = [problem_of(traits, {name: view(array, name) for name, array in zip("ABD", arrays)}) for arrays in sets]
    stream = torch.cuda.current_stream()
    bound = {name: [kernel.bind(problem, stream=stream) for problem in problems] for name, kernel in kernels.items()}

    def block_ms(name: str, launches: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for launch in range(launches):
            bound[name][launch % count]()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / launches

    launches = max(3, int(BLOCK_MS / max(1e-3, min(block_ms(FILED, 5) for _ in range(3)))))
    times: dict[str, list[float]] = {name: [] for name in kernels}
    for number in range(-WARM_UP_ROUNDS, ROUNDS):
        for name in kernels if number % 2 else reversed(kernels):
            ms = block_ms(name, launches)
            if number >= 0:
                times[name].append(ms)
    report = {}
    for name, found in times.items():
        ratios = sorted(ours / base for ours, base in zip(found, times[FILED]))
        report[name] = {
            "tflops": round(2e-9 * m * n * k / statistics.median(found), 1),
            "time_ratio": round(statistics.median(ratios), 4),
            "spread": [round(ratios[len(ratios) // 10], 4), round(ratios[-1 - len(ratios) // 10], 4)],
        }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--shape", type=Shape.parse, action="append", required=True)
    parser.add_argument("--options", action="append", default=[], help="ptxas's, in one word: '-O2 -regUsageLevel=10'")
    parser.add_argument("--other", type=Path, action="append", default=[], help="a library with the same kernels")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for record in Library(args.library).records():
        kernels = contenders(args.library, record.symbol, args)
        for shape in args.shape:
            rows.append({"symbol": record.symbol, "shape": f"{shape.m}x{shape.n}x{shape.k}", **race(kernels, shape)})
            print(json.dumps(rows[-1]), flush=True)
    if args.json:
        import torch

        about = {"date": datetime.now(timezone.utc).date().isoformat(), "device": torch.cuda.get_device_name(0)}
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
