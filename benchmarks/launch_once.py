"""Launches variants a few times each and nothing else, for profilers.

ncu --clock-control none --set full python -m benchmarks.launch_once --library DIR --shape 4096x4096x4096
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from hgemm.bench.device import Stream
from hgemm.bench.measure import Variant
from hgemm.bench.operands import Operands, Pool
from hgemm.bench.work import Work, read_kernels
from hgemm.device import open_device
from hgemm.verify import Shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--kernels", default="", help="globs over their names")
    parser.add_argument("--shape", type=Shape.parse, default=Shape(4096, 4096, 4096))
    parser.add_argument("--times", type=int, default=2)
    args = parser.parse_args()
    device = open_device()
    shape = args.shape
    with device.current():
        stream = Stream(device)
        for kernel in read_kernels(args.library, args.kernels):
            traits = kernel.traits
            types = {name: getattr(traits, name) for name in ("layout", "dtype_a", "dtype_b", "acc", "dtype_d")}
            work = replace(Work(shape.m, shape.n, shape.k, shape.batch), **types)
            pools = {"a": Pool(stream, work.dtype_a, seed=0), "b": Pool(stream, work.dtype_b, seed=1)}
            operands = Operands(stream, work, pools, 0, (1, 1))
            variant = Variant(kernel, device)
            for launch in variant.bind(operands, stream.handle) * args.times:
                launch()
            stream.synchronize()
            print(variant.name)
            for thing in (variant, operands, *pools.values()):
                thing.free()


if __name__ == "__main__":
    main()
