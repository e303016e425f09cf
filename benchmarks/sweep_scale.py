"""Measure how a sweep of 2,000 small kernels scales: kernels per second, memory, and a killed worker.

    python -m benchmarks.sweep_scale --jobs 1,2,4,16 --part 1/5 --json scale.json       # some 400 kernels a setting
    python -m benchmarks.sweep_scale --jobs 2 --kill --json scale.json                  # 2,000, a worker killed in the middle
    python -m benchmarks.sweep_scale --executor dask --jobs 2 --kill --json scale.json  # the same by Dask workers

Each setting fills an empty library, and then runs again, which compiles nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from generator import __version__
from generator.build.pipeline import prepare
from generator.build.toolchain import templates_folder
from generator.store.library import Library
from generator.sweep import read_spec_file, sweep

ROOT = Path(__file__).resolve().parents[1]
SPEC = """\
arch = ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90"]
tile = ["64x64x32", "32x64x32"]
mma = "m16n8k16"
layout = ["tn", "nn", "nt", "tt"]
stages = "2:6"
raster = ["row", "column", "group:4", "group:8", "panel:256"]
mma_order = ["row", "zigzag"]
"""
POINTS = 10
"""Samples of memory and CPU time per run."""


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "sweep.toml"
        spec.write_text(SPEC)
        report: dict[str, Any] = {"about": _about(), "planning": planning(spec), "settings": []}
        for jobs in arguments.jobs:
            library = Path(folder) / f"library_{jobs}"
            found = setting(spec, library, jobs, arguments)
            report["settings"].append(found)
            print(json.dumps({name: value for name, value in found.items() if name != "points"}), flush=True)
            shutil.rmtree(library)
            if arguments.json:
                arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2])
    parser.add_argument("--executor", choices=["processes", "dask"], default="processes")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="make a part of the 2,000: 1/5 is some 400")
    parser.add_argument("--kill", action="store_true", help="kill a worker when half of the kernels are there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def _about() -> dict[str, Any]:
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {
        "date": date,
        "generator": __version__,
        "python": platform.python_version(),
        "cores": _cores(),
        "cpu": _cpu(),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(": ")[2] if names else platform.machine()


def planning(spec: Path) -> dict[str, float]:
    """Time the planning of all combinations, and their emission with content keys."""
    start = time.perf_counter()
    plans = sweep(read_spec_file(spec)).plans
    planned = time.perf_counter()
    for plan in plans:
        prepare(plan, templates_folder())
    return {"kernels": len(plans), "plan_s": planned - start, "emit_and_key_s": time.perf_counter() - planned}


def setting(spec: Path, library: Path, jobs: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill a library with `jobs` processes, then request the same again."""
    words = [
        sys.executable,
        "-m",
        "generator",
        "--spec",
        str(spec),
        "--shard",
        arguments.part,
        "--library",
        str(library),
    ]
    with _dask(jobs) if arguments.executor == "dask" else nullcontext() as cluster:
        by = ["--executor", "dask", "--address", cluster.scheduler_address] if cluster else ["-j", str(jobs)]
        found = _watched([*words, *by], os.getpid() if cluster else None, arguments.kill)
    records = list(Library(library).records())
    symbols = Counter(record.symbol for record in records)
    start = time.perf_counter()
    again = subprocess.run([*words, "-q"], cwd=ROOT, capture_output=True, text=True, check=True)
    cached_s = time.perf_counter() - start
    return {
        "executor": arguments.executor,
        "jobs": jobs,
        "registered": len(symbols),
        "reported_once": sorted(found.pop("reported")) == sorted(symbols),
        **found,
        "compile_s_each": sum(record.data["seconds"]["compile"] for record in records) / len(records),
        "again_s": cached_s,
        "again_cached": sum(line.endswith(" cached") for line in again.stdout.splitlines()),
    }


@contextmanager
def _dask(jobs: int) -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster


def _watched(words: list[str], parent_of_workers: int | None, kill: bool) -> dict[str, Any]:
    """Run `generate`, note time and memory along the way, and kill a worker in the middle where that is asked for."""
    start, points, reported, killed = time.perf_counter(), [], [], False
    cpu_s: dict[int, float] = {}  # of workers that are gone, too
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if not line.startswith("["):
            continue
        place, _, outcome = line[1:].partition("]")
        done, total = map(int, place.split("/"))
        reported.append(outcome.split()[1].rstrip(","))
        workers = _workers(parent_of_workers or process.pid)
        if kill and not killed and done >= total // 2:
            killed = True
            os.kill(workers[0], signal.SIGKILL)
        elif not points or done == total or done * POINTS // total > points[-1]["done"] * POINTS // total:
            resident = [_resident_mib(pid) for pid in workers]
            cpu_s |= {pid: _cpu_s(pid) for pid in (process.pid, *workers)}
            point = {"done": done, "seconds": time.perf_counter() - start, "cpu_s": sum(cpu_s.values())}
            memory = {"client_mib": _resident_mib(process.pid), "worker_mib": max(resident, default=0.0)}
            points.append({name: round(value, 2) for name, value in {**point, **memory}.items()})
    seconds, status = time.perf_counter() - start, process.wait()
    if status:
        raise SystemExit("".join(lines[-20:]))
    return {
        "seconds": seconds,
        "kernels_per_s": len(reported) / seconds,
        "killed": killed,
        "points": points,
        "reported": reported,
    }


def _workers(parent: int) -> list[int]:
    """Return the child processes of Python's multiprocessing, including the nannies of Dask."""
    found = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, _text(path).split()):
            found += [child] if "spawn_main" in _text(Path(f"/proc/{child}/cmdline")) else []
    return sorted(found)


def _resident_mib(pid: int) -> float:
    words = _text(Path(f"/proc/{pid}/statm")).split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if words else 0.0


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of the children that it waited for."""
    words = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK") if words else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
