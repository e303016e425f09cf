"""Time SwiGLU in one launch beside QuACK's fused gated product, on Llama 3 8B's gate and up layers.

    python -m benchmarks.epilogue_quack --library build/epilogues --tokens 512 2048 8192 --json quack.json

The library has kernels of `silu(gate) * up`: `python -m benchmarks.epilogue_speed --build-only` builds them. QuACK is a package:
pip install quack-kernels. Each side runs the fastest of its kernels, by times that are not published. Rounds alternate. Above 1,
ours is faster. QuACK's kernels are those that its autotuner tries, with a cluster of two rows of tiles. Units: microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hgemm
from benchmarks.epilogue_speed import LAYERS, ROUNDS, SWIGLU, Layer, check, fastest, timed
from hgemm.epilogue_language import as_epilogue

CONFIGS = (
    *((256, n, False) for n in (128, 160, 192)),
    *((128, n, False) for n in (224, 256)),
    *((m, n, True) for m, n in ((128, 128), (128, 160), (128, 192), (192, 128))),
)
"""Tiles of QuACK's autotuner on sm_90 for gated products, and whether they are of its ping-pong schedule."""


def quack_run(layer: Layer, weights: list[Any], config: object) -> Callable[[int], object]:
    """Return a launch of QuACK on a set of operands."""
    from quack.gemm_interface import gemm_act

    def run(at: int) -> object:
        options = {"activation": "swiglu", "store_preact": False, "tuned": False, "config": config}
        return gemm_act(layer.x[at], weights[at].t(), postact_out=layer.d[at], **options)

    return run


def quack_runs(layer: Layer, refused: dict[str, str]) -> dict[str, Callable[[int], object]]:
    """Return a correct launch of each configuration. `refused` gets the reasons of the others."""
    import torch
    from quack.gemm_config import GemmConfig

    # The weights alternate by single rows.
    weights = [torch.stack(pair, 1).reshape(2 * len(pair[0]), -1) for pair in layer.pairs]
    found, expected = {}, layer.torchs(layer.formula)(0)
    for m, n, pingpong in CONFIGS:
        name = f"{m}x{n}{' pingpong' if pingpong else ''}"
        config = GemmConfig(
            tile_m=m, tile_n=n, pingpong=pingpong, cluster_m=2, cluster_n=1, is_dynamic_persistent=False
        )
        try:
            run = quack_run(layer, weights, config)
            layer.d[0].zero_()
            run(0)
            check(f"quack {name}", layer.d[0], expected)
        except (Exception, SystemExit) as error:  # whatever its compiler raises
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            found[name] = run
    return found


def time_layer(kernels: list[hgemm.Kernel], m: int) -> dict[str, object]:
    """Return the medians and the ratio for one number of tokens."""
    layer, refused = Layer(SWIGLU, m, *LAYERS["gate_up"]), {}
    ours = fastest(layer, kernels, True)
    runs = quack_runs(layer, refused)
    row: dict[str, object] = {"m": m, "n": layer.n, "k": layer.k, "ours": ours.symbol, "refused": refused}
    if not runs:
        return row
    screened = timed(runs, layer.sets, layer.guess_us, 3, 0.1)
    theirs = min(runs, key=lambda name: statistics.median(screened[name]))
    times = timed({"ours": layer.ours(ours, True), "quack": runs[theirs]}, layer.sets, layer.guess_us, ROUNDS)
    ratios = [quack / own for own, quack in zip(times["ours"], times["quack"], strict=True)]
    return {
        **row,
        "quack": theirs,
        "us": {name: round(statistics.median(found), 2) for name, found in times.items()},
        "ratio": [round(value, 4) for value in (statistics.median(ratios), min(ratios), max(ratios))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/epilogues")
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import torch

    expression = as_epilogue(SWIGLU)
    kernels = [one for one in hgemm.open(args.library) if one.traits.epilogue == expression]
    found = {"device": torch.cuda.get_device_name(), "quack": version("quack-kernels"), "layers": []}
    for m in args.tokens:
        found["layers"].append(time_layer(kernels, m))
        print(json.dumps(found["layers"][-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
