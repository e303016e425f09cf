"""How many CTAs of a kernel one SM holds, and what stops the next one."""

from __future__ import annotations

from dataclasses import dataclass

from generator.arch import ArchLimits


@dataclass(frozen=True)
class Occupancy:
    """CTAs and warps resident on one SM; `fraction` is of the warps that it could hold; `limiter` stops the next CTA.

    A kernel that cannot be launched at all has 0 CTAs.
    """

    ctas_per_sm: int
    warps_per_sm: int
    fraction: float
    limiter: str


def occupancy(limits: ArchLimits, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Work out the residency of a kernel with these threads a CTA, registers a thread and shared memory a CTA.

    Units: `smem_bytes` is static and dynamic shared memory together, without the system's own.
    Source: `cuda_occupancy.h` 13.0, cudaOccMaxActiveBlocksPerMultiprocessor, the oracle of tests/test_occupancy.py.
    """
    warps = -(-threads // limits.warp_threads)
    ctas_by = {
        "warps": limits.warps_per_sm // warps if threads <= limits.threads_per_cta else 0,
        "registers": _ctas_by_registers(limits, warps, registers),
        "smem": _ctas_by_smem(limits, smem_bytes),
        "ctas": limits.ctas_per_sm,
    }
    limiter = min(ctas_by, key=ctas_by.__getitem__)
    ctas = ctas_by[limiter]
    return Occupancy(ctas, ctas * warps, ctas * warps / limits.warps_per_sm, limiter)


def _ctas_by_registers(limits: ArchLimits, warps: int, registers: int) -> int:
    """Count CTAs by registers: given out warp by warp, in units, from one partition of the SM each."""
    registers_per_warp = _round_up(max(registers, 1) * limits.warp_threads, limits.register_unit)
    checked_at_launch = registers_per_warp * _round_up(warps, limits.sm_partitions)
    if registers > limits.max_registers_per_thread or checked_at_launch > limits.registers_per_cta:
        return 0
    warps_per_partition = limits.registers_per_sm // limits.sm_partitions // registers_per_warp
    return warps_per_partition * limits.sm_partitions // warps


def _ctas_by_smem(limits: ArchLimits, smem_bytes: int) -> int:
    if smem_bytes > limits.smem_bytes_per_cta:
        return 0
    taken_bytes = _round_up(smem_bytes + limits.smem_reserved_bytes_per_cta, limits.smem_unit)
    return limits.smem_bytes_per_sm // taken_bytes if taken_bytes else limits.ctas_per_sm


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
