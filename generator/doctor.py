"""The checks of `hgemm doctor`: what the generator needs, whether it is installed, and how to repair it."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.arch import ARCHS
from generator.build.compile import supported_archs
from generator.build.emit import entry_headers
from generator.build.inspect import find_nvdisasm
from generator.build.toolchain import OWN_HEADERS, headers, templates_folder, version_of
from generator.errors import INSTALL, HgemmError, LibraryError
from generator.proof.executor import NoCompiler, NoCompilerInstalled
from generator.proof.jobs import host_toolchain
from generator.store.library import Library
from generator.tables import counted
from hgemm.library import scan, without_record
from hgemm.record import CUBIN_NAME, RECORD_NAME

OK, WARN, FAIL = "ok", "warn", "fail"
_MAX_NAMES = 5
WHEELS = {
    "nvidia-cutlass": "4.2.",
    "nvidia-cuda-runtime": "13.0.",
    "nvidia-cuda-crt": "13.0.",
    "nvidia-cuda-cccl": "13.0.",
    "cuda-python": "13.",
    "nvidia-cuda-nvrtc": "13.0.",
    "nvidia-nvjitlink": "13.0.",
    "nvidia-nvfatbin": "13.0.",
    "nvidia-cuda-nvdisasm": "13.",
}
"""The wheels that compile, inspect and export, with the version prefix that pyproject.toml requires."""


@dataclass(frozen=True)
class SetupCheck:
    """The result of one check: `state` is ok, warn or fail; `found` is what was found; `fix` is what to do."""

    name: str
    state: str
    found: str
    fix: str = ""


def examine(library: Path) -> list[SetupCheck]:
    """Run all checks. A failing check does not stop the others."""
    checks = {
        "python": _python,
        "wheels": _wheels,
        "templates": _templates,
        "nvrtc": _nvrtc,
        "nvdisasm": _nvdisasm,
        "host compiler": _host_compiler,
        "gpu": _gpu,
        "library": lambda: _library(library),
    }
    return [check for name, run in checks.items() for check in _safely(name, run)]


def _safely(name: str, run: Callable[[], Iterator[SetupCheck]]) -> list[SetupCheck]:
    checks: list[SetupCheck] = []
    try:
        checks.extend(run())
    except HgemmError as error:
        checks.append(SetupCheck(name, FAIL, *_split(str(error))))
    except Exception as error:  # a broken installation can fail in any way
        checks.append(SetupCheck(name, FAIL, " ".join(f"{type(error).__name__}: {error}".split()), INSTALL))
    return checks


def _python() -> Iterator[SetupCheck]:
    good = sys.version_info >= (3, 10)
    yield SetupCheck(
        "python", OK if good else FAIL, platform.python_version(), "" if good else "install Python 3.10 or newer"
    )


def _wheels() -> Iterator[SetupCheck]:
    for wheel, prefix in WHEELS.items():
        try:
            version = version_of(wheel)
        except HgemmError:
            yield SetupCheck(wheel, FAIL, "not installed", INSTALL)
            continue
        good = version.startswith(prefix)
        yield SetupCheck(wheel, OK if good else FAIL, version, "" if good else f"needs {prefix}*: {INSTALL}")


def _templates() -> Iterator[SetupCheck]:
    folder = templates_folder()
    names = {header.name for entry in entry_headers() for header in headers(entry, folder).files}
    ours = [name for name in names if name.startswith(OWN_HEADERS)]
    missing = [entry for entry in entry_headers() if entry not in names]
    found = f"{folder}: {len(ours)} headers, {len(names)} including dependencies"
    fix = f"{', '.join(missing)} is missing: {INSTALL}" if missing else ""
    yield SetupCheck("templates", FAIL if missing else OK, found, fix)


def _nvrtc() -> Iterator[SetupCheck]:
    known = {name.rstrip("a") for name in ARCHS}
    missing = sorted(known - supported_archs())
    supported = f"NVRTC compiles for all {len(known)} architectures"
    yield (
        SetupCheck("nvrtc", WARN, f"NVRTC lacks {', '.join(missing)}", INSTALL)
        if missing
        else SetupCheck("nvrtc", OK, supported)
    )


def _nvdisasm() -> Iterator[SetupCheck]:
    program = find_nvdisasm()
    out = subprocess.run(
        [program, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=True
    ).stdout
    yield SetupCheck("nvdisasm", OK, f"{program}: {(out.strip().splitlines() or ['no version'])[-1]}")


def _host_compiler() -> Iterator[SetupCheck]:
    try:
        yield SetupCheck("host compiler", OK, str(host_toolchain().compiler))
    except NoCompiler as error:  # only proofs on the CPU need one, so a missing one is a warning
        yield SetupCheck("host compiler", WARN if isinstance(error, NoCompilerInstalled) else FAIL, *_split(str(error)))


def _gpu() -> Iterator[SetupCheck]:
    from hgemm.device import open_device
    from hgemm.errors import DeviceError

    try:
        device = open_device()
        yield SetupCheck("gpu", OK, f"{device.name}, sm_{''.join(map(str, device.capability))}, {device.sms} SMs")
    except DeviceError as error:
        yield SetupCheck("gpu", WARN, str(error), "build kernels here, and run them on a machine with a GPU")


def _library(folder: Path) -> Iterator[SetupCheck]:
    if not folder.exists():
        yield SetupCheck(
            "library", WARN, f"{folder} does not exist", "run `generate`, or name another library with --library"
        )
        return
    library, damaged = Library(folder), []
    symbols, incomplete = scan(folder), without_record(folder)
    for symbol in symbols:
        try:
            library.load(symbol)
        except LibraryError as error:
            damaged.append(str(error))
    if damaged:
        yield SetupCheck(
            "library", FAIL, f"{folder}: {len(damaged)} of {counted(len(symbols), 'kernel')} cannot be used"
        )
    elif symbols:
        yield SetupCheck("library", OK, f"{folder}: {counted(len(symbols), 'kernel')}, all hashes correct")
    else:
        yield SetupCheck("library", WARN, f"{folder} has no kernels", "run `generate`")
    if incomplete:
        have, names = "have" if len(incomplete) > 1 else "has", ", ".join(incomplete[:_MAX_NAMES])
        more = f" and {len(incomplete) - _MAX_NAMES} more" if len(incomplete) > _MAX_NAMES else ""
        found = f"{counted(len(incomplete), 'folder')} {have} {CUBIN_NAME} but no {RECORD_NAME} ({names}{more})"
        yield SetupCheck("library", WARN, found, "build them again")
    yield from (SetupCheck("library", FAIL, *_split(error)) for error in damaged)


def _split(error: str) -> tuple[str, str]:
    """Split a one-line error into the problem and the fix."""
    problem, colon, fix = error.rpartition(": ")
    return (problem, fix) if colon else (error, "")
