"""How kernels on mma.sync whose tiles come by TMA are named."""

from __future__ import annotations

from generator.families.mma_sync.naming import alias, residency_words
from generator.spec import Spec

__all__ = ["alias", "residency_words", "words"]


def words(spec: Spec) -> list[str]:
    """Return what a symbol says between the tile and the order of the work."""
    return [
        f"w{spec.warp_tile.m}x{spec.warp_tile.n}",
        spec.mma.replace("m16n8", ""),
        f"s{spec.stages}f{spec.fragment_stages}",
        "tma",
        "zigzag" if spec.mma_order == "zigzag" else "inorder",
    ]
