"""The comparison of the CPU executor's verdicts with a GPU's, on outcomes that are made up."""

from __future__ import annotations

import json

import pytest

from benchmarks import verdicts
from benchmarks.verdicts import SOUND, VERDICTS, Case
from generator.device_check import Outcome


def case(name: str, passed: bool, numbers_passed: bool, *kinds: str, library: str = "fault") -> Case:
    return Case(library, "hgemm_x", name, passed, numbers_passed, kinds)


def check(name: str, passed: bool) -> dict:
    return {"case": name, "passed": passed, "reason": "" if passed else "off", "max_bound_ratio": 0.0, "max_error": 0.0}


@pytest.mark.parametrize(
    ("mine", "gpu_passed", "stands"),
    [
        (case("a", True, True), True, "agrees"),
        (case("a", False, False), False, "agrees"),
        (case("a", False, True, "race"), False, "agrees"),
        (case("a", False, True, "race"), True, "latent"),
        (case("a", False, False, "race"), True, "latent"),
        (case("a", False, False), True, "disagrees"),
        (case("a", True, True), False, "disagrees"),
    ],
)
def test_a_finding_that_did_no_harm_is_no_disagreement(mine: Case, gpu_passed: bool, stands: str) -> None:
    assert mine.against(gpu_passed) == stands


def test_cases_that_the_device_did_not_come_to_are_left_out() -> None:
    cases = [
        case("8x8x8 alpha=1", True, True),
        case("1x1x1", False, False, "bounds"),
        case("2x2x2", False, True, "race"),
    ]
    outcome = Outcome("hgemm_x", (check("8x8x8 alpha=1", True),), error="1x1x1: cannot launch: ILLEGAL_ADDRESS")
    rows = list(verdicts._compared(cases, outcome))
    assert [(row["case"], row["gpu_passed"], row["stands"]) for row in rows] == [
        ("8x8x8 alpha=1", True, "agrees"),
        ("1x1x1", False, "agrees"),
    ]


def test_the_summary_counts_sound_and_faulty_kernels_apart(tmp_path, capsys) -> None:
    cases = [case("a", True, True, library=SOUND), case("b", False, True, "race")]
    outcomes = [Outcome("hgemm_x", (check("a", True),)), Outcome("hgemm_x", (check("b", True),))]
    rows = [row for one, outcome in zip(cases, outcomes) for row in verdicts._compared([one], outcome)]
    path = tmp_path / VERDICTS
    assert verdicts._summed_up(rows, {"executor": "e"}, "GPU", 13000, path) == 0
    found = json.loads(path.read_text())
    assert found["counts"] == {"sound": {"agrees": 1}, "faulty": {"latent": 1}} and found["variants"] == 2
    assert capsys.readouterr().out == "sound kernels: 1 cases agrees\nfaulty kernels: 1 cases latent\n"
    assert verdicts._summed_up([], {"executor": "e"}, "GPU", 13000, None) == 1
