"""`python -m hgemm.bench` benchmarks a library folder without the generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hgemm.bench.runner import bench, bench_options
from hgemm.bench.work import read_kernels
from hgemm.errors import run_command
from hgemm.locations import existing_library
from hgemm.options import NonEmptyPath


@click.command("bench")
@click.option("--library", type=NonEmptyPath(file_okay=False), default=existing_library, metavar="DIR")
@click.option("--kernels", default="", metavar="GLOBS", help="Names or aliases: '*128x256x64*,*_nn_*'.")
@bench_options
def command(library: Path, kernels: str, **options: Any) -> int:
    """Time the kernels of a library next to cuBLASLt. `hgemm bench --help` explains how."""
    return bench(read_kernels(library, kernels), options, library)


if __name__ == "__main__":
    run_command(command, "python -m hgemm.bench")
