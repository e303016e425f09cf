"""The C++ compiler of this machine: found, or named by the user, and known by what it says of itself."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from generator.errors import HgemmError, first_error

CANDIDATES = ("g++", "clang++")
WAY_OUT = "install g++ 12 or later (or clang++ 16), or name a compiler in CXX"
PROBE = "executor/probe.cpp"
_LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).hgemm_probe(3) != 3)"
"""Run in a process of its own, which has no C++ library from elsewhere."""
_TIMEOUT_S = 20


class NoCompiler(HgemmError):
    """There is no C++ compiler here, or one that is here or was named does not answer."""


class NoneInstalled(NoCompiler):
    """There is no C++ compiler here, and none was named."""


@dataclass(frozen=True)
class HostCompiler:
    """A compiler by its command; `identity` is its version and its target, equal wherever it lies."""

    command: tuple[str, ...]
    identity: str

    def __str__(self) -> str:
        return f"{' '.join(self.command)} ({self.identity})"


def find_compiler(named: str = "") -> HostCompiler:
    """Return the compiler that `named` says, a command as in CXX, or the first of CANDIDATES that is there.

    Raises: NoCompiler, with what to do.
    """
    words = tuple(shlex.split(named))
    if words:
        if not shutil.which(words[0]):
            raise NoCompiler(f"CXX names {words[0]}, which is not here: {WAY_OUT}")
        return HostCompiler(words, _identity(words))
    for name in CANDIDATES:
        if shutil.which(name):
            return HostCompiler((name,), _identity((name,)))
    raise NoneInstalled(
        f"no C++ compiler here ({', '.join(CANDIDATES)}), which running kernels on the CPU needs: {WAY_OUT}"
    )


def require_working(compiler: HostCompiler, templates: Path) -> None:
    """Compile a few lines and load them. Raises: NoCompiler where that fails, as with a compiler of C alone."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "probe.so")
        command = [*compiler.command, "-std=c++17", "-fPIC", "-shared", str(templates / PROBE), "-o", made]
        refused = _complaint(command)
        wrong = first_error(refused) if refused else _complaint([sys.executable, "-c", _LOAD, made])
    if wrong:
        named, told = " ".join(compiler.command), wrong.splitlines()[-1].replace(f"{made}: ", "")
        raise NoCompiler(f"{named} makes no C++17 shared object that can be loaded ({told}): {WAY_OUT}")


def _complaint(command: list[str]) -> str:
    """Run a command and return what it said on stderr where it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"it ends with status {done.returncode}") if done.returncode else ""


def _identity(command: tuple[str, ...]) -> str:
    said = [_ask(command, question).splitlines() for question in ("--version", "-dumpmachine")]
    return " ".join(lines[0].strip() for lines in said if lines)


def _ask(command: tuple[str, ...], question: str) -> str:
    try:
        done = subprocess.run(
            [*command, question], capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} does not run ({error}): {WAY_OUT}") from error
    if done.returncode:
        raise NoCompiler(f"{command[0]} {question} ends with status {done.returncode}, as no compiler does: {WAY_OUT}")
    return done.stdout
