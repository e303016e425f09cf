"""Progress: the rate is that of the work, and the time left follows from it."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from generator.build.pipeline import Outcome
from generator.cli import output as progress_module
from generator.cli.output import planning, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which tests set."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "perf_counter", lambda: now[0])
    return now


def test_what_is_there_already_makes_the_rate_no_better(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1000, quiet=False) as tell:
        for number in range(396):
            clock[0] += 0.001
            tell(Outcome(f"old{number}", "cached"))
        for number in range(4):
            clock[0] += 0.5
            tell(Outcome(f"new{number}", "built", 0.9))
    lines = capsys.readouterr().err.splitlines()
    assert lines[395] == "[ 396/1000] cached old395, 0.00 s"
    assert lines[399] == "[ 400/1000] built new3, 0.90 s (2 variants/s, 5 min left)"
    assert lines[400] == "1000 variants in 2.4 s: 396 cached, 4 built"


@pytest.mark.parametrize(
    ("seconds_each", "told"), [(0.02, "50 variants/s, 20 s left"), (8.0, "0.125 variants/s, 2 h 13 min left")]
)
def test_the_time_left_is_told_in_its_own_units(clock, capsys, seconds_each: float, told: str) -> None:
    with progress(1001, quiet=False) as tell:
        clock[0] += seconds_each
        tell(Outcome("one", "built", seconds_each))
    assert capsys.readouterr().err.splitlines()[0].endswith(f" ({told})")


def test_what_comes_together_has_the_rate_of_those_who_worked_at_it(clock, capsys) -> None:
    with progress(16, quiet=False, workers=2) as tell:
        clock[0] += 4.0
        for number in range(8):
            tell(Outcome(f"new{number}", "built", 1.0))
    told = [line.partition(" (")[2] for line in capsys.readouterr().err.splitlines()]
    assert told[0] == "2 variants/s, 8 s left)" and told[7] == "2 variants/s, 4 s left)"


def test_what_was_made_before_an_interrupt_is_summed_up(clock: list[float], capsys) -> None:
    with pytest.raises(KeyboardInterrupt), progress(1000, quiet=False) as tell:
        tell(Outcome("one", "built", 0.5))
        clock[0] += 2.0
        raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines()[-1] == "1 of 1000 variants in 2.0 s: 1 built"


def plan_slowly(clock: list[float], quiet: bool = False) -> None:
    """Plan 40 combinations, one in 0.5 s."""
    with planning(quiet) as planned:
        for done in range(1, 41):
            clock[0] += 0.5
            planned(done, 40)


def test_planning_says_every_ten_seconds_how_far_it_is(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    plan_slowly(clock)
    assert capsys.readouterr().err.splitlines() == [
        "[20/40] planned (2 plans/s, 10 s left)",
        "[40/40] planned (2 plans/s, 0 s left)",
    ]
    plan_slowly(clock, quiet=True)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_line_while_planning_takes_longer(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict] = []

    @contextmanager
    def bar(console: object, total: int):
        yield lambda **fields: told.append(fields)

    monkeypatch.setattr(progress_module, "_bar", bar)
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plan_slowly(clock)
    assert told[0] == {"completed": 2, "pace": "2 plans/s, 19 s left"} and len(told) == 39


def test_a_dumb_terminal_has_plain_lines_of_planning(clock, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    plan_slowly(clock)
    assert capsys.readouterr().err.splitlines() == [
        "[ 2/40] planned (2 plans/s, 19 s left)",
        "[22/40] planned (2 plans/s, 9 s left)",
    ]
