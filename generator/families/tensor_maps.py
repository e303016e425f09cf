"""Operands that TMA loads: their swizzle in shared memory, the bytes of stages, and the parameters of kernels with tensor maps."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.spec import Smem
from hgemm.dtypes import VECTOR_BYTES
from hgemm.launch import MAP_BYTES
from hgemm.problem import PROBLEM_BYTES
from hgemm.tensor_maps import MAPS, MAPS_WITH_EDGES, LoadBoxes

PART_BYTES = 1024
"""Period of the widest swizzle. Each part of shared memory starts at a multiple of it."""

MAP_ALIGN_BYTES = 64
"""Source: CUDA driver API, CUtensorMap."""

PARAM_BASE_BYTES = {90: 0x210}
LATER_PARAM_BASE_BYTES = 0x380
"""Offset of the parameters in a kernel's constant bank; alignment counts from the bank's start (found in its SASS)."""


def param_bytes(arch: str, operands_bytes: int = 0, edge_maps: bool = False) -> int:
    """Return the bytes of a kernel's parameters: the problem with the inputs of an expression, then the tensor maps."""
    base = PARAM_BASE_BYTES.get(ARCHS[arch].number, LATER_PARAM_BASE_BYTES)
    end = base + PROBLEM_BYTES + operands_bytes
    maps_at = -(-end // MAP_ALIGN_BYTES) * MAP_ALIGN_BYTES - base
    return maps_at + (MAPS_WITH_EDGES if edge_maps else MAPS) * MAP_BYTES


class OperandBoxes(LoadBoxes):
    """One stage of A or B as TMA loads it and the tensor instructions read it."""

    @property
    def smem(self) -> Smem:
        """The swizzle in elements. 128 bytes are eight 16-byte vectors, so 3 bits are XORed."""
        vector = VECTOR_BYTES // self.element_bytes
        return Smem("xor", ((self.row_bytes // VECTOR_BYTES).bit_length() - 1, vector.bit_length() - 1, 3))

    @property
    def by_ldmatrix(self) -> bool:
        """Whether ldmatrix can read the fragments. It transposes elements of 2 bytes only."""
        return self.k_major or self.element_bytes == 2


def stages_bytes(stages: int, a: OperandBoxes, b: OperandBoxes) -> int:
    """Return the bytes of all stages of A, then of all stages of B."""
    return whole_parts(stages * a.stage_bytes) + whole_parts(stages * b.stage_bytes)


def whole_parts(size_bytes: int) -> int:
    """Round a size up to where the next part may start."""
    return -(-size_bytes // PART_BYTES) * PART_BYTES
