"""The numbers of a kernel on TMA and wgmma: computed here once, asserted by the emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.families.plan import Plan
from generator.families.sm90.tensor_maps import ROWS_PER_WARPGROUP, OperandBoxes, StoreBoxes, TensorMap
from generator.spec import DTYPE_BYTES
from generator.values import Smem, WarpTile

WARPGROUP_THREADS = 128
MMA_K = 16
PART_BYTES = 1024
"""Alignment of each part of shared memory: after so many bytes the widest swizzle repeats."""

BARRIER_BYTES = 8
TURN_BARRIERS = 2
"""One for each of two consumers that multiply in turn."""

DIRECT_BYTES = 16
"""What stands for the staged rows where threads store D themselves."""

PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 32}
"""Registers of a producer's thread by consumers: what its loop takes, and what lets the consumers have most."""

MAX_CONSUMER_REGISTERS = 232
REGISTER_STEP = 8
"""Registers that setmaxnreg gives and takes. Source: PTX ISA 8.8, setmaxnreg: multiples of 8 from 24 to 256."""

BASE_REGISTERS = 40
"""What a consumer's thread needs beside its accumulators: descriptors, loop state, the addresses of the epilogue."""


@dataclass(frozen=True)
class WgmmaPlan(Plan):
    """A spec and what follows from it.

    A CTA has one producer warpgroup and `consumers` others. Cooperative ones share a tile, each computing `consumer_rows`
    of it; ping-pong ones compute whole tiles in turns.
    Units: elements for boxes and columns.
    """

    instruction = "wgmma"

    @cached_property
    def implied(self) -> dict[str, Any]:
        """One instruction is as wide as the tile; operands stay in shared memory, swizzled as TMA and wgmma agree on."""
        return {
            "mma": f"m64n{self.spec.cta_tile.n}k{MMA_K}",
            "warp_tile": WarpTile(self.consumer_rows, self.spec.cta_tile.n),
            "fragment_stages": 1,
            "copy": "tma",
            "smem_a": _xor(self.a.swizzle_bytes),
            "smem_b": _xor(self.b.swizzle_bytes),
            "mma_order": "row",
        }

    @property
    def pingpong(self) -> bool:
        return self.spec.cooperation == "pingpong"

    @property
    def threads(self) -> int:
        return WARPGROUP_THREADS * (self.spec.consumers + 1)

    @property
    def consumer_rows(self) -> int:
        """Rows of D that a consumer computes at a time."""
        return self.spec.cta_tile.m // (1 if self.pingpong else max(1, self.spec.consumers))

    @cached_property
    def a(self) -> OperandBoxes:
        tile = self.spec.cta_tile
        return OperandBoxes(self.spec.a_k_major, tile.m, tile.k, shared_by=self.spec.cluster.n)

    @cached_property
    def b(self) -> OperandBoxes:
        tile = self.spec.cta_tile
        return OperandBoxes(self.spec.b_k_major, tile.n, tile.k, shared_by=self.spec.cluster.m)

    @cached_property
    def d(self) -> StoreBoxes:
        return StoreBoxes(self.spec.cta_tile.n, DTYPE_BYTES[self.spec.dtype_d])

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> int:
        return self.a.stage_bytes + self.b.stage_bytes

    @property
    def mainloop_bytes(self) -> int:
        """All stages of A, then all of B."""
        stages = self.spec.stages
        return _round_up(stages * self.a.stage_bytes) + _round_up(stages * self.b.stage_bytes)

    @property
    def barrier_bytes(self) -> int:
        """Full and empty of each stage, and the turns."""
        return BARRIER_BYTES * (2 * self.spec.stages + TURN_BARRIERS)

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
        return sum(map(_round_up, parts))

    @property
    def bank_conflicts(self) -> int:
        """None: TMA writes and wgmma reads the swizzles that were made for one another."""
        return 0

    # ---- Registers --------------------------------------------------------------------------------------------------

    @property
    def launch_registers(self) -> int:
        """Registers that each thread is launched with at most."""
        limits, threads = ARCHS[self.spec.arch].limits, self.threads * max(1, self.spec.ctas_per_sm)
        return min(limits.max_registers_per_thread, _round_down(limits.registers_per_sm // threads))

    @property
    def rebalanced(self) -> tuple[int, int]:
        """Registers that a producer's and a consumer's thread change to; (0, 0) where consumers would gain none."""
        limits, consumers = ARCHS[self.spec.arch].limits, max(1, self.spec.consumers)
        producer = PRODUCER_REGISTERS[consumers]
        all_warpgroups = limits.registers_per_sm // max(1, self.spec.ctas_per_sm) // WARPGROUP_THREADS
        consumer = min(MAX_CONSUMER_REGISTERS, _round_down((all_warpgroups - producer) // consumers))
        return (producer, consumer) if consumer > self.launch_registers > producer else (0, 0)

    @property
    def accumulator_registers(self) -> int:
        columns = self.spec.cta_tile.n // (4 if self.spec.acc == "f16" else 2)
        return self.consumer_rows // ROWS_PER_WARPGROUP * columns

    @property
    def needed_registers(self) -> int:
        return self.accumulator_registers + BASE_REGISTERS

    @property
    def max_registers(self) -> int:
        return self.rebalanced[1] or self.launch_registers

    # ---- Tensor instructions ----------------------------------------------------------------------------------------

    @property
    def mma_per_k_tile(self) -> int:
        return self.consumer_rows // ROWS_PER_WARPGROUP * (self.spec.cta_tile.k // MMA_K)

    @property
    def mma_opcode(self) -> str:
        result = "F32" if self.spec.acc == "f32" else "F16"
        return f"HGMMA.64x{self.spec.cta_tile.n}x16.{result}" + (".BF16" if self.spec.dtype_a == "bf16" else "")

    # ---- Launch -----------------------------------------------------------------------------------------------------

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The maps that the kernel takes, in its order; none of D where threads store it themselves."""
        spec = self.spec
        maps = (self.a.tensor_map("a", "m", spec.dtype_a), self.b.tensor_map("b", "n", spec.dtype_b))
        return (*maps, self.d.tensor_map(spec.dtype_d)) if spec.store == "tma" else maps

    def launch(self) -> dict[str, Any]:
        cluster = self.spec.cluster
        maps = [tensor_map.to_dict() for tensor_map in self.tensor_maps]
        return {**super().launch(), "cluster_shape": [cluster.m, cluster.n], "tensor_maps": maps}

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


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // PART_BYTES) * PART_BYTES


def _round_down(registers: int) -> int:
    return registers // REGISTER_STEP * REGISTER_STEP


def _xor(swizzle_bytes: int) -> Smem:
    """Return a swizzle of bytes as one of half elements: 128 bytes are eight pieces of 16, whose 3 bits are XORed."""
    return Smem("xor", ((swizzle_bytes // 16).bit_length() - 1, 3, 3))
