"""The guide "Add a kernel family": one folder and one line make a family that plans, explains and rejects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

NAME, MMA = "family_of_the_guide", "fma_of_the_guide"
"""Other names than those of the guide, so that the tests also pass in a checkout where somebody has followed it."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the generator with the family of the guide."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "generator", copy / "generator", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("hgemm", "templates"):
        (copy / name).symlink_to(ROOT / name)
    families = copy / "generator" / "families"
    (families / NAME).mkdir()
    source = (ROOT / "examples" / "family" / "simt.py").read_text()
    (families / NAME / "__init__.py").write_text(source.replace('"fma"', f'"{MMA}"').replace('"simt"', f'"{NAME}"'))
    registry = (families / "__init__.py").read_text()
    last = ']\n"""Every family.'
    assert last in registry
    registry = registry.replace("from generator.families import ", f"from generator.families import {NAME}, ", 1)
    (families / "__init__.py").write_text(registry.replace(last, f"    {NAME}.FAMILY,\n{last}"))
    return copy


def generate(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "generator", *words, "--library", "library"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


def test_guide_family_is_planned_and_explained(checkout: Path) -> None:
    done = generate(checkout, "--arch", "sm_80", "--mma", MMA, "--explain")
    assert done.returncode == 0, done.stderr
    assert "legal" in done.stdout and "needed_registers" in done.stdout


def test_an_illegal_spec_of_the_family_is_rejected_with_a_fix(checkout: Path) -> None:
    done = generate(checkout, "--arch", "sm_80", "--mma", MMA, "--stages", "16", "--tile", "128x128x64")
    assert done.returncode == 2
    assert "shared_memory" in done.stderr and "--stages" in done.stderr


def test_family_without_templates_is_not_generated(checkout: Path) -> None:
    done = generate(checkout, "--arch", "sm_80", "--mma", MMA)
    assert done.returncode == 2
    assert "not implemented" in done.stderr


def test_new_family_does_not_change_other_requests(checkout: Path) -> None:
    words = ("--arch", "sm_80,sm_90a", "--dry-run")
    assert generate(checkout, *words).stdout == generate(ROOT, *words).stdout
