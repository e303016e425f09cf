"""A library at run time: opened without the generator, quickly, and nothing used before its schema and hashes are checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from records import make_record

import hgemm
from generator.store.library import Library
from hgemm.errors import LibraryError, RequestError, UnsupportedError
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target

NAMES = """
import hgemm
assert not any(name.startswith("hgemm.") and name != "hgemm.errors" for name in __import__("sys").modules)
print(*(type(getattr(hgemm, name)).__name__ for name in (*hgemm.__all__, "problem", "library")))
"""
SLOW_TO_IMPORT = {"numpy", "cuda", "torch", "sqlite3", "subprocess", "asyncio", "click", "generator"}
LOADED = """
import sys
import hgemm
library = hgemm.open(sys.argv[1])
print(*{name.split(".")[0] for name in sys.modules})
"""


@pytest.fixture
def copied(small_library: Library, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_library.folder, tmp_path / "library"))


def test_importing_and_opening_load_nothing_slow_and_no_generator(small_library: Library) -> None:
    command = [sys.executable, "-c", LOADED, str(small_library.folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    loaded = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert "hgemm" in loaded
    assert not SLOW_TO_IMPORT & {*loaded}


def test_names_and_modules_are_loaded_when_they_are_asked_for() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", NAMES], env=env, capture_output=True, text=True)
    kinds = done.stdout.split()
    assert done.returncode == 0 and len(kinds) == len(hgemm.__all__) + 2, done.stderr
    assert {*kinds} == {"type", "function", "module"} and kinds[-2:] == ["module", "module"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hgemm.nothing


def test_what_was_generated_is_selected_and_read(copied: Path) -> None:
    library = hgemm.open(copied)
    assert len(library.symbols) == 4
    target = Target.typical("sm_80")
    choice = library.select(SelectionQuery(Kind(layout="nt"), 100, 100, 100), target)
    kernel = library.kernel(choice.symbol)
    assert kernel.traits.layout == "nt" and kernel.image.cubin and kernel.image.ptx
    assert library.kernel(choice.symbol) is kernel
    assert library.selector(target) is library.selector(Target.typical("sm_80"))
    with pytest.raises(UnsupportedError, match="no variant computes tn bf16"):
        library.select(SelectionQuery(Kind("tn", "bf16", "bf16", "bf16"), 1, 1, 1), target)


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.ptx", "kernel.cu"])
def test_a_changed_file_is_refused_before_it_is_used(copied: Path, name: str) -> None:
    library = hgemm.open(copied)
    symbol = library.symbols[0]
    path = copied / symbol / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LibraryError, match=f"{name} is not the file that its record describes"):
        library.kernel(symbol)


def test_a_record_of_another_schema_is_refused(copied: Path) -> None:
    path = copied / hgemm.open(copied).symbols[0] / "record.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(LibraryError, match="schema must be a whole number"):
        hgemm.open(copied).symbols  # noqa: B018


def test_a_record_that_the_launcher_cannot_use_is_told(tmp_path: Path) -> None:
    Library(tmp_path).publish(*make_record("one"))
    with pytest.raises(LibraryError, match="grid rule 'tiles' is unknown"):
        hgemm.open(tmp_path).table  # noqa: B018


def test_what_is_not_there_is_told(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="does not exist"):
        hgemm.open(tmp_path / "absent")
    library = hgemm.open(copied)
    with pytest.raises(LibraryError, match="no variant absent"):
        library.kernel("absent")
    with pytest.raises(RequestError, match="malformed"):
        library.kernel("../absent")
