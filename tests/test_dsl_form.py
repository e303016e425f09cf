"""Kernels written in CuTe DSL: rejected specs, PTX that computes the right product, and their place in a library."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pycute
import pytest
import simulated
from click.testing import CliRunner, Result
from conftest import ROOT
from exports import FAST_CC, need_compiler
from fake_bench import BenchDriver, FakeCublasLt
from fake_bench import build as build_library
from fake_driver import FakeDriver, installed
from records import make_record

import hgemm.bench.operands
import hgemm.device
from benchmarks.compare_forms import groups
from generator.arch import ARCHS
from generator.build import dsl as translate
from generator.build.dsl import with_problem_parameter
from generator.build.emit import _template, emit
from generator.build.pipeline import BuildOptions, BuildResult, build, prepare
from generator.build.toolchain import templates_folder
from generator.cli import main as cli
from generator.cli.main import hgemm_command
from generator.device_check import CheckWorkers, check_here
from generator.errors import BuildError, HgemmError
from generator.families import family_of
from generator.families.base import Plan
from generator.families.mma_sync import form_rules
from generator.families.mma_sync.form_rules import DSL_ACTIVATIONS, DSL_ARCHS
from generator.planner import plan_of, resolve, violations
from generator.proof.executor import Executable, HostToolchain
from generator.proof.machine import EmulatedKernel
from generator.proof.proving import check_case
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.bench import baselines
from hgemm.cases import Case, Shape
from hgemm.errors import LibraryError
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import PROBLEM_BYTES, Problem
from hgemm.record import Record
from hgemm.tuning.__main__ import command as tune_here

TEMPLATES = templates_folder()
GOLDEN = ROOT / "tests" / "data" / "hgemm_dsl.py"
GOLDEN_SPEC = {"tile": "64x64x32", "layout": "nt", "activation": "relu", "schedule": "persistent"}
SPECS = [
    {},
    {"layout": "tt", "tile": "64x64x32", "out": "f32"},
    {"layout": "nn", "tile": "64x128x64", "align_a": "4", "align_b": "2", "stages": "2"},
    {"layout": "nt", "tile": "128x64x32", "smem": "pad:8", "acc": "f16"},
    {"layout": "tn", "tile": "64x64x64", "smem": "none"},
]
SYMBOL = "hgemm_module"
needs_dsl = pytest.mark.skipif(
    not importlib.util.find_spec("nvidia_cutlass_dsl"), reason="nvidia-cutlass-dsl is not installed"
)


def plan_in_dsl(**texts: str) -> Plan:
    (candidate,) = sweep([{"arch": "sm_80", "form": "dsl", **texts}]).candidates
    return candidate.plan


# ---- What it cannot say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"arch": "sm_75"}, "arch is sm_75; CuTe DSL supports sm_80"),
        ({"mma": "m16n8k8"}, "m16n8k16"),
        ({"dtype": "tf32"}, "half-precision"),
        ({"copy": "ldg_sts"}, "cp.async"),
        ({"smem": "pad_alternate:8"}, "rows at one distance"),
        ({"acc": "f16_promoted"}, "one type"),
        ({"mma_order": "row"}, "has its own order"),
        ({"fragment_stages": "1"}, "reads the next k-block ahead"),
        ({"store": "direct"}, "the epilogue uses shared memory"),
        ({"smem_alloc": "static"}, "dynamic shared memory"),
        ({"schedule": "split_k:2"}, "split_k:2"),
        ({"align": "1"}, "cp.async"),
        ({"tile": "64x64x16"}, "has 1 k-block"),
        ({"tile": "64x48x32", "layout": "tt"}, "do not tile"),
    ],
)
def test_fields_that_the_dsl_lacks_are_violations_with_a_fix(texts: dict, reason: str) -> None:
    plan = plan_in_dsl(**texts)
    broken = [violation for violation in violations(plan) if violation.rule.startswith("dsl_")]
    assert [violation for violation in broken if reason in violation.message]
    assert all(violation.change for violation in broken), "there is always the form of atoms"
    in_atoms = plan.replace(form="atoms")
    assert not [violation for violation in violations(in_atoms) if violation.rule.startswith("dsl_")]


def test_wgmma_kernels_are_not_in_the_dsl() -> None:
    (candidate,) = sweep([{"arch": "sm_90a", "mma": "wgmma", "form": "dsl"}]).candidates
    assert [violation for violation in candidate.broken if "form is dsl" in violation.message]
    (planned,) = sweep([{"arch": "sm_90a", "form": "dsl"}]).plans
    assert family_of(planned.spec).name == "mma_sync"


@pytest.mark.parametrize("arch", DSL_ARCHS)
@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_open_fields_are_planned_within_the_form(arch: str, layout: str) -> None:
    assert not violations(plan_of(resolve({"arch": arch, "form": "dsl", "layout": layout})))


# ---- What it says ---------------------------------------------------------------------------------------------------


def test_emitted_module_is_unchanged() -> None:
    kernel = emit(plan_in_dsl(**GOLDEN_SPEC), TEMPLATES)
    assert kernel.source == GOLDEN.read_text(), "if that is meant, write the new text there"
    assert kernel.source_name == "kernel.py" and kernel.plan.spec.form == "dsl"


def test_an_activation_that_the_template_lacks_is_an_error() -> None:
    plan = plan_in_dsl()
    form = family_of(plan.spec).forms["dsl"]
    values = {**form.values(plan, "a_symbol"), "activation": "unknown"}
    with pytest.raises(jinja2.UndefinedError, match="activation_that_this_template_lacks"):
        _template(TEMPLATES, form.template).render(values)


@pytest.mark.parametrize("texts", SPECS, ids=str)
def test_layouts_match_the_plan(texts: dict) -> None:
    """Read back by pycute, every element of every stage lies where the plan takes it to lie."""
    plan = plan_in_dsl(**texts)
    functions = functions_of(emit(plan, TEMPLATES).source)
    for name, tile in (("a", plan.a), ("b", plan.b)):
        text = ast.unparse(functions[f"smem_layout_{name}"])
        swizzle, layout = pycute.Swizzle(*numbers("make_swizzle", text) or (0, 3, 3)), layout_of(text)
        for row in range(tile.rows):
            for column in range(tile.columns):
                mn, k = (row, column) if tile.k_major else (column, row)
                assert swizzle(layout(mn, k, 1)) - tile.stage_elements == tile.offset(row, column)


@pytest.mark.parametrize("texts", SPECS, ids=str)
def test_threads_copy_every_piece_of_a_tile_once(texts: dict) -> None:
    plan = plan_in_dsl(**texts)
    functions = functions_of(emit(plan, TEMPLATES).source)
    for name, tile in (("a", plan.a), ("b", plan.b)):
        layout = layout_of(ast.unparse(functions[f"gmem_copy_{name}"]))
        rows, columns = layout.shape if tile.k_major else layout.shape[::-1]
        assert {layout(i, j) for i in range(layout.shape[0]) for j in range(layout.shape[1])} == {*range(plan.threads)}
        assert tile.rows % rows == 0 and tile.columns // tile.chunk % columns == 0


def functions_of(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def layout_of(text: str) -> pycute.Layout:
    """Read the first layout that a text makes with a shape and strides."""
    shape, stride = re.search(r"make_layout\((\(.*?\)), stride=(\(.*?\))\)", text).groups()
    return pycute.Layout(ast.literal_eval(shape), ast.literal_eval(stride))


def numbers(function: str, text: str) -> tuple[int, ...]:
    found = re.search(rf"{function}(\(.*?\))", text)
    return ast.literal_eval(found[1]) if found else ()


# ---- Its parameters -------------------------------------------------------------------------------------------------

FIELDS = ["u64 .ptr .global .align 16"] * 6 + ["u64"] * 9 + ["u32"] * 4 + ["f32"] * 2


def ptx_taking(fields: list[str], body: str) -> str:
    parameters = ",\n".join(f"\t.param .{kind} k_param_{place}" for place, kind in enumerate(fields))
    return f"\t// .globl\tk\n.visible .entry k(\n{parameters}\n)\n{{\n{body}\n}}\n"


def test_module_reads_fields_at_their_offsets_in_a_problem() -> None:
    """A load of the parameter that stands for a field becomes a load at the offset at which that field is packed."""
    loads = [f"\tld.param.b64 \t%rd{place}, [k_param_{place}];" for place in range(len(FIELDS))]
    text = with_problem_parameter(ptx_taking(FIELDS, "\n".join(loads)), "hgemm_x")
    assert ".visible .entry hgemm_x(\n\t.param .align 8 .b8 hgemm_x_param_0[160]\n)" in text and "k_param" not in text
    offsets = [int(offset or 0) for offset in re.findall(r"\[hgemm_x_param_0\+?(\d*)\]", text)]
    names = [*"abcd", "bias", "workspace", "lda", "ldb", "ldc", "ldd"]
    names += [f"batch_stride_{name}" for name in (*"abcd", "bias")] + [*"mnk", "batch", "alpha", "beta"]
    others = {"bias_kind", "options", "aux", "pointer_arrays"}  # which no kernel of this form has
    assert {*names} == {field.name for field in dataclasses.fields(Problem)} - others
    for name, offset, kind in zip(names, offsets, FIELDS, strict=True):
        packed = Problem(**{**dict.fromkeys("mnk", 0), "batch": 0, "alpha": 0.0, name: 7}).pack()
        (value,) = struct.unpack_from({"u64": "<Q", "u32": "<I", "f32": "<f"}[kind[:3]], packed, offset)
        assert (value, len(packed)) == (7, PROBLEM_BYTES), name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("// nothing", "0 kernels"),
        (ptx_taking(FIELDS, "") * 2, "2 kernels"),
        (ptx_taking(FIELDS[:-1], ""), "not the fields of a problem"),
        (ptx_taking([*FIELDS[:18], "u64", *FIELDS[19:]], ""), "not the fields of a problem"),
        (ptx_taking(FIELDS, "\tmov.b64 %rd1, k_param_2;"), "in an instruction other than a load"),
    ],
)
def test_kernels_with_other_parameters_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_problem_parameter(text, "hgemm_x")


# ---- The process that has the DSL -----------------------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that replaces the worker by a text. The DSL counts as installed."""

    def put(text: str) -> None:
        path = tmp_path / "worker.py"
        path.write_text(text)
        monkeypatch.setattr(translate, "command", lambda target: [sys.executable, str(path)])

    monkeypatch.setattr(translate, "_server", None)
    monkeypatch.setattr(translate, "version", lambda: "1")
    yield put
    if translate._server:
        translate._server.end()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(3)", "ended with status 3: it does not say why"),
        ("import no_such_module", "ended with status 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.stdin.readline(); print('\"error: odd\"', flush=True)", "error: odd"),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
    ],
)
def test_failing_worker_fails_the_build(worker, monkeypatch, text: str, reason: str) -> None:
    worker(text)
    monkeypatch.setattr(translate, "LIMIT_S", 0.5 if "sleep" in text else 60.0)
    with pytest.raises(BuildError, match=reason):
        translate.ptx_of("hgemm_x", "", "sm_80")


def test_dead_worker_is_replaced(worker) -> None:
    worker("import sys; sys.exit(1)")
    with pytest.raises(BuildError, match="ended with status"):
        translate.ptx_of("hgemm_x", "", "sm_80")
    assert not Path(translate._server.place.name).exists()
    worker("import sys\nfor line in sys.stdin: print('\"error: alive\"', flush=True)")
    for _ in range(2):
        with pytest.raises(BuildError, match="alive"):
            translate.ptx_of("hgemm_x", "", "sm_80")


def test_missing_dsl_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "WHEEL", "no-such-wheel-anywhere")
    assert "pip install" in translate.missing()
    with pytest.raises(
        HgemmError,
        match=r"no-such-wheel-anywhere is missing, and --form dsl requires it: pip install 'hgemm-generator\[dsl\]'",
    ):
        prepare(plan_in_dsl(), TEMPLATES)
    prepare(plan_in_dsl().replace(form="atoms"), TEMPLATES)


@pytest.mark.parametrize("activation", DSL_ACTIVATIONS)
def test_activations_have_dsl_expressions(activation: str) -> None:
    ast.parse(emit(plan_in_dsl(activation=activation), TEMPLATES).source)


def test_an_activation_without_an_expression_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_rules, "DSL_ACTIVATIONS", ("none", "relu"))
    (violation,) = violations(plan_in_dsl(activation="silu"))
    assert violation.message == "activation is silu; form dsl supports none, relu"
    assert violation.change == {"form": "atoms"}


# ---- Made -----------------------------------------------------------------------------------------------------------

BUILT = {
    "whole": {"tile": "64x32x32", "warp_tile": "32x16", "stages": "3"},
    "ragged": {
        "tile": "32x48x64",
        "warp_tile": "32x24",
        "align": "4",
        "stages": "2",
        "schedule": "persistent",
        "raster": "panel:48",
        "bias": "column",
        "activation": "gelu",
        "dtype": "bf16",
        "out": "f32",
    },
    "halves": {
        "tile": "32x32x32",
        "layout": "nt",
        "align": "2",
        "acc": "f16",
        "activation": "silu",
        "beta": "off",
        "bias": "row",
    },
}


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildResult]:
    """Kernels that are made where temporary files have a blank in their path, which the DSL's options cannot say."""
    plans = [plan_in_dsl(**texts) for texts in BUILT.values()]
    assert not any(map(violations, plans))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("with a blank")))
        patched.setattr(translate, "_server", None)
        try:
            return dict(zip(BUILT, build([prepare(plan, TEMPLATES) for plan in plans], BuildOptions(TEMPLATES))))
        finally:
            translate._server.end()


@needs_dsl
def test_modules_compile_as_planned(products: dict[str, BuildResult]) -> None:
    for product in products.values():
        assert (product.status, product.error) == ("built", "")
        record = product.record
        assert record["sass"]["HMMA"] == record["proof"]["mma_per_k_tile"] and record["resources"]["spill_bytes"] == 0
        assert {*product.files} == {"kernel.py", "kernel.cubin", "kernel.ptx"} and record["inputs"] == {}
        assert {"cutlass_dsl", "nvjitlink"} <= {*record["toolchain"]} and "nvrtc" not in record["toolchain"]


@pytest.mark.slow
@needs_dsl
@pytest.mark.parametrize("name", BUILT)
def test_the_ptx_computes_ragged_products_and_touches_nothing_else(
    products: dict[str, BuildResult], name: str, host_toolchain: HostToolchain
) -> None:
    traits, ptx = LaunchTraits.of(products[name].record), products[name].files["kernel.ptx"].decode()
    m, n, k = traits.tile_m, traits.tile_n, traits.tile_k
    beta = 0.25 if traits.beta else 0.0
    cases = [
        Case(Shape(m + 1, n + 3, 4 * k - 1), 1.0, beta),
        Case(Shape(m - 3, n - 5, 2, 2), 2.0, beta, loose=True),
        Case(Shape(17, 1, k), 1.0, 1.0 if traits.beta else 0.0),
    ]
    without_k = Case(Shape(1, n + 8, 0), 1.0, beta)
    kernel = EmulatedKernel(traits, Executable(host_toolchain.executable(products[name].symbol, ptx)), ())
    checks = [check_case(kernel, case, seed=0) for case in cases]
    assert [check.reason for check in checks if not check.passed] == []
    left = check_case(kernel, without_k, seed=0)  # it reads fragments that it does not use
    assert left.numbers_passed and {finding["kind"] for finding in left.findings} <= {"uninitialised"}


@needs_dsl
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("cp_async_wait_group(STAGES - 2)", "cp_async_wait_group(STAGES - 1)"),
        ("if e < elements:", "if e <= elements:"),
        ("< mn_left", "< mn_left + 1"),
        ("if left >= VEC:", "if left >= VEC - 1:"),
        ("cute.arch.sync_threads()  # the next slab", "# the next slab"),
    ],
)
def test_a_fault_of_a_module_is_found(right: str, wrong: str, o0_toolchain: HostToolchain) -> None:
    plan = plan_in_dsl(**BUILT["whole"])
    kernel = emit(plan, TEMPLATES)
    assert right in kernel.source
    ptx = translate.ptx_of(kernel.symbol, kernel.source.replace(right, wrong), "sm_80").decode()
    record = {"symbol": kernel.symbol, "arch": "sm_80", "spec": plan.spec.to_dict()}
    traits = LaunchTraits.of({**record, "launch": plan.launch(), "traits": plan.traits()})
    m, n, k = traits.tile_m, traits.tile_n, traits.tile_k
    shapes = [Shape(m + 1, n + 7, 4 * k + 5), Shape(m - 1, n - 1, k + 3)]
    faulty = EmulatedKernel(traits, Executable(o0_toolchain.executable(kernel.symbol, ptx)), ())
    assert not all(check_case(faulty, Case(shape, 1.0, 0.5), seed=0).passed for shape in shapes)


@needs_dsl
def test_module_rejected_by_the_dsl_fails_with_its_message() -> None:
    source = GOLDEN.read_text().replace("tCrC.fill(0.0)", "tCrC.fill(no_such_name)")
    with pytest.raises(BuildError, match="no_such_name"):
        translate.ptx_of("hgemm_x", source, "sm_80")


@needs_dsl
def test_dsl_supports_the_listed_architectures() -> None:
    script = "from cutlass.base_dsl.enums import Arch; print(*[arch.name for arch in Arch])"
    said = {*subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()}
    mine = {*ARCHS}
    assert {*DSL_ARCHS} <= said
    assert mine - {*DSL_ARCHS} == mine - said | ({"sm_110"} & mine)


@needs_dsl
@pytest.mark.parametrize("arch", ["sm_86", "sm_90a", "sm_103", "sm_121"])
def test_ptx_targets_the_requested_architecture(arch: str) -> None:
    plan = plan_in_dsl(arch=arch, tile="32x32x32")
    kernel = emit(plan, TEMPLATES)
    assert f".target {arch}" in translate.ptx_of(kernel.symbol, kernel.source, arch).decode()


@needs_dsl
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
def test_module_run_alone_reports_a_missing_gpu(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(GOLDEN), "--m", "64"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "no NVIDIA GPU here" in done.stderr and len(done.stderr.splitlines()) == 1


# ==== In a library ====================================================================================================

SPEC = {"arch": "sm_80", "cta_tile": "32x48x16"}
SIZES = ["--m", "40", "--n", "56", "--k", "24"]
QUICK = "--seconds 0 --screen-ms 0.01 --warm-up 0 --rewarm 0 --rounds 3".split()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A library with one module, which leaves a mark where anything runs it."""
    monkeypatch.chdir(tmp_path)
    text = f"open({str(tmp_path / 'it was run')!r}, 'w').close()\n".encode()
    files = {"kernel.py": text, "kernel.cubin": b"code", "kernel.ptx": b"text"}
    record, _ = make_record(SYMBOL, files, **SPEC)
    library = Library(tmp_path / "library")
    library.publish({**record, "spec": {**record["spec"], "form": "dsl"}}, files)
    return library


@pytest.fixture
def gpu(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A GPU that computes what the kernel says it computes."""
    fake = FakeDriver()
    traits = Kernel(library.load(SYMBOL).record.data).traits
    fake.kernel = lambda problem: simulated.launch(traits, problem, frozenset())
    monkeypatch.setattr(CheckWorkers, "check", lambda self, request: (check_here(request), ""))  # where the fake lives
    with installed(fake, monkeypatch):
        yield fake


@pytest.fixture
def timed_gpu(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BenchDriver]:
    """A GPU whose clock is simulated, with cuBLASLt beside."""
    fake, lt = BenchDriver(), build_library(tmp_path)
    monkeypatch.setattr(hgemm.bench.operands, "POOL_ELEMENTS", 8 * 127)
    monkeypatch.setattr(baselines, "find_library", lambda: str(lt))
    fake.serve(Kernel(library.load(SYMBOL).record.data), 8.0)
    fake.lt = FakeCublasLt(lt, fake, [10.0])
    monkeypatch.setattr(CheckWorkers, "check", lambda self, request: (check_here(request), ""))
    with installed(fake, monkeypatch):
        yield fake


def call(library: Library, *words: str) -> Result:
    """Run a verb on the library, which must not run the module."""
    # The verb of the run-time package tunes a library as it is, and makes nothing.
    command = tune_here if words[0] == "tune" else hgemm_command.get_command(None, words[0])
    result = CliRunner().invoke(command, [*words[1:], "--library", str(library.folder)])
    if result.exception and not isinstance(result.exception, (SystemExit, HgemmError)):
        raise result.exception
    assert not (library.folder.parent / "it was run").exists()
    assert library.load(SYMBOL).source.startswith(b"open(")
    return result


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["list", "--json"], 0, f'"symbol": "{SYMBOL}"'),
        (["show", SYMBOL, "--source"], 0, "open("),
        (["verify", "--emulate"], 1, "its kernel.py is not what this version writes"),
        (["reindex"], 0, "1 kernel indexed"),
        (["gc", "--dry-run"], 0, "0 would be removed"),
        (["report", "--to", "report.html"], 0, "report.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_module_is_shown_and_reported(library: Library, words: list[str], exit_code: int, message: str) -> None:
    result = call(library, *words)
    assert message in result.stdout and result.exit_code == exit_code


def test_export_embeds_dsl_code_but_no_dsl_sources(library: Library) -> None:
    refused = call(library, "export", "--uncompressed", "--source", "--to", "with_source")
    assert "nvcc cannot compile" in str(refused.exception) and refused.exception.exit_code == 2
    need_compiler()
    assert call(library, "export", "--uncompressed", "--to", "exported", "--cc", FAST_CC).exit_code == 0
    packed = (library.folder.parent / "exported" / "src" / "images.bin").read_bytes()
    assert b"code" in packed and b"open(" not in packed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "--device", "--shapes", "33x49x17"], f"ok    {SYMBOL}  1/1 shape"),
        (["run", SYMBOL, *SIZES], SYMBOL),
    ],
    ids=["verify", "run"],
)
def test_dsl_code_is_launched(library: Library, gpu: FakeDriver, words: list[str], message: str) -> None:
    result = call(library, *words)
    assert message in result.stdout and result.exit_code == 0 and gpu.launches
    assert {*gpu.images} == {b"text\0"}, "sm_90 takes the PTX of sm_80"


@pytest.mark.parametrize("verb", ["bench", "tune"])
def test_dsl_code_is_timed(library: Library, timed_gpu: BenchDriver, verb: str) -> None:
    result = call(library, verb, *SIZES, *QUICK)
    assert SYMBOL in result.stdout and result.exit_code == 0 and SYMBOL in timed_gpu.log


@pytest.mark.parametrize(
    ("names", "words"),
    [(["kernel.cu", "kernel.py"], "only one may be the source"), ([], "files.kernel.cu is missing")],
)
def test_a_record_has_one_source(library: Library, names: list[str], words: str) -> None:
    data = library.load(SYMBOL).record.data
    module = data["files"].pop("kernel.py")
    with pytest.raises(LibraryError, match=words):
        Record.parse(json.dumps({**data, "files": {**data["files"], **dict.fromkeys(names, module)}}))


def test_forms_of_one_spec_are_found_in_a_library(library: Library) -> None:
    library.publish(*make_record("hgemm_other", **SPEC, stages=2))
    same, files = make_record("hgemm_same", **SPEC)
    library.publish({**same, "spec": {**same["spec"], "form": "atoms"}}, files)
    (found,) = groups(library)
    assert [(one.form, one.record.symbol) for one in found] == [("atoms", "hgemm_same"), ("dsl", SYMBOL)]


@pytest.mark.parametrize(
    ("words", "early"),
    [
        (["--arch", "sm_80", "--form", "dsl"], True),
        (["--arch", "sm_80"], False),
        (["--arch", "sm_80", "--form", "dsl", "--tile", "128x128x32,64x64x32"], False),
        (["--arch", "sm_80", "--form", "dsl", "--dry-run"], False),
        (["--arch", "sm_80", "--form", "dsl", "--verify", "emulate"], False),
        (["--form", "dsl", "--kernels", "*"], False),
        (["--arch", "sm_80", "--form", "dsl", "--executor", "dask", "--address", "tcp://host:1"], False),
    ],
)
def test_single_kernel_starts_the_dsl_process_early(
    monkeypatch: pytest.MonkeyPatch, words: list[str], early: bool
) -> None:
    order: list[str] = []
    monkeypatch.setattr("generator.build.dsl.begin", lambda: order.append("begun"))
    monkeypatch.setattr("generator.cli.generate.run", lambda options: order.append("run") or 0)
    with pytest.raises(SystemExit, match="0"):
        cli.generate_command.main(words)
    assert order == ["begun", "run"][not early :]
