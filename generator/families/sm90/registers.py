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

MAX_CONSUMER_REGISTERS = 232
REGISTER_STEP = 8
"""Registers that setmaxnreg gives and takes. Source: PTX ISA 8.8, setmaxnreg: multiples of 8 from 24 to 256."""

BASE = 40
"""What a consumer's thread needs beside its sums: descriptors, loop state, the addresses of the epilogue."""

BETA = 20
"""In addition where C is read."""

HALVES = 48
"""In addition where C is added to sums that were halves."""

CURVE = 20
CURVES = ("gelu", "silu")
"""In addition for activations that a series computes."""

DIRECT = 28
"""In addition where threads store D themselves; twice that swapped, when each of their rows has an address.

Source of these: 280 random kernels, 40 of them near the limit, compiled by ptxas 13.0: of those that the estimate accepts fewer
than one in fifty spills, by less than 100 bytes, which inspection refuses. tests/test_wgmma_build.py samples them.
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
    """Return what a producer's and a consumer's thread change to; (0, 0) where consumers would gain none."""
    limits, consumers = ARCHS[plan.spec.arch].limits, max(1, plan.spec.consumers)
    producer = PRODUCER_REGISTERS[consumers]
    all_warpgroups = limits.registers_per_sm // max(1, plan.spec.ctas_per_sm) // WARPGROUP_THREADS
    share = (all_warpgroups - producer) // consumers // REGISTER_STEP * REGISTER_STEP
    consumer = min(MAX_CONSUMER_REGISTERS, share)
    gains = consumer > at_launch(plan, WARP_THREADS)
    return (producer, consumer) if gains and at_launch(plan, WARPGROUP_THREADS) > producer else (0, 0)


def estimate(plan: WgmmaPlan) -> int:
    """Return what a consumer's thread needs in order not to spill: its sums, as floats where split-K adds them up, and more."""
    spec = plan.spec
    terms = (
        plan.sums_registers if spec.schedule.splits > 1 else plan.accumulator_registers,
        BASE,
        BETA * spec.beta,
        HALVES * (spec.beta and spec.acc == "f16"),
        CURVE * (spec.activation in CURVES),
        DIRECT * (spec.store == "direct") * (2 if spec.swapped else 1),
    )
    return sum(terms)
