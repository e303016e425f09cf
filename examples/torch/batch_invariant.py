"""Show that a row of a Llama's logits has the same bits in every batch, if its linear layers are batch-invariant.

    python examples/torch/batch_invariant.py [LIBRARY] [LAYERS]

Without LIBRARY, or with -, the default library is used, and kernels that it lacks are built once. LAYERS is 2 by default.
Needs torch and transformers. The model has the sizes of Llama 3 8B and random weights.

    logits:  one sequence of 32 tokens is computed in batches of 1 to 64 sequences, at another place in each batch.
    decode:  each linear layer computes 64 rows at once, as for a prompt, and one by one, as for new tokens.

Exit status: 0 all logits and rows of the patched model have the same bits, 1 some do not, 77 this machine has no GPU.
"""

from __future__ import annotations

import sys

import hgemm
from hgemm.device import open_device

NO_GPU = 77
TOKENS, MAX_BATCH, PROMPT = 32, 64, 64


def run(folder: str, layers: int) -> int:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import hgemm.torch

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32768,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
        words = torch.randint(0, config.vocab_size, (MAX_BATCH, TOKENS))
        rows = torch.randn(PROMPT, config.intermediate_size)
    hgemm.torch.use(*([folder] if folder else []), batch_invariant=True)

    def batches_that_differ() -> list[int]:
        """Return the sizes of the batches in which the logits of the first sequence differ from those of a batch of one."""
        alone, found = model(words[:1], use_cache=False).logits[0], []
        for size in range(2, MAX_BATCH + 1):
            place = 7 * size // 10
            batch = words[1:size]
            batch = torch.cat([batch[:place], words[:1], batch[place:]])
            if not torch.equal(model(batch, use_cache=False).logits[place], alone):
                found.append(size)
        return found

    def layers_that_differ() -> list[str]:
        """Return the linear layers whose rows differ between 64 rows at once and one row at a time."""
        found = []
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                prompt = rows[:, : module.in_features].contiguous()
                one_by_one = torch.cat([module(prompt[at : at + 1]) for at in range(PROMPT)])
                if not torch.equal(module(prompt), one_by_one):
                    found.append(name)
        return found

    def line(name: str) -> bool:
        sizes, names = batches_that_differ(), layers_that_differ()
        linear = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
        print(
            f"{name}: logits differ in {len(sizes)} of {MAX_BATCH - 1} batches; "
            f"{len(names)} of {linear} linear layers differ between prompt and decode"
        )
        return not sizes and not names

    with torch.inference_mode():
        line("torch")
        with hgemm.torch.patch(model) as patch:
            print(str(patch).splitlines()[0])
            return 0 if line("hgemm") else 1


def main(arguments: list[str]) -> int:
    folder = arguments[0] if arguments else "-"
    try:
        open_device()
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
        return NO_GPU
    try:
        return run("" if folder == "-" else folder, int(arguments[1]) if len(arguments) > 1 else 2)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
    except hgemm.HgemmError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
