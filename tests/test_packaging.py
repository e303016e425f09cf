"""The wheel contains all that a run needs, and its version bounds are the tested ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

from generator import __version__
from generator.doctor import WHEELS
from generator.sweep import _toml

PROJECT = _toml().loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [re.match(r"([A-Za-z0-9_.-]+)([^;]*)", text).groups() for text in PROJECT["dependencies"]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: run 'make setup'")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_both_packages_and_the_templates(wheel: Path) -> None:
    names = {*zipfile.ZipFile(wheel).namelist()}
    for folder, place in (("generator", "generator"), ("hgemm", "hgemm"), ("templates", "generator/templates")):
        files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
        missing = [str(path) for path in files if "__pycache__" not in path.parts and f"{place}/{path}" not in names]
        assert not missing, f"{folder} lacks {missing}"
    assert not [name for name in names if name.split("/")[0] not in ("generator", "hgemm") and "dist-info" not in name]
    assert wheel.name.startswith(f"hgemm_generator-{__version__}-py3")


def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import generator; from generator.cli.main import generate_main; print(generator.__file__); generate_main()"
    arguments = [word for name, text in SMALL.items() for word in ("--" + name, text)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "site"),
            "XDG_DATA_HOME": str(tmp_path / "data"),
            "HGEMM_CACHE_DIR": str(tmp_path / "cache"),
        },
    )
    place, _, document = done.stdout.partition("\n")
    assert done.returncode == 0 and place.startswith(str(tmp_path)), done.stderr
    (record,) = json.loads(document)
    cubin = tmp_path / "data" / "hgemm" / "library" / record["symbol"] / "kernel.cubin"
    assert cubin.stat().st_size == record["files"]["kernel.cubin"]["bytes"]


def test_package_installs_generate_and_hgemm(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    text = archive.read(name).decode()
    assert "generate = generator.cli.main:generate_main" in text and "hgemm = generator.cli.main:hgemm_main" in text


def test_installed_packages_match_the_requirements() -> None:
    for name, wanted in REQUIREMENTS:
        if wanted.startswith("=="):
            assert metadata.version(name) == wanted[2:], name


def test_doctor_checks_every_nvidia_wheel() -> None:
    assert {name for name, _ in REQUIREMENTS if name.startswith(("nvidia-", "cuda-"))} == {*WHEELS}
    for name, wanted in REQUIREMENTS:
        assert wanted[2:].startswith(WHEELS.get(name, ""))
