"""The errors that a user may see: each says in one line what is wrong and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path


class HgemmError(Exception):
    """Root of all errors that are shown as one line, without a traceback; `exit_code` is the command's."""

    exit_code = 1


class RequestError(HgemmError):
    """An illegal or misspelt request: nothing was done."""

    exit_code = 2


class ProblemError(RequestError, ValueError):
    """A problem, or arrays, that the kernel does not take: nothing was launched."""


class DeprecatedWord(FutureWarning):
    """A word or option that has a new name. The old name works for one release."""


class LibraryError(HgemmError):
    """A library, or something in it, that cannot be read, trusted or written."""


class DeviceError(HgemmError):
    """No GPU, one that the kernel does not run on, or an error that the driver returned."""


class UnfitError(DeviceError):
    """A variant that this device cannot run, whatever the problem."""


_ALSO_CALLED = {
    "half": "f16",
    "float16": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    "float": "f32",
    "single": "f32",
    "float32": "f32",
    "fp32": "f32",
}
"""What others call the types."""


def nearest(text: str, words: Iterable[str], count: int = 1, cutoff: float = 0.7) -> list[str]:
    """Return the words that may have been meant by one that is none of them, the likeliest first."""
    import difflib  # only where something is misspelt

    known, plain = [*words], text.strip().lower()
    also = [word for word in known if word == _ALSO_CALLED.get(plain)]
    return also or difflib.get_close_matches(plain, known, n=count, cutoff=cutoff)


def unknown(what: str, text: object, words: Iterable[str]) -> RequestError:
    """Return the error of a word that is none of those that there are."""
    known = [*words]
    meant = "".join(f"did you mean {word}? " for word in nearest(str(text), known))
    return RequestError(f"{what} {text!a} is unknown: {meant}use {', '.join(known)}")


# ==== Commands that an error or a note advises, with the library that they are to work on ====


DEFAULT_LIBRARY = Path("emitted")
"""Where kernels are where no --library says otherwise."""


def on(library: Path) -> str:
    """Return what a command is followed by to work on a library: nothing for the default one."""
    return "" if library == DEFAULT_LIBRARY else f" --library {shlex.quote(str(library))}"


def way_out(library: Path) -> str:
    """Say what to do about a variant of a library that cannot be trusted."""
    return f"regenerate it with --force{on(library)}, or run `hgemm gc{on(library)}`"
