"""Measure the time to compile one kernel of the 128x128x32 tile: this generator, CuTe DSL and Triton.

    python -m benchmarks.compile_time --tool-python cute=<venv>/bin/python --tool-python triton=<venv>/bin/python \
        --runs 7 --json benchmarks/data/compile_time.json

Each figure is a wall time seen from outside, interpreter start included:
- cold: one kernel in a fresh process, without caches of the tool. The file cache of the system and .pyc files are warm.
- second: another kernel in a second process, with what the tool cached in the first.
- warm: each further kernel in one process, (time of seven kernels - time of one) / 6.
The tools alternate, forwards and backwards, each run in fresh folders. All compile 128x128x32, four warps, f16 in and out, f32
accumulate, tn, for sm_80 by default. The baselines' kernels have no edge code, and Triton writes no line table: both favour them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ONE, ANOTHER, MANY = "3", "4", "3,2,4,5,6,7,8"  # stages


@dataclass(frozen=True)
class Tool:
    """One compiler under test. `command` has the placeholders {python}, {here}, {arch}, {stages} and {library}."""

    name: str
    python: str
    command: str
    environment: tuple[tuple[str, str], ...] = ()  # values may name {cache}, a folder that is fresh for each cold run

    def argv(self, **values: str) -> list[str]:
        return [part.format(python=self.python, here=HERE, **values) for part in shlex.split(self.command)]


OURS = (
    "{python} -m generator --arch {arch} --tile 128x128x32 --stages {stages} "
    "--layout tn --library {library} -j 1 --json"
)
OURS_BATCH = (
    "{python} -m generator --arch sm_80,sm_89 --tile 128x128x32,128x64x32,64x128x32,64x64x32 --stages 2,3,4,5 "
    "--layout tn,nn --library {library} -j 2 --json"
)
BASELINES = {
    "cute": (
        "{python} {here}/baselines/cute_dsl_gemm.py --arch {arch} --stages {stages}",
        (
            ("CUTE_DSL_CACHE_DIR", "{cache}"),
            ("CUTE_DSL_DUMP_DIR", "{cache}"),
            ("CUTE_DSL_NO_CACHE", "1"),
            ("CUTE_DSL_DISABLE_FILE_CACHING", "1"),
        ),
    ),
    "triton": (
        "{python} {here}/baselines/triton_gemm.py --arch {arch} --stages {stages}",
        (("TRITON_CACHE_DIR", "{cache}"), ("TRITON_DISABLE_LINE_INFO", "1"), ("TRITON_DEFAULT_FP_FUSION", "1")),
    ),
}


def environment() -> dict[str, str]:
    """Return the environment of all tools. .pyc files are allowed: an installed tool has them, too."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class RunError(RuntimeError):
    """A measured command failed; the text is its command and the end of its output."""


def timed(argv: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """Run a command and return its wall time in seconds and its standard output."""
    begin = time.perf_counter()
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RunError(f"exit {done.returncode}: {shlex.join(argv)}\n{(done.stderr or done.stdout)[-2000:]}")
    return seconds, done.stdout


def run_once(tool: Tool, arch: str) -> dict:
    """Measure cold, second and warm once, in folders of their own."""
    with tempfile.TemporaryDirectory() as folder:

        def run(stages: str, place: str) -> tuple[float, str]:
            cache = Path(folder) / place / "cache"
            cache.mkdir(parents=True, exist_ok=True)
            extra = {name: value.format(cache=cache) for name, value in tool.environment}
            return timed(
                tool.argv(arch=arch, stages=stages, library=str(Path(folder) / place / "library")),
                environment() | extra,
            )

        cold_s, output = run(ONE, "first")
        second_s, _ = run(ANOTHER, "first")
        many_s, _ = run(MANY, "many")
    return dict(cold_s=cold_s, second_s=second_s, warm_s=(many_s - cold_s) / MANY.count(","), output=output)


def describe(output: str) -> dict:
    """Read version and code size from the output of a baseline, or from the records of `generate --json`."""
    lines = [line for line in output.strip().splitlines() if line.startswith(("{", "["))]
    try:
        said = json.loads(output) if output.lstrip().startswith("[") else json.loads(lines[-1])
    except (json.JSONDecodeError, IndexError):
        return {}
    if isinstance(said, list):
        record = said[0] if said else {}
        files = record.get("files") or {}
        return dict(
            version=record.get("toolchain"),
            cubin_bytes=(files.get("kernel.cubin") or {}).get("bytes"),
            stages_s=record.get("seconds"),
        )
    return dict(
        version=said.get("version"),
        cubin_bytes=said["cubin_bytes"][0],
        import_s=round(said["import_s"], 3),
        compile_s=round(said["compile_s"][0], 3),
    )


def spread(values: list[float]) -> dict:
    return dict(
        median=round(statistics.median(values), 3),
        min=round(min(values), 3),
        max=round(max(values), 3),
        runs=[round(value, 3) for value in values],
    )


def machine() -> dict:
    info = Path("/proc/cpuinfo")
    models = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return dict(
        cores=os.cpu_count(),
        cpu=models[0] if models else platform.processor(),
        system=platform.system(),
        python=platform.python_version(),
        load_before=round(os.getloadavg()[0], 2),
    )


def table(report: dict) -> str:
    lines = [f"{'tool':10} {'cold s':>8} {'second s':>9} {'warm s':>8} {'cubin B':>8}   (medians; min to max of cold)"]
    for name, row in report["tools"].items():
        figures = [row[key]["median"] for key in ("cold_s", "second_s", "warm_s")]
        lines.append(
            f"{name:10} {figures[0]:8.3f} {figures[1]:9.3f} {figures[2]:8.3f} {row.get('cubin_bytes') or 0:8}   "
            f"{row['cold_s']['min']:.3f} to {row['cold_s']['max']:.3f}"
        )
    lines += [
        f"{name:10} {row['median']:8.3f}   {row['min']:.3f} to {row['max']:.3f}"
        for name, row in report["commands"].items()
    ]
    return "\n".join(lines)


def named(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found and value):
        raise argparse.ArgumentTypeError(f"'{text}': write NAME=VALUE")
    return name, value


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of our generator")
    parser.add_argument(
        "--ours", default=OURS, help="our command, with {python}, {arch}, {stages} and {library}; '' leaves it out"
    )
    parser.add_argument("--batch", default=OURS_BATCH, help="our command for many kernels at once; '' leaves it out")
    parser.add_argument(
        "--tool-python",
        type=named,
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"interpreter with a baseline installed: {', '.join(BASELINES)}; a baseline without one is left out",
    )
    parser.add_argument(
        "--time",
        type=named,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another command to time in turn, such as 'help={python} -m generator --help'",
    )
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    unknown = sorted({name for name, _ in args.tool_python} - set(BASELINES))
    if unknown:
        parser.error(f"unknown tools: {', '.join(unknown)}")
    if args.runs < 1:
        parser.error("--runs must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    ours_environment = (("HGEMM_CACHE_DIR", "{cache}"),)
    tools = [Tool("ours", args.python, args.ours, ours_environment)] if args.ours else []
    if args.ours and "cute" in dict(args.tool_python):
        tools.append(Tool("ours in form dsl", args.python, f"{args.ours} --form dsl", ours_environment))
    tools += [Tool(name, python, *BASELINES[name]) for name, python in args.tool_python]
    commands = dict(args.time) | ({"batch": args.batch} if args.batch else {})
    about = machine()
    results: dict[str, list[dict]] = {tool.name: [] for tool in tools}
    times: dict[str, list[float]] = {name: [] for name in commands}
    said: dict[str, str] = {}

    try:
        for number in range(-1, args.runs):  # run -1 does not count: it fills the file cache and writes .pyc files
            for tool in tools if number % 2 else tools[::-1]:
                result = run_once(tool, args.arch)
                if number >= 0:
                    results[tool.name].append(result)
                    print(
                        f"{number} {tool.name}: "
                        + ", ".join(f"{key} {result[key]:.3f}" for key in ("cold_s", "second_s", "warm_s")),
                        file=sys.stderr,
                    )
            for name, command in commands.items():
                with tempfile.TemporaryDirectory() as folder:
                    place = Tool(name, args.python, command)
                    seconds, said[name] = timed(
                        place.argv(arch=args.arch, stages=ONE, library=f"{folder}/library"),
                        environment() | {"HGEMM_CACHE_DIR": f"{folder}/cache"},
                    )
                if number >= 0:
                    times[name].append(seconds)
    except (RunError, OSError) as error:
        print(error, file=sys.stderr)
        return 1

    report = dict(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        machine=about,
        arch=args.arch,
        tile="128x128x32",
        warm_kernels=MANY.count(","),
        tools={
            tool.name: dict(command=tool.command)
            | describe(results[tool.name][0]["output"])
            | {key: spread([result[key] for result in results[tool.name]]) for key in ("cold_s", "second_s", "warm_s")}
            for tool in tools
        },
        commands={
            name: dict(command=command) | counted(said[name]) | spread(times[name])
            for name, command in commands.items()
        },
    )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    return 0


def counted(output: str) -> dict:
    """Return how many records a command printed, when it printed a JSON list."""
    try:
        records = json.loads(output)
    except json.JSONDecodeError:
        return {}
    return dict(kernels=len(records)) if isinstance(records, list) else {}


if __name__ == "__main__":
    sys.exit(main())
