"""Multiply CuPy and PyTorch arrays with the kernels of a library, and check the results.

    python examples/python/multiply.py [LIBRARY]

LIBRARY is the folder of a library; the default is that of `hgemm.open()`. A package that is not
installed is skipped.
Exit status: 0 the results are correct, 1 something failed, 77 this machine has no GPU.
"""

from __future__ import annotations

import sys

import hgemm
from hgemm.device import open_device

NO_GPU = 77
M, N, K = 512, 2048, 1024


def with_cupy(library: hgemm.Library) -> int:
    import cupy

    x, w = (cupy.random.randint(-2, 3, (rows, K)).astype(cupy.float16) for rows in (M, N))
    y = library.matmul(x, w.T)  # runs on CuPy's current stream and returns a new CuPy array
    return report(
        "cupy", library, int((y.astype(cupy.float32) != x.astype(cupy.float32) @ w.T.astype(cupy.float32)).sum())
    )


def with_torch(library: hgemm.Library) -> int:
    import torch

    x, w = (torch.randint(-2, 3, (rows, K), device="cuda").half() for rows in (M, N))
    y = library.matmul(x, w.T)
    wrong = int((y.double() != x.double() @ w.T.double()).sum())

    # A plan selects the kernel once for many calls. It accepts any DLPack array. Here y is the matrix C.
    plan = library.plan(hgemm.Problem(M, N, K, alpha=0.5, beta=2.0))
    z = torch.empty_like(y)
    for _ in range(3):
        plan(x, w.T, z, c=y)
    wrong += int((z.double() != 0.5 * (x.double() @ w.T.double()) + 2.0 * y.double()).sum())
    return report("torch", library, wrong)


def report(name: str, library: hgemm.Library, wrong: int) -> int:
    """Print and return the number of wrong elements. The inputs are small integers, so every result must be exact."""
    print(f"{name}: {M}x{N}x{K} by {library}, {wrong} wrong elements")
    return wrong


def main(arguments: list[str]) -> int:
    folder = arguments[0] if arguments else None
    found = []
    try:
        open_device()
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return NO_GPU
    try:
        library = hgemm.open(folder)
        for run in (with_cupy, with_torch):
            try:
                found.append(run(library))
            except ModuleNotFoundError as error:
                print(f"{error.name} is not installed: skipped", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0 if found and not any(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
