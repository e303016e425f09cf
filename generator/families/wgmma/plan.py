"""The plan of a kernel on wgmma: its warpgroups, shared memory, registers, instructions and tensor maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.epilogue import count_of, reduces
from generator.families.common import OPCODE_SUFFIXES
from generator.families.tensor_maps import (
    ANSWER_BYTES,
    BARRIER_BYTES,
    DIRECT_BYTES,
    REGISTER_STEP,
    OperandBoxes,
    ProducerPlan,
    whole_parts,
)
from generator.spec import DTYPE_BYTES, Cluster, Tile, WarpTile
from hgemm.epilogue import NONE, accumulators_of, numbers_of
from hgemm.problem import LAUNCH, LONG_ACTIVATIONS
from hgemm.tensor_maps import (
    MAPS_WITH_EDGES,
    NARROW_LAST_COLUMNS,
    ROWS_PER_WARPGROUP,
    StoreBoxes,
    TensorMap,
    loads_of,
    store_boxes,
)

NAME = "wgmma"

WARPGROUP_THREADS = 128
WARP_THREADS = 32

MMA_K_BYTES = 32
"""Bytes of k that one instruction multiplies."""

PINGPONG_BARRIERS = 2
"""One for each of two ping-pong consumers."""


@dataclass(frozen=True)
class WgmmaPlan(ProducerPlan):
    """The plan of a kernel on wgmma.

    A CTA has `consumers` warpgroups, and then a producer. Cooperative consumers share a tile, and each computes `consumer_rows`
    of it. Ping-pong consumers compute whole tiles in turns. With swapped operands, the kernel's A and m are the problem's B and n.
    Units: elements for boxes and columns.
    """

    instruction = "wgmma"

    @cached_property
    def fixed_fields(self) -> dict[str, Any]:
        """One instruction is as wide as the tile. Operands lie in shared memory, in a swizzle that TMA and wgmma support."""
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
        """Whether threads of the producer copy A and B by cp.async, instead of TMA."""
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
        """CTAs of a cluster: those that share operands, or those that share a tile."""
        spec = self.spec
        return spec.schedule.splits if spec.schedule.kind == "split_k_cluster" else spec.cluster.ctas

    @property
    def threads(self) -> int:
        """Threads of the consumers and of the producer."""
        return WARPGROUP_THREADS * self.spec.consumers + self.producer_threads

    @property
    def producer_threads(self) -> int:
        """A warp, or a warpgroup if it gives registers to the consumers or if all of its threads copy."""
        return WARPGROUP_THREADS if self.copied or any(self.rebalanced) else WARP_THREADS

    @property
    def consumer_rows(self) -> int:
        """Rows of the kernel's D that a consumer computes at a time."""
        return self.tile.m // (1 if self.pingpong else max(1, self.spec.consumers))

    @cached_property
    def a(self) -> OperandBoxes:
        """The kernel's A."""
        k_major = self.spec.b_k_major if self.spec.swap_ab else self.spec.a_k_major
        return self._boxes(k_major, self.tile.m, self.cluster.n)

    @cached_property
    def b(self) -> OperandBoxes:
        """The kernel's B."""
        k_major = self.spec.a_k_major if self.spec.swap_ab else self.spec.b_k_major
        return self._boxes(k_major, self.tile.n, self.cluster.m)

    def _boxes(self, k_major: bool, extent: int, shared_by: int) -> OperandBoxes:
        pads = self.pads_boxes
        return OperandBoxes(k_major, extent, self.tile.k, shared_by, self.spec.operand_bytes, padded=pads, edges=pads)

    @property
    def pads_boxes(self) -> bool:
        """Whether the last box of an MN-major operand may extend beyond the tile. Threads copy, and CuTe expects, whole boxes."""
        return self.spec.form == "atoms" and not self.copied

    @cached_property
    def d(self) -> StoreBoxes:
        spec = self.spec
        return store_boxes(
            self.tile.n,
            self.consumer_rows,
            DTYPE_BYTES[spec.dtype_d],
            swap_ab=spec.swap_ab,
            pingpong=self.pingpong,
            f16_sums=spec.acc == "f16",
            loads=loads_of(spec.bias, spec.epilogue),
            cluster_splits=spec.schedule.splits if spec.schedule.kind == "split_k_cluster" else 0,
            accumulators=accumulators_of(spec.epilogue),
            numbers=numbers_of(spec.epilogue),
            narrow_last=self._narrow_last,
        )

    @property
    def _narrow_last(self) -> bool:
        """Whether a tile's last subtile of D may be narrower with swapped operands. Three consumers often lack memory for it."""
        spec = self.spec
        whole = spec.schedule.kind in ("one_tile", "persistent")
        staged = 2 * spec.consumers * ROWS_PER_WARPGROUP * NARROW_LAST_COLUMNS * DTYPE_BYTES[spec.dtype_d]
        fits = spec.consumers < 3 or self.mainloop_bytes + self.barrier_bytes + staged <= self.max_smem_bytes
        return spec.swap_ab and whole and spec.form == "atoms" and spec.epilogue == NONE and fits

    @property
    def adds_vectors(self) -> bool:
        """Whether the epilogue loads a bias, or inputs of an expression."""
        return loads_of(self.spec.bias, self.spec.epilogue) != ""

    # ---- Shared memory ----------------------------------------------------------------------------------------------

    @property
    def partial_bytes(self) -> int:
        """Bytes that a CTA of split_k_cluster receives in its stages: from each CTA, the floats of its own subtiles."""
        splits, columns = self.spec.schedule.splits, self.d.subtile_columns * accumulators_of(self.spec.epilogue)
        return splits * -(-self.subtiles // splits) * columns * ROWS_PER_WARPGROUP * max(1, self.spec.consumers) * 4

    @property
    def barrier_bytes(self) -> int:
        """Full and empty barriers of each stage, those of ping-pong, and the results of counters, one per concurrent reduction."""
        shares = self.shares_tiles or reduces(self.spec.epilogue)
        results = self.spec.consumers if self.pingpong and shares else 1
        return BARRIER_BYTES * (2 * self.spec.stages + PINGPONG_BARRIERS) + ANSWER_BYTES * results

    @cached_property
    def epilogue_stages(self) -> int:
        """Subtiles of D that a consumer stages at once: all of a tile if the epilogue is unrolled and they fit, so that they
        have one barrier; else 2 if they fit, so that one is filled while the other is stored.
        """
        spec = self.spec
        at_once = (
            self.unrolls_epilogue
            and spec.form == "atoms"
            and spec.schedule.kind != "split_k_cluster"
            and not self.copied
        )
        counts = (max(2, self.subtiles), 2) if at_once else (2,)
        return next((count for count in counts if self._smem_bytes(count) <= self.max_smem_bytes), 1)

    @property
    def subtiles(self) -> int:
        """Subtiles of D of a consumer's tile."""
        columns = self.d.subtile_columns * accumulators_of(self.spec.epilogue)
        return self.consumer_rows // ROWS_PER_WARPGROUP * -(-self.tile.n // columns)

    @property
    def unrolls_epilogue(self) -> bool:
        """Whether the epilogue's subtiles are unrolled in the common case: 2 to 8 % faster."""
        spec = self.spec
        short = spec.activation not in LONG_ACTIVATIONS and spec.epilogue == NONE
        return short and (spec.store == "tma" or spec.form == "cute")

    @property
    def epilogue_bytes(self) -> int:
        return self._epilogue_bytes(self.epilogue_stages)

    @property
    def smem_bytes(self) -> int:
        """Stages of A, stages of B, staged rows of D, barriers."""
        return self._smem_bytes(self.epilogue_stages)

    def _epilogue_bytes(self, stages: int) -> int:
        return self.spec.consumers * self.d.subtile_bytes * stages if self.spec.store == "tma" else DIRECT_BYTES

    def _smem_bytes(self, epilogue_stages: int) -> int:
        parts = (self.mainloop_bytes, self._epilogue_bytes(epilogue_stages), self.barrier_bytes)
        return sum(map(whole_parts, parts))

    # ---- Registers --------------------------------------------------------------------------------------------------

    @cached_property
    def rebalanced(self) -> tuple[int, int]:
        """Registers that a producer's and a consumer's thread change to, or (0, 0) if they keep those of the launch.

        They keep them if consumers would gain none, or if two CTAs share an SM. Such CTAs are launched with less than half of its
        registers each, and consumers would wait forever for more.
        """
        limits, consumers = ARCHS[self.spec.arch].limits, max(1, self.spec.consumers)
        producer = COPYING_REGISTERS if self.copied else PRODUCER_REGISTERS[consumers]
        share = (limits.registers_per_sm // WARPGROUP_THREADS - producer) // consumers // REGISTER_STEP * REGISTER_STEP
        consumer = min(MAX_CONSUMER_REGISTERS, share)
        alone = self.spec.ctas_per_sm <= 1
        return (producer, consumer) if alone and consumer > self._at_launch(WARP_THREADS) else (0, 0)

    def _at_launch(self, producer_threads: int) -> int:
        """Return the most registers that a thread is launched with."""
        return self.register_limit(WARPGROUP_THREADS * max(1, self.spec.consumers) + producer_threads)

    @property
    def whole_program(self) -> bool:
        """True: wgmma is always compiled from a whole program."""
        return True

    @property
    def launch_registers(self) -> int:
        """Registers that each thread is launched with at most."""
        return self._at_launch(self.producer_threads)

    @property
    def accumulator_registers(self) -> int:
        return self.float_accumulator_registers // (2 if self.spec.acc == "f16" else 1)

    @property
    def float_accumulator_registers(self) -> int:
        """Registers of a thread's accumulators as floats."""
        return self.consumer_rows // ROWS_PER_WARPGROUP * self.tile.n // 2

    @property
    def reduction_registers(self) -> int:
        """Registers of the floats that a thread adds in a reduction along k. Stream-K adds 64 rows of halves at a time."""
        if self.streams and self.spec.acc == "f16":
            return max(self.accumulator_registers, self.tile.n // 2)
        return self.float_accumulator_registers

    @property
    def instruction_registers(self) -> int:
        """Registers that one instruction requires at launch."""
        return self.tile.n // (4 if self.spec.acc == "f16" else 2) + INSTRUCTION

    @property
    def needed_registers(self) -> int:
        return _estimate(self)

    # ---- Tensor instructions ----------------------------------------------------------------------------------------

    @staticmethod
    def takes(dtype: str, layout: str) -> bool:
        """Return whether wgmma supports a layout. Types of other than 2 bytes must be K-major.

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
        """Width of a group or a panel, in clusters."""
        along = self.spec.cluster.n if self.spec.raster.kind == "panel" else self.spec.cluster.m
        return max(1, super().raster_tiles // along)

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The maps of the problem's A, B and D, without operands that threads copy or store."""
        spec = self.spec
        a, b = (self.b, self.a) if spec.swap_ab else (self.a, self.b)
        loaded = () if self.copied else (a.tensor_map("a", "m", spec.dtype_a), b.tensor_map("b", "n", spec.dtype_b))
        return (*loaded, self.d.tensor_map(spec.dtype_d)) if spec.store == "tma" else loaded

    @property
    def has_edge_maps(self) -> bool:
        return any(tensor_map.edge for tensor_map in self.tensor_maps)

    @property
    def shares_tiles(self) -> bool:
        """Whether some CTAs share the k of a tile, and others do not."""
        return self.streams or self.spec.schedule.kind == LAUNCH

    def launch(self) -> dict[str, Any]:
        return {
            **super().launch(),
            "cluster": [self.launch_cluster, 1, 1],
            "cluster_shape": [self.spec.cluster.m, self.spec.cluster.n],
            "tensor_maps": [tensor_map.to_dict() for tensor_map in self.tensor_maps],
            **({"map_count": MAPS_WITH_EDGES} if self.has_edge_maps else {}),
            "programmatic": True,  # the kernel waits for the previous grid itself
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


# ==== Registers of a thread: limits, and an estimate from above ====
#
# Fitted to the fewest registers with which ptxas 13.0 compiles random kernels without a spill. The scatter is skewed: a few kernels
# need 50 more, because values that live across the producer/consumer split must lie in registers that the producer has, too.
# Source: docs/performance-notes.md, "Registers and spills".

PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 32}
"""Registers of a producer's thread by consumers: enough for its loop, and as many as possible for the consumers."""

COPYING_REGISTERS = 56
"""Registers of a producer's thread that copies: each copy in flight holds its address (docs/performance-notes.md)."""

MAX_CONSUMER_REGISTERS = 232

BASE = 28
"""Registers of a consumer's thread in addition to its accumulators: descriptors, loop state, addresses."""

SUBTILE_COLUMN = 0.31
"""Per column of a subtile of D: its results, until they are stored."""

REDUCTION = 3
"""In addition if CTAs add up partial accumulators."""

NARROW, NARROW_AND_C, NARROW_AND_BIAS, NARROW_AND_REDUCTION = 0.08, 0.25, 0.17, 0.16
"""Per column of a subtile if a tile's last one is narrower; more if it adds C; if it adds a bias; after a reduction."""

NARROW_SHARE = 0.8
"""Share of the epilogue's registers that lives beside both accumulators and sums of earlier parts of k, if a tile's last subtile is
narrower. Source: 48 random kernels."""

ADDS_C, C_AND_BIAS, C_AND_REDUCTION = 7, 9, 6
"""In addition with beta: there is a second epilogue, in a loop over subtiles."""

BIAS_OF_COLUMNS, BIAS_AT_LAUNCH = 7, 8
"""In addition if a bias may have a value for each of a thread's columns, and if the launch decides its kind."""

FURTHER_MATRIX = 0.25
"""Per column of a subtile for each matrix of an expression after the first."""

STREAM_K = 7
"""In addition for stream-K."""

ODD_AND_REDUCTION = 11
"""In addition if columns are an odd number of groups of 8, and CTAs add up partials."""

THREE_AND_REDUCTION = 8
"""In addition: three consumers leave the values that they share with the producer fewer registers."""

FEWEST_IN_CLUSTER, IN_CLUSTER = 48, 38
"""Accumulators, and registers in addition to them, if a cluster splits k. Then the epilogue adds up one subtile at a time."""

INSTRUCTION = 26
"""Registers that ptxas 13.0 requires at launch in addition to one instruction's accumulators (its error C7602)."""


def _estimate(plan: WgmmaPlan) -> int:
    """Return the registers that a consumer's thread needs to avoid spills."""
    spec, columns = plan.spec, plan.d.subtile_columns
    if spec.schedule.kind == "split_k_cluster":
        return max(plan.accumulator_registers, FEWEST_IN_CLUSTER) + IN_CLUSTER
    matrices = spec.beta + count_of(spec.epilogue, "matrix")
    bias, beta, reduces = plan.adds_vectors, matrices > 0, spec.schedule.in_workspace
    along_columns = "column" if spec.swap_ab else "row"
    narrow = NARROW + NARROW_AND_C * beta + NARROW_AND_BIAS * bias + NARROW_AND_REDUCTION * reduces
    is_narrow = plan.tile.n % columns > 0
    epilogue = (
        narrow * columns * is_narrow,
        (ADDS_C + C_AND_BIAS * bias + C_AND_REDUCTION * reduces) * beta,
        BIAS_OF_COLUMNS * ((spec.bias in (LAUNCH, along_columns)) + count_of(spec.epilogue, along_columns)),
        FURTHER_MATRIX * columns * max(0, matrices - 1),
        BIAS_AT_LAUNCH * (spec.bias == LAUNCH),
        ODD_AND_REDUCTION * (plan.tile.n % 16 > 0 and reduces),
    )
    terms = (
        plan.reduction_registers if reduces else plan.accumulator_registers,
        BASE,
        SUBTILE_COLUMN * columns,
        REDUCTION * reduces,
        STREAM_K * plan.streams,
        THREE_AND_REDUCTION * (spec.consumers == 3 and reduces),
        *epilogue,
    )
    estimate = math.ceil(sum(terms))
    if not spec.serial_parts:
        return estimate
    # Sums of earlier parts live beside the accumulators of the next part, but the epilogue has the sums only.
    both = plan.accumulator_registers + plan.float_accumulator_registers + BASE
    return max(estimate, math.ceil(both + NARROW_SHARE * is_narrow * sum(epilogue)))
