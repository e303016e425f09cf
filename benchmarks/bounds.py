"""Print the largest error of each arithmetic as a share of its bound, and what the bounds reject.

    python -m benchmarks.bounds [--side 100] [--k 64,512,2048] [--json FILE]

Computes SIDE x SIDE dot products of normal numbers as the CPU executor and as tensor cores do, and compares them with the bound
of hgemm/reference.py. A share of 0.25 means that the bound is 4 times the largest error. `largest` is the share of D, whose
rounding is part of the limit; `of sums` is that of the accumulators. `lost` is the share of products of which the bound rejects
the result without one of its terms. `rounded` is that of results with one k-tile rounded to f16.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generator.tables import to_text
from hgemm.dtypes import decode, encode, representable
from hgemm.launch_traits import LaunchTraits
from hgemm.reference import OperandValues, reference

TILE_K = 32


@dataclass(frozen=True)
class Arithmetic:
    """How products are added to an accumulator.

    Fields: `group` products are added at once, their terms cut below `fraction_bits`; 0 adds one product at a time in f32 and
        rounds to nearest. f16 sums are rounded to nearest after each `depth` products.
    """

    name: str
    arch: str
    mma: str
    group: int = 0
    fraction_bits: int = 0
    depth: int = 16


ARITHMETIC = (
    Arithmetic("executor", "sm_80", "m16n8k16"),
    Arithmetic("Turing", "sm_75", "m16n8k8", 8, 24, 8),
    Arithmetic("Ampere", "sm_80", "m16n8k16", 8, 24, 8),
    Arithmetic("Hopper, kernels for sm_80", "sm_80", "m16n8k16", 16, 25),
    Arithmetic("executor", "sm_90a", "m64n128k16"),
    Arithmetic("Hopper", "sm_90a", "m64n128k16", 16, 25),
)
"""Source: as hgemm/reference.py."""


def cut(values: np.ndarray, bits: int) -> np.ndarray:
    """Cut numbers off after `bits` significant bits, towards 0."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def chain(way: Arithmetic, products: np.ndarray, halves: bool) -> np.ndarray:
    """Return the sums of products in one accumulator. Shapes: products (count, k)."""
    total = np.zeros(len(products))
    for at in range(0, products.shape[1], way.depth):
        if way.group:
            terms = np.concatenate([total[:, None], products[:, at : at + way.group]], axis=1)
            exponent = np.frexp(np.max(np.abs(terms), axis=1, keepdims=True))[1]
            unit = np.ldexp(1.0, exponent - 1 - way.fraction_bits)
            total = np.sum(np.trunc(terms / unit) * unit, axis=1)
        else:
            for column in products[:, at : at + way.depth].T:
                total = (total + column).astype(np.float32).astype(np.float64)
        total = total.astype(np.float16).astype(np.float64) if halves else cut(total, 24)
    return total


def accumulated(way: Arithmetic, acc: str, products: np.ndarray, promote_every: int = 1) -> np.ndarray:
    """Return the accumulators of a kernel with k-tiles of TILE_K. Shapes: products (count, k), k a multiple of TILE_K."""
    if acc != "f16_promoted":
        return chain(way, products, acc == "f16")
    total, step = np.zeros(len(products), np.float32), promote_every * TILE_K
    for at in range(0, products.shape[1], step):
        total = total + chain(way, products[:, at : at + step], True).astype(np.float32)
    return total.astype(np.float64)


def traits_of(way: Arithmetic, acc: str, dtype: str, dtype_d: str) -> LaunchTraits:
    """Return the traits of a plain kernel."""
    return LaunchTraits(
        symbol="", arch=way.arch, layout="tn", dtype_a=dtype, dtype_b=dtype, dtype_d=dtype_d, acc=acc, beta=False,
        bias="none", activation="none", tile_m=64, tile_n=64, tile_k=TILE_K, align_a=8, align_b=8, align_d=8, threads=128,
        smem_bytes=0, cluster=(1, 1, 1), grid_rule="one_tile", splits=1, partial_bytes=0, persistent=False, mma=way.mma,
        copy="cp_async" if way.mma.startswith("m16") else "tma",
    )  # fmt: skip


def rows(side: int, depths: list[int], seed: int = 0) -> Iterator[dict[str, object]]:
    """Yield one row for each arithmetic, type and k."""
    for k in depths:
        normal = np.random.default_rng([seed, k]).standard_normal((2, side, k), np.float32)
        for way in ARITHMETIC:
            for dtype, acc, dtype_d in TYPES:
                if dtype != "bf16" or way.arch != "sm_75":
                    yield row(way, *(representable(one, dtype) for one in normal), dtype, acc, dtype_d)


TYPES = (
    ("f16", "f32", "f32"),
    ("f16", "f32", "f16"),
    ("bf16", "f32", "bf16"),
    ("f16", "f16", "f16"),
    ("f16", "f16_promoted", "f32"),
)
"""Types of A and B, of the accumulator, and of D."""


def row(way: Arithmetic, a: np.ndarray, b: np.ndarray, dtype: str, acc: str, dtype_d: str) -> dict[str, object]:
    """Return the shares of one arithmetic. Shapes: a (m, k), b (n, k)."""
    products = (a[:, None] * b).reshape(-1, a.shape[1])
    count, k = products.shape
    expected = reference(traits_of(way, acc, dtype, dtype_d), OperandValues(a[None], b.T[None]))

    def ratio(sums: np.ndarray) -> np.ndarray:
        found = decode(encode(sums, dtype_d), dtype_d).reshape(expected.values.shape)
        return expected.error_ratio(found).reshape(-1)

    sums = accumulated(way, acc, products)
    error = np.abs(sums - expected.values.reshape(-1))
    lost, rounded = products.copy(), products.copy()
    lost[np.arange(count), np.arange(count) % k] = 0
    first = k // 2 // TILE_K * TILE_K
    tile = accumulated(way, "f32", products[:, first : first + TILE_K])
    rounded[:, first : first + TILE_K] = 0
    rounded[:, first] = tile.astype(np.float16)
    return {
        "arithmetic": way.name,
        "arch": way.arch,
        "types": f"{dtype} {acc} {dtype_d}",
        "k": k,
        "largest": round(float(np.max(ratio(sums))), 3),
        "of sums": round(float(np.max(error / expected.bound.reshape(-1))), 3),
        "lost": round(float(np.mean(ratio(accumulated(way, acc, lost)) > 1)), 4),
        "rounded": round(float(np.mean(ratio(accumulated(way, acc, rounded)) > 1)), 4) if acc == "f32" else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=100)
    parser.add_argument("--k", default="64,512,2048")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    args = parser.parse_args()
    found = list(rows(args.side, [int(k) for k in args.k.split(",")]))
    print(to_text(found, [*found[0]]), end="")
    if args.json:
        texts = [json.dumps(one) for one in found]
        lines = [", ".join(texts[at : at + 12]) for at in range(0, len(texts), 12)]
        args.json.write_text("[\n " + ",\n ".join(lines) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
