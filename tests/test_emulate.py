"""Kernels proved on the CPU, from the command line and before they are registered; needs a C++ compiler, and no GPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from conftest import SMALL, call, made

from benchmarks.anchors import At, Program
from benchmarks.faults import FAULTS, faulty_templates, templates_with
from generator.build.emit import Kernel, emit
from generator.build.pipeline import Settings, planned
from generator.build.toolchain import templates_folder
from generator.cli import device as verify
from generator.cli import generate
from generator.cli.main import generate_command
from generator.cli.prove_catalog import chosen
from generator.proof import jobs as emulate
from generator.proof.costs import Costs, count, disagreements
from generator.proof.executor import Executable, HostToolchain
from generator.proof.jobs import Emulation, ProofRequest, Prover, check_here, request_of, workers
from generator.proof.machine import EmulatedKernel
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.launch_traits import LaunchTraits

ONE = {**SMALL, "layout": "tn"}
EDGE = next(fault for fault in FAULTS if fault.name == "row past the edge of D")


def invoke(command, *arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if isinstance(result.exception, Exception) and not hasattr(result.exception, "exit_code"):
        raise result.exception
    return result


def kernel_of(options: dict[str, str]) -> Kernel:
    (plan,) = sweep([options]).plans
    return emit(plan, templates_folder())


def request(host_toolchain: HostToolchain, kernel: Kernel, source: str = "", **others) -> ProofRequest:
    record = {**planned(kernel), "proof": {"mma_per_tile": kernel.plan.mma_per_k_tile}}
    return replace(request_of(host_toolchain, source or kernel.source, record), **others)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Commands use the cache of the tests, not the user's."""
    if "host_toolchain" in request.fixturenames:
        monkeypatch.setenv("HGEMM_CACHE_DIR", str(request.getfixturevalue("host_toolchain").cache.parent))


@pytest.fixture
def library(small_library: Library, tmp_path: Path) -> Library:
    """One variant of the shared library, to be written to."""
    (symbol,) = (row["symbol"] for row in small_library.rows() if "_tn_" in row["symbol"])
    shutil.copytree(small_library.folder / symbol, tmp_path / "lib" / symbol)
    return Library(tmp_path / "lib")


# ---- hgemm verify --emulate -----------------------------------------------------------------------------------------


def test_a_library_is_proved_and_the_proof_is_filed(
    library: Library, host_toolchain: HostToolchain, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    result = invoke(verify.verify_command, "--emulate", "--library", library.folder, "--junit", report, "--seed", 3)
    (record,) = library.records()
    line, summary = result.stdout.splitlines()
    assert line.startswith(f"ok    {record.symbol}  16/16 shapes and the costs of a k-tile  worst"), line
    assert result.exit_code == 0 and summary.endswith("; 16 shapes passed")
    proof = record.data["proof"]
    assert proof["mma_per_tile"] == proof["bytes_per_k_tile"] / 1024 == 2 and proof["bank_conflicts"] == 0
    assert proof["read_conflicts_per_k_tile"] == proof["copy_conflicts_per_k_tile"] == proof["races"] == 0
    assert proof["barriers_per_k_tile"] == 1 and proof["seed"] == 3 and proof["executor"] == host_toolchain.version()
    assert 0 < proof["max_bound_ratio"] <= 1 and len(proof["shapes"]) == 16 and len(proof["timings"]) == 4
    assert 0 < proof["least_sectors_per_request"] <= proof["sectors_per_request"]
    (suite,) = ElementTree.parse(report).getroot()
    assert suite.get("tests") == "17" and suite.get("failures") == "0"
    written = (library.folder / record.symbol / "record.json").stat().st_mtime_ns
    assert invoke(verify.verify_command, "--emulate", "--library", library.folder, "--seed", 3).exit_code == 0
    assert (library.folder / record.symbol / "record.json").stat().st_mtime_ns == written


def test_shapes_are_taken_and_answered_as_json(library: Library, host_toolchain: HostToolchain) -> None:
    arguments = ["--emulate", "--library", library.folder, "--shapes", "33x17x40,8x8x8@2", "--json"]
    (answer,) = json.loads(invoke(verify.verify_command, *arguments).stdout)
    assert [check["case"].split()[0] for check in answer["checks"]] == ["33x17x40", "8x8x8@2"]
    assert all(check["passed"] and check["numbers_passed"] and check["findings"] == [] for check in answer["checks"])
    (record,) = library.records()
    assert "executor" not in record.data["proof"]  # chosen shapes prove nothing in general
    assert answer["checks"] == json.loads(invoke(verify.verify_command, *arguments).stdout)[0]["checks"]


def test_where_to_verify_must_be_said_once(library: Library) -> None:
    for flags, told in (([], "no place to verify"), (["--device", "--emulate"], "exclude each other")):
        result = invoke(verify.verify_command, *flags, "--library", library.folder)
        assert told in str(result.exception) and result.exception.exit_code == 2


def test_a_report_that_cannot_be_written_stops_before_the_work(library: Library, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, reason in (
        (tmp_path / "nodir" / "x.xml", "No such file"),
        (tmp_path / "file" / "x.xml", "a file is in the place"),
    ):
        result = invoke(verify.verify_command, "--emulate", "--library", library.folder, "--junit", place)
        assert result.stdout == "" and str(result.exception).startswith(f"cannot write {place}: {reason}")


def test_without_a_compiler_one_line_says_what_to_do(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such++")
    done = call("hgemm", "verify", "--emulate", "--library", library.folder)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("hgemm: error: CXX is no-such++, which is not installed: install g++ 12")


def test_a_variant_of_other_templates_is_not_run(
    library: Library, host_toolchain: HostToolchain, tmp_path: Path
) -> None:
    (record,) = library.records()
    templates = tmp_path / "templates"
    shutil.copytree(templates_folder(), templates)
    with open(templates / "common" / "warp_epilogue.cuh", "a") as header:
        header.write("// changed\n")
    emulation = Emulation(library, replace(host_toolchain, templates=templates))
    (outcome,) = emulation.outcomes([record.symbol])
    assert (
        outcome.failed
        and "templates/common/warp_epilogue.cuh has changed since the kernel was compiled" in outcome.reason
    )


# ---- generate --verify emulate --------------------------------------------------------------------------------------


def test_what_is_proved_is_registered_with_its_proof(settings: Settings, host_toolchain: HostToolchain) -> None:
    proving = replace(settings, prover=Prover(host_toolchain))
    (outcome,) = made(ONE, proving)
    assert outcome.status == "proved" and outcome.record.data["proof"]["executor"] == host_toolchain.version()
    assert outcome.seconds > outcome.record.data["proof"]["emulate_seconds"] > 0
    assert made(ONE, proving)[0].status == made(ONE, settings)[0].status == "cached"


def test_what_was_registered_without_a_proof_is_proved(settings: Settings, host_toolchain: HostToolchain) -> None:
    assert made(ONE, settings)[0].status == "built"
    (outcome,) = made(ONE, replace(settings, prover=Prover(host_toolchain)))
    assert outcome.status == "proved" and "executor" in outcome.record.data["proof"]


def test_what_fails_is_not_registered(
    host_toolchain: HostToolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_templates(EDGE) as templates:
        monkeypatch.setattr(generate, "templates_folder", lambda: templates)
        monkeypatch.setattr(emulate, "templates_folder", lambda: templates)
        options = [word for name, text in ONE.items() for word in (f"--{name}", text)]
        result = invoke(generate_command, *options, "--verify", "emulate", "--library", tmp_path / "lib", "-q")
    assert result.exit_code == 1 and "fails its check and is not registered: " in result.stderr
    assert "bounds at warp_epilogue.cuh:" in result.stderr and "write of" in result.stderr
    assert not [*Library(tmp_path / "lib").rows()]


def test_what_the_executor_cannot_run_is_refused_before_it_is_made(tmp_path: Path) -> None:
    options = ["--arch", "sm_80", "--tile", "64x64x32", "--form", "atoms,dsl", "--verify", "emulate"]
    result = invoke(generate_command, *options, "--library", tmp_path / "lib")
    assert result.exception.exit_code == 2 and "1 of 2 kernels are CuTe DSL modules" in str(result.exception)
    assert not (tmp_path / "lib").exists()


# ---- Text that is not as it should be -------------------------------------------------------------------------------

BODY = "hgemm::gemm<Policy>(problem);"


@pytest.mark.parametrize(
    ("body", "timeout_s", "message"),
    [
        ("*reinterpret_cast<int volatile*>(8) = 1;", 60, "its process ended with status -11"),
        ("for (int volatile i = 0;; i = i + 1) {}", 1, "no answer within 1 s: the kernel may hang"),
        ("this is no C++;", 60, "does not compile: "),
        ("", 60, "elements of D were not written"),
    ],
    ids=["crashes", "hangs", "is no C++", "does nothing"],
)
def test_a_text_that_is_no_kernel_is_told_of(
    host_toolchain: HostToolchain, body: str, timeout_s: float, message: str
) -> None:
    kernel = kernel_of(ONE)
    assert BODY in kernel.source
    outcome, _ = workers(1, timeout_s).check(request(host_toolchain, kernel, kernel.source.replace(BODY, body)))
    assert outcome.failed and message in outcome.reason, outcome.reason


def test_an_epilogue_of_ones_own_is_proved_the_same_way(host_toolchain: HostToolchain) -> None:
    """It scales and activates in another way: right where it means the same, and found out where it does not."""
    ours = At("WarpEpilogue", "Policy::Activation::apply(x)")
    kernel = kernel_of({**ONE, "activation": "relu"})
    program = Program.of(kernel.source, templates_folder())
    for mine, right in (("x > 0.f ? x : @ * 1.f", True), ("x + 1.f", False)):
        with templates_with(program.edited([ours.replace(mine)]).changes_from(program)) as templates:
            asked = request(replace(host_toolchain, templates=templates), kernel, shapes="33x17x40,64x64x64")
            outcome = check_here(asked)
        assert outcome.passed == right, outcome.reason


# ---- Once wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"tile": "128x72x64", "store": "direct"}, {"tile": "128x40x64", "out": "f32", "align_d": "1", "bias": "row"}],
    ids=lambda options: " ".join(options.values()),
)
def test_direct_stores_of_a_tile_that_ends_on_8_columns_stay_in_it(
    host_toolchain: HostToolchain, options: dict[str, str]
) -> None:
    outcome = check_here(
        request(host_toolchain, kernel_of({"arch": "sm_90a", **options}), shapes="128x144x128,64x100x64")
    )
    assert outcome.passed, outcome.reason


# ---- Costs ----------------------------------------------------------------------------------------------------------

PLACED = {**SMALL, "tile": "64x64x32", "warp_tile": "32x32"}


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
        {"mma": "wmma16", "smem": "pad:8", "layout": "tt", "acc": "f16"},
        {"mma": "wmma16", "smem": "pad:8", "layout": "nt", "dtype": "bf16", "fragment_stages": "1"},
        {"smem": "pad_alternate:16", "layout": "nt"},
        {"tile": "128x48x32", "warp_tile": "128x16", "layout": "nt", "align": "4", "smem": "pad_alternate:8"},
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
    assert all(site["file"].endswith(".cuh") for site in sites)


def test_the_costs_of_a_cluster_are_those_of_each_of_its_ctas(host_toolchain: HostToolchain) -> None:
    options = {"arch": "sm_90a", "tile": "128x64x64", "stages": "3"}
    for changes in ({"cluster": "1x1"}, {"cluster": "2x1"}, {"cluster": "2x1", "schedule": "stream_k", "stages": "7"}):
        costs, sites = counted({**options, **changes}, host_toolchain)
        assert (costs.mma_per_k_tile, costs.bytes_per_k_tile) == (4, (128 + 64) * 64 * 2)
        assert {"tma_load", "wgmma", "tma_store"} <= {site["kind"] for site in sites}


def counted(options: dict[str, str], host_toolchain: HostToolchain) -> tuple[Costs, list[dict]]:
    """Return the costs of a kernel, which must be those of its plan, and of its source lines."""
    made = kernel_of(options)
    record = planned(made)
    kernel = EmulatedKernel(
        LaunchTraits.of(record), Executable(host_toolchain.executable(made.symbol, made.source)), ()
    )
    costs, sites = count(kernel, record["spec"])
    assert not [*disagreements(costs, kernel.traits, record["spec"], made.plan.mma_per_k_tile)]
    return costs, sites


def test_a_disagreement_is_told_with_both_numbers() -> None:
    kernel = kernel_of(ONE)
    record = planned(kernel)
    costs = Costs(2, 1, 2048, 5, 0, 0, 1, 1)
    told = [*disagreements(costs, LaunchTraits.of(record), record["spec"], 3)]
    assert told == [
        "mma per k tile: counted 2, planned 3",
        "read conflicts per k tile: counted 5, planned 0",
    ]


# ---- The sample of CI -----------------------------------------------------------------------------------------------


def test_the_sample_changes_with_the_commit_and_has_all_that_changed() -> None:
    kernels = [replace(kernel_of(ONE), symbol=f"k{i:02}") for i in range(40)]
    first, second = ({kernel.symbol for kernel in chosen(kernels, 5, seed, ["k07", "gone"])} for seed in ("abc", "abd"))
    assert len(first) == len(second) == 6 and "k07" in first & second and first != second
    assert first == {kernel.symbol for kernel in chosen(kernels, 5, "abc", ["k07", "gone"])}
