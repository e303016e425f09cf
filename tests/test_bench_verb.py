"""`hgemm bench` and `python -m hgemm.bench`: problems, options, tables, files, exit statuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from fake_bench import BenchDriver, FakeCublasLt, build
from fake_driver import installed
from records import make_record

import hgemm.bench.operands
import hgemm.device
from generator.cli import device as bench
from generator.store.library import Library
from hgemm.bench import baselines
from hgemm.bench.__main__ import command as module_command
from hgemm.bench.results import means, table
from hgemm.bench.runner import plan_of, works_of
from hgemm.bench.work import Work, names, read_suite
from hgemm.device import open_device
from hgemm.errors import RequestError
from hgemm.kernel import Kernel
from hgemm.library import open_library
from hgemm.measured import read_sessions
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target

ROOT = Path(__file__).resolve().parent.parent
QUICK = "--seconds 0 --screen-ms 0.01 --warm-up 0 --rewarm 0 --rounds 3 --seed 1".split()


@pytest.fixture(scope="module")
def lt_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("lt"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    library = Library(tmp_path / "lib")
    for symbol, layout in (("hgemm_fast", "tn"), ("hgemm_slow", "tn"), ("hgemm_other", "nt")):
        made = make_record(symbol, arch="sm_80", cta_tile="32x48x16", layout=layout)
        library.publish(*made)
    return library.folder


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, folder: Path, lt_path: Path) -> Iterator[BenchDriver]:
    fake = BenchDriver()
    monkeypatch.setattr(hgemm.bench.operands, "POOL_ELEMENTS", 8 * 127)
    monkeypatch.setattr(baselines, "find_library", lambda: str(lt_path))
    for symbol, cost in (("hgemm_fast", 8.0), ("hgemm_slow", 16.0), ("hgemm_other", 4.0)):
        fake.serve(Kernel(Library(folder).load(symbol).record.data), cost)
    fake.lt = FakeCublasLt(lt_path, fake, [10.0, 9.0])
    with installed(fake, monkeypatch):
        yield fake


def call(*arguments: object, command=bench.bench_command) -> Result:
    result = CliRunner().invoke(command, [*map(str, arguments), *QUICK])
    if isinstance(result.exception, Exception) and not hasattr(result.exception, "exit_code"):
        raise result.exception
    return result


# ---- Output ---------------------------------------------------------------------------------------------------------


def test_the_table_has_ratios_and_means(driver: BenchDriver, folder: Path) -> None:
    result = call("--library", folder, "--shapes", "40x56x24,48x56x24", "--layout", "tn,nt")
    lines = result.stdout.splitlines()
    assert (
        lines[0] == "shapes, steady"
        and lines[1].split() == "problem TFLOP/s us first best /first /best +-% MHz W kernel".split()
    )
    assert lines[2].startswith("40x56x24 tn") and lines[2].endswith("hgemm_fast") and " 1.250  1.125 " in lines[2]
    assert lines[3].endswith("hgemm_other") and " 2.500  2.250 " in lines[3]
    assert lines[6] == (
        "  geometric mean, all: 1.7678 of first (minimum 1.250, 4 problems), 1.5910 of best (minimum 1.125, 4 problems)"
    )
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0].startswith("[1/4] 40x56x24 tn")


def test_results_are_written_in_every_form(driver: BenchDriver, folder: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("keep", "csv", "junit")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    result = call("--library", folder, "--shapes", "40x56x24,40x56x23", *options, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1  # 40x56x23 was not measured
    assert json.loads(files["keep"].read_text()) == document and len(document["results"]) == 2
    assert set(document["results"][0]["screened_us"]) == {"hgemm_fast", "hgemm_slow", "cublaslt#0", "cublaslt#1"}
    rows = list(csv.DictReader(files["csv"].open()))
    assert [row["ours"] for row in rows] == ["hgemm_fast", ""] and rows[0]["ratio_first"] == "1.25"
    suite = ElementTree.parse(files["junit"]).getroot()[0]
    assert [len(case.findall("skipped")) for case in suite] == [0, 1] and suite.get("tests") == "2"
    assert result.stderr.splitlines()[-3:] == [f"hgemm: wrote {path}" for path in files.values()]


def test_dispatched_measures_only_the_selected_kernel(driver: BenchDriver, folder: Path) -> None:
    """It is the kernel with the lowest estimate. A problem without a kernel is reported as not measured."""
    result = call("--library", folder, "--shapes", "40x56x24,40x56x23", "--dispatched", "--json")
    document = json.loads(result.stdout)
    (ours,) = (name for name in document["results"][0]["screened_us"] if not name.startswith("cublaslt"))
    device = Target.of(open_device())
    expected = open_library(folder).selector(device).choose(SelectionQuery.dense(Kind(), (40, 56, 24, 1)))
    assert ours == document["results"][0]["ours"] == expected.symbol
    assert result.exit_code == 1 and not document["results"][1].get("ours")


def test_dispatched_reports_a_choice_outside_the_filters(driver: BenchDriver, folder: Path) -> None:
    shape = ("--library", folder, "--shapes", "40x56x24", "--dispatched", "--json")
    (result,) = json.loads(call(*shape).stdout)["results"]
    others = [name for name in ("hgemm_fast", "hgemm_slow") if name != result["ours"]]
    (refused,) = json.loads(call(*shape, "--kernels", ",".join(others)).stdout)["results"]
    assert f"the library selects {result['ours']}" in str(refused["refused"])


@pytest.mark.parametrize("option", ["--keep", "--csv", "--junit"])
def test_a_file_that_cannot_be_written_stops_before_the_work(
    driver: BenchDriver, folder: Path, tmp_path: Path, option: str
) -> None:
    result = call("--library", folder, "--shapes", "40x56x24", option, tmp_path / "nodir" / "out")
    assert result.stderr == "" and str(result.exception).startswith(
        f"cannot write {tmp_path / 'nodir' / 'out'}: No such"
    )


def test_a_problem_of_two_groups_is_measured_once(driver: BenchDriver, folder: Path, tmp_path: Path) -> None:
    suite = [
        {"name": name, "shapes": shapes} for name, shapes in (("x", [[40, 56, 24]]), ("y", [[8, 8, 8], [40, 56, 24]]))
    ]
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    result = call("--library", folder, "--suite", tmp_path / "suite.json", "--json")
    results = json.loads(result.stdout)["results"]
    assert [(one["work"]["group"], one["work"]["m"]) for one in results] == [("x", 40), ("y", 8), ("y", 40)]
    assert results[0]["figures"] == results[2]["figures"] and len(result.stderr.splitlines()) == 2


def test_recorded_results_decide_selection(driver: BenchDriver, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("hgemm.bench.measure.time.sleep", rests.append)
    works = "40x56x24,64x96x24"
    more = ["--record", "--baseline", "none", "--cool-down", 0.3]
    call("--library", folder, "--shapes", works, "--state", "model,steady,burst", *more)
    (session,) = read_sessions(folder)
    protocol = session.header["protocol"]
    assert set(rests) == {0.3} == {protocol["cool_down_s"]} and len(rests) >= 2 * protocol["burst_rounds"]  # 2 problems
    assert (session.header["program"], session.header["device"], session.header["seed"]) == ("bench", "Fake GPU", 1)
    assert session.header["driver"] == "CUDA 13.0" and session.header["protocol"]["rounds"] == 3
    assert [(result.state, result.problem.m) for result in session.results] == [
        (state, m) for state in ("model", "steady", "burst") for m in (40, 64)
    ]
    assert [session.kernels[time.index].symbol for time in session.results[0].times] == ["hgemm_fast", "hgemm_slow"]
    assert session.results[0].times[0].rounds == 3
    device = hgemm.device.open_device()
    (survey,) = open_library(folder).selector(Target.of(device)).surveys.values()
    assert [problem.extents for problem in survey.problems] == [(40, 56, 24, 1), (64, 96, 24, 1)]
    stored = Library(folder).measurements("hgemm_fast")
    assert len(stored) == 6 and {one.key for one in stored} == {Library(folder).load("hgemm_fast").record.key}


def test_wrong_numbers_fail(driver: BenchDriver, folder: Path, tmp_path: Path) -> None:
    compute = driver.faults
    driver.faults = {**compute, **dict.fromkeys(compute, frozenset({"drops an element of k"}))}
    result = call("--library", folder, "--shapes", "40x56x24")
    assert result.exit_code == 1 and "sampled elements exceed" in result.stdout


def test_a_lost_device_is_an_error_after_the_table(driver: BenchDriver, folder: Path) -> None:
    launch = driver.cuLaunchKernelEx

    def fault(config, function, parameters, extra):
        if config.gridDimX == 4:
            driver.status = BenchDriver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return launch(config, function, parameters, extra)

    driver.cuLaunchKernelEx = fault
    result = call("--library", folder, "--shapes", "8x56x24,40x56x24")
    assert "8x56x24 tn" in result.stdout and result.exception.exit_code == 1
    assert str(result.exception).startswith("hgemm_fast on 40x56x24 tn f16 f16 f32 f16 lost the device")


def test_kernels_are_chosen_by_name_and_filter(driver: BenchDriver, folder: Path) -> None:
    result = call("hgemm_s*", "--library", folder, "--shapes", "40x56x24")
    assert "hgemm_slow" in result.stdout and "hgemm_fast" not in result.stdout
    result = call("--library", folder, "--shapes", "40x56x24", "--layout", "nt", "--baseline", "none")
    assert "hgemm_other" in result.stdout and "geometric mean" not in result.stdout


def test_the_module_needs_a_folder_only(driver: BenchDriver, folder: Path) -> None:
    result = call("--library", folder, "--kernels", "*fast", "--shapes", "40x56x24", command=module_command)
    assert "hgemm_fast" in result.stdout
    error = call("--library", folder, "--kernels", "no*", "--shapes", "40x56x24", command=module_command).exception
    assert "no kernel in" in str(error) and error.exit_code == 1


def test_the_module_imports_no_generator() -> None:
    code = "import sys, hgemm.bench.__main__; print({'generator', 'jinja2', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"m": 512, "k": 64}]', "entry 0 has no 'n': write [{"),
        ('[{"m": 8, "n": 8, "k": 8}, {"shapes": [[8, 8, 8]]}]', "entry 1 has no 'name': write [{"),
        ('[{"m": 1e400, "n": 8, "k": 8}]', "entry 0 is malformed"),
        ('[{"m": "many", "n": 8, "k": 8}]', "entry 0 is malformed"),
        ('[{"name": "a", "shapes": [[8]]}]', "entry 0 is malformed"),
    ],
)
def test_malformed_suite_entry_shows_the_expected_form(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(RequestError) as caught:
        read_suite(str(tmp_path / "mine.json"))
    assert message in str(caught.value) and "\n" not in str(caught.value) and "KeyError" not in str(caught.value)


def test_recorded_results_include_the_state_that_selection_uses_first(folder: Path) -> None:
    words = ["--library", str(folder), "--m", "64"]
    plans = [
        plan_of([], bench.bench_command.make_context("bench", [*words, *more]).params)
        for more in ([], ["--record"], ["--record", "--state", "burst"])
    ]
    assert [plan.states for plan in plans] == [["steady"], ["model", "steady"], ["burst"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no problems given: use --suite public"),
        (["--suite", "nothing"], "no file and no suite 'nothing': use a file, or one of public"),
        (["--suite", ROOT / "pyproject.toml"], "cannot be read (JSONDecodeError"),
        (["--suite", ROOT / "benchmarks" / "data" / "ablation_h200.json"], "is not a list of problems or groups"),
        (["--suite", "public", "--group", "cubes"], "no group 'cubes' in the suite: it has square, rectangular"),
        (["--m", "9" * 5000], "is malformed: write 4096, 512,1024 or 1024:4096:256"),
        (["--m", "12:x"], "--m '12:x' is malformed"),
        (["--m", "2147482625"], "m is 2147482625, use 1 to 2147482624"),
        (
            ["--m", "1:9999999999"],
            "--m '1:9999999999': 9,999,999,999 problems exceed the limit of 1,000,000: use larger steps",
        ),
        (
            ["--m", "1:2000", "--n", "1:2000"],
            "the ranges of --m, --n and --k: 4,000,000 problems exceed the limit of 1,000,000",
        ),
        (["--m", "0"], "--m '0' names no positive number"),
        (["--shapes", "8x8x8", "--acc", "f64"], "--acc 'f64' is not supported: no kernel multiplies f64"),
        (["--shapes", "8x8x8", "--state", "warm"], "state 'warm' is unknown: use model, steady, burst, solo"),
        (["--shapes", "8x8x8", "--resume"], "--resume requires --keep"),
        (["--shapes", "8x8x8", "--epilogue", "relu(acc"], "relu(acc"),
        (["--shapes", "8x8x8", "--epilogue", "none.py:f"], "none.py:f: the file does not exist"),
    ],
)
def test_requests_are_rejected_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    error = call("--library", folder, *arguments).exception
    assert error.exit_code == 2 and message in str(error)


def test_a_baseline_that_is_not_installed_is_named(driver: BenchDriver, folder: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    error = call("--library", folder, "--shapes", "8x8x8", "--baseline", "torch").exception
    assert error.exit_code == 1 and str(error).startswith("torch is not installed: pip install torch")


# ---- Problems -------------------------------------------------------------------------------------------------------


def options(**given: object) -> dict:
    names_of = "suite group shapes m n k layout dtype acc out bias activation".split()
    return {**dict.fromkeys(names_of, ""), "batch": 1, **given}


def test_ranges_make_squares_or_every_combination() -> None:
    assert [work.shape.k for work in works_of(options(m="1024:2048:512"))] == [1024, 1536, 2048]
    works = works_of(options(m="16,32", n="8:24:8", k="64", batch=2))
    assert len(works) == 6 and works[-1] == Work(32, 24, 64, 2)


def test_types_and_layouts_override_a_suite() -> None:
    works = works_of(options(suite="public", group="square", dtype="bf16", acc="f32", layout="tn,nt"))
    assert len(works) == 24 and {(work.dtype_a, work.dtype_b, work.dtype_d) for work in works} == {("bf16",) * 3}
    assert works_of(options(shapes="8x8x8", dtype="bf16", out="f32"))[0].dtype_d == "f32"


def test_public_suite_is_complete() -> None:
    works = read_suite("public")
    groups = {group: sum(work.group == group for work in works) for group in dict.fromkeys(w.group for w in works)}
    assert groups == {
        "square": 12,
        "rectangular": 24,
        **{f"layouts_{x}": 3 for x in ("nn", "nt", "tt")},
        "llm": 42,
        "ragged": 8,
    }
    assert names() == ["public"]


def test_problems_and_groups_of_a_file_have_a_bias_and_an_activation(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    problem = {"m": 8, "n": 16, "k": 24, "bias": "row"}
    group = {"name": "mlp", "shapes": [[8, 16, 24]], "bias": "row", "activation": "gelu"}
    path.write_text(json.dumps([problem, {**problem, "layout": "tnn"}, group]))
    plain, transposed, of_group = read_suite(str(path))
    assert (plain.bias, transposed.bias) == ("row", "column")  # one element per row of the transposed D
    assert (of_group.bias, of_group.activation) == ("row", "gelu")
    path.write_text(json.dumps([{**problem, "bias": "diagonal"}]))
    with pytest.raises(RequestError, match="bias 'diagonal' is unknown"):
        read_suite(str(path))


def test_problem_files_of_cutlass_are_read(tmp_path: Path) -> None:
    path = tmp_path / "problems.json"
    common = {"m": 8, "n": 16, "k": 24, "batch_count": 2, "dtype_a": "f16", "dtype_acc": "f32", "dtype_d": "fp32"}
    path.write_text(json.dumps([{**common, "layout": "tnt"}, {**common, "layout": "tnn"}, {**common, "layout": "nnn"}]))
    row, column, other = read_suite(str(path))
    assert row == Work(8, 16, 24, 2, dtype_d="f32", group="problems")
    assert (column.m, column.n, column.layout) == (16, 8, "tn") and (other.m, other.layout) == (16, "tt")
    path.write_text("[{}]")
    with pytest.raises(RequestError, match="has no 'm': write "):
        read_suite(str(path))


def one(layout: str = "tn", tflops: float = 600.0, ratio: float = 1.0, **changed) -> dict:
    made = {"time_us": 10.0, "tflops": tflops}
    ratios = {
        name: {"median": ratio, "p10": ratio - 0.01, "p90": ratio + 0.01} for name in ("ratio_first", "ratio_best")
    }
    work = Work(4096, 4096, 4096, layout=layout, group=changed.pop("group", layout)).plain()
    roles = {"ours": "a", "first": "b", "best": "b", "figures": {"a": made, "b": made}, "refused": {}}
    return {"work": work, "state": "steady", **roles, **ratios, **changed}


def test_groups_are_summarised_with_layouts_and_the_worst() -> None:
    lines = table([one(), one("nn", 588.0, 0.9), one("tt", 594.0, 1.1)]).splitlines()
    at = lines.index("all, steady")
    assert lines[at + 1].startswith("  geometric mean, all: 0.9967 of first (minimum 0.900, 3 problems)")
    assert lines[at + 2 : at + 4] == [
        "  ours, nn of tn: 0.980 (minimum 0.980, 1 problem)",
        "  ours, tt of tn: 0.990 (minimum 0.990, 1 problem)",
    ]
    assert (
        lines[at + 4] == "  worst:"
        and lines[at + 5].startswith("    4096x4096x4096 nn")
        and "0.900  0.900   1.0" in lines[at + 5]
    )


def test_solo_prints_a_line_for_each_contender() -> None:
    seen = {"sm_mhz": 1500, "power_w": 690.0}
    lines = table([one(state="solo", alone={"a": seen, "b": None})]).splitlines()
    assert lines[3].split() == ["600.0", "TFLOP/s", "1500", "MHz", "690", "W", "a"]


def test_means_are_given_for_each_part() -> None:
    results = [
        {"work": {"m": m}, "ratio_first": {"median": first}, "ratio_best": {"median": 1.0}}
        for m, first in ((1, 0.5), (4096, 2.0))
    ]
    lines = means(results)
    assert lines[0].startswith("  geometric mean, all: 1.0000 of first (minimum 0.500, 2 problems), 1.0000 of best")
    assert [line.partition(":")[0].partition(", ")[2] for line in lines] == [
        "all",
        "m <= 16",
        "m <= 128",
        "m >= 512",
    ]
    assert len(means(results[:1])) == 1
