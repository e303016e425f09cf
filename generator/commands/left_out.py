"""The note of what `--arch` leaves out unawares: kernels for sm_90a run on the GPUs of sm_90, and are others."""

from __future__ import annotations

from collections.abc import Collection

import click

from generator.commands.table import counted
from generator.store.library import Library
from generator.store.selection import Selection, left_out


def tell_left_out(library: Library, selection: Selection, names: Collection[str] = ()) -> None:
    """Say on stderr how many variants --arch keeps out that run on the GPUs it names, and what takes them in."""
    for arch, count in left_out(library, names, selection).items():
        both = f"{selection.arch},{arch.removeprefix('sm_')}"
        click.echo(f"hgemm: {counted(count, 'variant')} for {arch} left out: --arch {both}", err=True)
