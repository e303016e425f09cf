"""Worker processes: batches of work, and a pool in which a killed process loses only its own task."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from generator.isolated import NEUTRAL_FOLDER, command


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- Batches on any executor of `concurrent.futures` ----------------------------------------------------------------

MAX_BATCH = 8
_AHEAD = 2
_CHECK_S = 1.0


@dataclass(frozen=True)
class LostItem:
    """The result of an item whose worker died while it ran alone."""

    cause: str


@dataclass(frozen=True)
class Pool:
    """An executor and its limits.

    Fields: `width` is the number of parallel tasks; `check` raises if the executor can run no more; `death` says how a
        worker died, where that is what an exception of a future means; any other exception ends the run.
    """

    executor: Executor
    width: Callable[[], int]
    check: Callable[[], None]
    death: Callable[[Exception], str]


def run(
    task: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any], pool: Pool, max_batch: int = MAX_BATCH
) -> Iterator[tuple[int, Any]]:
    """Run `task` on batches of items. Yield (place, result or LostItem) once per item, as results arrive.

    Only a few batches more than there are workers are under way, so that memory does not grow with the items. What a worker
    died over is done again, each item by itself, and then alone: so one that memory ran out for has all of it in the end,
    and one that is lost has itself to blame.
    Raises: what the task or the pool's check raises.
    """
    batches, suspects = deque(_batches(len(items), pool.width(), max_batch)), deque[int]()
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
                        yield places[0], LostItem(cause)
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


def _batches(count: int, width: int, max_batch: int = MAX_BATCH) -> list[list[int]]:
    """Split the places into batches. Long batches share an inspection; short ones keep all workers busy until the end.

    Each of several workers begins with one item, so that the first results, and with them the progress, come soon.
    """
    share = count // (2 * width) if width > 1 else count
    size = max(1, min(max_batch, share))
    alone = width if width > 1 and size > 1 else 0
    longer = (list(range(start, min(start + size, count))) for start in range(alone, count, size))
    return [*([place] for place in range(alone)), *longer]


# ---- A pool of processes on this machine -----------------------------------------------------------------------------

_STOP_SECONDS = 1.0


class WorkerLost(Exception):
    """The process of a task died. The text says how."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker, as text."""


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection

    def do(self, task: Callable[[], Any]) -> Any:
        """Run a task. Raises: WorkerLost if the process dies; the exception of the task, from a RemoteTraceback."""
        try:
            self.connection.send(task)
            raised, result, message = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            raise WorkerLost(_cause(self.process.wait())) from None
        if raised:
            raise result from RemoteTraceback(message)
        return result

    def stop(self) -> None:
        """Interrupt the task that runs, and tell the process that no other follows.

        SIGTERM alone could be missed: just before a process begins to wait for a task, it does not end the wait.
        """
        self.process.terminate()
        with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as tasks:
            tasks.shutdown(socket.SHUT_WR)


class Processes(Executor):
    """A pool of processes that start when there is work. `shutdown` with cancel_futures ends them at once.

    A thread per process waits for its results. Tasks and results are pickled.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._ended = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._do, partial(function, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        with self._lock:
            self._ended = True
            workers = list(self._workers)
        for worker in workers:
            worker.stop()
        end = time.monotonic() + _STOP_SECONDS
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, end - time.monotonic()))
            worker.process.kill()
            worker.process.wait()
        self._threads.shutdown()

    def _do(self, task: Callable[[], Any]) -> Any:
        worker = self._taken()
        try:
            return worker.do(task)
        except WorkerLost:
            with self._lock:
                self._workers.discard(worker)
            worker.connection.close()
            raise
        finally:
            with self._lock:
                if worker in self._workers:
                    self._idle.append(worker)

    def _taken(self) -> _Worker:
        with self._lock:
            if self._ended:
                raise RuntimeError("the pool has been shut down")
            if self._idle:
                return self._idle.pop()
            worker = _start()
            self._workers.add(worker)
            return worker


@contextmanager
def process_pool(count: int) -> Iterator[Pool]:
    """Yield a pool of processes, and end them afterwards."""
    executor = Processes(count)
    try:
        yield Pool(executor, lambda: count, lambda: None, _cause_of_death)
    finally:
        executor.shutdown(cancel_futures=True)


def _start() -> _Worker:
    """Start an isolated process that runs `serve`. It shares only a socket with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            command(f"{__name__}:serve", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=NEUTRAL_FOLDER,
        )
    return _Worker(process, Connection(ours.detach()))


def _cause_of_death(error: Exception) -> str:
    return str(error) if isinstance(error, WorkerLost) else ""


def _cause(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL: where memory ran out, use a smaller -j"
    return f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"


def serve(socket_number: str) -> None:
    """Run the tasks that arrive at a socket until it closes.

    The parent handles Ctrl-C. SIGTERM raises, so that temporary files are removed.
    """
    connection = Connection(int(socket_number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while True:
            task = connection.recv()
            try:
                answer = (False, task(), "")
            except Exception as error:
                answer = (True, _portable(error), traceback.format_exc())
            connection.send(answer)
    except (EOFError, OSError):
        return  # the parent has ended or closed the connection


def _portable(error: Exception) -> Exception:
    """Return an exception that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
