"""One matrix product as a kernel takes it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_EXTENT = 2**31 - 1024
"""Largest m, n, k and batch: 32-bit indices run past the edge by less than the tiles of a cluster, 4 of at most 256.

The C library has the same bound; how many batches launch depends on their CTA tiles, too.
"""
PROBLEM_BYTES = 144
_LAYOUT = struct.Struct("<6Q4q5q4i2f")


@dataclass(frozen=True)
class Problem:
    """D = activation(alpha * A B + beta * C + bias), `batch` times, as templates/hgemm/problem.cuh declares it.

    Units: pointers are device addresses, 0 for none; leading dimensions and batch strides are elements; a batch stride
        of 0 uses one matrix for all.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    bias: int = 0
    workspace: int = 0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    ldd: int = 0
    batch_stride_a: int = 0
    batch_stride_b: int = 0
    batch_stride_c: int = 0
    batch_stride_d: int = 0
    batch_stride_bias: int = 0
    alpha: float = 1.0
    beta: float = 0.0

    def pack(self) -> bytes:
        """Return the 144 bytes that the kernel takes by value."""
        pointers = (self.a, self.b, self.c, self.d, self.bias, self.workspace)
        leading = (self.lda, self.ldb, self.ldc, self.ldd)
        strides = (
            self.batch_stride_a,
            self.batch_stride_b,
            self.batch_stride_c,
            self.batch_stride_d,
            self.batch_stride_bias,
        )
        sizes = (self.m, self.n, self.k, self.batch)
        return _LAYOUT.pack(*pointers, *leading, *strides, *sizes, self.alpha, self.beta)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch
