"""An export as other build systems find it: find_package, add_subdirectory and pkg-config, configured, built and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from exports import export_paper, fake_driver, need_compiler

from generator import __version__
from generator.export.c_library import ExportOptions, export
from generator.store.library import Library
from hgemm.library import open_library

EXAMPLES = ROOT / "examples"
KINDS = ("hgemm", "hgemm_static")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver(tmp_path_factory.mktemp("driver"))


def cmake(*arguments: object) -> subprocess.CompletedProcess[str]:
    if not shutil.which("cmake"):
        pytest.skip("cmake is missing: pip install cmake ninja")
    need_compiler()
    generator = ["-G", "Ninja"] if shutil.which("ninja") and "-S" in arguments else []
    return subprocess.run(["cmake", *generator, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def configured_and_built(source: Path, build: Path, *settings: str) -> Path:
    done = cmake("-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *settings)
    assert done.returncode == 0, done.stderr
    done = cmake("--build", build)
    assert done.returncode == 0 and "warning" not in done.stdout, done.stdout
    return build


def all_right(build: Path, driver: Path) -> None:
    for kind in KINDS:
        env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
        done = subprocess.run([build / f"multiply_{kind}"], capture_output=True, text=True, env=env, timeout=60)
        assert done.returncode == 0 and done.stdout.count(": 0 of ") == 8, done.stdout + done.stderr


def test_find_package_finds_both_libraries(paper_export: Path, driver: Path, tmp_path: Path) -> None:
    all_right(configured_and_built(EXAMPLES / "cmake", tmp_path, f"-DCMAKE_PREFIX_PATH={paper_export}"), driver)


def test_add_subdirectory_builds_both_libraries(paper_export: Path, driver: Path, tmp_path: Path) -> None:
    all_right(configured_and_built(EXAMPLES / "cmake_subdirectory", tmp_path, f"-DHGEMM={paper_export}"), driver)


def project(folder: Path, find: str, library: str) -> Path:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(other LANGUAGES C)\n"
        f"{find}\nadd_executable(other main.c)\ntarget_link_libraries(other PRIVATE {library})\n"
    )
    (folder / "main.c").write_text("#include <stddef.h>\nint main(void) { return 0; }\n")
    return folder


@pytest.mark.parametrize(("version", "found"), [("", True), (__version__, True), ("99.0", False)])
def test_the_package_has_a_version(paper_export: Path, tmp_path: Path, version: str, found: bool) -> None:
    source = project(tmp_path / "source", f"find_package(hgemm {version} CONFIG REQUIRED)", "hgemm::hgemm")
    done = cmake("-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={paper_export}")
    assert (done.returncode == 0) == found, done.stderr
    assert found or "99.0" in done.stderr


def test_a_prefix_names_the_package_and_its_targets(small_library: Library, tmp_path: Path) -> None:
    export_paper(small_library, tmp_path / "export", name="mygemm")
    source = project(tmp_path / "source", "find_package(mygemm CONFIG REQUIRED)", "mygemm::mygemm_static")
    configured_and_built(source, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'export'}")


def test_without_built_libraries_find_package_says_what_to_do(small_library: Library, tmp_path: Path) -> None:
    library = open_library(small_library.folder)
    export(library, tmp_path / "export", ExportOptions(library.symbols, compressed=False, compiler="absent"))
    source = project(tmp_path / "source", "find_package(hgemm CONFIG REQUIRED)", "hgemm::hgemm")
    done = cmake("-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'export'}")
    told = " ".join(done.stderr.split())
    assert done.returncode != 0 and "libhgemm.so does not exist: build it with add_subdirectory" in told, done.stderr


def test_pkg_config_finds_it(paper_export: Path, driver: Path, tmp_path: Path) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config here")
    env = {**os.environ, "PKG_CONFIG_PATH": str(paper_export / "lib" / "pkgconfig")}
    asked = [["--cflags", "--libs", "hgemm"], ["--modversion", "hgemm"]]
    flags, version = (
        subprocess.run(["pkg-config", *words], capture_output=True, text=True, env=env, check=True).stdout.split()
        for words in asked
    )
    assert version == [__version__]
    program = tmp_path / "multiply"
    command = [need_compiler(), "-std=c99", EXAMPLES / "c" / "multiply.c", "-o", program, *flags, "-ldl"]
    subprocess.run([*command, f"-Wl,-rpath,{paper_export / 'lib'}"], check=True, capture_output=True)
    done = subprocess.run([program], capture_output=True, env={**os.environ, "LD_LIBRARY_PATH": str(driver)})
    assert done.returncode == 0
