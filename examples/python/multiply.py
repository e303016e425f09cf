"""Multiplies arrays of CuPy and of torch, whichever are installed, by kernels of a library, and checks each product.

python examples/python/multiply.py [LIBRARY]        # else HGEMM_LIBRARY, else emitted
"""

from __future__ import annotations

import os
import sys

import hgemm
from hgemm.device import open_device

M, N, K = 512, 2048, 1024


def with_cupy(library: hgemm.Library) -> int:
    import cupy

    x, w = (cupy.random.randint(-2, 3, (rows, K)).astype(cupy.float16) for rows in (M, N))
    y = library.matmul(x, w.T)  # on CuPy's current stream; y is a new array of CuPy
    return told(
        "cupy", library, int((y.astype(cupy.float32) != x.astype(cupy.float32) @ w.T.astype(cupy.float32)).sum())
    )


def with_torch(library: hgemm.Library) -> int:
    import torch

    x, w = (torch.randint(-2, 3, (rows, K), device="cuda").half() for rows in (M, N))
    y = library.matmul(x, w.T)
    wrong = int((y.double() != x.double() @ w.T.double()).sum())

    # Chosen once for many calls; any memory that speaks DLPack may be given, here y as the matrix to add to.
    plan = library.plan(hgemm.Problem(M, N, K, alpha=0.5, beta=2.0))
    z = torch.empty_like(y)
    for _ in range(3):
        plan(x, w.T, z, c=y)
    wrong += int((z.double() != 0.5 * (x.double() @ w.T.double()) + 2.0 * y.double()).sum())
    return told("torch", library, wrong)


def told(name: str, library: hgemm.Library, wrong: int) -> int:
    """Say how many elements are wrong: the numbers are whole and small, so none should be."""
    print(f"{name}: {M}x{N}x{K} by {library}, {wrong} elements are wrong")
    return wrong


def main(arguments: list[str]) -> int:
    folder = arguments[0] if arguments else os.environ.get("HGEMM_LIBRARY", "emitted")
    found = []
    try:
        open_device()
        library = hgemm.open(folder)
        for run in (with_cupy, with_torch):
            try:
                found.append(run(library))
            except ModuleNotFoundError as error:
                print(f"{error.name} is not installed: left out", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0 if found and not any(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
