"""The functions of cuBLAS in an exported library, called on a driver without a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, made, made_once
from exports import FAST_CC, GELU, TESTS, compiled, fake_driver, need_compiler, paper_library

from generator.build.emit import emit
from generator.build.pipeline import Settings
from generator.build.toolchain import templates_folder
from generator.errors import RequestError
from generator.export.blas import forwarded_names
from generator.export.c_library import ExportOptions, export
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.epilogue_language import as_epilogue
from hgemm.library import open_library

KERNELS = {"arch": "sm_80", "tile": "64x64x32", "dtype": "f16,bf16,tf32", "layout": "tn,nn,nt,tt", "align": "1"}
HALVES = {**KERNELS, "dtype": "f16,bf16"}
EPILOGUES = ({**HALVES, "activation": "relu,gelu"}, {**HALVES, "bias": "row", "activation": "none,relu,gelu"})
POINTERS = {**KERNELS, "pointer_arrays": "on"}
BY_TANH = {**HALVES, "layout": "tn", "epilogue": as_epilogue(GELU).text}


@pytest.fixture(scope="module")
def blas(shared: Path) -> Path:
    """An export with libhgemm_blas.so, of planned kernels, and beside it the driver and the cuBLAS without a GPU."""
    need_compiler()

    def make(folder: Path) -> None:
        kernels = [emit(plan, templates_folder()) for plan in sweep([KERNELS, *EPILOGUES, POINTERS, BY_TANH]).plans]
        library = open_library(paper_library(folder / "library", kernels).folder)
        export(library, folder / "c", ExportOptions(library.symbols, compressed=False, blas=True))
        fake_driver(folder / "driver")
        compiled("-std=gnu11", "-shared", "-fPIC", TESTS / "fake_cublas.c", "-o", folder / "libreal.so")

    return made_once(shared / "blas_export", make)


def run(blas: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    places = {"LD_LIBRARY_PATH": str(blas / "driver"), "FAKE_CAPABILITY": "80", "HGEMM_BLAS_FALLBACK": "none"}
    return subprocess.run(
        [*map(str, arguments)], capture_output=True, text=True, timeout=120, env={**os.environ, **places, **env}
    )


def tried(
    blas: Path, trial: str, library: str = "lib/libhgemm_blas.so", **env: str
) -> subprocess.CompletedProcess[str]:
    trials = "lt_trials.py" if trial.startswith("lt_") else "blas_trials.py"
    script = (sys.executable, TESTS / trials, blas / "c" / library, trial, blas / "libreal.so")
    done = run(blas, *script, PYTHONPATH=str(ROOT), **env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


WITHOUT = ("f16 f16 f32 compute 68", "bf16 bf16 f32 compute 68")
"""Types that no kernel of `blas` has."""
LIGHT = ("lt_products", "lt_statuses", "lt_descriptors", "lt_heuristics")
"""Trials of cuBLASLt."""


@pytest.mark.parametrize(
    "trial", ["products", "forms", "pointers", "captured", "edges", "statuses", "settings", "imports", *LIGHT]
)
def test_calls_compute_and_have_the_status_that_cublas_documents(blas: Path, trial: str) -> None:
    results = json.loads(tried(blas, trial).stdout)
    assert results and not [result for result in results if result[1] != result[2]]


@pytest.mark.gpu
def test_graphs_capture_arrays_of_pointers(settings: Settings, tmp_path: Path) -> None:
    """On built kernels: the ones of `blas` have no code that a GPU can run."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    need_compiler()
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    requests = ({**texts, "arch": arch} for texts in (KERNELS, POINTERS))
    symbols = [outcome.symbol for request in requests for outcome in made(request, settings, processes=2)]
    export(open_library(settings.library.folder), tmp_path / "c", ExportOptions(symbols, compressed=False, blas=True))
    script = (sys.executable, TESTS / "blas_trials.py", tmp_path / "c" / "lib" / "libhgemm_blas.so", "graphs")
    env = {**os.environ, "HGEMM_BLAS_FALLBACK": "none", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*map(str, script)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert len(results) == 64 and not [result for result in results if result[1] != result[2]]


@pytest.mark.parametrize("trial", ["forwarded", "lt_forwarded"])
def test_the_real_cublas_serves_the_rest(blas: Path, trial: str) -> None:
    results = json.loads(tried(blas, trial, HGEMM_BLAS_FALLBACK=str(blas / "libreal.so")).stdout)
    assert results and not [result for result in results if result[1] != result[2]]


def test_log_has_each_problem_once_and_a_summary(blas: Path) -> None:
    lines = tried(blas, "forms", HGEMM_BLAS_LOG="1").stderr.splitlines()
    *problems, summary = [line.removeprefix("hgemm_blas: ") for line in lines]
    assert len(set(problems)) == len(problems) > 10
    assert any(
        line.startswith("cublasHgemm TN m 5 n 7 k 9 batch 1") and ": hgemm, hgemm_sm80_" in line for line in problems
    )
    assert any(line.startswith("cublasSgemm_v2 TN") and ": hgemm without tensor cores, " in line for line in problems)
    found = re.fullmatch(r"(\d+) products .* cores, (\d+) without, 0 by cuBLAS, 0 refused; 0 calls of .*", summary)
    assert found and int(found[1]) > 10 and int(found[2]) > 10, summary


def test_log_names_the_reason_for_simt_products(blas: Path) -> None:
    lines = tried(blas, "products", HGEMM_BLAS_LOG="1").stderr.splitlines()
    servers = {
        types: {line.partition(f" {types}: ")[2] for line in lines if f" {types}: " in line} for types in WITHOUT
    }
    assert servers.keys() == {*WITHOUT} and all(servers.values())
    lacks = "hgemm without tensor cores, no kernel for sm_80 computes "
    assert all(reason.startswith(lacks) for reasons in servers.values() for reason in reasons), servers
    assert any(
        line.endswith(" compute 68: hgemm without tensor cores, the program does not allow tf32") for line in lines
    )


@pytest.mark.parametrize("trial", ["forwarded", "lt_forwarded"])
def test_log_names_the_reason_for_forwarded_products(blas: Path, trial: str) -> None:
    lines = tried(blas, trial, HGEMM_BLAS_FALLBACK=str(blas / "libreal.so"), HGEMM_BLAS_LOG="1").stderr.splitlines()
    found = [line.partition(": cuBLAS") for line in lines if " batch " in line and ": cuBLAS" in line]
    assert len(found) >= 2 and all(re.fullmatch(r", \w.* \w.*", reason) for _, _, reason in found)


def test_arrays_of_pointers_are_served_on_tensor_cores_if_rows_are_multiples_of_16_bytes(blas: Path) -> None:
    """The alignment of their matrices, which only the GPU knows, is likely then."""
    lines = tried(blas, "captured", HGEMM_BLAS_LOG="1").stderr.splitlines()
    servers = {
        k: {
            line.rpartition(": ")[2].partition(",")[0]
            for line in lines
            if f" k {k} batch 3 " in line and " f16 f16 f16 " in line
        }
        for k in (9, 12, 16)
    }
    assert servers == {9: {"hgemm without tensor cores"}, 12: {"hgemm without tensor cores"}, 16: {"hgemm"}}


@pytest.mark.parametrize("trial", ["statuses", "lt_statuses"])
def test_log_names_the_reason_for_failed_calls(blas: Path, trial: str) -> None:
    lines = tried(blas, trial, HGEMM_BLAS_LOG="1").stderr.splitlines()
    failed = [line for line in lines if "CUBLAS_STATUS_INVALID_VALUE" in line]
    assert len(set(failed)) == len(failed) > 5 and re.search(r"; \d+ calls failed$", lines[-1])
    assert not [line for line in failed if not re.search(r": CUBLAS_STATUS_INVALID_VALUE, \w.* \w", line)]
    if trial == "statuses":
        assert any(line.endswith("lda is less than the rows of A") and "NN m 4 n 5 k 6" in line for line in failed)


def test_a_program_without_calls_has_no_log(blas: Path) -> None:
    library = blas / "c" / "lib" / "libhgemm_blas.so"
    done = run(blas, sys.executable, "-c", "print(1)", LD_PRELOAD=str(library), HGEMM_BLAS_LOG="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_log_names_the_reason_for_a_missing_handle(blas: Path) -> None:
    """A program often hides the status of cublasCreate."""
    library = blas / "c" / "lib" / "libhgemm_blas.so"
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cublasCreate_v2(ctypes.byref(ctypes.c_void_p()))"
    done = run(blas, sys.executable, "-c", script, library, HGEMM_BLAS_LOG="1", FAKE_CAPABILITY="70")
    assert "hgemm_blas: cublasCreate_v2: no kernel" in done.stderr and "sm_70" in done.stderr
    assert not run(blas, sys.executable, "-c", script, library, FAKE_CAPABILITY="70").stderr


def test_fallback_that_is_no_cublas_is_reported(blas: Path) -> None:
    done = tried(blas, "forms", HGEMM_BLAS_FALLBACK="/absent/libcublas.so")
    assert "HGEMM_BLAS_FALLBACK is /absent/libcublas.so, which is not cuBLAS" in done.stderr
    own = tried(blas, "forms", HGEMM_BLAS_FALLBACK=str(blas / "c" / "lib" / "libhgemm_blas.so"))
    assert "it has no cublasCreate_v2 of its own" in own.stderr


def test_log_names_cublaslt_epilogues(blas: Path) -> None:
    lines = tried(blas, "lt_products", HGEMM_BLAS_LOG="1").stderr
    for epilogue in (" bias:", " relu:", " bias relu:", " bias gelu:"):
        assert re.search(rf"cublasLtMatmul TN m 5 n 7 k 9 batch 1 .*{epilogue} hgemm, hgemm_sm80_", lines), epilogue


@pytest.mark.parametrize("major", [12, 13])
def test_programs_find_the_library_as_cublaslt(blas: Path, tmp_path: Path, major: int) -> None:
    """A program that was linked with a cuBLASLt whose symbols have versions starts with ours, and none other is loaded."""
    name = f"libcublasLt.so.{major}"
    (tmp_path / "map").write_text(f"{name} {{ global: cublasLt*; }};\n")
    (tmp_path / "real.c").write_text("unsigned long cublasLtGetVersion(void) { return 1; }\n")
    (tmp_path / "main.c").write_text(
        "unsigned long cublasLtGetVersion(void);\nint main(void) { return (int)(cublasLtGetVersion() / 10000); }\n"
    )
    versioned = (f"-Wl,--version-script={tmp_path / 'map'}", f"-Wl,-soname,{name}")
    compiled("-shared", "-fPIC", tmp_path / "real.c", *versioned, "-o", tmp_path / name)
    compiled(tmp_path / "main.c", tmp_path / name, "-o", tmp_path / "main")
    done = run(blas, tmp_path / "main", LD_LIBRARY_PATH=f"{blas / 'c' / 'lib' / 'blaslt'}:{blas / 'driver'}")
    assert (done.returncode, done.stderr) == (major, "")
    assert len(json.loads(tried(blas, "lt_products", f"lib/blaslt/{name}").stdout)) > 10


@pytest.mark.parametrize("major", [12, 13])
def test_programs_find_the_library_under_cublas_names(blas: Path, tmp_path: Path, major: int) -> None:
    """A program that was linked with a cuBLAS whose symbols have versions starts with ours, and gets its version."""
    if not shutil.which("readelf"):
        pytest.skip("no readelf here")
    name = f"libcublas.so.{major}"
    (tmp_path / "map").write_text(f"{name} {{ global: cublas*; }};\n")
    (tmp_path / "real.c").write_text("int cublasGetProperty(int type, int *value) { *value = 0; return type; }\n")
    (tmp_path / "main.c").write_text(
        "int cublasGetProperty(int type, int *value);\n"
        "int main(void) { int major = -1; return cublasGetProperty(0, &major) ? 99 : major; }\n"
    )
    versioned = (f"-Wl,--version-script={tmp_path / 'map'}", f"-Wl,-soname,{name}")
    compiled("-shared", "-fPIC", tmp_path / "real.c", *versioned, "-o", tmp_path / name)
    compiled(tmp_path / "main.c", tmp_path / name, "-o", tmp_path / "main")
    assert f"Name: {name}" in run(blas, "readelf", "-V", tmp_path / "main").stdout
    done = run(blas, tmp_path / "main", LD_LIBRARY_PATH=f"{blas / 'c' / 'lib' / 'blas'}:{blas / 'driver'}")
    assert (done.returncode, done.stderr) == (major, "")
    assert len(json.loads(tried(blas, "forms", f"lib/blas/{name}").stdout)) > 10


def test_every_listed_function_is_exported_once(blas: Path) -> None:
    import ctypes

    names = forwarded_names((templates_folder() / "capi" / "blas" / "forwarded.txt").read_text())
    assert len(set(names)) == len(names) > 600
    library = ctypes.CDLL(str(blas / "c" / "lib" / "libhgemm_blas.so"))
    assert not [name for name in names if not hasattr(library, name)]


def test_a_library_of_cublas_functions_needs_a_compiler(small_library: Library, tmp_path: Path) -> None:
    library = open_library(small_library.folder)
    with pytest.raises(RequestError, match="--blas needs a C compiler"):
        export(library, tmp_path / "c", ExportOptions(library.symbols, compressed=False, compiler="absent", blas=True))


@pytest.mark.slow
def test_a_prefix_renames_it(small_library: Library, tmp_path: Path) -> None:
    need_compiler()
    library = open_library(small_library.folder)
    options = ExportOptions(library.symbols, "mine", compressed=False, compiler=FAST_CC, blas=True)
    export(library, tmp_path / "c", options)
    assert (tmp_path / "c" / "lib" / "libmine_blas.so").is_file()
    text = (tmp_path / "c" / "src" / "blas" / "log.c").read_text()
    assert "MINE_BLAS_LOG" in text and "HGEMM" not in text


@pytest.mark.slow
def test_random_calls_neither_crash_nor_miss_their_status(blas: Path, tmp_path: Path) -> None:
    """FUZZ_CALLS (default 20000) calls with random arguments, under the address and undefined-behaviour sanitizers."""
    source = blas / "c" / "src"
    flags = ("-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    defines = (f'-DHGEMM_IMAGES="{source / "images.bin"}"', f'-DHGEMM_SIMT_IMAGE="{source / "blas" / "simt.bin"}"')
    includes = (f"-I{blas / 'c' / 'include'}", f"-I{source}")
    sources = (TESTS / "fuzz_blas.c", *sorted(source.glob("*.c")), *sorted((source / "blas").glob("*.c")))
    program = tmp_path / "fuzz"
    command = [need_compiler(), *flags, *defines, *includes, *sources, "-o", program, "-ldl", "-lpthread", "-lm"]
    built = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if "asan" in built.stderr or "ubsan" in built.stderr:
        pytest.skip("this C compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    calls = os.environ.get("FUZZ_CALLS", "20000")
    done = run(blas, program, calls, FAKE_LAZY="1", ASAN_OPTIONS="detect_leaks=0")
    assert done.returncode == 0 and f"{calls} calls" in done.stdout, done.stdout + done.stderr[-3000:]
