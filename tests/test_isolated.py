"""Started processes import nothing from the current folder."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

from generator import isolated
from generator.build.workers import process_pool
from generator.device_check import CheckRequest, CheckWorkers
from generator.proof.executor import HostToolchain, require_working
from generator.store.library import Library

MODULES = "click ctypes json multiprocessing numpy pickle random signal socket subprocess types".split()
PACKAGES = "generator hgemm".split()


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, full of modules that leave a mark in the file RAN beside it."""
    folder = tmp_path / "hostile"
    text = f"with open({str(tmp_path / 'RAN')!r}, 'a') as file: file.write(__name__ + ' ')\nraise SystemExit(77)\n"
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    for name in MODULES:
        (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    return folder


def ran(folder: Path) -> str:
    mark = folder.parent / "RAN"
    return mark.read_text() if mark.exists() else ""


def test_workers_that_build_are_isolated(hostile: Path) -> None:
    with process_pool(1) as pool:
        assert pool.executor.submit(platform.python_version).result() == platform.python_version()
        assert pool.executor.submit(os.getcwd).result() == isolated.NEUTRAL_FOLDER
    assert ran(hostile) == ""


def test_processes_that_check_are_isolated(hostile: Path) -> None:
    outcome, _ = CheckWorkers().check(CheckRequest("/no/library", "hgemm_x"))
    assert "/no/library" in outcome.error and ran(hostile) == ""


def test_compiler_probes_are_isolated(hostile: Path, host_toolchain: HostToolchain) -> None:
    require_working(host_toolchain.compiler, host_toolchain.templates)
    assert ran(hostile) == ""


def test_children_keep_the_search_path_without_the_current_folder(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", str(hostile), "/elsewhere", str(ROOT), "/later"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert isolated.search_path() == ["/elsewhere", "/later", str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(hostile)]))
    assert isolated.search_path() == [str(hostile), "/elsewhere", "/later", str(ROOT)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["generate", *(word for name, text in SMALL.items() for word in (f"--{name}", text))]
        + ["--layout", "tn,nn", "-j", "2", "--library", "made"],
        ["hgemm", "doctor"],
        ["hgemm", "verify", "--emulate", "--shapes", "8x8x8"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_verbs_run_nothing_of_the_current_folder(
    hostile: Path, small_library: Library, host_toolchain: HostToolchain, words: list[str]
) -> None:
    script = hostile.parent / "bin" / words[0]  # as an installed command: its own folder comes first in sys.path
    script.parent.mkdir()
    script.write_text(f"from generator.cli.main import {words[0]}_main\n{words[0]}_main()\n")
    environment = {**os.environ, "HGEMM_LIBRARY": str(small_library.folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *words[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran(hostile) == ""
    assert done.returncode == 0, done.stderr


_PARENT = """
import subprocess
from generator import isolated
child = subprocess.Popen(isolated.command("signal:pause"), start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_a_session_ends_with_its_parent() -> None:
    """A killed command cannot end the processes that it started."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout
        state = Path("/proc") / parent.stdout.readline().strip() / "stat"
        parent.kill()
    until = time.monotonic() + 30
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.1)
