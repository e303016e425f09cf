"""What an exported library's launch costs the host over a bare cuLaunchKernelEx: nanoseconds a call, in pairs.

    python benchmarks/launch_overhead.py --library emitted [--json FILE]

exports the library, builds benchmarks/launch_overhead.c with the C compiler, and runs it on this machine's GPU. With
--paper it runs on tests/fake_libcuda.c instead, whose launch does nothing: what is then measured is the library alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from generator.export.tree import Wish, export  # noqa: E402
from hgemm.dispatch_table import Table  # noqa: E402
from hgemm.launch import ctas  # noqa: E402
from hgemm.library import Library, open_library  # noqa: E402
from hgemm.problem import Kind  # noqa: E402
from hgemm.selection import Selector  # noqa: E402
from hgemm.selection_query import (
    SelectionQuery,  # noqa: E402
    Target,  # noqa: E402
)

EXTENTS = (256, 256, 256)
"""Small, so that the device keeps up with the launches."""


def without_maps(library: Library) -> list[str]:
    """Return the variants that take nothing but a problem, which is what the bare launch passes."""
    return [name for name in library.symbols if "tensor_maps" not in library.records[name].data["launch"]]


def program(library: Library, folder: Path) -> Path:
    """Export the library without nvFatbin, which not every machine with a GPU has, and build the program with it."""
    export(library, folder / "hgemm", Wish(without_maps(library), compressed=False))
    built = folder / "launch_overhead"
    flags = ["-std=c99", "-O2", f"-I{folder / 'hgemm' / 'include'}", "-o", built]
    parts = [ROOT / "benchmarks" / "launch_overhead.c", folder / "hgemm" / "lib" / "libhgemm.a", "-ldl", "-lpthread"]
    subprocess.run(["cc", *flags, *parts], check=True)
    return built


def arguments(library: Library, target: Target) -> list[str]:
    """Return the program's arguments: the variant that the library takes here, and the problem."""
    m, n, k = EXTENTS
    table = Table.of(library.records[name].data for name in without_maps(library))
    choice = Selector(table, target).choose(SelectionQuery(Kind(), m, n, k))
    traits = library.kernel(choice.symbol).traits
    if traits.grid_rule != "one_tile" or choice.code != "cubin":
        sys.exit(f"{choice.symbol} is not launched one tile a CTA from a cubin: generate --catalog for {target.name}")
    cubin = library.folder / choice.symbol / "kernel.cubin"
    return [*map(str, (cubin, choice.symbol, traits.threads, traits.smem_bytes, ctas(traits, m, n, 1), m, n, k))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=Path("emitted"))
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = open_library(options.library)
    with tempfile.TemporaryDirectory() as temporary:
        folder, env = Path(temporary), dict(os.environ)
        if options.paper:
            fake = [ROOT / "tests" / "fake_libcuda.c", "-o", folder / "libcuda.so.1", "-lm"]
            subprocess.run(["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", *fake], check=True)
            env |= {"LD_LIBRARY_PATH": str(folder), "FAKE_LAZY": "1"}
            target, device = Target.typical("sm_90"), "none: launches do nothing"
        else:
            from hgemm.device import open_device

            target, device = Target.of(open_device()), open_device().name
        command = [program(library, folder), *arguments(library, target)]
        lines = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    bare, run, select = zip(*(map(float, line.split()) for line in lines))
    over = [second - first for first, second in zip(bare, run)]
    found = {
        "device": device,
        "host": platform.processor() or platform.machine(),
        "date": datetime.date.today().isoformat(),
        "variants": len(without_maps(library)),
        "problem": "x".join(map(str, EXTENTS)),
        "rounds": len(lines),
        **{
            f"{name}_ns": statistics.median(values)
            for name, values in zip(("bare", "run", "select"), (bare, run, select))
        },
        "run_over_bare_ns": statistics.median(over),
        "run_over_bare_spread_ns": statistics.quantiles(over, n=4)[2] - statistics.quantiles(over, n=4)[0],
    }
    text = json.dumps(
        {name: round(value, 1) if isinstance(value, float) else value for name, value in found.items()}, indent=1
    )
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
