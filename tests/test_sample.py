"""The sample of CI: a part of the cases of tests with the mark `sampled`, which changes with the seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, left_out


@dataclass(frozen=True)
class Case:
    nodeid: str
    n: int = 0
    path: Path = ROOT / "tests" / "test_a.py"

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.mark.sampled(self.n).mark if self.n else None


CASES = [Case(f"tests/test_a.py::test_b[{at}]", 8) for at in range(20)]
OTHERS = [Case("tests/test_a.py::test_c"), Case("tests/test_a.py::test_d[0]", 8)]


def sample(seed: str) -> set[Case]:
    return {*CASES, *OTHERS} - left_out([*CASES, *OTHERS], seed, ())


def test_a_sample_has_one_of_n_cases_and_all_other_tests() -> None:
    assert len(sample("a") & {*CASES}) == 3 and sample("a") >= {*OTHERS}


def test_samples_of_many_seeds_have_every_case() -> None:
    assert sample("a") == sample("a") != sample("b")
    assert set.union(*(sample(str(seed)) for seed in range(100))) == {*CASES, *OTHERS}


def test_a_changed_file_is_tested_as_a_whole() -> None:
    assert not left_out(CASES, "a", {"tests/test_a.py"}) and left_out(CASES, "a", {"tests/test_b.py"})
