"""The jobs for CI systems: short, the same for both systems, and run here."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT, call
from exports import FAST_CC

from generator.proof.executor import HostToolchain

JOBS = ROOT / "examples" / "ci"


def example():
    spec = importlib.util.spec_from_file_location("run_here", JOBS / "run_here.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_jobs_are_short_and_run_the_same_commands() -> None:
    texts = [(JOBS / name).read_text() for name in ("github.yml", "gitlab.yml")]
    assert max(len(text.splitlines()) for text in texts) <= 20
    in_github, in_gitlab = map(example().commands, texts)
    assert in_github == in_gitlab
    assert [" ".join(words[:2]) for words in in_github] == ["generate --spec", "hgemm verify", "hgemm export"]
    assert "--junit" in in_github[1] and "--require-proof" in in_github[2]


def test_the_example_asks_for_legal_kernels() -> None:
    done = call("generate", "--spec", JOBS / "kernels.toml", "--explain", "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 8, done.stderr


def test_the_first_failure_ends_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd) -> None:
    module = example()
    words = [[sys.executable, "-c", f"import sys; sys.exit({status})"] for status in (0, 3, 0)]
    monkeypatch.setattr(module, "commands", lambda text: words)
    assert module.main([str(tmp_path / "ci")]) == 3
    assert capfd.readouterr().out.count("# exit code") == 2


@pytest.mark.slow
def test_example_job_runs(tmp_path: Path, host_toolchain: HostToolchain) -> None:
    """For two small kernels. By `python -m`: the commands of a checkout may not be installed. The job's cache has the executor."""
    jobs = shutil.copytree(JOBS, tmp_path / "jobs")
    (jobs / "kernels.toml").write_text(
        'arch = ["sm_80"]\ntile = ["32x32x16"]\nlayout = ["tn", "nt"]\nbias = ["launch"]\n'
    )
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / ".hgemm").symlink_to(host_toolchain.cache.parent)
    for name in ("generate", "hgemm"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m {"generator" if name == "generate" else "hgemm"} "$@"\n'
        )
        command.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, jobs / "run_here.py", tmp_path / "ci"],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "CC": FAST_CC},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ElementTree.parse(tmp_path / "ci" / "proofs.xml").getroot().iter("testcase")
    assert len([*cases]) >= 40
    assert (tmp_path / "ci" / "build" / "hgemm" / "lib" / "libhgemm.a").exists()
