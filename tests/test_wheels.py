"""The wheel hgemm-kernels: its contents, and `import hgemm` without the generator."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT
from exports import compiled, fake_driver, need_compiler

from generator.store.library import Library
from hgemm import locations


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wheels", ROOT / "packaging" / "build_wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wheel_library_is_the_last_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site" / "hgemm_kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    own = tmp_path / "own"
    monkeypatch.setattr(locations, "default_library", lambda: own)
    monkeypatch.delenv("HGEMM_LIBRARY", raising=False)
    assert locations.existing_library() == own  # there is no wheel
    monkeypatch.syspath_prepend(package.parent)
    assert locations.existing_library() == package / "library"
    monkeypatch.setenv("HGEMM_LIBRARY", str(own))
    assert locations.existing_library() == own
    monkeypatch.delenv("HGEMM_LIBRARY")
    own.mkdir()
    assert locations.existing_library() == own


APART = """
import json, sys
sys.path[:0], sys.path[len(sys.path):] = [sys.argv[1]], [sys.argv[2]]
import hgemm, hgemm_kernels
library = hgemm.open()
try:
    hgemm.generate(arch="sm_80")
except hgemm.LibraryError as error:
    refusal = str(error)
loaded = [name for name in sys.modules if name.startswith("generator.")]
folders = str(library.folder), str(hgemm_kernels.LIBRARY)
print(json.dumps([hgemm.__file__, *folders, library.symbols, refusal, hgemm.growth.can_build(), loaded]))
"""
"""Without site, so that the generator of a checkout is not found."""


@pytest.mark.slow
def test_wheel_runs_without_the_generator(small_library: Library, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: run 'make setup'")
    need_compiler()
    build_wheels = script()
    folder = build_wheels.kernels_folder(tmp_path, small_library.folder)
    wheel = build_wheels.built(folder, "hgemm_kernels", tmp_path)
    assert wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    symbols = sorted(path.name for path in (site / "hgemm_kernels" / "library").iterdir())
    assert symbols == sorted(record.symbol for record in small_library.records())
    assert not [path for path in site.rglob("*") if path.name == "generator"]

    command = [sys.executable, "-I", "-S", "-c", APART, site, sysconfig.get_paths()["purelib"]]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=tmp_path, env={"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    place, opened, packaged, found, refusal, builds, loaded = json.loads(done.stdout)
    assert place.startswith(str(site)) and opened == packaged and found == symbols and not builds and not loaded
    assert "hgemm-generator" in refusal

    c = site / "hgemm_kernels" / "c"
    program = tmp_path / "multiply"
    rpath = f"-Wl,-rpath,{c / 'lib'}"
    source = ROOT / "examples" / "c" / "multiply.c"
    compiled(f"-I{c / 'include'}", source, "-o", program, f"-L{c / 'lib'}", "-lhgemm", rpath, "-ldl")
    driver = fake_driver(tmp_path / "driver")
    done = subprocess.run([program], capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(driver)}, timeout=60)
    assert "hgemm_sm" in done.stdout + done.stderr or "no kernel" in done.stderr, done.stdout + done.stderr


@pytest.mark.slow
def test_auditwheel_finds_a_manylinux_tag(small_library: Library, tmp_path: Path) -> None:
    for name in ("auditwheel", "hatchling"):
        pytest.importorskip(name, reason="pip install '.[wheels]'")
    need_compiler()
    (tmp_path / "work").mkdir()
    wheel = script().kernels_wheel(tmp_path / "work", small_library.folder, tmp_path)
    assert "manylinux" in wheel.name and wheel.name.startswith("hgemm_kernels-")


def test_tools_beside_python_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool_of_the_environment"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tool.parent / "python"))
    assert script().run("sh", "-c", tool.name) == "found\n"
