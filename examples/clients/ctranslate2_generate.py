"""Run the unmodified CTranslate2 wheel on kernels of this library, and compare it with float32 on the CPU and with cuBLAS.

    pip install ctranslate2==4.8.5 torch transformers
    generate --catalog --arch sm_90,sm_90a
    hgemm export --blas --to build/hgemm
    python examples/clients/ctranslate2_generate.py build/hgemm [--cublas FOLDER] [--json FILE]

CTranslate2 opens libcublas.so.12 by name, and gets libhgemm_blas.so. Two models with random weights, a GPT-2 and a Llama, generate
tokens in f16 and bf16, greedily and with 4 beams. A token is right if float32 gives it the highest probability, and tied if the
difference to the highest log-probability is below a tolerance. `--cublas` names a folder with the real libcublas.so.12 or .13:
then processes with our kernels and processes with cuBLAS, all loaded, measure in turns.
Exit status: 0 all tokens are right or tied, 1 some are not, 77 this machine has no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERSION = "4.8.5"
TOLERANCE = {"float16": 0.1, "bfloat16": 0.6}
"""Largest difference of log-probabilities that counts as tied."""
PROMPT, NEW_TOKENS, PROMPTS, BEAMS = 32, 64, 8, 4
GREEDY = {f"greedy, batch {batch}": batch for batch in (1, 8, 32)}
SCORED = (8, 512)
"""Texts and tokens of the measurement of scoring."""
SCORING = "scoring {} x {}".format(*SCORED)
WARM_UP, GREEDY_REPEATS, SCORING_REPEATS = 2, 5, 10
"""Runs before a measurement, and runs of it. Scoring takes 1 or 2 ms longer at some times: use many rounds."""


# ---- Models ---------------------------------------------------------------------------------------------------------


class Tokenizer:
    """Stands for a tokenizer: token i is the word `ti`."""

    bos_token, eos_token, unk_token = "t0", "t1", "t2"

    def __init__(self, size: int) -> None:
        self.size = size

    def get_vocab(self) -> dict[str, int]:
        return {f"t{i}": i for i in range(self.size)}


def convert(folder: Path, layers: int, width: int) -> dict[str, Path]:
    """Write both models with weights in f16, and return their folders."""
    import torch
    from ctranslate2.converters import transformers as converters
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    gpt2 = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 128, initializer_range=0.05, n_positions=1024)
    llama = LlamaConfig(
        hidden_size=width // 2,
        intermediate_size=width * 11 // 8,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        num_key_value_heads=width // 512,
        vocab_size=32000,
        initializer_range=0.05,
    )
    models = {
        "gpt2": (GPT2LMHeadModel, gpt2, converters.GPT2Loader()),
        "llama": (LlamaForCausalLM, llama, converters.LlamaLoader()),
    }
    for name, (model_class, config, loader) in models.items():
        with torch.no_grad():
            spec = loader(model_class(config).eval(), Tokenizer(config.vocab_size))
        spec.validate()
        spec.optimize(quantization="float16")
        (folder / name).mkdir()
        spec.save(str(folder / name))
    return {name: folder / name for name in models}


def prompts(count: int, length: int) -> list[list[str]]:
    """Return prompts of tokens that every model has."""
    return [[f"t{3 + (row * 7919 + at * 104729) % 31000}" for at in range(length)] for row in range(count)]


# ---- The process that generates: its libcublas.so.12 is that of LD_LIBRARY_PATH ----------------------------------------


def mapped_libraries() -> list[str]:
    """Return the paths of all libraries of this process with the name of a BLAS."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/") and len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if re.search(r"cublas|nvblas|hgemm", Path(path).name))


def load(model: str, compute_type: str):
    """Return a generator on the GPU."""
    sys.modules |= dict.fromkeys(("torch", "transformers"))  # its converters would load torch, and cuBLAS with it
    import ctranslate2

    return ctranslate2.Generator(model, device="cuda", compute_type=compute_type)


OPTIONS = {"max_length": NEW_TOKENS, "min_length": NEW_TOKENS, "include_prompt_in_result": False}


def generate(model: str, compute_type: str) -> None:
    """Generate greedily and with beams, and print the tokens."""
    generator = load(model, compute_type)
    found = {}
    for beams in (1, BEAMS):
        results = generator.generate_batch(prompts(PROMPTS, PROMPT), beam_size=beams, return_scores=True, **OPTIONS)
        found[str(beams)] = {
            "ids": [list(result.sequences_ids[0]) for result in results],
            "scores": [result.scores[0] for result in results],
        }
    print(json.dumps({"found": found, "libraries": mapped_libraries()}))


def measure(model: str, compute_type: str) -> None:
    """Load the model, print the libraries, and then print the tokens per second of each task that stdin names."""
    generator = load(model, compute_type)
    texts = prompts(*SCORED)
    tasks = {SCORING: (SCORED[0] * SCORED[1], SCORING_REPEATS, lambda: generator.score_batch(texts))}
    for name, batch in GREEDY.items():
        starts = prompts(batch, PROMPT)
        tasks[name] = batch * NEW_TOKENS, GREEDY_REPEATS, lambda t=starts: generator.generate_batch(t, **OPTIONS)
    generator.score_batch(texts[:1])  # the first product opens libcublas.so.12
    print(json.dumps(mapped_libraries()), flush=True)
    for line in sys.stdin:
        tokens, repeats, task = tasks[line.strip()]
        for _ in range(WARM_UP):
            task()
        start = time.perf_counter()
        for _ in range(repeats):
            task()
        print(json.dumps(round(tokens * repeats / (time.perf_counter() - start), 1)), flush=True)


def environment(libraries: list[Path], extra: dict[str, str]) -> dict[str, str]:
    """Return an environment in which the loader looks in `libraries` first."""
    path = ":".join([*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return {**os.environ, "LD_LIBRARY_PATH": path, **extra}


def start(libraries: list[Path], model: str, compute_type: str, **env: str) -> tuple[dict, str]:
    """Run `generate` in a new process. Return its result and its log."""
    command = [sys.executable, __file__, "--generate", model, compute_type]
    done = subprocess.run(command, env=environment(libraries, env), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"CTranslate2 failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


class Process:
    """A process that runs `measure`."""

    def __init__(self, libraries: list[Path], model: str, compute_type: str, **env: str) -> None:
        command = [sys.executable, __file__, "--measure", model, compute_type]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment(libraries, env), **pipes)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("CTranslate2 failed: a process ended")
        return json.loads(line)

    def rate(self, task: str) -> float:
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare_speed(
    sides: dict, model: str, compute_type: str, processes: int, rounds: int, tasks: tuple[str, ...] = (*GREEDY, SCORING)
) -> tuple[dict, dict]:
    """Measure in turns, and return tokens per second by task and side, and libraries by side.

    All processes are loaded first. Only one of them uses the GPU at a time.
    """
    pairs = [
        {side: Process(libraries, model, compute_type, **env) for side, (libraries, env) in sides.items()}
        for _ in range(processes)
    ]
    libraries = [{side: process.answer() for side, process in pair.items()} for pair in pairs]
    rates: dict[str, dict[str, list[float]]] = {task: {side: [] for side in sides} for task in tasks}
    for turn in range(rounds):
        for task, by_side in rates.items():
            for index, pair in enumerate(pairs):
                for side in list(sides)[:: -1 if (turn + index) % 2 else 1]:
                    by_side[side].append(pair[side].rate(task))
    for pair in pairs:
        for process in pair.values():
            process.close()
    return rates, libraries[0]


def ratio(by_side: dict[str, list[float]]) -> float:
    """Return the time of all measurements with cuBLAS over the time with our kernels."""
    return sum(1 / rate for rate in by_side["cublas"]) / sum(1 / rate for rate in by_side["hgemm"])


# ---- Checks ---------------------------------------------------------------------------------------------------------


def compare(model: Path, found: dict, tolerance: float) -> dict[str, dict]:
    """Compare generated tokens with the log-probabilities of float32 on the CPU."""
    import ctranslate2
    import numpy as np

    cpu = ctranslate2.Generator(str(model), device="cpu", compute_type="float32", intra_threads=os.cpu_count())
    verdicts = {}
    for beams, made in found.items():
        starts = prompts(PROMPTS, PROMPT)
        texts = [first + [f"t{i}" for i in ids] for first, ids in zip(starts, made["ids"], strict=True)]
        log_probs = np.array(cpu.forward_batch(texts, return_log_probs=True))[:, PROMPT - 1 : -1].astype(np.float64)
        log_probs[:, :, 1] = -np.inf  # no text ends early
        chosen = np.take_along_axis(log_probs, np.array(made["ids"])[:, :, None], axis=2)[:, :, 0]
        behind = log_probs.max(axis=2) - chosen
        verdict = {"tokens": behind.size, "right": int((behind == 0).sum())}
        if beams == "1":
            verdict |= {
                "tied": int(((behind > 0) & (behind <= tolerance)).sum()),
                "wrong": int((behind > tolerance).sum()),
            }
        else:  # a beam need not follow the highest probability; its score must be that of its tokens
            differences = np.abs(chosen.mean(axis=1) - np.array(made["scores"]))
            verdict |= {"score differs by": float(differences.max()), "wrong": int((differences > tolerance).sum())}
        verdicts[beams] = verdict
    return verdicts


def real_folder(cublas: Path, temporary: Path) -> list[Path]:
    """Return folders in which the loader finds the real cuBLAS as libcublas.so.12."""
    found = next((cublas / name for name in ("libcublas.so.12", "libcublas.so.13") if (cublas / name).exists()), None)
    if found is None:
        raise SystemExit(f"{cublas} has no libcublas.so.12 or libcublas.so.13")
    (temporary / "cublas").mkdir()
    (temporary / "cublas" / "libcublas.so.12").symlink_to(found.resolve())
    return [temporary / "cublas", cublas.resolve()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path, help="the folder that `hgemm export --blas --to` wrote")
    parser.add_argument("--cublas", type=Path, help="a folder with the real libcublas.so.12 or .13, to compare speed")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--processes", type=int, default=2, help="processes of each side that measure (default: 2)")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each process (default: 2)")
    tasks = (*GREEDY, SCORING)
    parser.add_argument("--task", choices=tasks, action="append", help="measure this task only; several are possible")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    import ctranslate2

    if ctranslate2.__version__ != VERSION:
        print(f"this is CTranslate2 {ctranslate2.__version__}; the script was written for {VERSION}", file=sys.stderr)
    if ctranslate2.get_cuda_device_count() == 0:
        print("no NVIDIA GPU", file=sys.stderr)
        return 77
    ours = [options.export.resolve() / "lib" / "blas"]
    report: dict = {"ctranslate2": ctranslate2.__version__, "tokens": {}, "rates": {}}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        models = convert(temporary, options.layers, options.width)
        for name, model in models.items():
            for compute_type, tolerance in TOLERANCE.items():
                made, log = start(ours, str(model), compute_type, HGEMM_BLAS_LOG="1", HGEMM_BLAS_FALLBACK="none")
                verdicts = compare(model, made["found"], tolerance)
                summary = log.strip().splitlines()[-1] if log else ""
                report["tokens"][f"{name} {compute_type}"] = {
                    **verdicts,
                    "log": summary,
                    "libraries": made["libraries"],
                }
                wrong += sum(verdict["wrong"] for verdict in verdicts.values())
                print(f"{name}, {compute_type}: {verdicts}\n  {summary}\n  {made['libraries']}", flush=True)
                slow = sorted(
                    {line for line in log.splitlines() if "without tensor cores" in line and ": cublas" in line}
                )
                print(*(f"  {line}" for line in slow[:10]), sep="\n", flush=True)
        sides = {"hgemm": (ours, {"HGEMM_BLAS_FALLBACK": "none"})}
        if options.cublas:
            sides["cublas"] = (real_folder(options.cublas, temporary), {})
        for compute_type in TOLERANCE:
            rates, libraries = compare_speed(
                sides,
                str(models["gpt2"]),
                compute_type,
                options.processes,
                options.rounds,
                tuple(options.task or tasks),
            )
            report["rates"][compute_type], report["libraries"] = rates, libraries
            for task, by_side in rates.items():
                numbers = "; ".join(f"{side} {values} tokens/s" for side, values in by_side.items())
                compared = f"; ratio of the times {ratio(by_side):.3f}" if "cublas" in by_side else ""
                print(f"gpt2, {compute_type}, {task}: {numbers}{compared}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("all tokens are right or tied" if not wrong else f"{wrong} tokens or scores differ")
    return int(wrong > 0)


if __name__ == "__main__":
    for option, run in (("--generate", generate), ("--measure", measure)):
        if option in sys.argv:
            raise SystemExit(run(*sys.argv[sys.argv.index(option) + 1 :]))
    try:
        raise SystemExit(main())
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is not installed: {__file__} names what to install in its first lines"
        ) from None
