"""Fixtures of several tests. Tests that need a GPU are skipped with a reason where there is none."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import io
import logging
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from generator.build import pipeline
from generator.build.emit import EmittedKernel
from generator.build.pipeline import BuildOptions, BuildResult, Outcome, Prepared, Settings, make, planned_sections
from generator.build.toolchain import templates_folder
from generator.cli.main import generate_command, hgemm_command, main
from generator.proof.executor import Executable, HostCompiler, HostToolchain, NoCompiler, cache_folder, find_compiler
from generator.proof.jobs import ProofSource, Prover, check_here, request_of
from generator.proof.proving import Subject
from generator.store.library import Library
from generator.sweep import sweep

ROOT = Path(__file__).resolve().parents[1]
# Commands are started hundreds of times, and compiling their modules takes 0.1 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The processes of a run keep all cores busy; threads of NumPy would wait for one another in loops.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# glibc keeps the memory that NVIDIA's compilers free, for the next kernel: fresh pages take 5 % of the time of a compilation.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", f"{32 << 20}")
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", f"{1 << 30}")
SMALL = {"arch": "sm_80", "tile": "32x32x16", "stages": "2"}
"""A spec that compiles fast."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="SEED", default="", help="run only a part of the tests marked `sampled`")
    parser.addoption("--since", metavar="COMMIT", default="", help="with --sample, also run those that COMMIT lacks")


def pytest_report_header(config: pytest.Config) -> str:
    seed, since = config.getoption("sample"), config.getoption("since")
    changed = f"--since {since} ({len(changed_paths(since))} files differ)" if since else ""
    return f"tests marked `sampled`: those of --sample {seed} {changed}" if seed else ""


@functools.cache
def changed_paths(since: str) -> tuple[str, ...]:
    """Return the files of the checkout that differ from a commit. Without git or the commit, return none."""
    command = ["git", "diff", "--name-only", since, "--"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT) if since else None
    return tuple(done.stdout.splitlines()) if done and done.returncode == 0 else ()


def left_out(items: Iterable[pytest.Item], seed: str, changed: Collection[str]) -> set[pytest.Item]:
    """Return the items that a sample leaves out. It has one of n of a test's cases, and all if the test's file changed."""
    tests: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and item.path.relative_to(ROOT).as_posix() not in changed:
            tests.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for cases in tests.values():
        cases.sort(key=lambda item: hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest())
    return {item for (_, n), cases in tests.items() for item in cases[-(-len(cases) // n) :]}


def seconds_of(item: pytest.Item) -> float:
    """Return the seconds that the mark `slow` names, 1 if it names none, and 0 without it."""
    mark = item.get_closest_marker("slow")
    return mark.kwargs.get("seconds", 1) if mark else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.getoption("sample"):
        missing = left_out(items, seed, changed_paths(config.getoption("since")))
        config.hook.pytest_deselected(items=[*missing])
        items[:] = [item for item in items if item not in missing]
    items.sort(key=seconds_of, reverse=True)  # so that no process works alone at the end
    reason = _no_gpu()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def _no_gpu() -> str:
    """Say why nothing can run on a GPU here; nothing where it can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver here: run this on a machine with a GPU"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if status == 0 and count.value else f"no NVIDIA GPU here (the driver says {status})"


@pytest.fixture(scope="session", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """Do not wait for the disk: libraries are written thousands of times, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An empty library of the test's own, and the checkout's templates."""
    return Settings(library=Library(tmp_path / "library"), templates=templates_folder())


@pytest.fixture(scope="session")
def host_compiler() -> HostCompiler:
    """The C++ compiler of CXX, or the one found. Without one, tests that need it are skipped with a reason."""
    try:
        return find_compiler(os.environ.get("CXX", ""))
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a run of the tests share."""
    return _shared(tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let a run of the tests, and the processes that it starts, compile kernels for the CPU into a cache of their own."""
    os.environ["HGEMM_CACHE_DIR"] = str(_shared(tmp_path_factory) / "cache")


def _shared(factory: pytest.TempPathFactory) -> Path:
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Have the first process that wants a folder, or a file, make it, while others wait; what fails half way is made again."""
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}.begun")
            shutil.rmtree(begun, ignore_errors=True)
            make(begun)
            begun.rename(folder)
    return folder


@pytest.fixture
def builds_once(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build each kernel in the processes of the tests once a run, for tests of what happens to kernels, not of their builds."""
    build = pipeline.build

    def built(prepared: Prepared, options: BuildOptions) -> BuildResult:
        def write(path: Path) -> None:
            path.write_bytes(pickle.dumps(build([prepared], options)[0]))

        name = f"{prepared.kernel.symbol}-{prepared.key}-{options.allow_spills}"
        return pickle.loads(made_once(shared / name, write).read_bytes())

    def build_all(batch: Sequence[Prepared], options: BuildOptions) -> list[BuildResult]:
        return build(batch, options) if options.prover else [built(prepared, options) for prepared in batch]

    monkeypatch.setattr(pipeline, "build", build_all)


@pytest.fixture(scope="session")
def host_toolchain(host_compiler: HostCompiler, shared: Path) -> HostToolchain:
    """The toolchain that builds kernels for the CPU. All processes of a test run share its cache."""
    made = HostToolchain(host_compiler, templates_folder(), cache_folder(os.environ))
    with FileLock(shared / "executor.lock"):
        made.executor()
    return made


@pytest.fixture(scope="session")
def o0_toolchain(host_toolchain: HostToolchain) -> HostToolchain:
    """The same with -O0, for kernels that run once or twice: it compiles in half the time."""
    return replace(host_toolchain, level="-O0")


@pytest.fixture(scope="session")
def small_library(shared: Path) -> Library:
    """A library with one small kernel in each layout, compiled once a run of the tests; not to be written to."""

    def compile_all(folder: Path) -> None:
        plans = sweep([{**SMALL, "layout": "tn,nn,nt,tt"}]).plans
        outcomes = [outcome for _, outcome in make(plans, Settings(Library(folder), templates_folder()), processes=0)]
        assert [outcome.error for outcome in outcomes] == [""] * 4

    return Library(made_once(shared / "small_library", compile_all))


@pytest.fixture(scope="session")
def paper_library(shared: Path) -> Library:
    """The catalog's kernels and others, planned and not compiled; not to be written to."""
    from exports import full_library

    return Library(made_once(shared / "paper_library", full_library))


@pytest.fixture(scope="session")
def paper_export(paper_library: Library, shared: Path) -> Path:
    """The C library of those kernels, as users build it, once a run of the tests; not to be written to."""
    from exports import export_paper

    return made_once(shared / "paper_export", lambda folder: export_paper(paper_library, folder, compiler="cc"))


def hgemm(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `hgemm` in this process; return its status, stdout and stderr."""
    status = main(hgemm_command, [*map(str, arguments)])
    return status, *capsys.readouterr()


def made(texts: dict[str, str], settings: Settings, processes: int = 0) -> list[Outcome]:
    """Make the requested kernels, by default in this process. Return the outcomes in the order of the plans."""
    return [outcome for _, outcome in sorted(make(sweep([texts]).plans, settings, processes))]


@cache
def ptx_of(kernel: EmittedKernel) -> bytes:
    """Return the PTX of an emitted kernel."""
    return ProofSource.of(kernel).ptx(templates_folder())


def subject_of(kernel: EmittedKernel) -> Subject:
    """Return what a proof of an emitted kernel takes."""
    return Subject(kernel.symbol, ptx_of(kernel).decode(), planned_sections(kernel), kernel.plan.mma_per_k_tile)


def executable_of(kernel: EmittedKernel, host_toolchain: HostToolchain) -> Executable:
    """Return an emitted kernel, to run on the CPU in this process."""
    return Executable(host_toolchain.executable(kernel.symbol, ptx_of(kernel).decode()))


class ProverHere(Prover):
    """Proves in this process: no test kernel crashes, and starting a process takes longer than most proofs."""

    def proof(self, ptx: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
        outcome = check_here(request_of(self.host_toolchain, ptx, record))
        assert outcome.passed, outcome.reason
        return outcome.proof


def start(command: str, *arguments: object, **options) -> subprocess.Popen[str]:
    """Start `generate` or `hgemm` in a process of its own, in a session of its own."""
    code = f"from generator.cli.main import {command}_main; {command}_main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def call(command: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `generate` or `hgemm` in this process, as a shell would see it."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    words, back, handlers = [*map(str, arguments)], Path.cwd(), logging.root.handlers
    logging.root.handlers = []  # the command writes warnings to its stderr
    try:
        os.chdir(cwd or back)
        with redirect_stdout(out), redirect_stderr(err):
            status = main({"generate": generate_command, "hgemm": hgemm_command}[command], words)
    finally:
        logging.root.handlers = handlers
        os.chdir(back)
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(words, status, *texts)


def call_apart(command: str, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Run `generate` or `hgemm` in a process of its own, where the process is what is tested."""
    process = start(command, *arguments, **options)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
