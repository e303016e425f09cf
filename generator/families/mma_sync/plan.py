"""The plan of a kernel on mma.sync: its shared memory, copies, registers and instructions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from generator.arch import ARCHS
from generator.epilogue import count_of
from generator.families.base import IN_ORDER, Plan, last_first
from generator.families.common import OF_MMA_SYNC, OPCODE_SUFFIXES
from generator.layouts import ASYNC_BYTES, OperandTile, copy_conflicts, read_conflicts
from generator.spec import DTYPE_BYTES, WMMA
from hgemm.dtypes import VECTOR_BYTES
from hgemm.problem import LAUNCH, LONG_ACTIVATIONS

NAME = "mma_sync"

MMA_ROWS = 16
"""Rows of D that every mma.sync computes."""

REGISTER_COPIES = ("ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned")
"""Copies through registers: vectors of `align` elements, single elements, or vectors of 16 bytes cut out of two aligned ones."""

WARP_THREADS = 32


def mma_columns(mma: str) -> int:
    """Return the columns of D that one instruction computes."""
    return 16 if mma == WMMA else 8


@dataclass(frozen=True)
class MmaSyncPlan(Plan):
    """The plan of a kernel on mma.sync.

    Units: elements for pitches and stages, floats for the epilogue's pitch, words of 4 floats for `epilogue_odd_words`.
    """

    instruction = "mma.sync"

    @cached_property
    def fixed_fields(self) -> dict[str, Any]:
        """Every warp copies and multiplies, and CTAs share no operands. Only copies through registers place their stores."""
        return {
            **({} if self.register_copy else {"store_spacing": 0, "prefetch": True}),
            **OF_MMA_SYNC,
        }

    @property
    def register_copy(self) -> bool:
        """Whether copies go through registers."""
        return self.spec.copy in REGISTER_COPIES

    # ---- Warps and instructions -------------------------------------------------------------------------------------

    @property
    def warps_m(self) -> int:
        return max(1, self.spec.cta_tile.m // max(1, self.spec.warp_tile.m))

    @property
    def warps_n(self) -> int:
        return max(1, self.spec.cta_tile.n // max(1, self.spec.warp_tile.n))

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * WARP_THREADS

    @property
    def wmma(self) -> bool:
        """Whether WMMA loads and multiplies the fragments."""
        return self.spec.mma == WMMA

    @property
    def mma_n(self) -> int:
        """Columns of D that one instruction, or one WMMA operation, computes."""
        return mma_columns(self.spec.mma)

    @property
    def mma_k(self) -> int:
        """Depth of the machine's instruction. The compiler maps WMMA to the deepest one of the architecture."""
        if self.wmma:
            return 16 if ARCHS[self.spec.arch].has_mma_k16 else 8
        return int(self.spec.mma.rpartition("k")[2])

    @property
    def k_order(self) -> str:
        return last_first(self.spec.cta_tile.k) if self.spec.form == "dsl" else IN_ORDER

    @property
    def vector_elements(self) -> int:
        """Elements of 16 bytes, which stay together in shared memory."""
        return VECTOR_BYTES // self.spec.operand_bytes

    @property
    def vector_bits(self) -> int:
        """Bits of an element's offset within its 16 bytes."""
        return self.vector_elements.bit_length() - 1

    @property
    def k_block(self) -> int:
        """Elements of k whose fragments are read at once."""
        return 2 * self.vector_elements

    @property
    def k_blocks(self) -> int:
        return self.spec.cta_tile.k // self.k_block

    @property
    def mma_per_product(self) -> int:
        """Machine instructions for one product of fragments over a k-block. 1 at least: an illegal mma may be deeper."""
        return max(1, self.mma_n // 8 * (self.k_block // self.mma_k))

    @property
    def mma_per_k_tile(self) -> int:
        warp, k = self.spec.warp_tile, self.spec.cta_tile.k
        return (warp.m // MMA_ROWS) * (warp.n // 8) * (k // self.mma_k)

    @property
    def mma_opcode(self) -> str:
        shape = {16: "16816", 8: "1688"}[self.mma_k]
        result = "F32" if self.spec.acc == "f32" else "F16"
        return f"HMMA.{shape}.{result}" + OPCODE_SUFFIXES.get(self.spec.dtype_a, "")

    # ---- Stages -----------------------------------------------------------------------------------------------------

    @cached_property
    def a(self) -> OperandTile:
        return self._operand(self.spec.a_k_major, self.spec.cta_tile.m, self.spec.align_a, self.spec.smem_a)

    @cached_property
    def b(self) -> OperandTile:
        return self._operand(self.spec.b_k_major, self.spec.cta_tile.n, self.spec.align_b, self.spec.smem_b)

    def _operand(self, k_major: bool, extent: int, align: int, smem) -> OperandTile:
        rows, columns = (extent, self.spec.cta_tile.k) if k_major else (self.spec.cta_tile.k, extent)
        chunk = {"ldg_sts_scalar": 1, "ldg_sts_unaligned": self.vector_elements}.get(self.spec.copy, align)
        return OperandTile(k_major, rows, columns, chunk, self.threads, smem, self.spec.operand_bytes)

    @property
    def stage_bytes(self) -> int:
        return self.spec.operand_bytes * (self.a.stage_elements + self.b.stage_elements)

    @property
    def bank_conflicts(self) -> int:
        reads = read_conflicts(self.a) * self.warps_n + read_conflicts(self.b) * self.warps_m
        return reads + sum(copy_conflicts(tile, self.threads) for tile in (self.a, self.b))

    # ---- Epilogue ---------------------------------------------------------------------------------------------------

    @property
    def stores_two_words(self) -> bool:
        """Whether 16 bytes of D are made from two words of 4 floats."""
        return DTYPE_BYTES[self.spec.dtype_d] == 2

    @property
    def epilogue_odd_words(self) -> int:
        """Where the odd words of a staged row start. Odd, so that 8 lanes use 8 groups of banks."""
        return self.spec.warp_tile.n // 8 | 1 if self.stores_two_words else 0

    @property
    def epilogue_pitch(self) -> int:
        """Floats between two staged rows: no less than a row, and 8 or 24 modulo the 32 banks."""
        row = 8 * self.epilogue_odd_words if self.stores_two_words else self.spec.warp_tile.n
        pitch = -(-row // 8) * 8
        return pitch if pitch % 16 == 8 else pitch + 8

    @property
    def slab_rows(self) -> int:
        """Rows that the epilogue of forms cute and dsl stages at once: one atom of every warp along m."""
        return MMA_ROWS * self.warps_m

    @property
    def slab_odd_words(self) -> int:
        """Where the odd words of such a row start."""
        return self.spec.cta_tile.n // 8 | 1

    @property
    def slab_pitch(self) -> int:
        """Floats between two such rows, 8 or 24 modulo the 32 banks."""
        return 8 * self.slab_odd_words if self.stores_two_words else self.spec.cta_tile.n + 8

    @property
    def epilogue_bytes(self) -> int:
        if self.spec.form in ("cute", "dsl"):
            return self.slab_rows * self.slab_pitch * 4
        rows = self.threads // WARP_THREADS * MMA_ROWS
        return rows * self.epilogue_pitch * 4 if self.spec.store == "smem" else 0

    # ---- Shared memory of a CTA -------------------------------------------------------------------------------------

    @property
    def smem_bytes(self) -> int:
        """The stages. The epilogue later uses the same memory for its rows."""
        return -(-max(self.spec.stages * self.stage_bytes, self.epilogue_bytes) // 128) * 128

    @property
    def static_smem_bytes(self) -> int:
        """The static part: all or nothing."""
        return self.smem_bytes if self.spec.smem_alloc == "static" else 0

    def launch(self) -> dict[str, Any]:
        """Return the record's `launch`. Its `smem_bytes` are dynamic; static ones are listed apart."""
        static = {"static_smem_bytes": self.static_smem_bytes} if self.static_smem_bytes else {}
        return {**super().launch(), "smem_bytes": self.smem_bytes - self.static_smem_bytes, **static}

    # ---- Registers --------------------------------------------------------------------------------------------------

    @property
    def accumulator_registers(self) -> int:
        elements = self.spec.warp_tile.m * self.spec.warp_tile.n // WARP_THREADS
        return {"f32": elements, "f16": elements // 2, "f16_promoted": elements + elements // 2}[self.spec.acc]

    @property
    def fragment_registers(self) -> int:
        """Fragments of A and B for a k-block, times the fragment stages."""
        return self.fragment_registers_per_stage * self.spec.fragment_stages

    @property
    def fragment_registers_per_stage(self) -> int:
        return self.spec.warp_tile.m // 4 + self.spec.warp_tile.n // 4

    @property
    def fragment_rows(self) -> int:
        """Rows of A's fragments that a warp keeps in registers."""
        mma_m = self.spec.warp_tile.m // MMA_ROWS
        rows = mma_m * self.k_blocks
        if self.spec.fragment_stages == 2:
            return mma_m
        return next((count for count in (3, 4) if mma_m > count and rows % count == 0), mma_m)

    @property
    def needed_registers(self) -> int:
        if self.register_copy:
            terms = RegisterCopyTerms()
            return int(max(_register_copy_mainloop(self, terms), _register_copy_epilogue(self, terms)))
        return math.ceil(max(_mainloop_registers(self), _epilogue_registers(self)))

    @property
    def adds_halves_as_floats(self) -> bool:
        """Whether f16 accumulators become floats, because CTAs may add them up in a workspace."""
        return self.spec.schedule.in_workspace and self.spec.acc == "f16"

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


# ==== Copies through registers: how many stores a thread makes for a k-tile, and how far apart they may be ====

CPI_HMMA = 8.06
CPI_STS = {16: 10.00, 8: 6.00, 4: 4.06, 2: 4.06}
"""Clocks from one instruction of a scheduler to the next; of STS by the bytes that a lane stores.

Source: Yan, Wang, Chu, "Demystifying Tensor Cores to Optimize Half-Precision Matrix Multiply", IPDPS 2020, on an RTX 2070.
STS of 2 bytes is assumed to take as long as STS of 4.
"""
SCHEDULERS = 4
"""Schedulers of an SM. They share one path to shared memory."""

MAX_SPACING = 64


def copy_steps(tile: OperandTile) -> tuple[int, int, int]:
    """Return the row step, row passes and column passes of a thread's copies of one stage."""
    per_row = max(1, tile.columns // tile.chunk)
    row_step = max(1, tile.threads // per_row)
    return row_step, -(-tile.rows // row_step), -(-per_row // tile.threads)


def copy_passes(tile: OperandTile) -> int:
    """Return how many chunks of a stage a thread copies."""
    _, rows, columns = copy_steps(tile)
    return rows * columns


def stores_per_k_tile(plan: MmaSyncPlan) -> int:
    """Return how many chunks of a k-tile a thread copies through registers, with one load and one store each."""
    return copy_passes(plan.a) + copy_passes(plan.b)


def copy_registers(plan: MmaSyncPlan) -> int:
    """Return the registers that hold a thread's chunks. A chunk takes whole registers, an unaligned one twice as many."""
    return sum(
        copy_passes(tile) * -(-tile.chunk * tile.element_bytes // 4) * (2 if align < tile.chunk else 1)
        for tile, align in ((plan.a, plan.spec.align_a), (plan.b, plan.spec.align_b))
    )


def hiding_spacing(plan: MmaSyncPlan) -> int:
    """Return the spacing that hides stores: shared memory takes a store of each scheduler while each issues so many products."""
    widest = min(max(plan.a.chunk, plan.b.chunk) * plan.spec.operand_bytes, VECTOR_BYTES)  # more is no legal alignment
    return math.ceil(SCHEDULERS * CPI_STS[widest] / CPI_HMMA)


def instructions_between_stores(plan: MmaSyncPlan) -> int:
    """Return how many tensor instructions of a warp can separate stores.

    With two stages these are all of a k-tile. With one stage they are those after which no warp reads the k-tile any more.
    """
    mma_m, mma_n = plan.spec.warp_tile.m // MMA_ROWS, plan.spec.warp_tile.n // plan.mma_n
    products = plan.k_blocks * mma_m * mma_n - 1  # after the first
    if plan.spec.stages == 1:
        products = min(products, plan.fragment_rows * mma_n)
    return products * plan.mma_per_product


def widest_spacing(plan: MmaSyncPlan) -> int:
    """Return the most tensor instructions that may separate two stores, in whole blocks of k.

    Unaligned vectors are stored together: single elements may follow the last one, at the end of the matrix.
    """
    if plan.spec.copy == "ldg_sts_unaligned":
        return 0
    per_product, gaps = plan.mma_per_product, max(1, stores_per_k_tile(plan) - 1)
    return min(MAX_SPACING, max(0, instructions_between_stores(plan)) // per_product // gaps * per_product)


def planned_spacing(plan: MmaSyncPlan) -> int:
    """Return the spacing that hides stores, but no more than half of the widest one if there are two stages.

    Single elements are too many to place one by one. Without prefetch, stores follow all products.
    """
    if plan.spec.copy == "ldg_sts_scalar" or not plan.spec.prefetch:
        return 0
    share = 2 if plan.spec.stages > 1 else 1
    return min(hiding_spacing(plan), widest_spacing(plan) // share)


# ==== Registers of a thread: an estimate from above ====
#
# The larger of what the mainloop and the epilogue need. Fitted to the fewest registers with which ptxas 13.0 compiles random
# kernels without a spill. ptxas reorders and recomputes, so no sum is exact.
# Source: docs/performance-notes.md, "Registers and spills". tests/test_oracle.py samples both sides.

BASE = 25
"""Pointers, loop state, temporaries, and a margin."""

FRAGMENT = 0.96
FRAGMENT_AHEAD = 0.41
"""Per register of the second fragment stage, whose reads ptxas delays."""

COPY_PASS = 0.2
MAX_PASSES = 40
"""Passes beyond this number cost no more registers."""

COPY_ADDRESS = 0.9
"""Per address in a stage that is not at a constant distance from another one."""

NARROW_COPY_BYTES, NARROW_COPY = 4, 4
"""In addition, per operand that is copied by so many bytes or fewer."""

PERSISTENT = 10
PROMOTED = -0.12
"""Per accumulator register: halves are free between k-tiles, when much else is alive."""

FLOAT_REDUCTION = 0.27
"""In addition, per accumulator register: reductions of halves add floats."""

ONE_K_BLOCK, FOUR_K_BLOCKS_AHEAD = -9, 16
MN_MAJOR = 2
BY_ELEMENT = 8
"""In addition, per operand that lanes load by the element: each of 8 neighbours has its own address."""

FLOAT_OUTPUT, BIAS = 1, 1.5

INPUT = 4
"""For each row, column or matrix of an expression: the vector of a thread."""

FROM_SM100 = -5
"""More addresses are in uniform registers."""

EPILOGUE = 30
"""In addition to the accumulators."""

TIGHT_LIMIT, ROOM = 40, 0.078
"""Per register that the limit is higher: ptxas recomputes fewer addresses, and spills a little earlier."""


def _epilogue_registers(plan: MmaSyncPlan) -> float:
    return plan.accumulator_registers * (1 + FLOAT_REDUCTION * plan.adds_halves_as_floats) + EPILOGUE


def _mainloop_registers(plan: MmaSyncPlan) -> float:
    spec = plan.spec
    sized = [(tile, tile.chunk * tile.element_bytes) for tile in (plan.a, plan.b)]
    addresses = sum(_addresses(tile) for tile, size in sized if size >= ASYNC_BYTES)
    accumulators = plan.accumulator_registers
    terms = (
        BASE,
        accumulators,
        accumulators * PROMOTED * (spec.acc == "f16_promoted"),
        accumulators * FLOAT_REDUCTION * plan.adds_halves_as_floats,
        plan.fragment_registers_per_stage * (FRAGMENT + FRAGMENT_AHEAD * (spec.fragment_stages > 1)),
        min(stores_per_k_tile(plan), MAX_PASSES) * COPY_PASS,
        addresses * COPY_ADDRESS,
        NARROW_COPY * sum(size <= NARROW_COPY_BYTES for _, size in sized),
        PERSISTENT * (plan.streams or spec.schedule.kind in ("persistent", LAUNCH)),
        ONE_K_BLOCK * (plan.k_blocks == 1),
        FOUR_K_BLOCKS_AHEAD * (plan.k_blocks == 4 and spec.fragment_stages > 1),
        MN_MAJOR * ((not plan.a.k_major) + (not plan.b.k_major)),
        BY_ELEMENT * ((not plan.a.by_ldmatrix) + (not plan.b.by_ldmatrix)),
        FLOAT_OUTPUT * (spec.dtype_d == "f32"),
        BIAS * (spec.bias != "none"),
        INPUT * count_of(spec.epilogue, "row", "column", "matrix"),
        FROM_SM100 * (ARCHS[spec.arch].number >= 100),
        ROOM * max(0, plan.max_registers - TIGHT_LIMIT),
    )
    return sum(terms)


# ---- Copies through registers: a fit of their own, with a larger margin ---------------------------------------------
#
# Their default tiles are near the limit, and were compiled. benchmarks/data/confusion_register_copy.json has how often the fit errs
# on random kernels.


@dataclass(frozen=True)
class RegisterCopyTerms:
    """Registers that each property of a kernel takes if its copies go through registers."""

    base: int = 26
    fragment: float = 1.05
    fragment_ahead: float = 0.5
    chunks: int = 2  # in addition to the registers that hold them
    copy_pass: float = 0.7
    address: float = 1.6
    address_of_three_k_blocks: float = 3.5  # in addition
    persistent: int = 17
    persistent_of_2_bytes: int = 14  # in addition, per operand that is copied by so many bytes
    persistent_of_4_bytes: int = 10
    in_workspace: int = 6
    float_reduction: float = 0.5  # per accumulator register of halves
    promoted: int = -12
    one_k_block: int = -14
    four_k_blocks: int = 15
    three_k_blocks_ahead: int = 15  # the fragment stages swap after each k-tile
    mma_k8: int = 5
    mn_major: int = 7
    by_element: int = BY_ELEMENT
    float_output: int = 6
    from_sm100: int = -5
    epilogue: int = 48
    long_activation: int = 12
    relaxed_limit: int = 200  # below it ptxas recomputes what it keeps in registers above it


def _register_copy_epilogue(plan: MmaSyncPlan, terms: RegisterCopyTerms) -> float:
    accumulators = plan.accumulator_registers * (2 if plan.adds_halves_as_floats else 1)
    return (
        accumulators
        + terms.epilogue
        + terms.long_activation * (plan.spec.activation in LONG_ACTIVATIONS or plan.spec.epilogue != "none")
    )


def _register_copy_mainloop(plan: MmaSyncPlan, terms: RegisterCopyTerms) -> float:
    spec, ahead = plan.spec, plan.spec.fragment_stages > 1
    sized = [(tile, tile.chunk * tile.element_bytes) for tile in (plan.a, plan.b)]
    addresses = sum(_addresses(tile) for tile, size in sized if size >= ASYNC_BYTES and tile.smem.kind == "xor")
    narrow = {2: terms.persistent_of_2_bytes, 4: terms.persistent_of_4_bytes}
    fragments = plan.fragment_registers_per_stage * (terms.fragment + terms.fragment_ahead * ahead)
    copied = copy_registers(plan) + terms.chunks
    persistent = plan.streams or spec.schedule.kind == "persistent"
    recomputable = (
        terms.copy_pass * min(stores_per_k_tile(plan), MAX_PASSES),
        addresses * (terms.address + terms.address_of_three_k_blocks * (plan.k_blocks == 3)),
        persistent * (terms.persistent + sum(narrow.get(size, 0) for _, size in sized)),
        terms.in_workspace * spec.schedule.in_workspace,
        terms.four_k_blocks * (plan.k_blocks == 4),
        terms.three_k_blocks_ahead * (ahead and plan.k_blocks == 3),
        terms.mn_major * ((not plan.a.k_major) + (not plan.b.k_major)),
        terms.by_element * ((not plan.a.by_ldmatrix) + (not plan.b.by_ldmatrix)),
    )
    kept = (
        terms.base,
        plan.accumulator_registers * (1 + terms.float_reduction * plan.adds_halves_as_floats),
        fragments + copied if spec.prefetch else max(fragments, copied),  # not alive at the same time
        terms.promoted * (spec.acc == "f16_promoted"),
        terms.one_k_block * (plan.k_blocks == 1),
        terms.mma_k8 * (plan.mma_k == 8),
        terms.float_output * (spec.dtype_d == "f32"),
        terms.from_sm100 * (ARCHS[spec.arch].number >= 100),
    )
    return sum(kept) + sum(recomputable) * min(1.0, plan.max_registers / terms.relaxed_limit)


def _addresses(tile: OperandTile) -> int:
    """Return how many addresses of a thread's chunks differ modulo the swizzle's period, besides the first.

    Without a swizzle all are at constant distances, except that rows padded in pairs have two distances if the step is odd.
    """
    step, rows, columns = copy_steps(tile)
    if tile.smem.kind != "xor":
        return int(tile.smem.pair_pad > 0 and step % 2 == 1)
    places = (
        (row * step * tile.pitch + column * tile.threads * tile.chunk)
        for row in range(rows)
        for column in range(columns)
    )
    return len({place % tile.period for place in places}) - 1
