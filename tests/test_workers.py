"""Workers: each item is done once even if workers die, the item that killed a worker is named, and stopping leaves no process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.build import workers as local
from generator.build.pipeline import BuildOptions, build, prepare
from generator.build.toolchain import templates_folder
from generator.build.workers import LostItem, Pool, Processes, RemoteTraceback, _batches, process_pool, run
from generator.errors import LibraryError
from generator.sweep import sweep


def square(items: Sequence[int], folder: Path | None = None) -> list[int]:
    """Square numbers; die over 13 and 17, over 11 only the first time, and fail over 19."""
    for item in items:
        if item == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 17:
            os._exit(3)
        if item == 19:
            raise LibraryError("the disk is full")
        if item == 11 and folder and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return [item * item for item in items]


def sleep(items: Sequence[int], folder: Path) -> list[int]:
    """Say that work has begun, and sleep over all but the first."""
    (folder / str(os.getpid())).touch()
    time.sleep(30 if any(items) else 0)
    return list(items)


def done_by(task: Any, items: list[int], processes: int) -> list[tuple[int, Any]]:
    with process_pool(processes) as pool:
        return list(run(task, items, pool))


def test_every_item_is_done_once() -> None:
    assert sorted(done_by(square, list(range(11)), 2)) == [(number, number * number) for number in range(11)]
    assert multiprocessing.active_children() == []


def test_item_that_kills_workers_is_named_and_the_rest_is_done() -> None:
    items = [1, 2, 13, 4, 5, 17, 7, 8]
    results = done_by(square, items, 1)
    assert sorted(place for place, _ in results) == list(range(8))
    assert {items[place]: result.cause for place, result in results if isinstance(result, LostItem)} == {
        13: "was killed by SIGKILL: where memory ran out, use a smaller -j",
        17: "ended with exit code 3",
    }
    assert all(result == items[place] ** 2 for place, result in results if not isinstance(result, LostItem))


def test_item_of_a_killed_worker_is_retried(tmp_path: Path) -> None:
    results = done_by(partial(square, folder=tmp_path), [9, 10, 11, 12], 2)
    assert (tmp_path / "died").exists() and sorted(results) == [(0, 81), (1, 100), (2, 121), (3, 144)]


def test_common_failure_is_raised_with_the_traceback() -> None:
    with pytest.raises(LibraryError, match="the disk is full") as raised:
        done_by(square, [1, 19, 2], 1)
    assert isinstance(raised.value.__cause__, RemoteTraceback) and "in square" in str(raised.value.__cause__)
    assert multiprocessing.active_children() == []


def test_leaving_early_ends_the_workers_at_once(tmp_path: Path) -> None:
    with process_pool(2) as pool:
        results = run(partial(sleep, folder=tmp_path), [0, 1, 2, 3], pool)
        assert next(results) == (0, 0)
        start = time.monotonic()
        results.close()
    assert time.monotonic() - start < 2
    assert multiprocessing.active_children() == []
    assert all(not Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir())


def compile_once() -> str:
    """Compile what is small, by NVRTC and nvJitLink."""
    (candidate,) = sweep([{"arch": "sm_80", "tile": "32x32x16"}]).candidates
    (product,) = build([prepare(candidate.plan, templates_folder())], BuildOptions(templates_folder()))
    return product.status


def compile_and_leave_a_file_at_the_end(end: Path) -> str:
    """Compile, and have the process write a file when it ends in order."""
    atexit.register(end.touch)
    return compile_once()


def test_idle_worker_exits_without_being_killed(tmp_path: Path, monkeypatch) -> None:
    """NVRTC leaves SIGTERM so that a process that waits for its next task would not hear it."""
    end = tmp_path / "end"
    monkeypatch.setattr(local, "_STOP_SECONDS", 60.0)  # a machine may be busy, and one that does not hear is waited for
    start = time.monotonic()
    with process_pool(1) as pool:
        assert pool.executor.submit(compile_and_leave_a_file_at_the_end, end).result() == "built"
        assert not end.exists()
    assert end.exists() and time.monotonic() - start < 60


WAIT_AFTER_COMPILING = """
import os, signal, threading, time
from test_workers import compile_once
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background processes have not
compile_once()
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    os.read(os.pipe()[0], 1)
except KeyboardInterrupt:
    print("heard")
"""


def test_ctrl_c_interrupts_a_wait_after_a_compilation() -> None:
    path = os.pathsep.join(sys.path)
    process = [sys.executable, "-c", WAIT_AFTER_COMPILING]
    said = subprocess.run(process, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path})
    assert said.stdout == "heard\n", said.stderr


def test_process_pool_is_an_executor() -> None:
    """Used as the standard library's: `map` keeps the order, exceptions arrive, leaving waits for what was submitted."""
    with Processes(2) as executor:
        assert list(executor.map(pow, [2, 3, 4], [5, 2, 1])) == [32, 9, 4]
        failing, last = executor.submit(divmod, 1, 0), executor.submit(abs, -7)
    assert isinstance(failing.exception(), ZeroDivisionError) and last.result() == 7
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)


# ---- Dispatching, by threads that die on request ---------------------------------------------------------------------


class Died(Exception):
    pass


def pool_of(executor: ThreadPoolExecutor, width: int, check: Callable[[], None] = lambda: None) -> Pool:
    return Pool(executor, lambda: width, check, lambda error: str(error) if isinstance(error, Died) else "")


class CountedThreads(ThreadPoolExecutor):
    def __init__(self, width: int, count: Callable[[], None]) -> None:
        super().__init__(width)
        self.count = count

    def submit(self, *given: Any, **named: Any) -> Any:
        self.count()
        return super().submit(*given, **named)


class Fleet:
    """A pool of threads that counts what is under way, and loses the worker of an item as often as `deaths` says."""

    def __init__(self, width: int, deaths: dict[int, int]) -> None:
        self.width, self.deaths = width, dict(deaths)
        self.under_way = self.most = 0
        self.lock = threading.Lock()

    def task(self, items: Sequence[int]) -> list[int]:
        with self.lock:
            self.under_way -= 1
            dying = [item for item in items if self.deaths.get(item)]
            for item in dying:
                self.deaths[item] -= 1
        if dying:
            raise Died("of old age")
        return [-item for item in items]

    def count(self) -> None:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)

    def results(self, items: list[int]) -> list[tuple[int, Any]]:
        with CountedThreads(self.width, self.count) as executor:
            return list(run(self.task, items, pool_of(executor, self.width)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 80), st.integers(1, 5), st.dictionaries(st.integers(0, 79), st.integers(1, 4), max_size=6))
def test_every_result_arrives_exactly_once(count: int, width: int, deaths: dict[int, int]) -> None:
    fleet = Fleet(width, deaths)
    results = fleet.results(list(range(count)))
    assert sorted(place for place, _ in results) == list(range(count))
    assert all(result == -place for place, result in results if not isinstance(result, LostItem))
    lost = {place for place, result in results if isinstance(result, LostItem)}
    assert lost <= {item for item, times in deaths.items() if times >= 2}
    assert lost >= {item for item, times in deaths.items() if times >= 3 and item < count}
    assert fleet.most <= 2 * width


def test_broken_pool_ends_the_wait() -> None:
    def check() -> None:
        raise LibraryError("no worker is left")

    with ThreadPoolExecutor(1) as executor:
        event = threading.Event()
        with pytest.raises(LibraryError, match="no worker is left"):
            list(run(lambda items: event.wait(10), [1], pool_of(executor, 1, check)))
        event.set()


@pytest.mark.parametrize(("count", "processes"), [(1, 4), (3, 2), (64, 2), (65, 2), (1000, 7)])
def test_batches_are_few_and_use_every_worker(count: int, processes: int) -> None:
    batches = _batches(count, processes)
    assert [place for batch in batches for place in batch] == list(range(count))
    assert max(map(len, batches)) <= 8 and len(batches) >= min(count, 2 * processes)
    assert {len(batch) for batch in batches[:processes]} == {1}  # the first results come soon


def test_single_worker_inspects_full_batches() -> None:
    assert [len(batch) for batch in _batches(17, 1)] == [8, 8, 1]
