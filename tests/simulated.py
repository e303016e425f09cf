"""A model of the tensor cores' arithmetic and of a whole kernel, in NumPy, with faults that can be switched on."""

from __future__ import annotations

import ctypes
import itertools
import math

import numpy as np

from hgemm.dtypes import DTYPES, decode, encode
from hgemm.epilogue_reference import Interval, evaluate_all
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS, Matrix, matrices
from hgemm.launch_traits import INPUT, OUTPUT, LaunchTraits
from hgemm.problem import LAUNCH, Problem
from hgemm.reference import ACTIVATION_FORMULAS, steps_of

# What a kernel is, as its record says; tests replace fields.
RECORD = {
    "symbol": "hgemm_test",
    "arch": "sm_90",
    "spec": {
        "layout": "tn",
        "dtype_a": "f16",
        "dtype_b": "f16",
        "dtype_d": "f16",
        "acc": "f32",
        "cta_tile": "32x48x16",
        "beta": True,
        "bias": "none",
        "activation": "none",
    },
    "launch": {
        "threads": 64,
        "smem_bytes": 4096,
        "cluster": [1, 1, 1],
        "grid": {"rule": "one_tile", "tile_m": 32, "tile_n": 48, "splits": 1},
    },
    "traits": {
        "min_align": {"a": 8, "b": 8, "d": 8},
        "workspace": {"partial_bytes": 0},
    },
}

_LAUNCHES = itertools.count()


def record(
    rule: str = "one_tile", splits: int = 1, align: tuple[int, int, int] = (8, 8, 8), max_ctas: int = 0, **spec
) -> dict:
    """Return a record with some fields replaced; split-K and stream-K get their workspaces, the latter for 10 CTAs."""
    most = 10 if rule == "stream_k" else max_ctas
    grid = {**RECORD["launch"]["grid"], "rule": rule, "splits": splits, **({"max_ctas": most} if most else {})}
    workspace = {
        "partial_bytes": 32 * 48 * 4 if rule in ("split_k", "stream_k", "launch") else 0,
    }
    return {
        **RECORD,
        "arch": spec.pop("arch", RECORD["arch"]),
        "spec": {**RECORD["spec"], **spec},
        "launch": {**RECORD["launch"], "grid": grid},
        "traits": {"min_align": dict(zip("abd", align)), "workspace": workspace},
    }


# ---- Arithmetic -----------------------------------------------------------------------------------------------------


def cut(values: np.ndarray, bits: int) -> np.ndarray:
    """Cut numbers off after `bits` significant bits, towards zero."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def tensor_core(a: np.ndarray, b: np.ndarray, start: np.ndarray, group: int, bits: int, halves: bool) -> np.ndarray:
    """Add a (m, k) b (k, n) to `start` as tensor cores do, `group` of k at a time, terms cut `bits` below the largest one."""
    total = start
    for at in range(0, a.shape[1], group):
        products = a[:, None, at : at + group] * b[at : at + group].T[None]
        terms = np.concatenate([total[..., None], products], axis=-1)
        _, exponent = np.frexp(np.max(np.abs(terms), axis=-1, keepdims=True))
        unit = np.ldexp(1.0, exponent - 1 - bits)
        total = np.sum(np.trunc(terms / unit) * unit, axis=-1)
        total = total.astype(np.float16).astype(np.float64) if halves else cut(total, 24)
    return total


def accumulate(traits: LaunchTraits, a: np.ndarray, b: np.ndarray, group: int = 8, bits: int = 25) -> np.ndarray:
    """Return A B as a kernel computes it. Shapes: a (m, k), b (k, n)."""
    k_tiles = -(-a.shape[1] // traits.tile_k)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for split in range(traits.splits):
        each, longer = divmod(k_tiles, traits.splits)
        first, last = ((at * each + min(at, longer)) * traits.tile_k for at in (split, split + 1))
        tiles = [slice(*tile) for tile in steps_of(traits, first, min(last, a.shape[1]), traits.tile_k)]
        part = np.zeros_like(total)
        for chain in [[tile] for tile in tiles] if traits.acc == "f16_promoted" else [tiles]:
            sums = np.zeros(part.shape)
            for tile in chain:
                sums = tensor_core(a[:, tile], b[tile], sums, group, bits, traits.acc != "f32")
            part = part + sums.astype(np.float32)
        total = total + part
    return total


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """Evaluate an activation in f32, as the kernel's epilogue does."""
    one = np.float32(1)
    if name == "gelu":
        erf = np.frompyfunc(math.erf, 1, 1)(x * np.float32(0.70710678)).astype(np.float32)
        return np.float32(0.5) * x * (one + erf)
    if name == "silu":
        with np.errstate(over="ignore"):
            return x / (one + np.exp(-x))
    return ACTIVATION_FORMULAS[name].function(x).astype(np.float32)  # x is f32, and so is the arithmetic


# ---- A whole launch on the host's memory ----------------------------------------------------------------------------


def elements(matrix: Matrix, dtype: str) -> np.ndarray:
    """Return a view of a matrix in memory. Shapes: (batch, rows, columns)."""
    memory = (ctypes.c_uint8 * (matrix.end - matrix.pointer)).from_address(matrix.pointer)
    item = matrix.element_bytes
    strides = (matrix.batch_stride * item, matrix.leading * item, item)
    stored = np.frombuffer(memory, DTYPES[dtype].storage)
    return np.lib.stride_tricks.as_strided(stored, (matrix.batch, matrix.rows, matrix.columns), strides)


def expression(traits: LaunchTraits, problem: Problem) -> None:
    """Compute all results of an expression in the host's memory. Their types are the only roundings."""
    found = matrices(problem, traits)
    a, b = (decode(elements(found[name], "f16"), "f16") for name in "AB")
    inputs = {"alpha": np.float32(problem.alpha), "beta": np.float32(problem.beta)}
    for one, aux in zip(traits.epilogue.operands, problem.aux):
        if INPUT + one.name not in found:
            inputs[one.name] = np.float32(aux.value)
            continue
        dtype = "f32" if one.kind == "scalar" else one.of("f16")
        values = decode(elements(found[INPUT + one.name], dtype), dtype)
        inputs[one.name] = values.swapaxes(1, 2) if one.kind == "column" else values
    products = np.stack([accumulate(traits, a[at], b[at].T) for at in range(problem.batch)])
    results = evaluate_all(traits.epilogue, Interval.around(products.astype(np.float64)), inputs)
    types = ("f16", *(one.of("f16") for one in traits.outputs))
    for name, dtype, result in zip(("D", *(OUTPUT + one.name for one in traits.outputs)), types, results):
        values = result.exact.swapaxes(1, 2) if name != "D" and result.exact.shape[2] == 1 else result.exact
        elements(found[name], dtype)[...] = encode(values, dtype)


def launch(traits: LaunchTraits, problem: Problem, faults: frozenset[str] = frozenset()) -> None:
    """Compute a problem in the host's memory as a kernel would, or as one with faults would."""
    places = matrices(problem, traits)
    if traits.epilogue:
        expression(traits, problem)
        return _misbehave(traits, problem, places, elements(places["D"], traits.dtype_d), faults)
    a = decode(elements(places["A"], traits.dtype_a), traits.dtype_a)
    b = decode(elements(places["B"], traits.dtype_b), traits.dtype_b)
    a = a if traits.a_k_major else a.swapaxes(1, 2)
    b = b.swapaxes(1, 2) if traits.b_k_major else b
    if "drops an element of k" in faults:
        a = a.copy()
        a[..., problem.k // 2] = 0
    if "reads past k" in faults and traits.a_k_major and places["A"].leading > problem.k:
        a = a + decode(np.array([0xFFFF], np.uint16).view("<f2"), "f16") * 0
    d = elements(places["D"], traits.dtype_d)
    c = decode(elements(places["C"], traits.dtype_d), traits.dtype_d) if "C" in places else None
    bias = decode(elements(places["bias"], traits.dtype_d), traits.dtype_d) if "bias" in places else None
    kind = problem.bias_kind if traits.bias == LAUNCH else traits.bias
    for batch in range(problem.batch):
        x = np.float32(problem.alpha) * accumulate(traits, a[batch], b[0 if "takes one B" in faults else batch])
        if c is not None:
            x = x + np.float32(problem.beta) * c[batch].astype(np.float32)
        if bias is not None:
            x = x + (bias[batch] if kind == "row" else bias[batch].T).astype(np.float32)
        x[np.isnan(x)] = np.nan  # hardware makes one NaN of all
        d[batch] = encode(activate(traits.activation, x), traits.dtype_d)
    _misbehave(traits, problem, places, d, faults)


def _misbehave(
    traits: LaunchTraits, problem: Problem, places: dict[str, Matrix], d: np.ndarray, faults: frozenset[str]
) -> None:
    def poke(address: int, value: int = 7) -> None:
        ctypes.c_uint8.from_address(address).value = value

    if "leaves an element" in faults:
        d[-1, -1, -1] = np.array([0xFFFF], "<u2").view(d.dtype)[0]
    if "negates D" in faults:
        d.view("u2")[...] ^= 0x8000
    if "writes before D" in faults:
        poke(problem.d - 1)
    if "writes after D" in faults:
        poke(places["D"].end)
    if "writes the padding" in faults and problem.ldd > problem.n and problem.m > 1:
        poke(problem.d + problem.n * places["D"].element_bytes)
    if "writes to A" in faults:
        poke(problem.a)
    if "writes after B" in faults:
        poke(places["B"].end + 3)
    if problem.workspace and "leaves a counter" in faults:
        poke(problem.workspace)
    if problem.workspace and "writes partial sums" in faults:
        poke(problem.workspace + WORKSPACE_COUNTERS * COUNTER_BYTES)
    if "is not repeatable" in faults:
        d.view("u1")[0, 0, 0] ^= next(_LAUNCHES) % 256  # another byte at each launch
