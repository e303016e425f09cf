"""Measures the GPU's clock and power while a language model runs, and while its products run alone.

`python -m benchmarks.model_clocks --json FILE` needs a GPU, torch and transformers. The model is like Llama 3 8B, with random
weights and fewer layers. Each product is timed with the model's own operands and with normal(0, 1) operands.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

POWER_INSTANT_FIELD = 186
"""NVML_FI_DEV_POWER_INSTANT, in mW."""
LAUNCHES = 50
PRODUCT_NAMES = ("nvjet", "gemm", "cutlass")
"""Parts of the names of kernels that compute products."""


def sampled(run: Callable[[], None], seconds: float) -> dict[str, float]:
    """Run something again and again. Return milliseconds of a run, and medians of clock and power in the second half."""
    import pynvml
    import torch

    device, samples, stop = pynvml.nvmlDeviceGetHandleByIndex(0), [], threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            clock = pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)
            (power,) = pynvml.nvmlDeviceGetFieldValues(device, [POWER_INSTANT_FIELD])
            samples.append((clock, power.value.uiVal / 1000))

    thread = threading.Thread(target=sample)
    thread.start()
    began, runs = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        run()
        runs += 1
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - began
    stop.set()
    thread.join()
    clocks, watts = zip(*samples[len(samples) // 2 :])
    return {
        "ms": round(1e3 * elapsed / runs, 3),
        "sm_mhz": statistics.median(clocks),
        "power_w": round(statistics.median(watts), 1),
    }


def captured(run: Callable[[], object]) -> Any:
    """Warm up and return a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def kernel_ms(graph: Any) -> dict[str, float]:
    """Return the milliseconds of a replay of a CUDA graph that products take, and those of all other kernels."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    found = {"products": 0.0, "others": 0.0}
    for event in profile.events():
        if event.device_type.name == "CUDA":
            kind = "products" if any(word in event.name for word in PRODUCT_NAMES) else "others"
            found[kind] += event.device_time * 1e-3
    return {kind: round(ms, 3) for kind, ms in found.items()}


def product(x: Any, weight: Any, seconds: float) -> dict[str, float]:
    """Return the rate, clock and power of one product of tensors, launched again and again."""
    import torch

    out = x.new_empty(x.shape[0], weight.shape[0])
    graph = captured(lambda: [torch.mm(x, weight.t(), out=out) for _ in range(LAUNCHES)])
    found = sampled(graph.replay, seconds)
    flops = 2 * x.shape[0] * x.shape[1] * weight.shape[0]
    return {**found, "tflops": round(flops * LAUNCHES / found["ms"] * 1e-9, 1)}


@click.command(help=__doc__)
@click.option("--tokens", default=2048, show_default=True, help="Tokens of the prompt.")
@click.option("--layers", default=6, show_default=True, help="Layers of the model.")
@click.option(
    "--seconds", default=2.5, show_default=True, help="Seconds of the model; each product takes half as long."
)
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where to write the results.")
def main(tokens: int, layers: int, seconds: float, path: Path) -> None:
    try:
        import pynvml
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"{error}: pip install nvidia-ml-py torch transformers") from None
    pynvml.nvmlInit()
    with torch.inference_mode():
        document = measured(tokens, layers, seconds)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(document, indent=1))


def measured(tokens: int, layers: int, seconds: float) -> dict[str, Any]:
    """Return the figures of the model and of its products."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.float16).eval()
    ids = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
    operands: dict[str, tuple[Any, Any]] = {}

    def keep(name: str) -> Callable:
        return lambda module, inputs, output: operands.update({name: (inputs[0].flatten(0, -2).clone(), module.weight)})

    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_hook(keep(name)) for name, module in linear if ".0." in name or name == "lm_head"]
    model(ids)
    for hook in hooks:
        hook.remove()
    graph = captured(lambda: model(ids))
    return {
        "device": torch.cuda.get_device_name(),
        "tokens": tokens,
        "layers": layers,
        "model": sampled(graph.replay, seconds),
        "kernel_ms": kernel_ms(graph),
        "products": {
            name: {
                "model_data": product(x, weight, seconds / 2),
                "normal_data": product(torch.randn_like(x), torch.randn_like(weight), seconds / 2),
            }
            for name, (x, weight) in operands.items()
        },
    }


if __name__ == "__main__":
    main()
