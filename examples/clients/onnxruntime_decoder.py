"""Run the unmodified wheel of ONNX Runtime on kernels of this library, and compare it with float32 on the CPU and with cuBLAS.

    pip install onnxruntime-gpu==1.31.1 onnx nvidia-cuda-runtime nvidia-curand
    generate --catalog --arch sm_90,sm_90a
    hgemm export --blas --to build/hgemm
    python examples/clients/onnxruntime_decoder.py build/hgemm [--cuda FOLDER] [--cublas FOLDER] [--json FILE]

The CUDA provider of ONNX Runtime links libcublas.so.13 and libcublasLt.so.13, and gets libhgemm_blas.so. A decoder with random
weights computes in f16 and bf16. `--cuda` names the folder of libcudart.so.13 and libcurand.so.10, if the loader does not find
them. `--cublas` names a folder with the real libcublas.so.13: then each measurement alternates between the two.
Exit status: 0 the results agree with float32, 1 they do not, or ONNX Runtime finds no GPU.
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
from pathlib import Path

import numpy as np

VERSION = "1.31.1"
TOLERANCE = {"f16": 0.02, "bf16": 0.1}
"""Largest difference from float32, as a part of the largest value."""
SHAPES = ((1, 1), (8, 1), (1, 128), (8, 512))
"""Texts and tokens of the runs."""
REPEATS, CALLS = 7, 20
ELEMENTS = {"f32": 1, "f16": 10, "bf16": 16}
"""The types of onnx.TensorProto."""


# ---- The model ------------------------------------------------------------------------------------------------------


def decoder(dtype: str, layers: int, width: int, heads: int) -> bytes:
    """Return a decoder without an embedding: x (batch, tokens, width) in f32 to y of the same shape. Its weights are f16 values."""
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, weights = [], []

    def add(operator: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def ints(*values: int) -> str:
        weights.append(numpy_helper.from_array(np.array(values, np.int64), f"i{len(weights)}"))
        return weights[-1].name

    def weight(*shape: int, one: bool = False) -> str:
        values = (
            np.ones(shape) if one else random.standard_normal(shape) * (0.02 if len(shape) == 1 else shape[0] ** -0.5)
        )
        weights.append(numpy_helper.from_array(values.astype(np.float16).astype(np.float32), f"w{len(weights)}"))
        return add("Cast", weights[-1].name, to=ELEMENTS[dtype])

    def normed(x: str) -> str:
        return add("LayerNormalization", x, weight(width, one=True), weight(width), axis=-1)

    def linear(x: str, k: int, n: int) -> str:
        return add("Add", add("MatMul", x, weight(k, n)), weight(n))

    def split_heads(x: str, order: tuple[int, ...]) -> str:
        return add("Transpose", add("Reshape", x, ints(0, 0, heads, width // heads)), perm=order)

    x = add("Cast", "x", to=ELEMENTS[dtype])
    weights.append(numpy_helper.from_array(np.array([(width / heads) ** -0.5], np.float32), "scale"))
    scale = add("Cast", "scale", to=ELEMENTS[dtype])
    for _ in range(layers):
        h = normed(x)
        q, k, v = (linear(h, width, width) for _ in range(3))
        q, k, v = split_heads(q, (0, 2, 1, 3)), split_heads(k, (0, 2, 3, 1)), split_heads(v, (0, 2, 1, 3))
        scores = add("Softmax", add("Mul", add("MatMul", q, k), scale), axis=-1)
        mixed = add("Transpose", add("MatMul", scores, v), perm=(0, 2, 1, 3))
        x = add("Add", x, linear(add("Reshape", mixed, ints(0, 0, width)), width, width))
        x = add("Add", x, linear(add("Relu", linear(normed(x), width, 4 * width)), 4 * width, width))
    nodes.append(helper.make_node("Cast", [normed(x)], ["y"], to=ELEMENTS["f32"]))
    ends = [helper.make_tensor_value_info(name, ELEMENTS["f32"], ["batch", "tokens", width]) for name in "xy"]
    graph = helper.make_graph(nodes, "decoder", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def given(batch: int, tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(batch * 1000 + tokens).standard_normal((batch, tokens, width)).astype(np.float32)


# ---- The process that computes: its libcublas.so.13 is that of LD_LIBRARY_PATH ------------------------------------------


def mapped_libraries() -> list[str]:
    """Return the paths of all libraries of this process with the name of a BLAS of CUDA."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if re.search(r"cublas|nvblas|hgemm", Path(path).name))


def work(model: str, results: str, width: int, measure: bool) -> dict:
    """Compute each shape on the GPU, or measure it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise SystemExit("ONNX Runtime could not start its CUDA provider")
    arrays, rates = {}, {}
    for batch, tokens in SHAPES:
        x = given(batch, tokens, width)
        if not measure:
            arrays[f"{batch}x{tokens}"] = session.run(None, {"x": x})[0]
            continue
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
        binding.bind_output("y", "cuda")

        def seconds(binding=binding) -> float:
            start = time.perf_counter()
            for _ in range(CALLS):
                session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            return time.perf_counter() - start

        seconds()
        rates[f"{batch} x {tokens}"] = CALLS * batch * tokens / statistics.median(seconds() for _ in range(REPEATS))
    if not measure:
        np.savez(results, **arrays)
    return {"rates": rates, "libraries": mapped_libraries()}


def start(folders: list[Path], *arguments: object, **env: str) -> tuple[dict, str]:
    """Run `work` in a new process whose loader looks in `folders` first. Return its result and its log."""
    path = ":".join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    command = [sys.executable, __file__, "--work", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": path, **env}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ONNX Runtime failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path, help="the folder that `hgemm export --blas --to` wrote")
    parser.add_argument("--cuda", type=Path, help="the folder of libcudart.so.13 and libcurand.so.10")
    parser.add_argument("--cublas", type=Path, help="a folder with the real libcublas.so.13, to compare speed")
    parser.add_argument("--dtype", default="f16,bf16")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    import onnxruntime

    if onnxruntime.__version__ != VERSION:
        print(f"this is ONNX Runtime {onnxruntime.__version__}; the script was written for {VERSION}", file=sys.stderr)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print("this ONNX Runtime has no CUDA provider: pip install onnxruntime-gpu")
        return 1
    others = [options.cuda.resolve()] if options.cuda else []
    ours = [*(options.export.resolve() / "lib" / name for name in ("blaslt", "blas")), *others]
    sides: dict[str, tuple[list[Path], dict[str, str]]] = {"hgemm": (ours, {"HGEMM_BLAS_FALLBACK": "none"})}
    if options.cublas:
        sides["cublas"] = ([options.cublas.resolve(), *others], {})
    report: dict = {"onnxruntime": onnxruntime.__version__, "results": {}, "rates": {}}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        shape = options.layers, options.width, options.width // 128
        dtypes = options.dtype.split(",")
        for dtype in ("f32", *dtypes):
            (Path(folder) / f"{dtype}.onnx").write_bytes(decoder(dtype, *shape))
        cpu = onnxruntime.InferenceSession(f"{folder}/f32.onnx", providers=["CPUExecutionProvider"])
        wanted = {f"{b}x{t}": cpu.run(None, {"x": given(b, t, options.width)})[0] for b, t in SHAPES}
        for dtype in dtypes:
            tolerance = TOLERANCE[dtype]
            model = Path(folder) / f"{dtype}.onnx"
            for side, (folders, env) in sides.items():
                made, log = start(folders, model, f"{folder}/found.npz", options.width, HGEMM_BLAS_LOG="1", **env)
                found = np.load(f"{folder}/found.npz")
                errors = {name: float(np.abs(found[name] - y).max() / np.abs(y).max()) for name, y in wanted.items()}
                worst = max(errors.values())
                wrong += side == "hgemm" and not worst <= tolerance
                lines = log.strip().splitlines()
                summary = next((line for line in reversed(lines) if line.startswith("hgemm_blas:")), "")
                report["results"][f"{dtype}, {side}"] = {**made, "errors": errors, "log": summary}
                print(f"{dtype}, {side}: largest error {worst:.4f} (at most {tolerance})", flush=True)
                print(f"  {summary}\n  {made['libraries']}", flush=True)
                others_ran = sorted(
                    line for line in lines if line.startswith("hgemm_blas: cublas") and ": hgemm, " not in line
                )
                print(*(f"  {line}" for line in others_ran[:12]), sep="\n", flush=True)
            rates: dict[str, dict[str, list[float]]] = {}
            for _ in range(options.rounds):
                for side, (folders, env) in sides.items():
                    made, _ = start(folders, model, "-", options.width, "measure", **env)
                    for task, rate in made["rates"].items():
                        rates.setdefault(task, {}).setdefault(side, []).append(round(rate, 1))
            report["rates"][dtype] = rates
            for task, by_side in rates.items():
                ratios = [a / b for a, b in zip(by_side["hgemm"], by_side.get("cublas", ()), strict=False)]
                numbers = "; ".join(f"{side} {values} tokens/s" for side, values in by_side.items())
                print(f"{dtype}, {task}: {numbers}; ratios {[round(x, 3) for x in ratios]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("the results agree" if not wrong else "results differ")
    return int(wrong > 0)


if __name__ == "__main__":
    if "--work" in sys.argv:
        model, results, width, *task = sys.argv[sys.argv.index("--work") + 1 :]
        print(json.dumps(work(model, results, int(width), bool(task))))
        raise SystemExit
    try:
        raise SystemExit(main())
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is not installed: {__file__} names what to install in its first lines"
        ) from None
