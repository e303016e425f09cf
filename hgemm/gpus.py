"""Architectures, and a common GPU of each compute capability, for plans and selections without a device."""

from __future__ import annotations

import re

from hgemm.errors import LibraryError

TYPICAL = {
    75: (40, 64),
    80: (108, 163),
    86: (84, 99),
    87: (16, 163),
    88: (16, 99),
    89: (142, 99),
    90: (132, 227),
    100: (148, 227),
    103: (160, 227),
    110: (20, 227),
    120: (170, 99),
    121: (48, 99),
}
"""A common GPU of each compute capability: SMs and KiB of shared memory per CTA.

The GPUs are T4, A100, A40, Orin, a later Orin, L40S, H100 and H200, B200, B300, Thor, RTX 5090 and GB10.

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
    sms, _ = TYPICAL[number]
    return max(1, sms * max(1, ctas_per_sm) // cluster_ctas) * cluster_ctas
