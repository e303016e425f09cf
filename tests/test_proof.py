"""Proofs on the CPU: from the command line, before a kernel is stored, and their cases, adversaries and verdicts."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import simulated
from click.testing import CliRunner, Result
from conftest import SMALL, call, executable_of, made, ptx_of
from records import make_record
from simulated import record

from benchmarks.anchors import At, Program
from benchmarks.faults import FAULTS, faulty_templates, templates_with
from generator.build.emit import EmittedKernel, emit
from generator.build.pipeline import Settings, planned_sections
from generator.build.toolchain import templates_folder
from generator.cli import device as verify
from generator.cli import generate
from generator.cli.library import show_command
from generator.cli.main import generate_command
from generator.cli.prove_catalog import chosen
from generator.device_check import CheckOutcome, CheckWorkers
from generator.errors import ProofError, RequestError
from generator.layouts import OperandTile, copy_conflicts, read_conflicts, write_conflicts
from generator.proof import executor as abi
from generator.proof import jobs as emulate
from generator.proof.coverage import Coverage, raster_groups
from generator.proof.executor import Adversary, Finding, HostToolchain, Launch, Report
from generator.proof.jobs import Emulation, ProofRequest, ProofSource, Prover, check_here, request_of, workers
from generator.proof.machine import (
    PERSISTENT_CTAS,
    EmulatedKernel,
    HostMemory,
    default_cases,
    launch_of,
    measured_case,
    regions,
    workers_of,
)
from generator.proof.proving import (
    LAUNCHES,
    Costs,
    adversaries_of,
    check_case,
    count,
    disagreements,
    placement_of,
)
from generator.spec import Smem
from generator.store.library import Library
from generator.store.proofs import with_proof
from generator.store.schema import record_schema
from generator.sweep import sweep
from hgemm.cases import Case, Shape
from hgemm.cases import default_cases as device_cases
from hgemm.errors import LibraryError
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import LaunchOptions, Problem
from hgemm.record import Record, dump, validate
from hgemm.verification import CANARY, CheckOptions, Trial, operand_layouts
from hgemm.verification import verify as verify_cases

ONE = {**SMALL, "layout": "tn"}
EDGE = next(fault for fault in FAULTS if fault.name == "row past the edge of D")


def invoke(command, *arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if isinstance(result.exception, Exception) and not hasattr(result.exception, "exit_code"):
        raise result.exception
    return result


def kernel_of(options: dict[str, str]) -> EmittedKernel:
    (plan,) = sweep([options]).plans
    return emit(plan, templates_folder())


def request(
    host_toolchain: HostToolchain, kernel: EmittedKernel, templates: Path | None = None, **others
) -> ProofRequest:
    """Return the request for a kernel, compiled from the templates or from changed ones."""
    text = ProofSource.of(kernel)
    ptx = text.ptx(templates) if templates else ptx_of(kernel)
    return replace(request_of(host_toolchain, ptx, text.record), **others)


@pytest.fixture
def library(small_library: Library, tmp_path: Path) -> Library:
    """One kernel of the shared library, to be written to."""
    (symbol,) = (row["symbol"] for row in small_library.rows() if "_tn_" in row["symbol"])
    shutil.copytree(small_library.folder / symbol, tmp_path / "lib" / symbol)
    return Library(tmp_path / "lib")


# ---- hgemm verify --emulate -----------------------------------------------------------------------------------------


def test_proofs_are_stored_in_records(library: Library, host_toolchain: HostToolchain, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    result = invoke(verify.verify_command, "--emulate", "--library", library.folder, "--junit", report, "--seed", 3)
    (record,) = library.records()
    line, summary = result.stdout.splitlines()
    assert line.startswith(
        f"ok    {record.symbol}  20/20 shapes; instruction and byte counts as planned; largest error "
    ), line
    assert result.exit_code == 0 and summary.endswith("; 20 shapes passed")
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: run 'make setup'")
    jsonschema.Draft202012Validator(record_schema()).validate(record.data)
    proof = record.data["proof"]
    assert proof["mma_per_k_tile"] == proof["bytes_per_k_tile"] / 1024 == 2 and proof["bank_conflicts"] == 0
    assert proof["read_conflicts_per_k_tile"] == proof["copy_conflicts_per_k_tile"] == proof["races"] == 0
    assert proof["order_elements"] > 32 * 32
    assert proof["barriers_per_k_tile"] == 1 and proof["seed"] == 3 and proof["executor"] == host_toolchain.version()
    assert 0 < proof["max_bound_ratio"] <= 1 and len(proof["shapes"]) == 17 and len(proof["timings"]) == 4
    assert proof["coverage"]["rounds_per_tile"] == proof["coverage"]["rounds_per_cta"] == 2.5
    assert proof["coverage"]["offsets_beyond_2_31"] == ["A", "B", "C", "D"] and proof["coverage"]["launches"] > 17
    assert "\ncoverage\n" in invoke(show_command, record.symbol, "--library", library.folder).stdout
    assert 0 < proof["ideal_sectors_per_request"] <= proof["sectors_per_request"]
    (suite,) = ElementTree.parse(report).getroot()
    assert suite.get("tests") == "21" and suite.get("failures") == "0"
    written = (library.folder / record.symbol / "record.json").stat().st_mtime_ns
    arguments = ("--emulate", "--library", library.folder, "--seed", 3, "--junit", report)
    assert invoke(verify.verify_command, *arguments, "--force").exit_code == 0
    assert (library.folder / record.symbol / "record.json").stat().st_mtime_ns == written
    again = invoke(verify.verify_command, *arguments)
    line, summary = again.stdout.splitlines()
    assert again.exit_code == 0 and line.endswith("proved before") and "1 earlier proof reused, --force" in summary
    assert "  20/20 shapes; " in line and "; 20 shapes passed; " in summary  # as in the first run
    (suite,) = ElementTree.parse(report).getroot()
    assert suite.get("tests") == "20" and suite.get("failures") == "0"


def test_kernels_of_a_read_only_library_are_verified(
    library: Library, host_toolchain: HostToolchain, monkeypatch
) -> None:
    (record,) = library.records()
    monkeypatch.setattr(emulate, "is_writable", lambda folder: False)  # tests may run as root, whom no permission stops
    result = invoke(verify.verify_command, "--emulate", "--library", library.folder)
    assert result.exit_code == 0 and result.stdout.startswith(f"ok    {record.symbol}  20/20 shapes; ")
    assert result.stderr == f"hgemm: {library.folder} is read-only: proofs are not stored\n"
    assert [one.data for one in library.records()] == [record.data]


def test_verify_takes_shapes_and_prints_json(library: Library, host_toolchain: HostToolchain) -> None:
    arguments = ["--emulate", "--library", library.folder, "--shapes", "33x17x40,8x8x8@2", "--json"]
    (answer,) = json.loads(invoke(verify.verify_command, *arguments).stdout)
    assert [check["case"].split()[0] for check in answer["checks"]] == ["33x17x40", "8x8x8@2"]
    assert all(check["passed"] and check["numbers_passed"] and check["findings"] == [] for check in answer["checks"])
    (record,) = library.records()
    assert "executor" not in record.data["proof"]  # chosen shapes prove nothing in general
    assert answer["checks"] == json.loads(invoke(verify.verify_command, *arguments).stdout)[0]["checks"]


def test_a_damaged_record_fails_the_check_of_a_library(
    library: Library, small_library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = library.records()
    other = next(row["symbol"] for row in small_library.rows() if row["symbol"] != record.symbol)
    shutil.copytree(small_library.folder / other, library.folder / other)
    (library.folder / other / "record.json").write_text("{")
    for words in ([], ["--arch", record.data["arch"]]):
        caplog.clear()
        result = invoke(verify.verify_command, "--emulate", "--library", library.folder, *words)
        assert f"ok    {record.symbol}" in result.stdout and result.exception.exit_code == 1
        assert other in str(result.exception) and "record.json" not in str(result.exception)
        assert [f"{other}/record.json is not" in one.getMessage() for one in caplog.records] == [True], (
            "one description"
        )
    only = invoke(verify.verify_command, "--emulate", "--library", library.folder, record.symbol)
    assert only.exit_code == 0 and only.stdout.startswith(f"ok    {record.symbol}  ")


def test_a_shape_too_large_for_the_cpu_is_rejected(library: Library, host_toolchain: HostToolchain) -> None:
    result = invoke(verify.verify_command, "--emulate", "--library", library.folder, "--shapes", "100000x100000x64")
    assert isinstance(result.exception, RequestError) and "shape 100000x100000x64 has" in str(result.exception)


def test_verify_needs_exactly_one_place(library: Library) -> None:
    for flags, message in (([], "no place to verify"), (["--device", "--emulate"], "exclude each other")):
        result = invoke(verify.verify_command, *flags, "--library", library.folder)
        assert message in str(result.exception) and result.exception.exit_code == 2


def test_unwritable_report_fails_first(library: Library, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, reason in (
        (tmp_path / "nodir" / "x.xml", "No such file"),
        (tmp_path / "file" / "x.xml", "a file is in the place"),
    ):
        result = invoke(verify.verify_command, "--emulate", "--library", library.folder, "--junit", place)
        assert result.stdout == "" and str(result.exception).startswith(f"cannot write {place}: {reason}")


def test_missing_compiler_gives_a_one_line_error(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such++")
    done = call("hgemm", "verify", "--emulate", "--library", library.folder)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("hgemm: error: CXX is no-such++, which is not installed: install g++ 12")


def test_junit_has_a_test_for_each_built_kernel(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    options = ["--arch", "sm_80", "--tile", "32x32x16", "-o", tmp_path / "lib", "--junit", report, "-q"]
    assert invoke(generate_command, *options).exit_code == 0
    (suite,) = ElementTree.parse(report).getroot()
    assert [case.get("name") for case in suite] == ["build"] and suite.get("failures") == "0"


# ---- generate --verify emulate --------------------------------------------------------------------------------------


def test_proved_kernels_are_stored_with_their_proof(settings: Settings, host_toolchain: HostToolchain) -> None:
    proving = replace(settings, prover=Prover(host_toolchain))
    (outcome,) = made(ONE, proving)
    assert outcome.status == "proved" and outcome.record.data["proof"]["executor"] == host_toolchain.version()
    assert outcome.seconds > outcome.record.data["proof"]["emulate_seconds"] > 0
    assert made(ONE, proving)[0].status == made(ONE, settings)[0].status == "cached"


def test_stored_kernels_without_a_proof_are_proved(settings: Settings, host_toolchain: HostToolchain) -> None:
    assert made(ONE, settings)[0].status == "built"
    (outcome,) = made(ONE, replace(settings, prover=Prover(host_toolchain)))
    assert outcome.status == "proved" and "executor" in outcome.record.data["proof"]


def test_failed_kernels_are_not_stored(
    host_toolchain: HostToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_templates(EDGE) as templates:
        monkeypatch.setattr(generate, "templates_folder", lambda: templates)
        monkeypatch.setattr(emulate, "templates_folder", lambda: templates)
        options = [word for name, text in ONE.items() for word in (f"--{name}", text)]
        result = invoke(generate_command, *options, "--verify", "emulate", "--library", tmp_path / "lib", "-q")
    assert result.exit_code == 1 and "fails its check and is not stored: " in result.stderr
    assert "bounds at kernel.ptx:" in result.stderr and "(warp_epilogue.cuh:" in result.stderr
    assert "write of" in result.stderr and "[st.global" in result.stderr
    assert not [*Library(tmp_path / "lib").rows()]


def test_an_epilogue_with_large_results_is_proved(host_toolchain: HostToolchain, tmp_path: Path) -> None:
    options = ["--arch", "sm_80", "--tile", "64x64x32", "--epilogue", "(acc, row_sum(exp(acc)))"]
    result = invoke(generate_command, *options, "--verify", "emulate", "--library", tmp_path / "lib", "-q")
    (record,) = Library(tmp_path / "lib").records()
    assert result.exit_code == 0 and record.data["proof"]["max_error"] > 1e18


def test_results_too_large_for_a_record_fail_one_kernel(
    small_library: Library, host_toolchain: HostToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(small_library.folder, tmp_path / "lib")
    copy = Library(tmp_path / "lib")
    wrong, *others = (str(row["symbol"]) for row in copy.rows())

    def check(self: CheckWorkers, request: ProofRequest) -> tuple[CheckOutcome, str]:
        proof = {"max_error": math.inf if request.symbol == wrong else 1.0, "races": 0, "shapes": ["1x1x1"]}
        checks = ({"case": "1x1x1", "passed": True, "reason": "", "max_bound_ratio": 0.0},)
        return CheckOutcome(request.symbol, checks, proof=proof), ""

    monkeypatch.setattr(CheckWorkers, "check", check)
    monkeypatch.setattr(Emulation, "_located", lambda self, outcome: outcome)
    found = {outcome.symbol: outcome for outcome in Emulation(copy, host_toolchain).outcomes([wrong, *others])}
    assert found[wrong].failed and "proof.max_error must be a number" in found[wrong].error
    assert others and all(found[symbol].passed for symbol in others)
    assert {symbol: "max_error" in copy.load(symbol).record.data["proof"] for symbol in found} == {
        wrong: False,
        **dict.fromkeys(others, True),
    }
    with pytest.raises(ProofError, match="cannot be stored: proof.max_error"):  # fails this kernel of a build
        with_proof(copy.load(wrong).record.data, {"max_error": math.nan})


# ---- Text that is not as it should be -------------------------------------------------------------------------------

BODY = "hgemm::gemm<Policy>(problem);"


@pytest.mark.parametrize(
    ("body", "timeout_s", "message"),
    [
        ("*reinterpret_cast<int volatile*>(8) = 1;", 60, "write of 4 bytes outside all regions"),
        ("for (;;) { int volatile i = 0; }", 1, "no answer within 1 s: the kernel may hang"),
        ("", 60, "elements of D were not written"),
    ],
    ids=["writes elsewhere", "hangs", "does nothing"],
)
def test_source_without_a_kernel_gives_an_error(
    host_toolchain: HostToolchain, body: str, timeout_s: float, message: str
) -> None:
    kernel = kernel_of(ONE)
    assert BODY in kernel.source
    wrong = replace(kernel, source=kernel.source.replace(BODY, body))
    outcome, _ = workers(1, timeout_s).check(request(host_toolchain, wrong))
    assert outcome.failed and message in outcome.reason, outcome.reason


def test_unknown_ptx_gives_an_error(host_toolchain: HostToolchain) -> None:
    asked = request(host_toolchain, kernel_of(ONE))
    wrong = replace(asked, ptx=asked.ptx.replace("bar.sync", "bar.sunk"))
    outcome, _ = workers(1).check(wrong)
    assert outcome.failed and "PTX instruction bar.sunk is not supported, at line" in outcome.reason, outcome.reason


def test_custom_epilogues_are_proved(host_toolchain: HostToolchain) -> None:
    """It scales and activates in another way: accepted where the result is the same, found where it differs."""
    ours = At("WarpEpilogue", "Policy::Activation::apply(x)")
    kernel = kernel_of({**ONE, "activation": "relu"})
    program = Program.of(kernel.source, templates_folder())
    for mine, right in (("x > 0.f ? x : @ * 1.f", True), ("x + 1.f", False)):
        with templates_with(program.edited([ours.replace(mine)]).changes_from(program)) as templates:
            outcome = check_here(request(host_toolchain, kernel, templates, shapes="33x17x40,64x64x64"))
        assert outcome.passed == right, outcome.reason


# ---- Once wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"tile": "128x72x64", "store": "direct"}, {"tile": "128x40x64", "out": "f32", "align_d": "1", "bias": "row"}],
    ids=lambda options: " ".join(options.values()),
)
def test_direct_stores_stay_inside_narrow_tiles(host_toolchain: HostToolchain, options: dict[str, str]) -> None:
    outcome = check_here(
        request(host_toolchain, kernel_of({"arch": "sm_90a", **options}), shapes="128x144x128,64x100x64")
    )
    assert outcome.passed, outcome.reason


# ---- Costs ----------------------------------------------------------------------------------------------------------

PLACED = {**SMALL, "tile": "64x64x32", "warp_tile": "32x32"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [
        {"smem": "none"},
        {"smem": "none", "layout": "nt"},
        {"smem": "xor:1,3,3", "layout": "nn", "align": "4"},
        {"smem": "pad:8", "layout": "tt", "align": "2", "stages": "10"},
        {"smem": "pad_alternate:8"},
        {"mma": "wmma16", "smem": "none", "layout": "nn"},
        {"mma": "wmma16", "smem": "pad:8", "copy": "ldg_sts", "stages": "1", "fragment_stages": "1"},
        {"arch": "sm_75", "smem": "pad_alternate:8", "layout": "nt", "mma": "m16n8k8"},
        pytest.param({"mma": "wmma16", "smem": "pad:8", "layout": "tt", "acc": "f16"}, marks=pytest.mark.slow),
        {"mma": "wmma16", "smem": "pad:8", "layout": "nt", "dtype": "bf16", "fragment_stages": "1"},
        pytest.param({"smem": "pad_alternate:16", "layout": "nt"}, marks=pytest.mark.slow),
        pytest.param(
            {"tile": "128x48x32", "warp_tile": "128x16", "layout": "nt", "align": "4", "smem": "pad_alternate:8"},
            marks=pytest.mark.slow,
        ),
        {"tile": "48x80x48", "warp_tile": "48x40", "smem": "none", "align": "1"},
        {"schedule": "split_k:3", "mma": "m16n8k8"},
        {
            **{"tile": "16x112x32", "warp_tile": "16x112", "stages": "1", "fragment_stages": "1"},
            **{"layout": "tt", "align_b": "2", "smem_a": "xor:2,3,3", "smem_b": "xor:1,3,3"},
        },  # copies with idle lanes, whose conflicts cannot be counted by source lines
    ],
    ids=lambda options: " ".join(options.values()),
)
def test_counted_and_computed_costs_agree(host_toolchain: HostToolchain, options: dict[str, str]) -> None:
    costs, sites = counted({**PLACED, **options}, host_toolchain)
    assert costs.read_conflicts_per_k_tile > 0 or options.get("smem") not in ("none", "pad_alternate:16")
    assert {"wmma_load" if "wmma16" in options.values() else "ldmatrix", "store"} <= {site["kind"] for site in sites}
    (plan,) = sweep([{**PLACED, **options}]).plans
    if placement_of(plan.spec.to_dict()).copies_are_even:
        assert plan.bank_conflicts == costs.read_conflicts_per_k_tile + costs.copy_conflicts_per_k_tile


def test_cluster_costs_count_each_cta(host_toolchain: HostToolchain) -> None:
    options = {"arch": "sm_90a", "tile": "128x64x64", "stages": "3"}
    for changes in ({"cluster": "1x1"}, {"cluster": "2x1"}, {"cluster": "2x1", "schedule": "stream_k", "stages": "7"}):
        costs, sites = counted({**options, **changes}, host_toolchain)
        assert (costs.mma_per_k_tile, costs.bytes_per_k_tile) == (4, (128 + 64) * 64 * 2)
        assert {"tma_load", "wgmma", "tma_store"} <= {site["kind"] for site in sites}


def counted(options: dict[str, str], host_toolchain: HostToolchain) -> tuple[Costs, list[dict]]:
    """Return the costs of a kernel, which must be those of its plan, and of its source lines."""
    made = kernel_of(options)
    record = planned_sections(made)
    kernel = EmulatedKernel(LaunchTraits.of(record), executable_of(made, host_toolchain), ())
    costs, sites = count(kernel, record["spec"])
    assert not [*disagreements(costs, kernel.traits, record["spec"], made.plan.mma_per_k_tile)]
    return costs, sites


def test_cost_disagreement_shows_both_numbers() -> None:
    kernel = kernel_of(ONE)
    record = planned_sections(kernel)
    costs = Costs(2, 0, 1, 2048, 5, 0, 0, 1, 1)
    messages = [*disagreements(costs, LaunchTraits.of(record), record["spec"], 3)]
    assert messages == [
        "mma per k tile: counted 2, planned 3",
        "read conflicts per k tile: counted 5, planned 0",
    ]


# ---- The sample of CI -----------------------------------------------------------------------------------------------


def test_ci_sample_depends_on_the_commit_and_includes_changes() -> None:
    kernels = [ProofSource.of(replace(kernel_of(ONE), symbol=f"k{i:02}")) for i in range(40)]
    first, second = ({kernel.symbol for kernel in chosen(kernels, 5, seed, ["k07", "gone"])} for seed in ("abc", "abd"))
    assert len(first) == len(second) == 6 and "k07" in first & second and first != second
    assert first == {kernel.symbol for kernel in chosen(kernels, 5, "abc", ["k07", "gone"])}


# ==== Cases, adversaries, regions and verdicts ========================================================================

CLEAN = Report((), (), {"mma_m16n8k16": 8})
RACE = Finding("race", 3, "thread 1 and thread 2", "operand.cuh", 7)
CASE = Case(Shape(33, 49, 20), loose=True)


class FakeExecutable:
    """Launches `simulated` with some faults, and reports given numbers."""

    def __init__(self, traits: LaunchTraits, *faults: str, report: Report = CLEAN) -> None:
        self.traits, self.faults, self.report = traits, frozenset(faults), report
        self.runs: list[tuple[Launch, Adversary]] = []

    def run(self, launch: Launch, adversary: Adversary) -> Report:
        self.runs.append((launch, adversary))
        problem = Problem(*_unpacked(launch.parameters[0]))
        simulated.launch(self.traits, problem, self.faults)
        return self.report


def _unpacked(parameter: bytes) -> tuple:
    import struct

    v = struct.unpack_from("<6Q4q5q4i2f", parameter)
    return (*v[15:19], *v[:15], *v[19:])


def kernel_in_numpy(document: dict, *faults: str, report: Report = CLEAN) -> EmulatedKernel:
    traits = LaunchTraits.of(document)
    return EmulatedKernel(traits, FakeExecutable(traits, *faults, report=report), ())


KERNELS = {
    "plain": record(),
    "nt f16": record(layout="nt", acc="f16", align=(4, 2, 1)),
    "bf16 without C": record(layout="nn", dtype_a="bf16", dtype_b="bf16", dtype_d="bf16", align=(1, 1, 8), beta=False),
    "split_k": record("split_k", splits=3, bias="row"),
    "persistent": record("persistent", bias="column", activation="gelu"),
    "stream_k": record("stream_k", bias="row"),
}


# ---- Judging --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes_every_default_case(name: str) -> None:
    kernel = kernel_in_numpy(KERNELS[name])
    for case in default_cases(kernel.traits, stages=3):
        judged = check_case(kernel, case, seed=0)
        assert judged.passed and judged.numbers_passed and not judged.findings, judged


def test_cpu_results_are_judged_as_on_a_device() -> None:
    wrong = kernel_in_numpy(record(), "drops an element of k")
    judged = check_case(wrong, CASE, seed=5)
    alone = EmulatedKernel(wrong.traits, wrong.executable, adversaries_of(str(CASE), 5))
    assert not judged.passed and not judged.numbers_passed
    assert judged.reason == verify_cases(alone, CASE, HostMemory(), CheckOptions(seed=5)).reason


def test_findings_fail_cases_with_right_numbers() -> None:
    judged = check_case(kernel_in_numpy(record(), report=replace(CLEAN, findings=(RACE,))), CASE, seed=1)
    assert not judged.passed and judged.numbers_passed and len(judged.findings) == len(LAUNCHES)
    first = adversaries_of(str(CASE), 1)[0]
    assert judged.reason == f"race at operand.cuh:7: thread 1 and thread 2 (3 times) ({first})"
    assert {finding["adversary"] for finding in judged.findings} == {*map(str, adversaries_of(str(CASE), 1))}


def test_every_case_runs_every_adversary() -> None:
    kernel = kernel_in_numpy(record())
    check_case(kernel, CASE, seed=3)
    met = [adversary for _, adversary in kernel.executable.runs]
    assert met == list(adversaries_of(str(CASE), 3)) and met[0].timing == "late" and met[0].order == "ahead_low"
    assert [(one.timing, one.order) for one in met] == list(LAUNCHES)
    assert adversaries_of(str(CASE), 4) != adversaries_of(str(CASE), 3) != adversaries_of("1x1x1", 3)
    assert {one.timing for one in met} == {*abi.TIMINGS} and {one.order for one in met} == {*abi.ORDERS}


# ---- Launches -------------------------------------------------------------------------------------------------------


def test_operands_are_regions_with_access_rights() -> None:
    document = record("split_k", splits=2, layout="nn", bias="row")
    traits = LaunchTraits.of(document)
    case = Case(Shape(33, 49, 20, 2), 1.0, 0.5, loose=True)
    fields = {}
    for at, (name, place) in enumerate(operand_layouts(traits, case).items()):
        fields[name], fields[f"batch_stride_{name}"] = (1 + at) << 20, place.batch_stride
        if name != "bias":
            fields[f"ld{name}"] = place.leading
    problem = Problem(33, 49, 20, 2, workspace=1 << 24, alpha=1.0, beta=0.5, **fields)
    found = {region.name: region for region in regions(traits, problem, grid=8)}
    assert {*found} == {"A", "B", "C", "bias", "D", "counters", "partial results"}
    assert found["A"].flags == abi.READABLE | abi.INITIALISED | abi.PADDING_READABLE  # m is contiguous
    assert found["B"].flags == found["C"].flags == abi.READABLE | abi.INITIALISED
    assert found["D"].flags == abi.WRITABLE | abi.WRITE_ONCE
    shifting = replace(traits, copy="ldg_sts_unaligned", align_a=8, align_b=1)
    shifted = {region.name: region for region in regions(shifting, problem, grid=8)}
    assert {name for name, region in shifted.items() if region.flags & abi.MATRIX_READABLE} == {"B"}
    assert not found["partial results"].flags & abi.INITIALISED and found["counters"].flags & abi.INITIALISED
    assert (found["D"].rows, found["D"].row_bytes, found["D"].batches) == (33, 98, 2)
    assert found["partial results"].base == found["counters"].base + WORKSPACE_COUNTERS * COUNTER_BYTES


def test_a_persistent_kernel_has_fewer_ctas_than_tiles() -> None:
    traits = LaunchTraits.of(record("persistent"))
    problem = Problem(5 * traits.tile_m, traits.tile_n, 16, a=256, b=256, d=256, lda=16, ldb=16, ldd=traits.tile_n)
    assert launch_of(traits, problem).grid[0] == PERSISTENT_CTAS < 5
    assert launch_of(LaunchTraits.of(record()), problem).grid[0] == 5


def test_stream_k_touches_only_the_workspace_of_its_grid() -> None:
    traits = LaunchTraits.of(record("stream_k"))
    problem = Problem(traits.tile_m, traits.tile_n, 16, a=256, b=256, d=256, lda=16, ldb=16, ldd=traits.tile_n)
    for ctas in (1, 7):
        launch = launch_of(traits, replace(problem, workspace=1 << 24), ctas)
        (sums,) = (region for region in launch.regions if region.name == "partial results")
        assert (launch.grid[0], sums.row_bytes) == (ctas, ctas * 2 * traits.partial_bytes)


def test_tensor_maps_have_the_expected_size_and_offset() -> None:
    maps = [{"operand": "a", "box": [64, 32, 1], "swizzle_bytes": 128, "element": "f16"}]
    document = record()
    document["launch"] = {**document["launch"], "tensor_maps": maps, "cluster_shape": [1, 1]}
    traits = LaunchTraits.of(document)
    problem = Problem(32, 48, 64, a=4096, b=256, d=256, lda=64, ldb=64, ldd=48)
    first, second = launch_of(traits, problem).parameters
    assert len(first) == 160 and len(second) == 3 * 128 and not any(second[128:])
    read = abi.EmulatedTensorMap.from_buffer_copy(second)
    assert (read.base, read.magic, read.rank, read.element_bytes, read.swizzle) == (4096, abi.TENSOR_MAP_MAGIC, 3, 2, 3)
    assert list(read.extent)[:3] == [64, 32, 1] and list(read.box)[:3] == [64, 32, 1] and read.stride_bytes[0] == 128


def test_the_guard_bands_hold_poison() -> None:
    assert CANARY.to_bytes(2, "little") == b"\xff\xff"


def test_executor_report_is_parsed() -> None:
    site = dict.fromkeys("line requests wavefronts ideal_wavefronts sectors ideal_sectors bytes".split(), 1)
    document = {
        "findings": [{"kind": "race", "count": 3, "message": "m", "file": "f", "line": 2}],
        "sites": [{"file": "f", "kind": "cp_async", "space": "both", **site}],
        "predicates": "",
        "counters": {"steps": 4},
    }
    report = Report.of_json(document)
    assert (
        str(report.findings[0]) == "race at f:2: m (3 times)" and report.sites[0].bytes == report.counters["steps"] - 3
    )


# ---- Cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [(16, 16, 16), (256, 256, 64), (64, 32, 48)])
@pytest.mark.parametrize("rule", ["one_tile", "split_k", "persistent"])
def test_default_cases_are_ragged_in_every_way_and_small(tile: tuple[int, int, int], rule: str) -> None:
    m, n, k = tile
    traits = replace(LaunchTraits.of(record(rule, splits=4 if rule == "split_k" else 1)), tile_m=m, tile_n=n, tile_k=k)
    cases = default_cases(traits, stages=4)
    shapes = [case.shape for case in cases]
    assert all(min(s.m, s.n, s.k, s.batch) >= 1 for s in shapes) and len({*map(str, cases)}) == len(cases)
    assert any(s.m % m == s.n % n == s.k % k == 0 and s.k >= 6 * k for s in shapes)
    for extent, name in ((m, "m"), (n, "n"), (k, "k")):
        assert any(getattr(s, name) % extent for s in shapes)
    assert Shape(1, 1, 1) in shapes and any(s.k <= 3 * k for s in shapes) and any(s.batch > 1 for s in shapes)
    assert {case.broadcast for case in cases} == {"", "a", "b,c,bias"} and any(case.in_place for case in cases)
    assert any(case.beta for case in cases) and any(case.loose for case in cases)
    assert any(case.beside for case in cases) and any(case.same_ab for case in cases)
    assert any(case.min_leading * min(case.shape.m, case.shape.n) > 2**31 for case in cases)
    tiles = [(-(-s.m // m), -(-s.n // n)) for s in shapes]
    assert any(rows > 8 and columns > 1 for rows, columns in tiles), "the second group of the raster"
    if rule == "persistent":
        assert any(s.batch >= 6 and s.k > 4 * k for s in shapes)  # every tile reuses a stage
    products = sum(-(-s.m // m) * -(-s.n // n) * -(-s.k // k) * s.batch for s in shapes) * m * n * k
    assert products <= 250 * max(m * n * k, 2**20)


@pytest.mark.parametrize("layout", ["tn", "nt"])
def test_leading_dimensions_and_batch_strides_differ_in_loose_cases(layout: str) -> None:
    traits = LaunchTraits.of(record(layout=layout))
    loose = [case for case in default_cases(traits, stages=3) if case.loose and not (case.in_place or case.beside)]
    assert len(loose) >= 5
    for case in loose:
        places = operand_layouts(traits, case)
        assert places["c"].leading != places["d"].leading and places["c"].batch_stride != places["d"].batch_stride
        assert all(places[name].leading >= places[name].columns + places[name].align for name in "abcd")


def covered(traits: LaunchTraits, cases: list[Case], rounds: float = 3.0) -> Coverage:
    """Return what the launches of cases cover, where each CTA multiplies `rounds` times as many k-tiles as there are stages."""
    coverage = Coverage(traits, mma_per_k_tile=1)
    kernel = EmulatedKernel(traits, FakeExecutable(traits, report=CLEAN), adversaries_of("", 0))
    for case in cases:
        trial = Trial(kernel, case, HostMemory(), CheckOptions(), "integer")
        trial.prepare()
        problem = trial.problem()
        grid = launch_of(traits, problem, workers_of(traits, problem)).grid[0]
        coverage.add(problem, grid, replace(CLEAN, counters={"mma": int(grid * traits.stages * rounds)}))
        trial.free()
    return coverage


@pytest.mark.parametrize("rule", ["one_tile", "split_k", "persistent"])
def test_default_cases_cover_all_verdicts(rule: str) -> None:
    traits = replace(LaunchTraits.of(record(rule, splits=3 if rule == "split_k" else 1)), stages=4, raster="group:8")
    cases = default_cases(traits, stages=4)
    assert [*covered(traits, cases).shortfalls()] == []
    assert {"C is D", "C beside D", "A is B", "one A for the batch"} <= covered(traits, cases).shared
    few = [*covered(traits, cases[:2], rounds=1.5).shortfalls()]
    assert any("1.5 times; at least 2 are needed" in reason for reason in few)
    assert any(reason.startswith("no problem leaves the first group") for reason in few)
    assert any("exceeds 2^31" in reason for reason in few) and any("m inside" in reason for reason in few)
    assert any("tiles; at least 6" in reason for reason in few) == (rule == "persistent")
    assert any("uneven splits" in reason for reason in few) == (rule == "split_k")


CLUSTERS = ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4")
RASTERED = (
    *({"arch": "sm_90a", "tile": "128x176x64", "cooperation": "pingpong", "cluster": cluster} for cluster in CLUSTERS),
    *({"arch": "sm_90a", "tile": "256x64x64", "swap_ab": "on", "cluster": cluster} for cluster in CLUSTERS),
    {"arch": "sm_90", "tile": "128x64x32", "copy": "tma"},
    {"arch": "sm_80", "tile": "128x96x32"},
)
SWIGLU = {"arch": "sm_90a", "tile": "128x128x64", "cluster": "2x1", "epilogue": "silu(gate) * up"}


def groups_covered(traits: LaunchTraits, cases: list[Case]) -> int:
    """Return the most groups, or panels, of one case that count for a verdict."""
    shapes = [(case.shape, case.options) for case in cases]
    return max(raster_groups(traits, Problem(at.m, at.n, at.k, at.batch, options=options)) for at, options in shapes)


@pytest.mark.parametrize("options", [*RASTERED, SWIGLU], ids=lambda options: "-".join(options.values()))
def test_the_default_cases_cover_each_legal_group_and_panel(options: dict[str, str]) -> None:
    tile_n = int(options["tile"].split("x")[1])
    sizes = range(1, 17)
    rasters = [f"group:{size}" for size in sizes] + [f"panel:{size * tile_n}" for size in sizes] + ["launch"]
    plans = sweep([{**options, "raster": ",".join(rasters)}]).plans  # without the illegal ones
    assert len(plans) > 3
    for plan in plans:
        traits = LaunchTraits.of(ProofSource.of(emit(plan, templates_folder())).record)
        for cases in (default_cases(traits, traits.stages), device_cases(traits, 264)):
            assert groups_covered(traits, cases) >= 2, traits.raster


@pytest.mark.parametrize(
    ("raster", "cluster", "m", "groups"),
    [
        ("group:2", (1, 1), 4, 0),  # the last group is full, and could be narrower
        ("group:2", (1, 1), 5, 3),
        ("group:2", (2, 1), 4, 2),  # a group of one cluster is always full
        ("group:2", (2, 1), 2, 1),
        ("group:4", (2, 1), 8, 0),
        ("launch", (1, 1), 4, 0),  # other launches have wider groups
    ],
)
def test_last_group_counts_if_it_cannot_be_narrower(raster: str, cluster: tuple[int, int], m: int, groups: int) -> None:
    traits = replace(LaunchTraits.of(record()), raster=raster, cluster_shape=cluster)
    problem = Problem(m * traits.tile_m, 2 * traits.tile_n, 1, options=LaunchOptions(1, 0, 1))
    assert raster_groups(traits, problem) == groups


@pytest.mark.parametrize("rule", ["one_tile", "persistent", "launch"])
@pytest.mark.parametrize("raster", ["row", "group:8"])
def test_each_bias_of_a_launch_has_a_case_without_c_whose_rows_end_within_8_columns(rule: str, raster: str) -> None:
    traits = replace(LaunchTraits.of(record(rule, bias="launch", beta=True)), raster=raster)
    cases = [case for case in default_cases(traits, stages=3) if not case.beta and case.shape.n % 8]
    assert {case.bias for case in cases if case.shape.m > 16 and case.shape.n > 16} == {"none", "row", "column"}


def test_instructions_that_never_run_are_a_shortfall() -> None:
    coverage = Coverage(LaunchTraits.of(record()), mma_per_k_tile=1)
    problem = Problem(33, 49, 20, lda=20, ldb=20, ldc=49, ldd=49)
    coverage.add(problem, 2, replace(CLEAN, predicates=(1, 2, 0)))
    assert "1 of the 3 instructions with a predicate never run" in [*coverage.shortfalls()]
    coverage.add(problem, 2, replace(CLEAN, predicates=(2, 2, 1)))
    assert not any("predicate" in reason for reason in coverage.shortfalls())
    assert (coverage.record()["predicates"], coverage.record()["predicates_both_ways"]) == (3, 1)


def test_every_cta_gets_six_tiles_if_there_are_enough() -> None:
    persistent, one_tile = LaunchTraits.of(record("persistent")), LaunchTraits.of(record())
    tile = persistent.tile_m
    for tiles, ctas in ((1, 1), (6, 1), (12, 2), (17, 2), (18, 3), (100, 3)):
        assert workers_of(persistent, Problem(tiles * tile, 1, persistent.tile_k)) == ctas
        assert workers_of(one_tile, Problem(tiles * tile, 1, 1)) == PERSISTENT_CTAS
        assert workers_of(persistent, Problem(tiles * tile, 1, 1)) == max(1, tiles - 1)


def test_reserved_memory_holds_written_values() -> None:
    memory = HostMemory()
    pointer = memory.allocate(2**41)
    memory.upload(pointer + 2**40, ctypes.addressof(ctypes.create_string_buffer(b"far")), 3)
    assert ctypes.string_at(pointer + 2**40, 3) == b"far"
    memory.free(pointer)


def test_the_measured_case_has_as_many_k_tiles_for_each_split() -> None:
    traits = LaunchTraits.of(record("split_k", splits=3))
    assert measured_case(traits, 5).shape == Shape(traits.tile_m, traits.tile_n, 15 * traits.tile_k)


# ---- Placement ------------------------------------------------------------------------------------------------------

SPEC = {
    "cta_tile": "64x32x32",
    "warp_tile": "32x16",
    "layout": "tn",
    "align_a": 8,
    "align_b": 8,
    "dtype_a": "f16",
    "dtype_b": "f16",
    "copy": "cp_async",
}


def test_placement_costs_count_every_reading_warp() -> None:
    placement = placement_of({**SPEC, "smem_a": "none", "smem_b": "none"})
    assert (placement.warps_m, placement.warps_n, placement.threads) == (2, 2, 128)
    assert placement.read_conflicts == 2 * read_conflicts(placement.a) + 2 * read_conflicts(placement.b) > 0
    swizzled = placement_of({**SPEC, "smem_a": "xor:2,3,3", "smem_b": "xor:2,3,3"})
    assert swizzled.read_conflicts == swizzled.copy_conflicts == 0


@pytest.mark.parametrize("smem", ["none", "xor:2,3,3", "xor:1,3,3", "pad:8", "pad:24", "pad_alternate:8"])
@pytest.mark.parametrize("chunk", [8, 4, 2, 1])
def test_single_pass_copies_cost_as_the_layouts_predict(smem: str, chunk: int) -> None:
    threads = 128
    rows = threads * chunk // 32  # one pass
    tile = OperandTile(True, rows, 32, chunk, threads, Smem.parse(smem))
    assert copy_conflicts(tile, threads) == write_conflicts(tile)


def test_copies_count_every_pass_and_no_thread_without_a_chunk() -> None:
    plain = OperandTile(True, 64, 48, 8, 64, Smem("none"))  # 6 chunks a row, 10 rows a pass, 4 threads idle
    assert copy_conflicts(plain, 64) >= copy_conflicts(replace(plain, rows=10), 64) * 6
    wide = OperandTile(False, 4, 256, 1, 64, Smem("none"))  # 4 passes along a row
    assert copy_conflicts(wide, 64) == 0


@pytest.mark.parametrize(
    ("tile", "align", "even"),
    [("64x32x32", 8, True), ("64x48x48", 8, True), ("32x32x16", 8, True), ("64x32x48", 4, False)],
)
def test_copies_are_even_if_no_warp_is_partly_idle(tile: str, align: int, even: bool) -> None:
    aligned = {"align_a": align, "align_b": align, "smem_a": "none", "smem_b": "none", "warp_tile": "16x16"}
    assert placement_of({**SPEC, **aligned, "cta_tile": tile}).copies_are_even == even


# ---- The record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("races", "none"), ("shapes", "33x17x40"), ("max_error", -1), ("executor", 3), ("seed", 1.5)]
)
def test_the_fields_of_a_proof_have_types(name: str, value: object) -> None:
    proof = {"mma_per_k_tile": 4, "races": 0, "shapes": ["8x8x8"], "max_error": 0.5, "note": {"of": ["others"]}}
    validate({**make_record("one")[0], "proof": proof})
    with pytest.raises(LibraryError, match=f"proof.{name}"):
        validate({**make_record("one")[0], "proof": {**proof, name: value}})


@pytest.mark.parametrize("error", [2 * float(np.finfo(np.float32).max), 9.8e21])
def test_records_hold_any_finite_error(error: float) -> None:
    document = dump({**make_record("one")[0], "proof": {"max_error": error}})
    assert Record.parse(document).data["proof"]["max_error"] == pytest.approx(error)
