"""Run the MLP of a Llama block, down(silu(gate(x)) * up(x)), with kernels of a library, and compare with PyTorch.

    python examples/torch/llama_mlp.py [LIBRARY] [TOKENS]

LIBRARY is the folder of a library; the default is that of `hgemm.open()`. TOKENS is 2048 by default.
The library needs kernels for f16 and layout tn. The gate layer uses a kernel with SiLU, if the library has one
(generate --activation silu ...).
Exit status: 0 the results agree, 1 they differ, 77 this machine has no GPU.
"""

from __future__ import annotations

import statistics
import sys

import hgemm
from hgemm.device import open_device

NO_GPU = 77
HIDDEN, INTERMEDIATE = 4096, 14336
"""The sizes of Llama 3 8B."""
ROUNDS, CALLS = 15, 10


def run(folder: str | None, tokens: int) -> int:
    import torch
    from torch import nn
    from torch.nn.functional import silu

    import hgemm.torch

    class Mlp(nn.Module):
        def __init__(self, gate: nn.Module, up: nn.Module, down: nn.Module, fused: bool = False) -> None:
            super().__init__()
            self.gate, self.up, self.down, self.fused = gate, up, down, fused

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate = self.gate(x)
            return self.down((gate if self.fused else silu(gate)) * self.up(x))

    def layer(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.float16)

    def milliseconds(mlp: Mlp) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            mlp(x)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / CALLS

    hgemm.torch.use(hgemm.open(folder))
    torch.manual_seed(1)
    with torch.inference_mode():
        reference = Mlp(layer(HIDDEN, INTERMEDIATE), layer(HIDDEN, INTERMEDIATE), layer(INTERMEDIATE, HIDDEN))
        x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.float16)
        try:
            hgemm.torch.linear(x, reference.gate.weight, activation="silu")
            fused = True
        except hgemm.DeviceError:
            fused = False
        of = hgemm.torch.Linear.of
        ours = Mlp(of(reference.gate, "silu" if fused else "none"), of(reference.up), of(reference.down), fused)

        gate, up, down = (module.weight.double() for module in (reference.gate, reference.up, reference.down))
        expected = (silu(x.double() @ gate.t()) * (x.double() @ up.t())) @ down.t()
        error, torch_error = (
            float((mlp(x) - expected).abs().max() / expected.abs().max()) for mlp in (ours, reference)
        )
        # Three results are rounded to f16, with a relative error of 2^-11 each. PyTorch rounds the same results.
        agree = error <= 2 * torch_error + 2.0**-11

        times = [(milliseconds(ours), milliseconds(reference)) for _ in range(ROUNDS)]
    ours_ms, torch_ms = map(statistics.median, zip(*times))
    print(
        f"{torch.cuda.get_device_name()}, {tokens} tokens, {HIDDEN} to {INTERMEDIATE} and back, "
        f"silu {'' if fused else 'not '}fused"
    )
    print(f"largest error / largest element: hgemm {error:.2e}, torch {torch_error:.2e}")
    print(f"hgemm {ours_ms:.3f} ms, torch {torch_ms:.3f} ms, speedup {torch_ms / ours_ms:.2f}")
    return 0 if agree else 1


def main(arguments: list[str]) -> int:
    folder = arguments[0] if arguments else None
    try:
        open_device()
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return NO_GPU
    try:
        return run(folder, int(arguments[1]) if len(arguments) > 1 else 2048)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
