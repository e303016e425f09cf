"""The errors that a user may see. Each states the problem and the fix in one line."""

from __future__ import annotations

import re
from pathlib import Path

from hgemm.errors import HgemmError, LibraryError, RequestError, closest_words, unknown_word

__all__ = [
    "BuildError",
    "HgemmError",
    "INSTALL",
    "LibraryError",
    "ProofError",
    "RequestError",
    "first_error",
    "closest_words",
    "unknown_word",
]

INSTALL = "run 'make setup', or 'pip install .' in this project's folder"
"""The fix for a missing package."""
_FIRST_ERROR = re.compile(r"\b(?:fatal|error)\b", re.IGNORECASE)


class BuildError(HgemmError):
    """A compilation failed.

    Fields: `symbol` of the kernel, `log` is the compiler's whole output; `source_path` and `log_path` are the kept files, or
        None.
    """

    def __init__(self, symbol: str, log: str, source_path: Path | None = None, log_path: Path | None = None) -> None:
        super().__init__(symbol, log, source_path, log_path)
        self.symbol = symbol
        self.log = log
        self.source_path = source_path
        self.log_path = log_path

    def __str__(self) -> str:
        places = [f"{name} {path}" for name, path in (("source", self.source_path), ("log", self.log_path)) if path]
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.symbol} does not compile: {first_error(self.log)}{where}"


class ProofError(HgemmError):
    """A kernel failed its proof on the CPU, or could not be run there."""


def first_error(log: str) -> str:
    """Return the first line of a compiler's log that reports an error, or else its first line."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    matches = [line for line in lines if _FIRST_ERROR.search(line)]
    return (matches or lines or ["the compiler left no log"])[0]
