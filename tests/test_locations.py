"""The default library: its place, its users, and the commands that messages suggest."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import ROOT

import hgemm
from generator.cli.main import generate_command, hgemm_command
from hgemm import locations
from hgemm.errors import LibraryError
from hgemm.library import require_library
from hgemm.locations import default_library, library_suffix


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a user, beside the package's own folder, which is no checkout."""
    monkeypatch.setattr(locations, "_ROOT", tmp_path / "site-packages")
    monkeypatch.delenv("HGEMM_LIBRARY", raising=False)
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "hgemm" / "library"


def test_an_installed_package_uses_the_data_folder(installed: Path, tmp_path: Path) -> None:
    assert default_library() == installed
    assert default_library({"HGEMM_LIBRARY": "a", "XDG_DATA_HOME": "b"}) == Path("a")
    cache = {"HGEMM_CACHE_DIR": str(tmp_path / "cache")}
    assert default_library({"XDG_DATA_HOME": "b", **cache}) == Path("b/hgemm/library").absolute()
    assert default_library(cache) == Path.home() / ".local" / "share" / "hgemm" / "library"


def test_a_checkout_uses_its_own_folder_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert default_library({}) == Path("emitted")
    monkeypatch.chdir(tmp_path)
    assert default_library({}) == ROOT / "emitted"
    assert default_library({"HGEMM_LIBRARY": "mine"}) == Path("mine")


def test_old_data_folder_is_used_until_a_new_one_exists(installed: Path, tmp_path: Path) -> None:
    older = tmp_path / "cache" / "library"
    older.mkdir(parents=True)
    assert default_library() == older
    installed.mkdir(parents=True)
    assert default_library() == installed


def test_missing_home_folder_gives_an_error(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(LibraryError, match="set HGEMM_LIBRARY to a folder of your own"):
        default_library({})
    assert CliRunner().invoke(hgemm_command, ["list", "--help"], env={"XDG_DATA_HOME": None}).exit_code == 0


@pytest.mark.parametrize("verb", ["cover", "doctor", "export", "gc", "list", "run", "select", "show", "tune", "verify"])
def test_every_command_shows_the_same_default(installed: Path, verb: str) -> None:
    text = CliRunner().invoke(hgemm_command, [verb, "--help"], terminal_width=400).output
    assert f"env var: HGEMM_LIBRARY; default: {installed}" in text


def test_python_and_the_commands_open_the_same_library(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(installed) in CliRunner().invoke(generate_command, ["--help"], terminal_width=400).output
    assert hgemm.open(build=True).folder == installed and installed.is_dir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HGEMM_LIBRARY", "mine")
    assert hgemm.open(build=True).folder == tmp_path / "mine"
    result = CliRunner().invoke(hgemm_command, ["list", "--json"])
    assert result.exit_code == 0 and result.stdout.strip() == "[]"


def test_a_suggested_command_names_any_other_library(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_suffix(installed) == library_suffix(None) == ""
    assert library_suffix(Path("my kernels")) == " --library 'my kernels'"


def test_old_library_in_the_current_folder_is_named(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LibraryError, match="run `generate` first, or name another folder"):
        require_library(installed)
    (tmp_path / "emitted").mkdir()
    with pytest.raises(LibraryError, match="name the folder `emitted`, the default of older versions"):
        require_library(installed)
    monkeypatch.setenv("HGEMM_LIBRARY", str(installed))
    with pytest.raises(LibraryError, match="run `generate` first, or name another folder"):
        require_library(installed)
