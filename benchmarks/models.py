"""Time models of transformers with random weights, with their linear layers patched, beside plain torch in one process.

\b
    python -m benchmarks.models --library emitted --models llama,gpt2 --tokens 1,128,2048 --json FILE

\b
Rounds alternate: torch, patched, patched, torch. A ratio above 1 means that the patched model is faster.
Each of the four blocks begins when the card has finished the one before.
Rounds go on, to three times the usual time, while the error of the ratio exceeds both 1 % and a third of its distance from 1.
burst:  each round starts on a card that was idle.
steady: rounds follow each other, after up to 2 s of load.
Attention gets no mask tensor, because all sequences have the same length: it uses torch's causal or full attention.
Otherwise, transformers (5.17 for example) passes a mask during graph capture, and attention falls to a slower kernel.
The logits of both models are compared with those of the same weights in float64.
Exit status: 0 the logits are within the bound, 1 they are not, or there is no GPU.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hgemm.bench.protocol import Ratio, forth_and_back, round_times
from hgemm.device import driver_cuda, open_device

# ==== Models ====

CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"vocab_size": 128256},
    ),
    "mistral": (
        "MistralConfig",
        "MistralForCausalLM",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"vocab_size": 32768},
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
        | {"vocab_size": 152064},
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 1600, "n_head": 25, "vocab_size": 50257, "n_positions": 4096, "activation_function": "gelu"},
    ),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 30522},
    ),
}
"""Class of the config, class of the model, and sizes: Llama 3 8B, Mistral 7B, Qwen2 7B, GPT-2 XL and BERT large."""
DTYPES = {"f16": "float16", "bf16": "bfloat16"}
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8}
LONGEST = {"bert": 512}
"""The longest sequence, in tokens, of models that take more tokens as a batch."""
ATTENTION = "sdpa_without_mask"
MODES = ("eager", "graph", "compile")
STATES = ("burst", "steady")


def make_model(name: str, dtype: str, layers: int, device: str = "cuda", **sizes: Any) -> Any:
    """Return a model with random weights. `sizes` replaces fields of its config."""
    import torch
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    config_class, model_class, fields = CONFIGS[name]
    depth = "n_layer" if name == "gpt2" else "num_hidden_layers"
    config = getattr(transformers, config_class)(**{**fields, depth: layers, **sizes})
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, DTYPES[dtype]))
    # transformers makes no mask for an attention function without a mask function of the same name.
    transformers.AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    config._attn_implementation = ATTENTION
    try:
        with torch.device(device):
            return getattr(transformers, model_class)(config).eval()
    finally:
        torch.set_default_dtype(before)


def sequences_of(name: str, count: int) -> tuple[int, int]:
    """Return the number and the length of sequences with about `count` tokens together."""
    sequences = -(-count // LONGEST.get(name, count))
    return sequences, count // sequences


def shared_copy(model: Any) -> Any:
    """Return a copy of a model with the same parameters and buffers."""
    kept = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(one): one for one in kept})


def errors(logits: dict[str, Any], reference: Any) -> dict[str, float]:
    """Return the distance of each model's logits from the reference, relative to the norm of the reference."""
    exact = reference.double()
    return {name: float((found.double() - exact).norm() / exact.norm()) for name, found in logits.items()}


def bound(torch_error: float, dtype: str) -> float:
    """Return the allowed error of the patched model: twice torch's, and one rounding."""
    return 2 * torch_error + ROUNDOFF[dtype]


# ==== Time ====


@dataclass(frozen=True)
class Plan:
    """How long one case is measured. Units: seconds, and milliseconds per block.

    Fields: a case whose ratio is uncertain takes up to `stretch` times as long.
    """

    seconds: float
    load_s: float
    stretch: float = 3.0
    block_ms: float = 15.0
    calls_min: int = 2
    rounds_min: int = 8
    idle_s: float = 0.25


@dataclass
class Budget:
    """The time of a run, shared among the cases that are left.

    Fields: `until` is a time of time.perf_counter.
    """

    until: float
    cases: int

    def plan(self) -> Plan:
        """Return the plan of the next case. A part of its share is left for what is not measured, such as models and graphs."""
        share = max(0.0, self.until - time.perf_counter()) / max(1, self.cases)
        self.cases -= 1
        return Plan(seconds=0.4 * share, load_s=min(2.0, 0.2 * share))


def block_ms(run: Callable[[], object], calls: int) -> float:
    """Return the time of one call in a block of calls."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


MAX_ERROR = 0.01
"""The error of a ratio that is small enough. If the ratio is far from 1, a third of the distance is small enough, too."""


def error_of(ratio: Ratio, rounds: int) -> float:
    """Return twice the standard error of a median ratio: half of p10 to p90 is about 1.28 standard deviations."""
    return 2 * ratio.spread / math.sqrt(rounds)


def is_certain(ratio: Ratio, rounds: int) -> bool:
    """Return whether a ratio needs no more rounds. The rule favours neither side."""
    return error_of(ratio, rounds) <= max(MAX_ERROR, abs(ratio.median - 1) / 3)


def measure(runs: dict[str, Callable[[], object]], state: str, plan: Plan) -> dict[str, Any]:
    """Return the median times of both contenders and the paired ratio of torch to patched. Units: milliseconds."""
    import torch

    once = max(block_ms(run, 3) for run in runs.values())
    calls = max(plan.calls_min, round(plan.block_ms / once))
    if state == "steady":
        until = time.perf_counter() + plan.load_s
        while time.perf_counter() < until:
            for run in runs.values():
                block_ms(run, calls)
    rounds: list[list[tuple[str, float]]] = []
    began, ratio = time.perf_counter(), Ratio(1.0, 0.0, 2.0)
    until, latest = began + plan.seconds, began + plan.stretch * plan.seconds
    while (
        len(rounds) < plan.rounds_min
        or time.perf_counter() < until
        or (time.perf_counter() < latest and not is_certain(ratio, len(rounds)))
    ):
        if state == "burst":
            torch.cuda.synchronize()
            time.sleep(plan.idle_s)
        for run in runs.values():
            run()
        torch.cuda.synchronize()  # otherwise the first block begins while the card is busy, which hides its first launches
        rounds.append([(name, block_ms(runs[name], calls)) for name in forth_and_back([*runs])])
        times = round_times(rounds)
        ratio = Ratio.of(times["torch"], times["patched"])
    return {
        "ratio": ratio.median,
        "spread": round(ratio.spread, 4),
        "error": round(error_of(ratio, len(rounds)), 4),
        "rounds": len(rounds),
        **{f"{name}_ms": round(statistics.median(found), 4) for name, found in times.items()},
    }


@contextmanager
def runner(model: Any, tokens: Any, mode: str) -> Iterator[Callable[[], Any]]:
    """Yield a function that runs a model on the same tokens, and returns its logits."""
    import torch

    def eager() -> Any:
        return model(tokens, **({} if "Bert" in type(model).__name__ else {"use_cache": False})).logits

    if mode == "eager":
        yield eager
    elif mode == "graph":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                eager()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = eager()

        def replay() -> Any:
            graph.replay()
            return logits

        yield replay
    else:
        torch._dynamo.reset()
        compiled = torch.compile(eager, dynamic=False)
        for _ in range(3):
            compiled()
        yield compiled


# ==== One model ====


def measure_model(
    name: str,
    dtype: str,
    layers: int,
    counts: list[int],
    modes: list[str],
    states: list[str],
    fuse: bool,
    budget: Budget,
) -> Iterator[dict[str, Any]]:
    """Yield one row per number of tokens and mode."""
    import torch

    import hgemm.torch

    base = make_model(name, dtype, layers)
    ours = shared_copy(base)
    patch = hgemm.torch.patch(ours, fuse=fuse)
    click.echo(f"{name} {dtype}: {str(patch).splitlines()[0]}", err=True)
    for kept in patch.kept:
        click.echo(f"  {kept.name}: {kept.reason}", err=True)
    reference = copy.deepcopy(base).double()
    for count in counts:
        tokens = torch.randint(0, base.config.vocab_size, sequences_of(name, count), device="cuda")
        with torch.inference_mode():
            logits = {"torch": base(tokens).logits, "patched": ours(tokens).logits}
            found = errors(logits, reference(tokens).logits)
        del logits
        for mode in modes:
            row = {"model": name, "dtype": dtype, "tokens": tokens.numel(), "mode": mode}
            row |= {f"{one}_error": float(f"{value:.3g}") for one, value in found.items()}
            row |= {"ok": found["patched"] <= bound(found["torch"], dtype), "patched": len(patch.replaced)}
            try:
                with torch.inference_mode(), runner(base, tokens, mode) as one, runner(ours, tokens, mode) as other:
                    runs = {"torch": one, "patched": other}
                    row |= {state: measure(runs, state, budget.plan()) for state in states}
            except Exception as error:  # one mode of one model must not end the run
                row["failed"] = " ".join(str(error).split())[:300]
            yield row


def header(states: list[str]) -> str:
    """Return the names of the columns."""
    names = "".join(f" {state:>15}" for state in states)
    return f"{'model':8} {'dtype':5} {'tokens':>6} {'mode':8} {'torch ms':>9}{names} {'error':>9} {'torch':>9}"


def line(row: dict[str, Any], states: list[str]) -> str:
    """Return a row of the table. A state is the ratio and twice its standard error."""
    start = f"{row['model']:8} {row['dtype']:5} {row['tokens']:6} {row['mode']:8}"
    if "failed" in row:
        return f"{start} failed: {row['failed']}"
    ratios = "".join(f" {row[state]['ratio']:7.3f} ({row[state]['error']:.3f})" for state in states)
    note = "" if row["ok"] else "  error exceeds the bound"
    return f"{start} {row[states[-1]]['torch_ms']:9.3f}{ratios} {row['patched_error']:9.2e} {row['torch_error']:9.2e}{note}"


# ==== The command ====


def _words(known: tuple[str, ...] | dict) -> Callable[..., list[str]]:
    def parse(context: click.Context, option: click.Parameter, text: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        for word in found:
            if word not in known:
                raise click.BadParameter(f"{word!r} is unknown: use {', '.join(known)}")
        return found

    return parse


def _numbers(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers, such as 1,128,2048") from None


@click.command(help=__doc__)
@click.option("--models", default=",".join(CONFIGS), show_default=True, callback=_words(CONFIGS), metavar="WORDS")
@click.option("--dtypes", default="f16,bf16", show_default=True, callback=_words(DTYPES), metavar="WORDS")
@click.option("--tokens", default="1,16,128,777,2048,4096", show_default=True, callback=_numbers, metavar="NUMBERS")
@click.option("--modes", default="eager,graph", show_default=True, callback=_words(MODES), metavar="WORDS")
@click.option("--states", default="burst,steady", show_default=True, callback=_words(STATES), metavar="WORDS")
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Layers of each model.")
@click.option(
    "--library",
    default="emitted",
    show_default=True,
    metavar="DIR",
    help="The library. In build/{model}, the model's name takes the place of {model}.",
)
@click.option("--build/--no-build", default=False, show_default=True, help="Build kernels that the library lacks.")
@click.option("--workspace-bytes", type=int, default=None, help="Size of the workspace; 0 allows none.")
@click.option("--seconds", type=float, default=240.0, show_default=True, help="Time for everything.")
@click.option("--fuse/--no-fuse", default=True, show_default=True, help="Compute activations in the kernels.")
@click.option("--cpp/--no-cpp", default=True, show_default=True, help="Use the operator in C++.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures there.")
def main(
    models: list[str],
    dtypes: list[str],
    tokens: list[int],
    modes: list[str],
    states: list[str],
    layers: int,
    library: str,
    build: bool,
    workspace_bytes: int | None,
    seconds: float,
    fuse: bool,
    cpp: bool,
    json_path: Path | None,
) -> None:
    import torch
    import transformers

    import hgemm.torch

    if not torch.cuda.is_available():
        click.echo("models: error: torch finds no GPU here", err=True)
        sys.exit(1)
    budget = Budget(
        until=time.perf_counter() + seconds,
        cases=len(models) * len(dtypes) * len(tokens) * len(modes) * len(states),
    )
    options = {} if workspace_bytes is None else {"workspace_bytes": workspace_bytes}
    document: dict[str, Any] = {
        "device": open_device().name,
        "driver_cuda": driver_cuda(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "kernels": {},
        "layers": layers,
        "fuse": fuse,
        "seconds": seconds,
        "unit": "ms; ratio of torch's time to that of the patched model",
        "rows": [],
    }
    rows = document["rows"]
    click.echo(header(states))
    for name in models:
        opened = hgemm.open(library.replace("{model}", name), build=build, **options)
        document["kernels"][name] = len(opened.symbols)
        hgemm.torch.use(opened, cpp=cpp)
        for dtype in dtypes:
            for row in measure_model(name, dtype, layers, tokens, modes, states, fuse, budget):
                rows.append(row)
                click.echo(line(row, states))
                if json_path:  # a run that ends early keeps its rows
                    json_path.write_text(json.dumps(document, indent=1) + "\n")
            torch.cuda.empty_cache()
    sys.exit(0 if all(row["ok"] and "failed" not in row for row in rows) else 1)


if __name__ == "__main__":
    main()
