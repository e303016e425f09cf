"""The errors that a user may see: each says in one line what is wrong and what to do."""

from __future__ import annotations

import re
from pathlib import Path

from hgemm.errors import HgemmError, LibraryError, RequestError, closest_words, unknown_word

__all__ = [
    "BuildError",
    "HgemmError",
    "LibraryError",
    "ProofError",
    "RequestError",
    "first_error",
    "closest_words",
    "unknown_word",
]

_FIRST_ERROR = re.compile(r"\b(?:fatal|error)\b", re.IGNORECASE)


class BuildError(HgemmError):
    """A compiler's failure, with its whole log.

    Fields: `symbol` of the variant, `log` of the compiler, `source_path` of the text it was given, `log_path` of
    the log where it was kept; both paths may be None.
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
    """A variant that was run on the CPU and is not what it should be, or could not be run."""


def first_error(log: str) -> str:
    """Return the first line of a compiler's log that tells of an error, else its first line."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    told = [line for line in lines if _FIRST_ERROR.search(line)]
    return (told or lines or ["the compiler left no log"])[0]
