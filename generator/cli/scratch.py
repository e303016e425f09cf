"""A library for verbs that build kernels to examine them: a named one, or a temporary one."""

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

from generator.store.files import failures_of
from generator.store.library import Library
from hgemm.library import reject_file

scratch_library_option = click.option(
    "--library",
    type=click.Path(readable=False, path_type=Path),
    metavar="DIR",
    help="Reuse and keep kernels in this library. Default: a temporary one.",
)


@contextmanager
def scratch_library(folder: Path | None) -> Iterator[Library]:
    """Open the library in a folder. Without a folder, create a temporary library and remove it at the end.

    A temporary library that holds the log of a failed build is kept.
    Raises: LibraryError if `folder` is a file.
    """
    if folder is not None:
        reject_file(folder)
        yield Library(folder)
        return
    with _exit_on_sigterm():
        place = Path(tempfile.mkdtemp(prefix="hgemm-"))
        try:
            yield Library(place)
        finally:
            if not failures_of(place):
                shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that cleanup runs. Other threads than the main one cannot do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
    sys.exit(128 + number)
