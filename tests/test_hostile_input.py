"""Hostile input: each kind is rejected in one line, or handled."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import click
import pytest
from conftest import call

from generator.errors import BuildError, LibraryError, RequestError
from generator.ladders.recipes import read_ladder
from generator.proof.executor import (
    HostCompiler,
    HostToolchain,
    NoCompiler,
    cache_folder,
    find_compiler,
    require_working,
)
from generator.store.index import LOCK_NAME, replace_index
from generator.store.library import Library
from generator.store.maintenance import collect_garbage
from generator.sweep import read_toml
from hgemm import disk
from hgemm.errors import escaped_output, printable, shortened
from hgemm.measured import FOLDER
from hgemm.packed import PACK_NAME, read_pack


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> bool:
    return done.stderr.count("\n") == 1 and all(word in done.stderr for word in words) and "internal" not in done.stderr


# ---- The cache ------------------------------------------------------------------------------------------------------


def test_relative_cache_is_resolved_when_the_variable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_folder({"HGEMM_CACHE_DIR": "cache"}) == tmp_path / "cache" / "executor"


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a'b $HOME `id`", "a b\\c"])
def test_a_cache_may_have_any_name(host_compiler: HostCompiler, tmp_path: Path, name: str) -> None:
    """Programs are written to it and found there. The executor is left out, because building it takes seconds."""
    toolchain = HostToolchain(host_compiler, tmp_path / "templates", tmp_path / name)
    (tmp_path / "templates" / "executor").mkdir(parents=True)
    (tmp_path / "templates" / "executor" / "runner.cpp").write_text("int main() {}\n")
    assert toolchain.runner() == toolchain.runner() and subprocess.run([toolchain.runner()]).returncode == 0


def test_a_full_disk_is_no_fault_of_the_kernel(host_toolchain: HostToolchain, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: No space left on device' >&2\nexit 1\n")
    compiler.chmod(0o755)
    full = replace(host_toolchain, compiler=HostCompiler((str(compiler),), "full"), cache=tmp_path / "cache")
    with pytest.raises(
        LibraryError, match=r"cannot write to the cache .*no space is left .*choose another HGEMM_CACHE_DIR"
    ):
        full.runner()


def test_a_full_disk_of_temporary_files_is_no_fault_of_the_compiler(
    host_compiler: HostCompiler, tmp_path: Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'error: writing to a.s: No space left on device' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(NoCompiler, match="free some space on the disk of .*, or set TMPDIR to another folder"):
        require_working(replace(host_compiler, command=(str(compiler),)), tmp_path)


def test_variables_of_a_compiler_that_name_folders_are_ignored(
    host_compiler: HostCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "cstdio").write_text("#error planted\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "planted"))
    (tmp_path / "executor").mkdir()
    (tmp_path / "executor" / "runner.cpp").write_text("#include <cstdio>\nint main() {}\n")
    assert HostToolchain(host_compiler, tmp_path, tmp_path / "cache").runner().is_file()


# ---- Files ----------------------------------------------------------------------------------------------------------


def test_endless_devices_are_not_read_to_the_end(small_library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.read_text, "__defaults__", (1000,))
    for command, *words in (
        ("generate", "--spec", "/dev/zero"),
        ("hgemm", "bench", "--suite", "/dev/zero", "--library", str(small_library.folder)),
        ("hgemm", "ladder", "--from", "/dev/zero"),
    ):
        assert one_line(call(command, *words), "/dev/zero", "more than ")


def test_a_named_pipe_is_not_waited_for(small_library: Library, tmp_path: Path) -> None:
    pipe, library = tmp_path / "pipe", str(small_library.folder)
    os.mkfifo(pipe)
    for command, *words in (
        ("generate", "--spec", str(pipe)),
        ("hgemm", "bench", "--suite", str(pipe), "--library", library),
        ("hgemm", "ladder", "--from", str(pipe)),
        ("hgemm", "pack", str(pipe), "--arch", "sm_89"),
        ("hgemm", "sanitize", str(pipe), "--launch", str(pipe)),
    ):
        assert one_line(call(command, *words), "it is a named pipe: write its content to a file")
    os.mkfifo(tmp_path / PACK_NAME)
    with pytest.raises(LibraryError, match="not a regular file"):
        read_pack(tmp_path)


def test_a_pipe_of_a_shell_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    try:
        assert disk.read_text(Path(f"/dev/fd/{reader}")) == "text"
    finally:
        os.close(reader)


def test_deep_documents_are_rejected(small_library: Library, tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    done = call("hgemm", "bench", "--suite", deep, "--library", small_library.folder)
    assert done.returncode == 2 and one_line(done, "suite", "cannot be read")
    deep.write_text("a = " + "[" * 100_000)
    done = call("generate", "--spec", deep)
    assert done.returncode == 2 and one_line(done, "is not TOML")


@pytest.mark.parametrize("source", ["../../../../etc/passwd", "/etc/passwd", "no_such.cu", "published/../recipes.py"])
def test_a_recipe_names_only_published_kernels(tmp_path: Path, source: str) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'title = "x"\nsource = "x"\nmachine = "x"\nshapes = ["128"]\nspec = {arch = "sm_80"}\n[[step]]\nname = "1"\nwhat = "x"\n'
        f'baseline_kernel = {{source = "{source}", tile = "64x64x32", threads = 128, smem_bytes = 0}}\n'
    )
    with pytest.raises(RequestError, match="no baseline kernel .*: use tiled_f32.cu"):
        read_ladder(recipe)


def test_a_lock_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        replace_index(tmp_path)
    assert victim.read_text() == "precious"


def test_locks_are_waited_for(tmp_path: Path) -> None:
    with disk.locked(tmp_path / "lock", timeout_s=1):
        with pytest.raises(BlockingIOError), disk.locked(tmp_path / "lock", timeout_s=0):
            pass
    with disk.locked(tmp_path / "lock", timeout_s=0):
        pass


def test_files_behind_a_link_are_no_garbage(tmp_path: Path) -> None:
    others = tmp_path / "others" / f".tmp-999999999-{'0' * 16}"
    others.parent.mkdir()
    others.touch()
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / FOLDER).symlink_to(others.parent)
    assert collect_garbage(Library(tmp_path / "library")) == [] and others.exists()


def test_paths_need_not_be_utf_8(small_library: Library, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/lib\xff"))
    shutil.copytree(small_library.folder, folder)
    done = call("hgemm", "list", "--library", folder, "--json")
    assert done.returncode == 0, done.stderr


# ---- Commands -------------------------------------------------------------------------------------------------------


def test_compiler_that_is_no_command_gives_an_error() -> None:
    with pytest.raises(NoCompiler, match="which is not a command"):
        find_compiler('g++ "')


def test_compilers_need_not_write_utf_8(
    paper_library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is named as a path of the current folder, in which it does not run."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\ncase $1 in --version) echo 1; exit;; esac\nprintf 'error: \\377\\n' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    symbol = paper_library.rows()[0]["symbol"]
    words = ["--library", paper_library.folder, "--kernels", symbol, "--to", "out", "--uncompressed", "--cc", "./cc"]
    done = call("hgemm", "export", *words)
    assert done.returncode == 1 and "cc failed: error: \ufffd: choose another compiler with --cc" in done.stderr


# ---- What reaches a terminal ----------------------------------------------------------------------------------------


def test_control_characters_of_foreign_files_are_escaped(capsys) -> None:
    """Also on a terminal, where click does not remove them."""
    with escaped_output():
        click.echo("\x1b[31m red \u202e \u00e9\ttab", color=True)
        click.echo("\x1b]0;title\x07", err=True, color=True)
    assert capsys.readouterr() == (r"\x1b[31m red \u202e " + "\u00e9\ttab\n", r"\x1b]0;title\x07" + "\n")


def test_a_key_of_many_parts_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("a" + ".a" * 100_000 + " = 1\n")
    began = time.process_time()
    with pytest.raises(RequestError, match="a line has more than 256 dots"):
        read_toml(tmp_path / "spec.toml")
    assert time.process_time() - began < 1


def test_long_words_are_cut_and_control_characters_escaped() -> None:
    assert call("hgemm", "x" * 100_000).stderr.count("x") < 300
    assert len(call("generate", "--arch", "x" * 100_000).stderr) < 500
    assert shortened("a bc") == "a bc"
    assert printable("a\x1b]0;b\x07\tc\n") == "a\\x1b]0;b\\x07\tc\n" and printable("ä\udcff") == "ä\udcff"


def test_library_sources_are_escaped_on_a_terminal(small_library: Library, tmp_path: Path) -> None:
    import test_rebuild

    shutil.copytree(small_library.folder, tmp_path / "lib")
    for path in [*(tmp_path / "lib").glob("hgemm_*")][1:]:
        shutil.rmtree(path)
    symbol = test_rebuild.forge(Library(tmp_path / "lib"), test_rebuild.add_text("// \x1b]0;owned\x07\n"))
    done = call("hgemm", "show", symbol, "--source", "--library", tmp_path / "lib")
    assert "\x1b" not in done.stdout and "// \\x1b]0;owned\\x07" in done.stdout


def test_compiler_errors_name_what_does_not_compile(host_compiler: HostCompiler, tmp_path: Path) -> None:
    (tmp_path / "executor").mkdir()
    (tmp_path / "executor" / "runner.cpp").write_text("this is no C++\n")
    with pytest.raises(BuildError, match="the runner does not compile: "):
        HostToolchain(host_compiler, tmp_path, tmp_path / "cache").runner()
