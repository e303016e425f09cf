"""Measures variants beside CUTLASS 2.x kernels: `hgemm bench` with another baseline.

    python -m benchmarks.harness --library DIR --cutlass .carry/cutlass2x.so --m 2048,4096,8192 --keep out.json

Takes the options of `hgemm bench`, whose help says how it measures; --algorithms does not apply. "first" is the first
kernel of the library, which means nothing; "best" is its fastest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.cutlass_baseline import Cutlass
from hgemm.bench.options import bench, bench_options
from hgemm.bench.work import read_kernels
from hgemm.errors import HgemmError

_PATH = click.Path(path_type=Path, exists=True)


@click.command("harness", help=__doc__)
@click.option("--library", type=_PATH, required=True, help="Folder of variants.")
@click.option("--kernels", default="", help="Globs over their names.")
@click.option("--cutlass", type=_PATH, required=True, help="Library of baselines/build_cutlass2x.py.")
@click.option("--cutlass-filter", default="*_sw8", show_default=True, help="Its kernels; _swN is the raster's width.")
@bench_options
def command(library: Path, kernels: str, cutlass: Path, cutlass_filter: str, **options) -> int:
    return bench(
        read_kernels(library, kernels), options, library, baseline=lambda device: Cutlass(cutlass, cutlass_filter)
    )


if __name__ == "__main__":
    try:
        sys.exit(command.main(standalone_mode=False))
    except (HgemmError, click.ClickException) as error:
        sys.exit(f"harness: {error}")
