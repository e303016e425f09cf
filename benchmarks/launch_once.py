"""Launches contenders a few times each and nothing else, for profilers.

    ncu --clock-control none --set full python benchmarks/launch_once.py --library DIR --shape 4096 --filter '*'
"""

import argparse
import fnmatch
from pathlib import Path

from contenders import Buffers, Problem, cutlass_contenders
from cubin_contender import library_contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--cutlass", type=Path)
    parser.add_argument("--filter", default="*")
    parser.add_argument("--shape", type=Problem.parse, default=Problem.parse("4096"))
    parser.add_argument("--times", type=int, default=2)
    args = parser.parse_args()
    import torch

    found = library_contenders(args.library, "auto", torch.cuda.get_device_capability()) if args.library else []
    found += cutlass_contenders(args.cutlass) if args.cutlass else []
    m, n, k = args.shape.m, args.shape.n, args.shape.k
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    buffers = Buffers(args.shape, a, b, torch.empty(m, n, device="cuda", dtype=torch.float16))
    for contender in found:
        if fnmatch.fnmatch(contender.name, args.filter):
            contender.prepare(args.shape)
            for _ in range(args.times):
                contender.launch(torch.cuda.current_stream().cuda_stream, buffers)
            torch.cuda.synchronize()
            print(contender.name)


if __name__ == "__main__":
    main()
