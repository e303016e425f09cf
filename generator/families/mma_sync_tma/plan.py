"""The numbers of a kernel on mma.sync whose tiles come by TMA: computed here once, asserted by the emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.families.mma_sync.plan import MmaSyncPlan
from generator.families.mma_sync.staging import a_rows
from generator.families.sm90.tensor_maps import SWIZZLES_BYTES, OperandBoxes, TensorMap, stages_bytes, whole_parts

WARPGROUP_WARPS = 4
"""Warps that change their registers together. Source: PTX ISA 9.0, setmaxnreg."""

REGISTER_STEP = 8
"""Registers that setmaxnreg gives and takes. Source: PTX ISA 9.0, setmaxnreg: multiples of 8 from 24 to 256."""

PRODUCER_REGISTERS = 24
"""What the loop of a producer's thread takes without spills: the fewest that setmaxnreg leaves."""

BARRIER_BYTES, ANSWER_BYTES = 8, 4
"""Of an mbarrier, and of the answer of split-K's reduction."""

UNSTAGED_BYTES = 16
"""What stands for a warp's staged rows where threads store D from their registers."""

TEMPORARIES, PERSISTENT, CURVE, ONE_TILE = 22, 2, 12, -6
FRAGMENT, FRAGMENT_AHEAD = 1.05, 0.5
EPILOGUE = 44
"""Registers of a thread that multiplies, beside its sums, as generator.families.mma_sync.register_estimate counts them.

Fitted to what ptxas 13.0 took of 64x64, 128x64, 64x128, 96x64, 64x88 and smaller warp tiles. One tile a CTA takes fewer where sums
are f32, halves lie along k and nothing comes to D but C: of 32 kernels that it lets in none spills; persistent ones may.
"""


WIDE_COLUMNS = 64
"""Columns of a warp tile beyond which two rows of A are enough ahead of their products."""


@dataclass(frozen=True)
class WarpBoxes(OperandBoxes):
    """One stage of A or B whose rows, where it is MN-major, are no longer than the `warp_extent` of a warp tile."""

    warp_extent: int = 0

    @cached_property
    def swizzle_bytes(self) -> int:
        along = (self.k if self.k_major else self.warp_extent) * self.element_bytes
        return next((size for size in SWIZZLES_BYTES if along % size == 0), SWIZZLES_BYTES[-1])

    @property
    def by_ldmatrix(self) -> bool:
        """Whether ldmatrix reads fragments; it transposes elements of 2 bytes only."""
        return self.k_major or self.element_bytes == 2


@dataclass(frozen=True)
class TmaPlan(MmaSyncPlan):
    """A spec and what follows from it.

    After the warps that multiply comes a producer, one of whose threads loads: a warp, or a warpgroup which gives most of its
    registers to the others, where an architecture has that and they need them.
    """

    @cached_property
    def implied(self) -> dict[str, Any]:
        """Stages lie as the TMA swizzles them, and no other way of copying leaves a choice."""
        return {
            **super().implied,
            "smem_a": self.a.smem,
            "smem_b": self.b.smem,
            "smem_alloc": "dynamic",
            "form": "atoms",
        }

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        return self._threads(any(self.rebalanced))

    def _threads(self, changing: bool) -> int:
        return (self.warps + (WARPGROUP_WARPS if changing else 1)) * ARCHS[self.spec.arch].limits.warp_threads

    @cached_property
    def a(self) -> WarpBoxes:
        return self._operand(self.spec.a_k_major, self.spec.cta_tile.m, self.spec.warp_tile.m)

    @cached_property
    def b(self) -> WarpBoxes:
        return self._operand(self.spec.b_k_major, self.spec.cta_tile.n, self.spec.warp_tile.n)

    def _operand(self, k_major: bool, extent: int, warp_extent: int) -> WarpBoxes:
        return WarpBoxes(k_major, extent, self.spec.cta_tile.k, 1, self.spec.operand_bytes, warp_extent)

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> int:
        return self.a.stage_bytes + self.b.stage_bytes

    @property
    def mainloop_bytes(self) -> int:
        """All stages of A, then all of B."""
        return stages_bytes(self.spec.stages, self.a, self.b)

    @cached_property
    def staged_rows(self) -> int:
        """Rows of a warp's part of D that are staged at once: 16, or 8 where shared memory has no room for more."""
        return 16 if self._smem_bytes(16) <= self.max_smem_bytes else 8

    @property
    def epilogue_bytes(self) -> int:
        return self._epilogue_bytes(self.staged_rows)

    def _epilogue_bytes(self, rows: int) -> int:
        return self.warps * (rows * self.epilogue_pitch * 4 if self.spec.store == "smem" else UNSTAGED_BYTES)

    @property
    def smem_bytes(self) -> int:
        """Stages of A, stages of B, staged rows of D, barriers: the next tile is loaded while D of this one is stored."""
        return self._smem_bytes(self.staged_rows)

    def _smem_bytes(self, rows: int) -> int:
        beside = self._epilogue_bytes(rows) + 2 * BARRIER_BYTES * self.spec.stages + ANSWER_BYTES
        return whole_parts(self.mainloop_bytes + beside)

    @property
    def bank_conflicts(self) -> int:
        """None: 8 rows of 16 bytes, which ldmatrix reads at once, lie in different banks in each of the TMA's swizzles."""
        return 0

    # ---- Registers --------------------------------------------------------------------------------------------------

    @cached_property
    def rebalanced(self) -> tuple[int, int]:
        """Registers that a producer's and another thread change to; (0, 0) where those of the launch do or none change."""
        arch, (groups, rest) = ARCHS[self.spec.arch], divmod(self.warps, WARPGROUP_WARPS)
        lone = self.spec.ctas_per_sm == 1 and groups and not rest
        if not arch.has_setmaxnreg or not lone or self.needed_registers <= self._at_launch(False):
            return 0, 0
        all_groups = self._at_launch(True) * (groups + 1)  # of the CTA's threads, which have no others to give
        share = (all_groups - PRODUCER_REGISTERS) // groups // REGISTER_STEP * REGISTER_STEP
        most = arch.limits.max_registers_per_thread // REGISTER_STEP * REGISTER_STEP
        gains = self._at_launch(True) > PRODUCER_REGISTERS and share > self._at_launch(False)
        return (PRODUCER_REGISTERS, min(share, most)) if gains else (0, 0)

    def _at_launch(self, changing: bool) -> int:
        """Return what a thread is launched with at most: a partition holds its share of warps, and gives in units."""
        limits = ARCHS[self.spec.arch].limits
        warps = self._threads(changing) // limits.warp_threads * max(1, self.spec.ctas_per_sm)
        per_warp = limits.registers_per_sm // limits.sm_partitions // -(-warps // limits.sm_partitions)
        units = per_warp // limits.register_unit * limits.register_unit
        registers = min(limits.max_registers_per_thread, units // limits.warp_threads)
        return registers // REGISTER_STEP * REGISTER_STEP if changing else registers

    @property
    def registers_change_hands(self) -> bool:
        return any(self.rebalanced)

    @property
    def launch_registers(self) -> int:
        return self._at_launch(any(self.rebalanced))

    @property
    def max_registers(self) -> int:
        return self.rebalanced[1] or self.launch_registers

    @property
    def a_rows(self) -> int:
        """Rows of A's fragments that a warp keeps in registers: few beside long rows of B."""
        wide = self.spec.warp_tile.n > WIDE_COLUMNS and self.spec.warp_tile.m // 16 * self.k_blocks % 2 == 0
        return 2 if wide and self.spec.fragment_stages == 1 else a_rows(self)

    @property
    def needed_registers(self) -> int:
        """Registers of a thread that multiplies, estimated from above: the larger of what it does."""
        spec = self.spec
        sums = self.accumulator_registers
        fragments = 4 * self.a_rows + spec.warp_tile.n // 4
        mainloop = sums + fragments * (FRAGMENT + FRAGMENT_AHEAD * (spec.fragment_stages > 1)) + TEMPORARIES
        doubled = spec.schedule.kind == "split_k" and spec.acc == "f16"
        epilogue = sums * (2 if doubled else 1) + EPILOGUE
        further = PERSISTENT * (spec.schedule.kind == "persistent")
        further += CURVE * (spec.activation in ("gelu", "silu"))
        plain = spec.acc == "f32" and spec.layout == "tn" and spec.operand_bytes == 2
        plain = plain and spec.bias == "none" and spec.activation == "none"
        further += ONE_TILE * (plain and spec.schedule.kind == "one_tile")
        return int(max(mainloop, epilogue) + further)

    # ---- Launch -----------------------------------------------------------------------------------------------------

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The maps of A and B; threads store D."""
        return self.a.tensor_map("a", "m", self.spec.dtype_a), self.b.tensor_map("b", "n", self.spec.dtype_b)

    def launch(self) -> dict[str, Any]:
        return {
            **super().launch(),
            "tensor_maps": [tensor_map.to_dict() for tensor_map in self.tensor_maps],
            "programmatic": True,  # the kernel waits for the launch before: gemm_tma.cuh, await_previous_launches
        }

    # ---- Explanation ------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, Any]:
        return {
            **super().numbers(),
            "staged_rows": self.staged_rows,
            "launch_registers": self.launch_registers,
            "producer_registers": self.rebalanced[0],
            "consumer_registers": self.rebalanced[1],
        }

    def placements(self) -> dict[str, Any]:
        return {f"box_{tensor_map.operand}": "x".join(map(str, tensor_map.box)) for tensor_map in self.tensor_maps}
