"""`hgemm doctor`: what is here, what is broken, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import hgemm

from generator.cli import main as cli
from generator.store.library import Library


def test_doctor_says_what_is_here_and_what_to_do(capsys, small_library: Library) -> None:
    status, out, _ = hgemm(capsys, "doctor", "--library", small_library.folder, "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert status == 0 and {check["state"] for check in checks.values()} <= {"ok", "warn"}
    assert {"python", "nvidia-cuda-nvrtc", "nvrtc", "nvdisasm", "templates", "gpu", "library"} <= {*checks}
    assert "4 variants" in checks["library"]["found"]


def test_doctor_fails_where_something_is_broken(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cli.sys.modules, "cuda.bindings", None)
    status, out, _ = hgemm(capsys, "doctor", "--library", tmp_path)
    failed = [line for line in out.splitlines() if line.startswith("fail")]
    assert status == 1 and any("nvrtc" in line for line in failed)


@pytest.mark.parametrize(
    ("named", "found"),
    [("/nowhere/g++", "CXX names /nowhere/g++, which is not here: "), ("/bin/true", "/bin/true makes no C++17 shared")],
)
def test_doctor_and_verify_say_the_same_of_a_host_compiler(
    capsys, monkeypatch, small_library: Library, named: str, found: str
) -> None:
    monkeypatch.setenv("CXX", named)
    status, out, _ = hgemm(capsys, "doctor", "--library", small_library.folder)
    (line,) = (line for line in out.splitlines() if "host compiler" in line)
    assert status == 1 and line.startswith("fail") and found in line
    status, _, err = hgemm(capsys, "verify", "--emulate", "--library", small_library.folder)
    assert (
        status == 1 and err.startswith("hgemm: error: ") and line.endswith(err.removeprefix("hgemm: error: ").strip())
    )
