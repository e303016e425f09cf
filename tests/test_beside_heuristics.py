"""The yardstick beside the model: how its configurations are taken for measured variants, and what is told without it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cost_model
from benchmarks.cost_model import Configuration, asked, distance, matched
from hgemm.errors import LibraryError

ONE = Configuration(128, 256, 64, 2, 1, 4, 1, swap_ab=False)
FAKE = """
import json, sys
asked = json.load(sys.stdin)
json.dump([[[m / n, 128, 64, 64, 2, 1, 4, 1]] for m, n, k in asked["problems"]], sys.stdout)
"""


def test_a_tile_counts_more_than_a_cluster_and_that_more_than_stages() -> None:
    assert distance(ONE, ONE) == 0
    changes = [{"stages": 2}, {"swap_ab": True}, {"tile_k": 128}, {"cluster_m": 1}, {"tile_m": 64}]
    apart = [distance(ONE, replace(ONE, **change)) for change in changes]
    assert apart == sorted(apart) and len(set(apart)) == len(apart)
    assert distance(ONE, replace(ONE, tile_n=128, splits=2)) == 2


def test_of_equally_near_variants_the_fastest_is_taken_and_each_once() -> None:
    ours = [replace(ONE, stages=2), ONE, ONE, replace(ONE, tile_m=64)]
    times = np.array([1.0, 9.0, 8.0, 7.0])
    assert matched([ONE, ONE, replace(ONE, tile_m=32)], ours, times) == [2, 3]


def test_a_problem_and_its_transpose_are_asked_and_the_quicker_answer_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost_model, "CHILD", FAKE)
    few, many = asked(Path(sys.executable), [(16, 4096, 64), (4096, 16, 64)])
    assert [choice.swap_ab for choice in few] == [False, True] and [choice.swap_ab for choice in many] == [True, False]
    plain, transposed = few
    assert (plain.tile_m, plain.tile_n, plain.cluster_m) == (128, 64, 2)
    assert (transposed.tile_m, transposed.tile_n, transposed.cluster_n) == (64, 128, 2)


def test_without_it_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvMatmulHeuristics.py").write_text("raise ModuleNotFoundError(f\"No module named '{__name__}'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LibraryError, match="does not run nvMatmulHeuristics: .*nvMatmulHeuristics"):
        asked(Path(sys.executable), [(8, 8, 8)])
