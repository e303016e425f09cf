"""The MLP of a Llama block, down(silu(gate(x)) * up(x)), with its linear layers on kernels of a library, beside torch's.

    python examples/torch/llama_mlp.py [LIBRARY] [TOKENS]        # else HGEMM_LIBRARY, else emitted; else 2048

The library needs kernels for f16, layout tn. One with silu applies it in gate's kernel: generate --activation silu ...
Exit status: 0 the results agree, 1 they do not, or there is no GPU.
"""

from __future__ import annotations

import os
import statistics
import sys

import hgemm
from hgemm.device import open_device

HIDDEN, INTERMEDIATE = 4096, 14336
"""Of Llama 3 8B."""
ROUNDS, CALLS = 15, 10


def run(folder: str, tokens: int) -> int:
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

    hgemm.torch.use(folder)
    torch.manual_seed(1)
    with torch.inference_mode():
        theirs = Mlp(layer(HIDDEN, INTERMEDIATE), layer(HIDDEN, INTERMEDIATE), layer(INTERMEDIATE, HIDDEN))
        x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.float16)
        try:
            hgemm.torch.linear(x, theirs.gate.weight, activation="silu")
            fused = True
        except hgemm.DeviceError:
            fused = False
        of = hgemm.torch.Linear.of
        ours = Mlp(of(theirs.gate, "silu" if fused else "none"), of(theirs.up), of(theirs.down), fused)

        gate, up, down = (module.weight.double() for module in (theirs.gate, theirs.up, theirs.down))
        expected = (silu(x.double() @ gate.t()) * (x.double() @ up.t())) @ down.t()
        error, their_error = (float((mlp(x) - expected).abs().max() / expected.abs().max()) for mlp in (ours, theirs))
        # Each of three roundings to f16 on the way is 2^-11 of an element; torch's kernels make the same ones.
        agree = error <= 2 * their_error + 2.0**-11

        times = [(milliseconds(ours), milliseconds(theirs)) for _ in range(ROUNDS)]
    mine, torchs = map(statistics.median, zip(*times))
    print(
        f"{torch.cuda.get_device_name()}, {tokens} tokens, {HIDDEN} to {INTERMEDIATE} and back, silu {'' if fused else 'not '}fused"
    )
    print(f"largest error over the largest element: {error:.2e}, torch {their_error:.2e}")
    print(f"hgemm {mine:.3f} ms, torch {torchs:.3f} ms, {torchs / mine:.2f} times as fast")
    return 0 if agree else 1


def main(arguments: list[str]) -> int:
    folder = arguments[0] if arguments else os.environ.get("HGEMM_LIBRARY", "emitted")
    try:
        open_device()
        return run(folder, int(arguments[1]) if len(arguments) > 1 else 2048)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
