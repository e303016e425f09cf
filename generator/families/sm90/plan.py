"""The numbers of a kernel on wgmma: computed here once, asserted by the emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.families.plan import OPCODE_SUFFIXES, Plan
from generator.families.sm90 import registers
from generator.families.sm90.registers import WARP_THREADS, WARPGROUP_THREADS
from generator.families.sm90.tensor_maps import (
    ROWS_PER_WARPGROUP,
    OperandBoxes,
    StoreBoxes,
    TensorMap,
    stages_bytes,
    whole_parts,
)
from generator.spec import DTYPE_BYTES, Cluster, Tile, WarpTile

MMA_K_BYTES = 32
"""Of k that one instruction multiplies."""

BARRIER_BYTES = 8
TURN_BARRIERS = 2
"""One for each of two consumers that multiply in turn."""

ANSWER_BYTES = 4
DIRECT_BYTES = 16
"""What stands for the staged rows where threads store D themselves."""


@dataclass(frozen=True)
class WgmmaPlan(Plan):
    """A spec and what follows from it.

    A CTA has `consumers` warpgroups and a producer after them. Cooperative consumers share a tile, each computing
    `consumer_rows` of it; ping-pong ones compute whole tiles in turns. What the kernel calls A and m are the problem's,
    or its B and n where operands are swapped.
    Units: elements for boxes and columns.
    """

    instruction = "wgmma"

    @cached_property
    def implied(self) -> dict[str, Any]:
        """One instruction is as wide as the tile; operands stay in shared memory, swizzled as TMA and wgmma agree on."""
        return {
            "mma": f"m64n{self.tile.n}k{self.mma_k}",
            "warp_tile": WarpTile(self.consumer_rows, self.tile.n),
            "fragment_stages": 1,
            "smem_a": (self.b if self.spec.swap_ab else self.a).smem,
            "smem_b": (self.a if self.spec.swap_ab else self.b).smem,
            "mma_order": "row",
            "store_spacing": 0,
            "prefetch": True,
            "smem_alloc": "dynamic",
        }

    @property
    def copied(self) -> bool:
        """Whether threads of the producer copy A and B, by cp.async, and not the TMA."""
        return self.spec.copy == "cp_async"

    @property
    def pingpong(self) -> bool:
        return self.spec.cooperation == "pingpong"

    @property
    def tile(self) -> Tile:
        """The CTA tile as the kernel sees it."""
        tile = self.spec.cta_tile
        return Tile(tile.n, tile.m, tile.k) if self.spec.swap_ab else tile

    @property
    def cluster(self) -> Cluster:
        """The cluster as the kernel sees it."""
        cluster = self.spec.cluster
        return Cluster(cluster.n, cluster.m) if self.spec.swap_ab else cluster

    @property
    def launch_cluster(self) -> int:
        """CTAs that are launched as a cluster: those that share operands, or those that share a tile."""
        spec = self.spec
        return spec.schedule.splits if spec.schedule.kind == "split_k_cluster" else spec.cluster.ctas

    @property
    def threads(self) -> int:
        """Those of the consumers and of the producer."""
        return WARPGROUP_THREADS * self.spec.consumers + self.producer_threads

    @property
    def producer_threads(self) -> int:
        """A warp, or a warpgroup where registers change hands or all of its threads copy."""
        return WARPGROUP_THREADS if self.copied or any(self.rebalanced) else WARP_THREADS

    @property
    def consumer_rows(self) -> int:
        """Rows of the kernel's D that a consumer computes at a time."""
        return self.tile.m // (1 if self.pingpong else max(1, self.spec.consumers))

    @cached_property
    def a(self) -> OperandBoxes:
        """The kernel's A."""
        k_major = self.spec.b_k_major if self.spec.swap_ab else self.spec.a_k_major
        return OperandBoxes(k_major, self.tile.m, self.tile.k, self.cluster.n, self.spec.operand_bytes)

    @cached_property
    def b(self) -> OperandBoxes:
        """The kernel's B."""
        k_major = self.spec.a_k_major if self.spec.swap_ab else self.spec.b_k_major
        return OperandBoxes(k_major, self.tile.n, self.tile.k, self.cluster.m, self.spec.operand_bytes)

    @cached_property
    def d(self) -> StoreBoxes:
        return StoreBoxes(self.tile.n, DTYPE_BYTES[self.spec.dtype_d], self.spec.swap_ab)

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> int:
        return self.a.stage_bytes + self.b.stage_bytes

    @property
    def mainloop_bytes(self) -> int:
        """All stages of A, then all of B."""
        return stages_bytes(self.spec.stages, self.a, self.b)

    @property
    def sums_bytes(self) -> int:
        """A tile's sums as floats, which CTAs that split k in a cluster leave in place of the stages."""
        return self.tile.m * self.tile.n * 4

    @property
    def barrier_bytes(self) -> int:
        """Full and empty of each stage, the turns, and the answers of reductions along k, one for each that may run at once."""
        answers = self.spec.consumers if self.pingpong and self.spec.schedule.kind == "stream_k" else 1
        return BARRIER_BYTES * (2 * self.spec.stages + TURN_BARRIERS) + ANSWER_BYTES * answers

    @cached_property
    def epilogue_stages(self) -> int:
        """Turns of D that a consumer stages at once: 2 where shared memory has room, so that one is stored meanwhile."""
        return 2 if self._smem_bytes(2) <= self.max_smem_bytes else 1

    @property
    def epilogue_bytes(self) -> int:
        return self._epilogue_bytes(self.epilogue_stages)

    @property
    def smem_bytes(self) -> int:
        """Stages of A, stages of B, staged rows of D, barriers."""
        return self._smem_bytes(self.epilogue_stages)

    def _epilogue_bytes(self, stages: int) -> int:
        return self.spec.consumers * self.d.turn_bytes * stages if self.spec.store == "tma" else DIRECT_BYTES

    def _smem_bytes(self, epilogue_stages: int) -> int:
        parts = (self.mainloop_bytes, self._epilogue_bytes(epilogue_stages), self.barrier_bytes)
        return sum(map(whole_parts, parts))

    @property
    def bank_conflicts(self) -> int:
        """None: TMA writes and wgmma reads the swizzles that were made for one another."""
        return 0

    # ---- Registers --------------------------------------------------------------------------------------------------

    @cached_property
    def rebalanced(self) -> tuple[int, int]:
        """Registers that a producer's and a consumer's thread change to; (0, 0) where they keep those of the launch."""
        return registers.rebalanced(self)

    @property
    def registers_change_hands(self) -> bool:
        return any(self.rebalanced)

    @property
    def launch_registers(self) -> int:
        """Registers that each thread is launched with at most."""
        return registers.at_launch(self, self.producer_threads)

    @property
    def accumulator_registers(self) -> int:
        return self.sums_registers // (2 if self.spec.acc == "f16" else 1)

    @property
    def sums_registers(self) -> int:
        """Registers of a thread's sums as floats."""
        return self.consumer_rows // ROWS_PER_WARPGROUP * self.tile.n // 2

    @property
    def summed_registers(self) -> int:
        """Registers of the sums that CTAs add up at once, as floats; stream-K adds up 64 rows of halves at a time."""
        if self.spec.schedule.kind == "stream_k" and self.spec.acc == "f16":
            return max(self.accumulator_registers, self.tile.n // 2)
        return self.sums_registers

    @property
    def instruction_registers(self) -> int:
        """Registers that a thread must be launched with for one instruction."""
        return self.tile.n // (4 if self.spec.acc == "f16" else 2) + registers.INSTRUCTION

    @property
    def needed_registers(self) -> int:
        return registers.estimate(self)

    @property
    def max_registers(self) -> int:
        return self.rebalanced[1] or self.launch_registers

    # ---- Tensor instructions ----------------------------------------------------------------------------------------

    @staticmethod
    def takes(dtype: str, layout: str) -> bool:
        """Tell whether wgmma multiplies operands that lie so: of types other than those of 2 bytes K-major ones only.

        Source: PTX ISA 9.0, "wgmma.mma_async", imm-trans-a and imm-trans-b.
        """
        return DTYPE_BYTES[dtype] == 2 or layout == "tn"

    @property
    def mma_k(self) -> int:
        return MMA_K_BYTES // self.spec.operand_bytes

    @property
    def mma_per_k_tile(self) -> int:
        return self.consumer_rows // ROWS_PER_WARPGROUP * (self.tile.k // self.mma_k)

    @property
    def mma_opcode(self) -> str:
        result = "F32" if self.spec.acc == "f32" else "F16"
        return f"HGMMA.64x{self.tile.n}x{self.mma_k}.{result}" + OPCODE_SUFFIXES.get(self.spec.dtype_a, "")

    # ---- Launch -----------------------------------------------------------------------------------------------------

    @property
    def raster_tiles(self) -> int:
        """Tiles of clusters that a group or a panel is wide."""
        along = self.spec.cluster.n if self.spec.raster.kind == "panel" else self.spec.cluster.m
        return max(1, super().raster_tiles // along)

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The maps of the problem's A, B and D, as the kernel takes them; none of what threads copy or store themselves."""
        spec = self.spec
        a, b = (self.b, self.a) if spec.swap_ab else (self.a, self.b)
        loaded = () if self.copied else (a.tensor_map("a", "m", spec.dtype_a), b.tensor_map("b", "n", spec.dtype_b))
        return (*loaded, self.d.tensor_map(spec.dtype_d)) if spec.store == "tma" else loaded

    def launch(self) -> dict[str, Any]:
        return {
            **super().launch(),
            "cluster": [self.launch_cluster, 1, 1],
            "cluster_shape": [self.spec.cluster.m, self.spec.cluster.n],
            "tensor_maps": [tensor_map.to_dict() for tensor_map in self.tensor_maps],
            "programmatic": True,  # the kernel waits for the launch before: gemm_sm90.cuh, await_previous_launches
        }

    # ---- Explanation ------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "consumer_rows": self.consumer_rows,
            "smem_bytes": self.smem_bytes,
            "stage_bytes": self.stage_bytes,
            "epilogue_bytes": self.epilogue_bytes,
            "accumulator_registers": self.accumulator_registers,
            "needed_registers": self.needed_registers,
            "max_registers": self.max_registers,
            "launch_registers": self.launch_registers,
            "producer_registers": self.rebalanced[0],
            "consumer_registers": self.rebalanced[1],
            "mma_opcode": self.mma_opcode,
            "mma_per_k_tile": self.mma_per_k_tile,
        }

    def placements(self) -> dict[str, Any]:
        return {f"box_{tensor_map.operand}": "x".join(map(str, tensor_map.box)) for tensor_map in self.tensor_maps}
