"""The registers of a CTA's threads: what they are launched with, change to, and need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.arch import ARCHS

if TYPE_CHECKING:
    from generator.families.sm90.plan import WgmmaPlan

WARPGROUP_THREADS = 128
WARP_THREADS = 32

PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 32}
"""Registers of a producer's thread by consumers: what its loop takes, and what lets the consumers have most."""

COPYING_REGISTERS = 56
"""Registers of a producer's thread that copies: a copy on its way holds its address (docs/performance-notes.md)."""

MAX_CONSUMER_REGISTERS = 232
REGISTER_STEP = 8
"""Registers that setmaxnreg gives and takes. Source: PTX ISA 8.8, setmaxnreg: multiples of 8 from 24 to 256."""

BASE = 40
"""What a consumer's thread needs beside its sums: descriptors, loop state, those of a turn of the epilogue.

Adding C takes none of its own: that is done in a loop over turns, each of which is finished before the next is picked.
"""

SWAPPED_AND_C = 8
"""In addition where C is added, D is swapped and goes by TMA: C's elements have an address each."""

BIAS_IN_TURNS, BIAS_AND_C = 40, 8
"""In addition with a bias, and with one and C, where turns are written out: all its loads are ahead of the first turn."""

BIAS_IN_LOOP = {"tma": 8, "direct": 16}
"""In addition with a bias where turns are in a loop: before a curve, or where threads store D themselves."""

HALVES = 24
"""In addition with a bias and C added to sums in halves."""

CURVE, CURVE_AND_C = 16, 24
CURVES = ("gelu", "silu")
"""In addition for activations that a series computes, and more where C is added before."""

SILU_OF_THREE = 16
"""In addition for SiLU where three consumers share the registers of a CTA: without it 3 of 50 random kernels spilled, all such."""

IN_CLUSTER = 16
"""In addition where CTAs share operands and sums are more than scaled; of two CTAs alone on their SMs C takes none of it."""

FLOATS = 8
"""In addition where sums are more than scaled and D is f32."""

SPLIT_K = 16
"""In addition where sums of a workspace are more than scaled."""

STREAM_IN_CLUSTER, STREAM_SUMS = 32, 128
"""In addition where clusters share tiles by stream-K, of sums beyond so many or with a bias: of 50 random kernels 6 spilled."""

STREAM_COPIED, STREAM_COPIED_SUMS = 32, 112
"""In addition with a bias or a curve where stream-K shares tiles of so many sums that threads copy.

Source: of 100 random kernels 4 spilled, all with one of these; of 50 accepted ones drawn afterwards 1 does, which has neither.
"""

CLUSTER_K = 56
"""In addition where a cluster splits k: the loads of all splits are ahead of the first addition.

Source of these: 1,315 random kernels near the limit, compiled by ptxas 13.0, to which they are fitted: of 621 accepted ones 7
spill, which inspection refuses. Of 80 accepted ones drawn afterwards none does, of 50 with a bias and a curve 1.
"""

INSTRUCTION = 26
"""What ptxas 13.0 keeps beside one instruction's accumulators, of those that a thread is launched with (its error C7602)."""


def at_launch(plan: WgmmaPlan, producer_threads: int) -> int:
    """Return what a thread is launched with at most: a partition holds its share of warps, and gives in units."""
    limits = ARCHS[plan.spec.arch].limits
    warps = (WARPGROUP_THREADS * max(1, plan.spec.consumers) + producer_threads) // WARP_THREADS
    warps_per_partition = -(-warps * max(1, plan.spec.ctas_per_sm) // limits.sm_partitions)
    per_warp = limits.registers_per_sm // limits.sm_partitions // warps_per_partition
    units = per_warp // limits.register_unit * limits.register_unit
    return min(limits.max_registers_per_thread, units // WARP_THREADS)


def rebalanced(plan: WgmmaPlan) -> tuple[int, int]:
    """Return what a producer's and a consumer's thread change to; (0, 0) where consumers would gain none, or share an SM.

    Two CTAs an SM are launched with less than half of its registers each: two consumers would wait forever for what is in no pool.
    """
    limits, consumers = ARCHS[plan.spec.arch].limits, max(1, plan.spec.consumers)
    producer = COPYING_REGISTERS if plan.copied else PRODUCER_REGISTERS[consumers]
    share = (limits.registers_per_sm // WARPGROUP_THREADS - producer) // consumers // REGISTER_STEP * REGISTER_STEP
    consumer = min(MAX_CONSUMER_REGISTERS, share)
    alone = plan.spec.ctas_per_sm <= 1
    return (producer, consumer) if alone and consumer > at_launch(plan, WARP_THREADS) else (0, 0)


def estimate(plan: WgmmaPlan) -> int:
    """Return what a consumer's thread needs in order not to spill: its sums, as floats where split-K adds them up, and more."""
    spec = plan.spec
    curve, bias = spec.activation in CURVES, spec.bias != "none"
    finished = spec.beta or bias or curve
    summed_up = spec.schedule.in_workspace or spec.schedule.kind == "split_k_cluster"
    streams_in_cluster = spec.schedule.kind == "stream_k" and spec.cluster.ctas > 1
    streams_copied = spec.schedule.kind == "stream_k" and plan.copied
    terms = (
        plan.summed_registers if summed_up else plan.accumulator_registers,
        BASE,
        _bias(plan) * bias,
        SWAPPED_AND_C * (spec.swap_ab and spec.beta and spec.store == "tma"),
        HALVES * (bias and spec.beta and spec.acc == "f16"),
        (CURVE + CURVE_AND_C * spec.beta) * curve,
        SILU_OF_THREE * (spec.activation == "silu" and spec.consumers == 3),
        IN_CLUSTER * (spec.cluster.ctas > 1 and finished and (bias or curve or not _lone_pair(plan))),
        FLOATS * (finished and spec.dtype_d == "f32"),
        SPLIT_K * (finished and spec.schedule.in_workspace),
        CLUSTER_K * (spec.schedule.kind == "split_k_cluster"),
        STREAM_COPIED * (streams_copied and (bias or curve) and plan.sums_registers >= STREAM_COPIED_SUMS),
        STREAM_IN_CLUSTER * (streams_in_cluster and (bias or plan.sums_registers > STREAM_SUMS)),
    )
    return sum(terms)


def _bias(plan: WgmmaPlan) -> int:
    spec = plan.spec
    if spec.store == "tma" and spec.activation not in CURVES:
        return BIAS_IN_TURNS + BIAS_AND_C * spec.beta
    return BIAS_IN_LOOP.get(spec.store, 0)


def _lone_pair(plan: WgmmaPlan) -> bool:
    """Tell whether a cluster is two CTAs, each alone on its SM, whose two consumers have as many registers as there can be."""
    spec = plan.spec
    alone = (spec.cluster.ctas, spec.ctas_per_sm, spec.consumers) == (2, 1, 2)
    return alone and spec.store == "tma" and not spec.swap_ab
