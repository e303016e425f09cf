"""Kernels whose producer loads A and B: the swizzles in shared memory, stages, registers, and the parameters with tensor maps."""

from __future__ import annotations

from typing import Any

from generator.arch import ARCHS
from generator.families.base import IN_ORDER, Plan
from generator.spec import Smem
from hgemm.dtypes import VECTOR_BYTES
from hgemm.launch import MAP_BYTES
from hgemm.problem import LAUNCH, PROBLEM_BYTES
from hgemm.tensor_maps import MAPS, MAPS_WITH_EDGES, LoadBoxes

PART_BYTES = 1024
"""Period of the widest swizzle. Each part of shared memory starts at a multiple of it."""

REGISTER_STEP = 8
"""Granularity of setmaxnreg. Source: PTX ISA 9.0, setmaxnreg: multiples of 8 from 24 to 256."""

BARRIER_BYTES, ANSWER_BYTES = 8, 4
"""Bytes of an mbarrier, and of the result of split-K's counter."""

DIRECT_BYTES = 16
"""Placeholder for the staged rows if threads store D from registers."""

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


def whole_parts(size_bytes: int) -> int:
    """Round a size up to where the next part may start."""
    return -(-size_bytes // PART_BYTES) * PART_BYTES


class ProducerPlan(Plan):
    """The plan of a kernel with consumers, which multiply, and then a producer, which loads and may give them its registers.

    A family adds the kernel's operands `a` and `b`, the `tensor_maps`, and `rebalanced`: the registers that a producer's and a
    consumer's thread change to, or (0, 0).
    """

    k_order = IN_ORDER  # TMA fills a ragged k-tile with zeros, which change no sum
    bank_conflicts = 0
    """None: in the swizzles of TMA, the 8 rows of 16 bytes that are read at once lie in different banks."""

    @property
    def stage_bytes(self) -> int:
        return self.a.stage_bytes + self.b.stage_bytes

    @property
    def mainloop_bytes(self) -> int:
        """All stages of A, then all stages of B."""
        return sum(whole_parts(self.spec.stages * operand.stage_bytes) for operand in (self.a, self.b))

    @property
    def rebalances_registers(self) -> bool:
        return any(self.rebalanced)

    @property
    def max_registers(self) -> int:
        return self.rebalanced[1] or self.launch_registers

    @property
    def persistent(self) -> bool:
        return self.spec.schedule.kind in ("persistent", LAUNCH)

    def placements(self) -> dict[str, Any]:
        return {f"box_{tensor_map.operand}": "x".join(map(str, tensor_map.box)) for tensor_map in self.tensor_maps}
