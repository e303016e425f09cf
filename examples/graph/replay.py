"""Capture a chain of multiplications in a CUDA graph, replay it on new data, and compare its speed with separate calls.

    python examples/graph/replay.py [LIBRARY]

LIBRARY is the folder of a library; the default is that of `hgemm.open()`.
A plan loads its kernel when it is created, and a launch neither allocates nor waits. So the first call can be captured.
Exit status: 0 the results are correct, 1 something failed, 77 this machine has no GPU.
"""

from __future__ import annotations

import sys
import time

import hgemm
from hgemm.device import open_device

NO_GPU = 77
ROWS, WIDTH, LAYERS, REPEATS = 64, 1024, 32, 50


def run(folder: str | None) -> int:
    import torch

    library = hgemm.open(folder)
    plan = library.plan(hgemm.Problem(ROWS, WIDTH, WIDTH, alpha=WIDTH**-0.5))
    weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16) for _ in range(LAYERS)]
    states = [torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.float16) for _ in range(LAYERS + 1)]

    def chain() -> None:
        for x, w, y in zip(states, weights, states[1:]):
            plan(x, w.T, y)  # runs on torch's current stream, which is the captured stream inside torch.cuda.graph

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()

    states[0].normal_()
    graph.replay()
    replayed = states[-1].clone()
    chain()
    same = torch.equal(replayed, states[-1]) and bool(replayed.isfinite().all())

    def microseconds(call) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / REPEATS / LAYERS * 1e6

    separate, replayed_us = microseconds(chain), microseconds(graph.replay)
    print(f"{LAYERS} multiplications {ROWS}x{WIDTH}x{WIDTH}: results of the graph {'are equal' if same else 'DIFFER'}")
    print(f"{separate:.1f} us per multiplication in separate calls, {replayed_us:.1f} us in the graph")
    return 0 if same else 1


def main(arguments: list[str]) -> int:
    try:
        open_device()
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return NO_GPU
    try:
        return run(arguments[0] if arguments else None)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
