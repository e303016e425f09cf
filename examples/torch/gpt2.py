"""Run GPT-2 with random weights, with its linear layers on kernels of a library, and compare with PyTorch.

    python examples/torch/gpt2.py [LIBRARY] [TOKENS]

Without LIBRARY, or with -, the default library is used, and kernels that it lacks are built once. TOKENS is 512 by default.
Needs torch and transformers.
Exit status: 0 the results agree, 1 they differ, 77 this machine has no GPU.
"""

from __future__ import annotations

import copy
import statistics
import sys

import hgemm
from hgemm.device import open_device

NO_GPU = 77
ROUNDS, CALLS = 15, 10


def run(folder: str, tokens: int) -> int:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import hgemm.torch

    if folder:
        hgemm.torch.use(folder)
    else:
        hgemm.torch.use()
    torch.manual_seed(1)
    config = GPT2Config(n_layer=6, activation_function="gelu", n_positions=max(1024, tokens))
    model = GPT2LMHeadModel(config).half().cuda().eval()
    words = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")

    def milliseconds() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            model(words, use_cache=False)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / CALLS

    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(words).logits
        theirs = model(words).logits
        torch_ms = statistics.median(milliseconds() for _ in range(ROUNDS))
        with hgemm.torch.patch(model, fuse=True) as patch:
            ours = model(words).logits
            ours_ms = statistics.median(milliseconds() for _ in range(ROUNDS))
    print(str(patch).splitlines()[0])
    error, torch_error = (float((found.double() - exact).norm() / exact.norm()) for found in (ours, theirs))
    print(f"{tokens} tokens: {ours_ms:.2f} ms, torch {torch_ms:.2f} ms")
    print(f"error of the logits: {error:.1e}, torch {torch_error:.1e}")
    agrees = error <= 2 * torch_error + 2.0**-11
    print("the results agree" if agrees else "the results differ")
    return 0 if agrees else 1


def main(arguments: list[str]) -> int:
    folder = arguments[0] if arguments else "-"
    try:
        open_device()
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return NO_GPU
    try:
        return run("" if folder == "-" else folder, int(arguments[1]) if len(arguments) > 1 else 512)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
