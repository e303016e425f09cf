"""The symbol of a kernel, and the name that CUTLASS would give it."""

from __future__ import annotations

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.families.mma_sync import naming as mma_sync
from generator.families.mma_sync_tma import naming as mma_sync_tma
from generator.families.sm90 import naming as sm90
from generator.spec import BY_FIELD, HASH_DIGITS, SYMBOL_FIELDS, Spec, spec_hash

MAX_SYMBOL = 64

_FAMILIES = {MMA_SYNC: mma_sync, MMA_SYNC_TMA: mma_sync_tma, WGMMA_SM90: sm90}


def symbol_of(spec: Spec) -> str:
    """Return the kernel's `extern "C"` name: the fields that people search for, then a hash of all fields.

    Example: `hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_7f3a91c2` has A and B of f16, accumulates in f32 and stores f16.
    A and B of two types are written as one word, f16bf16.
    """
    words = ["hgemm", *(BY_FIELD[name].symbol(spec) for name in SYMBOL_FIELDS)]
    return f"{'_'.join(words)[: MAX_SYMBOL - HASH_DIGITS - 1]}_{spec_hash(spec)[:HASH_DIGITS]}"


def alias_of(spec: Spec) -> str:
    """Return the name in the style of CUTLASS's library, for filters that users know; variants may share it."""
    return _FAMILIES[spec.family].alias(spec)
