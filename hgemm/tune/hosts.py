"""Several GPUs of a host, each with a process that has a part of the problems."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import IO

import click

from hgemm.errors import RequestError

_PART = re.compile(r"([0-9]{1,3})/([0-9]{1,3})")


def part_of(text: str) -> tuple[int, int]:
    """Read I/N, 1 of N to N of N. Raises RequestError where that is malformed."""
    match = _PART.fullmatch(text)
    part = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise RequestError(f"--part {text!a} is malformed: write 1/4 to 4/4")
    return part


def visible(count: int, given: str | None) -> list[str]:
    """Return the names of the first GPUs of those that a process may see; `given` is CUDA_VISIBLE_DEVICES.

    Raises: RequestError where there are fewer.
    """
    names = [str(at) for at in range(count)]
    if given is not None:  # where it is empty, none is visible
        names = [name.strip() for name in given.split(",") if name.strip()]
    if len(names) < count:
        raise RequestError(f"--gpus {count} are more than the {len(names)} of CUDA_VISIBLE_DEVICES={given}")
    return names[:count]


def in_parts(count: int, seed: int, as_json: bool) -> int:
    """Run this very command once for each GPU, each on its part, all with one seed; return the worst exit status.

    What they tell is told with their GPU's name before it; their answers follow one another, or make one list of JSON.
    """
    names = visible(count, os.environ.get("CUDA_VISIBLE_DEVICES"))
    command = [*sys.orig_argv, "--gpus", "1", "--seed", str(seed)]
    processes = [
        subprocess.Popen(
            [*command, "--part", f"{at}/{count}"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for at, name in enumerate(names, 1)
    ]
    told = [threading.Thread(target=_relay, args=(process.stderr, name)) for process, name in zip(processes, names)]
    answers: list[str] = [""] * count
    read = [threading.Thread(target=_read, args=(process.stdout, answers, at)) for at, process in enumerate(processes)]
    for thread in (*told, *read):
        thread.start()
    try:
        for thread in (*told, *read):
            thread.join()
        statuses = [abs(process.wait()) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
    documents = [answer.strip() for answer in answers if answer.strip()]
    click.echo(f"[{','.join(documents)}]" if as_json else "\n".join(documents))
    return max(statuses)


def _relay(stream: IO[str], name: str) -> None:
    for line in stream:
        click.echo(f"gpu {name}: {line}", nl=False, err=True)


def _read(stream: IO[str], answers: list[str], at: int) -> None:
    answers[at] = stream.read()
