"""The symbol of a variant, which says its spec in a fixed order, and the name that CUTLASS would give it."""

from __future__ import annotations

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.families.mma_sync import naming as mma_sync
from generator.families.mma_sync_tma import naming as mma_sync_tma
from generator.families.naming import short
from generator.families.sm90 import naming as sm90
from generator.plan import plan_of
from generator.spec import Spec

_FAMILIES = {MMA_SYNC: mma_sync, MMA_SYNC_TMA: mma_sync_tma, WGMMA_SM90: sm90}
_ACC = {"f32": "f32", "f16": "f16", "f16_promoted": "f16p"}
_BIAS = {"none": "", "row": "_biasrow", "column": "_biascol"}


def symbol_of(spec: Spec) -> str:
    """Return the kernel's `extern "C"` name. Specs that differ have symbols that differ."""
    family = _FAMILIES[spec.family]
    words = [
        "hgemm",
        spec.arch.replace("_", ""),
        spec.layout,
        f"{spec.dtype_a}{spec.dtype_b if spec.dtype_b != spec.dtype_a else ''}",
        _ACC[spec.acc],
        spec.dtype_d,
        str(spec.cta_tile),
        *family.words(spec),
        short(spec.raster),
        short(spec.schedule).replace("onetile", "one").replace("splitkcluster", "clusterk"),
        *family.residency_words(spec),
        f"a{spec.align_a}{spec.align_b}{spec.align_d}",
        spec.store,
        *_strays(spec),
    ]
    extras = ("_beta" if spec.beta else "") + _BIAS[spec.bias]
    return "_".join(words) + extras + (f"_{spec.activation}" if spec.activation != "none" else "")


def _strays(spec: Spec) -> list[str]:
    """Return the fields that are not as the family decides them, which no legal spec has."""
    implied = plan_of(spec).implied.items()
    return [short(name) + short(getattr(spec, name)) for name, value in implied if getattr(spec, name) != value]


def alias_of(spec: Spec) -> str:
    """Return the name in the style of CUTLASS's library, for filters that users know; variants may share it."""
    return _FAMILIES[spec.family].alias(spec)
