"""The folder of an exported C library: its contents, its size, CMake, launches without k, and random problems."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, SMALL, call, executable_of, hgemm
from exports import check_manifest, export_paper, fake_driver, loaded, need_compiler

from generator import __version__
from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.errors import HgemmError, LibraryError, RequestError
from generator.export.c_library import ExportOptions, export
from generator.export.c_sources import fat_binary
from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, HostToolchain, Launch, Region
from generator.proof.machine import STEP_LIMIT
from generator.proof.proving import adversaries_of
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.launch import counter_bytes, grid_x, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.problem import Problem

API = [
    "create",
    "destroy",
    "gemm_ex",
    "last_message",
    "list",
    "prepare",
    "problem_init_sized",
    "reserve_workspaces",
    "run",
    "select",
    "select_for",
    "set_workspace",
    "set_workspace_size",
    "status_string",
    "version",
]
MAX_BYTES = 12 * 2**20


# ---- What is written ------------------------------------------------------------------------------------------------


def test_folder_matches_its_manifest(paper_export: Path, paper_library: Library) -> None:
    assert check_manifest(paper_export) == []
    manifest = json.loads((paper_export / "MANIFEST.json").read_text())
    assert manifest["kernels"].keys() == manifest["keys"].keys()
    assert all(kernel.keys() == {"source", "ptx", "cubin", "launch"} for kernel in manifest["kernels"].values())
    assert manifest["keys"] == {record.symbol: record.key for record in paper_library.records()}
    names = {"include/hgemm.h", "include/hgemm.hpp", "lib/libhgemm.a", "lib/libhgemm.so", "lib/pkgconfig/hgemm.pc"}
    assert names <= manifest["files"].keys() and "lib/cmake/hgemm/hgemm-config.cmake" in manifest["files"]
    (paper_export / "more").write_text("")
    assert check_manifest(paper_export) == ["more"]
    (paper_export / "more").unlink()


def test_two_exports_are_equal_byte_for_byte(paper_library: Library, paper_export: Path, tmp_path: Path) -> None:
    again = export_paper(paper_library, tmp_path / "a place of another length" / "hgemm", compiler="cc")
    assert (again / "MANIFEST.json").read_bytes() == (paper_export / "MANIFEST.json").read_bytes()


def test_compressed_images_are_equal_byte_for_byte_and_small(small_library: Library, tmp_path: Path) -> None:
    """Real kernels, as nvFatbin packs them: a fat binary each, which begins with the magic number that the driver seeks."""
    pytest.importorskip("cuda.bindings.nvfatbin", reason="nvidia-nvfatbin is not installed")
    library = open_library(small_library.folder)
    for name in "ab":
        export(library, tmp_path / name, ExportOptions(library.symbols, compiler="absent"))
    assert (tmp_path / "a" / "MANIFEST.json").read_bytes() == (tmp_path / "b" / "MANIFEST.json").read_bytes()
    blob = (tmp_path / "a" / "src" / "images.bin").read_bytes()
    assert blob[:4] == bytes.fromhex("50ed55ba")
    plain = sum(len(k.image.cubin) + len(k.image.ptx) for k in map(library.kernel, library.symbols))
    assert len(blob) < plain / 2


def test_code_that_nvfatbin_cannot_read_is_named() -> None:
    pytest.importorskip("cuda.bindings.nvfatbin", reason="nvidia-nvfatbin is not installed")
    with pytest.raises(HgemmError, match="hgemm_a: nvFatbin cannot read .*ELF.*: generate it again with --force"):
        fat_binary("hgemm_a", {"89": b"no machine code" * 9}, {"89": b".version 9.0\0"})


def test_symbols_are_hidden_and_nvidia_is_not_linked(paper_export: Path) -> None:
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


def test_an_export_is_not_opened_as_a_library(paper_export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for build in (False, True):
        with pytest.raises(LibraryError, match="is an exported C library: name the library"):
            open_library(paper_export, build=build)
    status, _, err = hgemm(capsys, "list", "--library", paper_export)
    assert status == 1 and "is an exported C library" in err


def test_files_of_other_folders_are_kept(paper_library: Library, tmp_path: Path) -> None:
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


def test_files_that_no_export_wrote_are_never_deleted(small_library: Library, tmp_path: Path) -> None:
    library, to = open_library(small_library.folder), tmp_path / "to"
    options = ExportOptions(library.symbols[:1], sources=True, compiler="absent")
    export(library, to, options)
    export(library, to, options)
    mine = [to / "notes.txt", to / "build" / "main.o", to / "include" / "mine.h", to / "empty"]
    for path in mine[:-1]:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    mine[-1].mkdir()
    before = sorted(to.rglob("*"))
    with pytest.raises(RequestError, match="contains build/, empty/, include/mine.h, notes.txt, which its MANIFEST"):
        export(library, to, options)
    assert sorted(to.rglob("*")) == before and [*tmp_path.iterdir()] == [to]
    (to / "MANIFEST.json").write_text("{}")
    with pytest.raises(RequestError, match="has files but no MANIFEST.json of an export"):
        export(library, to, options)


def test_no_library_is_written_into_an_export(small_library: Library, tmp_path: Path) -> None:
    library, to = open_library(small_library.folder), tmp_path / "to"
    export(library, to, ExportOptions(library.symbols[:1], compiler="absent"))
    before = sorted(to.rglob("*"))
    kernel = small_library.load(library.symbols[0])
    for folder in (to, to / "library"):
        with pytest.raises(LibraryError, match="an exported C library"):
            Library(folder).publish(kernel.record.data, kernel.artefacts)
        assert call("generate", "--arch", "sm_89", "--tile", "128x128x32", "--library", folder).returncode != 0
        assert call("hgemm", "pack", "--nk", "64x64", "--arch", "sm_80", "--to", folder).returncode != 0
    assert sorted(to.rglob("*")) == before


def test_a_damaged_kernel_is_not_exported(small_library: Library, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_library.folder, tmp_path / "library"))
    library = open_library(folder)
    path = folder / library.symbols[0] / "kernel.cubin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LibraryError, match="SHA-256 differs"):
        export(library, tmp_path / "export", ExportOptions(library.symbols, compressed=False))
    assert not (tmp_path / "export").exists()


def test_failed_compilation_leaves_nothing(small_library: Library, tmp_path: Path) -> None:
    need_compiler()
    library = open_library(small_library.folder)
    bad = tmp_path / "badcc"
    bad.write_text("#!/bin/sh\ntest \"$1\" = --version && echo bad 1.0 && exit 0\necho 'x.c: error: no' >&2\nexit 1\n")
    bad.chmod(0o755)
    for compiler in (str(bad), f"env LC_ALL=C {bad}"):
        with pytest.raises(HgemmError, match="(badcc|env) failed: x.c: error: no: choose another compiler with --cc"):
            export(library, tmp_path / "export", ExportOptions(library.symbols, compressed=False, compiler=compiler))
    assert [path.name for path in tmp_path.iterdir()] == ["badcc"]


# ---- The command ----------------------------------------------------------------------------------------------------


def test_without_a_compiler_export_writes_sources(
    small_library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["export", "--library", small_library.folder, "--uncompressed", "--kernels", "*_tn_*,*_tt_*"]
    done = call("hgemm", *words, "--to", tmp_path / "a", "--cc", "absent")
    assert (
        done.returncode == 1
        and "the C compiler 'absent' is not installed" in done.stderr
        and not (tmp_path / "a").exists()
    )
    done = call("hgemm", *words, "--to", tmp_path / "a", "--cc", "false")
    assert done.returncode == 1 and "false --version failed" in done.stderr and not (tmp_path / "a").exists()
    monkeypatch.setenv("CC", "no-such-cc")
    done = call("hgemm", *words, "--to", tmp_path / "a")
    assert done.returncode == 1 and "the C compiler 'no-such-cc' is not installed" in done.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    done = call("hgemm", *words, "--to", tmp_path / "a")
    assert done.returncode == 0 and "2 kernels for sm_80" in done.stdout
    verify = f"hgemm verify --library {small_library.folder}"
    no_compiler, no_proof = done.stderr.splitlines()
    assert no_compiler == "hgemm: the C compiler 'cc' is not installed: wrote the sources; build lib/ with CMake"
    assert no_proof.startswith("hgemm: 2 of 2 kernels have no proof: ") and f"`{verify} --device`" in no_proof
    done = call("hgemm", *words, "--to", tmp_path / "b", "--require-proof")
    assert done.returncode == 1 and "2 of 2 kernels have no proof" in done.stderr
    assert not list((tmp_path / "a" / "lib").glob("*.so")) and (tmp_path / "a" / "CMakeLists.txt").is_file()
    done = call("hgemm", *words, "--to", tmp_path / "b", "--json", "--prefix", "9lives")
    assert done.returncode == 2 and "prefix '9lives' is not a valid name" in done.stderr
    done = call("hgemm", "export", "--library", small_library.folder, "--arch", "120", "--to", tmp_path / "b")
    assert done.returncode == 1 and "no kernel in" in done.stderr and not (tmp_path / "b").exists()


def test_the_command_notes_folders_without_a_record(small_library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    shutil.copytree(small_library.folder, folder)
    lost = sorted(path.parent for path in folder.glob("*/record.json"))[0]
    (lost / "record.json").unlink()
    done = call("hgemm", "export", "--library", folder, "--to", tmp_path / "export", "--cc", "absent")
    assert f"1 folder of {folder} has no record.json, such as {lost.name}: build it again" in done.stderr


# ---- Size -----------------------------------------------------------------------------------------------------------


def test_kernels_are_small_enough_for_the_catalog(small_library: Library, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvfatbin", reason="nvidia-nvfatbin is not installed")
    library = open_library(small_library.folder)
    done = export(library, tmp_path / "export", ExportOptions(library.symbols, compiler="absent"))
    assert done.image_bytes / done.kernels * 200 < MAX_BYTES


def test_the_c_interface_is_found_by_ctypes(paper_export: Path) -> None:
    library = loaded(paper_export)
    assert re.fullmatch(rb"\d+\.\d+\.\d+\S* [0-9a-f]{8}", library.hgemm_version())
    for status in range(20):
        assert library.hgemm_status_string(status).startswith(b"HGEMM_")
    assert library.hgemm_status_string(20) == library.hgemm_status_string(ctypes.c_int(-1)) == b"unknown status"


# ==== CMake and pkg-config ============================================================================================

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


@pytest.mark.slow
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


def test_find_package_without_built_libraries_names_the_fix(small_library: Library, tmp_path: Path) -> None:
    library = open_library(small_library.folder)
    export(library, tmp_path / "export", ExportOptions(library.symbols, compressed=False, compiler="absent"))
    source = project(tmp_path / "source", "find_package(hgemm CONFIG REQUIRED)", "hgemm::hgemm")
    done = cmake("-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'export'}")
    message = " ".join(done.stderr.split())
    assert done.returncode != 0 and re.search(
        r"libhgemm\.so\.\S+ does not exist: build it with add_subdirectory", message
    ), done.stderr


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


# ==== Products without k ==============================================================================================

M, N, LDD = 37, 43, 48
KERNEL_OPTIONS = (
    {**SMALL, "layout": "tn"},
    {**SMALL, "layout": "nt", "stages": "1"},
    {**SMALL, "layout": "nn", "align": "1"},
    {**SMALL, "layout": "tt", "align_a": "2", "schedule": "persistent", "stages": "4"},
    {**SMALL, "layout": "tn", "tile": "64x64x64", "stages": "3", "schedule": "split_k:4"},
    {**SMALL, "layout": "tn", "tile": "64x64x32", "stages": "4", "fragment_stages": "1"},
    {**SMALL, "layout": "tn", "schedule": "stream_k"},
)


@pytest.mark.parametrize("options", KERNEL_OPTIONS, ids=lambda options: "-".join(options.values()))
def test_k_of_0_reads_nothing(options: dict[str, str], host_toolchain: HostToolchain) -> None:
    (plan,) = sweep([options]).plans
    kernel = emit(plan, templates_folder())
    traits = LaunchTraits.of(planned_sections(kernel))
    executable = executable_of(kernel, host_toolchain)
    for adversary in adversaries_of(kernel.symbol, 0):
        d, guard = emulated(traits, executable, adversary)
        assert (d[:, :N] == 2 * np.arange(M * N).reshape(M, N) % 1024).all(), adversary
        assert (guard == 7).all()


def emulated(traits: LaunchTraits, executable: Executable, adversary: Adversary) -> tuple[np.ndarray, np.ndarray]:
    """Launch D = 2 C in place, with no A and B anywhere; return D and what lies beside it."""
    d = np.full((M, LDD), 7, np.float16)
    d[:, :N] = (2 * np.arange(M * N).reshape(M, N) % 1024) / 2
    size = workspace_bytes(traits, M, N)
    workspace = np.zeros(size + 256, np.uint8)
    at = -(-workspace.ctypes.data // 256) * 256
    place = d.ctypes.data
    problem = Problem(
        *(M, N, -traits.tile_k),
        c=place,
        d=place,
        ldc=LDD,
        ldd=LDD,
        workspace=at if size else 0,
        alpha=0.0,
        beta=2.0,
    )
    flags = abi.READABLE | abi.WRITABLE | abi.INITIALISED
    regions = [Region("D", place, M, 2 * N, 2 * LDD, 1, 0, 2, flags)]
    if size:
        counters = counter_bytes(traits, M, N)
        regions.append(Region("counters", at, 1, counters, counters, 1, 0, 4, flags))
        sums = size - counters
        regions.append(Region("sums", at + counters, 1, sums, sums, 1, 0, 4, abi.READABLE | abi.WRITABLE))
    launch = Launch(
        grid=(grid_x(traits, M, N, 1, 3), 1, 1),
        cluster=(1, 1, 1),
        threads=traits.threads,
        smem_bytes=traits.smem_bytes,
        parameters=(problem.pack(),),
        regions=tuple(regions),
        resident_ctas=4,
        step_limit=STEP_LIMIT,
    )
    report = executable.run(launch, adversary)
    assert not report.findings, [str(finding) for finding in report.findings]
    return d, d[:, N:]


# ==== Random problems =================================================================================================

PROBLEMS = 250_000
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
REACHED = (0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
"""The statuses that a problem can have, each of which the draw must meet."""


@pytest.fixture(scope="module")
def fuzzer(paper_export: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("fuzz")
    sources = sorted((paper_export / "src").glob("*.c"))
    command = [
        *(
            need_compiler(),
            "-std=gnu11",
            "-O1",
            *SANITIZERS,
            f"-I{paper_export / 'include'}",
            f"-I{paper_export / 'src'}",
        ),
        f'-DHGEMM_IMAGES="{paper_export / "src" / "images.bin"}"',
        *map(str, [Path(__file__).parent / "fuzz_export.c", *sources]),
        *("-o", str(folder / "fuzz"), "-ldl", "-lpthread"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "cannot find -lasan" in done.stderr or "libasan" in done.stderr:
        pytest.skip("this C compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver(folder / "driver")), "FAKE_LAZY": "1"}
    return folder / "fuzz", env


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(1, 5))
def test_random_problems_launch_or_give_a_message(seed: int, fuzzer: tuple[Path, dict[str, str]]) -> None:
    program, env = fuzzer
    done = subprocess.run([program, str(PROBLEMS), str(seed)], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    answers = {int(line.split()[0]): int(line.split()[1]) for line in done.stdout.splitlines()}
    assert sum(answers.values()) == PROBLEMS
    assert all(answers[status] for status in REACHED), answers
    assert answers[0] > PROBLEMS // 10, "the draw is too wild"
