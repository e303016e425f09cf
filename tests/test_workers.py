"""Workers: every item is done once, whatever dies; what a worker died over is named, and a stop leaves no process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from generator.errors import LibraryError
from generator.workers import Begin, Lost, RemoteTraceback, _batches, run


def square(items: Sequence[int], begin: Begin) -> Iterator[tuple[int, int]]:
    """Square numbers; die over 13 while at work on it, and over 17 after all of its batch was begun."""
    for place, item in enumerate(items):
        begin(place)
        if item == 13:
            os.kill(os.getpid(), signal.SIGKILL)
    begin(None)
    for place, item in enumerate(items):
        if item == 17:
            os._exit(3)
        if item == 19:
            raise LibraryError("the disk is full")
        yield place, item * item


def sleep(items: Sequence[int], begin: Begin, folder: Path) -> Iterator[tuple[int, int]]:
    """Say that work has begun, and sleep over all but the first."""
    for place, item in enumerate(items):
        begin(place)
        (folder / str(os.getpid())).touch()
        time.sleep(30 if item else 0)
        yield place, item


def test_every_item_is_done_once() -> None:
    assert sorted(run(square, list(range(12)), processes=2)) == [(number, number * number) for number in range(12)]


def test_what_a_worker_died_over_is_named_and_the_rest_is_done() -> None:
    items = [1, 2, 13, 4, 5, 17, 7, 8]
    results = dict(run(square, items, processes=1))
    assert {items[place]: str(result) for place, result in results.items() if isinstance(result, Lost)} == {
        13: "was killed by SIGKILL: where memory ran out, use a smaller -j",
        17: "ended with exit code 3",
    }
    assert {items[place]: result for place, result in results.items() if not isinstance(result, Lost)} == {
        number: number * number for number in (1, 2, 4, 5, 7, 8)
    }


def test_what_stops_every_item_is_raised_with_the_workers_traceback() -> None:
    with pytest.raises(LibraryError, match="the disk is full") as raised:
        list(run(square, [1, 19, 2], processes=1))
    assert isinstance(raised.value.__cause__, RemoteTraceback) and "in square" in str(raised.value.__cause__)
    assert multiprocessing.active_children() == []


def test_leaving_early_ends_the_workers_at_once(tmp_path: Path) -> None:
    results = run(partial(sleep, folder=tmp_path), [0, 1, 2, 3], processes=2)
    assert next(results) == (0, 0)
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 2
    assert multiprocessing.active_children() == []
    assert all(not Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir())


@pytest.mark.parametrize(("count", "processes"), [(1, 4), (3, 2), (64, 2), (65, 2), (1000, 7)])
def test_batches_are_few_and_leave_no_worker_alone(count: int, processes: int) -> None:
    batches = _batches(count, processes)
    assert [place for batch in batches for place in batch] == list(range(count))
    assert max(map(len, batches)) <= 8 and len(batches) >= min(count, 2 * processes)


def test_a_single_worker_inspects_as_many_at_once_as_it_may() -> None:
    assert [len(batch) for batch in _batches(17, 1)] == [8, 8, 1]
