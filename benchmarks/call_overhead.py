"""Measure what a call costs the host beyond a bare cuLaunchKernelEx of the same kernel.

\b
    python -m benchmarks.call_overhead python --library emitted --json FILE
    python -m benchmarks.call_overhead c --library emitted --json FILE
    python -m benchmarks.call_overhead blas --export build/hgemm --cublas FOLDER --json FILE

`python` times the ways to call a kernel from Python, on tensors of torch. `c` exports the library, builds
benchmarks/call_overhead.c with the C compiler, and runs it. `blas` times calls of libhgemm_blas.so beside cuBLAS's.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

import hgemm
from generator.export.c_library import ExportOptions, export
from hgemm.device import driver, open_device
from hgemm.dispatch_table import DispatchTable
from hgemm.errors import HgemmError
from hgemm.launch import ctas
from hgemm.library import Library, open_library
from hgemm.problem import Kind
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, CALLS = 61, 200
"""Few enough calls per round that the GPU's queue never fills."""
SHAPES = ((64, 256, 256), (1, 128, 128))
EXTENTS = (256, 256, 256)
"""Small, so that the device keeps up with the launches."""


# ---- Calls from Python -----------------------------------------------------------------------------------------------


def calls_of(library: hgemm.Library, m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """Return the calls to time, by name. Each launches the same kernel once."""
    import torch

    import hgemm.torch

    hgemm.torch.use(library)
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    wt, out = w.t(), torch.empty(m, n, device="cuda", dtype=torch.float16)
    others = [torch.empty_like(out) for _ in range(8)]
    plan = library.plan(hgemm.Problem(m, n, k))
    plan(x, wt, out)
    bound = plan.bind(x, wt, out)
    ((launcher, *_),) = [[*plan._launchers.values()]]
    (slot,) = launcher._free
    launch, config, handle, address = launcher._launch_kernel, slot.config, launcher._handle, slot.address
    counter = iter(range(1 << 62))
    layer = torch.nn.Linear(k, n, bias=False, device="cuda", dtype=torch.float16)
    ours = hgemm.torch.Linear.of(layer)
    return {
        "bare": lambda: launch(config, handle, address, 0),
        "plan": lambda: plan(x, wt, out),
        "plan.bind": bound,
        "matmul": lambda: library.matmul(x, wt, out),
        "matmul, other addresses": lambda: library.matmul(x, wt, others[next(counter) % len(others)]),
        "matmul, new tensor": lambda: library.matmul(x, wt),
        "torch.ops.hgemm.matmul": lambda: torch.ops.hgemm.matmul(x, wt),
        "hgemm.torch.linear": lambda: hgemm.torch.linear(x, w),
        "torch.nn.functional.linear": lambda: torch.nn.functional.linear(x, w),
        "hgemm.torch.Linear": lambda: ours(x),
        "torch.nn.Linear": lambda: layer(x),
        "torch.mm, out given": lambda: torch.mm(x, wt, out=out),
        "torch.mm": lambda: torch.mm(x, wt),
    }


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median time of a call, by name. Units: microseconds."""
    device, times = open_device(), {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            device.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - began) / CALLS * 1e6)
            device.synchronize()
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


# ---- Calls from C ----------------------------------------------------------------------------------------------------


def without_maps(library: Library) -> list[str]:
    """Return the kernels without tensor maps: the bare launch passes only a problem."""
    return [name for name in library.symbols if "tensor_maps" not in library.records[name].data["launch"]]


def program(library: Library, folder: Path) -> Path:
    """Export the library and build the C program with it. nvFatbin is not used: not every machine with a GPU has it."""
    export(library, folder / "hgemm", ExportOptions(without_maps(library), compressed=False))
    built = folder / "launch_overhead"
    flags = ["-std=c99", "-O2", f"-I{folder / 'hgemm' / 'include'}", "-o", built]
    parts = [ROOT / "benchmarks" / "call_overhead.c", folder / "hgemm" / "lib" / "libhgemm.a", "-ldl", "-lpthread"]
    subprocess.run(["cc", *flags, *parts], check=True)
    return built


def arguments(library: Library, target: Target) -> list[str]:
    """Return the arguments of the program: the kernel that the library selects here, and the problem."""
    m, n, k = EXTENTS
    table = DispatchTable.of(library.records[name].data for name in without_maps(library))
    choice = Selector(table, target).choose(SelectionQuery(Kind(), m, n, k))
    traits = library.kernel(choice.symbol).traits
    if traits.grid_rule != "one_tile" or choice.code != "cubin":
        sys.exit(
            f"{choice.symbol} is not launched with one tile per CTA from a cubin: run generate --catalog for {target.name}"
        )
    cubin = library.folder / choice.symbol / "kernel.cubin"
    return [*map(str, (cubin, choice.symbol, traits.threads, traits.smem_bytes, ctas(traits, m, n, 1), m, n, k))]


# ---- Commands --------------------------------------------------------------------------------------------------------


@click.group(help=__doc__)
def main() -> None:
    pass


_LIBRARY = click.option("--library", type=click.Path(path_type=Path), default=Path("emitted"), show_default=True)
_JSON = click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures there.")


@main.command("python")
@_LIBRARY
@_JSON
def python_command(library: Path, json_path: Path | None) -> None:
    """Time calls from Python, in microseconds: medians of rounds in which each call has its turn."""
    opened, device = hgemm.open(library), open_device()
    import torch

    found = {
        "device": device.name,
        "driver": int(driver().cuDriverGetVersion()[1]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "unit": "us a call",
        "shapes": [],
    }
    with torch.no_grad():
        for m, n, k in SHAPES:
            times = measure(calls_of(opened, m, n, k))
            found["shapes"].append({"m": m, "n": n, "k": k, "times": times})
            click.echo(f"{m}x{n}x{k}")
            for name, value in times.items():
                click.echo(f"  {name:26} {value:7.2f} us  {value - times['bare']:+6.2f} over bare")
    if json_path:
        json_path.write_text(json.dumps(found, indent=1) + "\n")


@main.command("c")
@_LIBRARY
@click.option("--paper", is_flag=True, help="Run on tests/fake_libcuda.c, whose launch does nothing. Needs no GPU.")
@_JSON
def c_command(library: Path, paper: bool, json_path: Path | None) -> None:
    """Time calls of the exported C library, in nanoseconds, paired with bare launches."""
    opened = open_library(library)
    with tempfile.TemporaryDirectory() as temporary:
        folder, env = Path(temporary), dict(os.environ)
        if paper:
            fake = [ROOT / "tests" / "fake_libcuda.c", "-o", folder / "libcuda.so.1", "-lm"]
            subprocess.run(["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", *fake], check=True)
            env |= {"LD_LIBRARY_PATH": str(folder), "FAKE_LAZY": "1"}
            target, device = Target.typical("sm_90"), "none: launches do nothing"
        else:
            target, device = Target.of(open_device()), open_device().name
        command = [program(opened, folder), *arguments(opened, target)]
        lines = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    bare, run, select = zip(*(map(float, line.split()) for line in lines), strict=True)
    over = [second - first for first, second in zip(bare, run, strict=True)]
    quartiles = statistics.quantiles(over, n=4)
    found = {
        "device": device,
        "host": platform.processor() or platform.machine(),
        "date": datetime.date.today().isoformat(),
        "kernels": len(without_maps(opened)),
        "problem": "x".join(map(str, EXTENTS)),
        "rounds": len(lines),
        **{
            name: round(statistics.median(of), 1)
            for name, of in zip(("bare_ns", "run_ns", "select_ns"), (bare, run, select))
        },
        "run_over_bare_ns": round(statistics.median(over), 1),
        "run_over_bare_spread_ns": round(quartiles[2] - quartiles[0], 1),
    }
    text = json.dumps(found, indent=1)
    click.echo(text)
    if json_path:
        json_path.write_text(text + "\n")


@main.command("blas")
@click.option("--export", "exported", type=click.Path(path_type=Path), required=True, help="An export with --blas.")
@click.option("--cublas", type=click.Path(path_type=Path), required=True, help="A folder with libcublas.so.13 or .12.")
@_JSON
def blas_command(exported: Path, cublas: Path, json_path: Path | None) -> None:
    """Time calls of libhgemm_blas.so and of cuBLAS, in nanoseconds, in turns."""
    real = next((cublas / name for name in ("libcublas.so.13", "libcublas.so.12") if (cublas / name).exists()), None)
    if real is None:
        sys.exit(f"{cublas} has no libcublas.so.13 or libcublas.so.12")
    with tempfile.TemporaryDirectory() as temporary:
        built = Path(temporary) / "blas_overhead"
        source = ROOT / "benchmarks" / "blas_overhead.c"
        subprocess.run(["cc", "-std=c99", "-O2", source, "-o", built, "-ldl"], check=True)
        command = [built, exported.resolve() / "lib" / "libhgemm_blas.so", real.resolve()]
        env = {**os.environ, "HGEMM_BLAS_FALLBACK": "none"}
        lines = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    plain, batched, real_plain, real_batched = zip(*(map(float, line.split()) for line in lines), strict=True)
    found = {"device": open_device().name, "host": platform.processor() or platform.machine(), "rounds": len(lines)}
    found |= {"date": datetime.date.today().isoformat(), "cublas": real.resolve().name, "functions": {}}
    for name, ours, theirs in (
        ("cublasGemmEx", plain, real_plain),
        ("cublasGemmStridedBatchedEx", batched, real_batched),
    ):
        over = [first - second for first, second in zip(ours, theirs, strict=True)]
        found["functions"][name] = {
            "hgemm_ns": round(statistics.median(ours), 1),
            "cublas_ns": round(statistics.median(theirs), 1),
            "over_cublas_ns": round(statistics.median(over), 1),
        }
    text = json.dumps(found, indent=1)
    click.echo(text)
    if json_path:
        json_path.write_text(text + "\n")


if __name__ == "__main__":
    try:
        main()
    except (HgemmError, ImportError) as error:
        sys.exit(f"call_overhead: error: {error}")
