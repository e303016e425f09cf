"""Kernels in Triton for training: what torch has no single operation for."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hgemm.epilogue import PAIR_COLUMNS

BLOCK, WARPS = 2048, 4
"""Columns of the gradient that a program computes, and its warps."""


@triton.jit
def _scaled_pairs(
    gradient: Any, gate: Any, up: Any, result: Any, columns: Any, stride: Any, BLOCK: tl.constexpr, PAIR: tl.constexpr
) -> None:
    """Compute BLOCK columns of one row of the gradient."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    scale = tl.load(gradient + row * stride + at, mask=inside).to(tl.float32)
    to = result + row * 2 * columns + at // PAIR * (2 * PAIR) + at % PAIR
    of_gate = tl.load(gate + row * columns + at, mask=inside).to(tl.float32)
    of_up = tl.load(up + row * columns + at, mask=inside).to(tl.float32)
    tl.store(to, scale * of_gate, mask=inside)
    tl.store(to + PAIR, scale * of_up, mask=inside)


def scaled_pairs(gradient: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """Return the products of a gradient with two dense matrices, in alternating blocks of PAIR_COLUMNS columns.

    Shapes: all (..., n), the result (..., 2 n).
    """
    columns = gradient.shape[-1]
    rows = gradient.reshape(-1, columns)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    result = gate.new_empty((*gradient.shape[:-1], 2 * columns))
    grid = (rows.shape[0], triton.cdiv(columns, BLOCK))
    with torch.cuda.device_of(gradient):
        _scaled_pairs[grid](
            rows, gate, up, result, columns, rows.stride(0), BLOCK=BLOCK, PAIR=PAIR_COLUMNS, num_warps=WARPS
        )
    return result
