"""`hgemm verify` and `hgemm run`: what they print, what they refuse, and what becomes of a variant that hangs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import simulated
from click.testing import CliRunner, Result
from fake_driver import FakeDriver
from records import make_record

import hgemm.device
from generator.cli.main import hgemm_command
from generator.device_check import Outcome, Request, Workers, check_here, write_junit
from generator.store.library import Library
from hgemm import DeviceError
from hgemm.launch_traits import LaunchTraits

ROOT = Path(__file__).resolve().parent.parent
MADE = simulated.record(beta=False)
SHAPES = "33x49x17,8x8x8@2"


def document(symbol: str, arch: str = "sm_80", **spec) -> tuple[dict, dict]:
    traits = {**MADE["traits"], "deterministic": True, "graph_safe": True, "exact_tiles_only": False}
    return make_record(symbol, arch=arch, launch=MADE["launch"], traits=traits, cta_tile="32x48x16", **spec)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    library = Library(tmp_path / "lib")
    library.publish(*document("hgemm_good"))
    library.publish(*document("hgemm_other", layout="nt"))
    library.publish(*document("hgemm_unfit", arch="sm_120"))
    return library.folder


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    monkeypatch.setattr(hgemm.device, "driver", lambda: fake)
    monkeypatch.setattr("hgemm.device.driver", lambda: fake)
    # Variants are checked in this process, for the fake driver lives here.
    monkeypatch.setattr(Workers, "check", lambda self, request: (_here(fake, request), ""))
    hgemm.device._open.cache_clear()
    yield fake
    hgemm.device._open.cache_clear()


def _here(fake: FakeDriver, request: Request) -> Outcome:
    traits = LaunchTraits.of(Library(Path(request.library)).load(request.symbol).record.data)
    faults = frozenset({"drops an element of k"} if "bad" in request.symbol else ())
    fake.kernel = lambda problem: simulated.launch(traits, problem, faults)
    return check_here(request)


def call(verb: str, *arguments: object) -> Result:
    result = CliRunner().invoke(hgemm_command, [verb, *(str(argument) for argument in arguments)])
    if isinstance(result.exception, Exception) and not hasattr(result.exception, "exit_code"):
        raise result.exception
    return result


# ---- verify ---------------------------------------------------------------------------------------------------------


def test_verify_prints_a_line_a_variant(driver: FakeDriver, folder: Path) -> None:
    result = call("verify", "--device", "--library", folder, "--shapes", SHAPES)
    good, other, unfit, summary = result.stdout.splitlines()
    assert good.startswith("ok    hgemm_good  2/2 shapes  worst error/bound 0.") and other.startswith(
        "ok    hgemm_other"
    )
    assert unfit.startswith("skip  hgemm_unfit  kernels for sm_120 do not run on sm_90")
    assert summary == "2 variants passed, 0 failed, 1 skipped; 4 shapes passed" and result.exit_code == 0


def test_verify_fails_where_a_variant_is_wrong(driver: FakeDriver, folder: Path, tmp_path: Path) -> None:
    Library(folder).publish(*document("hgemm_bad"))
    report = tmp_path / "junit.xml"
    result = call("verify", "--device", "--library", folder, "--shapes", SHAPES, "--junit", report)
    assert result.exit_code == 1 and "FAIL  hgemm_bad  0/2 shapes  33x49x17 alpha=1: integer: " in result.stdout
    assert result.stderr == f"hgemm: wrote {report}\n"
    suites = {suite.get("name"): suite for suite in ElementTree.parse(report).getroot()}
    assert suites["hgemm_bad"].get("failures") == "2" and suites["hgemm_good"].get("failures") == "0"
    assert suites["hgemm_unfit"].get("skipped") == "1"
    answer = json.loads(call("verify", "--device", "--library", folder, "--shapes", SHAPES, "--json").stdout)
    assert [len(outcome["checks"]) for outcome in answer] == [2, 2, 2, 0]
    assert [all(check["passed"] for check in outcome["checks"]) for outcome in answer[:3]] == [False, True, True]


def test_verify_takes_names_and_filters(driver: FakeDriver, folder: Path) -> None:
    for arguments, expected in (
        (["hgemm_o*"], ["hgemm_other"]),
        (["hgemm_good", "hgemm_other"], ["hgemm_good", "hgemm_other"]),
        (["--layout", "nt"], ["hgemm_other"]),
        (["--where", "layout=tn and arch=sm_80"], ["hgemm_good"]),
    ):
        result = call("verify", "--device", "--library", folder, "--shapes", "8x8x8", *arguments)
        assert [line.split()[1] for line in result.stdout.splitlines()[:-1]] == expected and result.exit_code == 0


def test_verify_of_nothing_that_runs_is_a_failure(driver: FakeDriver, folder: Path) -> None:
    assert call("verify", "--device", "--library", folder, "hgemm_unfit").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message", "exit_code"),
    [
        ([], "no place to verify is given: use --device", 2),
        (["--device", "--shapes", "12"], "shape '12' is malformed", 2),
        (["--device", "--shapes", "4x6x0"], "shape '4x6x0' is out of range: k is 0, use 1 to 2147482624", 2),
        (["--device", "--shapes", "8x8x8@4000000000"], "batch is 4000000000, use 1 to 2147482624", 2),
        (["--device", "nothing_such"], "no variant in .* is named 'nothing_such'", 2),
        (["--device", "--layout", "tt"], "no variant in .* matches", 1),
    ],
)
def test_verify_refuses_in_one_line(folder: Path, arguments: list[str], message: str, exit_code: int) -> None:
    error = call("verify", "--library", folder, *arguments).exception
    assert error.exit_code == exit_code and str(error).isprintable()
    with pytest.raises(type(error), match=message):
        raise error


def test_without_a_gpu_both_verbs_say_so_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    fake.status = FakeDriver.CUresult.CUDA_ERROR_NO_DEVICE
    monkeypatch.setattr(hgemm.device, "driver", lambda: fake)
    hgemm.device._open.cache_clear()
    sizes = ["--m", "8", "--n", "8", "--k", "8"]
    for verb, arguments in (("verify", ["--device"]), ("run", ["hgemm_good", *sizes])):
        error = call(verb, "--library", folder, *arguments).exception
        assert isinstance(error, DeviceError) and error.exit_code == 1
        assert str(error) == "no NVIDIA GPU here: the driver returned CUDA_ERROR_NO_DEVICE"


# ---- run ------------------------------------------------------------------------------------------------------------


def test_run_prints_time_rate_and_error(driver: FakeDriver, folder: Path) -> None:
    traits = LaunchTraits.of(Library(folder).load("hgemm_good").record.data)
    driver.kernel = lambda problem: simulated.launch(traits, problem)
    arguments = ["hgemm_good", "--library", folder, "--m", 40, "--n", 56, "--k", 24]
    result = call("run", *arguments)
    first, second, third = result.stdout.splitlines()
    assert first == "hgemm_good on Fake GPU" and second == "250.00 us  0.0 TFLOP/s"
    assert third.startswith("max error 0.0") and third.endswith("of the error bound; 40 of 40 rows checked")
    answer = json.loads(call("run", *arguments, "--batch", 2, "--alpha", 0.5, "--json").stdout)
    assert answer["passed"] and answer["batch"] == 2 and answer["device"] == "Fake GPU" and answer["time_us"] == 250
    assert "passed" not in json.loads(call("run", *arguments, "--no-check", "--json").stdout)
    driver.kernel = lambda problem: simulated.launch(traits, problem, frozenset({"leaves an element"}))
    result = call("run", *arguments)
    assert result.exit_code == 1 and "WRONG: 1 elements of D were not written" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hgemm_*"], "3 variants: write"),
        (["hgemm_good", "--beta", "1"], "hgemm_good does not add beta"),
        (["hgemm_good", "--alpha", "nan"], "alpha and beta must be finite"),
    ],
)
def test_run_refuses_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    error = call("run", *arguments, "--library", folder, "--m", 8, "--n", 8, "--k", 8).exception
    assert error.exit_code == 2 and message in str(error)


def test_a_launch_that_fails_is_told_of_with_its_case(driver: FakeDriver, folder: Path) -> None:
    launched = driver.cuLaunchKernelEx

    def fail(*arguments):
        fault = FakeDriver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return (fault,) if len(driver.launches) >= 4 else launched(*arguments)

    driver.cuLaunchKernelEx = fail
    result = call("verify", "--device", "--library", folder, "hgemm_good", "--shapes", "33x49x17,8x8x8")
    assert result.exit_code == 1 and not driver.memory
    assert (
        "FAIL  hgemm_good  1/1 shapes  8x8x8 alpha=-0.5 loose: cannot launch hgemm_good: CUDA_ERROR_I" in result.stdout
    )


# ---- Processes ------------------------------------------------------------------------------------------------------


def test_a_worker_without_a_gpu_answers(folder: Path) -> None:
    if _has_gpu():
        pytest.skip("this machine has a GPU")
    outcome, _ = Workers().check(Request(str(folder), "hgemm_good"))
    assert outcome.failed and outcome.error.startswith("no NVIDIA GPU here")


def _has_gpu() -> bool:
    try:
        return bool(hgemm.device.open_device())
    except DeviceError:
        return False


def test_a_worker_that_hangs_is_killed_with_its_children(folder: Path) -> None:
    began = time.monotonic()
    workers = Workers(jobs=2, timeout_s=0.5, wrapper=("/bin/sh", "-c", "sleep 60 & sleep 60; :"))
    outcomes = [outcome for outcome, _ in workers.check_all([Request(str(folder), "hgemm_good")] * 2)]
    assert time.monotonic() - began < 20
    assert all(
        outcome.failed and "no answer within 0.5 s: the kernel may hang" in outcome.error for outcome in outcomes
    )


def test_a_worker_that_dies_is_told_of(folder: Path) -> None:
    dying = Workers(wrapper=(sys.executable, "-c", "import os, sys; sys.stderr.write('broken\\n'); os._exit(9)"))
    outcome, log = dying.check(Request(str(folder), "hgemm_good"))
    assert outcome.error == "its process ended with status 9: broken" and log == "broken\n"


def test_nothing_is_begun_after_the_budget(folder: Path) -> None:
    spent = Workers(budget_s=1, began=time.monotonic() - 2)
    assert "not started within 1 s" in spent.check(Request(str(folder), "hgemm_good"))[0].error


def test_outcomes_judge_themselves(tmp_path: Path) -> None:
    good = {"case": "1x1x1", "max_error": 0.0, "max_bound_ratio": 0.25, "passed": True, "reason": ""}
    passed = Outcome("a", (good,))
    assert passed.passed and not passed.failed and passed.worst_ratio == 0.25
    failed = replace(passed, checks=(good, {**good, "passed": False, "reason": "off"}))
    assert failed.failed and failed.reason == "1x1x1: off"
    assert Outcome("b", error="gone").failed and not Outcome("b", skipped="unfit").failed and Outcome("b").failed
    write_junit(tmp_path / "x.xml", [passed, failed, Outcome("b", error="gone")])
    assert [suite.get("errors") for suite in ElementTree.parse(tmp_path / "x.xml").getroot()] == ["0", "0", "1"]
