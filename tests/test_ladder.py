"""`hgemm ladder`: static facts without a GPU, measurements with one, and the files, tables and pictures."""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from exports import paper_library
from fake_bench import BenchDriver, FakeCublasLt, build
from fake_driver import installed

import hgemm.bench.operands
import hgemm.device
from generator.build.emit import emit
from generator.build.pipeline import Outcome, Settings
from generator.cli import ladder
from generator.families.base import Plan
from generator.ladders import ladder_run
from generator.ladders.recipes import read_ladder
from hgemm.bench import baselines
from hgemm.errors import DeviceError

ROOT = Path(__file__).resolve().parents[1]
LADDER = """
title = "A ladder of two"
source = "nowhere"
machine = "a GPU"
card = "rtx4090"
shapes = ["40x56x24"]
cublas = { 40x56x24 = 10 }
[spec]
arch = "sm_80"
tile = "32x32x16"
warp_tile = "16x16"
stages = 2
[[step]]
name = "slow"
what = "the beginning"
tflops = { 40x56x24 = 2 }
[[step]]
name = "fast"
what = "four stages"
tflops = { 40x56x24 = 8 }
stages = 4
[[step]]
name = "exact"
what = "three stages"
tflops = { 40x56x24 = 7 }
stages = 3
"""
BASELINE = """
title = "A baseline kernel and a kernel"
source = "nowhere"
machine = "a GPU"
shapes = ["40x56x24"]
[spec]
arch = "sm_80"
layout = "tt"
dtype = "tf32"
tile = "32x32x16"
warp_tile = "16x16"
[[step]]
name = "tiled"
what = "no tensor cores"
baseline_kernel = { source = "tiled_f32.cu", tile = "32x32x32", threads = 1024, smem_bytes = 8192 }
[[step]]
name = "tensor-core"
what = "tensor cores"
stages = 4
"""
QUICK = "--seconds 0 --warm-up 0 --rounds 3".split()


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Replace all ladders by one, `x`, whose kernels are planned only. Return the requested plans."""
    (tmp_path / "x.toml").write_text(LADDER)
    asked: list[Plan] = []

    def make(plans: list[Plan], settings: Settings, processes: int) -> Iterator[tuple[int, Outcome]]:
        asked.extend(plans)
        for place, plan in enumerate(plans):
            kernel = emit(plan, settings.templates)
            library = paper_library(settings.library.folder, [kernel])
            yield place, Outcome(kernel.symbol, "built", 0.1, library.load(kernel.symbol).record)

    monkeypatch.setattr(ladder_run, "make", make)
    monkeypatch.setattr(ladder, "load_ladder", lambda name: read_ladder(tmp_path / f"{name}.toml"))
    monkeypatch.setattr(ladder, "ladder_names", lambda: ("x",))
    monkeypatch.setattr(ladder, "_prover", lambda: None)
    return asked


@pytest.fixture(scope="module")
def lt_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("lt"))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, lt_path: Path) -> Iterator[BenchDriver]:
    """A GPU of compute capability 9.0 whose kernels take 20, 5 and 8 us by their stages, and cuBLASLt's 4 us."""
    fake = BenchDriver()
    monkeypatch.setattr(hgemm.bench.operands, "POOL_ELEMENTS", 8 * 127)
    monkeypatch.setattr(baselines, "find_library", lambda: str(lt_path))
    load = hgemm.device.Device.load

    def served(device, image, traits):
        stages = re.search(r"_s(\d)_", traits.symbol)
        cost_us = {"2": 20.0, "4": 5.0, "3": 8.0}[stages[1]] if stages else 100.0
        fake.serve(SimpleNamespace(traits=traits), cost_us, fake.broken.get(cost_us, frozenset()))
        return load(device, image, traits)

    monkeypatch.setattr(hgemm.device.Device, "load", served)
    fake.broken = {}  # faults by time
    fake.lt = FakeCublasLt(lt_path, fake, [4.0, 3.0])
    with installed(fake, monkeypatch):
        yield fake
    assert not fake.memory and not fake.alive and not fake.contexts


def call(folder: Path, *arguments: object) -> Result:
    result = CliRunner().invoke(
        ladder.ladder_command, [*map(str, arguments), "--library", str(folder / "lib"), *QUICK, "-q"]
    )
    if isinstance(result.exception, Exception) and not hasattr(result.exception, "exit_code"):
        raise result.exception
    return result


# ---- Without a GPU --------------------------------------------------------------------------------------------------


def test_without_arguments_ladders_and_steps_are_listed(tmp_path: Path) -> None:
    assert call(tmp_path).stdout.splitlines() == [
        "x: A ladder of two (nowhere), sm_80",
        "  x/slow   the beginning",
        "  x/fast   four stages",
        "  x/exact  three stages",
    ]
    (listed,) = json.loads(call(tmp_path, "--json").stdout)
    assert [step["spec"]["stages"] for step in listed["steps"]] == ["2", "4", "3"]


def test_static_figures_are_printed_beside_published_ones(tmp_path: Path, made: list[Plan]) -> None:
    result = call(tmp_path, "x", "--static")
    lines = result.stdout.splitlines()
    assert lines[:6] == [
        "x: A ladder of two (nowhere)",
        "  40x56x24 tn, f16 in, f32 accumulate, f16 out",
        "  kernels for sm_80",
        "  predicted: limit in TFLOP/s by the model of NVIDIA GeForce RTX 4090, without bank conflicts",
        "  published on a GPU: cuBLAS 10 TFLOP/s",
        "  conflicts: extra passes of shared memory for each k-tile; "
        "published_x: speedup over the step before; published_pct: percent of cuBLAS",
    ]
    heads = "step registers smem_bytes ctas_per_sm conflicts predicted bound published published_x published_pct what"
    assert lines[6].split() == heads.split()
    bound = ["tensor", "cores", "8", "4", "80", "four", "stages"]
    assert lines[8].split()[:1] + lines[8].split()[4:5] + lines[8].split()[6:] == ["fast", "0", *bound]
    assert result.exit_code == 0 and {plan.spec.arch for plan in made} == {"sm_80"} and len(made) == 3
    call(tmp_path, "x", "--static", "--keep", tmp_path / "kept.json", "--junit", tmp_path / "ladder.xml")
    (suite,) = ElementTree.parse(tmp_path / "ladder.xml").getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("skipped")) == ("x", "3", "3")
    assert call(tmp_path, "--from", tmp_path / "kept.json").stdout == result.stdout


def test_without_a_library_no_kernel_is_kept(tmp_path: Path, made: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HGEMM_LIBRARY", str(tmp_path / "mine"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = CliRunner().invoke(
        ladder.ladder_command, ["x", "--static", "-q", "--keep", "kept.json", "--csv", "steps.csv"]
    )
    assert result.exit_code == 0 and result.stderr.splitlines()[-2:] == [
        "hgemm: wrote kept.json",
        "hgemm: wrote steps.csv",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"kept.json", "steps.csv", "x.toml"}  # the recipe


def test_ladder_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(LADDER)
    mine, shipped = (call(tmp_path, name, "--static").stdout for name in (tmp_path / "mine.toml", "x"))
    assert mine == shipped.replace("x: A ladder", "mine: A ladder")
    assert "cannot be read" in str(call(tmp_path, tmp_path / "none.toml", "--static").exception)


def test_missing_gpu_prints_static_figures_with_a_note(tmp_path: Path, monkeypatch) -> None:
    def none() -> None:
        raise DeviceError("no NVIDIA GPU here")

    monkeypatch.setattr(ladder, "open_device", none)
    result = call(tmp_path, "x")
    assert result.stdout == call(tmp_path, "x", "--static").stdout
    assert "hgemm: no NVIDIA GPU here: " in result.stderr


def test_arch_applies_to_every_step(tmp_path: Path, made: list[Plan]) -> None:
    call(tmp_path, "x", "--static", "--arch", "89")
    assert {plan.spec.arch for plan in made} == {"sm_89"}
    error = call(tmp_path, "x", "--static", "--arch", "75").exception
    assert error.exit_code == 2 and str(error).startswith("recipe x/fast: ")


# ---- With one -------------------------------------------------------------------------------------------------------


def test_steps_are_timed_beside_cublaslt_in_the_same_rounds(tmp_path: Path, driver: BenchDriver) -> None:
    result = call(tmp_path, "x", "--keep", tmp_path / "kept.json", "--csv", tmp_path / "rows.csv")
    lines = result.stdout.splitlines()
    flops = 2 * 40 * 56 * 24
    assert lines[2].startswith("  measured on Fake GPU, ") and lines[2].endswith(
        f", kernels for sm_90: cuBLASLt 13.1.0 {round(flops / 4 * 1e-6, 2):g} TFLOP/s"
    )
    heads = "step tflops us x_before pct_cublas predicted published published_x published_pct what"
    assert "by the model of NVIDIA H200" in lines[3]
    assert lines[6].split() == heads.split()
    assert [line.split()[2] for line in lines[7:10]] == ["20", "5", "8"]
    assert lines[8].split()[3:5] + lines[8].split()[6:9] == ["4", "80", "8", "4", "80"]
    assert lines[10] == "  last over first 2.50x, published 3.50x"
    assert result.exit_code == 0
    rounds = [name for name in driver.log if name.startswith(("hgemm", "cublaslt"))]
    assert "cublaslt#0" in rounds and "cublaslt#1" not in rounds
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [float(row["us"]) for row in rows] == [20, 5, 8] and rows[0]["x_before"] == ""
    (kept,) = json.loads((tmp_path / "kept.json").read_text())["ladders"]
    assert [ratio and ratio["median"] for ratio in kept["over_before"]] == [None, 4.0, 0.625]
    assert [ratio["median"] for ratio in kept["of_baseline"]] == [0.2, 0.8, 0.5]


def test_kept_results_are_printed_without_a_gpu(tmp_path: Path, driver: BenchDriver, made: list[Plan]) -> None:
    kept = tmp_path / "kept.json"
    printed = call(tmp_path, "x", "--keep", kept).stdout
    made.clear()
    assert call(tmp_path, "--from", kept).stdout == printed == call(tmp_path, "x", "--from", kept).stdout
    older = tmp_path / "older.json"
    older.write_text(kept.read_text().replace("ideal_sectors_per_request", "least_sectors_per_request"))
    assert call(tmp_path, "--from", older, "--json").stdout == call(tmp_path, "--from", kept, "--json").stdout
    assert not made
    error = call(tmp_path, "s1", "--from", kept).exception
    assert str(error) == "no ladder is named 's1': choose from x"


def test_regressed_step_is_named(tmp_path: Path, driver: BenchDriver) -> None:
    text = (tmp_path / "x.toml").read_text()
    assert "slower than the step before" not in call(tmp_path, "x").stdout  # 8 to 7 was published as a fall
    (tmp_path / "x.toml").write_text(text.replace("= 7 }", "= 9 }"))
    assert "unlike published: exact" in call(tmp_path, "x").stdout


def test_a_step_with_wrong_numbers_has_no_time_and_fails(tmp_path: Path, driver: BenchDriver) -> None:
    driver.broken = {5.0: frozenset({"drops an element of k"})}
    result = call(tmp_path, "x")
    assert result.exit_code == 1 and "  not measured: fast: " in result.stdout
    assert "sampled elements exceed" in result.stdout
    (found,) = json.loads(call(tmp_path, "x", "--json").stdout)["ladders"]
    times = [found["figures"].get(step["symbol"], {}).get("time_us") for step in found["steps"]]
    assert times == [20, None, 8] and [one and one["median"] for one in found["over_before"]] == [None, None, None]


def test_requested_shapes_are_measured(tmp_path: Path, driver: BenchDriver) -> None:
    for words in (["--shapes", "40x56x24,48x56x24"], ["--m", "40,48", "--n", "56", "--k", "24"]):
        document = json.loads(call(tmp_path, "x", "--json", *words).stdout)
        assert [one["work"]["m"] for one in document["ladders"]] == [40, 48]
        assert [one["published_cublas"] for one in document["ladders"]] == [10, None]


def test_lost_device_ends_the_run_and_prints_results(tmp_path: Path, driver: BenchDriver) -> None:
    launch = driver.cuLaunchKernelEx

    def fault(config, function, parameters, extra):
        if config.gridDimX == 6:
            driver.status = BenchDriver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return launch(config, function, parameters, extra)

    driver.cuLaunchKernelEx = fault
    result = call(tmp_path, "x", "--shapes", "40x56x24,72x56x24")
    driver.status = BenchDriver.CUresult.CUDA_SUCCESS
    assert "40x56x24" in result.stdout and "72x56x24" not in result.stdout
    assert result.exception.exit_code == 1 and "lost the device" in str(result.exception)


def test_ptx_of_another_architecture_is_noted(tmp_path: Path, driver: BenchDriver) -> None:
    assert "kernels for sm_80 (PTX, compiled by the driver for sm_90): " in call(tmp_path, "x", "--arch", "80").stdout


def test_a_baseline_kernel_is_compiled_and_run_like_a_step(tmp_path: Path, driver: BenchDriver, monkeypatch) -> None:
    (tmp_path / "y.toml").write_text(BASELINE)
    monkeypatch.setattr(ladder, "ladder_names", lambda: ("y",))
    known = json.loads(call(tmp_path, "y", "--static", "--json").stdout)["ladders"][0]["steps"][0]
    assert known["symbol"] == "baseline_tiled_f32" and known["smem_bytes"] == 8192 and known["bank_conflicts"] is None
    (found,) = json.loads(call(tmp_path, "y", "--json").stdout)["ladders"]
    assert not found["refused"] and found["over_before"][1]["median"] == 20.0
    assert not (tmp_path / "lib" / "baseline_tiled_f32").exists()


# ---- Pictures and refusals ------------------------------------------------------------------------------------------


def test_the_curve_is_drawn_the_same_each_time(tmp_path: Path, driver: BenchDriver) -> None:
    pytest.importorskip("matplotlib")
    kept, paths = tmp_path / "kept.json", [tmp_path / f"{name}.svg" for name in "ab"]
    call(tmp_path, "x", "--keep", kept, "--to", paths[0])
    assert call(tmp_path, "--from", kept, "--to", paths[1]).exit_code == 0
    first, second = (path.read_bytes() for path in paths)
    assert first == second and b"<dc:date>" not in first
    call(tmp_path, "x", "--static", "--to", tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_unmeasured_steps_are_drawn_as_predictions(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, shapes = tmp_path / "x.svg", ["--shapes", "40x56x24,48x56x24"]
    call(tmp_path, "x", "--static", "--to", picture, *shapes)
    assert picture.read_text().count("<!-- ours, limit by the model of NVIDIA GeForce RTX 4090 -->") == 2
    call(tmp_path, "x", "--static", "--to", picture, "--arch", "100", *shapes)  # which no card's table is of
    drawn = picture.read_text()
    assert "ours" not in drawn and 'id="axes_1"' in drawn and 'id="axes_2"' not in drawn
    result = call(tmp_path, "x", "--static", "--to", picture, "--arch", "100", "--shapes", "48x56x24")
    assert str(result.exception) == "nothing to draw: no step has a published, measured or predicted rate"
    assert "48x56x24" in result.stdout


def test_without_matplotlib_the_extra_is_named_before_the_work(tmp_path: Path, monkeypatch, made: list[Plan]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = call(tmp_path, "x", "--static", "--to", tmp_path / "a.svg").exception
    assert "matplotlib is not installed" in str(error) and "[plots]" in str(error) and not made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["y"], "no ladder is named 'y': choose from x"),
        (["x", "--to", "a.pdf"], "cannot draw a ladder as 'a.pdf'"),
        (["x", "--shapes", "8"], "shape '8' is malformed"),
        (["x", "--m", "0"], "--m '0' names no positive number"),
    ],
)
def test_requests_are_rejected_in_one_line(
    tmp_path: Path, arguments: list[str], message: str, made: list[Plan]
) -> None:
    error = call(tmp_path, *arguments).exception
    assert error.exit_code == 2 and message in str(error) and not made


def test_files_without_ladders_and_unwritable_files_are_rejected(tmp_path: Path, made: list[Plan]) -> None:
    (tmp_path / "other.json").write_text('{"schema": 1, "results": []}')
    assert "holds no ladders" in str(call(tmp_path, "--from", tmp_path / "other.json").exception)
    for ladders in ("7", "[7]", "[{}]"):
        (tmp_path / "other.json").write_text(f'{{"kind": "ladders", "schema": 1, "ladders": {ladders}}}')
        assert "holds no ladders" in str(call(tmp_path, "--from", tmp_path / "other.json").exception)
    shipped = json.loads((ROOT / "benchmarks" / "data" / "ladders_h200.json").read_text())
    del shipped["ladders"][0]["steps"][0]["registers"]
    (tmp_path / "other.json").write_text(json.dumps(shipped))
    assert "registers" in str(call(tmp_path, "--from", tmp_path / "other.json").exception)
    assert "cannot be read" in str(call(tmp_path, "--from", tmp_path / "none.json").exception)
    assert "cannot write" in str(call(tmp_path, "x", "--keep", tmp_path / "no" / "k.json").exception) and not made
