"""On a GPU: launches, the benchmark, the exported library, matmul and the operator of torch."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import ROOT, made
from exports import ByC, CChoice, CProblem, compiled, loaded, need_compiler

import hgemm
from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.catalog import load_catalog
from generator.device_check import CODES, open_kernel
from generator.export.c_library import ExportOptions, export
from generator.store.library import Library
from generator.store.library import Library as Store
from generator.sweep import overridden, sweep
from hgemm import Kernel, ProblemError
from hgemm.bench.baselines import Torch
from hgemm.bench.contenders import query_of
from hgemm.bench.protocol import Protocol
from hgemm.bench.runner import BenchPlan, run
from hgemm.bench.work import Work
from hgemm.cases import Case, Shape, default_cases
from hgemm.device import checked, choose_code, driver, open_device
from hgemm.errors import UnsupportedError
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.problem import ACTIVATIONS, Kind, LaunchOptions, Problem
from hgemm.selection_query import SelectionQuery, Target
from hgemm.tuning.runner import PROTOCOL, LibraryCandidates, TunePlan
from hgemm.tuning.runner import run as tune
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

pytestmark = pytest.mark.gpu
LAYOUTS = ("tn", "nn", "nt", "tt")


def kernel_of(library: Library, layout: str, code: str = "auto") -> Kernel:
    symbols = [record.symbol for record in library.records() if record.data["spec"]["layout"] == layout]
    return open_kernel(library, symbols[0], code)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_default_case_passes(small_library: Library, layout: str) -> None:
    from hgemm.verification import verify

    kernel, device = kernel_of(small_library, layout), open_device()
    for case in default_cases(kernel.traits, kernel.prepare().resident_ctas):
        found = verify(kernel, case, device)
        assert found.passed, found


@pytest.mark.parametrize("code", CODES)
def test_cubin_and_ptx_load_on_supported_gpus(small_library: Library, code: str) -> None:
    kernel = kernel_of(small_library, "tn", code)
    try:
        choose_code(kernel.image, open_device().capability)
    except UnsupportedError as unfit:
        with pytest.raises(UnsupportedError, match=str(unfit)):
            kernel.prepare()
    else:
        assert kernel.prepare().resident_ctas >= open_device().sms


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_tensors_multiply(small_library: Library, layout: str) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(small_library, layout)
    a = torch.randn(3, 100, 72, device="cuda", dtype=torch.float16)
    b = torch.randn(72, 40, device="cuda", dtype=torch.float16)
    out = torch.full((3, 100, 48), 7, device="cuda", dtype=torch.float16)
    a_stored = a if layout[0] == "t" else _padded(a.transpose(1, 2), torch).transpose(1, 2)
    b_stored = b if layout[1] == "t" else b.t().contiguous().t()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    assert kernel(a_stored, b_stored, out[:, :, :40], alpha=0.5, stream=stream) is not None
    stream.synchronize()
    expected = 0.5 * (a.double() @ b.double())
    assert (out[:, :, :40].double() - expected).abs().max() < 0.02 and (out[:, :, 40:] == 7).all()


def _padded(matrices, torch):
    """Return a copy whose rows are a multiple of 8 elements apart."""
    wide = torch.empty(*matrices.shape[:-1], -(-matrices.shape[-1] // 8) * 8, device="cuda", dtype=matrices.dtype)
    wide[..., : matrices.shape[-1]] = matrices
    return wide[..., : matrices.shape[-1]]


def test_a_launch_can_be_captured_in_a_graph(small_library: Library) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(small_library, "tn")
    a, w = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.zeros(64, 64, device="cuda", dtype=torch.float16)
    kernel.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, w.t(), out, stream=torch.cuda.current_stream())
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert (out.double() - a.double() @ w.double().t()).abs().max() < 0.03


@pytest.mark.parametrize(("m", "n", "k"), [(70016, 64, 32768), (70016, 32768, 32)])
def test_offsets_beyond_32_bits_are_right(small_library: Library, m: int, n: int, k: int) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("this needs 16 GiB of GPU memory")
    kernel = kernel_of(small_library, "tn")
    a, w = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    assert max(a.numel(), out.numel()) > 2**31
    torch.cuda.synchronize()
    kernel(a, w.t(), out)
    torch.cuda.synchronize()
    for rows in (slice(0, 40), slice(m // 2, m // 2 + 40), slice(m - 40, m)):
        expected = a[rows].double() @ w.double().t()
        assert ((out[rows].double() - expected).abs() < 2e-3 * expected.abs() + 2e-6 * k + 1e-3).all()
    assert torch.isfinite(out).all()


def test_cupy_arrays_multiply(small_library: Library) -> None:
    cupy = pytest.importorskip("cupy")
    kernel = kernel_of(small_library, "tt")
    a, b = cupy.random.randn(33, 64).astype("f2"), cupy.random.randn(64, 24).astype("f2")
    out = cupy.zeros((33, 24), "f2")
    stream = cupy.cuda.Stream()
    cupy.cuda.runtime.deviceSynchronize()
    kernel(a, b, out, stream=stream)
    stream.synchronize()
    assert float(cupy.abs(out.astype("f8") - a.astype("f8") @ b.astype("f8")).max()) < 0.03


def test_unsupported_arrays_are_rejected(small_library: Library) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(small_library, "tn")
    a = torch.zeros(8, 8, device="cuda", dtype=torch.float16)
    with pytest.raises(ProblemError, match="in the CPU's memory"):
        kernel(a.cpu(), a, a)
    with pytest.raises(ProblemError, match="B .* is not contiguous along k"):
        kernel(a, torch.zeros(8, 16, device="cuda", dtype=torch.float16), torch.zeros_like(a).repeat(1, 2))
    with pytest.raises(ProblemError, match="D overlaps A"):
        kernel(a, a.clone().t(), a)
    with pytest.raises(ProblemError, match="A does not export its memory"):
        kernel(a.clone().requires_grad_(), a.t(), torch.zeros_like(a))


# ==== The benchmark ===================================================================================================

TUNED = replace(PROTOCOL, seconds=0.1, warm_up_s=0.1, rewarm_s=0.0)
QUICK = Protocol(seconds=0.1, warm_up_s=0.1, rewarm_s=0.0, cool_down_s=0.05, burst_rounds=2, solo_s=0.1, algorithms=8)


@pytest.fixture
def kernels(small_library: Library) -> list[Kernel]:
    return [open_kernel(small_library, record.symbol) for record in small_library.records()]


def measured(works: list[Work], kernels: list[Kernel], **changed) -> list[dict]:
    document = run(BenchPlan(works, kernels, **{"protocol": QUICK, **changed}), open_device(), print)
    assert not document["lost"] and document["baseline"].startswith("cuBLASLt")
    return document["results"]


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_bench_measures_both_sides_in_pairs(kernels: list[Kernel], layout: str) -> None:
    work = Work(512, 384, 256, layout=layout)
    for result in measured([work, replace(work, batch=3, m=8)], kernels):
        assert result["ours"] and result["first"] and result["best"] and not result["refused"]
        assert 0.1 < result["ratio_best"]["median"] < 10 and result["figures"][result["ours"]]["rounds"] >= 15


def test_bench_supports_torch_as_baseline(kernels: list[Kernel]) -> None:
    pytest.importorskip("torch")
    works = [Work(512, 384, 256, layout=layout, batch=batch) for layout in ("tn", "nt") for batch in (1, 3)]
    document = run(BenchPlan(works, kernels, protocol=QUICK, baseline=Torch), open_device(), print)
    assert document["baseline"].startswith("torch")
    for result in document["results"]:
        assert result["ours"] and result["best"] == "torch" and not result["refused"]


def test_bench_measures_burst_and_solo(kernels: list[Kernel]) -> None:
    burst, solo = measured([Work(1024, 1024, 1024)], kernels, states=("burst", "solo"))
    assert burst["figures"][burst["ours"]]["rounds"] == 2 and set(solo["alone"]) == set(solo["figures"])


@pytest.mark.parametrize("types", [("bf16", "f32", "bf16"), ("f16", "f16", "f16"), ("f16", "f32", "f32")])
def test_the_baseline_takes_every_type(settings: Settings, types: tuple[str, str, str]) -> None:
    dtype, acc, out = types
    texts = {"arch": "sm_80", "tile": "64x64x32", "dtype": dtype, "acc": acc, "out": out, "layout": "tn"}
    symbol = made(texts, settings)[0].record.symbol
    work = Work(256, 256, 512, dtype_a=dtype, dtype_b=dtype, acc=acc, dtype_d=out)
    result = measured([work], [open_kernel(settings.library, symbol)])[0]
    assert result["ours"] == symbol and result["best"] and not result["refused"]


@pytest.mark.parametrize("bias", ["none", "row", "column"])
def test_results_with_a_bias_and_an_activation_are_right(settings: Settings, bias: str) -> None:
    texts = {"arch": "sm_80", "tile": "64x64x32", "dtype": "bf16", "bias": bias, "activation": "gelu"}
    symbol = made(texts, settings)[0].record.symbol
    work = Work(250, 264, 512, dtype_a="bf16", dtype_b="bf16", dtype_d="bf16", bias=bias, activation="gelu")
    plan = BenchPlan([work], [open_kernel(settings.library, symbol)], protocol=QUICK, baseline=None)
    (result,) = run(plan, open_device(), print)["results"]
    assert result["ours"] == symbol and not result["refused"]


@pytest.mark.parametrize("bias, activation", [("row", "none"), ("none", "relu"), ("row", "relu"), ("row", "gelu")])
def test_the_baseline_has_the_bias_and_the_activation(settings: Settings, bias: str, activation: str) -> None:
    texts = {"arch": "sm_80", "tile": "64x64x32", "bias": bias, "activation": activation}
    symbol = made(texts, settings)[0].record.symbol
    work = Work(256, 264, 512, bias=bias, activation=activation)
    (result,) = measured([work], [open_kernel(settings.library, symbol)])
    assert result["ours"] == symbol and result["first"] and not result["refused"]


@pytest.mark.parametrize("bias", ["none", "row"])
def test_tuned_launch_options_are_used(settings: Settings, bias: str, tmp_path: Path) -> None:
    texts = {"arch": "sm_80", "tile": "64x64x32", "schedule": "launch", "raster": "launch", "bias": "launch"}
    symbol = made(texts, settings)[0].record.symbol
    library, device = Store(tmp_path / "tuned"), open_device()
    shutil.copytree(settings.library.folder / symbol, library.folder / symbol)
    kernel, work = open_kernel(library, symbol), Work(200, 264, 4096, bias=bias)
    source = LibraryCandidates([kernel], Target.of(device), 4)
    document = tune(TunePlan([work], library.folder, protocol=TUNED, options=6), source, device, print)
    assert not any(result["refused"] for result in document["results"]) and len(document["results"]) == 3
    options = document["results"][0]["options"]
    assert len(options) == 6 and {1} < {one["splits"] for one in options.values()}
    choice = open_library(library.folder).selector(Target.of(device)).choose(query_of(work))
    assert asdict(choice.options) == options[document["results"][0]["ours"]] and choice.measured_options


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_kernels_that_load_by_tma_are_right(settings: Settings, layout: str) -> None:
    from hgemm.verification import verify

    device = open_device()
    if device.capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    outcome = made({"arch": "sm_90a", "tile": "128x128x64", "layout": layout}, settings)[0]
    kernel = open_kernel(settings.library, outcome.record.symbol)
    assert kernel.traits.tensor_maps
    for case in default_cases(kernel.traits, kernel.prepare().resident_ctas):
        found = verify(kernel, case, device)
        assert found.passed, found


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_rows_of_16_bytes_that_tma_loads_together_are_right(settings: Settings, layout: str) -> None:
    from hgemm.verification import verify

    device = open_device()
    if device.capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    texts = {"arch": "sm_90a", "tile": "8x64x128", "swap_ab": "on", "cluster": "1x2", "layout": layout}
    kernel = open_kernel(settings.library, made(texts, settings)[0].record.symbol)
    for shape in (Shape(8, 200, 1000), Shape(8, 64, 8), Shape(8, 130, 2184, 3), Shape(8, 72, 4096)):
        found = verify(kernel, Case(shape), device)
        assert found.passed, found


@pytest.mark.parametrize("texts", [{"dtype": "f16"}, {"dtype": "tf32"}, {"arch": "sm_90a"}])
def test_kernels_with_pointer_arrays_are_right(settings: Settings, texts: dict[str, str]) -> None:
    from hgemm.verification import verify

    device = open_device()
    arch = f"sm_{device.capability[0]}{device.capability[1]}"
    if texts.get("arch", arch) != arch and device.capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    request = {"arch": arch, "tile": "64x64x32", "pointer_arrays": "on", **texts}
    kernel = open_kernel(settings.library, made(request, settings)[0].record.symbol)
    for case in default_cases(kernel.traits, kernel.prepare().resident_ctas):
        found = verify(kernel, case, device)
        assert found.passed, found


def test_a_graph_keeps_the_tensor_maps_that_it_was_captured_with(settings: Settings) -> None:
    torch = pytest.importorskip("torch")
    if open_device().capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    outcome = made({"arch": "sm_90a", "tile": "128x128x64", "layout": "tn"}, settings)[0]
    kernel = open_kernel(settings.library, outcome.record.symbol)
    a, w, other = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.zeros(256, 256, device="cuda", dtype=torch.float16)
    kernel.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, w.t(), out, stream=torch.cuda.current_stream())
    kernel(other, w.t(), torch.empty_like(out))  # other maps in between
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert (out.double() - a.double() @ w.double().t()).abs().max() < 0.1


def test_a_captured_launch_is_programmatic_only_after_a_kernel_of_ours(settings: Settings) -> None:
    torch = pytest.importorskip("torch")
    if open_device().capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    outcome = made({"arch": "sm_90a", "tile": "128x128x64", "layout": "tn"}, settings)[0]
    kernel, bindings = open_kernel(settings.library, outcome.record.symbol), driver()
    assert kernel.traits.programmatic
    own = kernel.prepare().handle
    given, w = (torch.randn(256, 256, device="cuda", dtype=torch.float16) / scale for scale in (1, 16))
    a, first, second = (torch.zeros_like(given) for _ in range(3))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), open_device().current():
        handle = bindings.CUstream(stream.cuda_stream)
        torch.mul(given, 1, out=a)  # loads this kernel of torch before the capture
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(bindings.cuStreamBeginCapture(handle, mode), "begin a graph")
        torch.mul(given, 1, out=a)
        kernel(a, w.t(), first, stream=stream)
        kernel(first, w.t(), second, stream=stream)
        graph = checked(bindings.cuStreamEndCapture(handle), "end a graph")
        before, _, edges, _ = checked(bindings.cuGraphGetEdges(graph, 2), "read the edges")
        nodes = [checked(bindings.cuGraphKernelNodeGetParams(node), "read a node") for node in before]
        kinds = {node.func == own: edge.type for node, edge in zip(nodes, edges, strict=True)}
        assert kinds == {False: 0, True: int(bindings.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)}
        executable = checked(bindings.cuGraphInstantiate(graph, 0), "make a graph")
        for _ in range(5):
            given.copy_(torch.randn_like(given))
            checked(bindings.cuGraphLaunch(executable, handle), "launch a graph")
            stream.synchronize()
            expected = (given.double() @ w.double().t()).half()
            assert (first.double() - expected.double()).abs().max() < 0.02
            assert (second.double() - first.double() @ w.double().t()).abs().max() < 0.02
        checked(bindings.cuGraphExecDestroy(executable), "drop a graph")
        checked(bindings.cuGraphDestroy(graph), "drop a graph")


# ==== The exported library ============================================================================================

GROUPS = ("general", "unaligned", "unaligned_hopper", "small_m", "split_k")
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
    """Kernels of the catalog for this GPU, those for sm_90a too where it has them.

    Most of their tables are for other architectures: kernels whose registers spill on this one are left out.
    """
    made = Library(tmp_path_factory.mktemp("gpu") / "library")
    capability = open_device().capability
    given = {"arch": "sm_{}{}".format(*capability), "dtype": "f16"}
    wanted = [overridden(texts, given) for texts in load_catalog(GROUPS)]
    if capability == (9, 0):
        wanted += [overridden(texts, {"dtype": "f16"}) for texts in load_catalog(["hopper"])]
    outcomes = [outcome for _, outcome in make(sweep(wanted).plans, Settings(made, templates_folder()), processes=8)]
    errors = [outcome.error for outcome in outcomes if outcome.error and not outcome.spills]
    assert not errors, errors[0]
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


def test_example_products_are_right(example: Path) -> None:
    done = subprocess.run([example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count(": 0 of ") == 8, done.stdout + done.stderr


def test_memcheck_finds_nothing(example: Path) -> None:
    if not shutil.which("compute-sanitizer"):
        pytest.skip("no compute-sanitizer here")
    command = ["compute-sanitizer", "--tool", "memcheck", "--leak-check", "full", "--error-exitcode", "9", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    leaks = [line for line in done.stdout.splitlines() if "Leaked" in line]
    assert done.returncode == 0 and not leaks, done.stdout[-2000:]


@pytest.mark.parametrize("align", [8, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_default_cases_pass_with_the_choices_of_c(exported: Path, library: Library, layout: str, align: int) -> None:
    """With guard bands and poison around every operand, for the kernel that C selects."""
    from hgemm.verification import CheckOptions, Trial

    opened = open_library(library.folder)
    arch = "sm_{}{}".format(*open_device().capability)
    traits = next(
        one
        for one in (opened.kernel(symbol).traits for symbol in opened.symbols)
        if (one.arch, one.layout, one.dtype_a, one.acc, one.dtype_d) == (arch, layout, "f16", "f32", "f16")
        and (one.align_a, one.align_b, one.align_d) == (align, align, align)
    )
    kernel = ByC(loaded(exported), traits)
    used = set()
    try:
        for case in default_cases(traits, RESIDENT_CTAS):
            # C decides the splits, and takes the workspace of its handle: the trial provides none.
            whole = replace(case, options=case.options and LaunchOptions())
            trial = Trial(kernel, whole, open_device(), CheckOptions(), "normal")
            try:
                found = trial.check()
            finally:
                trial.free()
            used.add(kernel.chosen)
            assert found.passed, f"{kernel.chosen}: {found}"
    finally:
        kernel.close()
    assert used


SPLITTING = {"tile": "64x64x64", "layout": "tn", "schedule": "split_k:4"}


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LaunchTraits]:
    """An export whose only kernel splits k through the workspace. The catalog may have better ones, which need none."""
    need_compiler()
    folder = tmp_path_factory.mktemp("splitting")
    texts = {**SPLITTING, "arch": "sm_{}{}".format(*open_device().capability)}
    (outcome,) = made(texts, Settings(Library(folder / "library"), templates_folder()))
    assert not outcome.error, outcome.error
    opened = open_library(folder / "library")
    export(opened, folder / "hgemm", ExportOptions(opened.symbols, compressed=False))
    return folder / "hgemm", opened.kernel(opened.symbols[0]).traits


def test_split_k_is_selected_and_repeatable(splitting: tuple[Path, LaunchTraits]) -> None:
    from hgemm.cases import Case, Shape
    from hgemm.verification import CheckOptions, Trial

    exported, traits = splitting
    kernel = ByC(loaded(exported), traits)
    trial = Trial(kernel, Case(Shape(64, 64, 65536), beta=1.0), open_device(), CheckOptions(), "integer")
    try:
        assert trial.check().passed and kernel.chosen == traits.symbol
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


def test_the_handle_provides_workspaces_for_streams_and_graphs(splitting: tuple[Path, LaunchTraits]) -> None:
    """Products that split k give the same bits on every stream and in a graph, all at the same time."""
    torch = pytest.importorskip("torch")
    exported, traits = splitting
    c = loaded(exported)
    kernel = ByC(c, traits)
    x, w = (torch.randn(64, 65536, device="cuda", dtype=torch.float16) for _ in range(2))
    outputs = torch.zeros(3, 64, 64, device="cuda", dtype=torch.float16)
    given, choice = [], CChoice()
    for y in outputs:
        problem = Problem(64, 64, 65536, a=x.data_ptr(), b=w.data_ptr(), d=y.data_ptr(), lda=65536, ldb=65536, ldd=64)
        given.append(CProblem.of(Kind(), problem, 0))
    assert c.hgemm_select(kernel.handle, ctypes.byref(given[0]), ctypes.byref(choice)) == 0
    assert choice.splits > 1 and choice.workspace_bytes > 0

    def launch(which: int, stream: torch.cuda.Stream) -> None:
        handle = ctypes.c_void_p(stream.cuda_stream)
        assert c.hgemm_run(kernel.handle, ctypes.byref(given[which]), handle) == 0, c.hgemm_last_message()

    streams = [torch.cuda.Stream() for _ in range(3)]
    assert c.hgemm_prepare(kernel.handle, ctypes.byref(given[0])) == 0, c.hgemm_last_message()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=streams[0]):
        for _ in range(20):
            launch(0, streams[0])
    for _ in range(20):
        launch(1, streams[0])
        launch(2, streams[1])
    with torch.cuda.stream(streams[2]):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
    bound = 2**-10 * (x.double().abs() @ w.double().abs().t())
    assert ((outputs[0].double() - x.double() @ w.double().t()).abs() <= bound).all()
    kernel.close()


def test_python_and_c_choose_alike(exported: Path, library: Library) -> None:
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
            query = SelectionQuery.of(Kind(layout), problem, DEFAULT_WORKSPACE_BYTES)
            assert choice.symbol.decode() == opened.select(query, target).symbol
    kernel.close()


# ==== matmul ==========================================================================================================

TEXTS = (
    {"tile": "64x64x32,128x128x32", "layout": "tn,nn,nt,tt", "dtype": "f16,bf16"},
    {"tile": "64x64x32", "layout": "tn,nn,nt,tt", "align": "1"},
    {"tile": "64x64x32", "layout": "tn", "activation": ",".join(ACTIVATIONS[1:])},
    {"tile": "64x64x32", "layout": "tn", "bias": "row,column"},
    {"tile": "64x64x32", "layout": "tn", "schedule": "split_k:8"},
)
_made: list[Path] = []


def make_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that HGEMM_LIBRARY names, or one of small kernels for this GPU, made once."""
    if "HGEMM_LIBRARY" in os.environ:
        return Path(os.environ["HGEMM_LIBRARY"])
    if not _made:
        arch = "sm_{}{}".format(*open_device().capability)
        store = Store(tmp_path_factory.mktemp("device") / "library")
        plans = sweep([{"arch": arch, **texts} for texts in TEXTS]).plans
        outcomes = [outcome for _, outcome in make(plans, Settings(store, templates_folder()), processes=8)]
        assert outcomes and not [outcome.error for outcome in outcomes if outcome.error]
        _made.append(store.folder)
    return _made[0]


@pytest.fixture(scope="module")
def matmul_library(tmp_path_factory: pytest.TempPathFactory) -> hgemm.Library:
    return hgemm.open(make_library(tmp_path_factory))


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def whole(torch, *shape: int, dtype: str = "float16"):
    """Return small whole numbers, of which sums are exact."""
    return torch.randint(-2, 3, shape, device="cuda").to(getattr(torch, dtype))


def right(found, a, b) -> bool:
    """Return whether each element is the exact product, rounded once."""
    return bool((found == (a.double() @ b.double()).to(found.dtype)).all())


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 96), (33, 47, 21), (1, 64, 64), (200, 1, 64), (5, 7, 1)])
def test_tensors_may_have_any_layout_and_size(
    matmul_library, torch, layout: str, dtype: str, m: int, n: int, k: int
) -> None:
    if dtype == "bfloat16" and (n % 8 or k % 8):
        pytest.skip("the library of this test has no unaligned bf16")
    if dtype == "bfloat16" and layout[0] == "n" and m % 8:
        pytest.skip("the library of this test has no unaligned bf16")
    a, b = whole(torch, m, k, dtype=dtype), whole(torch, k, n, dtype=dtype)
    a_stored = a if layout[0] == "t" else a.t().contiguous().t()
    b_stored = b if layout[1] == "t" else b.t().contiguous().t()
    assert right(matmul_library.matmul(a_stored, b_stored), a, b)


def test_cupy_and_torch_share_a_product(matmul_library, torch) -> None:
    cupy = pytest.importorskip("cupy")
    a, b = cupy.random.randint(-2, 3, (64, 128)).astype("f2"), whole(torch, 96, 128)
    expected = torch.as_tensor(a).double() @ b.t().double()
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = matmul_library.matmul(a, b.t())  # a new array of CuPy's, on CuPy's current stream
        stream.synchronize()
    assert isinstance(out, cupy.ndarray) and (torch.as_tensor(out).double() == expected).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_arrays_of_jax_multiply_once_they_are_computed(matmul_library, torch, dtype: str, monkeypatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this jax finds no GPU")
    a = jax.random.randint(jax.random.key(0), (256, 128), -1, 2).astype(dtype)
    w, out = jax.random.randint(jax.random.key(1), (128, 128), -1, 2).astype(dtype), []
    for _ in range(2):
        out.append(torch.zeros(256, 128, device="cuda", dtype=getattr(torch, dtype)))
        matmul_library.matmul(a, w.T, out=out[-1])
        a = a + a  # JAX computes it while the next call begins
    expected = torch.from_dlpack(a).double() @ torch.from_dlpack(w).double().t() / 4
    assert torch.equal(out[0].double(), expected) and torch.equal(out[1].double(), 2 * expected)


def test_numba_arrays_multiply(matmul_library, torch) -> None:
    cuda = pytest.importorskip("numba.cuda")
    a, b = whole(torch, 64, 64), whole(torch, 64, 64)
    out = matmul_library.matmul(cuda.as_cuda_array(a), cuda.as_cuda_array(b))
    torch.cuda.synchronize()
    assert right(torch.as_tensor(out, device="cuda"), a, b)


def test_batches_bias_c_and_activations_are_right(matmul_library, torch) -> None:
    a, w, bias = whole(torch, 3, 40, 64), whole(torch, 48, 64), whole(torch, 48)
    c = whole(torch, 3, 40, 48)
    x = a.double() @ w.t().double()
    assert right(matmul_library.matmul(a, w.t()), a, w.t())
    found = matmul_library.matmul(a, w.t(), alpha=0.5, beta=2, c=c)
    assert (found.double() == 0.5 * x + 2 * c.double()).all()
    try:
        assert (matmul_library.matmul(a, w.t(), bias=bias).double() == x + bias.double()).all()
        assert (matmul_library.matmul(a, w.t(), activation="relu").double() == x.clamp(min=0)).all()
    except UnsupportedError as error:
        pytest.skip(str(error))


def test_launches_use_the_current_stream_of_torch(matmul_library, torch) -> None:
    a, w = whole(torch, 2048, 2048), whole(torch, 2048, 2048)
    stream, out = torch.cuda.Stream(), torch.zeros(2048, 2048, device="cuda", dtype=torch.float16)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a.mul_(2)  # ordered before the product only on this stream
        matmul_library.matmul(a, w.t(), out)
    stream.synchronize()
    assert right(out, a, w.t())


def test_workspace_enables_split_k(matmul_library, torch) -> None:
    a, w = whole(torch, 16, 16384), whole(torch, 64, 16384)
    workspace = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
    for _ in range(3):
        assert right(matmul_library.matmul(a, w.t(), workspace=workspace), a, w.t())
    plan = matmul_library.plan(Problem(16, 64, 16384), workspace_bytes=64 << 20)
    out = torch.empty(16, 64, device="cuda", dtype=torch.float16)
    assert right(plan(a, w.t(), out, workspace=workspace), a, w.t())


def test_a_plan_is_captured_at_its_first_call(matmul_library, torch) -> None:
    plan = matmul_library.plan(Problem(64, 64, 64))
    a, w = whole(torch, 64, 64), whole(torch, 64, 64)
    out = torch.zeros(64, 64, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(a, w.t(), out)
    a.copy_(whole(torch, 64, 64))
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, a, w.t())


def test_threads_share_a_library_and_a_plan(matmul_library, torch) -> None:
    """Also threads that never had a context: one is made current for the launch."""
    plan, wrong = matmul_library.plan(Problem(64, 96, 128)), []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(100):
                a, w = whole(torch, 64, 128), whole(torch, 96, 128)
                out = torch.empty(64, 96, device="cuda", dtype=torch.float16)
                (plan if turn % 2 else matmul_library.matmul)(a, w.t(), out)
                if not right(out, a, w.t()):
                    wrong.append((seed, turn))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    a, w, out = whole(torch, 64, 128), whole(torch, 96, 128), torch.empty(64, 96, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    bare = threading.Thread(target=lambda: plan(a, w.t(), out, stream=0))
    bare.start()
    bare.join()
    torch.cuda.synchronize()
    assert not wrong and right(out, a, w.t())


def test_bad_input_gives_an_error(matmul_library, torch) -> None:
    a, w = whole(torch, 64, 64), whole(torch, 64, 64)
    with pytest.raises(ProblemError, match="in the CPU's memory"):
        matmul_library.matmul(a.cpu(), w.t())
    with pytest.raises(ProblemError, match="requires gradients"):
        matmul_library.matmul(a, w.t().requires_grad_())
    with pytest.raises(ProblemError, match="D overlaps A"):
        matmul_library.matmul(a, w.t(), a)
    with pytest.raises(UnsupportedError, match="no kernel computes tn f32->f32"):
        matmul_library.plan(Problem(64, 64, 64), Kind(dtype_a="f32", dtype_b="f32", dtype_d="f32"))


# ==== The operator of torch ===========================================================================================


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory):
    pytest.importorskip("torch")
    import hgemm.torch

    hgemm.torch.use(make_library(tmp_path_factory))
    return hgemm.torch


def halves(*shapes: tuple[int, ...]) -> list:
    import torch

    return [torch.randn(shape, device="cuda", dtype=torch.float16).requires_grad_() for shape in shapes]


def close(found, expected) -> bool:
    """Return whether they differ by some roundings to f16, of 2^-11 each, of the largest element."""
    return bool((found.double() - expected.double()).abs().max() < 2.0**-8 * expected.double().abs().max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_opcheck_passes(ours, activation: str) -> None:
    import torch

    x, w = halves((64, 128), (96, 128))
    try:
        torch.library.opcheck(torch.ops.hgemm.matmul.default, (x, w.t()), {"activation": activation})
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_match_torch(ours, activation: str, compiled: bool) -> None:
    import torch
    from torch.nn import functional

    after = (lambda y: y) if activation == "none" else getattr(functional, activation)
    x, w = halves((4, 32, 128), (96, 128))

    def block(x, w):
        return ours.linear(x, w, activation=activation)

    call = torch.compile(block, fullgraph=True) if compiled else block
    try:
        y = call(x, w)
    except UnsupportedError as error:
        pytest.skip(str(error))
    expected = after(functional.linear(x.double(), w.double()))
    assert close(y, expected)
    gradient = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w), gradient)
    wanted = torch.autograd.grad(expected, (x, w), gradient.double())
    assert all(close(f, e) for f, e in zip(found, wanted))


def test_a_layer_is_compiled_and_captured(ours) -> None:
    """reduce-overhead captures graphs, in which the operator allocates from the graph's pool."""
    import torch

    layer = torch.nn.Linear(128, 256, bias=False, device="cuda", dtype=torch.float16)
    mine = torch.compile(ours.Linear.of(layer), mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(32, 128, device="cuda", dtype=torch.float16)
            assert close(mine(x), layer(x))
