"""The plan of a kernel on mma.sync with copies by TMA: its warps, shared memory, registers and tensor maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.families.mma_sync.plan import MMA_ROWS, MmaSyncPlan
from generator.families.tensor_maps import (
    ANSWER_BYTES,
    BARRIER_BYTES,
    DIRECT_BYTES,
    REGISTER_STEP,
    OperandBoxes,
    ProducerPlan,
    whole_parts,
)
from hgemm.problem import LAUNCH, LONG_ACTIVATIONS
from hgemm.tensor_maps import TensorMap

NAME = "mma_sync_tma"

WARPGROUP_WARPS = 4
"""Warps that setmaxnreg changes together. Source: PTX ISA 9.0, setmaxnreg."""

PRODUCER_REGISTERS = 24
"""Registers of a producer's thread: the fewest that setmaxnreg allows. Its loop does not spill with them."""

TEMPORARIES, PERSISTENT, CURVE, ONE_TILE = 16, 2, 12, -6
FRAGMENT, FRAGMENT_AHEAD = 1.05, 0.5
EPILOGUE = 38
"""Registers of a consumer's thread in addition to its accumulators, in the terms of mma_sync/plan.py.

Fitted to ptxas 13.0 for warp tiles 64x64, 128x64, 64x128, 96x64, 64x88 and smaller ones. One tile per CTA takes fewer if
accumulators are f32, halves lie along k, and only C is added: none of 32 accepted kernels spills. Persistent kernels may.
"""

WIDE_COLUMNS = 64
"""With more columns of a warp tile, two rows of A's fragments are read far enough ahead."""


@dataclass(frozen=True)
class TmaPlan(ProducerPlan, MmaSyncPlan):
    """The plan of a kernel on mma.sync with copies by TMA.

    A CTA has consumer warps, which multiply, and then a producer, one of whose threads loads. The producer is a warp, or a
    warpgroup that gives most of its registers to the consumers if they need them and the architecture has setmaxnreg.
    """

    @cached_property
    def fixed_fields(self) -> dict[str, Any]:
        """Operands lie as TMA swizzles them, in dynamic shared memory."""
        return {
            **super().fixed_fields,
            "smem_a": self.a.smem,
            "smem_b": self.b.smem,
            "smem_alloc": "dynamic",
            "form": "atoms",
            "pointer_arrays": False,
        }

    @property
    def warps(self) -> int:
        """Consumer warps."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        return self._threads(any(self.rebalanced))

    def _threads(self, changing: bool) -> int:
        return (self.warps + (WARPGROUP_WARPS if changing else 1)) * ARCHS[self.spec.arch].limits.warp_threads

    @cached_property
    def a(self) -> OperandBoxes:
        return self._operand(self.spec.a_k_major, self.spec.cta_tile.m, self.spec.warp_tile.m)

    @cached_property
    def b(self) -> OperandBoxes:
        return self._operand(self.spec.b_k_major, self.spec.cta_tile.n, self.spec.warp_tile.n)

    def _operand(self, k_major: bool, extent: int, warp_extent: int) -> OperandBoxes:
        return OperandBoxes(k_major, extent, self.spec.cta_tile.k, 1, self.spec.operand_bytes, warp_extent)

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @cached_property
    def epilogue_rows(self) -> int:
        """Rows of a warp tile that the epilogue stages at once: 16, or 8 if shared memory is too small for 16."""
        return MMA_ROWS if self._smem_bytes(MMA_ROWS) <= self.max_smem_bytes else MMA_ROWS // 2

    @property
    def epilogue_bytes(self) -> int:
        return self._epilogue_bytes(self.epilogue_rows)

    def _epilogue_bytes(self, rows: int) -> int:
        return self.warps * (rows * self.epilogue_pitch * 4 if self.spec.store == "smem" else DIRECT_BYTES)

    @property
    def smem_bytes(self) -> int:
        """Stages of A, stages of B, staged rows of D, barriers. The next tile is loaded while D of this one is stored."""
        return self._smem_bytes(self.epilogue_rows)

    def _smem_bytes(self, rows: int) -> int:
        beside = self._epilogue_bytes(rows) + 2 * BARRIER_BYTES * self.spec.stages + ANSWER_BYTES
        return whole_parts(self.mainloop_bytes + beside)

    # ---- Registers --------------------------------------------------------------------------------------------------

    @cached_property
    def rebalanced(self) -> tuple[int, int]:
        """Registers that a producer's and a consumer's thread change to, or (0, 0) if they keep those of the launch."""
        arch, (groups, rest) = ARCHS[self.spec.arch], divmod(self.warps, WARPGROUP_WARPS)
        lone = self.spec.ctas_per_sm == 1 and groups and not rest
        if not arch.has_setmaxnreg or not lone or self.needed_registers <= self._at_launch(False):
            return 0, 0
        all_groups = self._at_launch(True) * (groups + 1)  # of the CTA's threads
        share = (all_groups - PRODUCER_REGISTERS) // groups // REGISTER_STEP * REGISTER_STEP
        most = arch.limits.max_registers_per_thread // REGISTER_STEP * REGISTER_STEP
        gains = self._at_launch(True) > PRODUCER_REGISTERS and share > self._at_launch(False)
        return (PRODUCER_REGISTERS, min(share, most)) if gains else (0, 0)

    def _at_launch(self, changing: bool) -> int:
        """Return the most registers that a thread is launched with."""
        registers = self.register_limit(self._threads(changing))
        return registers // REGISTER_STEP * REGISTER_STEP if changing else registers

    @property
    def launch_registers(self) -> int:
        return self._at_launch(any(self.rebalanced))

    @property
    def fragment_rows(self) -> int:
        """Rows of A's fragments that a warp keeps in registers: fewer if it has many columns of B."""
        wide = self.spec.warp_tile.n > WIDE_COLUMNS and self.spec.warp_tile.m // MMA_ROWS * self.k_blocks % 2 == 0
        return 2 if wide and self.spec.fragment_stages == 1 else super().fragment_rows

    @property
    def needed_registers(self) -> int:
        """Registers of a consumer's thread, estimated from above: the larger of what the mainloop and the epilogue need."""
        spec = self.spec
        accumulators = self.accumulator_registers
        fragments = 4 * self.fragment_rows + spec.warp_tile.n // 4
        mainloop = accumulators + fragments * (FRAGMENT + FRAGMENT_AHEAD * (spec.fragment_stages > 1)) + TEMPORARIES
        in_floats = spec.schedule.in_workspace and spec.acc == "f16"
        epilogue = accumulators * (2 if in_floats else 1) + EPILOGUE
        further = PERSISTENT * (spec.schedule.kind in ("persistent", LAUNCH))
        further += CURVE * (spec.activation in LONG_ACTIVATIONS or spec.epilogue != "none")
        plain = spec.acc == "f32" and spec.layout == "tn" and spec.operand_bytes == 2
        plain = plain and spec.bias == "none" and spec.activation == spec.epilogue == "none"
        further += ONE_TILE * (plain and spec.schedule.kind == "one_tile")
        return int(max(mainloop, epilogue) + further)

    # ---- Launch -----------------------------------------------------------------------------------------------------

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The maps of A and B. Threads store D."""
        return self.a.tensor_map("a", "m", self.spec.dtype_a), self.b.tensor_map("b", "n", self.spec.dtype_b)

    def launch(self) -> dict[str, Any]:
        return {
            **super().launch(),
            "tensor_maps": [tensor_map.to_dict() for tensor_map in self.tensor_maps],
            "programmatic": True,  # the kernel waits for the previous grid itself
        }

    # ---- Explanation ------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, Any]:
        return {
            **super().numbers(),
            "epilogue_rows": self.epilogue_rows,
            "launch_registers": self.launch_registers,
            "producer_registers": self.rebalanced[0],
            "consumer_registers": self.rebalanced[1],
        }
