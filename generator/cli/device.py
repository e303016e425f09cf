"""The verbs that run kernels: run, verify, bench, tune."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from generator import epilogue
from generator.arch import parse_arch_list
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.cli.options import SIZE, Symbol, filter_options, json_option, kernel_options, library_option
from generator.cli.output import note_incomplete, note_left_out
from generator.device_check import (
    CODES,
    TIMEOUT_S,
    CheckOutcome,
    CheckRequest,
    CheckWorkers,
    json_of,
    junit_suite,
    open_kernel,
    outcome_line,
    outcome_summary,
)
from generator.errors import LibraryError, RequestError
from generator.store.library import Library
from generator.store.query import KernelFilter, choose, resolve_one, select_rows
from generator.tuning import GeneratedCandidates, Search, archs_of
from hgemm.bench.runner import bench, bench_options
from hgemm.cases import Case, Shape
from hgemm.device import open_device
from hgemm.disk import require_writable
from hgemm.dispatch_table import default_options, kind_of, row_of, with_default_raster
from hgemm.junit import JunitSuite, JunitTest, junit_option, write_junit
from hgemm.kernel import Kernel
from hgemm.library import require_library
from hgemm.options import FILE, SEED, FiniteRange
from hgemm.problem import LaunchOptions, parse_raster
from hgemm.selection_query import SelectionQuery, Target
from hgemm.tuning.runner import CandidateSource, TunePlan, tune_library, tune_options
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

code_option = click.option(
    "--code",
    type=click.Choice(CODES),
    default="auto",
    help="Code to load. auto: the cubin, or PTX if the cubin does not run.",
)

# ==== run ====

_RUN_HELP = """Run a kernel on random data, and print its time, rate and largest error.

SYMBOL is a symbol or its hash, an alias, or a unique prefix. The time is the median of samples from CUDA events. Launches follow
one another, with operands in cache. All of D is checked against a float64 reference; if D is large, some rows are. The limit is the
error that the kernel's arithmetic allows.

If the kernel leaves the splits of k or the order of tiles to each launch, --splits and --raster set them, to compare their times.
Without these options, the command takes those of the library's launches before `hgemm tune`, and prints them.

\b
Examples:
  hgemm run hgemm_sm90_tn_f16_f32_f16_128x128x32 --m 4096
  hgemm run hgemm_sm90_tn_f16_f32_f16_128x128x32 --m 512 --n 2048 --k 1024 --batch 16 --json
  hgemm run hgemm_sm90a_tn_f16_f32_f16_160x128x64 --m 600 --n 4096 --k 2048 --raster -1-by-gpc
"""


@click.command("run", help=_RUN_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option("--m", type=SIZE, metavar="N", required=True, help="Rows of A and D.")
@click.option("--n", type=SIZE, metavar="N", help="Columns of B and D. Default: equal to --m.")
@click.option("--k", type=SIZE, metavar="N", help="Columns of A, rows of B. Default: equal to --m.")
@click.option("--batch", type=SIZE, metavar="N", default=1, show_default=True, help="Number of products.")
@click.option("--alpha", type=float, metavar="X", default=1.0, show_default=True, help="Factor of A * B.")
@click.option(
    "--beta",
    type=float,
    metavar="X",
    default=0.0,
    show_default=True,
    help="Factor of C. If not 0, requires a kernel with --beta on.",
)
@click.option("--seed", type=SEED, metavar="N", default=0, show_default=True, help="Seed of the operands.")
@click.option(
    "--repeat", type=click.IntRange(1, 10000), metavar="N", default=20, show_default=True, help="Samples of the time."
)
@code_option
@click.option("--no-check", is_flag=True, help="Do not check the result.")
@click.option(
    "--splits",
    type=click.IntRange(1, 64),
    metavar="N",
    help="CTAs that share the k of a tile. Requires a kernel with --schedule launch. Default: by estimates; 1 with --raster.",
)
@click.option(
    "--whole-tiles",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="With --splits: number of first tiles, or clusters of tiles, that are not split.",
)
@click.option(
    "--raster",
    metavar="ORDER",
    default="",
    help="Order of tiles as `hgemm select` prints it: 8, -3 or -1-by-gpc. Requires a kernel with --raster launch. Default: by "
    "estimates.",
)
@junit_option
@json_option
@click.pass_context
def run_command(
    ctx: click.Context,
    symbol: str,
    library: Path,
    m: int,
    n: int | None,
    k: int | None,
    batch: int,
    alpha: float,
    beta: float,
    seed: int,
    repeat: int,
    code: str,
    no_check: bool,
    splits: int | None,
    whole_tiles: int,
    raster: str,
    junit: Path | None,
    as_json: bool,
) -> None:
    n, k = n or m, k or m
    require_writable(junit, "--junit")
    opened = Library(library)
    name = resolve_one(opened, symbol)
    kernel = open_kernel(opened, name, code)
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise RequestError("alpha and beta must be finite")
    if beta and not kernel.traits.beta:
        raise RequestError(
            f"{name} does not add beta * C: omit --beta, or run a kernel that was generated with --beta on"
        )
    if splits and not kernel.traits.decides_splits:
        raise RequestError(f"{name} has its own schedule: omit --splits, or run a kernel with --schedule launch")
    if whole_tiles and not splits:
        raise RequestError("--whole-tiles is for --splits: add --splits")
    if raster and not kernel.traits.decides_raster:
        raise RequestError(f"{name} has its own order of tiles: omit --raster, or run a kernel with --raster launch")
    order = parse_raster(raster) if raster else None
    device = open_device()
    options = _launch_options(kernel, (m, n, k, batch), Target.of(device), splits, whole_tiles, order)
    from hgemm.verification import run  # NumPy takes 0.1 s, and is useless without a GPU

    case = Case(Shape(m, n, k, batch), alpha, beta, options=options)
    found = run(kernel, case, device, seed, repeat, not no_check)
    answer = {
        "symbol": name,
        "device": device.name,
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        **({"options": options.text(kernel.traits.decides_splits, kernel.traits.decides_raster)} if options else {}),
        "time_us": found.time_us,
        "tflops": found.tflops,
    }
    if found.check:
        ratio = found.check.max_bound_ratio
        answer["checked_rows"] = found.checked_rows
        answer["max_error"] = found.check.max_error if math.isfinite(found.check.max_error) else None
        answer["max_bound_ratio"] = ratio if math.isfinite(ratio) else None
        answer["passed"], answer["reason"] = found.check.passed, found.check.reason
    if junit:
        passed = found.check is None or found.check.passed
        told = _run_text(answer) if passed else answer["reason"]
        test = JunitTest(str(case), "passed" if passed else "failure", told)
        write_junit(junit, "hgemm run", [JunitSuite(name, (test,))])
    click.echo(json.dumps(answer, indent=1) if as_json else _run_text(answer))
    ctx.exit(int(found.check is not None and not found.check.passed))


def _launch_options(
    kernel: Kernel,
    extents: tuple[int, int, int, int],
    target: Target,
    splits: int | None,
    whole_tiles: int,
    order: int | None,
) -> LaunchOptions | None:
    """Return the given options, completed by those that a launch would take; None if the kernel leaves none open."""
    if not (kernel.traits.decides_splits or kernel.traits.decides_raster):
        return None
    row = row_of(kernel.traits, kernel.record)
    query = SelectionQuery.dense(kind_of(kernel.traits), extents, DEFAULT_WORKSPACE_BYTES)
    if splits or order:
        found = with_default_raster(row, query, target, LaunchOptions(splits or 1, whole_tiles))
    else:
        found = default_options(row, query, target)
    return replace(found, raster_tiles=order) if order else found


def _run_text(answer: dict) -> str:
    options = f", {answer['options']}" if "options" in answer else ""
    lines = [
        f"{answer['symbol']} on {answer['device']}{options}",
        f"{answer['time_us']:.2f} us  {answer['tflops']:.1f} TFLOP/s",
    ]
    if answer.get("passed"):
        rows = f"{answer['checked_rows']} of {answer['m']} rows checked"
        lines.append(f"max error {answer['max_error']:.3g}, {answer['max_bound_ratio']:.2f} of the error bound; {rows}")
    elif "passed" in answer:
        lines.append(f"WRONG: {answer['reason']}")
    return "\n".join(lines)


# ==== verify ====

_VERIFY_HELP = """Check kernels on the GPU (--device) or on the CPU (--emulate), or build them again and compare (--rebuild).

--device and --emulate check that results are within the error bound of the arithmetic, that every element of D is written, that
nothing else is written, and that two runs give the same bits.

--emulate translates the kernel's PTX to C++, compiles it with this machine's C++ compiler (CXX), and runs every thread of it on
the CPU, under adversarial schedules and copy orders. It also finds races, missing waits, accesses out of bounds and reads of
uninitialised memory, and counts bank conflicts. The proof is stored in the kernel's record, unless the library is read-only.
A kernel that has a proof by this version is not run again, unless --force is given. Without --trust, a kernel is not run if this
version would write another source or PTX for it.

--device --bits compares results byte for byte with what each kernel's order of accumulation predicts, with the other kernels of
that order, and with cuBLASLt. It needs a C++ compiler (CXX).

--rebuild writes, compiles and compares. With the same versions of all compilers, PTX and cubin must be the same byte for byte.
Otherwise the instruction counts must be the same.

SYMBOLS are symbols, hashes, aliases, prefixes or globs. Without SYMBOLS, the filters select. The default shapes derive from each
kernel's tile: whole, ragged, tiny, batched, and with padded rows. Kernels that the GPU cannot run are skipped and listed.

Exit status 1: a kernel failed, or none passed. Without names, also: a record is damaged.

\b
Examples:
  hgemm verify --emulate
  hgemm verify --emulate --arch 90a
  hgemm verify --device '*128x128x32*' --shapes 128x128x64,33x65x17@3
  hgemm verify --device --arch 90 --junit results.xml
  hgemm verify --device --bits --arch 90a
  hgemm verify --rebuild --library downloaded
"""


@click.command("verify", help=_VERIFY_HELP)
@click.argument("symbols", nargs=-1, type=Symbol())
@click.option("--device", "on_device", is_flag=True, help="Check on this machine's GPU.")
@click.option("--emulate", is_flag=True, help="Check on this machine's CPU. Needs no GPU.")
@click.option("--rebuild", is_flag=True, help="Build again, and compare source, PTX and cubin.")
@click.option("--bits", is_flag=True, help="With --device: compare results byte for byte with their prediction.")
@click.option(
    "--force", is_flag=True, help="With --emulate: also run kernels whose records have a proof by this version."
)
@click.option(
    "--trust",
    is_flag=True,
    help="Also run kernels for which this version would write another source or PTX. Stores no proof.",
)
@library_option
@filter_options
@click.option("--shapes", default="", metavar="SHAPES", help="Shapes MxNxK or MxNxK@BATCH: 128x128x64,33x65x17@3.")
@click.option("--seed", type=SEED, default=0, metavar="N", help="Seed of operands and schedules.")
@code_option
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Processes. Default: half the cores, at most 8; with --emulate, all cores.",
)
@click.option("--timeout", type=FiniteRange(min=1), metavar="S", help="Time limit for one kernel, in seconds.")
@junit_option
@json_option
@click.pass_context
def verify_command(
    ctx: click.Context,
    symbols: tuple[str, ...],
    on_device: bool,
    emulate: bool,
    rebuild: bool,
    bits: bool,
    force: bool,
    trust: bool,
    library: Path,
    shapes: str,
    seed: int,
    code: str,
    jobs: int | None,
    timeout: float | None,
    junit: Path | None,
    as_json: bool,
    **filters: str,
) -> None:
    places = [
        flag for flag, given in (("--device", on_device), ("--emulate", emulate), ("--rebuild", rebuild)) if given
    ]
    if len(places) != 1:
        mistake = f"{' and '.join(places)} exclude each other" if places else "no place to verify is given"
        raise RequestError(
            f"{mistake}: use --device for this machine's GPU, --emulate for its CPU, or --rebuild to build again"
        )
    if trust and not emulate:
        raise RequestError("--trust is for --emulate")
    if force and not emulate:
        raise RequestError("--force is for --emulate: other checks keep no result")
    if bits and not on_device:
        raise RequestError("--bits is for --device: checks with --emulate always compare bytes with their prediction")
    if bits and (shapes or jobs):
        raise RequestError("--bits draws its own shapes, in one process: omit --shapes and --jobs")
    if shapes and rebuild:
        raise RequestError("--shapes is for --device and --emulate: --rebuild runs no kernel")
    if shapes:
        Shape.parse_list(shapes)
    require_writable(junit, "--junit")
    opened = Library(library)
    note_left_out(opened, KernelFilter(**filters), symbols)
    chosen = choose(opened, symbols, KernelFilter(**filters))
    if not (symbols or filters["kernels"]):
        note_incomplete(library)
    line, summary = outcome_line, outcome_summary
    if emulate:
        found = _emulated(opened, chosen, shapes, seed, jobs, timeout, trust, force)
    elif rebuild:
        from generator.rebuild import rebuilt, rebuilt_line, rebuilt_summary  # slow to load, and needed only here

        found, line, summary = (
            rebuilt(opened, chosen, templates_folder(), jobs or cores()),
            rebuilt_line,
            rebuilt_summary,
        )
    elif bits:
        found, line, summary = _bits(opened, chosen, seed, code)
    else:
        found = _on_device(library, chosen, shapes, seed, jobs, timeout, code)
    outcomes = []
    for outcome in found:
        outcomes.append(outcome)
        click.echo(line(outcome), err=as_json)
    if junit:
        write_junit(junit, "hgemm verify", map(junit_suite, outcomes))
    if as_json:
        click.echo(json.dumps([json_of(outcome) for outcome in outcomes], indent=1))
    else:
        click.echo(summary(outcomes))
    if junit:
        click.echo(f"hgemm: wrote {junit}", err=True)
    if not (symbols or filters["kernels"]):
        if damaged := opened.damaged():  # last, so that one damaged record leaves no other kernel unchecked
            raise LibraryError(f"not checked, because of a damaged record: {', '.join(damaged)}")
    ctx.exit(int(any(outcome.failed for outcome in outcomes) or not any(outcome.passed for outcome in outcomes)))


def _on_device(
    library: Path, symbols: list[str], shapes: str, seed: int, jobs: int | None, timeout: float | None, code: str
) -> Iterator[CheckOutcome]:
    open_device()
    requests = [CheckRequest(str(library.resolve()), symbol, shapes, code, seed) for symbol in symbols]
    workers = CheckWorkers(jobs or max(1, min(8, (os.cpu_count() or 1) // 2)), timeout or TIMEOUT_S)
    for outcome, _ in workers.check_all(requests):
        yield outcome


def _bits(library: Library, symbols: list[str], seed: int, code: str) -> tuple:
    from generator.device_bits import BitsCheck, bits_line, compare  # slow to load, and needed only here
    from generator.proof.bits import adder
    from generator.proof.jobs import host_toolchain

    check = BitsCheck(library, open_device(), adder(host_toolchain().ordered_sum()), seed=seed, code=code)
    found, summary = compare(check, symbols)
    return found, bits_line, summary


def _emulated(
    library: Library,
    symbols: list[str],
    shapes: str,
    seed: int,
    jobs: int | None,
    timeout: float | None,
    trust: bool,
    force: bool,
) -> Iterator[CheckOutcome]:
    from generator.proof.jobs import Emulation, host_toolchain  # slow to load, and needed only here

    emulation = Emulation(library, host_toolchain(), shapes, seed, jobs or cores())
    if not emulation.stores:
        click.echo(f"hgemm: {library.folder} is read-only: proofs are not stored", err=True)
    return replace(emulation, trust=trust, force=force, timeout_s=timeout or emulation.timeout_s).outcomes(symbols)


# ==== bench ====

_BENCH_HELP = """Measure kernels beside cuBLASLt, and print rates and paired ratios.

SYMBOLS are symbols, hashes, aliases, prefixes or globs. Without SYMBOLS, the filters select. Each problem is measured with the
kernels of its layout and types:

\b
  1. All kernels are screened for a few milliseconds each.
  2. The fastest ones with correct results become finalists. So do the fastest proposals of cuBLASLt, and its first choice.
  3. Finalists run in rounds, forwards and backwards, as graphs of launches. Operands are random and fill the L2 cache 3 times.

A kernel that leaves options to the launch runs with its default ones, or with several (--options). cuBLASLt computes the problem's
bias and activation in its epilogue. A note names problems for which it has none.

--epilogue measures kernels of an expression, which have no baseline. Their inputs are random, and scalars are 0.5, except alpha and
beta, which are 1. Only D is checked. For a gated pair, n counts the columns of B.

A ratio is the time of cuBLASLt over ours, round by round. Above 1, ours is faster. "ours" and "best" are the fastest finalists
of each side.

States: "model" runs a memory-bound kernel before each product, as a transformer does. "steady" runs products back to back, after
seconds of load. "burst" runs them at the highest clock, after a pause. "solo" runs one kernel alone, at its own clock and power;
its ratios are not paired.

Exit status 1: a problem was not measured, or the fastest result is wrong.

\b
Examples:
  hgemm bench --suite public --group square --arch 90a
  hgemm bench 'hgemm_sm90a_tn_f16_f32_f16_128x256x64*' --m 1024:8192:1024 --keep out.json --budget 300
  hgemm bench --suite public --acc f16 --state steady,burst --csv out.csv
  hgemm bench --suite mine.json --arch 90a --record
  hgemm bench --m 512 --n 3072 --k 768 --bias row --activation gelu
  hgemm bench --m 512 --n 28672 --k 4096 --epilogue "silu(gate) * up"
"""


@click.command("bench", help=_BENCH_HELP)
@click.argument("symbols", nargs=-1, type=Symbol())
@library_option
@kernel_options
@code_option
@bench_options
@click.pass_context
def bench_command(
    ctx: click.Context,
    symbols: tuple[str, ...],
    library: Path,
    code: str,
    arch: str,
    tile: str,
    kernels: str,
    where: str,
    **options,
) -> None:
    opened, kernel_filter = Library(library), KernelFilter(arch=arch, tile=tile, kernels=kernels, where=where)
    note_left_out(opened, kernel_filter, symbols)
    names = choose(opened, symbols, kernel_filter)
    options["epilogue"] = epilogue.resolved(options["epilogue"], Path())
    ctx.exit(bench([open_kernel(opened, name, code) for name in names], options, library))


# ==== tune ====

_TUNE_HELP = """Find the fastest kernel for each problem by measuring, and record the measurements in the library.

From then on, the library and its exports select by these measurements.

Candidates are kernels of the library, and specs of search tables that are not built yet. On sm_90a, the search table contains
nearly all tiles. `hgemm tune` ranks candidates by the cost model, and by the model corrected with measurements of nearby
problems. At least 2 of 5 candidates are kernels that the library had before this run, if it has that many. Worker processes
build missing kernels while the GPU measures.

A kernel that leaves options to the launch, such as the splits of k, is screened with several (--options). The best ones are
stored with its time, and launches take them.

--epilogue tunes the kernels of an expression. Their inputs are random, and scalars are 0.5, except alpha and beta, which are 1.
For a gated pair, n counts the columns of B.

Half of the candidates are dropped in each round, and the others get twice as many samples. The last few are checked, and timed in
paired rounds, forwards and backwards. A kernel replaces the current best only if it wins by more than the spread. Nothing is
overwritten: a later session supersedes an older one if it re-measured the current best.

Exit status 1: a problem was not tuned.

\b
Examples:
  hgemm tune --suite public --group llm
  hgemm tune --m 512:8192:512 --n 4096 --k 4096 --budget 600 --seed 1
  hgemm tune --suite public --no-generate --fresh --seed 2 --gpus 4
  hgemm tune --m 512:8192:512 --n 28672 --k 4096 --epilogue "silu(gate) * up"
"""


@click.command("tune", help=_TUNE_HELP)
@library_option
@click.option(
    "--arch", default="", metavar="ARCHS", help="Architectures to build and measure. Default: all that run on this GPU."
)
@click.option("--kernels", default="", metavar="GLOBS", help="Use only these kernels of the library.")
@click.option("--space", type=FILE, metavar="FILE", help="Table of specs to search, TOML.")
@click.option("--generate/--no-generate", default=True, show_default=True, help="Build missing kernels.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    metavar="N",
    help="Processes, for all GPUs together.",
)
@tune_options
@click.pass_context
def tune_command(
    ctx: click.Context,
    library: Path,
    arch: str,
    kernels: str,
    space: Path | None,
    generate: bool,
    jobs: int,
    **options,
) -> None:
    options["epilogue"] = epilogue.resolved(options["epilogue"], Path())
    if not generate:
        require_library(library)

    def source(plan: TunePlan, target: Target) -> CandidateSource:
        opened = Library(library)
        archs = parse_arch_list(arch, "--arch") if arch else archs_of(target)
        works = plan.works if generate else ()
        library.mkdir(parents=True, exist_ok=True)
        rows = select_rows(opened, KernelFilter(arch=",".join(archs), kernels=kernels))
        search = Search(works, plan.candidates, archs, space, max(1, jobs // plan.part[1]))
        return GeneratedCandidates(opened, [str(row["symbol"]) for row in rows], search, target, tell)

    def tell(text: str) -> None:
        click.echo(text, err=True)

    ctx.exit(tune_library(library, source, options))
