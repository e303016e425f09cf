"""The commands `generate` and `hgemm`: options, help and errors. A verb's module is imported when the verb runs."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from generator import __version__
from generator.cli.options import (
    GroupedCommand,
    WordList,
    grouped_option,
    json_option,
    list_option,
    output_library_option,
    spec_options,
)
from generator.errors import HgemmError, closest_words
from hgemm.errors import DeprecatedWord, escaped_output, printable, shortened, usage_line
from hgemm.junit import junit_option
from hgemm.options import FiniteRange

VERBS = {
    "bench": ("device", "Measure kernels beside cuBLASLt."),
    "compare": ("inspect", "Build one spec in every form, and compare the results."),
    "completion": ("setup", "Print the completion script for a shell."),
    "cover": ("deploy", "Print the problems that no kernel supports, and build kernels for them."),
    "doctor": ("setup", "Check the installation, and say how to repair it."),
    "draw": ("inspect", "Draw the shared memory and the fragments of a kernel as SVG."),
    "explain": ("inspect", "Print the plan of a request or a kernel, its limits, and every violated rule."),
    "export": ("deploy", "Write a C library that embeds the kernels, for CMake and pkg-config."),
    "gc": ("library", "Remove leftovers, and kernels that fail their checks."),
    "ladder": ("ladder", "Reproduce a published ladder of kernels, step by step."),
    "list": ("library", "List the kernels of a library as a table, CSV or JSON."),
    "merge": ("library", "Merge libraries, for example the shards of a sweep."),
    "pack": ("pack", "Build the kernels of a model's linear layers."),
    "reindex": ("library", "Rebuild the index of a library from its folders."),
    "report": ("inspect", "Write a library as one HTML file with tables and charts."),
    "run": ("device", "Run a kernel on one problem, time it and check it."),
    "sanitize": ("sanitize", "Check any kernel's PTX on the CPU: races, bounds, barriers, results."),
    "select": ("deploy", "Print the kernel that a library selects for a problem, and why."),
    "show": ("library", "Show one kernel in full."),
    "tune": ("device", "Find the best kernel for each problem by measuring, and record the result."),
    "verify": ("device", "Check kernels against a reference, on the GPU or on the CPU."),
}
"""The verbs of `hgemm`: the module of this package that defines `VERB_command`, and the line of `hgemm --help`."""

INTERRUPTED = 130
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

_GENERATE_HELP = """Generate HGEMM kernels: write the source, compile and inspect it, and add it to a library. No GPU is needed.

Lists and ranges sweep: --tile 128x128x32,256x128x32 --stages 2:5 builds every combination. If an option is given twice, its
lists are joined. The planner chooses the fields that you do not set. Illegal combinations are skipped and counted. A single
illegal request is rejected with every rule that it violates.
"""
_GENERATE_EPILOG = """\b
Examples:
  generate --arch sm_89 --tile 128x128x32
  generate --arch sm_80,sm_90 --tile 128x128x32,256x128x32 --stages 2:5 --layout tn,nn -j 8
  generate --arch 89 --tile 256x256x64 --stages 4 --explain
  generate --spec sweep.toml --dry-run
  generate --spec sweep.toml --shard 2/4 --library part-2
  generate --catalog --arch sm_89
  generate --kernels cutlass_tensorop_h16816gemm_128x128_32x4_tn_align8
  generate --recipe s3 --arch sm_80

\b
stdout has the table, or with --json one list of records. stderr has progress.
Exit status: 0 done, 1 a build or a check failed, 2 the request was illegal.
"""


def _complete(module: str, begun: str) -> Sequence[str]:
    """Return a module's words that begin so. The module reads files, so it is imported for a shell only."""
    return importlib.import_module(module).complete(begun)


@click.command(
    "generate", cls=GroupedCommand, help=_GENERATE_HELP, epilog=_GENERATE_EPILOG, context_settings=_HELP_OPTIONS
)
@spec_options
@grouped_option(
    "Target",
    list_option(
        "--catalog",
        is_flag=False,
        flag_value="all",
        type=WordList(partial(_complete, "generator.catalog")),
        metavar="[GROUPS]",
        help="Build the shipped kernels, or groups of them: general,half. The group blas is for cuBLAS programs.",
    ),
)
@grouped_option(
    "Target",
    list_option(
        "--kernels",
        metavar="NAMES",
        help="Kernels by CUTLASS names or globs: '*_h16816gemm_128x*_tn_align8'.",
    ),
)
@grouped_option(
    "Target",
    list_option(
        "--recipe",
        type=WordList(partial(_complete, "generator.ladders.recipes")),
        metavar="GLOBS",
        help="Published kernels, s3,s1/3.1; `hgemm ladder` lists them. Other options override theirs.",
    ),
)
@grouped_option("Run", output_library_option)
@grouped_option(
    "Run",
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1, 1024),
        metavar="N",
        help="Worker processes. Default: one per core. 1 builds in this process: it starts faster, but a compiler crash ends it.",
    ),
)
@grouped_option(
    "Run",
    click.option(
        "--executor",
        type=click.Choice(["processes", "dask"]),
        default="processes",
        show_default=True,
        help="Build in processes of this machine, or in a Dask cluster.",
    ),
)
@grouped_option("Run", click.option("--address", metavar="URL", help="Scheduler of the Dask cluster: tcp://host:8786."))
@grouped_option(
    "Run",
    click.option(
        "--worker-timeout",
        type=FiniteRange(min=0.1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Stop after this time without a worker in the cluster.",
    ),
)
@grouped_option(
    "Run",
    click.option(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="Build only part I of N, one for each machine. `hgemm merge` joins them.",
    ),
)
@grouped_option(
    "Run",
    click.option(
        "--require-legal", is_flag=True, help="Fail if a combination is illegal. Without this option, it is skipped."
    ),
)
@grouped_option("Run", click.option("--force", is_flag=True, help="Rebuild kernels that the library already has."))
@grouped_option(
    "Run",
    click.option(
        "--verify",
        type=click.Choice(["emulate"]),
        help="Run each kernel on the CPU, and keep it only if it passes. Needs a C++ compiler (CXX).",
    ),
)
@grouped_option(
    "Run", click.option("--allow-spills", is_flag=True, help="Keep kernels that spill registers, and mark them.")
)
@grouped_option("Options", json_option)
@grouped_option(
    "Options",
    junit_option,
)
@grouped_option(
    "Options",
    click.option("--explain", is_flag=True, help="Print the plan, or every violated rule. Build nothing."),
)
@grouped_option("Options", click.option("--dry-run", is_flag=True, help="Print what would be built. Build nothing."))
@grouped_option("Options", click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."))
@grouped_option("Options", click.option("--debug", is_flag=True, help="Show the traceback of an error."))
@click.version_option(__version__, prog_name="generate")
@click.pass_context
def generate_command(ctx: click.Context, **options) -> None:
    if _is_one_in_dsl(options):
        _begin_dsl()
    from generator.cli.generate import run

    ctx.exit(run(options))


def _is_one_in_dsl(options: Mapping[str, Any]) -> bool:
    """Return whether this process probably builds a single CuTe DSL kernel. Several kernels are built by workers."""
    elsewhere = ("explain", "dry_run", "spec_file", "catalog", "kernels", "recipe", "verify", "address")
    if options["form"] != "dsl" or any(options[name] for name in elsewhere):
        return False
    return not any("," in value for value in options.values() if isinstance(value, str))


def _begin_dsl() -> None:
    """Start the process of CuTe DSL early. It takes most of a second, in parallel with the other imports."""
    from generator.build import dsl as translate

    with suppress(HgemmError):  # reported when the process is needed
        translate.begin()


class _Verbs(click.Group):
    """The verbs of `hgemm`. A module is imported when one of its verbs is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module = importlib.import_module(f"generator.cli.{VERBS[name][0]}")
        return getattr(module, f"{name}_command")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.list_commands(ctx) and not ctx.resilient_parsing:
            ctx.fail(_no_verb(args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


def _no_verb(name: str, verbs: list[str]) -> str:
    if name == "generate":
        return "`generate` is a separate command: run it without hgemm."
    near = closest_words(name, verbs, cutoff=0.5)
    return f"No verb '{name}'." + (f" Did you mean '{near[0]}'?" if near else "")


_HGEMM_HELP = """Inspect, check and run the kernels of a library.

`generate` makes them. `hgemm VERB --help` explains a verb.
"""


@click.command(
    "hgemm",
    cls=_Verbs,
    help=_HGEMM_HELP,
    subcommand_metavar="VERB ...",
    context_settings=_HELP_OPTIONS,
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="hgemm")
def hgemm_command(debug: bool) -> None:
    pass


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed. Else a file of the library could get the stream's number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


def generate_main() -> None:
    """Run `generate` and end the process with its exit status."""
    _open_closed_streams()
    sys.exit(main(generate_command, sys.argv[1:]))


def hgemm_main() -> None:
    """Run `hgemm` and end the process with its exit status."""
    _open_closed_streams()
    sys.exit(main(hgemm_command, sys.argv[1:]))


def main(command: click.Command, arguments: list[str]) -> int:
    """Run a command and return its exit status. Errors are one line on stderr, or a traceback with --debug."""
    program = str(command.name)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path that is not UTF-8 is printed as its bytes
            stream.reconfigure(errors="surrogateescape")
    with escaped_output(), warnings.catch_warnings():
        logging.basicConfig(format=f"{program}: warning: %(message)s", level=logging.WARNING)
        warnings.showwarning = partial(_show_warning, program)
        warnings.simplefilter("once", DeprecatedWord)
        return _run(command, program, arguments)


def _run(command: click.Command, program: str, arguments: list[str]) -> int:
    try:
        return (
            command.main([word for word in arguments if word != "--debug"], prog_name=program, standalone_mode=False)
            or 0
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help
        return error.exit_code
    except click.UsageError as error:
        click.echo(printable(shortened(usage_line(error, program))), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{program}: interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        return _report_error(program, error)


def _show_warning(program: str, message: Warning | str, *_: Any) -> None:
    """Print a warning as one line."""
    click.echo(f"{program}: {'note' if isinstance(message, DeprecatedWord) else 'warning'}: {message}", err=True)


def _report_error(program: str, error: Exception) -> int:
    exit_code = getattr(error, "exit_code", None)  # set by all errors of the project
    if exit_code is not None:
        click.echo(printable(shortened(f"{program}: error: {error}")), err=True)
        return exit_code
    if isinstance(error, OSError):  # such as a full disk behind stdout
        click.echo(f"{program}: error: {error.strerror or error}", err=True)
        return 1
    note = " ".join(f"{type(error).__name__}: {error}".split())
    click.echo(
        f"{program}: internal error ({printable(shortened(note))}): run again with --debug and report it", err=True
    )
    return 1
