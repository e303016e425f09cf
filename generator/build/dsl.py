"""Compile modules of CuTe DSL to PTX, and give the kernel the parameter of the other forms: one problem.

The DSL's kernel takes the fields of a problem one by one, in the order and with the types of common/problem.cuh. So each field
has the same offset as in the struct: the parameters become one of 144 bytes, and the load of the fifth parameter becomes a load
at its offset.
"""

from __future__ import annotations

import atexit
import json
import re
import select
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from generator.build.dsl_worker import MODULE_NAME, PTX_NAME
from generator.build.toolchain import version_of
from generator.errors import BuildError, HgemmError
from generator.isolated import command
from hgemm.problem import PROBLEM_BYTES

_FIELDS = (*["u64"] * 6, *["u64"] * 9, *["u32"] * 4, *["f32"] * 2)
"""The types of the fields of a problem: addresses, strides, extents, scalars."""
_ENTRY = re.compile(r"\.visible \.entry (?P<name>\w+)\((?P<parameters>[^)]*)\)")
_PARAMETER = re.compile(r"\.param \.(?P<type>\w+)(?: \.ptr[ .\w]*)? (?P<name>\w+)")


def with_problem_parameter(ptx: str, symbol: str) -> str:
    """Return the PTX with one kernel named `symbol` that takes a problem as one parameter.

    Raises: ValueError if the PTX does not have one kernel, or its parameters are not the fields of a problem.
    """
    entries = [*_ENTRY.finditer(ptx)]
    if len(entries) != 1:
        raise ValueError(f"error: {len(entries)} kernels in the PTX; expected 1")
    (entry,) = entries
    parameters = [*_PARAMETER.finditer(entry["parameters"])]
    types = tuple(parameter["type"] for parameter in parameters)
    if types != _FIELDS:
        raise ValueError(f"error: the parameters of the kernel are {', '.join(types)}, not the fields of a problem")
    problem = f"{symbol}_param_0"
    head = f".visible .entry {symbol}(\n\t.param .align 8 .b8 {problem}[{PROBLEM_BYTES}]\n)"
    body = (ptx[: entry.start()] + head + ptx[entry.end() :]).replace(f".globl\t{entry['name']}", f".globl\t{symbol}")
    offset = 0
    for parameter in parameters:
        place = problem + (f"+{offset}" if offset else "")
        body = body.replace(f"[{parameter['name']}]", f"[{place}]")
        offset += int(parameter["type"][1:]) // 8
    if entry["name"] in body:
        raise ValueError("error: the kernel uses a parameter in an instruction other than a load")
    return body


# ---- From a CuTe DSL module to PTX: a process imports the DSL once and compiles modules; no GPU is needed ---------------

WHEEL = "nvidia-cutlass-dsl"
LIMIT_S = 120.0
"""Time limit for one kernel: a hundred times a usual compilation, including the start of the DSL."""
LAST_WORDS_S = 10.0
"""Time from closing stdin to the end of the process."""


def options(arch: str) -> tuple[str, ...]:
    """Return the options of `cute.compile`. The DSL's own cubin is not used, so it is not optimised."""
    return "--gpu-arch", arch, "--ptxas-options", "-O0"


def version() -> str:
    """Return the version of the DSL. Raises: HgemmError if its wheel is not installed."""
    try:
        return version_of(WHEEL)
    except HgemmError:
        raise HgemmError(
            f"wheel {WHEEL} is missing, and --form dsl requires it: pip install 'hgemm-generator[dsl]'"
        ) from None


def missing() -> str:
    """Return what is missing to compile modules of the DSL, or an empty text."""
    try:
        version()
    except HgemmError as error:
        return str(error)
    return ""


def begin() -> None:
    """Start the process if it does not run yet. Raises: HgemmError if the DSL is missing."""
    version()
    with _LOCK:
        _running()


def ptx_of(symbol: str, source: str, arch: str) -> bytes:
    """Return the PTX of an emitted module, with a kernel named `symbol` that takes a problem as one parameter.

    Raises: BuildError with the message of the DSL, or if it takes too long or its process ends.
    """
    version()
    with _LOCK:
        return _translated(_running(), symbol, source, arch)


def _translated(server: _Server, symbol: str, source: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="module-", dir=server.place.name) as name:
        folder = Path(name)
        (folder / MODULE_NAME).write_text(source)
        note = server.asked({"folder": folder.name, "options": " ".join(options(arch))})
        if note:
            raise BuildError(symbol, note)
        try:
            return with_problem_parameter((folder / PTX_NAME).read_text(), symbol).encode()
        except ValueError as strange:
            raise BuildError(symbol, str(strange)) from None


# ---- The process ----------------------------------------------------------------------------------------------------

_LOCK = threading.Lock()
_STDERR_NAME = "stderr"
_TELLING = re.compile(r"\S*(?:Error|Exception|Interrupt|error)\b.*")


class _Server:
    """The process. It works in a private folder: options of the DSL cannot contain blanks, so it gets relative paths."""

    def __init__(self) -> None:
        self.place = tempfile.TemporaryDirectory(prefix="hgemm-dsl-")
        pipe = subprocess.PIPE
        with open(Path(self.place.name) / _STDERR_NAME, "wb") as stderr:
            self.process = subprocess.Popen(
                command("generator.build.dsl_worker:serve"),
                stdin=pipe,
                stdout=pipe,
                stderr=stderr,
                bufsize=0,
                cwd=self.place.name,
            )
        atexit.register(self.end)

    def asked(self, request: dict[str, str]) -> str:
        """Send a request and return the answer: an error, or an empty text."""
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
        """End the process and remove its folder. The next request starts another process."""
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
