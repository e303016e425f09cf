"""Work in batches by any executor of `concurrent.futures`: what a worker died over is tried again, and then named."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

MAX_BATCH = 8
_AHEAD = 2
_CHECK_S = 1.0


@dataclass(frozen=True)
class Lost:
    """The result of an item over which a worker died that had nothing else, while no other worker had anything."""

    cause: str


@dataclass(frozen=True)
class Pool:
    """An executor, and what must be known of it.

    Fields: `width` says how many tasks it does at a time, `check` raises where it can do no more, and `death` says how a
        worker died, where that is what an exception of a future means; any other exception ends the run.
    """

    executor: Executor
    width: Callable[[], int]
    check: Callable[[], None]
    death: Callable[[Exception], str]


def run(task: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any], pool: Pool) -> Iterator[tuple[int, Any]]:
    """Do `task` on batches of the items; yield (place, its result or Lost) as they come, for each item once.

    Only a few batches more than there are workers are under way, so that memory does not grow with the items. What a worker
    died over is done again, each item by itself, and then alone: so one that memory ran out for has all of it in the end,
    and one that is lost has itself to blame.
    Raises: what the task or the pool's check raises.
    """
    batches, suspects = deque(_batches(len(items), pool.width())), deque[int]()
    running: dict[Future[Sequence[Any]], list[int]] = {}
    tried_alone: set[int] = set()

    def submit(places: list[int]) -> None:
        running[pool.executor.submit(task, [items[place] for place in places])] = places

    try:
        while batches or suspects or running:
            while batches and len(running) < _AHEAD * max(1, pool.width()):
                submit(batches.popleft())
            if not running:
                tried_alone.add(suspects[0])
                submit([suspects.popleft()])
            done, _ = wait(running, _CHECK_S, FIRST_COMPLETED)
            for future in done:
                places = running.pop(future)
                try:
                    results = future.result()
                except Exception as error:
                    cause = pool.death(error)
                    if not cause:
                        raise
                    if places[0] in tried_alone:
                        yield places[0], Lost(cause)
                    elif len(places) == 1:
                        suspects += places
                    else:
                        batches.extend([place] for place in places)
                else:
                    yield from zip(places, results)
            pool.check()
    finally:
        for future in running:
            future.cancel()


def _batches(count: int, width: int) -> list[list[int]]:
    """Cut the places into runs: long ones share an inspection, short ones keep the last of several workers from being alone."""
    share = count // (2 * width) if width > 1 else count
    size = max(1, min(MAX_BATCH, share))
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]
