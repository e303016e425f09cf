"""The exported C library's folder: what is in it, how large it is, and what the command says."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, call
from exports import check_manifest, export_paper, loaded, need_compiler

from generator.errors import HgemmError, LibraryError, RequestError
from generator.export.c_library import ExportOptions, export
from generator.export.c_sources import fat_binary
from generator.store.library import Library
from hgemm.library import open_library

API = [
    "create",
    "destroy",
    "last_message",
    "list",
    "prepare",
    "problem_init_sized",
    "run",
    "select",
    "select_for",
    "status_string",
    "version",
]
MAX_BYTES = 12 * 2**20


# ---- What is written ------------------------------------------------------------------------------------------------


def test_the_folder_is_what_its_manifest_says(paper_export: Path, paper_library: Library) -> None:
    assert check_manifest(paper_export) == []
    manifest = json.loads((paper_export / "MANIFEST.json").read_text())
    assert manifest["variants"] == {record.symbol: record.key for record in paper_library.records()}
    names = {"include/hgemm.h", "include/hgemm.hpp", "lib/libhgemm.a", "lib/libhgemm.so", "lib/pkgconfig/hgemm.pc"}
    assert names <= manifest["files"].keys() and "lib/cmake/hgemm/hgemm-config.cmake" in manifest["files"]
    (paper_export / "more").write_text("")
    assert check_manifest(paper_export) == ["more"]
    (paper_export / "more").unlink()


def test_two_exports_are_equal_byte_for_byte(paper_library: Library, paper_export: Path, tmp_path: Path) -> None:
    again = export_paper(paper_library, tmp_path / "a place of another length" / "hgemm")
    assert (again / "MANIFEST.json").read_bytes() == (paper_export / "MANIFEST.json").read_bytes()


def test_compressed_images_are_equal_byte_for_byte_and_small(small_library: Library, tmp_path: Path) -> None:
    """Real kernels, as nvFatbin packs them: a fat binary each, which begins with the magic number that the driver seeks."""
    pytest.importorskip("cuda.bindings.nvfatbin", reason="nvidia-nvfatbin is not installed")
    need_compiler()
    library = open_library(small_library.folder)
    for name in "ab":
        export(library, tmp_path / name, ExportOptions(library.symbols))
    assert (tmp_path / "a" / "MANIFEST.json").read_bytes() == (tmp_path / "b" / "MANIFEST.json").read_bytes()
    blob = (tmp_path / "a" / "src" / "images.bin").read_bytes()
    assert blob[:4] == bytes.fromhex("50ed55ba")
    plain = sum(len(k.image.cubin) + len(k.image.ptx) for k in map(library.kernel, library.symbols))
    assert len(blob) < plain / 2


def test_code_that_nvfatbin_cannot_read_is_named() -> None:
    pytest.importorskip("cuda.bindings.nvfatbin", reason="nvidia-nvfatbin is not installed")
    with pytest.raises(HgemmError, match="hgemm_a: nvFatbin cannot read .*ELF.*: generate it again with --force"):
        fat_binary("hgemm_a", "sm_89", b"no machine code" * 9, b".version 9.0\0")


def test_symbols_are_hidden_and_nothing_of_nvidia_is_linked(paper_export: Path) -> None:
    if not shutil.which("nm"):
        pytest.skip("no nm here")
    shared = paper_export / "lib" / "libhgemm.so"
    defined = subprocess.run(["nm", "-D", "--defined-only", shared], capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in defined.splitlines()] == [f"hgemm_{name}" for name in API]
    undefined = subprocess.run(["nm", "-D", "-u", shared], capture_output=True, text=True).stdout
    assert not re.findall(r"\b(?:cu[A-Z]|cuda|nv)\w+", undefined)
    needed = subprocess.run(["readelf", "-d", shared], capture_output=True, text=True).stdout
    assert not re.findall(r"NEEDED.*(?:cuda|nvidia|stdc\+\+).*", needed)
    everything = subprocess.run(["nm", paper_export / "lib" / "libhgemm.a"], capture_output=True, text=True).stdout
    globals_ = re.findall(r" [A-TV-Z] (\w+)$", everything, re.MULTILINE)
    assert globals_ and all(name.startswith("hgemm_") for name in globals_)


def test_no_path_of_this_machine_is_inside(paper_export: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for path in paper_export.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(ROOT).encode() not in content and b"pytest-of" not in content, path


def test_another_folders_files_are_left_alone(paper_library: Library, tmp_path: Path) -> None:
    library = open_library(paper_library.folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="has files but no MANIFEST.json"):
        export(library, tmp_path / "mine", ExportOptions(library.symbols, compressed=False))
    with pytest.raises(RequestError, match="is not a folder"):
        export(library, tmp_path / "mine" / "notes.txt", ExportOptions(library.symbols, compressed=False))
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_an_export_is_replaced_whole(small_library: Library, tmp_path: Path) -> None:
    library = open_library(small_library.folder)
    to = tmp_path / "export"
    export(library, to, ExportOptions(library.symbols[:1], compressed=False, sources=True, compiler="absent"))
    assert (to / "source").is_dir()
    export(library, to, ExportOptions(library.symbols, compressed=False, compiler="absent"))
    assert not (to / "source").exists() and check_manifest(to) == []
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_damaged_variant_is_not_exported(small_library: Library, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_library.folder, tmp_path / "library"))
    library = open_library(folder)
    path = folder / library.symbols[0] / "kernel.cubin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LibraryError, match="SHA-256 differs"):
        export(library, tmp_path / "export", ExportOptions(library.symbols, compressed=False))
    assert not (tmp_path / "export").exists()


def test_a_compiler_that_fails_leaves_nothing(small_library: Library, tmp_path: Path) -> None:
    need_compiler()
    library = open_library(small_library.folder)
    bad = tmp_path / "badcc"
    bad.write_text("#!/bin/sh\ntest \"$1\" = --version && echo bad 1.0 && exit 0\necho 'x.c: error: no' >&2\nexit 1\n")
    bad.chmod(0o755)
    with pytest.raises(HgemmError, match="badcc failed: x.c: error: no: choose another compiler with --cc"):
        export(library, tmp_path / "export", ExportOptions(library.symbols, compressed=False, compiler=str(bad)))
    assert [path.name for path in tmp_path.iterdir()] == ["badcc"]


# ---- The command ----------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_without_a_compiler_writes_sources(
    small_library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["export", "--library", small_library.folder, "--uncompressed", "--kernels", "*_tn_*,*_tt_*"]
    done = call("hgemm", *words, "--to", tmp_path / "a", "--cc", "absent")
    assert done.returncode == 1 and "the C compiler 'absent' is not installed" in done.stderr and not (tmp_path / "a").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    done = call("hgemm", *words, "--to", tmp_path / "a")
    assert done.returncode == 0 and "2 kernels for sm_80" in done.stdout
    verify = f"hgemm verify --library {small_library.folder}"
    assert done.stderr.splitlines() == [
        "hgemm: the C compiler 'cc' is not installed: wrote the sources; build lib/ with CMake",
        f"hgemm: 2 of 2 kernels have no proof: `{verify} --emulate` proves those in C++, `{verify} --device` checks any on a GPU",
    ]
    done = call("hgemm", *words, "--to", tmp_path / "b", "--require-proof")
    assert done.returncode == 1 and "2 of 2 kernels have no proof, nothing is exported" in done.stderr
    assert not list((tmp_path / "a" / "lib").glob("*.so")) and (tmp_path / "a" / "CMakeLists.txt").is_file()
    done = call("hgemm", *words, "--to", tmp_path / "b", "--json", "--prefix", "9lives")
    assert done.returncode == 2 and "prefix '9lives' is not a valid name" in done.stderr
    done = call("hgemm", "export", "--library", small_library.folder, "--arch", "120", "--to", tmp_path / "b")
    assert done.returncode == 1 and "no variant in" in done.stderr and not (tmp_path / "b").exists()


# ---- Size -----------------------------------------------------------------------------------------------------------


def test_a_kernel_takes_so_little_that_the_catalog_fits(small_library: Library, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvfatbin", reason="nvidia-nvfatbin is not installed")
    library = open_library(small_library.folder)
    done = export(library, tmp_path / "export", ExportOptions(library.symbols, compiler="absent"))
    assert done.image_bytes / done.variants * 200 < MAX_BYTES


def test_the_c_interface_is_found_by_ctypes(paper_export: Path) -> None:
    library = loaded(paper_export)
    assert re.fullmatch(rb"\d+\.\d+\.\d+\S* [0-9a-f]{8}", library.hgemm_version())
    for status in range(19):
        assert library.hgemm_status_string(status).startswith(b"HGEMM_")
    assert library.hgemm_status_string(19) == library.hgemm_status_string(ctypes.c_int(-1)) == b"unknown status"
