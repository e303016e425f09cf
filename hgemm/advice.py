"""Commands that an error or a note advises, with the library that they are to work on."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_LIBRARY = Path("emitted")
"""Where kernels are where no --library says otherwise."""


def on(library: Path) -> str:
    """Return what a command is followed by to work on a library: nothing for the default one."""
    return "" if library == DEFAULT_LIBRARY else f" --library {shlex.quote(str(library))}"


def way_out(library: Path) -> str:
    """Say what to do about a variant of a library that cannot be trusted."""
    return f"regenerate it with --force{on(library)}, or run `hgemm gc{on(library)}`"
