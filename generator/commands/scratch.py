"""The library of verbs that make kernels to look at them: one that is named, or a folder of their own for the while."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from generator.failures import failures_of
from generator.store.library import Library

scratch_library_option = click.option(
    "--library",
    type=click.Path(readable=False, path_type=Path),
    metavar="DIR",
    help="Keep the kernels there, and take those that it has; nothing is kept, if not given.",
)


@contextmanager
def scratch_library(folder: Path | None) -> Iterator[Library]:
    """Open the library in a folder; without one, a new one that is removed in the end unless it tells why a build failed."""
    if folder is not None:
        yield Library(folder)
        return
    place = Path(tempfile.mkdtemp(prefix="hgemm-"))
    try:
        yield Library(place)
    finally:
        if not failures_of(place):
            shutil.rmtree(place, ignore_errors=True)
