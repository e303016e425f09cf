"""Time kernels with an epilogue beside the plain product, eager torch and torch.compile, on the MLP of Llama 3 8B.

    python -m benchmarks.epilogue_speed --library build/epilogues --seconds 120 --json epilogues.json

Builds what is missing. Each problem has three contenders of ours: `plain` is the fastest kernel without an epilogue; `same` is the
kernel without one that is otherwise equal to `fused`. `eager` and `compiled` are torch's. `products` are torch's products alone.
Each round runs all contenders. Above 1, `fused` is faster. `copied` is the time at copy speed of the matrices that only the
epilogue reads. `over` is the time of `fused` over that of `plain` and `copied`. `bound` is the time of `eager` over that of
`products`: the speedup of a fused kernel whose product takes cuBLAS's time and whose epilogue takes none.
With --tuned, `fused` and `plain` are what a library selects that `hgemm tune` measured. Nothing is built, and there is no `same`.
A whole MLP is two of our launches: the hidden layer, and the product back with the MLP's input as residual.
A gallery has each function of examples/epilogues.py on one product, beside the plain kernel of the same tile.
Q, K and V of Llama 3 8B are one D, a matrix for each head, or torch's three products.
Units: microseconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hgemm
from examples import epilogues
from hgemm.dtypes import DTYPES
from hgemm.epilogue import Epilogue, columns_of_d
from hgemm.epilogue_language import as_epilogue

HIDDEN, INNER = 4096, 14336
LINEAR = "residual: Matrix; gelu(acc + bias) + residual"
SWIGLU = "silu(gate) * up"
LAYERS = {"up": (INNER, HIDDEN), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
"""n and k of the products."""
MLPS = {
    "gelu": ((INNER, HIDDEN, "gelu(acc + bias)"), (HIDDEN, INNER, "residual: Matrix; acc + bias + residual")),
    "swiglu": ((2 * INNER, HIDDEN, SWIGLU), (HIDDEN, INNER, "residual: Matrix; acc + residual")),
}
"""n, k and epilogue of the two launches of a whole MLP."""
TILES: tuple[dict[str, Any], ...] = (
    {"tile": "128x256x64", "cluster": ["2x1", "1x2", "1x1"]},
    {"tile": "128x256x64", "cluster": "2x1", "swap_ab": True},
    {"tile": "256x128x64", "cluster": ["2x1", "1x2"]},
    {"tile": "256x112x64", "cluster": "1x2"},
    {"tile": "128x224x64", "cluster": "2x1"},
    {"tile": "128x128x64", "cooperation": "pingpong", "cluster": ["2x1", "1x2"]},
    {"tile": "128x128x64", "cooperation": "pingpong", "cluster": "2x1", "raster": "row,group:2,group:4,group:8"},
    {"tile": "128x128x64", "cooperation": "pingpong", "cluster": "1x2", "raster": "column,group:16"},
    {"tile": "128x112x64", "cooperation": "pingpong", "cluster": ["2x1", "1x2"]},
    {"tile": "128x112x64", "cooperation": "pingpong", "cluster": "2x1", "raster": "group:2,group:4,group:8"},
    {"tile": "128x136x64", "cooperation": "pingpong", "cluster": "2x1"},
    {"tile": "128x160x64", "cooperation": "pingpong", "cluster": ["2x1", "1x2"]},
    {"tile": "128x160x64", "cooperation": "pingpong", "cluster": "2x1", "raster": "group:4,group:8"},
    {"tile": "128x168x64", "cooperation": "pingpong", "cluster": "2x1"},
    {"tile": "128x176x64", "cooperation": "pingpong", "cluster": "2x1", "raster": "group:2,group:4,group:8"},
    {"tile": "128x192x64", "cooperation": "pingpong", "cluster": "2x1", "raster": "group:4,group:16"},
    {"tile": "64x256x64", "cooperation": "pingpong", "cluster": "2x1"},
)
PARTS = ("layers", "mlp", "gallery", "heads")
GALLERY_TILE = {"tile": "128x256x64", "cooperation": "cooperative", "cluster": "2x1"}
GALLERY = (
    *("scaled", "addmm", "dequantized", "rms_norm", "swiglu", "gelu_grad"),
    *("masked", "soft_capped", "clipped", "mobile", "mixed", "positive"),
)
GALLERY_SIZE = 4096
QKV_HEADS, HEAD_COLUMNS = (32, 8, 8), 128
ROTATED_BYTES = 256 << 20
"""Together, the operands of a graph exceed the L2 cache several times."""
GRAPH_MS, ROUNDS = 6.0, 31
PAIRED = 4
"""Kernels of each launch of an MLP whose pairs are tried together: the power limit makes products in a row slower than alone."""
FINALISTS, FINAL_ROUNDS = 4, 25
"""Kernels, or pairs of them, that are tried once more beside torch, and how often: medians of 11 rounds differ by 0.2 %."""
TOKENS = (2048, 512, 8192, 1024, 4096)
"""In this order, as far as the time allows: torch.compile tunes each size anew, in about 12 s."""


def takes(tile: Mapping[str, Any], text: str) -> bool:
    """Return whether a tile takes an expression.

    A gated pair requires a width that is a multiple of 16, and no swap_ab. A residual does not fit beside 192 columns of
    accumulators.
    """
    columns = int(tile["tile"].split("x")[1])
    if text == SWIGLU:
        return "swap_ab" not in tile and columns % 16 == 0
    return "residual" not in text or columns != 192


def build(library: str, jobs: int | None) -> dict[str, list[Any]]:
    """Return the kernels of each expression, and of none, in one order of tiles."""
    common = {"arch": "sm_90a", "layout": "tn", "dtype": "f16", "beta": "off"}
    texts = ["none", LINEAR, *(text for launches in MLPS.values() for _, _, text in launches)]
    found = {}
    for text in texts:
        specs = [{**common, **tile} for tile in TILES if takes(tile, text)]
        found[text] = hgemm.generate(specs, epilogue=text, library=library, jobs=jobs)
    for name in GALLERY:
        function = getattr(epilogues, name)
        found[name] = hgemm.generate({**common, **GALLERY_TILE}, epilogue=function, library=library, jobs=jobs)
    return found


def arrays_of(epilogue: Epilogue, m: int, n: int) -> dict[str, Any]:
    """Return random inputs of an expression, by name: numbers for scalars."""
    import torch

    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    shapes = {"row": (n,), "column": (m,), "matrix": (m, n)}
    return {
        one.name: 0.5
        if one.kind == "scalar"
        else torch.rand(shapes[one.kind], device="cuda", dtype=torch.float32).to(types[one.of("f16")])
        for one in epilogue.operands
    }


def read_bytes(epilogue: Epilogue, m: int, n: int) -> int:
    """Return the bytes of the matrices that an expression reads."""
    return sum(m * n * DTYPES[one.of("f16")].bytes for one in epilogue.operands if one.kind == "matrix")


# ==== Time ====


def captured(run: Callable[[int], object], sets: int, launches: int) -> Any:
    """Return a graph of launches that take the sets of operands in turn."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for at in range(sets):
            run(at)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(launches):
            run(at % sets)
    return graph


def replay_ms(graph: Any) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def timed(
    runs: Mapping[str, Callable[[int], object]],
    sets: int,
    guess_us: float,
    rounds: int,
    load_s: float = 0.5,
    graph_ms: float = GRAPH_MS,
) -> dict[str, list[float]]:
    """Return the times of each contender by round. The order of each round is random."""
    launches = max(1, round(graph_ms * 1e3 / guess_us / sets)) * sets
    graphs = {name: captured(run, sets, launches) for name, run in runs.items()}
    end = time.monotonic() + load_s
    while time.monotonic() < end:
        replay_ms(next(iter(graphs.values())))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for at in range(rounds):
        for name in random.Random(at).sample([*runs], len(runs)):
            times[name].append(replay_ms(graphs[name]) / launches * 1e3)
    return times


def copied_us(count: int) -> float:
    """Return the time that a copy takes to read and write so many bytes."""
    import torch

    source, to = (torch.empty(max(count // 2, 1 << 28), dtype=torch.uint8, device="cuda") for _ in range(2))
    graph = captured(lambda _: to.copy_(source), 1, 4)
    speed = 4 * 2 * source.numel() / statistics.median(replay_ms(graph) for _ in range(9)) * 1e3
    return count / speed * 1e6


def check(name: str, found: Any, expected: Any) -> None:
    """Stop if a result is not the expected one. A kernel and torch round differently."""
    error = float((found.float() - expected.float()).abs().max() / expected.float().abs().max())
    if not error < 2e-2:
        raise SystemExit(f"epilogue_speed: {name} is wrong: error {error}")


# ==== Problems ====


class Layer:
    """The operands of one product with `m` tokens, and its contenders."""

    def __init__(self, text: str, m: int, n: int, k: int) -> None:
        import torch

        self.epilogue, self.text, self.m, self.n, self.k = as_epilogue(text), text, m, n, k
        self.sets = max(2, -(-ROTATED_BYTES // (2 * (m * k + n * k + 2 * m * n))))
        half = {"device": "cuda", "dtype": torch.float16}
        self.x = [torch.randn(m, k, **half) for _ in range(self.sets)]
        self.w = [torch.randn(n, k, **half) / k**0.5 for _ in range(self.sets)]
        columns = columns_of_d(self.epilogue, n)
        self.wide = [torch.empty(m, n, **half) for _ in range(self.sets)]
        self.d = [wide if columns == n else torch.empty(m, columns, **half) for wide in self.wide]
        self.inputs = [arrays_of(self.epilogue, m, columns) for _ in range(self.sets)]
        self.pairs = [w.chunk(2) for w in self.w] if self.epilogue.gated else []
        self.w = [hgemm.interleave(*pair, axis=0) for pair in self.pairs] or self.w
        self.guess_us = max(2 * m * n * k / 600e6, 5.0)

    def ours(self, kernel: Any, fused: bool) -> Callable[[int], object]:
        import torch

        def run(at: int) -> object:
            inputs = self.inputs[at] if fused else None
            stream = torch.cuda.current_stream().cuda_stream
            d = self.d[at] if fused else self.wide[at]
            return kernel(self.x[at], self.w[at].t(), d, inputs=inputs, stream=stream)

        return run

    def formula(self, x: Any, w: Any, inputs: Mapping[str, Any]) -> Any:
        """Return what eager torch computes. `w` are both weights of a gated pair."""
        import torch
        import torch.nn.functional as F

        if self.text == LINEAR:
            return F.gelu(torch.addmm(inputs["bias"], x, w.t())) + inputs["residual"]
        gate, up = w
        return F.silu(torch.mm(x, gate.t())) * torch.mm(x, up.t())

    def products(self, x: Any, w: Any, inputs: Mapping[str, Any]) -> object:
        """Compute the products of `formula`, and nothing else."""
        import torch

        return [torch.mm(x, one.t()) for one in (w if self.pairs else (w,))]

    def torchs(self, function: Callable[..., object]) -> Callable[[int], object]:
        return lambda at: function(self.x[at], (self.pairs or self.w)[at], self.inputs[at])


def fastest(layer: Layer, kernels: list[Any], fused: bool, count: int = 1) -> list[Any]:
    """Return the fastest kernels of one expression: a short trial of all, and a longer one of the best six."""
    products = {"products": layer.torchs(layer.products)}
    for rounds, load_s, graph_ms in ((3, 0.3, GRAPH_MS / 2), (7, 0.1, GRAPH_MS)):
        runs = {one.symbol: layer.ours(one, fused) for one in kernels}
        speedups = trial(runs, products, layer, rounds, load_s, graph_ms)
        kernels = sorted(kernels, key=lambda one: -speedups[one.symbol])[:6]
    return kernels[:count]


def trial(
    runs: Mapping[str, Callable[[int], object]],
    others: Mapping[str, Callable[[int], object]],
    of: Layer | Mlp,
    rounds: int,
    load_s: float = 0.2,
    graph_ms: float = GRAPH_MS,
) -> dict[str, float]:
    """Return the speedup of each launch over the first of `others`, for a choice. These figures are not published.

    All of `others` run before each launch, as in the result. The power limit sets the clock by the mean power of what runs. At a
    low clock, the L2 cache is fast beside the tensor cores. So among many launches, those look too fast that read the most.
    """
    launches = max(1, round(graph_ms * 1e3 / of.guess_us / of.sets)) * of.sets
    graphs = {name: captured(run, of.sets, launches) for name, run in {**others, **runs}.items()}
    end = time.monotonic() + load_s
    while time.monotonic() < end:
        replay_ms(graphs[next(iter(others))])
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    for at in range(rounds):
        for name in random.Random(at).sample([*runs], len(runs)):
            first, *_ = [replay_ms(graphs[other]) for other in others]
            ratios[name].append(first / replay_ms(graphs[name]))
    return {name: statistics.median(found) for name, found in ratios.items()}


def finalist(
    runs: Mapping[str, Callable[[int], object]], others: Mapping[str, Callable[[int], object]], of: Layer | Mlp
) -> str:
    """Return which launch is the fastest beside `others`, in a long trial."""
    speedups = trial(runs, others, of, FINAL_ROUNDS) if len(runs) > 1 else dict.fromkeys(runs, 1.0)
    return max(speedups, key=lambda name: speedups[name])


class Choice:
    """Chooses kernels: the fastest of `kernels` in short trials, or what `tuned`, a library, selects by its measurements."""

    def __init__(self, kernels: Mapping[str, list[Any]], tuned: Any = None) -> None:
        self.kernels, self.tuned = kernels, tuned

    def of(self, layer: Layer, fused: bool, count: int) -> list[tuple[Any, str]]:
        """Return what launches the product, the fastest first, and the symbols of the kernels."""
        if self.tuned:
            plan = self.tuned.plan(hgemm.Problem(layer.m, layer.n, layer.k), epilogue=layer.text if fused else None)
            return [(plan, plan.kernel.symbol)]
        kernels = fastest(layer, self.kernels[layer.text if fused else "none"], fused, count)
        return [(kernel, kernel.symbol) for kernel in kernels]

    def one(self, layer: Layer, fused: bool, others: Mapping[str, Callable[[int], object]]) -> tuple[Any, str]:
        """Return the fastest of them beside `others`."""
        found = {symbol: launch for launch, symbol in self.of(layer, fused, FINALISTS)}
        symbol = finalist({name: layer.ours(launch, fused) for name, launch in found.items()}, others, layer)
        return found[symbol], symbol

    def same(self, layer: Layer, symbol: str) -> Any:
        """Return the kernel without an epilogue that is otherwise equal to one of `kernels`. None if the library is tuned."""
        if self.tuned:
            return None
        fused = next(one for one in self.kernels[layer.text] if one.symbol == symbol)
        return next(one for one in self.kernels["none"] if tile_of(one) == tile_of(fused))


def tile_of(kernel: Any) -> tuple[str, ...]:
    return tuple(kernel.record["spec"][name] for name in ("cta_tile", "cluster", "cooperation", "raster", "swap_ab"))


def time_layer(choice: Choice, name: str, text: str, m: int, compiled: bool) -> dict[str, Any]:
    """Return the medians and the ratios of one problem."""
    import torch

    layer = Layer(text, m, *LAYERS[name])
    eager = layer.torchs(layer.formula)
    plain, plain_symbol = choice.one(layer, False, {"eager": eager})
    fused, fused_symbol = choice.one(layer, True, {"eager": eager})
    symbols = {"fused": fused_symbol, "plain": plain_symbol}
    runs = {"fused": layer.ours(fused, True), "plain": layer.ours(plain, False)}
    if same := choice.same(layer, fused_symbol):
        runs["same"] = layer.ours(same, False)
        symbols["same"] = same.symbol
    runs |= {"eager": eager, "products": layer.torchs(layer.products)}
    runs["fused"](0)
    check(f"{name} {text}", layer.d[0], eager(0))
    if compiled:
        began = time.monotonic()
        runs["compiled"] = layer.torchs(torch.compile(layer.formula, mode="max-autotune-no-cudagraphs", dynamic=False))
        check(f"{name} {text}, compiled", runs["compiled"](0), eager(0))
        print(f"compiled {name} {m} in {time.monotonic() - began:.0f} s", flush=True)
    times = timed(runs, layer.sets, layer.guess_us, ROUNDS)
    copied = copied_us(read_bytes(layer.epilogue, m, layer.n))
    return {
        "layer": name,
        "epilogue": text,
        "m": m,
        "n": layer.n,
        "k": layer.k,
        "kernels": symbols,
        "us": {one: round(statistics.median(found), 2) for one, found in times.items()},
        "ratios": {one: _ratio(times[one], times["fused"]) for one in runs if one != "fused"},
        "bound": _ratio(times["eager"], times["products"]),
        "copied": round(copied, 2),
        "over": _ratio(times["fused"], [one + copied for one in times["plain"]]),
    }


def _ratio(above: list[float], below: list[float]) -> list[float]:
    """Return the median of the paired ratio, and its least and largest value."""
    ratios = [x / y for x, y in zip(above, below, strict=True)]
    return [round(value, 4) for value in (statistics.median(ratios), min(ratios), max(ratios))]


class Mlp:
    """The operands of a whole MLP with `m` tokens, and its contenders. Shapes: x and y (m, 4096), hidden (m, 14336)."""

    def __init__(self, name: str, m: int) -> None:
        import torch

        self.name, self.m, launches = name, m, MLPS[name]
        self.sets = max(2, -(-ROTATED_BYTES // (2 * sum(m * k + n * k for n, k, _ in launches))))
        half = {"device": "cuda", "dtype": torch.float16}
        self.x = [torch.randn(m, HIDDEN, **half) for _ in range(self.sets)]
        self.w = [[torch.randn(n, k, **half) / k**0.5 for n, k, _ in launches] for _ in range(self.sets)]
        self.pairs = [w[0].chunk(2) for w in self.w] if name == "swiglu" else []
        for w, pair in zip(self.w, self.pairs, strict=False):
            w[0] = hgemm.interleave(*pair, axis=0)
        self.bias = [[torch.rand(n, **half) for n, _, _ in launches] for _ in range(self.sets)]
        self.hidden, self.y = torch.empty(m, INNER, **half), torch.empty(m, HIDDEN, **half)
        self.guess_us = sum(2 * m * n * k for n, k, _ in launches) / 600e6

    def ours(self, first: Any, second: Any) -> Callable[[int], object]:
        import torch

        def run(at: int) -> object:
            x, (w_first, w_second), biases = self.x[at], self.w[at], self.bias[at]
            has_bias = self.name == "gelu"
            inputs = [{"bias": bias} if has_bias else {} for bias in biases]
            stream = torch.cuda.current_stream().cuda_stream
            first(x, w_first.t(), self.hidden, inputs=inputs[0], stream=stream)
            return second(self.hidden, w_second.t(), self.y, inputs={**inputs[1], "residual": x}, stream=stream)

        return run

    def formula(self, x: Any, first: Any, second: Any, biases: Any) -> Any:
        """Return what eager torch computes. `first` are both weights of a gated pair."""
        import torch
        import torch.nn.functional as F

        if self.name == "gelu":
            return torch.addmm(biases[1], F.gelu(torch.addmm(biases[0], x, first.t())), second.t()) + x
        return torch.mm(F.silu(torch.mm(x, first[0].t())) * torch.mm(x, first[1].t()), second.t()) + x

    def products(self, x: Any, first: Any, second: Any, biases: Any) -> object:
        """Compute products of the same sizes as those of `formula`, and nothing else."""
        import torch

        return [torch.mm(x, one.t()) for one in (first if self.pairs else (first,))] + [
            torch.mm(self.hidden, second.t())
        ]

    def torchs(self, function: Callable[..., object]) -> Callable[[int], object]:
        return lambda at: function(
            self.x[at], self.pairs[at] if self.pairs else self.w[at][0], self.w[at][1], self.bias[at]
        )


def time_mlp(choice: Choice, name: str, m: int, compiled: bool) -> dict[str, Any]:
    """Return the medians and the ratios of a whole MLP."""
    import torch

    offered = [choice.of(Layer(text, m, n, k), True, PAIRED) for n, k, text in MLPS[name]]
    mlp = Mlp(name, m)
    pairs = list(itertools.product(*offered))
    tried = {str(at): mlp.ours(first, second) for at, ((first, _), (second, _)) in enumerate(pairs)}
    others = {"eager": mlp.torchs(mlp.formula), "products": mlp.torchs(mlp.products)}
    speedups = trial(tried, others, mlp, 7)
    best = sorted(tried, key=lambda at: -speedups[at])[:FINALISTS]
    chosen = pairs[int(finalist({at: tried[at] for at in best}, others, mlp))]
    runs = {"fused": mlp.ours(*(launch for launch, _ in chosen)), **others}
    runs["fused"](0)
    check(f"MLP {name}", mlp.y, runs["eager"](0))
    if compiled:
        runs["compiled"] = mlp.torchs(torch.compile(mlp.formula, mode="max-autotune-no-cudagraphs", dynamic=False))
        check(f"MLP {name}, compiled", runs["compiled"](0), runs["eager"](0))
    times = timed(runs, mlp.sets, mlp.guess_us, ROUNDS)
    return {
        "mlp": name,
        "m": m,
        "kernels": [symbol for _, symbol in chosen],
        "us": {one: round(statistics.median(found), 2) for one, found in times.items()},
        "ratios": {one: _ratio(times[one], times["fused"]) for one in runs if one != "fused"},
        "bound": _ratio(times["eager"], times["products"]),
    }


def gallery(kernels: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the time of each example, and of the plain kernel of the same tile."""
    size = GALLERY_SIZE
    for name in GALLERY:
        function = getattr(epilogues, name)
        layer = Layer(function, size, size, size)
        runs = {"fused": layer.ours(kernels[name][0], True), "plain": layer.ours(kernels["none"][0], False)}
        times = timed(runs, layer.sets, layer.guess_us, ROUNDS)
        us = {one: round(statistics.median(found), 2) for one, found in times.items()}
        copied = round(copied_us(read_bytes(layer.epilogue, size, size)), 2)
        yield {"function": name, "us": us, "ratio": _ratio(times["plain"], times["fused"]), "copied": copied}


def time_heads(kernels: list[Any], m: int) -> dict[str, Any]:
    """Return the medians of Q, K and V, by where they are written. Above 1, matrices of the heads are faster."""
    import torch

    heads, k = sum(QKV_HEADS), HIDDEN
    layer = Layer(LINEAR, m, heads * HEAD_COLUMNS, k)
    of_heads = [torch.empty(heads, m, HEAD_COLUMNS, device="cuda", dtype=torch.float16) for _ in range(layer.sets)]

    def separate(kernel: Any) -> Callable[[int], object]:
        def run(at: int) -> object:
            w = layer.w[at].view(heads, HEAD_COLUMNS, k).transpose(1, 2)
            return kernel(layer.x[at], w, of_heads[at], stream=torch.cuda.current_stream().cuda_stream)

        return run

    columns = [count * HEAD_COLUMNS for count in QKV_HEADS]
    three = {"three": lambda at: [torch.mm(layer.x[at], w.t()) for w in layer.w[at].split(columns)]}
    found = {}
    for name, run_of in (("heads", separate), ("one", lambda kernel: layer.ours(kernel, False))):
        runs = {kernel.symbol: run_of(kernel) for kernel in kernels}
        speedups = trial(runs, three, layer, 3)
        best = sorted(runs, key=lambda symbol: -speedups[symbol])[:FINALISTS]
        symbol = finalist({one: runs[one] for one in best}, three, layer)
        found[name] = symbol, runs[symbol]
    runs = {**{name: run for name, (_, run) in found.items()}, **three, "products": layer.torchs(layer.products)}
    runs["heads"](0)
    check("heads", of_heads[0].transpose(0, 1).reshape(m, -1), runs["products"](0))
    times = timed(runs, layer.sets, layer.guess_us, ROUNDS)
    return {
        "m": m,
        "kernels": {name: symbol for name, (symbol, _) in found.items()},
        "us": {one: round(statistics.median(us), 2) for one, us in times.items()},
        "ratios": {one: _ratio(times[one], times["heads"]) for one in runs if one != "heads"},
    }


def measured(choice: Choice, args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row, and the part that it belongs to."""
    if "gallery" in args.part:
        yield from (("gallery", row) for row in gallery(choice.kernels))
    for m in args.tokens:  # torch.compile tunes a size once, for MLPs and layers
        for name in args.mlps if "mlp" in args.part else ():
            yield "mlp", time_mlp(choice, name, m, args.compiled)
        if "heads" in args.part:
            yield "heads", time_heads(choice.kernels["none"], m)
        for name in args.layers if "layers" in args.part else ():
            text = SWIGLU if name == "gate_up" else LINEAR
            yield "layers", time_layer(choice, name, text, m, args.compiled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/epilogues")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of measurements; the rest of the problems is skipped"
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="measure these parts only")
    parser.add_argument("--compiled", action="store_true", help="measure layers and MLPs beside torch.compile, too")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="sizes of layers and MLPs")
    parser.add_argument("--layers", nargs="+", choices=[*LAYERS], default=[*LAYERS])
    parser.add_argument("--mlps", nargs="+", choices=[*MLPS], default=[*MLPS])
    parser.add_argument("--tuned", action="store_true", help="measure what the library selects; for layers and MLPs")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.tuned and {"gallery", "heads"} & {*args.part}:
        parser.error("--tuned is for layers and MLPs: use --part layers mlp")
    if not args.build_only:
        import torch

        if not torch.cuda.is_available():
            sys.exit("epilogue_speed: error: torch finds no GPU here: --build-only builds the kernels")
    choice = Choice({}, hgemm.open(args.library)) if args.tuned else Choice(build(args.library, args.jobs))
    if args.build_only:
        return
    end = time.monotonic() + args.seconds
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        **{part: [] for part in PARTS},
    }
    rows = measured(choice, args)
    while time.monotonic() < end and (timed_row := next(rows, None)):
        part, row = timed_row
        found[part].append(row)
        print(json.dumps(row), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
