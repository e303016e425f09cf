"""`python -m hgemm.tuning` tunes among the kernels of a library folder, without the generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hgemm.bench.work import read_kernels
from hgemm.errors import run_command
from hgemm.locations import existing_library
from hgemm.options import NonEmptyPath
from hgemm.tuning.runner import LibraryCandidates, tune_library, tune_options


@click.command("tune")
@click.option("--library", type=NonEmptyPath(file_okay=False), default=existing_library, metavar="DIR")
@click.option("--kernels", default="", metavar="GLOBS", help="Names or aliases: '*128x256x64*,*_nn_*'.")
@tune_options
def command(library: Path, kernels: str, **options: Any) -> int:
    """Find and record the best kernel of a library for each problem. `hgemm tune --help` explains how."""
    return tune_library(
        library,
        lambda plan, target: LibraryCandidates(read_kernels(library, kernels), target, plan.candidates),
        options,
    )


if __name__ == "__main__":
    run_command(command, "python -m hgemm.tuning")
