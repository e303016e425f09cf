"""The symbol of a kernel, and the name that CUTLASS would give it."""

from __future__ import annotations

from generator.families import family_of
from generator.spec import BY_FIELD, HASH_DIGITS, SYMBOL_FIELDS, Spec, spec_hash

MAX_SYMBOL = 64


def symbol_of(spec: Spec) -> str:
    """Return the kernel's `extern "C"` name: the fields that people search for, then a hash of all fields.

    Example: `hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_7f3a91c2` has A and B of f16, accumulates in f32 and stores f16.
    A and B of two types are written as one word, f16bf16.
    """
    words = ["hgemm", *(BY_FIELD[name].symbol(spec) for name in SYMBOL_FIELDS)]
    return f"{'_'.join(words)[: MAX_SYMBOL - HASH_DIGITS - 1]}_{spec_hash(spec)[:HASH_DIGITS]}"


def alias_of(spec: Spec) -> str:
    """Return the name in the style of CUTLASS's library, for filters that users know; variants may share it."""
    return family_of(spec).alias(spec)
