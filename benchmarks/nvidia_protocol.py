"""Time squares by NVIDIA's published protocol, beside torch's cuBLAS in the same process.

\b
    python -m benchmarks.nvidia_protocol --library emitted --json FILE

Data is uniform in [-1, 1]. Several sets of operands and results take turns. Together they are larger than twice the L2 cache.
Each run warms the card up for 3 s, and then times at least 1,000 products in a CUDA graph. Runs go forth and back: cuBLAS, ours,
ours, cuBLAS.
Exit status: 0 the figures are complete, 1 a result differs by more than rounding, or there is no GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hgemm.bench.protocol import forth_and_back, geometric_mean
from hgemm.device import driver_cuda, open_device

SQUARES = ((1024, "float16"), (2048, "float16"), (4096, "float16"), (8192, "float16"), (4096, "bfloat16"))
WARM_UP_S, PRODUCTS, L2_TIMES = 3.0, 1000, 2
"""Source: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/gemm_performance_measurement_methodology_guidelines.html"""


def run(replay: Callable[[], object], products: int) -> float:
    """Return the time of one product, after the warm-up. `replay` queues `products` of them. Unit: microseconds."""
    import torch

    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        replay()
        torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replays = -(-PRODUCTS // products)
    begin.record()
    for _ in range(replays):
        replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / (replays * products)


def square(size: int, dtype: str) -> dict[str, Any]:
    """Return the times of one square, m = n = k = size. Units: microseconds, TFLOP/s."""
    import torch

    import hgemm.torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = 1 + L2_TIMES * l2_bytes // (3 * 2 * size * size)
    operands = [
        [torch.empty(size, size, device="cuda").uniform_(-1, 1).to(getattr(torch, dtype)) for _ in range(2)]
        for _ in range(sets)
    ]
    sides = {"cublas": torch.nn.functional.linear, "ours": hgemm.torch.linear}
    graphs, found = {}, {}
    with torch.inference_mode():
        for name, linear in sides.items():
            found[name] = linear(*operands[0]).double()
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for a, b in operands:
                    linear(a, b)
            torch.cuda.current_stream().wait_stream(stream)
            turns = max(1, 64 // sets)
            with torch.cuda.graph(graph):
                outputs = [linear(a, b) for _ in range(turns) for a, b in operands]
            graphs[name] = graph, outputs
    times: dict[str, list[float]] = {name: [] for name in sides}
    for name in forth_and_back([*sides]):
        graph, outputs = graphs[name]
        times[name].append(run(graph.replay, len(outputs)))
    us = {name: geometric_mean(its) for name, its in times.items()}
    difference = float((found["ours"] - found["cublas"]).norm() / found["cublas"].norm())
    return {
        "size": size,
        "dtype": dtype,
        "sets": sets,
        **{f"{name}_us": round(value, 3) for name, value in us.items()},
        **{f"{name}_tflops": round(2e-6 * size**3 / value, 1) for name, value in us.items()},
        "difference": float(f"{difference:.2g}"),
        "ratio": round(us["cublas"] / us["ours"], 4),
    }


@click.command(help=__doc__)
@click.option("--library", default="emitted", show_default=True, metavar="DIR", help="The library.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures there, after each square."
)
def main(library: str, json_path: Path | None) -> None:
    import torch

    import hgemm.torch

    if not torch.cuda.is_available():
        click.echo("nvidia_protocol: error: torch finds no GPU here", err=True)
        sys.exit(1)
    hgemm.torch.use(hgemm.open(library))
    rows: list[dict[str, Any]] = []
    document = {
        "what": "Squares by NVIDIA's published protocol beside torch's cuBLAS",
        "date": time.strftime("%Y-%m-%d"),
        "driver_cuda": driver_cuda(),
        "device": open_device().name,
        "torch": torch.__version__,
        "rows": rows,
    }
    for size, dtype in SQUARES:
        rows.append(square(size, dtype))
        click.echo(" ".join(f"{name}={value}" for name, value in rows[-1].items()))
        torch.cuda.empty_cache()
        if json_path:  # after each square: a run that is cut keeps its rows
            json_path.write_text(json.dumps(document) + "\n")
    sys.exit(0 if all(row["difference"] < 2**-8 for row in rows) else 1)


if __name__ == "__main__":
    main()
