"""The exported C library on a GPU: its example, memcheck, the default cases of variants as C chooses them, and a graph."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from exports import ByC, CChoice, CProblem, compiled, loaded, need_compiler

from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.catalog import load_catalog
from generator.export.c_library import ExportOptions, export
from generator.store.library import Library
from generator.sweep import over, sweep
from hgemm.cases import default_cases
from hgemm.device import open_device
from hgemm.library import open_library
from hgemm.problem import LAYOUTS, Kind, Problem
from hgemm.selection_query import SelectionQuery

pytestmark = pytest.mark.gpu
GROUPS = ("general", "unaligned", "small_m", "split_k")
RESIDENT_CTAS = 264


def _fatbin() -> bool:
    try:
        from cuda.bindings import nvfatbin

        nvfatbin.version()
    except (ImportError, RuntimeError):
        return False
    return True


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Kernels of the catalog for this GPU, those for sm_90a too where it has them."""
    made = Library(tmp_path_factory.mktemp("gpu") / "library")
    capability = open_device().capability
    wanted = [over(texts, {"arch": "sm_{}{}".format(*capability)}) for texts in load_catalog(GROUPS)]
    wanted += load_catalog(["hopper"]) if capability == (9, 0) else []
    outcomes = [outcome for _, outcome in make(sweep(wanted).plans, Settings(made, templates_folder()), processes=8)]
    assert outcomes and not [outcome.error for outcome in outcomes if outcome.error]
    return made


@pytest.fixture(scope="module", params=["compressed", "plain"])
def exported(request: pytest.FixtureRequest, library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_compiler()
    if request.param == "compressed" and not _fatbin():
        pytest.skip("nvidia-nvfatbin is not installed: images are not compressed")
    opened = open_library(library.folder)
    to = tmp_path_factory.mktemp(request.param) / "hgemm"
    export(opened, to, ExportOptions(opened.symbols, compressed=request.param == "compressed"))
    return to


@pytest.fixture(scope="module")
def example(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("example") / "multiply"
    source, static = ROOT / "examples" / "c" / "multiply.c", exported / "lib" / "libhgemm.a"
    compiled("-std=c99", f"-I{exported / 'include'}", source, "-o", program, static, "-ldl", "-lpthread")
    return program


def test_the_examples_products_are_right(example: Path) -> None:
    done = subprocess.run([example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count(": 0 of ") == 8, done.stdout + done.stderr


def test_memcheck_finds_nothing_in_the_example(example: Path) -> None:
    if not shutil.which("compute-sanitizer"):
        pytest.skip("no compute-sanitizer here")
    command = ["compute-sanitizer", "--tool", "memcheck", "--leak-check", "full", "--error-exitcode", "9", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    leaks = [line for line in done.stdout.splitlines() if "Leaked" in line]
    assert done.returncode == 0 and not leaks, done.stdout[-2000:]


@pytest.mark.parametrize("align", [8, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_default_cases_pass_as_c_chooses(exported: Path, library: Library, layout: str, align: int) -> None:
    """With guard bands and poison around every operand, whichever kernel C takes for it."""
    from hgemm.verify import CheckOptions, Trial

    opened = open_library(library.folder)
    arch = "sm_{}{}".format(*open_device().capability)
    wanted = f"_{arch.replace('_', '')}_{layout}_f16_f32_f16_"
    symbol = next(name for name in opened.symbols if wanted in name and f"_a{align}{align}{align}_" in name)
    traits = opened.kernel(symbol).traits
    kernel = ByC(loaded(exported), traits)
    used = set()
    try:
        for case in default_cases(traits, RESIDENT_CTAS):
            trial = Trial(kernel, case, open_device(), CheckOptions(), "normal")
            try:
                found = trial.check()
            finally:
                trial.free()
            used.add(kernel.chosen)
            assert found.passed, f"{kernel.chosen}: {found}"
    finally:
        kernel.close()
    assert used


def test_split_k_is_taken_and_right_twice(exported: Path, library: Library) -> None:
    from hgemm.cases import Case, Shape
    from hgemm.verify import CheckOptions, Trial

    opened = open_library(library.folder)
    traits = next(opened.kernel(name).traits for name in opened.symbols if "splitk4" in name and "_sm90a_" not in name)
    kernel = ByC(loaded(exported), traits)
    trial = Trial(kernel, Case(Shape(64, 64, 65536), beta=1.0), open_device(), CheckOptions(), "integer")
    try:
        assert trial.check().passed and "splitk" in kernel.chosen, kernel.chosen
    finally:
        trial.free()
        kernel.close()


def test_a_launch_is_captured_in_a_graph(exported: Path, library: Library) -> None:
    torch = pytest.importorskip("torch")
    opened = open_library(library.folder)
    c = loaded(exported)
    kernel = ByC(c, opened.kernel(opened.symbols[0]).traits)
    x, w = (torch.randn(rows, 512, device="cuda", dtype=torch.float16) for rows in (256, 384))
    y = torch.zeros(256, 384, device="cuda", dtype=torch.float16)
    problem = Problem(256, 384, 512, a=x.data_ptr(), b=w.data_ptr(), d=y.data_ptr(), lda=512, ldb=512, ldd=384)
    given = CProblem.of(Kind(), problem, 0)
    assert c.hgemm_prepare(kernel.handle, ctypes.byref(given)) == 0, c.hgemm_last_message()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert c.hgemm_run(kernel.handle, ctypes.byref(given), stream) == 0, c.hgemm_last_message()
    assert not y.any(), "captured, not run"
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert (y.double() - x.double() @ w.double().t()).abs().max() < 0.1
    kernel.close()


def test_python_on_this_gpu_chooses_as_c_does(exported: Path, library: Library) -> None:
    """The device as the driver describes it to either."""
    from hgemm.selection_query import Target

    opened, target = open_library(library.folder), Target.of(open_device())
    kernel = ByC(loaded(exported), opened.kernel(opened.symbols[0]).traits)
    for m in (1, 16, 100, 256, 1000, 4096):
        for layout in LAYOUTS:
            problem = Problem(m, 4096, 1024, lda=1024, ldb=1024, ldd=4096)
            if layout[0] == "n":
                problem = replace(problem, lda=-(-m // 8) * 8)
            problem = problem if layout[1] == "n" else replace(problem, ldb=4096)
            given, choice = CProblem.of(Kind(layout), problem, 0), CChoice()
            assert kernel.library.hgemm_select(kernel.handle, ctypes.byref(given), ctypes.byref(choice)) == 0
            assert choice.symbol.decode() == opened.select(SelectionQuery.of(Kind(layout), problem), target).symbol
    kernel.close()
