"""Run PyTorch's linear layers on kernels of this library by the preloaded libhgemm_blas.so, and compare them with float64.

    generate --catalog --arch sm_90,sm_90a
    generate --catalog blas --arch sm_90a    # relu and gelu
    hgemm export --blas --to build/hgemm
    python examples/clients/torch_linear.py build/hgemm

PyTorch calls cublasLtMatmul for a bias, relu and gelu. The script starts itself with LD_PRELOAD and prints who served each product.
Needs torch. Exit status: 0 all results are within their bounds, 1 some are not, 77 this machine has no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHAPES = ((512, 2048, 2048), (8, 4096, 4096), (1, 1024, 4096), (333, 1000, 512))
"""Rows of x, outputs, and inputs of a layer."""


def work() -> int:
    import torch
    from torch.nn import functional

    def gelu(x):
        return functional.gelu(x, approximate="tanh")

    tasks = {
        "linear": (lambda x, w, b: functional.linear(x, w), lambda y, b: y),
        "linear with bias": (functional.linear, lambda y, b: y + b),
        "relu": (lambda x, w, b: torch._addmm_activation(b, x, w.T), lambda y, b: torch.relu(y + b)),
        "gelu": (lambda x, w, b: torch._addmm_activation(b, x, w.T, use_gelu=True), lambda y, b: gelu(y + b)),
    }
    torch.manual_seed(1)
    wrong = 0
    for dtype, shape in ((dtype, shape) for dtype in (torch.float16, torch.bfloat16) for shape in SHAPES):
        m, n, k = shape
        x, w, b = (torch.randn(s, device="cuda", dtype=dtype) for s in ((m, k), (n, k), (n,)))
        w /= k**0.5
        exact = x.double() @ w.double().T
        sums = (x.double().abs() @ w.double().abs().T) * (2.0**-9 if dtype == torch.float16 else 2.0**-8)
        for name, (call, expected) in tasks.items():
            wanted = expected(exact, b.double())
            bound = sums * 2.0**-4 + torch.finfo(dtype).eps * (exact.abs() + b.double().abs() + 0.01)
            ratio = ((call(x, w, b).double() - wanted).abs() / bound).max().item()
            wrong += not ratio <= 1
            print(f"{str(dtype)[6:]:9s} {m:4d} {n:4d} {k:4d} {name:17s} error {ratio:.3f} of the bound", flush=True)
    print("all results are within their bounds" if not wrong else f"{wrong} results are not within their bounds")
    return int(wrong > 0)


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("no NVIDIA GPU", file=sys.stderr)
        return 77
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 1
    preload = Path(sys.argv[1]).resolve() / "lib" / "libhgemm_blas.so"
    env = {**os.environ, "LD_PRELOAD": str(preload), "HGEMM_BLAS_LOG": "1"}
    return subprocess.run([sys.executable, __file__, "--work"], env=env).returncode


if __name__ == "__main__":
    try:
        raise SystemExit(work() if sys.argv[1:] == ["--work"] else main())
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is not installed: {__file__} names what to install in its first lines"
        ) from None
