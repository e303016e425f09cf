"""CPU time of proving shipped kernels, for two checkouts in turn: `python -m benchmarks.proof_time BEFORE AFTER`.

Each run proves the same sample of kernels with an empty cache, in the order before, after, after, before. The executor itself
is built once for each checkout, outside the time. With one checkout, it is measured twice.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hgemm.object_cache import CACHE_VARIABLE

_SHARED = ("executor-", "runner-", "ordered-sum-")
"""Objects that do not depend on a kernel."""
_PR_SET_CHILD_SUBREAPER = 36
"""Orphans become children of this process, so that their CPU time counts."""


def _measured(checkout: Path, cache: Path, sample: int, seed: str, jobs: int) -> tuple[float, float, int]:
    """Return the CPU seconds, the seconds, and the exit status of proving a sample. The cache keeps the shared objects only."""
    for path in (cache / "executor").glob("*"):
        if not path.name.startswith(_SHARED):
            path.unlink()
    command = [sys.executable, "-m", "generator.cli.prove_catalog", f"--sample={sample}", f"--seed={seed}", f"-j{jobs}"]
    environment = {**os.environ, CACHE_VARIABLE: str(cache), "PYTHONPATH": str(checkout)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    with suppress(ChildProcessError):
        while os.wait():  # servers of proofs outlive the process that started them by a moment
            pass
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = time.monotonic() - began
    print((done.stdout + done.stderr).splitlines()[-1], flush=True)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took, done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.proof_time", description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--sample", type=int, default=30, metavar="N", help="kernels to prove")
    parser.add_argument("--seed", default="", help="seed of the sample")
    parser.add_argument("-j", "--jobs", type=int, default=2, metavar="N")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    checkouts = [path.resolve() for path in args.checkouts]
    caches = {path: Path(tempfile.mkdtemp()) for path in checkouts}
    failed, seconds = 0, {path: [] for path in checkouts}
    try:
        for path in checkouts:
            _measured(path, caches[path], 1, args.seed, 1)
        for path in (*checkouts, *reversed(checkouts)):
            cpu, took, status = _measured(path, caches[path], args.sample, args.seed, args.jobs)
            failed |= status
            seconds[path].append(cpu)
            print(f"{path.name}: {cpu:.1f} CPU s, {took:.1f} s", flush=True)
    finally:
        for cache in caches.values():
            shutil.rmtree(cache)
    first, last = (sum(seconds[path]) / len(seconds[path]) for path in (checkouts[0], checkouts[-1]))
    print(f"{first:.1f} -> {last:.1f} CPU s for {args.sample} kernels: {last / first - 1:+.1%}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
