"""`hgemm run`: one variant on one problem, timed and checked on the GPU."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from generator.arch import parse_arch_list
from generator.build.workers import cores
from generator.cli.options import SIZE, Symbol, filter_options, json_option, library_option
from generator.cli.output import note_left_out
from generator.device_check import CODES, TIMEOUT_S, Outcome, Request, Workers, open_kernel, write_junit
from generator.errors import RequestError
from generator.proof.executor import COSTS_CASE
from generator.store.library import Library
from generator.store.query import Selection, choose, resolve_one, select_rows
from generator.tables import counted
from generator.tuning.space import archs_of
from generator.tuning.supply import Generating, Search
from hgemm.bench.options import bench, bench_options
from hgemm.cases import Case, Shape
from hgemm.device import open_device
from hgemm.disk import require_writable
from hgemm.selection_query import Target
from hgemm.tune.options import tune, tune_options
from hgemm.tune.runner import Plan, Supply

_RUN_HELP = """Run a variant on random data and print its time, its rate and its largest error.

SYMBOL is a variant's symbol or alias, or a unique beginning of one. The time is the median of samples taken by CUDA
events, launches one after the other, operands in cache. The error is checked on all of D, or on some rows where D is
large, against a float64 reference and what the variant's arithmetic allows.

\b
Example:
  hgemm run hgemm_sm90_tn_f16_f32_f16_128x128x32 --m 4096 --n 4096 --k 4096
"""


@click.command("run", help=_RUN_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option("--m", type=SIZE, metavar="N", required=True, help="Rows of A and D.")
@click.option("--n", type=SIZE, metavar="N", required=True, help="Columns of B and D.")
@click.option("--k", type=SIZE, metavar="N", required=True, help="Columns of A, rows of B.")
@click.option("--batch", type=SIZE, metavar="N", default=1, show_default=True, help="Problems of this size.")
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Factor of A B.")
@click.option("--beta", type=float, default=0.0, show_default=True, help="Factor of C; the variant must have beta on.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Of the random operands."
)
@click.option(
    "--repeat", type=click.IntRange(1, 10000), metavar="N", default=20, show_default=True, help="Samples of the time."
)
@click.option(
    "--code", type=click.Choice(CODES), default="auto", help="What is loaded; auto: PTX where the cubin does not run."
)
@click.option("--no-check", is_flag=True, help="Do not compare with the reference.")
@json_option
@click.pass_context
def run_command(
    ctx: click.Context,
    symbol: str,
    library: Path,
    m: int,
    n: int,
    k: int,
    batch: int,
    alpha: float,
    beta: float,
    seed: int,
    repeat: int,
    code: str,
    no_check: bool,
    as_json: bool,
) -> None:
    opened = Library(library)
    name = resolve_one(opened, symbol)
    kernel = open_kernel(opened, name, code)
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise RequestError("alpha and beta must be finite")
    if beta and not kernel.traits.beta:
        raise RequestError(f"{name} does not add C: leave --beta, or run a variant generated with beta on")
    device = open_device()
    from hgemm.verify import run  # NumPy, 0.1 s, that a machine without a GPU has no use for

    found = run(kernel, Case(Shape(m, n, k, batch), alpha, beta), device, seed, repeat, not no_check)
    answer = {
        "symbol": name,
        "device": device.name,
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "time_us": found.time_us,
        "tflops": found.tflops,
    }
    if found.check:
        ratio = found.check.max_bound_ratio
        answer["checked_rows"] = found.checked_rows
        answer["max_error"] = found.check.max_error if math.isfinite(found.check.max_error) else None
        answer["max_bound_ratio"] = ratio if math.isfinite(ratio) else None
        answer["passed"], answer["reason"] = found.check.passed, found.check.reason
    click.echo(json.dumps(answer, indent=1) if as_json else _text(answer))
    ctx.exit(int(found.check is not None and not found.check.passed))


def _text(answer: dict) -> str:
    lines = [f"{answer['symbol']} on {answer['device']}", f"{answer['time_us']:.2f} us  {answer['tflops']:.1f} TFLOP/s"]
    if answer.get("passed"):
        rows = f"{answer['checked_rows']} of {answer['m']} rows checked"
        lines.append(
            f"max error {answer['max_error']:.3g}, {answer['max_bound_ratio']:.2f} of what is possible; {rows}"
        )
    elif "passed" in answer:
        lines.append(f"WRONG: {answer['reason']}")
    return "\n".join(lines)


# ==== `hgemm verify` ====


_VERIFY_HELP = """Check variants: numbers within what their arithmetic allows, every element written, nothing else touched,
the same bits twice.

With --emulate the emitted source itself, compiled by this machine's C++ compiler (CXX), runs on the CPU, every thread of it,
under schedules and copies chosen to do harm: races, missing waits, accesses out of bounds and reads of what nobody wrote
are found too, and bank conflicts counted. What is proved is filed in the variant's record.

SYMBOLS are symbols, aliases, beginnings or globs; none means all that the filters choose. Each variant is checked on
shapes made from its own tile (whole, ragged, tiny, batched, with unused elements after rows), or on those of --shapes.
Variants that the GPU cannot run are left out and told of.

\b
Examples:
  hgemm verify --emulate
  hgemm verify --device '*128x128x32*' --shapes 128x128x64,33x65x17@3
"""


@click.command("verify", help=_VERIFY_HELP)
@click.argument("symbols", nargs=-1, type=Symbol())
@click.option("--device", "on_device", is_flag=True, help="Run on this machine's GPU.")
@click.option("--emulate", is_flag=True, help="Run on this machine's CPU; needs no GPU.")
@library_option
@filter_options
@click.option("--shapes", default="", metavar="SHAPES", help="MxNxK or MxNxK@BATCH: 128x128x64,33x65x17@3.")
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of operands and schedules.")
@click.option(
    "--code", type=click.Choice(CODES), default="auto", help="What is loaded; auto: PTX where the cubin does not run."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Processes; half the cores, at most 8, if not given; all with --emulate.",
)
@click.option("--timeout", type=click.FloatRange(min=1), metavar="S", help="For one variant, in seconds.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a JUnit file too."
)
@json_option
@click.pass_context
def verify_command(
    ctx: click.Context,
    symbols: tuple[str, ...],
    on_device: bool,
    emulate: bool,
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
    if on_device == emulate:
        first = "choose one" if emulate else "say where to verify"
        raise RequestError(f"{first}: --device checks on this machine's GPU, --emulate on its CPU")
    if shapes:
        Shape.parse_list(shapes)
    require_writable(junit, "--junit")
    opened = Library(library)
    note_left_out(opened, Selection(**filters), symbols)
    chosen = choose(opened, symbols, Selection(**filters))
    if emulate:
        found = _emulated(opened, chosen, shapes, seed, jobs, timeout)
    else:
        found = _on_device(library, chosen, shapes, seed, jobs, timeout, code)
    outcomes = []
    for outcome in found:
        outcomes.append(outcome)
        click.echo(line_of(outcome), err=as_json)
    if junit:
        write_junit(junit, outcomes)
    if as_json:
        click.echo(json.dumps([plain(asdict(outcome)) for outcome in outcomes], indent=1))
    else:
        click.echo(summary_of(outcomes))
    if junit:
        click.echo(f"hgemm: wrote {junit}", err=True)
    ctx.exit(int(any(outcome.failed for outcome in outcomes) or not any(outcome.passed for outcome in outcomes)))


def _on_device(
    library: Path, symbols: list[str], shapes: str, seed: int, jobs: int | None, timeout: float | None, code: str
) -> Iterator[Outcome]:
    open_device()
    requests = [Request(str(library.resolve()), symbol, shapes, code, seed) for symbol in symbols]
    workers = Workers(jobs or max(1, min(8, (os.cpu_count() or 1) // 2)), timeout or TIMEOUT_S)
    for outcome, _ in workers.check_all(requests):
        yield outcome


def _emulated(
    library: Library, symbols: list[str], shapes: str, seed: int, jobs: int | None, timeout: float | None
) -> Iterator[Outcome]:
    from generator.proof import jobs as emulate  # only where it is asked for

    emulation = emulate.Emulation(library, emulate.host_toolchain(), shapes, seed, jobs or cores())
    return replace(emulation, timeout_s=timeout or emulation.timeout_s).outcomes(symbols)


def line_of(outcome: Outcome) -> str:
    """Write what was found of one variant as one line."""
    if outcome.skipped:
        return f"skip  {outcome.symbol}  {outcome.skipped}"
    cases = f"{outcome.passed_shapes}/{len(outcome.shapes)} shapes"
    if not outcome.passed:
        return f"FAIL  {outcome.symbol}  {cases}  {outcome.reason}"
    cases += f" and the {COSTS_CASE}" * (outcome.shapes != outcome.checks)
    worst, proof = f"worst error/bound {outcome.worst_ratio:.2f}", outcome.proof
    if proof:
        conflicts = proof["read_conflicts_per_k_tile"] + proof["copy_conflicts_per_k_tile"]
        worst += f", no race, {conflicts:g} bank conflicts"
    return f"ok    {outcome.symbol}  {cases}  {worst}, {outcome.seconds:.1f} s"


def summary_of(outcomes: list[Outcome]) -> str:
    """Write how many variants and shapes passed."""
    passed, failed = sum(outcome.passed for outcome in outcomes), sum(outcome.failed for outcome in outcomes)
    cases = sum(outcome.passed_shapes for outcome in outcomes)
    skipped = len(outcomes) - passed - failed
    found = f"{counted(passed, 'variant')} passed, {failed} failed, {skipped} left out"
    return f"{found}; {counted(cases, 'shape')} passed"


def plain(value: object) -> object:
    """Return a value that JSON can say: infinities and NaN become null."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ==== `hgemm bench`: variants timed beside cuBLASLt, in pairs, in one process ====


_BENCH_HELP = """Measure variants on many problems beside cuBLASLt, and print rates and paired ratios.

SYMBOLS are symbols, aliases, beginnings or globs; none means all that the filters choose. A problem is measured with the
variants of its layout and types: all are screened for some milliseconds each, the fastest few whose numbers are right
go on, and so do the fastest of what cuBLASLt proposes and its first guess. These are timed in rounds, forwards and
backwards, as graphs of launches on operands of random numbers that fill the L2 cache three times. A ratio is the
baseline's time over ours, round by round: more than 1 is faster. "ours" and "best" are each the fastest of their
finalists in the rounds.

\b
Examples:
  hgemm bench --suite public --group square --arch 90a
  hgemm bench 'hgemm_sm90a_tn_f16_f32_f16_128x256x64*' --m 1024:8192:1024 --keep out.json --budget 300
  hgemm bench --suite public --acc f16 --state steady,burst --csv out.csv
  hgemm bench --suite mine.json --arch 90a --record

Steady is after seconds of load and without a pause, burst is after a rest each time, solo is one contender alone, for
its own clock and power: there the ratios are not paired. Exit status 1 says that a problem
was not measured, or that the numbers of what is fastest are wrong.
"""


@click.command("bench", help=_BENCH_HELP)
@click.argument("symbols", nargs=-1, type=Symbol())
@library_option
@filter_options
@click.option(
    "--code", type=click.Choice(CODES), default="auto", help="What is loaded; auto: PTX where the cubin does not run."
)
@bench_options
@click.pass_context
def bench_command(
    ctx: click.Context,
    symbols: tuple[str, ...],
    library: Path,
    code: str,
    arch: str,
    tile: str,
    layout: str,
    kernels: str,
    where: str,
    **options,
) -> None:
    opened, selection = Library(library), Selection(arch, tile, layout, kernels, where)
    note_left_out(opened, selection, symbols)
    names = choose(opened, symbols, selection)
    ctx.exit(bench([open_kernel(opened, name, code) for name in names], options, library))


# ==== `hgemm tune`: the best variant for each problem, found by measuring, recorded, and gone by afterwards ====


_TUNE_HELP = """Find the best variant for each problem by measuring, and record what was measured in the library, which from then
on selects by it, as do its exports.

Of the variants that the library has, and those of a table of specs that it has not, a problem's candidates are those of
least estimate, and of least estimate corrected by what was measured at near problems. What is missing is made by worker
processes while the GPU measures. Candidates are halved until a few are left, each time with twice as many samples; their
numbers are checked, and they are timed in paired rounds, forwards and backwards. One takes the place of another only where
it wins beyond the spread; else what stood before stays, or the plainer variant. Nothing is ever overwritten: a later
session counts where it measured what stood, too.

\b
Examples:
  hgemm tune --suite public --group llm
  hgemm tune --m 512:8192:512 --n 4096 --k 4096 --budget 600 --seed 1
  hgemm tune --suite public --no-generate --fresh --seed 2 --gpus 4

Exit status 1 says that a problem was not tuned.
"""


@click.command("tune", help=_TUNE_HELP)
@library_option
@click.option(
    "--arch", default="", metavar="ARCHS", help="Of what is made and measured; all of this GPU, if not given."
)
@click.option("--kernels", default="", metavar="GLOBS", help="Of the library's variants, only these.")
@click.option("--space", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Specs to search, TOML.")
@click.option("--generate/--no-generate", default=True, show_default=True, help="Make variants that are missing.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    metavar="N",
    help="Processes, for all GPUs.",
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
    def supply(plan: Plan, target: Target) -> Supply:
        opened = Library(library)
        archs = parse_arch_list(arch) if arch else archs_of(target)
        works = plan.works if generate else ()
        library.mkdir(parents=True, exist_ok=True)
        rows = select_rows(opened, Selection(arch=",".join(archs), kernels=kernels))
        search = Search(works, plan.candidates, archs, space, max(1, jobs // plan.part[1]))
        return Generating(opened, [str(row["symbol"]) for row in rows], search, target, tell)

    def tell(text: str) -> None:
        click.echo(text, err=True)

    ctx.exit(tune(library, supply, options))
