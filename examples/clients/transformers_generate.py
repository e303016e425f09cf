"""Run generate() of transformers with torch's matrix products on a library of kernels, and compare tokens, logits and speed.

    generate --catalog --arch sm_90,sm_90a
    python examples/clients/transformers_generate.py [LIBRARY] [--json FILE]

Four models with random weights, a Llama, a Qwen2, a GPT-2 and a Mistral, generate greedily in f16 and bf16. A token may differ
where torch itself gives two tokens nearly the same logit. Needs torch 2.9 or later and transformers.
Exit status: 0 the results agree, 1 they differ, 77 this machine has no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

PROMPT, NEW_TOKENS, BATCH, ROUNDS = 128, 32, 4, 3
TIED = 2.0**-6
"""Logits that differ by less, as a part of the largest one, are tied in bf16."""


def models() -> dict:
    import transformers as t

    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    few = {**sizes, "num_key_value_heads": 2}
    return {
        "llama": (t.LlamaForCausalLM, t.LlamaConfig(**few)),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**few)),
        "mistral": (t.MistralForCausalLM, t.MistralConfig(**few)),
        "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(n_embd=1024, n_layer=8, n_head=8)),
    }


def measure(model_class, config, dtype) -> dict:
    import torch

    import hgemm.torch

    torch.manual_seed(1)
    model = model_class(config).to(dtype).cuda().eval()
    tokens = torch.randint(3, 30000, (BATCH, PROMPT), device="cuda")

    def generate() -> tuple:
        torch.cuda.synchronize()
        start = time.perf_counter()
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        made = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        torch.cuda.synchronize()
        return made, BATCH * NEW_TOKENS / (time.perf_counter() - start)

    rates: dict[str, list[float]] = {"torch": [], "hgemm": []}
    theirs, _ = generate()
    with hgemm.torch.overridden():
        generate()  # loads the kernels
    for _ in range(ROUNDS):
        rates["torch"].append(generate()[1])
        with hgemm.torch.overridden() as products:
            ours, rate = generate()
        rates["hgemm"].append(rate)
    logits = model(ours).logits[:, PROMPT - 1 : -1].float()
    chosen = logits.gather(2, ours[:, PROMPT:, None])[:, :, 0]
    behind = (logits.max(dim=2).values - chosen) / logits.abs().amax(dim=2)
    return {
        "tokens": behind.numel(),
        "same as torch": int((ours == theirs)[:, PROMPT:].sum()),
        "first choice": int((behind == 0).sum()),
        "wrong": int((behind > TIED).sum()),
        "products": str(products),
        "tokens/s": {side: round(statistics.median(values), 1) for side, values in rates.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "library", nargs="?", help="a folder of kernels; by default the default library, which builds missing ones"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    import torch

    import hgemm.torch

    if not torch.cuda.is_available():
        print("no NVIDIA GPU", file=sys.stderr)
        return 77
    hgemm.torch.use(options.library)
    results = {}
    with torch.inference_mode():
        for name, (model_class, config) in models().items():
            for dtype in (torch.float16, torch.bfloat16):
                results[f"{name} {str(dtype).removeprefix('torch.')}"] = found = measure(model_class, config, dtype)
                print(f"{name}, {dtype}: {found}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    wrong = sum(found["wrong"] for found in results.values())
    print("the results agree" if not wrong else f"{wrong} tokens differ")
    return int(wrong > 0)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is not installed: {__file__} names what to install in its first lines"
        ) from None
