"""PTX of a kernel that takes a problem's fields one by one, to PTX of a kernel that takes the problem.

The fields stand in the order and with the types of common/problem.cuh, so each lies where it lies in the struct: the kernel's
parameters become one of 144 bytes, and a load of the fifth becomes a load at its offset.
"""

from __future__ import annotations

import atexit
import json
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from generator.build.dsl_worker import MODULE_NAME, PTX_NAME
from generator.build.toolchain import version_of
from generator.errors import BuildError, HgemmError
from hgemm.problem import PROBLEM_BYTES

_FIELDS = (*["u64"] * 6, *["u64"] * 9, *["u32"] * 4, *["f32"] * 2)
"""The types of a problem's fields: addresses, strides, extents, scalars."""
_ENTRY = re.compile(r"\.visible \.entry (?P<name>\w+)\((?P<parameters>[^)]*)\)")
_PARAMETER = re.compile(r"\.param \.(?P<type>\w+)(?: \.ptr[ .\w]*)? (?P<name>\w+)")


def take_problem(ptx: str, symbol: str) -> str:
    """Return the PTX of a kernel named `symbol` that takes a problem.

    Raises: ValueError where there is not one kernel, or it does not take the fields of a problem.
    """
    entries = [*_ENTRY.finditer(ptx)]
    if len(entries) != 1:
        raise ValueError(f"error: {len(entries)} kernels in the PTX, 1 is expected")
    (entry,) = entries
    parameters = [*_PARAMETER.finditer(entry["parameters"])]
    types = tuple(parameter["type"] for parameter in parameters)
    if types != _FIELDS:
        raise ValueError(f"error: the kernel takes {', '.join(types)}, not the fields of a problem")
    problem = f"{symbol}_param_0"
    head = f".visible .entry {symbol}(\n\t.param .align 8 .b8 {problem}[{PROBLEM_BYTES}]\n)"
    body = (ptx[: entry.start()] + head + ptx[entry.end() :]).replace(f".globl\t{entry['name']}", f".globl\t{symbol}")
    offset = 0
    for parameter in parameters:
        place = problem + (f"+{offset}" if offset else "")
        body = body.replace(f"[{parameter['name']}]", f"[{place}]")
        offset += int(parameter["type"][1:]) // 8
    if entry["name"] in body:
        raise ValueError("error: the kernel uses its parameters otherwise than by loads")
    return body


# ==== A module of CuTe DSL to PTX, by a process that has the DSL and keeps it; no GPU is needed ====


WHEEL = "nvidia-cutlass-dsl"
LIMIT_S = 120.0
"""For one kernel: a hundred times what one takes, the DSL's own start included."""
LAST_WORDS_S = 10.0
"""From the end of its answers to its own end."""


def options(arch: str) -> tuple[str, ...]:
    """Return the options of `cute.compile`. The DSL's own machine code is not used, and so is made without care."""
    return "--gpu-arch", arch, "--ptxas-options", "-O0"


def version() -> str:
    """Return the DSL's version. Raises: HgemmError where its wheel is not installed."""
    try:
        return version_of(WHEEL)
    except HgemmError:
        raise HgemmError(
            f"wheel {WHEEL} is missing, which --form dsl needs: pip install 'hgemm-generator[dsl]'"
        ) from None


def lacking() -> str:
    """Say what is missing for modules of the DSL, or nothing."""
    try:
        version()
    except HgemmError as missing:
        return str(missing)
    return ""


def begin() -> None:
    """Start the process, which takes a while, where it does not run yet. Raises: HgemmError where the DSL is missing."""
    version()
    with _LOCK:
        _running()


def ptx_of(symbol: str, source: str, arch: str) -> bytes:
    """Return the PTX of a module that was emitted just now, for a kernel named `symbol` that takes a problem.

    Raises: BuildError with what the DSL says, where it takes too long, or its process ends.
    """
    version()
    with _LOCK:
        return _translated(_running(), symbol, source, arch)


def _translated(server: _Server, symbol: str, source: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="module-", dir=server.place.name) as name:
        folder = Path(name)
        (folder / MODULE_NAME).write_text(source)
        told = server.asked({"folder": folder.name, "options": " ".join(options(arch))})
        if told:
            raise BuildError(symbol, told)
        try:
            return take_problem((folder / PTX_NAME).read_text(), symbol).encode()
        except ValueError as strange:
            raise BuildError(symbol, str(strange)) from None


# ---- The process ----------------------------------------------------------------------------------------------------

_LOCK = threading.Lock()
_WORKER = Path(__file__).with_name("dsl_worker.py")
"""Started by its path: Python would look for a module in the working folder first."""
_STDERR_NAME = "stderr"
_TELLING = re.compile(r"\S*(?:Error|Exception|Interrupt|error)\b.*")


class _Server:
    """The process, at work in a private folder of its own: the DSL's options know no blanks, so it is told no whole path."""

    def __init__(self) -> None:
        self.place = tempfile.TemporaryDirectory(prefix="hgemm-dsl-")
        pipe = subprocess.PIPE
        with open(Path(self.place.name) / _STDERR_NAME, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(_WORKER)], stdin=pipe, stdout=pipe, stderr=stderr, bufsize=0, cwd=self.place.name
            )
        atexit.register(self.end)

    def asked(self, request: dict[str, str]) -> str:
        """Return what the process answers to a request: what is wrong, or nothing."""
        process, answer, deadline = self.process, b"", time.monotonic() + LIMIT_S
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            while not answer.endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    said = self._said()
                    self.end()
                    return f"error: CuTe DSL took more than {LIMIT_S:g} s\n{said}"
                piece = process.stdout.read(1 << 16)
                if not piece:
                    break
                answer += piece
            if answer.endswith(b"\n"):
                return json.loads(answer)
        except BrokenPipeError:
            pass
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
        said = self._said()
        self.end()
        why = next(iter(_TELLING.findall(said)), "it does not say why")
        return f"error: the process of CuTe DSL ended with status {process.returncode}: {why}\n{said}"

    def _said(self) -> str:
        return (Path(self.place.name) / _STDERR_NAME).read_text(errors="replace")

    def end(self) -> None:
        """End the process and remove its folder; another one serves what is asked from then on."""
        self.process.kill()
        self.process.wait()
        self.place.cleanup()


_server: _Server | None = None


def _running() -> _Server:
    global _server
    if _server and _server.process.poll() is not None:
        _server.end()
        _server = None
    _server = _server or _Server()
    return _server
