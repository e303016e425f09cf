"""The examples in Python: one polite line where there is no GPU or no torch, right results where there are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_gpu import make_library

from hgemm.errors import DeviceError

EXAMPLES = ("python/multiply.py", "torch/llama_mlp.py", "graph/replay.py")


def started(example: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / example), *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


def loaded(example: str):
    spec = importlib.util.spec_from_file_location(Path(example).stem, ROOT / "examples" / example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_a_gpu_one_line_says_so(example: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    module = loaded(example)

    def no_gpu(ordinal: int = 0) -> None:
        raise DeviceError("no NVIDIA GPU here: the driver, libcuda.so.1, is not installed")

    monkeypatch.setattr(module, "open_device", no_gpu)
    assert module.main([]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no NVIDIA GPU here: the driver, libcuda.so.1, is not installed\n")


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_torch_one_line_says_so(example: str, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    module = loaded(example)
    monkeypatch.setattr(module, "open_device", lambda: None)
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert module.main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert not said.out and "torch is not installed: " in said.err and "Traceback" not in said.err
    assert len(said.err.splitlines()) == (2 if "multiply" in example else 1)


def test_a_library_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    module = loaded(EXAMPLES[0])
    monkeypatch.setattr(module, "open_device", lambda: None)
    assert module.main([str(tmp_path / "absent")]) == 1
    assert "absent does not exist" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_agree(example: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("torch")
    done = started(example, make_library(tmp_path_factory))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
