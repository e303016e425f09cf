"""The numbers of a kernel on mma.sync: computed here once, asserted by the emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.families.mma_sync import staging
from generator.families.mma_sync.register_estimate import estimate
from generator.families.plan import OPCODE_SUFFIXES, Plan
from generator.layouts import PIECE_BYTES, OperandTile, read_conflicts, write_conflicts
from generator.spec import DTYPE_BYTES, WMMA, Cluster


def mma_columns(mma: str) -> int:
    """Return the columns of D that one product of fragments has."""
    return 16 if mma == WMMA else 8


@dataclass(frozen=True)
class MmaSyncPlan(Plan):
    """A spec and what follows from it.

    Units: elements for pitches and stages, floats for the epilogue's pitch and words of 4 floats for its `epilogue_odd_words`.
    """

    instruction = "mma.sync"

    @cached_property
    def implied(self) -> dict[str, Any]:
        """Every warp copies and multiplies, and no CTAs share operands; stores are placed where threads make them."""
        return {
            **({} if self.staged else {"store_spacing": 0, "prefetch": True}),
            "consumers": 0,
            "cooperation": "cooperative",
            "cluster": Cluster(1, 1),
            "swap_ab": False,
        }

    @property
    def staged(self) -> bool:
        """Whether copies go by way of registers."""
        return self.spec.copy in staging.STAGED

    @property
    def warps_m(self) -> int:
        return max(1, self.spec.cta_tile.m // max(1, self.spec.warp_tile.m))

    @property
    def warps_n(self) -> int:
        return max(1, self.spec.cta_tile.n // max(1, self.spec.warp_tile.n))

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * 32

    @property
    def wmma(self) -> bool:
        """Whether fragments are loaded and multiplied by WMMA."""
        return self.spec.mma == WMMA

    @property
    def mma_n(self) -> int:
        """Columns of D that one product of fragments has."""
        return mma_columns(self.spec.mma)

    @property
    def mma_k(self) -> int:
        """The depth of the machine's instruction: fragments of WMMA are multiplied by the deepest that there is."""
        if self.wmma:
            return 16 if ARCHS[self.spec.arch].has_mma_k16 else 8
        return int(self.spec.mma.rpartition("k")[2])

    @property
    def piece(self) -> int:
        """Elements of 16 bytes, which stay together in shared memory."""
        return PIECE_BYTES // self.spec.operand_bytes

    @property
    def piece_bits(self) -> int:
        """Bits of an element's offset within its piece."""
        return self.piece.bit_length() - 1

    @property
    def k_block(self) -> int:
        """Elements of k whose fragments are read at once."""
        return 2 * self.piece

    @property
    def mma_per_product(self) -> int:
        """Tensor instructions that one product of fragments takes; one at least, where an illegal one is deeper than a block."""
        return max(1, self.mma_n // 8 * (self.k_block // self.mma_k))

    @property
    def k_blocks(self) -> int:
        return self.spec.cta_tile.k // self.k_block

    @cached_property
    def a(self) -> OperandTile:
        return self._operand(self.spec.a_k_major, self.spec.cta_tile.m, self.spec.align_a, self.spec.smem_a)

    @cached_property
    def b(self) -> OperandTile:
        return self._operand(self.spec.b_k_major, self.spec.cta_tile.n, self.spec.align_b, self.spec.smem_b)

    def _operand(self, k_major: bool, extent: int, align: int, smem) -> OperandTile:
        rows, columns = (extent, self.spec.cta_tile.k) if k_major else (self.spec.cta_tile.k, extent)
        chunk = {"ldg_sts_scalar": 1, "ldg_sts_unaligned": self.piece}.get(self.spec.copy, align)
        return OperandTile(k_major, rows, columns, chunk, self.threads, smem, self.spec.operand_bytes)

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage, A and B together."""
        return self.spec.operand_bytes * (self.a.stage_elements + self.b.stage_elements)

    @property
    def epilogue_pieces_of_two_words(self) -> bool:
        return DTYPE_BYTES[self.spec.dtype_d] == 2

    @property
    def epilogue_odd_words(self) -> int:
        """Words of 4 floats before the odd words of a staged row begin, so that 8 lanes meet 8 groups of banks."""
        return self.spec.warp_tile.n // 8 | 1 if self.epilogue_pieces_of_two_words else 0

    @property
    def epilogue_pitch(self) -> int:
        """Floats from one staged row to the next: past the row, and 8 or 24 modulo the 32 banks."""
        row = 8 * self.epilogue_odd_words if self.epilogue_pieces_of_two_words else self.spec.warp_tile.n
        pitch = -(-row // 8) * 8
        return pitch if pitch % 16 == 8 else pitch + 8

    @property
    def slab_rows(self) -> int:
        """Rows that the epilogue of forms cute and dsl stages at once: one atom of every warp along m."""
        return 16 * self.warps_m

    @property
    def slab_odd_words(self) -> int:
        """Words of 4 floats before the odd words of one of those rows begin, where a piece is two words."""
        return self.spec.cta_tile.n // 8 | 1

    @property
    def slab_pitch(self) -> int:
        """Floats from one of those rows to the next, 8 or 24 modulo the 32 banks."""
        return 8 * self.slab_odd_words if self.epilogue_pieces_of_two_words else self.spec.cta_tile.n + 8

    @property
    def epilogue_bytes(self) -> int:
        if self.spec.form in ("cute", "dsl"):
            return self.slab_rows * self.slab_pitch * 4
        return self.threads // 32 * 16 * self.epilogue_pitch * 4 if self.spec.store == "smem" else 0

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA: the stages or, later in the same place, the staged rows of the epilogue."""
        return -(-max(self.spec.stages * self.stage_bytes, self.epilogue_bytes) // 128) * 128

    @property
    def static_smem_bytes(self) -> int:
        """What of it is static: all or nothing."""
        return self.smem_bytes if self.spec.smem_alloc == "static" else 0

    def launch(self) -> dict[str, Any]:
        """Return the record's `launch`, with the shared memory that is the launcher's to ask for and, apart, the static."""
        static = {"static_smem_bytes": self.static_smem_bytes} if self.static_smem_bytes else {}
        return {**super().launch(), "smem_bytes": self.smem_bytes - self.static_smem_bytes, **static}

    @property
    def bank_conflicts(self) -> int:
        return sum(read_conflicts(tile) + write_conflicts(tile) for tile in (self.a, self.b))

    # ---- Registers --------------------------------------------------------------------------------------------------

    @property
    def accumulator_registers(self) -> int:
        elements = self.spec.warp_tile.m * self.spec.warp_tile.n // 32
        return {"f32": elements, "f16": elements // 2, "f16_promoted": elements + elements // 2}[self.spec.acc]

    @property
    def fragment_registers(self) -> int:
        """Fragments of A and B for a block of k, times the fragment stages."""
        return (self.spec.warp_tile.m // 4 + self.spec.warp_tile.n // 4) * self.spec.fragment_stages

    @property
    def needed_registers(self) -> int:
        return estimate(self)

    @property
    def max_registers(self) -> int:
        """Registers a thread may have for `ctas_per_sm` CTAs to live on an SM.

        Each of the SM's partitions holds its share of the warps, and gives registers out a warp at a time, in units. ptxas
        13.0 bounds a kernel by the same number.
        """
        limits = ARCHS[self.spec.arch].limits
        warps = -(-self.threads // limits.warp_threads * max(1, self.spec.ctas_per_sm) // limits.sm_partitions)
        per_warp = (
            limits.registers_per_sm // limits.sm_partitions // warps // limits.register_unit * limits.register_unit
        )
        return min(limits.max_registers_per_thread, per_warp // limits.warp_threads)

    # ---- Tensor instructions ----------------------------------------------------------------------------------------

    @property
    def mma_per_k_tile(self) -> int:
        """Tensor instructions that one warp issues for a k-tile."""
        warp, k = self.spec.warp_tile, self.spec.cta_tile.k
        return (warp.m // 16) * (warp.n // 8) * (k // self.mma_k)

    @property
    def mma_opcode(self) -> str:
        shape = {16: "16816", 8: "1688"}[self.mma_k]
        result = "F32" if self.spec.acc == "f32" else "F16"
        return f"HMMA.{shape}.{result}" + OPCODE_SUFFIXES.get(self.spec.dtype_a, "")

    # ---- Explanation ------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "warps": f"{self.warps_m}x{self.warps_n}",
            "smem_bytes": self.smem_bytes,
            "stage_bytes": self.stage_bytes,
            "epilogue_bytes": self.epilogue_bytes,
            "accumulator_registers": self.accumulator_registers,
            "fragment_registers": self.fragment_registers,
            "needed_registers": self.needed_registers,
            "max_registers": self.max_registers,
            "mma_opcode": self.mma_opcode,
            "mma_per_k_tile": self.mma_per_k_tile,
        }

    def placements(self) -> dict[str, Any]:
        return {"pitch_a": self.a.pitch, "pitch_b": self.b.pitch}
