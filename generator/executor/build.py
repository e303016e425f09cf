"""A variant's emitted text to a shared object of this machine: the executor once, each text by itself, both cached."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from generator.errors import BuildError
from generator.executor.cache import keep, kept, place
from generator.executor.host_compiler import HostCompiler
from generator.toolchain import cuda_include, cutlass_include, version_of

EXECUTOR = "executor/executor.cpp"
VARIANT = "executor/variant.cpp"
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden")
_EXECUTOR_OPTIONS = (*_COMMON, "-O2", "-c")
_VARIANT_OPTIONS = (*_COMMON, "-shared", "-DHGEMM_HOST")
_TIMEOUT_S = 300
_WHOLE_CUTE = "hgemm/cute/"
"""Headers that need all of CuTe, whose instructions the headers in `_INSTRUCTIONS` hand to the executor."""
_INSTRUCTIONS = ("executor/cute", "executor/cutlass")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Workshop:
    """With what variants are made executable.

    Fields: `flags` go to every compilation, such as those of a sanitizer; `level` says how far variants are optimised: what
        is to run once or twice is sooner done without.
    """

    compiler: HostCompiler
    templates: Path
    cache: Path
    flags: tuple[str, ...] = ()
    level: str = "-O1"

    def executable(self, symbol: str, source: str, anew: bool = False) -> Path:
        """Return the shared object of a variant's text, from the cache where it is there; `anew` builds it all the same.

        Raises: BuildError with the compiler's log; LibraryError where the cache cannot be written.
        """
        executor = self.executor(anew)
        read = includes_of(source.encode(), self.templates) | includes_of_file(VARIANT, self.templates)
        inputs = {**read, "kernel.cu": _hash(source.encode()), "": executor.name}
        options = (*_VARIANT_OPTIONS, self.level)
        name = self._name("variant", options, inputs | (self._cute() if _in_whole_cute(read) else {}), ".so")
        found = None if anew else kept(self.cache, name)
        if found:
            return found
        with self._arguments(symbol, source) as arguments:
            return self._compile(symbol, options, [*arguments, str(executor)], name)

    def compiles(self, symbol: str, source: str) -> bool:
        """Tell whether a text is C++ to the compiler, whatever the cache has."""
        try:
            with self._arguments(symbol, source) as arguments:
                self._run(symbol, (*_VARIANT_OPTIONS, "-fsyntax-only"), arguments)
        except BuildError:
            return False
        return True

    @contextmanager
    def _arguments(self, symbol: str, source: str) -> Iterator[list[str]]:
        """Yield what the compiler is told of a variant, whose text is in a file for so long."""
        whole = _in_whole_cute(includes_of(source.encode(), self.templates))
        text = place(self.cache, source)
        try:
            yield [
                *(_cute_folders(self.templates) if whole else ()),
                f"-DHGEMM_VARIANT={symbol}",
                f'-DHGEMM_VARIANT_FILE="{text}"',
                self._path(VARIANT),
            ]
        finally:
            text.unlink()

    def executor(self, anew: bool = False) -> Path:
        """Return the object that every variant is linked with, as `executable` does; it takes some seconds to build."""
        name = self._name("executor", _EXECUTOR_OPTIONS, includes_of_file(EXECUTOR, self.templates), ".o")
        found = None if anew else kept(self.cache, name)
        return found or self._compile("the executor", _EXECUTOR_OPTIONS, [self._path(EXECUTOR)], name)

    def _cute(self) -> dict[str, str]:
        """Return what a kernel in all of CuTe is made of beside the templates that it includes by their names."""
        paths = sorted(path for folder in _INSTRUCTIONS for path in (self.templates / folder).rglob("*.h*"))
        ours = {path.relative_to(self.templates).as_posix(): _hash(path.read_bytes()) for path in paths}
        return {**ours, "cutlass": version_of("nvidia-cutlass")}

    def version(self) -> str:
        """Return what changes whenever the executor's or the atoms' text does, in short."""
        read = includes_of_file(EXECUTOR, self.templates) | includes_of_file(VARIANT, self.templates)
        atoms = {name: text for name, text in read.items() if name.startswith("executor/") or "atoms" in name}
        atoms |= self._cute()
        return _hash(json.dumps(atoms, sort_keys=True).encode())[:16]

    def hash_of(self, name: str) -> str:
        """Return the hash of a file of the templates, or nothing where there is none."""
        path = self.templates / name
        return _hash(path.read_bytes()) if path.is_file() else ""

    def _path(self, name: str) -> str:
        return str(self.templates / name)

    def _name(self, kind: str, options: tuple[str, ...], inputs: dict[str, str], suffix: str) -> str:
        content = {"inputs": inputs, "options": [*options, *self.flags], "compiler": self.compiler.identity}
        return f"{kind}-{_hash(json.dumps(content, sort_keys=True).encode())}{suffix}"

    def _compile(self, symbol: str, options: tuple[str, ...], arguments: list[str], name: str) -> Path:
        made = place(self.cache)
        try:
            self._run(symbol, options, [*arguments, "-o", str(made)])
            return keep(made, name)
        finally:
            made.unlink(missing_ok=True)

    def _run(self, symbol: str, options: tuple[str, ...], arguments: list[str]) -> None:
        command = [*self.compiler.command, *options, *self.flags, "-I", str(self.templates), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(symbol, f"error: {command[0]}: {error}") from error
        if done.returncode:
            raise BuildError(symbol, done.stderr or f"{command[0]} ended with status {done.returncode}")


def _in_whole_cute(headers: Iterable[str]) -> bool:
    return any(header.startswith(_WHOLE_CUTE) for header in headers)


def _cute_folders(templates: Path) -> list[str]:
    """Return the options by which the compiler finds all of CuTe, and before it the host's versions of its instructions."""
    cuda = cuda_include()
    genuine = (cutlass_include(), cuda, cuda / "cccl")
    return ["-I", str(templates / "executor"), *(word for folder in genuine for word in ("-isystem", str(folder)))]


def includes_of_file(name: str, templates: Path) -> dict[str, str]:
    """Return the hash of a file of the templates and of all that it can include there, by name."""
    text = (templates / name).read_bytes()
    return {name: _hash(text), **includes_of(text, templates, name)}


def includes_of(text: bytes, templates: Path, name: str = "") -> dict[str, str]:
    """Return the hashes of the files of the templates that a text can include, taken or not, by name."""
    found: dict[str, str] = {}
    queue = [(name, text)]
    while queue:
        includer, includes = queue.pop()
        for included in map(bytes.decode, _INCLUDE.findall(includes)):
            for candidate in ((Path(includer).parent / included).as_posix(), included):
                if candidate not in found and (templates / candidate).is_file():
                    content = (templates / candidate).read_bytes()
                    found[candidate] = _hash(content)
                    queue.append((candidate, content))
    return found


@cache
def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
