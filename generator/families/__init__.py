"""The registry of kernel families. To add one, add a folder here that exports a `Family`, and one line to FAMILIES.

The other modules of `generator` reach families only through this registry. base.py defines `Family`, `Plan` and `Rule`; common.py
has rules, fixes and template values that several families share.
"""

from __future__ import annotations

from generator.arch import Arch
from generator.errors import unknown_word
from generator.families import mma_sync, mma_sync_direct, mma_sync_tma, wgmma
from generator.families.base import Expectation, Family, Plan
from generator.spec import Spec

FAMILIES: list[Family] = [
    wgmma.FAMILY,
    mma_sync.FAMILY,
    mma_sync_tma.FAMILY,
    mma_sync_direct.FAMILY,
]
"""Every family. For a request that names none, the first one that its architecture and its problem allow is the default."""


def family_of(spec: Spec) -> Family:
    """Return the family of a spec, which its instruction and its copy decide.

    Raises: RequestError for an instruction that no family has.
    """
    return owner_of(spec.mma, spec.copy)


def alias_of(spec: Spec) -> str:
    """Return the name in the style of CUTLASS's library, for filters that users know; kernels may share it."""
    return family_of(spec).alias(spec)


def owner_of(mma: str, copy: str) -> Family:
    """Return the family of kernels with this instruction and this copy.

    Raises: RequestError for an instruction that no family has.
    """
    for family in FAMILIES:
        if family.owns(mma, copy):
            return family
    raise unknown_word("mma", mma, dict.fromkeys(name for family in FAMILIES for name in family.mma))


def expectation_of(plan: Plan, allow_spills: bool) -> Expectation:
    """Return what inspection must find in the kernel of a plan."""
    return family_of(plan.spec).expectation(plan, allow_spills)


def supported_by(arch: Arch) -> list[Family]:
    """Return the families that an architecture can run, in their order."""
    return [family for family in FAMILIES if family.supports(arch)]
