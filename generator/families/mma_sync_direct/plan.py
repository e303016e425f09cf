"""The plan of a kernel on mma.sync that loads fragments from global memory: its warps, registers and instructions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from generator.families.base import Plan
from generator.families.common import OF_MMA_SYNC, OPCODE_SUFFIXES
from generator.families.mma_sync.plan import WARP_THREADS
from generator.spec import Schedule, Smem, WarpTile
from hgemm.dtypes import VECTOR_BYTES

NAME = "mma_sync_direct"
MMA = "m16n8k16"

K_BLOCK = 32
"""Elements of k that a warp loads at once: four lanes load 16 bytes each of a row of 2-byte elements."""
COLUMNS = 8
"""Columns of D, which are rows of B transposed, in one instruction."""
MMA_PER_BLOCK = 2
"""Instructions of COLUMNS columns and a K_BLOCK of k."""

BASE = 28
"""Registers of a thread besides its vectors and accumulators.

Source: 26 kernels, ptxas 13.0.88. The epilogue needs fewer, because no vector is alive there.
"""
BASE_M_MAJOR = 33
"""The same if m is contiguous in A. Source: 45 kernels, ptxas 13.0.88."""


class DirectPlan(Plan):
    """The plan of a kernel on mma.sync that loads fragments from global memory.

    Every warp computes the whole CTA tile over its part of each k-tile. `stages` are the blocks of K_BLOCK that a warp has in
    flight. Operands with m or n contiguous are transposed in registers. Shared memory holds the warps' accumulators, which one
    thread per element adds.
    """

    instruction = "mma.sync"
    bank_conflicts = 0
    stage_bytes = 0
    mma_k = 16

    @cached_property
    def fixed_fields(self) -> dict[str, Any]:
        """A CTA computes one tile. A tile has a warp's rows and columns, because warps share k."""
        tile = self.spec.cta_tile
        return {
            "mma": MMA,
            "warp_tile": WarpTile(tile.m, tile.n),
            "fragment_stages": 1,
            "smem_a": Smem("none"),
            "smem_b": Smem("none"),
            "mma_order": "row",
            "schedule": Schedule("one_tile"),
            "store": "direct",
            **OF_MMA_SYNC,
            "pointer_arrays": False,
            "store_spacing": 0,
            "prefetch": True,
            "smem_alloc": "dynamic",
            "form": "atoms",
        }

    @property
    def warp_k(self) -> int:
        """Elements of k of a k-tile that one warp multiplies."""
        return K_BLOCK * max(1, self.spec.stages)

    @property
    def warps(self) -> int:
        return max(1, self.spec.cta_tile.k // self.warp_k)

    @property
    def threads(self) -> int:
        return self.warps * WARP_THREADS

    @property
    def smem_bytes(self) -> int:
        """Partial accumulators (warps, tile_m, tile_n + 1) in f32. The odd pitch avoids bank conflicts."""
        tile = self.spec.cta_tile
        return self.warps * tile.m * (tile.n + 1) * 4

    @property
    def accumulator_registers(self) -> int:
        """Each instruction has 16 rows, of which a tile may use 8."""
        return 4 * self.spec.cta_tile.n // COLUMNS

    @property
    def vector_registers(self) -> int:
        """Registers of the vectors in flight: all of B, and some of A, since its loads may wait until B has been multiplied."""
        tile, stages = self.spec.cta_tile, self.spec.stages
        return VECTOR_BYTES // 4 * (stages * tile.n // COLUMNS + stages * (tile.m // COLUMNS - 1) // 2 + 1)

    @property
    def needed_registers(self) -> int:
        base = BASE if self.spec.a_k_major else BASE_M_MAJOR
        return base + self.accumulator_registers + self.vector_registers

    @property
    def mma_per_k_tile(self) -> int:
        return MMA_PER_BLOCK * self.spec.stages * self.spec.cta_tile.n // COLUMNS

    @property
    def k_order(self) -> str:
        """Each warp sums its part of every k-tile. An instruction takes the first or the second half of each lane's 8 elements."""
        return (
            f"{self.warps} sums, of {self.warp_k} k in turn; of {K_BLOCK} k, those with k mod 8 below 4 first; "
            "these sums in order, then an f32 sum of the last k mod 8 products, one by one"
        )

    @property
    def mma_opcode(self) -> str:
        return "HMMA.16816.F32" + OPCODE_SUFFIXES.get(self.spec.dtype_a, "")

    def launch(self) -> dict[str, Any]:
        return {**super().launch(), "programmatic": True}  # the kernel waits for the previous grid itself

    # ---- Explanation ------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "warps": self.warps,
            "warp_k": self.warp_k,
            "smem_bytes": self.smem_bytes,
            "accumulator_registers": self.accumulator_registers,
            "needed_registers": self.needed_registers,
            "max_registers": self.max_registers,
            "mma_opcode": self.mma_opcode,
            "mma_per_k_tile": self.mma_per_k_tile,
        }

    def placements(self) -> dict[str, Any]:
        return {}
