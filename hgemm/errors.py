"""The errors that users see, the closest known words, and how a command reports them.

Each message is one line: what failed, the value, the limit, and the fix. Commands print it on stderr without a traceback and
exit with the error's `exit_code`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NoReturn


class HgemmError(Exception):
    """The base class of all errors that are reported as one line. `exit_code` is the exit code of the command."""

    exit_code = 1


class RequestError(HgemmError):
    """The request is illegal or misspelt. Nothing was done."""

    exit_code = 2


class ProblemError(RequestError, ValueError):
    """The kernel does not support the problem or the arrays. Nothing was launched."""


class DeprecatedWord(FutureWarning):
    """A word or option that has a new name. The old name works for one release."""


def deprecated(old: str, new: str) -> None:
    """Warn that a word has a new name."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecatedWord, stacklevel=2)


class HostArrayError(ProblemError):
    """An array is in the CPU's memory, and kernels read a GPU's."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is in the CPU's memory, and kernels read a GPU's: copy it there, as with tensor.cuda() or "
            "cupy.asarray(array). On a machine without a GPU, `hgemm.matmul` and `hgemm.linear` run kernels on the CPU"
        )


class LibraryError(HgemmError):
    """A library, or a file in it, cannot be read, trusted or written."""


class GenerationError(HgemmError):
    """Kernels failed to build or to pass their check. `failed` has the error of each by symbol; `kernels` are all others."""

    def __init__(self, failed: Mapping[str, str], kernels: Sequence[Any] = ()) -> None:
        super().__init__("; ".join(failed.values()))
        self.failed, self.kernels = dict(failed), list(kernels)


class VerificationError(HgemmError):
    """Kernels failed their check. `failed` has the reason of each by symbol; `results` are the checks of all."""

    def __init__(self, failed: Mapping[str, str], results: Sequence[Any] = ()) -> None:
        super().__init__("; ".join(f"{symbol}: {reason}" for symbol, reason in failed.items()))
        self.failed, self.results = dict(failed), list(results)


class DeviceError(HgemmError):
    """There is no GPU, the GPU cannot run the kernel, or the driver returned an error."""


class DeviceMemoryError(DeviceError):
    """The GPU does not have enough free memory."""


class UnsupportedError(DeviceError):
    """No kernel, or not this kernel, supports the request on this device."""


def __getattr__(name: str) -> Any:
    if name == "UnfitError":
        warnings.warn("hgemm.errors.UnfitError is now UnsupportedError", DeprecationWarning, stacklevel=2)
        return UnsupportedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ==== Misspelt words ====


def closest_words(text: str, words: Iterable[str], count: int = 1, cutoff: float = 0.7) -> list[str]:
    """Return the words that a misspelt one probably stands for, the best match first."""
    import difflib  # both are needed for misspelt words only

    from hgemm.dtypes import SPELLINGS

    known, plain = [*words], text.strip().lower()
    synonyms = [word for word in known if word == {**SPELLINGS, "swish": "silu"}.get(plain)]
    return synonyms or difflib.get_close_matches(plain, known, n=count, cutoff=cutoff)


def unknown_word(what: str, text: object, words: Iterable[str]) -> RequestError:
    """Return the error of a value that is not one of the known words. It names the closest one."""
    from hgemm.dtypes import DTYPES, UNSUPPORTED  # needed for misspelt words only

    known = [*words]
    if (reason := UNSUPPORTED.get(str(text).strip().lower())) and {*known} & DTYPES.keys():
        return RequestError(f"{what} {text!a} is not supported: {reason}")
    suggestion = "".join(f"did you mean {word}? " for word in closest_words(str(text), known))
    return RequestError(f"{what} {text!a} is unknown: {suggestion}use {', '.join(known)}")


# ==== How a command reports an error ====

_MAX_WORD = 300
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD},}}")


def shortened(text: str) -> str:
    """Return a text whose very long words, such as a malformed argument, are cut in the middle."""
    return _LONG_WORD.sub(lambda word: f"{word[0][:100]}...({len(word[0]) - 200} more)...{word[0][-100:]}", text)


def printable(text: str) -> str:
    """Return a text with escapes instead of control characters, which a terminal would obey. Lines and tabs stay."""
    return _UNUSUAL.sub(_escaped, text)


_UNUSUAL = re.compile(r"[^\t\n -~]")


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    is_byte = "\udc80" <= char <= "\udcff"  # of a path that is not UTF-8
    return char if char.isprintable() or is_byte else ascii(char)[1:-1]


class EscapedStream:
    """A stream of text that writes escapes instead of control characters. `stream` is the one behind it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters in what the process prints. They may come from files of others."""
    with redirect_stdout(EscapedStream(sys.stdout)), redirect_stderr(EscapedStream(sys.stderr)):
        yield


def usage_line(error: Any, program: str) -> str:
    """Return one line for a click.UsageError: what is wrong with the arguments, and where the help is."""
    path = error.ctx.command_path if error.ctx else program
    if getattr(error, "possibilities", None) and error.ctx:  # suggest no deprecated option
        new = {old: param.opts[0] for param in error.ctx.command.params for old in getattr(param, "old", ())}
        error.possibilities = [*dict.fromkeys(new.get(flag, flag) for flag in error.possibilities)]
    message = error.format_message().rstrip(".").replace("a valid float range", "a number")
    message = " ".join(message.replace("a valid integer range", "a whole number").split())
    return f"{program}: error: {message} (see `{path} --help`)"


def run_command(command: Any, program: str) -> NoReturn:
    """Run a click.Command on this process's arguments, and exit with its status."""
    import click  # the library works without it

    try:
        with escaped_output():
            sys.exit(command.main(prog_name=program, standalone_mode=False))
    except click.UsageError as error:
        click.echo(printable(shortened(usage_line(error, program))), err=True)
        sys.exit(error.exit_code)
    except HgemmError as error:
        click.echo(printable(shortened(f"{program}: error: {error}")), err=True)
        sys.exit(error.exit_code)
