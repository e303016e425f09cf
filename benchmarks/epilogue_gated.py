"""Time SwiGLU in one launch beside CUTLASS's and QuACK's fused gated products, on Llama 3 8B's gate and up layers.

    python -m benchmarks.epilogue_gated build --cutlass CHECKOUT --output build/cutlass_gated.so
    python -m benchmarks.epilogue_gated run --library build/epilogues --cutlass build/cutlass_gated.so --json gated.json

`build` compiles CUTLASS's kernel, and needs nvcc and a checkout of CUTLASS 4.3 or later, with its examples. `run` needs a GPU.
The library has kernels of `silu(gate) * up`: `python -m benchmarks.epilogue_speed --build-only` builds them. QuACK is a package:
pip install quack-kernels==0.2.10. Without it, its column is left out.
Each side runs the fastest of its kernels, by times that are not published. Above 1, ours is faster. CUTLASS's
kernels have the tiles of its example and the other usual ones. QuACK's are those that its autotuner tries, with a cluster of two
rows of tiles. Units: microseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hgemm
from benchmarks.epilogue_speed import FINALISTS, LAYERS, ROUNDS, SWIGLU, Layer, check, fastest, finalist, timed, trial
from hgemm.epilogue_language import as_epilogue

CONFIGS = (
    *((256, n, False) for n in (128, 160, 192)),
    *((128, n, False) for n in (224, 256)),
    *((m, n, True) for m, n in ((128, 128), (128, 160), (128, 192), (192, 128))),
)
"""Tiles of QuACK's autotuner on sm_90 for gated products, and whether they are of its ping-pong schedule."""
CUTLASS = (
    *("pingpong_128x128_1x2", "pingpong_128x128_2x1"),
    *("cooperative_128x256_1x2", "cooperative_128x256_2x1", "cooperative_256x128_1x2", "cooperative_256x128_2x1"),
)
"""Functions of baselines/cutlass_gated.cu: schedule, tile and cluster. In CUTLASS's terms, rows are of the weights."""
TRIED = 4
"""Our kernels that take part in the last trial, beside all of the others."""
SOURCE = Path(__file__).resolve().parent / "baselines" / "cutlass_gated.cu"

Run = Callable[[int], object]


def build(checkout: Path, output: Path) -> None:
    """Compile CUTLASS's kernels into a shared library."""
    folders = ("include", "tools/util/include", "examples/113_hopper_gemm_activation_fusion")
    output.parent.mkdir(parents=True, exist_ok=True)
    options = [
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-std=c++17",
        "-O3",
        "-DNDEBUG",
        "-arch=sm_90a",
        "--expt-relaxed-constexpr",
    ]
    subprocess.run(["nvcc", *options, *(f"-I{checkout / one}" for one in folders), SOURCE, "-o", output], check=True)


# ==== Launches of others ====


def cutlass_runs(layer: Layer, library: ctypes.CDLL) -> dict[str, Run]:
    """Return a launch of each kernel of CUTLASS."""
    import torch

    weights = [torch.cat((up, gate)) for gate, up in layer.pairs]  # it activates the second half
    zeros = torch.zeros(layer.n, device="cuda", dtype=torch.float16)

    def run_of(name: str) -> Run:
        function = getattr(library, name)
        function.argtypes = [*[ctypes.c_void_p] * 4, *[ctypes.c_int] * 3, ctypes.c_void_p]

        def run(at: int) -> object:
            arrays = (one.data_ptr() for one in (weights[at], layer.x[at], layer.d[at], zeros))
            status = function(*arrays, layer.m, layer.n // 2, layer.k, torch.cuda.current_stream().cuda_stream)
            if status:
                raise RuntimeError(f"status {status}")
            return status

        return run

    return {name: run_of(name) for name in CUTLASS}


def quack_runs(layer: Layer) -> dict[str, Run]:
    """Return a launch of each configuration of QuACK."""
    import torch
    from quack.gemm_config import GemmConfig
    from quack.gemm_interface import gemm_gated_tuned

    # The weights alternate by single rows.
    weights = [torch.stack(pair, 1).reshape(2 * len(pair[0]), -1) for pair in layer.pairs]

    def run_of(config: object) -> Run:
        options = {"activation": "swiglu", "config": config}
        return lambda at: gemm_gated_tuned.fn(layer.x[at], weights[at].t(), None, layer.d[at], **options)

    return {
        f"{m}x{n}{' pingpong' if pingpong else ''}": run_of(
            GemmConfig(tile_m=m, tile_n=n, pingpong=pingpong, cluster_m=2, cluster_n=1)
        )
        for m, n, pingpong in CONFIGS
    }


def correct(layer: Layer, runs: Mapping[str, Run], refused: dict[str, str]) -> dict[str, Run]:
    """Return the launches that work and have the right result. `refused` gets the reasons of the others."""
    found, expected = {}, layer.torchs(layer.formula)(0)
    for name, run in runs.items():
        try:
            layer.d[0].zero_()
            run(0)
            check(name, layer.d[0], expected)
        except (Exception, SystemExit) as error:  # whatever another compiler raises
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            found[name] = run
    return found


# ==== Time ====


def time_layer(kernels: list[hgemm.Kernel], m: int, cutlass: ctypes.CDLL | None) -> dict[str, Any]:
    """Return the medians and the ratios for one number of tokens."""
    layer = Layer(SWIGLU, m, *LAYERS["gate_up"])
    refused: dict[str, str] = {}
    offered = {
        "ours": {one.symbol: layer.ours(one, True) for one in fastest(layer, kernels, True, TRIED)},
        "cutlass": cutlass_runs(layer, cutlass) if cutlass else {},
        "quack": quack_runs(layer) if importlib.util.find_spec("quack") else {},
    }
    right = {side: correct(layer, candidates, refused) for side, candidates in offered.items()}
    products = {"products": layer.torchs(layer.products)}
    tried = trial({name: run for one in right.values() for name, run in one.items()}, products, layer, 5)
    best = {}
    for side, candidates in right.items():
        first = sorted(candidates, key=lambda name: -tried[name])[:FINALISTS]
        if first:
            best[side] = finalist({name: candidates[name] for name in first}, products, layer)
    runs = {side: right[side][name] for side, name in best.items()}
    row: dict[str, Any] = {"m": m, "n": layer.n, "k": layer.k, "kernels": best, "refused": refused}
    times = timed(runs, layer.sets, layer.guess_us, ROUNDS)
    row["us"] = {name: round(statistics.median(found), 2) for name, found in times.items()}
    row["ratios"] = {}
    for other in [*runs][1:]:
        ratios = [theirs / own for own, theirs in zip(times["ours"], times[other], strict=True)]
        row["ratios"][other] = [round(value, 4) for value in (statistics.median(ratios), min(ratios), max(ratios))]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    built = verbs.add_parser("build")
    built.add_argument("--cutlass", type=Path, required=True)
    built.add_argument("--output", type=Path, default=Path("build/cutlass_gated.so"))
    ran = verbs.add_parser("run")
    ran.add_argument("--library", default="build/epilogues")
    ran.add_argument("--cutlass", type=Path)
    ran.add_argument("--tokens", nargs="+", type=int, default=[512, 2048, 8192])
    ran.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.verb == "build":
        return build(args.cutlass, args.output)
    import torch

    expression = as_epilogue(SWIGLU)
    kernels = [one for one in hgemm.open(args.library) if one.traits.epilogue == expression]
    cutlass = ctypes.CDLL(str(args.cutlass.resolve())) if args.cutlass else None
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "layers": []}
    if importlib.util.find_spec("quack"):
        found["quack"] = version("quack-kernels")
    for m in args.tokens:
        found["layers"].append(time_layer(kernels, m, cutlass))
        print(json.dumps(found["layers"][-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
