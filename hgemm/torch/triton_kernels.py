"""Kernels in Triton for training: what torch has no single operation for."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hgemm.epilogue import PAIR_COLUMNS

BLOCK, WARPS = 4096, 8
"""Columns of the result that a program computes, and its warps."""


@triton.jit
def _scaled_pairs(gradient, gate, up, result, columns, stride, BLOCK: tl.constexpr, PAIR: tl.constexpr):
    """Compute BLOCK columns of one row of the result. `columns` are those of the gradient."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = at // (2 * PAIR) * PAIR + at % PAIR
    inside = at < 2 * columns
    of_gate = at // PAIR % 2 == 0
    scale = tl.load(gradient + row * stride + source, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(gate + row * columns + source, mask=inside & of_gate, other=0.0)
    second = tl.load(up + row * columns + source, mask=inside & (at // PAIR % 2 == 1), other=0.0)
    factor = tl.where(of_gate, first, second).to(tl.float32)
    tl.store(result + row * 2 * columns + at, scale * factor, mask=inside)


def scaled_pairs(gradient: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """Return the products of a gradient with two dense matrices, in alternating blocks of PAIR_COLUMNS columns.

    Shapes: all (..., n), the result (..., 2 n).
    """
    columns = gradient.shape[-1]
    rows = gradient.reshape(-1, columns)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    result = gate.new_empty((*gradient.shape[:-1], 2 * columns))
    grid = (rows.shape[0], triton.cdiv(2 * columns, BLOCK))
    with torch.cuda.device_of(gradient):
        _scaled_pairs[grid](
            rows, gate, up, result, columns, rows.stride(0), BLOCK=BLOCK, PAIR=PAIR_COLUMNS, num_warps=WARPS
        )
    return result
