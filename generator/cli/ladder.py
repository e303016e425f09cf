"""The verb `ladder`: lists published ladders of kernels, runs them, and prints, keeps and draws the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from generator.arch import parse_arch
from generator.build.workers import cores
from generator.cli.options import json_option
from generator.cli.output import progress, scratch_library, scratch_library_option
from generator.errors import LibraryError, RequestError
from generator.ladders.ladder_run import RunOptions, make_kernels, plan_ladders, plans_of, run_ladders
from generator.ladders.recipes import PublishedLadder, ladder_names, load_ladder, read_ladder
from generator.ladders.results import (
    csv_text,
    curve,
    form_of,
    junit_suite,
    names_matching,
    read,
    require_matplotlib,
    text,
)
from generator.proof.executor import NoCompiler
from generator.proof.jobs import Prover, host_toolchain
from generator.tables import to_text
from hgemm.bench.protocol import Protocol
from hgemm.bench.work import Work, grid, require_rows
from hgemm.cases import Shape
from hgemm.device import Device, open_device
from hgemm.disk import require_writable, write_atomically
from hgemm.errors import DeviceError
from hgemm.junit import junit_option, write_junit
from hgemm.options import FILE, SEED, FiniteRange

_LADDER_HELP = """Reproduce a published ladder of kernels, step by step.

For each step, the verb makes the kernel, runs it beside cuBLASLt in the same rounds, and prints the change, the rate, the
speedup over the step before and the fraction of cuBLASLt's rate, beside the published numbers.

LADDERS are names or globs (s3, 's*'), or your own TOML files. Without LADDERS, the verb lists all ladders and steps.

Without a GPU, or with --static, it prints what is known before a run: registers, shared memory, bank conflicts, and the limit
of the cost model. If a C++ compiler is installed, it also counts the sectors that each kernel moves when it runs on the CPU.

\b
Examples:
  hgemm ladder
  hgemm ladder s3
  hgemm ladder s1 s3 --shapes 4096x4096x4096 --keep ladders.json --to ladders.svg
  hgemm ladder s3 --from ladders.json --to s3.png

Kernels are made for the device's architecture. If a step is illegal there, they are made for the architecture of the
publication, and the driver compiles their PTX. To keep the kernels, use `generate --recipe`.

Exit status 1: a step could not be made or measured, or its result is wrong.
"""


class _Ladders(click.ParamType):
    name = "ladders"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in ladder_names() if name.startswith(incomplete)]


@click.command("ladder", help=_LADDER_HELP)
@click.argument("ladders", nargs=-1, type=_Ladders())
@scratch_library_option
@click.option("--arch", default="", metavar="ARCH", help="Make kernels for this architecture. Default: the device's.")
@click.option("--shapes", default="", metavar="SHAPES", help="Problems MxNxK. Default: the published ones.")
@click.option("--m", default="", metavar="RANGE", help="m, instead of --shapes: 4096, 512,1024 or 1024:4096:1024.")
@click.option("--n", default="", metavar="RANGE", help="n, in the same form. Default: equal to m.")
@click.option("--k", default="", metavar="RANGE", help="k, in the same form. Default: equal to m.")
@click.option("--static", is_flag=True, help="Do not use a GPU.")
@click.option(
    "--seconds",
    type=FiniteRange(min=0),
    metavar="X",
    default=2.0,
    show_default=True,
    help="Time of the rounds of each ladder.",
)
@click.option(
    "--rounds", type=click.IntRange(3), metavar="N", default=15, show_default=True, help="Minimum number of rounds."
)
@click.option(
    "--warm-up",
    type=FiniteRange(min=0),
    metavar="X",
    default=3.0,
    show_default=True,
    help="Seconds of load before the first ladder.",
)
@click.option("--seed", type=SEED, metavar="N", default=0, show_default=True, help="Seed of the operands.")
@click.option("--from", "source", type=FILE, metavar="FILE", help="Print a document of --keep. Run nothing.")
@click.option("--keep", type=FILE, metavar="FILE", help="Write the JSON document to FILE after every ladder.")
@click.option("--csv", type=FILE, metavar="FILE", help="Write one CSV row for each step to FILE.")
@junit_option
@click.option("-o", "--to", type=FILE, metavar="FILE", help="Draw the curves to FILE: ladder.svg or ladder.png.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes that compile. Default: all cores."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
@click.pass_context
def ladder_command(ctx: click.Context, ladders: Sequence[str], as_json: bool, **options: Any) -> None:
    if not ladders and not options["source"]:
        click.echo(_listing(as_json), nl=False)
        return
    form = form_of(options["to"]) if options["to"] else ""
    if form:
        require_matplotlib()
    for name in ("keep", "csv", "junit", "to"):
        require_writable(options[name], f"--{name}")
    document = read(options["source"], ladders) if options["source"] else _run(_named(ladders), options)
    if not document["ladders"]:
        raise LibraryError("no ladder was measured" + (f": {document['lost']}" if document.get("lost") else ""))
    click.echo(json.dumps(document, indent=1) + "\n" if as_json else text(document), nl=False)
    if options["csv"]:
        write_atomically(options["csv"], csv_text(document["ladders"]).encode(), "--csv")
    if options["junit"]:
        write_junit(options["junit"], "hgemm ladder", map(junit_suite, document["ladders"]))
    if form:
        write_atomically(options["to"], curve(document, form), "--to")
    for written in filter(None, (options["keep"], options["csv"], options["junit"], options["to"])):
        click.echo(f"hgemm: wrote {written}", err=True)
    if document.get("lost"):
        raise DeviceError(document["lost"])
    ctx.exit(int(any(ladder.get("refused") for ladder in document["ladders"])))


# ==== Listing ====


def _listing(as_json: bool) -> str:
    """Return every ladder and its steps."""
    published_ladders = [load_ladder(name) for name in ladder_names()]
    if not as_json:
        return "\n".join(map(_ladder_text, published_ladders))
    listed = [
        {
            "system": published_ladder.name,
            "title": published_ladder.title,
            "source": published_ladder.source,
            "steps": [
                {"recipe": step.path, "what": step.what, "spec": dict(step.texts)} for step in published_ladder.steps
            ],
        }
        for published_ladder in published_ladders
    ]
    return json.dumps(listed, indent=1) + "\n"


def _ladder_text(published_ladder: PublishedLadder) -> str:
    rows = [{"recipe": step.path, "what": step.what} for step in published_ladder.steps]
    indented = "".join(f"  {line}\n" for line in to_text(rows, ["recipe", "what"]).splitlines()[1:])
    return f"{published_ladder.name}: {published_ladder.title} ({published_ladder.source}), {published_ladder.arch}\n{indented}"


def _named(names: Sequence[str]) -> list[PublishedLadder]:
    """Return the published ladders that names and globs match, and the ladders of the user's own files."""
    files = [Path(name) for name in names if name.endswith(".toml")]
    published = [name for name in names if not name.endswith(".toml")]
    return [load_ladder(name) for name in names_matching(ladder_names(), published)] + [
        read_ladder(path) for path in files
    ]


# ==== Running ====


def _run(published_ladders: Sequence[PublishedLadder], options: Mapping[str, Any]) -> dict[str, Any]:
    run_options = RunOptions(
        arch=parse_arch(options["arch"], "--arch") if options["arch"] else "",
        shapes=_shapes(options),
        protocol=Protocol(seconds=options["seconds"], rounds=options["rounds"], warm_up_s=options["warm_up"]),
        seed=options["seed"],
        keep=options["keep"],
    )
    device = None if options["static"] else _device()
    ladders = plan_ladders(published_ladders, run_options.arch, device)
    jobs = options["jobs"] or cores()
    with scratch_library(options["library"]) as library:
        with progress(len(plans_of(ladders)), options["quiet"], jobs) as on_outcome:
            records = make_kernels(ladders, library, jobs, None if device else _prover(), on_outcome)
        return run_ladders(ladders, records, library, device, run_options, lambda line: click.echo(line, err=True))


def _shapes(options: Mapping[str, Any]) -> list[Shape]:
    require_rows(options)
    if options["m"] and options["shapes"]:
        raise RequestError("--m and --shapes exclude each other: give one")
    if options["m"]:
        return [work.shape for work in grid(options["m"], options["n"], options["k"], Work(1, 1, 1))]
    return [*Shape.parse_list(options["shapes"])] if options["shapes"] else []


def _device() -> Device | None:
    try:
        return open_device()
    except DeviceError as error:
        click.echo(f"hgemm: {error}: printing what is known without a run", err=True)
        return None


def _prover() -> Prover | None:
    try:
        return Prover(host_toolchain())
    except NoCompiler as error:
        click.echo(f"hgemm: {error}: sectors are not counted", err=True)
        return None
