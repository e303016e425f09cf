"""Measure generated kernels beside CUTLASS 2.x.

\b
    python -m benchmarks.cutlass build --output build/cutlass2x.so -j 2
    python -m benchmarks.cutlass run --cutlass build/cutlass2x.so --library DIR --m 2048,4096,8192 --keep out.json

`build` compiles CUTLASS kernels into one shared library. It needs nvcc and CUTLASS's headers, and no GPU. It leaves
out kernels that spill. `run` takes the options of `hgemm bench` and needs a GPU.
"""

from __future__ import annotations

import ctypes
import fnmatch
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from hgemm.bench.measure import BASELINE
from hgemm.bench.operands import Operands
from hgemm.bench.runner import bench, bench_options
from hgemm.bench.work import Work, read_kernels
from hgemm.errors import HgemmError

BASELINES = Path(__file__).resolve().parent / "baselines"
SOURCES = (BASELINES / "cutlass2x.cu", BASELINES / "cutlass2x.h")
ABI = BASELINES / "cutlass2x_abi.cpp"


# ---- The kernels of the baseline -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    acc: int
    tile: tuple[int, int, int]
    warp: tuple[int, int]
    stages: int

    @property
    def name(self) -> str:
        m, n, k = self.tile
        return (
            f"cutlass2x_{'s' if self.acc == 32 else 'h'}16816_{m}x{n}x{k}_w{self.warp[0]}x{self.warp[1]}_s{self.stages}"
        )

    @property
    def threads(self) -> int:
        return 32 * (self.tile[0] // self.warp[0]) * (self.tile[1] // self.warp[1])

    @property
    def operand_bytes(self) -> int:
        m, n, k = self.tile
        return 2 * (m + n) * k * self.stages

    @property
    def defines(self) -> list[str]:
        values = dict(
            ACC_BITS=self.acc,
            TILE_M=self.tile[0],
            TILE_N=self.tile[1],
            TILE_K=self.tile[2],
            WARP_M=self.warp[0],
            WARP_N=self.warp[1],
            STAGES=self.stages,
        )
        return [f'-DKERNEL_NAME="{self.name}"', *(f"-D{name}={value}" for name, value in values.items())]


# Large-problem tiles of cutlass_library's list for s16816/h16816, with the stages it gives them and their neighbours.
TILES = (
    ((128, 128, 32), (3, 4, 5)),
    ((128, 128, 64), (3, 4)),
    ((256, 128, 32), (3, 4)),
    ((128, 256, 32), (3, 4)),
    ((256, 128, 64), (3,)),
    ((128, 256, 64), (3,)),
    ((256, 64, 32), (4,)),
    ((64, 256, 32), (4,)),
    ((256, 64, 64), (3,)),
    ((64, 256, 64), (3,)),
)
# f16 accumulators take half the registers, so warps of twice the size fit.
WIDE_WARPS = (
    ((256, 128, 32), (64, 128), (3, 4)),
    ((256, 128, 32), (128, 64), (3, 4)),
    ((128, 256, 32), (64, 128), (3, 4)),
    ((128, 256, 32), (128, 64), (3, 4)),
    ((256, 128, 64), (128, 64), (3,)),
    ((128, 256, 64), (64, 128), (3,)),
    ((256, 256, 32), (64, 128), (3,)),
    ((256, 256, 32), (128, 64), (3, 4)),
    ((256, 256, 64), (128, 64), (3,)),
)


def kernels() -> list[Kernel]:
    square = [Kernel(acc, tile, (64, 64), stages) for acc in (32, 16) for tile, counts in TILES for stages in counts]
    wide = [Kernel(16, tile, warp, stages) for tile, warp, counts in WIDE_WARPS for stages in counts]
    return square + wide


@dataclass(frozen=True)
class Resources:
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int

    @property
    def spills(self) -> bool:
        return self.stack_bytes > 0 or self.spill_store_bytes > 0 or self.spill_load_bytes > 0


class BuildError(HgemmError):
    """A compiler failed; the text is its log."""


def parse_ptxas(log: str) -> Resources:
    """Read the report of `-Xptxas -v` for the one kernel of an object.

    Raises: BuildError when the log has no report.
    """
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    used = re.search(r"Used (\d+) registers", log)
    if not frame or not used:
        raise BuildError(f"no ptxas report in:\n{log}")
    return Resources(int(used[1]), *(int(number) for number in frame.groups()))


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def compile_kernel(kernel: Kernel, nvcc: list[str], flags: list[str], folder: Path) -> tuple[Path, Resources]:
    digest = hashlib.sha256("\0".join([*flags, *kernel.defines]).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    stem = folder / f"{kernel.name}-{digest.hexdigest()[:16]}"
    obj, report = stem.with_suffix(".o"), stem.with_suffix(".json")
    if not (obj.exists() and report.exists()):
        log = run([*nvcc, *flags, *kernel.defines, "-Xptxas", "-v", "-c", str(SOURCES[0]), "-o", str(obj)])
        report.write_text(json.dumps(asdict(parse_ptxas(log))))
    return obj, Resources(**json.loads(report.read_text()))


def cutlass_include() -> Path | None:
    spec = importlib.util.find_spec("cutlass_library")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return next((Path(root) / "source" / "include" for root in roots), None)


def cutlass_version(include: Path) -> str:
    text = (include / "cutlass" / "version.h").read_text()
    return ".".join(re.search(rf"#define CUTLASS_{part}\s+(\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


# ---- The built library as a baseline ---------------------------------------------------------------------------------


class CutlassError(HgemmError):
    """A call of the library failed."""


class Cutlass:
    """The kernels of a built library whose names match a glob; each is tn, f16 in and out. A baseline of `hgemm bench`."""

    name = "CUTLASS 2.x"

    def __init__(self, path: Path, names: str) -> None:
        self.library = library = ctypes.CDLL(str(path.resolve()))
        pointer, integer, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
        library.cutlass2x_name.argtypes, library.cutlass2x_name.restype = [integer], ctypes.c_char_p
        library.cutlass2x_acc.argtypes = library.cutlass2x_init.argtypes = [integer]
        library.cutlass2x_run.argtypes = [integer] * 4 + [pointer] * 3 + [stride] * 3 + [pointer]
        kernels = (CutlassKernel(library, index) for index in range(library.cutlass2x_count()))
        self.kernels = [kernel for kernel in kernels if fnmatch.fnmatch(kernel.name, names)]

    def propose(self, work: Work, count: int, bias: int = 0) -> CutlassKernels:
        """Return the kernels with the accumulator of the problem; none for other layouts and types."""
        supported = (work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.batch) == (
            "tn",
            "f16",
            "f16",
            "f16",
            1,
        )
        acc = "f16" if work.acc == "f16" else "f32"
        return CutlassKernels([kernel for kernel in self.kernels if supported and kernel.acc == acc])

    def free(self) -> None:
        pass


@dataclass
class CutlassKernels:
    """The kernels that support one problem, in no particular order."""

    contenders: list[CutlassKernel]

    def free(self) -> None:
        pass


class CutlassKernel:
    """One kernel of a built library."""

    side = BASELINE

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self.library, self.index = library, index
        self.name = library.cutlass2x_name(index).decode()
        self.acc = f"f{library.cutlass2x_acc(index)}"

    def bind(self, operands: Operands, stream: int) -> list[Callable[[], None]]:
        self._ok("init", self.library.cutlass2x_init(self.index))
        return [self._launch(operands, at, stream) for at in range(operands.sets)]

    def _launch(self, operands: Operands, at: int, stream: int) -> Callable[[], None]:
        p = operands.problem(at)
        arguments = (self.index, p.m, p.n, p.k, p.a, p.b, p.d, p.lda, p.ldb, p.ldd, stream)
        return lambda: self._ok("run", self.library.cutlass2x_run(*arguments))

    def _ok(self, what: str, status: int) -> None:
        if status:
            raise CutlassError(f"{self.name}: cutlass2x_{what} returned cudaError {status}")

    def free(self) -> None:
        pass


# ---- Commands --------------------------------------------------------------------------------------------------------


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("build")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/cutlass2x.so"), show_default=True)
@click.option("--objects", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()) / "cutlass2x-objects")
@click.option("--nvcc", default="nvcc", show_default=True, help="The compiler.")
@click.option("--arch", default="90", show_default=True, help="Compute capabilities of the machine code: 80,90.")
@click.option("--cutlass-include", type=click.Path(path_type=Path), default=cutlass_include, help="CUTLASS's headers.")
@click.option("--only", default="", metavar="REGEX", help="Build only kernels with such names.")
@click.option("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="Compilers at once.")
def build_command(
    output: Path, objects: Path, nvcc: str, arch: str, cutlass_include: Path | None, only: str, jobs: int
) -> None:
    """Compile CUTLASS 2.x kernels into one shared library, and write a table of their resources beside it."""
    if not cutlass_include or not cutlass_include.is_dir():
        raise click.UsageError(
            "no CUTLASS headers found: run pip install nvidia-cutlass==4.2.0.0, or pass --cutlass-include"
        )
    gencode = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in arch.split(",")]
    common = ["-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-cudart", "static"]
    flags = [*gencode, *common, "--expt-relaxed-constexpr", "-w", f"-I{cutlass_include}"]
    chosen = [kernel for kernel in kernels() if re.search(only, kernel.name)]
    objects.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        built = list(pool.map(lambda kernel: compile_kernel(kernel, [nvcc], flags, objects), chosen))
    kept = [obj for obj, resources in built if not resources.spills]
    runtime = ["-Xcompiler", "-static-libgcc,-static-libstdc++"]
    run([nvcc, *gencode, *common, *runtime, "-shared", str(ABI), *map(str, kept), "-o", str(output)])
    nvcc_version = run([nvcc, "--version"]).strip().splitlines()[-2]
    rows = [
        {
            **{
                "name": kernel.name,
                "acc": kernel.acc,
                "tile": kernel.tile,
                "warp": kernel.warp,
                "stages": kernel.stages,
            },
            **{"threads": kernel.threads, "operand_bytes": kernel.operand_bytes, **asdict(resources)},
            "kept": not resources.spills,
        }
        for kernel, (_, resources) in zip(chosen, built, strict=True)
    ]
    table = {"cutlass": cutlass_version(cutlass_include), "nvcc": nvcc_version, "arch": arch, "kernels": rows}
    output.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
    click.echo(f"{'kernel':44} {'threads':>7} {'smem KiB':>8} {'registers':>9} {'stack':>6} {'spills':>6}")
    for row in rows:
        spill_bytes = row["spill_store_bytes"] + row["spill_load_bytes"]
        click.echo(
            f"{row['name']:44} {row['threads']:7} {row['operand_bytes'] / 1024:8.0f} {row['registers']:9} "
            f"{row['stack_bytes']:6} {spill_bytes:6}{'' if row['kept'] else '  left out'}"
        )
    click.echo(f"{output}: {output.stat().st_size / 2**20:.1f} MiB, {len(kept)} kernels")


@main.command("run")
@click.option("--library", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of kernels.")
@click.option("--kernels", "names", default="", help="Globs over their names.")
@click.option("--cutlass", type=click.Path(path_type=Path, exists=True), required=True, help="What `build` wrote.")
@click.option("--cutlass-filter", default="*_sw8", show_default=True, help="Its kernels; _swN is the raster's width.")
@bench_options
def run_command(library: Path, names: str, cutlass: Path, cutlass_filter: str, **options) -> None:
    """Measure kernels beside CUTLASS 2.x kernels.

    Takes the options of `hgemm bench`; --algorithms does not apply. In the output, "best" is CUTLASS's fastest
    kernel; "first" has no meaning.
    """
    found = read_kernels(library, names)
    sys.exit(bench(found, options, library, baseline=lambda device: Cutlass(cutlass, cutlass_filter)))


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except (HgemmError, click.ClickException) as error:
        sys.exit(f"cutlass: {error.format_message() if isinstance(error, click.ClickException) else error}")
