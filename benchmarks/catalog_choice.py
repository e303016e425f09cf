"""Measure a space of specs on drawn problems, and choose the smallest set of kernels that loses little.

\b
    generate --spec benchmarks/catalog_space.toml --library build/space
    python -m benchmarks.catalog_choice measure build/space --problems 100 --seed 1 --json FILE
    python -m benchmarks.catalog_choice choose FILE... --mean 0.02 --worst 0.08
    python -m benchmarks.catalog_choice suite --seed 1795903823 > drawn.json

`measure` needs a GPU. It screens the kernels with the lowest estimates in the state `model`, and cuBLASLt beside them. `choose`
needs none: it chooses on half of the problems, and reports the losses on the other half. `--align 1`, `2` or `4` draws operands
off 16 bytes, for benchmarks/catalog_space_unaligned.toml. `--draw attention` draws batched products of attention in all layouts,
`--draw layouts` single products in other layouts than tn, both in f16 and bf16; they suit the library of the catalog.
`suite` prints drawn problems for `hgemm bench --suite` and `hgemm tune --suite`. The same seed prints the same problems.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.launch_cost import Pinned
from hgemm.bench.baselines import CublasLt
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import BASELINE, OURS, KernelContender, LostDevice, OutputSample, open_context, open_race
from hgemm.bench.protocol import Protocol, geometric_mean
from hgemm.bench.work import Work
from hgemm.device import Device, open_device
from hgemm.dispatch_table import candidate_options, estimate_clocks, launch_clocks
from hgemm.errors import DeviceError, HgemmError
from hgemm.kernel import Kernel
from hgemm.library import open_library
from hgemm.model.calibrated import calibration, identity
from hgemm.problem import Kind, LaunchOptions
from hgemm.selection import Choice, Selector, row_supports
from hgemm.selection_query import SelectionQuery, Target

LAYERS = {
    "Llama 3.2 1B": [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)],
    "Llama 3 8B": [(4096, 4096), (6144, 4096), (14336, 4096), (28672, 4096), (4096, 14336)],
    "Llama 3 70B, 8 GPUs": [(1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)],
    "Qwen2.5 7B": [(3584, 3584), (4608, 3584), (18944, 3584), (3584, 18944)],
    "Qwen3 0.6B": [(2048, 1024), (4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)],
    "Gemma 2 9B": [(8192, 3584), (3584, 4096), (28672, 3584), (3584, 14336)],
    "Phi 3 mini": [(9216, 3072), (3072, 3072), (16384, 3072), (3072, 8192)],
    "GPT-2": [(2304, 768), (768, 768), (3072, 768), (768, 3072)],
    "BERT large, ViT large": [(1024, 1024), (3072, 1024), (4096, 1024), (1024, 4096)],
}
"""(n, k) of linear layers, by model. Source: the models' published configurations."""
MAX_ROWS, MAX_FLOPS, MAX_BYTES = 16384, 1.5e12, 3 << 30
SMS = 132
TRAP_WAVES = (1.05, 1.3, 2.1, 3.4, 6.06)
TILES = ((128, 256), (128, 192), (128, 128))
PROTOCOL = Protocol(screen_ms=1.0, screen_samples=3, sets_max=48, l2_multiple=2.0)
BATCHED_DUTY = 2.0
"""`Protocol.duty` of batched products: in attention, a softmax reads and writes one of A and D. A longer kernel would hide them."""
MAX_CANDIDATES = 100
MAX_ESTIMATE = 1.8
MAX_BATCHED_ESTIMATE = 3.0
"""Kernels with a longer estimate, relative to the shortest, are not measured. Estimates of batched products are less accurate."""
MAX_OPTIONS = 3
"""Launch options of a kernel that are measured, those with the lowest estimates."""


def log_uniform(rng: random.Random, low: int, high: int, step: int) -> int:
    """Return a multiple of `step` whose logarithm is uniform."""
    return max(step, round(math.exp(rng.uniform(math.log(low), math.log(high))) / step) * step)


def draw(rng: random.Random) -> tuple[int, int, int]:
    """Return m, n and k of one problem: of a model's layer, at random, or with a part of a wave."""
    kind = rng.random()
    if kind < 0.45:
        n, k = rng.choice(rng.choice(list(LAYERS.values())))
        return log_uniform(rng, 1, MAX_ROWS, 1), n, k
    if kind < 0.8:
        return log_uniform(rng, 1, MAX_ROWS, 1), log_uniform(rng, 128, 32768, 8), log_uniform(rng, 128, 32768, 8)
    tile_m, tile_n = rng.choice(TILES)
    tiles = round(rng.choice(TRAP_WAVES) * SMS)
    rows = rng.choice([rows for rows in range(4, 65) if tiles // rows >= 2])
    return rows * tile_m, tiles // rows * tile_n, log_uniform(rng, 512, 16384, 64)


def off_alignment(rng: random.Random, n: int, k: int, align: int) -> tuple[int, int]:
    """Return n and k near the given ones. One or both are multiples of `align` elements and of no larger power of two.

    The operands of layout tn have rows of k elements, and D has rows of n.
    """
    moved = rng.choice(("nk", "nk", "n", "k"))
    places = range(align, 8, 2 * align)
    return tuple(
        extent // 8 * 8 + (rng.choice(places) if name in moved else 0) for name, extent in (("n", n), ("k", k))
    )


def problems(count: int, seed: int, align: int = 8) -> Iterator[Work]:
    """Yield distinct problems that fit into memory and take a few milliseconds at most."""
    rng, seen = random.Random(seed), set()
    while len(seen) < count:
        m, n, k = draw(rng)
        if align < 8:
            n, k = off_alignment(rng, n, k, align)
        size = 2 * (m * k + n * k + m * n)
        if (m, n, k) not in seen and 2.0 * m * n * k < MAX_FLOPS and 1 << 20 <= size < MAX_BYTES:
            seen.add((m, n, k))
            yield Work(m, n, k)


MAX_SUITE_FLOPS = 1e13
"""A suite has products that take up to 15 ms, and small ones."""


def suite_shapes(count: int, seed: int) -> list[list[int]]:
    """Return m, n and k of distinct problems of a suite, in ascending order."""
    rng, shapes = random.Random(seed), []
    while len(shapes) < count:
        m, n, k = draw(rng)
        if [m, n, k] not in shapes and 2.0 * m * n * k <= MAX_SUITE_FLOPS and 2 * (m * k + n * k + m * n) <= MAX_BYTES:
            shapes.append([m, n, k])
    return sorted(shapes)


# ---- Other layouts and batches ----

LAYOUTS = ("tn", "tt", "nn", "nt")
DTYPES = ("f16", "f16", "bf16")
"""Types of A, B and D. f16 is drawn twice as often."""
HEAD_SIZES = (32, 64, 64, 80, 96, 128, 128, 128, 256)
LEAST_TOKENS, MAX_TOKENS, LEAST_PRODUCTS, MAX_PRODUCTS = 32, 1024, 16, 512
MIN_BATCHED_BYTES, MAX_BATCHED_BYTES = 4 << 20, 384 << 20


def _work(rng: random.Random, m: int, n: int, k: int, batch: int, layouts: Sequence[str]) -> Work:
    """Return a problem with a drawn layout and type. If m is contiguous in A, it is a multiple of 8."""
    layout, dtype = rng.choice(layouts), rng.choice(DTYPES)
    m = m if layout[0] == "t" else -(-m // 8) * 8
    return Work(m, n, k, batch, layout, dtype_a=dtype, dtype_b=dtype, dtype_d=dtype)


def attention_problems(count: int, seed: int) -> Iterator[Work]:
    """Yield distinct batched products of attention: scores (tokens, keys, head size), or values (tokens, head size, keys)."""
    rng, seen = random.Random(seed), set()
    while len(seen) < count:
        batch, size = log_uniform(rng, LEAST_PRODUCTS, MAX_PRODUCTS, 8), rng.choice(HEAD_SIZES)
        keys = log_uniform(rng, LEAST_TOKENS, MAX_TOKENS, rng.choice((8, 64, 128)))
        tokens = keys if rng.random() < 0.6 else log_uniform(rng, 1, keys, 1)
        n, k = (keys, size) if rng.random() < 0.5 else (size, keys)
        work = _work(rng, tokens, n, k, batch, LAYOUTS)
        size_bytes = 2 * batch * (work.m * k + n * k + work.m * n)
        if work not in seen and MIN_BATCHED_BYTES <= size_bytes < MAX_BATCHED_BYTES:
            seen.add(work)
            yield work


def layout_problems(count: int, seed: int) -> Iterator[Work]:
    """Yield the drawn problems of `problems` in other layouts than tn."""
    rng = random.Random(seed)
    for work in problems(count, seed):
        yield _work(rng, work.m, work.n, work.k, 1, LAYOUTS[1:])


def work_of(problem: Mapping[str, Any]) -> Work:
    """Return the problem of an entry of a file of times."""
    dtype = problem.get("dtype", "f16")
    return Work(*problem["extents"], layout=problem.get("layout", "tn"), dtype_a=dtype, dtype_b=dtype, dtype_d=dtype)


DRAWS = {"layers": problems, "attention": attention_problems, "layouts": layout_problems}


def label(symbol: str, options: LaunchOptions | None) -> str:
    """Return the name of a contender: its symbol, then `@splits/whole_tiles` if its launches decide the splits."""
    return f"{symbol}@{options.splits}/{options.whole_tiles}" if options else symbol


def launches(
    kernel: Kernel, choice: Choice, query: SelectionQuery, target: Target, device: Device
) -> list[KernelContender]:
    """Return the contenders of a kernel: one, or one for each of the launch options with the lowest estimates."""
    if choice.options is None:
        return [KernelContender(kernel, device)]
    every = sorted(
        candidate_options(choice.row, query, target), key=lambda one: launch_clocks(choice.row, query, target, one)
    )
    found = [replace(one, raster_tiles=choice.options.raster_tiles) for one in every[:MAX_OPTIONS]]
    return [Pinned(kernel, device, label=label(choice.symbol, one), options=one) for one in found]


def best_ratio(problem: Mapping[str, Any]) -> float:
    """Return the time of cuBLASLt's best algorithm over that of the best kernel."""
    return min(problem["baseline_us"].values(), default=math.inf) / min(problem["us"].values())


@cache
def _selector(library: Path, target: Target) -> Selector:
    return open_library(library).selector(target)


def candidates(library: Path, target: Target, work: Work) -> list[Choice]:
    """Return the kernels to measure, the selected one first, the others by their estimates."""
    ranked = _selector(library, target).ranked(SelectionQuery.dense(work.kind, work.extents))
    longest = (MAX_ESTIMATE if work.batch == 1 else MAX_BATCHED_ESTIMATE) * min(choice.clocks for choice in ranked)
    return [ranked[0], *(choice for choice in ranked[1:] if choice.clocks <= longest)][:MAX_CANDIDATES]


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--seed", type=int, required=True, help="Seed of the problems.")
@click.option("--count", type=click.IntRange(1), default=100, show_default=True, help="Number of problems.")
def suite(seed: int, count: int) -> None:
    """Print drawn problems in f16 and layout tn as a suite."""
    click.echo(json.dumps([{"name": f"drawn_{seed}", "layout": "tn", "shapes": suite_shapes(count, seed)}]))


@main.command()
@click.argument("library", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--problems", "count", default=100, show_default=True, help="Number of problems.")
@click.option("--seed", default=1, show_default=True, help="Seed of the problems.")
@click.option("--draw", "drawn", default="layers", type=click.Choice([*DRAWS]), help="Which problems to draw.")
@click.option("--align", default="8", type=click.Choice(["1", "2", "4", "8"]), help="Alignment in elements. 8 is full.")
@click.option(
    "--again", type=click.Path(path_type=Path, exists=True), help="Measure the problems of this file again instead."
)
@click.option(
    "--below", default=math.inf, help="With --again: only those where cuBLASLt's best of 16 is below this ratio."
)
@click.option("--budget", default=300.0, show_default=True, help="Seconds after which no problem is begun.")
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where to write the times.")
def measure(
    library: Path,
    count: int,
    seed: int,
    drawn: str,
    align: str,
    again: Path | None,
    below: float,
    budget: float,
    path: Path,
) -> None:
    """Time the kernels of a library on drawn problems."""
    device, opened = open_device(), open_library(library)
    works = list(problems(count, seed, int(align)) if drawn == "layers" else DRAWS[drawn](count, seed))
    target, protocol = Target.of(device), PROTOCOL if drawn != "attention" else replace(PROTOCOL, duty=BATCHED_DUTY)
    if again:
        works = [work_of(one) for one in json.loads(again.read_text())["problems"] if best_ratio(one) < below]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # an estimate of all kernels takes 0.4 s
        ranked_of = list(pool.map(partial(candidates, library, target), works, chunksize=8))
    began = time.perf_counter()
    document: dict[str, Any] = {
        "device": device.name,
        "seed": seed,
        "specs": {symbol: record.data["spec"] for symbol, record in opened.records.items()},
        "problems": [],
    }
    with ExitStack() as stack:
        watchdog = Watchdog(path, 120.0)
        stack.callback(watchdog.stop)
        context = open_context(device, protocol, seed, watchdog, stack)
        baseline = CublasLt(device)
        for number, (work, ranked) in enumerate(zip(works, ranked_of, strict=True), 1):
            if time.perf_counter() - began > budget:
                click.echo(f"budget of {budget:g} s: {number - 1} of {len(works)} problems measured", err=True)
                break
            query = SelectionQuery.dense(work.kind, work.extents)
            try:
                with open_race(work, context) as (race, own):
                    for choice in ranked:
                        watchdog.begin(choice.symbol)
                        for contender in launches(opened.kernel(choice.symbol), choice, query, target, device):
                            race.add(own(contender))
                    for proposal in own(baseline.propose(work, 16)).contenders:
                        race.add(proposal)
                    race.alternate(own(context.memory_kernel(work)))
                    ours, theirs = race.screen(OURS), race.screen(BASELINE)
                    best = min(ours, key=ours.__getitem__)
                    wrong = OutputSample(race.operands, seed).failure(race.launches[best][0])
            except (LostDevice, DeviceError) as error:
                click.echo(f"{work.key}: {error}", err=True)
                if isinstance(error, LostDevice):
                    break
                continue
            document["problems"].append(
                {
                    "extents": [work.m, work.n, work.k] if drawn == "layers" else [*work.extents],
                    **({} if drawn == "layers" else {"layout": work.layout, "dtype": work.dtype_a}),
                    "selected": label(ranked[0].symbol, ranked[0].options),
                    "us": {symbol: round(1e3 * ms, 3) for symbol, ms in ours.items() if symbol in race.launches},
                    "baseline_us": {name: round(1e3 * ms, 3) for name, ms in theirs.items()},
                    "wrong": wrong,
                }
            )
            path.write_text(json.dumps(document) + "\n", encoding="utf-8")
            first, chosen = theirs.get("cublaslt#0"), ours.get(label(ranked[0].symbol, ranked[0].options), math.nan)
            click.echo(
                f"[{number}/{len(works)}] {work.key} best {1e3 * ours[best]:.1f} us {best}  "
                f"first {first / ours[best] if first else 0:.3f} best {min(theirs.values()) / ours[best]:.3f}  "
                f"selected {chosen / ours[best]:.3f}{'  WRONG ' + wrong if wrong else ''}",
                err=True,
            )
    click.echo(f"{len(document['problems'])} problems in {time.perf_counter() - began:.0f} s")


# ---- Choice: a greedy cover ------------------------------------------------------------------------------------------

Times = Sequence[Mapping[str, float]]


def of_kernels(us: Mapping[str, float]) -> dict[str, float]:
    """Return the times of kernels by symbol: of each one, with its best launch options."""
    found: dict[str, float] = {}
    for name, time_us in us.items():
        symbol = name.partition("@")[0]
        found[symbol] = min(time_us, found.get(symbol, math.inf))
    return found


def losses(times: Times, kept: Sequence[str]) -> list[float]:
    """Return the loss of a set of kernels on each problem, relative to the best of all. It is infinite if none was measured."""
    return [min((us[name] for name in kept if name in us), default=math.inf) / min(us.values()) - 1 for us in times]


MAX_LOSS = 4.0
"""Losses count as at most this. A kernel that was not measured on a problem loses this much."""


def loss_table(times: Times, names: Sequence[str]) -> np.ndarray:
    """Return the loss of each kernel on each problem. Shapes: (problem, kernel)."""
    table = np.array([[us.get(name, math.inf) for name in names] for us in times]).reshape(len(times), len(names))
    return np.minimum(table / np.array([[min(us.values())] for us in times]) - 1, MAX_LOSS)


def costs(values: np.ndarray, worst: float) -> np.ndarray:
    """Return what the choice minimises: the mean loss, and the parts of losses above `worst`, tenfold.

    Shapes: values (problem, set) gives (set).
    """
    return (values + 10 * np.maximum(values - worst, 0)).mean(axis=0)


def choose_kernels(times: Times, mean: float, worst: float) -> list[str]:
    """Return a small set of kernels whose losses are at most `mean` in the mean and `worst` at worst.

    Adds the kernel that lowers the cost most, until the limits hold. Then removes each kernel that they do not need.
    """
    names = sorted({name for us in times for name in us})
    table = loss_table(times, names)
    kept: list[int] = []
    covered = np.full(len(times), MAX_LOSS)
    while len(kept) < len(names) and not (covered.mean() <= mean and covered.max() <= worst):
        candidates = costs(np.minimum(table, covered[:, None]), worst)
        best = int(candidates.argmin())
        if kept and candidates[best] >= costs(covered[:, None], worst)[0]:
            break
        kept.append(best)
        covered = np.minimum(covered, table[:, best])
    for at in reversed(list(kept)):  # the last one added first
        without = [other for other in kept if other != at]
        found = table[:, without].min(axis=1) if without else np.array([math.inf])
        if found.mean() <= mean and found.max() <= worst:
            kept = without
    return [names[at] for at in kept]


def estimated_times(specs: Mapping[str, Mapping[str, Any]], count: int, seed: int) -> list[dict[str, float]]:
    """Return the estimated time of each kernel on drawn problems. Units: clocks of an SM."""
    from benchmarks.calibration import CAPABILITY, rows_of  # it imports this module's figures

    words = {symbol: identity(spec) for symbol, spec in specs.items()}
    rows = rows_of([{"kernels": [*words.values()]}], calibration())
    target = Target.typical(f"sm_{CAPABILITY}", SMS)
    queries = [SelectionQuery.dense(Kind(), work.extents) for work in problems(count, seed)]
    return [
        {
            symbol: float(estimate_clocks(rows[its], query, target))
            for symbol, its in words.items()
            if its in rows and row_supports(rows[its], query, target)
        }
        for query in queries
    ]


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--mean", default=0.02, show_default=True, help="Highest mean loss.")
@click.option("--worst", default=0.08, show_default=True, help="Highest loss of a problem.")
@click.option(
    "--estimated", default=0, show_default=True, help="Number of drawn problems that count by their estimates."
)
@click.option("--seed", default=1, show_default=True, help="Seed of these problems.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="Write the kernels chosen from all problems to this spec file.",
)
def choose(files: Sequence[Path], mean: float, worst: float, estimated: int, seed: int, to: Path | None) -> None:
    """Choose kernels on half of the problems, and report their losses on the other half.

    Measured problems are few. With --estimated, the final choice also has to serve drawn problems, by the calibrated estimates.
    """
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    specs = {symbol: spec for document in documents for symbol, spec in document["specs"].items()}
    every = [problem for document in documents for problem in document["problems"] if not problem["wrong"]]
    if len(every) < 2:
        raise click.UsageError("the files hold no problem, or one: measure more")
    times = [of_kernels(problem["us"]) for problem in every]
    kept = choose_kernels(times[::2], mean, worst)
    for title, part in (("chosen on", every[::2]), ("held out", every[1::2]), ("all", every)):
        found = losses([of_kernels(problem["us"]) for problem in part], kept)
        first = [
            p["baseline_us"]["cublaslt#0"] / min(p["us"].values()) for p in part if "cublaslt#0" in p["baseline_us"]
        ]
        best = [best_ratio(p) for p in part if p["baseline_us"]]
        selected = [p["us"].get(p["selected"], math.inf) / min(p["us"].values()) for p in part]
        click.echo(
            f"{title}: {len(part)} problems, loss {100 * statistics.fmean(found):.1f} % mean, {100 * max(found):.1f} % worst; "
            f"best of the space over cuBLASLt's first {geometric_mean(first):.3f} (minimum {min(first):.3f}), "
            f"best of 16 {geometric_mean(best):.3f} (minimum {min(best):.3f}); "
            f"lowest estimate {statistics.fmean(selected):.3f} times the best"
        )
    guessed = estimated_times(specs, estimated, seed) if estimated else []
    kept_all = choose_kernels([*times, *guessed], mean, worst)
    for title, part in (("measured", times), ("estimated", guessed)):
        if found := losses(part, kept_all):
            loss = f"loss {100 * statistics.fmean(found):.1f} % mean, {100 * max(found):.1f} % worst"
            click.echo(f"chosen on all, {title}: {len(part)} problems, {loss}")
    click.echo(f"{len(kept)} kernels from one half; {len(kept_all)} from all problems:")
    for symbol in kept_all:
        spec = specs[symbol]
        wins = sum(min(us, key=us.__getitem__) == symbol for us in times)
        click.echo(f"  {wins:3} wins  {' '.join(str(spec[word]) for word in CHOSEN)}  {symbol}")
    if to:
        to.write_text(tables_of([specs[symbol] for symbol in kept_all]), encoding="utf-8")


CHOSEN = {
    "cta_tile": "tile",
    "swap_ab": "swap_ab",
    "consumers": "consumers",
    "cooperation": "cooperation",
    "cluster": "cluster",
    "schedule": "schedule",
    "raster": "raster",
    "stages": "stages",
}
"""The fields that the choice decides, and their names in a spec file."""


def tables_of(specs: Iterable[Mapping[str, Any]]) -> str:
    """Return the chosen fields of specs as the kernels of a spec file. Specs that differ in one field share a row."""
    ordered = sorted(specs, key=lambda one: [int(extent) for extent in one["cta_tile"].split("x")])
    tables = [{name: (spec[field],) for field, name in CHOSEN.items()} for spec in ordered]
    for name in ("tile", "cluster", "schedule"):
        groups: dict[tuple, tuple] = {}
        for one in tables:
            rest = tuple((other, values) for other, values in one.items() if other != name)
            groups[rest] = (*groups.get(rest, ()), *one[name])
        tables = [{name: values, **dict(rest)} for rest, values in groups.items()]
    texts = [[f"{name} = {_values(one[name])}" for name in CHOSEN.values()] for one in tables]
    rows = [f"  {{{', '.join(row)}}},\n" for row in sorted(texts, key=lambda row: row[1:])]
    return "".join(("kernel = [\n", *rows, "]\n"))


def _values(values: Sequence[Any]) -> str:
    return json.dumps(values[0] if len(values) == 1 else [*dict.fromkeys(values)])


if __name__ == "__main__":
    try:
        main()
    except HgemmError as error:
        raise SystemExit(f"catalog_choice: {error}") from None
