"""Builds the exported sources with the host's C compiler, into the same bytes wherever and whenever that is done."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from generator.errors import HgemmError

SOURCES = ("check", "driver", "errors", "handle", "images", "launch", "select", "table", "unmet")
_FLAGS = (
    "-std=c11",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-Wall",
    "-Wextra",
    "-Iinclude",
)
_LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now", "-Wl,-z,defs")
_EXPORTED = '__attribute__((visibility("default")))'
TIMEOUT_S = 300


def lacking(compiler: str) -> str:
    """Say what is not here of a compiler and the archiver beside it; nothing where both are."""
    if not shutil.which(compiler):
        return f"C compiler {compiler!a}"
    return "" if shutil.which("ar") else "`ar`, which packs libraries,"


def compiler_version(compiler: str) -> str:
    """Return the first line that a compiler says of itself; nothing where something is lacking."""
    if lacking(compiler):
        return ""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    return (done.stdout.splitlines() or [""])[0] if done.returncode == 0 else ""


def build(folder: Path, name: str, compiler: str) -> None:
    """Compile and link lib/lib<name>.a and .so in an exported folder, whose path does not enter them.

    Raises: HgemmError with the compiler's first complaint.
    """
    (folder / "lib").mkdir(exist_ok=True)
    objects = folder / "objects"
    for kind, api in (("a", ""), ("so", _EXPORTED)):
        (objects / kind).mkdir(parents=True)
        defines = [f"-D{name.upper()}_API={api}", f'-D{name.upper()}_IMAGES="src/images.bin"']
        for source in SOURCES:
            _run(folder, compiler, *_FLAGS, *defines, "-c", f"src/{source}.c", "-o", f"objects/{kind}/{source}.o")
    archive, shared = f"lib/lib{name}.a", f"lib/lib{name}.so"
    _run(folder, "ar", "rcsD", archive, *(f"objects/a/{source}.o" for source in SOURCES))
    inputs = [f"objects/so/{source}.o" for source in SOURCES]
    _run(folder, compiler, *_LINK_FLAGS, f"-Wl,-soname,lib{name}.so", "-o", shared, *inputs, "-ldl", "-lpthread")
    shutil.rmtree(objects)


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise HgemmError(f"{Path(command[0]).name} fails: {_first_line(done.stderr)}: name another compiler with --cc")


def _first_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "it does not say why")
