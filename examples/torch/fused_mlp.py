"""Run the MLP of a Llama block in two launches, x + down(silu(gate(x)) * up(x)), train through it, and compare with PyTorch.

    python examples/torch/fused_mlp.py [LIBRARY] [--tokens 512 2048] [--compile] [--json FILE]

The first launch computes both products of SwiGLU, whose weights are packed once. The second one adds the residual. LIBRARY
is build/fused_mlp by default; kernels that it lacks are built. Results and gradients are compared with float64. Needs torch.
Exit status: 0 all agree, 1 some differ, 77 this machine has no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hgemm
from hgemm.device import open_device
from hgemm.epilogue_language import Matrix, silu

NO_GPU = 77
HIDDEN, INTERMEDIATE = 4096, 14336
"""The sizes of Llama 3 8B."""
ROUNDS, CALLS = 11, 10
TILES = {
    (9, 0): {"arch": "sm_90a", "tile": ["128x256x64", "256x128x64", "128x128x64"], "cluster": ["2x1", "1x1"]},
}
"""The kernels to choose from, by compute capability."""


def swiglu(gate, up):
    return silu(gate) * up


def with_residual(acc, residual: Matrix):
    return acc + residual


def fused_mlp(x: Any, gate_up: Any, down: Any, residual: Any) -> Any:
    """Return the output of the block in two launches.

    Shapes: x and residual are (tokens, hidden), gate_up is (2 * intermediate, hidden), from hgemm.interleave, and down is
        (hidden, intermediate).
    """
    import hgemm.torch

    inner = hgemm.torch.fused(x, gate_up.t(), swiglu)
    return hgemm.torch.fused(inner, down.t(), with_residual, {"residual": residual})


def plain_mlp(x: Any, gate: Any, up: Any, down: Any, residual: Any) -> Any:
    """Return the same, as PyTorch programs compute it."""
    from torch.nn import functional

    inner = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
    return functional.linear(inner, down) + residual


def build(folder: str) -> hgemm.Library:
    """Build the kernels that the library lacks: both epilogues, the first one also for training, and the plain products."""
    import hgemm.torch

    major, minor = open_device().capability
    spec = TILES.get((major, minor), {"arch": f"sm_{major}{minor}", "tile": ["128x128x32", "64x64x32"]})
    hgemm.generate(spec, library=folder, epilogue=swiglu)
    hgemm.generate(spec, library=folder, epilogue=hgemm.torch.training_epilogue(swiglu))
    hgemm.generate(spec, library=folder, epilogue=with_residual)
    hgemm.generate(spec, library=folder, layout=["tn", "tt", "nt"])
    return hgemm.open(folder)


def errors(results: list[Any], expected: list[Any]) -> list[float]:
    """Return the norm of each error over that of the expected result."""
    return [float((one - other).norm() / other.norm()) for one, other in zip(results, expected, strict=True)]


def milliseconds(run: Callable[[], object]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a CUDA graph, which has no cost of Python."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        run()
    return graph.replay


def compared(tokens: int, compile_too: bool) -> dict[str, Any]:
    """Return the errors of results and gradients, and the times."""
    import torch

    half = {"device": "cuda", "dtype": torch.float16}
    x, residual = (torch.randn(tokens, HIDDEN, **half, requires_grad=True) for _ in range(2))
    gate, up = (torch.randn(INTERMEDIATE, HIDDEN, **half) / HIDDEN**0.5 for _ in range(2))
    down = (torch.randn(HIDDEN, INTERMEDIATE, **half) / INTERMEDIATE**0.5).requires_grad_()
    gate_up = hgemm.interleave(gate, up, axis=0).requires_grad_()
    gate.requires_grad_(), up.requires_grad_()
    weight = torch.randn(tokens, HIDDEN, **half)  # the gradient of the output

    def trained(mlp: Callable[..., Any], *tensors: Any) -> list[Any]:
        y = mlp(*tensors)
        return [y.detach(), *torch.autograd.grad(y, tensors, weight.to(y.dtype))]

    def packed(results: list[Any]) -> list[Any]:
        y, of_x, of_gate, of_up, *others = results
        return [y, of_x, hgemm.interleave(of_gate, of_up, axis=0), *others]

    wide = [tensor.detach().double().requires_grad_() for tensor in (x, gate, up, down, residual)]
    expected = packed(trained(plain_mlp, *wide))
    del wide
    runs = {"hgemm": (fused_mlp, (x, gate_up, down, residual)), "eager": (plain_mlp, (x, gate, up, down, residual))}
    found = {
        "hgemm": errors(trained(*_flat(runs["hgemm"])), expected),
        "eager": errors(packed(trained(*_flat(runs["eager"]))), expected),
    }
    del expected
    torch.cuda.empty_cache()
    if compile_too:
        compiled = torch.compile(plain_mlp, mode="max-autotune-no-cudagraphs", dynamic=False)
        runs["compiled"] = (compiled, runs["eager"][1])
    forward = {name: captured(lambda mlp=mlp, given=given: mlp(*given)) for name, (mlp, given) in runs.items()}
    both = {name: (lambda one=one: trained(*_flat(one))) for name, one in runs.items() if name != "compiled"}
    times = {}
    for part, contenders in (("forward", forward), ("forward and backward", both)):
        rounds: dict[str, list[float]] = {name: [] for name in contenders}
        for at in range(ROUNDS + 2):  # the first two warm up
            for name in [*contenders][:: 1 if at % 2 else -1]:
                rounds[name].append(milliseconds(contenders[name]))
        times[part] = {name: round(statistics.median(found[2:]), 4) for name, found in rounds.items()}
    return {"tokens": tokens, "errors": found, "milliseconds": times}


def _flat(run: tuple[Callable[..., Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    return (run[0], *run[1])


RESULTS = ("y", "x", "gate and up", "down", "residual")


def run(args: argparse.Namespace) -> int:
    import torch

    import hgemm.torch

    hgemm.torch.use(build(args.library))
    torch.manual_seed(1)
    rows = []
    for tokens in args.tokens:
        row = compared(tokens, args.compile)
        rows.append(row)
        print(f"{torch.cuda.get_device_name()}, {tokens} tokens")
        for at, name in enumerate(RESULTS):
            what = "result" if name == "y" else f"gradient of {name}"
            ours, theirs = (row["errors"][one][at] for one in ("hgemm", "eager"))
            print(f"  {what}: relative error {ours:.1e}, of eager PyTorch {theirs:.1e}")
        for part, times in row["milliseconds"].items():
            shown = ", ".join(f"{name} {ms:.3f} ms ({ms / times['hgemm']:.2f})" for name, ms in times.items())
            print(f"  {part}: {shown}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")
    # Each result is rounded to f16 a few times. PyTorch rounds as often.
    agree = all(
        ours <= 2 * theirs + 2.0**-11
        for row in rows
        for ours, theirs in zip(row["errors"]["hgemm"], row["errors"]["eager"], strict=True)
    )
    return 0 if agree else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", default="build/fused_mlp", metavar="LIBRARY")
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--compile", action="store_true", help="time torch.compile with max-autotune, too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        open_device()
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return NO_GPU
    try:
        return run(args)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
