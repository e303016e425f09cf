"""Check that rows have the same bits for every number of rows, and time batch-invariant products on this machine's GPU.

\b
    python -m benchmarks.batch_invariance --library build/invariant --json batch_invariance.json

\b
bits:  a row of a product of m rows is compared with the same row in a product of 8192 rows, for every m to 300 and samples
       beyond. The rows lie at random places. The same is done for ordinary selection, and for torch.mm.
speed: CUDA graphs of products with random weights that exceed the L2 cache three times. Rounds alternate: ABBA.

\b
Contenders: `invariant` and `ordinary` selection of the library, torch.mm, and two batch-invariant kernels in Triton, which use
one tile for all shapes. A ratio above 1 means that `invariant` is faster.
Exit status: 0 no byte differs in the batch-invariant products, 1 some do, or there is no GPU.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hgemm.bench.protocol import Ratio, forth_and_back, geometric_mean, round_times
from hgemm.device import driver_cuda, open_device
from hgemm.errors import HgemmError
from hgemm.library import Library, open_library

PAIRS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (512, 16384))
"""n and k: attention output, q k v, gate and up, and down of Llama 3 8B; attention output of 70B; a long k."""
MAX_M, EVERY_M = 8192, 300
SAMPLES = 40
"""Numbers of rows above EVERY_M whose bits are compared."""
TIMED_M = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SET_BYTES = 3 * 50 * 2**20
"""Weights of all sets together. Source: an H100 and an H200 have an L2 cache of 50 MB."""
GRAPH_MS, BLOCK_MS = 0.4, 1.5
MAX_GRAPH_LAUNCHES = 120
TILES = {"triton_128x128": (128, 128, 64), "triton_128x256": (128, 256, 64)}
"""CTA tiles of the Triton contenders. Source: the description of thinking-machines-lab/batch_invariant_ops and its copy in vLLM."""

# ==== A batch-invariant kernel in Triton ====


def triton_matmul() -> Callable[..., None]:
    """Return a function (a, b, d, tile): d = a b with one tile for all shapes and k in order, in a persistent kernel.

    Shapes: a (m, k) row-major, b (k, n) column-major, d (m, n) row-major.
    """
    import torch
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["m"])
    def kernel(a, b, d, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, CTAS: tl.constexpr):
        tiles_m = tl.cdiv(m, TILE_M)
        tiles_n = tl.cdiv(n, TILE_N)
        group: tl.constexpr = 8
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, CTAS, flatten=True):
            first_m = tile // (group * tiles_n) * group
            rows_of_group = min(tiles_m - first_m, group)
            tile_m = first_m + tile % (group * tiles_n) % rows_of_group
            tile_n = tile % (group * tiles_n) // rows_of_group
            rows = tile_m * TILE_M + tl.arange(0, TILE_M)
            columns = tile_n * TILE_N + tl.arange(0, TILE_N)
            a_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < m, rows, 0), TILE_M), TILE_M)
            b_columns = tl.max_contiguous(tl.multiple_of(tl.where(columns < n, columns, 0), TILE_N), TILE_N)
            sums = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
            for k_tile in range(tl.cdiv(k, TILE_K)):
                ks = k_tile * TILE_K + tl.arange(0, TILE_K)
                inside = ks < k
                x = tl.load(a + a_rows[:, None].to(tl.int64) * k + ks[None, :], mask=inside[None, :], other=0.0)
                y = tl.load(b + ks[:, None] + b_columns[None, :].to(tl.int64) * k, mask=inside[:, None], other=0.0)
                sums = tl.dot(x, y, sums)
            place = d + rows[:, None].to(tl.int64) * n + columns[None, :]
            tl.store(place, sums.to(d.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))

    sms = torch.cuda.get_device_properties(0).multi_processor_count

    def matmul(a: Any, b: Any, d: Any, tile: tuple[int, int, int]) -> None:
        (m, k), n = a.shape, b.shape[1]
        ctas = min(sms, -(-m // tile[0]) * -(-n // tile[1]))
        kernel[(ctas,)](a, b, d, m, n, k, *tile, sms, num_stages=3, num_warps=8)

    return matmul


# ==== Bits ====


def rows_to_check(rng: random.Random) -> list[int]:
    """Return every m to EVERY_M, and samples beyond."""
    samples = {round(EVERY_M * (MAX_M / EVERY_M) ** (rng.random())) for _ in range(SAMPLES)}
    return [*range(1, EVERY_M + 1), *sorted(samples - {MAX_M})]


def differing(multiply: Callable[[Any], Any], x: Any, counts: Sequence[int]) -> dict[str, Any]:
    """Return for how many m some row differs from the same row in the product of all rows of `x`, and how many bytes differ."""
    import torch

    whole = multiply(x).clone()
    generator = torch.Generator("cuda").manual_seed(0)
    found = []
    for m in counts:
        rows = torch.randperm(len(x), generator=generator, device="cuda")[:m]
        found.append((multiply(x[rows]).view(torch.uint8) != whole[rows].view(torch.uint8)).sum())
    byte_counts = torch.stack(found).tolist()
    return {"m_differing": sum(count > 0 for count in byte_counts), "bytes_differing": sum(byte_counts)}


def check_bits(library: Library, pair: tuple[int, int], counts: Sequence[int]) -> dict[str, Any]:
    """Return the differing bytes of one pair, for each way to multiply."""
    import torch

    n, k = pair
    x = torch.randn(MAX_M, k, device="cuda", dtype=torch.float16)
    w = torch.randn(n, k, device="cuda", dtype=torch.float16).t()
    bias, c = torch.randn(n, device="cuda", dtype=torch.float16), torch.randn(n, device="cuda", dtype=torch.float16)
    few = [m for m in counts if m <= 16 or m % 37 == 0]

    def with_bias(a: Any) -> Any:
        return library.matmul(a, w, None, bias, None, 0.5, 2.0, c.expand(len(a), n).contiguous(), batch_invariant=True)

    def in_batches(a: Any) -> Any:  # two products with weights of their own, so that the batch is not folded into rows
        return library.matmul(torch.stack([a, a]), torch.stack([w.t(), w.t()]).mT, batch_invariant=True)[1]

    ways: dict[str, tuple[Callable[[Any], Any], Sequence[int]]] = {
        "invariant": (lambda a: library.matmul(a, w, batch_invariant=True), counts),
        "invariant_alpha_beta_bias": (with_bias, few),
        "invariant_batch": (in_batches, few),
        "ordinary": (lambda a: library.matmul(a, w), counts),
        "torch": (lambda a: torch.mm(a, w), counts),
    }
    found: dict[str, Any] = {"n": n, "k": k, "m_compared": len(counts), "m_compared_few": len(few)}
    for name, (multiply, its) in ways.items():
        try:
            found[name] = differing(multiply, x, its)
        except HgemmError as error:
            found[name] = {"failed": str(error)[:200]}
    whole, theirs = library.matmul(x, w, batch_invariant=True), torch.mm(x, w)
    found["equals_torch_at_8192"] = bool(torch.equal(whole, theirs))
    found["in_batches_equals_one"] = bool(
        torch.equal(in_batches(x[:100]), library.matmul(x[:100], w, batch_invariant=True))
    )
    return found


# ==== Speed ====


def block_ms(graph: Any, replays: int) -> float:
    """Return the time of one replay in a block of replays."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays


def captured(run: Callable[[int], object], sets: int, launches: int) -> Any:
    """Return a graph of so many launches, which take the sets of operands in turn."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for at in range(min(2, sets)):
            run(at)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(launches):
            run(at % sets)
    return graph


def time_pair(libraries: dict[str, Library], pair: tuple[int, int], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the times of one pair for each m. Units: microseconds."""
    import torch

    n, k = pair
    triton, base = triton_matmul(), libraries["invariant"]
    sets = max(1, -(-SET_BYTES // (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.float16).t() for _ in range(sets)]
    for m in TIMED_M:
        x = torch.randn(m, k, device="cuda", dtype=torch.float16)
        d = torch.empty(m, n, device="cuda", dtype=torch.float16)
        runs: dict[str, Callable[[int], object]] = {
            "invariant": lambda at, x=x, d=d: base.matmul(x, weights[at], d, batch_invariant=True),
            "ordinary": lambda at, x=x, d=d: base.matmul(x, weights[at], d),
            "torch": lambda at, x=x, d=d: torch.mm(x, weights[at], out=d),
            **{name: lambda at, x=x, d=d, tile=tile: triton(x, weights[at], d, tile) for name, tile in TILES.items()},
        }
        if "more" in libraries:
            runs["more"] = lambda at, x=x, d=d: libraries["more"].matmul(x, weights[at], d, batch_invariant=True)
        expected = torch.mm(x, weights[0]).float()
        for name, run in runs.items():
            d.zero_()
            run(0)
            error = (d.float() - expected).abs().max() / expected.abs().max()
            if not float(error) < 1e-2:
                raise SystemExit(f"batch_invariance: {name} computes {m}x{n}x{k} wrong: {float(error)}")
        flops = 2 * m * n * k
        guess_us = max(flops / 500e6, 2 * n * k / 2e6, 3)
        launches = min(MAX_GRAPH_LAUNCHES, max(1, round(1e3 * GRAPH_MS / guess_us / sets)) * sets)
        graphs = {name: captured(run, sets, launches) for name, run in runs.items()}
        replays = {name: max(1, round(BLOCK_MS / block_ms(graph, 2))) for name, graph in graphs.items()}
        blocks = [
            [(name, block_ms(graphs[name], replays[name])) for name in forth_and_back([*graphs])] for _ in range(rounds)
        ]
        times = round_times(blocks)
        row: dict[str, Any] = {"n": n, "k": k, "m": m}
        row["us"] = {name: round(1e3 * statistics.median(of) / launches, 2) for name, of in times.items()}
        ratios = {name: Ratio.of(of, times["invariant"]) for name, of in times.items() if name != "invariant"}
        row["ratio"] = {name: round(one.median, 3) for name, one in ratios.items()}
        row["spread"] = {name: round(one.spread, 3) for name, one in ratios.items()}
        yield row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the geometric mean, the least ratio and its problem over each contender."""
    found = {}
    for name in ("ordinary", "torch", *TILES):
        ratios = {f"{row['m']}x{row['n']}x{row['k']}": row["ratio"][name] for row in rows}
        worst = min(ratios, key=ratios.__getitem__)
        mean = round(geometric_mean([*ratios.values()]), 3)
        found[name] = {"mean": mean, "least": ratios[worst], "least_at": worst, "problems": len(ratios)}
    return found


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of one pair as lists over m."""
    found: dict[str, Any] = {"n": rows[0]["n"], "k": rows[0]["k"], "m": [row["m"] for row in rows]}
    for field in ("us", "ratio", "spread"):
        found[field] = {name: [row[field].get(name) for row in rows] for name in rows[0][field]}
    return found


# ==== The command ====


@click.command(help=__doc__)
@click.option("--library", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--more", type=click.Path(path_type=Path, exists=True), help="Another library to time.")
@click.option("--rounds", type=click.IntRange(1), default=11, show_default=True)
@click.option(
    "--pairs", type=click.IntRange(1, len(PAIRS)), default=len(PAIRS), show_default=True, help="The first pairs only."
)
@click.option(
    "--seconds", type=float, default=110.0, show_default=True, help="No further pair is timed after this time."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures there.")
def main(library: Path, more: Path | None, rounds: int, pairs: int, seconds: float, json_path: Path | None) -> None:
    import torch
    import triton

    if not torch.cuda.is_available():
        click.echo("batch_invariance: error: torch finds no GPU here", err=True)
        sys.exit(1)
    began = time.perf_counter()
    libraries = {"invariant": open_library(library), **({"more": open_library(more)} if more else {})}
    torch.manual_seed(0)
    counts = rows_to_check(random.Random(0))
    document: dict[str, Any] = {
        "device": open_device().name,
        "driver_cuda": driver_cuda(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "kernels": len(libraries["invariant"].symbols),
        "unit": "us per product in a CUDA graph; ratio: median of contender / invariant; spread: half of p10 to p90",
        "bits": [],
        "pairs": [],
    }
    rows: list[dict[str, Any]] = []

    def save() -> None:
        if json_path:
            json_path.write_text(text_of(document))

    for pair in PAIRS[:pairs]:
        document["bits"].append(check_bits(libraries["invariant"], pair, counts))
        click.echo(f"{time.perf_counter() - began:6.1f} s  bits {json.dumps(document['bits'][-1])}")
        torch.cuda.empty_cache()
        save()
    for pair in PAIRS[:pairs]:
        if time.perf_counter() - began > seconds:
            click.echo(f"{time.perf_counter() - began:6.1f} s  no time for {pair}")
            break
        for row in time_pair(libraries, pair, rounds):
            rows.append(row)
            us = "  ".join(f"{name} {value:9.2f}" for name, value in row["us"].items())
            click.echo(f"{time.perf_counter() - began:6.1f} s  {row['m']:5}x{row['n']}x{row['k']}  {us}")
        document["pairs"].append(columns([row for row in rows if (row["n"], row["k"]) == pair]))
        document["summary"] = summary(rows)
        torch.cuda.empty_cache()
        save()
    click.echo(json.dumps(document.get("summary", {}), indent=1))
    same = all(
        one[way].get("bytes_differing") == 0 for one in document["bits"] for way in one if way.startswith("invariant")
    )
    sys.exit(0 if same else 1)


def text_of(document: dict[str, Any]) -> str:
    """Return the document as JSON with one line for each field and each row."""
    lines = []
    for name, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row) for row in value)
            lines.append(f"{json.dumps(name)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
