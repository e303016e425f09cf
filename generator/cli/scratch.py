"""The library of verbs that make kernels to look at them: one that is named, or a folder of their own for the while."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from generator.build.pipeline import failures_of
from generator.store.library import Library
from hgemm.library import reject_file

scratch_library_option = click.option(
    "--library",
    type=click.Path(readable=False, path_type=Path),
    metavar="DIR",
    help="Keep the kernels there, and take those that it has; nothing is kept, if not given.",
)


@contextmanager
def scratch_library(folder: Path | None) -> Iterator[Library]:
    """Open the library in a folder; without one, a new one that is removed in the end unless it tells why a build failed.

    Raises: LibraryError where a file is named.
    """
    if folder is not None:
        reject_file(folder)
        yield Library(folder)
        return
    with _terminated_in_order():
        place = Path(tempfile.mkdtemp(prefix="hgemm-"))
        try:
            yield Library(place)
        finally:
            if not failures_of(place):
                shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Let SIGTERM end the process by an exception, so that what is held is let go; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second one would interrupt what the first one began
    sys.exit(128 + number)
