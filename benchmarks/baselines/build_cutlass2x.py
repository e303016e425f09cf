"""Builds the CUTLASS 2.x baseline: one object a kernel, one shared library with a C interface, one table of resources.

    python benchmarks/baselines/build_cutlass2x.py --output .carry/cutlass2x.so -j 2

It needs nvcc and CUTLASS's headers (the package nvidia-cutlass of this interpreter, or --cutlass-include), no GPU.
Kernels that spill are left out: they would only flatter us. Objects are kept by content, so a second run links only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = (HERE / "cutlass2x.cu", HERE / "cutlass2x.h")
ABI = HERE / "cutlass2x_abi.cpp"


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
            VARIANT_ACC=self.acc,
            TILE_M=self.tile[0],
            TILE_N=self.tile[1],
            TILE_K=self.tile[2],
            WARP_M=self.warp[0],
            WARP_N=self.warp[1],
            VARIANT_STAGES=self.stages,
        )
        return [f'-DVARIANT_NAME="{self.name}"', *(f"-D{name}={value}" for name, value in values.items())]


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


class BuildError(RuntimeError):
    """A compiler refused; the text is its log."""


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(".carry/cutlass2x.so"))
    parser.add_argument("--objects", type=Path, default=Path(tempfile.gettempdir()) / "cutlass2x-objects")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", default="90", help="compute capability of the machine code; comma-separated")
    parser.add_argument("--cutlass-include", type=Path, default=cutlass_include())
    parser.add_argument("--only", default="", help="regular expression over kernel names")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if not args.cutlass_include or not args.cutlass_include.is_dir():
        parser.error("no CUTLASS headers: pip install nvidia-cutlass==4.2.0.0, or name them with --cutlass-include")

    gencode = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in args.arch.split(",")]
    common = ["-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-cudart", "static"]
    flags = [*gencode, *common, "--expt-relaxed-constexpr", "-w", f"-I{args.cutlass_include}"]
    chosen = [kernel for kernel in kernels() if re.search(args.only, kernel.name)]
    args.objects.mkdir(parents=True, exist_ok=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)

    try:
        with ThreadPoolExecutor(args.jobs) as pool:
            built = list(pool.map(lambda kernel: compile_kernel(kernel, [args.nvcc], flags, args.objects), chosen))
        kept = [obj for obj, resources in built if not resources.spills]
        runtime = ["-Xcompiler", "-static-libgcc,-static-libstdc++"]
        run([args.nvcc, *gencode, *common, *runtime, "-shared", str(ABI), *map(str, kept), "-o", str(args.output)])
        nvcc_version = run([args.nvcc, "--version"]).strip().splitlines()[-2]
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1

    rows = [
        dict(
            name=kernel.name,
            acc=kernel.acc,
            tile=kernel.tile,
            warp=kernel.warp,
            stages=kernel.stages,
            threads=kernel.threads,
            operand_bytes=kernel.operand_bytes,
            **asdict(resources),
            kept=not resources.spills,
        )
        for kernel, (_, resources) in zip(chosen, built)
    ]
    table = dict(cutlass=cutlass_version(args.cutlass_include), nvcc=nvcc_version, arch=args.arch, kernels=rows)
    args.output.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")

    print(f"{'kernel':44} {'threads':>7} {'smem KiB':>8} {'registers':>9} {'stack':>6} {'spills':>6}")
    for row in rows:
        spill_bytes = row["spill_store_bytes"] + row["spill_load_bytes"]
        print(
            f"{row['name']:44} {row['threads']:7} {row['operand_bytes'] / 1024:8.0f} {row['registers']:9} "
            f"{row['stack_bytes']:6} {spill_bytes:6}{'' if row['kept'] else '  left out'}"
        )
    print(f"{args.output}: {args.output.stat().st_size / 2**20:.1f} MiB, {len(kept)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
