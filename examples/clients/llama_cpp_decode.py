"""Run the CUDA backend of llama.cpp on kernels of this library, and compare it with float32 on the CPU and with cuBLAS.

    CMAKE_ARGS="-DGGML_CUDA=on" pip install llama-cpp-python==0.3.36 gguf
    generate --catalog --arch sm_90,sm_90a
    generate --catalog blas --arch sm_90a    # C in f32, and pointer arrays
    hgemm export --blas --to build/hgemm
    python examples/clients/llama_cpp_decode.py build/hgemm [--cublas FOLDER] [--json FILE]

llama.cpp is not changed. Its CUDA backend links libcublas.so.13 or .12, and gets libhgemm_blas.so. It uses cuBLAS to multiply many
tokens with weights in f16, bf16 or f32, as in prompts. It has kernels of its own for few tokens and for quantised weights. A Llama
with random weights computes the log-probabilities of a text. A choice is right if float32 gives the same token the highest
probability, and tied if the difference is below a tolerance. `--cublas` names a folder with the real cuBLAS: then each measurement
alternates between the two.
Exit status: 0 all choices are right or tied, 1 some are not, or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

VERSION = "0.3.36"
TOLERANCE = {"f16": 0.1, "bf16": 0.6}
"""Largest difference of log-probabilities that counts as tied."""
HEAD, VOCABULARY = 128, 8192
TEXTS, RUNS = (512, 32), 4
"""Lengths of the texts that are compared, and runs of each. llama.cpp captures a CUDA graph in the second run."""
PROMPTS, DECODED, REPEATS = (32, 128, 512, 2048), 64, 5


# ---- The model ------------------------------------------------------------------------------------------------------


def write_model(path: Path, dtype: str, stored: str, layers: int, width: int) -> None:
    """Write a Llama with random weights that are values of `dtype`, stored as `stored`: f16, bf16 or f32."""
    import gguf

    random = np.random.default_rng(1)
    heads, shared, hidden = width // HEAD, max(1, width // HEAD // 4), width * 11 // 4
    types = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("f16", "bf16", "f32")}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(shared)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int, scale: float) -> None:
        values = (random.standard_normal((rows, columns)) * scale).astype(np.float32)
        rounded = gguf.quants.dequantize(gguf.quants.quantize(values, types[dtype]), types[dtype])
        data = gguf.quants.quantize(rounded.astype(np.float32), types[stored])
        writer.add_tensor(f"{name}.weight", data, raw_dtype=types[stored])

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", VOCABULARY, width, 1.0)
    for layer in range(layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        for name, rows in (("q", width), ("k", shared * HEAD), ("v", shared * HEAD)):
            matrix(f"{block}.attn_{name}", rows, width, width**-0.5)
        matrix(f"{block}.attn_output", width, width, width**-0.5)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", hidden, width, width**-0.5)
        matrix(f"{block}.ffn_up", hidden, width, width**-0.5)
        matrix(f"{block}.ffn_down", width, hidden, hidden**-0.5)
    norm("output_norm")
    matrix("output", VOCABULARY, width, 2 * width**-0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text(length: int) -> list[int]:
    return [3 + at * 104729 % (VOCABULARY - 10) for at in range(length)]


# ---- The process that computes: its libcublas.so.13 is that of LD_LIBRARY_PATH ------------------------------------------


def mapped_libraries() -> list[str]:
    """Return the paths of all libraries of this process with the name of a BLAS of CUDA."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if re.search(r"cublas|nvblas|hgemm", Path(path).name))


@cache
def _silent(api: ModuleType) -> object:
    """Return a log callback that prints nothing. It is kept for ever: llama.cpp may call it until the process ends."""
    return api.llama_log_callback(lambda *given: None)


class Context:
    """A model of llama.cpp, on the GPU or on the CPU."""

    def __init__(self, path: str, gpu: bool) -> None:
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_log_set(_silent(llama_cpp), None)
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 999 if gpu else 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_options)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 2048 + DECODED
        options.n_threads = options.n_threads_batch = min(16, len(os.sched_getaffinity(0)))
        options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp cannot start")

    def close(self) -> None:
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)
        self.api.llama_backend_free()

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def decode(self, tokens: list[int], first: int, all_logits: bool) -> None:
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0] = token, first + at, 1, 0
            batch.logits[at] = all_logits or at + 1 == len(tokens)
        if self.api.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.api.llama_synchronize(self.context)
        self.api.llama_batch_free(batch)

    def log_probabilities(self, tokens: list[int]) -> np.ndarray:
        self.clear()
        self.decode(tokens, 0, True)
        at = self.api.llama_get_logits(self.context)
        logits = np.ctypeslib.as_array(at, shape=(len(tokens), VOCABULARY)).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def work(model: str, result: str, gpu: bool, measure: bool) -> dict:
    """Compute the log-probabilities of a text, or measure prompts and single tokens."""
    context = Context(model, gpu)
    if gpu and not context.api.llama_supports_gpu_offload():
        raise SystemExit("this llama.cpp has no CUDA backend: CMAKE_ARGS=-DGGML_CUDA=on pip install llama-cpp-python")
    if not measure:
        found = [[context.log_probabilities(text(length)) for _ in range(RUNS if gpu else 1)][-1] for length in TEXTS]
        np.save(result, np.concatenate(found))
        context.close()
        return {"libraries": mapped_libraries()}
    rates = {}
    for length in PROMPTS:
        tokens, times = text(length), []
        for _ in range(REPEATS + 1):
            context.clear()
            start = time.perf_counter()
            context.decode(tokens, 0, False)
            times.append(time.perf_counter() - start)
        rates[f"prompt of {length}"] = length / statistics.median(times[1:])
    start = time.perf_counter()
    for at in range(DECODED):
        context.decode([5], length + at, False)
    rates["single tokens"] = DECODED / (time.perf_counter() - start)
    context.close()
    return {"rates": rates, "libraries": mapped_libraries()}


def start(folders: list[Path], *arguments: object, **env: str) -> tuple[dict, str]:
    """Run `work` in a new process whose loader looks in `folders` first. Return its result and its log."""
    path = ":".join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    command = [sys.executable, __file__, "--work", *map(str, arguments)]
    env = {**os.environ, "LD_LIBRARY_PATH": path, "PYTHONFAULTHANDLER": "1", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}): {done.stdout[-500:]}{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def compare(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> dict:
    """Compare the choices of the GPU with the log-probabilities of float32."""
    chosen = np.take_along_axis(wanted, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    behind = wanted.max(axis=1) - chosen
    return {
        "choices": behind.size,
        "right": int((behind == 0).sum()),
        "tied": int(((behind > 0) & (behind <= tolerance)).sum()),
        "wrong": int((~(behind <= tolerance)).sum()),
        "largest difference of a choice's log-probability": float(np.abs(found.max(axis=1) - chosen).max()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path, help="the folder that `hgemm export --blas --to` wrote")
    parser.add_argument("--cublas", type=Path, help="a folder with the real cuBLAS, to compare speed")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--cpu", action="store_true", help="run the models on the CPU, to try this script")
    options = parser.parse_args()
    import llama_cpp

    if llama_cpp.__version__ != VERSION:
        print(
            f"this is llama-cpp-python {llama_cpp.__version__}; the script was written for {VERSION}", file=sys.stderr
        )
    device = "cpu" if options.cpu else "gpu"
    ours = [options.export.resolve() / "lib" / name for name in ("blaslt", "blas")]
    sides: dict[str, tuple[list[Path], dict[str, str]]] = {"hgemm": (ours, {"HGEMM_BLAS_FALLBACK": "none"})}
    if options.cublas:
        sides["cublas"] = ([options.cublas.resolve()], {})
    report: dict = {"llama-cpp-python": llama_cpp.__version__, "choices": {}, "rates": {}}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        place, saved = Path(folder), Path(folder) / "saved.npy"
        for dtype, tolerance in TOLERANCE.items():
            models = {stored: place / f"{dtype}_{stored}.gguf" for stored in (dtype, "f32")}
            for stored, path in models.items():
                write_model(path, dtype, stored, options.layers, options.width)
            start([], models["f32"], saved, "cpu", CUDA_VISIBLE_DEVICES="")  # else the GPU multiplies long prompts
            wanted = np.load(saved)
            models["f32"].unlink()
            for side, (folders, env) in sides.items():
                made, log = start(folders, models[dtype], saved, device, HGEMM_BLAS_LOG="1", **env)
                verdict = compare(np.load(saved), wanted, tolerance)
                wrong += verdict["wrong"] if side == "hgemm" else 0
                lines = [line for line in log.splitlines() if line.startswith("hgemm_blas:")]
                report["choices"][f"{dtype}, {side}"] = {**made, **verdict, "log": lines[-1:]}
                print(f"{dtype}, {side}: {verdict}", *lines[-1:], made["libraries"], sep="\n  ", flush=True)
                print(*(f"  {line}" for line in lines[:-1] if ": hgemm, " not in line), sep="\n", flush=True)
            rates: dict[str, dict[str, list[float]]] = {}
            for _ in range(options.rounds):
                for side, (folders, env) in sides.items():
                    made, _ = start(folders, models[dtype], saved, device, "measure", **env)
                    for task, rate in made["rates"].items():
                        rates.setdefault(task, {}).setdefault(side, []).append(round(rate, 1))
            report["rates"][dtype] = rates
            for task, by_side in rates.items():
                ratios = [a / b for a, b in zip(by_side["hgemm"], by_side.get("cublas", ()), strict=False)]
                numbers = "; ".join(f"{side} {values} tokens/s" for side, values in by_side.items())
                print(f"{dtype}, {task}: {numbers}; ratios {[round(x, 3) for x in ratios]}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("all choices are right or tied" if not wrong else f"{wrong} choices are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    if "--work" in sys.argv:
        model, result, device, *task = sys.argv[sys.argv.index("--work") + 1 :]
        print(json.dumps(work(model, result, device == "gpu", bool(task))))
        raise SystemExit
    try:
        raise SystemExit(main())
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is not installed: {__file__} names what to install in its first lines"
        ) from None
