"""The numbers that follow from a spec: computed here once, asserted by the emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from generator.arch import ARCHS
from generator.layouts import OperandTile
from generator.register_estimate import estimate
from generator.spec import DTYPE_BYTES, Spec


@dataclass(frozen=True)
class Plan:
    """A spec and what follows from it.

    Units: bytes where the name says so, elements for pitches and stages, floats for the epilogue's pitch and words of 4
    floats for its `epilogue_odd_words`; registers are a thread's.
    """

    spec: Spec

    def having(self, **fields) -> Plan:
        """Return the plan of the same spec with other values in some fields."""
        return Plan(replace(self.spec, **fields))

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
    def mma_k(self) -> int:
        return int(self.spec.mma.rpartition("k")[2])

    @cached_property
    def a(self) -> OperandTile:
        return self._operand(self.spec.a_k_major, self.spec.cta_tile.m, self.spec.align_a, self.spec.smem_a)

    @cached_property
    def b(self) -> OperandTile:
        return self._operand(self.spec.b_k_major, self.spec.cta_tile.n, self.spec.align_b, self.spec.smem_b)

    def _operand(self, k_major: bool, extent: int, align: int, smem) -> OperandTile:
        rows, columns = (extent, self.spec.cta_tile.k) if k_major else (self.spec.cta_tile.k, extent)
        return OperandTile(k_major, rows, columns, align, self.threads, smem)

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage, A and B together."""
        return 2 * (self.a.stage_elements + self.b.stage_elements)

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
    def epilogue_bytes(self) -> int:
        return self.threads // 32 * 16 * self.epilogue_pitch * 4 if self.spec.store == "smem" else 0

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: the stages or, later in the same place, the staged rows of the epilogue."""
        return -(-max(self.spec.stages * self.stage_bytes, self.epilogue_bytes) // 128) * 128

    @property
    def max_smem_bytes(self) -> int:
        """Shared memory that a CTA may have for `ctas_per_sm` of them to live on an SM."""
        limits = ARCHS[self.spec.arch].limits
        share = limits.smem_bytes_per_sm // max(1, self.spec.ctas_per_sm) // limits.smem_unit * limits.smem_unit
        return min(limits.smem_bytes_per_cta, share - limits.smem_reserved_bytes_per_cta)

    # ---- Registers --------------------------------------------------------------------------------------------------

    @property
    def accumulator_registers(self) -> int:
        elements = self.spec.warp_tile.m * self.spec.warp_tile.n // 32
        return {"f32": elements, "f16": elements // 2, "f16_promoted": elements + elements // 2}[self.spec.acc]

    @property
    def fragment_registers(self) -> int:
        """Fragments of A and B for 16 of k, times the fragment stages."""
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
        return f"HMMA.{shape}.{result}" + (".BF16" if self.spec.dtype_a == "bf16" else "")

    # ---- Launch -----------------------------------------------------------------------------------------------------

    @property
    def raster_tiles(self) -> int:
        """Tiles that a group (rows of tiles) or a panel (columns of tiles) is wide."""
        if self.spec.raster.kind == "panel":
            return max(1, self.spec.raster.size // max(1, self.spec.cta_tile.n))
        return max(1, self.spec.raster.size)

    def launch(self) -> dict:
        """Return the record's `launch`: what a launcher needs beside the problem."""
        tile = self.spec.cta_tile
        grid = {
            "rule": self.spec.schedule.kind,
            "tile_m": tile.m,
            "tile_n": tile.n,
            "splits": self.spec.schedule.splits,
        }
        return {"threads": self.threads, "smem_bytes": self.smem_bytes, "cluster": [1, 1, 1], "grid": grid}

    def traits(self) -> dict:
        """Return the record's `traits`: what a caller may rely on and must bring."""
        spec = self.spec
        split = spec.schedule.splits > 1
        workspace = {
            "counter_bytes_per_tile": 4 if split else 0,
            "partial_bytes_per_tile": spec.schedule.splits * spec.cta_tile.m * spec.cta_tile.n * 4 if split else 0,
        }
        return {
            "deterministic": True,
            "workspace": workspace,
            "graph_safe": True,
            "min_align": {"a": spec.align_a, "b": spec.align_b, "d": spec.align_d},
            "exact_tiles_only": False,
        }
