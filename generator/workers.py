"""Work in several processes, of which any may be killed: what it held is named, and the rest goes on."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

Begin = Callable[[int | None], None]
"""Told the place of the item that work begins on, or None where it is for several at once."""

Task = Callable[[Sequence[Any], Begin], Iterator[tuple[int, Any]]]
"""Yields (place in the items, result) for each item, in any order."""

MAX_BATCH = 8
_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class Lost:
    """The result of an item whose worker died over it; `signal` is what killed it, or 0."""

    exit_code: int

    def __str__(self) -> str:
        if self.exit_code == -signal.SIGKILL:
            return "was killed by SIGKILL: where memory ran out, use a smaller -j"
        if self.exit_code < 0:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        return f"ended with exit code {self.exit_code}"


class RemoteTraceback(Exception):
    """The traceback of an exception that a worker raised, as text."""


@dataclass
class _Worker:
    """A process, and the places of the items that it holds; `begun` is the one that it works on."""

    process: Any
    connection: Connection
    held: list[int] = field(default_factory=list)
    begun: int | None = None


def run(task: Task, items: Sequence[Any], processes: int) -> Iterator[tuple[int, Any]]:
    """Do `task` on all items in up to `processes` processes; yield (place, result or Lost) as they come.

    The task and the items are pickled. Leaving the iteration early stops the workers.
    Raises: what the task raises, from a RemoteTraceback.
    """
    batches = deque(_batches(len(items), processes))
    workers: list[_Worker] = []
    try:
        while batches or workers:
            while batches and len(workers) < processes:
                workers.append(_start(task))
                _give(workers[-1], batches, items)
            for connection in wait([worker.connection for worker in workers]):
                worker = next(worker for worker in workers if worker.connection is connection)
                yield from _hear(worker, workers, batches, items)
    finally:
        _stop(workers)


def _batches(count: int, processes: int) -> list[list[int]]:
    """Cut the places into runs: long ones share an inspection, short ones keep the last of several workers from being alone."""
    share = count // (2 * processes) if processes > 1 else count
    size = max(1, min(MAX_BATCH, share))
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


def _start(task: Task) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, task), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, batches: deque[list[int]], items: Sequence[Any]) -> None:
    worker.held, worker.begun = batches.popleft(), None
    try:
        worker.connection.send([(place, items[place]) for place in worker.held])
    except OSError:
        pass  # it died: its end of the pipe tells so when it is heard


def _hear(
    worker: _Worker, workers: list[_Worker], batches: deque[list[int]], items: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    """Take one message of a worker."""
    try:
        kind, *message = worker.connection.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        workers.remove(worker)
        yield from _bury(worker, batches)
        return
    if kind == "raised":
        error, told = message
        raise error from RemoteTraceback(told)
    if kind == "begun":
        (worker.begun,) = message
    if kind == "result":
        worker.held.remove(message[0])
        yield message[0], message[1]
    if kind == "done" and batches:
        _give(worker, batches, items)
    elif kind == "done":
        workers.remove(worker)
        worker.connection.close()


def _bury(worker: _Worker, batches: deque[list[int]]) -> Iterator[tuple[int, Any]]:
    """Put back what a dead worker held, one by one, but for the item that it died over."""
    worker.connection.close()
    worker.process.join()
    culprit = worker.held[0] if len(worker.held) == 1 else worker.begun
    if culprit in worker.held:
        worker.held.remove(culprit)
        yield culprit, Lost(worker.process.exitcode)
    batches.extend([place] for place in worker.held)


def _stop(workers: list[_Worker]) -> None:
    """End the workers: at once where they can, by force after a second."""
    for worker in workers:
        worker.connection.close()
        worker.process.terminate()
    end = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, end - time.monotonic()))
        worker.process.kill()
        worker.process.join()


def _serve(connection: Connection, task: Task) -> None:
    """Do batches until the other end closes.

    Ctrl-C is the parent's to answer; SIGTERM unwinds, so that temporary files are removed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while True:
            places, items = zip(*connection.recv())
            try:
                for place, result in task(items, partial(_send_begun, connection, places)):
                    connection.send(("result", places[place], result))
            except Exception as error:
                connection.send(("raised", _portable(error), traceback.format_exc()))
                return
            connection.send(("done",))
    except (EOFError, OSError):
        return  # the parent has ended, or needs nothing more


def _send_begun(connection: Connection, places: Sequence[int], place: int | None) -> None:
    connection.send(("begun", None if place is None else places[place]))


def _portable(error: Exception) -> Exception:
    """Return an exception that can be sent to the parent."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
