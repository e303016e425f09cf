"""Measurements: sessions are read as written, changed ones are ignored, and the best known kernel follows from comparisons only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import measured
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import problem

from hgemm.errors import LibraryError
from hgemm.measured import SessionWriter, best_known, chained, read_session, read_sessions
from hgemm.octave_grid import (
    DECAY_DISTANCE,
    FACTOR_ONE,
    MAX_RATIO,
    MIN_RATIO,
    NEAREST,
    WEIGHT_ONE,
    correction,
    distance,
    nearest,
    octaves,
    point,
    relative_ratios,
)
from hgemm.problem import LaunchOptions

SQUARE = problem(4096, 4096, 4096)
PLACE = (90, 132, SQUARE.kind.code, 4096, 4096, 4096, 1)
extents = st.integers(1, 2**31 - 1024)
points = st.tuples(*4 * [extents]).map(lambda four: point(*four))

# ---- Files ----------------------------------------------------------------------------------------------------------


def test_sessions_round_trip(tmp_path: Path) -> None:
    writer = SessionWriter(tmp_path, **measured.HEADER, seed=7, protocol={"rounds": 15, "seconds": 1.2})
    writer.add(SQUARE, "steady", measured.times({"b": 2.0, "a": 1.5}), decided=True, clocks={"sm_mhz": 1980})
    writer.add(problem(1, 1, 1, acc="f16"), "burst", measured.times({"a": 3.0}))
    writer.close()
    (session,) = read_sessions(tmp_path)
    assert session.header.items() >= {**measured.HEADER, "seed": 7, "session": writer.name}.items()
    assert [tested.symbol for tested in session.kernels] == ["b", "a"]
    one, other = session.results
    assert (one.problem, one.state, one.decided, one.clocks) == (SQUARE, "steady", True, {"sm_mhz": 1980})
    assert [(time.index, time.time_us, time.spread_us, time.rounds) for time in one.times] == [
        (0, 2.0, 0.1, 15),
        (1, 1.5, 0.1, 15),
    ]
    assert (other.problem.acc, other.state, other.times[0].index, other.decided) == ("f16", "burst", 1, False)


def test_altered_lines_are_found_and_a_truncated_end_is_ignored(tmp_path: Path) -> None:
    session = measured.write(tmp_path, [(SQUARE, {"a": 1.0}), (SQUARE, {"a": 2.0, "b": 1.0})])
    path = tmp_path / "measurements" / f"{session.name}.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(LibraryError, match="was changed"):
            read_session(path)
    for wrong in (lines[1:], [lines[0], *lines[2:]], [lines[0], lines[2], lines[1], *lines[3:]], []):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(LibraryError):
            read_session(path)
        assert read_sessions(tmp_path) == []
    for cut in range(1, len(lines[-1])):
        path.write_bytes(whole[:-cut])
        assert read_session(path).results == session.results[:1]


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, text: whole(file, text[:100]))
    session = measured.write(tmp_path, [(SQUARE, {"a": 1.0}), (SQUARE, {"a": 2.0})])
    assert [result.times[0].time_us for result in session.results] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"times": [[1, 1.0]]}, "line 3 uses kernel 1, but no earlier line defines it"),
        ({"times": [[0.5, 1.0]]}, "times.0. must be the number of a kernel and a time"),
        ({"times": [[0, -1.0]]}, "times.0. must have finite numbers"),
        ({"times": [[0, float("inf")]]}, "times.0. must have finite numbers"),
        ({"times": {}}, "times must be a list"),
        ({"times": [[0, 0]]}, "a time of 0 us"),
        ({"times": [[0, 1.0, 2.0]]}, "times.0. must be the number of a kernel and a time"),
        ({"options": [[0, 0, 0, 8]]}, "options.0. has launch options .0, 0, 8., which no launch takes"),
        ({"options": [[0, 1, 0, 0]]}, "options.0. has launch options .1, 0, 0., which no launch takes"),
        ({"options": [[0, 1, 0, -65536]]}, "options.0. has launch options .1, 0, -65536., which no launch takes"),
        ({"options": [[0, 2, 8]]}, "options.0. must be the numbers of a kernel, splits, whole tiles"),
        ({"options": {}}, "options must be a list"),
        ({"more": 1}, "more is not a field of this schema"),
        ({"problem": {**SQUARE.plain(), "m": 0}}, "m must be a whole number from 1"),
        ({"problem": {**SQUARE.plain(), "dtype_a": "e4m3"}}, "dtype_a must be one of f16, bf16"),
        ({"problem": {**SQUARE.plain(), "layout": "ttt"}}, "layout must be one of tn, nn"),
    ],
)
def test_implausible_values_are_rejected_despite_a_valid_hash(tmp_path: Path, changed: dict, message: str) -> None:
    session = measured.write(tmp_path, [(SQUARE, {"a": 1.0})])
    entries = [json.loads(line.partition(b" ")[2]) for line in session.lines]
    before, text = "", b""
    for entry in (*entries[:2], {**entries[2], **changed}):
        before, line = chained(before, entry)
        text += line
    path = tmp_path / "measurements" / f"{session.name}.jsonl"
    path.write_bytes(text)
    with pytest.raises(LibraryError, match=message):
        read_session(path)


# ---- Best known kernels ---------------------------------------------------------------------------------------------


def best_after(folder: Path, *orders: dict[str, float], keys: dict[str, str] | None = None, **header: object):
    for order in orders:
        measured.write(folder, [(SQUARE, order)], **header)
    return best_known(read_sessions(folder), keys or dict.fromkeys("abcdef", measured.KEY))


def test_sessions_are_read_in_order_of_their_start(tmp_path: Path) -> None:
    names = [measured.write(tmp_path, [(SQUARE, {"a": 1.0})]).name for _ in range(30)]
    assert [session.name for session in read_sessions(tmp_path)] == names


def test_ranking_of_a_session_overrides_its_times(tmp_path: Path) -> None:
    """A decision within the spread is kept."""
    found = best_after(tmp_path, {"b": 2.0, "a": 1.99, "c": 3.0})
    assert found[PLACE].order == ("b", "a", "c") and found[PLACE].times_us == {"b": 2.0, "a": 1.99, "c": 3.0}


def test_later_session_counts_if_it_measured_the_current_best(tmp_path: Path) -> None:
    found = best_after(tmp_path / "x", {"a": 2.0, "b": 3.0}, {"c": 1.0, "a": 1.8})
    assert found[PLACE].order == ("c", "a")
    assert found[PLACE].times_us == {"c": 1.0, "a": 1.8, "b": pytest.approx(3.0 * 1.8 / 2.0)}
    found = best_after(tmp_path / "y", {"a": 2.0, "b": 3.0}, {"c": 1.0}, {"d": 0.5, "b": 6.0})
    assert found[PLACE].order == ("a", "b")
    assert found[PLACE].times_us == {"a": 2.0, "b": 3.0, "c": 1.0, "d": 0.25}


def test_launch_options_are_stored_with_their_times(tmp_path: Path) -> None:
    few, many = LaunchOptions(2, 0, 8), LaunchOptions(5, 132, -4)
    measured.write(tmp_path, [(SQUARE, {"a": 2.0, "b": 3.0})], options=[{"a": few, "b": few}])
    session = measured.write(tmp_path, [(SQUARE, {"c": 1.0, "a": 1.8})], options=[{"a": many}])
    assert [time.options for time in session.results[0].times] == [None, many]
    assert best_after(tmp_path)[PLACE].options == {"a": many, "b": few}
    measured.write(tmp_path, [(SQUARE, {"c": 1.0, "b": 1.8})])  # without options: the default ones
    assert best_after(tmp_path)[PLACE].options == {"a": many}


def test_rebuilt_kernels_count_as_unmeasured(tmp_path: Path) -> None:
    found = best_after(tmp_path, {"a": 2.0, "b": 3.0}, keys={"a": "1" * 64, "b": measured.KEY})
    assert found[PLACE].order == ("b",)
    assert best_after(tmp_path, keys={"a": "1" * 64}) == {}


def test_devices_and_states_are_separate(tmp_path: Path) -> None:
    assert [place[:2] for place in best_after(tmp_path / "x", {"a": 1.0}, sms=114)] == [(90, 114)]
    measured.write(tmp_path, [(SQUARE, {"a": 1.0})], state="burst")
    assert best_after(tmp_path) == {}


# ---- Nearness -------------------------------------------------------------------------------------------------------


@given(extents, extents)
def test_octaves_grow_with_extents_and_are_exact_at_powers_of_2(one: int, other: int) -> None:
    assert (octaves(one) <= octaves(other)) == (one <= other) or octaves(one) == octaves(other)
    assert octaves(1 << one % 31) == 16 * (one % 31)


@given(points, points, points)
def test_distance_is_a_metric(x, y, z) -> None:
    assert distance(x, x) == 0 and distance(x, y) == distance(y, x) <= distance(x, z) + distance(z, y)


def corrections(at, places: list, ratios: list, estimate_weight: int = WEIGHT_ONE) -> dict:
    near = nearest(at, zip(places, map(relative_ratios, ratios), strict=True))
    return {name: correction(near, name, estimate_weight) for name in ratios[0]}


def test_one_measurement_corrects_the_estimate_in_part() -> None:
    here = point(64, 64, 64, 1)
    found = corrections(here, [here], [{3: 1.0, 5: 1.5, 9: 100.0, 10: 1e-3}], 3 * WEIGHT_ONE)
    ratios = {3: FACTOR_ONE * 1.0 / 1.25, 5: FACTOR_ONE * 1.5 / 1.25, 9: MAX_RATIO, 10: MIN_RATIO}
    assert found == {name: pytest.approx((3 * FACTOR_ONE + ratio) / 4, abs=1) for name, ratio in ratios.items()}
    assert correction(nearest(here, [(here, {3: FACTOR_ONE})]), 4, WEIGHT_ONE) is None


@given(st.lists(points, min_size=1, max_size=12), st.data())
def test_consistent_measurements_give_almost_their_factor(places, data) -> None:
    """A factor that all rows of a problem share has no effect."""
    common = [data.draw(st.floats(0.1, 10)) for _ in places]
    rows = {1: 0.8, 2: 1.0, 7: 1.25}
    for at in places:
        found = corrections(at, places, [{row: one * ratio for row, ratio in rows.items()} for one in common])
        for row, ratio in rows.items():
            least, most = sorted((ratio, (1 + ratio) / 2))
            assert FACTOR_ONE * least - 2 <= found[row] <= FACTOR_ONE * most + 2


def test_near_problems_count_more_than_far_ones() -> None:
    places = [point(m, 4096, 4096, 1) for m in (64, 256, 4096)]
    ratios = [{1: 1.0, 2: 1.2, 3: 1.0}, {1: 1.0, 2: 1.2, 3: 1.0}, {1: 1.0, 2: 0.6, 3: 1.0}]
    near, far = (corrections(at, places, ratios) for at in (places[0], places[2]))
    assert near[2] > 1.05 * FACTOR_ONE and far[2] < 0.85 * FACTOR_ONE


@given(points, points)
def test_influence_of_a_problem_fades_with_distance(x, y) -> None:
    """It falls from 1 at distance 0 to 0."""
    here, there = (corrections(at, [x], [{1: 1.0, 2: 2.0, 3: 1.0}])[2] for at in (x, y))
    assert here == 1.5 * FACTOR_ONE
    assert there is None or FACTOR_ONE <= there <= here
    assert (there is None) == (distance(x, y) >= 8 * DECAY_DISTANCE) or abs(distance(x, y) - 8 * DECAY_DISTANCE) < 12


def test_nearest_problems_count_and_ties_go_to_the_first() -> None:
    here = point(64, 64, 64, 1)
    places = [point(64, 64 + 4 * away, 64, 1) for away in (5, 3, 3, 1)]
    assert nearest(here, zip(places, "abcd", strict=True)) == [(1, "d"), (3, "b"), (3, "c"), (5, "a")]
    assert [at for _, at in nearest(here, ((here, at) for at in range(2 * NEAREST)))] == [*range(NEAREST)]
