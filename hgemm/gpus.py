"""Architectures, and a common GPU of each compute capability, for plans and selections without a device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hgemm.errors import LibraryError


@dataclass(frozen=True)
class TypicalGpu:
    """A common GPU of a compute capability. Units: `smem_kib` is KiB of shared memory per CTA."""

    name: str
    sms: int
    smem_kib: int


TYPICAL = {
    75: TypicalGpu("T4", 40, 64),
    80: TypicalGpu("A100", 108, 163),
    86: TypicalGpu("A40", 84, 99),
    87: TypicalGpu("Orin", 16, 163),
    88: TypicalGpu("later Orin", 16, 99),
    89: TypicalGpu("L40S", 142, 99),
    90: TypicalGpu("H100 or H200", 132, 227),
    100: TypicalGpu("B200", 148, 227),
    103: TypicalGpu("B300", 160, 227),
    110: TypicalGpu("Thor", 20, 227),
    120: TypicalGpu("RTX 5090", 170, 99),
    121: TypicalGpu("GB10", 48, 99),
}
"""A common GPU of each compute capability.

Source: CUDA Programming Guide 13.x, section 5.1.3, table 31 (shared memory); the products' data sheets (SMs).
"""


def split_arch(arch: str) -> tuple[int, str]:
    """Return the number and the suffix of an architecture: 90 and "a" for sm_90a. Raises LibraryError if it is malformed."""
    match = re.fullmatch(r"sm_([0-9]+)([a-z]?)", arch)
    if not match:
        raise LibraryError(f"arch {arch!a} is not an architecture such as sm_89: regenerate the kernel")
    return int(match[1]), match[2]


def max_stream_k_ctas(number: int, ctas_per_sm: int, cluster_ctas: int) -> int:
    """Return the largest grid of stream-K, in whole clusters: as many CTAs as a common GPU of compute capability `number` holds."""
    return max(1, TYPICAL[number].sms * max(1, ctas_per_sm) // cluster_ctas) * cluster_ctas
