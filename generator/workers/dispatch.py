"""Work in batches by any executor of `concurrent.futures`: what a worker died over is tried again, and then named."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

MAX_BATCH = 8
_AHEAD = 2
_TRIES = 2
_CHECK_S = 1.0


class WorkerLost(Exception):
    """The worker of a task died over it; the text says how, after "its worker"."""


@dataclass(frozen=True)
class Lost:
    """The result of an item over which its workers died, alone with it, as often as it was tried."""

    cause: str


@dataclass(frozen=True)
class Pool:
    """An executor, how many tasks it does at a time, and what raises where it can do no more.

    Its futures raise WorkerLost where a worker died over a task; any other exception ends the run.
    """

    executor: Executor
    width: Callable[[], int]
    check: Callable[[], None] = lambda: None


def run(task: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any], pool: Pool) -> Iterator[tuple[int, Any]]:
    """Do `task` on batches of the items; yield (place, its result or Lost) as they come, for each item once.

    Only a few batches more than there are workers are under way, so that memory does not grow with the items.
    Raises: what the task or the pool's check raises.
    """
    batches, deaths = deque(_batches(len(items), pool.width())), Counter[int]()
    running: dict[Future[Sequence[Any]], list[int]] = {}
    try:
        while batches or running:
            while batches and len(running) < _AHEAD * max(1, pool.width()):
                places = batches.popleft()
                running[pool.executor.submit(task, [items[place] for place in places])] = places
            done, _ = wait(running, _CHECK_S, FIRST_COMPLETED)
            if not done:
                pool.check()
            for future in done:
                places = running.pop(future)
                try:
                    yield from zip(places, future.result())
                except WorkerLost as lost:
                    deaths.update(places if len(places) == 1 else ())
                    if deaths[places[0]] == _TRIES:
                        yield places[0], Lost(str(lost))
                    else:
                        batches.extend([place] for place in places)
    finally:
        for future in running:
            future.cancel()


def _batches(count: int, width: int) -> list[list[int]]:
    """Cut the places into runs: long ones share an inspection, short ones keep the last of several workers from being alone."""
    share = count // (2 * width) if width > 1 else count
    size = max(1, min(MAX_BATCH, share))
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]
