"""Who decides what a program leaves open: the adversaries that every case meets, worst ones first."""

from __future__ import annotations

import hashlib

from generator.executor.abi import Adversary

LAUNCHES = (
    ("late", "ahead_low"),
    ("any_time", "any_order"),
    ("late", "ahead_high"),
    ("early", "round_robin"),
)
"""Timing and order of a case's launches: two with operands of small integers, whose sums are exact, two of normal ones.

Copies that land as late as the program allows, while one warp runs as far ahead as it can, show most of what may go wrong.
"""


def adversaries_of(case: str, seed: int) -> tuple[Adversary, ...]:
    """Return the adversaries of a case, with seeds that follow from its name and `seed`."""
    return tuple(Adversary(timing, order, _seed(case, seed, at)) for at, (timing, order) in enumerate(LAUNCHES))


def _seed(case: str, seed: int, at: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {at} {case}".encode()).digest()[:4], "little")
